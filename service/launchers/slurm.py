"""The Slurm script: one task a node starts ``launch.sh`` with the node's rank.

Slurm keeps an order of hosts only with ``--distribution=arbitrary`` and ``SLURM_HOSTFILE``; a
``--nodelist`` is sorted (its manual, srun and sbatch). Nodes of one kind take the sorted order.
"""

from __future__ import annotations

from service.launchers.header import printable
from service.launchers.target import Target

TORCHRUN_FILE = "launch.sh"
SLURM_FILE = "launch.sbatch"

_SLURM = """\
#SBATCH --job-name=meshwright-@PLAN@
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=@GPUS@
#SBATCH --distribution=block
#SBATCH --exclusive
# Account, partition, time limit and CPUs a task are your site's: sbatch --account=… --time=… @SLURM@
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this file with sbatch}"
if [[ ! -f @TORCHRUN@ ]]; then
    echo "error: start this file from its own folder: @TORCHRUN@ is not in ${SLURM_SUBMIT_DIR}" >&2
    exit 2
fi
if [[ "${SLURM_NNODES:?start this file with sbatch}" != @NODES@ ]]; then
    echo "error: the plan needs @NODES@ nodes, Slurm gave ${SLURM_NNODES}" >&2
    exit 2
fi
@ORDER@
if [[ -n "${HOSTS_FILE:-}" ]]; then
    export SLURM_HOSTFILE="${HOSTS_FILE}"  # task i runs on the host of line i
    distribution=arbitrary
    hosts="$(<"${HOSTS_FILE}")"
    if [[ "$(sort -u <<<"${hosts}" | grep -cE '^[^[:space:],]+$')" -ne @NODES@ ||
        "$(wc -l <<<"${hosts}")" -ne @NODES@ ]]; then
        echo "error: ${HOSTS_FILE} must name @NODES@ hosts, each once, one a line" >&2
        exit 2
    fi
else
    distribution=block
    hosts="$(scontrol show hostnames "${SLURM_JOB_NODELIST}")"
fi
export MASTER_ADDR="${hosts%%$'\\n'*}"
# One torchrun a node: the task number is the node's place in the list. Its processes may use every CPU.
srun --nodes=@NODES@ --ntasks=@NODES@ --ntasks-per-node=1 --cpu-bind=none --export=ALL \\
    --distribution="${distribution}" \\
    bash -c 'NODE_RANK="${SLURM_PROCID}" exec bash @TORCHRUN@ "$@"' launch "$@"
"""

_ALIKE = """\
# Host order: Slurm's own. For another, set HOSTS_FILE to a file of hosts, one a line in node-rank order."""
_MIXED = ': "${HOSTS_FILE:?set it to a file of @NODES@ hosts, one a line in node-rank order, as below}"'


def slurm_script(head: str, target: Target) -> str:
    """Starts ``launch.sh`` on every node of a Slurm allocation."""
    text = "#!/usr/bin/env bash\n" + head + _SLURM.replace("@ORDER@", _host_order(target))
    values = {
        "TORCHRUN": TORCHRUN_FILE,
        "SLURM": SLURM_FILE,
        "PLAN": printable(target.plan.plan_id),
        "NODES": str(target.num_nodes),
        "GPUS": str(target.gpus_per_node),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _host_order(target: Target) -> str:
    """Which hosts get which node ranks: the order of the cluster's groups, where they differ."""
    cluster = target.problem.cluster
    if cluster.is_homogeneous or target.num_nodes == 1:
        return _ALIKE
    lines, first = ["# Host order: the plan assumes these kinds of nodes at these node ranks."], 0
    for group in cluster.groups:
        last = min(first + group.num_nodes, target.num_nodes) - 1
        if last >= first:
            lines.append(f"#   {first} to {last}: {printable(group.gpu.display_name[:200])}")
        first = last + 1
    return "\n".join([*lines, _MIXED])
