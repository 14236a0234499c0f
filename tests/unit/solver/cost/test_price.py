from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.adapters import ATTENTION_TARGETS
from meshwright.profiles.cluster import ClusterSpec, host_of
from meshwright.profiles.collectives.collectives import Group, all_gather_s, all_reduce_s
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Columns, Configuration, FloatArray
from meshwright.solver.cost.communication import tensor_parallel
from meshwright.solver.cost.compute import Gemm, gemm_seconds
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.parameters import unread_products
from meshwright.solver.cost.price import embedding_seconds, price
from meshwright.solver.cost.stages import LayerLayout, RowPrices, assemble, chunks_of, objective_s
from meshwright.solver.predict import predict
from tests.builders import a_cluster, a_gpu, a_model, a_moe_model
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile, of

LAYOUTS = (
    a_layout(),
    a_layout(tensor_parallel_size=8, sequence_parallel=True),
    a_layout(
        tensor_parallel_size=2, context_parallel_size=2, data_parallel_size=8,
        zero_stage=1, zero_shard_size=16,
    ),
    a_layout(data_parallel_size=32, zero_stage=3, zero_shard_size=32),
    a_layout(
        pipeline_parallel_size=4, stage_layers=(1, 1, 1, 1), pipeline_schedule="1f1b", data_parallel_size=8
    ),
    a_layout(
        pipeline_parallel_size=2, virtual_pipeline_size=2, stage_layers=(1, 1, 1, 1),
        pipeline_schedule="interleaved_1f1b", tensor_parallel_size=4,
        recompute_granularity="full", recompute_layers=1,
    ),
)  # fmt: skip


def step_s(configuration: Configuration, cluster: ClusterSpec) -> float:
    problem = a_problem(cluster=cluster)
    columns = Columns.of([configuration])
    prices = price(problem, columns, a_profile(problem))
    stages = assemble(prices, columns, LayerLayout.of(GPT), np.array([configuration.stage_layers]))
    return float(objective_s(prices, columns, stages)[0])


@pytest.mark.parametrize("configuration", LAYOUTS)
def test_a_split_that_counts_the_ends_has_the_stages_of_the_one_that_does_not(
    configuration: Configuration,
) -> None:
    problem, layout = a_problem(), LayerLayout.of(GPT)
    columns, split = Columns.of([configuration]), np.array([configuration.stage_layers])
    prices = price(problem, columns, a_profile(problem))
    plain = assemble(prices, columns, layout, split)
    counted = split.copy()
    counted[0, 0] += 1  # the embedding
    counted[0, -1] += 1  # the head
    ends = layout.with_ends()
    assert ends.layers_of(counted[0].tolist()) == configuration.stage_layers
    if configuration.recompute_layers in (0, sum(configuration.stage_layers)):
        found = assemble(prices.with_ends(), columns, ends, counted)
        np.testing.assert_allclose(found.rank_time_s, plain.rank_time_s, rtol=1e-12)
        np.testing.assert_allclose(found.rank_tail_s, plain.rank_tail_s, rtol=1e-12)
        np.testing.assert_allclose(found.peak_memory_bytes, plain.peak_memory_bytes, rtol=1e-12)
    again = prices.with_ends().without_ends()
    np.testing.assert_array_equal(again.state_bytes, prices.state_bytes)
    np.testing.assert_array_equal(ends.without_ends().cumulative, layout.cumulative)


def test_ends_that_were_counted_as_layers_keep_no_checkpoints_afterwards() -> None:
    prices = price(a_problem(), Columns.of(LAYOUTS), a_profile(a_problem()))
    # the embedding keeps some, too, and fewer than the head
    prices = replace(
        prices,
        activation_bytes=prices.activation_bytes
        + np.array([1.0, 2.0, 3.0, 5.0])[-prices.activation_bytes.shape[1] :],
    )
    counted = prices.with_ends()
    np.testing.assert_array_equal(counted.checkpoint_bytes[:, -4:-2], prices.activation_bytes[:, -2:])
    again = counted.without_ends()
    np.testing.assert_array_equal(again.checkpoint_bytes, prices.checkpoint_bytes)


def total(parts: dict[str, FloatArray]) -> FloatArray:
    return np.asarray(sum(parts.values()))


@pytest.mark.parametrize("configuration", LAYOUTS)
def test_causes_sum_to_the_passes(configuration: Configuration) -> None:
    problem = a_problem()
    prices = price(problem, Columns.of([configuration]), a_profile(problem))
    np.testing.assert_allclose(total(prices.breakdown_s), prices.forward_s + prices.backward_s, rtol=1e-12)
    np.testing.assert_allclose(total(prices.tail_breakdown_s), prices.tail_s, rtol=1e-12)


@pytest.mark.parametrize("configuration", LAYOUTS)
def test_no_price_is_negative(configuration: Configuration) -> None:
    problem = a_problem()
    prices = price(problem, Columns.of([configuration]), a_profile(problem))
    for values in (
        prices.forward_s,
        prices.backward_s,
        prices.tail_s,
        prices.replay_s,
        prices.activation_bytes,
    ):
        assert (values >= 0.0).all()
    for name, cause in prices.breakdown_s.items():
        assert (cause >= -1e-15).all(), name


def test_a_row_costs_the_same_alone_and_in_any_order() -> None:
    problem = a_problem()
    profile = a_profile(problem)
    columns = Columns.of(LAYOUTS)
    together = price(problem, columns, profile)
    backwards = price(problem, columns.take(np.arange(len(LAYOUTS))[::-1]), profile)
    for row in range(len(LAYOUTS)):
        alone = price(problem, columns.take(np.array([row])), profile)
        np.testing.assert_array_equal(together.forward_s[row], alone.forward_s[0])
        np.testing.assert_array_equal(together.forward_s[row], backwards.forward_s[-1 - row])
        np.testing.assert_array_equal(together.activation_bytes[row], alone.activation_bytes[0])


def test_prices_without_memory_have_the_same_times() -> None:
    problem, columns = a_problem(), Columns.of(LAYOUTS)
    both, timed = (
        price(problem, columns, a_profile(problem), with_memory=with_memory)
        for with_memory in (True, False)
    )
    layout, splits = LayerLayout.of(GPT), np.array([[1, 1, 1, 1]] * len(LAYOUTS))
    steps = [
        objective_s(one, columns, assemble(one, columns, layout, splits, with_memory=False))
        for one in (both, timed)
    ]
    np.testing.assert_array_equal(steps[0], steps[1])
    for name, seconds in both.breakdown_s.items():
        np.testing.assert_array_equal(seconds, timed.breakdown_s[name])
    assert both.weights_bytes.all()
    assert not timed.weights_bytes.any()


@settings(max_examples=25, deadline=None)
@given(
    configuration=st.sampled_from(LAYOUTS),
    peak=st.floats(1.0, 4.0),
    memory=st.floats(1.0, 4.0),
    fast=st.floats(1.0, 4.0),
    network=st.floats(1.0, 4.0),
)
def test_a_better_machine_is_never_slower(
    configuration: Configuration, peak: float, memory: float, fast: float, network: float
) -> None:
    before = a_cluster(num_nodes=4)
    gpu = a_gpu()
    better = replace(
        gpu,
        peak_flops={name: value * peak for name, value in gpu.peak_flops.items()},
        hbm_bytes_per_s=gpu.hbm_bytes_per_s * memory,
    )
    group = before.groups[0]
    inside = replace(group.intra_node, bytes_per_s=group.intra_node.bytes_per_s * fast)
    between = replace(group.inter_node, bytes_per_s=group.inter_node.bytes_per_s * network)
    faster = replace(group, gpu=better, intra_node=inside, inter_node=between)
    after = replace(before, groups=(faster,))
    assert step_s(configuration, after) <= step_s(configuration, before) * (1 + 1e-9)


def test_full_recomputation_replays_the_forward_pass() -> None:
    problem = a_problem()
    layout = a_layout(recompute_granularity="full", recompute_layers=4)
    prices = price(problem, Columns.of([layout]), a_profile(problem))
    assert prices.replay_s[0, 0] == prices.forward_s[0, 0]
    assert prices.replay_s[0, 1:].max() == 0.0


def test_a_tiny_layer_costs_the_floor() -> None:
    model = a_model(
        num_layers=4,
        hidden_size=128,
        ffn_hidden_size=256,
        num_attention_heads=2,
        num_kv_heads=2,
        head_dim=64,
    )
    problem = a_problem(model, seq_length=128)
    prices = price(problem, Columns.of([a_layout()]), a_profile(problem, floor_s=2e-3, floor_backward=1.5))
    # an H100's usual host takes 0.79 of the time of a DGX A100's
    assert prices.forward_s[0, 0] == pytest.approx(1.58e-3, rel=1e-3)
    assert prices.backward_s[0, 0] == pytest.approx(2.37e-3, rel=1e-3)


def test_captured_layers_leave_fifteen_hundredths_of_a_tiny_layers_floor() -> None:
    problem = a_problem(replace(GPT, hidden_size=128, ffn_hidden_size=512, head_dim=8), seq_length=128)
    graphs = replace(problem, workload=replace(problem.workload, framework_options={"cuda_graphs": True}))
    plain, captured = (
        price(one, Columns.of([a_layout()]), a_profile(one, floor_s=2e-3, fixed_s=0.02))
        for one in (problem, graphs)
    )
    assert plain.forward_s[0, 0] == pytest.approx(1.58e-3, rel=0.01)
    assert captured.forward_s[0, 0] == pytest.approx(0.15 * plain.forward_s[0, 0], rel=0.01)
    assert captured.fixed_s[0] == pytest.approx(0.003)  # 0.15 of what a step takes once


@pytest.mark.parametrize(
    ("options", "launches"),
    [
        ({"loss_fused": False}, 1.5),
        ({"loss_fused": True}, 0.75),
        ({"loss_fused": False, "cuda_graphs": True}, 1.5),  # no layer's graph holds the head
        ({"loss_fused": False, "cuda_graph": "full_iteration"}, 1.5 * 0.03),
    ],
)
def test_a_tiny_head_costs_its_launches(options: dict[str, object], launches: float) -> None:
    """On a host of 0.79 times a DGX A100's, where launching a layer takes a second."""
    problem = a_problem(framework_options=options)
    prices = price(problem, Columns.of([a_layout()]), a_profile(problem, floor_s=1.0, floor_backward=2.0))
    assert prices.forward_s[0, -1] == pytest.approx(0.79 * launches, rel=0.02)
    assert prices.backward_s[0, -1] == pytest.approx(2 * 0.79 * launches, rel=0.02)


def test_a_moe_model_has_prices_for_each_kind_of_layer() -> None:
    moe = a_moe_model()
    assert moe.moe is not None
    mixed = replace(moe, moe=replace(moe.moe, num_dense_layers=2))
    prices = price(
        a_problem(mixed), Columns.of([a_layout(stage_layers=(32,))]), a_profile(a_problem(mixed))
    )
    assert prices.forward_s.shape == (1, 4)  # dense, moe, embedding, head


def test_multi_token_prediction_weighs_on_the_head() -> None:
    plain, deeper = a_model(), a_model(num_mtp_layers=1)
    layout = Columns.of([a_layout(stage_layers=(80,))])
    before = price(a_problem(plain), layout, a_profile(a_problem(plain)))
    after = price(a_problem(deeper), layout, a_profile(a_problem(deeper)))
    gained = after.forward_s[0, -1] - before.forward_s[0, -1]
    assert gained > before.forward_s[0, 0]  # a whole layer and a second head
    assert after.weights_bytes[0, -1] > before.weights_bytes[0, -1] + before.weights_bytes[0, 0]


def test_a_reference_predicts_further_tokens_too() -> None:
    # the head of one further token: its causes with the reference's pass add up to its passes
    problem = a_problem(a_model(num_mtp_layers=1), reference="frozen", sample="pair")
    prices = price(problem, Columns.of([a_layout(stage_layers=(80,))]), a_profile(problem, "trl"))
    causes = sum(one[0, -1] for one in prices.breakdown_s.values())
    assert prices.breakdown_s["reference"][0, -1] > 0.0
    assert causes == pytest.approx(prices.forward_s[0, -1] + prices.backward_s[0, -1])


def test_hybrid_sharding_still_reduces_between_its_replicas() -> None:
    # ZeRO-3 over all 32 ranks leaves no exchange after the last micro-batch; sets of 8 leave one
    problem = a_problem()
    rows = [a_layout(data_parallel_size=32, zero_stage=3, zero_shard_size=size) for size in (32, 8)]
    exchange = price(problem, Columns.of(rows), a_profile(problem)).tail_breakdown_s["data_parallel"]
    assert exchange[0].max() == 0.0
    assert exchange[1, 0] > 0.0


STAGES = {"pipeline_parallel_size": 2, "stage_layers": (2, 2), "pipeline_schedule": "1f1b"}
EMBEDDING = 51200 * 1024


def gathered_s(profile: Profile, payload_bytes: float, *, ranks: int) -> float:
    """Seconds of an all-gather inside one island: 7/8 of it, or so, through each link."""
    ring = Group(np.array([float(ranks)]), np.ones(1), profile.fabric)
    return float(all_gather_s(np.array([payload_bytes]), ring)[0])


def reduced_s(profile: Profile, payload_bytes: float, *, ranks: int) -> float:
    """Seconds of an all-reduce inside one island."""
    ring = Group(np.array([float(ranks)]), np.ones(1), profile.fabric)
    return float(all_reduce_s(np.array([payload_bytes]), ring)[0])


def test_zero_3_gathers_and_reduces_the_ends_of_the_model_as_well() -> None:
    # both ends hold 52 M weights: a gather of 2 bytes each in the forward pass, a reduction of 4 in the
    # backward pass, nothing of which is hidden here; ZeRO-2 reduces only
    problem = a_problem(replace(GPT, tied_embeddings=False))
    sizes = [{"zero_stage": stage, "zero_shard_size": 8} for stage in (1, 2, 3)]
    rows = Columns.of([a_layout(data_parallel_size=8, **size) for size in sizes])
    profile = a_profile(problem, gather_exposed=1.0, collective_latency_s=0.0)
    causes = price(problem, rows, profile).breakdown_s["data_parallel"][:, -2:]
    first, last = (gathered_s(profile, EMBEDDING * each, ranks=8) for each in (2, 4))
    assert causes[0].max() == 0.0
    assert causes[1].tolist() == pytest.approx([last] * 2, rel=1e-3)
    assert causes[2].tolist() == pytest.approx([first + last] * 2, rel=1e-3)


def test_both_ends_add_up_the_gradients_of_a_tied_embedding() -> None:
    # an all-reduce of two ranks moves 2 * 1/2 of 52 M fp32 gradients, inside one island, at either end
    tied, apart = a_problem(), a_problem(replace(GPT, tied_embeddings=False))
    row = Columns.of([a_layout(**STAGES)])
    profile = a_profile(tied, collective_latency_s=0.0)
    extra = price(tied, row, profile).tail_s[0] - price(apart, row, profile).tail_s[0]
    seconds = reduced_s(profile, EMBEDDING * 4, ranks=2)
    assert extra.tolist() == pytest.approx([0.0, seconds, seconds])


def test_multi_token_prediction_keeps_a_copy_of_the_embedding_on_the_last_stage() -> None:
    weights = []
    for layout in (a_layout(), a_layout(**STAGES)):
        problem = a_problem(replace(GPT, tied_embeddings=False, num_mtp_layers=1))
        weights.append(price(problem, Columns.of([layout]), a_profile(problem)).weights_bytes[0, -1])
    assert weights[1] - weights[0] == 2 * EMBEDDING


def test_prediction_layers_on_a_stage_of_their_own_hand_the_head_their_hidden_states_too() -> None:
    # two layers, the prediction layer, the head: it gets two hidden states and hands back two gradients;
    # beside the head they hand on nothing more, and both together cost what the head did
    problem = a_problem(replace(GPT, tied_embeddings=False, num_mtp_layers=1))
    options = replace(problem.options, standalone_stages=True)
    problem = replace(problem, launcher="megatron-lm", options=options)
    layout = LayerLayout.of(problem.model).with_prediction(1)
    for stages, sent in (((2, 2, 1, 0), (1, 1, 2, 1)), ((1, 1, 1, 2), (1, 1, 1, 1))):
        row = Columns.of([a_layout(**{**STAGES, "pipeline_parallel_size": 4, "stage_layers": stages})])
        whole = price(problem, row, a_profile(problem))
        prices = whole.with_prediction()
        found = assemble(prices, row, layout, np.array([stages]))
        parts = chunks_of(row, layout, np.array([stages])).parts[0]
        transfer_s = float(prices.transfer_s[0])
        assert transfer_s > 0.0
        own_s = parts @ prices.forward_s[0]
        assert found.chunk_forward_s[0] == pytest.approx(own_s + transfer_s * np.array(sent))
        own_s = parts @ prices.backward_s[0]
        assert found.chunk_backward_s[0] == pytest.approx(own_s + transfer_s * np.roll(sent, 1))
        for name in ("forward_s", "backward_s", "tail_s", "weights_bytes", "activation_bytes"):
            both = getattr(prices, name)[0, [-3, -1]].sum()
            assert both == pytest.approx(getattr(whole, name)[0, -1])
        longer = replace(
            whole, prediction={"tail_s": 2.0 * whole.tail_s[:, -1]}
        )  # alone than beside the head
        assert longer.with_prediction().tail_s[0, [-3, -1]].sum() == pytest.approx(whole.tail_s[0, -1])


def test_routed_experts_are_outside_tensor_parallelism_and_shared_ones_inside() -> None:
    # attention, and the shared experts where there are any, are a block each: half of a dense layer's two
    moe = a_moe_model()
    assert moe.moe is not None
    shared = replace(moe, moe=replace(moe.moe, num_shared_experts=1, shared_ffn_hidden_size=14336))
    row = Columns.of([a_layout(tensor_parallel_size=8, sequence_parallel=True, stage_layers=(32,))])
    dense, alone, both = (
        price(a_problem(model), row, a_profile(a_problem(model))).breakdown_s["tensor_parallel"][0, 0]
        for model in (replace(moe, moe=None), moe, shared)
    )
    assert alone == pytest.approx(dense / 2)
    assert both == pytest.approx(dense)


def test_stragglers_grow_with_the_logarithm_of_nodes() -> None:
    # 32 GPUs = 4 nodes: 1 + 2 sigma; 8 GPUs = one node: 1
    problem = a_problem()
    rows = Columns.of([a_layout(data_parallel_size=8), a_layout(data_parallel_size=32)])
    prices = price(problem, rows, a_profile(problem, straggler=0.01))
    assert prices.straggler.tolist() == pytest.approx([1.0, 1.02])


def test_deepspeed_gathers_huge_layers_once_more_for_recomputation_and_hides_nothing_of_them() -> None:
    # a layer of 1.8e9 weights (GPT-3) is past the 1e9 that may stay; one of Llama 70B, 0.86e9, is past half
    def replay_over_forward(model: ModelSpec, framework: str) -> float:
        layers = model.num_layers
        row = a_layout(
            data_parallel_size=32, zero_stage=3, zero_shard_size=32, stage_layers=(layers,),
            recompute_granularity="full", recompute_layers=layers,
        )  # fmt: skip
        problem = a_problem(model)
        prices = price(problem, Columns.of([row]), a_profile(problem, framework))
        return float(prices.replay_s[0, 0] / prices.forward_s[0, 0])

    huge = a_model(hidden_size=12288, ffn_hidden_size=49152, num_attention_heads=96, num_kv_heads=96)
    assert replay_over_forward(huge, "deepspeed-2021") == pytest.approx(1.0)
    assert replay_over_forward(huge, "fsdp") < 1.0


# Time of what is not plain training: frozen models, other optimizers, offloading, 8-bit gradients.

FLOORLESS = {"floor_s": 1e-9, "collective_latency_s": 1e-9}


def prices_of(
    framework: str = "megatron-core",
    offload: str = "none",
    launcher: str = "megatron-lm",
    **workload: object,
) -> RowPrices:
    """One layer's prices on dp 2 without any floor."""
    problem = replace(a_problem(**workload), launcher=launcher)  # type: ignore[arg-type]
    layout = a_layout(data_parallel_size=2, offload=offload)
    return price(problem, Columns.of([layout]), a_profile(problem, framework, **FLOORLESS))


def replayed_s(*, early: bool, fused: bool = False, **workload: object) -> float:
    """Seconds of replaying one layer of the GPT on two tensor-parallel ranks under torchtitan."""
    layout = a_layout(
        tensor_parallel_size=2, sequence_parallel=True, recompute_granularity="full", recompute_layers=4
    )
    options = {"replay_stops_early": early, "elementwise_fused": fused}
    problem = a_problem(framework_options=options, **workload)  # type: ignore[arg-type]
    profile = a_profile(problem, "fsdp", **FLOORLESS)
    return float(price(problem, Columns.of([layout]), profile).replay_s[0, 0])


def test_torchs_checkpoints_spare_the_last_product_of_a_replay_and_its_reduction() -> None:
    layout = a_layout(tensor_parallel_size=2, sequence_parallel=True)
    ctx = context_of(a_problem(), Columns.of([layout]), a_profile(a_problem(), "fsdp", **FLOORLESS))
    down = Gemm(m=ctx.tokens, n=GPT.hidden_size, k=GPT.ffn_hidden_size / ctx.t)
    product = gemm_seconds(ctx, [down], "bf16").forward
    reduction = tensor_parallel(ctx).forward / 4.0  # one of two gathers and two reductions
    spared = replayed_s(early=False) - replayed_s(early=True)
    assert spared == pytest.approx(float((product + reduction)[0]))


@pytest.mark.parametrize(("fused", "spares"), [(True, True), (False, False)])
def test_torchtitans_replays_spare_the_last_product_only_where_blocks_are_compiled(
    fused: bool, spares: bool
) -> None:
    """Its checkpoints say ``early_stop=False``."""
    own, stopped = (replayed_s(early=early, fused=fused) for early in (False, True))
    assert (own == stopped) == spares


@pytest.mark.parametrize(("stage", "count"), [(2, 1.0), (3, 0.0)])
def test_deepspeeds_linear_layers_under_zero_3_are_replayed_to_the_last(stage: int, count: float) -> None:
    # an autograd function of its own, whose input is saved when its product is done
    layout = {"zero_stage": stage, "zero_shard_size": 8, "recompute_granularity": "full"}
    (last,) = unread_products(of(GPT, layout, "deepspeed"), "dense")
    assert np.all(last.count == count)


@pytest.mark.parametrize(("targets", "spares"), [(ATTENTION_TARGETS, True), (("linear_fc2",), False)])
def test_an_adapter_on_the_last_product_has_it_replayed(targets: tuple[str, ...], spares: bool) -> None:
    adapted = {"lora_rank": 16, "lora_targets": targets}
    early, whole = (replayed_s(early=one, fused=False, **adapted) for one in (True, False))
    assert (early < whole) == spares


def test_dropout_keeps_a_mask_behind_the_last_product_which_is_replayed_for_it() -> None:
    def with_dropout(*, early: bool) -> float:
        layout = a_layout(recompute_granularity="full", recompute_layers=4)
        problem = a_problem(framework_options={"replay_stops_early": early, "dropout": True})
        profile = a_profile(problem, "deepspeed", **FLOORLESS)
        return float(price(problem, Columns.of([layout]), profile).replay_s[0, 0])

    assert with_dropout(early=True) == with_dropout(early=False)


@pytest.mark.parametrize(("framework", "spares"), [("deepspeed", False), ("fsdp", True)])
def test_deepspeeds_pipeline_replays_whole_layers(framework: str, spares: bool) -> None:
    def replayed(stages: tuple[int, ...], *, early: bool) -> float:
        layout = a_layout(
            pipeline_parallel_size=len(stages), stage_layers=stages, recompute_granularity="full",
            recompute_layers=stages[0],
        )  # fmt: skip
        options = {"replay_stops_early": early, "elementwise_fused": False}
        problem = a_problem(framework_options=options)
        profile = a_profile(problem, framework, **FLOORLESS)
        return float(price(problem, Columns.of([layout]), profile).replay_s[0, 0])

    whole, half = (GPT.num_layers,), (GPT.num_layers // 2,) * 2
    assert replayed(whole, early=True) < replayed(whole, early=False)
    assert (replayed(half, early=True) < replayed(half, early=False)) == spares


def test_lists_of_one_tensor_for_each_rank_are_copied_one_by_one() -> None:
    """Four matrices a layer, 32 ranks, 6 microseconds each, in each pass's gather and in the reduction."""
    layout = a_layout(data_parallel_size=32, zero_stage=3, zero_shard_size=32)
    problem = a_problem()
    profile = a_profile(problem, "deepspeed-2021", **FLOORLESS)
    flat = replace(profile, framework=replace(profile.framework, gathers_tensors=False))
    listed, flattened = (
        price(problem, Columns.of([layout]), one).breakdown_s["data_parallel"][0, 0]
        for one in (profile, flat)
    )
    copies = 4 * 32 * 6e-6 * profile.gpu_operators.host
    assert listed - flattened == pytest.approx(3 * copies)


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


def test_bf16_gradients_of_ms_swift_leave_two_bytes_of_the_fp32_weights() -> None:
    # its precision-aware optimizer keeps what bf16 weights lack: 2 + 4 + 4 bytes, not 4 + 4 + 4
    options = {"gradient_dtype": "bf16"}
    kept = {
        launcher: prices_of(launcher=launcher, framework_options=options).optimizer_bytes[0, 0]
        for launcher in ("ms-swift", "megatron-lm")
    }
    assert kept["ms-swift"] / kept["megatron-lm"] == pytest.approx(10 / 12)
    assert prices_of(launcher="ms-swift").optimizer_bytes[0, 0] == kept["megatron-lm"]


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
    # fp32 gradient there, 2-byte weight back; of host memory Adam moves 30 bytes, and 4 are read to be cast
    weights = 12 * 1024**2 + 2 * 1024
    expected = weights * (6 / host.link_bytes_per_s + 34 / host.memory_bytes_per_s)
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


# Weight gradients as passes of their own, and chunks in a V.

PROBLEM = a_problem(replace(GPT, num_layers=16, vocab_size=1024))  # ends that weigh little
PROFILE = a_profile(PROBLEM)


def four_ranks(schedule: str, **changes: object) -> Configuration:
    return a_layout(
        **{
            "pipeline_parallel_size": 4,
            "stage_layers": (4, 4, 4, 4),
            "pipeline_schedule": schedule,
            "micro_batch_size": 4,
            "num_microbatches": 12,
            **changes,
        }
    )


def test_only_split_schedules_put_weight_gradients_off() -> None:
    columns = Columns.of([four_ranks("1f1b"), four_ranks("zb_h1")])
    weight, backward = (
        getattr(price(PROBLEM, columns, PROFILE), name) for name in ("weight_gradient_s", "backward_s")
    )
    assert not weight[0].any()
    # of a layer's and the head's backward pass less than half: one of two products; the embedding has none
    assert (weight[1, [0, 2]] > 0.0).all()
    assert (weight[1, [0, 2]] < 0.5 * backward[1, [0, 2]]).all()
    assert weight[1, 1] == 0.0


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_1p"])
def test_a_split_backward_pass_shortens_the_step_but_not_the_work(schedule: str) -> None:
    plain = predict(PROBLEM, PROFILE, four_ranks("1f1b"))
    split = predict(PROBLEM, PROFILE, four_ranks(schedule))
    assert split.step_time_s < plain.step_time_s
    assert [stage.compute_s for stage in split.stages] == [stage.compute_s for stage in plain.stages]


def test_twice_the_memory_buys_less_bubble() -> None:
    one, two = (predict(PROBLEM, PROFILE, four_ranks(name)) for name in ("zb_h1", "zb_h2"))
    assert two.step_time_s < one.step_time_s
    assert two.peak_memory_bytes > one.peak_memory_bytes


def test_a_v_puts_both_ends_of_the_model_on_rank_0() -> None:
    # 8 layers over 4 ranks: rank 0 holds chunks 0 and 7, so the embedding, the head, and 2 layers
    problem = a_problem(replace(GPT, num_layers=8))
    one = four_ranks("zb_v", virtual_pipeline_size=2, stage_layers=(1,) * 8)
    columns = Columns.of([one])
    prices, layout = price(problem, columns, PROFILE), LayerLayout.of(problem.model)
    weights = assemble(prices, columns, layout, np.array([one.stage_layers])).memory_bytes["weights"][0]
    layer, embedding, head = prices.weights_bytes[0]
    assert weights == pytest.approx([2 * layer + embedding + head, 2 * layer, 2 * layer, 2 * layer])
    assert one.layers_of_rank(0) == (1, 1)


def test_rows_of_all_schedules_are_added_up_as_alone() -> None:
    rows = [
        four_ranks("1f1b"),
        four_ranks("zb_2p"),
        four_ranks("interleaved_1f1b", pipeline_parallel_size=2, virtual_pipeline_size=2),
        four_ranks("zb_v", pipeline_parallel_size=2, virtual_pipeline_size=2),
        four_ranks("looped_bfs", pipeline_parallel_size=2, virtual_pipeline_size=2),
        a_layout(stage_layers=(16,)),
    ]
    layout = LayerLayout.of(PROBLEM.model)
    splits = np.array([[*row.stage_layers, *[0] * (4 - len(row.stage_layers))] for row in rows])
    columns = Columns.of(rows)
    together = assemble(price(PROBLEM, columns, PROFILE), columns, layout, splits)
    for number, row in enumerate(rows):
        single = Columns.of([row])
        alone = assemble(price(PROBLEM, single, PROFILE), single, layout, np.array([row.stage_layers]))
        ranks = row.pipeline_parallel_size
        assert together.peak_memory_bytes[number, :ranks].tolist() == alone.peak_memory_bytes[0].tolist()
        assert together.rank_time_s[number, :ranks].tolist() == alone.rank_time_s[0].tolist()


def test_an_embedding_by_products_reads_one_hot_rows_and_multiplies_twice() -> None:
    model = replace(GPT, tied_embeddings=False)
    plain, asked = (of(model, {}, "maxtext", embedding_products=on) for on in (False, True))
    found = embedding_seconds(asked)
    product = 2.0 * 2048 * 51200 * 1024  # FLOPs: tokens, rows of the table, hidden size
    written = 2.0 * 2048 * 51200 / asked.hbm_bytes_per_s
    whole = gemm_seconds(asked, [Gemm(m=asked.tokens, n=1024, k=51200.0)], "bf16")
    assert found.forward[0] == pytest.approx(whole.forward[0] + written)
    assert found.forward[0] > product / asked.gpu.peak_bf16_flops
    # Two products in a backward pass have one for inputs, which one-hot rows do not need.
    assert product / asked.gpu.peak_bf16_flops < found.backward[0] < whole.backward[0]
    assert embedding_seconds(plain).forward[0] < found.forward[0] / 10
    # 2 bytes of 2,048 rows of 51,200 are kept on the first rank for the table's gradient, which comes last.
    kept, usual = (
        price(problem, Columns.of([a_layout()]), a_profile(problem, "maxtext"))
        for problem in (
            a_problem(model, framework_options={"embedding_products": on}) for on in (True, False)
        )
    )
    assert (kept.activation_bytes - usual.activation_bytes)[0].tolist() == [0.0, 2.0 * 2048 * 51200, 0.0]
    assert (kept.head_workspace_bytes == usual.head_workspace_bytes).all()
