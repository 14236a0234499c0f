"""The text of the files that start Megatron-LM: the arguments, torchrun on one node, Slurm on all.

The arguments file is a Bash array, so that quoting is Bash's own and every flag can carry a comment.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from profiles.units import GIB
from service.launchers.megatron_lm_arguments import Section
from service.launchers.megatron_lm_facts import is_fsdp
from service.launchers.target import Target

VERSIONS = "0.16 to 0.19"
ARGUMENTS_FILE = "megatron_args.sh"
TORCHRUN_FILE = "launch.sh"
SLURM_FILE = "launch.sbatch"
FIRST_ARCHITECTURES_WITHOUT_ONE_CONNECTION = ("blackwell",)

_TORCHRUN = """\
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "${here}/@ARGUMENTS@"  # MEGATRON_ARGS: every value that the plan decided

# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=@NODES@ GPUS_PER_NODE=@GPUS@
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-@MASTER@}"
MASTER_PORT="${MASTER_PORT:-29500}"
: "${MEGATRON_LM_DIR:?set it to a checkout of Megatron-LM @VERSIONS@}"
: "${MASTER_ADDR:?set it to the host of node rank 0}"
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

# What the plan does not decide. MOCK_DATA=1 is a dry start: synthetic tokens, ten steps, no tokenizer.
if [[ "${MOCK_DATA:-0}" == 1 ]]; then
    run_args=(--mock-data --tokenizer-type NullTokenizer --train-iters "${TRAIN_ITERS:-10}"
        --lr "${LR:-1e-4}" --eval-iters 0)
else
    : "${DATA_PATH:?set it to the prefix of an indexed data set, or set MOCK_DATA=1}"
    : "${TOKENIZER_TYPE:?set it, for instance HuggingFaceTokenizer, or set MOCK_DATA=1}"
    : "${TOKENIZER_MODEL:?set it to the file, folder or name of the tokenizer, or set MOCK_DATA=1}"
    : "${TRAIN_ITERS:?set it to the number of steps, or set MOCK_DATA=1}"
    : "${LR:?set it to the learning rate, or set MOCK_DATA=1}"
    run_args=(--data-path "${DATA_PATH}" --tokenizer-type "${TOKENIZER_TYPE}"
        --tokenizer-model "${TOKENIZER_MODEL}" --train-iters "${TRAIN_ITERS}" --lr "${LR}")
fi

# Further flags may follow on the command line, but none may silently replace one of the plan's.
for given in "$@"; do
    for planned in "${MEGATRON_ARGS[@]}"; do
        if [[ "${given}" == --* && "${given%%=*}" == "${planned}" ]]; then
            echo "error: ${given%%=*} belongs to the plan; change the plan instead" >&2
            exit 2
        fi
    done
done

@ENVIRONMENT@
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \\
    --rdzv-backend static --node-rank "${NODE_RANK}" \\
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\
    "${MEGATRON_LM_DIR}/pretrain_gpt.py" "${MEGATRON_ARGS[@]}" "${run_args[@]}" "$@"
"""

_SLURM = """\
#SBATCH --job-name=meshwright-@PLAN@
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=@GPUS@
#SBATCH --distribution=block
#SBATCH --exclusive
# Account, partition and time limit are your site's: sbatch --account=… --time=… @SLURM@
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this file with sbatch}"
if [[ "${SLURM_NNODES:?start this file with sbatch}" != @NODES@ ]]; then
    echo "error: the plan needs @NODES@ nodes, Slurm gave ${SLURM_NNODES}" >&2
    exit 2
fi
hosts="$(scontrol show hostnames "${SLURM_JOB_NODELIST}")"
export MASTER_ADDR="${hosts%%$'\\n'*}"
# One torchrun a node; with block distribution the task number is the node's place in the list.
srun --ntasks-per-node=1 --distribution=block \\
    bash -c 'NODE_RANK="${SLURM_PROCID}" exec bash @TORCHRUN@ "$@"' launch "$@"
"""


def header(target: Target, warnings: Iterable[str]) -> str:
    """The comment on top of every file: what it starts, and what to expect.

    Names come from the request: whatever is not printable is replaced, so that no line can end early.
    """
    config, prediction = target.config, target.plan.prediction
    sizes = (
        f"tp {config.tensor_parallel_size} * cp {config.context_parallel_size} * "
        f"pp {config.pipeline_parallel_size} * dp {config.data_parallel_size}"
    )
    times = (prediction.step_time_s, prediction.step_time_low_s, prediction.step_time_high_s)
    step, low, high = (f"{time_s:.3f}" for time_s in times)
    memory, limit = (
        f"{size / GIB:.1f} GiB" for size in (prediction.peak_memory_bytes, prediction.memory_limit_bytes)
    )
    lines = [
        f"Megatron-LM {VERSIONS}, plan {target.plan.plan_id} (rank {target.plan.rank}), by Meshwright",
        f"Model {target.model.title[:200]}, {target.workload.seq_length} tokens a sequence",
        f"World size {config.num_gpus}: {sizes}",
        f"Micro-batches: {config.num_microbatches} of {config.micro_batch_size}",
        f"Nodes: {target.num_nodes} of {target.gpus_per_node} × {target.gpu.display_name[:200]}",
        f"Layers of each chunk: {' '.join(map(str, config.stage_layers))}",
        f"Predicted step: {step} s ({low} to {high})",
        f"Predicted memory: {memory} of {limit} on stage {prediction.heaviest_stage}",
        *(f"Warning: {warning}" for warning in warnings),
    ]
    return "".join(f"# {_printable(line)}\n" for line in lines)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def arguments_file(head: str, sections: Iterable[Section]) -> str:
    """A Bash array ``MEGATRON_ARGS`` with one flag a line."""
    lines = ["MEGATRON_ARGS=("]
    for section in sections:
        lines.append(f"    # {section.title}")
        lines += ["    " + shlex.join((flag.name, *flag.values)) for flag in section.flags]
    return "\n".join([head, *lines, ")", ""])


def environment(target: Target) -> str:
    """The lines that set what Megatron-LM reads from the environment, each with its reason."""
    config = target.config
    if is_fsdp(target):
        return (
            "# Megatron-FSDP overlaps collectives on several hardware queues and refuses a single one.\n"
            "unset CUDA_DEVICE_MAX_CONNECTIONS\n"
        )
    split = config.tensor_parallel_size > 1 or config.context_parallel_size > 1
    if split and target.gpu.architecture not in FIRST_ARCHITECTURES_WITHOUT_ONE_CONNECTION:
        return (
            "# Before Blackwell, one hardware queue keeps tensor and context parallel communication ahead\n"
            "# of the computation it overlaps; Megatron-LM refuses to start without it.\n"
            "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        )
    return "# This plan needs no environment variable.\n"


def torchrun_script(head: str, target: Target) -> str:
    """Starts the processes of one node; run it on every node with its own NODE_RANK."""
    return "#!/usr/bin/env bash\n" + head + _filled(_TORCHRUN, target)


def slurm_script(head: str, target: Target) -> str:
    """Starts ``launch.sh`` on every node of a Slurm allocation."""
    return "#!/usr/bin/env bash\n" + head + _filled(_SLURM, target)


def _filled(text: str, target: Target) -> str:
    values = {
        "ARGUMENTS": ARGUMENTS_FILE,
        "TORCHRUN": TORCHRUN_FILE,
        "SLURM": SLURM_FILE,
        "VERSIONS": VERSIONS,
        "PLAN": _printable(target.plan.plan_id),
        "NODES": str(target.num_nodes),
        "GPUS": str(target.gpus_per_node),
        "MASTER": "localhost" if target.num_nodes == 1 else "",
        "ENVIRONMENT": environment(target).rstrip("\n"),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
