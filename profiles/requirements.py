"""Packages that a plan needs, and which of them a stock installation of its launcher lacks.

A *stock installation* is the launcher with the packages that it installs itself and Transformer Engine
2.10, the oldest release that runs everything Megatron-Core 0.19 does by default: Megatron-FSDP refuses an
older one (``distributed/fsdp/mcore_fsdp_adapter.py:153``). DeepEP and HybridEP are builds of their own that
no launcher installs. Lines: Megatron-LM d98e8a64, Megatron-Bridge 067f987d.

Packages of the other launchers depend on the values that their exporters write, which choose from the
constants below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.switches import EVERY_SWITCH, switches

STOCK_TRANSFORMER_ENGINE = "2.10.0"
_ENGINE = "transformer_engine"
_RELEASE = (
    "from importlib.metadata import version; from packaging.version import Version; "
    'assert Version(version("{package}")) {holds} Version("{release}")'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One package that a plan needs, with the release and the reason."""

    name: str  # as people call it, with the release: ``HybridEP``, ``Transformer Engine 2.12``
    package: str  # what Python imports
    minimum: str  # oldest release that will do; empty: any
    why: str  # what of the plan needs it
    check: str  # statements for ``python -c``: they fail where the package is missing or too old
    source: str  # file and line of the launcher that refuses to start without it
    stock: bool = False  # a stock installation has it; worth a check, but not worth a mark in a table
    install: str  # how to get it
    instead: str  # what in a request does without it
    switches: tuple[str, ...] = ()  # of ``profiles.switches``: a request that allows all of them allows it


def requirements_of(
    launcher: str,
    facts: FrameworkFacts,
    model: ModelSpec,
    *,
    overlaps: bool = True,
    offloads: bool = False,
    zero_stage: int = 0,
    weight_shards: bool = False,
) -> tuple[Requirement, ...]:
    """Return the packages that a launcher over Megatron-Core needs for a plan; none for other launchers.

    Each package appears once, by its newest release, with every reason for that.

    Args:
        launcher: Its name.
        facts: The framework's, with the options of the plan.
        model: The model to be trained.
        overlaps: Whether the plan overlaps its experts where ``facts`` ask for that.
        offloads: Whether the plan sends activations to the host.
        zero_stage: Of the plan; from 2 on Megatron-FSDP shards.
        weight_shards: Whether data-parallel ranks share weights of the plan.
    """
    if launcher not in switches()["recompute_modules"].launchers:
        return ()
    delays = bool(model.moe) and overlaps and facts.overlap_experts and facts.delay_wgrad
    found = [
        *_dispatchers(facts, model),
        *(_delayed_graphs(facts, model) if delays else ()),
        *((_OFFLOADED_IN_GRAPH,) if offloads and _sends_from_graphs(facts, model) else ()),
        *((_SHARDED,) if zero_stage > 1 else ()),
        *((_WEIGHT_SHARDS,) if weight_shards else ()),
        *((_MIXERS[model.mixer.kind],) if model.mixer and model.mixer.kind in _MIXERS else ()),
        *_engines(facts, model, delays=delays),
    ]
    by_package = attrgetter("package")
    return tuple(map(_joined, groupby(sorted(found, key=by_package), by_package)))


def _joined(group: tuple[str, Iterable[Requirement]]) -> Requirement:
    some = list(dict.fromkeys(group[1]))
    newest = max(map(_release, some))
    kept = [one for one in some if _release(one) == newest]
    return replace(
        kept[0],
        why="; ".join(one.why for one in kept),
        source="; ".join(one.source for one in kept),
        instead=" and ".join(dict.fromkeys(one.instead for one in kept)),
        switches=tuple(dict.fromkeys(name for one in kept for name in one.switches)),
    )


def missing_from_stock(found: Iterable[Requirement]) -> tuple[str, ...]:
    """Return the names of the requirements that a stock installation lacks."""
    return tuple(one.name for one in found if not one.stock)


def unallowed(
    allow: Collection[str],
    launcher: str,
    facts: FrameworkFacts,
    model: ModelSpec,
    *,
    offloads: bool = False,
) -> tuple[str, ...]:
    """Return the names of what a stock installation lacks and a request does not allow (``search.allow``).

    It allows a package by the names of all switches that need it together, or all packages by ``switches``.
    """
    if EVERY_SWITCH in allow:
        return ()
    found = requirements_of(launcher, facts, model, offloads=offloads)
    return missing_from_stock(one for one in found if not {*one.switches} <= {*allow})


def _release(requirement: Requirement) -> tuple[int, ...]:
    return _numbers(requirement.minimum)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part)


def _engine(
    minimum: str, why: str, source: str, *, instead: str, switches: tuple[str, ...] = ()
) -> Requirement:
    return Requirement(
        name=f"Transformer Engine {minimum.removesuffix('.0')}",
        package=_ENGINE,
        minimum=minimum,
        why=why,
        check=_RELEASE.format(package=_ENGINE, holds=">=", release=minimum),
        source=source,
        stock=_numbers(minimum) <= _numbers(STOCK_TRANSFORMER_ENGINE),
        install=f'pip install "transformer_engine[pytorch]>={minimum}"',
        instead=instead,
        switches=switches,
    )


_DEEPEP = Requirement(
    name="DeepEP",
    package="deep_ep",
    minimum="",
    why="moe_dispatcher deepep sends tokens to their experts by DeepEP's kernels",
    check="from deep_ep import Buffer",
    source="megatron/core/transformer/moe/fused_a2a.py:12",
    install="build it from github.com/deepseek-ai/DeepEP",
    instead="workload.framework_options: {moe_dispatcher: alltoall}",
    switches=("moe_dispatcher",),
)
_HYBRIDEP = replace(
    _DEEPEP,
    name="HybridEP",
    why="moe_dispatcher hybridep sends tokens to their experts by the kernels of DeepEP's branch hybrid-ep",
    check="from deep_ep import HybridEPBuffer",
    source="megatron/core/transformer/moe/fused_a2a.py:272",
    install="build the branch hybrid-ep of github.com/deepseek-ai/DeepEP",
)
_SHARDED = _engine(
    "2.10.0",
    "Megatron-FSDP adds gradients up inside the weight gradients' products",
    "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py:153",
    instead="--bound zero_stage=0:1",
)
_DELAYED_IN_GRAPH = _engine(
    "2.12.0",
    "a CUDA graph captures weight gradients that delay_wgrad puts off",
    "megatron/training/arguments.py:1915; Megatron-Bridge src/megatron/bridge/training/comm_overlap.py:546",
    instead="workload.framework_options: {cuda_graph: none}",
    switches=("overlap_experts", "cuda_graph"),
)
_DELAYED = _engine(
    "2.10.0",
    "delay_wgrad runs next to CUDA graphs of parts of a layer",
    "megatron/core/transformer/transformer_config.py:3079",
    instead="workload.framework_options: {cuda_graph: none}",
)
_OFFLOADED_IN_GRAPH = _engine(
    "2.14.0",
    "a CUDA graph captures modules with activations that go to the host",
    "megatron/core/transformer/transformer_layer.py:1612",
    instead="workload.framework_options: {cuda_graph: none}",
    switches=("offload", "cuda_graph"),
)
_DELTA_RULE = Requirement(
    name="flash-linear-attention",
    package="fla",
    minimum="",
    why="gated delta nets run on its kernels",
    check="from fla.ops.gated_delta_rule import chunk_gated_delta_rule",
    source="megatron/core/ssm/gated_delta_net.py:41",
    stock=True,  # checked, not marked: no plan of such a model does without it
    install="pip install flash-linear-attention",
    instead="a model without gated delta nets",
)
_STATE_SPACE = Requirement(
    name="mamba-ssm",
    package="mamba_ssm",
    minimum="",
    why="state-space layers run on its kernels",
    check="from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined",
    source="megatron/core/ssm/mamba_mixer.py:203",
    stock=True,  # as flash-linear-attention
    install="pip install mamba-ssm causal-conv1d",
    instead="a model without state-space layers",
)
_SELECTIVE_SCAN = replace(
    _STATE_SPACE,
    why="selective scans run on its kernels",
    check="from mamba_ssm.ops.selective_scan_interface import selective_scan_fn",
    source="transformers/models/jamba/modeling_jamba.py",
    instead="a model without selective scans",
)
_KIMI_DELTA = replace(
    _DELTA_RULE,
    why="Kimi's delta attention runs on its kernels",
    check="from fla.ops.kda import chunk_kda",
    source="transformers/models/kimi_linear/modeling_kimi_linear.py",
    instead="a model without Kimi's delta attention",
)
_SHORT_CONVOLUTION = replace(
    _STATE_SPACE,
    name="causal-conv1d",
    package="causal_conv1d",
    why="short convolutions run on its kernel",
    check="from causal_conv1d import causal_conv1d_fn",
    source="transformers/models/lfm2/modeling_lfm2.py",
    install="pip install causal-conv1d",
    instead="a model without short convolutions",
)
# Lightning attention has no package of its own: transformers' class loops over blocks in torch.
_MIXERS = {
    "gated_delta_net": _DELTA_RULE,
    "kimi_delta_attention": _KIMI_DELTA,
    "mamba1": _SELECTIVE_SCAN,
    "mamba2": _STATE_SPACE,
    "short_convolution": _SHORT_CONVOLUTION,
}
_WEIGHT_SHARDS = replace(
    _engine(
        "2.19.0",
        "weights that data-parallel ranks share are gathered by its DistributedWeight",
        "megatron/core/tensor_parallel/generalized_tensor_parallelism.py:43, initialize.py:366",
        instead="--pin weight_shard_size=1 --pin expert_weight_shard_size=1",
    ),
    stock=True,  # checked, not marked: a request asks for such plans itself
)
_PACKAGES: dict[str, Requirement] = {"deepep": _DEEPEP, "hybridep": _HYBRIDEP}


def _dispatchers(facts: FrameworkFacts, model: ModelSpec) -> tuple[Requirement, ...]:
    needed = _PACKAGES.get(facts.moe_dispatcher) if model.moe else None
    return (needed,) if needed else ()


def _delayed_graphs(facts: FrameworkFacts, model: ModelSpec) -> tuple[Requirement, ...]:
    """Return the release of Transformer Engine for delayed weight gradients next to CUDA graphs.

    Those of attention are inside a graph of ``attn``, those of shared experts inside one of ``moe_router``
    unless the shared experts run under the exchange.
    """
    scope = facts.cuda_graph.split("+")
    if scope == ["none"]:
        return ()
    shared = bool(model.moe and model.moe.shared_ffn_hidden_size) and not facts.shared_expert_overlap
    inside = "attn" in scope or ("moe_router" in scope and shared)
    return (_DELAYED_IN_GRAPH,) if inside else (_DELAYED,)


def _sends_from_graphs(facts: FrameworkFacts, model: ModelSpec) -> bool:
    """Return whether a CUDA graph of attention, or of a dense layer, holds offloaded modules.

    The norm in front of a dense MLP is inside a graph of both; with a graph of only one of them Megatron
    does not offload it (``transformer_layer.py:1579``).
    """
    scope, sent = {*facts.cuda_graph.split("+")}, {*facts.offload_modules.split("+")}
    dense = "dense" in model.layer_kinds()
    held = {"core_attn", "attn_proj", "qkv_linear", *(("mlp_norm",) if dense and "mlp" in scope else ())}
    return "attn" in scope and bool(held & sent)


# --------------------------------------------------------------------------------------------------
# Releases of Transformer Engine that a stock installation has: an older one runs other plans.


_NO_8_BITS = "--precision bf16"
_RECIPES = {
    "mxfp8": _engine("2.1.0", "products in mxfp8", "megatron/core/fp8_utils.py:770", instead=_NO_8_BITS),
    "fp8-current": _engine(
        "2.2.0", "8-bit products with current scaling", "megatron/core/fp8_utils.py:777", instead=_NO_8_BITS
    ),
    "fp8-blockwise": _engine(
        "2.3.0", "8-bit products with a scale for each block", "megatron/core/fp8_utils.py:781",
        instead=_NO_8_BITS,
    ),
    "nvfp4": _engine(
        "2.7.0", "products in nvfp4", "megatron/training/arguments.py:1108", instead=_NO_8_BITS
    ),
}  # fmt: skip
_RECOMPUTED_IN_8_BITS = _engine(
    "2.6.0",
    "activations of experts or norms are recomputed in front of 8-bit products",
    "megatron/core/transformer/transformer_config.py:2007",
    instead="workload.framework_options: {recompute_modules: core_attn}",
)
_SINKS = _engine(
    "2.8.0",
    "attention has sinks (softmax_type learnable)",
    "megatron/core/extensions/transformer_engine.py:2185",
    instead="another model",
)
_DELAYED_ALONE = _engine(
    "2.8.0",
    "delay_wgrad puts weight gradients off, while gradients are reduced",
    "megatron/training/arguments.py:1907",
    instead="workload.framework_options: {delay_wgrad: false}",
)


def _engines(facts: FrameworkFacts, model: ModelSpec, *, delays: bool) -> tuple[Requirement, ...]:
    low = facts.precision_recipe in _RECIPES
    recomputes = {"moe_act", "layernorm"} & {*facts.recompute_modules.split("+")}
    return (
        *((_RECIPES[facts.precision_recipe],) if low else ()),
        *((_RECOMPUTED_IN_8_BITS,) if low and recomputes else ()),
        *((_SINKS,) if model.attention_sinks else ()),
        *((_DELAYED_ALONE,) if delays else ()),
    )


# --------------------------------------------------------------------------------------------------
# Packages of launchers over torch, which none of them installs: their exporters choose among these.
#
# transformers 5.23.0, TRL 1.16.0, LLaMA-Factory 0.9.5, Axolotl 0.19.0, torchtitan 0.3.0, nanotron 0.4.


_INSTALLED = 'from importlib.metadata import version; version("{package}")'
_FOUND = "from importlib.util import find_spec; assert {found}"


def _package(name: str, package: str, *, why: str, source: str, install: str, instead: str) -> Requirement:
    check = _INSTALLED.format(package=package)
    return Requirement(
        name=name, package=package, minimum="", why=why, check=check, source=source, install=install,
        instead=instead,
    )  # fmt: skip


PEFT = _package(
    "peft", "peft", why="adapters are trained", source="TRL, extra peft (METADATA)",
    install="pip install peft", instead="--lora-rank 0",
)  # fmt: skip
QUANTIZED_WEIGHTS = _package(
    "bitsandbytes", "bitsandbytes", why="frozen weights are kept in 8 or 4 bits",
    source="TRL, extra quantization (METADATA); LLaMA-Factory model/model_utils/quantization.py:169",
    install="pip install bitsandbytes", instead="--base-precision bf16",
)  # fmt: skip
QUANTIZED_ADAM = _package(
    "bitsandbytes", "bitsandbytes", why="the optimizer keeps its states in 8 bits",
    source="transformers trainer_optimizer.py:248",
    install="pip install bitsandbytes", instead="--optimizer adamw",
)  # fmt: skip
GALORE = _package(
    "galore-torch", "galore_torch", why="the optimizer projects gradients to a low rank",
    source="LLaMA-Factory hparams/parser.py:179",
    install="pip install galore-torch", instead="--optimizer adamw-8bit",
)  # fmt: skip
SHARDED_QUANTIZED_ADAM = replace(
    QUANTIZED_ADAM,
    name="torchao 0.4",
    package="torchao",
    minimum="0.4.0",
    check=_RELEASE.format(package="torchao", holds=">=", release="0.4.0"),
    source="transformers trainer_optimizer.py:452",
    install='pip install "torchao>=0.4"',
)
TORCHAO_PRODUCTS = _package(
    "torchao", "torchao", why="products run in 8 bits",
    source="torchtitan components/quantization/float8.py:77",
    install="pip install torchao", instead=_NO_8_BITS,
)  # fmt: skip
FLASH_ATTENTION = _package(
    "flash-attn", "flash_attn", why="attention was priced with FlashAttention's kernels",
    source="LLaMA-Factory model/model_utils/attention.py:80",
    install="pip install flash-attn --no-build-isolation",
    instead="workload.framework_options: {attention_kernel: cudnn}",
)  # fmt: skip
FLASH_ATTENTION_OR_KERNELS = replace(
    FLASH_ATTENTION,
    name="flash-attn or kernels",
    check=_FOUND.format(found='find_spec("flash_attn") or find_spec("kernels")'),
    source="transformers modeling_utils.py:1779",
    install="pip install kernels (or flash-attn --no-build-isolation)",
)
ENGINES_FLASH_ATTENTION = replace(
    FLASH_ATTENTION,
    check=_FOUND.format(found='find_spec("flash_attn") or find_spec("flash_attn_3")'),
    source="Transformer Engine pytorch/attention/dot_product_attention/utils.py, FlashAttentionUtils",
)
NANOTRONS_FLASH_ATTENTION = replace(
    FLASH_ATTENTION,
    why="its layers import FlashAttention, whatever attention they run",
    source="nanotron src/nanotron/nn/layer_norm.py:2; pyproject.toml, extra fast-modeling",
    install='pip install "flash-attn>=2.5,<2.7" --no-build-isolation',
    instead="another launcher",
)
ENGINE_FOR_JAX = _package(
    "Transformer Engine for JAX", "transformer_engine_jax", why="attention runs on cuDNN's fused kernels",
    source="MaxText layers/attention_op.py, cudnn_flash_te",
    install='pip install "transformer_engine[jax]"',
    instead="workload.framework_options: {attention_kernel: triton}",
)  # fmt: skip
RING_ATTENTION = _package(
    "ring-flash-attn", "ring_flash_attn", why="the sequence is split over context ranks",
    source="Axolotl utils/schemas/validation.py:1848",
    install='pip install "axolotl[ring-flash-attn]"', instead="--pin cp=1",
)  # fmt: skip
CUT_CROSS_ENTROPY = _package(
    "cut-cross-entropy (Axolotl's fork)", "cut_cross_entropy", why="the loss was priced without logits",
    source="Axolotl integrations/cut_cross_entropy/__init__.py:63",
    install='pip install "cut-cross-entropy[transformers] @ git+https://github.com/axolotl-ai-cloud/ml-cross-entropy"',
    instead="workload.framework_options without loss_fused and logit_bytes",
)  # fmt: skip
OLDER_TRANSFORMERS = replace(
    _package(
        "transformers before 5.1", "transformers", why="accelerate prepares tensor ranks next to FSDP2",
        source="accelerate accelerator.py _prepare_tp: transformers' ReplicateParallel, which 5.1 took out",
        install='pip install "transformers<5.1"', instead="--pin tp=1",
    ),
    check=_RELEASE.format(package="transformers", holds="<", release="5.1"),
)  # fmt: skip
ASYNC_IO = replace(
    _package(
        "libaio", "libaio", why="states are kept on NVMe", source="DeepSpeed op_builder/async_io.py",
        install="apt-get install libaio-dev", instead="no --allow offload",
    ),
    check="from deepspeed.ops.op_builder import AsyncIOBuilder; assert AsyncIOBuilder().is_compatible()",
)  # fmt: skip
