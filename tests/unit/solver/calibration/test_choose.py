from dataclasses import replace
from itertools import islice

import numpy as np

from meshwright.profiles.profile import EXPERTS_FEATURE, FP8_FEATURE, shared_kernel
from meshwright.solver.calibration.choose import (
    RunCandidates,
    measuring_order,
    random_order,
)
from meshwright.solver.calibration.priors import kinds_of, spreads_of
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.uncertainty import shared_spreads


def points(*values: float) -> RunCandidates:
    features = np.array(values, dtype=np.float64)[:, None]
    return candidates(features, np.zeros((len(values), 1)))


def candidates(features: FloatArray, effects: FloatArray) -> RunCandidates:
    return RunCandidates(features=features, effects=effects, noises=np.full(len(features), 0.03))


def test_the_first_suggestion_is_the_one_that_tells_most_about_all() -> None:
    # far from each other but for 4, 5 and 6: 5 stands among them
    assert next(measuring_order(points(-20.0, 4.0, 5.0, 6.0, 30.0))) == 2


def test_a_twin_of_what_is_known_is_suggested_last() -> None:
    order = list(measuring_order(points(0.0, 0.0, 9.0, 18.0)))
    assert order[0] == 0
    assert order[-1] == 1


def test_a_run_that_noise_blurs_is_measured_twice_before_one_that_is_sure() -> None:
    # twins at 0 with noise 0.2 and at 90 with 0.03: once each, then the second look at what is blurred
    pairs = replace(points(0.0, 0.0, 90.0, 90.0), noises=np.array([0.2, 0.2, 0.03, 0.03]))
    order = list(measuring_order(pairs))
    assert set(order[:2]) == {0, 2}
    assert order[2:] == [1, 3]


def test_runs_that_depend_alike_on_the_same_constant_are_one_question() -> None:
    # all far apart as configurations; the first three hang on one constant, the fourth on another
    effects = np.array([[0.5, 0.0], [0.5, 0.0], [0.5, 0.0], [0.0, 0.5]])
    far = candidates(100.0 * np.arange(4.0)[:, None], effects)
    assert set(islice(measuring_order(far), 2)) == {0, 3}


def test_a_run_with_experts_and_one_without_tell_of_what_each_kind_shares() -> None:
    # all far apart, three of five with experts: their factor first, and a dense run before a second of them
    features = np.zeros((5, EXPERTS_FEATURE + 1))
    features[:, 0] = 100.0 * np.arange(5.0)
    features[2:, EXPERTS_FEATURE] = 1.0
    first = set(islice(measuring_order(candidates(features, np.zeros((5, 1)))), 2))
    assert len(first & {0, 1}) == 1
    assert len(first & {2, 3, 4}) == 1


def test_factors_of_runs_vary_together_as_the_kernel_says() -> None:
    features = np.zeros((6, EXPERTS_FEATURE + 1))
    features[3:, EXPERTS_FEATURE], features[[1, 4], FP8_FEATURE] = 1.0, 1.0
    effects = kinds_of(features) * spreads_of(features, *shared_spreads())
    expected = shared_kernel(features, features, *shared_spreads())
    np.testing.assert_allclose(effects @ effects.T, expected, atol=1e-12)


def test_every_run_is_suggested_once() -> None:
    assert sorted(measuring_order(points(*range(20)))) == list(range(20))
    assert sorted(random_order(20, seed=3)) == list(range(20))


def test_wanting_more_runs_does_not_change_the_first() -> None:
    many = points(*np.random.default_rng(0).normal(size=60))
    assert list(islice(measuring_order(many), 4)) == list(islice(measuring_order(many), 16))[:4]


def test_the_random_order_follows_the_seed() -> None:
    first = list(islice(random_order(50, seed=1), 5))
    assert first == list(islice(random_order(50, seed=1), 5))
    assert first != list(islice(random_order(50, seed=2), 5))


def test_what_was_measured_is_not_suggested_again_and_what_is_far_from_it_comes_first() -> None:
    order = list(measuring_order(points(0.0, 1.0, 5.0, 90.0), measured=[0, 0]))
    assert sorted(order) == [1, 2, 3]
    assert order[-1] == 1


def test_nothing_is_left_to_suggest_when_all_is_measured() -> None:
    assert list(measuring_order(points(0.0, 1.0), measured=[1, 0])) == []
    assert list(measuring_order(points())) == []


def test_among_more_runs_than_are_judged_every_one_can_be_suggested() -> None:
    # two runs in three hang on one constant, the rest on another: one of each kind
    effects = np.zeros((3000, 2))
    effects[:2000, 0], effects[2000:, 1] = 0.5, 0.5
    many = candidates(np.zeros((3000, 1)), effects)
    first, second = islice(measuring_order(many), 2)
    assert first < 2000 <= second
