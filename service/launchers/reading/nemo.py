"""Reader of YAML of NeMo 1 and its launcher (``model:`` and ``trainer:``), with interpolations.

Keys and defaults: NeMo 1.23, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml, and OmegaConf's
``${…}``: names of the file, relative ones, ``oc.env``, and NeMo's ``multiply`` and ``divide_ceil``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.flags import flag_names
from meshwright.service.launchers.reading.base import LaunchFile, Source, Told, passed_by, refused
from meshwright.service.launchers.reading.commands import Command, World, commands_of, script_of
from meshwright.service.launchers.reading.documents import Found, document_of, looks_like_document
from meshwright.service.launchers.reading.given import Given, Value
from meshwright.service.launchers.reading.known import known_of
from meshwright.service.launchers.reading.megatron_core import flag_of, take, take_usual, text_of
from meshwright.service.launchers.reading.megatron_lm import launch_file
from meshwright.service.launchers.reading.shell_values import (
    unknown_arguments,
    unknown_fault,
    unknown_in,
)

_OWN = ("model.encoder_seq_length", "model.mcore_gpt", "model.micro_batch_size", "model.data.seq_length",
        "trainer.num_nodes", "model.megatron_amp_O2")  # fmt: skip
_INNER = re.compile(r"\$\{([^${}]*)\}")
_MAX_STEPS = 64
_RENAMED = {
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "rotary_percentage": "rotary_percent",
    "num_moe_experts": "num_moe_experts",
    "encoder_seq_length": "seq_length",
    "use_flash_attention": "use_flash_attn",
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "qkv_bias": "add_qkv_bias",
    "override_vocab_size": "vocab_size",
}
_LEFT_OUT = ("bias", "activation", "normalization", "optim", "tokenizer", "data", "precision", "fp8",
             "overlap_p2p_comm", "rampup_batch_size", "attention_type", "seed", "multiquery")  # fmt: skip
_GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")
_ACTIVATIONS = ("gelu", "fast-swiglu", "swiglu", "squared-relu", "openai-gelu")
_ADAMS = ("adam", "adamw", "fused_adam", "megatron_fused_adam")
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "fp16": "fp16"}
_ASKED = re.compile(r"oc\.env:\s*(\w+)\s*[}]")  # the exported variable
_NOT_GPT = (
    "model.encoder.", "model.decoder.", "model.vision", "model.mm_cfg", "model.retro", "model.unet_config",
    "model.restore_from_path", "model.mamba", "model.hybrid", "model.hyena",
    "model.virtual_prompt_style", "model.language_model_path", "model.peft.peft_scheme",  # frozen ones
    "model.src_language", "model.tgt_language", "model.pipeline_model_parallel_split_rank",  # translators
    "model.activations_checkpoint_recurrent",  # only in files of Griffin and Mamba
)  # fmt: skip


class NemoReader:
    """Reader of NeMo's GPT training configurations."""

    name = "nemo"

    def recognises(self, source: Source) -> bool:
        """Return whether a YAML has NeMo's own sections, or a script starts one of NeMo's launcher's."""
        if source.is_script:
            return _started(source, Told()) is not None
        names = looks_like_document(source) if source.suffix in (".yaml", ".yml") else {}
        return sum(name in names for name in _OWN) > 1

    def read(self, source: Source, told: Told) -> LaunchFile:
        """Return the run that the file configures; it is priced as Megatron-Bridge's, NeMo's successor.

        Raises:
            InvalidProblemError: a value cannot be read, contradicts another, or depends on a missing one.
        """
        known = known_of(source, told)
        started = _started(source, told) if source.is_script else None
        values = document_of(source, by_omegaconf=True) if started is None else _overridden(source, started)
        document = _interpolated(values, told.variables)
        for name in document:
            if name.startswith(_NOT_GPT) and document[name].value not in (None, "", "null"):
                why = "only NeMo's GPT models are read, trained whole and of the shape that the file states"
                raise InvalidProblemError.of(name, f"line {document[name].line}: {why}", allowed="null")
        given, fsdp = Given(), document.get("model.fsdp")
        if fsdp is not None and fsdp.value is True:
            message = f"line {fsdp.line}: torch FSDP under NeMo is not priced"
            raise InvalidProblemError.of("model.fsdp", message, allowed="false")
        for name in [name for name in document if passed_by(told, name)]:
            given.note(f"line {document.pop(name).line}: {name} is passed by, as told (--ignore)")
        for name, found in document.items():
            section, _, key = name.partition(".")
            if section == "model" and key not in _LEFT_OUT and "." not in key:
                _take(given, _RENAMED.get(key, key), name, found)
        _take_model(given, document)
        _take_run(given, document)
        if not given.has("seq-length"):
            length = document.get("model.data.seq_length")
            if length is not None:
                take(
                    given, "seq_length", text_of(length.value), length.line, called="model.data.seq_length"
                )
        names = flag_names("nemo")
        _list_unknown(given, document)
        said = {name: document[name].value if name in document else "" for name in given.unread}
        given.unread = [
            name
            for name, value in said.items()
            if not (names.is_free(name) or names.is_default(name, value))
        ]
        take_usual(given)
        given.stop()
        world = World(_size(document, "trainer.num_nodes"), _size(document, "trainer.devices"))
        told = replace(known.told, num_gpus=known.told.num_gpus)
        return launch_file("megatron-bridge", given, told, world, name="launch file", include=source.other)


# --------------------------------------------------------------------------------------------------
# NeMo's launcher: ``main.py training=gpt3/5b training.model.micro_batch_size=2``, by Hydra.


_PROGRAM, _CHOICE, _SECTION = "main.py", "training=", "training."


def _started(source: Source, told: Told) -> Command | None:
    """Return the command of a script that starts NeMo's launcher on a training; None without one."""
    try:
        commands = commands_of(script_of(source, told))
    except InvalidProblemError:
        return None
    started = [one for one in commands if one.program.rpartition("/")[2] == _PROGRAM]
    return next((one for one in started if any(w.text.startswith(_CHOICE) for w in one.words)), None)


def _overridden(source: Source, command: Command) -> dict[str, Found]:
    """Return the values of the chosen configuration, overridden by the command's.

    Raises:
        InvalidProblemError: the configuration is missing, or several commands differ.
    """
    others = {tuple(word.text for word in one.words) for one in _all_started(source)}
    if len(others) > 1:
        raise refused(f"{source.name[:64]}: it starts {len(others)} trainings that differ",
                      allowed="a script with one of them")  # fmt: skip
    chosen = next(word for word in command.words if word.text.startswith(_CHOICE))
    name = f"{chosen.text.removeprefix(_CHOICE)}.yaml"
    text = source.other(name)
    if text is None:
        message = f"line {chosen.line} of {source.name[:64]}: conf/training/{shown(name)} is not beside it"
        raise refused(message, allowed="that file of NeMo's launcher too, or its folder")
    base = name.rpartition("/")[2]
    values = dict(document_of(Source(name=base, text=text), by_omegaconf=True))
    if (fault := unknown_arguments(command.words)) is not None:
        raise fault
    for word in command.words:
        key, equals, value = word.text.lstrip("+").partition("=")
        if word.text.startswith("~"):
            values.pop(word.text.lstrip("~").partition("=")[0].removeprefix(_SECTION), None)
        elif equals and key.startswith(_SECTION):
            plain = value.strip("'\"")
            found = None if plain.lower() in ("null", "none") else plain
            values[key.removeprefix(_SECTION)] = Found(found, word.line)
    return values


def _all_started(source: Source) -> list[Command]:
    """Return all commands that start NeMo's launcher."""
    commands = commands_of(script_of(source, Told(variables=source.variables)))
    return [one for one in commands if one.program.rpartition("/")[2] == _PROGRAM]


# --------------------------------------------------------------------------------------------------
# The values of a configuration.


def _take(given: Given, key: str, called: str, found: Found) -> None:
    """Take one key of the model."""
    text = text_of(found.value)
    if found.value is None or flag_of(key) is None:
        if found.value is not None:
            given.leave(called[:64], f"--{key.replace('_', '-')}", Value((text,), found.line))
        return
    if "${" in text:
        asked = _ASKED.search(text)
        raise InvalidProblemError.of(
            called,
            f"line {found.line}: depends on {shown(text)}, which the file does not define",
            allowed=f"--var {asked[1]}=…, or the value in the file" if asked else "the value in the file",
        )
    take(given, key, text, found.line, called=called)


def _list_unknown(given: Given, document: Mapping[str, Found]) -> None:
    """List the names in all sections that NeMo does not have."""
    names, taken = flag_names("nemo"), set(given.called.values())
    for name, found in document.items():
        if found.value is not None and not (name in names or names.is_free(name) or name in taken):
            given.leave(name[:64], f"--{name}", Value((text_of(found.value),), found.line))


def _take_model(given: Given, document: Mapping[str, Found]) -> None:
    """Take NeMo's own words for activation, norm, biases and tokenizer."""
    activation = _text(document, "model.activation", "gelu").lower()
    line = _line(document, "model.activation")
    if activation in ("swiglu", "fast-swiglu"):
        given.take("--swiglu", Value((), line), called="model.activation")
    elif activation == "squared-relu":
        given.take("--squared-relu", Value((), line), called="model.activation")
    elif activation not in _ACTIVATIONS:
        message = f"line {line}: {shown(activation)} is not priced"
        raise InvalidProblemError.of("model.activation", message, allowed=", ".join(_ACTIVATIONS))
    norm = _text(document, "model.normalization", "layernorm").lower()
    if norm == "rmsnorm":
        given.take("--normalization", Value(("RMSNorm",), 0), called="model.normalization")
    elif norm == "layernorm1p":
        given.take("--apply-layernorm-1p", Value((), 0), called="model.normalization")
    if _text(document, "model.bias", "true").lower() == "false":
        given.take("--disable-bias-linear", Value((), 0), called="model.bias")
    if _text(document, "model.share_embeddings_and_output_weights", "true").lower() == "false":
        given.take("--untie-embeddings-and-output-weights", Value((), 0))
    _take_tokenizer(given, document)


def _take_tokenizer(given: Given, document: Mapping[str, Found]) -> None:
    kind, model = _text(document, "model.tokenizer.type", ""), _text(document, "model.tokenizer.model", "")
    if _text(document, "model.tokenizer.library", "") == "sentencepiece" and "llama" in model:
        kind = "Llama2Tokenizer"
    given.others["--tokenizer-type"] = Value((kind,), 0)
    given.others["--tokenizer-model"] = Value((model or kind,), 0)


def _take_run(given: Given, document: Mapping[str, Found]) -> None:
    """Take precision, optimizer and overlaps."""
    precision = _text(document, "trainer.precision", "32")
    line = _line(document, "trainer.precision")
    if precision not in _PRECISIONS:
        message = f"line {line}: {shown(precision)} is not priced"
        raise InvalidProblemError.of("trainer.precision", message, allowed=", ".join(_PRECISIONS))
    given.take(f"--{_PRECISIONS[precision]}", Value((), line), called="trainer.precision")
    _flag(document, "model.mcore_gpt")
    if _flag(document, "model.fp8"):
        hybrid = _flag(document, "model.fp8_hybrid")
        given.take("--fp8-format", Value(("hybrid" if hybrid else "e4m3",), 0), called="model.fp8")
    optimizer = _text(document, "model.optim.name", "")
    if optimizer not in ("", *_ADAMS, *_SHARDED):
        message = f"line {_line(document, 'model.optim.name')}: {shown(optimizer)} is not priced"
        raise InvalidProblemError.of("model.optim.name", message, allowed=", ".join((*_ADAMS, *_SHARDED)))
    if optimizer in _SHARDED:
        given.take("--use-distributed-optimizer", Value((), 0), called="model.optim.name")
        # Megatron-Core's own optimizer: megatron_gpt_model.py, grad_reduce_in_fp32
        synced = _text(document, "model.optim.grad_sync_dtype", "fp32")
        if optimizer == _SHARDED[1] and synced != "fp32":
            given.take("--grad-reduce-in-bf16", Value((), 0), called="model.optim.grad_sync_dtype")
        if _flag(document, "model.optim.overlap_grad_sync"):
            given.take("--overlap-grad-reduce", Value((), 0), called="model.optim.overlap_grad_sync")
            if _flag(document, "model.optim.overlap_param_sync"):
                given.take("--overlap-param-gather", Value((), 0), called="model.optim.overlap_param_sync")


def _text(document: Mapping[str, Found], name: str, default: str) -> str:
    found = document.get(name)
    if found is not None and (unknown := unknown_in(found.value)) is not None:
        raise InvalidProblemError([unknown_fault(name, unknown, found.line)])
    return default if found is None or found.value is None else str(found.value)


def _line(document: Mapping[str, Found], name: str) -> int:
    found = document.get(name)
    return found.line if found else 0


def _flag(document: Mapping[str, Found], name: str) -> bool:
    """Return whether a switch is on; false if it is not given.

    Raises:
        InvalidProblemError: its value is neither true nor false.
    """
    text = _text(document, name, "false").lower()
    if text not in ("true", "false"):
        message = f"line {_line(document, name)}: {shown(text)} is neither true nor false"
        raise InvalidProblemError.of(name, message, allowed="true, false")
    return text == "true"


def _size(document: Mapping[str, Found], name: str) -> int | None:
    """Return a number of nodes or devices; None if the trainer sets it.

    Raises:
        InvalidProblemError: it is not such a number.
    """
    found = document.get(name)
    text = _text(document, name, "auto")
    if (size := _count(found)) is None and text not in ("auto", "-1"):
        message = f"line {_line(document, name)}: {shown(text)} is not a whole number in range"
        raise InvalidProblemError.of(name, message, allowed="1 to 99999")
    return size


def _count(found: Found | None) -> int | None:
    """Return a number of nodes or devices."""
    text = "" if found is None else str(found.value)
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 6 and int(text) else None  # noqa: PLR2004


# --------------------------------------------------------------------------------------------------
# OmegaConf's interpolations.


def _interpolated(document: Mapping[str, Found], variables: Mapping[str, str]) -> dict[str, Found]:
    """Replace ``${…}`` by values of the file or exported variables; unknown ones stay."""
    return {
        name: Found(_resolved(found.value, name, document, variables), found.line)
        if isinstance(found.value, str) and "${" in found.value
        else found
        for name, found in document.items()
    }


def _resolved(value: str, name: str, document: Mapping[str, Found], variables: Mapping[str, str]) -> object:
    """Return one value with its interpolations; unknown ones stay."""
    for _ in range(_MAX_STEPS):
        for match in _INNER.finditer(value):
            found = _looked_up(match[1].strip(), name, document, variables)
            if found is not None:
                break
        else:
            return value
        if match.group() == value and not isinstance(found, str):
            return found
        value = value[: match.start()] + str(found) + value[match.end() :]
        if "${" not in value:
            return int(value) if value.isdecimal() and len(value) < 12 else value  # noqa: PLR2004
    return value


def _looked_up(
    text: str, name: str, document: Mapping[str, Found], variables: Mapping[str, str]
) -> object | None:
    """Return the value of an expression in braces: a name, ``oc.env:NAME,default``, ``multiply:a,b``."""
    resolver, colon, rest = text.partition(":")
    if not colon or resolver == "oc.decode":
        return rest.strip("'\"") if colon else _named(text, name, document)
    words = [word.strip() for word in rest.split(",")]
    if resolver == "oc.env":
        return variables.get(words[0], words[1].strip("'\"") if len(words) > 1 else None)
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < 12]  # noqa: PLR2004
    if len(numbers) != len(words) or len(numbers) != 2:  # noqa: PLR2004 - both of them
        return None
    first, second = numbers
    if resolver == "multiply":
        return first * second
    if resolver in ("divide_ceil", "divide_floor") and second:
        return -(-first // second) if resolver == "divide_ceil" else first // second
    return None


def _named(text: str, name: str, document: Mapping[str, Found]) -> object | None:
    """Return the value of a name: absolute, or relative (a dot: its own section, two: the parent)."""
    dots = len(text) - len(text.lstrip("."))
    rest = text.lstrip(".")
    if dots:
        parents = name.split(".")[:-dots]
        full = ".".join([*parents, rest])
    else:
        full = rest.removeprefix("training.")
    found = document.get(full)
    return None if found is None else found.value
