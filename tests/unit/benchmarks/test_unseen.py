"""Figures of unseen clusters: what is left out together, and one vote for each cluster."""

from dataclasses import replace

import pytest

from benchmarks.fit.accuracy_unseen import (
    FIRST_SIGHT_FILE,
    Judged,
    at_level,
    first_sight,
    split_table,
    vote_of,
)
from benchmarks.fit.evidence import TIME, Evidence
from benchmarks.fit.leave_out import blind_constants, family_of, stranger_of
from benchmarks.fit.spreads import spread_between
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return list(read_runs(CATALOG_RUNS))


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
    # way, clusters, all, dense, experts, ep > 8, without tiny models
    assert cells[:7] == ["way", "2", "17.5 (2)", "5.0 (1)", "30.0 (1)", "30.0 (1)", "17.5 (2)"]
    assert cells[7:9] == ["50%", "10"]


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
    assert len(rows) == len(FIRST_SIGHT_FILE.read_text().splitlines()) - 1 == 96
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
