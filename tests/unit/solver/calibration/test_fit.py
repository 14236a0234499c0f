from dataclasses import replace
from math import log

import numpy as np
import pytest

from meshwright.profiles.profile import EXPERTS_FEATURE, FP8_FEATURE, default_profile
from meshwright.solver.calibration.fit import Box, Fit, Runs, fit, least_in_box, left_over
from meshwright.solver.calibration.priors import TIME_PROCESS
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.residuals import NUM_FEATURES
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


FAR = 100.0  # features: nothing is alike


def some_runs(measured: list[float], noises: list[float], features: FloatArray | None = None) -> Runs:
    """Runs far from each other, of a cluster that is usually off by .2."""
    places = FAR * np.arange(len(measured))[:, None]
    return Runs(
        measured=np.array(measured),
        features=np.asarray(places if features is None else features, dtype=np.float64),
        noises=np.array(noises),
        roughness=np.ones(len(measured)),
        shared=(0.2, 0.2),
    )


def fitted(runs: Runs, *, width: float = 0.3) -> Fit:
    """The posterior where one constant moves all runs alike, by its logarithm."""
    return fit(
        lambda offsets: np.repeat(offsets, len(runs.measured), axis=1),
        runs,
        widths={"gemm": width},
        box=box([-9.0], [9.0]),
        prior=TIME_PROCESS,
    )


def passed_on(found: Fit, place: float = -FAR) -> float:
    """What a configuration is told, log: constants, factor and residual."""
    residual = left_over(found, "time").residual
    return float(found.offsets[0] + residual.log_factor(np.array([[place]]))[0])


@pytest.fixture
def normal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors and noise that follow the normal distribution, and amplitudes as they are expected."""
    monkeypatch.setattr("meshwright.solver.calibration.fit.FACTOR_TAILS", 1e12)
    monkeypatch.setattr("meshwright.solver.calibration.fit._TAILS", 1e12)
    monkeypatch.setattr("meshwright.solver.calibration.fit._MULTIPLES", (1.0,))


@pytest.mark.usefixtures("normal")
def test_one_run_tells_the_level_alone_so_that_the_order_stays() -> None:
    # .3 of a run: factor .2^2 = .04, noise .1^2 = .01; the run itself is told no more than the others
    found = fitted(some_runs([0.3], [0.1]), width=0.4)
    assert found.offsets[0] == pytest.approx(0.0, abs=1e-5)
    assert passed_on(found) == pytest.approx(0.3 * 0.04 / 0.05, rel=1e-4)
    assert passed_on(found, place=0.0) == pytest.approx(0.3 * 0.04 / 0.05, rel=1e-4)


@pytest.mark.usefixtures("normal")
def test_two_runs_are_split_between_the_parts_by_their_variances() -> None:
    # half of the variances of constant, (.5 * .4)^2 / 2 = .02, and residual, .1^2 / 2 = .005; factor .04,
    # noise .01: the mean of two runs varies by .02 + .04 in common and by (.005 + .01) / 2 alone
    found = fitted(some_runs([0.3, 0.3], [0.1, 0.1]), width=0.4)
    assert found.offsets[0] == pytest.approx(0.3 * 0.02 / 0.0675)
    assert found.factors[0] == pytest.approx(0.3 * 0.04 / 0.0675)
    assert passed_on(found) == pytest.approx(0.3 * 0.06 / 0.0675)
    assert passed_on(found, place=0.0) == pytest.approx(0.3 * (0.06 + 0.005 / 2) / 0.0675)


@pytest.mark.usefixtures("normal")
def test_the_band_is_what_the_run_leaves_of_the_parts() -> None:
    # the same variances: of .09 the run itself leaves .09 - .09^2 / .1, and its noise comes back
    residual = left_over(fitted(some_runs([0.3], [0.1]), width=0.4), "time").residual
    scale2 = residual.scale**2
    sigma = residual.sigma(np.array([[0.0]]))
    assert sigma**2 / scale2 == pytest.approx(0.09 - 0.09**2 / 0.1 + 0.1**2)
    # beyond the reach of the long kernel, which stands for the constants, the factor alone is known
    sigma = residual.sigma(np.array([[-FAR]]))
    assert sigma**2 / scale2 == pytest.approx(0.09 - 0.04**2 / 0.1 + 0.1**2)


@pytest.mark.usefixtures("normal")
def test_what_many_runs_have_in_common_is_told_in_full() -> None:
    # without a constant: 20 runs of variance .01 * 19 / 20 + .01 each about a factor of .04
    found = fitted(some_runs([0.3] * 20, [0.1] * 20), width=1e-6)
    assert passed_on(found) == pytest.approx(0.3 * 0.04 / (0.04 + 0.0195 / 20))


def test_a_run_that_is_far_off_passes_on_a_smaller_part_and_both_ways_alike() -> None:
    # normal distributions tell others .2^2 / (.2^2 + .1^2) = .8 of a run, and less of an odd one
    little, much = (passed_on(fitted(some_runs([off], [0.1]))) / off for off in (0.1, 0.8))
    assert little == pytest.approx(0.8, abs=0.05)
    assert much < little - 0.05
    assert passed_on(fitted(some_runs([-0.8], [0.1]))) == pytest.approx(-0.8 * much)


def test_runs_of_another_regime_share_what_they_have_in_common() -> None:
    # of a variance of .04 a quarter is common: 8 bits are told .01 / (.04 + .01) of a run in 16
    plain, eight = np.zeros((1, NUM_FEATURES)), np.zeros((1, NUM_FEATURES))
    eight[0, FP8_FEATURE] = 1.4
    runs = replace(some_runs([0.3], [0.1], features=plain), common=0.25)
    residual = left_over(fitted(runs), "time").residual
    assert residual.log_factor(eight)[0] == pytest.approx(residual.log_factor(plain)[0] / 4.0, rel=0.1)
    assert residual.sigma(eight)[0] > 1.2 * residual.sigma(plain)[0]


def test_runs_that_have_nothing_in_common_tell_others_nothing() -> None:
    assert abs(passed_on(fitted(some_runs([0.3, -0.2, 0.1, -0.3, 0.25, -0.15] * 2, [0.1] * 12)))) < 0.02


def test_dense_runs_say_nothing_of_what_experts_have_in_common() -> None:
    dense, experts = np.zeros((1, NUM_FEATURES)), np.zeros((1, NUM_FEATURES))
    experts[0, EXPERTS_FEATURE] = FAR
    found = fitted(some_runs([0.3], [0.1], features=dense), width=1e-6)
    residual = left_over(found, "time").residual
    assert residual.log_factor(dense)[0] > 0.2
    assert residual.log_factor(experts)[0] == 0.0


def test_of_two_runs_that_contradict_each_other_the_noisier_moves_the_constant_less() -> None:
    def offset(noises: list[float]) -> float:
        return float(fitted(some_runs([0.2, -0.2], noises)).offsets[0])

    assert offset([0.05, 0.05]) == pytest.approx(0.0, abs=1e-6)
    assert offset([0.05, 0.3]) > 0.02
    assert offset([0.3, 0.05]) == pytest.approx(-offset([0.05, 0.3]))


def test_one_run_that_took_twice_as_long_moves_others_by_less_than_it_moves_a_mean() -> None:
    calm, wild = (
        passed_on(fitted(some_runs([*[0.1] * 11, last], [0.05] * 12))) for last in (0.1, 0.1 + log(2.0))
    )
    assert 0.0 < wild - calm < 0.9 * log(2.0) / 12


def test_runs_that_scatter_more_than_usual_are_taken_for_noisier() -> None:
    scattered = [0.4, -0.35, 0.3, -0.45, 0.38, -0.3]
    calm, rough = (fitted(some_runs(y, [0.1] * 6)) for y in ([0.01] * 6, scattered))
    noise = [left_over(one, "time").residual.noise for one in (calm, rough)]
    assert noise[0] < 0.1 < noise[1]
    assert left_over(rough, "time").residual.usual_noise == 0.1
