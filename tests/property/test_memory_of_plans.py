"""No bound on memory is above a plan's own: on GPUs that just hold a configuration, a plan is found."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import VARIABLES, Columns, Configuration
from meshwright.solver.cost.memory import memory_budget_bytes
from meshwright.solver.cost.stages import ALLOCATED
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.search.feasible import bound_at_sight_s, fitting
from meshwright.solver.search.memory_limits import may_fit
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.search import search
from tests.draws import draws
from tests.problems.requests_drawn import an_unlimited_request
from tests.property.meaning import Judged, of_each_launcher, some_configurations
from tests.property.test_meaning_of_requests import profile_of, seeded

AMPLE = 100.0  # times the GPU's memory
ROUNDING = 1 + 1e-7
TRIED, EACH = 40, 2  # configurations drawn of a request, and legal ones with a search of their own
# Torch's pipeline runtime has gradients in turn: a rank's peak is no sum of its parts there.
LAUNCHERS = ("", "torchtitan")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_gpus_that_just_hold_a_configuration_have_a_plan(launcher: str) -> None:
    for seed in range(draws(3, of_more=6)):
        with seeded(f"drawn_problem({seed}, {launcher!r})"):
            problem = drawn_problem(seed, launcher)
            profile, configs = profile_of(problem), list(some_legal(problem, seed))
            for config in configs:
                assert_not_refuted(just_holding(problem, profile, config), profile, config)
            for config in [one for one in configs if not one.stage_recompute_layers][:EACH]:
                pins = {name: getattr(config, name) for name in VARIABLES}
                asked = just_holding(problem, profile, config)
                asked = replace(asked, options=replace(asked.options, pin=pins))
                assert search(asked, profile).status == "optimal", config


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_part_of_a_prediction_is_negative_and_no_moment_is_above_the_peak(launcher: str) -> None:
    for seed in range(draws(5, of_more=12)):
        with seeded(f"drawn_problem({seed}, {launcher!r})"):
            problem = drawn_problem(seed, launcher)
            for config in some_legal(problem, seed):
                found = predict(problem, profile_of(problem), config)
                assert min(found.time_breakdown_s.values()) >= 0.0, (config, found.time_breakdown_s)
                for stage in found.stages:
                    assert min(stage.memory_bytes.values()) >= 0, (config, stage)
                assert found.memory is not None
                moments = found.memory.moments_bytes
                assert min(moments.values()) >= 0, (config, moments)
                rounding = len(ALLOCATED)  # the peak's terms are rounded one by one, other moments whole
                assert max(moments.values()) <= moments[found.memory.moment] + rounding, (config, moments)


def drawn_problem(seed: int, launcher: str) -> Problem:
    """A drawn request under one of the launchers that it means, or a given one."""
    problem = an_unlimited_request(Random(seed))
    problem = replace(problem, launcher=launcher or problem.launcher)
    problem = of_each_launcher(problem)[0]
    return replace(problem, options=replace(problem.options, constraints=(), num_nodes=(), top_k=1))


def with_memory(problem: Problem, times: float) -> Problem:
    """The problem with so many times the memory of its GPUs."""
    groups = [
        replace(one, gpu=replace(one.gpu, memory_bytes=int(one.gpu.memory_bytes * times)))
        for one in problem.cluster.groups
    ]
    return replace(problem, cluster=replace(problem.cluster, groups=tuple(groups)))


def some_legal(problem: Problem, seed: int) -> Iterator[Configuration]:
    """Configurations that break no rule but that of memory; none twice."""
    random, found = Random(seed), dict[Configuration, None]()
    for _ in range(TRIED):
        try:
            found |= dict.fromkeys(some_configurations(problem, random, 1))
        except IndexError:  # a mesh that no ZeRO stage is legal on
            continue
    yield from Judged.of(with_memory(problem, AMPLE), profile_of(problem), list(found)).fitting


def just_holding(problem: Problem, profile: Profile, config: Configuration) -> Problem:
    """The problem on GPUs with the memory that a configuration needs."""
    peak = predict(problem, profile, config).peak_memory_bytes
    return with_memory(problem, peak * ROUNDING / memory_budget_bytes(problem, profile))


def assert_not_refuted(problem: Problem, profile: Profile, config: Configuration) -> None:
    """No sum over parts, ranks or kinds refutes a row with a split that fits."""
    if config.stage_recompute_layers:  # a row of other columns
        return
    rows = priced_rows(problem, profile, Columns.of([config]))
    assert may_fit(rows)[0], config
    assert fitting(rows)[0], config
    assert np.isfinite(bound_at_sight_s(rows)[0]), config
