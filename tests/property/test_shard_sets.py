"""Sets of ranks that shard optimizer states: no size that one could pin is much faster than the answer."""

from dataclasses import replace
from random import Random

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.draws import draws

# Of many ranks that share weights. With one set, or an island's, the first two take 1.5 and 5 % longer.
QUESTIONS = [
    ("deepseek-v2-lite", 64, 1024), ("qwen3-30b-a3b", 256, 512), ("qwen3-30b-a3b", 128, 512),
    ("llama-3.1-8b", 128, 512), ("gpt-oss-120b", 128, 1024), ("mixtral-8x7b", 32, 512),
    ("qwen3-32b", 96, 768),
]  # fmt: skip


def step_s(problem: Problem) -> float:
    answer = ask(problem, default_profile(problem.cluster, problem.launcher))
    return min((plan.prediction.step_time_s for plan in answer.plans), default=float("inf"))


@pytest.mark.parametrize("seed", range(draws(1)))
def test_no_pinned_size_is_faster_than_the_answer_by_a_hundredth(seed: int) -> None:
    model, nodes, batch = Random(f"shards-{seed}").choice(QUESTIONS)
    problem = parse_problem({
        "model": {"name": model}, "cluster": {"name": "dgx-h100", "num_nodes": nodes},
        "workload": {"global_batch_size": batch, "seq_length": 4096},
        "launcher": "megatron-lm", "search": {"top_k": 1, "certify": "none"},
    })  # fmt: skip
    own_s = step_s(problem)
    for size in (8, 16, 32, 64, 128, 256):
        pinned = replace(problem, options=replace(problem.options, pin={"zero_shard_size": size}))
        assert step_s(pinned) > 0.99 * own_s, size
