"""One request, one answer: whatever it asks for beside the ranking of one space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from profiles.profile import Profile
from solver.ask_placed import ask_placed
from solver.baseline import with_baseline
from solver.calibration.refuse import require_credible
from solver.fewest import fewest
from solver.launcher_own import overlap_warnings
from solver.merged import Answered, merged
from solver.objective import is_plain
from solver.pareto import front_of
from solver.plan import Answer, Configuration
from solver.problem import Problem
from solver.progress import OnProgress, ShouldStop
from solver.ramp import ramp_search
from solver.search.search import places_stages, search
from solver.search.watch import Watch
from solver.variants import searchable, variants_of
from solver.why.explained import unsaid, with_reasons
from solver.why.in_time import More, Run, fastest_run, too_late
from solver.why.relaxed import on_nodes
from solver.why.remedies import with_remedies
from solver.why.robust import with_odds


def ask(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    known: Sequence[Configuration] = (),
) -> Answer:
    """The answer to a request; errors as ``search``, and for an incredible calibration InvalidProblemError.

    ``known``: configurations that a search had found which was broken off; placed stages begin anew.
    """
    watch = Watch(time_limit_s=problem.options.time_limit_s, should_stop=should_stop)
    if places_stages(problem, profile):
        return ask_placed(problem, profile, watch, on_progress=on_progress)
    variants, skipped = searchable(variants_of(problem, profile))
    answered = list[Answered]()
    for left, variant in zip(range(len(variants), 0, -1), variants, strict=True):
        limit_s = problem.options.time_limit_s if len(variants) == 1 else max(watch.left_s / left, 0.01)
        options = replace(variant.problem.options, time_limit_s=limit_s)
        one = replace(variant.problem, options=options)
        answer = _answer(one, variant.profile, known, on_progress, watch)
        answered.append(Answered(variant=variant, answer=answer))
        if watch.interrupted():
            break
    unasked = len(variants) - len(answered)
    answer = merged(problem, answered, unasked=unasked, skipped=skipped)
    if unasked:
        said = f"the time limit came first: {unasked} of {len(variants)} variants were not searched"
        answer = replace(answer, warnings=(*answer.warnings, said))
    answer = replace(answer, warnings=(*answer.warnings, *overlap_warnings(problem, answer.plans)))
    first = variants[0]
    if is_plain(problem):  # odds are of the shortest step
        with watch.closing().cut():
            answer = replace(answer, plans=with_odds(first.problem, first.profile, answer.plans))
    answer = replace(answer, warnings=(*answer.warnings, *unsaid(answer.plans, odds=is_plain(problem))))
    if problem.options.pareto and answer.plans:
        answer = replace(answer, pareto=front_of(problem, variants, watch), elapsed_s=watch.elapsed_s)
    return with_baseline(first.problem, first.profile, answer)


def _answer(
    problem: Problem,
    profile: Profile,
    known: Sequence[Configuration],
    on_progress: OnProgress | None,
    whole: Watch,
) -> Answer:
    """The answer where neither launcher nor workload is open."""
    run: Callable[..., Answer] = fewest if problem.options.gpus == "fewest" else search
    if problem.options.batch_ramp:
        run = ramp_search
    watch = Watch(time_limit_s=problem.options.time_limit_s, should_stop=whole.should_stop)
    answer = run(problem, profile, on_progress=on_progress, should_stop=whole.should_stop, known=known)
    require_credible(problem, profile, [(plan.config, plan.prediction) for plan in answer.plans])
    if answer.status == "infeasible" and problem.options.deadline_days is not None:
        answer = _too_late(problem, profile, answer, watch)
    elif answer.infeasible is not None and run is search:
        reasons = with_remedies(problem, profile, answer.infeasible, watch)
        answer = replace(answer, infeasible=reasons)
    return replace(answer, plans=with_reasons(problem, profile, answer.plans, watch.closing()))


def _too_late(problem: Problem, profile: Profile, answer: Answer, watch: Watch) -> Answer:
    """Where the deadline is what stands in the way: how long the fastest plan takes, what is in time."""
    run: Run | None = None
    with watch.cut():
        run = fastest_run(problem, profile)
    if run is None:
        return answer
    more = More(nodes=problem.cluster.num_nodes, grow=partial(on_nodes, problem, profile))
    return replace(answer, infeasible=too_late(problem, run, [more], watch))
