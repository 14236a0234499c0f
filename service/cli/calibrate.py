"""``meshwright calibrate``: calibrate a cluster on a file of its runs, and suggest what to measure next."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import exp
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.documents import document_text, shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.terminal import print_json, say_warnings, screen, write_file
from meshwright.service.library import is_measured, of_one_cluster
from meshwright.service.report.formatting import plain_table
from meshwright.service.report.measured import compared_table
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.measured_runs import read_table
from meshwright.solver.calibration.calibrate import calibrate, called, default_profile_of
from meshwright.solver.calibration.choose import RunCandidates, measuring_order
from meshwright.solver.calibration.measured import Compared, compared
from meshwright.solver.calibration.observations import Observation, batches_of, launch_shares
from meshwright.solver.cost.residuals import features_of
from meshwright.solver.runs.table import Run

_WORTH_SAYING = 0.05  # relative moves of a constant
# Times the catalog's scatter: 4 to 16 runs of a catalogued cluster mostly show 0.3 to 1.3 of it.
_MUCH_MORE = 1.35


def calibrate_command(
    runs: Annotated[
        Path,
        typer.Argument(help="Measured runs of the cluster, one per row (CSV). With --log, rl.yaml."),
    ],
    *,
    log: Annotated[
        Path | None,
        typer.Option(help="Log of NeMo-RL or verl, to correct each part of a step of rl.yaml."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Cluster to calibrate, if the file has several.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Calibration (JSON) to write, for --profile.")] = None,
    measure_next: Annotated[
        int, typer.Option(min=0, help="Suggest this many untimed rows to measure next.")
    ] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")] = False,
) -> None:
    """Learn a cluster from a few of its runs; plan and predict take the result with --profile."""
    if log is not None:
        from meshwright.service.cli.post_training import calibrate_roles  # noqa: PLC0415 - only for this kind

        if cluster or measure_next:
            raise typer.BadParameter("--log goes with rl.yaml, --out and --json alone")
        raise typer.Exit(calibrate_roles(read_problem_file(runs), log, out=out, json_output=json_output))
    rows = _rows(runs, cluster)
    observations = [one for one in map(Observation.of, rows) if one is not None]
    measured = [one for one in observations if is_measured(one)]
    following = _next(observations, measure_next)
    calibration = None
    if measured or not measure_next:
        calibration = calibrate(measured, cluster=rows[0].cluster)
    if calibration is not None and out is not None:
        write_file(out, document_text(calibration.to_json()), "--out")
        sys.stderr.write(f"wrote {out}\n")
    if json_output:
        print_json(
            {
                "calibration": calibration.to_json() if calibration else None,
                "runs": [one.to_json() for one in _compared(calibration, measured)],
                "scatter": _scatter(calibration),
                "measure_next": following,
            }
        )
    else:
        screen().print(Group(*_shown(calibration, measured, following)))
    if calibration is not None:
        say_warnings(calibration.findings)


def _rows(path: Path, cluster: str | None) -> list[Run]:
    try:
        return of_one_cluster(read_table(path), cluster)
    except InvalidProblemError as fault:
        renamed = {"/cluster": "--cluster"}
        errors = (replace(one, pointer=renamed.get(one.pointer, one.pointer)) for one in fault.errors)
        raise type(fault)(errors) from None


def _next(observations: Sequence[Observation], count: int) -> list[str]:
    if count == 0:
        return []
    done = [index for index, one in enumerate(observations) if is_measured(one)]
    if len(done) == len(observations):
        raise InvalidProblemError.of(
            "--measure-next", "every row is measured. Add rows without step_time_s as candidates"
        )
    order = measuring_order(RunCandidates.of(observations, default_profile_of), done)
    return [observations[index].name for index in islice(order, count)]


def _shown(
    calibration: Calibration | None, measured: Sequence[Observation], following: Sequence[str]
) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if calibration is not None:
        runs = f"{calibration.num_runs} timed run{'s' * (calibration.num_runs > 1)}"
        head = f"{shown(calibration.cluster)}: calibrated on {runs} ({calibration.stack})"
        parts += [Text(head, style="bold"), *_constants(calibration)]
        parts += compared_table(_compared(calibration, measured)) if calibration.num_runs else []
        parts += _spread(calibration, [one for one in measured if one.step_time_s])
    if following:
        parts.append(Text(f"worth measuring next: {', '.join(map(shown, following))}"))
    return parts


def _constants(calibration: Calibration) -> list[RenderableType]:
    moved = {n: exp(v) - 1.0 for n, v in calibration.log_offsets.items()}
    moved = {n: v for n, v in moved.items() if abs(v) > _WORTH_SAYING}
    if not moved:
        return [Text("every constant stays within 5 % of its software stack's value")]
    rows = (
        (name, f"{change:+.0%}", f"± {exp(calibration.log_sds.get(name, 0.0)) - 1.0:.0%}")
        for name, change in sorted(moved.items(), key=lambda item: -abs(item[1]))
    )
    return [plain_table(("constant", "against its stack's", "sure within"), rows, left=("constant",))]


def _spread(calibration: Calibration, timed: Sequence[Observation]) -> list[RenderableType]:
    if calibration.residual is None:
        return []
    shares = launch_shares(batches_of(timed, default_profile_of))
    points = np.stack([features_of(one.problem, one.configuration) for one in timed])
    sigma = float(np.median(calibration.residual.sigma(points, shares)))
    lines: list[RenderableType] = [
        Text(f"80 % of runs like these are expected within ± {exp(1.2816 * sigma) - 1.0:.1%}")
    ]
    scatter = _scatter(calibration)
    if scatter is not None and scatter["these"] > _MUCH_MORE * scatter["catalog"]:
        lines.append(
            Text(
                f"these runs scatter by {scatter['these']:.1%}, runs of one catalogued cluster by "
                f"{scatter['catalog']:.1%}, so every band is wider. Did you share nodes, count warm-up "
                "steps, or mix versions?",
                style="yellow",
            )
        )
    return lines


def _scatter(calibration: Calibration | None) -> dict[str, float] | None:
    """How far one run differs from its like, as one standard deviation: these runs, and the catalog's.

    The catalog's is what left-out runs of the open clusters are off by alone, from which a calibration
    starts; few runs move it only so far.
    """
    if calibration is None or calibration.residual is None:
        return None
    return {
        "these": exp(calibration.residual.noise) - 1.0,
        "catalog": exp(calibration.residual.usual_noise) - 1.0,
    }


def _compared(calibration: Calibration | None, measured: Sequence[Observation]) -> list[Compared]:
    if calibration is None:
        return []
    learnt = [one for one in measured if called(one) in calibration.runs]
    return compared(learnt, calibration, default_profile_of)
