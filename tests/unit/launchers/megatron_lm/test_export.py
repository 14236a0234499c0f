"""What the Megatron-LM exporter writes, and what it warns about."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from meshwright.launchers.megatron_core.names import layout
from meshwright.launchers.megatron_lm.export import export as export_megatron_lm
from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launchers_stating
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.library import find_cluster, find_model, model_names
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.launch_files import own_of_files, ramp_notes
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload
from meshwright.solver.space.enumerate import enumerate_space
from tests.draws import draws
from tests.launchers.cases import (
    B200,
    CASES,
    DEEPSEEK_V3,
    GPT3_175B,
    LLAMA_70B,
    LLAMA_70B_EVEN,
    LLAMA_70B_FSDP,
    MIXTRAL,
    V100,
    cluster,
    plan,
    target,
)
from tests.launchers.megatron_arguments import parser, stage_layers, words

SMALL = Configuration(stage_layers=(80,))
TENSOR = replace(SMALL, tensor_parallel_size=2, sequence_parallel=True)
EVERY_OTHER = MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=14336, num_dense_layers=1, frequency=2)


def flags(found: Target) -> list[str]:
    return words(export_megatron_lm(found).files["megatron_args.sh"])


def value(found: Target, name: str) -> str:
    written = flags(found)
    return written[written.index(name) + 1]


@pytest.mark.parametrize(
    ("recipe", "formats"),
    [("fp8-current", "hybrid"), ("fp8-blockwise", "hybrid"), ("mxfp8", "e4m3")],
)
def test_mxfp8_leaves_gradients_in_e4m3_as_nvidias_recipe_does(recipe: str, formats: str) -> None:
    # Megatron-Bridge 0.3.1, training/mixed_precision.py, bf16_with_mxfp8_mixed: fp8 = "e4m3"
    found = with_options(precision_recipe=recipe)
    problem = replace(found.problem, workload=replace(found.workload, precision="fp8"))
    on_blackwell = replace(problem, cluster=cluster(1, gpu=B200, gpus_per_node=1))
    assert value(replace(found, problem=on_blackwell), "--fp8-format") == formats


GATHER, REUSE = "--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"


def held_in_8_bits(recipe: str, name: str, *, alone: bool = True) -> Target:
    """A plan in 8 bits on Blackwell, with weights held in 8 bits ``alone`` or in 2 bytes as well."""
    base = CASES[name]
    options: dict[str, str | bool] = {"precision_recipe": recipe, "low_precision_weights": alone}
    workload = replace(base.workload, precision="fp8", framework_options=options)
    nodes = base.config.num_gpus // 8
    problem = replace(base.problem, workload=workload, cluster=cluster(nodes, gpu=B200))
    return replace(base, problem=problem)


@pytest.mark.parametrize(
    ("recipe", "name", "written"),
    [
        ("mxfp8", "llama-3.1-70b-interleaved", {GATHER, REUSE}),
        ("fp8-current", "llama-3.1-70b-interleaved", {GATHER}),
        ("mxfp8", "llama-3.1-70b-fsdp", {GATHER}),
    ],
)
def test_mxfp8_weights_are_gathered_in_the_gradients_buffer_as_megatron_core_needs_it(
    recipe: str, name: str, written: set[str]
) -> None:
    # distributed/param_and_grad_buffer.py maps weights into a buffer by Transformer Engine's
    # replace_raw_data, which raises NotImplementedError for MXFP8; Megatron-FSDP has buffers of its own.
    found = held_in_8_bits(recipe, name)
    assert {GATHER, REUSE} & set(flags(found)) == written
    files = export_megatron_lm(found).files
    back = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    assert back.workload.framework_options["precision_recipe"] == recipe
    assert back.workload.framework_options["low_precision_weights"] is True
    assert back.unread == ()


def test_weights_with_a_copy_in_2_bytes_are_not_gathered_in_8_bits() -> None:
    found = held_in_8_bits("fp8-current", "llama-3.1-70b-interleaved", alone=False)
    assert found.config.zero_stage > 0
    assert GATHER not in flags(found)


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (REUSE, f"{GATHER}: line \\d+: needs {REUSE} with --fp8-recipe mxfp8"),
        (GATHER, f"{REUSE}: line \\d+: needs {GATHER}"),
    ],
)
def test_mxfp8_weights_without_a_buffer_are_refused_when_read(lacking: str, message: str) -> None:
    files = dict(export_megatron_lm(held_in_8_bits("mxfp8", "llama-3.1-70b-interleaved")).files)
    files["megatron_args.sh"] = re.sub(
        f"^ *{lacking}\\n", "", files["megatron_args.sh"], flags=re.MULTILINE
    )
    with pytest.raises(InvalidProblemError, match=message):
        read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))


def with_options(config: Configuration = SMALL, **options: str | float | bool) -> Target:
    plain = Workload(global_batch_size=config.global_batch_size, seq_length=8192, framework_options=options)
    return target(LLAMA_70B, config, workload=plain)


def warnings(found: Target) -> str:
    return "\n".join(export_megatron_lm(found).warnings)


def test_the_registry_knows_megatron_lm_and_names_the_nearest_for_a_misspelling() -> None:
    found = CASES["llama-3.1-70b-interleaved"]
    assert "megatron-lm" in launcher_names()
    assert export(found.plan, found.problem, "megatron-lm") == export_megatron_lm(found)
    with pytest.raises(UnknownNameError, match="Did you mean megatron-lm") as unknown:
        export(found.plan, found.problem, "megatron")
    assert unknown.value.errors[0].pointer == "/launcher"


def test_a_layout_names_embedding_layers_prediction_layers_and_loss_in_model_order() -> None:
    assert layout((7, 9, 9, 7)) == "Et*7|t*9|t*9|t*7L"
    assert layout((1, 2), num_mtp_layers=1) == "Et|t*2mL"
    assert layout((1, 1), num_mtp_layers=2) == "Et|tm*2L"
    assert layout((1, 2, 0), num_mtp_layers=1) == "Et|t*2|mL"
    assert layout((0, 3, 0, 0), num_mtp_layers=1) == "E|t*3|m|L"


def test_an_even_split_uses_the_plain_flags_and_no_layout() -> None:
    written = flags(CASES["llama-3.1-70b-interleaved"])
    assert "--pipeline-model-parallel-layout" not in written
    assert value(CASES["llama-3.1-70b-interleaved"], "--num-virtual-stages-per-pipeline-rank") == "5"


def test_an_uneven_split_uses_the_layout_alone_because_two_ways_of_virtual_stages_are_refused() -> None:
    written = flags(CASES["deepseek-v3-experts"])
    assert "--num-virtual-stages-per-pipeline-rank" not in written
    assert "--pipeline-model-parallel-layout" in written


def test_grouped_query_attention_is_switched_on_or_its_groups_would_be_ignored() -> None:
    assert "--group-query-attention" in flags(target(LLAMA_70B, SMALL))
    assert value(target(LLAMA_70B, SMALL), "--num-query-groups") == "8"
    every_head = replace(LLAMA_70B, num_kv_heads=64)
    assert "--group-query-attention" not in flags(target(every_head, SMALL))


def test_gpt_3_has_learned_positions_layer_norm_biases_and_one_embedding() -> None:
    found = target(GPT3_175B, replace(SMALL, stage_layers=(96,)), seq_length=2048)
    written = set(flags(found))
    assert not written & {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"}
    assert value(found, "--position-embedding-type") == "learned_absolute"
    assert value(found, "--max-position-embeddings") == "2048"
    assert value(found, "--normalization") == "LayerNorm"


def test_leading_dense_layers_stand_in_the_expert_pattern() -> None:
    found = CASES["deepseek-v3-experts"]
    assert value(found, "--moe-layer-freq") == "([0]*3+[1]*58)"
    every_other = replace(MIXTRAL, num_layers=3, moe=EVERY_OTHER)
    found = target(every_other, replace(SMALL, stage_layers=(3,)))
    assert value(found, "--moe-layer-freq") == "([0]*1+[1]*1+[0]*1)"  # 1 dense, then every second


def test_the_loss_that_balances_experts_is_written_and_its_lack_is_a_warning() -> None:
    found = CASES["deepseek-v3-experts"]
    assert value(found, "--moe-router-load-balancing-type") == "seq_aux_loss"
    assert value(found, "--moe-aux-loss-coeff") == "0.0001"
    assert "nothing balances" not in warnings(found)
    assert "nothing balances the experts: add --moe-aux-loss-coeff" in warnings(
        CASES["mixtral-8x7b-experts"]
    )


def test_the_table_has_the_planned_rows_however_few_tokens_the_tokenizer_has() -> None:
    script = export_megatron_lm(CASES["llama-3.1-70b-interleaved"]).files["launch.sh"]
    dry, _, real = script.partition("\nelse\n")
    assert "--padded-vocab-size 129024 " in real  # 128 256 rows, padded to 126 times 128 * 8
    assert "--padded-vocab-size" not in dry  # whose synthetic tokens have one more


def test_latent_attention_without_query_compression_has_no_query_rank() -> None:
    assert DEEPSEEK_V3.mla is not None
    direct = replace(DEEPSEEK_V3, mla=replace(DEEPSEEK_V3.mla, q_lora_rank=0))
    written = flags(target(direct, replace(SMALL, stage_layers=(61,))))
    assert "--q-lora-rank" not in written
    assert written[written.index("--kv-lora-rank") + 1] == "512"


def test_a_window_of_4096_tokens_is_the_token_and_4095_before_it() -> None:
    found = target(replace(LLAMA_70B, sliding_window=4096, sliding_window_every=6), SMALL)
    assert value(found, "--window-size") == "4095,0"
    assert value(found, "--window-attn-skip-freq") == "6"


@pytest.mark.parametrize(("stage", "strategy"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_zero_2_and_3_run_under_megatron_fsdp(stage: int, strategy: str) -> None:
    found = target(LLAMA_70B, replace(LLAMA_70B_FSDP, zero_stage=stage))
    assert value(found, "--data-parallel-sharding-strategy") == strategy
    assert value(found, "--ckpt-format") == "fsdp_dtensor"
    assert {"--use-megatron-fsdp", "--use-distributed-optimizer"} <= set(flags(found))


def test_hybrid_sharding_is_written_as_the_number_of_shard_sets() -> None:
    # dp 64 in sets of 8 ranks: 8 sets
    found = target(LLAMA_70B, replace(LLAMA_70B_FSDP, zero_shard_size=8))
    assert value(found, "--num-distributed-optimizer-instances") == "8"


def test_the_facts_that_priced_the_plan_become_flags() -> None:
    assert "--tp-comm-overlap" in flags(with_options(TENSOR))
    assert "--tp-comm-overlap" not in flags(with_options(TENSOR, overlap_tensor=False))
    assert "--accumulate-allreduce-grads-in-fp32" in flags(with_options())
    assert "--grad-reduce-in-bf16" in flags(with_options(gradient_dtype="bf16"))
    assert value(with_options(loss_fused=True), "--cross-entropy-fusion-impl") == "native"
    assert value(with_options(), "--hidden-dropout") == "0.0"
    assert value(with_options(dropout=True), "--hidden-dropout") == "0.1"
    assert "--overlap-param-gather" in flags(with_options(LLAMA_70B_EVEN))
    assert not {"--overlap-param-gather", "--overlap-grad-reduce"} & set(
        flags(with_options(LLAMA_70B_EVEN, overlap_gradients=False))
    )
    still = with_options(LLAMA_70B_EVEN, overlap_transfer=False)
    assert "--no-overlap-p2p-communication" in flags(still)
    assert value(with_options(replace(SMALL, context_parallel_size=2)), "--cp-comm-type") == "p2p"


@pytest.mark.parametrize(
    ("kernel", "backend"),
    [("cudnn", "fused"), ("flash3", "flash"), ("torch", "unfused"), ("triton", "auto")],
)
def test_attention_runs_on_the_kernel_that_was_priced(kernel: str, backend: str) -> None:
    assert value(with_options(attention_kernel=kernel), "--attention-backend") == backend


def test_a_fact_that_no_flag_expresses_is_a_warning() -> None:
    assert "norm_fused is always true" in warnings(with_options(norm_fused=False))
    limited = warnings(with_options(power_limit_w=500))
    assert "no file sets power_limit_w: run sudo nvidia-smi -pl 500 on every node first" in limited
    assert "has no flag for it" not in limited
    assert "attention kernel triton has no flag" in warnings(with_options(attention_kernel="triton"))


def test_fp8_rides_on_bf16_with_a_recipe() -> None:
    plain = Workload(global_batch_size=1, seq_length=8192, precision="fp8")
    written = flags(target(LLAMA_70B, SMALL, workload=plain))
    assert "--bf16" in written
    assert written[written.index("--fp8-recipe") + 1] == "delayed"


def test_a_gpu_before_ampere_gets_the_unfused_attention() -> None:
    plain = Workload(global_batch_size=1, seq_length=8192, precision="fp16")
    found = target(LLAMA_70B, SMALL, gpu=V100, workload=plain)
    assert value(found, "--attention-backend") == "unfused"
    assert "--bf16" not in flags(found)
    seen = warnings(target(LLAMA_70B, SMALL, gpu=V100))
    assert "V100 has no bf16 units" in seen
    assert "V100 keeps the attention scores" in seen


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (CASES["llama-3.1-70b-interleaved"], "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (target(LLAMA_70B, LLAMA_70B_EVEN, gpu=B200), ""),
        (CASES["deepseek-v3-experts"], ""),
        (CASES["llama-3.1-70b-fsdp"], "unset CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_one_hardware_queue_before_blackwell_with_tensor_ranks_but_never_with_fsdp(
    found: Target, line: str
) -> None:
    lines = export_megatron_lm(found).files["launch.sh"].splitlines()
    assert [one for one in lines if "CUDA_DEVICE_MAX_CONNECTIONS" in one] == ([line] if line else [])


def test_context_rings_that_leave_their_node_are_a_warning() -> None:
    wide = replace(SMALL, tensor_parallel_size=8, sequence_parallel=True)
    context = replace(SMALL, tensor_parallel_size=4, context_parallel_size=2)
    assert "tp * cp = 8 ranks cross the network: only 4 GPUs" in warnings(
        target(LLAMA_70B, context, gpus_per_node=4)
    )
    assert "network" not in warnings(target(LLAMA_70B, wide))


def test_what_megatron_will_change_or_leaves_open_is_a_warning() -> None:
    # 128256 = 125.25 * 1024 rows
    found = CASES["llama-3.1-70b-interleaved"]
    assert "128256 is padded to 129024" in warnings(found)
    assert "rotary scaling" not in warnings(found), "the file states it"
    assert "router" not in warnings(CASES["deepseek-v3-experts"]), "the file states it"
    assert "--rotary-base" not in warnings(found)
    unstated = replace(LLAMA_70B, rotary_base=None)
    assert "if yours is not 10000, add --rotary-base" in warnings(target(unstated, SMALL))
    assert "sequence parallelism does nothing at tp 1" in warnings(
        target(LLAMA_70B, replace(SMALL, sequence_parallel=True))
    )
    uneven = replace(
        SMALL, pipeline_parallel_size=2, pipeline_schedule="1f1b", recompute_granularity="full",
        recompute_layers=40, stage_layers=(39, 41),
    )  # fmt: skip
    assert "chunks with fewer than 40 layers" in warnings(target(LLAMA_70B, uneven))
    fsdp = replace(LLAMA_70B_FSDP, tensor_parallel_size=2, sequence_parallel=True)
    assert "single hardware queue" in warnings(target(LLAMA_70B, fsdp))


def test_two_groups_of_equal_nodes_are_exported_with_a_warning_about_the_order_of_hosts() -> None:
    found = target(LLAMA_70B, replace(SMALL, data_parallel_size=16))
    groups = (cluster(1).groups[0], cluster(1, gpu=B200).groups[0])
    mixed = replace(found, problem=replace(found.problem, cluster=ClusterSpec(name="mixed", groups=groups)))
    assert "like the cluster's groups" in warnings(mixed)


def test_every_warning_stands_in_the_files_too() -> None:
    bundle = export_megatron_lm(CASES["mixtral-8x7b-experts"])
    assert bundle.warnings
    for name, text in bundle.files.items():
        line = "- {}\n" if name == "README.md" else "# Warning: {}\n"
        assert all(line.format(warning) in text for warning in bundle.warnings)


def test_a_name_cannot_end_its_comment_and_start_a_command() -> None:
    hostile = replace(LLAMA_70B, display_name="x\ntouch /tmp/owned\r#@ENVIRONMENT@")
    files = export_megatron_lm(target(hostile, SMALL)).files
    assert "\ntouch" not in files.pop("README.md")
    for text in files.values():
        assert "# Model x?touch /tmp/owned?#@ENVIRONMENT@, 8192 tokens a sequence" in text.splitlines()


# A batch that grows: written for Megatron-LM, refused where a batch is not whole, read back.


# 8 replicas of one sequence a micro-batch; 64 sequences in the end
CONFIG = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=8, num_microbatches=8,
    stage_layers=(80,),
)  # fmt: skip


def source_of(files: dict[str, str]) -> Source:
    return Source(name="launch.sh", text=files["launch.sh"], files=files)


def ramped(schedule: str) -> Source:
    """The files of a plan with a batch of 64, edited to reach it by this schedule."""
    files = export_megatron_lm(target(LLAMA_70B, CONFIG, seq_length=8192)).files
    arguments = files["megatron_args.sh"]
    edited = arguments.replace("--global-batch-size 64", f"--step-batch-size-schedule '{schedule}'")
    assert edited != arguments
    return source_of({**files, "megatron_args.sh": edited})


def test_the_last_batch_is_read_back_and_the_growth_is_noted() -> None:
    found = read_launch_files(ramped("0:16 8192000:32 24576000:64"))
    assert found.configuration == CONFIG
    assert found.workload.global_batch_size == 64
    assert found.batch_ramp == ((16, 8192 * 1000), (32, 8192 * 3000))
    assert "the batch grows from 16 to 64: time and memory are for 64" in found.notes


def test_every_earlier_batch_is_priced_with_its_steps() -> None:
    own = own_of_files({"cluster": {"name": "dgx-h100"}}, ramped("0:16 131072000:32 393216000:64"))
    profile = default_profile(own.problem.cluster, "megatron-lm")
    first, second = ramp_notes(own, profile)
    # 16 sequences of 8192 tokens a step: 1000 steps; then 2000 * 16 / 32 = 1000 steps of 32
    assert first.startswith("until 131,072,000 tokens the batch is 16: 1,000 steps of ")
    assert second.startswith("until 393,216,000 tokens the batch is 32: 1,000 steps of ")
    times = [float(note.split()[-2]) for note in (first, second)]
    last = predict(own.problem, profile, own.configuration).step_time_s
    assert times[0] < times[1] < last < 4 * times[0]


@pytest.mark.parametrize(
    "text", ["", "16", "1:16 2:32", "0:16 0:32", "0:x", "0:0", "0:16 1Q:32", "0:" + "9" * 99, "0:20 1B:64"]
)
def test_a_schedule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidProblemError, match="step-batch-size-schedule"):
        read_launch_files(ramped(text))


# The search and the exporter agree: whatever row the search may propose can be exported.

ROWS_A_MODEL = draws(2)


def nearly_even(num_layers: int, chunks: int) -> list[int]:
    """Layers of each chunk; the first ones take the remainder."""
    return [num_layers // chunks + (chunk < num_layers % chunks) for chunk in range(chunks)]


def proposed(problem: Problem) -> list[Configuration]:
    """Legal rows of the search's own space, other ones for other numbers of layers, each with a split."""
    rows = enumerate_space(problem, legal_only=True).rows
    drawn = np.random.default_rng(problem.model.num_layers)
    columns = rows.take(drawn.integers(0, len(rows), ROWS_A_MODEL))
    chunks = (columns.pipeline_parallel_size * columns.virtual_pipeline_size).tolist()
    return [
        columns.configuration(row, nearly_even(problem.model.num_layers, chunks[row]))
        for row in range(len(columns))
    ]


TRAINED = [
    name
    for name in model_names()  # patterns of layers are written otherwise (test_layer_patterns.py)
    if "megatron-lm" in launchers_stating(find_model(name)) and not find_model(name).layer_pattern
]


@pytest.mark.parametrize("name", TRAINED)
def test_every_kind_of_row_of_a_catalog_model_is_exported_with_all_its_layers(name: str) -> None:
    model = find_model(name)
    cluster = find_cluster("dgx-h100", num_nodes=16)
    seq = min(2048, model.max_position_embeddings or 2048)
    problem = Problem(
        model=model, cluster=cluster, workload=Workload(global_batch_size=256, seq_length=seq)
    )
    for config in proposed(problem):
        bundle = export_megatron_lm(Target(plan=plan(config), problem=problem))
        args = parser().parse_args(words(bundle.files["megatron_args.sh"]))
        assert stage_layers(args) == config.stage_layers
        assert args.global_batch_size == config.global_batch_size
