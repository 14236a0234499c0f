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


@pytest.mark.parametrize("launcher", ["torchtitan", "nanotron", "deepspeed", "axolotl", "megatron-bridge"])
def test_a_launcher_that_is_told_of_no_adapters_refuses_them_by_name(launcher: str) -> None:
    with pytest.raises(RefusedExportError, match="is not planned with adapters"):
        files(tuned(launcher, SHARDS if launcher == "axolotl" else NODE))


def test_layers_that_peft_has_no_name_for_are_refused_with_those_that_it_has() -> None:
    with pytest.raises(RefusedExportError, match="trl names no linear_qkv"):
        files(tuned("trl", lora_targets=("linear_qkv",)))
