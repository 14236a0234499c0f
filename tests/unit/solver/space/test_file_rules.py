"""What a launcher's files cannot say is refused before planning, with what would work."""

from typing import Any

import pytest

from meshwright.launchers.dialect import meanings
from meshwright.launchers.maxtext.export import ALWAYS_REPLAYED, KEPT_BY
from meshwright.launchers.torchtitan.read_model import flavors
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import constraints_of

SEEN = {"images_per_sample": 2, "image_tokens": 256}
PACKED = {"percentiles": {"p50": 300, "p100": 1024}, "batching": "packing"}


def asked(model: str, launcher: str, **work: Any) -> Problem:  # noqa: ANN401 - JSON
    return parse_problem({
        "model": {"name": model}, "launcher": launcher, "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {"global_batch_size": 16, "seq_length": 4096, **work},
    })  # fmt: skip


def option(name: str, value: str | bool) -> dict[str, Any]:
    return {"framework_options": {name: value}}


@pytest.mark.parametrize(
    ("model", "launcher", "work", "field", "instead"),
    [
        ("qwen3.5-9b", "megatron-bridge", {"lora_rank": 8, **SEEN}, "lora_rank", "ms-swift"),
        ("mixtral-8x7b", "megatron-bridge", {"lora_rank": 8, **option("dora", True)}, "lora_targets",
         "linear_proj"),
        ("qwen3.5-9b", "trl", {"lengths": PACKED, **SEEN}, "batching", "padding"),
        ("qwen3.5-9b", "axolotl", {"lengths": PACKED, **SEEN}, "batching", "padding"),
        ("qwen3.5-9b", "torchtitan", {"precision": "fp8", **SEEN}, "precision", "bf16"),
        ("qwen3.5-9b", "torchtitan", {**option("precision_recipe", "fp8-rowwise"), **SEEN},
         "precision_recipe", "none"),
        ("llama-3.1-8b", "maxtext", option("attention_kernel", "flash3"), "attention_kernel", "cudnn"),
        ("llama-3.1-8b", "maxtext", option("flash_attention", False), "flash_attention", "cudnn"),
        ("llama-3.1-8b", "maxtext", option("recompute_modules", "core_attn"), "recompute_modules",
         "layernorm"),
        ("mixtral-8x7b", "ms-swift", option("moe_dispatcher", "allgather"), "moe_dispatcher", "alltoall"),
        ("llama-3.1-8b", "llama-factory-accelerate", option("attention_kernel", "flex"),
         "attention_kernel", "trl"),
        ("llama-3.1-8b", "llama-factory-accelerate", {"reference": "frozen"}, "loss_kernel", "compared"),
    ],
)  # fmt: skip
def test_what_files_cannot_say_is_refused_with_what_would_work(
    model: str, launcher: str, work: dict[str, Any], field: str, instead: str
) -> None:
    with pytest.raises(InvalidProblemError) as refused:
        asked(model, launcher, **work)
    (fault,) = refused.value.errors
    assert fault.pointer.endswith(f"/{field}")
    assert instead in f"{fault.allowed} {fault.nearest}"


def test_modules_are_named_in_any_order_and_other_launchers_take_what_one_cannot_say() -> None:
    asked("llama-3.1-8b", "maxtext", **option("recompute_modules", "core_attn+layernorm"))
    asked("llama-3.1-8b", "trl", **option("attention_kernel", "flex"))
    asked("qwen3.5-9b", "llama-factory-accelerate", lengths=PACKED, **SEEN)


def test_kernels_of_tpus_and_modules_of_whole_layers_are_in_no_file_of_maxtext() -> None:
    tpus = {"groups": [{"gpu": "tpu-v5p", "num_nodes": 4, "gpus_per_node": 4}]}
    whole = {"pin": {"recompute_granularity": "full"}}
    plain = {"model": {"name": "llama-3.1-8b"}, "launcher": "maxtext"}
    work = {"global_batch_size": 16, "seq_length": 4096}
    kernel, modules = option("attention_kernel", "flash2"), option("recompute_modules", "core_attn")
    parse_problem({**plain, "cluster": tpus, "workload": {**work, **kernel}})
    dgx = {"name": "dgx-h100", "num_nodes": 1}
    parse_problem({**plain, "cluster": dgx, "workload": {**work, **modules}, "search": whole})


def test_replicas_of_axolotl_take_flash_attention_or_a_cut_loss() -> None:
    able = launcher_capabilities("axolotl")
    for options, sharded in (
        ({}, False),
        ({"attention_kernel": "sdpa"}, True),
        ({"attention_kernel": "sdpa", "loss_kernel": "cut"}, False),
    ):
        problem = asked("llama-3.1-8b", "axolotl", optimizer="galore-pure-bf16", framework_options=options)
        assert ("zero_stage > 0" in constraints_of(problem, able)) == sharded


def test_expert_ranks_of_axolotl_are_of_one_node() -> None:
    able = launcher_capabilities("axolotl")
    problem = asked("qwen3-30b-a3b", "axolotl", **option("moe_dispatcher", "deepep"))
    assert "expert_parallel_size == 1 or num_gpus <= 8" in constraints_of(problem, able)


def test_the_words_of_maxtext_are_those_of_its_arguments() -> None:
    words = dict(launcher_capabilities("maxtext").option_words)
    for name in ("attention_kernel", "gradient_dtype"):
        assert {*words[name]} == {*meanings("maxtext", f"option.{name}")}
    modules = {part for word in words["recompute_modules"] for part in word.split("+")}
    assert modules == {ALWAYS_REPLAYED, *KEPT_BY}
    assert len(words["recompute_modules"]) == 2 ** len(KEPT_BY)


def test_the_models_of_torchtitan_with_a_tower_are_its_flavors() -> None:
    assert {*launcher_capabilities("torchtitan").tower_models} == {*flavors()["qwen3_5"].values()}
