"""A launcher that asks: the nodes it was given, one question, launch files; and what if nobody answers.

``choose`` never holds up a start for longer than ``limit_s``. What was accepted last for the same question
is kept below the folder of the files, and answers it again where the service is away.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from meshwright_client.client import Client
from meshwright_client.decoding import decoded
from meshwright_client.errors import (
    InvalidRequestError,
    MeshwrightError,
    UnexpectedAnswerError,
)
from meshwright_client.files import inside, save
from meshwright_client.nodes import Nodes, detect
from meshwright_client.records import Configuration

DEFAULT_URL = "http://127.0.0.1:8420"
LIMIT_S = 120.0
ASK_SHARE = 0.9  # of the limit; in the rest the others still see what was chosen without an answer
SEARCH_SHARE = 0.5  # of the limit that the search may use; the rest is for queue, network and files
SEARCH_LIMIT_S = 30.0  # the service's own
LOOK_S = 0.2  # between two looks for the file of rank 0
_NUMBER_OF_NODES = {"num_nodes", "reserve_nodes", "gpus"}  # fields of a search
CHOICE = "meshwright.json"
ACCEPTED = ".meshwright"  # folder of accepted answers, one for each question


class NoAnswerError(MeshwrightError):
    """Nobody answered within the limit, and nothing was accepted before for this question."""


class NoPlanError(MeshwrightError):
    """The service has answered: nothing fits, or the search failed; the message says why."""


class NotWrittenError(MeshwrightError):
    """The launch files cannot be written; those that were there are as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan that a start uses, and where its launch files lie."""

    plan_id: str
    job_id: str
    launcher: str
    config: Configuration
    step_time_s: float  # predicted
    step_time_low_s: float  # 80 % interval
    step_time_high_s: float
    peak_memory_bytes: int
    profile: str  # measured costs that it was priced with: the latest calibration of the cluster, if any
    files: Mapping[str, str]  # name to text
    warnings: tuple[str, ...]
    question: str  # SHA-256 of what was asked
    run_id: str
    source: Literal["service", "last answer"]
    why: str = ""  # the last answer was taken
    save_dir: str = "."

    def path(self, name: str) -> Path:
        """Where a launch file lies."""
        return Path(self.save_dir, name)


def choose(
    problem: Mapping[str, Any],
    cluster_from: str | Path | None = None,
    *,
    save_dir: str | Path = "meshwright-run",
    url: str | None = None,
    key: str | None = None,
    launcher: str | None = None,
    limit_s: float = LIMIT_S,
    nodes: Nodes | None = None,
    on_all_nodes: bool = False,
) -> Choice:
    """The plan of this start, with its launch files below ``save_dir``, a folder that all nodes see.

    ``cluster_from``: ``slurm``, ``k8s``, ``torchelastic`` or a JSON file that states a cluster; None: found
    out. Node 0 asks, the others wait for its file. Asked again by the same start, the answer is the one
    that it has, which the others may have taken; a later start uses what the service has learnt of the
    cluster since. The scheduler tells starts apart, or MESHWRIGHT_RUN_ID. ``url`` and ``key`` come from
    MESHWRIGHT_URL and MESHWRIGHT_KEY. ``on_all_nodes``: every node starts the training whatever the plan
    says, so a plan on fewer of them, though faster, is none; processes of torchrun always do.

    Raises:
        UnknownNodesError: the scheduler does not tell the nodes.
        InvalidRequestError: the problem is wrong; ``problem.errors`` names the fields.
        NoPlanError: nothing fits on these nodes.
        NoAnswerError: no answer within ``limit_s``, and none was accepted before for this question.
        NotWrittenError: ``save_dir`` cannot be written.
        ValueError: ``limit_s`` is no number of seconds above 0.
    """
    if not (isfinite(limit_s) and limit_s > 0):
        raise ValueError(f"limit_s is {limit_s}; it must be a number of seconds above 0")
    began_s = time.monotonic()
    nodes = nodes or detect(cluster_from)
    on_all_nodes = on_all_nodes or nodes.world is not None
    asked = question_of(problem, nodes, limit_s, on_all_nodes=on_all_nodes)
    folder = Path(save_dir)
    digest = _digest({**problem, "cluster": asked["cluster"]}, launcher, nodes.world or on_all_nodes)
    if nodes.rank > 0:
        return _awaited(folder, digest, nodes.run_id, began_s + limit_s)
    mine = _of_start(folder, digest, nodes.run_id)
    if mine is not None:
        return _accepted(mine, folder)
    asking = _Asking(
        url=url or os.environ.get("MESHWRIGHT_URL", DEFAULT_URL),
        key=key or os.environ.get("MESHWRIGHT_KEY") or None,
        problem=asked, launcher=launcher, question=digest, run_id=nodes.run_id,
        world=nodes.world, limit_s=limit_s,
    )  # fmt: skip
    choice = asking.answer(began_s + ASK_SHARE * limit_s) or _last(
        folder, digest, nodes.run_id, asking.why, limit_s
    )
    return _accepted(choice, folder)


def question_of(
    problem: Mapping[str, Any], nodes: Nodes, limit_s: float = LIMIT_S, *, on_all_nodes: bool = False
) -> dict[str, Any]:
    """The problem on the nodes of this job, with a search that ends within the limit.

    ``on_all_nodes``: a plan must use them all, unless the problem says how many. What is no search or no
    time is left as it is: the service names the field.
    """
    asked = {**problem, "cluster": nodes.cluster_of(problem.get("cluster"), ASK_SHARE * limit_s)}
    search = problem.get("search") or {}
    if not isinstance(search, Mapping):
        return asked
    changed: dict[str, Any] = {}
    given_s = search.get("time_limit_s", SEARCH_LIMIT_S)
    if isinstance(given_s, int | float) and not isinstance(given_s, bool):
        changed["time_limit_s"] = min(given_s, max(0.1, SEARCH_SHARE * limit_s))
    if on_all_nodes and nodes.num_nodes is not None and not _NUMBER_OF_NODES & set(search):
        changed["num_nodes"] = [nodes.num_nodes]
    return {**asked, "search": {**search, **changed}} if changed else asked


@dataclass(slots=True, kw_only=True)
class _Asking:
    """One question to the service, asked in a thread that nobody waits for after the limit."""

    url: str
    key: str | None
    problem: Mapping[str, Any]
    launcher: str | None
    question: str
    run_id: str
    world: int | None  # processes that the plan must use
    limit_s: float
    choice: Choice | None = None
    refusal: MeshwrightError | None = None  # that no earlier answer mends
    why: str = ""

    def answer(self, until: float) -> Choice | None:
        """The answer of the service; None, with ``why``: there is none in time.

        Raises:
            InvalidRequestError, NoPlanError: the service has answered that there is nothing to choose.
        """
        thread = threading.Thread(target=self._ask, daemon=True, name="meshwright-choose")
        thread.start()
        thread.join(max(0.0, until - time.monotonic()))
        if self.refusal is not None:
            raise self.refusal
        if self.choice is None and not self.why:
            self.why = f"no answer within {self.limit_s:g} s"
        return self.choice

    def _ask(self) -> None:
        try:
            self.choice = self._asked()
        except (InvalidRequestError, NoPlanError) as fault:
            self.refusal = fault
        except Exception as fault:  # noqa: BLE001 - whatever came is no answer, and no start hangs on it
            self.why = f"{type(fault).__name__}: {fault}"

    def _asked(self) -> Choice:
        """The answer, whole."""
        began = time.monotonic()
        timeout_s = min(10.0, self.limit_s)
        with Client(self.url, self.key, timeout_s=timeout_s, retry_s=self.limit_s / 2) as service:
            key = _digest(self.problem, self.run_id)  # the same start asks once, however often
            job = service.submit(self.problem, idempotency_key=key)
            left_s = self.limit_s - (time.monotonic() - began)
            done = service.wait(job, timeout_s=max(0.1, left_s))
            if done.state != "succeeded":
                reasons = done.infeasible.reasons if done.infeasible else (str(done.problem or ""),)
                raise NoPlanError(" ".join([f"job {done.id} is {done.state}:", *reasons]))
            answer = service.plans(done, most=1)
            if not answer.plans:
                raise UnexpectedAnswerError(f"job {done.id} has succeeded without a plan")
            plan = answer.plans[0]
            if self.world not in (None, answer.num_gpus_used):
                raise NoPlanError(
                    f"plan {plan.plan_id} of job {done.id} uses {answer.num_gpus_used} GPUs, torchrun has "
                    f"started {self.world} processes; start as many, or state the cluster that they are on"
                )
            export = service.export(plan, self.launcher)
        found = plan.prediction
        choice = Choice(
            plan_id=plan.plan_id, job_id=done.id, launcher=export.launcher, config=plan.config,
            step_time_s=found.step_time_s, step_time_low_s=found.step_time_low_s,
            step_time_high_s=found.step_time_high_s, peak_memory_bytes=found.peak_memory_bytes,
            profile=answer.notes.get("profile") or answer.versions.get("profile", ""),
            files=export.files, warnings=(*answer.warnings, *export.warnings), question=self.question,
            run_id=self.run_id, source="service",
        )  # fmt: skip
        _text_of(choice)  # figures that are no numbers are half an answer,
        for name in choice.files:
            inside(name)  # and so are files elsewhere
        return choice


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _accepted(choice: Choice, folder: Path) -> Choice:
    """The choice with its files written; ``meshwright.json``, which the other nodes await, comes last.

    Raises:
        NotWrittenError: they cannot be.
    """
    choice = replace(choice, save_dir=str(folder.resolve()))
    text = _text_of(choice)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save({**choice.files, f"{ACCEPTED}/{choice.question}.json": text, CHOICE: text}, folder)
    except OSError as fault:
        raise NotWrittenError(
            f"{folder}: {fault.strerror or fault}; plan {choice.plan_id} cannot be written there"
        ) from None
    return choice


def _text_of(choice: Choice) -> str:
    return json.dumps(asdict(choice), indent=1, allow_nan=False)


def _last(folder: Path, question: str, run_id: str, why: str, limit_s: float) -> Choice:
    """What was accepted before for the same question.

    Raises:
        NoAnswerError: nothing was.
    """
    known = read_choice(folder / ACCEPTED / f"{question}.json")
    if known is None:
        raise NoAnswerError(f"{why}; nothing was accepted before for this question (limit {limit_s:g} s)")
    return replace(known, run_id=run_id, source="last answer", why=why)


def _awaited(folder: Path, question: str, run_id: str, until: float) -> Choice:
    """What node 0 of this start has chosen.

    Raises:
        NoAnswerError: its file did not come in time.
    """
    while True:
        mine = _of_start(folder, question, run_id)
        if mine is not None:
            return mine
        if time.monotonic() > until:
            choice = read_choice(folder / CHOICE)
            why = "it has failed, or this node does not see its files"
            if choice is not None and choice.run_id == run_id:
                why = "it has asked another question: this node has other GPUs, or another problem file"
            elif choice is not None:
                why += f"; the one that is there is of start {choice.run_id}"
            raise NoAnswerError(f"node 0 has written no {folder / CHOICE} for this start in time: {why}")
        time.sleep(LOOK_S)


def _of_start(folder: Path, question: str, run_id: str) -> Choice | None:
    """What this start has chosen already."""
    choice = read_choice(folder / CHOICE)
    same = choice is not None and (choice.question, choice.run_id) == (question, run_id)
    return choice if same else None


def read_choice(path: Path) -> Choice | None:
    """The choice that a file holds; None: there is none, or another version wrote it."""
    try:
        return decoded(Choice, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, UnexpectedAnswerError):
        return None
