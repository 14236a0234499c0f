"""Models of images or sound, and text: a Hugging Face config with a language model and a tower inside.

The language model is read as a config of its own (``huggingface``), the tower here, by the rule that the
type's row in ``catalog/model_towers.yaml`` names. The classes are those of ``transformers`` 5.23
(``modeling_*.py`` of each type's folder).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, cast

import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface_keys import harmless_reason, named_type
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.reading import FieldReader, shown
from meshwright.profiles.towers import TowerSpec

_TEXT, _VISION, _TIED = "text_config", "vision_config", "tie_word_embeddings"
_OF_BOTH = (_TEXT, _VISION, "model_type", "architectures", "transformers_version", "name", "_name_or_path")
_UNMASKED = ("use_bidirectional_attention", "num_image_tokens")  # which the whole config's class sets
_MOST = 2**24  # of sizes without a limit of their own

# Readers of the tower's config and of the whole one, and the language model: the tower.
TowerRule = Callable[[FieldReader, FieldReader, ModelSpec], TowerSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeType:
    """How the config of one type is read."""

    text: str  # the language model's type; empty: as text_config states
    tower: str  # a name of ``_RULES``
    part: str = _VISION  # the key of the tower's config
    text_defaults: Mapping[str, object] = field(default_factory=dict)  # of text_config, that the class has
    tied: bool = False  # where the config does not state it
    # Configs that decide whether the head is tied: the whole one, its part, either of them, or none.
    ties: Literal["whole", "text", "either", "none"] = "whole"
    defaults: Mapping[str, object] = field(default_factory=dict)  # of the tower's configuration class
    names: Mapping[str, str] = field(default_factory=dict)  # of published towers' keys: the class's own
    # Of the tower: the values that a key may have
    fixed: Mapping[str, object] = field(default_factory=dict)
    whole: Mapping[str, object] = field(default_factory=dict)  # of the whole config: defaults that are read
    unused: tuple[str, ...] = ()  # keys of either that change nothing that is planned
    unmasked: bool = False  # images and prompt attend to all of each other, so kernels mask no token


@cache
def whole_types() -> Mapping[str, WholeType]:
    """Return the types with a tower, by name."""
    raw = yaml.load((CATALOG / "model_towers.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)
    unused = tuple(raw["unused"])
    return {
        name: WholeType(**{**row, "unused": (*unused, *row.get("unused", ()))})
        for name, row in raw["types"].items()
    }


def model_from_whole(
    config: Mapping[str, object], whole: WholeType, read: Callable[[Mapping[str, object]], ModelSpec]
) -> ModelSpec:
    """Return the language model of a config with its tower.

    Args:
        config: the whole config.
        whole: how its type is read.
        read: reads the language model's own config.

    Raises:
        UnsupportedModelError: a part that is not planned, or a key that nothing reads.
        InvalidProblemError: a field is missing, garbled or out of range.
    """
    vision = config.get(whole.part)
    if not isinstance(vision, Mapping):
        raise InvalidProblemError.of(
            f"/model/{whole.part}",
            f"{shown(vision)} is not an object with the tower's fields",
            allowed=f"the {whole.part.partition('_')[0]} tower's config",
        )
    text = _text_of(config, whole)
    if whole.unmasked:
        text = {key: value for key, value in text.items() if key not in _UNMASKED}
    try:
        model = read(text)
    except InvalidProblemError as fault:
        at = f"/model/{_TEXT}" if _TEXT in config else "/model"
        errors = [replace(one, pointer=one.pointer.replace("/model", at, 1)) for one in fault.errors]
        raise type(fault)(errors) from None
    stated = {whole.names.get(key, key): value for key, value in vision.items()}
    twice = [key for key, own in whole.names.items() if key in vision and own in vision]
    if twice:
        raise UnsupportedModelError.field(
            f"{whole.part}.{twice[0]}", f"another name of {whole.names[twice[0]]}"
        )
    inner = FieldReader({**whole.defaults, **stated}, f"/model/{whole.part}")
    beside = config
    if not isinstance(config.get(_TEXT), Mapping):
        beside = {key: value for key, value in config.items() if key.startswith("vision_")}
    outer = FieldReader({**whole.whole, **beside}, "/model")
    for name in (*_OF_BOTH, whole.part):
        inner.value(name), outer.value(name)
    outer.value(_TIED), inner.value(_TIED)
    tower = _RULES[whole.tower](inner, outer, model)
    for reader in (inner, outer):
        reader.finish()
        _refuse_unread(reader, whole)
    tower = replace(tower, model_type=str(config.get("model_type", ""))[:64])
    return replace(
        model, causal=not whole.unmasked, tower=tower, source=f"{model.source}, and its {whole.part}"[:200]
    )


def _text_of(config: Mapping[str, object], whole: WholeType) -> dict[str, object]:
    """Return the language model's config; older ones have its keys next to ``vision_config``."""
    inside = config.get(_TEXT)
    alone = {
        key: value for key, value in config.items() if key != whole.part and not key.startswith("vision_")
    }
    text = {**whole.text_defaults, **(inside if isinstance(inside, Mapping) else alone)}
    stated = text.get("model_type", whole.text)
    stated = named_type(str(stated), FieldReader(text, f"/model/{_TEXT}"))
    text["model_type"] = whole.text if whole.text and stated in (config.get("model_type"), None) else stated
    if whole.text and text["model_type"] != whole.text:
        raise UnsupportedModelError.field(
            "model_type", f"{shown(text['model_type'])}: the class builds {whole.text}"
        )
    of_text = whole.ties in ("text", "either") and bool(text.get(_TIED))
    of_whole = whole.ties in ("whole", "either") and bool(config.get(_TIED, whole.tied))
    return {**text, _TIED: of_text or of_whole}


def _refuse_unread(reader: FieldReader, whole: WholeType) -> None:
    for key in reader.unread():
        if key in whole.fixed:
            allowed = whole.fixed[key]
            values = allowed if isinstance(allowed, list) else [allowed]
            if reader.value(key) not in values:
                words = ", ".join(map(str, values))
                raise _at(reader, key, f"{shown(reader.value(key))} is not planned", allowed=words)
        elif key not in whole.unused and not harmless_reason(key):
            raise _at(reader, key, "Meshwright doesn't know this key")


def _at(reader: FieldReader, key: str, why: str, *, allowed: str | None = None) -> UnsupportedModelError:
    fault = InvalidProblemError.of(f"{reader.pointer}/{key[:60]}", why, allowed=allowed)
    return UnsupportedModelError(fault.errors)


# --------------------------------------------------------------------------------------------------
# Towers, one rule for each family of classes.


def _size(reader: FieldReader, key: str, name: str) -> int:
    low, high = TowerSpec.LIMITS[name]
    return reader.integer(key, low=int(low), high=int(high))


def _side(reader: FieldReader, key: str) -> int:
    """Return the side of a square that a config states as one number or as two equal ones."""
    value = reader.value(key)
    if isinstance(value, list | tuple):
        if len(value) != 2 or value[0] != value[1]:  # noqa: PLR2004 - height and width
            reader.fault(key, "must be one number or two equal numbers")
            return 1
        reader = FieldReader({key: value[0]}, reader.pointer, reader.faults)
    return reader.integer(key, low=1, high=65_536)


def _listed(reader: FieldReader, key: str, layers: int) -> tuple[int, ...]:
    value = reader.value(key)
    if not (isinstance(value, list | tuple) and all(type(one) is int and one >= 0 for one in value)):
        reader.fault(key, "must be a list of layers", allowed=f"0 to {layers - 1}")
        return ()
    return tuple(sorted({one for one in cast("list[int]", value) if one < layers}))


def _blocks(reader: FieldReader) -> dict[str, Any]:
    """Return layers, heads and patches as Qwen and GLM name them."""
    patch = _side(reader, "patch_size")
    return {
        "num_layers": _size(reader, reader.first(("num_hidden_layers", "depth")), "num_layers"),
        "num_attention_heads": _size(
            reader, reader.first(("num_attention_heads", "num_heads")), "num_attention_heads"
        ),
        "patch_size": patch,
        "patch_inputs": _size(reader, "in_channels", "patch_size")
        * _side(reader, "temporal_patch_size")
        * patch**2,
        "merged_patches": _side(reader, "spatial_merge_size") ** 2,
        "rotary": True,
    }


def _output(reader: FieldReader, key: str, model: ModelSpec) -> int:
    width = reader.integer(key, high=2**20)
    if width != model.hidden_size:
        own = str(model.hidden_size)
        reader.fault(key, f"{width} is not the language model's hidden_size", allowed=own, nearest=own)
    return width


def _merger(hidden: int, merged: int, out: int) -> tuple[int, int]:
    """Return matrices and biases of Qwen's merger: two products of all patches that become one token."""
    wide = hidden * merged
    return wide * wide + wide * out, wide + out


def _qwen2_vl(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    sizes, hidden = _blocks(reader), _size(reader, "embed_dim", "hidden_size")
    ratio = reader.number("mlp_ratio", low=1e-3, high=1e3)
    matrices, biases = _merger(hidden, sizes["merged_patches"], _output(reader, "hidden_size", model))
    return TowerSpec(
        **sizes, hidden_size=hidden, ffn_hidden_size=int(hidden * ratio),
        projector_matrices=matrices, projector_vectors=biases + 2 * hidden,
    )  # fmt: skip


def _qwen2_5_vl(*, projected: bool = False) -> TowerRule:
    """Return the rule of Qwen2.5-VL, and of HyperCLOVA X with a further projection behind its merger."""

    def rule(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
        sizes, hidden = _blocks(reader), _size(reader, "hidden_size", "hidden_size")
        out = (
            _size(reader, "out_hidden_size", "hidden_size")
            if projected
            else _output(reader, "out_hidden_size", model)
        )
        matrices, biases = _merger(hidden, sizes["merged_patches"], out)
        side = max(1, reader.integer("window_size", high=65_536) // sizes["patch_size"])
        return TowerSpec(
            **sizes, hidden_size=hidden,
            ffn_hidden_size=_size(reader, "intermediate_size", "ffn_hidden_size"),
            projector_matrices=matrices + out * model.hidden_size * projected,
            projector_vectors=biases + hidden + model.hidden_size * projected,
            gated_mlp=True, normalization="rmsnorm", window_patches=side**2,
            global_layers=_listed(reader, "fullatt_block_indexes", sizes["num_layers"]),
        )  # fmt: skip

    return rule


def _qwen3_vl(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of Qwen3-VL: further mergers yield what the model's first layers add (DeepStack)."""
    sizes, hidden = _blocks(reader), _size(reader, "hidden_size", "hidden_size")
    merged = sizes["merged_patches"]
    matrices, biases = _merger(hidden, merged, _output(reader, "out_hidden_size", model))
    stated = reader.value("deepstack_visual_indexes") is not None
    further = len(_listed(reader, "deepstack_visual_indexes", 1000)) if stated else 0
    return TowerSpec(
        **sizes, hidden_size=hidden, ffn_hidden_size=_size(reader, "intermediate_size", "ffn_hidden_size"),
        projector_matrices=(1 + further) * matrices, inner_outputs=further,
        projector_vectors=(1 + further) * biases + 2 * hidden * (1 + further * merged),
        position_rows=_size(reader, "num_position_embeddings", "position_rows"), further_parameters=hidden,
    )  # fmt: skip


def _glm4v(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of GLM-4.1V and 4.5V: its MLPs are as wide as its output."""
    sizes, hidden = _blocks(reader), _size(reader, "hidden_size", "hidden_size")
    out = _output(reader, "out_hidden_size", model)
    width = _size(reader, "intermediate_size", "ffn_hidden_size")  # of the merger's own MLP
    side = _side(reader, "image_size") // sizes["patch_size"]
    return TowerSpec(
        **sizes, hidden_size=hidden, ffn_hidden_size=out,
        projector_matrices=hidden * sizes["merged_patches"] * out + out * out + 3 * out * width,
        projector_vectors=3 * out, position_rows=side**2, further_parameters=3 * hidden,
        gated_mlp=True, normalization="rmsnorm", mlp_bias=False, attention_output_bias=False,
        qkv_bias=reader.flag("attention_bias", default=False),
    )  # fmt: skip


def _glm_ocr(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of GLM-OCR: heads are normed, and a norm follows its layers."""
    sizes, hidden = _blocks(reader), _size(reader, "hidden_size", "hidden_size")
    out = _output(reader, "out_hidden_size", model)
    wide = out * _size(reader, "in_channels", "patch_size")  # of the merger's own MLP
    bias = reader.flag("attention_bias", default=True)
    return TowerSpec(
        **sizes, hidden_size=hidden, ffn_hidden_size=_size(reader, "intermediate_size", "ffn_hidden_size"),
        projector_matrices=hidden * sizes["merged_patches"] * out + out * out + 3 * out * wide,
        projector_vectors=3 * out, further_parameters=2 * hidden, gated_mlp=True, normalization="rmsnorm",
        head_norms=True, qkv_bias=bias, attention_output_bias=bias, mlp_bias=bias,
    )  # fmt: skip


def _exaone(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of EXAONE 4.5: Qwen2.5-VL's, with heads that share keys and values."""
    heads = _size(reader, reader.first(("num_attention_heads", "num_heads")), "num_attention_heads")
    shared = _size(reader, "num_key_value_heads", "num_attention_heads")
    if heads % shared:
        reader.fault("num_key_value_heads", f"{shared} does not divide num_heads = {heads}")
        reader.finish()
    return replace(_qwen2_5_vl()(reader, whole, model), num_kv_heads=shared)


def _ovis2(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of Ovis 2: patches become weights of a table's rows (transformers' class)."""
    tower, hidden = _pixtral_alike(reader), _size(reader, "hidden_size", "hidden_size")
    merged = _side(reader, "hidden_stride") ** 2
    rows = reader.integer("vocab_size", high=2**24)
    words = rows - reader.integer("num_visual_indicator_tokens", low=0, high=rows - 1)
    out, own = _output(whole, "hidden_size", model), whole.value("vocab_size")
    if not model.tied_embeddings and own not in (None, model.vocab_size):  # its head has as many rows
        whole.fault("vocab_size", f"{own} is not text_config.vocab_size", allowed=str(model.vocab_size))
    return TowerSpec(
        **tower, merged_patches=merged, projector_matrices=hidden * merged * words + rows * out,
        projector_products=hidden * merged * words + words * out, projector_vectors=2 * words,
    )  # fmt: skip


def _pixtral_alike(reader: FieldReader) -> dict[str, Any]:
    """Return AIMv2's layers: Llama's, with a table of positions and norms before and behind them."""
    sizes, patches = _plain_blocks(reader)
    return sizes | {
        "tile_patches": patches, "position_rows": patches, "further_parameters": 3 * sizes["hidden_size"],
        "gated_mlp": True, "normalization": "rmsnorm", "qkv_bias": reader.flag("qkv_bias", default=False),
        "attention_output_bias": reader.flag("qkv_bias", default=False),
        "mlp_bias": reader.flag("mlp_bias", default=False),
    }  # fmt: skip


def _sizes(reader: FieldReader, channels: str = "num_channels") -> dict[str, Any]:
    """Return layers and patches of a tower as CLIP and SigLIP name them."""
    patch = _side(reader, "patch_size")
    return {
        "num_layers": _size(reader, "num_hidden_layers", "num_layers"),
        "num_attention_heads": _size(reader, "num_attention_heads", "num_attention_heads"),
        "hidden_size": _size(reader, "hidden_size", "hidden_size"),
        "ffn_hidden_size": _size(reader, "intermediate_size", "ffn_hidden_size"),
        "patch_size": patch,
        "patch_inputs": _size(reader, channels, "patch_size") * patch**2,
    }


def _plain_blocks(reader: FieldReader, channels: str = "num_channels") -> tuple[dict[str, Any], int]:
    """Return layers of a tower with tiles of one size, and the patches of a tile."""
    found = _sizes(reader, channels)
    return found, max(1, _side(reader, "image_size") // found["patch_size"]) ** 2


def _siglip(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of Gemma 3: SigLIP, with patches averaged before they are projected."""
    tower = _siglip_alone(reader)
    patches, hidden = tower["tile_patches"], tower["hidden_size"]
    tokens = whole.integer("mm_tokens_per_image", high=2**20)
    if patches % tokens:
        whole.fault(
            "mm_tokens_per_image",
            f"{tokens} does not divide the {patches} patches of an image",
            allowed=f"a divisor of {patches}",
        )
    return TowerSpec(
        **tower, merged_patches=max(1, patches // tokens),
        projector_matrices=hidden * model.hidden_size, projector_vectors=hidden,
    )  # fmt: skip


def _shuffled(reader: FieldReader, key: str) -> int:
    """Return how many patches a pixel shuffle of such a ratio merges."""
    return max(1, round(1.0 / reader.number(key, low=1e-3, high=1.0) ** 2))


def _internvl(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    sizes, patches = _plain_blocks(reader)
    hidden, merged = sizes["hidden_size"], _shuffled(whole, "downsample_ratio")
    wide, out = hidden * merged, model.hidden_size
    rms = reader.choice("norm_type", ("layer_norm", "rms_norm"), default="layer_norm") == "rms_norm"
    mask = reader.flag("use_mask_token", default=False)
    pooled = reader.flag("use_mean_pooling", default=True)  # else a norm follows the last layer
    positions = reader.flag("use_absolute_position_embeddings", default=True)
    return TowerSpec(
        **sizes, merged_patches=merged, tile_patches=patches, further_tokens=1,
        position_rows=(patches + 1) * positions, layer_vectors=2 * hidden,
        further_parameters=hidden * (2 + mask + 2 * (not pooled)),
        projector_matrices=wide * out + out * out, projector_vectors=2 * wide + 2 * out,
        normalization="rmsnorm" if rms else "layernorm",
        query_key_norm=reader.flag("use_qk_norm", default=False),
        qkv_bias=reader.flag("attention_bias", default=False),
    )  # fmt: skip


def _llama4(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    sizes, patches = _plain_blocks(reader)
    hidden, merged = sizes["hidden_size"], _shuffled(reader, "pixel_shuffle_ratio")
    first, second, out = (
        _size(reader, key, "hidden_size")
        for key in ("projector_input_dim", "projector_output_dim", "vision_output_dim")
    )
    return TowerSpec(
        **sizes, merged_patches=merged, tile_patches=patches, further_tokens=1, position_rows=patches + 1,
        further_parameters=5 * hidden,
        projector_matrices=sizes["ffn_hidden_size"] * first + second * second + out * model.hidden_size,
    )  # fmt: skip


def _llava(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of LLaVA, of the class that ``vision_config.model_type`` names, and its projector.

    All layers are built and run, whichever of them the projector reads. LLaVA-NeXT has one vector more.
    """
    kind = str(reader.value("model_type"))
    if kind not in _LLAVA_TOWERS:
        raise _at(reader, "model_type", f"{shown(kind)} is not planned", allowed=", ".join(_LLAVA_TOWERS))
    strategy = whole.value("vision_feature_select_strategy")
    if kind != "clip_vision_model" and strategy == "default":
        raise _at(whole, "vision_feature_select_strategy", "default: it would drop a patch", allowed="full")
    layer = whole.value("vision_feature_layer")
    if type(layer) is not int:
        raise _at(whole, "vision_feature_layer", f"{shown(layer)} is not one layer", allowed="-2, -1")
    out, bias = model.hidden_size, whole.flag("multimodal_projector_bias", default=True)
    tower = _LLAVA_TOWERS[kind](reader)
    hidden = tower["hidden_size"]
    return TowerSpec(
        **tower, merged_patches=1, projector_matrices=hidden * out + out * out,
        projector_vectors=out * (2 * bias + (whole.value("image_grid_pinpoints") is not None)),
    )  # fmt: skip


def _projected(tower_of: Callable[[FieldReader], dict[str, Any]], products: Literal[1, 2]) -> TowerRule:
    """Return the rule of a tower with such a projector, every product with its bias."""

    def rule(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
        tower, out = tower_of(reader), model.hidden_size
        if whole.has("projection_dim"):  # of PaliGemma
            _output(whole, "projection_dim", model)
        further = (products - 1) * out**2
        return TowerSpec(
            **tower, merged_patches=1, projector_matrices=tower["hidden_size"] * out + further,
            projector_vectors=products * out,
        )  # fmt: skip

    return rule


def _siglip_rotated(reader: FieldReader) -> dict[str, Any]:
    """Return SigLIP's vision model with rotary positions alone, for images of any size."""
    sizes = _sizes(reader)
    return sizes | {"further_parameters": 3 * sizes["hidden_size"], "rotary": True}


def _paddleocr_vl(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of PaddleOCR-VL: SigLIP with rotary positions and a table of them, too."""
    sizes, rows = _plain_blocks(reader)
    hidden, merged = sizes["hidden_size"], _side(reader, "spatial_merge_size") ** 2
    matrices, biases = _merger(hidden, merged, model.hidden_size)
    return TowerSpec(
        **sizes, merged_patches=merged, position_rows=rows, rotary=True, further_parameters=3 * hidden,
        projector_matrices=matrices, projector_vectors=2 * hidden + biases,
    )  # fmt: skip


def _must_be(reader: FieldReader, kind: str) -> None:
    """Refuse a tower of another class than ``vision_config.model_type`` usually names."""
    stated = reader.value("model_type")
    if stated not in (kind, None):
        raise _at(reader, "model_type", f"{shown(stated)} is not planned", allowed=kind)


def _vipllava(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of ViP-LLaVA: its projector reads several layers side by side, behind a norm."""
    _must_be(reader, "clip_vision_model")
    tower, read = _clip(reader), whole.value("vision_feature_layer")
    if not isinstance(read, list | tuple) or not read or any(type(one) is not int for one in read):
        raise _at(whole, "vision_feature_layer", "must be a list of layers", allowed="-2, -5, -8, -11, 6")
    wide, out = tower["hidden_size"] * len(read), model.hidden_size
    return TowerSpec(
        **tower, merged_patches=1, projector_matrices=wide * out + out * out,
        projector_vectors=2 * wide + 2 * out,
    )  # fmt: skip


def _lfm2_vl(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of LFM2-VL: SigLIP 2, with images of any size and patches that are merged."""
    _must_be(reader, "siglip2_vision_model")
    sizes, rows = _sizes(reader), _size(reader, "num_patches", "position_rows")
    merged = _size(whole, "downsample_factor", "merged_patches") ** 2
    wide, out = sizes["hidden_size"] * merged, model.hidden_size
    own = _size(whole, "projector_hidden_size", "ffn_hidden_size")
    bias, norm = (whole.flag(f"projector_{name}", default=True) for name in ("bias", "use_layernorm"))
    return TowerSpec(
        **sizes, position_rows=rows, merged_patches=merged, projector_matrices=wide * own + own * out,
        projector_vectors=2 * wide * norm + (own + out) * bias,
        further_parameters=_further_of_siglip(reader, sizes),
    )  # fmt: skip


def _clip(reader: FieldReader) -> dict[str, Any]:
    """Return CLIP's vision model: a token of its own, and norms before and behind its layers."""
    sizes, patches = _plain_blocks(reader)
    return sizes | {
        "tile_patches": patches, "further_tokens": 1, "position_rows": patches + 1,
        "further_parameters": 5 * sizes["hidden_size"],
    }  # fmt: skip


def _siglip_alone(reader: FieldReader) -> dict[str, Any]:
    """Return SigLIP's vision model with a bias of its patches and a norm behind its layers."""
    sizes, patches = _plain_blocks(reader)
    further = _further_of_siglip(reader, sizes)
    return sizes | {"tile_patches": patches, "position_rows": patches, "further_parameters": further}


def _further_of_siglip(reader: FieldReader, sizes: Mapping[str, int]) -> int:
    """Count the bias of patches, the last norm, and the pooling head, which no planned model reads.

    The head is a probe, attention, a norm and an MLP.
    """
    hidden, width = sizes["hidden_size"], sizes["ffn_hidden_size"]
    head = hidden * (4 * hidden + 2 * width) + hidden * 8 + width
    return 3 * hidden + head * reader.flag("vision_use_head", default=True)


def _pixtral(reader: FieldReader) -> dict[str, Any]:
    """Return Pixtral's vision model: images of any size, and layers as Llama's."""
    sizes, _patches = _plain_blocks(reader)
    return sizes | {
        "further_parameters": sizes["hidden_size"], "gated_mlp": True, "normalization": "rmsnorm",
        "rotary": True, "qkv_bias": False, "attention_output_bias": False, "mlp_bias": False,
    }  # fmt: skip


_LLAVA_TOWERS: Mapping[str, Callable[[FieldReader], dict[str, Any]]] = {
    "clip_vision_model": _clip, "siglip_vision_model": _siglip_alone, "pixtral": _pixtral,
}  # fmt: skip


def _cohere(*, norm: bool) -> TowerRule:
    """Return the rule of Aya Vision, with a norm before its projector, and of Command A Vision."""

    def rule(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
        tower, merged = _siglip_alone(reader), _size(whole, "downsample_factor", "merged_patches") ** 2
        own = whole.has("alignment_intermediate_size") or not norm
        width = _size(whole, "alignment_intermediate_size", "ffn_hidden_size") if own else model.hidden_size
        whole.value("alignment_intermediate_size")
        wide, out = tower["hidden_size"] * merged, model.hidden_size
        return TowerSpec(
            **tower, merged_patches=merged, projector_matrices=wide * width + width // 2 * out,
            projector_vectors=2 * wide * norm + width + out,
        )  # fmt: skip

    return rule


def _moonvit(reader: FieldReader, model: ModelSpec) -> dict[str, Any]:
    """Return layers and patches of MoonViT; positions of frames are computed."""
    patch, stated = _side(reader, "patch_size"), reader.value("merge_kernel_size")
    sides = stated if isinstance(stated, list | tuple) else []
    numbers = [one for one in sides if type(one) is int and one > 0]
    if len(numbers) != 2 or numbers != [*sides]:  # noqa: PLR2004 - height and width
        reader.fault("merge_kernel_size", "must be two whole numbers: height and width")
        reader.finish()
    rows = [_size(reader, key, "position_rows") for key in ("pos_emb_height", "pos_emb_width")]
    reader.value("pos_emb_time")
    if reader.has("text_hidden_size"):
        _output(reader, "text_hidden_size", model)
    return {
        "num_layers": _size(reader, "num_hidden_layers", "num_layers"),
        "hidden_size": _size(reader, "hidden_size", "hidden_size"),
        "ffn_hidden_size": _size(reader, "intermediate_size", "ffn_hidden_size"),
        "num_attention_heads": _size(reader, "num_attention_heads", "num_attention_heads"),
        "patch_size": patch, "patch_inputs": 3 * patch**2, "merged_patches": numbers[0] * numbers[1],
        "rotary": True, "position_rows": rows[0] * rows[1],
    }  # fmt: skip


def _kimi_k3(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of Kimi K3: a MoonViT without biases, and a norm behind its projector."""
    tower, out = _moonvit(reader, model), model.hidden_size
    wide = tower["hidden_size"] * tower["merged_patches"]
    return TowerSpec(
        **tower, attention_size=_size(reader, "attention_size", "hidden_size"), normalization="rmsnorm",
        qkv_bias=False, attention_output_bias=False, mlp_bias=False, projector_vectors=out,
        further_parameters=tower["hidden_size"], projector_matrices=wide * wide + wide * out,
    )  # fmt: skip


def _kimi_k25(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of Kimi K2.5 and 2.6."""
    tower = _moonvit(reader, model)
    projector = reader if reader.has("projection_hidden_size") else whole
    whole.value("projection_hidden_size")
    hidden = tower["hidden_size"]
    matrices, biases = _merger(hidden, tower["merged_patches"], model.hidden_size)
    return TowerSpec(
        **tower, further_parameters=3 * hidden, projector_matrices=matrices,
        projector_vectors=biases + 2 * _size(projector, "projection_hidden_size", "hidden_size"),
    )  # fmt: skip


def _mistral3(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Read transformers' ``Mistral3MultiModalProjector``: a norm, a merging product, two linear layers."""
    tower, side = _pixtral(reader), _size(whole, "spatial_merge_size", "merged_patches")
    width, language_width = tower["hidden_size"], model.hidden_size
    merging, linear_1, linear_2 = side**2 * width * width, width * language_width, language_width**2
    has_bias = whole.flag("multimodal_projector_bias", default=False)
    return TowerSpec(
        **tower,
        merged_patches=side**2,
        projector_matrices=merging + linear_1 + linear_2,
        projector_vectors=width + 2 * language_width * has_bias,
    )


def _gemma_4(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of Gemma 4; its audio tower, which no image passes, is held with it.

    Patches are averaged before they are projected (transformers' ``Gemma4VisionPooler``).
    """
    sizes, hidden = _sizes(reader), _size(reader, "hidden_size", "hidden_size")
    own = {"num_key_value_heads": sizes["num_attention_heads"],
           "head_dim": hidden // sizes["num_attention_heads"]}  # fmt: skip
    for key, value in own.items():
        if reader.value(key) != value:
            raise _at(reader, key, f"{shown(reader.value(key))} is not planned", allowed=str(value))
    return TowerSpec(
        **sizes, merged_patches=_side(reader, "pooling_kernel_size") ** 2,
        position_rows=2 * _size(reader, "position_embedding_size", "position_rows"),
        projector_matrices=hidden * model.hidden_size, further_parameters=_gemma_4_audio(whole, model),
        gated_mlp=True, normalization="rmsnorm", norms_behind=True, head_norms=True, rotary=True,
        qkv_bias=False, attention_output_bias=False, mlp_bias=False,
    )  # fmt: skip


def _gemma_4_audio(whole: FieldReader, model: ModelSpec) -> int:
    """Count the weights of Gemma 4's audio tower (transformers' ``Gemma4AudioModel``), projected."""
    audio = whole.child("audio_config")
    if audio is None:
        return 0

    def size(key: str, default: int) -> int:
        return audio.integer(key, low=1, high=2**20, default=default)

    h, layers = size("hidden_size", 1024), size("num_hidden_layers", 12)
    heads = size("num_attention_heads", 8)
    kernel, out = size("conv_kernel_size", 5), size("output_proj_dims", 1536)
    channels = audio.value("subsampling_conv_channels") or [128, 32]
    if not isinstance(channels, list | tuple) or [type(one) for one in channels] != [int, int]:
        audio.fault("subsampling_conv_channels", "must be two whole numbers")
        audio.finish()
    first, second = cast("list[int]", channels)
    # four products and keys of positions; two MLPs of four hidden sizes; a gated convolution of three
    matrices = (5 + 2 * 8 + 3) * h * h + h * kernel
    vectors = h // heads + (3 + 2 * 2 + 2) * h  # scales of a head's elements, and nine norms
    before = 9 * (first + first * second) + first + second + (first // 4) * second * h
    return before + layers * (matrices + vectors) + h * out + out + out * model.hidden_size


def _gemma_4_patches(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return Gemma 4 12B's patches: transformers' ``Gemma4UnifiedVisionEmbedder``, a product and norms."""
    hidden = _size(reader, "mm_embed_dim", "hidden_size")
    side = _side(reader, "patch_size") * _side(reader, "pooling_kernel_size")
    inputs, audio = 3 * side**2, whole.child("audio_config")
    read = _size(reader, "output_proj_dims", "hidden_size")
    sound = 0 if audio is None else audio.integer("audio_embed_dim", default=640, high=2**20)
    return TowerSpec(
        num_layers=0, hidden_size=hidden, ffn_hidden_size=1, num_attention_heads=1, patch_size=side,
        patch_inputs=inputs, merged_patches=1,
        position_rows=2 * _size(reader, "mm_posemb_size", "position_rows"),
        further_parameters=2 * inputs + 5 * hidden + sound * model.hidden_size,
        projector_matrices=read * model.hidden_size,
    )  # fmt: skip


def _minimax_m3(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of MiniMax-M3: a projection of each patch, and one of the patches that it merges."""
    sizes, merged = _sizes(reader), _side(reader, "spatial_merge_size") ** 2
    hidden, out = sizes["hidden_size"], model.hidden_size
    width = _size(whole, "projector_hidden_size", "ffn_hidden_size")
    of_patch, of_token = hidden * width + width * out, out * merged * width + width * out
    sizes["patch_inputs"] *= _side(reader, "temporal_patch_size")
    return TowerSpec(
        **sizes, merged_patches=merged, further_parameters=2 * hidden, rotary=True,
        projector_matrices=of_patch + of_token, projector_products=merged * of_patch + of_token,
        projector_vectors=2 * (width + out),
    )  # fmt: skip


_HALVINGS = 9 * 2  # weights of a convolution that halves both sides and doubles the channels


def _step_3(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return Step 3.7's tower: convolutions merge patches (transformers' ``Step3p7VisionModel``)."""
    tower, patches = _plain_blocks(reader)
    hidden, out = tower["hidden_size"], model.hidden_size
    tower["ffn_hidden_size"] = int(hidden * reader.number("mlp_ratio", low=1e-3, high=1e3))
    first, second = _HALVINGS * hidden**2, _HALVINGS * (2 * hidden) ** 2
    return TowerSpec(
        **tower, merged_patches=16, tile_patches=patches, position_rows=patches, layer_vectors=2 * hidden,
        further_parameters=2 * hidden, rotary=True, projector_matrices=first + second + 4 * hidden * out,
        projector_products=4 * first + second + 4 * hidden * out,
        projector_vectors=6 * hidden + out * whole.flag("projector_bias", default=False),
    )  # fmt: skip


_KERNEL = 3  # frames that each of Whisper's two convolutions reads


def _whisper(reader: FieldReader, _whole: FieldReader, model: ModelSpec) -> TowerSpec:
    """Return the tower of Voxtral: Whisper's encoder over clips of one length, with rows for patches.

    Its projector reads as many rows side by side as fill the MLP's width. Keys have no bias, and the first
    convolution's rows, twice as many as the second one's, are counted as these.
    """
    _must_be(reader, "voxtral_encoder")
    hidden, width = (_size(reader, key, "hidden_size") for key in ("hidden_size", "intermediate_size"))
    rows, merged = _size(reader, "max_source_positions", "position_rows"), max(1, width // hidden)
    for key, size, of in (("intermediate_size", width, hidden), ("max_source_positions", rows, merged)):
        if size % of:
            reader.fault(key, f"{size} is no multiple of {of}", allowed=f"a multiple of {of}")
    reader.finish()
    out, bins = model.hidden_size, _size(reader, "num_mel_bins", "patch_size")
    return TowerSpec(
        num_layers=_size(reader, "num_hidden_layers", "num_layers"), hidden_size=hidden,
        num_attention_heads=_size(reader, "num_attention_heads", "num_attention_heads"), patch_size=1,
        patch_inputs=_KERNEL * (bins + hidden), merged_patches=merged, tile_patches=rows,
        position_rows=rows, ffn_hidden_size=width, qkv_bias=False, layer_vectors=2 * hidden,
        further_parameters=4 * hidden, projector_matrices=width * out + out * out,
    )  # fmt: skip


def _idefics3(reader: FieldReader, whole: FieldReader, model: ModelSpec) -> TowerSpec:
    sizes, patches = _plain_blocks(reader)
    merged = _size(whole, "scale_factor", "merged_patches") ** 2
    return TowerSpec(
        **sizes, merged_patches=merged, tile_patches=patches, position_rows=patches,
        further_parameters=3 * sizes["hidden_size"],
        projector_matrices=sizes["hidden_size"] * merged * model.hidden_size,
    )  # fmt: skip


_RULES: Mapping[str, TowerRule] = {
    "aya_vision": _cohere(norm=True),
    "cohere2_vision": _cohere(norm=False),
    "exaone": _exaone,
    "gemma_4": _gemma_4,
    "gemma_4_patches": _gemma_4_patches,
    "idefics3": _idefics3,
    "kimi_k25": _kimi_k25,
    "kimi_k3": _kimi_k3,
    "lfm2_vl": _lfm2_vl,
    "llava": _llava,
    "vipllava": _vipllava,
    "minimax_m3": _minimax_m3,
    "mistral3": _mistral3,
    "glm4v": _glm4v,
    "glm_ocr": _glm_ocr,
    "ovis2": _ovis2,
    "internvl": _internvl,
    "llama4": _llama4,
    "deepseek_vl": _projected(_siglip_alone, 2),
    "hyperclovax": _qwen2_5_vl(projected=True),
    "paddleocr_vl": _paddleocr_vl,
    "paligemma": _projected(_siglip_alone, 1),
    "qwen2_5_vl": _qwen2_5_vl(),
    "qwen2_vl": _qwen2_vl,
    "qwen3_vl": _qwen3_vl,
    "siglip": _siglip,
    "step_3": _step_3,
    "whisper": _whisper,
    "video_llama_3": _projected(_siglip_rotated, 2),
}
