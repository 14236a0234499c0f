#!/usr/bin/env bash
# Megatron-Bridge 0.3.1 (NeMo), plan 0123456789ab (rank 1), by Meshwright
# Model DeepSeek-V3, 4096 tokens a sequence
# World size 512: tp 1 * cp 1 * pp 8 * dp 64
# Micro-batches: 64 of 1
# Nodes: 64 of 8 × H100 SXM 80 GB
# Layers of each chunk: 3 4 4 4 4 4 4 4 4 4 4 4 4 4 4 2
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: not verified by Megatron-Bridge's own parser: it lets most illegal values through
# Warning: attention backend, tokenizer, data and learning rate are the recipe's
# Warning: latent attention is of the recipe's model provider; only its sizes are overridden
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/plan_args.sh"  # PLAN_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=64 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: "${MASTER_ADDR:?set it to the host of node rank 0}"
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide.
: "${BRIDGE_SCRIPT:?set it to a recipe script of Megatron-Bridge that takes key=value overrides}"

# Further arguments may follow on the command line, but none may silently replace one of the plan's.
for given in "$@"; do
    for planned in "${PLAN_ARGS[@]}"; do
        if [[ "${planned}" == @(--*|*=*) && "${given%%=*}" == "${planned%%=*}" ]]; then
            echo "error: ${given%%=*} belongs to the plan; change the plan instead" >&2
            exit 2
        fi
    done
done

# This plan needs no environment variable.
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${BRIDGE_SCRIPT}" "${PLAN_ARGS[@]}" "logger.log_interval=${LOG_INTERVAL:-1}" "$@"
