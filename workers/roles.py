"""The work of one question on post-training: place its roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.profiles.errors import InvalidProblemError, StoppedError
from meshwright.service.db.database import Database, compact_json
from meshwright.service.fleets.answer import fault_document
from meshwright.service.jobs.answers import cache_key_of, versions_of
from meshwright.service.jobs.states import Claim, Outcome
from meshwright.service.post_training.answer import post_training_document
from meshwright.service.post_training.request import PostTrainingRequest, read_post_training
from meshwright.service.post_training.stored import plan_row
from meshwright.service.stores.profiles import ProfileStore
from meshwright.solver.clock import Watch
from meshwright.solver.post_training.plan import plan_post_training
from meshwright.solver.post_training.problem import PostTraining, PostTrainingAnswer
from meshwright.solver.post_training.training import counts_of
from meshwright.solver.problem import OnProgress, Progress, ShouldStop
from meshwright.workers.outcome import outcome_without_answer

STAGE = "roles"


@dataclass(slots=True)
class RolesWork:
    """The work of one claimed question."""

    claim: Claim
    profiles: ProfileStore
    cache_key: str = ""
    request: PostTrainingRequest | None = None
    answer: PostTrainingAnswer | None = None
    was_stopped: bool = False

    @classmethod
    def on(cls, database: Database, claim: Claim) -> RolesWork:
        """Return the work of a claim, with the profiles that a database holds."""
        return cls(claim, ProfileStore(database))

    def do(self, *, on_progress: OnProgress, should_stop: ShouldStop) -> None:
        """Price the roles, and place them."""
        request = self.request = read_post_training(self.claim.request)
        asked = request.asked
        self.cache_key = cache_key_of(self.claim.tenant, self.claim.request, versions_of(asked.training))
        watch = Watch(time_limit_s=self.claim.time_limit_s, should_stop=should_stop)
        searched, total = 0, _searches(asked)
        best_s: float | None = None

        def report() -> None:
            on_progress(
                Progress(
                    stage=STAGE, explored=searched, total=total, elapsed_s=watch.elapsed_s,
                    incumbent_step_time_s=best_s, bound_step_time_s=None, gap=None,
                )
            )  # fmt: skip

        def searching(_group: str, _nodes: int) -> None:
            nonlocal searched
            report()
            searched += 1

        def improved(step_s: float) -> None:
            nonlocal best_s
            best_s = step_s
            report()

        self.answer = plan_post_training(
            asked,
            profile_of=self.profiles.profile_of,
            watch=watch,
            on_search=searching,
            on_best=improved,
        )
        self.was_stopped = watch.stopped

    @property
    def is_proved(self) -> bool:
        """Return whether the placement is the best of all priced roles."""
        return self.answer is not None and self.answer.status == "optimal" and not self.was_stopped

    def passed_on(self) -> dict[str, Any] | None:
        """Return nothing: the next worker begins anew, which takes seconds."""
        return None

    def outcome(self, error: BaseException | None, *, cancelled: bool) -> Outcome:
        """Return the ranked plans with their roles, or why there are none."""
        if self.answer is None or self.request is None:
            return _without_plan(error, cancelled=cancelled)
        document = post_training_document(self.request, self.answer)
        del document["problem"]
        try:
            compact_json(document)
        except ValueError as fault:  # a NaN or an infinity: a bug that must not become an endless retry
            return outcome_without_answer(fault, cancelled=cancelled)
        plans = [plan_row(plan) for plan in document.pop("plans")]
        if cancelled:
            return Outcome(state="cancelled", answer=document, plans=plans)
        return Outcome(
            state="succeeded", answer=document, plans=plans,
            cache_key=None if self.was_stopped else self.cache_key,
        )  # fmt: skip


def _searches(asked: PostTraining) -> int:
    return sum(len(counts_of(group)) for group in asked.groups.values())


def _without_plan(error: BaseException | None, *, cancelled: bool) -> Outcome:
    if isinstance(error, StoppedError) and not cancelled:
        detail = "the time limit came before the roles were placed"
        return Outcome(state="failed", problem={"code": "time_limit", "detail": detail})
    if isinstance(error, InvalidProblemError) and not cancelled:
        faults = [fault_document(one) for one in error.errors]
        return Outcome(state="infeasible", answer={"status": "infeasible", "faults": faults})
    return outcome_without_answer(error, cancelled=cancelled)
