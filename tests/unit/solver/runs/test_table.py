import csv
from math import log
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.units import GB, GIB
from meshwright.solver.accuracy import validate
from meshwright.solver.cost.uncertainty import catalog_spreads
from meshwright.solver.runs.layouts import READ_COLUMNS
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs

ROW = {
    "run_id": "R-1", "cluster": "c", "num_layers": "32", "hidden_size": "4096", "ffn_hidden_size": "14336",
    "num_attention_heads": "32", "num_kv_heads": "8", "vocab_size": "128256", "tied_embeddings": "0",
    "gated_mlp": "1", "seq_length": "8192", "gpu": "h100-sxm-80gb", "num_gpus": "16", "gpus_per_node": "8",
    "network_gbit_per_s_per_gpu": "400", "fast_link_gpus": "8", "framework_family": "megatron-core",
    "precision": "bf16", "flash_attention": "1", "tensor_parallel_size": "2", "sequence_parallel": "1",
    "pipeline_parallel_size": "2", "virtual_pipeline_size": "1", "context_parallel_size": "1",
    "expert_parallel_size": "1", "data_parallel_size": "4", "zero_stage": "1", "micro_batch_size": "1",
    "global_batch_size": "32", "pipeline_schedule": "1f1b", "recompute": "none",
    "step_time_s": "2.5", "peak_memory_gib": "40", "memory_kind": "allocated", "memory_rank": "worst",
    "oom": "0",
}  # fmt: skip
MEASURED = (
    "step_time_s",
    "peak_memory_gib",
    "memory_kind",
    "memory_rank",
    "oom",
    "source",
    "rank_group",
    "framework",
    "model",
    "switch_source",
)


def table(path: Path, *rows: dict[str, str], without: str = "") -> Path:
    names = [name for name in (*READ_COLUMNS, *MEASURED) if name != without]
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def only(path: Path, **changes: str) -> Run:
    return read_runs(table(path / "runs.csv", ROW | changes))[0]


def test_a_row_becomes_a_problem_and_a_configuration(tmp_path: Path) -> None:
    run = only(tmp_path)
    assert run.shape is not None
    configuration = run.shape.configuration
    assert configuration.num_gpus == 16
    assert configuration.num_microbatches == 8  # 32 / (1 * 4)
    assert configuration.stage_layers == (16, 16)
    assert configuration.zero_shard_size == 4
    assert run.shape.problem.cluster.groups[0].inter_node.bytes_per_s == 50e9
    assert run.measured.peak_memory_bytes == 40 * GIB


@pytest.mark.parametrize(
    ("words", "kind", "latency_s"),
    [
        ("100 Gb/s Ethernet", "ethernet", 34e-6),  # TCP: 14 and 20 microseconds of the kernel
        ("100GbE, RoCE v2", "roce", 14e-6),
        ("InfiniBand, 10 GbE for storage", "infiniband", 14e-6),
    ],
)
def test_a_network_has_the_latency_of_its_kind(
    tmp_path: Path, words: str, kind: str, latency_s: float
) -> None:
    run = only(tmp_path, inter_node_link=words, network_gbit_per_s_per_gpu="100")
    assert run.shape is not None
    (group,) = run.shape.problem.cluster.groups
    assert group.inter_node.kind == kind
    assert group.inter_node.latency_s == pytest.approx(latency_s)


def test_layers_per_stage_are_taken_as_printed(tmp_path: Path) -> None:
    run = only(tmp_path, layers_per_stage="17-15")
    assert run.shape is not None
    assert run.shape.configuration.stage_layers == (17, 15)


def test_layers_of_a_stage_spread_over_its_chunks(tmp_path: Path) -> None:
    # stage 0 has 18 layers in two chunks, stage 1 has 14: chunks in model order 0, 1, 0, 1; what the last
    # stage has less is missing beside the head
    run = only(
        tmp_path, layers_per_stage="18-14", virtual_pipeline_size="2", pipeline_schedule="interleaved_1f1b"
    )
    assert run.shape is not None
    assert run.shape.configuration.stage_layers == (9, 9, 9, 5)


def test_uneven_layers_leave_the_ends_lighter(tmp_path: Path) -> None:
    # 30 layers on 4 stages
    run = only(tmp_path, num_layers="30", pipeline_parallel_size="4", data_parallel_size="2")
    assert run.shape is not None
    assert run.shape.configuration.stage_layers == (7, 8, 8, 7)


@pytest.mark.parametrize(
    ("stages", "chunks"),
    [
        ("16", (*[4] * 15, 1)),  # with 61 layers on 15 of them, one chunk would have 5
        ("32", (1, *[2] * 30, 0)),
    ],
)
def test_a_last_chunk_that_predicts_further_tokens_is_as_full_as_leaves_no_other_fuller(
    tmp_path: Path, stages: str, chunks: tuple[int, ...]
) -> None:
    # DeepSeek-V3's shape; Megatron-Bridge lays it out as Et*4|(t*4|)*14tmL and Et|(tt|)*30mL
    shape = {
        "num_layers": "61", "hidden_size": "7168", "ffn_hidden_size": "18432", "num_attention_heads": "128",
        "num_kv_heads": "128", "head_dim": "192", "vocab_size": "129280", "gated_mlp": "1",
        "num_experts": "256", "moe_top_k": "8", "moe_ffn_hidden_size": "2048", "num_shared_experts": "1",
        "num_dense_layers": "3", "mtp_layers": "1",
    }  # fmt: skip
    layout = {"num_gpus": stages, "pipeline_parallel_size": stages, "data_parallel_size": "1"}
    run = only(tmp_path, **shape, **layout, tensor_parallel_size="1", sequence_parallel="0")
    assert run.shape is not None
    assert run.shape.configuration.stage_layers == chunks


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peft": "prompt-tuning"}, "peft"),
        ({"offload": "weights"}, "offload"),
        ({"optimizer": "shampoo"}, "shampoo"),
        ({"data_parallel_size": "3"}, "num_gpus"),
        ({"global_batch_size": "30"}, "global batch"),
        ({"gpu": "h100-sxm-80gb+a100-sxm-80gb"}, "mixed"),
        ({"gpu": "gpu-of-tomorrow"}, "not in the catalog"),
        ({"micro_batch_size": ""}, "micro_batch_size is not known"),
        ({"layers_per_stage": "16-17"}, "layers_per_stage"),
        ({"pipeline_schedule": "spiral"}, "spiral"),
        ({"recompute": "sometimes"}, "sometimes"),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_a_reason(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    run = only(tmp_path, **changes)
    assert run.shape is None
    assert reason in (run.refused_reason or "")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidProblemError, match=r"columns: missing: seq_length\. Allowed: the columns of"
    ):
        read_runs(table(tmp_path / "runs.csv", ROW, without="seq_length"))


def test_two_rows_of_one_run_id_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidProblemError, match=r"rows\.1\.run_id: line 3: .* is the run of line 2 already"
    ):
        read_runs(table(tmp_path / "runs.csv", ROW, ROW | {"step_time_s": "3"}))


@pytest.mark.parametrize("bad", ["many", "nan", "-1", "1.5", "inf"])
def test_a_cell_that_is_no_count_refuses_its_row_alone(tmp_path: Path, bad: str) -> None:
    good, refused = read_runs(table(tmp_path / "runs.csv", ROW, ROW | {"run_id": "", "num_layers": bad}))
    assert good.shape is not None
    assert refused.shape is None
    assert "num_layers: line 3: " in (refused.refused_reason or "")


def test_a_measured_cell_that_is_no_number_refuses_its_row(tmp_path: Path) -> None:
    run = only(tmp_path, step_time_s="fast")
    assert run.shape is None
    assert run.measured.step_time_s is None
    assert 'step_time_s: line 2: "fast" is not a number' in (run.refused_reason or "")


def test_a_table_of_eleven_columns_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "num_layers,hidden_size,ffn_hidden_size,num_attention_heads,seq_length,gpu,num_gpus,"
        "tensor_parallel_size,pipeline_parallel_size,micro_batch_size,global_batch_size\n"
        "32,4096,16384,32,4096,h100-sxm-80gb,16,2,2,1,32\n"
    )
    run = read_runs(path)[0]
    assert run.shape is not None
    assert run.shape.configuration.data_parallel_size == 4  # 16 / (2 * 2)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidProblemError, match="CSV"):
        read_runs(path)


def test_measured_columns_may_be_absent(tmp_path: Path) -> None:
    run = read_runs(table(tmp_path / "runs.csv", ROW, without="step_time_s"))[0]
    assert run.measured.step_time_s is None
    assert run.shape is not None


def test_an_unlisted_family_falls_back_with_a_warning(tmp_path: Path) -> None:
    run = only(tmp_path, framework_family="colossal")
    assert run.shape is not None
    assert run.shape.framework == "megatron-core"
    assert any("colossal" in warning for warning in run.shape.warnings)


def test_software_that_nobody_measured_has_the_band_of_unknown_software(tmp_path: Path) -> None:
    # a model so small that the CPU, whose launches nobody measured, decides
    small = {"hidden_size": "256", "ffn_hidden_size": "1024", "num_experts": "", "seq_length": "512"}
    widths = []
    for family in ("megatron-core", "colossal"):
        [row] = validate([only(tmp_path, framework_family=family, **small)]).runs
        assert row.prediction is not None
        widths.append(log(row.prediction.step_time_high_s / row.prediction.step_time_low_s))
    # 80 % lie within ± 1.2816 standard deviations: unidentified launches in place of known ones, which are
    # nearly the whole step
    spreads = catalog_spreads()["uncalibrated"]
    added = (2 * 1.2816) ** 2 * (spreads["unidentified_launch"] ** 2 - spreads["launch"] ** 2)
    assert 0.85 * added < widths[1] ** 2 - widths[0] ** 2 <= added
    assert added > 0


def test_unknown_software_may_hold_whole_logits_and_its_risk_says_so(tmp_path: Path) -> None:
    # 65,536 tokens of 128,256 words: 6 bytes a logit over eight ranks are 5.9 GiB, whole ones of 14 110 GiB
    long = {"seq_length": "65536", "recompute": "full", "tensor_parallel_size": "8",
            "pipeline_parallel_size": "1", "data_parallel_size": "2", "step_time_s": "600"}  # fmt: skip
    risks = []
    for family in ("megatron-core", "colossal"):
        [row] = validate([only(tmp_path, framework_family=family, **long)]).runs
        assert row.prediction is not None
        risks.append(row.prediction.out_of_memory_probability)
    assert risks[0] < 0.02
    assert risks[1] == pytest.approx(0.5, abs=0.02)  # either is as likely


def test_a_kernel_that_no_fact_knows_counts_as_unknown(tmp_path: Path) -> None:
    run = only(tmp_path, attention_kernel="ring-of-fire", flash_attention="1")
    assert run.shape is not None
    assert run.shape.problem.workload.framework_options == {"flash_attention": True}


def test_a_run_whose_source_fits_two_precisions_is_refused(tmp_path: Path) -> None:
    run = only(tmp_path, precision="fp8|nvfp4")
    assert run.shape is None
    assert run.refused_reason == "precision = fp8|nvfp4: the source does not state which"


def test_less_than_3_percent_of_the_open_runs_are_refused() -> None:
    runs = read_runs(CATALOG_RUNS)
    assert len(runs) == 2552
    assert sum(run.shape is None for run in runs) < 0.03 * len(runs)


def test_lora_without_a_stated_rank_is_read_as_rank_16_on_attention(tmp_path: Path) -> None:
    run = only(tmp_path, peft="lora")
    assert run.shape is not None
    workload = run.shape.problem.workload
    assert (workload.lora_rank, workload.lora_targets) == (16, ("linear_qkv", "linear_proj"))


def test_adapters_are_read_as_a_table_states_them(tmp_path: Path) -> None:
    stated = {"lora_rank": "32", "lora_targets": "q_proj+down_proj", "lora_dropout": "0.1"}
    run = only(tmp_path, peft="lora", **stated)
    assert run.shape is not None
    workload = run.shape.problem.workload
    assert (workload.lora_rank, workload.lora_targets) == (32, ("q_proj", "down_proj"))
    assert workload.framework_options["adapter_dropout"] is True
    refused = only(tmp_path, peft="lora", lora_targets="everything").refused_reason
    assert refused is not None
    assert '"everything" is not a module' in refused


@pytest.mark.parametrize(
    ("family", "framework", "read", "known"),
    [
        ("", "Megatron-Core", "megatron-core", True),
        ("", "NeMo AutoModel 26.02", "automodel", True),
        ("NeMo", "", "nemo", True),
        ("MaxText", "", "maxtext", True),
        ("", "MaxText (JAX)", "maxtext", True),
        ("", "JAX 0.7", "maxtext", False),
        ("", "LLaMA Factory", "llama-factory-accelerate", True),
        ("", "TRL 1.16 on accelerate", "trl", True),
        ("hf-accelerate", "", "accelerate", True),
        ("", "transformers Trainer", "accelerate", False),
        ("", "DeepSpeed ZeRO-3", "deepspeed", True),
        ("", "Megatron-DeepSpeed", "megatron-deepspeed", True),
        ("", "PyTorch FSDP2", "fsdp", True),
        ("", "Primus", "megatron-core", False),
        ("", "controlled experiment", "megatron-core", False),  # holds no name of TRL's
        # on an H100, which the one of 2021 never saw
        ("megatron-lm", "Megatron-LM", "megatron-core", True),
    ],
)
def test_the_name_of_a_program_tells_its_family_in_either_column(
    tmp_path: Path, family: str, framework: str, read: str, known: bool
) -> None:
    run = only(tmp_path, framework_family=family, framework=framework, gpu="h100-sxm-80gb")
    assert run.shape is not None
    assert (run.shape.framework, run.shape.software_known) == (read, known)


def test_who_shards_the_weights_decides_the_nearest_framework(tmp_path: Path) -> None:
    for kind, near in (("fsdp2", "fsdp"), ("hsdp", "fsdp"), ("megatron_fsdp", "megatron-core")):
        run = only(tmp_path, framework_family="own", fsdp_kind=kind, zero_stage="2")
        assert run.shape is not None
        assert run.shape.framework == near


def test_a_gpu_that_the_catalog_lacks_is_answered_as_the_nearest_in_a_wide_interval(
    tmp_path: Path,
) -> None:
    own, known = (only(tmp_path, gpu=name) for name in ("b220-sxm-128gb", "b200-sxm-180gb"))
    assert own.shape is not None
    assert "predicted as B200 SXM 180 GB" in " ".join(own.shape.warnings)
    assert own.shape.problem.cluster.groups[0].gpu.memory_bytes == 128 * GB  # as its name has it
    far, near = validate([own]).runs[0].prediction, validate([known]).runs[0].prediction
    assert far is not None
    assert near is not None
    assert far.step_time_high_s / far.step_time_s > 1.5 * near.step_time_high_s / near.step_time_s
    assert only(tmp_path, gpu="abacus").refused_reason == "GPU abacus is not in the catalog"


def test_mixed_precision_is_priced_by_its_recipe(tmp_path: Path) -> None:
    def step_s(**changes: str) -> float:
        prediction = validate([only(tmp_path, gpu="b200-sxm-180gb", **changes)]).runs[0].prediction
        assert prediction is not None
        return prediction.step_time_s

    plain = step_s(precision="bf16")
    assert step_s(precision="mixed") == plain
    assert step_s(precision="mixed", precision_recipe="mxfp8") < 0.8 * plain


def test_what_a_table_cannot_say_of_a_model_comes_from_the_catalog(tmp_path: Path) -> None:
    sizes = {
        "num_layers": "36", "hidden_size": "2880", "ffn_hidden_size": "2880", "num_attention_heads": "64",
        "num_kv_heads": "8", "head_dim": "64", "vocab_size": "201088", "num_experts": "128",
        "moe_top_k": "4", "moe_ffn_hidden_size": "2880", "num_shared_experts": "0",
        "num_dense_layers": "0",
    }  # fmt: skip
    run = only(tmp_path, **(sizes | {"vocab_size": ""}), model="GPT-OSS-120B", cuda_graph="none")
    assert run.shape is not None
    assert (run.shape.problem.model.vocab_size, run.shape.warnings) == (201088, ())
    windows = []
    for name, changes in (("gpt-oss-120b", {}), ("gpt-oss-120b", {"num_layers": "34"}), ("mine", {})):
        run = only(tmp_path, **(sizes | changes), model=name)
        assert run.shape is not None
        model = run.shape.problem.model
        windows.append((model.name, model.sliding_window))
    assert windows == [("gpt-oss-120b", 128), ("gpt-oss-120b", None), ("mine", None)]


def test_whether_embeddings_are_tied_is_the_catalogs_word_where_a_table_is_silent(tmp_path: Path) -> None:
    gpt = {
        "num_layers": "96", "hidden_size": "12288", "ffn_hidden_size": "49152", "num_attention_heads": "96",
        "num_kv_heads": "96", "head_dim": "128", "vocab_size": "51200", "gated_mlp": "0",
    }  # fmt: skip
    tied = []
    for name, stated in (("gpt3-175b", ""), ("gpt3-175b", "0"), ("mine", "")):
        run = only(tmp_path, **gpt, model=name, tied_embeddings=stated)
        assert run.shape is not None
        tied.append(run.shape.problem.model.tied_embeddings)
    assert tied == [True, False, False]


@pytest.mark.parametrize(
    ("stated", "recomputed"),
    [
        ("", ("full", 32)),  # all
        ("5", ("full", 5)),  # of the 16 of either stage
        ("8/32", ("full", 4)),  # 16 * 8 / 32
        ("32/32", ("full", 32)),
        ("0", ("none", 0)),
    ],
)
def test_full_recomputation_of_some_layers_is_no_recomputation_of_all(
    tmp_path: Path, stated: str, recomputed: tuple[str, int]
) -> None:
    run = only(tmp_path, recompute="full", recompute_layers=stated)
    assert run.shape is not None
    configuration = run.shape.configuration
    assert (configuration.recompute_granularity, configuration.recompute_layers) == recomputed


@pytest.mark.parametrize("bad", ["some", "9/8", "1/0", "-1"])
def test_layers_that_are_no_number_are_named(tmp_path: Path, bad: str) -> None:
    run = only(tmp_path, recompute="full", recompute_layers=bad)
    assert run.shape is None
    assert "recompute_layers" in (run.refused_reason or "")


def test_offloaded_activations_are_part_of_the_configuration(tmp_path: Path) -> None:
    run = only(tmp_path, offload="activations")
    assert run.shape is not None
    assert run.shape.configuration.offload == "activations"


def test_recipes_of_nemo_and_bridge_reduce_in_bf16_and_hold_8_bit_weights(tmp_path: Path) -> None:
    run = only(tmp_path, framework="Megatron-Bridge 26.02")
    assert run.shape is not None
    assert run.shape.framework == "nemo"


def test_recipes_with_latent_attention_replay_its_up_projections_where_they_do_not_say_what(
    tmp_path: Path,
) -> None:
    cells = {"framework": "Megatron-Bridge 25.09", "head_dim": "192", "recompute": "selective"}
    replayed = []
    for stated in ({"moe_capacity_factor": "1"}, {}, {"recompute_modules": "moe_act"}):
        run = only(tmp_path, **cells, **stated)
        assert run.shape is not None
        replayed.append(run.shape.problem.workload.framework_options["recompute_modules"])
    assert replayed == ["mla_up_proj", "mla_up_proj+mlp", "moe_act"]


def test_megatrons_own_tests_keep_scores_where_there_is_room(tmp_path: Path) -> None:
    ci = {"framework": "Megatron-Core CI (dev container)", "flash_attention": "1", "attention_kernel": ""}
    # scores of 16 layers: 5 bytes * 1 * 32 heads * s^2 * 16, over tp 2: 21 GB for s = 4096, 86 for 8192
    for seq, unfused in (("4096", True), ("8192", False)):
        run = only(tmp_path, **ci, seq_length=seq)
        assert run.shape is not None
        assert ("flash_attention" not in run.shape.problem.workload.framework_options) == unfused


def test_nanotron_cuts_where_the_weights_pass_a_ranks_share_and_logs_its_first_rank(tmp_path: Path) -> None:
    # 16 layers of 4 h^2 + 3 h f = 67.1 M (norms aside) and a head of 268 M: shares of 335.5 M are passed
    # by the 6th, 11th and 16th layer
    small = {
        "framework_family": "nanotron", "num_layers": "16", "hidden_size": "2048",
        "ffn_hidden_size": "8192", "num_attention_heads": "32", "num_kv_heads": "32",
        "vocab_size": "131072", "gated_mlp": "1", "head_dim": "", "layers_per_stage": "",
        "pipeline_parallel_size": "4", "tensor_parallel_size": "1", "data_parallel_size": "4",
        "zero_shard_size": "", "memory_rank": "", "num_experts": "",
    }  # fmt: skip
    run = only(tmp_path, **small)
    assert run.shape is not None
    assert run.shape.configuration.stage_layers == (6, 5, 5, 0)
    assert run.measured.memory_rank == "first"


def test_a_table_saved_by_a_spreadsheet_starts_with_a_mark_and_is_read(tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", ROW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_runs(path)[0].run_id == ROW["run_id"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"memory_kind": "resident"}, "memory_kind"),
        ({"memory_rank": "middle"}, "memory_rank"),
        ({"step_time_s": "0"}, "step_time_s"),
        ({"oom": "1"}, "oom"),  # beside a step of 2.5 s
    ],
)
def test_a_measurement_that_means_nothing_refuses_its_run(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    run = only(tmp_path, **changes)
    assert run.shape is None
    assert reason in (run.refused_reason or "")


def test_a_run_that_failed_without_a_time_is_kept(tmp_path: Path) -> None:
    run = only(tmp_path, oom="1", step_time_s="")
    assert run.shape is not None
    assert (run.measured.out_of_memory, run.measured.step_time_s) == (True, None)


def test_an_assumed_vocabulary_is_said(tmp_path: Path) -> None:
    stated, left_out = only(tmp_path), only(tmp_path, vocab_size="")
    assert stated.shape is not None
    assert left_out.shape is not None
    assert stated.shape.warnings == ()
    assert left_out.shape.problem.model.vocab_size == 51200
    assert left_out.shape.warnings == (
        "vocab_size is not stated: 51200 tokens (GPT-2's, padded) are assumed",
    )


def test_a_model_by_its_name_has_what_no_column_states(tmp_path: Path) -> None:
    sizes = dict.fromkeys(
        ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads",
         "vocab_size", "tied_embeddings", "gated_mlp"), "",
    )  # fmt: skip
    run = only(tmp_path, model="openai/gpt-oss-20b", **sizes)
    assert run.shape is not None, run.refused_reason
    model = run.shape.problem.model
    assert (model.num_layers, model.moe is not None, any(model.local_layers())) == (24, True, True)
    assert run.shape.configuration.stage_layers == (12, 12)
    unknown = only(tmp_path, model="no-such-model", **sizes)
    assert unknown.refused_reason is not None
    assert "no-such-model" in unknown.refused_reason


def test_a_table_of_named_models_needs_no_sizes(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    names = ("model", "seq_length", "gpu", "num_gpus", "tensor_parallel_size", "pipeline_parallel_size",
             "micro_batch_size", "global_batch_size", "framework_family")  # fmt: skip
    values = "llama-3.1-8b", "8192", "h100-sxm-80gb", "8", "1", "1", "1", "64", "torchtitan"
    path.write_text(",".join(names) + "\n" + ",".join(values) + "\n", encoding="utf-8")
    (run,) = read_runs(path)
    assert run.shape is not None
    assert run.shape.problem.model.num_layers == 32


def test_a_model_that_reads_images_states_them(tmp_path: Path) -> None:
    named = dict.fromkeys(("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"), "")
    named |= {"model": "qwen2.5-vl-7b", "pipeline_parallel_size": "1", "data_parallel_size": "8"}
    silent = only(tmp_path, **named)
    assert silent.refused_reason == (
        "the model reads images: images_per_sample and image_tokens are not known"
    )
    run = only(tmp_path, **named, images_per_sample="2", image_tokens="1024", frozen="projector+vision")
    assert run.shape is not None, run.refused_reason
    work = run.shape.problem.workload
    assert (work.images_per_sample, work.frozen) == (2.0, ("vision", "projector"))
    assert work.image_tokens is not None
    assert work.image_tokens.longest == 1024


EXPERTS = {
    "model": "qwen3-235b-a22b", "gpu": "gb200", "num_gpus": "64", "gpus_per_node": "4",
    "fast_link_gpus": "64",
    "tensor_parallel_size": "1", "pipeline_parallel_size": "8", "data_parallel_size": "8",
    "expert_parallel_size": "8", "global_batch_size": "1024", "seq_length": "4096", "precision": "mxfp8",
    "recompute": "", "step_time_s": "", "peak_memory_gib": "", "zero_stage": "1",
    **dict.fromkeys(("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"), ""),
}  # fmt: skip


def test_a_row_that_names_its_recipes_has_their_switches_where_it_states_none(tmp_path: Path) -> None:
    run = only(tmp_path, **EXPERTS, recipe="megatron-bridge", moe_dispatcher="alltoall")
    assert run.shape is not None, run.refused_reason
    options = run.shape.problem.workload.framework_options
    assert options["moe_dispatcher"] == "alltoall"  # what the row states stays
    assert options["moe_permute_fusion"] is True
    assert options["moe_force_balance"] is True
    (note,) = [one for one in run.shape.warnings if "switches" in one]
    assert "qwen3_235b_a22b_pretrain" in note
    assert "Megatron-Bridge v0.6.0" in note
    assert "moe_dispatcher" not in note
    unknown = only(tmp_path, **EXPERTS, recipe="my-own")
    assert "megatron-bridge" in (unknown.refused_reason or "")


def test_a_silent_row_of_experts_is_predicted_between_no_switches_and_a_recipes(tmp_path: Path) -> None:
    silent, none, named = (
        validate([only(tmp_path, **EXPERTS, **changes)]).runs[0].prediction
        for changes in ({}, {"switch_source": "mine"}, {"recipe": "megatron-bridge"})
    )
    assert silent is not None
    assert none is not None
    assert named is not None
    middle = (none.step_time_s * named.step_time_s) ** 0.5
    assert silent.step_time_s == pytest.approx(middle, rel=1e-3)
    assert silent.step_time_high_s / silent.step_time_s > none.step_time_high_s / none.step_time_s
