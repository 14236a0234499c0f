#!/usr/bin/env bash
# TRL's SFT script with the plan that fits this job: bash examples/launchers/trl.sh on every node, with NODE_RANK
# and MASTER_ADDR set. MODEL and DATASET are folders or names of the hub. Steps are read off the log.
set -euo pipefail
export MESHWRIGHT_URL="${MESHWRIGHT_URL:-http://planner:8420}" MASTER_ADDR="${MASTER_ADDR:-localhost}"
export MODEL="${MODEL:-model}" DATASET="${DATASET:-data}" OUTPUT_DIR="${OUTPUT_DIR:-out}" LR="${LR:-2e-5}"
export PYTHONUNBUFFERED=1 # else lines of the log come late
meshwright launch --problem problem.json --cluster-from "${CLUSTER_FROM:-cluster.json}" --save-dir run -- \
    bash "{save_dir}/launch.sh" "$@"
