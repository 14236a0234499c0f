#!/usr/bin/env bash
# Megatron-LM 0.16 to 0.19, plan 0123456789ab (rank 1), by Meshwright
# Model Mixtral 8x7B, 4096 tokens a sequence
# World size 32: tp 2 * cp 1 * pp 2 * dp 8
# Micro-batches: 16 of 2
# Nodes: 4 of 8 × H100 SXM 80 GB
# Layers of each chunk: 4 4 4 4 4 4 4 4
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: the model does not state its rotary base: add --rotary-base if it is not 10000
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/megatron_args.sh"  # MEGATRON_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=4 GPUS_PER_NODE=8
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-}"
MASTER_PORT="${MASTER_PORT:-29500}"
: "${MEGATRON_LM_DIR:?set it to a checkout of Megatron-LM 0.16 to 0.19}"
: "${MASTER_ADDR:?set it to the host of node rank 0}"
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide. MOCK_DATA=1 is a dry start: synthetic tokens, ten steps, no tokenizer.
# It logs the time of every step for `meshwright import`; Megatron-LM's own interval is 100 steps.
if [[ "${MOCK_DATA:-0}" == 1 ]]; then
    run_args=(--mock-data --tokenizer-type NullTokenizer --train-iters "${TRAIN_ITERS:-10}"
        --lr "${LR:-1e-4}" --eval-iters 0 --log-interval "${LOG_INTERVAL:-1}" --log-throughput)
else
    : "${DATA_PATH:?set it to the prefix of an indexed data set, or set MOCK_DATA=1}"
    : "${TOKENIZER_TYPE:?set it, for instance HuggingFaceTokenizer, or set MOCK_DATA=1}"
    : "${TOKENIZER_MODEL:?set it to the file, folder or name of the tokenizer, or set MOCK_DATA=1}"
    : "${TRAIN_ITERS:?set it to the number of steps, or set MOCK_DATA=1}"
    : "${LR:?set it to the learning rate, or set MOCK_DATA=1}"
    run_args=(--data-path "${DATA_PATH}" --tokenizer-type "${TOKENIZER_TYPE}"
        --tokenizer-model "${TOKENIZER_MODEL}" --train-iters "${TRAIN_ITERS}" --lr "${LR}"
        --log-interval "${LOG_INTERVAL:-10}" --log-throughput)
fi

# Further flags may follow on the command line, but none may silently replace one of the plan's.
for given in "$@"; do
    for planned in "${MEGATRON_ARGS[@]}"; do
        if [[ "${given}" == --* && "${given%%=*}" == "${planned}" ]]; then
            echo "error: ${given%%=*} belongs to the plan; change the plan instead" >&2
            exit 2
        fi
    done
done

# All-to-alls of experts run beside computing on hardware queues of their own.
export CUDA_DEVICE_MAX_CONNECTIONS=32
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \
    --rdzv-backend static --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \
    "${MEGATRON_LM_DIR}/pretrain_gpt.py" "${MEGATRON_ARGS[@]}" "${run_args[@]}" "$@"
