"""``meshwright launch -- torchrun train.py …``: start a job with its plan, report what it takes."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path

from meshwright_client.choosing import CHOICE, Choice
from meshwright_client.errors import MeshwrightError
from meshwright_client.nodes import Nodes
from meshwright_client.reporting import LogTail, Reporter

_ARRAYS = {"megatron_args.sh": "MEGATRON_ARGS", "plan_args.sh": "PLAN_ARGS"}
_NODES = re.compile(r"^#SBATCH --nodes=(\d+)$", re.MULTILINE)
_GPUS = re.compile(r"^#SBATCH --gpus-per-node=(\d+)$", re.MULTILINE)


class LaunchError(MeshwrightError):
    """The job cannot be started with this plan."""


def start(
    command: Sequence[str], choice: Choice, *, nodes: Nodes | None = None, report: bool = True
) -> int:
    """Run a command with a plan, its output passed on; its exit code.

    The flags that the plan's launcher takes are appended (``plan_flags``), unless the command places them
    itself with the word ``{plan_flags}`` or runs the plan's own ``launch.sh``; ``{save_dir}`` and
    ``{tensor_parallel_size}``, or any other size, are filled in wherever they stand. Without a command the
    plan's own ``launch.sh`` runs, told by ``nodes`` which of them this is and where the first one is; those
    that the plan does not need run nothing. In a Slurm allocation, before any srun, it is
    ``launch.sbatch``. The log is read on the way: the node on which steps are logged (Megatron-LM's last)
    reports them, once for all nodes.

    Raises:
        LaunchError: there is no such program, no ``launch.sh``, more than one task a node for it, the
            command would start more nodes than the plan needs, or they have fewer GPUs than it starts on.
    """
    if _stays_idle(command, choice, nodes):
        sys.stderr.write(f"plan {choice.plan_id} leaves this node idle\n")
        return 0
    words = filled(command, choice) if command else ["bash", str(_own_script(choice, nodes))]
    lacking = _lacking_gpus(choice, nodes)
    if lacking and not command:
        raise LaunchError(lacking)
    if lacking:  # the caller's own may start others than launch.sh does
        sys.stderr.write(f"warning: {lacking}\n")
    environment = {**_place(nodes), **os.environ, **variables(choice)}
    if not command:
        environment["SLURM_SUBMIT_DIR"] = choice.save_dir  # where launch.sbatch finds the plan
    reporter = Reporter.of(choice, active=report)
    tail = LogTail(reporter)
    try:
        child = subprocess.Popen(  # noqa: S603 - the caller's own command
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
            start_new_session=True,  # a group that is signalled, as Slurm does, would hear it twice
        )  # fmt: skip
    except OSError as fault:
        raise LaunchError(f"{words[0]}: {fault.strerror or 'cannot be started'}") from None
    heard = [one for one in _PASSED if signal.getsignal(one) is not signal.SIG_IGN]  # as under nohup
    before = {one: signal.signal(one, lambda number, _: child.send_signal(number)) for one in heard}
    try:
        with _ended_with_us(child):
            for line in _lines_of(child):
                tail.line(line.decode(errors="replace"))
            code = child.wait()
    except BrokenPipeError:  # whoever read the output has gone, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
        code = -signal.SIGPIPE
    finally:
        if child.stdout is not None:
            child.stdout.close()
        for one, handler in before.items():
            signal.signal(one, handler)
    reporter.close()
    return code if code >= 0 else 128 - code


@contextmanager
def _ended_with_us(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """No job outlives its launch: not one that is killed, nor one whose output nobody takes any more."""
    reaper = subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, "-ISc", _REAPER, str(child.pid), str(_GRACE_S)], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        if child.poll() is not None:
            reaper.communicate(b"ended")
        elif reaper.stdin is not None:
            reaper.stdin.close()


# Waits for a word from the launch. Where it hears none, it asks the job's processes to end, and kills those
# that are left.
_REAPER = """
import os, signal, sys, time
job, grace_s = int(sys.argv[1]), float(sys.argv[2])
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(one, signal.SIG_IGN)
if not sys.stdin.read():
    until_s = time.monotonic() + grace_s
    try:
        os.killpg(job, signal.SIGTERM)
        while time.monotonic() < until_s:
            time.sleep(0.1)
            os.killpg(job, 0)
        os.killpg(job, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing is left
"""
# torchrun kills ranks 30 s after it has asked them (torch.distributed.elastic.multiprocessing.api, _close).
# They are sessions of their own, and would outlive a torchrun that is killed before that.
_GRACE_S = 60.0


def _lines_of(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The lines of a job's output, which is passed on as it comes: a progress bar may never end its line.

    It is over with the job: what a script leaves running in the background (``tensorboard &``) keeps the
    pipe open, and would hold an allocation for good.
    """
    out, rest, until_s = child.stdout, b"", inf
    while out is not None and time.monotonic() < until_s:
        if until_s == inf and child.poll() is not None:
            until_s = time.monotonic() + _LAST_WORDS_S
        if not select.select([out], [], [], _LOOK_S)[0]:
            if until_s < inf:
                break
            continue
        piece = os.read(out.fileno(), _PIECE_BYTES)
        if not piece:
            break
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        rest = rest[-_PIECE_BYTES:]
    if rest:
        yield rest


_LOOK_S = 0.2  # how often an idle pipe makes sure that its job still runs
_LAST_WORDS_S = 5.0  # of others that write to the pipe of a job that has ended
_PIECE_BYTES = 2**16

# Schedulers warn a job before they end it; the job, in a session of its own, hears nothing of our terminal.
_PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)


def variables(choice: Choice) -> dict[str, str]:
    """What the job finds in its environment: the plan, and each size by its name."""
    sizes = {name: value for name, value in asdict(choice.config).items() if isinstance(value, int | str)}
    own = {
        "MESHWRIGHT_PLAN": str(choice.path(CHOICE)),
        "MESHWRIGHT_PLAN_ID": choice.plan_id,
        "MESHWRIGHT_SAVE_DIR": choice.save_dir,
        **{f"MESHWRIGHT_{name.upper()}": str(value).lower() for name, value in sizes.items()},
    }
    if "torchtitan_plan.py" in choice.files:
        known = os.environ.get("PYTHONPATH", "")
        own["PYTHONPATH"] = f"{choice.save_dir}:{known}" if known else choice.save_dir
    return own


def filled(command: Sequence[str], choice: Choice) -> list[str]:
    """The command with the plan's flags and figures in their places."""
    figures = {**asdict(choice.config), "save_dir": choice.save_dir, "plan_id": choice.plan_id}
    words: list[str] = []
    for word in command:
        if word == "{plan_flags}":
            words += plan_flags(choice)
            continue
        for name, value in figures.items():
            word = word.replace("{" + name + "}", str(value))  # noqa: PLW2901 - filled in, figure by figure
        words.append(word)
    own = choice.path("launch.sh").resolve()  # which has them
    placed = "{plan_flags}" in command or any(Path(word).resolve() == own for word in words)
    return words if placed else [*words, *plan_flags(choice)]


def plan_flags(choice: Choice) -> list[str]:
    """The flags that hand the plan to its launcher's training script, as the plan's ``launch.sh`` does."""
    for name, array in _ARRAYS.items():
        if name in choice.files:
            return _array_of(choice.path(name), array)
    if "ds_config.json" in choice.files:
        return ["--deepspeed", "--deepspeed_config", str(choice.path("ds_config.json"))]
    if "torchtitan_plan.py" in choice.files:
        return ["--module", "torchtitan_plan", "--config", "plan"]
    return []


def _array_of(path: Path, array: str) -> list[str]:
    """The words of a bash array that a file of the plan defines."""
    command = ["bash", "-c", f'source "$1" >&2 && printf "%s\\0" "${{{array}[@]}}"', "bash", str(path)]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - a file of the plan
    if done.returncode:
        raise LaunchError(f"{path}: {done.stderr.decode(errors='replace').strip()[:400]}")
    return [word.decode() for word in done.stdout.split(b"\0")[:-1]]


def _place(nodes: Nodes | None) -> dict[str, str]:
    """What a plan's ``launch.sh`` asks for: which node this is, and where the first one is."""
    known = {} if nodes is None else {"NODE_RANK": nodes.node_rank, "MASTER_ADDR": nodes.first_host}
    return {name: str(value) for name, value in known.items() if value is not None}


def _own_script(choice: Choice, nodes: Nodes | None) -> Path:
    """The plan's own script that starts this node, or all of an allocation."""
    name, tasks = "launch.sh", None if nodes is None else nodes.tasks_per_node
    if nodes is not None and nodes.world is not None:
        raise LaunchError("torchrun has started this; launch.sh starts its own: give a command after --")
    if tasks == 0 and "launch.sbatch" in choice.files:
        name = "launch.sbatch"  # also for one node: the shell of an allocation may be on another machine
    elif (tasks or 1) > 1:
        raise LaunchError(
            f"srun has started {tasks} tasks a node, launch.sh wants one: --ntasks-per-node=1"
        )
    if name not in choice.files:
        raise LaunchError(f"{choice.launcher} has no {name}; give a command after --")
    return choice.path(name)


def _lacking_gpus(choice: Choice, nodes: Nodes | None) -> str:
    """That this node has fewer GPUs than the plan's files start processes on; empty: it has them."""
    asked = _GPUS.search(choice.files.get("launch.sbatch", ""))
    here = None if nodes is None else nodes.gpus_per_node
    if asked is None or nodes is None or here is None or here >= int(asked.group(1)):
        return ""
    return (
        f"plan {choice.plan_id} is for nodes of {asked.group(1)} GPUs, {nodes.source} tells {here} of this "
        f"one; state the problem's cluster with {here} GPUs a node"
    )


def _stays_idle(command: Sequence[str], choice: Choice, nodes: Nodes | None) -> bool:
    """Whether the plan needs fewer nodes than were started, and this one is not among them.

    Raises:
        LaunchError: the caller's own command would start them all.
    """
    asked = _NODES.search(choice.files.get("launch.sbatch", ""))
    if asked is None or nodes is None or nodes.node_rank is None:
        return False
    needed = int(asked.group(1))
    started = nodes.num_nodes or nodes.node_rank + 1  # a cluster file does not tell; this one has, at least
    if command and needed < started:
        raise LaunchError(
            f"plan {choice.plan_id} is for {needed} nodes, {nodes.source} has started {started}; "
            f"start {needed}, or give no command: then the others stay idle"
        )
    return nodes.node_rank >= needed
