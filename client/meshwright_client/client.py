"""The service as a launcher calls it: submit, wait, plans, export; and fleets of jobs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from meshwright_client.answers import Export, Job, JobPage, KeyUsage, UsageList, Worker, WorkerList
from meshwright_client.decoding import decoded
from meshwright_client.files import save
from meshwright_client.fleets import Fleet, FleetFiles, FleetPage
from meshwright_client.plans import (
    Answer,
    Learnt,
    Plan,
    PlanPage,
    PlanSummary,
    PricedConfiguration,
    ProfilePage,
    Replan,
    StoredProfile,
    Verification,
)
from meshwright_client.transport import Transport
from meshwright_client.waiting import OnProgress, Waiting

VERIFY_LOOK_S = 1.0
PAGE_SIZE = 200  # the most that the service gives at once
Json = Mapping[str, Any]
Page = TypeVar("Page", JobPage, FleetPage, PlanPage, ProfilePage)


class Client:
    """One service; use as a context manager, or ``close`` it.

    A request that meets 429, 502, 503, 504 or a lost connection is repeated for ``retry_s``, no sooner
    than Retry-After says. Every method raises ``ProblemError`` (or one of its kinds) where the service
    refuses, and ``ServiceUnavailableError`` where none answers.
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout_s: float = 10.0, retry_s: float = 60.0
    ) -> None:
        """Connect to nothing yet.

        Raises:
            ValueError: ``url`` is no address, or ``key`` no key.
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
        """The client itself."""
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
        """The job that answers ``problem``, the body of ``POST /v1/jobs``.

        Give ``idempotency_key`` (any text of your own) where this process itself may be started again:
        the same key gives the same job. ``fresh`` searches again even if the answer is known. ``labels``
        are names and values to find the job by; a job that was answered before keeps its own.

        Raises:
            InvalidRequestError: ``problem.errors`` names the fields.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        params = {"fresh": "true"} if fresh else None
        body = {**problem, "labels": dict(labels)} if labels else dict(problem)
        return decoded(
            Job, self._transport.ask("POST", "/v1/jobs", json=body, headers=headers, params=params)
        )

    def job(self, job: Job | str) -> Job:
        """A job as it is now."""
        return decoded(Job, self._transport.ask("GET", f"/v1/jobs/{_id(job)}"))

    def jobs(self, *, labels: Mapping[str, str] | None = None, **wanted: str) -> Iterator[Job]:
        """Jobs, newest first, read page by page: all, or those with all that is given.

        ``jobs(labels={"team": "nlp"}, owner="me", model="llama-3.1-70b", state="failed")``.

        Raises:
            InvalidRequestError: there is no such filter; ``problem.errors`` names it.
        """
        query = dict(wanted)
        if labels:
            query["labels"] = ",".join(f"{name}={value}" for name, value in labels.items())
        for page in self._pages(JobPage, "/v1/jobs", query):
            yield from page.jobs

    def wait(
        self,
        job: Job | str,
        *,
        timeout_s: float | None = None,
        on_progress: OnProgress = lambda _state, _progress: None,
    ) -> Job:
        """The job once it has ended, however it ended; ``on_progress`` hears of it meanwhile.

        Raises:
            WaitTimeoutError: it has not within ``timeout_s``; it goes on.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        waiting = Waiting(transport=self._transport, job_id=_id(job), until=until, on_progress=on_progress)
        return waiting.finished_job()

    def plans(self, job: Job | str, *, most: int | None = PAGE_SIZE) -> Answer:
        """The answer of a finished job with its best plans: at least ``most`` of them (None: all).

        Raises:
            NotReadyError: it has no answer, or none yet.
        """
        path, token, answer = f"/v1/jobs/{_id(job)}/plans", "", None
        while answer is None or (token and (most is None or len(answer.plans) < most)):
            params: dict[str, str | int | float] = {"page_size": PAGE_SIZE}
            params.update({"page_token": token} if token else {})
            page = decoded(Answer, self._transport.ask("GET", path, params=params))
            answer = replace(page, plans=(*(answer.plans if answer else ()), *page.plans))
            token = page.next_page_token or ""
        return answer

    def find_plans(self, *, sort: str = "-found_at_s", **wanted: str | float) -> Iterator[PlanSummary]:
        """Plans of all jobs, filtered and sorted as ``GET /v1/plans`` does, read page by page.

        ``find_plans(max_peak_memory_bytes=60 * 2**30, sort="step_time_s")``: the fastest under 60 GiB;
        ``find_plans(cluster="dgx-h100", measured=True)``: what was measured on that cluster.

        Raises:
            InvalidRequestError: there is no such filter or order; ``problem.errors`` names it.
        """
        query = {"sort": sort, **{name: _spelled(value) for name, value in wanted.items()}}
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
    ) -> Export:
        """Return the launch files of a plan, and write them below ``save_dir`` if that is given.

        ``launcher``: the problem's own, unless named. ``scheduler``: slurm, unless named; another one
        starts the container ``image``.

        Raises:
            InvalidRequestError: launcher or scheduler cannot start this plan.
        """
        plan_id = plan if isinstance(plan, str) else plan.plan_id
        asked = {"launcher": launcher, "scheduler": scheduler, "image": image}
        params = {name: value for name, value in asked.items() if value}
        answer = self._transport.ask("GET", f"/v1/plans/{plan_id}/export", params=params or None)
        export = decoded(Export, answer)
        if save_dir is not None:
            save(export.files, Path(save_dir))
        return export

    def measure(self, plan: Plan | str, measured: Json, *, idempotency_key: str | None = None) -> Learnt:
        """What is learnt from a run of a plan.

        ``measured``: ``step_time_s``, ``peak_memory_bytes`` (with ``memory_kind``, ``memory_rank``), or
        ``out_of_memory``; a key of your own makes one run one measurement however often it is told.

        Raises:
            InvalidRequestError: a field is wrong, or no machine can have measured that.
        """
        plan_id = plan if isinstance(plan, str) else plan.plan_id
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        path = f"/v1/plans/{plan_id}/measurements"
        return decoded(Learnt, self._transport.ask("POST", path, json=dict(measured), headers=headers))

    def verify(self, plan: Plan | str, *, timeout_s: float = 900.0) -> Verification:
        """Let the plan's launcher build it without a GPU, and wait for what it says.

        Raises:
            NotReadyError: its environment is not installed where the service runs; the message says how.
            TimeoutError: it takes longer than ``timeout_s``.
        """
        plan_id = plan if isinstance(plan, str) else plan.plan_id
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        asked = self._transport.ask("POST", f"/v1/plans/{plan_id}:verify", headers=headers)
        found = decoded(Verification, asked)
        until = time.monotonic() + timeout_s
        while found.state != "done":
            if time.monotonic() > until:
                raise TimeoutError(f"plan {plan_id} is {found.state} after {timeout_s:g} s")
            time.sleep(VERIFY_LOOK_S)
            path = f"/v1/plans/{plan_id}/verification"
            found = decoded(Verification, self._transport.ask("GET", path))
        return found

    def replan(
        self,
        job: Job | str,
        changed: Json,
        save_dir: str | Path | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Replan:
        """Ways to finish a running job whose cluster changed, the soonest first.

        ``changed``: ``lost_nodes``, ``slow_nodes`` or ``num_nodes``, with ``steps_done``, ``steps_total``,
        ``saved_step``, ``checkpoint``, ``spare_nodes``, ``repair_s``. The first way's launch and resume
        files are written below ``save_dir`` where that is given. A key of your own gives a launcher that
        was restarted the answer it had before.

        Raises:
            InvalidRequestError: nodes that the job never had, another model's checkpoint.
        """
        path = f"/v1/jobs/{_id(job)}:replan"
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        found = decoded(Replan, self._transport.ask("POST", path, json=dict(changed), headers=headers))
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
        """The fleet that plans several jobs on one cluster; ``fleet`` is the body of ``POST /v1/fleets``.

        Key, ``fresh`` and labels are as of ``submit``.

        Raises:
            InvalidRequestError: ``problem.errors`` names job and field.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        params = {"fresh": "true"} if fresh else None
        body = {**fleet, "labels": dict(labels)} if labels else dict(fleet)
        made = self._transport.ask("POST", "/v1/fleets", json=body, headers=headers, params=params)
        return decoded(Fleet, made)

    def fleet(self, fleet: Fleet | str, *, newest: bool = False) -> Fleet:
        """A fleet as it is now; ``newest``: the last that planned it anew and has a schedule."""
        found = decoded(Fleet, self._transport.ask("GET", f"/v1/fleets/{_id(fleet)}"))
        best = found
        while newest and found.replanned_as:
            found = decoded(Fleet, self._transport.ask("GET", f"/v1/fleets/{found.replanned_as}"))
            best = found if found.answer and found.answer.jobs else best
        return best

    def fleets(self, *, labels: Mapping[str, str] | None = None, **wanted: str) -> Iterator[Fleet]:
        """Fleets, newest first, read page by page: all, or those with all that is given.

        Raises:
            InvalidRequestError: there is no such filter; ``problem.errors`` names it.
        """
        query = dict(wanted)
        if labels:
            query["labels"] = ",".join(f"{name}={value}" for name, value in labels.items())
        for page in self._pages(FleetPage, "/v1/fleets", query):
            yield from page.fleets

    def replan_fleet(self, fleet: Fleet | str, state: Json, *, idempotency_key: str | None = None) -> Fleet:
        """The fleet that plans a running one again, after nodes were lost or jobs failed, grew or arrived.

        ``state``: ``now_hours``, ``lost_nodes``, ``jobs`` by name (``state``, ``nodes``, ``steps_done``,
        ``steps``), ``arrived``. Jobs run as planned where it says nothing of them.

        Raises:
            NotReadyError: the fleet has no schedule, or none yet.
            InvalidRequestError: running jobs hold more nodes than are left.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        path = f"/v1/fleets/{_id(fleet)}:replan"
        return decoded(Fleet, self._transport.ask("POST", path, json=dict(state), headers=headers))

    def export_fleet(
        self, fleet: Fleet | str, save_dir: str | Path | None = None, *, job: str | None = None
    ) -> FleetFiles:
        """The launch files of a fleet, by job, with the start list; written below ``save_dir`` if given.

        ``job``: only the files of this one, without its folder. A launch that waited in a queue gets those
        of the newest plan with ``export_fleet(service.fleet(fleet_id, newest=True), folder, job="chat")``.

        Raises:
            NotReadyError: the fleet has no schedule, or none yet.
        """
        found = decoded(FleetFiles, self._transport.ask("GET", f"/v1/fleets/{_id(fleet)}/export"))
        if job is not None:
            own = {name: text for name, text in found.files.items() if name.startswith(f"{job}/")}
            found = replace(found, files={name.split("/", 1)[1]: text for name, text in own.items()})
        if save_dir is not None:
            save(found.files, Path(save_dir))
        return found

    def profiles(self) -> Iterator[StoredProfile]:
        """All stored profiles, newest first, read page by page, without their documents."""
        for page in self._pages(ProfilePage, "/v1/profiles"):
            yield from page.profiles

    def profile(self, profile_id: str) -> StoredProfile:
        """One stored profile with its document."""
        return decoded(StoredProfile, self._transport.ask("GET", f"/v1/profiles/{profile_id}"))

    def keep_profile(self, document: Json) -> StoredProfile:
        """A calibration or a measured profile, kept; the same document again is the same profile."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        kept = self._transport.ask("POST", "/v1/profiles", json=dict(document), headers=headers)
        return decoded(StoredProfile, kept)

    def report(self, job_or_plan: Job | Plan) -> str:
        """The report of a job's ranking, or of one plan, as an HTML page of its own."""
        where = (
            f"plans/{job_or_plan.plan_id}" if isinstance(job_or_plan, Plan) else f"jobs/{job_or_plan.id}"
        )
        return self._transport.send("GET", f"/v1/{where}/report").text

    def cancel(self, job: Job | str) -> Job:
        """The job after the wish to cancel it; a finished one stays as it is."""
        return decoded(Job, self._transport.ask("POST", f"/v1/jobs/{_id(job)}:cancel"))

    def delete(self, job: Job | str) -> None:
        """Delete a job with its plans, events and re-plans, and with a sweep its points."""
        self._transport.send("DELETE", f"/v1/jobs/{_id(job)}")

    def usage(self, *, days: int = 30) -> tuple[KeyUsage, ...]:
        """Return the CPU seconds of searches by key and day (UTC), newest day first, today included."""
        found = self._transport.ask("GET", "/v1/usage", params={"days": days})
        return decoded(UsageList, found).usage

    def workers(self) -> tuple[Worker, ...]:
        """Return the workers that are alive, with the job of each."""
        return decoded(WorkerList, self._transport.ask("GET", "/v1/workers")).workers

    def predict(
        self, problem: Json, configuration: Json | Plan | None = None, *, launch_file: Json | None = None
    ) -> PricedConfiguration:
        """Predict step time and memory of a configuration, or of the launch file that runs it.

        A plan of a finished job is priced under its own switches, precision, optimizer and launcher.
        """
        body: dict[str, object] = {"problem": dict(problem)}
        if isinstance(configuration, Plan):
            body["plan"] = configuration.plan_id
        elif configuration is not None:
            body["configuration"] = dict(configuration)
        if launch_file is not None:
            body["launch_file"] = dict(launch_file)
        return decoded(PricedConfiguration, self._transport.ask("POST", "/v1/predictions", json=body))

    def _pages(
        self, kind: type[Page], path: str, query: Mapping[str, str | float] | None = None
    ) -> Iterator[Page]:
        """Every page of a list, each read when it is asked for."""
        token: str | None = ""
        while token is not None:
            params: dict[str, str | int | float] = {"page_size": PAGE_SIZE, **(query or {})}
            params.update({"page_token": token} if token else {})
            page = decoded(kind, self._transport.ask("GET", path, params=params))
            yield page
            token = page.next_page_token


def _spelled(value: str | float) -> str | float:
    return str(value).lower() if isinstance(value, bool) else value


def _id(job: Job | str) -> str:
    return job if isinstance(job, str) else job.id
