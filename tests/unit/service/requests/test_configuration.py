"""Configurations whose stages name their node groups: read, completed, refused, priced, compared."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.library import side_of
from meshwright.service.requests.configuration import broken_rules, completed, configuration_of
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.answer import Answer, plan_from_json
from meshwright.solver.explain.compare import compared
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.served.requests import run_here

GROUPS = [
    {"gpu": "a100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 4},
    {"gpu": "v100-sxm-32gb", "num_nodes": 1, "gpus_per_node": 4},
]
LINK = {"kind": "ethernet", "bytes_per_s": 3.125e9, "latency_s": 2e-5}
SHAPE = {"num_layers": 8, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 8,
         "vocab_size": 32000}  # fmt: skip
REQUEST: dict[str, Any] = {
    "model": SHAPE,
    "cluster": {"name": "two", "groups": GROUPS, "between_groups": LINK},
    "workload": {"global_batch_size": 16, "seq_length": 1024, "precision": "fp16"},
    "launcher": "none",
    "search": {"top_k": 40, "certify": "none", "pin": {"micro_batch_size": 1, "zero_stage": 0}},
}
ON: list[dict[str, Any]] = [
    {"group": "a100-sxm-80gb", "tensor_parallel_size": 2},
    {"group": "v100-sxm-32gb"},
]


@cache
def answered() -> tuple[Problem, Answer]:
    problem = parse_problem(REQUEST)
    return problem, ask(problem, default_profile(problem.cluster, "none"))


def fault(raw: dict[str, object], **request: object) -> FieldError:
    problem = parse_problem({**REQUEST, **request})
    with pytest.raises(InvalidProblemError) as caught:
        completed(raw, problem)
    return caught.value.errors[0]


def test_what_is_left_out_follows_from_the_stages() -> None:
    config = completed({"stage_groups": ON}, answered()[0])
    # 4 A100 / tp 2 leave room for 2 replicas; 16 sequences / (2 x 1)
    assert (config.data_parallel_size, config.num_microbatches) == (2, 8)
    assert (config.pipeline_parallel_size, config.stage_layers) == (2, (4, 4))
    assert [(one.num_gpus, one.num_nodes) for one in config.stage_groups] == [(4, 1.0), (2, 0.5)]
    assert (config.tensor_parallel_size, config.pipeline_schedule) == (2, "1f1b")
    assert broken_rules(answered()[0], config) == []


def test_a_stated_shard_set_stays_where_it_divides_the_replicas() -> None:
    alone = {"stage_groups": [{**ON[0], "tensor_parallel_size": 1}], "zero_stage": 2}
    problem = answered()[0]
    assert completed(alone, problem).zero_shard_size == 4  # all of them
    assert completed({**alone, "zero_shard_size": 2}, problem).zero_shard_size == 2
    assert "zero_shard_size" in fault({**alone, "zero_shard_size": 3}).pointer


def test_every_plan_is_read_back_as_it_was_written() -> None:
    problem, answer = answered()
    assert any(plan.config.replicas for plan in answer.plans)
    for plan in answer.plans:
        assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan
        assert completed(json.loads(json.dumps(plan.to_json()["config"])), problem) == plan.config


@pytest.mark.parametrize(
    ("raw", "at", "word"),
    [
        ({"stage_groups": [{"group": "a100"}]}, "/configuration/stage_groups/0/group", "unknown"),
        ({"stage_groups": [{"group": 3}]}, "/configuration/stage_groups/0/group", "text"),
        ({"stage_groups": ["a"]}, "/configuration/stage_groups/0", "object"),
        ({"stage_groups": 3}, "/configuration/stage_groups", "list"),
        ({"stage_groups": [{**ON[0], "tp": 2}]}, "/configuration/stage_groups/0/tp", "unknown"),
        (
            {"stage_groups": [{**ON[0], "tensor_parallel_size": 0}]},
            "/configuration/stage_groups/0",
            "integer",
        ),
        ({"stage_groups": ON, "stage_layers": [4, 3]}, "/configuration/stage_layers", "2 stages with 7"),
        ({"stage_groups": ON, "data_parallel_size": 4}, "/configuration/stage_groups", "take 8 GPUs"),
        ({"stage_groups": ON, "num_microbatches": 3}, "/configuration/num_microbatches", "6 sequences"),
        (
            {"stage_groups": ON, "pipeline_parallel_size": 4},
            "/configuration/pipeline_parallel_size",
            "is 2",
        ),
        (
            {"stage_groups": ON, "virtual_pipeline_size": 2},
            "/configuration/virtual_pipeline_size",
            "only 1",
        ),
        ({"stage_groups": ON, "offload": "optimizer"}, "/configuration/offload", "only none"),
        ({"replicas": [{"stage_groups": ON}]}, "/configuration/replicas/0/num_microbatches", "required"),
        ({"replicas": 7}, "/configuration/replicas", "list of objects"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_its_place(
    raw: dict[str, object], at: str, word: str
) -> None:
    found = fault(raw)
    assert found.pointer.startswith(at)
    assert word in found.message


def test_stages_are_placed_by_launchers_that_can_on_unlike_groups_only() -> None:
    refused = fault({"stage_groups": ON}, launcher="megatron-lm")
    assert (refused.allowed, refused.nearest) == ("launcher flagscale, launcher none", "launcher flagscale")
    alike = fault({"stage_groups": ON}, cluster={"groups": GROUPS[:1]})
    assert alike.pointer == "/configuration/stage_groups"
    assert "here all nodes are" in alike.message
    assert alike.allowed == "different node groups, under launcher flagscale or launcher none"


def test_a_placed_baseline_stands_beside_the_plans_and_survives_the_canonical_request() -> None:
    best = answered()[1].plans[0]
    raw = {**REQUEST, "search": {**REQUEST["search"], "top_k": 3, "baseline": best.to_json()["config"]}}
    problem = parse_problem(json.loads(json.dumps(raw)))
    assert parse_problem(problem_to_mapping(problem)) == problem
    answer = ask(problem, default_profile(problem.cluster, "none"))
    assert answer.baseline is not None
    assert (answer.baseline.rank, answer.baseline.gap_to_best) == (1, 0.0)
    assert answer.baseline.prediction == best.prediction


def test_a_mesh_may_be_the_baseline_of_placed_plans() -> None:
    raw = {**REQUEST, "search": {**REQUEST["search"], "top_k": 3, "baseline": {"data_parallel_size": 8}}}
    problem = parse_problem(raw)
    answer = ask(problem, default_profile(problem.cluster, "none"))
    assert answer.baseline is not None
    assert answer.baseline.prediction.step_time_s > answer.plans[0].prediction.step_time_s


def test_the_steps_between_any_two_plans_add_up() -> None:
    problem, answer = answered()
    profile = default_profile(problem.cluster, "none")
    crossing = [plan for plan in answer.plans if len({s.group for s in plan.config.stage_groups}) == 2]
    shared = next(plan for plan in answer.plans if plan.config.replicas)
    for first, second in ((crossing[0], crossing[-1]), (crossing[0], shared), (shared, crossing[-1])):
        found = compared(profile, side_of(first, problem), side_of(second, problem))
        change = second.prediction.step_time_s - first.prediction.step_time_s
        assert sum(step.step_change_s for step in found.steps) == pytest.approx(change, abs=1e-12)
        for step in found.steps:
            assert sum(step.terms_s.values()) == pytest.approx(step.step_change_s, abs=1e-12)
    same = compared(profile, side_of(shared, problem), side_of(shared, problem))
    assert same.steps == ()


def test_the_api_prices_a_placed_configuration(client: TestClient) -> None:
    best = answered()[1].plans[0]
    body = {"problem": REQUEST, "configuration": best.to_json()["config"]}
    found = client.post("/v1/predictions", json=json.loads(json.dumps(body)))
    assert found.status_code == 200
    told = found.json()
    assert told["prediction"]["step_time_s"] == best.prediction.step_time_s
    assert sum(told["why"]["waterfall_s"].values()) == pytest.approx(best.prediction.step_time_s)
    assert told["breaks"] == []
    wrong = client.post("/v1/predictions", json={"problem": REQUEST, "configuration": {"stage_groups": 1}})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/configuration/stage_groups")


def test_a_kept_placed_plan_is_compared_and_predicted_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({**REQUEST, "search": {"top_k": 8, "certify": "none"}}))
    _, text, _ = run_here(monkeypatch, capsys, "plan", str(problem), "--json", "--measure-next", "1")
    answer = json.loads(text)
    (worth,) = answer["measure_next"]  # one run alone may not change the choice: then it gains nothing
    assert worth["log_gain"] >= 0.0
    assert worth["plan_id"] in {plan["plan_id"] for plan in answer["plans"]}
    first, second = answer["plans"][:2]
    code, text, _ = run_here(monkeypatch, capsys, "compare", first["plan_id"], second["plan_id"], "--json")
    assert code == 0
    gap = second["prediction"]["step_time_s"] - first["prediction"]["step_time_s"]
    assert sum(step["step_change_s"] for step in json.loads(text)["steps"]) == pytest.approx(gap, abs=1e-12)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(first["config"]))
    words = ("predict", str(problem), "--config", str(config))
    _, text, _ = run_here(monkeypatch, capsys, *words, "--json")
    assert json.loads(text)["prediction"] == first["prediction"]
    code, text, _ = run_here(monkeypatch, capsys, *words)
    assert "from ideal to real" in text
    code, text, _ = run_here(monkeypatch, capsys, "explain", str(problem), "--config", str(config))
    assert (code, "the same configuration" in text) == (0, True)
    slip = answer["plans"][0]["plan_id"][:-1] + "z"
    code, _, error = run_here(monkeypatch, capsys, "compare", slip, first["plan_id"])
    assert (code, answer["plans"][0]["plan_id"] in error) == (2, True)  # a near one is named
    code, _, error = run_here(monkeypatch, capsys, "compare", "zzz", first["plan_id"])
    assert (code, "Nearest" in error) == (2, False)


def test_a_short_id_that_fits_many_plans_names_five(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "meshwright" / "answers"
    folder.mkdir(parents=True)
    plans = [{"plan_id": f"ab{number:010d}", "config": {}} for number in range(60)]
    (folder / "one.json").write_text(json.dumps({"plans": plans}))
    _, _, error = run_here(monkeypatch, capsys, "compare", "ab", "ab")
    assert '"ab" fits 60 plans' in error
    assert error.count("ab0") == 5
    assert "and 55 more" in error


def test_an_option_of_the_framework_is_not_a_size() -> None:
    with pytest.raises(InvalidProblemError) as refused:
        configuration_of({"cuda_graph": "full_iteration"})
    assert str(refused.value) == (
        "configuration.cuda_graph: cuda_graph is an option of the framework, which a problem file states."
        " Nearest: workload.framework_options.cuda_graph"
    )
