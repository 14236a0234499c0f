from dataclasses import replace

import pytest

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import UnknownNameError
from meshwright.profiles.profile import default_profile, framework_of, stack_constants
from tests.builders import INFINIBAND, NVLINK, a_cluster, a_gpu


def test_a_launcher_stands_for_its_framework() -> None:
    assert framework_of("megatron-lm") == "megatron-core"
    assert framework_of("torchtitan") == "fsdp"
    assert framework_of("megatron-lm-2021") == "megatron-lm-2021"


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
