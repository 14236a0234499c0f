"""Time of what is not plain training: frozen models, other optimizers, offloading, 8-bit gradients."""

import numpy as np
import pytest

from meshwright.profiles.cluster import host_of
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import RowPrices
from tests.unit.solver.cost.pricing import a_layout, a_problem, a_profile

FLOORLESS = {"floor_s": 1e-9, "collective_latency_s": 1e-9}


def prices_of(framework: str = "megatron-core", offload: str = "none", **workload: object) -> RowPrices:
    """One layer's prices on dp 2 without any floor."""
    problem = a_problem(**workload)  # type: ignore[arg-type]
    layout = a_layout(data_parallel_size=2, offload=offload)
    return price(problem, Columns.of([layout]), a_profile(problem, framework, **FLOORLESS))


def test_a_frozen_layer_saves_its_weight_gradients() -> None:
    whole, frozen = prices_of(), prices_of(lora_rank=1)
    # two products for three in the GEMMs of the backward pass, attention and norms as before
    assert 0.6 * whole.backward_s[0, 0] < frozen.backward_s[0, 0] < 0.95 * whole.backward_s[0, 0]
    assert frozen.forward_s[0, 0] > whole.forward_s[0, 0]  # the adapters


def test_a_higher_rank_and_more_targets_cost_more() -> None:
    thin, thick = prices_of(lora_rank=8), prices_of(lora_rank=256)
    every = prices_of(lora_rank=8, lora_targets=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))
    assert thin.forward_s[0, 0] < thick.forward_s[0, 0]
    assert thin.forward_s[0, 0] < every.forward_s[0, 0]


def test_a_frozen_head_has_no_tail() -> None:
    frozen = prices_of(lora_rank=16)
    assert frozen.tail_s[0, -1] == 0.0
    assert 0.0 < frozen.tail_s[0, 0] < 0.05 * prices_of().tail_s[0, 0]


def test_a_step_of_bf16_states_moves_22_of_30_bytes() -> None:
    # megatron-core also zeroes and scales its buffer, so compare where none is kept
    plain, short = prices_of("fsdp"), prices_of("fsdp", optimizer="adamw-bf16")
    ratio = short.tail_breakdown_s["optimizer"][0, 0] / plain.tail_breakdown_s["optimizer"][0, 0]
    assert ratio == pytest.approx(22 / 30)


def test_muon_orthogonalises_in_30_m_flops_a_weight() -> None:
    # above sgd with momentum, which moves the same bytes
    muon, sgd = (prices_of("fsdp", optimizer=name) for name in ("muon", "sgd-momentum"))
    extra = muon.tail_breakdown_s["optimizer"][0, 0] - sgd.tail_breakdown_s["optimizer"][0, 0]
    weights = 12 * 1024**2 + 2 * 1024
    at_peak = weights * 30 * 1024 / 989e12
    assert at_peak < extra < 2.5 * at_peak


def test_8_bit_gradients_take_a_quarter_of_the_fp32_ones_on_the_wire() -> None:
    options = {"overlap_gradients": False}
    whole = prices_of(framework_options=options)
    short = prices_of(framework_options=options | {"reduced_gradient_dtype": "int8"})
    ratio = short.tail_breakdown_s["data_parallel"][0, 0] / whole.tail_breakdown_s["data_parallel"][0, 0]
    # a byte and 1/64 of scales for four bytes; this small model's rings take a while to start
    assert 1.015625 / 4 < ratio < 1.2 * 1.015625 / 4


def test_an_offloaded_update_pays_the_link_and_the_hosts_memory() -> None:
    prices = prices_of(offload="optimizer")
    host = host_of(a_profile(a_problem()).group)
    # fp32 gradient there, 2-byte weight back, 30 bytes of host memory
    weights = 12 * 1024**2 + 2 * 1024
    expected = weights * (6 / host.link_bytes_per_s + 30 / host.memory_bytes_per_s)
    assert prices.tail_breakdown_s["optimizer"][0, 0] == pytest.approx(expected)


def test_offloaded_activations_wait_for_the_link_where_the_pass_is_shorter() -> None:
    here, there = prices_of(), prices_of(offload="activations")
    host = host_of(a_profile(a_problem()).group)
    copied = here.activation_bytes[0, 0] / host.link_bytes_per_s
    assert there.forward_s[0, 0] == pytest.approx(max(copied, here.forward_s[0, 0]), rel=1e-6)


def test_rows_that_offload_nothing_are_not_touched_by_their_neighbours() -> None:
    problem = a_problem()
    layouts = [a_layout(), a_layout(offload="optimizer+activations")]
    both = price(problem, Columns.of(layouts), a_profile(problem))
    alone = price(problem, Columns.of(layouts[:1]), a_profile(problem))
    np.testing.assert_array_equal(both.forward_s[0], alone.forward_s[0])
    np.testing.assert_array_equal(both.tail_s[0], alone.tail_s[0])
    np.testing.assert_array_equal(both.optimizer_bytes[0], alone.optimizer_bytes[0])
