"""Choices that a request leaves open and that change prices: launcher, precision, optimizer, switches.

Each combination is a problem of its own. Those that differ in switches alone are ranked and proved by one
search (``searched_together``); others have their own searches, and the best plans are ranked together. A
layout that several launchers can run is listed once, priced under the one that runs it fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations as combinations_of
from math import inf

import numpy as np

from meshwright.profiles.adapters import ALL_LINEAR
from meshwright.profiles.capabilities import launcher_capabilities, launchers_of
from meshwright.profiles.frameworks import FrameworkFacts, framework_facts, with_options
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import Profile, framework_of
from meshwright.profiles.requirements import missing_from_stock, unallowed
from meshwright.profiles.switches import (
    EVERY_SWITCH,
    RECOMPUTATION,
    Combination,
    LegalCombinations,
)
from meshwright.solver.answer import (
    SAMPLE,
    Answer,
    Baseline,
    Infeasibility,
    ObjectiveClaim,
    Plan,
    Prediction,
    RankFloors,
    Remedy,
    SkippedLauncher,
    Status,
    accepts_risk,
    status_of_all,
    with_gaps,
)
from meshwright.solver.check import violations, violations_of_all
from meshwright.solver.clock import relative_gap
from meshwright.solver.configuration import Columns, Configuration, mesh_of, plan_id_of
from meshwright.solver.cost.objective import (
    is_plain,
    outlook_of,
    weighing_of,
)
from meshwright.solver.cost.packages import packages_of
from meshwright.solver.predict import predict, profile_of_variant
from meshwright.solver.problem import (
    Problem,
    Workload,
    altered,
    changes_of,
    gpu_counts,
    may_use_fewer,
    on_switches,
    problem_digest,
    searched_switches,
    with_changes,
)
from meshwright.solver.search.frontier import NO_RIVALS, Rivals, layouts_of
from meshwright.solver.space.enumerate import MOST_OUTER, estimated_outer, is_of_fewer
from meshwright.solver.space.launcher_rules import (
    problem_faults,
    standing_alone,
    with_recipe,
    workload_faults,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to settle what the request leaves open."""

    problem: Problem
    profile: Profile
    follows: bool = False  # another one of its launcher, precision and optimizer is searched before it


class Switched:
    """The combinations of switches of one launcher and workload, with the packages that each needs."""

    def __init__(self, problem: Problem, profile: Profile) -> None:
        workload, self.problem, self.profile = problem.workload, problem, profile
        self._plain = with_options(profile.framework, workload.framework_options)
        there = {*self._unallowed(self._plain)}
        # every set of packages asks about every combination
        self._lacking = cache(lambda facts: frozenset(self._unallowed(facts)) - there)
        self._has_one_shape = workload.lengths is None or workload.lengths.batching == "padding"
        names = searched_switches(problem)
        self._legal = names and LegalCombinations.of(
            names,
            problem.launcher,
            model=problem.model,
            gpus=[group.gpu for group in problem.cluster.groups],
            facts=profile.framework,
            stated=workload.framework_options,
            precision=workload.precision,
        )

    @property
    def needs(self) -> set[frozenset[str]]:
        """The sets of packages that combinations lack."""
        return {self._lacking(facts) for facts in self._legal.facts_of.values()} if self._legal else set()

    def _unallowed(self, facts: FrameworkFacts) -> Collection[str]:
        asked = self.problem
        offloads = facts.offload_modules != self._plain.offload_modules  # it is for plans that do
        return unallowed(asked.options.allow, asked.launcher, facts, asked.model, offloads=offloads)

    def searched(
        self, with_packages: Collection[str] | None = ()
    ) -> list[tuple[Combination, frozenset[str]]]:
        """Return the combinations worth a search, each with the packages that are not allowed for it.

        ``with_packages``: those that an installation has nevertheless; None: all. What the request states
        needs none: it is there. Nothing where no combination holds together with what the request states.
        """

        def able(facts: FrameworkFacts) -> bool:
            captured = self._has_one_shape or facts.cuda_graph in ("none", self._plain.cuda_graph)
            return captured and (with_packages is None or self._lacking(facts) <= {*with_packages})

        found = self._legal.worth_a_search(able) if self._legal else []
        return [(one, self._lacking(with_options(self._plain, one.options))) for one in found]


def variants_of(problem: Problem, profile: Profile) -> list[Variant]:
    """Return every combination that a launcher and the GPUs can run; the request's own comes first.

    Settings that need a package are among them where the request allows or states them. ``profile`` prices
    every launcher of its framework; others are priced by the catalog's profile.
    """
    return searched_variants(switched_of(problem, profile))


def searched_variants(switched: Iterable[Switched]) -> list[Variant]:
    """Return the variants of ``variants_of``, given their combinations of switches."""
    found = list[Variant]()
    for each_of in switched:
        one, own = each_of.problem, each_of.profile
        # that for most kinds of recomputation first, which finds the first plan; of equal plans the one
        # of the earlier combination is listed: that with fewer changes
        every = sorted(
            _under(one, [each for each, _ in each_of.searched()] or [Combination()]),
            key=lambda each: (
                -len(each.options.recompute_kinds or RECOMPUTATION),
                len(each.workload.framework_options),
            ),
        )
        found += [Variant(problem=each, profile=own, follows=at > 0) for at, each in enumerate(every)]
    return found


def packaged_variants(switched: Iterable[Switched]) -> list[tuple[tuple[str, ...], list[Variant]]]:
    """Return the combinations that need packages which the request does not allow, by these packages.

    One package comes before several. Of two libraries for one purpose that with which no step is longer is
    among them, as with settings of any switch.
    """
    groups = dict[tuple[str, ...], list[Variant]]()
    for each_of in switched:
        one, own = each_of.problem, each_of.profile
        names = dict.fromkeys(
            name for _, needs in each_of.searched(with_packages=None) for name in sorted(needs)
        )
        several = (some for count in range(1, len(names) + 1) for some in combinations_of(names, count))
        needed = each_of.needs
        for some in (some for some in several if frozenset(some) in needed):
            found = [each for each, needs in each_of.searched(with_packages=some) if needs == {*some}]
            groups.setdefault(some, []).extend(
                Variant(problem=each, profile=own, follows=True) for each in _under(one, found)
            )
    return sorted(((some, found) for some, found in groups.items() if found), key=lambda one: len(one[0]))


def searched_together(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Return the variants in groups that one search can rank: those that differ in switches alone.

    Spaces of one group are enumerated side by side, as many as are never too large to be written down. Each
    power limit has its own numbers of GPUs within a power budget, and so its own groups.
    """

    def limit_w(one: Variant) -> float:
        return 0.0 if one.problem.options.max_power_kw is None else one.problem.power_limit_w

    groups, most = list[list[Variant]](), 0
    for one in sorted(variants, key=limit_w):
        last = groups[-1] if groups else []
        in_switches = bool(last) and (
            last[0].profile is one.profile
            and limit_w(last[0]) == limit_w(one)
            and on_switches(last[0].problem, one.problem) == one.problem
        )
        if not in_switches:
            most = 0
        elif not most:  # the first of them has the most rows
            most = max(int(MOST_OUTER / max(estimated_outer(last[0].problem), 1.0)), 1)
        if len(last) < most:
            last.append(one)
        else:
            groups.append([one])
    return groups


def switched_of(problem: Problem, profile: Profile) -> Iterator[Switched]:
    """Yield the combinations of switches under every launcher and workload, each with its own profile."""
    for launcher in launchers_of(problem.launcher):
        under = problem.under(launcher)
        for workload in _workloads(under, launcher):
            one = altered(under, workload=workload)
            yield Switched(one, profile_of_variant(one, profile))


def _under(problem: Problem, found: Sequence[Combination]) -> list[Problem]:
    workload, layouts = problem.workload, [problem, *standing_alone(problem)]
    return [
        altered(
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
    """Return the variants that a launcher can train, and the launchers that have none.

    Where no launcher can, all variants are kept: the search then explains why each is infeasible. An only
    launcher need not be able to express the model: its files are refused, not its plans.
    """
    several = len({one.problem.launcher for one in variants}) > 1
    faults_of = problem_faults if several else workload_faults
    faults = [
        tuple(faults_of(one.problem, launcher_capabilities(one.problem.launcher))) for one in variants
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
        with_recipe(replace(workload, optimizer=optimizer), precision, limits)
        for precision in precisions
        for optimizer in optimizers
    ]


def allowed_in_vain(problem: Problem, variants: Sequence[Variant]) -> tuple[str, ...]:
    """Warn of products in 8 bits that a request allows and no variant has."""
    stated = problem.workload.framework_options.get("precision_recipe", "none") != "none"
    has_them = any(one.problem.workload.precision == "fp8" for one in variants)
    if "fp8" not in problem.options.allow or stated or has_them:
        return ()
    gpus = [group.gpu for group in problem.cluster.groups]
    lacking = dict.fromkeys(gpu.slug for gpu in gpus if "fp8" not in gpu.peak_flops)
    lacking = lacking or dict.fromkeys(one.problem.launcher for one in variants)
    return (f"no products in 8 bits on {' and '.join(lacking)}: allowing fp8 adds nothing",)


def with_launchers(variants: Sequence[Variant], plans: Sequence[tuple[Variant, Plan]]) -> list[Plan]:
    """Add to plans the launchers that can run them: their own first, which prices them.

    ``plans``: each with the variant that found it. One that another launcher did not rank, or runs
    otherwise, may still be legal there and fit: the independent check decides.
    """
    named = [[variant.problem.launcher] for variant, _ in plans]
    for other in variants:
        asked = [
            at
            for at, (own, _) in enumerate(plans)
            if own.problem.workload == other.problem.workload
            and own.problem.launcher != other.problem.launcher
        ]
        faults = violations_of_all(other.problem, other.profile, [plans[at][1].config for at in asked])
        for at in (at for at, found in zip(asked, faults, strict=True) if not found):
            named[at].append(other.problem.launcher)
    return [
        replace(plan, launchers=tuple(dict.fromkeys(names)))
        for (_, plan), names in zip(plans, named, strict=True)
    ]


# --------------------------------------------------------------------------------------------------
# The client's own configuration, priced and ranked with the plans.


def with_baseline(problem: Problem, profile: Profile, answer: Answer) -> Answer:
    """Add the request's own configuration, if it gives one.

    Its rank counts the plans that are better by the request's objective; None: all of them are, so it
    ranks behind the last, or it has no rank: ``problems`` names the rules that it breaks and the memory
    that it lacks.
    """
    config = problem.options.baseline
    if config is None:
        return answer
    prediction = predict(problem, profile, config)
    others = [(plan.config, plan.prediction) for plan in answer.plans]
    score, *scores = scores_s(problem, profile, [(config, prediction), *others])
    better = sum(other < score for other in scores)
    problems = tuple(violations(problem, profile, config))
    among = better < len(scores) or any(plan.config == config for plan in answer.plans)
    return replace(
        answer,
        baseline=Baseline(
            plan_id=plan_id_of(problem_digest(problem), config),
            config=config,
            prediction=prediction,
            outlook=outlook_of(problem, profile, config, prediction),
            rank=better + 1 if among and not problems else None,
            gap_to_best=(score - scores[0]) / score if scores else None,
            problems=problems,
        ),
    )


def scores_s(
    problem: Problem, profile: Profile, priced: Sequence[tuple[Configuration, Prediction]]
) -> list[float]:
    """Return what a problem ranks some configurations by, s."""
    if is_plain(problem):
        return [prediction.step_time_s for _, prediction in priced]
    if problem.options.objective == "robust":
        return [prediction.step_time_high_s for _, prediction in priced]
    weighing = weighing_of(problem, profile, Columns.of([config for config, _ in priced]))
    steps_s = np.array([prediction.step_time_s for _, prediction in priced])
    return [float(score) for score in weighing.scale * steps_s + weighing.offset]


# --------------------------------------------------------------------------------------------------
# Packages that plans need beyond a stock installation of their launcher.

WORTH_A_PACKAGE = 1.01  # a plan that needs one must be as many times as fast to be shown


def with_needs(problem: Problem, plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return the plans of a problem with the packages that each needs beyond a stock installation."""
    found = list[Plan]()
    for plan in plans:
        launcher = plan.launchers[0] if plan.launchers else problem.launcher
        own = framework_facts(framework_of(problem.stack or launcher))
        facts = with_options(own, with_changes(problem.workload, plan.workload).framework_options)
        needs = missing_from_stock(packages_of(launcher, facts, problem.model, plan.config))
        found.append(replace(plan, needs=needs))
    return tuple(found)


def packaged_warning(problem: Problem, first: Plan, plan: Plan) -> str:
    """Return what a plan that needs a package gains, and how to have such plans ranked."""
    then, now = (_taken(problem, one) for one in (plan, first))
    return (
        f"#{plan.rank} needs {' and '.join(plan.needs)}, not part of a stock installation, and "
        f"takes {then} instead of {now}. To rank such plans, add --allow {EVERY_SWITCH}"
    )


def _taken(problem: Problem, plan: Plan) -> str:
    """Return joules if a request minimises them, else step seconds, which all objectives grow with."""
    joules = None if plan.outlook is None else plan.outlook.energy_per_token_j
    if problem.options.objective == "energy_per_token" and joules is not None:
        return f"{joules:.3g} J/token"
    return f"{plan.prediction.step_time_s:.3g} s"


# --------------------------------------------------------------------------------------------------
# Answers to several variants of a request as one.


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Variant with its answer, and the ``others`` that were searched with it."""

    variant: Variant
    answer: Answer
    others: tuple[Variant, ...] = ()

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Return all variants that were searched."""
        return (self.variant, *self.others)

    @cached_property
    def scored(self) -> list[tuple[float, Variant, Plan]]:
        """Return the plans with their objective and their variant."""
        variant_of = found_by(self.variants)
        each = [(variant_of(plan), plan) for plan in self.answer.plans]
        return [(score_of(variant, plan), variant, plan) for variant, plan in each]


def found_by(variants: Sequence[Variant]) -> Callable[[Plan], Variant]:
    """Return a function that finds a plan's variant; a configuration has one id for each."""
    digests = {problem_digest(one.problem): one for one in variants[::-1]}
    known = dict[str, Variant]()

    def variant_of(plan: Plan) -> Variant:
        if plan.plan_id not in known:
            ids = ((plan_id_of(digest, plan.config), one) for digest, one in digests.items())
            found = (one for plan_id, one in ids if plan_id == plan.plan_id)
            known[plan.plan_id] = next(found, variants[0])
        return known[plan.plan_id]

    return variant_of


def merged(
    asked: Problem,
    answered: Sequence[Answered],
    *,
    unasked: int = 0,
    skipped: Sequence[SkippedLauncher] = (),
) -> Answer:
    """Return the best plans of all variants, with the facts that hold for all of them.

    ``skipped`` launchers were not searched; those that were and have no plan are added to them.
    Proved optimal when every variant's ranking is proved, or proved to have no plan; ``unasked`` variants
    were never searched. A bound must hold for all variants.
    """
    alone = len(answered) == 1 and not unasked and asked.launcher != "any" and not answered[0].others
    if alone and not changes_of(answered[0].variant.problem.workload, asked.workload):
        return answered[0].answer
    nodes, wants_fewest = [_nodes(asked, one) for one in answered], asked.options.gpus == "fewest"
    reached = [  # what is not decided counts too: it may need as few nodes
        one
        for one, own in zip(answered, nodes, strict=True)
        if not wants_fewest or own in (inf, min(nodes))
    ]
    ranked, nearest = _ranked(asked, reached), min(answered, key=_effort)
    first = ranked[0].of.answer if ranked else nearest.answer
    answers = [one.answer for one in answered]
    unsearched: list[Status] = ["unknown"] * unasked
    status = status_of_all([*(one.status for one in answers), *unsearched])
    feasible = [one.answer for one in reached if one.answer.status != "infeasible"]
    claim = _claim(feasible, first, unasked)
    floors = _floors(reached, unasked)
    plans = _listed(asked, answered, ranked, floors, claim)
    return replace(
        first,
        status=status,
        plans=plans,
        certified_by=first.certified_by if status == "optimal" else (),
        bound_step_time_s=_step_bound_s(asked, feasible, plans, unasked),
        gap=claim.gap if claim else None,
        objective=claim,
        space_size=sum(one.space_size for one in answers),
        legal=sum(one.legal for one in answers),
        fit=sum(one.fit for one in answers),
        explored=sum(one.explored for one in answers),
        counts={name: sum(one.counts.get(name, 0) for one in answers) for name in first.counts},
        elapsed_s=sum(one.elapsed_s for one in answers),
        warnings=_warnings(asked, answered, ranked, first),
        notes=_notes(first, answered, unasked),
        infeasible=None if plans else _with_closest(_infeasibility(nearest, asked), asked, answered),
        num_gpus_used=plans[0].config.num_gpus if plans else first.num_gpus_used,
        space="every" if all(one.space == "every" for one in answers) else "usual",
        skipped_launchers=_skipped(answered, skipped, unasked) if asked.launcher == "any" else (),
        floors=floors,
        choices=tuple(each for one in reached for each in one.answer.choices),
    )


def _warnings(
    asked: Problem, answered: Sequence[Answered], ranked: Sequence[_Ranked], first: Answer
) -> tuple[str, ...]:
    """Return the warnings of the variants whose plans are listed, of all where none is; each once."""
    with_plans = {id(one.of) for one in ranked}
    shown = [one.answer for one in answered if id(one) in with_plans]
    launcher = next(one.variant.problem.launcher for one in answered if one.answer is first)
    alike = [one.answer.warnings for one in answered if one.variant.problem.launcher == launcher]
    idle = all(any(map(is_of_fewer, warnings)) for warnings in alike)  # under each power limit
    own = dict.fromkeys(
        warning
        for answer in shown or [one.answer for one in answered]
        for warning in answer.warnings
        # that not all GPUs can be used is said of the first plan's launcher alone: others may use more
        if (idle and answer is first) or not is_of_fewer(warning)
    )
    adapted = {*ALL_LINEAR} <= {*asked.workload.lora_targets} and asked.workload.lora_rank > 0
    return (
        *([_ALL_ADAPTED] if asked.launcher == "any" and adapted else ()),
        *own,
        *([_UNLIKE_STACKS] if asked.priced_as == "any" else ()),
    )


def _floors(answered: Sequence[Answered], unasked: int) -> RankFloors:
    """Return the floors of all variants together; none if a variant with a plan has none.

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
    least = dict[tuple[object, ...], float]()
    for one in answered:
        for key, floor in of(one.answer.floors).items():
            own = (*_work(one.variant), *key)
            least[own] = min(least.get(own, inf), floor)
    return least


def _work(variant: Variant) -> tuple[str, str]:
    workload = variant.problem.workload
    return workload.precision, workload.optimizer


def _listed(
    asked: Problem,
    answered: Sequence[Answered],
    ranked: Sequence[_Ranked],
    floors: RankFloors,
    claim: ObjectiveClaim | None,
) -> tuple[Plan, ...]:
    """Return the ranked plans with their gaps and, of several launchers, those that can run each."""
    scores, gap = [one.score for one in ranked], None if claim is None else claim.gap
    least = scores[0] * (1.0 - gap) if scores and gap is not None else None
    plans = with_gaps([one.plan for one in ranked], scores, floors, least, of_steps=is_plain(asked))
    if asked.launcher != "any":
        return tuple(plans)
    own = [found_by(one.of.variants)(plan) for one, plan in zip(ranked, plans, strict=True)]
    variants = [each for one in answered for each in one.variants]
    return tuple(with_launchers(variants, list(zip(own, plans, strict=True))))


_UNLIKE_STACKS = (
    "each launcher is predicted with its own software stack, and each stack has a different "
    "error. To compare them on one software stack, add --stack"
)
_ALL_ADAPTED = (
    "all linear layers have adapters under each launcher. Named alone, one may adapt fewer unless you add "
    "--lora-target all-linear"
)


def _notes(first: Answer, answered: Sequence[Answered], unasked: int) -> dict[str, str]:
    """Return the first answer's notes; a sample's only if more time changes no other answer either."""
    answers, variants = [one.answer for one in answered], sum(len(one.variants) for one in answered)
    settled = all(one.status in ("optimal", "infeasible") or "sample" in one.notes for one in answers)
    sampled = settled and not unasked and any("sample" in one.notes for one in answers)
    own = {name: note for name, note in first.notes.items() if name not in SAMPLE}
    return {**own, "variants": str(variants), **(SAMPLE if sampled else {})}


def _skipped(
    answered: Sequence[Answered], skipped: Sequence[SkippedLauncher], unasked: int
) -> tuple[SkippedLauncher, ...]:
    found = {one.launcher: one for one in skipped}
    with_hope = {one.variant.problem.launcher for one in answered if one.answer.status != "infeasible"}
    if unasked and answered:  # further variants of the last launcher may have a plan
        with_hope.add(answered[-1].variant.problem.launcher)
    for one in answered:
        name, why = one.variant.problem.launcher, one.answer.infeasible
        if name not in with_hope and name not in found:
            found[name] = SkippedLauncher(
                launcher=name,
                reasons=why.reasons if why and why.reasons else ("no configuration is legal and fits",),
            )
    return tuple(found[name] for name in sorted(found))


def _effort(one: Answered) -> tuple[float, float]:
    found = one.answer.infeasible
    if found is None:
        return inf, inf
    lacks = inf if found.nearest is None else found.nearest.lacks_bytes
    return min((remedy.gpu_s_per_token for remedy in found.remedies), default=inf), lacks


def _infeasibility(nearest: Answered, asked: Problem) -> Infeasibility | None:
    found, launcher = nearest.answer.infeasible, nearest.variant.problem.launcher
    if found is None or asked.launcher == launcher:
        return found
    under = f"under {launcher}"
    return replace(
        found,
        reasons=tuple(f"{under}: {reason}" for reason in found.reasons),
        changes=tuple(_named(remedy, launcher).change for remedy in found.remedies)
        or tuple(f"{change} {under}" for change in found.changes),
        remedies=tuple(_named(remedy, launcher) for remedy in found.remedies),
    )


def _named(remedy: Remedy, launcher: str) -> Remedy:
    """Return a remedy with the launcher that it is for, unless it names one or no options state it."""
    if "launcher" in remedy.settings:
        return remedy
    settings = {**remedy.settings, "launcher": launcher} if remedy.settings else {}
    return replace(remedy, change=f"{remedy.change} under {launcher}", settings=settings)


def _with_closest(
    found: Infeasibility | None, asked: Problem, answered: Sequence[Answered]
) -> Infeasibility | None:
    """Return the reasons with the closest plan of all variants: the soonest, or nearest to fitting."""
    if found is None:
        return None
    plans = list[Plan]()
    for one in answered:
        own, variant = one.answer.infeasible, one.variant.problem
        if own is not None and own.closest is not None:
            workload = own.closest.workload or changes_of(variant.workload, asked.workload)
            launchers = (variant.launcher,) if asked.launcher == "any" else ()
            plans.append(replace(own.closest, workload=workload, launchers=launchers))

    def distance(plan: Plan) -> tuple[bool, float, float, float]:
        seen = plan.prediction
        fill = seen.peak_memory_bytes / seen.memory_limit_bytes
        return not accepts_risk(asked, seen), plan.days, fill, seen.step_time_s

    return replace(found, closest=min(plans, key=distance, default=None))


def best_score_s(asked: Problem, answered: Sequence[Answered]) -> float:
    """Return what the best plan of all variants scores."""
    return _ranked(asked, answered)[0].score


def rivals_of(asked: Problem, answered: Sequence[Answered], variant: Variant) -> Rivals:
    """Return the scores of the plans found so far that a variant's are ranked with.

    There are no rivals while there are fewer than K, and of diverse plans those of fewer than K meshes.
    """
    ranked, most = _ranked(asked, answered), asked.options.top_k
    meshes = {(_work(one.of.variant), mesh_of(one.plan.config)): one.score for one in ranked[::-1]}
    if len(meshes if asked.options.diverse else ranked) < most:
        return NO_RIVALS
    own = {mesh: score for (work, mesh), score in meshes.items() if work == _work(variant)}
    return Rivals(ranked[0].score, ranked[-1].score, own if asked.options.diverse else {})


def fewest_nodes(asked: Problem, answered: Iterable[Answered]) -> float:
    """Return the fewest nodes that have a plan; +inf if none is found."""
    return min((_nodes(asked, one) for one in answered), default=inf)


def _nodes(asked: Problem, one: Answered) -> float:
    each = asked.cluster.groups[0].gpus_per_node
    return -(-one.answer.plans[0].config.num_gpus // each) if one.answer.plans else inf


@dataclass(frozen=True, slots=True)
class _Ranked:
    score: float
    of: Answered
    plan: Plan


def _ranked(asked: Problem, answered: Sequence[Answered]) -> list[_Ranked]:
    """Return the best K plans with their variants; a layout of one workload is listed once.

    Diverse plans are of K meshes; of as many as there are, with their best other layouts, where those are
    fewer.
    """
    found = list[_Ranked]()
    for one in answered:
        found += [
            _Ranked(score, one, replace(plan, workload=changes_of(of.problem.workload, asked.workload)))
            for score, of, plan in one.scored
        ]
    kept = dict[tuple[object, ...], _Ranked]()
    for each in sorted(found, key=lambda each: (each.score, len(each.plan.workload))):
        # a layout is listed once, under its best switches
        (layout,) = layouts_of(Columns.of([each.plan.config]), [0])
        kept.setdefault((_work(each.of.variant), layout), each)
    best = _worth_idle_gpus(asked, list(kept.values())) if may_use_fewer(asked) else list(kept.values())
    most, first = asked.options.top_k, dict[tuple[object, ...], int]()
    if asked.options.diverse:
        for at, each in enumerate(best):
            first.setdefault((_work(each.of.variant), mesh_of(each.plan.config)), at)
        # on fewer GPUs than others a mesh takes the place of a slower plan alone, not of a faster layout
        gpus = [each.plan.config.num_gpus for each in best]
        counts, least = gpu_counts(asked), max(gpus, default=0) if may_use_fewer(asked) else 0
        enough = [size >= least or size in counts for size in gpus]
        meshes = [at for at in first.values() if enough[at]]
        others = [at for at in range(len(best)) if at not in first.values() and enough[at]]
        fewer = [at for at in first.values() if not enough[at]]
        best = [best[at] for at in sorted([*[*meshes, *others][:most], *fewer])]
    return [replace(each, plan=replace(each.plan, rank=rank)) for rank, each in enumerate(best[:most], 1)]


def _worth_idle_gpus(asked: Problem, ranked: Sequence[_Ranked]) -> list[_Ranked]:
    """Leave out plans on fewer GPUs that are no faster than the best of any search on all of them."""
    counts, least_s = gpu_counts(asked), dict[tuple[str, ...], float]()
    of = [(each.of.variant.problem.launcher, *_work(each.of.variant)) for each in ranked]
    for own, each in zip(of, ranked, strict=True):
        if each.plan.config.num_gpus in counts:
            least_s[own] = min(least_s.get(own, inf), each.score)
    return [
        each
        for own, each in zip(of, ranked, strict=True)
        if each.plan.config.num_gpus in counts or each.score < least_s.get(own, inf)
    ]


def score_of(variant: Variant, plan: Plan) -> float:
    """Return the plan's objective, by which plans are ranked."""
    return scores_s(variant.problem, variant.profile, [(plan.config, plan.prediction)])[0]


def _step_bound_s(
    asked: Problem, answers: Sequence[Answer], plans: Sequence[Plan], unasked: int
) -> float | None:
    """Bound the steps of all variants on the first plan's GPUs and sequences; None: unknown.

    A variant bounds steps like those of its own first plan; of others by its objective, where that is
    the step itself.
    """
    alike = [(plan.config.num_gpus, plan.config.global_batch_size) for plan in plans[:1]]
    found = list[float | None]()
    for one in answers:
        own = [(plan.config.num_gpus, plan.config.global_batch_size) for plan in one.plans[:1]]
        bound = one.bound_step_time_s
        if own and own != alike:
            claim = one.objective
            known = claim is not None and claim.name == "step_time" and claim.bound is not None
            share = alike[0][1] / asked.workload.global_batch_size
            bound = claim.bound * share if claim is not None and claim.bound and known else None
        found.append(bound)
    return min(_bounds(found, unasked), default=None)


def _bounds(found: Sequence[float | None], unasked: int) -> list[float]:
    """Return the bounds of all variants; none if one has none: its plans could be beyond the others."""
    known = [bound for bound in found if bound is not None]
    return known if len(known) == len(found) and not unasked else []


def _claim(answers: Sequence[Answer], first: Answer, unasked: int) -> ObjectiveClaim | None:
    claims, own = [one.objective for one in answers], first.objective
    if own is None or own.value is None:
        return own
    rate = own.name == "tokens_per_s_per_gpu"
    known = _bounds([None if claim is None else claim.bound for claim in claims], unasked)
    bound = (max if rate else min)(known, default=None)
    return replace(
        own,
        bound=bound,
        gap=relative_gap(1 / own.value, 1 / bound) if rate and bound else relative_gap(own.value, bound),
    )
