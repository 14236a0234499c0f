"""Placements and shares of a batch as configurations and ranked plans."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Plan
from meshwright.solver.check import violations
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Columns, Configuration, StageGroup, joined, plan_id_of
from meshwright.solver.cost.pipelines import Berth, NodeGroups
from meshwright.solver.predict import predict
from meshwright.solver.problem import InvalidPlanError, Problem, problem_digest
from meshwright.solver.search.placement.frontier import Placed
from meshwright.solver.search.placement.program import Field
from meshwright.solver.search.placement.replicas import GroupShares, Split
from meshwright.solver.search.placement.rows import Outer, at_berth, rows_at


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration with its closed form."""

    score_s: float
    config: Configuration
    objective_s: float
    fields: tuple[Field, ...]  # what its stages were chosen on: one, or one for each class of replicas


def _stage_group(fleet: NodeGroups, columns: Columns, berth: Berth) -> StageGroup:
    """Where a stage of a row stands, with all its replicas."""
    replicas = int(columns.context_parallel_size[0] * columns.data_parallel_size[0])
    gpus = berth.tensor_parallel_size * replicas
    return StageGroup(
        group=fleet.names[berth.group],
        num_gpus=gpus,
        num_nodes=gpus / fleet.groups[berth.group].gpus_per_node,
        tensor_parallel_size=berth.tensor_parallel_size,
    )


def of_placement(outer: Outer, placed: Placed) -> Candidate:
    """A placement as a configuration."""
    split = [stop.end - stop.start for stop in placed.placement]
    berths = [outer.berths[placed.berths[stop.berth]] for stop in placed.placement]
    largest = max(berths, key=lambda berth: berth.tensor_parallel_size)
    row = at_berth(outer.columns.take(np.array([placed.row])), largest)
    stages = tuple(_stage_group(outer.fleet, row, berth) for berth in berths)
    config = replace(row.configuration(0, split), stage_groups=stages)
    own = Field(outer=outer, row=placed.row, berths=placed.berths)
    return Candidate(placed.score_s, config, placed.objective_s, (own,))


def of_split(fleet: NodeGroups, shares: list[GroupShares], split: Split) -> Candidate:
    """Shares of the batch as a configuration with a class of replicas for each group."""
    classes, fields = list[Configuration](), list[Field]()
    for group, n in zip(split.groups, split.sequences, strict=True):
        share = shares[group].solved[n]
        if share is None:
            raise InvalidPlanError("a share of the batch without a plan")
        row = share.columns
        berth = Berth(group=group, tensor_parallel_size=int(row.tensor_parallel_size[0]))
        stages = (_stage_group(fleet, row, berth),) * int(row.pipeline_parallel_size[0])
        classes.append(replace(row.configuration(0, share.split), stage_groups=stages))
        fields.append(_alone(fleet, row, berth))
    return Candidate(split.score_s, joined(classes), split.objective_s, tuple(fields))


def _alone(fleet: NodeGroups, row: Columns, berth: Berth) -> Field:
    """One row on one berth: a class of replicas."""
    outer = Outer(
        fleet=fleet,
        columns=row,
        berths=(berth,),
        rows=(rows_at(fleet, row, berth),),
        room=row.pipeline_parallel_size[None, :],
        sent_bytes=np.zeros((1, 1)),
    )
    return Field(outer=outer, row=0, berths=(0,))


def ranked(problem: Problem, candidates: list[Candidate]) -> list[Candidate]:
    """The ``top_k`` best candidates, best first."""
    ordered = sorted(candidates, key=lambda one: (one.score_s, len(one.config.replicas)))
    return ordered[: problem.options.top_k]


def placed_plans_of(
    problem: Problem,
    profile: Profile,
    candidates: list[Candidate],
    confirmed: frozenset[int],
    watch: Watch,
) -> tuple[Plan, ...]:
    """Ranked candidates as plans, each past the independent check; ``confirmed`` by CP-SAT, from 0.

    As many as ``watch`` has time for, and at least the first.

    Raises:
        InvalidPlanError: the check refuses a plan (a bug).
    """
    digest, plans = problem_digest(problem), list[Plan]()
    for at, one in enumerate(candidates):
        over = watch.interrupted()
        if at and over:
            break
        plan = Plan(
            plan_id=plan_id_of(digest, one.config),
            rank=at + 1,
            config=one.config,
            prediction=predict(problem, profile, one.config),
            objective_s=one.objective_s,
            certified_by=("exact-dp", *(("cp-sat",) if at in confirmed else ())),
        )
        if faults := list(violations(problem, profile, plan)):
            raise InvalidPlanError("; ".join(faults))
        plans.append(plan)
    return tuple(plans)
