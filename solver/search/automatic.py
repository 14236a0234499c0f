"""Zero-bubble schedules whose order is made for the times at hand, within a memory limit.

ZB-1p and ZB-2p of Qi et al. 2023 (arXiv:2401.10241, section 3.1): a heuristic runs forward passes ahead
of the first backward pass, then one of each in turn, fills gaps with weight gradients, or runs one to free
memory; it is tried with several parameters and the best order is taken. Here every rank runs an input
gradient if one is ready, else a forward pass if that keeps both of its limits, else a weight gradient;
tried with as many forward passes ahead as 1F1B has, as ZB-H2 has, and as memory allows. ``simulate`` also
tries the orders of ZB-H1 (within p) and ZB-H2 (within 2 p).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

# Memory of a micro-batch that waits for its weight gradient alone, over that of one in flight: 32 of
# 34 bytes a token and hidden unit with flash attention (arXiv:2401.10241, section 3).
WAITING_SHARE = 32.0 / 34.0


@dataclass(slots=True, kw_only=True)
class _Rank:
    """What one rank has run."""

    forward_end_s: list[float] = field(default_factory=list)
    input_end_s: list[float] = field(default_factory=list)
    weights: int = 0
    free_s: float = 0.0

    @property
    def waiting(self) -> int:
        """Micro-batches between their input gradient and their weight gradient."""
        return len(self.input_end_s) - self.weights

    @property
    def ahead(self) -> int:
        """Micro-batches between their forward and their backward pass."""
        return len(self.forward_end_s) - len(self.input_end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the ranks may do."""

    num_microbatches: int
    most_held: int  # micro-batches that a rank has memory for
    most_ahead: tuple[int, ...]  # by rank: micro-batches between forward and backward pass


def candidates(pp: int, num_microbatches: int, most_held: int) -> list[Limits]:
    """The parameters to try."""
    ahead = [
        tuple(min(pp - rank, most_held) for rank in range(pp)),
        tuple(min(2 * (pp - rank) - 1, most_held) for rank in range(pp)),
        (most_held,) * pp,
    ]
    return [
        Limits(num_microbatches=num_microbatches, most_held=most_held, most_ahead=most) for most in ahead
    ]


def automatic_finish_s(
    forward_s: tuple[float, ...],
    input_s: tuple[float, ...],
    weight_s: tuple[float, ...],
    limits: Limits,
    on_pass: Callable[[int, str, float], None] | None = None,
) -> tuple[list[float], float]:
    """When each rank ends its last pass, and the most micro-batches that a rank held at once.

    Args:
        forward_s: seconds of one micro-batch's forward pass by rank; the others likewise.
        input_s: input gradient.
        weight_s: weight gradient.
        limits: micro-batches, and how many of them may wait.
        on_pass: is told of every pass: its rank, its kind (forward, input, weight), when it starts.
    """
    last, peak = len(forward_s) - 1, 0.0
    ranks = [_Rank() for _ in forward_s]
    wake = [(0.0, rank) for rank in range(last + 1)]
    while wake:
        now, rank = heapq.heappop(wake)
        me = ranks[rank]
        kind = None if now < me.free_s else _next_pass(ranks, rank, now, limits)
        if kind is None:
            continue
        if on_pass is not None:
            on_pass(rank, kind, now)
        if kind == "forward":
            me.free_s = now + forward_s[rank]
            me.forward_end_s.append(me.free_s)
            heapq.heappush(wake, (me.free_s, min(rank + 1, last)))
        elif kind == "input":
            me.free_s = now + input_s[rank]
            me.input_end_s.append(me.free_s)
            heapq.heappush(wake, (me.free_s, max(rank - 1, 0)))
        else:
            me.free_s, me.weights = now + weight_s[rank], me.weights + 1
        peak = max(peak, me.ahead + WAITING_SHARE * me.waiting)
        heapq.heappush(wake, (me.free_s, rank))
    return [rank.free_s for rank in ranks], peak


def _next_pass(ranks: list[_Rank], rank: int, now: float, limits: Limits) -> str | None:
    """What a free rank runs next: input, forward or weight; None where it has to wait."""
    me = ranks[rank]
    behind = me.forward_end_s if rank == len(ranks) - 1 else ranks[rank + 1].input_end_s
    micro = len(me.input_end_s)
    if micro < len(behind) and behind[micro] <= now:
        return "input"
    micro = len(me.forward_end_s)
    held = me.ahead + WAITING_SHARE * me.waiting
    room = held <= limits.most_held - 1 and me.ahead < limits.most_ahead[rank]
    if micro < limits.num_microbatches and room:
        before = ranks[rank - 1].forward_end_s if rank else None
        if before is None or (micro < len(before) and before[micro] <= now):
            return "forward"
    return "weight" if me.weights < len(me.input_end_s) else None
