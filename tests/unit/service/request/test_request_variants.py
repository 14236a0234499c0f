"""Requests for frozen models and other optimizers."""

import json

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.parse import parse_problem, problem_to_mapping

Request = dict[str, object]
WORKLOAD: Request = {"global_batch_size": 512, "seq_length": 8192}


def request(workload: Request) -> Request:
    """Llama 3.1 70B on 16 DGX H100, without a launcher's limits."""
    return {
        "launcher": "none",
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 16},
        "workload": workload,
    }


def test_adapters_and_an_optimizers_rank_survive_the_canonical_request() -> None:
    workload = {
        **WORKLOAD, "optimizer": "galore", "optimizer_rank": 128,
        "lora_rank": 16, "lora_targets": ["linear_fc2", "linear_qkv"],
    }  # fmt: skip
    problem = parse_problem(request(workload))
    assert problem.workload.lora_targets == ("linear_qkv", "linear_fc2")  # in the order of a layer
    assert parse_problem(json.loads(json.dumps(problem_to_mapping(problem)))) == problem


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"lora_rank": 8193}, "8193 is more than hidden_size = 8192"),
        ({"lora_rank": -1}, "-1 is out of range"),
        ({"lora_rank": 8, "lora_targets": ["linear_q"]}, "linear_qkv"),
        ({"lora_rank": 8, "lora_targets": []}, "lora_targets"),
        ({"optimizer": "galore", "optimizer_rank": 9000}, "9000 is more than hidden_size = 8192"),
        ({"optimizer": "adamw", "optimizer_rank": 64}, "adamw has no rank"),
        ({"optimizer": "shampoo"}, "muon"),
    ],
)
def test_an_impossible_variant_says_what_would_be_possible(workload: Request, words: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        parse_problem(request({**WORKLOAD, **workload}))
    (fault,) = caught.value.errors
    assert words in fault.sentence()
