"""Rows of a mixed cluster, priced on every option that a pipeline stage has.

A *row* is (cp, dp, ep, micro-batch, ZeRO stage, recomputation, shard set): what all stages share. An
*option* is a node group with a tensor-parallel size: what each stage chooses. A stage takes tp * cp * dp
GPUs of its group, so a group has room for ``floor(GPUs / (tp cp dp))`` stages. The number of stages p is
free. Transfers, the straggler and the wait for unequal documents depend on it, and under some frameworks
all prices do (``FrameworkFacts.priced_by_stages``). So a bound takes the least of few and of many
stages. Replicas are alike and chunks do not interleave.

A row that recomputes fully leaves to each stage how many of its layers it recomputes, where the launcher
and the request do. Its prices are those of no recomputation, its ``kept_bytes`` those of all:
``whole_kept_bytes`` and ``replay_s`` state what a stage pays between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from itertools import permutations, product
from math import gcd

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.profile import Profile
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    ALL_LAYERS,
    PER_STAGE,
    RECOMPUTE,
    SCHEDULES,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    distinct,
)
from meshwright.solver.cost.communication import longest_wait, sent_bytes
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.cost.price import UNEQUAL_LENGTHS, price, price_every_rank
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.problem import Problem
from meshwright.solver.search.rows import Rows
from meshwright.solver.space.enumerate import (
    MAX_MICRO_BATCH_SIZE,
    MIN_TOKENS_PER_CONTEXT_RANK,
    recomputes_by_stage,
)
from meshwright.solver.space.request_rules import limited_by, names_of
from meshwright.solver.space.rules import rules_of, violation_masks
from meshwright.solver.splits import Prescribed, divisors

# Numbers of stages: where it matters a row is priced for each range, at the least of it.
RANGES = ((2, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 1 << 20))
_PRICED_FOR = (2, 9)  # numbers of stages that transfers and stragglers of all rows are priced for
PRICED_AT_ONCE = 4096  # rows between two looks at the clock
_MOST_PRICED = 200_000  # rows times options, priced once for each range; of more a sample is searched
_FULL = RECOMPUTE.index("full")
_MOST_FIRST = 4096  # the same of the rows among which a first plan is sought
Pricing = Callable[[Problem, Columns, Profile], RowPrices]
_OF_STAGES = {"pipeline_parallel_size", "num_gpus"}  # limits that some numbers of stages keep


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOption:
    """A node group with a tensor-parallel size."""

    group: int  # among ``ClusterSpec.distinct_groups``
    tensor_parallel_size: int


def options_of(fleet: NodeGroups) -> tuple[StageOption, ...]:
    """Return every group with each tensor-parallel size that divides the heads and its islands."""
    heads = divisors(gcd(*fleet.problem.model.split_heads))
    return tuple(
        StageOption(group=at, tensor_parallel_size=size)
        for at, group in enumerate(fleet.groups)
        for size in heads
        if size <= group.gpus_per_node and group.island_gpus % size == 0
    )


# --------------------------------------------------------------------------------------------------
# Which sizes rows have, and their columns on an option with p stages.


def contexts_of(problem: Problem, *, wide: bool) -> list[int]:
    """Return slices of the sequence: of enough tokens, or every one that divides where that is asked."""
    seq = problem.workload.seq_length
    if wide or "context_parallel_size" in limited_by(problem):
        return list(divisors(seq))
    return [1 << bit for bit in range(max(1, seq // MIN_TOKENS_PER_CONTEXT_RANK).bit_length())]


def largest_micro_batch(problem: Problem, *, wide: bool) -> int:
    """Return the most sequences of a micro-batch."""
    named = not limited_by(problem).isdisjoint({"micro_batch_size", "num_microbatches"})
    return problem.workload.global_batch_size if wide or named else MAX_MICRO_BATCH_SIZE


# What tells rows apart, by place: a shard set has one rank where nothing is sharded.
SIZES = ("cp", "dp", "ep", "micro-batch", "ZeRO stage", "recomputation", "shard set")


def _sizes(fleet: NodeGroups, *, wide: bool) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of every row that some group has GPUs for, as ``SIZES``."""
    problem, most = fleet.problem, max(group.num_gpus for group in fleet.groups)
    able, batch = launcher_capabilities(problem.launcher), problem.workload.global_batch_size
    contexts, largest = contexts_of(problem, wide=wide), largest_micro_batch(problem, wide=wide)
    experts = divisors(problem.model.moe.num_experts) if problem.model.moe else (1,)
    for cp, dp, ep in product(contexts, divisors(batch), experts):
        look()
        if cp * dp > most:
            continue
        sizes = [size for size in divisors(batch // dp) if size <= largest]
        sets = _shard_sets(problem, cp * dp)
        zeros = [(0, 1)] * (0 in able.zero_stages)
        zeros += [(zero, size) for zero in able.zero_stages for size in sets if zero > 0]
        rest = product(sizes, zeros, range(_FULL + 1))
        yield from ((cp, dp, ep, size, zero, again, ranks) for size, (zero, ranks), again in rest)


def _shard_sets(problem: Problem, ranks: int) -> list[int]:
    """Return sizes of shard sets: all ranks, and every divisor if the request limits the size."""
    name, able = "zero_shard_size", launcher_capabilities(problem.launcher)
    if name in limited_by(problem) and able.hybrid_sharding:
        return [size for size in divisors(ranks) if size > 1]
    return [ranks] * (ranks > 1)


def columns_of(
    problem: Problem, sizes: IntArray, stages: int | IntArray, *, by_stage: bool = True
) -> Columns:
    """Return rows of ``SIZES``, (n, 7), as columns with so many stages, of tensor-parallel size 1.

    ``by_stage``: two or more stages may recompute numbers of layers of their own.
    """
    cp, dp, ep, size, zero, again, shards = sizes.T
    ones, pp = np.ones_like(cp), np.broadcast_to(np.asarray(stages), cp.shape)
    none, plain = SCHEDULES.index("none"), SCHEDULES.index("1f1b")
    every = np.where((pp > 1) & (by_stage and recomputes_by_stage(problem)), PER_STAGE, ALL_LAYERS)
    return Columns.plain(
        tensor_parallel_size=ones,
        sequence_parallel=np.zeros_like(cp),
        pipeline_parallel_size=pp,
        context_parallel_size=cp,
        expert_parallel_size=ep,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=shards,
        micro_batch_size=size,
        num_microbatches=problem.workload.global_batch_size // (dp * size),
        pipeline_schedule=np.where(pp == 1, none, plain),
        recompute=again,
        recompute_layers=np.where(again == _FULL, every, 0),
    )


def every_columns(fleet: NodeGroups) -> Columns:
    """Return all rows with each number of stages that a rule of the request may tell apart."""
    sizes = np.array(list(_sizes(fleet, wide=True)), dtype=np.int64).reshape(-1, len(SIZES))
    numbers = range(1, _numbers_of_stages(fleet.problem) + 1)
    return Columns.concatenate([columns_of(fleet.problem, sizes, stages) for stages in numbers])


def _numbers_of_stages(problem: Problem) -> int:
    """Return up to how many stages rules differ: all, or one and more than one."""
    layers = problem.model.num_layers
    return min(layers, 2) if limited_by(problem).isdisjoint(_OF_STAGES) else layers


def with_tensor_parallel(columns: Columns, size: int) -> Columns:
    """Return the same rows with a tensor-parallel size."""
    sizes = np.full(len(columns), size)
    return replace(columns, tensor_parallel_size=sizes, sequence_parallel=(sizes > 1).astype(np.int64))


def rows_in(fleet: NodeGroups, columns: Columns, group: int, prices: Pricing = price) -> Rows:
    """Return rows as a group prices them."""
    problem = fleet.problems[group]
    return Rows(
        columns=columns,
        prices=prices(problem, columns, fleet.profiles[group]),
        layout=LayerLayout.of(problem.model, problem.training),
        budget_bytes=fleet.budget_bytes(group),
        uneven_stages=True,
        only_split=Prescribed.of(problem),
    )


def joined_by_group(
    options: Sequence[StageOption], columns: Sequence[Columns]
) -> Iterator[tuple[int, slice, Columns]]:
    """Yield a group, some of its options, and their joined columns: as many as are priced at once.

    ``columns``: those of each option, with tensor-parallel size 1.
    """
    begin = 0
    while begin < len(options):
        look()
        group, end, left = options[begin].group, begin + 1, PRICED_AT_ONCE - len(columns[begin])
        while end < len(options) and options[end].group == group and len(columns[end]) <= left:
            end, left = end + 1, left - len(columns[end])
        some = slice(begin, end)
        parts = [
            with_tensor_parallel(own, option.tensor_parallel_size)
            for own, option in zip(columns[some], options[some], strict=True)
        ]
        yield group, some, Columns.concatenate(parts)
        begin = end


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalRows:
    """Rows that are legal on some option with some number of stages, before they are priced."""

    fleet: NodeGroups
    options: tuple[StageOption, ...]
    sizes: IntArray  # (n, 7), as ``SIZES``
    stages: BoolArray  # (B, n, P + 1) whether so many are legal on an option
    size: int  # rows before any rule
    whole: bool  # not a sample

    @classmethod
    def of(cls, fleet: NodeGroups, *, wide: bool = False) -> LegalRows:
        """Return all rows, or a sample where there are too many.

        ``wide``: every slice of the sequence and every micro-batch that divides; else those that are usual
        or that the request limits.
        """
        options = options_of(fleet)
        sizes = np.array(list(_sizes(fleet, wide=wide)), dtype=np.int64).reshape(-1, len(SIZES))
        size, sampled = len(sizes), len(sizes) * len(options) > _MOST_PRICED
        if sampled:
            sizes = sizes[_among(size, _MOST_PRICED // len(options))]
        stages = _legal(fleet, sizes, options)
        every = cls(fleet=fleet, options=options, sizes=sizes, stages=stages, size=size, whole=not sampled)
        return every.take(np.flatnonzero(stages.any(axis=(0, 2))))

    def lightest(self) -> LegalRows:
        """Return the rows of least memory for each (cp, dp, ep), among which a first plan is sought.

        Those of small micro-batches with states that are sharded most, with each kind of recomputation.
        """
        cp, dp, ep, size, zero, again, shards = self.sizes.T
        order = np.lexsort((-shards, -zero, size, again, ep, dp, cp))
        alike = self.sizes[order][:, (0, 1, 2, 5)]
        light = np.sort(order[np.unique(alike, axis=0, return_index=True)[1]])
        kept = light[_among(len(light), _MOST_FIRST // len(self.options))]
        return replace(self.take(kept), whole=False)

    def smallest(self) -> tuple[LegalRows, IntArray]:
        """Return rows of the smallest micro-batches, and for each row the number of the one alike to it.

        They differ in the micro-batch alone: where the smallest does not fit, none alike to it does.
        Rows of a single micro-batch, which may keep no whole gradients, are alike to one another.
        """
        cp, dp, ep, size, zero, again, shards = self.sizes.T
        legal = np.packbits(self.stages.transpose(1, 0, 2).reshape(len(self.sizes), -1), axis=1)
        numbers = np.unique([one.tobytes() for one in legal], return_inverse=True)[1]
        single = (dp * size == self.fleet.problem.workload.global_batch_size).astype(np.int64)
        first, alike = distinct([cp, dp, ep, zero, again, shards, numbers, single])  # micro-batches ascend
        return replace(self.take(first), whole=False), alike

    def take(self, index: IntArray) -> LegalRows:
        """Return some of the rows."""
        return replace(self, sizes=self.sizes[index], stages=self.stages[:, index])


def _among(count: int, most: int) -> IntArray:
    return np.linspace(0, max(count - 1, 0), min(count, most)).astype(np.int64)


# --------------------------------------------------------------------------------------------------
# Prices of all rows on all options.


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """What every stage of an option has in each pass, (B, n) or (B,) of one row, stragglers counted."""

    inside_s: FloatArray  # transfers behind a stage of the same group, both directions
    further_s: FloatArray  # of both passes, what is no transfer
    scale: FloatArray  # the straggler, over that of two stages

    @classmethod
    def least(cls, one: Transfers, other: Transfers) -> Transfers:
        """Return the lesser of two, field by field."""
        return cls(
            **{f.name: np.minimum(getattr(one, f.name), getattr(other, f.name)) for f in fields(cls)}
        )

    def of(self, row: int) -> Transfers:
        """Return those of one row, (B,)."""
        return Transfers(**{f.name: getattr(self, f.name)[:, row] for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class MixedRows:
    """n rows on B options with two or more stages: seconds of a micro-batch, bytes of a stage.

    Every time is multiplied by the option's own straggler; a plan's is the largest of its options'.
    """

    fleet: NodeGroups
    options: tuple[StageOption, ...]
    sizes: IntArray  # (n, 7), as ``SIZES``
    size: int  # rows before any rule: of them ``sizes`` are priced
    whole: bool  # not a sample
    allowed: BoolArray  # (n, P + 1) whether so many stages are legal on some option
    alone: BoolArray  # (B, n) whether a single stage is legal on an option
    room: IntArray  # (B, n) stages that an option has GPUs for; 0 where it is not legal
    gpus: IntArray  # (G, n) of each group that a row may use, by the constraints on node groups
    least_layers: IntArray  # (G, n) that each group has to hold, by the same
    most_layers: IntArray
    layer_s: FloatArray  # (B, n, K) both passes of a layer of each kind
    embedding_s: FloatArray  # (B, n)
    head_s: FloatArray
    forward_share: FloatArray  # of a layer's passes, at most
    more_forward_s: FloatArray  # (B, n) of an end's forward pass beyond that share
    sent: IntArray  # (B, n) size of what a stage sends to the next, among all sizes in use
    hops_s: FloatArray  # (G, G, sizes) of a transfer between two groups, each direction; +inf inside one
    straggler: FloatArray  # (B, n) of two stages
    transfers: Transfers  # of any number of stages
    transfers_by_range: dict[tuple[int, int], Transfers] = field(default_factory=dict)  # and row
    tail_s: FloatArray  # (B, n, K + 2) after the last micro-batch, by part
    rank_tail_s: FloatArray  # (B, n)
    fixed_s: FloatArray
    state_bytes: FloatArray  # (B, n, K + 2)
    kept_bytes: FloatArray  # (B, n, K + 2) of a micro-batch in flight, at least
    whole_kept_bytes: FloatArray  # (B, n, K + 2) the same of a stage that recomputes none of its layers
    replay_s: FloatArray  # (B, n, K) of a recomputed layer, where stages choose how many they recompute
    room_bytes: FloatArray  # (B, n) for both
    head_room_bytes: FloatArray  # the same on the last stage, next to the logits

    @classmethod
    def of_nothing(cls, fleet: NodeGroups) -> MixedRows:
        """Return no rows, as before any was enumerated, on one option for what has a shape at all."""
        options, layers = options_of(fleet)[:1], fleet.problem.model.num_layers
        stages = np.zeros((len(options), 0, layers + 1), dtype=np.bool_)
        sizes = np.zeros((0, len(SIZES)), dtype=np.int64)
        return cls.of(
            LegalRows(fleet=fleet, options=options, sizes=sizes, stages=stages, size=0, whole=False)
        )

    @classmethod
    def of(cls, legal: LegalRows) -> MixedRows:
        """Price rows on every option: with two stages, and the least of more where their number matters."""
        fleet, options, sizes = legal.fleet, legal.options, legal.sizes
        several = [columns_of(fleet.problem, sizes, stages) for stages in _several(fleet, *_PRICED_FOR)]
        columns = several[0]
        priced = on_all(fleet, columns, options)
        priced_of_most = _with_most_stages(fleet, options, sizes) or priced

        def each(read: Callable[[Rows], FloatArray]) -> FloatArray:
            return np.stack([read(rows) for rows in priced])

        def least(read: Callable[[Rows], FloatArray]) -> FloatArray:
            if priced_of_most is priced:
                return each(read)
            return np.minimum(each(read), np.stack([read(rows) for rows in priced_of_most]))

        def each_group(read: Callable[[NodeGroup], int]) -> IntArray:
            return np.repeat([[read(group)] for group in fleet.groups], len(sizes), axis=1)

        straggler = each(lambda rows: rows.prices.straggler)
        forward_s = _most_forward_s(fleet, options, priced_of_most)
        both_s = forward_s + least(lambda rows: rows.prices.backward_s)
        forward_share = (forward_s / np.maximum(both_s, 1e-30))[..., :-2].max(axis=-1)
        more_forward_s = (forward_s - forward_share[..., None] * both_s)[..., -2:].max(axis=-1)
        sent, hops_s = _hops(fleet, options, columns)
        transfers = [_transfers(fleet, some, options, straggler) for some in several]
        has_several = legal.stages[:, :, 2:].any(axis=2)
        ranks_of_stage = columns.context_parallel_size * columns.data_parallel_size
        rank_places = np.array(
            [fleet.groups[option.group].num_gpus // option.tensor_parallel_size for option in options]
        )
        room_bytes = -least(lambda rows: -rows.parts_room_bytes)  # the most of it
        replay_bytes = least(lambda rows: rows.prices.replay_workspace_bytes)
        head_bytes = least(lambda rows: rows.prices.head_workspace_bytes)
        return cls(
            fleet=fleet, options=options, sizes=sizes, size=legal.size, whole=legal.whole,
            allowed=np.asarray(legal.stages.any(axis=0)), alone=legal.stages[:, :, 1],
            room=np.where(has_several, rank_places[:, None] // ranks_of_stage, 0),
            gpus=each_group(lambda group: group.num_gpus),
            least_layers=each_group(lambda _: 0),
            most_layers=each_group(lambda _: fleet.problem.model.num_layers),
            layer_s=straggler[..., None] * least(lambda rows: rows.layer_s),
            embedding_s=straggler * least(lambda rows: rows.embedding_s),
            head_s=straggler * least(lambda rows: rows.head_s),
            forward_share=forward_share,
            more_forward_s=straggler * np.maximum(more_forward_s, 0.0),
            sent=sent, hops_s=hops_s, straggler=straggler,
            transfers=reduce(Transfers.least, transfers),
            tail_s=straggler[..., None] * least(lambda rows: rows.prices.tail_s),
            rank_tail_s=straggler * least(lambda rows: rows.prices.rank_tail_s),
            fixed_s=least(lambda rows: rows.prices.fixed_s),
            state_bytes=least(lambda rows: rows.prices.state_bytes),
            kept_bytes=least(lambda rows: rows.least_kept_bytes),
            whole_kept_bytes=least(_whole_kept_bytes),
            replay_s=straggler[..., None] * least(_replay_s),
            room_bytes=room_bytes - replay_bytes,
            head_room_bytes=room_bytes - np.maximum(replay_bytes, head_bytes),
        )  # fmt: skip

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.sizes)

    @cached_property
    def group_of(self) -> IntArray:
        """Return the group of each option, (B,)."""
        return np.array([one.group for one in self.options])

    @cached_property
    def gpus_of_stage(self) -> IntArray:
        """Return the GPUs that a stage takes on each option, (B, n)."""
        tensor = np.array([one.tensor_parallel_size for one in self.options])
        return np.asarray(tensor[:, None] * (self.sizes[:, 0] * self.sizes[:, 1])[None])

    @cached_property
    def is_of_one_size(self) -> bool:
        """Return whether all stages have one tensor size: what a constraint says of all GPUs needs that.

        Rules are asked stage by stage, as if all stages had its size.
        """
        return "num_gpus" in names_of(self.fleet.problem.options.constraints)

    def are_alike(self, line: Sequence[int]) -> bool:
        """Return whether options have one tensor size, where that is asked of all or of both ends."""
        ends = (line[0], line[-1]) if self.fleet.problem.places_ends_alike else ()
        alike = line if self.is_of_one_size else ends
        return len({self.options[at].tensor_parallel_size for at in alike}) <= 1

    @cached_property
    def layout(self) -> LayerLayout:
        """Return the model's layers."""
        return LayerLayout.of(self.fleet.problem.model, self.fleet.problem.training)

    @cached_property
    def every_columns(self) -> Columns:
        """Return all rows with two stages, of tensor-parallel size 1."""
        return columns_of(self.fleet.problem, self.sizes, 2)

    @cached_property
    def num_microbatches(self) -> IntArray:
        """Return the micro-batches of each row, (n,)."""
        return self.every_columns.num_microbatches

    @cached_property
    def by_stage(self) -> BoolArray:
        """Mark rows with stages that choose how many layers they recompute, (n,)."""
        return np.asarray(self.every_columns.recompute_layers == PER_STAGE)

    @cached_property
    def always_recomputes(self) -> bool:
        """Return whether the request limits recomputation, so that such a row recomputes some layer."""
        return "recompute_granularity" in limited_by(self.fleet.problem)

    @cached_property
    def most_stages(self) -> IntArray:
        """Return the most stages of each row that are legal and that there are GPUs for, (n,)."""
        groups = [self.room[self.group_of == at].max(axis=0) for at in np.unique(self.group_of)]
        gpus = np.minimum(np.sum(groups, axis=0), self.layout.num_layers)
        reached = self.allowed.shape[1] - 1 - self.allowed[:, ::-1].argmax(axis=1)
        return np.asarray(np.minimum(gpus, reached))

    def transfers_of(self, row: int, range_at: int) -> Transfers:
        """Return transfers of a row, (B,): of any number of stages, or of the legal numbers of a range.

        The range is ``RANGES[range_at - 1]``. Transfers grow with the number, as stages share fewer nodes.
        """
        if not range_at:
            return self.transfers.of(row)
        if (row, range_at) not in self.transfers_by_range:
            straggler = self.straggler[:, row : row + 1]
            legal = self.legal_stages(row, range_at).tolist() or [RANGES[range_at - 1][0]]
            each = [
                _transfers(self.fleet, self.columns(row, stages), self.options, straggler)
                for stages in _several(self.fleet, legal[0], upto=legal[-1])
            ]
            self.transfers_by_range[row, range_at] = reduce(Transfers.least, each).of(0)
        return self.transfers_by_range[row, range_at]

    @cached_property
    def entered_s(self) -> FloatArray:
        """Return what a transfer from another group adds to a stage, at least, (B, n)."""
        least_s = self.hops_s.min(axis=0)[self.group_of[:, None], self.sent]
        return np.asarray(2.0 * self.transfers.scale * self.straggler * least_s)

    def hops_of(self, row: int) -> FloatArray:
        """Return what a transfer from each option adds to a stage of each other, (B, B).

        Both directions, by the larger of what the two send, over the straggler's ``Transfers.scale``;
        +inf inside a group.
        """
        sent, group = self.sent[:, row], self.group_of
        hops_s = self.hops_s[group[:, None], group[None], np.maximum(sent[:, None], sent[None])]
        return np.asarray(2.0 * self.straggler[:, row] * hops_s)

    def legal_stages(self, row: int, range_at: int = 0) -> IntArray:
        """Return the legal numbers of stages of a row, from two on, that there are GPUs for.

        ``range_at``: of any number, or of ``RANGES[range_at - 1]``.
        """
        legal = np.flatnonzero(self.allowed[row])
        if range_at:
            low, high = RANGES[range_at - 1]
            legal = legal[(legal >= low) & (legal <= high)]
        return np.asarray(legal[(legal > 1) & (legal <= self.most_stages[row])])

    def layers_in_memory(self, row: int) -> FloatArray:
        """Return how many layers with one micro-batch in flight each option's memory holds, (B,)."""
        each = self.state_bytes[:, row, :-2] + self.kept_bytes[:, row, :-2]
        return np.asarray(self.room_bytes[:, row] / each.max(axis=-1))

    def options_by_group(self, row: int) -> list[IntArray]:
        """Return the options that have room for a stage of a row, for each group that has one."""
        able = np.flatnonzero(self.room[:, row] > 0)
        return [able[self.group_of[able] == at] for at in np.unique(self.group_of[able])]

    def columns(self, row: int, stages: int, *, by_stage: bool = True) -> Columns:
        """Return one row with so many stages, of tensor-parallel size 1."""
        return columns_of(self.fleet.problem, self.sizes[row : row + 1], stages, by_stage=by_stage)


def _with_most_stages(fleet: NodeGroups, options: Sequence[StageOption], sizes: IntArray) -> list[Rows]:
    """Return rows with as many stages as a pipeline can have; [] where passes are as long with two.

    Stages wait for the slowest of the p documents in flight. Its expected maximum is concave in p, and the
    share of slots that wait for it m / (m + 2 (p - 1)): the wait is least with two stages or with the most.
    What else reads the number of stages grows or shrinks with it.
    """
    if fleet.problem.workload.lengths is None and not _reads_stages(fleet):
        return []
    return on_all(fleet, columns_of(fleet.problem, sizes, _most_stages(fleet)), options)


def _reads_stages(fleet: NodeGroups) -> bool:
    return any(profile.framework.priced_by_stages for profile in fleet.profiles)


def _most_stages(fleet: NodeGroups) -> int:
    return max(min(fleet.problem.model.num_layers, sum(group.num_gpus for group in fleet.groups)), 2)


def _several(fleet: NodeGroups, *numbers: int, upto: int = 1 << 20) -> list[int]:
    """Return the numbers of stages, and the most up to ``upto`` where prices read how many there are."""
    return [*numbers, min(_most_stages(fleet), upto)] if _reads_stages(fleet) else [*numbers]


def _most_forward_s(
    fleet: NodeGroups, options: Sequence[StageOption], priced_of_most: Sequence[Rows]
) -> FloatArray:
    """Return each part's forward pass with any number of stages, at most, (B, n, P).

    From those with the most stages, since a pass grows by no more than its wait for documents.
    """
    forward_s = [rows.prices.forward_s for rows in priced_of_most]
    for at, (option, rows) in enumerate(zip(options, priced_of_most, strict=True)):
        waited_s = rows.prices.breakdown_s.get(UNEQUAL_LENGTHS)
        if waited_s is not None and len(rows):
            ctx = context_of(fleet.problems[option.group], rows.columns, fleet.profiles[option.group])
            stages, kinds = int(rows.p.max()), rows.layout.kinds
            longest = np.max([longest_wait(ctx.of(kind), stages) for kind in kinds], axis=0)
            forward_s[at] = forward_s[at] + (longest - 1.0)[:, None] * waited_s
    return np.stack(forward_s)


def _whole_kept_bytes(rows: Rows) -> FloatArray:
    """Return what stages keep that recompute none of their layers, (n, P)."""
    return np.where(rows.per_stage[:, None], rows.prices.activation_bytes, rows.least_kept_bytes)


def _replay_s(rows: Rows) -> FloatArray:
    """Return the seconds of a recomputed layer where stages choose how many they recompute, (n, K)."""
    return np.asarray(rows.per_stage[:, None] * rows.prices.replay_s[:, :-2])


def on_all(fleet: NodeGroups, columns: Columns, options: Sequence[StageOption]) -> list[Rows]:
    """Return n rows as each option prices them; those of one group are priced together."""
    return rows_of_options(fleet, options, [columns] * len(options))


def rows_of_options(
    fleet: NodeGroups, options: Sequence[StageOption], columns: Sequence[Columns]
) -> list[Rows]:
    """Return the priced rows of each option; options of one group are priced together."""
    found = list[Rows]()
    for group, some, joined in joined_by_group(options, columns):
        every, counts = rows_in(fleet, joined, group), [len(one) for one in columns[some]]
        ends = np.cumsum(counts).tolist()
        found += [every.take(np.arange(end - n, end)) for end, n in zip(ends, counts, strict=True)]
    return found


def _legal(fleet: NodeGroups, sizes: IntArray, options: Sequence[StageOption]) -> BoolArray:
    """Return which numbers of stages are legal for rows on options, (B, n, P + 1)."""
    problem, layers = fleet.problem, fleet.problem.model.num_layers
    able = launcher_capabilities(problem.launcher)
    legal = np.zeros((len(options), len(sizes), layers + 1), dtype=np.bool_)
    numbers, rules = _numbers_of_stages(problem), [rules_of(one) for one in fleet.problems]
    for stages in range(1, numbers + 1):
        columns = [columns_of(problem, sizes, stages)] * len(options)
        for group, some, there in joined_by_group(options, columns):
            kept = violation_masks(rules[group], there) == 0
            legal[some, :, stages] = kept.reshape(legal[some, :, stages].shape)
    legal[:, :, numbers + 1 :] = legal[:, :, numbers : numbers + 1]
    legal[:, sizes[:, 4] > able.max_zero_stage_with_pipeline, 2:] = False
    asked = problem.options.stage_layers
    if asked:
        legal[:, :, [at for at in range(layers + 1) if at != len(asked)]] = False
    return legal


def _hops(
    fleet: NodeGroups, options: Sequence[StageOption], columns: Columns
) -> tuple[IntArray, FloatArray]:
    """Return the size of what a stage sends on every option, (B, n), and transfers by size, (G, G, sizes).

    Sizes are counted from the smallest.
    """
    sent = np.empty((len(options), len(columns)))
    for group, some, there in joined_by_group(options, [columns] * len(options)):
        ctx = context_of(fleet.problems[group], there, fleet.profiles[group])
        sent[some] = sent_bytes(ctx).reshape(sent[some].shape)
    sizes, which = np.unique(sent, return_inverse=True)
    count = len(fleet.groups)
    hops_s = np.full((count, count, len(sizes)), np.inf)
    for one, other in permutations(range(count), 2):
        hops_s[one, other] = fleet.hop_s(one, other, sizes)
    return which.reshape(sent.shape), hops_s


def _transfers(
    fleet: NodeGroups, columns: Columns, options: Sequence[StageOption], straggler: FloatArray
) -> Transfers:
    """Return what every stage has of rows with some number of stages, on every option."""
    own, every_s, transfer_s = (np.empty_like(straggler) for _ in range(3))
    for group, some, there in joined_by_group(options, [columns] * len(options)):
        prices = price_every_rank(fleet.problems[group], there, fleet.profiles[group])
        own[some] = prices.straggler.reshape(own[some].shape)
        every_s[some] = prices.every_s.reshape(own[some].shape)
        transfer_s[some] = prices.transfer_s.reshape(own[some].shape)
    inside_s = 2.0 * transfer_s
    return Transfers(
        inside_s=own * inside_s, further_s=straggler * (every_s - inside_s), scale=own / straggler
    )
