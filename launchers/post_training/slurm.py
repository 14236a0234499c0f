"""The script with which Slurm starts a placement: Ray on all nodes of the allocation, then the run.

The commands are those of Ray's guide, "Deploying on Slurm" (docs.ray.io): a head on the first node, and a
worker on each of the others. TRL has no Ray: training starts on its nodes, and vLLM's
server on the last one, where it has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.launchers.export import SLURM_FILE
from meshwright.solver.post_training.problem import PostTraining, RolePlan

_SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
# Starts Ray on all nodes, and run.sh on the first. Run it where your launcher and its environment are.
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export RAY_ADDRESS="${{hosts[0]}}:6379"
step=(srun --overlap --nodes=1 --ntasks=1)
"${{step[@]}}" --nodelist="${{hosts[0]}}" ray start --head --port=6379 --num-gpus={gpus} --block &
sleep 15
for host in "${{hosts[@]:1}}"; do
    "${{step[@]}}" --nodelist="$host" ray start --address="$RAY_ADDRESS" --num-gpus={gpus} --block &
done
sleep 15
"${{step[@]}}" --nodelist="${{hosts[0]}}" bash run.sh
"""
_WITHOUT_RAY = """\
#!/usr/bin/env bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
# Starts run.sh on the nodes of training, and serve.sh, if there is one, on the last node.
set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR="${{hosts[0]}}" MASTER_PORT="${{MASTER_PORT:-29500}}"
training=("${{hosts[@]:0:{training}}}")
if [[ -f serve.sh ]]; then
    last="${{hosts[-1]}}"
    export VLLM_URL="http://$last:${{PORT:-8000}}"
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$last" bash serve.sh &
fi
srun --overlap --nodes="${{#training[@]}}" --nodelist="$(IFS=,; echo "${{training[*]}}")" \\
    bash -c 'NODE_RANK=$SLURM_PROCID exec bash run.sh'
"""


def sbatch_file(asked: PostTraining, plan: RolePlan) -> Mapping[str, str]:
    """Return the script for Slurm by its name; all nodes of the question's pool are of one group."""
    (group,) = asked.groups.values()
    script = _WITHOUT_RAY if asked.launcher == "trl" else _SCRIPT
    own = {"nodes": group.num_nodes, "gpus": group.gpus_per_node, "training": plan.training.nodes}
    return {SLURM_FILE: script.format(**own)}
