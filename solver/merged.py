"""Answers to several variants of a request as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from solver.baseline import score_s
from solver.plan import Answer, Infeasibility, ObjectiveClaim, Plan, SkippedLauncher, Status
from solver.problem import Problem
from solver.search.watch import relative_gap
from solver.variants import Variant, workload_of


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
    plans, told = _ranked(asked, answered), min(answered, key=_effort)
    first = told.answer
    if plans:
        first = next(one.answer for one in answered if one.answer.plans and _has(one, asked, plans[0]))
    answers = [one.answer for one in answered]
    missing: list[Status] = ["unknown"] * unasked
    status = _status([*(one.status for one in answers), *missing])
    claim, proved = _claim(answers, first, unasked), status == "optimal"
    return replace(
        first,
        status=status,
        plans=plans,
        certified_by=first.certified_by if proved else (),
        bound_step_time_s=min(
            _bounds([one.bound_step_time_s for one in _open(answers)], unasked), default=None
        ),
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


def _has(one: Answered, asked: Problem, plan: Plan) -> bool:
    """Whether a merged plan is one of this variant's."""
    return dict(workload_of(one.variant.problem, asked)) == dict(plan.workload) and any(
        own.config == plan.config for own in one.answer.plans
    )


def _ranked(asked: Problem, answered: Sequence[Answered]) -> tuple[Plan, ...]:
    """The best K plans; layouts of one workload that several launchers run stand once."""
    scored: list[tuple[float, int, Plan]] = []
    launchers: dict[tuple[object, ...], list[str]] = {}
    for order, one in enumerate(answered):
        problem, change = one.variant.problem, workload_of(one.variant.problem, asked)
        for plan in one.answer.plans:
            score = score_s(problem, one.variant.profile, plan.config, plan.prediction)
            scored.append((score, order, replace(plan, workload=change, launchers=(problem.launcher,))))
    kept: list[tuple[object, Plan]] = []
    for _, _, plan in sorted(scored, key=lambda entry: (entry[0], entry[1], entry[2].rank)):
        key = (plan.config, tuple(sorted(plan.workload.items())))
        if key not in launchers:
            kept.append((key, plan))
        launchers.setdefault(key, []).extend(plan.launchers)
    return tuple(
        replace(plan, rank=rank, launchers=tuple(dict.fromkeys(launchers[key])))  # type: ignore[index]
        for rank, (key, plan) in enumerate(kept[: asked.options.top_k], 1)
    )


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
