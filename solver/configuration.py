"""Configurations as columns: a structure of arrays, one entry per configuration.

The scalar answer is the same code on a column of one, so there is one cost model, one memory
model and one rule set. Words are stored as small integers (``SCHEDULES``, ``RECOMPUTE``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Where one pipeline stage of a mixed cluster runs, with all its data-parallel replicas."""

    group: str  # node group, as ``ClusterSpec.group_names`` calls it
    num_gpus: int
    num_nodes: float  # 0.5: half a node
    tensor_parallel_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How one training job is split over GPUs; 1 is off."""

    tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    pipeline_parallel_size: int = 1
    virtual_pipeline_size: int = 1  # model chunks per rank
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    zero_shard_size: int = 1  # ranks that share one shard set; 1 for stage 0
    micro_batch_size: int = 1  # sequences
    num_microbatches: int = 1  # per pipeline and step
    pipeline_schedule: str = "none"
    recompute_granularity: str = "none"  # none, selective (core attention), full
    recompute_layers: int = 0  # the first so many of each chunk; all of the model's: every layer
    offload: str = "none"  # to the host: none, optimizer, activations, optimizer+activations
    context_parallel_mode: str = "ring"  # or all_to_all: heads are exchanged for tokens
    rank_order: str = "tp-cp-dp-pp"  # mesh axes, fastest first: which of them crosses which link
    stage_layers: tuple[int, ...] = ()  # pp * vpp entries: layers of each chunk in model order
    stage_recompute_layers: tuple[int, ...] = ()  # of each chunk, some above 0; empty: all alike
    stage_groups: tuple[StageGroup, ...] = ()  # mixed cluster; tensor_parallel_size is the largest stage's
    replicas: tuple[Configuration, ...] = ()  # unlike ones: each class with its own groups and share

    @property
    def is_placed(self) -> bool:
        """Whether its stages stand on node groups that it names."""
        return bool(self.stage_groups or self.replicas)

    @property
    def num_gpus(self) -> int:
        """GPUs used: tp * pp * cp * dp, of all stages and classes."""
        if self.is_placed:
            return sum(one.num_gpus for one in self.replicas or self.stage_groups)
        tp, pp = self.tensor_parallel_size, self.pipeline_parallel_size
        return tp * pp * self.context_parallel_size * self.data_parallel_size

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        if self.replicas:
            return sum(one.global_batch_size for one in self.replicas)
        return self.data_parallel_size * self.micro_batch_size * self.num_microbatches

    def layers_of_rank(self, stage: int) -> tuple[int, ...]:
        """Layers of each chunk that rank ``stage`` holds; chunk c sits on rank c mod pp, or in a V."""
        pp = self.pipeline_parallel_size
        if self.pipeline_schedule in ("zb_v", "dualpipe_v") and self.virtual_pipeline_size > 1:
            return (self.stage_layers[stage], self.stage_layers[2 * pp - 1 - stage])
        return self.stage_layers[stage::pp]


def plan_id_of(problem_digest: str, config: Configuration) -> str:
    """A stable name: the first 12 hex digits of SHA-256 over problem and configuration."""
    values = {name: v for name, v in asdict(config).items() if name not in _LATER or v != _DEFAULTS[name]}
    text = problem_digest + json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# What was added to configurations later is part of their name only where it is used.
_LATER = ("context_parallel_mode", "rank_order", "stage_groups", "replicas")
_DEFAULTS = asdict(Configuration())


def configuration_from_json(raw: Mapping[str, Any]) -> Configuration:
    """The Configuration of ``Plan.to_json()["config"]``."""
    values = dict(raw)
    values |= {name: tuple(values.get(name, ())) for name in ("stage_layers", "stage_recompute_layers")}
    values["stage_groups"] = tuple(StageGroup(**dict(one)) for one in values.get("stage_groups", ()))
    values["replicas"] = tuple(configuration_from_json(one) for one in values.get("replicas", ()))
    return Configuration(**values)


# --------------------------------------------------------------------------------------------------
# Placed configurations made whole: what follows from sizes, groups and split.


def settled(cluster: ClusterSpec, config: Configuration, batch: int) -> Configuration:
    """One pipeline on ``batch`` sequences with everything that follows from where its stages stand."""
    ranks = config.data_parallel_size * config.context_parallel_size
    gpus_of = dict(zip(cluster.group_names, cluster.distinct_groups, strict=True))
    stages = tuple(
        StageGroup(
            group=one.group,
            num_gpus=one.tensor_parallel_size * ranks,
            num_nodes=one.tensor_parallel_size * ranks / gpus_of[one.group].gpus_per_node,
            tensor_parallel_size=one.tensor_parallel_size,
        )
        for one in config.stage_groups
    )
    largest = max(one.tensor_parallel_size for one in stages)
    zero = config.zero_stage if ranks > 1 else 0
    return replace(
        config,
        tensor_parallel_size=largest,
        sequence_parallel=largest > 1,
        pipeline_parallel_size=len(stages),
        zero_stage=zero,
        zero_shard_size=ranks if zero else 1,
        num_microbatches=max(batch // (config.data_parallel_size * config.micro_batch_size), 1),
        pipeline_schedule="none" if len(stages) == 1 else "1f1b",
        recompute_layers=sum(config.stage_layers) if config.recompute_granularity == "full" else 0,
        stage_groups=stages,
    )


def joined(classes: Sequence[Configuration]) -> Configuration:
    """Classes of unlike replicas as one configuration."""
    replicas = sum(one.data_parallel_size for one in classes)
    return replace(classes[0], data_parallel_size=replicas, stage_groups=(), replicas=tuple(classes))


# --------------------------------------------------------------------------------------------------
# Orders in which ranks are numbered along the axes of the mesh, fastest first.
#
# Tensor-parallel ranks come first in every one of them: they talk in every layer. Experts are split over
# the innermost ranks of a stage, whichever axes those belong to.


# Every order of the other three; the first is the launchers' own.
RANK_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp")


def plain_order(config: Configuration) -> str:
    """The first order that numbers every rank as the configuration's own does."""
    sizes = {
        "cp": config.context_parallel_size,
        "dp": config.data_parallel_size,
        "pp": config.pipeline_parallel_size,
    }

    def real(order: str) -> list[str]:
        """Its axes that have more than one rank."""
        return [axis for axis in order.split("-") if sizes.get(axis, 1) > 1]

    own = real(config.rank_order)
    return next((order for order in RANK_ORDERS if real(order) == own), config.rank_order)


IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SCHEDULES = (
    "none", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zb",
    "zb_1p", "zb_2p", "zb_h1", "zb_h2", "zb_v", "dualpipe_v",
)  # fmt: skip
RECOMPUTE = ("none", "selective", "full")
OFFLOAD = ("none", "optimizer", "activations", "optimizer+activations")  # bits: 1 optimizer, 2 activations
CONTEXT_MODES = ("ring", "all_to_all")
RING = CONTEXT_MODES.index("ring")
ALL_LAYERS = 2**20  # recompute_layers of a row that recomputes every layer, whatever the split
PER_STAGE = ALL_LAYERS + 1  # the same of a row with a count of its own for every stage: the least that fits


def _nothing() -> IntArray:
    """A column that nobody filled in."""
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Arrays of shape (n,), int64; names are the glossary's."""

    tensor_parallel_size: IntArray
    sequence_parallel: IntArray  # 0 | 1
    pipeline_parallel_size: IntArray
    virtual_pipeline_size: IntArray  # chunks per rank; 1: not interleaved
    context_parallel_size: IntArray
    expert_parallel_size: IntArray
    expert_tensor_parallel_size: IntArray
    data_parallel_size: IntArray
    zero_stage: IntArray
    zero_shard_size: IntArray  # ranks that share one shard set
    micro_batch_size: IntArray
    num_microbatches: IntArray
    pipeline_schedule: IntArray  # index into SCHEDULES
    recompute: IntArray  # index into RECOMPUTE
    recompute_layers: IntArray  # of each chunk, for "full"; ALL_LAYERS: every one; else 0
    offload: IntArray = field(default_factory=_nothing)  # index into OFFLOAD
    context_parallel_mode: IntArray = field(default_factory=_nothing)  # index into CONTEXT_MODES
    rank_order: IntArray = field(default_factory=_nothing)  # index into RANK_ORDERS

    def __post_init__(self) -> None:
        """Unless said otherwise nothing is offloaded, attention runs in rings, stages are outermost."""
        for name in ("offload", "context_parallel_mode", "rank_order"):
            if len(getattr(self, name)) != len(self):
                object.__setattr__(self, name, np.zeros(len(self), dtype=np.int64))

    def __len__(self) -> int:
        """Number of configurations."""
        return len(self.tensor_parallel_size)

    @property
    def num_gpus(self) -> IntArray:
        """GPUs used: tp * pp * cp * dp, shape (n,)."""
        return (
            self.tensor_parallel_size * self.pipeline_parallel_size
            * self.context_parallel_size * self.data_parallel_size
        )  # fmt: skip

    @property
    def global_batch_size(self) -> IntArray:
        """Sequences per optimizer step, shape (n,)."""
        return self.data_parallel_size * self.micro_batch_size * self.num_microbatches

    def take(self, index: IntArray | BoolArray | slice) -> Columns:
        """The configurations at ``index``, in that order."""
        return Columns(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """All parts, one after the other."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})

    @classmethod
    def of(cls, configurations: Sequence[Configuration]) -> Columns:
        """Columns of whole configurations; their splits are not part of a row.

        A ``recompute_layers`` that covers every layer of every chunk becomes ``ALL_LAYERS``; a row says so
        by the number of all layers (``configuration``).
        """
        rows: dict[str, list[int]] = {f.name: [] for f in fields(cls)}
        for configuration in configurations:
            every = configuration.recompute_layers >= max(configuration.stage_layers)
            for name, values in rows.items():
                if name in _WORDS:
                    values.append(_WORDS[name].index(getattr(configuration, name)))
                elif name == "recompute":
                    values.append(RECOMPUTE.index(configuration.recompute_granularity))
                elif name == "recompute_layers":
                    full = configuration.recompute_granularity == "full"
                    alike = ALL_LAYERS if every else configuration.recompute_layers
                    values.append(
                        (PER_STAGE if configuration.stage_recompute_layers else alike) if full else 0
                    )
                else:
                    values.append(int(getattr(configuration, name)))
        return cls(**{name: np.array(values, dtype=np.int64) for name, values in rows.items()})

    def configuration(
        self, row: int, stage_layers: Sequence[int], replayed: Sequence[int] = ()
    ) -> Configuration:
        """Row ``row`` with a split; ``replayed`` are its recomputed layers where each stage has its own."""

        def get(name: str) -> int:
            return int(getattr(self, name)[row])

        layers = max(replayed) if replayed else min(get("recompute_layers"), sum(stage_layers))
        sizes: dict[str, Any] = {name: get(name) for name in _PLAIN}
        return Configuration(
            **sizes,
            sequence_parallel=bool(get("sequence_parallel")),
            pipeline_schedule=SCHEDULES[get("pipeline_schedule")],
            recompute_granularity=RECOMPUTE[get("recompute")],
            recompute_layers=layers,
            offload=OFFLOAD[get("offload")],
            context_parallel_mode=CONTEXT_MODES[get("context_parallel_mode")],
            rank_order=RANK_ORDERS[get("rank_order")],
            stage_layers=tuple(int(count) for count in stage_layers),
            stage_recompute_layers=tuple(int(count) for count in replayed),
        )


_WORDS = {
    "pipeline_schedule": SCHEDULES, "offload": OFFLOAD, "context_parallel_mode": CONTEXT_MODES,
    "rank_order": RANK_ORDERS,
}  # fmt: skip
_PLAIN = (
    "tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size",
    "context_parallel_size", "expert_parallel_size", "expert_tensor_parallel_size",
    "data_parallel_size", "zero_stage", "zero_shard_size", "micro_batch_size", "num_microbatches",
)  # fmt: skip
