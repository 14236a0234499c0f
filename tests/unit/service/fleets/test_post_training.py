"""Fleets with jobs of post-training: roles on each number of nodes, priced as alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.fleets.answer import fleet_document, scheduled
from meshwright.service.fleets.files import fleet_files
from meshwright.service.fleets.planning import FleetResult, answered
from meshwright.service.fleets.question import read_question
from meshwright.service.fleets.request import read_fleet
from meshwright.service.fleets.running import planned_again, read_state
from meshwright.service.post_training.request import read_post_training
from meshwright.solver.fleet.durations import PlannedDurations
from meshwright.solver.fleet.plan import Limits
from meshwright.solver.fleet.problem import NodeChoice, choices_of
from meshwright.solver.post_training.plan import plan_post_training
from meshwright.solver.problem import Problem
from tests.property.fleet_judge import best_of_all

ROLES = {
    "kind": "post_training", "model": {"name": "llama-3.2-1b"},
    "algorithm": {"name": "grpo", "prompts": 64, "responses": 16},
    "lengths": {"prompt": 200, "mean": 1500, "max": 4096}, "launcher": "verl",
}  # fmt: skip
TRAINS = {
    "model": {"name": "llama-3.1-8b"}, "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
}  # fmt: skip
CLUSTER = {"name": "dgx-h100", "num_nodes": 2}


def job(name: str, problem: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"name": name, "problem": problem, "steps": 10, **fields}


def fleet(*jobs: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"cluster": CLUSTER, "jobs": list(jobs), **fields}


def profile_of(problem: Problem) -> Profile:
    return default_profile(problem.cluster, problem.priced_as)


def planned(raw: dict[str, Any]) -> FleetResult:
    request = read_fleet(raw)
    durations = PlannedDurations(
        jobs=request.problems, groups=request.cluster.group_named, profile_of=profile_of
    )
    return answered(request, durations, Limits(effort=1.0))


@pytest.fixture(scope="module")
def both() -> FleetResult:
    """Roles next to training, on a node each or one after the other on two."""
    return planned(fleet(job("roles", ROLES), job("trains", TRAINS)))


def test_roles_take_what_they_take_alone_on_as_many_nodes(both: FleetResult) -> None:
    """The minutes are the steps times the step of the planner's own answer, rounded up.

    Sizes share their searches for training layouts: the answers are the same.
    """
    for nodes in (1, 2):
        cluster, choice = {**CLUSTER, "num_nodes": nodes}, NodeChoice("h100-sxm-80gb", nodes)
        asked = read_post_training({**ROLES, "cluster": cluster, "search": {"top_k": 1}}).asked
        alone = plan_post_training(asked).plans[0]
        assert both.durations.exact_min("roles", choice) == -(-alone.step_s * 10 // 60)
        assert both.durations.answer("roles", choice).plans[0].plan_id == alone.plan_id


def test_nodes_of_both_jobs_are_the_best_of_all(both: FleetResult) -> None:
    """Every start and every number of nodes is tried, with each job's exact minutes."""
    durations, fleet_ = both.durations, both.request.fleet
    jobs = {
        one.name: {
            "minutes": {
                choice.nodes: durations.exact_min(one.name, choice) for choice in choices_of(fleet_, one)
            },
            "release": 0, "due": None, "weight": 1, "after": (), "never_with": (), "same": None,
        }
        for one in fleet_.jobs
    }  # fmt: skip
    assert best_of_all(jobs, 2) == tuple(one.value for one in both.answer.objectives)


def test_the_answer_names_the_roles_and_has_files_that_slurm_starts(both: FleetResult) -> None:
    document = fleet_document(both)
    roles, trains = document["jobs"]
    assert (document["status"], roles["launcher"], trains["launcher"]) == ("optimal", "verl", "megatron-lm")
    assert "GPUs train" in roles["layout"]
    assert "of tp" in roles["layout"]
    made = fleet_files(scheduled(both))
    assert {"roles/run.sh", "roles/launch.sbatch", "trains/launch.sbatch"} <= set(made.files)
    assert f"#SBATCH --nodes={roles['nodes']}\n" in made.files["roles/launch.sbatch"]
    assert "submit roles --job-name=roles" in made.files["start.sh"]


def test_a_stored_question_is_read_back_as_it_was_asked() -> None:
    question = read_question(fleet(job("roles", ROLES), job("trains", TRAINS)))
    again = read_question(question.request)
    assert again.request == question.request
    assert again.fleet.problems["roles"].problem == question.fleet.problems["roles"].problem


def test_a_running_job_goes_on_from_its_steps() -> None:
    request = read_fleet(fleet(job("roles", ROLES), job("trains", TRAINS)))
    state = {"now_hours": 1, "jobs": {"roles": {"nodes": 1, "steps_done": 4}}}
    left = planned_again(request, read_state(state, request))
    assert left.problems["roles"] == replace(request.problems["roles"], steps=6)


def test_under_a_shared_limit_of_power_roles_keep_their_gpus_own_limit() -> None:
    """Generation is not priced under a lower one. Training has three limits: none, 65 and 50 %."""
    fleet_ = read_fleet(fleet(job("roles", ROLES), job("trains", TRAINS), max_power_kw=20)).fleet
    counts = {one.name: {choice.limit_w for choice in choices_of(fleet_, one)} for one in fleet_.jobs}
    assert counts == {"roles": {0}, "trains": {0, 455, 350}}


@pytest.mark.parametrize(
    ("changed", "pointer", "words"),
    [
        ({"launcher": "areal"}, "launcher", "areal is not priced yet"),
        ({"cluster": "dgx-h100"}, "cluster", "runs on the fleet's cluster"),
        ({"search": {"num_nodes": 2}}, "search/num_nodes", "unknown field"),
        ({"search": 3}, "search", "not an object"),
        ({"lengths": {"prompt": 5000, "max": 4096}}, "lengths/prompt", "leaves no room"),
        ({"rollout": {"nodes": 3}}, "rollout/nodes", "Allowed: 1 to 2. Nearest: 2"),
        (
            {"search": {"constraints": ["rollout.gpus('l40s') > 0"]}},
            "search/constraints/0",
            "no node group",
        ),
    ],
)
def test_a_fault_names_job_and_field(changed: dict[str, Any], pointer: str, words: str) -> None:
    with pytest.raises(InvalidProblemError) as fault:
        read_fleet(fleet(job("trains", TRAINS), job("roles", {**ROLES, **changed})))
    (error,) = fault.value.errors
    assert error.pointer == f"/jobs/1/problem/{pointer}"
    assert words in error.sentence()


def test_roles_that_fit_on_no_number_of_nodes_say_why() -> None:
    """140 GB of weights are on no single GPU of 80 GB."""
    raw = fleet(job("roles", {**ROLES, "model": {"name": "llama-3.1-70b"}, "rollout": {"tp": 1}}))
    with pytest.raises(
        InvalidProblemError, match="no plan fits on 1, 2 nodes: 1 GPUs do not hold"
    ) as fault:
        planned(raw)
    (error,) = fault.value.errors
    assert (error.pointer, error.allowed) == ("/jobs/0/problem", "4, 8, 16")
