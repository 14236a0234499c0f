"""Published recipes as candidates: which of them a request has, what each needs, and when it is named."""

from dataclasses import fields, replace

import pytest

from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.check import violations
from meshwright.solver.clock import Watch
from meshwright.solver.planner.levers.levers import levers_of
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.recipes import fastest_recipe, in_words, whose
from meshwright.solver.predict import predict, profile_of_variant
from meshwright.solver.problem import Problem
from meshwright.solver.runs.table import PublishedRecipe, published_recipes


def asked(model: str, cluster: str, nodes: int, batch: int, **workload: object) -> tuple[Problem, Profile]:
    problem = parse_problem(
        {
            "model": {"name": model},
            "cluster": {"name": cluster, "num_nodes": nodes},
            "workload": {"global_batch_size": batch, "seq_length": 4096, **workload},
            "launcher": "megatron-bridge",
            "search": {"certify": "none", "top_k": 1},
        }
    )
    return problem, default_profile(problem.cluster, problem.launcher)


def test_a_recipe_knows_nothing_that_its_run_measured() -> None:
    assert {one.name for one in fields(PublishedRecipe)} == {"source", "shape"}
    assert len(published_recipes(61, 7168)) > 10
    assert published_recipes(61, 7169) == ()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("NVIDIA-NeMo/Megatron-Bridge@v0.4.2:scripts/performance/configs/deepseek", "NVIDIA"),
        ("mlcommons/training_results_v5.1@441d65f4445c:Dell/benchmarks/llama31_8b", "Dell"),
        ("pytorch/torchtitan@4d88a8a44:docs/performance.md", "PyTorch"),
        ("yanring/Megatron-MoE-ModelZoo@e865051:best_practice", "Megatron-MoE-ModelZoo"),
    ],
)
def test_a_recipe_is_named_after_its_publisher(source: str, name: str) -> None:
    assert whose(source) == name


def test_the_fastest_recipe_can_run_and_states_all_that_it_needs() -> None:
    problem, profile = asked("deepseek-v3", "dgx-b200", 32, 4096, precision="mxfp8")
    found = fastest_recipe(problem, profile, precision="fp8")
    assert found is not None
    costs = profile_of_variant(found.problem, profile)
    assert not any(violations(found.problem, costs, found.config))
    assert predict(found.problem, costs, found.config).step_time_s == found.prediction.step_time_s
    assert (found.name, found.config.num_gpus) == ("NVIDIA's recipe", 256)
    assert found.needs[0] == "DeepEP"
    assert "switches" in found.settings["search.allow"]
    assert "moe_force_balance" not in found.problem.workload.framework_options
    # none of the others is faster, each with all that it has in force
    for recipe in published_recipes(61, 7168):
        theirs = recipe.shape.problem
        if theirs.cluster.groups[0].gpu.slug != "b200-sxm-180gb" or theirs.cluster.num_gpus != 256:
            continue
        real = {
            name: value
            for name, value in theirs.workload.framework_options.items()
            if name not in ("moe_force_balance", "moe_capacity_factor")
        }
        work = replace(theirs.workload, framework_options=real, global_batch_size=4096)
        config = replace(
            recipe.shape.configuration,
            num_microbatches=4096 // recipe.shape.configuration.data_parallel_size,
        )
        own = replace(problem, workload=work)
        if work.framework_options.get("precision_recipe") == "mxfp8" and config.micro_batch_size == 1:
            seen = predict(own, profile_of_variant(own, profile), config)
            assert found.prediction.step_time_s <= 1.02 * seen.step_time_s


def test_other_models_gpus_launchers_and_formats_have_no_recipe() -> None:
    problem, profile = asked("deepseek-v3", "dgx-b200", 32, 4096)
    assert fastest_recipe(problem, profile, precision="bf16") is None
    assert fastest_recipe(replace(problem, launcher="torchtitan"), profile, precision="fp8") is None
    other, costs = asked("deepseek-v3", "dgx-a100", 32, 4096)
    assert fastest_recipe(other, costs, precision="bf16") is None


def levers(problem: Problem, profile: Profile, answer: Answer) -> list[str]:
    watch = Watch(time_limit_s=60.0)
    found = levers_of(problem, profile, answer, watch, looks=10)
    return [one.change for one in found if one.kind == "recipe"]


def test_a_recipe_is_named_where_it_is_faster_than_the_first_plan_by_more_than_one_per_cent() -> None:
    problem, profile = asked("llama-3-70b", "dgx-h100", 8, 128, seq_length=8192)
    options = replace(problem.options, pin={"tensor_parallel_size": 4, "pipeline_parallel_size": 4})
    problem = replace(problem, options=options)
    answer, recipe = ask(problem, profile), fastest_recipe(problem, profile, precision="bf16")
    assert recipe is not None
    first = answer.plans[0]
    assert first.prediction.step_time_s <= 1.01 * recipe.prediction.step_time_s
    assert levers(problem, profile, answer) == []
    slower = replace(
        first, prediction=replace(first.prediction, step_time_s=2 * recipe.prediction.step_time_s)
    )
    assert levers(problem, profile, replace(answer, plans=(slower,))) == ["NVIDIA's recipe"]


def test_a_recipe_that_keeps_layers_on_the_hosts_says_so() -> None:
    # Llama 3 70B on 64 GB200 under Megatron-FSDP: half of the layers' activations leave, and 32 % of risk
    problem, profile = asked("llama-3-70b", "gb200-nvl72", 16, 256, seq_length=8192, precision="fp8")
    found = fastest_recipe(problem, profile, precision="fp8")
    assert found is not None
    assert (found.config.zero_stage, found.config.offload) == (3, "activations")
    assert found.settings["search.allow"] == ["offload"]
    assert found.settings["workload.framework_options"] == {"offload_layers": 40}
    assert found.needs[0] == "activations of 40 layers on the hosts"
    assert found.effect == "activations on the hosts"


def test_needs_are_one_line() -> None:
    assert in_words(["a"]) == "a"
    assert in_words(["a", "b", "c"]) == "a, b and c"
