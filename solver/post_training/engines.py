"""Seconds and bytes of an inference engine, from the catalog's facts: products, memory, collectives.

A decode step multiplies few rows with every weight, so that reading the weights rules below the tables'
first rows, and reads the keys and values of all running answers. Everything else (norms, rotation, cache
writes) is launched from one graph. Nothing is fitted. What the catalog does not have is named here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.profiles.cluster import ClusterSpec, NodeGroup
from meshwright.profiles.collectives.collectives import Group, all_reduce_s
from meshwright.profiles.layers.operators import Layer, Operator
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec
from meshwright.profiles.operators.operators import GpuOperators, gemm_s, operators_of
from meshwright.profiles.operators.tables import OperatorTable, load_operator_tables
from meshwright.profiles.profile import default_profile

FloatArray = NDArray[np.float64]

MEMORY_SHARES = (
    0.6,
    0.85,
)  # gpu_memory_utilization: NeMo-RL's grpo_math_1B.yaml .6; verl's async recipes .8 to .9
COLOCATED_SHARE = (
    0.7  # at most, next to a sleeping trainer (NeMo-RL's and verl's colocated recipes: .5 to .7)
)
MOST_RUNNING = 1024  # vLLM v1 usage_context LLM_CLASS: max_num_seqs on GPUs of 70 GiB and more; verl's base
ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0}
CHUNK = 8192  # rows of a prefill step: vLLM v1's max_num_batched_tokens
_READ = 0.85  # share of the data sheet's bandwidth that decode attention reads at (catalog: hbm)
_ATTENTION_S = 11e-6  # floor of one decode attention (aiconfigurator's vLLM tables of an H100)
_GAP_S = 2e-6  # of one kernel inside a CUDA graph; assumed
_SMALL_KERNELS = 7  # of a layer: norms, rotation, cache write, activation, residual sums
_ROUTER_KERNELS = 4
_ONE_SHOT_S, _ONE_SHOT_BYTES = 7e-6, 2**19  # all-reduce in one island (vLLM custom_all_reduce), its limit
_HOST_S, _HOST_ANSWER_S = (
    4e-3,
    10e-6,
)  # of a step, and of a running answer: scheduler, sampling, output; assumed
_SAMPLING_PASSES = 5  # over fp32 logits
_ATTENTION_RATE = 0.6  # share of the dense peak that prefill attention reaches
_FIRST_ROWS = 16.0  # of the tables
_MOST_SLOWDOWN = 2.5  # of experts below the tables' first rows
_TABLES = {
    "hopper": "h100-sxm-80gb",
    "blackwell": "b200-sxm-180gb",
    "ampere": "a100-sxm-80gb",
    "ada": "l40s",
}
_BATCHES: FloatArray = np.unique(np.rint(np.exp2(np.arange(0.0, 14.01, 0.5))))
_FP8 = ("hopper", "ada", "blackwell", "cdna3", "cdna4")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """What engines differ in; their kernels are priced alike, from the same tables."""

    workspace_bytes: float  # within an engine's share of memory: CUDA context, graphs, activations
    overlaps_host: bool  # whether a step is scheduled while the one before it runs


KINDS: Mapping[str, EngineKind] = {
    # vLLM logs 3 to 6 GiB, within gpu_memory_utilization; assumed
    "vllm": EngineKind(workspace_bytes=5e9, overlaps_host=False),
    # SGLang srt/server_args.py: mem_fraction_static counts weights, keys and values alone, and steps are
    # scheduled while others run unless disable_overlap_schedule is set
    "sglang": EngineKind(workspace_bytes=0.0, overlaps_host=True),
}
ENGINES = tuple(KINDS)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One inference engine: a model on ``tensor_parallel_size`` GPUs of a node group."""

    kind: str = "vllm"  # of KINDS
    model: ModelSpec
    group: NodeGroup
    tensor_parallel_size: int = 1
    precision: str = "bf16"
    memory_share: float = 0.85
    most_running: int = MOST_RUNNING
    cache_bytes: float = 2.0  # of one number of keys and values
    counts_host: bool = True  # whether a step may wait for the scheduler

    @cached_property
    def weight_bytes(self) -> float:
        """Return the bytes of weights on one GPU: embedding and head stay in 16 bits."""
        model = self.model
        head = 0 if model.tied_embeddings else model.head[0].weights
        ends = model.vocab_size * model.embedding_width + head
        rest = model.num_parameters() - ends
        return (rest * ELEMENT_BYTES[self.precision] + 2.0 * ends) / self.tensor_parallel_size

    @cached_property
    def cache_bytes_per_token(self) -> float:
        """Return the bytes of one token's keys and values on one GPU, of all layers that keep them."""
        layers = _layers_of(self.model)
        return sum(count * self.cached_bytes(one, one.own_kv_heads) for one, _, count in layers)

    def cached_bytes(self, model: ModelSpec, heads: int) -> float:
        """Return the bytes of one token's keys and values of one layer on one GPU.

        Latent attention keeps one latent for all heads, which tensor parallelism does not split; grouped
        heads split only as far as there are heads.
        """
        if not model.mixes_tokens or not heads:
            return 0.0
        if model.mla is not None:
            return (model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) * self.cache_bytes
        heads_here = max(heads / self.tensor_parallel_size, 1.0)
        return heads_here * (model.head_dim + model.v_head_dim) * self.cache_bytes

    @cached_property
    def cache_tokens(self) -> float:
        """Return the tokens whose keys and values the engine holds; 0 if its weights do not fit."""
        held = self.weight_bytes + KINDS[self.kind].workspace_bytes
        free = self.group.gpu.memory_bytes * self.memory_share - held
        return max(free, 0.0) / self.cache_bytes_per_token

    @cached_property
    def speed(self) -> EngineSpeed:
        """Return the seconds of its steps; engines that differ in memory share them."""
        named = json.dumps(self.group.to_mapping(), sort_keys=True, default=str)
        how = (self.precision, self.cache_bytes, self.counts_host, KINDS[self.kind].overlaps_host)
        return _speed_of(_Sized(self.model, self.tensor_parallel_size, how, named, self))

    def step_s(self, running: ArrayLike, context: ArrayLike) -> FloatArray:
        """Return the seconds of one decode step.

        Args:
            running: answers at once, any shape.
            context: mean tokens of each, prompt counted, of the same shape.
        """
        return self.speed.step_s(
            np.asarray(running, dtype=np.float64), np.asarray(context, dtype=np.float64)
        )

    def prefill_s(self, tokens: float, prompt: float) -> float:
        """Return the seconds of ``tokens`` prompt tokens in prompts of ``prompt`` tokens."""
        return self.speed.prefill_s(tokens, prompt)


def obstacle_of(model: ModelSpec, engine: str) -> tuple[str, str] | None:
    """Return the field of a model that rollouts are not priced with, and the reason; None: they are."""
    what = {
        "mixer": "layers with a mixer keep a state in place of keys and values",
        "layer_pattern": "layers of one block each are not priced in an engine yet",
        "tower": "images and sounds of prompts are not priced in an engine yet",
        "diffusion": "it writes no text",
        "indexer": "sparse attention is not priced in an engine yet",
        "compression": "compressed attention is not priced in an engine yet",
        "hyper_streams": "hyper-connections are not priced in an engine yet",
        "residual_block_layers": "attention residuals are not priced in an engine yet",
    }
    for name, why in what.items():
        if getattr(model, name, None):
            return name, f"{why} ({engine})"
    return None


def sizes_of(model: ModelSpec, group: NodeGroup) -> list[int]:
    """Return tensor-parallel sizes of engines: divisors of the heads, in a node or in whole nodes."""
    most = group.num_gpus
    found = []
    size = 1
    while size <= most:
        whole = size <= group.gpus_per_node or size % group.gpus_per_node == 0
        if whole and model.num_attention_heads % size == 0:
            found.append(size)
        size *= 2
    return found


def has_precision(group: NodeGroup, precision: str) -> bool:
    """Return whether a group's GPUs multiply in that precision."""
    return precision == "bf16" or (precision in group.gpu.peak_flops and group.gpu.architecture in _FP8)


# --------------------------------------------------------------------------------------------------
# Seconds of a step as a function of the running answers, from operators.


@dataclass(frozen=True, kw_only=True)
class EngineSpeed:
    """Seconds of an engine's steps: without attention at ``_BATCHES``, and attention by bytes."""

    base_s: FloatArray
    host_s: FloatArray
    overlaps_host: bool
    attention_layers: int
    read_s_per_token: float  # keys and values of one token, one layer
    flops_s_per_token: float  # latent attention multiplies as much as it reads
    chunk_s: float  # of CHUNK prompt rows without attention
    prefill_s_per_token_squared: float

    def step_s(self, running: FloatArray, context: FloatArray) -> FloatArray:
        """Return the seconds of a decode step, as ``Engine.step_s``."""
        at, known = np.log2(np.maximum(running, 1.0)), np.log2(_BATCHES)
        base, host = np.interp(at, known, self.base_s), np.interp(at, known, self.host_s)
        tokens = running * context
        read = np.maximum(tokens * self.read_s_per_token, tokens * self.flops_s_per_token)
        device = base + self.attention_layers * (read + _ATTENTION_S)
        return np.asarray(np.maximum(device, host) if self.overlaps_host else device + host)

    def prefill_s(self, tokens: float, prompt: float) -> float:
        """Return the seconds of prompts, as ``Engine.prefill_s``."""
        return tokens * (self.chunk_s / CHUNK + prompt / 2.0 * self.prefill_s_per_token_squared)


def _layers_of(model: ModelSpec) -> list[tuple[ModelSpec, LayerKind, int]]:
    """Return each shape of layers as a model of such layers alone, its kind, and how many there are."""
    shapes = Counter(model.layer_shapes())
    return [(model.shaped(shape), shape.kind, count) for shape, count in shapes.items()]


@dataclass(frozen=True)
class _Sized:
    """What the seconds of an engine's steps depend on."""

    model: ModelSpec
    size: int
    how: tuple[str, float, bool, bool]  # precision, bytes of the cache, host, whether it is overlapped
    group: str
    engine: Engine = field(compare=False)


@lru_cache(maxsize=256)
def _speed_of(sized: _Sized) -> EngineSpeed:
    engine = sized.engine
    model, gpu, tp = engine.model, engine.group.gpu, engine.tensor_parallel_size
    layer = _Layers(engine)
    read = gpu.hbm_bytes_per_s * _READ
    flops = 0.0
    if model.mla is not None:
        work = (
            4.0 * model.num_attention_heads / tp * (model.mla.kv_lora_rank + model.mla.qk_rope_head_dim / 2)
        )
        flops = work / (_ATTENTION_RATE * gpu.peak_bf16_flops)
    attending = [(one, count) for one, _, count in _layers_of(model) if one.mixes_tokens]
    number = sum(count for _, count in attending)
    keys_bytes = sum(count * engine.cached_bytes(one, one.num_kv_heads) for one, count in attending)
    scores = sum(
        2.0 * count * one.num_attention_heads * (one.head_dim + one.v_head_dim) / tp
        for one, count in attending
    )
    return EngineSpeed(
        base_s=layer.step_s(_BATCHES),
        host_s=engine.counts_host * (_HOST_S + _HOST_ANSWER_S * _BATCHES),
        overlaps_host=KINDS[engine.kind].overlaps_host,
        attention_layers=number,
        read_s_per_token=keys_bytes / number / read,
        flops_s_per_token=flops,
        chunk_s=float(layer.step_s(np.array([float(CHUNK)]))[0]),
        prefill_s_per_token_squared=scores / (_ATTENTION_RATE * gpu.peak_bf16_flops),
    )


_ABSORBED = "kv_up"  # of latent attention: its product with queries and results takes its place


def _reads_hidden(one: Operator, model: ModelSpec) -> bool:
    return not one.closes and one.matrices[0].inputs == model.hidden_size


class _Layers:
    """Seconds of all layers and the head without attention's core, by rows (n,)."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.model, self.tp = engine, engine.model, engine.tensor_parallel_size
        self.gpu = engine.group.gpu
        self.operators = operators_of(self.gpu, engine.group.inter_node.kind)
        self.read = self.gpu.hbm_bytes_per_s * _READ
        name = self.operators.tables or _TABLES.get(self.gpu.architecture, "")
        self.tables = load_operator_tables(name) if name else None
        cluster = ClusterSpec(name="engine", groups=(engine.group,))
        self.fabric = default_profile(cluster, "none").fabric

    def step_s(self, rows: FloatArray) -> FloatArray:
        """Return seconds of all layers and of the head."""
        model, found = self.model, np.zeros_like(rows)
        for view, kind, count in _layers_of(model):
            found = found + count * self._layer(rows, view, kind)
        for one in model.head:
            found = found + self._operator(rows, one, "bf16")
        logits = rows * model.vocab_size * 4.0 / self.tp
        return found + _SAMPLING_PASSES * logits / self.read

    def _layer(self, rows: FloatArray, model: ModelSpec, kind: LayerKind) -> FloatArray:
        """Return seconds of one layer: what attention reads of the hidden state is one product."""
        layer, routed = model.layer(kind), model.moe if kind == "moe" else None
        dense = [one for one in layer.products if not one.is_routed and one.name != _ABSORBED]
        first = [one for one in dense if one.block == "attention" and _reads_hidden(one, model)]
        wide = sum(one.outputs.on(self.tp, max) for one in first)
        found = self._product(rows, wide, model.hidden_size) if first else np.zeros_like(rows)
        for one in dense:
            found = found + (0.0 if one in first else self._operator(rows, one))
        if model.mla is not None:
            found = found + self._absorbed(rows, model, model.mla)
        sums = layer.closings
        if routed is not None:  # shared experts' sum is the routed ones' too
            found = found + self._experts(rows, layer, routed)
            sums += not layer.of("shared")
        return found + self._small(rows) + sums * self._summed(rows)

    def _operator(self, rows: FloatArray, one: Operator, precision: str = "") -> FloatArray:
        return self._product(rows, one.outputs.on(self.tp, max), one.inputs.on(self.tp, max), precision)

    def _absorbed(self, rows: FloatArray, model: ModelSpec, mla: MlaSpec) -> FloatArray:
        """Return seconds of batched products of each head: queries into the latents, results out."""
        elements = 2.0 * mla.qk_nope_head_dim + 2.0 * rows
        return model.num_attention_heads / self.tp * mla.kv_lora_rank * elements * 2.0 / self.read

    def _experts(self, rows: FloatArray, layer: Layer, moe: MoeSpec) -> FloatArray:
        """Return the router and routed experts: those that no row chose are not read."""
        (router,) = (one for one in layer.of("routed") if not one.is_routed)
        up = next(one.matrices[0] for one in layer.of("routed") if one.is_routed)
        active = moe.num_experts * (1.0 - (1.0 - moe.top_k / moe.num_experts) ** rows)
        each = rows * moe.top_k / active
        width = np.full_like(rows, max(up.outputs / self.tp, 32.0))
        found = self._grouped(each, active, np.full_like(rows, float(up.inputs)), width)
        return found + self._operator(rows, router, "bf16") + _ROUTER_KERNELS * _GAP_S

    def _small(self, rows: FloatArray) -> FloatArray:
        return np.asarray(_SMALL_KERNELS * (_GAP_S + rows * self.model.hidden_size * 4.0 / self.read))

    def _summed(self, rows: FloatArray) -> FloatArray:
        """Return one sum over tensor ranks: one shot while it is small and stays in an island."""
        if self.tp == 1:
            return np.zeros_like(rows)
        payload = rows * self.model.hidden_size * 2.0
        ones = np.ones_like(rows)
        found = all_reduce_s(payload, Group(self.tp * ones, ones, self.fabric))
        if self.tp > self.engine.group.island_gpus:
            return found
        fast = _ONE_SHOT_S + 2.0 * payload / self.engine.group.intra_node.bytes_per_s
        return np.where(payload <= _ONE_SHOT_BYTES, np.minimum(found, fast), found)

    def _product(self, rows: FloatArray, n: float, k: float, precision: str = "") -> FloatArray:
        precision = precision or self.engine.precision
        table = self._table("gemm", precision)
        if table is None:
            return self._product_by_shares(rows, n, k, precision)
        ones = np.ones_like(rows)
        roof = replace(
            table.roof, flops=self.gpu.peak_flops.get(precision, self.gpu.peak_bf16_flops),
            bytes_per_s=self.gpu.hbm_bytes_per_s,
        )  # fmt: skip
        slowdown = table.slowdown(np.maximum(rows, _FIRST_ROWS), n * ones, k * ones)
        return np.asarray(table.roof_s(rows, n * ones, k * ones, roof=roof) * slowdown)

    def _product_by_shares(self, rows: FloatArray, n: float, k: float, precision: str) -> FloatArray:
        own: GpuOperators = self.operators
        share = own.gemm.get(precision, own.gemm["fp16"])
        flops = share * self.gpu.peak_flops.get(precision, self.gpu.peak_bf16_flops)
        return gemm_s(
            rows, n, k, operators=own, flops=flops, bytes_per_s=own.hbm * self.gpu.hbm_bytes_per_s,
            element_bytes=ELEMENT_BYTES[precision],
        )  # fmt: skip

    def _grouped(
        self, each: FloatArray, active: FloatArray, hidden: FloatArray, width: FloatArray
    ) -> FloatArray:
        precision = self.engine.precision
        table = self._table("grouped_mlp", precision)
        if table is None:
            moved = 3.0 * active * hidden * width * ELEMENT_BYTES[precision] / self.read
            rate = self.operators.gemm["fp16"] * self.gpu.peak_bf16_flops
            return np.asarray(moved + 6.0 * each * active * hidden * width / rate)
        roof = replace(
            table.roof, flops=self.gpu.peak_flops.get(precision, self.gpu.peak_bf16_flops),
            bytes_per_s=self.gpu.hbm_bytes_per_s,
        )  # fmt: skip
        slowdown = table.slowdown(np.maximum(each, _FIRST_ROWS), active, hidden, width)
        return np.asarray(
            table.roof_s(np.maximum(each, 1.0), active, hidden, width, roof=roof)
            * np.minimum(slowdown, _MOST_SLOWDOWN)
        )

    def _table(self, operator: str, precision: str) -> OperatorTable | None:
        return None if self.tables is None else self.tables.tables.get((operator, precision))
