"""Inner problem, solved exactly: the layers of each rank, under the memory of every rank.

Minimises the closed-form objective ``sum_s phi t_s + max_s ((m - phi) t_s + tail_s)`` of a row:

(1) layers of one kind: t_s depends on a rank's number of layers alone and the sum is the same for
    every split, so the largest (m - phi) t_s + tail_s is minimised by adding one layer at a time to
    the rank where it costs least (``best_counts``; marginal costs never fall, so greedy is exact).
(2) layers of several kinds, one chunk a rank: dynamic program over boundaries with the tables
    h(i, j) = phi t(i, j) and g(i, j) = (m - phi) t(i, j) + tail(i, j) (``best_boundaries``).
(3) layers of several kinds, several chunks a rank: the space offers some regular splits, all of them
    are tried (``best_offered``).

Of equally good splits the most even one is taken: (1) makes the sorted vector of rank costs
lexicographically least, ties to earlier ranks; (2) makes the sum of squared stage times least.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import pairwise, product

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray, counted
from meshwright.solver.cost.stages import LayerLayout, objective_s, stage_bytes
from meshwright.solver.search.bounds import split_s
from meshwright.solver.search.memory_limits import Caps, InTurn, layer_caps
from meshwright.solver.search.rows import RankCosts, Rows
from meshwright.solver.splits import even_split

# --------------------------------------------------------------------------------------------------
# Splits of interleaved rows: which ones the space offers, and the regular ones among them.


Split = tuple[int, ...]


def windows(
    num_layers: int, chunks: int, *, first: int, last: int, smallest: int, starts: int
) -> list[Split]:
    """Split into q and q + 1 layers with the larger chunks in sequence.

    Args:
        num_layers: of the model.
        chunks: pp * vpp.
        first: layers that the model's first chunk lacks.
        last: layers that its last chunk lacks.
        smallest: least number of layers of a chunk.
        starts: how many beginnings of the window are tried, evenly spaced.
    """
    each, more = divmod(num_layers + first + last, chunks)
    begins = np.unique(np.linspace(0, chunks - more, starts).astype(np.int64)) if more else np.zeros(1)
    found = []
    for begin in begins.astype(np.int64).tolist():
        sizes = [each + int(begin <= chunk < begin + more) for chunk in range(chunks)]
        sizes[0] -= first
        sizes[-1] -= last
        if min(sizes) >= smallest:
            found.append(tuple(sizes))
    return found


def ranks_of(num_chunks: int, num_ranks: int, *, in_a_v: bool) -> tuple[int, ...]:
    """Return the rank that holds each chunk, in model order."""
    if in_a_v:
        return tuple(min(chunk, num_chunks - 1 - chunk) for chunk in range(num_chunks))
    return tuple(chunk % num_ranks for chunk in range(num_chunks))


@lru_cache(maxsize=256)
def balanced(split: Split, num_ranks: int, *, in_a_v: bool) -> list[Split]:
    """Lay out each rank's layers of ``split``, by chunk, evenly, larger chunks first or last."""
    ranks = ranks_of(len(split), num_ranks, in_a_v=in_a_v)
    chunks = [[c for c, own in enumerate(ranks) if own == rank] for rank in range(num_ranks)]
    found = []
    for larger_first in (True, False):
        sizes = [0] * len(split)
        for own in chunks:
            each, more = divmod(sum(split[c] for c in own), len(own))
            for number, chunk in enumerate(own if larger_first else reversed(own)):
                sizes[chunk] = each + int(number < more)
        found.append(tuple(sizes))
    return found


def ends_in_a_v(split: Split, smallest: int, places: int) -> list[Split]:
    """Move layers of a V's first rank between its chunks, the model's first and last.

    Args:
        split: layers of each chunk.
        smallest: least number of layers of a chunk.
        places: how many sizes of the first chunk are tried, evenly spaced up to half of the rank's layers.
    """
    own = split[0] + split[-1]
    first = np.unique(np.linspace(smallest, max(own // 2, smallest), places).astype(np.int64)).tolist()
    return [(size, *split[1:-1], own - size) for size in first]


@lru_cache(maxsize=256)
def tapers(num_layers: int, pp: int, *, smallest: int, places: int) -> list[Split]:
    """Return splits of a one-chunk pipeline with fewer layers on its first and last ranks.

    A pipeline that is not much shorter than its step has few micro-batches in flight at its ends: they
    wait for what is between, whatever they hold. So the ends hold one layer less than an even share, or as
    many as its whole layers, and what that leaves over is spread between them, larger ranks first, last, or
    evenly strewn.

    Args:
        num_layers: of the model.
        pp: ranks.
        smallest: least number of layers of a rank.
        places: how many lengths of either end are tried, evenly spaced up to half the ranks.
    """
    share = num_layers // pp
    ends = np.unique(np.linspace(0, pp // 2, places).astype(np.int64)).tolist()
    found: dict[Split, None] = {}
    for few, first, last in product((share - 1, share), ends, ends):
        between = pp - first - last
        rest = num_layers - few * (first + last)
        if few < smallest or between < 1 or rest < between * max(few, smallest):
            continue
        for middle in _laid_out(rest, between):
            found[(few,) * first + middle + (few,) * last] = None
    return list(found)


def _laid_out(layers: int, ranks: int) -> list[Split]:
    """Lay out layers on neighbouring ranks evenly: larger ranks first, last, and evenly strewn."""
    each, more = divmod(layers, ranks)
    strewn = ((rank + 1) * more // ranks - rank * more // ranks for rank in range(ranks))
    orders = ([1] * more + [0] * (ranks - more), [0] * (ranks - more) + [1] * more, strewn)
    return [tuple(each + extra for extra in order) for order in orders]


# --------------------------------------------------------------------------------------------------
# Interleaved rows with layers of several kinds: the splits that the space offers for them.
#
# Which chunk a layer sits in couples the ranks' times through the order of the layers, so that over all
# splits no dynamic program of a useful size is exact. The space offers the regular ones: windows of
# larger chunks (``windows``) at a few places, the model's first and last chunk with fewer layers or not.
# They are all tried, so that the best of them is exact; on rows of DeepSeek-V3 no other split that keeps
# a rank's chunks alike had a smaller closed form.


_STARTS = 8
_TOGETHER = 16  # rows with splits that are priced at once
_MOST_CUT = 4  # layers that the model's last chunk may lack, for head, loss and prediction layers


@lru_cache(maxsize=512)
def offered(num_layers: int, chunks: int, smallest: int, *, ends: bool = False, last: int = 0) -> IntArray:
    """Return every offered split into ``chunks`` chunks of at least ``smallest`` layers, (k, chunks).

    ``ends``: the embedding and the head are among the layers, and may each fill a chunk; so are prediction
    layers if there is a boundary ``last`` behind them.
    """
    if ends:
        prediction = last > 0
        return _with_ends(num_layers - 2 - prediction, chunks, prediction=prediction)
    found = [
        split for first, less in product((0, 1), range(_MOST_CUT + 1))
        for split in windows(num_layers, chunks, first=first, last=less, smallest=smallest, starts=_STARTS)
    ]  # fmt: skip
    return np.unique(np.array(found, dtype=np.int64).reshape(-1, chunks), axis=0)


def offered_to(rows: Rows, chunks: int, smallest: int) -> list[Split]:
    """Return the offered splits of rows of one shape."""
    return [tuple(split) for split in _offered(rows.layout, chunks, smallest).tolist()]


def _offered(layout: LayerLayout, chunks: int, smallest: int) -> IntArray:
    ends, last = layout.counts_ends, layout.behind_prediction
    return offered(layout.num_layers, chunks, smallest, ends=ends, last=last)


def _with_ends(num_layers: int, chunks: int, *, prediction: bool) -> IntArray:
    """Return offered splits of so many layers and the two ends of the model, (k, chunks)."""
    found = []
    for first_alone, last_alone in product((0, 1), range(2 + prediction)):
        inner = chunks - first_alone - last_alone
        cuts = product(range(2 - first_alone), range(1 if last_alone else _MOST_CUT + 1))
        for first, last in cuts if inner > 0 else ():
            for split in windows(num_layers, inner, first=first, last=last, smallest=1, starts=_STARTS):
                sizes = [*[0] * first_alone, *split, *[0] * last_alone]
                found.append(counted(sizes, ends=True, prediction=prediction))
    return np.unique(np.array(found, dtype=np.int64).reshape(-1, chunks), axis=0)


def are_offered(rows: Rows) -> BoolArray:
    """Mark rows of layers of several kinds that have no other splits than the offered ones, (n,)."""
    several = (rows.v > 1) & rows.uneven_stages
    return several & np.bool_(not rows.is_uniform and not rows.only_split)


def best_offered(rows: Rows) -> list[Split | None]:
    """Return the offered split with the least closed form of each row; None if none fits."""
    found = list[Split | None]([None] * len(rows))
    for which, begin, splits in _of_several(rows):
        many = rows.take(np.repeat(which, np.diff(begin)))
        stages = many.stages(splits)
        fits = stages.peak_memory_bytes.max(axis=1) <= rows.budget_bytes
        cost = np.where(fits, objective_s(many.prices, many.columns, stages), np.inf)
        chunks = (rows.p * rows.v)[which].tolist()
        for row, first, end, width in zip(which, begin, begin[1:], chunks, strict=False):
            at = first + int(cost[first:end].argmin())
            found[row] = tuple(splits[at, :width].tolist()) if cost[at] < np.inf else None
    return found


def least_offered_s(rows: Rows) -> FloatArray:
    """Bound every row by the last tier of its offered splits, whether these fit or not, (n,)."""
    bound = np.full(len(rows), np.inf)
    for which, begin, splits in _of_several(rows):
        many = rows.take(np.repeat(which, np.diff(begin)))
        bound[which] = np.minimum.reduceat(
            split_s(many, many.stages(splits, with_memory=False)), begin[:-1]
        )
    return bound


def _of_several(rows: Rows) -> Iterator[tuple[list[int], list[int], IntArray]]:
    """Yield some rows that are offered splits, where those of each begin and end, and all of these."""
    shapes = zip((rows.p * rows.v).tolist(), rows.smallest_chunk.tolist(), strict=True)
    offered = [_offered(rows.layout, *shape) for shape in shapes]
    able = np.array([row for row, own in enumerate(offered) if len(own)], dtype=np.int64)
    order = able[np.lexsort((rows.v[able], rows.p[able]))]  # of like sizes: little is padded
    for start in range(0, len(order), _TOGETHER):
        look()
        which = order[start : start + _TOGETHER].tolist()
        begin = np.cumsum([0, *(len(offered[row]) for row in which)]).tolist()
        splits = np.zeros((begin[-1], max(offered[row].shape[1] for row in which)), dtype=np.int64)
        for row, first in zip(which, begin, strict=False):
            splits[first : first + len(offered[row]), : offered[row].shape[1]] = offered[row]
        yield which, begin, splits


# --------------------------------------------------------------------------------------------------
# A split that the request or the launcher prescribes: the bound, the split and the peak of every row.
#
# Whatever the sizes of the chunks, ``bounds.split_s`` bounds the simulation of one given split; the other
# tiers reason about the splits that the search would offer and are left out.


def only_splits(rows: Rows) -> list[Split | None]:
    """Return every row's prescribed split; None if it has none, or it does not fit in memory."""
    splits, layers = rows.only_split.splits(rows.columns), rows.layout.num_layers
    able = [
        split if split is not None and sum(split) == layers and smallest <= min(split) else None
        for split, smallest in zip(splits, rows.smallest_chunk.tolist(), strict=True)
    ]
    index, given = _with_a_split(able)
    if len(index):
        peak_bytes = rows.take(index).stages(given).peak_memory_bytes.max(axis=1)
        for row in index[peak_bytes > rows.budget_bytes].tolist():
            able[row] = None
    return able


def only_bound_s(rows: Rows) -> FloatArray:
    """Bound every row under its prescribed split; +inf if that does not fit, shape (n,)."""
    bound = np.full(len(rows), np.inf)
    index, given = _with_a_split(only_splits(rows))
    if len(index):
        found = rows.take(index)
        bound[index] = split_s(found, found.stages(given))
    return bound


def _with_a_split(splits: list[Split | None]) -> tuple[IntArray, list[Split]]:
    index = [row for row, split in enumerate(splits) if split is not None]
    return np.array(index, dtype=np.int64), [split for split in splits if split is not None]


_NS = 1e9  # tables of the dynamic program are whole nanoseconds, so that ties are ties
_NEVER = np.int64(2**60)
Path = tuple[int, ...]  # boundaries from the first to the last


def best_splits(rows: Rows) -> list[Split | None]:
    """Return the split of each row that minimises the closed-form objective; None if none fits."""
    if rows.only_split:
        return only_splits(rows)
    if rows.is_uniform:
        return _best_of_uniform(rows)
    several = np.flatnonzero(are_offered(rows))
    offered = dict(zip(several.tolist(), best_offered(rows.take(several)), strict=True))
    return [
        offered[row] if row in offered else _best_with_tables(rows.take([row])) for row in range(len(rows))
    ]


def _best_of_uniform(rows: Rows) -> list[Split | None]:
    caps, found = layer_caps(rows), list[Split | None]([None] * len(rows))
    fits = caps.feasible(rows.layout.num_layers)
    for row in np.flatnonzero(fits & rows.per_stage).tolist():
        found[row] = _best_with_tables(rows.take([row]))
    others = np.flatnonzero(fits & ~rows.per_stage)
    for pp in np.unique(rows.p[others]).tolist():
        look()
        index = others[rows.p[others] == pp]
        some = rows.take(index)
        counts = best_counts(some, caps.take(index, pp))
        splits = _lightest(some, counts) if rows.uneven_stages else _even(some, counts)
        for row, split in zip(index.tolist(), splits, strict=True):
            found[row] = split
    return found


def _even(rows: Rows, counts: IntArray) -> list[Split]:
    return [tuple((own // v).tolist() * v) for own, v in zip(counts, rows.v.tolist(), strict=True)]


def _lightest(rows: Rows, counts: IntArray) -> list[Split]:
    """Return the layers of each chunk of rows, so that their ranks hold these counts in their memory."""
    chunks, smallest, shaped = rows.v.tolist(), rows.smallest_chunk.tolist(), rows.in_a_v.tolist()
    found = [
        lightest_chunks(own, v, least, in_a_v=in_a_v)
        for own, v, least, in_a_v in zip(counts, chunks, smallest, shaped, strict=True)
    ]
    for at in np.flatnonzero(rows.prices.ranks_in_turn).tolist():
        found[at] = _lightest_in_turn(rows.take([at]), counts[at], found[at])
    return found


def _lightest_in_turn(row: Rows, counts: IntArray, split: Split) -> Split:
    """Return a row's split with the chunks of ranks that have gradients in turn laid out anew."""
    pp, vpp, shaped = int(row.p[0]), int(row.v[0]), bool(row.in_a_v[0])
    chunks, ranks = np.array(split), InTurn.of(row)
    own = np.array(ranks_of(pp * vpp, pp, in_a_v=shaped))
    for at, rank in enumerate(ranks.rank.tolist()):
        chunks[own == rank] = ranks.take([at]).lightest_chunks(int(counts[rank]))
    return tuple(chunks.tolist())


def lightest_chunks(counts: IntArray, vpp: int, smallest: int, *, in_a_v: bool = False) -> tuple[int, ...]:
    """Return the layers of each chunk in model order, laid out over each rank's chunks by least memory.

    Chunks of a rank differ by at most one layer, later ones are larger; the model's first chunk is as
    small as it may be.
    """
    begin = np.zeros(len(counts), dtype=np.int64)  # chunks of a rank that are as small as they may be
    begin[0] = vpp > 1
    each, more = np.divmod(counts - begin * smallest, vpp - begin)
    sizes = each[None, :] + (np.arange(vpp)[:, None] >= (vpp - more)[None, :])
    sizes[: begin[0], 0] = smallest
    if in_a_v:
        sizes[1] = sizes[1, ::-1].copy()
    return tuple(sizes.ravel().tolist())


def _best_with_tables(row: Rows) -> Split | None:
    """Return one row's best split for several kinds of layers or counts by stage; or its even split."""
    look()
    if row.uneven_stages:
        return best_boundaries(row)
    split = even_chunks(row, int(row.p[0] * row.v[0]))
    if split is None or min(split) < row.smallest_chunk[0]:
        return None
    return split if row.stages([split]).peak_memory_bytes.max() <= row.budget_bytes else None


def best_counts(rows: Rows, caps: Caps) -> IntArray:
    """Solve case (1): layers of each rank, (n, p); all rows have p ranks and a split that fits."""
    num_layers, p = rows.layout.num_layers, int(rows.p[0])
    share = rows.m - rows.phi
    each = (share * rows.layer_s[:, 0] + rows.prices.tail_s[:, 0])[:, None, None]
    levels = np.arange(1, num_layers + 1)[None, :, None]
    least, most = caps.least[:, None, :], caps.most[:, None, :]
    cost = levels * each + RankCosts.of(rows).objective_s(share)[:, None, :]
    cost = np.where((levels > least) & (levels <= most), cost, np.inf)
    missing = num_layers - caps.least.sum(axis=1)
    order = np.argsort(cost.reshape(len(share), -1), axis=1, kind="stable")
    chosen = np.arange(order.shape[1])[None, :] < missing[:, None]
    cell = (np.arange(len(share))[:, None] * p + order % p)[chosen]
    return np.asarray(caps.least + np.bincount(cell, minlength=len(share) * p).reshape(-1, p))


def even_chunks(rows: Rows, chunks: int) -> Split | None:
    """Return the most even split into ``chunks``; None if the launcher does not run it."""
    each, more = divmod(rows.layout.num_layers, chunks)
    if each == 0 or (more and not rows.uneven_stages):
        return None
    return even_split(rows.layout.num_layers, chunks)


Cells = tuple[IntArray, IntArray, IntArray]  # stages, and the layers i … j - 1: i and j; they broadcast


class StageTables:
    """Time, tail and memory of layers i … j-1 on each rank of one row, arrays (p, L + 1, L + 1).

    Entries where a stage would be too small, too early or too large for its memory are not ``fits``.
    """

    def __init__(self, row: Rows) -> None:
        self.p, self.num_layers = int(row.p[0]), row.layout.num_layers
        self.row, self.prices = row, row.prices
        edge = np.arange(self.num_layers + 1)
        self.size = edge[None, :] - edge[:, None]
        self.every: Cells = (np.arange(self.p)[:, None, None], edge[:, None], edge[None, :])
        self.fits = self._legal()
        stage, start, end = np.nonzero(self.fits)
        legal = (stage, start, end)
        self.fits[legal] = self._memory(legal) <= row.budget_bytes
        self._own = self._replayed_ends() if row.per_stage[0] else None
        self.replays = None if self._own is None else np.asarray(self._own > edge[:, None])

    @cached_property
    def time_s(self) -> FloatArray:
        """Return passes' seconds of a micro-batch, with what is replayed."""
        replay = self._between(self.prices.replay_s, self.every, replayed=True, own=self._own)
        passes = self._spread(self.prices.forward_s, self.every) + self.prices.every_forward_s[0]
        passes = passes + self._passed_on(self.every[2])
        back = self._spread(self.prices.backward_s, self.every) + self.prices.every_backward_s[0]
        return np.asarray(passes + (back + self._passed_on(self.every[1])) + replay)

    @cached_property
    def tail_s(self) -> FloatArray:
        """Return the seconds after the last micro-batch."""
        return np.asarray(self._spread(self.prices.tail_s, self.every) + self.prices.rank_tail_s[0])

    def _passed_on(self, edge: IntArray) -> FloatArray:
        """Return the seconds that prediction layers' hidden states take to a head alone behind an edge."""
        last = self.row.layout.behind_prediction or self.num_layers
        further = self.row.layout.predicted * self.prices.transfer_s[0] * (last < self.num_layers)
        return np.asarray(further * (edge == last))

    def _between(
        self, price: FloatArray, cells: Cells, *, replayed: bool = False, own: IntArray | None = None
    ) -> FloatArray:
        """Return the sum of a part price over the layers of cells, or over the recomputed ones.

        ``own``: the ends of the recomputed layers by stage, (p, L + 1, L + 1).
        """
        sums = self.row.layout.cumulative @ price[0, :-2]
        stage, start, end = cells
        upto = end
        if own is not None:
            upto = own[stage, start, end]
        elif replayed:
            upto = np.minimum(start + int(self.row.columns.recompute_layers[0]), end)
        return np.asarray(np.where(end > start, sums[upto] - sums[start], 0.0))

    def _spread(self, price: FloatArray, cells: Cells) -> FloatArray:
        stage = cells[0]
        ends = np.where(stage == 0, price[0, -2], 0.0) + np.where(stage == self.p - 1, price[0, -1], 0.0)
        return np.asarray(self._between(price, cells) + ends)

    def _legal(self) -> BoolArray:
        stage, start, end = self.every
        least, layers, after = int(self.row.smallest_chunk[0]), self.num_layers, self.p - 1 - stage
        starts = np.where(stage == 0, start == 0, start >= np.maximum(stage * least, 1))
        ends = np.where(after == 0, end == layers, end <= layers - np.maximum(after * least, 1))
        behind = self.row.layout.behind_prediction
        mixed = (end == behind) & (self.size > 1) & (stage != self.p - 1) & (behind > 0)
        return np.asarray((self.size >= least) & starts & ends & ~mixed)

    def _replayed_ends(self) -> IntArray:
        """Return ends of the least replay that fits, (p, L + 1, L + 1), as in ``Rows.replayed_layers``."""
        prices, cumulative = self.prices, self.row.layout.cumulative.T.astype(np.float64)
        held = self.row.held[0, : self.p].astype(np.float64)[:, None, None]
        spared = (prices.activation_bytes - prices.checkpoint_bytes)[0, :-2] @ cumulative
        whole = self._memory(self.every, lightest=False)
        needed = (whole - self.row.budget_bytes + 1.0) / (prices.reserve[0] * held)
        _, start, last = self.every
        end = np.searchsorted(spared, spared[start] + needed)
        return np.asarray(np.clip(end, start, np.maximum(last, start)))

    def _memory(self, cells: Cells, *, lightest: bool = True) -> FloatArray:
        """Return the cells' peak memory in bytes, of the lightest replay, or without recomputation."""
        prices, row, stage = self.prices, self.row, cells[0]
        spared = prices.activation_bytes - prices.checkpoint_bytes
        kept = self._spread(prices.activation_bytes, cells)
        if lightest:
            kept = kept - self._between(spared, cells, replayed=True)
        parts = self._spread(row.prices.state_bytes, cells) + row.held[0, stage].astype(np.float64) * kept
        return stage_bytes(prices, 0, parts, stage == self.p - 1)


def min_max(tables: IntArray) -> IntArray:
    """Return the least largest cost of a path 0 -> L over ``tables`` (p, L + 1, L + 1), by boundary."""
    reached = tables[0, 0]
    for stage in tables[1:]:
        look()
        reached = np.maximum(reached[:, None], stage).min(axis=0)
    return np.asarray(reached)


def _min_sum(first: IntArray, second: FloatArray) -> tuple[int, Path] | None:
    """Return the path of least ``first`` sum, then least ``second`` sum; None if there is none."""
    size = first.shape[1]
    best, tie = first[0, 0], second[0, 0]
    back = [np.zeros(size, dtype=np.int64)]
    columns = np.arange(size)
    for h, square in zip(first[1:], second[1:], strict=True):
        look()
        sums = best[:, None] + h
        ties = np.where(sums == sums.min(axis=0), tie[:, None] + square, np.inf)
        chosen = ties.argmin(axis=0)
        back.append(chosen)
        best, tie = np.minimum(sums[chosen, columns], _NEVER), ties[chosen, columns]
    if best[-1] >= _NEVER:
        return None
    path = [size - 1]
    for chosen in reversed(back):
        path.append(int(chosen[path[-1]]))
    return int(best[-1]), tuple(path[::-1])


def best_boundaries(row: Rows) -> Split | None:
    """Solve case (2); a row with counts by stage recomputes at least a layer (``_with_a_replay``)."""
    tables = StageTables(row)
    path = _least_path(*_costs(tables, tables.time_s))
    if path is None:
        return None
    if tables.replays is not None and not any(tables.replays[s, i, j] for s, i, j in _steps(path)):
        path = _with_a_replay(tables, tables.replays)
    return None if path is None else tuple(np.diff(np.array(path) % (tables.num_layers + 1)).tolist())


def _costs(tables: StageTables, time_s: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Return g, h and the squares of stage times, which are the last tie."""
    share, phi = tables.row.m[0] - tables.row.phi[0], tables.row.phi[0]

    def whole(values: FloatArray) -> IntArray:
        return np.where(tables.fits, np.rint(values * _NS), _NEVER).astype(np.int64)

    return (
        whole(share * time_s + tables.tail_s),
        whole(phi * time_s),
        np.where(tables.fits, time_s**2, np.inf),
    )


def _with_a_replay(tables: StageTables, replays: BoolArray) -> Path | None:
    """Return the best path with a recomputing stage, over boundaries that record whether one did.

    Boundary L + 1 + j is j behind such a stage; a stage that need not replay may do so with one layer.
    """
    plain = _costs(tables, tables.time_s)
    replayed = tables.row.layout.cumulative @ tables.prices.replay_s[0, :-2]
    first_s = np.append(np.diff(replayed), 0.0)[:, None]  # what a stage's first layer replays
    forced = _costs(tables, tables.time_s + np.where(replays, 0.0, first_s))

    def doubled(at: int, never: float) -> FloatArray:
        one, other = plain[at], forced[at]
        return np.block([[np.where(replays, never, one), other], [np.full(one.shape, never), one]])

    never = float(_NEVER)  # whole nanoseconds below it are exact in float64 up to 2^53, 104 days
    g, h = (doubled(at, never).astype(np.int64) for at in (0, 1))
    return _least_path(g, h, doubled(2, np.inf))


def _least_path(g: IntArray, h: IntArray, square: FloatArray) -> Path | None:
    """Minimise the maximum of g, then the sum of h, over larger maxima while that can pay."""
    floor = int(min_max(g)[-1])
    if floor >= _NEVER:
        return None
    cap, least, best, path = floor, _least_sum(h), int(_NEVER), None
    while cap >= floor:
        found = _min_sum(np.where(g <= cap, h, _NEVER), square)
        if found is None:
            break
        largest = max(int(g[step]) for step in _steps(found[1]))
        if found[0] + largest < best:
            best, path = found[0] + largest, found[1]
        below = largest - 1 if cap > floor else int(_NEVER)
        cap = min(below, best - least - 1)
        if cap <= floor:
            break
    return path


def _steps(path: Path) -> list[tuple[int, int, int]]:
    return [(stage, *ends) for stage, ends in enumerate(pairwise(path))]


def _least_sum(h: IntArray) -> int:
    reached = h[0, 0]
    for stage in h[1:]:
        reached = np.minimum((reached[:, None] + stage).min(axis=0), _NEVER)
    return int(reached[-1])
