"""Reads a Megatron-LM launch command back: a script becomes a model, a workload and a configuration.

The inverse of ``service.launchers.megatron_lm``. What the script leaves to Megatron-LM's defaults is read
as those, and the ones that cost time are named; what is not understood is listed, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.errors import FieldError, InvalidProblemError
from profiles.model import ModelSpec
from service.launchers.megatron_lm_flags import FLAGS
from service.launchers.reading.given import Given, given_flags
from service.launchers.reading.megatron_lm_mesh import configuration_of, world_of
from service.launchers.reading.megatron_lm_model import model_of
from service.launchers.reading.megatron_lm_workload import workload_of
from service.launchers.reading.shell import Include, Script, Word, read_script
from solver.plan import Configuration
from solver.problem import Workload

MAX_BYTES = 1_000_000
_BATCH = re.compile(r"^#SBATCH\s+(--?[\w-]+)[=\s]\s*(\S+)", re.MULTILINE)
_LEAST_FLAGS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """What a launch file says; without a cluster, whose GPUs no flag names."""

    model: ModelSpec
    workload: Workload
    configuration: Configuration
    num_nodes: int | None  # None: the script does not say
    gpus_per_node: int | None
    notes: tuple[str, ...]  # defaults that cost something, flags that do nothing, repeated flags
    unread: tuple[str, ...]  # flags that may matter and are not understood


def read_launch_file(
    text: str,
    *,
    name: str = "launch file",
    num_gpus: int | None = None,
    model: ModelSpec | None = None,
    variables: Mapping[str, str] | None = None,
    include: Include = lambda _: None,
) -> LaunchFile:
    """The run that a script starts.

    Args:
        text: the script, or nothing but flags.
        name: what the model is called where only flags describe it.
        num_gpus: of the cluster, for scripts that do not say how many processes start.
        model: instead of the one that the flags describe.
        variables: values of shell variables that the script expects.
        include: the text of a file that the script sources, by its base name.

    Raises:
        InvalidProblemError: what cannot be read, or contradicts itself, with line and flag.
    """
    script = _script(text, variables, include)
    words, before = _command(script)
    given = given_flags(words)
    nodes, per_node = world_of(before, dict(_BATCH.findall(text)))
    for variable, line in _conditional(script):
        given.notes.append(f"line {line}: {variable} is set under a condition: its last value is read")
    shape = model or model_of(given, name)
    if model is not None:
        _agree(given, model)
    world = nodes * per_node if nodes and per_node else num_gpus
    workload = workload_of(given)
    configuration = configuration_of(given, shape, workload, world)
    given.stop()
    return LaunchFile(
        model=shape,
        workload=workload,
        configuration=configuration,
        num_nodes=nodes,
        gpus_per_node=per_node,
        notes=tuple(given.notes),
        unread=tuple(given.unread),
    )


def _script(text: str, variables: Mapping[str, str] | None, include: Include) -> Script:
    """The script's commands and variables."""
    if len(text) > MAX_BYTES:
        raise InvalidProblemError.of("--from-args", "the file is too big", allowed=f"{MAX_BYTES} bytes")
    try:
        return read_script(text, variables, include)
    except ValueError as fault:
        raise InvalidProblemError.of("--from-args", f"{fault}"[:200]) from None
    except RecursionError:
        raise InvalidProblemError.of("--from-args", "the script is nested too deeply") from None


def _command(script: Script) -> tuple[Sequence[Word], Sequence[Word]]:
    """The words behind the training script's name, and those before it.

    Without a command that starts a ``.py`` file, the flags that stand in variables or alone.

    Raises:
        InvalidProblemError: there are no flags of Megatron-LM.
    """
    found: list[tuple[int, Sequence[Word], Sequence[Word]]] = []
    for command in script.commands:
        at = next((i for i, word in enumerate(command) if word.text.endswith(".py")), None)
        if at is not None:
            found.append((_known(command[at + 1 :]), command[at + 1 :], command[:at]))
    if not found:
        everything = [word for command in script.commands for word in command]
        stored = [piece for words in script.words.values() for word in words for piece in _pieces(word)]
        found = [(_known(words), words, ()) for words in (everything, stored)]
    count, words, before = max(found, key=lambda one: one[0])
    if count < _LEAST_FLAGS:
        message = "no command with flags of Megatron-LM is in it (pretrain_gpt.py --num-layers …)"
        raise InvalidProblemError([FieldError(pointer="--from-args", message=message)])
    return words, before


def _conditional(script: Script) -> list[tuple[str, int]]:
    """Variables that a condition changes, those aside that hold nothing but flags that decide no plan."""
    found = []
    for variable, line in sorted(script.conditional.items()):
        flags = [word.text for word in script.words[variable] if word.text.startswith("--")]
        if not flags or any(flag.partition("=")[0] in FLAGS for flag in flags):
            found.append((variable, line))
    return found


def _pieces(word: Word) -> list[Word]:
    """A variable's text as words."""
    return [Word(piece, word.line) for piece in word.text.split()]


def _known(words: Sequence[Word]) -> int:
    """Flags of Megatron-LM among some words."""
    return sum(word.text.partition("=")[0] in FLAGS for word in words)


_SIZES = {
    "num-layers": "num_layers",
    "hidden-size": "hidden_size",
    "ffn-hidden-size": "ffn_hidden_size",
    "num-attention-heads": "num_attention_heads",
    "kv-channels": "head_dim",
}


def _agree(given: Given, model: ModelSpec) -> None:
    """Flags that say another size than the named model has."""
    for flag, field in _SIZES.items():
        size = given.optional(flag)
        if size is not None and size != getattr(model, field) and not (flag == "kv-channels" and model.mla):
            given.fault(flag, f"{size}, but {model.title[:64]} has {getattr(model, field)}")
