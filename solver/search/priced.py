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
from solver.columns import BoolArray, Columns, FloatArray, IntArray
from solver.cost.memory import memory_budget_bytes
from solver.cost.price import price, price_memory
from solver.cost.prices import LayerLayout, RowPrices
from solver.crossing import Crossing
from solver.objective import Weighing, is_plain, is_weighed_by_kind, weighing_of
from solver.problem import Problem
from solver.search.bounds import least_of_kind_s, objective_bound_s
from solver.search.kinds import Kinds
from solver.search.mixed import may_fit
from solver.search.rows import Rows
from solver.search.watch import look
from solver.splits import ANY_SPLIT, Prescribed

_MOST_KINDS = 700_000  # that have a price, of some 600 bytes each
CHUNK = 16384  # rows priced or bounded between two looks at the clock; their arrays stay in the cache
_HASH_SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Rows of kinds that cannot be ranked: their bounds are beyond what was known before."""

    rows: int = 0
    objective_s: float = np.inf  # the closed form of none of them is less


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What plans that were found before say about all others."""

    cutoff_s: float = np.inf  # the K-th best score
    objective_s: float = np.inf  # rows whose closed form may be less are kept


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Rows whose prices lie in a table; ``take`` lays them side by side."""

    columns: Columns | Crossing
    table: RowPrices  # one entry for each distinct price, without its breakdown
    price_of: IntArray  # which entry is a row's (n,), or a kind's (k,): -1 where it is refuted or pruned
    layout: LayerLayout
    budget_bytes: float
    uneven_stages: bool
    only_split: Prescribed = ANY_SPLIT
    pruned: Pruned = Pruned()  # kinds that were bounded away before their prices were kept
    weighing: Weighing | None = None  # of rows, or outer rows (``weight_of``); None: the step time
    kinds: Kinds | None = None

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
        return self._beside(self.columns.take(picked), self.price_of[kind])

    def quickest(self, kinds: IntArray) -> Rows:
        """The representatives of kinds that memory does not refute at sight (``Kinds.quickest``)."""
        if self.kinds is None:
            raise ValueError("rows that were written down have no kinds")
        return self._beside(self.kinds.quickest(kinds), self.price_of[kinds])

    def _beside(self, columns: Columns, entry: IntArray) -> Rows:
        """Rows with their prices."""
        return Rows(
            columns=columns,
            prices=self.table.take(entry),
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
    known: Known | None = None,
) -> Priced:
    """All rows of ``columns`` with one price for each kind of row; none when ``interrupted`` gives up.

    None where more than _MOST_KINDS kinds need a price; kinds that ``known`` plans bound away need none
    (``Priced.pruned``).

    Rows of a crossing are priced by kind, those kinds alone that memory does not refute at sight. Where
    they are ranked by anything but the step they are written down first.
    """
    plain, weighing = is_plain(problem), None
    if isinstance(columns, Crossing) and (not is_weighed_by_kind(problem) or not len(columns)):
        columns = columns.take(np.arange(len(columns)))
    if isinstance(columns, Crossing):
        kinds = Kinds(crossing=columns, by_chunks=_counts_chunks(profile))
        able = _kinds_that_may_fit(problem, profile, kinds, interrupted)
        if able is None:
            return priced_space(problem, profile, columns.take(np.arange(0)))
        priced, price_of = np.flatnonzero(able), np.where(able, np.cumsum(able) - 1, -1)
        weighing = None if plain else weighing_of(problem, profile, columns.outer)
        wanted: Callable[[IntArray], Columns] = kinds.quickest
    else:
        columns = columns.take(slice(0)) if interrupted() else columns
        kinds, written = None, columns
        priced, price_of = _distinct(_priced_by(columns, profile))
        wanted = written.take
    parts, pruned, kept = list[RowPrices](), Pruned(), list[IntArray]()
    number = 0
    for start in range(0, max(len(priced), 1), CHUNK):
        if len(priced) and (interrupted() or (kinds is not None and number > _MOST_KINDS)):
            return priced_space(problem, profile, columns.take(np.arange(0)))
        here = priced[start : start + CHUNK]
        number += len(here)
        prices = _bare(price(problem, wanted(here), profile))
        if kinds is not None and weighing is not None:
            prices = _scaled(prices, weighing, kinds.outer_of(here))
        if known is not None and kinds is not None:
            some = _rows(problem, profile, wanted(here), prices)
            able, pruned = _not_pruned(some, kinds, here, known, pruned)
            kept.append(here[able])
            number += int(able.sum()) - len(here)
            prices = prices.take(np.flatnonzero(able))
        parts.append(prices)
    if kept:
        price_of = np.full(len(price_of), -1, dtype=np.int64)
        left = np.concatenate(kept)
        price_of[left] = np.arange(len(left))
    rows = priced_rows(problem, profile, columns.take(np.arange(0)))
    found = Priced(
        columns=columns,
        table=RowPrices.concatenate(parts),
        price_of=price_of,
        layout=rows.layout,
        budget_bytes=rows.budget_bytes,
        uneven_stages=rows.uneven_stages,
        only_split=rows.only_split,
        kinds=kinds,
        pruned=pruned,
        weighing=weighing,
    )
    if isinstance(columns, Crossing) or plain:
        return found
    return weighed(found, weighing_of(problem, profile, columns))


def _not_pruned(
    rows: Rows, kinds: Kinds, index: IntArray, known: Known, before: Pruned
) -> tuple[BoolArray, Pruned]:
    """Kinds that may be ranked or have a lesser closed form; and what is pruned with the others.

    ``rows`` are the quickest of the kinds at ``index``.
    """
    objectives = objective_bound_s(rows, kinds.least_fill[index])
    kept = (least_of_kind_s(rows) <= known.cutoff_s) | (objectives < known.objective_s)
    lost = float(objectives[~kept].min(initial=before.objective_s))
    number = before.rows + int(kinds.sizes[index[~kept]].sum())
    return np.asarray(kept), Pruned(rows=number, objective_s=lost)


def _kinds_that_may_fit(
    problem: Problem, profile: Profile, kinds: Kinds, interrupted: Callable[[], bool]
) -> BoolArray | None:
    """The kinds whose lightest representative may fit; None when ``interrupted`` gives up."""
    able = np.zeros(len(kinds), dtype=np.bool_)
    for start in range(0, len(kinds), CHUNK):
        if interrupted():
            return None  # a kind that nobody looked at is not refuted
        index = np.arange(start, min(start + CHUNK, len(kinds)))
        columns = kinds.lightest(index)
        able[index] = may_fit(_rows(problem, profile, columns, price_memory(problem, columns, profile)))
    return able


def weighed(rows: Priced, weighing: Weighing) -> Priced:
    """Prices of another objective: ``straggler`` and ``fixed_s`` are those of ``scale * step + offset``.

    Rows of one price have one weight each; memory stays what it is.
    """
    if not len(rows):
        return rows
    key = rows.price_of
    for weights in (weighing.scale, weighing.offset):
        look()
        values, which = np.unique(weights, return_inverse=True)
        key = key * len(values) + which
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    table = _scaled(rows.table.take(rows.price_of[first]), weighing, first)
    return replace(rows, table=table, price_of=inverse.ravel(), weighing=weighing)


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
