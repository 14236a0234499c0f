"""One mesh over unlike nodes: each operator takes as long as on the nodes that are slowest at it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.cluster import ClusterSpec, NodeGroup
from meshwright.profiles.collectives.collectives import Group, all_gather_s
from meshwright.profiles.library import find_gpu, gpu_names
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.compute import Gemm, core_attention, gemm_seconds, memory_bound
from meshwright.solver.cost.context import Context, PassSeconds, context_of
from meshwright.solver.cost.price import head_seconds
from meshwright.solver.problem import Problem, Workload
from tests.builders import a_model
from tests.draws import draws
from tests.problems.pricing import a_layout

FLASH = [name for name in gpu_names() if find_gpu(name).architecture not in ("volta", "turing")]
ROUNDING = 1 - 1e-12
SAME_KERNELS = ("product", "8-bit product", "memory traffic")  # attention and links are the mesh's own
Row = tuple[int, str, str]  # tensor-parallel ranks, precision, launcher


def nodes_of(name: str) -> NodeGroup:
    gpu = find_gpu(name)
    return NodeGroup(
        gpu=gpu, num_nodes=1, gpus_per_node=8, island_gpus=8,
        intra_node=gpu.intra_node, inter_node=gpu.inter_node,
    )  # fmt: skip


def context(names: tuple[str, ...], row: Row) -> Context:
    """The context of one row of Llama 3.1 70B on a node of each."""
    tp, precision, launcher = row
    cluster = ClusterSpec(name="mesh", groups=tuple(map(nodes_of, names)))
    work = Workload(global_batch_size=64, seq_length=2048, precision=precision)
    problem = Problem(model=a_model(), cluster=cluster, workload=work, launcher=launcher)
    rows = Columns.of([a_layout(tensor_parallel_size=tp, data_parallel_size=16 // tp, stage_layers=(80,))])
    return context_of(problem, rows, default_profile(cluster, launcher))


def seconds_of(ctx: Context, sides: list[int], sent: float) -> dict[str, np.ndarray]:
    """Both passes of each operator; of a collective among a node's GPUs its one."""
    m, n, k = map(float, sides)
    product = [Gemm(m=np.full_like(ctx.t, m), n=n, k=k)]
    passes: dict[str, PassSeconds] = {
        "product": gemm_seconds(ctx, product, "bf16"),
        "8-bit product": gemm_seconds(ctx, product, "fp8"),
        "attention": core_attention(ctx),
        "memory traffic": memory_bound(ctx, "dense"),
        "head": head_seconds(ctx),
    }
    inside = Group(np.full_like(ctx.t, 8.0), np.ones_like(ctx.t), ctx.tensor_group.fabric)
    both = {name: np.stack([one.forward, one.backward]) for name, one in passes.items()}
    return both | {"collective": all_gather_s(np.full_like(ctx.t, sent), inside)}


@settings(max_examples=draws(15, of_more=100), deadline=None)
@given(
    names=st.lists(st.sampled_from(FLASH), min_size=1, max_size=3, unique=True),
    row=st.tuples(
        st.sampled_from([1, 2, 8]),
        st.sampled_from(["bf16", "fp16", "fp8", "fp32"]),
        st.sampled_from(["megatron-lm", "torchtitan", "deepspeed", "maxtext"]),
    ),
    sides=st.lists(st.sampled_from([16, 200, 1024, 2880, 8192]), min_size=3, max_size=3),
    sent=st.sampled_from([1e3, 1e6, 1e9]),
)
def test_a_mesh_is_never_faster_than_any_of_its_nodes(
    names: list[str], row: Row, sides: list[int], sent: float
) -> None:
    mesh = seconds_of(context(tuple(names), row), sides, sent)
    turned = seconds_of(context(tuple(reversed(names)), row), sides, sent)
    alone = [seconds_of(context((one, one), row), sides, sent) for one in names]
    for name, seconds in mesh.items():
        slowest = np.max([one[name] for one in alone], axis=0)
        assert (seconds >= ROUNDING * slowest).all(), name
        if name in SAME_KERNELS:
            assert (seconds * ROUNDING <= slowest).all(), name
        assert (seconds == turned[name]).all(), name
        if len(names) == 1:
            assert (seconds == alone[0][name]).all(), name


@pytest.mark.parametrize(
    ("names", "operator"),
    [
        (("gaudi-3", "h100-sxm-80gb"), "8-bit product"),
        (("h20-sxm-96gb", "a100-sxm-80gb"), "memory traffic"),
    ],
)
def test_nodes_that_are_slower_at_one_operator_decide_it(names: tuple[str, str], operator: str) -> None:
    sides = [8192, 8192, 8192]
    one, other = (seconds_of(context((n, n), (1, "bf16", "megatron-lm")), sides, 1e6) for n in names)
    mesh = seconds_of(context(names, (1, "bf16", "megatron-lm")), sides, 1e6)
    assert mesh[operator] == pytest.approx(np.maximum(one[operator], other[operator]))
    assert ((one["product"] > other["product"]) != (one[operator] > other[operator])).all()
