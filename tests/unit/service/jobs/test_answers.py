"""Answers to requests that ask for everything survive JSON, the API and the report."""

import json
from dataclasses import replace

from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.service.jobs.answers import answer_from_json
from meshwright.service.report.question import header
from meshwright.service.report.terminal import render_answer
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_configuration, a_gpu, a_model, a_problem

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}


def everything() -> Problem:
    """Batches, nodes, precision, launcher and front left open, with a baseline."""
    own = a_configuration(
        tensor_parallel_size=2, pipeline_parallel_size=1, virtual_pipeline_size=1, data_parallel_size=8,
        zero_shard_size=8, num_microbatches=4, pipeline_schedule="none", stage_layers=(6,),
    )  # fmt: skip
    problem = a_problem(
        model=a_model(**SHAPE), cluster=a_cluster(num_nodes=2, gpu=a_gpu(power_watts=700.0)), batch=32,
        certify="none", top_k=3, objective="energy_per_token", num_nodes=(1, 2), batch_sizes=(16,),
        allow=("fp8",), pareto=True, baseline=own, total_tokens=10**9, gpu_hour_price=2.0,
        pin={"tensor_parallel_size": 2, "context_parallel_size": 1, "pipeline_parallel_size": 1,
             "micro_batch_size": 1, "zero_stage": 1},
    )  # fmt: skip
    return replace(problem, launcher="any")


def test_everything_survives_json_and_is_printed() -> None:
    problem = everything()
    answer = ask(problem, default_profile(problem.cluster, problem.launcher))
    assert answer.status == "optimal"
    assert answer.pareto is not None
    assert answer.baseline is not None
    assert answer.plans[0].outlook is not None
    sent = {**json.loads(json.dumps(answer.to_json())), "job_id": "1", "next_page_token": None}
    assert answer_from_json(sent) == answer
    assert render_answer(answer, problem, width=160)


def test_the_header_counts_what_is_trained_beside_frozen_weights() -> None:
    problem = replace(a_problem(batch=32), model=find_model("llama-3.1-8b"))
    adapters = replace(problem.workload, lora_rank=16, lora_targets=("q_proj", "v_proj"))
    problem = replace(problem, workload=adapters)
    # 32 layers, A and B of rank 16 beside 4096 to 4096 and 4096 to 8 heads of 128
    assert problem.model_figures["num_trainable_parameters"] == 32 * 16 * (8192 + 5120) == 6_815_744
    words = header(problem, 300).plain.replace("\xa0", " ")
    assert "(8 030 261 248 parameters frozen in bf16, 6 815 744 of LoRA trained)" in words
    # and a copy of the head, 128256 rows of 4096: 525 336 576 more
    problem = replace(problem, workload=replace(adapters, trained_modules=("lm_head",)))
    words = header(problem, 300).plain.replace("\xa0", " ")
    assert "532 152 320 of LoRA and lm_head trained)" in words


def test_what_is_left_open_stands_in_the_header() -> None:
    problem = everything()
    words = header(problem, 300).plain.replace("\xa0", " ")
    assert "batch 16 or 32 × 8192 tokens" in words
    assert words.endswith("for any launcher")
