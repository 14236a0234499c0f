"""Placed pipelines priced together, and what follows from where stages stand."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from meshwright.profiles.cluster import LinkSpec, NodeGroup
from meshwright.profiles.collectives.collectives import point_to_point_s
from meshwright.profiles.profile import Profile, default_profile
from meshwright.profiles.units import GB, MICROSECOND_S
from meshwright.solver.answer import Plan
from meshwright.solver.configuration import Configuration, StageGroup, joined, settled_on_groups
from meshwright.solver.cost.evaluation import can_simulate, evaluate
from meshwright.solver.cost.objective import outlook_of
from meshwright.solver.cost.pipelines import LaidOut, NodeGroups
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_configuration, a_model, a_problem
from tests.problems.mixed_clusters import SLOW, a_group, a_mixed_problem

FAST, SLOW_GROUP = a_group(speed=1.0, slug="fast"), a_group(speed=0.4, slug="slow")


@cache
def found() -> tuple[Problem, Profile, tuple[Plan, ...]]:
    problem = a_mixed_problem((FAST, SLOW_GROUP), top_k=40, certify="none")
    profile = default_profile(problem.cluster, "none")
    return problem, profile, search(problem, profile).plans


def test_pipelines_priced_together_are_those_priced_alone() -> None:
    problem, profile, plans = found()
    configs = [plan.config for plan in plans]
    together = evaluate(problem, profile, configs)
    for config, one in zip(configs, together, strict=True):
        (alone,) = evaluate(problem, profile, [config])
        assert one.objective_s == pytest.approx(alone.objective_s, rel=1e-12)
        assert [s.memory_bytes() for s in one.stages] == [s.memory_bytes() for s in alone.stages]


def test_every_cause_of_a_step_is_named_and_they_add_up() -> None:
    problem, profile, plans = found()
    crossing = next(plan for plan in plans if len({s.group for s in plan.config.stage_groups}) == 2)
    causes = predict(problem, profile, crossing.config).time_breakdown_s
    assert {"compute", "tensor_parallel", "recompute", "bubble", "pipeline_transfer"} <= causes.keys()
    assert sum(causes.values()) == pytest.approx(crossing.prediction.step_time_s)


def test_a_mesh_on_a_mixed_cluster_goes_at_the_pace_of_its_slowest_gpus() -> None:
    problem, profile, _ = found()
    mesh = Configuration(data_parallel_size=4, num_microbatches=2, stage_layers=(4,))
    on_fast = replace(mesh, data_parallel_size=2, num_microbatches=4)
    stands = settled_on_groups(
        problem.cluster,
        replace(
            on_fast,
            stage_groups=(StageGroup(group="fast", num_gpus=0, num_nodes=0.0, tensor_parallel_size=1),),
        ),
        8,
    )
    assert predict(problem, profile, stands).step_time_s < predict(problem, profile, mesh).step_time_s


def test_what_the_search_found_is_whole_already() -> None:
    problem, _, plans = found()
    for plan in plans:
        classes = [
            settled_on_groups(problem.cluster, one, one.global_batch_size) for one in plan.config.classes
        ]
        assert joined(classes) == plan.config


def test_energy_counts_every_groups_gpus_at_their_own_power() -> None:
    problem, _, plans = found()
    groups = tuple(replace(g, gpu=replace(g.gpu, power_watts=700.0)) for g in problem.cluster.groups)
    known = replace(problem, cluster=replace(problem.cluster, groups=groups))
    profile = default_profile(known.cluster, "none")
    crossing = next(plan for plan in plans if len({s.group for s in plan.config.stage_groups}) == 2)
    prediction = predict(known, profile, crossing.config)
    per_token = outlook_of(known, profile, crossing.config, prediction).energy_per_token_j
    tokens = 8 * 8192
    assert per_token is not None
    gpus, step = crossing.config.num_gpus, prediction.step_time_s
    # between waiting at 20 % and computing at 82 % of 700 W all the time
    assert 0.20 * 700.0 * gpus * step / tokens < per_token < 0.82 * 700.0 * gpus * step / tokens
    assert outlook_of(problem, found()[1], crossing.config, prediction).energy_per_token_j is None


def test_classes_on_one_group_exchange_gradients_over_its_own_network() -> None:
    """As classes on two equal groups do that no slower link joins; a link between groups is not theirs."""

    def nodes(*groups: NodeGroup, between: LinkSpec | None) -> NodeGroups:
        problem = a_mixed_problem(groups, between=between)
        return NodeGroups.of(problem, default_profile(problem.cluster, "none"))

    twin = a_group(speed=1.0, slug="twin")
    on_one = nodes(FAST, SLOW_GROUP, between=SLOW).exchange_s((0, 0))
    assert on_one == pytest.approx(nodes(FAST, twin, between=None).exchange_s((0, 1)), rel=1e-12)
    assert on_one < nodes(FAST, twin, between=SLOW).exchange_s((0, 1))


@pytest.mark.parametrize("rate", [0.5, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("own", [1.0, 50.0])
def test_a_stack_loses_between_groups_what_it_loses_on_that_network_inside_one(
    rate: float, own: float
) -> None:
    def network(rate: float) -> LinkSpec:
        return LinkSpec(kind="infiniband", bytes_per_s=rate * GB, latency_s=14 * MICROSECOND_S)

    groups = [replace(one, inter_node=network(own)) for one in (FAST, SLOW_GROUP)]
    problem = a_mixed_problem(tuple(groups), between=network(rate))
    nodes = NodeGroups.of(problem, default_profile(problem.cluster, "none"))
    single = replace(groups[0], inter_node=network(rate), gpus_per_node=1, island_gpus=1)
    there = default_profile(replace(problem.cluster, groups=(single,), between_groups=None), "none")
    sent, one = np.array([64.0 * GB / 1000]), np.ones(1)
    inside_s = point_to_point_s(sent, one, 2.0 * one, there.fabric) * there.constants.transfer_exposed
    assert nodes.hop_s(0, 1, sent) == pytest.approx(inside_s)


def test_an_order_that_micro_batches_do_not_fill_ends_by_the_closed_form() -> None:
    """Six micro-batches on four stages fill no whole groups of interleaved 1F1B: phi is 1 / v then."""
    problem = a_problem(cluster=a_cluster(num_nodes=1), batch=6)
    config = a_configuration(
        tensor_parallel_size=2, pipeline_parallel_size=4, virtual_pipeline_size=2, data_parallel_size=1,
        zero_stage=0, zero_shard_size=1, num_microbatches=6, stage_layers=(10,) * 8,
    )  # fmt: skip
    (found,) = evaluate(problem, default_profile(problem.cluster, "megatron-core"), [config])
    (pipeline,) = found.classes
    assert not can_simulate(config)
    assert can_simulate(replace(config, num_microbatches=8))
    times = [stage.time_s for stage in pipeline.stages]
    assert pipeline.finish_s == pytest.approx([sum(times) / 2 + 5.5 * own for own in times])


def test_prediction_layers_in_a_stage_of_their_own_are_counted_as_its_layer() -> None:
    """Chunks of 40, 40, none and none layers: the third holds the prediction layers, the last the head."""
    problem = a_problem(model=a_model(num_mtp_layers=1), cluster=a_cluster(num_nodes=1))
    alone = Configuration(pipeline_parallel_size=4, stage_layers=(40, 40, 0, 0))
    with_head = Configuration(pipeline_parallel_size=4, stage_layers=(20, 20, 20, 20))
    laid = LaidOut.of(problem, [alone, with_head])
    assert laid.layout.counts_prediction
    assert laid.splits.tolist() == [[40, 40, 1, 0], [20, 20, 20, 21]]
    assert laid.layout.behind_prediction == 80 + 1
