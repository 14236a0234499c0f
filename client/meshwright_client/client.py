"""A client of the service: submit, wait, plans, export; and fleets of jobs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from meshwright_client.answers import Fleet, FleetPage, Job, JobPage
from meshwright_client.decoding import decoded
from meshwright_client.errors import WaitTimeoutError
from meshwright_client.files import save
from meshwright_client.records import (
    Answer,
    Export,
    FleetFiles,
    KeyUsage,
    Learnt,
    Plan,
    PlanPage,
    PlanSummary,
    PricedConfiguration,
    ProfilePage,
    Progress,
    Replan,
    RolesAnswer,
    State,
    StoredProfile,
    UsageList,
    Verification,
    Worker,
    WorkerList,
)
from meshwright_client.transport import Transport, body_of

LONG_POLL_S = 20.0
LEAST_POLL_S = 1.0  # from one request to the next, where a proxy answers a long poll at once
VERIFY_LOOK_S = 1.0
PAGE_SIZE = 200  # the most that the service gives at once
Json = Mapping[str, Any]
OnProgress = Callable[[State, Progress | None], None]
Record = TypeVar("Record")
Page = TypeVar("Page", JobPage, FleetPage, PlanPage, ProfilePage, UsageList)


class Client:
    """One service; use as a context manager, or ``close`` it.

    A request that meets 429, 502, 503, 504 or a lost connection is repeated for ``retry_s``, no sooner
    than Retry-After says. Every method raises ``ProblemError`` (or one of its kinds) where the service
    refuses, and ``ServiceUnavailableError`` where none answers.
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout_s: float = 10.0, retry_s: float = 60.0
    ) -> None:
        """Store the address and the key; the first request connects.

        Raises:
            ValueError: ``url`` is not an address, or ``key`` is not a key.
        """
        key = key and key.strip()  # of a file or a secret, whose line has an end
        if key is not None and not (key and key.isascii() and key.isprintable()):
            raise ValueError("the key holds characters that no key has")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            http = httpx.Client(base_url=url, headers=headers)
        except httpx.InvalidURL:
            raise ValueError("the url is not an address") from None
        if http.base_url.scheme not in {"http", "https"} or not http.base_url.host:
            raise ValueError("the url is not http://HOST:PORT or https://HOST:PORT")
        self._transport = Transport(http=http, timeout_s=timeout_s, retry_s=retry_s)

    def __enter__(self) -> Client:  # noqa: PYI034 - Self needs Python 3.11
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._transport.http.close()

    def submit(
        self,
        problem: Json,
        *,
        idempotency_key: str | None = None,
        fresh: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> Job:
        """Submit ``problem`` and return its job; it is the body of ``POST /v1/jobs``.

        Give ``idempotency_key`` (any text of your own) where this process itself may be started again:
        the same key gives the same job. ``fresh`` searches again even if the answer is known. ``labels``
        are names and values to find the job by; a job that was answered before keeps its own.

        Raises:
            InvalidRequestError: ``problem.errors`` names the fields.
        """
        return self._post(Job, "/v1/jobs", _labelled(problem, labels), idempotency_key, fresh=fresh)

    def job(self, job: Job | str) -> Job:
        """Return a job in its present state."""
        return self._get(Job, f"/v1/jobs/{_id(job)}")

    def jobs(self, *, labels: Mapping[str, str] | None = None, **wanted: str) -> Iterator[Job]:
        """Yield jobs, newest first, read page by page: all, or those that fit every filter.

        ``jobs(labels={"team": "nlp"}, owner="me", model="llama-3.1-70b", state="failed")``.

        Raises:
            InvalidRequestError: a filter does not exist; ``problem.errors`` names it.
        """
        for page in self._pages(JobPage, "/v1/jobs", _selecting(labels, wanted)):
            yield from page.jobs

    def wait(
        self,
        job: Job | str,
        *,
        timeout_s: float | None = None,
        on_progress: OnProgress = lambda _state, _progress: None,
    ) -> Job:
        """Return the job once it has ended, in whatever state; call ``on_progress`` as it changes.

        The service answers a long poll as soon as the job has changed; of several changes between two
        answers, ``on_progress`` gets the last.

        Raises:
            WaitTimeoutError: the job has not ended within ``timeout_s``; it continues.
        """
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        seen: Job | None = None
        tag = ""
        while True:
            began_s, before = time.monotonic(), seen
            left_s = max(0.0, until - began_s)
            wait_s = min(LONG_POLL_S, left_s) if seen else 0.0
            reply = self._transport.send(
                "GET", f"/v1/jobs/{_id(job)}",
                params={"wait": wait_s} if wait_s else None,
                headers={"If-None-Match": tag} if tag else None,
                waits_s=wait_s, left_s=left_s,
            )  # fmt: skip
            if reply.status_code != httpx.codes.NOT_MODIFIED or seen is None:
                seen, tag = decoded(Job, body_of(reply)), reply.headers.get("ETag", "")
            if seen != before:
                on_progress(seen.state, seen.progress)
            if seen.is_finished:
                return seen
            if not left_s:
                raise WaitTimeoutError(seen)
            if seen == before:
                time.sleep(max(0.0, min(began_s + LEAST_POLL_S, until) - time.monotonic()))

    def plans(self, job: Job | str, *, most: int | None = PAGE_SIZE) -> Answer:
        """Return the answer of a finished job with its best plans: at least ``most`` of them (None: all).

        Raises:
            NotReadyError: it has no answer, or none yet.
        """
        path, token, answer = f"/v1/jobs/{_id(job)}/plans", "", None
        while answer is None or (token and (most is None or len(answer.plans) < most)):
            params: dict[str, str | int | float] = {"page_size": PAGE_SIZE}
            params.update({"page_token": token} if token else {})
            page = self._get(Answer, path, params)
            answer = replace(page, plans=(*(answer.plans if answer else ()), *page.plans))
            token = page.next_page_token or ""
        return answer

    def roles(self, job: Job | str) -> RolesAnswer:
        """Return the ranked placements of a finished job of ``kind: post_training``.

        Raises:
            NotReadyError: it has no answer, or none yet.
        """
        return self._get(RolesAnswer, f"/v1/jobs/{_id(job)}/plans", {"page_size": PAGE_SIZE})

    def find_plans(self, *, sort: str = "-found_at_s", **wanted: str | float) -> Iterator[PlanSummary]:
        """Yield plans of all jobs, filtered and sorted as by ``GET /v1/plans``, read page by page.

        ``find_plans(max_peak_memory_bytes=60 * 2**30, sort="step_time_s")``: the fastest under 60 GiB;
        ``find_plans(cluster="dgx-h100", measured=True)``: what was measured on that cluster.

        Raises:
            InvalidRequestError: there is no such filter or order; ``problem.errors`` names it.
        """
        query = {
            "sort": sort,
            **{
                name: (str(value).lower() if isinstance(value, bool) else value)
                for name, value in wanted.items()
            },
        }
        for page in self._pages(PlanPage, "/v1/plans", query):
            yield from page.plans

    def export(
        self,
        plan: Plan | str,
        launcher: str | None = None,
        save_dir: str | Path | None = None,
        *,
        scheduler: str | None = None,
        image: str | None = None,
        accept_risk: bool = False,
    ) -> Export:
        """Return the launch files of a plan, and write them below ``save_dir`` if that is given.

        ``launcher``: the problem's own, unless named. ``scheduler``: slurm, unless named; another one
        starts the container ``image``. ``accept_risk``: of the closest plan of an answer in which nothing
        fits, which may run out of memory.

        Raises:
            InvalidRequestError: launcher or scheduler cannot start this plan, or its risk is not accepted.
        """
        asked = {"launcher": launcher, "scheduler": scheduler, "image": image}
        asked |= {"accept_risk": "true"} if accept_risk else {}
        params = {name: value for name, value in asked.items() if value}
        export = self._get(Export, f"/v1/plans/{_id(plan)}/export", params)
        if save_dir is not None:
            save(export.files, Path(save_dir))
        return export

    def measure(self, plan: Plan | str, measured: Json, *, idempotency_key: str | None = None) -> Learnt:
        """Report a measured run of a plan, and return what the service learnt from it.

        ``measured``: ``step_time_s``, ``peak_memory_bytes`` (with ``memory_kind``, ``memory_rank``), or
        ``out_of_memory``. With a key of your own, a run that is reported several times counts once.

        Raises:
            InvalidRequestError: a field is wrong, or no machine can have measured that.
        """
        return self._post(Learnt, f"/v1/plans/{_id(plan)}/measurements", measured, idempotency_key)

    def verify(self, plan: Plan | str, *, timeout_s: float = 900.0) -> Verification:
        """Let the plan's launcher build it without a GPU, and wait for its verdict.

        Raises:
            NotReadyError: its environment is not installed where the service runs; the message says how.
            TimeoutError: it takes longer than ``timeout_s``.
        """
        plan_id, until = _id(plan), time.monotonic() + timeout_s
        found = self._post(Verification, f"/v1/plans/{plan_id}:verify", None, None)
        while found.state != "done":
            if time.monotonic() > until:
                raise TimeoutError(f"plan {plan_id} is {found.state} after {timeout_s:g} s")
            time.sleep(VERIFY_LOOK_S)
            found = self._get(Verification, f"/v1/plans/{plan_id}/verification")
        return found

    def replan(
        self,
        job: Job | str,
        changed: Json,
        save_dir: str | Path | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Replan:
        """Return the ways to finish a running job after its cluster changed, the soonest first.

        ``changed``: ``lost_nodes``, ``slow_nodes`` or ``num_nodes``, with ``steps_done``, ``steps_total``,
        ``saved_step``, ``checkpoint``, ``spare_nodes``, ``repair_s``. The first way's launch and resume
        files are written below ``save_dir`` where that is given. A key of your own gives a launcher that
        was restarted the answer it had before.

        Raises:
            InvalidRequestError: nodes that the job never had, another model's checkpoint.
        """
        found = self._post(Replan, f"/v1/jobs/{_id(job)}:replan", changed, idempotency_key)
        if save_dir is not None and found.files:
            save(found.files, Path(save_dir))
        return found

    def submit_fleet(
        self,
        fleet: Json,
        *,
        idempotency_key: str | None = None,
        fresh: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> Fleet:
        """Submit several jobs on one cluster as a fleet; ``fleet`` is the body of ``POST /v1/fleets``.

        Key, ``fresh`` and labels are as of ``submit``.

        Raises:
            InvalidRequestError: ``problem.errors`` names job and field.
        """
        return self._post(Fleet, "/v1/fleets", _labelled(fleet, labels), idempotency_key, fresh=fresh)

    def fleet(self, fleet: Fleet | str, *, newest: bool = False) -> Fleet:
        """Return a fleet in its present state; ``newest``: the last re-plan of it that has a schedule."""
        best = found = self._get(Fleet, f"/v1/fleets/{_id(fleet)}")
        while newest and found.replanned_as:
            found = self._get(Fleet, f"/v1/fleets/{found.replanned_as}")
            best = found if found.answer and found.answer.jobs else best
        return best

    def fleets(self, *, labels: Mapping[str, str] | None = None, **wanted: str) -> Iterator[Fleet]:
        """Yield fleets, newest first, read page by page: all, or those that fit every filter.

        Raises:
            InvalidRequestError: a filter does not exist; ``problem.errors`` names it.
        """
        for page in self._pages(FleetPage, "/v1/fleets", _selecting(labels, wanted)):
            yield from page.fleets

    def replan_fleet(self, fleet: Fleet | str, state: Json, *, idempotency_key: str | None = None) -> Fleet:
        """Plan a running fleet again after nodes were lost or jobs changed, and return the new fleet.

        ``state``: ``now_hours``, ``lost_nodes``, ``jobs`` by name (``state``, ``nodes``, ``steps_done``,
        ``steps``), ``arrived``. Jobs run as planned where it says nothing of them.

        Raises:
            NotReadyError: the fleet has no schedule, or none yet.
            InvalidRequestError: running jobs hold more nodes than are left.
        """
        return self._post(Fleet, f"/v1/fleets/{_id(fleet)}:replan", state, idempotency_key)

    def export_fleet(
        self, fleet: Fleet | str, save_dir: str | Path | None = None, *, job: str | None = None
    ) -> FleetFiles:
        """Return the launch files of a fleet, by job, with the start list; write them below ``save_dir``.

        ``job``: only the files of this one, without its folder. A launch that waited in a queue gets those
        of the newest plan with ``export_fleet(service.fleet(fleet_id, newest=True), folder, job="chat")``.

        Raises:
            NotReadyError: the fleet has no schedule, or none yet.
        """
        found = self._get(FleetFiles, f"/v1/fleets/{_id(fleet)}/export")
        if job is not None:
            own = {name: text for name, text in found.files.items() if name.startswith(f"{job}/")}
            found = replace(found, files={name.split("/", 1)[1]: text for name, text in own.items()})
        if save_dir is not None:
            save(found.files, Path(save_dir))
        return found

    def profiles(self) -> Iterator[StoredProfile]:
        """Yield stored profiles, newest first, read page by page, without their documents."""
        for page in self._pages(ProfilePage, "/v1/profiles"):
            yield from page.profiles

    def profile(self, profile_id: str) -> StoredProfile:
        """Return one stored profile with its document."""
        return self._get(StoredProfile, f"/v1/profiles/{profile_id}")

    def keep_profile(self, document: Json) -> StoredProfile:
        """Store a calibration or a measured profile; the same document again is the same profile."""
        return self._post(StoredProfile, "/v1/profiles", document, None)

    def report(self, job_or_plan: Job | Plan) -> str:
        """Return the report of a job's ranking, or of one plan, as an HTML page of its own."""
        kind = "plans" if isinstance(job_or_plan, Plan) else "jobs"
        return self._transport.send("GET", f"/v1/{kind}/{_id(job_or_plan)}/report").text

    def cancel(self, job: Job | str) -> Job:
        """Cancel a job, and return it; a finished one does not change."""
        return decoded(Job, self._transport.ask("POST", f"/v1/jobs/{_id(job)}:cancel"))

    def delete(self, job: Job | str) -> None:
        """Delete a job with its plans, events and re-plans, and with a sweep its points."""
        self._transport.send("DELETE", f"/v1/jobs/{_id(job)}")

    def usage(self, *, days: int = 30) -> tuple[KeyUsage, ...]:
        """Return the CPU seconds of searches by key and day (UTC), newest day first, today included."""
        pages = self._pages(UsageList, "/v1/usage", {"days": days})
        return tuple(one for page in pages for one in page.usage)

    def workers(self) -> tuple[Worker, ...]:
        """Return the workers that are alive, with the job of each."""
        return self._get(WorkerList, "/v1/workers").workers

    def predict(
        self, problem: Json, configuration: Json | Plan | None = None, *, launch_file: Json | None = None
    ) -> PricedConfiguration:
        """Predict step time and memory of a configuration, or of the launch file that runs it.

        A plan of a finished job is priced under its own switches, precision, optimizer and launcher.
        """
        body = dict(problem)
        if isinstance(configuration, Plan):
            body["plan"] = configuration.plan_id
        elif configuration is not None:
            body["configuration"] = dict(configuration)
        if launch_file is not None:
            body["launch_file"] = dict(launch_file)
        return decoded(PricedConfiguration, self._transport.ask("POST", "/v1/predictions", json=body))

    def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, str | int | float] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send any request of the API, for what has no method here; return its answer, 2xx or 304."""
        return self._transport.send(method, path, json=json, params=params, headers=headers)

    def _get(
        self, kind: type[Record], path: str, params: Mapping[str, str | int | float] | None = None
    ) -> Record:
        return decoded(kind, self._transport.ask("GET", path, params=params or None))

    def _post(
        self, kind: type[Record], path: str, body: Json | None, key: str | None, *, fresh: bool = False
    ) -> Record:
        """Send a body under an idempotency key, which may be the caller's own."""
        reply = self._transport.ask(
            "POST", path,
            json=None if body is None else dict(body),
            headers={"Idempotency-Key": key or uuid.uuid4().hex},
            params={"fresh": "true"} if fresh else None,
        )  # fmt: skip
        return decoded(kind, reply)

    def _pages(
        self, kind: type[Page], path: str, query: Mapping[str, str | float] | None = None
    ) -> Iterator[Page]:
        """Yield every page of a list, each read when it is asked for."""
        token: str | None = ""
        while token is not None:
            params: dict[str, str | int | float] = {"page_size": PAGE_SIZE, **(query or {})}
            params.update({"page_token": token} if token else {})
            page = self._get(kind, path, params)
            yield page
            token = page.next_page_token


def _id(of: Job | Plan | str) -> str:
    return of if isinstance(of, str) else of.plan_id if isinstance(of, Plan) else of.id


def _labelled(body: Json, labels: Mapping[str, str] | None) -> Json:
    return {**body, "labels": dict(labels)} if labels else body


def _selecting(labels: Mapping[str, str] | None, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the query of a list: its filters, and the labels that all entries have."""
    named = ",".join(f"{name}={value}" for name, value in (labels or {}).items())
    return {**wanted, "labels": named} if named else dict(wanted)
