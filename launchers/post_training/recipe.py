"""What a recipe of post-training fixes, and what the readers of all launchers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.library import find_model

Values = Mapping[str, Any]
Other = Callable[[str], str | None]  # text of a file that is named relative to the recipe; None: missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The roles that a recipe fixes, in fields of a question on post-training."""

    launcher: str
    model: str  # of the catalog, or a hub id
    nodes: int
    gpus_per_node: int
    longest_tokens: int
    parts: Mapping[str, Mapping[str, Any]]  # algorithm, rollout, training, asynchrony; reward: of a model
    notes: tuple[str, ...] = field(default=())


def refused(where: str, message: str, allowed: str | None = None) -> InvalidProblemError:
    """Return the refusal of a recipe by a field."""
    return InvalidProblemError([FieldError(pointer=where, message=message, allowed=allowed)])


def mapping_of(text: str) -> Mapping[str, Any]:
    """Return a YAML file's fields.

    Raises:
        InvalidProblemError: it is none.
    """
    try:
        found = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as fault:
        raise refused("", f"is not YAML: {str(fault).splitlines()[0]}") from None
    if not isinstance(found, Mapping):
        raise refused("", "is not a mapping of fields")
    return found


def ways_of(*, colocated: bool, steps: int) -> dict[str, Any]:
    """Return the part ``asynchrony`` of a recipe."""
    mode = "async" if steps else "colocated" if colocated else "apart"
    return {"mode": mode, "max_steps_off": max(steps, 1), "steps_off": steps}


def model_of(name: str, where: str) -> str:
    """Return a name of a model as the catalog knows it: a hub id, or the last part of a path.

    Raises:
        InvalidProblemError: the catalog does not have it.
    """
    tail = name.rstrip("/").rpartition("/")[2]
    for one in (name, tail, "/".join(name.rstrip("/").split("/")[-2:])):
        try:
            found: str = find_model(one).name
        except UnknownNameError:
            continue
        return found
    raise refused(where, f"{name[:80]} is not a model of the catalog", "meshwright models lists them")
