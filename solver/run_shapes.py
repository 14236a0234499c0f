"""What a row of measured runs describes: its model, machine, workload and configuration."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from profiles.errors import InvalidProblemError
from profiles.frameworks import OPTION_WORDS
from profiles.library import find_gpu
from profiles.measured_networks import measured_network
from profiles.model import MlaSpec, ModelSpec, MoeSpec
from profiles.optimizers import OPTIMIZERS
from profiles.units import GBIT
from solver.problem import Workload
from solver.run_cells import Cells

_USUAL_VOCABULARY = 51_200  # of a GPT model whose source does not print it: GPT-2's, padded
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
}
_MODERN_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
_NETWORK_WORDS = {"efa": "efa", "omni-path": "omni-path", "roce": "roce", "slingshot": "slingshot"}
_LOW = {"mxfp8": ("fp8", "mxfp8"), "nvfp4": ("fp8", "nvfp4"), "mixed": ("bf16", None)}


class RefusedRunError(Exception):
    """A row that this version cannot express; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """The framework whose facts a row uses, and what was assumed."""

    name: str
    warning: str | None


def needed(cells: Cells, column: str) -> int:
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
    if family == "megatron-core" or (family == "megatron-lm" and modern):
        return Framework(name=_megatron_core_of(cells), warning=None)
    if family in _KNOWN_FAMILIES:
        return Framework(name=_KNOWN_FAMILIES[family], warning=None)
    near = "megatron-core"
    if "deepspeed" in family:
        near = "deepspeed"
    elif cells.count("zero_stage") == 3 or "fsdp" in family or "torch" in family:  # noqa: PLR2004 (ZeRO-3)
        near = "fsdp"
    return Framework(name=near, warning=f"framework family {family[:40] or 'unknown'} is read as {near}")


def _megatron_core_of(cells: Cells) -> str:
    """Who set Megatron-Core's flags: NeMo's or Megatron-Bridge's recipes, its own tests, or anybody."""
    words = (cells.text("framework") or "").lower()
    if any(word in words for word in ("nemo", "bridge", "nvidia")):
        return "nemo"
    return "megatron-core-ci" if "megatron-core ci" in words else "megatron-core"


def model_of(cells: Cells) -> ModelSpec:
    """The model's shape.

    Raises:
        RefusedRunError: a size is missing.
        InvalidProblemError: a size is out of range.
    """
    heads, hidden = needed(cells, "num_attention_heads"), needed(cells, "hidden_size")
    head_dim = cells.count("head_dim") or max(hidden // heads, 1)
    return ModelSpec(
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
        mla=_mla_of(cells.count("head_dim"), heads),
        source="a table of measured runs",
    )


def vocabulary_warning(cells: Cells) -> str | None:
    """What is assumed where the vocabulary is not stated."""
    if cells.count("vocab_size"):
        return None
    return f"vocab_size is not stated: {_USUAL_VOCABULARY} tokens (GPT-2's, padded) are assumed"


def _moe_of(cells: Cells) -> MoeSpec | None:
    """The experts, where the model has any."""
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


def _mla_of(head_dim: int | None, heads: int) -> MlaSpec | None:
    """DeepSeek's latent attention (arXiv:2405.04434, section 2.1), told by its stated query/key size.

    A size that is merely hidden / heads tells nothing: GPT models of 12288 / 64 have it, too.
    """
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
    slug = cells.text("gpu")
    if slug is None:
        raise RefusedRunError("gpu is not known")
    if "+" in slug:
        raise RefusedRunError("a mixed cluster: which rank runs on which GPU is not in the table")
    try:
        gpu = find_gpu(slug)
    except InvalidProblemError as error:
        raise RefusedRunError(f"GPU {slug[:40]} is not in the catalog") from error
    num_gpus = needed(cells, "num_gpus")
    per_node = min(cells.count("gpus_per_node") or gpu.gpus_per_node, num_gpus)
    network = gpu.inter_node
    rate = cells.number("network_gbit_per_s_per_gpu")
    if rate:
        kind = _network_kind(cells.text("inter_node_link")) or network.kind
        network = LinkSpec(kind=kind, bytes_per_s=rate * GBIT, latency_s=network.latency_s)
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


def _network_kind(text: str | None) -> str | None:
    """The kind of network that a row names in its own words; None where it names none."""
    words = (text or "").lower()
    return next((kind for word, kind in _NETWORK_WORDS.items() if word in words), None)


def _runs_unfused(cells: Cells, framework: str) -> bool:
    """Whether Megatron-Core's own tests kept a score matrix, whatever the flag says.

    They are deterministic and set ``--attention-backend unfused`` (fused attention only where the
    context is split); the few that do not are those whose scores, 5 bytes each, would leave no room.
    """
    if framework != "megatron-core-ci" or (cells.count("context_parallel_size") or 1) > 1:
        return False
    seq, heads = needed(cells, "seq_length"), needed(cells, "num_attention_heads")
    layers = needed(cells, "num_layers") / needed(cells, "pipeline_parallel_size")
    scores = needed(cells, "micro_batch_size") * heads * seq**2 * layers
    scores /= needed(cells, "tensor_parallel_size")
    return 5.0 * scores < _ROOM_FOR_SCORES_BYTES


def _software_options(cells: Cells, framework: str) -> dict[str, str | int | float | bool]:
    """The facts of the software that the row states; words that no fact knows count as unknown."""
    stated: dict[str, str | bool | None] = {
        name: word if (word := cells.text(name)) in known else None for name, known in OPTION_WORDS.items()
    }
    stated |= {name: cells.flag(name) for name in ("norm_fused", "loss_fused")}
    if stated["attention_kernel"] is None and not _runs_unfused(cells, framework):
        stated["flash_attention"] = cells.flag("flash_attention")
    return {name: value for name, value in stated.items() if value is not None}


def _usual_precision(slug: str) -> str:
    """What training runs in when it is not printed: fp16 before bf16 existed, fp8 from Blackwell on."""
    if slug.startswith(("v100", "t4", "rtx-20")):
        return "fp16"
    return "fp8" if slug.startswith(("b200", "b300", "gb200", "gb300", "mi35")) else "bf16"


def _optimizer_of(cells: Cells) -> str:
    """The optimizer, where its states are known."""
    name = cells.text("optimizer") or "adamw"
    if name not in OPTIMIZERS:
        raise RefusedRunError(f"optimizer = {name[:40]} is not modelled")
    return name


def _lora_rank_of(cells: Cells) -> int:
    """The stated or usual rank of adapters; 0 where every weight is trained."""
    adapted = cells.text("peft")
    if adapted not in (None, "none", "lora"):
        raise RefusedRunError(f"peft = {adapted[:40]} is not modelled")
    return (cells.count("lora_rank") or _USUAL_LORA_RANK) if adapted == "lora" else 0


def workload_of(cells: Cells, framework: str) -> Workload:
    """The batch, the precision, and what the row knows of the software.

    Where LoRA's rank is not stated (column ``lora_rank``), 16 is assumed, on the attention projections,
    as in MLPerf Training's fine-tuning benchmark (mlcommons/training, llama2_70b_lora).

    Raises:
        RefusedRunError: a size is missing, or the weights were adapted in another way.
    """
    stated = cells.text("precision") or _usual_precision(cells.text("gpu") or "")
    precision, recipe = _LOW.get(stated, (stated, None))
    options = _software_options(cells, framework)
    if recipe:
        options.setdefault("precision_recipe", recipe)
    if cells.text("framework_family") == "megatron-core" and precision == "fp8":
        options.setdefault("gradient_dtype", "bf16")
    return Workload(
        global_batch_size=needed(cells, "global_batch_size"),
        seq_length=needed(cells, "seq_length"),
        precision=precision,
        optimizer=_optimizer_of(cells),
        lora_rank=_lora_rank_of(cells),
        framework_options=options,
    )
