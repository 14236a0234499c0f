"""One ingredient of the cost model taken out at a time, for ``benchmarks/ablation.py``.

The product has no switches for this: functions and methods are replaced while a measurement runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.collectives.collectives import Group, IndexArray, SlowdownTable
from meshwright.profiles.model import LayerKind
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.operators.operators import GpuOperators, operators_of
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Columns, FloatArray
from meshwright.solver.cost.context import Context, PassSeconds, context_of
from meshwright.solver.cost.evaluation import forget
from meshwright.solver.cost.launches import _smooth_maximum, launched, layer_floor_s
from meshwright.solver.cost.stages import RowPrices, Stages
from meshwright.solver.cost.ways import Ways
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import fill_share

Replacement = tuple[str, Callable[..., object] | property]  # where, and by what


def _no_passes(ctx: Context, *_rest: object, **_named: object) -> PassSeconds:
    """No time forward or backward."""
    return PassSeconds(forward=np.zeros_like(ctx.t), backward=np.zeros_like(ctx.t))


def _zeros(ctx: Context, *_rest: object) -> FloatArray:
    """No time."""
    return np.zeros_like(ctx.t)


def _whole(*_any: object) -> float:
    """A share of 1."""
    return 1.0


def _every_expert(_ctx: Context, moe: MoeSpec) -> float:
    """A token travels to each of its experts."""
    return float(moe.top_k)


def _never_blocking(
    ctx: Context, kind: LayerKind, busy: PassSeconds, floor_s: FloatArray, ahead_s: FloatArray | float = 0.0
) -> PassSeconds:
    """The CPU never waits for a kernel."""
    apart = replace(ctx, facts=replace(ctx.facts, launch_blocking=False))
    return launched(apart, kind, busy, floor_s, ahead_s)


def _never_waiting(ctx: Context, kind: LayerKind) -> FloatArray:
    """The CPU runs ahead of messages between stages."""
    return layer_floor_s(replace(ctx, facts=replace(ctx.facts, synchronous_transfers=False)), kind)


def _no_fill(columns: Columns) -> FloatArray:
    """A pipeline that needs no filling."""
    return np.zeros(len(columns))


def _as_ones(columns: Columns, _profile: Profile) -> FloatArray:
    """No straggler."""
    return np.ones(len(columns))


def _one_rail(group: Group) -> FloatArray:
    """A group that crosses islands on one rail, however many rails its ranks own there."""
    rate = group.fabric.lines.ring_bytes_per_s(np.ones_like(group.size), group.islands)
    return np.asarray((group.size - 1.0) / rate)


def _in_two_bytes(_: Context) -> tuple[float, float]:
    """Inputs and gradients as products in bf16 read them."""
    return 2.0, 2.0


def _at_line_rate(_table: SlowdownTable, row: IndexArray, part_bytes: FloatArray) -> FloatArray:
    """Messages of every size pass at line rate, in groups of every size."""
    return np.asarray(part_bytes + 0.0 * row)


def _mean_stage(prices: RowPrices, columns: Columns, stages: Stages) -> FloatArray:
    """The closed form of the step with the mean stage in place of the slowest."""
    phi, count = fill_share(columns), stages.rank_valid.sum(axis=1)
    each = (columns.num_microbatches - phi)[:, None] * stages.rank_time_s + stages.rank_tail_s
    mean = np.where(stages.rank_valid, each, 0.0).sum(axis=1) / count
    return np.asarray(
        prices.straggler * (phi * stages.rank_time_s.sum(axis=1) + mean) + prices.fixed_s, dtype=np.float64
    )


def _without_recompute(
    problem: Problem, columns: Columns, profile: Profile, ways: Ways | None = None
) -> Context:
    """Nothing is computed twice."""
    ctx = context_of(problem, columns, profile, ways)
    never = np.zeros(len(columns), dtype=bool)
    return replace(ctx, selective=never, full=never)


def _formulas(gpu: GpuSpec, network: str = "") -> GpuOperators:
    """Operators by formula where a GPU has tables."""
    return replace(operators_of(gpu, network), tables="")


# What goes, and what is replaced by what.
INGREDIENTS: Mapping[str, tuple[Replacement, ...]] = {
    "nothing": (),
    "CPU floor": (
        ("meshwright.solver.cost.price.layer_floor_s", _zeros),
        ("meshwright.solver.cost.price.head_floor_s", _zeros),
    ),
    "waiting for messages of stages": (("meshwright.solver.cost.price.layer_floor_s", _never_waiting),),
    "waiting for sizes of exchanges": (
        ("meshwright.solver.cost.launches._rounded_maximum", _smooth_maximum),
    ),
    "CUDA graphs": (("meshwright.solver.cost.launches.launches_left", _whole),),
    "blocking launches": (("meshwright.solver.cost.price.launched", _never_blocking),),
    "rates of attention kernels": (("meshwright.solver.cost.compute.kernel_rate", _whole),),
    "eager operators": (("meshwright.solver.cost.compute._eager_bytes", _zeros),),
    "recomputed modules": (("meshwright.solver.cost.price.replayed_s", _zeros),),
    "dispatchers (all-to-all)": (
        ("meshwright.solver.cost.communication.dispatched_copies", _every_expert),
    ),
    "permutation of tokens": (("meshwright.solver.cost.compute.permuted_bytes", _zeros),),
    "pipeline bubble": (("meshwright.solver.cost.stages.fill_share", _no_fill),),
    "tensor-parallel communication": (
        ("meshwright.solver.cost.price.tensor_parallel", _no_passes),
        ("meshwright.solver.cost.price.vocabulary_parallel", _no_passes),
    ),
    "expert all-to-all": (("meshwright.solver.cost.price.expert_parallel", _no_passes),),
    "rail hierarchy (one rail)": (
        ("meshwright.profiles.collectives.collectives.Group.ring_s_per_byte", property(_one_rail)),
    ),
    "collective tables (line rate)": (
        ("meshwright.profiles.collectives.collectives.SlowdownTable.at", _at_line_rate),
    ),
    "heaviest stage (the mean)": (("meshwright.solver.calibration.observations.objective_s", _mean_stage),),
    "logits, loss, embedding": (
        ("meshwright.solver.cost.price.head_seconds", _no_passes),
        ("meshwright.solver.cost.price.embedding_seconds", _no_passes),
        ("meshwright.solver.cost.price.vocabulary_parallel", _no_passes),
    ),
    "ZeRO-3 gathers": (("meshwright.solver.cost.price.weight_gathers", _no_passes),),
    "overlap of gradients": (("meshwright.solver.cost.step_end._hiding_s", _zeros),),
    "sequences gathered in 8 and 4 bits": (
        ("meshwright.solver.cost.communication._gathered_bytes", _in_two_bytes),
    ),
    "gathers by tensor": (("meshwright.solver.cost.step_end._copied_back_s", _zeros),),
    "operator tables (formulas)": (("meshwright.profiles.profile.operators_of", _formulas),),
    "straggler": (("meshwright.solver.cost.price.straggler_share", _as_ones),),
    "recomputation": (("meshwright.solver.cost.price.context_of", _without_recompute),),
}


@contextmanager
def without(ingredient: str) -> Iterator[None]:
    """The cost model without one ingredient, while it lasts."""
    with ExitStack() as stack:
        for place, replacement in INGREDIENTS[ingredient]:
            stack.enter_context(patch(place, replacement))
        forget()
        stack.callback(forget)
        yield
