import math
from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.adapters import single_layers
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.library import find_gpu, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.units import GIB
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import (
    kept_free_words,
    layer_activation_bytes,
    memory_budget_bytes,
    out_of_memory_probability,
)
from meshwright.solver.cost.parameters import part_weights
from meshwright.solver.cost.price import head_seconds, price
from meshwright.solver.cost.stages import (
    EACH_RANK,
    RowPrices,
    end_of_step_s,
    parts_room_bytes,
    stage_bytes,
    step_of_end_s,
)
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import workload_faults
from tests.builders import a_cluster, a_moe_model, weights_of
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

CLASSIC = {"activation": 1.0}


def prices_of(
    problem: Problem, configuration: Configuration, framework: str = "megatron-core"
) -> RowPrices:
    return price(problem, Columns.of([configuration]), a_profile(problem, framework, **CLASSIC))


def states(prices: RowPrices, part: int = 0) -> float:
    """Bytes of weights, gradients and optimizer of one part."""
    terms = (prices.weights_bytes, prices.gradients_bytes, prices.optimizer_bytes)
    return float(sum(term[0, part] for term in terms))


LAYER_WEIGHTS = 12 * 1024**2 + 2 * 1024  # 4 h^2 attention, 8 h^2 MLP, two norms


def test_mixed_precision_adamw_keeps_18_bytes_a_weight() -> None:
    # 2 (weight) + 4 (fp32 gradient) + 12 (fp32 copy, two moments)
    assert states(prices_of(a_problem(), a_layout())) == pytest.approx(18 * LAYER_WEIGHTS)


def test_a_head_of_unit_rows_has_a_copy_and_its_gradient_and_moves_30_bytes_a_weight() -> None:
    # Baichuan 2's NormHead: 2 + 2 bytes of each of the head's weights beside the logits
    plain = a_problem()
    unit = replace(plain, model=replace(plain.model, normalized_head=True))
    before, after = prices_of(plain, a_layout()), prices_of(unit, a_layout())
    weights = plain.model.vocab_size * plain.model.hidden_size
    more = after.head_workspace_bytes - before.head_workspace_bytes
    assert more == pytest.approx(4 * weights)
    columns = Columns.of([a_layout()])
    contexts = [context_of(one, columns, a_profile(one)) for one in (plain, unit)]
    short, long = map(head_seconds, contexts)
    read_s = weights / contexts[0].hbm_bytes_per_s
    assert long.forward - short.forward == pytest.approx(6 * read_s)
    assert long.backward - short.backward == pytest.approx(24 * read_s)


def test_the_distributed_optimizer_keeps_6_and_12_over_dp_bytes_a_weight() -> None:
    # dp 8: 6 + 12 / 8 = 7.5
    layout = a_layout(data_parallel_size=8, zero_stage=1, zero_shard_size=8)
    assert states(prices_of(a_problem(), layout)) == pytest.approx(7.5 * LAYER_WEIGHTS)


def test_context_parallel_ranks_share_the_distributed_optimizer_too() -> None:
    # dp 4 * cp 2 = 8 shards: 7.5 bytes again
    layout = a_layout(data_parallel_size=4, context_parallel_size=2, zero_stage=1, zero_shard_size=8)
    assert states(prices_of(a_problem(), layout)) == pytest.approx(7.5 * LAYER_WEIGHTS)


def test_zero_2_shards_gradients_and_zero_3_weights_as_well() -> None:
    # dp 8: 2 + (4 + 12) / 8 = 4; 18 / 8 = 2.25
    for stage, per_weight in ((2, 4.0), (3, 2.25)):
        layout = a_layout(data_parallel_size=8, zero_stage=stage, zero_shard_size=8)
        assert states(prices_of(a_problem(), layout)) == pytest.approx(per_weight * LAYER_WEIGHTS)


def test_hybrid_sharding_shares_among_fewer_ranks() -> None:
    # dp 16, shard sets of 4: 6 + 12 / 4 = 9
    layout = a_layout(data_parallel_size=16, zero_stage=1, zero_shard_size=4)
    assert states(prices_of(a_problem(), layout)) == pytest.approx(9.0 * LAYER_WEIGHTS)


def test_experts_are_sharded_over_their_own_data_parallel_group() -> None:
    # 8 experts over ep 4: 2 a rank; dp 8 leaves 8 / 4 = 2 replicas: 6 + 12 / 2 = 12 bytes
    model = a_moe_model()
    layout = a_layout(
        data_parallel_size=8, expert_parallel_size=4, zero_stage=1, zero_shard_size=8, stage_layers=(32,)
    )
    prices = prices_of(a_problem(model), layout)
    experts = 2 * 3 * 4096 * 14336
    layer, router = model.layer("moe"), 8 * 4096
    dense = weights_of(layer, "attention") + layer.norms + router
    assert states(prices) == pytest.approx(12.0 * experts + 7.5 * dense)


def test_a_gpt_layer_keeps_what_korthikanti_counts() -> None:
    # Korthikanti et al. 2022, eq. 1: s b h (34 + 5 a s / h), s 2048, b 1, a 16, h 1024
    prices = prices_of(a_problem(), a_layout(), "megatron-lm-2021")
    expected = 2048 * 1024 * (34 + 5 * 16 * 2048 / 1024)
    assert prices.activation_bytes[0, 0] == pytest.approx(expected)


def test_tensor_parallelism_splits_what_korthikanti_says_it_splits() -> None:
    # eq. 2: s b h (10 + 24 / t + 5 a s / (h t)) at t = 4
    prices = prices_of(a_problem(), a_layout(tensor_parallel_size=4), "megatron-lm-2021")
    expected = 2048 * 1024 * (10 + 24 / 4 + 5 * 16 * 2048 / (1024 * 4))
    assert prices.activation_bytes[0, 0] == pytest.approx(expected)


def test_sequence_parallelism_splits_everything() -> None:
    # eq. 4: s b h / t (34 + 5 a s / h)
    layout = a_layout(tensor_parallel_size=4, sequence_parallel=True)
    prices = prices_of(a_problem(), layout, "megatron-lm-2021")
    assert prices.activation_bytes[0, 0] == pytest.approx(2048 * 1024 / 4 * (34 + 5 * 16 * 2048 / 1024))


def test_selective_recomputation_drops_the_scores() -> None:
    # eq. 6 without sequence parallelism: 34 s b h
    layout = a_layout(recompute_granularity="selective")
    prices = prices_of(a_problem(), layout, "megatron-lm-2021")
    assert prices.activation_bytes[0, 0] == pytest.approx(2048 * 1024 * 34)


def test_full_recomputation_keeps_the_input_of_a_layer() -> None:
    # 2 s b h
    layout = a_layout(recompute_granularity="full", recompute_layers=4)
    prices = prices_of(a_problem(), layout)
    assert prices.checkpoint_bytes[0, 0] == pytest.approx(2 * 2048 * 1024)
    assert prices.replay_workspace_bytes[0] == pytest.approx(prices.activation_bytes[0, 0])


def test_flash_attention_keeps_no_scores() -> None:
    # four h-wide tensors (q, k, v, output) and a 4-byte log-sum-exp for each of 16 heads, norms and
    # projection inputs 8 h, MLP 2 * 2 * 4 h; no dropout: 32 h + 64
    prices = prices_of(a_problem(), a_layout())
    assert prices.activation_bytes[0, 0] == pytest.approx(2048 * (32 * 1024 + 64))


def test_tied_embeddings_cost_the_last_rank_a_copy_only_when_it_is_not_the_first() -> None:
    alone = prices_of(a_problem(), a_layout())
    staged = prices_of(
        a_problem(), a_layout(pipeline_parallel_size=2, stage_layers=(2, 2), pipeline_schedule="1f1b")
    )
    assert alone.weights_bytes[0, -1] < 1e5  # the final norm
    assert staged.weights_bytes[0, -1] == pytest.approx(2 * (51200 + 1) * 1024)


def test_the_limit_is_what_the_driver_reports() -> None:
    assert a_problem().memory_limit_bytes == 79 * GIB


def test_a_peak_at_the_limit_runs_out_of_memory_every_other_time() -> None:
    assert out_of_memory_probability(79.0, 79.0, 0.1) == pytest.approx(0.5)


def accepting(problem: Problem, risk: float) -> Problem:
    return replace(problem, options=replace(problem.options, max_out_of_memory_probability=risk))


def test_the_budget_is_the_peak_of_exactly_that_probability() -> None:
    # ppf(5 %) = -1.645: limit * exp(-1.645 sigma)
    problem = a_problem()
    profile = a_profile(problem)
    budget = memory_budget_bytes(problem, profile)
    chance = out_of_memory_probability(budget, problem.memory_limit_bytes, profile.log_memory_sigma)
    assert chance == pytest.approx(0.05)


def test_a_peak_of_exactly_the_accepted_chance_is_within_the_budget_however_its_layers_are_rounded() -> (
    None
):
    problem = a_problem()
    profile, peak = a_profile(problem), 70e9
    chance = out_of_memory_probability(peak, problem.memory_limit_bytes, profile.log_memory_sigma)
    budget = memory_budget_bytes(accepting(problem, chance), profile)
    assert budget - peak == pytest.approx(
        70.0, abs=1.0
    )  # 1e-9 of it; CP-SAT rounds half a byte of each layer


def test_without_spread_the_limit_is_a_wall() -> None:
    assert out_of_memory_probability(1.01, 1.0, 0.0) == 1.0
    assert out_of_memory_probability(1.0, 1.0, 0.0) == 0.0


def test_more_probability_gives_more_room() -> None:
    problem = a_problem(GPT)
    profile = a_profile(problem)
    budgets = [memory_budget_bytes(accepting(problem, p), profile) for p in (0.0, 0.001, 0.01, 0.5, 1.0)]
    assert budgets == sorted(budgets)


def test_dropout_keeps_a_mask_for_each_residual() -> None:
    # two masks of one byte: 2 s b h more than without
    kept = [
        prices_of(a_problem(framework_options={"dropout": on}), a_layout()).activation_bytes[0, 0]
        for on in (True, False)
    ]
    assert kept[0] - kept[1] == pytest.approx(2 * 2048 * 1024)


def test_a_split_context_keeps_no_scores_whatever_the_kernel() -> None:
    # 5 bytes a score: 1024 tokens of a rank, 16 heads, 2048 keys
    problem = a_problem(framework_options={"attention_kernel": "megatron-fused"})
    split = prices_of(problem, a_layout(context_parallel_size=2)).activation_bytes[0, 0]
    flash = prices_of(a_problem(), a_layout(context_parallel_size=2)).activation_bytes[0, 0]
    assert split == pytest.approx(flash)


def test_gathered_inputs_that_are_kept_stay_whole_where_sequence_parallelism_splits_the_rest() -> None:
    # tp 4: two projection inputs of 2 bytes stay whole: (4 - 4 / 4) s b h more than split ones
    layout = a_layout(tensor_parallel_size=4, sequence_parallel=True)
    split = prices_of(a_problem(), layout, "nanotron").activation_bytes[0, 0]
    whole = prices_of(
        a_problem(framework_options={"keeps_gathered_inputs": True}), layout, "nanotron"
    ).activation_bytes[0, 0]
    assert whole - split == pytest.approx(3 * 2048 * 1024)


def test_logits_take_6_bytes_at_the_peak_and_4_where_the_loss_is_one_kernel() -> None:
    # 2048 tokens, 51 200 words; the head's input beside them: 4 s b h
    for fused, per_logit in ((False, 6), (True, 4)):
        prices = prices_of(a_problem(framework_options={"loss_fused": fused}), a_layout())
        expected = 2048 * 51200 * per_logit + 4 * 2048 * 1024
        assert prices.head_workspace_bytes[0] == pytest.approx(expected)


def test_the_last_stage_of_deepspeeds_pipeline_holds_fp32_logits_of_two_earlier_micro_batches() -> None:
    # 2 + 4 bytes of a logit while its loss is made, and the 4 of each output that pipe_buffers keeps
    prices = prices_of(a_problem(), a_layout(), "megatron-deepspeed")
    expected = 2048 * 51200 * (2 + 4 + 2 * 4) + 4 * 2048 * 1024
    assert prices.head_workspace_bytes[0] == pytest.approx(expected)


def test_megatron_pads_the_vocabulary_to_128_for_each_tensor_rank() -> None:
    # 50 257 words: 50 304 at tp 1, 51 200 at tp 8
    model = replace(GPT, vocab_size=50257)
    for tp, words in ((1, 50304), (8, 51200)):
        prices = prices_of(a_problem(model), a_layout(tensor_parallel_size=tp))
        assert prices.weights_bytes[0, -2] == pytest.approx(2 * words * 1024 / tp)


def test_weights_of_an_8_bit_recipe_take_one_byte_on_blackwell_and_two_on_hopper() -> None:
    # Hopper's GEMMs need the transpose as well
    for gpu, per_weight in (("b200-sxm-180gb", 1), ("h100-sxm-80gb", 2)):
        problem = a_problem(cluster=a_cluster(gpu=find_gpu(gpu)), precision="fp8")
        prices = prices_of(problem, a_layout(), "nemo")
        assert prices.weights_bytes[0, 0] == pytest.approx(per_weight * LAYER_WEIGHTS)


def test_embedding_and_output_matrix_stay_in_2_bytes_beside_layers_in_8_bits() -> None:
    # embedding, and output with a norm of 1024; a layer that predicts a further token is held in 8 bits:
    # 12 h^2 + 2 h, and 2 h^2 + 3 h that join it to the output
    cluster, model = a_cluster(gpu=find_gpu("b200-sxm-180gb")), replace(GPT, tied_embeddings=False)

    def weights(model: ModelSpec) -> list[float]:
        problem = a_problem(model, cluster=cluster, precision="fp8")
        return list(prices_of(problem, a_layout(), "nemo").weights_bytes[0])

    table = math.ceil(GPT.vocab_size / 128) * 128 * 1024
    assert weights(model)[1:] == [2 * table, 2 * (table + 1024)]
    further = weights(replace(model, num_mtp_layers=1))[2] - weights(model)[2]
    assert further == pytest.approx(LAYER_WEIGHTS + 2 * 1024**2 + 3 * 1024)


def test_of_an_8_bit_recipe_layers_travel_in_1_byte_and_the_ends_in_2() -> None:
    # ZeRO-1 gathers what it updated
    problem = a_problem(precision="fp8")
    layout = a_layout(data_parallel_size=8, zero_stage=1, zero_shard_size=8)
    context = context_of(problem, Columns.of([layout]), a_profile(problem, "nemo"))
    parts = part_weights(context, problem.model.shapes())
    sent = [float((part.dense_bytes(context.sharding.gathered_bytes) / part.dense)[0]) for part in parts]
    assert sent == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("optimizer", "per_weight"), [("adamw", 12), ("adamw-bf16", 6), ("muon", 8), ("sgd-momentum", 8)]
)
def test_an_optimizer_keeps_its_states_beside_the_fp32_copy(optimizer: str, per_weight: int) -> None:
    prices = prices_of(a_problem(optimizer=optimizer), a_layout())
    assert prices.optimizer_bytes[0, 0] == pytest.approx(per_weight * LAYER_WEIGHTS)


@pytest.mark.parametrize("optimizer", [name for name, one in OPTIMIZERS.items() if not one.fp32_copy])
def test_an_embedding_in_fp32_doubles_what_has_its_type_and_leaves_moments_of_bitsandbytes(
    optimizer: str,
) -> None:
    # 2 bytes more of the weight, 2 of its gradient; torch's moments of bf16 become fp32: 4 bytes more of
    # two, 2 of Adam-mini's one. bitsandbytes' are 8 bits or fp32 whatever the weights are. APOLLO layer by
    # layer has two temporaries of the embedding's type at its update.
    plain = a_problem(optimizer=optimizer)
    work = replace(plain.workload, framework_options={"fp32_ends": True})
    before, after = (prices_of(one, a_layout(), "trl") for one in (plain, replace(plain, workload=work)))
    moments = {"adam-mini-pure-bf16": 2, "apollo-pure-bf16-layerwise": 4 + 2 * 2}.get(
        optimizer, 4 if "pure" in optimizer else 0
    )
    embedding = plain.model.vocab_size * plain.model.hidden_size
    more = states(after, -2) - states(before, -2)
    assert more == pytest.approx((2 + 2 + moments) * embedding)


@pytest.mark.parametrize("optimizer", [name for name, one in OPTIMIZERS.items() if one.fp32_copy])
def test_fp32_ends_are_refused_where_every_weight_has_an_fp32_copy(optimizer: str) -> None:
    plain = a_problem(optimizer=optimizer)
    work = replace(plain.workload, framework_options={"fp32_ends": True})
    faults = workload_faults(replace(plain, workload=work), launcher_capabilities("trl"))
    (fault,) = (one for one in faults if one.pointer.endswith("fp32_ends"))
    assert str(fault.message) == f"true changes nothing next to {optimizer}'s fp32 copy of all weights"


def test_of_the_fp32_copy_beside_bf16_moments_megatron_keeps_what_bf16_weights_lack() -> None:
    # 2 remaining bytes and two moments of 2; fp16 is no half of an fp32 weight, fp8 keeps it whole, and
    # so does Megatron-Bridge, whose optimizer is told a recipe of 8 bits in bf16, too
    for precision, framework, per_weight in (
        ("bf16", "megatron-core", 6),
        ("fp16", "megatron-core", 8),
        ("fp8", "nemo", 8),
        ("bf16", "nemo", 8),
        ("bf16", "nanotron", 8),
    ):
        problem = a_problem(optimizer="adamw-bf16", precision=precision)
        prices = prices_of(problem, a_layout(), framework)
        assert prices.optimizer_bytes[0, 0] == pytest.approx(per_weight * LAYER_WEIGHTS)


def test_muon_leaves_the_embedding_to_adamw() -> None:
    prices = prices_of(a_problem(optimizer="muon"), a_layout())
    assert prices.optimizer_bytes[0, -2] == pytest.approx(12 * 51200 * 1024)


def test_a_frozen_layer_keeps_its_weights_and_the_states_of_its_adapters_only() -> None:
    # rank 16 beside h -> 3 h and h -> h: 16 (1024 + 3072 + 1024 + 1024) trained weights
    prices = prices_of(a_problem(lora_rank=16), a_layout())
    adapters = 16 * 6 * 1024
    assert prices.weights_bytes[0, 0] == pytest.approx(2 * (LAYER_WEIGHTS + adapters))
    assert prices.gradients_bytes[0, 0] == pytest.approx(4 * adapters)
    assert prices.optimizer_bytes[0, 0] == pytest.approx(12 * adapters)
    assert (prices.gradients_bytes[0, 1:] == 0).all()


def test_frozen_layers_keep_no_inputs_but_those_of_adapters() -> None:
    # s = 2048, h = 1024, 2-byte elements: without a weight gradient go the MLP's input and the product's
    # output that its last matrix reads: 2 h and 2 * 4 h; beside adapters they stay
    def kept(*targets: str) -> float:
        problem = a_problem(lora_rank=16, lora_targets=targets) if targets else a_problem()
        return float(prices_of(problem, a_layout()).activation_bytes[0, 0])

    everything = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    assert kept() - kept("linear_qkv", "linear_proj") == pytest.approx(2048 * (2 + 2 * 4) * 1024)
    assert kept(*everything) == kept()
    assert kept() - kept("linear_proj") == pytest.approx(2048 * (2 + 2 + 2 * 4) * 1024)


def test_frozen_layers_of_int8_keep_their_inputs_as_trained_ones_do() -> None:
    # bitsandbytes saves the input of every product, whether an adapter reads it, too, or none
    def kept(problem: Problem) -> float:
        return float(prices_of(problem, a_layout(), "accelerate").activation_bytes[0, 0])

    adapted = a_problem(lora_rank=16, lora_targets=("o_proj",))
    nf4, int8 = (
        kept(replace(adapted, workload=replace(adapted.workload, base_precision=precision)))
        for precision in ("nf4", "int8")
    )
    # rows that an fp32 embedding makes: 2 bytes more of each norm's input, and a cast each for q, k and v
    wide = (2 + 2) * 2 * 2048 * 1024
    cast = 2 * 2048 * 1024  # of o_proj's input to the fp32 adapter's type and back
    assert nf4 == kept(adapted) < kept(a_problem()) - wide + cast == int8


def test_gptq_keeps_a_16_bit_copy_of_every_matrix_until_the_backward_pass_unless_it_is_replayed() -> None:
    def weights(base: BasePrecision, recompute: str = "none") -> float:
        problem = a_problem(lora_rank=16, lora_targets=("q_proj",), base_precision=base)
        layout = a_layout(recompute_granularity=recompute)
        return float(prices_of(problem, layout, "llama-factory-accelerate").weights_bytes[0, 0])

    # torch's matmul saves the copy, 2 bytes a weight; AutoAWQ makes it twice. GPTQ's index: 4 an input
    model = a_problem().model
    matrices = list(single_layers(model, "dense").values())
    number, inputs = sum(one.inputs * one.outputs for one in matrices), sum(one.inputs for one in matrices)
    assert weights("gptq") - weights("awq") == pytest.approx(2 * number + 4 * inputs)
    assert weights("gptq", "full") - weights("awq", "full") == pytest.approx(4 * inputs)


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (8, 1), (1, 8)])
def test_of_a_frozen_base_of_other_bits_a_rank_holds_its_part(tensor: int, expert: int) -> None:
    # h = 4096, 64 heads of 128 and 8 of keys and values; 8 experts of 3 matrices of h * 14336
    model = a_moe_model()
    assert model.moe is not None
    model = replace(model, moe=replace(model.moe, expert_adapters="linear"))
    layout = a_layout(
        tensor_parallel_size=tensor, expert_parallel_size=expert, expert_tensor_parallel_size=1,
        data_parallel_size=8 // tensor, stage_layers=(32,),
    )  # fmt: skip
    attention, each = 2 * 4096 * (8192 + 1024), 3 * 4096 * 14336
    matrices, others = attention / tensor + 8 * each / expert, 2 * 4096 + 8 * 4096  # norms, router

    def beyond_bf16(base: BasePrecision) -> float:
        held = [
            prices_of(a_problem(model, lora_rank=16, base_precision=one), layout, "accelerate")
            for one in (base, "bf16")
        ]
        return float(held[0].weights_bytes[0, 0] - held[1].weights_bytes[0, 0])

    # 4 bytes a weight and 2 a cast of attention's (torch's grouped product is not autocast), instead of 2;
    # 1 a weight and 4 a row (bitsandbytes cuts none)
    assert beyond_bf16("fp32") == pytest.approx(2 * (matrices + others) + 2 * attention / tensor)
    if tensor == 1:
        rows = 8192 + 2 * 1024 + 4096 + 8 * (2 * 14336 + 4096) / expert
        assert beyond_bf16("int8") == pytest.approx(4 * rows - matrices)


def test_replaying_the_activation_frees_what_the_last_matrices_keep_of_it() -> None:
    # of 2048 tokens on top_k experts, so many elements wide: 2 bytes, 1 in 8 bits, none of frozen experts
    model = a_moe_model()
    assert model.moe is not None

    def freed(problem: Problem) -> float:
        left = []
        for modules in ("core_attn", "core_attn+moe_act"):
            options = {"recompute_modules": modules, "moe_force_balance": True}
            replayed = replace(problem, workload=replace(problem.workload, framework_options=options))
            layout = a_layout(recompute_granularity="selective")
            left.append(float(prices_of(replayed, layout, "nemo").activation_bytes[0, -3]))
        return left[0] - left[1]

    elements = 2048 * model.moe.top_k * model.moe.ffn_hidden_size
    assert freed(a_problem(model)) == pytest.approx(2 * elements)
    assert freed(a_problem(model, precision="fp8")) == pytest.approx(elements)
    assert freed(a_problem(model, lora_rank=16, lora_targets=("linear_qkv",))) == 0.0


def test_replaying_the_projections_from_latents_frees_queries_keys_and_values() -> None:
    mla = MlaSpec(q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)
    model = replace(GPT, num_kv_heads=GPT.num_attention_heads, head_dim=48, mla=mla)
    layout, left = a_layout(recompute_granularity="selective"), []
    for modules in ("core_attn", "core_attn+mla_up_proj"):
        problem = a_problem(model)
        options = {"recompute_modules": modules}
        problem = replace(problem, workload=replace(problem.workload, framework_options=options))
        left.append(float(prices_of(problem, layout, "nemo").activation_bytes[0, -3]))
    # 2048 tokens in 2 bytes: of each of 16 heads 48 elements of a query and of a key, 32 of a value
    assert left[0] - left[1] == pytest.approx(2048 * 2 * 16 * (48 + 48 + 32))


def test_replaying_the_shared_expert_frees_its_two_products_and_what_the_last_matrix_reads() -> None:
    routed = a_moe_model()
    assert routed.moe is not None
    model = replace(routed, moe=replace(routed.moe, num_shared_experts=1, shared_ffn_hidden_size=4096))
    left = []
    for modules in ("core_attn", "core_attn+shared_experts"):
        options = {"recompute_modules": modules, "moe_force_balance": True}
        problem = a_problem(model, framework_options=options)
        prices = prices_of(problem, a_layout(recompute_granularity="selective"), "nemo")
        left.append(float(prices.activation_bytes[0, -3]))
    # 2048 tokens, 4096 wide: gate, up and their product in 2 bytes each
    assert left[0] - left[1] == pytest.approx(2048 * 4096 * 3 * 2)


def test_frozen_weights_in_8_bits_take_one_byte_on_hopper_too() -> None:
    # their transposes are not kept; 16 (1024 + 3072 + 1024 + 1024) weights of adapters stay in 2 bytes
    problem = a_problem(precision="fp8", lora_rank=16)
    prices = prices_of(problem, a_layout(), "nemo")
    assert prices.weights_bytes[0, 0] == pytest.approx(LAYER_WEIGHTS + 2 * 16 * 6 * 1024)


def test_shards_in_8_bits_take_and_gather_one_byte_on_blackwell() -> None:
    layout = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8)
    held = []
    for low in (True, False):
        options = {"low_precision_weights": low}
        cluster = a_cluster(gpu=find_gpu("b200-sxm-180gb"))
        problem = a_problem(cluster=cluster, precision="fp8", framework_options=options)
        held.append(prices_of(problem, layout, "nemo"))
    low_prices, plain = held
    assert low_prices.weights_bytes[0, 0] == pytest.approx(LAYER_WEIGHTS / 8)
    assert plain.weights_bytes[0, 0] == pytest.approx(2 * LAYER_WEIGHTS / 8)
    # two layers are gathered at a time
    assert plain.buffer_bytes[0] - low_prices.buffer_bytes[0] == pytest.approx(2 * LAYER_WEIGHTS)


def test_weights_in_8_bits_keep_their_transposes_where_products_read_rows_alone() -> None:
    """On Hopper, and on Blackwell of compute capability 12."""
    layout = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8)
    for gpu in ("h100-sxm-80gb", "rtx-pro-6000"):
        options = {"low_precision_weights": True}
        problem = a_problem(
            cluster=a_cluster(gpu=find_gpu(gpu)), precision="fp8", framework_options=options
        )
        prices = prices_of(problem, layout, "nemo")
        assert prices.weights_bytes[0, 0] == pytest.approx(2 * LAYER_WEIGHTS / 8)


def test_torchs_gathers_in_8_bits_hold_one_byte_of_their_layers_and_leave_shards_in_fp32() -> None:
    layout = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8)
    eight, two = (
        prices_of(
            a_problem(precision="fp8", framework_options={"low_precision_gathers": low}), layout, "fsdp"
        )
        for low in (True, False)
    )
    layers = framework_facts("fsdp").gathered_layers
    assert two.buffer_bytes[0] - eight.buffer_bytes[0] == pytest.approx(layers * LAYER_WEIGHTS)
    assert two.weights_bytes[0, 0] == eight.weights_bytes[0, 0]


def test_torchs_gathers_leave_experts_in_2_bytes() -> None:
    model = find_model("mixtral-8x7b")
    layout = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8, stage_layers=(32,))
    eight, two = (
        prices_of(
            a_problem(model, precision="fp8", framework_options={"low_precision_gathers": low}),
            layout,
            "fsdp",
        )
        for low in (True, False)
    )
    assert model.moe is not None
    others = model.layer_parameters("moe") - model.moe.num_experts * model.expert_parameters()
    layers = framework_facts("fsdp").gathered_layers
    assert two.buffer_bytes[0] - eight.buffer_bytes[0] == pytest.approx(layers * others)


@pytest.mark.parametrize(
    ("stage", "shard_bytes", "gathered_bytes"),
    # three of four chunks stay gathered; where forward passes drop them, the chunk and one to come. ZeRO-3
    # holds an eighth of 4 bytes a weight in addition.
    [(2, 0.0, 2 * 3 / 4), (3, 4 / 8, 2 * 2 / 4)],
)
def test_torchs_pipeline_holds_some_chunks_of_the_layers_gathered_and_the_ends_whole(
    stage: int, shard_bytes: float, gathered_bytes: float
) -> None:
    layout = a_layout(
        data_parallel_size=8, zero_shard_size=8, zero_stage=stage, pipeline_parallel_size=2,
        virtual_pipeline_size=4, pipeline_schedule="looped_bfs", stage_layers=(1,) * 8,
    )  # fmt: skip
    layer, embedding, head = prices_of(
        a_problem(replace(GPT, tied_embeddings=False)), layout, "fsdp"
    ).weights_bytes[0]
    assert layer == pytest.approx(LAYER_WEIGHTS * (shard_bytes + gathered_bytes))
    table = GPT.vocab_size * GPT.hidden_size
    assert embedding == pytest.approx(table * (shard_bytes + 2))
    assert head == pytest.approx((table + GPT.hidden_size) * (shard_bytes + 2))  # and the last norm


def test_deepspeed_keeps_a_billion_gathered_weights_and_one_matrix() -> None:
    # a layer of 12 h^2 = 5.03e9 weights, h = 20480: 1e9 and the MLP's 4 h^2, not two layers, of 2 bytes
    # each, and that matrix's gradient; of a small model two layers and a layer's gradients
    wide = replace(GPT, hidden_size=20480, ffn_hidden_size=81920, num_attention_heads=128, head_dim=160)
    layout = a_layout(data_parallel_size=8, zero_stage=3, zero_shard_size=8)
    matrix = 4.0 * 20480**2
    for model, live, gradient in ((wide, 1e9 + matrix, matrix), (GPT, 2 * LAYER_WEIGHTS, LAYER_WEIGHTS)):
        prices = prices_of(a_problem(model), layout, "deepspeed")
        kept = a_profile(a_problem(model), "deepspeed", **CLASSIC).constants.base_bytes + 1e9
        assert prices.buffer_bytes[0] - kept == pytest.approx(2.0 * live + 2.0 * gradient, rel=1e-3)


def test_offloaded_optimizer_states_leave_the_gpu() -> None:
    prices = prices_of(a_problem(), a_layout(offload="optimizer"))
    assert (prices.optimizer_bytes == 0).all()
    assert prices.gradients_bytes[0, 0] == pytest.approx(4 * LAYER_WEIGHTS)


def test_offloaded_activations_leave_two_layers_on_the_gpu() -> None:
    kept = prices_of(a_problem(), a_layout()).activation_bytes[0, 0]
    prices = prices_of(a_problem(), a_layout(offload="activations"))
    assert prices.activation_bytes[0, 0] == 0
    assert prices.replay_workspace_bytes[0] == pytest.approx(2 * kept)


def test_deepspeed_keeps_its_bucket_of_500_million_gradients() -> None:
    # 5e8 elements of 2 bytes, under ZeRO only
    plain = prices_of(a_problem(), a_layout(data_parallel_size=2), "megatron-deepspeed")
    shared = a_layout(data_parallel_size=2, zero_stage=1, zero_shard_size=2)
    assert prices_of(a_problem(), shared, "megatron-deepspeed").buffer_bytes[0] - plain.buffer_bytes[
        0
    ] == pytest.approx(1e9)


def test_a_stage_takes_parts_workspace_and_buffers_times_the_reserve_and_the_context() -> None:
    plain = prices_of(a_problem(), a_layout())
    prices = replace(
        plain,
        head_workspace_bytes=np.array([4.0]), replay_workspace_bytes=np.array([3.0]),
        buffer_bytes=np.array([2.0]), context_bytes=np.array([10.0]), reserve=np.array([1.5]),
    )  # fmt: skip
    has_head = np.array([[False, True]])
    # (20 + 3 + 2) 1.5 + 10 = 47.5; with the head, whose workspace is larger: (20 + 4 + 2) 1.5 + 10 = 49
    assert stage_bytes(prices, EACH_RANK, np.full((1, 2), 20.0), has_head).tolist() == [[47.5, 49.0]]
    assert stage_bytes(prices, 0, np.full(2, 20.0), has_head[0]).tolist() == [47.5, 49.0]
    assert parts_room_bytes(prices, 49.0).tolist() == [24.0]  # 20 of parts and 4 of workspace


def test_a_step_is_its_end_times_the_straggler_and_what_is_fixed() -> None:
    assert step_of_end_s(8.0, 1.25, 0.5) == 10.5
    assert end_of_step_s(10.5, 1.25, 0.5) == 8.0


def test_an_indexer_keeps_its_queries_key_and_weights_and_the_chosen_tokens() -> None:
    model = find_model("deepseek-v3.2")
    problem = a_problem(model, seq_length=8192)
    kept = [
        float(layer_activation_bytes(context_of(one, Columns.of([layout]), a_profile(one)), "dense")[0])
        for layout in [a_layout(stage_layers=(61,))]
        for one in (problem, replace(problem, model=replace(model, indexer=None)))
    ]
    # a token: 64 queries and a key of 128 and 64 weights in 2 bytes, 2048 chosen tokens' numbers in 4
    assert kept[0] - kept[1] == pytest.approx(8192 * (2 * (65 * 128 + 64) + 4 * 2048))


def test_several_streams_keep_what_mixes_and_corrects_them_and_are_all_kept_of_a_replayed_layer() -> None:
    model = find_model("gemma-3n-e2b")
    problem = a_problem(model, seq_length=4096)
    alone = replace(problem, model=replace(model, streams=None))
    layout = a_layout(stage_layers=(30,))
    kept = [
        float(layer_activation_bytes(context_of(one, Columns.of([layout]), a_profile(one)), "dense")[0])
        for one in (problem, alone)
    ]
    # a token, in 2 bytes: 2 of each of 4 streams and 3 further states of 2048, the low rank of 64, a cut
    # gate of 8192 in 10 of 30 layers; and what 3 norms read (of Transformer Engine: 2 bytes each)
    elements = (2 * 4 + 3) * 2048 + 64 + 8192 * 10 / 30 + 3 * 2048
    assert kept[0] - kept[1] == pytest.approx(4096 * 2 * elements)
    inputs = [prices_of(one, layout).checkpoint_bytes[0, 0] for one in (problem, alone)]
    assert inputs[0] == pytest.approx(4 * inputs[1])


def test_an_eager_norm_that_scales_in_fp32_keeps_2_bytes_more_of_its_input_than_llamas() -> None:
    model = find_model("gemma-2-9b")
    problem = a_problem(model, seq_length=4096)
    rounded_first = replace(problem, model=replace(model, zero_centered_norm=False))

    def kept(one: Problem, framework: str) -> float:
        ctx = context_of(
            one, Columns.of([a_layout(stage_layers=(42,))]), a_profile(one, framework, **CLASSIC)
        )
        return float(layer_activation_bytes(ctx, "dense")[0])

    # four norms of 3584 (before and behind attention and the MLP); Transformer Engine's keep the input
    assert kept(problem, "deepspeed") - kept(rounded_first, "deepspeed") == 4096 * 2 * 4 * 3584
    assert kept(problem, "megatron-core") == kept(rounded_first, "megatron-core")


def test_the_memory_that_the_accepted_risk_keeps_free_is_stated_for_each_gpu() -> None:
    problem = a_problem()
    profile = replace(a_profile(problem), log_memory_sigma=0.08)
    # 5 % of a normal distribution lie 1.645 sigma below its mean: exp(-0.08 x 1.645) = 0.877 is usable
    limit_gib = problem.cluster.groups[0].gpu.memory_bytes / 2**30
    left = (1.0 - 0.87673) * limit_gib
    free = f"{left:.1f} of {limit_gib:.1f} GiB (12 %), for an out-of-memory risk of at most 5 %"
    assert kept_free_words(problem, profile) == free
    taken = replace(problem, options=replace(problem.options, max_out_of_memory_probability=1.0))
    assert kept_free_words(taken, profile).startswith(f"0.0 of {limit_gib:.1f} GiB (0 %)")
    halves = replace(profile, by_group=(profile, replace(profile, log_memory_sigma=0.0)))
    assert kept_free_words(problem, halves).count(" of h100-sxm-80gb (") == 2


def test_rows_of_fp32_are_kept_and_each_projection_keeps_its_cast() -> None:
    # A Llama layer under autocast, h = 1024, f = 4096, 16 heads: of a token and h, two norms keep input and
    # normalised rows in 4 bytes each (16); q, k and v a cast each (6), gate and up (4); attention's q, k, v
    # and output 8 and a log-sum-exp of 4 a head; gate, its activation, up and product 2 of each f
    llama = replace(GPT, gated_mlp=True)
    tokens = 2048
    expected = tokens * (1024 * (16 + 6 + 4 + 8) + 16 * 4 + 4096 * 8)
    found = prices_of(a_problem(llama), a_layout(), "trl").activation_bytes[0, 0]
    assert found == pytest.approx(expected)
    # 2-byte rows of DeepSpeed's bf16 model: 12 for the norms, one input of 2 for all projections of each
    narrow = tokens * (1024 * (12 + 2 + 2 + 8) + 16 * 4 + 4096 * 8)
    assert prices_of(a_problem(llama), a_layout(), "deepspeed").activation_bytes[0, 0] == pytest.approx(
        narrow
    )


def test_a_checkpoint_of_an_fp32_row_has_4_bytes() -> None:
    layout = a_layout(recompute_granularity="full", recompute_layers=4)
    for framework, each in (("trl", 4), ("deepspeed", 2)):
        kept = prices_of(a_problem(), layout, framework).checkpoint_bytes[0, 0]
        assert kept == pytest.approx(each * 2048 * 1024)
