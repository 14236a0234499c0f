#!/usr/bin/env bash
# A script of your own under DeepSpeed with the plan that fits this job: bash examples/launchers/deepspeed.sh on
# every node. --deepspeed --deepspeed_config run/ds_config.json follow the script; steps are read off the log.
set -euo pipefail
export MESHWRIGHT_URL="${MESHWRIGHT_URL:-http://planner:8420}"
meshwright launch --problem problem.json --cluster-from "${CLUSTER_FROM:-cluster.json}" --save-dir run -- \
    torchrun --nnodes "${NNODES:-1}" --nproc-per-node "${GPUS_PER_NODE:-8}" --rdzv-backend c10d \
    --rdzv-endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}" "${TRAIN_SCRIPT:-train.py}" "$@"
