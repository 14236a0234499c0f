from dataclasses import replace

import numpy as np
import pytest

from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.collectives.collectives import Group, all_gather_s, all_to_all_s
from meshwright.profiles.library import find_cluster
from meshwright.profiles.model_parts import StreamsSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import CONTEXT_MODES, HIERARCHICAL, Columns
from meshwright.solver.cost.communication import (
    context_parallel,
    expert_parallel,
    sent_bytes,
    tensor_parallel,
    vocabulary_parallel,
)
from meshwright.solver.cost.compute import core_attention
from meshwright.solver.cost.context import Context, PassSeconds, context_of, paired_passes
from meshwright.solver.cost.price import price
from meshwright.solver.cost.step_end import exposed_s
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_configuration, a_model, a_moe_model
from tests.builders import a_problem as a_searched_problem
from tests.problems.pricing import a_layout, a_problem, a_profile


def experts(*, overlap: bool, virtual: int = 1, pipeline: int = 1) -> PassSeconds:
    """All-to-alls of one layer of a model with experts."""
    problem = a_problem(a_moe_model(), framework_options={"overlap_experts": overlap})
    layout = a_layout(
        expert_parallel_size=8,
        data_parallel_size=8,
        pipeline_parallel_size=pipeline,
        virtual_pipeline_size=virtual,
        stage_layers=(32 // (pipeline * virtual),) * (pipeline * virtual),
    )
    return expert_parallel(
        context_of(problem, Columns.of([layout]), a_profile(problem, expert_exposed=0.2))
    )


def test_all_to_alls_are_exposed_unless_the_framework_overlaps_them() -> None:
    plain, hidden = experts(overlap=False), experts(overlap=True)
    assert hidden.forward[0] == pytest.approx(0.2 * plain.forward[0])


def test_in_a_pipeline_they_hide_only_under_another_chunk() -> None:
    plain = experts(overlap=False, pipeline=2)
    assert experts(overlap=True, pipeline=2).forward[0] == plain.forward[0]
    assert experts(overlap=True, pipeline=2, virtual=2).forward[0] == pytest.approx(0.2 * plain.forward[0])


@pytest.mark.parametrize(
    ("schedule", "shorter"), [("interleaved_1f1b", True), ("zb_v", False), ("interleaved_zb", False)]
)
def test_torch_overlaps_tensor_ranks_in_compiled_stages_alone(schedule: str, shorter: bool) -> None:
    layout = a_layout(
        tensor_parallel_size=4, sequence_parallel=True, pipeline_parallel_size=2, virtual_pipeline_size=2,
        stage_layers=(8,) * 4, pipeline_schedule=schedule,
    )  # fmt: skip
    plain, asked = (a_problem(framework_options={"overlap_tensor": on}) for on in (False, True))
    profile = a_profile(plain, "fsdp")  # torchtitan's
    one, other = (
        tensor_parallel(context_of(each, Columns.of([layout]), profile)) for each in (plain, asked)
    )
    assert bool(other.forward[0] < one.forward[0]) is shorter
    assert bool(other.backward[0] < one.backward[0]) is shorter


def in_pairs(p: int, rank: int, m: int) -> int:
    """Forward passes that torch's DualPipe-V pairs with a backward one on a rank, step by step."""
    paired = 0
    for turn in range(m - 2 * p + rank + 1):  # the main phase: F0 with B1, then F1 with B0
        paired += 1 if turn == 0 and rank == p - 1 else 2  # the last rank takes its first F0 and B1 apart
    return paired + p - rank - 1  # B1 alone, then F1 with B0


@pytest.mark.parametrize(
    ("framework", "precision", "recipe", "input_bytes", "gradient_bytes"),
    [
        ("nemo", "bf16", "none", 2.0, 2.0),
        ("nemo", "fp8", "fp8-current", 1.0, 1.0),
        # 32 elements share an 8-bit scale, and gradients are read along rows and along columns
        ("nemo", "fp8", "mxfp8", 33 / 32, 2 * 33 / 32),
        ("nemo", "nvfp4", "nvfp4", 9 / 16, 2 * 9 / 16),
        ("fsdp", "fp8", "none", 2.0, 2.0),
    ],
)
def test_transformer_engine_gathers_sequences_in_the_products_format_and_scatters_sums_in_2_bytes(
    framework: str,
    precision: str,
    recipe: str,
    input_bytes: float,
    gradient_bytes: float,
) -> None:
    problem = a_problem(
        cluster=find_cluster("dgx-b200"),
        precision=precision,
        framework_options={"precision_recipe": recipe},
    )
    profile = a_profile(problem, framework, tensor_exposed=1.0)
    layout = a_layout(tensor_parallel_size=4, sequence_parallel=True)
    ctx = context_of(problem, Columns.of([layout]), profile)
    width = ctx.tokens * ctx.model.hidden_size
    inputs, gradients, sums = (
        all_gather_s(width * each, ctx.tensor_group) for each in (input_bytes, gradient_bytes, 2.0)
    )
    passes = tensor_parallel(ctx)  # two blocks: attention and MLP
    assert passes.forward == pytest.approx(2.0 * (inputs + sums))
    assert passes.backward == pytest.approx(2.0 * (gradients + inputs + sums))
    # the head reads what is gathered in 2 bytes: half a block
    assert vocabulary_parallel(ctx).forward == pytest.approx(0.5 * 2.0 * sums)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 32), (8, 20)])
def test_dualpipe_v_pairs_as_many_passes_as_its_ranks_do_on_the_mean(p: int, m: int) -> None:
    columns = Columns.of([
        a_layout(
            pipeline_parallel_size=p, virtual_pipeline_size=2, pipeline_schedule=schedule,
            num_microbatches=m, stage_layers=(1,) * 2 * p,
        )
        for schedule in ("dualpipe_v", "zb_v")
    ])  # fmt: skip
    mean = sum(in_pairs(p, rank, m) for rank in range(p)) / p / (2 * m)
    assert paired_passes(columns).tolist() == pytest.approx([mean, 0.0])


def test_dualpipe_v_hides_the_exchanges_of_paired_passes_and_zb_v_none() -> None:
    # 2 stages, 8 micro-batches: rank 0 pairs 2 x 5 + 1 = 11 of 16 passes, rank 1 pairs 2 x 6 - 1 = 11;
    # a fifth of what they exchange is seen: 1 - 11/16 x 0.8 = 0.45
    problem = a_problem(a_moe_model())
    layouts = [
        a_layout(
            expert_parallel_size=8, data_parallel_size=8, pipeline_parallel_size=2, num_microbatches=8,
            virtual_pipeline_size=2, pipeline_schedule=schedule, stage_layers=(8,) * 4,
        )
        for schedule in ("zb_v", "dualpipe_v")
    ]  # fmt: skip
    profile = a_profile(problem, expert_exposed=0.2)
    exchanged = expert_parallel(context_of(problem, Columns.of(layouts), profile))
    for apart, paired in (exchanged.forward.tolist(), exchanged.backward.tolist()):
        assert paired == pytest.approx(0.45 * apart)
    passes = price(problem, Columns.of(layouts), profile).forward_s
    assert passes[1].sum() < passes[0].sum()


def test_a_stage_sends_every_stream_of_its_tokens() -> None:
    # 4 hidden states of 8192 elements a token, 2 bytes each, of 8192 tokens
    model = replace(a_model(), streams=StreamsSpec(count=4, low_rank=64))
    problem = a_problem(model, seq_length=8192)
    layout = a_layout(pipeline_parallel_size=2, stage_layers=(40, 40))
    ctx = context_of(problem, Columns.of([layout]), a_profile(problem))
    assert sent_bytes(ctx).tolist() == [8192 * 4 * 8192 * 2]


def ring(size: int) -> tuple[Context, PassSeconds]:
    """What ring attention adds to a layer of 8192 tokens."""
    problem = a_problem(replace(a_model(), num_kv_heads=1), seq_length=8192)
    layout = a_layout(context_parallel_size=size, stage_layers=(80,))
    ctx = context_of(problem, Columns.of([layout]), a_profile(problem, collective_latency_s=0.0))
    return ctx, context_parallel(ctx, core_attention(ctx))


def test_a_ring_merges_every_part_but_the_first_in_fp32() -> None:
    # 8192 / 4 tokens x 64 heads x 128 = 16.8 M outputs; 3 merges of 2 + 4 + 4 bytes each. The ring itself
    # hides under attention, which it slows by 13 % of its time: 8192 x 1 head x 256 x 2 bytes gathered
    ctx, added = ring(4)
    gathered = all_gather_s(np.array([8192.0 * 256 * 2]), ctx.ring_group)
    merges = 3 * 2048 * 64 * 128 * 10 / ctx.hbm_bytes_per_s
    assert added.forward[0] == pytest.approx(merges + 0.13 * gathered[0])
    assert added.backward[0] == pytest.approx(2 * added.forward[0])


def test_communication_that_computing_hides_slows_computing_by_13_percent_of_it() -> None:
    # 10 ms beside 8 ms of computing: 2 ms are left over, and 8 ms together cost 13 % more
    assert exposed_s(np.array([10.0]), np.array([8.0]), 0.13)[0] == pytest.approx(2.0 + 8.0 * 0.13)
    assert exposed_s(np.array([3.0]), np.array([8.0]), 0.13)[0] == pytest.approx(0.39)


def test_a_rank_alone_has_no_ring() -> None:
    _, added = ring(1)
    assert added.forward[0] == 0.0


# Context parallelism by exchanging heads for tokens (DeepSpeed-Ulysses) beside the ring.

MHA = a_model(
    num_layers=8, hidden_size=4096, ffn_hidden_size=16384, num_attention_heads=32, num_kv_heads=32
)
EXCHANGE = CONTEXT_MODES.index("all_to_all")


def long_context(**options: object) -> Problem:
    """8 layers, 64 k tokens, 16 GPUs."""
    limits: dict[str, object] = {"certify": "none", "top_k": 1}
    problem = a_searched_problem(model=MHA, cluster=a_cluster(num_nodes=2), batch=16, **limits | options)
    return replace(problem, workload=replace(problem.workload, seq_length=65536))


def seconds_of(problem: Problem, mode: str, *, tp: int = 1, cp: int = 8) -> float:
    """Context-parallel seconds of one layer and micro-batch."""
    config = a_configuration(
        tensor_parallel_size=tp, sequence_parallel=tp > 1, pipeline_parallel_size=1,
        virtual_pipeline_size=1, pipeline_schedule="none", data_parallel_size=16 // tp // cp,
        context_parallel_size=cp, context_parallel_mode=mode, num_microbatches=tp * cp,
        zero_shard_size=16 // tp, stage_layers=(8,),
    )  # fmt: skip
    profile = default_profile(problem.cluster, problem.launcher)
    prices = price(problem, Columns.of([config]), profile)
    return float(prices.breakdown_s["context_parallel"][0, 0])


def test_a_layer_exchanges_queries_keys_and_values_before_attention_and_its_output_behind() -> None:
    problem = long_context()
    fabric = default_profile(problem.cluster, problem.launcher).fabric
    # 65536 / 8 = 8192 tokens of 4096 widths in 2 bytes: 67.1 MB each of q, k, v, and of the output
    group = Group(np.array([8.0]), np.array([1.0]), fabric)
    one = 8192 * 4096 * 2.0
    once = all_to_all_s(np.array([3 * one]), group) + all_to_all_s(np.array([one]), group)
    assert seconds_of(problem, "all_to_all") == pytest.approx(2 * float(once[0]))  # forward and backward


def test_neighbours_exchange_heads_and_rings_pass_their_share_of_keys_and_values_between_islands() -> None:
    # 16 ranks, 8 in an island: 4096 tokens of 4096 widths each. Inside an island 8 ranks exchange them;
    # then rings of 2 ranks, one in each island, have 8 x 4096 tokens of 4 of 32 heads, and merge one part.
    problem = long_context()
    fabric = default_profile(problem.cluster, problem.launcher).fabric
    plain, both = (seconds_of(problem, mode, cp=16) for mode in ("all_to_all", "all_to_all_8+ring"))
    one = 4096 * 4096 * 2.0
    inside = Group(np.array([8.0]), np.array([1.0]), fabric)
    exchanged = sum(all_to_all_s(np.array([sent]), inside) for sent in (3 * one, one))
    across = Group(np.array([2.0]), np.array([8.0]), fabric)
    passed = all_gather_s(np.array([2 * one * 16 / 8]), across)
    merged = 4096 * 4096 * 10 / (3.35e12 * default_profile(problem.cluster, "megatron-lm").constants.hbm)
    # the ring hides under attention, which it slows by 13 % of its time: once forward, twice backward
    expected = 2 * exchanged + 3 * 0.13 * passed + 3 * merged
    assert both == pytest.approx(float(expected[0]), rel=1e-3)
    assert both < plain, "the whole exchange crosses islands"


def test_both_ways_are_searched_where_they_are_allowed_and_leave_a_ring() -> None:
    plain = enumerate_space(long_context())
    asked = enumerate_space(long_context(allow=("context_parallel_mode",)))
    assert plain.columns.context_parallel_mode.max() == EXCHANGE
    columns = asked.columns.take(asked.legal)
    for mode, size in HIERARCHICAL.items():
        rows = columns.context_parallel_mode == CONTEXT_MODES.index(mode)
        sizes = columns.context_parallel_size[rows]
        assert (sizes > size).all()
        assert (sizes % size == 0).all()
        assert bool(rows.any()) is (size < 16), "16 GPUs leave no ring of 16"


@pytest.mark.parametrize("launcher", ["megatron-lm", "megatron-bridge"])
def test_both_ways_are_written_and_read_back_with_their_sizes(launcher: str) -> None:
    pin = {"context_parallel_mode": "all_to_all_4+ring", "context_parallel_size": 8}
    problem = replace(long_context(pin=pin), launcher=launcher)
    plan = ask(problem, default_profile(problem.cluster, launcher)).plans[0]
    files = export(plan, problem, launcher).files
    text = "".join(files.values())
    assert "a2a+p2p" in text
    sizes = "hierarchical-context-parallel-sizes 4 2" if launcher == "megatron-lm" else "sizes=[4,2]"
    assert sizes in text
    read = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files))
    assert read.configuration == plan.config


def test_tensor_parallelism_halves_what_is_exchanged() -> None:
    # 2 x 4 ranks fill one island: half the heads, half the bytes, the same start
    whole, half = (seconds_of(long_context(), "all_to_all", tp=tp, cp=4) for tp in (1, 2))
    assert 0.5 * whole < half < 0.6 * whole


def test_heads_are_exchanged_only_where_they_divide() -> None:
    space = enumerate_space(long_context())
    columns = space.columns.take(space.legal)
    exchanged = columns.context_parallel_mode == EXCHANGE
    assert exchanged.any()
    assert (32 % (columns.tensor_parallel_size * columns.context_parallel_size)[exchanged] == 0).all()
    assert (columns.context_parallel_size[exchanged] > 1).all()


def test_few_key_value_heads_leave_the_ring() -> None:
    problem = replace(long_context(), model=replace(MHA, num_kv_heads=2))
    columns = enumerate_space(problem).columns
    ranks = columns.tensor_parallel_size * columns.context_parallel_size
    assert ranks[columns.context_parallel_mode == EXCHANGE].max() == 2


def test_a_pinned_mode_is_found_checked_and_exported() -> None:
    problem = long_context(pin={"context_parallel_mode": "all_to_all", "context_parallel_size": 4})
    plan = ask(problem, default_profile(problem.cluster, problem.launcher)).plans[0]
    assert plan.config.context_parallel_mode == "all_to_all"
    files = export(plan, problem, "megatron-lm").files
    assert "--cp-comm-type a2a" in files["megatron_args.sh"]


def test_plans_of_both_modes_have_ids_of_their_own() -> None:
    ids = set()
    for mode in ("ring", "all_to_all", "all_to_all_2+ring"):
        problem = long_context(pin={"context_parallel_mode": mode, "context_parallel_size": 4})
        answer = ask(problem, default_profile(problem.cluster, problem.launcher))
        ids.add(answer.plans[0].plan_id)
    assert len(ids) == 3
