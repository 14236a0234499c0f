"""Images of a plan in launch files: parts that are not trained, and the largest image that was priced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from meshwright.launchers.target import Target
from meshwright.profiles.adapters import class_targets
from meshwright.profiles.tower_modules import TOWER_TARGETS, modules_of
from meshwright.profiles.towers import FrozenPart

# Arguments of LLaMA-Factory 0.9.5 (hparams/finetuning_args.py), both with Megatron-Core and without.
LLAMA_FACTORY_PARTS: Mapping[FrozenPart, str] = {
    "vision": "freeze_vision_tower",
    "projector": "freeze_multi_modal_projector",
    "language": "freeze_language_model",
}
# Switches of Megatron-Bridge's model providers (models/qwen_vl/qwen35_vl_provider.py).
BRIDGE_PARTS: Mapping[FrozenPart, str] = {
    "vision": "freeze_vision_model",
    "projector": "freeze_vision_projection",
    "language": "freeze_language_model",
}
LLAMA_FACTORY_PIXELS = "image_max_pixels"
LLAMA_FACTORY_TILES = ("crop_to_patches", "image_do_pan_and_scan")  # of InternVL, and of Gemma 3
DEFAULT_PIXELS = 768 * 768  # hparams/model_args.py:306


def frozen_values(target: Target, names: Mapping[FrozenPart, str]) -> dict[str, object]:
    """Return by the launcher's names whether parts of a model with a tower are frozen; {} without one."""
    if target.model.tower is None:
        return {}
    frozen = {*target.workload.frozen_parts} - {*target.workload.adapted_parts}
    return {name: part in frozen for part, name in names.items()}


def most_pixels(target: Target) -> int | None:
    """Return the pixels of the largest image that was priced; None for tiles of one size, or no images."""
    tower, tokens = target.model.tower, target.workload.image_tokens
    if tower is None or tokens is None or tower.tile_patches:
        return None
    return tokens.longest * tower.pixels_per_token


def llama_factory_values(target: Target) -> dict[str, object]:
    """Return LLaMA-Factory's arguments on images: none without a tower."""
    tower, tokens, pixels = target.model.tower, target.workload.image_tokens, most_pixels(target)
    values = frozen_values(target, LLAMA_FACTORY_PARTS)
    if pixels:
        values[LLAMA_FACTORY_PIXELS] = pixels
    elif tower is not None and tokens is not None:
        values |= dict.fromkeys(LLAMA_FACTORY_TILES, tokens.longest > tower.tile_tokens)
    return values


def has_images(target: Target) -> bool:
    """Return whether images were priced, which a tower reads."""
    return target.model.tower is not None and target.workload.image_tokens is not None


def adapted_pattern(target: Target, targets: Sequence[str]) -> str:
    """Return peft's pattern of layers of the language model, whose names a tower may have, and of a tower.

    Where transformers 5 puts the language model (Idefics and SmolVLM: ``text_model``), and its blocks.
    """
    blocks = "self_attn|linear_attn|mlp|mlp\\.shared_expert"
    known, named = modules_of(target.model.tower), {*targets}
    words = class_targets(target.model, tuple(name for name in targets if name not in TOWER_TARGETS))
    language = rf"model\.(?:language_model|text_model)\.layers\.\d+\.(?:{blocks})\.(?:{'|'.join(words)})"
    paths = [path for name in known.targets if name in named for path in known.paths(name)] if known else []
    own = [_NUMBER.sub(r"\\d+", path.replace(".", r"\.")) for path in paths]
    return "|".join([*([language] if words else []), *own])


_NUMBER = re.compile(r"(?<=\.)0(?=\\\.)")  # of a layer, any of which is meant; not the last one of a path


def image_warnings(target: Target) -> Iterator[str]:
    """Yield how many images the data must have, which no launcher's file states."""
    tower, workload = target.model.tower, target.workload
    if tower is None:
        return
    if workload.image_tokens is None:
        yield "the prediction assumes no images: use text-only data"
        return
    tiles = f", in tiles of {tower.tile_tokens}" if tower.tile_patches else ""
    yield (
        f"{workload.images_per_sample:g} images a sequence were priced, of up to "
        f"{workload.image_tokens.longest} tokens each{tiles}: the data must have as many"
    )
