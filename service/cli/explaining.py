"""The user's own configuration, the best plan, and the way from one to the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from service.cli.calibrating import profile_for
from service.cli.exits import FOUND, code_of
from service.cli.kept import find_answer, keep, plan_of
from service.cli.own import Asked, own_of
from service.cli.problem_options import Request
from service.cli.progress import ProgressLine, cancellable
from service.cli.screen import screen
from service.library import PlanResult, answer_document, compared_with_best, recommended
from service.report.question import header
from service.report.terminal import profile_words, render_answer, render_plan
from solver.ask import ask


def run_explain(
    request: Request, asked: Asked, *, as_json: bool, calibration: Sequence[Path] | None = None
) -> int:
    """Search, compare, print; the exit code, which is the search's where it finds no plan.

    Raises:
        InvalidProblemError: the problem, the configuration or the launch command is wrong.
    """
    own = own_of(request, asked)
    problem = recommended(own.problem)
    profile = profile_for(problem, calibration)
    line = ProgressLine()
    with cancellable() as cancellation:
        answer = ask(problem, profile, on_progress=line.show, should_stop=cancellation.should_stop)
    line.clear()
    console = screen()
    if not answer.plans:
        console.print(render_answer(answer, problem, width=console.width))
        return code_of(answer, cancelled=cancellation.wanted)
    keep(answer_document(answer, problem), problem)
    result = PlanResult(problem=problem, answer=answer, profile=profile)
    found = compared_with_best(result, own.problem, own.configuration)
    if as_json:
        document = {**found.to_json(), "notes": list(own.notes), "unread": list(own.unread)}
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
        return FOUND
    console.print(header(problem, console.width))
    console.print(found.render(console.width, notes=own.notes, unread=own.unread))
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
