"""Timing of an operation: warmed up, repeated until it is steady, reported with its spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from meshwright.profiles.measure.device import Device, Mark, Tensor
from meshwright.profiles.measured.profile import MeasuredGroup, Measurement, Timing

T = TypeVar("T")
FEWEST = 3  # repeats, however slow: fewer have no median


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The criteria for ending repeats."""

    warmups: int
    min_repeats: int
    max_repeats: int
    steady_spread: float  # (p90 - p10) / median below which more repeats add nothing
    budget_s: float  # for one operation, warm-up included
    running_s: float  # duration of a run without a wait


FULL = Effort(warmups=3, min_repeats=10, max_repeats=100, steady_spread=0.03, budget_s=3.0, running_s=1.0)
QUICK = Effort(warmups=1, min_repeats=3, max_repeats=5, steady_spread=0.10, budget_s=0.3, running_s=0.0)


def timed(run: Callable[[], object], device: Device, effort: Effort) -> Timing:
    """Return the timing of ``run``."""
    return timed_with(lambda: None, lambda _nothing: run(), device, effort)


def timed_with(
    prepare: Callable[[], T], run: Callable[[T], object], device: Device, effort: Effort
) -> Timing:
    """Return the timing of ``run`` on what ``prepare`` makes afresh, untimed, before each repeat."""
    deadline_s = time.monotonic() + effort.budget_s
    for _ in range(effort.warmups):
        run(prepare())
        device.synchronize()
        if time.monotonic() > deadline_s:
            break
    seconds: list[float] = []
    host_s: list[float] = []
    while not _enough(seconds, effort, late=time.monotonic() > deadline_s):
        prepared = prepare()
        device.synchronize()
        device_s, issuing_s = device.seconds_of(lambda given=prepared: run(given))  # type: ignore[misc]
        seconds.append(device_s)
        if issuing_s is not None:
            host_s.append(issuing_s)
    return timing_of(seconds, host_s)


def timed_backward(
    run: Callable[[], Tensor], inputs: Sequence[Tensor], device: Device, effort: Effort
) -> Timing:
    """Time the gradients of ``inputs`` from a random output gradient, each after a fresh forward pass."""
    gradient = device.torch.randn_like(run())
    grad = device.torch.autograd.grad
    return timed_with(run, lambda output: grad(output, inputs, gradient), device, effort)


def timed_running(steps: Sequence[Callable[[], object]], device: Device, effort: Effort) -> list[Timing]:
    """Return the timings of steps that run back to back without a wait, as they do in training.

    The host runs ahead of the GPU, and no pause lets the GPU's clocks rise above those that its power limit
    sustains. They settle in the first half of the rounds, which is not counted. Issuing is timed before
    that, while nothing is queued.
    """
    deadline_s = time.monotonic() + effort.budget_s
    for _ in range(effort.warmups):
        _issuing_s(steps, device)
    issued = [_issuing_s(steps, device) for _ in range(FEWEST)] if device.kind == "cuda" else []
    until_s = time.monotonic() + effort.running_s
    rounds: list[list[Mark]] = []
    while not _ran(len(rounds), effort, until_s=until_s, deadline_s=deadline_s):
        marks = [device.mark()]
        for step in steps:
            step()
            marks.append(device.mark())
        rounds.append(marks)
    device.synchronize()
    settled = rounds[len(rounds) // 2 :] if effort.running_s else rounds
    return [
        timing_of(
            [device.seconds_between(marks[i], marks[i + 1]) for marks in settled],
            [seconds[i] for seconds in issued],
        )
        for i in range(len(steps))
    ]


def _issuing_s(steps: Sequence[Callable[[], object]], device: Device) -> list[float]:
    """Return the seconds that the host takes to issue each step to an empty queue."""
    device.synchronize()
    marks = [time.perf_counter()]
    for step in steps:
        step()
        marks.append(time.perf_counter())
    return [after - before for before, after in pairwise(marks)]


def timed_passes(
    run: Callable[[], Tensor], inputs: Sequence[Tensor], device: Device, effort: Effort
) -> tuple[Timing, Timing]:
    """Return the timings of forward passes and of backward passes to ``inputs``, run in turn."""
    gradient = device.torch.randn_like(run())
    outputs: list[Tensor] = []

    def backward() -> None:
        device.torch.autograd.grad(outputs.pop(), inputs, gradient)

    forward_timing, backward_timing = timed_running(
        (lambda: outputs.append(run()), backward), device, effort
    )
    return forward_timing, backward_timing


def timing_of(seconds: Sequence[float], host_s: Sequence[float] = ()) -> Timing:
    """Return median and percentiles (linear between the samples) of one operation's repeats."""
    p10_s, median_s, p90_s = (float(value) for value in np.percentile(seconds, (10, 50, 90)))
    return Timing(
        median_s=median_s,
        p10_s=min(p10_s, median_s),
        p90_s=max(p90_s, median_s),
        repeats=len(seconds),
        host_s=float(np.median(host_s)) if host_s else None,
    )


def _ran(rounds: int, effort: Effort, *, until_s: float, deadline_s: float) -> bool:
    now_s = time.monotonic()
    if rounds < effort.min_repeats:
        return now_s > deadline_s and rounds >= FEWEST
    return now_s > until_s


def _enough(seconds: Sequence[float], effort: Effort, *, late: bool) -> bool:
    if len(seconds) < effort.min_repeats:
        return late and len(seconds) >= FEWEST
    return late or len(seconds) >= effort.max_repeats or timing_of(seconds).spread <= effort.steady_spread


# --------------------------------------------------------------------------------------------------
# One unit of measuring: what an interrupted start need not repeat.


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The label that the measurements of one operator share."""

    task: str
    group: MeasuredGroup
    operator: str
    shape: Mapping[str, int]

    def measured(
        self, kind: str, timing: Timing, *, flops: float = 0.0, moved_bytes: float = 0.0
    ) -> Measurement:
        """Return the measurement of one kind of pass."""
        return Measurement(
            task=self.task,
            group=self.group,
            operator=self.operator,
            kind=kind,
            shape=self.shape,
            timing=timing,
            work_flops=flops,
            moved_bytes=moved_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A few measurements that are written together."""

    name: str
    group: MeasuredGroup
    measure: Callable[[Device, Effort], list[Measurement]]
