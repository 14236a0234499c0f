"""Writes ``service/api/examples.json``: what a service answered to one request of each operation.

``python -m benchmarks.reference.api_examples``, when answers change. Lists are cut to two items, long texts
to their beginning; of an archive its names are kept.
"""

from __future__ import annotations

import json
import tempfile
import threading
import zipfile
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from fastapi.testclient import TestClient

from meshwright.service.api.app import create_app
from meshwright.service.api.openapi import EXAMPLES
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.db.usage_records import note_worker
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.settings import Settings
from meshwright.workers.fleet import FleetWork
from meshwright.workers.runner import Runner
from meshwright.workers.search import StoredSearch

MOST_ITEMS, MOST_CHARACTERS = 2, 300
WORKER = "node-7:4711"
PROBLEM: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"name": "dgx-h100", "num_nodes": 2},
    "workload": {"global_batch_size": 64, "seq_length": 8192},
    "launcher": "megatron-lm",
    "search": {"top_k": 1, "certify": "none"},
}
Examples = dict[str, dict[str, Any]]


class Recording:
    """Asks a service in this process, and keeps what it answers."""

    def __init__(self, client: TestClient) -> None:
        self.found: Examples = {}
        self._client = client

    def ask(self, operation: str, body: Any = None, *, query: str = "", **names: str) -> Any:  # noqa: ANN401
        """Ask one address, such as ``GET /v1/jobs/{job_id}``.

        Raises:
            RuntimeError: it refused.
        """
        method, path = operation.split()
        answer = self._client.request(method, path.format(**names) + query, json=body)
        if answer.is_error:
            raise RuntimeError(f"{operation}: {answer.text}")
        kept: dict[str, Any] = {"status": str(answer.status_code), **_answer_of(answer)}
        if sent := names | dict(parse_qsl(query.removeprefix("?"))):
            kept["parameters"] = sent
        self.found[operation] = kept if body is None else {"body": body, **kept}
        return answer.json() if kept.get("kind") == "application/json" else None


def _answer_of(answer: Any) -> dict[str, Any]:  # noqa: ANN401 - the response type of TestClient
    """Return the media type and the content of an answer; nothing where it has none."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if not answer.content:
        return {}
    if kind == "application/json":
        return {"kind": kind, "answer": shortened(answer.json())}
    if kind == "application/zip":
        names = zipfile.ZipFile(BytesIO(answer.content)).namelist()
        return {"kind": kind, "answer": f"a zip of {', '.join(names[:MOST_ITEMS])}, …"}
    return {"kind": kind, "answer": shortened(answer.text)}


def shortened(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON with short lists and texts."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value[:MOST_ITEMS]]
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return value[:MOST_CHARACTERS] + "…"
    return value


def recorded(url: str) -> Examples:
    """Return a request and its answer of every operation."""
    database = Database(url)
    migrations.upgrade(database)
    engine = JobEngine(database, lease_s=30.0)
    _, token = Keys(database, actor="start").create(NewKey(tenant="default", scope="admin", title="admin"))
    head = {"Authorization": f"Bearer {token}"}
    search = StoredSearch(database)
    runner = Runner(
        engine, search, worker=WORKER, leaving=threading.Event(), fleet=partial(FleetWork.on, database)
    )
    settings = Settings(database_url=url, verify_elsewhere=True)
    with TestClient(create_app(settings), base_url="http://localhost", headers=head) as client:
        to = Recording(client)
        job = to.ask("POST /v1/jobs", {**PROBLEM, "labels": {"team": "nlp"}})["id"]
        runner.run_next()
        plan = to.ask("GET /v1/jobs/{job_id}/plans", job_id=job)["plans"][0]["plan_id"]
        jobs_and_plans(to, job, plan)
        sweep = {**PROBLEM, "sweep": {"global_batch_size": [64, 128]}}
        sweep_id = client.post("/v1/jobs", json=sweep).json()["id"]
        to.ask("GET /v1/jobs/{job_id}/children", job_id=sweep_id)
        to.ask("POST /v1/jobs/{job_id}:cancel", job_id=sweep_id)
        fleets(to, runner)
        definitions(to)
        key = to.ask("POST /v1/keys", {"scope": "submit", "title": "launcher", "max_cpu_s_per_day": 3600})[
            "id"
        ]
        with database.write() as connection:
            note_worker(connection, WORKER, kind="search", version="0.1.0")
        for path in ("keys", "audit", "usage", "workers", "gpus", "share-links"):
            to.ask(f"GET /v1/{path}")
        for path in ("livez", "readyz", "metrics"):
            to.ask(f"GET /{path}")
        removals(to, job, key)
    to.found["POST /v1/keys"]["answer"]["token"] = "mw_3f9a1c04be27_…"  # noqa: S105 - not one
    link = to.found["POST /v1/jobs/{job_id}/share-links"]["answer"]
    link["path"] = "/shared/ml_5d20c8e1f6a3_…"
    database.close()
    return to.found


def jobs_and_plans(to: Recording, job: str, plan: str) -> None:
    """Ask about a finished job and its plan."""
    to.ask("GET /v1/jobs", query="?labels=team%3Dnlp")
    to.ask("GET /v1/jobs/{job_id}", job_id=job)
    to.ask("GET /v1/jobs/{job_id}/events", job_id=job)
    to.ask("GET /v1/jobs/{job_id}/report", job_id=job)
    to.ask("GET /v1/plans/{plan_id}/report", plan_id=plan)
    to.ask("GET /v1/plans/{plan_id}/export/{name}", plan_id=plan, name="launch.sh")
    progress = {"lost_nodes": 1, "steps_done": 12_000, "steps_total": 50_000, "saved_step": 11_800}
    to.ask("POST /v1/jobs/{job_id}:replan", progress, job_id=job)
    to.ask("POST /v1/jobs/{job_id}/share-links", {"expires_in_days": 7}, job_id=job)
    to.ask("GET /v1/jobs/{job_id}/share-links", job_id=job)
    replan = to.ask("GET /v1/jobs/{job_id}/replans", job_id=job)["replans"][0]["id"]
    to.ask("GET /v1/jobs/{job_id}/replans/{replan_id}", job_id=job, replan_id=replan)
    to.ask("GET /v1/plans", query="?sort=step_time_s")
    to.ask("GET /v1/plans/{plan_id}", plan_id=plan)
    to.ask("GET /v1/plans/{plan_id}/export", plan_id=plan)
    to.ask("GET /v1/plans/{plan_id}/timeline", plan_id=plan)
    to.ask("POST /v1/plans/{plan_id}:verify", plan_id=plan)
    to.ask("GET /v1/plans/{plan_id}/verification", plan_id=plan)
    to.ask("POST /v1/predictions", {"plan": plan})
    to.ask("POST /v1/plans/{plan_id}/measurements", {"step_time_s": 3.1}, plan_id=plan)
    profile = to.ask("GET /v1/profiles")["profiles"][0]["id"]
    document = to.ask("GET /v1/profiles/{profile_id}", profile_id=profile)["document"]
    to.ask("POST /v1/profiles", document)


def fleets(to: Recording, runner: Runner) -> None:
    """Plan two jobs on one cluster."""
    problem = {name: PROBLEM[name] for name in ("model", "workload", "launcher")}
    jobs: list[dict[str, Any]] = [
        {"name": "chat", "problem": problem, "steps": 2000, "due_hours": 5, "weight": 3},
        {"name": "long", "problem": problem, "steps": 500, "after": ["chat"]},
    ]
    body = {"name": "team", "cluster": PROBLEM["cluster"], "jobs": jobs, "labels": {"team": "nlp"}}
    fleet = to.ask("POST /v1/fleets", body)["id"]
    while runner.run_next():
        pass
    to.ask("GET /v1/fleets", query="?labels=team%3Dnlp")
    to.ask("GET /v1/fleets/{fleet_id}", fleet_id=fleet)
    to.ask("GET /v1/fleets/{fleet_id}/export", fleet_id=fleet)
    to.ask("GET /v1/fleets/{fleet_id}/export.zip", fleet_id=fleet)
    to.ask("GET /v1/fleets/{fleet_id}/report", fleet_id=fleet)
    state = {"now_hours": 1, "lost_nodes": 1, "jobs": {"chat": {"state": "failed", "steps_done": 500}}}
    to.ask("POST /v1/fleets/{fleet_id}:replan", state, fleet_id=fleet)
    to.ask("POST /v1/fleets/{fleet_id}:cancel", fleet_id=fleet)
    to.ask("DELETE /v1/fleets/{fleet_id}", fleet_id=fleet)


def definitions(to: Recording) -> None:
    """Keep a model, a cluster and a GPU type of one's own."""
    shape = {
        "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "ffn_hidden_size": 8192,
        "vocab_size": 50304,
    }  # fmt: skip
    groups = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 4}]}
    chip = {"memory_gib": 96, "hbm_gb_per_s": 3300, "peak_tflops": {"bf16": 900}, "power_watts": 650}
    for kind, body in (("models", shape), ("clusters", groups), ("gpus", chip)):
        to.ask(f"PUT /v1/{kind}/{{name}}", body, name="in-house")
        to.ask(f"GET /v1/{kind}/{{name}}", name="in-house")
        to.ask(f"GET /v1/{kind}")


def removals(to: Recording, job: str, key: str) -> None:
    """Delete what the other requests have made, and the tenant with its keys last."""
    link = to.ask("GET /v1/jobs/{job_id}/share-links", job_id=job)["links"][0]["id"]
    to.ask("DELETE /v1/jobs/{job_id}/share-links/{link_id}", job_id=job, link_id=link)
    to.ask("DELETE /v1/jobs/{job_id}", job_id=job)
    profile = to.ask("GET /v1/profiles")["profiles"][0]["id"]
    to.ask("DELETE /v1/profiles/{profile_id}", profile_id=profile)
    for kind in ("models", "clusters", "gpus"):
        to.ask(f"DELETE /v1/{kind}/{{name}}", name="in-house")
    to.ask("DELETE /v1/keys/{key_id}", key_id=key)
    to.ask("DELETE /v1/tenants/{tenant_name}", tenant_name="default")


def main() -> None:
    """Record them all."""
    with tempfile.TemporaryDirectory() as folder:
        found = recorded(f"sqlite:///{Path(folder) / 'jobs.db'}")
    EXAMPLES.write_text(
        json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False) + "\n", "utf-8"
    )


if __name__ == "__main__":
    main()
