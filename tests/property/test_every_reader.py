"""Two properties of readers, over every value of the reviewed exports and of each stored file of others.

Of several exports of a launcher or stored files of a program, a word is tried in the first that holds it,
a number in the first that states its argument. ``make test`` tries half of these changes, and half of the
arguments of scripts. In documents it gives every second name a variable to fill in (``${VALUE}``), and the
others the output of a command (``$(date +%s)``). ``make fuzz`` tries all.

A changed value changes the answer, is refused, is named in a note, or is harmless by the launcher's table;
a value that cannot be evaluated is refused with its line, or is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from benchmarks.corpus import FIXTURES, entries, given_beside, source_of
from meshwright.launchers.flags import flag_names
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.documents import looks_like_document
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from tests.draws import TIMES, some_of
from tests.launchers.blind_spots import Change, changes
from tests.launchers.exported import OLDER, exported, older

GOLDEN = Path(__file__).parents[1] / "golden"
_TRAINER = ("transformers", "accelerate")
# The file that is read, and the programs with tables of its arguments.
READ: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "accelerate": ("accelerate.yaml", ("accelerate",)),
    "axolotl": ("axolotl.yaml", ("axolotl", *_TRAINER)),
    "deepspeed": ("ds_config.json", ("deepspeed",)),
    "flagscale": ("train_plan.yaml", ("flagscale", "megatron-lm", "megatron-core")),
    "llama_factory": ("llama_factory.yaml", ("llama-factory", "megatron-core", "transformers")),
    "llama_factory_accelerate": ("llama_factory_train.yaml", ("llama-factory", *_TRAINER)),
    "maxtext": ("maxtext.yml", ("maxtext",)),
    "megatron_bridge": ("launch.sh", ("megatron-bridge", "megatron-core")),
    "megatron_lm": ("launch.sh", ("megatron-lm",)),
    "ms_swift": ("launch.sh", ("ms-swift", "megatron-core", "transformers")),
    "nanotron": ("nanotron.yaml", ("nanotron",)),
    "torchtitan": ("torchtitan_0_2.toml", ("torchtitan",)),
    "trl": ("trl_sft.yaml", ("trl", *_TRAINER)),
}
# Arguments with values of which another one leads to the same prediction, and why.
_EITHER = "either of two arguments with the same value turns it on"
_CHECKPOINTS = "of checkpoints"
_ROUTER = "products of the router are priced in fp32; they are less than a thousandth of a layer's"
_CASTS = "bf16 and fp16 of the arguments decide before accelerate's mixed_precision and the loaded type"
_FULL = "it does nothing under full recomputation"
SAME: Mapping[str, Mapping[str, str]] = {
    "axolotl": {
        "fp16": "bf16 decides where both are on (utils/config, resolve_dtype)",
        "optimizer": "AdamW of one kernel or of many costs the same",
    },
    "flagscale": {
        "system.recompute_num_layers": "layers that are recomputed in groups are predicted as each alone",
        "system.tensor_model_parallel_size": "the meshes state their own",
    },
    "llama_factory": {
        "additional_configs.rotary_scaling_factor": "a factor of rotary angles costs nothing",
        "apply_rope_fusion": "listed where it is off; the price has no kernel of its own for it",
        "recompute_modules": _FULL,
        "moe_router_dtype": _ROUTER,
    },
    "llama_factory_accelerate": {
        "mixed_precision": _CASTS,
        "bf16": "accelerate's mixed_precision says the same",
        "disable_gradient_checkpointing": "accelerate's fsdp_activation_checkpointing says the same",
        "neat_packing": "documents of no stated length attend as far as their sequence",
        "optim": "AdamW of one kernel or of many costs the same",
        "pure_bf16": "FSDP2 casts trained weights up",
    },
    "maxtext": {
        "packing": "documents of no stated length attend as far as their sequence",
    },
    "megatron_bridge": {
        "model.tp_comm_overlap": "it does nothing at tp 1",
        "model.virtual_pipeline_model_parallel_size": "pipeline_model_parallel_layout states the chunks",
        "ddp.use_distributed_optimizer": _EITHER,
        "optimizer.use_distributed_optimizer": _EITHER,
        "optimizer.use_precision_aware_optimizer": "with moments in fp32 it keeps the same bytes",
        "checkpoint.ckpt_format": _CHECKPOINTS,
        "checkpoint.dist_ckpt_optim_fully_reshardable": _CHECKPOINTS,
        "model.recompute_num_layers": "layers that are recomputed in groups are predicted as each alone",
        "model.overlap_moe_expert_parallel_comm": "it does nothing in a pipeline without virtual stages",
        "model.moe_router_dtype": _ROUTER,
        "mixed_precision": "its parts are stated one by one behind it",
        "model.add_qkv_bias": "latent attention has no such bias",
        "model.recompute_modules": _FULL,
        "ddp.overlap_param_gather": "Megatron's FSDP gathers weights by itself",
        "ddp.use_megatron_fsdp": _EITHER,
        "dist.use_megatron_fsdp": _EITHER,
    },
    "megatron_lm": {
        "--recompute-num-layers": "layers that are recomputed in groups are predicted as each alone",
        "--make-vocab-size-divisible-by": "the vocabulary is a multiple of either",
        "--use-distributed-optimizer": "Megatron's FSDP implies it",
        "--overlap-param-gather": "Megatron's FSDP gathers weights by itself",
    },
    "ms_swift": {
        "--torch_dtype": "--bf16 decides before it",
        "--recompute_num_layers": "layers that are recomputed in groups are predicted as each alone",
        "--moe_router_dtype": _ROUTER,
    },
    "nanotron": {
        "model.make_vocab_size_divisible_by": "the vocabulary is a multiple of either",
        "model.model_config.is_qwen2_config": "its layers are Llama's, but for biases stated apart",
        "parallelism.pp_engine": "one stage has no schedule",
    },
    "torchtitan": {
        "model.name": "the header states the model, whatever name the code registers it by",
        "model.flavor": "the header states the model, whatever name the code registers it by",
    },
    "trl": {
        "mixed_precision": _CASTS,
        "dtype": _CASTS,
        "optim": "AdamW of one kernel or of many costs the same",
        "attn_implementation": "rings of context parallelism have an attention of their own",
    },
}  # fmt: skip
# Files next to the one that is read, of which it reads nothing but the shape in the header.
_BESIDE = re.compile(r".*\.py|(?:accelerate|config)\.yaml")
CASES = {
    launcher: [
        folder.name
        for folder in sorted((GOLDEN / launcher).iterdir())
        if any((folder / f"{main}{end}").is_file() for end in ("", ".txt", ".diff"))
    ]
    for launcher, (main, _) in READ.items()
} | {"torchtitan": [*OLDER]}
UNKNOWN, PLACEHOLDER = "$(date +%s)", "${VALUE}"
NAMED = f"it is the output of {UNKNOWN}, which Meshwright doesn't run"
T = TypeVar("T")
Arguments = ParamSpec("Arguments")


def files_of(launcher: str, name: str) -> dict[str, str]:
    return dict(older(name) if launcher == "torchtitan" else exported(launcher.replace("_", "-"), name))


def read(launcher: str, files: Mapping[str, str]) -> LaunchFile:
    main = READ[launcher][0]
    return read_launch_files(Source(name=main, text=files[main], files=dict(files)), Overrides())


def answer(found: LaunchFile) -> object:
    return (
        found.model, found.workload, found.configuration, found.num_nodes, found.gpus_per_node,
        found.batch_ramp,
    )  # fmt: skip


def file_of(change: Change, usual: Mapping[str, str]) -> str:
    (name,) = (name for name, text in change.files.items() if text != usual[name])
    return name


def tried(launcher: str, name: str) -> Iterator[tuple[str, Change]]:
    """Yield every change of a file that is read, with the name of that file."""
    usual, main = files_of(launcher, name), READ[launcher][0]
    for change in changes(usual):
        if change.files == usual:
            continue  # a switch: its line was taken out, or there is no other word
        file = file_of(change, usual)
        if file == main or not _BESIDE.fullmatch(file) or launcher in ("trl", "llama_factory_accelerate"):
            yield file, change


def once(every: Iterable[T], key: Callable[[T], object]) -> Iterator[T]:
    """Yield the first of those with the same key; all of them where more is drawn than every day."""
    seen = set[object]()
    for one in every:
        if TIMES > 1 or key(one) not in seen:
            yield one
        seen.add(key(one))


def half(every: Iterable[T], value: str) -> Sequence[T]:
    """Return those that have the value in ``make test``; all of them in ``make fuzz``."""
    return some_of([*every], each=2, first=(PLACEHOLDER, UNKNOWN).index(value))


def kind_of(value: object) -> object:
    """Return a word itself, and one kind for all numbers."""
    return re.sub(r"[\d.]+", "0", str(value))


def is_harmless(launcher: str, name: str) -> bool:
    """Whether no step depends on an argument by its row; FlagScale's may be in any section."""
    names = flag_names(*READ[launcher][1])
    return names.is_free(name) or (launcher == "flagscale" and names.is_free(name.rpartition(".")[2]))


@pytest.mark.parametrize("launcher", READ)
def test_a_changed_value_changes_the_answer_or_is_refused_noted_or_harmless(launcher: str) -> None:
    usual = {name: answer(read(launcher, files_of(launcher, name))) for name in CASES[launcher]}
    every = [(name, file, change) for name in usual for file, change in tried(launcher, name)]
    ignored = []
    each = once(every, lambda one: (one[1], one[2].key, kind_of(one[2].new)))
    for name, _, change in some_of([*each], each=2):
        try:
            found = read(launcher, change.files)
        except InvalidProblemError:
            continue
        said = " ".join((*found.notes, *found.unread))
        last = change.key.rpartition(".")[2].lstrip("-")
        noted = last in said or f"--{last.replace('_', '-')}" in said
        free = is_harmless(launcher, change.key) or change.key in SAME.get(launcher, {})
        if answer(found) == usual[name] and not (noted or free):
            ignored.append(f"{name}: {change}")
    assert every
    assert ignored == []


@pytest.mark.parametrize("launcher", sorted(SAME))
def test_every_exception_is_needed(launcher: str) -> None:
    keys = {change.key for name in CASES[launcher] for _, change in tried(launcher, name)}
    assert SAME[launcher].keys() <= keys


def with_unknown(text: str, place: int) -> str:
    """Return a file with a value of one of its lines that only a running shell knows."""
    lines = text.splitlines()
    lines[place] = re.sub(
        r"^(\s*(?:--[\w.-]+ |[\w.]+=))\S.*$", rf'\g<1>"{UNKNOWN}"', lines[place].replace("'", "")
    )
    return "\n".join([*lines, ""])


ARGUMENTS = {
    "megatron_bridge": "plan_args.sh",
    "megatron_lm": "megatron_args.sh",
    "ms_swift": "plan_args.sh",
}


@pytest.mark.parametrize("launcher", ARGUMENTS)
def test_a_value_that_cannot_be_evaluated_is_refused_with_its_line_or_is_harmless(launcher: str) -> None:
    file = ARGUMENTS[launcher]
    tries = [
        (argument, place + 1, usual | {file: text})
        for usual in (files_of(launcher, name) for name in CASES[launcher])
        for place, line in enumerate(usual[file].splitlines())
        if UNKNOWN in (text := with_unknown(usual[file], place))
        and not ((argument := argument_of(line)) == "mixed_precision" and line.endswith("=null"))
    ]  # where mixed_precision is null, the next line states it again
    each = some_of([*once(tries, lambda one: one[0])], each=2)
    require_refused_or_harmless(launcher, each, read, NAMED)


def argument_of(line: str) -> str:
    """The name that a line of a script states."""
    return line.strip().partition(" ")[0].partition("=")[0].strip("'")


def require_refused_or_harmless(
    launcher: str,
    tries: Iterable[tuple[str, int, Mapping[str, str]]],
    reader: Callable[[str, Mapping[str, str]], LaunchFile],
    why: str = "",
) -> None:
    """Require of names, lines and files that each is refused with its line, or its name is harmless."""
    wrong, refused = [], 0
    for name, line, files in tries:
        said = refusal(reader, launcher, files)
        refused += said is not None
        if not (is_harmless(launcher, name) if said is None else is_refused_at(line, why, said)):
            wrong.append(f"{name}: {said or 'read'}")
    assert refused > 0
    assert wrong == []


def is_refused_at(line: int, why: str, fault: InvalidProblemError) -> bool:
    """Return whether a line is refused for this reason alone: no unknown value is quoted or judged."""
    said = [one.sentence() for one in fault.errors if f"line {line}:" in one.sentence()]
    return bool(said) and all(f"line {line}: {why}" in one for one in said)


@pytest.mark.parametrize("launcher", [name for name in READ if name not in ARGUMENTS])
def test_a_placeholder_in_a_document_is_refused_with_its_line_or_is_harmless(launcher: str) -> None:
    require_refused_or_harmless(launcher, in_documents(launcher, PLACEHOLDER), read)


@pytest.mark.parametrize("launcher", [name for name in READ if name not in ARGUMENTS])
def test_a_value_that_a_script_writes_into_a_document_is_refused_with_its_line_or_is_harmless(
    launcher: str,
) -> None:
    require_refused_or_harmless(launcher, in_documents(launcher, UNKNOWN), read_written, NAMED)


def in_documents(launcher: str, value: str) -> Sequence[tuple[str, int, Mapping[str, str]]]:
    """Return a name, its line and the files with another value, for each name of the documents once."""
    main = READ[launcher][0]
    tries = (
        (found, line, usual | {main: text})
        for usual in (files_of(launcher, name) for name in CASES[launcher])
        for found, line, text in with_value(value, main, usual[main])
    )
    return half(once(tries, lambda one: one[0]), value)


def read_written(launcher: str, files: Mapping[str, str]) -> LaunchFile:
    """Read the launch script with the document written by it, which the shell expands."""
    main = READ[launcher][0]
    script = written(main, files[main]) + files["launch.sh"]
    beside = {name: text for name, text in files.items() if name != main} | {"launch.sh": script}
    return read_launch_files(Source(name="launch.sh", text=script, files=beside), Overrides())


def written(file: str, text: str) -> str:
    """Return the command that writes a document in which the shell replaces only the unknown value."""
    known = re.sub(r"([\\$`])", r"\\\1", text).replace(f"\\{UNKNOWN}", UNKNOWN)
    return f"cat > {file} <<EOT\n{known}\nEOT\n"


VALUE = re.compile(r'(\s*"?[\w.]+"?\s*[:=]\s*)([^\s{\[#,][^{\[#]*?)(,?\s*)')


def with_value(value: str, file: str, text: str) -> Iterator[tuple[str, int, str]]:
    """Yield a name, its line and the document with another value, for each one-line value."""
    lines = text.splitlines()
    for name, found in looks_like_document(Source(name=file, text=text)).items():
        match = VALUE.fullmatch(lines[found.line - 1]) if found.line else None
        if match is not None:
            line = f'{match[1]}"{value}"{match[3]}'
            yield name, found.line, "\n".join([*lines[: found.line - 1], line, *lines[found.line :], ""])


def is_read(entry: Mapping[str, object], source: Source) -> bool:
    try:
        read_launch_files(source, given_beside(entry))
    except InvalidProblemError:
        return False
    return True


STARTS = {
    "accelerate": "accelerate launch --config_file {} train.py",
    "axolotl": "axolotl train {}",
    "deepspeed": "deepspeed train.py --deepspeed {}",
    "llama_factory": "llamafactory-cli train {}",
}
# Values of a stored file, or of all (""), of which another one leads to the same prediction, and why.
SAME_IN_STORED: Mapping[tuple[str, str], str] = {
    (
        "qwen3_moe_full.yaml",
        "apply_rope_fusion",
    ): "listed where it is off; the price has no kernel of its own",
    ("ds_z0_config.json", "zero_optimization.overlap_comm"): "stage 0 shards nothing",
    ("ds_z0_config.json", "zero_optimization.reduce_bucket_size"): "stage 0 shards nothing",
    (
        "ds_z3_config.json",
        "zero_optimization.overlap_comm",
    ): "noted where it is off, and priced as stage 3 does it",
    (
        "zero1.yaml",
        "deepspeed_config.gradient_accumulation_steps",
    ): "the trainer's own, given next to it, decide",
    ("lora.yml", "base_model"): "the model is given next to it",
    ("qwen3moe_full_sft_fsdp.yaml", "use_v1_kernels"): "listed: the price has the class without them",
    ("", "lora_dropout"): "any share of dropped inputs keeps a mask",
    ("qwen2_vl_full.yaml", "image_max_pixels"): "no file states how many images a sample has",
    ("fsdp1.yaml", "fsdp_config.fsdp_reshard_after_forward"): "of FSDP2; FSDP1 has a sharding strategy",
}
TABLES = ("axolotl", "llama-factory", "trl", "deepspeed", "megatron-core", *_TRAINER)


def read_stored(entry: Mapping[str, object], name: str, files: Mapping[str, str]) -> LaunchFile:
    beside = dict(files) if len(files) > 1 else {}
    return read_launch_files(Source(name=name, text=files[name], files=beside), given_beside(entry))


def is_explained(name: str, key: str) -> bool:
    same = {(name, key), ("", key)} & SAME_IN_STORED.keys()
    return flag_names(*TABLES).is_free(key) or bool(same)


@pytest.mark.parametrize("program", STARTS)
def test_a_changed_value_of_a_stored_file_changes_the_answer_or_is_explained(program: str) -> None:
    ignored = []
    every = [
        (entry, source.name, files, change)
        for entry, source in stored(program)
        for files in [dict(source.files) or {source.name: source.text}]
        for change in changes(files)
        if change.files != files
    ]
    for entry, name, files, change in once(every, lambda one: (one[3].key, kind_of(one[3].new))):
        try:
            found = read_stored(entry, name, change.files)
        except InvalidProblemError:
            continue
        noted = change.key.rpartition(".")[2] in " ".join((*found.notes, *found.unread))
        if (
            not noted
            and not is_explained(name, change.key)
            and answer(found) == answer(read_stored(entry, name, files))
        ):
            ignored.append(f"{name}: {change}")
    assert every
    assert ignored == []


@pytest.mark.parametrize("program", STARTS)
def test_a_placeholder_in_a_stored_file_is_refused_with_its_line_or_is_explained(program: str) -> None:
    wrong = []
    for entry, source, key, line, text in with_values(program, PLACEHOLDER):
        files = {**source.files, source.name: text}
        said = refusal(read_stored, entry, source.name, files)
        if not (is_explained(source.name, key) if said is None else is_refused_at(line, "", said)):
            wrong.append(f"{source.name}: {key}: {said or 'read'}")
    assert wrong == []


@pytest.mark.parametrize("program", STARTS)
def test_a_value_that_a_script_writes_into_a_stored_file_is_refused_with_its_line_or_is_explained(
    program: str,
) -> None:
    wrong, refused = [], 0
    for entry, source, key, line, text in with_values(program, UNKNOWN):
        beside = {name: text for name, text in source.files.items() if name != source.name}
        script = f"{written(source.name, text)}{STARTS[program].format(source.name)}\n"
        whole = Source(name="run.sh", text=script, files=beside | {"run.sh": script})
        said = refusal(read_launch_files, whole, given_beside(entry))
        refused += said is not None
        if not (is_explained(source.name, key) if said is None else is_refused_at(line, NAMED, said)):
            wrong.append(f"{source.name}: {key}: {said or 'read'}")
    assert refused > 0
    assert wrong == []


def with_values(program: str, value: str) -> Sequence[tuple[Mapping[str, object], Source, str, int, str]]:
    """Return an entry, its file, a name, its line and the text with another value, for each name once."""
    every = (
        (entry, source, *found)
        for entry, source in stored(program)
        for found in with_value(value, source.name, source.text)
    )
    return half(once(every, lambda one: one[2]), value)


@cache
def readable() -> list[tuple[Mapping[str, object], Source]]:
    return [
        (entry, source)
        for entry in entries()
        if (source := source_of(entry, [FIXTURES])) is not None and is_read(entry, source)
    ]


def stored(program: str) -> Iterator[tuple[Mapping[str, object], Source]]:
    return ((entry, source) for entry, source in readable() if program_of(source) == program)


def program_of(source: Source) -> str:
    """Return the program that reads a stored document."""
    if source.suffix == ".json":
        return "deepspeed"
    if "compute_environment" in source.text:
        return "accelerate"
    return "llama_factory" if "finetuning_type" in source.text else "axolotl"


def refusal(
    reader: Callable[Arguments, LaunchFile], *args: Arguments.args, **names: Arguments.kwargs
) -> InvalidProblemError | None:
    try:
        reader(*args, **names)
    except InvalidProblemError as fault:
        return fault
    return None
