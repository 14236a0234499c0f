"""Files that no reader takes, called by their names: other trainers', a cluster's, what does not train.

Their own names tell them apart, as those of a launch file do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.service.launchers.reading.base import WHOLE_FILE, Source, Told
from meshwright.service.launchers.reading.commands import commands_of, require_training, script_of
from meshwright.service.launchers.reading.documents import looks_like_document
from meshwright.service.launchers.reading.shell_values import Script

_SIZES = "--config, or predict --model with --set tensor_parallel_size=… for each of its sizes"
_EXIT = "--var NAME=… for what it asks for, or meshwright capture -- bash …"
_SCRIPT = "the command that it starts, saved as a script"
_ALL: Callable[..., bool] = all
_ANY: Callable[..., bool] = any

# What it is, the next step, whether all names or any of them tell it; one that ends in a dot begins others.
_DOCUMENTS: tuple[tuple[str, str, Callable[..., bool], tuple[str, ...]], ...] = (
    ("a Kubernetes manifest", _SCRIPT, _ALL, ("apiVersion", "kind")),
    ("a SkyPilot task", _SCRIPT, _ALL, ("resources.", "run")),
    ("a Compose file", _SCRIPT, _ALL, ("services.",)),
    ("a model's own configuration", "--model with this file", _ALL, ("model_type", "hidden_size")),
    ("GPT-NeoX's", _SIZES, _ANY, ("pipe_parallel_size", "pipe-parallel-size", "model-parallel-size")),
    ("FlagScale's", _SIZES, _ANY, ("experiment.", "system.tensor_model_parallel_size")),
    ("Primus'", _SIZES, _ALL, ("modules.pre_trainer.framework",)),
    ("verl's", _SIZES, _ANY, ("actor_rollout_ref.", "algorithm.adv_estimator")),
    ("NeMo-RL's", _SIZES, _ANY, ("policy.megatron_cfg.", "policy.dtensor_cfg.", "grpo.")),
    ("LLM Foundry's", _SIZES, _ALL, ("max_duration", "train_loader.")),
    ("MaxText's", _SIZES, _ANY, ("base_emb_dim", "ici_fsdp_parallelism", "dcn_data_parallelism")),
    ("torchtune's", _SIZES, _ALL, ("model._component_",)),
    ("OLMo's", _SIZES, _ALL, ("model.d_model", "model.n_layers")),
    ("LitGPT's", _SIZES, _ALL, ("train.global_batch_size", "train.micro_batch_size")),
    ("NeMo 2's", _SIZES, _ANY, ("_factory_", "task._target_", "trainer._target_", "model.config._target_")),
    ("a test of Megatron-LM's", "its MODEL_ARGS as a script", _ANY, ("MODEL_ARGS.",)),
)  # fmt: skip
_PYTHON = re.compile(
    r"^\s*(?:from|import)\s+(nemo_run|nemo\.collections|nemo\.lightning|megatron\.bridge)", re.MULTILINE
)
_NEMO = "a recipe of NeMo 2"
# Commands of trainers that nobody reads, by their first words.
_STARTED = tuple(
    (re.compile(rf"(?:^|[\s/]){words}(?=\s|$)"), what)
    for words, what in (
        (r"nemo llm \S+", _NEMO), (r"-m verl\.\S+", "a run of verl"), (r"litgpt \S+", "a run of LitGPT"),
        (r"tune run", "a run of torchtune"), (r"-m openrlhf\.\S+", "a run of OpenRLHF"),
        (r"xtuner train", "a run of xtuner"),
        (r"composer (?:\S+ )*train(?:/train)?\.py", "a run of LLM Foundry"),
        (r"-m (?:MaxText|maxtext)\.\S+", "a run of MaxText"), (r"-m levanter\.\S+", "a run of levanter"),
    )
)  # fmt: skip
_PYTHON_NAMES: Mapping[str, str] = {
    "megatron": "a recipe of Megatron-Bridge", "nemo": _NEMO, "nemo_run": _NEMO,
}  # fmt: skip
_STARTER = "the script that starts it, its recipe's name with overrides, or meshwright capture -- python …"


def foreign(source: Source) -> Iterator[FieldError]:
    """What a file is that nobody reads, with the next step; nothing where that is not known."""
    if source.is_script:
        try:
            script = script_of(source, Told())
            if script.stopped > 0:
                where = f"line {script.stopped} of {shown(source.name)}"
                message = f"{where}: it exits there, with nothing started"
                yield FieldError(pointer=WHOLE_FILE, message=message, allowed=_EXIT)
            for command in commands_of(script):
                require_training(command, source.name)
            yield from _of_others(source, script)
        except InvalidProblemError as fault:
            yield from fault.errors
    elif source.suffix == ".py":
        found = _PYTHON.search(source.text)
        what = _PYTHON_NAMES[found[1].partition(".")[0]] if found else "a Python program"
        yield _fault(source, what, _SIZES if what == _NEMO else _STARTER)
    else:
        names = looks_like_document(source)
        for what, step, needed, marks in _DOCUMENTS:
            if needed(_has(names, mark) for mark in marks):
                yield _fault(source, what if " " in what else f"{what} configuration", step)
                return


def _of_others(source: Source, script: Script) -> Iterator[FieldError]:
    """The first command that starts a trainer which nobody reads."""
    for words in script.commands:
        text = " ".join(word.text for word in words[:_FIRST_WORDS])
        what = next((what for pattern, what in _STARTED if pattern.search(text)), None)
        if what is not None:
            message = f"line {words[0].line} of {shown(source.name)} starts {what}, which is not read"
            yield FieldError(pointer=WHOLE_FILE, message=message, allowed=_SIZES)
            return


_FIRST_WORDS = 24  # with those of the program that starts it


def _has(names: Mapping[str, object], mark: str) -> bool:
    """Whether a name is in the file, or one that begins so."""
    return any(name.startswith(mark) for name in names) if mark.endswith(".") else mark in names


def _fault(source: Source, what: str, step: str) -> FieldError:
    """The refusal of a whole file."""
    return FieldError(
        pointer=WHOLE_FILE, message=f"{shown(source.name)} is {what}, which is not read", allowed=step
    )
