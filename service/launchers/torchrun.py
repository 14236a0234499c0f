"""The script that starts one node: what it needs, what it sets in the environment, what it runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from service.launchers.target import Target

ARGUMENTS_FILE = "plan_args.sh"

_LAUNCH = """\
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
@SOURCE@
# The plan needs exactly these; ranks are node_rank * GPUs + local rank (static rendezvous).
readonly NUM_NODES=@NODES@ GPUS_PER_NODE=@GPUS@
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-@MASTER@}"
MASTER_PORT="${MASTER_PORT:-29500}"
: "${MASTER_ADDR:?set it to the host of node rank 0}"
if ! ((NODE_RANK >= 0 && NODE_RANK < NUM_NODES)); then
    echo "error: NODE_RANK ${NODE_RANK} is not one of 0 to $((NUM_NODES - 1))" >&2
    exit 2
fi

@NEEDS@@GUARD@@ENVIRONMENT@
@COMMAND@
"""

_GUARD = """\
# Further arguments may follow on the command line, but none may silently replace one of the plan's.
for given in "$@"; do
    for planned in "${PLAN_ARGS[@]}"; do
        if [[ "${planned}" == @(--*|*=*) && "${given%%=*}" == "${planned%%=*}" ]]; then
            echo "error: ${given%%=*} belongs to the plan; change the plan instead" >&2
            exit 2
        fi
    done
done

"""

_TORCHRUN = """\
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \\
    --rdzv-backend static --node-rank "${NODE_RANK}" \\
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\
    @PROGRAM@ "$@\""""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable that the run needs."""

    name: str
    value: str | None  # None: it must not be set
    reason: str
    is_expression: bool = False  # the value is Bash, quoted already


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How one node's processes are started."""

    program: str  # what torchrun runs, in Bash, or the whole command with ``command``
    needs: Sequence[tuple[str, str]] = ()  # variables the user sets, and to what
    environment: Sequence[Variable] = ()
    has_arguments: bool = False  # ``PLAN_ARGS`` is read from its file
    command: bool = False  # ``program`` is no program of torchrun's
    before: str = ""  # lines of Bash that the program needs


def launch_script(head: str, target: Target, start: Start) -> str:
    """Starts the processes of one node; run it on every node with its own NODE_RANK."""
    values = {
        "SOURCE": _source(start),
        "NODES": str(target.num_nodes),
        "GPUS": str(target.gpus_per_node),
        "MASTER": "localhost" if target.num_nodes == 1 else "",
        "NEEDS": _needs(start),
        "GUARD": _GUARD if start.has_arguments else "",
        "ENVIRONMENT": environment_lines(start.environment),
        "COMMAND": _command(start),
    }
    text = _LAUNCH
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return "#!/usr/bin/env bash\n" + head + text


def _needs(start: Start) -> str:
    if not start.needs:
        return ""
    lines = [f': "${{{name}:?set it to {hint}}}"' for name, hint in start.needs]
    return "\n".join(["# What the plan does not decide.", *lines, "", ""])


def _command(start: Start) -> str:
    command = start.program if start.command else _TORCHRUN.replace("@PROGRAM@", start.program)
    return f"{start.before}\n{command}" if start.before else command


def _source(start: Start) -> str:
    if not start.has_arguments:
        return ""
    return f'source "${{here}}/{ARGUMENTS_FILE}"  # PLAN_ARGS: every value that the plan decided\n'


def environment_lines(variables: Sequence[Variable]) -> str:
    """Each variable under the reason for it."""
    if not variables:
        return "# This plan needs no environment variable."
    lines = []
    for variable in variables:
        lines.append(f"# {variable.reason}")
        if variable.value is None:
            lines.append(f"unset {variable.name}")
        else:
            value = variable.value if variable.is_expression else shlex.quote(variable.value)
            lines.append(f"export {variable.name}={value}")
    return "\n".join(lines)


def arguments_file(head: str, parts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A Bash array ``PLAN_ARGS``: under each title its arguments, one a line."""
    lines = ["PLAN_ARGS=("]
    for title, arguments in parts:
        lines.append(f"    # {title}")
        lines += [f"    {argument}" for argument in arguments]
    return "\n".join([head, *lines, ")", ""])
