#!/usr/bin/env bash
# Plan 0123456789ab of Meshwright for TRL 1.16.0: apart, in turn.
# Predicted: 100 s a step, 80 to 125.
# Run it on the node of training, once serve.sh serves.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: "${MODEL:?the model: a folder or a name of the hub}" "${DATASET:?the data set, with a column prompt}"
: "${REWARD_FUNCS:?reward functions: accuracy_reward, or module.function of yours}"
: "${OUTPUT_DIR:?where checkpoints go}" "${LR:?the learning rate}"
: "${VLLM_URL:?the server that serve.sh starts, for example http://NODE:8000}"
export NODE_RANK="${NODE_RANK:-0}"
export MASTER_ADDR="${MASTER_ADDR:-localhost}" MASTER_PORT="${MASTER_PORT:-29500}"
# shellcheck disable=SC2086 # several reward functions
exec accelerate launch --config_file "${here}/accelerate.yaml" \
    --machine_rank "${NODE_RANK}" --main_process_ip "${MASTER_ADDR}" --main_process_port "${MASTER_PORT}" \
    -m trl.scripts.grpo --config "${here}/trl_grpo.yaml" \
    --model_name_or_path "${MODEL}" --dataset_name "${DATASET}" --reward_funcs ${REWARD_FUNCS} \
    --output_dir "${OUTPUT_DIR}" --learning_rate "${LR}" \
    --vllm_server_base_url "${VLLM_URL}" "$@"
