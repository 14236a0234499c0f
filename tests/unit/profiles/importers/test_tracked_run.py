"""Runs that W&B or MLflow tracked: their step times, memory and configuration, and clear errors."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.registry import detect_format, import_profile
from meshwright.profiles.measurements import MeasuredRun

MEGATRON: Mapping[str, object] = {
    "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 2,
    "context_parallel_size": 1,
    "data_parallel_size": 2,
    "world_size": 16,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "seq_length": 4096,
    "bf16": True,
    "fp16": False,
    "recompute_granularity": None,
    "use_distributed_optimizer": True,
    "sequence_parallel": True,
    "transformer_impl": "transformer_engine",
}
# Ten steps of 2.0 s, after two of 9 s that warm up.
TIMES = [9.0, 9.0, *[2.0] * 10]


def read(path: Path) -> MeasuredRun:
    run = import_profile(path)
    assert isinstance(run, MeasuredRun)
    return run


def wandb_folder(folder: Path, *, times: list[float] = TIMES, config: object = None) -> Path:
    lines = [
        "_step,_timestamp,lm loss,iteration-time,mem-max-allocated-bytes",
        *(f"{step},17{step},2.5,{seconds},{30 * 2**30}" for step, seconds in enumerate(times, 1)),
        f"{len(times) + 1},1799,2.4,,",  # a record of the evaluation: no step time
    ]
    (folder / "history.csv").write_text("\n".join(lines) + "\n")
    wrapped = {name: {"desc": None, "value": value} for name, value in MEGATRON.items()}
    (folder / "config.yaml").write_text(json.dumps(config or {"wandb_version": 1, **wrapped}))
    return folder


def test_a_wandb_run_of_megatron_has_step_time_memory_and_layout(tmp_path: Path) -> None:
    assert detect_format(wandb_folder(tmp_path)) == "wandb-run"
    run = read(tmp_path)
    assert run.framework == "megatron-lm"
    assert run.step_time_s == 2.0
    assert run.peak_allocated_bytes == 30 * 2**30
    assert run.configuration["tensor_parallel_size"] == 4
    assert run.configuration["num_gpus"] == 16
    assert run.configuration["zero_stage"] == 1
    assert run.words == {"precision": "bf16", "recompute": "none", "framework_family": "megatron-core"}
    # 64 sequences of 4096 tokens in 2 s on 16 GPUs
    assert run.tokens_per_s_per_gpu == 64 * 4096 / 2.0 / 16


def test_a_history_as_json_lines_or_as_a_chart_is_the_same_run(tmp_path: Path) -> None:
    wandb_folder(tmp_path)
    records = [{"_step": step, "iteration-time": seconds} for step, seconds in enumerate(TIMES, 1)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(map(json.dumps, records)))
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps({"history": records}))
    chart = tmp_path / "chart.csv"
    heads = '"Step","no-deepspeed - iteration-time","no-deepspeed - iteration-time__MIN"'
    rows = [f'"{step}","{seconds}","0.1"' for step, seconds in enumerate(TIMES, 1)]
    chart.write_text("\n".join([heads, *rows]))
    for path in (lines, whole, chart):
        assert detect_format(path) == "wandb-run"
        run = read(path)
        assert (run.framework, run.step_time_s) == ("megatron-lm", 2.0)  # whatever the run is called
        assert run.configuration["pipeline_parallel_size"] == 2


def test_a_torchtitan_run_names_its_mesh_in_a_nested_configuration(tmp_path: Path) -> None:
    config = {
        "parallelism": {
            "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": 8,
            "tensor_parallel_degree": 2, "pipeline_parallel_degree": 1, "context_parallel_degree": 1,
        },
        "training": {"global_batch_size": 32, "seq_len": 8192},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    records = [
        {"_step": step, "time_metrics/end_to_end(s)": seconds, "memory/max_reserved(GiB)": 40.0}
        for step, seconds in enumerate(TIMES, 1)
    ]
    (tmp_path / "history.json").write_text(json.dumps(records))
    run = read(tmp_path)
    assert (run.framework, run.step_time_s) == ("torchtitan", 2.0)
    assert run.peak_reserved_bytes == 40 * 2**30
    assert run.configuration["num_gpus"] == 16  # 8 shards, each on 2 tensor-parallel ranks
    assert run.configuration["data_parallel_size"] == 8


def mlflow_run(folder: Path) -> Path:
    run = folder / "0" / "3f9c"
    (run / "metrics").mkdir(parents=True)
    (run / "params").mkdir()
    lines = [f"17000000{step:05d} {1000 * seconds} {step}" for step, seconds in enumerate(TIMES, 1)]
    (run / "metrics" / "time_per_iteration_ms").write_text("\n".join(lines) + "\n")
    params = {
        "parallelism.tp": "2", "parallelism.pp": "1", "parallelism.dp": "4",
        "tokens.micro_batch_size": "2", "tokens.batch_accumulation_per_replica": "8",
        "tokens.sequence_length": "4096", "general.project": "",
    }  # fmt: skip
    for name, value in params.items():
        (run / "params" / name).write_text(value)
    return run


def test_an_mlflow_run_of_nanotron_is_read_from_its_folder_or_the_one_above(tmp_path: Path) -> None:
    run = mlflow_run(tmp_path)
    for path in (run, run.parent, tmp_path):
        assert detect_format(path) == "mlflow-run"
        found = read(path)
        assert (found.framework, found.step_time_s) == ("nanotron", 2.0)
        # 4 replicas of 8 micro-batches of 2 sequences
        assert found.configuration["global_batch_size"] == 4 * 8 * 2
        assert found.configuration["num_gpus"] == 8


def test_of_several_mlflow_runs_one_must_be_named(tmp_path: Path) -> None:
    mlflow_run(tmp_path)
    (tmp_path / "0" / "77aa" / "metrics").mkdir(parents=True)
    with pytest.raises(ProfileError, match=r"contains 2 runs: give the folder of one \(3f9c, 77aa"):
        import_profile(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("_step,loss\n1,2.5\n", "has no step times: expected the metric iteration-time"),
        ("_step,iteration-time\n1,fast\n", "record 0, iteration-time: 'fast' is not a number"),
        ("_step,iteration-time\n1,-2\n", "step 1, iteration-time: .*out of range"),
        ("_step,iteration-time\n1,2\n2,2\n", "more than 2 after a start"),
    ],
)
def test_a_history_without_usable_steps_is_refused_with_the_place(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "history.csv").write_text(text)
    with pytest.raises(ProfileError, match=words):
        import_profile(tmp_path)


def test_a_folder_that_is_neither_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"expected a W&B history \(history.csv"):
        detect_format(tmp_path)


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    wandb_folder(tmp_path)
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(ProfileError, match=r"config.yaml: is not YAML"):
        import_profile(tmp_path)
