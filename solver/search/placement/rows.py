"""The outer rows of a mixed cluster: every configuration without tensor parallelism, groups and split.

A row is (cp, dp, ep, pp, micro-batch, ZeRO stage, recomputation); all replicas are alike, chunks do not
interleave. Each berth prices all rows with its own GPU, memory, links and operators. A stage takes
tp * cp * dp GPUs of its group, so a berth has room for ``floor(GPUs / (tp cp dp))`` stages of a row; none
where the row breaks a rule of model, batch, request or launcher on that group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, product
from math import gcd
from typing import TypeVar

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.solver.clock import look
from meshwright.solver.configuration import ALL_LAYERS, RECOMPUTE, SCHEDULES, Columns, FloatArray, IntArray
from meshwright.solver.cost.communication import sent_bytes
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.pipelines import Berth, NodeGroups
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.problem import Problem
from meshwright.solver.search.feasible import fitting
from meshwright.solver.search.rows import Rows
from meshwright.solver.space.enumerate import MAX_MICRO_BATCH_SIZE, MIN_TOKENS_PER_CONTEXT_RANK
from meshwright.solver.space.request_rules import limited_by
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import BATCH_RULE, rules_of, violation_masks
from meshwright.solver.splits import Prescribed, divisors

_MOST_ROWS = 400_000  # that are written down; of more some are searched, and nothing is proved
_MOST_PRICED = 640_000  # rows times berths, some 700 bytes each
MOST_USED = 6  # groups of one pipeline, whose exact program has 2^n states of n groups
_MOST_SHARED = 10  # groups of which every set may share a batch; of more only pairs, and all or all but one
_SMALL_MICRO_BATCH = 8  # up to here a class may have any, whatever divides the whole batch
_FULL = RECOMPUTE.index("full")


Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """n rows over K berths."""

    fleet: NodeGroups
    columns: Columns  # tensor_parallel_size 1; a berth has its own
    berths: tuple[Berth, ...]
    rows: tuple[Rows, ...]  # of each berth, priced there
    room: IntArray  # (K, n) stages that a berth has GPUs for; 0: not legal there
    sent_bytes: FloatArray  # (K, n) of one activation, by one rank
    known_s: dict[tuple[int, int, float], float] = field(default_factory=dict)  # transfers between groups
    whole: bool = True  # not a sample of rows that are too many to be priced
    wide: bool = False  # every slice of the sequence and every micro-batch

    @classmethod
    def of_nothing(cls, fleet: NodeGroups) -> Outer:
        """No rows, as before any was enumerated; of one berth, for what has a shape at all."""
        columns, berths = _as_columns(fleet, np.zeros((0, 7), dtype=np.int64)), berths_of(fleet)[:1]
        nothing = np.zeros((len(berths), 0))
        return cls(
            fleet=fleet,
            columns=columns,
            berths=berths,
            rows=tuple(rows_at(fleet, columns, berth) for berth in berths),
            room=nothing.astype(np.int64),
            sent_bytes=nothing,
            whole=False,
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.columns)

    @property
    def layout(self) -> LayerLayout:
        """The model's layers."""
        return self.rows[0].layout

    @property
    def group_of(self) -> IntArray:
        """The group of each berth, (K,)."""
        return np.array([berth.group for berth in self.berths])

    def hop_s(self, row: int, one: int, other: int) -> float:
        """Exposed seconds of a transfer between two berths, each direction: the larger share decides."""
        sent = float(max(self.sent_bytes[one, row], self.sent_bytes[other, row]))
        key = (self.berths[one].group, self.berths[other].group, sent)
        if key not in self.known_s:
            self.known_s[key] = float(self.fleet.hop_s(*key[:2], np.array([sent]))[0])
        return self.known_s[key]


def berths_of(fleet: NodeGroups) -> tuple[Berth, ...]:
    """Every group with each tensor-parallel size that divides the heads and its islands."""
    heads = divisors(gcd(*fleet.problem.model.head_counts))
    return tuple(
        Berth(group=at, tensor_parallel_size=size)
        for at, group in enumerate(fleet.groups)
        for size in heads
        if size <= group.gpus_per_node and group.island_gpus % size == 0
    )


def _contexts(problem: Problem, *, wide: bool) -> list[int]:
    """Slices of the sequence: of enough tokens, or every one that divides where that is asked for."""
    seq = problem.workload.seq_length
    if wide or "context_parallel_size" in limited_by(problem):
        return divisors(seq)
    return [1 << bit for bit in range(max(1, seq // MIN_TOKENS_PER_CONTEXT_RANK).bit_length())]


def _largest_micro_batch(problem: Problem, *, wide: bool) -> int:
    """The most sequences of a micro-batch."""
    named = not limited_by(problem).isdisjoint({"micro_batch_size", "num_microbatches"})
    return problem.workload.global_batch_size if wide or named else MAX_MICRO_BATCH_SIZE


def _sizes(fleet: NodeGroups, *, wide: bool) -> Iterator[tuple[int, ...]]:
    """(cp, dp, ep, micro-batch, ZeRO stage, recompute, pp) of every row that some group has GPUs for."""
    problem, most = fleet.problem, max(group.num_gpus for group in fleet.groups)
    able, batch = launcher_capabilities(problem.launcher), problem.workload.global_batch_size
    contexts, largest = _contexts(problem, wide=wide), _largest_micro_batch(problem, wide=wide)
    experts = divisors(problem.model.moe.num_experts) if problem.model.moe else [1]
    for cp, dp, ep in product(contexts, divisors(batch), experts):
        stages = sum(group.num_gpus // (cp * dp) for group in fleet.groups)
        look()
        if cp * dp > most:
            continue
        sizes = [size for size in divisors(batch // dp) if size <= largest]
        zeros = [zero for zero in able.zero_stages if zero == 0 or cp * dp > 1]
        for size, zero, pp in product(sizes, zeros, range(1, min(stages, problem.model.num_layers) + 1)):
            if pp == 1 or zero <= able.max_zero_stage_with_pipeline:
                yield from ((cp, dp, ep, size, zero, again, pp) for again in range(_FULL + 1))


def columns_of(fleet: NodeGroups, *, wide: bool = False) -> tuple[Columns, int]:
    """All rows as columns, or a sample of them where they exceed _MOST_ROWS; and how many there are."""
    first = list(islice(_sizes(fleet, wide=wide), _MOST_ROWS))
    if len(first) < _MOST_ROWS:
        return _as_columns(fleet, np.array(first, dtype=np.int64).reshape(-1, 7)), len(first)
    number = sum(1 for _ in _sizes(fleet, wide=wide))
    step = number // _MOST_ROWS + 1
    while step > 1 and (step % 2 == 0 or step % 3 == 0):  # else it would leave out a kind of recomputation
        step += 1
    rows = np.array(list(islice(_sizes(fleet, wide=wide), 0, None, step)), dtype=np.int64)
    return _as_columns(fleet, rows.reshape(-1, 7)), number


def _as_columns(fleet: NodeGroups, rows: IntArray) -> Columns:
    """(cp, dp, ep, micro-batch, ZeRO stage, recompute, pp) rows as columns."""
    cp, dp, ep, size, zero, again, pp = rows.T
    ones, none, plain = np.ones_like(cp), SCHEDULES.index("none"), SCHEDULES.index("1f1b")
    return Columns.plain(
        tensor_parallel_size=ones,
        sequence_parallel=np.zeros_like(cp),
        pipeline_parallel_size=pp,
        context_parallel_size=cp,
        expert_parallel_size=ep,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=np.where(zero > 0, dp * cp, 1),
        micro_batch_size=size,
        num_microbatches=fleet.problem.workload.global_batch_size // (dp * size),
        pipeline_schedule=np.where(pp == 1, none, plain),
        recompute=again,
        recompute_layers=np.where(again == _FULL, ALL_LAYERS, 0),
    )


def at_berth(columns: Columns, berth: Berth) -> Columns:
    """The same rows with the berth's tensor parallelism."""
    size = np.full(len(columns), berth.tensor_parallel_size)
    return replace(columns, tensor_parallel_size=size, sequence_parallel=(size > 1).astype(np.int64))


def rows_at(fleet: NodeGroups, columns: Columns, berth: Berth) -> Rows:
    """Rows as a berth prices them."""
    problem, profile = fleet.problems[berth.group], fleet.profiles[berth.group]
    there = at_berth(columns, berth)
    return Rows(
        columns=there,
        prices=price(problem, there, profile),
        layout=LayerLayout.of(problem.model),
        budget_bytes=fleet.budget_bytes(berth.group),
        uneven_stages=True,
        only_split=Prescribed.of(problem),
    )


def _looked(found: Found) -> Found:
    """The same, after a look at the clock."""
    look()
    return found


def _room(fleet: NodeGroups, columns: Columns, berth: Berth) -> IntArray:
    """Stages that a berth has GPUs for, by row; 0 where a rule is broken there."""
    there = at_berth(columns, berth)
    legal = violation_masks(rules_of(fleet.problems[berth.group]), there) == 0
    each = there.tensor_parallel_size * there.context_parallel_size * there.data_parallel_size
    return np.asarray(np.where(legal, fleet.groups[berth.group].num_gpus // each, 0))


def _groups_with_room(room: IntArray, groups: IntArray) -> IntArray:
    """How many groups have a berth with room for a stage of each row, (n,); ``room`` as ``Outer.room``."""
    return np.asarray(
        sum((room[groups == at] > 0).any(axis=0).astype(np.int64) for at in np.unique(groups))
    )


def choices_of(outer: Outer, rows: IntArray) -> FloatArray:
    """How many choices of berths some rows have at most, (r,): of as many groups as they have stages.

    Sets of k groups with n_g berths each have ``e_k(n)`` choices, the elementary symmetric polynomial.
    """
    most = min(MOST_USED, len(outer.fleet.groups))
    number = np.zeros((len(rows), most + 1))
    number[:, 0] = 1.0
    for at in range(len(outer.fleet.groups)):
        berths = (outer.room[outer.group_of == at][:, rows] > 0).sum(axis=0)
        number[:, 1:] += berths[:, None] * number[:, :-1]
    used = np.arange(most + 1) <= outer.columns.pipeline_parallel_size[rows][:, None]
    return np.asarray((number * used).sum(axis=1))


def _plain(columns: Columns, most: int) -> Columns:
    """Up to ``most`` rows from end to end, of those that recompute and slice nothing if there are any."""
    plain = (columns.recompute == 0) & (columns.context_parallel_size == 1) & (columns.zero_stage <= 1)
    index = np.flatnonzero(plain) if plain.any() else np.arange(len(columns))
    return columns.take(index[np.linspace(0, len(index) - 1, min(most, len(index))).astype(np.int64)])


def outer_of(fleet: NodeGroups, *, wide: bool = False, most: int | None = None) -> tuple[Outer, int]:
    """All rows that some groups have room for, priced; and how many there were before.

    ``wide``: every slice of the sequence and every micro-batch that divides; else those that are usual or
    that the request limits. ``most``: so many of them, to begin with.
    """
    (columns, number), berths = columns_of(fleet, wide=wide), berths_of(fleet)
    columns = columns if most is None else _plain(columns, most)
    whole = len(columns) == number and len(fleet.groups) <= _MOST_SHARED
    room = np.stack([_looked(_room(fleet, columns, berth)) for berth in berths])
    groups = np.array([berth.group for berth in berths])
    whole &= bool(
        (_groups_with_room(room, groups) <= MOST_USED)[columns.pipeline_parallel_size > MOST_USED].all()
    )
    most = sum(room[groups == at].max(axis=0, initial=0) for at in range(len(fleet.groups)))
    kept = np.flatnonzero(most >= columns.pipeline_parallel_size)
    able = _MOST_PRICED // len(berths)
    if len(kept) > able:
        whole, kept = False, kept[np.linspace(0, len(kept) - 1, able).astype(np.int64)]
    columns, room = columns.take(kept), room[:, kept]
    sent = [
        _looked(
            sent_bytes(context_of(fleet.problems[b.group], at_berth(columns, b), fleet.profiles[b.group]))
        )
        for b in berths
    ]
    return Outer(
        fleet=fleet,
        columns=columns,
        berths=berths,
        rows=tuple(_looked(rows_at(fleet, columns, berth)) for berth in berths),
        room=room,
        sent_bytes=np.stack(sent),
        whole=whole,
        wide=wide,
    ), number


# --------------------------------------------------------------------------------------------------
# What one node group can run as a class of replicas: every configuration of as many replicas as fit.


_OF_ALL_REPLICAS = {"data_parallel_size", "num_gpus", "global_batch_size"}


def limits_all_replicas(problem: Problem) -> bool:
    """Whether the request concerns what unlike classes only have together; then replicas are alike.

    So do documents of unequal length: replicas wait for the busiest of all, whichever group it is on.
    """
    together = not _OF_ALL_REPLICAS.isdisjoint(limited_by(problem))
    return together or problem.workload.lengths is not None


def late_rules(problem: Problem) -> tuple[Rule, ...]:
    """The request's rules on the number of micro-batches, which is known when sequences are shared out."""
    return tuple(rule for rule in rules_of(problem) if rule.of_request and "num_microbatches" in rule.name)


def options_of(outer: Outer, group: int) -> Rows:
    """Every configuration of one group: as many replicas as fit, one micro-batch."""
    parts = [_at_berth(outer, berth) for berth in berths_of(outer.fleet) if berth.group == group]
    columns = Columns.concatenate([part.columns for part in parts])
    prices = [part.prices for part in parts]
    return replace(parts[0], columns=columns, prices=type(prices[0]).concatenate(prices))


def _at_berth(outer: Outer, berth: Berth) -> Rows:
    """The options of one tensor-parallel size."""
    fleet = outer.fleet
    problem = fleet.problems[berth.group]
    columns = _filled(fleet, _class_sizes(outer, berth), berth)
    late = {BATCH_RULE, *(rule.name for rule in late_rules(problem))}
    rules = tuple(rule for rule in rules_of(problem) if rule.name not in late)
    rows = rows_at(fleet, columns.take(np.flatnonzero(violation_masks(rules, columns) == 0)), berth)
    return rows.take(np.flatnonzero(fitting(rows)))


def _class_sizes(outer: Outer, berth: Berth) -> IntArray:
    """(cp, ep, micro-batch, ZeRO stage, recompute, pp) that a class may have, each once, (n, 6).

    Its share of the batch is not known yet, so a micro-batch need not divide the whole batch. Of a sample
    of rows, what these have.
    """
    if not outer.whole:
        known = outer.columns
        sizes = [
            known.context_parallel_size, known.expert_parallel_size, known.micro_batch_size,
            known.zero_stage, known.recompute, known.pipeline_parallel_size,
        ]  # fmt: skip
        return np.unique(np.stack(sizes, axis=1), axis=0)
    problem = outer.fleet.problem
    gpus = outer.fleet.groups[berth.group].num_gpus // berth.tensor_parallel_size
    contexts = [cp for cp in _contexts(problem, wide=outer.wide) if cp <= gpus]
    experts = divisors(problem.model.moe.num_experts) if problem.model.moe else [1]
    zeros = launcher_capabilities(problem.launcher).zero_stages
    micro = _class_micro_batches(problem, wide=outer.wide)
    found = []
    for cp in contexts:
        look()
        stages = range(1, min(gpus // cp, problem.model.num_layers) + 1)
        grid = np.meshgrid([cp], experts, micro, zeros, range(_FULL + 1), stages, indexing="ij")
        found.append(np.stack([axis.ravel() for axis in grid], axis=1))
    return np.concatenate(found) if found else np.zeros((0, 6), dtype=np.int64)


def _class_micro_batches(problem: Problem, *, wide: bool) -> list[int]:
    """Small ones, and those that divide the whole batch; where they are named, or wide, others too."""
    batch, most = problem.workload.global_batch_size, _largest_micro_batch(problem, wide=wide)
    small = _SMALL_MICRO_BATCH if most == MAX_MICRO_BATCH_SIZE else MAX_MICRO_BATCH_SIZE
    sizes = {size for size in divisors(batch) if size <= most} | {*range(1, min(batch, small) + 1)}
    return sorted(sizes | {int(problem.options.pin.get("micro_batch_size", 1))})


def _filled(fleet: NodeGroups, sizes: IntArray, berth: Berth) -> Columns:
    """Options with as many replicas as fill the group, and one micro-batch."""
    cp, ep, micro, zero, again, pp = sizes.T
    replicas = fleet.groups[berth.group].num_gpus // (berth.tensor_parallel_size * cp * pp)
    kept = (replicas > 0) & ((zero == 0) | (replicas * cp > 1))
    rows = np.stack([cp, replicas, ep, micro, zero, again, pp], axis=1)[kept]
    columns = at_berth(_as_columns(fleet, rows), berth)
    return replace(columns, num_microbatches=np.ones_like(rows[:, 0]))


# --------------------------------------------------------------------------------------------------
# Sets of node groups that classes of replicas may stand on.


def sets_of(count: int) -> list[tuple[int, ...]]:
    """Sets of two or more of ``count`` groups, the largest first; of many groups not every set."""
    sizes = range(count, 1, -1) if count <= _MOST_SHARED else (count, count - 1, 2)
    return [one for size in sizes for one in combinations(range(count), size)]
