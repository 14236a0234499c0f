"""Layers as they were timed: what the cost model takes instead of its own price where it has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

from meshwright.profiles.measured.profile import MeasuredProfile
from meshwright.profiles.model import ModelSpec

Part = Literal["dense", "moe", "embedding", "head"]

# Operators of the group "layer" in a measured profile.
PART_OF: Mapping[str, Part] = {
    "dense_layer": "dense",
    "moe_layer": "moe",
    "embedding": "embedding",
    "head": "head",
}
ADDED_BYTES = 10.0  # that ``accumulate`` moves for a weight of 2 bytes: 2 + 4 read, 4 written
# Fields that change no layer's work; the vocabulary changes both ends'.
_NOT_OF_A_LAYER = (
    "name",
    "display_name",
    "layer_names",
    "source",
    "num_layers",
    "num_mtp_layers",
    "max_position_embeddings",
    "rotary_base",
    "rotary_local_base",
    "rotary_scaling",
    "norm_epsilon",
    "attention_scale",
    "embedding_scale",
    "residual_scale",
    "depth_scaled_residuals",
    "logit_scale",
)
_OF_THE_ENDS = ("vocab_size", "tied_embeddings", "head_bias", "embedding_norm", "logit_softcap")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One part of the model on one tensor-parallel shard, one micro-batch."""

    part: Part
    tensor_parallel_size: int
    micro_batch_size: int
    forward_s: float
    backward_s: float  # input and weight gradients, nothing recomputed
    optimizer_s: float | None = None  # one step over the part's unsharded weights
    issuing_s: float | None = None  # host time for both passes; None: part of the seconds above


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRatio:
    """Timed over priced seconds of one part on one tensor-parallel shard, one micro-batch."""

    part: Part
    tensor_parallel_size: int
    micro_batch_size: int
    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayers:
    """Measured parts of one model at one sequence length on one GPU type."""

    model: ModelSpec
    seq_length: int
    expert_parallel_size: int
    with_collectives: bool  # tensor-parallel collectives are inside the times
    times: tuple[LayerTime, ...]
    ratios: tuple[LayerRatio, ...] = ()  # against the profile that carries these layers
    lora_rank: int = 0  # of adapters next to frozen weights; 0: every weight was trained
    lora_targets: tuple[str, ...] = ()

    @classmethod
    def of(cls, profile: MeasuredProfile, *, accumulation_bytes: float = 0.0) -> MeasuredLayers | None:
        """Return the layers of a measured profile; None where it holds none with both passes.

        Args:
            profile: what was timed.
            accumulation_bytes: what a framework moves to add one weight's gradient to an fp32 buffer. A
                backward pass takes that share of the timed addition, which moves ``ADDED_BYTES``, longer.
        """
        found: dict[tuple[Part, int, int], dict[str, float]] = defaultdict(dict)
        issuing: dict[tuple[Part, int, int], dict[str, float]] = defaultdict(dict)
        for one in profile.measurements:
            if one.group == "layer" and one.operator in PART_OF:
                sizes = one.shape.get("tensor_parallel_size", 1), one.shape.get("micro_batch_size", 1)
                shard = (PART_OF[one.operator], *sizes)
                found[shard][one.kind] = one.timing.median_s
                if one.timing.host_s is not None:
                    issuing[shard][one.kind] = one.timing.host_s
        added = accumulation_bytes / ADDED_BYTES
        times = tuple(
            LayerTime(
                part=part,
                tensor_parallel_size=tp,
                micro_batch_size=micro_batch,
                forward_s=passes["forward"],
                backward_s=passes["backward"] + added * passes.get("accumulate", 0.0),
                optimizer_s=passes.get("optimizer"),
                issuing_s=_both_passes(issuing[(part, tp, micro_batch)], added),
            )
            for (part, tp, micro_batch), passes in sorted(found.items())
            if {"forward", "backward"} <= passes.keys()
        )
        if not times:
            return None
        return cls(
            model=profile.subject.model,
            seq_length=profile.subject.seq_length,
            expert_parallel_size=profile.subject.expert_parallel_size,
            with_collectives=profile.subject.with_collectives,
            times=times,
            lora_rank=profile.subject.lora_rank,
            lora_targets=profile.subject.lora_targets,
        )

    def trains(self, lora_rank: int, lora_targets: tuple[str, ...]) -> bool:
        """Return whether the same weights were trained: all of them, or the same adapters."""
        if lora_rank != self.lora_rank:
            return False
        return not lora_rank or set(lora_targets) == set(self.lora_targets)

    def has_part(self, part: str, model: ModelSpec) -> bool:
        """Return whether a part of ``model`` is of the shape that was timed."""
        ignored = _NOT_OF_A_LAYER if part in ("embedding", "head") else (*_NOT_OF_A_LAYER, *_OF_THE_ENDS)
        return _shape(model, ignored) == _shape(self.model, ignored)

    def curve(self, part: str, tensor_parallel_size: int) -> tuple[LayerTime, ...]:
        """Return the times of a part at one tensor-parallel size, by micro-batch."""
        return tuple(
            time
            for time in self.times
            if (time.part, time.tensor_parallel_size) == (part, tensor_parallel_size)
        )

    @property
    def with_issuing(self) -> bool:
        """Return whether the host's time to issue each part was measured as well."""
        return all(time.issuing_s is not None for time in self.times)

    def issuing_s(self, part: str, tensor_parallel_size: int) -> float:
        """Return the median time to issue both passes over micro-batches: tokens do not change it."""
        return median(time.issuing_s or 0.0 for time in self.curve(part, tensor_parallel_size))

    def ratios_of(self, part: str, tensor_parallel_size: int) -> tuple[LayerRatio, ...]:
        """Return a part's ratios of measured to priced time at one tensor-parallel size, by micro-batch."""
        shard = (part, tensor_parallel_size)
        return tuple(one for one in self.ratios if (one.part, one.tensor_parallel_size) == shard)


def _both_passes(seconds: Mapping[str, float], added: float) -> float | None:
    """Sum the seconds of both passes and of a share of accumulation; None without both passes."""
    if not {"forward", "backward"} <= seconds.keys():
        return None
    return seconds["forward"] + seconds["backward"] + added * seconds.get("accumulate", 0.0)


def _shape(model: ModelSpec, ignored: tuple[str, ...]) -> dict[str, object]:
    return {name: value for name, value in asdict(model).items() if name not in ignored}
