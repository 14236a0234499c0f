"""The user's own configuration, the best plan, and the way from one to the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from profiles.profile import Profile
from service.cli.calibrating import named_profile, profile_for
from service.cli.comparing import comparison_json, side_of
from service.cli.exits import FOUND, code_of
from service.cli.kept import answer_document, find_answer, keep, plan_of
from service.cli.own import Asked, own_of, recommended
from service.cli.problem_options import Request
from service.cli.progress import ProgressLine, cancellable
from service.cli.screen import screen
from service.configurations import broken_rules
from service.report.beyond import OBJECTIVE_NAMES
from service.report.comparison import Ranked, reading_lines, render_comparison
from service.report.question import header
from service.report.terminal import profile_words, render_answer, render_plan
from solver.ask import ask
from solver.comparison import Comparison
from solver.outlook import UNITS, natural_objective
from solver.plan import Configuration
from solver.problem import Problem
from solver.why.compare import Side, compared


def run_explain(
    request: Request, asked: Asked, *, as_json: bool, calibration: Sequence[Path] | None = None
) -> int:
    """Search, compare, print; the exit code, which is the search's where it finds no plan.

    Raises:
        InvalidProblemError: the problem, the configuration or the launch command is wrong.
    """
    own = own_of(request, asked)
    problem = recommended(own.problem)
    problem = replace(problem, options=replace(problem.options, baseline=None))
    profile = profile_for(problem, calibration or named_profile(problem))
    line = ProgressLine()
    with cancellable() as cancellation:
        answer = ask(problem, profile, on_progress=line.show, should_stop=cancellation.should_stop)
    line.clear()
    console = screen()
    if not answer.plans:
        console.print(render_answer(answer, problem, width=console.width))
        return code_of(answer, cancelled=cancellation.wanted)
    keep(answer_document(answer, problem), problem)
    best = answer.plans[0]
    found = compared(
        profile,
        Side(problem=own.problem, configuration=own.configuration),
        side_of(best, problem),
    )
    broken = broken_rules(own.problem, own.configuration)
    ranked = _ranked(problem, profile, (own.configuration, best.config), found)
    if as_json:
        document = {
            "yours": asdict(own.configuration),
            "breaks": broken,
            "best": best.to_json(),
            "status": answer.status,
            "comparison": comparison_json(found),
            "ranked_by": None if ranked is None else asdict(ranked),
            "notes": list(own.notes),
            "unread": list(own.unread),
            "profile": profile.version,
        }
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
        return FOUND
    console.print(header(problem, console.width))
    pair, names = (own.configuration, best.config), ("yours", f"best {best.plan_id[:4]}")
    console.print(render_comparison(found, names, pair, width=console.width, ranked=ranked))
    console.print(reading_lines([*own.notes, *_rules(broken)], own.unread, width=console.width))
    return FOUND


def run_explain_plan(plan_id: str, *, as_json: bool) -> int:
    """Print one plan that was found before, with every figure of its reasons; the exit code.

    Raises:
        InvalidProblemError: there is no such plan.
    """
    kept = find_answer(plan_id)
    plan = plan_of(kept)
    if as_json:
        sys.stdout.write(json.dumps(plan.to_json(), indent=1, allow_nan=False) + "\n")
        return FOUND
    console = screen()
    words = profile_words(kept.answer, kept.problem)
    console.print(render_plan(plan, kept.problem, width=console.width, profile=words))
    return FOUND


def _ranked(
    problem: Problem,
    profile: Profile,
    pair: tuple[Configuration, Configuration],
    found: Comparison,
) -> Ranked | None:
    """What plans are ranked by, of both sides; None where that is the step time."""
    name = problem.options.objective
    if name == "step_time":
        return None
    sides = zip(pair, (found.first, found.second), strict=True)
    values = tuple(natural_objective(problem, profile, one, seen) for one, seen in sides)
    return Ranked(name=OBJECTIVE_NAMES[name], unit=UNITS[name], values=(values[0], values[1]))


def _rules(broken: Sequence[str]) -> list[str]:
    """Rules of the space that the user's configuration breaks."""
    return [f"yours breaks the rule that {rule}" for rule in broken]
