"""Splits of an interleaved row that are worth simulating beside the closed form's minimiser.

The closed form looks at a rank's layers together; the simulated pipeline also minds which of its chunks
hold them. A larger chunk delays its neighbours unless theirs are larger at the same time, and ranks
reach neighbouring chunks one after the other. So sizes q and q + 1 do best where the larger chunks
follow one another in model order: tried out over all splits of small pipelines, the fastest split was
such a *window* in every case. Where the window begins, and how much smaller the model's first and last
chunk are (they hold embedding and head as well), is searched by simulation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import product

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SCHEDULES, FloatArray, IntArray
from meshwright.solver.cost.stages import Stages, step_of_end_s
from meshwright.solver.schedules.schedule import rank_of_chunk
from meshwright.solver.schedules.simulate import MAX_PASSES, finish_of_many_s, rank_finish_s
from meshwright.solver.search.bounds import split_s
from meshwright.solver.search.branch import makes_its_order
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import Split, balanced, ends_in_a_v, offered, tapers, windows

_DEEP = 4  # micro-batches a rank from which on the slowest rank alone decides
_ENDS = 9  # lengths tried of either end of a deep pipeline
_STARTS = 12  # windows tried, evenly spaced
_MOST_CUT = 4  # layers that the last chunk may lack
_ALL_PAIRS = 8  # ranks up to which a layer moves between any two, beyond to or from an end
_FULLY = 3  # candidates that are simulated with all micro-batches, fewer where that takes long
_GLANCED_PASSES = MAX_PASSES // 16
_MOST_ENDS = 2**18  # ends of ranks that are kept, 2 MiB


@dataclass(frozen=True, slots=True)
class Candidates:
    """Splits of several rows, row by row."""

    which: IntArray  # the row of each split
    splits: list[Split]
    bound_s: FloatArray  # no simulation of a split is shorter


class Ends:
    """When ranks end in pipelines that were simulated of late.

    Rows of other shard sets, or other memory, often have the same times of passes, of which alone their
    ends depend; their tails come on top.
    """

    def __init__(self) -> None:
        self._found = OrderedDict[tuple[bytes, int, int, str], FloatArray]()
        self._size = 0

    def finish_s(
        self, passes_s: FloatArray, *, pp: int, num_microbatches: int, schedule: str
    ) -> FloatArray:
        """``finish_of_many_s``, (k, pp), of forward, backward and weight gradients' times, (k, 3, C)."""
        digests = [blake2b(one.tobytes(), digest_size=16).digest() for one in passes_s]
        keys = [(digest, pp, num_microbatches, schedule) for digest in digests]
        if missing := [at for at, key in enumerate(keys) if key not in self._found]:
            forward_s, backward_s, weight_s = passes_s[missing].transpose(1, 0, 2)
            finish = finish_of_many_s(
                forward_s,
                backward_s,
                weight_s=weight_s,
                pp=pp,
                num_microbatches=num_microbatches,
                schedule=schedule,
            )
            self._found.update(zip((keys[at] for at in missing), finish, strict=True))
        ends = np.array([self._found[key] for key in keys])
        self._size += len(missing) * pp
        while self._size > _MOST_ENDS and self._found:
            self._size -= len(self._found.popitem(last=False)[1])
        return ends


def candidates_of(rows: Rows, given: Sequence[Split]) -> Candidates:
    """The split of each row, and others that fit in memory, none twice."""
    tried = [_tried(rows.take([at]), split) for at, split in enumerate(given)]
    which = np.repeat(np.arange(len(rows)), [len(few) for few in tried])
    splits = [split for few in tried for split in few]
    every = rows.take(which)
    stages = every.stages(splits)
    own = np.array([split is given[row] for row, split in zip(which.tolist(), splits, strict=True)])
    kept = np.flatnonzero(own | (stages.peak_memory_bytes.max(axis=1) <= rows.budget_bytes))
    bound_s = split_s(every, stages)
    return Candidates(which[kept], [splits[at] for at in kept.tolist()], bound_s[kept])


def candidates(row: Rows, split: Split) -> list[Split]:
    """``candidates_of`` one row."""
    return candidates_of(row, [split]).splits


def _tried(row: Rows, split: Split) -> list[Split]:
    """``split`` and others, whatever their memory."""
    look()
    if not row.uneven_stages or row.only_split:
        return [split]
    if row.v[0] == 1 and not (row.is_uniform and (_is_deep(row) or row.splits_backward[0])):
        return [split]
    if not row.is_uniform:
        more = offered(row.layout.num_layers, len(split), int(row.smallest_chunk[0])).tolist()
        others = map(tuple, more)
        return list(dict.fromkeys([split, *others]))
    if row.v[0] > 1:
        return list(dict.fromkeys([split, *_windowed(row, split)]))
    return [split, *(_moved(row, split) if row.splits_backward[0] else _tapered(row))]


def _is_deep(row: Rows) -> bool:
    """Whether a step has few micro-batches for its ranks, so that the ends of the pipeline wait."""
    return bool(row.m[0] < _DEEP * row.p[0])


def _tapered(row: Rows) -> list[Split]:
    """Splits of a row without interleaving whose ends hold fewer layers."""
    return tapers(row.layout.num_layers, int(row.p[0]), smallest=int(row.smallest_chunk[0]), places=_ENDS)


def _moved(row: Rows, split: Split) -> list[Split]:
    """Splits of a row without chunks that splits the backward pass: a layer less here and one more there.

    The closed form knows no order of the ranks; what they wait for falls along the pipeline. Of two ranks
    all splits are tried.
    """
    counts, ranks = np.array(split), range(len(split))
    ends = ranks if len(ranks) <= _ALL_PAIRS else (0, len(ranks) - 1)
    pairs = [(a, b) for a, b in product(ranks, ranks) if a != b and (a in ends or b in ends)]
    steps = range(1, row.layout.num_layers if len(ranks) == 2 else 2)  # noqa: PLR2004
    moves = np.array([(step, *pair) for step, pair in product(steps, pairs)], dtype=np.int64).reshape(-1, 3)
    moved, every = np.repeat(counts[None, :], len(moves), axis=0), np.arange(len(moves))
    moved[every, moves[:, 1]] -= moves[:, 0]
    moved[every, moves[:, 2]] += moves[:, 0]
    return [
        tuple(few) for few in moved[moved.min(axis=1, initial=split[0]) >= row.smallest_chunk[0]].tolist()
    ]


def _windowed(row: Rows, split: Split) -> list[Split]:
    """Splits of an interleaved row whose larger chunks follow one another."""
    heavy = int(np.ceil(row.head_s[0] / row.layer_s[0].min()))
    smallest = int(row.smallest_chunk[0])
    tried = _all_windows(row.layout.num_layers, len(split), smallest, min(heavy, _MOST_CUT))
    even = balanced(split, tuple(rank_of_chunk(row.columns, len(split))[0].tolist()))
    ends = [one for plain in even for one in ends_in_a_v(plain, smallest, _ENDS)] if row.in_a_v[0] else []
    return [*even, *ends, *tried]


@lru_cache(maxsize=512)
def _all_windows(num_layers: int, chunks: int, smallest: int, most_cut: int) -> tuple[Split, ...]:
    """The windows of rows of one shape, with a shorter first and a shorter last chunk or without."""
    return tuple(
        one for first, last in product((0, 1), range(most_cut + 1))
        for one in windows(num_layers, chunks, first=first, last=last, smallest=smallest, starts=_STARTS)
    )  # fmt: skip


def _stages(row: Rows, splits: list[Split]) -> Stages:
    """Stages of one row under several splits, without their memory."""
    return row.take([0] * len(splits)).stages(splits, with_memory=False)


def _step_s(row: Rows, finish_s: FloatArray, stages: Stages) -> FloatArray:
    """Step time of several splits of one row from the ends of its ranks."""
    last = (finish_s + stages.rank_tail_s[:, : finish_s.shape[1]]).max(axis=1)
    return np.asarray(step_of_end_s(last, row.prices.straggler[0], row.prices.fixed_s[0]))


def fastest(row: Rows, splits: list[Split], ends: Ends | None = None) -> tuple[float, Split]:
    """The least simulated step time of one row among ``splits``, and its split; the first on a tie.

    ``ends``: of other rows, simulated before.
    """
    ends = ends or Ends()
    m = int(row.columns.num_microbatches[0])
    if len(splits) > 1:
        steps = _simulated_s(row, splits, _glanced(row, len(splits[0])), ends)
        made = makes_its_order(row)
        order = np.argsort(steps, kind="stable")
        if _glanced(row, len(splits[0])) == m and not made:  # all of them were simulated
            return float(steps[order[0]]), splits[order[0]]
        fully = max(min(MAX_PASSES // 2 // (2 * len(splits[0]) * m), _FULLY), 1)
        chosen = order[:fully]
        if made:  # an order made for the times comes near the bound where that one does not
            nearest = np.argsort(split_s(row.take([0] * len(splits)), _stages(row, splits)), kind="stable")
            chosen = np.unique([0, order[0], *nearest[:fully]])
        splits = [splits[i] for i in sorted(chosen.tolist())]
    stages = _stages(row, splits)
    chunks, columns = len(splits[0]), row.columns
    finish = np.array([
        rank_finish_s(
            stages.chunk_forward_s[i, :chunks].tolist(),
            stages.chunk_backward_s[i, :chunks].tolist(),
            pp=int(row.p[0]),
            num_microbatches=int(columns.num_microbatches[0]),
            schedule=SCHEDULES[int(columns.pipeline_schedule[0])],
            weight_s=stages.chunk_weight_s[i, :chunks].tolist(),
        )
        for i in range(len(splits))
    ])  # fmt: skip
    steps = _step_s(row, finish, stages)
    best = int(steps.argmin())
    return float(steps[best]), splits[best]


def _glanced(row: Rows, chunks: int) -> int:
    """Micro-batches that are simulated side by side; all of them where that is quick."""
    p = int(row.p[0])
    return min(int(row.columns.num_microbatches[0]), max(_GLANCED_PASSES // (2 * chunks * p), 2) * p)


def simulated_s(row: Rows, splits: list[Split]) -> FloatArray:
    """The simulated step time of each split of a row whose schedule fixes the order of passes."""
    return _simulated_s(row, splits, int(row.columns.num_microbatches[0]), Ends())


def _simulated_s(row: Rows, splits: list[Split], few: int, ends: Ends) -> FloatArray:
    """About the step time of each split by its first micro-batches; exact where those are all."""
    look()
    p, stages = int(row.p[0]), _stages(row, splits)
    chunks = len(splits[0])
    passes = (stages.chunk_forward_s, stages.chunk_backward_s, stages.chunk_weight_s)
    finish = ends.finish_s(
        np.stack([seconds[:, :chunks] for seconds in passes], axis=1),
        pp=p,
        num_microbatches=few,
        schedule=SCHEDULES[int(row.columns.pipeline_schedule[0])],
    )
    further = (row.m[0] - few) * stages.rank_time_s[:, :p]
    return _step_s(row, finish + further, stages)
