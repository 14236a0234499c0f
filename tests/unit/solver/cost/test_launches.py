"""The floor that launching kernels sets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from meshwright.profiles.model import LayerKind
from meshwright.solver.cost.context import PassSeconds
from meshwright.solver.cost.launches import launched, layer_floor_s
from tests.builders import a_moe_model
from tests.problems.pricing import GPT, ON_8, of


def floor(
    kind: LayerKind = "dense", layout: Mapping[str, object] | None = None, **options: object
) -> float:
    """Milliseconds that a layer's launches take, of 1 ms for a dense one; the builder's host takes 0.79."""
    model = a_moe_model() if kind == "moe" else GPT
    return float(layer_floor_s(of(model, layout, **options), kind)[0] / 0.79e-3)


def test_graphs_take_away_the_launches_of_the_parts_that_they_capture() -> None:
    assert floor() == pytest.approx(1.0)
    assert floor(cuda_graph="attn") == pytest.approx(0.4)  # attention has 0.6 of a dense layer's launches
    assert floor(cuda_graph="layer") == pytest.approx(0.15)
    assert floor(cuda_graph="full_iteration") == pytest.approx(0.03)
    # router 0.2 and preprocessing 0.2 of the 4 that a layer of experts launches
    assert floor("moe", cuda_graph="moe_router+moe_preprocess") == pytest.approx(4.0 * 0.6)
    # a whole layer of experts whose sizes change leaves a quarter, of padded experts as much as a dense one
    assert floor("moe", cuda_graph="layer") == pytest.approx(4.0 * 0.25)
    assert floor("moe", cuda_graph="layer", moe_capacity_factor=1.0) == pytest.approx(4.0 * 0.15)


def test_an_all_gather_copies_no_sizes_to_the_host() -> None:
    assert floor("moe", moe_dispatcher="allgather") == pytest.approx(4.0 * 0.45)


def test_a_host_that_waits_for_sizes_launches_beside_what_the_gpu_runs() -> None:
    busy, floor_s = PassSeconds(forward=np.array([1e-3]), backward=np.array([1e-3])), np.array([1e-3])

    def forward_ms(kind: LayerKind, **options: object) -> float:
        return float(launched(of(a_moe_model(), ON_8, **options), kind, busy, floor_s).forward[0] * 1e3)

    assert forward_ms("moe") == pytest.approx(2.0 ** (1 / 3))  # (1 + 1)^(1/3)
    for known in ({"moe_capacity_factor": 1.0}, {"moe_dispatcher": "allgather"}):
        assert forward_ms("moe", **known) == pytest.approx(2.0 ** (1 / 8))
    assert forward_ms("dense") == pytest.approx(2.0 ** (1 / 8))


def test_launches_grow_with_tensor_parallelism_only_where_the_cpu_waits_for_messages() -> None:
    within = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "stage_layers": (2, 2)}
    assert floor(layout=within) == pytest.approx(1.0)  # one island: the CPU runs ahead
    across = {**within, "data_parallel_size": 2}  # 16 GPUs, two islands
    assert floor(layout=across) == pytest.approx(1.0)
    waits = of(GPT, across, synchronous_transfers=True)
    expected = waits.constants.floor_across * (1.0 + 0.5 * 3.0)  # three ranks more, half as much each
    assert layer_floor_s(waits, "dense")[0] / 0.79e-3 == pytest.approx(expected)


def test_blocking_launches_come_on_top_of_what_the_gpu_runs() -> None:
    busy = PassSeconds(forward=np.array([5e-3]), backward=np.array([10e-3]))
    ctx = of(launch_blocking=True)
    passes = launched(ctx, "dense", busy, np.array([1e-3]))
    assert passes.forward[0] == pytest.approx(5e-3 + 4.0 * 1e-3)
    assert passes.backward[0] == pytest.approx(10e-3 + 4.0 * 1e-3 * ctx.constants.floor_backward)
