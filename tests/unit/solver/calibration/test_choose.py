import numpy as np

from solver.calibration.choose import Choice, measuring_order
from solver.columns import FloatArray


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


def test_what_was_measured_is_not_suggested_again_and_what_is_far_from_it_comes_first() -> None:
    order = measuring_order(points(0.0, 1.0, 5.0, 9.0), 8, measured=[0])
    assert order == [3, 2, 1]


def test_nothing_is_left_to_suggest_when_all_is_measured() -> None:
    assert measuring_order(points(0.0, 1.0), 2, measured=[1, 0]) == []
    assert measuring_order([], 2) == []
