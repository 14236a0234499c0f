"""``make fuzz``: requests that mean the API no good, by schemathesis and by a corpus of our own.

A server of this checkout is started with a key; schemathesis (in an environment of its own) draws requests,
right and wrong ones, from the served OpenAPI document, and ``fuzz_pages`` sends others to the pages. Any
5xx, any undeclared status or content type and any answer that its schema does not allow is a failure.
``--quick``: the short form, for CI.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fuzz_pages import BAD, Pages
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.submission import Submission
from meshwright.service.jobs.sweeps import Sweeps
from meshwright.service.requests.jobs import read_job_request
from meshwright.service.requests.parse import parse_problem
from meshwright.workers.runner import Runner
from meshwright.workers.search import StoredSearch
from tests.processes.servers import serving
from tests.served.job_records import TINY_PROBLEM

ROOT = Path(__file__).parents[1]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES, QUICK_EXAMPLES = 390, 4  # drawn for each address
QUICK_EVERY = 50  # of the cases of pages one is sent
FOUND = 0.5  # of the names in paths are of something that is there
# Schemathesis's own limit of 10 s asks how busy the machine is: calibrations may take longer beside others.
ANSWERED_WITHIN_S = 300  # on any machine
# The stream of a job that waits says nothing and does not end: it is asked for alone, for a second.
STREAM = "/v1/jobs/{job_id}/events"
# Its coverage phase cannot make bodies of the problem schema ("Inconsistent results"); drawing can.
PHASES = tuple(
    [f"--request-timeout={within_s}", f"--phases={phases}", *(f"--{which}-path={one}" for one in paths)]
    for within_s, phases, which, paths in (
        (ANSWERED_WITHIN_S, "fuzzing", "exclude", (STREAM,)),
        (ANSWERED_WITHIN_S, "coverage", "exclude", (STREAM, "/v1/jobs", "/v1/predictions")),
        (1, "fuzzing,coverage", "include", (STREAM,)),
    )
)
_DEEP = 100_000
TEXTS = (
    "NaN", "-Infinity", "1e999", "-1e999", "true", "null", "[]", "{}", '""', '"8192"', '"\\u0000"',
    '"\\ud800"',
    "0", "-1", "0.5", "1e308", "1e-320", str(2**31), str(2**63), str(2**70), "-" + "9" * 400, "9" * 5000,
    '"' + "x" * 70_000 + '"', '"../../etc/passwd"', '"%00"', '"\'; DROP TABLE jobs; --"',
    '{"a": {"b": {"c": 1}}}',
    "[" * 200 + "]" * 200, '{"name": "\\uffff"}', '[1, "two", null]',
)  # fmt: skip
WHOLE = (
    b"", b"[]", b"null", b"{", b"\xff\xfe\x00", b"{}" * 2, b'{"a": 1, "a": 2}', b"[" * _DEEP + b"]" * _DEEP,
    b'{"a":' * _DEEP + b"1" + b"}" * _DEEP, b'"\\ud800"', b" " * (9 * 2**20), "\ufeff{}".encode(),
    b'{"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100"}, '
    b'"workload": {"global_batch_size": 8}, "search": {"constraints": ["' + b"(" * 5000 + b'"]}}',
)  # fmt: skip
BODY = """{{"model": {model}, "cluster": {cluster}, "workload": {{"global_batch_size": {batch},
 "seq_length": {length}}}, "launcher": {launcher}, "search": {search}}}"""
RIGHT = {
    "model": '{"name": "llama-3.1-8b"}', "cluster": '{"name": "dgx-h100", "num_nodes": 4}', "batch": "256",
    "length": "8192", "launcher": '"none"', "search": '{"top_k": 3}',
}  # fmt: skip


def hostile(url: str, headers: dict[str, str]) -> Counter[str]:
    """Our own corpus; how many answers of each kind, ``5xx`` and ``accepted`` among them."""
    document = httpx.get(f"{url}/openapi.json", timeout=ANSWERED_WITHIN_S).json()
    found: Counter[str] = Counter()
    with httpx.Client(base_url=url, headers=headers, timeout=ANSWERED_WITHIN_S) as client:
        for field, text in product(RIGHT, TEXTS):
            body = BODY.format(**{**RIGHT, field: text})
            for path, sent in (
                ("/v1/jobs", body),
                ("/v1/predictions", f'{{"problem": {body}, "configuration": {text}}}'),
            ):
                found[_kind(document, "post", path, _send(client, "POST", path, sent.encode()))] += 1
        for path, methods in document["paths"].items():
            for method in methods.keys() & {"post", "put"}:
                for whole in WHOLE:
                    address = re.sub(r"\{\w+\}", "none", path)
                    found[_kind(document, method, path, _send(client, method, address, whole))] += 1
    return found


def _send(client: httpx.Client, method: str, path: str, body: bytes) -> httpx.Response:
    return client.request(method, path, content=body, headers={"Content-Type": "application/json"})


def _kind(document: dict[str, Any], method: str, path: str, answer: httpx.Response) -> str:
    """What an answer is; the bad kinds are told."""
    declared = document["paths"][path][method]["responses"]
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        print(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return "5xx"
    if str(answer.status_code) not in declared:
        print(f"{method} {path}: {answer.status_code} is not declared")
        return "undeclared"
    return "refused" if answer.is_client_error else "accepted"


def known_names(database: Database) -> dict[str, list[str]]:
    """By path parameter, what there is to find: a job and a sweep that are answered, others that wait."""
    engine = JobEngine(database, lease_s=30.0)
    jobs = Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0)
    sweeps = Sweeps(database, engine, worker="fuzz")
    search, leaving = StoredSearch(database), threading.Event()
    runner = Runner(engine, search, worker="fuzz", leaving=leaving, on_child_ended=sweeps.child_ended)
    bodies = [TINY_PROBLEM, {**TINY_PROBLEM, "sweep": {"global_batch_size": [8, 16]}}]
    ids = [_submitted(jobs, body) for body in bodies]
    while runner.run_next():
        pass
    plans = [plan["plan_id"] for job in ids for plan in _plans(jobs, job)]
    ids += [_submitted(jobs, body) for body in bodies]
    return {"job_id": ids, "plan_id": plans, "name": ["dgx-h100", "gpt-3-350m"]}


def _submitted(jobs: Jobs, body: Mapping[str, object]) -> str:
    asked = read_job_request(body, parse_problem)
    submission = Submission(problem=asked.problem, body=body, sweep=asked.sweep, fresh=True)
    return jobs.submit("fuzz", submission).id


def _plans(jobs: Jobs, job_id: str) -> Sequence[Mapping[str, Any]]:
    return jobs.plans("fuzz", job_id, page_size=10, page_token=None)[1].items


def configuration(names: dict[str, list[str]]) -> str:
    """Schemathesis's own file: half of the paths lead to something that is there."""
    lines = [f"[dictionaries.{name}]\nvalues = {json.dumps(found)}\n" for name, found in names.items()]
    bound = (f'"path.{name}" = {{ dictionary = "{name}", probability = {FOUND} }}' for name in names)
    return "\n".join([*lines, "[parameters]", *bound]) + "\n"


def schemathesis(
    program: Path, url: str, headers: dict[str, str], *, examples: int, settings: Path
) -> tuple[int, bool]:
    """Requests that it made, and whether all answers were as declared."""
    made, sound = 0, True
    for phase in PHASES:
        # One worker: threads that parse at once trip over each other.
        options = ["--checks", CHECKS, "--max-examples", str(examples), "--seed", "1", "--workers", "1"]
        options += ["--header", f"Authorization: {headers['Authorization']}", "--no-color", *phase]
        command = [str(program), "--config-file", str(settings), "run", f"{url}/openapi.json", *options]
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir()
        )
        counted = re.search(r"([\d,]+) generated", run.stdout)
        if run.returncode or counted is None:
            print(run.stdout[:9000], run.stderr[-2000:])
        made += int(counted[1].replace(",", "")) if counted else 0
        sound = sound and run.returncode == 0
    return made, sound


def main() -> int:
    """Fuzz a server of this checkout; 1 when something was answered that should not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few draws, for CI")
    parser.add_argument("--schemathesis", type=Path, default=ROOT / ".venv-fuzz" / "bin" / "schemathesis")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{folder}/meshwright.db"
        database = Database(address)
        migrations.upgrade(database)
        token = Keys(database, actor="fuzz").create(NewKey(tenant="fuzz", scope="admin"))[1]
        own = Path(folder) / "schemathesis.toml"
        names = known_names(database)
        own.write_text(configuration(names))
        database.close()
        headers = {"Authorization": f"Bearer {token}"}
        settings = {
            "database_url": address,
            "workers": "0",
            "max_wait_s": "0.1",
            "max_queued_jobs": "1000000",
        }
        with serving(settings) as server:
            found = hostile(server.url, headers)
            pages = Pages(url=server.url, token=token, ids=names)
            page_cases = pages.fuzz(QUICK_EVERY if arguments.quick else 1)
            examples = QUICK_EXAMPLES if arguments.quick else EXAMPLES
            drawn, sound = schemathesis(
                arguments.schemathesis, server.url, headers, examples=examples, settings=own
            )
            alive = httpx.get(f"{server.url}/readyz", timeout=ANSWERED_WITHIN_S).json()["ready"]
    bad = found["5xx"] + found["undeclared"] + sum(page_cases[kind] for kind in BAD)
    verdict = "sound" if sound and alive and not bad else "NOT SOUND"
    cases = drawn + found.total() + page_cases.total()
    corpora = f"corpus={dict(found)} pages={dict(page_cases)}"
    print(f"cases={cases} schemathesis={drawn} {corpora}: {verdict}")
    return 0 if verdict == "sound" else 1


if __name__ == "__main__":
    sys.exit(main())
