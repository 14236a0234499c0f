"""Weights that one rank holds of a part of the model: dense ones and routed experts apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Literal

import numpy as np

from meshwright.profiles.adapters import (
    ATTENTION_INPUT,
    EMBEDDING,
    FUSED_TARGETS,
    HEAD,
    MLP_INNER,
    MLP_INPUT,
    NORMS,
    adapted_layers,
    adapter_parameters,
    base_bytes,
    block_of,
    copied_parameters,
    quantized_layers,
    scale_bytes,
    single_layers,
    stacked_experts,
)
from meshwright.profiles.cluster import BLACKWELL_12
from meshwright.profiles.layers.operators import Matrix
from meshwright.profiles.model import LayerKind, LayerShape, ModelSpec
from meshwright.profiles.storage import (
    STREAMED_EXPERTS,
    WHOLE_PRECISIONS,
    BasePrecision,
    is_checkpoints,
    is_cut,
    is_of_experts,
    is_packed,
    storage_of,
)
from meshwright.profiles.tower_modules import PROJECTOR
from meshwright.profiles.towers import TOWER_PARTS, FrozenPart
from meshwright.profiles.trained_layers import TRAINED
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.compute import Gemm, ends_unread, layer_gemms, routed_rows, wraps_experts
from meshwright.solver.cost.context import Context, on_slowest
from meshwright.solver.cost.sharding import SHARD_WEIGHTS
from meshwright.solver.cost.towers import tower_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Numbers of weights on one rank before any ZeRO sharding, shape (n,).

    Recipes that hold weights in 8 bits do so with layers alone: Megatron-Core 0.19 builds embedding and
    output matrix outside Transformer Engine's context of 8-bit weights (``transformer_block.py
    build_layer``, ``get_fp8_context(…, is_init=True)``).
    """

    dense: FloatArray  # replicated over dp * cp
    routed: FloatArray  # routed experts, replicated over the expert data group
    ends: FloatArray | float = 0.0  # of the dense ones, embedding and output; of trained ones, copies
    whole: FloatArray | float = 0.0  # of the dense ones, those that weight shards do not divide

    def __add__(self, other: Weights) -> Weights:
        return Weights(
            dense=self.dense + other.dense, routed=self.routed + other.routed,
            ends=self.ends + other.ends, whole=self.whole + other.whole,
        )  # fmt: skip

    def dense_bytes(self, each: float) -> FloatArray:
        """Return the bytes of the dense weights if a layer's take ``each``; those of the ends take 2."""
        return self.dense * each + self.ends * (2.0 - each)


def layer_weights(ctx: Context, kind: LayerKind) -> Weights:
    """Count one layer: matrices are split over tp, experts over ep and their own tp; norms are whole.

    So are biases of what is summed over tp ranks: of the output of attention, MLP and experts
    (Megatron-Core 0.19, ``RowParallelLinear``: "bias is not parallelized"), and latent attention's
    down-projections (``MLASelfAttention``: Transformer Engine's are ``parallel_mode = "duplicated"``).
    Weight shards divide matrices that are split; biases, norms and what is duplicated they leave whole
    (Megatron-LM d98e8a64 ``docs/api-guide/core/generalized_tensor_parallel.md``, sections 1.4 and 1.5).
    Attention sinks are split as heads are (``DotProductAttention``: ``softmax_offset``). An indexer is
    whole (``experimental_attention_variant/dsa.py``, ``DSAIndexer``: ``parallel_mode="duplicated"``).
    """
    layer = ctx.model.layer(kind)
    own, routed = layer.weights, np.zeros_like(ctx.t)
    if layer.experts:
        routed = layer.experts * (own.expert_split / ctx.et + own.expert_whole) / (ctx.e * ctx.ge)
    kept = own.split / ctx.t + own.whole
    return Weights(dense=own.sharded / (ctx.t * ctx.g) + kept, routed=routed, whole=kept)


def _vocabulary_matrix(ctx: Context) -> FloatArray:
    """Count the weights of an embedding or output matrix over all ranks, with its padding."""
    return ctx.padded_vocabulary * ctx.model.embedding_width


def _output_matrix(ctx: Context) -> FloatArray:
    """Count a rank's weights of the output matrix, which weight shards divide as well."""
    return ctx.padded_outputs * ctx.model.embedding_width / (ctx.vocabulary_ranks * ctx.g)


def embedding_weights(ctx: Context) -> Weights:
    """Count the embedding, split over tp by the padded vocabulary; learned positions are whole."""
    model = ctx.model
    positions = float(model.embedding_parameters - model.vocab_size * model.embedding_width)
    dense = _vocabulary_matrix(ctx) / (ctx.embedding_ranks * ctx.g) + positions
    return Weights(dense=dense, routed=np.zeros_like(ctx.t), ends=dense, whole=positions)


def tower_weights(ctx: Context, parts: Sequence[FrozenPart] = TOWER_PARTS) -> Weights:
    """Count the weights of a vision tower and its projector, or of one of these; 0 without a tower.

    Ranks that split the tower split matrices of layers and of the projector; both ends of it are whole.
    Weight shards leave a tower whole.
    """
    dense, tower = np.zeros_like(ctx.t), ctx.model.tower
    if tower is not None and "vision" in parts:
        own = ctx.model.tower_layers.layer("dense").weights
        dense = (
            tower.num_layers * ((own.sharded + own.split) / ctx.tower_t + own.whole + tower.layer_vectors)
            + tower.end_parameters()
        )
    if tower is not None and "projector" in parts:
        dense = dense + tower.projector_matrices / ctx.tower_t + tower.projector_vectors
    return Weights(dense=dense, routed=np.zeros_like(ctx.t), whole=dense)


def trained_first(ctx: Context) -> Weights:
    """Count the trained weights that precede the first layer: of a tower next to adapters its own ones."""
    embedding = trained_weights(ctx, embedding_weights(ctx), "embedding")
    trained = [part for part in TOWER_PARTS if part not in ctx.workload.frozen_parts]
    if ctx.model.tower is None:
        return embedding
    return embedding + tower_weights(ctx, trained) + _tower_adapters(ctx)


def _tower_adapters(ctx: Context) -> Weights:
    """Count the weights of adapters in a tower, split over tp as its layers are, and in its projector."""
    none, work = np.zeros_like(ctx.t), ctx.workload
    if not work.adapted_parts or (tower := ctx.model.tower) is None:
        return Weights(dense=none, routed=none)
    own = tower_context(ctx)
    layer = trained_weights(own, Weights(dense=none, routed=none), "dense").dense * own.frozen
    ends = adapter_parameters(
        ctx.model, work.lora_rank, (PROJECTOR,) if "projector" in work.adapted_parts else (),
        norms=ctx.facts.dora, rotates=ctx.facts.oft,
    )  # fmt: skip
    dense = tower.num_layers * layer + ends
    return Weights(dense=dense, routed=none, whole=dense)


def copied_embedding(ctx: Context) -> FloatArray:
    """Count weights of the last stage that also exist on the first one, shape (n,); none without stages.

    A tied output matrix, and the embedding that multi-token prediction looks its tokens up in: the last
    stage has a copy for each (Megatron-Core 0.19, ``GPTModel.__init__``: ``pre_process or mtp_process``,
    and an output layer, which lacks its weight only where ``pre_process`` is true).
    """
    model = ctx.model
    copies = int(model.tied_embeddings) + int(model.num_mtp_layers > 0)
    return np.where(ctx.ends_apart, copies * _output_matrix(ctx), 0.0)


def output_weights(ctx: Context) -> Weights:
    """Count output matrix (none of its own if tied), final norm, and the copy of the embedding."""
    model = ctx.model
    own = 0.0 if model.tied_embeddings else _output_matrix(ctx)
    whole = ctx.padded_outputs / ctx.vocabulary_ranks * int(model.head_bias) + model.before_head_parameters
    whole = whole + model.final_norm_parameters
    dense = copied_embedding(ctx) + own + whole
    return Weights(dense=dense, routed=np.zeros_like(ctx.t), ends=dense, whole=whole)


def normalized_head_weights(ctx: Context) -> FloatArray:
    """Count the output head's weights of which each micro-batch makes a copy of unit rows, if any."""
    return _vocabulary_matrix(ctx) / ctx.vocabulary_ranks * int(ctx.model.normalized_head)


def head_weights(ctx: Context) -> Weights:
    """Count the weights of the output and the multi-token-prediction layers."""
    own = output_weights(ctx)
    return own + prediction_weights(ctx) if ctx.model.num_mtp_layers else own


def prediction_weights(ctx: Context) -> Weights:
    """Count the weights of the multi-token-prediction layers; the model has at least one."""
    model = ctx.model
    layer = layer_weights(ctx.of(model.mtp_shape), model.mtp_shape.kind)
    matrix = 2.0 * model.hidden_size**2
    split = ctx.t if ctx.facts.prediction_sharded else np.ones_like(ctx.t)
    norms = model.mtp_extra_parameters() - matrix
    project = matrix / (split * ctx.g) + norms
    depth = float(model.num_mtp_layers)
    return Weights(
        dense=depth * (layer.dense + project), routed=depth * layer.routed,
        whole=depth * (layer.whole + norms),
    )  # fmt: skip


def prediction_copies(ctx: Context) -> FloatArray:
    """Count the prediction layers' share of ``copied_embedding``, shape (n,)."""
    return copied_embedding(ctx) / (1.0 + ctx.model.tied_embeddings)


def part_weights(ctx: Context, kinds: Sequence[LayerShape]) -> list[Weights]:
    """Return the weights of every part in order: layer kinds, what precedes them, head."""
    return [
        *(layer_weights(ctx.of(one), one.kind) for one in kinds),
        embedding_weights(ctx) + tower_weights(ctx) if ctx.model.tower else embedding_weights(ctx),
        head_weights(ctx),
    ]


STACKED_TENSORS = 2.0  # of all experts: gate and up, and down (transformers 5, ``MixtralExperts``)


def weight_tensors(ctx: Context, kinds: Sequence[LayerShape], *, apart: bool) -> list[float]:
    """Count tensors of every part in order: a layer's matrices and norms; of the head the final norm, too.

    q, k and v are one, and so are gates with what they gate, and each expert has its own. ``apart``, as in
    transformers' classes: each matrix is one tensor, and a layer's experts are two.
    """
    norms = [ctx.of(one).model.norms_of(one.kind) for one in kinds]
    if apart:
        shaped = [(ctx.of(one).model, one.kind) for one in kinds]
        matrices = [
            len(single_layers(own, kind)) + STACKED_TENSORS * (kind == "moe") for own, kind in shaped
        ]
    else:
        gemms = [layer_gemms(ctx.of(one), one.kind) for one in kinds]
        matrices = [sum(float(np.max(gemm.count, initial=0)) for gemm in each) for each in gemms]
    return [*map(add, matrices, norms), 1.0, 2.0]


def largest_tensor(model: ModelSpec) -> int:
    """Return the elements of the largest tensor as a script without tensor parallelism has it.

    The embedding, a matrix of attention or of an MLP, or all experts' of a layer together, gates and what
    they gate as one (transformers 5, ``MixtralExperts.gate_up_proj``).
    """
    sizes = [model.vocab_size * model.embedding_width, model.layer_tables_parameters()]
    for shape in model.shapes():
        for one in model.shaped(shape).layer(shape.kind).operators:
            each = [matrix.inputs * matrix.outputs for matrix in one.matrices]
            sizes.append(sum(each) * one.matrices[0].experts if one.is_routed else max(each))
    return max(sizes)


def unread_products(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return the products that recomputing a whole layer leaves out: its backward pass does not read them.

    A checkpoint of torch that is not reentrant stops at the last tensor that is saved
    (``replay_stops_early``), a compiler drops what nothing reads (``compilers_end_replays``): of a dense
    MLP the last product, none in a pipeline with reentrant checkpoints of its own
    (``stages_replay_whole``), nor where every module's weights come and go: such products save what they
    read when they are done (DeepSpeed 0.19.8 ``runtime/zero/linear.py``, ``memory_efficient_linear``). A
    norm, dropout or an adapter's product behind it needs more; of experts all is counted.
    """
    targets = ctx.workload.lora_targets if ctx.frozen else ()
    adapted = bool(set(MLP_INNER) & set(targets))
    compiled = ctx.facts.compilers_end_replays and ctx.facts.elementwise_fused
    stops = ctx.facts.replay_stops_early or compiled
    if kind == "moe" or adapted or not (ends_unread(ctx) and stops):
        return []
    whole = (ctx.p > 1) & ctx.facts.stages_replay_whole
    whole |= (ctx.columns.zero_stage == SHARD_WEIGHTS) & ctx.facts.gathers_modules
    return [replace(layer_gemms(ctx, kind)[-1], count=np.where(whole, 0.0, 1.0))]


# --------------------------------------------------------------------------------------------------
# LoRA: a pair of thin trained matrices next to each adapted linear layer of a frozen model.
#
# Hu et al. 2021 (arXiv:2106.09685): a layer (k to n) gets ``A`` (k to r) and ``B`` (r to n). Only they
# have gradients, optimizer states and a reduction; the frozen matrices keep their weights and, in the
# backward pass, their input gradient. Adapters are split over tp as their layers are.


def adapted_gemms(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return the frozen product of each adapted layer, in the order of ``adapted_layers``."""
    gemms, moe = [], ctx.model.moe
    for layer in adapted_layers(ctx.model, kind, ctx.workload.lora_targets):
        tensor = ctx.et if layer.experts else ctx.t
        inputs = layer.inputs / (tensor if layer.split == "inputs" else 1.0)
        outputs = layer.outputs / (tensor if layer.split == "outputs" else 1.0)
        if layer.experts and moe is not None:
            rows, local = routed_rows(ctx, moe)
            gemms.append(Gemm(m=rows, n=outputs, k=inputs, count=local, grouped=True))
        else:
            rows = ctx.tokens * (ctx.row_share if layer.split == "nothing" else 1.0)
            gemms.append(Gemm(m=rows, n=outputs, k=inputs))
    return gemms


def _converted_weights(ctx: Context, kind: LayerKind) -> FloatArray:
    """Count a layer's weights that are made 2 bytes each before every product, shape (n,); none of bf16.

    Few bits a rank keeps whole: only layouts without tensor parallelism and ZeRO-3 have them. Those of
    bitsandbytes' 4 bits are gathered packed.
    Autocast casts those in fp32 where nothing is gathered; FSDP casts where it gathers.
    """
    precision, layers = ctx.held_precision, _quantized(ctx, kind)
    number: FloatArray | float = 0.0
    if precision == "fp32":
        dense = sum(layer.inputs * layer.outputs for layer in layers if not layer.experts)
        number = dense / ctx.t + layer_weights(ctx, kind).routed * (1.0 - ctx.wide_experts)
    elif precision != "bf16":
        number = sum(layer.inputs * layer.outputs * _on_rank(ctx, layer) for layer in layers)
    return np.where(ctx.converts, number, 0.0)


def _quantized(ctx: Context, kind: LayerKind) -> list[Matrix]:
    if is_of_experts(ctx.held_precision):
        return list(stacked_experts(ctx.model, kind))
    return list(quantized_layers(ctx.model, kind, experts=ctx.facts.quantizes_experts))


def _on_rank(ctx: Context, layer: Matrix) -> FloatArray | float:
    return layer.experts / ctx.e if layer.experts else 1.0


# Moved for each fp32 weight that is cast before its product, forward and backward (torch 2.13; casts are
# saved for the backward pass, which casts gradients of trained ones back).
_CAST_BYTES = (6.0, 0.0)


def _moved_bytes(ctx: Context) -> tuple[float, float]:
    storage = storage_of(ctx.held_precision)
    if storage is not None:
        return storage.moved_bytes
    return _CAST_BYTES if ctx.held_precision == "fp32" else (0.0, 0.0)


@on_slowest
def converted_bytes(ctx: Context, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return bytes moved to make a layer's weights bf16, in each forward and backward pass."""
    weights, storage = _converted_weights(ctx, kind), storage_of(ctx.held_precision)
    forward, backward = _moved_bytes(ctx)
    moved = forward * weights, (backward + (0.0 if ctx.frozen else forward)) * weights
    if streams_experts(ctx):
        return 0.0 * weights, (forward - 2.0 + _streamed_width(ctx)) * weights
    if storage is None or storage.stacked_bytes is None:
        return moved
    stacked = np.where(ctx.converts, _stacked(ctx, kind), 0.0)
    own, again = storage.stacked_bytes
    return moved[0] + (own - forward) * stacked, moved[1] + (again - backward) * stacked


def streams_experts(ctx: Context) -> bool:
    """Return whether experts of few bits are read as they lie: by ScatterMoE, which wraps none.

    Axolotl 0.18, integrations/kernels/libs/scattermoe_lora/grouped_train.py. It pads each expert's
    rows to a multiple of 64 (marlin_w4a16/backend.py MARLIN_TILE), which is not priced: grouped products
    here have the rows that are routed.
    """
    return is_of_experts(ctx.held_precision) and not ctx.facts.wraps_experts


def _streamed_width(ctx: Context) -> float:
    """Return the bytes of a weight from which its input's gradient is made.

    8 bits on compute capability 12, else 16: grouped_train.py _fp8_read_dx_ok, runtime.py
    fp4_dx_prefer_fp8.
    """
    return 1.0 if ctx.gpu.generation == BLACKWELL_12 else 2.0


def _frozen_bytes(ctx: Context, layer: Matrix) -> float:
    """Return the bytes of a frozen matrix; where experts are streamed, with scales of two layouts.

    Marlin's lie next to the checkpoint's, which the backward pass reads; weights lie in Marlin's layout
    alone (marlin_w4a16/backend.py _cached_prep).
    """
    precision = ctx.workload.base_precision
    further = scale_bytes(layer, precision) if streams_experts(ctx) else 0.0
    return base_bytes(layer, precision) + further


def _streamed(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return the bytes of the few experts that are wider at once for the gradient of their input."""
    if (moe := ctx.model.moe) is None or kind == "dense" or not streams_experts(ctx):
        return np.zeros_like(ctx.t)
    share = min(1.0, STREAMED_EXPERTS / moe.num_experts)
    return _streamed_width(ctx) * share * _converted_weights(ctx, kind)


def _casts(ctx: Context, kinds: Sequence[LayerShape], *, first: bool = False) -> list[FloatArray]:
    """Return the bytes of each part's casts when most is kept: layer kinds, embedding, head.

    Those of trained weights do from the second micro-batch on: in the first one's backward pass they go
    where gradients of twice their bytes come. ``first``: before that backward pass.
    """
    zero = np.zeros_like(ctx.t)
    if ctx.facts.quantizes_experts and is_cut(ctx.held_precision):
        return [*(2.0 * _stacked(ctx.of(one), one.kind) for one in kinds), zero, zero]
    storage = storage_of(ctx.held_precision)
    if storage is not None and storage.keeps_whole and not streams_experts(ctx):
        return [*(2.0 * _converted_weights(ctx.of(one), one.kind) for one in kinds), zero, zero]
    if streams_experts(ctx) or (ctx.held_precision != "fp32" and not ctx.wide_ends.any()):
        return [zero] * (len(kinds) + 2)
    weigh = 2.0 * (ctx.converts & (ctx.frozen | first | (ctx.columns.num_microbatches > 1)))
    head = weigh * ctx.padded_outputs * ctx.model.embedding_width / ctx.vocabulary_ranks
    layers = [weigh * _converted_weights(ctx.of(one), one.kind) for one in kinds]
    if ctx.training:  # what is frozen is not fp32
        layers = [cast * (one.trains == TRAINED) for cast, one in zip(layers, kinds, strict=True)]
        head = head * (HEAD in ctx.trained_modules)
    return [*layers, zero, head]


def _stacked(ctx: Context, kind: LayerKind) -> FloatArray:
    """Count the weights of experts that lie in one quantised tensor, of which products keep a copy.

    Their parametrisation makes all of them 16-bit at once (bitsandbytes 0.50, ``nn/parametrize.py``), and
    the grouped product saves that for its input's gradient.
    """
    linear = {one.name for one in quantized_layers(ctx.model, kind) if one.experts}
    stacked = [one for one in _quantized(ctx, kind) if one.experts and one.name not in linear]
    number = sum(one.inputs * one.outputs * _on_rank(ctx, one) for one in stacked)
    return np.asarray(number + np.zeros_like(ctx.t))


def base_bytes_beyond(
    ctx: Context, kinds: Sequence[LayerShape], weights: Sequence[Weights]
) -> list[FloatArray]:
    """Return the bytes of every part's weights beyond those that the framework stores of trained ones.

    A cast of every fp32 matrix is saved for the backward pass as well, unless the layer is replayed.
    Fewer bits of a frozen base save some, one in fp32 takes 4 each. Shards of a base in bf16 stay so unless
    all are cast.
    """
    if ctx.training:
        return _partly_beyond(ctx, kinds, weights)
    precision, zero = ctx.workload.base_precision, np.zeros_like(ctx.t)
    *others, head = _casts(ctx, kinds)
    narrow = precision not in WHOLE_PRECISIONS
    casts = [*(cast * ~ctx.full for cast in others), head]
    if not ctx.frozen:
        return casts
    cast_up = ctx.facts.casts_frozen and not ctx.packed  # accelerate 1.15 utils/fsdp_utils.py:805
    stored = 4.0 if precision == "fp32" else ctx.facts.weight_bytes if cast_up else 2.0
    here = np.where(ctx.offloads_weights, 0.0, 1.0)
    cut = (stored - ctx.facts.weight_bytes) * here
    whole = [zero] * len(weights)
    if precision == "fp32":
        whole = [2.0 * (own.dense + own.routed) + cast for own, cast in zip(weights, casts, strict=True)]
    elif narrow:  # frozen matrices of 4 or 8 bits, instead of 2 bytes each
        for part, one in enumerate(kinds):
            whole[part] = (
                zero
                - sum(
                    (base_bytes(layer, "bf16") - _frozen_bytes(ctx, layer)) * _on_rank(ctx, layer)
                    for layer in _quantized(ctx.of(one), one.kind)
                )
                + casts[part]
            )
        whole[len(kinds)] = zero - _narrow_tower_bytes(ctx, precision)
    shares = (ctx.dense_replicas.sharing, ctx.expert_replicas.sharing)
    packed = _packed_bytes(ctx, kinds, here) if ctx.packed else []
    return [
        np.where(
            ctx.columns.zero_stage == SHARD_WEIGHTS,
            cut * (own.dense / shares[0] + own.routed / shares[1])
            + (packed[part] + casts[part] if packed else 0.0),
            beyond,
        )
        for part, (own, beyond) in enumerate(zip(weights, whole, strict=True))
    ]


def _narrow_tower_bytes(ctx: Context, precision: BasePrecision) -> FloatArray:
    """Return the bytes that few bits save of a tower's linear layers, and of a projector's that are known.

    bitsandbytes replaces every linear layer but the output head (transformers 5.23,
    ``quantizers/base.py get_keys_to_not_convert``).
    """
    tower = ctx.model.tower
    if tower is None or is_of_experts(precision) or is_checkpoints(precision):
        return np.zeros_like(ctx.t)
    layers = [(one, tower.num_layers) for one in quantized_layers(ctx.model.tower_layers, "dense")]
    behind = [(one, tower.num_projectors) for one in ctx.model.projector_layers]
    saved = sum(
        number * (base_bytes(one, "bf16") - base_bytes(one, precision))
        for one, number in (*layers, *behind)
    )
    return np.asarray(saved / ctx.tower_t)


def _partly_beyond(
    ctx: Context, kinds: Sequence[LayerShape], weights: Sequence[Weights]
) -> list[FloatArray]:
    """Return the same where some layers are trained, of each part by whether it is."""
    frozen = base_bytes_beyond(ctx.untrained(), kinds, weights)
    *layers, head = [cast * ~ctx.full for cast in _casts(ctx, kinds)[:-1]], _casts(ctx, kinds)[-1]
    own = [*layers[0], head]
    is_trained = [
        *(one.trains == TRAINED for one in kinds),
        *(module in ctx.trained_modules for module in (EMBEDDING, HEAD)),
    ]
    return [a if it else b for it, a, b in zip(is_trained, own, frozen, strict=True)]


def _packed_bytes(ctx: Context, kinds: Sequence[LayerShape], here: FloatArray) -> list[FloatArray]:
    """Return what shards of few bits take beyond shards of 2 bytes a weight, by part: scales are whole."""
    found = [np.zeros_like(ctx.t) for _ in range(len(kinds) + 2)]
    for part, one in enumerate(kinds):
        for layer in _quantized(ctx.of(one), one.kind):
            share = (ctx.expert_replicas if layer.experts else ctx.dense_replicas).sharing
            saved = here * (2.0 - ctx.layer_bytes_sent) * layer.inputs * layer.outputs / share
            found[part] += (scale_bytes(layer, ctx.workload.base_precision) - saved) * _on_rank(ctx, layer)
    return found


def casts_bytes(
    ctx: Context, kinds: Sequence[LayerShape], numbers: Sequence[int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return bytes of casts: of replayed layers at a forward pass's end, of a head's copy, of one replay.

    A head of unit rows has a copy, and that copy's gradient where it is trained.
    ``numbers`` are the layers of every kind. Autocast caches the cast of a weight that is trained until the
    forward pass ends, the loss in it, whether or not a layer saves it; it caches none that is frozen
    (torch 2.13, ``aten/src/ATen/autocast_mode.cpp``, ``cached_cast``).
    """
    casts = _casts(ctx, kinds)[:-2]  # of layers
    cached = sum((number * cast for number, cast in zip(numbers, casts, strict=True)), np.zeros_like(ctx.t))
    rows = normalized_head_weights(ctx) * (4.0 if (HEAD in ctx.trained_modules) else 2.0)
    at_once = np.maximum.reduce([*casts, *(_streamed(ctx.of(one), one.kind) for one in kinds)])
    return np.asarray(cached * ctx.full * (not ctx.frozen)), rows, at_once


def saved_casts_bytes(
    ctx: Context, kinds: Sequence[LayerShape], numbers: Sequence[int], *, first: bool
) -> tuple[FloatArray, FloatArray]:
    """Return bytes of casts of trained weights at the end of a forward pass, and behind it, (n,) each.

    Replayed layers save none of them: they go with the cache. Those that ``base_bytes_beyond`` counts among
    the weights, or, ``first``, those of a first micro-batch; further arguments as ``casts_bytes``.
    """
    if ctx.frozen or not ctx.wide_rows.any():
        return np.zeros_like(ctx.t), np.zeros_like(ctx.t)
    *layers, _, head = _casts(ctx, kinds, first=first)
    every = sum((number * cast for number, cast in zip(numbers, layers, strict=True)), np.zeros_like(ctx.t))
    return np.asarray(every + head), np.asarray(every * ~ctx.full + head)


def adapter_gemms(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return both products of every adapter of one layer; of wrapped experts the one that makes weights.

    OFT's blocks are one batched product, with the work and the output of one of a block's inputs to all:
    what else it reads and writes is in ``_ROTATED``.
    """
    rank, wraps = float(ctx.workload.lora_rank), wraps_experts(ctx, kind)
    if ctx.facts.oft:
        return [
            Gemm(m=g.m, n=g.k, k=float(size), count=g.count)
            for g, size in zip(adapted_gemms(ctx, kind), _block_sizes(ctx, kind), strict=True)
        ]
    return [
        product
        for g in adapted_gemms(ctx, kind)
        for product in (
            [Gemm(m=np.asarray(g.n + ctx.nothing.forward), n=g.k, k=rank, count=g.count, grouped=True)]
            if wraps and g.grouped
            else [
                Gemm(m=g.m, n=rank, k=g.k, count=g.count, grouped=g.grouped),
                Gemm(m=g.m, n=g.n, k=rank, count=g.count, grouped=g.grouped),
            ]
        )
    ]


def _block_sizes(ctx: Context, kind: LayerKind) -> list[int]:
    """Return the size of OFT's blocks of each adapted layer."""
    layers = adapted_layers(ctx.model, kind, ctx.workload.lora_targets)
    return [block_of(layer.inputs, ctx.workload.lora_rank) for layer in layers]


# What OFT moves (peft 0.21, tuners/oft/layer.py OFTRotationModule), by the type of its weights, fp32 under
# autocast or bf16. For each number of a block, to make an orthogonal matrix of five terms of a series:
# zeros, the half above the diagonal, its difference from the transposed one, the unit matrix and a copy,
# four terms added, and three products with casts of what they read; backward twice the products, with
# gradients added up. For each input of a token: casts to the weights' type and back (6 each), the product's
# output copied into rows (4), and cast twice more; the product reads 2 bytes more than a plain one, both of
# its gradients 4; gradients go the same way. Kept for the backward pass of each number: what the products
# read.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Rotated:
    made: tuple[float, float]  # bytes for each number of a block, forward and backward
    moved: tuple[float, float]  # for each input of a token
    kept: float  # for each number of a block


_ROTATED = {
    "fp32": _Rotated(made=(114.0, 176.0), moved=(30.0, 32.0), kept=14.0),
    "bf16": _Rotated(made=(54.0, 88.0), moved=(6.0, 8.0), kept=8.0),
}


def _rotated(ctx: Context, kind: LayerKind) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return bytes that OFT moves in a layer, forward and backward, and those that it keeps, (n,) each.

    A frozen product that holds its input holds the rotated one of its own.
    """
    storage = storage_of(ctx.held_precision)
    held = 2.0 * (storage is not None and storage.saves_input)
    forward, backward, kept = np.zeros_like(ctx.t), np.zeros_like(ctx.t), np.zeros_like(ctx.t)
    wide, narrow = _ROTATED["fp32"], _ROTATED["bf16"]
    for g, size in zip(adapted_gemms(ctx, kind), _block_sizes(ctx, kind), strict=True):
        read, numbers = g.m * g.k * g.count, g.k * size * g.count
        into, back = (
            np.where(ctx.wide_adapters, wide.moved[way], narrow.moved[way]) * read
            + np.where(ctx.wide_adapters, wide.made[way], narrow.made[way]) * numbers
            for way in (0, 1)
        )
        forward, backward = forward + into, backward + back
        kept = kept + held * read + np.where(ctx.wide_adapters, wide.kept, narrow.kept) * numbers
    return forward, backward, kept


def again_gemms(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return the frozen products of dropped inputs, which DoRA makes next to those of whole ones."""
    return adapted_gemms(ctx, kind) * (ctx.facts.dora and ctx.facts.adapter_dropout)


# What DoRA adds to LoRA (Liu et al. 2024, arXiv:2402.09353): each forward pass multiplies the unit matrix
# by both factors, adds that to the frozen weight, and scales the outputs by the norm of each of its rows,
# which needs no gradient (peft 0.21.2, ``tuners/lora/dora.py`` DoraLinearLayer.forward). Bytes kernel by
# kernel, by the type of the adapters, fp32 or bf16: for each square of inputs the unit matrix (4, a cast 6;
# 2), for each weight casts of B A and W (6 + 6; 0), the scaled B A (8; 4), the sum (12; 6) and the norm (4;
# 2); for each output, beyond LoRA's 10 and 4, forward 38 (14) and backward 78 (30): as in peft's own graph.
# Megatron-Bridge multiplies the factors themselves, adds W (6) and takes the norm (2); it scales the sum of
# both outputs (4) and adds a correction, which is 0 without dropout (4). Backward scales gradients (4) and
# reduces their product with that sum (6 + 2), which is kept (0.7, ``peft/dora_layers.py`` DoRALinear).
@dataclass(frozen=True, slots=True, kw_only=True)
class _Decomposed:
    squares: float  # bytes for each square of the inputs, forward
    weights: float  # for each weight, forward
    forward: float  # for each output
    backward: float
    peak: float  # for each weight, at once: B A, the weight, the scaled one and the sum
    kept: float = 4.0  # for each output, for the backward pass


_DECOMPOSED = {
    "fp32": _Decomposed(squares=10.0, weights=36.0, forward=38.0, backward=78.0, peak=16.0),
    "bf16": _Decomposed(squares=2.0, weights=12.0, forward=14.0, backward=30.0, peak=6.0),
    "fused": _Decomposed(squares=0.0, weights=8.0, forward=8.0, backward=12.0, peak=4.0, kept=2.0),
}


def _adapts_fused(ctx: Context) -> bool:
    """Return whether adapters are Megatron-Bridge's, of fused layers, and not peft's."""
    return not {*FUSED_TARGETS}.isdisjoint(ctx.workload.lora_targets)


def _decomposed(ctx: Context, name: str) -> FloatArray:
    """Return one of ``_Decomposed``, by the type that adapters have in a row's products, shape (n,)."""
    if _adapts_fused(ctx):
        return np.full_like(ctx.t, getattr(_DECOMPOSED["fused"], name))
    wide, narrow = (getattr(_DECOMPOSED[one], name) for one in ("fp32", "bf16"))
    return np.asarray(np.where(ctx.wide_adapters, wide, narrow))


def norm_gemms(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return the products of DoRA's weights, of forward passes alone."""
    rank, fused = float(ctx.workload.lora_rank), _adapts_fused(ctx)
    return [
        thin
        for g in adapted_gemms(ctx, kind) * ctx.facts.dora
        for thin in (
            *(
                []
                if fused
                else [Gemm(m=np.asarray(g.k + ctx.nothing.forward), n=rank, k=g.k, count=g.count)]
            ),
            Gemm(m=np.asarray(g.k + ctx.nothing.forward), n=g.n, k=rank, count=g.count),
        )
    ]


def norm_workspace_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return what the norm of the largest adapted matrix of a layer needs while it is made, shape (n,)."""
    peak, unit = _decomposed(ctx, "peak"), 2.0 * (not _adapts_fused(ctx))
    each = [peak * g.n * g.k + unit * g.k * g.k for g in adapted_gemms(ctx, kind) * ctx.facts.dora]
    return np.asarray(np.maximum.reduce([np.zeros_like(ctx.t), *each]))


def adapter_kept_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return what adapters keep for the backward pass beyond the inputs of ``_input_bytes``, shape (n,).

    Adapters in fp32 under autocast each read a cast of their own, as those behind dropout do, which keeps a
    mask in a byte. DoRA keeps the frozen product and the adapter's, of which the scale is a factor; with
    dropout a cast of the frozen weight as well.
    """
    dropped, kept = float(ctx.facts.adapter_dropout), np.zeros_like(ctx.t)
    own = np.maximum(ctx.wide_adapters.astype(np.float64), dropped)
    read = set[str]()
    for layer, g in zip(
        adapted_layers(ctx.model, kind, ctx.workload.lora_targets), adapted_gemms(ctx, kind), strict=True
    ):
        rows = g.m * g.count
        alike = next((one for one in (ATTENTION_INPUT, MLP_INPUT, MLP_INNER) if layer.name in one), None)
        # attention keeps its output in any case, the first reader of another input keeps that
        first = alike is not None and not read & {*alike}
        read |= {layer.name}
        kept = kept + rows * g.k * (2.0 * own * (not first) + dropped)
        if ctx.facts.dora:
            kept = (
                kept
                + _decomposed(ctx, "kept") * rows * g.n
                + 2.0 * g.n * g.k * g.count * dropped * ctx.wide_adapters
            )
    return kept + _rotated(ctx, kind)[2] if ctx.facts.oft else kept


# Bytes that adapters move next to their products, 2 bytes an element, kernel by kernel (Megatron-Bridge
# ``peft/lora_layers.py``, peft ``tuners/lora/layer.py``): forward their output is scaled (4) and added (6),
# their input dropped out of (2 read, 2 and a mask of 1 written); backward the gradient is scaled (4),
# dropped out of likewise, and added to that of the frozen product (6). Under autocast peft 0.21
# casts their input to the adapter's fp32, autocast casts it back (6 each), and so do their gradients.
_SCALED, _ADDED, _DROPPED, _CAST = 4.0, 6.0, 5.0, 12.0


def adapter_bytes(ctx: Context, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return bytes that a layer's adapters move forward and backward next to their products, (n,) each."""
    if ctx.facts.oft:
        return _rotated(ctx, kind)[:2]
    dropped = _DROPPED * ctx.facts.adapter_dropout + _CAST * ctx.facts.autocasts
    forward, backward, wraps = np.zeros_like(ctx.t), np.zeros_like(ctx.t), wraps_experts(ctx, kind)
    for g in adapted_gemms(ctx, kind):
        if wraps and g.grouped:  # each weight of B A, and of its sum with W
            weights = g.n * g.k * g.count
            forward, backward = forward + (_SCALED + _ADDED) * weights, backward + _SCALED * weights
            continue
        read, written = g.m * g.k * g.count, g.m * g.n * g.count
        forward = forward + dropped * read + (_SCALED + _ADDED) * written
        backward = backward + (dropped + _ADDED) * read + _SCALED * written
        if ctx.facts.dora:
            again = _moved_bytes(ctx)[0] * is_packed(ctx.held_precision)
            weights = _decomposed(ctx, "weights") + again  # 4 bits are made 16 once more
            sides = _decomposed(ctx, "squares") * g.k * g.k + weights * g.n * g.k
            forward = forward + sides * g.count + _decomposed(ctx, "forward") * written
            backward = backward + _decomposed(ctx, "backward") * written
    return forward, backward


# A part of the model: a layer of a kind, an end, or the prediction layers behind the head.
Part = LayerKind | Literal["embedding", "head", "prediction"]
_MODULES: Mapping[Part, str] = {"embedding": EMBEDDING, "head": HEAD}


def _without(own: Weights) -> Weights:
    """Return a part of which nothing is trained."""
    return Weights(dense=np.zeros_like(own.dense), routed=np.zeros_like(own.routed))


def trained_weights(ctx: Context, own: Weights, part: Part) -> Weights:
    """Count the trained weights of a part: all, or adapters and copies next to frozen ones.

    Prediction layers have neither.
    """
    if not ctx.frozen:
        return own if part not in _MODULES or _MODULES[part] in ctx.trained_modules else _without(own)
    model, norms = ctx.model, NORMS in ctx.workload.trained_modules
    routed: FloatArray = np.zeros_like(ctx.t)
    ends = {
        "embedding": copied_parameters(model, EMBEDDING) * (EMBEDDING in ctx.trained_modules),
        "head": copied_parameters(model, HEAD) * (HEAD in ctx.trained_modules)
        + model.final_norm_parameters * norms,
        "prediction": 0,
    }
    if part in ends:
        dense = np.full_like(ctx.t, float(ends[part]))
        return Weights(dense=dense, routed=routed, ends=dense)
    kind: LayerKind = "moe" if part == "moe" else "dense"
    copies, rank = np.full_like(ctx.t, float(model.layer(kind).norms * norms)), ctx.workload.lora_rank
    dense = copies
    for g, size in zip(adapted_gemms(ctx, kind), _block_sizes(ctx, kind), strict=True):
        low_rank = rank * (g.k + g.n) + g.n * ctx.facts.dora
        elements = (g.k * (size - 1) / 2.0 if ctx.facts.oft else low_rank) * g.count
        if g.grouped:
            routed = routed + elements
        else:
            dense = dense + elements
    return Weights(dense=dense, routed=routed, ends=copies)


def trained_parts(ctx: Context, kinds: Sequence[LayerShape], weights: Sequence[Weights]) -> list[Weights]:
    """Count the trained weights of every part in order: layer kinds, embedding, head."""
    of_layers = zip(kinds, weights, strict=False)
    layers = [trained_weights(ctx.of(one), own, one.kind) for one, own in of_layers]
    return [*layers, trained_first(ctx), trained_weights(ctx, weights[-1], "head")]
