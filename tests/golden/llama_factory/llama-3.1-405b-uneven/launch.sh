#!/usr/bin/env bash
# LLaMA-Factory with mcore_adapter (not verified), plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 405B, 8192 tokens a sequence
# Model shape: {"name": "llama-3.1-405b", "num_layers": 126, "hidden_size": 16384, "ffn_hidden_size": 53248, "num_attention_heads": 128, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rotary_base": 500000, "rotary_scaling": {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, "norm_epsilon": 1e-05}
# World size 1024: tp 8 * cp 1 * pp 16 * dp 8
# Micro-batches: 64 of 1
# Nodes: 128 of 8 × H100 SXM 80 GB
# Layers of each chunk: 7 8 8 8 8 8 8 8 8 8 8 8 8 8 8 7
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: not verified: no parser of LLaMA-Factory has seen this file
# Warning: load the model that was planned, of 405853388800 parameters: 126 layers, hidden 16384, MLP 53248, 128 heads, 8 key/value heads, vocabulary 128256; llama3 rotary scaling
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=128 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: "${MASTER_ADDR:?set it to the host of node rank 0}"
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide.
: "${LLAMA_FACTORY_DIR:?set it to a checkout of LLaMA-Factory; model_name_or_path=… and more may follow}"

# LLaMA-Factory trains through Megatron-Core's adapter.
export USE_MCA=1
# Before Blackwell, one hardware queue keeps tensor and context traffic ahead of GEMMs.
export CUDA_DEVICE_MAX_CONNECTIONS=1
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${LLAMA_FACTORY_DIR}/src/train.py" "${here}/llama_factory.yaml" "$@"
