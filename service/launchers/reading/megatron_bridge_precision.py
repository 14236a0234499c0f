"""What Megatron-Bridge's mixed precision really runs: a recipe by name, or a configuration of its own.

The recipe's ``grad_reduce_in_fp32`` is written over that of ``ddp`` when the run starts
(Megatron-Bridge 0.3.1, training/mixed_precision.py, ``MixedPrecisionConfig.setup``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.launchers.megatron_bridge_precision import FP8_RECIPES, LOW_GRADIENTS
from service.launchers.reading.given import Given, Value

_KEY, _DDP = "mixed_precision", "ddp.grad_reduce_in_fp32"
_FP8_NAMES = {"fp8-delayed": "delayed", "fp8-current": "tensorwise", "fp8-blockwise": "blockwise",
              "mxfp8": "mxfp8"}  # fmt: skip
# Recipes by what their configurations hold.
_RECIPES: Mapping[str, dict[str, str]] = {
    "bf16_mixed": {"bf16": "true"},
    "fp16_mixed": {"fp16": "true", "grad_reduce_in_fp32": "false"},
    **{
        recipe: {"bf16": "true", "fp8": "hybrid", "fp8_recipe": _FP8_NAMES[name]}
        for name, recipe in FP8_RECIPES.items()
        if name != "none"
    },
}
_NESTED = re.compile(r"\{[^{}]*\}")
_UNSET = ("null", "none", "", "~")
_FALSE = ("false", "0", "no")

Overrides = Mapping[str, tuple[str, int]]  # key to value as text and line; the last of equal ones


def take_precision(given: Given, values: Overrides) -> None:
    """The precision as Megatron-LM's flags, and what gradients are reduced in."""
    text, line = values.get(_KEY, ("", 0))
    parts = {
        key.removeprefix(f"{_KEY}."): part.strip("'\"")
        for key, (part, _) in values.items()
        if key.startswith(f"{_KEY}.")
    }
    if not text and "_target_" not in parts:
        given.note("mixed_precision is the recipe's: bf16_mixed is assumed")
    held = _held(text.strip("'\""), parts)
    if held is None:
        held = {"bf16": "true"}
        given.take("--bf16", Value((), line), called=_KEY)
        given.fault("bf16", f'"{text[:40]}" is not priced', allowed=", ".join(_RECIPES))
    _take(given, held, line)
    low = held.get("grad_reduce_in_fp32", "true").lower() in _FALSE
    said, at = values.get(_DDP, ("", 0))
    if said and (said.lower() in _FALSE) is not low:
        given.note(
            f"line {at}: {_DDP}={said[:8]} does nothing: mixed_precision says "
            f"grad_reduce_in_fp32={str(not low).lower()} and is written over it"
        )


def _held(text: str, parts: Mapping[str, str]) -> dict[str, str] | None:
    """What a recipe's name, an override in braces, and single values hold; None: a name of no recipe."""
    if text.startswith("{"):
        inner = _NESTED.sub("", text[1:].removesuffix("}"))
        pairs = (one.partition(":") for one in inner.split(","))
        return {key.strip(): value.strip() for key, _, value in pairs} | dict(parts)
    if "_target_" in parts:
        return dict(parts)
    name = text.replace("-", "_") or "bf16_mixed"
    plain = name.removesuffix(LOW_GRADIENTS)
    recipe = _RECIPES.get(plain, _RECIPES.get(f"{plain}_mixed") if plain != name else None)
    if recipe is None:
        return None
    low = {"grad_reduce_in_fp32": "false"} if plain != name else {}
    return {**recipe, **low, **parts}


def _take(given: Given, held: Mapping[str, str], line: int) -> None:
    """The flags of one configuration."""
    fp16 = held.get("fp16", "false").lower() == "true"
    given.take("--fp16" if fp16 else "--bf16", Value((), line), called=_KEY)
    if not fp16 and held.get("bf16", "false").lower() != "true":
        given.fault("bf16", "neither bf16 nor fp16 is on: fp32 is not priced", allowed="bf16:true")
    if held.get("fp8", "").lower() not in _UNSET:
        given.take("--fp8-format", Value((held["fp8"],), line), called=_KEY)
        given.take("--fp8-recipe", Value((held.get("fp8_recipe", "tensorwise"),), line), called=_KEY)
    low = held.get("grad_reduce_in_fp32", "true").lower() in _FALSE
    if low and not fp16:
        given.take("--grad-reduce-in-bf16", Value((), line), called=_KEY)
    elif fp16 and not low:
        given.take("--accumulate-allreduce-grads-in-fp32", Value((), line), called=_KEY)
