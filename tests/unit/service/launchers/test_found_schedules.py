"""A plan with any schedule that a launcher has is exported for it, under the launcher's own name for it."""

from dataclasses import replace

import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import default_profile
from meshwright.service.launchers.registry import export
from meshwright.service.launchers.torchtitan import PYTHON_FILE, SCHEDULES, SPLITS_BACKWARD, TOML_FILE
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_model, a_problem

WITH_STAGES = [name for name in launcher_capabilities("torchtitan").schedules if name != "none"]


def asked(launcher: str, schedule: str) -> Problem:
    """16 layers on 16 GPUs."""
    model = a_model(num_layers=16, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    problem = a_problem(
        model=model, cluster=a_cluster(num_nodes=2), batch=64, top_k=2, certify="none",
        pin={"pipeline_schedule": schedule},
    )  # fmt: skip
    return replace(problem, launcher=launcher)


def found(problem: Problem) -> tuple[Plan, ...]:
    return search(problem, default_profile(problem.cluster, problem.launcher)).plans


@pytest.mark.parametrize("schedule", WITH_STAGES)
def test_torchtitan_starts_every_schedule_that_is_found_for_it(schedule: str) -> None:
    problem = asked("torchtitan", schedule)
    plans = found(problem)
    assert plans
    for plan in plans:
        files = export(plan, problem, "torchtitan").files
        assert f'pipeline_parallel_schedule = "{SCHEDULES[schedule]}"' in files[TOML_FILE]
        assert f"pipeline_parallel_schedule={SCHEDULES[schedule]!r}" in files[PYTHON_FILE]
        compiled = '["loss"]' if schedule in SPLITS_BACKWARD else '["model", "loss"]'
        assert f"components = {compiled}" in files[TOML_FILE]
        assert f"components={compiled}" in files[PYTHON_FILE]


def test_nanotron_runs_all_forward_passes_first_by_another_engine() -> None:
    problem = replace(asked("nanotron", "gpipe"), model=a_model(), cluster=a_cluster(num_nodes=16))
    plans = found(problem)
    assert plans
    assert all(
        "pp_engine: afab" in export(one, problem, "nanotron").files["nanotron.yaml"] for one in plans
    )
