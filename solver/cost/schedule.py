"""Pipeline schedules: how many micro-batches each chunk keeps in flight, how large the bubble is.

Sources: 1F1B, PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503); interleaved 1F1B
(Narayanan et al. 2021, arXiv:2104.04473, section 2.2) in the order of Megatron-Core's
``forward_backward_pipelining_with_interleaving`` with groups of pp micro-batches; breadth-first,
Lamy-Poirier 2022 (arXiv:2211.05953); zero-bubble schedules (Qi et al. 2023, arXiv:2401.10241; 2024,
arXiv:2405.15362) by their published memory bounds, and for the closed-form objective their bubble shares;
``search.simulate`` runs their passes.
"""

from __future__ import annotations

import numpy as np

from solver.columns import SCHEDULES, BoolArray, Columns, FloatArray, IntArray

# Schedules that run the weight gradient as a pass of its own, later than the input gradient.
SPLIT_BACKWARD = ("interleaved_zb", "zb_1p", "zb_2p", "zb_h1", "zb_h2", "zb_v", "dualpipe_v")
V_SHAPED = ("zb_v", "dualpipe_v")  # two chunks a rank, the second ones in reverse: rank 0 has both ends
AUTOMATIC = {"zb_1p": 1, "zb_2p": 2}  # order made for the times; p, 2 p micro-batches in memory
BYPASSES_SYNC = ("zb_1p", "zb_2p", "zb_h1", "zb_h2", "zb_v")  # ranks do not wait for one another at its end

_ALL_HELD = [SCHEDULES.index(name) for name in ("gpipe", "looped_bfs")]
_ONE_P = [SCHEDULES.index(name) for name in ("interleaved_zb", "zb_1p", "zb_h1")]
_ZB_2P, _ZB_H2 = SCHEDULES.index("zb_2p"), SCHEDULES.index("zb_h2")
_V_SHAPED = [SCHEDULES.index(name) for name in V_SHAPED]
_SPLIT = [SCHEDULES.index(name) for name in SPLIT_BACKWARD]
# Bubble over that of 1F1B with equal forward, input-gradient and weight-gradient times.
_BUBBLE = {"zb_1p": 1 / 3, "zb_h1": 1 / 3, "zb_2p": 0.05, "zb_h2": 0.05, "zb_v": 0.1, "dualpipe_v": 0.1}
_FILL = np.array([_BUBBLE.get(name, 1.0) for name in SCHEDULES])


def splits_backward(columns: Columns) -> BoolArray:
    """Rows whose weight gradients are passes of their own, shape (n,)."""
    return np.asarray(np.isin(columns.pipeline_schedule, _SPLIT))


def has_v_shape(columns: Columns) -> bool:
    """Whether any row's chunks lie in a V over its ranks."""
    shaped = np.isin(columns.pipeline_schedule, _V_SHAPED)
    return bool((shaped & (columns.virtual_pipeline_size > 1)).any())


def rank_of_chunk(columns: Columns, num_chunks: int) -> IntArray:
    """The rank that holds each of ``num_chunks`` chunks, (n, C): ``c mod p``, or a V down and up again."""
    p = columns.pipeline_parallel_size[:, None]
    chunk = np.arange(num_chunks)[None, :]
    if not has_v_shape(columns):
        return np.asarray(chunk % p)
    shaped = np.isin(columns.pipeline_schedule, _V_SHAPED)
    return np.where(shaped[:, None] & (chunk < 2 * p), np.minimum(chunk, 2 * p - 1 - chunk), chunk % p)


def in_flight(columns: Columns) -> IntArray:
    """Micro-batches whose activations each chunk holds at its rank's peak, shape (n, C).

    C is the largest pp * vpp of the rows; entries of chunks that a row lacks are 0. A 1F1B rank r
    holds ``min(m, p - r)``. An interleaved rank has run ``W = min(m v, 2 (p - 1 - r) + (v - 1) p + 1)``
    chunk passes before its first backward pass; pass k belongs to chunk ``(k div p) mod v``.

    Where weight gradients wait, their inputs do: a micro-batch counts until its weight gradient is done
    (M_W is 32 of the 34 bytes of M_B with flash attention, arXiv:2401.10241, section 3). So every rank
    of ZB-H1 holds p, ``p - r`` in flight and r that wait; ZB-H2 likewise 2 p - 1; ZB-1p and ZB-2p up to
    their limit; a V-shaped rank 2 p half stages: ``2 p - 1 - r`` of its first chunk, ``r + 1`` of the other.
    """
    p = columns.pipeline_parallel_size[:, None]
    v = columns.virtual_pipeline_size[:, None]
    m = columns.num_microbatches[:, None]
    chunk = np.arange(int((p * v).max(initial=1)))[None, :]
    held = np.minimum(m, p - chunk) if (v == 1).all() else _interleaved_in_flight(columns, chunk)
    schedule = columns.pipeline_schedule
    if np.isin(schedule, (*_SPLIT, *_ALL_HELD)).any():
        held = np.minimum(m, _by_schedule(columns, chunk, held))
        held = np.where(np.isin(schedule, _ALL_HELD)[:, None], m, held)
    return np.where(chunk < p * v, held, 0)


def _interleaved_in_flight(columns: Columns, chunk: IntArray) -> IntArray:
    """1F1B with one or several chunks a rank."""
    p = columns.pipeline_parallel_size[:, None]
    v = columns.virtual_pipeline_size[:, None]
    m = columns.num_microbatches[:, None]
    rank, virtual = chunk % p, chunk // p
    passes = np.minimum(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1)
    rounds, rest = passes // (p * v), passes % (p * v)
    interleaved = rounds * p + np.clip(rest - virtual * p, 0, p)
    return np.minimum(np.where(v > 1, interleaved, p - rank), m)


def _by_schedule(columns: Columns, chunk: IntArray, plain: IntArray) -> IntArray:
    """Micro-batches that zero-bubble schedules have room for, others as in ``plain``."""
    p = columns.pipeline_parallel_size[:, None]
    schedule = columns.pipeline_schedule[:, None]
    shaped = np.where(chunk < p, 2 * p - 1 - chunk, 2 * p - chunk)
    shaped = np.where(columns.virtual_pipeline_size[:, None] > 1, shaped, p)
    held = np.where(np.isin(schedule, _ONE_P), p, plain)
    held = np.where(schedule == _ZB_2P, 2 * p, held)
    held = np.where(schedule == _ZB_H2, 2 * p - 1, held)
    return np.where(np.isin(schedule, _V_SHAPED), shaped, held)


def fill_share(columns: Columns) -> FloatArray:
    """phi, shape (n,): the share of one whole pass that filling and draining the pipeline costs.

    Step time is ``(m - phi) * max_r t_r + phi * sum_r t_r``: phi = 1 for 1F1B and GPipe, 1 / v for
    interleaved schedules (arXiv:2104.04473, section 2.2: bubble ``(p - 1) / (v m)``), less for the
    zero-bubble family (ZB-H1 a third; ZB-2p and ZB-V next to none).
    """
    zero_bubble = _FILL[columns.pipeline_schedule]
    share: FloatArray = np.where(zero_bubble < 1.0, zero_bubble, 1.0 / columns.virtual_pipeline_size)
    return share
