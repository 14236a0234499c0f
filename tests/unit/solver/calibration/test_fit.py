import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.calibration.fit import (
    TIME_PROCESS,
    Box,
    fit,
    least_in_box,
    left_over,
    spread_of,
)
from tests.builders import a_cluster


def box(lower: list[float], upper: list[float]) -> Box:
    return Box(lower=np.array(lower), upper=np.array(upper))


def test_inside_the_box_it_is_the_plain_solution() -> None:
    normal, right = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    x = least_in_box(normal, right, box([-9.0, -9.0], [9.0, 9.0]))
    assert x == pytest.approx(np.linalg.solve(normal, right))


def test_what_would_leave_the_box_stays_on_its_edge_and_the_rest_is_solved_for_it() -> None:
    # plain: x = (0.2, 0.6); with x1 <= 0.4: 2 x0 = 1 - 0.4, x0 = 0.3
    normal, right = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    assert least_in_box(normal, right, box([-9.0, -9.0], [9.0, 0.4])) == pytest.approx([0.3, 0.4])


def test_offsets_may_reach_a_constant_s_bound_and_no_further() -> None:
    constants = default_profile(a_cluster(), "megatron-lm").constants
    limits = Box.of(constants, ["network", "gemm", "reserve"])
    assert constants.network * np.exp(limits.upper[0]) == pytest.approx(1.0)
    assert limits.upper[1] == np.inf
    assert constants.reserve * np.exp(limits.lower[2]) == pytest.approx(1.0)


def test_of_two_runs_that_contradict_each_other_the_noisier_moves_the_constant_less() -> None:
    # both hang on one constant alone; the first says +0.2, the second -0.2
    def fitted(roughness: list[float]) -> float:
        found = fit(
            lambda offsets: np.repeat(offsets, 2, axis=1),
            np.array([0.2, -0.2]),
            np.array([[0.0], [100.0]]),
            widths={"gemm": 0.3},
            box=box([-9.0], [9.0]),
            prior=TIME_PROCESS,
            roughness=np.array(roughness),
        )
        return float(found.offsets[0])

    assert fitted([1.0, 1.0]) == pytest.approx(0.0, abs=1e-6)
    assert fitted([1.0, 6.0]) > 0.02
    assert fitted([6.0, 1.0]) < -0.02


def told(measured: np.ndarray, quantity: str = "time") -> float:
    """What a configuration unlike all runs is told, log: runs far apart that one constant moves alike."""
    places = np.asarray(100.0 * np.arange(len(measured))[:, None], dtype=np.float64)
    found = fit(
        lambda offsets: np.repeat(offsets, len(measured), axis=1),
        measured,
        places,
        widths={"gemm": 0.3},
        box=box([-9.0], [9.0]),
        prior=TIME_PROCESS,
        roughness=np.ones(len(measured)),
    )
    left = left_over(found, places, measured, spread_of(quantity, 0.1), np.full(len(measured), 0.03))
    return float(left.believed * found.offsets[0] + left.residual.log_factor(np.array([[-100.0]]))[0])


def test_a_correction_is_believed_as_far_as_it_predicts_the_runs_that_it_has_not_seen() -> None:
    # ten runs take .3 longer and .03 on average of their own; then those of their own alone
    own = np.array([0.3, -0.2, 0.1, -0.3, 0.25] * 2)
    assert told(0.3 + 0.1 * own) == pytest.approx(0.303, abs=0.02)
    assert abs(told(own)) < 0.03


def test_one_run_passes_its_time_on_as_a_factor_and_more_memory_at_once() -> None:
    # .3 of a run that is off by .03 of its own is a factor of clusters that differ by .1: of .3 one keeps
    # .1² / (.1² + .03²) = .92 and more, for Student's t holds less of what is far off; of the correction
    # by the constant, which explains some of it, .1 is believed
    assert 0.21 < told(np.array([0.3])) < 0.29
    assert told(np.array([-0.3])) == pytest.approx(-told(np.array([0.3])))
    # of memory half of what the constant explains, and where it is more a level next to it: .3 of runs
    # that vary by .1² + .05² = .0125 about it, held to zero by .1² and Student's t
    half = -told(np.array([-0.3]), "memory")
    assert 0.05 < half < 0.15
    assert half + 0.05 < told(np.array([0.3]), "memory") < 0.3
