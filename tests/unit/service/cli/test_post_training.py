"""``explain`` of a recipe and ``predict`` of given roles, for ``kind: post_training``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.jobs import print_answer
from meshwright.service.cli.post_training import (
    explain_roles,
    predict_recipe,
    predict_roles,
    starts_post_training,
)
from meshwright.service.post_training.answer import post_training_document
from meshwright.service.post_training.request import read_post_training
from meshwright.solver.post_training.plan import plan_post_training
from tests.unit.service.post_training.test_request import REQUEST

RECIPES = Path(__file__).parents[3] / "golden" / "post_training"
GIVEN = {
    **REQUEST, "asynchrony": {"mode": "async"}, "training": {"nodes": 1}, "rollout": {"tp": 2},
}  # fmt: skip


def test_a_recipe_is_priced_next_to_the_best_placement(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = RECIPES / "verl-fsdp-async" / "run.sh"
    assert explain_roles(REQUEST, recipe, json_output=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["step_s"] <= found["yours"]["step_s"]
    assert found["yours"]["training"]["plan"]["config"]["context_parallel_size"] == 2
    assert found["notes"] == []
    assert (
        explain_roles({**REQUEST, "algorithm": {"prompts": 64, "responses": 16}}, recipe, json_output=False)
        == 0
    )
    assert "the recipe has prompts 128; 64 of your question counts for both" in capsys.readouterr().out


def test_a_recipe_for_more_nodes_names_the_recipe_and_the_field() -> None:
    recipe = RECIPES / "nemo-rl-megatron-async" / "nemo_rl_grpo.yaml"
    smaller = {**REQUEST, "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1}]}}
    with pytest.raises(InvalidProblemError, match=r"nemo_rl_grpo.yaml: 2 nodes are more than there are"):
        explain_roles(smaller, recipe, json_output=False)


GRPO = """\
args = GRPOConfig(
    use_vllm=True, num_generations=8, gradient_accumulation_steps=2, model_init_kwargs={"dtype": "bfloat16"}
)
GRPOTrainer(model="Qwen/Qwen3-1.7B", args=args, peft_config=LoraConfig(r=16, target_modules="all-linear"))
"""


def test_a_recipe_says_all_that_it_lacks_and_set_states_its_own_values(tmp_path: Path) -> None:
    recipe = tmp_path / "a.yaml"
    recipe.write_text("model_name_or_path: Qwen/Qwen3-8B\nnum_generations: 8\nuse_vllm: false\n")
    with pytest.raises(InvalidProblemError) as caught:
        predict_recipe({}, recipe, json_output=True)
    assert [one.tip for one in caught.value.errors] == ["--gpus 1xH100", "--set use_vllm=true"]
    with pytest.raises(InvalidProblemError) as caught:
        predict_recipe({}, recipe, ["use_vllm=true", "num_processes=4"], json_output=True)
    assert [one.tip for one in caught.value.errors] == ["--gpus 4xH100"]


def test_a_script_with_adapters_needs_no_question_but_the_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "grpo.py"
    script.write_text(GRPO)
    assert starts_post_training([script])
    with pytest.raises(InvalidProblemError, match="names no type of GPU") as caught:
        explain_roles({}, script, json_output=True)
    assert caught.value.errors[0].nearest == "--gpus 1xH100"
    pool = {"cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2}]}}
    assert explain_roles(pool, script, json_output=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["yours"]["training"]["plan"]["config"]["micro_batch_size"] == 8
    assert found["yours"]["training"]["gpus"] == 1, "python starts one process, whatever the pool has"
    assert found["best"]["step_s"] <= found["yours"]["step_s"]
    assert predict_recipe(pool, script, json_output=True) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["step_s"] == found["yours"]["step_s"]


def test_a_yaml_alone_starts_a_process_for_each_gpu_of_a_node_and_is_asked_for_those_of_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        "{model_name_or_path: Qwen/Qwen3-1.7B, use_vllm: true, num_generations: 8, use_peft: true,"
        " dtype: bfloat16}"
    )
    group = {"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 4}
    assert predict_recipe({"cluster": {"groups": [group]}}, recipe, json_output=True) == 0
    printed = capsys.readouterr()
    (plan,) = json.loads(printed.out)["plans"]
    assert plan["training"]["gpus"] == 4
    assert "num_processes is not stated: 4, one for each GPU" in printed.err
    with pytest.raises(InvalidProblemError, match="num_processes"):
        predict_recipe({"cluster": {"groups": [{**group, "num_nodes": 2}]}}, recipe, json_output=True)


def test_given_roles_have_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict_roles(GIVEN, json_output=True) == 0
    (plan,) = [one for one in json.loads(capsys.readouterr().out)["plans"] if one["rank"] == 1]
    assert (plan["mode"], plan["training"]["nodes"]) == ("async", 1)
    with pytest.raises(InvalidProblemError) as caught:
        predict_roles({**GIVEN, "rollout": {}}, json_output=True)
    assert [error.pointer for error in caught.value.errors] == ["/rollout/tp"]


def test_an_answer_of_the_service_is_printed_as_plan_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    request = read_post_training(REQUEST)
    document = post_training_document(request, plan_post_training(request.asked))
    print_answer(document, request.canonical)
    assert "step off policy" in capsys.readouterr().out
    fault = {"field": "/rollout/tp", "message": "is too small", "allowed": "4", "nearest": "4"}
    print_answer({"status": "infeasible", "faults": [fault]}, request.canonical)
    assert "rollout.tp: is too small. Allowed: 4" in capsys.readouterr().err
