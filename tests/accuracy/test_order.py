"""Calibration keeps the order of configurations: on open clusters, and of a framework unlike its stack.

``make accuracy`` holds every cluster to the same.
"""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fit.accuracy_order import lost, orders_of, regret_tables
from meshwright.profiles.calibration import UPPER_BOUNDS
from meshwright.profiles.profile import Profile
from meshwright.solver.accuracy import Report, spearman, validate
from meshwright.solver.calibration.calibrate import calibrate, default_profile_of
from meshwright.solver.calibration.choose import RunCandidates, measuring_order
from meshwright.solver.calibration.observations import Observation, ProfileOf, predictions_of
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs

MULTI, JEANZAY = "vtrain-a100-multi", "jeanzay-a100"
FAR_OFF = float(np.exp(2.5))
RUNS = 16


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {MULTI: [], JEANZAY: []}
    for run in read_runs(CATALOG_RUNS):
        if run.cluster in found and run.shape is not None and run.measured.step_time_s:
            found[run.cluster].append(run)
    return found


def test_the_page_tells_whose_plans_are_chosen_wrongly_and_which_cost_most(
    runs: dict[str, list[Run]],
) -> None:
    # two groups of a few runs; the first is measured backwards, so that its best is taken for its worst
    report = validate(runs[MULTI])
    groups = [[row for row in report.runs if row.run.rank_group == name] for name in
              sorted({row.run.rank_group for row in report.runs if row.run.rank_group})]  # fmt: skip
    some = [
        sorted(mine, key=lambda row: row.prediction.step_time_s if row.prediction else 0)[:4]
        for mine in groups
    ]
    told = [
        replace(row, run=replace(row.run, measured=replace(row.run.measured, step_time_s=seconds)))
        for mine, measured in zip(some, ((4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0)), strict=True)
        for row, seconds in zip(mine, measured, strict=True)
    ]
    lines = regret_tables(replace(report, runs=tuple(told)), [replace(report, runs=tuple(told))] * 3)
    # 300 % and 0 %; of two groups drawn with replacement the mean deviates by 150 / sqrt 2 = 106
    cells = [cell.strip() for cell in next(line for line in lines if MULTI in line).split("|")]
    assert cells[2] == "2"
    mean, deviation = (float(one) for one in cells[4].split(" ± "))
    assert mean == pytest.approx(150.0)
    assert deviation == pytest.approx(150 / np.sqrt(2), abs=5)
    worst = next(line for line in lines if str(groups[0][0].run.rank_group).replace("|", " ") in line)
    assert some[0][0].run.run_id in worst
    assert some[0][3].run.run_id in worst
    assert worst.endswith("| 300 | 150.00 |")


def test_calibrating_the_clusters_with_most_configurations_costs_neither_order_nor_regret(
    runs: dict[str, list[Run]],
) -> None:
    rows = [*runs[MULTI], *runs[JEANZAY]]
    orders = orders_of(validate(rows), validate(rows, calibrate=RUNS))
    assert {one.cluster for one in orders if one.groups} == {MULTI, JEANZAY}
    assert lost(orders) == []
    multi = next(one for one in orders if one.cluster == MULTI)
    assert multi.regrets is not None
    assert multi.regrets[1] <= 3.0


def planted(one: Observation, constant: str) -> Profile:
    """The stack's profile with one constant e^2.5 times what it is, up to its bound."""
    known = default_profile_of(one)
    value = min(FAR_OFF * getattr(known.constants, constant), UPPER_BOUNDS.get(constant, np.inf))
    return replace(known, constants=replace(known.constants, **{constant: value}))


def steps_s(observations: list[Observation], profile_of: ProfileOf) -> list[float]:
    return [prediction.step_time_s for prediction in predictions_of(observations, profile_of)]


@pytest.mark.parametrize("constant", ["floor_s", "elementwise"])
def test_sixteen_runs_order_a_cluster_whose_framework_has_one_constant_far_off(
    runs: dict[str, list[Run]], constant: str
) -> None:
    observed = [one for one in map(Observation.of, runs[JEANZAY]) if one is not None]
    # measured times as they are, times what the constant would do to them
    planted_s = steps_s(observed, lambda one: planted(one, constant))
    known_s = steps_s(observed, default_profile_of)
    unlike = [
        replace(one, step_time_s=(one.step_time_s or 1.0) * there_s / here_s)
        for one, there_s, here_s in zip(observed, planted_s, known_s, strict=True)
    ]
    order = list(measuring_order(RunCandidates.of(unlike, default_profile_of)))
    learnt = calibrate([unlike[i] for i in order[:RUNS]], cluster=JEANZAY)
    by_group: dict[str, list[int]] = {}
    for i in order[RUNS:]:
        by_group.setdefault(runs[JEANZAY][i].rank_group or "", []).append(i)
    large = [mine for name, mine in by_group.items() if name and len(mine) >= 5]
    assert large
    regrets, correlations = [], []
    for mine in large:
        told = steps_s([unlike[i] for i in mine], lambda one: learnt.applied(default_profile_of(one)))
        true = [unlike[i].step_time_s or 1.0 for i in mine]
        regrets.append(100.0 * (true[int(np.argmin(told))] / min(true) - 1.0))
        correlations.append(spearman(told, true) or 0.0)
    assert float(np.mean(regrets)) <= 5.0
    assert float(np.mean(correlations)) >= 0.6


@pytest.mark.parametrize("cluster", [MULTI, JEANZAY])
def test_one_run_takes_a_slowdown_of_a_whole_cluster_to_5_percent_and_keeps_the_order(
    runs: dict[str, list[Run]], cluster: str
) -> None:
    # every step takes 1.25 times as long as it did: ln 1.25 is more than clusters usually differ by
    some = runs[cluster][::2]
    slower = [
        replace(run, measured=replace(run.measured, step_time_s=1.25 * (run.measured.step_time_s or 1.0)))
        for run in some
    ]
    blind, learnt = validate(slower), validate(slower, calibrate=1)
    # what the cluster is off by of its own, without any slowdown, stays beside what is left of that
    assert abs(bias(learnt) - bias(validate(some, calibrate=1))) <= 0.05
    assert abs(bias(learnt)) <= 0.06
    assert abs(bias(learnt)) < abs(bias(blind)) / 3
    assert lost(orders_of(blind, learnt)) == []


def bias(report: Report) -> float:
    """The median of predicted over measured, less 1, of runs that no calibration used."""
    return float(np.median([
        row.prediction.step_time_s / row.run.measured.step_time_s - 1.0
        for row in report.runs
        if row.prediction and row.run.measured.step_time_s and not row.used_for_calibration
    ]))  # fmt: skip
