"""The common part of the logs of all training frameworks: steps, restarts, ranks and warm-up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from meshwright.profiles.importers.foreign_file import MAX_SECONDS, ForeignFile
from meshwright.profiles.measurements import MeasuredRun

MAX_BATCH = 10**8
MAX_FLOPS_PER_S = 1e17  # of one GPU
MAX_GIB = 10**5
WARM_UP_LINES = (2, 5)  # fewest and most logged lines dropped after each start
WARM_UP_SHARE = 10  # else a tenth of them
LAG = 2  # steps by which one rank's lines may trail another's
LOW, HIGH = 10.0, 90.0  # percentiles

# What torchrun, "srun -l" and "mpirun --tag-output" put before each line of a rank.
_PREFIX = re.compile(
    r"^\s*(?:\[(?:rank|default)(\d{1,6})\]:|(\d{1,6}):(?=\s)|\[\d+,(\d{1,6})\]<std\w+>:)\s?"
)
# torch's allocator; the driver's word for it outside of that (torch's launches, Triton, NCCL); cuBLAS.
OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP)(?: error:|\]:)? out of memory"
    r"|(?i:cuda|hip) failure (?:\d+ )?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED"
)
_TIMESTAMP = re.compile(r"\b(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a log without colours and without the launcher's prefix."""

    where: str
    rank: int | None  # as the launcher's prefix names it
    text: str
    is_cut: bool  # the file's last line, without an end: a job that was killed while writing


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One logged step (or mean over the steps since the line before)."""

    number: int
    seconds: float
    global_batch_size: int | None = None
    tokens_per_s_per_gpu: float | None = None
    flops_per_s_per_gpu: float | None = None


@dataclass(slots=True, kw_only=True)
class RunLog:
    """The values that a log has reported so far."""

    file: ForeignFile
    framework: str
    segments: list[dict[int, LoggedStep]] = field(default_factory=lambda: [{}])
    configuration: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)  # settings that others give a meaning
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    memory_ranks: set[int | None] = field(default_factory=set)
    out_of_memory: bool = False
    first_rank: int | None = None
    _highest: int = 0  # step of the last segment
    _clock: tuple[int, datetime] | None = None  # step and time of the line before

    def lines(self) -> Iterator[LogLine]:
        """Yield the lines of the file, and note whether memory ran out."""
        total = self.file.text.count("\n") + 1
        for number, line in self.file.lines():
            prefix = _PREFIX.match(line)
            rank = next((int(group) for group in prefix.groups() if group), None) if prefix else None
            text = line[prefix.end() :] if prefix else line
            self.out_of_memory = self.out_of_memory or OUT_OF_MEMORY.search(text) is not None
            yield LogLine(where=f"line {number}", rank=rank, text=text, is_cut=number == total)

    def started(self) -> None:
        """Start another run of the same job: the lines that follow belong to it."""
        self._clock = None
        if self.segments[-1]:
            self.segments.append({})

    def is_of_first_rank(self, rank: int | None) -> bool:
        """Return whether steps of this rank count: all ranks log the same steps, one is enough."""
        if self.first_rank is None:
            self.first_rank = rank
        return rank is None or rank == self.first_rank

    def add(self, step: LoggedStep) -> None:
        """Take in a step; a much lower number than before is a restart, an equal one another rank."""
        if self.segments[-1] and step.number < self._highest - LAG:
            self.segments.append({})
        current = self.segments[-1]
        self._highest = max(self._highest, step.number) if current else step.number
        known = current.get(step.number)
        if known is None or step.seconds > known.seconds:
            current[step.number] = step

    def seconds_since(self, number: int, at: datetime | None) -> float | None:
        """Return mean seconds of the steps since the line before; None on the first line of a start."""
        last = self._clock
        if at is None or (last and last[0] - LAG <= number <= last[0]):
            return None
        self._clock = (number, at)
        if last is None or number < last[0]:
            return None
        seconds = (at - last[1]).total_seconds() / (number - last[0])
        return seconds if 0 < seconds <= MAX_SECONDS else None

    def saw_memory(self, rank: int | None, allocated: float | None, reserved: float | None) -> None:
        """Keep the worst peaks; bytes."""
        self.memory_ranks.add(rank)
        if allocated:
            self.allocated_bytes = max(self.allocated_bytes or 0, round(allocated))
        if reserved:
            self.reserved_bytes = max(self.reserved_bytes or 0, round(reserved))

    def note(self, name: str, text: str, where: str) -> None:
        """Note one number of the configuration.

        Raises:
            ProfileError: a configuration cannot hold this number.
        """
        self.configuration[name] = self.file.whole(text, f"{where}, {name}", low=0, high=2**31 - 1)

    def finish(self) -> MeasuredRun:
        """Return the run: median and spread of the steps after warm-up.

        Raises:
            ProfileError: too few steps, and the run did not run out of memory either.
        """
        kept, num_steps = self._after_warm_up()
        if not kept and not self.out_of_memory:
            raise self.file.fault(
                "", f"expected logged steps of {self.framework}, more than {WARM_UP_LINES[0]} after a start"
            )
        low, median, high = (
            np.percentile([step.seconds for step in kept], (LOW, 50.0, HIGH)).tolist()
            if kept
            else [None] * 3
        )
        if kept and kept[-1].global_batch_size:
            self.configuration["global_batch_size"] = kept[-1].global_batch_size
        return MeasuredRun(
            framework=self.framework,
            step_time_s=median,
            step_time_low_s=low,
            step_time_high_s=high,
            num_steps=num_steps,
            tokens_per_s_per_gpu=_tokens(kept, median, self.configuration),
            flops_per_s_per_gpu=_median([step.flops_per_s_per_gpu for step in kept]),
            peak_allocated_bytes=self.allocated_bytes,
            # a reserved peak below the allocated one was printed earlier
            peak_reserved_bytes=(
                None if (self.reserved_bytes or 0) < (self.allocated_bytes or 0) else self.reserved_bytes
            ),
            num_memory_ranks=len(self.memory_ranks),
            out_of_memory=self.out_of_memory,
            configuration=dict(self.configuration),
            words=dict(self.words),
        )

    def _after_warm_up(self) -> tuple[list[LoggedStep], int]:
        """Return the steps after warm-up at the last global batch size, and their optimizer steps."""
        kept: list[LoggedStep] = []
        covered = 0
        for segment in self.segments:
            numbers = sorted(segment)
            dropped = min(max(len(numbers) // WARM_UP_SHARE, WARM_UP_LINES[0]), WARM_UP_LINES[1])
            kept += [segment[number] for number in numbers[dropped:]]
            covered += numbers[-1] - numbers[dropped - 1] if len(numbers) > dropped else 0
        batch = kept[-1].global_batch_size if kept else None
        same = [step for step in kept if step.global_batch_size == batch]
        return same, covered if len(same) == len(kept) else len(same)


def timestamp(text: str) -> datetime | None:
    """Return the first date and time in a line; None if there is none or it is not a valid date."""
    match = _TIMESTAMP.search(text)
    try:
        return datetime.fromisoformat(match[1].replace(",", ".")) if match else None
    except ValueError:
        return None


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _tokens(kept: list[LoggedStep], median: float | None, configuration: Mapping[str, int]) -> float | None:
    """Return tokens a second and GPU: as logged, else from batch, sequence, step time and GPUs."""
    logged = _median([step.tokens_per_s_per_gpu for step in kept])
    parts = [configuration.get(name) for name in ("global_batch_size", "seq_length", "num_gpus")]
    if logged is not None or median is None or not all(parts):
        return logged
    batch, seq_length, num_gpus = (float(part) for part in parts if part)
    return batch * seq_length / (median * num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """The log of one framework, with a line for each logged step."""

    framework: str
    names_itself: str  # in lower case: identifies a log that ends before its first step
    signs: tuple[tuple[re.Pattern[str], ...], ...]  # a log with steps has all signs of one of these
    step: re.Pattern[str]  # its first group is the step's number
    on_step: Callable[[RunLog, LogLine, int], None]
    on_line: Callable[[RunLog, LogLine], None]
    on_end: Callable[[RunLog], None] = lambda _: None

    def looks_like(self, file: ForeignFile) -> bool:
        """Return whether the text holds steps of the framework, or a run of it that ran out of memory."""
        if self.names_itself in file.text.lower() and OUT_OF_MEMORY.search(file.text):
            return True
        return any(all(sign.search(file.text) for sign in signs) for signs in self.signs)

    def read(self, path: Path | str) -> MeasuredRun:
        """Return step time, memory, throughput and the configuration that the log names.

        Raises:
            ProfileError: no steps, or a broken one.
        """
        log = RunLog(file=ForeignFile.open(path), framework=self.framework)
        for line in log.lines():
            step = self.step.search(line.text)
            if step and not line.is_cut:
                self.on_step(log, line, int(step[1]))
            self.on_line(log, line)
        self.on_end(log)
        return log.finish()
