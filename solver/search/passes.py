"""The passes behind the simulated finish: which one each rank runs when, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.cost.schedule import AUTOMATIC, SPLIT_BACKWARD
from solver.search.automatic import Limits, automatic_finish_s, candidates
from solver.search.simulate import blocks_of, input_gradients_s, orders_of, run_orders, third_s
from solver.timeline import KINDS

FORWARD, BACKWARD, INPUT, WEIGHT = range(len(KINDS))
Seconds = tuple[tuple[float, ...], ...]  # forward, whole backward, weight gradient (or nothing) by chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of one rank in their order; arrays have one entry each."""

    kind: IntArray  # codes of ``solver.timeline.KINDS``
    chunk: IntArray
    micro_batch: IntArray
    start_s: FloatArray
    seconds: FloatArray

    @property
    def end_s(self) -> float:
        """When the last one is done."""
        return float(self.start_s[-1] + self.seconds[-1])


def passes_of(
    forward_s: tuple[float, ...],
    backward_s: tuple[float, ...],
    weight_s: tuple[float, ...] | None = None,
    *,
    pp: int,
    num_microbatches: int,
    schedule: str,
) -> list[Passes]:
    """Every pass of every rank, in the order whose finish ``rank_finish_s`` reports.

    Arguments and errors as there; all micro-batches are simulated.
    """
    m = num_microbatches
    if pp == 1:
        return [_alone(forward_s, backward_s, m)]
    split = schedule in SPLIT_BACKWARD
    weight = (weight_s if weight_s is not None else third_s(forward_s, backward_s)) if split else ()
    seconds: Seconds = (forward_s, backward_s, weight)
    fixed = _in_fixed_order(seconds, pp, m, schedule)
    if schedule not in AUTOMATIC or len(forward_s) != pp:
        return fixed
    limits = candidates(pp, m, AUTOMATIC[schedule] * pp)
    found = [fixed, *(_in_made_order(seconds, limit) for limit in limits)]
    return min(found, key=lambda ranks: max(map(_own_time_s, ranks)))


def _own_time_s(rank: Passes) -> float:
    """From a rank's first pass to its last: these schedules do not wait for one another between steps."""
    return rank.end_s - float(rank.start_s[0])


def _alone(forward_s: tuple[float, ...], backward_s: tuple[float, ...], m: int) -> Passes:
    """One rank: forward through its chunks and back, micro-batch by micro-batch."""
    chunks = np.arange(len(forward_s))
    seconds = np.tile(np.array([*forward_s, *reversed(backward_s)]), m)
    kind = np.tile(np.repeat([FORWARD, BACKWARD], len(chunks)), m)
    return Passes(
        kind=kind,
        chunk=np.tile(np.concatenate([chunks, chunks[::-1]]), m),
        micro_batch=np.repeat(np.arange(m), 2 * len(chunks)),
        start_s=np.cumsum(seconds) - seconds,
        seconds=seconds,
    )


def _in_fixed_order(seconds: Seconds, pp: int, m: int, schedule: str) -> list[Passes]:
    """The order of ``orders``; a pass starts its own length before it is done."""
    num_chunks, split = len(seconds[0]), bool(seconds[2])
    block_s, done_s = blocks_of(seconds, m)
    orders = orders_of(pp, num_chunks // pp, m, schedule)
    run_orders(orders, block_s, done_s, m=m, schedule=schedule)
    length, done = np.array(block_s), np.array(done_s)
    return [_read(np.array(order), length, done, num_chunks, m, split=split) for order in orders]


def _read(
    slots: IntArray, length_s: FloatArray, done_s: FloatArray, num_chunks: int, m: int, *, split: bool
) -> Passes:
    """Slots back to passes: blocks 1 … C are forward, C + 1 … 2 C backward, then weight gradients."""
    block = slots // m
    forward, weight = block <= num_chunks, block > 2 * num_chunks
    kind = np.where(forward, FORWARD, np.where(weight, WEIGHT, INPUT if split else BACKWARD))
    backward = np.where(weight, (block - 2 * num_chunks - 2) // 2, 2 * num_chunks - block)
    seconds = length_s[block]
    return Passes(
        kind=kind,
        chunk=np.where(forward, block - 1, backward),
        micro_batch=slots % m,
        start_s=done_s[slots] - seconds,
        seconds=seconds,
    )


def _in_made_order(seconds: Seconds, limits: Limits) -> list[Passes]:
    """The order that ``automatic`` makes within some limits; each kind runs its micro-batches in turn."""
    forward_s, _, weight_s = seconds
    input_s = input_gradients_s(seconds)
    length = {"forward": forward_s, "input": input_s, "weight": weight_s}
    code = {"forward": FORWARD, "input": INPUT, "weight": WEIGHT}
    told: list[list[tuple[int, int, float, float]]] = [[] for _ in forward_s]
    counts = [dict.fromkeys(code, 0) for _ in forward_s]

    def on_pass(rank: int, kind: str, start_s: float) -> None:
        told[rank].append((code[kind], counts[rank][kind], start_s, length[kind][rank]))
        counts[rank][kind] += 1

    automatic_finish_s(forward_s, input_s, weight_s, limits, on_pass)
    return [_columns(rank, rows) for rank, rows in enumerate(told)]


def _columns(rank: int, rows: list[tuple[int, int, float, float]]) -> Passes:
    """Rows as columns; one chunk a rank."""
    kind, micro, start, seconds = zip(*rows, strict=True)
    return Passes(
        kind=np.array(kind),
        chunk=np.full(len(rows), rank),
        micro_batch=np.array(micro),
        start_s=np.array(start),
        seconds=np.array(seconds),
    )
