"""From columns to priced rows: each price is found once, and laid beside a row when somebody asks.

Prices depend on neither the number of recomputed layers nor the number of chunks beyond one, so that
a dozen rows share one (DeepSeek-V3 on 2 048 GPUs). With a calibrated residual, and under torch's pipeline
runtime, which gathers weights by chunks, they do depend on the chunks. ``Priced`` holds every price once
and, for every row, which one is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from profiles.capabilities import launcher_capabilities
from profiles.profile import Profile
from solver.columns import Columns, FloatArray, IntArray
from solver.cost.memory import memory_budget_bytes
from solver.cost.price import price, price_memory, price_unsharded
from solver.cost.prices import LayerLayout, RowPrices
from solver.crossing import Crossing
from solver.objective import Weighing, is_plain, is_weighed_by_kind, weighing_of
from solver.problem import Problem
from solver.search.kinds import Families, Kinds
from solver.search.mixed import may_fit
from solver.search.rows import Rows
from solver.search.watch import look
from solver.splits import ANY_SPLIT, Prescribed

CHUNK = 16384  # rows priced or bounded between two looks at the clock; their arrays stay in the cache
_HASH_SEED = 20


class PriceList:
    """Prices by number, each of which is found once: at the start, or when somebody asks for it first."""

    def __init__(
        self, table: RowPrices, entry: IntArray, find: Callable[[IntArray], RowPrices] | None = None
    ) -> None:
        self.table = table  # one entry for each distinct price that was found, without its breakdown
        self.entry = entry  # which of them a row's is (n,), or a kind's (k,); -1: none was found yet
        self._find = find

    def at(self, numbers: IntArray) -> RowPrices:
        """The prices of these numbers, in that order."""
        if self._find is not None:
            missing = np.unique(numbers[self.entry[numbers] < 0])
            if len(missing):
                self.table = RowPrices.concatenate([self.table, self._find(missing)])
                self.entry[missing] = np.arange(len(self.table) - len(missing), len(self.table))
        return self.table.take(self.entry[numbers])

    def afresh(self) -> PriceList:
        """The same, which finds its prices anew and keeps them by itself."""
        if self._find is None:
            return self
        return PriceList(self.table.take(slice(0)), np.full_like(self.entry, -1), self._find)


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Rows whose prices lie in a list; ``take`` lays them side by side."""

    columns: Columns | Crossing
    prices: PriceList  # of rows, or of kinds
    layout: LayerLayout
    budget_bytes: float
    uneven_stages: bool
    only_split: Prescribed = ANY_SPLIT
    weighing: Weighing | None = None  # of rows, or outer rows (``weight_of``); None: the step time
    kinds: Kinds | None = None
    families: Families | None = None  # of the kinds that memory does not refute at sight
    unsharded: Callable[[IntArray], RowPrices] | None = None  # no kind's times are less than its family's

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.columns)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers are of one kind."""
        return len(self.layout.kinds) == 1

    def latest(self, index: IntArray | int) -> FloatArray:
        """The largest objective of rows that meets the request's deadline; +inf without one."""
        if self.weighing is None:
            return np.asarray(np.inf)
        return np.asarray(self.weighing.latest[self.weight_of(index)])

    def weight_of(self, index: IntArray | int) -> IntArray:
        """Which entries of ``weighing`` are those of rows: their own, or their outer rows'."""
        if isinstance(self.columns, Columns):
            return np.asarray(index)
        return np.asarray(np.searchsorted(self.columns.first, index, side="right") - 1)

    def take(self, index: IntArray | list[int]) -> Rows:
        """The rows at ``index``, in that order."""
        picked = np.asarray(index, dtype=np.int64)
        kind = picked if self.kinds is None else self.kinds.of(picked)
        return self._beside(self.columns.take(picked), self.prices.at(kind))

    def quickest(self, kinds: IntArray) -> Rows:
        """The representatives of kinds (``Kinds.quickest``)."""
        return self._beside(self._kinds.quickest(kinds), self.prices.at(kinds))

    def quickest_of_families(self, kinds: IntArray) -> Rows:
        """The same with times that those of no other kind of their families are less than."""
        if self.unsharded is None:
            raise ValueError("rows that were written down have no families")
        return self._beside(self._kinds.quickest(kinds), self.unsharded(kinds))

    @property
    def _kinds(self) -> Kinds:
        if self.kinds is None:
            raise ValueError("rows that were written down have no kinds")
        return self.kinds

    def _beside(self, columns: Columns, prices: RowPrices) -> Rows:
        """Rows with their prices."""
        return Rows(
            columns=columns,
            prices=prices,
            layout=self.layout,
            budget_bytes=self.budget_bytes,
            uneven_stages=self.uneven_stages,
            only_split=self.only_split,
        )


def priced_rows(problem: Problem, profile: Profile, columns: Columns) -> Rows:
    """Rows of a problem with their prices and the memory that each rank may use."""
    return _rows(problem, profile, columns, price(problem, columns, profile))


def _rows(problem: Problem, profile: Profile, columns: Columns, prices: RowPrices) -> Rows:
    """Rows with these prices."""
    return Rows(
        columns=columns,
        prices=prices,
        layout=LayerLayout.of(problem.model),
        budget_bytes=memory_budget_bytes(problem, profile, problem.options.max_out_of_memory_probability),
        uneven_stages=launcher_capabilities(problem.launcher).uneven_stages,
        only_split=Prescribed.of(problem),
    )


def priced_space(
    problem: Problem,
    profile: Profile,
    columns: Columns | Crossing,
    interrupted: Callable[[], bool] = lambda: False,
) -> Priced:
    """All rows of ``columns`` with their prices; none when ``interrupted`` gives up.

    Rows of a crossing are priced by kind, when somebody asks for one. Where they are ranked by what no kind
    has in common they are written down first.
    """
    if isinstance(columns, Crossing):
        if is_weighed_by_kind(problem) and len(columns):
            return _priced_kinds(problem, profile, columns, interrupted)
        columns = columns.take(np.arange(len(columns)))
    columns = columns.take(slice(0)) if interrupted() else columns
    first, price_of = _distinct(_priced_by(columns, profile))
    parts = list[RowPrices]()
    for start in range(0, max(len(first), 1), CHUNK):
        if len(first) and interrupted():
            return priced_space(problem, profile, columns.take(np.arange(0)))
        some = columns.take(first[start : start + CHUNK])
        parts.append(_bare(price(problem, some, profile)))
    found = _priced(problem, profile, columns, PriceList(RowPrices.concatenate(parts), price_of))
    return found if is_plain(problem) else weighed(found, weighing_of(problem, profile, columns))


def _priced(problem: Problem, profile: Profile, columns: Columns | Crossing, prices: PriceList) -> Priced:
    """Rows with a list of prices."""
    rows = priced_rows(problem, profile, columns.take(np.arange(0)))
    return Priced(
        columns=columns,
        prices=prices,
        layout=rows.layout,
        budget_bytes=rows.budget_bytes,
        uneven_stages=rows.uneven_stages,
        only_split=rows.only_split,
    )


def _priced_kinds(
    problem: Problem, profile: Profile, columns: Crossing, interrupted: Callable[[], bool]
) -> Priced:
    """Rows whose kinds are priced when somebody asks for one; none when ``interrupted`` gives up."""
    kinds = Kinds(crossing=columns, by_chunks=_counts_chunks(profile))
    families = _families_that_may_fit(problem, profile, kinds, interrupted)
    if families is None:
        return priced_space(problem, profile, columns.take(np.arange(0)))
    weighing = least = None
    if not is_plain(problem):
        weighing = weighing_of(problem, profile, columns.outer)
        scale, offset = map(kinds.least_of_family, (weighing.scale, weighing.offset))
        least = replace(weighing, scale=scale, offset=offset)

    def find(some: IntArray) -> RowPrices:
        parts = [some[start : start + CHUNK] for start in range(0, max(len(some), 1), CHUNK)]
        found = [_bare(price(problem, kinds.quickest(part), profile)) for part in parts]
        prices = RowPrices.concatenate(found)
        return prices if weighing is None else _scaled(prices, weighing, kinds.outer_of(some))

    def unsharded(some: IntArray) -> RowPrices:
        prices = price_unsharded(problem, kinds.quickest(some), profile)
        return prices if least is None else _scaled(prices, least, kinds.outer_of(some))

    prices = PriceList(find(np.arange(0)), np.full(len(kinds), -1, dtype=np.int64), find)
    return replace(
        _priced(problem, profile, columns, prices), weighing=weighing, kinds=kinds, families=families,
        unsharded=unsharded,
    )  # fmt: skip


def _families_that_may_fit(
    problem: Problem, profile: Profile, kinds: Kinds, interrupted: Callable[[], bool]
) -> Families | None:
    """The kinds whose lightest representative may fit; None when ``interrupted`` gives up.

    More ranks of a shard set leave less to each of them and change no other memory, so that the smallest
    set that fits is bisected.
    """
    families = kinds.families
    low, high = np.zeros(len(families), dtype=np.int64), families.sizes
    index, turn = np.arange(len(families)), 0
    while len(index):  # most families fit with every size or with none: the ends are tried first
        for start in range(0, len(index), CHUNK):
            if interrupted():
                return None  # a kind that nobody looked at is not refuted
            here = index[start : start + CHUNK]
            tried = (high[here] - 1, low[here], (low[here] + high[here]) // 2)[min(turn, 2)]
            columns = kinds.lightest(families.members[families.begin[here] + tried])
            able = may_fit(_rows(problem, profile, columns, price_memory(problem, columns, profile)))
            high[here[able]], low[here[~able]] = tried[able], tried[~able] + 1
        index, turn = np.flatnonzero(low < high), turn + 1
    return families.without(high)


def weighed(rows: Priced, weighing: Weighing) -> Priced:
    """Prices of another objective: ``straggler`` and ``fixed_s`` are those of ``scale * step + offset``.

    Rows of one price have one weight each; memory stays what it is.
    """
    if not len(rows):
        return rows
    key = rows.prices.entry
    for weights in (weighing.scale, weighing.offset):
        look()
        values, which = np.unique(weights, return_inverse=True)
        key = key * len(values) + which
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    table = _scaled(rows.prices.table.take(rows.prices.entry[first]), weighing, first)
    return replace(rows, prices=PriceList(table, inverse.ravel()), weighing=weighing)


def _scaled(prices: RowPrices, weighing: Weighing, index: IntArray) -> RowPrices:
    """Prices as the objective weighs them; ``index`` says by which weights."""
    scale, offset = weighing.scale[index], weighing.offset[index]
    return replace(prices, straggler=prices.straggler * scale, fixed_s=prices.fixed_s * scale + offset)


def _counts_chunks(profile: Profile) -> bool:
    """Whether prices depend on the number of chunks and their order.

    The residual of a calibrated cluster does, and so do gathers under torch's pipeline runtime
    (``solver.cost.sharding.gathers_in_passes``).
    """
    calibrated = profile.residual is not None or profile.memory_residual is not None
    return calibrated or profile.framework.torch_pipelines


def _priced_by(columns: Columns, profile: Profile) -> list[IntArray]:
    """The columns that a price depends on."""
    residual = _counts_chunks(profile)
    chunks = columns.virtual_pipeline_size
    others = [
        f.name for f in fields(columns) if f.name not in {"recompute_layers", "virtual_pipeline_size"}
    ]
    return [getattr(columns, name) for name in others] + [chunks if residual else np.minimum(chunks, 2)]


def _distinct(values: list[IntArray]) -> tuple[IntArray, IntArray]:
    """The first row of each distinct combination, and for every row which combination it has.

    Combinations are told apart by a random linear hash, which is then checked value by value.
    """
    odd = np.random.default_rng(_HASH_SEED).integers(0, 2**62, len(values)) * 2 + 1
    hashed = np.zeros(len(values[0]), dtype=np.int64)
    with np.errstate(over="ignore"):
        for value, factor in zip(values, odd, strict=True):
            look()
            hashed += value * factor
    _, first, inverse = np.unique(hashed, return_index=True, return_inverse=True)
    if not _agree(values, first[inverse]):
        _, first, inverse = np.unique(np.stack(values), axis=1, return_index=True, return_inverse=True)
    return first, inverse.ravel()


def _agree(values: list[IntArray], representative: IntArray) -> bool:
    """Whether every row has the values of its representative."""
    for value in values:
        look()
        if not np.array_equal(value, value[representative]):
            return False
    return True


def _bare(prices: RowPrices) -> RowPrices:
    """Prices without their breakdown, which only predictions show."""
    return replace(prices, breakdown_s={}, tail_breakdown_s={})
