"""How much memory training takes, by launcher and method."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from typer.testing import CliRunner

from meshwright.profiles.profile import default_profile
from meshwright.service.cli.main import app
from meshwright.service.methods import methods_of
from meshwright.solver.planner.least_memory import first_that_fits, least_memory
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.splits import best_splits
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_model, a_problem


@cache
def rows(*words: str) -> list[dict[str, Any]]:
    run = CliRunner().invoke(app, ["memory", *words, "--json"])
    assert run.exit_code == 0, run.output
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize(
    ("words", "method", "launcher", "num_gpus"),
    [
        # 8.2 B weights in 18 bytes are 137 GiB: they fit two cards of 80 GB where states are sharded
        ("qwen3-8b", "full", "maxtext", 2),
        # its weights, gradients and moments of 2 bytes each are 61 GiB
        ("qwen3-8b", "full", "axolotl", 1),
        # 16.4 GB of frozen weights, and adapters
        ("qwen3-8b", "LoRA", "trl", 1),
        # in 4 bits they are 4.4 GB and a card of 24 GB is enough
        ("qwen3-8b --gpu rtx-4090", "QLoRA", "trl", 1),
        # moments of a byte each
        ("qwen3-8b", "8-bit Adam", "trl", 2),
    ],
)
def test_the_fewest_gpus_of_a_method_are_named(
    words: str, method: str, launcher: str, num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "meshwright.service.cli.memory.methods_of",
        lambda *asked: (one for one in methods_of(*asked) if one.title == method),
    )
    (row,) = rows.__wrapped__(*words.split(), "--launcher", launcher)
    assert row["launcher"] == launcher
    assert (row["fits"], row["num_gpus"]) == (True, num_gpus)
    assert row["peak_memory_bytes"] < row["memory_limit_bytes"]


def test_an_optimizer_of_few_launchers_is_answered_by_those() -> None:
    found = rows("llama-3.1-8b", "--optimizer", "adamw-8bit")
    full = {row["launcher"] for row in found if row["method"] == "full, adamw-8bit"}
    assert {"trl", "accelerate"} <= full
    assert "megatron-lm" not in full


def test_what_one_has_is_said_to_fit_or_not() -> None:
    # 8.2 B weights, gradients and states in fp32 take 16 bytes each: 61 GiB of each of two cards, not one
    def fits(num_gpus: str) -> dict[str, bool]:
        found = rows("qwen3-8b", "--num-gpus", num_gpus, "--launcher", "trl")
        return {row["method"]: row["fits"] for row in found}

    assert (fits("1")["full"], fits("1")["LoRA"]) == (False, True)
    assert fits("2")["full"] is fits("2")["8-bit Adam"] is True
    assert rows("qwen3-8b", "--gpu", "2xh100", "--launcher", "trl") == rows(
        "qwen3-8b", "--num-gpus", "2", "--launcher", "trl"
    )


def test_numbers_that_make_up_no_nodes_are_refused() -> None:
    run = CliRunner().invoke(app, ["memory", "qwen3-8b", "--num-gpus", "12"])
    assert run.exit_code != 0


SMALL = a_model(num_layers=4, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=8, num_kv_heads=8)


@pytest.mark.parametrize(
    ("launcher", "allow"),
    [
        ("none", ()),
        ("megatron-lm", ()),
        ("torchtitan", ("offload",)),
        ("deepspeed", ("offload",)),
        ("trl", ()),
    ],
)
def test_no_legal_configuration_takes_less_memory(launcher: str, allow: tuple[str, ...]) -> None:
    """Every legal row with its split of least memory, priced one by one."""
    (node,) = a_cluster(num_nodes=1).groups
    four = replace(a_cluster(), groups=(replace(node, gpus_per_node=4, island_gpus=4),))
    problem = replace(a_problem(model=SMALL, cluster=four, batch=4, allow=allow), launcher=launcher)
    need = least_memory(problem)
    assert need is not None
    profile = default_profile(problem.cluster, problem.priced_as)
    legal = priced_rows(problem, profile, enumerate_space(problem, legal_only=True).columns)
    splits = best_splits(legal)
    configs = [
        config
        for row, split in enumerate(splits)
        if split is not None
        for config in legal.take([row]).configurations([split])
    ]
    peaks = [one.peak_memory_bytes for one in predict_all(problem, profile, configs)]
    assert need.prediction.peak_memory_bytes <= min(peaks) * 1.001


def test_the_first_number_of_gpus_with_room_is_the_answer() -> None:
    def on(nodes: int) -> Problem:
        return a_problem(model=a_model(), cluster=a_cluster(num_nodes=nodes), batch=64)

    # 70.6 B weights in 18 bytes are 1 183 GiB, of which a node of 80 GB cards has 640, two 1 280
    needs = [first_that_fits([on(nodes) for nodes in range(1, most + 1)]) for most in (2, 3, 4)]
    assert [need and (need.num_gpus, need.fits) for need in needs] == [(16, False), (24, True), (24, True)]
