"""``meshwright plan --sweep``: one search after the other in this process, joined as the service joins."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from profiles.errors import InvalidProblemError
from service.cli.calibrating import profile_for
from service.cli.exits import CANCELLED, FOUND, INFEASIBLE, NO_PLAN, say_error, say_warnings
from service.cli.kept import keep
from service.cli.problem_options import Request
from service.cli.progress import Cancellation, ProgressLine, cancellable
from service.cli.screen import screen
from service.engine.states import EndState
from service.job_request import Sweep, read_job_request
from service.library import answer_document
from service.report.points import points_to_csv, render_points
from service.request import parse_problem
from service.sweep.join import SolvedPoint, join
from solver.ask import ask
from solver.problem import Problem

NO_PLAN_FOUND = {"code": "no_plan", "detail": "the time limit came before the first plan was found"}
_STATES: dict[str, EndState] = {"optimal": "succeeded", "feasible": "succeeded", "infeasible": "infeasible"}
_CODES = {"succeeded": FOUND, "infeasible": INFEASIBLE}


def run_sweep(
    request: Request, *, form: Literal["table", "json", "csv"], calibration: Sequence[Path] | None = None
) -> int:
    """Search every point and print the joined answer; the exit code.

    Raises:
        InvalidProblemError: the request, or a point of its sweep, is wrong.
    """
    sweep = read_job_request(request, parse_problem).sweep
    if sweep is None:
        raise InvalidProblemError.of("/sweep", "is required")
    options = sweep.problems[0].options
    with cancellable() as cancellation:
        points = _solved(sweep, calibration, cancellation)
        whole = join(points, objective=options.objective, top_k=options.top_k)
    answer = {**whole.answer, "plans": whole.plans}
    if form == "json":
        sys.stdout.write(json.dumps(answer, indent=1, allow_nan=False) + "\n")
    elif form == "csv":
        sys.stdout.write(points_to_csv(answer))
    else:
        console = screen()
        console.print(render_points(answer, width=console.width))
    if whole.problem and not cancellation.should_stop():
        say_error(whole.problem["detail"])
    return _CODES.get(whole.state, CANCELLED if cancellation.should_stop() else NO_PLAN)


def _solved(
    sweep: Sweep, calibration: Sequence[Path] | None, cancellation: Cancellation
) -> Iterator[SolvedPoint]:
    """The points one after the other; Ctrl-C ends the one at hand, and those after it are not begun."""
    line = ProgressLine()
    for point, problem in zip(sweep.points, sweep.problems, strict=True):
        if cancellation.should_stop():
            yield SolvedPoint(values=point.values, state="cancelled")
            continue
        body = _answer(problem, calibration, line, cancellation)
        plans = body.pop("plans")
        unknown: EndState = "cancelled" if cancellation.should_stop() else "failed"
        state = _STATES.get(body["status"], unknown)
        why = NO_PLAN_FOUND if state == "failed" else None
        yield SolvedPoint(values=point.values, state=state, answer=body, plans=plans, problem=why)
    line.clear()


def _answer(
    problem: Problem, calibration: Sequence[Path] | None, line: ProgressLine, cancellation: Cancellation
) -> dict[str, Any]:
    """The answer to one point, kept so that its plans are found by their ids."""
    profile = profile_for(problem, calibration)
    answer = ask(problem, profile, on_progress=line.show, should_stop=cancellation.should_stop)
    if answer.plans:
        say_warnings(keep(answer_document(answer, problem), problem))
    return answer.to_json()
