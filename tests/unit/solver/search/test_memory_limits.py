"""Layer caps and costs beside the layers say what ``assemble`` would find by trying."""

import numpy as np
import pytest
from hypothesis import given, settings

from meshwright.solver.search.memory_limits import layer_caps
from meshwright.solver.search.rows import RankCosts, Rows
from meshwright.solver.search.splits import lightest_chunks
from meshwright.solver.splits import even_split
from tests.problems.strategies import priced_rows


def test_lightest_chunks_are_small_at_first_and_large_at_last() -> None:
    # ranks with 6 and 4 layers in 3 chunks: 1, then 5 as 2 3; and 1 1 2; chunk by chunk in model order
    assert lightest_chunks(np.array([6, 4]), 3, 1) == (1, 1, 2, 1, 3, 2)


@given(priced_rows(mixed=False, any_schedule=True))
@settings(max_examples=150, deadline=None)
def test_caps_are_the_most_layers_whose_memory_fits(rows: Rows) -> None:
    if not rows.uneven_stages or np.isinf(rows.budget_bytes) or rows.prices.ranks_in_turn.any():
        return  # of gradients in turn other chunks may be lighter
    caps = layer_caps(rows)
    p, v, layers = int(rows.p[0]), int(rows.v[0]), rows.layout.num_layers
    for rank in range(p):
        low, high = int(caps.least[0, rank]), int(caps.most[0, rank])
        for count in range(low, layers - int(caps.least[0].sum()) + low + 1):
            others = _others(layers - count, p, rank, int(caps.least[0, 0]))
            counts = [*others[:rank], count, *others[rank:]]
            shaped = bool(rows.in_a_v[0])
            split = lightest_chunks(np.array(counts), v, int(rows.smallest_chunk[0]), in_a_v=shaped)
            peak = rows.stages([split]).peak_memory_bytes[0, rank]
            assert (peak <= rows.budget_bytes) == (count <= high)


def _others(left: int, p: int, rank: int, least: int) -> list[int]:
    """Layers of the other ranks: the least each, the rest on one of them."""
    others = [least] * (p - 1)
    if others:
        others[-1 if rank == 0 else 0] += left - least * (p - 1)
    return others


@given(priced_rows(mixed=False, any_schedule=True))
@settings(max_examples=100, deadline=None)
def test_layers_and_the_costs_beside_them_make_up_the_time_and_tail_of_every_rank(rows: Rows) -> None:
    split = even_split(rows.layout.num_layers, int(rows.p[0] * rows.v[0]))
    if min(split) < rows.smallest_chunk[0]:
        return
    config, stages = rows.columns.configuration(0, split), rows.stages([split])
    layers = np.array([sum(config.layers_of_rank(rank)) for rank in range(int(rows.p[0]))])
    every = RankCosts.of(rows)
    assert every.time_s + layers * rows.layer_s == pytest.approx(stages.rank_time_s)
    assert every.tail_s + layers * rows.prices.tail_s[:, :1] == pytest.approx(stages.rank_tail_s)
