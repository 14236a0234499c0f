"""``meshwright demo``: the main job end to end, as ``make run`` starts it."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.profiles.documents import document_text, shown_path
from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.service.cli.client import ServiceClient
from meshwright.service.cli.jobs import followed, print_answer
from meshwright.service.cli.terminal import FOUND, NO_PLAN, say_error
from meshwright.service.files import ANSWER_FILE, REPORT_FILE, write_text
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem

EXAMPLE = Path(__file__).with_name("demo.json")  # Llama 3.1 70B on 128 H100


def demo(
    problem: Annotated[
        Path, typer.Argument(help="Problem file to submit.", show_default="Llama 3.1 70B on 128 H100")
    ] = EXAMPLE,
    out: Annotated[Path, typer.Option(help="Folder for records and launch files.")] = Path("out"),
) -> None:
    """Start the service, submit a job over REST, follow it, print its ranking, write launch files, stop."""
    raise typer.Exit(run_main_job(problem, out))


# --------------------------------------------------------------------------------------------------
# The main job: a service of our own, one job over REST, its ranking, its launch files, a clean stop.


START_S = 120.0  # on a busy machine; one that has ended is not waited for
STOP_S = 10.0  # after SIGTERM, before it is killed


class ServiceDidNotStartError(PlannerError):
    """The service process ended, or stayed silent, before it accepted requests."""

    code = "service_did_not_start"


def run_main_job(problem_file: Path, out: Path) -> int:
    """Everything a first run shows; the exit code.

    Raises:
        InvalidProblemError: the problem file or the request is wrong.
        ServiceDidNotStartError: the service did not come up.
    """
    request = read_problem_file(problem_file)
    parse_problem(request)  # wrong input is said before anything starts
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InvalidProblemError.of("--out", f"{shown_path(out)}: {fault.strerror}") from None
    began_s = time.monotonic()
    with running_service(out) as (url, log), ServiceClient(url) as service:
        _say(f"service    {url}   (SQLite, one spawned worker; log: {log})")
        job = service.submit(request, key=None, fresh=True)
        _say(f"job        {job['id']}   POST {url}/v1/jobs <- {problem_file}\n")
        job = followed(service, job["id"])
        if not job["links"].get("plans"):
            say_error(f"the job {job['state']}: {(job.get('problem') or {}).get('detail', 'no plan')}")
            return NO_PLAN
        answer = service.answer(job["id"])
        print_answer(answer, job["request"])
        folder = _write(service, job, answer, out / job["id"])
    _say(f"\nwrote      {folder}/   ({', '.join(sorted(path.name for path in folder.iterdir()))})")
    _say(f"records    {log.with_name('meshwright.db')}")
    _say(f"stopped cleanly after {time.monotonic() - began_s:.1f} s")
    return FOUND


def _write(service: ServiceClient, job: Mapping[str, Any], answer: Mapping[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        ANSWER_FILE: document_text({**answer, "problem": job["request"]}),
        "problem.json": document_text(job["request"]),
    }
    if answer["plans"] and job["request"]["launcher"] != "none":
        bundle = service.call(
            "GET",
            f"/v1/plans/{answer['plans'][0]['plan_id']}/export",
            params={"launcher": job["request"]["launcher"]},
        )
        files |= bundle["files"]
        for warning in bundle["warnings"]:
            _say(f"warning: {warning}")
    files[REPORT_FILE] = service.ask("GET", f"/v1/jobs/{job['id']}/report").text
    for name, text in files.items():
        write_text(folder / name, text)
    return folder


@contextlib.contextmanager
def running_service(out: Path) -> Iterator[tuple[str, Path]]:
    """``meshwright serve`` as a child on a free loopback port, with its database file under ``out``.

    Raises:
        ServiceDidNotStartError: it does not accept requests in time.
    """
    home = Path(tempfile.mkdtemp(prefix="service-", dir=out))
    log = home / "service.log"
    environment = {**os.environ, "MESHWRIGHT_HOST": "127.0.0.1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "meshwright", "serve", "--port", "0"]
    command += ["--database-url", f"sqlite:///{home.resolve() / 'meshwright.db'}"]
    with log.open("w", encoding="utf-8") as errors:
        child = subprocess.Popen(  # noqa: S603 - our own program with our own arguments
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
        try:
            yield _url_of(child, log), log
        finally:
            _stop(child)


def _url_of(child: subprocess.Popen[str], log: Path) -> str:
    with selectors.DefaultSelector() as selector:
        if child.stdout:
            selector.register(child.stdout, selectors.EVENT_READ)
        # empty where the pipe is closed, or silent for too long
        line = child.stdout.readline() if child.stdout and selector.select(START_S) else ""
    if "http://" not in line:
        raise ServiceDidNotStartError(f"the service did not start; see {log}")
    return line[line.index("http://") :].split()[0]


def _stop(child: subprocess.Popen[str]) -> None:
    """SIGTERM, then patience, then SIGKILL."""
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout:
        child.stdout.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
