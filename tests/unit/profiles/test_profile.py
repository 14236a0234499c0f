from dataclasses import replace
from math import exp, sqrt

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import UnknownNameError
from meshwright.profiles.gpus import link_from
from meshwright.profiles.profile import (
    MAX_LOG,
    Residual,
    default_profile,
    framework_of,
    level_of,
    network_share,
    squared_distances,
    stack_constants,
    stack_names,
)
from meshwright.profiles.reading import FieldReader
from tests.builders import INFINIBAND, NVLINK, a_cluster, a_gpu


def test_a_launcher_stands_for_its_framework() -> None:
    assert framework_of("megatron-lm") == "megatron-core"
    assert framework_of("torchtitan") == "fsdp"
    assert framework_of("megatron-lm-2021") == "megatron-lm-2021"
    for launcher in launcher_names():  # and a framework's own name finds it again
        assert framework_of(framework_of(launcher)) == framework_of(launcher)


def test_an_unknown_launcher_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="torchtitan"):
        default_profile(a_cluster(), "torchtitann")


def test_equal_profiles_have_equal_versions_and_a_changed_number_another() -> None:
    profile = default_profile(a_cluster(), "megatron-lm")
    assert profile.version == default_profile(a_cluster(), "megatron-lm").version
    assert profile.version != replace(profile, time_factor=1.01).version


def test_the_slowest_gpu_decides_in_a_mixed_cluster() -> None:
    slow = a_gpu(slug="a100-sxm-80gb", architecture="ampere", peak_flops={"bf16": 312e12, "fp16": 312e12})
    groups = (a_cluster(num_nodes=2).groups[0], a_cluster(num_nodes=2, gpu=slow).groups[0])
    profile = default_profile(ClusterSpec(name="mixed", groups=groups), "megatron-lm")
    assert profile.group.gpu.slug == "a100-sxm-80gb"
    assert profile.group.inter_node.bytes_per_s == 50e9
    assert any("mixed" in warning for warning in profile.warnings)


def test_the_link_between_groups_limits_the_network_of_a_mixed_cluster() -> None:
    groups = (a_cluster(num_nodes=2).groups[0], a_cluster(num_nodes=1).groups[0])
    thin = replace(INFINIBAND, bytes_per_s=1e9)
    cluster = ClusterSpec(name="two halls", groups=groups, between_groups=thin)
    assert default_profile(cluster, "megatron-lm").group.inter_node == thin


def test_the_smallest_islands_and_the_slowest_links_of_any_group_decide_in_a_mixed_cluster() -> None:
    slow = a_gpu(slug="a100-sxm-80gb", architecture="ampere", peak_flops={"bf16": 312e12, "fp16": 312e12})
    pcie = replace(NVLINK, kind="pcie", bytes_per_s=25e9)
    pairs = replace(a_cluster(num_nodes=2).groups[0], gpus_per_node=4, island_gpus=2, intra_node=pcie)
    groups = (a_cluster(num_nodes=2, gpu=slow).groups[0], pairs)
    group = default_profile(ClusterSpec(name="mixed", groups=groups), "megatron-lm").group
    assert (group.gpu.slug, group.gpus_per_node, group.island_gpus) == ("a100-sxm-80gb", 4, 2)
    assert group.intra_node == pcie


def test_a_gpu_without_flash_attention_keeps_its_scores() -> None:
    volta = a_gpu(slug="v100-sxm-32gb", architecture="volta", peak_flops={"fp16": 125e12})
    profile = default_profile(a_cluster(gpu=volta), "megatron-lm")
    assert not profile.framework.flash
    assert any("flash" in warning for warning in profile.warnings)


@pytest.mark.parametrize(
    "stack", ["megatron-classic", "megatron-deepspeed", "nanotron", "megatron-core", "fsdp", "zero"]
)
def test_shares_of_every_stack_stay_physical(stack: str) -> None:
    constants = stack_constants(stack)
    for share in ("hbm", "network", "tensor_exposed", "gather_exposed"):
        assert 0.0 < getattr(constants, share) <= 1.0
    assert 0.5 < constants.fast_link <= 1.2  # over the measured collectives, which reach 0.75 of the line
    assert 0.5 < constants.gemm < 1.25  # over the operator table, whose shares stay below 0.9


LEVELS = (None, *stack_names())


@pytest.mark.parametrize("stack", LEVELS)
def test_every_constant_stands_beside_its_uncertainty_and_its_source(stack: str | None) -> None:
    level = level_of(stack)
    assert level.constants
    assert level.fitted_on
    for constant in level.constants.values():
        assert constant.value > 0.0
        assert 0.0 < constant.log_sd <= 1.1
        assert constant.source


def test_a_stack_takes_from_the_global_level_what_it_does_not_name() -> None:
    own = level_of("zero").constants
    assert "attention" not in own
    assert stack_constants("zero").attention == level_of(None).constants["attention"].value
    assert stack_constants("zero").gemm == own["gemm"].value


def test_a_stack_that_nobody_measured_has_the_global_constants() -> None:
    assert level_of("my own trainer").constants == {}
    assert stack_constants("my own trainer") == stack_constants(None)


def test_what_six_runs_of_zero_cannot_tell_is_marked_as_such() -> None:
    own = level_of("zero").constants
    assert not own["gemm"].identified
    assert level_of("megatron-deepspeed").constants["floor_s"].identified


def one_run(**changes: float) -> Residual:
    # one run at 0 that was exp(0.1) slow; amplitude 0.2, noise 0.1, no trend: k = 0.04, K = 0.04 + 0.01
    numbers = {"amplitude": 0.2, "length": 1.0, "trend_amplitude": 0.0, "trend_length": 1.0}
    numbers |= {"noise": 0.1, "scale": 1.0} | changes
    return Residual(
        points=((0.0,),),
        weights=(0.1 / 0.05,),
        precision=((1.0 / 0.05,),),
        **numbers,  # type: ignore[arg-type]
    )


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


def test_a_run_that_hangs_on_launches_is_noisier_than_one_that_does_not() -> None:
    # noise 0.1 sqrt(1 + (2 * 0.5)^2) where half of the step does: 0.008 + 0.02 at the run
    rough = one_run(launch_noise=2.0)
    assert rough.sigma(np.zeros((1, 1)), np.array([0.5])) == pytest.approx([sqrt(0.028)])
    assert rough.sigma(np.zeros((1, 1)), np.array([0.0])) == pytest.approx([sqrt(0.018)])


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


def test_collectives_over_tcp_are_paced_by_the_core_that_copies_and_wait_for_the_kernel() -> None:
    fabrics = []
    for kind in ("infiniband", "ethernet"):
        network = link_from(FieldReader({"kind": kind, "gb_per_s": 12.5}, ""))
        assert network is not None
        (group,) = a_cluster().groups
        cluster = replace(a_cluster(), groups=(replace(group, inter_node=network),))
        fabrics.append(default_profile(cluster, "megatron-lm").fabric)
    rdma, sockets = fabrics
    # 42 of 100 Gbit/s, and 20 microseconds more a hop
    usual = stack_constants("megatron-core").network
    assert rdma.lines.network_bytes_per_s == pytest.approx(12.5e9 * usual)
    core = 0.42 * 12.5e9
    assert sockets.lines.network_bytes_per_s == pytest.approx(core * network_share("megatron-core", core))
    assert rdma.hop_s == 0.0
    assert sockets.hop_s == pytest.approx(20e-6)


def test_deepspeed_loses_a_time_not_a_share_on_slow_networks() -> None:
    # Selene's runs, at 25 GB/s a GPU, reach 0.561 of it, all stacks together 0.722 on 6.25 GB/s and more
    assert network_share("zero", 50e9) == network_share("zero", 25e9) == pytest.approx(0.561)
    lost_s = (1 / 0.722 - 1) / 6.25e9 + (1 / 0.561 - 1 / 0.722) / 25e9
    slow = 100e9 / 8 / 16  # one link of 100 Gbit/s for 16 GPUs
    assert network_share("zero", slow) == pytest.approx(1 / (1 + lost_s * slow), rel=1e-9)
    rates = [rate * network_share("zero", rate) for rate in (0.5e9, 3e9, 6e9, 7e9, 24e9, 26e9)]
    assert rates == sorted(rates)
