#!/usr/bin/env bash
# nanotron with the plan that fits this job: bash examples/launchers/nanotron.sh on every node, with NODE_RANK
# and MASTER_ADDR set. NANOTRON_DIR is a checkout of it. Steps are read off the log.
set -euo pipefail
export MESHWRIGHT_URL="${MESHWRIGHT_URL:-http://planner:8420}" MASTER_ADDR="${MASTER_ADDR:-localhost}"
export NANOTRON_DIR="${NANOTRON_DIR:-nanotron}" PYTHONUNBUFFERED=1 # else lines of the log come late
meshwright launch --problem problem.json --cluster-from "${CLUSTER_FROM:-cluster.json}" --save-dir run -- \
    bash "{save_dir}/launch.sh" "$@"
