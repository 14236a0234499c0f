"""``meshwright fix --base-precision``: the edit that loads frozen weights in another type."""

from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from meshwright.launchers.editing.edits import Texts
from meshwright.launchers.reading.base import Overrides
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.cli.launch_files import source_of
from meshwright.service.fixing.fixes import Fixes, fixes_of
from meshwright.service.fixing.lines import fix_lines
from meshwright.service.fixing.search import Bench
from meshwright.service.requests.launch_files import own_of_files

CLUSTER = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8}]}
STARTED = "accelerate launch --num_processes 8 --mixed_precision bf16"
MODEL = "--model_name_or_path meta-llama/Llama-3.1-8B --max_length 2048 --per_device_train_batch_size 2"
LORA = f"{MODEL} --use_peft --lora_r 16 --lora_target_modules all-linear --bf16 true"
COMMAND = f"{STARTED} -m trl.scripts.sft {LORA}"
YAML = """\
model_name_or_path: meta-llama/Llama-3.1-8B  # the base
max_length: 2048
per_device_train_batch_size: 2
use_peft: true
lora_r: 16
bf16: true
"""
OTHER_EDIT = YAML.replace("train_batch_size: 2", "train_batch_size: 1\ngradient_accumulation_steps: 8")
PROGRAM = """\
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

trainer = SFTTrainer(
    model="meta-llama/Llama-3.1-8B",
    args=SFTConfig(
        max_length=2048, per_device_train_batch_size=2, bf16=True, model_init_kwargs={"dtype": "float32"}
    ),
    peft_config=LoraConfig(r=16, target_modules="all-linear"),
)
trainer.train()
"""
AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
adapter: lora
lora_r: 16
lora_target_linear: true
bf16: true
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 1
optimizer: adamw_torch
"""
QLORA = AXOLOTL.replace("adapter: lora", "adapter: qlora\nload_in_4bit: true")
FACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
cutoff_len: 2048
per_device_train_batch_size: 2
bf16: true
"""


ENGINE = {"ds.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'}


def fixed(folder: Path, files: dict[str, str], base: str | None) -> Fixes:
    """What ``fix`` makes of some files, the first of which is given."""
    for name, text in files.items():
        (folder / name).write_text(text)
    first = folder / next(iter(files))
    return fixes_of(source_of([first]), {"cluster": CLUSTER}, searched=False, most=1, base_precision=base)


SWIFT = (
    "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --tuner_type lora --lora_rank 16 --dataset d "
    "--target_modules all-linear --per_device_train_batch_size 2 --max_length 2048"
)
IN_FP32 = "--torch_dtype float32 --bf16 true --fp16 false"  # fp16 is on by default next to float32


@pytest.mark.parametrize(
    ("stated", "base", "wanted"),
    [
        ("--torch_dtype bfloat16", "fp32", {"--torch_dtype float32", "--bf16 true", "--fp16 false"}),
        ("", "fp32", {"--torch_dtype float32", "--bf16 true", "--fp16 false"}),
        (IN_FP32, "bf16", {"--torch_dtype bfloat16", "--bf16 true", "--fp16 false"}),
    ],
)
def test_ms_swifts_type_of_frozen_weights_is_written_with_what_it_computes_in(
    stated: str, base: str, wanted: set[str], tmp_path: Path
) -> None:
    """Its own defaults follow from torch_dtype (ms-swift 4.6, model_args.py _init_mixed_precision)."""
    (tmp_path / "a.sh").write_text(f"{SWIFT} {stated}\n")
    source = source_of([tmp_path / "a.sh"])
    own = own_of_files({"cluster": CLUSTER}, source)
    assert own.problem.workload.base_precision != base
    bench = Bench(
        source,
        Texts({"a.sh": source.text}),
        own=own,
        read=partial(own_of_files, {"cluster": CLUSTER}),
        profile=default_profile(own.problem.cluster, own.problem.priced_as),
        overrides=Overrides(),
        base=base,
    )
    moves = chain.from_iterable(map(bench.arguments.moves, bench.arguments.loadings()))
    trials = [trial for move in moves if (trial := bench.attempt([move])) is not None]
    assert trials
    assert all(one.own.problem.workload.base_precision == base for one in trials)
    assert all(one.own.problem.workload.precision == "bf16" for one in trials)
    words = trials[0].texts["a.sh"]
    assert all(one in words for one in wanted), words


def test_ms_swift_without_a_stated_type_of_products_computes_fp32_weights_in_fp16(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"{SWIFT} --torch_dtype float32\n")
    work = own_of_files({"cluster": CLUSTER}, source_of([tmp_path / "a.sh"])).problem.workload
    assert (work.precision, work.base_precision) == ("fp16", "fp32")
    (tmp_path / "a.sh").write_text(f"{SWIFT} --torch_dtype float32 --bf16 true\n")
    with pytest.raises(
        InvalidProblemError, match=r"fp16: .*transformers refuses it next to bf16\. Allowed: false"
    ):
        own_of_files({"cluster": CLUSTER}, source_of([tmp_path / "a.sh"]))


@pytest.mark.parametrize(
    ("files", "old", "new"),
    [
        ({"a.sh": COMMAND}, f"{COMMAND}", "--dtype bfloat16"),
        ({"a.sh": f"{COMMAND} --dtype float32"}, "--dtype float32", "--dtype bfloat16"),
        ({"a.sh": f"{COMMAND} --torch_dtype float32"}, "--torch_dtype float32", "--torch_dtype bfloat16"),
        (
            {"a.sh": f"""{COMMAND} --model_init_kwargs '{{"dtype": "float32"}}'"""},
            '{"dtype": "float32"}',
            '{"dtype": "bfloat16"}',
        ),
        ({"a.sh": f"{STARTED} mine.py {LORA} --torch_dtype float32"}, "float32", "--torch_dtype bfloat16"),
        (
            {"a.sh": f"{STARTED} -m trl.scripts.sft --config b.yaml", "b.yaml": YAML},
            YAML,
            "\ndtype: bfloat16\n",
        ),
        ({"b.yaml": f"{YAML}dtype: float32\n"}, "dtype: float32", "dtype: bfloat16"),
        (
            {"b.yaml": f"{YAML}model_init_kwargs:\n  dtype: float32\n"},
            "dtype: float32",
            "\n  dtype: bfloat16\n",
        ),
        (
            {"a.sh": f"{STARTED} train.py", "train.py": PROGRAM},
            '{"dtype": "float32"}',
            '{"dtype": "bfloat16"}',
        ),
    ],
)
def test_an_edit_loads_frozen_weights_in_bf16_where_you_ask_for_it(
    files: dict[str, str], old: str, new: str, tmp_path: Path
) -> None:
    found = fixed(tmp_path, files, "bf16")
    assert found.own.problem.workload.base_precision == "fp32"
    (one,) = found.sets
    ((change,),) = one.edits
    assert change.new == "bfloat16"
    ((name, text),) = one.files.items()
    assert new in text
    assert old not in text.replace(new, "")
    (tmp_path / name).write_text(text)
    own = own_of_files({"cluster": CLUSTER}, source_of([tmp_path / next(iter(files))]))
    assert own.problem.workload.base_precision == "bf16"
    assert own.problem.workload == one.own.problem.workload
    # 8.03 billion weights of 2 bytes in place of 4, and what layers keep is in 16 bits, too
    assert found.prediction.peak_memory_bytes - one.prediction.peak_memory_bytes > 2 * 8.03e9


def test_without_the_option_no_edit_changes_the_type_but_its_gain_is_named(tmp_path: Path) -> None:
    found = fixed(tmp_path, {"b.yaml": OTHER_EDIT}, None)
    assert found.sets  # one without recomputation saves 2 %
    assert not any("dtype" in text for one in found.sets for text in one.files.values())
    found = fixed(tmp_path, {"b.yaml": YAML}, None)
    text = " ".join("\n".join(fix_lines(found, None, 100)).split())
    assert "To load frozen weights in bf16 instead of fp32 (numerics), add --base-precision bf16: " in text
    assert " a step (" in text
    asked = fixed(tmp_path, {"b.yaml": YAML}, "bf16")
    assert found.in_bf16 == asked.sets[0].prediction
    named, chosen = found.to_json()["in_bf16"], asked.to_json()["sets"][0]
    assert named.items() <= chosen.items()
    assert named["step_time_s"] == found.in_bf16.step_time_s
    assert asked.to_json()["in_bf16"] is None
    assert "numerics" not in "\n".join(fix_lines(asked, None, 100))


@pytest.mark.parametrize(
    ("files", "base", "said"),
    [
        ({"a.yaml": AXOLOTL}, "bf16", "bf16: your files load frozen weights in bf16 already"),
        (
            {"a.yaml": AXOLOTL},
            "fp32",
            "Axolotl has no setting for it: frozen weights have the type that it computes in",
        ),
        ({"a.yaml": FACTORY}, "bf16", "bf16: your files load frozen weights in bf16 already"),
        ({"a.yaml": FACTORY}, "fp32", "LLaMA-Factory has no setting for it"),
        ({"a.yaml": f"{AXOLOTL}deepspeed: ds.json\n", **ENGINE}, "fp32", "Axolotl has no setting for it"),
        (
            {"a.yaml": f"{FACTORY}deepspeed: ds.json\n", **ENGINE},
            "fp32",
            "LLaMA-Factory has no setting for it",
        ),
        (
            {"a.sh": f"{COMMAND} --load_in_4bit"},
            "bf16",
            "your files load frozen weights in nf4. Allowed: remove --load_in_4bit, set --dtype bfloat16",
        ),
        (
            {"a.sh": f"{COMMAND} --load_in_8bit true --load_in_4bit false --torch_dtype float32"},
            "bf16",
            "frozen weights in int8. Allowed: remove --load_in_8bit, set --torch_dtype bfloat16",
        ),
        (
            {"a.yaml": QLORA},
            "bf16",
            "frozen weights in nf4-double. Allowed: remove load_in_4bit, set adapter: lora",
        ),
        (
            {"a.yaml": f"{FACTORY}quantization_bit: 4\n"},
            "bf16",
            "frozen weights in nf4-double. Allowed: remove quantization_bit",
        ),
        (
            {"a.sh": f"{STARTED} mine.py {LORA}"},
            "bf16",
            "no argument in your files sets the type of frozen weights: set it in your program",
        ),
        (
            {"a.sh": f"{STARTED} -m trl.scripts.sft {MODEL}"},
            "bf16",
            "bf16: your files train no LoRA adapters. Allowed: launch files that train LoRA adapters",
        ),
    ],
)
def test_a_base_precision_that_no_edit_can_set_is_refused_with_the_reason(
    files: dict[str, str], base: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidProblemError, match="--base-precision") as fault:
        fixed(tmp_path, files, base)
    assert said in str(fault.value)
    assert [one.tip for one in fault.value.errors] == ["without --base-precision"]


@pytest.mark.parametrize(
    "files",
    [
        {"a.sh": f"{COMMAND} --dtype bfloat16"},  # without --load_in_4bit
        {"a.sh": f"{COMMAND} --load_in_4bit false --torch_dtype bfloat16"},
        {"a.yaml": AXOLOTL},  # without load_in_4bit, with adapter: lora
        {"a.yaml": FACTORY},  # without quantization_bit
    ],
)
def test_who_writes_what_a_refusal_of_few_bits_allows_loads_bf16(
    files: dict[str, str], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    own = own_of_files({"cluster": CLUSTER}, source_of([tmp_path / next(iter(files))]))
    assert own.problem.workload.base_precision == "bf16"
