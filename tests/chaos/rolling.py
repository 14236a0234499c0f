"""A rolling upgrade from the last release's own code, and the way back, under load and SIGTERMs."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.chaos.witness import Witness
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import SERVE, Settings, environment, free_port, is_stopped, until
from tests.processes.warm import ROOT, Warm
from tests.served.job_records import TINY_PROBLEM

RELEASES = ROOT / "out" / "releases"  # the code of older releases, kept for the next run
OPEN_JOBS = 4
PAUSE_S = 0.1  # between two requests of a thread
# What an older release answers where this one does better: for the timeline of a plan that was predicted by
# other constants (``service/reporting.py``), and of a calibration that the other release wrote
# (``service/stores/lessons.py`` learns again).
OLDER_ANSWERS = (
    "the plan has no timeline: no order of passes, or other costs predicted it",
    "was written by another version: calibrate again",
)
NUM_SERVERS = NUM_WORKERS = 2
READ = (
    "/livez", "/readyz", "/v1/jobs", "/v1/jobs?state=succeeded", "/v1/jobs/{job}",
    "/v1/plans?sort=step_time_s", "/v1/profiles",
    "/v1/models?page_size=5", "/v1/clusters", "/v1/gpus", "/v1/fleets", "/v1/share-links", "/v1/usage",
    "/v1/workers", "/v1/keys", "/v1/audit", "/metrics", "/jobs", "/fleets", "/models", "/links",
)  # fmt: skip
CHIP = {"memory_gib": 96, "hbm_gb_per_s": 3300, "peak_tflops": {"bf16": 900}}
CLUSTER = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 2}]}
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192,
}  # fmt: skip


class Work(NamedTuple):
    """One kind of request about an answered job, what it carries, and the name that its id gets."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    keeps: str | None = None


# Each but a deletion twice; the second goes to the next server, of the other release at times.
WORK = (
    Work("GET", "/v1/jobs/{job}/plans"),
    Work("GET", "/v1/jobs/{job}/events"),
    Work("GET", "/v1/jobs/{job}/children"),
    Work("GET", "/v1/jobs/{job}/report"),
    Work("GET", "/jobs/{job}"),
    Work("POST", "/v1/jobs/{job}:cancel"),
    Work(
        "POST", "/v1/jobs/{job}:replan", {"num_nodes": 2, "steps_done": 100, "steps_total": 200}, "replan"
    ),
    Work("GET", "/v1/jobs/{job}/replans"),
    Work("GET", "/v1/jobs/{job}/replans/{replan}"),
    Work("POST", "/v1/jobs/{job}/share-links", {"expires_in_days": 1}, "link"),
    Work("GET", "/v1/jobs/{job}/share-links"),
    Work("DELETE", "/v1/jobs/{job}/share-links/{link}"),
    Work("GET", "/v1/plans/{plan}"),
    Work("GET", "/v1/plans/{plan}/report"),
    Work("GET", "/v1/plans/{plan}/timeline"),
    Work("GET", "/v1/plans/{plan}/export"),
    Work("POST", "/v1/plans/{plan}/measurements", {"peak_memory_bytes": 8 * 2**30}),
    Work("POST", "/v1/predictions", {"plan": "{plan}"}),
    Work("PUT", "/v1/gpus/of-a-rollout", CHIP),
    Work("GET", "/v1/gpus/of-a-rollout"),
    Work("DELETE", "/v1/gpus/of-a-rollout"),
    Work("PUT", "/v1/models/of-a-rollout", CONFIG),
    Work("GET", "/v1/models/of-a-rollout"),
    Work("DELETE", "/v1/models/of-a-rollout"),
    Work("PUT", "/v1/clusters/of-a-rollout", CLUSTER),
    Work("GET", "/v1/clusters/of-a-rollout"),
    Work("DELETE", "/v1/clusters/of-a-rollout"),
)
# What storms and tests of a server ask: a rollout would lose its jobs, or need keys or a launcher.
ELSEWHERE = {
    "DELETE /v1/jobs/{}", "GET /v1/plans/{}/export/{}",
    "POST /v1/plans/{}:verify", "GET /v1/plans/{}/verification",
    "POST /v1/keys", "DELETE /v1/keys/{}", "DELETE /v1/tenants/{}",
    "POST /v1/profiles", "GET /v1/profiles/{}", "DELETE /v1/profiles/{}",
    "POST /v1/fleets", "GET /v1/fleets/{}", "DELETE /v1/fleets/{}", "GET /v1/fleets/{}/report",
    "GET /v1/fleets/{}/export", "GET /v1/fleets/{}/export.zip", "POST /v1/fleets/{}:cancel",
    "POST /v1/fleets/{}:replan",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Release:
    """The code of one release, in a folder of its own."""

    root: Path

    def start(self, settings: Settings, *words: str) -> Warm:
        """Start a process of this release."""
        own = {**environment(settings), "PYTHONPATH": str(self.root / "src")}
        quiet = subprocess.DEVNULL
        return Warm(words, env=own, cwd=self.root, stdout=quiet, stderr=quiet, root=self.root)

    def run(self, settings: Settings, *words: str) -> None:
        """Run one command of this release.

        Raises:
            CalledProcessError: it did not end with 0.
        """
        if code := self.start(settings, "-m", "meshwright", *words).wait():
            raise subprocess.CalledProcessError(code, words)

    def head(self) -> str:
        """Return the newest revision that this release knows."""
        return max(path.name[:4] for path in (self.root / "migrations/versions").glob("[0-9]*.py"))


def this_release() -> Release:
    """Return the code of this checkout."""
    return Release(root=ROOT)


def release_before(reference: str | None = None) -> Release:
    """Return the last code with an older schema, from the repository's history.

    Args:
        reference: a commit or tag to take instead.
    """
    newest = f"migrations/versions/{migrations.head()}*.py"
    if reference is None:
        added = _git("log", "--max-count=1", "--diff-filter=A", "--format=%h", "--", newest)
        if not added:
            raise SystemExit(f"error: the history of {newest} is missing; clone without --depth")
        reference = f"{added}~1"
    commit = _git("rev-parse", "--short", reference)
    folder = RELEASES / commit
    if not folder.exists():
        RELEASES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=RELEASES) as unpacked, tempfile.TemporaryFile() as packed:
            subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=packed, check=True)
            packed.seek(0)
            subprocess.run(["tar", "--extract", "--directory", unpacked], stdin=packed, check=True)
            Path(unpacked).rename(folder)
            Path(unpacked).mkdir()  # what the context removes
    return Release(root=folder)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass
class Endpoint:
    """One address behind the balancer."""

    url: str
    in_rotation: bool = False
    in_flight: int = 0


@dataclass
class Balancer:
    """What a load balancer does: requests go in turn to the addresses in rotation, new ones once ready."""

    faults: list[str] = field(default_factory=list)  # what a client saw and should not have
    requests: int = 0
    _endpoints: dict[str, Endpoint] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: "count[int]" = field(default_factory=count)

    def add(self, url: str) -> None:
        """Wait until the server at ``url`` is ready, then send it requests."""
        until(lambda: _is_ready(url))
        self._endpoints[url] = Endpoint(url, in_rotation=True)

    def drain(self, url: str) -> None:
        """Send no more requests to ``url``; returns when those under way are answered."""
        self._endpoints[url].in_rotation = False
        until(lambda: self._endpoints[url].in_flight == 0)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response | None:  # noqa: ANN401
        """Send one request to the next address; None and a fault: no answer, or an error of the server."""
        with self._lock:
            there = [one for one in self._endpoints.values() if one.in_rotation]
            if not there:
                self.faults.append("no endpoint")
                return None
            endpoint = there[next(self._turn) % len(there)]
            endpoint.in_flight += 1
            self.requests += 1
        try:
            answer = httpx.request(method, endpoint.url + path, timeout=60, **options)
        except httpx.HTTPError as fault:
            self.faults.append(f"{method} {path}: {fault!r}")
            return None
        finally:
            with self._lock:
                endpoint.in_flight -= 1
        if answer.is_error:
            if not any(known in answer.text for known in OLDER_ANSWERS):
                self.faults.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
            return None
        return answer


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=10).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def id_of(answer: Any) -> str:  # noqa: ANN401 - of any client
    """Return the id of what a request stored, which its address or its body states."""
    return str(answer.headers.get("location", "").rpartition("/")[2] or answer.json().get("id"))


class Load:
    """Threads that submit jobs, each of them twice under one idempotency key, and read lists and jobs."""

    def __init__(self, balancer: Balancer, witness: Witness) -> None:
        self.acknowledged: dict[str, str] = {}
        self._balancer = balancer
        self._witness = witness
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._every, args=[act])
            for act in (self._submit, self._read, self._work)
        ]
        self._reads, self._works = count(), count()
        self._answered: dict[str, str] | None = None  # a job and its first plan

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _every(self, act: Callable[[], None]) -> None:
        while not self._over.wait(PAUSE_S):
            act()

    def _submit(self) -> None:
        if len(self.acknowledged) - self._witness.ended() >= OPEN_JOBS:
            return
        key = f"key-{len(self.acknowledged)}"
        for _ in range(2):  # the second goes to the next server, of the other release at times
            options: dict[str, Any] = {"params": {"fresh": "true"}, "headers": {"Idempotency-Key": key}}
            answer = self._balancer.ask("POST", "/v1/jobs", json=TINY_PROBLEM, **options)
            job_id = answer.json()["id"] if answer is not None else None
            if job_id is not None and self.acknowledged.setdefault(key, job_id) != job_id:
                self._balancer.faults.append(f"{key}: two jobs")

    def _read(self) -> None:
        newest = next(reversed(tuple(self.acknowledged.values())), None)
        path = READ[next(self._reads) % len(READ)]
        if newest is not None or "{job}" not in path:
            self._balancer.ask("GET", path.format(job=newest))

    def _work(self) -> None:
        """Ask one kind of request about an answered job; twice, under one idempotency key."""
        names = self._answered or self._find_answered()
        if names is None:
            return
        number = next(self._works)
        method, path, body, keeps = WORK[number % len(WORK)]
        key = {"Idempotency-Key": f"work-{number}"} if method == "POST" else {}
        named = body and {
            name: one.format(**names) if isinstance(one, str) else one for name, one in body.items()
        }
        answers = [
            self._balancer.ask(method, path.format(**names), json=named, headers=key)
            for _ in range(1 if method == "DELETE" else 2)
        ]
        made = {id_of(answer) for answer in answers if answer is not None and method == "POST"}
        if keeps is not None:
            names[keeps] = next(iter(made), "none")
        if len(made) > 1:
            self._balancer.faults.append(f"{method} {path}: stored twice under one key")

    def _find_answered(self) -> dict[str, str] | None:
        found = self._balancer.ask("GET", "/v1/jobs?state=succeeded&page_size=1")
        job = found.json()["jobs"][0]["id"] if found is not None and found.json()["jobs"] else None
        plans = self._balancer.ask("GET", f"/v1/jobs/{job}/plans") if job else None
        if job is not None and plans is not None:
            self._answered = {"job": job, "plan": plans.json()["plans"][0]["plan_id"]}
        return self._answered


class Rollout:
    """Servers and workers, each of one release or the other."""

    def __init__(self, settings: Settings, balancer: Balancer, witness: Witness) -> None:
        self.sigterms = 0  # to workers, each in the middle of a job
        self.balancer = balancer
        self._settings = settings
        self._witness = witness
        self._servers: dict[str, Warm] = {}  # by their address
        self._workers: list[tuple[Release, Warm]] = []

    def start(self, release: Release) -> None:
        """Start every process from one release."""
        for _ in range(NUM_WORKERS):
            self._workers.append(self._worker(release))
        for _ in range(NUM_SERVERS):
            self._add_server(release)

    def replace(self, release: Release, sigterms: int) -> None:
        """Replace one process after another, and halfway end ``sigterms`` workers in the middle of jobs."""
        for number, url in enumerate(list(self._servers)):
            self._add_server(release)
            self.balancer.drain(url)
            self._end(self._servers.pop(url))
            self.interrupt(self._first_of_another(release), release)
            if number == 0:  # servers and workers of two releases: half and half
                for _ in range(sigterms):
                    self.interrupt()

    def interrupt(self, place: int | None = None, release: Release | None = None) -> None:
        """End a worker in the middle of a job by SIGTERM, and start another in its place."""
        places = range(len(self._workers)) if place is None else [place]
        caught: list[int] = []

        def catch() -> bool:
            caught.extend(one for one in places if not caught and self._is_caught(self._workers[one][1]))
            return bool(caught)

        until(catch)
        of, process = self._workers[caught[0]]
        process.terminate()
        process.send_signal(signal.SIGCONT)
        self._end(process)
        self.sigterms += 1
        self._workers[caught[0]] = self._worker(release or of)

    def _is_caught(self, process: Warm) -> bool:
        """Stop a worker, and let it go on unless it has a job."""
        if process.pid not in self._witness.busy_workers():
            return False
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid))
        if process.pid in self._witness.busy_workers():
            return True
        process.send_signal(signal.SIGCONT)
        return False

    def stop(self) -> None:
        """End every process."""
        for process in [*self._servers.values(), *(process for _, process in self._workers)]:
            if process.poll() is None:
                self._end(process)

    def _first_of_another(self, release: Release) -> int:
        return next(place for place, (of, _) in enumerate(self._workers) if of != release)

    def _add_server(self, release: Release) -> None:
        port = str(free_port())
        url = f"http://127.0.0.1:{port}"
        self._servers[url] = release.start({**self._settings, "port": port}, "-c", SERVE)
        self.balancer.add(url)

    def _worker(self, release: Release) -> tuple[Release, Warm]:
        return release, release.start(self._settings, "-m", "meshwright.workers")

    def _end(self, process: Warm) -> None:
        if (code := process.poll()) is None:
            process.terminate()
            code = process.wait()
        if code != os.EX_OK:
            self.balancer.faults.append(f"a process ended with {code}")


@dataclass(frozen=True, kw_only=True)
class Rolled:
    """What happened, and what a client or the database saw that should not have been."""

    schemas: str  # from and to which revision
    figures: dict[str, float]
    faults: list[str]


def roll(sigterms: int, reference: str | None = None) -> Rolled:
    """Upgrade and roll back a PostgreSQL service under load.

    The older release's schema and processes come first; then the schema of this release, its processes one
    by one, the older processes one by one again, and the older schema.

    Args:
        sigterms: how many workers are ended in the middle of jobs, at least.
        reference: a commit or tag of the older release; None: the last one with an older schema.
    """
    before, now = release_before(reference), this_release()
    began_s = time.monotonic()
    with PostgresServer() as server:
        settings = _settings(server.new_database("rolling"))
        before.run(settings, "db", "upgrade")
        with _watched(settings["database_url"]) as witness:
            balancer = Balancer()
            rollout = Rollout(settings, balancer, witness)
            extra = max(0, -(-(sigterms - 2 * NUM_WORKERS) // 4))  # in each of four states
            try:
                rollout.start(before)
                with Load(balancer, witness) as load:
                    now.run(settings, "db", "upgrade")
                    for _ in range(extra):  # the older release alone, under the newer schema
                        rollout.interrupt()
                    rollout.replace(now, extra)
                    rollout.replace(before, extra)
                    now.run(settings, "db", "downgrade", before.head())
                    for _ in range(extra):
                        rollout.interrupt()
                until(lambda: witness.ended() >= len(load.acknowledged))
            finally:
                rollout.stop()
            verdict = witness.verdict(load.acknowledged)
            interrupted = witness.given_back()
    faults = [*balancer.faults, *verdict.losses]
    faults += [
        f"{name}: {value}"
        for name, value in (("double", verdict.double), ("stuck", verdict.stuck))
        if value
    ]
    if verdict.most_attempts > 1:
        faults.append(f"{verdict.most_attempts} attempts at one job, though every worker gave its job back")
    if interrupted < sigterms // 2:  # the others came while the worker stored the answer
        faults.append(f"only {interrupted} of {rollout.sigterms} SIGTERMs came in the middle of a search")
    figures: dict[str, float] = {
        "jobs": len(load.acknowledged),
        "requests": balancer.requests,
        "sigterms_to_busy_workers": rollout.sigterms,
        "jobs_given_back": interrupted,
        "lost": verdict.lost + verdict.stuck,
        "double": verdict.double,
        "most_attempts": verdict.most_attempts,
        "requests_failed": len(balancer.faults),
        "seconds": round(time.monotonic() - began_s),
    }
    return Rolled(schemas=f"{before.head()} to {now.head()} and back", figures=figures, faults=faults)


@contextmanager
def _watched(url: str) -> Iterator[Witness]:
    database = Database(url)
    try:
        yield Witness(database)
    finally:
        database.close()


def _settings(url: str) -> Settings:
    """A lease that no busy machine lets expire: every second attempt at a job is a fault."""
    return {"database_url": url, "workers": "0", "lease_s": "120", "grace_s": "60"}
