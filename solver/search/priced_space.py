"""Priced rows from columns: each price is found once, and joined to a row at its first use.

Prices depend on neither the number of recomputed layers nor the number of chunks beyond one, so that
a dozen rows share one (DeepSeek-V3 on 2 048 GPUs). With a calibrated residual, and under torch's pipeline
runtime, which gathers weights by chunks, they do depend on the chunks. ``Priced`` holds every price once
and, for every row, which one is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
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
    busy_s,
    counts_busy,
    is_plain,
    weighing_of,
)
from meshwright.solver.cost.price import (
    counts_chunks,
    least_busy,
    price,
    price_memory,
    priced_alike,
    shared_passes,
)
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.cost.ways import (
    AgreedFacts,
    DisputedFactError,
    Ways,
    are_priced_apart,
    priced_together,
)
from meshwright.solver.problem import Problem, gpu_counts
from meshwright.solver.search.bounds import SAFETY, PassBounds, least_of_kind_s, objective_bound_s
from meshwright.solver.search.memory_limits import kinds_may_fit
from meshwright.solver.search.rows import InCommon, Rows
from meshwright.solver.space.factored import Crossing, Families, Kinds
from meshwright.solver.space.launcher_rules import offloads
from meshwright.solver.space.rules import usable_host_bytes
from meshwright.solver.splits import Prescribed

_SPARSELY = 64  # one of so many kinds is asked first, where they take several chunks
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
    refuted: Callable[[Families], IntArray]  # how many first members of each family memory refutes at sight
    quickest: Callable[[IntArray], RowPrices]  # with what no row of the kind computes in less time
    bounds_s: Callable[[IntArray], tuple[FloatArray, FloatArray]]  # of families, as ``Bounded``
    least_steps_s: Callable[[IntArray], FloatArray]  # such bounds on seconds, whatever the objective
    busy_parts: FloatArray | None  # (3, k) of kinds with a price; None: all rows of a kind weigh the same

    @cached_property
    def families(self) -> Families:
        """Return the kinds that memory does not refute at sight."""
        every = self.kinds.families
        return every.without(self.refuted(every))

    @cached_property
    def least_step_of(self) -> dict[tuple[int, int], float]:
        """Return a lower bound of all steps with so many GPUs and sequences."""
        families, found = self.kinds.families, dict[tuple[int, int], float]()
        first = families.members[families.begin[:-1]]
        outer = self.kinds.crossing.outer.take(self.kinds.outer_of(first))
        alike = zip(outer.num_gpus.tolist(), outer.global_batch_size.tolist(), strict=True)
        for key, least_s in zip(alike, self.least_steps_s(first).tolist(), strict=True):
            found[key] = min(found.get(key, np.inf), least_s)
        return found


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
        if self.weighing is None or not np.isfinite(self.weighing.most_s).any():
            return np.asarray(np.inf)
        at = self.weight_of(index)
        return np.asarray(self.weighing.scale[at] * self.weighing.most_s[at] + self.offset_of(index))

    def offset_of(self, index: IntArray | int) -> FloatArray:
        """Return the offsets of rows' objectives; 0 where plans are ranked by their step."""
        if self.weighing is None:
            return np.asarray(0.0)
        if self.by_kind is None or self.by_kind.busy_parts is None:
            return np.asarray(self.weighing.offset[self.weight_of(index)])
        picked = np.atleast_1d(np.asarray(index, dtype=np.int64))
        self.prices.at(self.by_kind.kinds.of(picked))
        return self._busy_offset(picked, self.columns.take(picked)).reshape(np.shape(index))

    def _busy_offset(self, picked: IntArray, columns: Columns) -> FloatArray:
        """Return what computing adds to the objectives of rows whose kinds have a price; else 0."""
        if self.by_kind is None or self.by_kind.busy_parts is None or self.weighing is None:
            return np.zeros(len(picked))
        parts = self.by_kind.busy_parts[:, self.by_kind.kinds.of(picked)]
        return np.asarray(self.weighing.busy[self.weight_of(picked)] * busy_s(columns, parts))

    def weight_of(self, index: IntArray | int) -> IntArray:
        """Return the ``weighing`` entries of rows: their own, or their outer rows'."""
        if isinstance(self.columns, Columns):
            return np.asarray(index)
        return np.asarray(np.searchsorted(self.columns.first, index, side="right") - 1)

    def take(self, index: IntArray | list[int]) -> Rows:
        """Return the rows at ``index``, in that order."""
        picked = np.asarray(index, dtype=np.int64)
        kind = picked if self.by_kind is None else self.by_kind.kinds.of(picked)
        columns, prices = self.columns.take(picked), self.prices.at(kind)
        if self.by_kind is not None and self.by_kind.busy_parts is not None:
            prices = _later(prices, self._busy_offset(picked, columns))
        return self.joined(columns, prices)

    def parts_of(self, index: list[int]) -> IntArray:
        """Return the parts of the space, each with a problem of its own, that rows are in."""
        if self.by_kind is None:
            return np.zeros(len(index), dtype=np.int64)
        return self.by_kind.kinds.part_of(self.weight_of(np.array(index, dtype=np.int64)))

    def ways_of(self, index: list[int]) -> list[Problem]:
        """Return the problem that prices each of some rows of kinds; none where rows have no kinds."""
        if self.by_kind is None:
            return []
        return [self.by_kind.problems[part] for part in self.parts_of(index).tolist()]

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


def weighed_rows(problem: Problem, profile: Profile, columns: Columns) -> Rows:
    """Return rows as ``priced_rows``, with their memory alone: all times are 0."""
    return _rows(problem, profile, columns, _laid_out(problem, price_memory(problem, columns, profile)))


def _laid_out(problem: Problem, prices: RowPrices) -> RowPrices:
    """Return prices by the units of a problem's splits: layers, or the ends of the model too."""
    prices = prices.with_prediction() if problem.counts_prediction else prices
    return prices.with_ends() if problem.counts_ends else prices


def _rows(problem: Problem, profile: Profile, columns: Columns, prices: RowPrices) -> Rows:
    layout = LayerLayout.of(problem.model, problem.training)
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
    """Return all rows of ``columns`` with their prices; those of a crossing by kind, at the first use."""
    if isinstance(columns, Crossing):
        if len(columns):
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
        busy += [busy_parts_s(problem, own)] if counts_busy(problem) else []
        parts.append(_bare(_laid_out(problem, own)))
    look()
    prices = PriceList(RowPrices.concatenate(parts), price_of)
    found = replace(_of_none(problem, profile), columns=columns, prices=prices)
    if is_plain(problem):
        return found
    each = np.concatenate(busy, axis=1)[:, price_of] if busy else None
    return weighed(found, weighing_of(problem, profile, columns, each))


def _of_none(problem: Problem, profile: Profile) -> Priced:
    nothing = RowPrices.partly(0, LayerLayout.of(problem.model, problem.training).num_kinds + 2, {})
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
    weights = None if is_plain(problem) else _Weights.of(parts, profile, kinds)
    ways = Ways.of_each_row(problems, profile)
    every = _Parts(ways=ways, profile=profile, kinds=kinds, weights=weights)
    none = _of_none(problem, profile)
    prices = PriceList(none.prices.table, np.full(len(kinds), -1, dtype=np.int64), every.find)
    by_kind = ByKind(
        kinds=kinds,
        problems=problems,
        refuted=_Memory.of(ways, profile, kinds).refuted_members,
        quickest=partial(every.quickest, prices),
        bounds_s=every.bounds_s,
        least_steps_s=every.least_steps_s,
        busy_parts=None if weights is None else weights.busy_parts,
    )
    weighing = None if weights is None else weights.rows
    return replace(none, columns=columns, prices=prices, weighing=weighing, by_kind=by_kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """What the rows of kinds are weighed by; ``busy_parts`` is filled in as kinds are priced."""

    kinds: Kinds
    rows: Weighing  # of outer rows, without what their rows compute: that differs by kind
    least: Weighing  # of outer rows, the least of each one's family
    busy_parts: FloatArray | None  # (3, k); None: computing counts for nothing

    @classmethod
    def of(cls, parts: Sequence[tuple[Problem, Crossing]], profile: Profile, kinds: Kinds) -> _Weights:
        """Return the weights of a space of some parts."""
        every = [
            weighing_of(problem, profile, rows.outer, np.zeros((3, len(rows.outer))))
            for problem, rows in parts
        ]
        names = [one.name for one in fields(Weighing)]
        of = Weighing(**{name: np.concatenate([getattr(one, name) for one in every]) for name in names})
        scale, offset, busy = map(kinds.least_of_family, (of.scale, of.offset, of.busy))
        counts = counts_busy(parts[0][0])
        return cls(
            kinds=kinds,
            rows=of,
            least=replace(of, scale=scale, offset=offset, busy=busy),
            busy_parts=np.zeros((3, len(kinds))) if counts else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Prices and bounds of the kinds of a space, each under the problem of its own part."""

    ways: Ways  # of the parts
    profile: Profile
    kinds: Kinds
    weights: _Weights | None

    def find(self, some: IntArray) -> RowPrices:
        """Return prices of kinds, weighed without what their rows compute."""
        pieces = [some[start : start + CHUNK] for start in range(0, len(some), CHUNK)]
        prices = _laid_out(
            self.ways.problems[0], RowPrices.concatenate([self._found(piece) for piece in pieces])
        )
        if self.weights is None:
            return prices
        return _scaled(prices, self.weights.rows, self.kinds.outer_of(some))

    def _found(self, some: IntArray) -> RowPrices:
        columns, prices, places = self.kinds.quickest(some), list[RowPrices](), list[IntArray]()
        if self.weights is None or self.weights.busy_parts is None:
            ways = _ways_of(self.ways, self.kinds, some)
            return _bare(priced_together(price, ways, columns, self.profile))
        for problem, here in _runs(self.ways.problems, self.kinds, some):
            own = price(problem, columns.take(here), self.profile)
            self.weights.busy_parts[:, some[here]] = busy_parts_s(problem, own)
            prices.append(_bare(own))
            places.append(here)
        return RowPrices.concatenate(prices).take(np.argsort(np.concatenate(places)))

    def quickest(self, prices: PriceList, some: IntArray) -> RowPrices:
        """Return prices of kinds, with what the rows of each compute at least."""
        found = prices.at(some)
        if self.weights is None or self.weights.busy_parts is None:
            return found
        busy = busy_s(self.kinds.quickest(some), self.weights.busy_parts[:, some])
        return _later(found, self.weights.rows.busy[self.kinds.outer_of(some)] * busy)

    def bounds_s(self, some: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return bounds of families by their passes alone, on their objectives and their closed forms."""
        steps, closed = self._by_passes(some)
        if self.weights is not None:
            outer, least = self.kinds.outer_of(some), self.weights.least
            scale, offset = least.scale[outer], least.offset[outer]
            if self.weights.busy_parts is not None:
                offset = offset + least.busy[outer] * self._least_busy_s(some)
            steps, closed = (one * scale + offset for one in (steps, closed))
        return steps * SAFETY, closed * SAFETY

    def least_steps_s(self, some: IntArray) -> FloatArray:
        """Return bounds of kinds by their passes alone, on the seconds of a step."""
        return self._by_passes(some)[0] * SAFETY

    def _by_passes(self, some: IntArray) -> tuple[FloatArray, FloatArray]:
        steps, closed = np.empty(len(some)), np.empty(len(some))
        layers = self.ways.problems[0].model.num_layers
        for ways, here in self._looked_at(some):
            first = some[here[0]]
            rows = self.kinds.quickest(first)
            bounds = PassBounds(rows, layers, self.kinds.least_fill[first])
            for at, passes in zip(here, shared_passes(ways, rows, self.profile), strict=True):
                steps[at] = passes.step_s(bounds.pipeline_s(passes))
                closed[at] = passes.step_s(bounds.closed_form_s(passes))
        return steps, closed

    def _least_busy_s(self, some: IntArray) -> FloatArray:
        """Return what the rows of kinds compute at least, whatever the size of their shard sets."""
        columns, busy = self.kinds.quickest(some), np.zeros(len(some))
        for one, here in _runs(self.ways.problems, self.kinds, some):
            few = columns.take(here)
            busy[here] = busy_s(few, least_busy(one, few, self.profile))
        return busy

    def _looked_at(self, some: IntArray) -> Iterator[tuple[list[Problem], list[IntArray]]]:
        """Yield problems with the same rows, and for each the places of as many kinds as pay together."""
        for alike in _alike(self.kinds, some):
            ways = [self.ways.problems[part] for part, _ in alike]
            for start in range(0, len(alike[0][1]), _OF_PASSES):
                yield ways, [index[start : start + _OF_PASSES] for _, index in alike]


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


def _ways_of(ways: Ways, kinds: Kinds, some: IntArray) -> Ways:
    return ways.under(kinds.part_of(kinds.outer_of(some)))


@dataclass(slots=True, kw_only=True)
class _Memory:
    """Ask whether kinds may fit, once for all parts with the same rows whose memory reads equal facts."""

    ways: Ways  # of the parts
    profile: Profile
    kinds: Kinds
    first: IntArray  # (parts,) the first part that has the same memory, as far as is known

    @classmethod
    def of(cls, ways: Ways, profile: Profile, kinds: Kinds) -> _Memory:
        """Return that of a space of which nothing is asked yet."""
        apart = are_priced_apart(ways.problems[0], profile)
        first = np.arange(len(ways.problems)) if apart else kinds.same
        return cls(ways=ways, profile=profile, kinds=kinds, first=first)

    def refuted_members(self, families: Families) -> IntArray:
        """Return how many first members of each family have no lightest representative that may fit, (f,).

        More ranks of a shard set leave less to each of them and change no other memory, so that the
        smallest set that fits is bisected.
        """
        low, high = np.zeros(len(families), dtype=np.int64), families.sizes
        index, turn = np.arange(len(families)), 0
        while len(index):  # most families fit with every size or with none: the ends are tried first
            tried = (high[index] - 1, low[index], (low[index] + high[index]) // 2)[min(turn, 2)]
            able = self._may_fit(families.members[families.begin[index] + tried])
            high[index[able]], low[index[~able]] = tried[able], tried[~able] + 1
            index, turn = index[low[index] < high[index]], turn + 1
        return high

    def _may_fit(self, some: IntArray) -> BoolArray:
        """Return whether kinds may fit, (k,); parts in which memory reads unequal facts are told apart."""
        part, begin = self.kinds.part_of(self.kinds.outer_of(some)), self.kinds.first_of_part
        while True:
            instead = some + (begin[self.first] - begin)[part]
            able = np.zeros(len(self.kinds), dtype=np.bool_)
            able[instead] = True
            asked = np.flatnonzero(able)  # those of one part lie together
            pieces = [asked[start : start + CHUNK] for start in range(0, len(asked), CHUNK)]
            if len(pieces) > 1:  # few kinds show most facts in which the parts differ
                pieces.insert(0, asked[::_SPARSELY])
            try:
                for few in pieces:
                    look()
                    able[few] = self._of_one_chunk(few)
            except DisputedFactError as disputed:
                self._tell_apart(disputed.fact)
            else:
                return np.asarray(able[instead])

    def _of_one_chunk(self, some: IntArray) -> BoolArray:
        problem, columns = self.ways.problems[0], self.kinds.lightest(some)
        ways = _ways_of(self._in_common(), self.kinds, some)
        prices = priced_together(price_memory, ways, columns, self.profile)
        return kinds_may_fit(_rows(problem, self.profile, columns, _laid_out(problem, prices)))

    def _in_common(self) -> Ways:
        """Return the ways of the parts, each with the facts of all that have the same memory."""
        own = self.ways.facts
        alike = [[own[at] for at in np.flatnonzero(self.first == one)] for one in range(len(own))]
        facts = tuple(
            AgreedFacts.of(some) if len(some) > 1 else one for some, one in zip(alike, own, strict=True)
        )
        return replace(self.ways, facts=facts)

    def _tell_apart(self, fact: str) -> None:
        keys = zip(self.first.tolist(), (getattr(one, fact) for one in self.ways.facts), strict=True)
        found = dict[tuple[int, Hashable], int]()
        self.first = np.array([found.setdefault(key, at) for at, key in enumerate(keys)])


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


def _later(prices: RowPrices, offset: FloatArray) -> RowPrices:
    return replace(prices, fixed_s=prices.fixed_s + offset)


def _bare(prices: RowPrices) -> RowPrices:
    """Return prices without their breakdown, which only predictions show."""
    return replace(prices, moments={}, breakdown_s={}, tail_breakdown_s={})


# --------------------------------------------------------------------------------------------------
# Kinds of rows that are still unopened, best bound first: most of a million rows stay there.
#
# ``bounds.least_of_kind_s`` bounds every row of a kind, and memory refutes most kinds at sight, so a
# kind's rows are numbered, priced and bounded one by one only when its turn comes. Kinds that differ in
# the size of their shard sets alone are one *family*: its bound is that of passes that no size shortens
# (``cost.price.shared_passes``), and its kinds are priced and bounded one by one once that comes first.
# Where other searches have set a limit, families beyond it are bounded and left: nothing more is asked of
# them, not even whether they fit, unless for the least closed form.


AT_ONCE = 16384  # rows opened together
_APART, _MANY = 4096, 16384  # kinds priced together, and those of some rows that are to be opened at most
_OF_PASSES = 131072  # families bounded together: the more, the more of their passes are shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Families with lower bounds of all their rows; arrays are (f,)."""

    families: Families
    step_s: FloatArray
    objective_s: FloatArray  # on the closed form
    rows: IntArray  # of each family

    @classmethod
    def of(cls, by: ByKind, families: Families, limit_s: float) -> tuple[Bounded, Bounded]:
        """Bound families by their passes; return those within a limit, best first, and the others.

        The others are mostly all, so that they are neither sorted nor copied: among them those within it
        are without rows.
        """
        first = families.members[families.begin[:-1]]
        step_s, objective_s = by.bounds_s(first)
        each = by.kinds.sizes[first] * families.sizes  # kinds of a family have the same chunkings
        every = cls(families=families, step_s=step_s, objective_s=objective_s, rows=each)
        near = np.flatnonzero(step_s <= limit_s)
        promising = every.take(near[np.argsort(step_s[near], kind="stable")])
        every.step_s[near] = every.objective_s[near] = np.inf
        every.rows[near] = 0
        return promising, every

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

    def that_may_fit(self, by: ByKind) -> Bounded:
        """Return the families without the kinds that memory refutes at sight; no bound is of one kind."""
        dropped, sizes = by.refuted(self.families), self.families.sizes
        left = np.flatnonzero(dropped < sizes)
        return Bounded(
            families=self.families.without(dropped),
            step_s=self.step_s[left],
            objective_s=self.objective_s[left],
            rows=(self.rows // sizes * (sizes - dropped))[left],
        )

    def divided(self, apart: BoolArray) -> tuple[Bounded, Bounded]:
        """Return some families, and the others."""
        return self.take(np.flatnonzero(apart)), self.take(np.flatnonzero(~apart))


@dataclass(slots=True, kw_only=True)
class Unopened:
    """Kinds in the order of their bounds, open before ``at``, and families not yet split into kinds."""

    rows: Priced
    by: ByKind
    near: Bounded  # kinds that memory refutes at sight are none of their members
    far: Bounded  # beyond the limit; whether they fit was not asked
    limit_s: float = np.inf
    order: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # kinds taken apart
    bound_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # of the kinds in that order
    objective_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # bounds on their closed forms
    behind: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    at: int = 0
    split: int = 0  # the first families of ``near`` are taken apart

    @classmethod
    def of(cls, rows: Priced, by: ByKind, limit_s: float = np.inf) -> Unopened:
        """Return all kinds that may fit, and may have a row within the limit."""
        if limit_s < np.inf:  # memory is asked of those alone that are within it
            near, far = Bounded.of(by, by.kinds.families, limit_s)
            found = cls(rows=rows, by=by, near=near.that_may_fit(by), far=far, limit_s=limit_s)
        else:
            near, far = Bounded.of(by, by.families, limit_s)
            found = cls(rows=rows, by=by, near=near, far=far)
        found._settle()
        return found

    def _sort_in(self, fresh: IntArray) -> None:
        bounds, objectives = self._bounds_of(fresh)
        order, bounds = np.append(self.order, fresh), np.append(self.bound_s, bounds)
        waiting = self.at + np.lexsort((order[self.at :], bounds[self.at :]))
        by_bound = np.concatenate([np.arange(self.at), waiting])
        self.order, self.bound_s = order[by_bound], bounds[by_bound]
        self.objective_s = np.append(self.objective_s, objectives)[by_bound]
        self.behind = np.concatenate([[0], np.cumsum(self.by.kinds.sizes[self.order])])

    def _bounds_of(self, some: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return bounds of all rows of some kinds, on their step and their closed form, (k,)."""
        bounds, objectives, kinds = np.zeros(len(some)), np.zeros(len(some)), self.by.kinds
        by_number = np.argsort(some)  # kinds of one part lie together
        for start in range(0, len(some), CHUNK):
            look()
            index = by_number[start : start + CHUNK]
            quickest = self.rows.joined(kinds.quickest(some[index]), self.by.quickest(some[index]))
            bounds[index] = least_of_kind_s(quickest)
            objectives[index] = objective_bound_s(quickest, kinds.least_fill[some[index]])
        return bounds, objectives

    def _settle(self) -> None:
        """Split families until the next AT_ONCE rows are those of least bound, or nearly so.

        Once _MANY kinds are taken apart for that, it is enough that the first of them are.
        """
        taken, near, begin = 0, self.near, self.near.families.begin
        while self.split < len(near):
            last = self._end() - 1
            enough = last >= self.at and self.behind[last + 1] - self.behind[self.at] >= AT_ONCE
            sure = self.bound_s[last if taken < _MANY else self.at] if enough else np.inf
            if sure < near.step_s[self.split]:
                return
            # each call has some for every part; within a limit most are taken apart in any case
            few = _APART if self.limit_s == np.inf else _MANY
            end = int(np.searchsorted(begin, begin[self.split] + few, side="right")) - 1
            end = max(end, self.split + 1)
            taken += int(begin[end] - begin[self.split])
            self._sort_in(near.families.members[begin[self.split] : begin[end]])
            near.objective_s[self.split : end], near.rows[self.split : end] = np.inf, 0
            self.split = end

    def _end(self) -> int:
        """Return where the kinds of the next AT_ONCE rows, or a few more, end."""
        enough = int(np.searchsorted(self.behind, self.behind[self.at] + AT_ONCE))
        return min(max(enough, self.at + 1), len(self.order))

    @property
    def least_s(self) -> float:
        """Return a lower bound of the step of every row that is not open."""
        waiting = float(self.bound_s[self.at]) if self.at < len(self.order) else np.inf
        near = self.near.step_s[self.split : self.split + 1]
        return float(min(waiting, near.min(initial=np.inf), self.far.step_s.min(initial=np.inf)))

    @property
    def least_objective_s(self) -> float:
        """Return a lower bound of every row's closed form, open or not."""
        parts = (self.objective_s, self.near.objective_s, self.far.objective_s)
        return float(min(part.min(initial=np.inf) for part in parts))

    def rows_within(self, limit_s: float) -> int:
        """Return how many rows that are not open may have no larger bound."""
        end = int(np.searchsorted(self.bound_s, limit_s, side="right"))
        waiting = int(self.behind[max(end, self.at)] - self.behind[self.at])
        left = (self.near, self.far)
        return waiting + sum(int(some.rows[some.step_s <= limit_s].sum()) for some in left)

    def open(self) -> IntArray:
        """Return the rows of the next kinds, AT_ONCE of them or a few more."""
        self._settle()
        begin, self.at = self.at, self._end()
        return self.by.kinds.rows(self.order[begin : self.at])

    def open_objectives(self, limit_s: float) -> IntArray:
        """Return the unopened rows with a closed form that may be less, without opening them."""
        if (less := self.near.objective_s < limit_s).any():
            some, self.near = self.near.divided(less)
            self._sort_in(some.families.members)
        if (less := self.far.objective_s < limit_s).any():
            some, self.far = self.far.divided(less)
            self._sort_in(some.that_may_fit(self.by).families.members)
        left = slice(self.at, None)
        return self.by.kinds.rows(self.order[left][self.objective_s[left] < limit_s])


# --------------------------------------------------------------------------------------------------
# From the objective that rows were weighed by back to seconds of a step.


def steps_s(rows: Priced, index: list[int], values: FloatArray) -> FloatArray:
    """Return step seconds of rows from values of the objective."""
    if rows.weighing is None:
        return values
    at = rows.weight_of(np.array(index, dtype=np.int64))
    offset = rows.offset_of(np.array(index, dtype=np.int64))
    return np.asarray((values - offset) / rows.weighing.scale[at])


def least_step_s(rows: Priced, row: int, bound: float | None) -> float | None:
    """Turn an objective's bound into one of all steps with the GPUs and sequences of ``row``.

    Where the objective counts what rows compute as well, their passes bound a step, and so does that no GPU
    computes longer than it.
    """
    if bound is None or rows.weighing is None:
        return bound
    columns = rows.columns if isinstance(rows.columns, Columns) else rows.columns.outer
    at = int(rows.weight_of(row))
    batch, gpus = columns.global_batch_size, columns.num_gpus
    alike = (gpus == gpus[at]) & (batch == batch[at])
    weighing = rows.weighing
    if rows.by_kind is not None and rows.by_kind.busy_parts is not None:
        every = float((weighing.scale + weighing.busy)[alike].max())  # no GPU computes longer than a step
        return max(rows.by_kind.least_step_of[int(gpus[at]), int(batch[at])], bound / every)
    least = float(((bound - weighing.offset[alike]) / weighing.scale[alike]).min())
    return least if least > 0.0 else None


# --------------------------------------------------------------------------------------------------
# Whether one copy of all states fits at all, before anything is enumerated.


_ROUNDED = 1.0 + 1e-9


def have_room(problem: Problem, profile: Profile) -> bool:
    """Return whether the model's states fit in all GPUs and hosts; False: nothing fits."""
    return Room.of(problem, profile).on(max(gpu_counts(problem)))


def states_fit(problem: Problem, rows: Columns, profile: Profile) -> BoolArray:
    """Return whether the states of a pipeline fit in the memory of its ranks together, (n,)."""
    prices, layout = price_memory(problem, rows, profile), LayerLayout.of(problem.model, problem.training)
    held = prices.weights_bytes + prices.gradients_bytes + prices.optimizer_bytes
    budget_bytes = rows.pipeline_parallel_size * memory_budget_bytes(problem, profile)
    return np.asarray(held @ np.append(layout.cumulative[-1], (1.0, 1.0)) <= budget_bytes)


@dataclass(frozen=True, kw_only=True)
class Room:
    """What the model's states take at least, whatever the layout, for each place that holds them.

    Some rank holds their mean or more: each weight, gradient and optimizer state is somewhere at least
    once. One copy is priced on one rank, and of a stage with as many chunks as layers, of which torch's
    pipeline runtime keeps fewest gathered; at the ZeRO stage and the offload that need least. Optimizer
    states that are offloaded to host memory fit there: all, as large a share as asked, or pages alone.
    """

    held_bytes: FloatArray  # of all GPUs together, (places,)
    budget_bytes: float  # of a GPU
    in_memory: BoolArray  # of places: the hosts' memory holds optimizer states
    there_bytes: FloatArray  # what leaves the GPUs, of all hosts together
    host_bytes: float  # for a GPU's share of them

    @classmethod
    def of(cls, problem: Problem, profile: Profile) -> Room:
        """Return what the states of a problem's model take."""
        able, parts = (
            launcher_capabilities(problem.launcher),
            LayerLayout.of(problem.model, problem.training).cumulative[-1],
        )
        is_open = "offload" in problem.options.allow or "offload" in problem.options.named
        places = offloads(problem, able) if is_open else able.offload[:1]
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
            (part @ np.append(parts, (1.0, 1.0))).reshape(-1, each)
            for part in (held, prices.optimizer_bytes)
        )
        least = least.min(axis=1)
        anything = profile.residual is not None  # it may make a row lighter
        return cls(
            held_bytes=np.zeros_like(least) if anything else least,
            budget_bytes=memory_budget_bytes(problem, profile),
            in_memory=np.array([not anything and f"{place}+".startswith("optimizer+") for place in places]),
            there_bytes=(states[0] - states).min(axis=1),
            host_bytes=usable_host_bytes(problem),
        )

    def on(self, gpus: int) -> bool:
        """Return whether the states fit in so many GPUs and their hosts; False: nothing fits."""
        fits = self.held_bytes / gpus <= self.budget_bytes * _ROUNDED
        there = self.there_bytes / gpus <= self.host_bytes * _ROUNDED
        return bool((fits & (~self.in_memory | there)).any())
