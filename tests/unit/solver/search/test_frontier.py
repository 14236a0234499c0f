"""Best first, where rows that look best turn out to have no split."""

from dataclasses import replace

import numpy as np

from solver.columns import ALL_LAYERS
from solver.search.frontier import Frontier
from solver.search.rows import Rows
from solver.search.scout import RAISES
from solver.search.stages import best_splits
from tests.strategies import FULL, Shape, columns_of, layout_of, prices_of

GB = 1e9


def two_ways_to_run_one_layout(budget_bytes: float) -> Rows:
    """One dense and three MoE layers on two ranks; the first way replays a layer a rank, the other all."""
    counts = (1, ALL_LAYERS)
    shapes = [
        Shape(pp=2, vpp=1, num_microbatches=4, recompute=FULL, recompute_layers=count) for count in counts
    ]
    layout = layout_of([False, True, True, True])
    prices = prices_of(shapes, len(layout.kinds), np.random.default_rng(1))
    prices = prices.take(np.zeros(2, dtype=np.int64))  # they differ in what they replay alone
    nothing = np.zeros_like(prices.forward_s)
    prices = replace(
        prices,
        replay_s=nothing + 0.01 * np.array([1.0, 1.0, 0.0, 0.0]),
        weights_bytes=nothing,
        gradients_bytes=nothing,
        optimizer_bytes=nothing,
        activation_bytes=nothing + np.array([1.0 * GB, 2.0 * GB, 0.0, 0.0]),
        checkpoint_bytes=nothing + np.array([1.0 * GB, 0.0, 0.0, 0.0]),
        head_workspace_bytes=np.zeros(2),
        replay_workspace_bytes=np.zeros(2),
        buffer_bytes=np.zeros(2),
        context_bytes=np.zeros(2),
        reserve=np.ones(2),
    )
    return Rows(columns=columns_of(shapes), prices=prices, layout=layout, budget_bytes=budget_bytes)


def test_a_promising_row_without_a_split_leaves_the_search_to_the_other_rows() -> None:
    # Rank 0 keeps two micro-batches and replays its first layer, the dense one, which spares nothing: with
    # the dense layer alone it keeps 2 GB, with a MoE layer 6 GB. Rank 1 keeps one micro-batch and replays
    # one MoE layer of two or three: 2 or 4 GB. So 3 GB hold no split. Replaying everything takes 2 GB, and
    # so long that the first way looks better however closely its bound is raised before it is solved.
    rows = two_ways_to_run_one_layout(3.0 * GB)
    assert [split is not None for split in best_splits(rows)] == [False, True]
    frontier = Frontier.of(rows, 1)
    assert frontier.bound_s[0] * max(RAISES) < frontier.bound_s[1] < np.inf
    frontier.run(lambda _: False)
    assert frontier.finished
    assert [one.row for one in frontier.ranked] == [1]
