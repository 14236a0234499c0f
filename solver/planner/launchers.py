"""The answer to a request with why its launcher, what else would help, and what people run today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer
from meshwright.solver.clock import LOOKS_PER_S, Watch
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.reference import reference_of
from meshwright.solver.planner.least_memory import default_launcher
from meshwright.solver.planner.levers.levers import has_levers, levers_of
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import OnProgress, Problem, ShouldStop
from meshwright.solver.space.launcher_choice import without_files

_SEARCHED = "meshwright explain --levers"
# Of the time limit: what levers may take if a search left none, and the work of their searches.
_SHARE = 0.1


def ask_and_compare(
    problem: Problem, profile: Profile, *, on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None, known: Sequence[Configuration] = (),
    on_answer: Callable[[Answer], None] | None = None,
) -> Answer:  # fmt: skip
    """Return the answer of ``ask`` with its levers, what one would run unasked, and why its launcher.

    ``on_answer`` is given the answer before its levers are searched.
    """
    whole = Watch(time_limit_s=problem.options.time_limit_s, should_stop=should_stop)
    answer = ask(problem, profile, on_progress=on_progress, should_stop=should_stop, known=known)
    share_s = _SHARE * problem.options.time_limit_s
    watch = Watch(time_limit_s=max(share_s, whole.left_s), should_stop=should_stop)
    with watch.closing().cut():
        answer = replace(answer, reference=reference_of(problem, profile, answer))
    if on_answer is not None:
        on_answer(answer)
    looks = round(share_s * LOOKS_PER_S)
    answer = replace(answer, levers=levers_of(problem, profile, answer, watch, looks=looks))
    if watch.interrupted() and has_levers(problem, answer):
        untried = f"{watch.ended_by}: not every faster change was tried ({_SEARCHED})"
        answer = replace(answer, warnings=(*answer.warnings, untried))
    if problem.launcher == "any":
        return answer
    choice = default_launcher(problem)
    if choice.launcher != problem.launcher:
        return answer
    warnings = (*answer.warnings, *without_files(problem, choice))
    return replace(answer, notes={**answer.notes, "launcher": choice.sentence}, warnings=warnings)
