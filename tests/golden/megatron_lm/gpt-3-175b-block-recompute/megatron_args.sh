# Megatron-LM 0.16 to 0.19, plan 0123456789ab (rank 1), by Meshwright
# Model GPT-3 175B, 2048 tokens a sequence
# World size 128: tp 8 * cp 1 * pp 8 * dp 2
# Micro-batches: 32 of 1
# Nodes: 16 of 8 × A100
# Layers of each chunk: 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0

MEGATRON_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    --tensor-model-parallel-size 8
    --sequence-parallel
    --tp-comm-overlap
    --pipeline-model-parallel-size 8
    --context-parallel-size 1
    # Pipeline split
    --num-virtual-stages-per-pipeline-rank 3
    --microbatch-group-size-per-virtual-pipeline-stage 8
    # Batch and sequence
    --micro-batch-size 1
    --global-batch-size 64
    --seq-length 2048
    # Data parallelism
    --overlap-grad-reduce
    # Activation recomputation
    --recompute-granularity full
    --recompute-method block
    --recompute-num-layers 2
    # Precision and kernels
    --bf16
    --accumulate-allreduce-grads-in-fp32
    --transformer-impl transformer_engine
    --attention-backend fused
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --optimizer adam
    # Model
    --num-layers 96
    --hidden-size 12288
    --ffn-hidden-size 49152
    --num-attention-heads 96
    --kv-channels 128
    --normalization LayerNorm
    --position-embedding-type learned_absolute
    --max-position-embeddings 2048
    --vocab-size 51200
    --make-vocab-size-divisible-by 128
)
