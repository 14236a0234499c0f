"""Pipeline schedules: how many micro-batches each chunk keeps in flight, how large the bubble is.

Sources: 1F1B, PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503); interleaved 1F1B
(Narayanan et al. 2021, arXiv:2104.04473, section 2.2) in the order of Megatron-Core's
``forward_backward_pipelining_with_interleaving`` with groups of pp micro-batches; zero-bubble
schedules (Qi et al. 2023, arXiv:2401.10241; 2024, arXiv:2405.15362) by their published bubble shares
and memory bounds.
"""

from __future__ import annotations

import numpy as np

from solver.columns import SCHEDULES, Columns, FloatArray, IntArray

_GPIPE = SCHEDULES.index("gpipe")
_DOUBLE_MEMORY = [SCHEDULES.index(name) for name in ("zb_2p", "zb_h2")]
_V_SHAPED = [SCHEDULES.index(name) for name in ("zb_v", "dualpipe_v")]
# Bubble over that of 1F1B with equal forward, input-gradient and weight-gradient times.
_BUBBLE = {"zb_1p": 1 / 3, "zb_h1": 1 / 3, "zb_2p": 0.05, "zb_h2": 0.05, "zb_v": 0.1, "dualpipe_v": 0.1}
_FILL = np.array([_BUBBLE.get(name, 1.0) for name in SCHEDULES])


def in_flight(columns: Columns) -> IntArray:
    """Micro-batches whose activations each chunk holds at its rank's peak, shape (n, C).

    C is the largest pp * vpp of the rows; entries of chunks that a row lacks are 0. A 1F1B rank r
    holds ``min(m, p - r)``. An interleaved rank has run ``W = min(m v, 2 (p - 1 - r) + (v - 1) p + 1)``
    chunk passes before its first backward pass; pass k belongs to chunk ``(k div p) mod v``.
    """
    p = columns.pipeline_parallel_size[:, None]
    v = columns.virtual_pipeline_size[:, None]
    m = columns.num_microbatches[:, None]
    chunk = np.arange(int((p * v).max(initial=1)))[None, :]
    rank, virtual = chunk % p, chunk // p
    passes = np.minimum(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1)
    rounds, rest = passes // (p * v), passes % (p * v)
    interleaved = rounds * p + np.clip(rest - virtual * p, 0, p)
    plain = np.minimum(m, p - rank)
    held = np.where(v > 1, np.minimum(interleaved, m), plain)
    schedule = columns.pipeline_schedule[:, None]
    held = np.where(schedule == _GPIPE, m, held)
    held = np.where(np.isin(schedule, _DOUBLE_MEMORY), np.minimum(m, 2 * (p - rank) - 1), held)
    held = np.where(np.isin(schedule, _V_SHAPED), np.minimum(m, p), held)
    return np.where(chunk < p * v, held, 0)


def fill_share(columns: Columns) -> FloatArray:
    """phi, shape (n,): the share of one whole pass that filling and draining the pipeline costs.

    Step time is ``(m - phi) * max_r t_r + phi * sum_r t_r``: phi = 1 for 1F1B and GPipe, 1 / v for
    interleaved schedules (arXiv:2104.04473, section 2.2: bubble ``(p - 1) / (v m)``), less for the
    zero-bubble family (ZB-H1 a third; ZB-2p and ZB-V next to none).
    """
    zero_bubble = _FILL[columns.pipeline_schedule]
    share: FloatArray = np.where(zero_bubble < 1.0, zero_bubble, 1.0 / columns.virtual_pipeline_size)
    return share
