"""From one request to one answer: the ranking of a space and everything else it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.optimizers import optimizer_named
from meshwright.profiles.profile import Profile, framework_of
from meshwright.solver.answer import (
    Answer,
    Plan,
    RankFloors,
    Status,
    settled_problem,
    with_gaps,
    words_of_none,
)
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.clock import Watch, relative_gap
from meshwright.solver.configuration import Configuration, mesh_of, plan_id_of
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.objective import (
    claim_of,
    is_plain,
    slowdown,
)
from meshwright.solver.explain.certainty import with_odds
from meshwright.solver.explain.reasons import unsaid, with_reasons
from meshwright.solver.explain.sentences import loading_warnings
from meshwright.solver.planner.fewer_words import with_fewer_words
from meshwright.solver.planner.fewest_nodes import differing_gpus, explained_search, fewest
from meshwright.solver.planner.variants import (
    WORTH_A_PACKAGE,
    Answered,
    Switched,
    Variant,
    allowed_in_vain,
    best_score_s,
    fewest_nodes,
    found_by,
    merged,
    packaged_variants,
    packaged_warning,
    rivals_of,
    score_of,
    searchable,
    searched_together,
    searched_variants,
    switched_of,
    with_baseline,
    with_needs,
)
from meshwright.solver.predict import predicted, profile_of_variant
from meshwright.solver.problem import (
    OnProgress,
    Problem,
    Progress,
    ShouldStop,
    altered,
    among_usual,
    changes_of,
    gpu_counts,
    may_use_fewer,
    on_gpus,
    problem_digest,
)
from meshwright.solver.search.certify.judge import Judge, kept_child
from meshwright.solver.search.decision.decide import asks_cp_sat, decided, left_to_planner
from meshwright.solver.search.fewer_gpus import IDLE
from meshwright.solver.search.frontier import NO_RIVALS, Rivals
from meshwright.solver.search.gpu_seconds import least_passes
from meshwright.solver.search.priced_space import have_room
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import estimated_outer, goes_through_usual, numbers_of_gpus
from meshwright.solver.space.launcher_rules import (
    advice_warnings,
    beyond_positions,
    left_out,
    overlap_warnings,
    stored_notes,
    unstarted,
    unwritten,
)
from meshwright.solver.space.request_rules import limited_by

# --------------------------------------------------------------------------------------------------
# A request with stages on unlike node groups: additions to the ranking.


def ask_placed(
    problem: Problem, profile: Profile, watch: Watch, *, on_progress: OnProgress | None = None
) -> Answer:
    """Return the answer with reasons, odds, run forecast, and the client's own plan.

    A deadline leaves out the plans that are late. Errors as ``search``.
    """
    answer = search(problem, profile, on_progress=on_progress, should_stop=watch.should_stop)
    require_credible(problem, profile, [(plan.config, plan.prediction) for plan in answer.plans])
    if answer.status == "infeasible":
        from meshwright.solver.explain.remedies import placed_infeasibility  # noqa: PLC0415 - no plan

        answer = replace(answer, infeasible=placed_infeasibility(problem, profile, watch))
    else:
        answer = _in_time(problem, profile, answer, watch)
    plans = with_reasons(problem, profile, answer.plans, watch.closing())
    with watch.closing().cut():
        plans = with_odds(problem, profile, plans)
    loading = loading_warnings(plans)
    overlaps, advice = overlap_warnings(problem, plans), advice_warnings(problem, plans)
    further = (*unsaid(plans, watch, odds=True), *overlaps, *advice, *loading)
    answer = replace(answer, plans=plans, warnings=(*answer.warnings, *further))
    return with_baseline(problem, profile, answer)


def _in_time(problem: Problem, profile: Profile, answer: Answer, watch: Watch) -> Answer:
    """Keep the plans that meet the deadline; none if even the fastest possible step is late."""
    allowed = problem.options.deadline_days
    if allowed is None or not answer.plans:
        return answer
    kept = [plan for plan in answer.plans if plan.days <= allowed]
    if kept:
        return _left(problem, profile, answer, kept)
    from meshwright.solver.planner.no_plan import placed_too_late  # noqa: PLC0415 - no plan in time

    late = placed_too_late(problem, profile, min(answer.plans, key=lambda plan: plan.days), watch)
    outcomes: tuple[Status, Status] = ("infeasible", "unknown")
    proved = answer.status == "optimal" and _least_days(problem, answer) > allowed
    return replace(
        answer, status=outcomes[not proved], plans=(), certified_by=answer.certified_by if proved else (),
        gap=None, objective=None, infeasible=late,
    )  # fmt: skip


def _left(problem: Problem, profile: Profile, answer: Answer, kept: list[Plan]) -> Answer:
    plans = tuple(replace(plan, rank=rank) for rank, plan in enumerate(kept, 1))
    if len(plans) == len(answer.plans):
        return answer
    late, bound_s = len(answer.plans) - len(plans), answer.bound_step_time_s
    steps = [plan.prediction.step_time_s for plan in plans]
    plans = with_gaps(plans, steps, RankFloors(), bound_s, of_steps=True)  # floors are of other ranks
    left_out = f"{late} of the {len(answer.plans)} fastest plans miss the deadline and are left out"
    return replace(
        answer,
        plans=plans,
        gap=relative_gap(steps[0], bound_s),
        num_gpus_used=plans[0].config.num_gpus,
        objective=claim_of(problem, profile, steps[0], bound_s),
        warnings=(*answer.warnings, f"{left_out}. Slower plans were not searched to replace them"),
    )


def _least_days(problem: Problem, answer: Answer) -> float:
    """Bound every run's days from below: the bound on a step, interruptions of one GPU alone counted."""
    first, bound = answer.plans[0], answer.bound_step_time_s or 0.0
    own = first.prediction.step_time_s * slowdown(problem, first.config.num_gpus)
    return first.days * bound * slowdown(problem, 1) / own


def ask(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    known: Sequence[Configuration] = (),
    explains_none: bool = True,
    offers_changes: bool = True,
) -> Answer:
    """Return the answer to a request.

    ``known``: configurations that an interrupted search had found; placed stages begin anew.
    ``explains_none``: whether reasons are sought where no plan is found, and, if it ``offers_changes``,
    changes of the request that would give it one.
    """
    if problem.options.objective == "robust":
        from meshwright.solver.planner.robust import robust_answer  # noqa: PLC0415 - asked for by few

        by_step = partial(
            ask, profile=profile, on_progress=on_progress, should_stop=should_stop, known=known
        )
        return with_baseline(problem, profile, robust_answer(problem, profile, by_step))
    watch = Watch(time_limit_s=problem.options.time_limit_s, should_stop=should_stop)
    with kept_child():
        answer = _asked(
            problem, profile, watch, on_progress, known, explains_none=explains_none,
            offers_changes=offers_changes,
        )  # fmt: skip
        if not problem.options.differ:
            return answer
        from meshwright.solver.planner.different import with_different  # noqa: PLC0415 - asked for by few

        ask_again = partial(ask, profile=profile, should_stop=should_stop, explains_none=False)
        return with_different(problem, answer, ask_again, watch)


def _asked(
    problem: Problem, profile: Profile, watch: Watch, on_progress: OnProgress | None,
    known: Sequence[Configuration], *, explains_none: bool, offers_changes: bool,
) -> Answer:  # fmt: skip
    if problem.cluster.differs:
        return _ask_ordered(problem, profile, watch, on_progress, known)
    if problem.places_stages:
        return _of_model(problem, ask_placed(problem, profile, watch, on_progress=on_progress))
    lazy = not asks_cp_sat(problem)
    with Judge(problem.options, lazy=lazy) as judge:
        return _of_variants(
            problem, profile, watch, on_progress, known=known, cp_sat=judge, explains_none=explains_none,
            offers_changes=offers_changes,
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# A request with links between nodes that differ: plans on one network for all, then an order for each.


_SHARES = (0.3, 0.7)  # of the time that is left: of each search
_FIRST_EFFORT = 0.2  # of the order of a plan that may yet be left out


def _ask_ordered(
    problem: Problem, profile: Profile, watch: Watch, on_progress: OnProgress | None,
    known: Sequence[Configuration],
) -> Answer:  # fmt: skip
    """Return the plans of two searches, each on its best order of nodes.

    The first search has a pace for all links that an order finds, the second one that no order beats, so
    that its bound holds for every plan on every order.
    """
    from meshwright.solver.planner.host_order import even_clusters  # noqa: PLC0415 - asked for by few

    plans, answer = dict[str, Plan](), None
    for cluster, share, report in zip(
        even_clusters(problem.cluster), _SHARES, (None, on_progress), strict=True
    ):
        options = replace(
            problem.options, certify="none", pareto=False, baseline=None,
            time_limit_s=max(share * watch.left_s, _LEAST_S),
        )  # fmt: skip
        even = replace(problem, cluster=cluster, options=options)
        own = replace(profile, group=cluster.groups[0])
        answer = ask(even, own, on_progress=report, should_stop=watch.should_stop, known=known)
        answer = replace(answer, versions={**answer.versions, "profile": profile.version})
        for plan in answer.ranking:
            plans.setdefault(plan_id_of(problem_digest(problem) + str(plan.workload), plan.config), plan)
    if answer is None or not plans:
        return answer or ask(problem, profile)
    ordered = _ordered(problem, profile, list(plans.values()), watch)
    return _of_orders(problem, profile, answer, ordered, watch)


def _ordered(problem: Problem, profile: Profile, plans: Sequence[Plan], watch: Watch) -> list[Plan]:
    """Return the plans on their orders, best first; as many as are asked for, one of each mesh."""
    found = [_on_nodes(problem, profile, plan, watch, _FIRST_EFFORT) for plan in plans]
    found.sort(key=_step_s)
    if problem.options.diverse:
        found = sorted({mesh_of(plan.config): plan for plan in found[::-1]}.values(), key=_step_s)
    best, least_s = list[Plan](), inf
    for plan in found[: problem.options.top_k]:
        own = plan
        if plan.hosts is not None and plan.hosts.bound_step_time_s < least_s:  # it may be the fastest
            own = min(plan, _on_nodes(problem, profile, plan, watch, 1.0), key=_step_s)
        best.append(own)
        least_s = min(least_s, _step_s(own))
    return [replace(plan, rank=rank) for rank, plan in enumerate(sorted(best, key=_step_s), 1)]


def _step_s(plan: Plan) -> float:
    return plan.prediction.step_time_s


def _on_nodes(problem: Problem, profile: Profile, plan: Plan, watch: Watch, effort: float) -> Plan:
    """Return a plan on the best order of nodes that is found, with its prediction there."""
    from meshwright.solver.planner.host_order import OrderProblem, best_order  # noqa: PLC0415 - the same

    settled = settled_problem(replace(plan, hosts=None), problem)
    own = profile_of_variant(settled, profile)
    asked = OrderProblem(problem=settled, profile=own, config=plan.config)
    hosts = best_order(asked, seed=problem.options.seed, effort=0.0 if watch.interrupted() else effort)
    placed = replace(plan, hosts=hosts, odds=None, bound_step_time_s=None, gap=None)
    settled = settled_problem(placed, problem)
    (evaluation,) = evaluate(settled, own, [plan.config], with_spread=True)
    return replace(
        placed, plan_id=plan_id_of(problem_digest(problem), plan.config), certified_by=(),
        prediction=predicted(settled, evaluation), objective_s=evaluation.objective_s,
    )  # fmt: skip


def _of_orders(
    problem: Problem, profile: Profile, answer: Answer, plans: Sequence[Plan], watch: Watch
) -> Answer:
    explained = list[Plan]()
    for plan in plans:
        settled = settled_problem(plan, problem)
        explained += with_reasons(settled, profile_of_variant(settled, profile), [plan], watch.closing())
    steps, bound_s = [plan.prediction.step_time_s for plan in plans], answer.bound_step_time_s
    bound_s = None if bound_s is None else min(bound_s, steps[0])
    found = replace(
        answer, plans=with_gaps(explained, steps, RankFloors(), bound_s, of_steps=True), certified_by=(),
        bound_step_time_s=bound_s, gap=relative_gap(steps[0], bound_s), objective=None, objective_gap=None,
        objective_excess=None, floors=RankFloors(), elapsed_s=watch.elapsed_s,
        num_gpus_used=plans[0].config.num_gpus,
    )  # fmt: skip
    return with_baseline(problem, profile, found)


def _while_time(switched: Iterable[Switched], watch: Watch) -> Iterator[Switched]:
    """Yield the combinations of one launcher after the other until the time is over; one at least."""
    for one in switched:
        yield one
        if watch.interrupted():
            return


def _of_variants(
    problem: Problem, profile: Profile, watch: Watch, on_progress: OnProgress | None, *,
    known: Sequence[Configuration], cp_sat: Judge, explains_none: bool, offers_changes: bool,
) -> Answer:  # fmt: skip
    """Search what a request leaves open (launcher, precision, switches), and explain the plans of all."""
    switched = list(_while_time(switched_of(problem, profile), watch))
    variants, skipped = searchable(searched_variants(switched))
    able = {one.problem.launcher for one in variants}
    expressed = [one for one in switched if one.problem.launcher in able]
    packaged = packaged_variants(_while_time(expressed, watch))
    run, settle = _run_of(problem, variants, watch)
    behind = _FOLLOWING * len(packaged)
    with left_to_planner():
        answered, left = _answered(problem, variants, watch, run, on_progress, known=known, behind=behind)
        if not left:
            answered = with_fewer_words(problem, profile, answered, run, watch, settle=settle)
    if explains_none:
        answered = _with_reasons_of_none(problem, answered, watch, settle)
    if not any(one.answer.plans for one in answered):  # else the changes for the others are not shown
        if explains_none and offers_changes:
            answered = _with_changes(problem, answered, watch)
        left = _with_room(left, watch)
    answer = merged(problem, answered, unasked=len(left), skipped=skipped)
    answer = decided(problem, answer, cp_sat, watch)
    answer = _explained(answer, answered, watch)
    if left:
        unasked = f"{watch.ended_by}: {len(left)} of {len(variants)} variants were not searched"
        answer = replace(answer, warnings=(*answer.warnings, unasked))
    answer = _with_certainty(problem, variants[0], answer, watch)
    if problem.options.pareto and answer.plans:
        answer = _with_front(problem, variants, answer, settle, watch)
    answer = with_baseline(problem.under(variants[0].problem.launcher), variants[0].profile, answer)
    if answer.plans and packaged:
        answer = _with_packaged(problem, answer, answered, packaged, watch)
    answer = replace(answer, plans=with_needs(problem, answer.plans))
    idle = (answer.notes[IDLE],) if IDLE in answer.notes else ()
    of_plans = (
        *overlap_warnings(problem, answer.plans),
        *advice_warnings(problem, answer.plans),
        *loading_warnings(answer.plans),
    )
    vain = allowed_in_vain(problem, variants)
    warnings = (*idle, *vain, *unstarted(problem, answer.plans), *answer.warnings, *of_plans)
    return _of_model(problem, replace(answer, warnings=warnings))


def _with_changes(problem: Problem, answered: Sequence[Answered], watch: Watch) -> list[Answered]:
    """Add the changes of a request that would give it a plan."""
    from meshwright.solver.planner.no_plan import judge_of_changes, with_changed  # noqa: PLC0415 - no plan

    judge = judge_of_changes()  # many changes of one launcher are those of another
    return [with_changed(problem, one, watch, judge) for one in answered]


def _with_room(left: list[Variant], watch: Watch) -> list[Variant]:
    """Return the variants that were not searched; none where no one has room for a plan."""
    with watch.closing().cut():
        return left if any(have_room(variant.problem, variant.profile) for variant in left) else []
    return left


def _with_certainty(problem: Problem, first: Variant, answer: Answer, watch: Watch) -> Answer:
    """Add how certain the order of the plans is, where they are ranked by the time of a step."""
    of_a_step = is_plain(problem)
    with watch.closing().cut():
        if of_a_step:
            own = problem.under(first.problem.launcher)
            answer = replace(answer, plans=with_odds(own, first.profile, answer.plans))
    unknown = unsaid(answer.plans, watch, odds=of_a_step)
    return replace(answer, warnings=(*answer.warnings, *unknown))


def _with_front(
    problem: Problem,
    variants: Sequence[Variant],
    answer: Answer,
    settle: Callable[[Problem], Problem],
    watch: Watch,
) -> Answer:
    """Add the front of step time and memory, on the GPUs of the plans if the fewest nodes are asked for."""
    from meshwright.solver.planner.pareto import front_of  # noqa: PLC0415 - asked for by few

    if problem.options.gpus == "fewest":
        settle = partial(on_gpus, numbers=tuple({plan.config.num_gpus for plan in answer.plans}))
    elif may_use_fewer(problem):
        settle = partial(on_gpus, numbers=_of_front(variants, answer.plans[0]))
    settled = [replace(variant, problem=settle(variant.problem)) for variant in variants]
    return replace(answer, pareto=front_of(problem, settled, watch), elapsed_s=watch.elapsed_s)


def _of_front(variants: Sequence[Variant], first: Plan) -> tuple[int, ...]:
    """Return the numbers of GPUs of a front: all that can be used, and those of the fastest plan."""
    own = (numbers_of_gpus(one.problem) for one in variants if not one.follows)
    return tuple(sorted({first.config.num_gpus}.union(*own), reverse=True))


def _answered(
    problem: Problem, variants: Sequence[Variant], watch: Watch, run: Callable[..., Answer],
    on_progress: OnProgress | None, *, known: Sequence[Configuration], behind: float,
) -> tuple[list[Answered], list[Variant]]:  # fmt: skip
    """Search the variants, together if one search can rank them, as far as the time allows.

    The variants of one launcher are searched best first, as far as first plans show: what is searched
    later is then mostly refuted by what is known.

    Args:
        problem: the request.
        variants: what it leaves open.
        watch: its time.
        run: searches one variant.
        on_progress: called with the progress of all.
        known: configurations that an interrupted search had found.
        behind: searches that come afterwards, each as a share of one.

    Returns:
        The answers in the order of the variants, and the variants that were not searched.
    """
    groups = [[variant] for variant in variants]
    with watch.cut():
        groups = searched_together(variants)
    openings = _openings(problem, groups, watch, run, on_progress)
    order = sorted(range(len(groups)), key=partial(_place, groups, openings))
    answered = dict[int, Answered]()
    for done, at in enumerate(order):
        if done and watch.interrupted():
            break
        variant, *others = groups[at]
        searches = 1.0 + sum(_share_of(groups[later][0]) for later in order[done + 1 :]) + behind
        is_alone = searches == 1.0 and not done and not openings
        whole_s = problem.options.time_limit_s
        limit_s = whole_s if is_alone else max(watch.left_s / searches, _LEAST_S)
        report, before = on_progress, [*answered.values(), *openings.values()]
        if on_progress is not None and (len(groups) > 1 or before):
            report = _as_of_all(on_progress, problem, before, watch, last=done == len(groups) - 1)
        opened = [plan.config for plan in openings[at].answer.plans] if at in openings else []
        own = partial(run, on_progress=report, known=[*known, *opened])
        if others:
            own = partial(own, ways=[other.problem for other in others])
        if len(groups) > 1 and problem.options.gpus == "all":  # why one has no plan comes after all plans
            own = partial(own, explained=False)
        if done:
            own = partial(own, **_beaten_by(problem, variant, [answered[key] for key in sorted(answered)]))
        answer = _answer([_with_limit(variant, limit_s), *others], own, watch)
        answered[at] = Answered(variant=variant, answer=answer, others=tuple(others))
    found = [answered[at] for at in sorted(answered)]
    settled = {at for at, one in answered.items() if one.answer.status in ("optimal", "infeasible")}
    found += [opening for at, opening in openings.items() if at not in settled]
    return found, [variant for at, group in enumerate(groups) if at not in answered for variant in group]


def _share_of(variant: Variant) -> float:
    """Return the time that a search is expected to take, of one that nothing cuts short."""
    return _FOLLOWING if variant.follows else 1.0


def _with_limit(variant: Variant, limit_s: float) -> Variant:
    options = replace(variant.problem.options, time_limit_s=limit_s)
    return replace(variant, problem=altered(variant.problem, options=options))


def _beaten_by(problem: Problem, variant: Variant, before: Sequence[Answered]) -> dict[str, object]:
    """Return what a search need not find, as those before it found better: slow plans, or many nodes."""
    if problem.options.gpus == "all":
        return {"rivals": rivals_of(problem, before, variant)}
    if not variant.follows:
        return {}
    alike = [one for one in before if one.variant.problem.launcher == variant.problem.launcher]
    return {"most_nodes": fewest_nodes(problem, alike)}


def _with_reasons_of_none(
    problem: Problem, answered: Sequence[Answered], watch: Watch, settle: Callable[[Problem], Problem]
) -> list[Answered]:
    """Add why variants have no plan where an answer shows it, as far as the time allows.

    It is shown of launchers that were compared, and of all variants if none has a plan.
    """
    none, found = not any(one.answer.plans for one in answered), list[Answered]()
    for one in answered:
        shown = none or (problem.launcher == "any" and not one.variant.follows)
        own = one.answer
        if shown and own.status == "infeasible" and own.infeasible is None:
            from meshwright.solver.planner.no_plan import with_reasons_of_none  # noqa: PLC0415 - no plan

            own = with_reasons_of_none(settle(one.variant.problem), one.variant.profile, own, watch)
        found.append(replace(one, answer=own))
    return found


def _place(
    groups: Sequence[Sequence[Variant]], openings: Mapping[int, Answered], at: int
) -> tuple[int, bool, float, float, int]:
    """Return the sort key of a group: its launcher, whether it follows another, and its first plan."""
    first, launchers = groups[at][0], [some[0].problem.launcher for some in groups]
    place, score = launchers.index(first.problem.launcher), 0.0
    if openings:
        score = score_of(first, openings[at].answer.plans[0]) if at in openings else inf
    # the peak of a variant's precision shows best which of several is faster
    precision, groups_of_nodes = first.problem.workload.precision, first.problem.cluster.groups
    peak = min(group.gpu.peak_flops.get(precision, 0.0) for group in groups_of_nodes)
    return place, first.follows, score, -peak, at


def _openings(
    problem: Problem, groups: Sequence[Sequence[Variant]], watch: Watch, run: Callable[..., Answer],
    on_progress: OnProgress | None,
) -> dict[int, Answered]:  # fmt: skip
    """Return the best plan without offload of each group that may offload, if better than those before.

    Offload multiplies configurations and is seldom part of the best one, so that a plan without it is
    found long before. It is a plan of its variant; nothing is proved of it.
    """

    def may_offload(problem: Problem) -> bool:
        paged = optimizer_named(problem.workload.optimizer).paged  # its pages may always leave
        return "offload" in {*problem.options.allow} - limited_by(problem) and not paged

    some = [[one for one in group if may_offload(one.problem)] for group in groups]
    able, found = [at for at, group in enumerate(some) if group], dict[int, Answered]()
    for done, at in enumerate(sorted(able, key=partial(_place, groups, {}))):
        if problem.options.gpus != "all" or watch.interrupted():
            break
        share = max(_OPENING * watch.left_s / (len(able) - done), _LEAST_S)
        variant, *others = [
            replace(one, problem=_without_offload(one.problem, time_limit_s=share)) for one in some[at]
        ]
        report = None
        if on_progress is not None:
            report = _as_of_all(on_progress, problem, list(found.values()), watch, last=False)
        scores = [score_of(one.variant, one.answer.plans[0]) for one in found.values()]
        rivals = Rivals(min(scores), min(scores)) if scores else NO_RIVALS
        own = partial(run, on_progress=report, ways=[other.problem for other in others], rivals=rivals,
                      explained=False, proved=False)  # fmt: skip
        answer = _answer([variant, *others], own, watch)
        if answer.plans:
            alone = Answered(variant=variant, answer=answer, others=tuple(others))
            found[at] = _as_opening(alone, some[at])
    return found


def _without_offload(problem: Problem, *, time_limit_s: float) -> Problem:
    allow = tuple(name for name in problem.options.allow if name != "offload")
    options = replace(problem.options, allow=allow, top_k=1, certify="none", time_limit_s=time_limit_s)
    return replace(problem, options=options)


def _as_opening(alone: Answered, group: Sequence[Variant]) -> Answered:
    """Return plans without offload as found, not proved, plans of the variants that may offload."""
    of = {id(one): own for one, own in zip(alone.variants, group, strict=True)}
    variant_of, answer = found_by(alone.variants), alone.answer
    plans = [
        replace(plan, plan_id=plan_id_of(problem_digest(of[id(variant_of(plan))].problem), plan.config),
                bound_step_time_s=None, gap=None)
        for plan in answer.plans
    ]  # fmt: skip
    claim = None if answer.objective is None else replace(answer.objective, bound=None, gap=None)
    opening = replace(
        answer, status="feasible", plans=tuple(plans), certified_by=(), bound_step_time_s=None, gap=None,
        objective=claim, objective_gap=None, objective_excess=None, floors=RankFloors(),
        space_size=0, legal=0, fit=0, explored=0, counts=dict.fromkeys(answer.counts, 0),
    )  # fmt: skip
    first, *others = group
    return Answered(variant=first, answer=opening, others=tuple(others))


def _with_packaged(
    problem: Problem,
    answer: Answer,
    answered: Sequence[Answered],
    packaged: Sequence[tuple[tuple[str, ...], list[Variant]]],
    watch: Watch,
) -> Answer:
    """Add the plans that are worth a package, behind those that the request allows.

    Of each set of packages that is the best plan, if it is better by WORTH_A_PACKAGE than every plan that
    needs fewer of them.
    """
    best = {frozenset[str](): best_score_s(problem, answered)}
    found, warnings, elapsed_s = list[Plan](), list[str](), answer.elapsed_s
    for names, variants in packaged:
        limit_s = min(score for some, score in best.items() if some <= {*names}) / WORTH_A_PACKAGE
        chosen: tuple[Variant, Plan] | None = None
        groups = [[one] for one in variants]
        with watch.cut():
            groups = searched_together(variants)
        for variant, *others in groups:
            if watch.interrupted():
                warnings.append(f"{watch.ended_by}: plans with {' and '.join(names)} were not searched")
                break
            one = _alone(problem, variant.problem, answer.plans[0], watch)
            ways = [other.problem for other in others]
            rivals = Rivals(limit_s, limit_s)
            with watch.cut():
                one, rivals = _by_passes(one, variant.profile, ways, rivals)
            own = search(one, variant.profile, should_stop=watch.should_stop, ways=ways,
                         known=[plan.config for plan in (*answer.plans, *found)],
                         rivals=rivals, proved=False)  # fmt: skip
            elapsed_s += own.elapsed_s
            if own.plans:
                (plan,) = own.plans
                chosen, limit_s = (found_by([variant, *others])(plan), plan), score_of(variant, plan)
        if chosen is not None:
            best[frozenset(names)] = limit_s
            found.append(_as_listed(problem, *chosen, rank=len(answer.plans) + len(found) + 1, watch=watch))
            warnings.append(packaged_warning(problem, answer.plans[0], found[-1]))
    return replace(
        answer, plans=(*answer.plans, *found), warnings=(*answer.warnings, *warnings), elapsed_s=elapsed_s
    )


_MANY_ROWS = 50_000  # without chunks: the passes of all sizes are sooner priced than each row is bounded


def _by_passes(
    problem: Problem, profile: Profile, ways: Sequence[Problem], rivals: Rivals
) -> tuple[Problem, Rivals]:
    """Return a problem with many rows for its usual candidates, with a bound on those by their passes."""
    if not is_plain(problem) or not goes_through_usual(problem) or estimated_outer(problem) <= _MANY_ROWS:
        return problem, rivals
    usual = among_usual(problem)
    return usual, replace(rivals, least_s=least_passes(usual, profile, ways, wide=False).of_rows)


def _alone(problem: Problem, variant: Problem, first: Plan, watch: Watch) -> Problem:
    """Return a variant, asked for its best plan, on all GPUs or on those of the first plan.

    For the fewest nodes, on those of the first plan alone.
    """
    numbers, used = variant.options.num_gpus, first.config.num_gpus
    if problem.options.gpus == "fewest":
        numbers = (used,)
    elif may_use_fewer(problem) and used not in gpu_counts(problem):
        numbers = (*gpu_counts(problem), used)
    options = replace(
        variant.options, top_k=1, gpus="all", num_gpus=numbers, time_limit_s=max(watch.left_s, _LEAST_S)
    )
    return replace(variant, options=options)


def _as_listed(problem: Problem, variant: Variant, plan: Plan, *, rank: int, watch: Watch) -> Plan:
    require_credible(variant.problem, variant.profile, [(plan.config, plan.prediction)])
    (plan,) = with_reasons(variant.problem, variant.profile, [plan], watch.closing())
    launchers = (variant.problem.launcher,) if problem.launcher == "any" else ()
    workload = changes_of(variant.problem.workload, problem.workload)
    unproved = replace(plan, bound_step_time_s=None, gap=None)
    (listed,) = with_needs(problem, [replace(unproved, rank=rank, workload=workload, launchers=launchers)])
    return replace(listed, ranked=False)


def _as_of_all(
    tell: OnProgress, problem: Problem, before: Sequence[Answered], watch: Watch, *, last: bool
) -> OnProgress:
    """Report one variant as part of all: time goes on, and the best plan of those before stays.

    A lower bound of one variant bounds all of them only with the bounds of the others, and only
    where the shortest step is the objective.
    """
    first = [one.answer.plans[0].prediction.step_time_s for one in before if one.answer.plans]
    bounds = [one.answer.bound_step_time_s for one in before]

    def report(progress: Progress) -> None:
        found = progress.incumbent_step_time_s
        both = [*first, *(() if found is None else (found,))]
        best = min(both, default=None) if is_plain(problem) else found or next(iter(first), None)
        own = (*bounds, progress.bound_step_time_s)
        known = [bound for bound in own if bound is not None]
        bound = min(known) if last and len(known) == len(own) and is_plain(problem) else None
        gap, stage = relative_gap(best, bound), "done" if last else "solving"
        stage = stage if progress.stage == "done" else progress.stage
        tell(replace(progress, stage=stage, incumbent_step_time_s=best, bound_step_time_s=bound, gap=gap,
                     elapsed_s=watch.elapsed_s))  # fmt: skip

    return report


_LEAST_S = 0.01  # a search is given this much
_OPENING = 0.3  # of the time: what searches without offload may take before those with it
_FOLLOWING = 0.1  # of a search's time: what one that rivals cut short is expected to take


def _of_model(problem: Problem, answer: Answer) -> Answer:
    note = launcher_capabilities(problem.launcher).tensor_note
    split = [f"#{plan.rank}" for plan in answer.plans if plan.config.tensor_parallel_size > 1]
    listed = dict.fromkeys(name for plan in answer.plans for name in plan.launchers)
    names = listed if problem.launcher == "any" else (problem.launcher,)
    warnings = (
        *(warning for name in names for warning in unwritten(replace(problem, launcher=name))),
        *answer.warnings,
        *beyond_positions(problem),
        *left_out(problem),
        *stored_notes(problem),
        *_of_encoders(problem),
        *([f"{', '.join(split)}: {note}"] if note and split else ()),
        *_of_batch(answer.plans),
        *_of_stack(problem),
    )
    found = answer.infeasible
    if found is not None:
        found = replace(found, verdict=words_of_none(problem, answer))
    return replace(answer, model=problem.model_figures, warnings=warnings, infeasible=found)


def _of_encoders(problem: Problem) -> tuple[str, ...]:
    diffusion = problem.model.diffusion
    if diffusion is None:
        return ()
    if diffusion.encoder_weights:
        ours = f"{diffusion.encoder_weights / 1e9:.2f} billion weights of frozen text encoders"
        priced = f"every step runs {ours}, and each GPU with the first layer holds them in 16 bits"
        return (f"{priced}. The autoencoder isn't included: precompute its outputs",)
    assumed = "the text encoder and autoencoder aren't included: precompute their outputs"
    return (f"{assumed}. If encoders run in every step, give their config.json as text_encoder",)


def _of_stack(problem: Problem) -> tuple[str, ...]:
    if problem.stack is None or problem.launcher in ("none", "any"):
        return ()
    asked, own = (framework_facts(framework_of(name)).stack for name in (problem.stack, problem.launcher))
    if asked == own:
        return ()
    priced = f"times and memory are those of the software stack {problem.stack}"
    return (f"{priced}, not of today's {problem.launcher}",)


_ONCE_A_STEP = ("bubble", "data_parallel", "optimizer", "fixed")  # times that no larger batch makes longer
_SMALL_BATCH = 0.25  # of a step


def _of_batch(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Warn of a batch so small that work done once per step takes much of the first plan's step.

    Only a plan's reasons separate a bubble from waits for a slower stage, which grow with the batch.
    """
    if not plans or plans[0].why is None:
        return ()
    seen, config, terms_s = plans[0].prediction, plans[0].config, plans[0].why.waterfall_s
    once_s = {name: terms_s.get(name, 0.0) for name in _ONCE_A_STEP}
    share = sum(once_s.values()) / seen.step_time_s
    if share < _SMALL_BATCH:
        return ()
    most = max(once_s, key=lambda name: once_s[name]).replace("_", " ")
    batch = f"batch {config.global_batch_size} is small for {config.num_gpus} GPUs"
    return (
        f"{batch}: {100 * share:.0f} % of #1's step stays the same with a larger batch (mostly {most})",
    )


def _run_of(
    asked: Problem, variants: Sequence[Variant], watch: Watch
) -> tuple[Callable[..., Answer], Callable[[Problem], Problem]]:
    """Return what searches a variant, and what limits its problem to the numbers of GPUs of all variants.

    There is a problem for each launcher, precision and optimizer; switches change no number of GPUs.
    """
    plain, numbers = replace(asked.options, recompute_kinds=()), tuple[int, ...]()
    options = asked.workload.framework_options
    problems = [
        replace(
            one.problem,
            workload=replace(one.problem.workload, framework_options=options),
            options=plain,
        )
        for one in variants
        if not one.follows
    ]
    several, fewest_nodes_asked = len(problems) > 1, asked.options.gpus == "fewest"
    if several and not fewest_nodes_asked:
        with watch.cut():
            numbers = differing_gpus(problems)
    settle = partial(_also_on if may_use_fewer(asked) else on_gpus, numbers=numbers)
    if fewest_nodes_asked:
        on = cache(lambda nodes: differing_gpus(problems, nodes=nodes) if several else ())
        return partial(fewest, differing_on=on), settle
    return lambda problem, *given, **how: explained_search(settle(problem), *given, **how), settle


def _also_on(problem: Problem, numbers: tuple[int, ...]) -> Problem:
    return altered(problem, options=replace(problem.options, also_gpus=numbers))


def _answer(variants: Sequence[Variant], run: Callable[..., Answer], whole: Watch) -> Answer:
    first, variant_of = variants[0], found_by(variants)
    watch = Watch(time_limit_s=first.problem.options.time_limit_s, should_stop=whole.should_stop)
    answer = run(first.problem, first.profile, should_stop=whole.should_stop)
    for plan in answer.plans:
        require_credible(variant_of(plan).problem, first.profile, [(plan.config, plan.prediction)])
    if answer.status == "infeasible" and first.problem.options.deadline_days is not None:
        from meshwright.solver.planner.no_plan import run_too_late  # noqa: PLC0415 - no plan in time

        answer = run_too_late(variants, answer, watch)
    return answer


def _explained(answer: Answer, answered: Sequence[Answered], watch: Watch) -> Answer:
    variants, every = dict[str, Variant](), [each for one in answered for each in one.variants]
    for one in answered:
        variant_of = found_by(one.variants)
        variants |= {plan.plan_id: variant_of(plan) for plan in one.answer.plans}
    others = (plan for plan in answer.plans if plan.plan_id not in variants)  # CP-SAT's, of no ranking
    variants |= {plan.plan_id: found_by(every)(plan) for plan in others}
    explained = dict[str, Plan]()
    for variant in dict.fromkeys(id(variants[plan.plan_id]) for plan in answer.plans):
        some = [plan for plan in answer.plans if id(variants[plan.plan_id]) == variant]
        own = variants[some[0].plan_id]
        found = with_reasons(own.problem, own.profile, some, watch.closing())
        explained |= {plan.plan_id: plan for plan in found}
    return replace(answer, plans=tuple(explained[plan.plan_id] for plan in answer.plans))
