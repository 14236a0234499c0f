"""Small problems on mixed clusters."""

from dataclasses import replace

from hypothesis import strategies as st

from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GB, GIB, MICROSECOND_S
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.problem import Problem
from meshwright.solver.search.mixed.rows import LegalRows, MixedRows
from tests.builders import a_gpu, a_model, a_problem

SLOW = LinkSpec(kind="ethernet", bytes_per_s=3 * GB, latency_s=20 * MICROSECOND_S)


def a_group(
    *, speed: float = 1.0, memory_gib: float = 79.0, nodes: int = 1, gpus: int = 2, slug: str = "fast"
) -> NodeGroup:
    """Nodes of an H100 whose rates are scaled by ``speed``."""
    gpu = a_gpu()
    gpu = replace(
        gpu,
        slug=slug,
        memory_bytes=int(memory_gib * GIB),
        hbm_bytes_per_s=gpu.hbm_bytes_per_s * speed,
        peak_flops={name: value * speed for name, value in gpu.peak_flops.items()},
    )
    return NodeGroup(
        gpu=gpu,
        num_nodes=nodes,
        gpus_per_node=gpus,
        island_gpus=gpus,
        intra_node=gpu.intra_node,
        inter_node=gpu.inter_node,
    )


def a_small_model(num_layers: int = 4, **changes: object) -> object:
    """A few narrow layers."""
    return a_model(
        name="small", display_name="", num_layers=num_layers, hidden_size=1024, ffn_hidden_size=4096,
        num_attention_heads=8, num_kv_heads=8, head_dim=128, vocab_size=32000, **changes,
    )  # fmt: skip


def a_mixed_problem(
    groups: tuple[NodeGroup, ...],
    *,
    num_layers: int = 4,
    batch: int = 8,
    between: LinkSpec | None = SLOW,
    **options: object,
) -> Problem:
    """A small model on node groups; other keywords are search options."""
    cluster = ClusterSpec(name="mixed", groups=groups, between_groups=between)
    problem = a_problem(model=a_small_model(num_layers), cluster=cluster, batch=batch, **options)  # type: ignore[arg-type]
    return replace(problem, launcher="none")


def mixed_rows(problem: Problem) -> MixedRows:
    """All rows of a mixed problem, priced."""
    return MixedRows.of(LegalRows.of(NodeGroups.of(problem, default_profile(problem.cluster, "none"))))


@st.composite
def mixed_problems(draw: st.DrawFn) -> Problem:
    """Two or three unlike groups of one to four GPUs, two to five layers of one or two kinds."""
    count = draw(st.integers(2, 3))
    groups = tuple(
        a_group(
            speed=draw(st.sampled_from([0.2, 0.5, 1.0, 1.7])),
            memory_gib=draw(st.sampled_from([4.0, 5.0, 6.0, 8.0, 79.0])),
            nodes=draw(st.integers(1, 2)),
            gpus=draw(st.sampled_from([1, 2])),
            slug=f"gpu-{at}",
        )
        for at in range(count)
    )
    between = replace(SLOW, bytes_per_s=draw(st.sampled_from([0.1, 3.0, 100.0])) * GB)
    problem = a_mixed_problem(
        groups, num_layers=draw(st.integers(2, 5)), batch=draw(st.sampled_from([4, 8, 12])), between=between
    )
    dense = draw(st.integers(0, problem.model.num_layers))  # as many as all: layers of one kind
    if not 0 < dense < problem.model.num_layers:
        return problem
    moe = MoeSpec(num_experts=2, top_k=1, ffn_hidden_size=2048, num_dense_layers=dense)
    return replace(problem, model=replace(problem.model, moe=moe))
