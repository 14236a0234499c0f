"""Reader of Megatron-LM's launch commands: a script becomes a model, a workload and a configuration.

The inverse of ``meshwright.launchers.megatron_lm.export``. Missing flags take Megatron-LM's defaults, and
those that cost time are noted; unknown flags are listed, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from meshwright.launchers.megatron_core.names import FROM_CHECKPOINT, flag_kinds, spelled, table
from meshwright.launchers.megatron_lm.read_forks import require_known, translate
from meshwright.launchers.megatron_lm.read_model import model_of
from meshwright.launchers.megatron_lm.read_run import (
    SUPPLIED_FLAGS,
    batch_ramp,
    configuration_of,
    settled,
    with_buckets,
    workload_of,
)
from meshwright.launchers.megatron_lm.refusals import refuse_contradictions, refuse_words
from meshwright.launchers.reading.base import Include, LaunchFile, Overrides, Reader, Source, refused
from meshwright.launchers.reading.commands import (
    World,
    best,
    chosen,
    commands_of,
    readable_script,
    require_training,
    script_of,
    started_gpus,
    world_of,
)
from meshwright.launchers.reading.given import MAX_LISTED, Given, Value, given_flags
from meshwright.launchers.reading.known import named_model
from meshwright.launchers.templates import data
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.shell.values import Script

_LEAST_FLAGS = 2


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    script = script_of(source, overrides)
    command, count = chosen(commands_of(script), _is_flag, overrides, source.name)
    if count < _LEAST_FLAGS:
        raise refused(
            f"{source.name[:64]}: no command with flags of Megatron-LM is in it "
            "(pretrain_gpt.py --num-layers …)"
        )
    program = command.program.rsplit("/", 1)[-1]
    require_training(command, source.name)
    if model := data("reading/programs.yaml")["other_models"].get(program):
        line = command.before[0].line if command.before else 1
        raise refused(f"line {line}: {program} trains {model}, which is not supported")
    given = given_flags(command.words, overrides)
    if program in _OF_PATTERNS and not {"--hybrid-layer-pattern", "--hybrid-override-pattern"} & {
        *given.values,
        *given.others,
    }:
        raise refused(
            f"{program} takes its layers from --hybrid-layer-pattern, which is not given",
            allowed="--hybrid-layer-pattern M*-E…",
        )
    if not program:
        _require_started(script, given, source.name)
        given.note("no command in the file starts a program, so flags on that command are unknown")
    given.note(*script.notes)
    world = world_of(source.text, script, command)
    if world.processes == 1 and overrides.num_gpus in (None, 1):
        given.note(f"{program} is started by python alone: one process is assumed, on one GPU")
    launcher = translate(given, lambda name: script.files.get(name) or source.other(name), script.filled)
    require_known(given, program)
    return launch_file(
        launcher, given, overrides, world, name=source.name.partition(".")[0], include=source.other
    )


def arguments_of(source: Source, overrides: Overrides) -> tuple[str, ...]:
    """Return the arguments of the command that trains, without those that no plan depends on.

    Left out are data, tokenizers, logs and checkpoints; arguments that we do not know are kept.

    Raises:
        InvalidProblemError: the script cannot be read.
    """
    command, _ = chosen(commands_of(script_of(source, overrides)), _is_flag, overrides, source.name)
    given = given_flags(command.words, overrides)
    kept = [*given.values.items(), *((name, value) for name, (_, value) in given.left.items())]
    return tuple(word for name, value in kept for word in (name, *value.texts))


@lru_cache(maxsize=1024)
def _is_flag(text: str) -> bool:
    return text.partition("=")[0] in flag_kinds()


MEGATRON_LM_READER = Reader(
    name="megatron-lm",
    recognises=lambda source: best(commands_of(readable_script(source)), _is_flag)[1] >= _LEAST_FLAGS,
    read=_read,
)


_OF_PATTERNS = ("pretrain_mamba.py", "pretrain_hybrid.py")


def _require_started(script: Script, given: Given, name: str) -> None:
    """Refuse a file of flags that starts nothing and sets degrees that none of its flags use.

    Raises:
        InvalidProblemError: there is such a variable: the command that uses it is elsewhere.
    """
    said = {**given.others, **given.values}
    taken = {text for flag, value in said.items() if _TAKES.search(flag) for text in value.texts}
    for variable, words in script.words.items():
        value = words[0].text if words else ""
        if _DEGREE.fullmatch(variable) and value.isdecimal() and value != "1" and value not in taken:
            raise refused(
                f"line {words[0].line} of {name[:64]}: {variable} is {value}, and no command here takes it",
                allowed="the script that starts the program, with this file next to it",
            )


_TAKES = re.compile(r"parallel|^--num-experts$")  # EP_SIZE experts, of Megatron-DeepSpeed's examples
_DEGREE = re.compile(
    r"(?:(?:TP|PP|CP|EP|MP|VPP)(?:_SIZE|_DEGREE)?|(?:TENSOR|PIPELINE|CONTEXT|EXPERT|MODEL)\w*_PARALLEL\w*)",
    re.IGNORECASE,
)


# Launchers over Megatron-LM that take arguments of their own, by the programs with their tables.
_ARGUMENTS_OF = {
    "flagscale": ("flagscale",),
    "llama-factory": ("llama-factory", "transformers"),
    "megatron-bridge": ("megatron-bridge",),
    "ms-swift": ("ms-swift", "transformers"),
}


def launch_file(
    launcher: str,
    given: Given,
    overrides: Overrides,
    world: World,
    *,
    name: str,
    include: Include = lambda _: None,
) -> LaunchFile:
    """Return the launch file of flags with Megatron-LM's names, from any launcher.

    Raises:
        InvalidProblemError: sizes are missing or contradict one another.
    """
    gpus = started_gpus(world, overrides, given.note)
    if gpus is None and world.lacking is not None:
        given.faults.append(world.lacking)
    _override(given, overrides)
    _take_default_batch(given, gpus)
    named = overrides.model or _of_checkpoint(given)
    try:
        shape = named or model_of(given, name[:64] or "launch file", include)
    except InvalidProblemError as fault:
        raise InvalidProblemError(_in_file(given, one) for one in fault.errors) from None
    if named is not None:
        _agree(given, named)
    refuse_words(given)
    if launcher in ("ms-swift", "llama-factory") and given.integer("cpu-offloading-num-layers", 0):
        given.fault(
            "cpu-offloading-num-layers",
            f"activations of whole layers on the host are not supported under {launcher}",
        )
    if launcher in ("megatron-lm", "flagscale"):
        refuse_contradictions(given, shape)
    workload = workload_of(given, framework_of(launcher))
    configuration = configuration_of(given, shape, workload, gpus)
    workload = with_buckets(given, workload, configuration, shape, framework_of(launcher))
    given.refuse_undecided(*_ARGUMENTS_OF.get(launcher, ()))
    given.stop()
    return LaunchFile(
        launcher=launcher,
        model=shape,
        workload=settled(workload, configuration, shape),
        configuration=configuration,
        num_nodes=world.num_nodes if gpus == world.num_gpus else None,
        gpus_per_node=world.gpus_per_node if gpus == world.num_gpus else None,
        idle_gpus=world.idle_gpus,
        notes=tuple(given.notes),
        unread=tuple(given.unread[:MAX_LISTED]),
        batch_ramp=batch_ramp(given),
        places={
            "tensor_parallel_size": given.place("tensor-model-parallel-size"),
            "seq_length": given.place("seq-length"),
            "vocab_size": given.place("vocab-size"),
        },
    )


def _in_file(given: Given, fault: FieldError) -> FieldError:
    """Return a fault of the model's size at the flag that sets it, with its line."""
    field = fault.pointer.strip("/").replace("/", ".")
    flags = (spelled(name) for name, row in table().items() if row.sets == field)
    flag = next((one for one in flags if one in given.values), None) if fault.pointer[:1] == "/" else None
    if flag is None:
        return fault
    called, line = given.place(flag.removeprefix("--"))
    return replace(fault, pointer=called, message=f"line {line}: {fault.message}")


def _of_checkpoint(given: Given) -> ModelSpec | None:
    """Return the model of ``--use-checkpoint-args`` if a path names it; None without the flag.

    The checkpoint's flags override the command's, which are seldom complete: a model that the paths
    name must have the given sizes.

    Raises:
        InvalidProblemError: no path names a model.
    """
    value = given.others.get(FROM_CHECKPOINT)
    if value is None:
        return None
    for path in _PATHS:
        for part in reversed(given.partly(path).split("/")):
            model = named_model(part) if part else None
            if model is not None and all(
                given.integer(flag, getattr(model, name)) == getattr(model, name)
                for flag, name in _SIZES.items()
                if flag != "kv-channels"
            ):
                where = f"line {value.line}: {FROM_CHECKPOINT}"
                given.note(f"{where}: the checkpoint is {model.title}'s by its path")
                return model
    given.fault_of(
        FROM_CHECKPOINT,
        value,
        "can't be read: the model's flags come from a checkpoint",
        allowed="--model with the checkpoint's model",
    )
    given.stop()
    return None


_PATHS = ("load", "tokenizer-model", "pretrained-checkpoint")


def _override(given: Given, overrides: Overrides) -> None:
    for name, flag in SUPPLIED_FLAGS.items():
        value = overrides.values.get(name)
        if value is None:
            continue
        old = given.values.get(flag)
        if isinstance(value, bool):
            if not value:
                given.values.pop(flag, None)
            texts: tuple[str, ...] = ()
        else:
            texts = (str(value),)
        if value is not False:
            given.values[flag] = Value(texts, 0)
        if old is not None and old.texts != texts:
            given.note(f"line {old.line}: {flag} {' '.join(old.texts)[:40]} is replaced by {value}")
    supplied = [flag for name, flag in SUPPLIED_FLAGS.items() if name in overrides.values]
    given.faults = [fault for fault in given.faults if fault.pointer not in supplied]
    for flag in (flag for flag in supplied if flag in given.values):
        given.take(flag, given.values.pop(flag))  # refused as the file's own would be


def _take_default_batch(given: Given, gpus: int | None) -> None:
    """Take one micro-batch per replica if the script sets no batch (Megatron-LM's ``validate_args``)."""
    if given.has("global-batch-size") or given.has("step-batch-size-schedule") or gpus is None:
        return
    ranks = 1
    for name in ("tensor-model", "pipeline-model"):
        ranks *= given.integer(f"{name}-parallel-size", 1)
    ranks *= given.integer("context-parallel-size", 1)
    steps = given.other("gas")  # of DeepSpeed's first examples
    count = int(steps) if steps.isdecimal() and len(steps) < 6 and int(steps) else 1  # noqa: PLR2004
    batch = max(gpus // ranks, 1) * given.integer("micro-batch-size", 1) * count
    given.take("--global-batch-size", Value((str(batch),), 0))
    if count > 1:
        given.note(f"--gas {count} micro-batches of each replica are {batch}")
        return
    given.note(f"no --global-batch-size: one micro-batch a replica, {batch}, is Megatron-LM's default")


_SIZES = {
    "num-layers": "num_layers",
    "hidden-size": "hidden_size",
    "ffn-hidden-size": "ffn_hidden_size",
    "num-attention-heads": "num_attention_heads",
    "kv-channels": "head_dim",
}


def _agree(given: Given, model: ModelSpec) -> None:
    for flag, field in _SIZES.items():
        size = given.optional(flag)
        if size is not None and size != getattr(model, field) and not (flag == "kv-channels" and model.mla):
            given.fault(flag, f"{size}, but {model.title[:64]} has {getattr(model, field)}")
    groups = "num-query-groups"
    if given.has(groups) and not model.mla:
        grouped = given.has("group-query-attention")
        heads = given.integer(groups, 1) if grouped else model.num_attention_heads
        if heads != model.num_kv_heads:
            found = f"{heads} kv heads" + ("" if grouped else " without --group-query-attention")
            given.fault(groups, f"{found}, but {model.title[:64]} has {model.num_kv_heads}")
