#!/usr/bin/env bash
# DeepSpeed 0.19.8, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# Model shape: {"name": "llama-3.1-70b", "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rotary_base": 500000, "rotary_scaling": {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, "norm_epsilon": 1e-05}
# World size 64: tp 1 * cp 1 * pp 1 * dp 64
# Micro-batches: 2 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: load the model that was planned, of 70553706496 parameters: 80 layers, hidden 8192, MLP 28672, 64 heads, 8 key/value heads, vocabulary 128256; llama3 rotary scaling
# Warning: load the model in your script with attn_implementation flash_attention_2 (or sdpa, where torch takes its flash kernel), which was priced
# Warning: deepspeed_plan.py holds what DeepSpeed takes in code; its JSON alone is not the plan
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=8 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: ${MASTER_ADDR:?"set it to the host of node rank 0"}
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide.
: ${TRAIN_SCRIPT:?"set it to a script that takes the arguments of DeepSpeed and reads deepspeed_plan.py"}

# The allocator's blocks grow in place, so that less memory is lost between them.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-${PYTORCH_ALLOC_CONF:-expandable_segments:True}}"
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${TRAIN_SCRIPT}" --deepspeed --deepspeed_config "${here}/ds_config.json" "$@"
