"""Timing of an operation: warmed up, repeated until it is steady, reported with its spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from meshwright.profiles.measure.device import Device, Tensor
from meshwright.profiles.measured.profile import MeasuredGroup, Measurement, Timing

T = TypeVar("T")
FEWEST = 3  # repeats, however slow: fewer have no median
HELD = 1.5  # times as long as issuing takes is how long a stream is held before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The criteria for ending repeats."""

    warmups: int
    min_repeats: int
    max_repeats: int
    steady_spread: float  # (p90 - p10) / median below which more repeats add nothing
    budget_s: float  # for one operation, warm-up included


FULL = Effort(warmups=3, min_repeats=10, max_repeats=100, steady_spread=0.03, budget_s=3.0)
QUICK = Effort(warmups=1, min_repeats=3, max_repeats=5, steady_spread=0.10, budget_s=0.3)


def timed(run: Callable[[], object], device: Device, effort: Effort) -> Timing:
    """Return the timing of ``run``."""
    return timed_with(lambda: None, lambda _nothing: run(), device, effort)


def timed_with(
    prepare: Callable[[], T], run: Callable[[T], object], device: Device, effort: Effort
) -> Timing:
    """Return the timing of ``run`` on what ``prepare`` makes afresh, untimed, before each repeat."""
    deadline_s = time.monotonic() + effort.budget_s

    def once(held_s: float = 0.0) -> tuple[float, float | None]:
        prepared = prepare()
        device.synchronize()
        return device.seconds_of(lambda: run(prepared), held_s=held_s)

    held_s = 0.0
    for _ in range(effort.warmups):
        held_s = HELD * (once()[1] or 0.0)
        if time.monotonic() > deadline_s:
            break
    seconds: list[float] = []
    host_s: list[float] = []
    while not _enough(seconds, effort, late=time.monotonic() > deadline_s):
        device_s, issuing_s = once(held_s)
        seconds.append(device_s)
        if issuing_s is not None:
            host_s.append(issuing_s)
            held_s = HELD * median(host_s)
    return timing_of(seconds, host_s)


def timed_backward(
    run: Callable[[], Tensor], inputs: Sequence[Tensor], device: Device, effort: Effort
) -> Timing:
    """Time the gradients of ``inputs`` from a random output gradient, each after a fresh forward pass."""
    gradient = device.torch.randn_like(run())
    grad = device.torch.autograd.grad
    return timed_with(run, lambda output: grad(output, inputs, gradient), device, effort)


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
