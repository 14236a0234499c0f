"""Configurations as columns: a structure of arrays, one entry per configuration.

The scalar answer is the same code on a column of one, so there is one cost model, one memory
model and one rule set. Words are stored as small integers (``SCHEDULES``, ``RECOMPUTE``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.plan import Configuration
from solver.rank_orders import RANK_ORDERS

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
