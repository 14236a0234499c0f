"""The API against bodies, tokens, hosts and crowds that mean it no good."""

import json
import threading
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from meshwright.service.api import deps
from meshwright.service.api.app import create_app
from meshwright.service.api.turns import Turns
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.pagination import encode_token
from meshwright.service.settings import Settings
from tests.processes.quiet_clock import quiet_seconds
from tests.reliability.figures import measured
from tests.served.api_client import BODY, PROBLEM_TYPE, answer_next, submit


def with_seq_length(text: str) -> bytes:
    return json.dumps(BODY).replace("8192", text).encode()


HOSTILE = {
    "nan": with_seq_length("NaN"),
    "infinity": with_seq_length("-Infinity"),
    "overflow": with_seq_length("1e999"),
    "2^70": with_seq_length(str(2**70)),
    "a quarter million digits": with_seq_length("9" * 250_000),
    "bool as int": with_seq_length("true"),
    "text as int": with_seq_length('"8192"'),
    "lone surrogate": b'{"model": {"name": "\\ud800"}}',
    "nul": b'{"model": {"name": "\\u0000"}}',
    "duplicate keys": b'{"model": 1, "model": 2}',
    "100k deep": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
    "not utf-8": b"\xff\xfe\x00",
    "empty": b"",
    "not an object": b"[]",
    "cut off": b'{"model":',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/predictions"])
def test_hostile_json_is_a_422_problem(client: TestClient, name: str, path: str) -> None:
    answer = client.post(path, content=HOSTILE[name], headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)
    assert len(answer.content) < 4096  # nothing is echoed at length
    assert client.get("/v1/jobs").json()["jobs"] == []
    measured(17, "bodies, each refused at two addresses", len(HOSTILE))


@pytest.mark.parametrize(
    ("method", "address", "said"),
    [
        ("POST", "/v1/plans/aaa:verify?launcher=deepspeed", ("/query/launcher", "unknown field", None)),
        ("POST", "/v1/jobs/x:cancel?children=false", ("/query/children", "unknown field", None)),
        ("POST", "/v1/jobs/x:replan?plan_id=bbb", ("/query/plan_id", "unknown field", None)),
        ("GET", "/v1/plans/aaa/export?laucher=deepspeed", ("/query/laucher", "unknown field", "launcher")),
        ("GET", "/v1/jobs?stat=failed", ("/query/stat", "unknown field", "state")),
        ("GET", "/v1/jobs?state=failed&state=queued", ("/query/state", "is given 2 times", None)),
        ("DELETE", "/v1/models/own?version=1", ("/query/version", "unknown field", None)),
    ],
)
def test_what_an_address_does_not_take_is_refused_by_name_instead_of_passed_over(
    client: TestClient, method: str, address: str, said: tuple[str, str, str | None]
) -> None:
    answer = client.request(method, address)
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)
    (fault,) = answer.json()["errors"]
    assert (fault["pointer"], fault["message"], fault.get("nearest")) == said


@pytest.mark.parametrize("path", ["/v1/plans/none:verify", "/v1/jobs/none:cancel"])
def test_an_address_without_fields_takes_no_body_but_an_empty_one(client: TestClient, path: str) -> None:
    answer = client.post(path, json={"launcher": "deepspeed"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": "/launcher", "message": "unknown field"}]
    assert client.post(path, content=b"launcher=deepspeed").status_code == 422  # no JSON
    for empty in (b"", b"{}"):  # as many programs send with every POST
        assert client.post(path, content=empty).status_code == 404


NAMES = {f"tensor_parallel_{number}": 1 for number in range(990)}  # as many keys as one object may have
TOO_MUCH = {
    "pins": {**BODY, "search": {"pin": NAMES}},
    "bounds": {**BODY, "search": {"bounds": {name: [1, 2] for name in NAMES}}},
    "forbidden values": {**BODY, "search": {"forbid": {"tensor_parallel_size": [8] * 2000}}},
    "wrong forbidden values": {**BODY, "search": {"forbid": {"tensor_parallel_size": [-1] * 1000}}},
    "framework options": {**BODY, "workload": {**BODY["workload"], "framework_options": NAMES}},
    "unknown fields": {**BODY, **NAMES},
    "unknown fields of the model": {**BODY, "model": {**BODY["model"], **NAMES}},
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_request_that_is_wrong_in_a_thousand_places_gets_a_short_answer(
    client: TestClient, name: str
) -> None:
    answer = client.post("/v1/jobs", json=TOO_MUCH[name])
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM_TYPE)
    assert len(answer.content) < 8192


def test_a_configuration_that_is_wrong_in_a_thousand_places_gets_a_short_answer(
    client: TestClient,
) -> None:
    answer = client.post("/v1/predictions", json={"problem": BODY, "configuration": NAMES})
    assert (answer.status_code, len(answer.json()["errors"])) == (422, 20)


def test_a_forged_page_token_is_no_server_error(client: TestClient, engine: JobEngine) -> None:
    here = f"/v1/jobs/{submit(client)}"
    answer_next(engine)
    forged = [
        ("/v1/jobs", (1.0, "\ud800")),
        ("/v1/jobs", (1.0, "\0")),
        ("/v1/jobs", (float("nan"), "x")),
        (f"{here}/plans", (2**70,)),
    ]
    for path, position in forged:
        answer = client.get(path, params={"page_token": encode_token(*position)})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:meshwright:problem:bad_page_token")


def test_a_server_whose_threads_all_wait_for_the_database_is_alive(
    client: TestClient, database: Database
) -> None:
    answered: list[int] = []
    posts = [  # more than the server has threads
        threading.Thread(target=lambda: answered.append(client.post("/v1/jobs", json=BODY).status_code))
        for _ in range(45)
    ]
    with database.write():  # nobody else may write
        for post in posts:
            post.start()
        until_idle()
        with quiet_seconds() as clock:
            assert client.get("/livez").status_code == 200
        assert clock.took_s < 2.0
    for post in posts:
        post.join()
    # one that waited for longer than writers wait is told to come again
    assert len(answered) == 45
    assert set(answered) <= {202, 503}


def until_idle() -> None:
    """Until this process only waits: on a busy machine its threads take long to come as far."""
    used_s = -1.0
    while time.process_time() - used_s > 0.02:
        used_s = time.process_time()
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("method", "path", "max_bytes"),
    [
        ("POST", "/v1/jobs", 2**18),
        ("POST", "/v1/predictions", 2**18),
        ("POST", "/v1/plans/none/measurements", 2**18),
        ("POST", "/v1/profiles", 2**23),
        ("PUT", "/v1/clusters/own", 2**23),
        ("PUT", "/v1/models/own", 2**23),
    ],
)
def test_a_body_over_the_limit_of_its_address_is_a_413_whether_or_not_it_says_so(
    client: TestClient, method: str, path: str, max_bytes: int
) -> None:
    headers = {"content-type": "application/json"}
    blank = b" " * 2**17
    fits = b"{" + b" " * (max_bytes - 2) + b"}"  # 8 MiB of blanks are refused for another reason
    assert client.request(method, path, content=fits, headers=headers).status_code != 413
    said = client.request(method, path, content=fits + b" ", headers=headers)
    pieces = (blank for _ in range(max_bytes // len(blank) + 1))
    chunked = client.request(method, path, content=pieces, headers=headers)
    assert [said.status_code, chunked.status_code] in ([413, 413], [413, 422])
    assert said.headers["content-type"] == PROBLEM_TYPE
    assert f"{max_bytes} bytes" in said.json()["detail"]
    assert "keep a large cluster" in said.json()["detail"] or max_bytes > 2**18


def take_all(turns: Turns) -> None:
    turns._size, turns._max_wait_s = 0, 0.05


def test_a_large_body_that_gets_no_turn_is_told_when_to_come_back(client: TestClient) -> None:
    large = json.dumps({**BODY, "title": "x" * deps.SMALL_BYTES}).encode()
    headers = {"content-type": "application/json"}
    service = client.app.state.service  # type: ignore[attr-defined]
    take_all(service.problems)
    busy = client.post("/v1/jobs", content=large, headers=headers)
    assert (busy.status_code, busy.json()["type"]) == (503, "urn:meshwright:problem:busy")
    assert int(busy.headers["retry-after"]) >= 1
    assert client.post("/v1/jobs", json=BODY).status_code == 202  # a small one waits for nobody
    service.problems._size = deps.MAX_PROBLEMS
    assert client.post("/v1/jobs", content=large, headers=headers).status_code == 422
    assert not service.problems._held  # a refused one gives its turn back


@pytest.mark.parametrize("path", ["/v1/jobs/unknown:replan", "/v1/plans/unknown/measurements"])
def test_a_body_that_arrives_or_is_refused_takes_no_turn_to_compute(client: TestClient, path: str) -> None:
    turns = client.app.state.service.computing  # type: ignore[attr-defined]
    held: list[int] = []

    def slowly() -> Iterator[bytes]:
        yield b"{"
        held.append(turns._held.total())
        yield b" "

    headers = {"content-type": "application/json"}
    assert client.post(path, content=slowly(), headers=headers).status_code == 422
    assert held == [0]
    take_all(turns)
    assert client.post(path, content=b"[]", headers=headers).status_code == 422


COMPUTED = {  # what computes for seconds: its body, where it has one
    "/v1/jobs/{}:replan": {"num_nodes": 2, "steps_done": 100, "steps_total": 1000},
    "/v1/plans/{}/measurements": {"step_time_s": 5.0},
    "/v1/jobs/{}/report": None,
    "/v1/plans/{}/report": None,
    "/v1/plans/{}/timeline": None,
    "/v1/predictions": {"plan": "{}"},
}


@pytest.mark.parametrize("path", COMPUTED)
def test_an_unknown_id_is_not_found_while_all_turns_to_compute_are_taken(
    client: TestClient, engine: JobEngine, path: str
) -> None:
    known = {"jobs": submit(client)}.get(path.split("/")[2], "aaa")
    answer_next(engine)
    take_all(client.app.state.service.computing)  # type: ignore[attr-defined]
    body = COMPUTED[path]

    def asked(name: str) -> int:
        method = "GET" if body is None else "POST"
        filled = {"plan": name} if body == {"plan": "{}"} else body
        return client.request(method, path.format(name), json=filled).status_code

    assert (asked("unknown"), asked(known)) == (404, 503)


def test_those_who_follow_jobs_are_so_many_at_most_and_keep_nobody_else_out(client: TestClient) -> None:
    turns, job = client.app.state.service.following, submit(client)  # type: ignore[attr-defined]
    assert 0 < turns._share < turns._size <= deps.MAX_FOLLOWING
    take_all(turns)
    for path in (f"/v1/jobs/{job}/events", f"/v1/jobs/{job}?wait=1"):
        busy = client.get(path)
        assert (busy.status_code, busy.json()["type"]) == (503, "urn:meshwright:problem:busy")
        assert int(busy.headers["retry-after"]) >= 1
    assert client.get(f"/v1/jobs/{job}").status_code == 200
    turns._size = 1
    assert client.get(f"/v1/jobs/{job}?wait=0.01").status_code == 200
    client.delete(f"/v1/jobs/{job}")
    assert not turns._held


def test_text_that_a_foreign_page_could_post_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/jobs", content=json.dumps(BODY), headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["title"]) == (415, "Unsupported Media Type")


def test_a_foreign_host_name_is_refused(client: TestClient) -> None:
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""):
        answer = client.get("/v1/jobs", headers={"Host": host})
        assert (answer.status_code, answer.headers["content-type"]) == (421, PROBLEM_TYPE)
    for host in ("127.0.0.1:8420", "LOCALHOST", "[::1]:8420"):
        assert client.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("insecure", [False, True])
def test_a_name_that_a_foreign_page_made_resolve_to_a_server_without_keys_is_refused(
    database: Database, insecure: bool
) -> None:
    # An attacker chooses what evil.example resolves to, but not what the browser puts into Host.
    settings = Settings(
        database_url=str(database.url), insecure=insecure, allowed_hosts="Plans.example, gpu-7.lab"
    )
    refused = ("evil.example:8420", "plans.example.evil.example", "10.0.0.5.evil.example", "gpu-7", "")
    accepted = ("plans.example:8420", "GPU-7.lab", "10.0.0.5:8420", "[fd00::5]:8420", "localhost")
    with TestClient(create_app(settings)) as client:
        found = {
            host: client.get("/v1/jobs", headers={"Host": host}).status_code
            for host in (*refused, *accepted)
        }
    assert found == dict.fromkeys(refused, 421) | dict.fromkeys(accepted, 200)
