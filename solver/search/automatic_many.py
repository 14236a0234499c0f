"""Many orders made for their times at once: ``automatic`` for all splits and limits of a row together.

Every simulation runs one pass a round, the one that starts next of all its ranks. A rank's next pass starts
when the rank is free and the pass is ready; nothing that is not begun yet can be ready before that. So the
order is the one that ``automatic`` makes, one array operation a round for all simulations.
"""

from __future__ import annotations

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.cost.schedule import AUTOMATIC
from solver.search.automatic import WAITING_SHARE, candidates


def automatic_finish_of_many_s(
    forward_s: FloatArray,
    input_s: FloatArray,
    weight_s: FloatArray,
    *,
    num_microbatches: int,
    schedule: str,
) -> FloatArray:
    """When each rank ends its last pass, by ``automatic.candidates``' limits, shape (3, k, p).

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
    """The same; ``seconds`` are input gradients, forward passes and weight gradients, (k, p, 3)."""
    k, p = most_ahead.shape
    every, rank, last = np.arange(k), np.arange(p)[None, :], p - 1
    # when passes end, by rank and micro-batch, forward ones a rank later; micro-batch m never
    forward_end, input_end = np.full((k, p + 1, m + 1), np.inf), np.full((k, p + 1, m + 1), np.inf)
    forward_end[:, 0, :m] = 0.0
    done, free = np.zeros((k, p, 3), dtype=np.int64), np.zeros((k, p))
    ready = np.empty((k, p, 3))
    for _ in range(3 * m * p):
        inputs, forwards, weights = done[..., 0], done[..., 1], done[..., 2]
        in_flight = forwards - inputs
        waiting = inputs - weights
        room = in_flight + WAITING_SHARE * waiting <= most_held - 1
        room &= in_flight < most_ahead
        ready[..., 0] = input_end[every[:, None], rank + 1, inputs]
        ready[:, last, 0] = forward_end[every, p, inputs[:, last]]
        ready[..., 1] = np.where(room, forward_end[every[:, None], rank, forwards], np.inf)
        ready[..., 2] = np.where(waiting > 0, 0.0, np.inf)
        start = np.maximum(ready.min(axis=2), free)
        at = start.argmin(axis=1)
        now = start[every, at]
        kind = (ready[every, at] <= now[:, None]).argmax(axis=1)  # the first that is ready
        micro = done[every, at, kind]
        end = now + seconds[every, at, kind]
        free[every, at] = end
        done[every, at, kind] += 1
        some = kind == 0
        input_end[every[some], at[some], micro[some]] = end[some]
        some = kind == 1
        forward_end[every[some], at[some] + 1, micro[some]] = end[some]
    return free
