"""Rules of a legal configuration: a name, a reason, and an array expression for each.

A rule looks at columns without a split and returns which rows break it. Rules of the model and the
batch, of the launcher, and of the request (pins, forbidden values, bounds) are alike: each is one
bit of a row's mask, so that an answer without plans can name the rules that conflict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from math import gcd
from typing import Any

import numpy as np

from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.cluster import USABLE, NodeGroup, host_of
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.profile import default_profile, framework_of
from meshwright.profiles.units import GIB
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    ALL_LAYERS,
    ALL_TO_ALL,
    RANK_ORDERS,
    RECOMPUTE,
    RING,
    SPLIT_BACKWARD,
    VARIABLE_OF,
    BoolArray,
    Columns,
    Configuration,
    FloatArray,
    IntArray,
    distinct,
    is_one_of,
)
from meshwright.solver.cost.context import WITHOUT_ACTIVATIONS, context_of, is_offloaded, same_ranks
from meshwright.solver.cost.memory import Outside, held_first, outside_bytes, read_bytes, reads_alone_from
from meshwright.solver.problem import Problem, batch_sizes, meshes_of, remembered
from meshwright.solver.schedules.schedule import (
    IN_GROUPS,
    PRICED_AS,
    needs_two_a_stage,
    runs_in_groups,
    splits_backward,
    takes_all_chunks,
)
from meshwright.solver.space.launcher_rules import launcher_rules
from meshwright.solver.space.request_rules import request_rules
from meshwright.solver.space.rule import ACROSS_ISLANDS, OF_CHUNKS, Rule, among

# --------------------------------------------------------------------------------------------------
# What is offloaded fits into the memory of the hosts, and onto their drives.
#
# Counted for the fullest stage of an even split, as though a whole node held ranks of that stage: a limit
# of the row, whatever its split, and a little on the safe side where a node holds ranks of several
# stages.


# Variables that host states do not depend on: read by the other rule alone, so that this one is early.
_OF_STEPS = (*OF_CHUNKS, "rank_order")
_OF_ORDER = ("rank_order",)  # activations lie where they lie
_READ_BY_STATES = tuple(name for name in VARIABLE_OF if name not in _OF_STEPS)
_READ_BY_ACTIVATIONS = tuple(name for name in VARIABLE_OF if name not in _OF_ORDER)


def host_rules(problem: Problem) -> Iterator[Rule]:
    """Yield the limits: of states alone, of activations as well, and of drives."""
    share = usable_host_bytes(problem)
    reason = (
        f"{share / GIB:.0f} GiB of host memory for each GPU ({share / host_share_bytes(problem):.0%} of it)"
    )
    yield Rule(
        name="offloaded optimizer states fit the hosts",
        of_host=True,
        reason=reason,
        reads=_READ_BY_STATES,
        violated=lambda c: _too_large(problem, c, c.offload > 0, share),
    )
    yield Rule(
        name="offloaded activations fit the hosts as well",
        of_host=True,
        reason=reason,
        reads=_READ_BY_ACTIVATIONS,
        violated=lambda c: _too_large(
            problem, c, is_offloaded(c.offload, "activations"), share, every=True
        ),
        concerns=lambda c: is_offloaded(c.offload, "activations"),
        of_chunkings=lambda outer, inner: _outside_of_chunkings(problem, outer, inner) > share,
    )
    if "offload" in problem.options.allow:
        yield _drive_rule(problem)
    yield from _loading_rule(problem)


def _loading_rule(problem: Problem) -> Iterator[Rule]:
    """Yield the limit of a node whose ranks read the model, if some rows break it."""
    if framework_facts(framework_of(problem.priced_as)).weights_read_by == "nobody":
        return
    ctx = context_of(
        problem, Columns.of([Configuration()]), default_profile(problem.cluster, problem.priced_as)
    )
    each, alone_from, share = read_bytes(ctx), reads_alone_from(ctx.facts), usable_host_bytes(problem)
    if each <= share:
        return
    room = share * min(group.gpus_per_node for group in problem.cluster.groups)
    readers = int(room // each)  # that a node has memory for
    alone = f"zero_stage >= {alone_from} or " if readers else ""
    yield Rule(
        name="weights that ranks read fit the hosts",
        reason=f"each rank that reads the model takes {each / GIB:.0f} GiB of host memory, and a node can "
        f"give {room / GIB:.0f} GiB. From zero_stage {alone_from} on, one rank reads for the others",
        reads=(
            "tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size",
            "data_parallel_size", "zero_stage",
        ),
        violated=lambda c: np.where(c.zero_stage >= alone_from, 1, c.num_gpus) > readers,
        form=(f"{alone}num_gpus <= {readers}",),
    )  # fmt: skip


def _drive_rule(problem: Problem) -> Rule:
    share = _usable_drive_bytes(problem)

    def swapped(c: Columns) -> BoolArray:
        return is_offloaded(c.offload, "optimizer@nvme", "parameters@nvme")

    def violated(c: Columns) -> BoolArray:
        broken = np.zeros(len(c), dtype=np.bool_)
        index = np.flatnonzero(swapped(c))
        if len(index):
            broken[index] = _outside(problem, c.take(index), _OF_STEPS).nvme > share
        return broken

    return Rule(
        name="offloaded states fit the drives",
        of_host=True,
        reason=f"{share / GIB:.0f} GiB of NVMe for each GPU ({USABLE:.0%} of it)",
        reads=_READ_BY_STATES,
        violated=violated,
        concerns=swapped,
    )


def lacking_outside(problem: Problem, columns: Columns) -> tuple[FloatArray, FloatArray]:
    """Return the bytes of host memory and of drives for each GPU beyond what may be filled, (n,) each."""
    found = _outside(problem, columns, _OF_ORDER)
    lacks_host = found.host - usable_host_bytes(problem)
    return np.maximum(lacks_host, 0.0), np.maximum(found.nvme - _usable_drive_bytes(problem), 0.0)


def _usable_drive_bytes(problem: Problem) -> float:
    return min(host_of(group).usable_nvme_bytes for group in problem.cluster.groups)


def usable_host_bytes(problem: Problem) -> float:
    """Return the host memory of one GPU that may be filled."""
    return min(host_of(group).usable_memory_bytes for group in problem.cluster.groups)


def host_share_bytes(problem: Problem) -> int:
    """Return the host memory of one GPU, of the node group that has least."""
    return min(host_of(group).memory_bytes for group in problem.cluster.groups)


def host_warnings(problem: Problem) -> tuple[str, ...]:
    """Return what is assumed about hosts of unknown memory, if something may be offloaded."""
    if "offload" not in problem.options.allow:
        return ()
    swaps = any("@nvme" in word for word in launcher_capabilities(problem.launcher).offload)
    return tuple(
        f"host memory of {group.gpu.slug} nodes is not stated: the usual node's "
        f"{_node_gib(group, host_of(group).memory_bytes)} GiB are assumed "
        f"({host_of(group).source}). If yours differ, set host_memory_bytes"
        for group in problem.cluster.distinct_groups
        if group.host_memory_bytes is None
    ) + tuple(
        f"drives of {group.gpu.slug} nodes are not stated: the usual node's "
        f"{_node_gib(group, host_of(group).nvme_bytes)} GiB of NVMe are assumed. If yours differ, "
        "set nvme_bytes, nvme_read_bytes_per_s and nvme_write_bytes_per_s"
        for group in problem.cluster.distinct_groups
        if swaps and group.nvme_bytes is None
    )


def _node_gib(group: NodeGroup, share_bytes: int) -> str:
    return f"{share_bytes * group.gpus_per_node / GIB:.0f}"


def _too_large(
    problem: Problem, c: Columns, asked: BoolArray, share: float, *, every: bool = False
) -> BoolArray:
    broken = np.zeros(len(c), dtype=np.bool_)
    index = np.flatnonzero(asked)
    if len(index):
        rows = c.take(index)
        if not every:
            rows = replace(rows, offload=WITHOUT_ACTIVATIONS[rows.offload])
        broken[index] = _outside(problem, rows, _OF_ORDER if every else _OF_STEPS).host > share
    return broken


def _outside(problem: Problem, c: Columns, aside: tuple[str, ...]) -> Outside:
    """Return the bytes outside the GPU of rows with the plain value of some variables, (n,).

    The prices of a layer are those of one chunk a rank, worked out once for all rows that agree in what
    they depend on: of the recomputed layers whether that is all of them, of the schedule how it is priced.
    What is kept of a layer grows with the micro-batches in flight.
    """
    # one chunk a rank, else the first word
    rows = replace(c, **{name: np.full(len(c), int(name == "virtual_pipeline_size")) for name in aside})
    asked = _of_one_layer(rows)
    first, alike = distinct([getattr(asked, f.name) for f in fields(Columns)])
    profile = default_profile(problem.cluster, problem.priced_as)
    found = outside_bytes(context_of(problem, asked.take(first), profile))
    return Outside(
        states=found.states[alike], activations=found.activations[alike], in_flight=held_first(rows),
        nvme=found.nvme[alike],
    )  # fmt: skip


def _of_one_layer(rows: Columns) -> Columns:
    """Return rows with the values that what is kept of one layer depends on."""
    every = np.where(rows.recompute_layers == ALL_LAYERS, ALL_LAYERS, 0)
    return replace(rows, virtual_pipeline_size=np.ones_like(every), recompute_layers=every,
                   pipeline_schedule=PRICED_AS[rows.pipeline_schedule])  # fmt: skip


def _outside_of_chunkings(problem: Problem, outer: Columns, inner: IntArray) -> FloatArray:
    """Return the bytes of host memory of every row with every chunking, (o, c), as ``_outside`` counts.

    Layers are priced for the few kinds of chunkings that differ in it, micro-batches in flight are counted
    for the few pipelines of the rows.
    """
    chunked = dict(zip(OF_CHUNKS, inner.T, strict=True))
    one = _of_one_layer(replace(outer.take(np.zeros(len(inner), dtype=np.int64)), **chunked))
    first, kind = distinct([getattr(one, name) for name in OF_CHUNKS])
    rows = outer.take(np.tile(np.arange(len(outer)), len(first)))
    kinds = {name: np.repeat(getattr(one, name)[first], len(outer)) for name in OF_CHUNKS}
    found = _outside(problem, replace(rows, **kinds), _OF_ORDER)
    shape = (len(first), len(outer))
    states, activations = (each.reshape(shape)[kind].T for each in (found.states, found.activations))
    some, pipeline = distinct([outer.pipeline_parallel_size, outer.num_microbatches])
    crossed = outer.take(np.repeat(some, len(inner)))
    held = held_first(replace(crossed, **{name: np.tile(chunked[name], len(some)) for name in OF_CHUNKS}))
    return np.asarray(states + activations * held.reshape(len(some), -1)[pipeline])


BATCH_RULE = "data_parallel_size * micro_batch_size divides the global batch"
_FULL = RECOMPUTE.index("full")
_SIZES = ("data_parallel_size", "pipeline_parallel_size", "context_parallel_size", "tensor_parallel_size")
_CHUNK = 16384  # rows looked at together: their arrays stay in the cache


def islands_of(problem: Problem) -> tuple[int, ...]:
    """Return how many GPUs share the fast link, of every kind of island, ascending."""
    return tuple(sorted({group.island_gpus for group in problem.cluster.groups}))


def inside_islands(islands: tuple[int, ...], ranks: IntArray, num_gpus: IntArray) -> BoolArray:
    """Return whether groups of neighbouring ranks stay inside islands: divide them, or all are in one."""
    inside = [(size % ranks == 0) | (num_gpus <= size) for size in islands]
    return np.asarray(np.logical_and.reduce(inside))


def _all_of(counts: tuple[int, ...]) -> str:
    return " or ".join(map(str, counts))


def _size_rules(problem: Problem) -> Iterator[Rule]:
    """Yield what tensor, context and expert parallelism divide."""
    yield from _tensor_rules(problem)
    yield from _sequence_rules(problem)
    yield from _expert_rules(problem)


def _tensor_rules(problem: Problem) -> Iterator[Rule]:
    """Yield what the tensor-parallel size divides: heads, widths and islands."""
    model = problem.split_model  # without a tower that every rank holds whole
    heads, kv_heads, mlp_widths = gcd(*model.split_heads), model.kv_head_counts, model.split_widths
    shared_width = model.moe.shared_ffn_hidden_size if model.moe else 0
    widths = f"ffn_hidden_size = {_all_of(mlp_widths)}"
    widths += f", and {shared_width} of the shared experts," if shared_width else ""
    uneven = launcher_capabilities(problem.launcher).uneven_ranks
    islands = islands_of(problem)
    yield Rule(
        name="tensor_parallel_size divides the attention heads",
        reason=f"{_all_of(model.split_heads)} heads are split over the tensor-parallel ranks",
        reads=("tensor_parallel_size",),
        stops_start="heads" not in uneven,
        violated=lambda c: heads % c.tensor_parallel_size != 0,
        form=(f"{heads} % tp == 0",),
    )
    yield Rule(
        name="tensor_parallel_size and the key/value heads divide one another",
        reason=f"{_all_of(kv_heads)} key/value heads are split over the ranks, or copied to them",
        reads=("tensor_parallel_size",),
        stops_start="heads" not in uneven,
        violated=lambda c: np.logical_or.reduce(
            [
                (count % c.tensor_parallel_size != 0) & (c.tensor_parallel_size % count != 0)
                for count in kv_heads
            ]
        ),
        form=tuple(f"{count} % tp == 0 or tp % {count} == 0" for count in kv_heads),
    )
    yield Rule(
        name="tensor_parallel_size divides the MLP width",
        reason=f"{widths} is split over the tensor-parallel ranks",
        reads=("tensor_parallel_size",),
        stops_start="widths" not in uneven,
        violated=lambda c: gcd(*mlp_widths, shared_width) % c.tensor_parallel_size != 0,
        form=(f"{gcd(*mlp_widths, shared_width)} % tp == 0",),
    )
    yield Rule(
        name="tensor_parallel_size divides an island",
        reason=f"{_all_of(islands)} GPUs share the fast link; {ACROSS_ISLANDS.name} is not offered: "
        f"{ACROSS_ISLANDS.reason}",
        limit=ACROSS_ISLANDS,
        reads=_SIZES,
        violated=lambda c: ~inside_islands(islands, c.tensor_parallel_size, c.num_gpus),
        form=tuple(f"{size} % tp == 0 or num_gpus <= {size}" for size in islands),
    )


def _sequence_rules(problem: Problem) -> Iterator[Rule]:
    """Yield what the ranks of a sequence divide: its tokens, and heads where these are exchanged."""
    model, seq = problem.model, problem.workload.seq_length
    exchanged = gcd(*model.head_counts, *model.kv_head_counts)
    uneven = launcher_capabilities(problem.launcher).uneven_ranks
    yield Rule(
        name="2 * context_parallel_size divides the sequence",
        reason=f"{seq} tokens are cut into two balanced slices for each rank of a ring",
        reads=("context_parallel_mode", "context_parallel_size"),
        stops_start="sequence" not in uneven,
        violated=lambda c: (
            (c.context_parallel_size > 1)
            & (c.context_parallel_mode != ALL_TO_ALL)
            & (seq % (2 * c.context_parallel_size) != 0)
        ),
        form=(f"cp == 1 or context_parallel_mode == 'all_to_all' or {seq} % (2 * cp) == 0",),
    )
    yield Rule(
        name="all_to_all splits heads over tensor_parallel_size * the context-parallel ranks that exchange",
        reason=f"{_all_of(model.head_counts)} heads and {_all_of(model.kv_head_counts)} key/value heads "
        "are exchanged for tokens (arXiv:2309.14509)",
        reads=("tensor_parallel_size", "context_parallel_size", "context_parallel_mode"),
        violated=lambda c: (
            (c.context_parallel_mode != RING)
            & ((exchanged % (c.tensor_parallel_size * c.exchanging) != 0) | (c.context_parallel_size == 1))
        ),
    )
    yield Rule(
        name="rings are left between context-parallel ranks that exchange heads",
        reason="the number of ranks that exchange heads divides the context-parallel size and is smaller",
        reads=("context_parallel_size", "context_parallel_mode"),
        violated=lambda c: (
            (c.context_parallel_mode > ALL_TO_ALL)
            & ((c.context_parallel_size % c.exchanging != 0) | (c.context_parallel_size == c.exchanging))
        ),
    )
    yield Rule(
        name="tensor_parallel_size * context_parallel_size divides the sequence",
        reason="sequence parallelism splits the tokens of a context-parallel rank again",
        reads=("sequence_parallel", "tensor_parallel_size", "context_parallel_size"),
        violated=lambda c: seq % (c.context_parallel_size * _splitting_tokens(c)) != 0,
        form=(f"{seq} % cp == 0", f"sequence_parallel => {seq} % (tp * cp) == 0"),
    )


def _expert_rules(problem: Problem) -> Iterator[Rule]:
    """Yield what the two sizes of expert parallelism divide."""
    moe, islands = problem.model.moe, islands_of(problem)
    if moe is None:
        yield Rule(
            name="expert_parallel_size is 1 without experts",
            reason="a dense model has no experts to split",
            reads=("expert_parallel_size", "expert_tensor_parallel_size"),
            violated=lambda c: c.expert_ranks > 1,
            form=("ep * etp == 1",),
        )
        return
    yield Rule(
        name="expert_parallel_size divides the experts",
        reason=f"{moe.num_experts} experts are split evenly",
        reads=("expert_parallel_size",),
        stops_start=True,
        violated=lambda c: moe.num_experts % c.expert_parallel_size != 0,
        form=(f"{moe.num_experts} % ep == 0",),
    )
    yield Rule(
        name="expert_parallel_size divides the ranks of a stage",
        reason="expert groups are formed among the tp * cp * dp ranks of a stage",
        reads=(
            "tensor_parallel_size",
            "context_parallel_size",
            "data_parallel_size",
            "expert_tensor_parallel_size",
            "expert_parallel_size",
        ),
        stops_start=True,
        violated=lambda c: (
            (c.tensor_parallel_size * c.context_parallel_size * c.data_parallel_size) % c.expert_ranks != 0
        ),
        form=("tp * cp * dp % (ep * etp) == 0",),
    )
    yield Rule(
        name="expert_tensor_parallel_size divides an island and the experts' width",
        reason=f"ffn_hidden_size = {moe.ffn_hidden_size} of an expert is split over ranks of one island",
        reads=(*_SIZES, "expert_tensor_parallel_size"),
        violated=lambda c: (
            ~inside_islands(islands, c.expert_tensor_parallel_size, c.num_gpus)
            | (moe.ffn_hidden_size % c.expert_tensor_parallel_size != 0)
        ),
        form=(
            f"{moe.ffn_hidden_size} % etp == 0",
            *(f"{size} % etp == 0 or num_gpus <= {size}" for size in islands),
        ),
    )


def _splitting_tokens(c: Columns) -> IntArray:
    """Return the tensor-parallel ranks that hold a part of the tokens each between their products."""
    return np.where(c.sequence_parallel != 0, c.tensor_parallel_size, 1)


def _pipeline_rules(problem: Problem) -> Iterator[Rule]:
    layers, chunks = problem.model.num_layers, problem.most_chunks
    yield Rule(
        name="every chunk holds a layer",
        reason=f"{layers} layers are split over pp * vpp chunks",
        reads=("pipeline_parallel_size", "virtual_pipeline_size"),
        violated=lambda c: c.pipeline_parallel_size * c.virtual_pipeline_size > chunks,
        form=(f"pp * vpp <= {chunks}",),
    )
    model = problem.model
    reused = model.indexer is not None and model.indexer.reusing_layers
    if model.layer_embedding_size or model.borrowing_layers or reused:
        yield Rule(
            name="layers with separate embeddings or shared keys are on one stage",
            reason="later stages would need the first stage's lookups or another stage's keys",
            reads=("pipeline_parallel_size",),
            violated=lambda c: c.pipeline_parallel_size > 1,
            form=("pp == 1",),
        )
    yield Rule(
        name="interleaving needs two stages",
        reason="chunks of one stage have nothing to interleave with",
        reads=("pipeline_parallel_size", "virtual_pipeline_size"),
        violated=lambda c: (c.virtual_pipeline_size > 1) & (c.pipeline_parallel_size == 1),
        form=("vpp == 1 or pp > 1",),
    )
    yield Rule(
        name="interleaving needs num_microbatches to be a multiple of pipeline_parallel_size",
        reason="the interleaved schedule runs micro-batches in groups of pipeline_parallel_size",
        reads=("pipeline_parallel_size", "pipeline_schedule", "num_microbatches"),
        violated=lambda c: runs_in_groups(c) & (c.num_microbatches % c.pipeline_parallel_size != 0),
        form=(f"({among('pipeline_schedule', IN_GROUPS)}) => num_microbatches % pp == 0",),
    )
    yield Rule(
        name="the schedule fits the stages",
        reason="no schedule without stages, 1f1b and similar with one chunk per stage, interleaved ones "
        "with more",
        reads=("pipeline_parallel_size", "virtual_pipeline_size", "pipeline_schedule"),
        violated=lambda c: ~takes_all_chunks(c),
    )
    yield Rule(
        name="dualpipe_v needs two micro-batches for each stage",
        reason="each stage has two chunks, and its schedule needs a micro-batch for each of them",
        reads=("pipeline_parallel_size", "pipeline_schedule", "num_microbatches"),
        violated=lambda c: needs_two_a_stage(c) & (c.num_microbatches < 2 * c.pipeline_parallel_size),
        form=("pipeline_schedule == 'dualpipe_v' => num_microbatches >= 2 * pp",),
    )
    yield Rule(
        name="a split backward pass recomputes no whole layers",
        reason="the weight gradients need the activations that recomputation would discard",
        reads=("pipeline_schedule", "recompute"),
        violated=lambda c: splits_backward(c) & (c.recompute == _FULL),
        form=(f"recompute_granularity == 'full' => {among('pipeline_schedule', SPLIT_BACKWARD, '!=')}",),
    )
    yield Rule(
        name="recompute_layers fits the smallest chunk",
        reason="the same number of layers is recomputed in every chunk",
        reads=("pipeline_parallel_size", "virtual_pipeline_size", "recompute_layers"),
        violated=lambda c: (
            (c.recompute_layers < ALL_LAYERS)
            & (c.recompute_layers > layers // (c.pipeline_parallel_size * c.virtual_pipeline_size))
        ),
        form=(f"recompute_layers == {layers} or recompute_layers <= {layers} // (pp * vpp)",),
    )


def _repeated_order(c: Columns) -> BoolArray:
    """Mark rows with an order that numbers every rank as an earlier order does."""
    repeated = np.zeros(len(c), dtype=np.bool_)
    for order in range(int(c.rank_order.max(initial=0))):
        repeated |= (order < c.rank_order) & same_ranks(c, c.rank_order, order)
    return repeated


_STATED = 12  # numbers that a form lists; more are told by the rows alone


def _batch_rules(problem: Problem) -> Iterator[Rule]:
    batches = batch_sizes(problem)
    yield Rule(
        name=BATCH_RULE,
        reason=f"a step processes {_all_of(batches)} sequences, no more and no fewer",
        reads=("data_parallel_size", "micro_batch_size", "num_microbatches"),
        violated=lambda c: ~is_one_of(c.global_batch_size, batches),
        form=(among("global_batch_size", batches),) if len(batches) <= _STATED else (),
    )
    yield Rule(
        name="weight_shard_size divides data_parallel_size",
        reason="ranks that share dense weights train on different sequences",
        reads=("data_parallel_size", "weight_shard_size"),
        violated=lambda c: c.data_parallel_size % c.weight_shard_size != 0,
        form=("dp % ws == 0",),
    )
    yield Rule(
        name="expert_weight_shard_size divides the ranks that replicate an expert",
        reason="tp * cp * dp / (ep * expert tp) ranks have the same experts"
        if problem.model.moe
        else "a dense model has no experts to shard",
        reads=(
            "tensor_parallel_size",
            "context_parallel_size",
            "data_parallel_size",
            "expert_parallel_size",
            "expert_tensor_parallel_size",
            "expert_weight_shard_size",
        ),
        violated=lambda c: (
            (c.expert_weight_shard_size > 1) & (_uneven_expert_shards(c) | (problem.model.moe is None))
        ),
        form=("ews == 1 or tp * cp * dp >= ep * etp and tp * cp * dp // (ep * etp) % ews == 0",)
        if problem.model.moe
        else ("ews == 1",),
    )
    yield Rule(
        name="zero_shard_size divides the ranks that share weights",
        reason="all shard sets have equal sizes, also of experts",
        reads=(
            "tensor_parallel_size",
            "context_parallel_size",
            "expert_parallel_size",
            "expert_tensor_parallel_size",
            "data_parallel_size",
            "weight_shard_size",
            "expert_weight_shard_size",
            "zero_stage",
            "zero_shard_size",
        ),
        violated=_uneven_shards,
    )


def _uneven_expert_shards(c: Columns) -> BoolArray:
    replicas = c.tensor_parallel_size * c.context_parallel_size * c.data_parallel_size // c.expert_ranks
    return np.asarray(np.maximum(replicas, 1) % c.expert_weight_shard_size != 0)


def _uneven_shards(c: Columns) -> BoolArray:
    """Mark rows with shard sets of one rank, or that do not make up dp * cp or an expert's ranks."""
    ranks = c.replicating_ranks
    replicas = np.maximum(ranks // c.zero_shard_size, 1)
    experts = c.tensor_parallel_size * c.context_parallel_size * c.data_parallel_size
    experts = experts // (c.expert_ranks * c.expert_weight_shard_size)
    alone = (c.zero_shard_size == 1) & (ranks > 1)  # shards nothing
    uneven = (ranks % c.zero_shard_size != 0) | (experts % replicas != 0)
    return np.asarray((c.zero_stage > 0) & (uneven | alone))


def launch_rules(problem: Problem, able: Capabilities) -> tuple[Rule, ...]:
    """Return the rules of what a launcher runs, whatever the request asks for and the hosts can hold."""
    groups = (
        _size_rules(problem),
        _pipeline_rules(problem),
        _batch_rules(problem),
        launcher_rules(problem, able),
    )
    return tuple(rule for group in groups for rule in group)


@remembered
def rules_of(problem: Problem) -> tuple[Rule, ...]:
    """Return every rule of a problem, in a fixed order; rule b is bit b of a row's mask.

    Raises:
        UnknownNameError: the launcher's limits are not known.
        ExpressionError: a constraint of the request is not an expression.
    """
    able = launcher_capabilities(problem.launcher)
    order = Rule(
        name="rank_order puts some rank elsewhere",
        reason=f"if several orders number the ranks equally, use the first: {', '.join(RANK_ORDERS)}",
        reads=(
            "tensor_parallel_size",
            "context_parallel_size",
            "data_parallel_size",
            "weight_shard_size",
            "pipeline_parallel_size",
            "rank_order",
        ),
        violated=_repeated_order,
    )
    groups = (
        _size_rules(problem),
        _pipeline_rules(problem),
        [order],
        host_rules(problem),
        _batch_rules(problem),
        launcher_rules(problem, able),
        request_rules(problem),
    )
    return tuple(rule for group in groups for rule in group)


def broken_rules(problem: Problem, config: Configuration) -> list[str]:
    """Return the names of the rules that a configuration breaks on any node group, each once."""
    found = dict[str, None]()
    for on, mesh in meshes_of(problem, config):
        rules = rules_of(on)
        mask = int(violation_masks(rules, Columns.of([mesh]))[0])
        found |= {rule.name: None for bit, rule in enumerate(rules) if mask >> bit & 1}
    return list(found)


def stopping_rules(problem: Problem, config: Configuration) -> tuple[Rule, ...]:
    """Return the broken rules that keep a run from starting, in the order in which they are causes."""
    found = dict[str, Rule]()
    for on, mesh in meshes_of(problem, config):
        row = Columns.of([mesh])
        found |= {
            rule.name: rule for rule in _size_rules(on) if rule.stops_start and rule.violated(row).any()
        }
    return tuple(found.values())


_BITS = 62  # of a mask in 64: one is the sign's, one may be memory's (``solver/explain/infeasible.py``)


def violation_masks(rules: tuple[Rule, ...], columns: Columns) -> IntArray:
    """Return masks: bit b of entry i: row i breaks rule b; Python's integers if rules are many."""
    entry: Any = np.int64 if len(rules) <= _BITS else np.object_
    masks: IntArray = np.zeros(len(columns), dtype=entry)
    for start in range(0, len(masks), _CHUNK):
        look()
        part = columns.take(piece := slice(start, start + _CHUNK))
        for bit, rule in enumerate(rules):
            masks[piece] |= rule.violated(part).astype(entry) << bit
    return masks
