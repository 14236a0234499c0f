"""Seconds that one rank computes for one micro-batch: GEMMs, attention, memory-bound operators.

Shapes follow Megatron-LM's column and row parallel layers (Shoeybi et al. 2019, arXiv:1909.08053). A GEMM
of the forward pass, (m, k) by (k, n), has two in the backward pass: (m, n) by (n, k) and (n, m) by (m, k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.profiles.adapters import adapted_layers
from meshwright.profiles.layers.operators import MIXING, Axis, Block, Operator, Rows
from meshwright.profiles.model import LayerKind
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.operators.operators import flash_attention_s, gemm_s
from meshwright.profiles.operators.tables import IndexArray, OperatorTable, load_operator_tables
from meshwright.profiles.storage import is_of_experts
from meshwright.solver.configuration import FloatArray, distinct
from meshwright.solver.cost.context import Context, PassSeconds, on_slowest
from meshwright.solver.cost.scan import scan
from meshwright.solver.cost.scores import eager_scores
from meshwright.solver.cost.tiles import summed_bytes
from meshwright.solver.cost.ways import each_way

# Operators are priced from the measured tables of the GPU, which show how far each shape misses the roof
# of the GPU it was measured on; the roof here is that of the GPU at hand, so a faster one is never slower.
# Rows share few shapes: each is looked up once.
Lookup = tuple[OperatorTable, tuple[FloatArray, ...]]  # a table, and its arguments of shape (n,)
_FEW = 16  # rows that are looked up sooner than sorted
_NARROWER = 0.25  # if a table does not state it: FlashAttention 2 loses 1.2 for half of it (L40S table)
# Rates of attention kernels over the generation's best, with measured tables. FlashAttention 2 is
# twice as fast as 1 and 1.3 to 2 times as Triton's on A100 (Triton here at its upper end, as the open runs
# have it), and reaches 35 % of an H100 (arXiv:2307.08691); 3 is 1.5 to 2 times as fast there
# (arXiv:2407.08608). Blackwell's table is an inference kernel's: cuDNN's training kernel exceeds it (open
# Megatron-Bridge runs), older ones run Hopper's or Ampere's instructions; FlashAttention 4 is 1.1 to 1.3
# times as fast as cuDNN's there (Zadouri et al. 2026, arXiv:2603.05451). torch's efficient kernel is
# xFormers' of FlashAttention 1 (arXiv:2307.08691, figures 4 to 6, has both). torch's flex_attention reaches
# 0.90 of FlashAttention 2 forward and 0.85 backward, twice as long (pytorch.org/blog/flexattention).
_FLEX = 3.0 / (1.0 / 0.90 + 2.0 / 0.85)
_KERNEL_RATES: Mapping[str, Mapping[str, float]] = {
    "ampere": {"flash1": 0.5, "triton": 0.85, "flex": _FLEX, "efficient": 0.5},
    "ada": {"flex": _FLEX},
    "hopper": {"flash1": 0.3, "triton": 0.45, "flash2": 0.6, "flex": 0.6 * _FLEX, "efficient": 0.3},
    "blackwell": {
        "efficient": 0.2,
        "flash1": 0.2,
        "triton": 0.4,
        "flash2": 0.4,
        "flex": 0.4 * _FLEX,
        "flash3": 0.5,
        "cudnn": 1.15,
        "flash4": 1.3,
    },
}
# Rate of a score under an explicit mask over a causal one: the mean of eight shapes on an H100, both passes
# (benchmarks/data/attention_kernels.jsonl; torch's efficient kernel is no slower).
_MASKED: Mapping[str, float] = {"cudnn": 0.66}
# Attention in 8 bits: forward 740 TFLOP/s in 16 bits and 1,200 in 8 on an H100 (arXiv:2407.08608, figures
# 5 and 7), backward no faster; of the forward's and the backward's sum 1.35.
_FP8_RATE = 1.35


def flash_lookup(ctx: Context) -> Lookup:
    """Return flash attention of whole causal sequences over a rank's heads.

    Raises:
        ProfileError: the GPU has no tables.
    """
    model = ctx.model
    heads = model.num_attention_heads / ctx.t
    kv = np.minimum(np.maximum(model.num_kv_heads / ctx.t, 1.0), heads)
    seq_length = ctx.seq_length / ctx.c
    head_dim = np.full_like(heads, (model.head_dim + model.v_head_dim) / 2.0)
    table = load_operator_tables(ctx.operators.tables).find("attention_forward")
    return table, (ctx.micro_batch, heads, kv, seq_length, head_dim)


def flash_s(ctx: Context) -> FloatArray:
    """Return the forward seconds of one layer's flash attention.

    A ring of context parallelism runs one kernel for each part of the keys, as long as a rank's part of
    the sequence; a sliding window takes its part of a whole sequence's time.
    """
    table, arguments = flash_lookup(ctx)
    flops = np.broadcast_to(ctx.gpu.peak_bf16_flops * attention_level(ctx), ctx.t.shape)
    first, of_row = _distinct((ctx.micro_batch, ctx.t, ctx.c, flops))  # those of a kind are priced once
    few = [argument.take(first) for argument in arguments]
    roof = replace(table.roof, flops=flops.take(first), bytes_per_s=ctx.gpu.hbm_bytes_per_s)
    seconds = (table.roof_s(*few, roof=roof) * table.slowdown(*few)).take(of_row)
    attended = 2.0 * ctx.model.attended_tokens(ctx.seq_length) / ctx.seq_length
    if table.grid.axes[-1].count == 1:
        attended *= (_WIDE_HEAD / min(ctx.model.head_dim, _WIDE_HEAD)) ** _NARROWER
    return seconds * attended * ctx.c / kernel_rate(ctx)


# Mean keys of a query in the longest sequences that the level of attention is fitted on (8,192 tokens), but
# for those of Triton's kernel: its rate above is that of open runs of up to 65,536 tokens, level included.
_LEVEL_KEYS, _LEVELLED = 4096.5, "triton"


def attention_level(ctx: Context) -> FloatArray | float:
    """Return attention's rate over its kernel's.

    What comes on top of a kernel inside a step (copies to and from its layout, casts, rotary embedding)
    grows with the tokens, the kernel with tokens times keys. So the fitted level holds up to the lengths
    that it was fitted on, where every token is read: a window or a choice of keys shortens the kernel
    alone. Of more keys the kernel's own rate remains, which at 16,384 tokens and more its authors measure
    within a tenth of the tables: cuDNN 9.19 and 9.22 (NVIDIA/cudnn-frontend 3929da2e
    ``benchmark/sdpa_benchmark_training/results``, llama3.1) 0.68 and 0.65 of the peak of an H200 and a
    GB200 forward, 0.58 and 0.49 backward; FlashAttention 3 0.62 forward (arXiv:2407.08608, figure 5).
    """
    level = ctx.constants.attention
    if ctx.kernel == _LEVELLED:
        return level
    fitted = min(_LEVEL_KEYS, ctx.model.visible_tokens(ctx.seq_length))
    return 1.0 / (1.0 + (1.0 / level - 1.0) * (fitted / ctx.model.attended_tokens(ctx.seq_length)))


def kernel_rate(ctx: Context) -> float:
    """Return the attention kernel's rate over the measured one's; in 8 bits only where products are."""
    eighth = ctx.facts.fp8_attention and ctx.low_precision
    return _rate_of(ctx, ctx.kernel) * (_FP8_RATE if eighth else 1.0)


def _rate_of(ctx: Context, kernel: str) -> float:
    return _KERNEL_RATES.get(ctx.gpu.architecture, {}).get(kernel, 1.0)


def routed_rows(ctx: Context, moe: MoeSpec) -> tuple[FloatArray, FloatArray]:
    """Return the tokens of each expert on the busiest rank, and the experts of a rank."""
    local = np.maximum(moe.num_experts / ctx.e, 1.0)
    return ctx.moe_tokens * ctx.et * ctx.visits * ctx.expert_load / local, local


def _distinct(shape: tuple[FloatArray, ...]) -> tuple[IndexArray, IndexArray]:
    """Return where each distinct combination first occurs, and which each row has; of few rows, all."""
    every = np.arange(len(shape[0]))
    if len(every) <= _FEW:
        return every, every
    return distinct([np.ascontiguousarray(column).view(np.int64) for column in shape])


# Sides of the tiles that a product's output is cut into: 128 (cuBLAS, CUTLASS), of two multiprocessors
# together 256 on Blackwell (CUTLASS ``media/docs/cpp/blackwell_functionality.md``: 2-SM tiles of 256 by
# 256). A hidden size of 2,880 fills 22.5 or 11.25 of them.
_TILE, _TILES = 128.0, {"blackwell": 256.0}
_WIDE_HEAD = 128  # flash attention reaches its best rate from this head size on
_ALIGNED = 8  # elements of 2 bytes: 16 bytes
_MISALIGNED = 0.2
# Permutation traffic over that of a fused one round an all-to-all, by counting: index_select with its cast
# moves 42 bytes an element and copy, a fused kernel 28; a dispatcher that writes in the order of the
# experts spares one of two ways; a fused MLP of experts reads through the index.
_UNFUSED_PERMUTATION, _DISPATCH_PERMUTES, _GROUPED_PERMUTES = 1.5, 0.7, 0.5
# Kernels next to each expert's product in 8 or 4 bits: its input is cast and its scales are put in order
# (Transformer Engine 2 ``module/grouped_linear.py``: ``split_quantize``, ``general_grouped_gemm``).
_CASTS_OF_AN_EXPERT = 2.0
# Of one element, forward. transformers' LlamaRMSNorm: to fp32 (2 + 4), square (4 + 4), mean (4), times its
# root (4 + 4), to 16 bits (4 + 2), times the weight (2 + 2).
_NORM_BYTES, _EAGER_NORM_BYTES = 4.0, 36.0
# What the backward pass of LlamaRMSNorm's operators moves beyond twice as much: products with weight and
# normalised rows (8 + 12) and the latter's sum (4), the same of root and rows (8 + 12 + 4), the mean (8),
# the square (8 + 8 + 12) and the sum of both gradients (12), in fp32; casts to and from 2 bytes (12).
_EAGER_NORM_BACKWARD = 108.0 - 2.0 * 36.0
# Of one element of a stream, beyond the 6 that a fused kernel moves: cast to fp32 (6), square, mean and
# product (20), the weights' product (4), times its weight and summed (10), and mixed: written, read, added
# (12) (transformers 5.23, ``DeepseekV4HyperConnection``, ``DeepseekV4DecoderLayer``).
_EAGER_STREAM_BYTES = 52.0 - 6.0
# Of a sum that later blocks attend to, beyond the 2 of a fused kernel: joined (4), cast (6), square and
# mean (12), normed (8), weighed and summed (12), times its weight and summed (12) (Megatron-Bridge 0.7,
# ``kimi_k3_ops.py attn_res_aggregate``).
_EAGER_SUM_BYTES = 54.0 - 2.0
_MODULATED_BYTES = 16.0  # of two blocks: a norm scaled and shifted, what is added scaled; read and written
_RESIDUAL_BYTES = 6.0  # of one sum: two read, one written
# A third of both passes' bytes, by counting kernels: Megatron-Core adds the experts' biases in fp32, one by
# one, joins and casts (``experts.py _apply_bias``, 28 and 40 an element); it splits, clamps and joins a
# clamped gate's inputs (``fused_bias_geglu.py``, 16 and 20).
_EXPERT_BIAS_BYTES, _CLAMP_BYTES = 68.0 / 3.0, 36.0 / 3.0
# Likewise of Megatron-Core's rotation by single operators, beyond the 4 and 4 of Transformer Engine's
# kernel: slice, two products, halves negated and joined, sum and concatenation (24), and their gradients
# (34: both products, negation, both joins, two slices' zeros and copies, two sums) (``rope_utils.py``).
_ROTATED_BYTES = (24.0 + 34.0 - 8.0) / 3.0
_NARROW_HEAD = 0.75  # operator tables: heads of 64 reach 0.6-0.8 of that rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """One weight matrix's product in the forward pass; sides broadcast to (n,)."""

    m: FloatArray  # tokens
    n: FloatArray | float  # output features on this rank
    k: FloatArray | float  # input features on this rank
    count: FloatArray | float = 1.0  # equal products, one after the other (or grouped)
    grouped: bool = False  # all of them in one kernel
    title: str = ""  # as reports name it


def products(ctx: Context, operators: Iterable[Operator]) -> list[Gemm]:
    """Return the products of operators as one rank of every row has them."""
    return [product(ctx, one) for one in operators if one.is_priced]


def product(ctx: Context, one: Operator) -> Gemm:
    """Return the product of an operator as one rank of every row has it."""
    ranks = _RANKS[one.over](ctx)
    n, k = one.outputs.on(ranks, np.maximum), one.inputs.on(ranks, np.maximum)
    if one.is_routed and ctx.model.moe:
        rows, local = routed_rows(ctx, ctx.model.moe)
        return Gemm(m=rows, n=n, k=k, count=local, grouped=True, title=one.title)
    return Gemm(m=_ROWS[one.rows](ctx), n=n, k=k, title=one.title)


_RANKS: Mapping[Axis, Callable[[Context], FloatArray]] = {
    "tensor": lambda ctx: ctx.t,
    "expert_tensor": lambda ctx: ctx.et,
    "vocabulary": lambda ctx: ctx.vocabulary_ranks,
}
_ROWS: Mapping[Rows, Callable[[Context], FloatArray]] = {
    "tokens": lambda ctx: ctx.tokens,
    "share": lambda ctx: ctx.tokens * ctx.row_share,
    "latent": lambda ctx: ctx.tokens * _latent_share(ctx),
    "context": lambda ctx: ctx.micro_batch * ctx.model.diffusion.context_tokens,  # type: ignore[union-attr]
}


def _latent_share(ctx: Context) -> FloatArray | float:
    return 1.0 if ctx.facts.latents_whole else ctx.row_share


def layer_gemms(ctx: Context, kind: LayerKind, *blocks: Block) -> list[Gemm]:
    """Return the linear layers of one transformer layer, or of some blocks of it."""
    layer = ctx.model.layer(kind)
    return products(ctx, layer.of(*blocks) if blocks else layer.operators)


@on_slowest
def gemm_seconds(ctx: Context, gemms: list[Gemm], precision: str, *, trained: bool = True) -> PassSeconds:
    """Price all products of a layer, forward and backward; frozen matrices have no weight gradient.

    Rows with the same products are priced once: stages, replicas and shards of weights change none.
    """
    rows = len(ctx.t)
    if rows > _SOON_PRICED:
        first, of_row = ctx.split_alike
        if len(first) < _SHARED * rows and all(_are_alike(one, first, of_row) for one in gemms):
            some = [_taken(one, first) for one in gemms]
            few = _gemm_seconds(ctx, some, precision, rows=len(first), trained=trained)
            return PassSeconds(forward=few.forward.take(of_row), backward=few.backward.take(of_row))
    return _gemm_seconds(ctx, gemms, precision, rows=rows, trained=trained)


_SOON_PRICED = 256  # rows with products that are sooner priced than compared
_SHARED = 0.7  # of the rows: if more differ, all are sooner priced


def _sides(gemm: Gemm) -> list[FloatArray]:
    return [np.asarray(side) for side in (gemm.m, gemm.n, gemm.k, gemm.count)]


def _are_alike(gemm: Gemm, first: IndexArray, of_row: IndexArray) -> bool:
    """Return whether rows of one combination have the same product."""
    return all(
        np.array_equal(side, side.take(first).take(of_row)) for side in _sides(gemm) if side.size > 1
    )


def _taken(gemm: Gemm, index: IndexArray) -> Gemm:
    def at(side: FloatArray | float) -> FloatArray | float:
        return side.take(index) if isinstance(side, np.ndarray) and side.size > 1 else side

    m = np.asarray(at(gemm.m))
    return replace(gemm, m=m, n=at(gemm.n), k=at(gemm.k), count=at(gemm.count))


def _gemm_seconds(
    ctx: Context, gemms: list[Gemm], precision: str, *, rows: int, trained: bool
) -> PassSeconds:
    """Price products of so many rows, each by itself."""
    rate, operators = ctx.gemm_flops(precision), ctx.operators
    element = {"fp8": 1.0, "fp4": 0.5, "tf32": 4.0, "fp32": 4.0}.get(precision, 2.0)
    alone = ctx.low_precision and not ctx.facts.moe_grouped_mlp_fused
    kernels = _CASTS_OF_AN_EXPERT if alone else -1.0  # of each further expert, next to its product
    m, n, k, flops = np.empty((4, len(gemms), 3 if trained else 2, rows))  # all at once: few calls
    tile = _TILES.get(ctx.gpu.architecture, _TILE)
    for index, g in enumerate(gemms):
        m[index, :2], m[index, 2:] = g.m, g.n
        n[index, 0], n[index, 1:] = g.n, g.k
        k[index, 0], k[index, 1], k[index, 2:] = g.k, g.n, g.m
        flops[index] = rate
        if g.grouped:  # but for a rank's only expert it needs that many rows more to reach half its rate
            half = g.m + operators.gemm_m0
            share = ctx.constants.grouped_gemm * half / (half + operators.grouped_m0)
            flops[index] *= np.where(np.asarray(g.count) > 1.0, share, 1.0)
        outputs, inputs = _filled(g.n, tile), _filled(g.k, tile)
        flops[index, 0] *= outputs
        flops[index, 1] *= inputs
        flops[index, 2:] *= outputs * inputs
    flops[:, 1:] *= operators.gemm_backward
    seconds = gemm_s(
        m, n, k, operators=operators, flops=flops, bytes_per_s=ctx.hbm_bytes_per_s, element_bytes=element
    )
    forward, backward = np.zeros(rows), np.zeros(rows)
    for g, (ahead, *back) in zip(gemms, seconds, strict=True):
        launches = (g.count - 1.0) * operators.launch_s * kernels if g.grouped else 0.0
        forward = forward + g.count * ahead + launches
        backward = backward + g.count * sum(back) + len(back) * launches
    return PassSeconds(forward=forward, backward=backward)


def _filled(side: FloatArray | float, tile: float) -> FloatArray | float:
    """Return the filled share of the tiles along one side of a product's output; 1 below a tile's size."""
    if isinstance(side, float) and not side % tile:
        return 1.0
    return np.where(np.asarray(side) > tile, side / (np.ceil(side / tile) * tile), 1.0)


def wraps_experts(ctx: Context, kind: LayerKind) -> bool:
    """Return whether adapters of experts are added to their weights, not to their outputs.

    transformers' experts are tensors without a module, of which peft makes ``W + B A`` in each forward
    pass: the gradient of that sum is one of all their weights (peft 0.21 ``tuners/lora/layer.py``,
    ``ParamWrapper``).
    """
    packed = is_of_experts(ctx.held_precision)  # no operator of torchao's adds to them
    wraps = ctx.facts.separate_projections and ctx.facts.wraps_experts and not packed
    if not (ctx.frozen and kind == "moe" and wraps):
        return False
    return any(one.experts for one in adapted_layers(ctx.model, kind, ctx.workload.lora_targets))


def linear_seconds(ctx: Context, kind: LayerKind) -> PassSeconds:
    """Price all linear layers of one transformer layer, including a rank's experts.

    A recipe may run the experts' products alone in 8 bits; their casts read 2 bytes and write 1, twice.
    """
    gemms, trained = layer_gemms(ctx, kind), not ctx.frozen
    if kind == "moe" and np.any(sliced_s := _sliced_gradients_s(ctx)):
        products_s = gemm_seconds(ctx, gemms, ctx.linear_precision, trained=trained)
        return replace(products_s, backward=products_s.backward + sliced_s)
    if kind == "moe" and ctx.facts.grouped_gemm == "batched":
        plain = [g for g in gemms if not g.grouped]
        of_plain = gemm_seconds(ctx, plain, ctx.linear_precision, trained=trained)
        return of_plain + _batched_experts_seconds(ctx)
    if wraps_experts(ctx, kind):
        grouped, dense = [g for g in gemms if g.grouped], [g for g in gemms if not g.grouped]
        others = gemm_seconds(ctx, dense, ctx.linear_precision, trained=False)
        return others + gemm_seconds(ctx, grouped, ctx.linear_precision)
    if kind == "moe" and ctx.wide_experts.any():
        grouped, dense = [g for g in gemms if g.grouped], [g for g in gemms if not g.grouped]
        others = gemm_seconds(ctx, dense, ctx.linear_precision, trained=trained)
        return others + _wide_experts_seconds(ctx, grouped, trained=trained)
    if ctx.facts.precision_recipe != "mxfp8-experts" or ctx.low_precision:
        return gemm_seconds(ctx, gemms, ctx.linear_precision, trained=trained)
    grouped, dense = [g for g in gemms if g.grouped], [g for g in gemms if not g.grouped]
    read = sum((g.m * g.k * np.asarray(g.count) for g in grouped), np.zeros_like(ctx.t))
    cast_s = 6.0 * read / ctx.hbm_bytes_per_s
    casts = PassSeconds(forward=cast_s, backward=cast_s)
    experts = gemm_seconds(ctx, grouped, "fp8", trained=trained) if grouped else casts
    return gemm_seconds(ctx, dense, ctx.linear_precision, trained=trained) + experts + casts


# Bytes moved for each weight that is copied for a token. Forward it is read and written, and read by the
# product (2 each); one of fp32 is read and written so (4 each), cast (6) and read. Backward the product
# reads it, its gradient is written and added up by weight: 15 and 24 as measured
# (benchmarks/data/experts.jsonl: 14.5 to 15.4, 22.8 to 26.6), a cast among the latter. Without weight
# gradients it is read once, or cast again.
_COPIED, _COPIED_BACKWARD, _COPIED_FROZEN = (6.0, 16.0), (15.0, 24.0), (2.0, 2.0)


def _batched_experts_seconds(ctx: Context) -> PassSeconds:
    """Price experts whose weights are copied for every token: bytes through memory alone."""
    moe = ctx.model.moe
    if moe is None:
        return ctx.nothing
    copied = ctx.moe_tokens * ctx.et * moe.top_k * ctx.model.expert_parameters()
    forward, backward = (
        narrow + (wide - narrow) * ctx.wide_weights
        for narrow, wide in (_COPIED, _COPIED_FROZEN if ctx.frozen else _COPIED_BACKWARD)
    )
    each_s = copied / ctx.hbm_bytes_per_s
    return PassSeconds(forward=forward * each_s, backward=backward * each_s)


# A loop takes each expert's weights as a slice of one tensor: the slice's gradient is a tensor of zeros
# as large as all experts' (written), which is added to the sum so far (read twice, written): torch 2.13
# ``derivatives.yaml: select_backward``. So backward passes of 32 to 128 experts grow with their square
# (benchmarks/data/experts.jsonl).
_SLICED = 4.0


def _sliced_gradients_s(ctx: Context) -> FloatArray | float:
    """Return seconds of the gradients of slices, of experts that a loop of transformers' modules trains."""
    moe, facts = ctx.model.moe, ctx.facts
    if moe is None or ctx.frozen or facts.grouped_gemm != "loop" or not facts.separate_projections:
        return 0.0
    local = moe.num_experts / ctx.e
    each = ctx.model.expert_parameters() / ctx.et * (2.0 + 2.0 * ctx.wide_weights)
    return _SLICED * local * local * each / ctx.hbm_bytes_per_s


def _wide_experts_seconds(ctx: Context, grouped: list[Gemm], *, trained: bool) -> PassSeconds:
    single = "tf32" if ctx.facts.tf32_products else "fp32"
    each = [replace(one, grouped=False) for one in grouped]  # torch multiplies fp32 expert by expert
    slow = gemm_seconds(ctx, each, single, trained=trained)
    fast = gemm_seconds(ctx, grouped, ctx.linear_precision, trained=trained)
    return PassSeconds(
        forward=np.where(ctx.wide_experts, slow.forward, fast.forward),
        backward=np.where(ctx.wide_experts, slow.backward, fast.backward),
    )


def _formula_flash_s(ctx: Context) -> FloatArray:
    """Return the forward seconds of flash attention on a GPU without tables.

    FLOPs ``2 b s heads (qk + v) * attended keys / (t c)`` (Dao 2023, arXiv:2307.08691).
    """
    model = ctx.model
    heads, width = model.num_attention_heads / ctx.t, model.head_dim + model.v_head_dim
    work = 2.0 * ctx.tokens * heads * width * model.attended_tokens(ctx.seq_length)
    peak = ctx.gpu.peak_bf16_flops * ctx.operators.flash * attention_level(ctx) * kernel_rate(ctx)
    peak = peak * (_NARROW_HEAD if model.head_dim < _WIDE_HEAD else 1.0)
    seconds = flash_attention_s(work, float(ctx.seq_length), operators=ctx.operators, flops=peak)
    return seconds + ctx.operators.launch_s


def core_attention(ctx: Context) -> PassSeconds:
    """Price scores and weighted values of one layer, causal; packed documents attend within themselves.

    Kernels for sequences of unequal length (``cu_seqlens``) take as long as for each length its share of
    the tokens would alone; context parallelism splits every document (Transformer Engine 2, ``thd``). A
    scan takes as long whatever the documents are.
    """
    if not ctx.kept_attention:  # layers of every kind have the same
        ctx.kept_attention.append(_attention_of(ctx))
    return ctx.kept_attention[0]


@on_slowest
def _attention_of(ctx: Context) -> PassSeconds:
    if not ctx.model.mixes_tokens:
        return ctx.nothing
    if mixer := ctx.model.own_mixer:
        return scan(ctx, mixer)
    filled, further = ctx.workload.filled, ctx.crossing or ctx.paired
    if filled is None or not ctx.packs:
        attention = _core_attention(ctx)
    else:
        total = np.zeros_like(ctx.t)
        for length, share in filled.documents:
            each = ctx.micro_batch * (ctx.seq_length / length)
            own = _core_attention(replace(ctx, micro_batch=each, seq_length=length))
            total = total + filled.real_share * share * own.forward
        attention = PassSeconds(forward=total, backward=total * ctx.operators.attention_backward)
    return attention + core_attention(further) if further else attention


def _core_attention(ctx: Context) -> PassSeconds:
    """Price attention of sequences that are one document each.

    Without flash attention the whole square of scores is computed and moved through memory several
    times (Korthikanti et al. 2022, arXiv:2205.05198, section 4.1).
    """
    model, index_s = ctx.model, np.zeros_like(ctx.t)
    if model.chooser or model.compression:  # scores of an indexer, whole on every rank (arXiv:2512.02556)
        rate = ctx.gpu.peak_bf16_flops * ctx.operators.flash * ctx.constants.attention * kernel_rate(ctx)
        index_s = ctx.tokens * model.index_flops_per_token(ctx.seq_length) / rate
    if ctx.flash:
        forward = flash_s(ctx) if ctx.operators.tables else _formula_flash_s(ctx)
        forward = forward * _masked_slowdown(ctx)
        forward = model.num_attentions * forward + index_s
        return PassSeconds(forward=forward, backward=forward * ctx.operators.attention_backward)
    keys = ctx.masked_keys * (1.0 + (1.0 / model.rate if model.rate else 0.0))  # and entries of them
    scores = model.num_attentions * ctx.tokens * model.num_attention_heads / ctx.t * keys
    width = model.head_dim + model.v_head_dim
    multiply = 2.0 * scores * width / (ctx.gpu.peak_bf16_flops * ctx.constants.score_gemm)
    if model.head_dim % _ALIGNED:
        multiply = multiply / _MISALIGNED
    multiply = multiply + index_s
    if eager := eager_scores(ctx):
        return PassSeconds(
            forward=multiply + scores * eager.forward / ctx.single_bytes_per_s,
            backward=2.0 * multiply + scores * eager.backward / ctx.single_bytes_per_s,
        )
    single = np.where(ctx.eager_softmax, 2.0, 1.0)  # scale, mask, softmax and dropout as separate kernels
    move = single * scores * ctx.constants.score_bytes / ctx.hbm_bytes_per_s
    return PassSeconds(forward=multiply + move, backward=2.0 * multiply + 1.5 * move)


def _masked_slowdown(ctx: Context) -> FloatArray | float:
    """Return how much longer kernels of torch's choice take by their explicit masks, (n,).

    A mask is added to every score: none is left out, neither those above the diagonal, nor beyond a window,
    nor between documents.
    """
    share = ctx.masked
    if not share.any():
        return 1.0
    slower = _rate_of(ctx, ctx.kernel) / _rate_of(ctx, ctx.masked_kernel)
    slower /= _MASKED.get(ctx.masked_kernel, 1.0)
    scores = share * slower * ctx.masked_keys + (1.0 - share) * (ctx.seq_length + 1.0) / 2.0
    return scores / ctx.model.attended_tokens(ctx.seq_length)


@on_slowest
def memory_bound(ctx: Context, kind: LayerKind) -> PassSeconds:
    """Price norms, residuals, rotary embedding and activation: bytes over bandwidth.

    Least traffic of a layer's forward pass, 2-byte elements: two norms and two residual additions read and
    write (2 + 3) h each, biases and masks aside; rotary embedding reads and writes q and k; a gated
    activation reads 2 f and writes f. Further norms read and write what they normalise (4 bytes an
    element), so do clamped queries, keys and values; a gate of attention's output reads both and writes one
    (6). A mixer has a convolution and norms of its own instead. The backward
    pass moves twice that; ``_eager_bytes`` is what single kernels move beyond.
    """
    model, tokens, moe = ctx.model, ctx.tokens, ctx.model.moe
    h, each = model.hidden_size, _NORM_BYTES
    modulated = _MODULATED_BYTES if model.diffusion else 0.0
    per_row = _RESIDUAL_BYTES * model.num_blocks + each * model.norms_of(kind) + modulated
    rows = tokens * ctx.row_share * h * per_row
    heads = (model.num_attention_heads + 2.0 * model.num_kv_heads) * model.head_dim
    inside = tokens * heads / ctx.t * 4.0
    rows = rows + tokens * (_inner_width(ctx, kind) * each + 12.0 * model.layer_embedding_size)
    rows = rows + _stream_bytes(ctx)
    if model.mla is not None:
        inside = tokens * 2.0 * model.mla.rotary_elements * model.num_attention_heads / ctx.t
    if mixer := model.own_mixer:
        heads, inside = float(mixer.value_width), tokens * 2.0 * mixer.moved_elements() / ctx.t
    if model.paired and (mixer := model.paired.mixer):
        heads = heads + mixer.value_width
        inside = inside + tokens * 2.0 * mixer.moved_elements() / ctx.t
    if not model.mixes_tokens:
        heads, inside = 0.0, np.zeros_like(tokens)
    if model.attention_clip is not None:
        inside = 2.0 * inside
    scaled = model.own_kv_heads * model.v_head_dim if model.value_scale != 1 else 0
    inside = inside + tokens * 4.0 * scaled / ctx.t
    if model.gate_width and model.mixes_tokens:
        inside = inside + tokens * 6.0 * model.num_attention_heads * model.v_head_dim / ctx.t
    per_width = 2.0 * model.mlp_matrices
    if kind == "moe" and moe is not None:
        routed = ctx.visits * moe.ffn_hidden_size * (1.0 + ctx.wide_experts)
        width = tokens * (moe.shared_ffn_hidden_size + routed) / ctx.t
        permute = permuted_bytes(ctx) * (1.0 + ctx.wide_experts)
    else:
        dense = model.ffn_hidden_size * model.has_mlp
        width, permute = tokens * dense / ctx.t, np.zeros_like(tokens)
    moved = (rows + inside + per_width * width + permute) * ctx.constants.elementwise
    normed = _eager_norm_elements(ctx, kind)
    moved = moved + _eager_bytes(ctx, kind, heads / ctx.t, width)
    moved = moved + (_EAGER_NORM_BYTES - _NORM_BYTES) * normed + _wide_bytes(ctx, kind)
    seconds = moved * ctx.elementwise_byte_s
    beyond = normed * _EAGER_NORM_BACKWARD / ctx.single_bytes_per_s
    return PassSeconds(forward=seconds, backward=2.0 * seconds + beyond)


def _stream_bytes(ctx: Context) -> FloatArray | float:
    """Return the bytes that mixing several streams moves, and weighting what becomes compressed entries."""
    model = ctx.model
    moved: FloatArray | float = 0.0
    if model.streams:  # all read and written to mix, and to correct; one of the norms twice
        moved += model.hidden_size * (8.0 * model.streams.count + _NORM_BYTES)
    if own := model.compression:  # rows and their weights are read
        moved += 4.0 * own.series(model.rate) * model.head_dim
    if model.residual_block_layers:  # of two blocks: all sums read and one row written
        moved = moved + 4.0 * model.hidden_size * (model.residual_rows + 2.0) * ctx.row_share
    if not model.hyper_streams:
        return ctx.tokens * moved
    # of two blocks: read for their weights, read and written to mix, beyond a sum's
    mixed = 2.0 * model.hidden_size * (6.0 * model.hyper_streams - 2.0)
    return ctx.tokens * (moved + mixed * ctx.row_share)


def _inner_width(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return the elements of a token on a rank that norms of q, k and v and norms inside the MLP read."""
    model = ctx.model
    width = float(model.inner_norm_width(kind))
    if model.query_key_norm != "none" and model.mixes_tokens:
        width += (model.num_attention_heads + model.own_kv_heads) * model.head_dim
    width += model.own_kv_heads * model.v_head_dim * int(model.value_norm)
    return width / ctx.t


def _eager_bytes(
    ctx: Context, kind: LayerKind, heads_width: FloatArray, width: FloatArray
) -> FloatArray | float:
    """Return the bytes that eager operators of a layer's forward pass move beyond fused ones.

    What lies between is written and read: a bias or the activation's gate once more (4 bytes), four
    products and a concatenation for the rotary embedding (12). The fitted share of fused stacks
    (``elementwise``) does not hold for them. Norms are counted apart (``_eager_norm_elements``).
    """
    facts, model, moe = ctx.facts, ctx.model, ctx.model.moe
    moved: FloatArray | float = 0.0
    apart = ctx.single_elementwise
    if np.any(apart):
        moved = moved + (12.0 * ctx.tokens * heads_width + 4.0 * width) * apart
        if model.streams:  # copied, multiplied, added, copied; innovation, its copies, product, sums
            streams = (28.0 * model.streams.count + 10.0) * ctx.tokens * model.hidden_size
            sparse = 12.0 * width * model.streams.sparse_layers / model.num_layers  # mean, deviation, cut
            moved = moved + (streams + sparse) * apart
        if count := model.hyper_streams:  # of two blocks
            rows = ctx.tokens * ctx.row_share * model.hidden_size
            moved = moved + 2.0 * _EAGER_STREAM_BYTES * count * rows * apart
        if model.residual_block_layers:
            rows = ctx.tokens * ctx.row_share * model.hidden_size * (model.residual_rows + 1.0)
            moved = moved + 2.0 * _EAGER_SUM_BYTES * rows * apart
    if kind == "moe" and moe is not None and not facts.moe_grouped_mlp_fused:
        biased = _EXPERT_BIAS_BYTES * model.expert_width * (model.expert_bias_parameters() > 0)
        clamped = _CLAMP_BYTES * moe.ffn_hidden_size * (model.activation_clamp is not None)
        moved = moved + ctx.moe_tokens * ctx.visits * ctx.expert_load * (biased * ctx.et + clamped)
    return moved + _ROTATED_BYTES * ctx.tokens * _rotated_width(ctx)


def _rotated_width(ctx: Context) -> FloatArray | float:
    """Return the elements of a token on a rank that Megatron-Core rotates by single operators."""
    model = ctx.model
    heads = (model.num_attention_heads + model.own_kv_heads) * ctx.rotates_apart
    return heads * model.head_dim * model.rotary_fraction / ctx.t


def _eager_norm_elements(ctx: Context, kind: LayerKind) -> FloatArray | float:
    """Return the elements that norms of a layer normalise by single operators, of one rank, (n,)."""
    if not np.any(ctx.single_norms):
        return 0.0
    rows = ctx.tokens * ctx.row_share * ctx.model.hidden_size * ctx.model.norms_of(kind)
    return (rows + ctx.tokens * _inner_width(ctx, kind)) * ctx.single_norms


def _wide_bytes(ctx: Context, kind: LayerKind) -> FloatArray | float:
    """Return the bytes that a layer's forward pass moves more where the rows between layers are fp32, (n,).

    A sum reads and writes rows of 4 bytes (4 more), a fused norm likewise (4), one of single operators
    neither converts its input nor its output (8 less), and each projection casts its input (4 + 2).
    """
    if not ctx.wide_rows.any():
        return 0.0
    model = ctx.model
    norms = 4.0 * (1.0 - ctx.single_norms) - 8.0 * ctx.single_norms
    projections = model.layer(kind).readers(*MIXING) + (model.mlp_matrices - 1.0) * model.has_mlp
    casts = 6.0 * projections * ctx.facts.separate_projections
    each = 4.0 * model.num_blocks + norms * model.norms_of(kind) + casts
    return ctx.wide_rows * ctx.tokens * ctx.row_share * model.hidden_size * each


@each_way
def permuted_bytes(ctx: Context) -> FloatArray | float:
    """Return the bytes that one forward pass moves to permute routed tokens and back.

    ``permute_bytes`` is that of a fused permutation round an all-to-all: half on the rank that sends, half
    on the rank that has gathered what its expert-tensor-parallel group got, unless a single expert takes
    it as it comes (Megatron-LM d98e8a64 ``moe/token_dispatcher.py``, ``num_local_experts > 1``). DeepEP and
    HybridEP write tokens in the order of their experts; one kernel for both expert layers reads and writes
    them in place.
    """
    moe, facts = ctx.model.moe, ctx.facts
    if moe is None:
        return 0.0
    share = _DISPATCH_PERMUTES if facts.permutes_in_dispatch else 1.0
    share *= 1.0 if facts.moe_permute_fusion else _UNFUSED_PERMUTATION
    share = _GROUPED_PERMUTES if facts.moe_grouped_mlp_fused else share
    sent = ctx.moe_tokens * ctx.visits * ctx.model.expert_width
    arrived = np.where(ctx.e < moe.num_experts, sent * ctx.et, 0.0)
    return share * ctx.constants.permute_bytes * 0.5 * (sent + arrived)


@each_way
def replayed_s(ctx: Context, kind: LayerKind, attention: PassSeconds, experts: PassSeconds) -> FloatArray:
    """Return the seconds of what selective recomputation replays of a layer, module by module.

    Modules as in Megatron-LM d98e8a64 ``transformer_config.py:1940 recompute_modules``; ``mlp_up`` (an MLP
    but its last product) and ``attn_proj`` (attention's output projection) as XLA replays them (MaxText).
    """
    norms = _NORM_BYTES * ctx.model.num_blocks
    of_module: dict[str, Callable[[], FloatArray | float]] = {
        "core_attn": lambda: 0.0 if ctx.model.mixes else attention.forward,
        "layernorm": lambda: (
            norms * ctx.tokens * ctx.row_share * ctx.model.hidden_size / ctx.hbm_bytes_per_s
        ),
        "every_second_mm": lambda: (  # and the kernels between, which compiled blocks fuse
            _forward_s(ctx, second_products(ctx, kind))
            + memory_bound(ctx, kind).forward * ctx.single_elementwise
        ),
        "moe_act": lambda: _activation_again_s(ctx, kind),
        "moe": lambda: _experts_again_s(ctx, kind) + experts.forward,
    }
    total = np.zeros_like(ctx.t)
    for name in ctx.facts.recomputed:
        own = of_module.get(name)
        total = total + (own() if own else _forward_s(ctx, _REPLAYED[name](ctx, kind)))
    return np.where(ctx.selective, total, 0.0)


def tiled_again_s(ctx: Context, kind: LayerKind) -> FloatArray:
    """Return the seconds by which an MLP in tiles prolongs a backward pass, (n,).

    Each tile is computed again there, whether or not its layer is replayed as well (DeepSpeed 0.19
    ``runtime/sequence_parallel/ulysses_sp.py:1063``).
    """
    if not ctx.facts.mlp_tile_tokens or kind != "dense" or ctx.below:
        return np.zeros_like(ctx.t)
    return _forward_s(ctx, _REPLAYED["mlp"](ctx, kind)) + summed_bytes(ctx) / ctx.hbm_bytes_per_s


def replayed_products(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return the products of a layer that selective recomputation runs again."""
    modules = [name for name in ctx.facts.recomputed if name in _REPLAYED]
    return [gemm for name in modules for gemm in _REPLAYED[name](ctx, kind)]


def second_products(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return the products of a layer that torchtitan replays: every second one, and all of the routing.

    Queries, keys and values are one product, a gate comes before what it gates. Routers are replayed and
    not counted, grouped products never saved (torchtitan 0.3.0 ``distributed/activation_checkpoint.py``).
    What is counted is ``aten.mm``: products in 8 bits, too (torchao 0.18 ``float8/float8_linear.py``).

    A compiler leaves out what no gradient needs: a layer's last product, and what comes before a collective
    with a saved output (torchtitan ``_get_default_save_ops``): under sequence parallelism attention's
    output projection, and the experts' last product that goes back to other ranks.
    """
    model, moe = ctx.model, ctx.model.moe if kind == "moe" else None
    compiled = 1.0 - ctx.single_elementwise
    run = layer_gemms(ctx, kind, *MIXING)
    if model.mla is not None and model.mla.q_lora_rank:
        run[:2] = run[1::-1]
    if run:
        run[-1] = replace(run[-1], count=np.where(ctx.sequence_parallel, 1.0 - compiled, 1.0))
    mlp = layer_gemms(ctx, kind, "shared", "mlp")
    up, down = mlp[:1], mlp[1:]
    if model.gated_mlp:
        up = [replace(one, n=one.n / 2.0) for one in up * 2]
    if ends_unread(ctx):
        down = [replace(one, count=1.0 - compiled) for one in down]
    routed = layer_gemms(ctx, kind, "routed")
    if moe is not None:
        sent = np.where(ctx.columns.expert_parallel_size > 1, 1.0 - compiled, 1.0)
        routed[-1] = replace(routed[-1], count=routed[-1].count * sent)
        routed.append(Gemm(m=ctx.tokens * ctx.row_share, n=moe.num_experts, k=model.hidden_size))
    return [*[*run, *up, *down][1::2], *routed]


def ends_unread(ctx: Context) -> bool:
    """Return whether a layer's last product is only added to the residual, so no gradient needs it.

    A norm or dropout behind it reads it.
    """
    return ctx.model.norm_position == "before" and not (ctx.model.inner_norms or ctx.facts.dropout)


def _forward_s(ctx: Context, gemms: list[Gemm]) -> FloatArray:
    return gemm_seconds(ctx, gemms, ctx.linear_precision).forward


def _up_projections(ctx: Context, kind: LayerKind) -> list[Gemm]:
    """Return the products that read a latent of latent attention."""
    latents, layer = ("q_b_proj", "kv_b_proj"), ctx.model.layer(kind)
    return products(ctx, [one for one in layer.of("attention") if one.matrices[0].name in latents])


# The products of the modules that have any.
_REPLAYED: Mapping[str, Callable[[Context, LayerKind], list[Gemm]]] = {
    "mla_up_proj": _up_projections,
    "attn_proj": lambda ctx, kind: layer_gemms(ctx, kind, *MIXING)[-1:],
    "every_second_mm": second_products,
    "mlp_up": lambda ctx, kind: layer_gemms(ctx, kind, "mlp")[:1],
    "mlp": lambda ctx, kind: layer_gemms(ctx, kind, "mlp"),
    "shared_experts": lambda ctx, kind: layer_gemms(ctx, kind, "shared"),
    "moe": lambda ctx, kind: layer_gemms(ctx, kind, "shared", "routed"),
}


def _activation_again_s(ctx: Context, kind: LayerKind) -> FloatArray | float:
    """Replay the experts' activation: a gated one reads 2 f and writes f, 2 bytes each."""
    moe = ctx.model.moe
    if kind != "moe" or moe is None:
        return 0.0
    return 6.0 * ctx.moe_tokens * ctx.et * ctx.visits * moe.ffn_hidden_size / ctx.hbm_bytes_per_s


def _experts_again_s(ctx: Context, kind: LayerKind) -> FloatArray | float:
    if kind != "moe":
        return 0.0
    products = linear_seconds(ctx, kind).forward - _forward_s(ctx, layer_gemms(ctx, kind, *MIXING))
    return products + permuted_bytes(ctx) * ctx.constants.elementwise / ctx.hbm_bytes_per_s
