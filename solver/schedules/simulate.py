"""Event simulation of pipeline schedules: the reference evaluator of step time.

Every rank runs its passes in the schedule's fixed order (``orders``), or in the order that an automatic
schedule makes for these times (``orders.automatic_finish_s``); a pass starts when the rank is free and
its input has arrived. Forward passes and backward passes are events; where a schedule splits the backward
pass, its input gradient and its weight gradient are one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SPLIT_BACKWARD, BoolArray, FloatArray, IntArray
from meshwright.solver.problem import InvalidPlanError
from meshwright.solver.schedules.orders import RankLimits, automatic_finish_s, candidates, slots_of
from meshwright.solver.schedules.schedule import AUTOMATIC, BYPASSES_SYNC, V_SHAPED

MAX_PASSES = 2**18  # of all ranks together; about a twentieth of a second
_AUTOMATIC_PASSES = 2**15  # the same where the order is made on the way


def rank_finish_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    pp: int,
    num_microbatches: int,
    schedule: str,
    weight_s: Sequence[float] = (),
) -> list[float]:
    """Return when each of ``pp`` ranks ends its last pass, in seconds from the start of the step.

    The start is rank 0's first pass; the rank's own where a schedule leaves out the synchronisation of
    ranks between steps (``BYPASSES_SYNC``).

    Every pass is simulated up to MAX_PASSES of them. Beyond, the first micro-batches are, and each
    further one adds what it added to the later half of those: a max-plus linear system grows by its
    largest cycle mean (Baccelli et al. 1992, Synchronization and Linearity, theorem 3.28). That is the
    time of the slowest rank, or more where uneven chunks interleave and ranks wait for one another.

    Args:
        forward_s: seconds of one micro-batch through each chunk, pp * vpp entries in model order.
        backward_s: the same for the whole backward pass.
        pp: pipeline ranks.
        num_microbatches: per step; a multiple of pp when chunks are interleaved.
        schedule: one of ``SCHEDULES``.
        weight_s: weight gradient's part of each chunk's backward pass, where the schedule splits it.

    Raises:
        InvalidPlanError: the schedule cannot run to its end (micro-batches do not fit its groups).
    """
    forward, backward, m = tuple(forward_s), tuple(backward_s), num_microbatches
    if pp == 1:
        return [m * (sum(forward) + sum(backward))]
    weight = tuple(weight_s) if schedule in SPLIT_BACKWARD else ()
    limit = _AUTOMATIC_PASSES if schedule in AUTOMATIC else MAX_PASSES
    few = min(m, max(limit // (2 * len(forward) * pp), 4) * pp)
    finish = partial(_finish_s, (forward, backward, weight), pp=pp, schedule=schedule)
    simulated = finish(few)
    if few == m:
        return list(simulated)
    half = few // (2 * pp) * pp
    late = (max(simulated) - max(finish(half))) / (few - half)
    further = (m - few) * max(late, _growth_s(forward, backward, pp, schedule))
    return [finish + further for finish in simulated]


def _growth_s(forward_s: tuple[float, ...], backward_s: tuple[float, ...], pp: int, schedule: str) -> float:
    """Return the least time that one more micro-batch adds to a long step: the slowest rank's."""
    forward, backward = [0.0] * pp, [0.0] * pp
    in_a_v = schedule in V_SHAPED and len(forward_s) == 2 * pp
    for chunk, (f, b) in enumerate(zip(forward_s, backward_s, strict=True)):
        rank = min(chunk, 2 * pp - 1 - chunk) if in_a_v else chunk % pp
        forward[rank] += f
        backward[rank] += b
    if schedule in ("gpipe", "looped_bfs"):  # the slowest forward and the slowest backward, one by one
        return max(forward) + max(backward)
    return max(f + b for f, b in zip(forward, backward, strict=True))


@lru_cache(maxsize=4096)
def _finish_s(seconds: tuple[tuple[float, ...], ...], m: int, *, pp: int, schedule: str) -> list[float]:
    """Return the cached ends; a plan is simulated when it is ranked, predicted and checked.

    ``seconds`` are forward passes, whole backward passes, and weight gradients or nothing.
    """
    look()
    forward_s, _, weight_s = seconds
    block_s, end = blocks_of(seconds, m)
    orders = orders_of(pp, len(forward_s) // pp, m, schedule)
    found = [run_orders(orders, block_s, end, m=m, schedule=schedule)]
    if schedule in AUTOMATIC and len(forward_s) == pp:
        limits = candidates(pp, m, AUTOMATIC[schedule] * pp)
        input_s = input_gradients_s(seconds)
        found += [automatic_finish_s(forward_s, input_s, weight_s, limit)[0] for limit in limits]
    if schedule in BYPASSES_SYNC:
        found = [_from_own_start_s(finish_s, forward_s) for finish_s in found]
    return min(found, key=_slowest_s)


def _slowest_s(rank_s: Iterable[float]) -> float:
    """Return the longest time, rounded: orders that tie are told apart by their place, not by rounding."""
    return float(f"{max(rank_s):.12g}")


def input_gradients_s(seconds: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    """Return the backward passes without weight gradients, if those are separate passes."""
    _, backward_s, weight_s = seconds
    return tuple(b - w for b, w in zip(backward_s, weight_s, strict=True)) if weight_s else backward_s


def blocks_of(seconds: tuple[tuple[float, ...], ...], m: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each block, and when each is done: 0: always, -1: not yet."""
    forward_s, _, weight_s = seconds
    block_s = [0.0, *forward_s, *reversed(input_gradients_s(seconds))]
    end = [0.0] * m + [-1.0] * (m * (len(block_s) - 1))
    for own in weight_s:
        block_s += [0.0, own]
        end += [0.0] * m + [-1.0] * m
    return block_s, end


@lru_cache(maxsize=8)
def orders_of(pp: int, vpp: int, m: int, schedule: str) -> list[list[int]]:
    """Return the passes of all ranks, cached; they must not be changed."""
    return [slots_of(rank, pp=pp, vpp=vpp, num_microbatches=m, schedule=schedule) for rank in range(pp)]


def _from_own_start_s(finish_s: list[float], forward_s: tuple[float, ...]) -> list[float]:
    """Return each rank's time from its own first forward pass, not from the first rank's.

    The schedules leave out the synchronisation of ranks at the optimizer (arXiv:2401.10241, section 4), so
    each rank begins its next step when it has ended this one, and the longest such time is the step's.
    """
    started, starts = 0.0, []
    for seconds in forward_s[: len(finish_s)]:
        starts.append(started)
        started += seconds
    return [finish - start for finish, start in zip(finish_s, starts, strict=True)]


def run_orders(
    orders: list[list[int]], block_s: list[float], end: list[float], *, m: int, schedule: str
) -> list[float]:
    """Run every rank's passes; ``end`` holds when each slot is done, or -1 while it is not.

    Raises:
        InvalidPlanError: every rank waits for another one.
    """
    clock, coming = [0.0] * len(orders), [iter(order) for order in orders]
    slots, waiting = [next(rank) for rank in coming], list(range(len(orders)))
    while waiting:
        left, stuck = list[int](), True
        for rank in waiting:
            now, slot = clock[rank], slots[rank]
            if (ready := end[slot - m]) < 0.0:
                left.append(rank)
                continue
            end[slot] = now = (now if now > ready else ready) + block_s[slot // m]  # noqa: FURB136
            for slot in coming[rank]:  # the same step; ``max`` would make it twice as slow
                if (ready := end[slot - m]) < 0.0:
                    slots[rank] = slot
                    left.append(rank)
                    break
                end[slot] = now = (now if now > ready else ready) + block_s[slot // m]  # noqa: FURB136
            clock[rank], stuck = now, False
        if stuck:
            raise InvalidPlanError(f"schedule {schedule} cannot run {m} micro-batches")
        waiting = left[::-1]  # forward passes go down the ranks, backward passes up
    return clock


# --------------------------------------------------------------------------------------------------
# The passes behind the simulated finish: which one each rank runs when, as columns.


KINDS = ("forward", "backward", "input_gradient", "weight_gradient")  # by code
FORWARD, BACKWARD, INPUT, WEIGHT = range(len(KINDS))
Seconds = tuple[tuple[float, ...], ...]  # forward, whole backward, weight gradient (or nothing) by chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes of one rank in their order; arrays have one entry each."""

    kind: IntArray  # codes of KINDS
    chunk: IntArray
    micro_batch: IntArray
    start_s: FloatArray
    seconds: FloatArray

    @property
    def end_s(self) -> float:
        """Return when the last one is done."""
        return float(self.start_s[-1] + self.seconds[-1])


def passes_of(
    forward_s: tuple[float, ...],
    backward_s: tuple[float, ...],
    weight_s: tuple[float, ...] = (),
    *,
    pp: int,
    num_microbatches: int,
    schedule: str,
) -> list[Passes]:
    """Return every pass of every rank, in the order with the finish of ``rank_finish_s``.

    Arguments and errors as there; all micro-batches are simulated.
    """
    m = num_microbatches
    if pp == 1:
        return [_alone(forward_s, backward_s, m)]
    seconds: Seconds = (forward_s, backward_s, weight_s if schedule in SPLIT_BACKWARD else ())
    fixed = _in_fixed_order(seconds, pp, m, schedule)
    if schedule not in AUTOMATIC or len(forward_s) != pp:
        return fixed
    limits = candidates(pp, m, AUTOMATIC[schedule] * pp)
    found = [fixed, *(_in_made_order(seconds, limit) for limit in limits)]
    # ranks do not wait for one another: each takes the time from its first pass to its last
    return min(found, key=lambda ranks: _slowest_s(one.end_s - float(one.start_s[0]) for one in ranks))


def _alone(forward_s: tuple[float, ...], backward_s: tuple[float, ...], m: int) -> Passes:
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
    """Run the order of ``orders``; a pass starts its own length before it is done."""
    num_chunks, split = len(seconds[0]), bool(seconds[2])
    block_s, done_s = blocks_of(seconds, m)
    orders = orders_of(pp, num_chunks // pp, m, schedule)
    run_orders(orders, block_s, done_s, m=m, schedule=schedule)
    length, done = np.array(block_s), np.array(done_s)
    return [_read(np.array(order), length, done, num_chunks, m, split=split) for order in orders]


def _read(
    slots: IntArray, length_s: FloatArray, done_s: FloatArray, num_chunks: int, m: int, *, split: bool
) -> Passes:
    """Turn slots into passes: blocks 1 … C are forward, C + 1 … 2 C backward, then weight gradients."""
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


def _in_made_order(seconds: Seconds, limits: RankLimits) -> list[Passes]:
    """Return the order that ``automatic_finish_s`` makes within some limits.

    Each kind of pass runs its micro-batches in turn.
    """
    forward_s, _, weight_s = seconds
    input_s = input_gradients_s(seconds)
    length = {"forward": forward_s, "input": input_s, "weight": weight_s}
    code = {"forward": FORWARD, "input": INPUT, "weight": WEIGHT}
    ran: list[list[tuple[int, int, float, float]]] = [[] for _ in forward_s]
    counts = [dict.fromkeys(code, 0) for _ in forward_s]

    def on_pass(rank: int, kind: str, start_s: float) -> None:
        ran[rank].append((code[kind], counts[rank][kind], start_s, length[kind][rank]))
        counts[rank][kind] += 1

    automatic_finish_s(forward_s, input_s, weight_s, limits, on_pass)
    found = list[Passes]()
    for rank, rows in enumerate(ran):
        kind, micro, start_s, length_s = (np.array(column) for column in zip(*rows, strict=True))
        chunk = np.full(len(rows), rank)
        found.append(Passes(kind=kind, chunk=chunk, micro_batch=micro, start_s=start_s, seconds=length_s))
    return found


# --------------------------------------------------------------------------------------------------
# Many simulations of one schedule at once: passes that no other one keeps waiting run together.
#
# A schedule fixes which passes wait for which, whatever they take. Passes are sorted into *waves*: a wave
# waits for earlier ones only. One NumPy operation then runs a wave of every simulation, so that a hundred
# splits of one row cost little more than one. The result is that of ``simulate.rank_finish_s``.


_IN_CACHE = 2**17  # ends of passes that are still there when they are read again, 1 MiB
MAX_KEPT = 64  # schedules kept; one of 2^17 passes takes 4 MB


@dataclass(frozen=True, kw_only=True)
class Waves:
    """Passes of a schedule, wave by wave; pass numbers start at 1, pass 0 ends at time 0."""

    starts: tuple[int, ...]  # of each wave among the passes
    block: IntArray  # which duration a pass has: chunk c forward is c, backward C + c, weights 2 C + c
    own: IntArray  # the pass before it on its rank
    run: tuple[int, ...]  # of each wave, the first of ``own`` where those follow one another, else -1
    other: IntArray  # the pass before it of its micro-batch
    last: IntArray  # the last pass of each rank


@lru_cache(maxsize=MAX_KEPT)
def waves_of(pp: int, vpp: int, num_microbatches: int, schedule: str) -> Waves:
    """Return the waves of a schedule.

    Raises:
        InvalidPlanError: the schedule cannot run to its end.
    """
    m, chunks = num_microbatches, pp * vpp
    ranks = orders_of(pp, vpp, m, schedule)
    unit = (1.0,) * chunks  # with passes of one second a wave is what ends at the same time
    seconds = (unit, (2.0,) * chunks, unit) if schedule in SPLIT_BACKWARD else (unit, unit, ())
    block_s, end_s = blocks_of(seconds, m)
    run_orders(ranks, block_s, end_s, m=m, schedule=schedule)
    wave, orders = np.array(end_s), [np.array(slots) for slots in ranks]
    slots = np.concatenate(orders)
    before = np.concatenate([np.concatenate([[-1], order[:-1]]) for order in orders])
    number = np.zeros(len(wave), dtype=np.int64)
    order = np.argsort(wave[slots], kind="stable")
    number[slots[order]] = np.arange(1, len(slots) + 1)
    sorted_slots = slots[order]
    previous = before[order]
    starts = np.flatnonzero(np.diff(wave[sorted_slots], prepend=-1))
    own = np.where(previous < 0, 0, number[previous])
    gaps = np.concatenate([[0], np.cumsum(np.diff(own) != 1)])  # up to a pass, that follow none
    alone = gaps[np.append(starts[1:], len(slots)) - 1] > gaps[starts]
    at = sorted_slots // m
    of_weights = 2 * chunks + (at - 2 * chunks - 2) // 2
    return Waves(
        starts=(*starts.tolist(), len(slots)),
        # forward, backward, or weight (``orders``)
        block=np.where(at <= chunks, at - 1, np.where(at <= 2 * chunks, 3 * chunks - at, of_weights)),
        own=own,
        run=tuple(np.where(alone, -1, own[starts]).tolist()),
        other=number[sorted_slots - m],
        last=number[[slots[-1] for slots in ranks]],
    )


def finish_of_many_s(
    forward_s: FloatArray,
    backward_s: FloatArray,
    *,
    pp: int,
    num_microbatches: int,
    schedule: str,
    weight_s: FloatArray | None = None,
) -> FloatArray:
    """Return when each rank ends its last pass, (k, pp), for chunk times (k, C) of k splits.

    ``weight_s`` is the weight gradients' part of the backward pass, where the schedule splits it.
    """
    waves = waves_of(pp, forward_s.shape[1] // pp, num_microbatches, schedule)
    parts = [forward_s, backward_s]
    if weight_s is not None and schedule in SPLIT_BACKWARD:
        parts = [forward_s, backward_s - weight_s, weight_s]
    end = _ends_of_many_s(np.concatenate(parts, axis=1), waves)
    finish = np.asarray(end[waves.last].T)
    if schedule in BYPASSES_SYNC:  # counted from each rank's own start
        finish -= np.cumsum(forward_s[:, :pp], axis=1) - forward_s[:, :pp]
    return finish


def _ends_of_many_s(
    durations_s: FloatArray, waves: Waves, waits_for_own: BoolArray | None = None
) -> FloatArray:
    """Return when every pass ends, (passes + 1, k), for durations (k, X) numbered as in ``Waves``.

    ``waits_for_own``, of the same shape, is set where the pass before on the rank is the later of the two.
    """
    seconds = np.ascontiguousarray(durations_s.T)
    end = np.empty((len(waves.block) + 1, len(durations_s)))
    end[0] = 0.0
    block, own, other = waves.block, waves.own, waves.other
    if few := end.size <= _IN_CACHE:  # how long a pass takes, until it is known when it ends
        seconds.take(block, axis=0, out=end[1:], mode="clip")  # other modes copy through a buffer
    for start, stop, first in zip(waves.starts, waves.starts[1:], waves.run, strict=False):
        # ``take`` gathers rows several times faster than brackets
        passes = end[start + 1 : stop + 1]
        if not few:
            seconds.take(block[start:stop], axis=0, out=passes, mode="clip")
        ready = end.take(other[start:stop], axis=0)
        before = end.take(own[start:stop], axis=0) if first < 0 else end[first : first + stop - start]
        if waits_for_own is not None:
            np.greater_equal(before, ready, out=waits_for_own[start + 1 : stop + 1])
        np.maximum(ready, before, out=ready)
        passes += ready
    return end


def longest_paths(durations_s: FloatArray, tail_s: FloatArray, waves: Waves) -> tuple[IntArray, IntArray]:
    """Return the passes that the longest step is made of, and the rank that it ends on.

    Args:
        durations_s: seconds of every chunk's forward passes, backward passes (without weight gradients,
            where the schedule splits them) and weight gradients, (k, X).
        tail_s: seconds of each rank after its last pass, (k, pp).
        waves: of the schedule.

    Returns:
        How often the longest path runs each of the X, (k, X), and its last rank, (k,).
    """
    passes, each = len(waves.block), np.arange(len(durations_s))
    waits_for_own = np.zeros((passes + 1, len(each)), dtype=np.bool_)
    end = _ends_of_many_s(durations_s, waves, waits_for_own)
    rank = np.asarray((end[waves.last].T + tail_s).argmax(axis=1))
    own, other = (np.append(0, one)[:, None] * len(each) for one in (waves.own, waves.other))
    before = np.multiply(waits_for_own, own - other)  # ``where`` takes thrice as long
    before += other
    before += each
    on_path = np.empty((len(waves.starts), len(each)), dtype=np.int64)  # from its last pass to the start
    on_path[0] = waves.last[rank] * len(each) + each
    for late, early in pairwise(on_path):
        before.take(late, out=early, mode="clip")  # as if flat
    kinds = durations_s.shape[1]
    ran = np.append(kinds, waves.block)[on_path // len(each)] + each * (kinds + 1)
    counts = np.bincount(ran.ravel(), minlength=len(each) * (kinds + 1)).reshape(-1, kinds + 1)
    return counts[:, :kinds], rank
