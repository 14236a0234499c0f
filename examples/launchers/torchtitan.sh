#!/usr/bin/env bash
# torchtitan with the plan that fits this job: bash examples/launchers/torchtitan.sh on every node. The plan's
# flags follow the command: --module torchtitan_plan --config plan. Steps are read off the log.
set -euo pipefail
export MESHWRIGHT_URL="${MESHWRIGHT_URL:-http://planner:8420}"
read -r -a program <<<"${TRAIN_SCRIPT:--m torchtitan.train}"
meshwright launch --problem problem.json --cluster-from "${CLUSTER_FROM:-cluster.json}" --save-dir run -- \
    torchrun --nnodes "${NNODES:-1}" --nproc-per-node "${GPUS_PER_NODE:-8}" --rdzv-backend c10d \
    --rdzv-endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}" "${program[@]}" --metrics.log_freq 1 "$@"
