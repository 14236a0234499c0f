#!/usr/bin/env bash
# ms-swift 4.6.0 (not verified), plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# Model shape: {"name": "llama-3.1-70b", "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rotary_base": 500000, "rotary_scaling": {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, "norm_epsilon": 1e-05}
# World size 16: tp 8 * cp 1 * pp 1 * dp 2
# Micro-batches: 16 of 1
# Nodes: 2 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: not verified: no parser of ms-swift has seen these arguments
# Warning: load the model that was planned, of 70553706496 parameters: 80 layers, hidden 8192, MLP 28672, 64 heads, 8 key/value heads, vocabulary 128256; llama3 rotary scaling
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/plan_args.sh"  # PLAN_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=2 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: "${MASTER_ADDR:?set it to the host of node rank 0}"
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide.
: "${SWIFT_DIR:?set it to the folder of the installed package swift}"
: "${SWIFT_COMMAND:?set it to pt or sft; model, dataset and learning rate follow on the command line}"

# Further arguments may follow on the command line, but none may silently replace one of the plan's.
for given in "$@"; do
    for planned in "${PLAN_ARGS[@]}"; do
        if [[ "${planned}" == @(--*|*=*) && "${given%%=*}" == "${planned%%=*}" ]]; then
            echo "error: ${given%%=*} belongs to the plan; change the plan instead" >&2
            exit 2
        fi
    done
done

# Before Blackwell, one hardware queue keeps tensor and context traffic ahead of GEMMs.
export CUDA_DEVICE_MAX_CONNECTIONS=1
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${SWIFT_DIR}/cli/_megatron/${SWIFT_COMMAND}.py" "${PLAN_ARGS[@]}" "$@"
