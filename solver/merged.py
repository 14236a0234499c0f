"""Answers to several variants of a request as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from solver.baseline import score_s
from solver.columns import Columns
from solver.objective import DAY_S, slowdown
from solver.plan import Answer, Infeasibility, ObjectiveClaim, Plan, SkippedLauncher, Status
from solver.problem import Problem
from solver.search.ranking import layouts_of
from solver.search.watch import relative_gap
from solver.variants import Variant, with_launchers, workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One variant with its answer."""

    variant: Variant
    answer: Answer


def merged(
    asked: Problem,
    answered: Sequence[Answered],
    *,
    unasked: int = 0,
    skipped: Sequence[SkippedLauncher] = (),
) -> Answer:
    """The best plans of all variants, with what holds for all of them.

    ``skipped`` launchers were not searched; those that were and have no plan are added to them.
    Proved optimal when every variant's ranking is proved, or proved to have no plan; ``unasked`` variants
    were never searched. A bound holds for all variants or is none.
    """
    if len(answered) == 1 and not unasked and asked.launcher != "any":
        return answered[0].answer
    reached = _on_fewest(asked, answered)
    ranked, told = _ranked(asked, reached), min(answered, key=_effort)
    plans = _named(asked, answered, ranked)
    first = ranked[0][0].answer if ranked else told.answer
    answers = [one.answer for one in answered]
    missing: list[Status] = ["unknown"] * unasked
    status = _status([*(one.status for one in answers), *missing])
    kept = [one.answer for one in reached]
    claim, proved = _claim(kept, first, unasked), status == "optimal"
    return replace(
        first,
        status=status,
        plans=plans,
        certified_by=first.certified_by if proved else (),
        bound_step_time_s=_step_bound_s(asked, kept, plans, unasked),
        gap=claim.gap if claim else None,
        objective=claim,
        space_size=_sum(answers, lambda one: one.space_size),
        legal=_sum(answers, lambda one: one.legal),
        fit=_sum(answers, lambda one: one.fit),
        explored=_sum(answers, lambda one: one.explored),
        counts={name: _sum(answers, lambda one: one.counts.get(name, 0)) for name in first.counts},  # noqa: B023
        elapsed_s=sum(one.elapsed_s for one in answers),
        warnings=tuple(dict.fromkeys(warning for one in answers for warning in one.warnings)),
        notes={**first.notes, "variants": str(len(answered))},
        infeasible=None if plans else _said(told, asked),
        num_gpus_used=plans[0].config.num_gpus if plans else first.num_gpus_used,
        space="every" if all(one.space == "every" for one in answers) else "usual",
        skipped_launchers=_skipped(answered, skipped, unasked) if asked.launcher == "any" else (),
    )


def _skipped(
    answered: Sequence[Answered], skipped: Sequence[SkippedLauncher], unasked: int
) -> tuple[SkippedLauncher, ...]:
    """Launchers that cannot train the model, and those of which every search proves that nothing fits."""
    found = {one.launcher: one for one in skipped}
    with_hope = {one.variant.problem.launcher for one in answered if one.answer.status != "infeasible"}
    if unasked and answered:  # further variants of the last launcher may have a plan
        with_hope.add(answered[-1].variant.problem.launcher)
    for one in answered:
        name, why = one.variant.problem.launcher, one.answer.infeasible
        if name not in with_hope and name not in found:
            reasons = why.reasons if why and why.reasons else ("no configuration is legal and fits",)
            found[name] = SkippedLauncher(launcher=name, reasons=reasons)
    return tuple(found[name] for name in sorted(found))


def _effort(one: Answered) -> tuple[float, float]:
    """What orders searches without a plan: the cost of their cheapest change, then the memory they lack."""
    found = one.answer.infeasible
    if found is None:
        return inf, inf
    lacks = inf if found.nearest is None else found.nearest.needed_bytes - found.nearest.limit_bytes
    return min((remedy.gpu_s_per_token for remedy in found.remedies), default=inf), lacks


def _said(told: Answered, asked: Problem) -> Infeasibility | None:
    """Why the search that comes nearest has no plan; it names its launcher where any would do."""
    found, launcher = told.answer.infeasible, told.variant.problem.launcher
    if found is None or asked.launcher == launcher:
        return found
    under = f"under {launcher}"
    return replace(
        found,
        reasons=tuple(f"{under}: {reason}" for reason in found.reasons),
        changes=tuple(f"{change} {under}" for change in found.changes),
        remedies=tuple(replace(remedy, change=f"{remedy.change} {under}") for remedy in found.remedies),
    )


def _sum(answers: Sequence[Answer], of: Callable[[Answer], int]) -> int:
    """A count over all answers."""
    return sum(of(one) for one in answers)


def _status(found: Sequence[Status]) -> Status:
    """How the whole ended: proved only where every part is."""
    if all(status == "infeasible" for status in found):
        return "infeasible"
    proved = all(status in ("optimal", "infeasible") for status in found)
    some = any(status in ("optimal", "feasible") for status in found)
    return "optimal" if proved else "feasible" if some else "unknown"


def _on_fewest(asked: Problem, answered: Sequence[Answered]) -> list[Answered]:
    """The variants that count: where the fewest nodes are asked for, those that need no more than another.

    What is not decided counts too: it may need as few.
    """
    if asked.options.gpus != "fewest":
        return list(answered)
    each = asked.cluster.groups[0].gpus_per_node
    nodes = [-(-one.answer.plans[0].config.num_gpus // each) if one.answer.plans else 0 for one in answered]
    fewest = min((count for count in nodes if count), default=0)
    return [one for one, count in zip(answered, nodes, strict=True) if count in (0, fewest)]


def _ranked(asked: Problem, answered: Sequence[Answered]) -> list[tuple[Answered, Plan]]:
    """The best K plans, each with the variant that found it; a layout of one workload stands once."""
    scored: list[tuple[float, int, Plan]] = []
    for order, one in enumerate(answered):
        change = workload_of(one.variant.problem, asked)
        scored += [
            (_score(one.variant, plan), order, replace(plan, workload=change)) for plan in one.answer.plans
        ]
    kept: dict[tuple[object, ...], tuple[Answered, Plan]] = {}
    for _, order, plan in sorted(scored, key=lambda entry: (entry[0], entry[1], entry[2].rank)):
        (layout,) = layouts_of(Columns.of([plan.config]), [0])
        kept.setdefault((layout, tuple(sorted(plan.workload.items()))), (answered[order], plan))
    best = list(kept.values())[: asked.options.top_k]
    return [(one, replace(plan, rank=rank)) for rank, (one, plan) in enumerate(best, 1)]


def _score(variant: Variant, plan: Plan) -> float:
    """What plans of all variants are ranked by: the time of a whole batch ramp, else the objective."""
    problem, config = variant.problem, plan.config
    if problem.options.batch_ramp and plan.outlook is not None and plan.outlook.days is not None:
        return plan.outlook.days * DAY_S / slowdown(problem, config.num_gpus)
    return score_s(problem, variant.profile, config, plan.prediction)


def _named(
    asked: Problem, answered: Sequence[Answered], ranked: Sequence[tuple[Answered, Plan]]
) -> tuple[Plan, ...]:
    """The plans with the launchers that can run them."""
    found = [(one.variant, plan) for one, plan in ranked]
    among = [one.variant for one in answered] if asked.launcher == "any" else []
    return tuple(with_launchers(among, found))


def _step_bound_s(
    asked: Problem, answers: Sequence[Answer], plans: Sequence[Plan], unasked: int
) -> float | None:
    """No step of any variant on the GPUs and sequences of the first plan is shorter; None: nobody knows.

    A variant bounds steps like those of its own first plan; of others its objective tells, where that is
    the step itself.
    """
    alike = [(plan.config.num_gpus, plan.config.global_batch_size) for plan in plans[:1]]
    found = list[float | None]()
    for one in _open(answers):
        own = [(plan.config.num_gpus, plan.config.global_batch_size) for plan in one.plans[:1]]
        bound = one.bound_step_time_s
        if own and own != alike:
            claim = one.objective
            known = claim is not None and claim.name == "step_time" and claim.bound is not None
            share = alike[0][1] / asked.workload.global_batch_size
            bound = claim.bound * share if claim is not None and claim.bound and known else None
        found.append(bound)
    return min(_bounds(found, unasked), default=None)


def _open(answers: Sequence[Answer]) -> list[Answer]:
    """Those that are not proved to have no plan."""
    return [one for one in answers if one.status != "infeasible"]


def _bounds(found: Sequence[float | None], unasked: int) -> list[float]:
    """The bounds of all variants; none where one of them has none: its plans could be beyond the others."""
    known = [bound for bound in found if bound is not None]
    return known if len(known) == len(found) and not unasked else []


def _claim(answers: Sequence[Answer], first: Answer, unasked: int) -> ObjectiveClaim | None:
    """The first plan's objective against the best bound of all variants."""
    claims = [one.objective for one in _open(answers)]
    own = first.objective
    if own is None or own.value is None:
        return own
    rate = own.name == "tokens_per_s_per_gpu"
    known = _bounds([None if claim is None else claim.bound for claim in claims], unasked)
    bound = (max if rate else min)(known, default=None)
    gap = relative_gap(1 / own.value, 1 / bound) if rate and bound else relative_gap(own.value, bound)
    return replace(own, bound=bound, gap=gap)
