"""Points at which gradients are reduced and weights gathered, over several micro-batches, by ZeRO stage.

Each framework's facts (``reduced_every_pass`` and those behind it) cite its source. Under
``torch.distributed.pipelining`` (torch 2.13) all ZeRO stages behave as one: ``stage.py:845-847`` switches
reduction and resharding off in every backward pass, so that whole gradients add up in the dtype that they
are reduced in (``fsdp/_fully_shard/_fsdp_param.py:802-820``), and ``perform_reduce_grad``
(``stage.py:1162-1195``) reduces them once, behind the last backward pass of their chunk
(``schedules.py:1252 _add_reduce_grad``), while the rank waits.
"""

from __future__ import annotations

import numpy as np

from meshwright.solver.configuration import SCHEDULES, BoolArray, FloatArray, IntArray, is_one_of
from meshwright.solver.cost.context import SHARD_GRADIENTS, SHARD_WEIGHTS, Context, once

# torch's runtime of several chunks a rank keeps the weights of so many chunks, those that it computes with
# next (torch 2.13, distributed/pipelining/schedules.py:1290 _add_unshard_reshard, max_active_stages).
_ACTIVE_CHUNKS = 3.0
_GATHERED_IN_8_BITS = ("none", "fp8-delayed", "fp8-current", "fp8-blockwise")  # recipes
_BREADTH_FIRST = SCHEDULES.index("looped_bfs")
_ALL_FORWARD_FIRST = np.array([name in ("gpipe", "looped_bfs") for name in SCHEDULES])
_CHUNK_AFTER_CHUNK = np.array([
    name in ("interleaved_1f1b", "looped_bfs", "interleaved_zb") for name in SCHEDULES
])  # fmt: skip
_WEIGHTS_APART, _V = SCHEDULES.index("interleaved_zb"), SCHEDULES.index("zb_v")


@once
def in_torch_pipeline(ctx: Context) -> BoolArray:
    """Mark rows with stages that shard gradients or weights under torch's pipeline runtime."""
    if not ctx.facts.torch_pipelines:
        return np.zeros(len(ctx.columns), dtype=np.bool_)
    return np.asarray((ctx.p > 1) & (ctx.columns.zero_stage >= SHARD_GRADIENTS))


@once
def reduces_every_pass(ctx: Context) -> BoolArray:
    """Mark rows that reduce gradients after every micro-batch rather than once a step."""
    every = is_one_of(ctx.columns.zero_stage, ctx.facts.reduced_every_pass)
    return np.asarray(every & ~((ctx.p > 1) & ctx.facts.torch_pipelines))


@once
def adds_whole_gradients(ctx: Context) -> BoolArray:
    """Mark rows that keep whole gradients from one micro-batch to the next."""
    added = ~reduces_every_pass(ctx) & (ctx.columns.num_microbatches > 1)
    return np.asarray((ctx.columns.zero_stage < SHARD_GRADIENTS) | added | in_torch_pipeline(ctx))


@once
def copies_of_gradients(ctx: Context) -> FloatArray:
    """Count a rank's copies of whole gradients: again in the buckets that replicas reduce, shape (n,)."""
    again = ctx.facts.reduces_copies & (ctx.columns.zero_stage == 0) & (ctx.data_group.size > 1)
    return np.where(again, 2.0, 1.0)


@once
def all_reduces(ctx: Context) -> BoolArray:
    """Mark rows with all-reduced gradients, not reduced and scattered ones."""
    return is_one_of(ctx.columns.zero_stage, (0, *ctx.facts.all_reduced_stages))


@once
def hides_reductions(ctx: Context) -> BoolArray:
    """Mark rows that reduce gradients under the backward pass."""
    waits = is_one_of(ctx.columns.zero_stage, ctx.facts.blocking_stages) | in_torch_pipeline(ctx)
    return np.asarray(~waits & ctx.facts.overlap_gradients)


@once
def gradient_bytes_sent(ctx: Context) -> FloatArray:
    """Return the bytes of one gradient element on the wire, shape (n,)."""
    alone = ctx.columns.zero_stage == 0
    return np.where(alone, ctx.facts.replicated_gradient_bytes, ctx.facts.reduced_gradient_bytes)


def gathered_bytes(ctx: Context) -> float:
    """Return the bytes of one weight of a layer on the wire if weights are gathered.

    Weights that are held in 8 bits travel so (Megatron-Core 0.16 ``--fp8-param-gather``), but for MXFP8's,
    which are cast behind a gather of 2 bytes (``reuse_grad_buf_for_mxfp8_param_ag``). torchao's travel so,
    and nothing else is left of them (0.18 ``float8/fsdp_utils.py``).
    """
    held = ctx.facts.low_precision_weights and ctx.facts.precision_recipe in _GATHERED_IN_8_BITS
    return 1.0 if ctx.low_precision and (held or ctx.facts.gathers_8_bits) else 2.0


def gathered_expert_bytes(ctx: Context) -> float:
    """Return that of routed experts: torchao gathers 2 bytes (0.18 ``moe_training/tensor.py:166``)."""
    return 2.0 if ctx.facts.gathers_8_bits else gathered_bytes(ctx)


@once
def gathers_once(ctx: Context) -> BoolArray:
    """Mark rows that gather weights once a step, in addition to ``gathers_in_passes``."""
    stage = ctx.columns.zero_stage
    whole = (stage == 1) | ((stage == SHARD_GRADIENTS) & (not ctx.facts.reshards_after_backward))
    return np.asarray(whole | in_torch_pipeline(ctx))


@once
def gathers_in_passes(ctx: Context) -> tuple[FloatArray, FloatArray]:
    """Count how often a micro-batch gathers a layer's weights: in forward, in backward passes.

    ZeRO-3 gathers in both. Under torch's runtime weights stay after a backward pass until the next forward
    pass drops them, so ``m`` forward and ``m`` backward passes gather ``m + 1`` times; the one in addition
    is ``gathers_once``'s. ZeRO-2 gathers ``_gathers_of_chunks`` times there.
    """
    stage, m = ctx.columns.zero_stage, np.maximum(ctx.columns.num_microbatches, 1)
    torch = in_torch_pipeline(ctx)
    sharded = stage == SHARD_WEIGHTS
    again = np.where(sharded, 1.0, (_gathers_of_chunks(ctx) - 1.0) / m)
    first = _ALL_FORWARD_FIRST[ctx.columns.pipeline_schedule] | ~sharded
    dropped = (stage == SHARD_GRADIENTS) & ctx.facts.reshards_after_backward
    forward = np.where(torch, again * first, np.where(sharded | dropped, 1.0, 0.0))
    backward = np.where(torch, again * ~first, np.where(sharded, 1.0, 0.0))
    return forward, backward


@once
def moves_weights_in_passes(ctx: Context) -> bool:
    """Return whether some row gathers weights or reduces gradients in passes, as ZeRO-3 does."""
    forward, backward = gathers_in_passes(ctx)
    return bool(forward.any() or backward.any() or reduces_every_pass(ctx).any())


def _gathers_of_chunks(ctx: Context) -> FloatArray:
    """Count a step's gathers of a chunk that torch's runtime keeps while it is among the next.

    Up to three chunks a rank stay for the whole step. Of more, v, one is fetched and one dropped with
    nearly every change of chunk: ``2 v - 3`` fetches where all micro-batches run a chunk together, and
    ``2 g (v - 3) + 7`` (5 with weight gradients apart) in g > 1 groups of micro-batches.
    """
    v = ctx.columns.virtual_pipeline_size.astype(np.float64)
    more = np.where(ctx.columns.pipeline_schedule == _WEIGHTS_APART, 5.0, 7.0)
    apart = 2.0 * _groups(ctx) * (v - _ACTIVE_CHUNKS) + more
    fetches = np.where(_pass_together(ctx), 2.0 * v - 3.0, apart)
    return np.where(v > _ACTIVE_CHUNKS, fetches / v, 1.0)


def _groups(ctx: Context) -> IntArray:
    """Count groups of micro-batches that go through all chunks of a rank in turn, shape (n,)."""
    return np.asarray(np.maximum(ctx.columns.num_microbatches // ctx.columns.pipeline_parallel_size, 1))


def _pass_together(ctx: Context) -> BoolArray:
    """Mark rows with micro-batches that all finish a chunk before any begins the rank's next one."""
    return np.asarray((_groups(ctx) == 1) | (ctx.columns.pipeline_schedule == _BREADTH_FIRST))


@once
def turns(ctx: Context) -> dict[str, FloatArray]:
    """Return rows and ranks with chunks that reduce gradients in turn, as fields of RowPrices, (n,) each.

    Those of every rank (1: some rank has several chunks' at once), and the first ranks of which it is so.
    The last chunk is first. Where groups of micro-batches pass the chunks again, the last backward passes
    of all come at the step's end, when every chunk has gradients. In a V rank r makes ``p - r`` backward
    passes of its second chunk before the first one of its first (torch 2.13,
    distributed/pipelining/schedules.py:3296 ``warmup_n3``), and few micro-batches have no more.
    """
    c, here = ctx.columns, in_torch_pipeline(ctx)
    every = here & _one_after_the_other(ctx)
    few = np.maximum(c.pipeline_parallel_size - c.num_microbatches + 1, 0)
    some = np.where(here & (c.pipeline_schedule == _V), few, 0)
    return {
        "turns": np.where(every, c.virtual_pipeline_size, 1).astype(np.float64),
        "ranks_in_turn": np.where(every, c.pipeline_parallel_size, some).astype(np.float64),
    }


@once
def share_gathered(ctx: Context) -> FloatArray:
    """Return the share of a rank's layers that torch's pipeline runtime holds whole; 0 elsewhere.

    After a backward pass all of a chunk's are, whether or not forward passes drop them. Where these do
    (ZeRO-3) and all passes of a chunk come before the next one's, a chunk's go with its last backward pass:
    two of those to come are there, too, but for the last three, which were gathered before forward passes.
    """
    chunks = ctx.columns.virtual_pipeline_size
    dropped = (ctx.columns.zero_stage == SHARD_WEIGHTS) & _one_after_the_other(ctx)
    held = np.where(dropped, np.clip(chunks - 2.0, 1.0, _ACTIVE_CHUNKS), _ACTIVE_CHUNKS)
    return np.where(in_torch_pipeline(ctx), np.minimum(held / chunks, 1.0), 0.0)


def _one_after_the_other(ctx: Context) -> BoolArray:
    """Mark rows with backward passes of a chunk all before those of the rank's next one."""
    return np.asarray(_pass_together(ctx) & _CHUNK_AFTER_CHUNK[ctx.columns.pipeline_schedule])


def reducing_bytes(
    ctx: Context, head: FloatArray | float, layer: FloatArray, replayed: FloatArray, freed: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return whole gradients' bytes under ZeRO-2 and 3 on top of the rest: (n,) at the head, at layers.

    FSDP's groups, the head and then layers, give up 2-byte weights behind their backward passes and copy
    2-byte gradients into the input of a reduction, which is freed when the next group reduces (torch 2.13,
    ``fsdp/_fully_shard/_fsdp_param_group.py:637-656``, ``_fsdp_collectives.py:597 foreach_reduce``).
    Gradients that add up whole have their sum among the states: 2 bytes come and go. At layers it is the
    most of four moments: start and end of the last one, its reduction, and the start of the next.

    ZeRO-3 has gathered the last layer by then (torch prefetches it in ``pre_backward``), and what buffers
    hold of layers is not there yet. A tied matrix is one group with the embedding: gathered weights and
    2-byte gradients stay until its last backward pass adds those of both ends to a third, when no
    activations are left.

    Args:
        ctx: the rows.
        head: weights of the output matrix on a rank, (n,); a tied one's, too.
        layer: those of the largest layer.
        replayed: bytes that a layer's pass begins with.
        freed: bytes of activations that are gone behind a layer's pass.
    """
    stage, tied = ctx.columns.zero_stage, ctx.model.tied_embeddings
    rows = ~in_torch_pipeline(ctx) & ctx.facts.reshards_after_backward
    each = np.where(adds_whole_gradients(ctx), 2.0, ctx.facts.reduced_gradient_bytes)
    apart = head * (not tied)
    last = np.maximum(replayed, 2.0 * layer - freed) + (each - 2.0) * apart
    following = np.maximum(each * layer, replayed + (each - 2.0) * layer) - freed - 2.0 * apart
    of_layers, own = np.maximum(last, following), ctx.facts.gradient_bytes * layer
    if tied:
        at_head = 8.0 * head - own - freed * ctx.model.num_layers
        at_layers = 4.0 * head + replayed - np.minimum(own, freed)
    else:
        reduced = 2.0 + each + each / ctx.dense_replicas.sharing
        at_head = reduced * head - own - gathered_bytes(ctx) * (ctx.facts.gathered_layers - 1.0) * layer
        at_layers = each * head - own + np.maximum(replayed, 2.0 * layer - freed)
    second = rows & (stage == SHARD_GRADIENTS)
    third = rows & (stage == SHARD_WEIGHTS) & ~adds_whole_gradients(ctx)
    return (
        np.where(second, each * apart, np.where(third, at_head, 0.0)),
        np.where(second, of_layers, np.where(third, at_layers, 0.0)),
    )
