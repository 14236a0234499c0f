"""Lower bounds for schedules that run weight gradients as passes of their own (the zero-bubble family).

Notation of ``bounds``, and I_c, W_c for the input and the weight gradient of chunk c: B_c = I_c + W_c.
Rank s holds chunks from a_s, its first in model order, to z_s, its last; a pass of chunk c waits for the
one of chunk c - 1 (forward) or c + 1 (input gradient), a weight gradient for its own input gradient.
Whatever the order of a rank's passes,

(E) it works m t_s once it has started: end_s - start_s >= m t_s.
(F) its first input gradient waits for the first micro-batch to pass the chunks from a_s on forward and
    those behind z_s backward. At most held_c forward passes of each own chunk came before (the room of
    its memory, ``schedule.in_flight``), and no weight gradient:
    end_s - start_s >= sum_{c >= a_s} F_c + sum_{c > z_s} I_c + sum_{own c} ((m - held_c) F_c + m B_c).
(G) when its last input gradient of chunk a_s ends, all its forward passes and input gradients are done,
    because a micro-batch passes its other chunks behind a_s forward and before a_s backward. The chunks
    a_s - 1 ... a_u of a rank u <= s, whose first chunk a_u lies before a_s, still pass that micro-batch
    backward, and rank u has that weight gradient left:
    end_u >= start_s + sum_{own c of s} m (F_c + I_c) + sum_{a_u <= c < a_s} I_c + W_{a_u}.
(K) the same from its first input gradient on, which waits as in (F): end_u >= start_s +
    sum_{c >= a_s} F_c + sum_{c > z_s} I_c + sum_{own c of s} ((m - held_c) F_c + m I_c)
    + sum_{a_u <= c < a_s} I_c + W_{a_u}.

start_s >= sum_{c < a_s} F_c. Schedules that leave out the synchronisation of ranks between steps
(``BYPASSES_SYNC``) count a rank's time from its own start, as ``simulate`` does, and start as early as they
can: (G) and (K) less sum_{c < a_u} F_c. For those of the others that start counts as well.
"""

from __future__ import annotations

import numpy as np

from solver.columns import SCHEDULES, FloatArray
from solver.cost.assemble import Stages
from solver.cost.schedule import BYPASSES_SYNC, rank_of_chunk
from solver.search.rows import Rows

_BYPASSES = np.array([name in BYPASSES_SYNC for name in SCHEDULES])


def least_end_s(rows: Rows, stages: Stages) -> FloatArray:
    """(E) to (G) and (K): the least end of every rank of rows that split the backward pass, (n, R)."""
    forward, weight = stages.chunk_forward_s, stages.chunk_weight_s
    back = stages.chunk_backward_s - weight
    num_ranks, width = stages.rank_valid.shape[1], forward.shape[1]
    chunks, rank = np.arange(width)[None, :], rank_of_chunk(rows.columns, width)
    there = chunks < (rows.p * rows.v)[:, None]
    own = (rank[:, None, :] == np.arange(num_ranks)[None, :, None]) & there[:, None, :]
    first = np.where(own, chunks[:, None, :], width).min(axis=2)
    last = np.where(own, chunks[:, None, :], -1).max(axis=2)
    ahead, behind = _prefix(forward, first), _prefix(back, last + 1)
    m, held = rows.m[:, None], rows.held[:, :width]
    spared = (own * (held * forward)[:, None, :]).sum(axis=2)
    wait = forward.sum(axis=1, keepdims=True) - ahead + back.sum(axis=1, keepdims=True) - behind
    busy = m * stages.rank_time_s
    end = np.maximum(busy, wait + busy - spared)
    done = m * (own * (forward + back)[:, None, :]).sum(axis=2)
    returned = _prefix(back, first)
    done = ahead + np.maximum(done, wait + done - spared) + returned
    done = np.where(stages.rank_valid, done, -np.inf)
    done = np.maximum.accumulate(done[:, ::-1], axis=1)[:, ::-1]
    last_weight = np.take_along_axis(weight, np.minimum(first, width - 1), axis=1)
    end = np.maximum(end, done - returned + last_weight - ahead)
    end = end + np.where(_BYPASSES[rows.columns.pipeline_schedule][:, None], 0.0, ahead)
    return np.asarray(np.where(stages.rank_valid, end, 0.0))


def _prefix(values: FloatArray, end: np.ndarray) -> FloatArray:
    """Sum of the first ``end`` chunks (n, R) of (n, C) values."""
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    return np.take_along_axis(sums, np.clip(end, 0, values.shape[1]), axis=1)
