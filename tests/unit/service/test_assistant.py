"""The planner as tools of an assistant, under the official SDK's client."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters

from meshwright.service import assistant
from meshwright.service.assistant import TOOLS, answered
from meshwright.service.cli import mcp
from meshwright.service.cli.mcp import Limits, server_of

QUESTION = {
    "model": "smollm-135m", "gpus": "1xH100", "launcher": "trl",
    "workload": {"global_batch_size": 8, "seq_length": 2048},
}  # fmt: skip
TRAIN = """torchrun --nproc-per-node 8 pretrain_gpt.py \\
    --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 \\
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear \\
    --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --tokenizer-type NullTokenizer \\
    --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --tensor-model-parallel-size 8
"""
OWN = {"micro_batch_size": 1}
LARGE = {  # some seconds of search
    "model": "deepseek-v3", "gpus": "2048xH100", "launcher": "megatron-lm",
    "workload": {"global_batch_size": 15360, "seq_length": 4096},
}  # fmt: skip
LIMITS = Limits(cpu_seconds=60, memory_gib=4.0)
CALLS: dict[str, dict[str, Any]] = {
    "fits": {"model": "smollm-135m", "gpus": "1xRTX-4090", "launcher": "trl"},
    "plan": QUESTION,
    "predict": {**QUESTION, "configuration": OWN},
    "explain": {**QUESTION, "configuration": OWN},
    "compare": {**QUESTION, "first": OWN, "second": {"micro_batch_size": 2}},
    "catalog": {"of": "gpus", "like": "h100"},
}


def asked(of: Any, talk: Callable[[Client], Awaitable[Any]]) -> Any:  # noqa: ANN401 - of the SDK
    async def run() -> Any:  # noqa: ANN401 - the same
        async with Client(of) as client:
            return await talk(client)

    return anyio.run(run)


@pytest.mark.parametrize("name", CALLS)
def test_every_tool_answers_in_words_and_as_a_document(name: str) -> None:
    found = answered(name, CALLS[name])
    assert not found["is_error"], found["text"]
    assert found["text"].strip()
    assert json.loads(json.dumps(found["document"], allow_nan=False))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("plan", [], "/: list is not an object"),
        ("plan", {**QUESTION, "gpus": ["1xH100"]}, "/gpus: list is not text"),
        ("fits", {**CALLS["fits"], "model": 7}, "/model: 7 is not text"),
        ("catalog", {"of": 7}, "/of: 7 is not text"),
        ("plan", {"gpus": "1xH100"}, "/model: is required"),
        ("plan", {**QUESTION, "colour": 1}, "/colour: is no argument. Allowed: cluster, gpus"),
        ("plan", {**QUESTION, "gpus": "1xH1000"}, "H100"),
        ("plan", {**QUESTION, "workload": {"seq_length": "x"}}, "seq_length"),
        ("fits", {**CALLS["fits"], "lora_rank": "x"}, "/lora_rank: 'x' is not a whole number"),
        ("fits", {**CALLS["fits"], "tokens": -3}, "/tokens: -3 is too small. Allowed: 1 or more"),
        ("predict", {**QUESTION, "configuration": [1]}, "/configuration: list is not an object"),
        ("catalog", {"of": "colours"}, "Allowed: clusters, gpus, launchers, models"),
        ("explain", {"gpus": "1xH100"}, "launch_file"),
        ("explain", {"gpus": "1xH100", "launch_file": "/no/such/train.sh"}, "train.sh"),
    ],
)
def test_wrong_arguments_are_answered_with_what_is_allowed(name: str, arguments: Any, words: str) -> None:  # noqa: ANN401
    found = answered(name, arguments)
    assert found["is_error"]
    assert words in found["text"]


def test_a_script_is_fixed_as_a_diff_and_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(TRAIN)
    found = answered("fix", {"launch_file": str(script), "gpus": "8xH100"})
    assert not found["is_error"], found["text"]
    assert "-    --tensor-model-parallel-size 8" in found["document"]["diff"]
    assert found["document"]["diff"] in found["text"]
    assert script.read_text() == TRAIN


def test_schemas_are_the_request_table_s() -> None:
    async def talk(client: Client) -> Any:  # noqa: ANN401 - of the SDK
        return {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}

    schemas = asked(server_of(LIMITS), talk)
    assert set(schemas) == {*CALLS, "fix"}  # no job without a service
    assert {"model", "cluster", "workload", "search", "launcher", "gpus"} <= schemas["plan"][
        "properties"
    ].keys()
    assert "seq_length" in schemas["plan"]["$defs"]["WorkloadRequest"]["properties"]
    assert "job" in asked(server_of(LIMITS, "http://127.0.0.1:1"), talk)


def test_a_question_that_is_too_large_ends_its_own_process_alone() -> None:
    async def talk(client: Client) -> Any:  # noqa: ANN401 - of the SDK
        stopped = await client.call_tool("plan", LARGE)
        return stopped, await client.call_tool("catalog", CALLS["catalog"])

    stopped, after = asked(server_of(replace(LIMITS, cpu_seconds=1)), talk)
    assert stopped.is_error
    assert "stopped after 1 CPU seconds" in stopped.content[0].text
    assert not after.is_error


def test_a_call_that_needs_more_memory_ends_and_says_so() -> None:
    found = asked(
        server_of(replace(LIMITS, memory_gib=1 / 16)), lambda client: client.call_tool("plan", QUESTION)
    )
    assert found.is_error
    assert "stopped at 0.0625 GiB of memory" in found.content[0].text


def test_a_time_limit_is_of_the_whole_call_and_leaves_time_for_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used_s = time.process_time()
    monkeypatch.setattr("resource.getrlimit", lambda _kind: (1.25 * (used_s + 5.0), 0))
    assert assistant._time().left_s == pytest.approx(5.0, abs=0.5)
    found = answered("plan", {**QUESTION, "search": {"time_limit_s": 0.01}})
    assert "The time limit came first: " in found["text"]


def test_the_command_serves_the_sdk_s_client_over_stdio() -> None:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "meshwright", "mcp"], env=dict(os.environ)
    )

    async def talk(client: Client) -> Any:  # noqa: ANN401 - of the SDK
        with pytest.raises(MCPError, match=r"there is no tool 'dance'\. Known: fits, plan"):
            await client.call_tool("dance", {})
        return await client.call_tool("catalog", CALLS["catalog"])

    found = asked(command, talk)
    assert "h100-sxm-80gb" in found.content[0].text
    assert found.structured_content["of"] == "gpus"


def test_garbage_is_a_protocol_error_and_the_server_lives() -> None:
    ask = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    start = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        },
    }  # fmt: skip
    lines = ["garbage", '{"jsonrpc": "2.0", "id": ', "[]", json.dumps(start), "\x00\x01", json.dumps(ask)]
    server = subprocess.Popen(
        [sys.executable, "-m", "meshwright", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdin
        assert server.stdout
        server.stdin.write("\n".join([*lines, ""]))
        server.stdin.flush()
        answers = [
            json.loads(server.stdout.readline()) for _ in lines
        ]  # what is left at its end is dropped
        server.stdin.close()
    assert server.returncode == 0
    assert sum(one.get("error", {}).get("code") == -32700 for one in answers) == 4
    assert [one["id"] for one in answers if "result" in one] == [1, 7]


def test_plans_of_a_service_are_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of = list[tuple[str, str]]()

    class Service:
        def __init__(self, _url: str) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_fault: object) -> None: ...

        def call(self, method: str, path: str, **_more: object) -> dict[str, Any]:
            asked_of.append((method, path))
            state = "succeeded" if len(asked_of) > 1 else "queued"
            return {"id": "a1", "state": state, "plans": [], "request": QUESTION}

    monkeypatch.setenv(assistant.SERVER, "http://127.0.0.1:1")
    monkeypatch.setattr("meshwright.service.cli.client.ServiceClient", Service)
    found = answered("plan", QUESTION)
    assert not found["is_error"], found["text"]
    assert asked_of == [("POST", "/v1/jobs"), ("GET", "/v1/jobs/a1"), ("GET", "/v1/jobs/a1/plans")]
    assert answered("job", {"job": "a1"})["document"]["job"]["id"] == "a1"


@contextmanager
def answering(body: bytes | None) -> Iterator[str]:
    """The address of a service that answers each request with these bytes; None: with nothing."""

    def answer(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                line, _ = listener.accept()
                lines.append(line)
                line.recv(2**16)
                if body is not None:
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                    line.sendall(head.encode() + body)
                    line.close()

    lines = list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=[listener], daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for line in lines:
        line.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "state is missing"),
    ],
)
def test_a_service_that_answers_nonsense_is_named(
    monkeypatch: pytest.MonkeyPatch, body: bytes, words: str
) -> None:
    with answering(body) as url:
        monkeypatch.setenv(assistant.SERVER, url)
        found = answered("job", {"job": "a1"})
    assert found["is_error"]
    assert "--url" in found["text"]
    assert words in found["text"]


def test_a_call_ends_though_its_service_is_silent_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp, "_PATIENCE_S", 5.0)

    async def talk(client: Client) -> Any:  # noqa: ANN401 - of the SDK
        silent = await client.call_tool("job", {"job": "a1"})
        monkeypatch.setattr(mcp, "_PATIENCE_S", 600.0)
        large = await client.call_tool("catalog", {"of": "gpus", "like": "x" * 2**20})
        return silent, large, await client.call_tool("catalog", CALLS["catalog"])

    with answering(None) as url:
        silent, large, after = asked(server_of(LIMITS, url), talk)
    assert "job did not end within 5 s" in silent.content[0].text
    assert "Allowed: up to 1,048,576" in large.content[0].text
    assert not after.is_error


def test_every_tool_says_what_it_is_for() -> None:
    assert all(tool.about.endswith(".") and tool.schema()["type"] == "object" for tool in TOOLS.values())
