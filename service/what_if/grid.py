"""The same question with other hardware or another batch: a grid that a report shows.

Two ways to answer a changed question. *search*: its whole space, as ``plan`` would; seconds each on a
large one, so within a time budget. *predict*: the listed plans carried over. Pairs of changes are always
carried over, from the listed plans and the best of the single changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Literal

from meshwright.profiles.errors import PlannerError
from meshwright.profiles.profile import Profile
from meshwright.service.report import formatting as figures
from meshwright.service.report.ranking import switch_words
from meshwright.service.report.summary import launcher_words
from meshwright.service.report.what_if import WhatIf, WhatIfs
from meshwright.service.what_if.carried import CarriedConfiguration, WhatIfPlan, candidate_of, carried_over
from meshwright.service.what_if.changes import SUBJECTS, WhatIfQuestion, changes_of, settled
from meshwright.service.what_if.pairs import PAIR_METHOD, WORDS, Outcome, Pairs, Single
from meshwright.solver.answer import Answer
from meshwright.solver.clock import CpuWatch, Watch, look
from meshwright.solver.problem import Problem
from meshwright.solver.problem import changes_of as workload_changes

Method = Literal["search", "predict", "none"]
_Way = Literal["search", "place", "predict"]  # how changed questions are answered
_CARRIED = 10  # plans that are carried over
_PAIRED = 3  # of them in each pair of changes
_PLACED_S = 2.0  # of one search that places stages
_PAIRS_S = 2.0  # CPU seconds of all pairs
_WAYS: Mapping[_Way, str] = {
    "search": "Each line is a separate search for this report, with the fastest plan of that question.",
    "predict": "Each line predicts the listed plans for that question. A search of that question may "
    "find a faster one.",
    "place": "Each line is a separate search for this report, stopped after 2 s, or the listed plans "
    "if they are faster. A longer search may find a faster one.",
}
_SETTLED = " If the question leaves the batch or the number of GPUs open, these lines use plan #1’s."
_LISTED = " These searches use the launchers, precisions and optimizers of the listed plans."
_MEASURED = " The network stays the same: its collectives were measured on this cluster."


def what_ifs(
    problem: Problem, profile: Profile, answer: Answer, *, method: Method, budget_s: float = inf
) -> WhatIfs | None:
    """Return the grid; None if it is not wanted or there is no plan.

    Args:
        problem: what was asked.
        profile: what prices it.
        answer: with at least one plan.
        method: how changed questions are answered.
        budget_s: CPU seconds for all of them; those that have no time left are named as not computed.
    """
    if method == "none" or not answer.plans:
        return None
    way: _Way = "place" if method == "search" and problem.places_stages else method
    watch, best = CpuWatch(time_limit_s=max(budget_s, 0.0)), answer.plans[0]
    asked = settled(WhatIfQuestion(problem=problem, profile=profile), best)
    others = answer.ranking or answer.plans  # a report of one plan may be about one that is not ranked
    listed = [candidate_of(plan, problem) for plan in others[:_CARRIED]]
    now = WhatIfPlan(candidate=listed[0], prediction=best.prediction)
    singles = [
        Single(change=change, outcome=_answered(asked, change.question, listed, way, watch))
        for change in changes_of(asked)
    ]
    pairs = Pairs(
        asked=asked,
        now=now,
        singles=singles,
        listed=listed[:_PAIRED],
        watch=CpuWatch(time_limit_s=_PAIRS_S),
    )
    tables = pairs.tables()
    return WhatIfs(
        rows=_rows(asked.problem, now, singles),
        method=_method_words(way, WhatIfQuestion(problem=problem, profile=profile), asked),
        tables=tables,
        pair_method=PAIR_METHOD if tables else "",
    )


def _method_words(way: _Way, asked: WhatIfQuestion, settled_to: WhatIfQuestion) -> str:
    from meshwright.solver.planner.variants import variants_of  # noqa: PLC0415 - loads the search: 0.1 s

    problem = asked.problem
    remarks = {
        _LISTED: way == "search" and len(variants_of(problem, asked.profile)) > 1,
        _SETTLED: settled_to.problem != problem,
        _MEASURED: any(group.measured is not None for group in problem.cluster.groups),
    }
    return _WAYS[way] + "".join(text for text, applies in remarks.items() if applies)


def _answered(
    asked: WhatIfQuestion,
    changed: WhatIfQuestion,
    listed: Sequence[CarriedConfiguration],
    way: _Way,
    watch: Watch,
) -> Outcome:
    outcome: Outcome = "late"
    with watch.cut():
        look()
        try:
            if way == "predict":
                outcome = carried_over(asked, changed, listed)
            elif way == "place":
                carried = carried_over(asked, changed, listed)
                outcome = carried or outcome
                outcome = _best([_placed(changed), carried])
            else:
                outcome = searched(changed, listed)
        except PlannerError:  # a pin or a limit that the changed question cannot hold
            outcome = None
    return outcome


def _best(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the fastest plan of one question; without any, the first outcome with a reason, else None."""
    found = [one for one in outcomes if isinstance(one, WhatIfPlan)]
    if found:
        return max(found, key=lambda one: one.rate)
    return next((one for one in outcomes if one is not None), None)


def searched(changed: WhatIfQuestion, listed: Sequence[CarriedConfiguration] = ()) -> Outcome:
    """Return the fastest plan of the launchers, precisions and optimizers that the question leaves open.

    ``listed``: only those that one of these settled on; empty: all. One that is too large to be searched
    whole leaves it open which is the fastest.

    Raises:
        OutOfTime: the clock that this runs under was over first.
    """
    from meshwright.solver.explain.remedies import fastest  # noqa: PLC0415 - loads the search: 0.1 s
    from meshwright.solver.planner.variants import variants_of  # noqa: PLC0415 - the same

    found, ways = list[Outcome](), {(one.launcher, one.workload) for one in listed}
    for variant in variants_of(changed.problem, changed.profile):
        workload = tuple(
            sorted(workload_changes(variant.problem.workload, changed.problem.workload).items())
        )
        if ways and (variant.problem.launcher, workload) not in ways:
            continue
        best = fastest(variant.problem, variant.profile)
        if best is None or best == "unknown":
            found.append(best)
            continue
        candidate = CarriedConfiguration(
            configuration=best[0], launcher=variant.problem.launcher, workload=workload
        )
        found.append(WhatIfPlan(candidate=candidate, prediction=best[1]))
    return _best(found)


def _placed(changed: WhatIfQuestion) -> Outcome:
    from meshwright.solver.explain.remedies import quick_search  # noqa: PLC0415 - loads the search: 0.1 s

    problem = changed.problem
    answer = quick_search(problem, changed.profile, _PLACED_S, deadline_days=problem.options.deadline_days)
    if not answer.plans:
        return None if answer.status == "infeasible" else "late"
    best = answer.plans[0]
    return WhatIfPlan(candidate=candidate_of(best, problem), prediction=best.prediction)


def _rows(problem: Problem, now: WhatIfPlan, singles: Sequence[Single]) -> tuple[WhatIf, ...]:
    most = max([now.rate, *(one.outcome.rate for one in singles if isinstance(one.outcome, WhatIfPlan))])
    ordered = sorted(
        singles, key=lambda one: SUBJECTS.index(one.change.subject)
    )  # factors keep their order
    return (
        replace(_row("as asked", _now(problem), now, now, most), is_asked=True),
        *(_row(one.change.subject, one.change.words, one.outcome, now, most) for one in ordered),
    )


def _now(problem: Problem) -> str:
    sizes = {group.gpu.memory_bytes for group in problem.cluster.groups}
    memory = " and ".join(figures.gib(size) for size in sorted(sizes))
    gpus = figures.count(problem.cluster.num_gpus)
    return f"{gpus} GPUs, {memory} GiB, batch {problem.workload.global_batch_size}"


def _row(subject: str, change: str, found: Outcome, asked: WhatIfPlan, most: float) -> WhatIf:
    if not isinstance(found, WhatIfPlan):
        return WhatIf(subject=subject, change=change, found=WORDS[found])
    return WhatIf(
        subject=subject,
        change=change,
        found=_words(found.candidate, asked.candidate),
        step=figures.seconds(found.prediction.step_time_s),
        rate=figures.count(round(found.rate)),
        against="" if found is asked else _signed(100 * (found.rate / asked.rate - 1)),
        share=found.rate / most,
    )


def _words(candidate: CarriedConfiguration, asked: CarriedConfiguration) -> str:
    """Return a plan's sizes, or only the changed ones where it has the same parts as the asked plan."""
    words, before = _pieces(candidate, asked), _pieces(asked, asked)
    changed = [word for word in words if word not in before]
    if candidate is asked or [word.split()[0] for word in words] != [word.split()[0] for word in before]:
        return " · ".join(words)
    return f"the same with {' · '.join(changed)}" if changed else "the same plan"


def _pieces(candidate: CarriedConfiguration, asked: CarriedConfiguration) -> list[str]:
    words = figures.configuration_words(candidate.configuration).split(" · ")
    words += [switch_words(f"{name} {value}") for name, value in candidate.workload]
    words += [launcher_words(candidate.launcher)] if candidate.launcher != asked.launcher else []
    return words


def _signed(percent: float) -> str:
    """Return ``+98 %``, ``−4 %``, ``0 %``."""
    return f"{percent:+.0f} %".replace("-", "−") if round(percent) else "0 %"
