"""One unit of measuring: what an interrupted start need not repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiles.measure.device import Device
from profiles.measure.timing import Effort
from profiles.measured_profile import MeasuredGroup, Measurement, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What the measurements of one operator share."""

    task: str
    group: MeasuredGroup
    operator: str
    shape: Mapping[str, int]

    def measured(
        self, kind: str, timing: Timing, *, flops: float = 0.0, moved_bytes: float = 0.0
    ) -> Measurement:
        """The measurement of one kind of pass."""
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
