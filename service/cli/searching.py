"""A search in this process, or a sweep of several: ask, search, keep, save, print."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meshwright.profiles.documents import document_text
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.problem_options import (
    Request,
)
from meshwright.service.cli.progress import ProgressLine, cancellable
from meshwright.service.cli.saved_plans import keep, known_answer, verdicts_of
from meshwright.service.cli.terminal import (
    CANCELLED,
    FOUND,
    INFEASIBLE,
    NO_PLAN,
    code_of,
    print_json,
    say_error,
    say_warnings,
    screen,
)
from meshwright.service.files import ANSWER_FILE, REPORT_FILE, check_folder, save_folder
from meshwright.service.jobs.answers import answer_document
from meshwright.service.report.formatting import built_words, wrapped
from meshwright.service.report.sentences import measure_line
from meshwright.service.report.table import to_csv
from meshwright.service.report.terminal import render_answer, render_facts, render_offers, render_summary
from meshwright.service.requests.costs import measured_of_question
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.problem import Problem, ShouldStop

if TYPE_CHECKING:  # a search whose answer is only printed loads none of them
    from rich.console import RenderableType

    from meshwright.launchers.reading.base import LaunchFile
    from meshwright.service.jobs.joining import SolvedPoint
    from meshwright.service.jobs.states import EndState
    from meshwright.service.requests.jobs import Sweep
    from meshwright.solver.calibration.measured import TimedPrediction

# --------------------------------------------------------------------------------------------------
# A search in this process: ask, search, keep, save, print.


Form = Literal["table", "json", "csv"]


def run_plan(
    request: Request,
    *,
    form: Form,
    full: bool,
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
        check_folder(save_dir, force=force, problem=problem_to_mapping(problem))
    in_parts = form == "table" and not full and screen().is_terminal  # somebody waits

    def on_answer(answer: Answer) -> None:
        if in_parts:
            console = screen()
            console.print(render_facts(answer, problem, width=console.width))

    with cancellable() as should_stop:
        answer, whole = _answered(problem, profile, should_stop, on_answer)
        worth = _worth_measuring(problem, profile, answer, measure_next) if measure_next else None
        measured = measured_of_question(problem, profile, calibration)
        document = _document(answer, problem, measured, worth)
        if answer.plans or (answer.infeasible and answer.infeasible.closest):
            say_warnings(keep(document, problem, whole=whole))
        render = render_answer if full else render_offers if in_parts else render_summary
        # before files, which may be refused
        _print(form, answer, problem, document, measured, render=render)
        if form == "table" and worth:
            console = screen()
            console.print(measure_line(worth, width=console.width))
    if save_dir:
        from meshwright.service.report.page import render_page  # noqa: PLC0415 - only for a folder
        from meshwright.service.reporting import ReportOptions, report_of  # noqa: PLC0415 - the same

        _save(
            save_dir,
            answer,
            problem,
            document,
            page=render_page(
                report_of(answer, problem, profile, ReportOptions(verdicts=verdicts_of(answer.plans)))
            ),
            force=force,
        )
    return code_of(answer, cancelled=should_stop())


def _answered(
    problem: Problem, profile: Profile, should_stop: ShouldStop, on_answer: Callable[[Answer], None]
) -> tuple[Answer, bool]:
    """Return the kept answer to the same question, else search; and whether no limit cut the answer.

    ``on_answer`` is given the answer before its levers are searched.
    """
    known = known_answer(problem, profile)
    if known is not None:
        on_answer(known)
        return known, True
    from meshwright.solver.planner.launchers import ask_and_compare  # noqa: PLC0415 - a kept answer needs no search
    from meshwright.solver.search.certify.judge import forked_child  # noqa: PLC0415 - the same

    line, begun_s = ProgressLine(), time.monotonic()

    def told(answer: Answer) -> None:
        line.clear()
        on_answer(answer)

    with forked_child():
        answer = ask_and_compare(
            problem, profile, on_progress=line.show, should_stop=should_stop, on_answer=told
        )
    in_time = time.monotonic() - begun_s < problem.options.time_limit_s
    return answer, in_time and not should_stop()


def _worth_measuring(
    problem: Problem, profile: Profile, answer: Answer, number: int
) -> Sequence[tuple[Plan, float]]:
    from meshwright.solver.explain.certainty import runs_to_measure  # noqa: PLC0415 - for --measure-next alone

    return runs_to_measure(problem, profile, answer.ranking, number)


def _document(
    answer: Answer,
    problem: Problem,
    measured: Sequence[TimedPrediction],
    worth: Sequence[tuple[Plan, float]] | None,
) -> dict[str, Any]:
    document = answer_document(answer, problem)
    if measured:
        document["measured"] = [one.to_json() for one in measured]
    if worth is not None:
        document["measure_next"] = [{"plan_id": p.plan_id, "log_gain": gain} for p, gain in worth]
    return document


def _save(
    folder: Path, answer: Answer, problem: Problem, document: dict[str, Any], *, page: str, force: bool
) -> None:
    sys.stdout.flush()
    files = {
        ANSWER_FILE: document_text(document),
        "problem.json": document_text(document["problem"]),
        REPORT_FILE: page,
    }
    warnings: Sequence[str] = ()
    if answer.plans and problem.launcher != "none":
        from meshwright.launchers.registry import export  # noqa: PLC0415 - only for a folder

        bundle = export(answer.plans[0], problem, problem.launcher)
        files |= bundle.files
        warnings = bundle.warnings
    save_folder(
        folder,
        files,
        plan_id=answer.plans[0].plan_id if answer.plans else "",
        force=force,
        problem=document["problem"],
    )
    say_warnings(warnings)
    sys.stderr.write(f"wrote {', '.join(files)} to {folder}\n")


def _print(
    form: Form,
    answer: Answer,
    problem: Problem,
    document: dict[str, Any],
    measured: Sequence[TimedPrediction],
    *,
    render: Callable[..., RenderableType],
) -> None:
    if form == "json":
        print_json(document)
    elif form == "csv":
        sys.stdout.write(to_csv(answer.plans))
    else:
        console = screen()
        console.print(render(answer, problem, width=console.width, measured=measured))
        if built := built_words(answer.plans, verdicts_of(answer.plans)):
            console.print(wrapped(built, console.width, indent=2))


def say_reading(found: LaunchFile, form: Form) -> None:
    """Print the notes on a launch file: before the table, or on stderr if stdout is JSON or CSV."""
    if form == "table":
        from meshwright.service.report.comparison import reading_lines  # noqa: PLC0415 - for a launch file

        console = screen()
        console.print(reading_lines(found.notes, found.unread, width=console.width))
        return
    unread = (
        [f"not understood, so not part of the prediction: {', '.join(found.unread)}"]
        if found.unread
        else []
    )
    sys.stderr.writelines(f"note: {line}\n" for line in (*found.notes, *unread))


# --------------------------------------------------------------------------------------------------
# ``meshwright plan --sweep``: one search after the other in this process, joined as the service joins.


NO_PLAN_FOUND = {"code": "no_plan", "detail": "the time limit came before the first plan was found"}
_STATES: dict[str, EndState] = {"optimal": "succeeded", "feasible": "succeeded", "infeasible": "infeasible"}
_CODES = {"succeeded": FOUND, "infeasible": INFEASIBLE}


def run_sweep(request: Request, *, form: Form, calibration: Sequence[Path] | None = None) -> int:
    """Search every point and print the joined answer; the exit code.

    Raises:
        InvalidProblemError: the request, or a point of its sweep, is wrong.
    """
    from meshwright.service.jobs.joining import join  # noqa: PLC0415 - only for a sweep
    from meshwright.service.report.points import points_to_csv, render_points  # noqa: PLC0415 - the same
    from meshwright.service.requests.jobs import read_job_request  # noqa: PLC0415 - the same
    from meshwright.solver.search.certify.judge import kept_child  # noqa: PLC0415 - the same

    sweep = read_job_request(request, parse_problem).sweep
    if sweep is None:
        raise InvalidProblemError.of("/sweep", "is required")
    options = sweep.problems[0].options
    with cancellable() as should_stop, kept_child():
        whole = join(
            _solved(sweep, calibration, should_stop), objective=options.objective, top_k=options.top_k
        )
    answer = {**whole.answer, "plans": whole.plans}
    if form == "json":
        print_json(answer)
    elif form == "csv":
        sys.stdout.write(points_to_csv(answer))
    else:
        console = screen()
        console.print(render_points(answer, width=console.width))
    if whole.problem and not should_stop():
        say_error(whole.problem["detail"])
    return _CODES.get(whole.state, CANCELLED if should_stop() else NO_PLAN)


def _solved(
    sweep: Sweep, calibration: Sequence[Path] | None, should_stop: ShouldStop
) -> Iterator[SolvedPoint]:
    """The points one after the other; Ctrl-C ends the one at hand, and those after it are not begun."""
    from meshwright.service.jobs.joining import SolvedPoint  # noqa: PLC0415 - only for a sweep
    from meshwright.solver.planner.plan import ask  # noqa: PLC0415 - the same

    line = ProgressLine()
    for point, problem in zip(sweep.points, sweep.problems, strict=True):
        if should_stop():
            yield SolvedPoint(values=point.values, state="cancelled")
            continue
        profile = profile_for(problem, calibration)
        # no column shows what else would be faster, which takes as long as the search
        answer = ask(problem, profile, on_progress=line.show, should_stop=should_stop)
        if answer.plans or (answer.infeasible and answer.infeasible.closest):  # found by their ids
            say_warnings(keep(answer_document(answer, problem), problem))
        body = answer.to_json()
        plans = body.pop("plans")
        unknown: EndState = "cancelled" if should_stop() else "failed"
        state = _STATES.get(body["status"], unknown)
        yield SolvedPoint(
            values=point.values,
            state=state,
            answer=body,
            plans=plans,
            problem=NO_PLAN_FOUND if state == "failed" else None,
        )
    line.clear()
