"""One line names a question wherever it is listed: what is trained, on which GPUs."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshwright.service.report.question import question_words, title_of
from meshwright.service.requests.parse import parse_problem
from tests.served.api_client import submit

BATCH = {"global_batch_size": 64, "seq_length": 4096}


def asked(model: str, cluster: object, **workload: object) -> dict[str, Any]:
    return {"model": model, "cluster": cluster, "workload": {**BATCH, **workload}}


@pytest.mark.parametrize(
    ("model", "cluster", "workload", "title"),
    [
        (
            "qwen3-8b",
            {"gpu": "a100-sxm-40gb", "num_gpus": 4},
            {"lora_rank": 16},
            "Qwen3 8B LoRA on 4 × A100 40 GB",
        ),
        (
            "qwen3-8b",
            {"gpu": "h100", "num_gpus": 1},
            {"lora_rank": 16, "base_precision": "nf4"},
            "Qwen3 8B QLoRA on 1 × H100 80 GB",
        ),
        (
            "qwen3-8b",
            {"gpu": "h100", "num_gpus": 1},
            {"trained_layers": "none", "trained_modules": ["lm_head"]},
            "Qwen3 8B, lm_head trained on 1 × H100 80 GB",
        ),
        ("llama-3.1-8b", {"name": "dgx-h100", "num_nodes": 2}, {}, "Llama 3.1 8B on 16 × H100 80 GB"),
        ("llama-3.1-8b", "2xdgx-h100,4xdgx-a100", {}, "Llama 3.1 8B on 16 × H100 80 GB + 32 × A100 80 GB"),
        (
            "llama-3.1-8b",
            {"name": "dgx-h100", "num_nodes": [1, 2]},
            {},
            "Llama 3.1 8B on up to 16 × H100 80 GB",
        ),
    ],
)
def test_a_title_names_the_model_its_training_and_the_gpus(
    model: str, cluster: object, workload: dict[str, object], title: str
) -> None:
    assert title_of(parse_problem(asked(model, cluster, **workload))) == title


@pytest.mark.parametrize(
    ("workload", "trained"),
    [
        ({"trained_layers": "0"}, "of layer 0 trained"),
        ({"trained_layers": "24,25-27"}, "of layers 24-27 trained"),
        ({"trained_layers": "none", "trained_modules": ["lm_head"]}, "of lm_head trained"),
        ({"trained_layers": "0", "trained_modules": ["lm_head"]}, "of layer 0 and lm_head trained"),
        ({"trained_layers": ",".join(map(str, range(0, 32, 2)))}, "of 16 of 36 layers trained"),
        ({"lora_rank": 8, "base_precision": "nf4"}, "of LoRA trained"),
        (
            {"lora_rank": 8, "lora_targets": ["q_proj"], "framework_options": {"oft": True}},
            "of OFT trained",
        ),
    ],
)
def test_a_header_names_what_is_trained(workload: dict[str, object], trained: str) -> None:
    cluster = {"gpu": "h100", "num_gpus": 1}
    problem = parse_problem(asked("qwen3-8b", cluster, **workload) | {"launcher": "none"})
    assert trained in question_words(problem)[0]


def test_lists_and_answers_of_the_api_have_the_title(client: TestClient) -> None:
    lora = asked("qwen3-8b", {"gpu": "h100", "num_gpus": 1}, lora_rank=16)
    points = {**asked("llama-3.1-8b", "dgx-h100"), "sweep": {"num_nodes": [1, 2]}}
    ids = [submit(client, **lora), submit(client, **points)]
    titles = {job["id"]: job["title"] for job in client.get("/v1/jobs").json()["jobs"]}
    assert [titles[one] for one in ids] == [
        "Qwen3 8B LoRA on 1 × H100 80 GB",
        "Llama 3.1 8B, a sweep of 2 points",
    ]
    assert client.get(f"/v1/jobs/{ids[0]}").json()["title"] == titles[ids[0]]
