"""Plan, predict, explain, export, validate and calibrate in this process: what ``import meshwright`` gives.

A request is a mapping in the API's form (docs/requests.md), the path of a problem file, or a ``Problem``.
Every result holds typed objects, gives plain JSON values with ``to_json`` and shows itself in a notebook.
Bad input raises ``InvalidProblemError``: its ``errors`` name field, message, allowed and nearest.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.text import Text

from meshwright.launchers.registry import export as export_plan
from meshwright.launchers.registry import launcher_of
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.calibration import Calibration
from meshwright.profiles.documents import document_text
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.profile import Profile
from meshwright.service.files import save_export, write_text
from meshwright.service.jobs.answers import answer_document, stored_answer
from meshwright.service.report.accuracy import render_report
from meshwright.service.report.comparison import ComparedObjective, reading_lines, render_comparison
from meshwright.service.report.page import render_page
from meshwright.service.report.terminal import render_answer, render_prediction, render_summary
from meshwright.service.reporting import ReportOptions, prediction_page, report_of
from meshwright.service.requests.configuration import (
    assumed_values,
    assumption_notes,
    broken_rules,
    completed,
)
from meshwright.service.requests.costs import Profiles as GivenProfiles
from meshwright.service.requests.costs import ProfileSource, costs_of
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.measured_runs import read_table
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.startable import idle_notes
from meshwright.solver.accuracy import Report
from meshwright.solver.accuracy import validate as validate_runs
from meshwright.solver.answer import OBJECTIVE_NAMES, Answer, Plan, Prediction, Why, settled_problem
from meshwright.solver.calibration.calibrate import calibrate as calibrate_on
from meshwright.solver.calibration.choose import Choice
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.configuration import Configuration, plan_id_of
from meshwright.solver.cost.objective import UNITS, natural_objective
from meshwright.solver.explain.compare import ComparedConfiguration, compared
from meshwright.solver.explain.reasons import reasons_of
from meshwright.solver.explanation import Comparison
from meshwright.solver.planner.launchers import ask_and_compare
from meshwright.solver.predict import predict as predicted
from meshwright.solver.problem import OnProgress, Problem, ShouldStop, problem_digest
from meshwright.solver.runs.table import Run
from meshwright.solver.space.launcher_rules import (
    beyond_positions,
    left_out,
    overlap_notes,
    stored_notes,
    unwritten,
)

FilePath: TypeAlias = str | PathLike[str]
Request: TypeAlias = Problem | Mapping[str, object] | FilePath
Profiles: TypeAlias = "GivenProfiles | CalibrateResult | Sequence[ProfileSource | CalibrateResult]"
ConfigurationSource: TypeAlias = Plan | Configuration | Mapping[str, object]

_WIDTH = 120  # columns of text results in a notebook
_PRE = '<pre style="line-height:1.25;font-family:ui-monospace,Menlo,Consolas,monospace">{code}</pre>'
_FREE = {"overlap_gradients", "overlap_tensor", "overlap_transfer", "loss_fused", "attention_kernel"}


class Result:
    """The interface of every result: it prints and shows itself in a notebook."""

    __slots__ = ()

    def render(self, width: int) -> RenderableType:
        """Return the result for a terminal so many columns wide."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return _recorded(self.render(_WIDTH)).export_html(inline_styles=True, code_format=_PRE)

    def __str__(self) -> str:
        return _recorded(self.render(_WIDTH)).export_text().rstrip("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult(Result):
    """Ranked plans for one problem, with the problem and the costs that they were found with."""

    problem: Problem
    answer: Answer
    profile: Profile
    warnings: tuple[str, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Return the plans, best first; empty where nothing fits or the time limit came before a plan."""
        return self.answer.plans

    @property
    def status(self) -> str:
        """Return ``optimal``, ``feasible``, ``infeasible`` or ``unknown``: what is proved."""
        return self.answer.status

    @property
    def best(self) -> Plan:
        """Return the first plan.

        Raises:
            InvalidProblemError: there is no plan; ``Answer.infeasible`` has the reason.
        """
        return self.plan(1)

    def plan(self, rank: int) -> Plan:
        """Return the plan of that rank (1 is the best).

        Raises:
            InvalidProblemError: there is none.
        """
        return plan_of_rank(self.plans, rank)

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``meshwright plan --json`` prints: the API's answer, and its problem."""
        return answer_document(self.answer, self.problem)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        return render_page(
            report_of(self.answer, self.problem, self.profile, ReportOptions(what_if="none"))
        )

    def _repr_html_(self) -> str:
        asked = ReportOptions(detailed=1, what_if="none")
        return _framed(render_page(report_of(self.answer, self.problem, self.profile, asked)))

    def render(self, width: int, *, full: bool = False) -> RenderableType:
        """Return what ``meshwright plan`` prints, or its --full, for a terminal so many columns wide."""
        render = render_answer if full else render_summary
        return render(self.answer, self.problem, width=width)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictResult(Result):
    """The costs of one configuration, their causes, and the launcher's rules that it breaks."""

    problem: Problem
    configuration: Configuration
    prediction: Prediction
    profile: Profile
    why: Why
    breaks: tuple[str, ...]  # rules of the search space; such a configuration has a price all the same
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``meshwright predict --json`` prints."""
        return {
            "config": asdict(self.configuration),
            "prediction": asdict(self.prediction),
            "breaks": list(self.breaks),
            "why": asdict(self.why),
            "notes": list(self.notes),
            "profile": self.profile.version,
            "model": self.problem.model_figures,
        }

    def render(self, width: int) -> RenderableType:
        """Return the figures for a terminal so many columns wide."""
        return render_prediction(
            self.configuration,
            self.prediction,
            self.problem,
            width=width,
            profile=self.profile.title,
            broken=self.breaks,
            why=self.why,
        )

    def to_html(self) -> str:
        """Time, memory, timeline and roofline of the configuration as one self-contained HTML page."""
        own = Plan(
            plan_id=plan_id_of(problem_digest(self.problem), self.configuration),
            rank=0,
            config=self.configuration,
            prediction=self.prediction,
            objective_s=self.prediction.step_time_s,
            why=self.why,
        )
        return prediction_page(own, self.problem, self.profile, breaks=self.breaks)

    def _repr_html_(self) -> str:
        return _framed(self.to_html())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult(Result):
    """A configuration, the best plan, and the steps from the one to the other."""

    result: PlanResult
    problem: Problem  # of the configuration, with its own framework options
    configuration: Configuration
    breaks: tuple[str, ...]
    comparison: Comparison
    ranked_by: ComparedObjective | None  # what plans are ranked by, of both; None: the step time
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return both configurations and the comparison as plain values."""
        return {
            "yours": asdict(self.configuration),
            "breaks": list(self.breaks),
            "best": self.result.best.to_json(),
            "status": self.result.status,
            "comparison": asdict(self.comparison),
            "ranked_by": None if self.ranked_by is None else asdict(self.ranked_by),
            "profile": self.result.profile.version,
        }

    def render(
        self, width: int, *, title: str = "yours", notes: Sequence[str] = (), unread: Sequence[str] = ()
    ) -> RenderableType:
        """Return the comparison for a terminal of ``width`` columns, with notes from reading the files.

        ``title``: of the configuration.
        """
        best = self.result.best
        names, pair = (title, f"best {best.plan_id[:4]}"), (self.configuration, best.config)
        rules = [f"a search tries no plan like yours: {rule}" for rule in self.breaks]
        return Group(
            render_comparison(self.comparison, names, pair, width=width, ranked=self.ranked_by),
            reading_lines([*notes, *rules], unread, width=width),
        )

    def _repr_html_(self) -> str:
        return Result._repr_html_(self) + self.result._repr_html_()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateResult(Result):
    """Predictions of measured runs and their errors."""

    report: Report

    def to_json(self) -> dict[str, Any]:
        """Return the error figures, over all runs, by cluster and by source."""
        return self.report.to_json()

    def render(self, width: int) -> RenderableType:  # noqa: ARG002 - its tables have a width of their own
        """Return the tables of errors by cluster and by source."""
        return render_report(self.report)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateResult(Result):
    """A calibration from measured runs of one cluster, for ``profile`` of ``plan`` or ``predict``."""

    calibration: Calibration

    def to_json(self) -> dict[str, Any]:
        """Return the calibration file."""
        return self.calibration.to_json()

    def save(self, path: FilePath) -> None:
        """Write the file that ``--profile`` takes; a reader sees the old file or the new one.

        Raises:
            OSError: the file cannot be written.
        """
        write_text(Path(path), document_text(self.to_json()))

    def render(self, width: int) -> RenderableType:  # noqa: ARG002 - sentences are folded by the terminal
        """Return the findings, in sentences."""
        found = self.calibration
        head = f"{found.cluster}: calibrated on {found.num_runs} timed runs ({found.stack}, {found.gpu})"
        return Group(Text(head, style="bold"), *(Text(one) for one in found.findings))


def plan(
    request: Request,
    *,
    profile: Profiles = None,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> PlanResult:
    """Search the best parallel configurations for a model, a cluster and a batch.

    Args:
        request: what is asked: model, cluster, workload, launcher, search.
        profile: calibrations or measured profiles; None: what the request names, else the catalog's.
        on_progress: called now and then with the state of the search.
        should_stop: True ends the search with what it has found, within a second.

    Raises:
        InvalidProblemError: the request or the profile is wrong.
    """
    problem = problem_of(request)
    costs, warnings = costs_of(problem, _calibrations_of(profile))
    return PlanResult(
        problem=problem,
        answer=ask_and_compare(problem, costs, on_progress=on_progress, should_stop=should_stop),
        profile=costs,
        warnings=warnings,
    )


def predict(
    request: Request,
    configuration: ConfigurationSource,
    *,
    profile: Profiles = None,
) -> PredictResult:
    """Price one configuration: step time with its interval, memory by stage, and where the time goes.

    Args:
        request: as for ``plan``; its search options are ignored.
        configuration: parallel sizes by name (``tensor_parallel_size``, …); what is left out follows from
            the rest: the remaining GPUs are data parallel, layers are split as the launcher splits them.
            A ``Plan`` of an answer to the request is priced under its own switches, precision, optimizer
            and launcher; its prediction is the plan's own. The result has them in ``problem``.
        profile: as for ``plan``.

    Raises:
        InvalidProblemError: the request, the configuration or the profile is wrong.
    """
    problem, own = _asked(problem_of(request), configuration)
    costs, warnings = costs_of(problem, _calibrations_of(profile))
    prediction = predicted(problem, costs, own)
    require_credible(problem, costs, [(own, prediction)])
    return PredictResult(
        problem=problem,
        configuration=own,
        prediction=prediction,
        profile=costs,
        why=reasons_of(problem, costs, [own], [prediction.step_time_s])[0],
        breaks=tuple(broken_rules(problem, own)),
        notes=(
            *overlap_notes(problem, own),
            *pace_notes(problem, own),
            *idle_notes(problem, own),
            *beyond_positions(problem),
            *left_out(problem),
            *unwritten(problem),
            *stored_notes(problem),
            *_assumptions(problem, configuration, own),
        ),
        warnings=warnings,
    )


def _assumptions(problem: Problem, source: ConfigurationSource, own: Configuration) -> list[str]:
    if isinstance(source, Plan | Configuration):
        return []
    return assumption_notes(problem, assumed_values(source, own))


def explain(
    request: Request,
    configuration: ConfigurationSource,
    *,
    profile: Profiles = None,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> ExplainResult:
    """Compare a configuration of yours with the best plan: what each difference buys.

    Args:
        request: as for ``plan``.
        configuration: as for ``predict``.
        profile: as for ``plan``.
        on_progress: as for ``plan``.
        should_stop: as for ``plan``.

    Raises:
        InvalidProblemError: the request, the configuration or the profile is wrong, or nothing fits.
    """
    asked = problem_of(request)
    problem, own = _asked(asked, configuration)
    return compared_with_best(
        plan(recommended(asked), profile=profile, on_progress=on_progress, should_stop=should_stop),
        problem,
        own,
    )


def compared_with_best(
    found: PlanResult, problem: Problem, own: Configuration, costs: Profile | None = None
) -> ExplainResult:
    """Compare a configuration under its own problem with the best plan.

    Args:
        found: the best plan.
        problem: of the configuration.
        own: the configuration.
        costs: of its problem; None: those of the plan.

    Raises:
        InvalidProblemError: as ``PlanResult.best``.
    """
    yours = ComparedConfiguration(problem=problem, configuration=own, profile=costs)
    sides = yours, side_of(found.best, found.problem)
    comparison = compared(found.profile, *sides)
    return ExplainResult(
        result=found,
        problem=problem,
        configuration=own,
        breaks=tuple(broken_rules(problem, own)),
        comparison=comparison,
        ranked_by=_ranked(found.problem, found.profile, (own, found.best.config), comparison),
        warnings=found.warnings,
    )


def export(
    source: PlanResult | Mapping[str, Any] | FilePath,
    *,
    rank: int = 1,
    launcher: str | None = None,
    save_dir: FilePath | None = None,
    force: bool = False,
) -> ExportBundle:
    """Return the launch files of a plan, written to ``save_dir`` if one is given.

    Args:
        source: a result of ``plan``, its JSON document, or the path of one.
        rank: which plan.
        launcher: the launcher of the files; None: the problem's.
        save_dir: a new folder, an empty one, or one that holds this plan; written as a whole or not at all.
        force: overwrite a folder that holds other files.

    Raises:
        InvalidProblemError: there is no such plan, no launcher is named, or the folder is taken.
        RefusedExportError: the launcher cannot express the plan.
    """
    if isinstance(source, PlanResult):
        answer, problem = source.answer, source.problem
    else:
        answer, problem = stored_answer(_document(source))
    chosen = plan_of_rank(answer.plans, rank)
    bundle = export_plan(chosen, problem, launcher_of(problem, launcher))
    if save_dir is not None:
        save_export(
            Path(save_dir),
            bundle.files,
            answer_document(replace(answer, plans=(chosen,)), problem),
            plan_id=chosen.plan_id,
            force=force,
        )
    return bundle


def validate(
    runs: FilePath | Sequence[Run], *, calibrate: int = 0, choose: Choice = "suggested", seed: int = 0
) -> ValidateResult:
    """Predict measured runs and return the errors of the predictions.

    Args:
        runs: a CSV table of runs (profiles/catalog/runs/columns.md), or runs that were read.
        calibrate: runs of each cluster, at most half of them, to calibrate on first; they are not scored.
        choose: how to choose them.
        seed: of a random choice.

    Raises:
        InvalidProblemError: the file is not a table of runs.
    """
    return ValidateResult(report=validate_runs(_runs(runs), calibrate=calibrate, choose=choose, seed=seed))


def calibrate(runs: FilePath | Sequence[Run], *, cluster: str | None = None) -> CalibrateResult:
    """Learn a cluster from a few measured runs.

    Args:
        runs: as for ``validate``, all of one software stack and GPU.
        cluster: which one, where the table holds several.

    Raises:
        InvalidProblemError: the table is wrong, holds several clusters and none was named, or nothing
            to learn from.
    """
    rows = of_one_cluster(_runs(runs), cluster)
    seen = [one for one in map(Observation.of, rows) if one is not None and is_measured(one)]
    return CalibrateResult(calibration=calibrate_on(seen, cluster=rows[0].cluster))


def read_result(source: Mapping[str, Any] | FilePath) -> PlanResult:
    """Read a result of ``plan`` from its JSON document, or from its file (``answer.json``).

    Raises:
        InvalidProblemError: the document is not an answer, or another version wrote it.
    """
    answer, problem = stored_answer(_document(source))
    return PlanResult(problem=problem, answer=answer, profile=costs_of(problem, None)[0])


def plan_of_rank(plans: Sequence[Plan], rank: int) -> Plan:
    """Return the plan of that rank (1 is the best).

    Raises:
        InvalidProblemError: there is none.
    """
    for plan in plans:
        if plan.rank == rank:
            return plan
    raise InvalidProblemError.of(
        "/rank",
        f"there is no plan of rank {rank}",
        allowed=f"1 to {len(plans)}" if plans else "none: the answer holds no plan",
    )


def problem_of(request: Request) -> Problem:
    """Return the problem that is asked; errors as ``parse_problem``."""
    if isinstance(request, Problem):
        return request
    return parse_problem(request if isinstance(request, Mapping) else read_problem_file(Path(request)))


def _calibrations_of(given: Profiles) -> GivenProfiles:
    if isinstance(given, CalibrateResult):
        return given.calibration
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [one.calibration if isinstance(one, CalibrateResult) else one for one in given]
    return given


def recommended(problem: Problem) -> Problem:
    """Return the problem without its baseline, its framework set up as the exporter would (for free)."""
    options = {
        name: value for name, value in problem.workload.framework_options.items() if name not in _FREE
    }
    return replace(
        problem,
        workload=replace(problem.workload, framework_options=options),
        options=replace(problem.options, baseline=None),
    )


def side_of(plan: Plan, asked: Problem) -> ComparedConfiguration:
    """Return a plan with the problem as it settled it: launcher, precision, optimizer, switches, batch."""
    return ComparedConfiguration(problem=settled_problem(plan, asked), configuration=plan.config)


def pace_notes(problem: Problem, configuration: Configuration) -> tuple[str, ...]:
    """Return a note on how a configuration without places on unlike node groups is priced."""
    if not problem.places_stages or configuration.is_placed:
        return ()
    return ("one mesh over unlike nodes goes at the pace of the slowest; stage_groups place its stages",)


def is_measured(one: Observation) -> bool:
    """Return whether a row teaches anything."""
    return bool(one.step_time_s or one.peak_memory_bytes or one.out_of_memory)


def of_one_cluster(runs: Sequence[Run], wanted: str | None) -> list[Run]:
    """Return the rows of the named cluster, or of the only one.

    Raises:
        InvalidProblemError: there is none, or several and none was named.
    """
    names = sorted({run.cluster for run in runs})
    if wanted is None and len(names) > 1:
        raise InvalidProblemError.of("/cluster", "the file holds several", allowed=", ".join(names[:20]))
    if wanted is not None and wanted not in names:
        raise UnknownNameError.among("/cluster", wanted, names)
    if not runs:
        raise InvalidProblemError.of("/rows", "the file holds no run")
    return [run for run in runs if run.cluster == (wanted or names[0])]


def _ranked(
    problem: Problem,
    profile: Profile,
    pair: tuple[Configuration, Configuration],
    found: Comparison,
) -> ComparedObjective | None:
    """Return the objective that ranks plans, of both sides; None if that is the step time."""
    name = problem.options.objective
    if name == "step_time":
        return None
    sides = zip(pair, (found.first, found.second), strict=True)
    values = tuple(natural_objective(problem, profile, one, seen) for one, seen in sides)
    return ComparedObjective(name=OBJECTIVE_NAMES[name], unit=UNITS[name], values=(values[0], values[1]))


def _document(source: Mapping[str, Any] | FilePath) -> Mapping[str, Any]:
    return source if isinstance(source, Mapping) else read_problem_file(Path(source))


def _asked(problem: Problem, source: ConfigurationSource) -> tuple[Problem, Configuration]:
    """Return a configuration of the user's, completed, and the problem that it is priced under."""
    if isinstance(source, Plan):
        return settled_problem(source, problem), source.config
    return problem, source if isinstance(source, Configuration) else completed(source, problem)


def _runs(source: FilePath | Sequence[Run]) -> Sequence[Run]:
    return read_table(Path(source)) if isinstance(source, str | PathLike) else source


def _recorded(shown: RenderableType) -> Console:
    """Return a screen that keeps its output; Rich's own would show it in a notebook a second time."""
    console = Console(
        file=io.StringIO(), force_jupyter=False,
        width=_WIDTH, record=True, highlight=False, emoji=False, markup=False,
    )  # fmt: skip
    console.print(shown)
    return console


def _framed(page: str) -> str:
    """Return a whole page inside another: its styles and its security policy hold for itself alone."""
    attributes = 'width="100%" height="640" style="border:0" title="Meshwright report"'
    return f'<iframe {attributes} srcdoc="{html.escape(page, quote=True)}"></iframe>'
