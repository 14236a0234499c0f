#!/usr/bin/env bash
# Axolotl with the plan that fits this job: bash examples/launchers/axolotl.sh on every node, with NODE_RANK
# and MASTER_ADDR set. RUN_CONFIG is a YAML of your own with what the plan does not decide: base_model,
# datasets, learning_rate. Steps are read off the log.
set -euo pipefail
export MESHWRIGHT_URL="${MESHWRIGHT_URL:-http://planner:8420}" MASTER_ADDR="${MASTER_ADDR:-localhost}"
export RUN_CONFIG="${RUN_CONFIG:-run.yaml}" PYTHONUNBUFFERED=1 # else lines of the log come late
meshwright launch --problem problem.json --cluster-from "${CLUSTER_FROM:-cluster.json}" --save-dir run -- \
    bash "{save_dir}/launch.sh" "$@"
