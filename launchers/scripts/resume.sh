#!/usr/bin/env bash
# Goes on from @WHICH@ under plan @PLAN@, whatever layout wrote the checkpoint: every rank reads the
# parts that it needs. On every node as launch.sh; under Slurm: START="sbatch launch.sbatch" bash resume.sh
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: ${CHECKPOINTS:?"set it to the folder of the checkpoints that the run before has written"}
CHECKPOINTS="$(cd "${CHECKPOINTS}" && pwd)"
step="${STEP:-@STEP@}"
step="${step:+$((10#${step}))}" # also as folders spell it, 0000100
if [[ ! -f "${CHECKPOINTS}/@FOLDER@/.metadata" ]]; then
    echo "error: ${CHECKPOINTS}/@FOLDER@ holds no whole checkpoint of @FORMAT@" >&2
    exit 2
fi
echo "goes on from ${CHECKPOINTS}/@FOLDER@" >&2
export CHECKPOINTS
cd "${here}"
# shellcheck disable=SC2086 # START is a command with its arguments
exec ${START:-bash @LAUNCH@} @ARGUMENTS@ "$@"
