from math import exp, log

import numpy as np
import pytest

from profiles.profile import default_profile
from solver.calibrate import Choice, calibrated, measuring_order
from solver.columns import FloatArray
from tests.builders import a_cluster

PROFILE = default_profile(a_cluster(), "megatron-lm")


def test_runs_that_are_20_percent_slow_move_the_level_there() -> None:
    # many runs: no shrinkage left, and the spread falls
    after = calibrated(PROFILE, [log(1.2)] * 1000)
    assert after.time_factor == pytest.approx(1.2, rel=1e-3)
    assert after.log_time_sigma < PROFILE.log_time_sigma


def test_one_run_moves_the_level_less_than_all_the_way() -> None:
    # scatter 0, the prior of three runs at 6 %: s^2 = 3 / 4 * 0.06^2; e = 1.2533 s
    after = calibrated(PROFILE, [log(1.2)])
    error = 1.2533**2 * 0.75 * 0.06**2
    weight = PROFILE.log_time_sigma**2 / (PROFILE.log_time_sigma**2 + error)
    assert after.time_factor == pytest.approx(exp(weight * log(1.2)))


def test_scattered_runs_keep_the_spread_wide() -> None:
    after = calibrated(PROFILE, [-0.3, 0.3] * 20)
    assert after.log_time_sigma > 0.25


def test_no_run_changes_nothing() -> None:
    assert calibrated(PROFILE, []) == PROFILE


def points(*values: float) -> list[FloatArray]:
    return [np.array([value]) for value in values]


def test_the_first_suggestion_is_central_and_the_next_ones_far_apart() -> None:
    # mean 4.8: the point 5 first, then 10 (5 away; 0 is as far and comes first), then the other end
    order = measuring_order(points(0.0, 4.0, 5.0, 5.0, 10.0), 5)
    assert order[0] == 2
    assert set(order[1:3]) == {0, 4}


def test_few_suggestions_stay_central() -> None:
    order = measuring_order(points(0.0, 4.0, 5.0, 6.0, 10.0), 2)
    assert set(order[:3]) == {1, 2, 3}


def test_every_run_is_suggested_once() -> None:
    choices: tuple[Choice, ...] = ("suggested", "random")
    for choose in choices:
        order = measuring_order(points(*range(20)), 16, choose=choose, seed=3)
        assert sorted(order) == list(range(20))


def test_the_random_order_follows_the_seed() -> None:
    many = points(*range(50))
    first = measuring_order(many, 5, choose="random", seed=1)
    assert first == measuring_order(many, 5, choose="random", seed=1)
    assert first != measuring_order(many, 5, choose="random", seed=2)
