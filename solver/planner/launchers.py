"""The launcher of an answer: why it is the question's own, and which other one would be much faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.objective import is_plain
from meshwright.solver.planner.least_memory import default_launcher
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.variants import searchable, searched_together, variants_of
from meshwright.solver.predict import profile_of_variant
from meshwright.solver.problem import OnProgress, Problem, ShouldStop
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.search import search
from meshwright.solver.space.launcher_choice import launcher_faults, preferred

WORTH_A_LAUNCHER = 1.1  # as many times as fast must another launcher be to be named
_SHARE = 0.1  # of the time limit: what the search for it may take
_EACH_S = 2.0  # and of one launcher


def ask_and_compare(
    problem: Problem, profile: Profile, *, on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None, known: Sequence[Configuration] = (),
) -> Answer:  # fmt: skip
    """Return the answer of ``ask`` with notes on its launcher: why it, and a much faster one."""
    answer = ask(problem, profile, on_progress=on_progress, should_stop=should_stop, known=known)
    if problem.launcher == "any":
        return answer
    watch = Watch(time_limit_s=_SHARE * problem.options.time_limit_s, should_stop=should_stop)
    notes = dict(answer.notes)
    choice = default_launcher(problem)
    if choice.launcher == problem.launcher:
        notes["launcher"] = choice.sentence
    if (
        problem.launcher != "none"
        and (faster := faster_launcher(problem, profile, answer, watch)) is not None
    ):
        name, step_s = faster
        then, now = f"{step_s:.3g} s", f"{answer.plans[0].prediction.step_time_s:.3g} s"
        notes["faster_launcher"] = f"{name} would take {then} instead of {now}: add --launcher {name}"
    return replace(answer, notes=notes)


def faster_launcher(
    problem: Problem, profile: Profile, answer: Answer, watch: Watch
) -> tuple[str, float] | None:
    """Return the launcher with the shortest step, and that step, where it is much shorter; None: no other.

    Plans that are not so much faster are refuted by their bounds: little of each space is priced.
    """
    found, ranked = None, [plan for plan in answer.plans if plan.ranked]
    if not ranked or not is_plain(problem) or problem.options.gpus != "all":
        return None
    most_s = ranked[0].prediction.step_time_s / WORTH_A_LAUNCHER
    for other in _others(problem):
        if watch.interrupted():
            break
        step_s = _step_s(other, profile, most_s, watch)
        if step_s is not None and step_s < most_s:
            found, most_s = (other.launcher, step_s), step_s
    return found


def _others(problem: Problem) -> Iterator[Problem]:
    """Yield the question under every other launcher that can express it and may be faster.

    Of those with one stack none is, but for one that places stages on unlike nodes.
    """
    own = launcher_capabilities(problem.launcher)
    options = replace(
        problem.options, top_k=1, certify="none", diverse=False, pareto=False, baseline=None
    )  # fmt: skip
    for name in preferred(problem)[1]:
        able, other = launcher_capabilities(name), replace(problem.under(name), options=options)
        alike = able.framework == own.framework and not (other.places_stages and not problem.places_stages)
        if name in ("none", problem.launcher) or alike:
            continue
        if next(launcher_faults(other, name), None) is None:
            yield other


def _step_s(problem: Problem, profile: Profile, most_s: float, watch: Watch) -> float | None:
    """Return the shortest step below a limit; None where none is found."""
    variants, _ = searchable(variants_of(problem, profile_of_variant(problem, profile)))
    steps = list[float]()
    for first, *others in searched_together(variants):
        limit_s = min(_EACH_S, max(watch.left_s, 0.01))
        one = replace(first.problem, options=replace(first.problem.options, time_limit_s=limit_s))
        ways = [other.problem for other in others]
        rivals = Rivals(most_s, most_s)
        found = search(
            one, first.profile, should_stop=watch.should_stop, ways=ways, rivals=rivals, proved=False
        )
        steps += [plan.prediction.step_time_s for plan in found.plans]
    return min(steps, default=None)
