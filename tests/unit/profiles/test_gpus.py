"""GPU types that a request describes itself: ten lines are enough, and a wrong figure is named."""

from __future__ import annotations

from dataclasses import replace
from math import expm1, isclose, log, sqrt
from statistics import stdev
from typing import Any

import numpy as np
import pytest
import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.gpus import HEADROOM, gpu_from_mapping, nearest_gpu
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping
from meshwright.profiles.library import find_gpu, gpu_alias_note, gpu_names
from meshwright.profiles.operators.operators import (
    architectures_log_spread,
    flash_attention_s,
    operators_of,
)
from meshwright.profiles.profile import default_profile

CHIP = {
    "name": "our-chip",
    "memory_gib": 96,
    "hbm_gb_per_s": 3300,
    "peak_tflops": {"bf16": 900, "fp8": 1800},
    "power_watts": 650,
    "intra_node": {"kind": "ours", "gb_per_s": 400},
    "inter_node": {"kind": "ethernet", "gb_per_s": 50},
}


def cluster(gpu: object, **group: object) -> dict[str, Any]:
    return {"groups": [{"gpu": gpu, "num_nodes": 2, **group}]}


def faults(**changes: object) -> list[tuple[str, str | None, str | None]]:
    with pytest.raises(InvalidProblemError) as caught:
        gpu_from_mapping(CHIP | changes)
    return [(error.pointer, error.allowed, error.nearest) for error in caught.value.errors]


def test_ten_lines_state_a_cluster_of_a_gpu_of_ones_own() -> None:
    text = """
groups:
  - num_nodes: 2
    gpu:
      memory_gib: 96
      hbm_gb_per_s: 3300
      peak_tflops: {bf16: 900}
"""
    group = cluster_from_mapping(yaml.safe_load(text)).groups[0]
    assert len(text.strip().splitlines()) <= 10
    assert (group.gpu.slug, group.gpu.memory_bytes, group.num_gpus) == ("own-gpu", 96 * 2**30, 16)


def test_figures_in_the_units_of_data_sheets_are_those_in_base_units() -> None:
    base = {
        "memory_bytes": 96 * 2**30,
        "hbm_bytes_per_s": 3300e9,
        "peak_flops": {"bf16": 900e12, "fp8": 1800e12},
    }
    others = {
        key: value
        for key, value in CHIP.items()
        if key not in ("memory_gib", "hbm_gb_per_s", "peak_tflops")
    }
    assert gpu_from_mapping({**others, **base}) == gpu_from_mapping(CHIP)


def test_a_described_gpu_survives_being_written_and_read() -> None:
    for gpu in (CHIP, CHIP | {"architecture": "hopper"}):
        once = cluster_from_mapping(cluster(gpu))
        again = cluster_from_mapping(cluster_to_mapping(once))
        assert again == once
        assert cluster_to_mapping(again) == cluster_to_mapping(once)


def test_the_nearest_gpu_lends_architecture_and_links_and_warnings_name_it() -> None:
    warnings: list[str] = []
    lacking = {key: value for key, value in CHIP.items() if key != "inter_node"}
    gpu = gpu_from_mapping(lacking, "/cluster/groups/0/gpu", warnings)
    assert (gpu.architecture, gpu.nearest) == ("hopper", "h100-sxm-80gb")
    words = f"assuming the links of the nearest GPU ({find_gpu(gpu.nearest).display_name})"
    assert warnings == [f"cluster.groups.0.gpu: {words}: infiniband 50 GB/s between nodes (each way)"]


@pytest.mark.parametrize("slug", ["h100-sxm-80gb", "mi300x", "l40s", "t4", "b300"])
def test_a_gpu_is_nearest_to_itself(slug: str) -> None:
    gpu = find_gpu(slug)
    found = nearest_gpu(gpu.peak_flops, gpu.hbm_bytes_per_s, gpu.power_watts)
    assert found.slug == slug


def test_a_borrowed_architecture_is_named_and_widens_the_interval_until_it_is_measured() -> None:
    # shares of the architectures in operators.yaml; the difference of two has sqrt(2) times their spread
    table = yaml.safe_load((CATALOG / "calibration" / "operators.yaml").read_text())
    shares = [log(one["gemm"]["fp16"]) for one in table["architectures"].values()]
    assert isclose(architectures_log_spread(), sqrt(2) * stdev(shares))
    profile = default_profile(cluster_from_mapping(cluster(CHIP)), "megatron-lm")
    wider = f"± {100 * expm1(architectures_log_spread()):.0f} %"
    assert any("hopper" in one and "h100-sxm-80gb" in one and wider in one for one in profile.warnings)
    assert profile.borrowed
    stated = default_profile(
        cluster_from_mapping(cluster(CHIP | {"architecture": "hopper"})), "megatron-lm"
    )
    assert not stated.borrowed


@pytest.mark.parametrize(
    ("tokens", "forward", "backward"),
    [(2048, 900, 797), (4096, 1175, 971), (8192, 1319, 1068), (10240, 1338, 1091)],
)
def test_attention_on_an_mi355x_is_as_fast_as_amds_kernels(
    tokens: int, forward: int, backward: int
) -> None:
    # TFLOP/s of AITER's causal kernels, 4 sequences of 64 heads (operators.yaml names the table)
    gpu, work = find_gpu("mi355x"), np.array(1e15)
    own = operators_of(gpu)
    seconds = flash_attention_s(work, tokens, operators=own, flops=own.flash * gpu.peak_bf16_flops)
    assert isclose(1e15 / seconds, forward * 1e12, rel_tol=0.05)
    # a backward pass has 2.5 times the work
    assert isclose(2.5e15 / (seconds * own.attention_backward), backward * 1e12, rel_tol=0.1)


def test_a_group_of_a_catalog_gpu_is_written_by_its_name() -> None:
    written = cluster_to_mapping(cluster_from_mapping(cluster("h100")))
    assert written["groups"][0]["gpu"] == "h100-sxm-80gb"  # type: ignore[index, call-overload]


def test_a_missing_figure_names_both_ways_to_state_it() -> None:
    for name, base in (("memory_gib", "memory_bytes"), ("hbm_gb_per_s", "hbm_bytes_per_s")):
        assert faults(**{name: None}) == [(f"/gpu/{base}", f"{base} or {name}", None)]
    assert faults(peak_tflops=None)[0][0] == "/gpu/peak_flops"
    assert faults(peak_tflops={"fp8": 1800})[0][0] == "/gpu/peak_tflops"


def test_a_figure_given_twice_is_refused() -> None:
    assert faults(memory_bytes=2**36) == [("/gpu/memory_gib", "memory_bytes or memory_gib", None)]


def test_unknown_fields_and_precisions_name_the_nearest() -> None:
    assert faults(hbm_gbps=3) == [("/gpu/hbm_gbps", None, "hbm_gb_per_s")]
    assert ("/gpu/peak_tflops/bf61", None, "bf16") in faults(peak_tflops={"fp16": 9, "bf61": 9})
    assert faults(name="h100-sxm-80gb")[0][0] == "/gpu/name"
    assert faults(name="Our Chip")[0][0] == "/gpu/name"
    pointer, allowed, _ = faults(architecture="gaudi")[0]
    assert pointer == "/gpu/architecture"
    assert "hopper" in str(allowed)


def test_a_peak_beyond_what_memory_or_power_can_feed_is_refused_with_the_limit() -> None:
    every = [find_gpu(name) for name in gpu_names()]
    most = (
        HEADROOM
        * 3300e9
        * max(
            one.peak_flops["bf16"] / one.hbm_bytes_per_s
            for one in every
            if "bf16" in one.peak_flops and one.architecture != "cpu"
        )
    )
    pointer, allowed, nearest = faults(peak_tflops={"bf16": 1.01 * most / 1e12}, power_watts=1e5)[0]
    assert (pointer, nearest) == ("/gpu/peak_tflops/bf16", f"{most / 1e12:.3g}")
    assert f"{most / 1e12:.3g} TFLOP/s" in str(allowed)
    gpu_from_mapping(CHIP | {"peak_tflops": {"bf16": 0.99 * most / 1e12}, "power_watts": 1e5})
    assert [one[0] for one in faults(power_watts=10)] == [
        "/gpu/peak_tflops/bf16", "/gpu/peak_tflops/fp8", "/gpu/hbm_gb_per_s",
    ]  # fmt: skip


def test_a_gpu_that_is_neither_a_name_nor_an_object_says_what_it_may_be() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        cluster_from_mapping(cluster(7))
    (error,) = caught.value.errors
    assert (error.pointer, error.message) == ("/cluster/groups/0/gpu", "7 is neither a name nor an object")
    assert "memory_gib" in str(error.allowed)


def test_a_fault_inside_a_cluster_has_its_whole_path() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        cluster_from_mapping(cluster(CHIP | {"memory_gib": -1}))
    assert [one.pointer for one in caught.value.errors] == ["/cluster/groups/0/gpu/memory_gib"]


def test_catalog_entries_without_an_architecture_name_their_nearest_gpu() -> None:
    for slug in gpu_names():
        gpu = find_gpu(slug)
        if gpu.nearest and gpu_alias_note(slug) is None:
            found = nearest_gpu(gpu.peak_flops, gpu.hbm_bytes_per_s, gpu.power_watts)
            assert (slug, gpu.nearest) == (slug, found.slug)


def test_digests_of_catalog_clusters_do_not_know_the_new_field() -> None:
    group = cluster_from_mapping(cluster("h100")).groups[0]
    assert "nearest" not in group.to_mapping()["gpu"]
    assert "nearest" in replace(group, gpu=gpu_from_mapping(CHIP)).to_mapping()["gpu"]
