"""Outer space: every configuration without its split, as columns, with a mask of broken rules.

Variables and their candidates; what the request pins or bounds is always one, so that a broken rule shows:
  tensor_parallel_size     1, 2, 4, … and the other divisors of the heads, within an island
  context_parallel_size    1, 2, 4, … while a rank keeps MIN_TOKENS_PER_CONTEXT_RANK tokens
  pipeline_parallel_size   divisors of the remaining GPUs, up to the number of layers
  data_parallel_size       the GPUs that remain: tp * cp * pp * dp = GPUs used
  expert_parallel_size     divisors of the experts
  virtual_pipeline_size    1 … layers / pp
  micro_batch_size         divisors of the batch up to MAX_MICRO_BATCH_SIZE
  zero_stage               those of the launcher
  recompute                none, selective, full in every layer, full in the first k of each chunk
  pipeline_schedule        those of the launcher that run so many chunks, the plain one first
Other slices of the sequence and larger micro-batches are candidates where that costs little
(``meshwright.solver.space.enumerate``) and where nothing else is legal or fits (``wide``). What few
requests turn is added by ``widening``. Derived: num_microbatches. Recomputing k layers of every chunk is
left out where an even split has only k: there it is the row that recomputes every layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import product

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    ALL_LAYERS,
    MAX_SIZE,
    PER_STAGE,
    RECOMPUTE,
    SCHEDULES,
    SPLIT_BACKWARD,
    BoolArray,
    Columns,
    Configuration,
    FloatArray,
    IntArray,
    distinct,
    is_one_of,
)
from meshwright.solver.problem import (
    Problem,
    are_named,
    batch_sizes,
    can_start,
    gpu_counts,
    on_gpus,
    per_node_of,
    remembered,
    usable_gpus,
    with_batch,
)
from meshwright.solver.schedules.schedule import plain_schedule, schedules_of
from meshwright.solver.space.factored import (
    Chunkings,
    Crossing,
    OuterRows,
    crossed,
    legal_rows,
    outer_legal,
    parts_of,
)
from meshwright.solver.space.request_rules import counts_kept, limited_by
from meshwright.solver.space.rule import OF_CHUNKS, Rule
from meshwright.solver.space.rules import inside_islands, islands_of, rules_of, violation_masks
from meshwright.solver.space.widening import CHANGED, WIDENED, named_values, widened
from meshwright.solver.splits import divisors

# --------------------------------------------------------------------------------------------------
# The inner factor of the outer space: chunks a rank, recomputation and schedule of each pipeline size.


_FULL = RECOMPUTE.index("full")


def with_request(problem: Problem, variable: str, candidates: Iterable[int]) -> list[int]:
    """Return the candidates, the pinned value, and further values in the request's bounds."""
    return sorted({*candidates, *named_values(problem, variable)})


def recomputes_by_stage(problem: Problem) -> bool:
    """Return whether each stage may fully recompute a number of layers of its own."""
    alike = "recompute_layers" in limited_by(problem) or problem.counts_ends
    # Energy's weights would depend on the split.
    alike |= problem.options.objective == "energy_per_token"
    return launcher_capabilities(problem.launcher).recompute_per_stage and not alike


@remembered
def chunkings_of(problem: Problem, pp: int) -> IntArray:
    """Return (vpp, recompute, recompute_layers, pipeline_schedule) rows of a ``pp``-stage pipeline."""
    layers, options = problem.most_chunks, problem.options
    able = {*launcher_capabilities(problem.launcher).schedules, options.pin.get("pipeline_schedule")}
    per_stage = recomputes_by_stage(problem)
    rows: list[tuple[int, int, int, int]] = []
    virtual = list(range(1, layers // pp + 1)) if pp > 1 else [1]
    for vpp in with_request(problem, "virtual_pipeline_size", virtual):
        even = layers // (pp * vpp)
        last = even if layers % (pp * vpp) else even - 1  # all of an even split: ALL_LAYERS
        plain, *others = schedules_of(pp, vpp) or (plain_schedule(pp, vpp),)
        for name in (plain, *(other for other in others if other in able)):
            word = SCHEDULES.index(name)
            rows += [*((vpp, kind, 0, word) for kind in range(_FULL)), (vpp, _FULL, ALL_LAYERS, word)]
            if problem.counts_ends:
                continue  # the leading layer may be the embedding, which nothing replays
            if per_stage and vpp == 1 and pp > 1 and name not in SPLIT_BACKWARD:
                rows.append((vpp, _FULL, PER_STAGE, word))
            if name not in SPLIT_BACKWARD:  # where whole layers are not recomputed, one row covers it
                rows += [(vpp, _FULL, count, word) for count in range(1, last + 1)]
    kinds = [RECOMPUTE.index(kind) for kind in options.recompute_kinds] or range(_FULL + 1)
    return np.array([row for row in rows if row[1] in kinds], dtype=np.int64)


MIN_TOKENS_PER_CONTEXT_RANK = 2048  # shorter slices leave attention too little to hide its ring
MAX_MICRO_BATCH_SIZE = 32
_MAX_FALLBACKS = 64
_MOST_COUNTS = 8  # GPU counts searched together where the whole cluster does not factor
_MOST_REFUTED = 50_000  # rows of which all candidates, usually some ten times as many, are written down
_TOGETHER = 64  # meshes with rows that are checked together, of several pipeline sizes where those have few
_NEARLY = 0.9  # of the largest of them
FEW_OUTER = 20_000  # under all switches: all are ranked hardly later than the likely ones
MANY_OUTER = 100_000  # under all switches: a search takes a second and more
LARGE_OUTER = 150_000  # rows without their chunks: more are enumerated after a first plan alone
MOST_OUTER = 1_000_000  # more, at some 300 bytes each, are never written down
_MOST_WRITTEN = 2_000_000  # rows with their chunks that explanations write down, legal or not
_PROBED = 64  # rows that show how many others differ from each in what ``widening`` adds
_SAMPLED = 256  # rows without their chunks in a sample, of all pipelines together
_LISTED = 32  # chunkings tried with each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Enumerated configurations of a problem."""

    rows: Columns | Crossing  # written down, or, of legal ones alone, as two factors
    masks: IntArray  # (n,) bit b: breaks rules[b]
    rules: tuple[Rule, ...]
    num_gpus: int  # most GPUs that a row uses; fewer than the cluster has where those do not factor
    warnings: tuple[str, ...]
    refuted: int = 0  # rows that break a rule and are left out
    every: bool = False  # of all candidates, not of the usual ones alone
    whole: bool = True  # not a sample alone

    @property
    def size(self) -> int:
        """Return the number of configurations covered."""
        return len(self.rows) + self.refuted

    @property
    def columns(self) -> Columns:
        """Return all rows, written down."""
        return self.rows if isinstance(self.rows, Columns) else self.rows.take(np.arange(len(self.rows)))

    @property
    def num_legal(self) -> int:
        """Return how many rows break no rule."""
        return len(self.rows) if isinstance(self.rows, Crossing) else int(self.legal.sum())

    @property
    def legal(self) -> BoolArray:
        """Mark rows that break no rule, shape (n,)."""
        return np.asarray(self.masks == 0)


def _inner_axes(problem: Problem, *, wide: bool) -> tuple[list[int], list[int]]:
    heads = [d for d in divisors(problem.model.num_attention_heads) if d <= islands_of(problem)[0]]
    length = problem.workload.seq_length
    most = max(length // MIN_TOKENS_PER_CONTEXT_RANK, 1)
    slices = divisors(length) if wide else (1 << bit for bit in range(most.bit_length()))
    return (
        with_request(problem, "tensor_parallel_size", heads),
        with_request(problem, "context_parallel_size", slices),
    )


def _meshes(problem: Problem, numbers: Sequence[int] | IntArray, *, wide: bool) -> IntArray:
    """Return (tp, cp, pp, dp, ep) rows of some numbers of GPUs, number by number."""
    model = problem.model
    tensor, context = _inner_axes(problem, wide=wide)
    counts = divisors(model.moe.num_experts) if model.moe else (1,)
    experts = np.array(with_request(problem, "expert_parallel_size", counts), dtype=np.int64)
    axes = (numbers, tensor, context, range(1, problem.most_chunks + 1))
    gpus, tp, cp, pp = np.ix_(*(np.array(axis, dtype=np.int64) for axis in axes))
    named = np.isin(tp, named_values(problem, "tensor_parallel_size"))  # whose faults are told
    inside = named | inside_islands(islands_of(problem), tp, gpus)
    n, t, c, p = np.nonzero((gpus % (tp * cp * pp) == 0) & inside)
    size = np.stack([tp.ravel()[t], cp.ravel()[c], pp.ravel()[p]], axis=1)
    total = gpus.ravel()[n]
    row, at = np.nonzero((experts == 1) | ((total // size[:, 2])[:, None] % experts == 0))
    data = total // size.prod(axis=1)
    return np.concatenate([size[row], data[row, None], experts[at, None]], axis=1)


_SPLITS = np.array([name in SPLIT_BACKWARD for name in SCHEDULES])


@dataclass(slots=True, kw_only=True)
class Beyond:
    """Rows that are slower than a limit however they are run: they are left out of a space."""

    limit_s: float
    # of rows, and which of them run one chunk a rank with whole backward passes: none of their chunkings,
    # nor of the rows that are widened from them, scores less
    least_s: Callable[[Columns, BoolArray], FloatArray]
    nearest_s: float = math.inf  # the least of those that were left out

    def near(self, plain: Columns) -> BoolArray:
        """Mark rows, before they are widened, that may be within the limit, (n,)."""
        return self._near(plain, np.zeros(len(plain), dtype=np.bool_))

    def without(self, rows: Crossing) -> Crossing:
        """Return the legal rows that may be within the limit."""
        if not len(rows):
            return rows
        begins, which = np.unique(rows.begin, return_inverse=True)
        chunks, _, _, schedule = rows.inner.T
        alone = np.logical_and.reduceat((chunks == 1) & ~_SPLITS[schedule], begins)
        return rows.among(self._near(rows.outer, alone[which]))

    def _near(self, rows: Columns, alone: BoolArray) -> BoolArray:
        least_s = self.least_s(rows, alone)
        far = least_s > self.limit_s
        self.nearest_s = min(self.nearest_s, float(least_s[far].min(initial=math.inf)))
        return ~far


def _outer_blocks(
    problem: Problem, numbers: Sequence[int], *, wide: bool, others: set[int], beyond: Beyond | None = None
) -> Iterator[tuple[list[int], Columns]]:
    """Yield pipeline sizes and their one-chunk rows, without batches that are asked apart, ``others``."""
    most = _TOGETHER * len(numbers) if beyond else _TOGETHER
    for some, every in _plain_blocks(problem, numbers, wide=wide, most=most):
        plain = every.take(~is_one_of(every.global_batch_size, others)) if others else every
        plain = _within(problem, beyond, plain, some.tolist()) if beyond else plain
        outer = widened(problem, plain, wide=wide)
        yield some.tolist(), outer.take(np.argsort(outer.pipeline_parallel_size, kind="stable"))


def _chunked(problem: Problem, sizes: Iterable[int]) -> list[Chunkings]:
    return [(pp, chunkings_of(problem, pp)) for pp in sizes]


def _within(problem: Problem, beyond: Beyond, plain: Columns, sizes: Sequence[int]) -> Columns:
    """Return the rows, before they are widened, that may be within the limit with legal chunks.

    Rules are asked that hold for all rows that are widened from one, whatever they recompute.
    """
    near = plain.take(beyond.near(plain))
    near = near.take(np.argsort(near.pipeline_parallel_size, kind="stable"))
    apart = {*CHANGED, "recompute", "recompute_layers"}
    rules = tuple(rule for rule in rules_of(problem) if apart.isdisjoint(rule.reads))
    chunks, schedule = (OF_CHUNKS.index(name) for name in ("virtual_pipeline_size", "pipeline_schedule"))
    lists = [(pp, every[distinct([every[:, chunks], every[:, schedule]])[0]])
             for pp, every in _chunked(problem, sizes)]  # fmt: skip
    return beyond.without(legal_rows(rules, [(OuterRows.of(rules, near), lists)])[0]).outer


def _plain_blocks(
    problem: Problem, numbers: Sequence[int], *, wide: bool, most: int = _TOGETHER
) -> Iterator[tuple[IntArray, Columns]]:
    """Yield pipeline sizes of about ``most`` meshes, and their one-chunk rows before they are widened."""
    meshes = _meshes(problem, numbers, wide=wide)
    sizes, counts = np.unique(meshes[:, 2], return_counts=True)
    ends = np.flatnonzero(np.diff(np.cumsum(counts) // most) + np.diff(sizes > 1)) + 1
    for some in np.split(sizes, ends) if len(sizes) else ():
        yield some, _outer_of(problem, meshes, some, wide=wide)


@remembered
def _rules_of_plain(problem: Problem) -> tuple[Rule, ...]:
    """Return the rules on columns that widened rows and chunkings share with their plain row."""
    return tuple(rule for rule in rules_of(problem) if {*CHANGED, *OF_CHUNKS}.isdisjoint(rule.reads))


def _may_be_legal(problem: Problem, num_gpus: int) -> bool:
    """Return whether a row may be legal on so many GPUs; False is a proof, long before all are written.

    Only rules on columns that widened rows and chunkings share with their plain row are asked about.
    """
    rules = _rules_of_plain(problem)
    return any(
        outer_legal(rules, plain).any()
        for wide in (False, True)  # mostly one of the few usual rows is
        for batch in batch_sizes(problem)
        for _, plain in _plain_blocks(with_batch(problem, batch), (num_gpus,), wide=wide)
    )


def plain_rows(problem: Problem, numbers: IntArray, *, wide: bool) -> Columns:
    """Return the one-chunk rows of numbers of GPUs, before they are widened, that may have a legal row."""
    rules = _rules_of_plain(problem)
    meshes, found = _meshes(problem, numbers, wide=wide), [Columns.nothing()]
    for batch in batch_sizes(problem):
        own = with_batch(problem, batch)
        for staged in (False, True):
            some = meshes[(meshes[:, 2] > 1) == staged]
            if len(some):
                plain = _outer_of(own, some, some[:, 2], wide=wide)
                found.append(plain.take(outer_legal(rules, plain)))
    return Columns.concatenate(found)


_OF_PIPELINE = frozenset({"pipeline_parallel_size", "num_microbatches", *OF_CHUNKS})


def run_alone(problem: Problem, plain: Columns) -> BoolArray:
    """Mark plain rows that have one chunk a rank and whole backward passes in each legal row, (n,)."""
    rules = tuple(rule for rule in rules_of(problem) if _OF_PIPELINE.issuperset(rule.reads))
    first, which = distinct([plain.pipeline_parallel_size, plain.num_microbatches])
    some = plain.take(first)
    alone = np.ones(len(first), dtype=np.bool_)
    for pp in np.unique(some.pipeline_parallel_size).tolist():
        inner = chunkings_of(problem, pp)
        others = inner[(inner[:, 0] > 1) | _SPLITS[inner[:, 3]]]
        at = np.flatnonzero(some.pipeline_parallel_size == pp)
        legal = violation_masks(rules, crossed(some.take(at), others)) == 0
        alone[at] = ~legal.reshape(len(at), -1).any(axis=1)
    return np.asarray(alone[which])


def _outer_of(problem: Problem, meshes: IntArray, sizes: IntArray, *, wide: bool) -> Columns:
    """Return one-chunk rows of pipeline sizes all 1, or all more, before they are widened."""
    mesh, step, (i, j) = _tried(problem, meshes[np.isin(meshes[:, 2], sizes)], wide=wide)
    return _one_chunk(problem, np.concatenate([mesh[i], step[j]], axis=1))


def _tried(
    problem: Problem, mesh: IntArray, *, wide: bool
) -> tuple[IntArray, IntArray, tuple[IntArray, ...]]:
    """Return meshes, all of one stage or all of more, steps, and which are tried together.

    A step is a micro-batch size and a ZeRO stage; tried are those within the batch, and the smallest one.
    """
    able, batch = launcher_capabilities(problem.launcher), problem.workload.global_batch_size
    whole = [size for size in divisors(batch) if wide or size <= MAX_MICRO_BATCH_SIZE]
    most = able.max_zero_stage_with_pipeline if (mesh[:, 2] > 1).any() else max(able.zero_stages)
    stages = with_request(problem, "zero_stage", (zero for zero in able.zero_stages if zero <= most))
    sizes = with_request(problem, "micro_batch_size", whole)
    step = np.array([(size, zero) for size in sizes for zero in stages], dtype=np.int64).reshape(-1, 2)
    smallest = step[:, 0] == step[:, 0].min(initial=np.iinfo(np.int64).max)
    return mesh, step, np.nonzero(smallest[None, :] | (mesh[:, 3:4] * step[None, :, 0] <= batch))


def _one_chunk(problem: Problem, rows: IntArray) -> Columns:
    """Return columns of such rows (…, micro_batch_size, zero): one chunk a rank, none recomputed."""
    tp, cp, pp, dp, ep, micro_batch, zero = rows.T.copy()
    ones = np.ones_like(tp)
    sequence = launcher_capabilities(problem.launcher).sequence_parallel
    return Columns.plain(
        tensor_parallel_size=tp,
        sequence_parallel=((tp > 1) & sequence).astype(np.int64),
        pipeline_parallel_size=pp,
        context_parallel_size=cp,
        expert_parallel_size=ep,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=np.where(zero > 0, dp * cp, 1),
        micro_batch_size=micro_batch,
        num_microbatches=np.maximum(problem.workload.global_batch_size // (dp * micro_batch), 1),
        pipeline_schedule=0 * ones,
        recompute=0 * ones,
        recompute_layers=0 * ones,
    )


def _enumerate(problem: Problem, numbers: tuple[int, ...], rules: tuple[Rule, ...], asked: _Asked) -> Space:
    batches = batch_sizes(problem)
    blocks = (
        (own, some, outer)
        for batch in batches
        for own in (with_batch(problem, batch),)
        for some, outer in _outer_blocks(
            own, numbers, wide=asked.wide, others={*batches} - {batch}, beyond=asked.beyond
        )
    )
    if asked.legal_only:
        key = numbers, asked.wide, asked.beyond is None, _of_outer_rows(problem, rules)
        if key not in asked.outer_rows:
            asked.outer_rows[key] = [
                (own.workload.global_batch_size, some, OuterRows.of(rules, outer))
                for own, some, outer in blocks
            ]
        legal = (
            (outer, _chunked(with_batch(problem, batch), some))
            for batch, some, outer in asked.outer_rows[key]
        )
        rows, refuted = legal_rows(rules, legal, asked.tick)
        rows = asked.beyond.without(rows) if asked.beyond else rows
        rows = _by_number(rows, numbers)
        masks = np.broadcast_to(np.int64(0), len(rows))  # a hundred million zeros take eight bytes
        return Space(rows=rows, masks=masks, rules=rules, num_gpus=numbers[0], warnings=(), refuted=refuted,
                     every=asked.wide)  # fmt: skip
    columns = Columns.concatenate(
        [crossed(*part) for own, some, outer in blocks for part in parts_of(outer, _chunked(own, some))]
    )
    masks = violation_masks(rules, columns)
    return Space(rows=columns, masks=masks, rules=rules, num_gpus=numbers[0], warnings=(), every=asked.wide)


def _by_number(rows: Crossing, numbers: Sequence[int]) -> Crossing:
    """Return rows number by number of GPUs; those of one stay in their order."""
    if len(numbers) == 1 or not len(rows):
        return rows
    return rows.among(np.argsort(-rows.outer.num_gpus, kind="stable"))


def _of_outer_rows(problem: Problem, rules: Sequence[Rule]) -> Hashable:
    """Return a key that is equal for problems with equal legal outer rows."""
    is_open = "offload" in problem.options.allow or "offload" in problem.options.named
    return (
        tuple((rule.name, rule.reason) for rule in rules if rule.reads != ("recompute",)),
        tuple(problem.workload.framework_options.items()) if is_open else (),
    )


def passes_on_any_number(problem: Problem, *, wide: bool) -> Columns:
    """Return rows with the sizes that passes read, of all numbers of GPUs together; some break rules.

    Of stages, chunks and replicas passes read whether there are several (``cost.price.least_passes_s``). A
    step has one micro-batch: it adds to no gradients, so that no pass of several is shorter.
    """
    model = problem.model
    tensor, context = _inner_axes(problem, wide=wide)
    experts = divisors(model.moe.num_experts) if model.moe else (1,)
    whole = sorted({size for batch in batch_sizes(problem) for size in divisors(batch)})
    sizes = [size for size in whole if wide or size <= MAX_MICRO_BATCH_SIZE]
    asked = (
        ("tensor_parallel_size", tensor),
        ("context_parallel_size", context),
        ("expert_parallel_size", experts),
        ("micro_batch_size", sizes),
        ("zero_stage", launcher_capabilities(problem.launcher).zero_stages),
    )
    axes = [_within_limits(problem, name, with_request(problem, name, some)) for name, some in asked]
    rows = [
        (tp, cp, pp, several * ep, ep, size, zero)
        for tp, cp, ep, size, zero in product(*axes)
        for pp in (1, 2)
        for several in (1, 2)
    ]
    plain = _one_chunk(problem, np.array(rows, dtype=np.int64).reshape(-1, 7))
    one = np.ones(len(plain), dtype=np.int64)
    every = _read_by_passes(widened(problem, replace(plain, num_microbatches=one), wide=wide))
    chunks = every.take(np.flatnonzero(every.pipeline_parallel_size > 1))
    return Columns.concatenate(
        [every, replace(chunks, virtual_pipeline_size=chunks.virtual_pipeline_size + 1)]
    )


def _read_by_passes(every: Columns) -> Columns:
    """Return the rows that differ in what passes read where exchanges are free.

    That is not where ranks are, what follows from it, and whether ZeRO's stage is 0 or 1.
    """
    apart = {"rank_order", "zero_shard_size", "zero_stage", "data_parallel_size", "global_batch_size"}
    read = [getattr(every, one.name) for one in fields(every) if one.name not in apart]
    sharded = np.minimum(every.zero_shard_size, 2)
    first, _ = distinct([*read, np.maximum(every.zero_stage, 1), sharded])
    return every.take(first)


def _within_limits(problem: Problem, variable: str, values: Sequence[int]) -> list[int]:
    options = problem.options
    low, high = options.bounds.get(variable, (0, max(values)))
    only = options.pin.get(variable)
    return [value for value in values if low <= value <= high and only in (None, value)]


def _products(problem: Problem) -> IntArray:
    """Return numbers of GPUs that axes and batch can make up, ascending."""
    tensor, context = _inner_axes(problem, wide=True)
    rules, stages = rules_of(problem), list(range(1, problem.most_chunks + 1))
    data = sorted(
        {
            size
            for batch in batch_sizes(problem)
            for micro_batch in _within_limits(problem, "micro_batch_size", divisors(batch))
            for size in divisors(batch // micro_batch)
        }
    )
    products = np.ones(1, dtype=np.int64)
    for axis, sizes in (("tensor", tensor), ("context", context), ("pipeline", stages), ("data", data)):
        within = _within_limits(problem, f"{axis}_parallel_size", sizes)
        able = _with_chunkings(problem, rules, within) if axis == "pipeline" else within
        products = np.unique(np.multiply.outer(products, np.array(able, dtype=np.int64)))
    return products


def _with_chunkings(problem: Problem, rules: Sequence[Rule], stages: Sequence[int]) -> list[int]:
    """Return the numbers of stages that have a legal chunking, as far as rules on these alone show.

    Most have the plain one; of the others all are looked at.
    """
    alone = {"pipeline_parallel_size", *OF_CHUNKS}
    asked = tuple(rule for rule in rules if alone.issuperset(rule.reads))
    rows = np.array([(1, 1, pp, 1, 1, 1, 0) for pp in stages], dtype=np.int64).reshape(-1, 7)
    outer = _one_chunk(problem, rows)
    names = np.array([SCHEDULES.index(plain_schedule(pp, 1)) for pp in stages], dtype=np.int64)
    legal = violation_masks(asked, replace(outer, pipeline_schedule=names)) == 0
    for at in np.flatnonzero(~legal).tolist():
        every = crossed(outer.take(np.array([at])), chunkings_of(problem, stages[at]))
        legal[at] = (violation_masks(asked, every) == 0).any()
    return [pp for pp, able in zip(stages, legal, strict=True) if able]


def _fewer_gpus(problem: Problem) -> list[int]:
    """Return smaller GPU counts that axes and batch allow, whole nodes first, then largest first."""
    products = fewer_products(problem)
    whole = products % per_node_of(problem) == 0
    return [int(n) for n in (*products[whole][:_MAX_FALLBACKS], *products[~whole][:_MAX_FALLBACKS])]


# Whether some row is legal on a number of GPUs, as far as that was found out. Clusters that differ in their
# number of nodes alone agree.
LegalOn = dict[int, bool]


def _fallbacks(problem: Problem, legal_on: LegalOn) -> Iterator[int]:
    """Yield the counts of ``_fewer_gpus`` that a plan may use."""
    return filter(_may_be_used(problem, legal_on), _fewer_gpus(problem))


def _tried_in_turn(
    problem: Problem, counts: Sequence[int], legal: Sequence[int], legal_on: LegalOn
) -> Iterator[int]:
    """Yield numbers of GPUs, and if the first of them is not found to be ``legal``, smaller ones too."""
    yield from counts
    if counts[0] not in legal:
        yield from _fallbacks(problem, legal_on)


def fewer_products(problem: Problem) -> IntArray:
    """Return GPU counts below all usable ones that axes and batch allow, largest first."""
    products = _products(problem)
    products = products[products < usable_gpus(problem)][::-1]
    if named := problem.options.num_nodes:
        products = products[np.isin(-(-products // per_node_of(problem)), named)]
    return products[counts_kept(problem, products)]


def _may_be_used(problem: Problem, legal_on: LegalOn) -> Callable[[int], bool]:
    """Return the test whether a plan may use a number of GPUs.

    The launcher can start it, or no legal row uses all GPUs of as many nodes.
    """
    per_node, rules = per_node_of(problem), rules_of(problem)

    def is_able(num_gpus: int) -> bool:
        if can_start(problem, num_gpus):
            return True
        whole = -(-num_gpus // per_node) * per_node
        if whole not in legal_on:
            legal_on[whole] = _is_legal_on(problem, whole, rules=rules)
        return not legal_on[whole]

    return is_able


def _is_legal_on(problem: Problem, num_gpus: int, *, rules: tuple[Rule, ...]) -> bool:
    """Return whether a row is legal on so many GPUs."""
    look()
    if _some_legal(problem, _estimated_on(problem, (num_gpus,), wide=False)[1], rules):
        return True  # of most numbers; else all rows are looked at
    here = on_gpus(problem, (num_gpus,))
    asked = _Asked(legal_only=True, whole_too_large=partial(is_too_large, here, wide=True))
    may_be = _may_be_legal(problem, num_gpus)
    return may_be and _of_counts(here, (num_gpus,), rules, asked).num_legal > 0


def fewer_gpus(
    problem: Problem, least: float, among: Callable[[IntArray], IntArray] = lambda numbers: numbers
) -> Iterator[int]:
    """Yield GPU counts below all usable ones on which a row may be legal, largest first, down to ``least``.

    Numbers that the launcher can start, numbers where no legal row uses all GPUs of as many nodes, and
    numbers of other variants. ``among`` returns those that are looked at.
    """
    able, also = _may_be_used(problem, {}), problem.options.also_gpus
    products = fewer_products(problem)
    for num_gpus in among(products[products >= least]).tolist():
        look()
        if (num_gpus in also or able(num_gpus)) and _may_be_legal(problem, num_gpus):
            yield num_gpus


# Legal outer rows by what they depend on, each with its batch and pipeline sizes: problems that differ in
# recomputation alone share them.
OuterRowsOf = dict[Hashable, list[tuple[int, list[int], OuterRows]]]


@dataclass(frozen=True, slots=True)
class _Asked:
    legal_only: bool = False
    tick: Callable[[], object] = lambda: None
    wide: bool = False
    whole_too_large: Callable[[], bool] = lambda: False  # all candidates; found out once
    beyond: Beyond | None = None
    outer_rows: OuterRowsOf = field(default_factory=dict)


def enumerate_space(
    problem: Problem,
    *,
    legal_only: bool = False,
    tick: Callable[[], object] = lambda: None,
    wide: bool = False,
    beyond: Beyond | None = None,
    outer_rows: OuterRowsOf | None = None,
) -> Space:
    """Return all rows on all GPUs, or, if none is legal, on nearly as many as a legal row can use.

    Where no number of GPUs has a legal row, the space of the whole cluster is returned: its masks show why.
    ``legal_only`` counts the rows that break a rule and leaves them out, and calls ``tick`` meanwhile.
    ``wide`` adds candidates that are otherwise added where no row is legal without them. ``beyond`` is left
    out. ``outer_rows``: what the enumeration of the same problem under other switches has found.

    Raises:
        UnknownNameError: the launcher's limits are not known.
    """
    rules, counts = rules_of(problem), gpu_counts(problem)
    asked = _Asked(
        legal_only, tick, wide, cache(partial(is_too_large, problem, wide=True)), beyond,
        {} if outer_rows is None else outer_rows,
    )  # fmt: skip
    whole = _of_counts(problem, counts, rules, asked)
    if problem.options.num_gpus and whole.num_legal:
        rows = whole.rows if isinstance(whole.rows, Columns) else whole.rows.outer
        most = int(rows.num_gpus[whole.masks == 0].max() if whole.rows is rows else rows.num_gpus.max())
        return replace(whole, warnings=fewer_are_used(problem, most))
    if whole.num_legal or are_named(problem):
        return whole
    found: list[Space] = []
    for num_gpus in _fallbacks(problem, {}):
        if _are_enough([space.num_gpus for space in found], num_gpus):
            break
        look()
        if not _may_be_legal(problem, num_gpus):
            continue
        fewer = _of_counts(problem, (num_gpus,), rules, asked)
        if fewer.num_legal:
            found.append(fewer)
    if not found:
        return whole
    most = max(one.num_gpus for one in found)  # of whole nodes first: parts of them may be more
    more = (n for n in fewer_gpus(problem, most + 1) if _is_legal_on(problem, n, rules=rules))
    return _joined(found, *fewer_are_used(problem, next(more, most)))


def numbers_of_gpus(problem: Problem, legal_on: LegalOn | None = None) -> tuple[int, ...]:
    """Return the numbers of GPUs in ``enumerate_space``, largest first; none if no row is legal.

    ``legal_on``: what is known of each, and what is found out. Errors as ``enumerate_space``.
    """
    rules, counts, legal = rules_of(problem), gpu_counts(problem), list[int]()
    if are_named(problem):
        return counts
    if legal_on is None:
        legal_on = dict.fromkeys(_estimate(problem, False)[1], True)
    asked = _Asked(legal_only=True, whole_too_large=cache(partial(is_too_large, problem, wide=True)))
    for num_gpus in _tried_in_turn(problem, counts, legal, legal_on):
        if counts[0] in legal or _are_enough(legal, num_gpus):
            break
        look()
        if num_gpus not in legal_on:
            few = _estimated_on(problem, (num_gpus,), wide=False)[1]
            found = _some_legal(problem, few, rules)  # of most numbers; else all are looked at
            may_be = found or _may_be_legal(problem, num_gpus)
            if may_be and not found and num_gpus == counts[0] and is_too_large(problem):
                return counts  # a sample of it is searched
            legal_on[num_gpus] = found or (
                may_be and _of_counts(problem, (num_gpus,), rules, asked).num_legal > 0
            )
        if legal_on[num_gpus]:
            legal.append(num_gpus)
    return tuple(sorted(legal, reverse=True))


def estimated_outer(problem: Problem, *, wide: bool = False) -> float:
    """Estimate the rows without chunks that are enumerated, legal or not, from a few of them.

    Of every batch and number of GPUs that ``enumerate_space`` goes through; once they are more than
    anything is done with, the others are not counted.
    """
    return _estimate(problem, wide)[0]


@remembered
def _estimate(problem: Problem, wide: bool) -> tuple[float, tuple[int, ...]]:
    """Return the estimate, and the numbers of GPUs on which a row that was looked at is legal."""
    counts, total, legal, rules = gpu_counts(problem), 0.0, list[int](), rules_of(problem)
    if are_named(problem):
        for size in estimated_on_each(problem, counts, wide=wide):
            total += size
            if total > _MOST_WRITTEN:
                break
        return total, ()
    for num_gpus in _tried_in_turn(problem, counts, legal, {}):
        look()
        if _are_enough(legal, num_gpus) or counts[0] in legal or total > _MOST_WRITTEN:
            break
        if num_gpus not in counts and not _may_be_legal(problem, num_gpus):
            continue
        each, some = _estimated_on(problem, (num_gpus,), wide=wide)
        total += float(each[0])
        # where none is legal, some other may be: more are counted
        if _some_legal(problem, some, rules):
            legal.append(num_gpus)
    return total, tuple(legal)


def _are_enough(legal: Sequence[int], num_gpus: int) -> bool:
    return len(legal) == _MOST_COUNTS or (bool(legal) and num_gpus < _NEARLY * max(legal))


def _some_legal(problem: Problem, outer: Columns, rules: tuple[Rule, ...]) -> bool:
    left = outer.take(outer_legal(rules, outer))
    for pp in np.unique(left.pipeline_parallel_size).tolist():
        some = left.take(left.pipeline_parallel_size == pp)
        written = crossed(some, _some_chunkings(chunkings_of(problem, pp)))
        if (violation_masks(rules, written) == 0).any():
            return True
    return False


def estimated_on_each(problem: Problem, numbers: Sequence[int], *, wide: bool) -> Iterator[float]:
    """Yield ``estimated_outer`` of each of some numbers of GPUs."""
    together = 1 if wide else _TOGETHER
    for start in range(0, len(numbers), together):
        look()
        yield from _estimated_on(problem, numbers[start : start + together], wide=wide)[0].tolist()


def _estimated_on(problem: Problem, numbers: Sequence[int], *, wide: bool) -> tuple[FloatArray, Columns]:
    """Estimate each number of GPUs, (k,), and return some of its rows: widening is probed."""
    meshes, of_all = _meshes(problem, numbers, wide=wide), np.array(numbers)
    total, probed = np.zeros(len(of_all)), list[Columns]()
    for batch in (with_batch(problem, one) for one in batch_sizes(problem)):
        for staged in (False, True):
            mesh, step, (i, j) = _tried(batch, meshes[(meshes[:, 2] > 1) == staged], wide=wide)
            used = mesh[:, :4].prod(axis=1)[i]
            each = np.count_nonzero(used == of_all[:, None], axis=1)
            starts = np.cumsum(each) - each
            kept = [start + spread_evenly(size, _PROBED) for start, size in zip(starts, each, strict=True)]
            at = np.concatenate(kept)
            few = widened(
                batch, _one_chunk(batch, np.concatenate([mesh[i[at]], step[j[at]]], axis=1)), wide=wide
            )
            more = np.count_nonzero(few.num_gpus == of_all[:, None], axis=1)
            total += each * more / np.maximum([len(some) for some in kept], 1)
            probed.append(few)
    return total, Columns.concatenate(probed)


def _estimated_rows(problem: Problem, *, wide: bool = False) -> float:
    """Estimate the rows with their chunks; at most, as most chunkings are of few stages."""
    outer, stages = estimated_outer(problem, wide=wide), min(2, problem.most_chunks)
    return outer if outer > _MOST_WRITTEN else outer * len(chunkings_of(problem, stages))


def is_too_large(problem: Problem, *, wide: bool = False) -> bool:
    """Return whether too many rows to write down are expected: then only a sample is searched."""
    return estimated_outer(problem, wide=wide) > MOST_OUTER


def sampled_space(problem: Problem, *, wide: bool = False, legal_only: bool = True) -> Space:
    """Return some rows of every part of the space; they prove nothing about the others.

    Of every pipeline size rows from end to end and those of the smallest micro-batch, with
    the fewest chunks and some others, and every kind of recomputation.
    """
    rules = rules_of(problem)
    ways = [(batch, count) for batch in batch_sizes(problem) for count in gpu_counts(problem)]
    parts, masks, refuted = list[Columns](), list[IntArray](), 0
    chosen = spread_evenly(len(ways), _MOST_COUNTS)
    for batch, count in (ways[at] for at in chosen.tolist()):
        one = with_batch(problem, batch)
        meshes = _meshes(one, (count,), wide=wide)
        sizes = np.unique(meshes[:, 2]).tolist()
        few = max(_SAMPLED // max(len(sizes) * len(chosen), 1), 2)
        for pp in sizes:
            outer = _outer_of(one, meshes, np.array([pp]), wide=wide)
            outer = outer.take(outer_legal(rules, outer)) if legal_only else outer
            light = outer.take(outer.micro_batch_size == outer.micro_batch_size.min(initial=2**31))
            plain = Columns.concatenate([_thinned(outer, few), _thinned(light, few)])
            more = widened(one, plain, wide=wide)
            more = more.take(outer_legal(rules, more)) if legal_only else more
            both = Columns.concatenate([plain, _thinned(more, 2 * few)])
            written = crossed(both, _some_chunkings(chunkings_of(one, pp)))
            broken = violation_masks(rules, written)
            kept = (broken == 0) | (not legal_only)
            parts.append(written.take(kept))
            masks.append(broken[kept])
            refuted += len(written) - int(kept.sum())
    rows = Columns.concatenate(parts) if parts else Columns.nothing()
    return Space(
        rows=rows, masks=np.concatenate([np.zeros(0, dtype=np.int64), *masks]), rules=rules,
        num_gpus=gpu_counts(problem)[0], warnings=(), refuted=refuted, whole=False,
    )  # fmt: skip


def likely_space(problem: Problem) -> Space:
    """Return the legal rows of the meshes that rules of thumb name; they prove nothing about others.

    The smallest micro-batch or twice that, fewest slices, all ZeRO that the launcher has, experts over a
    node or more, and nothing that ``widening`` adds, on the most GPUs with a legal row.
    """
    rules, found = rules_of(problem), Crossing.nothing()
    for num_gpus in _tried_in_turn(problem, gpu_counts(problem), (), {}):
        look()
        own = [with_batch(problem, batch) for batch in batch_sizes(problem)]
        blocks = (
            (
                OuterRows.of(rules, _likely(one, plain.take(outer_legal(rules, plain)))),
                _chunked(one, some.tolist()),
            )
            for one in own[:_MOST_COUNTS]
            for some, plain in _plain_blocks(one, (num_gpus,), wide=False)
        )
        found, _ = legal_rows(rules, blocks)
        if len(found):
            break
    return replace(empty_space(problem), rows=found, masks=np.broadcast_to(np.int64(0), len(found)))


def _likely(problem: Problem, plain: Columns) -> Columns:
    experts = plain.expert_parallel_size
    kept = experts >= min(per_node_of(problem), experts.max(initial=1))
    kept &= plain.zero_stage == plain.zero_stage.max(initial=0)
    for values, most in ((plain.micro_batch_size, 2), (plain.context_parallel_size, 1)):
        kept &= values <= most * values.min(initial=MAX_SIZE)
    few = plain.take(np.flatnonzero(kept))
    return few.take(np.argsort(few.pipeline_parallel_size, kind="stable"))


def empty_space(problem: Problem) -> Space:
    """Return a space before any enumeration."""
    return Space(
        rows=Columns.nothing(), masks=np.zeros(0, dtype=np.int64), rules=rules_of(problem),
        num_gpus=gpu_counts(problem)[0], warnings=(), whole=False,
    )  # fmt: skip


def spread_evenly(count: int, most: int) -> IntArray:
    """Return at most so many of the first ``count`` numbers, evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


def _thinned(columns: Columns, most: int) -> Columns:
    return columns.take(spread_evenly(len(columns), most))


def _some_chunkings(every: IntArray) -> IntArray:
    """Return chunkings of one and two chunks that recompute nothing or all, and others evenly spaced."""
    chunks, _, layers, _ = every.T
    plain = (chunks <= 2) & ((layers == 0) | (layers >= ALL_LAYERS))  # noqa: PLR2004 - chunks
    both = [np.flatnonzero(which) for which in (plain, ~plain)]
    kept = [index[spread_evenly(len(index), _LISTED // 2)] for index in both]
    return every[np.sort(np.concatenate(kept))]


def refuted_space(problem: Problem) -> Space:
    """Return rows that show why nothing fits: all candidates, or a sample if they are too many.

    A large space is sampled.
    """
    if _estimated_rows(problem) > _MOST_WRITTEN:
        return sampled_space(problem, legal_only=False)
    space = enumerate_space(problem)
    few = space.whole and space.size <= _MOST_REFUTED
    few = few and _estimated_rows(problem, wide=True) <= _MOST_WRITTEN
    return enumerate_space(problem, wide=True) if few else space


def with_whole(problem: Problem, space: Space) -> Space:
    """Add the rows of the whole cluster, if the search went on with fewer GPUs.

    None of those is legal; they show why not all GPUs can be used.
    """
    counts = gpu_counts(problem)
    if len(counts) > 1 or space.num_gpus == counts[0]:
        return space
    if _estimated_rows(problem, wide=True) > _MOST_WRITTEN:
        return _joined([sampled_space(problem, wide=True, legal_only=False), space], *space.warnings)
    return _joined(
        [_enumerate(problem, counts[:1], space.rules, _Asked(wide=True)), space], *space.warnings
    )


def _of_counts(problem: Problem, counts: tuple[int, ...], rules: tuple[Rule, ...], asked: _Asked) -> Space:
    """Return the spaces of several GPU counts; of all candidates if no usual one is legal."""
    usual = _of_candidates(problem, counts, rules, asked)
    if asked.wide or usual.num_legal or _left_out_legal(problem, counts, rules, asked):
        return usual
    if asked.whole_too_large():
        return usual
    wider = _of_candidates(problem, counts, rules, replace(asked, legal_only=True, wide=True, beyond=None))
    if wider.num_legal and not asked.legal_only:
        if wider.size > _MOST_WRITTEN:
            return sampled_space(on_gpus(problem, counts), wide=True, legal_only=False)
        return _of_candidates(problem, counts, rules, replace(asked, wide=True))
    return wider if asked.legal_only else usual  # of legal rows alone, that there is none is the proof


def _left_out_legal(
    problem: Problem, counts: tuple[int, ...], rules: tuple[Rule, ...], asked: _Asked
) -> bool:
    """Return whether a legal row is among those that were left out as too slow."""
    if asked.beyond is None or asked.beyond.nearest_s == math.inf:
        return False
    return any(
        len(legal_rows(rules, [(OuterRows.of(rules, outer), _chunked(own, some))], asked.tick)[0])
        for count in counts
        for own in (with_batch(problem, batch) for batch in batch_sizes(problem))
        for some, outer in _outer_blocks(own, (count,), wide=asked.wide, others=set())
    )


def _of_candidates(
    problem: Problem, counts: tuple[int, ...], rules: tuple[Rule, ...], asked: _Asked
) -> Space:
    if asked.legal_only:
        return _enumerate(problem, counts, rules, asked)
    return _joined([_enumerate(problem, (count,), rules, asked) for count in counts])


_NO_LEGAL = "no legal configuration uses all of them"


def fewer_are_used(problem: Problem, most: int) -> tuple[str, ...]:
    """Return the warning that no legal row uses more than so many GPUs; none where those are all."""
    if most == usable_gpus(problem):
        return ()
    used = f"at most {most} of {usable_gpus(problem)} GPUs are used: {_NO_LEGAL}"
    options = problem.options
    within = "" if options.max_power_kw is None else f" within {options.max_power_kw:g} kW"
    limited = options.named or options.constraints
    under = " under the pins, bounds and constraints of the request" if limited else ""
    return (f"{used} with a global batch of {problem.workload.global_batch_size}{within}{under}",)


def is_of_fewer(warning: str) -> bool:
    """Return whether a warning is one of ``fewer_are_used``."""
    return _NO_LEGAL in warning


def _joined(spaces: list[Space], *warnings: str) -> Space:
    crossed_ones = [space.rows for space in spaces if isinstance(space.rows, Crossing)]
    written = len(crossed_ones) < len(spaces)
    every = Columns.concatenate([space.columns for space in spaces]) if written else None
    rows = Crossing.concatenate(crossed_ones) if every is None else every
    none_broken = np.broadcast_to(np.int64(0), len(rows))
    return Space(
        rows=rows,
        masks=none_broken if every is None else np.concatenate([space.masks for space in spaces]),
        refuted=sum(space.refuted for space in spaces),
        rules=spaces[0].rules,
        num_gpus=spaces[0].num_gpus,
        warnings=warnings,
        whole=all(space.whole for space in spaces),
        every=all(space.every for space in spaces),
    )


@remembered
def same_rows(problem: Problem) -> Hashable:
    """Return what problems agree in that differ in switches alone and have the same legal rows.

    Switches allow and forbid kinds of recomputation; host memory takes as much as they set.
    """
    options, rules = problem.options, rules_of(problem)
    kinds = [RECOMPUTE.index(kind) for kind in options.recompute_kinds or RECOMPUTE]
    rows = Columns.of(
        [Configuration(stage_layers=(1,), recompute_granularity=RECOMPUTE[kind]) for kind in kinds]
    )
    of_kinds = [rule for rule in rules if rule.reads == ("recompute",)]
    broken = np.logical_or.reduce(
        [np.zeros(len(kinds), dtype=np.bool_), *(rule.violated(rows) for rule in of_kinds)]
    )
    return tuple(kinds), tuple(broken.tolist()), _of_outer_rows(problem, rules)


# --------------------------------------------------------------------------------------------------
# Which candidates a search goes through: all of them where they are few, else the usual ones.
#
# Where the request limits a variable that the usual ones narrow, all are searched while these are at most
# ``_NAMED``. An answer names which they were (``Answer.space``).


# Variables that have more candidates in ``enumerate_space(wide=True)``.
NARROWED = frozenset({"context_parallel_size", "micro_batch_size", "num_microbatches"}) | WIDENED
_FEW = 4_000_000  # legal rows of all candidates under all switches; the usual ones are a half to a 250th
_NAMED = 1_000_000  # of the usual ones, where the request limits a variable that they narrow
_WRITTEN = 10  # so many times fewer where rows are weighed one by one


def are_few(problem: Problem) -> bool:
    """Return whether all candidates are few enough to be enumerated."""
    return estimated_outer(problem, wide=True) <= LARGE_OUTER


def goes_through_usual(problem: Problem) -> bool:
    """Return whether a search goes through the usual candidates alone, however few are legal."""
    return not NARROWED & limited_by(problem) and not are_few(problem)


def searched_space(
    problem: Problem,
    *,
    legal_only: bool = False,
    tick: Callable[[], object] = lambda: None,
    one_by_one: bool = False,
    few: bool | None = None,
    ways: int = 1,
    beyond: Beyond | None = None,
    outer_rows: OuterRowsOf | None = None,
) -> Space:
    """Return the space that a search covers; ``Space.every``: whether of all candidates.

    ``one_by_one``: its rows are written down, which costs more than refuting them by kind. ``few``: whether
    all candidates are few, if that is known. ``ways``: settings of switches that are searched together.
    Other arguments and errors as ``enumerate_space``.
    """
    enumerated = partial(
        enumerate_space, problem, legal_only=legal_only, tick=tick, beyond=beyond, outer_rows=outer_rows
    )
    if few is None:
        few = are_few(problem)
    every = enumerated(wide=True) if few else None
    if every is not None and every.num_legal * ways <= _row_limit(problem, _FEW, one_by_one):
        return every
    usual = enumerated()
    is_named = bool(NARROWED & limited_by(problem)) and not usual.every
    if not is_named or usual.num_legal > _row_limit(problem, _NAMED, one_by_one):
        return usual
    if every is None:
        return usual if is_too_large(problem, wide=True) else enumerated(wide=True)
    return every


def _row_limit(problem: Problem, most: int, one_by_one: bool) -> int:
    """Return a limit of legal rows, scaled to the kinds of recomputation that are searched."""
    most = most // _WRITTEN if one_by_one else most
    every = replace(problem, options=replace(problem.options, recompute_kinds=()))
    some, all_kinds = (len(chunkings_of(one, min(2, one.model.num_layers))) for one in (problem, every))
    return most * some // all_kinds
