"""Weights that data-parallel ranks share: what each stores, gathers and scatters."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.weight_shards import GPUS, PUBLISHED, scaled
from meshwright.profiles.collectives.collectives import Group, all_gather_s
from meshwright.profiles.model import LayerShape
from meshwright.profiles.profile import default_profile
from meshwright.solver.check import launcher_faults, violations
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.memory import state_bytes
from meshwright.solver.cost.parameters import layer_weights
from meshwright.solver.cost.price import price
from meshwright.solver.problem import WEIGHT_SHARDS, Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_moe_model
from tests.builders import a_problem as a_question
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

UNTIED = replace(GPT, tied_embeddings=False)
# of a GPT layer of width 1024: 4 h^2 of attention, 8 h^2 of the MLP in four matrices, two norms of h
MATRICES, NORMS = 12 * 1024**2, 2 * 1024
SHARED = {"data_parallel_size": 8, "weight_shard_size": 4, "zero_stage": 1, "zero_shard_size": 2}
EXPOSED = {"gather_exposed": 1.0, "collective_latency_s": 0.0}
MOE = replace(a_moe_model(), num_layers=4)


def a_context(**layout: object) -> Context:
    problem = a_problem(UNTIED)
    row = a_layout(**{**SHARED, **layout})
    return context_of(problem, Columns.of([row]), a_profile(problem, "megatron-core", **EXPOSED))


def test_each_of_four_ranks_stores_a_quarter_of_the_matrices_and_all_of_the_norms() -> None:
    ctx = a_context()
    weights = layer_weights(ctx, "dense")
    assert weights.dense[0] == MATRICES / 4 + NORMS
    assert weights.whole == NORMS
    # 2 bytes of weight and 4 of gradient; 12 of the optimizer over the 2 ranks that hold the same part
    states = state_bytes(ctx, weights, weights, matrices=True)
    assert states.weights[0] == 2 * weights.dense[0]
    assert states.gradients[0] == 4 * weights.dense[0]
    assert states.optimizer[0] == pytest.approx(12 * weights.dense[0] / 2)


@pytest.mark.parametrize("sharing", [2, 4])
def test_a_pass_gathers_every_matrix_and_the_backward_pass_scatters_its_gradient(sharing: int) -> None:
    problem = a_problem(UNTIED)
    profile = a_profile(problem, "megatron-core", **EXPOSED)
    rows = Columns.of([a_layout(**{**SHARED, "weight_shard_size": sharing, "micro_batch_size": 1})])
    layer_s = float(price(problem, rows, profile).breakdown_s["data_parallel"][0, 0])
    ranks = Group(np.array([float(sharing)]), np.ones(1), profile.fabric)

    def each(element_bytes: float) -> float:
        """Four matrices of 3 h^2 on average, one after the other."""
        return 4 * float(all_gather_s(np.array([MATRICES / 4 * element_bytes]), ranks)[0])

    # weights of 2 bytes forward and backward, gradients of 4 bytes backward
    assert layer_s == pytest.approx(2 * each(2) + each(4))


def test_ranks_that_share_weights_lie_behind_the_tensor_parallel_ones() -> None:
    ctx = a_context(tensor_parallel_size=2, context_parallel_size=2, sequence_parallel=True,
                    zero_shard_size=4)  # fmt: skip
    assert (ctx.weight_group.size[0], ctx.weight_group.stride[0]) == (4, 2)
    # the two of them that replicate a part, over both context-parallel ranks, are 2 * 4 apart
    assert (ctx.data_group.size[0], ctx.data_group.stride[0]) == (4, 8)
    assert ctx.placement.context_stride[0] == 8


def test_without_shared_weights_nothing_is_priced_otherwise() -> None:
    shared, plain = a_context(), a_context(weight_shard_size=1, zero_shard_size=8)
    assert layer_weights(plain, "dense").dense[0] == MATRICES + NORMS
    assert shared.of(LayerShape("dense")).tokens[0] == plain.tokens[0]


def asked(**options: object) -> Problem:
    named = {"allow": (WEIGHT_SHARDS,), "certify": "none", **options}
    question = a_question(model=MOE, cluster=a_cluster(num_nodes=1), batch=16, **named)
    return replace(question, launcher="megatron-lm")


ONE = Configuration(
    data_parallel_size=8, expert_parallel_size=2, weight_shard_size=4, expert_weight_shard_size=4,
    zero_stage=1, zero_shard_size=2, micro_batch_size=1, num_microbatches=2, stage_layers=(4,),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_shard_size": 3}, "weight_shard_size = 3 does not divide data_parallel_size"),
        ({"expert_weight_shard_size": 8}, "does not divide the 4 replicas of an expert"),
        ({"zero_stage": 2}, "ranks that share weights go with ZeRO 0 and 1"),
        ({"offload": "optimizer"}, "does not offload the optimizer of shared weights"),
        ({"zero_shard_size": 1, "data_parallel_size": 8, "weight_shard_size": 2}, "one set of shards"),
    ],
)
def test_the_check_and_the_rules_refuse_the_same(changes: dict[str, object], words: str) -> None:
    problem = asked()
    profile = default_profile(problem.cluster, problem.launcher)
    assert list(violations(problem, profile, ONE)) == []
    broken = replace(ONE, **changes)  # type: ignore[arg-type]
    assert any(words in fault for fault in violations(problem, profile, broken))


@pytest.mark.parametrize(
    ("recipe", "held_low", "legal"),
    [("nvfp4", True, False), ("mxfp8", True, True), ("mxfp8", False, False)],
)
def test_recipes_that_hold_their_weights_in_16_bits_share_none(
    recipe: str, held_low: bool, legal: bool
) -> None:
    problem = asked()
    options: dict[str, str | bool] = {"precision_recipe": recipe, "low_precision_weights": held_low}
    work = replace(problem.workload, precision="fp8", framework_options=options)
    said = [one for one in launcher_faults(replace(problem, workload=work), ONE) if "16-bit" in one]
    fault = f"ranks that share weights cannot hold 16-bit weights under {recipe}"
    assert said == ([] if legal else [fault])


def test_shared_weights_are_found_only_where_they_are_allowed_or_pinned() -> None:
    def sizes(problem: Problem) -> set[tuple[int, int]]:
        """Sizes of the plans that are found."""
        answer = search(problem, default_profile(problem.cluster, problem.launcher))
        return {(one.config.weight_shard_size, one.config.expert_weight_shard_size) for one in answer.plans}

    assert sizes(asked(allow=(), top_k=10)) == {(1, 1)}
    assert sizes(asked(allow=(), pin={"weight_shard_size": 4}, top_k=3)) == {(4, 1)}
    assert sizes(asked(bounds={"weight_shard_size": (2, 8)}, top_k=3)) <= {
        (dense, expert) for dense in (2, 4, 8) for expert in (1, 2, 4, 8)
    }


def test_weak_scaling_is_the_published_within_five_points() -> None:
    # at least 93 % from 128 to 3,072 GPUs, and memory that shrinks (137 to 104 GB of another model)
    first, last = scaled(GPUS[0]), scaled(GPUS[-1])
    assert first.step_time_s / last.step_time_s == pytest.approx(PUBLISHED, abs=0.05)
    assert last.peak_gib < first.peak_gib
