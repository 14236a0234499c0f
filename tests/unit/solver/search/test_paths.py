"""Averages of longest paths: boxes hold every split, and their bound sees the layers of one large chunk."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import SCHEDULES
from meshwright.solver.schedules.schedule import AUTOMATIC
from meshwright.solver.schedules.simulate import finish_of_many_s, longest_paths, waves_of
from meshwright.solver.search.branch import SimulationBudget
from meshwright.solver.search.fill import least_bound_s
from meshwright.solver.search.paths import Boxes, are_averaged, least_average_s
from meshwright.solver.search.rows import Rows
from tests.problems.strategies import Shape, columns_of, layout_of, priced_rows, prices_of
from tests.property.exhaustive import exhaust

STATIC = [name for name in SCHEDULES if name != "none" and name not in AUTOMATIC]


def a_row(layers: int, *, pp: int, vpp: int, m: int) -> Rows:
    """An interleaved row: 1 ms forward and 2 ms backward a layer, nothing else takes time."""
    shape = Shape(pp=pp, vpp=vpp, num_microbatches=m, recompute=0, recompute_layers=0)
    prices = prices_of([shape], 1, np.random.default_rng(0))
    nothing = {
        name: 0.0 * getattr(prices, name) for name in ("tail_s", "transfer_s", "rank_tail_s", "fixed_s")
    }
    prices = replace(
        prices,
        **nothing,
        forward_s=np.array([[1e-3, 0.0, 0.0]]),
        backward_s=np.array([[2e-3, 0.0, 0.0]]),
        straggler=np.ones(1),
    )
    layout = layout_of([False] * layers)
    return Rows(columns=columns_of([shape]), prices=prices, layout=layout, budget_bytes=np.inf)


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


@given(priced_rows(mixed=False, any_schedule=True))
@settings(max_examples=60, deadline=None)
def test_every_split_on_offer_is_in_one_box(rows: Rows) -> None:
    if not are_averaged(rows)[0]:
        return
    everything = np.full(int(rows.p[0]), rows.layout.num_layers)
    boxes = Boxes.of(rows, everything)
    for split in exhaust(replace(rows, budget_bytes=np.inf), 0).splits:
        inside = (boxes.low <= np.array(split)) & (np.array(split) <= boxes.high)
        assert inside.all(axis=1).sum() == 1


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
    row = a_row(24, pp=6, vpp=3, m=6)
    assert least_bound_s(row, 0.0, 1.0) == pytest.approx(0.092, rel=1e-4)
    assert 0.0933 < least_average_s(row, np.zeros(1), 1.0, SimulationBudget(2**28)) < 0.094


def test_without_effort_the_known_bound_is_returned() -> None:
    row = a_row(24, pp=6, vpp=3, m=6)
    assert least_average_s(row, np.array([0.05]), 1.0, SimulationBudget(0)) == 0.05
