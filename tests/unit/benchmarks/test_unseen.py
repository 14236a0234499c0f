"""Figures of unseen clusters: what is left out together, and one vote for each cluster."""

import csv
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from benchmarks.first_sight import frozen, write
from benchmarks.fit.accuracy_tables import scored
from benchmarks.fit.accuracy_unseen import (
    Judged,
    at_level,
    first_sight,
    is_functional_test,
    memory_by_cluster,
    order_by_cluster,
    risk_rules,
    scored_freezes,
    sight_at_todays_width,
    split_table,
    vote_of,
)
from benchmarks.fit.accuracy_unseen import judged as judged_runs
from benchmarks.fit.evidence import TIME, Evidence
from benchmarks.fit.leave_out import blind_constants, family_of, stranger_of
from benchmarks.fit.spreads import spread_between
from meshwright.solver.accuracy import validate
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs
from tests.catalog import catalog_runs


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return list(catalog_runs())


def of_cluster(runs: list[Run], cluster: str) -> list[Run]:
    return [run for run in runs if run.cluster == cluster and run.shape and run.measured.step_time_s]


def judged(run: Run, predicted_s: float, band: float = 1.1) -> Judged:
    """A run that took one second, predicted with an 80 % interval of that factor."""
    return Judged(
        run=run,
        measured_s=1.0,
        predicted_s=predicted_s,
        low_s=predicted_s / band,
        high_s=predicted_s * band,
    )


def test_a_large_cluster_and_a_small_one_have_one_vote_each(runs: list[Run]) -> None:
    large, small = of_cluster(runs, "vtrain-a100-single")[:30], of_cluster(runs, "mlperf-gb300")[:1]
    rows = [*(judged(run, 1.1, band=1.2) for run in large), judged(small[0], 1.5)]
    vote = vote_of(rows)
    assert vote is not None
    assert vote.clusters == 2
    assert vote.error == pytest.approx((10.0 + 50.0) / 2)
    assert vote.inside == pytest.approx((1.0 + 0.0) / 2)
    assert vote.width == pytest.approx((20.0 + 10.0) / 2)


def test_the_table_of_splits_has_the_votes_of_each_kind_of_run(runs: list[Run]) -> None:
    dense, experts = of_cluster(runs, "vtrain-a100-single")[0], of_cluster(runs, "bridge-gb200-25.09")
    spread = next(run for run in experts if run.shape and run.shape.configuration.expert_parallel_size > 8)
    lines = split_table({"way": [judged(dense, 1.05), judged(spread, 1.3)]})
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    # way, clusters, all, dense, experts, ep > 8, without functional tests
    assert cells[:7] == ["way", "2", "17.5 (2)", "5.0 (1)", "30.0 (1)", "30.0 (1)", "17.5 (2)"]
    assert cells[7:9] == ["50%", "10"]


def test_first_sight_is_as_wide_today_as_clusters_differ_in_common(runs: list[Run]) -> None:
    then = next(row for row in first_sight(runs) if row.run.run_id == "BRDG-0075")
    now = next(row for row in sight_at_todays_width(runs) if row.run.run_id == "BRDG-0075")
    assert then.run.shape is not None
    assert then.run.shape.problem.model.moe is None
    assert now.predicted_s == then.predicted_s == 7.66944
    # ln(8.29307 / 7.66944) / 1.2816 = .0610 then; with .1 of dense clusters sqrt(.0610^2 + .1^2) = .1171
    assert then.high_s == 8.29307
    assert now.high_s / now.predicted_s == pytest.approx(exp(1.28155 * 0.1171), rel=1e-3)
    assert now.high_s / now.predicted_s == pytest.approx(now.predicted_s / now.low_s)


def test_a_wider_interval_holds_what_the_80_percent_interval_does_not(runs: list[Run]) -> None:
    # 1.1 at 80 % is 1.1 ^ (1.6449 / 1.2816) = 1.130 at 90 %
    row = judged(of_cluster(runs, "mlperf-gb300")[0], 1 / 1.12)
    assert not row.inside
    assert not at_level(row, 0.8)
    assert at_level(row, 0.9)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("llama3.1-405b", "llama"), ("nanotron-llama-3B", "llama"), ("gpt-oss-120b", "gpt-oss"),
        ("gpt3-175b", "gpt"), ("bloom-176b", "gpt"), ("kimi-k2", "deepseek"), ("mystery-7b", "mystery-7b"),
    ],
)  # fmt: skip
def test_models_of_every_size_and_version_are_one_family(name: str, family: str) -> None:
    assert family_of(name) == family


def test_the_release_of_nvidias_containers_is_their_month(runs: list[Run]) -> None:
    def releases(cluster: str) -> set[str]:
        return {run.shape.release for run in runs if run.shape and run.cluster == cluster}

    assert releases("bridge-gb300-26.02") == {
        "26.02",
        "26.04",
    }  # containers 26.02, 26.02.01, 26.04, 26.04.01
    assert releases("dgxc-h100-nemo-24.11") == {"24.11", "25.02"}
    assert releases("ultrascale-h100-efa") == {"nanotron"}


def test_nothing_that_shares_the_cluster_the_family_or_the_release_teaches_what_is_left_out(
    runs: list[Run],
) -> None:
    # two clusters of one release and others of the same family: of the GPT runs of one NeMo release only
    # runs of other clusters, families and releases may move the constants
    names = ("dgxc-h100-nemo-24.11", "nemo-h100-24.05", "bridge-h100-25.09", "mlperf-mi300x")
    some = [run for name in names for run in of_cluster(runs, name)[::4]]
    evidence = Evidence.of_times(some)
    one = next(o for o in evidence.observations if o.problem.cluster.name == "dgxc-h100-nemo-24.11")
    key = stranger_of(one)
    slower = [
        replace(run, measured=replace(run.measured, step_time_s=2.0 * (run.measured.step_time_s or 0.0)))
        if any(mine == own for mine, own in zip(stranger_of(of(run)), key, strict=True))
        else run
        for run in some
    ]
    assert 0 < sum(a is b for a, b in zip(some, slower, strict=True)) < len(some)
    found = [blind_constants(Evidence.of_times(table), stranger_of)["megatron-core", key].constants
             for table in (some, slower)]  # fmt: skip
    for name in TIME.names:
        assert getattr(found[0], name) == pytest.approx(getattr(found[1], name), rel=1e-9)


def of(run: Run) -> Observation:
    one = Observation.of(run)
    assert one is not None
    return one


def test_first_sight_keeps_what_was_predicted_of_runs_of_five_clusters(runs: list[Run]) -> None:
    rows = first_sight(runs)
    assert len(rows) == 96
    vote = vote_of(rows)
    assert vote is not None
    assert vote.clusters == 5
    assert vote.error == pytest.approx(20.9, abs=0.1)


def test_the_spread_between_clusters_is_that_of_their_means() -> None:
    # ln s + 1.5 ln(1 + x^2 / 2 s^2), Student's t of 2 degrees of freedom, is least at s = x:
    # 1 / s = 3 x^2 / (s (2 s^2 + x^2)) where 2 s^2 + x^2 = 3 x^2
    sample = [(f"cluster {i}", 0.1 * (-1) ** i, 1e-4) for i in range(10)]
    assert spread_between([sample, sample]) == pytest.approx(0.1, rel=0.02)
    # runs that differ inside their clusters alone have nothing in common
    alone = [(f"cluster {i}", 0.1 * sign, 0.1) for i in range(10) for sign in (-1, 1)]
    assert spread_between([alone, alone]) < 0.01


def test_samples_of_unlike_size_have_equal_weight_in_the_spread_between_clusters() -> None:
    few = [("far", 0.4, 1e-4)]
    many = [(f"near {i}", 0.05, 1e-4) for i in range(40)]
    assert 0.05 < spread_between([few, many]) < 0.4
    assert spread_between([few, many]) == pytest.approx(spread_between([few * 3, many[:3]]), rel=0.01)


def some_of_the_catalog(folder: Path, cluster: str, **changed: str) -> Path:
    """Rows of one cluster as a table of their own, with other identities and cells."""
    with CATALOG_RUNS.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["cluster"] == cluster][:4]
    path = folder / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"run_id": f"new-{at}"} | changed for at, row in enumerate(rows))
    return path


def test_what_is_frozen_never_depends_on_what_was_measured(tmp_path: Path) -> None:
    told, other = (tmp_path / name for name in ("told", "other"))
    told.mkdir()
    other.mkdir()
    rows = frozen(some_of_the_catalog(told, "mlperf-gb300"), [])
    blind = some_of_the_catalog(other, "mlperf-gb300", step_time_s="77", tokens_per_s_per_gpu="")
    assert rows == frozen(blind, [])
    assert all(row["predicted_step_time_s"] for row in rows)


def test_a_run_is_seen_for_the_first_time_once(tmp_path: Path) -> None:
    table = some_of_the_catalog(tmp_path, "mlperf-gb300")
    with pytest.raises(SystemExit, match="run_id: seen before: new-0"):
        frozen(table, ["new-0"])
    rows = frozen(table, [])
    series = tmp_path / "series"
    series.mkdir()
    path = write(rows, "name", commit="abc", folder=series)
    with pytest.raises(SystemExit, match="first sight is not changed"):
        write(rows, "name", commit="abc", folder=series)
    (sight,) = scored_freezes(read_runs(table), series)
    assert sight.name == path.stem
    assert {one.commit for one in sight.frozen} == {"abc"}
    assert len(sight.frozen) == len(sight.judged) == len(rows)
    assert sight.judged[0].predicted_s == pytest.approx(float(rows[0]["predicted_step_time_s"]))


def test_tests_of_software_are_told_from_runs_that_train(runs: list[Run]) -> None:
    tests = {run.cluster for run in runs if is_functional_test(run)}
    # Megatron-LM's continuous integration by its folder's name, SimuMax's models by their four layers
    assert tests == {"megatron-ci-a100", "megatron-ci-gb200", "megatron-ci-h100", "simumax-b200"}


def test_a_rule_of_caution_is_judged_by_the_failures_and_the_runs_on_its_wrong_side(
    runs: list[Run],
) -> None:
    some = [run for run in runs if run.cluster in ("jeanzay-a100", "simumax-b200")]
    report = validate(some)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in risk_rules(report)[2:-1]]
    risks = [
        (bool(one.run.measured.out_of_memory), one.prediction.out_of_memory_probability)
        for one in report.runs
        if one.prediction and (one.run.measured.step_time_s or one.run.measured.out_of_memory)
    ]
    safe = sum(failed and risk <= 0.01 for failed, risk in risks)
    held = sum(not failed and risk > 0.01 for failed, risk in risks)
    failures = sum(failed for failed, _ in risks)
    assert lines[0][:3] == [
        "risk at most 1%", f"{safe} of {failures}", f"{held} of {len(risks) - failures}",
    ]  # fmt: skip
    assert [line[0] for line in lines[-3:]] == [f"peak at most {n}% of the card" for n in (85, 90, 95)]


def test_memory_and_order_have_a_line_for_each_cluster_with_one_vote(runs: list[Run]) -> None:
    report = validate([run for run in runs if run.cluster in ("simumax-b200", "jeanzay-a100")])
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in memory_by_cluster(scored(report))
    ]
    errors = [float(line[2]) for line in lines[2:4]]
    assert float(lines[4][2]) == pytest.approx(sum(errors) / 2, abs=0.1)
    first, average = order_by_cluster(judged_runs(report))[2:4]
    assert first.startswith("| jeanzay-a100 | 2 |")
    assert average.split("|")[-2] == first.split("|")[-2]  # one cluster is its own mean
