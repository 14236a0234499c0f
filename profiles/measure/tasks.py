"""Everything that one start measures, as tasks in the order they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from profiles.measure.attention import attention_shape, measure_attention
from profiles.measure.collectives import COLLECTIVES, measure_collective, payloads_of
from profiles.measure.device import Device
from profiles.measure.gemm import measure_gemm
from profiles.measure.layer_passes import measure_layer
from profiles.measure.memory_bound import measure_memory_bound, memory_bound_makers
from profiles.measure.ranks import Ranks
from profiles.measure.shard import Shard
from profiles.measure.task import Label, Task
from profiles.measure.timing import Effort
from profiles.measured_profile import MeasuredGroup, Measurement, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be measured."""

    subject: Subject
    tensor_parallel_sizes: tuple[int, ...]
    micro_batch_sizes: tuple[int, ...]
    groups: tuple[MeasuredGroup, ...]

    def shards(self) -> tuple[Shard, ...]:
        """Every shard of the model.

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
            )
            for tensor_parallel_size, micro_batch_size in product(
                self.tensor_parallel_sizes, self.micro_batch_sizes
            )
        )


def compute_tasks(wanted: Wanted) -> tuple[Task, ...]:
    """What one process measures by itself: operators first, whole layers last."""
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


def collective_tasks(wanted: Wanted, ranks: Ranks, device: Device) -> tuple[Task, ...]:
    """What all processes measure together; nothing where there is only one."""
    if "collectives" not in wanted.groups or ranks.world_size == 1:
        return ()
    payloads = payloads_of(device.kind, quick=wanted.subject.quick)
    return tuple(
        _collective_task(operator, payload_bytes, ranks)
        for operator in COLLECTIVES
        for payload_bytes in payloads
    )


def _collective_task(operator: str, payload_bytes: int, ranks: Ranks) -> Task:
    name = f"collectives/{operator}/{ranks.words()}/{payload_bytes}"

    def measure(device: Device, effort: Effort) -> list[Measurement]:
        return measure_collective(operator, payload_bytes, ranks, device, effort, task=name)

    return Task(name=name, group="collectives", measure=measure)


def _label(group: MeasuredGroup, operator: str, shard: Shard, shape: dict[str, int]) -> Label:
    place = f"tp{shard.tensor_parallel_size}/mbs{shard.micro_batch_size}"
    return Label(
        task=f"{group}/{operator}/{place}", group=group, operator=operator, shape=shard.sizes() | shape
    )


def _gemm_tasks(shard: Shard) -> Iterator[Task]:
    for gemm in shard.gemms():
        shape = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "experts": gemm.experts}
        label = _label("gemm", gemm.operator, shard, shape)
        yield Task(name=label.task, group="gemm", measure=partial(measure_gemm, gemm, label))


def _attention_tasks(shard: Shard) -> Iterator[Task]:
    label = _label("attention", "attention", shard, attention_shape(shard))
    yield Task(name=label.task, group="attention", measure=partial(measure_attention, shard, label))


def _memory_bound_tasks(shard: Shard) -> Iterator[Task]:
    for operator, make in memory_bound_makers(shard.model).items():
        label = _label("memory_bound", operator, shard, {"tokens": shard.tokens})
        measure = partial(measure_memory_bound, make, shard, label)
        yield Task(name=label.task, group="memory_bound", measure=measure)


def _layer_tasks(shard: Shard) -> Iterator[Task]:
    for kind in sorted(set(shard.model.layer_kinds())):
        label = _label("layer", f"{kind}_layer", shard, {"seq_length": shard.seq_length})
        yield Task(name=label.task, group="layer", measure=partial(measure_layer, shard, kind, label))
