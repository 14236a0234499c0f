"""Plans and an answer with its certificate, from the result of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import (
    MEASURED_RUNS,
    Answer,
    Outlook,
    Plan,
    RankFloors,
    Status,
    versions,
    with_gaps,
)
from meshwright.solver.check import violations_of_all
from meshwright.solver.clock import Watch, relative_gap
from meshwright.solver.configuration import Configuration, plan_id_of
from meshwright.solver.cost.memory import kept_free_words
from meshwright.solver.cost.objective import claim_of, is_asked_for, is_plain, outlooks_of
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import InvalidPlanError, Problem, problem_digest
from meshwright.solver.search.certify.judge import Certificate
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.priced_space import Priced, least_step_s, steps_s
from meshwright.solver.space.enumerate import Space
from meshwright.solver.space.rules import host_warnings

_TOGETHER = 16  # plans predicted and checked between two looks at the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Facts that hold for all rows and splits."""

    bound_s: float | None = None
    objective_excess: float | None = None
    objective_gap: float | None = None  # from the least closed form that is known to a bound on all of them
    survivors: tuple[int, ...] = ()  # the first plan's row, then rows that its objective leaves standing
    floors: RankFloors = field(default_factory=RankFloors)


class Listed(NamedTuple):
    """A configuration in its place of a ranking."""

    rank: int
    config: Configuration
    objective_s: float
    certified_by: tuple[str, ...]


def checked_plans(problem: Problem, profile: Profile, listed: Sequence[Listed]) -> list[Plan]:
    """Return configurations as plans, predicted and past the independent check.

    Raises:
        InvalidPlanError: the check refuses one (a bug).
    """
    configs = [one.config for one in listed]
    predictions, digest = predict_all(problem, profile, configs), problem_digest(problem)
    outlooks: Sequence[Outlook | None] = [None] * len(configs)
    if is_asked_for(problem):
        outlooks = outlooks_of(problem, profile, configs, predictions)
    plans = [
        Plan(
            plan_id=plan_id_of(digest, one.config),
            rank=one.rank,
            config=one.config,
            prediction=prediction,
            objective_s=one.objective_s,
            outlook=outlook,
            certified_by=one.certified_by,
        )
        for one, prediction, outlook in zip(listed, predictions, outlooks, strict=True)
    ]
    if faults := [fault for some in violations_of_all(problem, profile, plans) for fault in some]:
        raise InvalidPlanError("; ".join(faults))
    return plans


def plans_of(
    problem: Problem,
    profile: Profile,
    frontier: Frontier,
    certificate: Certificate,
    watch: Watch | None = None,
) -> tuple[Plan, ...]:
    """Return the ranked rows as checked plans, as many as ``watch`` has time for."""
    plans, by = list[Plan](), frontier.rows.by_kind
    for start in range(0, len(frontier.ranked), _TOGETHER):
        over = watch is not None and watch.interrupted()
        if start and over:
            break
        ranked = frontier.ranked[start : start + _TOGETHER]
        rows, splits = [one.row for one in ranked], [one.split for one in ranked]
        some = frontier.rows.take(rows)
        objectives = steps_s(frontier.rows, rows, some.objective_s(splits)).tolist()
        certified = [("exact-dp", *(("cp-sat",) if row in certificate.rows else ())) for row in rows]
        ranks = range(start + 1, start + len(ranked) + 1)
        listed = list(map(Listed, ranks, some.configurations(splits), objectives, certified))
        parts = frontier.rows.parts_of(rows)
        found = list[Plan]()
        for part in np.unique(parts).tolist():  # each is priced and checked under its own switches
            one = by.problems[part] if by else problem
            found += checked_plans(one, profile, [listed[at] for at in np.flatnonzero(parts == part)])
        plans += sorted(found, key=lambda plan: plan.rank)
    return tuple(plans)


def fastest_of(problem: Problem, profile: Profile, rows: Priced) -> Plan | None:
    """Return the fastest plan in the rows' budget; None if there is none, or no time to prove it."""
    frontier = Frontier.of(rows, 1)
    frontier.run(lambda _: False)
    if not frontier.finished or not frontier.ranked:
        return None
    return plans_of(problem, profile, frontier, Certificate())[0]


@dataclass(frozen=True, slots=True)
class AnswerInputs:
    """All inputs of an answer."""

    problem: Problem
    profile: Profile
    space: Space
    frontier: Frontier
    proof: Proof
    certificate: Certificate
    others: tuple[Problem, ...] = ()  # the problem under other switches; their rows are ranked with its own


def answer_of(found: AnswerInputs, plans: tuple[Plan, ...], watch: Watch) -> Answer:
    """Return the answer with its certificate.

    ``plans``: the ranked rows that there was time to predict and check, best first.
    """
    frontier, space, proof = found.frontier, found.space, found.proof
    proved = frontier.finished
    score = frontier.ranked[0].score_s if plans else None
    # the least score of all is at most the one that was found
    claim_s = proof.bound_s if score is None or proof.bound_s is None else min(proof.bound_s, score)
    scores = [one.score_s for one in frontier.ranked[: len(plans)]]
    floors = proof.floors if len(plans) == len(frontier.ranked) else RankFloors()
    cp_sat = ("cp-sat",) if plans and "cp-sat" in plans[0].certified_by else ()
    return Answer(
        status=_status(frontier, plans),
        plans=with_gaps(plans, scores, floors, claim_s, of_steps=is_plain(found.problem)),
        certified_by=("exact-dp", *cp_sat) if proved else (),
        objective_gap=proof.objective_gap,
        objective_excess=proof.objective_excess,
        bound_step_time_s=_step_bound_s(frontier, plans, claim_s),
        gap=relative_gap(score, claim_s),
        space_size=space.size,
        legal=space.num_legal,
        fit=frontier.fits,
        explored=space.size - space.num_legal + frontier.settled,
        counts={
            "priced": len(frontier.rows),
            "pruned": len(frontier.rows) - frontier.simulated,
            "solved": len(frontier.solved),
            "simulated": frontier.simulated,
            "certified": len(found.certificate.rows),
        },
        elapsed_s=watch.elapsed_s,
        seed=found.problem.options.seed,
        versions=versions(found.profile),
        warnings=_warnings(found, plans),
        num_gpus_used=plans[0].config.num_gpus if plans else space.num_gpus,
        peak_flops=found.profile.group.gpu.peak_bf16_flops,
        notes={
            "profile": found.profile.title,
            "kept_free": kept_free_words(found.problem, found.profile),
            **runs_note(found.profile),
        },
        objective=claim_of(found.problem, found.profile, score, claim_s),
        space="every" if space.every else "usual",
        floors=proof.floors,
    )


def _status(frontier: Frontier, plans: Sequence[Plan]) -> Status:
    """Return what is known of all rows, which fit although other searches' plans leave none to list."""
    may_fit = frontier.fits > 0 or frontier.beyond_s < np.inf
    has_plan = bool(plans) or (frontier.limit_s < np.inf and may_fit)
    if frontier.finished:
        return "optimal" if has_plan else "infeasible"
    return "feasible" if has_plan else "unknown"


def _step_bound_s(frontier: Frontier, plans: Sequence[Plan], claim_s: float | None) -> float | None:
    """Turn the bound of the objective into one of a step, at most the first plan's."""
    if not plans:
        return claim_s
    bound_s = least_step_s(frontier.rows, frontier.ranked[0].row, claim_s)
    return None if bound_s is None else min(bound_s, plans[0].prediction.step_time_s)


def _warnings(found: AnswerInputs, plans: Sequence[Plan]) -> tuple[str, ...]:
    ranked = found.frontier.ranked
    listed = f"the first {len(plans)} of {len(ranked)} ranked plans"
    return (
        *found.space.warnings,
        *found.problem.cluster.warnings,
        *found.profile.warnings,
        *host_warnings(found.problem),
        *found.certificate.warnings,
        *([f"the time limit came after {listed} were predicted"] if len(plans) < len(ranked) else ()),
    )


def runs_note(profile: Profile) -> dict[str, str]:
    """Return the note of how many measured runs a profile learnt from; none of a profile that did not."""
    learnt = [one.learnt_from for one in profile.by_group] or [profile.learnt_from]
    fewest = min(map(len, learnt))  # of a mixed cluster, each node group has its own
    return {MEASURED_RUNS: str(fewest)} if fewest else {}
