"""Event simulation of pipeline schedules: the reference evaluator of step time.

Every rank runs its passes in the schedule's fixed order; a pass starts when the rank is free and
its input has arrived. Orders follow Megatron-Core's ``forward_backward_pipelining_without_interleaving``
and ``…_with_interleaving`` (groups of pp micro-batches).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from solver.errors import InvalidPlanError

MAX_PASSES = 2**18  # of all ranks together; about a twentieth of a second
Pass = tuple[bool, int, int]  # forward?, chunk in model order, micro-batch


def _slots(rank: int, *, pp: int, vpp: int, num_microbatches: int, schedule: str) -> list[int]:
    """The passes of one rank in its order, as slots ``block * m + micro-batch``.

    A micro-batch visits blocks 1 … 2 C one after the other: chunks 0 … C-1 forward are blocks
    1 … C, chunks C-1 … 0 backward are blocks C+1 … 2 C. So every pass waits for slot - m.
    """
    m, num_chunks = num_microbatches, pp * vpp
    total, group = m * vpp, pp * vpp
    forward, backward = [], []
    for k in range(total):
        virtual = (k % group) // pp if vpp > 1 else 0
        micro = (k // group) * pp + k % pp if vpp > 1 else k
        forward.append((virtual * pp + rank + 1) * m + micro)
        backward.append((2 * num_chunks - (vpp - 1 - virtual) * pp - rank) * m + micro)
    if schedule == "gpipe":
        warmup = total
    elif vpp == 1:
        warmup = min(total, pp - rank - 1)
    else:
        warmup = min(total, 2 * (pp - rank - 1) + (vpp - 1) * pp)
    alternating = [0] * (2 * (total - warmup))
    alternating[0::2], alternating[1::2] = forward[warmup:], backward[: total - warmup]
    return forward[:warmup] + alternating + backward[total - warmup :]


def rank_order(rank: int, *, pp: int, vpp: int, num_microbatches: int, schedule: str) -> list[Pass]:
    """The passes of one rank in the order in which it runs them."""
    slots = _slots(rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches, schedule=schedule)
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
) -> list[float]:
    """When each of the ``pp`` ranks ends its last pass, in seconds from the start.

    Every pass is simulated up to MAX_PASSES of them. Beyond, the first micro-batches are, and each
    further one adds what it added to the later half of those: a max-plus linear system grows by its
    largest cycle mean (Baccelli et al. 1992, Synchronization and Linearity, theorem 3.28). That is the
    time of the slowest rank, or more where uneven chunks interleave and ranks wait for one another.

    Args:
        forward_s: seconds of one micro-batch through each chunk, pp * vpp entries in model order.
        backward_s: the same for the backward pass.
        pp: pipeline ranks.
        num_microbatches: per step; a multiple of pp when chunks are interleaved.
        schedule: none, gpipe, 1f1b or interleaved_1f1b.

    Raises:
        InvalidPlanError: the schedule cannot run to its end (micro-batches do not fit its groups).
    """
    forward, backward, m = tuple(forward_s), tuple(backward_s), num_microbatches
    if pp == 1:
        return [m * (sum(forward) + sum(backward))]
    few = min(m, max(MAX_PASSES // (2 * len(forward) * pp), 4) * pp)
    simulated = _finish_s(forward, backward, pp, few, schedule)
    if few == m:
        return list(simulated)
    half = few // (2 * pp) * pp
    late = (max(simulated) - max(_finish_s(forward, backward, pp, half, schedule))) / (few - half)
    further = (m - few) * max(late, _growth_s(forward, backward, pp, schedule))
    return [finish + further for finish in simulated]


def _growth_s(forward_s: tuple[float, ...], backward_s: tuple[float, ...], pp: int, schedule: str) -> float:
    """The least that one more micro-batch adds to a long step: the slowest rank's time for it."""
    forward = [sum(forward_s[rank::pp]) for rank in range(pp)]
    backward = [sum(backward_s[rank::pp]) for rank in range(pp)]
    if schedule == "gpipe":  # the slowest forward and the slowest backward, one phase after the other
        return max(forward) + max(backward)
    return max(f + b for f, b in zip(forward, backward, strict=True))


@lru_cache(maxsize=4096)
def _finish_s(
    forward_s: tuple[float, ...], backward_s: tuple[float, ...], pp: int, m: int, schedule: str
) -> list[float]:
    """The same; a plan is simulated when it is ranked, predicted and checked, so results are kept."""
    vpp = len(forward_s) // pp
    block_s = [0.0, *forward_s, *reversed(backward_s)]
    orders = [_slots(rank, pp=pp, vpp=vpp, num_microbatches=m, schedule=schedule) for rank in range(pp)]
    end = [0.0] * m + [-1.0] * (m * (len(block_s) - 1))
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
