"""The search: a problem in, a proved ranking of plans out.

Variables
  a *row* x of the outer space (``solver.space``): tp, pp, vpp, cp, ep, dp, ZeRO stage, micro-batch,
  recomputation; and its *split* n = (n_1 … n_C), the layers of each of its C = pp * vpp chunks.
Objectives
  J(x, n) = straggler * (phi sum_r t_r + max_r ((m - phi) t_r + tail_r)) + fixed
                                                                  ``cost.assemble.objective_s``
  S(x, n) = straggler * max_r (end_r + tail_r) + fixed, end_r by event simulation
                                                                  ``search.simulate.rank_finish_s``
Constraints
  (1) x breaks no rule of model, batch, launcher and request      ``rules.rules_of``
  (2) sum_c n_c = L, in model order                               ``stages.best_splits``
  (3) n_c >= 1, and >= k where k layers of each chunk recompute   ``rows.Rows.smallest_chunk``
  (4) peak memory of every rank <= budget                         ``caps``, ``stages.StageTables``
  (5) interleaved chunks of a rank differ by at most one layer, earlier chunks the larger ones;
      with layers of several kinds there is one even split        ``caps.chunks_of_rank_counts``,
                                                                  ``stages.even_chunks``
Answer
  Each row's split n*(x) minimises J(x, .) under (2)-(5), exactly (``stages``). Rows are ranked by
  S(x, n*(x)), best first under valid bounds (``bounds``, ``frontier``). Rows that differ in nothing but
  recomputation are one layout; its best row stands for it.

What is claimed, and what is not
  status ``optimal``: the ranking is proved. No layout outside the K plans has a smaller S(x, n*(x)).
  ``objective_gap`` is 0: the least J over *all* rows and splits was found and proved; CP-SAT judges it
  independently. ``objective_excess`` = (J_1 - min J) / J_1, J_1 of the first plan, is what ranking by S
  instead of J costs in J; 0 when the first plan minimises both.
  ``bound_step_time_s``: no row under *any* split simulates faster (``reach.least_bound_s``), so ``gap``
  is what another split of some row could still gain at most; it may exceed 0 although the ranking is
  proved, because n* minimises J and not S.
  All of it holds under the cost model and within the space; ``prediction`` carries the error band.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from profiles.profile import Profile
from solver.check import violations
from solver.columns import FloatArray
from solver.cost.assemble import objective_s
from solver.digest import problem_digest
from solver.errors import InvalidPlanError
from solver.explain import explain
from solver.plan import Answer, Plan, Status, plan_id_of
from solver.predict import predict_all
from solver.problem import Problem
from solver.progress import OnProgress, ShouldStop
from solver.search.bounds import objective_bound_s
from solver.search.certify import Certificate, Judge
from solver.search.frontier import Frontier, Solved
from solver.search.priced import CHUNK, Priced, priced_space
from solver.search.reach import least_bound_s
from solver.search.watch import Watch, relative_gap
from solver.space import Space, enumerate_space

_BATCH = 16  # rows solved between two looks at the clock
_PLAN_S = 0.01  # kept back of the time limit for each plan: predicting and checking it


def search(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Answer:
    """The ``top_k`` best plans of a problem, ranked and proved as the module's text says.

    A time limit or ``should_stop`` ends the search early with what it has: status ``feasible`` with a
    valid bound, or ``unknown`` without a plan.

    Raises:
        InvalidProblemError: the problem names something unknown.
        ProofMismatchError: the exact program and CP-SAT disagree (a bug).
        InvalidPlanError: the independent check refuses a plan (a bug).
    """
    options = problem.options
    watch = Watch(time_limit_s=options.time_limit_s, on_progress=on_progress, should_stop=should_stop)
    with Judge(options) as judge:
        space = enumerate_space(problem, lambda: _looks(watch, "enumerating"))
        watch.report("enumerating", total=len(space.columns), now=True)
        rows = _rows(problem, profile, space, watch)
        frontier = Frontier.of(rows, options.top_k, lambda: _looks(watch, "bounding", space))
        frontier.run(lambda state: _interrupt(watch, space, state))
        proof = _prove(frontier, watch)
        certificate = judge.certify(frontier, proof.survivors, watch)
    plans = _plans(problem, profile, frontier, certificate)
    answer = _answer(_Found(problem, profile, space, frontier, proof, certificate), plans, watch)
    if answer.status == "infeasible":
        answer = replace(answer, infeasible=explain(problem, profile, space, rows))
    watch.report("done", explored=answer.explored, total=answer.space_size,
                 incumbent_s=plans[0].prediction.step_time_s if plans else None,
                 bound_s=answer.bound_step_time_s, now=True)  # fmt: skip
    return replace(answer, elapsed_s=watch.elapsed_s)


def _looks(watch: Watch, stage: str, space: Space | None = None) -> bool:
    """Report a stage before the first row is solved, and say whether to stop."""
    explored, total = (int((~space.legal).sum()), len(space.columns)) if space else (0, 0)
    watch.report(stage, explored=explored, total=total)
    return watch.interrupted()


def _rows(problem: Problem, profile: Profile, space: Space, watch: Watch) -> Priced:
    """The legal rows, priced; none of them when the search was stopped before all had a price."""
    legal = space.columns.take(space.legal)
    return priced_space(problem, profile, legal, lambda: _looks(watch, "bounding", space))


def _interrupt(watch: Watch, space: Space, frontier: Frontier) -> bool:
    """Report, and say whether to stop."""
    best = frontier.ranked[0].score_s if frontier.ranked else None
    waiting = min(frontier.waiting_s, best or np.inf)
    watch.report(
        "solving" if frontier.solved else "bounding",
        explored=len(space.columns) - len(frontier.rows) + frontier.settled,
        total=len(space.columns),
        incumbent_s=best,
        bound_s=waiting if np.isfinite(waiting) else None,
    )
    return watch.interrupted(reserve_s=_PLAN_S * len(frontier.ranked))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proof:
    """What holds for all rows and splits."""

    bound_s: float | None = None
    objective_excess: float | None = None
    survivors: tuple[int, ...] = ()  # the first plan's row, then rows that its objective leaves standing


def _prove(frontier: Frontier, watch: Watch) -> _Proof:
    """Bound all simulations and find the least closed-form objective, as far as time allows."""
    open_bounds = frontier.bound_s[np.isfinite(frontier.bound_s)]
    low = float(open_bounds.min()) if len(open_bounds) else None
    if not frontier.ranked or not frontier.finished or low is None:
        return _Proof(bound_s=low)
    best, first = frontier.ranked[0].score_s, frontier.ranked[0].row
    contenders = np.flatnonzero(frontier.bound_s < best)
    bound = least_bound_s(frontier.rows.take(contenders), min(low, best), best)
    objective = _objectives_s(frontier)[0]
    own = frontier.solved[first].objective_s
    rivals = _rivals(frontier, own, watch)
    least = min([own, *(rival.objective_s for rival in rivals)])
    survivors = (first, *(rival.row for rival in rivals if rival.row != first))
    gap = None if watch.stopped else relative_gap(objective, least)
    return _Proof(bound_s=bound, objective_excess=gap, survivors=survivors)


def _rivals(frontier: Frontier, objective_s: float, watch: Watch) -> list[Solved]:
    """Rows whose bound on the closed form is below the least known one, solved, best first."""
    bounds = _objective_bounds_s(frontier)
    order = np.argsort(bounds, kind="stable")
    least, rivals = objective_s, []
    for start in range(0, len(order), _BATCH):
        batch = [int(row) for row in order[start : start + _BATCH] if bounds[row] < least]
        if not batch or watch.interrupted():
            break
        rivals += frontier.solve(batch)
        least = min([least, *(rival.objective_s for rival in rivals)])
    return sorted(rivals, key=lambda rival: (rival.objective_s, rival.row))


def _objective_bounds_s(frontier: Frontier) -> FloatArray:
    """Lower bound on every row's closed form, shape (n,); +inf where no split fits."""
    bounds = np.full(len(frontier.rows), np.inf)
    open_rows = np.flatnonzero(np.isfinite(frontier.bound_s))
    for start in range(0, len(open_rows), CHUNK):
        index = open_rows[start : start + CHUNK]
        bounds[index] = objective_bound_s(frontier.rows.take(index))
    return bounds


def _objectives_s(frontier: Frontier) -> list[float]:
    """The closed form of every ranked row under its split."""
    if not frontier.ranked:
        return []
    rows = frontier.rows.take([one.row for one in frontier.ranked])
    stages = rows.stages([one.split for one in frontier.ranked])
    return [float(value) for value in objective_s(rows.prices, rows.columns, stages)]


def _plans(
    problem: Problem, profile: Profile, frontier: Frontier, certificate: Certificate
) -> tuple[Plan, ...]:
    """The ranked rows as plans, each past the independent check."""
    columns, digest = frontier.rows.columns, problem_digest(problem)
    ranked = frontier.ranked
    configurations = [columns.configuration(one.row, one.split) for one in ranked]
    predictions = predict_all(problem, profile, configurations)
    objectives = _objectives_s(frontier)
    plans = []
    for at, (config, prediction) in enumerate(zip(configurations, predictions, strict=True)):
        plan = Plan(
            plan_id=plan_id_of(digest, config),
            rank=at + 1,
            config=config,
            prediction=prediction,
            objective_s=objectives[at],
            certified_by=("exact-dp", *(("cp-sat",) if ranked[at].row in certificate.rows else ())),
        )
        faults = list(violations(problem, profile, plan))
        if faults:
            raise InvalidPlanError("; ".join(faults))
        plans.append(plan)
    return tuple(plans)


@dataclass(frozen=True, slots=True)
class _Found:
    """Everything that an answer is made of."""

    problem: Problem
    profile: Profile
    space: Space
    frontier: Frontier
    proof: _Proof
    certificate: Certificate


def _answer(found: _Found, plans: tuple[Plan, ...], watch: Watch) -> Answer:
    """The answer with its certificate."""
    frontier, space, proof = found.frontier, found.space, found.proof
    legal = int(space.legal.sum())
    proved = frontier.finished
    best = plans[0].prediction.step_time_s if plans else None
    bound = proof.bound_s if best is None or proof.bound_s is None else min(proof.bound_s, best)
    cp_sat = ("cp-sat",) if plans and "cp-sat" in plans[0].certified_by else ()
    outcomes: tuple[Status, Status] = ("optimal", "infeasible") if proved else ("feasible", "unknown")
    warnings = (*space.warnings, *found.problem.cluster.warnings, *found.profile.warnings)
    return Answer(
        status=outcomes[0 if plans else 1],
        plans=plans,
        certified_by=("exact-dp", *cp_sat) if proved else (),
        objective_gap=None if proof.objective_excess is None else 0.0,
        objective_excess=proof.objective_excess,
        bound_step_time_s=bound,
        gap=relative_gap(best, bound),
        space_size=len(space.columns),
        legal=legal,
        fit=frontier.fits,
        explored=len(space.columns) - legal + frontier.settled,
        counts={
            "priced": len(frontier.rows),
            "pruned": len(frontier.rows) - frontier.simulated,
            "solved": len(frontier.solved),
            "simulated": frontier.simulated,
            "certified": len(found.certificate.rows),
        },
        elapsed_s=watch.elapsed_s,
        seed=found.problem.options.seed,
        versions=_versions(found.profile),
        warnings=(*warnings, *found.certificate.warnings),
        num_gpus_used=plans[0].config.num_gpus if plans else space.num_gpus,
        peak_flops=found.profile.group.gpu.peak_bf16_flops,
        notes={"profile": found.profile.title},
    )


def _versions(profile: Profile) -> dict[str, str]:
    """What answered; OR-Tools is named without being loaded."""
    versions = {"profile": profile.version}
    for key, package in (("meshwright", "meshwright"), ("solver", "ortools")):
        try:
            versions[key] = version(package)
        except PackageNotFoundError:
            versions[key] = "0"
    return versions
