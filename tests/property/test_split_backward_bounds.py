"""Bounds of the zero-bubble family against the simulation of its passes."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import SCHEDULES
from meshwright.solver.schedules.schedule import SPLIT_BACKWARD, V_SHAPED
from meshwright.solver.search.bounds import fractional_s, least_end_s, split_s, whole_layers_s
from meshwright.solver.search.fill import can_beat
from meshwright.solver.search.rows import Rows
from tests.draws import draws
from tests.problems.strategies import Shape, columns_of, layout_of, prices_of
from tests.property.exhaustive import simulated_s

ROUNDING = 1 + 1e-9
EXAMPLES = draws(80)


@st.composite
def zero_bubble_rows(draw: st.DrawFn) -> tuple[Rows, tuple[int, ...]]:
    """One row of any schedule with a split backward pass, and a split of its layers."""
    schedule, pp = draw(st.sampled_from(SPLIT_BACKWARD)), draw(st.integers(2, 5))
    vpp = 2 if schedule in V_SHAPED else draw(st.integers(2, 3)) if schedule == "interleaved_zb" else 1
    m = pp * draw(st.integers(2, 4)) if vpp > 1 else draw(st.integers(1, 14))
    split = tuple(draw(st.lists(st.integers(1, 3), min_size=pp * vpp, max_size=pp * vpp)))
    shape = Shape(pp=pp, vpp=vpp, num_microbatches=m, recompute=0, recompute_layers=0)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns = replace(columns_of([shape]), pipeline_schedule=np.array([SCHEDULES.index(schedule)]))
    prices = prices_of([shape], 1, rng)
    share = rng.uniform(0.2, 0.6, prices.backward_s.shape)
    prices = replace(prices, weight_gradient_s=prices.backward_s * share)
    layout = layout_of([False] * sum(split))
    return Rows(columns=columns, prices=prices, layout=layout, budget_bytes=np.inf), split


@given(zero_bubble_rows())
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_bound_lies_above_the_simulation(drawn: tuple[Rows, tuple[int, ...]]) -> None:
    rows, split = drawn
    simulated = simulated_s(rows, [split])[0]
    tiers = [float(tier(rows)[0]) for tier in (fractional_s, whole_layers_s)]
    tiers.append(float(split_s(rows, rows.stages([split]))[0]))
    assert tiers[0] <= tiers[1] <= tiers[2] * ROUNDING
    assert tiers[2] <= simulated * ROUNDING
    assert tiers[2] > 0.5 * simulated
    assert can_beat(rows, np.array([simulated]))[0]


def test_zb_h1_ends_like_its_bound_where_all_passes_take_a_second() -> None:
    # 2 ranks, 4 micro-batches, F = I = W = 1: rank 0 waits for 2 F and 1 I, ran 2 F early and has
    # (4 - 2) F + 4 I + 4 W left: at least 13 of the 13 that the simulation takes; rank 1 is busy for 12
    shape = Shape(pp=2, vpp=1, num_microbatches=4, recompute=0, recompute_layers=0)
    columns = replace(columns_of([shape]), pipeline_schedule=np.array([SCHEDULES.index("zb_h1")]))
    prices = prices_of([shape], 1, np.random.default_rng(0))
    one, ends = np.array([[1.0, 0.0, 0.0]]), np.zeros((1, 3))
    prices = replace(prices, forward_s=one, backward_s=2 * one, weight_gradient_s=one, replay_s=ends,
                     tail_s=ends, transfer_s=np.zeros(1))  # fmt: skip
    rows = Rows(columns=columns, prices=prices, layout=layout_of([False] * 2), budget_bytes=np.inf)
    assert least_end_s(rows, rows.stages([(1, 1)])).tolist() == [[13.0, 12.0]]
