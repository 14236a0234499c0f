"""Each rule of Megatron-LM: the smallest plan it lets through, and the smallest it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from meshwright.launchers.megatron_lm import model_rules, rules
from meshwright.launchers.megatron_lm.export import export as export_megatron_lm
from meshwright.launchers.rules import Rule, near_divisors, near_multiples
from meshwright.launchers.target import Target
from meshwright.profiles.cluster import ClusterSpec, GpuSpec
from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.configuration import Configuration, StageGroup
from meshwright.solver.problem import Workload
from tests.launchers.cases import A100, H100, cluster, target

TINY = ModelSpec(
    name="tiny", num_layers=2, hidden_size=8, ffn_hidden_size=4, num_attention_heads=2, num_kv_heads=2,
    head_dim=4, vocab_size=128,
)  # fmt: skip
ONE = Configuration(stage_layers=(2,))
PIPELINE = Configuration(pipeline_parallel_size=2, pipeline_schedule="1f1b", stage_layers=(1, 1))
THREE = replace(PIPELINE, pipeline_parallel_size=3)
FOUR_LAYERS = replace(TINY, num_layers=4)
INTERLEAVED = Configuration(
    pipeline_parallel_size=2, virtual_pipeline_size=2, num_microbatches=2, stage_layers=(1, 1, 1, 1),
    pipeline_schedule="interleaved_1f1b",
)  # fmt: skip
EXPERTS = replace(TINY, moe=MoeSpec(num_experts=2, top_k=1, ffn_hidden_size=4))
STATE_SPACE = replace(
    TINY, layer_pattern="M" * TINY.num_layers, no_rotary_every=1,
    mixer=MixerSpec(
        kind="mamba2", num_heads=2, num_key_heads=1, key_head_dim=4, value_head_dim=4, chunk=128,
        convolution_bias=True,
    ),
)  # fmt: skip
LEARNED = replace(TINY, learned_position_embeddings=True, max_position_embeddings=8)


def case(
    model: ModelSpec = TINY,
    config: Configuration = ONE,
    *,
    num_nodes: int | None = None,
    seq_length: int = 8,
    gpus_per_node: int = 8,
) -> Target:
    return target(model, config, num_nodes=num_nodes, seq_length=seq_length, gpus_per_node=gpus_per_node)


def asking(config: Configuration, model: ModelSpec = TINY, **changes: object) -> Target:
    """A target whose workload differs from the one that the configuration conserves."""
    plain = Workload(global_batch_size=config.global_batch_size, seq_length=8)
    return target(model, config, workload=replace(plain, **changes))  # type: ignore[arg-type]


def with_option(name: str, value: str | bool, config: Configuration = ONE) -> Target:
    return asking(config, framework_options={name: value})


def plain_transfer(config: Configuration) -> Target:
    return with_option("overlap_transfer", value=False, config=config)


def in_fp8(gpu: GpuSpec) -> Target:
    return target(TINY, ONE, gpu=gpu, workload=Workload(global_batch_size=1, seq_length=8, precision="fp8"))


def two_kinds_of_nodes(config: Configuration) -> Target:
    found = case(config=config, num_nodes=1)
    groups = (cluster(1, gpus_per_node=2).groups[0], cluster(1, gpus_per_node=4).groups[0])
    return replace(found, problem=replace(found.problem, cluster=ClusterSpec(name="mixed", groups=groups)))


@dataclass(frozen=True)
class Pair:
    rule: Rule
    legal: Target
    illegal: Target
    field: str
    nearest: str | None


def tp(size: int, **more: object) -> Configuration:
    return replace(ONE, tensor_parallel_size=size, **more)  # type: ignore[arg-type]


def pair(rule: Rule, legal: Target, illegal: Target, field: str, nearest: str | None) -> Pair:
    return Pair(rule, legal, illegal, field, nearest)


ON_A_GROUP = StageGroup(group="h100-sxm-80gb", num_gpus=1, num_nodes=1 / 8, tensor_parallel_size=1)

PAIRS = [
    pair(rules.stages_stand_on_like_nodes, case(), case(config=replace(ONE, stage_groups=(ON_A_GROUP,))),
         "config.stage_groups", "a plan searched for the launcher"),
    pair(rules.sizes_are_positive, case(), case(config=replace(ONE, data_parallel_size=0), num_nodes=1,
         gpus_per_node=1) , "config.data_parallel_size", "1"),
    # 8 GPUs hold dp 8, not dp 9.
    pair(rules.gpus_fit_the_cluster, case(config=replace(ONE, data_parallel_size=8), num_nodes=1),
         case(config=replace(ONE, data_parallel_size=9), num_nodes=1), "config.data_parallel_size", "8"),
    # 3 GPUs fit into a node of 8; 9 GPUs are one node and a part of another.
    pair(rules.nodes_are_whole, case(config=replace(ONE, data_parallel_size=3)),
         case(config=replace(ONE, data_parallel_size=9)), "config.data_parallel_size", "8 or 16 GPUs"),
    pair(rules.nodes_are_whole, two_kinds_of_nodes(replace(ONE, data_parallel_size=2)),
         two_kinds_of_nodes(replace(ONE, data_parallel_size=6)), "config.data_parallel_size", None),
    # Two GPUs of one node are near each other; those of two nodes of one GPU each are not.
    pair(rules.tensor_ranks_stay_near, case(config=replace(ONE, tensor_parallel_size=2)),
         case(config=replace(ONE, tensor_parallel_size=2), gpus_per_node=1),
         "config.tensor_parallel_size", "1"),
    # 2 = mbs 1 * dp 2 * M 1
    pair(rules.batch_is_conserved, asking(replace(ONE, data_parallel_size=2), global_batch_size=2),
         asking(replace(ONE, data_parallel_size=2), global_batch_size=4), "config.num_microbatches", "2"),
    pair(rules.batch_is_conserved, asking(replace(ONE, data_parallel_size=2), global_batch_size=2),
         asking(replace(ONE, data_parallel_size=2), global_batch_size=3), "config.num_microbatches", None),
    pair(rules.split_has_every_stage, case(config=PIPELINE),
         case(config=replace(PIPELINE, stage_layers=(2,))), "config.stage_layers", "2 entries"),
    pair(rules.split_has_every_layer, case(config=PIPELINE),
         case(config=replace(PIPELINE, stage_layers=(1, 2))), "config.stage_layers", "a sum of 2"),
    pair(rules.no_stage_is_empty, case(config=PIPELINE),
         case(config=replace(THREE, stage_layers=(1, 0, 1))), "config.stage_layers.1", "1"),
    pair(rules.schedule_is_known, case(), case(config=replace(ONE, pipeline_schedule="1f1b")),
         "config.pipeline_schedule", "none"),
    pair(rules.schedule_is_known, case(config=PIPELINE),
         case(config=replace(PIPELINE, pipeline_schedule="zb_h1")), "config.pipeline_schedule", "1f1b"),
    pair(rules.schedule_is_known, case(FOUR_LAYERS, INTERLEAVED),
         case(FOUR_LAYERS, replace(INTERLEAVED, pipeline_schedule="1f1b")),
         "config.pipeline_schedule", "interleaved_1f1b"),
    pair(rules.interleaving_needs_a_pipeline, case(FOUR_LAYERS, INTERLEAVED),
         case(config=replace(ONE, virtual_pipeline_size=2, stage_layers=(1, 1))),
         "config.virtual_pipeline_size", "1"),
    # Without overlapped p2p, two pipeline ranks are one too few.
    pair(rules.interleaving_needs_a_pipeline,
         plain_transfer(replace(INTERLEAVED, pipeline_parallel_size=3)),
         plain_transfer(INTERLEAVED), "config.virtual_pipeline_size", "1"),
    pair(rules.interleaving_needs_full_groups, case(FOUR_LAYERS, INTERLEAVED),
         case(FOUR_LAYERS, replace(INTERLEAVED, num_microbatches=3)), "config.num_microbatches", "2 or 4"),
    pair(rules.recompute_is_known, case(config=replace(ONE, recompute_granularity="selective")),
         case(config=replace(ONE, recompute_granularity="block")), "config.recompute_granularity", "full"),
    pair(rules.recompute_is_known, case(config=replace(ONE, recompute_granularity="selective")),
         case(config=replace(ONE, recompute_granularity="selective", recompute_layers=1)),
         "config.recompute_layers", "0"),
    pair(rules.recompute_fits_a_chunk,
         case(config=replace(ONE, recompute_granularity="full", recompute_layers=2)),
         case(config=replace(ONE, recompute_granularity="full", recompute_layers=3)),
         "config.recompute_layers", "2"),
    pair(rules.recompute_fits_a_chunk,
         case(config=replace(ONE, recompute_granularity="full", recompute_layers=1)),
         case(config=replace(ONE, recompute_granularity="full", recompute_layers=0)),
         "config.recompute_layers", "1"),
    pair(rules.zero_stage_is_known, case(config=replace(ONE, zero_stage=3)),
         case(config=replace(ONE, zero_stage=4)), "config.zero_stage", "3"),
    pair(rules.fsdp_has_no_pipeline, case(config=replace(PIPELINE, zero_stage=1)),
         case(config=replace(PIPELINE, zero_stage=2)), "config.zero_stage", "1"),
    pair(rules.shards_divide_the_replicas,
         case(config=replace(ONE, zero_stage=1, zero_shard_size=2, data_parallel_size=4)),
         case(config=replace(ONE, zero_stage=1, zero_shard_size=3, data_parallel_size=4)),
         "config.zero_shard_size", "2 or 4"),
    pair(rules.shards_divide_the_replicas, case(), case(config=replace(ONE, zero_shard_size=2)),
         "config.zero_shard_size", "1"),
    # 4 replicas make sets of 2, not of 3; experts on 2 ranks have 2 replicas.
    pair(rules.weight_shards_divide_the_replicas,
         case(config=replace(ONE, data_parallel_size=4, weight_shard_size=2)),
         case(config=replace(ONE, data_parallel_size=4, weight_shard_size=3)),
         "config.weight_shard_size", "2 or 4"),
    pair(rules.weight_shards_divide_the_replicas,
         case(EXPERTS, replace(ONE, data_parallel_size=4, expert_parallel_size=2,
                               expert_weight_shard_size=2)),
         case(EXPERTS, replace(ONE, data_parallel_size=4, expert_parallel_size=2,
                               expert_weight_shard_size=4)),
         "config.expert_weight_shard_size", "2"),
    # Its release cannot start with embeddings that are the output matrix as well.
    pair(model_rules.weights_are_shared,
         case(config=replace(ONE, data_parallel_size=2, weight_shard_size=2)),
         case(replace(TINY, tied_embeddings=True),
              replace(ONE, data_parallel_size=2, weight_shard_size=2)),
         "config.weight_shard_size", "1"),
    pair(model_rules.heads_divide_over_ranks, case(config=tp(2)), case(config=tp(4)),
         "config.tensor_parallel_size", "2"),
    # 4 ranks share 2 groups; 3 ranks cannot.
    pair(model_rules.kv_groups_divide_over_ranks, case(config=tp(4)), case(config=tp(3)),
         "config.tensor_parallel_size", "2"),
    pair(model_rules.ffn_divides_over_ranks, case(config=tp(4)), case(config=tp(8)),
         "config.tensor_parallel_size", "4"),
    pair(model_rules.ffn_divides_over_ranks, case(EXPERTS, replace(ONE, expert_tensor_parallel_size=4)),
         case(EXPERTS, replace(ONE, expert_tensor_parallel_size=8)),
         "config.expert_tensor_parallel_size", "4"),
    # 8 tokens make 2 * 4 slices, 12 do not.
    pair(model_rules.sequence_divides_over_context, case(config=replace(ONE, context_parallel_size=4)),
         case(config=replace(ONE, context_parallel_size=4), seq_length=12),
         "config.context_parallel_size", "3 or 6"),
    pair(model_rules.sequence_divides_over_tensor_ranks, case(config=tp(2, sequence_parallel=True)),
         case(config=tp(2, sequence_parallel=True), seq_length=9), "config.sequence_parallel", "False"),
    pair(model_rules.positions_cover_the_sequence, case(LEARNED), case(LEARNED, seq_length=9),
         "workload.seq_length", "8"),
    pair(model_rules.experts_divide_over_ranks,
         case(EXPERTS, replace(ONE, expert_parallel_size=2, data_parallel_size=2)),
         case(EXPERTS, replace(ONE, expert_parallel_size=3, data_parallel_size=3)),
         "config.expert_parallel_size", "2"),
    pair(model_rules.experts_divide_over_ranks, case(), case(config=replace(ONE, expert_parallel_size=2)),
         "config.expert_parallel_size", "1"),
    # Two expert ranks live on dp 2, not on dp 1.
    pair(model_rules.expert_ranks_divide_the_stage,
         case(EXPERTS, replace(ONE, expert_parallel_size=2, data_parallel_size=2)),
         case(EXPERTS, replace(ONE, expert_parallel_size=2)), "config.expert_parallel_size", "1"),
    pair(model_rules.experts_with_tensor_ranks_need_sequence_parallel,
         case(EXPERTS, tp(2, sequence_parallel=True)), case(EXPERTS, tp(2)),
         "config.sequence_parallel", "True"),
    pair(model_rules.precision_is_known, asking(ONE, precision="fp16"), asking(ONE, precision="int8"),
         "workload.precision", "bf16"),
    pair(model_rules.precision_is_known, in_fp8(H100), in_fp8(A100), "workload.precision", "bf16"),
    pair(model_rules.optimizer_is_known, case(), asking(ONE, optimizer="muon"),
         "workload.optimizer", "adamw"),
    pair(model_rules.every_weight_is_trained, case(), asking(ONE, lora_rank=16),
         "workload.lora_rank", "0"),
    pair(model_rules.documents_pass_one_sequence_at_a_time,
         asking(ONE, lengths=SequenceLengths(histogram=((8, 1.0),))),
         asking(replace(ONE, micro_batch_size=2), lengths=SequenceLengths(histogram=((8, 1.0),))),
         "config.micro_batch_size", "1"),
    pair(model_rules.states_alone_are_offloaded, case(), case(TINY, replace(ONE, offload="activations")),
         "config.offload", "none"),
    pair(model_rules.states_alone_are_offloaded,
         case(TINY, replace(ONE, offload="optimizer", zero_stage=1)),
         case(TINY, replace(ONE, offload="optimizer")), "config.offload", None),
    pair(rules.ranks_are_numbered, case(TINY, replace(ONE, rank_order="tp-cp-pp-dp")),
         case(TINY, replace(ONE, rank_order="tp-pp-dp-cp")), "config.rank_order", "tp-cp-dp-pp"),
    pair(rules.ranks_are_numbered, case(TINY, replace(ONE, rank_order="tp-cp-pp-dp")),
         case(TINY, replace(ONE, rank_order="tp-cp-pp-dp", context_parallel_size=2)),
         "config.rank_order", "tp-cp-dp-pp"),
    pair(model_rules.fp8_recipe_is_known, with_option("precision_recipe", "mxfp8"),
         with_option("precision_recipe", "fp8-rowwise"),
         "workload.framework_options.precision_recipe", "fp8-delayed"),
    pair(model_rules.options_go_together, with_option("gradient_dtype", "bf16"),
         with_option("gradient_dtype", "fp16"), "workload.framework_options.gradient_dtype", "bf16"),
    pair(model_rules.prediction_layers_need_rotary, case(replace(TINY, num_mtp_layers=1)),
         case(replace(LEARNED, num_mtp_layers=1)), "model.num_mtp_layers", "0"),
    pair(model_rules.layers_run_in_the_plan, case(STATE_SPACE),
         case(STATE_SPACE, replace(ONE, zero_stage=3)), "config.zero_stage", None),
]  # fmt: skip
EVERY = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.rule.__name__}:{pair.field}")


@EVERY
def test_the_smallest_legal_plan_passes_the_rule(pair: Pair) -> None:
    assert list(pair.rule(pair.legal)) == []


@EVERY
def test_the_smallest_illegal_plan_is_one_fault_with_field_and_nearest_value(pair: Pair) -> None:
    (fault,) = pair.rule(pair.illegal)
    assert (fault.field, fault.nearest) == (pair.field, pair.nearest)


@EVERY
def test_an_illegal_plan_is_refused_by_the_exporter(pair: Pair) -> None:
    with pytest.raises(RefusedExportError) as refused:
        export_megatron_lm(pair.illegal)
    assert pair.field in {fault.field for fault in refused.value.errors}


def test_every_rule_of_both_tables_has_a_pair() -> None:
    def names(table: list[Rule]) -> set[str]:
        return {rule.__name__ for rule in table}

    assert names([pair.rule for pair in PAIRS]) == names([*rules.PARALLEL_RULES, *model_rules.MODEL_RULES])


def test_every_fault_of_a_plan_is_named_at_once() -> None:
    broken = replace(ONE, zero_stage=4, pipeline_schedule="gpipe", stage_layers=(3,))
    with pytest.raises(RefusedExportError) as refused:
        export_megatron_lm(case(config=broken))
    assert [fault.field for fault in refused.value.errors] == [
        "config.stage_layers", "config.pipeline_schedule", "config.zero_stage",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("near", "value", "total", "expected"),
    [
        (near_divisors, 5, 12, "4 or 6"),
        (near_divisors, 4, 12, "4 or 6"),
        (near_divisors, 99, 12, "12"),
        (near_multiples, 5, 4, "4 or 8"),
        (near_multiples, 3, 4, "4"),
    ],
)
def test_nearest_values_stand_on_both_sides(
    near: Callable[[int, int], str], value: int, total: int, expected: str
) -> None:
    assert near(value, total) == expected
