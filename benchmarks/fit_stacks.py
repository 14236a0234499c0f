"""Fits the constants of the software stacks on the open runs and writes them to stacks.yaml.

Two levels: all stacks together round counted and usual values (``TIME_CENTRES``, global), then each
stack round the global ones. Each level is a maximum-a-posteriori fit in log space: soft-L1 loss on
``ln(measured / predicted)`` with a noise of 4 %, the log-normal priors of
``solver/calibration/fit.py``, and every cluster counting for at most a dozen runs. Each constant is
written with its uncertainty, and marked where the runs do not identify it. The spreads of
predictions (``log_time_sigma``, ``log_memory_sigma``, and ``spreads.yaml``) are those of the pairs of GPU
and framework (of memory: of the clusters) that are left out of the fit one at a time, and of stacks left
out whole, never those of the fit itself.

    .venv/bin/python -m benchmarks.fit_stacks              # both levels
    .venv/bin/python -m benchmarks.fit_stacks STACK …      # these stacks, round the global level there
    .venv/bin/python -m benchmarks.fit_stacks --spreads    # only how far predictions spread

``--check`` leaves both files as they are and fails where the command would write something else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.fit.accuracy_unseen import first_sight, has_experts, judged
from benchmarks.fit.evidence import CLUSTER_WEIGHT, MEMORY, TIME, TINY, Evidence, Linear, fitted, linearised
from benchmarks.fit.leave_out import (
    LAUNCH_FACTS,
    blind_profile_of,
    left_out_log_errors,
    pair_of,
    profile_of_unknown_stack,
    sigma_of,
    stranger_of,
)
from benchmarks.fit.spreads import (
    CAUSES,
    doubt_of_unidentified_experts,
    errors_of,
    fitted_causes,
    launch_noise_of,
    sigma_of_unknown_stack,
    spread_between,
    stack_sigmas,
    together,
)
from benchmarks.fit.uncertainty import level_constants
from meshwright.profiles.catalog import catalog_file
from meshwright.profiles.profile import (
    STACKS_FILE,
    Constants,
    LevelConstant,
    stack_constants,
    stack_names,
    unidentified_constants,
)
from meshwright.solver.accuracy import validate
from meshwright.solver.calibration.observations import ProfileOf
from meshwright.solver.cost.uncertainty import SPREADS_FILE
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs

CALIBRATION_RUNS = (4, 16)  # at which the scale of calibrated spreads is judged
SCALES = (0.6, 0.9)
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
        shared, widths = evidence, quantity.global_widths
        before = linearised(shared, general)
        centre = replace(general, **quantity.centres)
        general = fitted(shared, centre, start=general, widths=widths)
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
    """Write the file back under its header, what a level says of itself before its constants."""
    every = [levels["global"], *levels["stacks"].values()]
    for level in every:
        level["constants"] = level.pop("constants")
    text = yaml.safe_dump(levels, sort_keys=False, width=200, default_flow_style=None)
    STACKS_FILE.write_text(_header(STACKS_FILE) + text, encoding="utf-8")
    catalog_file.cache_clear()
    unidentified_constants.cache_clear()
    stack_constants.cache_clear()


def fit_spreads() -> None:
    """Set the spreads of uncalibrated predictions from what is left out."""
    runs = read_runs(CATALOG_RUNS)
    levels = yaml.safe_load(STACKS_FILE.read_text(encoding="utf-8"))
    _spreads_of_times(runs, levels)
    _spreads_of_peaks(runs, levels)
    _write(levels)
    _spreads_between(runs)


def _spreads_of_times(runs: Sequence[Run], levels: dict[str, Any]) -> None:
    """What the stacks' own spreads are, and what else makes a step time doubtful."""
    evidence = Evidence.of_times(runs)
    left_out = blind_profile_of(evidence, pair_of, known=LAUNCH_FACTS, steps=1)
    errors = errors_of(validate(runs, profile_of=left_out).runs, left_out)
    foreign = profile_of_unknown_stack(evidence)
    strange = errors_of(validate(runs, profile_of=foreign).runs, foreign)
    general, added = fitted_causes(together(errors, strange))
    unknown = sigma_of_unknown_stack(strange, added)
    levels["global"]["log_time_sigma"] = _two_digits(unknown)
    for stack, sigma in stack_sigmas(errors, added, general=general, unknown=unknown).items():
        levels["stacks"][stack]["log_time_sigma"] = _two_digits(sigma)
    spreads = _read_spreads()
    spreads["uncalibrated"] = dict(zip(CAUSES, map(_two_digits, added), strict=True))
    experts = doubt_of_unidentified_experts(strange, added, unknown)
    spreads["uncalibrated"]["unidentified_experts"] = _two_digits(experts)
    noise, growth = launch_noise_of(runs)
    print(f"twins: noise {noise:.1%}, times 1 to {growth:.2g} with launches (as squares)", flush=True)
    spreads["time"]["launch_noise"] = float(f"{growth:.1g}")  # of 2 and 2.3 twins say the same to .1 nat
    _write_spreads(spreads)


def _spreads_between(runs: Sequence[Run]) -> None:
    """What all runs of a cluster err by in common, of dense models and of those with experts."""
    evidence, spreads = Evidence.of_times(runs), _read_spreads()
    known = spreads["between"]
    report = validate(runs, profile_of=blind_profile_of(evidence, stranger_of))
    samples = [[row for row in rows if _on_many(row.run)] for rows in (judged(report), first_sight(runs))]
    for kind, holds in (("dense", False), ("experts", True)):
        mine = [[row for row in rows if has_experts(row.run) is holds] for rows in samples]
        own = [
            [(row.run.cluster, row.log_error, row.sigma_without(added)) for row in rows]
            for rows, added in zip(
                mine, (known[kind], 0.0), strict=True
            )  # first sight: before there was any
        ]
        spreads["between"] = spreads["between"] | {kind: _two_digits(spread_between(own))}
    print(f"between clusters: {spreads['between']}", flush=True)
    _write_spreads(spreads)


def _on_many(run: Run) -> bool:
    """Whether a run has several GPUs: single ones have a spread of their own (``one_gpu``)."""
    return run.shape is not None and run.shape.problem.cluster.num_gpus > 1


def _spreads_of_peaks(runs: Sequence[Run], levels: dict[str, Any]) -> None:
    """The spread of each stack's peak memory; of stacks with few runs, that of all.

    Tiny models, little but weights and states, tell nothing of how far the peaks of usual ones lie.
    """
    left_out = left_out_log_errors(Evidence.of_peaks(runs))
    errors = [error for error in left_out if not error.cluster.startswith(TINY)]
    levels["global"]["log_memory_sigma"] = _two_digits(sigma_of(errors))
    for stack, level in levels["stacks"].items():
        mine = [error for error in errors if error.stack == stack]
        level.pop("log_memory_sigma", None)
        if len(mine) >= _MIN_RUNS:
            level["log_memory_sigma"] = _two_digits(sigma_of(mine))


def _two_digits(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.2g}")


def _read_spreads() -> dict[str, dict[str, float]]:
    """The file of spreads."""
    spreads: dict[str, dict[str, float]] = yaml.safe_load(SPREADS_FILE.read_text(encoding="utf-8"))
    return spreads


def _write_spreads(spreads: Mapping[str, Mapping[str, float]]) -> None:
    """Write the file of spreads back under its header."""
    text = yaml.safe_dump(dict(spreads), sort_keys=False, default_flow_style=None, width=100)
    SPREADS_FILE.write_text(_header(SPREADS_FILE) + text, encoding="utf-8")
    catalog_file.cache_clear()


def _coverage(runs: Sequence[Run], profile_of: ProfileOf) -> float:
    """Share of left-out runs inside the 80 % interval, a cluster counting as a dozen runs at most."""
    inside, weights = [], []
    for count in CALIBRATION_RUNS:
        for figures in validate(runs, calibrate=count, profile_of=profile_of).clusters.values():
            if figures.coverage is not None and figures.time is not None:
                inside.append(figures.coverage)
                weights.append(min(figures.time.n, CLUSTER_WEIGHT))
    return float(np.average(inside, weights=weights))


def fit_scale() -> None:
    """Choose the scale of calibrated spreads, between two that are tried."""
    runs = [run for run in read_runs(CATALOG_RUNS) if run.shape is not None]
    profile_of = blind_profile_of(Evidence.of_times(runs), pair_of, known=LAUNCH_FACTS, steps=1)
    held = {}
    for scale in SCALES:
        _set_scale(scale)
        held[scale] = _coverage(runs, profile_of)
        print(f"scale {scale}: {held[scale]:.1%} of left-out runs inside", flush=True)
    low, high = SCALES
    slope = (held[high] - held[low]) / (high - low)
    best = low + (0.8 - held[low]) / slope if slope > 0.0 else high
    _set_scale(_two_digits(float(np.clip(best, 0.5 * low, 1.5 * high))))


def _set_scale(scale: float) -> None:
    """Write one scale for times and memory."""
    spreads = _read_spreads()
    for quantity in ("time", "memory"):
        spreads[quantity]["scale"] = scale
    _write_spreads(spreads)


def main() -> None:
    """Times, then memory, then the spreads of both."""
    runs = read_runs(CATALOG_RUNS)
    parser = argparse.ArgumentParser(description="Fit the constants of the software stacks.")
    parser.add_argument("stack", nargs="*", choices=[*stack_names(), []], help="default: all, and global")
    parser.add_argument("--spreads", action="store_true", help="only the spreads; constants stay")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where files would change")
    asked = parser.parse_args()
    committed = {file: file.read_text(encoding="utf-8") for file in (STACKS_FILE, SPREADS_FILE)}
    changes: list[str] = []
    try:
        if not asked.spreads:
            fit_levels(asked.stack, Evidence.of_times(runs))
            fit_levels(asked.stack, Evidence.of_peaks(runs))
        fit_spreads()
        fit_scale()
    finally:  # also where someone interrupts it halfway
        if asked.check:
            changes = _put_back(committed)
    sys.exit("".join(changes) or None)


def _put_back(committed: Mapping[Path, str]) -> list[str]:
    """Write the files as they were; the lines in which what was fitted differs."""
    changes: list[str] = []
    for file, before in committed.items():
        after = file.read_text(encoding="utf-8")
        names = f"{file.name}, committed", f"{file.name}, fitted"
        changes += unified_diff(before.splitlines(True), after.splitlines(True), *names, n=0)
        file.write_text(before, encoding="utf-8")
    return changes


if __name__ == "__main__":
    main()
