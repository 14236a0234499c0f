"""Rows with a split that fits in memory, and the memory that the nearest one lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.profiles.frameworks import with_options
from meshwright.profiles.profile import Profile
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    SCHEDULES,
    SPLIT_BACKWARD,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    is_one_of,
)
from meshwright.solver.cost.sharding import SHARD_GRADIENTS
from meshwright.solver.problem import Problem
from meshwright.solver.search.bounds import whole_layers_s
from meshwright.solver.search.fill import can_beat
from meshwright.solver.search.memory_limits import have_room, may_fit
from meshwright.solver.search.priced_space import CHUNK, priced_rows
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import Split, best_splits, even_chunks, only_bound_s, only_splits
from meshwright.solver.space.factored import Crossing, Kinds

_CANDIDATES = 64  # rows looked at closely for the smallest peak
_BISECTIONS = 40
_LARGEST = np.iinfo(np.int64).max
_EQUAL = 1e-9  # budgets closer than this share are the same
_LONGEST_S = 1e15  # longer than any step


def fitting(rows: Rows) -> BoolArray:
    """Mark rows with a split that fits, (n,); for several kinds of layers, rows that are not refuted."""
    if rows.only_split:
        return np.array([split is not None for split in only_splits(rows)], dtype=np.bool_)
    if rows.is_uniform:
        return have_room(rows)
    able = may_fit(rows)
    index = np.flatnonzero(able)
    able[index] = can_beat(rows.take(index), np.full(len(index), _LONGEST_S))
    return able


def lightest(columns: Columns) -> IntArray:
    """Return rows with the smallest micro-batch that recompute most: none of theirs needs less memory."""
    light = np.arange(len(columns))
    for values in (-columns.micro_batch_size, columns.recompute, columns.recompute_layers):
        here = values[light]
        light = light[here == here.max(initial=np.iinfo(np.int64).min)]
    return light


def lightest_of(rows: Columns | Crossing) -> IntArray:
    """Return the numbers of the lightest rows; of a crossing only rows of the lightest kinds."""
    if isinstance(rows, Columns):
        return lightest(rows)
    sizes = rows.outer.micro_batch_size
    kept = np.flatnonzero(sizes == sizes.min(initial=_LARGEST))
    kinds = Kinds(crossing=(small := rows.among(kept)))
    index = np.sort(_most_recomputed(small, kinds, _lightest_kinds(kinds)))
    own = np.searchsorted(small.first, index, side="right") - 1
    return np.asarray(index + rows.first[kept[own]] - small.first[own])


def _lightest_kinds(kinds: Kinds) -> IntArray:
    some, light = np.arange(len(kinds)), list[IntArray]()
    for start in range(0, len(some), CHUNK):
        look()
        piece = some[start : start + CHUNK]
        light.append(piece[lightest(kinds.lightest(piece))])
    left = np.concatenate([some[:0], *light])
    return left[lightest(kinds.lightest(left))]


def _most_recomputed(rows: Crossing, kinds: Kinds, some: IntArray) -> IntArray:
    most, found = -1, list[IntArray]()
    before = np.cumsum(kinds.sizes[some]) // CHUNK  # rows, in pieces
    for piece in np.split(some, np.flatnonzero(np.diff(before)) + 1):
        look()
        index = kinds.rows(piece)
        layers = rows.recomputed(index)
        if layers.max(initial=most) > most:
            most, found = int(layers.max()), []
        found.append(index[layers == most])
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])


def some_fits(problem: Problem, profile: Profile, rows: Crossing, index: IntArray) -> bool:
    """Return whether some of the rows at ``index`` has a split that fits, proved by the split."""
    pieces = np.split(index, range(CHUNK, len(index), CHUNK))
    priced = (priced_rows(problem, profile, rows.take(piece)) for piece in pieces)
    return any(
        best_splits(some.take([row]))[0] is not None
        for some in priced
        for row in np.flatnonzero(fitting(some)).tolist()
    )


def none_fits(problem: Problem, profile: Profile, rows: Columns | Crossing) -> bool:
    """Return whether none of these rows fits, as far as the lightest ones show.

    This is not known where fewer micro-batches may need less (a framework that shards gradients once a step
    keeps them whole until then), or where a split backward pass keeps what full recomputation frees.
    """
    if isinstance(rows, Columns) or not len(rows) or not recompute_alike(rows):
        return False
    columns, split = rows.outer, [SCHEDULES.index(name) for name in SPLIT_BACKWARD]
    facts = with_options(profile.framework, problem.workload.framework_options)
    sharded = columns.zero_stage >= SHARD_GRADIENTS
    late = sharded & ~is_one_of(columns.zero_stage, facts.reduced_every_pass)
    if late.any() or is_one_of(rows.inner[:, -1], split).any():
        return False
    if some_fits(problem, profile, rows, lightest_of(rows)):
        return False
    # A rank with one layer keeps its input in addition to what it recomputes, and is lighter without.
    alone = rows.among(columns.pipeline_parallel_size >= problem.model.num_layers)
    return not some_fits(problem, profile, alone, np.arange(len(alone)))


def recompute_alike(rows: Crossing) -> bool:
    """Return whether every outer row may recompute all that any may, so ``lightest`` covers all.

    A launcher's rule may tie recomputation to other variables: then a row that must not recompute may fit
    where the lightest ones do not.
    """
    _, recompute, layers, _ = rows.inner.T
    weight = np.where(layers < 0, 0, layers) + recompute * (int(layers.max(initial=0)) + 1)
    most = np.append(0, np.cumsum(weight == weight.max()))
    return bool((most[rows.begin + np.diff(rows.first)] > most[rows.begin]).all())


def _even_peaks_bytes(rows: Rows) -> Iterator[tuple[list[int], FloatArray]]:
    """Yield rows that may have their even split, with its peaks, by their number of chunks.

    Where the split of a row is prescribed, it takes the place of the even one.
    """
    shapes, given = rows.p * rows.v, rows.only_split.splits(rows.columns)
    for shape in np.unique(shapes):
        look()
        index = np.flatnonzero(shapes == shape).tolist()
        even = even_chunks(rows, int(shape))
        tried = [(row, given[row] if rows.only_split else even) for row in index]
        splits = {row: split for row, split in tried if split and rows.smallest_chunk[row] <= min(split)}
        if splits:
            stages = rows.take(list(splits)).stages(list(splits.values()))
            yield list(splits), stages.peak_memory_bytes.max(axis=1)


def some_fits_evenly(rows: Rows) -> bool:
    """Return whether some row fits under its even split, which is known long before ``nearest``."""
    limit_bytes = rows.budget_bytes * (1.0 - _EQUAL)
    return any((peaks <= limit_bytes).any() for _, peaks in _even_peaks_bytes(rows))


def nearest(rows: Rows) -> tuple[int, Split] | None:
    """Return the row and split with the smallest peak memory, among the rows with the smallest even one."""
    peaks = np.full(len(rows), np.inf)
    for index, even in _even_peaks_bytes(rows):
        peaks[index] = even
    least, found = np.inf, None
    candidates = np.argsort(peaks, kind="stable")[:_CANDIDATES]
    while len(candidates):
        row, candidates = int(candidates[0]), candidates[1:]
        one, enough = rows.take([row]), min(float(peaks[row]), least) * (1.0 - _EQUAL)
        if found is None and peaks[row] < np.inf:
            enough = float(peaks[row]) * (1.0 + _EQUAL)
        split = best_splits(replace(one, budget_bytes=enough))[0]
        if split is not None:
            least, split = _least_budget(one, enough, split)
            found = (row, split)
            candidates = _with_room(rows, candidates, least * (1.0 - _EQUAL))
    return found


def _with_room(rows: Rows, index: IntArray, budget_bytes: float) -> IntArray:
    """Return the rows that may fit into a budget: all that do are among them."""
    if rows.only_split or not rows.is_uniform or not len(index):
        return index
    return np.asarray(index[have_room(replace(rows.take(index), budget_bytes=budget_bytes))])


def _least_budget(row: Rows, enough_bytes: float, split: Split) -> tuple[float, Split]:
    """Return the smallest budget under which a row fits, and its split; ``split`` fits ``enough_bytes``."""
    low, high = 0.0, enough_bytes
    if best_splits(replace(row, budget_bytes=high * (1.0 - 2.0 * _EQUAL)))[0] is None:
        return high, split
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        found = best_splits(replace(row, budget_bytes=middle))[0]
        if found is None:
            low = middle
        else:
            high, split = middle, found
    return high, split


def bound_at_sight_s(rows: Rows, limit_s: float = np.inf) -> FloatArray:
    """Return the rows' first bound, shape (n,); +inf where memory refutes them at sight.

    Rows beyond the limit keep their bound without the closer look at memory: the search leaves them anyway.
    """
    if rows.only_split:
        return only_bound_s(rows)
    bound = np.full(len(rows), np.inf)
    index = np.flatnonzero(may_fit(rows))
    some = rows.take(index)
    first = whole_layers_s(some)
    if rows.is_uniform:
        within = np.flatnonzero(first <= limit_s)
        first[within[~have_room(some.take(within))]] = np.inf
    bound[index] = first
    return bound
