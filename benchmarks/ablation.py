"""What each ingredient of the cost model buys: taken out one at a time, everything else fitted again.

    .venv/bin/python -m benchmarks.ablation

Without an ingredient each software stack is fitted again (the global level stays), then each cluster is
left out of its stack's fit and predicted: mean absolute error in %, mean over the clusters of a family.
The closed form of the step is used throughout. The last rows calibrate each left-out cluster on up to 16
of its runs. Writes the table into docs/how-the-cost-model-works.md.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.fit.evidence import Evidence, fitted, linearised
from benchmarks.fit.leave_out import blind_profile_of, cluster_of, without_runs
from benchmarks.removed import INGREDIENTS, without
from meshwright.profiles.profile import Constants, Profile, stack_constants
from meshwright.solver.accuracy import validate
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.observations import Observation, batches_of, log_step_s
from meshwright.solver.calibration.priors import TIME_PROCESS
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs

DOCUMENT = Path(__file__).parent.parent / "docs" / "how-the-cost-model-works.md"
OPEN, CLOSE = "<!-- ablation -->", "<!-- /ablation -->"
FAMILIES: Mapping[str, tuple[str, ...]] = {  # by how the names of clusters begin
    "small models": ("vtrain-a100-single",),
    "3D over nodes": ("vtrain-a100-multi", "jeanzay", "selene-a100-megatron"),
    "nanotron": ("ultrascale",),
    "one node, SimuMax": ("simumax",),
    "zero bubble": ("zerobubble",),
    "NVL72 (GB200, GB300)": ("bridge-gb", "dgxc-gb", "mlperf-gb"),
    "HGX (H100, B200, B300)": ("bridge-b", "bridge-h", "dgxc-h", "mlperf-h", "mlperf-b", "nemo-h"),
    "ZeRO-3": ("mosaic", "torchtitan", "selene-a100-zero3"),
}
_REFITS = 2
_CALIBRATION_RUNS = 16
_WORTH = 0.5  # points of error that are printed bold


def family_of(cluster: str) -> str | None:
    """The family of a cluster; None for one that stands alone."""
    for family, openings in FAMILIES.items():
        if cluster.startswith(openings):
            return family
    return None


def left_out(evidence: Evidence) -> dict[str, float]:
    """Mean absolute error in % of every cluster when its stack is fitted without it."""
    errors = {}
    general = stack_constants(None)
    for stack in sorted(set(evidence.stacks)):
        mine, shipped = evidence.of_stack(stack), stack_constants(stack)
        names = evidence.quantity.names
        centre = replace(shipped, **{name: getattr(general, name) for name in names})
        start = fitted(mine, centre, start=shipped, widths=evidence.quantity.widths, iterations=_REFITS)
        whole = linearised(mine, start)
        clusters = np.array([run.cluster for run in mine.runs])
        for cluster in sorted(set(clusters)):
            blind = without_runs(whole, clusters != cluster, centre)
            errors[str(cluster)] = _error_percent(mine.at(clusters == cluster), blind)
    return errors


def _error_percent(evidence: Evidence, constants: Constants) -> float:
    """Mean absolute error of some runs under given constants."""

    def profile_of(one: Observation) -> Profile:
        return replace(default_profile_of(one), constants=constants)

    names = evidence.quantity.names
    batches = batches_of(evidence.observations, profile_of)
    predicted = log_step_s(batches, names, np.zeros((1, len(names))))[0]
    return float(100.0 * np.abs(np.expm1(predicted - evidence.log_measured)).mean())


def calibrated(evidence: Evidence) -> dict[str, float]:
    """Mean absolute error in % of every cluster, left out and then calibrated."""
    profile_of = blind_profile_of(evidence, cluster_of)
    report = validate(evidence.runs, calibrate=_CALIBRATION_RUNS, profile_of=profile_of)
    return {name: f.time.mean_absolute for name, f in report.clusters.items() if f.time is not None}


def by_family(errors: Mapping[str, float]) -> dict[str, float]:
    """Mean over the clusters of each family, and over all clusters."""
    groups: dict[str, list[float]] = defaultdict(list)
    for cluster, error in errors.items():
        groups["all clusters"].append(error)
        family = family_of(cluster)
        if family is not None:
            groups[family].append(error)
    return {name: float(np.mean(values)) for name, values in groups.items()}


def _row(label: str, figures: Mapping[str, float], against: Mapping[str, float]) -> str:
    """One line; what an ingredient changes by more than half a point is bold."""
    cells = []
    for column in (*FAMILIES, "all clusters"):
        value, base = figures.get(column, np.nan), against.get(column, np.nan)
        shown = f"{value:.1f}"
        cells.append(f"**{shown}**" if value - base >= _WORTH else shown)
    return f"| {label} | {' | '.join(cells)} |"


def table(evidence: Evidence) -> list[str]:
    """The table as Markdown lines."""
    columns = (*FAMILIES, "all clusters")
    lines = [f"| removed | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1)]
    base: dict[str, float] = {}
    for ingredient in INGREDIENTS:
        with without(ingredient):
            figures = by_family(left_out(evidence))
        base = base or figures
        lines.append(_row(ingredient, figures, base))
        print(lines[-1], file=sys.stderr, flush=True)
    learnt = by_family(calibrated(evidence))
    lines.append(_row("nothing, calibrated on ≤ 16 runs", learnt, learnt))
    still = replace(TIME_PROCESS, amplitude=1e-4, freedom=1e-2)
    with patch("meshwright.solver.calibration.calibrate.TIME_PROCESS", still):
        lines.append(_row("residual process, calibrated", by_family(calibrated(evidence)), learnt))
    return lines


def written(document: str, lines: list[str]) -> str:
    """The document with the table between its markers.

    Raises:
        ValueError: it lacks a marker.
    """
    head, tail = document.index(OPEN) + len(OPEN), document.index(CLOSE)
    note = (
        "Mean absolute error in % of the step times of clusters left out of the fit; bold where an "
        f"ingredient buys {_WORTH} points or more. A number that falls when an ingredient goes marks a "
        "term that is wrong for some of those runs."
    )
    return document[:head] + "\n\n" + "\n".join([note, "", *lines]) + "\n\n" + document[tail:]


def main() -> None:
    """Measure and write."""
    started = time.perf_counter()
    lines = table(Evidence.of_times(read_runs(CATALOG_RUNS)))
    print("\n".join(lines))
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8"), lines), encoding="utf-8")
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
