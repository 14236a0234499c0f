"""Random small problems at real prices: few enough configurations to try every split of each."""

from dataclasses import replace

from hypothesis import strategies as st

from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.units import GIB
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_gpu, a_model, a_problem

HIDDEN = {2048: 16, 4096: 32, 8192: 64}  # and attention heads


@st.composite
def small_problems(draw: st.DrawFn, *, top_k: int | None = None) -> Problem:
    """2 to 6 layers on 4 or 8 GPUs, dense or with experts, in ample or tight memory.

    Half of them are without a launcher's limits, which runs every schedule.
    """
    hidden = draw(st.sampled_from(sorted(HIDDEN)))
    layers, moe = draw(st.integers(2, 6)), None
    if draw(st.integers(0, 3)) == 0:
        moe = MoeSpec(
            num_experts=4, top_k=2, ffn_hidden_size=hidden, num_dense_layers=draw(st.integers(0, 1))
        )
    model = a_model(
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=HIDDEN[hidden],
        vocab_size=draw(st.sampled_from([32000, 128256])),
        moe=moe,
    )
    memory = draw(st.sampled_from([24, 40, 79, 79, 141]))
    cluster = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=memory * GIB))
    pin = {"context_parallel_size": 1, "micro_batch_size": draw(st.sampled_from([1, 1, 2]))}
    if draw(st.booleans()):
        pin["pipeline_parallel_size"] = draw(st.sampled_from([1, 2, 4]))
    if moe is not None:
        pin["expert_parallel_size"] = draw(st.sampled_from([1, 2, 4]))
    problem = a_problem(
        model=model,
        cluster=cluster,
        batch=draw(st.sampled_from([4, 8, 16, 24])),
        top_k=top_k or draw(st.integers(1, 4)),
        certify="none",
        pin=pin,
        bounds={"zero_stage": (0, 1)},
        seed=draw(st.integers(0, 3)),
    )
    group = replace(
        cluster.groups[0], gpus_per_node=(size := draw(st.sampled_from([4, 8]))), island_gpus=size
    )
    launcher = draw(st.sampled_from(["megatron-lm", "none"]))
    return replace(problem, cluster=replace(cluster, groups=(group,)), launcher=launcher)
