"""A question as it is typed: what it becomes, and where its faults are told."""

import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.web.questions import ASKED
from tests.served.job_records import job_in
from tests.served.reports import Page

OWN = {"launch_name": "a.sh", "cluster": "dgx-h100"}
TYPED = {
    "once": "0a" * 16,
    "model": "llama-3.1-8b",
    "cluster": "dgx-h100",
    "num_nodes": "4",
    "batch": "256",
    "seq_length": "8192",
    "precision": "bf16",
    "optimizer": "adamw",
    "launcher": "megatron-lm",
}
LAUNCH_FILE = """torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 \\
  --global-batch-size 128 --seq-length 4096 --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --group-query-attention \\
  --num-query-groups 8 --max-position-embeddings 4096 --bf16 --vocab-size 128256 \\
  --untie-embeddings-and-output-weights --use-distributed-optimizer
"""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def fault_beside(text: str, name: str) -> str:
    """What stands below a field as its fault."""
    found = re.search(rf'id="fault-{name}">(.*?)</p>', text)
    assert found is not None, f"no fault beside {name}"
    return found.group(1)


def submitted(browser: TestClient, **typed: str) -> str:
    answer = browser.post("/jobs", data={**TYPED, **typed})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"].removeprefix("/jobs/"))


def test_the_first_page_has_a_label_for_every_field(browser: TestClient) -> None:
    text = browser.get("/").text
    page = Page(text)
    labelled = {label["for"] for label in page.all("label") if "for" in label}
    fields = [one for tag in ("input", "select", "textarea") for one in page.all(tag)]
    named = {one["id"] for one in fields if "id" in one}
    assert named <= labelled
    assert {"model", "cluster", "num_nodes", "batch", "seq_length", "constraints", "pin-tp"} <= named
    free = [
        one for one in fields if "id" not in one and one.get("type") not in {"hidden", "checkbox", "file"}
    ]
    assert free == []  # check boxes and files stand inside their labels


def test_what_is_typed_becomes_the_request_of_the_api(browser: TestClient, database: Database) -> None:
    limits = {
        "top_k": "3", "certify": "none", "pin-tp": "4", "pin-recompute": "none", "allow": "offload",
        "constraints": "pipeline_parallel_size <= 4\n\n", "risk": "0.05", "pareto": "yes", "priority": "2",
    }  # fmt: skip
    job = job_in(database, submitted(browser, **limits))
    search: dict[str, Any] = dict(job.request["search"])
    assert (search["top_k"], search["certify"], search["pareto"]) == (3, "none", True)
    assert search["pin"] == {"recompute_granularity": "none", "tensor_parallel_size": 4}
    assert (search["allow"], search["constraints"]) == (["offload"], ["pipeline_parallel_size <= 4"])
    assert search["max_out_of_memory_probability"] == 0.05
    assert job.request["workload"]["global_batch_size"] == 256
    assert job.priority == 2


def test_several_batches_are_typed_with_commas(browser: TestClient, database: Database) -> None:
    job = job_in(database, submitted(browser, batch="64, 128"))
    assert job.request["workload"]["global_batch_size"] == [64, 128]


def test_lengths_of_documents_are_typed_as_percentiles(browser: TestClient, database: Database) -> None:
    job = job_in(database, submitted(browser, lengths="p50=900, p90=4000 p100=8192", batching="padding"))
    wanted = {"p0": 1, "p50": 900, "p90": 4000, "p100": 8192}
    found: dict[str, Any] = dict(job.request["workload"]["lengths"])
    assert (found["batching"], {"p0": 1, **found["percentiles"]}) == ("padding", wanted)


@pytest.mark.parametrize(
    ("typed", "field", "words"),
    [
        ({"lengths": "p50=900"}, "lengths", "p100: is required"),
        ({"lengths": "p50=many, p100=8192"}, "lengths", "p50: must be an integer"),
        ({"lengths": "900"}, "lengths", "is not a percentile"),
        ({"lengths": "p50=900, p50=800, p100=8192"}, "lengths", "p50 is given more than once"),
        ({"lengths": "p90=900, p95=800, p100=8192"}, "lengths", "800 is less than p90"),
        ({"lengths": "p100=9000"}, "lengths", "longer than"),
        ({"batching": "packing"}, "batching", "packing requires document lengths"),
    ],
)
def test_lengths_that_cannot_be_are_told_beside_their_field(
    browser: TestClient, typed: dict[str, str], field: str, words: str
) -> None:
    answer = browser.post("/jobs", data={**TYPED, **typed})
    assert answer.status_code == 422
    assert words in fault_beside(answer.text, field)


def test_a_config_json_takes_the_place_of_the_name(browser: TestClient, database: Database) -> None:
    job = job_in(database, submitted(browser, config=json.dumps(CONFIG)))
    assert (job.request["model"]["num_layers"], job.request["model"]["hidden_size"]) == (16, 2048)


def test_a_form_that_is_sent_twice_is_one_job(browser: TestClient) -> None:
    assert submitted(browser) == submitted(browser)
    assert submitted(browser) != submitted(browser, once="0b" * 16, batch="128")


def test_faults_are_told_beside_their_fields_and_what_was_typed_stays(browser: TestClient) -> None:
    answer = browser.post("/jobs", data={**TYPED, "num_nodes": "many", "model": "lama-3.1-8b"})
    assert answer.status_code == 422
    assert "is not a whole number" in fault_beside(answer.text, "num_nodes")
    assert "Did you mean llama-3.1-8b" in fault_beside(answer.text, "model")
    assert 'value="many"' in answer.text
    (field,) = [one for one in Page(answer.text).all("input") if one.get("id") == "num_nodes"]
    assert (field["aria-invalid"], field["aria-describedby"].split()) == (
        "true",
        ["fault-num_nodes", "hint-num_nodes"],
    )


def test_a_batch_that_no_replica_can_split_names_the_nearest(browser: TestClient) -> None:
    # 4 nodes of 8 GPUs, tp 8: dp divides 4; a pinned dp of 4 and a batch of 254: nearest 252 and 256.
    answer = browser.post("/jobs", data={**TYPED, "batch": "254", "pin-tp": "8", "pin-dp": "4"})
    assert answer.status_code == 422
    assert "252, 256" in fault_beside(answer.text, "batch")


def test_a_fault_in_a_config_names_its_place_in_the_file(browser: TestClient) -> None:
    broken = {**CONFIG, "hidden_size": -1}
    answer = browser.post("/jobs", data={**TYPED, "config": json.dumps(broken)})
    assert "hidden_size" in fault_beside(answer.text, "config")
    answer = browser.post("/jobs", data={**TYPED, "config": "{"})
    assert "not JSON" in fault_beside(answer.text, "config")


def test_the_part_with_a_fault_is_open(browser: TestClient) -> None:
    answer = browser.post("/jobs", data={**TYPED, "constraints": "no_such_thing == 1"})
    opened = re.findall(r'<details class="part" open><summary>(.*?)</summary>', answer.text)
    assert opened == ["Nodes: number, size, several types", "Fix or limit sizes"]


def test_a_foreign_pages_form_is_refused(browser: TestClient, jobs: Jobs) -> None:
    for origin in ("http://elsewhere.example", "http://localhost.example", "null", ""):
        answer = browser.post("/jobs", data=TYPED, headers={"origin": origin})
        assert answer.status_code == 403
    assert jobs.page("default", page_size=10, page_token=None).items == ()


def test_what_is_no_form_is_refused(browser: TestClient) -> None:
    assert browser.post("/jobs", json=TYPED).status_code == 422
    assert browser.post("/jobs", data={"model": "a\0b"}).status_code == 422
    assert browser.post("/jobs", data={f"f{at}": "1" for at in range(300)}).status_code == 422


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("/jobs", "keep a large model, cluster or profile under a name"),  # POST /v1/jobs takes 256 KiB
        ("/own", "keep a large model, cluster or profile under a name"),  # as does POST /v1/predictions
        ("/models", "PUT /v1/models/{name}"),
        ("/profiles", "POST /v1/profiles"),
    ],
)
def test_a_form_beyond_its_limit_advises_what_the_api_takes(
    browser: TestClient, address: str, advice: str
) -> None:
    answer = browser.post(address, data={"name": "a", "document": "x" * 2**20})
    assert answer.status_code == 413
    assert advice in answer.text
    programs = {"/jobs": "/v1/jobs", "/own": "/v1/predictions", "/profiles": "/v1/profiles"}
    if address in programs:  # the API refuses the same bytes exactly where the page does not name it
        headers = {"content-type": "application/json"}
        sent = browser.post(programs[address], content=b" " * 2**20, headers=headers)
        assert (sent.status_code == 413) == ("/v1" not in advice)


def test_a_launch_file_is_priced_at_once(browser: TestClient) -> None:
    answer = browser.post("/own", data={**OWN, "launch_text": LAUNCH_FILE})
    assert answer.status_code == 200, answer.text
    text = Page(answer.text).text
    assert "tensor 2 · pipeline 2 · data 8" in text  # 4 nodes of 8 GPUs over 2 · 2
    assert "Where a step’s time goes" in text


def test_a_launch_file_is_searched_against(browser: TestClient, database: Database) -> None:
    data = {**OWN, "launch_text": LAUNCH_FILE, "search": "yes"}
    answer = browser.post("/own", data=data)
    assert answer.status_code == 303, answer.text
    request = job_in(database, answer.headers["location"].removeprefix("/jobs/")).request
    assert request["workload"]["global_batch_size"] == 128
    assert request["search"]["baseline"]["tensor_parallel_size"] == 2


DEEPSPEED = (
    '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
)
TORCHTITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
[parallelism]
tensor_parallel_degree = 2
"""
LLAMA_FACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
do_train: true
finetuning_type: full
per_device_train_batch_size: 1
"""
MEGATRON_LM = "torchrun pretrain_gpt.py --bf16 --micro-batch-size 1 --global-batch-size 128"


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        (DEEPSPEED, {"model": "llama-3.1-8b", "batch": "128", "seq_length": "4096"}),
        (TORCHTITAN, {"seq_length": "4096"}),
        (LLAMA_FACTORY, {}),
        (MEGATRON_LM, {"model": "llama-3.1-8b", "seq_length": "4096"}),
    ],
    ids=["JSON", "TOML", "YAML", "script"],
)
def test_a_pasted_file_without_a_name_is_recognised_and_what_it_lacks_is_asked_for_in_its_field(
    browser: TestClient, text: str, lacking: dict[str, str]
) -> None:
    data = {**OWN, "launch_text": text, "launch_name": "", "num_nodes": "4"}
    for name, value in lacking.items():
        asked = browser.post("/own", data=data)
        assert asked.status_code == 422
        assert fault_beside(asked.text, name) == "the launch file does not state it: enter it here"
        data[name] = value
    answer = browser.post("/own", data=data)
    assert answer.status_code == 200, Page(answer.text).text


def test_a_launch_file_that_cannot_be_read_is_told_beside_it(browser: TestClient) -> None:
    answer = browser.post("/own", data={**OWN, "launch_text": "echo hello"})
    assert answer.status_code == 422
    assert fault_beside(answer.text, "launch_text")


def test_a_wrong_cluster_of_a_launch_file_is_told_beside_its_field(browser: TestClient) -> None:
    answer = browser.post("/own", data={**OWN, "launch_text": LAUNCH_FILE, "cluster": "dgx-h200x"})
    assert answer.status_code == 422
    assert "dgx-h200" in fault_beside(answer.text, "cluster")


def test_a_worker_finds_the_typed_question_like_any_other(browser: TestClient, engine: JobEngine) -> None:
    job_id = submitted(browser)
    claim = engine.claim_one("worker")
    assert claim is not None
    assert claim.job_id == job_id


def test_a_form_leaves_the_precision_to_the_gpus_unless_one_is_chosen() -> None:
    asked = ASKED["workload.precision"]
    assert (asked.default, asked.choices[0]) == ("", ("", "automatic"))
