"""Which row takes no longer than another one, whatever the split."""

from __future__ import annotations

from solver.search.partial import makes_its_order
from solver.search.rows import Rows


def dominates(rows: Rows, one: int, other: int) -> bool:
    """Whether no split takes less time on row ``other`` than it takes on row ``one``."""
    columns, prices = rows.columns, rows.prices
    same = ("pipeline_parallel_size", "virtual_pipeline_size", "num_microbatches", "pipeline_schedule")
    alike = all(getattr(columns, name)[one] == getattr(columns, name)[other] for name in same)
    layers = columns.recompute_layers
    if not alike or makes_its_order(rows.take([one])) or layers[one] not in (0, layers[other]):
        return False
    names = ("forward_s", "backward_s", "weight_gradient_s", "tail_s", "transfer_s", "rank_tail_s",
             "straggler", "fixed_s")  # fmt: skip
    shorter = all(
        bool((getattr(prices, name)[one] <= getattr(prices, name)[other]).all()) for name in names
    )
    inputs = prices.backward_s - prices.weight_gradient_s
    shorter = shorter and bool((inputs[one] <= inputs[other]).all())
    return shorter and bool(layers[one] == 0 or (prices.replay_s[one] <= prices.replay_s[other]).all())
