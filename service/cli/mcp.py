"""``meshwright mcp``: the planner as tools of an assistant, over the Model Context Protocol on stdio."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

if TYPE_CHECKING:  # help loads no protocol
    from mcp.server.lowlevel import Server

_HINT = "pip install 'meshwright[mcp]'"
_PATIENCE_S = 58.0  # with a service: clients of the protocol give up after a minute
_SMALLER = "pin sizes, or set search.time_limit_s"
_WALL_PER_CPU = 10.0  # seconds for each CPU second of a call that waits: for a slow disk, or a busy machine


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one call may take."""

    cpu_seconds: int
    memory_gib: float

    @property
    def words(self) -> tuple[str, str]:
        """Return them for the process that answers."""
        return str(self.cpu_seconds), str(round(self.memory_gib * 2**30))


def mcp(
    *,
    server: Annotated[
        str | None,
        typer.Option(help="Address of a service that runs plans as jobs, with the key in MESHWRIGHT_KEY."),
    ] = None,
    cpu_seconds: Annotated[int, typer.Option(min=1, help="CPU seconds that one call may take.")] = 120,
    memory_gib: Annotated[float, typer.Option(min=0.5, help="Memory that one call may take, in GiB.")] = 4,
) -> None:
    """Serve the planner to an assistant over the Model Context Protocol, on stdin and stdout.

    Its tools: fits, plan, predict, explain, fix, compare, catalog, and job with --server. Name the command
    meshwright with the argument mcp in your assistant's configuration.
    """
    serve_stdio(Limits(cpu_seconds=cpu_seconds, memory_gib=memory_gib), server)


def serve_stdio(limits: Limits, url: str | None) -> None:
    """Serve the client on stdin and stdout until it leaves.

    Raises:
        InvalidProblemError: the SDK is not installed, or ``url`` is not the address of a service.
    """
    from meshwright.profiles.errors import InvalidProblemError  # noqa: PLC0415 - help loads no protocol

    try:
        import anyio  # noqa: PLC0415 - of the extra mcp
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 - the same
    except ModuleNotFoundError:
        raise InvalidProblemError.of("mcp", f"needs the official SDK: {_HINT}") from None

    async def serve() -> None:
        app = server_of(limits, url)
        async with stdio_server() as (incoming, outgoing):
            await app.run(_Lines(incoming, outgoing), outgoing, app.create_initialization_options())

    if url:
        from meshwright.service.cli.client import ServiceClient  # noqa: PLC0415 - of a service alone

        with ServiceClient(url):  # refuses what is no address
            pass
    anyio.run(serve)


def server_of(limits: Limits, url: str | None = None) -> Server[Any]:
    """Return the server, whose calls run in processes of their own; as many at a time as there are CPUs."""
    import anyio  # noqa: PLC0415 - of the extra mcp
    import mcp_types as types  # noqa: PLC0415 - of the extra mcp
    from mcp.server.lowlevel import Server  # noqa: PLC0415 - the same
    from mcp.shared.exceptions import MCPError  # noqa: PLC0415 - the same

    from meshwright.service.assistant import TOOLS  # noqa: PLC0415 - help loads no tools

    turns = anyio.CapacityLimiter(os.cpu_count() or 1)
    offered = {name: tool for name, tool in TOOLS.items() if url or not tool.needs_server}

    async def list_tools(_context: object, _params: object) -> types.ListToolsResult:
        tools = [
            types.Tool(name=tool.name, description=tool.about, input_schema=tool.schema())
            for tool in offered.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(_context: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in offered:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=f"there is no tool {params.name!r}. Known: {', '.join(offered)}",
            )
        async with turns:
            found = await _in_process(params.name, params.arguments or {}, limits, url)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=found["text"])],
            structured_content=found["document"],
            is_error=found["is_error"],
        )

    return Server("meshwright", on_list_tools=list_tools, on_call_tool=call_tool)


async def _in_process(name: str, arguments: Any, limits: Limits, url: str | None) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the answer of a call, from a process that ends with it."""
    import anyio  # noqa: PLC0415 - of the extra mcp

    from meshwright.service.assistant import MOST_BYTES, OUT_OF_MEMORY, SERVER  # noqa: PLC0415 - help loads no tools

    call = json.dumps({"name": name, "arguments": arguments}).encode()
    if len(call) > MOST_BYTES:
        return _failed(f"the arguments have {len(call):,} bytes. Allowed: up to {MOST_BYTES:,}")
    limit_s = min(_PATIENCE_S if url else math.inf, _WALL_PER_CPU * limits.cpu_seconds)
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}  # its buffers for each of many CPUs count as memory
    environment = {**one_thread, **os.environ, **({SERVER: url} if url else {})}
    with anyio.move_on_after(limit_s) as waiting:
        done = await anyio.run_process(
            [sys.executable, "-m", "meshwright.service.assistant", *limits.words],
            input=call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, env=environment,
        )  # fmt: skip
    if waiting.cancelled_caught:
        return _failed(f"{name} did not end within {limit_s:g} s, so it was stopped")
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        why = f"stopped after {limits.cpu_seconds} CPU seconds: {_SMALLER}"
    elif done.returncode in (OUT_OF_MEMORY, -signal.SIGABRT):
        why = f"stopped at {limits.memory_gib:g} GiB of memory: {_SMALLER}"
    else:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = f"{name} failed: {said[-1] if said else done.returncode}"
    return _failed(why)


def _failed(why: str) -> dict[str, Any]:
    return {"is_error": True, "text": why, "document": None}


class _Lines:
    """Messages of a client; lines that are none are answered with a parse error, and the next is read."""

    def __init__(self, incoming: Any, outgoing: Any) -> None:  # noqa: ANN401 - streams of the SDK
        self._incoming, self._outgoing = incoming, outgoing

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the stream's own
        return getattr(self._incoming, name)

    async def receive(self) -> Any:  # noqa: ANN401 - a message of the SDK
        while isinstance(message := await self._incoming.receive(), Exception):
            await self._refuse()
        return message

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - the same
        import anyio  # noqa: PLC0415 - of the extra mcp

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._incoming.__aenter__()
        return self

    async def __aexit__(self, *fault: object) -> Any:  # noqa: ANN401 - the same
        return await self._incoming.__aexit__(*fault)

    async def _refuse(self) -> None:
        import mcp_types as types  # noqa: PLC0415 - of the extra mcp
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - the same

        fault = types.ErrorData(code=types.PARSE_ERROR, message="Parse error: expected a JSON-RPC message")
        await self._outgoing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=None, error=fault)))
