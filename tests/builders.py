"""Whole objects with sensible defaults, for tests that look at one detail."""

from collections.abc import Mapping
from dataclasses import replace

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, LinkSpec, NodeGroup
from meshwright.profiles.layers.operators import Block, Layer
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.switches import NO_SWITCH
from meshwright.profiles.units import GB, GIB, MICROSECOND_S, TERA
from meshwright.solver.answer import Answer, Infeasibility, Plan, Prediction, Shortfall, StagePrediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem, SearchOptions, Workload

NVLINK = LinkSpec(kind="nvswitch", bytes_per_s=450 * GB, latency_s=3 * MICROSECOND_S)
INFINIBAND = LinkSpec(kind="infiniband", bytes_per_s=50 * GB, latency_s=10 * MICROSECOND_S)

# Model types with code that is published next to their weights, not in transformers.
TYPES_OF_REMOTE_CODE = tuple(catalog_file(CATALOG / "model_families.yaml")["remote"])


def weights_of(layer: Layer, *blocks: Block) -> int:
    """Return the weights of the matrices of some blocks, of one expert where they are routed."""
    return sum(one.weights for one in layer.of(*blocks))


def a_model(**changes: object) -> ModelSpec:
    """Llama 3.1 70B, unless changed."""
    shape = ModelSpec(
        name="llama-3.1-70b",
        num_layers=80,
        hidden_size=8192,
        ffn_hidden_size=28672,
        num_attention_heads=64,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        display_name="Llama 3.1 70B",
    )
    return replace(shape, **changes)  # type: ignore[arg-type]


def a_moe_model() -> ModelSpec:
    """A small mixture of 8 experts."""
    moe = MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=14336)
    return a_model(name="mixture", display_name="", num_layers=32, hidden_size=4096, moe=moe)


def a_gpu(**changes: object) -> GpuSpec:
    """An H100 SXM 80 GB, unless changed."""
    gpu = GpuSpec(
        slug="h100-sxm-80gb",
        display_name="H100 SXM 80GB",
        memory_bytes=79 * GIB,
        hbm_bytes_per_s=3350.0 * GB,
        peak_flops={"bf16": 989.0 * TERA, "fp16": 989.0 * TERA, "fp8": 1979.0 * TERA},
        architecture="hopper",
        intra_node=NVLINK,
        inter_node=INFINIBAND,
    )
    return replace(gpu, **changes)  # type: ignore[arg-type]


def a_cluster(*, num_nodes: int = 16, gpu: GpuSpec | None = None) -> ClusterSpec:
    """DGX H100 nodes."""
    gpu = gpu or a_gpu()
    group = NodeGroup(
        gpu=gpu,
        num_nodes=num_nodes,
        gpus_per_node=8,
        island_gpus=8,
        intra_node=gpu.intra_node,
        inter_node=gpu.inter_node,
    )
    return ClusterSpec(name="dgx-h100", groups=(group,), display_name="DGX H100")


def a_problem(
    *,
    model: ModelSpec | None = None,
    cluster: ClusterSpec | None = None,
    batch: int = 512,
    **options: object,
) -> Problem:
    """Llama 3.1 70B on 16 DGX H100; other keywords are search options. Switches stay as they are.

    ``with_default_switches`` opens those that a request without ``search.allow`` leaves open.
    """
    allowed = (*options.pop("allow", ()), NO_SWITCH)  # type: ignore[misc]
    return Problem(
        model=model or a_model(),
        cluster=cluster or a_cluster(),
        workload=Workload(global_batch_size=batch, seq_length=8192),
        options=SearchOptions(allow=allowed, **options),  # type: ignore[arg-type]
    )


def with_default_switches(problem: Problem) -> Problem:
    """The problem as a request that states no ``search.allow``."""
    return replace(problem, options=replace(problem.options, allow=()))


def a_configuration(**changes: object) -> Configuration:
    """Tensor 8, pipeline 4 with 5 chunks a rank, data 4."""
    configuration = Configuration(
        tensor_parallel_size=8,
        sequence_parallel=True,
        pipeline_parallel_size=4,
        virtual_pipeline_size=5,
        data_parallel_size=4,
        zero_stage=1,
        zero_shard_size=4,
        num_microbatches=128,
        pipeline_schedule="interleaved_1f1b",
        stage_layers=(4,) * 20,
    )
    return replace(configuration, **changes)  # type: ignore[arg-type]


MEMORY_GIB = {"weights": 4.125, "gradients": 8.25, "optimizer": 6.125, "activations": 24.5, "context": 2.0}


def a_prediction(**changes: object) -> Prediction:
    """32.8 s and 45 GiB of 79 GiB, on one heaviest stage of four."""
    memory = {name: int(size * GIB) for name, size in MEMORY_GIB.items()}
    peak = sum(memory.values())
    stages = tuple(
        StagePrediction(stage=stage, layers=20, memory_bytes=memory, peak_memory_bytes=peak, compute_s=0.25)
        for stage in range(4)
    )
    prediction = Prediction(
        step_time_s=32.8,
        step_time_low_s=31.5,
        step_time_high_s=34.1,
        tokens_per_s_per_gpu=999.0,
        mfu=0.46,
        hfu=0.46,
        peak_flops_per_gpu=989.0 * TERA,
        bubble_fraction=0.005,
        peak_memory_bytes=peak,
        memory_limit_bytes=79 * GIB,
        heaviest_stage=0,
        out_of_memory_probability=0.0004,
        time_breakdown_s={"compute": 27.6, "tensor_parallel": 3.9, "bubble": 0.2, "data_parallel": 0.8,
                          "optimizer": 0.3, "fixed": 0.0},  # sums to 32.8
        stages=stages,
    )  # fmt: skip
    return replace(prediction, **changes)  # type: ignore[arg-type]


def a_plan(*, rank: int = 1, plan_id: str = "7f3a90c1d2e4", **changes: object) -> Plan:
    """One ranked plan; other keywords replace fields of the configuration."""
    return Plan(
        plan_id=plan_id,
        rank=rank,
        config=a_configuration(**changes),
        prediction=a_prediction(),
        objective_s=32.8,
        certified_by=("exact-dp", "cp-sat"),
    )


def an_answer(*plans: Plan, **changes: object) -> Answer:
    """A proved ranking of one plan, unless others are given."""
    answer = Answer(
        status="optimal",
        plans=plans or (a_plan(),),
        certified_by=("exact-dp", "cp-sat"),
        objective_gap=0.0,
        objective_excess=0.0,
        bound_step_time_s=32.5,
        gap=0.009,
        space_size=184320,
        legal=3912,
        fit=1204,
        explored=184320,
        counts={},
        elapsed_s=0.9,
        seed=0,
        versions={"meshwright": "0.1.0", "profile": "h100-sxm-80gb catalog"},
        num_gpus_used=128,
        space="every",
    )
    return replace(answer, **changes)  # type: ignore[arg-type]


def an_infeasible_answer(*, memory_gib: Mapping[str, float] | None = None) -> Answer:
    """Nothing fits, proved: stage 0 of the nearest configuration needs 121 GiB."""
    sizes = memory_gib or {"weights": 26.0, "gradients": 52.0, "optimizer": 28.0, "activations": 15.0}
    memory = {name: int(size * GIB) for name, size in sizes.items()}
    shortfall = Shortfall(
        config=a_configuration(pipeline_parallel_size=8, virtual_pipeline_size=1, data_parallel_size=1,
                               recompute_granularity="full", recompute_layers=80, stage_layers=(10,) * 8),
        stage=0,
        needed_bytes=sum(memory.values()),
        limit_bytes=79 * GIB,
        memory_bytes=memory,
    )  # fmt: skip
    reasons = Infeasibility(
        reasons=("memory: stage 0 of the nearest configuration is 42.0 GiB short",),
        nearest=shortfall,
        changes=("32 nodes",),
    )
    nothing = {"plans": (), "bound_step_time_s": None, "gap": None, "fit": 0}
    nothing |= {"objective_gap": None, "objective_excess": None}
    return an_answer(status="infeasible", infeasible=reasons, **nothing)
