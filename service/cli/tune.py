"""``meshwright tune``: runs the short list on the machines at hand until the best plan is decided."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from meshwright.launchers.registry import export, launcher_of
from meshwright.profiles.documents import document_text
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.options import PROFILE_HELP
from meshwright.service.cli.saved_plans import find_plan, plan_of_file
from meshwright.service.cli.terminal import (
    FOUND,
    NO_PLAN,
    print_json,
    require_above_0,
    say_warnings,
)
from meshwright.service.files import write_text
from meshwright.service.report.formatting import configuration_words
from meshwright.service.tuning.decide import (
    Begun,
    TuningState,
    believed,
    held,
    keep_runs,
    kept_runs,
    likely_gpu_minutes,
    next_plan,
    report_of,
    short_list,
    standing,
)
from meshwright.service.tuning.runs import RunOptions, RunResult, run_plan
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem

PROFILE_FILE, REPORT_FILE = "profile.json", "tuning.md"


def tune(
    plan_id: Annotated[
        str | None, typer.Argument(help="A plan of the answer: its id (or first characters), or its rank.")
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="Command for one run, with {save_dir} and {steps} [default: launch.sh]",
        ),
    ] = None,
    *,
    source: Annotated[Path | None, typer.Option("--from", help="Answer file, e.g. answer.json.")] = None,
    save_dir: Annotated[Path, typer.Option(help="Folder of runs, report and profile.")] = Path("tuning"),
    top: Annotated[
        int,
        typer.Option(min=1, help="How many top plans to run, and as many more whose result tells most."),
    ] = 4,
    steps: Annotated[int, typer.Option(min=4, help="Steps of a run.")] = 10,
    confidence: Annotated[
        float,
        typer.Option(min=0.5, max=0.999, help="Stop when one plan is the fastest with this probability."),
    ] = 0.9,
    budget_gpu_minutes: Annotated[
        float, typer.Option(min=0.001, help="GPU-minutes for all runs together.")
    ] = 60.0,
    run_limit_s: Annotated[float, typer.Option(min=1.0, help="Stop a run after this time.")] = 600.0,
    launcher: Annotated[str | None, typer.Option(help="Another launcher than the problem's.")] = None,
    profile: Annotated[list[Path] | None, typer.Option(help=PROFILE_HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Run the best plans a few steps each, learn from every run, stop when the best is decided."""
    if plan_id is None and source is None:
        raise typer.BadParameter("give one plan: its rank (1), its id, or --from answer.json")
    require_above_0("--confidence", confidence)
    require_above_0("--budget-gpu-minutes", budget_gpu_minutes)
    require_above_0("--run-limit-s", run_limit_s)
    if source is not None and plan_id is not None:  # the first word behind -- is the command's
        command, plan_id = [plan_id, *(command or ())], None
    kept = plan_of_file(source, 1) if source is not None else find_plan(plan_id or "")
    name = launcher_of(kept.problem, launcher, pointer="--launcher")
    costs = profile_for(kept.problem, profile)
    plans = short_list(kept.problem, costs, kept.answer.plans, top)
    if not plans:
        raise InvalidProblemError.of("plan", "the answer holds no plan to run")
    start = RunOptions(command=command or (), steps=steps, limit_s=run_limit_s)
    now, why = _Tuning(kept.problem, costs, plans, name, start, save_dir).tuned(
        confidence, budget_gpu_minutes
    )
    if json_output:
        print_json(
            {
                "why": why,
                "best": None if now.best is None else now.best.plan_id,
                "chance": now.chance(),
                "plans": [plan.to_json() for plan in now.plans],
                "runs": [asdict(one) for one in now.runs],
                "findings": list(now.calibration.findings) if now.calibration else [],
            }
        )
    else:
        sys.stdout.write(report_of(now, _names(plans), why))
    raise typer.Exit(FOUND if any(one.outcome == "measured" for one in now.runs) else NO_PLAN)


@dataclass(frozen=True, slots=True)
class _Tuning:
    """The short list and how its plans are run."""

    problem: Problem
    profile: Profile
    plans: tuple[Plan, ...]
    launcher: str
    start: RunOptions
    folder: Path

    def tuned(self, confidence: float, budget_gpu_minutes: float) -> tuple[TuningState, str]:
        """Run until the best is decided or the budget is used up; return what is known, and which it was.

        Report and profile are written before another tuning may work in the folder.
        """
        with held(self.folder):
            now, why = self._decided(confidence, budget_gpu_minutes)
            _save(now, why, self.plans, self.folder)
        return now, why

    def _decided(self, confidence: float, budget_gpu_minutes: float) -> tuple[TuningState, str]:
        plans = {plan.plan_id: plan for plan in self.plans}
        kept = [one for one in kept_runs(self.folder, self.problem) if one.plan_id in plans]
        runs = [believed(self.problem, plans[one.plan_id], one) for one in kept]
        measured_before = any(one.outcome == "measured" for one in runs)
        # The first run of this start, if it failed: for what it alone lacks, or all do by now.
        doubted: list[RunResult] = []
        while True:
            now = standing(self.problem, self.profile, self.plans, runs)
            plan = next_plan(self.problem, self.profile, now, confidence)
            if plan is None:
                decided = now.chance() >= confidence
                if not now.plans:
                    return now, "No plan ran. To try all of them again, use another --save-dir."
                return now, "Found the fastest plan." if decided else "Further runs would not decide it."
            spent = sum(one.gpu_minutes for one in runs)
            if spent + likely_gpu_minutes(now) > budget_gpu_minutes:
                return now, "The budget is used up."
            folder = self.folder / plan.plan_id
            self._export(plan, folder)
            sys.stderr.write(f"run {len(runs) + 1}: {plan.plan_id} {configuration_words(plan.config)}\n")
            left_s = (budget_gpu_minutes - spent) * 60.0 / plan.config.num_gpus
            start = RunOptions(
                command=self.start.command, steps=self.start.steps, limit_s=min(self.start.limit_s, left_s)
            )
            begun = Begun(plan_id=plan.plan_id, num_gpus=plan.config.num_gpus, at_s=time.time())
            keep_runs(self.folder, self.problem, runs, begun)
            ran = any(one.outcome == "measured" for one in runs[len(kept) :])
            trusted = ran or (measured_before and not doubted)
            try:
                ended = run_plan(plan.plan_id, plan.config, folder, start, others_ran=trusted)
            except InvalidProblemError:  # the next start tries these plans again
                keep_runs(self.folder, self.problem, [one for one in runs if ran or one not in doubted])
                raise
            runs.append(believed(self.problem, plan, ended))
            if not ran and ended.outcome == "failed":
                doubted.append(runs[-1])
            keep_runs(self.folder, self.problem, runs)
            last = runs[-1]
            took = "" if last.step_time_s is None else f"{last.step_time_s} "
            why = last.last_words if last.is_faulty else ""
            sys.stderr.write(f"       {last.outcome} {took}{why}\n")

    def _export(self, plan: Plan, folder: Path) -> None:
        bundle = export(plan, self.problem, self.launcher)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in bundle.files.items():
                write_text(folder / name, text)
        except OSError as fault:
            raise InvalidProblemError.of("--save-dir", fault.strerror or "cannot be written") from None


def _save(now: TuningState, why: str, plans: tuple[Plan, ...], folder: Path) -> None:
    write_text(folder / REPORT_FILE, report_of(now, _names(plans), why))
    if now.calibration is not None:
        write_text(folder / PROFILE_FILE, document_text(now.calibration.to_json()))
    faults = (f"plan {one.plan_id}: {one.outcome}: {one.last_words}" for one in now.runs if one.is_faulty)
    say_warnings(dict.fromkeys(faults))


def _names(plans: tuple[Plan, ...]) -> dict[str, str]:
    return {plan.plan_id: configuration_words(plan.config) for plan in plans}
