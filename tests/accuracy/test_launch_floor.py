"""Launches alone are never longer than a step that somebody measured; ``make test`` takes a fourth."""

from dataclasses import replace

import pytest

from meshwright.profiles.profile import Profile
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.observations import Observation, predictions_of
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs
from tests.draws import WHOLE

FAST = 1e6
# Tests and small models that launches bind: their floor is a mean, which half of them run below. Repeats of
# Ultra-Scale's differ by 24 %, the single nodes of vTrain are composed of measured layers.
BOUND_BY_LAUNCHES = ("megatron-ci-", "ultrascale-", "vtrain-a100-single")

EVERY = 1 if WHOLE else 4  # a floor that is too high is above several of a cluster's runs


def at_infinite_rates(one: Observation) -> Observation:
    """The same run on GPUs and links a million times as fast."""
    groups = []
    for group in one.problem.cluster.groups:
        links = {
            name: replace(getattr(group, name), bytes_per_s=getattr(group, name).bytes_per_s * FAST)
            for name in ("intra_node", "inter_node")
        }
        gpu = replace(
            group.gpu,
            peak_flops={name: peak * FAST for name, peak in group.gpu.peak_flops.items()},
            hbm_bytes_per_s=group.gpu.hbm_bytes_per_s * FAST,
        )
        groups.append(replace(group, gpu=gpu, **links))
    cluster = replace(one.problem.cluster, groups=tuple(groups))
    return replace(one, problem=replace(one.problem, cluster=cluster))


def without_latency(one: Observation) -> Profile:
    """The uncalibrated profile, whose messages start at once."""
    profile = default_profile_of(one)
    return replace(profile, constants=replace(profile.constants, collective_latency_s=1e-12))


def floors_over_measured(runs: list[Run]) -> dict[str, float]:
    """What launches alone are predicted to take over each measured step, by run."""
    observations = [one for one in map(Observation.of, runs) if one is not None and one.step_time_s]
    predicted = predictions_of([at_infinite_rates(one) for one in observations], without_latency)
    pairs = zip(observations, predicted, strict=True)
    return {one.name: found.step_time_s / (one.step_time_s or 1.0) for one, found in pairs}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return list(read_runs(CATALOG_RUNS))


def test_no_run_in_production_is_predicted_slower_than_it_was_for_its_launches(runs: list[Run]) -> None:
    production = [run for run in runs if not run.cluster.startswith(BOUND_BY_LAUNCHES)]
    floors = floors_over_measured(production[::EVERY])
    assert len(floors) > 700 / EVERY
    assert {name: round(share, 3) for name, share in floors.items() if share > 1.0} == {}


def test_tests_that_launches_bind_are_not_predicted_much_slower_than_they_were(runs: list[Run]) -> None:
    floors = floors_over_measured([run for run in runs if run.cluster.startswith("megatron-ci-")])
    above = [share for share in floors.values() if share > 1.1]
    assert len(above) <= len(floors) / 8
    assert max(floors.values()) < 1.4
