"""Event simulation of pipeline schedules: the reference evaluator of step time.

Every rank runs its passes in the schedule's fixed order; a pass starts when the rank is free and
its input has arrived. Orders follow Megatron-Core's ``forward_backward_pipelining_without_interleaving``
and ``…_with_interleaving`` (groups of pp micro-batches).
"""

from __future__ import annotations

from collections.abc import Sequence

from solver.errors import InvalidPlanError

Pass = tuple[bool, int, int]  # forward?, chunk in model order, micro-batch


def rank_order(rank: int, *, pp: int, vpp: int, num_microbatches: int, schedule: str) -> list[Pass]:
    """The passes of one rank in the order in which it runs them."""
    total = num_microbatches * vpp
    group = pp * vpp

    def located(k: int, forward: bool) -> Pass:
        if vpp == 1:
            return forward, rank, k
        virtual = (k % group) // pp
        chunk = virtual if forward else vpp - 1 - virtual
        return forward, chunk * pp + rank, (k // group) * pp + k % pp

    if schedule == "gpipe":
        warmup = total
    elif vpp == 1:
        warmup = min(total, pp - rank - 1)
    else:
        warmup = min(total, 2 * (pp - rank - 1) + (vpp - 1) * pp)
    order = [located(k, forward=True) for k in range(warmup)]
    for k in range(total - warmup):
        order += [located(warmup + k, forward=True), located(k, forward=False)]
    return order + [located(k, forward=False) for k in range(total - warmup, total)]


def rank_finish_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    pp: int,
    num_microbatches: int,
    schedule: str,
) -> list[float]:
    """When each of the ``pp`` ranks ends its last pass, in seconds from the start.

    Args:
        forward_s: seconds of one micro-batch through each chunk, pp * vpp entries in model order.
        backward_s: the same for the backward pass.
        pp: pipeline ranks.
        num_microbatches: per step; a multiple of pp when chunks are interleaved.
        schedule: none, gpipe, 1f1b or interleaved_1f1b.

    Raises:
        InvalidPlanError: the schedule cannot run to its end (micro-batches do not fit its groups).
    """
    num_chunks = len(forward_s)
    vpp = num_chunks // pp
    orders = [
        rank_order(rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches, schedule=schedule)
        for rank in range(pp)
    ]
    forward_end = [[-1.0] * num_microbatches for _ in range(num_chunks)]
    backward_end = [[-1.0] * num_microbatches for _ in range(num_chunks)]
    clock = [0.0] * pp
    position = [0] * pp
    waiting = list(range(pp))
    while waiting:
        before = sum(position)
        for rank in waiting:
            order, now, at = orders[rank], clock[rank], position[rank]
            while at < len(order):
                forward, chunk, micro = order[at]
                if forward:
                    ready = forward_end[chunk - 1][micro] if chunk else 0.0
                elif chunk == num_chunks - 1:
                    ready = forward_end[chunk][micro]
                else:
                    ready = backward_end[chunk + 1][micro]
                if ready < 0.0:
                    break
                now = max(now, ready) + (forward_s[chunk] if forward else backward_s[chunk])
                (forward_end if forward else backward_end)[chunk][micro] = now
                at += 1
            clock[rank], position[rank] = now, at
        if sum(position) == before:
            raise InvalidPlanError(f"schedule {schedule} cannot run {num_microbatches} micro-batches")
        waiting = [rank for rank in waiting if position[rank] < len(orders[rank])]
    return clock
