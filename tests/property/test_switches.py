"""A setting of a switch that is said to beat another one is nowhere worse: in no step, in no memory."""

from dataclasses import replace
from random import Random

import pytest

from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.switches import Setting, switches
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_problem
from tests.property.meaning import some_configurations

MODELS = tuple(
    replace(find_model(name), num_layers=4) for name in ("llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite")
)
PAIRS = [
    pytest.param(one, other, id=f"{one.switch}-{one.name}-{other.name}")
    for switch in switches().values()
    for one in switch.settings
    for other in switch.settings
    if other.name in one.beats
]
ROUNDING = 1 + 1e-9


def priced_under(problem: Problem, setting: Setting, some: list[Configuration]) -> list[Prediction]:
    """What the cost model says of configurations under a setting."""
    workload = replace(problem.workload, framework_options=setting.options)
    profile = default_profile(problem.cluster, problem.launcher)
    return predict_all(replace(problem, workload=workload), profile, some)


@pytest.mark.parametrize(("better", "worse"), PAIRS)
def test_what_beats_another_setting_is_nowhere_slower_or_heavier(better: Setting, worse: Setting) -> None:
    tried = 0
    for model in MODELS:
        problem = a_problem(model=model, cluster=a_cluster(num_nodes=4), batch=64)
        if better.fault(model, problem.cluster.groups[0].gpu):
            continue
        random = Random(f"{better.name} {worse.name} {model.num_layers}")
        some = [
            one
            for one in some_configurations(problem, random, 60)
            if one.recompute_granularity in better.recompute
        ]
        pairs = zip(priced_under(problem, better, some), priced_under(problem, worse, some), strict=True)
        for one, other in pairs:
            assert one.step_time_s <= other.step_time_s * ROUNDING
            assert one.peak_memory_bytes <= other.peak_memory_bytes
        tried += len(some)
    assert tried >= 20
