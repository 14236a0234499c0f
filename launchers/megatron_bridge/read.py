"""Reader of Megatron-Bridge's recipes with overrides (``model.context_parallel_size=2``), or their YAML.

The values of the recipes are in the catalog (``benchmarks.catalog.bridge_recipes``). Keys: Megatron-Bridge
0.3.1, training/config.py (ConfigContainer), training/mixed_precision.py.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise

from meshwright.launchers.flags import flag_names, flags_of
from meshwright.launchers.images import BRIDGE_PARTS
from meshwright.launchers.megatron_bridge.export import FP8_RECIPES, LOW_GRADIENTS
from meshwright.launchers.megatron_bridge.read_adapters import SECTION, adapted
from meshwright.launchers.megatron_core.names import flag_kinds
from meshwright.launchers.megatron_core.read import (
    core_names,
    flag_of,
    take,
    take_usual,
    text_of,
)
from meshwright.launchers.megatron_lm.flags import FP4_RECIPE, FP8_FORMAT, FP8_FORMATS
from meshwright.launchers.megatron_lm.read import launch_file
from meshwright.launchers.megatron_lm.read_forks import take_4_bits
from meshwright.launchers.reading.base import LaunchFile, Overrides, Reader, Source, refused
from meshwright.launchers.reading.commands import (
    Command,
    best,
    chosen,
    commands_of,
    readable_script,
    require_beside,
    script_of,
    world_of,
)
from meshwright.launchers.reading.documents import document_of, looks_like_document
from meshwright.launchers.reading.given import Given, Value
from meshwright.launchers.reading.images import ImageSettings, with_images
from meshwright.launchers.reading.known import Known, known_of
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.towers import FrozenPart
from meshwright.shell.values import (
    Word,
    unknown_arguments,
    unknown_fault,
    unknown_in,
)

# --------------------------------------------------------------------------------------------------
# Megatron-Bridge's actual mixed precision: a recipe by name, or a configuration of its own.
#
# The recipe's ``grad_reduce_in_fp32`` overwrites that of ``ddp`` when the run starts (Megatron-
# Bridge 0.3.1, training/mixed_precision.py, ``MixedPrecisionConfig.setup``).


_KEY, _DDP = "mixed_precision", "ddp.grad_reduce_in_fp32"
_FP8_NAMES = {"fp8-delayed": "delayed", "fp8-current": "tensorwise", "fp8-blockwise": "blockwise",
              "mxfp8": "mxfp8"}  # fmt: skip
# Recipes by the contents of their configurations.
_RECIPES: Mapping[str, dict[str, str]] = {
    "bf16_mixed": {"bf16": "true"},
    "fp16_mixed": {"fp16": "true", "grad_reduce_in_fp32": "false"},
    **{
        FP8_RECIPES[name]: {"bf16": "true", "fp8": FP8_FORMATS.get(name, FP8_FORMAT), "fp8_recipe": word}
        for name, word in _FP8_NAMES.items()
    },
    FP8_RECIPES[FP4_RECIPE]: {"bf16": "true", "fp4": "e2m1"},
}
_NESTED = re.compile(r"\{[^{}]*\}")
_UNSET = ("null", "none", "", "~")
_FALSE = ("false", "0", "no")
Override = tuple[str, str, int]  # key, value as text, line

ConfigValues = Mapping[str, tuple[str, int]]  # key to value as text and line; the last of equal ones


def take_precision(given: Given, values: ConfigValues) -> None:
    """Take the precision as Megatron-LM's flags, and the type in which gradients are reduced."""
    text, line = values.get(_KEY, ("", 0))
    if _KEY in values and text.lower() in _UNSET:  # the model's own switches set it
        own = {one: values[f"model.{one}"][0] for one in _precision_names() if f"model.{one}" in values}
        text = "{" + ",".join(f"{one}:{switch}" for one, switch in own.items()) + "}"
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
        given.fault("bf16", f'"{text[:40]}" is not supported', allowed=", ".join(_RECIPES))
    _take(given, held, line, values)
    low = held.get("grad_reduce_in_fp32", "true").lower() in _FALSE
    said, at = values.get(_DDP, ("", 0))
    if said and (said.lower() in _FALSE) is not low:
        given.note(
            f"line {at}: {_DDP}={said[:8]} does nothing: mixed_precision sets "
            f"grad_reduce_in_fp32={str(not low).lower()} and is written over it"
        )


@cache
def _precision_names() -> tuple[str, ...]:
    """Return the names that MixedPrecisionConfig writes over those of the model, optimizer and ddp."""
    names = (name.partition(".") for name in flags_of("megatron-bridge"))
    return tuple(name for section, _, name in names if section == _KEY and name)


def _is_written_over(key: str, values: ConfigValues) -> bool:
    """Return whether mixed precision replaces a value of the model, optimizer or ddp."""
    section, _, name = key.partition(".")
    own = values.get(_KEY, ("", 0))[0].lower() in _UNSET and not any(
        one.startswith(f"{_KEY}.") for one in values
    )
    stated = _KEY in values and own
    return section in ("model", "optimizer", "ddp") and name in _precision_names() and not stated


def _held(text: str, parts: Mapping[str, str]) -> dict[str, str] | None:
    """Return the values of a recipe's name, an override in braces, or single keys; None: unknown name."""
    if text.startswith("{"):
        pairs = (one.partition(":") for one in _NESTED.sub("", text[1:].removesuffix("}")).split(","))
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


def _take(given: Given, held: Mapping[str, str], line: int, values: ConfigValues) -> None:
    fp16 = held.get("fp16", "false").lower() == "true"
    given.take("--fp16" if fp16 else "--bf16", Value((), line), called=_KEY)
    if not fp16 and held.get("bf16", "false").lower() != "true":
        given.fault("bf16", "neither bf16 nor fp16 is on: fp32 is not supported", allowed="bf16:true")
    for key, text in held.items():
        row = flag_names("megatron-bridge").row(f"{_KEY}.{key}")
        if row is not None and row.refuses(text):
            at = values.get(f"{_KEY}.{key}", ("", line))[1]
            given.refuse(f"{_KEY}.{key}", f"line {at}: cannot be read: {row.why}")
    if held.get("fp8", "").lower() not in _UNSET:
        given.take("--fp8-format", Value((held["fp8"],), line), called=_KEY)
        given.take("--fp8-recipe", Value((held.get("fp8_recipe", "tensorwise"),), line), called=_KEY)
        for name in ("fp8_param_gather", "fp8_param", "fp8_dot_product_attention"):
            if held.get(name, "null").lower() not in _UNSET:
                take(given, name, held[name], line, called=f"{_KEY}.{name}")
    if held.get("fp4", "").lower() not in _UNSET:
        given.take("--fp4-format", Value((held["fp4"],), line), called=_KEY)
        given.take("--fp4-recipe", Value((held.get("fp4_recipe", FP4_RECIPE),), line), called=_KEY)
        take_4_bits(given)
    low = held.get("grad_reduce_in_fp32", "true").lower() in _FALSE
    if low and not fp16:
        given.take("--grad-reduce-in-bf16", Value((), line), called=_KEY)
    elif fp16 and not low:
        given.take("--accumulate-allreduce-grads-in-fp32", Value((), line), called=_KEY)


# --------------------------------------------------------------------------------------------------
# Recipes by name: the overrides of the command replace their values.


_RECIPE_FILE = CATALOG / "recipes" / "megatron_bridge.json"
_ADAPTER_OPTIONS, _ADAPTERS = ("--mode", "--peft-scheme", "--peft"), ("lora", "dora")
_MODES = {"pretrain": "pretrain", "sft": "sft", "lora": "peft", "dora": "peft"}
_PROGRAM = re.compile(r"(?:.*/)?(pretrain|finetune|sft)_(\w+)\.py")
_NAMING = ("--recipe", "--model", "--mode")
_COMPUTED = "?"  # in the catalog's recipes
_LENGTHS = ("dataset.sequence_length", "dataset.seq_length")


@cache
def _options() -> Mapping[str, str]:
    """Return run_recipe.py's options that are overrides under another name: of -tp, the tensor size."""
    short = {
        "-" + "".join(word[0] for word in name.split("_") if word not in ("model", "size")): f"model.{name}"
        for name in core_names()
        if name.endswith("_parallel_size")
    }
    return {
        "-gb": "train.global_batch_size", "-mb": "train.micro_batch_size", "-sl": "dataset.seq_length",
        "-vp": "model.virtual_pipeline_model_parallel_size", **short,
    }  # fmt: skip


@cache
def _long_options() -> Mapping[str, str]:
    """Return the same options in their long form: --seq_length of dataset.seq_length."""
    return {f"--{key.partition('.')[2]}": key for key in _options().values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The values that a recipe of Megatron-Bridge sets."""

    name: str
    hub_id: str  # empty: the recipe states a shape, or computes it
    values: Mapping[str, object]  # by dotted name
    peft: Mapping[str, object] | str | None = None  # its adapters; text: it makes them itself


@cache
def _recipes() -> dict[str, Recipe]:
    raw = json.loads(_RECIPE_FILE.read_text("utf-8"))
    found = {}
    for name, row in raw["recipes"].items():
        values = {key: value for key, value in {**raw["usual"], **row}.items() if value is not None}
        hub_id, peft = str(values.pop("hub_id")), values.pop("peft", None)
        found[name] = Recipe(name=name, hub_id=hub_id, values=values, peft=peft)
    return found


def recipe_names() -> tuple[str, ...]:
    """Return all known recipes, sorted."""
    return tuple(sorted(_recipes()))


def recipe_named(command: Command) -> Word | None:
    """Return the recipe that a command names by an option or by its program, known or not."""
    words = command.words
    said: dict[str, Word] = {}
    for word, following in pairwise([*words, Word("", 0)]):
        name, equals, value = word.text.partition("=")
        said.setdefault(name, Word(value, word.line) if equals else following)
    if "--recipe" in said:
        return said["--recipe"]
    mode = _MODES.get(said["--mode"].text) if "--mode" in said else None
    if mode and "--model" in said:
        return Word(f"{said['--model'].text}_{mode}_config", said["--model"].line)
    program = _PROGRAM.fullmatch(command.program)
    if any(word.text.partition("=")[0] in flag_kinds() for word in words):
        program = None  # Megatron-LM's, under any name
    name = f"{program[2]}_{'pretrain' if program[1] == 'pretrain' else 'sft'}_config" if program else ""
    line = next((word.line for word in (*command.before, *words)), 0)
    return Word(name, line) if name in _recipes() else None


def _names_recipe(command: Command) -> bool:
    """Return whether a command names a known recipe, or passes a name to the program for recipes."""
    word = recipe_named(command)
    return word is not None and (word.text in _recipes() or command.program.endswith("run_recipe.py"))


def _recipe_of(command: Command, overrides: Overrides) -> tuple[Recipe | None, list[Override]]:
    """Return the recipe of a command, and its values as the first of the overrides.

    Raises:
        InvalidProblemError: the recipe is unknown, or its training is not priced.
    """
    word = recipe_named(command)
    if word is None or (word.text not in _recipes() and overrides.model is not None):
        return None, []
    found = _recipes().get(word.text)
    if word.unknown is not None:
        raise InvalidProblemError([unknown_fault("--recipe", word.unknown, word.line)])
    if found is None:
        near = difflib.get_close_matches(word.text, _recipes(), n=1)
        raise InvalidProblemError.of(
            "--recipe",
            f"line {word.line}: {shown(word.text)} is not a known recipe of Megatron-Bridge",
            allowed="a recipe of its llama, qwen, deepseek, gpt_oss …, or --model next to the overrides",
            nearest=near[0] if near else None,
        )
    for option, following in pairwise([*(one.text for one in command.words), ""]):
        name, _, value = option.replace("_", "-").partition("=")
        scheme = (value or following).lower()
        if name not in _ADAPTER_OPTIONS or scheme not in _ADAPTERS or isinstance(found.peft, str):
            continue
        if found.peft is None:
            why = f"line {word.line}: {name} {scheme} does nothing: {found.name} trains all weights"
            raise InvalidProblemError.of("--recipe", why, allowed="a recipe with peft in its name")
        found = replace(found, peft={**found.peft, "scheme": scheme})
    return found, [(key, text_of(value), word.line) for key, value in found.values.items()]


def _require_said(values: Sequence[Override], own: Sequence[Override], recipe: Recipe | None) -> None:
    """Refuse values that a recipe computes and the command does not set.

    Raises:
        InvalidProblemError: there is such a value; reported on the line of the recipe.
    """
    said = {key for key, _, _ in own}
    for key, text, line in values:
        if text == _COMPUTED and key not in said and recipe is not None:
            raise InvalidProblemError.of(
                key,
                f"line {line}: {recipe.name} computes it, and the command does not state it",
                allowed=f"{key}=… in the command",
            )


_FILE = "--config-file"  # with values between the recipe's and the command's


def _of_its_file(source: Source, command: Command) -> list[Override]:
    """Return the overrides in the YAML that a command names.

    Raises:
        InvalidProblemError: the file is missing, or only a running shell knows its name.
    """
    found: list[Override] = []
    for word, following in pairwise([*command.words, Word("", 0)]):
        name, equals, value = word.text.partition("=")
        if name.replace("_", "-") != _FILE:
            continue
        named = Word(value if equals else following.text, word.line)
        if named.unknown is not None:
            raise InvalidProblemError([unknown_fault(name, named.unknown, word.line)])
        require_beside(source, source, named)
        base = named.text.rpartition("/")[2]
        found += [(key, text_of(one.value), one.line) for key, one in document_of(source.at(base)).items()]
    return found


def _list_others(given: Given, words: Sequence[Word]) -> None:
    for word, following in pairwise([*words, Word("--", 0)]):
        name, equals, value = word.text.partition("=")
        known = (*_NAMING, *_long_options(), *_ADAPTER_OPTIONS, _FILE)
        if name.startswith("--") and name.replace("_", "-") not in {one.replace("_", "-") for one in known}:
            text = value if equals else "true" if following.text.startswith("--") else following.text
            given.leave(name[:64], name, Value((text,), word.line))


def _overrides(words: Sequence[Word]) -> list[Override]:
    if (fault := unknown_arguments(words)) is not None:
        raise fault
    found, options = [], {**_options(), **_long_options()}
    for at, word in enumerate(words):
        key, equals, value = word.text.partition("=")
        if key in options:
            following = words[at + 1].text if at + 1 < len(words) else ""
            found.append((options[key], value if equals else following, word.line))
        elif (equals or key.startswith("~")) and not key.startswith("--"):
            found.append((key.lstrip("+"), value, word.line))
    return found


_LEAST_NAMES = 2
_PARTS = tuple(f"model.{name}" for name in BRIDGE_PARTS.values())
_READ = ("model.", "train.", "ddp.", "dist.", "optimizer.", "checkpoint.")  # with Megatron's own names
_TAKEN_APART = (*_LENGTHS, _DDP)
_LAYERS_ARE_AWAY, _LAYERS_AWAY = "model.cpu_offloading", "model.cpu_offloading_num_layers"
_WRITTEN_OVER = ("mixed_precision", "comm_overlap")  # sections that are read after the others


def _recognises(source: Source) -> bool:
    if source.is_script:
        commands = commands_of(readable_script(source))
        named = any(_names_recipe(command) for command in commands)
        return named or best(commands, _is_override)[1] >= _LEAST_NAMES
    if source.suffix not in (".yaml", ".yml"):
        return False
    return sum(_is_override(f"{name}=") for name in looks_like_document(source)) >= _LEAST_NAMES


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    given, known = Given(), known_of(source, overrides)
    world, recipe = known.world, None
    if source.is_script:
        script = script_of(source, overrides)
        commands = commands_of(script)
        named = [one for one in commands if _names_recipe(one)]
        command, count = chosen(
            named or commands,
            _is_said if named else _is_override,
            overrides,
            source.name,
            all_train=bool(named),
        )
        if count < _LEAST_NAMES and not named:
            raise refused(f"{source.name[:64]}: no overrides of a Megatron-Bridge recipe are in it")
        recipe, settings = _recipe_of(command, overrides)
        own = [*_of_its_file(source, command), *_overrides(command.words)]
        if any(key in _LENGTHS for key, _, _ in own):  # the recipe's model takes it, too
            settings = [one for one in settings if one[0] != "model.seq_length"]
        given.note(*script.notes)
        started = world_of(source.text, script, command)
        world = started if started.num_gpus else replace(world, lacking=started.lacking)
        _require_said(settings, own, recipe)
        _list_others(given, command.words)
        settings += own
    else:
        settings = [(key, text_of(one.value), one.line) for key, one in document_of(source).items()]
    for key, _, line in [one for one in settings if overrides.ignores(one[0])]:
        given.note(f"line {line}: {key[:64]} is ignored (--ignore)")
    settings = [one for one in settings if not overrides.ignores(one[0])]
    _take_all(given, settings)
    if recipe is not None:
        given.note(f"values that the command leaves out come from the Megatron-Bridge recipe {recipe.name}")
    overrides = replace(overrides, model=_model(given, known, recipe), num_gpus=known.num_gpus())
    found = launch_file("megatron-bridge", given, overrides, world, name="launch file")
    values = {key: (text, line) for key, text, line in settings}
    found = adapted(found, recipe.peft if recipe is not None else None, values)
    frozen = (part for part, name in BRIDGE_PARTS.items() if _is_on(values.get(f"model.{name}")))
    return with_images(found, known, ImageSettings(frozen=_frozen(found, tuple(frozen))))


def _is_on(found: tuple[str, int] | None) -> bool:
    return found is not None and found[0].lower() in ("true", "1", "yes")


def _frozen(found: LaunchFile, parts: tuple[FrozenPart, ...]) -> tuple[FrozenPart, ...]:
    """Return the parts that are frozen, of adapters those too that a recipe of them leaves alone.

    Raises:
        InvalidProblemError: the language model is frozen, and the model has nothing else.
    """
    if found.model.tower is None and "language" in parts:
        raise InvalidProblemError.of(
            f"model.{BRIDGE_PARTS['language']}", "nothing is left to train", allowed="false"
        )
    return parts


MEGATRON_BRIDGE_READER = Reader(name="megatron-bridge", recognises=_recognises, read=_read)


@lru_cache(maxsize=1024)
def _is_override(text: str) -> bool:
    key, equals, _ = text.lstrip("+").partition("=")
    return (
        bool(equals) and key in flag_names("megatron-bridge") and flag_of(key.partition(".")[2]) is not None
    )


def _is_said(text: str) -> bool:
    options = (*_NAMING, *_options(), *_long_options())
    return text.partition("=")[0] in options or _is_override(text)


def _take_all(given: Given, settings: Iterable[Override]) -> None:
    """Take overrides as flags of Megatron-LM; ignore keys without effect and list unknown ones."""
    values, names = {key: (text, line) for key, text, line in settings}, flag_names("megatron-bridge")
    _refuse_deleted(given, values)
    for key, (text, line) in values.items():
        unknown = unknown_in(text)
        if unknown is not None and not names.is_free(key):
            given.faults.append(unknown_fault(key[:64], unknown, line))
    given.stop()
    _take_out(values)
    _take_layers_away(given, values)
    for key, (text, line) in values.items():
        name = key.partition(".")[2] or key
        if key != _DDP and _is_written_over(key, values):
            given.note(f"line {line}: {key[:64]} does nothing: mixed_precision is written over it")
        elif key.startswith(_READ) and key in names and flag_of(name) is not None:
            take(given, name, text, line, called=key)
        elif (
            key not in _TAKEN_APART
            and (key.partition(".")[0] not in _WRITTEN_OVER or _is_strange(key))
            and not names.is_ignored(key)
            and not names.is_default(key, text.replace("null", "none"))
        ):
            flag = f"--{name.replace('_', '-')}"
            given.others[flag] = Value((text,), line)
            given.leave(key[:64], flag, Value((text,), line))
    given.refuse_slips(core_names(), [name for name in names if name.startswith((*_READ, *_LENGTHS))])
    _take_overlaps(given, values)
    _take_length(given, values)
    if given.has("kv-lora-rank") and not given.has("multi-latent-attention"):
        if "--multi-latent-attention" in given.called:
            given.fault(
                "kv-lora-rank", "applies to latent attention, but model.multi_latent_attention is off"
            )
        given.take("--multi-latent-attention", Value((), 0), called="model.kv_lora_rank")
    take_precision(given, values)
    take_usual(given)
    given.stop()


def _take_layers_away(given: Given, values: dict[str, tuple[str, int]]) -> None:
    """Take the switch of layers on the hosts, which Megatron-LM alone derives from their number."""
    text, line = values.pop(_LAYERS_ARE_AWAY, ("false", 0))
    if text.lower() not in ("true", "false", "1", "0"):
        given.refuse(_LAYERS_ARE_AWAY, f"line {line}: is neither true nor false", allowed="true, false")
    away = text.lower() in ("true", "1")
    if away and _LAYERS_AWAY not in values:
        given.note(f"{_LAYERS_ARE_AWAY} does nothing without {_LAYERS_AWAY}")
    elif not away and _LAYERS_AWAY in values:
        del values[_LAYERS_AWAY]
        given.note(f"{_LAYERS_AWAY} does nothing without {_LAYERS_ARE_AWAY}=true")


def _take_out(values: dict[str, tuple[str, int]]) -> None:
    """Take out what others read: adapters (``read_adapters``) and frozen parts of a model with a tower."""
    for key in [key for key in values if key.partition(".")[0] == SECTION or key in _PARTS]:
        del values[key]


def _refuse_deleted(given: Given, values: dict[str, tuple[str, int]]) -> None:
    """Take out the keys that a command deletes (``~model.x``), and record a fault for those that count."""
    for key in [key for key in values if key.startswith("~")]:
        line, plain = values.pop(key)[1], key[1:64]
        if not flag_names("megatron-bridge").is_free(plain):
            given.refuse(
                key[:64],
                f"line {line}: does nothing: Hydra drops the key, and the recipe's value stays",
                allowed=f"{plain}=VALUE, or leave it out",
            )


def _is_strange(key: str) -> bool:
    """Return whether a key's section overwrites the model's, and the key is not a name in it."""
    section, dot, name = key.partition(".")
    own = key in flag_names("megatron-bridge") or flag_of(name) is not None
    return bool(dot) and section == "mixed_precision" and not name.startswith("_") and not own


def _take_overlaps(given: Given, values: dict[str, tuple[str, int]]) -> None:
    """Apply ``comm_overlap``, which overrides the model and ddp (``CommOverlapConfig.setup``)."""
    for key, (text, line) in values.items():
        section, _, name = key.partition(".")
        if section != "comm_overlap" or text.lower() == "null":
            continue
        flag = flag_of(name)
        if flag is None and not flag_names("megatron-bridge").is_free(key):
            given.leave(key[:64], f"--{name.replace('_', '-')}", Value((text,), line))
        elif flag is not None:
            given.values.pop(flag, None)
            take(given, name, text, line, called=key)


def _take_length(given: Given, values: dict[str, tuple[str, int]]) -> None:
    text, line = next((values[name] for name in _LENGTHS if name in values), ("", 0))
    if text and not given.has("seq-length"):
        take(given, "seq_length", text, line, called="dataset.sequence_length")
    elif text and text != given.word("seq-length"):
        given.fault("seq-length", f"is not the dataset's sequence_length {text[:20]} of line {line}")


def _model(given: Given, known: Known, recipe: Recipe | None) -> ModelSpec | None:
    """Return the supplied model, or the recipe's; None if the overrides state the shape."""
    if known.header.model is not None and known.header.model.tower is not None:
        return known.overrides.model or known.header.model
    if all(given.has(name) for name in ("num-layers", "hidden-size", "num-attention-heads", "vocab-size")):
        return known.overrides.model
    if recipe is not None and recipe.hub_id in ("", _COMPUTED) and known.overrides.model is None:
        raise InvalidProblemError.of(
            "/model", f"{recipe.name} makes its model itself", allowed="--model with that model"
        )
    return known.model(Word(recipe.hub_id, 0) if recipe is not None and recipe.hub_id else None)
