"""Layer times of other tools as a measured profile, which the cost model prices with.

Sources that list a model's layers one by one begin with the embedding and end with the head; a head
whose times no GPU of that kind could reach was not timed, and is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.foreign.records import LayerProfile, LayerRecord
from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.measured.profile import (
    Dtype,
    Machine,
    MeasuredProfile,
    Measurement,
    Session,
    Subject,
    Timing,
)
from meshwright.profiles.model import ModelSpec

BACKWARD_OF_FORWARD = 2.0  # two products for the forward pass's one: what a source without it takes
_NOT_STATED = "not stated by the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What the importer was told beside the file."""

    model: ModelSpec
    gpu: GpuSpec
    seq_length: int
    dtype: Dtype
    with_collectives: bool
    session: Session


def measured_from_layers(source: LayerProfile, taken: Taken) -> tuple[MeasuredProfile, tuple[str, ...]]:
    """The measured profile of a source's layers, and what was left out or assumed, a sentence each.

    Raises:
        InvalidProblemError: the file holds no layer of that model.
    """
    if taken.model.moe is not None:
        raise InvalidProblemError.of("--model", "has experts; foreign layer times are read as dense layers")
    groups: dict[tuple[int, int], list[LayerRecord]] = defaultdict(list)
    notes: dict[str, None] = {}
    for record in source.layers or _records_of_passes(source):
        if record.seq_length in (None, taken.seq_length):
            groups[(record.tensor_parallel_size, record.micro_batch_size)].append(record)
        else:
            notes[
                f"layers at sequence length {record.seq_length} are ignored: asked for {taken.seq_length}"
            ] = None
    measurements: list[Measurement] = []
    for shard, records in sorted(groups.items()):
        for operator, times in _parts(records, taken, shard, notes):
            measurements += passes_of(operator, times, seq_length=taken.seq_length, shard=shard)
    if not measurements:
        raise InvalidProblemError.of("/layers", "the file holds no layer times for this model")
    return measured_profile_of(tuple(measurements), taken), tuple(notes)


def _records_of_passes(source: LayerProfile) -> list[LayerRecord]:
    """One layer from passes of different depth, where the source has no layers of their own."""
    places = sorted({(entry.micro_batch_size, entry.seq_length) for entry in source.passes})
    seconds = {
        place: source.layer_forward_s(micro_batch_size=place[0], seq_length=place[1]) for place in places
    }
    return [
        LayerRecord(
            layer=0,
            tensor_parallel_size=1,
            micro_batch_size=batch,
            seq_length=seq,
            forward_s=seconds[batch, seq],
        )
        for batch, seq in places
        if (seconds[batch, seq] or 0.0) > 0.0
    ]


def measured_profile_of(measurements: tuple[Measurement, ...], taken: Taken) -> MeasuredProfile:
    """Measurements of another tool with what was told beside them."""
    return MeasuredProfile(
        subject=Subject(
            model=taken.model,
            seq_length=taken.seq_length,
            dtype=taken.dtype,
            expert_parallel_size=1,
            quick=False,
            with_collectives=taken.with_collectives,
        ),
        machine=Machine(
            kind="cuda",
            device=taken.gpu.display_name,
            memory_bytes=taken.gpu.memory_bytes,
            host_cpu=_NOT_STATED,
            torch=_NOT_STATED,
            gpu=taken.gpu.slug,
        ),
        sessions=(taken.session,),
        completed=tuple(dict.fromkeys(one.task for one in measurements)),
        measurements=measurements,
    )


def _parts(
    records: Sequence[LayerRecord], taken: Taken, shard: tuple[int, int], notes: dict[str, None]
) -> Iterator[tuple[str, dict[str, float]]]:
    """The parts of the model among a shard's layers: operator and seconds by pass."""
    ordered = sorted(records, key=lambda record: record.layer)
    count = taken.model.num_layers
    if len(ordered) < count:
        notes[f"the source times {len(ordered)} kinds of layers: their median stands for all"] = None
        yield "dense_layer", _median(ordered, notes)
        return
    before = 1 if len(ordered) > count else 0
    yield "dense_layer", _median(ordered[before : before + count], notes)
    if before:
        yield "embedding", _median(ordered[:1], notes)
    after = ordered[before + count :]
    if after:
        head = _sum([_median([record], notes) for record in after])
        if head["forward"] >= _least_head_s(taken, shard):
            yield "head", head
        else:
            notes[
                "the last layer is faster than the head's matrix product can be: not taken as the head"
            ] = None


def _least_head_s(taken: Taken, shard: tuple[int, int]) -> float:
    """Seconds of the head's matrix product at the GPU's peak: 2 tokens * vocabulary * hidden / tp."""
    tp, micro_batch = shard
    flops = 2.0 * micro_batch * taken.seq_length * taken.model.vocab_size * taken.model.hidden_size / tp
    return flops / taken.gpu.peak_bf16_flops


def _median(records: Sequence[LayerRecord], notes: dict[str, None]) -> dict[str, float]:
    """Median seconds of equal layers by pass."""
    both = [_both_passes(record, notes) for record in records]
    passes = {"forward": median(f for f, _ in both), "backward": median(b for _, b in both)}
    updates = [record.update_s for record in records if record.update_s]
    return passes | ({"optimizer": median(updates)} if updates else {})


def _both_passes(record: LayerRecord, notes: dict[str, None]) -> tuple[float, float]:
    """Return forward and backward seconds; a missing backward pass is taken as twice the forward."""
    forward = record.forward_s or 0.0
    if record.backward_s is None:
        notes["the backward pass is not timed: taken as twice the forward pass"] = None
        return forward, BACKWARD_OF_FORWARD * forward
    return forward, record.backward_s


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of parts that follow each other."""
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, seconds in part.items():
            total[name] += seconds
    return dict(total)


def passes_of(
    operator: str, times: Mapping[str, float], *, seq_length: int, shard: tuple[int, int]
) -> list[Measurement]:
    """The measurements of one part on one shard (tensor-parallel size, micro-batch), seconds by pass."""
    tp, micro_batch = shard
    shape = {"tensor_parallel_size": tp, "micro_batch_size": micro_batch, "seq_length": seq_length}
    return [
        Measurement(
            task=f"layer/{operator}/tp{tp}/mbs{micro_batch}",
            group="layer",
            operator=operator,
            kind=kind,
            shape=shape,
            timing=Timing(median_s=seconds, p10_s=seconds, p90_s=seconds, repeats=1),
        )
        for kind, seconds in times.items()
    ]
