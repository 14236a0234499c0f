"""Schedules against an independent simulation: passes as a graph, each started when it can be.

A pass is (kind, chunk, micro-batch): F forward, B backward or input gradient, W weight gradient.
"""

import random
from collections import defaultdict

import numpy as np
import pytest

from meshwright.solver.configuration import SCHEDULES, SPLIT_BACKWARD, Columns
from meshwright.solver.schedules.orders import (
    automatic_finish_of_many_s,
    automatic_finish_s,
    candidates,
    slots_of,
)
from meshwright.solver.schedules.schedule import AUTOMATIC, BYPASSES_SYNC, V_SHAPED, in_flight
from meshwright.solver.schedules.simulate import rank_finish_s
from tests.problems.pricing import a_layout

Pass = tuple[str, int, int]
STATIC = [name for name in SCHEDULES if name not in ("none", "zb_1p", "zb_2p")]
CHUNKED = ("interleaved_1f1b", "interleaved_zb", "looped_bfs", *V_SHAPED)


def passes(rank: int, *, pp: int, vpp: int, m: int, schedule: str) -> list[Pass]:
    """One rank's order, read back from its slots."""
    chunks, found = pp * vpp, []
    for slot in slots_of(rank, pp=pp, vpp=vpp, num_microbatches=m, schedule=schedule):
        block, micro = divmod(slot, m)
        if block <= chunks:
            found.append(("F", block - 1, micro))
        elif block <= 2 * chunks:
            found.append(("B", 2 * chunks - block, micro))
        else:
            found.append(("W", (block - 2 * chunks - 2) // 2, micro))
    return found


def needs(one: Pass, chunks: int) -> Pass | None:
    """The pass whose output a pass reads: the micro-batch's previous chunk, or its own backward pass."""
    kind, chunk, micro = one
    if kind == "F":
        return ("F", chunk - 1, micro) if chunk else None
    if kind == "B":
        return ("B", chunk + 1, micro) if chunk < chunks - 1 else ("F", chunk, micro)
    return ("B", chunk, micro)


def brute_force(
    orders: list[list[Pass]], seconds: dict[str, list[float]], chunks: int
) -> tuple[list[float], list[float]]:
    """Start of the first and end of the last pass of each rank: relax the whole graph until it rests."""
    end: dict[Pass, float] = {}
    while len(end) < sum(len(order) for order in orders):
        known = len(end)
        for order in orders:
            for number, one in enumerate(order):
                before = [order[number - 1]] if number else []
                source = needs(one, chunks)
                before += [source] if source else []
                if one not in end and all(other in end for other in before):
                    start = max([0.0, *(end[other] for other in before)])
                    end[one] = start + seconds[one[0]][one[1]]
        assert len(end) > known, "the order cannot run to its end"
    starts = [end[order[0]] - seconds[order[0][0]][order[0][1]] for order in orders]
    return starts, [end[order[-1]] for order in orders]


def held_at_peak(order: list[Pass], split: bool) -> dict[int, int]:
    """Micro-batches of each chunk between their forward pass and the last pass that reads them."""
    held: dict[int, int] = defaultdict(int)
    peak: dict[int, int] = {}
    for kind, chunk, _ in order:
        held[chunk] += {"F": 1, "W" if split else "B": -1}.get(kind, 0)
        if sum(held.values()) > sum(peak.values()):
            peak = dict(held)
    return peak


def shape_of(schedule: str) -> tuple[int, int]:
    """Chunks a rank, and micro-batches, for 4 ranks."""
    return (2, 12) if schedule in CHUNKED else (1, 10)


@pytest.mark.parametrize("schedule", STATIC)
def test_every_rank_runs_every_pass_of_its_chunks_once(schedule: str) -> None:
    vpp, m = shape_of(schedule)
    kinds = "FBW" if schedule in SPLIT_BACKWARD else "FB"
    for rank in range(4):
        mine = {rank, (7 - rank if schedule in V_SHAPED else rank + 4) if vpp == 2 else rank}
        expected = sorted((kind, chunk, micro) for kind in kinds for chunk in mine for micro in range(m))
        assert sorted(passes(rank, pp=4, vpp=vpp, m=m, schedule=schedule)) == expected


@pytest.mark.parametrize("schedule", STATIC)
@pytest.mark.parametrize("seed", range(4))
def test_the_simulation_ends_when_the_graph_of_passes_does(schedule: str, seed: int) -> None:
    rng = random.Random(seed)
    vpp, m = shape_of(schedule)
    chunks = 4 * vpp
    forward, inputs, weight = ([rng.uniform(0.5, 2.0) for _ in range(chunks)] for _ in range(3))
    split = schedule in SPLIT_BACKWARD
    whole = [b + w for b, w in zip(inputs, weight, strict=True)]
    orders = [passes(rank, pp=4, vpp=vpp, m=m, schedule=schedule) for rank in range(4)]
    seconds = {"F": forward, "B": inputs if split else whole, "W": weight}
    starts, ends = brute_force(orders, seconds, chunks)
    if schedule in BYPASSES_SYNC:
        ends = [end - start for start, end in zip(starts, ends, strict=True)]
    finish = rank_finish_s(forward, whole, pp=4, num_microbatches=m, schedule=schedule, weight_s=weight)
    assert finish == pytest.approx(ends, rel=1e-12)


@pytest.mark.parametrize("schedule", STATIC)
@pytest.mark.parametrize("m", [4, 8, 24])
def test_memory_in_flight_is_what_the_order_holds_at_its_peak(schedule: str, m: int) -> None:
    vpp, _ = shape_of(schedule)
    layout = a_layout(
        pipeline_parallel_size=4, virtual_pipeline_size=vpp, num_microbatches=m,
        pipeline_schedule=schedule, stage_layers=(1,) * (4 * vpp),
    )  # fmt: skip
    counted = in_flight(Columns.of([layout]))[0]
    for rank in range(4):
        order = passes(rank, pp=4, vpp=vpp, m=m, schedule=schedule)
        peak = held_at_peak(order, schedule in SPLIT_BACKWARD)
        assert sum(int(counted[chunk]) for chunk in {chunk for _, chunk, _ in order}) >= sum(peak.values())
        if m >= 8:  # with fewer the closed counts are only an upper bound
            assert {chunk: int(counted[chunk]) for chunk in peak} == peak


@pytest.mark.parametrize(("times", "schedule", "bubble"), [
    # Qi et al. 2023, table 2: (p - 1)(F + B - W) and (p - 1)(F + B - 2 W), p = 4
    ((1.0, 1.0, 1.0), "zb_h1", 3 * 1.0),
    ((1.0, 1.3, 1.0), "zb_h1", 3 * 1.3),
    ((1.0, 1.2, 0.8), "zb_h1", 3 * 1.4),
    ((1.0, 1.0, 1.0), "zb_h2", 0.0),
    ((1.0, 1.3, 1.0), "zb_h2", 3 * 0.3),
    ((1.0, 1.2, 0.8), "zb_h2", 3 * 0.6),
    # 1F1B runs both gradients at once: (p - 1)(F + B + W)
    ((1.0, 1.2, 0.8), "1f1b", 3 * 3.0),
])  # fmt: skip
def test_the_bubble_of_even_stages_is_the_published_one(
    times: tuple[float, float, float], schedule: str, bubble: float
) -> None:
    f, b, w = times
    finish = rank_finish_s(
        [f] * 4, [b + w] * 4, pp=4, num_microbatches=16, schedule=schedule, weight_s=[w] * 4
    )
    assert max(finish) == pytest.approx(16 * (f + b + w) + bubble)


def test_a_v_of_equal_passes_has_no_bubble_in_the_memory_of_1f1b() -> None:
    # arXiv:2405.15362, section 4: ZB-V, F = B = W: zero bubble; peak 2 p half stages, 1F1B's p stages
    finish = rank_finish_s(
        [0.5] * 8, [1.0] * 8, pp=4, num_microbatches=12, schedule="zb_v", weight_s=[0.5] * 8
    )
    assert max(finish) == pytest.approx(12 * 2 * 1.5)
    for rank in range(4):
        peak = held_at_peak(passes(rank, pp=4, vpp=2, m=12, schedule="zb_v"), split=True)
        assert sum(peak.values()) == 2 * 4


@pytest.mark.parametrize(("schedule", "most_held"), [("zb_1p", 4), ("zb_2p", 8)])
def test_an_automatic_order_is_never_worse_than_the_hand_made_one_nor_over_its_memory(
    schedule: str, most_held: int
) -> None:
    rng = random.Random(0)
    by_hand = {"zb_1p": "zb_h1", "zb_2p": "zb_h2"}[schedule]
    for _ in range(20):
        f, b, w = ([rng.uniform(0.7, 1.3) for _ in range(4)] for _ in range(3))
        whole = [x + y for x, y in zip(b, w, strict=True)]
        automatic, hand = (
            max(rank_finish_s(f, whole, pp=4, num_microbatches=12, schedule=name, weight_s=w))
            for name in (schedule, by_hand)
        )
        busiest = max(12 * (x + y) for x, y in zip(f, whole, strict=True))
        assert busiest * (1.0 - 1e-12) <= automatic <= hand
        for limits in candidates(4, 12, most_held):
            ends, peak = automatic_finish_s(tuple(f), tuple(b), tuple(w), limits)
            assert peak <= most_held
            assert max(ends) >= busiest * (1.0 - 1e-12)


def test_short_weight_gradients_let_2p_run_further_ahead_than_the_hand_made_order() -> None:
    # F = B = 1, W = 1/2: ZB-H2 leaves (p - 1)(F + B - 2 W) = 7 s; p = 8
    run = {
        name: max(
            rank_finish_s(
                [1.0] * 8, [1.5] * 8, pp=8, num_microbatches=24, schedule=name, weight_s=[0.5] * 8
            )
        )
        for name in ("zb_h2", "zb_2p")
    }
    assert run["zb_h2"] == pytest.approx(24 * 2.5 + 7.0)
    assert run["zb_2p"] < run["zb_h2"]


# Orders made for many times at once are those made one by one.


@pytest.mark.parametrize(("schedule", "pp", "micros"), [("zb_1p", 2, 3), ("zb_1p", 4, 9), ("zb_2p", 3, 8)])
def test_orders_made_side_by_side_end_when_those_made_one_by_one_do(
    schedule: str, pp: int, micros: int
) -> None:
    forward, inputs, weight = np.random.default_rng(7).uniform(0.5, 1.5, (3, 20, pp))
    found = automatic_finish_of_many_s(forward, inputs, weight, num_microbatches=micros, schedule=schedule)
    passes = forward.tolist(), inputs.tolist(), weight.tolist()
    limits = candidates(pp, micros, AUTOMATIC[schedule] * pp)
    alone = [
        [
            automatic_finish_s(tuple(f), tuple(i), tuple(w), limit)[0]
            for f, i, w in zip(*passes, strict=True)
        ]
        for limit in limits
    ]
    assert found.tolist() == alone
