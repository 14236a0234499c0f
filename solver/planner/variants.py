"""What a request leaves open that prices depend on as a whole: launcher, precision, optimizer.

Each combination is a problem of its own with its own profile, ranked and proved by itself; the best plans
of all of them are ranked together. A layout that several launchers can run stands once, priced under the
one that runs it fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from meshwright.profiles.capabilities import launcher_capabilities, launchers_of
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import Profile, default_profile, framework_of
from meshwright.profiles.switches import EVERY_SWITCH, RECOMPUTATION, allowed_switches, combinations
from meshwright.solver.answer import (
    SAMPLE,
    Answer,
    Baseline,
    Infeasibility,
    ObjectiveClaim,
    Plan,
    Prediction,
    RankFloors,
    SkippedLauncher,
    Status,
    with_gaps,
)
from meshwright.solver.check import violations, violations_of_all
from meshwright.solver.clock import relative_gap
from meshwright.solver.configuration import Columns, Configuration, mesh_of, plan_id_of
from meshwright.solver.cost.objective import DAY_S, is_plain, outlook_of, slowdown, weighing_of
from meshwright.solver.explain.reasons import WORTH_SAYING, first_layouts
from meshwright.solver.predict import predict, predict_all
from meshwright.solver.problem import Problem, Workload, changes_of, problem_digest, with_changes
from meshwright.solver.search.frontier import NO_RIVALS, Rivals, layouts_of
from meshwright.solver.space.launcher_rules import problem_faults, standing_alone, with_recipe
from meshwright.solver.space.rules import ramp_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to settle what the request leaves open."""

    problem: Problem
    profile: Profile
    follows: bool = False  # another one of its launcher, precision and optimizer is searched before it


def variants_of(problem: Problem, profile: Profile) -> list[Variant]:
    """Every combination that a launcher and the GPUs can run; what the request asks for comes first.

    ``profile`` prices every launcher of its framework; others are priced by the catalog's profile. Where no
    setting of a switch holds beside what the request states, switches stay as they are.
    """
    found = list[Variant]()
    for launcher in launchers_of(problem.launcher):
        for workload in _workloads(problem, launcher):
            one = replace(problem, launcher=launcher, workload=workload)
            own = profile_of_variant(one, profile)
            # that for most kinds of recomputation first: its plans limit the others
            every = sorted(
                _switched(one, own), key=lambda each: -len(each.options.recompute_kinds or RECOMPUTATION)
            )
            found += [Variant(problem=each, profile=own, follows=at > 0) for at, each in enumerate(every)]
    if found:
        return found
    kept = tuple(name for name in problem.options.allow if not allowed_switches((name,)))
    return variants_of(replace(problem, options=replace(problem.options, allow=kept)), profile)


def _switched(problem: Problem, profile: Profile) -> list[Problem]:
    """The problem under every combination of the switches that the request leaves open."""
    workload, options = problem.workload, problem.options
    layouts = [problem, *standing_alone(problem)]
    names = allowed_switches(options.allow)
    if not names:
        return layouts
    found = combinations(
        names,
        problem.launcher,
        model=problem.model,
        gpus=[group.gpu for group in problem.cluster.groups],
        facts=profile.framework,
        stated=workload.framework_options,
        precision=workload.precision,
    )
    return [
        replace(
            layout,
            workload=replace(workload, framework_options={**workload.framework_options, **one.options}),
            options=replace(
                layout.options,
                recompute_kinds=one.recompute if len(one.recompute) < len(RECOMPUTATION) else (),
                constraints=(*layout.options.constraints, *one.constraints),
            ),
        )
        for layout in layouts
        for one in found
    ]


def searchable(variants: Sequence[Variant]) -> tuple[list[Variant], tuple[SkippedLauncher, ...]]:
    """The variants whose launcher can train the model and workload, and the launchers that have none.

    Where no launcher can, all variants are kept: the search then says why each is infeasible.
    """
    faults = [
        tuple(problem_faults(one.problem, launcher_capabilities(one.problem.launcher))) for one in variants
    ]
    kept = [one for one, found in zip(variants, faults, strict=True) if not found]
    able = {one.problem.launcher for one in kept}
    skipped: dict[str, tuple[str, ...]] = {}
    for one, found in zip(variants, faults, strict=True):
        if one.problem.launcher not in able:
            skipped.setdefault(one.problem.launcher, tuple(fault.message for fault in found))
    left_out = tuple(SkippedLauncher(launcher=name, reasons=why) for name, why in skipped.items())
    return kept or list(variants), left_out


def _workloads(problem: Problem, launcher: str) -> list[Workload]:
    """The workloads that are allowed, the request's own first."""
    workload, allow = problem.workload, problem.options.allow
    recipe = workload.framework_options.get("precision_recipe", "none")
    every_gpu = all("fp8" in group.gpu.peak_flops for group in problem.cluster.groups)
    limits = launcher_capabilities(launcher)
    able = every_gpu and "fp8" in limits.precisions
    precisions = [workload.precision]
    if "fp8" in allow and able and recipe == "none" and workload.precision != "fp8":
        precisions.append("fp8")
    optimizers = list(dict.fromkeys([workload.optimizer, *(name for name in OPTIMIZERS if name in allow)]))
    return [
        replace(with_recipe(workload, precision, limits), optimizer=optimizer)
        for precision in precisions
        for optimizer in optimizers
    ]


def profile_of_variant(problem: Problem, profile: Profile) -> Profile:
    """The profile that prices one variant."""
    if framework_of(problem.priced_as) == profile.framework.name:
        return profile
    return default_profile(problem.cluster, problem.priced_as)


def workload_of(problem: Problem, asked: Problem) -> Mapping[str, str]:
    """What a variant changed of the workload that was asked for."""
    return changes_of(problem.workload, asked.workload)


def with_launchers(variants: Sequence[Variant], plans: Sequence[tuple[Variant, Plan]]) -> list[Plan]:
    """Plans with the launchers that can run them: their own first, which prices them, then the others.

    ``plans``: each with the variant that found it. One that another launcher did not rank, or runs
    otherwise, may still be legal there and fit: the independent check says so, in every stage of a ramp.
    """
    named = [[variant.problem.launcher] for variant, _ in plans]
    for other in variants:
        asked = [
            at
            for at, (own, _) in enumerate(plans)
            if own.problem.workload == other.problem.workload
            and own.problem.launcher != other.problem.launcher
        ]
        able = _able(other, [plans[at][1] for at in asked])
        for at in (at for at, runs in zip(asked, able, strict=True) if runs):
            named[at].append(other.problem.launcher)
    return [
        replace(plan, launchers=tuple(dict.fromkeys(names)))
        for (_, plan), names in zip(plans, named, strict=True)
    ]


def _able(variant: Variant, plans: Sequence[Plan]) -> list[bool]:
    """Whether the configuration of each plan breaks no rule of a variant and fits."""
    problem, configs = variant.problem, [plan.config for plan in plans]
    faults = violations_of_all(replace(problem, options=replace(problem.options, batch_ramp=())),
                               variant.profile, configs)  # fmt: skip
    for stage in ramp_stages(problem) if problem.options.batch_ramp else ():
        here = [stage.configuration(config) for config in configs]
        found = violations_of_all(stage.problem, variant.profile, here)
        faults = [[*before, *now] for before, now in zip(faults, found, strict=True)]
    return [not fault for fault in faults]


# --------------------------------------------------------------------------------------------------
# The client's own configuration, priced and ranked beside the plans.


def with_baseline(problem: Problem, profile: Profile, answer: Answer) -> Answer:
    """The answer with the request's own configuration, where it gives one.

    Its rank counts the plans that are better by the request's objective; None: all of them are, so it
    ranks behind the last, or it has no rank: ``problems`` names the rules that it breaks and the memory
    that it lacks.
    """
    config = problem.options.baseline
    if config is None:
        return answer
    prediction = predict(problem, profile, config)
    score = score_s(problem, profile, config, prediction)
    scores = [score_s(problem, profile, plan.config, plan.prediction) for plan in answer.plans]
    better = sum(other < score for other in scores)
    problems = tuple(violations(problem, profile, config))
    among = better < len(scores) or any(plan.config == config for plan in answer.plans)
    baseline = Baseline(
        plan_id=plan_id_of(problem_digest(problem), config),
        config=config,
        prediction=prediction,
        outlook=outlook_of(problem, profile, config, prediction),
        rank=better + 1 if among and not problems else None,
        gap_to_best=(score - scores[0]) / score if scores else None,
        problems=problems,
    )
    return replace(answer, baseline=baseline)


def score_s(problem: Problem, profile: Profile, config: Configuration, prediction: Prediction) -> float:
    """What a configuration is ranked by, in seconds relative to the whole cluster."""
    if config.is_placed:  # ranked by its step alone
        return prediction.step_time_s
    weighing = weighing_of(problem, profile, Columns.of([config]))
    return float((weighing.scale * prediction.step_time_s + weighing.offset)[0])


# --------------------------------------------------------------------------------------------------
# Switches that a request leaves closed.

_TRIED = 3  # combinations for each kind of recomputation


def switches_left_closed(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> tuple[str, ...]:
    """That switches which the request leaves closed would make a listed layout better than the first plan.

    Tried are, on the first plans of as many GPUs and sequences, the combinations that change most for each
    kind of recomputation; a search finds at least as good a plan. Empty: nothing noticeable is found.
    """
    first = plans[0]
    if first.config.is_placed or problem.options.batch_ramp or EVERY_SWITCH in problem.options.allow:
        return ()
    configs = first_layouts(plans)
    asked = replace(
        problem,
        launcher=first.launchers[0] if first.launchers else problem.launcher,
        workload=with_changes(problem.workload, first.workload),
        options=replace(problem.options, allow=(*problem.options.allow, EVERY_SWITCH)),
    )
    own = profile_of_variant(asked, profile)
    least = score_s(asked, own, first.config, first.prediction) * (1.0 - WORTH_SAYING)
    step_s, said, left = first.prediction.step_time_s, "", dict.fromkeys(RECOMPUTATION, _TRIED)
    for one in _switched(asked, own):  # that which changes most first
        kinds = [kind for kind in one.options.recompute_kinds or RECOMPUTATION if left[kind]]
        left |= {kind: left[kind] - 1 for kind in kinds}
        layouts = list(dict.fromkeys(_recomputing(config, kind) for config in configs for kind in kinds))
        priced = predict_all(one, own, layouts)  # none may take longer: that could miss a deadline
        scores = [score_s(one, own, *some) for some in zip(layouts, priced, strict=True)]
        ranked = (at for at in np.argsort(scores).tolist() if scores[at] < least)
        better = [at for at in ranked if priced[at].step_time_s <= step_s]
        faults = violations_of_all(one, own, [layouts[at] for at in better])
        for at in [at for at, found in zip(better, faults, strict=True) if not found][:1]:
            words = ", ".join(map(" ".join, changes_of(one.workload, asked.workload).items()))
            least, taken = scores[at], _taken(one, own, layouts[at], priced[at])
            said = f"under {words} a layout of these meshes takes {taken}"
    said += f" instead of {_taken(asked, own, first.config, first.prediction)}" * bool(said)
    return (f"switches are not searched (search.allow: {EVERY_SWITCH}); {said}",) if said else ()


def _taken(problem: Problem, profile: Profile, config: Configuration, prediction: Prediction) -> str:
    """Joules where a request minimises them; all else that it may minimise grows with the step."""
    joules = outlook_of(problem, profile, config, prediction).energy_per_token_j
    weighed = problem.options.objective == "energy_per_token"
    return f"{joules:.3g} J/token" if weighed else f"{prediction.step_time_s:.3g} s"


def _recomputing(config: Configuration, kind: str) -> Configuration:
    """The configuration with another kind of recomputation, by single sequences."""
    if config.recompute_granularity == kind:
        return config
    return replace(
        config,
        micro_batch_size=1,
        num_microbatches=config.num_microbatches * config.micro_batch_size,
        recompute_granularity=kind,
        recompute_layers=sum(config.stage_layers) if kind == "full" else 0,
        stage_recompute_layers=(),
    )


# --------------------------------------------------------------------------------------------------
# Answers to several variants of a request as one.


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
    alone = len(answered) == 1 and not unasked and asked.launcher != "any"
    if alone and not workload_of(answered[0].variant.problem, asked):
        return answered[0].answer
    reached = _on_fewest(asked, answered)
    ranked, told = _ranked(asked, reached), min(answered, key=_effort)
    first = ranked[0][0].answer if ranked else told.answer
    answers = [one.answer for one in answered]
    missing: list[Status] = ["unknown"] * unasked
    status = _status([*(one.status for one in answers), *missing])
    kept = [one.answer for one in reached]
    claim, proved = _claim(kept, first, unasked), status == "optimal"
    floors = _floors(reached, unasked)
    plans = _named(asked, answered, _with_gaps(asked, ranked, floors, claim))
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
        warnings=(*dict.fromkeys(w for one in answers for w in one.warnings), *_unlike(asked)),
        notes=_notes(first, answers, unasked),
        infeasible=None if plans else _said(told, asked),
        num_gpus_used=plans[0].config.num_gpus if plans else first.num_gpus_used,
        space="every" if all(one.space == "every" for one in answers) else "usual",
        skipped_launchers=_skipped(answered, skipped, unasked) if asked.launcher == "any" else (),
        floors=floors,
    )


def _floors(answered: Sequence[Answered], unasked: int) -> RankFloors:
    """The floors of all variants together; none where a variant with a plan has none.

    A mesh or layout of one workload has one, whatever the launcher and its switches.
    """
    found = [one for one in answered if one.answer.status != "infeasible"]
    if unasked or any(one.answer.status != "optimal" or not one.answer.floors.known for one in found):
        return RankFloors()
    every = [one.answer.floors for one in found]
    whole = all(one.layouts for one in every if one.meshes)  # else of some variants meshes alone are known
    return RankFloors(
        known=True,
        meshes=_least_of(found, lambda floors: floors.meshes),
        layouts=_least_of(found, lambda floors: floors.layouts if whole else {}),
    )


def _least_of(
    answered: Sequence[Answered], of: Callable[[RankFloors], Mapping[tuple[object, ...], float]]
) -> dict[tuple[object, ...], float]:
    """The least floor of each key, of every workload by itself."""
    least = dict[tuple[object, ...], float]()
    for one in answered:
        for key, floor in of(one.answer.floors).items():
            own = (*_work(one.variant), *key)
            least[own] = min(least.get(own, inf), floor)
    return least


def _work(variant: Variant) -> tuple[str, str]:
    """What keeps a layout of one variant apart from that of another."""
    workload = variant.problem.workload
    return workload.precision, workload.optimizer


def _with_gaps(
    asked: Problem,
    ranked: Sequence[tuple[Answered, Plan]],
    floors: RankFloors,
    claim: ObjectiveClaim | None,
) -> list[tuple[Answered, Plan]]:
    """The ranked plans with the gap of each rank among all variants."""
    scores = [_score(one.variant, plan) for one, plan in ranked]
    gap = None if claim is None else claim.gap
    least = scores[0] * (1.0 - gap) if scores and gap is not None else None
    of_steps = is_plain(asked) and not asked.options.batch_ramp
    plans = with_gaps([plan for _, plan in ranked], scores, floors, least, of_steps=of_steps)
    return [(one, plan) for (one, _), plan in zip(ranked, plans, strict=True)]


_UNLIKE_STACKS = (
    "launchers are compared by fits of their own software stacks, each with its own error, not at one "
    "level of software; `stack` prices all of them as one"
)


def _unlike(asked: Problem) -> tuple[str, ...]:
    """That the launchers of a request for any are compared by unlike fits."""
    return (_UNLIKE_STACKS,) if asked.priced_as == "any" else ()


def _notes(first: Answer, answers: Sequence[Answer], unasked: int) -> dict[str, str]:
    """The first answer's notes; of a sample alone only where more time changes no other answer either."""
    settled = all(one.status in ("optimal", "infeasible") or "sample" in one.notes for one in answers)
    sampled = settled and not unasked and any("sample" in one.notes for one in answers)
    own = {name: note for name, note in first.notes.items() if name not in SAMPLE}
    return {**own, "variants": str(len(answers)), **(SAMPLE if sampled else {})}


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


def rivals_of(asked: Problem, answered: Sequence[Answered], variant: Variant) -> Rivals:
    """What the plans found so far score that a variant's are ranked with.

    Nobody is one's rival while there are fewer than K, and of diverse plans those of fewer than K meshes.
    """
    ranked = _ranked(asked, answered)
    scores = [_score(one.variant, plan) for one, plan in ranked]
    if not asked.options.diverse:
        return Rivals(scores[0], scores[-1]) if len(ranked) == asked.options.top_k else NO_RIVALS
    meshes = {(_work(one.variant), mesh_of(plan.config)) for one, plan in ranked}
    if len(meshes) < asked.options.top_k:
        return NO_RIVALS
    own = {
        mesh_of(plan.config): score
        for (one, plan), score in zip(ranked, scores, strict=True)
        if _work(one.variant) == _work(variant)
    }
    return Rivals(scores[0], scores[-1], own)


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
    """The best K plans, each with the variant that found it; a layout of one workload stands once.

    Diverse plans are of K meshes; of as many as there are, beside their best other layouts, where those are
    fewer.
    """
    scored: list[tuple[float, int, Plan]] = []
    for order, one in enumerate(answered):
        change = workload_of(one.variant.problem, asked)
        scored += [
            (_score(one.variant, plan), order, replace(plan, workload=change)) for plan in one.answer.plans
        ]
    kept: dict[tuple[object, ...], tuple[Answered, Plan]] = {}
    for _, order, plan in sorted(
        scored, key=lambda one: (one[0], len(one[2].workload), one[1], one[2].rank)
    ):
        one = answered[order]  # a layout stands once, under its best switches
        (layout,) = layouts_of(Columns.of([plan.config]), [0])
        kept.setdefault((_work(one.variant), layout), (one, plan))
    most, best, first = asked.options.top_k, list(kept.values()), dict[tuple[object, ...], int]()
    if asked.options.diverse:
        for at, (one, plan) in enumerate(best):
            first.setdefault((_work(one.variant), mesh_of(plan.config)), at)
        others = [at for at in range(len(best)) if at not in first.values()]
        best = [best[at] for at in sorted([*first.values(), *others][:most])]
    return [(one, replace(plan, rank=rank)) for rank, (one, plan) in enumerate(best[:most], 1)]


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
    if asked.launcher != "any":
        return tuple(plan for _, plan in ranked)
    found = [(one.variant, plan) for one, plan in ranked]
    return tuple(with_launchers([one.variant for one in answered], found))


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
