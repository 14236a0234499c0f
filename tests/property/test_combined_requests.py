"""Any combination of what a request leaves open and what it pins has an answer that agrees with itself.

``MESHWRIGHT_TEST_DRAWS=100`` asks 1,000 of them.
"""

import io
import json

import pytest
from rich.console import Console

from meshwright.profiles.profile import default_profile
from meshwright.service.jobs.answers import answer_document
from meshwright.service.report.table import to_csv
from meshwright.service.report.terminal import render_answer
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.draws import TIMES, draws, some_of
from tests.problems.combined_requests import a_combined_problem

# Five of the first ten: other tests here execute all but 42 lines of what only the other five do.
SEEDS = range(draws(10)) if TIMES > 1 else (0, 3, 4, 6, 7)
ONCE_A_TRACEBACK = {
    # one of two optimizers has fewer layouts than ranks: all of its meshes are known, too
    "a second optimizer and a pin": {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 1},
        "workload": {"global_batch_size": 16, "seq_length": 4096},
        "search": {"allow": ["adamw-bf16"], "pin": {"data_parallel_size": 4}},
    },
    # classes of replicas were priced with one micro-batch each; this stack adds up the gradients of several
    "an older stack on unlike nodes": {
        "model": {"name": "qwen3-0.6b"},
        "cluster": {
            "groups": [
                {"gpu": "l40s", "num_nodes": 2, "gpus_per_node": 4},
                {"gpu": "b200-sxm-180gb", "num_nodes": 1, "gpus_per_node": 4},
            ]
        },
        "workload": {"global_batch_size": 16, "seq_length": 1024},
        "launcher": "none",
        "stack": "megatron-deepspeed",
        "search": {"top_k": 25, "certify": "none"},
    },
    # rows of which none is left are priced at every length of a micro-batch
    "unequal lengths on unlike nodes": {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {
            "name": "h100-and-a100",
            "groups": [
                {"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8},
                {"gpu": "a100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8},
            ],
        },
        "workload": {
            "global_batch_size": 64,
            "seq_length": 4096,
            "lengths": {
                "batching": "padding_to_longest",
                "percentiles": {"p50": 900, "p90": 2500, "p100": 4096},
            },
        },
        "launcher": "none",
        "search": {"top_k": 3, "certify": "none"},
    },
}


@pytest.mark.parametrize("name", some_of([*ONCE_A_TRACEBACK], each=3))
def test_a_request_that_ended_in_a_traceback_has_plans(name: str) -> None:
    problem = parse_problem(ONCE_A_TRACEBACK[name])
    assert consistent_answer(problem).plans


def test_why_a_launcher_has_no_layout_of_a_mixture_of_experts_is_explained() -> None:
    # nanotron counts the tensors of a step; of no legal row the number of experts was a traceback
    problem = parse_problem(
        {
            "model": {"name": "olmoe-1b-7b"},
            "cluster": {"name": "dgx-h100", "num_nodes": 1},
            "workload": {"global_batch_size": 16, "seq_length": 1024},
            "search": {"pin": {"recompute_layers": 4}},
            "launcher": "nanotron",
        }
    )
    answer = consistent_answer(problem)
    assert answer.infeasible is not None
    assert answer.infeasible.reasons


@pytest.mark.parametrize("seed", SEEDS)
def test_every_combination_is_answered(seed: int) -> None:
    consistent_answer(a_combined_problem(seed))


def consistent_answer(problem: Problem) -> Answer:
    """The answer, which every form can show; its counts, gaps and waterfalls agree with each other."""
    answer = ask(problem, default_profile(problem.cluster, problem.priced_as))
    json.dumps(answer_document(answer, problem), allow_nan=False)
    screen = Console(file=io.StringIO(), width=120)
    screen.print(render_answer(answer, problem, width=120))
    assert to_csv(answer.plans).count("\n") == 1 + len(answer.plans)
    assert len(answer.plans) <= problem.options.top_k
    assert [plan.rank for plan in answer.plans] == list(range(1, len(answer.plans) + 1))
    assert 0 <= answer.fit <= answer.legal <= answer.space_size
    assert 0 <= answer.explored <= answer.space_size
    assert bool(answer.plans) == (answer.status in ("optimal", "feasible"))
    for plan in answer.plans:
        assert plan.gap is None or 0.0 <= plan.gap <= 1.0
        if plan.why is not None:
            step_s = plan.prediction.step_time_s
            assert sum(plan.why.waterfall_s.values()) == pytest.approx(step_s, rel=1e-9)
    return answer
