"""What the request may limit: pins, bounds, what is allowed, how long, how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from profiles.optimizers import OPTIMIZERS
from profiles.reliability import Reliability
from solver.columns import CONTEXT_MODES, OFFLOAD, RECOMPUTE, SCHEDULES
from solver.plan import Configuration
from solver.rank_orders import RANK_ORDERS

Objective = Literal["step_time", "tokens_per_s_per_gpu", "gpu_hours_per_token", "energy_per_token"]
Certify = Literal["none", "cp-sat", "cp-sat-all"]

# The variables that a request may pin, forbid or bound.
INTEGER_VARIABLES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "virtual_pipeline_size",
    "context_parallel_size",
    "expert_parallel_size",
    "expert_tensor_parallel_size",
    "data_parallel_size",
    "zero_stage",
    "zero_shard_size",
    "micro_batch_size",
    "num_microbatches",
    "recompute_layers",
)
WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute_granularity": RECOMPUTE,
    "pipeline_schedule": SCHEDULES,
    "offload": OFFLOAD,
    "context_parallel_mode": CONTEXT_MODES,
    "rank_order": RANK_ORDERS,
}
LOGICAL_VARIABLES = ("sequence_parallel",)
VARIABLES = (*INTEGER_VARIABLES, *WORDS, *LOGICAL_VARIABLES)
# What follows from the others; constraints may name it.
DERIVED_VARIABLES = ("num_gpus", "global_batch_size")

ALLOWED = ("offload", "fp8", *OPTIMIZERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Limits of one search; already checked by the edge that built it."""

    top_k: int = 10
    certify: Certify = "cp-sat"
    time_limit_s: float = 30.0
    seed: int = 0
    objective: Objective = "step_time"
    gpus: Literal["all", "fewest"] = "all"  # fewest: on the smallest number of nodes that has a plan
    num_nodes: tuple[int, ...] = ()  # numbers of nodes that a plan may use; empty: all of them
    reserve_nodes: int = 0  # kept spare
    batch_sizes: tuple[int, ...] = ()  # global batches in question beside the workload's, the largest
    batch_ramp: tuple[tuple[int, int], ...] = ()  # (batch, until so many tokens) before the workload's
    total_tokens: int | None = None  # of the whole run
    deadline_days: float | None = None  # for all of them, interruptions counted
    gpu_hour_price: float | None = None  # in the client's currency
    pareto: bool = False  # the front of step time and peak memory as well
    baseline: Configuration | None = None  # the client's own, ranked beside the plans
    reliability: Reliability = field(default_factory=Reliability)
    max_out_of_memory_probability: float = 0.01
    pin: Mapping[str, int | str] = field(default_factory=dict)
    forbid: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # inclusive
    stage_layers: tuple[int, ...] = ()  # the only split; empty: the search finds it
    allow: tuple[str, ...] = ()  # of ALLOWED: searched beside what is asked for
    constraints: tuple[str, ...] = ()  # expressions of ``solver.expressions``; each must hold

    @property
    def named(self) -> frozenset[str]:
        """Variables that a pin, a prohibition or a bound limits."""
        return frozenset({*self.pin, *self.forbid, *self.bounds})
