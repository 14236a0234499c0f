"""Context parallelism by exchanging heads for tokens (DeepSpeed-Ulysses) beside the ring."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import Group, all_to_all_s
from meshwright.profiles.profile import default_profile
from meshwright.service.launchers.registry import export
from meshwright.solver.configuration import CONTEXT_MODES, Columns
from meshwright.solver.cost.price import price
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_configuration, a_model, a_problem

MHA = a_model(
    num_layers=8, hidden_size=4096, ffn_hidden_size=16384, num_attention_heads=32, num_kv_heads=32
)
EXCHANGE = CONTEXT_MODES.index("all_to_all")


def long_context(**options: object) -> Problem:
    """8 layers, 64 k tokens, 16 GPUs."""
    limits: dict[str, object] = {"certify": "none", "top_k": 1}
    problem = a_problem(model=MHA, cluster=a_cluster(num_nodes=2), batch=16, **limits | options)
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
    group = Group.of(np.array([8.0]), np.array([1.0]), fabric)
    one = 8192 * 4096 * 2.0
    once = all_to_all_s(np.array([3 * one]), group, fabric) + all_to_all_s(np.array([one]), group, fabric)
    assert seconds_of(problem, "all_to_all") == pytest.approx(2 * float(once[0]))  # forward and backward


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
    for mode in CONTEXT_MODES:
        problem = long_context(pin={"context_parallel_mode": mode, "context_parallel_size": 4})
        answer = ask(problem, default_profile(problem.cluster, problem.launcher))
        ids.add(answer.plans[0].plan_id)
    assert len(ids) == 2
