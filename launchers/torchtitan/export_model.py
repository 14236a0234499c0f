"""A model as torchtitan 0.3 builds it: the part of the exported module that calls its builders.

Three of its families: Llama 3, Qwen3 (norms of queries and keys, mixtures of experts) and DeepSeek-V3
(latent attention, multi-token prediction). Every size is a constant at the module's head, from which
the module is read back. Calls: torchtitan 0.3.0, models/llama3, models/qwen3 and models/deepseek_v3
``__init__.py``, models/common/config_utils.py, models/common/moe.py, components/quantization/float8.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isqrt

from meshwright.launchers.images import has_images, most_pixels
from meshwright.launchers.target import Target
from meshwright.launchers.templates import data, filled
from meshwright.launchers.torchtitan.read_model import flavors
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec


@dataclass(frozen=True, slots=True)
class TorchtitanModelNames:
    """Names of one of torchtitan's models."""

    name: str
    classes: str  # prefix of their names
    parallelize: str
    adapter: str


LLAMA = TorchtitanModelNames("llama3", "Llama3", "parallelize_llama", "Llama3StateDictAdapter")
QWEN = TorchtitanModelNames("qwen3", "Qwen3", "parallelize_qwen3", "Qwen3StateDictAdapter")
DEEPSEEK = TorchtitanModelNames(
    "deepseek_v3", "DeepSeekV3", "parallelize_deepseekv3", "DeepSeekV3StateDictAdapter"
)


def family_of(model: ModelSpec) -> TorchtitanModelNames:
    """Return the family with the model's layers; Llama 3's have neither norms of queries nor experts."""
    if model.mla is not None:
        return DEEPSEEK
    return LLAMA if model.query_key_norm == "none" and model.moe is None else QWEN


def in_8_bits(target: Target) -> bool:
    """Return whether linear layers multiply in 8 bits."""
    workload = target.workload
    return (
        workload.precision == "fp8" or workload.framework_options.get("precision_recipe", "none") != "none"
    )


def rope_of(model: ModelSpec) -> str:
    """Return the class of the model's rotary embedding; Qwen3's pairs halves, but lacks Llama's scaling."""
    return "ComplexRoPE" if family_of(model) is not QWEN or model.rotary_scaling else "CosSinRoPE"


def rotary_factor(model: ModelSpec) -> float:
    """Return the factor of the rotary scaling; 1, which changes no frequency, without it."""
    return float(model.rotary_scaling.factor) if model.rotary_scaling else 1.0


def norm_epsilon(model: ModelSpec) -> float:
    """Return the epsilon of all norms; Llama's if the model does not state it."""
    return 1e-5 if model.norm_epsilon is None else model.norm_epsilon


def constants_of(target: Target) -> dict[str, object]:
    """Return the module's constants: all that the model's functions read."""
    model, scaling = target.model, target.model.rotary_scaling
    shape: dict[str, object] = {
        "NUM_LAYERS": model.num_layers,
        "HIDDEN_SIZE": model.hidden_size,
        "FFN_HIDDEN_SIZE": model.ffn_hidden_size,
        "NUM_HEADS": model.num_attention_heads,
        "NUM_KV_HEADS": model.num_kv_heads,
        "HEAD_DIM": model.head_dim,
        "VOCAB_SIZE": model.vocab_size,
        "MAX_SEQ_LEN": max(target.workload.seq_length, model.max_position_embeddings or 0),
        "ROTARY_BASE": float(model.rotary_base or 10_000),
        "ROTARY_SCALING": "none" if scaling is None else "yarn" if scaling.kind == "yarn" else "llama",
        "ROTARY_SCALING_FACTOR": rotary_factor(model),
        "NORM_EPSILON": norm_epsilon(model),
    }
    return shape | _latent_constants(model) | _expert_constants(model)


def _latent_constants(model: ModelSpec) -> dict[str, object]:
    mla, scaling = model.mla, model.rotary_scaling
    if mla is None:
        return {}
    return {
        "Q_LORA_RANK": mla.q_lora_rank,
        "KV_LORA_RANK": mla.kv_lora_rank,
        "QK_NOPE_HEAD_DIM": mla.qk_nope_head_dim,
        "QK_ROPE_HEAD_DIM": mla.qk_rope_head_dim,
        "V_HEAD_DIM": mla.v_head_dim,
        "ROTARY_ORIGINAL_LENGTH": 4096 if scaling is None else scaling.original_max_position_embeddings,
        "SOFTMAX_MSCALE": 1.0 if scaling is None else scaling.mscale_all_dim,
        "NUM_MTP_LAYERS": model.num_mtp_layers,
    }


def _expert_constants(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    if moe is None:
        return {}
    dense = [layer for layer, kind in enumerate(model.layer_kinds()) if kind == "dense"]
    return {
        "NUM_EXPERTS": moe.num_experts,
        "TOP_K": moe.top_k,
        "EXPERT_HIDDEN_SIZE": moe.ffn_hidden_size,
        "SHARED_HIDDEN_SIZE": moe.shared_ffn_hidden_size,
        "DENSE_LAYERS": dense,
        "ROUTER_SCORE": moe.router_score,
        "ROUTER_NORMALIZED": moe.normalized_top_k,
        "ROUTER_GROUPS": moe.router_groups or None,
        "ROUTER_TOP_GROUPS": moe.router_top_groups or None,
        "ROUTER_SCALING": float(moe.router_scaling),
        "ROUTER_BIAS": moe.selection_bias,  # all mixtures of torchtitan have one: for readers
    }


# --------------------------------------------------------------------------------------------------
# The text of the functions.


TEXTS: Mapping[str, str] = data("torchtitan/templates.yaml")
_LINE = 110  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """The model's part of the module."""

    imports: list[str]  # lines, or several if one is too long
    standard: str  # imports from Python's own library
    constants: str
    weights: str
    functions: str
    loss: str
    vocabulary: str = "VOCAB_SIZE"
    tokenizer: str = ""
    data: str = ""


def model_text(target: Target, flavor: str) -> ModelText:
    """Return the text of one model, which is registered as ``flavor``."""
    model, family = target.model, family_of(target.model)
    shape = constants_of(target)
    adapted = family is not QWEN or model.query_key_norm != "none"  # Qwen3's names for Qwen3's layers
    words = {
        "PARTS": _parts(target),
        "TIED": TEXTS["tied"] if model.tied_embeddings else "",
        "EACH_NAME": "index" if model.moe else "_",
        "EACH": "index" if model.moe else "",
        "MTP": "\n        mtp_layers=further_tokens()," if model.num_mtp_layers else "",
        "CONVERTED": _converted(target),
        "HOOK": "register_moe_load_balancing_hook" if model.moe else "None",
        "ADAPTER_NAME": family.adapter if adapted else "None",
        "FLAVOR": flavor,
        "FAMILY": family.classes,
        "NAME": family.name,
        "PARALLELIZE": family.parallelize,
    }
    constants = "\n".join(f"{name} = {value!r}" for name, value in shape.items())
    return ModelText(
        imports=_imports(target, adapted=adapted),
        standard=("import copy\n" if model.num_mtp_layers else "") + _WITH_WEIGHTS,
        constants=constants + (TEXTS["load_balance"] if model.moe else ""),
        weights=TEXTS["weights"],
        functions=filled(TEXTS["model"], words),
        loss="MTPLoss" if model.num_mtp_layers else "CrossEntropyLoss",
        data=TEXTS["text"],
    )


_WITH_WEIGHTS = "import os\nfrom functools import partial"


def _imports(target: Target, *, adapted: bool) -> list[str]:
    model, family = target.model, family_of(target.model)
    latent, routed, further = model.mla is not None, model.moe is not None, model.num_mtp_layers > 0
    builders = ["get_attention_config", "make_ffn_config", *([] if latent else ["make_gqa_config"])]
    builders += ["make_moe_config", "make_routed_experts_config", "make_router_config"] if routed else []
    own = f"models.{family.name}"
    names = {
        "components.loss": [] if further else ["CrossEntropyLoss"],
        "components.optimizer": [
            "default_adamw",
            *(["register_moe_load_balancing_hook"] if routed else []),
        ],
        "models.common": [rope_of(model), "Embedding", "Linear", "RMSNorm"],
        "models.common.config_utils": builders,
        f"{own}.model": ["Attention"] * latent
        + [f"{family.classes}Model", f"{family.classes}TransformerBlock"],
        f"{own}.mtp": ["MTPLoss", "MTPTransformerBlock"] if further else [],
        f"{own}.parallelize": [family.parallelize],
        f"{own}.state_dict_adapter": [family.adapter] if adapted else [],
    }
    if in_8_bits(target):
        names["components.quantization"] = [
            *(["Float8GroupedExpertsConverter"] if routed else []), "Float8LinearConverter",
        ]  # fmt: skip
    return [*_OF_MODELS, *(_import(module, found) for module, found in names.items() if found)]


_TEXT = "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader"
_OF_MODELS = (  # of models that the module builds
    "from torch import nn",
    "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
    _TEXT,
    "from torchtitan.protocols.model_spec import ModelSpec",
)


# --------------------------------------------------------------------------------------------------
# Models that torchtitan has under a name, and that are not built here: Qwen3.5 with its tower.


REGISTERED = "qwen3_5"
_LEAST_PIXELS = 65_536  # 0.3, models/qwen3_5/config_registry.py:32


def is_registered(model: ModelSpec) -> bool:
    """Return whether torchtitan's own model is taken, by its name."""
    return model.tower is not None and model.tower.model_type.startswith(REGISTERED)


def registered_flavor(model: ModelSpec) -> str:
    """Return the name of torchtitan's model of that shape; empty without one."""
    found = (
        name
        for name, own in flavors()[REGISTERED].items()
        if _shape_of(find_model(own)) == _shape_of(model)
    )
    return next(found, "")


def _shape_of(model: ModelSpec) -> ModelSpec:
    """Return a model without what torchtitan leaves out, and without its name."""
    return replace(model, name="", display_name="", source="", num_mtp_layers=0)


def registered_text(target: Target) -> ModelText:
    """Return the text of a model that torchtitan has: its name, and the data that its tower reads."""
    model, seeing = target.model, has_images(target)
    own = f"from torchtitan.models.{REGISTERED} import model_registry"
    imports = ["from torchtitan.components.loss import CrossEntropyLoss"]
    imports += ["from torchtitan.components.optimizer import default_adamw"]
    imports += ["from torchtitan.models.common.config_utils import decoder_vocab_size"]
    if seeing:
        imports += [f"{own}, QWEN3_5_SPECIAL_TOKENS"]
        imports += ["from torchtitan.components.tokenizer import MultiModalTokenizer"]
        imports += ["from torchtitan.hf_datasets.multimodal.mm_datasets import MMDataLoader"]
    else:
        imports += [own, _TEXT]
    return ModelText(
        imports=imports,
        standard="import os",
        constants=f"MODEL_FAMILY = {REGISTERED!r}\nMODEL_FLAVOR = {registered_flavor(model)!r}",
        weights="\n",
        functions=TEXTS["registered"].replace(
            "@BACKEND@", ', moe_comm_backend="standard"' if model.moe else ""
        ),
        loss="CrossEntropyLoss",
        vocabulary="decoder_vocab_size(model_spec())",
        tokenizer=TEXTS["tokenizer"] if seeing else "",
        data=_images(target) if seeing else TEXTS["text"],
    )


def _images(target: Target) -> str:
    """Return the loader of images: as many as were priced, up to the largest."""
    tower, config = target.model.tower, target.config
    assert tower is not None  # noqa: S101 - has_images
    samples = config.micro_batch_size * (
        config.num_microbatches if config.pipeline_parallel_size > 1 else 1
    )
    pixels = most_pixels(target) or _LEAST_PIXELS
    return filled(
        TEXTS["images"],
        {
            "MOST_IMAGES": str(ceil(samples * target.workload.images_per_sample)),
            "PATCH": str(tower.patch_size),
            "FRAMES": str(tower.patch_inputs // (3 * tower.patch_size**2)),
            "MERGED": str(isqrt(tower.merged_patches)),
            "LEAST_PIXELS": str(min(_LEAST_PIXELS, pixels)),
            "MOST_PIXELS": str(pixels),
        },
    )


def _import(module: str, names: list[str]) -> str:
    line = f"from torchtitan.{module} import {', '.join(names)}"
    if len(line) <= _LINE:
        return line
    inner = "".join(f"    {name},\n" for name in names)
    return f"from torchtitan.{module} import (\n{inner})"


def _converted(target: Target) -> str:
    """Return the converters to 8 bits; nothing in 16."""
    if not in_8_bits(target):
        return ""
    return TEXTS["converted"].replace(
        "@CONVERTERS@", TEXTS["linear_converter"] + (TEXTS["expert_converter"] if target.model.moe else "")
    )


def _parts(target: Target) -> str:
    model = target.model
    latent, routed = model.mla is not None, model.moe is not None
    norm = TEXTS["query_key_norm"] if model.query_key_norm == "per_head" else ""
    yarn = model.rotary_scaling is not None and model.rotary_scaling.kind == "yarn"
    layer = filled(
        TEXTS["layer"],
        {
            "INDEX": "index" if routed else "",
            "ROPE_TEXT": TEXTS["rope"],
            "ROPE": rope_of(model),
            "ROTARY_DIM": "QK_ROPE_HEAD_DIM" if latent else "HEAD_DIM",
            "FACTOR": "rope_factor" if yarn else "scaling_factor",
            "LENGTH": "\n        original_seq_len=ROTARY_ORIGINAL_LENGTH," if latent else "",
            "QUERIES": TEXTS["queries"] if latent else "",
            "ATTENTION": TEXTS["latent"] if latent else TEXTS["grouped_queries"].replace("@NORM@", norm),
            "MLP": "mlp(FFN_HIDDEN_SIZE) if index in DENSE_LAYERS else None" if routed else TEXTS["mlp"],
            "MOE": "\n        moe=None if index in DENSE_LAYERS else experts()," if routed else "",
        },
    )
    parts = [TEXTS["product"] if latent else "", TEXTS["experts"] if routed else "", layer + "\n\n"]
    return "".join(parts) + (TEXTS["mtp"] if model.num_mtp_layers else "")
