#!/usr/bin/env bash
# FlagScale, commit da4935ec, plan 0123456789ab (rank 1), by Meshwright
# Model Llama 3.1 405B, 8192 tokens a sequence
# World size 1024: tp 8 * cp 1 * pp 16 * dp 8
# Micro-batches: 64 of 1
# Nodes: 128 of 8 × H100 SXM 80 GB
# Layers of each chunk: 7 8 8 8 8 8 8 8 8 8 8 8 8 8 8 7
# Predicted step: 32.800 s (31.500 to 34.100)
# Predicted memory: 50.0 GiB of 79.0 GiB on stage 0
# Warning: the vocabulary of 128256 is padded to 129024 (a multiple of 128 * tp)
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# Run this on the first host alone: FlagScale's runner reaches the others by ssh. An argument is another
# action of the runner: run, dryrun, test, stop or query.
action="${1:-run}"
if (($# > 1)) || [[ ! "${action}" =~ ^(run|dryrun|test|stop|query)$ ]]; then
    echo "error: ${*}: the plan decides all but the action: run, dryrun, test, stop or query" >&2
    exit 2
fi

# What the plan does not decide.
: ${FLAGSCALE_DIR:?"set it to a checkout of FlagScale da4935ec, with its Megatron-LM unpatched in third_party"}
: ${HOSTS:?"set it to the hosts, separated by blanks, in the order of hostfile.txt"}
: ${DATA_PATH:?"set it to the prefix of an indexed data set"}
: ${TOKENIZER_TYPE:?"set it to for instance HFTokenizerFS"}
: ${TOKENIZER_PATH:?"set it to the folder of the tokenizer"}
: ${TRAIN_ITERS:?"set it to the number of steps"}
: ${LR:?"set it to the learning rate"}
export DATA_PATH TOKENIZER_TYPE TOKENIZER_PATH TRAIN_ITERS LR
export EXP_DIR="${EXP_DIR:-${here}/experiment}"

# Hosts, in the order of the stages:
#   0 to 127: H100 SXM 80 GB
read -r -a hosts <<<"${HOSTS//$'\n'/ }"
if ((${#hosts[@]} != 128)); then
    echo "error: HOSTS names ${#hosts[@]} hosts, the plan needs 128" >&2
    exit 2
fi
mkdir -p "${EXP_DIR}"
export HOSTFILE="${EXP_DIR}/hostfile"
number=0
grep -v '^#' "${here}/hostfile.txt" | while read -r _ rest; do
    echo "${hosts[number]} ${rest}"
    number=$((number + 1))
done >"${HOSTFILE}"

cd "${FLAGSCALE_DIR}"
exec python3 run.py --config-path "${here}" --config-name experiment.yaml action="${action}"
