"""What is exported is what Megatron-LM will run: any legal plan is read back unchanged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.service.launchers.megatron_lm import MegatronLm
from meshwright.service.launchers.target import Target
from meshwright.solver.configuration import Configuration
from tests.launcher_cases import CASES, LLAMA_70B, MIXTRAL, target
from tests.megatron_arguments import parser, recompute_layers, stage_layers, words, zero_stage


def read_back(found: Target) -> Configuration:
    """The configuration of the exported files, from their flags and the launch script's GPUs alone."""
    files = MegatronLm().export(found).files
    args = parser().parse_args(words(files["megatron_args.sh"]))
    nodes, gpus = map(int, re.findall(r"NUM_NODES=(\d+) GPUS_PER_NODE=(\d+)", files["launch.sh"])[0])
    tp, pp, cp = (
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.context_parallel_size,
    )
    dp = nodes * gpus // (tp * pp * cp)
    chunks = stage_layers(args)
    assert sum(chunks) == args.num_layers == found.model.num_layers
    stage = zero_stage(args)
    schedule = "none" if pp == 1 else ("interleaved_1f1b" if len(chunks) > pp else "1f1b")
    return Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=args.sequence_parallel,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=len(chunks) // pp,
        context_parallel_size=cp,
        expert_parallel_size=args.expert_model_parallel_size or 1,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size or 1,
        data_parallel_size=dp,
        zero_stage=stage,
        zero_shard_size=dp * cp // (args.num_distributed_optimizer_instances or 1) if stage else 1,
        micro_batch_size=args.micro_batch_size,
        num_microbatches=args.global_batch_size // (args.micro_batch_size * dp),
        pipeline_schedule=schedule,
        recompute_granularity=args.recompute_granularity or "none",
        recompute_layers=recompute_layers(args),
        offload="optimizer" if args.optimizer_cpu_offload else "none",
        rank_order="tp-cp-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-dp-pp",
        stage_layers=chunks,
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_known_plan_is_read_back_unchanged(name: str) -> None:
    assert read_back(CASES[name]) == CASES[name].config


@st.composite
def splits(draw: st.DrawFn, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, even or not, at least one everywhere."""
    if draw(st.booleans()):
        return (draw(st.integers(1, 8)),) * chunks
    return tuple(draw(st.lists(st.integers(1, 9), min_size=chunks, max_size=chunks)))


@st.composite
def legal_targets(draw: st.DrawFn) -> Target:
    """Any plan that no rule forbids, for Llama 70B or Mixtral with as many layers as the split has."""
    model = draw(st.sampled_from((LLAMA_70B, MIXTRAL)))
    tp = draw(st.sampled_from((1, 2, 4, 8)))
    pp, cp = draw(st.integers(1, 6)), draw(st.sampled_from((1, 2, 4)))
    vpp = draw(st.integers(1, 4)) if pp > 1 else 1
    dp = draw(st.sampled_from((8, 16, 24)))
    stage_of_zero = draw(st.integers(0, 3 if pp == 1 else 1))
    chunks = draw(splits(pp * vpp))
    granularity = draw(st.sampled_from(("none", "selective", "full")))
    most = max(chunks)
    counts = st.sampled_from((*range(1, most), sum(chunks)))  # some of each chunk, or every layer
    config = Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=cp,
        expert_parallel_size=draw(st.sampled_from((1, 2, 8))) if model.moe else 1,
        data_parallel_size=dp,
        zero_stage=stage_of_zero,
        zero_shard_size=draw(st.sampled_from((dp * cp, dp // 2))) if stage_of_zero else 1,
        micro_batch_size=draw(st.integers(1, 4)),
        num_microbatches=pp * draw(st.integers(1, 5)),
        pipeline_schedule="none" if pp == 1 else ("interleaved_1f1b" if vpp > 1 else "1f1b"),
        recompute_granularity=granularity,
        recompute_layers=draw(counts) if granularity == "full" else 0,
        stage_layers=chunks,
    )
    experts = config.expert_parallel_size == tp * cp if model.moe else cp == 1
    if pp > 1 and experts and draw(st.booleans()):
        config = replace(config, rank_order="tp-cp-pp-dp")
    if config.zero_stage == 1 and draw(st.booleans()):
        config = replace(config, offload="optimizer")
    return target(replace(model, num_layers=sum(chunks)), config)


@given(legal_targets())
@settings(max_examples=150, deadline=None)
def test_any_legal_plan_is_read_back_unchanged(found: Target) -> None:
    assert read_back(found) == found.config


@given(legal_targets())
@settings(max_examples=20, deadline=None)
def test_the_same_plan_gives_the_same_bytes(found: Target) -> None:
    assert MegatronLm().export(found) == MegatronLm().export(found)
