#!/usr/bin/env bash
# Megatron-SWIFT with the plan that fits this job: bash examples/launchers/ms_swift.sh --model … --dataset …
# on every node, with NODE_RANK and MASTER_ADDR set. SWIFT_DIR is the folder of the installed package swift. Steps
# are read off the log.
set -euo pipefail
export MESHWRIGHT_URL="${MESHWRIGHT_URL:-http://planner:8420}" MASTER_ADDR="${MASTER_ADDR:-localhost}"
export SWIFT_DIR="${SWIFT_DIR:-swift}" SWIFT_COMMAND="${SWIFT_COMMAND:-sft}" PYTHONUNBUFFERED=1 # else lines come late
meshwright launch --problem problem.json --cluster-from "${CLUSTER_FROM:-cluster.json}" --save-dir run -- \
    bash "{save_dir}/launch.sh" "$@"
