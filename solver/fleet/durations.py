"""Durations of jobs from our own planner: a bound at once, the best plan by a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from meshwright.profiles.cluster import ClusterSpec, NodeGroup
from meshwright.profiles.errors import FieldError, InvalidProblemError, StoppedError
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer
from meshwright.solver.clock import Watch
from meshwright.solver.fleet.problem import Found, NodeChoice, PlannedJob, Question, nodes_of
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.variants import (
    searchable,
    searched_together,
    searched_variants,
    switched_of,
)
from meshwright.solver.post_training.plan import plan_post_training, whole_digest
from meshwright.solver.post_training.problem import PostTraining, PostTrainingAnswer
from meshwright.solver.post_training.training import KnownPrices
from meshwright.solver.problem import POWER_LIMIT, Problem, ShouldStop, problem_digest
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.priced_space import have_room
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import is_too_large

MINUTE_S = 60.0
_SHORTER = 1.0 - 1e-9  # rounding of a bound
_STOPPED = "stopped before every job had a plan"


def digest_of(question: Question) -> str:
    """Return the digest of a job's question on some nodes."""
    return whole_digest(question) if isinstance(question, PostTraining) else problem_digest(question)


def step_s_of(found: Found) -> float | None:
    """Return the seconds of the best plan's step; None: there is no plan."""
    if not found.plans:
        return None
    if isinstance(found, PostTrainingAnswer):
        return found.plans[0].step_s
    return found.plans[0].prediction.step_time_s


def least_step_s(problem: Problem, profile: Profile, should_stop: ShouldStop) -> float:
    """Return a lower bound on the step of every plan; infinite: none fits.

    It is the step of the fastest layout of all variants that a search would rank, proved, but without the
    ranking, the alternatives and the certificate of an answer. A search that is cut bounds it from below;
    the bound is 0 where the space is too large to enumerate.
    """
    variants, _ = searchable(searched_variants(switched_of(problem, profile)))
    if any(is_too_large(one.problem, wide=False) for one in variants):
        return 0.0
    least = math.inf
    for first, *others in searched_together(
        [one for one in variants if have_room(one.problem, one.profile)]
    ):
        options = replace(first.problem.options, top_k=1, certify="none")
        found = search(
            replace(first.problem, options=options), first.profile, ways=[one.problem for one in others],
            rivals=Rivals(least, least), should_stop=should_stop, proved=False,
        )  # fmt: skip
        if found.status in ("feasible", "unknown"):
            least = min(least, found.bound_step_time_s or 0.0)
        elif found.plans:
            least = min(least, found.plans[0].prediction.step_time_s)
    return least


@dataclass(slots=True, kw_only=True)
class PlannedDurations:
    """Durations of jobs by their plans; equal problems are searched once."""

    jobs: Mapping[str, PlannedJob]
    groups: Mapping[str, NodeGroup]  # of the cluster, by kind
    profile_of: Callable[[Problem], Profile]
    should_stop: ShouldStop = lambda: False
    on_search: Callable[[str, NodeChoice], object] = lambda _job, _choice: None
    search: Callable[[Problem, ShouldStop], Answer] | None = None  # None: ``ask`` with the profile
    answers: dict[str, Found] = field(default_factory=dict)  # by the digest of their problem
    least: dict[str, float] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)  # digests of problems with a search that was stopped
    refused: dict[str, tuple[FieldError, ...]] = field(default_factory=dict)  # why roles have no place
    layouts: dict[str, KnownPrices] = field(default_factory=dict)  # of training, by job of post-training

    def problem(self, job: str, choice: NodeChoice) -> Question:
        """Return the job's problem on the nodes of a choice alone."""
        whole = self.jobs[job].problem
        if isinstance(whole, PostTraining):
            training = replace(whole.training, cluster=self._cluster(whole.training.cluster, choice))
            return replace(whole, training=training)
        cluster = self._cluster(whole.cluster, choice)
        if not choice.limit_w:
            return replace(whole, cluster=cluster)
        options = {**whole.workload.framework_options, POWER_LIMIT: float(choice.limit_w)}
        workload = replace(whole.workload, framework_options=options)
        return replace(whole, cluster=cluster, workload=workload)

    def _cluster(self, whole: ClusterSpec, choice: NodeChoice) -> ClusterSpec:
        group = nodes_of(self.groups[choice.kind], choice)
        cluster = replace(whole, groups=(group,), between_groups=None)
        if len(self.groups) > 1:
            cluster = replace(cluster, name=f"{cluster.name}-{choice.kind}", display_name="")
        return cluster

    def answer(self, job: str, choice: NodeChoice) -> Found:
        """Return the answer to the job's problem on the nodes of a choice.

        Raises:
            InvalidProblemError: the roles of post-training have no place on these nodes.
            StoppedError: the work is to stop, and a placement was not found yet.
        """
        question = self.problem(job, choice)
        digest = digest_of(question)
        if digest in self.refused:
            raise InvalidProblemError(self.refused[digest])
        if digest not in self.answers:
            self.on_search(job, choice)
            self.answers[digest] = self._searched(job, question, digest)
            if self.should_stop():
                self.cut.add(digest)
        return self.answers[digest]

    def _searched(self, job: str, question: Question, digest: str) -> Found:
        if isinstance(question, Problem):
            if self.search is not None:
                return self.search(question, self.should_stop)
            return ask(question, self.profile_of(question), should_stop=self.should_stop)
        limit_s = question.training.options.time_limit_s
        try:
            return plan_post_training(
                question, profile_of=self.profile_of, known=self.layouts.setdefault(job, {}),
                watch=Watch(time_limit_s=limit_s, should_stop=self.should_stop),
            )  # fmt: skip
        except InvalidProblemError as fault:
            self.refused[digest] = fault.errors
            raise

    @property
    def whole_answers(self) -> dict[str, Found]:
        """Return the answers of searches that ended by themselves, by the digest of their problem."""
        return {digest: one for digest, one in [*self.answers.items()] if digest not in self.cut}

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        """Return a lower bound on the minutes; None: no plan fits.

        Roles are placed at once: most of that is to search training layouts, which all sizes share.

        Raises:
            StoppedError: the work is to stop, and the bound is not known yet.
        """
        problem = self.problem(job, choice._replace(uplinks=0))  # no link is slower
        if isinstance(problem, PostTraining):
            if self.should_stop() and whole_digest(problem) not in self.answers:
                raise StoppedError(_STOPPED)
            return self.exact_min(job, choice)
        digest = problem_digest(problem)
        if digest not in self.least:
            if self.should_stop():
                raise StoppedError(_STOPPED)
            found = least_step_s(problem, self.profile_of(problem), self.should_stop)
            if self.should_stop():
                raise StoppedError(_STOPPED)
            self.least[digest] = found * _SHORTER
        step_s = self.least[digest]
        return None if math.isinf(step_s) else self._minutes(job, step_s)

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        """Return the minutes of the best plan; None: there is none.

        Raises:
            StoppedError: the search was stopped before it found a plan.
        """
        try:
            step_s = step_s_of(self.answer(job, choice))
        except InvalidProblemError:
            if digest_of(self.problem(job, choice)) in self.refused:
                return None
            raise
        if step_s is None and self.should_stop():
            raise StoppedError(_STOPPED)
        return None if step_s is None else self._minutes(job, step_s)

    def why_none(self, job: str, choice: NodeChoice) -> FieldError | None:
        """Return why a job has no plan on the nodes of a choice, where that is known."""
        return next(iter(self.refused.get(digest_of(self.problem(job, choice)), ())), None)

    def _minutes(self, job: str, step_s: float) -> int:
        return max(1, math.ceil(self.jobs[job].steps * step_s / MINUTE_S))
