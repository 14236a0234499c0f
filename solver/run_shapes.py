"""What a row of measured runs describes: its model, machine, workload and configuration."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from profiles.errors import InvalidProblemError
from profiles.library import find_gpu
from profiles.model import MlaSpec, ModelSpec, MoeSpec
from profiles.units import GBIT
from solver.columns import SCHEDULES
from solver.plan import Configuration
from solver.problem import Workload
from solver.run_cells import Cells

_USUAL_VOCABULARY = 51_200  # of a GPT model whose source does not print it: GPT-2's, padded
_MLA_QK_DIM = 192  # the query/key size that only multi-head latent attention has (128 + 64)
_KNOWN_FAMILIES = {
    "megatron-lm": "megatron-lm-2021",
    "megatron-deepspeed": "megatron-deepspeed",
    "megatron-core": "megatron-core",
    "deepspeed-zero": "deepspeed",
    "nanotron": "nanotron",
    "fsdp": "fsdp",
    "fsdp-composer": "fsdp",
    "torchtitan": "fsdp",
    "maxtext": "maxtext",
}
_USUAL_ZERO = {"megatron-core": 1, "fsdp": 3, "maxtext": 3, "deepspeed": 3}
_MODERN_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
_LOW = {"mxfp8": ("fp8", "mxfp8"), "nvfp4": ("fp8", "nvfp4"), "mixed": ("bf16", None)}


MAX_EMPTY_CHUNKS = 8  # chunks without a layer: the ends may hold only embedding or head


class RefusedRunError(Exception):
    """A row that this version cannot express; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """The framework whose facts a row uses, and what was assumed."""

    name: str
    warning: str | None


def _needed(cells: Cells, column: str) -> int:
    """A whole number of at least 1 without which a run means nothing.

    Raises:
        RefusedRunError: the cell is empty or 0.
    """
    value = cells.count(column)
    if not value:
        raise RefusedRunError(f"{column} is not known")
    return value


def framework_of_run(cells: Cells) -> Framework:
    """The framework of a row; a family that is not listed falls back to the nearest."""
    family = cells.text("framework_family") or ""
    flash = cells.flag("flash_attention")
    modern = bool(flash) or cells.text("precision") in _MODERN_PRECISIONS
    if family == "megatron-lm" and modern:
        return Framework(name="megatron-core", warning=None)
    if family in _KNOWN_FAMILIES:
        return Framework(name=_KNOWN_FAMILIES[family], warning=None)
    near = "megatron-core"
    if "deepspeed" in family:
        near = "deepspeed"
    elif cells.count("zero_stage") == 3 or "fsdp" in family or "torch" in family:  # noqa: PLR2004 (ZeRO-3)
        near = "fsdp"
    return Framework(name=near, warning=f"framework family {family[:40] or 'unknown'} is read as {near}")


def model_of(cells: Cells) -> ModelSpec:
    """The model's shape.

    Raises:
        RefusedRunError: a size is missing.
        InvalidProblemError: a size is out of range.
    """
    heads, hidden = _needed(cells, "num_attention_heads"), _needed(cells, "hidden_size")
    head_dim = cells.count("head_dim") or max(hidden // heads, 1)
    return ModelSpec(
        name=(cells.text("model") or "model")[:100],
        num_layers=_needed(cells, "num_layers"),
        hidden_size=hidden,
        ffn_hidden_size=_needed(cells, "ffn_hidden_size"),
        num_attention_heads=heads,
        num_kv_heads=cells.count("num_kv_heads") or heads,
        head_dim=head_dim,
        vocab_size=cells.count("vocab_size") or _USUAL_VOCABULARY,
        gated_mlp=bool(cells.flag("gated_mlp")),
        tied_embeddings=bool(cells.flag("tied_embeddings")),
        moe=_moe_of(cells),
        mla=_mla_of(head_dim, heads),
        source="a table of measured runs",
    )


def _moe_of(cells: Cells) -> MoeSpec | None:
    """The experts, where the model has any."""
    experts = cells.count("num_experts")
    if not experts:
        return None
    width = cells.count("moe_ffn_hidden_size") or _needed(cells, "ffn_hidden_size")
    shared = cells.count("num_shared_experts") or 0
    return MoeSpec(
        num_experts=experts,
        top_k=cells.count("moe_top_k") or 1,
        ffn_hidden_size=width,
        num_shared_experts=shared,
        shared_ffn_hidden_size=shared * width,
        num_dense_layers=cells.count("num_dense_layers") or 0,
    )


def _mla_of(head_dim: int, heads: int) -> MlaSpec | None:
    """DeepSeek's latent attention (arXiv:2405.04434, section 2.1), told by its query/key size."""
    if head_dim != _MLA_QK_DIM:
        return None
    return MlaSpec(
        q_lora_rank=1536 if heads >= 64 else 0,  # noqa: PLR2004 (the lite models project directly)
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


def cluster_of(cells: Cells) -> ClusterSpec:
    """The machine: the catalog's GPU with the row's nodes, island and network rate.

    Raises:
        RefusedRunError: the GPU is unknown or the cluster is mixed.
    """
    slug = cells.text("gpu") or ""
    if "+" in slug:
        raise RefusedRunError("a mixed cluster: which rank runs on which GPU is not in the table")
    try:
        gpu = find_gpu(slug)
    except InvalidProblemError as error:
        raise RefusedRunError(f"GPU {slug[:40]} is not in the catalog") from error
    num_gpus = _needed(cells, "num_gpus")
    per_node = min(cells.count("gpus_per_node") or gpu.gpus_per_node, num_gpus)
    network = gpu.inter_node
    rate = cells.number("network_gbit_per_s_per_gpu")
    if rate:
        network = LinkSpec(kind=network.kind, bytes_per_s=rate * GBIT, latency_s=network.latency_s)
    group = NodeGroup(
        gpu=gpu,
        num_nodes=-(-num_gpus // per_node),
        gpus_per_node=per_node,
        island_gpus=cells.count("fast_link_gpus") or gpu.island_gpus,
        intra_node=gpu.intra_node,
        inter_node=network,
    )
    return ClusterSpec(name=(cells.text("cluster") or "cluster")[:100], groups=(group,))


def _software_options(cells: Cells) -> dict[str, str | int | float | bool]:
    """The facts of the software that the row states."""
    stated: dict[str, str | bool | None] = {
        name: cells.text(name) for name in ("attention_kernel", "gradient_dtype", "precision_recipe")
    }
    stated |= {name: cells.flag(name) for name in ("norm_fused", "loss_fused")}
    if stated["attention_kernel"] is None:
        stated["flash_attention"] = cells.flag("flash_attention")
    return {name: value for name, value in stated.items() if value is not None}


def _usual_precision(slug: str) -> str:
    """What training runs in when it is not printed: fp16 before bf16 existed, fp8 from Blackwell on."""
    if slug.startswith(("v100", "t4", "rtx-20")):
        return "fp16"
    return "fp8" if slug.startswith(("b200", "b300", "gb200", "gb300", "mi35")) else "bf16"


def workload_of(cells: Cells) -> Workload:
    """The batch, the precision, and what the row knows of the software."""
    stated = cells.text("precision") or _usual_precision(cells.text("gpu") or "")
    precision, recipe = _LOW.get(stated, (stated, None))
    options = _software_options(cells)
    if recipe:
        options.setdefault("precision_recipe", recipe)
    if precision == "fp8" and cells.text("framework_family") == "megatron-core":
        # NeMo's, Bridge's and MLPerf's low-precision recipes reduce gradients in bf16
        options.setdefault("gradient_dtype", "bf16")
    return Workload(
        global_batch_size=_needed(cells, "global_batch_size"),
        seq_length=_needed(cells, "seq_length"),
        precision=precision,
        optimizer=cells.text("optimizer") or "adamw",
        framework_options=options,
    )


def _refuse_unknown_software(cells: Cells) -> None:
    """Refuse what changes memory or time in ways this version does not model."""
    if cells.text("peft"):
        raise RefusedRunError(f"peft = {cells.text('peft')}: frozen weights are not modelled")
    if cells.text("offload") not in (None, "none"):
        raise RefusedRunError(f"offload = {cells.text('offload')} is not modelled")
    if cells.text("precision") == "fp32":
        raise RefusedRunError("precision = fp32 is not modelled")


def _stage_layers(cells: Cells, layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of each chunk: as printed, else as even as possible with the ends lighter."""
    printed = cells.text("layers_per_stage")
    if printed is None:
        return _even(layers, pp * vpp)
    stages = [int(part) for part in printed.split("-") if part.isdigit()]
    if len(stages) == pp * vpp and sum(stages) == layers:
        return tuple(stages)
    if len(stages) != pp or sum(stages) != layers:
        raise RefusedRunError(f"layers_per_stage does not split {layers} layers over {pp} stages")
    per_chunk = [_even(stage, vpp) for stage in stages]
    return tuple(per_chunk[chunk % pp][chunk // pp] for chunk in range(pp * vpp))


def _even(layers: int, chunks: int) -> tuple[int, ...]:
    """Equal counts; what is left over goes to the middle, one each."""
    base, extra = divmod(layers, chunks)
    first = (chunks - extra) // 2
    return tuple(base + (first <= chunk < first + extra) for chunk in range(chunks))


def _recompute_of(cells: Cells, stage_layers: tuple[int, ...]) -> tuple[str, int]:
    """Granularity, and how many layers of a chunk recompute."""
    stated = cells.text("recompute") or "none"
    if stated == "full":
        return "full", max(stage_layers)
    if stated == "selective" and cells.text("recompute_modules") == "layer":
        return "full", max(max(stage_layers) // 2, 1)  # every other layer (torchtitan)
    return stated, 0


def _schedule_of(cells: Cells, pp: int, vpp: int) -> str:
    """The schedule; where it is not printed, the usual one of the layout."""
    stated = cells.text("pipeline_schedule")
    if stated == "afab":
        return "gpipe"
    if stated is None or pp == 1:
        return "none" if pp == 1 else ("interleaved_1f1b" if vpp > 1 else "1f1b")
    if stated not in SCHEDULES:
        raise RefusedRunError(f"pipeline_schedule = {stated[:40]} is not modelled")
    return stated


def configuration_of(cells: Cells, model: ModelSpec, framework: str) -> Configuration:
    """The layout.

    Raises:
        RefusedRunError: the sizes do not multiply to the run's GPUs or batch, or a part is unknown.
    """
    _refuse_unknown_software(cells)
    tp, pp = _needed(cells, "tensor_parallel_size"), _needed(cells, "pipeline_parallel_size")
    cp, vpp = cells.count("context_parallel_size") or 1, cells.count("virtual_pipeline_size") or 1
    dp = cells.count("data_parallel_size") or max(_needed(cells, "num_gpus") // (tp * pp * cp), 1)
    if tp * pp * cp * dp != _needed(cells, "num_gpus"):
        raise RefusedRunError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not num_gpus")
    vpp = vpp if pp > 1 else 1
    mbs, gbs = _needed(cells, "micro_batch_size"), _needed(cells, "global_batch_size")
    if gbs % (mbs * dp):
        raise RefusedRunError(f"global batch {gbs} is no multiple of micro-batch {mbs} x dp {dp}")
    if pp * vpp > model.num_layers + MAX_EMPTY_CHUNKS:
        raise RefusedRunError(f"{pp} x {vpp} chunks for {model.num_layers} layers")
    zero = cells.count("zero_stage")
    zero = _USUAL_ZERO.get(framework, 0) if zero is None else min(zero, 3)
    stage_layers = _stage_layers(cells, model.num_layers, pp, vpp)
    granularity, recompute_layers = _recompute_of(cells, stage_layers)
    return Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=bool(cells.flag("sequence_parallel")) and tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=cp,
        expert_parallel_size=cells.count("expert_parallel_size") or 1,
        data_parallel_size=dp,
        zero_stage=zero,
        zero_shard_size=(cells.count("zero_shard_size") or dp * cp) if zero else 1,
        micro_batch_size=mbs,
        num_microbatches=gbs // (mbs * dp),
        pipeline_schedule=_schedule_of(cells, pp, vpp),
        recompute_granularity=granularity,
        recompute_layers=recompute_layers,
        stage_layers=stage_layers,
    )
