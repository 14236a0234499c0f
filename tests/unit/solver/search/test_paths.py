"""Averages of longest paths: boxes hold every split, and their bound sees the layers of one large chunk."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import SCHEDULES
from meshwright.solver.cost.stages import OF_EVERY_RANK
from meshwright.solver.schedules.schedule import AUTOMATIC
from meshwright.solver.schedules.simulate import finish_of_many_s, longest_paths, waves_of
from meshwright.solver.search.branch import SimulationBudget
from meshwright.solver.search.fill import least_bound_s
from meshwright.solver.search.paths import PathShape, are_averaged, least_average_s, most_of_chunks
from meshwright.solver.search.rows import Rows
from tests.problems.strategies import Shape, columns_of, layout_of, priced_rows, prices_of
from tests.property.exhaustive import exhaust

STATIC = [name for name in SCHEDULES if name != "none" and name not in AUTOMATIC]


def some_rows(layers: int, *, pp: int, vpp: int, m: int, speeds: Sequence[float] = (1.0,)) -> Rows:
    """Interleaved rows: 1 ms forward and 2 ms backward a layer at speed 1, nothing else takes time."""
    shapes = [Shape(pp=pp, vpp=vpp, num_microbatches=m, recompute=0, recompute_layers=0)] * len(speeds)
    prices = prices_of(shapes, 1, np.random.default_rng(0))
    nothing = {name: 0.0 * getattr(prices, name) for name in ("tail_s", *OF_EVERY_RANK)}
    layer = np.array([[1e-3 / speed, 0.0, 0.0] for speed in speeds])
    prices = replace(
        prices,
        **nothing | {"straggler": np.ones(len(speeds))},
        forward_s=layer,
        backward_s=2.0 * layer,
    )
    layout = layout_of([False] * layers)
    return Rows(columns=columns_of(shapes), prices=prices, layout=layout, budget_bytes=np.inf)


@given(st.sampled_from(STATIC), st.integers(2, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_passes_on_a_longest_path_add_up_to_the_step(schedule: str, pp: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vpp = 1 if schedule in ("1f1b", "gpipe", "zb_h1", "zb_h2") else 2
    m, splits = 2 * pp, schedule.startswith(("zb", "dualpipe")) or schedule == "interleaved_zb"
    passes = rng.uniform(0.5, 2.0, (5, (3 if splits else 2) * pp * vpp))
    tails = rng.uniform(0.0, 2.0, (5, pp))
    counts, rank = longest_paths(passes, tails, waves_of(pp, vpp, m, schedule))
    forward, backward, *weight = np.split(passes, 3 if splits else 2, axis=1)
    finish = finish_of_many_s(
        forward, sum(weight, backward), weight_s=weight[0] if splits else None,
        pp=pp, num_microbatches=m, schedule=schedule,
    )  # fmt: skip
    if schedule.startswith("zb"):  # counted from each rank's own start: here from the first rank's
        finish = finish + np.cumsum(forward[:, :pp], axis=1) - forward[:, :pp]
    step = (counts * passes).sum(axis=1) + tails[np.arange(5), rank]
    assert np.allclose(step, (finish + tails).max(axis=1), rtol=1e-12)


@given(priced_rows(mixed=False, any_schedule=True), st.floats(1.0, 1.5))
@settings(max_examples=60, deadline=None)
def test_every_split_that_is_fast_enough_is_in_one_box_however_they_are_divided(
    rows: Rows, slower: float
) -> None:
    if not are_averaged(rows)[0]:
        return
    every = exhaust(replace(rows, budget_bytes=np.inf), 0)
    limit_s = slower * float(every.simulated_s.min())
    boxes, most = PathShape.of(rows).boxes(), most_of_chunks(rows, limit_s)
    able = [split for split, s in zip(every.splits, every.simulated_s, strict=True) if s <= limit_s]
    while True:
        within = boxes.within(most)
        for split in able:
            inside = (within.low <= np.array(split)) & (np.array(split) <= within.high)
            assert inside.all(axis=1).sum() == 1
        if (boxes.start == len(most)).all():
            return
        open_ = np.flatnonzero(boxes.start < len(most))
        parts, parent = boxes.divided(open_)
        assert set(parent) <= set(open_)
        boxes = boxes.take(np.flatnonzero(boxes.start == len(most))).joined(parts)


@given(priced_rows(mixed=False, any_schedule=True), st.floats(0.9, 1.2))
@settings(max_examples=60, deadline=None)
def test_averages_of_paths_bound_every_split(rows: Rows, share: float) -> None:
    every = exhaust(rows, 0)
    if not len(every.splits) or not are_averaged(rows)[0]:
        return
    fastest = float(every.simulated_s.min())
    three = rows.take([0, 0, 0])  # the others begin with the averages of the first
    found = least_average_s(three, np.zeros(3), share * fastest, SimulationBudget(2**26))
    assert 0.0 < found <= min(share, 1.0 + 1e-12) * fastest


def test_the_bound_sees_that_some_chunk_of_two_layers_works_all_micro_batches_in_sequence() -> None:
    # 24 layers on 6 ranks of 3 chunks: some chunk holds 2 layers, and runs 6 backward passes of 4 ms while
    # one micro-batch passes 24 layers: 24 * 3 + 5 * 4 = 92 ms. Wherever the first such chunk is, others
    # wait for the 6 or more that are as large. No known split takes less than 94 ms.
    row = some_rows(24, pp=6, vpp=3, m=6)
    assert least_bound_s(row, 0.0, 1.0) == pytest.approx(0.092, rel=1e-4)
    assert 0.0933 < least_average_s(row, np.zeros(1), 1.0, SimulationBudget(2**28)) < 0.094


def test_rows_that_no_effort_is_left_for_hold_the_bound_down() -> None:
    # the second row is 3 % faster: 94 / 1.03 = 91.3 ms. The effort is spent on the first, which has the
    # lower known bound and is raised above that.
    rows = some_rows(24, pp=6, vpp=3, m=6, speeds=(1.0, 1.03))
    effort = SimulationBudget(10 * 2**20)
    assert 0.0891 <= least_average_s(rows, np.array([0.0890, 0.0891]), 1.0, effort) <= 0.0913


def test_without_effort_the_known_bound_is_returned() -> None:
    row = some_rows(24, pp=6, vpp=3, m=6)
    assert least_average_s(row, np.array([0.05]), 1.0, SimulationBudget(0)) == 0.05


def test_a_bound_that_rises_draws_once_on_the_reserve() -> None:
    row, effort = some_rows(24, pp=6, vpp=3, m=6), SimulationBudget(2**24, reserve=2**28)
    assert least_average_s(row, np.array([0.092]), 0.094, SimulationBudget(2**24)) < 0.0933
    assert 0.0933 < least_average_s(row, np.array([0.092]), 0.094, effort) < 0.094
    assert 0 < effort.passes < 2**28
    assert effort.reserve == 0


def test_a_bound_that_does_not_rise_leaves_the_reserve() -> None:
    row, effort = some_rows(24, pp=6, vpp=3, m=6), SimulationBudget(2**24 // 24, reserve=2**28)
    assert least_average_s(row, np.array([0.092]), 0.094, effort) == 0.092
    assert effort.reserve == 2**28
