"""A request that fits with a risk of 4.7 %, where 1 % is accepted."""

from functools import cache
from typing import Any

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem

TIGHT: dict[str, Any] = {
    "model": {"name": "qwen3-8b"},
    "cluster": {"groups": [{"gpu": "a100-sxm-40gb", "gpus_per_node": 4, "num_nodes": 1}]},
    "workload": {"global_batch_size": 16, "seq_length": 4096},
    "launcher": "trl",
    "search": {"top_k": 1, "certify": "none", "max_out_of_memory_probability": 0.01},
}


def tight_problem() -> Problem:
    return parse_problem(TIGHT)


@cache
def tight_answer() -> Answer:
    """Its answer with the risk that gives it a plan; changes that take a search are left out."""
    problem = tight_problem()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.solver.planner.no_plan._soon_enough", lambda _: "unknown")
        return ask(problem, default_profile(problem.cluster, problem.launcher))
