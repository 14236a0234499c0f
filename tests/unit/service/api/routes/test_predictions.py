"""``POST /v1/predictions`` with a launch file, of any launcher and bounded, or with a stored plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshwright.launchers.registry import export
from meshwright.service.capture import capture
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.requests.launch_files import MAX_FILES, MAX_TEXT
from meshwright.workers.outcome import outcome_of
from tests.builders import a_plan, an_answer
from tests.launchers.plans import CASES
from tests.served.api_client import BODY, submit
from tests.served.job_records import claimed
from tests.unit.launchers.megatron_lm.test_read import SCRIPT

CLUSTER = {"cluster": {"name": "dgx-h100"}}


def post(client: TestClient, launch_file: object, **body: object) -> tuple[int, dict[str, object]]:
    answer = client.post("/v1/predictions", json={"problem": CLUSTER, "launch_file": launch_file, **body})
    return answer.status_code, answer.json()


def faults(body: dict[str, object]) -> list[tuple[str, str]]:
    return [(one["pointer"], one["message"]) for one in body["errors"]]  # type: ignore[attr-defined]


def test_a_script_is_priced_as_its_configuration_is(client: TestClient) -> None:
    status, read = post(client, {"name": "train.sh", "text": SCRIPT})
    assert status == 200, read
    # 4 nodes of 8 GPUs; tp 4 * pp 2 leaves dp 4; 128 sequences = 4 * 32 micro-batches of 1
    config = read["config"]
    assert (config["data_parallel_size"], config["num_microbatches"]) == (4, 32)  # type: ignore[index]
    assert (read["launcher"], read["unread"]) == ("megatron-lm", ["--optimizer-cuda-graph"])
    assert any("--overlap-grad-reduce" in note for note in read["notes"])  # type: ignore[attr-defined]


@pytest.fixture
def plan_id(client: TestClient, engine: JobEngine) -> str:
    """A stored plan with a switch: 4 nodes of 8 GPUs, tp 4 * pp 2 * dp 4, 256 = 4 * 64 micro-batches."""
    submit(client)
    sizes: dict[str, Any] = {
        "tensor_parallel_size": 4, "pipeline_parallel_size": 2, "virtual_pipeline_size": 1,
        "data_parallel_size": 4, "zero_shard_size": 4, "micro_batch_size": 1, "num_microbatches": 64,
        "pipeline_schedule": "1f1b", "stage_layers": (16, 16),
    }  # fmt: skip
    plan = replace(a_plan(**sizes), workload={"cuda_graph": "full_iteration"})
    assert engine.complete(claimed(engine), outcome_of(an_answer(plan), cache_key="k", cancelled=False))
    return plan.plan_id


def test_a_stored_plan_is_priced_under_its_own_switches(client: TestClient, plan_id: str) -> None:
    read = client.post("/v1/predictions", json={"plan": plan_id}).json()
    workload = {**BODY["workload"], "framework_options": {"cuda_graph": "full_iteration"}}
    bodies = [{"problem": problem, "configuration": read["config"]}
              for problem in ({**BODY, "workload": workload}, BODY)]  # fmt: skip
    switched, plain = (client.post("/v1/predictions", json=body).json() for body in bodies)
    assert read["prediction"] == switched["prediction"]
    assert read["prediction"]["step_time_s"] < plain["prediction"]["step_time_s"]
    again = client.post("/v1/predictions", json={"plan": plan_id, "problem": BODY})
    assert again.json() == read


def test_a_question_is_written_as_for_a_job_or_in_one_part(client: TestClient, plan_id: str) -> None:
    # tp 4 on 4 nodes of 8 GPUs, and a launch file that leaves the cluster open, and a plan
    for priced, asked in (
        ({"configuration": {"tensor_parallel_size": 4}}, BODY),
        ({"launch_file": {"name": "train.sh", "text": SCRIPT}}, CLUSTER),
        ({"plan": plan_id}, BODY),
    ):
        flat = client.post("/v1/predictions", json={**asked, **priced})
        nested = client.post("/v1/predictions", json={"problem": asked, **priced})
        assert flat.status_code == 200, flat.text
        assert flat.json() == nested.json()


@pytest.mark.parametrize("name", ["model", "cluster", "workload", "launcher", "search"])
def test_a_question_that_is_given_twice_is_refused_by_the_name_of_the_part(
    client: TestClient, name: str
) -> None:
    body = {"problem": BODY, "configuration": {}, name: BODY.get(name, {})}
    answer = client.post("/v1/predictions", json=body)
    assert answer.status_code == 422
    assert faults(answer.json()) == [(f"/{name}", "is given next to problem, which states it too")]


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"plan": "nothing"}, 404, None),
        ({"plan": 7}, 422, "/plan"),
        ({"plan": "7f3a90c1d2e4", "configuration": {}}, 422, "/configuration"),
        ({"plan": "7f3a90c1d2e4", "launch_file": {}}, 422, "/launch_file"),
        ({"plan": "7f3a90c1d2e4", "rank": 1}, 422, "/rank"),
        ({"plan": "7f3a90c1d2e4", "problem": {"cluster": {"name": "dgx-h100"}}}, 422, "/model"),
    ],
)
def test_a_plan_is_refused_with_its_place(
    client: TestClient, plan_id: str, body: dict[str, object], status: int, pointer: str | None
) -> None:
    assert plan_id == "7f3a90c1d2e4"
    answer = client.post("/v1/predictions", json=body)
    assert answer.status_code == status
    assert [one["pointer"] for one in answer.json().get("errors", [])][:1] == ([pointer] if pointer else [])


@pytest.mark.parametrize("launcher", [name for name in CASES if name != "megatron-bridge"])
def test_exported_files_are_priced_whosever_they_are(client: TestClient, launcher: str) -> None:
    case = next(iter(CASES[launcher].values()))
    files = export(case.plan, case.problem, launcher).files
    name = "launch.sh"
    others = {other: text for other, text in files.items() if other != name}
    status, read = post(client, {"name": name, "text": files[name], "files": others})
    assert status == 200, read
    assert read["launcher"] == launcher
    assert read["config"]["stage_layers"] == list(case.config.stage_layers)  # type: ignore[index]


def test_what_a_file_leaves_open_is_told_beside_it(client: TestClient) -> None:
    file = {"name": "ds.json", "text": '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,'
            ' "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'}  # fmt: skip
    status, read = post(client, file)
    assert (status, faults(read)[0][0]) == (422, "/model")
    problem = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100", "num_nodes": 4}}
    status, read = post(client, file, problem=problem)
    assert faults(read)[0][0] == "/launch_file/text"
    assert "seq_length" in faults(read)[0][1]
    problem["workload"] = {"seq_length": 4096}
    status, read = post(client, file, problem=problem, configuration={"recompute_granularity": "full"})
    # 64 sequences on 32 GPUs without stages or tensor ranks: 2 micro-batches of 1
    config = read["config"]
    assert (config["num_microbatches"], config["recompute_layers"]) == (2, 32)  # type: ignore[index]


def test_a_capture_is_priced_and_of_its_runs_one_is_chosen(client: TestClient, tmp_path: Path) -> None:
    flags = (
        "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --bf16 "
        "--vocab-size 1024 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 16"
    )
    script = tmp_path / "train.sh"
    script.write_text(
        "for TP in 1 2; do torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py "
        f"{flags} --tensor-model-parallel-size $TP; done\n"
    )
    file = {"name": "run.json", "text": json.dumps(capture(["bash", str(script)]).document)}
    status, read = post(client, file)
    assert (status, faults(read)[0][0]) == (422, "/launch_file/text")
    assert "starts 2 runs that differ" in faults(read)[0][1]
    status, read = post(client, {**file, "run": 2})
    assert status == 200, read
    config = read["config"]  # tp 2 leaves dp 4 of 8 GPUs
    assert (config["tensor_parallel_size"], config["data_parallel_size"]) == (2, 4)  # type: ignore[index]
    assert post(client, {**file, "run": 0})[0] == 422
    status, read = post(client, {**file, "run": 2, "ignore": ["--tensor-model-parallel-size"]})
    assert read["config"]["data_parallel_size"] == 8, read  # type: ignore[index]


def test_a_capture_is_submitted_as_a_job_with_its_model_and_batch(client: TestClient) -> None:
    flags = (
        "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --bf16 "
        "--vocab-size 1024 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 16"
    )
    command = f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py {flags}".split()
    found = capture(["bash", "-c", " ".join(command)]).document
    body = {
        "cluster": {"name": "dgx-h100", "num_nodes": 2},
        "launch_file": {"name": "run.json", "text": json.dumps(found)},
        "search": {"top_k": 2},
    }
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.json()
    asked = answer.json()["request"]
    assert asked["workload"]["global_batch_size"] == 16
    assert (asked["model"]["num_layers"], asked["launcher"]) == (8, "megatron-lm")
    assert (asked["cluster"]["name"], asked["search"]["top_k"]) == ("dgx-h100", 2)
    body["launch_file"] = {"name": "run.json", "text": json.dumps({**found, "calls": []})}
    refused = client.post("/v1/jobs", json=body)
    assert (refused.status_code, faults(refused.json())[0][0]) == (422, "/launch_file/text")


TWO_RANKS = (  # which share 8 sequences; 8 ranks cannot
    "torchrun --nproc_per_node=2 pretrain_gpt.py --num-layers 12 --hidden-size 768 --bf16 "
    "--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 "
    "--micro-batch-size 4 --global-batch-size 8\n"
)


@pytest.mark.parametrize(
    ("cluster", "at", "allowed", "fitting"),
    [
        (
            {"name": "dgx-h100", "num_nodes": 1},
            "/cluster",
            '{"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2}]}',
            {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2}]},
        ),
        (
            {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8}]},
            "/cluster/groups/0",
            '"num_nodes": 1, "gpus_per_node": 2',
            {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2}]},
        ),
    ],
)
def test_a_file_that_starts_fewer_ranks_than_the_cluster_has_is_answered_with_the_cluster_that_fits(
    client: TestClient, cluster: object, at: str, allowed: str, fitting: object
) -> None:
    file = {"name": "train.sh", "text": TWO_RANKS}
    status, priced = post(client, file, problem={"cluster": cluster})
    searched = client.post("/v1/jobs", json={"cluster": cluster, "launch_file": file})
    assert (status, searched.status_code) == (422, 422)
    for refused in (priced, searched.json()):
        (fault,) = refused["errors"]  # type: ignore[misc]
        assert fault["pointer"] == at
        assert fault["message"] == "the file starts 2 processes; the cluster has 8 GPUs"
        assert fault["allowed"] == allowed
    assert post(client, file, problem={"cluster": fitting})[0] == 200
    assert client.post("/v1/jobs", json={"cluster": fitting, "launch_file": file}).status_code == 202


@pytest.mark.parametrize(
    ("file", "pointer", "says"),
    [
        ({"name": "a.sh"}, "/launch_file/text", "must be text"),
        ({"name": "../a.sh", "text": ""}, "/launch_file/name", "without folders"),
        ({"name": "a.sh", "text": "x" * (MAX_TEXT + 1)}, "/launch_file/text", "too big"),
        ({"name": "a.sh", "text": "", "launcher": "x"}, "/launch_file/launcher", ""),
        ({"name": "a.sh", "text": "", "path": "x"}, "/launch_file/path", ""),
        ({"name": "a.sh", "text": "", "files": {str(n): "" for n in range(MAX_FILES + 1)}},
         "/launch_file/files", "at most"),
        ({"name": "a.sh", "text": "", "files": {str(n): "x" * (2 * MAX_TEXT // 5) for n in range(3)}},
         "/launch_file/files", "too big together"),
        ({"name": "a.sh", "text": "source /etc/passwd\n"}, "/launch_file/text", "no launcher options"),
        ({"name": "a.sh", "text": SCRIPT.replace("--bf16", "--bf16 --fp16")}, "/launch_file/text",
         "--fp16: line 21: contradicts --bf16"),
        ({"name": "a.yaml", "text": "parallelism: {dp: 8, tp: nine}\n"}, "/launch_file/text",
         'parallelism.tp: line 1: "nine" is not a whole number'),
        ({"name": "a.yaml", "text": "<<: {a: 1}\n", "launcher": "nanotron"},
         "/launch_file/text", "<< must name an object"),
        ({"name": "a.py", "text": "import os\nos.abort()\n", "launcher": "torchtitan"},
         "/launch_file/text", "no ParallelismConfig"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_their_place(
    client: TestClient, file: dict[str, object], pointer: str, says: str
) -> None:
    status, read = post(client, file, problem={**CLUSTER, "model": {"name": "llama-3.1-8b"}})
    assert status == 422
    assert any(at == pointer and says in message for at, message in faults(read)), read


SLIPS = {
    "megatron-bridge": ("plan_args.sh", "train.micro_batch_size", "train.micro_batch_szie"),
    "deepspeed": ("ds_config.json", "train_batch_size", "train_batch_siz"),
    "torchtitan": ("torchtitan_plan.py", "tensor_parallel_degree", "tensor_paralel_degree"),
    "accelerate": ("accelerate.yaml", "fsdp_reshard_after_forward", "fsdp_reshard_after_foward"),
    "axolotl": ("axolotl.yaml", "micro_batch_size", "micro_batch_szie"),
    "trl": ("trl_sft.yaml", "per_device_train_batch_size", "per_device_train_batchsize"),
    "llama-factory-accelerate": (
        "llama_factory_train.yaml",
        "gradient_accumulation_steps",
        "gradient_acumulation_steps",
    ),
    "nanotron": ("nanotron.yaml", "batch_accumulation_per_replica", "batch_acumulation_per_replica"),
    "ms-swift": ("plan_args.sh", "--pipeline_model_parallel_size", "--pipeline_model_parallel_szie"),
    "llama-factory": ("llama_factory.yaml", "per_device_train_batch_size", "per_device_train_batchsize"),
    "flagscale": ("train_plan.yaml", "context_parallel_size", "context_paralel_size"),
}


@pytest.mark.parametrize("launcher", SLIPS)
def test_files_that_are_broken_by_hand_are_refused_with_line_and_what_was_meant(
    client: TestClient, launcher: str
) -> None:
    case = next(iter(CASES[launcher].values()))
    files = export(case.plan, case.problem, launcher).files
    file, right, wrong = SLIPS[launcher]
    rows = {number for number, line in enumerate(files[file].splitlines(), start=1) if right in line}

    def answer(files: dict[str, str]) -> list[dict[str, str]]:
        others = {other: text for other, text in files.items() if other != "launch.sh"}
        status, read = post(client, {"name": "launch.sh", "text": files["launch.sh"], "files": others})
        assert status == 422, read
        errors: list[dict[str, str]] = read["errors"]  # type: ignore[assignment]
        assert all(one["pointer"] == "/launch_file/text" for one in errors)
        return errors

    (slip, *_) = answer({**files, file: files[file].replace(right, wrong)})
    assert slip["nearest"].endswith(right)
    assert any(f"{wrong}: line {row}: is unknown" in slip["message"] for row in rows), slip
    gone = answer({name: text for name, text in files.items() if name != file and "0_2" not in name})
    assert file in gone[0]["message"]
    assert "is not next to" in gone[0]["message"]
    assert gone[0]["allowed"], gone
    hosts, old, new = ("launch.sh", "NUM_NODES=", "NUM_NODES=1")
    if "hostfile.txt" in files:
        hosts, old, new = ("hostfile.txt", "slots=8", "slots=7")
    worlds = answer({**files, hosts: files[hosts].replace(old, new)})
    assert all(one["allowed"] for one in worlds)
