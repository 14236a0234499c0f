"""The work of a fleet: plan its jobs on their cluster, and pass the searches on to the next worker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.profiles.errors import InvalidProblemError, StoppedError
from meshwright.service.db.database import Database, compact_json
from meshwright.service.fleets.answer import fault_document, fleet_document
from meshwright.service.fleets.job_plans import found_from_json, question_request, stored_answer_of
from meshwright.service.fleets.planning import FleetResult, answered
from meshwright.service.fleets.question import (
    FleetQuestion,
    num_choices,
    read_question,
    versions_of_fleet,
)
from meshwright.service.jobs.answers import answer_from_json, cache_key_of, code_digest, versions_of
from meshwright.service.jobs.states import AnsweredPart, Claim, Outcome
from meshwright.service.jobs.submission import POSITION_DIGITS
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.stores.profiles import ProfileStore
from meshwright.solver.answer import Answer
from meshwright.solver.fleet.durations import PlannedDurations
from meshwright.solver.fleet.plan import Limits
from meshwright.solver.fleet.problem import Found, NodeChoice
from meshwright.solver.planner.plan import ask
from meshwright.solver.post_training.problem import PostTraining
from meshwright.solver.problem import OnProgress, Problem, Progress, ShouldStop
from meshwright.workers.checkpoint import is_json
from meshwright.workers.outcome import outcome_without_answer

STAGE = "fleet"


@dataclass(slots=True)
class FleetWork:
    """The work of one claimed fleet."""

    claim: Claim
    profiles: ProfileStore
    cache_key: str = ""
    durations: PlannedDurations | None = None
    result: FleetResult | None = None
    was_stopped: bool = False
    stem: str = field(default_factory=lambda: uuid.uuid4().hex[:-POSITION_DIGITS])

    @classmethod
    def on(cls, database: Database, claim: Claim) -> FleetWork:
        """Return the work of a claim, with the profiles that a database holds."""
        return cls(claim, ProfileStore(database))

    def do(self, *, on_progress: OnProgress, should_stop: ShouldStop) -> None:
        """Plan the fleet; what an earlier worker searched is not searched again."""
        question = read_question(self.claim.request)
        self.cache_key = cache_key_of(
            self.claim.tenant, self.claim.request, versions_of_fleet(question.fleet)
        )
        self.durations = self._durations(question, on_progress, should_stop)
        found = answered(
            question.fleet,
            self.durations,
            Limits(effort=question.effort, seed=question.seed, ended=should_stop),
            skip_impossible=question.skip_impossible,
        )
        self.was_stopped = should_stop()
        self.result = found

    @property
    def is_proved(self) -> bool:
        """Return whether the schedule is optimal, and no search was stopped."""
        return self.result is not None and not self.was_stopped and self.result.answer.status == "optimal"

    def passed_on(self) -> dict[str, Any] | None:
        """Return the answers of all searches that ended, and the bounds."""
        if self.durations is None:
            return None
        found = {
            "code": code_digest(),
            "answers": {digest: one.to_json() for digest, one in self.durations.whole_answers.items()},
            "least_s": {digest: one for digest, one in [*self.durations.least.items()] if one < _NEVER},
        }
        return found if is_json(found) else None  # the next worker meets the same bug and fails the fleet

    def outcome(self, error: BaseException | None, *, cancelled: bool) -> Outcome:
        """Return the schedule with a job of its own for each plan, or why there is none."""
        if self.result is None:
            return _without_schedule(error, cancelled=cancelled)
        parts = [
            self._part(self.result, job.name, at) for at, job in enumerate(self.result.request.fleet.jobs)
        ]
        document = fleet_document(self.result)
        for job, part in zip(document["jobs"], parts, strict=True):
            job["job_id"] = part.job_id
        if self.was_stopped:
            document["status"] = "feasible"
        try:
            compact_json(document)
        except ValueError as fault:  # a NaN or an infinity: a bug that must not become an endless retry
            return outcome_without_answer(fault, cancelled=cancelled)
        if cancelled:
            return Outcome(state="cancelled", answer=document, parts=parts)
        return Outcome(
            state="succeeded",
            answer=document,
            parts=parts,
            cache_key=None if self.was_stopped else self.cache_key,
        )

    def _durations(
        self, question: FleetQuestion, on_progress: OnProgress, should_stop: ShouldStop
    ) -> PlannedDurations:
        began_s, total, searched = time.monotonic(), num_choices(question.fleet), 0

        def report(_job: str, _choice: NodeChoice) -> None:
            nonlocal searched
            searched += 1
            on_progress(
                Progress(
                    stage=STAGE, explored=searched, total=total, elapsed_s=time.monotonic() - began_s,
                    incumbent_step_time_s=None, bound_step_time_s=None, gap=None,
                )
            )  # fmt: skip

        answers, least_s = _known(self.claim.checkpoint)
        return PlannedDurations(
            jobs=question.fleet.problems, groups=question.fleet.cluster.group_named,
            profile_of=self.profiles.profile_of, should_stop=should_stop, on_search=report,
            search=self._search, answers=answers, least=least_s,
        )  # fmt: skip

    def _search(self, problem: Problem, should_stop: ShouldStop) -> Answer:
        return self.profiles.answered(
            problem, lambda profile, known: ask(problem, profile, should_stop=should_stop, known=known)
        )

    def _part(self, result: FleetResult, job: str, position: int) -> AnsweredPart:
        choice = result.answer.schedule[job].choice
        planned, question = result.request.problems[job], result.durations.problem(job, choice)
        request = question_request(planned, question)
        body, plans = stored_answer_of(request, question, result.durations.answer(job, choice))
        is_roles = isinstance(question, PostTraining)
        key = cache_key_of(
            self.claim.tenant,
            request,
            versions_of(question.training if isinstance(question, PostTraining) else question),
            is_part=not is_roles,
        )
        return AnsweredPart(
            job_id=f"{self.stem}{position:0{POSITION_DIGITS}x}", name=job, request=request, plans=plans,
            answer=body, cache_key=None if self.was_stopped else key,
            kind=POST_TRAINING if is_roles else None,
        )  # fmt: skip


_NEVER = float("inf")


def _found(raw: Mapping[str, Any]) -> Found:
    return found_from_json(raw) if "outcomes" in raw else answer_from_json(raw)


def _known(checkpoint: Mapping[str, Any] | None) -> tuple[dict[str, Found], dict[str, float]]:
    """Return the answers and bounds of a checkpoint; none of one that other code wrote."""
    if checkpoint is None or checkpoint.get("code") != code_digest():
        return {}, {}
    try:
        answers = {digest: _found(one) for digest, one in checkpoint["answers"].items()}
        return answers, dict(checkpoint["least_s"])
    except (InvalidProblemError, LookupError, TypeError, AttributeError):
        return {}, {}


def _without_schedule(error: BaseException | None, *, cancelled: bool) -> Outcome:
    if isinstance(error, StoppedError) and not cancelled:
        return Outcome(
            state="failed",
            problem={"code": "time_limit", "detail": "the time limit came before every job had a plan"},
        )
    if (
        not cancelled
        and isinstance(error, InvalidProblemError)
        and all(one.pointer.startswith(("/jobs/", "/arrived/")) for one in error.errors)
    ):
        return Outcome(
            state="infeasible",
            answer={"status": "infeasible", "faults": [fault_document(one) for one in error.errors]},
        )
    return outcome_without_answer(error, cancelled=cancelled)
