"""LoRA and QLoRA in launch files: written where the launcher has them, read back, refused elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.library import find_model
from meshwright.service.launchers.reading.base import Source
from meshwright.service.launchers.reading.registry import read_launch_files
from meshwright.service.launchers.registry import export
from meshwright.service.launchers.target import Target
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload
from tests.launchers.cases import plan
from tests.launchers.plans import problem_of

NODE = Configuration(data_parallel_size=8, num_microbatches=16, stage_layers=(32,))
SHARDS = replace(NODE, zero_stage=3, zero_shard_size=8)


def tuned(launcher: str, config: Configuration = NODE, **changes: Any) -> Target:  # noqa: ANN401
    """A plan of Llama 3.1 8B with adapters of rank 16 on one node."""
    problem = problem_of(launcher, find_model("llama-3.1-8b"), num_nodes=1)
    adapters: dict[str, Any] = {"lora_rank": 16, "lora_targets": ("q_proj", "v_proj"), **changes}
    return Target(
        plan=plan(config), problem=replace(problem, workload=replace(problem.workload, **adapters))
    )


def files(found: Target) -> dict[str, str]:
    return export(found.plan, found.problem, found.problem.launcher).files


def read_back(found: Target) -> Workload:
    texts = files(found)
    source = Source(name="trl_sft.yaml", text=texts["trl_sft.yaml"], files=texts)
    return read_launch_files(source).workload


@pytest.mark.parametrize("base", ["bf16", "nf4", "nf4-double"])
def test_trl_is_told_rank_layers_and_the_base_and_they_are_read_back(base: str) -> None:
    found = tuned("trl", base_precision=base)
    told = yaml.safe_load(files(found)["trl_sft.yaml"])
    assert (told["use_peft"], told["lora_r"], told["lora_target_modules"]) == (
        True,
        16,
        ["q_proj", "v_proj"],
    )
    assert told["dtype"] == "bfloat16"
    assert told.get("load_in_4bit", False) == (base != "bf16")
    again = read_back(found)
    names = ("lora_rank", "lora_targets", "base_precision")
    assert [getattr(again, name) for name in names] == [getattr(found.workload, name) for name in names]


def test_weights_of_4_bits_are_not_cut_by_fsdp() -> None:
    assert files(tuned("trl", SHARDS))
    with pytest.raises(RefusedExportError, match="does not run 3 beside the others"):
        files(tuned("trl", SHARDS, base_precision="nf4"))


def test_axolotl_is_told_rank_and_layers_and_they_are_read_back() -> None:
    found = tuned("axolotl", SHARDS)
    texts = files(found)
    told = yaml.safe_load(texts["axolotl.yaml"])
    assert [told[name] for name in ("adapter", "lora_r", "lora_alpha")] == ["lora", 16, 32]
    again = read_launch_files(Source(name="axolotl.yaml", text=texts["axolotl.yaml"], files=texts)).workload
    assert (again.lora_rank, again.lora_targets) == (16, ("q_proj", "v_proj"))


def test_ms_swift_is_told_rank_and_layers_and_they_are_read_back() -> None:
    found = tuned("ms-swift", lora_targets=("linear_qkv", "linear_fc1"))
    texts = files(found)
    assert "--tuner_type lora" in texts["plan_args.sh"]
    assert "--target_modules linear_qkv linear_fc1" in texts["plan_args.sh"]
    again = read_launch_files(Source(name="launch.sh", text=texts["launch.sh"], files=texts)).workload
    assert (again.lora_rank, again.lora_targets) == (16, ("linear_qkv", "linear_fc1"))


@pytest.mark.parametrize("launcher", ["axolotl", "ms-swift"])
def test_frozen_weights_of_4_bits_are_refused_by_name_where_they_are_not_priced(launcher: str) -> None:
    targets = ("linear_qkv",) if launcher == "ms-swift" else ("q_proj",)
    with pytest.raises(RefusedExportError, match="is not planned with frozen weights in nf4"):
        files(tuned(launcher, lora_targets=targets, base_precision="nf4"))


@pytest.mark.parametrize(
    ("launcher", "optimizer", "config", "written", "dtype"),
    [
        ("trl", "adamw-8bit", NODE, "adamw_bnb_8bit", "float32"),
        ("trl", "adamw-8bit", SHARDS, "adamw_torch_8bit", "float32"),
        ("trl", "adamw-8bit-bf16", NODE, "adamw_bnb_8bit", "bfloat16"),
        ("axolotl", "adamw-8bit-bf16", SHARDS, "adamw_torch_8bit", None),
    ],
)
def test_8_bit_adam_is_written_by_its_name_and_read_back(
    launcher: str, optimizer: str, config: Configuration, written: str, dtype: str | None
) -> None:
    found = tuned(launcher, config, lora_rank=0, optimizer=optimizer)
    texts = files(found)
    name = {"trl": "trl_sft.yaml", "axolotl": "axolotl.yaml"}[launcher]
    told = yaml.safe_load(texts[name])
    assert told.get("optim", told.get("optimizer")) == written
    assert told.get("dtype") == dtype
    assert (
        read_launch_files(Source(name=name, text=texts[name], files=texts)).workload.optimizer == optimizer
    )


def test_a_script_of_the_trainer_is_told_of_8_bit_adam_on_its_command_line() -> None:
    texts = files(tuned("accelerate", lora_rank=0, optimizer="adamw-8bit"))
    assert "--optim adamw_bnb_8bit" in texts["launch.sh"]


def test_weights_without_a_copy_are_no_shards_that_fsdp_casts_up() -> None:
    with pytest.raises(RefusedExportError, match="zero_stage == 0"):
        files(tuned("trl", SHARDS, lora_rank=0, optimizer="adamw-8bit-bf16"))


@pytest.mark.parametrize("launcher", ["torchtitan", "nanotron", "deepspeed", "megatron-bridge"])
def test_a_launcher_that_is_told_of_no_adapters_refuses_them_and_names_those_that_are(
    launcher: str,
) -> None:
    with pytest.raises(RefusedExportError, match=r"with adapters; accelerate, axolotl, ms-swift, trl are"):
        files(tuned(launcher))


def test_layers_that_peft_has_no_name_for_are_refused_with_those_that_it_has() -> None:
    with pytest.raises(RefusedExportError, match="trl names no linear_qkv"):
        files(tuned("trl", lora_targets=("linear_qkv",)))
