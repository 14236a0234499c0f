"""Inputs of every formula of the cost model: sizes of a rank, groups, rates; one entry per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial, reduce, wraps
from itertools import product
from math import comb
from operator import add
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from meshwright.profiles.adapters import EMBEDDING
from meshwright.profiles.attention import (
    AUTO,
    FLEX,
    SDPA,
    implementation,
    of_layers,
    runnable,
    torchs_kernel,
)
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.cluster import BLACKWELL_12, GpuSpec, Host, clock_share, host_of
from meshwright.profiles.collectives.collectives import Blocks, Fabric, Group
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import FLASH_KERNELS, FrameworkFacts, with_options
from meshwright.profiles.model import LayerShape, ModelSpec
from meshwright.profiles.operators.operators import GpuOperators
from meshwright.profiles.optimizers import ADAMW_MOVED_BYTES, Optimizer, optimizer_named
from meshwright.profiles.profile import Constants, Profile
from meshwright.profiles.storage import BasePrecision, is_cut, storage_of
from meshwright.profiles.trained_layers import BELOW, TRAINED, LayerTraining
from meshwright.solver.configuration import (
    ALL_TO_ALL,
    MAX_SIZE,
    OFFLOAD,
    RANK_ORDERS,
    RECOMPUTE,
    SCHEDULES,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    distinct,
    is_one_of,
)
from meshwright.solver.cost.paging import paged_share
from meshwright.solver.cost.sharding import SHARD_GRADIENTS, SHARD_WEIGHTS, Sharding
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.schedules.schedule import splits_backward

if TYPE_CHECKING:
    from meshwright.profiles.measured.layers import MeasuredLayers
    from meshwright.solver.cost.ways import Ways


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeconds:
    """Forward and backward seconds of one piece of work, shape (n,)."""

    forward: FloatArray
    backward: FloatArray

    def __add__(self, other: PassSeconds) -> PassSeconds:
        return PassSeconds(forward=self.forward + other.forward, backward=self.backward + other.backward)

    def __mul__(self, share: FloatArray | float) -> PassSeconds:
        return PassSeconds(forward=self.forward * share, backward=self.backward * share)


def total(first: PassSeconds, *others: PassSeconds) -> PassSeconds:
    """Return the seconds of all pieces, one after the other."""
    return reduce(add, others, first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What operators are priced on: one type of GPU among those of a mesh."""

    gpu: GpuSpec
    operators: GpuOperators
    hbm_bytes_per_s: float  # that memory-bound operators reach


Args = ParamSpec("Args")
Found = TypeVar("Found")


def on_slowest(
    term: Callable[Concatenate[Context, Args], Found],
) -> Callable[Concatenate[Context, Args], Found]:
    """Compute a term of a mesh on the type of GPU that is slowest at it: all others wait for that one.

    Results are arrays of shape (n,), numbers, passes, or tuples of arrays.
    """

    @wraps(term)
    def found(ctx: Context, /, *args: Args.args, **kwargs: Args.kwargs) -> Found:
        if not ctx.devices:
            return term(ctx, *args, **kwargs)
        return reduce(_slower, (term(one, *args, **kwargs) for one in ctx.of_devices))

    return found


def _slower(one: Any, other: Any) -> Any:  # noqa: ANN401 - of any type
    if isinstance(one, PassSeconds):
        forward, backward = _slower((one.forward, one.backward), (other.forward, other.backward))
        return PassSeconds(forward=forward, backward=backward)
    if isinstance(one, tuple):
        return tuple(map(np.maximum, one, other))
    return np.maximum(one, other)


# --------------------------------------------------------------------------------------------------
# Where the ranks of a row lie: which strides each order of the mesh axes gives them.
#
# Ranks are numbered along one axis after the other (Megatron-Core ``RankGenerator``: ``tp-cp-ep-dp-pp``).
# The ranks of one stage keep the order of their own axes; where pp does not come last, the axes behind it
# are one block of ranks for each step along them, and as many blocks of other stages lie in between.
# Experts are split over the innermost ranks of a stage. Data-parallel ranks that share dense weights come
# right behind the tensor-parallel ones, those that share experts behind the expert-parallel ones
# (``parallel_state.py _inject_gtp_remat_axis``).


def _before(first: str, second: str) -> BoolArray:
    return np.array(
        [order.split("-").index(first) < order.split("-").index(second) for order in RANK_ORDERS]
    )


_CONTEXT_BEFORE_STAGES, _DATA_BEFORE_STAGES = _before("cp", "pp"), _before("dp", "pp")
_DATA_BEFORE_CONTEXT = _before("dp", "cp")
DEFAULT = 0  # of RANK_ORDERS: stages outermost, with adjacent ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Distances between ranks, shape (n,)."""

    block: FloatArray  # from one stage to the next: ranks of a stage that lie side by side
    context_stride: FloatArray  # of context-parallel ranks among those of their stage
    blocks: Blocks | None  # None: stages are outermost in every row


def placement_of(columns: Columns) -> Placement:
    """Return where the ranks of every row lie."""
    order = columns.rank_order
    block, context_stride = _distances(columns, order)
    size = block.astype(np.float64)
    stages = columns.pipeline_parallel_size.astype(np.float64)
    return Placement(
        block=size,
        context_stride=context_stride.astype(np.float64),
        blocks=Blocks(size=size, stages=stages) if (order != DEFAULT).any() else None,
    )


def _distances(columns: Columns, order: IntArray | int) -> tuple[IntArray, IntArray]:
    """Return the distance between stages, and between context-parallel ranks of a stage, in ranks."""
    tp, cp, dp = columns.tensor_parallel_size, columns.context_parallel_size, columns.data_parallel_size
    near = columns.weight_shard_size  # of dp: these follow the tensor-parallel ranks in every order
    block = (
        tp * np.where(_CONTEXT_BEFORE_STAGES[order], cp, 1) * np.where(_DATA_BEFORE_STAGES[order], dp, near)
    )
    return block, tp * np.where(_DATA_BEFORE_CONTEXT[order], dp, near)


def same_ranks(
    columns: Columns, order: IntArray | int, other: IntArray | int, most: int = MAX_SIZE
) -> BoolArray:
    """Return the rows with every rank at the same place in both orders, shape (n,).

    Distances beyond ``most`` count as equal.
    """
    alike = np.ones(len(columns), dtype=np.bool_)
    for one, two, size in zip(
        _distances(columns, order),
        _distances(columns, other),
        (columns.pipeline_parallel_size, columns.context_parallel_size),
        strict=True,
    ):
        alike &= (size == 1) | (np.minimum(one, most) == np.minimum(two, most))
    return alike


def same_links(
    columns: Columns, order: IntArray | int, other: IntArray | int, island_gpus: int
) -> BoolArray:
    """Return the rows with collectives over the same links in both orders, shape (n,).

    Beyond ``island_gpus`` all distances are equal: each rank is alone on its island either way.
    """
    return np.asarray(same_ranks(columns, order, other, island_gpus) | (columns.num_gpus <= island_gpus))


# What leaves the GPU under each word of the offload column.
_PARTS = [frozenset(word.split("+")) for word in OFFLOAD]
WITHOUT_ACTIVATIONS = np.array(  # the same word with activations on the GPU
    [
        next(at for at, one in enumerate(_PARTS) if one - {"none"} == word - {"activations", "none"})
        for word in _PARTS
    ]
)


def is_offloaded(offload: IntArray, *parts: str) -> BoolArray:
    """Mark rows that keep one of these off the GPU: optimizer, activations, parameters, or some @nvme."""
    return np.array([not word.isdisjoint(parts) for word in _PARTS])[offload]


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Ranks that replicate weights, in sets that share the optimizer's states; arrays of shape (n,)."""

    group: Group  # all of them
    sharing: FloatArray  # ranks of one set

    @cached_property
    def shard_set(self) -> Group:
        """Return the ranks of one set."""
        return replace(self.group, size=self.sharing)

    @cached_property
    def across(self) -> Group:
        """Return the ranks that hold the same shard, one of each set."""
        every = self.group
        return replace(every, size=every.size / self.sharing, stride=every.stride * self.sharing)


_FUSED_MULTIPLE, _MOST_FUSED_KEYS = 4, 4096
# What GEMMs of the linear layers run in under a recipe; attention, head and router stay in bf16.
_GEMM_PRECISION = {
    "fp8-delayed": "fp8", "fp8-current": "fp8", "fp8-rowwise": "fp8", "fp8-blockwise": "fp8",
    "mxfp8": "fp8", "nvfp4": "fp4",
}  # fmt: skip
# With 8-bit products, but not of such blocks: for MXFP8 TransformerEngine's pytorch/quantization.py wants
# compute capability 10.0 and refuses 12.0; for blocks of 128 it wants 9.0.
_WITHOUT_BLOCKS = {"mxfp8": {"ada", "hopper", "cdna3", BLACKWELL_12}, "fp8-blockwise": {"ada"}}
# Products that read 8 bits along either side, and need no transposes (TransformerEngine's
# common/transformer_engine.cpp, ``nvte_is_non_tn_fp8_gemm_supported``: capability 10 and 11, not 12).
EITHER_SIDE = ("blackwell",)
# Rate of products with a scale for each block over those with one for each tensor: steps of equal dense
# models that differ in the recipe only (open Megatron-Bridge runs) differ by 3 to 7 %.  A scale for each
# row makes CUTLASS's products of cuBLAS's (torch ``_scaled_mm``); torchao's table of Llama 3 8B on eight
# H100 (``torchao/float8/README.md``) has 7,690 tokens a second with one for each tensor, 6,768 with one
# for each row: as here, with its casts along rows and columns apart (``casts.py``). Share of the data
# sheet's bandwidth that torch's elementwise kernels reach, run one by one: eager scores of 8 shapes with
# and without a soft cap, both passes, take 0.62 to 0.80 (benchmarks/data/attention_kernels.jsonl: 2.35
# TB/s of an H100's 3.35 on average). Blackwell as Hopper; older memory is slower, and shows no such gap.
_SINGLE_KERNELS = {"hopper": 0.70, "blackwell": 0.70}
_SCALED = {"mxfp8": 0.93, "mxfp8-experts": 0.93, "fp8-blockwise": 0.93, "fp8-rowwise": 0.83}


_SPLITTING = (
    "tensor_parallel_size", "sequence_parallel", "context_parallel_size", "expert_parallel_size",
    "expert_tensor_parallel_size", "micro_batch_size",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs of pricing; arrays have shape (n,) and are float64 unless they are masks.

    What follows from a context alone is found once, at its first use; it must not be changed.
    """

    model: ModelSpec
    gpu: GpuSpec
    facts: FrameworkFacts
    constants: Constants
    operators: GpuOperators
    fabric: Fabric  # between pipeline stages
    layers: MeasuredLayers | None
    columns: Columns
    placement: Placement
    seq_length: float
    optimizer: Optimizer
    workload: Workload
    host: Host
    sharding: Sharding
    linear_precision: str  # bf16, fp16, fp8, fp4
    low_precision: bool  # linear layers multiply in 8 or 4 bits
    frozen: bool  # the language model's own weights are frozen, with adapters or without
    below: bool  # no trained weight comes before: there is no backward pass
    trained_modules: tuple[str, ...]  # of ``TRAINED_MODULES``: those next to adapters, or all
    packs: bool  # documents are packed, so that attention's kernel skips what lies between them
    pads_to_longest: bool  # a micro-batch is as long as its longest document
    adds_every_gradient: bool  # the first micro-batch's gradients, too, are added to an fp32 buffer
    element_scale: float  # length of an element over 2 bytes
    # Bytes by which the optimizer's fp32 copy of a weight is shorter; 0 if it is whole. The upper half of
    # an fp32 weight is its bf16 weight, so that the lower 2 bytes do. Recipes of 8 bits keep it whole:
    # Megatron-Core manages it itself under all but one of them (``optimizer_config.py``
    # ``use_precision_aware_optimizer_no_fp8_or_ds_fp8``).
    remainder_bytes: float
    moved_share: float  # the optimizer's traffic of a step over AdamW's; a remainder moves with its weight
    hbm_bytes_per_s: float  # memory bandwidth that memory-bound operators reach
    t: FloatArray  # tensor_parallel_size
    c: FloatArray  # context_parallel_size
    e: FloatArray  # expert_parallel_size
    et: FloatArray  # expert_tensor_parallel_size
    d: FloatArray  # data_parallel_size
    p: FloatArray  # pipeline_parallel_size
    g: FloatArray  # weight_shard_size
    ge: FloatArray  # expert_weight_shard_size
    tower_t: FloatArray  # tensor-parallel ranks that split a vision tower
    image_ranks: FloatArray  # ranks that share the images of a micro-batch out among each other
    micro_batch: FloatArray  # its sequences
    tokens: FloatArray  # of one micro-batch on one rank: b s / c
    row_share: FloatArray  # share of a sequence that norms and residuals see: 1 / t with SP, else 1
    sequence_parallel: BoolArray
    selective: BoolArray
    full: BoolArray
    tensor_group: Group
    exchanging: FloatArray  # context-parallel ranks that exchange heads for tokens; 1: all pass them round
    exchange_group: Group  # these
    ring_group: Group  # c / exchanging of them, as far apart as so many lie
    expert_group: Group
    expert_tensor_group: Group  # ranks that share one expert
    data_group: Group  # dp * cp / g ranks that reduce the gradients of dense weights
    shard_group: Group  # those among them that share one shard set
    expert_data_group: Group  # ranks that reduce the gradients of one expert
    weight_group: Group  # those that share each dense matrix
    expert_weight_group: Group  # those that share each expert
    ways: Ways | None  # the switches that each row is under; None: the same for all
    devices: tuple[Device, ...]  # types of GPUs in the mesh of every stage; (): one alone

    @cached_property
    def of_devices(self) -> tuple[Context, ...]:
        """Return a context for each type of GPU in the mesh."""
        return tuple(
            replace(
                self, devices=(), gpu=one.gpu, operators=one.operators, hbm_bytes_per_s=one.hbm_bytes_per_s
            )
            for one in self.devices
        )

    def of(self, shape: LayerShape) -> Context:
        """Return the context of layers of one shape, in a model that has their attention throughout."""
        own = self if self.model.attends_alike else self._viewed(self.model.shaped(shape))
        return own if shape.trains == TRAINED else own.untrained(below=shape.trains == BELOW)

    def replays(self, shape: LayerShape) -> bool:
        """Return whether full recomputation replays layers of a shape, trained or frozen."""
        return shape.trains == TRAINED or self.facts.replays_frozen

    def untrained(self, *, below: bool = False) -> Context:
        """Return the context of frozen layers among trained ones, or of those ``below`` all of them.

        Where a launcher checkpoints trained layers alone, none of them is replayed.
        """
        if below not in self._untrained:
            replays = self.facts.replays_frozen and not below
            work = replace(self.workload, lora_targets=(), trained_modules=(), trained_layers="")
            self._untrained[below] = replace(
                self, workload=work, frozen=True, below=below, trained_modules=(),
                full=self.full & replays, selective=self.selective & replays,
            )  # fmt: skip
        return self._untrained[below]

    @cached_property
    def _untrained(self) -> dict[bool, Context]:
        return {}

    @property
    def training(self) -> tuple[LayerTraining, ...]:
        """Return what becomes of each layer; () where all of them are trained."""
        return self.workload.training_of(self.model, self.facts)

    @cached_property
    def split_alike(self) -> tuple[IntArray, IntArray]:
        """Return the first row of each combination of sizes that split a layer's work, and every row's.

        While constants are fitted each row has its own, so that none are alike.
        """
        if any(np.ndim(getattr(self.constants, one.name)) for one in fields(self.constants)):
            return np.arange(len(self.t)), np.arange(len(self.t))
        return distinct([getattr(self.columns, name) for name in _SPLITTING])

    @cached_property
    def crossing(self) -> Context | None:
        """Return the cost context of the cross-attention to text; None where layers have none."""
        crossing = self.model.crossing
        return None if crossing is None else self._viewed(crossing)

    @cached_property
    def paired(self) -> Context | None:
        """Return the cost context of the mixers next to attention; None where layers have none."""
        paired = self.model.paired
        return None if paired is None else self._viewed(paired)

    def _viewed(self, model: ModelSpec) -> Context:
        if model not in self._by_model:
            kernel = of_layers(self.facts.attention_kernel, model)
            same = kernel == self.facts.attention_kernel
            facts = self.facts if same else replace(self.facts, attention_kernel=kernel)
            packs = self.packs and facts.knows_documents
            self._by_model[model] = replace(self, model=model, facts=facts, packs=packs)
        return self._by_model[model]

    @cached_property
    def _by_model(self) -> dict[ModelSpec, Context]:
        return {}

    @cached_property
    def kept_attention(self) -> list[PassSeconds]:
        """Return where attention is kept once it is priced (``compute.core_attention``)."""
        return []

    @cached_property
    def kept_ways(self) -> dict[str, list[tuple[IntArray, Context]]]:
        """Return where rows and context of each value of a disputed fact are kept (``ways.each_way``)."""
        return {}

    @property
    def nothing(self) -> PassSeconds:
        """Return passes that take no time, shape (n,)."""
        return PassSeconds(forward=np.zeros_like(self.t), backward=np.zeros_like(self.t))

    @property
    def of_prediction(self) -> Context:
        """Return the context of the layers that predict further tokens."""
        layers, never = self.of(self.model.mtp_shape), np.zeros_like(self.full)
        alike = self.facts.prediction_recomputed or not self.model.num_mtp_layers
        return layers if alike else replace(layers, selective=never, full=never)

    @cached_property
    def dense_replicas(self) -> Replicas:
        """Return the ranks that replicate dense weights."""
        return self._replicas(self.data_group)

    @cached_property
    def expert_replicas(self) -> Replicas:
        """Return the ranks that replicate one expert."""
        return self._replicas(self.expert_data_group)

    @cached_property
    def has_secondary_shards(self) -> BoolArray:
        """Mark rows with a second set of ZeRO-3's shards on fewer ranks."""
        size = self.facts.secondary_shard_size
        sharded = self.columns.zero_stage == SHARD_WEIGHTS
        return np.asarray((size > 1.0) & sharded & (self.shard_group.size > size))

    def _replicas(self, group: Group) -> Replicas:
        """Return the ranks of ``group`` in as many shard sets as dense weights have."""
        whole = np.minimum(group.size, self.shard_group.size * group.size / self.data_group.size)
        sharing = np.where(self.columns.zero_stage > 0, np.maximum(whole, 1.0), 1.0)
        return Replicas(group=group, sharing=sharing)

    def gemm_flops(self, precision: str) -> float:
        """Return a large GEMM's rate in FLOP/s; a precision that the GPU lacks runs as bf16 (or fp16)."""
        peak, share = self.gpu.peak_flops, self.operators.gemm
        for name in (precision, "bf16", "fp16"):
            if peak.get(name):
                rate = peak[name] * share.get(name, share["fp16"]) * self.constants.gemm
                return rate * (_SCALED.get(self.facts.precision_recipe, 1.0) if name == "fp8" else 1.0)
        raise InvalidProblemError.of("/cluster", f"{self.gpu.slug} has no peak for {precision}")

    @cached_property
    def kernel(self) -> str:
        """Return attention's kernel in rows without an explicit mask; torch chooses under ``sdpa``."""
        return self._kernel(masked=False)

    @cached_property
    def flash(self) -> bool:
        """Return whether attention keeps no scores."""
        return self.kernel in FLASH_KERNELS

    @cached_property
    def masked_kernel(self) -> str:
        """Return the kernel of torch's choice for rows with an explicit mask."""
        return self._kernel(masked=True)

    def _kernel(self, *, masked: bool) -> str:
        if self.facts.attention_kernel != SDPA:
            return self.facts.attention_kernel
        sizes, bits = (self.model.head_dim, self.model.v_head_dim), 16.0 * self.element_scale
        return torchs_kernel(self.gpu.architecture, sizes, masked=masked, bits=int(bits)).kernel

    @cached_property
    def masked(self) -> FloatArray:
        """Return the share of layers whose kernel of torch's choice gets an explicit mask, (n,).

        Of keys beyond a window (transformers 5.17 ``masking_utils.py:263``), of padding (:268), or between
        packed documents (``find_packed_sequence_indices``). A loss of masked tokens always gives one
        (Axolotl 0.18 ``integrations/diffusion/utils.py create_bidirectional_attention_mask``).
        """
        window, lengths = self.model.sliding_window, self.workload.lengths
        if self.facts.attention_kernel != SDPA or self.model.mixes:
            return np.zeros_like(self.t)
        if self.facts.loss_kernel == "masked":
            return np.ones_like(self.t)
        if not self.model.causal:
            return np.zeros_like(self.t)
        local = 0.0
        if window is not None and self.seq_length >= window:
            local = self.model.local_layers().count(True) / self.model.num_layers
        if lengths is None:
            return np.full_like(self.t, local)
        every = (self.micro_batch > 1) | (lengths.batching != "padding_to_longest")
        return np.where(every, 1.0, local)

    @cached_property
    def masked_keys(self) -> FloatArray | float:
        """Return the number of keys of each query under a mask, (n,) or one number.

        They are the sequence's, or the whole micro-batch's where packing joins its rows.
        """
        lengths = self.workload.lengths
        packed = lengths is not None and lengths.batching == "packing"
        joined = packed and self.facts.joins_packed_rows
        return self.seq_length * self.micro_batch if joined else float(self.seq_length)

    @cached_property
    def repeats_keys(self) -> FloatArray:
        """Return the share of layers that copy keys and values for every head of queries, (n,).

        Under an explicit mask (transformers 5.23 ``sdpa_attention.py:38 use_gqa_in_sdpa``), and in front of
        flex_attention where the heads are no power of 2 (``flex_attention.py:302``).
        """
        if self.kernel != FLEX:
            return self.masked
        heads = self.model.num_attention_heads / self.t
        return np.where(np.log2(heads) % 1.0 == 0.0, 0.0, 1.0)

    @cached_property
    def never_fuses_softmax(self) -> bool:
        """Return whether separate kernels scale, mask and normalise scores, whatever the layout.

        Under ``torch``, and of sequences that Megatron's fused kernel does not take: above 4096, or of a
        length off the multiples of 4 (Megatron-LM ``megatron/core/fusions/fused_softmax.py
        is_kernel_available``).
        """
        kernel, keys = self.kernel, self.seq_length
        odd = keys > _MOST_FUSED_KEYS or keys % _FUSED_MULTIPLE != 0.0
        return kernel == "torch" or (kernel == "megatron-fused" and odd)

    @cached_property
    def eager_softmax(self) -> BoolArray:
        """Mark rows with an eager softmax, (n,): also if heads times sequences rule the kernel out."""
        if self.flash or self.never_fuses_softmax:
            return np.full(self.t.shape, self.never_fuses_softmax)
        fours = self.micro_batch * (self.model.num_attention_heads / _FUSED_MULTIPLE) / self.t
        return np.asarray(fours != np.floor(fours))

    @cached_property
    def splits_backward(self) -> BoolArray:
        """Mark rows that put off weight gradients, (n,)."""
        return splits_backward(self.columns)

    @cached_property
    def uncompiled(self) -> BoolArray:
        """Mark rows with stages that torch does not compile, (n,): schedules that split the backward pass.

        ``torch/distributed/pipelining/schedules.py _check_torch_compile_compatibility`` refuses them.
        """
        rows = self.splits_backward & (self.p > 1)
        return np.asarray(rows & self.facts.torch_pipelines)

    @cached_property
    def single_elementwise(self) -> FloatArray | float:
        """Return 1 where elementwise operators run one by one that compiling would fuse, else 0."""
        return self.uncompiled.astype(np.float64) if self.facts.elementwise_fused else 1.0

    @property
    def rotates_apart(self) -> bool:
        """Return whether Megatron-Core rotates queries and keys by single operators: scaled, as YaRN does.

        ``rope_utils.py apply_rotary_pos_emb``: "mscale is not supported by TE's fused RoPE". Documents that
        are packed take another kernel, which leaves the scale out. Latent attention has kernels of its own.
        """
        model, scaling = self.model, self.model.rotary_scaling
        scaled = scaling is not None and scaling.scales_rotations and model.mla is None
        return scaled and model.mixes_tokens and not self.packs and self.facts.stack == "megatron-core"

    @property
    def single_bytes_per_s(self) -> float:
        """Return the memory bandwidth that the single kernels of transformers' modules reach.

        Other stacks with single kernels have runs of their own in the fit of ``hbm``.
        """
        share = _SINGLE_KERNELS.get(self.gpu.architecture) if self.facts.separate_projections else None
        return self.hbm_bytes_per_s if share is None else share * self.gpu.hbm_bytes_per_s

    @cached_property
    def elementwise_byte_s(self) -> FloatArray | float:
        """Return the seconds that elementwise kernels take for a byte, fused or one by one."""
        if self.single_bytes_per_s is self.hbm_bytes_per_s:
            return 1.0 / self.hbm_bytes_per_s
        return np.where(self.single_elementwise, 1.0 / self.single_bytes_per_s, 1.0 / self.hbm_bytes_per_s)

    @cached_property
    def single_norms(self) -> FloatArray | float:
        """Return 1 where a norm's operators run one by one, else 0."""
        return self.uncompiled.astype(np.float64) if self.facts.norm_fused else 1.0

    @cached_property
    def held_precision(self) -> BasePrecision:
        """Return the precision that a rank holds weights in which products read in 2 bytes.

        Autocast reads trained ones of fp32, unless the optimizer updates weights in bf16.
        """
        if self.frozen:
            return self.workload.base_precision
        return "fp32" if self.facts.autocasts and self.optimizer.fp32_copy else "bf16"

    @cached_property
    def converts(self) -> BoolArray:
        """Mark rows that make weights 2 bytes each before a product, if they are not, (n,).

        Those of few bits are gathered as they lie. FSDP casts fp32 as it gathers.
        """
        cut = self.columns.zero_stage >= (SHARD_WEIGHTS if self.frozen else 1)
        return np.asarray(~cut | self.packed)

    @cached_property
    def wide_weights(self) -> FloatArray:
        """Return 1 where weights are fp32 and cast before their products, else 0."""
        return (self.converts * (self.held_precision == "fp32")).astype(np.float64)

    @cached_property
    def wide_ends(self) -> FloatArray:
        """Return 1 where embedding, head and norms alone are fp32, with gradients and states, else 0."""
        apart = self.facts.fp32_ends and not self.frozen and not self.optimizer.fp32_copy
        apart = apart and EMBEDDING in self.trained_modules
        return np.where(self.columns.zero_stage == 0, float(apart), 0.0)

    @cached_property
    def wide_rows(self) -> FloatArray:
        """Return 1 where the rows between layers are fp32, as an embedding in fp32 makes them, else 0."""
        reads = self.frozen or EMBEDDING in self.trained_modules or not self.workload.trained_layers
        return np.maximum(self.wide_weights * reads, self.wide_ends)

    @cached_property
    def wide_experts(self) -> FloatArray:
        """Return 1 where experts multiply in fp32, else 0.

        torch's grouped product is not autocast (transformers 5.17 ``integrations/moe.py _grouped_mm``).
        """
        moe, grouped = self.model.moe, self.facts.grouped_gemm == "grouped"
        apart = moe is not None and moe.runs_every_expert  # by products of batches, or of modules
        return self.wide_weights * float(self.facts.separate_projections and grouped and not apart)

    @property
    def at_lengths(self) -> list[tuple[FloatArray, Context]]:
        """Return contexts of micro-batches of several lengths, each with its share of them, (n,).

        Those that are padded to their longest document are seldom as long as one may be; others all are.
        """
        # nothing that a context keeps holds the context: its arrays are free as soon as it is out of use
        return self._padded or [(np.ones_like(self.t), self)]

    @property
    def varies(self) -> bool:
        """Return whether passes differ in length, so that ``at_lengths`` has several."""
        return self.pads_to_longest or self.by_document

    @cached_property
    def by_document(self) -> bool:
        """Return whether each document is a pass of its own, on only as many ranks as it needs."""
        lengths = self.workload.lengths
        packed = lengths is not None and lengths.batching == "packing"
        return packed and self.facts.dynamic_context_parallel

    def _of_documents(self) -> list[tuple[FloatArray, Context]]:
        """Return passes of single documents, each with its number per rank and sequence, (n,).

        A document of s tokens takes the smallest power of two of ranks with at most ``seq / c`` tokens
        each (Megatron-LM d98e8a64 ``pipeline_parallel/hybrid_cp_schedule.py gpus_needed``), one after
        the other and unpacked. A rank takes part in ``ranks / c`` of them. Where passes are packed, each
        has ``seq / c`` tokens on every rank: documents of several lengths fill it (d48bd6be
        ``datasets/data_schedule_utils.py next_hdp_group_packing_aware``).
        """
        filled, capacity = self.workload.filled, self.seq_length / self.c
        if filled is None:
            return []
        number = len(filled.lengths) / float(filled.sequence.max() + 1)
        found = list[tuple[FloatArray, Context]]()
        for length, share in zip(filled.grid.tolist(), filled.at_grid(1).tolist(), strict=True):
            ranks = np.clip(2.0 ** np.ceil(np.log2(length / capacity)), 1.0, self.c)
            group = replace(self.ring_group, size=ranks)
            together = (
                capacity * ranks / length if self.facts.dynamic_context_packing else np.ones_like(self.c)
            )
            documents = self.micro_batch * together
            own = replace(
                self, c=ranks, seq_length=length, micro_batch=documents, tokens=documents * length / ranks,
                packs=False, ring_group=group, exchange_group=group, image_ranks=ranks,
            )  # fmt: skip
            found.append((share * number * ranks / self.c / together, own))
        return found

    @cached_property
    def _padded(self) -> list[tuple[FloatArray, Context]]:
        filled = self.workload.filled
        if self.by_document:
            return self._of_documents()
        if filled is None or not self.pads_to_longest:
            return []
        sizes, of_row = np.unique(self.micro_batch, return_inverse=True)
        grid = filled.grid.tolist()
        shares = np.array([filled.at_grid(int(size)) for size in sizes]).reshape(-1, len(grid))
        return [
            (share, replace(self, seq_length=length, tokens=self.tokens * (length / self.seq_length)))
            for share, length in zip(shares[of_row.ravel()].T, grid, strict=True)
        ]

    @cached_property
    def adapts(self) -> bool:
        """Return whether adapters are trained next to frozen weights."""
        return self.workload.lora_rank > 0

    @cached_property
    def wide_adapters(self) -> BoolArray:
        """Mark rows with adapters in fp32, as peft makes them, which nothing but autocast reads in bf16."""
        return np.asarray((self.columns.zero_stage == 0) & (self.adapts and self.facts.autocasts))

    @cached_property
    def small_copies(self) -> BoolArray:
        """Mark rows with copies, gradients and states of wholly trained weights in bf16."""
        kept = self.frozen and not self.facts.casts_copies and self.workload.base_precision != "fp32"
        return np.asarray((self.columns.zero_stage < SHARD_WEIGHTS) & kept)

    @cached_property
    def share_offloaded(self) -> FloatArray:
        """Return the share of the optimizer's states that leave the GPU, shape (n,)."""
        return np.where(self.offloads_optimizer, self.facts.optimizer_offload_fraction, 0.0)

    @cached_property
    def offloads_optimizer(self) -> BoolArray:
        """Mark rows with optimizer states on the host or its drives; they are updated on the host."""
        away = is_offloaded(self.columns.offload, "optimizer", "optimizer@nvme")
        return np.asarray(away & (not self.optimizer.paged))

    @cached_property
    def share_paged(self) -> FloatArray:
        """Return the share of trained weights with moments that go to the host and back, shape (n,).

        Pages leave where the GPU is full, and an update on the GPU brings them back.
        """
        share, work = 0.0, self.workload
        if self.optimizer.paged:
            share = paged_share(
                self.model, work.lora_targets, work.lora_rank, work.trained_modules, rotates=self.facts.oft
            )
        return np.where(is_offloaded(self.columns.offload, "optimizer"), share, 0.0)

    @cached_property
    def offloads_gradients(self) -> BoolArray:
        """Mark rows that keep their gradient shards in host memory from one micro-batch to the next."""
        sharded = self.columns.zero_stage >= SHARD_GRADIENTS
        return np.asarray(self.offloads_optimizer & sharded & self.facts.offloads_gradients)

    @cached_property
    def offloads_weights(self) -> BoolArray:
        """Mark rows with shards of the 2-byte weights on the host or its drives (ZeRO-3)."""
        return is_offloaded(self.columns.offload, "parameters", "parameters@nvme")

    @cached_property
    def swaps_optimizer(self) -> BoolArray:
        """Mark rows with optimizer states on NVMe drives."""
        return is_offloaded(self.columns.offload, "optimizer@nvme")

    @cached_property
    def swaps_weights(self) -> BoolArray:
        """Mark rows with 2-byte weights on NVMe drives."""
        return is_offloaded(self.columns.offload, "parameters@nvme")

    @cached_property
    def offloads_activations(self) -> BoolArray:
        """Mark rows with activations that go to the host between forward and backward pass."""
        return is_offloaded(self.columns.offload, "activations")

    @property
    def packed(self) -> bool:
        """Return whether frozen weights are of few bits that FSDP cuts over ranks as they lie."""
        return self.adapts and is_cut(self.workload.base_precision)

    @property
    def layer_bytes_sent(self) -> float:
        """Return the bytes of one weight of a layer on the wire if weights are gathered."""
        storage = storage_of(self.workload.base_precision) if self.packed else None
        return self.sharding.gathered_bytes if storage is None else storage.cut_bytes

    @property
    def vocabulary_group(self) -> Group:
        """Return the ranks that share the rows of embedding and head.

        They exchange hidden states at both ends of the model. An axis that divides the head is stated here,
        and if it reaches over stages, in ``FrameworkFacts.ends_are_shared``.
        """
        return self.tensor_group

    @property
    def ends_apart(self) -> BoolArray:
        """Mark rows whose first stage has the embedding and whose last one has the head, (n,)."""
        return np.asarray((self.p > 1) & (not self.facts.ends_are_shared))

    @property
    def vocabulary_ranks(self) -> FloatArray:
        """Return the number of ``vocabulary_group``, shape (n,)."""
        return self.vocabulary_group.size

    @cached_property
    def embedding_ranks(self) -> FloatArray:
        """Return the ranks that share the rows of the embedding; 1 where the framework copies it."""
        shared = self.facts.embedding_sharded or self.model.tied_embeddings or self.facts.ends_are_shared
        return self.vocabulary_ranks if shared else np.ones_like(self.t)

    @cached_property
    def logits_ranks(self) -> FloatArray:
        """Return the ranks that share the logits of a token; 1 where each gathers them all."""
        return self.vocabulary_ranks if self.facts.logits_sharded else np.ones_like(self.t)

    @cached_property
    def padded_vocabulary(self) -> FloatArray:
        """Return the rows of embedding and head, padded to the framework's multiple for each rank."""
        multiple = self.facts.vocabulary_multiple * self.vocabulary_ranks
        return np.asarray(np.ceil(self.model.vocab_size / multiple) * multiple)

    @cached_property
    def padded_outputs(self) -> FloatArray:
        """Return the rows of the head's matrix: of the padded vocabulary, or its labels."""
        labels = self.model.num_labels
        return np.full_like(self.t, labels) if labels else self.padded_vocabulary

    @cached_property
    def visits(self) -> FloatArray | float:
        """Return the rows that each token is for experts: of those that it chooses, or of all.

        Where a token that arrives is a row for each of its experts, it is so on every rank that has one.
        """
        moe = self.model.moe
        if moe is None:
            return 0.0
        if moe.runs_every_expert and self.facts.separate_projections:
            return float(moe.num_experts)
        arrives = self.facts.multiplies_absent and self.facts.deduplicates
        arrives = arrives and self.facts.grouped_gemm == "grouped"  # a loop looks for each expert's tokens
        return moe.top_k * (distinct_places(self.e, moe.top_k) if arrives else 1.0)

    @property
    def loops_experts(self) -> bool:
        """Return whether experts run one after another: as asked, or each has modules of its own."""
        moe = self.model.moe
        return self.facts.grouped_gemm == "loop" or (moe is not None and moe.expert_adapters == "listed")

    @cached_property
    def expert_load(self) -> FloatArray:
        """Return the tokens of the busiest rank's experts over the mean, shape (n,); 1 on a rank with all.

        Under a capacity factor every expert is padded to it; with a graph of whole steps the factor is
        the room that is reserved, not what is filled. Padding tokens are one and the same token, and are
        taken to choose the same experts of a layer.
        """
        facts, moe, padding = self.facts, self.model.moe, self.padding_share
        if facts.moe_capacity_factor and facts.cuda_graph != "full_iteration":
            return np.full_like(self.t, facts.moe_capacity_factor)
        busiest = np.full_like(self.t, 1.0 if facts.balanced else self.constants.expert_imbalance)
        if moe is not None and facts.routes_padding and not facts.balanced and padding.any():
            sizes, of_row = np.unique(self.e, return_inverse=True)
            same = np.array([load_of_same(moe.num_experts, moe.top_k, int(size)) for size in sizes])
            busiest = (1.0 - padding) * busiest + padding * same[of_row.ravel()]
        return np.where(self.e > 1, busiest, 1.0)

    @cached_property
    def padding_share(self) -> FloatArray:
        """Return the share of a micro-batch's tokens that pad documents, (n,); 0 where they are packed."""
        filled, lengths = self.workload.filled, self.workload.lengths
        if filled is None or lengths is None or lengths.batching == "packing":
            return np.zeros_like(self.t)
        if lengths.batching == "padding":
            return np.full_like(self.t, 1.0 - filled.real_share)
        sizes, of_row = np.unique(self.micro_batch, return_inverse=True)
        padded = np.array([filled.longest(int(size)).mean() for size in sizes])
        return np.asarray(1.0 - filled.lengths.mean() / padded[of_row.ravel()])

    @cached_property
    def moe_tokens(self) -> FloatArray:
        """Return the tokens that a rank routes: sequence parallelism (or expert tp) splits them."""
        return self.tokens / self.t

    def copies_of_gradients(self, replicas: Replicas) -> FloatArray:
        """Count a rank's copies of whole gradients: again in the buckets that ``replicas`` reduce, (n,)."""
        again = self.facts.reduces_copies & (self.columns.zero_stage == 0) & (replicas.group.size > 1)
        return np.where(again, 2.0, 1.0)

    @cached_property
    def buckets(self) -> BoolArray:
        """Mark rows that reduce gradients in buckets of several layers, or parts of one.

        Buffers are filled whatever hides the reductions. Views are cut only where reductions run under a
        backward pass, and only on the first stage of a pipeline (Megatron-Core 0.19
        ``distributed/distributed_data_parallel.py``: ``bucket_size = None``), which is left out here.
        """
        stages = is_one_of(self.columns.zero_stage, self.facts.bucketed_stages)
        cut = self.facts.keeps_buckets | (self.sharding.hides_reductions & (self.p == 1))
        return np.asarray(stages & cut & (self.bucket_bytes > 0.0))

    @cached_property
    def bucket_bytes(self) -> FloatArray:
        """Return the bytes of a full bucket of gradients, as stated or as the framework chooses, (n,)."""
        least, of_replica = self.facts.bucket_weights
        weights = np.maximum(least, of_replica * self.d / self.g)
        own = weights * self.sharding.gradient_bytes_sent
        return np.where(self.facts.bucket_bytes > 0.0, self.facts.bucket_bytes, own)

    @cached_property
    def layers_of_rank(self) -> FloatArray:
        """Count the layers of a rank, shape (n,)."""
        return np.maximum(self.model.num_layers / self.p, 1.0)

    @cached_property
    def layers_together(self) -> FloatArray:
        """Count layers with gradients that travel in one collective, shape (n,).

        A framework that overlaps sends a layer as soon as it has it, any other the whole rank at once.
        """
        overlapped = self.sharding.hides_reductions | self.sharding.in_torch_pipeline
        return np.where(overlapped, 1.0, self.layers_of_rank)


def distinct_places(places: FloatArray, chosen: int) -> FloatArray:
    """Return the expected number of different places that ``chosen`` random ones fall on."""
    return np.asarray(places * (1.0 - (1.0 - 1.0 / places) ** chosen))


@lru_cache(maxsize=256)
def load_of_same(experts: int, chosen: int, ranks: int) -> float:
    """Return the busiest rank's tokens over the mean if all tokens choose the same experts.

    ``chosen`` of the experts are drawn without replacement, and every rank holds equally many. The result
    is the expected largest number on one rank over ``chosen / ranks``. The number of draws
    with at most ``most`` on every rank is the coefficient of ``x^chosen`` in
    ``(sum of C(experts / ranks, j) x^j, j <= most)^ranks``.
    """
    own, expected = experts // ranks, 0.0
    for most in range(chosen):  # E[max] is the sum of P(max > most)
        power, factor = [1, *[0] * chosen], [comb(own, j) for j in range(min(most, own) + 1)]
        for _ in range(ranks):
            raised = [0] * (chosen + 1)
            for (i, left), (j, right) in product(enumerate(power), enumerate(factor)):
                if i + j <= chosen:
                    raised[i + j] += left * right
            power = raised
        expected += 1.0 - power[chosen] / comb(experts, chosen)
    return expected / (chosen / ranks)


def linear_precision(problem: Problem, facts: FrameworkFacts, gpu: GpuSpec) -> str:
    """Return the precision in which linear layers multiply: the recipe's, else the workload's.

    Raises:
        InvalidProblemError: the GPU has no such precision as the recipe asks for.
    """
    recipe = facts.precision_recipe
    precision = _GEMM_PRECISION.get(recipe, problem.workload.precision)
    able = [
        name
        for name, needs in _GEMM_PRECISION.items()
        if needs in gpu.peak_flops and gpu.generation not in _WITHOUT_BLOCKS.get(name, set())
    ]
    if recipe in _GEMM_PRECISION and recipe not in able:
        lacking = (
            precision if precision not in gpu.peak_flops else "matrix products with a scale for each block"
        )
        raise InvalidProblemError.of(
            "/workload/framework_options/precision_recipe",
            f"{recipe} needs {lacking}, which {gpu.slug} lacks",
            allowed=", ".join(["none", *able]),
            nearest=next(iter(able), "none"),
        )
    return precision


# Attention of fp32: torch's efficient kernel takes it, and so does Megatron's softmax.
_WIDE = {"sdpa": "sdpa", "flex": "flex", "efficient": "efficient", "megatron-fused": "megatron-fused"}
_BF16_BYTES, _FP32_OPTIMIZER_BYTES, _FP32_MOVED = 2.0, 4.0, 28.0 / 30.0


def _in_32_bits(profile: Profile, facts: FrameworkFacts) -> tuple[Profile, FrameworkFacts]:
    """Express a run in fp32 as one in bf16 with links and memory of half the rate.

    Products run at the rate of TF32 where the GPU has it, no kernel of flash attention takes fp32 (their
    documentation), and of the optimizer's states only the moments are kept next to the weights. Memory
    counted in 2 bytes is doubled (``memory.memory_prices``).
    """
    gpu, operators = profile.group.gpu, profile.gpu_operators
    name = "tf32" if facts.tf32_products and "tf32" in gpu.peak_flops else "fp32"
    peak = gpu.peak_flops.get(name) or gpu.peak_bf16_flops / 16.0
    share = operators.gemm.get("bf16" if name == "tf32" else "fp32", 0.8)
    halved = replace(gpu, peak_flops={"bf16": peak}, hbm_bytes_per_s=gpu.hbm_bytes_per_s / 2.0)
    constants, group = profile.constants, profile.group
    inside = replace(group.intra_node, bytes_per_s=group.intra_node.bytes_per_s / 2.0)
    slow = replace(group, gpu=halved, intra_node=inside, inter_node=group.inter_node.slowed(2.0))
    own = replace(
        facts, weight_bytes=2.0, gradient_dtype="bf16", reduced_gradient_dtype="",
        bucket_bytes=facts.bucket_bytes * (1.0 if facts.keeps_buckets else 0.5),
        replicated_gradient_dtype="", own_gradient_bytes=0.0, optimizer_bytes=_FP32_OPTIMIZER_BYTES,
        autocasts=False, reduces_copies=False, low_precision_weights=False,
        logit_bytes=facts.logit_bytes / 2.0, precision_recipe="none",
        attention_kernel=_WIDE.get(facts.attention_kernel, "torch"),
    )  # fmt: skip
    changed = replace(
        profile,
        group=slow,
        by_group=tuple(_in_32_bits(one, facts)[0] for one in profile.by_group),
        gpu_operators=replace(operators, gemm={"bf16": share, "fp16": share}),
        constants=replace(
            constants,
            update_bytes=constants.update_bytes * (_FP32_MOVED / 2.0),
            loss_bytes=constants.loss_bytes / 2.0,
        ),
    )
    return changed, own


def facts_as_run(problem: Problem, profile: Profile) -> FrameworkFacts:
    """Return what really runs of a workload's options: a kernel that a model can't have is another.

    Raises:
        InvalidProblemError: a framework option is unknown or has a wrong value.
    """
    return _as_run(problem, profile)[1]


def adds_every_gradient(facts: FrameworkFacts) -> bool:
    """Return whether the first micro-batch's gradients, too, are added to an fp32 buffer."""
    return facts.main_gradient and facts.gradient_bytes > _BF16_BYTES


def _as_run(problem: Problem, profile: Profile) -> tuple[Profile, FrameworkFacts]:
    """Return a profile and its framework's facts under the options and the precision of a workload."""
    workload = problem.workload
    facts = with_options(profile.framework, workload.framework_options)
    if facts.attention_kernel == AUTO:
        taken = implementation(problem.model, facts.transformers_release)
        facts = replace(facts, attention_kernel=taken.kernel)
    if facts.separate_projections:
        facts = replace(facts, attention_kernel=runnable(facts.attention_kernel, problem.model))
    if problem.model.attends_alike:
        facts = replace(facts, attention_kernel=of_layers(facts.attention_kernel, problem.model))
    if workload.precision == "fp32":
        profile, facts = _in_32_bits(profile, facts)
    if not optimizer_named(workload.optimizer).fp32_copy:
        # DistributedDataParallel reduces what the weights' dtype makes them
        facts = replace(facts, replicated_gradient_dtype="bf16")
    if problem.model.compression and facts.separate_projections and facts.flash:
        facts = replace(facts, attention_kernel="torch")  # DeepseekV4PreTrainedModel: ``_supports_sdpa``
    return profile, facts


def _has_remainders(problem: Problem, facts: FrameworkFacts, *, low_precision: bool) -> bool:
    """Return whether the fp32 copy of a bf16 weight holds only the 2 bytes that the weight lacks.

    That takes an optimizer with state dtypes of its own.
    """
    if not facts.keeps_remainders or problem.workload.precision != "bf16" or low_precision:
        return False
    of_gradients = launcher_capabilities(problem.launcher).bf16_gradients_are_optimizers
    return optimizer_named(problem.workload.optimizer).short_states or (
        facts.gradient_dtype == "bf16" and of_gradients
    )


def _context_groups(
    columns: Columns, stride: FloatArray, group: Callable[..., Group]
) -> tuple[Group, Group]:
    """Return the ranks that exchange heads for tokens, and those that pass keys and values round.

    In a row with one of the two alone, both are all its context-parallel ranks.
    """
    ranks, exchanging = columns.context_parallel_size.astype(np.float64), columns.exchanging
    every = group(ranks, stride)
    if not (columns.context_parallel_mode > ALL_TO_ALL).any():
        return every, every
    # neighbours exchange (create_hierarchical_groups)
    near = exchanging.astype(np.float64)
    return group(near, stride), group(ranks / near, stride * near)


def context_of(problem: Problem, columns: Columns, profile: Profile, ways: Ways | None = None) -> Context:
    """Return everything that the formulas read.

    ``ways``: the switches that each row is under; None: the problem's.

    Raises:
        DisputedFactError: a fact is read in which the ways differ.
        InvalidProblemError: a framework option is unknown, has a wrong value, or asks for a precision
            that the GPU lacks.
    """
    workload, lengths = problem.workload, problem.workload.lengths
    optimizer, able = optimizer_named(workload.optimizer), launcher_capabilities(problem.launcher)
    profile, facts = _as_run(problem, profile)
    facts = facts if ways is None else ways.agreed
    in_32_bits, gpu = workload.precision == "fp32", profile.group.gpu
    precision = "bf16" if in_32_bits else linear_precision(problem, facts, gpu)
    low_precision = precision in ("fp8", "fp4")
    devices = _devices_of(problem, profile, facts)
    gpu = _clocked(gpu, facts)
    remainder_bytes = 2.0 if _has_remainders(problem, facts, low_precision=low_precision) else 0.0

    def size_of(axis: str) -> FloatArray:
        return np.asarray(getattr(columns, f"{axis}_size").astype(np.float64))

    t, c, d, p = (size_of(f"{axis}_parallel") for axis in ("tensor", "context", "data", "pipeline"))
    e, et, b = size_of("expert_parallel"), size_of("expert_tensor_parallel"), size_of("micro_batch")
    g, ge = size_of("weight_shard"), size_of("expert_weight_shard")
    sequence_parallel = (columns.sequence_parallel == 1) & (columns.tensor_parallel_size > 1)
    shares_out_images = able.shares_out_images & (workload.images_per_sample * b >= t * c)
    data_ranks = c * d / g
    shard_ranks = np.minimum(np.where(columns.zero_stage > 0, columns.zero_shard_size, 1), data_ranks)
    expert_data_ranks = np.maximum(t * c * d / (e * et * ge), 1.0)
    place = placement_of(columns)
    tensor, context, expert, data, stages = profile.fabrics
    # node groups differ in their islands, and say themselves which nodes a stage fills
    world = columns.num_gpus.astype(np.float64) if problem.cluster.is_homogeneous else None
    group = partial(Group, blocks=place.blocks, world=world)
    exchange, ring = _context_groups(columns, place.context_stride, partial(group, fabric=context))
    rows = b * workload.sample_kind.sequences
    return Context(
        model=problem.model,
        gpu=gpu,
        facts=facts,
        constants=profile.constants,
        operators=profile.gpu_operators,
        fabric=stages,
        layers=None if lengths else profile.layers,  # which were timed on whole sequences
        columns=columns,
        placement=place,
        seq_length=workload.seq_length,
        optimizer=optimizer,
        workload=workload,
        host=host_of(profile.group),
        sharding=Sharding(columns=columns, facts=facts, low_precision=low_precision),
        linear_precision=precision,
        low_precision=low_precision,
        frozen=workload.language_frozen,
        below=False,
        trained_modules=workload.modules_trained,
        packs=lengths is not None and lengths.batching == "packing" and facts.knows_documents,
        pads_to_longest=lengths is not None and lengths.batching == "padding_to_longest",
        adds_every_gradient=adds_every_gradient(facts),
        element_scale=2.0 if in_32_bits else 1.0,
        remainder_bytes=remainder_bytes,
        moved_share=(optimizer.moved_bytes - remainder_bytes) / ADAMW_MOVED_BYTES,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s * profile.constants.hbm,
        t=t, c=c, e=e, et=et, d=d, p=p, g=g, ge=ge,
        tower_t=np.ones_like(t) if able.whole_towers else t,
        image_ranks=np.where(shares_out_images, t * c, 1.0) if able.whole_towers else c,
        micro_batch=rows,
        tokens=rows * workload.seq_length / c,
        row_share=np.where(sequence_parallel, 1.0 / t, 1.0),
        sequence_parallel=sequence_parallel,
        selective=columns.recompute == RECOMPUTE.index("selective"),
        full=columns.recompute == RECOMPUTE.index("full"),
        tensor_group=Group(t, np.ones_like(t), tensor),
        exchanging=columns.exchanging.astype(np.float64),
        exchange_group=exchange,
        ring_group=ring,
        expert_group=group(e, et, expert),  # the innermost ranks after expert tp
        # there may be more of them than tensor ranks
        expert_tensor_group=group(et, np.ones_like(et), tensor),
        data_group=group(data_ranks, t * g, data),
        shard_group=group(shard_ranks, t * g, data),
        expert_data_group=group(expert_data_ranks, e * et * ge, data),
        weight_group=group(g, t, data),
        expert_weight_group=group(ge, e * et, data),
        ways=ways,
        devices=devices,
    )  # fmt: skip


def _clocked(gpu: GpuSpec, facts: FrameworkFacts) -> GpuSpec:
    """Return a GPU with the peaks that its power limit leaves."""
    clock = clock_share(gpu, facts.power_limit_w)
    return replace(gpu, peak_flops={name: peak * clock for name, peak in gpu.peak_flops.items()})


def _devices_of(problem: Problem, profile: Profile, facts: FrameworkFacts) -> tuple[Device, ...]:
    """Return the types of GPUs in a mesh; () where all are alike.

    Raises:
        InvalidProblemError: one of them lacks the precision that the recipe asks for.
    """
    found = list[Device]()
    for one in profile.by_group:
        gpu = one.group.gpu
        if problem.workload.precision != "fp32":
            linear_precision(problem, facts, gpu)
        device = Device(
            gpu=_clocked(gpu, facts),
            operators=one.gpu_operators,
            hbm_bytes_per_s=gpu.hbm_bytes_per_s * profile.constants.hbm,
        )
        found += [device] if device not in found else []
    return tuple(found)


_DUALPIPE_V = SCHEDULES.index("dualpipe_v")


def paired_passes(columns: Columns) -> FloatArray:
    """Return the share of passes that run in pairs, forward with backward, (n,); 0 but in DualPipe-V.

    Of its 2 m forward passes rank r runs 2 (m - 2 p + r + 1) in pairs in the main phase and p - r - 1
    behind it, each with a whole backward pass (torch 2.13 ``ScheduleDualPipeV``, steps 4 and 5; rank p - 1
    takes its first two apart): 2 m - 5 p / 2 + 1 / 2 - 1 / p on the mean. The exchanges of one run under
    the other's computing (DeepSeek-V3, arXiv:2412.19437, figure 4; torchtitan ``distributed/dual_pipe_v.py
    overlap_callback``). ZB-V runs its passes one by one.
    """
    m, p = columns.num_microbatches, columns.pipeline_parallel_size
    share = 1.0 - (2.5 * p - 0.5 + 1.0 / p) / (2.0 * m)
    paired = (columns.pipeline_schedule == _DUALPIPE_V) & (p > 1)
    return np.where(paired, np.maximum(share, 0.0), 0.0)


def experts_overlap(columns: Columns, model: ModelSpec) -> BoolArray:
    """Mark rows that may run experts' all-to-alls under the computing of another micro-batch, shape (n,).

    ``--overlap-moe-expert-parallel-comm`` (Megatron-Core 0.16.1, ``transformer_config.py:1852-1899``): with
    expert parallelism, virtual and pipeline stages, no full recomputation, and at most one
    multi-token-prediction layer, which needs pipeline stages. Not with Megatron-FSDP, which knows of it
    from 0.19 on only (``distributed/fsdp/mcore_fsdp_adapter.py:168``).
    """
    broken = np.logical_or.reduce(list(overlap_limits(columns, model).values()))
    return np.asarray(~broken & (model.moe is not None))


def overlap_limits(columns: Columns, model: ModelSpec) -> dict[str, BoolArray]:
    """Return rules that prevent overlapped experts: True where broken, (n,) (``experts_overlap``)."""
    stages = columns.pipeline_parallel_size > 1
    most = np.where(stages, 1, 0)
    return {
        "expert_parallel_size must be above 1": columns.expert_parallel_size == 1,
        "pipeline stages need virtual_pipeline_size above 1": stages & (columns.virtual_pipeline_size == 1),
        "multi-token prediction allows one layer, with pipeline stages": most < model.num_mtp_layers,
        "recompute_granularity must not be full": columns.recompute == RECOMPUTE.index("full"),
        "zero_stage must be 0 or 1": columns.zero_stage >= SHARD_GRADIENTS,
    }
