"""What switches of modern recipes change, against counts made by hand from the published definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import all_to_all_s
from meshwright.profiles.model import LayerKind, ModelSpec
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.communication import dispatched_copies, expert_parallel
from meshwright.solver.cost.compute import (
    PassSeconds,
    flash_s,
    launched,
    layer_floor_s,
    memory_bound,
    permuted_bytes,
    replayed_s,
)
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.price import price
from tests.builders import a_moe_model
from tests.unit.solver.cost.pricing import GPT, a_layout, a_problem, a_profile

ON_8: Mapping[str, object] = {"expert_parallel_size": 8, "data_parallel_size": 8}


def of(model: ModelSpec = GPT, layout: Mapping[str, object] | None = None, **options: object) -> Context:
    """One row of a model under some options."""
    problem = a_problem(model, framework_options=options)
    rows = Columns.of([a_layout(**(layout or {}))])
    return context_of(problem, rows, a_profile(problem, floor_s=1e-3, floor_moe=4.0, floor_tensor=0.5))


def floor(
    kind: LayerKind = "dense", layout: Mapping[str, object] | None = None, **options: object
) -> float:
    """Milliseconds that a layer's launches take, of 1 ms for a dense one; the builder's host takes 0.85."""
    model = a_moe_model() if kind == "moe" else GPT
    return float(layer_floor_s(of(model, layout, **options), kind)[0] / 0.85e-3)


def test_graphs_take_away_the_launches_of_the_parts_that_they_capture() -> None:
    assert floor() == pytest.approx(1.0)
    assert floor(cuda_graph="attn") == pytest.approx(0.4)  # attention has 0.6 of a dense layer's launches
    assert floor(cuda_graph="layer") == pytest.approx(0.15)
    assert floor(cuda_graph="full_iteration") == pytest.approx(0.03)
    # router 0.2 and preprocessing 0.2 of the 4 that a layer of experts launches
    assert floor("moe", cuda_graph="moe_router+moe_preprocess") == pytest.approx(4.0 * 0.6)


def test_an_all_gather_copies_no_sizes_to_the_host() -> None:
    assert floor("moe", moe_dispatcher="allgather") == pytest.approx(4.0 * 0.45)


def test_launches_grow_with_tensor_parallelism_where_the_cpu_waits_for_messages() -> None:
    within = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "stage_layers": (2, 2)}
    assert floor(layout=within) == pytest.approx(4.0 ** (0.5 * 0.15))  # one island: the CPU runs ahead
    across = {**within, "data_parallel_size": 2}  # 16 GPUs, two islands
    assert floor(layout=across) == pytest.approx(4.0 ** (0.5 * 0.15))
    waits = of(GPT, across, synchronous_transfers=True)
    expected = 4.0**0.5 * waits.constants.floor_across
    assert layer_floor_s(waits, "dense")[0] / 0.85e-3 == pytest.approx(expected)


def test_blocking_launches_come_on_top_of_what_the_gpu_runs() -> None:
    busy = PassSeconds(forward=np.array([5e-3]), backward=np.array([10e-3]))
    ctx = of(launch_blocking=True)
    passes = launched(ctx, busy, np.array([1e-3]))
    assert passes.forward[0] == pytest.approx(5e-3 + 3.0 * 1e-3)
    assert passes.backward[0] == pytest.approx(10e-3 + 3.0 * 1e-3 * ctx.constants.floor_backward)


@pytest.mark.parametrize(
    ("dispatcher", "copies"),
    [
        ("allgather", 8.0),  # every rank
        ("alltoall", 2.0),  # each of its two experts
        ("deepep", 8.0 * (1.0 - (7.0 / 8.0) ** 2)),  # the ranks that two random experts live on: 1.875
    ],
)
def test_copies_of_a_token_follow_its_dispatcher(dispatcher: str, copies: float) -> None:
    model = a_moe_model()
    assert model.moe is not None
    ctx = of(model, ON_8, moe_dispatcher=dispatcher)
    assert np.broadcast_to(dispatched_copies(ctx, model.moe), (1,))[0] == pytest.approx(copies)


def test_routing_by_groups_keeps_tokens_on_few_islands() -> None:
    model = a_moe_model()
    assert model.moe is not None
    model = replace(model, moe=replace(model.moe, num_experts=64, top_k=8))
    assert model.moe is not None
    wide = {"expert_parallel_size": 64, "data_parallel_size": 64}
    free, tied = (
        dispatched_copies(of(model, wide, moe_dispatcher="deepep", **more), model.moe)
        for more in ({}, {"moe_routing_groups": "8/4"})
    )
    assert np.asarray(free)[0] == pytest.approx(8.0 * (1.0 - (7.0 / 8.0) ** 8))  # 5.25 of 8 nodes
    assert np.asarray(tied)[0] == pytest.approx(4.0)


def test_balance_and_dispatcher_decide_what_an_exchange_takes() -> None:
    model = a_moe_model()
    even = of(model, ON_8, moe_force_balance=True)
    tokens = even.moe_tokens * 2.0 * model.hidden_size * 2.0  # two copies of 2 bytes an element
    once = all_to_all_s(tokens, even.expert_group, even.fabric)[0]
    assert expert_parallel(even).forward[0] == pytest.approx(2.0 * once)
    busy = expert_parallel(of(model, ON_8)).forward[0]
    assert busy > expert_parallel(even).forward[0]
    short = expert_parallel(of(model, ON_8, moe_force_balance=True, moe_dispatcher="hybridep",
                               low_precision_dispatch=True))  # fmt: skip
    copies = 1.875 / 2.0
    out_and_back = 0.7 * all_to_all_s(tokens * copies, even.expert_group, even.fabric)[0]
    assert short.backward[0] == pytest.approx(2.0 * out_and_back)
    assert short.forward[0] == pytest.approx(1.5 * out_and_back)


def test_a_third_of_the_backward_pass_hides_exchanges_only_with_weight_gradients_put_off() -> None:
    plain, over, late = (
        expert_parallel(of(a_moe_model(), ON_8, **options))
        for options in ({}, {"overlap_experts": True}, {"overlap_experts": True, "delay_wgrad": True})
    )
    seen = late.forward[0] / plain.forward[0]
    assert late.backward[0] == pytest.approx(seen * plain.backward[0])
    assert over.forward[0] == pytest.approx(late.forward[0])
    assert over.backward[0] == pytest.approx((seen + (1.0 - seen) / 3.0) * plain.backward[0])


def test_permutation_moves_less_where_it_is_fused() -> None:
    def moved(**options: object) -> float:
        return float(np.asarray(permuted_bytes(of(a_moe_model(), ON_8, **options)))[0])

    fused = moved(moe_permute_fusion=True)
    assert moved() == pytest.approx(1.5 * fused)
    assert moved(moe_permute_fusion=True, moe_dispatcher="hybridep") == pytest.approx(0.7 * fused)
    assert moved(moe_grouped_mlp_fused=True) == pytest.approx(0.5 * fused)


def test_attention_runs_at_the_rate_of_its_kernel() -> None:
    best, second = (flash_s(of(attention_kernel=kernel))[0] for kernel in ("cudnn", "flash2"))
    assert second == pytest.approx(best / 0.6)  # FlashAttention 2 on an H100 (arXiv:2407.08608)
    assert flash_s(of(attention_kernel="cudnn", fp8_attention=True))[0] == pytest.approx(best / 1.35)


def test_an_eager_norm_moves_36_bytes_an_element() -> None:
    # two norms of 2048 x 1024 elements: 36 bytes each instead of what a fused one moves, 4 times its share
    fused, eager = (memory_bound(of(norm_fused=on), "dense").forward[0] for on in (True, False))
    ctx = of()
    assert (eager - fused) * ctx.hbm_bytes_per_s == pytest.approx(2 * 2048 * 1024 * 32.0)


SELECTIVE: Mapping[str, object] = {"recompute_granularity": "selective"}


def replayed(modules: str, **layout: object) -> float:
    """Seconds that a dense layer replays."""
    nothing = PassSeconds(forward=np.zeros(1), backward=np.zeros(1))
    attention = PassSeconds(forward=np.array([1.0]), backward=np.array([2.0]))
    ctx = of(GPT, {**SELECTIVE, **layout}, recompute_modules=modules)
    return float(replayed_s(ctx, "dense", attention, nothing)[0])


def test_only_modules_that_are_recomputed_are_replayed() -> None:
    assert replayed("core_attn") == 1.0
    assert 0.0 < replayed("layernorm") < replayed("mlp_up") < replayed("mlp") < 1.0
    assert replayed("core_attn+mlp") == pytest.approx(1.0 + replayed("mlp"))
    assert replayed("core_attn", recompute_granularity="none") == 0.0


def kept(modules: str, layout: Mapping[str, object] | None = None, **options: object) -> float:
    """Bytes that a layer keeps."""
    problem = a_problem(framework_options={"recompute_modules": modules, **options})
    rows = Columns.of([a_layout(**(layout or SELECTIVE))])
    return float(price(problem, rows, a_profile(problem)).activation_bytes[0, 0])


def test_replayed_modules_free_what_they_keep_for_themselves() -> None:
    # GPT of the builders: 2048 tokens, hidden 1024, MLP 4096 wide without a gate, 2 bytes an element
    whole = kept("core_attn")  # flash attention keeps no scores
    assert whole - kept("mlp") == pytest.approx(2048 * 4096 * 2 * 2)
    assert whole - kept("layernorm") == pytest.approx(2048 * 1024 * 4)


def test_offloaded_modules_leave_the_rest_on_the_gpu() -> None:
    spilled: dict[str, object] = {"offload": "activations"}
    whole = kept("core_attn", {"offload": "none"})
    some = kept("core_attn", spilled, offload_modules="attn_norm+mlp_norm")
    assert whole - some == pytest.approx(2 * 2048 * 1024 * 2)  # the inputs of both norms
    half = kept("core_attn", spilled, offload_layers=GPT.num_layers / 2)
    assert half == pytest.approx(whole / 2)
    assert kept("core_attn", spilled) == 0.0
