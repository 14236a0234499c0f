"""Layout that a row of measured runs describes, as a configuration.

What a source leaves open is filled in as its software would: see each function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from meshwright.profiles.adapters import ATTENTION_TARGETS, LORA_TARGETS
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, LinkSpec, NodeGroup, transport_of
from meshwright.profiles.collectives.measured import measured_network
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import FP8_KERNELS, OPTION_PARTS, OPTION_WORDS, framework_facts
from meshwright.profiles.gpus import network_latency_s
from meshwright.profiles.library import MAX_NAME, find_gpu, find_model, model_like
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.resembling import resembling_gpu
from meshwright.profiles.samples import Reference, SampleKind
from meshwright.profiles.sequences import SequenceLengths
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.towers import FROZEN_PARTS
from meshwright.profiles.units import GB, GBIT
from meshwright.solver.configuration import OFFLOAD, RECOMPUTE, SCHEDULES, Configuration
from meshwright.solver.problem import Workload
from meshwright.solver.runs.cells import SIZES, Cells
from meshwright.solver.splits import even_split, nanotron_split

# The input of a run, apart from its measurements.
READ_COLUMNS = (
    "run_id", "cluster", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads",
    "num_kv_heads", "head_dim", "vocab_size", "tied_embeddings", "gated_mlp", "num_experts", "moe_top_k",
    "moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers", "seq_length", "gpu", "num_gpus",
    "gpus_per_node", "inter_node_link", "network_gbit_per_s_per_gpu", "fast_link_gpus",
    "framework_family", "precision",
    "precision_recipe", "flash_attention", "attention_kernel", "norm_fused", "loss_fused",
    "loss_kernel",
    "tensor_parallel_size", "sequence_parallel", "pipeline_parallel_size", "virtual_pipeline_size",
    "layers_per_stage", "context_parallel_size", "expert_parallel_size", "data_parallel_size",
    "zero_stage", "zero_shard_size", "micro_batch_size", "global_batch_size", "optimizer",
    "gradient_dtype", "peft", "recompute", "recompute_modules", "offload", "pipeline_schedule",
    "moe_dispatcher", "moe_permute_fusion", "moe_router_fusion", "moe_router_force_balance",
    "moe_capacity_factor",
    "moe_shared_expert_overlap", "moe_node_limited_routing", "moe_grouped_mlp_fused", "expert_overlap",
    "delay_wgrad", "expert_tensor_parallel_size", "mtp_layers", "cuda_graph", "recompute_layers",
    "offload_layers", "offload_modules", "fp8_param_gather", "fp8_attention", "optimizer_state_dtype",
    "env_flags", "lora_rank", "lora_targets", "lora_dropout", "base_precision", "pipeline_batch",
    "logits_sharded", "logit_bytes", "fsdp_kind", "sample", "reference", "images_per_sample",
    "image_tokens", "frozen", "recipe",
)  # fmt: skip
_USUAL_VOCABULARY = 51_200  # of a GPT model with no size in its source: GPT-2's, padded
_USUAL_LORA_RANK = 16
_ROOM_FOR_SCORES_BYTES = 40e9  # half of the 80 GB of the GPUs that Megatron-Core's tests are written for
_MLA_QK_DIM = 192  # the query/key size that only multi-head latent attention has (128 + 64)
_KNOWN_FAMILIES = {
    "megatron-lm": "megatron-lm-2021",
    "megatron-deepspeed": "megatron-deepspeed",
    "megatron-core": "megatron-core",
    "deepspeed-zero": "deepspeed",
    "nanotron": "nanotron",
    "fsdp": "fsdp",
    "fsdp-composer": "fsdp1",
    "torchtitan": "fsdp",
    "maxtext": "maxtext",
    "automodel": "automodel",
    "accelerate": "accelerate",
    "trl": "trl",
    "axolotl": "axolotl",
    "llama-factory": "llama-factory-accelerate",
}
# Families by a word of what either column of software holds, the first that is found: makers before parts.
_FAMILIES_BY_WORD = {
    "megatron-deepspeed": "megatron-deepspeed", "composer": "fsdp-composer", "llm-foundry": "fsdp-composer",
    "maxtext": "maxtext", "automodel": "automodel", "llama-factory": "llama-factory",
    "llamafactory": "llama-factory", "axolotl": "axolotl", "trl": "trl", "torchtitan": "torchtitan",
    "nanotron": "nanotron", "nemo": "megatron-core", "megatron-bridge": "megatron-core",
    "megatron-core": "megatron-core", "megatron": "megatron-core", "accelerate": "accelerate",
    "deepspeed": "deepspeed-zero", "fsdp": "fsdp",
}  # fmt: skip
# Programs that are none of them, and the nearest: XLA compiles both; transformers' Trainer runs on
# accelerate; recipes over FSDP2 in torch; Primus starts Megatron-Core.
_NEAREST_BY_WORD = {
    "jax": "maxtext", "axlearn": "maxtext", "unsloth": "trl", "transformers": "accelerate",
    "optimum": "accelerate", "hugging-?face": "accelerate", "torchtune": "fsdp", "lightning": "fsdp",
    "primus": "megatron-core",
}  # fmt: skip
# The nearest framework of a family that is not listed, by who shards its weights.
_FSDP_KINDS = {"fsdp2": "fsdp", "hsdp": "fsdp", "xla_fsdp": "maxtext", "megatron_fsdp": "megatron-core"}
_MODERN_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
_NAMED_MEMORY = re.compile(r"(\d{1,3})gb")
_NETWORK_WORDS = ("efa", "omni-path", "slingshot")
# Recipes that make a run of mixed precision one of 8-bit products throughout its linear layers.
_MIXED_IN_8_BITS = ("fp8-delayed", "fp8-current", "fp8-rowwise", "fp8-blockwise", "mxfp8", "nvfp4")
_LOW = {"mxfp8": ("fp8", "mxfp8"), "nvfp4": ("fp8", "nvfp4"), "mixed": ("bf16", None)}


# Columns of switches, and the facts that they state. Not read: `tp_comm_overlap` and `overlap_grad_reduce`,
# for 0 leaves Megatron's asynchronous gathers and reductions on, which hide nearly as much.
_FLAGS = {
    "norm_fused": "norm_fused", "loss_fused": "loss_fused", "expert_overlap": "overlap_experts",
    "delay_wgrad": "delay_wgrad", "fp8_attention": "fp8_attention",
    "moe_grouped_mlp_fused": "moe_grouped_mlp_fused", "moe_permute_fusion": "moe_permute_fusion",
    "moe_router_fusion": "moe_router_fusion", "logits_sharded": "logits_sharded",
    "moe_router_force_balance": "moe_force_balance",
    "moe_shared_expert_overlap": "shared_expert_overlap", "fp8_param_gather": "low_precision_weights",
}  # fmt: skip
_NUMBERS = {
    name: name for name in ("moe_capacity_factor", "offload_layers", "pipeline_batch", "logit_bytes")
}
_GROUPS = re.compile(r"[1-9]\d{0,3}/[1-9]\d{0,3}")
_REPLAYED = re.compile(r"(\d{1,4})(?:/([1-9]\d{0,3}))?")  # layers of each chunk, or x of all y
_CONTAINER_MONTH = re.compile(r"(?<!\d)2\d\.(0[1-9]|1[0-2])(?!\d)")
_MEGATRON_CORE = ("megatron-core", "megatron-core-ci", "nemo")
# Clusters with scripts that set CUDA_LAUNCH_BLOCKING=1 though their table has no such column
# (bigscience-workshop/bigscience, train/tr11-176B-ml/tr11-176B-ml.slurm).
_BLOCKING_CLUSTERS = ("jeanzay-a100",)
# Optimizers by the dtype of Adam's moments.
_STATES = {"bf16": "adamw-bf16", "fp8": "adamw-8bit"}


class RefusedRunError(Exception):
    """A row that this version cannot express; the message is the reason."""


def needed(cells: Cells, column: str) -> int:
    """Return a whole number of at least 1 without which a run means nothing.

    Raises:
        RefusedRunError: the cell is empty or 0.
    """
    value = cells.count(column)
    if not value:
        raise RefusedRunError(f"{column} is not known")
    return value


def framework_of_run(cells: Cells) -> tuple[str, str | None]:
    """Return a row's framework; for a family that is not listed the nearest, with a warning."""
    stated = (cells.text("framework_family") or "").lower()
    family = stated if stated in _KNOWN_FAMILIES else _by_word(cells, _FAMILIES_BY_WORD) or ""
    flash = cells.flag("flash_attention")
    modern = bool(flash) or cells.text("precision") in _MODERN_PRECISIONS
    if family == "megatron-core" or (family == "megatron-lm" and (modern or _is_after_2021(cells))):
        words = f"{stated} {cells.text('framework') or ''}".lower()
        if any(word in words for word in ("nemo", "bridge", "nvidia")):
            return "nemo", None
        return "megatron-core-ci" if "megatron-core ci" in words else "megatron-core", None
    if family == "deepspeed-zero" and flash is False:
        return "deepspeed-2021", None
    if family in _KNOWN_FAMILIES:
        return _KNOWN_FAMILIES[family], None
    near, kind = _by_word(cells, _NEAREST_BY_WORD), cells.text("fsdp_kind")
    if kind in _FSDP_KINDS:
        near = _FSDP_KINDS[kind]
    elif near is None:
        near = "fsdp" if cells.count("zero_stage") == 3 or "torch" in stated else "megatron-core"  # noqa: PLR2004 (ZeRO-3)
    told = stated or cells.text("framework") or "unknown"
    return near, f"framework family {told[:40]} is read as {near}"


def _is_after_2021(cells: Cells) -> bool:
    """Return whether a run's GPU is younger than the Megatron-LM that had no core yet."""
    gpu = gpu_of_run(cells.text("gpu") or "", cells.number("gpu_memory_gb"))
    return gpu.architecture not in ("volta", "turing", "ampere")


def _by_word(cells: Cells, families: Mapping[str, str]) -> str | None:
    """Return what the first word that is found in a row's columns of software stands for."""
    for column in ("framework_family", "framework"):
        written = re.sub(r"[\s_]+", "-", (cells.text(column) or "").lower())
        for word, family in families.items():
            if re.search(rf"(?<![a-z]){word}(?![a-z])", written):
                return family
    return None


def release_of(cells: Cells) -> str:
    """Return the release of a row's software: the month of NVIDIA's containers, else the cell's text."""
    text = cells.text("framework") or ""
    month = _CONTAINER_MONTH.search(text)
    return month.group() if month else text[:100]


ModelReader = Callable[[str], ModelSpec]  # of a cell: a name, or a place that the reader knows


def model_of(cells: Cells, named: ModelReader = find_model) -> ModelSpec:
    """Return the model's shape: of its sizes, or without any as the cell ``model`` names it.

    Missing columns of a catalog model come from the catalog. What no column states (mixers, windows,
    indexers, towers) a named model has.

    Args:
        cells: the row.
        named: reads the cell ``model`` of a row without sizes.

    Raises:
        RefusedRunError: a size is missing.
        InvalidProblemError: a size is out of range, or there is no such model.
    """
    name = cells.text("model")
    if name is not None and all(cells.text(size) is None for size in SIZES):
        return replace(named(name), name=name[:100])
    heads, hidden = needed(cells, "num_attention_heads"), needed(cells, "hidden_size")
    head_dim = cells.count("head_dim") or max(hidden // heads, 1)
    # DeepSeek's latent attention (arXiv:2405.04434, 2.1), known by its stated query/key size. One that is
    # merely hidden / heads is not evidence: GPT models of 12288 / 64 have it, too.
    latent = MlaSpec(
        q_lora_rank=1536 if heads >= 64 else 0,  # noqa: PLR2004 (the lite models project directly)
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    stated = ModelSpec(
        name=(cells.text("model") or "model")[:100],
        num_layers=needed(cells, "num_layers"),
        hidden_size=hidden,
        ffn_hidden_size=needed(cells, "ffn_hidden_size"),
        num_attention_heads=heads,
        num_kv_heads=cells.count("num_kv_heads") or heads,
        head_dim=head_dim,
        vocab_size=cells.count("vocab_size") or _USUAL_VOCABULARY,
        gated_mlp=bool(cells.flag("gated_mlp")),
        tied_embeddings=bool(cells.flag("tied_embeddings")),
        moe=_moe_of(cells),
        num_mtp_layers=cells.count("mtp_layers") or 0,
        mla=latent if cells.count("head_dim") == _MLA_QK_DIM else None,
        source="a table of measured runs",
    )
    known = model_like(stated)
    if known is None:
        return stated
    own = {name: getattr(stated, name) for name in ("name", "num_mtp_layers", "source")}
    tied = cells.flag("tied_embeddings")
    return replace(
        known,
        **own,
        tied_embeddings=known.tied_embeddings if tied is None else tied,
        vocab_size=cells.count("vocab_size") or known.vocab_size,
    )


def vocabulary_warning(cells: Cells, model: ModelSpec) -> str | None:
    """Return what is assumed if neither the row nor the catalog states the vocabulary."""
    if cells.count("vocab_size") or model.vocab_size != _USUAL_VOCABULARY:
        return None
    return f"vocab_size is not stated: {_USUAL_VOCABULARY} tokens (GPT-2's, padded) are assumed"


def _moe_of(cells: Cells) -> MoeSpec | None:
    experts = cells.count("num_experts")
    if not experts:
        return None
    width = cells.count("moe_ffn_hidden_size") or needed(cells, "ffn_hidden_size")
    shared = cells.count("num_shared_experts") or 0
    return MoeSpec(
        num_experts=experts,
        top_k=cells.count("moe_top_k") or 1,
        ffn_hidden_size=width,
        num_shared_experts=shared,
        shared_ffn_hidden_size=shared * width,
        num_dense_layers=cells.count("num_dense_layers") or 0,
    )


def gpu_of_run(slug: str, memory_gb: float | None) -> GpuSpec:
    """Return the catalog's GPU of that name, or the nearest one under the row's name.

    Its interval is as wide as such readings are wrong (``profiles/resembling.py``).

    Raises:
        RefusedRunError: no name of the catalog resembles it.
    """
    try:
        return find_gpu(slug)
    except InvalidProblemError as error:
        gpu = resembling_gpu(slug)
        if gpu is None:
            raise RefusedRunError(f"GPU {slug[:40]} is not in the catalog") from error
        named = _NAMED_MEMORY.search(slug.lower()[:MAX_NAME])
        stated_gb = memory_gb or (float(named[1]) if named else 0.0)
        memory_bytes = int(stated_gb * GB) or gpu.memory_bytes
        own = re.sub(r"[^a-z0-9]+", "-", slug.lower()[:MAX_NAME]).strip("-")
        return replace(gpu, slug=own, memory_bytes=memory_bytes, read_as=gpu.slug)


def gpu_warning(cells: Cells, cluster: ClusterSpec) -> str | None:
    """Return what is assumed of a GPU that the catalog lacks."""
    gpu, stated = cluster.groups[0].gpu, cells.text("gpu") or ""
    try:
        find_gpu(stated)
    except InvalidProblemError:
        return (
            f"GPU {stated[:40]} is not in the catalog. It is predicted as {gpu.display_name}, with a "
            "wide interval"
        )
    return None


def cluster_of(cells: Cells) -> ClusterSpec:
    """Return the machine: the catalog's GPU with the row's nodes, island and network rate.

    Raises:
        RefusedRunError: the GPU is unknown or the cluster is mixed.
    """
    slug = cells.text("gpu")
    if slug is None:
        raise RefusedRunError("gpu is not known")
    if "+" in slug:
        raise RefusedRunError("a mixed cluster: the table doesn't say which rank runs on which GPU")
    gpu = gpu_of_run(slug, cells.number("gpu_memory_gb"))
    num_gpus = needed(cells, "num_gpus")
    per_node = min(cells.count("gpus_per_node") or gpu.gpus_per_node, num_gpus)
    network = gpu.inter_node
    rate = cells.number("network_gbit_per_s_per_gpu")
    if rate:
        words = (cells.text("inter_node_link") or "").lower()
        named = next((word for word in _NETWORK_WORDS if word in words), transport_of(words))
        kind = named or network.kind
        latency_s = network.latency_s if kind == network.kind else network_latency_s(kind)
        network = LinkSpec(kind=kind, bytes_per_s=rate * GBIT, latency_s=latency_s)
    group = NodeGroup(
        gpu=gpu,
        num_nodes=-(-num_gpus // per_node),
        gpus_per_node=per_node,
        island_gpus=cells.count("fast_link_gpus") or gpu.island_gpus,
        intra_node=gpu.intra_node,
        inter_node=network,
        measured=measured_network(network.kind, gpu.slug),
    )
    return ClusterSpec(name=(cells.text("cluster") or "cluster")[:100], groups=(group,))


def _runs_unfused(cells: Cells, framework: str, model: ModelSpec) -> bool:
    """Return whether Megatron-Core's tests kept a score matrix, regardless of the flag.

    They are deterministic and set ``--attention-backend unfused`` (fused attention only where the
    context is split); for the few others the scores, 5 bytes each, would leave no room.
    """
    if framework != "megatron-core-ci" or (cells.count("context_parallel_size") or 1) > 1:
        return False
    layers = model.num_layers / needed(cells, "pipeline_parallel_size")
    scores = needed(cells, "micro_batch_size") * model.num_attention_heads * layers
    scores *= needed(cells, "seq_length") ** 2
    scores /= needed(cells, "tensor_parallel_size")
    return 5.0 * scores < _ROOM_FOR_SCORES_BYTES


def _software_options(
    cells: Cells, framework: str, model: ModelSpec
) -> dict[str, str | int | float | bool]:
    """Return the row's software facts; words that no fact knows count as unknown."""
    stated: dict[str, str | float | bool | None] = {
        name: word if (word := cells.text(name)) in known else None for name, known in OPTION_WORDS.items()
    }
    for name, (parts, alone) in OPTION_PARTS.items():
        word = cells.text(name)
        known = word in alone or all(part in parts for part in (word or "").split("+"))
        stated[name] = word if known else None
    stated |= {name: cells.flag(column) for column, name in _FLAGS.items()}
    stated |= {name: cells.number(column) for column, name in _NUMBERS.items()}
    groups, flags = cells.text("moe_node_limited_routing"), cells.text("env_flags")
    blocks = cells.text("cluster") in _BLOCKING_CLUSTERS
    if flags is not None:
        blocks = "CUDA_LAUNCH_BLOCKING=1" in flags.split()
    stated |= {
        "moe_routing_groups": groups if groups and _GROUPS.fullmatch(groups) else None,
        "launch_blocking": blocks or None,
        "adapter_dropout": bool(cells.number("lora_dropout")) or None,
    }
    stated |= _reconciled(cells, stated, framework, model)
    if stated["attention_kernel"] is None and not _runs_unfused(cells, framework, model):
        stated["flash_attention"] = cells.flag("flash_attention")
    return {name: value for name, value in stated.items() if value is not None}


def _reconciled(
    cells: Cells, stated: Mapping[str, str | float | bool | None], framework: str, model: ModelSpec
) -> dict[str, str | float | bool | None]:
    """Return stated facts in our terms, where a source's own words or switches mean something else.

    ``torch`` of Megatron-Core is Transformer Engine's unfused attention round Megatron's fused softmax.
    Delayed weight gradients do nothing without overlapped experts, which exclude the overlap of shared
    experts and the recomputation of whole ones; a fused kernel of one grouped product is what recipes with
    stated fusions run. Of NVIDIA's recipes of experts on NVL72 racks 26 of 30 capture graphs; those that
    omit it get the usual scope. Their recipes with latent attention that recompute selectively replay
    its up-projections, and dense MLPs where no token is dropped (Megatron-Bridge 0.1
    ``scripts/performance/configs/deepseek/deepseek_v3_llm_pretrain.py recompute_modules``).
    """
    changed: dict[str, str | float | bool | None] = {}
    if stated["attention_kernel"] == "torch" and framework in _MEGATRON_CORE:
        changed["attention_kernel"] = "megatron-fused"
    if "moe" in str(stated["recompute_modules"] or "").split("+"):
        changed["overlap_experts"] = changed["delay_wgrad"] = None
    elif not stated["overlap_experts"]:
        changed["delay_wgrad"] = None
    elif stated["shared_expert_overlap"]:
        changed["shared_expert_overlap"] = None
    kernel = stated["attention_kernel"] or framework_facts(framework).attention_kernel
    if kernel not in FP8_KERNELS or cells.flag("flash_attention") is False:
        changed["fp8_attention"] = None
    if stated["moe_permute_fusion"]:
        changed["grouped_gemm"] = "grouped"
    racks = (cells.text("gpu") or "").startswith(("gb200", "gb300"))
    if framework == "nemo" and racks and model.moe is not None and stated["cuda_graph"] is None:
        changed["cuda_graph"] = "attn+moe_router+moe_preprocess"
    silent = cells.text("recompute") == "selective" and not stated["recompute_modules"]
    if framework == "nemo" and model.mla is not None and silent:
        drops = bool(cells.number("moe_capacity_factor"))
        changed["recompute_modules"] = "mla_up_proj" if drops else "mla_up_proj+mlp"
    return changed


def _optimizer_of(cells: Cells) -> str:
    name = cells.text("optimizer") or "adamw"
    if name == "adamw":
        name = _STATES.get(cells.text("optimizer_state_dtype") or "", name)
    if name not in OPTIMIZERS:
        raise RefusedRunError(f"optimizer = {name[:40]} is not modelled")
    return name


def _lora_targets_of(cells: Cells) -> tuple[str, ...]:
    """Return the stated modules with adapters, joined by +; else the attention projections.

    Raises:
        InvalidProblemError: a module is not known.
    """
    stated = cells.text("lora_targets")
    if stated is None:
        return ATTENTION_TARGETS
    unknown = [name for name in stated.split("+") if name not in LORA_TARGETS]
    if unknown:
        message = f'"{unknown[0][:40]}" is not a module with adapters'
        raise cells.fault("lora_targets", message, f"{', '.join(LORA_TARGETS)} joined by +")
    return tuple(stated.split("+"))


def precision_of_run(cells: Cells) -> tuple[str, str | None]:
    """Return a row's precision (its GPU's usual one if it states none), and its recipe."""
    slug = cells.text("gpu") or ""
    usual = "fp8" if slug.startswith(("b200", "b300", "gb200", "gb300", "mi35")) else "bf16"
    if slug.startswith(("v100", "t4", "rtx-20")):
        usual = "fp16"
    stated = cells.text("precision") or usual
    precision, recipe = _LOW.get(stated, (stated, None))
    if stated == "mixed" and cells.text("precision_recipe") in _MIXED_IN_8_BITS:
        precision = "fp8"
    return precision, recipe


def workload_of(cells: Cells, framework: str, model: ModelSpec) -> Workload:
    """Return the batch, the precision, and the row's facts of the software.

    Where LoRA's rank and modules are not stated (columns ``lora_rank``, ``lora_targets``), 16 is assumed,
    on the attention projections, as in MLPerf Training's fine-tuning benchmark (mlcommons/training,
    llama2_70b_lora).

    Raises:
        RefusedRunError: a size is missing, or the weights were adapted in another way.
    """
    precision, recipe = precision_of_run(cells)
    options = _software_options(cells, framework, model)
    if recipe:
        options.setdefault("precision_recipe", recipe)
    if cells.text("framework_family") == "megatron-core" and precision == "fp8":
        options.setdefault("gradient_dtype", "bf16")
    adapted, optimizer = cells.text("peft"), _optimizer_of(cells)
    if adapted not in (None, "none", "lora"):
        raise RefusedRunError(f"peft = {adapted[:40]} is not modelled")
    rank = (cells.count("lora_rank") or _USUAL_LORA_RANK) if adapted == "lora" else 0
    return Workload(
        global_batch_size=needed(cells, "global_batch_size"),
        seq_length=needed(cells, "seq_length"),
        precision=precision,
        optimizer=optimizer,
        lora_rank=rank,
        lora_targets=_lora_targets_of(cells) if rank else ATTENTION_TARGETS,
        base_precision=cast("BasePrecision", _word_of(cells, "base_precision", get_args(BasePrecision))),
        framework_options=options,
        sample=cast("SampleKind", _word_of(cells, "sample", get_args(SampleKind))),
        reference=cast("Reference", _word_of(cells, "reference", get_args(Reference))),
        **_images_of(cells, model),
    )


def _images_of(cells: Cells, model: ModelSpec) -> dict[str, Any]:
    """Return the images of a sequence, and the parts that are not trained.

    Raises:
        RefusedRunError: a model with a tower, and its images are not stated.
        InvalidProblemError: a part is unknown.
    """
    images, tokens = cells.number("images_per_sample"), cells.count("image_tokens")
    if model.tower is not None and (images is None or not tokens):
        raise RefusedRunError("the model reads images: images_per_sample and image_tokens are not known")
    parts = tuple(part for part in (cells.text("frozen") or "").split("+") if part)
    unknown = [part for part in parts if part not in FROZEN_PARTS]
    if unknown:
        message = f'"{unknown[0][:40]}" is not a part of a model'
        raise cells.fault("frozen", message, f"{', '.join(FROZEN_PARTS)} joined by +")
    return {
        "images_per_sample": images or 0.0,
        "image_tokens": SequenceLengths.equal(tokens) if tokens else None,
        "frozen": tuple(part for part in FROZEN_PARTS if part in parts),
    }


def _word_of(cells: Cells, name: str, words: Sequence[str]) -> str:
    """Return one of a column's words; the first one if it is empty."""
    stated = cells.text(name) or words[0]
    if stated not in words:
        raise cells.fault(name, f'"{stated[:40]}" is unknown', ", ".join(words))
    return stated


_USUAL_ZERO = {
    "megatron-core": 1,
    "nemo": 1,
    "megatron-core-ci": 1,
    "fsdp": 3,
    "fsdp1": 3,
    "maxtext": 3,
    "deepspeed": 3,
    "deepspeed-2021": 3,
}
_LEAST_STATE_BYTES = 4.0  # of one weight: itself and its gradient in 2 bytes each
_USUAL_SEQUENCE = 4096
MAX_EMPTY_CHUNKS = 8  # chunks without a layer: the ends may hold only embedding or head


def _expert_tensor_parallel_size(cells: Cells, model: ModelSpec, tp: int, ep: int) -> int:
    """Return it as stated; else 1, as in recipes, or tp if experts' states could not fit otherwise.

    Megatron-LM's own default is tp (arguments.py, expert_tensor_parallel_size).
    """
    stated = cells.count("expert_tensor_parallel_size")
    if stated:
        return stated
    if model.moe is None or tp == 1:
        return 1
    weights = model.moe.num_experts / ep * model.expert_parameters() * model.layer_kinds().count("moe")
    per_rank = weights / (cells.count("pipeline_parallel_size") or 1)
    limit = gpu_of_run(cells.text("gpu") or "", cells.number("gpu_memory_gb")).memory_bytes
    return tp if per_rank * _LEAST_STATE_BYTES > limit else 1


def _stage_layers(
    cells: Cells, model: ModelSpec, framework: str, *, tp: int, pp: int, vpp: int
) -> tuple[int, ...]:
    """Return layers of each chunk: as printed, else as the framework splits them, else even."""
    layers, printed = model.num_layers, cells.text("layers_per_stage")
    if printed is None:
        if framework == "nanotron":
            return nanotron_split(model, pp, tp)[0]
        if model.num_mtp_layers and pp * vpp > 1:
            return _weighed_split(model, pp * vpp)
        return even_split(layers, pp * vpp)
    stages = [int(part) for part in printed.split("-") if part.isdigit()]
    if len(stages) == pp * vpp and sum(stages) == layers:
        return tuple(stages)
    if len(stages) != pp or sum(stages) != layers:
        raise RefusedRunError(f"layers_per_stage does not split {layers} layers over {pp} stages")
    per_chunk = _chunks_of_stages(stages, vpp)
    return tuple(per_chunk[chunk % pp][chunk // pp] for chunk in range(pp * vpp))


def _chunks_of_stages(stages: Sequence[int], vpp: int) -> list[tuple[int, ...]]:
    """Return layers of each stage's chunks, if stages are printed and chunks are not.

    An end of the model that holds fewer layers than other stages lacks them in its very first or last
    chunk, which has the embedding or the head instead (Megatron-LM
    ``--account-for-embedding-in-pipeline-split``, and the layouts of ``_weighed_split``).
    """
    largest = -(-max(stages) // vpp)
    chunks = [even_split(stage, vpp) for stage in stages]
    for end in {0, len(stages) - 1}:
        rest = stages[end] - largest * (vpp - 1)
        if stages[end] < max(stages) and rest >= 0:
            full = (largest,) * (vpp - 1)
            chunks[end] = (rest, *full) if end == 0 else (*full, rest)
    return chunks


def _weighed_split(model: ModelSpec, chunks: int) -> tuple[int, ...]:
    """Return the split with the least fullest chunk; the last one holds head and predictions.

    As NVIDIA's layouts have it: ``Et*4|(t*4|)*14tmL`` on 16 chunks, ``Et|(tt|)*30mL`` on 32
    (Megatron-Bridge ``src/megatron/bridge/perf_recipes/deepseek``).
    """
    kind: LayerKind = "moe" if model.moe else "dense"
    layer_flops = model.layer_forward_flops_per_token(kind, _USUAL_SEQUENCE)
    head = 2.0 * model.vocab_size * model.hidden_size / layer_flops  # in layers
    ends = model.num_mtp_layers + head * (1 + model.num_mtp_layers)

    def load(last: int) -> float:
        return max(-(-(model.num_layers - last) // (chunks - 1)), last + ends)

    last = min(range(model.num_layers), key=lambda count: (load(count), -count))
    return (*reversed(even_split(model.num_layers - last, chunks - 1)), last)


def _recompute_of(cells: Cells, stage_layers: tuple[int, ...]) -> tuple[str, int]:
    """Return granularity and recomputed layers of a chunk; all of the model: every one."""
    stated = cells.text("recompute") or "none"
    if stated not in RECOMPUTE:
        raise RefusedRunError(f"recompute = {stated[:40]} is not modelled")
    if stated == "full":
        layers = _replayed_layers(cells, stage_layers)
        return ("full", layers) if layers else ("none", 0)
    if stated == "selective" and cells.text("recompute_modules") == "layer":
        return "full", max(max(stage_layers) // 2, 1)  # every other layer (torchtitan)
    return stated, 0


def _replayed_layers(cells: Cells, stage_layers: tuple[int, ...]) -> int:
    """Return each chunk's recomputed layers: as stated, or its share of the total; else every one.

    Raises:
        InvalidProblemError: the cell states neither.
    """
    stated = cells.text("recompute_layers")
    if stated is None:
        return sum(stage_layers)
    found = _REPLAYED.fullmatch(stated)
    if not found or int(found[1]) > int(found[2] or found[1]):
        message = f'"{stated[:40]}" is not a number of layers'
        raise cells.fault(
            "recompute_layers", message, "layers of each chunk, as in 5, or x of all, as in 12/48"
        )
    if found[2] is None:
        return min(int(found[1]), sum(stage_layers))
    every = int(found[1]) == int(found[2])
    return sum(stage_layers) if every else -(-int(found[1]) * max(stage_layers) // int(found[2]))


def _schedule_of(cells: Cells, pp: int, vpp: int) -> str:
    """Return the schedule; if it is not printed, the usual one of the layout."""
    stated = cells.text("pipeline_schedule")
    if stated == "afab":
        return "gpipe"
    if stated is None or pp == 1:
        return "none" if pp == 1 else ("interleaved_1f1b" if vpp > 1 else "1f1b")
    if stated not in SCHEDULES:
        raise RefusedRunError(f"pipeline_schedule = {stated[:40]} is not modelled")
    return stated


def _offload_of(cells: Cells) -> str:
    offload = cells.text("offload") or "none"
    if offload not in OFFLOAD:
        raise RefusedRunError(f"offload = {offload[:40]} is not modelled")
    return offload


def configuration_of(cells: Cells, model: ModelSpec, framework: str) -> Configuration:
    """Return the layout.

    Raises:
        RefusedRunError: the sizes do not multiply to the run's GPUs or batch, or a part is unknown.
    """
    offload, precision = _offload_of(cells), cells.text("precision") or ""
    if "|" in precision:
        raise RefusedRunError(f"precision = {precision[:40]}: the source does not state which")
    tp, pp = needed(cells, "tensor_parallel_size"), needed(cells, "pipeline_parallel_size")
    cp, vpp = cells.count("context_parallel_size") or 1, cells.count("virtual_pipeline_size") or 1
    dp = cells.count("data_parallel_size") or max(needed(cells, "num_gpus") // (tp * pp * cp), 1)
    if tp * pp * cp * dp != needed(cells, "num_gpus"):
        raise RefusedRunError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not num_gpus")
    vpp, ep = vpp if pp > 1 else 1, cells.count("expert_parallel_size") or 1
    mbs, gbs = needed(cells, "micro_batch_size"), needed(cells, "global_batch_size")
    if gbs % (mbs * dp):
        raise RefusedRunError(f"global batch {gbs} is not a multiple of micro-batch {mbs} x dp {dp}")
    if pp * vpp > model.num_layers + MAX_EMPTY_CHUNKS:
        raise RefusedRunError(f"{pp} x {vpp} chunks for {model.num_layers} layers")
    stage_ranks, etp = tp * cp * dp, _expert_tensor_parallel_size(cells, model, tp, ep)
    if stage_ranks % (ep * etp):
        raise RefusedRunError(f"expert ranks {ep} x {etp} do not divide the {stage_ranks} ranks of a stage")
    stated_zero = cells.count("zero_stage")
    zero = _USUAL_ZERO.get(framework, 0) if stated_zero is None else min(stated_zero, 3)
    stage_layers = _stage_layers(cells, model, framework, tp=tp, pp=pp, vpp=vpp)
    granularity, recompute_layers = _recompute_of(cells, stage_layers)
    return Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=bool(cells.flag("sequence_parallel")) and tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=cp,
        expert_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=(cells.count("zero_shard_size") or dp * cp) if zero else 1,
        micro_batch_size=mbs,
        num_microbatches=gbs // (mbs * dp),
        pipeline_schedule=_schedule_of(cells, pp, vpp),
        recompute_granularity=granularity,
        recompute_layers=recompute_layers,
        offload=offload,
        stage_layers=stage_layers,
    )
