"""An answer without a plan: how late the soonest run is, and which change of the request gives a plan.

Loaded when a search finds no plan: its modules are a tenth of all that a search loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, Infeasibility, Plan, Remedy, remedy_of
from meshwright.solver.clock import Watch
from meshwright.solver.cost.objective import DAY_S, outlook_of
from meshwright.solver.explain.infeasible import closest_plan, reasons_of_none
from meshwright.solver.explain.remedies import (
    Fastest,
    Judge,
    More,
    ProblemChange,
    changes_of_kinds,
    fastest,
    fastest_run,
    on_nodes,
    on_nodes_of,
    too_late,
    with_accepted,
    with_remedies,
)
from meshwright.solver.planner.levers.change import WORTH
from meshwright.solver.planner.levers.nearby import under_best_switches
from meshwright.solver.planner.variants import Answered, Variant, found_by, searchable, variants_of
from meshwright.solver.problem import Problem, for_one_plan, on_switches, searched_switches, with_batch
from meshwright.solver.space.enumerate import estimated_outer
from meshwright.solver.space.launcher_rules import problem_faults, workload_faults

_NO_TIME = "nothing is legal and fits. The time limit came before the reasons were found"


def with_reasons_of_none(problem: Problem, profile: Profile, answer: Answer, watch: Watch) -> Answer:
    """Add to an infeasible answer of a search why nothing is legal and fits, as far as the time allows."""
    found = Infeasibility(reasons=(_NO_TIME,))
    with watch.cut():
        found = reasons_of_none(problem, profile)
    return replace(answer, infeasible=found, elapsed_s=watch.elapsed_s)


def judge_of_changes() -> Judge:
    """Return a judge of changed problems; each one's first plan is sought once."""
    known = dict[tuple[str, str], Fastest]()

    def judge(change: ProblemChange) -> Fastest:
        one = repr(change.problem), change.profile.version
        if one not in known:
            faults_of = problem_faults if "launcher" in change.settings else workload_faults
            able = not any(faults_of(change.problem, launcher_capabilities(change.problem.launcher)))
            known[one] = _soon_enough(change) if able else None
        return known[one]

    return judge


def _soon_enough(change: ProblemChange) -> Fastest:
    """Return a changed problem's first plan; none if the shortest step misses the deadline."""
    problem, profile, options = change.problem, change.profile, change.problem.options
    if options.deadline_days is not None:
        if _ideal_days(problem) > options.deadline_days:
            return None
        hurried = replace(options, deadline_days=None, objective="step_time")
        found = fastest(replace(problem, options=hurried), profile)
        if found is None or found == "unknown":
            return found
        if (outlook_of(problem, profile, *found).days or 0.0) > options.deadline_days:
            return None
    return fastest(problem, profile)


def _ideal_days(problem: Problem) -> float:
    """Return the days of the run's work at its GPUs' highest peak: no plan takes fewer."""
    peak = sum(group.num_gpus * max(group.gpu.peak_flops.values()) for group in problem.cluster.groups)
    return problem.model_flops_per_token * (problem.options.total_tokens or 0) / peak / DAY_S


def with_changed(asked: Problem, one: Answered, watch: Watch, judge: Judge) -> Answered:
    """Add to a variant without a plan the changes of ``asked`` that give it one."""
    found, options = one.answer.infeasible, asked.options
    if one.variant.follows or found is None:
        return one
    if options.deadline_days is not None and found.remedies:  # what is late has a plan
        return one
    problem, stated = one.variant.problem, asked.workload.framework_options
    plain = replace(
        problem,
        workload=replace(problem.workload, framework_options=stated),
        options=replace(problem.options, recompute_kinds=(), constraints=asked.options.constraints),
    )
    kinds = changes_of_kinds(problem, one.variant.profile, found.nearest, plain)
    settle = partial(_as_its_command, problem, plain)
    reasons = with_remedies(found, kinds, watch, judge, settle)
    reasons = with_accepted(one.variant.problem, one.variant.profile, reasons)
    return replace(one, answer=replace(one.answer, infeasible=reasons))


def _as_its_command(problem: Problem, plain: Problem, change: ProblemChange, remedy: Remedy) -> Remedy:
    """Return a change with a plan of its own request, whose switches are open.

    ``problem``: without a plan, under the first settings of its switches. ``plain``: under those that its
    request states.
    """
    own, unsearched = _opened(problem, plain, change), replace(remedy, at_least=True)
    if own.options.deadline_days is not None or own.options.gpus != "all":
        return unsearched
    if not searched_switches(own):
        return replace(remedy, at_least=estimated_outer(own, wide=True) > estimated_outer(own))
    if "search.allow" in change.settings:  # that opens many more settings
        return unsearched
    variants, _ = searchable(variants_of(own, change.profile))
    ways, within_s = [one.problem for one in variants], (1.0 - WORTH) * remedy.step_time_s
    best = under_best_switches(ways, variants[0].profile, remedy.config, within_s)
    if best is None:
        return unsearched
    return remedy_of(
        own, change.kind, change.words, best.config, best.prediction,
        settings=change.settings, at_least=True,
    )  # fmt: skip


def _opened(problem: Problem, plain: Problem, change: ProblemChange) -> Problem:
    """Return a change of ``problem`` as one of ``plain``: what it does not set itself is open."""
    changed, own = change.problem, problem.workload.framework_options
    stated = plain.workload.framework_options
    options = {
        name: value
        for name, value in changed.workload.framework_options.items()
        if name in stated or own.get(name) != value
    }
    kept = {*plain.options.constraints} | {*changed.options.constraints} - {*problem.options.constraints}
    return replace(
        changed,
        workload=replace(changed.workload, framework_options=options),
        options=replace(
            for_one_plan(changed.options),
            constraints=tuple(one for one in changed.options.constraints if one in kept),
            recompute_kinds=(),
        ),
    )


def run_too_late(variants: Sequence[Variant], answer: Answer, watch: Watch) -> Answer:
    """Return the answer with how late the soonest run is, and what would make it earlier."""
    first, run = variants[0], None
    with watch.cut():
        run = fastest_run(first.problem, first.profile, [one.problem for one in variants[1:]])
    if run is None:
        return answer
    batch = run.config.global_batch_size
    own = found_by([replace(one, problem=with_batch(one.problem, batch)) for one in variants])(run)
    problem = on_switches(first.problem, own.problem)
    more = More(nodes=problem.cluster.num_nodes, grow=partial(on_nodes, problem, own.profile))
    late = too_late(problem, run, [more], watch)
    soonest = closest_plan(own.problem, own.profile, run.config)
    return replace(answer, infeasible=replace(late, closest=soonest))


def placed_too_late(problem: Problem, profile: Profile, soonest: Plan, watch: Watch) -> Infeasibility:
    """Return how late the soonest plan on placed stages is, and what would make it earlier."""
    more = [
        More(nodes=one.num_nodes, grow=partial(on_nodes_of, problem, profile, at))
        for at, one in enumerate(problem.cluster.distinct_groups)
    ]
    late = too_late(problem, soonest, more, watch)
    return replace(late, closest=closest_plan(problem, profile, soonest.config))
