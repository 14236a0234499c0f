"""Answers as JSON, written and read back: what the service sends, and what ``plan --json`` writes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from meshwright import profiles, solver
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.service.stored import FOREIGN_SHAPE
from meshwright.solver.answer import Answer, Plan, plan_from_json, version_of
from meshwright.solver.configuration import record_from_json
from meshwright.solver.problem import Problem


def answer_from_json(raw: Mapping[str, Any]) -> Answer:
    """Return the Answer that ``Answer.to_json`` wrote; what the service adds to it is left out.

    Raises:
        InvalidProblemError: it was written by another version.
    """
    try:
        return record_from_json(Answer, raw)
    except FOREIGN_SHAPE:
        raise InvalidProblemError.of("", "another version wrote the answer: plan again") from None


def stored_plan(body: Mapping[str, Any]) -> Plan:
    """Return the plan of a stored body.

    Raises:
        InvalidProblemError: another version wrote it, or it is damaged.
    """
    try:
        return plan_from_json(body)
    except FOREIGN_SHAPE:
        raise InvalidProblemError.of("", "the stored plan can't be read: plan again") from None


def sorted_out(
    bodies: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the bodies of plans that can be read, and those that cannot."""
    kinds: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]] = [], []
    for body in bodies:
        try:
            plan_from_json(body)
        except FOREIGN_SHAPE:
            kinds[1].append(body)
        else:
            kinds[0].append(body)
    return kinds


def answer_of(stored: Mapping[str, Any] | None, plans: Iterable[Mapping[str, Any]]) -> Answer:
    """Return a job's stored answer with the given plans."""
    return answer_from_json({**(stored or {}), "plans": list(plans)})


def answer_document(answer: Answer, problem: Problem) -> dict[str, Any]:
    """Return the answer as ``--json`` prints it: the API's fields, and the problem it belongs to."""
    return {**answer.to_json(), "problem": problem_to_mapping(problem)}


def stored_answer(document: Mapping[str, Any], *, pointer: str = "/plans") -> tuple[Answer, Problem]:
    """Return an answer and its problem, without the costs that it was found with.

    Args:
        document: what ``plan --json`` wrote.
        pointer: what errors name.

    Raises:
        InvalidProblemError: the document is not an answer, or another version wrote it.
    """
    plans, problem = document.get("plans"), document.get("problem")
    if not isinstance(plans, list | tuple) or not isinstance(problem, Mapping):
        raise InvalidProblemError.of(pointer, "not an answer file from `meshwright plan --json`")
    if "status" not in document:
        raise InvalidProblemError.of(
            pointer,
            "the file has a plan without its search. Export it again, or give the answer.json of "
            "meshwright plan",
        )
    asked = parse_problem(problem)
    try:
        return answer_from_json(document), asked
    except InvalidProblemError as fault:
        raise InvalidProblemError.of(pointer, fault.errors[0].message) from None


def is_complete(answer: Mapping[str, Any]) -> bool:
    """Return whether a search looked at everything, however near its bound is to its first plan."""
    return answer.get("status") == "infeasible" or bool(answer.get("certified_by"))


# --------------------------------------------------------------------------------------------------
# What answered: the versions that an answer may be reused under.


_DECIDING = (".py", ".yaml", ".json", ".csv")
MAX_REMEMBERED_TEXT = 16_384  # characters of a cluster with remembered digests


@cache
def code_digest() -> str:
    """Return the first 12 hex digits of SHA-256 over the deciding code and its data (limits, spreads).

    Between two releases it is the version.
    """
    digest = hashlib.sha256()
    for room in (profiles.__path__[0], solver.__path__[0]):
        names = (f"{folder}/{name}" for folder, _, files in os.walk(room) for name in files)
        for name in sorted(name for name in names if name.endswith(_DECIDING)):
            digest.update(name.removeprefix(room).encode())
            with open(name, "rb", buffering=0) as file:  # noqa: PTH123 - paths take a third longer
                digest.update(file.read())
    return digest.hexdigest()[:12]


def versions_of(problem: Problem) -> dict[str, str]:
    """Return the versions of the code and of the measured costs that would answer ``problem`` here."""
    cluster = json.dumps(cluster_to_mapping(problem.cluster), separators=(",", ":"), allow_nan=False)
    known = len(cluster) <= MAX_REMEMBERED_TEXT
    return {
        "meshwright": version_of("meshwright"),
        "code": code_digest(),
        "ortools": version_of("ortools"),
        "profile": _profile_version(cluster, problem.priced_as)
        if known
        else default_profile(problem.cluster, problem.priced_as).version,
    }


@lru_cache(maxsize=256)
def _profile_version(cluster: str, launcher: str) -> str:
    """Return the version of a cluster's measured costs, given as JSON: hashing them all takes 0.3 ms."""
    return default_profile(cluster_from_mapping(json.loads(cluster)), launcher).version


def cache_key_of(
    tenant: str, request: Mapping[str, object], versions: Mapping[str, str], *, is_part: bool = False
) -> str:
    """Return SHA-256, in hex, of everything that changes an answer: tenant, canonical request, versions.

    ``is_part``: of a sweep or a fleet. Its answer has plans without changes that train faster, so that it
    answers no request of its own.
    """
    whole = {
        "tenant": tenant,
        "request": request,
        "versions": versions,
        **({"part": True} if is_part else {}),
    }
    return hashlib.sha256(
        json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()
