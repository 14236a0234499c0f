"""The search over a mixed cluster: rows priced on every node group, CP-SAT, and what is proved.

Variables
  a row (cp, dp, ep, micro-batch, ZeRO stage, recomputation); how many stages; of each stage its option
  (node group and tensor-parallel size) and its layers; which groups stay idle, in which order they stand
Objectives
  J = straggler (sum_s t_s + max_s ((m - 1) t_s + tail_s)) + fixed, the closed form     ``cost.evaluation``
  S = straggler max_s (end_s + tail_s) + fixed, end_s by event simulation               ``cost.evaluation``
Constraints
  numbered in ``model``; rules of model, batch, launcher and request by ``rows``; every plan passes the
  independent check before it is known (``frontier``)
Answer
  ``decided_by`` cp-sat. Status ``optimal``: no plan's J is less than that of the best known by more than
  ``frontier.GAP``. Plans are ranked by S among those that were priced; ``objective_gap`` and
  ``objective_excess`` say what is proved of J, ``bound_step_time_s`` what no plan's S is below.
  Classes of unlike replicas, each on one group with a share of the batch, are ranked too (``replicas``);
  for them J is S, which is proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import SAMPLE, Answer, Plan, RankFloors, Status, versions, with_gaps
from meshwright.solver.clock import Watch, look, relative_gap
from meshwright.solver.configuration import Configuration, joined
from meshwright.solver.cost.memory import kept_free_words
from meshwright.solver.cost.objective import claim_of
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.problem import InvalidPlanError, Problem
from meshwright.solver.search.answers import Listed, checked_plans, runs_note
from meshwright.solver.search.mixed.frontier import MixedFrontier, stage_group_of
from meshwright.solver.search.mixed.replicas import (
    MOST_SHARED,
    GroupShares,
    Split,
    least_split_s,
    least_step_s,
    sets_of,
    shares_of,
    solve_split,
    split_bound_s,
)
from meshwright.solver.search.mixed.rows import LegalRows, MixedRows, StageOption
from meshwright.solver.space.request_rules import group_constraints

_EVERY = 1 << 20
_FURTHER = 16  # sets of groups that share the batch, solved for places behind the first
_NOT_SHARED = (
    f"more than {MOST_SHARED} node groups: the search skips replicas that split the batch over the groups"
)
_NEAR, _FIRST_CALLS = 0.95, 8  # bound over best plan, or calls of CP-SAT, before replicas on sets of groups
_FEW_ROWS = 512  # of more a first plan is sought among the lightest
_FIRST_S = 0.5  # a first plan is sought for as long, whatever the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """One configuration to be ranked: its closed form, its step, and what is proved of it."""

    config: Configuration
    objective_s: float
    step_s: float
    proved_s: float  # the closed form of a placement, the step of classes of replicas
    layout: tuple[object, ...]


def search_mixed(problem: Problem, profile: Profile, watch: Watch, *, wide: bool = False) -> Answer:
    """Return the ``top_k`` best plans of a problem on a mixed cluster.

    ``wide``: among all slices of the sequence and micro-batches, as where nothing else fits.

    Raises:
        InvalidProblemError: the problem names something unknown.
        InvalidPlanError: the independent check refuses a plan (a bug).
    """
    watch.report("enumerating", now=True)
    fleet = NodeGroups.of(problem, profile)
    shared = _Shared(fleet)

    def is_over(frontier: MixedFrontier) -> bool:
        return _interrupt(watch, frontier, shared)

    frontier, legal = _bounded(fleet, profile, watch, is_over, wide=wide)
    with watch.at_least(_FIRST_S).cut():
        shared.begin(wide=wide)
    _solve(frontier, shared, watch, is_over)
    with watch.cut():
        frontier.improve(is_over)
    with watch.cut():
        if problem.options.top_k > 1 and not watch.interrupted():
            _fill(frontier, shared, problem.options.top_k, is_over)
    best = _ranking(problem, frontier, shared)
    proved = frontier.finished and frontier.calls > 0
    plans = _plans_of(problem, profile, best, watch.closing(), by=("cp-sat",) if proved else ())
    bound_s: float | None = None
    with watch.closing().cut():
        bound_s = _bound_s(frontier, shared, best, watch.interrupted)
    answer = _answer(problem, profile, frontier, best, plans, watch=watch, bound_s=bound_s, legal=legal)
    if plans and not (shared.every and frontier.knows_alone):
        answer = replace(answer, objective_gap=None, objective_excess=None)
    if len(fleet.groups) > MOST_SHARED:
        answer = replace(answer, warnings=(*answer.warnings, _NOT_SHARED))
    if answer.status == "infeasible" and not wide:
        return search_mixed(problem, profile, watch, wide=True)
    space: Literal["usual", "every"] = "every" if wide else "usual"
    watch.report("done", explored=answer.explored, total=answer.space_size,
                 incumbent_s=plans[0].prediction.step_time_s if plans else None,
                 bound_s=answer.bound_step_time_s, now=True)  # fmt: skip
    return replace(answer, space=space)


def _bounded(
    fleet: NodeGroups,
    profile: Profile,
    watch: Watch,
    is_over: Callable[[MixedFrontier], bool],
    *,
    wide: bool,
) -> tuple[MixedFrontier, int]:
    """Return the frontier of all rows, bounded and with a first plan, and the number of legal rows.

    Of many rows a first plan is sought among the lightest. Where none of these fits, the smallest row of
    each mesh is bounded, and rows whose smallest one has no room are left out. The frontier is what these
    attempts left where the time ends before all rows are bounded.
    """

    def of(rows: MixedRows) -> MixedFrontier:
        return MixedFrontier.of(rows, fleet.problem, profile)

    def has_plan(frontier: MixedFrontier) -> bool:
        return is_over(frontier) or bool(frontier.found)

    frontier, legal, num_legal = of(MixedRows.of_nothing(fleet)), None, 0
    with watch.at_least(_FIRST_S).cut():
        legal = LegalRows.of(fleet, wide=wide)
        num_legal = len(legal.sizes)
        if num_legal > _FEW_ROWS:  # all of them take seconds to bound
            frontier = of(MixedRows.of(legal.lightest()))
            frontier.begin(has_plan)
            if not (frontier.found or group_constraints(fleet.problem)):
                smallest, smallest_of = legal.smallest()
                frontier = of(MixedRows.of(smallest))
                frontier.begin(has_plan)
                if not np.isfinite(frontier.alone_s):
                    has_room = np.isfinite(frontier.bounds.objective_s)[smallest_of]
                    legal = legal.take(np.flatnonzero(has_room))
    found = frontier.found
    with (watch if found or legal is None else watch.at_least(_FIRST_S)).cut():
        look()
        every = of(MixedRows.of(legal or LegalRows.of(fleet, wide=wide)))
        every.adopt(found)
        every.is_over = watch.interrupted
        frontier = every
        frontier.begin(lambda state: is_over(state) and bool(state.found))
    return frontier, num_legal


def _solve(
    frontier: MixedFrontier, shared: _Shared, watch: Watch, is_over: Callable[[MixedFrontier], bool]
) -> None:
    """Find the best plan, and prove it: pipelines over the groups, and replicas that share the batch."""
    with watch.cut():
        frontier.run(lambda state: is_over(state) or _is_near(state))  # it rules out sets of groups
    with watch.cut():
        if shared.begun:
            shared.solve(frontier.known_s)
    frontier.rival_s = min([frontier.rival_s, *(split.score_s for split in shared.splits)])
    with watch.cut():
        frontier.run(is_over)
    frontier.finished &= shared.every


def _fill(
    frontier: MixedFrontier, shared: _Shared, top_k: int, is_over: Callable[[MixedFrontier], bool]
) -> None:
    """Find plans for the places behind the first."""
    frontier.fill(top_k, is_over)
    listed = frontier.ranked()[:top_k]
    last_s = listed[-1].step_s if len(listed) == top_k else np.inf
    shared.solve(last_s, _FURTHER)


def _is_near(frontier: MixedFrontier) -> bool:
    """Return whether the best plan is close to its bound, or CP-SAT was asked a few times."""
    return frontier.known_s * _NEAR <= frontier.bound_s or frontier.calls >= _FIRST_CALLS


def any_mixed(problem: Problem, profile: Profile) -> Configuration | Literal["unknown"] | None:
    """Return a configuration that is legal and fits; None: proved impossible; unknown: not in a sample.

    Of the usual candidates and, where none of them does, of all, as the search itself.

    Raises:
        OutOfTime: the clock that this runs under was over first.
    """
    for wide in (False, True):
        fleet = NodeGroups.of(problem, profile)
        frontier = MixedFrontier.of(MixedRows.of(LegalRows.of(fleet, wide=wide)), problem, profile)
        frontier.begin(lambda state: bool(state.found))
        if not frontier.found:
            frontier.run(lambda state: bool(state.found))
            look()  # a frontier ends in silence where the time is over
        if frontier.found:
            return frontier.ranked()[0].config
        shared = _Shared(fleet)
        shared.begin(wide=wide)
        shared.solve(np.inf, enough=1)
        if shared.splits:
            return shared.configuration_of(shared.splits[0])
        if not frontier.finished:
            return "unknown"
    return None


@dataclass(slots=True)
class _Shared:
    """Classes of replicas on two or more groups, and the best split of the batch over each set of them."""

    fleet: NodeGroups
    shares: list[GroupShares] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    begun: bool = False  # shares are bounded
    every: bool = False  # set was solved, or takes longer than what is known

    def begin(self, *, wide: bool) -> None:
        """Bound every share of the batch on every group."""
        self.shares, self.begun = shares_of(self.fleet, wide=wide), True

    def solve(self, known_s: float, enough: int = _EVERY) -> None:
        """Find the best split over every set of groups that may be quicker than what is known."""
        waiting = list[tuple[float, tuple[int, ...]]]()
        for groups in sets_of(len(self.shares)):
            look()
            bound = least_split_s(self.shares, groups)
            if np.isfinite(bound):
                waiting.append((bound + self.fleet.exchange_s(groups), groups))
        known = {one.groups for one in self.splits}
        for least_s, groups in sorted(one for one in waiting if one[1] not in known):
            proved = enough == _EVERY
            if proved:
                known_s = min([known_s, *(one.score_s for one in self.splits)])
            if least_s > known_s or len(self.splits) >= enough:
                break
            exchange_s, limit_s = self.fleet.exchange_s(groups), known_s if proved else np.inf
            split = solve_split(self.shares, groups, exchange_s, limit_s=limit_s, proved=proved)
            self.splits += [] if split is None else [split]
        self.every = True

    def least_s(self, limit_s: float) -> float:
        """Return a quick, looser ``bound_s`` from the bounds of all shares."""
        return min(limit_s, least_step_s(self.shares)) if self.shares else limit_s

    def bound_s(self, limit_s: float) -> float:
        """Return a lower bound of the simulated step of all splits of the batch, at most a limit."""
        for groups in sets_of(len(self.shares)):
            limit_s = split_bound_s(self.shares, groups, self.fleet.exchange_s(groups), limit_s)
        return limit_s

    def configuration_of(self, split: Split) -> Configuration:
        """Return a split of the batch as a configuration with a class of replicas for each group."""
        classes = list[Configuration]()
        for group, n in zip(split.groups, split.sequences, strict=True):
            share = self.shares[group].solved[n]
            if share is None:
                raise InvalidPlanError("a share of the batch without a plan")
            row = share.columns
            option = StageOption(group=group, tensor_parallel_size=int(row.tensor_parallel_size[0]))
            replicas = int(row.context_parallel_size[0] * row.data_parallel_size[0])
            stages = (stage_group_of(self.fleet, option, replicas),) * int(row.pipeline_parallel_size[0])
            classes.append(replace(row.configuration(0, share.split), stage_groups=stages))
        return joined(classes)


def _ranking(problem: Problem, frontier: MixedFrontier, shared: _Shared) -> list[_Candidate]:
    """Return the best placements and splits of the batch, each layout once."""
    found = [
        _Candidate(
            config=one.config, objective_s=one.objective_s, step_s=one.step_s,
            proved_s=one.objective_s, layout=one.layout,
        )
        for one in frontier.ranked()
    ]  # fmt: skip
    found += [
        _Candidate(
            config=shared.configuration_of(split), objective_s=split.objective_s, step_s=split.score_s,
            proved_s=split.score_s, layout=("classes", *split.groups),
        )
        for split in shared.splits
    ]  # fmt: skip
    ordered = sorted(found, key=lambda one: (one.step_s, len(one.config.replicas)))
    return ordered[: problem.options.top_k]


def _bound_s(
    frontier: MixedFrontier, shared: _Shared, best: list[_Candidate], interrupted: Callable[[], bool]
) -> float | None:
    """Return a lower bound of the simulated step; None where nothing is known.

    A search that ended early has the bounds of all rows and shares; they are raised if there is time.
    """
    if not (frontier.rows.whole and frontier.knows_alone and shared.begun):
        return None
    known_s = min(best[0].step_s if best else np.inf, frontier.alone_s)
    every = shared.every and not interrupted()
    shared_s = shared.bound_s(known_s) if every and best else shared.least_s(known_s)
    if best:
        return frontier.step_bound_s(shared_s, interrupted)
    least = min(float(frontier.bounds.step_s.min(initial=np.inf)), shared_s)
    return least if np.isfinite(least) and not frontier.finished else None


def _plans_of(
    problem: Problem, profile: Profile, best: list[_Candidate], watch: Watch, *, by: tuple[str, ...]
) -> tuple[Plan, ...]:
    """Return ranked candidates as plans past the independent check; the first alone where time is over."""
    listed = [
        Listed(rank, one.config, one.objective_s, by if rank == 1 else ())
        for rank, one in enumerate(best, 1)
    ]
    plans = list[Plan]()
    for some in (slice(0, 1), slice(1, None)):
        if not listed[some] or (plans and watch.interrupted()):
            break
        plans += checked_plans(problem, profile, listed[some])
    return tuple(plans)


def _interrupt(watch: Watch, frontier: MixedFrontier, shared: _Shared) -> bool:
    """Report, and return whether to stop."""
    known = [one.step_s for one in frontier.found.values()] + [one.score_s for one in shared.splits]
    best = min(known, default=None)
    watch.report(
        "solving", explored=frontier.settled, total=len(frontier.rows), incumbent_s=best,
        now=best is not None and watch.is_due(best),
    )  # fmt: skip
    return watch.interrupted()


def _answer(
    problem: Problem, profile: Profile, frontier: MixedFrontier, best: list[_Candidate],
    plans: tuple[Plan, ...], *, watch: Watch, bound_s: float | None, legal: int,
) -> Answer:  # fmt: skip
    """Return the answer with what is proved."""
    rows, proved = frontier.rows, frontier.finished
    step_s = plans[0].prediction.step_time_s if plans else None
    bound_s = bound_s if step_s is None or bound_s is None else min(bound_s, step_s)
    gap = excess = None
    if plans and rows.whole and np.isfinite(frontier.known_s):
        gap = relative_gap(frontier.known_s, min(frontier.bound_s, frontier.known_s))
        excess = relative_gap(best[0].proved_s, frontier.known_s)
    outcomes: tuple[Status, Status] = ("optimal", "infeasible") if proved else ("feasible", "unknown")
    plans = with_gaps(
        plans, [one.step_s for one in best[: len(plans)]], RankFloors(), bound_s, of_steps=True
    )
    sampled = not rows.whole and not watch.interrupted()
    return Answer(
        status=outcomes[0 if plans else 1],
        plans=plans,
        certified_by=plans[0].certified_by if plans else (),
        decided_by="cp-sat",
        objective_gap=gap,
        objective_excess=excess,
        bound_step_time_s=bound_s,
        gap=relative_gap(step_s, bound_s),
        space_size=rows.size,
        legal=legal,
        fit=int(np.isfinite(frontier.bounds.objective_s).sum()) or len(frontier.found),
        explored=frontier.settled + (rows.size - len(rows) if rows.whole else 0),
        counts={
            "priced": len(rows) * len(rows.options),
            "solved": frontier.calls,
            "simulated": len(frontier.found),
            "certified": int(proved and bool(plans)),
        },
        elapsed_s=watch.elapsed_s,
        seed=problem.options.seed,
        versions=versions(profile),
        warnings=(*problem.cluster.warnings, *profile.warnings),
        num_gpus_used=plans[0].config.num_gpus if plans else problem.cluster.num_gpus,
        peak_flops=plans[0].prediction.peak_flops_per_gpu if plans else profile.group.gpu.peak_bf16_flops,
        notes={
            "profile": "each node group has a separate profile: "
            + "; ".join(one.title for one in profile.by_group),
            "kept_free": kept_free_words(problem, profile),
            **runs_note(profile),
            **(SAMPLE if sampled else {}),
        },
        objective=claim_of(problem, profile, step_s, bound_s),
    )
