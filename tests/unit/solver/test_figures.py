import pytest

from meshwright.solver.accuracy import Scored, auc, error_figures, figures_of, spearman


def scored(measured_s: float, predicted_s: float, **changes: object) -> Scored:
    values: dict[str, object] = {
        "cluster": "c", "source": "s", "rank_group": "g", "memory_kind": "allocated",
        "measured_s": measured_s, "predicted_s": predicted_s, "low_s": 0.9 * predicted_s,
        "high_s": 1.1 * predicted_s, "measured_bytes": None, "predicted_bytes": 1.0,
        "out_of_memory": False, "out_of_memory_probability": 0.0,
    }  # fmt: skip
    return Scored(**(values | changes))  # type: ignore[arg-type]


def test_errors_are_relative_to_the_measurement() -> None:
    # +10 %, -20 %, 0 %
    figures = error_figures([11.0, 8.0, 5.0], [10.0, 10.0, 5.0])
    assert figures is not None
    assert figures.mean_absolute == pytest.approx(10.0)
    assert figures.median_absolute == pytest.approx(10.0)
    assert figures.max_absolute == pytest.approx(20.0)
    assert figures.bias == pytest.approx(0.0)


def test_no_runs_have_no_errors() -> None:
    assert error_figures([], []) is None


def test_ranks_agree_disagree_or_do_not_vary() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1.0)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_auc_counts_pairs_in_the_right_order() -> None:
    # failed: 0.9, 0.4; ran: 0.5, 0.1 -> three of four pairs
    assert auc([0.9, 0.4, 0.5, 0.1], [True, True, False, False]) == pytest.approx(0.75)
    assert auc([0.5, 0.5], [True, False]) == pytest.approx(0.5)
    assert auc([0.5], [True]) is None


def test_coverage_counts_measurements_inside_the_interval() -> None:
    figures = figures_of([scored(1.0, 1.05), scored(1.0, 1.5)])
    assert figures.coverage == 0.5


def test_the_regret_is_what_the_predicted_best_loses() -> None:
    # predicted best measures 12, the true best 10: 20 %
    figures = figures_of([scored(12.0, 1.0), scored(10.0, 2.0), scored(15.0, 3.0)])
    assert figures.ranking is not None
    assert figures.ranking.top1_regret == pytest.approx(20.0)
    assert figures.ranking.spearman == pytest.approx(0.5)


def test_failed_runs_that_were_called_feasible_are_counted_at_both_limits() -> None:
    runs = [
        scored(1.0, 1.0, out_of_memory=True, out_of_memory_probability=0.9),
        scored(1.0, 1.0, out_of_memory=True, out_of_memory_probability=0.2),
        scored(1.0, 1.0, out_of_memory=True, out_of_memory_probability=0.001),
        scored(1.0, 1.0, out_of_memory_probability=0.3),
    ]
    figures = figures_of(runs).out_of_memory
    assert figures is not None
    assert figures.false_feasible == pytest.approx(2 / 3)
    assert figures.false_feasible_at_1_percent == pytest.approx(1 / 3)
    assert figures.accuracy == pytest.approx(2 / 4)


def test_memory_errors_are_kept_apart_by_kind() -> None:
    runs = [
        scored(1.0, 1.0, measured_bytes=10.0, predicted_bytes=11.0),
        scored(1.0, 1.0, measured_bytes=10.0, predicted_bytes=8.0, memory_kind="device"),
    ]
    memory = figures_of(runs).memory
    assert memory["allocated"].bias == pytest.approx(10.0)
    assert memory["device"].bias == pytest.approx(-20.0)
