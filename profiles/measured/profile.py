"""A measured profile: what ``meshwright profile`` timed on one machine, with how, when and how steadily.

The file is JSON, ``{"format": "meshwright-measured-profile", "version": 1, "subject": …, "machine": …,
"sessions": […], "completed": […], "skipped": […], "measurements": […]}``; the dataclasses below are its
objects, field by field, and fields that are None are left out.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from meshwright.profiles.collectives.measured import COLLECTIVES, MAX_CURVES, MeasuredCurve, MeasuredLink
from meshwright.profiles.documents import with_version
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_to_mapping

FORMAT = "meshwright-measured-profile"
VERSION = 1

Dtype = Literal["bf16", "fp16", "fp32"]
MeasuredGroup = Literal["collectives", "gemm", "attention", "memory_bound", "layer"]
MEASURED_GROUPS: tuple[MeasuredGroup, ...] = ("collectives", "gemm", "attention", "memory_bound", "layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one operation over its repeats.

    On CUDA the seconds lie between two events on the stream: of single operations after the second-level
    cache was flushed, of layers while they run back to back. On a CPU they are wall-clock time.
    """

    median_s: float
    p10_s: float
    p90_s: float
    repeats: int
    host_s: float | None = None  # median time to issue the work to a CUDA stream; None on a CPU

    def __post_init__(self) -> None:
        """Refuse what no clock can have shown.

        Raises:
            ProfileError: the percentiles are out of order or negative, or nothing was repeated.
        """
        if not 0 <= self.p10_s <= self.median_s <= self.p90_s or self.repeats < 1:
            raise ProfileError("a timing needs 0 <= p10_s <= median_s <= p90_s and at least one repeat")

    @property
    def spread(self) -> float:
        """Return (p90 - p10) / median: 0 is perfectly steady."""
        return (self.p90_s - self.p10_s) / self.median_s if self.median_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One operation that was timed.

    ``shape`` names its sizes: ``tensor_parallel_size`` and ``micro_batch_size`` of the shard it measures,
    and its own (``m``, ``n``, ``k``; ``heads`` …; ``ranks`` and ``payload_bytes`` of a collective).
    """

    task: str  # the unit of resuming it belongs to
    group: MeasuredGroup
    operator: str  # qkv, attention, rmsnorm, dense_layer, all_reduce, …
    # forward, backward, input_gradient, weight_gradient, recompute_backward, accumulate, optimizer, …
    kind: str
    shape: Mapping[str, int]
    timing: Timing
    work_flops: float = 0.0  # multiply-adds of its matrix products, 2 FLOPs each
    moved_bytes: float = 0.0  # least traffic: inputs read and outputs written once; sent, of a collective
    peak_memory_bytes: int | None = None  # allocated at the peak of a layer's pass (CUDA only)
    activation_bytes: int | None = None  # kept by a forward pass for the backward one, its weights not


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The measured model: the same for all measurements of one file."""

    model: ModelSpec
    seq_length: int
    dtype: Dtype
    expert_parallel_size: int
    quick: bool  # few repeats, few payloads
    with_collectives: bool = False  # layers were timed with their tensor-parallel collectives inside
    lora_rank: int = 0  # of adapters next to frozen weights; 0: every weight is trained
    lora_targets: tuple[str, ...] = ()  # modules that they adapt, by Megatron-Core's names


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine: the same for all measurements of one file."""

    kind: Literal["cuda", "cpu"]
    device: str  # as its driver names it
    memory_bytes: int  # of the GPU, or of the host
    host_cpu: str
    torch: str
    cuda: str | None = None  # or ROCm, that torch was built with
    driver: str | None = None
    threads: int | None = None  # of torch on a CPU
    gpu: str | None = None  # catalog slug, where it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One start of the command: when, how, and the state the device was in."""

    started_at: str  # ISO 8601, UTC
    meshwright: str  # version
    command: str = ""
    device_state: str = ""  # clocks, power and temperature, as far as they can be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A task that could not be measured, and why."""

    task: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProfile:
    """All measurements of one model on one machine."""

    subject: Subject
    machine: Machine
    sessions: tuple[Session, ...]
    completed: tuple[str, ...] = ()  # tasks that need not be measured again
    skipped: tuple[Skipped, ...] = ()
    measurements: tuple[Measurement, ...] = field(default=())

    def find(
        self, group: MeasuredGroup, operator: str, kind: str = "forward", **shape: int
    ) -> tuple[Measurement, ...]:
        """Return the measurements of an operator that have all the given sizes in their shape."""
        return tuple(
            one
            for one in self.measurements
            if (one.group, one.operator, one.kind) == (group, operator, kind)
            and all(one.shape.get(name) == size for name, size in shape.items())
        )

    def to_json(self) -> dict[str, object]:
        """Return the JSON object of the file; ``measured_profile_from_json`` reads it back."""
        raw: dict[str, object] = {"format": FORMAT, "version": VERSION}
        raw["subject"] = {
            **asdict(self.subject),
            "model": model_to_mapping(self.subject.model),
            "lora_targets": list(self.subject.lora_targets),
        }
        raw["machine"] = _without_none(asdict(self.machine))
        raw["sessions"] = [asdict(session) for session in self.sessions]
        raw["completed"] = list(self.completed)
        raw["skipped"] = [asdict(one) for one in self.skipped]
        raw["measurements"] = [
            {**_without_none(asdict(one)), "timing": _without_none(asdict(one.timing))}
            for one in self.measurements
        ]
        return raw


def write_measured_profile(path: Path, profile: MeasuredProfile) -> None:
    """Write the file so that a reader, or a crash, finds the old text or the new one, never half.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps(with_version(profile.to_json()), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _without_none(raw: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in raw.items() if value is not None}


def link_of(profile: MeasuredProfile) -> MeasuredLink | None:
    """Return bus bandwidths of the collectives that were timed; None where none of a cluster's was."""
    points: dict[tuple[str, int, int], dict[int, float]] = defaultdict(dict)
    for one in profile.measurements:
        ranks, per_node = one.shape.get("ranks", 1), one.shape.get("ranks_per_node", 1)
        known = one.group == "collectives" and one.operator in COLLECTIVES and ranks > 1
        if known and ranks % max(per_node, 1) == 0 and one.timing.median_s > 0 and one.moved_bytes > 0:
            place = one.operator, ranks // max(per_node, 1), ranks
            points[place][one.shape["payload_bytes"]] = one.moved_bytes / one.timing.median_s
    if not points:
        return None
    curves = [
        MeasuredCurve(
            collective=collective,
            num_nodes=num_nodes,
            num_ranks=num_ranks,
            payload_bytes=tuple(sorted(rates)),
            bus_bytes_per_s=tuple(rates[size] for size in sorted(rates)),
        )
        for (collective, num_nodes, num_ranks), rates in sorted(points.items())
    ]
    return MeasuredLink(curves=tuple(curves[:MAX_CURVES]), source="meshwright profile")
