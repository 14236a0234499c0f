"""A placed plan with one figure changed is refused by the independent check."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Plan
from meshwright.solver.check import violations
from meshwright.solver.configuration import Configuration
from meshwright.solver.search.search import search
from tests.mixed_clusters import a_group, a_mixed_problem

PROBLEM = a_mixed_problem(
    (a_group(speed=1.0, slug="fast"), a_group(speed=0.4, slug="slow")),
    top_k=100,
    pin={"micro_batch_size": 1, "zero_stage": 0},
)
PROFILE = default_profile(PROBLEM.cluster, "none")


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, ...]:
    return search(PROBLEM, PROFILE).plans


def other_sizes(config: Configuration) -> Iterator[Configuration]:
    """One pipeline with one size changed."""
    yield replace(config, num_microbatches=config.num_microbatches + 1)
    yield replace(config, data_parallel_size=config.data_parallel_size * 2)
    yield replace(config, micro_batch_size=config.micro_batch_size * 2)
    yield replace(config, context_parallel_size=config.context_parallel_size * 2)
    yield replace(config, virtual_pipeline_size=2)
    yield replace(config, pipeline_parallel_size=config.pipeline_parallel_size + 1)
    first, *rest = config.stage_layers
    yield replace(config, stage_layers=(first + 1, *rest))
    yield replace(config, stage_groups=config.stage_groups[1:])


def other_places(config: Configuration) -> Iterator[Configuration]:
    """One pipeline whose first stage stands elsewhere."""
    stage = config.stage_groups[0]
    for wrong in (
        replace(stage, group="nowhere"),
        replace(stage, num_gpus=stage.num_gpus * 2),
        replace(stage, num_nodes=stage.num_nodes * 2),
        replace(stage, tensor_parallel_size=stage.tensor_parallel_size * 2),
    ):
        yield replace(config, stage_groups=(wrong, *config.stage_groups[1:]))


def test_a_placed_configuration_with_another_size_or_place_is_refused(plans: tuple[Plan, ...]) -> None:
    config = next(
        plan.config for plan in plans if len({one.group for one in plan.config.stage_groups}) == 2
    )
    assert list(violations(PROBLEM, PROFILE, config)) == []
    for mutant in (*other_sizes(config), *other_places(config)):
        assert list(violations(PROBLEM, PROFILE, mutant)), mutant


def test_unlike_classes_with_another_size_or_place_are_refused(plans: tuple[Plan, ...]) -> None:
    config = next(plan.config for plan in plans if plan.config.replicas)
    assert list(violations(PROBLEM, PROFILE, config)) == []
    first, *rest = config.replicas
    for wrong in (*other_sizes(first), *other_places(first)):
        mutant = replace(config, replicas=(wrong, *rest))
        assert list(violations(PROBLEM, PROFILE, mutant)), mutant
    wider = replace(config, data_parallel_size=config.data_parallel_size + 1)
    assert list(violations(PROBLEM, PROFILE, wider))
    assert list(violations(PROBLEM, PROFILE, replace(config, replicas=(first,))))
    assert list(violations(PROBLEM, PROFILE, replace(config, replicas=(first, first))))


def test_a_placed_plan_with_another_figure_is_refused(plans: tuple[Plan, ...]) -> None:
    for plan in (plans[0], next(plan for plan in plans if plan.config.replicas)):
        assert list(violations(PROBLEM, PROFILE, plan)) == []
        step = replace(plan.prediction, step_time_s=plan.prediction.step_time_s * 0.99)
        for mutant in (
            replace(plan, objective_s=plan.objective_s * 0.99),
            replace(plan, plan_id="0" * len(plan.plan_id)),
            replace(plan, prediction=step),
            replace(plan, rank=0),
        ):
            assert list(violations(PROBLEM, PROFILE, mutant))
