"""The planner as tools of an assistant: what each takes, and what it answers.

The schemas come from the request table. Each call runs in a process of its own
(``python -m meshwright.service.assistant``), whose CPU time and memory are limited: a question that is too
large ends that process alone. ``meshwright mcp`` serves these tools over the Model Context Protocol.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.profiles.errors import FieldError, InvalidProblemError, PlannerError
from meshwright.profiles.reading import shown

if TYPE_CHECKING:  # one call alone loads the solver
    from meshwright.solver.clock import Watch

Json = dict[str, Any]
Result = tuple[str, Json]  # the text for people, and the document

OUT_OF_MEMORY = 3  # exit code of a call that needed more
SERVER = "MESHWRIGHT_URL"  # the service that `plan` and `job` ask, set by `meshwright mcp --server`
_WAIT_S = 45.0  # for a job of a service; clients of the protocol give up after a minute
MOST_BYTES = 2**20  # of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: its name, what it is for, what it takes."""

    name: str
    about: str
    answer: Callable[[Json], Result]
    schema: Callable[[], Json]
    needs_server: bool = False


# --------------------------------------------------------------------------------------------------
# What tools take.

_GPUS: Json = {"type": "string", "description": "GPUs by type instead of cluster: 1xRTX-4090, 64xH100."}
_CONFIGURATION: Json = {
    "type": "object",
    "description": "Parallel sizes by name, such as tensor_parallel_size, pipeline_parallel_size, "
    "micro_batch_size, zero_stage. The other GPUs are data parallel.",
}


@cache
def _request_schema() -> Json:
    from meshwright.service.requests.schema import ProblemRequest  # noqa: PLC0415 - listing tools loads it once

    return ProblemRequest.model_json_schema()


def _question(**more: Json) -> Json:
    """Return the schema of a request, with ``gpus`` in place of a cluster, and more arguments."""
    whole = _request_schema()
    properties = {**whole["properties"], "gpus": _GPUS, **more}
    required = ["model", *(name for name in more if name != "launch_file")]
    return {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False,
        "$defs": whole.get("$defs", {}),
    }  # fmt: skip


def _explained() -> Json:
    file = {
        "type": "string",
        "description": "Path of a launch file on this machine (script, YAML, JSON or TOML), in place of "
        "model and configuration.",
    }
    return {**_question(configuration=_CONFIGURATION, launch_file=file), "required": []}


def _fixed() -> Json:
    whole = _question()
    known = {name: whole["properties"][name] for name in ("cluster", "gpus", "launcher")}
    file = {"type": "string", "description": "Path of a launch script or configuration on this machine."}
    edits = {"type": "integer", "minimum": 1, "description": "Take the set with so many edits."}
    return {
        "type": "object", "properties": {"launch_file": file, **known, "edits": edits},
        "required": ["launch_file"], "additionalProperties": False, "$defs": whole["$defs"],
    }  # fmt: skip


def _fitting() -> Json:
    texts = {
        "model": "Catalog name, Hugging Face id, or path of a config.json.",
        "gpus": "GPUs by type: 1xRTX-4090, 8xH100; here: this machine's.",
        "launcher": "One launcher; any: all of them.",
        "optimizer": "Optimizer of full training.",
        "precision": "bf16, fp16, fp8.",
    }
    numbers = {
        "seq_length": "Tokens per sequence.",
        "lora_rank": "Rank of the adapters.",
        "tokens": "Tokens of the data set.",
    }
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()} | {
        name: {"type": "integer", "minimum": 1, "description": text} for name, text in numbers.items()
    }
    return {
        "type": "object", "properties": properties, "required": ["model", "gpus"],
        "additionalProperties": False,
    }  # fmt: skip


def _listing() -> Json:
    of = {"type": "string", "enum": sorted(_CATALOGS), "description": "What to list."}
    like = {"type": "string", "description": "Names that contain this."}
    return {
        "type": "object", "properties": {"of": of, "like": like}, "required": ["of"],
        "additionalProperties": False,
    }  # fmt: skip


def _job_schema() -> Json:
    job = {"type": "string", "description": "Id of a job of the service."}
    return {
        "type": "object", "properties": {"job": job}, "required": ["job"], "additionalProperties": False,
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------
# What they answer.


def _asked(arguments: Json) -> Json:
    """Return a request with its model, and its cluster from ``gpus``, as the command line reads them."""
    from meshwright.service.cli.problem_options import request_of  # noqa: PLC0415 - one call alone loads it

    raw = {name: value for name, value in arguments.items() if name not in ("gpus", "configuration")}
    words = dict[str, Any]()
    if isinstance(raw.get("model"), str):
        words["model"] = raw.pop("model")
    if gpus := arguments.get("gpus"):
        words |= {"cluster": gpus} if gpus == "here" else {"gpus": gpus}
    parts: Json = request_of(None, words)
    return {**raw, **parts}


def _plan(arguments: Json) -> Result:
    if url := os.environ.get(SERVER):
        return _plan_by_service(url, _asked(arguments))
    from meshwright.service.library import plan, problem_of  # noqa: PLC0415 - one call alone loads it

    problem = problem_of(_asked(arguments))
    found = plan(problem, should_stop=_time(problem.options.time_limit_s).interrupted)
    return str(found), found.to_json()


_ANSWERING = 0.2  # of a call's CPU seconds: for its answer from what was found


def _time(limit_s: float = math.inf) -> Watch:
    """Return the clock of a whole call: its time limit, and what the limit of CPU seconds leaves of it."""
    from meshwright.solver.clock import Watch  # noqa: PLC0415 - one call alone loads it

    most_s, _ = resource.getrlimit(resource.RLIMIT_CPU)
    if most_s != resource.RLIM_INFINITY:
        limit_s = min(limit_s, max((1.0 - _ANSWERING) * most_s - time.process_time(), 0.0))
    return Watch(time_limit_s=limit_s)


def _predict(arguments: Json) -> Result:
    from meshwright.service.library import predict  # noqa: PLC0415 - the same

    found = predict(_asked(arguments), arguments["configuration"])
    return str(found), found.to_json()


def _explain(arguments: Json) -> Result:
    from meshwright.service.library import (  # noqa: PLC0415 - the same
        compared_with_best,
        explain,
        plan,
        problem_of,
        recommended,
    )
    from meshwright.service.requests.costs import costs_of  # noqa: PLC0415 - the same

    file = arguments.pop("launch_file", None)
    if file is None:
        if not {"model", "configuration"} <= arguments.keys():
            raise InvalidProblemError.of("/", "model and configuration, or launch_file, are required")
        problem = problem_of(_asked(arguments))
        found = explain(
            problem, arguments["configuration"], should_stop=_time(problem.options.time_limit_s).interrupted
        )
        return str(found), found.to_json()
    from meshwright.service.cli.launch_files import ConfigurationOptions, own_of  # noqa: PLC0415 - the same

    own = own_of(_asked(arguments), ConfigurationOptions(from_args=[Path(file)]))
    best = plan(recommended(own.question), should_stop=_time(own.problem.options.time_limit_s).interrupted)
    own_costs = None if own.planned is None else costs_of(own.problem, None)[0]
    found = compared_with_best(best, own.problem, own.configuration, own_costs)
    notes = [*own.notes, *(f"not read: {one}" for one in own.unread)]
    return "\n".join([str(found), *notes]), {**found.to_json(), "notes": list(own.notes)}


def _fix(arguments: Json) -> Result:
    from meshwright.service.cli.launch_files import source_of, variables_of  # noqa: PLC0415 - the same
    from meshwright.service.fixing.fixes import fixes_of  # noqa: PLC0415 - the same
    from meshwright.service.fixing.lines import fix_lines  # noqa: PLC0415 - the same
    from meshwright.service.requests.costs import costs_of  # noqa: PLC0415 - the same

    file, number = arguments.pop("launch_file"), arguments.pop("edits", None)
    found = fixes_of(
        source_of([Path(file)]), _asked(arguments), variables=variables_of(()), values={},
        costs=lambda problem: costs_of(problem, None)[0], should_stop=_time().interrupted,
    )  # fmt: skip
    chosen = found.recommended if number is None else found.of_number(number)
    diff = "" if chosen is None else found.diff(chosen, {})
    lines = fix_lines(found, chosen, _WIDTH)
    return "\n".join([*lines, diff]), {**found.to_json(), "diff": diff}


_WIDTH = 120  # of a line of text


def _compare(arguments: Json) -> Result:
    from meshwright.service.library import Result as Shown  # noqa: PLC0415 - the same
    from meshwright.service.library import predict  # noqa: PLC0415 - the same
    from meshwright.service.report.comparison import render_comparison  # noqa: PLC0415 - the same
    from meshwright.solver.explain.compare import ComparedConfiguration, compared  # noqa: PLC0415 - the same

    request = _asked({name: one for name, one in arguments.items() if name not in ("first", "second")})
    first, second = (predict(request, arguments[name]) for name in ("first", "second"))
    sides = [
        ComparedConfiguration(problem=one.problem, configuration=one.configuration)
        for one in (first, second)
    ]
    found, pair = compared(second.profile, *sides), (first.configuration, second.configuration)

    class Drawn(Shown):
        def render(self, width: int) -> Any:  # noqa: ANN401 - Rich's
            return render_comparison(found, ("first", "second"), pair, width=width)

    return str(Drawn()), asdict(found)


def _fits(arguments: Json) -> Result:
    from meshwright.service.methods import RANK, memory_words, time_words, what_fits, with_speeds  # noqa: PLC0415 - the same

    work = {name: arguments[name] for name in ("seq_length", "precision") if name in arguments}
    request = {**_asked({name: arguments[name] for name in ("model", "gpus")}), "workload": work}
    found = what_fits(
        request, launcher=arguments.get("launcher", "any"), optimizer=arguments.get("optimizer"),
        lora_rank=arguments.get("lora_rank", RANK),
    )  # fmt: skip
    rows = with_speeds(found)
    tokens = arguments.get("tokens", 10_000_000)
    lines = [
        f"{row.method.title} · {row.launched}: {row.fit.verdict}, {memory_words(row)} GiB, "
        f"micro-batch up to {row.micro_batch}, {row.fit.tokens_per_s:,.0f} tokens/s, "
        f"{time_words(row.seconds_for(tokens))}"
        for row in rows
        if row.fit.verdict != "no"
    ]
    short = ", ".join(f"{row.method.title} · {row.launcher}" for row in rows if row.fit.verdict == "no")
    text = [*lines[:_MOST_LINES], *([f"does not fit: {short}"] if short else [])]
    return "\n".join(text or ["nothing fits"]), {
        "tokens": tokens,
        "rows": [row.record(tokens) for row in rows],
    }


_MOST_LINES = 12


def _catalog(arguments: Json) -> Result:
    like = str(arguments.get("like", "")).lower()
    names = [name for name in _CATALOGS[arguments["of"]]() if like in name.lower()]
    return ", ".join(names) or "no such name", {"of": arguments["of"], "names": names}


def _names(function: str) -> Callable[[], list[str]]:
    def names() -> list[str]:
        from meshwright.profiles import capabilities, library  # noqa: PLC0415 - one call alone loads it

        of = capabilities if function == "launcher_names" else library
        return sorted(getattr(of, function)())

    return names


_CATALOGS = {
    "models": _names("model_names"), "clusters": _names("cluster_names"), "gpus": _names("gpu_names"),
    "launchers": _names("launcher_names"),
}  # fmt: skip


def _plan_by_service(url: str, request: Json) -> Result:
    from meshwright.service.cli.client import ServiceClient  # noqa: PLC0415 - it needs the extra service

    with ServiceClient(url) as client:
        job = client.call("POST", "/v1/jobs", json=request)
        return _job_of(client, job["id"])


def _job(arguments: Json) -> Result:
    from meshwright.service.cli.client import ServiceClient  # noqa: PLC0415 - the same

    with ServiceClient(os.environ[SERVER]) as client:
        return _job_of(client, arguments["job"])


def _job_of(client: Any, job_id: str) -> Result:  # noqa: ANN401 - loaded by the callers
    import time  # noqa: PLC0415 - of a service alone

    end = time.monotonic() + _WAIT_S
    while (job := client.call("GET", f"/v1/jobs/{job_id}"))["state"] in ("queued", "running"):
        if time.monotonic() > end:
            return f"job {job_id} is {job['state']}: ask the tool job for it", {"job": job}
        time.sleep(0.5)
    if job["state"] != "succeeded":
        return f"job {job_id} is {job['state']}", {"job": job}
    from meshwright.service.library import read_result  # noqa: PLC0415 - the same

    answer = client.call("GET", f"/v1/jobs/{job_id}/plans")
    try:
        text = str(read_result({**answer, "problem": job["request"]}))
    except PlannerError:
        text = f"{len(answer.get('plans', []))} plans"
    return f"job {job_id}\n{text}", {"job": job, "answer": answer}


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name="fits",
            about="Whether a model can be trained on some GPUs, by method (full, offload, LoRA, QLoRA) and "
            "launcher: yes, tight or no, largest micro-batch, tokens per second, hours. Takes seconds.",
            answer=_fits,
            schema=_fitting,
        ),
        Tool(
            name="plan",
            about="Search the fastest parallel configurations for a model, a cluster and a batch.",
            answer=_plan,
            schema=_question,
        ),
        Tool(
            name="predict",
            about="Price one configuration: step time with its interval, memory and its risk.",
            answer=_predict,
            schema=lambda: _question(configuration=_CONFIGURATION),
        ),
        Tool(
            name="explain",
            about="Compare a configuration, or a launch file on this machine, with the best plan, in "
            "seconds that add up.",
            answer=_explain,
            schema=_explained,
        ),
        Tool(
            name="fix",
            about="The smallest edits of a launch script on this machine that make a step shorter, as a "
            "diff. It changes no file.",
            answer=_fix,
            schema=_fixed,
        ),
        Tool(
            name="compare",
            about="What each difference between two configurations of one question gains.",
            answer=_compare,
            schema=lambda: _question(first=_CONFIGURATION, second=_CONFIGURATION),
        ),
        Tool(
            name="catalog",
            about="Names that the other tools know: models, clusters, GPU types or launchers.",
            answer=_catalog,
            schema=_listing,
        ),
        Tool(
            name="job",
            about="State and plans of a job of the service.",
            answer=_job,
            schema=_job_schema,
            needs_server=True,
        ),
    )
}


# --------------------------------------------------------------------------------------------------
# One call, in a process of its own.


def answered(name: str, arguments: object) -> Json:
    """Return the answer to a call: text and document, or the faults, each with a command or value to try.

    Never raises what a caller can mend.
    """
    try:
        tool = TOOLS[name]
        checked = _checked(tool, arguments)
        text, document = tool.answer(checked)
    except InvalidProblemError as fault:
        return {"is_error": True, "text": "\n".join(map(_fault_words, fault.errors)), "document": None}
    except (PlannerError, OSError) as fault:
        return {"is_error": True, "text": str(fault), "document": None}
    return {"is_error": False, "text": text, "document": document}


def _checked(tool: Tool, arguments: object) -> Json:
    """Return the arguments of a call, whose names are the schema's."""
    schema = tool.schema()
    if not isinstance(arguments, Mapping):
        raise InvalidProblemError.of("/", f"{shown(arguments)} is not an object")
    known = schema["properties"]
    for name in arguments.keys() - known.keys():
        raise InvalidProblemError.of(f"/{name}", "is no argument", allowed=", ".join(sorted(known)))
    for name in schema.get("required", ()):
        if name not in arguments:
            raise InvalidProblemError.of(f"/{name}", "is required")
    for name, value in arguments.items():
        words = known[name].get("enum")
        _require_type(name, value, known[name])
        if words and value not in words:
            raise InvalidProblemError.of(
                f"/{name}", f"{shown(value)} is not known", allowed=", ".join(words)
            )
    return dict(arguments)


_TYPES: Mapping[object, tuple[type, str]] = {
    "string": (str, "text"), "integer": (int, "a whole number"), "object": (Mapping, "an object"),
}  # fmt: skip


def _require_type(name: str, value: object, schema: Json) -> None:
    """Refuse a value of another type than its own schema states; parts of a request have a reader."""
    kind, words = _TYPES.get(str(schema.get("type")), (object, ""))
    least = schema.get("minimum")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidProblemError.of(f"/{name}", f"{shown(value)} is not {words}")
    if isinstance(value, int) and least is not None and value < least:
        raise InvalidProblemError.of(f"/{name}", f"{value} is too small", allowed=f"{least} or more")


def _fault_words(fault: FieldError) -> str:
    words = [f"{fault.pointer}: {fault.message}"]
    words += [f"Allowed: {fault.allowed}"] if fault.allowed else []
    words += [f"Nearest: {fault.nearest}"] if fault.nearest else []
    return ". ".join(words)


def main() -> None:
    """Read a call from stdin and write its answer to stdout, within so many CPU seconds and bytes."""
    seconds, num_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, num_bytes))
    call = json.loads(sys.stdin.read(MOST_BYTES))
    try:
        answer = answered(call["name"], call["arguments"])
    except (MemoryError, SystemError):  # of a C function that can't build even its MemoryError
        sys.exit(OUT_OF_MEMORY)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
