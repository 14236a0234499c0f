"""Speed at which a CPU launches the GPU's kernels: the floor under the passes of small models.

A pass is never shorter than its launches take. They are counted by what a layer runs, in operators of a
forward pass; ``floor_s`` is what those of a dense layer take. A captured graph replays what it holds as one
(Megatron-Core's guide on CUDA graphs: parts of a layer; or a whole iteration but the optimizer).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.profiles.adapters import adapted_layers
from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.model import LayerKind
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.storage import storage_of
from meshwright.solver.configuration import BoolArray, FloatArray
from meshwright.solver.cost.context import Context, PassSeconds, experts_overlap, on_slowest
from meshwright.solver.cost.fake_quantization import fake_kernels
from meshwright.solver.cost.losses import loss_is_read
from meshwright.solver.cost.parameters import STACKED_TENSORS, Part
from meshwright.solver.cost.scores import eager_scores
from meshwright.solver.cost.ways import each_way

# Operators of a dense layer's forward pass: norm, one product for queries, keys and values, two rotations,
# attention, its projection, its sum with the residual; norm, two products, activation and sum of the MLP,
# and what lies between (Transformer Engine's modules in Megatron-LM d98e8a64 ``attention.py``, ``mlp.py``).
# A framework of more states them (``layer_operators``).
_ATTENTION, _MLP = 8.0, 6.0
DENSE = _ATTENTION + _MLP
# Latent attention projects down and up, norms its latents, rotates and copies parts of heads
# (``multi_latent_attention.py``); a norm of queries and one of keys.
_LATENT, _HEAD_NORMS = 10.0, 2.0
# Scaled rotations of queries and keys by single operators, beyond their two kernels: cosines and sines (a
# function, a product and a cast each), two products, a negation, two concatenations and a sum.
_SCALED_ROTATIONS = 2.0 * (6.0 + 6.0 - 1.0)
# A mixer has a convolution, two norms of keys and queries, their copies for every head, a gate and a decay,
# five or six kernels of its scan and a gated norm where attention has two rotations and a kernel
# (Megatron-LM ``ssm/gated_delta_net.py``).
_MIXER = 12.0
# Latents, keys and entries: two products each, norms, a softmax, its product and sum, rotations, and what
# an indexer chooses (transformers 5.23 ``DeepseekV4Attention``). Hyper-connections of two blocks: a norm, a
# product, weights of 9 and 12 operators, 19 rounds of Sinkhorn's of 6, and the mixture of 8; one kernel and
# a half of each block where they are fused.
# Sums of blocks are joined, cast, squared, averaged, normed, weighed and added in 12 operators, or in one
# kernel, before attention and before the MLP (Megatron-Bridge 0.7 ``kimi_k3_ops.py attn_res_aggregate``).
_SUMS, _SUMS_FUSED = 2.0 * 12.0, 2.0
_ENTRIES, _HYPER, _HYPER_FUSED = 24.0, 2.0 * (7.0 + 9.0 + 12.0 + 19.0 * 6.0 + 8.0), 6.0
# A diffusion transformer's block scales and shifts a norm and scales what it adds; both of two blocks, and
# the vectors of the sample are added to a table and taken apart (diffusers 0.42 ``transformer_wan.py``).
_MODULATION = 8.0
# A router casts, multiplies and adds up its losses; its scores become a map of tokens and their weights, in
# one kernel where it is fused (``moe_utils.py topk_routing_with_score_function``, ``group_limited_topk``).
_ROUTED, _ROUTED_FUSED = 16.0, 7.0  # norm in front and sum behind, product, casts, losses; losses fused
_SCORES: Mapping[str, float] = {"softmax": 9.0, "sigmoid": 14.0, "sparsemixer": 14.0, "sqrtsoftplus": 15.0}
_SELECTION_BIAS, _LIMITED_GROUPS = 5.0, 9.0
# Around experts: sizes counted and exchanged (``preprocess``); tokens permuted, exchanged with their
# weights, sorted by expert, and all of it back; sizes copied to the host (``token_dispatcher.py``). What
# remains on a rank with all experts is permuted alone; an all-gather takes tokens, map and weights; DeepEP
# and HybridEP count and permute inside.
_SIZES: Mapping[str, float] = {"alltoall": 8.0, "allgather": 2.0, "deepep": 3.0, "hybridep": 3.0}
_DISPATCH: Mapping[str, float] = {"alltoall": 18.0, "allgather": 6.0, "deepep": 9.0, "hybridep": 9.0}
_SIZES_ALONE, _PERMUTE_ALONE = 3.0, 6.0
# index_select, masked_select, scatter_add and casts for each fused kernel: four of an all-to-all, else two.
_UNFUSED: Mapping[str, float] = {"alltoall": 13.0, "allgather": 6.0}
_UNFUSED_ALONE = 6.0
_EXPERTS, _SHARED = 3.0, 4.0  # grouped products and the activation; two products, activation, sum
# Layers that are cut to run under one another: five pieces, each with an event to wait for and one to
# record (``core/models/common/model_chunk_schedule_plan.py``,
# ``core/pipeline_parallel/utils.py ScheduleNode``).
_PIECES = 10.0
# Kernels that loops in C++ launch for each expert of a rank: products on several streams, casts and orders
# of scales in 8 or 4 bits, and of biases three operators for each product (``experts.py _apply_bias``).
_PRODUCTS, _CASTS, _BIASES = 2.0, 4.0, 6.0
# Share of launches that is left where whole layers, or whole iterations, are captured, and operators that
# start the graph of a part: copies into its static inputs, the replay.
_LAYER_LEFT: Mapping[Part, float] = {"dense": 0.15, "moe": 0.25}
_ITERATION_LEFT = 0.03
_REPLAY = 1.0
# A blocking launch returns when its kernel has ended: each kernel waits for a launch and a synchronisation.
# Four floors on top of the kernels is what the open runs under it show next to those of the same software
# without it: of 3 to 6 it predicts clusters left out best.
_BLOCKED = 4.0
# Kernels of a layer of transformers 5.17, which torch launches one by one, by a dispatch mode: Llama,
# Qwen3, Mixtral, Qwen3-MoE and, with adapters, peft 0.21.2, in fp32 under autocast and in bf16. A Llama
# layer has 48 and 38. The host's time goes with the calls of operators, views included, of which a
# product has four (transpose, flatten, multiply, unflatten) and attention's heads 18: 87 and 77 of Llama,
# 129 and 125 of Gemma 3. ``layer_launch_s`` is what the 48 calls (22 kernels) of a layer of plain torch
# take.
_PLAIN = 48.0
_VIEWS_OF_PRODUCT, _VIEWS_OF_HEADS = 3.0, 18.0
_SINGLE_NORM, _NORM_CASTS = 6.0, 2.0  # power, mean, sum, root, two products; from 2 bytes to fp32 and back
_CENTRED = 1.0  # one more, added to the weight, which is cast from 2 bytes (``models/gemma2``)
_SINGLE_ROTARY, _ROTARY = 10.0, 2.0  # of queries and of keys: two products, negation, concatenation, sum
_ROTATED = 2.0  # casts of what fp32 cosines have rotated
_ADAPTER, _ADAPTER_CASTS = 4.0, 4.0  # two products, scale, sum; casts of input, to and fro, and of matrices
# OFT: zeros, half, difference, unit matrix and its copy, 4 sums, 3 products; a product, a copy
_ROTATION, _ROTATION_CASTS = 14.0, 9.0
_NORMED, _NORMED_CASTS = 11.0, 3.0  # DoRA: unit matrix, two products, norm and scale; casts to fp32
_GROUPED_EXPERTS = 29.0  # router, sorting, two grouped products, and back (``integrations/moe.py``)
# What else the host does for them, sorting above all: few tokens take 1.78 ms on an H100's host, as 99
# calls do (benchmarks/data/experts.jsonl: 32 experts of 4,096 tokens, grouped or copied for each token).
_GROUPED_VIEWS = 99.0 - _GROUPED_EXPERTS
_LOOP, _LOOPED_EXPERT = 18.0, 17.0  # router and masks; each expert finds, reads, multiplies and adds tokens
_SINGLE_BACKWARD, _FROZEN_BACKWARD = 1.85, 1.54  # of the forward pass's calls; without weight gradients
# Issuing a checkpointed layer's forward pass again over issuing it first: hooks of every saved tensor
# (torch 2.13 ``utils/checkpoint.py``, without reentrance). The mean of 36 timed layers, of which the
# median has 1.57: ``host_s`` of recompute_backward less backward, over forward
# (benchmarks/data/measured_here). A first pass runs one of the two hooks of a tensor, half of what is
# more.
_REPLAYED, _HOOKED = 1.56, 1.28
# Keys and values for every head of queries; a mask of booleans in bf16: two scalars, and what they choose.
_REPEATED, _MASK = 2.0, 3.0
# A softmax of five kernels (``fused_softmax.py forward_torch_softmax``), not one.
_EAGER_SOFTMAX = 4.0


@each_way
def layer_floor_s(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return the seconds that launching one layer's forward pass takes, whatever its tensor-parallel size.

    Where the CPU waits for every message between stages on other islands, it cannot run ahead of the GPU,
    and neither can the ranks with collectives that wait for it: ``floor_across`` times as long, and
    ``floor_tensor`` more of that for each further tensor-parallel rank. A framework with launches of its
    own (``layer_launch_s``) takes them for a dense layer; what experts add, it launches as its stack
    launches a dense layer.
    """
    modules = runs_modules(ctx)
    floor_s: FloatArray | float = 0.0
    if modules.any():
        own = ctx.facts.layer_launch_s / _PLAIN
        floor_s = own * calls_of_modules(ctx, kind) + _ungrouped_s(ctx, kind)
    if not modules.all():
        floor_s = np.where(modules, floor_s, _floor_of_frameworks_s(ctx, kind))
    return np.asarray(floor_s * _slower(ctx) * ctx.operators.host)


def _floor_of_frameworks_s(ctx: Context, kind: LayerKind) -> FloatArray | float:
    facts, constants, moe = ctx.facts, ctx.constants, ctx.model.moe
    each = constants.floor_s / DENSE
    own = facts.layer_launch_s or constants.floor_s * facts.layer_operators / DENSE
    floor_s: FloatArray | float
    if kind == "dense" or moe is None:
        paired = _ATTENTION if ctx.model.paired else 0.0
        more = each * (_MIXER + paired) if ctx.model.mixes or paired else 0.0
        more += each * _SCALED_ROTATIONS * ctx.rotates_apart
        if ctx.model.diffusion:  # norms scaled and shifted, sums scaled, and an attention to a context
            more = each * (_MODULATION + _ATTENTION * bool(ctx.model.crossing))
        blocks = _ATTENTION * ctx.model.mixes_tokens + _MLP * ctx.model.has_mlp
        floor_s = (own * (blocks / DENSE) + more) * launches_left(facts, "dense")
    else:
        operators = _left(facts, _expert_layer(ctx, moe))
        further = own + each * np.maximum(operators - DENSE, 0.0)
        counted = each * constants.floor_moe * operators
        floor_s = (further if facts.layer_launch_s else counted) + _looped_s(ctx, moe)
    return floor_s + np.where(ctx.eager_softmax, own / DENSE * _EAGER_SOFTMAX, 0.0)


def runs_modules(ctx: Context) -> BoolArray:
    """Mark rows with layers of transformers' modules, all experts of a layer on one rank, (n,)."""
    able = ctx.facts.separate_projections and ctx.facts.layer_launch_s > 0.0
    return np.asarray((ctx.e == 1) & able if ctx.model.moe else np.full(len(ctx.t), able))


def kernels_of_modules(ctx: Context, kind: LayerKind) -> FloatArray:
    """Count the kernels of the forward pass of a layer of transformers' modules, shape (n,)."""
    model, wide, single = ctx.model, ctx.wide_rows, np.asarray(ctx.single_elementwise)
    centred = _CENTRED * (model.zero_centered_norm and model.normalization == "rmsnorm")
    norm = 1.0 + np.asarray(ctx.single_norms) * (_SINGLE_NORM + centred - 1.0)
    casts = (_NORM_CASTS + centred) * np.asarray(ctx.single_norms)
    number = model.norms_of(kind) * (norm + casts * (1.0 - wide)) + model.num_blocks
    dense = [one for one in model.layer(kind).operators if one.block != "routed"]
    matrices = sum(len(one.matrices) for one in dense)
    reading = sum(len(one.matrices) for one in dense if one.reads_norm)  # each casts its rows
    number = number + matrices * (1.0 + ctx.wide_weights) + reading * wide
    # whose backward pass has as many kernels as it has, so both passes are counted, and shared out
    number = number + fake_kernels(ctx, matrices) / (1.0 + _SINGLE_BACKWARD)
    if ctx.frozen:
        adapters = sum(1.0 for _ in adapted_layers(model, kind, ctx.workload.lora_targets))
        normed = (_NORMED + _NORMED_CASTS * ctx.facts.autocasts) * ctx.facts.dora
        each = (_ROTATION, _ROTATION_CASTS) if ctx.facts.oft else (_ADAPTER, _ADAPTER_CASTS)
        number = number + adapters * (each[0] + each[1] * ctx.facts.autocasts + normed)
        storage = storage_of(ctx.held_precision)
        if storage is not None:
            number = number + storage.kernels * (
                STACKED_TENSORS * (kind == "moe") if storage.of_experts else matrices
            )
    if model.mixes_tokens:
        rotary = _ROTARY + single * (_SINGLE_ROTARY - _ROTARY)
        number = number + _core_kernels(ctx) + (rotary + _ROTATED * wide) * model.has_rotary_positions
        number = number + _HEAD_NORMS * (norm + casts) * (model.query_key_norm != "none")
        number = number + _LATENT * (model.mla is not None) + _MIXER * model.mixes
        number = number + _ENTRIES * (model.compression is not None)
    if model.hyper_streams:
        number = number + _HYPER_FUSED + single * (_HYPER - _HYPER_FUSED)
    if model.residual_block_layers:
        number = number + _SUMS_FUSED + single * (_SUMS - _SUMS_FUSED)
    activation = 1.0 + single * model.gated_mlp
    if kind == "dense" or (moe := model.moe) is None:
        return number + model.has_mlp * activation
    looped = ctx.loops_experts
    routed = _LOOP + _LOOPED_EXPERT * moe.num_experts if looped else _GROUPED_EXPERTS + wide
    return number + routed + (activation + 1.0) * (moe.num_shared_experts > 0)


def calls_of_modules(ctx: Context, kind: LayerKind) -> FloatArray:
    """Count the calls of torch's operators of that forward pass, shape (n,): kernels, and views between."""
    model = ctx.model
    dense = [one for one in model.layer(kind).operators if one.block != "routed"]
    products = float(sum(len(one.matrices) for one in dense))
    if ctx.frozen:
        products += 2.0 * sum(1.0 for _ in adapted_layers(model, kind, ctx.workload.lora_targets))
    views = _VIEWS_OF_PRODUCT * products + _VIEWS_OF_HEADS * model.mixes_tokens
    if kind == "moe" and model.moe is not None:  # a loop has as many views as kernels
        looped = ctx.loops_experts
        views += _LOOP + _LOOPED_EXPERT * model.moe.num_experts if looped else _GROUPED_VIEWS
    return kernels_of_modules(ctx, kind) + views


def _core_kernels(ctx: Context) -> FloatArray | float:
    """Count the kernels of scores and weighted values of a layer, (n,)."""
    repeated = _REPEATED * (ctx.model.num_kv_heads < ctx.model.num_attention_heads)
    if eager := eager_scores(ctx):
        return eager.kernels + repeated + 1.0  # and the output is laid out by tokens
    return 1.0 + ctx.repeats_keys * repeated + ctx.masked * _MASK


@on_slowest
def _ungrouped_s(ctx: Context, kind: LayerKind) -> FloatArray | float:
    """Return seconds of a loop over experts inside a grouped product that has no kernel of its own.

    Hopper and Blackwell have one of bf16 (torch 2.10 ``aten/src/ATen/native/cuda/GroupedBlas.cpp``).
    """
    if kind == "dense" or (moe := ctx.model.moe) is None or ctx.facts.grouped_gemm != "grouped":
        return 0.0
    if moe.runs_every_expert:
        return 0.0
    alone = ctx.gpu.architecture not in ("hopper", "blackwell")
    return np.maximum(ctx.wide_experts, alone) * _PRODUCTS * ctx.operators.launch_s * moe.num_experts


def _slower(ctx: Context) -> FloatArray | float:
    if not ctx.facts.synchronous_transfers:
        return 1.0
    waits = (ctx.p > 1) & (ctx.columns.num_gpus > ctx.fabric.lines.island_gpus)
    slower = ctx.constants.floor_across * (1.0 + ctx.constants.floor_tensor * (ctx.t - 1.0))
    return np.where(waits, slower, 1.0)


def issuing_left(ctx: Context, part: Part) -> FloatArray | float:
    """Return how long issuing a part takes, over issuing its kernels one by one without a wait."""
    left: FloatArray | float = launches_left(ctx.facts, part)
    if part == "moe" and ctx.model.moe is not None:
        operators = _expert_layer(ctx, ctx.model.moe)
        left = _left(ctx.facts, operators) / sum(operators.values(), np.zeros(1))
    return left * _slower(ctx)


def _expert_layer(ctx: Context, moe: MoeSpec) -> Mapping[str, FloatArray | float]:
    facts, model = ctx.facts, ctx.model
    attention = _ATTENTION + _LATENT * (model.mla is not None)
    attention += _HEAD_NORMS * (model.query_key_norm != "none") + _MIXER * model.mixes
    attention += _ENTRIES * (model.compression is not None)
    attention += _SCALED_ROTATIONS * ctx.rotates_apart
    attention *= model.mixes_tokens
    attention += _HYPER_FUSED * (model.hyper_streams > 0) + _SUMS_FUSED * (model.residual_block_layers > 0)
    scores = _SCORES[moe.router_score] + _SELECTION_BIAS * moe.selection_bias
    scores += _LIMITED_GROUPS * (moe.router_groups > 1)
    router = _ROUTED_FUSED if facts.moe_router_fusion else _ROUTED + scores
    exchanging = ctx.e > 1
    sizes = np.where(exchanging, _SIZES[facts.moe_dispatcher], _SIZES_ALONE)
    moved = np.where(exchanging, _DISPATCH[facts.moe_dispatcher], _PERMUTE_ALONE)
    if not (facts.moe_permute_fusion or facts.deduplicates):
        moved = moved + np.where(exchanging, _UNFUSED[facts.moe_dispatcher], _UNFUSED_ALONE)
    shared = _SHARED * (moe.num_shared_experts > 0)
    return {
        "attn": attention,
        "moe_router": router,
        "moe_preprocess": sizes,
        "moe": moved + _EXPERTS + shared,
        "": _PIECES * np.where(experts_overlap(ctx.columns, model), float(facts.overlap_experts), 0.0),
    }


def _left(facts: FrameworkFacts, parts: Mapping[str, FloatArray | float]) -> FloatArray:
    """Return operators that CUDA graphs leave of an expert layer; ``moe`` holds router and sizes, too."""
    whole = sum(parts.values(), np.zeros(1))
    if facts.cuda_graph in ("none", "layer", "full_iteration"):
        return np.asarray(whole * launches_left(facts, "moe"))
    captured = facts.cuda_graph.split("+")
    inside = {*captured, *(("moe_router", "moe_preprocess") if "moe" in captured else ())}
    left = sum((each for name, each in parts.items() if name not in inside), np.zeros(1))
    return np.asarray(left + _REPLAY * sum(name in parts for name in captured))


def _looped_s(ctx: Context, moe: MoeSpec) -> FloatArray | float:
    """Return seconds of launching kernels expert by expert; in no graph but that of ``moe``."""
    facts = ctx.facts
    if facts.cuda_graph == "full_iteration" or "moe" in facts.cuda_graph.split("+"):
        return 0.0
    kernels = 0.0 if facts.grouped_gemm == "grouped" and not ctx.low_precision else _PRODUCTS
    kernels += _CASTS * ctx.low_precision
    if facts.moe_grouped_mlp_fused:
        kernels = 0.0
    elif ctx.model.expert_bias_parameters():
        kernels += _BIASES
    return kernels * ctx.operators.launch_s * np.maximum(moe.num_experts / ctx.e, 1.0)


def launches_left(facts: FrameworkFacts, part: Part) -> float:
    """Return the share of a part's launches that CUDA graphs leave; of captured pieces, a dense layer's."""
    scope = facts.cuda_graph
    if scope == "full_iteration":
        return _ITERATION_LEFT
    if scope == "none" or part not in _LAYER_LEFT:
        return 1.0
    if scope == "layer":
        return _LAYER_LEFT["dense" if facts.moe_capacity_factor else part]
    captured = {"attn": _ATTENTION, "mlp": _MLP}
    of_dense = [captured[piece] - _REPLAY for piece in scope.split("+") if piece in captured]
    return 1.0 - sum(of_dense) / DENSE


def issued(ctx: Context, busy: PassSeconds, both_s: FloatArray) -> PassSeconds:
    """Return passes of a part that together take no less than issuing both; blocking launches come on top.

    The host runs ahead of the GPU: a delay in one pass is made up for in the other, so only the sum of the
    two is bounded. Measured ``busy`` seconds include the GPU's waits for its host.
    """
    own_s = busy.forward + busy.backward
    more_s = _BLOCKED * both_s if ctx.facts.launch_blocking else np.maximum(both_s - own_s, 0.0)
    longer = 1.0 + more_s / own_s
    return PassSeconds(forward=busy.forward * longer, backward=busy.backward * longer)


def launched(
    ctx: Context, kind: LayerKind, busy: PassSeconds, floor_s: FloatArray, ahead_s: FloatArray | float = 0.0
) -> PassSeconds:
    """Return passes of a layer that take at least their launches; blocking launches come on top.

    Where the CPU waits for the sizes of what experts exchange, it launches the rest of the layer anew: that
    is seen even where the layer's kernels take longer than its launches. ``ahead_s`` is the layer's share
    of the time by which the CPU is ahead when backward passes begin.
    """
    if ctx.facts.launch_blocking:
        waited = _BLOCKED * floor_s
        return busy + PassSeconds(forward=waited, backward=waited * _backward_over_forward(ctx))
    forward = _joined(ctx, kind, busy.forward, floor_s * _hooked(ctx))
    lead = ahead_s + surplus_s(ctx, forward, floor_s)
    return PassSeconds(forward=forward, backward=launched_backward(ctx, kind, busy.backward, floor_s, lead))


def launched_backward(
    ctx: Context, kind: LayerKind, busy_s: FloatArray, floor_s: FloatArray, lead: FloatArray | float
) -> FloatArray:
    """Return seconds of a layer's backward pass before which the CPU is ahead by ``lead`` seconds."""
    issued_s = floor_s * _backward_over_forward(ctx)
    if np.any(lead):
        issued_s = np.maximum(issued_s - lead, 0.0)
    return _joined(ctx, kind, busy_s, issued_s)


def _backward_over_forward(ctx: Context) -> FloatArray:
    """Return how much longer launching a layer's backward pass takes than its forward pass, (n,)."""
    of_modules = _FROZEN_BACKWARD if ctx.frozen else _SINGLE_BACKWARD
    return np.where(runs_modules(ctx), of_modules, ctx.constants.floor_backward)


def _hooked(ctx: Context) -> FloatArray:
    """Return how much longer launching a checkpointed layer's first forward pass takes, (n,)."""
    return np.where(ctx.full & runs_modules(ctx), _HOOKED, 1.0)


def launched_again(
    ctx: Context, kind: LayerKind, busy_s: FloatArray, floor_s: FloatArray, ahead_s: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Return seconds of a layer of transformers' modules that runs forward again, and the lead left behind.

    Args:
        ctx: the rows.
        kind: of the layer.
        busy_s: of the GPU, for what runs again.
        floor_s: of launching the first forward pass.
        ahead_s: the CPU's lead before it.
    """
    issued_s = _REPLAYED * floor_s
    seconds = _joined(ctx, kind, busy_s, np.maximum(issued_s - ahead_s, 0.0))
    return seconds, np.maximum(ahead_s + seconds - issued_s, 0.0)


def lead_s(ctx: Context, head: PassSeconds) -> FloatArray | float:
    """Return a layer's share of the time by which the CPU is ahead once the loss is launched, (n,).

    It launches the head's few kernels sooner than they end, on the only stage of a pipeline. A loss whose
    value is read waits: TRL's reads its metrics before the backward pass (1.16 ``trainer/sft_trainer.py
    compute_loss``: ``.item()``), Liger's counts labels before and compares a gradient behind (0.8.5
    ``ops/fused_linear_cross_entropy.py``: ``.item()``, ``torch.equal``).
    """
    modules = runs_modules(ctx)
    if not modules.any() or ctx.facts.launch_blocking or ctx.facts.loss_kernel == "liger":
        return 0.0
    seconds = head.backward + (0.0 if loss_is_read(ctx) else head.forward)
    return np.where((ctx.p == 1) & modules, seconds / ctx.model.num_layers, 0.0)


def surplus_s(ctx: Context, forward_s: FloatArray, floor_s: FloatArray) -> FloatArray | float:
    """Return how much longer than its launches a layer's forward pass takes; 0 where the loss is read."""
    modules = runs_modules(ctx)
    if not modules.any() or ctx.facts.loss_kernel == "liger" or loss_is_read(ctx):
        return 0.0
    ahead = np.maximum(forward_s - floor_s * _hooked(ctx), 0.0)
    return np.where((ctx.p == 1) & modules, ahead, 0.0)


@each_way
def _joined(ctx: Context, kind: LayerKind, busy_s: FloatArray, floor_s: FloatArray) -> FloatArray:
    padded = (
        ctx.facts.moe_capacity_factor or ctx.facts.moe_dispatcher == "allgather"
    )  # no sizes to wait for
    joined = _rounded_maximum if kind == "moe" and not padded else _smooth_maximum
    return joined(busy_s, floor_s)


def _smooth_maximum(seconds: FloatArray, floor_s: FloatArray) -> FloatArray:
    """Return ``(x^8 + floor^8)^(1/8)`` without overflow."""
    low, high = np.minimum(seconds, floor_s), np.maximum(seconds, floor_s)
    ratio = (low / high) ** 2
    ratio *= ratio
    ratio *= ratio
    return np.asarray(high * np.sqrt(np.sqrt(np.sqrt(1.0 + ratio))))


def _rounded_maximum(seconds: FloatArray, floor_s: FloatArray) -> FloatArray:
    """Return ``(x^3 + floor^3)^(1/3)``: a quarter more than either where both are equal."""
    return np.asarray(np.cbrt(seconds**3 + floor_s**3))
