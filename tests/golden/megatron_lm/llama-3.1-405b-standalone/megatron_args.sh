# Megatron-LM 0.16 to 0.19, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 405B, 8192 tokens a sequence
# World size 1024: tp 8 * cp 1 * pp 16 * dp 8
# Micro-batches: 64 of 1
# Nodes: 128 of 8 × H100 SXM 80 GB
# Layers of each chunk: 0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 0
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: the vocabulary of 128256 is padded to 129024 (a multiple of 128 * tp)

MEGATRON_ARGS=(
    # Parallel sizes; data parallel size and micro-batches follow from them
    --tensor-model-parallel-size 8
    --sequence-parallel
    --tp-comm-overlap
    --pipeline-model-parallel-size 16
    --context-parallel-size 1
    # Pipeline split
    --pipeline-model-parallel-layout 'E|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|t|L'
    --microbatch-group-size-per-virtual-pipeline-stage 16
    # Batch and sequence
    --micro-batch-size 1
    --global-batch-size 512
    --seq-length 8192
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
    --num-layers 126
    --hidden-size 16384
    --ffn-hidden-size 53248
    --num-attention-heads 128
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
