"""Reader of Megatron-SWIFT's commands (``megatron pt``, ``megatron sft``) with its own defaults.

Names and defaults: ms-swift 4.6.0, swift/megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from meshwright.launchers.flags import flag_names, flags_of, is_off
from meshwright.launchers.megatron_core import read as core
from meshwright.launchers.megatron_core.names import WHOLE_STEP
from meshwright.launchers.megatron_lm.read import launch_file
from meshwright.launchers.megatron_lm.read_forks import take_4_bits
from meshwright.launchers.ms_swift.export import ALL_LINEAR, FROZEN_ARGUMENTS, MAX_PIXELS
from meshwright.launchers.reading import commands
from meshwright.launchers.reading.adapters import UNCOUNTED, WHY_UNCOUNTED
from meshwright.launchers.reading.base import LaunchFile, Overrides, Reader, Source, refused
from meshwright.launchers.reading.fields import near_word, passing
from meshwright.launchers.reading.given import Given, Value, flags_in
from meshwright.launchers.reading.images import ImageSettings, with_images
from meshwright.launchers.reading.known import Known, known_of
from meshwright.profiles.adapters import ATTENTION_TARGETS, FUSED_TARGETS
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.values import UNKNOWN, Word, unknown_arguments, unknown_fault, unknown_in

_LEAST_NAMES = 2
_LANGUAGE_ONLY = "language_model_only"
# Programs that are not ms-swift's own (swift/cli/_megatron/sft.py), such as Megatron-LLM's finetune.py.
_OTHERS = re.compile(
    r"^(?!.*(?:swift|_megatron/))(?:.*/)?(?!(?:pt|sft|rlhf|main|train\w*)\.py$)[\w-]+\.py$"
)
_BRIDGES = "scripts/performance/"  # of Megatron-Bridge, with programs that take such names, too
_EXTRA, _MAX_EXTRA = "megatron_extra_kwargs", 64
# ms-swift's defaults that differ from Megatron-LM's, and their effect.
_DEFAULTS = {
    "use_distributed_optimizer": ("true", "the optimizer is sharded: ms-swift's default"),
    "recompute_granularity": ("selective", "core attention recomputes: ms-swift's default"),
    "expert_tensor_parallel_size": ("1", "experts are not split over tensor ranks: ms-swift's default"),
    "global_batch_size": ("16", "the global batch is 16: ms-swift's default"),
    "cross_entropy_loss_fusion": ("true", "the loss is Megatron's fused one: ms-swift's default"),
    "attention_backend": ("flash", "attention is FlashAttention's: ms-swift's default"),
    "overlap_grad_reduce": (
        "false",
        "gradients are reduced after the last backward pass: ms-swift's default",
    ),
}
_QUIET = ("attention_backend", "cross_entropy_loss_fusion", "expert_tensor_parallel_size")
_PARSER = "megatron sft"
# Words of its own, and Megatron-LM's: a version of FlashAttention is forced, whichever there is else
_IN_ITS_WORDS = {
    ("optimizer", "adamw"): "adam",
    **{("attention_backend", f"flash_{version}"): "flash" for version in (2, 3, 4)},
}


_SUMS = "accumulate_allreduce_grads_in_fp32"


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    script = commands.script_of(source, overrides)
    command, count = commands.chosen(commands.commands_of(script), _is_name, overrides, source.name)
    if count < _LEAST_NAMES:
        raise refused(f"{source.name[:64]}: no command with arguments of ms-swift is in it")
    commands.require_training(command, source.name)
    program = command.program or next((w.text for w in command.words if w.text.endswith(".py")), "")
    if _BRIDGES in program:
        line = next(word.line for word in command.words)
        message = f"line {line} of {shown(source.name)} starts Megatron-Bridge's {shown(program)}, which"
        raise refused(
            f"{message} takes a recipe and its settings from the checkout next to it",
            allowed="the whole configuration as YAML, which Megatron-Bridge prints when it starts",
        )
    by_deepspeed = any(
        word.text.rpartition("/")[2] == "deepspeed" for word in command.before
    )  # torchrun alone
    if _OTHERS.search(program) or by_deepspeed:
        line, program = command.words[0].line, shown(program.rpartition("/")[2])
        message = f"line {line} of {shown(source.name)}: {program} takes Megatron's names with underscores"
        raise refused(f"{message} and is none of ms-swift's", allowed="megatron pt, megatron sft")
    given, others = _given(command.words, overrides)
    if not is_off(others.get("rlhf_type", "false")):
        raise refused(
            "--rlhf_type: training on preferences is not supported on Megatron-Core",
            allowed="swift rlhf, on transformers' trainer",
        )
    given.note(*script.notes)
    if others.get(_SUMS, "true").lower() == "false" and not given.has("fp16"):
        given.note(f"{_SUMS} false: gradients are priced in fp32 all the same")
    known = known_of(source, overrides)
    started = commands.world_of(source.text, script, command)
    world = (
        started
        if started.num_gpus or started.gpus_per_node
        else replace(known.world, lacking=started.lacking)
    )
    unknown = any(UNKNOWN in text for text in commands.environment_of(script, command).get("NNODES", ()))
    if world.gpus_per_node and not world.num_nodes and not unknown:
        world = replace(world, num_nodes=1)  # default of NNODES
    named = next((others[key] for key in _NAMES_OF_MODELS if key in others), "")
    model = Word(named, 0) if named else None
    found = completed(
        "ms-swift", given, known, world, adapters=_adapters(others, command.words), named=model
    )
    found = _with_dropout(found, others)
    if not is_off(others.get("packing", "false")):  # padding_free goes with it (arguments/base_args.py)
        found = replace(found, packed="packing")
    if not is_off(others.get(_LANGUAGE_ONLY, "false")):
        return replace(found, model=replace(found.model, tower=None))
    run = with_images(found, known, _image_settings(others, commands.environment_of(script, command)))
    return replace(run, notes=(*run.notes, *_tower_notes(run, others)))


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    """Return whether a word is one of Megatron's names in snake case, of more than one part."""
    name = text.partition("=")[0]
    return (
        name.startswith("--") and "_" in name and "-" not in name[2:] and core.flag_of(name[2:]) is not None
    )


MS_SWIFT_READER = Reader(
    name="ms-swift",
    recognises=lambda source: (
        commands.best(commands.commands_of(commands.readable_script(source)), _is_name)[1] >= _LEAST_NAMES
    ),
    read=_read,
)


def completed(
    launcher: str,
    given: Given,
    known: Known,
    world: commands.World,
    *,
    adapters: tuple[int, tuple[str, ...]],
    named: Word | None = None,
    dispatcher: str = "alltoall",
) -> LaunchFile:
    """Return the run of arguments in Megatron's names that do not state the model's shape.

    ``dispatcher``: the default token dispatcher of experts.

    Raises:
        InvalidProblemError: no model is named, or sizes contradict one another.
    """
    length = known.value("seq_length")
    if length and not given.has("seq-length"):
        given.take("--seq-length", Value((str(length),), 0), called="seq_length")
    core.take_usual(given)
    take_4_bits(given)
    _leave_graphs(given, launcher)
    model = known.model(named)
    if model.moe and not given.has("moe-token-dispatcher-type"):
        given.take("--moe-token-dispatcher-type", Value((dispatcher,), 0), called=core.DISPATCHER)
    predicted = given.integer("mtp-num-layers", 0)
    if predicted != model.num_mtp_layers:
        given.note(
            f"{predicted} prediction layers are trained, as mtp_num_layers states (0 without it), "
            f"not the {model.num_mtp_layers} of {model.title}"
        )
        model = replace(model, num_mtp_layers=predicted)
    overrides = replace(known.overrides, model=model, num_gpus=known.overrides.num_gpus or known.num_gpus())
    given.note(*known.notes)
    found = launch_file(launcher, given, overrides, world, name="launch file")
    rank, targets = adapters
    return replace(found, workload=replace(found.workload, lora_rank=rank, lora_targets=targets))


_GRAPHS = (
    "cuda-graph-impl", "cuda-graph-scope", "cuda-graph-modules", "enable-cuda-graph", "external-cuda-graph",
)  # fmt: skip


def _leave_graphs(given: Given, launcher: str) -> None:
    """Drop CUDA graphs that Megatron-LM's training loop captures (megatron/training/training.py).

    Megatron-Core captures layers itself if ``cuda_graph_impl`` is local; those are not priced.
    """
    impl = given.word("cuda-graph-impl", "local" if given.has("enable-cuda-graph") else "none")
    whole = WHOLE_STEP in (*given.words("cuda-graph-scope"), *given.words("cuda-graph-modules"))
    if impl == "local" and not whole:
        name = "enable-cuda-graph" if given.has("enable-cuda-graph") else "cuda-graph-impl"
        given.fault(name, f"CUDA graphs of Megatron-Core alone are not supported under {launcher}")
    elif impl != "none" or given.has("external-cuda-graph"):
        name = "cuda-graph-impl" if impl != "none" else "external-cuda-graph"
        line = given.values[f"--{name}"].line
        given.note(f"line {line}: --{name} does nothing: {launcher}'s own training loop captures no graphs")
    for name in _GRAPHS:
        given.values.pop(f"--{name}", None)


def _with_dropout(run: LaunchFile, others: Mapping[str, str]) -> LaunchFile:
    """Return a run with dropout on the inputs of its adapters, which is on by default."""
    share = others.get("lora_dropout", str(flags_of("ms-swift")["lora_dropout"].default))
    if not run.workload.lora_rank or not share.strip("0.-"):
        return run
    options = {**run.workload.framework_options, "adapter_dropout": True}
    return replace(run, workload=replace(run.workload, framework_options=options))


_NAMES_OF_MODELS = ("model", "load", "model_id_or_path")
_ADAPTED = ("adapters", "ref_adapters", "mcore_adapter", "mcore_ref_adapter")
_TUNERS = ("tuner_type", "train_type", "sft_type")  # of release 4, 3 and 2
_OTHERS_READ = (
    *_NAMES_OF_MODELS, *_TUNERS, *FROZEN_ARGUMENTS.values(), MAX_PIXELS.lower(), _LANGUAGE_ONLY,
    "vit_gradient_checkpointing",
    "torch_dtype", "lora_rank", "lora_dropout", "target_modules",
)  # fmt: skip


def _image_settings(others: Mapping[str, str], variables: Mapping[str, Sequence[str]]) -> ImageSettings:
    """Return frozen parts and the lower limit of an image, of the argument and the variable."""
    usual = flags_of("ms-swift")
    frozen = (
        part
        for part, name in FROZEN_ARGUMENTS.items()
        if not is_off(others.get(name, str(usual[name].default)))
    )
    argument = MAX_PIXELS.lower()
    given = {argument: others[argument]} if argument in others else {}
    if MAX_PIXELS in variables:
        given[MAX_PIXELS] = " ".join(variables[MAX_PIXELS])
    sizes = {name: int(text) for name, text in given.items() if text.isascii() and text.isdecimal()}
    limit = min(sizes, key=lambda name: sizes[name], default="")
    return ImageSettings(frozen=tuple(frozen), limit=limit, most_pixels=sizes.get(limit, 0))


def _tower_notes(run: LaunchFile, others: Mapping[str, str]) -> Iterator[str]:
    """Yield that a trained tower replays its layers where the language model does not, or keeps them."""
    trained = (
        run.model.tower is not None and not run.workload.lora_rank and "vision" not in run.workload.frozen
    )
    replays = not is_off(others.get("vit_gradient_checkpointing", "true"))  # the default of a trained tower
    if trained and replays != (run.configuration.recompute_granularity == "full"):
        yield (
            f"vit_gradient_checkpointing is {str(replays).lower()}: layers of the tower are predicted "
            "as those of the language model, which replay where recompute_granularity is full"
        )


def _given(words: Sequence[Word], overrides: Overrides) -> tuple[Given, dict[str, str]]:
    if (fault := unknown_arguments(words)) is not None:
        raise fault
    given, others = Given(), dict[str, str]()
    for name, value in flags_in(words):
        if overrides.ignores(name):
            given.note(f"line {value.line}: {name[:64]} is ignored (--ignore)")
            continue
        key = name[2:].replace("-", "_")
        text = " ".join(value.texts).strip() if value.texts else "true"
        unknown = unknown_in(text)
        if unknown is not None and _is_read(key) and not (key in _NAMES_OF_MODELS and overrides.model):
            given.faults.append(unknown_fault(name, unknown, value.line))
        others[key] = text
        _take(given, name, key, text, value)
    given.refuse_slips(core.core_names())
    _refuse_unknown(given, others)
    _take_defaults(given, others)
    _take_precision(given, others)
    given.stop()
    return given, others


def _is_read(key: str) -> bool:
    """Return whether this reader takes an argument itself."""
    return key in _OTHERS_READ or UNCOUNTED.fullmatch(key) is not None


def _is_its_own(key: str) -> bool:
    """Return whether the class of Megatron-SWIFT's arguments has one, in this release or an older one."""
    row = flags_of("ms-swift").get(key)
    return row is not None and (not row.by or "megatron" in row.by)


def _take(given: Given, name: str, key: str, text: str, value: Value) -> None:
    row = flags_of("ms-swift").get(key)
    if row is None or not _is_its_own(key):
        given.leave(name[:64], key, value)
    elif row.role == "refused" and row.is_usual(text):
        return  # its own default, where Megatron-LM's is another
    elif key == "main_grads_dtype" and text == "bf16":
        core.take(given, "grad_reduce_in_bf16", "true", value.line, called=name)
    elif key == _EXTRA:
        _take_extra(given, text, value.line)
    elif core.flag_of(key) is not None or not (
        _is_read(key) or flag_names("ms-swift", "transformers").is_free(key)
    ):
        text = _IN_ITS_WORDS.get((key, text), text)
        core.take(given, key, text, value.line, called=name)


def _refuse_unknown(given: Given, others: Mapping[str, str]) -> None:
    """Refuse what the parser stops at, unless the command passes over it."""
    if not is_off(others.get("ignore_args_error", "false")):
        return
    slips = {fault.pointer for fault in given.faults}
    for shown_name, (key, value) in given.left.items():
        if shown_name not in slips and " " not in shown_name and not _is_its_own(key):
            given.fault_of(
                shown_name, value, f"is unknown, and {_PARSER} stops there", allowed=passing(shown_name)
            )


def _take_defaults(given: Given, named: Collection[str]) -> None:
    """Apply ms-swift's defaults; the costly ones are noted."""
    for key, (value, note) in _DEFAULTS.items():
        if key not in named:
            core.take(given, key, value, 0, called=f"--{key}")
            if key not in _QUIET:
                given.note(note)


def _take_extra(given: Given, text: str, line: int) -> None:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        given.called[f"--{_EXTRA}"] = f"--{_EXTRA}"
        given.fault(_EXTRA, f"line {line}: is not a JSON object", allowed='{"name": value, …}')
        return
    for name, value in list(found.items())[:_MAX_EXTRA]:
        core.take(given, str(name)[:64], core.text_of(value), line, called=f"--{_EXTRA} {str(name)[:64]}")


def _take_precision(given: Given, others: dict[str, str]) -> None:
    """Take ``torch_dtype``, or by default the type of the model's own weights, assumed to be bfloat16."""
    if given.has("bf16") or given.has("fp16"):
        return
    name = others.get("torch_dtype", "")
    if not name:
        given.note(
            "no torch_dtype: the type of the model's weights is ms-swift's default, taken for bfloat16"
        )
    core.take(given, "fp16" if name == "float16" else "bf16", "true", 0, called="--torch_dtype")
    if name not in ("", "bfloat16", "float16"):
        given.fault("bf16", f"{name[:20]} is not supported", allowed="bfloat16, float16")


def _adapters(others: dict[str, str], words: Sequence[Word]) -> tuple[int, tuple[str, ...]]:
    """Return rank and targets of the adapters, if the command trains them.

    Raises:
        InvalidProblemError: the training is not priced, with its line.
    """

    def refusal(name: str, allowed: str) -> InvalidProblemError:
        line = max((word.line for word in words if word.text.partition("=")[0] == f"--{name}"), default=0)
        return InvalidProblemError.of(
            f"--{name}",
            f"line {line}: {shown(others[name])} is not supported",
            allowed=allowed,
            nearest=near_word(others[name], allowed),
        )

    kinds = {name: others[name] for name in _TUNERS if name in others}
    for name, kind in kinds.items():
        if kind not in ("full", "lora"):
            raise refusal(name, "full, lora")
    continued = next((name for name in _ADAPTED if not is_off(others.get(name, ""))), "")
    if continued and "lora" not in kinds.values():  # megatron_args.py: then the tuner is lora
        others = {"lora_rank": "8"} | others
    elif "lora" not in kinds.values():
        return 0, ATTENTION_TARGETS
    other = next(
        (name for name, text in others.items() if UNCOUNTED.fullmatch(name) and not is_off(text)), ""
    )
    if other:
        raise refusal(other, f"none: it {WHY_UNCOUNTED}")
    rank = others.get("lora_rank", "8")
    if not (rank.isascii() and rank.isdecimal() and len(rank) < 6 and int(rank)):  # noqa: PLR2004
        raise refusal("lora_rank", "a whole number from 1 to 99999")
    named = others.get("target_modules", ALL_LINEAR).split()
    if set(named) - {*FUSED_TARGETS, ALL_LINEAR}:
        raise refusal("target_modules", ", ".join((ALL_LINEAR, *FUSED_TARGETS)))
    return int(rank), FUSED_TARGETS if ALL_LINEAR in named else tuple(
        one for one in FUSED_TARGETS if one in named
    )
