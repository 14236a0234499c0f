"""What an answer says of its launcher: why it, and which other would be much faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.launchers.registry import export
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.planner.launchers import ask_and_compare
from meshwright.solver.problem import Problem
from tests.draws import some_of
from tests.served.commands import without_levers


def asked(gpus: list[tuple[str, int]], launcher: str | None = None, **workload: object) -> Problem:
    """Llama 3.1 8B on nodes of eight GPUs, with four plans and no certificate."""
    groups = [{"gpu": gpu, "num_nodes": nodes, "gpus_per_node": 8} for gpu, nodes in gpus]
    raw: dict[str, Any] = {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"groups": groups},
        "workload": {"global_batch_size": 64, "seq_length": 2048, **workload},
        "search": {"top_k": 2, "certify": "none", "pin": {"context_parallel_size": 1}},
    }
    return parse_problem(raw if launcher is None else {**raw, "launcher": launcher})


def answered(problem: Problem) -> Answer:
    return ask_and_compare(problem, default_profile(problem.cluster, problem.launcher))


MIXED = [("h100-sxm-80gb", 1), ("a100-sxm-80gb", 2)]


def test_on_unlike_nodes_the_launcher_is_one_that_places_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere every GPU is priced as an A100: 8 of 24 have 989 TFLOP/s, 16 have 312, and all wait."""
    problem = asked(MIXED)
    assert problem.launcher == "flagscale"
    with monkeypatch.context() as patch:
        without_levers(patch)
        said = answered(problem).notes["launcher"]
    assert said == "flagscale, for different node types: it places stages on them"
    answer = answered(asked(MIXED, "megatron-lm"))
    assert "launcher" not in answer.notes, "it is stated, and not the one of the question"
    (lever,) = (one for one in answer.levers if one.kind == "launcher")
    assert lever.settings == {"launcher": "flagscale"}
    assert lever.config.is_placed
    assert lever.saves > 0.05


@pytest.mark.parametrize("launcher", some_of([None, "any", "flagscale"], each=3, first=2))
def test_ends_that_share_a_matrix_are_split_alike_on_unlike_cards(launcher: str | None) -> None:
    """FlagScale asserts one tensor-parallel size at both ends of tied weights (train/arguments.py:127)"""
    raw: dict[str, Any] = {
        "model": {"name": "qwen3-0.6b"},
        "cluster": {"groups": [{"gpu": gpu, "num_nodes": 1, "gpus_per_node": 2} for gpu in CARDS]},
        "workload": {"global_batch_size": 24, "seq_length": 4096},
        "search": {"top_k": 4, "certify": "none", "time_limit_s": 10.0},
    }
    problem = parse_problem(raw if launcher is None else {**raw, "launcher": launcher})
    assert problem.launcher == (launcher or "flagscale")
    answer = answered(problem)
    placed = [plan for plan in answer.plans if plan.config.is_placed]
    assert placed
    for plan in placed:
        first, last = plan.config.stage_groups[0], plan.config.stage_groups[-1]
        assert first.tensor_parallel_size == last.tensor_parallel_size
        assert export(plan, problem.under("flagscale"), "flagscale").files
    for lever in answer.levers:
        parse_problem({**raw, **{name: one for name, one in lever.settings.items() if "." not in name}})


CARDS = ("rtx-3060", "rtx-3090")


def test_nothing_is_said_of_launchers_that_are_hardly_faster() -> None:
    answer = answered(asked([("h100-sxm-80gb", 1)]))
    assert all(one.kind != "launcher" or one.saves > 0.01 for one in answer.levers)
    notes = answer.notes
    assert notes["launcher"].startswith("megatron-lm, for training over many GPUs")


@pytest.mark.parametrize(
    ("gpu", "launcher"),
    [
        ("h100-sxm-80gb", "megatron-lm"),
        ("mi300x", "megatron-lm"),
        ("tpu-v5p", "maxtext"),
        ("ascend-910b", "ms-swift"),
        ("gaudi-3", "deepspeed"),
        ("trainium-2", "none"),
    ],
)
def test_the_launcher_has_files_for_the_chip(gpu: str, launcher: str) -> None:
    assert asked([(gpu, 1)]).launcher == launcher


def test_gpus_of_two_vendors_share_no_mesh() -> None:
    # RCCL and NCCL form no group together: stages are placed on the nodes of each, without launch files
    kinds = [("mi300x", 1), ("h100-sxm-80gb", 1)]
    assert asked(kinds).launcher == "none"
    named = answered(replace(asked(kinds), launcher="megatron-lm"))
    said = "GPUs of amd and nvidia have no collectives in common for one mesh: you get predictions but no"
    assert any(warning.startswith(said) for warning in named.warnings)
    assert asked([("a100-sxm-80gb", 1), ("h100-sxm-80gb", 1)]).launcher == "flagscale"


def test_where_no_launcher_has_files_plans_are_priced_and_every_reason_is_named() -> None:
    problem = asked([("trainium-2", 1)])
    said = answered(replace(problem, options=replace(problem.options, top_k=1))).notes["launcher"]
    assert said.startswith(
        "none, without launch files: no launcher can (is not known to run on Trainium 2: "
    )
    for name in ("megatron-lm", "maxtext", "trl", "deepspeed"):
        assert name in said


def test_launchers_without_files_for_the_chips_are_said_to_have_none_where_no_launcher_is_able() -> None:
    problem = parse_problem({
        "model": {"name": "llama-3.2-1b"}, "launcher": "any",
        "cluster": {"groups": [{"gpu": "tpu-v5p", "num_nodes": 1, "gpus_per_node": 2}]},
        "workload": {"global_batch_size": 16, "seq_length": 1024, "optimizer": "apollo-pure-bf16"},
        "search": {"certify": "none", "top_k": 2},
    })  # fmt: skip
    answer = answered(problem)
    listed = {name for plan in answer.plans for name in plan.launchers}
    assert listed
    for name in listed:
        said = f"{name} is not known to run on TPU v5p: you get predictions but no launch files"
        assert any(warning.startswith(said) for warning in answer.warnings)
