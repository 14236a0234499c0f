"""Order in which each rank runs its passes, by schedule.

Sources: 1F1B and interleaved 1F1B follow Megatron-Core's
``forward_backward_pipelining_without_interleaving`` and ``…_with_interleaving`` (groups of pp
micro-batches); gpipe, looped_bfs, interleaved_zb, zb_v and dualpipe_v follow
``torch.distributed.pipelining.schedules`` (PyTorch 2.8); zb_h1 and zb_h2 figures 2 and 3 of Qi et al.
2023 (arXiv:2401.10241), which for zb_h1 is PyTorch's interleaved_zb with one chunk a rank; zb_1p and
zb_2p have these orders as one of those that ``simulate`` tries; zb_v is the order of Qi et al. 2024
(arXiv:2405.15362). dualpipe_v is run as zb_v: what it hides of the exchanges of
experts is in the times of passes (``meshwright.solver.cost.context.paired_passes``).

A pass is a *slot* ``block * m + micro-batch``. A micro-batch visits blocks 1 … 2 C one after the other:
chunks 0 … C-1 forward are blocks 1 … C, chunks C-1 … 0 backward are blocks C+1 … 2 C. Where the backward
pass is split, those are the input gradients, and the weight gradient of chunk c is block 2 C + 2 + 2 c,
behind a block that is always done. So every pass waits for slot - m alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np

from meshwright.solver.configuration import SPLIT_BACKWARD, FloatArray, IntArray
from meshwright.solver.schedules.schedule import AUTOMATIC, V_SHAPED

Number = TypeVar("Number", int, IntArray)
_TWICE = ("zb_h2", "zb_2p")  # run twice as far ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Slot numbers of the passes of one step."""

    num_chunks: int
    num_microbatches: int

    def forward(self, chunk: Number, micro: Number) -> Number:
        """Return the slot of a forward pass."""
        return (chunk + 1) * self.num_microbatches + micro

    def backward(self, chunk: Number, micro: Number) -> Number:
        """Return the slot of a backward pass, or of its input gradient if it is split."""
        return (2 * self.num_chunks - chunk) * self.num_microbatches + micro

    def weight(self, chunk: Number, micro: Number) -> Number:
        """Return the slot of the weight gradient of a split backward pass."""
        return (2 * self.num_chunks + 2 + 2 * chunk) * self.num_microbatches + micro


def slots_of(rank: int, *, pp: int, vpp: int, num_microbatches: int, schedule: str) -> list[int]:
    """Return the passes of one rank in the order in which it runs them.

    Args:
        rank: of the pipeline, from 0.
        pp: ranks of the pipeline.
        vpp: chunks of a rank.
        num_microbatches: of a step; in rounds of ``pp`` where chunks interleave.
        schedule: its name; one of ``AUTOMATIC`` has the fixed order that is tried next to its own.
    """
    slots = Slots(num_chunks=pp * vpp, num_microbatches=num_microbatches)
    if schedule in V_SHAPED and vpp > 1:
        return _v_shaped(rank, pp, slots)
    if schedule == "looped_bfs":
        return _breadth_first(rank, pp, vpp, slots)
    # forward passes: pp micro-batches of a chunk, then of the next
    place = np.arange(num_microbatches * vpp)
    chunk = place % (pp * vpp) // pp * pp + rank
    micro = place // (pp * vpp) * pp + place % pp
    backward_chunk = (vpp - 1) * pp + 2 * rank - chunk
    forward, backward = slots.forward(chunk, micro), slots.backward(backward_chunk, micro)
    behind = pp - rank - 1
    if schedule in _TWICE or (vpp > 1 and schedule not in SPLIT_BACKWARD):
        behind *= 2
    # forward passes before a rank alternates; one more precedes its first backward pass
    warmup = min(len(chunk), behind + (vpp - 1) * pp)
    if schedule in SPLIT_BACKWARD:
        weight = slots.weight(backward_chunk, micro).tolist()
        lag = 2 * rank if schedule in _TWICE else rank
        return _with_weights(forward.tolist(), backward.tolist(), weight, warmup=warmup, lag=lag)
    if schedule == "gpipe":
        warmup = len(chunk)
    alternating = len(chunk) - warmup
    order = np.concatenate([forward, backward])
    order[warmup : warmup + 2 * alternating : 2] = forward[warmup:]
    order[warmup + 1 : warmup + 2 * alternating : 2] = backward[:alternating]
    order[warmup + 2 * alternating :] = backward[alternating:]
    found: list[int] = order.tolist()
    return found


def _with_weights(
    forward: list[int], backward: list[int], weight: list[int], *, warmup: int, lag: int
) -> list[int]:
    """Return forward, input gradient, and the weight gradient of ``lag`` backward passes ago, in turn.

    Args:
        forward: slots of forward passes in their order; the others likewise.
        backward: of input gradients.
        weight: of weight gradients.
        warmup: forward passes before the first input gradient.
        lag: input gradients before the first weight gradient.
    """
    order = forward[:warmup]
    for k, slot in enumerate(backward):
        order += forward[warmup + k : warmup + k + 1]
        order.append(slot)
        if k >= lag:
            order.append(weight[k - lag])
    return order + weight[max(len(weight) - lag, 0) :]


def _breadth_first(rank: int, pp: int, vpp: int, slots: Slots) -> list[int]:
    """Run all micro-batches through one chunk after the other, then back in reverse."""
    chunks, micros = range(rank, pp * vpp, pp), range(slots.num_microbatches)
    forward = [slots.forward(chunk, micro) for chunk in chunks for micro in micros]
    return forward + [
        slots.backward(chunk, micro) for chunk in reversed(chunks) for micro in reversed(micros)
    ]


def _v_shaped(rank: int, pp: int, slots: Slots) -> list[int]:
    """Return a V's order; a rank holds chunks ``rank`` and ``2 pp - 1 - rank``.

    Passes of phantom micro-batches are dropped. The steady state needs 2 pp - 1 micro-batches; a step
    with fewer runs the same order without the rest.
    """
    m, ends = slots.num_microbatches, (rank, 2 * pp - 1 - rank)
    micros = max(2 * pp - 1, m)
    done = {(kind, end): 0 for kind in "FBW" for end in (0, 1)}
    slot_of = {"F": slots.forward, "B": slots.backward, "W": slots.weight}
    order: list[int] = []

    def run(*passes: str) -> None:
        """Run passes such as ``F0``: the next forward pass of the first chunk."""
        for name in passes:
            kind, end = name[0], int(name[1])
            micro = done[kind, end]
            done[kind, end] += 1
            if micro < m:
                order.append(slot_of[kind](ends[end], micro))

    run(*["F0"] * (2 * (pp - rank) - 1))
    run(*["F1", "F0"] * rank)
    run(*["F1", "B1", "W1"] * (pp - rank))
    while done["F", 1] < done["F", 0] or done["F", 0] < micros:
        if done["F", 0] < micros:
            run("F0")
        run("B0", "W0", "F1", "B1", "W1")
    run(*["B0", "B1"] * rank)
    run(*["B0", "W0"] * (pp - rank))
    run(*["W1"] * (done["B", 1] - done["W", 1]))
    run(*["W0"] * (done["B", 0] - done["W", 0]))
    return order


# --------------------------------------------------------------------------------------------------
# Zero-bubble schedules with an order made for the times at hand, within a memory limit.
#
# ZB-1p and ZB-2p of Qi et al. 2023 (arXiv:2401.10241, section 3.1): a heuristic runs forward passes ahead
# of the first backward pass, then one of each in turn, fills gaps with weight gradients, or runs one to
# free memory; it is tried with several parameters and the best order is taken. Here every rank runs an
# input gradient if one is ready, else a forward pass if that keeps both of its limits, else a weight
# gradient; tried with as many forward passes ahead as 1F1B has, as ZB-H2 has, and as memory allows.
# ``simulate`` also tries the orders of ZB-H1 (within p) and ZB-H2 (within 2 p).


# Memory of a micro-batch that waits for its weight gradient alone, over that of one in flight: 32 of
# 34 bytes a token and hidden unit with flash attention (arXiv:2401.10241, section 3).
WAITING_SHARE = 32.0 / 34.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLimits:
    """Limits of the ranks."""

    num_microbatches: int
    most_held: int  # micro-batches that a rank has memory for
    most_ahead: tuple[int, ...]  # by rank: micro-batches between forward and backward pass


def candidates(pp: int, num_microbatches: int, most_held: int) -> list[RankLimits]:
    """Return the parameters to try."""
    ahead = [
        tuple(min(pp - rank, most_held) for rank in range(pp)),
        tuple(min(2 * (pp - rank) - 1, most_held) for rank in range(pp)),
        (most_held,) * pp,
    ]
    return [
        RankLimits(num_microbatches=num_microbatches, most_held=most_held, most_ahead=most)
        for most in ahead
    ]


def automatic_finish_s(
    forward_s: tuple[float, ...],
    input_s: tuple[float, ...],
    weight_s: tuple[float, ...],
    limits: RankLimits,
    on_pass: Callable[[int, str, float], None] | None = None,
) -> tuple[list[float], float]:
    """Return when each rank ends its last pass, and the most micro-batches held by a rank at once.

    Args:
        forward_s: seconds of one micro-batch's forward pass by rank; the others likewise.
        input_s: input gradient.
        weight_s: weight gradient.
        limits: micro-batches, and how many of them may wait.
        on_pass: called with every pass: its rank, its kind (forward, input, weight), when it starts.
    """
    most_held, most_ahead, m = limits.most_held, limits.most_ahead, limits.num_microbatches
    p = len(forward_s)
    # ends of passes by rank: forward_end[r + 1] is of rank r, and the last one starts gradients
    forward_end: list[list[float]] = [[0.0] * m, *([] for _ in range(p))]
    input_end: list[list[float]] = [*([] for _ in range(p)), forward_end[p]]
    ahead, waiting, free, peak = [0] * p, [0] * p, [0.0] * p, 0.0
    wakes = [(0.0, rank) for rank in range(p)]
    while wakes:
        now, rank = heappop(wakes)
        if now < free[rank]:
            continue
        # when the ranks before and behind have handed on their forward passes and gradients
        handed_on, handed_back = forward_end[rank], input_end[rank + 1]
        num_forwards, num_inputs = len(forward_end[rank + 1]), len(input_end[rank])
        held = ahead[rank] + WAITING_SHARE * waiting[rank]
        if num_inputs < len(handed_back) and handed_back[num_inputs] <= now:
            kind, end, neighbour = "input", now + input_s[rank], rank - 1
            input_end[rank].append(end)
            ahead[rank] -= 1
            waiting[rank] += 1
        elif (
            num_forwards < len(handed_on)
            and handed_on[num_forwards] <= now
            and held <= most_held - 1
            and ahead[rank] < most_ahead[rank]
        ):
            kind, end, neighbour = "forward", now + forward_s[rank], rank + 1
            forward_end[rank + 1].append(end)
            ahead[rank] += 1
        elif waiting[rank]:
            kind, end, neighbour = "weight", now + weight_s[rank], -1
            waiting[rank] -= 1
        else:
            continue
        if on_pass is not None:
            on_pass(rank, kind, now)
        free[rank] = end
        heappush(wakes, (end, rank))
        if 0 <= neighbour < p and free[neighbour] < end:  # a busy rank looks again when it is free
            heappush(wakes, (end, neighbour))
        peak = max(peak, ahead[rank] + WAITING_SHARE * waiting[rank])
    return free, peak


# --------------------------------------------------------------------------------------------------
# Many orders made for their times at once: ``automatic_finish_s`` for all splits and limits of a row
# together.
#
# Every simulation runs one pass a round, the one that starts next of all its ranks. A rank's next pass
# starts when the rank is free and the pass is ready; nothing that is not begun yet can be ready before
# that. So the order is the one that ``automatic_finish_s`` makes, one array operation a round for all
# simulations.


def automatic_finish_of_many_s(
    forward_s: FloatArray,
    input_s: FloatArray,
    weight_s: FloatArray,
    *,
    num_microbatches: int,
    schedule: str,
) -> FloatArray:
    """Return when each rank ends its last pass, under each of ``candidates``' limits, shape (3, k, p).

    Args:
        forward_s: seconds of one micro-batch's forward pass, (k, p); the others likewise.
        input_s: input gradient.
        weight_s: weight gradient.
        num_microbatches: per step.
        schedule: one of ``AUTOMATIC``.
    """
    k, p = forward_s.shape
    limits = candidates(p, num_microbatches, AUTOMATIC[schedule] * p)
    ahead = np.repeat(np.array([limit.most_ahead for limit in limits]), k, axis=0)
    seconds = np.stack([input_s, forward_s, weight_s], axis=2)
    seconds = np.tile(seconds, (len(limits), 1, 1))
    finish = _finish_s(seconds, num_microbatches, limits[0].most_held, ahead)
    return finish.reshape(len(limits), k, p)


def _finish_s(seconds: FloatArray, m: int, most_held: int, most_ahead: IntArray) -> FloatArray:
    """Return when each rank ends its last pass, (k, p).

    Args:
        seconds: of an input gradient, a forward pass and a weight gradient, (k, p, 3).
        m: micro-batches of a step.
        most_held: micro-batches that a rank has memory for.
        most_ahead: those that may be between forward and backward pass, (k, p).
    """
    k, p = most_ahead.shape
    simulation, rank, last = np.arange(k), np.arange(p)[None, :], p - 1
    # when passes end, by rank and micro-batch, forward ones a rank later; micro-batch m never
    forward_end, input_end = np.full((k, p + 1, m + 1), np.inf), np.full((k, p + 1, m + 1), np.inf)
    forward_end[:, 0, :m] = 0.0
    done, free = np.zeros((k, p, 3), dtype=np.int64), np.zeros((k, p))
    ready = np.empty((k, p, 3))
    for _ in range(3 * m * p):
        num_inputs, num_forwards, num_weights = done[..., 0], done[..., 1], done[..., 2]
        in_flight = num_forwards - num_inputs
        waiting = num_inputs - num_weights
        room = in_flight + WAITING_SHARE * waiting <= most_held - 1
        room &= in_flight < most_ahead
        ready[..., 0] = input_end[simulation[:, None], rank + 1, num_inputs]
        ready[:, last, 0] = forward_end[simulation, p, num_inputs[:, last]]
        ready[..., 1] = np.where(room, forward_end[simulation[:, None], rank, num_forwards], np.inf)
        ready[..., 2] = np.where(waiting > 0, 0.0, np.inf)
        start = np.maximum(ready.min(axis=2), free)
        next_rank = start.argmin(axis=1)
        now = start[simulation, next_rank]
        kind = (ready[simulation, next_rank] <= now[:, None]).argmax(axis=1)  # the first that is ready
        micro = done[simulation, next_rank, kind]
        end = now + seconds[simulation, next_rank, kind]
        free[simulation, next_rank] = end
        done[simulation, next_rank, kind] += 1
        chosen = kind == 0
        input_end[simulation[chosen], next_rank[chosen], micro[chosen]] = end[chosen]
        chosen = kind == 1
        forward_end[simulation[chosen], next_rank[chosen] + 1, micro[chosen]] = end[chosen]
    return free
