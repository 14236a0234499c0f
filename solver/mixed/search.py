"""The search over a mixed cluster: rows, berths, placements; a proved ranking out.

Variables
  a row (cp, dp, ep, pp, micro-batch, ZeRO stage, recomputation), a berth (node group with its own tp) for
  each group in use, the order and number of the stages on each, and the split of the layers.
Objectives
  J = straggler (sum_s t_s + max_s ((m - 1) t_s + tail_s)) + fixed        ``field.Field.objective_s``
  S = straggler max_s (end_s + tail_s) + fixed, end_s by event simulation ``field.Field.simulated_s``
Constraints
  (M1) tp cp dp GPUs of one group for each stage; no group gives more than it has       ``outer._room``
  (M2) the stages of a group are neighbours: a slow link is crossed once a group        ``reach.sweep``
  (M3) the rules of model, batch, launcher and request hold on each group in use        ``outer._room``
  (M4) peak memory of each stage <= the budget of its own GPU                 ``stages.StageTables.fits``
  (M5) layers stay in order, each stage holds one or more; chunks do not interleave     ``reach.sweep``
Answer
  Each field's placement minimises J exactly (``reach.Program``); its S is the field's score; rows that
  differ in recomputation and split alone are one layout; the K best layouts are proved best first.
  ``bound_step_time_s``: no placement of any row simulates faster (``reach.Reach``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from profiles.profile import Profile
from solver.digest import problem_digest
from solver.errors import InvalidPlanError
from solver.mixed.check import placed_violations
from solver.mixed.field import Field
from solver.mixed.fleet import Fleet
from solver.mixed.frontier import Placed, PlacedFrontier
from solver.mixed.outer import Outer, at_berth, outer_of
from solver.mixed.predict import predict_placed
from solver.plan import Answer, Configuration, Plan, StageGroup, Status, plan_id_of
from solver.problem import Problem
from solver.search.answering import versions
from solver.search.watch import Watch, relative_gap


def search_placed(problem: Problem, profile: Profile, watch: Watch) -> Answer:
    """The ``top_k`` best placements of a problem on a mixed cluster.

    Raises:
        InvalidProblemError: the problem names something unknown.
        InvalidPlanError: the independent check refuses a plan (a bug).
    """
    watch.report("enumerating", now=True)
    outer, size = outer_of(Fleet.of(problem, profile))
    frontier = PlacedFrontier.of(outer, problem.options.top_k)
    frontier.run(lambda state: _interrupt(watch, state))
    bound = frontier.waiting_s if frontier.waiting_s < np.inf else None
    if frontier.ranked:
        best = frontier.ranked[0].score_s
        bound = min(best, frontier.waiting_s)
        if frontier.finished:
            bound = frontier.least_bound_s(best, watch.tick)
    plans = _plans(problem, profile, frontier)
    return _answer(problem, profile, frontier, plans, watch=watch, size=size, bound_s=bound)


def _interrupt(watch: Watch, frontier: PlacedFrontier) -> bool:
    """Report, and say whether to stop."""
    best = frontier.ranked[0].score_s if frontier.ranked else None
    waiting = min(frontier.waiting_s, best or np.inf)
    watch.report(
        "solving",
        explored=frontier.settled,
        total=len(frontier.outer),
        incumbent_s=best,
        bound_s=waiting if np.isfinite(waiting) else None,
    )
    return watch.interrupted()


def configuration_of(outer: Outer, placed: Placed) -> Configuration:
    """A placement as a configuration."""
    one = Field(outer=outer, row=placed.row, berths=placed.berths)
    split = [stop.end - stop.start for stop in placed.placement]
    berths = [outer.berths[one.berths[stop.berth]] for stop in placed.placement]
    largest = max(berths, key=lambda berth: berth.tensor_parallel_size)
    row = at_berth(outer.columns.take(np.array([placed.row])), largest)
    replicas = int(row.context_parallel_size[0] * row.data_parallel_size[0])
    stages = tuple(
        StageGroup(
            group=outer.fleet.names[berth.group],
            num_gpus=berth.tensor_parallel_size * replicas,
            num_nodes=berth.tensor_parallel_size * replicas / outer.fleet.groups[berth.group].gpus_per_node,
            tensor_parallel_size=berth.tensor_parallel_size,
        )
        for berth in berths
    )
    return replace(row.configuration(0, split), stage_groups=stages)


def _plans(problem: Problem, profile: Profile, frontier: PlacedFrontier) -> tuple[Plan, ...]:
    """The ranking as plans, each past the independent check."""
    digest, plans = problem_digest(problem), list[Plan]()
    for placed in frontier.ranked:
        config = configuration_of(frontier.outer, placed)
        plan = Plan(
            plan_id=plan_id_of(digest, config),
            rank=len(plans) + 1,
            config=config,
            prediction=predict_placed(problem, profile, config),
            objective_s=placed.objective_s,
            certified_by=("exact-dp",),
        )
        if faults := list(placed_violations(problem, profile, plan)):
            raise InvalidPlanError("; ".join(faults))
        plans.append(plan)
    return tuple(plans)


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
    proved = frontier.finished
    outcomes: tuple[Status, Status] = ("optimal", "infeasible") if proved else ("feasible", "unknown")
    warnings = (*problem.cluster.warnings, *profile.warnings)
    return Answer(
        status=outcomes[0 if plans else 1],
        plans=plans,
        certified_by=("exact-dp",) if proved else (),
        objective_gap=None,
        objective_excess=None,
        bound_step_time_s=bound_s,
        gap=relative_gap(best, bound_s),
        space_size=size,
        legal=len(frontier.outer),
        fit=len(frontier.outer),
        explored=size - len(frontier.outer) + frontier.settled,
        counts={
            "priced": len(frontier.outer) * len(frontier.outer.berths),
            "fields": frontier.fields,
            "solved": frontier.solved,
            "simulated": frontier.solved,
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
    )
