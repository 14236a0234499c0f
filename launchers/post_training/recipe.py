"""What a recipe of post-training fixes, and what the readers of all launchers share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from meshwright.launchers.reading.adapters import adapted, of_megatron, of_peft, refuse_uncounted
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.commands import script_of
from meshwright.launchers.reading.documents import LocatedValue
from meshwright.launchers.reading.fields import Fields
from meshwright.profiles.adapters import ALL_LINEAR, FUSED_TARGETS, names_every
from meshwright.profiles.documents import read_yaml, shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.library import find_model
from meshwright.shell.values import UNKNOWN, Script

_A_RANK = 16
A_MODEL = "qwen3-8b"  # of a tip
_MOST = 2**40  # of any count
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
    parts: Mapping[str, Mapping[str, Any]]  # algorithm, rollout, training, asynchrony; adapters, reward
    notes: tuple[str, ...] = field(default=())


@lru_cache(maxsize=4)
def script_in(name: str, text: str) -> Script:
    """Return the commands of a recipe that is a script, which each launcher is asked for."""
    return script_of(Source(name=name, text=text), Overrides())


_WORDS = re.compile(r"[\w.-]+(, [\w.-]+)*")  # that are allowed


def refused(
    where: str, message: str, allowed: str | None = None, *, usual: object = None
) -> InvalidProblemError:
    """Return the refusal of a recipe by a field; ``usual``: a value that it may have, for the tip."""
    if usual is None and allowed is not None and _WORDS.fullmatch(allowed):
        usual = allowed.partition(",")[0]
    name = where.strip("/").lstrip("-").replace("/", ".")
    value = str(usual).lower() if isinstance(usual, bool) else usual
    tip = f"--set {name}={value}" if name and usual is not None else ""
    return InvalidProblemError([FieldError(pointer=where, message=message, allowed=allowed, tip=tip)])


def mapping_of(text: str) -> Mapping[str, Any]:
    """Return a YAML file's fields; of a repeated one the last counts.

    Raises:
        InvalidProblemError: it is none.
    """
    return read_yaml(text, repeated={})


def section_of(values: Values, name: str) -> Values:
    """Return a section of a file; empty without one.

    Raises:
        InvalidProblemError: it is no section.
    """
    found = values.get(name) or {}
    if not isinstance(found, Mapping):
        raise refused(f"/{name}", "is not a mapping of fields")
    return found


def finite(stated: object, where: str, allowed: str = "a number", *, usual: object = None) -> float:
    """Return a number of a recipe; ``allowed``: which ones, in words.

    Raises:
        InvalidProblemError: it is none that is known without the shell, or not finite.
    """
    if stated is None:
        raise refused(where, "is not stated", allowed, usual=usual)
    try:
        found = math.nan if isinstance(stated, bool) else float(str(stated))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        value = shown(str(stated).replace(UNKNOWN, "…"))
        raise refused(where, f"{value} is no number that is known here", allowed, usual=usual)
    return found


def counted(stated: object, where: str, least: int = 1, *, usual: object = None) -> int:
    """Return a whole number of a recipe that is not below ``least``.

    Raises:
        InvalidProblemError: it is none.
    """
    allowed = f"a whole number from {least} on"
    usual = max(least, 1) if usual is None else usual
    found = finite(stated, where, allowed, usual=usual)
    if found != int(found) or not least <= found <= _MOST:
        raise refused(where, f"{shown(str(stated))} is out of range", allowed, usual=usual)
    return int(found)


def ways_of(*, colocated: bool, steps: int) -> dict[str, Any]:
    """Return the part ``asynchrony`` of a recipe."""
    mode = "async" if steps else "colocated" if colocated else "apart"
    return {"mode": mode, "max_steps_off": max(steps, 1), "steps_off": steps}


_MENDED = {
    "lora_target_modules": "all-linear",
    "lora_bias": "none",
    "bias": "none",
}  # of tips; others are off
# Arguments of LoRA that a priced step has none of.
_UNPRICED = {"use_dora": "DoRA", "lora_modules_to_save": "modules trained in full next to adapters"}


def adapters_part(
    values: Values, model: str, base: str, default: tuple[str, ...] | None, *, fused: bool = False
) -> dict[str, Any]:
    """Return the part ``adapters`` of a recipe.

    Args:
        values: rank and layers by the names of TRL's ModelConfig, and what else changes adapters.
        model: of the catalog; empty: unknown.
        base: precision of the frozen weights.
        default: the layers where none are named; None: peft's own.
        fused: layers have the names of Megatron-Core.

    Raises:
        InvalidProblemError: adapters that are not priced; the field, its value and the reason.
    """
    known = {name: LocatedValue(value, 0) for name, value in values.items() if value is not False}
    fields = Fields("", known, Overrides(), ("trl",))
    for name, words in _UNPRICED.items():
        if fields.raw(name):
            reason = f"{words} are not priced in a step yet"
            raise refused(f"/{name}", reason, "adapters alone", usual=False)
    refuse_uncounted(fields)
    spec = find_model(model) if model else None
    named = fields.raw("lora_target_modules")
    of_names = of_megatron if fused else adapted
    targets = default if default and not named else of_names(fields, spec)
    for at, one in enumerate(fields.faults):
        name = one.pointer
        tip = f"--set {name}={_MENDED.get(name, 'false')}"
        fields.faults[at] = replace(one, pointer=f"/{name}", tip=tip)
    fields.stop()
    if spec and default is None:
        targets = of_peft(fields, targets, spec)
    rank = counted(values.get("lora_r"), "/lora_r", usual=_A_RANK)
    every = names_every(targets) or targets == FUSED_TARGETS
    return {
        "rank": rank, "targets": [*(ALL_LINEAR if every else targets)],
        "base_precision": base,
    }  # fmt: skip


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
    reason = f"{name[:80]} is not a model of the catalog"
    raise refused(where, reason, "meshwright models lists them", usual=A_MODEL)
