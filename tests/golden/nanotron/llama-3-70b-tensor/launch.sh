#!/usr/bin/env bash
# nanotron (repository, April 2026), plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3 70B, 8192 tokens a sequence
# World size 64: tp 8 * cp 1 * pp 1 * dp 8
# Micro-batches: 16 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Needs: flash-attn
# Warning: tested with nanotron's model builder, but not with its parser
# Warning: data, tokenizer, number of steps and learning rate are placeholders: set your own
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
: ${NANOTRON_DIR:?"set it to a checkout of huggingface/nanotron"}

# Packages that the plan needs; CHECK_PACKAGES=0 starts without looking for them.
needs_package() {
    [[ "${CHECK_PACKAGES:-1}" == 1 ]] || return 0
    python3 -c "$2" >/dev/null 2>&1 && return 0
    local has
    has="$3 $(python3 -c "from importlib.metadata import *; print(version('$3'))" 2>/dev/null)" ||
        has="no $3"
    echo "error: the plan needs $1; ${HOSTNAME} has ${has}" >&2
    echo "$4; CHECK_PACKAGES=0 starts without this check" >&2
    exit 2
}
needs_package 'flash-attn (its layers always import FlashAttention)' \
    'from importlib.metadata import version; version("flash_attn")' \
    flash_attn 'pip install "flash-attn>=2.5,<2.7" --no-build-isolation, or plan with another launcher'

# nanotron's trainer asks for one hardware queue, so that communication keeps its order.
export CUDA_DEVICE_MAX_CONNECTIONS=1
# The allocator's blocks grow in place, so that less memory is lost between them.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-${PYTORCH_ALLOC_CONF:-expandable_segments:True}}"
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${NANOTRON_DIR}/run_train.py" --config-file "${here}/nanotron.yaml" "$@"
