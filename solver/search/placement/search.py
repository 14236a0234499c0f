"""The search over a mixed cluster: rows, berths, placements; a proved ranking out.

Variables
  a row (cp, dp, ep, pp, micro-batch, ZeRO stage, recomputation), a berth (node group with its own tp) for
  each group in use, the order and number of the stages on each, and the split of the layers.
Objectives
  J = straggler (sum_s t_s + max_s ((m - 1) t_s + tail_s)) + fixed        ``program.Field.objective_s``
  S = straggler max_s (end_s + tail_s) + fixed, end_s by event simulation ``program.Field.simulated_s``
Constraints
  (M1) tp cp dp GPUs of one group for each stage; no group gives more than it has        ``rows._room``
  (M2) the stages of a group are neighbours: a slow link is crossed once a group        ``program.sweep``
  (M3) the rules of model, batch, launcher and request hold on each group in use         ``rows._room``
  (M4) peak memory of each stage <= the budget of its own GPU                        ``program.Field.fits``
  (M5) layers stay in order, each stage holds one or more; chunks do not interleave     ``program.sweep``
Answer
  Each field's candidates are the placement that minimises J exactly (``program.Program``) and those that
  keep the bounds within shorter times (``bounds.Reach``); their least S is the field's score; rows that
  differ in recomputation and split alone are one layout; the K best layouts are proved best first.
  The search also ranks classes of unlike replicas, each on one group with a share of the batch
  (``replicas``): the best split over every set of groups is proved, and ranked as one layout.
  ``bound_step_time_s``: no placement of any row simulates faster (``bounds.Reach``).
  ``objective_gap``: from the least J that is known to a bound on all of them (``proof.least_objective``).
  CP-SAT judges the exact program's least J of the ranked fields (``certify``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import SAMPLE, Answer, Plan, RankFloors, Status, with_gaps
from meshwright.solver.clock import Watch, relative_gap
from meshwright.solver.cost.objective import claim_of
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.problem import Problem
from meshwright.solver.search.answers import versions
from meshwright.solver.search.certify.judge import Certificate, Judge, PlacedJudge
from meshwright.solver.search.placement.frontier import PlacedFrontier
from meshwright.solver.search.placement.plans import Candidate, of_placement, of_split, ranked
from meshwright.solver.search.placement.plans import placed_plans_of as plans_of
from meshwright.solver.search.placement.replicas import (
    GroupShares,
    Split,
    least_split_s,
    shares_of,
    solve_split,
    split_bound_s,
)
from meshwright.solver.search.placement.rows import Outer, columns_of, outer_of, sets_of
from meshwright.solver.search.proof import Least, least_objective

_FIRST_S = 0.5  # a first plan is sought for as long, whatever the limit
_FIRST_SHARE = 0.3  # of the time, where a few rows have none
_TRIED = 3  # fields that are solved for it
_FEW, _SOON_PRICED = 1024, 8192  # rows among which a first plan is sought, where there are more than these


def search_placed(problem: Problem, profile: Profile, watch: Watch, *, wide: bool = False) -> Answer:
    """The ``top_k`` best placements of a problem on a mixed cluster.

    ``wide``: among all slices of the sequence and micro-batches (``outer_of``), as where nothing else fits.

    Raises:
        InvalidProblemError: the problem names something unknown.
        InvalidPlanError: the independent check refuses a plan (a bug).
    """
    with Judge(problem.options) as judge:
        watch.report("enumerating", now=True)
        fleet = NodeGroups.of(problem, profile)
        frontier, size = PlacedFrontier.of(Outer.of_nothing(fleet), problem.options.top_k), 0
        with watch.at_least(_FIRST_S).cut():
            size = columns_of(fleet, wide=wide)[1]
            first = frontier = _first(fleet, watch, size, wide=wide)
            outer = outer_of(fleet, wide=wide)[0]
            frontier = PlacedFrontier.of(outer, problem.options.top_k, meshes=problem.options.diverse)
            frontier.adopt(first)
        outer, shared = frontier.outer, _Shared(fleet, [], [])
        waiting: list[tuple[float, tuple[int, ...]]] | None = None  # nobody looked yet
        every_split = False
        with watch.cut():
            shared = _Shared(fleet, shares_of(outer) if len(outer) else [], [])
            waiting = shared.waiting()
            for least_s, groups in waiting:
                frontier.run(lambda state: _interrupt(watch, state), until_s=least_s)
                shared.solve(groups, frontier.cutoff_s)
                frontier.rivals_s = tuple(split.score_s for split in shared.splits)
            every_split = True
            frontier.run(lambda state: _interrupt(watch, state))
        if not frontier.ranked and frontier.outer.whole:
            with watch.at_least(_FIRST_S).cut():
                frontier.run(lambda state: bool(state.ranked))
        idle = frontier.waiting_s == np.inf or frontier.waiting_s > frontier.cutoff_s
        sampled = idle and every_split and not frontier.outer.whole and not watch.interrupted()
        frontier.finished &= every_split
        best = _ranking(problem, frontier, shared)
        bound = _bound_s(frontier, shared, best, waiting, watch)
        floors = _floors(frontier, shared, best, bound, watch)
        if frontier.finished and frontier.meshes and 0 < len(best) < problem.options.top_k:
            with watch.cut():
                frontier.fill(lambda state: _interrupt(watch, state))
            best = _ranking(problem, frontier, shared)
            layouts = _floors(frontier, shared, best, bound, watch).layouts
            floors = replace(floors, layouts=layouts) if layouts else RankFloors()
        least: Least | None = None
        with watch.cut():
            least = _least(frontier, shared, best)
        certificate = _certified(problem, judge, frontier, best, watch)
    plans = plans_of(problem, profile, best, certificate.rows, watch.closing())
    scores = [one.score_s for one in best[: len(plans)]]
    known = floors if len(plans) == len(best) else RankFloors()
    plans = with_gaps(plans, scores, known, bound, of_steps=True)
    answer = _answer(problem, profile, frontier, plans, watch=watch, size=size, bound_s=bound)
    answer = replace(answer, notes={**answer.notes, **(SAMPLE if sampled else {})})
    if least is not None:
        excess = relative_gap(best[0].objective_s, least.known_s)
        gap = relative_gap(least.known_s, least.bound_s)
        answer = replace(answer, objective_gap=gap, objective_excess=excess)
    if answer.status == "infeasible" and not wide:
        return search_placed(problem, profile, watch, wide=True)
    space: Literal["usual", "every"] = "every" if wide else "usual"
    return replace(answer, warnings=(*answer.warnings, *certificate.warnings), space=space)


def _first(fleet: NodeGroups, watch: Watch, size: int, *, wide: bool) -> PlacedFrontier:
    """Return a few of ``size`` rows with a first plan, before all are priced; none where all are few.

    A plan is sought among them for a share of the time: they may have none.
    """
    if size <= _SOON_PRICED:
        return PlacedFrontier.of(Outer.of_nothing(fleet), 1)
    frontier = PlacedFrontier.of(outer_of(fleet, wide=wide, most=_FEW)[0], 1)
    frontier.outer = replace(frontier.outer, whole=False)
    until_s = max(watch.time_limit_s * _FIRST_SHARE, _FIRST_S)

    def found(state: PlacedFrontier) -> bool:
        over = _interrupt(watch, state) and bool(state.ranked)
        return over or state.solved >= _TRIED or watch.elapsed_s > until_s

    frontier.run(found)
    best = frontier.ranked[0].score_s if frontier.ranked else None
    watch.report("enumerating", incumbent_s=best, now=best is not None)
    return frontier


def _ranking(problem: Problem, frontier: PlacedFrontier, shared: _Shared) -> list[Candidate]:
    """The best placements and splits of the batch."""
    outer = frontier.outer
    candidates = [of_placement(outer, placed) for placed in frontier.ranked]
    candidates += [of_split(outer.fleet, shared.shares, split) for split in shared.splits]
    return ranked(problem, candidates)


def _floors(
    frontier: PlacedFrontier, shared: _Shared, best: list[Candidate], least_s: float | None, watch: Watch
) -> RankFloors:
    """What no placement of a mesh, or of a layout, simulates faster than; a set of groups is one of each.

    What was refuted takes as long as the last that is ranked, or the best of its own layout.
    """
    if not frontier.finished or least_s is None or not best:
        return RankFloors()
    floors: dict[tuple[object, ...], float] = dict(frontier.floors_s.items())
    with watch.cut():
        for groups in shared.sets():
            exchange = shared.fleet.exchange_s(groups)
            floor = split_bound_s(shared.shares, groups, exchange, best[-1].score_s)
            floors["classes", *groups] = max(floor, least_s)
        meshes, layouts = (floors, {}) if frontier.meshes else ({}, floors)
        return RankFloors(known=True, meshes=meshes, layouts=layouts)
    return RankFloors()


def _certified(
    problem: Problem, judge: Judge, frontier: PlacedFrontier, best: list[Candidate], watch: Watch
) -> Certificate:
    """What CP-SAT confirms of a proved ranking."""
    if not frontier.finished or not best:
        return Certificate()
    watch.report("certifying", now=True, incumbent_s=best[0].score_s)
    every = problem.options.certify == "cp-sat-all"
    placed = PlacedJudge(judge, watch, problem.options.seed)
    return placed.certified([one.fields for one in best], every=every)


def _least(frontier: PlacedFrontier, shared: _Shared, best: list[Candidate]) -> Least | None:
    """The least closed form, as far as it is known and proved; None where the ranking is not proved."""
    if not best or not frontier.finished:
        return None
    known = min(one.objective_s for one in best)
    return least_objective(frontier, shared.shares, known)


def _bound_s(
    frontier: PlacedFrontier,
    shared: _Shared,
    found: list[Candidate],
    waiting: list[tuple[float, tuple[int, ...]]] | None,
    watch: Watch,
) -> float | None:
    """No placement and no split of the batch simulates faster; None where nothing is known.

    ``waiting``: the sets of groups that the batch may be split over, by their first bounds; None: unknown.
    """
    if waiting is None or not frontier.outer.whole:
        return None
    splits = waiting[0][0] if waiting else np.inf
    if not found:
        least = min(frontier.waiting_s, splits)
        return least if least < np.inf and not frontier.finished else None
    best = min(found[0].score_s, splits)
    with watch.cut():
        best = shared.bound_s(found[0].score_s)
    return frontier.least_bound_s(best)


@dataclass(frozen=True, slots=True)
class _Shared:
    """Classes of replicas on two or more groups, and the best split of the batch over each set of them."""

    fleet: NodeGroups
    shares: list[GroupShares]
    splits: list[Split]

    def waiting(self) -> list[tuple[float, tuple[int, ...]]]:
        """Sets of groups that have a split, by their bound."""
        found = []
        for groups in self.sets():
            bound = least_split_s(self.shares, groups)
            if bound < np.inf:
                found.append((bound + self.fleet.exchange_s(groups), groups))
        return sorted(found)

    def solve(self, groups: tuple[int, ...], limit_s: float) -> None:
        """Find the best split over a set of groups, if it is within a time."""
        exchange = self.fleet.exchange_s(groups)
        split = solve_split(self.shares, groups, exchange, limit_s=limit_s)
        if split is not None:
            self.splits.append(split)

    def sets(self) -> list[tuple[int, ...]]:
        """Sets of two or more groups, the largest first."""
        return sets_of(len(self.shares))

    def bound_s(self, limit_s: float) -> float:
        """No split of the batch over any of the sets simulates faster; at most ``limit_s``."""
        for groups in self.sets():
            exchange = self.fleet.exchange_s(groups)
            limit_s = split_bound_s(self.shares, groups, exchange, limit_s)
        return limit_s


def _interrupt(watch: Watch, frontier: PlacedFrontier) -> bool:
    """Report, and say whether to stop."""
    best = min([*(one.score_s for one in frontier.ranked[:1]), *frontier.rivals_s], default=None)
    waiting = min(frontier.waiting_s, best or np.inf)
    watch.report(
        "solving",
        explored=frontier.settled,
        total=len(frontier.outer),
        incumbent_s=best,
        bound_s=waiting if np.isfinite(waiting) and frontier.outer.whole else None,
    )
    return watch.interrupted()


def _answer(
    problem: Problem,
    profile: Profile,
    frontier: PlacedFrontier,
    plans: tuple[Plan, ...],
    *,
    watch: Watch,
    size: int,
    bound_s: float | None,
) -> Answer:
    """The answer with its certificate."""
    best = plans[0].prediction.step_time_s if plans else None
    by = plans[0].certified_by if plans else ("exact-dp",)
    bound_s = bound_s if best is None or bound_s is None else min(bound_s, best)
    proved = frontier.finished
    outcomes: tuple[Status, Status] = ("optimal", "infeasible") if proved else ("feasible", "unknown")
    warnings = (*problem.cluster.warnings, *profile.warnings)
    return Answer(
        status=outcomes[0 if plans else 1],
        plans=plans,
        certified_by=by if proved else (),
        objective_gap=None,
        objective_excess=None,
        bound_step_time_s=bound_s,
        gap=relative_gap(best, bound_s),
        space_size=size,
        legal=len(frontier.outer),
        fit=len(frontier.outer),
        explored=frontier.settled + (size - len(frontier.outer) if frontier.outer.whole else 0),
        counts={
            "priced": len(frontier.outer) * len(frontier.outer.berths),
            "fields": frontier.fields,
            "solved": frontier.solved,
            "simulated": frontier.solved,
            "certified": sum("cp-sat" in plan.certified_by for plan in plans),
        },
        elapsed_s=watch.elapsed_s,
        seed=problem.options.seed,
        versions=versions(profile),
        warnings=warnings,
        num_gpus_used=plans[0].config.num_gpus if plans else problem.cluster.num_gpus,
        peak_flops=plans[0].prediction.peak_flops_per_gpu if plans else profile.group.gpu.peak_bf16_flops,
        notes={
            "profile": "each node group by its own profile: "
            + "; ".join(one.title for one in profile.by_group)
        },
        objective=claim_of(problem, profile, best, bound_s),
    )
