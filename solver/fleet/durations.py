"""Durations of jobs from our own planner: a bound at once, the best plan by a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.errors import StoppedError
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer
from meshwright.solver.fleet.problem import NodeChoice, PlannedJob
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.variants import (
    searchable,
    searched_together,
    searched_variants,
    switched_of,
)
from meshwright.solver.problem import Problem, ShouldStop, problem_digest
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.priced_space import have_room
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import is_too_large

MINUTE_S = 60.0
_SHORTER = 1.0 - 1e-9  # rounding of a bound
_STOPPED = "stopped before every job had a plan"


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
    answers: dict[str, Answer] = field(default_factory=dict)  # by the digest of their problem
    least: dict[str, float] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)  # digests of problems with a search that was stopped

    def problem(self, job: str, choice: NodeChoice) -> Problem:
        """Return the job's problem on the nodes of a choice alone."""
        whole = self.jobs[job].problem
        group = replace(self.groups[choice.kind], num_nodes=choice.nodes)
        cluster = replace(whole.cluster, groups=(group,), between_groups=None)
        if len(self.groups) > 1:
            cluster = replace(cluster, name=f"{cluster.name}-{choice.kind}", display_name="")
        if not choice.limit_w:
            return replace(whole, cluster=cluster)
        options = {**whole.workload.framework_options, "power_limit_w": float(choice.limit_w)}
        workload = replace(whole.workload, framework_options=options)
        return replace(whole, cluster=cluster, workload=workload)

    def answer(self, job: str, choice: NodeChoice) -> Answer:
        """Return the answer to the job's problem on the nodes of a choice."""
        problem = self.problem(job, choice)
        digest = problem_digest(problem)
        if digest not in self.answers:
            self.on_search(job, choice)
            if self.search is not None:
                self.answers[digest] = self.search(problem, self.should_stop)
            else:
                self.answers[digest] = ask(problem, self.profile_of(problem), should_stop=self.should_stop)
            if self.should_stop():
                self.cut.add(digest)
        return self.answers[digest]

    @property
    def whole_answers(self) -> dict[str, Answer]:
        """Return the answers of searches that ended by themselves, by the digest of their problem."""
        return {digest: one for digest, one in [*self.answers.items()] if digest not in self.cut}

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        """Return a lower bound on the minutes; None: no plan fits.

        Raises:
            StoppedError: the work is to stop, and the bound is not known yet.
        """
        problem = self.problem(job, choice)
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
        plans = self.answer(job, choice).plans
        if not plans and self.should_stop():
            raise StoppedError(_STOPPED)
        return self._minutes(job, plans[0].prediction.step_time_s) if plans else None

    def _minutes(self, job: str, step_s: float) -> int:
        return max(1, math.ceil(self.jobs[job].steps * step_s / MINUTE_S))
