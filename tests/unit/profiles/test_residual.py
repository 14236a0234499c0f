from math import exp, sqrt

import numpy as np
import pytest

from meshwright.profiles.profile import MAX_LOG, Residual, squared_distances


def one_run(**changes: float) -> Residual:
    # one run at 0 that was exp(0.1) slow; amplitude 0.2, noise 0.1, no trend: k = 0.04, K = 0.04 + 0.01
    numbers = {"amplitude": 0.2, "length": 1.0, "trend_amplitude": 0.0, "trend_length": 1.0}
    numbers |= {"noise": 0.1, "scale": 1.0} | changes
    return Residual(points=((0.0,),), weights=(0.1 / 0.05,), precision=((1.0 / 0.05,),), **numbers)


def test_at_the_run_the_mean_is_shrunk_by_its_noise() -> None:
    # 0.04 / 0.05 * 0.1
    assert one_run().log_factor(np.zeros((1, 1))) == pytest.approx([0.08])


def test_one_length_away_the_mean_falls_by_the_root_of_e() -> None:
    assert one_run().log_factor(np.ones((1, 1))) == pytest.approx([0.08 * exp(-0.5)])


def test_the_spread_is_the_noise_and_what_the_run_leaves_open() -> None:
    # at the run 0.04 - 0.04^2 / 0.05 = 0.008, plus 0.01; far away 0.04 plus 0.01
    near, far = one_run().sigma(np.array([[0.0], [50.0]]))
    assert near == pytest.approx(sqrt(0.018))
    assert far == pytest.approx(sqrt(0.05))


def test_scale_stretches_the_whole_spread() -> None:
    assert one_run(scale=2.0).sigma(np.zeros((1, 1))) == pytest.approx([2.0 * sqrt(0.018)])


def test_distances_are_those_of_every_pair() -> None:
    a, b = np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0]])
    assert squared_distances(a, b).tolist() == [[0.0], [25.0]]


def test_a_broken_process_moves_a_prediction_a_hundredfold_at_most() -> None:
    broken = Residual(
        points=((0.0,),), weights=(1e9,), precision=((-1e9,),), amplitude=1.0, length=1.0,
        trend_amplitude=0.0, trend_length=1.0, noise=1.0, scale=1.0,
    )  # fmt: skip
    here = np.zeros((1, 1))
    assert broken.log_factor(here) == broken.sigma(here) == MAX_LOG
    assert np.exp(MAX_LOG) == pytest.approx(100.0, rel=0.01)
