"""What is exported is what Megatron-LM will run: any legal plan is read back unchanged."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.launchers.flags import plain_name
from meshwright.launchers.megatron_core.names import flag_kinds, table
from meshwright.launchers.megatron_lm.export import export as export_megatron_lm
from meshwright.launchers.megatron_lm.flags import sections
from meshwright.launchers.reading.base import Include, LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import model_facts
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import RotaryScaling
from meshwright.solver.configuration import Configuration
from tests.draws import draws
from tests.launchers.cases import CASES, LLAMA_70B, MIXTRAL, target
from tests.launchers.megatron_arguments import parser, recompute_layers, stage_layers, words, zero_stage
from tests.processes.pace import work_s


def read_back(found: Target) -> Configuration:
    """The configuration of the exported files, from their flags and the launch script's GPUs alone."""
    files = export_megatron_lm(found).files
    args = parser().parse_args(words(files["megatron_args.sh"]))
    nodes, gpus = map(int, re.findall(r"NUM_NODES=(\d+) GPUS_PER_NODE=(\d+)", files["launch.sh"])[0])
    tp, pp, cp = (
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.context_parallel_size,
    )
    dp = nodes * gpus // (tp * pp * cp)
    shared = (args.tensor_parallel_num_weight_shards or tp) // tp
    split = args.expert_tensor_parallel_size or 1
    experts = (args.expert_tensor_parallel_num_weight_shards or split) // split
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
        zero_shard_size=dp * cp // shared // (args.num_distributed_optimizer_instances or 1)
        if stage
        else 1,
        weight_shard_size=shared,
        expert_weight_shard_size=experts,
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
    most = min(*chunks, max(chunks) - 1)
    ep = draw(st.sampled_from((1, 2, 8))) if model.moe else 1
    sizes = [dp * cp]
    if tp * cp * dp // ep % (2 * cp) == 0:  # an expert's ranks make up all sets of shards, too
        sizes.append(dp // 2)
    counts = st.sampled_from((*range(1, most + 1), sum(chunks)))  # some of each chunk, or every layer
    config = Configuration(
        tensor_parallel_size=tp,
        sequence_parallel=tp > 1,
        pipeline_parallel_size=pp,
        virtual_pipeline_size=vpp,
        context_parallel_size=cp,
        expert_parallel_size=ep,
        data_parallel_size=dp,
        zero_stage=stage_of_zero,
        zero_shard_size=draw(st.sampled_from(sizes)) if stage_of_zero else 1,
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
@settings(max_examples=draws(40), deadline=None)
def test_any_legal_plan_is_read_back_unchanged(found: Target) -> None:
    assert read_back(found) == found.config


@given(legal_targets())
@settings(max_examples=20, deadline=None)
def test_the_same_plan_gives_the_same_bytes(found: Target) -> None:
    assert export_megatron_lm(found) == export_megatron_lm(found)


# Launch commands are read back: exported plans, scripts as people write them, and nonsense.

KNOWN = (Path(__file__).parents[3] / "fixtures" / "megatron_lm_flags.txt").read_text().splitlines()
BOTH = "--num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 4"
EMPTY = "--pipeline-model-parallel-layout 'Et*16||t*16|L'"
EARLY = "--pipeline-model-parallel-layout 'Et*15|t*15|t*2m|L'"
TWO_SPLITS = "--pipeline-model-parallel-layout 'Et*16|t*16L' --account-for-loss-in-pipeline-split"
RINGS, SIZES = "--context-parallel-size 4 --cp-comm-type a2a+p2p", "--hierarchical-context-parallel-sizes"
SIGMOID = "--moe-router-score-function sigmoid"
OLDER = {  # of Megatron-LM before 0.16, and of Pai-Megatron-Patch
    "--use-custom-fsdp", "--use-flash-attn", "--extra-vocab-size", "--max-padding-length",
}  # fmt: skip
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}   # from Slurm
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=${TP:-4}
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_addr localhost"
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096      # h
    --num-attention-heads 32 --ffn-hidden-size 14336
    --group-query-attention --num-query-groups 8
    --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --normalization RMSNorm --position-embedding-type rope
    --vocab-size 128256 --max-position-embeddings 8192
)
PARALLEL="--tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 \\
    --sequence-parallel"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py "${MODEL_ARGS[@]}" ${PARALLEL} \\
    --micro-batch-size 1 --global-batch-size $((WORLD_SIZE * 4)) --seq-length 8192 --bf16 \\
    --use-distributed-optimizer --data-path $DATA --lr 1e-4 --optimizer-cuda-graph 2>&1 | tee log.txt
"""


def read_launch_file(
    text: str,
    *,
    num_gpus: int | None = None,
    model: ModelSpec | None = None,
    variables: dict[str, str] | None = None,
    include: Include = lambda _: None,
) -> LaunchFile:
    """A script of Megatron-LM."""
    overrides = Overrides(num_gpus=num_gpus, model=model, variables=variables or {})
    source = Source(name="launch file", text=text, include=include)
    return read_launch_files(source, overrides, "megatron-lm")


def exported(found: Target) -> LaunchFile:
    files = export_megatron_lm(found).files
    return read_launch_file(files["launch.sh"], include=files.get)


@pytest.mark.parametrize("placed", [{"attention_every": 4}, {"attention_layers": (0, 7, 79)}])
def test_gated_delta_nets_are_read_back_as_they_were_written(placed: dict[str, Any]) -> None:
    mixer = MixerSpec(
        kind="gated_delta_net",
        num_heads=48,
        num_key_heads=16,
        key_head_dim=128,
        value_head_dim=64,
        **placed,
    )
    gated = replace(LLAMA_70B, attention_gate="per_element", gate_in_queries=True, mixer=mixer)
    config = CASES["llama-3.1-70b-interleaved"].config
    found = exported(target(gated, config))
    assert found.model.mixer == mixer
    assert found.model.num_parameters() == gated.num_parameters()
    assert found.configuration == config


def test_a_script_as_people_write_it_is_understood() -> None:
    found = read_launch_file(SCRIPT)
    assert (found.num_nodes, found.gpus_per_node) == (4, 8)
    assert found.model.num_parameters() == pytest.approx(8.0e9, rel=0.01)
    config = found.configuration
    # 32 GPUs / (tp 4 * pp 2) = dp 4; 128 sequences / 4 = 32 micro-batches
    assert (config.tensor_parallel_size, config.pipeline_parallel_size) == (4, 2)
    assert (config.data_parallel_size, config.num_microbatches) == (4, 32)
    assert (config.zero_stage, config.zero_shard_size, config.stage_layers) == (1, 4, (16, 16))
    assert found.workload.framework_options == {
        "dropout": True,
        "overlap_gradients": False,
        "overlap_tensor": False,
    }
    assert found.unread == ("--optimizer-cuda-graph",)
    assert any("--overlap-grad-reduce" in note for note in found.notes)


def test_what_the_script_expects_from_outside_can_be_given() -> None:
    assert read_launch_file(SCRIPT, variables={"TP": "2"}).configuration.tensor_parallel_size == 2


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_known_plan_is_exported_and_read_unchanged(name: str) -> None:
    found, case = exported(CASES[name]), CASES[name]
    assert found.configuration == case.config
    longest = max(case.workload.seq_length, case.model.max_position_embeddings or 0)
    same = replace(case.model, name="launch", display_name="", max_position_embeddings=longest)
    assert found.model == same
    assert found.unread == ()
    assert found.notes == ()
    assert found.workload == case.workload
    assert (found.num_nodes, found.gpus_per_node) == (case.num_nodes, case.gpus_per_node)


@given(legal_targets())
@settings(max_examples=draws(40), deadline=None)
def test_any_plan_is_exported_and_read_unchanged(target: Target) -> None:
    found = exported(target)
    assert found.configuration == target.config
    assert found.workload == target.workload


@given(legal_targets())
@settings(max_examples=20, deadline=None)
def test_the_table_has_every_flag_that_is_written(target: Target) -> None:
    written = {flag.name for section in sections(target) for flag in section.flags}
    assert written <= set(flag_kinds())


def test_every_flag_of_the_table_is_one_of_megatron_lms() -> None:
    newer = {"--step-batch-size-schedule", "--cuda-graph-modules"}  # since 0.19
    newer |= {name for name in flag_kinds() if "yarn-" in name or "num-weight-shards" in name}
    names = set(KNOWN) | newer | {"--use-precision-aware-optimizer", "--optimizer-cpu-offload"}
    assert {name for name in flag_kinds() if name not in names} <= OLDER


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--bf16", "--bf16 --fp16"), "--fp16: line 21: contradicts --bf16"),
        (("--bf16", "--bf16 --fp8-format hybrid --fp4-format e2m1"), "--fp4-format: line 21: contradicts"),
        (("--bf16", "--bf16 --fp4-format e2m1 --fp4-recipe custom"), 'fp4-recipe: line 21: "custom" is'),
        (("--bf16", "--use-checkpoint-args --bf16"), "--use-checkpoint-args: line 21: can't be read"),
        (("--num-layers 32", "--num-layers 33"), "33 layers are not split evenly by 2 chunks"),
        (("--num-layers 32", "--num-layers many"), '--num-layers: line 10: "many" is not a whole number'),
        (("GPUS_PER_NODE=8", "GPUS_PER_NODE=9"), "does not divide the 36 GPUs"),
        (("* 4))", "* 4 + 1))"), "is not a multiple of micro-batch × data parallel = 4"),
        (("TP=${TP:-4}", ""), "depends on $TP, but the script doesn't set it"),
        (("--vocab-size 128256", ""), "--vocab-size: is not given"),
        (("--seq-length 8192", "--seq-length"), "--seq-length: line 21: needs a value"),
        (("--bf16", "--bf16 --recompute-granularity full"), "--recompute-method: is needed"),
        (("--bf16", "--bf16 --pipeline-model-parallel-layout 'Et*32|tL'"), "holds 33 layers"),
        (("--bf16", f"--bf16 {BOTH}"), "takes one of them"),
        (("--bf16", "--bf16 --overlap-param-gather"), "line 21: needs --overlap-grad-reduce"),
        (("    --sequence-parallel", "    --tp-comm-overlap"), "needs --sequence-parallel"),
        (("--bf16", "--bf16 --expert-model-parallel-size 2"), "2 for a model without experts"),
        (("--bf16", "--bf16 --recompute-granularity selective --recompute-num-layers 2"), "contradicts"),
        (("--bf16", "--bf16 --pipeline-model-parallel-layout 't*16|t*16L'"), "must begin with E"),
        (("--bf16", f"--bf16 {EMPTY}"), "between the first and the last"),
        (("--bf16", f"--bf16 {EARLY}"), "neither next to the loss nor alone"),
        (("--bf16", "--bf16 --pipeline-model-parallel-layout 'Et*16|t*16'"), "exactly one L"),
        (
            ("--bf16", "--bf16 --mtp-num-layers 2 --pipeline-model-parallel-layout 'Et*16|t*16m|m|L'"),
            "neither next to the loss nor alone",
        ),
        (("--bf16", f"--bf16 {TWO_SPLITS}"), "contradicts --pipeline-model-parallel-layout"),
        (("embeddings 8192", "embeddings 4096"), "less than --seq-length 8192"),
        (("--bf16", "--bf16 --optimizer-cpu-offload"), "needs --use-precision-aware-optimizer"),
        (("--use-distributed-optimizer", "--use-precision-aware-optimizer"), "needs --use-distributed-"),
        (("--bf16", f"--bf16 {RINGS}"), "--cp-comm-type: line 21: a2a+p2p needs two sizes"),
        (("--bf16", f"--bf16 {RINGS} {SIZES} 2 2 2"), "-parallel-sizes: line 21: a2a+p2p needs"),
        (("--bf16", f"--bf16 {RINGS} {SIZES} 8 1"), "with the product context-parallel-size 4"),
        (('"${MODEL_ARGS[@]}"', '"${MODEL_ARGS[@]}'), "a quote stays open"),
        (("    --sequence-parallel", "    --sequence-parallel false"), 'line 18: takes no value: "false"'),
        (("--bf16", "--bf16=1"), "--bf16: line 21: takes no value"),
        (("--bf16", "--bf16 --quick-geglu"), "--quick-geglu: line 21: contradicts --swiglu"),
        (("--bf16", "--bf16 --attention-backend flesh"), 'attention-backend: line 21: "flesh" is not'),
        (("--bf16", "--bf16 --use-mp-args-from-checkpoint-args"), "sizes come from a checkpoint"),
        (("--bf16", "--bf16 --moe-pad-expert-input-to-capacity"), "needs --moe-expert-capacity-factor"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said_with_line_and_flag(change: tuple[str, str], says: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        read_launch_file(SCRIPT.replace(*change))
    assert says in str(caught.value)


WORDED = [
    name for name, kind in flag_kinds().items()
    if kind == "word" and (row := table()[plain_name(name)]).choices and row.role == "priced"
]  # fmt: skip


@pytest.mark.parametrize("name", [one for one in WORDED if one != "--experimental-attention-variant"])
def test_a_word_that_is_none_of_an_arguments_choices_is_refused(name: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        read_launch_file(SCRIPT.replace("--bf16", f"--bf16 {name} xxx"))
    said = [one.sentence() for one in caught.value.errors if '"xxx" is not supported, or' in one.message]
    assert len(said) == 1
    assert said[0].startswith(f"{name}: line 21: ")
    assert "Allowed: " in said[0]


def test_a_flag_given_twice_is_noted_and_the_last_counts() -> None:
    found = read_launch_file(SCRIPT.replace("--bf16", "--bf16 --micro-batch-size 2"))
    assert found.configuration.micro_batch_size == 2
    assert any("--micro-batch-size is given twice, 1 on line 21 and 2 on line 21" in n for n in found.notes)


def test_a_flag_that_changes_another_counts_as_in_megatron_lms_own_parser() -> None:
    # validate_args: the rotary switch before the type, reduction in bf16 before accumulation in fp32,
    # Megatron-FSDP's strategy is ZeRO-3 unless one is given, the opposite of a field is a flag, too
    rotary = "--bf16 --position-embedding-type learned_absolute --use-rotary-position-embeddings"
    assert not read_launch_file(SCRIPT.replace("--bf16", rotary)).model.learned_position_embeddings
    reduced = "--bf16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32"
    workload = read_launch_file(SCRIPT.replace("--bf16", reduced)).workload
    assert workload.framework_options["gradient_dtype"] == "bf16"
    sharded = SCRIPT.replace("--bf16", "--bf16 --use-megatron-fsdp").replace("-size 2 ", "-size 1 ")
    assert read_launch_file(sharded).configuration.zero_stage == 3
    for stage, strategy in enumerate(("no_shard", "optim", "optim_grads", "optim_grads_params")):
        stated = sharded.replace("--bf16", f"--bf16 --data-parallel-sharding-strategy {strategy}")
        assert read_launch_file(stated).configuration.zero_stage == stage
    odd = SCRIPT.replace("--vocab-size 128256", "--vocab-size 50260 --make-vocab-size-divisible-by 1024")
    assert read_launch_file(odd).model.vocab_size == 53248  # 13 times 1024 times 4 tensor ranks
    assert read_launch_file(odd.replace("--bf16", "--bf16 --no-pad-vocab-size")).model.vocab_size == 50260


def test_a_flag_that_does_nothing_without_another_is_refused_next_to_it_alone() -> None:
    alone = SCRIPT.replace("--bf16", "--bf16 --no-tp-comm-bulk-dgrad")
    assert "--no-tp-comm-bulk-dgrad" not in read_launch_file(alone).unread
    with pytest.raises(InvalidProblemError, match=r"bulk-dgrad: line 21: .*overlap of some products alone"):
        read_launch_file(alone.replace("--bf16", "--bf16 --tp-comm-overlap --sequence-parallel"))


def test_the_order_of_the_ranks_is_read_and_a_flag_that_changes_no_rank_is_the_plain_order() -> None:
    # tp 4, pp 2, dp 4 of 32 GPUs; with 8 GPUs there is one replica, and nothing to order
    found = read_launch_file(SCRIPT.replace("--bf16", "--bf16 --use-tp-pp-dp-mapping"))
    assert found.configuration.rank_order == "tp-cp-pp-dp"
    assert found.unread == ("--optimizer-cuda-graph",)
    alone = SCRIPT.replace("--bf16", "--bf16 --use-tp-pp-dp-mapping").replace("nodes=4", "nodes=1")
    config = read_launch_file(alone).configuration
    assert (config.data_parallel_size, config.rank_order) == (1, "tp-cp-dp-pp")


def test_offloaded_states_are_read_and_so_is_their_share() -> None:
    some = "--bf16 --use-precision-aware-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 0.5"
    found = read_launch_file(SCRIPT.replace("--bf16", some))
    assert found.configuration.offload == "optimizer"
    assert found.workload.framework_options["optimizer_offload_fraction"] == 0.5
    with pytest.raises(InvalidProblemError, match=r"0\.01 to 1"):
        read_launch_file(SCRIPT.replace("--bf16", some.replace("0.5", "0")))


def test_products_in_4_bits_are_fp8_with_their_recipe() -> None:
    workload = read_launch_file(SCRIPT.replace("--bf16", "--bf16 --fp4-format e2m1")).workload
    assert (workload.precision, workload.framework_options["precision_recipe"]) == ("fp8", "nvfp4")


@pytest.mark.parametrize(
    ("flags", "score", "normalized"),
    [  # megatron-core 0.16.1, moe_utils.py:724: scores / sum where several experts are chosen, else scores
        ("--moe-router-topk 2", "softmax", True),
        ("--moe-router-topk 2 --moe-router-pre-softmax", "softmax", False),
        (f"--moe-router-topk 2 {SIGMOID}", "sigmoid", True),
        (f"--moe-router-topk 2 {SIGMOID} --moe-router-pre-softmax", "sigmoid", True),
        (f"--moe-router-topk 1 {SIGMOID}", "sigmoid", False),
    ],
)
def test_sigmoid_scores_of_several_experts_are_normalised_whatever_pre_softmax_says(
    flags: str, score: str, normalized: bool
) -> None:
    found = read_launch_file(SCRIPT.replace("--bf16", f"--bf16 --num-experts 8 {flags}"))
    assert found.model.moe
    assert (found.model.moe.router_score, found.model.moe.normalized_top_k) == (score, normalized)
    ignored = [note for note in found.notes if note.startswith("--moe-router-pre-softmax changes nothing")]
    assert len(ignored) == (score == "sigmoid" and "pre-softmax" in flags)
    facts = model_facts(found.model)
    assert not {"sigmoid router without normalisation", "one expert with a normalised weight"} & {*facts}


def test_a_named_model_that_the_flags_contradict_is_refused() -> None:
    with pytest.raises(
        InvalidProblemError, match=r"--hidden-size: line 11: 4096, but Llama 3\.1 70B has 8192"
    ):
        read_launch_file(SCRIPT, model=LLAMA_70B)


def test_bare_flags_need_the_number_of_gpus_from_elsewhere() -> None:
    flags = SCRIPT[SCRIPT.index("    --num-layers") : SCRIPT.index(")\nPARALLEL")]
    text = f"{flags} --micro-batch-size 1 --global-batch-size 64 --seq-length 8192 --bf16"
    with pytest.raises(InvalidProblemError, match="--cluster with --num-nodes"):
        read_launch_file(text)
    assert read_launch_file(text, num_gpus=16).configuration.data_parallel_size == 16


# Llama 3.1 8B on one stage of 4 tensor ranks: 8.03 billion parameters / 4, and gradients in fp32.
@pytest.mark.parametrize(
    ("flags", "held"),
    [
        ("--overlap-grad-reduce --ddp-bucket-size 100000000", 4e8),
        ("--overlap-grad-reduce --grad-reduce-in-bf16 --ddp-bucket-size 100000000", 2e8),
        ("--overlap-grad-reduce --ddp-num-buckets 10", 4 * (8_030_261_248 // 4 // 10)),
        ("--ddp-bucket-size 100000000", None),  # one bucket, reduced after the last backward pass
        ("--overlap-grad-reduce --pipeline-model-parallel-size 2 --ddp-bucket-size 100000000", None),
    ],
)
def test_the_size_of_gradient_buckets_is_read_where_a_backward_pass_hides_them(
    flags: str, held: float | None
) -> None:
    script = SCRIPT.replace("--pipeline-model-parallel-size 2", "").replace("--bf16", f"--bf16 {flags}")
    found = read_launch_file(script)
    assert found.workload.framework_options.get("bucket_bytes") == held
    assert any("here each layer's gradients are reduced" in note for note in found.notes) == (held is None)


def test_a_size_and_a_number_of_buckets_are_refused_together() -> None:
    both = "--bf16 --ddp-bucket-size 100 --ddp-num-buckets 2"
    with pytest.raises(InvalidProblemError, match=r"--ddp-num-buckets: .*contradicts --ddp-bucket-size"):
        read_launch_file(SCRIPT.replace("--bf16", both))


def test_uneven_ends_and_counted_embeddings_are_splits() -> None:
    ends = "--bf16 --decoder-first-pipeline-num-layers 15"
    assert read_launch_file(SCRIPT.replace("--bf16", ends)).configuration.stage_layers == (15, 17)
    counted = "--bf16 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert read_launch_file(SCRIPT.replace("--bf16", counted)).configuration.stage_layers == (16, 16)
    layout = "--bf16 --pipeline-model-parallel-layout 'Et*7|(tt|)*8t*9L'"
    chunks = read_launch_file(SCRIPT.replace("--bf16", layout)).configuration.stage_layers
    assert chunks == (7, *(2,) * 8, 9)


def test_an_embedding_and_a_loss_alone_are_stages_without_a_layer() -> None:
    layout = "--bf16 --pipeline-model-parallel-layout 'E|(tt|)*16L'"
    chunks = read_launch_file(SCRIPT.replace("--bf16", layout)).configuration.stage_layers
    assert chunks == (0, *(2,) * 16, 0)
    # Megatron-LM's own example for DeepSeek-V3: prediction layers alone, too
    layout = (
        "--bf16 --num-layers 61 --mtp-num-layers 1 --pipeline-model-parallel-layout 'Et*3|(tt|)*29,m|L'"
    )
    shown = SCRIPT.replace("--num-layers 32", "").replace("--bf16", layout)
    chunks = read_launch_file(shown).configuration.stage_layers
    assert chunks == (3, *(2,) * 29, 0, 0)


@given(st.text(alphabet=st.sampled_from("-abfz0189=\"'$(){}[]\\\n #*+|&;<>`\t"), max_size=300))
@settings(max_examples=draws(80), deadline=None)
def test_nonsense_is_refused_and_never_crashes(text: str) -> None:
    with pytest.raises(InvalidProblemError):
        read_launch_file(text)


@given(st.data())
@settings(max_examples=draws(40), deadline=None)
def test_a_damaged_script_is_read_or_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(SCRIPT)))
    length = data.draw(st.integers(0, 40))
    put = data.draw(st.text(alphabet=st.characters(codec="utf-8"), max_size=5))
    try:
        read_launch_file(SCRIPT[:start] + put + SCRIPT[start + length :])
    except InvalidProblemError:
        return


@pytest.mark.parametrize(
    "text",
    [
        "A=aaaaaaaaaaaaaaaa\n" + 'A="$A$A"\n' * 60,
        "A=(a a a a)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 60,
        "${A:-" * 5000 + "}" * 5000,
        "$((" * 3000 + "1" + "))" * 3000,
        "# comment\n" * 90_000,
        'A="$B" ' * 40_000,
    ],
    ids=["doubled", "doubled array", "nested defaults", "nested sums", "comments", "assignments"],
)
def test_a_script_that_would_never_end_is_refused_at_once(text: str) -> None:
    began = work_s()
    with pytest.raises(InvalidProblemError):
        read_launch_file(text)
    assert work_s() - began < 5.0


def test_yarn_of_plain_attention_is_read_with_its_own_numbers_and_megatrons_defaults() -> None:
    script = SCRIPT.replace("--position-embedding-type rope", "").replace("--use-rope-scaling", "")
    yarn = "--position-embedding-type yarn --rotary-scaling-factor 4"
    found = read_launch_file(script.replace("--bf16", f"--bf16 {yarn}")).model.rotary_scaling
    assert found == RotaryScaling(kind="yarn", factor=4.0, original_max_position_embeddings=4096)
    own = f"{yarn} --yarn-original-max-position-embeddings 8192 --yarn-beta-fast 16 --yarn-beta-slow 2"
    own += " --mscale 0.7 --mscale-all-dim 0.7 --no-yarn-correction-range-round-to-int"
    found = read_launch_file(script.replace("--bf16", f"--bf16 {own}")).model.rotary_scaling
    assert found == RotaryScaling(
        kind="yarn", factor=4.0, original_max_position_embeddings=8192, beta_fast=16.0, beta_slow=2.0,
        mscale=0.7, mscale_all_dim=0.7, truncate=False,
    )  # fmt: skip


@pytest.mark.parametrize(("chunks", "overlaps"), [(1, None), (2, False), (4, False)])
def test_transfers_are_held_back_where_chunks_interleave(chunks: int, overlaps: bool | None) -> None:
    flags = f"--num-virtual-stages-per-pipeline-rank {chunks} --no-overlap-p2p-communication"
    found = read_launch_file(SCRIPT.replace("--bf16", f"--bf16 {flags}"))
    assert found.workload.framework_options.get("overlap_transfer") is overlaps
