#!/usr/bin/env bash
# A recipe of Megatron-Bridge (NeMo) with the plan that fits this job: bash examples/launchers/megatron_bridge.sh
# on every node. The plan's overrides follow the recipe's script; steps are read off the log.
set -euo pipefail
export MESHWRIGHT_URL="${MESHWRIGHT_URL:-http://planner:8420}"
meshwright launch --problem problem.json --cluster-from "${CLUSTER_FROM:-cluster.json}" --save-dir run -- \
    torchrun --nnodes "${NNODES:-1}" --nproc-per-node "${GPUS_PER_NODE:-8}" --rdzv-backend c10d \
    --rdzv-endpoint "${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}" \
    "${BRIDGE_SCRIPT:-pretrain_recipe.py}" {plan_flags} logger.log_interval=1
