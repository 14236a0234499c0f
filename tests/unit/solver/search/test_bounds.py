"""Where every rank works as long as the others the bounds leave nothing open."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from meshwright.solver.configuration import BoolArray, FloatArray
from meshwright.solver.cost.stages import OF_EVERY_RANK
from meshwright.solver.search.bounds import fractional_s, least_of_kind_s, split_s, whole_layers_s
from meshwright.solver.search.fill import can_beat
from meshwright.solver.search.fill_kinds import can_beat_mixed, may_reach_objective, tightened_s
from meshwright.solver.search.rows import Rows
from tests.problems.strategies import FULL, Shape, columns_of, layout_of, prices_of
from tests.property.exhaustive import exhaust

FORWARD_S, BACKWARD_S = 1e-3, 2e-3


def alike(
    layers: int,
    *,
    num_microbatches: int,
    schedule: str = "1f1b",
    vpp: int = 1,
    pp: int = 4,
    embedding: float = 0.0,
    head: float = 0.0,
    recompute_layers: int = 0,
) -> Rows:
    """Layers of 1 + 2 ms on ``pp`` ranks, ends of as many layers, and nothing else: no transfer or tail.

    ``recompute_layers`` of each chunk are replayed in no time.
    """
    shape = Shape(pp=pp, vpp=vpp, num_microbatches=num_microbatches, schedule=schedule,
                  recompute=FULL * (recompute_layers > 0), recompute_layers=recompute_layers)  # fmt: skip
    prices = prices_of([shape], 1, np.random.default_rng(1))
    nothing, layer = np.zeros_like(prices.forward_s), np.array([1.0, embedding, head])
    every: dict[str, Any] = dict.fromkeys(OF_EVERY_RANK, np.zeros(1)) | {"straggler": np.ones(1)}
    prices = replace(
        prices,
        forward_s=nothing + FORWARD_S * layer,
        backward_s=nothing + BACKWARD_S * layer,
        tail_s=nothing,
        replay_s=nothing,
        **every,
    )
    layout = layout_of([False] * layers)
    return Rows(columns=columns_of([shape]), prices=prices, layout=layout, budget_bytes=np.inf)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equal_stages_are_bounded_by_what_they_take(schedule: str) -> None:
    # two layers a rank, 6 ms; 12 micro-batches and 3 stages to fill: 15 * 6 ms = 90 ms
    rows = alike(8, num_microbatches=12, schedule=schedule)
    bounds = [bound(rows)[0] for bound in (least_of_kind_s, fractional_s, whole_layers_s)]
    assert bounds == [pytest.approx(0.090)] * 3
    assert split_s(rows, rows.stages([(2, 2, 2, 2)]))[0] == pytest.approx(0.090)


@pytest.mark.parametrize(
    ("rows", "fastest_s"),
    [
        # 2 ranks of 4 passes. One pass over all, 24 + 9 ms, and the slower rank three times more: 3 layers
        # next to the embedding are 18 ms, as 6 layers alone: 33 + 3 * 18 ms
        (alike(8, num_microbatches=4, schedule="gpipe", pp=2, embedding=3.0), 0.087),
        # 2 ranks of 2 chunks of one layer. The first works 2 * (6 + 2 * 3) ms, and waits for the last chunk
        (alike(4, num_microbatches=2, schedule="looped_bfs", vpp=2, pp=2, embedding=2.0), 0.027),
        # 3 ranks of 2 chunks. Three layers next to the embedding take 4 * 15 ms, and 2 * 3 ms and 6 of the
        # head behind them; next to the head they take 4 * 15 ms and the embedding's 6: 66 ms
        (alike(8, num_microbatches=4, schedule="looped_bfs", vpp=2, pp=3, embedding=2.0, head=2.0), 0.066),
        # 3 ranks of 2 chunks that replay 2 layers, so hold no fewer. The last works 6 * 12 ms, behind the
        # first chunks of two ranks and before their passes back: 72 + 2 * 2 + 2 * 4 ms
        (
            alike(12, num_microbatches=6, schedule="interleaved_1f1b", vpp=2, pp=3, recompute_layers=2),
            0.084,
        ),
    ],
    ids=["gpipe", "two chunks", "both ends", "two layers a chunk"],
)
def test_rows_are_refuted_right_below_their_fastest_split(rows: Rows, fastest_s: float) -> None:
    assert exhaust(rows, 0).bound_s.min() == pytest.approx(fastest_s)
    assert can_beat(rows, np.array([fastest_s * 1.0001]))[0]
    assert not can_beat(rows, np.array([fastest_s * 0.9999]))[0]


def test_a_layer_that_does_not_divide_costs_all_micro_batches() -> None:
    # 9 layers: a rank holds three, 9 ms. 2 sum T + (m - p - 1) * 9 ms = 2 * 27 + 7 * 9 = 117 ms;
    # divisible layers: 27 ms * 15 / 4 = 101.25 ms
    rows = alike(9, num_microbatches=12)
    assert fractional_s(rows)[0] == pytest.approx(0.10125)
    assert whole_layers_s(rows)[0] == pytest.approx(0.117)


def test_layers_that_cost_nothing_find_a_place() -> None:
    # one micro-batch, no tails: the closed form is sum T = 8 * 3 = 24 ms, whichever rank is the slowest
    rows = alike(8, num_microbatches=1)
    assert may_reach_objective(rows, 0.024 * 1.0001)[0]
    assert not may_reach_objective(rows, 0.024 * 0.9999)[0]


@pytest.mark.parametrize("way", [can_beat, can_beat_mixed])
def test_no_split_beats_equal_stages(way: Callable[[Rows, FloatArray], BoolArray]) -> None:
    rows = alike(8, num_microbatches=12)
    assert way(rows, np.array([0.090 * 1.0001]))[0]
    assert not way(rows, np.array([0.090 * 0.9999]))[0]


def test_a_bound_is_raised_however_slow_the_splits_are_that_memory_leaves() -> None:
    # a layer keeps a byte for each of 4, 3, 2, 1 micro-batches in flight: 4 bytes hold 1, 1, 2, 4 layers,
    # 12 * 12 ms on the last rank behind 4 * 3 ms there and back, 156 ms; without memory it is 90 ms
    rows = alike(8, num_microbatches=12)
    free = {f.name: 0.0 * getattr(rows.prices, f.name) for f in fields(rows.prices) if "_bytes" in f.name}
    kept = np.array([[1.0, 0.0, 0.0]])
    free |= {"activation_bytes": kept, "checkpoint_bytes": kept, "reserve": np.ones(1)}
    prices = replace(rows.prices, **free)
    rows = replace(rows, prices=prices, budget_bytes=4.0)
    step_s = split_s(rows, rows.stages([(1, 1, 2, 4)]))[0]
    assert step_s == pytest.approx(0.156)
    raised_s = tightened_s(rows, whole_layers_s(rows), np.array([np.inf]))[0]
    assert 0.994 * step_s <= raised_s <= step_s


def test_one_micro_batch_passes_every_chunk_before_it_comes_back() -> None:
    # (P): eight chunks of 1 + 2 ms one after the other take 24 ms, as the step does; (B) for rank 0 sees
    # 8 ms down, 3 * 2 ms back behind its last chunk and 2 * 2 ms of its own, 18 ms
    rows = alike(8, num_microbatches=1, schedule="looped_bfs", vpp=2)
    assert split_s(rows, rows.stages([(1,) * 8]))[0] == pytest.approx(0.024)


def test_chunks_do_not_all_replay_the_one_quick_layer() -> None:
    # one layer replays in 1 ms, three in 4 ms; two stages replay one each: 1 + 4 ms, not 2 * 1 ms
    shapes = [Shape(pp=2, vpp=1, num_microbatches=4, recompute=2, recompute_layers=1)]
    prices = prices_of(shapes, 2, np.random.default_rng(1))
    prices = replace(prices, replay_s=np.array([[1e-3, 4e-3, 0.0, 0.0]]))
    layout = layout_of([False, True, True, True])
    rows = Rows(columns=columns_of(shapes), prices=prices, layout=layout, budget_bytes=np.inf)
    assert rows.longer_replay_s == pytest.approx([0.003])
    least_s = min(rows.stages([split]).rank_time_s.sum() for split in ((1, 3), (2, 2), (3, 1)))
    assert rows.total_s == pytest.approx([least_s])
