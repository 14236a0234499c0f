"""Event simulation of pipeline schedules: the reference evaluator of step time.

Every rank runs its passes in the schedule's fixed order (``orders``), or in the order that an automatic
schedule makes for these times (``automatic``); a pass starts when the rank is free and its input has
arrived. Forward passes and backward passes are events; where a schedule splits the backward pass, its
input gradient and its weight gradient are one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from solver.cost.schedule import AUTOMATIC, BYPASSES_SYNC, SPLIT_BACKWARD, V_SHAPED
from solver.errors import InvalidPlanError
from solver.search.automatic import automatic_finish_s, candidates
from solver.search.orders import slots_of
from solver.search.watch import look

MAX_PASSES = 2**18  # of all ranks together; about a twentieth of a second
_AUTOMATIC_PASSES = 2**15  # the same where the order is made on the way
Pass = tuple[bool, int, int]  # forward?, chunk in model order, micro-batch


def rank_order(rank: int, *, pp: int, vpp: int, num_microbatches: int, schedule: str) -> list[Pass]:
    """The passes of one rank in the order in which it runs them; the backward pass is not split."""
    slots = slots_of(rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches, schedule=schedule)
    located = [divmod(slot, num_microbatches) for slot in slots]
    last = pp * vpp
    return [
        (block <= last, block - 1 if block <= last else 2 * last - block, micro) for block, micro in located
    ]


def rank_finish_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    pp: int,
    num_microbatches: int,
    schedule: str,
    weight_s: Sequence[float] | None = None,
) -> list[float]:
    """When each of the ``pp`` ranks ends its last pass, in seconds from the start of the step.

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
        weight_s: what of each chunk's backward pass is its weight gradient; a third of forward and
            backward where it is not given and the schedule splits the backward pass.

    Raises:
        InvalidPlanError: the schedule cannot run to its end (micro-batches do not fit its groups).
    """
    forward, backward, m = tuple(forward_s), tuple(backward_s), num_microbatches
    if pp == 1:
        return [m * (sum(forward) + sum(backward))]
    weight: tuple[float, ...] = ()
    if schedule in SPLIT_BACKWARD:
        weight = tuple(weight_s) if weight_s is not None else third_s(forward, backward)
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


def third_s(forward_s: tuple[float, ...], backward_s: tuple[float, ...]) -> tuple[float, ...]:
    """Weight gradients of chunks whose three kinds of pass take equally long; at most the backward pass."""
    return tuple(min((f + b) / 3.0, b) for f, b in zip(forward_s, backward_s, strict=True))


def _rank_of(chunk: int, pp: int, num_chunks: int, schedule: str) -> int:
    """The rank that holds a chunk."""
    if schedule in V_SHAPED and num_chunks == 2 * pp:
        return min(chunk, 2 * pp - 1 - chunk)
    return chunk % pp


def _growth_s(forward_s: tuple[float, ...], backward_s: tuple[float, ...], pp: int, schedule: str) -> float:
    """The least that one more micro-batch adds to a long step: the slowest rank's time for it."""
    forward, backward = [0.0] * pp, [0.0] * pp
    for chunk, (f, b) in enumerate(zip(forward_s, backward_s, strict=True)):
        rank = _rank_of(chunk, pp, len(forward_s), schedule)
        forward[rank] += f
        backward[rank] += b
    if schedule in ("gpipe", "looped_bfs"):  # the slowest forward and the slowest backward, one by one
        return max(forward) + max(backward)
    return max(f + b for f, b in zip(forward, backward, strict=True))


@lru_cache(maxsize=4096)
def _finish_s(seconds: tuple[tuple[float, ...], ...], m: int, *, pp: int, schedule: str) -> list[float]:
    """The same; a plan is simulated when it is ranked, predicted and checked, so results are kept.

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
    return min(found, key=max)


def input_gradients_s(seconds: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    """The backward passes without their weight gradients, where those are passes of their own."""
    _, backward_s, weight_s = seconds
    return tuple(b - w for b, w in zip(backward_s, weight_s, strict=True)) if weight_s else backward_s


def blocks_of(seconds: tuple[tuple[float, ...], ...], m: int) -> tuple[list[float], list[float]]:
    """Seconds of each block of slots, and when each is done: 0: always, -1: not yet."""
    forward_s, _, weight_s = seconds
    block_s = [0.0, *forward_s, *reversed(input_gradients_s(seconds))]
    end = [0.0] * m + [-1.0] * (m * (len(block_s) - 1))
    for own in weight_s:
        block_s += [0.0, own]
        end += [0.0] * m + [-1.0] * m
    return block_s, end


@lru_cache(maxsize=8)
def orders_of(pp: int, vpp: int, m: int, schedule: str) -> list[list[int]]:
    """The passes of all ranks; nobody changes them."""
    return [slots_of(rank, pp=pp, vpp=vpp, num_microbatches=m, schedule=schedule) for rank in range(pp)]


def _from_own_start_s(finish_s: list[float], forward_s: tuple[float, ...]) -> list[float]:
    """Each rank's time from the start of its first forward pass, not of the first rank's.

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
    """Run every rank's passes; ``end`` holds when each slot is done, or -1 while it is not."""
    pp = len(orders)
    clock, position, waiting = [0.0] * pp, [0] * pp, list(range(pp))
    while waiting:
        before = sum(position)
        for rank in waiting:
            order, now, at = orders[rank], clock[rank], position[rank]
            last = len(order)
            while at < last:
                slot = order[at]
                ready = end[slot - m]
                if ready < 0.0:
                    break
                now = (now if now > ready else ready) + block_s[slot // m]  # noqa: FURB136 (twice as fast)
                end[slot] = now
                at += 1
            clock[rank], position[rank] = now, at
        if sum(position) == before:
            raise InvalidPlanError(f"schedule {schedule} cannot run {m} micro-batches")
        waiting = [rank for rank in waiting if position[rank] < len(orders[rank])]
    return clock
