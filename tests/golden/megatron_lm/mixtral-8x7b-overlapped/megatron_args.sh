# Megatron-LM 0.16 to 0.19, plan 0123456789ab (rank 1), by Meshwright
# Model Mixtral 8x7B, 4096 tokens a sequence
# World size 32: tp 2 * cp 1 * pp 2 * dp 8
# Micro-batches: 16 of 2
# Nodes: 4 of 8 × H100 SXM 80 GB
# Layers of each chunk: 4 4 4 4 4 4 4 4
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: the model has no rotary base: if yours is not 10000, add --rotary-base
# Warning: nothing balances the experts: add --moe-aux-loss-coeff, or balance them another way

MEGATRON_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    --tensor-model-parallel-size 2
    --sequence-parallel
    --tp-comm-overlap
    --pipeline-model-parallel-size 2
    --context-parallel-size 1
    # Pipeline split
    --num-virtual-stages-per-pipeline-rank 4
    --microbatch-group-size-per-virtual-pipeline-stage 2
    # Experts over ranks
    --expert-model-parallel-size 8
    --expert-tensor-parallel-size 1
    # Batch and sequence
    --micro-batch-size 2
    --global-batch-size 256
    --seq-length 4096
    # Data parallelism
    --overlap-grad-reduce
    --use-distributed-optimizer
    --overlap-param-gather
    # Precision and kernels
    --bf16
    --accumulate-allreduce-grads-in-fp32
    --transformer-impl transformer_engine
    --attention-backend fused
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --optimizer adam
    # Model
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --kv-channels 128
    --group-query-attention
    --num-query-groups 8
    --swiglu
    --disable-bias-linear
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --max-position-embeddings 4096
    --vocab-size 32000
    --make-vocab-size-divisible-by 128
    # Mixture of experts
    --num-experts 8
    --moe-router-topk 2
    --moe-ffn-hidden-size 14336
    --moe-layer-freq '([1]*32)'
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --moe-router-dtype fp32
    --overlap-moe-expert-parallel-comm
)
