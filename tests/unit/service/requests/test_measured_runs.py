"""Rows of measured runs, from logs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.profiles.library import find_gpu
from meshwright.profiles.measurements import MeasuredRun
from meshwright.profiles.model_parts import MoeSpec
from meshwright.service.requests.measured_runs import contradictions, read_table, run_row
from meshwright.solver.configuration import Configuration
from tests.builders import a_model, a_plan, a_problem


def a_run(logged: dict[str, int], framework: str = "megatron-lm") -> MeasuredRun:
    return MeasuredRun(
        framework=framework, step_time_s=1.0, step_time_low_s=0.9, step_time_high_s=1.1, num_steps=9,
        tokens_per_s_per_gpu=None, flops_per_s_per_gpu=None, peak_allocated_bytes=None,
        peak_reserved_bytes=None, num_memory_ranks=0, out_of_memory=False, configuration=logged,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("logged", "replicas"),
    [
        ({"num_gpus": 64, "tensor_parallel_size": 4, "pipeline_parallel_size": 2}, "8"),  # 64 / 4 / 2
        ({"num_gpus": 64, "tensor_parallel_size": 4}, "16"),  # one pipeline stage, unless the log has more
        ({"num_gpus": 64, "data_parallel_size": 16}, "16"),  # the log's own
        ({"tensor_parallel_size": 4}, ""),
    ],
)
def test_replicas_are_the_gpus_over_the_ranks_of_one(logged: dict[str, int], replicas: str) -> None:
    run = a_run(logged)
    facts = {"run_id": "r", "cluster": "c", "source": "s"}
    row = run_row(run, a_model(), find_gpu("h100-sxm-80gb"), **facts, settings={})
    assert row["data_parallel_size"] == replicas


def test_a_log_contradicts_the_plan_in_every_fact_that_it_states_otherwise() -> None:
    problem = replace(a_problem(), launcher="megatron-lm")
    plan = replace(a_plan(), config=Configuration(tensor_parallel_size=2, stage_layers=(32,)))
    batch = problem.workload.global_batch_size
    logged = {"tensor_parallel_size": 4, "global_batch_size": batch, "seq_length": 3, "unknown": 1}
    found = [one.message for one in contradictions(a_run(logged), plan, problem)]
    assert found == [
        f"tensor_parallel_size is 4 in the log, 2 in plan {plan.plan_id}",
        f"seq_length is 3 in the log, {problem.workload.seq_length} in plan {plan.plan_id}",
    ]
    (other,) = contradictions(a_run(logged, "deepspeed"), plan, problem)
    assert other.message.startswith("the log is deepspeed's, plan")
    assert other.allowed == "a log of megatron-lm"


def test_a_log_of_experts_contradicts_their_number_and_not_the_width_that_they_replace() -> None:
    moe = MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=1024)
    problem = replace(a_problem(), launcher="megatron-lm", model=a_model(moe=moe))
    logged = {"num_experts": 4, "ffn_hidden_size": 1}
    (found,) = contradictions(a_run(logged), a_plan(), problem)
    assert found.message.startswith("num_experts is 4 in the log, 8 in plan")


def test_a_row_may_have_the_model_of_a_config_next_to_its_table(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936,
        "num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    row = {
        "model": "mine/config.json", "seq_length": 4096, "gpu": "h100-sxm-80gb", "num_gpus": 8,
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "micro_batch_size": 1,
        "global_batch_size": 64, "framework_family": "megatron-core",
    }  # fmt: skip
    lines = ",".join(row), ",".join(map(str, row.values()))
    (tmp_path / "runs.csv").write_text("\n".join(lines), encoding="utf-8")
    (run,) = read_table(tmp_path / "runs.csv")
    assert run.shape is not None, run.refused_reason
    assert run.shape.problem.model.mixer is not None  # three layers of four have no attention
