"""One start of measuring: open or resume the file, then do what it does not hold yet.

Collectives come first, by all ranks together; then rank 0 measures alone, so that no rank waits in a
collective for longer than its timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import PlannerError
from profiles.measure.device import Device
from profiles.measure.notebook import Notebook, open_notebook
from profiles.measure.provenance import machine_of, session_of
from profiles.measure.ranks import Ranks, joined, told
from profiles.measure.task import Task
from profiles.measure.tasks import Wanted, collective_tasks, compute_tasks
from profiles.measure.timing import FULL, QUICK, Effort
from profiles.measured_profile import MeasuredProfile, Measurement

Say = Callable[[str], None]
MILLISECONDS = 1e3
ALONE = "collectives: skipped, they need several processes (start the command with torchrun)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How measuring was started."""

    device: Device
    ranks: Ranks
    command: Sequence[str]  # what the user typed, for the record
    deadline_s: float  # on the monotonic clock; no task begins after it
    say: Say  # takes one line of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How far one start came."""

    profile: MeasuredProfile
    planned: int  # tasks of this start
    held: int  # of which the file now holds the measurements
    skipped: int  # of which could not be measured


def measure(wanted: Wanted, path: Path, start: Start) -> Outcome | None:
    """Measure what the file at ``path`` does not hold yet; None on ranks that only took part.

    Raises:
        InvalidProblemError: the model cannot be split so, or the file holds other measurements.
        ProfileError: the file is no measured profile, or cannot be written.
    """
    device, ranks = start.device, start.ranks
    compute, together = compute_tasks(wanted), collective_tasks(wanted, ranks, device)
    if "collectives" in wanted.groups and not together:
        start.say(ALONE)
    window = wanted.subject.model.sliding_window
    if window is not None and window < wanted.subject.seq_length:
        start.say(f"attention: the model's window of {window} tokens is left out, all attend to all before")
    effort = QUICK if wanted.subject.quick else FULL
    if together:
        notebook = _measure_together(together, wanted, path, start, effort=effort)
    else:
        notebook = _opened(wanted, path, start) if ranks.leads else None
    if notebook is None:
        return None
    for task in compute:
        if _wanted_now(task, notebook, start):
            _measure_alone(task, notebook, start, effort)
    return _outcome([*together, *compute], notebook.profile)


def _opened(wanted: Wanted, path: Path, start: Start) -> Notebook:
    session = session_of(start.device, start.command)
    return open_notebook(path, wanted.subject, machine_of(start.device), session)


def _measure_together(
    tasks: Sequence[Task], wanted: Wanted, path: Path, start: Start, *, effort: Effort
) -> Notebook | None:
    """Rank 0 says what is still wanted, every rank measures it; the notebook on rank 0, else None.

    Where rank 0 cannot open the file, it raises why, and the others just stop.
    """
    device, notebook, fault = start.device, None, None
    with joined(device):
        if start.ranks.leads:
            try:
                notebook = _opened(wanted, path, start)
            except PlannerError as error:
                fault = error
        if told(fault is not None, device):
            if fault is not None:
                raise fault
            return None
        for task in tasks:
            if told(notebook is not None and _wanted_now(task, notebook, start), device):
                measurements = task.measure(device, effort)
                if notebook is not None:
                    _keep(task, measurements, notebook, start)
    return notebook


def _measure_alone(task: Task, notebook: Notebook, start: Start, effort: Effort) -> None:
    """One task; where memory does not suffice, that is what the file says."""
    try:
        measurements = task.measure(start.device, effort)
    except RuntimeError as fault:
        if not _is_out_of_memory(fault):
            raise
        notebook.skip(task.name, "not enough memory")
        start.say(f"{task.name}: skipped, not enough memory")
    else:
        _keep(task, measurements, notebook, start)
    start.device.release()


def _is_out_of_memory(fault: RuntimeError) -> bool:
    """torch.OutOfMemoryError on CUDA; a plain RuntimeError of the allocator's on a CPU."""
    return type(fault).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(fault)


def _keep(task: Task, measurements: list[Measurement], notebook: Notebook, start: Start) -> None:
    notebook.add(task.name, measurements)
    start.say(f"{task.name}: {', '.join(_words(one) for one in measurements)}")


def _words(one: Measurement) -> str:
    """``forward 1.25 ms (1.24-1.31)``: the median, and between what a tenth and nine tenths lie."""
    low, middle, high = (
        f"{seconds * MILLISECONDS:.3g}"
        for seconds in (one.timing.p10_s, one.timing.median_s, one.timing.p90_s)
    )
    return f"{one.kind} {middle} ms ({low}-{high})"


def _wanted_now(task: Task, notebook: Notebook, start: Start) -> bool:
    return not notebook.holds(task.name) and time.monotonic() < start.deadline_s


def _outcome(tasks: Sequence[Task], profile: MeasuredProfile) -> Outcome:
    names = {task.name for task in tasks}
    return Outcome(
        profile=profile,
        planned=len(names),
        held=len(names & set(profile.completed)),
        skipped=len(names & {one.task for one in profile.skipped}),
    )
