"""Reads overrides of a Megatron-Bridge recipe (``model.tensor_model_parallel_size=8``), or their YAML.

Keys: Megatron-Bridge 0.3.1, training/config.py (ConfigContainer), training/mixed_precision.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from profiles.errors import InvalidProblemError
from profiles.model import ModelSpec
from service.launchers.reading.base import LaunchFile, Source, Told, refused
from service.launchers.reading.commands import best, commands_of, conditional_notes, script_of, world_of
from service.launchers.reading.documents import document_of, looks_like_document
from service.launchers.reading.given import Given, Value
from service.launchers.reading.known import Known, known_of
from service.launchers.reading.megatron_bridge_precision import take_precision
from service.launchers.reading.megatron_core import CORE_NAMES, flag_of, take, take_usual, text_of
from service.launchers.reading.megatron_lm import launch_file

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
            for note in conditional_notes(script):
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
    if given.has("kv-lora-rank"):
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
