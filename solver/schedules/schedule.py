"""Pipeline schedules: micro-batches in flight of each chunk, and the size of the bubble.

Sources: 1F1B, PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503); interleaved 1F1B
(Narayanan et al. 2021, arXiv:2104.04473, section 2.2) in the order of Megatron-Core's
``forward_backward_pipelining_with_interleaving`` with groups of pp micro-batches; breadth-first,
Lamy-Poirier 2022 (arXiv:2211.05953); zero-bubble schedules (Qi et al. 2023, arXiv:2401.10241; 2024,
arXiv:2405.15362) by their published memory bounds, and for the closed-form objective their bubble shares;
``simulate.rank_finish_s`` runs their passes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from meshwright.solver.configuration import (
    SCHEDULES,
    SPLIT_BACKWARD,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
)

V_SHAPED = ("zb_v", "dualpipe_v")  # two chunks a rank, the second ones in reverse: rank 0 has both ends
AUTOMATIC = {"zb_1p": 1, "zb_2p": 2}  # order made for the times; p, 2 p micro-batches in memory
BYPASSES_SYNC = ("zb_1p", "zb_2p", "zb_h1", "zb_h2", "zb_v")  # ranks do not wait for one another at its end
ANY_COUNT = ("looped_bfs", *V_SHAPED)  # several chunks a rank, and any number of micro-batches
IN_GROUPS = ("interleaved_1f1b", "interleaved_zb")  # micro-batches in whole groups of one for each stage
_MANY = 2**20
_NO_LIMIT = 2**40  # micro-batches
# Least and most chunks a rank, by schedule; what is not here has one.
_CHUNKS = {
    "interleaved_1f1b": (2, _MANY), "looped_bfs": (2, _MANY), "interleaved_zb": (2, _MANY),
    "zb_v": (2, 2), "dualpipe_v": (2, 2),
}  # fmt: skip


def _among(names: tuple[str, ...]) -> BoolArray:
    """Mark the SCHEDULES among ``names``; indexed by ``columns.pipeline_schedule``."""
    return np.array([name in names for name in SCHEDULES])


_ALL_HELD = _among(("gpipe", "looped_bfs"))
_ONE_P = _among(("interleaved_zb", "zb_1p", "zb_h1"))
_ZB_2P, _ZB_H2 = _among(("zb_2p",)), _among(("zb_h2",))
_V_SHAPED, _SPLIT = _among(V_SHAPED), _among(SPLIT_BACKWARD)
_AUTOMATIC, _UNSYNCED = _among(tuple(AUTOMATIC)), _among(BYPASSES_SYNC)
_OWN_COUNT = _SPLIT | _ALL_HELD
_IN_GROUPS = _among(IN_GROUPS)
_LEAST_CHUNKS, _MOST_CHUNKS = np.array([_CHUNKS.get(name, (1, 1)) for name in SCHEDULES]).T
# Bubble over that of 1F1B with equal forward, input-gradient and weight-gradient times.
_BUBBLE = {"zb_1p": 1 / 3, "zb_h1": 1 / 3, "zb_2p": 0.05, "zb_h2": 0.05, "zb_v": 0.1, "dualpipe_v": 0.1}
_FILL = np.array([_BUBBLE.get(name, 1.0) for name in SCHEDULES])
# The first schedule that is priced like each: backward passes may be split, or ranks work in pairs.
_CLASS = [(name in SPLIT_BACKWARD) + (name == "dualpipe_v") for name in SCHEDULES]
PRICED_AS = np.array([_CLASS.index(one) for one in _CLASS])


@cache
def takes_chunks(schedule: str, pp: int, vpp: int) -> bool:
    """Return whether a schedule runs ``pp`` stages of ``vpp`` chunks."""
    least, most = _CHUNKS.get(schedule, (1, 1))
    return schedule == "none" if pp == 1 else schedule != "none" and least <= vpp <= most


@cache
def schedules_of(pp: int, vpp: int) -> tuple[str, ...]:
    """Return every schedule that runs so many stages and chunks, the plain one first."""
    able = [name for name in SCHEDULES if takes_chunks(name, pp, vpp)]
    return tuple(sorted(able, key=lambda name: name not in ("1f1b", "interleaved_1f1b")))


def plain_schedule(pp: int, vpp: int) -> str:
    """Return the default schedule of so many stages and chunks."""
    return "none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved_1f1b"


def takes_all_chunks(columns: Columns) -> BoolArray:
    """Mark rows with a schedule that runs their stages and chunks, shape (n,)."""
    schedule, v = columns.pipeline_schedule, columns.virtual_pipeline_size
    none = schedule == SCHEDULES.index("none")
    fits = ~none & (v >= _LEAST_CHUNKS[schedule]) & (v <= _MOST_CHUNKS[schedule])
    return np.asarray(np.where(columns.pipeline_parallel_size == 1, none, fits))


def runs_in_groups(columns: Columns) -> BoolArray:
    """Mark rows with micro-batches in whole groups of one for each stage, shape (n,)."""
    return np.asarray(_IN_GROUPS[columns.pipeline_schedule])


def needs_two_a_stage(columns: Columns) -> BoolArray:
    """Mark rows that need a micro-batch for each of their 2 p stages, shape (n,).

    PyTorch's ``ScheduleDualPipeV`` refuses fewer.
    """
    return np.asarray(columns.pipeline_schedule == SCHEDULES.index("dualpipe_v"))


def runs_all_forward_first(columns: Columns) -> BoolArray:
    """Mark rows that begin no backward pass before all forward passes, shape (n,)."""
    return np.asarray(_ALL_HELD[columns.pipeline_schedule])


def splits_backward(columns: Columns) -> BoolArray:
    """Mark rows with weight gradients as passes of their own, shape (n,)."""
    return np.asarray(_SPLIT[columns.pipeline_schedule])


def makes_order(columns: Columns) -> BoolArray:
    """Mark rows with an order of passes that is made for their times, shape (n,)."""
    return np.asarray(_AUTOMATIC[columns.pipeline_schedule])


def bypasses_sync(columns: Columns) -> BoolArray:
    """Mark rows with ranks that do not wait for one another at the end of a step, shape (n,)."""
    return np.asarray(_UNSYNCED[columns.pipeline_schedule])


def in_a_v(columns: Columns) -> BoolArray:
    """Mark rows with chunks in a V over their ranks, shape (n,)."""
    return np.asarray(_V_SHAPED[columns.pipeline_schedule] & (columns.virtual_pipeline_size > 1))


def rank_of_chunk(columns: Columns, num_chunks: int) -> IntArray:
    """Return each chunk's rank, (n, C): ``c mod p``, or a V down and up again."""
    p, chunk = _common(columns.pipeline_parallel_size), np.arange(num_chunks)[None, :]
    rank, shaped = chunk % p, in_a_v(columns)
    if shaped.any():
        rank = np.where(shaped[:, None] & (chunk < 2 * p), np.minimum(chunk, 2 * p - 1 - chunk), rank)
    return np.broadcast_to(rank, (len(shaped), num_chunks))


def _common(sizes: IntArray) -> IntArray:
    """Return sizes (n,) as (n, 1), or (1, 1) if all are equal: far fewer divisions."""
    if len(sizes) and (sizes == sizes[0]).all():
        return sizes[:1, None]
    return sizes[:, None]


def in_flight(columns: Columns) -> IntArray:
    """Return micro-batches with activations in each chunk at its rank's peak, shape (n, C).

    C is the largest pp * vpp of the rows; entries of chunks that a row lacks are 0. A 1F1B rank r
    holds ``min(m, p - r)``. An interleaved rank has run ``W = 2 (p - 1 - r) + (v - 1) p + 1`` chunk passes
    before its first backward pass; pass k belongs to chunk ``(k div p) mod v``; none holds more than m.

    Where weight gradients wait, their inputs do: a micro-batch counts until its weight gradient is done
    (M_W is 32 of the 34 bytes of M_B with flash attention, arXiv:2401.10241, section 3). So every rank
    of ZB-H1 holds p, ``p - r`` in flight and r that wait; ZB-H2 likewise 2 p - 1; ZB-1p and ZB-2p up to
    their limit; a V-shaped rank 2 p half stages, ``2 p - 1 - r`` of its first chunk and ``r + 1`` of the
    other.
    """
    shapes, shape = shapes_of(columns)  # few among many rows
    return np.minimum(columns.num_microbatches[:, None], most_in_flight(*shapes.T).take(shape, axis=0))


def shapes_of(columns: Columns) -> tuple[IntArray, IntArray]:
    """Return the distinct (stages, chunks a rank, schedule), (k, 3), and each row's index there, (n,)."""
    v, schedule = columns.virtual_pipeline_size, columns.pipeline_schedule
    most = int(v.max(initial=1)) + 1
    keys, shape = np.unique(
        (columns.pipeline_parallel_size * most + v) * len(SCHEDULES) + schedule, return_inverse=True
    )
    pairs, schedule = np.divmod(keys, len(SCHEDULES))
    return np.stack([*np.divmod(pairs, most), schedule], axis=1), shape


def most_in_flight(p: IntArray, v: IntArray, schedule: IntArray) -> IntArray:
    """Return the micro-batches in flight of each chunk, (k, C), with no limit on their number.

    Arguments are (k,).
    """
    p, v, schedule = p[:, None], v[:, None], schedule[:, None]
    chunk = np.arange(int((p * v).max(initial=1)))[None, :]
    most = _alternating(p, v, chunk)
    if _OWN_COUNT[schedule].any():
        most = np.where(_ALL_HELD[schedule], _NO_LIMIT, _zero_bubble(schedule, p, v, most))
        most = np.where(chunk < p * v, most, 0)
    return most


def least_in_flight(columns: Columns) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return bounds on the micro-batches in flight of a rank's layers, (n, R) each.

    They hold for all rows that are priced alike, with as many chunks or, from two on, more; but not where a
    rank's chunks split their backward passes. Each layer is in flight ``least`` times, and n of them
    ``slope * n - offset`` times. R is the largest pp; entries of ranks that a row lacks say nothing.

    Of several chunks the last keeps fewest, ``min(p, 2 (p - 1 - r) + 1)``, and no more than half of the
    layers and half of one; the others keep p.
    """
    p, m = columns.pipeline_parallel_size[:, None], columns.num_microbatches[:, None]
    rank, several = np.arange(int(p.max(initial=1)))[None, :], columns.virtual_pipeline_size[:, None] > 1
    last = np.where(several, np.minimum(p, 2 * (p - 1 - rank) + 1), p - rank)
    least = np.minimum(m, last).astype(np.float64)
    spared = np.where(several, np.minimum(m, p) - least, 0.0) / 2.0
    return least, least + spared, spared


def _alternating(p: IntArray, v: IntArray, chunk: IntArray) -> IntArray:
    """Return each chunk's forward passes before its rank's first backward pass, for 1F1B."""
    rank = chunk % p
    passes = 2 * (p - 1 - rank) + (v - 1) * p + 1
    rounds, rest = passes // (p * v), passes % (p * v)
    interleaved = rounds * p + np.clip(rest - chunk // p * p, 0, p)
    return np.where(chunk < p * v, np.where(v > 1, interleaved, p - rank), 0)


def _zero_bubble(schedule: IntArray, p: IntArray, v: IntArray, others: IntArray) -> IntArray:
    chunk = np.arange(others.shape[1])[None, :]
    shaped = np.where(v > 1, np.where(chunk < p, 2 * p - 1 - chunk, 2 * p - chunk), p)
    room = np.where(_ONE_P[schedule], p, others)
    room = np.where(_ZB_2P[schedule], 2 * p, room)
    room = np.where(_ZB_H2[schedule], 2 * p - 1, room)
    return np.where(_V_SHAPED[schedule], shaped, room)


def fill_share(columns: Columns) -> FloatArray:
    """Return phi, (n,): the share of a whole pass that filling and draining the pipeline costs.

    Step time is ``(m - phi) * max_r t_r + phi * sum_r t_r``: phi = 1 for 1F1B and GPipe, 1 / v for
    interleaved schedules (arXiv:2104.04473, section 2.2: bubble ``(p - 1) / (v m)``), less for the
    zero-bubble family (ZB-H1 a third; ZB-2p and ZB-V next to none).
    """
    zero_bubble = _FILL[columns.pipeline_schedule]
    share: FloatArray = np.where(zero_bubble < 1.0, zero_bubble, 1.0 / columns.virtual_pipeline_size)
    return share
