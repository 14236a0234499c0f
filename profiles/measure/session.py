"""One start of measuring: open or resume the file, then do what it does not hold yet.

Collectives come first, by all ranks together; then rank 0 measures alone, so that no rank waits in a
collective for longer than its timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from meshwright.profiles.errors import InvalidProblemError, PlannerError, ProfileError
from meshwright.profiles.measure.collectives import (
    COLLECTIVES,
    Ranks,
    broadcast,
    joined,
    measure_collective,
    payloads_of,
)
from meshwright.profiles.measure.device import Device
from meshwright.profiles.measure.layer import embedding_of, head_of, measure_end, measure_layer
from meshwright.profiles.measure.operators import (
    attention_shape,
    measure_attention,
    measure_gemm,
    measure_memory_bound,
    memory_bound_makers,
)
from meshwright.profiles.measure.provenance import differences, machine_of, plain, session_of
from meshwright.profiles.measure.shard import Shard
from meshwright.profiles.measure.timing import FULL, QUICK, Effort, Label, Task
from meshwright.profiles.measured.profile import (
    Machine,
    MeasuredGroup,
    MeasuredProfile,
    Measurement,
    Session,
    Skipped,
    Subject,
    write_measured_profile,
)
from meshwright.profiles.measured.read import read_measured_profile

# --------------------------------------------------------------------------------------------------
# The file of a measured profile as it grows: opened or resumed, written after every task.


class Notebook:
    """A measured profile and its file."""

    def __init__(self, path: Path, profile: MeasuredProfile) -> None:
        self._path = path
        self._done = set(profile.completed)
        self.profile = profile

    def holds(self, task: str) -> bool:
        """Return whether a task needs no measuring."""
        return task in self._done

    def add(self, task: str, measurements: list[Measurement]) -> None:
        """Keep what a task measured, and write the file.

        Raises:
            ProfileError: the file cannot be written.
        """
        self._done.add(task)
        self.store(
            replace(
                self.profile,
                completed=(*self.profile.completed, task),
                skipped=tuple(one for one in self.profile.skipped if one.task != task),
                measurements=(*self.profile.measurements, *measurements),
            )
        )

    def skip(self, task: str, reason: str) -> None:
        """Keep why a task could not be measured; the next start tries it again.

        Raises:
            ProfileError: the file cannot be written.
        """
        others = tuple(one for one in self.profile.skipped if one.task != task)
        self.store(replace(self.profile, skipped=(*others, Skipped(task=task, reason=reason))))

    def store(self, profile: MeasuredProfile) -> None:
        """Write the file.

        Raises:
            ProfileError: the file cannot be written.
        """
        self.profile = profile
        try:
            write_measured_profile(self._path, profile)
        except OSError as fault:
            raise ProfileError(f"{self._path.name}: {fault.strerror or 'cannot be written'}") from None


def open_notebook(path: Path, subject: Subject, machine: Machine, session: Session) -> Notebook:
    """Return a new notebook, or the one at ``path`` when it is of the same subject on the same machine.

    Raises:
        InvalidProblemError: the file holds measurements of something else, or made elsewhere.
        ProfileError: the file is not a measured profile, or cannot be written.
    """
    if not path.exists():
        notebook = Notebook(path, MeasuredProfile(subject=subject, machine=machine, sessions=(session,)))
        notebook.store(notebook.profile)
        return notebook
    found = read_measured_profile(path)
    odds = [*_other_subject(subject, found.subject), *differences(machine, found.machine)]
    if odds:
        message = f"{path.name} has other measurements ({', '.join(odds)}). Choose another file"
        raise InvalidProblemError.of("--out", message)
    return Notebook(path, replace(found, sessions=(*found.sessions, session)))


def _other_subject(ours: Subject, theirs: Subject) -> list[str]:
    names = ("seq_length", "dtype", "expert_parallel_size", "quick", "lora_rank", "lora_targets")
    odds = [
        f"{name}: {getattr(ours, name)} here, {getattr(theirs, name)} there"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if ours.model != theirs.model:
        odds.insert(0, f"model: {ours.model.name} here, {theirs.model.name} there, or of another shape")
    return odds


# --------------------------------------------------------------------------------------------------
# Everything that one start measures, as tasks in the order they are done.


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMeasurements:
    """The measurements to take."""

    subject: Subject
    tensor_parallel_sizes: tuple[int, ...]
    micro_batch_sizes: tuple[int, ...]
    groups: tuple[MeasuredGroup, ...]

    def shards(self) -> tuple[Shard, ...]:
        """Return every shard of the model.

        Raises:
            InvalidProblemError: the model cannot be split so.
        """
        return tuple(
            Shard(
                model=self.subject.model,
                tensor_parallel_size=tensor_parallel_size,
                expert_parallel_size=self.subject.expert_parallel_size,
                micro_batch_size=micro_batch_size,
                seq_length=self.subject.seq_length,
                lora_rank=self.subject.lora_rank,
                lora_targets=self.subject.lora_targets,
            )
            for tensor_parallel_size, micro_batch_size in product(
                self.tensor_parallel_sizes, self.micro_batch_sizes
            )
        )


def compute_tasks(wanted: WantedMeasurements) -> tuple[Task, ...]:
    """Return the tasks that one process measures by itself: operators first, whole layers last."""
    makers: dict[MeasuredGroup, Callable[[Shard], Iterator[Task]]] = {
        "gemm": _gemm_tasks,
        "attention": _attention_tasks,
        "memory_bound": _memory_bound_tasks,
        "layer": _layer_tasks,
    }
    shards = wanted.shards()
    return tuple(
        task
        for group, make in makers.items()
        if group in wanted.groups
        for shard in shards
        for task in make(shard)
    )


def collective_tasks(wanted: WantedMeasurements, ranks: Ranks, device: Device) -> tuple[Task, ...]:
    """Return the tasks that all processes measure together; none if there is only one process."""
    if "collectives" not in wanted.groups or ranks.world_size == 1:
        return ()
    payloads = payloads_of(device.kind, quick=wanted.subject.quick)
    found = list[Task]()
    for operator, payload in product(COLLECTIVES, payloads):
        name = f"collectives/{operator}/{ranks.words()}/{payload}"
        measure = partial(measure_collective, operator, payload, ranks, task=name)
        found.append(Task(name=name, group="collectives", measure=measure))
    return tuple(found)


def _task(
    group: MeasuredGroup, operator: str, shard: Shard, shape: dict[str, int],
    measure: Callable[..., list[Measurement]], *subject: object,
) -> Task:  # fmt: skip
    """Return the task that measures a subject under a label of its own."""
    name = f"{group}/{operator}/tp{shard.tensor_parallel_size}/mbs{shard.micro_batch_size}"
    label = Label(task=name, group=group, operator=operator, shape=shard.sizes() | shape)
    return Task(name=name, group=group, measure=partial(measure, *subject, label))


def _gemm_tasks(shard: Shard) -> Iterator[Task]:
    for gemm in shard.gemms():
        shape = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "experts": gemm.experts}
        yield _task("gemm", gemm.operator, shard, shape, measure_gemm, gemm)


def _attention_tasks(shard: Shard) -> Iterator[Task]:
    yield _task("attention", "attention", shard, attention_shape(shard), measure_attention, shard)


def _memory_bound_tasks(shard: Shard) -> Iterator[Task]:
    for operator, make in memory_bound_makers(shard.model).items():
        shape = {"tokens": shard.tokens}
        yield _task("memory_bound", operator, shard, shape, measure_memory_bound, make, shard)


def _layer_tasks(shard: Shard) -> Iterator[Task]:
    shape = {"seq_length": shard.seq_length}
    for kind in sorted(set(shard.model.layer_kinds())):
        yield _task("layer", f"{kind}_layer", shard, shape, measure_layer, shard, kind)
    if not any(getattr(shard.model, name) for name in _OTHER_ENDS):
        yield _task("layer", "embedding", shard, shape, measure_end, embedding_of, shard)
        yield _task("layer", "head", shard, shape, measure_end, head_of, shard)


# What the ends of a model may do that the measured ones do not.
_OTHER_ENDS = (
    "embedding_size", "learned_position_embeddings", "embedding_norm", "head_bias", "normalized_head",
    "head_transform", "logit_softcap", "num_mtp_layers", "num_labels",
)  # fmt: skip


Say = Callable[[str], None]
MILLISECONDS = 1e3
ALONE = "collectives: skipped. To measure them, start the command with torchrun"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringOptions:
    """The options with which measuring was started."""

    device: Device
    ranks: Ranks
    command: Sequence[str]  # what the user typed, for the record
    deadline_s: float  # on the monotonic clock; no task begins after it
    say: Say  # takes one line of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringOutcome:
    """The progress of one start."""

    profile: MeasuredProfile
    planned: int  # tasks of this start
    held: int  # of which the file now holds the measurements
    skipped: int  # of which could not be measured


def measure(wanted: WantedMeasurements, path: Path, start: MeasuringOptions) -> MeasuringOutcome | None:
    """Measure everything that the file at ``path`` lacks; None on ranks that only took part.

    Raises:
        InvalidProblemError: the model cannot be split so, or the file holds other measurements.
        ProfileError: the file is not a measured profile, or cannot be written.
    """
    device, ranks = start.device, start.ranks
    compute, together = compute_tasks(wanted), collective_tasks(wanted, ranks, device)
    if "collectives" in wanted.groups and not together:
        start.say(ALONE)
    window = wanted.subject.model.sliding_window
    if window is not None and window < wanted.subject.seq_length:
        start.say(f"attention: measured without the model's window of {window} tokens")
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


def _opened(wanted: WantedMeasurements, path: Path, start: MeasuringOptions) -> Notebook:
    session = session_of(start.device, start.command)
    return open_notebook(path, wanted.subject, machine_of(start.device), session)


def _measure_together(
    tasks: Sequence[Task],
    wanted: WantedMeasurements,
    path: Path,
    start: MeasuringOptions,
    *,
    effort: Effort,
) -> Notebook | None:
    """Measure on every rank what rank 0 still lacks; return the notebook on rank 0, else None.

    Where rank 0 cannot open the file, it raises why, and the others just stop.
    """
    device, notebook, fault = start.device, None, None
    with joined(device):
        if start.ranks.leads:
            try:
                notebook = _opened(wanted, path, start)
            except PlannerError as error:
                fault = error
        if broadcast(fault is not None, device):
            if fault is not None:
                raise fault
            return None
        for task in tasks:
            if broadcast(notebook is not None and _wanted_now(task, notebook, start), device):
                measurements = task.measure(device, effort)
                if notebook is not None:
                    _keep(task, measurements, notebook, start)
    return notebook


def _measure_alone(task: Task, notebook: Notebook, start: MeasuringOptions, effort: Effort) -> None:
    """Measure one task; the file keeps why it could not be, such as memory or a missing operator.

    Raises:
        ProfileError: the device answers nothing any more, so that no other task could be measured.
    """
    reason: str | None = None
    try:
        measurements = task.measure(start.device, effort)
    except RuntimeError as fault:
        reason = NO_MEMORY if is_out_of_memory(fault) else _first_line(fault)
    else:
        _keep(task, measurements, notebook, start)
    if reason is not None:
        notebook.skip(task.name, reason)
        start.say(f"{task.name}: skipped, {reason}")
    start.device.release()
    if reason is not None and not start.device.answers():
        lost = f"{start.device.name} no longer responds. Start again"
        raise ProfileError(f"{task.name}: {reason}; {lost}")


NO_MEMORY = "not enough memory"
_ALLOCATORS = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")


def is_out_of_memory(fault: BaseException) -> bool:
    """torch.OutOfMemoryError on CUDA; elsewhere a plain RuntimeError that names what could not allocate."""
    return type(fault).__name__ == "OutOfMemoryError" or any(name in str(fault) for name in _ALLOCATORS)


def _first_line(fault: BaseException) -> str:
    return plain(f"{type(fault).__name__}: {str(fault).strip().partition(chr(10))[0]}")


def _keep(task: Task, measurements: list[Measurement], notebook: Notebook, start: MeasuringOptions) -> None:
    notebook.add(task.name, measurements)
    start.say(f"{task.name}: {', '.join(_words(one) for one in measurements)}")


def _words(one: Measurement) -> str:
    """Return ``forward 1.25 ms (1.24-1.31)``: the median, and between what a tenth and nine tenths lie."""
    low, middle, high = (
        f"{seconds * MILLISECONDS:.3g}"
        for seconds in (one.timing.p10_s, one.timing.median_s, one.timing.p90_s)
    )
    return f"{one.kind} {middle} ms ({low}-{high})"


def _wanted_now(task: Task, notebook: Notebook, start: MeasuringOptions) -> bool:
    return not notebook.holds(task.name) and time.monotonic() < start.deadline_s


def _outcome(tasks: Sequence[Task], profile: MeasuredProfile) -> MeasuringOutcome:
    names = {task.name for task in tasks}
    return MeasuringOutcome(
        profile=profile,
        planned=len(names),
        held=len(names & set(profile.completed)),
        skipped=len(names & {one.task for one in profile.skipped}),
    )
