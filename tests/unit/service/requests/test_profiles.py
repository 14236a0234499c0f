"""Which of the given profiles holds for a problem."""

from dataclasses import replace

import pytest

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_gpu
from meshwright.service.requests.profiles import profile_with
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_problem

FAST, SLOW = "h100-sxm-80gb", "a100-sxm-80gb"
MIXED = f"{FAST} was measured, but every stage runs at the speed of {SLOW}"


def a_calibration(gpu: str) -> Calibration:
    return Calibration(
        cluster="mine", stack="megatron-core", gpu=gpu, num_runs=1, residual=None,
        log_offsets={"gemm": -0.1}, memory_residual=None, log_memory_sigma=None,
    )  # fmt: skip


def on_both() -> Problem:
    """A problem on H100 and A100 nodes, which A100 pace."""
    groups = tuple(a_cluster(num_nodes=2, gpu=find_gpu(gpu)).groups[0] for gpu in (FAST, SLOW))
    return replace(a_problem(), cluster=ClusterSpec(name="both", groups=groups))


def test_only_profiles_of_gpus_that_do_not_set_the_pace_are_warned_of() -> None:
    slow, fast = a_calibration(SLOW), a_calibration(FAST)
    assert MIXED not in profile_with(on_both(), [slow])[1]
    profile, warnings = profile_with(on_both(), [fast, slow])
    assert profile.group.gpu.slug == SLOW
    assert [one for one in warnings if "runs at the speed of" in one] == [MIXED]


def test_a_profile_of_a_gpu_that_does_not_set_the_pace_is_not_enough() -> None:
    with pytest.raises(InvalidProblemError, match=f"none was measured on {SLOW}, which sets the pace"):
        profile_with(on_both(), [a_calibration(FAST)])
