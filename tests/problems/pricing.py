"""Problems and profiles by hand, for tests of the cost model."""

from collections.abc import Mapping
from dataclasses import replace

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.problem import Problem, Workload
from tests.builders import a_cluster, a_model

GPT = a_model(
    name="gpt",
    display_name="",
    num_layers=4,
    hidden_size=1024,
    ffn_hidden_size=4096,
    num_attention_heads=16,
    num_kv_heads=16,
    head_dim=64,
    vocab_size=51200,
    gated_mlp=False,
    tied_embeddings=True,
)


def a_problem(
    model: ModelSpec = GPT,
    *,
    cluster: ClusterSpec | None = None,
    seq_length: int = 2048,
    **workload: object,
) -> Problem:
    """A problem on four DGX H100 nodes."""
    return Problem(
        model=model,
        cluster=cluster or a_cluster(num_nodes=4),
        workload=Workload(global_batch_size=64, seq_length=seq_length, **workload),  # type: ignore[arg-type]
    )


def a_profile(problem: Problem, framework: str = "megatron-core", **constants: float) -> Profile:
    """The default profile with some constants set by hand."""
    profile = default_profile(problem.cluster, framework)
    return replace(profile, constants=replace(profile.constants, **constants))


def a_layout(**changes: object) -> Configuration:
    """One GPU, four layers, unless changed."""
    base = Configuration(micro_batch_size=1, num_microbatches=8, stage_layers=(4,))
    return replace(base, **changes)  # type: ignore[arg-type]


ON_8: Mapping[str, object] = {"expert_parallel_size": 8, "data_parallel_size": 8}


def of(
    model: ModelSpec = GPT,
    layout: Mapping[str, object] | None = None,
    framework: str = "megatron-core",
    /,
    **options: object,
) -> Context:
    """One row of a model under some options, with floors by hand."""
    problem = a_problem(model, framework_options=options)
    rows = Columns.of([a_layout(**(layout or {}))])
    profile = a_profile(problem, framework, floor_s=1e-3, floor_moe=1.5, floor_tensor=0.5)
    return context_of(problem, rows, profile)
