"""Profiles that clients keep here: calibrations and measured profiles, named by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.capabilities import launchers_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping
from meshwright.profiles.profile import Profile, framework_of
from meshwright.service.db import profile_records as records
from meshwright.service.db.database import Database, compact_json
from meshwright.service.db.key_records import note
from meshwright.service.db.profile_records import ProfileRecord
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.idempotency import ONCE, Repeatable, made_before, remember, settled
from meshwright.service.jobs.pagination import Page, decode_token, encode_token
from meshwright.service.requests.profiles import CATALOG, LATEST, GivenProfile, profile_with, read_given
from meshwright.solver.problem import Problem

MAX_TITLE = 200


class ProfileStore:
    """The use cases of stored profiles."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, tenant: str, document: Mapping[str, object], repeatable: Repeatable = ONCE
    ) -> ProfileRecord:
        """Keep a profile; the same one again is the one that is there.

        Raises:
            InvalidProblemError: it is no calibration and no measured profile.
            IdempotencyConflictError: the idempotency key was used for something else.
        """
        given = read_given(document)
        profile_id = profile_id_of(document)

        def keep() -> ProfileRecord:
            with self._database.write() as connection:
                made = made_before(connection, tenant, repeatable)
                record = keep_profile(connection, tenant, profile_id, document, given=given)
                if made is None:
                    remember(connection, tenant, repeatable, subject=profile_id)
                return record

        return settled(keep)

    def read(self, tenant: str, profile_id: str) -> tuple[ProfileRecord, Mapping[str, Any]]:
        """One profile and its document.

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
        shown = found[:page_size]
        more = len(found) > page_size
        token = encode_token(shown[-1].created_at_s, shown[-1].id) if more else None
        return Page(items=tuple(shown), next_page_token=token)

    def delete(self, tenant: str, profile_id: str, *, actor: str) -> None:
        """Delete a profile; a job that names it and has not run yet will fail and say so.

        Raises:
            NotFoundError: this tenant has no such profile.
        """
        with self._database.write() as connection:
            if not records.delete_profile(connection, tenant, profile_id):
                raise NotFoundError("there is no such profile")
            note(connection, tenant, actor=actor, action="profile.delete", subject=profile_id)

    def resolved(self, tenant: str, problem: Problem) -> Problem:
        """The problem with the profile that it is answered with named by its id.

        A problem that names none, or ``latest``, gets the latest calibration of its cluster and framework,
        where measurements have made one that this version can use; ``catalog`` gets none.

        Raises:
            InvalidProblemError: at ``/profile``: there is no such profile, or it does not hold here.
        """
        if problem.profile not in {None, LATEST, CATALOG}:
            self.require(tenant, problem)
            return problem
        plain = replace(problem, profile=None)
        if problem.profile == CATALOG:
            return plain
        scopes = {scope_of(plain, launcher) for launcher in launchers_of(plain.launcher)}
        with self._database.read() as connection:
            latest = records.latest_calibration(connection, tenant, scopes)
        if latest is None:
            return plain
        calibrated = replace(problem, profile=latest.id)
        try:
            self.profile_of(calibrated)
        except InvalidProblemError:  # written by another version: nobody asked for it by name
            return plain
        return calibrated

    def relearnt(self, tenant: str, problem: Problem) -> Problem:
        """The problem of an earlier job with what was learnt of its cluster since.

        A profile that a client gave, and the job named, stays.
        """
        with self._database.read() as connection:
            given = problem.profile is not None and records.version_of(connection, problem.profile) is None
        return problem if given else self.resolved(tenant, replace(problem, profile=None))

    def require(self, tenant: str, problem: Problem) -> None:
        """Refuse a problem whose profile this tenant does not have, or that does not hold for it.

        Raises:
            InvalidProblemError: at ``/profile``.
        """
        if problem.profile is None:
            return
        with self._database.read() as connection:
            known = records.find_profile(connection, tenant, problem.profile)
        if known is None:
            raise InvalidProblemError.of("/profile", "there is no such profile; POST it to /v1/profiles")
        self.profile_of(problem)

    def profile_of(self, problem: Problem) -> Profile:
        """The profile that a problem is answered with.

        Raises:
            InvalidProblemError: at ``/profile``: the profile is gone, or does not hold for the cluster.
        """
        given: list[GivenProfile] = []
        version = None
        if problem.profile is not None:
            with self._database.read() as connection:
                document = records.document_of(connection, problem.profile)
                version = records.version_of(connection, problem.profile)
            if document is None:
                raise InvalidProblemError.of("/profile", "is not stored here")
            given.append(read_given(document))
        try:
            profile, warnings = profile_with(problem, given)
        except InvalidProblemError as fault:
            errors = (replace(error, pointer="/profile") for error in fault.errors)
            raise InvalidProblemError(errors) from None
        title = (
            profile.title if version is None else f"{profile.title} (version {version} of this cluster's)"
        )
        return replace(profile, title=title, warnings=(*profile.warnings, *warnings))


def scope_of(problem: Problem, launcher: str | None = None) -> str:
    """What one calibration serves: a cluster, however many of its nodes are used, and a framework."""
    cluster = replace(
        problem.cluster, groups=tuple(replace(group, num_nodes=1) for group in problem.cluster.groups)
    )
    framework = framework_of(launcher or problem.launcher)
    canonical = cluster_to_mapping(cluster_from_mapping(cluster_to_mapping(cluster)))  # 450.0, never 450
    named = {"cluster": canonical, "framework": framework}
    return hashlib.sha256(compact_json(named).encode()).hexdigest()


def profile_id_of(document: Mapping[str, object]) -> str:
    """First 32 hex digits of SHA-256 over the document, whatever the order of its keys."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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
        version = None if scope is None else records.next_version(connection, tenant, scope)
        facts = {**_facts(given), "scope": scope, "version": version}
        records.insert_profile(connection, tenant, profile_id, document=document, **facts)
        found = records.find_profile(connection, tenant, profile_id)
    if found is None:
        raise NotFoundError("the profile vanished while it was stored")
    return found


def _facts(given: GivenProfile) -> dict[str, object]:
    """What a list of profiles shows."""
    if isinstance(given, Calibration):
        title = f"{given.cluster}: {given.num_runs} runs under {given.stack}"
        return {"kind": "calibration", "gpu": given.gpu[:64], "title": title[:MAX_TITLE]}
    subject = given.subject
    title = f"{subject.model.name}: {len(given.measurements)} timings at {subject.seq_length} tokens"
    gpu = given.machine.gpu
    return {"kind": "measured", "gpu": gpu[:64] if gpu else None, "title": title[:MAX_TITLE]}
