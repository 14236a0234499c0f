from statistics import NormalDist

import pytest

from benchmarks.fit.accuracy_spread import (
    coverage,
    errors_by,
    interval_reliability,
    memory_reliability,
    memory_risks,
)
from meshwright.solver.accuracy import Scored

# 99 runs at the percentiles of a normal distribution with sigma 0.1 of the log
QUANTILES = [NormalDist().inv_cdf(i / 100.0) for i in range(1, 100)]
BAND = 1.2815515655


def a_run(**changes: object) -> Scored:
    values: dict[str, object] = {
        "cluster": "here", "source": "table", "rank_group": None, "memory_kind": "unknown",
        "measured_s": 1.0, "predicted_s": 1.0, "low_s": 0.9, "high_s": 1.0 / 0.9, "measured_bytes": None,
        "predicted_bytes": 1.0, "out_of_memory": None, "out_of_memory_probability": 0.0,
    }  # fmt: skip
    return Scored(**(values | changes))  # type: ignore[arg-type]


def off_by(z: float, **changes: object) -> Scored:
    """A run ``z`` sigmas of 0.1 from its prediction."""
    band = 2.718281828 ** (BAND * 0.1)
    return a_run(measured_s=2.718281828 ** (0.1 * z), low_s=1.0 / band, high_s=band, **changes)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_intervals_of_the_right_width_hold_what_they_promise(level: float) -> None:
    assert coverage([off_by(z) for z in QUANTILES], level) == pytest.approx(level, abs=0.02)


def test_a_large_cluster_counts_as_sixty_runs() -> None:
    # 600 runs outside weigh 60, 20 others inside weigh 20
    large = [off_by(3.0, cluster="large")] * 600
    assert coverage([*large, *[off_by(0.0)] * 20]) == pytest.approx(20 / 80)


def test_reliability_is_shown_for_every_run_and_for_capped_clusters() -> None:
    lines = interval_reliability({"blind": [off_by(3.0, cluster="large")] * 600 + [off_by(0.0)] * 200})
    assert [cells(line)[2] for line in lines[2:-1]] == ["25%", "50%"]


def test_groups_show_their_runs_error_bias_and_coverage() -> None:
    slow = [off_by(0.0), a_run(measured_s=0.5), a_run(measured_s=0.8)]  # errors 0, +100 and +25 %
    lines = errors_by("stack", {"one way": {"a": slow, "b": [a_run(measured_s=None)]}})
    assert cells(lines[2]) == ["a", "3", "41.7", "+25.0", "33%"]
    assert cells(lines[3]) == ["b", "0", "–", "–", "–"]


def test_only_sources_that_tell_of_failures_say_how_likely_they_are() -> None:
    runs = [
        a_run(out_of_memory=True, out_of_memory_probability=1.0),
        a_run(out_of_memory=False, out_of_memory_probability=0.3),
        a_run(out_of_memory=False, out_of_memory_probability=0.3, source="only what ran"),
    ]
    bins = {(low, high): len(mine) for low, high, mine in memory_risks(runs)}
    assert bins == {(0.0, 0.01): 0, (0.01, 0.1): 0, (0.1, 0.5): 1, (0.5, 0.9): 0, (0.9, 1.0): 1}
    lines = memory_reliability({"way": runs})
    assert [cells(line) for line in lines[2:-1]] == [
        ["way", "10% – 50%", "1", "0.3", "0"],
        ["way", "90% – 100%", "1", "1.0", "1"],
    ]
