"""The plan of one job of a fleet: a layout that trains, or the roles of post-training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from meshwright.launchers.post_training import registry as roles_registry
from meshwright.launchers.post_training.slurm import sbatch_file
from meshwright.launchers.registry import export
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.service.jobs.answers import stored_plan
from meshwright.service.post_training.answer import post_training_document
from meshwright.service.post_training.request import PostTrainingRequest, read_post_training
from meshwright.service.post_training.stored import plan_row, role_plan_of
from meshwright.service.report.formatting import configuration_words
from meshwright.service.report.post_training import way_words
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.service.requests.parts import is_post_training
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.configuration import Configuration
from meshwright.solver.fleet.problem import Found, PlannedJob, Question
from meshwright.solver.post_training.problem import (
    LengthsOutcome,
    Mode,
    PostTraining,
    PostTrainingAnswer,
    RolePlan,
)
from meshwright.solver.problem import Problem


class JobPlan(Protocol):
    """What a schedule, its files and its pages read of the plan of a job."""

    @property
    def plan_id(self) -> str:
        """Return the name of the plan."""

    @property
    def step_time_s(self) -> float:
        """Return the seconds of a step."""

    @property
    def launcher(self) -> str:
        """Return the launcher that was asked for."""

    @property
    def layout(self) -> str:
        """Return the plan in words."""

    @property
    def config(self) -> Configuration:
        """Return the configuration of what is trained."""

    @property
    def mode(self) -> Mode | None:
        """Return how roles share the GPUs; None: the job has no roles."""

    def files(self) -> ExportBundle | None:
        """Return the launch files; None: its launcher has none.

        Raises:
            RefusedExportError: the launcher cannot express the plan.
        """


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """The layout of a job that trains."""

    plan: Plan
    problem: Problem

    @property
    def plan_id(self) -> str:
        """Return the name of the plan."""
        return self.plan.plan_id

    @property
    def step_time_s(self) -> float:
        """Return the seconds of a step."""
        return self.plan.prediction.step_time_s

    @property
    def launcher(self) -> str:
        """Return the launcher that was asked for."""
        return self.problem.launcher

    @property
    def layout(self) -> str:
        """Return the layout in words."""
        return configuration_words(self.plan.config)

    @property
    def config(self) -> Configuration:
        """Return the layout."""
        return self.plan.config

    @property
    def mode(self) -> None:
        """Return None: the job has no roles."""
        return

    def files(self) -> ExportBundle | None:
        """Return the launch files; None: the job has no launcher.

        Raises:
            RefusedExportError: the launcher cannot express the plan.
        """
        if self.launcher == "none":
            return None
        able = self.plan.launchers
        return export(
            self.plan, self.problem, able[0] if self.launcher == "any" and able else self.launcher
        )


@dataclass(frozen=True, slots=True)
class RolesPlan:
    """The roles of a job of post-training."""

    plan: RolePlan
    asked: PostTraining

    @property
    def plan_id(self) -> str:
        """Return the name of the placement."""
        return self.plan.plan_id

    @property
    def step_time_s(self) -> float:
        """Return the seconds of a whole step."""
        return self.plan.step_s

    @property
    def launcher(self) -> str:
        """Return the launcher that was asked for."""
        return self.asked.launcher

    @property
    def layout(self) -> str:
        """Return the way, who trains with which layout, and the engines."""
        train, shown = self.plan.training, {"mode": self.plan.mode, "steps_off": self.plan.steps_off}
        engines = [
            f"{one.engines} engine{'s' * (one.engines > 1)} of tp {one.tensor_parallel_size}"
            for one in self.plan.rollout
        ]
        beside = {"scores": self.plan.reward, "has the critic": self.plan.critic}
        others = [f"{one.gpus} GPUs {does}" for does, one in beside.items() if one is not None and one.gpus]
        way = way_words(shown).lower().replace(", ", " · ")
        return " · ".join([
            way, f"{train.gpus} GPUs train", configuration_words(train.plan.config), *engines, *others
        ])  # fmt: skip

    @property
    def config(self) -> Configuration:
        """Return the layout of the policy's training."""
        return self.plan.training.plan.config

    @property
    def mode(self) -> Mode:
        """Return how roles share the GPUs."""
        return self.plan.mode

    def files(self) -> ExportBundle:
        """Return the launch files, with a script for Slurm.

        Raises:
            RefusedExportError: the launcher cannot express the plan.
        """
        made = roles_registry.export(self.asked, self.plan)
        script = sbatch_file(self.asked, self.plan)
        return ExportBundle(files={**made.files, **script}, warnings=made.warnings)


def job_plan(question: Question, found: Found) -> JobPlan:
    """Return the best plan of an answer."""
    if isinstance(question, PostTraining) and isinstance(found, PostTrainingAnswer):
        return RolesPlan(found.plans[0], question)
    if isinstance(question, Problem) and isinstance(found, Answer):
        return LayoutPlan(found.plans[0], question)
    raise TypeError("the answer is of another kind of question")


def stored_job_plan(request: Mapping[str, Any], body: Mapping[str, Any]) -> JobPlan:
    """Return the plan of a stored job of a fleet.

    Raises:
        InvalidProblemError: another version wrote it.
    """
    if is_post_training(request):
        return RolesPlan(role_plan_of(body), read_post_training(request).asked)
    return LayoutPlan(stored_plan(body), parse_problem(request))


def question_request(planned: PlannedJob, question: Question) -> dict[str, Any]:
    """Return a job's question on its nodes as a request of its own, every figure spelled out."""
    if isinstance(question, Problem):
        return dict(problem_to_mapping(question))
    stated: dict[str, Any] = dict(planned.stated)
    if "measured" in stated:  # on the nodes that ran it, not on these
        stated["measured"] = [{"cluster": stated["cluster"], **step} for step in stated["measured"]]
    return {**stated, "cluster": cluster_to_mapping(question.training.cluster)}


def stored_answer_of(
    request: Mapping[str, Any], question: Question, found: Found
) -> tuple[dict[str, Any], list[Any]]:
    """Return an answer as the service stores it: without its plans, and the plans."""
    if isinstance(found, Answer) or isinstance(question, Problem):
        body = found.to_json()
        return body, body.pop("plans")
    limit_s = question.training.options.time_limit_s
    read = PostTrainingRequest(asked=question, time_limit_s=limit_s, canonical=request)
    body = post_training_document(read, found)
    del body["problem"]
    return body, [plan_row(plan) for plan in body.pop("plans")]


def found_from_json(raw: Mapping[str, Any]) -> PostTrainingAnswer:
    """Return the placements that ``PostTrainingAnswer.to_json`` wrote.

    Raises:
        InvalidProblemError: another version wrote them.
    """
    try:
        plans = tuple(role_plan_of(one) for one in raw["plans"])
        outcomes = tuple(LengthsOutcome(**one) for one in raw["outcomes"])
        return PostTrainingAnswer(**{**raw, "plans": plans, "outcomes": outcomes})
    except (TypeError, LookupError):
        raise InvalidProblemError.of("", "another version wrote the plan: plan again") from None
