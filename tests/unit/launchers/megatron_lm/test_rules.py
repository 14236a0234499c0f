"""The smallest plans that are exported for Megatron-LM, next to the smallest that are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from meshwright.launchers.megatron_lm.export import export as export_megatron_lm
from meshwright.launchers.rules import near_divisors, near_multiples
from meshwright.launchers.target import Target
from meshwright.profiles.cluster import ClusterSpec, GpuSpec
from meshwright.profiles.errors import RefusedExportError
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec, RotaryScaling
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
OF_8_HEADS = replace(TINY, num_attention_heads=8, num_kv_heads=8)
OF_12_HEADS = replace(TINY, num_attention_heads=12, ffn_hidden_size=12)
WIDE_EXPERTS = replace(OF_8_HEADS, moe=EXPERTS.moe)
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
    model = replace(TINY, num_layers=sum(config.stage_layers))
    return asking(config, model, framework_options={"overlap_transfer": False})


def sharded(config: Configuration, stage: int) -> Configuration:
    return replace(config, data_parallel_size=2, zero_stage=stage, zero_shard_size=2)


def in_fp8(gpu: GpuSpec) -> Target:
    return target(TINY, ONE, gpu=gpu, workload=Workload(global_batch_size=1, seq_length=8, precision="fp8"))


def two_kinds_of_nodes(config: Configuration) -> Target:
    found = case(config=config, num_nodes=1)
    groups = (cluster(1, gpus_per_node=2).groups[0], cluster(1, gpus_per_node=4).groups[0])
    return replace(found, problem=replace(found.problem, cluster=ClusterSpec(name="mixed", groups=groups)))


@dataclass(frozen=True)
class Pair:
    legal: Target
    illegal: Target
    field: str
    nearest: str | None


def tp(size: int, **more: object) -> Configuration:
    return replace(ONE, tensor_parallel_size=size, **more)  # type: ignore[arg-type]


def pair(legal: Target, illegal: Target, field: str, nearest: str | None) -> Pair:
    return Pair(legal, illegal, field, nearest)


ON_A_GROUP = StageGroup(group="h100-sxm-80gb", num_gpus=1, num_nodes=1 / 8, tensor_parallel_size=1)

PAIRS = [
    pair(case(), case(config=replace(ONE, stage_groups=(ON_A_GROUP,))),
         "config.stage_groups", "a plan searched for the launcher"),
    pair(case(), case(config=replace(ONE, data_parallel_size=0), num_nodes=1,
         gpus_per_node=1) , "config.data_parallel_size", "1"),
    # 8 GPUs hold dp 8, not dp 9.
    pair(case(config=replace(ONE, data_parallel_size=8), num_nodes=1),
         case(config=replace(ONE, data_parallel_size=9), num_nodes=1), "config.data_parallel_size", "8"),
    # 2 ranks are one of the nodes; 6 are both, of 2 and 4 GPUs.
    pair(two_kinds_of_nodes(replace(ONE, data_parallel_size=2)),
         two_kinds_of_nodes(replace(ONE, data_parallel_size=6)), "config.data_parallel_size", None),
    # Two GPUs of one node are near each other; those of two nodes of one GPU each are not.
    pair(case(config=replace(ONE, tensor_parallel_size=2)),
         case(config=replace(ONE, tensor_parallel_size=2), gpus_per_node=1),
         "config.tensor_parallel_size", "1"),
    # 2 = mbs 1 * dp 2 * M 1
    pair(asking(replace(ONE, data_parallel_size=2), global_batch_size=2),
         asking(replace(ONE, data_parallel_size=2), global_batch_size=4), "config.num_microbatches", "2"),
    pair(asking(replace(ONE, data_parallel_size=2), global_batch_size=2),
         asking(replace(ONE, data_parallel_size=2), global_batch_size=3), "config.data_parallel_size", "3"),
    pair(case(config=PIPELINE),
         case(config=replace(PIPELINE, stage_layers=(2,))), "config.stage_layers", "2 entries"),
    pair(case(config=PIPELINE),
         case(config=replace(PIPELINE, stage_layers=(1, 2))), "config.stage_layers", "a sum of 2"),
    pair(case(config=PIPELINE),
         case(config=replace(THREE, stage_layers=(1, 0, 1))), "config.stage_layers", None),
    pair(case(), case(config=replace(ONE, pipeline_schedule="1f1b")),
         "config.pipeline_schedule", "none"),
    pair(case(config=PIPELINE),
         case(config=replace(PIPELINE, pipeline_schedule="zb_h1")), "config.pipeline_schedule", "1f1b"),
    pair(case(FOUR_LAYERS, INTERLEAVED),
         case(FOUR_LAYERS, replace(INTERLEAVED, pipeline_schedule="1f1b")),
         "config.pipeline_schedule", "interleaved_1f1b"),
    pair(case(FOUR_LAYERS, INTERLEAVED),
         case(config=replace(ONE, virtual_pipeline_size=2, stage_layers=(1, 1))),
         "config.virtual_pipeline_size", "1"),
    # Without overlapped p2p, two pipeline ranks are one too few.
    pair(plain_transfer(replace(INTERLEAVED, pipeline_parallel_size=3)),
         plain_transfer(INTERLEAVED), "config.virtual_pipeline_size", "1"),
    pair(case(FOUR_LAYERS, INTERLEAVED),
         case(FOUR_LAYERS, replace(INTERLEAVED, num_microbatches=3)), "config.num_microbatches", "2 or 4"),
    pair(case(config=replace(ONE, recompute_granularity="selective")),
         case(config=replace(ONE, recompute_granularity="block")), "config.recompute_granularity", "none"),
    pair(case(config=replace(ONE, recompute_granularity="selective")),
         case(config=replace(ONE, recompute_granularity="selective", recompute_layers=1)),
         "config.recompute_layers", "0"),
    pair(case(config=replace(ONE, recompute_granularity="full", recompute_layers=2)),
         case(config=replace(ONE, recompute_granularity="full", recompute_layers=3)),
         "config.recompute_layers", "2"),
    pair(case(config=replace(ONE, recompute_granularity="full", recompute_layers=1)),
         case(config=replace(ONE, recompute_granularity="full", recompute_layers=0)),
         "config.recompute_layers", "1"),
    pair(case(config=sharded(ONE, 3)), case(config=sharded(ONE, 4)), "config.zero_stage", "3"),
    pair(case(config=sharded(PIPELINE, 1)), case(config=sharded(PIPELINE, 2)), "config.zero_stage", "1"),
    pair(case(config=replace(ONE, zero_stage=1, zero_shard_size=2, data_parallel_size=4)),
         case(config=replace(ONE, zero_stage=1, zero_shard_size=3, data_parallel_size=4)),
         "config.zero_shard_size", "2 or 4"),
    pair(case(), case(config=replace(ONE, zero_shard_size=2)),
         "config.zero_shard_size", "1"),
    # 4 replicas make sets of 2, not of 3; experts on 2 ranks have 2 replicas.
    pair(case(config=replace(ONE, data_parallel_size=4, weight_shard_size=2)),
         case(config=replace(ONE, data_parallel_size=4, weight_shard_size=3)),
         "config.weight_shard_size", "2 or 4"),
    pair(case(EXPERTS, replace(ONE, data_parallel_size=4, expert_parallel_size=2,
                               expert_weight_shard_size=2)),
         case(EXPERTS, replace(ONE, data_parallel_size=4, expert_parallel_size=2,
                               expert_weight_shard_size=4)),
         "config.expert_weight_shard_size", "2"),
    # Its release cannot start with embeddings that are the output matrix as well.
    pair(case(config=replace(ONE, data_parallel_size=2, weight_shard_size=2)),
         case(replace(TINY, tied_embeddings=True),
              replace(ONE, data_parallel_size=2, weight_shard_size=2)),
         "config.weight_shard_size", "1"),
    pair(case(config=tp(2)), case(config=tp(4)),
         "config.tensor_parallel_size", "2"),
    # 4 ranks share 2 groups; 3 ranks cannot.
    pair(case(OF_12_HEADS, tp(4), gpus_per_node=12), case(OF_12_HEADS, tp(3), gpus_per_node=12),
         "config.tensor_parallel_size", "2 or 4"),
    pair(case(OF_8_HEADS, tp(4)), case(OF_8_HEADS, tp(8)), "config.tensor_parallel_size", "4"),
    pair(case(WIDE_EXPERTS, tp(8, sequence_parallel=True, expert_tensor_parallel_size=4)),
         case(WIDE_EXPERTS, tp(8, sequence_parallel=True, expert_tensor_parallel_size=8)),
         "config.expert_tensor_parallel_size", "4"),
    # 8 tokens make 2 * 4 slices, 12 do not.
    pair(case(config=replace(ONE, context_parallel_size=4)),
         case(config=replace(ONE, context_parallel_size=4), seq_length=12),
         "config.context_parallel_size", "3 or 6"),
    pair(case(config=tp(2, sequence_parallel=True)),
         case(config=tp(2, sequence_parallel=True), seq_length=9), "config.tensor_parallel_size", "1"),
    pair(case(LEARNED), case(LEARNED, seq_length=9),
         "workload.seq_length", "8"),
    pair(case(EXPERTS, replace(ONE, expert_parallel_size=2, data_parallel_size=2)),
         case(EXPERTS, replace(ONE, expert_parallel_size=3, data_parallel_size=3)),
         "config.expert_parallel_size", "1"),
    pair(case(), case(config=replace(ONE, expert_parallel_size=2)),
         "config.expert_parallel_size", "1"),
    # Two expert ranks live on dp 2, not on dp 1.
    pair(case(EXPERTS, replace(ONE, expert_parallel_size=2, data_parallel_size=2)),
         case(EXPERTS, replace(ONE, expert_parallel_size=2)), "config.expert_parallel_size", "1"),
    pair(case(EXPERTS, tp(2, sequence_parallel=True)), case(EXPERTS, tp(2)),
         "config.sequence_parallel", "True"),
    pair(asking(ONE, precision="fp16"), asking(ONE, precision="int8"),
         "workload.precision", "bf16"),
    pair(in_fp8(H100), in_fp8(A100), "workload.precision", "bf16"),
    pair(case(), asking(ONE, optimizer="muon"),
         "workload.optimizer", "adamw"),
    pair(case(), asking(ONE, lora_rank=16),
         "workload.lora_rank", None),  # other launchers have them, and are named
    pair(asking(ONE, lengths=SequenceLengths(histogram=((8, 1.0),))),
         asking(replace(ONE, micro_batch_size=2), lengths=SequenceLengths(histogram=((8, 1.0),))),
         "config.micro_batch_size", "1"),
    pair(case(), case(TINY, replace(ONE, offload="activations")),
         "config.offload", "none"),
    pair(case(TINY, replace(sharded(ONE, 1), offload="optimizer")),
         case(TINY, replace(ONE, data_parallel_size=2, offload="optimizer")), "config.zero_stage", "1"),
    pair(case(TINY, replace(ONE, rank_order="tp-cp-pp-dp")),
         case(TINY, replace(ONE, rank_order="tp-pp-dp-cp")), "config.rank_order", "tp-cp-dp-pp"),
    pair(case(TINY, replace(ONE, rank_order="tp-cp-pp-dp")),
         case(TINY, replace(ONE, rank_order="tp-cp-pp-dp", context_parallel_size=2)),
         "config.rank_order", "tp-cp-dp-pp"),
    pair(with_option("precision_recipe", "mxfp8"),
         with_option("precision_recipe", "fp8-rowwise"),
         "workload.framework_options.precision_recipe", "none"),
    pair(with_option("gradient_dtype", "bf16"),
         with_option("gradient_dtype", "fp16"), "workload.framework_options.gradient_dtype", "bf16"),
    pair(case(STATE_SPACE),
         case(STATE_SPACE, sharded(ONE, 3)), "config.zero_stage", "1"),
]  # fmt: skip
EVERY = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.field)


def faults(found: Target) -> list[tuple[str, str | None]]:
    """The fields that the exporter refuses, with their nearest values."""
    try:
        export_megatron_lm(found)
    except RefusedExportError as refused:
        return [(fault.field, fault.nearest) for fault in refused.errors]
    return []


@EVERY
def test_the_smallest_legal_plan_has_no_fault_there(pair: Pair) -> None:
    assert pair.field not in dict(faults(pair.legal))


@EVERY
def test_the_smallest_illegal_plan_is_refused_with_field_and_nearest_value(pair: Pair) -> None:
    assert (pair.field, pair.nearest) in faults(pair.illegal)


def test_every_fault_of_a_plan_is_named_at_once() -> None:
    broken = replace(ONE, zero_stage=4, pipeline_schedule="pipe", stage_layers=(3,))
    with pytest.raises(RefusedExportError) as refused:
        export_megatron_lm(case(config=broken))
    assert [fault.field for fault in refused.value.errors] == [
        "config.zero_stage", "config.pipeline_schedule", "config.stage_layers",
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


def test_prediction_layers_are_refused_next_to_learned_positions_and_to_those_of_yarn() -> None:
    yarn = RotaryScaling(kind="yarn", factor=4.0, original_max_position_embeddings=4096)
    scaled = replace(TINY, num_mtp_layers=1, rotary_base=10_000, rotary_scaling=yarn)
    assert export_megatron_lm(target(replace(TINY, num_mtp_layers=1), ONE)).files
    for model in (scaled, replace(LEARNED, num_mtp_layers=1)):
        with pytest.raises(RefusedExportError, match="prediction without plain rotary positions"):
            export_megatron_lm(target(model, ONE))
