"""Rarely used variables, each of which widens the space by rows that differ in it alone.

  expert_tensor_parallel_size   1, and tensor_parallel_size where experts may be split like everything else
  zero_shard_size               dp * cp, the ranks of an island, and of many ranks two sizes between them
  weight_shard_size             1; where the request allows weight_shards, powers of two up to twice an
  expert_weight_shard_size      island; of experts likewise, and both together
  sequence_parallel             with tensor parallelism; without it where the request names it, or wide
  context_parallel_mode         ring, and all_to_all where the heads divide; both where that is asked for
  rank_order                    the launcher's own, and others where some collective crosses other links
  offload                       none, and what the request allows and the launcher has
What the request pins or bounds is always a candidate; among all candidates (``wide``) so is every size of
shard sets, of weights' shards, and of the tensor parallelism of experts, that divides. Rows that were there
come first, so that ties go to the plain ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import gcd

import numpy as np

from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    ALL_TO_ALL,
    CONTEXT_MODES,
    HIERARCHICAL,
    OFFLOAD,
    RANK_ORDERS,
    BoolArray,
    Columns,
    IntArray,
)
from meshwright.solver.cost.context import same_links, same_ranks
from meshwright.solver.problem import WEIGHT_SHARDS, Problem
from meshwright.solver.space.launcher_rules import equally_replicated, offloads, weight_shard_obstacle
from meshwright.solver.space.request_rules import limited_by
from meshwright.solver.splits import divisors

Variant = tuple[str, IntArray, BoolArray]  # a variable, its other values, and the rows that take them
# Variables that have more candidates where all are wanted (``wide``).
WIDENED = frozenset({"expert_tensor_parallel_size", "zero_shard_size", "sequence_parallel",
                     "weight_shard_size", "expert_weight_shard_size"})  # fmt: skip
# All variables that ``widened`` changes.
CHANGED = WIDENED | {"context_parallel_mode", "offload", "rank_order"}
_MOST_NAMED = 64  # values of a bound that become candidates
_MANY_RANKS = 128  # that share weights: rings of fewer take hardly longer than shorter ones


def widened(problem: Problem, columns: Columns, *, wide: bool = False) -> Columns:
    """Return ``columns``, then rows that differ from them in one or several of these variables."""
    able = launcher_capabilities(problem.launcher)
    for variants in (
        partial(_expert_tensor, wide=wide),
        partial(_weight_shards, name="weight_shard_size", wide=wide),
        partial(_weight_shards, name="expert_weight_shard_size", wide=wide),
        partial(_shard_sizes, wide=wide),
        partial(_sequence_parallel, wide=wide),
        _context_modes,
        _offload,
        _rank_orders,
    ):
        parts = [columns]
        for name, values, where in variants(problem, able, columns):
            look()
            taken = where & (values != getattr(columns, name))
            if taken.any():
                changed: dict[str, IntArray] = {name: values[taken]}
                rows = replace(columns.take(taken), **changed)
                if name == "weight_shard_size":  # shard sets are what is left
                    sets = np.where(rows.zero_stage > 0, rows.replicating_ranks, 1)
                    rows = replace(rows, zero_shard_size=sets)
                parts.append(rows)
        columns = Columns.concatenate(parts) if len(parts) > 1 else columns
    return columns


def named_values(problem: Problem, name: str) -> list[int]:
    """Return values that a pin or a bound of the request names."""
    options = problem.options
    pinned, bounds = options.pin.get(name), options.bounds.get(name)
    named = [] if pinned is None or isinstance(pinned, str) else [int(pinned)]
    if bounds is not None:
        low = max(bounds[0], 0 if name == "zero_stage" else 1)
        named += range(low, min(bounds[1], low + _MOST_NAMED) + 1)
    return list(dict.fromkeys(named))


def _constant(name: str, value: int, rows: BoolArray) -> Variant:
    return name, np.full(rows.shape, value, dtype=np.int64), rows


def _expert_tensor(
    problem: Problem, able: Capabilities, columns: Columns, *, wide: bool
) -> Iterator[Variant]:
    name, tp = "expert_tensor_parallel_size", columns.tensor_parallel_size
    every = np.ones(len(columns), dtype=np.bool_)
    if problem.model.moe is not None and able.expert_tensor_parallel:
        yield name, tp, every
        others = range(2, int(tp.max(initial=1))) if wide else ()
        for value in set(others).difference(named_values(problem, name)):
            yield _constant(name, value, (tp % value == 0) & (tp != value))
    if problem.model.moe is not None:
        for value in named_values(problem, name):
            yield _constant(name, value, tp != value)


def _shard_sizes(
    problem: Problem, able: Capabilities, columns: Columns, *, wide: bool
) -> Iterator[Variant]:
    name, ranks = "zero_shard_size", columns.replicating_ranks
    sharded = columns.zero_stage > 0
    island = min(group.island_gpus for group in problem.cluster.groups)
    inside = np.maximum(island // columns.tensor_parallel_size, 1)
    inside = np.where(able.hybrid_sharding & (inside < ranks), inside, ranks)
    yield name, inside, sharded & (inside > 1)
    named = named_values(problem, name)
    for value in named:
        yield _constant(name, value, sharded & (ranks >= value) & (inside != value))
    if not able.hybrid_sharding:
        return
    batch = problem.workload.global_batch_size
    whole = sharded & (batch % (columns.data_parallel_size * columns.micro_batch_size) == 0)
    for values in _of_any(ranks) if wide else _between(ranks, inside):
        divides = (ranks % values == 0) & (values > 1) & (values < ranks) & (values != inside)
        yield name, values, whole & divides & ~np.isin(values, named)


def _of_any(ranks: IntArray) -> Iterator[IntArray]:
    """Yield every size that divides some number of ranks."""
    for value in sorted(_divisors_of_any(ranks)):
        yield np.full_like(ranks, value)


def _between(ranks: IntArray, inside: IntArray) -> Iterator[IntArray]:
    """Yield sizes that have about as many islands in a set as there are sets: rings of few ranks."""
    shared = np.gcd(inside, ranks)
    islands, number = np.unique(ranks // shared, return_inverse=True)
    around = np.array([_around_root(each) for each in islands.tolist()])
    for sizes in around.T:
        yield np.where(ranks >= _MANY_RANKS, shared * sizes[number], ranks)


def _around_root(number: int) -> tuple[int, int]:
    """Return the least divisor that is no less than a number's root, and the one before it (1 of 1)."""
    sizes = divisors(number)
    at = sum(size * size < number for size in sizes)
    return sizes[at], sizes[max(at - 1, 0)]


def _weight_shards(
    problem: Problem, able: Capabilities, columns: Columns, *, name: str, wide: bool
) -> Iterator[Variant]:
    """Yield sizes that divide the replicas: all, or powers of two that reach one island beyond the link."""
    replicas, stride = columns.data_parallel_size, columns.tensor_parallel_size
    if name == "expert_weight_shard_size":
        if problem.model.moe is None:
            return
        every_rank = replicas * stride * columns.context_parallel_size
        replicas, stride = every_rank // columns.expert_ranks, columns.expert_ranks
    named = named_values(problem, name)
    open_to = WEIGHT_SHARDS in problem.options.allow and not weight_shard_obstacle(problem, able)
    most = int(replicas.max(initial=1)) if open_to else 1
    island = max(group.island_gpus for group in problem.cluster.groups)
    every = _divisors_of_any(replicas) if wide and open_to else set()
    usual = every or {1 << bit for bit in range(1, most.bit_length())}
    reach = int((replicas * stride).max(initial=1)) if wide else 2 * island
    for value in sorted({*usual, *named}):
        rows = replicas % value == 0
        yield _constant(name, value, rows & ((value * stride <= reach) | (value in named)))


def _divisors_of_any(numbers: IntArray) -> set[int]:
    return {size for number in np.unique(numbers).tolist() for size in divisors(number)} - {1}


def _sequence_parallel(
    problem: Problem, able: Capabilities, columns: Columns, *, wide: bool
) -> Iterator[Variant]:
    """Yield tensor parallelism without it: heavier, seldom faster; one sum may beat two halves."""
    if (wide and able.sequence_parallel) or "sequence_parallel" in limited_by(problem):
        yield _constant("sequence_parallel", 0, columns.tensor_parallel_size > 1)


def _context_modes(problem: Problem, able: Capabilities, columns: Columns) -> Iterator[Variant]:
    name, cp, tp = "context_parallel_mode", columns.context_parallel_size, columns.tensor_parallel_size
    named, model = name in limited_by(problem), problem.model
    heads = gcd(*model.head_counts, *model.kv_head_counts)  # so many ranks exchange them for tokens
    if "all_to_all" in able.context_parallel_modes or named:
        yield _constant(name, ALL_TO_ALL, (heads % (tp * cp) == 0) & (cp > 1))
    if named or name in problem.options.allow:
        for word, size in HIERARCHICAL.items():
            rows = (cp % size == 0) & (cp > size) & (heads % (tp * size) == 0)
            yield _constant(name, CONTEXT_MODES.index(word), rows)


def _offload(problem: Problem, able: Capabilities, columns: Columns) -> Iterator[Variant]:
    if "offload" in problem.options.allow:
        every = np.ones(len(columns), dtype=np.bool_)
        for word in offloads(problem, able):
            yield _constant("offload", OFFLOAD.index(word), every)


def _rank_orders(problem: Problem, able: Capabilities, columns: Columns) -> Iterator[Variant]:
    """Yield axis orders that put some group on other links than every order before.

    Where the request names the order, every one that puts some rank elsewhere.
    """
    name, island = "rank_order", max(group.island_gpus for group in problem.cluster.groups)
    named, seen = name in limited_by(problem), list[int]()
    able_rows = named or not able.data_parallel_alike or equally_replicated(problem, columns)
    for order in map(RANK_ORDERS.index, able.rank_orders):
        known = [
            same_ranks(columns, order, one) if named else same_links(columns, order, one, island)
            for one in seen
        ]
        seen.append(order)
        yield _constant(name, order, ~np.any(known, axis=0) & able_rows)
