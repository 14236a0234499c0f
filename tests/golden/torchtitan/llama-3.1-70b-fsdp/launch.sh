#!/usr/bin/env bash
# torchtitan 0.3.0, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 70B, 8192 tokens a sequence
# World size 64: tp 1 * cp 1 * pp 1 * dp 64
# Micro-batches: 2 of 1
# Nodes: 8 of 8 × H100 SXM 80 GB
# Layers of each chunk: 80
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: 0.3 runs FlexAttention, but the prediction assumed a flash attention kernel
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
: ${HF_ASSETS_PATH:?"set it to the folder of the model's tokenizer files"}
: ${DATASET:?"set it to a name of torchtitan's data sets: c4, or your own; c4_test is for a dry start"}

# torchtitan imports the plan's module by its name.
export PYTHONPATH="${here}${PYTHONPATH:+:${PYTHONPATH}}"
# The plan's module reads it.
export HF_ASSETS_PATH="${HF_ASSETS_PATH}"
# The plan's module reads it.
export DATASET="${DATASET}"
# The allocator's blocks grow in place, so that less memory is lost between them.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-${PYTORCH_ALLOC_CONF:-expandable_segments:True}}"
program=(-m torchtitan.train --module torchtitan_plan --config plan)
# The time of every step is logged; torchtitan's own interval is 10 steps.
# A run that is started again goes on from its last checkpoint; a rank waiting this long has lost another.
program+=(--metrics.log_freq "${LOG_INTERVAL:-1}"
    --checkpoint.enable --checkpoint.interval "${SAVE_INTERVAL:-500}"
    --comm.init_timeout_seconds "${TIMEOUT_S:-1800}"
    --comm.train_timeout_seconds "${TIMEOUT_S:-1800}")
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${program[@]}" "$@"
