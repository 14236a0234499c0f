"""Links that differ over HTTP: kept and named, planned with an order of hosts, refused with a place."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshwright.workers.runner import Runner
from tests.served.reports import Page

IN_JSON = {"content-type": "application/json"}
HOSTS = ["gpu-a", "gpu-b", "gpu-c", "gpu-d"]
FAST, SLOW = 50e9, 4e9
# a ring over the hosts as listed crosses the slow pairs a-b and c-d; a-c-b-d crosses none
RATES = [[0, SLOW, FAST, FAST], [SLOW, 0, FAST, FAST], [FAST, FAST, 0, SLOW], [FAST, FAST, SLOW, 0]]


def cluster(**links: object) -> dict[str, Any]:
    return {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 4, "links": {"hosts": HOSTS, **links}}]}


def problem(of: object) -> dict[str, Any]:
    return {
        "model": {"name": "llama-3.1-8b"}, "cluster": of, "launcher": "megatron-lm",
        "workload": {"global_batch_size": 64, "seq_length": 4096},
        "search": {"top_k": 1, "certify": "none"},
    }  # fmt: skip


def planned(client: TestClient, worker: Runner, of: object) -> tuple[str, dict[str, Any]]:
    answer = client.post("/v1/jobs", json=problem(of))
    assert answer.status_code == 202, answer.text
    assert worker.run_next()
    job_id = str(answer.json()["id"])
    (plan,) = client.get(f"/v1/jobs/{job_id}/plans").json()["plans"]
    return job_id, plan


def test_a_matrix_is_kept_once_and_its_cluster_named_by_problems(
    client: TestClient, worker: Runner
) -> None:
    kept = client.put("/v1/clusters/ours", json=cluster(bytes_per_s=RATES))
    assert kept.status_code == 201, kept.text
    assert kept.json()["document"]["groups"][0]["links"]["bytes_per_s"] == RATES
    job_id, plan = planned(client, worker, {"name": "ours"})
    order = plan["hosts"]
    assert sorted(order["hosts"]) == HOSTS
    neighbours = {frozenset(pair) for pair in zip(order["hosts"], order["hosts"][1:], strict=False)}
    assert neighbours.isdisjoint({frozenset(("gpu-a", "gpu-b")), frozenset(("gpu-c", "gpu-d"))})
    assert order["bound_step_time_s"] <= plan["prediction"]["step_time_s"] < order["listed_step_time_s"]
    stored = client.get(f"/v1/plans/{plan['plan_id']}").json()
    assert stored["plan"]["hosts"] == order
    files = client.get(f"/v1/plans/{plan['plan_id']}/export").json()["files"]
    assert files["hosts.txt"].split() == order["hosts"]
    for page in (f"/v1/plans/{plan['plan_id']}/report", f"/v1/jobs/{job_id}/report"):
        answer = client.get(page)
        assert answer.status_code == 200, answer.text
        assert f"Order of nodes: {' '.join(order['hosts'])}" in Page(answer.text).text


@pytest.mark.parametrize(
    ("links", "at", "word"),
    [
        ({"bytes_per_s": [*RATES[:3], [FAST, FAST]]}, "/links/bytes_per_s/3", "must be square"),
        ({"bytes_per_s": [[0, -1.0, 1, 1], *RATES[1:]]}, "/links/bytes_per_s/0/1", "out of range"),
        ({"bytes_per_s": [[0, 1e9, FAST, FAST], *RATES[1:]]}, "/links/bytes_per_s/0/1", "the other way"),
        ({"latency_s": [[0, -1e-6, 0, 0], *([[0] * 4] * 3)]}, "/links/latency_s/0/1", "out of range"),
        ({"bytes_per_s": [row[:3] for row in RATES[:3]]}, "/links", "different numbers of nodes"),
        ({"order": [0, 1, 2, 2]}, "/links/order", "every node once"),
    ],
)
def test_wrong_links_are_refused_with_their_place(
    client: TestClient, links: dict[str, object], at: str, word: str
) -> None:
    submitted = client.post("/v1/jobs", json=problem(cluster(**links)))
    kept = client.put("/v1/clusters/ours", json=cluster(**links))
    for answer, top in ((submitted, "/cluster"), (kept, "")):
        assert answer.status_code == 422, answer.text
        (fault, *_) = answer.json()["errors"]
        assert fault["pointer"] == f"{top}/groups/0{at}"
        assert word in fault["message"]
    assert client.get("/v1/clusters/ours").status_code == 404


def test_directions_that_differ_are_taken_where_they_are_declared(client: TestClient) -> None:
    unlike = [[0, 1e9, FAST, FAST], *RATES[1:]]
    declared = cluster(bytes_per_s=unlike, asymmetric=True)
    assert client.put("/v1/clusters/ours", json=declared).status_code == 201


def test_a_matrix_of_440_nodes_is_kept_by_name_and_too_large_for_a_problem(client: TestClient) -> None:
    """440 rows of 440 are 193 600 values: a document holds 200 000, a problem 20 000."""
    rates = ",".join(
        "[" + ",".join("0" if a == b else "5e10" for b in range(440)) + "]" for a in range(440)
    )
    group = f'{{"gpu":"h100-sxm-80gb","num_nodes":440,"links":{{"bytes_per_s":[{rates}]}}}}'
    refused = client.post("/v1/jobs", content=f'{{"cluster":{{"groups":[{group}]}}}}', headers=IN_JSON)
    assert refused.status_code in {413, 422}
    assert "PUT /v1/clusters/{name}" in refused.text
    kept = client.put("/v1/clusters/large", content=f'{{"groups":[{group}]}}', headers=IN_JSON)
    assert kept.status_code == 201, kept.text[:500]


def test_a_network_of_longer_latency_takes_longer(client: TestClient, worker: Runner) -> None:
    def step_s(latency_s: float) -> float:
        network = {"kind": "infiniband", "bytes_per_s": FAST, "latency_s": latency_s}
        groups = [{"gpu": "h100-sxm-80gb", "num_nodes": 4, "inter_node": network}]
        return float(planned(client, worker, {"groups": groups})[1]["prediction"]["step_time_s"])

    assert step_s(2e-3) > step_s(14e-6)


def test_fleets_and_replans_of_unlike_links_are_refused(client: TestClient, worker: Runner) -> None:
    """A fleet counts nodes of a switch and a re-plan loses some; neither states which hosts a job has."""
    ours = cluster(bytes_per_s=RATES)
    job = {"name": "a", "steps": 100, "problem": {k: v for k, v in problem("").items() if k != "cluster"}}
    fleet = client.post("/v1/fleets", json={"name": "team", "cluster": ours, "jobs": [job]})
    job_id, _ = planned(client, worker, ours)
    replan = client.post(f"/v1/jobs/{job_id}:replan", json={"lost_nodes": 1, "steps_total": 1000})
    for answer, at, words in (
        (fleet, "/cluster/groups/0/links/bytes_per_s", "links of single pairs differ, but a fleet"),
        (replan, "/lost_nodes", "links between nodes differ"),
    ):
        assert answer.status_code == 422, answer.text
        (fault,) = answer.json()["errors"]
        assert fault["pointer"] == at
        assert fault["message"].startswith(words)


def test_fewer_nodes_than_the_matrix_has_are_refused(client: TestClient) -> None:
    client.put("/v1/clusters/ours", json=cluster(bytes_per_s=RATES))
    answer = client.post("/v1/jobs", json=problem({"name": "ours", "num_nodes": 2}))
    assert answer.status_code == 422
    (fault,) = answer.json()["errors"]
    assert fault["message"] == "states 4 nodes, but the group has 2"
