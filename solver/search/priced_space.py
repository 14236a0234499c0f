"""Priced rows from columns: each price is found once, and joined to a row at its first use.

Prices depend on neither the number of recomputed layers nor the number of chunks beyond one, so that
a dozen rows share one (DeepSeek-V3 on 2 048 GPUs). With a calibrated residual, and under torch's pipeline
runtime, which gathers weights by chunks, they do depend on the chunks. ``Priced`` holds every price once
and, for every row, which one is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import with_options
from meshwright.profiles.profile import Profile
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    BoolArray,
    Columns,
    Configuration,
    FloatArray,
    IntArray,
    distinct,
)
from meshwright.solver.cost.memory import memory_budget_bytes
from meshwright.solver.cost.objective import (
    Weighing,
    busy_parts_s,
    is_plain,
    is_weighed_by_kind,
    weighing_of,
)
from meshwright.solver.cost.price import (
    counts_chunks,
    price,
    price_memory,
    price_unsharded,
    priced_alike,
    shared_passes,
)
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.problem import Problem, gpu_counts
from meshwright.solver.search.bounds import SAFETY, PassBounds, least_of_kind_s, objective_bound_s
from meshwright.solver.search.memory_limits import may_fit
from meshwright.solver.search.rows import InCommon, Rows
from meshwright.solver.space.factored import Crossing, Families, Kinds
from meshwright.solver.space.rules import usable_host_bytes
from meshwright.solver.splits import Prescribed

CHUNK = 16384  # rows priced or bounded between two looks at the clock; their arrays stay in the cache


class PriceList:
    """Prices by number; each is found once, at the start or at its first use."""

    def __init__(
        self, table: RowPrices, entry: IntArray, find: Callable[[IntArray], RowPrices] | None = None
    ) -> None:
        self.table = table  # one entry for each distinct price that was found, without its breakdown
        self.entry = entry  # which of them a row's is (n,), or a kind's (k,); -1: none was found yet
        self._find = find

    def at(self, numbers: IntArray) -> RowPrices:
        """Return the prices of these numbers, in that order."""
        if self._find is not None:
            missing = np.unique(numbers[self.entry[numbers] < 0])
            if len(missing):
                self.table = RowPrices.concatenate([self.table, self._find(missing)])
                self.entry[missing] = np.arange(len(self.table) - len(missing), len(self.table))
        return self.table.take(self.entry[numbers])

    def afresh(self) -> PriceList:
        """Return a copy that finds its prices anew and keeps them by itself."""
        if self._find is None:
            return self
        return PriceList(self.table.take(slice(0)), np.full_like(self.entry, -1), self._find)


@dataclass(frozen=True, kw_only=True)
class ByKind:
    """Kinds of the rows of a crossing, which are priced at their first use."""

    kinds: Kinds
    problems: tuple[Problem, ...]  # by which the parts of the kinds are priced
    fitting: Callable[[Families], Families]  # the kinds that memory does not refute at sight
    unsharded: Callable[[IntArray], RowPrices]  # no kind's times are less than its family's
    roughly_s: Callable[[IntArray], tuple[FloatArray, FloatArray]]  # bounds as ``_bounds_of``, at less cost

    @cached_property
    def families(self) -> Families:
        """Return the kinds that memory does not refute at sight."""
        return self.fitting(self.kinds.families)


@dataclass(frozen=True, kw_only=True)
class Priced(InCommon):
    """Rows with prices in a list; ``take`` joins them."""

    columns: Columns | Crossing
    prices: PriceList  # of rows, or of kinds
    weighing: Weighing | None = None  # of rows, or outer rows (``weight_of``); None: the step time
    by_kind: ByKind | None = None  # None: rows that were written down

    @classmethod
    def of(cls, rows: Rows) -> Priced:
        """Return rows that are already joined with their prices."""
        return cls(
            columns=rows.columns,
            prices=PriceList(rows.prices, np.arange(len(rows))),
            layout=rows.layout,
            budget_bytes=rows.budget_bytes,
            uneven_stages=rows.uneven_stages,
            only_split=rows.only_split,
        )

    def __len__(self) -> int:
        return len(self.columns)

    def latest(self, index: IntArray | int) -> FloatArray:
        """Return rows' largest objective that meets the request's deadline; +inf without one."""
        if self.weighing is None:
            return np.asarray(np.inf)
        return np.asarray(self.weighing.latest[self.weight_of(index)])

    def weight_of(self, index: IntArray | int) -> IntArray:
        """Return the ``weighing`` entries of rows: their own, or their outer rows'."""
        if isinstance(self.columns, Columns):
            return np.asarray(index)
        return np.asarray(np.searchsorted(self.columns.first, index, side="right") - 1)

    def take(self, index: IntArray | list[int]) -> Rows:
        """Return the rows at ``index``, in that order."""
        picked = np.asarray(index, dtype=np.int64)
        kind = picked if self.by_kind is None else self.by_kind.kinds.of(picked)
        return self.joined(self.columns.take(picked), self.prices.at(kind))

    def parts_of(self, index: list[int]) -> IntArray:
        """Return the parts of the space, each with a problem of its own, that rows are in."""
        if self.by_kind is None:
            return np.zeros(len(index), dtype=np.int64)
        return self.by_kind.kinds.part_of(self.weight_of(np.array(index, dtype=np.int64)))

    def joined(self, columns: Columns, prices: RowPrices) -> Rows:
        """Return rows of these columns and prices."""
        return Rows(
            columns=columns,
            prices=prices,
            layout=self.layout,
            budget_bytes=self.budget_bytes,
            uneven_stages=self.uneven_stages,
            only_split=self.only_split,
        )


def priced_rows(problem: Problem, profile: Profile, columns: Columns) -> Rows:
    """Return rows of a problem with their prices and the memory that each rank may use."""
    return _rows(problem, profile, columns, _laid_out(problem, price(problem, columns, profile)))


def _laid_out(problem: Problem, prices: RowPrices) -> RowPrices:
    """Return prices by the units of a problem's splits: layers, or the ends of the model too."""
    prices = prices.with_prediction() if problem.counts_prediction else prices
    return prices.with_ends() if problem.counts_ends else prices


def _rows(problem: Problem, profile: Profile, columns: Columns, prices: RowPrices) -> Rows:
    layout = LayerLayout.of(problem.model)
    layout = layout.with_prediction(problem.model.num_mtp_layers) if problem.counts_prediction else layout
    return Rows(
        columns=columns,
        prices=prices,
        layout=layout.with_ends() if problem.counts_ends else layout,
        budget_bytes=memory_budget_bytes(problem, profile),
        uneven_stages=launcher_capabilities(problem.launcher).uneven_stages,
        only_split=Prescribed.of(problem),
    )


def priced_space(problem: Problem, profile: Profile, columns: Columns | Crossing) -> Priced:
    """Return all rows of ``columns`` with their prices.

    Rows of a crossing are priced by kind, at the first use. Where they are ranked by what no kind
    has in common they are written down first.
    """
    if isinstance(columns, Crossing):
        if is_weighed_by_kind(problem) and len(columns):
            return priced_parts([(problem, columns)], profile)
        columns = columns.take(np.arange(len(columns)))
    if not len(columns):
        return _of_none(problem, profile)
    look()
    first, price_of = priced_alike(columns, profile)
    parts, busy = list[RowPrices](), list[FloatArray]()
    for start in range(0, len(first), CHUNK):
        look()
        own = price(problem, columns.take(first[start : start + CHUNK]), profile)
        busy += [] if is_weighed_by_kind(problem) else [busy_parts_s(problem, own)]
        parts.append(_bare(_laid_out(problem, own)))
    look()
    prices = PriceList(RowPrices.concatenate(parts), price_of)
    found = replace(_of_none(problem, profile), columns=columns, prices=prices)
    if is_plain(problem):
        return found
    each = np.concatenate(busy, axis=1)[:, price_of] if busy else None
    return weighed(found, weighing_of(problem, profile, columns, each))


def _of_none(problem: Problem, profile: Profile) -> Priced:
    nothing = RowPrices.partly(0, LayerLayout.of(problem.model).num_kinds + 2, {})
    return Priced.of(_rows(problem, profile, Columns.nothing(), _laid_out(problem, nothing)))


def priced_parts(parts: Sequence[tuple[Problem, Crossing]], profile: Profile) -> Priced:
    """Return rows of several problems; kinds are priced at their first use.

    The problems differ in switches alone: their rows have one objective, one budget and one set of layers.
    """
    problems = tuple(problem for problem, _ in parts)
    problem, columns = problems[0], Crossing.concatenate([rows for _, rows in parts])
    begin = np.cumsum([0, *(len(rows.outer) for _, rows in parts[:-1])])
    number = {id(rows): at for at, (_, rows) in reversed([*enumerate(parts)])}
    same = np.array([number[id(rows)] for _, rows in parts])
    kinds = Kinds(crossing=columns, by_chunks=counts_chunks(profile), parts=begin, same=same)
    weighing = least = None
    if not is_plain(problem):
        weighing = weighing_of(problem, profile, columns.outer)
        scale, offset = map(kinds.least_of_family, (weighing.scale, weighing.offset))
        least = replace(weighing, scale=scale, offset=offset)

    def find(some: IntArray) -> RowPrices:
        pieces = [some[start : start + CHUNK] for start in range(0, len(some), CHUNK)]
        found = [
            _bare(_by_part(problems, kinds, piece, kinds.quickest(piece), partial(price, profile=profile)))
            for piece in pieces
        ]
        prices = _laid_out(problem, RowPrices.concatenate(found))
        return prices if weighing is None else _scaled(prices, weighing, kinds.outer_of(some))

    def unsharded(some: IntArray) -> RowPrices:
        priced = partial(price_unsharded, profile=profile)
        prices = _laid_out(problem, _by_part(problems, kinds, some, kinds.quickest(some), priced))
        return prices if least is None else _scaled(prices, least, kinds.outer_of(some))

    def roughly_s(some: IntArray) -> tuple[FloatArray, FloatArray]:
        steps, objectives = np.empty(len(some)), np.empty(len(some))
        for alike in _alike(kinds, some):
            ways = [problems[part] for part, _ in alike]
            for start in range(0, len(alike[0][1]), _ROUGHLY):
                here = [index[start : start + _ROUGHLY] for _, index in alike]
                rows = kinds.quickest(some[here[0]])
                bounds = PassBounds(rows, problem.model.num_layers, kinds.least_fill[some[here[0]]])
                for at, passes in zip(here, shared_passes(ways, rows, profile), strict=True):
                    steps[at] = passes.step_s(bounds.pipeline_s(passes))
                    objectives[at] = passes.step_s(bounds.closed_form_s(passes))
        if least is not None:
            outer = kinds.outer_of(some)
            scale, offset = least.scale[outer], least.offset[outer]
            steps, objectives = (one * scale + offset for one in (steps, objectives))
        return steps * SAFETY, objectives * SAFETY

    none, fitting = _of_none(problem, profile), partial(_that_may_fit, problems, profile, kinds)
    prices = PriceList(none.prices.table, np.full(len(kinds), -1, dtype=np.int64), find)
    by_kind = ByKind(
        kinds=kinds, problems=problems, fitting=fitting, unsharded=unsharded, roughly_s=roughly_s
    )
    return replace(none, columns=columns, prices=prices, weighing=weighing, by_kind=by_kind)


def _runs(problems: Sequence[Problem], kinds: Kinds, some: IntArray) -> Iterator[tuple[Problem, IntArray]]:
    part = kinds.part_of(kinds.outer_of(some))
    for at in np.unique(part).tolist():
        yield problems[at], np.flatnonzero(part == at)


def _alike(kinds: Kinds, some: IntArray) -> Iterator[list[tuple[int, IntArray]]]:
    """Yield the parts of some kinds, each with the places of its kinds, in groups of the same rows."""
    outer = kinds.outer_of(some)
    part, groups = kinds.part_of(outer), dict[tuple[int, bytes], list[tuple[int, IntArray]]]()
    for at in np.unique(part).tolist():
        here = np.flatnonzero(part == at)
        own = some[here] - kinds.first_of_part[at]
        groups.setdefault((int(kinds.same[at]), own.tobytes()), []).append((at, here))
    yield from groups.values()


def _by_part(
    problems: Sequence[Problem],
    kinds: Kinds,
    some: IntArray,
    columns: Columns,
    priced: Callable[[Problem, Columns], RowPrices],
) -> RowPrices:
    if len(problems) == 1:
        return priced(problems[0], columns)
    runs = list(_runs(problems, kinds, some))
    prices = RowPrices.concatenate([priced(one, columns.take(here)) for one, here in runs])
    return prices.take(np.argsort(np.concatenate([here for _, here in runs])))


def _that_may_fit(
    problems: Sequence[Problem], profile: Profile, kinds: Kinds, families: Families
) -> Families:
    """Return the kinds of some families with a lightest representative that may fit.

    More ranks of a shard set leave less to each of them and change no other memory, so that the smallest
    set that fits is bisected.
    """
    low, high = np.zeros(len(families), dtype=np.int64), families.sizes
    index, turn = np.argsort(families.members[families.begin[:-1]]), 0  # those of one part lie together
    while len(index):  # most families fit with every size or with none: the ends are tried first
        for start in range(0, len(index), CHUNK):
            look()
            here = index[start : start + CHUNK]
            tried = (high[here] - 1, low[here], (low[here] + high[here]) // 2)[min(turn, 2)]
            asked = families.members[families.begin[here] + tried]
            columns = kinds.lightest(asked)
            prices = _by_part(problems, kinds, asked, columns, partial(price_memory, profile=profile))
            able = may_fit(_rows(problems[0], profile, columns, _laid_out(problems[0], prices)))
            high[here[able]], low[here[~able]] = tried[able], tried[~able] + 1
        index, turn = index[low[index] < high[index]], turn + 1
    return families.without(high)


def weighed(rows: Priced, weighing: Weighing) -> Priced:
    """Weigh prices by an objective: ``straggler`` and ``fixed_s`` of ``scale * step + offset``.

    Rows of one price have one weight each; memory does not change.
    """
    if not len(rows):
        return rows
    look()
    weights = (np.ascontiguousarray(one).view(np.int64) for one in (weighing.scale, weighing.offset))
    first, entry = distinct([rows.prices.entry, *weights])
    table = _scaled(rows.prices.table.take(rows.prices.entry[first]), weighing, first)
    return replace(rows, prices=PriceList(table, entry), weighing=weighing)


def _scaled(prices: RowPrices, weighing: Weighing, index: IntArray) -> RowPrices:
    scale, offset = weighing.scale[index], weighing.offset[index]
    return replace(prices, straggler=prices.straggler * scale, fixed_s=prices.fixed_s * scale + offset)


def _bare(prices: RowPrices) -> RowPrices:
    """Return prices without their breakdown, which only predictions show."""
    return replace(prices, moments={}, breakdown_s={}, tail_breakdown_s={})


# --------------------------------------------------------------------------------------------------
# Kinds of rows that are still unopened, best bound first: most of a million rows stay there.
#
# ``bounds.least_of_kind_s`` bounds every row of a kind, and memory refutes most kinds at sight, so a
# kind's rows are numbered, priced and bounded one by one only when its turn comes. Kinds that differ in
# the size of their shard sets alone are one *family*: its bound is that of prices that no size undercuts
# (``cost.price.price_unsharded``), and its kinds are priced and bounded one by one once that comes first.
# Where other searches have set a limit, families beyond it are bounded and left: nothing more is asked of
# them, not even whether they fit, unless for the least closed form.


AT_ONCE = 16384  # rows opened together
_APART, _MANY = 2048, 16384  # kinds priced together at least, and at most
_ROUGHLY = 131072  # families with passes that are looked at together: the more, the more of them are shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Families with lower bounds of all their rows; arrays are (f,)."""

    families: Families
    step_s: FloatArray
    objective_s: FloatArray  # on the closed form
    rows: IntArray  # of each family

    @classmethod
    def of(cls, rows: Priced, by: ByKind, families: Families) -> Bounded:
        """Bound families; best bound first."""
        first = families.members[families.begin[:-1]]
        return cls._sorted(by.kinds, families, *_bounds_of(rows, by.kinds, first, by.unsharded))

    @classmethod
    def roughly(cls, by: ByKind, families: Families) -> Bounded:
        """Bound families by their passes alone; best bound first."""
        return cls._sorted(by.kinds, families, *by.roughly_s(families.members[families.begin[:-1]]))

    @classmethod
    def _sorted(
        cls, kinds: Kinds, families: Families, step_s: FloatArray, objective_s: FloatArray
    ) -> Bounded:
        first = families.members[families.begin[:-1]]
        each = kinds.sizes[first] * families.sizes  # kinds of a family have the same chunkings
        found = cls(families=families, step_s=step_s, objective_s=objective_s, rows=each)
        return found.take(np.argsort(step_s, kind="stable"))

    def __len__(self) -> int:
        return len(self.step_s)

    def take(self, index: IntArray) -> Bounded:
        """Return some families, in that order."""
        return Bounded(
            families=self.families.take(index),
            step_s=self.step_s[index],
            objective_s=self.objective_s[index],
            rows=self.rows[index],
        )

    def split(self, limit_s: float) -> tuple[Bounded, Bounded]:
        """Split into families that may have a row within the limit, and the others."""
        near, far = np.split(np.arange(len(self)), [self.within(limit_s)])
        return self.take(near), self.take(far)

    def within(self, limit_s: float) -> int:
        """Return how many families may have a row within the limit."""
        return int(np.searchsorted(self.step_s, limit_s, side="right"))

    @property
    def least_s(self) -> float:
        """Return a lower bound of every row's step."""
        return float(self.step_s[0]) if len(self) else np.inf


def _bounds_of(
    rows: Priced, kinds: Kinds, some: IntArray, prices_of: Callable[[IntArray], RowPrices]
) -> tuple[FloatArray, FloatArray]:
    """Return bounds of all rows of some kinds, on their step and their closed form, (k,)."""
    bounds, objectives = np.zeros(len(some)), np.zeros(len(some))
    by_number = np.argsort(some)  # kinds of one part lie together
    for start in range(0, len(some), CHUNK):
        look()
        index = by_number[start : start + CHUNK]
        quickest = rows.joined(kinds.quickest(some[index]), prices_of(some[index]))
        bounds[index] = least_of_kind_s(quickest)
        objectives[index] = objective_bound_s(quickest, kinds.least_fill[some[index]])
    return bounds, objectives


@dataclass(slots=True, kw_only=True)
class Unopened:
    """Kinds in the order of their bounds, open before ``at``, and families not yet split into kinds."""

    rows: Priced
    by: ByKind
    near: Bounded  # kinds that memory refutes at sight are none of their members
    far: list[Bounded]  # beyond the limit; whether they fit was not asked of all
    at_once: int  # rows opened together
    limit_s: float = np.inf
    order: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # kinds taken apart
    bound_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # of the kinds in that order
    objective_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # bounds on their closed forms
    behind: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    at: int = 0

    @classmethod
    def of(cls, rows: Priced, by: ByKind, limit_s: float = np.inf, at_once: int | None = None) -> Unopened:
        """Return all kinds that may fit, and may have a row within the limit."""
        if limit_s < np.inf:  # few are within it by closer bounds; memory is asked of those alone
            promising, far = Bounded.roughly(by, by.kinds.families).split(limit_s)
            closer, beyond = Bounded.of(rows, by, promising.families).split(limit_s)
            near, left_out = Bounded.of(rows, by, by.fitting(closer.families)), [far, beyond]
        else:
            near, left_out = Bounded.of(rows, by, by.families), []
        found = cls(rows=rows, by=by, near=near, far=left_out, at_once=at_once or AT_ONCE, limit_s=limit_s)
        found._settle()
        return found

    def _take_apart(self, index: IntArray) -> None:
        self._sort_in(self.near.families.members_of(index))
        self.near = self.near.take(np.setdiff1d(np.arange(len(self.near)), index))

    def _sort_in(self, fresh: IntArray) -> None:
        bounds, objectives = _bounds_of(self.rows, self.by.kinds, fresh, self.rows.prices.at)
        order, bounds = np.append(self.order, fresh), np.append(self.bound_s, bounds)
        waiting = self.at + np.lexsort((order[self.at :], bounds[self.at :]))
        by_bound = np.concatenate([np.arange(self.at), waiting])
        self.order, self.bound_s = order[by_bound], bounds[by_bound]
        self.objective_s = np.append(self.objective_s, objectives)[by_bound]
        self.behind = np.concatenate([[0], np.cumsum(self.by.kinds.sizes[self.order])])

    def _take_apart_far(self, limit_s: float) -> None:
        far = list[Bounded]()
        for some in self.far:
            less = some.objective_s < limit_s
            far.append(some.take(np.flatnonzero(~less)))
            closer = Bounded.of(self.rows, self.by, some.families.take(np.flatnonzero(less)))
            less = closer.objective_s < limit_s
            far.append(closer.take(np.flatnonzero(~less)))
            if less.any():
                self._sort_in(self.by.fitting(closer.families.take(np.flatnonzero(less))).members)
        self.far = [some for some in far if len(some)]

    def _settle(self) -> None:
        """Split families until the next ``at_once`` rows are those of least bound, or nearly so.

        Once _MANY kinds are taken apart for that, it is enough that the first of them are.
        """
        taken = 0
        while len(self.near):
            last = self._end() - 1
            enough = last >= self.at and self.behind[last + 1] - self.behind[self.at] >= self.at_once
            sure = self.bound_s[last if taken < _MANY else self.at] if enough else -np.inf
            if enough and sure < self.near.least_s:
                return
            number, begin = self.near.within(sure), self.near.families.begin
            most = int(np.searchsorted(begin, _MANY, side="right")) - 1
            # within a limit most are taken apart in any case: in one call, as each has one for every part
            few = int(np.searchsorted(begin, max(_APART, taken) if self.limit_s == np.inf else _MANY))
            number = max(min(max(number, few), most, len(self.near)), 1)
            taken += int(begin[number])
            self._take_apart(np.arange(number))

    def _end(self) -> int:
        """Return where the kinds of the next ``at_once`` rows, or a few more, end."""
        enough = int(np.searchsorted(self.behind, self.behind[self.at] + self.at_once))
        return min(max(enough, self.at + 1), len(self.order))

    @property
    def least_s(self) -> float:
        """Return a lower bound of the step of every row that is not open."""
        waiting = float(self.bound_s[self.at]) if self.at < len(self.order) else np.inf
        return min(waiting, self.near.least_s, *(some.least_s for some in self.far))

    @property
    def least_objective_s(self) -> float:
        """Return a lower bound of every row's closed form, open or not."""
        parts = [self.objective_s, *(some.objective_s for some in (self.near, *self.far))]
        return float(min(part.min(initial=np.inf) for part in parts))

    def rows_within(self, limit_s: float) -> int:
        """Return how many rows that are not open may have no larger bound."""
        end = int(np.searchsorted(self.bound_s, limit_s, side="right"))
        waiting = int(self.behind[max(end, self.at)] - self.behind[self.at])
        left = (self.near, *self.far)
        return waiting + sum(int(some.rows[: some.within(limit_s)].sum()) for some in left)

    def open(self) -> IntArray:
        """Return the rows of the next kinds, ``at_once`` of them or a few more."""
        self._settle()
        begin, self.at = self.at, self._end()
        return self.by.kinds.rows(self.order[begin : self.at])

    def open_objectives(self, limit_s: float) -> IntArray:
        """Return the unopened rows with a closed form that may be less, without opening them."""
        if len(index := np.flatnonzero(self.near.objective_s < limit_s)):
            self._take_apart(index)
        self._take_apart_far(limit_s)
        left = slice(self.at, None)
        return self.by.kinds.rows(self.order[left][self.objective_s[left] < limit_s])


# --------------------------------------------------------------------------------------------------
# From the objective that rows were weighed by back to seconds of a step.


def steps_s(rows: Priced, index: list[int], values: FloatArray) -> FloatArray:
    """Return step seconds of rows from values of the objective."""
    if rows.weighing is None:
        return values
    at = rows.weight_of(np.array(index, dtype=np.int64))
    return np.asarray((values - rows.weighing.offset[at]) / rows.weighing.scale[at])


def least_step_s(rows: Priced, row: int, bound: float | None) -> float | None:
    """Turn an objective's bound into one of all steps with the GPUs and sequences of ``row``."""
    if bound is None or rows.weighing is None:
        return bound
    columns = rows.columns if isinstance(rows.columns, Columns) else rows.columns.outer
    at = int(rows.weight_of(row))
    batch, gpus = columns.global_batch_size, columns.num_gpus
    alike = (gpus == gpus[at]) & (batch == batch[at])
    weighing = rows.weighing
    least = float(((bound - weighing.offset[alike]) / weighing.scale[alike]).min())
    return least if least > 0.0 else None


# --------------------------------------------------------------------------------------------------
# Whether one copy of all states fits at all, before anything is enumerated.


_ROUNDED = 1.0 + 1e-9


def have_room(problem: Problem, profile: Profile) -> bool:
    """Return whether the model's states fit in all GPUs and hosts; False: nothing fits."""
    return Room.of(problem, profile).on(max(gpu_counts(problem)))


@dataclass(frozen=True, kw_only=True)
class Room:
    """What the model's states take at least, whatever the layout, for each place that holds them.

    Some rank holds their mean or more: each weight, gradient and optimizer state is somewhere at least
    once. One copy is priced on one rank, and of a stage with as many chunks as layers, of which torch's
    pipeline runtime keeps fewest gathered; at the ZeRO stage and the offload that need least. Optimizer
    states that are offloaded to host memory fit there, all or as large a share as asked.
    """

    held_bytes: FloatArray  # of all GPUs together, (places,)
    budget_bytes: float  # of a GPU
    in_memory: BoolArray  # of places: the hosts' memory holds optimizer states
    there_bytes: float  # these, of all hosts together
    host_bytes: float  # for a GPU's share of them

    @classmethod
    def of(cls, problem: Problem, profile: Profile) -> Room:
        """Return what the states of a problem's model take."""
        able, parts = launcher_capabilities(problem.launcher), LayerLayout.of(problem.model).cumulative[-1]
        is_open = "offload" in problem.options.allow or "offload" in problem.options.named
        places = able.offload if is_open else able.offload[:1]
        ways = [(1, 1), (2, 1), (2, problem.most_chunks)]
        rows = Columns.of([
            Configuration(
                zero_stage=stage, offload=place, pipeline_parallel_size=stages, virtual_pipeline_size=chunks
            )
            for place in places
            for stage in able.zero_stages
            for stages, chunks in ways
        ])  # fmt: skip
        prices, each = price_memory(problem, rows, profile), len(able.zero_stages) * len(ways)
        held = prices.weights_bytes + prices.gradients_bytes + prices.optimizer_bytes
        least, states = (
            (part @ np.append(parts, (1.0, 1.0))).reshape(-1, each).min(axis=1)
            for part in (held, prices.optimizer_bytes)
        )
        facts = with_options(profile.framework, problem.workload.framework_options)
        anything = profile.residual is not None  # it may make a row lighter
        return cls(
            held_bytes=np.zeros_like(least) if anything else least,
            budget_bytes=memory_budget_bytes(problem, profile),
            in_memory=np.array([not anything and f"{place}+".startswith("optimizer+") for place in places]),
            there_bytes=float(states[0]) * facts.optimizer_offload_fraction,
            host_bytes=usable_host_bytes(problem),
        )

    def on(self, gpus: int) -> bool:
        """Return whether the states fit in so many GPUs and their hosts; False: nothing fits."""
        fits = self.held_bytes / gpus <= self.budget_bytes * _ROUNDED
        there = self.there_bytes / gpus <= self.host_bytes * _ROUNDED
        return bool((fits & (~self.in_memory | there)).any())
