"""Splits of an interleaved row worth simulating in addition to the closed form's minimiser.

The closed form looks at a rank's layers together; the simulated pipeline also minds which of its chunks
hold them. A larger chunk delays its neighbours unless theirs are larger at the same time, and ranks
reach neighbouring chunks one after the other. So sizes q and q + 1 do best where the larger chunks
follow one another in model order: tried out over all splits of small pipelines, the fastest split was
such a *window* in every case. Where the window begins, and how much smaller the model's first and last
chunk are (they hold embedding and head as well), is searched by simulation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import product

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SCHEDULES, FloatArray, IntArray
from meshwright.solver.cost.stages import Stages
from meshwright.solver.schedules.schedule import BYPASSES_SYNC
from meshwright.solver.schedules.simulate import MAX_PASSES, finish_of_many_s, rank_finish_s
from meshwright.solver.search.bounds import SAFETY, split_s
from meshwright.solver.search.listed import are_listed, shape_of, side_by_side, splits_of
from meshwright.solver.search.memory_limits import layer_caps
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import Split, balanced, ends_in_a_v, offered_to, tapers, windows

_DEEP = 4  # micro-batches a rank from which on the slowest rank alone decides
_ENDS = 9  # lengths tried of either end of a deep pipeline
_STARTS = 12  # windows tried, evenly spaced
_HEIGHTS = 4  # numbers of layers that no rank exceeds where micro-batches are few
_HALVINGS = 40
_LEAST_TAIL = 1e-9  # of a layer over its backward pass: without any tail all ends are alike
_MOST_CUT = 4  # layers that the last chunk may lack
_ALL_PAIRS = 8  # ranks up to which a layer moves between any two, beyond to or from an end
_FULLY = 3  # candidates that are simulated with all micro-batches, fewer where that takes long
_MOST_ENDS = 2**18  # ends of ranks that are kept, 2 MiB
_LEARNT = 16  # simulations of pipelines of one shape against which others are held


@dataclass(frozen=True, slots=True)
class Candidates:
    """Splits of several rows, row by row."""

    which: IntArray  # the row of each split
    splits: list[Split]
    bound_s: FloatArray  # no simulation of a split is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Pipelines with the same dependencies between passes, whatever their duration."""

    pp: int
    num_microbatches: int
    schedule: str


class Ends:
    """Ends of ranks in recently simulated pipelines.

    Rows of other shard sets, or other memory, often have the same times of passes, and ends depend on
    these alone; tails come on top.
    """

    def __init__(self) -> None:
        self._found = OrderedDict[tuple[bytes, PipelineShape], FloatArray]()
        self._passes = dict[tuple[PipelineShape, int], list[tuple[FloatArray, FloatArray]]]()
        self._size = 0

    def finish_s(self, passes_s: FloatArray, shape: PipelineShape) -> FloatArray:
        """Return ``finish_of_many_s``, (k, pp), from times (k, 3, C) of forward, backward, weights."""
        digests = [blake2b(one.tobytes(), digest_size=16).digest() for one in passes_s]
        keys = [(digest, shape) for digest in digests]
        if missing := [at for at, key in enumerate(keys) if key not in self._found]:
            forward_s, backward_s, weight_s = passes_s[missing].transpose(1, 0, 2)
            finish = finish_of_many_s(
                forward_s,
                backward_s,
                weight_s=weight_s,
                pp=shape.pp,
                num_microbatches=shape.num_microbatches,
                schedule=shape.schedule,
            )
            self._found.update(zip((keys[at] for at in missing), finish, strict=True))
        ends = np.array([self._found[key] for key in keys])
        self._size += len(missing) * shape.pp
        while self._size > _MOST_ENDS and self._found:
            self._size -= len(self._found.popitem(last=False)[1])
        return ends

    def learn(self, passes_s: FloatArray, finish_s: FloatArray, shape: PipelineShape) -> None:
        """Keep whole simulations for ``least_s``; the latest few of a shape."""
        if shape.schedule not in BYPASSES_SYNC:  # with ranks that end earlier if they begin later
            known = self._passes.setdefault((shape, passes_s.shape[2]), [])
            known.extend(zip(_apart(passes_s), finish_s, strict=True))
            del known[:-_LEARNT]

    def least_s(self, passes_s: FloatArray, shape: PipelineShape) -> FloatArray:
        """Bound every rank's end from below, (k, pp), by known pipelines; arguments as ``finish_s``.

        Ends are sums and maxima of passes: where every pass takes at least c times as long as in another
        pipeline of the shape, every rank ends at least c times as late.
        """
        least, own = np.zeros((len(passes_s), shape.pp)), _apart(passes_s)
        for passes, finish in self._passes.get((shape, passes_s.shape[2]), ()):
            with np.errstate(divide="ignore", invalid="ignore"):
                share = np.where(passes > 0.0, own / passes, np.inf).min(axis=(1, 2))
            np.maximum(least, np.where(np.isfinite(share), share, 0.0)[:, None] * finish, out=least)
        return least * SAFETY


def _apart(passes_s: FloatArray) -> FloatArray:
    """Split (k, 3, C) into forward, backward without weight gradients, and weight gradients."""
    forward, backward, weight = passes_s.transpose(1, 0, 2)
    return np.stack([forward, backward - weight, weight], axis=1)


def candidates_of(rows: Rows, given: Sequence[Split]) -> Candidates:
    """Return each row's split and others that fit in memory, none twice."""
    look()
    listed, free = are_listed(rows), rows.uneven_stages and not rows.only_split
    tried = [
        _tried(rows, at, split, listed=bool(listed[at])) if free or listed[at] else [split]
        for at, split in enumerate(given)
    ]
    which = np.repeat(np.arange(len(rows)), [len(few) for few in tried])
    splits = [split for few in tried for split in few]
    every = rows.take(which)
    stages = every.stages(splits)
    own = np.array([split is given[row] for row, split in zip(which.tolist(), splits, strict=True)])
    kept = np.flatnonzero(own | (stages.peak_memory_bytes.max(axis=1) <= rows.budget_bytes))
    bound_s = split_s(every, stages)
    return Candidates(which[kept], [splits[at] for at in kept.tolist()], bound_s[kept])


def _tried(rows: Rows, at: int, split: Split, *, listed: bool) -> list[Split]:
    several, smallest = bool(rows.v[at] > 1), int(rows.smallest_chunk[at])
    if listed:
        look()
        others: Iterable[Split] = splits_of(shape_of(rows, at))
    elif several:
        others = _windowed(rows, at, split) if rows.is_uniform else offered_to(rows, len(split), smallest)
    elif rows.is_uniform and rows.splits_backward[at]:
        others = _moved(rows, at, split)
    elif rows.is_uniform and rows.m[at] < _DEEP * rows.p[at]:  # the pipeline's ends wait
        others = tapers(rows.layout.num_layers, int(rows.p[at]), smallest=smallest, places=_ENDS)
        if rows.m[at] < rows.p[at]:  # ranks end one after the other
            others = [*others, *_staircases(rows.take([at]))]
    else:
        others = ()
    return list(dict.fromkeys([split, *others]))


def _moved(rows: Rows, at: int, split: Split) -> list[Split]:
    """Move a layer between two ranks, for rows of one chunk a rank with a split backward pass.

    The closed form knows no order of the ranks; waiting falls along the pipeline. Of two ranks
    all splits are tried.
    """
    counts, ranks = np.array(split), range(len(split))
    ends = ranks if len(ranks) <= _ALL_PAIRS else (0, len(ranks) - 1)
    pairs = [(a, b) for a, b in product(ranks, ranks) if a != b and (a in ends or b in ends)]
    steps = range(1, rows.layout.num_layers if len(ranks) == 2 else 2)  # noqa: PLR2004
    moves = np.array([(step, *pair) for step, pair in product(steps, pairs)], dtype=np.int64).reshape(-1, 3)
    moved, every = np.repeat(counts[None, :], len(moves), axis=0), np.arange(len(moves))
    moved[every, moves[:, 1]] -= moves[:, 0]
    moved[every, moves[:, 2]] += moves[:, 0]
    return [
        tuple(few) for few in moved[moved.min(axis=1, initial=split[0]) >= rows.smallest_chunk[at]].tolist()
    ]


def _staircases(row: Rows) -> list[Split]:
    """Return splits of a row with few micro-batches whose ranks end their tails together.

    Backward passes end on the last rank first. Each rank before it ends later, and has its tail alone. With
    one micro-batch passes run one after the other whatever the split: rank r ends at
    F + sum_{s >= r} B_s, so that the latest of these with their tails is least where every rank from the
    first on has as many layers as a limit lets it. That split is exact. With more of them ranks should be
    even, too: no rank holds more layers than one of a few numbers.
    """
    p, layers, smallest = int(row.p[0]), row.layout.num_layers, int(row.smallest_chunk[0])
    most = layer_caps(row).most[0, :p]
    even = -(-layers // p)
    widest = int(min(most.max(initial=0), layers - smallest * (p - 1)))
    if widest < even:
        return []
    heights = [widest] if row.m[0] == 1 else np.linspace(even + 1, widest, _HEIGHTS).astype(int).tolist()
    found = (_staircase(row, np.minimum(most, height)) for height in dict.fromkeys(heights))
    return [split for split in found if split is not None]


def _staircase(row: Rows, most: IntArray) -> Split | None:
    """Return the split of least end with at most so many layers on each rank; None: they hold too few."""
    layers, smallest, p = row.layout.num_layers, int(row.smallest_chunk[0]), len(most)
    backward_s = float(row.layer_s[0, 0] - row.prices.forward_s[0, 0])
    tail_s = max(float(row.prices.tail_s[0, 0]), _LEAST_TAIL * backward_s)
    beyond_s = np.zeros(p)  # the ends of the model on the first rank and the last
    beyond_s[0] = row.embedding_s[0] - row.prices.forward_s[0, -2] + row.prices.tail_s[0, -2]
    beyond_s[-1] += row.prices.tail_s[0, -1]
    beyond_s += row.prices.rank_tail_s[0]

    def within(end_s: float) -> Split | None:
        held, left = list[int](), layers
        for rank in range(p):
            room = int((end_s - beyond_s[rank] - backward_s * left) // tail_s)
            held.append(min(room, int(most[rank]), left - smallest * (p - 1 - rank)))
            left -= held[-1]
        return None if left or min(held) < smallest else tuple(held)

    low, high = 0.0, float(beyond_s.max() + (backward_s + tail_s) * layers)
    best = within(high)
    for _ in range(_HALVINGS if best else 0):
        middle = (low + high) / 2.0
        split = within(middle)
        low, high, best = (middle, high, best) if split is None else (low, middle, split)
    return best


def _windowed(rows: Rows, at: int, split: Split) -> list[Split]:
    """Return splits of an interleaved row with the larger chunks in sequence."""
    heavy = int(np.ceil(rows.head_s[at] / rows.layer_s[at].min()))
    smallest, in_a_v = int(rows.smallest_chunk[at]), bool(rows.in_a_v[at])
    tried = _all_windows(rows.layout.num_layers, len(split), smallest, min(heavy, _MOST_CUT))
    even = balanced(split, int(rows.p[at]), in_a_v=in_a_v)
    shaped = even if in_a_v else []
    return [*even, *(one for plain in shaped for one in ends_in_a_v(plain, smallest, _ENDS)), *tried]


@lru_cache(maxsize=512)
def _all_windows(num_layers: int, chunks: int, smallest: int, most_cut: int) -> tuple[Split, ...]:
    """Return one shape's windows, with and without a shorter first and last chunk."""
    return tuple(
        one for first, last in product((0, 1), range(most_cut + 1))
        for one in windows(num_layers, chunks, first=first, last=last, smallest=smallest, starts=_STARTS)
    )  # fmt: skip


def _stages(row: Rows, splits: list[Split]) -> Stages:
    many = row.take([0] * len(splits)) if row.per_stage[0] else row
    return many.stages(splits, with_memory=False)


def fastest(
    row: Rows, splits: list[Split], ends: Ends | None = None, limit_s: float = np.inf
) -> tuple[float, Split]:
    """Return the shortest simulated step among ``splits`` and its split (first on ties).

    All splits are simulated for few micro-batches, the best of them for all. ``ends``: of other rows,
    simulated before. +inf where those show that it is more than ``limit_s``.
    """
    ends, m, chunks = ends or Ends(), int(row.columns.num_microbatches[0]), len(splits[0])
    makes_order, few, stages = (
        bool(row.makes_order[0]),
        min(m, int(side_by_side(row)[0])),
        _stages(row, splits),
    )
    # where few micro-batches are all, bounds save little; of orders made for the times none are learnt
    may_refute = few < m and not makes_order and np.isfinite(limit_s)
    if may_refute and not len(_within(row, stages, ends, limit_s)):
        return np.inf, splits[0]
    chosen = np.arange(len(splits))
    if len(splits) > 1:
        steps_s = _simulated_s(row, stages, few, ends)
        order = np.argsort(steps_s, kind="stable")
        if few == m and not makes_order:  # all of them were simulated
            return float(steps_s[order[0]]), splits[order[0]]
        count = max(min(MAX_PASSES // 2 // (2 * chunks * m), _FULLY), 1)
        chosen = np.sort(order[:count])
        if makes_order:  # an order made for the times comes near the bound where a fixed one does not
            nearest = np.argsort(split_s(row.take([0] * len(splits)), stages), kind="stable")
            chosen = np.unique([0, order[0], *nearest[:count]])
        if may_refute:
            chosen = chosen[_within(row, stages.take(chosen), ends, limit_s)]
            if not len(chosen):
                return np.inf, ()
    stages = stages.take(chosen)
    if makes_order:
        score_s, at = _fastest_made(row, stages, limit_s)
        return score_s, splits[chosen[at]]
    finish_s = _whole_finish_s(row, stages)
    if 2 * chunks * m <= MAX_PASSES:  # a longer one is no whole simulation
        ends.learn(_passes_s(stages), finish_s, _shape(row))
    steps_s = row.step_s(finish_s, stages)
    best = int(steps_s.argmin())
    return float(steps_s[best]), splits[chosen[best]]


def _fastest_made(row: Rows, stages: Stages, limit_s: float) -> tuple[float, int]:
    """Return the shortest step of orders made for the times, and its split; +inf beyond the limit.

    Their simulation takes longest. It comes near the bound, so that most other splits are not simulated.
    """
    bounds = split_s(row.take([0] * len(stages.rank_time_s)), stages)
    best = (np.inf, 0)
    for at in np.argsort(bounds, kind="stable").tolist():
        if bounds[at] * SAFETY > min(best[0], limit_s):
            break
        own = stages.take(np.array([at]))
        best = min(best, (float(row.step_s(_whole_finish_s(row, own), own)[0]), at))
    return best


def _whole_finish_s(row: Rows, stages: Stages) -> FloatArray:
    """Simulate all micro-batches of some splits of a row, one by one: every rank's end, (k, pp)."""
    shape = _shape(row)
    return np.array([
        rank_finish_s(
            forward.tolist(),
            backward.tolist(),
            pp=shape.pp,
            num_microbatches=shape.num_microbatches,
            schedule=shape.schedule,
            weight_s=weight.tolist(),
        )
        for forward, backward, weight in _passes_s(stages)
    ])  # fmt: skip


def simulated_s(row: Rows, splits: list[Split]) -> FloatArray:
    """Simulate the step of each split of a row with a fixed order of passes."""
    return _simulated_s(row, _stages(row, splits), int(row.columns.num_microbatches[0]), Ends())


def _simulated_s(row: Rows, stages: Stages, few: int, ends: Ends) -> FloatArray:
    """Estimate each split's step from its first micro-batches; exact if those are all."""
    look()
    shape = _shape(row, few)
    finish = ends.finish_s(_passes_s(stages), shape)
    further = (row.m[0] - few) * stages.rank_time_s[:, : shape.pp]
    return row.step_s(finish + further, stages)


def _within(row: Rows, stages: Stages, ends: Ends, limit_s: float) -> IntArray:
    """Return splits of a row that may be within the limit by known pipelines of its shape."""
    least = row.step_s(ends.least_s(_passes_s(stages), _shape(row)), stages) * SAFETY
    return np.flatnonzero(least <= limit_s)


def _shape(row: Rows, num_microbatches: int | None = None) -> PipelineShape:
    """Return the shape of a row's pipeline, or of its first micro-batches."""
    c = row.columns
    m = int(c.num_microbatches[0]) if num_microbatches is None else num_microbatches
    schedule = SCHEDULES[int(c.pipeline_schedule[0])]
    return PipelineShape(pp=int(row.p[0]), num_microbatches=m, schedule=schedule)


def _passes_s(stages: Stages) -> FloatArray:
    """Return forward, backward and weight-gradient seconds of every chunk, (k, 3, C)."""
    return np.stack([stages.chunk_forward_s, stages.chunk_backward_s, stages.chunk_weight_s], axis=1)
