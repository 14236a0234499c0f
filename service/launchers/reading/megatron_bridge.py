"""Reads overrides of a Megatron-Bridge recipe (``model.tensor_model_parallel_size=8``), or their YAML.

Keys: Megatron-Bridge 0.3.1, training/config.py (ConfigContainer), training/mixed_precision.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.service.launchers.megatron_bridge import FP8_RECIPES, LOW_GRADIENTS
from meshwright.service.launchers.reading.base import LaunchFile, Source, Told, refused
from meshwright.service.launchers.reading.commands import (
    best,
    commands_of,
    script_of,
    world_of,
)
from meshwright.service.launchers.reading.documents import document_of, looks_like_document
from meshwright.service.launchers.reading.given import Given, Value
from meshwright.service.launchers.reading.known import Known, known_of
from meshwright.service.launchers.reading.megatron_core import (
    CORE_NAMES,
    flag_of,
    take,
    take_usual,
    text_of,
)
from meshwright.service.launchers.reading.megatron_lm import launch_file

# --------------------------------------------------------------------------------------------------
# What Megatron-Bridge's mixed precision really runs: a recipe by name, or a configuration of its own.
#
# The recipe's ``grad_reduce_in_fp32`` is written over that of ``ddp`` when the run starts (Megatron-
# Bridge 0.3.1, training/mixed_precision.py, ``MixedPrecisionConfig.setup``).


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


_SECTIONS = (
    "model",
    "train",
    "ddp",
    "optimizer",
    "dataset",
    "comm_overlap",
    "mixed_precision",
    "dist",
    "peft",
)
_LEAST_NAMES = 2
_READ = (
    "model.",
    "train.",
    "ddp.",
    "dist.",
    "optimizer.",
    "checkpoint.",
)  # sections with Megatron's own names
_IRRELEVANT = (
    "dataset.", "checkpoint.", "logger.", "scheduler.", "tokenizer.", "rng.", "optimizer.",
    "train.train_iters", "train.eval_", "train.manual_gc", "dist.", "profiling.",
    "model.should_pad_vocab", "model.init_method", "model.make_vocab", "ddp.check_for",
    "ddp.average_in", "model.apply_rope", "train.exit_", "ddp.grad_reduce_in_fp32",
)  # fmt: skip
_WRITTEN_OVER = ("mixed_precision", "comm_overlap")  # sections that are read after the others
Override = tuple[str, str, int]  # key, value as text, line


class MegatronBridgeReader:
    """Reads launch scripts and override files of Megatron-Bridge and NeMo."""

    name = "megatron-bridge"

    def recognises(self, source: Source) -> bool:
        """Whether there are overrides of a recipe."""
        if source.is_script:
            try:
                return best(commands_of(script_of(source, Told())), _is_override)[1] >= _LEAST_NAMES
            except InvalidProblemError:
                return False
        if source.suffix not in (".yaml", ".yml"):
            return False
        found = sum(_is_override(f"{name}=") for name in looks_like_document(source))
        return found >= _LEAST_NAMES

    def read(self, source: Source, told: Told) -> LaunchFile:
        """The run of a recipe with these overrides.

        Raises:
            InvalidProblemError: what cannot be read, or contradicts itself, with line and key.
        """
        given, known = Given(), known_of(source, told)
        world = known.world
        if source.is_script:
            script = script_of(source, told)
            command, count = best(commands_of(script), _is_override)
            if count < _LEAST_NAMES:
                raise refused(f"{source.name[:64]}: no overrides of a Megatron-Bridge recipe are in it")
            for note in script.notes:
                given.note(note)
            started = world_of(source.text, script, command)
            world = started if started.num_gpus else world
            pairs = [word.text.partition("=") for word in command.words]
            overrides = [
                (key.lstrip("+~"), value, word.line)
                for (key, equals, value), word in zip(pairs, command.words, strict=True)
                if equals and not key.startswith("--")
            ]
        else:
            overrides = [(key, text_of(one.value), one.line) for key, one in document_of(source).items()]
        _take_all(given, overrides)
        told = replace(told, model=_model(given, known), num_gpus=known.num_gpus())
        return launch_file(self.name, given, told, world, name="launch file")


def _is_override(text: str) -> bool:
    """Whether a word is ``section.key=value`` of a ConfigContainer."""
    key, equals, _ = text.lstrip("+~").partition("=")
    section, dot, name = key.partition(".")
    return bool(equals and dot) and section in _SECTIONS and (flag_of(name) is not None)


def _take_all(given: Given, overrides: Iterable[Override]) -> None:
    """Overrides as flags of Megatron-LM; keys that decide nothing are left out, unknown ones listed."""
    values = {key: (text, line) for key, text, line in overrides}
    for key, (text, line) in values.items():
        name = key.partition(".")[2] or key
        if key.startswith(_READ) and flag_of(name) is not None:
            take(given, name, text, line, called=key)
        elif key.partition(".")[0] not in _WRITTEN_OVER and not key.startswith(_IRRELEVANT):
            given.leave(key[:64], f"--{name.replace('_', '-')}", line)
    given.refuse_slips(CORE_NAMES)
    _take_overlaps(given, values)
    _take_length(given, values)
    if given.has("kv-lora-rank") and not given.has("multi-latent-attention"):
        given.take("--multi-latent-attention", Value((), 0), called="model.kv_lora_rank")
    take_precision(given, values)
    take_usual(given)
    given.stop()


def _take_overlaps(given: Given, values: dict[str, tuple[str, int]]) -> None:
    """``comm_overlap`` is written over what the model and ddp say (``CommOverlapConfig.setup``)."""
    for key, (text, line) in values.items():
        section, _, name = key.partition(".")
        if section != "comm_overlap" or text.lower() == "null":
            continue
        flag = flag_of(name)
        if flag is None:
            given.leave(key[:64], f"--{name.replace('_', '-')}", line)
        else:
            given.values.pop(flag, None)
            take(given, name, text, line, called=key)


def _take_length(given: Given, values: dict[str, tuple[str, int]]) -> None:
    """The model's sequence and the dataset's are one."""
    text, line = values.get("dataset.sequence_length", values.get("dataset.seq_length", ("", 0)))
    if text and not given.has("seq-length"):
        take(given, "seq_length", text, line, called="dataset.sequence_length")
    elif text and text != given.word("seq-length"):
        given.fault("seq-length", f"is not the dataset's sequence_length {text[:20]}")


def _model(given: Given, known: Known) -> ModelSpec | None:
    """The told model; None where the overrides spell the shape out."""
    names = ("num-layers", "hidden-size", "num-attention-heads", "vocab-size")
    return known.told.model if all(given.has(name) for name in names) else known.model()
