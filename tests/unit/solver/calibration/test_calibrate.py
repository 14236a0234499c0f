import json
from dataclasses import replace
from math import log

import numpy as np
import pytest

from meshwright.profiles.calibration import Calibration, read_calibration
from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.gpus import gpu_from_mapping, gpu_to_mapping
from meshwright.profiles.profile import Profile
from meshwright.solver.accuracy import peak_as_measured
from meshwright.solver.answer import Prediction
from meshwright.solver.calibration.calibrate import calibrate, constants_at_bounds, default_profile_of
from meshwright.solver.calibration.observations import Observation, predictions_of
from meshwright.solver.calibration.priors import TIME_WIDTHS
from meshwright.solver.cost.residuals import features_of
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.catalog import catalog_runs

CLUSTER = "mosaic-a100-40gb-fsdp"
CHIP = {"name": "our-chip", "architecture": None, "sources": None}


def on_gpu(problem: Problem, gpu: GpuSpec) -> Problem:
    groups = tuple(replace(group, gpu=gpu) for group in problem.cluster.groups)
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


@pytest.fixture(scope="module")
def observations() -> list[Observation]:
    rows = [Observation.of(run) for run in catalog_runs() if run.cluster == CLUSTER]
    return [one for one in rows if one is not None and one.step_time_s]


def true_profile(one: Observation, **factors: float) -> Profile:
    profile = default_profile_of(one)
    changed = {name: getattr(profile.constants, name) * factor for name, factor in factors.items()}
    return replace(profile, constants=replace(profile.constants, **changed))


def as_if(observations: list[Observation], **factors: float) -> list[Observation]:
    """The runs as a cluster with other constants would have done them."""
    made = predictions_of(observations, lambda one: true_profile(one, **factors))
    return [replace(one, step_time_s=p.step_time_s) for one, p in zip(observations, made, strict=True)]


def predicted(calibration: Calibration | None, observations: list[Observation]) -> list[Prediction]:
    """What the stack's constants say of the runs, or those that were learnt."""
    if calibration is None:
        return predictions_of(observations, default_profile_of)
    return predictions_of(observations, lambda one: calibration.applied(default_profile_of(one)))


def log_errors(calibration: Calibration | None, observations: list[Observation]) -> list[float]:
    pairs = zip(predicted(calibration, observations), observations, strict=True)
    return [abs(log(p.step_time_s / (one.step_time_s or 1.0))) for p, one in pairs]


def memory_errors(calibration: Calibration | None, observations: list[Observation]) -> list[float]:
    errors = []
    for prediction, one in zip(predicted(calibration, observations), observations, strict=True):
        peak = peak_as_measured(prediction, one)
        errors.append(abs(log(peak / (one.peak_memory_bytes or 1.0))))
    return errors


def test_sixteen_runs_of_a_cluster_with_slow_gemms_and_network_predict_the_others(
    observations: list[Observation],
) -> None:
    # GEMMs at 0.8 and the network at 0.6 of the stack's: about 20 % slower than predicted
    runs, rest = (as_if(observations[first::5], gemm=0.8, network=0.6) for first in (0, 2))
    calibration = calibrate(runs, cluster="slow")
    assert np.mean(log_errors(None, rest)) > 0.12
    assert np.mean(log_errors(calibration, rest)) < 0.02


def test_runs_of_a_described_gpu_replace_the_shares_that_it_borrowed(
    observations: list[Observation],
) -> None:
    # the same runs on a chip with the figures of the A100 under another name, 20 % slower in products
    gpu = gpu_from_mapping({**gpu_to_mapping(observations[0].problem.cluster.groups[0].gpu), **CHIP})
    runs, rest = (
        [replace(one, problem=on_gpu(one.problem, gpu)) for one in as_if(observations[first::8], gemm=0.8)]
        for first in (0, 2)
    )
    calibration = calibrate(runs, cluster="described")
    before, after = default_profile_of(runs[1]), calibration.applied(default_profile_of(runs[1]))
    assert (before.borrowed, after.borrowed) == (True, False)
    assert any("no measurements of" in words for words in before.warnings)
    assert not any("no measurements of" in words for words in after.warnings)
    widths = [
        [log(one.step_time_high_s / one.step_time_low_s) for one in predicted(learnt, rest)]
        for learnt in (None, calibration)
    ]
    assert max(widths[1]) < 0.5 * min(widths[0])
    assert np.mean(log_errors(calibration, rest)) < 0.02


def test_no_surprise_changes_next_to_nothing(observations: list[Observation]) -> None:
    calibration = calibrate(as_if(observations[:8]), cluster="as expected")
    assert max(abs(offset) for offset in calibration.log_offsets.values()) < 0.01
    assert calibration.findings == ()


def test_what_the_runs_tell_of_a_constant_narrows_it_and_what_they_do_not_stays_as_it_was(
    observations: list[Observation],
) -> None:
    calibration = calibrate(as_if(observations[::5]), cluster="x")
    # slower products and a cluster that is slower throughout look alike: .7 without its factor
    assert calibration.log_sds["gemm"] < 0.75 * TIME_WIDTHS["gemm"]
    # no run has experts
    assert calibration.log_sds["grouped_gemm"] == pytest.approx(TIME_WIDTHS["grouped_gemm"], rel=1e-3)


def test_of_more_runs_than_are_worth_their_time_some_are_drawn_and_it_says_so(
    observations: list[Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.solver.calibration.calibrate.MOST_RUNS", 4)
    calibration = calibrate(as_if(observations[:10]), cluster="x")
    assert calibration.num_runs == 4
    assert any("4 of 10 runs" in finding for finding in calibration.findings)


def test_the_order_of_the_runs_changes_nothing(observations: list[Observation]) -> None:
    runs = as_if(observations[:8], gemm=0.9)
    assert calibrate(runs, cluster="x") == calibrate(runs[::-1], cluster="x")


def test_two_runs_that_contradict_each_other_leave_the_constants_near_the_stack(
    observations: list[Observation],
) -> None:
    # the same configuration, once half as slow again and once half as fast again: nothing is learnt
    run = as_if(observations[3:4])[0]
    slow, fast = ((run.step_time_s or 0.0) * factor for factor in (1.5, 1.0 / 1.5))
    pair = [replace(run, name="a", step_time_s=slow), replace(run, name="b", step_time_s=fast)]
    calibration = calibrate(pair, cluster="x")
    assert max(abs(offset) for offset in calibration.log_offsets.values()) < 0.03
    assert np.mean(log_errors(calibration, as_if(observations[::5]))) < 0.03


def test_the_band_is_narrow_near_a_measured_run_and_wide_far_from_all(
    observations: list[Observation],
) -> None:
    calibration = calibrate(as_if(observations[:6]), cluster="near")
    widths = []
    seen = features_of(observations[0].problem, observations[0].configuration)

    def distance(one: Observation) -> float:
        return float(((features_of(one.problem, one.configuration) - seen) ** 2).sum())

    for one in (observations[0], max(observations, key=distance)):
        profile = calibration.applied(default_profile_of(one))
        prediction = predict(one.problem, profile, one.configuration)
        widths.append(log(prediction.step_time_high_s / prediction.step_time_low_s))
    assert widths[0] < 0.75 * widths[1]


def test_a_run_faster_than_the_peak_of_its_gpus_is_left_out_and_named(
    observations: list[Observation],
) -> None:
    runs = as_if(observations[:8])
    honest = calibrate(runs[1:], cluster="x")
    runs[0] = replace(runs[0], step_time_s=1e-3, name="TOO-FAST")
    calibration = calibrate(runs, cluster="x")
    assert calibration.num_runs == 7
    assert any("TOO-FAST is left out" in finding for finding in calibration.findings)
    assert calibration.log_offsets == honest.log_offsets


@pytest.mark.parametrize(("factor", "said"), [(1000.0, True), (20.0, False)])
def test_times_in_milliseconds_are_said_to_be_none_in_seconds(
    observations: list[Observation], factor: float, *, said: bool
) -> None:
    runs = [replace(one, step_time_s=factor * (one.step_time_s or 0.0)) for one in as_if(observations[:4])]
    findings = calibrate(runs, cluster="x").findings
    assert any(one.startswith("half of the runs took over 1000 times") for one in findings) == said
    assert any("milliseconds" in one for one in findings) == said


@pytest.mark.parametrize("peak", [float("inf"), 2.0 * 40.0 * 2**30])
def test_a_peak_beyond_the_memory_of_the_gpu_is_left_out_and_said(
    observations: list[Observation], peak: float
) -> None:
    runs = as_if(observations[:4])
    runs[0] = replace(runs[0], peak_memory_bytes=peak, name="TOO\x1bBIG" + "!" * 1000)
    calibration = calibrate(runs, cluster="x")
    assert calibration.num_runs == 3
    (finding,) = [finding for finding in calibration.findings if "left out" in finding]
    assert finding.startswith("run TOO?BIG!")
    assert len(finding) < 200


def test_a_peak_that_does_not_hold_the_weights_is_left_out_and_said(
    observations: list[Observation],
) -> None:
    runs = as_if(observations[:4])
    runs[0] = replace(runs[0], peak_memory_bytes=2.0**20, name="TOO-SMALL")  # MiB given as bytes
    calibration = calibrate(runs, cluster="x")
    assert calibration.num_runs == 3
    assert any("TOO-SMALL is left out" in finding for finding in calibration.findings)


def test_a_run_whose_peak_contradicts_the_others_is_called_smaller_not_faster(
    observations: list[Observation],
) -> None:
    # a twelfth of what is usual still holds the weights
    runs = [replace(one, peak_memory_bytes=36e9) for one in as_if(observations[:12])]
    runs[0] = replace(runs[0], peak_memory_bytes=3e9, name="ODD")
    findings = calibrate(runs, cluster="x").findings
    assert any("ODD" in finding and "smaller in memory" in finding for finding in findings)


def test_only_impossible_runs_are_refused(observations: list[Observation]) -> None:
    with pytest.raises(InvalidProblemError, match="is left out"):
        calibrate([replace(observations[0], step_time_s=1e-3)], cluster="x")
    with pytest.raises(InvalidProblemError, match="no run"):
        calibrate([], cluster="x")


def test_a_run_that_contradicts_its_twin_is_named_and_moves_little(
    observations: list[Observation],
) -> None:
    runs = as_if(observations[:16])
    twin = replace(runs[3], name="ODD", step_time_s=2.0 * (runs[3].step_time_s or 0.0))
    calibration = calibrate([*runs, twin], cluster="x")
    assert any("ODD" in finding and runs[3].name in finding for finding in calibration.findings)
    assert np.median(log_errors(calibration, as_if(observations[::5]))) < 0.03


def test_a_run_that_the_others_contradict_by_far_is_reported_and_not_believed(
    observations: list[Observation],
) -> None:
    # all as predicted, but for one that took three times as long
    expected = as_if(observations[:24])
    first, rest = expected[0], expected[1:12]
    odd = replace(first, step_time_s=3.0 * (first.step_time_s or 1.0))
    learnt = calibrate([odd, *rest], cluster="odd")
    (told,) = [one for one in learnt.findings if "doesn't believe" in one]
    assert first.name in told
    assert max(log_errors(learnt, expected[12:])) < 0.01


def test_a_constant_driven_to_its_physical_bound_is_reported(observations: list[Observation]) -> None:
    known = replace(default_profile_of(observations[0]).constants, gather_exposed=0.4)
    # 0.4 * 3 is more than all of the gathers, which cannot be seen; 0.4 * 1.5 = 0.6 can
    findings = constants_at_bounds(known, {"gather_exposed": log(3.0)}, {"gather_exposed": 0.4})
    assert findings == ["gather_exposed reached its physical bound 1"]
    assert not constants_at_bounds(known, {"gather_exposed": log(1.5)}, {"gather_exposed": 0.4})
    # 5 times what the stack shows of its gathers is more than all of them; a share of that is applied
    assert findings[0] in calibrate(as_if(observations[::8], gather_exposed=5.0), cluster="x").findings


@pytest.mark.parametrize(("constant", "factor"), [("elementwise", 12.0), ("gemm", 0.3)])
def test_one_constant_far_from_its_stacks_is_found_and_said(
    observations: list[Observation], constant: str, factor: float
) -> None:
    # 12 times is ln 12 / 0.5 = 5 prior widths away, 0.3 times ln 0.3 / 0.12 = 10
    runs, rest = (as_if(observations[first::8], **{constant: factor}) for first in (0, 2))
    calibration = calibrate(runs, cluster="unlike")
    assert calibration.log_offsets[constant] == pytest.approx(log(factor), abs=0.1)
    assert any(f"{constant} came out {factor:.2g} times" in one for one in calibration.findings)
    assert np.mean(log_errors(None, rest)) > 0.3
    assert np.mean(log_errors(calibration, rest)) < 0.01


def test_memory_learns_from_peaks(observations: list[Observation]) -> None:
    # every run holds 1.3 times the activations that the formulas count
    runs = []
    for one in observations[::2]:
        wrong = predict(one.problem, true_profile(one, activation=1.3), one.configuration)
        told = replace(
            one, memory_kind="device", memory_rank="worst", recompute_known=True, sharding_known=True
        )
        runs.append(replace(told, peak_memory_bytes=float(peak_as_measured(wrong, told))))
    calibration, rest = calibrate(runs[::3], cluster="x"), runs[1::3]
    assert np.mean(memory_errors(calibration, rest)) < 0.3 * np.mean(memory_errors(None, rest))


def test_a_run_that_ran_out_of_memory_where_it_should_have_fitted_raises_the_peak(
    observations: list[Observation],
) -> None:
    fits = next(one for one in observations if 0.6 < share_of_memory(one) < 0.9)
    failed = replace(fits, step_time_s=None, out_of_memory=True)
    calibration = calibrate([failed], cluster="x")
    before = predict(fits.problem, default_profile_of(fits), fits.configuration)
    after = predict(fits.problem, calibration.applied(default_profile_of(fits)), fits.configuration)
    assert after.peak_memory_bytes > before.peak_memory_bytes
    assert after.out_of_memory_probability > before.out_of_memory_probability


def share_of_memory(one: Observation) -> float:
    """Expected peak over the limit."""
    prediction = predict(one.problem, default_profile_of(one), one.configuration)
    return prediction.peak_memory_bytes / prediction.memory_limit_bytes


def test_a_run_that_ran_out_of_memory_where_half_was_expected_teaches_nothing(
    observations: list[Observation],
) -> None:
    small = next(one for one in observations if share_of_memory(one) < 0.5)
    failed = replace(small, name="small", step_time_s=None, out_of_memory=True)
    alone = calibrate([failed], cluster="x")
    assert alone.memory_residual is None
    assert any("something else filled the GPU" in finding for finding in alone.findings)


def test_a_calibration_survives_its_file(observations: list[Observation]) -> None:
    calibration = calibrate(as_if(observations[:6], gemm=0.9), cluster="x")
    again = read_calibration(json.loads(json.dumps(calibration.to_json())))
    profile = default_profile_of(observations[0])
    assert again.applied(profile).version == calibration.applied(profile).version
    assert again.applied(profile).version != profile.version
