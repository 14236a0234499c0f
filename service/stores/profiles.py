"""Profiles that clients keep here: calibrations and measured profiles, named by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Connection

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.capabilities import launchers_of
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError, faults_as
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping
from meshwright.profiles.profile import Profile, framework_of
from meshwright.service.db import profile_records as records
from meshwright.service.db.database import Database, compact_json
from meshwright.service.db.key_records import note
from meshwright.service.db.profile_records import ProfileRecord
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.answers import MAX_REMEMBERED_TEXT
from meshwright.service.jobs.idempotency import ONCE, Repeatable, made_before, remember, settled
from meshwright.service.jobs.pagination import Page, decode_token, page_of
from meshwright.service.requests.profiles import (
    CATALOG,
    LATEST,
    GivenProfile,
    is_named,
    profile_with,
    read_given,
    stored_id,
    taken,
)
from meshwright.service.stores.lessons import given_of
from meshwright.solver.calibration.credible import IncredibleCalibrationError
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem

MAX_TITLE = 200
MAX_PROFILES = 10_000  # of one tenant; calibrations that measurements make are kept beyond
A = TypeVar("A")


class ProfileStore:
    """The use cases of stored profiles."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, tenant: str, document: Mapping[str, object], repeatable: Repeatable = ONCE
    ) -> ProfileRecord:
        """Keep a profile; an equal one that is stored already is returned.

        Raises:
            InvalidProblemError: it is neither a calibration nor a measured profile, or there are too many.
            IdempotencyConflictError: the idempotency key was used for something else.
        """
        given = read_given(document)
        profile_id = profile_id_of(document)

        def keep() -> ProfileRecord:
            with self._database.write() as connection:
                made = made_before(connection, tenant, repeatable)
                is_new = records.find_profile(connection, tenant, profile_id) is None
                if is_new and records.is_full(connection, tenant, MAX_PROFILES):
                    raise InvalidProblemError.of("", f"there are {MAX_PROFILES} profiles. Delete one first")
                record = keep_profile(connection, tenant, profile_id, document, given=given)
                if made is None:
                    remember(connection, tenant, repeatable, subject=profile_id)
                return record

        return settled(keep)

    def read(self, tenant: str, profile_id: str) -> tuple[ProfileRecord, Mapping[str, Any]]:
        """Return one profile and its document.

        Raises:
            NotFoundError: this tenant has no such profile.
        """
        with self._database.read() as connection:
            record = records.find_profile(connection, tenant, profile_id)
            document = records.document_of(connection, profile_id) if record else None
        if record is None or document is None:
            raise NotFoundError("there is no such profile")
        return record, document

    def page(self, tenant: str, *, page_size: int, page_token: str | None) -> Page[ProfileRecord]:
        """Profiles, newest first.

        Raises:
            BadPageTokenError: the token is not one of ours.
        """
        before = decode_token(page_token, float, str) if page_token else None
        with self._database.read() as connection:
            found = records.newest_profiles(connection, tenant, limit=page_size + 1, before=before)
        return page_of(found, page_size, lambda one: (one.created_at_s, one.id))

    def delete(self, tenant: str, profile_id: str, *, actor: str) -> None:
        """Delete a profile; a waiting job that names it will fail and report that.

        Raises:
            NotFoundError: this tenant has no such profile.
        """
        with self._database.write() as connection:
            if not records.delete_profile(connection, tenant, profile_id):
                raise NotFoundError("there is no such profile")
            note(connection, tenant, actor=actor, action="profile.delete", subject=profile_id)

    def resolved(self, tenant: str, problem: Problem) -> Problem:
        """Return the problem with the id of the profile that answers it.

        A problem that names none, or ``latest``, gets the latest calibration of its cluster and framework,
        where measurements have made one; ``catalog`` stays, also when the job is planned again. One that
        ``latest`` named earlier (an earlier job's request, sent again) gets the latest of today.

        Raises:
            InvalidProblemError: at ``/profile``: there is no such profile, or it does not hold here.
        """
        plain = replace(problem, profile=None)
        if problem.profile == CATALOG:
            return problem
        if is_named(problem.profile):
            self.require(tenant, problem)
            return problem
        scopes = scopes_of(plain.cluster, map(framework_of, launchers_of(plain.launcher)))
        with self._database.read() as connection:
            latest = records.latest_calibration(connection, tenant, scopes)
        return plain if latest is None else replace(problem, profile=taken(latest.id))

    def relearnt(self, tenant: str, problem: Problem) -> Problem:
        """Return the problem of an earlier job with what was learnt of its cluster since.

        A profile that a client gave, and the job named, stays, and so does ``catalog``.
        """
        return problem if is_named(problem.profile) else self.resolved(tenant, problem)

    def require(self, tenant: str, problem: Problem) -> None:
        """Refuse a problem with a profile that this tenant does not have, or that does not hold for it.

        Raises:
            InvalidProblemError: at ``/profile``.
        """
        if problem.profile in {None, CATALOG}:
            return
        with self._database.read() as connection:
            known = records.find_profile(connection, tenant, stored_id(problem.profile))
        if known is None:
            raise InvalidProblemError.of(
                "/profile",
                f"there is no such profile: {shown(str(problem.profile))}",
                allowed=f"{LATEST}, {CATALOG}, or the id of one that was sent to POST /v1/profiles",
                nearest=next(
                    iter(get_close_matches(str(problem.profile)[:64].lower(), (LATEST, CATALOG), n=1)), None
                ),
            )
        self.profile_of(problem)

    def profile_of(self, problem: Problem, *, version: str | None = None) -> Profile:
        """Return the profile that answers a problem.

        A calibration that the service chose by itself and has no more is left out with a warning.

        Args:
            problem: as it was stored.
            version: of the profile in the answer; if that is the one without
                the calibration (``answered`` left it out), so is this.

        Raises:
            InvalidProblemError: at ``/profile``: a profile that the problem names, or that an answer was
                found with, is gone or does not hold for the cluster.
        """
        try:
            profile = self._named_by(problem)
        except InvalidProblemError as fault:
            if is_named(problem.profile) or version is not None:
                raise
            plain = self._named_by(replace(problem, profile=None))
            return replace(plain, warnings=(*plain.warnings, _left_out(problem, fault)))
        without = profile.uncalibrated
        return without if without is not None and without.version == version else profile

    def answered(self, problem: Problem, answer: Callable[[Profile, Sequence[Configuration]], A]) -> A:
        """Return the result of ``answer`` for the problem's profile and for known configurations.

        A calibration that the service chose by itself is left out, with a warning of the profile, if it
        makes plans faster than their software has ever been; plans found with it are known.

        Raises:
            InvalidProblemError: of a profile that the problem names; what ``answer`` raises.
        """
        profile = self.profile_of(problem)
        try:
            return answer(profile, ())
        except IncredibleCalibrationError as fault:
            if is_named(problem.profile) or profile.uncalibrated is None:
                raise
            return answer(
                replace(profile.uncalibrated, warnings=(*profile.warnings, _left_out(problem, fault))),
                fault.configurations,
            )

    def _named_by(self, problem: Problem) -> Profile:
        given = version = None
        with faults_as(lambda fault: replace(fault, pointer="/profile")):
            if problem.profile is not None and problem.profile != CATALOG:
                profile_id = stored_id(problem.profile)
                with self._database.read() as connection:
                    given = given_of(connection, profile_id)
                    version = records.version_of(connection, profile_id)
                if given is None:
                    raise InvalidProblemError.of("/profile", "is not stored here")
            profile, warnings = profile_with(problem, [] if given is None else [given])
        return replace(
            profile,
            title=profile.title
            if version is None
            else f"{profile.title} (version {version} of this cluster's)",
            warnings=(*profile.warnings, *warnings),
        )


def _left_out(problem: Problem, fault: InvalidProblemError) -> str:
    profile_id, why = stored_id(problem.profile or ""), fault.errors[0].message
    if not isinstance(fault, IncredibleCalibrationError):  # has a sentence as its message
        why = f"it {why}"
    return (
        f"profile {profile_id}, the latest calibration of this cluster, is left out and the catalog's "
        f"costs are used: {why}. Name an earlier version as the profile (GET /v1/profiles lists them), or "
        f"delete this one (DELETE /v1/profiles/{profile_id}) and measure again"
    )


def scopes_of(cluster: ClusterSpec, frameworks: Iterable[str]) -> set[str]:
    """Return the scopes of calibrations: a cluster, with any nodes of its kind, and a framework each."""
    groups = tuple(replace(group, num_nodes=1, links=None) for group in cluster.groups)
    alike = compact_json(cluster_to_mapping(replace(cluster, groups=groups)))
    read = _scope if len(alike) <= MAX_REMEMBERED_TEXT else _scope.__wrapped__
    return {read(alike, framework) for framework in set(frameworks)}


@lru_cache(maxsize=256)
def _scope(cluster: str, framework: str) -> str:
    canonical = cluster_to_mapping(cluster_from_mapping(json.loads(cluster)))  # 450.0, never 450
    return hashlib.sha256(compact_json({"cluster": canonical, "framework": framework}).encode()).hexdigest()


def scope_of(problem: Problem) -> str:
    """Return the scope of a measurement of a plan."""
    (scope,) = scopes_of(problem.cluster, [framework_of(problem.launcher)])
    return scope


def profile_id_of(document: Mapping[str, object]) -> str:
    """Return the first 32 hex digits of SHA-256 over the document, whatever the order of its keys."""
    return hashlib.sha256(
        json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()[:32]


def keep_profile(
    connection: Connection,
    tenant: str,
    profile_id: str,
    document: Mapping[str, object],
    *,
    given: GivenProfile,
    scope: str | None = None,
) -> ProfileRecord:
    """Add a profile inside a transaction, unless it is there; of a ``scope`` as its next version."""
    found = records.find_profile(connection, tenant, profile_id)
    if found is None:
        facts = {
            **_facts(given),
            "scope": scope,
            "version": None if scope is None else records.next_version(connection, tenant, scope),
        }
        records.insert_profile(connection, tenant, profile_id, document=document, **facts)
        found = records.find_profile(connection, tenant, profile_id)
    if found is None:
        raise NotFoundError("the profile was deleted while it was stored")
    return found


def _facts(given: GivenProfile) -> dict[str, object]:
    if isinstance(given, Calibration):
        title = f"{given.cluster}: {given.num_runs} run{'s' * (given.num_runs != 1)} under {given.stack}"
        return {"kind": "calibration", "gpu": given.gpu[:64], "title": title[:MAX_TITLE]}
    subject = given.subject
    title = f"{subject.model.name}: {len(given.measurements)} timings at {subject.seq_length} tokens"
    gpu = given.machine.gpu
    return {"kind": "measured", "gpu": gpu[:64] if gpu else None, "title": title[:MAX_TITLE]}
