"""The text of the files that start Megatron-LM: the arguments, torchrun on one node, Slurm on all.

The arguments file is a Bash array, so that quoting is Bash's own and every flag can carry a comment.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from service.launchers.megatron_lm_arguments import Section
from service.launchers.megatron_lm_facts import is_fsdp, overlaps_experts
from service.launchers.megatron_names import MANY_CONNECTIONS, MANY_CONNECTIONS_REASON
from service.launchers.target import Target

VERSIONS = "0.16 to 0.19"
ARGUMENTS_FILE = "megatron_args.sh"
PRODUCT = f"Megatron-LM {VERSIONS}"
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
# It logs the time of every step for `meshwright import`; Megatron-LM's own interval is 100 steps.
if [[ "${MOCK_DATA:-0}" == 1 ]]; then
    run_args=(--mock-data --tokenizer-type NullTokenizer --train-iters "${TRAIN_ITERS:-10}"
        --lr "${LR:-1e-4}" --eval-iters 0 --log-interval "${LOG_INTERVAL:-1}" --log-throughput)
else
    : "${DATA_PATH:?set it to the prefix of an indexed data set, or set MOCK_DATA=1}"
    : "${TOKENIZER_TYPE:?set it, for instance HuggingFaceTokenizer, or set MOCK_DATA=1}"
    : "${TOKENIZER_MODEL:?set it to the file, folder or name of the tokenizer, or set MOCK_DATA=1}"
    : "${TRAIN_ITERS:?set it to the number of steps, or set MOCK_DATA=1}"
    : "${LR:?set it to the learning rate, or set MOCK_DATA=1}"
    run_args=(--data-path "${DATA_PATH}" --tokenizer-type "${TOKENIZER_TYPE}"
        --tokenizer-model "${TOKENIZER_MODEL}" --train-iters "${TRAIN_ITERS}" --lr "${LR}"
        --log-interval "${LOG_INTERVAL:-10}" --log-throughput)
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
    if overlaps_experts(target):
        return f"# {MANY_CONNECTIONS_REASON}\nexport CUDA_DEVICE_MAX_CONNECTIONS={MANY_CONNECTIONS}\n"
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


def _filled(text: str, target: Target) -> str:
    values = {
        "ARGUMENTS": ARGUMENTS_FILE,
        "VERSIONS": VERSIONS,
        "NODES": str(target.num_nodes),
        "GPUS": str(target.gpus_per_node),
        "MASTER": "localhost" if target.num_nodes == 1 else "",
        "ENVIRONMENT": environment(target).rstrip("\n"),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
