"""The judge of launchers' examples: what it reads itself, and which refusals it takes for right."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.examples import Example, commands_in, differences, outcome, reason
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files

TUNED = """\
base_model: Qwen/Qwen3-8B
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 2048
micro_batch_size: {micro}
gradient_accumulation_steps: 4
bf16: true
optimizer: adamw_torch
"""


def _source(micro: int) -> Source:
    return Source(name="lora.yml", text=TUNED.format(micro=micro))


def test_commands_of_a_docstring_are_joined_one_a_line() -> None:
    text = (
        '"""Notes."""\n"""\npip install trl\npython sft.py \\\n    --packing \\\n    --max_length 8\n"""\n'
    )

    assert commands_in(text) == ["python sft.py --packing --max_length 8"]


def test_a_number_read_otherwise_than_stated_is_named() -> None:
    found = read_launch_files(_source(2), Overrides(num_gpus=8))

    assert not differences(_source(2), found)
    assert differences(_source(3), found) == "micro_batch_size is 3, read as micro_batch_size 2"


def test_a_file_that_is_read_and_priced_counts_as_read() -> None:
    example = Example(repository="a/b", path="examples/lora.yml", source=_source(2))

    assert outcome(example).kind == "read"


def test_a_refusal_counts_as_right_for_a_listed_reason_alone() -> None:
    assert reason("examples/a.sh", ["launch file: eval.py evaluates a model"]) == "it is no training"
    assert reason("examples/inference/a.yaml", []) == "it is no training"
    assert not reason("examples/a.yaml", ["stage: dpo is not supported"])


def test_a_file_that_asks_for_its_models_config_is_tried_with_one_of_its_class() -> None:
    """It is rightly refused where it is read then; any other refusal counts as it would alone."""
    named = _source(2).text.replace("Qwen/Qwen3-8B", "tencent/Hunyuan-0.5B-Instruct")
    for more, kind in (("", "rightly refused"), ("lisa_step_interval: 20\nlisa_n_layers: 4\n", "missed")):
        source = replace(_source(2), text=named + more)
        assert outcome(Example(repository="a/b", path="examples/lora.yml", source=source)).kind == kind
