# Megatron-LM 0.16 to 0.19, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# World size 64: tp 1 * cp 1 * pp 1 * dp 64
# Micro-batches: 2 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Needs: Transformer Engine 2.10 or newer

MEGATRON_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    # Batch and sequence
    --micro-batch-size 1
    --global-batch-size 128
    --seq-length 8192
    # Data parallelism
    --overlap-grad-reduce
    --use-distributed-optimizer
    --overlap-param-gather
    --use-megatron-fsdp
    --data-parallel-sharding-strategy optim_grads_params
    --ckpt-format fsdp_dtensor
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
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --kv-channels 128
    --group-query-attention
    --num-query-groups 8
    --swiglu
    --disable-bias-linear
    --normalization RMSNorm
    --norm-epsilon 1e-05
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --max-position-embeddings 131072
    --rotary-base 500000
    --use-rope-scaling
    --rope-scaling-factor 8.0
    --vocab-size 128256
    --make-vocab-size-divisible-by 128
)
