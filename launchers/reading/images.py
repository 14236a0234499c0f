"""Images of a run that launch files start: parts that are frozen, and how large its images are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.launchers.reading.base import LaunchFile
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.known import Known
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.sequences import SequenceLengths
from meshwright.profiles.tower_modules import TOWER_TARGETS
from meshwright.profiles.towers import FROZEN_PARTS, TOWER_PARTS, FrozenPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """Images and frozen parts as files state them."""

    frozen: tuple[FrozenPart, ...]
    limit: str = ""  # the setting that limits images
    most_pixels: int = 0  # that it allows an image; 0: any
    stated: bool = False  # the files state it, so that it is not the launcher's default
    none_read: bool = False  # the program reads text alone as the files have it, whatever the model takes


def settings_of(
    fields: Fields, parts: Mapping[FrozenPart, str], limit: str, usual: int = 0
) -> ImageSettings:
    """Return the settings under a trainer's own names; tower and projector are frozen by default."""
    frozen = (part for part, name in parts.items() if fields.flag(name, default=part in TOWER_PARTS))
    return ImageSettings(
        frozen=tuple(frozen),
        limit=limit,
        most_pixels=fields.integer(limit, usual) if fields.has(limit) else usual,
        stated=fields.has(limit),
    )


def require_tower(model: ModelSpec, limit: str) -> None:
    """Refuse images, which the setting ``limit`` states, for a model without a tower.

    Raises:
        InvalidProblemError: it has none.
    """
    if model.tower is None:
        raise InvalidProblemError.of(
            limit,
            f"the files limit images, but {model.title} has no vision tower",
            allowed=f"the config with its vision_config (--model), or --ignore {limit}",
        )


def of_text_alone(found: LaunchFile) -> LaunchFile:
    """Return a run without images, whose adapters in a tower train nothing: with a note, not priced."""
    targets = found.workload.lora_targets
    language = tuple(name for name in targets if name not in TOWER_TARGETS)
    if language == targets or not language:
        return found
    idle = ", ".join(name for name in targets if name in TOWER_TARGETS)
    note = f"{idle}: the names of adapted layers mean them too, and without images they train nothing"
    workload = replace(found.workload, lora_targets=language)
    return replace(found, workload=workload, notes=(*found.notes, f"{note}: they are not priced"))


def with_images(found: LaunchFile, known: Known, settings: ImageSettings) -> LaunchFile:
    """Return a run with its images, those of the file's header before others; unchanged without a tower.

    Raises:
        InvalidProblemError: adapters next to a tower that is not frozen; images for a model without one.
    """
    tower, workload, frozen = found.model.tower, found.workload, settings.frozen
    if tower is None:
        if settings.stated:
            require_tower(found.model, settings.limit)
        return found
    if workload.lora_rank:
        if trained := [part for part in TOWER_PARTS if part not in frozen]:
            raise InvalidProblemError.of(
                "/workload/frozen",
                f"adapters in {' and '.join(trained)} are not supported",
                allowed="a frozen tower and projector",
            )
        frozen = ()
    images, tokens = (0.0, None) if settings.none_read else known.header.images
    found = of_text_alone(found) if images == 0 else found
    workload, notes = found.workload, found.notes
    if images != 0 and tokens is None and settings.most_pixels and not tower.tile_patches:
        size = max(1, settings.most_pixels // tower.pixels_per_token)
        tokens = SequenceLengths(percentiles=((0.0, size), (100.0, size)))
        notes = (
            *notes,
            f"assuming that every image has the largest size {settings.limit} allows: {size} tokens",
        )
    parts = tuple(part for part in FROZEN_PARTS if part in frozen)
    work = replace(workload, images_per_sample=images or 0.0, image_tokens=tokens, frozen=parts)
    return replace(found, workload=work, notes=notes, images_stated=images is not None)
