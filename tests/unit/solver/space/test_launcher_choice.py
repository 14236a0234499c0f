"""The launcher of a request that names none, and the adapters of each launcher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.adapters import (
    ALL_LINEAR,
    FUSED_TARGETS,
    SINGLE_TARGETS,
    adapted_layers,
    target_fault,
)
from meshwright.profiles.capabilities import lacking_facts, launcher_capabilities, launchers_of
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.planner.least_memory import default_launcher
from meshwright.solver.space.launcher_choice import (
    chosen_launcher,
    launcher_faults,
    launchers_able,
    without_files,
)

MODELS = [path.stem for path in sorted((CATALOG / "models").glob("*.yaml"))[::4]]
WORKLOAD = {"global_batch_size": 16, "seq_length": 2048}


def request(
    model: str = "llama-3.1-8b", *, cluster: str = "dgx-h100", num_nodes: int = 1, **workload: object
) -> dict[str, Any]:
    """A question that names no launcher."""
    cluster_of = {"name": cluster, "num_nodes": num_nodes}
    return {"model": {"name": model}, "cluster": cluster_of, "workload": {**WORKLOAD, **workload}}


QLORA = {"lora_rank": 16, "base_precision": "nf4"}


@pytest.mark.parametrize(
    ("model", "asked", "launcher"),
    [
        ("llama-3.1-8b", {}, "megatron-lm"),
        ("deepseek-v3", {"num_nodes": 256}, "megatron-lm"),
        # YaRN wavelengths that Megatron-LM's flags do not state
        ("kimi-k2", {"num_nodes": 256}, "megatron-bridge"),
        ("olmo-2-7b", {}, "accelerate"),  # norms behind the MLP: a user's own script builds them, compiled
        ("llama-3.1-8b", {"lora_rank": 16}, "trl"),
        ("llama-3.1-8b", QLORA, "trl"),
        ("llama-3.1-8b", {"lora_rank": 16, "num_nodes": 4}, "ms-swift"),
        ("llama-3.1-8b", {**QLORA, "num_nodes": 4}, "trl"),  # ms-swift's frozen weights are bf16
        ("llama-3.1-8b", {"lora_rank": 16, "lora_targets": ["linear_qkv"]}, "ms-swift"),  # its names alone
        ("llama-3.1-8b", {"optimizer": "adamw-8bit"}, "trl"),
        ("llama-3.1-8b", {"optimizer": "galore"}, "trl"),
        ("llama-3.1-8b", {"optimizer": "adamw-bf16"}, "megatron-lm"),
        ("llama-3.1-8b", {"precision": "fp16"}, "megatron-lm"),
    ],
)
def test_the_launcher_follows_the_question(model: str, asked: dict[str, Any], launcher: str) -> None:
    assert parse_problem(request(model, **asked)).launcher == launcher


@pytest.mark.parametrize(
    "launcher", [one for one in launchers_of("any") if launcher_capabilities(one).adapters]
)
def test_every_launcher_adapts_layers_that_a_model_has(launcher: str) -> None:
    able = launcher_capabilities(launcher)
    for name in MODELS:
        model = find_model(name)
        if not lacking_facts(able, model) and model.diffusion is None:
            own = able.default_targets(model)
            assert target_fault(model, own) is None, name
            assert able.targets_of(model, own) == own, "its own names are left alone"


def test_all_linear_layers_are_the_same_layers_under_every_name() -> None:
    """Llama 3.1 8B, one layer: 4096 x (4096 + 1024 + 1024) of attention's input, fused or not."""
    model = find_model("llama-3.1-8b")
    widths = {
        launcher: sum(
            layer.inputs * layer.outputs
            for layer in adapted_layers(
                model, "dense", launcher_capabilities(launcher).targets_of(model, ALL_LINEAR)
            )
        )
        for launcher in ("trl", "axolotl", "ms-swift", "none")
    }
    assert set(widths.values()) == {4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)}


def test_named_layers_keep_their_launchers_names_where_another_has_others() -> None:
    model = find_model("llama-3.1-8b")
    swift, trl = launcher_capabilities("ms-swift"), launcher_capabilities("trl")
    assert swift.targets_of(model, ("q_proj", "k_proj", "v_proj", "o_proj")) == FUSED_TARGETS[:2]
    assert trl.targets_of(model, FUSED_TARGETS[:1]) == ("q_proj", "k_proj", "v_proj")
    assert swift.targets_of(model, ("q_proj", "v_proj")) == ("q_proj", "v_proj"), "two of three: no name"
    assert trl.targets_of(model, ALL_LINEAR) == SINGLE_TARGETS


@pytest.mark.parametrize("launcher", ["any", "trl", "ms-swift", "none"])
def test_a_request_for_all_linear_layers_is_written_down_and_read_back(launcher: str) -> None:
    asked = {**request(lora_rank=8, lora_targets=["all-linear"]), "launcher": launcher}
    problem = parse_problem(asked)
    assert parse_problem(problem_to_mapping(problem)) == problem


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"lora_rank": 16}, "the launchers trl, llama-factory-accelerate, axolotl, accelerate, ms-swift"),
        (QLORA, "the launchers trl, llama-factory-accelerate, axolotl, accelerate"),
        ({"optimizer": "adamw-8bit"}, "adamw, adamw-bf16, or the launchers trl"),
    ],
)
def test_a_wish_that_a_launcher_lacks_names_those_that_have_it(asked: dict[str, Any], allowed: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem({**request(**asked), "launcher": "megatron-lm"})
    fault = caught.value.errors[0]
    assert fault.allowed is not None
    assert fault.allowed.startswith(allowed)
    assert fault.tip == "--launcher trl"
    parse_problem({**request(**asked), "launcher": "trl"})


@pytest.mark.parametrize(
    ("stated", "options", "able"),
    [
        ({}, {"mlp_tile_tokens": 16_384}, ("axolotl", "deepspeed")),
        ({"reference": "frozen"}, {"loss_kernel": "compared"}, ("llama-factory-accelerate", "deepspeed")),
        ({}, {"loss_kernel": "masked"}, ("axolotl", "deepspeed")),
    ],
)
def test_options_that_few_launchers_have_choose_one_of_these(
    stated: dict[str, Any], options: dict[str, Any], able: tuple[str, ...]
) -> None:
    """Axolotl 0.19 tiled_mlp, integrations/diffusion; LLaMA-Factory 0.9.5 use_asft_loss."""
    problem = parse_problem({**request(**stated), "launcher": "none"})
    work = replace(problem.workload, framework_options=options)
    causal = options.get("loss_kernel") != "masked"
    problem = replace(problem, workload=work, model=replace(problem.model, causal=causal))
    assert (chosen_launcher(problem).launcher, launchers_able(problem)) == (able[0], able)
    for launcher in ("megatron-lm", "accelerate", "trl"):
        messages = [one.message for one in launcher_faults(problem, launcher)]
        assert any(one.startswith(f"{launcher} has no setting for ") for one in messages)


def test_where_fsdp_has_no_room_deepspeed_may_have() -> None:
    """DBRX on 64 GPUs fits in shards, in one micro-batch: between several FSDP2 adds whole gradients up."""
    asked: dict[str, Any] = {"num_nodes": 8, "global_batch_size": 256}
    assert parse_problem(request("dbrx", **asked)).launcher == "accelerate"
    # experts of ZeRO's own ranks: 400 billion parameters
    assert parse_problem(request("llama-4-maverick", **asked | {"num_nodes": 16})).launcher == "deepspeed"


def test_the_choice_depends_on_no_launcher_that_the_problem_names() -> None:
    problem = parse_problem({**request(lora_rank=16), "launcher": "any"})
    assert chosen_launcher(problem).launcher == "trl"
    assert next(launcher_faults(problem, "megatron-lm")).pointer == "/workload/lora_rank"
    assert "megatron-lm" not in launchers_able(problem)


@pytest.mark.parametrize(
    ("asked", "pin", "said", "instead"),
    [
        ({"lora_rank": 16}, {"zero_stage": 1}, "trl cannot run zero_stage = 1 (pinned)", "trl"),
        ({"precision": "fp8"}, {}, "accelerate doesn't support fp8", "accelerate"),
        ({"optimizer": "muon", "lora_rank": 16}, {}, "trl doesn't support muon", "trl"),
        ({"lora_rank": 16}, {}, "", "trl"),
    ],
)
def test_where_an_option_leaves_no_launcher_it_is_named_with_the_one_it_costs(
    asked: dict[str, Any], pin: dict[str, int], said: str, instead: str
) -> None:
    """Layers with adapters are then no reason: each launcher adapts its own."""
    raw = request("gemma-3-12b", **asked)
    problem = parse_problem(raw | {"search": {"pin": pin}})
    choice = default_launcher(problem)
    assert choice.launcher == problem.launcher
    assert "modules called" not in choice.sentence
    if not said:
        assert (problem.launcher, [*without_files(problem, choice)]) == (instead, [])
        return
    (line,) = without_files(problem, choice)
    assert line.startswith(f"no launch files: {said}. With")
    assert line.endswith(f", --launcher {instead} writes them")
    typed = parse_problem(raw | {"search": {"pin": pin}, "launcher": "none"})
    assert [*without_files(typed, default_launcher(typed))] == [line]
    plain = request("gemma-3-12b", **{name: value for name, value in asked.items() if name == "lora_rank"})
    assert parse_problem(plain).launcher == instead
    assert parse_problem(plain | {"launcher": instead}).launcher == instead
