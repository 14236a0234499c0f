"""Bytes that one rank keeps: weights, gradients, optimizer states, activations, workspaces.

States: mixed-precision AdamW keeps 2 + 4 + 12 = 18 bytes a weight with fp32 gradients (Rajbhandari et al.
2020, arXiv:1910.02054; Megatron-Core's are fp32); the distributed optimizer ``6 + 12 / (dp cp)``.
Activations: Korthikanti et al. 2022 (arXiv:2205.05198), ``s b h (34 + 5 a s / h)`` a GPT layer, by tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import log
from statistics import NormalDist
from typing import Any

import numpy as np

from meshwright.profiles.adapters import ATTENTION_INPUT, EMBEDDING, MLP_INNER, MLP_INPUT, saves_input
from meshwright.profiles.figures import percent
from meshwright.profiles.frameworks import FOREACH, FrameworkFacts
from meshwright.profiles.layers.operators import MIXING
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.profiles.profile import Profile
from meshwright.profiles.storage import WHOLE_PRECISIONS
from meshwright.profiles.trained_layers import BELOW
from meshwright.profiles.units import GIB
from meshwright.solver.configuration import BoolArray, Columns, FloatArray, distinct
from meshwright.solver.cost.communication import SHARDED_BYTES
from meshwright.solver.cost.context import EITHER_SIDE, Context, PassSeconds, Replicas, experts_overlap
from meshwright.solver.cost.fake_quantization import (
    fake_kept_bytes,
    fake_workspace_bytes,
    keeps_inputs,
)
from meshwright.solver.cost.losses import loss_bytes
from meshwright.solver.cost.low_rank import low_rank
from meshwright.solver.cost.merged_adapters import merged_kept_bytes, merged_workspace_bytes
from meshwright.solver.cost.paging import trained_tensors
from meshwright.solver.cost.parameters import (
    Weights,
    adapter_kept_bytes,
    base_bytes_beyond,
    casts_bytes,
    largest_tensor,
    norm_workspace_bytes,
    part_weights,
    saved_casts_bytes,
    trained_parts,
)
from meshwright.solver.cost.reference import reference_bytes
from meshwright.solver.cost.scores import eager_scores, passing_scores_bytes
from meshwright.solver.cost.sharding import SHARD_GRADIENTS, SHARD_WEIGHTS
from meshwright.solver.cost.stages import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    FRAGMENTS,
    LOSS,
    OF_HEAD,
    UPDATE,
    LayerLayout,
)
from meshwright.solver.cost.tiles import adds_apart, mlp_tiles, mlp_weights
from meshwright.solver.cost.towers import (
    LAYER,
    images_of,
    passes_gradients,
    projector_bytes,
    tower_context,
)
from meshwright.solver.cost.ways import each_way
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import in_flight

_ADAMW_STATE_BYTES = 8.0  # what ``optimizer_bytes`` counts in addition to the fp32 copy
_FP32_GRADIENT_BYTES = 4.0
_ONE_HOT_BYTES = 2.0  # of an element of a one-hot row, in the type of products
_LEAST_KEPT = 0.1  # of a selectively recomputed layer's rows: its input at least stays
# Per-tensor scaled weights have one 8-bit copy on Blackwell; Hopper's GEMMs need the transpose as well, and
# block-scaled formats keep both directions (Transformer Engine, Float8Tensor and MXFP8Tensor).
_ONE_COPY_RECIPES = ("none", "fp8-delayed", "fp8-current")
# NCCL's communicators, which one GPU alone has none of: it shows .80e9 bytes outside the allocator (device
# less reserved memory of benchmarks/data/trainer_runs.jsonl), a rank of many 1.2e9 (``context_bytes``).
_COMMUNICATORS_BYTES = 0.4e9
_LIVE_WEIGHTS = 1e9  # that DeepSpeed's ZeRO-3 holds gathered (``stage3_max_live_parameters``, its default)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of one part's training state on one rank, shape (n,)."""

    weights: FloatArray
    gradients: FloatArray
    reduced_gradients: FloatArray  # what is left of the gradients behind their chunk's last backward pass
    optimizer: FloatArray

    def __add__(self, other: StateBytes) -> StateBytes:
        names = [term.name for term in fields(StateBytes)]
        return StateBytes(**{name: getattr(self, name) + getattr(other, name) for name in names})


def _low_precision_bytes(ctx: Context) -> float:
    """Return the bytes of one weight of a layer as GEMMs read it.

    Adapters' recipes keep no transposes (Megatron-Bridge, NeMo 2: ``disable_parameter_transpose_cache``).
    """
    alone = ctx.gpu.generation in EITHER_SIDE or ctx.frozen
    one_copy = alone and ctx.facts.precision_recipe in _ONE_COPY_RECIPES
    return 1.0 if ctx.low_precision and ctx.facts.low_precision_weights and one_copy else 2.0


def _shard_bytes(ctx: Context, read: float) -> float:
    """Return the bytes of one weight that ZeRO-3 gathers: as GEMMs read it if shards are held in 8 bits."""
    return read if ctx.sharding.gathered_bytes < 2.0 else 2.0  # noqa: PLR2004 - bytes of bf16


def _input_bytes(ctx: Context, *layers: str, routed: bool = False) -> float:
    """Return the bytes of one element of a linear layer's input that is kept for its weight gradient.

    A frozen layer keeps none (torch's ``linear`` and Transformer Engine save the input only where the
    weight asks for a gradient) unless ``saves_input`` is set: in 2 bytes.
    """
    work = ctx.workload
    if not (routed or keeps_inputs(ctx)):
        return 0.0  # but what fake quantisers have made of it
    if ctx.frozen:
        kept = saves_input(ctx.model, layers, work.lora_targets, work.base_precision, routed=routed)
        return 2.0 if kept else 0.0
    return 1.0 if ctx.low_precision else 2.0


def _mlp_width_bytes(ctx: Context, *, routed: bool = False) -> float:
    """Return the bytes that an MLP keeps of one element of its width: the activation's input and output.

    A gate that is activated and multiplied by operators of their own leaves its activation as well.
    """
    gated = ctx.model.mlp_matrices - 2.0
    single = ctx.facts.separate_projections and not ctx.facts.elementwise_fused
    clamped = 2.0 * single * (ctx.model.activation_clamp is not None)  # gate and up before their clamps
    return 2.0 * (1.0 + gated * (1.0 + single) + clamped) + _input_bytes(ctx, *MLP_INNER, routed=routed)


def _norm_output_bytes(ctx: Context) -> FloatArray:
    """Return what projections keep of one number of their norms' output, (n,).

    Autocast caches casts of weights alone (torch 2.13, ``aten/src/ATen/autocast_mode.cpp``,
    ``cached_cast``): each projection that reads a row of fp32 keeps a cast of its own.
    """
    attentions = 2 if ctx.model.crossing else int(ctx.model.mixes_tokens)
    attention = _input_bytes(ctx, *ATTENTION_INPUT) * attentions
    mlp = _input_bytes(ctx, *MLP_INPUT) * ctx.model.has_mlp
    casts = ctx.wide_rows * ctx.facts.separate_projections
    projections = ctx.model.layer("dense").readers(*MIXING)
    further = (projections - 1.0) * attention + (ctx.model.mlp_matrices - 2.0) * mlp
    return attention + mlp + casts * further


# Mixtures in fp32, and their sums, that autograd keeps of Sinkhorn's rounds, of which there are 20 usually
# (transformers 5.23, ``DeepseekV4HyperConnection``: two quotients a round, each keeps both sides).
_SINKHORN = 41.0


# ZenFlow keeps of each selected gradient on every GPU: two moments, the gradient, and the weight that the
# host has not updated yet, in 2 bytes (DeepSpeed 0.19.8 ``zenflow_torch_adam.py``).
_SELECTED_BYTES = 8.0
# ... and on the host, next to one fp32 gradient: a second one, and the weights that the last update left.
_DEFERRED_BYTES = 8.0


def _bytes_of(
    ctx: Context, count: FloatArray, trained: FloatArray, replicas: Replicas, *, matrices: bool,
    moments: float, ends: FloatArray | float = 0.0,
) -> StateBytes:  # fmt: skip
    """Return states of ``count`` weights, ``trained`` of them; ``replicas`` share the optimizer.

    Of them ``ends`` are never held in 8 bits. Gradients that ZeRO-2 and 3 add up whole: as reduced.
    """
    stage, sharing = ctx.columns.zero_stage, replicas.sharing
    shard = ctx.facts.gradient_bytes * ctx.copies_of_gradients(replicas)
    shard = shard / np.where(stage >= SHARD_GRADIENTS, sharing, 1.0)
    whole = ctx.sharding.adds_whole_gradients & (stage >= SHARD_GRADIENTS)
    gradient = np.where(whole, np.maximum(ctx.facts.reduced_gradient_bytes, shard), shard)
    own = ctx.facts.own_gradient_bytes if ctx.facts.gradient_dtype == "fp32" else 0.0
    paged = ctx.share_paged * ctx.optimizer.paged_bytes(moments)
    if not ctx.optimizer.fp32_copy:
        return _without_copy(ctx, count, trained, replicas, moments)
    states = ctx.facts.optimizer_bytes - _ADAMW_STATE_BYTES + moments - ctx.remainder_bytes
    # a framework that stores fp32 shards also keeps 2-byte weights below stage 3
    copy = np.where(stage == SHARD_WEIGHTS, 0.0, ctx.facts.weight_bytes - 2.0)
    copy = np.where((stage == SHARD_GRADIENTS) & (copy > 0), ctx.facts.weight_bytes, copy)
    # of states that stay where others are offloaded, gradients are kept with them (DeepSpeed 0.19
    # stage3.py:1287 ``fp32_partitioned_groups_flat[i].grad``)
    further = np.where(ctx.offloads_gradients, _FP32_GRADIENT_BYTES, 0.0)
    selected = 0.0 * trained
    if ctx.facts.cpu_update_interval > 1.0:
        of_selected = _SELECTED_BYTES * ctx.facts.selected_gradient_share
        selected = trained * np.where(ctx.offloads_optimizer, of_selected, 0.0)
    held = (count - ends) * _weight_bytes(ctx, sharing, _low_precision_bytes(ctx), matrices=matrices)
    plain = ends + (trained if ctx.adapts else 0.0)  # adapters come on top of the weights
    held = held + plain * _weight_bytes(ctx, sharing, 2.0, matrices=matrices)
    return StateBytes(
        weights=held,
        gradients=trained * (np.where(ctx.offloads_gradients & ~whole, 0.0, gradient) + own),
        reduced_gradients=trained * (np.where(ctx.offloads_gradients, 0.0, shard) + own),
        optimizer=trained * (states + copy + further - paged) / sharing * (1.0 - ctx.share_offloaded)
        + selected,
    )


def _without_copy(
    ctx: Context, count: FloatArray, trained: FloatArray, replicas: Replicas, moments: float
) -> StateBytes:
    """Return bf16 weights and gradients with the optimizer's moments alone, by ZeRO stage."""
    stage, sharing = ctx.columns.zero_stage, replicas.sharing
    paged = ctx.share_paged * ctx.optimizer.paged_bytes(moments)
    held = 2.0 * (count + (trained if ctx.adapts else 0.0)) * np.where(ctx.offloads_weights, 0.0, 1.0)
    gradients = 2.0 * trained * np.where(ctx.offloads_gradients, 0.0, ctx.copies_of_gradients(replicas))
    gradients = gradients / np.where(stage >= SHARD_GRADIENTS, sharing, 1.0)
    return StateBytes(
        weights=held / np.where(stage == SHARD_WEIGHTS, sharing, 1.0),
        gradients=gradients,
        reduced_gradients=gradients,
        optimizer=trained * (moments - paged) / sharing * (1.0 - ctx.share_offloaded),
    )


def _weight_bytes(ctx: Context, sharing: FloatArray, read: float, *, matrices: bool) -> FloatArray:
    """Return the bytes of one weight, GEMMs reading ``read``: ZeRO-3's shards, and what stays gathered.

    Adapters are read in 2 bytes whatever the recipe (Megatron-Bridge ``peft/utils.py`` builds them of
    Megatron-Core's own linear layers).
    """
    stage, torch = ctx.columns.zero_stage, ctx.sharding.in_torch_pipeline
    gathered = np.where(torch, 2.0, 0.0)
    if matrices and torch.any():
        gathered = gathered * ctx.sharding.share_gathered
    stored = ctx.facts.weight_bytes - (2.0 - _shard_bytes(ctx, read))
    shard = stored / sharing * np.where(ctx.offloads_weights, 0.0, 1.0) + gathered
    shard = shard + np.where(ctx.has_secondary_shards, 2.0 / ctx.facts.secondary_shard_size, 0.0)
    return np.where(stage == SHARD_WEIGHTS, shard, np.where(torch, gathered, read))


def state_bytes(ctx: Context, weights: Weights, trained: Weights, *, matrices: bool) -> StateBytes:
    """Return weights, gradients and optimizer states of one part under its ZeRO stage.

    ``matrices`` is False for embedding and head, which some optimizers treat apart. Offloaded optimizer
    states and their fp32 copy lie in host memory (ZeRO-Offload, arXiv:2101.06840, section 4.1), offloaded
    shards of weights too: what is gathered of them is counted with the buffers (ZeRO-Infinity,
    arXiv:2104.07857, section 5.1).
    """
    shared, small = ctx.dense_replicas, np.asarray(trained.ends * ctx.small_copies)
    optimizer = ctx.optimizer
    moments = whole = optimizer.state_bytes if matrices else optimizer.end_state_bytes
    if matrices and optimizer.low_rank:
        moments = low_rank(ctx.model, optimizer, ctx.workload.optimizer_rank).state_bytes
    dense = _bytes_of(
        ctx, weights.dense, trained.dense - small, shared, matrices=matrices, ends=weights.ends,
        moments=moments,
    )  # fmt: skip
    if np.any(small):
        dense += _without_copy(ctx, np.zeros_like(ctx.t), small, shared, optimizer.states_in(2.0, whole))
    if ctx.wide_ends.any():  # 2 bytes more of each and of its gradient
        wide = np.asarray(weights.ends * ctx.wide_ends)
        dense += _without_copy(ctx, wide, wide, shared, optimizer.states_in(4.0, whole) - whole)
    if not weights.routed.any() and not trained.routed.any():
        return dense
    shared = ctx.expert_replicas
    return dense + _bytes_of(ctx, weights.routed, trained.routed, shared, matrices=matrices, moments=whole)


def _attention_inner_bytes(ctx: Context) -> FloatArray:
    """Return bytes kept inside tensor-parallel attention: q, k, v, the output, and scores unless flash.

    Context parallelism exists for kernels without a score matrix only (Transformer Engine, attention.py).
    Scores: softmax output and dropout output in 2 bytes each, the dropout mask in 1: ``5 a s / h``.
    """
    model, t, tokens = ctx.model, ctx.t, ctx.tokens
    if not model.mixes_tokens:
        return np.zeros_like(tokens)
    if mixer := model.own_mixer:
        return np.asarray(2.0 * tokens * mixer.kept_elements() / t)
    attention = _attention_bytes(ctx)
    if ctx.crossing and model.diffusion:
        width = 2.0 * model.num_attention_heads / t * (model.head_dim + model.v_head_dim)
        read = ctx.micro_batch * model.diffusion.context_tokens * width
        return attention + _attention_bytes(ctx.crossing) + read
    return attention + _attention_inner_bytes(ctx.paired) if ctx.paired else attention


# Of an element of an explicit mask, which each layer makes of booleans anew (torch 2.11,
# ``aten/src/ATen/native/transformers/attention.cpp convert_boolean_attn_mask``) and keeps for all heads.
_MASK_BYTES = 2.0


def _attention_bytes(ctx: Context) -> FloatArray:
    model, t, tokens = ctx.model, ctx.t, ctx.tokens
    heads = model.num_attention_heads / t
    kv_heads = np.maximum(model.num_kv_heads / t, 1.0) * (not model.borrows)  # borrowed ones are kept once
    if (repeated := ctx.repeats_keys).any():  # for every head of queries
        kv_heads = kv_heads + repeated * (heads - kv_heads)
    keys = ctx.masked_keys
    if model.compression:
        keys += keys / model.rate if model.rate else 0.0
        if not ctx.facts.flash:  # ``repeat_kv`` copies keys and values for every head, those of entries too
            kv_heads = heads * keys / ctx.seq_length
    if model.mla is None:
        qkv = heads * model.head_dim + kv_heads * (model.head_dim + model.v_head_dim)
    else:
        latent = (model.mla.q_lora_rank + model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) * 2.0
        qkv = heads * (2.0 * model.head_dim + model.v_head_dim) + latent
    outputs = heads * model.num_attentions * model.v_head_dim
    kept: FloatArray = tokens * 2.0 * (qkv + outputs)
    if own := model.compression:  # latents and keys before and behind their norms, and the groups' output
        joined, wide = own.output_groups * own.output_rank / t, ctx.single_norms
        kept = kept + tokens * 2.0 * (2.0 * own.q_lora_rank + model.head_dim + joined)
        # norms of single operators keep both sides in fp32; that of the queries, without weights, its input
        normed = 4.0 * own.q_lora_rank + (6.0 + 4.0 * heads) * model.head_dim
        kept = kept + wide * tokens * normed
        kept = kept + tokens * own.kept_bytes(model.rate, model.head_dim, ctx.seq_length)
    if indexer := model.chooser:
        kept = kept + tokens * indexer.kept_bytes(ctx.seq_length)
    quantised = float(ctx.low_precision and not ctx.frozen) * model.v_head_dim  # as products read it
    flash: FloatArray = kept + tokens * heads * (4.0 + quantised)  # 4: log-sum-exp
    if ctx.flash:
        mask = ctx.masked * _MASK_BYTES * tokens * ctx.masked_keys if ctx.masked.any() else 0.0
        return flash + mask
    per_score = 5.0 if ctx.facts.dropout else 2.0
    # fp32 softmax; of all rows alike: fewer sequences keep less. DeepSeek-V4's has the scores' type
    # (transformers 5.23 ``modeling_deepseek_v4.py eager_attention_forward``)
    per_score += 4.0 * ctx.never_fuses_softmax * (model.compression is None)
    if eager := eager_scores(ctx):
        per_score = eager.kept + 3.0 * ctx.facts.dropout
    scores = tokens * heads * keys * per_score
    return np.where(ctx.c > 1, flash, kept + np.where(_replays_scores(ctx), 0.0, scores))


@each_way
def _replays_scores(ctx: Context) -> BoolArray:
    return ctx.selective & ("core_attn" in ctx.facts.recomputed)


def _mlp_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    model, moe = ctx.model, ctx.model.moe
    per_width = _mlp_width_bytes(ctx)
    if kind == "dense" or moe is None:
        return ctx.tokens * per_width * model.ffn_hidden_size * model.has_mlp / ctx.t
    shared = ctx.tokens * per_width * moe.shared_ffn_hidden_size / ctx.t
    if moe.latent_size:  # what experts read, and what they have added before it is projected back
        read = 2.0 * _input_bytes(ctx, *MLP_INPUT) + 2.0 * moe.latent_norm
        shared = shared + ctx.tokens * ctx.row_share * read * moe.latent_size
    return shared + _expert_bytes(ctx, moe.ffn_hidden_size)


def _routed_tokens(ctx: Context) -> FloatArray:
    """Return the tokens that a rank's experts get, each once for every expert that it goes to."""
    return np.asarray(ctx.moe_tokens * ctx.visits * ctx.expert_load)


_COPIED_WEIGHT_BYTES = (
    2.0  # of a weight (transformers 5.17 ``integrations/moe.py batched_mm_experts_forward``)
)


@each_way
def _expert_bytes(ctx: Context, width: int) -> FloatArray:
    """Return what routed tokens leave: permuted input, inside of experts, output before combining.

    DeepEP and HybridEP combine what the experts wrote in place; frozen experts read no input again. What
    arrives in 8 bits is kept so by products of 8 bits (DeepSeek-V3, arXiv:2412.19437, section 3.3.3).
    """
    arrives = 1.0 if ctx.facts.low_precision_dispatch and ctx.low_precision else 2.0
    read = arrives if _input_bytes(ctx, *MLP_INPUT, routed=True) else 0.0
    copies = ctx.model.expert_width * (read + (0.0 if ctx.facts.permutes_in_dispatch else 2.0))
    each = copies + _mlp_width_bytes(ctx, routed=True) * width
    if ctx.facts.grouped_gemm == "batched":  # each token has its experts' weights to itself
        each += _COPIED_WEIGHT_BYTES * ctx.model.expert_parameters()
    return _routed_tokens(ctx) * each * (1.0 + ctx.wide_experts)


def layer_activation_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return the activations of one micro-batch that one layer keeps for its backward pass.

    Outside tensor parallelism (split by sequence parallelism): two norm inputs and the inputs of the
    attention and MLP projections, 2 bytes each (8 h), two dropout masks (2 h), and the fp32 copies of
    norms that are not fused (4 h; transformers' ``GemmaRMSNorm`` scales in fp32, 6 h); a layer with more
    norms keeps more inputs, one with a norm for attention and MLP fewer, frozen layers none of their
    own. A GPT layer sums to ``s b h (10 + 24 / t + 5 a s / (h t))``. In fp8 linear layers' inputs are kept
    in 1 byte (Transformer Engine keeps the quantised one only). Gathered inputs kept are not split: 4 h.
    """
    model, apart = ctx.model, ctx.single_norms
    # scaled in fp32, as Gemma's are; so are norms with weights that stay fp32 (DeepSeek-V4's:
    # ``_keep_in_fp32_modules_strict``)
    scaled = model.compression or (model.zero_centered_norm and model.normalization == "rmsnorm")
    each = 2.0 + (6.0 if scaled else 4.0) * apart
    norms = (each + 2.0 * ctx.wide_rows) * model.norms_of(kind) + model.num_blocks * float(
        ctx.facts.dropout
    )
    inputs = _norm_output_bytes(ctx) * (0.5 if model.shared_norm else 1.0)
    width = norms * ctx.row_share + inputs * (1.0 if ctx.facts.keeps_gathered_inputs else ctx.row_share)
    outer = ctx.tokens * ctx.model.hidden_size * width
    inner = _attention_inner_bytes(ctx) + _mlp_bytes(ctx, kind)
    keys = np.maximum(model.num_kv_heads / ctx.t, 1.0) * (not model.borrows)
    if model.query_key_norm != "none" and model.mixes_tokens:  # both before and after their norm
        inner = inner + ctx.tokens * (model.num_attention_heads / ctx.t + keys) * model.head_dim * each
    if model.layer_embedding_size:  # the gate before and behind its activation, its product, and its factor
        inner = inner + ctx.tokens * 2.0 * (4.0 * model.layer_embedding_size + model.hidden_size)
    if model.diffusion:  # of two blocks: the output of the norm and the sum, both before scaling
        inner = inner + ctx.tokens * 2.0 * (2.0 + 2.0) * model.hidden_size * ctx.row_share
    if model.streams:  # one of the norms again, and the gate before it is cut
        cut = model.ffn_hidden_size * model.streams.sparse_layers / model.num_layers / ctx.t
        further = 2.0 * (model.streams.kept_elements(model.hidden_size) + cut) + each * model.hidden_size
        inner = inner + ctx.tokens * further
    inner = inner + ctx.tokens * ctx.row_share * _sum_bytes(model, apart)
    if model.value_norm:  # which reads what the key's norm reads where one projection yields both
        inner = inner + ctx.tokens * keys * model.v_head_dim * (each - 2.0 * model.keys_are_values)
    inner = inner + ctx.tokens * model.inner_norm_width(kind) / ctx.t * each
    if model.gate_width and model.mixes_tokens:  # the gate, and attention's output before it is gated
        gated = model.gate_width + model.num_attention_heads * model.v_head_dim
        inner = inner + ctx.tokens * 2.0 * gated / ctx.t
    kept = outer + inner - _of_tiles(ctx, kind)
    if ctx.adapts:
        kept = kept + adapter_kept_bytes(ctx, kind)
    if ctx.facts.fake_quantization != "none":
        kept = kept + fake_kept_bytes(ctx, kind) + merged_kept_bytes(ctx, kind)
    if ctx.selective.any():
        left = np.maximum(kept - _freed(ctx, kind), _LEAST_KEPT * outer) * ctx.facts.selective_keeps
        kept = np.where(ctx.selective, left, kept)
    return kept * ctx.constants.activation


@each_way
def _freed(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return what selective recomputation frees of a layer; an MLP in tiles has saved nothing."""
    freeing = [name for name in ctx.facts.recomputed if name != "mlp" or not ctx.facts.mlp_tile_tokens]
    freed = sum((_freed_bytes(ctx, kind, name) for name in freeing), np.zeros_like(ctx.t))
    return np.asarray(freed)


def _sum_bytes(model: ModelSpec, apart: FloatArray | float) -> FloatArray | float:
    """Return the bytes of a token that a layer keeps of sums that its two blocks read and write otherwise.

    Hyper-connections: the streams, in fp32 before and behind a norm of eager operators, and what a block
    adds to them. Attention residuals: the sums of earlier blocks, which layers share until one is added;
    each of them and the own one in fp32 before and behind a norm of eager operators (Megatron-Bridge 0.7
    ``kimi_k3_ops.py attn_res_aggregate``).
    """
    if count := model.hyper_streams:
        mixing = _SINKHORN * 4.0 * count * (count + 1.0) * apart
        return 2.0 * (model.hidden_size * (count * (2.0 + 8.0 * apart) + 2.0) + mixing)
    if size := model.residual_block_layers:
        shared = 2.0 * model.residual_rows / size
        return model.hidden_size * (shared + 2.0 * 8.0 * apart * (model.residual_rows + 1.0))
    return 0.0


def passing_bytes(ctx: Context, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return the bytes that eager operators of an MLP hold for a moment, in a forward and a backward pass.

    Forward, beside what a replayed layer keeps: the activated gate, the other half and their product, in 2
    bytes (transformers 5.23 ``models/llama/modeling_llama.py LlamaMLP``). Backward, beside all that a layer
    keeps: the gradients of these three. Adapters in fp32 add to the widest output their scaled own and the
    sum, in place of the product, beside an input in fp32 (peft 0.21 ``lora/layer.py Linear.forward``:
    ``result + lora_B(lora_A(x)) * scaling``), and backward the gradient of that input. Fused operators hold
    less, which constants of their stacks contain: it is asked where projections are apart.
    """
    model, moe = ctx.model, ctx.model.moe
    if not model.has_mlp:
        return np.zeros_like(ctx.t), np.zeros_like(ctx.t)
    width = ctx.tokens * model.ffn_hidden_size / ctx.t
    if kind == "moe" and moe is not None:
        width = _routed_tokens(ctx) * moe.ffn_hidden_size
    routed = kind == "moe"
    adapted = ctx.frozen and bool(_input_bytes(ctx, *MLP_INNER, routed=routed))
    inputs = 4.0 * ctx.tokens * model.hidden_size * adapted
    return width * (6.0 + 2.0 * adapted) + inputs, width * (6.0 + 4.0 * adapted)


def _freed_bytes(ctx: Context, kind: LayerKind, module: str) -> FloatArray | float:
    """Return the bytes that replaying one module frees; scores of attention are counted with it.

    What a module keeps for its own backward pass goes, its input stays: inputs of norms stay, their outputs
    go (Megatron-LM d98e8a64 ``transformer_config.py:1940``, and its guide to recomputation).
    """
    model, moe, t = ctx.model, ctx.model.moe, ctx.t
    per_width = _mlp_width_bytes(ctx)
    if module == "mla_up_proj" and model.mla is not None and model.mixes_tokens:
        widths = 2.0 * model.head_dim + model.v_head_dim
        return ctx.tokens * 2.0 * model.num_attention_heads / t * widths
    if module == "attn_proj" and model.mixes_tokens:  # the output that it reads, and what is added
        each = 3.0 if ctx.low_precision and not ctx.frozen else 2.0  # as attention and products read it
        read = each * model.num_attention_heads / t * model.v_head_dim
        return ctx.tokens * (read + 2.0 * model.hidden_size * ctx.row_share)
    if module == "layernorm":
        return ctx.tokens * model.hidden_size * _norm_output_bytes(ctx) * ctx.row_share
    if module in ("mlp", "mlp_up") and kind == "dense":
        return ctx.tokens * per_width * model.ffn_hidden_size * model.has_mlp / t
    if kind == "dense" or moe is None:
        return 0.0
    routed = {
        "shared_experts": ctx.tokens * per_width * moe.shared_ffn_hidden_size / t,
        "moe": _expert_bytes(ctx, moe.ffn_hidden_size),
        "moe_act": _routed_tokens(ctx) * _input_bytes(ctx, *MLP_INNER, routed=True) * moe.ffn_hidden_size,
    }
    return routed.get(module, 0.0)


def offloaded_bytes(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return activations of one layer and micro-batch that go to the host where activations do.

    All that the layer keeps, or of that the inputs of the modules of ``offload_modules`` (Megatron-LM
    d98e8a64 ``transformer_config.py offload_modules``); of a share of the layers, that share. Under full
    recomputation these are the inputs of replayed layers; other layers' activations stay.
    """
    facts, kept = ctx.facts, np.where(ctx.full, checkpoint_bytes(ctx), layer_activation_bytes(ctx, kind))
    if facts.offload_modules != "all":
        names = facts.offload_modules.split("+")
        sent = {name: _module_input_bytes(ctx, kind, name) for name in names}
        every = sum(sent.values(), np.zeros_like(kept))
        kept = np.minimum(np.where(ctx.full, sent.get(LAYER_INPUT, 0.0), every), kept)
    return kept * offloaded_layers(facts, ctx.model)


def offloaded_layers(facts: FrameworkFacts, model: ModelSpec) -> float:
    """Return the share of the layers with activations that go to the host."""
    return min(facts.offload_layers / model.num_layers, 1.0) if facts.offload_layers else 1.0


LAYER_INPUT = "attn_norm"  # the module that reads a layer's input
_OF_MLP = ("mlp_norm", "mlp_act")
_OF_ATTENTION = ("attn_norm", "qkv_linear", "core_attn", "attn_proj")


def _module_input_bytes(ctx: Context, kind: LayerKind, module: str) -> FloatArray:
    model, moe, t = ctx.model, ctx.model.moe, ctx.t
    rows = ctx.tokens * model.hidden_size * ctx.row_share
    heads, kv = model.num_attention_heads / t, np.maximum(model.num_kv_heads / t, 1.0)
    if (module in _OF_ATTENTION and not model.mixes_tokens) or (module in _OF_MLP and not model.has_mlp):
        return np.zeros_like(rows)
    routed = _routed_tokens(ctx) if kind == "moe" else np.zeros_like(rows)
    matrices = model.mlp_matrices - 1.0
    width, dense = matrices * (moe.ffn_hidden_size if moe else 0), matrices * (kind == "dense")
    inputs: dict[str, FloatArray] = {
        **dict.fromkeys(("attn_norm", "mlp_norm"), 2.0 * rows),
        "qkv_linear": _input_bytes(ctx, *ATTENTION_INPUT) * rows,
        "core_attn": 2.0 * ctx.tokens * (heads * model.head_dim + kv * (model.head_dim + model.v_head_dim)),
        "attn_proj": 2.0 * ctx.tokens * heads * model.v_head_dim,
        "expert_fc1": _input_bytes(ctx, *MLP_INPUT, routed=True) * routed * model.expert_width,
        "moe_act": 2.0 * routed * width,
        "mlp_act": 2.0 * ctx.tokens * dense * model.ffn_hidden_size / t,
    }
    return inputs[module]


def checkpoint_bytes(ctx: Context) -> FloatArray:
    """Return a fully recomputed layer's kept input, ``2 s b h`` of every stream (Korthikanti 2022, 5).

    Twice as much where rows are fp32.
    """
    rows = ctx.model.num_streams + ctx.model.residual_rows / max(ctx.model.residual_block_layers, 1)
    each = 2.0 * rows * (1.0 + ctx.wide_rows)
    return ctx.tokens * ctx.model.hidden_size * each * ctx.row_share


# Of weights that travel in 8 bits, next to the gathered ones; of gradients in 4 bits as sent and received
# (DeepSpeed 0.19 ``partition_parameters.py _all_gather_coalesced``, ``all_to_all_quant_reduce``).
_CAST_WEIGHT_BYTES, _CAST_GRADIENT_BYTES = 1.0, 1.0


def buffer_bytes(ctx: Context, largest_layer: Weights, trained: Weights) -> FloatArray:
    """Return workspaces and buckets; under ZeRO-3 the gathered layers, and one layer's gradients.

    Under torch's pipeline runtime one layer is on its way on top of those that ``state_bytes`` counts; of
    matrices gathered one by one, one in addition to those that may stay, and its gradient.
    """
    torch = ctx.sharding.in_torch_pipeline
    layer, gradients = largest_layer.dense + largest_layer.routed, trained.dense + trained.routed
    held = layer * np.where(torch, 1.0, ctx.facts.gathered_layers)
    if ctx.facts.gathers_modules:
        matrix = np.minimum(layer, largest_tensor(ctx.model) / ctx.t)
        held = np.minimum(held, _LIVE_WEIGHTS + matrix)
        gradients = np.minimum(gradients, matrix)
    narrow = largest_layer.dense * (2.0 - ctx.sharding.gathered_bytes) * ctx.facts.gathers_8_bits
    read = _shard_bytes(ctx, _low_precision_bytes(ctx)) - narrow / layer
    read = read + _CAST_WEIGHT_BYTES * ctx.facts.quantized_gathers
    sent = ctx.facts.gradient_bytes + _CAST_GRADIENT_BYTES * ctx.facts.quantized_reductions
    if ctx.packed:  # gathered as they lie, and one matrix at a time made 2 bytes a weight
        widest = np.minimum(largest_layer.dense, float(ctx.model.hidden_size * ctx.model.ffn_hidden_size))
        each = ctx.layer_bytes_sent
        held, read = held + widest * 2.0 / each, np.full_like(ctx.t, each)
    gathered = held * np.where(torch, 2.0, read) + gradients * sent
    standing = ctx.facts.bucket_bytes if ctx.facts.keeps_buckets else 0.0
    kept = ctx.constants.base_bytes + np.where(ctx.buckets, standing, 0.0)
    return kept + np.where((ctx.columns.zero_stage == SHARD_WEIGHTS) | torch, gathered, 0.0)


def shard_buffer_bytes(ctx: Context, part: Weights, *, layer: bool) -> FloatArray:
    """Return buffers of gathered matrices and of their whole gradients where ranks share weights, (n,).

    Layers share one of each shape for weights in bf16, and one for either pass of those in 8 or 4 bits;
    experts, which are fetched a layer ahead, have two; a replay has one of its own. Gradients have the
    dtype that they add up in (Megatron-LM d98e8a64 ``core/tensor_parallel/
    generalized_tensor_parallelism.py _get_cache_key, get_wgrad_tensor``).
    """
    dense = np.where(ctx.g > 1, (part.dense - part.whole) * ctx.g, 0.0)
    routed = np.where(ctx.ge > 1, part.routed * ctx.ge, 0.0)
    quantised = SHARDED_BYTES.get(ctx.facts.precision_recipe) if layer else None
    each, copies = (quantised, 2.0) if quantised else (2.0, 1.0)
    gathered = dense * (copies + ctx.full * layer) + routed * (2.0 * copies + ctx.full)
    return np.asarray(gathered * each + (dense + routed) * ctx.facts.gradient_bytes)


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
    groups = ~ctx.sharding.in_torch_pipeline & ctx.facts.reshards_after_backward
    shards_gradients = groups & (stage == SHARD_GRADIENTS)
    shards_weights = groups & (stage == SHARD_WEIGHTS) & ~ctx.sharding.adds_whole_gradients
    each_bytes = np.where(ctx.sharding.adds_whole_gradients, 2.0, ctx.facts.reduced_gradient_bytes)
    untied_head = head * (not tied)
    of_last = np.maximum(replayed, 2.0 * layer - freed) + (each_bytes - 2.0) * untied_head
    of_next = np.maximum(each_bytes * layer, replayed + (each_bytes - 2.0) * layer) - freed
    of_layers = np.maximum(of_last, of_next - 2.0 * untied_head)
    buffer = ctx.facts.gradient_bytes * layer  # counted among the buffers, and not there yet
    if tied:
        at_head = 8.0 * head - buffer - freed * ctx.model.num_layers
        at_layers = 4.0 * head + replayed - np.minimum(buffer, freed)
    else:
        head_bytes = 2.0 + each_bytes + each_bytes / ctx.dense_replicas.sharing
        gathered = ctx.sharding.gathered_bytes * (ctx.facts.gathered_layers - 1.0) * layer
        at_head = head_bytes * head - buffer - gathered
        at_layers = each_bytes * head - buffer + np.maximum(replayed, 2.0 * layer - freed)
    return (
        np.where(shards_gradients, each_bytes * untied_head, np.where(shards_weights, at_head, 0.0)),
        np.where(shards_gradients, of_layers, np.where(shards_weights, at_layers, 0.0)),
    )


# A flat copy of a group's gradients as they are kept, and the fp32 copy that it becomes: both at once.
_FLAT_GRADIENT_BYTES, _COPIED_GRADIENT_BYTES = 2.0, 4.0


def _updated_bytes(ctx: Context, layout: LayerLayout, trained: list[Weights]) -> FloatArray:
    """Return what an update makes of the weights on one stage besides their states, (n,).

    DeepSpeed flattens the gradients of a group and copies them to the fp32 of master weights: of
    ``sub_group_size`` weights of a shard under ZeRO-3, of the whole shard under ZeRO-1 and 2 (0.19.8
    ``stage3.py _prepare_fp32_grad_for_sub_group``, ``stage_1_and_2.py step``). Torch's foreach update makes
    a copy of all second moments (torch 2.11 ``optim/adam.py``: ``exp_avg_sq_sqrt``), a fused one nothing;
    clipping multiplies in place (``nn/utils/clip_grad.py _foreach_mul_``). A plan with stages counts none.
    A loop over tensors makes temporaries of the largest one, and BAdam a copy of a block's gradients.
    """
    stage, group, facts = ctx.columns.zero_stage, ctx.facts.sub_group_size, ctx.facts
    copies = bool(group) * (_FLAT_GRADIENT_BYTES + _COPIED_GRADIENT_BYTES * ctx.optimizer.fp32_copy)
    listed = ctx.optimizer.foreach_bytes if facts.optimizer_kernel == FOREACH else 0.0
    of_tensor = ctx.optimizer.temporary_bytes * (not ctx.optimizer.by_layer)
    listed += ctx.optimizer.copied_bytes
    if not copies and not listed and not of_tensor:
        return np.zeros_like(ctx.t)
    counts = [*layout.cumulative[-1].tolist(), 1, 1]
    dense, routed = (
        sum(count * getattr(part, name) for count, part in zip(counts, trained, strict=True))
        for name in ("dense", "routed")
    )
    shard = dense / ctx.dense_replicas.sharing + routed / ctx.expert_replicas.sharing
    if group:
        shard = np.where(stage == SHARD_WEIGHTS, np.minimum(group, shard), shard)
    each = copies * (stage > 0) + listed
    made = each * shard + of_tensor * np.minimum(largest_tensor(ctx.model), shard)
    return np.where((ctx.p == 1) & ~ctx.offloads_optimizer, made, 0.0)


def _gradients_grow(ctx: Context) -> BoolArray | None:
    """Mark rows whose gradients come layer by layer while activations go: there are none before.

    That is where an update frees them and a step has one micro-batch. Without a pipeline: in one, several
    micro-batches are under way.
    """
    if not ctx.facts.frees_gradients or ctx.optimizer.by_layer:
        return None
    alone = (ctx.columns.num_microbatches == 1) & (ctx.p == 1)
    grows = alone & (ctx.copies_of_gradients(ctx.dense_replicas) == 1.0) & ~ctx.offloads_gradients
    return np.asarray(grows) if grows.any() else None


def _beyond_activations(
    ctx: Context, whole: FloatArray, kept: list[FloatArray], counts: list[int]
) -> FloatArray:
    """Return gradients of each part beyond the activations that go as they come, (n, K + 2).

    A layer then weighs as much as the larger of both, and an embedding, whose gradient comes last, what it
    has beyond all activations that are left over. A tied embedding's comes first, as that of a head.

    Args:
        ctx: the rows.
        whole: gradients of each part at the end of a backward pass, (n, K + 2).
        kept: activations of a layer of each kind, (n,).
        counts: layers of each kind.
    """
    last, layers = len(kept), np.stack(kept, axis=1)
    counted = whole.copy()
    counted[:, :last] = np.maximum(whole[:, :last] - layers, 0.0)
    if not ctx.model.tied_embeddings:
        left = np.maximum(layers - whole[:, :last], 0.0) @ np.array(counts, dtype=np.float64)
        counted[:, last] = np.maximum(whole[:, last] - left, 0.0)
    return counted


def _growing(
    ctx: Context, moments: dict[str, FloatArray], ends: FloatArray, whole: FloatArray, counted: FloatArray
) -> dict[str, FloatArray]:
    """Return workspaces where gradients grow: less what parts count of them that is not there yet.

    At a loss there are those of the head, or of a tied embedding; at the end of the backward pass all, and
    activations of one layer.

    Args:
        ctx: the rows.
        moments: workspaces on top of whole gradients and all activations, (n,) each.
        ends: the same at the end of the backward pass, (n,).
        whole: gradients of layers of each kind together, of embedding and head, (n, K + 2).
        counted: what parts count of them, (n, K + 2).
    """
    first = -2 if ctx.model.tied_embeddings else -1  # of the parts that have gradients at the loss
    every, absent = counted.sum(axis=1), counted[:, :first].sum(axis=1)
    missing = whole.sum(axis=1) - every
    return {
        LOSS: moments[LOSS] - absent,
        FORWARD: moments[FORWARD] - every,
        BACKWARD: np.maximum(moments[BACKWARD] - absent, ends + missing),
        UPDATE: moments[UPDATE] + missing,
    }


def evaluated_bytes(ctx: Context) -> FloatArray:
    """Return the most bytes that an evaluation makes at once, (n,): of logits, or of an MLP.

    It keeps no activation (transformers 5.23 ``trainer.py:3189 prediction_step``), and frees logits after
    their loss unless a script's ``compute_metrics`` collects them (``:2868``). A loss that makes a part of
    the logits at a time does here, too (Liger: ``:3265 skip_logits``). An MLP of single operators has its
    input before and after the norm, the activated gate, and both factors' product at once.
    """
    more = ctx.facts.evaluation_batch_size / ctx.micro_batch
    its = replace(ctx, micro_batch=ctx.micro_batch * more, tokens=ctx.tokens * more)
    model, moe = ctx.model, ctx.model.moe
    routed = moe.ffn_hidden_size * ctx.visits + moe.shared_ffn_hidden_size if moe else 0.0
    width = np.maximum(routed, model.ffn_hidden_size)
    passing = 2.0 * its.tokens * (2.0 * model.hidden_size + 3.0 * width / ctx.t)
    return np.asarray(np.maximum(loss_bytes(its)[0], passing))


def loaded_bytes(ctx: Context, row: int, weights_bytes: float, states_bytes: float) -> float:
    """Return the weights of a stage before the first step: as stored, without casts and moments.

    Args:
        ctx: the rows.
        row: of them.
        weights_bytes: what the stage's weights take in a step.
        states_bytes: what its optimizer's states take, their fp32 copy included.
    """
    layout, facts = LayerLayout.of(ctx.model, ctx.training), ctx.facts
    _, casts = saved_casts_bytes(ctx, layout.kinds, layout.cumulative[-1].tolist(), first=False)
    moments = ctx.optimizer.state_bytes
    # moments may be smaller than AdamW's, with no copy beside them
    copy = max(facts.optimizer_bytes - _ADAMW_STATE_BYTES, 0.0) if ctx.optimizer.fp32_copy else 0.0
    if ctx.optimizer.fp32_copy and ctx.columns.zero_stage[row] < SHARD_WEIGHTS:
        copy += facts.weight_bytes - 2.0
    return weights_bytes - float(casts[row]) + states_bytes * copy / max(copy + moments, 1.0)


def kept_free_words(problem: Problem, profile: Profile) -> str:
    """Return the memory that the accepted risk of running out keeps free, of each kind of GPU."""
    risk = problem.options.max_out_of_memory_probability
    parts = []
    for one in profile.by_group or (profile,):
        limit = one.group.gpu.memory_bytes if profile.by_group else problem.memory_limit_bytes
        share = 1.0 - min(_budget_share(one, risk), 1.0)
        of = f" of {one.group.gpu.slug}" if profile.by_group else ""
        parts.append(f"{share * limit / GIB:.1f} of {limit / GIB:.1f} GiB{of} ({percent(share)})")
    return f"{', '.join(parts)}, for an out-of-memory risk of at most {risk * 100:g} %"


def memory_budget_bytes(problem: Problem, profile: Profile) -> float:
    """Return the largest predicted peak that runs out of memory with no more than the accepted risk.

    ``limit * exp(sigma * ppf(risk))`` of a log-normal peak, and 1e-9 more for judges that round.
    """
    risk = problem.options.max_out_of_memory_probability
    return problem.memory_limit_bytes * (1.0 + 1e-9) * _budget_share(profile, risk)


def _budget_share(profile: Profile, probability: float) -> float:
    if probability >= 1.0:
        return float("inf")
    if probability <= 0.0 or profile.log_memory_sigma == 0.0:
        return 1.0 if profile.log_memory_sigma == 0.0 else 0.0
    return float(np.exp(profile.log_memory_sigma * NormalDist().inv_cdf(probability)))


def out_of_memory_probability(peak_bytes: float, limit_bytes: float, sigma: float) -> float:
    """Return the chance that a log-normal peak about ``peak_bytes`` exceeds the limit.

    ``Phi(ln(peak / limit) / sigma)``.
    """
    if peak_bytes <= 0.0:
        return 0.0
    if sigma == 0.0:
        return float(peak_bytes > limit_bytes)
    return NormalDist().cdf(log(peak_bytes / limit_bytes) / sigma)


# --------------------------------------------------------------------------------------------------
# Memory of every part and row as prices: what the formulas of ``memory`` add up to.


def spilled_s(
    ctx: Context, kind: LayerKind, passes: PassSeconds, weights_s: FloatArray | float
) -> PassSeconds:
    """Return how long each pass waits for offloaded activations on their way to or from the host.

    Copies run on a stream of their own under the pass (Transformer Engine ``get_cpu_offload_context``).
    Offloaded weights take ``weights_s`` of the same link: in a backward pass both come to the GPU, in a
    forward pass one comes while the other leaves.
    """
    copied = offloaded_bytes(ctx, kind) / ctx.host.link_bytes_per_s
    copied = np.where(ctx.offloads_activations, copied, 0.0)
    return PassSeconds(
        forward=np.maximum(copied - passes.forward, 0.0),
        backward=np.maximum(copied - np.maximum(passes.backward - weights_s, 0.0), 0.0),
    )


def one_hot_bytes(ctx: Context) -> FloatArray:
    """Return the one-hot rows of a micro-batch's tokens, of which a rank has those of its table."""
    return _ONE_HOT_BYTES * ctx.tokens * ctx.model.vocab_size / ctx.vocabulary_ranks


def tower_bytes(ctx: Context) -> FloatArray:
    """Return what a vision tower and its projector keep of one micro-batch; a frozen tower: nothing."""
    tower = ctx.model.tower
    if tower is None or not images_of(ctx).rows:
        return np.zeros_like(ctx.t)
    kept = projector_bytes(ctx, tower)
    if not passes_gradients(ctx):
        return kept
    its = tower_context(ctx)
    # rotated queries and keys next to the product that yields them with values; inputs of a sum's scales
    further = its.tokens * 2.0 * (2.0 * tower.rotary * tower.attention_width + tower.layer_vectors) / its.t
    layer = np.where(its.full, checkpoint_bytes(its), layer_activation_bytes(its, LAYER.kind) + further)
    trained = "vision" not in ctx.workload.frozen_parts
    patches = images_of(ctx).patches * trained  # whose product has a weight gradient
    pixels = 2.0 * ctx.micro_batch * patches / ctx.image_ranks * tower.patch_inputs
    return np.asarray(kept + pixels + tower.num_layers * layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Activations of one micro-batch, (n,) each: of a layer of each kind, and of both ends."""

    plain: list[FloatArray]  # of a layer that is not replayed
    replayed: list[FloatArray]  # of one that is
    ends: list[FloatArray]  # embedding, prediction layers
    largest: FloatArray  # a whole layer's, wherever it lies
    copying: FloatArray  # on their way to the host

    @classmethod
    def of(cls, ctx: Context, layout: LayerLayout) -> _Kept:
        """Return what layers keep.

        Offloaded activations leave two layers' on the GPU: one in use, one on its way. A replayed layer's
        are its input. Where the backward pass is split, it keeps all of them until its weight gradients are
        done. A micro-batch in flight is counted so from the start, so that a recomputed layer never weighs
        too little.
        """
        *layers, of_embedding, of_prediction = _activations_bytes(ctx, layout)
        plain, inputs, copying = layers, checkpoint_bytes(ctx), np.zeros_like(ctx.t)
        if (offloads := ctx.offloads_activations).any():
            spillable = [offloaded_bytes(ctx.of(shape), shape.kind) for shape in layout.kinds]
            offloaded = [np.where(offloads, layer, 0.0) for layer in spillable]
            plain = [np.where(ctx.full, a, a - b) for a, b in zip(plain, offloaded, strict=True)]
            copying = 2.0 * np.maximum.reduce(offloaded)
            inputs = inputs - np.where(ctx.full, offloaded[0], 0.0)  # of each layer alike
        return cls(
            plain=plain,
            replayed=[
                np.where(
                    ctx.splits_backward | (not ctx.replays(shape)), stored, inputs * (shape.trains != BELOW)
                )
                for stored, shape in zip(plain, layout.kinds, strict=True)
            ],
            ends=[of_embedding, of_prediction],
            largest=np.maximum.reduce(layers),
            copying=copying,
        )

    def of_layers(self, ctx: Context) -> list[FloatArray]:
        """Return what a layer of each kind keeps as the row recomputes it."""
        return [
            np.where(ctx.full, again, stored)
            for stored, again in zip(self.plain, self.replayed, strict=True)
        ]


def _begun_bytes(
    ctx: Context, layout: LayerLayout, kept: _Kept, cast: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Return bytes beyond what layers keep, (n,) each: of the last forward pass, of any backward pass.

    Those are copies on their way to the host, what a replay makes (``cast``: of its weights too), and what
    single kernels hand on.
    """
    # a second micro-batch computes a layer while the first exchanges tokens
    overlapping = _overlaps_experts(ctx)
    into = back = np.zeros_like(ctx.t)
    if ctx.facts.separate_projections:
        passing = [passing_bytes(ctx.of(shape), shape.kind) for shape in layout.kinds]
        into, back = (np.maximum.reduce([one[way] for one in passing]) for way in (0, 1))
    if ctx.facts.mlp_tile_tokens:
        into, back = _tile_bytes(ctx, layout, into, back)
    layers = [ctx.of(shape) for shape in layout.kinds]
    # an attention's backward pass comes after its MLP's
    back = np.maximum.reduce([back, *(passing_scores_bytes(one) for one in layers if not one.flash)])
    largest = kept.largest
    begun = kept.copying + ctx.full * (largest + cast) + np.where(overlapping, largest, 0.0) + back
    if ctx.facts.dora and ctx.frozen:
        norms = [norm_workspace_bytes(ctx.of(one), one.kind) for one in layout.kinds]
        begun = begun + np.maximum.reduce(norms)
    if ctx.facts.fake_quantization != "none":
        rounded = [
            made(ctx.of(one), one.kind)
            for one in layout.kinds
            for made in (fake_workspace_bytes, merged_workspace_bytes)
        ]
        begun = begun + np.maximum.reduce(rounded)
    return np.where(ctx.facts.mlp_tile_tokens > 0.0, 1.0, ctx.full) * into, begun


@each_way
def _overlaps_experts(ctx: Context) -> BoolArray | bool:
    return ctx.facts.overlap_experts and experts_overlap(ctx.columns, ctx.model)


def _of_tiles(ctx: Context, kind: LayerKind) -> FloatArray | float:
    """Return what an MLP in tiles does not save: all but its input (DeepSpeed 0.19 ulysses_sp.py:1001)."""
    return _freed_bytes(ctx, kind, "mlp") if ctx.facts.mlp_tile_tokens else 0.0


def _tile_bytes(
    ctx: Context, layout: LayerLayout, into: FloatArray, back: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return what an MLP in tiles holds in a forward and a backward pass, beside its input, (n,) each.

    Forward what operators of one tile hand on, next to the outputs of all tiles, which are joined (Axolotl
    0.18 ``monkeypatch/tiled_mlp/base.py:249``). Backward all that a tile keeps and, without DeepSpeed, the
    gradients of an MLP's weights that add up (:294), in their 2 bytes.
    """
    share = 1.0 / mlp_tiles(ctx)
    layers = [ctx.of(one) for one in layout.kinds]
    inner = [
        np.zeros_like(ctx.t) + _freed_bytes(own, one.kind, "mlp")
        for own, one in zip(layers, layout.kinds, strict=True)
    ]
    sums = 2.0 * np.maximum.reduce([mlp_weights(own) for own in layers]) * adds_apart(ctx)
    joined = 2.0 * ctx.tokens * ctx.model.hidden_size
    return into * share + joined, (back + np.maximum.reduce(inner)) * share + sums


def _page_bytes(ctx: Context) -> FloatArray:
    """Return the pages that an update needs on a full GPU at once, (n,): those of its largest tensor."""
    if not ctx.share_paged.any():
        return np.zeros_like(ctx.t)
    work = ctx.workload
    sizes = trained_tensors(
        ctx.model, work.lora_targets, work.lora_rank, work.trained_modules, rotates=ctx.facts.oft
    )
    largest = max(sizes, default=largest_tensor(ctx.model))
    return np.where(ctx.share_paged > 0.0, largest * ctx.optimizer.end_state_bytes, 0.0)


def memory_prices(
    ctx: Context, layout: LayerLayout, weights: list[Weights], trained: list[Weights]
) -> dict[str, Any]:
    """Return the memory fields of RowPrices.

    Args:
        ctx: the rows.
        layout: kinds of layers, and how many of each.
        weights: of a rank by part: kinds of layers, embedding, head with prediction layers.
        trained: those of them that are trained.
    """
    zero, last = np.zeros_like(ctx.t), len(layout.kinds)
    kept, held = _Kept.of(ctx, layout), _held_bytes(ctx, layout, weights, trained)
    moments, held["gradients_bytes"] = _moments(ctx, layout, kept, trained, held["gradients_bytes"])
    bytes_of = {
        **held,
        "activation_bytes": np.stack([*kept.plain, *kept.ends], axis=1),
        "checkpoint_bytes": np.stack([*kept.replayed, zero, zero], axis=1),
        "buffer_bytes": buffer_bytes(ctx, weights[last - 1], trained[last - 1])
        + shard_buffer_bytes(ctx, weights[last - 1], layer=True),
    }
    alone = (ctx.columns.num_gpus == 1).astype(np.float64)
    moments = {name: amount * ctx.element_scale for name, amount in moments.items()}
    return {
        "ranks_in_turn": ctx.sharding.ranks_in_turn,
        **{name: amount * ctx.element_scale for name, amount in bytes_of.items()},
        "head_workspace_bytes": np.maximum.reduce([moments[name] for name in OF_HEAD if name in moments]),
        "replay_workspace_bytes": np.maximum(moments[BACKWARD], moments[UPDATE]),
        "moments": moments,
        "context_bytes": ctx.constants.context_bytes
        + ctx.facts.dispatch_buffer_bytes * (ctx.e > 1)
        - _COMMUNICATORS_BYTES * alone
        + _page_bytes(ctx),
        "reserve": 1.0 + FRAGMENTS * (ctx.constants.reserve - 1.0) * np.ones_like(ctx.t),
    }


def _moments(
    ctx: Context, layout: LayerLayout, kept: _Kept, trained: list[Weights], gradients: FloatArray
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Return bytes on top of what parts keep by moment, (n,) each, and gradients as parts count them.

    Args:
        ctx: the rows.
        layout: kinds of layers, and how many of each.
        kept: activations of one micro-batch.
        trained: trained weights of a rank by part.
        gradients: of each part at the end of a backward pass, (n, K + 2).
    """
    zero, last, counts = np.zeros_like(ctx.t), len(layout.kinds), layout.cumulative[-1].tolist()
    numbers, layers = np.array([*counts, 1.0, 1.0]), kept.of_layers(ctx)
    of_layers = sum((count * layer for count, layer in zip(counts, layers, strict=True)), zero)
    cached, head_copy, cast = casts_bytes(ctx, layout.kinds, counts)
    into, begun = _begun_bytes(ctx, layout, kept, cast)
    layer_weights = trained[layout.last_trained]
    of_head, of_layer = reducing_bytes(
        ctx,
        trained[last + (not ctx.model.tied_embeddings)].ends,  # of the output matrix
        layer_weights.dense + layer_weights.routed,
        begun,
        layers[-1],
    )
    forward, backward = loss_bytes(ctx)
    _, casts_held = saved_casts_bytes(ctx, layout.kinds, counts, first=False)
    in_forward = np.maximum(forward + head_copy, into)
    moments = {
        LOSS: np.maximum(backward + head_copy, of_head),
        FORWARD: in_forward + cached,
        BACKWARD: np.maximum(begun, of_layer),
        UPDATE: _updated_bytes(ctx, layout, trained) - of_layers - casts_held,
    }
    counted = gradients
    if (grows := _gradients_grow(ctx)) is not None:
        beyond = _beyond_activations(ctx, gradients, layers, counts)
        counted = np.where(grows[:, None], beyond, gradients)
        cached, saved = saved_casts_bytes(ctx, layout.kinds, counts, first=True)
        casts = {FORWARD: cached, LOSS: saved, BACKWARD: saved, UPDATE: zero}
        # in the backward pass of the model's first layer
        ends = begun + np.maximum.reduce(layers) - of_layers
        before = {name: amount + casts[name] for name, amount in moments.items()}
        growing = _growing(ctx, before, ends, gradients * numbers, counted * numbers)
        moments = {name: np.where(grows, growing[name], amount) for name, amount in moments.items()}
    if ctx.facts.evaluation_batch_size:
        held = (counted * numbers).sum(axis=1)
        absent = held * (ctx.facts.frees_gradients & ~(zero > 0 if grows is None else grows))
        own = evaluated_bytes(ctx) + head_copy - in_forward - of_layers - absent
        moments[EVALUATION] = moments[FORWARD] + own
    return moments, counted


def _held_bytes(
    ctx: Context, layout: LayerLayout, weights: list[Weights], trained: list[Weights]
) -> dict[str, FloatArray]:
    """Return weights, gradients and states of each part, (n, K + 2); arguments as ``memory_prices``."""
    last = len(layout.kinds)
    # parts besides layers whose weights the optimizer takes as matrices
    further = [] if ctx.optimizer.head_apart or ctx.model.tied_embeddings else [last + 1]
    states = [
        state_bytes(ctx, *pair, matrices=part < last or part in further)
        for part, pair in enumerate(zip(weights, trained, strict=True))
    ]
    held = {
        f"{term.name}_bytes": np.stack([getattr(state, term.name) for state in states], axis=1)
        for term in fields(StateBytes)
    }
    if ctx.facts.redraws_layers:  # in the end each layer has been trained
        moments = [state_bytes(ctx, own, own, matrices=True).optimizer for own in weights[:last]]
        held["optimizer_bytes"][:, :last] = np.stack(moments, axis=1)
    if ctx.training or ctx.frozen or ctx.held_precision == "fp32" or ctx.wide_ends.any():
        held["weights_bytes"] += np.stack(base_bytes_beyond(ctx, layout.kinds, weights), axis=1)
    if ctx.workload.reference == "frozen":
        held["weights_bytes"] += np.stack(reference_bytes(ctx, weights), axis=1)
    if ctx.model.diffusion:
        held["weights_bytes"][:, last] += 2.0 * ctx.model.diffusion.encoder_weights
    for part in (last, last + 1):
        held["weights_bytes"][:, part] += shard_buffer_bytes(ctx, weights[part], layer=False)
    if ctx.optimizer.by_layer:  # a head's gradient comes first, while all activations are held
        for name in ("gradients_bytes", "reduced_gradients_bytes"):
            held[name][:, : last + 1 - int(ctx.model.tied_embeddings)] = 0.0
            held[name] *= 1.0 + ctx.optimizer.temporaries  # of that gradient's size and dtype
    return held


def _activations_bytes(ctx: Context, layout: LayerLayout) -> list[FloatArray]:
    """Return activations of one micro-batch of each part: layer kinds, embedding, prediction layers."""
    of_layers = [
        layer_activation_bytes(ctx.of(shape), shape.kind) * (shape.trains != BELOW)
        for shape in layout.kinds
    ]
    of_embedding = ctx.tokens * ctx.model.hidden_size * ctx.row_share * float(ctx.facts.dropout)  # masks
    if ctx.facts.embedding_products and EMBEDDING in ctx.trained_modules:
        of_embedding = of_embedding + one_hot_bytes(ctx)  # the table's gradient reads them, last of all
    if ctx.model.tower:
        of_embedding = of_embedding + tower_bytes(ctx)
    of_prediction = np.zeros_like(ctx.t)
    if depth := ctx.model.num_mtp_layers:
        of_prediction = layer_activation_bytes(ctx.of_prediction, ctx.model.mtp_shape.kind) * depth
    return [*of_layers, of_embedding, of_prediction]


# --------------------------------------------------------------------------------------------------
# Host memory and drives that offloading takes: what one GPU's rank keeps in its node's.


# Elements of a group of parameters that DeepSpeed updates together from NVMe (``sub_group_size``, as it
# is exported), buffers for parameter, gradient and two moments (``offload_optimizer.buffer_count``) and for
# weights that are read (``offload_param.buffer_count``, the default).
SWAPPED_GROUP, STATE_BUFFERS, WEIGHT_BUFFERS = 100_000_000, 4, 5
WEIGHTS_IN_CPU = 1_000_000_000  # that stay in host memory next to NVMe: ``max_in_cpu``, its default


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Bytes that the fullest rank of an even split keeps outside its GPU, shape (n,)."""

    states: FloatArray  # in host memory, and weights there; 0 where nothing is offloaded
    activations: FloatArray  # of one micro-batch in flight, in host memory
    in_flight: FloatArray  # micro-batches of each layer (``held_first``)
    nvme: FloatArray

    @property
    def host(self) -> FloatArray:
        """Return the bytes of host memory, (n,)."""
        return self.states + self.activations * self.in_flight


def outside_bytes(ctx: Context) -> Outside:
    """Return the bytes of host memory and drives.

    Optimizer states and fp32 copies leave the GPU, and gradients have a buffer where they arrive
    (ZeRO-Offload, arXiv:2101.06840, section 4.1: 14 of 16 bytes a weight); activations of every micro-batch
    in flight, or what recomputation keeps of them. Where a framework keeps gradients on the host
    (DeepSpeed 0.19 ``stage3.py:740``), the buffer comes with an fp32 gradient that Adam reads (``1287``;
    below stage 3 with a 2-byte copy of the weights, ``stage_1_and_2.py:505``); drives hold copy, moments
    and that fp32 gradient instead (``swap_tensor/optimizer_utils.py``), and pinned buffers are left on the
    host. A sum of the CPU's own (FSDP2) has no further copy. Pages that leave the GPU lie here. The
    fullest rank has ``ceil(L / pp)``
    layers of the larger kind and the larger end of the model, or both ends.
    """
    layout, facts = LayerLayout.of(ctx.model, ctx.training), ctx.facts
    here = replace(ctx, columns=replace(ctx.columns, offload=np.zeros_like(ctx.columns.offload)))
    weights = part_weights(here, layout.kinds)
    memory = memory_prices(here, layout, weights, trained_parts(here, layout.kinds, weights))
    layers = np.ceil(layout.num_layers / ctx.p)
    sent = np.maximum.reduce([offloaded_bytes(ctx.of(one), one.kind) for one in layout.kinds])  # of a layer
    states = _fullest(memory["optimizer_bytes"], layers, ctx)
    pages = np.zeros_like(states)
    if ctx.share_paged.any():
        stay = memory_prices(ctx, layout, weights, trained_parts(ctx, layout.kinds, weights))
        pages = states - _fullest(stay["optimizer_bytes"], layers, ctx)
    shard = _fullest(memory["weights_bytes"], layers, ctx)
    elements = states / facts.optimizer_bytes
    arriving, main = elements * facts.gradient_bytes, np.zeros_like(states)
    if facts.offloads_gradients and not facts.adds_gradients_on_host:
        arriving = arriving + np.where(ctx.columns.zero_stage == SHARD_WEIGHTS, 0.0, 2.0 * elements)
        main = 4.0 * elements
    if facts.cpu_update_interval > 1.0:
        main = main + _DEFERRED_BYTES * elements
    swapped, pinned = ctx.swaps_optimizer, largest_tensor(ctx.model) / ctx.dense_replicas.sharing
    group = np.minimum(SWAPPED_GROUP + pinned, elements)
    updated = np.where(swapped, arriving + STATE_BUFFERS * 4.0 * group, states + main + arriving)
    read = 2.0 * (WEIGHT_BUFFERS * pinned + np.minimum(WEIGHTS_IN_CPU, elements))
    held = np.where(ctx.swaps_weights, read, np.where(ctx.offloads_weights, shard, 0.0))
    # an update on the GPU casts its weights here, group by group (``step_end._returned_s``)
    of_group = np.minimum(np.maximum(facts.sub_group_size or elements, pinned), elements)
    held = held + np.where(ctx.offloads_weights & ~ctx.offloads_optimizer, 4.0 * of_group, 0.0)
    return Outside(
        states=ctx.share_offloaded * updated + held + pages,
        activations=np.where(ctx.offloads_activations, layers * sent, 0.0),
        in_flight=held_first(ctx.columns),
        nvme=np.where(swapped, states + main, 0.0) + np.where(ctx.swaps_weights, shard, 0.0),
    )


_STORED = 2.0  # bytes of a weight in a model's files, bf16 as most are


def read_bytes(ctx: Context) -> float:
    """Return the host bytes of a rank that reads all weights.

    safetensors files are mapped: a tensor that keeps its dtype is a view of the page cache, which all ranks
    share and the kernel takes back (transformers 5.23 ``core_model_loading.py:1319 _materialize_copy``,
    ``modeling_utils.py:4561``). What takes memory is a copy: to fp32, or of experts that are stored one by
    one and merged (``core_model_loading.py:259 MergeModulelist``). Weights of 8 and 4 bits are quantised on
    the GPU.
    """
    work = ctx.workload
    quantised = ctx.frozen and work.base_precision not in WHOLE_PRECISIONS
    if ctx.facts.weights_read_by == "nobody" or quantised:
        return 0.0
    each = _STORED if ctx.frozen and work.base_precision == "bf16" else ctx.facts.weight_bytes
    each = each if ctx.frozen or ctx.optimizer.fp32_copy else _STORED
    return each * ctx.model.num_parameters() if each > _STORED or ctx.model.moe else 0.0


def reads_alone_from(facts: FrameworkFacts) -> int:
    """Return the ZeRO stage from which on one rank of a node reads for the others."""
    return SHARD_WEIGHTS if facts.weights_read_by == "first" else SHARD_GRADIENTS


def loading_bytes(ctx: Context, ranks: float) -> tuple[FloatArray, FloatArray]:
    """Return host bytes of a node of ``ranks`` ranks while they read, and how many do, (n,) each."""
    alone = ctx.columns.zero_stage >= reads_alone_from(ctx.facts)
    each = read_bytes(ctx)
    readers = np.where(alone, min(ranks, 1.0), ranks) * float(each > 0.0)
    return readers * each, readers


def gathered_bytes(ctx: Context) -> FloatArray:
    """Return bytes of weights that one rank gathers in host memory to save them whole, (n,).

    With FSDP the model that ends a run (accelerate 1.15.0 ``accelerator.py:4057 get_state_dict``:
    ``full_state_dict`` with ``cpu_offload``); DeepSpeed's ZeRO-3 saves shards, as exported.
    """
    gathers = ctx.columns.zero_stage >= SHARD_GRADIENTS
    each = ctx.facts.weight_bytes if ctx.facts.weights_read_by == "one-of-a-node" else 0.0
    return np.where(gathers & (not ctx.frozen), each * ctx.model.num_parameters(), 0.0)


def _fullest(price: FloatArray, layers: FloatArray, ctx: Context) -> FloatArray:
    """Sum a part price (n, P) over the fullest rank: its layers are alike, or trained ones come first."""
    ends = np.where(ctx.ends_apart, price[:, -2:].max(axis=1), price[:, -2:].sum(axis=1))
    if not ctx.training:
        return np.asarray(layers * price[:, :-2].max(axis=1) + ends)
    counts = LayerLayout.of(ctx.model, ctx.training).cumulative[-1]
    dearest = np.argsort(-price[:, :-2], axis=1)
    each, there = np.take_along_axis(price[:, :-2], dearest, axis=1), counts[dearest]
    before = there.cumsum(axis=1) - there
    held = np.clip(np.broadcast_to(layers, len(price))[:, None] - before, 0, there)
    return np.asarray((each * held).sum(axis=1) + ends)


def held_first(c: Columns) -> FloatArray:
    """Return the micro-batches that the first rank holds of each of its layers, on average, (n,)."""
    p, v, m = c.pipeline_parallel_size, c.virtual_pipeline_size, c.num_microbatches
    first, of_row = distinct([c.pipeline_schedule, p, v, m])
    few = c.take(first)
    chunk = np.arange(int((p * v).max()))[None, :]
    held = in_flight(few) * (chunk % few.pipeline_parallel_size[:, None] == 0)
    return np.asarray(held.sum(axis=1)[of_row] / v)
