"""A search in this process: ask, search, keep, save, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from profiles.profile import Profile
from service.cli.calibrating import profile_for
from service.cli.exits import code_of, say_warnings
from service.cli.kept import keep
from service.cli.problem_options import Request
from service.cli.progress import ProgressLine, cancellable
from service.cli.screen import screen
from service.files import ANSWER_FILE, REPORT_FILE, check_folder, save_folder
from service.launchers.registry import export
from service.library import answer_document
from service.report.page import render_page
from service.report.reasons import measure_line
from service.report.table import to_csv
from service.report.terminal import render_answer
from service.reporting import report_of
from service.request import parse_problem
from solver.ask import ask
from solver.plan import Answer
from solver.problem import Problem
from solver.why.robust import runs_to_measure

Form = Literal["table", "json", "csv"]


def run_plan(
    request: Request,
    *,
    form: Form,
    save_dir: Path | None,
    force: bool,
    calibration: Sequence[Path] | None = None,
    measure_next: int = 0,
) -> int:
    """Search and print; the exit code. ``measure_next`` plans worth measuring are named.

    Raises:
        InvalidProblemError: the request is wrong, or the folder is taken.
        RefusedExportError: the launcher cannot express the best plan.
    """
    problem = parse_problem(request)
    profile = profile_for(problem, calibration)
    if save_dir:
        check_folder(save_dir, force=force)
    answer, cancelled = _search(problem, profile)
    document = answer_document(answer, problem)
    worth = runs_to_measure(problem, profile, answer.plans, measure_next) if measure_next else []
    if measure_next:
        document["measure_next"] = [{"plan_id": p.plan_id, "log_gain": gain} for p, gain in worth]
    if answer.plans:
        say_warnings(keep(document, problem))
    _print(form, answer, problem, document)  # before files, which may be refused
    if form == "table" and worth:
        console = screen()
        console.print(measure_line(worth, width=console.width))
    if save_dir:
        page = render_page(report_of(answer, problem, profile))
        _save(save_dir, answer, problem, document, page=page, force=force)
    return code_of(answer, cancelled=cancelled)


def _search(problem: Problem, profile: Profile) -> tuple[Answer, bool]:
    """The answer, and whether the user cut it short."""
    line = ProgressLine()
    with cancellable() as cancellation:
        answer = ask(problem, profile, on_progress=line.show, should_stop=cancellation.should_stop)
    line.clear()
    return answer, cancellation.wanted


def _save(
    folder: Path, answer: Answer, problem: Problem, document: dict[str, Any], *, page: str, force: bool
) -> None:
    """answer.json, problem.json, report.html and the launch files of the best plan."""
    sys.stdout.flush()
    files = {
        ANSWER_FILE: _text(document),
        "problem.json": _text(document["problem"]),
        REPORT_FILE: page,
    }
    warnings: Sequence[str] = ()
    if answer.plans and problem.launcher != "none":
        bundle = export(answer.plans[0], problem, problem.launcher)
        files |= bundle.files
        warnings = bundle.warnings
    plan_id = answer.plans[0].plan_id if answer.plans else ""
    save_folder(folder, files, plan_id=plan_id, force=force)
    say_warnings(warnings)
    sys.stderr.write(f"wrote {', '.join(files)} to {folder}\n")


def _print(form: Form, answer: Answer, problem: Problem, document: dict[str, Any]) -> None:
    """The answer on stdout, and nothing else."""
    if form == "json":
        sys.stdout.write(_text(document))
    elif form == "csv":
        sys.stdout.write(to_csv(answer.plans))
    else:
        console = screen()
        console.print(render_answer(answer, problem, width=console.width))


def _text(document: object) -> str:
    """JSON for people and programs."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
