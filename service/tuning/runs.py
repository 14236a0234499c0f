"""One short run of a plan on the machines at hand: started, watched, ended for sure, and read.

A run ends measured, out of memory, hung (it took longer than its limit), or failed; where the first one
lacks what every plan needs, the tuning ends. Whatever it started is gone afterwards: its processes are
asked to end, and killed where they do not. Every one of them carries the folder of its run in its
environment, so that those of a tuning that was killed are found by the next one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from math import inf, sqrt
from math import log as ln
from pathlib import Path
from typing import Any, Literal

from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.importers.registry import import_profile
from meshwright.profiles.importers.run_logs import OUT_OF_MEMORY
from meshwright.profiles.measurements import MeasuredRun
from meshwright.profiles.reading import FieldReader
from meshwright.solver.configuration import Configuration
from meshwright.solver.runs.table import MEMORY_KINDS, MEMORY_RANKS

Outcome = Literal["measured", "out of memory", "hung", "failed", "refused", "interrupted"]
OUT: tuple[Outcome, ...] = ("out of memory", "hung", "failed", "refused")  # such a plan is out of the race
GRACE_S = 10.0  # from the request to end until processes are killed
_LOOK_S = 0.1
_TAIL_BYTES = 2**20
_MEMORY = re.compile(
    rf"{OUT_OF_MEMORY.pattern}|DefaultCPUAllocator: can't allocate memory|MemoryError|std::bad_alloc"
)
_ERROR = re.compile(r"(?:^|\s|\.)\w*(?:Error|Exception)\b(?=:)|^error:", re.IGNORECASE)
_LACKS = re.compile(  # what every plan needs: launch files' own words, and Python's of what it is to run
    r": line \d+: \w+: set it |: can't open file '.*': \[Errno |python[\d.]*: No module named \w|"
    r": Error while finding module specification for '"
)
_NOT_FOUND = re.compile(r": (?:(?:command )?not found|No such file or directory)$", re.MULTILINE)
_NOT_FOUND_CODE = 127  # of any shell, env, and programs that lack a library
_ONE_NODE = re.compile(r"^#SBATCH --nodes=1$", re.MULTILINE)
_NOT_OF_SRUN = 0xFFFFFF00  # from here on steps are Slurm's own (slurm.h), as the shell of salloc on a node
LOG_FILE = "tune.log"
_MARK = "MESHWRIGHT_SAVE_DIR"  # in the environment of every process of a run: its folder
# Of a normal distribution: from the 10th to the 90th percentile, and what a median is worse than a mean.
_PERCENTILES, _MEDIAN = 2.0 * 1.2816, 1.2533


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of one run."""

    plan_id: str
    outcome: Outcome
    seconds: float  # that the machines were held
    gpu_minutes: float
    step_time_s: float | None = None
    noise: float = 0.0  # standard error of the step time's logarithm, as far as its own steps show
    peak_memory_bytes: float | None = None
    memory_kind: str = "unknown"
    memory_rank: str = "unknown"
    said: str = ""  # the end of its log where it was not measured, or why it is not believed

    @property
    def is_faulty(self) -> bool:
        """Return whether it was not measured, or some of its values are not credible."""
        return bool(self.said) or self.outcome in OUT

    @property
    def last_words(self) -> str:
        """Return the line that explains why it was not measured or not credible."""
        return self.said.splitlines()[-1] if self.said else "its log is empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options with which runs are started."""

    command: Sequence[
        str
    ]  # with {save_dir}, {steps} and the sizes of the plan; empty: the plan's launch.sh
    steps: int
    limit_s: float


def run_plan(
    plan_id: str, config: Configuration, folder: Path, start: RunOptions, *, others_ran: bool = False
) -> RunResult:
    """Run a plan with launch files in ``folder``, and read its measurements.

    ``others_ran``: other plans were measured here just now, so that what this one lacks is its own.

    Raises:
        InvalidProblemError: the command cannot be started, lacks what every plan needs, or its log states a
            peak that cannot be.
    """
    folder = folder.resolve()
    words = _words(start, config, folder)
    log, began_s = folder / LOG_FILE, time.monotonic()
    with log.open("wb") as out:
        try:
            child = subprocess.Popen(  # noqa: S603 - the user's own command
                words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                cwd=None if start.command else folder,
                env={**os.environ, **_environment(start, config, folder)},
            )  # fmt: skip
        except OSError as fault:
            raise InvalidProblemError.of(
                "command", f"{words[0]}: {fault.strerror or 'cannot be started'}"
            ) from None
        code = _code_within(child, folder, start.limit_s)
    seconds = time.monotonic() - began_s
    outcome, found, said = _read(log, code, others_ran=others_ran)
    return RunResult(
        plan_id=plan_id, outcome=outcome, seconds=seconds, gpu_minutes=seconds * config.num_gpus / 60.0,
        said=said, **found,
    )  # fmt: skip


def _words(start: RunOptions, config: Configuration, folder: Path) -> list[str]:
    if not start.command:
        return ["bash", _own_script(folder)]
    sizes = {name: getattr(config, name) for name in (*(f.name for f in fields(config)), "num_gpus")}
    known = {**sizes, "save_dir": folder, "steps": start.steps}
    filled = []
    for word in start.command:
        for name, value in known.items():
            word = word.replace("{" + name + "}", str(value))  # noqa: PLW2901 - filled in one by one
        filled.append(word)
    return filled


def _own_script(folder: Path) -> str:
    """Return the plan's own script: in a Slurm allocation the one that starts all of its nodes.

    Raises:
        InvalidProblemError: srun has started this, and holds the nodes that the plan's own would wait for.
    """
    script, step = folder / "launch.sbatch", os.environ.get("SLURM_STEP_ID", "")
    if not os.environ.get("SLURM_JOB_ID") or not script.is_file():
        return "launch.sh"
    if not step.isdecimal() or int(step) >= _NOT_OF_SRUN:
        return script.name
    if not _ONE_NODE.search(script.read_text(encoding="utf-8")):
        raise InvalidProblemError.of(
            "command",
            "srun has started this, and a plan of several nodes would wait for its nodes",
            allowed="the shell of salloc or a batch script, or a command after --",
        )
    return "launch.sh"


def _environment(start: RunOptions, config: Configuration, folder: Path) -> dict[str, str]:
    """Return the variables of launch files and scripts: a dry start of so many steps, each logged."""
    paths = filter(None, [str(folder), os.environ.get("PYTHONPATH")])  # a plan's own modules first
    known = {"TRAIN_ITERS": start.steps, "LOG_INTERVAL": 1, "SLURM_SUBMIT_DIR": folder,
             _MARK: folder, "MESHWRIGHT_STEPS": start.steps,
             "MESHWRIGHT_NUM_GPUS": config.num_gpus, "PYTHONPATH": os.pathsep.join(paths)}  # fmt: skip
    dry = {} if "DATA_PATH" in os.environ else {"MOCK_DATA": "1"}
    return {**dry, **{name: str(value) for name, value in known.items()}}


def _code_within(child: subprocess.Popen[bytes], folder: Path, limit_s: float) -> int | None:
    """Return the exit code; None: the limit came first. None of its processes is left either way."""
    try:
        code: int | None = child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _end(child, folder)
    return code


def _end(child: subprocess.Popen[bytes], folder: Path) -> None:
    family = _family(child.pid) | _marked(folder)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    _wait(family, GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    _killed(family | _marked(folder))
    child.wait()


def end_leftovers(folder: Path) -> int:
    """End the processes that runs below a folder have left behind, and return how many there were.

    They are asked first: an srun that is killed leaves its tasks on the other nodes of an allocation.
    """
    family = _marked(folder.resolve())
    _signalled(family, signal.SIGTERM)
    _wait(family, GRACE_S)
    _killed(family | _marked(folder.resolve()))
    return len(family)


def _killed(family: dict[int, str]) -> None:
    _signalled(family, signal.SIGKILL)
    _wait(family, GRACE_S)


def _signalled(family: dict[int, str], number: signal.Signals) -> None:
    for pid, began in family.items():
        if _is_alive((pid, began)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _wait(family: dict[int, str], most_s: float) -> None:
    """Wait until all have ended, no longer than so many seconds."""
    until = time.monotonic() + most_s
    while time.monotonic() < until and any(map(_is_alive, family.items())):
        time.sleep(_LOOK_S)


def _family(pid: int) -> dict[int, str]:
    """Return the process and all processes that it started, directly or not, with their start times.

    torchrun's ranks have sessions of their own. Empty if the system has no /proc.
    """
    parents: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        found = _stat(int(path.parent.name))
        if found is not None:
            parents[int(path.parent.name)] = found
    family, grown = {pid: parents[pid][1]} if pid in parents else {}, True
    while grown:
        more = {
            one: began for one, (parent, began) in parents.items() if parent in family and one not in family
        }
        family.update(more)
        grown = bool(more)
    return family


def _marked(folder: Path) -> dict[int, str]:
    """Return the processes of runs in this folder or below it, whoever their parents are by now."""
    found = {}
    for pid, value in _marks():
        if pid != os.getpid() and Path(value).is_relative_to(folder):
            stat = _stat(pid)
            if stat is not None:
                found[pid] = stat[1]
    return found


def _marks() -> Iterator[tuple[int, str]]:
    mark = f"{_MARK}=".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            for one in path.read_bytes().split(b"\0"):
                if one.startswith(mark):
                    yield int(path.parent.name), os.fsdecode(one.removeprefix(mark))


def _stat(pid: int) -> tuple[int, str] | None:
    """Return a process's parent, and when it began; None where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def _is_alive(process: tuple[int, str]) -> bool:
    """Return whether that very process still runs, not another one of its number."""
    found = _stat(process[0])
    return found is not None and found[1] == process[1]


def _read(log: Path, code: int | None, *, others_ran: bool) -> tuple[Outcome, dict[str, Any], str]:
    """Return how the run ended, its measurements, and its last words if it measured nothing.

    Raises:
        InvalidProblemError: it lacks what every plan needs, or a peak that it states cannot be.
    """
    text = _tail(log)
    if _MEMORY.search(text):
        return "out of memory", {}, _last_lines(text, _MEMORY)
    found = _figures(log, text) if code in (0, None) else {}  # at its limit it may have logged enough
    if found:
        return "measured", found, ""
    if not others_ran:
        _require_all_there(text, code)
    return "hung" if code is None else "failed", {}, _last_lines(text)


def _require_all_there(text: str, code: int | None) -> None:
    lacking = _NOT_FOUND if code == _NOT_FOUND_CODE else _LACKS
    if lacking.search(text):
        raise InvalidProblemError.of(
            "command", f"no plan can run: {_last_lines(text, lacking).splitlines()[-1]}"
        )


def _figures(log: Path, text: str) -> dict[str, Any]:
    """Step time and peak memory: of a log that an importer reads, else of a JSON line that states them."""
    try:
        run = import_profile(log)
    except (ProfileError, InvalidProblemError):
        return _stated(text)
    if not isinstance(run, MeasuredRun):
        return _stated(text)
    peak = run.peak_reserved_bytes or run.peak_allocated_bytes
    kind = "reserved" if run.peak_reserved_bytes else "allocated"
    rank = "worst" if run.num_memory_ranks > 1 else "unknown"
    memory = {"peak_memory_bytes": peak, "memory_kind": kind, "memory_rank": rank} if peak else {}
    return {"step_time_s": run.step_time_s, "noise": _noise(run), **memory} if run.step_time_s else {}


def _noise(run: MeasuredRun) -> float:
    """Return how unsure the median of a run's steps is, in logarithms: from how far its steps differ."""
    low, high = run.step_time_low_s, run.step_time_high_s
    return _MEDIAN * ln(high / low) / _PERCENTILES / sqrt(run.num_steps) if low and high else 0.0


def _stated(text: str) -> dict[str, Any]:
    """Read the last line ``{"step_time_s": 1.2, "peak_memory_bytes": 3}``, alone on its line.

    Raises:
        InvalidProblemError: its memory is impossible.
    """
    for line in reversed(text.splitlines()):
        if line.startswith("{") and '"step_time_s"' in line:
            with suppress(ValueError, TypeError, KeyError):
                found = json.loads(line)
                if 0.0 < (step_time_s := float(found["step_time_s"])) < inf:
                    return {"step_time_s": step_time_s, **_stated_memory(found)}
    return {}


def _stated_memory(found: Mapping[str, object]) -> dict[str, Any]:
    if not found.get("peak_memory_bytes"):  # torch counts 0 without a GPU
        return {}
    reader = FieldReader(found, f"/{LOG_FILE}")
    memory = {
        "peak_memory_bytes": reader.number("peak_memory_bytes", low=1.0, high=inf),
        "memory_kind": reader.choice("memory_kind", MEMORY_KINDS, default="unknown"),
        "memory_rank": reader.choice("memory_rank", MEMORY_RANKS, default="unknown"),
    }
    reader.finish()
    return memory


def _tail(log: Path) -> str:
    with log.open("rb") as handle:
        handle.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
        return handle.read().decode(errors="replace")


def _last_lines(text: str, why: re.Pattern[str] = _ERROR) -> str:
    """Return the last lines of a run; the last one that explains its end comes last."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line.strip() for line in lines if why.search(line)]
    return "\n".join([*lines[-4:], *named[-1:]])[-600:]
