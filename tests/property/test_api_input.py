"""Whatever JSON a client sends, the API answers with a job or with a problem, never with a failure."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.service.api.app import create_app
from meshwright.service.settings import Settings
from tests.draws import draws
from tests.served.migrated import migrated

VALID: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 4},
    "workload": {
        "global_batch_size": 256,
        "seq_length": 8192,
        "precision": "bf16",
        "optimizer": "adamw",
        "framework_options": {},
    },
    "launcher": "megatron-lm",
    "search": {
        "top_k": 3,
        "certify": "none",
        "time_limit_s": 5,
        "seed": 0,
        "max_out_of_memory_probability": 0.01,
        "pin": {"tensor_parallel_size": 8},
        "forbid": {"zero_stage": [3]},
        "bounds": {"micro_batch_size": [1, 4]},
    },
}
CONFIGURATION: dict[str, Any] = {
    "tensor_parallel_size": 4,
    "data_parallel_size": 8,
    "num_microbatches": 32,
    "stage_layers": [32],
}
_PROBLEM = {name: VALID[name] for name in ("model", "workload", "launcher", "search")}
OTHER_KINDS: dict[str, dict[str, Any]] = {
    "/v1/jobs": {
        "kind": "post_training", "model": "qwen3-8b", "launcher": "nemo-rl", "labels": {"team": "rl"},
        "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]},
        "algorithm": {"name": "grpo", "prompts": 128, "responses": 16, "updates": 2},
        "lengths": {"prompt": 200, "mean": 2500, "max": 8192}, "rollout": {"tp": 2, "nodes": 1},
        "training": {"group": "h100-sxm-80gb", "pin": {"tensor_parallel_size": 2}},
        "asynchrony": {"max_steps_off": 1}, "search": {"constraints": ["steps_off <= 1"], "top_k": 2},
    },
    "/v1/fleets": {
        "name": "two", "cluster": VALID["cluster"],
        "jobs": [
            {"name": "chat", "problem": _PROBLEM, "steps": 100, "nodes": 1, "due_hours": 0.5},
            {"name": "long", "problem": _PROBLEM, "steps": 50, "after": ["chat"]},
        ],
    },
}  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["", "llama-3.1-70b", "\0", "\ud800", "x" * 300, "1e999", "megatron-lm", "none"])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def places(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield at
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, key))


def with_change(base: dict[str, Any], place: tuple[str | int, ...], value: object) -> object:
    if not place:
        return value
    changed = copy.deepcopy(base)
    owner: Any = changed
    for part in place[:-1]:
        owner = owner[part]
    owner[place[-1]] = value
    return changed


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(Settings(database_url=migrated(tmp_path_factory.mktemp("api") / "meshwright.db")))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def post(client: TestClient, path: str, body: object) -> tuple[int, str]:
    text = json.dumps(body)  # NaN, Infinity and lone surrogates as a careless client writes them
    answer = client.post(path, content=text, headers={"content-type": "application/json"})
    return answer.status_code, answer.headers["content-type"]


@settings(max_examples=draws(25, of_more=75), deadline=None)
@given(place=st.sampled_from(list(places(VALID))), value=ANYTHING)
def test_a_job_or_a_problem(client: TestClient, place: tuple[str | int, ...], value: object) -> None:
    status, kind = post(client, "/v1/jobs", with_change(VALID, place, value))
    assert (status, kind) in {(202, "application/json"), (422, "application/problem+json")}


@settings(max_examples=draws(16, of_more=50), deadline=None)
@given(place=st.sampled_from(list(places(CONFIGURATION))), value=ANYTHING)
def test_a_prediction_or_a_problem(client: TestClient, place: tuple[str | int, ...], value: object) -> None:
    body = {"problem": VALID, "configuration": with_change(CONFIGURATION, place, value)}
    status, kind = post(client, "/v1/predictions", body)
    assert (status, kind) in {(200, "application/json"), (422, "application/problem+json")}


OF_OTHER_KINDS = [(path, place) for path, body in OTHER_KINDS.items() for place in places(body)]


@settings(max_examples=draws(16, of_more=50), deadline=None)
@given(where=st.sampled_from(OF_OTHER_KINDS), value=ANYTHING)
def test_a_job_of_another_kind_or_a_problem(
    client: TestClient, where: tuple[str, tuple[str | int, ...]], value: object
) -> None:
    path, place = where
    status, kind = post(client, path, with_change(OTHER_KINDS[path], place, value))
    assert (status, kind) in {(202, "application/json"), (422, "application/problem+json")}


@pytest.mark.parametrize("value", ["", [], 0, False], ids=repr)
def test_what_is_empty_is_not_taken_for_what_is_left_out(client: TestClient, value: object) -> None:
    """A part of another shape is refused with its place, whatever counts as false in Python."""
    for path, place in OF_OTHER_KINDS:
        found: Any = OTHER_KINDS[path]
        for part in place:
            found = found[part]
        if isinstance(found, dict) or (isinstance(found, list) and value != []):
            assert post(client, path, with_change(OTHER_KINDS[path], place, value))[0] == 422, (path, place)
