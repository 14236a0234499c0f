# Megatron-LM 0.16 to 0.19, plan 0123456789ab (rank 1), by Meshwright
# Model DeepSeek-V3, 4096 tokens a sequence
# World size 512: tp 1 * cp 1 * pp 8 * dp 64
# Micro-batches: 64 of 1
# Nodes: 64 of 8 × H100 SXM 80 GB
# Layers of each chunk: 3 4 4 4 4 4 4 4 4 4 4 4 4 4 4 2
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: the model has no rotary base: if yours is not 10000, add --rotary-base

MEGATRON_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 8
    --context-parallel-size 1
    # Pipeline split
    --pipeline-model-parallel-layout 'Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*2mL'
    --microbatch-group-size-per-virtual-pipeline-stage 8
    # Experts over ranks
    --expert-model-parallel-size 64
    --expert-tensor-parallel-size 1
    # Batch and sequence
    --micro-batch-size 1
    --global-batch-size 4096
    --seq-length 4096
    # Data parallelism
    --overlap-grad-reduce
    --use-distributed-optimizer
    --overlap-param-gather
    # Activation recomputation
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    # Precision and kernels
    --bf16
    --accumulate-allreduce-grads-in-fp32
    --transformer-impl transformer_engine
    --attention-backend fused
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --optimizer adam
    # Model
    --num-layers 61
    --hidden-size 7168
    --ffn-hidden-size 18432
    --num-attention-heads 128
    --kv-channels 192
    --swiglu
    --disable-bias-linear
    --normalization RMSNorm
    --qk-layernorm
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --max-position-embeddings 4096
    --rope-type yarn
    --rotary-scaling-factor 40.0
    --mscale 1.0
    --mscale-all-dim 1.0
    --vocab-size 129280
    --make-vocab-size-divisible-by 128
    --mtp-num-layers 1
    # Mixture of experts
    --num-experts 256
    --moe-router-topk 8
    --moe-ffn-hidden-size 2048
    --moe-layer-freq '([0]*3+[1]*58)'
    --moe-shared-expert-intermediate-size 2048
    --moe-router-score-function sigmoid
    --moe-router-enable-expert-bias
    --moe-router-num-groups 8
    --moe-router-group-topk 4
    --moe-router-topk-scaling-factor 2.5
    --moe-router-load-balancing-type seq_aux_loss
    --moe-aux-loss-coeff 0.0001
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-router-dtype fp32
    # Multi-head latent attention
    --multi-latent-attention
    --q-lora-rank 1536
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
)
