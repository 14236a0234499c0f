"""Files without a reader, recognised by their names: other trainers, clusters, unpriced trainings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from meshwright.launchers.flags import flags_of
from meshwright.launchers.reading.base import WHOLE_FILE, Overrides, Source, refused
from meshwright.launchers.reading.commands import (
    HANDLERS,
    Command,
    commands_of,
    holds_file,
    other_use,
    require_training,
    script_of,
    started_program,
)
from meshwright.launchers.reading.documents import looks_like_document
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.own_defaults import beyond_arguments
from meshwright.launchers.reading.preferences import kind_named
from meshwright.launchers.templates import data
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.shell.values import Script, Word

_SIZES = "--config, or predict --model with --set tensor_parallel_size=… for each of its sizes"
_NEMO_1_STEP = f"a Megatron-Bridge recipe of the same training, or {_SIZES}"
_EXIT = "--var NAME=… for what it asks for, or meshwright capture -- bash …"
_PYTHON = re.compile(
    r"^\s*(?:from|import)\s+(nemo_run|nemo\.collections|nemo\.lightning|megatron\.bridge)", re.MULTILINE
)
_OF_GRPO = re.compile(r"^\s*from\s+trl\b.*\bGRPO(?:Config|Trainer)\b", re.MULTILINE)
_NEMO, _NEMO_1, _BRIDGE = "a recipe of NeMo 2", "a run of NeMo 1", "a recipe of Megatron-Bridge"
_AS_ARGUMENTS = (
    "a command with the same as arguments (trl sft --use_peft --lora_r 16 …), or predict --model"
)
_PYTHON_NAMES: Mapping[str, str] = {
    "megatron": _BRIDGE, "nemo": _NEMO, "nemo_run": _NEMO,
}  # fmt: skip
_STARTER = (
    "the script that starts it (torchrun --nproc_per_node=8 …), its recipe's name with overrides, or "
    "meshwright capture -- python …"
)

_STEPS: Mapping[str, str] = {
    _NEMO: _SIZES,
    _BRIDGE: (
        "run_recipe.py --recipe NAME with its values (model.tensor_model_parallel_size=4), or meshwright "
        "capture -- python …"
    ),
}


def foreign(source: Source) -> Iterator[FieldError]:
    """Yield the fault of a file without a reader, with the next step; nothing if it is unknown."""
    if source.is_script:
        try:
            script = script_of(source, Overrides())
            if script.stopped > 0:
                yield _exits(source.name, script)
            for command in commands_of(script):
                require_training(command, source.name)
            yield from _of_others(source, script)
        except InvalidProblemError as fault:
            yield from fault.errors
    elif source.suffix == ".py":
        found = _PYTHON.search(source.text)
        what = _PYTHON_NAMES[found[1].partition(".")[0]] if found else "a Python program"
        word, line = beyond_arguments(source.text)
        if _OF_GRPO.search(source.text):
            message = f"{shown(source.name)} is a recipe of TRL's GRPO, whose roles are priced together"
            step = f"meshwright explain --from-args {shown(source.name)}"
            yield FieldError(pointer=WHOLE_FILE, message=message, allowed=step)
        elif word and not found:
            where = f"line {line} of {shown(source.name)}"
            message = f"{where}: {word} sets in code what no argument says. Meshwright can't read it"
            yield FieldError(pointer=WHOLE_FILE, message=message, allowed=_AS_ARGUMENTS)
        else:
            yield _fault(source, what, _STEPS.get(what, _STARTER))
    else:
        names = looks_like_document(source)
        steps = {"sizes": _SIZES, "nemo_1": _NEMO_1_STEP}
        for one in data("reading/programs.yaml")["documents"]:
            held = [  # a mark that ends with a dot is a section
                any(name == mark or (mark[-1:] == "." and name.startswith(mark)) for name in names)
                for mark in one.get("all") or one["any"]
            ]
            if all(held) if "all" in one else any(held):
                what, step = one["what"], steps.get(one["step"], one["step"])
                yield _fault(source, what if " " in what else f"{what} configuration", step)
                return


def _of_others(source: Source, script: Script) -> Iterator[FieldError]:
    for words in script.commands:
        text = " ".join(word.text for word in words[:_FIRST_WORDS])
        what = next((what for pattern, what in _started() if pattern.search(text)), None)
        if what is not None:
            message = (
                f"line {words[0].line} of {shown(source.name)} starts {what}. Meshwright can't read it"
            )
            step = _NEMO_1_STEP if what == _NEMO_1 else _SIZES
            yield FieldError(pointer=WHOLE_FILE, message=message, allowed=step)
            return


@cache
def _started() -> list[tuple[re.Pattern[str], str]]:
    rows = data("reading/programs.yaml")["started"]
    return [(re.compile(rf"(?:^|[\s/]){words}(?=\s|$)"), what) for words, what in rows]


_FIRST_WORDS = 24  # including those of the launcher


def _fault(source: Source, what: str, step: str) -> FieldError:
    return FieldError(
        pointer=WHOLE_FILE,
        message=f"{shown(source.name)} is {what}. Meshwright can't read it",
        allowed=step,
    )


# --------------------------------------------------------------------------------------------------
# Trainings on transformers' Trainer that no plan describes, by their arguments and programs.


_ON_PREFERENCES = "training on preferences or rewards is not supported"


@cache
def preferences() -> tuple[str, ...]:
    """Return the arguments of trainers on preferences and rewards alone (TRL, ms-swift)."""
    return tuple(name for name, flag in flags_of("transformers").items() if flag.why == _ON_PREFERENCES)


PREFERENCE_LOSSES = (  # of ``loss_type``: TRL 1.16.0, configurations of its preference trainers
    "sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard",
    "aot", "aot_pair", "aot_unpaired", "discopop", "apo_zero", "apo_down", "apo_zero_unpaired", "kto",
    "simpo", "grpo", "dr_grpo", "dapo", "bnpo",
)  # fmt: skip
SEES = re.compile(
    r"(?:^|[-_.\d])(?:vl|vision|omni|audio|llava|paligemma|internvl|pixtral)(?=$|[-_.\d])", re.IGNORECASE
)
_SEEING_PROGRAM = re.compile(
    r"(?:^|[-_./])(?:\w*(?:llava|chatgpt_v)|vlm?|mllm|vision|visual|omni|audio|speech|video|multi_?modal|"
    r"internvl|asr|tts|whisper|clip|vqa|ocr)(?=$|[-_./\d])",
    re.IGNORECASE,
)
# transformers' examples, which train only if requested (examples/pytorch).
_ITS_EXAMPLES = re.compile(r"(?:^|/)run_(?:clm|mlm|plm|fim)\.py$")


_SPLITS = re.compile(r"split_batches\W+true", re.IGNORECASE)


def refuse_unpriced(fields: Fields, program: str = "", *, sees: bool = False) -> None:
    """Refuse trainings that no plan describes.

    Args:
        fields: the arguments.
        program: the program that takes them; empty if only a file of arguments is read.
        sees: whether the model's tower is known, which the program trains too.

    Raises:
        InvalidProblemError: the training is not priced, or trains nothing.
    """
    fields.refuse_unpriced()
    inner = fields.peek("accelerator_config.split_batches")
    if _SPLITS.search(f"{fields.peek('accelerator_config')} split_batches: {inner}"):
        fields.fault("accelerator_config", "split_batches changes how many sequences a step takes")
    kind = kind_named(fields, program)
    if str(fields.raw("loss_type")) in PREFERENCE_LOSSES and kind is None:
        fields.fault("loss_type", f"cannot be read: {_ON_PREFERENCES}")
    if "ms-swift" in fields.programs:  # which trains whatever do_train is
        fields.take("do_train", "do_predict")
    else:
        _require_training(fields, program)
    if not sees and (seeing := _SEEING_PROGRAM.search(program)) is not None:
        fields.fault(
            WHOLE_FILE,
            f"{shown(program)} trains what sees or hears ({seeing[0].strip('-_./')}), which is not "
            "supported",
            allowed=_STARTER,
        )
    fields.stop()


def _require_training(fields: Fields, program: str) -> None:
    """Record a fault if the arguments only evaluate (TrainingArguments: ``do_train`` is off)."""
    predicts = fields.flag("do_predict")
    if fields.has("do_train") and not fields.flag("do_train", default=True):
        fields.fault("do_train", "is off: it trains nothing", allowed="true", nearest="true")
    elif not fields.has("do_train") and (predicts or _ITS_EXAMPLES.search(program)):
        where = " next to do_predict" if predicts else ""
        fields.fault("do_train", f"is not given{where}: it trains nothing", allowed="true")


def _exits(name: str, script: Script) -> FieldError:
    said = [one if one[0].isalpha() or one[0] == "_" else f"${one}" for one in script.tested[:4]]
    why = f", because of {' and '.join(said)}" if said else ""
    message = f"line {script.stopped} of {shown(name)}: it exits there{why}, with nothing started"
    named = next((shown(one) for one in said if one[0] != "$"), "1" if said else None)
    of_argument = " (its first argument)" if named == "1" else ""
    allowed = _EXIT
    if named is not None:
        allowed = _EXIT.replace("NAME=… for what it asks for", f"{named}=…{of_argument}")
    return FieldError(pointer=WHOLE_FILE, message=message, allowed=allowed)


def require_start(scripts: Sequence[tuple[str, Script]], started: Source) -> None:
    """Refuse a file that programs only use for something other than training.

    ``scripts``: scripts by name. Programs that print or move the file do not count.

    Raises:
        InvalidProblemError: a program generates, evaluates or converts with it, and none trains; or none is
            started at all, by scripts that merely name, look for or write the file.
    """
    base = started.name.rpartition("/")[2]
    commands = [
        (name, started_program(words))
        for name, script in scripts
        for words in script.commands
        if any(holds_file(word, base) for word in words) and words[0].text not in HANDLERS
    ]
    if commands and all(command is not None and other_use(command) for _, command in commands):
        name, first = commands[0]
        require_training(first or Command("", ()), name)
    lists = [words for _, script in scripts for words in script.commands if words[0].text not in HANDLERS]
    if scripts and not commands and not any(map(_may_start, lists)):
        for name, script in scripts:
            if script.stopped > 0:
                raise InvalidProblemError([_exits(name, script)])
        raise refused(
            f"{shown(scripts[0][0])} names {shown(base)} and starts no program",
            allowed=f"{shown(base)} alone, or the script that starts a training with it",
        )


def _may_start(words: Sequence[Word]) -> bool:
    if words[-1].text == "--version":
        return False
    command = started_program(words)
    script = bool(words[0].unknown) or any(word.text.endswith((".sh", ".sbatch")) for word in words[:2])
    return script if command is None else command.program != "venv.py"
