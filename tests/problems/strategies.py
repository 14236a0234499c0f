"""Random priced rows for property tests, and every split that the space offers for one of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
from hypothesis import strategies as st

from meshwright.profiles.model import LayerShape
from meshwright.solver.configuration import (
    ALL_LAYERS,
    PER_STAGE,
    RECOMPUTE,
    SCHEDULES,
    SPLIT_BACKWARD,
    Columns,
)
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.schedules.schedule import V_SHAPED, plain_schedule, rank_of_chunk, schedules_of
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import offered

FULL = RECOMPUTE.index("full")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a row of a property test looks like."""

    pp: int
    vpp: int
    num_microbatches: int
    recompute: int
    recompute_layers: int
    schedule: str = ""  # empty: the plain one


@st.composite
def shapes(
    draw: st.DrawFn, num_layers: int, *, any_schedule: bool = False, per_stage: bool = False
) -> Shape:
    """Up to 4 ranks and 2 chunks each, few or many micro-batches, any recomputation that fits."""
    pp = draw(st.integers(1, min(4, num_layers)))
    vpp = draw(st.integers(1, 2)) if 1 < pp <= num_layers // 2 else 1
    m = pp * draw(st.integers(1, 4)) if vpp > 1 else draw(st.integers(1, 12))
    schedule = draw(st.sampled_from(schedules_of(pp, vpp))) if any_schedule else ""
    if vpp > 1 and schedule in ("looped_bfs", *V_SHAPED):
        m = draw(st.integers(2 * pp if schedule == "dualpipe_v" else 1, 16))
    recompute = draw(st.integers(0, FULL - int(schedule in SPLIT_BACKWARD)))
    counts = [ALL_LAYERS, *range(1, num_layers // (pp * vpp) + 1)]
    if per_stage and vpp == 1 < pp and schedule not in SPLIT_BACKWARD:
        recompute, counts = FULL, [PER_STAGE]
    layers = draw(st.sampled_from(counts)) if recompute == FULL else 0
    return Shape(
        pp=pp, vpp=vpp, num_microbatches=m, recompute=recompute, recompute_layers=layers, schedule=schedule
    )


@st.composite
def shapes_in_turn(draw: st.DrawFn, num_layers: int) -> Shape:
    """2 or 3 ranks of up to 4 chunks, with all backward passes of a chunk before those of the next one."""
    pp = draw(st.integers(2, max(min(3, num_layers // 2), 2)))
    vpp = draw(st.integers(2, min(num_layers // pp, 4)))
    schedule = draw(st.sampled_from(["looped_bfs", "interleaved_1f1b", *["zb_v"] * (vpp == 2)]))
    m = pp if schedule == "interleaved_1f1b" else draw(st.integers(1, pp))
    recompute = draw(st.sampled_from([0, FULL])) if schedule != "zb_v" else 0
    layers = draw(st.sampled_from([ALL_LAYERS, 1])) if recompute else 0
    return Shape(
        pp=pp, vpp=vpp, num_microbatches=m, recompute=recompute, recompute_layers=layers, schedule=schedule
    )


def columns_of(shapes: list[Shape]) -> Columns:
    """Columns of rows whose other axes are 1."""
    ones = np.ones(len(shapes), dtype=np.int64)
    axes = ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "data_parallel_size",
            "expert_tensor_parallel_size", "zero_shard_size", "micro_batch_size")  # fmt: skip

    def values(name: str) -> np.ndarray:
        return np.array([getattr(shape, name) for shape in shapes], dtype=np.int64)

    pp, vpp = values("pp"), values("vpp")
    schedule = [shape.schedule or plain_schedule(shape.pp, shape.vpp) for shape in shapes]
    return Columns.plain(
        **dict.fromkeys(axes, ones),
        sequence_parallel=0 * ones,
        zero_stage=0 * ones,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        num_microbatches=values("num_microbatches"),
        pipeline_schedule=np.array([SCHEDULES.index(name) for name in schedule]),
        recompute=values("recompute"),
        recompute_layers=values("recompute_layers"),
    )


def layout_of(moe_layers: list[bool]) -> LayerLayout:
    """A layout with a MoE layer wherever ``moe_layers`` says so."""
    there = [(LayerShape("dense"), not all(moe_layers)), (LayerShape("moe"), any(moe_layers))]
    kinds = tuple(one for one, some in there if some)
    one_hot = np.array(
        [[(one.kind == "moe") == moe for one in kinds] for moe in moe_layers], dtype=np.int64
    )
    zeros = np.zeros((1, len(kinds)), dtype=np.int64)
    return LayerLayout(kinds=kinds, cumulative=np.concatenate([zeros, np.cumsum(one_hot, axis=0)]))


def prices_of(shapes: list[Shape], num_kinds: int, rng: np.random.Generator) -> RowPrices:
    """Prices of the sizes that real ones have: milliseconds and hundreds of megabytes."""
    n, parts = len(shapes), num_kinds + 2

    def layers(low: float, high: float, ends: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
        values = rng.uniform(low, high, (n, parts))
        values[:, -2:] *= np.array(ends)
        return values

    pp = np.array([shape.pp for shape in shapes])
    full = np.array([shape.recompute == FULL for shape in shapes])
    forward = layers(0.8e-3, 1.6e-3, (0.3, 1.2))
    backward = layers(1.5e-3, 3.5e-3, (0.2, 1.2))
    activation = layers(100e6, 300e6, (0.1, 0.0))
    checkpoint = activation * np.array([0.1] * num_kinds + [1.0, 1.0])
    nothing = np.zeros((n, parts))
    split = np.array([shape.schedule in SPLIT_BACKWARD for shape in shapes])[:, None]
    message = np.where(pp > 1, rng.uniform(0.0, 2e-4, n), 0.0)
    return RowPrices(
        forward_s=forward,
        backward_s=backward,
        replay_s=forward * full[:, None] * np.array([1.0] * num_kinds + [0.0, 0.0]),
        weight_gradient_s=backward * rng.uniform(0.2, 0.6, backward.shape) * split
        if split.any()
        else nothing,
        tail_s=layers(0.0, rng.choice([1e-4, 5e-3]), (0.5, 0.5)),
        every_forward_s=message + rng.uniform(0.0, 1e-4, n),
        every_backward_s=message + rng.uniform(0.0, 2e-4, n),
        transfer_s=message,
        rank_tail_s=rng.uniform(0.0, 1e-3, n),
        fixed_s=rng.uniform(0.0, 1e-2, n),
        straggler=rng.uniform(1.0, 1.1, n),
        weights_bytes=layers(100e6, 200e6, (1.0, 1.0)),
        gradients_bytes=layers(100e6, 200e6, (1.0, 1.0)),
        reduced_gradients_bytes=nothing,
        ranks_in_turn=np.zeros(n),
        optimizer_bytes=layers(200e6, 500e6, (1.0, 1.0)),
        activation_bytes=activation,
        checkpoint_bytes=checkpoint,
        head_workspace_bytes=rng.uniform(0.0, 500e6, n),
        replay_workspace_bytes=np.where(full, activation[:, 0], 0.0),
        buffer_bytes=rng.uniform(0.0, 200e6, n),
        context_bytes=rng.uniform(0.0, 500e6, n),
        reserve=rng.uniform(1.0, 1.1, n),
        breakdown_s={"compute": nothing},
        tail_breakdown_s={"optimizer": nothing},
    )


@st.composite
def priced_rows(
    draw: st.DrawFn,
    *,
    max_layers: int = 9,
    max_rows: int = 1,
    mixed: bool | None = None,
    one_layout: bool = False,
    any_schedule: bool = False,
    per_stage: bool = False,
    in_turn: bool = False,
) -> Rows:
    """Rows of one problem, uniform or with two kinds of layers, under a tight or a loose memory.

    ``one_layout``: they are one row with prices that differ by up to 4 %. ``any_schedule``: not the plain
    ones alone. ``per_stage``: rows with one chunk a rank recompute by stage. ``in_turn``: chunks of a rank
    have whole gradients one after the other.
    """
    num_layers = draw(st.integers(4 if in_turn else 2, max_layers))
    kinds = draw(st.lists(st.booleans(), min_size=num_layers, max_size=num_layers))
    if mixed is False or (mixed is None and draw(st.booleans())):
        kinds = [False] * num_layers
    elif mixed:
        kinds = [False, True, *kinds[2:]]
    layout = layout_of(kinds)
    shape = shapes(num_layers, any_schedule=any_schedule, per_stage=per_stage)
    shape = shapes_in_turn(num_layers) if in_turn else shape
    rows = draw(st.lists(shape, min_size=1, max_size=max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    budget = draw(st.sampled_from([np.inf, 1.0001, 1.05, 1.2, 1.5, 0.8]))
    priced = Rows(
        columns=columns_of(rows),
        prices=prices_of(rows, len(layout.kinds), rng),
        layout=layout,
        budget_bytes=np.inf,
        uneven_stages=draw(st.sampled_from([True, True, True, False])),
    )
    priced = _jittered(priced, max_rows, rng) if one_layout else priced
    priced = _in_turn(priced, rng) if in_turn else priced
    return replace(priced, budget_bytes=budget * _even_peak_bytes(priced))


def _in_turn(rows: Rows, rng: np.random.Generator) -> Rows:
    """Rows with a schedule of ``shapes_in_turn``, with heavy gradients that reductions make lighter."""
    few = np.maximum(rows.p - rows.columns.num_microbatches + 1, 0)
    gradients = rows.prices.gradients_bytes * rng.choice([1.0, 5.0])
    prices = replace(
        rows.prices,
        ranks_in_turn=np.where(rows.in_a_v, few, rows.p).astype(np.float64),
        gradients_bytes=gradients,
        reduced_gradients_bytes=gradients * rng.uniform(0.0, 1.0, gradients.shape),
    )
    return replace(rows, prices=prices)


def _jittered(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    """The first row ``count`` times, forward and backward times up to 4 % apart."""
    many = rows.take([0] * count)
    shape = many.prices.forward_s.shape
    prices = replace(
        many.prices,
        forward_s=many.prices.forward_s * rng.uniform(0.98, 1.02, shape),
        backward_s=many.prices.backward_s * rng.uniform(0.98, 1.02, shape),
    )
    return replace(many, prices=prices)


def _even_peak_bytes(rows: Rows) -> float:
    """Largest peak of the first row under its even split: what a budget is measured against."""
    chunks, layers = int(rows.p[0] * rows.v[0]), rows.layout.num_layers
    split = tuple(layers // chunks + int(c < layers % chunks) for c in range(chunks))
    return float(rows.take([0]).stages([split]).peak_memory_bytes.max())


def offered_splits(rows: Rows, row: int) -> Iterator[tuple[int, ...]]:
    """Every split of a row that the space offers, whatever its memory."""
    pp, vpp, layers = int(rows.p[row]), int(rows.v[row]), rows.layout.num_layers
    chunks, smallest = pp * vpp, int(rows.smallest_chunk[row])
    some = {tuple(split) for split in offered(layers, chunks, smallest).tolist()}
    ranks = rank_of_chunk(rows.columns.take(np.array([row])), chunks)[0].tolist()
    for cut in combinations(range(1, layers), chunks - 1):
        edges = (0, *cut, layers)
        split = tuple(b - a for a, b in pairwise(edges))
        if min(split) < smallest or (not rows.uneven_stages and len(set(split)) > 1):
            continue
        offers = split in some if not rows.is_uniform else vpp == 1 or interleaves(split, ranks)
        if vpp > 1 and rows.uneven_stages and not offers:
            continue
        yield split


def interleaves(split: tuple[int, ...], ranks: list[int]) -> bool:
    """Whether chunks of a rank differ by at most one; the first and last of the model may be smaller."""
    for rank in set(ranks):
        own = [chunk for chunk, holder in enumerate(ranks) if holder == rank]
        largest = max(split[chunk] for chunk in own)
        if any(split[chunk] < largest - 1 for chunk in own if 0 < chunk < len(split) - 1):
            return False
    return True
