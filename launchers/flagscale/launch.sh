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
@NEEDS@
export DATA_PATH TOKENIZER_TYPE TOKENIZER_PATH TRAIN_ITERS LR
export EXP_DIR="${EXP_DIR:-${here}/experiment}"

# Hosts, in the order of the stages:
@ORDER@
read -r -a hosts <<<"${HOSTS//$'\n'/ }"
if ((${#hosts[@]} != @NODES@)); then
    echo "error: HOSTS names ${#hosts[@]} hosts, the plan needs @NODES@" >&2
    exit 2
fi
mkdir -p "${EXP_DIR}"
export HOSTFILE="${EXP_DIR}/hostfile"
number=0
grep -v '^#' "${here}/@HOSTS_FILE@" | while read -r _ rest; do
    echo "${hosts[number]} ${rest}"
    number=$((number + 1))
done >"${HOSTFILE}"

cd "${FLAGSCALE_DIR}"
exec python3 run.py --config-path "${here}" --config-name @EXPERIMENT@ action="${action}"
