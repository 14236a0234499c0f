"""Every argument of a trainer's own classes: read, harmless, listed or refused, and never passed over.

The tables have the classes' fields (``python -m benchmarks.catalog.launcher_flags --check``, and the
parsers of ``tests/launchers``), so these tests need no launcher: each field is put into a small file, at
its default and at other values.
"""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import yaml

from meshwright.launchers.accelerate.read import FILE_NAMES
from meshwright.launchers.flags import Flag, flag_names
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import option_names
from tests.draws import TIMES

Put = Callable[[str, str], Source]
ON_8 = Overrides(num_gpus=8)
BATCH = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 4096 --output_dir o"
SWIFT = f"NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --torch_dtype bfloat16 {BATCH}"
MEGATRON = (
    "NPROC_PER_NODE=8 megatron sft --max_length 4096 --micro_batch_size 2 --global_batch_size 64 "
    "--torch_dtype bfloat16 --tensor_model_parallel_size 2"
)
REPLAYED = "--recompute_granularity full --recompute_method block --recompute_num_layers 2"
TRAINER = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 2\noutput_dir: o\nbf16: true\n"
    "gradient_accumulation_steps: 4\n"
)
TRL = f"{TRAINER}max_length: 4096\n"
FACTORY = f"{TRAINER}stage: sft\ndo_train: true\ntemplate: qwen\ndataset: a\ncutoff_len: 4096\n"
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-7B\nsequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
    "bf16: true\ngradient_checkpointing: true\noptimizer: adamw_torch_fused\nfsdp_version: 2\n"
    "fsdp_config:\n  reshard_after_forward: true\n"
)
LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"


OF_TRAINER = (
    "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
    "--model_max_length 4096 --output_dir o"
)
MESH = "num_processes: 8\nnum_machines: 1\nmixed_precision: bf16\n"


def command(words: str) -> Put:
    def put(name: str = "", value: str = "") -> Source:
        text = f"{words} --{name} {value}\n" if name else f"{words}\n"
        return Source(name="a.sh", text=text, files={"a.sh": text})

    return put


def launched(words: str) -> Put:
    """Put an option of ``accelerate launch`` before the program."""

    def put(name: str = "", value: str = "") -> Source:
        option = f" --{name} {shlex.quote(value)}" if name else ""
        text = f"{words}{option} train.py --bf16 true {OF_TRAINER}\n"
        return Source(name="a.sh", text=text, files={"a.sh": text})

    return put


def read_yaml(text: str) -> Any:  # noqa: ANN401 - of any shape
    return yaml.load(text, yaml.CSafeLoader)


def document(text: str) -> Put:
    def put(name: str = "", value: str = "") -> Source:
        values = read_yaml(text)
        *sections, last = name.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place |= {last: read_yaml(value)} if name else {}
        said = yaml.dump(values, Dumper=yaml.CSafeDumper, sort_keys=False)
        return Source(name="a.yaml", text=said, files={"a.yaml": said})

    return put


def beside(command: str, values: str) -> Put:
    """Put a value into accelerate's YAML or DeepSpeed's JSON, next to the command that names it."""

    def put(name: str = "", value: str = "") -> Source:
        inside = document(values)(name, value or "null").text
        text = json.dumps(read_yaml(inside)) if "ds.json" in command else inside
        files = {"a.sh": command + "\n", "ds.json" if "ds.json" in command else "mesh.yaml": text}
        return Source(name="a.sh", text=files["a.sh"], files=files)

    return put


# By launcher: its tables, its command where a table has several, and files: one of them shows an argument.
FILES: dict[str, tuple[tuple[str, ...], str, tuple[Put, ...]]] = {
    "ms-swift": (
        ("ms-swift", "transformers"),
        "sft",
        tuple(
            command(f"{SWIFT} --tuner_type {more}")
            for more in ("full", "lora", "lora --quant_bits 4 --quant_method bnb")
        ),
    ),
    "Megatron-SWIFT": (
        ("ms-swift",),
        "megatron",
        tuple(
            command(f"{MEGATRON} --model {more}")
            for more in (
                "Qwen/Qwen2.5-7B",
                "Qwen/Qwen2.5-7B --tuner_type lora",
                "Qwen/Qwen3-30B-A3B",
                "Qwen/Qwen2.5-7B --pipeline_model_parallel_size 2 --sequence_parallel true",
                "Qwen/Qwen2.5-7B --fp8_format e4m3 --context_parallel_size 2 --overlap_grad_reduce true",
                "Qwen/Qwen2.5-7B --use_precision_aware_optimizer true --optimizer_cpu_offload true",
                f"Qwen/Qwen2.5-7B {REPLAYED}",
                "Qwen/Qwen3-30B-A3B --moe_token_dispatcher_type flex --moe_expert_capacity_factor 1.0",
            )
        ),
    ),
    "TRL": (
        ("trl", "transformers"),
        "",
        tuple(
            document(TRL + more)
            for more in ("", "use_peft: true\n", "use_peft: true\nload_in_4bit: true\n")
        ),
    ),
    "LLaMA-Factory": (
        ("llama-factory", "transformers"),
        "",
        tuple(
            document(f"{FACTORY}finetuning_type: {more}")
            for more in ("full\n", "lora\n", "lora\nquantization_bit: 4\n", "full\nuse_galore: true\n")
        ),
    ),
    "Axolotl": (("axolotl",), "", (document(AXOLOTL), document(AXOLOTL + LORA))),
    "transformers": (
        ("transformers",),
        "",
        tuple(
            command(f"{start} train.py --bf16 true {OF_TRAINER}{more}")
            for start, more in (
                ("torchrun --nproc_per_node 8", ""),
                ("torchrun --nproc_per_node 8", " --fsdp full_shard"),
                ("deepspeed --num_gpus 8", " --deepspeed ds_z2_config.json"),
            )
        ),
    ),
    "accelerate": (
        ("accelerate",),
        "",
        tuple(
            beside(f"accelerate launch --config_file mesh.yaml train.py --bf16 true {OF_TRAINER}", values)
            for values in (
                f"distributed_type: FSDP\n{MESH}fsdp_config:\n  fsdp_version: 2\n",
                f"distributed_type: FSDP\n{MESH}fsdp_config:\n  fsdp_version: 1\n",
                f"distributed_type: DEEPSPEED\n{MESH}deepspeed_config:\n  zero_stage: 2\n",
                f"distributed_type: MULTI_GPU\n{MESH}",
            )
        ),
    ),
    "accelerate launch": (
        ("accelerate",),
        "",
        tuple(
            launched(f"accelerate launch --num_processes 8 --num_machines 1 {engine}")
            for engine in ("--use_fsdp --fsdp_version 2", "--use_deepspeed --zero_stage 2", "--multi_gpu")
        ),
    ),
    "DeepSpeed": (
        ("deepspeed",),
        "",
        tuple(
            beside(f"deepspeed --num_gpus 8 train.py --bf16 true {OF_TRAINER} --deepspeed ds.json", values)
            for values in (
                "zero_optimization: {stage: 2}\nbf16: {enabled: true}\n",
                "zero_optimization: {stage: 3}\nbf16: {enabled: true}\n",
                "zero_optimization: {stage: 3, offload_optimizer: {device: cpu}}\nbf16: {enabled: true}\n",
            )
        ),
    ),
}


def rows(launcher: str) -> Iterator[tuple[str, Flag]]:
    """Yield the arguments that the launcher's newest release takes, but for those that its files state.

    Arguments that a launcher shares with transformers are tried in its own files only in ``make fuzz``.
    """
    tables, by, files = FILES[launcher]
    of_others = flag_names(*tables[1:]).rows if tables[1:] and TIMES == 1 else {}
    said = " ".join(files[0]("", "").files.values())
    for name, row in flag_names(*tables).rows.items():
        if of_others.get(name) == row:
            continue
        taken = (not row.by or by in row.by) and (launcher, place_of(name)) not in ELSEWHERE
        own = re.escape(name.rpartition(".")[2])
        stated = re.search(rf"(?:^|--|^ +|\"){own}(?:\"?:|\s)", said, re.MULTILINE)
        if row.type and not (row.until or row.of not in (None, "ds_config") or stated) and taken:
            yield name, row


# accelerate's table has its command's options next to the names of its file.
ELSEWHERE = (("accelerate", "option"), ("accelerate launch", "section"), ("accelerate launch", "file"))


def place_of(name: str) -> str:
    """Return where accelerate takes a name: in a section of its file, or as an option alone."""
    if "." in name:
        return "section"
    if name in ("distributed_type", "compute_environment"):
        return "file"
    return "" if name in FILE_NAMES else "option"


def answer(source: Source) -> LaunchFile | str:
    try:
        return read_launch_files(source, ON_8)
    except InvalidProblemError as fault:
        return str(fault)


@cache
def unchanged(put: Put) -> LaunchFile | str:
    return answer(put("", ""))


def priced(found: LaunchFile | str) -> object:
    if isinstance(found, str):
        return found
    return found.launcher, found.configuration, found.workload, replace(found.model, name="")


def words_of(row: Flag) -> list[str]:
    """Return legal values of an argument that are not its default."""
    usual = str(row.default).lower()
    literal = re.search(r"Literal\[([^\]]*)\]", row.type)
    said = [one.strip() for one in literal[1].split(",")] if literal else []
    words = [str(one) for one in (*row.choices, *row.words, *row.priced_as, *said)]
    if not words and "bool" in row.type:
        words = ["false", "true"]
    elif not words:
        words = ["3" if "int" in row.type else "0.37" if "float" in row.type else "abcd"]
    return [one for one in dict.fromkeys(words) if one.lower() not in (usual, "none")]


@pytest.mark.parametrize("launcher", FILES)
def test_the_files_are_read(launcher: str) -> None:
    assert [found for put in FILES[launcher][2] if isinstance(found := unchanged(put), str)] == []


@pytest.mark.parametrize("launcher", FILES)
def test_an_argument_at_its_default_changes_nothing(launcher: str) -> None:
    (put, *_), wrong = FILES[launcher][2], []
    base = priced(unchanged(put))
    for name, row in rows(launcher):
        text = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
        if row.default in (None, "") or row.needs or row.why.startswith("read with"):
            continue
        if OF_OTHERS.fullmatch(name):
            continue
        if priced(answer(put(name, text))) != base:
            wrong.append(f"{name} {text}: {answer(put(name, text))}"[:200])
    assert not isinstance(base, str)
    assert wrong == []


# Defaults that only a model with a tower, a section that is on, or the other command's class has. Any size
# of accelerate's mesh turns the mesh on, and so does any argument of ZenFlow.
OF_OTHERS = re.compile(
    r"image_max_pixels|qat\.group_size|qat\.quantize_embedding|optimizer|padding_free|(?:\w+\.)?parallelism_config_\w+|"
    r"zero_optimization\.zenflow\.\w+"
)


@pytest.mark.parametrize("launcher", FILES)
def test_no_argument_that_is_priced_or_refused_is_passed_over(launcher: str) -> None:
    silent = []
    for name, row in rows(launcher):
        if row.role in ("harmless", "means") or row.needs or name in EITHER:
            continue
        if not any(shows(put, name, word) for word in words_of(row) for put in FILES[launcher][2]):
            silent.append(name)
    assert silent == []


def shows(put: Put, name: str, word: str) -> bool:
    """Return whether a value changes what is priced, is refused, listed, or named in a note."""
    base, found = unchanged(put), answer(put(name, word))
    if isinstance(found, str) or isinstance(base, str):
        return found != base
    said = " ".join({*found.notes, *found.unread} - {*base.notes, *base.unread})
    return priced(found) != priced(base) or name.rpartition(".")[2] in said


# Of each launcher's first file; 1,300 with other seeds (TRL, Axolotl: 1 to 3 in price, too) held.
_PAIRS = 8


@pytest.mark.parametrize("launcher", FILES)
def test_two_arguments_are_read_alike_in_either_order_and_each_as_it_is_alone(launcher: str) -> None:
    """What one changes, and the other doesn't, is the same next to the other; or both are refused."""
    put, draw = FILES[launcher][2][0], random.Random(0)
    settings = {
        name: words_of(row)
        for name, row in rows(launcher)
        if row.role in ("priced", "means") and not row.needs and words_of(row)
    }
    base, wrong = parts(unchanged(put)), []
    for _ in range(_PAIRS):
        one, other = ((name, draw.choice(settings[name])) for name in draw.sample([*settings], 2))
        together = [parts(answer(put_both(put, *pair))) for pair in ((one, other), (other, one))]
        if together[0].keys() != together[1].keys():
            wrong.append((one, other, "read in one order alone"))
        alone = [parts(answer(put(*setting))) for setting in (one, other)]
        if any("refused" in found for found in (*alone, together[0])):
            continue
        for name in base:
            first, second, both = (found[name] for found in (*alone, together[0]))
            changed = {str(found) for found in (first, second) if found != base[name]} or {str(base[name])}
            if together[1][name] != both or str(both) not in changed:
                wrong.append((one, other, name))
    assert wrong == []


def parts(found: LaunchFile | str) -> dict[str, object]:
    """Return all that is priced by its name."""
    if isinstance(found, str):
        return {"refused": found}
    records = (found.configuration, found.workload, found.model)
    found_parts = {
        f"{type(one).__name__}.{part.name}": getattr(one, part.name)
        for one in records
        for part in fields(one)
        if part.name not in ("name", "framework_options")
    }
    options = found.workload.framework_options
    rule, _, dtypes = str(found_parts.pop("Workload.optimizer")).partition("-")  # galore, pure-bf16
    found_parts |= {"optimizer's rule": rule, "optimizer's dtypes": dtypes}
    return found_parts | {f"option.{name}": options.get(name) for name in option_names()}


def put_both(put: Put, one: tuple[str, str], other: tuple[str, str]) -> Source:
    """Return a file with two more arguments, in their order."""
    first = put(*one)
    if first.suffix == ".yaml":
        return document(first.text)(*other)
    if inside := next((text for name, text in first.files.items() if name != first.name), ""):
        return beside(first.text.strip(), inside)(*other)
    head, program, tail = first.text.strip().partition(" train.py")
    if f" --{one[0]} " in head:  # of what starts the program
        text = f"{head} --{other[0]} {shlex.quote(other[1])}{program}{tail}\n"
        return Source(name=first.name, text=text, files={first.name: text})
    return command(first.text.strip())(*other)


# Arguments that change nothing in the files above, and why.
_TOWER = "the models have no tower"
_ALIKE = "its values cost the same"
_OTHERS = "another argument turns it on, or decides"
EITHER = {
    **dict.fromkeys(("do_train", "do_predict"), "these trainers train whatever it is"),
    **dict.fromkeys(
        (
            "freeze_aligner", "freeze_language_model", "freeze_llm", "freeze_mm_modules",
            "freeze_multi_modal_projector", "freeze_vision_tower", "freeze_vit", "max_pixels",
        ),
        _TOWER,
    ),
    **dict.fromkeys(
        (
            "bnb_4bit_quant_type", "cross_entropy_fusion_impl", "fp4_recipe", "fp8_param_gather",
            "fsdp_auto_wrap_policy", "fsdp_config.fsdp_auto_wrap_policy", "parallelism_config_cp_backend",
            "parallelism_config.parallelism_config_cp_backend",
            "fsdp_config.auto_wrap_policy", "lora_dropout", "loss_type", "quantization_type",
            "use_precision_aware_optimizer",
        ),
        _ALIKE,
    ),
    **dict.fromkeys(
        (
            "bfloat16", "cut_cross_entropy", "ddp_bucket_cap_mb", "float16", "fp16",
            "fsdp_config.fsdp_version", "gradient_checkpointing", "liger_cross_entropy", "mixed_precision",
            "liger_fused_linear_cross_entropy",
            "liger_glu_activation", "liger_layer_norm", "liger_rms_norm", "liger_swiglu",
            "llama4_linearized_experts", "main_params_dtype", "moe_enable_deepep",
            "moe_pad_expert_input_to_capacity", "neat_packing",
            "overlap_param_gather", "pad_to_multiple_of", "ray_num_workers", "tf32", "use_ray",
        ),
        _OTHERS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("launcher", ["ms-swift", "Megatron-SWIFT", "LLaMA-Factory"])
def test_a_name_that_the_class_lacks_is_refused_as_unknown(launcher: str) -> None:
    tables, by, (put, *_) = FILES[launcher]
    others = [name for name, row in flag_names(*tables).rows.items() if row.by and by not in row.by]
    for name in ("nodes_of_it", *others):
        found = answer(put(name, "3"))
        assert isinstance(found, str), name
        assert re.search(rf"{name}: line \d+: (?:is unknown|needs|is none)", found), found


def test_a_name_at_which_accelerate_stops_is_refused() -> None:
    # an option in its file, a name of its file as an option, and a name that a later release has
    in_file, on_command = FILES["accelerate"][2][0], FILES["accelerate launch"][2][0]
    rows = flag_names("accelerate").rows
    options = [name for name, row in rows.items() if place_of(name) == "option" and row.of is None]
    passed = [name for name in options if not isinstance(answer(in_file(name, "3")), str)]
    assert len(options) > 20
    assert passed == []
    assert "foo: line 7: is unknown" in str(answer(in_file("foo", "3")))
    assert "not an option" in str(answer(on_command("distributed_type", "FSDP")))
    assert "KTransformers" in str(answer(in_file("kt_config", "{enabled: true}")))
