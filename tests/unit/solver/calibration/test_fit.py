import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.calibration.fit import Box, least_in_box
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
