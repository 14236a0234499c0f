"""Many simulations of one schedule at once: passes that no other one keeps waiting run together.

A schedule fixes which passes wait for which, whatever they take. Passes are sorted into *waves*: a wave
waits for earlier ones only. One NumPy operation then runs a wave of every simulation, so that a hundred
splits of one row cost little more than one. The result is that of ``simulate.rank_finish_s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.cost.schedule import BYPASSES_SYNC, SPLIT_BACKWARD
from solver.errors import InvalidPlanError
from solver.search.orders import slots_of

MAX_KEPT = 64  # schedules kept; one of 2^17 passes takes 4 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """The passes of a schedule, wave by wave; pass numbers start at 1, pass 0 ends at time 0."""

    starts: tuple[int, ...]  # of each wave among the passes
    block: IntArray  # which duration a pass has: chunk c forward is c, backward C + c, weights 2 C + c
    own: IntArray  # the pass before it on its rank
    other: IntArray  # the pass before it of its micro-batch
    last: IntArray  # the last pass of each rank


@lru_cache(maxsize=MAX_KEPT)
def waves_of(pp: int, vpp: int, num_microbatches: int, schedule: str) -> Waves:
    """The waves of a schedule.

    Raises:
        InvalidPlanError: the schedule cannot run to its end.
    """
    m, chunks = num_microbatches, pp * vpp
    orders = [
        np.array(slots_of(rank, pp=pp, vpp=vpp, num_microbatches=m, schedule=schedule))
        for rank in range(pp)
    ]
    wave = _wave_numbers([order.tolist() for order in orders], m, chunks)
    slots = np.concatenate(orders)
    before = np.concatenate([np.concatenate([[-1], order[:-1]]) for order in orders])
    number = np.zeros(len(wave), dtype=np.int64)
    order = np.argsort(wave[slots], kind="stable")
    number[slots[order]] = np.arange(1, len(slots) + 1)
    sorted_slots = slots[order]
    previous = before[order]
    return Waves(
        starts=(*np.flatnonzero(np.diff(wave[sorted_slots], prepend=-1)).tolist(), len(slots)),
        block=_durations(sorted_slots // m, chunks),
        own=np.where(previous < 0, 0, number[previous]),
        other=number[sorted_slots - m],
        last=number[[ranked[-1] for ranked in orders]],
    )


def _durations(block: IntArray, chunks: int) -> IntArray:
    """Which duration the passes of a block have (``orders``): forward, backward, or weight gradients."""
    weight = 2 * chunks + (block - 2 * chunks - 2) // 2
    return np.where(block <= chunks, block - 1, np.where(block <= 2 * chunks, 3 * chunks - block, weight))


def _wave_numbers(orders: list[list[int]], m: int, chunks: int) -> IntArray:
    """The wave of every slot: one more than the later of the two passes that it waits for."""
    wave = [0] * m + [-1] * (m * 2 * chunks) + ([0] * m + [-1] * m) * chunks
    clock, position, waiting = [0] * len(orders), [0] * len(orders), list(range(len(orders)))
    while waiting:
        before = sum(position)
        for rank in waiting:
            now, at, order = clock[rank], position[rank], orders[rank]
            last = len(order)
            while at < last:
                slot = order[at]
                ready = wave[slot - m]
                if ready < 0:
                    break
                now = (now if now > ready else ready) + 1  # noqa: FURB136 (twice as fast)
                wave[slot] = now
                at += 1
            clock[rank], position[rank] = now, at
        if sum(position) == before:
            raise InvalidPlanError("the schedule cannot run to its end")
        waiting = [rank for rank in waiting if position[rank] < len(orders[rank])]
    return np.array(wave, dtype=np.int64)


def finish_of_many_s(
    forward_s: FloatArray,
    backward_s: FloatArray,
    *,
    pp: int,
    num_microbatches: int,
    schedule: str,
    weight_s: FloatArray | None = None,
) -> FloatArray:
    """When each rank ends its last pass, (k, pp), for chunk times (k, C) of k splits.

    ``weight_s`` is what of the backward pass its weight gradients take, where the schedule splits it.
    """
    waves = waves_of(pp, forward_s.shape[1] // pp, num_microbatches, schedule)
    parts = [forward_s, backward_s]
    if weight_s is not None and schedule in SPLIT_BACKWARD:
        parts = [forward_s, backward_s - weight_s, weight_s]
    seconds = np.ascontiguousarray(np.concatenate(parts, axis=1).T)
    end = np.empty((len(waves.block) + 1, len(forward_s)))
    end[0] = 0.0
    for start, stop in pairwise(waves.starts):  # ``take`` gathers rows several times faster than brackets
        ready = end.take(waves.own[start:stop], axis=0)
        np.maximum(ready, end.take(waves.other[start:stop], axis=0), out=ready)
        np.add(ready, seconds.take(waves.block[start:stop], axis=0), out=end[start + 1 : stop + 1])
    finish = np.asarray(end[waves.last].T)
    if schedule in BYPASSES_SYNC:  # counted from each rank's own start
        finish -= np.cumsum(forward_s[:, :pp], axis=1) - forward_s[:, :pp]
    return finish
