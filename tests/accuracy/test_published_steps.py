"""Published steps that no constant was ever fitted to: checks of the experts' physics."""

import pytest

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.library import find_gpu, find_model
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload
from tests.builders import a_cluster


def nodes(gpu: str, count: int) -> ClusterSpec:
    """Nodes of eight GPUs."""
    return a_cluster(num_nodes=count, gpu=find_gpu(gpu))


def predicted(
    model: str, cluster: ClusterSpec, workload: Workload, configuration: Configuration
) -> Prediction:
    """The uncalibrated prediction under Megatron-Core."""
    problem = Problem(model=find_model(model), cluster=cluster, workload=workload, launcher="none")
    return predict(problem, default_profile(cluster, "megatron-core"), configuration)


def test_deepseek_v3_on_2048_h800_takes_19_9_s_and_fits() -> None:
    # arXiv:2412.19437, section 3.2: 15,360 sequences of 4,096 tokens a step, so 235,000 steps for 14.8e12
    # tokens; 2.664e6 GPU hours on 2,048 GPUs are 4.68e6 s: 19.9 s a step
    options: dict[str, str | int | float | bool] = {
        "precision_recipe": "fp8-blockwise",
        "moe_dispatcher": "deepep",
        "low_precision_dispatch": True,
        "moe_routing_groups": "8/4",
        "moe_permute_fusion": True,
        "moe_router_fusion": True,
        "recompute_modules": "mla_up_proj+layernorm+moe_act",
    }
    workload = Workload(
        global_batch_size=15_360,
        seq_length=4096,
        precision="fp8",
        optimizer="adamw-bf16",
        framework_options=options,
    )
    layout = Configuration(
        pipeline_parallel_size=16,
        virtual_pipeline_size=2,
        expert_parallel_size=64,
        data_parallel_size=128,
        zero_stage=1,
        zero_shard_size=128,
        micro_batch_size=1,
        num_microbatches=120,
        pipeline_schedule="dualpipe_v",
        recompute_granularity="selective",
        stage_layers=(*[2] * 30, 1, 0),
    )
    found = predicted("deepseek-v3", nodes("h800-sxm-80gb", 256), workload, layout)
    assert found.step_time_s == pytest.approx(19.9, rel=0.12)
    assert found.out_of_memory_probability < 0.5


def test_mixtral_8x22b_on_128_h100_takes_4_06_s() -> None:
    # arXiv:2504.14960 (MoE Parallel Folding): 256 sequences of 4,096 tokens, tp 2, ep 8, pp 8; chunks of
    # one layer are assumed
    workload = Workload(
        global_batch_size=256,
        seq_length=4096,
        framework_options={"moe_permute_fusion": True, "moe_force_balance": True},
    )
    layout = Configuration(
        tensor_parallel_size=2,
        sequence_parallel=True,
        pipeline_parallel_size=8,
        virtual_pipeline_size=7,
        expert_parallel_size=8,
        data_parallel_size=8,
        zero_stage=1,
        zero_shard_size=8,
        micro_batch_size=1,
        num_microbatches=32,
        pipeline_schedule="interleaved_1f1b",
        stage_layers=(1,) * 56,
    )
    found = predicted("mixtral-8x22b", nodes("h100-sxm-80gb", 16), workload, layout)
    assert found.step_time_s == pytest.approx(4.06, rel=0.15)
