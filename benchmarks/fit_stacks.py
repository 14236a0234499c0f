"""Fits the constants of the software stacks on the open runs and writes them to stacks.yaml.

Two levels: all stacks together round the values in ``stacks.yaml`` (global), then each stack round
the global ones. Each level is a maximum-a-posteriori fit in log space: soft-L1 loss on
``ln(measured / predicted)`` with a noise of 4 %, the log-normal priors of
``solver/calibration/priors.py``, and every cluster's weight capped at 60 runs. Each constant is written
with its uncertainty, and marked where the runs do not identify it. The spreads of
uncalibrated predictions (``log_time_sigma``, ``log_memory_sigma``) are those of the clusters that are
left out of the fit one at a time, never those of the fit itself.

    .venv/bin/python benchmarks/fit_stacks.py              # both levels
    .venv/bin/python benchmarks/fit_stacks.py STACK …      # these stacks, round the global level there
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from profiles.levels import STACKS_FILE, LevelConstant, forget_levels
from profiles.profile import Constants, stack_constants
from solver.accuracy import validate
from solver.calibration.batches import ProfileOf
from solver.calibration.leftover import forget_spreads
from solver.runs import CATALOG_RUNS, Run, read_runs
from solver.stacks.evidence import (
    CLUSTER_WEIGHT,
    MEMORY,
    TIME,
    Evidence,
    Linear,
    fitted,
    linearised,
    teaches,
)
from solver.stacks.leave_out import blind_profile_of, cluster_of, left_out_log_errors, sigma_of
from solver.stacks.uncertainty import level_constants

SPREADS = CATALOG_RUNS.parent.parent / "calibration" / "spreads.yaml"
_MIN_RUNS = 40  # with fewer, a stack keeps its memory constants and takes the spread of all stacks


def _entry(constant: LevelConstant) -> dict[str, Any]:
    """A constant as the file holds it."""
    entry = asdict(constant)
    if constant.identified:
        del entry["identified"]
    return entry


def _own(found: Mapping[str, LevelConstant], general: Constants) -> dict[str, dict[str, Any]]:
    """What a stack has of its own: what its runs identify, or moved by more than a hundredth."""

    def moved(name: str) -> bool:
        base = getattr(general, name)
        return bool(abs(found[name].value - base) > abs(base) / 100)

    return {name: _entry(one) for name, one in found.items() if one.identified or moved(name)}


def _mean_error(linear: Linear) -> float:
    """Mean absolute relative error."""
    return float(np.abs(np.expm1(-linear.left)).mean())


def _header(path: Path) -> str:
    """The comment that opens the file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))


def fit_levels(wanted: list[str], evidence: Evidence) -> None:
    """Fit both levels of one quantity (or only the wanted stacks) and write them to the catalog."""
    quantity, names = evidence.quantity, evidence.quantity.names
    levels = yaml.safe_load(STACKS_FILE.read_text(encoding="utf-8"))
    general = stack_constants(None)
    if quantity.global_widths and not wanted:
        shared, widths = evidence.shared, quantity.global_widths
        before = linearised(shared, general)
        general = fitted(shared, general, start=general, widths=widths)
        after = linearised(shared, general)
        print(f"global: {_mean_error(before):.1%} -> {_mean_error(after):.1%}")
        found = level_constants(general, after, widths)
        levels["global"]["constants"] |= {name: _entry(one) for name, one in found.items()}
    for stack in sorted(set(evidence.stacks)):
        mine = evidence.of_stack(stack)
        few = quantity is MEMORY and len(mine.runs) < _MIN_RUNS
        if few or (wanted and stack not in wanted):
            continue
        level = levels["stacks"].setdefault(stack, {"constants": {}})
        kept = {name: entry for name, entry in level["constants"].items() if name not in names}
        level["constants"] = kept | _fitted_stack(stack, mine, general)
        if quantity is TIME:
            level["fitted_on"] = f"{len(mine.runs)} open runs"
    _write(levels)


def _fitted_stack(stack: str, mine: Evidence, general: Constants) -> dict[str, dict[str, Any]]:
    """One stack's own constants, fitted round the global ones."""
    quantity, shipped = mine.quantity, stack_constants(stack)
    centre = replace(shipped, **{name: getattr(general, name) for name in quantity.names})
    found = fitted(mine, centre, start=shipped, widths=quantity.widths)
    after = linearised(mine, found)
    print(f"{stack}: {len(mine.runs)} runs, {_mean_error(after):.1%}", flush=True)
    return _own(level_constants(found, after, quantity.widths), general)


def _write(levels: dict[str, Any]) -> None:
    """Write the file back under its header."""
    text = yaml.safe_dump(levels, sort_keys=False, width=200, default_flow_style=None)
    STACKS_FILE.write_text(_header(STACKS_FILE) + text, encoding="utf-8")
    forget_levels()
    stack_constants.cache_clear()


def fit_spreads() -> None:
    """Set both spreads of every level from what is left out."""
    runs = read_runs(CATALOG_RUNS)
    levels = yaml.safe_load(STACKS_FILE.read_text(encoding="utf-8"))
    for name, evidence in (
        ("log_time_sigma", Evidence.of_times(runs)),
        ("log_memory_sigma", Evidence.of_peaks(runs)),
    ):
        errors = left_out_log_errors(evidence)
        levels["global"][name] = float(f"{sigma_of(errors):.2g}")
        for stack in levels["stacks"]:
            mine = [error for error in errors if error.stack == stack]
            if len(mine) >= _MIN_RUNS:
                levels["stacks"][stack][name] = float(f"{sigma_of(mine):.2g}")
            else:
                levels["stacks"][stack].pop(name, None)
    _write(levels)


def _coverage(runs: Sequence[Run], profile_of: ProfileOf) -> float:
    """Share of left-out runs inside the 80 % interval, a cluster counting as 60 runs at most."""
    inside, weights = [], []
    for count in (4, 16):
        for figures in validate(runs, calibrate=count, profile_of=profile_of).clusters.values():
            if figures.coverage is not None and figures.time is not None:
                inside.append(figures.coverage)
                weights.append(min(figures.time.n, CLUSTER_WEIGHT))
    return float(np.average(inside, weights=weights))


def fit_scale() -> None:
    """Choose the scale of calibrated spreads."""
    runs = [run for run in read_runs(CATALOG_RUNS) if teaches(run)]
    profile_of = blind_profile_of(Evidence.of_times(runs), cluster_of)
    spreads = yaml.safe_load(SPREADS.read_text(encoding="utf-8"))
    held = {}
    for scale in (1.0, 1.2, 1.4):
        for quantity in spreads.values():
            quantity["scale"] = scale
        SPREADS.write_text(_header(SPREADS) + yaml.safe_dump(spreads, sort_keys=False), encoding="utf-8")
        forget_spreads()
        held[scale] = _coverage(runs, profile_of)
        print(f"scale {scale}: {held[scale]:.1%} of left-out runs inside", flush=True)
    best = float(
        np.interp(0.8, sorted(held.values()), [s for s, _ in sorted(held.items(), key=lambda i: i[1])])
    )
    for quantity in spreads.values():
        quantity["scale"] = round(best, 2)
    SPREADS.write_text(_header(SPREADS) + yaml.safe_dump(spreads, sort_keys=False), encoding="utf-8")


def main() -> None:
    """Times, then memory, then the spreads of both."""
    runs = read_runs(CATALOG_RUNS)
    evidences = (Evidence.of_times(runs), Evidence.of_peaks(runs))
    parser = argparse.ArgumentParser(description="Fit the constants of the software stacks.")
    known = sorted({stack for evidence in evidences for stack in evidence.stacks})
    parser.add_argument("stack", nargs="*", choices=[*known, []], help="default: all, and the global level")
    wanted = list(parser.parse_args().stack)
    for evidence in evidences:
        fit_levels(wanted, evidence)
    fit_spreads()
    fit_scale()


if __name__ == "__main__":
    main()
