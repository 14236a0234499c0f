"""Models and clusters of one's own: kept version by version, named in problems, gone when deleted."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection

from meshwright.profiles.inline import MAX_GROUPS
from meshwright.profiles.library import model_names
from meshwright.service.db.database import Database
from meshwright.service.stores import definitions
from meshwright.service.stores.definitions import MAX_NAMES, MAX_VERSIONS, DefinitionRecord, Kind
from tests.served.access_cases import token_of
from tests.served.api_client import BODY, PROBLEM_TYPE, submit

POD = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]}
CHIP = {"memory_gib": 96, "hbm_gb_per_s": 3300, "peak_tflops": {"bf16": 900}, "power_watts": 650}
MIXED = {"groups": [*POD["groups"], {"gpu": "a100-sxm-80gb", "num_nodes": 1}]}


def test_hardware_is_named_over_the_api_as_on_the_command_line(client: TestClient) -> None:
    client.put("/v1/gpus/chip", json=CHIP)
    client.put("/v1/clusters/pod", json=POD)
    for cluster, groups in (
        ("64xH100", [("h100-sxm-80gb", 8, 8)]),
        ({"gpu": "NVIDIA A100-SXM4-40GB", "num_gpus": 4}, [("a100-sxm-40gb", 1, 4)]),
        ("2xdgx-h100,4xdgx-a100", [("h100-sxm-80gb", 2, 8), ("a100-sxm-80gb", 4, 8)]),
        ({"name": "p5.48xlarge", "num_nodes": 2}, [("h100-sxm-80gb", 2, 8)]),
        ({"gpu": "chip", "num_gpus": 16}, [("chip", 2, 8)]),
        ({"name": "pod", "num_gpus": 32}, [("h100-sxm-80gb", 4, 8)]),
    ):
        request = client.get(f"/v1/jobs/{submit(client, cluster=cluster)}").json()["request"]
        found = request["cluster"]["groups"]
        names = [one["gpu"] if isinstance(one["gpu"], str) else one["gpu"]["name"] for one in found]
        sizes = [(one["num_nodes"], one["gpus_per_node"]) for one in found]
        assert [(name, *size) for name, size in zip(names, sizes, strict=True)] == groups


def test_a_wrong_name_over_the_api_has_its_pointer_and_what_is_allowed(client: TestClient) -> None:
    for cluster, pointer in (("8xH100 40GB", "/cluster/name"), ({"gpu": "h100 40gb"}, "/cluster/gpu")):
        answer = client.post("/v1/jobs", json={**BODY, "cluster": cluster})
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["pointer"]) == (422, pointer)
        assert "h100-sxm-80gb" in error["allowed"]


@pytest.fixture
def shape(client: TestClient) -> dict[str, Any]:
    """The figures of a model as anybody may write them down."""
    document = dict(client.get("/v1/models/llama-3.1-8b").json()["document"])
    return {name: value for name, value in document.items() if name not in {"display_name", "source"}}


def test_a_model_is_kept_in_versions_and_the_same_again_is_none(
    client: TestClient, shape: dict[str, Any]
) -> None:
    first = client.put("/v1/models/ours", json=shape)
    assert (first.status_code, first.json()["version"]) == (201, 1)
    assert first.json()["document"]["name"] == "ours"
    same = client.put("/v1/models/ours", json=dict(reversed(shape.items())))
    assert (same.status_code, same.json()) == (200, first.json())
    deeper = client.put("/v1/models/ours", json={**shape, "num_layers": 40})
    assert (deeper.status_code, deeper.json()["version"]) == (201, 2)
    layers = [
        client.get("/v1/models/ours", params=params).json()["document"]["num_layers"]
        for params in ({}, {"version": 1}, {"version": 2})
    ]
    assert layers == [40, 32, 40]
    assert client.get("/v1/models/ours", params={"version": 3}).status_code == 404


def test_a_problem_names_a_definition_and_gets_its_figures(
    client: TestClient, shape: dict[str, Any]
) -> None:
    for layers in (32, 40):
        client.put("/v1/models/ours", json={**shape, "num_layers": layers})
    client.put("/v1/clusters/pod", json=POD)
    asked = {"cluster": {"name": "pod", "num_nodes": 4}}
    for name, layers in (("ours", 40), ("ours@1", 32), ("ours@2", 40)):
        job = submit(client, model={"name": name}, **asked)
        request = client.get(f"/v1/jobs/{job}").json()["request"]
        assert request["model"]["num_layers"] == layers
        assert request["cluster"]["groups"][0]["num_nodes"] == 4
        assert request["cluster"]["name"] == "pod"


def test_a_list_of_too_many_groups_is_refused_without_a_query_for_each(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[str] = []
    found = definitions._found

    def noted(
        connection: Connection, tenant: str, kind: Kind, name: str, version: int | None = None
    ) -> DefinitionRecord | None:
        queries.append(name)
        return found(connection, tenant, kind, name, version)

    monkeypatch.setattr(definitions, "_found", noted)
    groups = [{"gpu": "mine", "num_nodes": 1}] * (MAX_GROUPS + 1)
    refused = client.put("/v1/clusters/many", json={"groups": groups})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/groups"
    assert not queries


def test_a_prediction_names_them_too(client: TestClient, shape: dict[str, Any]) -> None:
    client.put("/v1/models/ours", json=shape)
    bodies = [
        {"problem": {**BODY, "model": {"name": name}}, "configuration": {"tensor_parallel_size": 8}}
        for name in ("ours", "llama-3.1-8b")
    ]
    times = [
        client.post("/v1/predictions", json=body).json()["prediction"]["step_time_s"] for body in bodies
    ]
    assert times[0] == times[1]


def test_a_deleted_definition_is_gone_and_its_jobs_are_not(
    client: TestClient, shape: dict[str, Any]
) -> None:
    client.put("/v1/models/ours", json=shape)
    job = submit(client, model={"name": "ours"})
    assert client.delete("/v1/models/ours").status_code == 204
    assert client.delete("/v1/models/ours").status_code == 404
    assert client.get("/v1/models/ours").status_code == 404
    refused = client.post("/v1/jobs", json={**BODY, "model": {"name": "ours"}})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/model/name")
    assert client.get(f"/v1/jobs/{job}").json()["request"]["model"]["name"] == "ours"
    assert client.put("/v1/models/ours", json=shape).json()["version"] == 2  # a version is never used twice
    assert client.get("/v1/audit").json()["acts"][0]["action"] == "model.delete"


def test_lists_hold_the_catalogs_and_ones_own_in_pages(client: TestClient, shape: dict[str, Any]) -> None:
    for name in ("aaa", "zzz"):
        client.put(f"/v1/models/{name}", json=shape)
    seen, token = [], None
    while True:
        page = client.get("/v1/models", params={"page_size": 5, **({"page_token": token} if token else {})})
        assert len(page.json()["items"]) <= 5
        seen += [(item["name"], item["origin"]) for item in page.json()["items"]]
        token = page.json()["next_page_token"]
        if token is None:
            break
    assert [name for name, _ in seen] == sorted([*model_names(), "aaa", "zzz"])
    assert [name for name, origin in seen if origin == "stored"] == ["aaa", "zzz"]


def test_an_entry_is_sent_again_only_when_it_changed(client: TestClient, shape: dict[str, Any]) -> None:
    client.put("/v1/models/ours", json=shape)
    tag = client.get("/v1/models/ours").headers["ETag"]
    unchanged = client.get("/v1/models/ours", headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    client.put("/v1/models/ours", json={**shape, "num_layers": 40})
    assert client.get("/v1/models/ours", headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/v1/models/llama-3.1-8b", {"name": "x"}, "/path/name"),
        ("/v1/models/Ours", {"name": "x"}, "/path/name"),
        ("/v1/models/ours@2", {"name": "x"}, "/path/name"),
        ("/v1/models/ours", {"name": "x"}, "/name"),
        ("/v1/models/ours", {"num_layers": True}, "/num_layers"),
        ("/v1/clusters/pod", {"groups": [{"gpu": "none", "num_nodes": 1}]}, "/groups/0/gpu"),
        ("/v1/clusters/pod", {"groups": []}, "/groups"),
        ("/v1/clusters/pod", {"name": "dgx-h100"}, "/groups"),
        ("/v1/gpus/h100", CHIP, "/path/name"),
        ("/v1/gpus/chip", {**CHIP, "memory_gib": 0}, "/memory_gib"),
        ("/v1/gpus/chip", {"memory_gib": 96, "hbm_gb_per_s": 3300}, "/peak_flops"),
    ],
)
def test_a_definition_that_does_not_hold_is_refused_at_its_field(
    client: TestClient, path: str, body: dict[str, Any], pointer: str
) -> None:
    answer = client.put(path, json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)
    assert pointer in {error["pointer"] for error in answer.json()["errors"]}


def test_a_cluster_of_several_groups_has_its_own_sizes(client: TestClient) -> None:
    assert client.put("/v1/clusters/mixed", json=MIXED).status_code == 201
    answer = client.post("/v1/jobs", json={**BODY, "cluster": {"name": "mixed", "num_nodes": 4}})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/cluster/num_nodes")
    submit(client, cluster={"name": "mixed"})


def test_a_gpu_is_named_in_problems_and_in_clusters_and_they_keep_its_figures(client: TestClient) -> None:
    first = client.put("/v1/gpus/chip", json=CHIP)
    assert (first.status_code, first.json()["kind"], first.json()["version"]) == (201, "gpu", 1)
    assert client.put("/v1/gpus/chip", json=CHIP).status_code == 200
    client.put("/v1/gpus/chip", json={**CHIP, "memory_gib": 144})
    client.put("/v1/clusters/pod", json={"groups": [{"gpu": "chip@1", "num_nodes": 2}]})
    for named, memory_gib in (("chip", 144), ("chip@1", 96), ("pod", 96)):
        part = {"name": "pod"} if named == "pod" else {"groups": [{"gpu": named, "num_nodes": 2}]}
        request = client.get(f"/v1/jobs/{submit(client, cluster=part)}").json()["request"]
        gpu = request["cluster"]["groups"][0]["gpu"]
        assert (gpu["name"], gpu["memory_bytes"]) == ("chip", memory_gib * 2**30)
    entries = {one["name"]: one for one in client.get("/v1/gpus").json()["items"]}
    assert (entries["chip"]["origin"], entries["chip"]["version"]) == ("stored", 2)
    assert entries["h100-sxm-80gb"]["origin"] == "catalog"


def test_the_number_of_names_is_bounded(
    client: TestClient, database: Database, shape: dict[str, Any]
) -> None:
    rows = ", ".join(f"('default', 'model', 'n{number}', 1, '{{}}', 0)" for number in range(MAX_NAMES))
    with database.write() as connection:
        columns = "tenant, kind, name, version, document, created_at_s"
        connection.exec_driver_sql(f"INSERT INTO definitions ({columns}) VALUES {rows}")  # noqa: S608
    assert client.put("/v1/models/one-more", json=shape).status_code == 422
    headers = {"Authorization": f"Bearer {token_of(database, 'another')}"}
    assert client.put("/v1/models/one-more", json=shape, headers=headers).status_code == 201


def test_the_number_of_versions_is_bounded_until_they_are_deleted(
    client: TestClient, database: Database, shape: dict[str, Any]
) -> None:
    versions = range(1, MAX_VERSIONS + 1)
    rows = ", ".join(f"('default', 'model', 'ours', {number}, '{{}}', 0)" for number in versions)
    with database.write() as connection:
        columns = "tenant, kind, name, version, document, created_at_s"
        connection.exec_driver_sql(f"INSERT INTO definitions ({columns}) VALUES {rows}")  # noqa: S608
    refused = client.put("/v1/models/ours", json=shape)
    assert (refused.status_code, "1000 versions" in refused.text) == (422, True)
    assert client.delete("/v1/models/ours").status_code == 204
    assert client.put("/v1/models/ours", json=shape).json()["version"] == MAX_VERSIONS + 1
