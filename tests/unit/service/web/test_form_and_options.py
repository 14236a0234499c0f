"""The form asks what the command line asks, and loses nothing of what is typed."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.inline import is_counted
from meshwright.service.db.database import Database
from meshwright.service.requests.fields import FIELDS
from meshwright.service.web import questions
from meshwright.service.web.fields import FormField, Values, request_of
from tests.draws import draws
from tests.served.job_records import job_in

# What the command line takes that no field of the form states, and why.
WITHOUT_A_FIELD = {
    "cluster": "a file of an own cluster is kept on the page of clusters, and named",
    "cluster.groups": "GPU types are words of cluster.name",
    "cluster.nodes": "nodes of several types are words of cluster.name",
}
FIRST_VIEW = {field.name: field.default for field in questions.FIRST}


def stated(path: str) -> bool:
    """Whether a field states the path, or a part of it."""
    at = tuple(path.split("."))
    return any(field.at[: len(at)] == at for field in questions.QUESTION)


def test_the_form_states_every_field_that_an_option_states() -> None:
    options = {row.path for row in FIELDS if row.option}
    missing = {path for path in options if not stated(path)}
    assert missing <= set(WITHOUT_A_FIELD)
    assert {
        "workload.lora_rank",
        "workload.base_precision",
        "workload.frozen",
        "cluster.gpus_per_node",
    } <= options


def test_no_choice_is_shown_by_a_name_of_the_request() -> None:
    of_one_word = {"none", "all", "embedding", "projector", "norms"}
    names = {word for field in questions.QUESTION if field.kind == "checks" for _, word in field.choices}
    names |= {words for _, words in (*questions.ASKED["launcher"].choices,)}
    assert {name for name in names if re.search(r"[a-z]_[a-z]|pure|layerwise", name)} == set()
    assert {name for name in names if re.fullmatch(r"[a-z0-9-]+", name)} <= of_one_word | {
        "automatic",
        "torchtitan",
    }


def test_a_person_with_one_gpu_and_lora_fills_in_the_first_fields_alone(
    browser: TestClient, database: Database
) -> None:
    typed = {
        **FIRST_VIEW, "model": "qwen3-8b", "cluster": "A100 40GB", "num_gpus": "1", "lora_rank": "16",
        "base_precision": "nf4", "batch": "16", "seq_length": "2k", "optimizer": "adamw-8bit",
        "launcher": "trl",
    }  # fmt: skip
    answer = browser.post("/jobs", data=typed)
    assert answer.status_code == 303, answer.text
    job = job_in(database, answer.headers["location"].removeprefix("/jobs/"))
    assert job.title == "Qwen3 8B QLoRA on 1 × A100 40 GB"
    workload: dict[str, Any] = dict(job.request["workload"])
    assert (workload["lora_rank"], workload["seq_length"], workload["optimizer"]) == (
        16,
        2048,
        "adamw-8bit",
    )


@pytest.mark.parametrize(
    ("typed", "title"),
    [
        ({"cluster": "a100-40gb", "num_gpus": "4"}, "4 × A100 40 GB"),
        ({"cluster": "h100", "num_nodes": "2", "gpus_per_node": "4"}, "8 × H100 80 GB"),
        ({"cluster": "dgx-h100", "num_gpus": "16"}, "16 × H100 80 GB"),
        ({"nodes": "2 x dgx-h100, 4 x dgx-a100"}, "16 × H100 80 GB + 32 × A100 80 GB"),
        ({"cluster": "h100", "num_nodes": "1:2"}, "up to 16 × H100 80 GB"),
        ({"cluster": "mychip", "num_gpus": "8"}, "8 × mychip"),
    ],
)
def test_the_form_states_gpus_and_nodes_of_any_kind(
    browser: TestClient, database: Database, typed: dict[str, str], title: str
) -> None:
    own = {"memory_gib": 80, "hbm_gb_per_s": 2000, "peak_tflops": {"bf16": 300}}
    assert browser.put("/v1/gpus/mychip", json=own).status_code == 201
    small = {"model": "llama-3.1-8b", "batch": "64", "seq_length": "4096"}
    answer = browser.post("/jobs", data={**FIRST_VIEW, **small, **typed})
    assert answer.status_code == 303, answer.text
    job = job_in(database, answer.headers["location"].removeprefix("/jobs/"))
    assert job.title == f"Llama 3.1 8B on {title}"


def test_a_size_that_is_fixed_twice_is_told_beside_its_field(browser: TestClient) -> None:
    answer = browser.post("/jobs", data={**FIRST_VIEW, "pin-tp": "8", "pin": "tp=4"})
    assert answer.status_code == 422
    assert "tensor_parallel_size is fixed twice" in answer.text


# --------------------------------------------------------------------------------------------------
# What is typed becomes a request, and that request is typed so.

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)
NUMBERS = st.integers(1, 10**6).map(str) | st.floats(0.001, 1e4).map(lambda x: f"{x:.4g}")
COUNTS = st.lists(st.integers(1, 4096), min_size=1, max_size=3).map(lambda some: ",".join(map(str, some)))
RANGES = st.tuples(st.integers(1, 64), st.integers(64, 128)).map(lambda ends: f"{ends[0]}:{ends[1]}")
PERCENTILES = st.just("p50=900, p100=8192") | st.just("p10=5, p90=4000, p100=32768")
TEXTS: Mapping[str, st.SearchStrategy[str]] = {
    "text": NAMES,
    "number": NUMBERS,
    "numbers": COUNTS | RANGES,
    "names": st.lists(NAMES, min_size=1, max_size=3, unique=True).map(", ".join),
    "named": PERCENTILES,
    "sized": PERCENTILES | st.integers(1, 9999).map(str),
    "json": st.dictionaries(NAMES, st.integers(0, 9), min_size=1, max_size=3).map(json.dumps),
    "lines": st.lists(NAMES, min_size=1, max_size=3).map("\n".join),
    "pins": st.just("offload=optimizer\nstage_layers=4,3"),
    "bounds": st.just("mbs=1:4\ntp=2:8"),
    "values": st.just("mbs=3,5\ntp=8"),
    "facts": st.just("gradient_dtype=bf16\nmoe_permute_fusion=true\nfp32_ends=1"),
    "labels": st.just("team=nlp\nrun=7"),
    "check": st.just("yes"),
}


@st.composite
def forms(draw: st.DrawFn) -> Values:
    """What a browser may send: a list always has a choice, the others may be empty."""
    found: dict[str, Sequence[str]] = {}
    for field in questions.QUESTION:
        words = [word for word, _ in field.choices]
        if field.kind in ("choice", "added"):
            found[field.name] = [draw(st.sampled_from(words))]
        elif field.kind == "checks":
            chosen = draw(st.sets(st.sampled_from(words), max_size=3))
            found[field.name] = [word for word in words if word in chosen]
        elif draw(st.booleans()):
            found[field.name] = [draw(TEXTS[field.kind])]
    if "nodes" in found:
        found["nodes"] = [draw(st.sampled_from(["2xdgx-h100,4xdgx-a100", "h100:8, a100:16"]))]
    return found


def value_at(request: object, at: Sequence[str]) -> object:
    for name in at:
        request = request.get(name) if isinstance(request, Mapping) else None
    return request


def several(value: Any) -> bool:  # noqa: ANN401 - any JSON
    return "," in value or is_counted(value)


def in_lines(values: Mapping[str, Any]) -> str:
    return "\n".join(
        f"{name}={','.join(map(str, one)) if isinstance(one, list) else one}"
        for name, one in values.items()
    )


def numbers(value: Any) -> str:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return f"{value['min']}:{value['max']}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


APART = {field.at[-1] for field in questions.PINS}
# What a person types for the value of a field, by its name or its kind; nothing: another field states it.
TYPED: Mapping[str, Callable[[Any], str]] = {
    "cluster": lambda value: "" if several(value) else value,
    "nodes": lambda value: value if several(value) else "",
    "config": lambda value: "" if value.keys() == {"name"} else json.dumps(value),
    "pins": lambda value: in_lines({name: one for name, one in value.items() if name not in APART}),
    "bounds": lambda value: "\n".join(f"{name}={low}:{high}" for name, (low, high) in value.items()),
    "json": json.dumps,
    "lines": "\n".join,
    "names": ", ".join,
    "numbers": numbers,
    "named": in_lines,
    "values": in_lines,
    "facts": lambda value: in_lines({name: str(one).lower() for name, one in value.items()}),
    "labels": in_lines,
    "sized": lambda value: in_lines(value) if isinstance(value, dict) else str(value),
}


def typed_of(field: FormField, value: Any) -> list[str]:  # noqa: ANN401 - any JSON
    """What a person types, or chooses, for a value."""
    if field.kind in ("checks", "added"):
        words = [word for word, _ in field.choices]
        return [word for word in value if word in words]
    plain = str(value).lower() if isinstance(value, bool) else str(value)
    typed = TYPED.get(field.name) or TYPED.get(field.kind, lambda _: plain)
    return [typed(value)]


@settings(max_examples=draws(40), deadline=None)
@given(forms())
def test_what_is_typed_is_typed_again_from_its_request(values: Values) -> None:
    request = request_of(questions.QUESTION, values)
    again = {
        field.name: typed_of(field, found)
        for field in questions.QUESTION
        if (found := value_at(request, field.at)) is not None
    }
    assert request_of(questions.QUESTION, again) == request
