"""Measurements of plans' runs: stored, and calibrated from by the same code as ``meshwright calibrate``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.exc import IntegrityError

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.db import profile_records as records
from meshwright.service.db.database import Database
from meshwright.service.db.plan_records import note_measured
from meshwright.service.db.profile_records import MeasurementRecord
from meshwright.service.errors import IdempotencyConflictError, NotFoundError
from meshwright.service.jobs.answers import stored_plan
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.service.requests.profiles import read_given
from meshwright.service.stores.lessons import MAX_RUNS, given_of, observation_of, observations_of
from meshwright.service.stores.profiles import keep_profile, profile_id_of, scope_of
from meshwright.solver.answer import Prediction, settled_problem
from meshwright.solver.calibration.calibrate import calibrate, default_profile_of, impossible
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.calibration.observations import Observation, require_equal_nodes
from meshwright.solver.configuration import Configuration, configuration_from_json
from meshwright.solver.predict import predict, predict_all
from meshwright.solver.problem import Problem

MAX_TRIES = 5  # with others that measure the same cluster at the same moment
_JUDGED = 8  # best plans of a job that a calibration is tried on


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The result of one measurement."""

    id: str
    plan_id: str
    profile_id: str
    profile_version: int | None  # of this cluster's and framework's
    num_runs: int  # with a step time, of this cluster and framework
    findings: tuple[str, ...]  # what looks wrong in all runs together
    prediction: Prediction  # of the plan, corrected


class Measurements:
    """The use cases of measured plans."""

    def __init__(self, database: Database, jobs: Jobs) -> None:
        self._database = database
        self._jobs = jobs

    def add(self, tenant: str, plan_id: str, body: Mapping[str, object], *, key: str | None) -> Learnt:
        """Keep a measurement and learn from all of its cluster and framework.

        Raises:
            NotFoundError: this tenant has no such plan.
            InvalidProblemError: a field is wrong, or no machine can have measured that.
            IdempotencyConflictError: the key was used with another body or plan.
        """
        fault: IntegrityError | None = None
        for _ in range(MAX_TRIES):
            known = self._known(tenant, plan_id, body, key)
            if known is not None:
                return self._learnt(tenant, known)
            document, values, left_out = self._lesson(tenant, plan_id, body)
            try:
                stored = self._store(tenant, document, {**values, "idempotency_key": key})
            except IntegrityError as lost:  # another request was faster: it used this key, or this version
                fault = lost
            else:
                learnt = self._learnt(tenant, stored)
                return replace(learnt, findings=(*learnt.findings, *left_out))
        raise fault or NotFoundError("there is no such measurement")

    def require(self, tenant: str, plan_id: str, body: Mapping[str, object], *, key: str | None) -> None:
        """Require a plan, or an earlier request with this key, before anything is learnt.

        Raises:
            NotFoundError: this tenant has no such plan.
            IdempotencyConflictError: the key was used with another body or plan.
        """
        if self._known(tenant, plan_id, body, key) is None:
            self._jobs.plan(tenant, plan_id)

    def _lesson(
        self, tenant: str, plan_id: str, body: Mapping[str, object]
    ) -> tuple[Mapping[str, object], dict[str, Any], list[str]]:
        """Return the calibration with a new run, the run's row, and what the calibration leaves out."""
        job, plan = self._jobs.plan(tenant, plan_id)
        request = _settled(job.request, plan)
        one = observation_of(plan_id, request, plan["config"], body)
        _require_possible(one)
        scope = scope_of(one.problem)
        with self._database.read() as connection:
            earlier = records.newest_measurements(connection, tenant, scope, limit=MAX_RUNS - 1)
        seen, left_out = observations_of(earlier)
        document = calibrate([one, *seen], cluster=one.problem.cluster.name).to_json()
        row = {
            "scope": scope, "plan_id": plan_id, "request": request, "config": plan["config"],
            "body": body, "profile_id": profile_id_of(document),
        }  # fmt: skip
        return document, row, left_out

    def _known(
        self, tenant: str, plan_id: str, body: Mapping[str, object], key: str | None
    ) -> MeasurementRecord | None:
        if key is None:
            return None
        with self._database.read() as connection:
            found = records.find_measurement(connection, tenant, key)
        if found is not None and (found.plan_id, dict(found.body)) != (plan_id, dict(body)):
            raise IdempotencyConflictError("this idempotency key was used with another body")
        return found

    def _store(
        self, tenant: str, document: Mapping[str, object], values: Mapping[str, object]
    ) -> MeasurementRecord:
        measurement_id = uuid.uuid4().hex
        given = read_given(document)
        with self._database.write() as connection:
            keep_profile(
                connection,
                tenant,
                str(values["profile_id"]),
                document,
                given=given,
                scope=str(values["scope"]),
            )
            records.insert_measurement(connection, tenant, measurement_id, **values)
            note_measured(connection, tenant, [str(values["plan_id"])])
            found = records.newest_measurements(connection, tenant, str(values["scope"]), limit=MAX_RUNS)
            return next(one for one in found if one.id == measurement_id)

    def _learnt(self, tenant: str, record: MeasurementRecord) -> Learnt:
        with self._database.read() as connection:
            calibration = given_of(connection, record.profile_id)
            version = records.version_of(connection, record.profile_id)
        if not isinstance(calibration, Calibration):
            raise InvalidProblemError.of("/profile", "is not a calibration")
        problem = parse_problem(record.request)
        profile = calibration.applied(default_profile(problem.cluster, problem.priced_as))
        return Learnt(
            id=record.id,
            plan_id=record.plan_id,
            profile_id=record.profile_id,
            profile_version=version,
            num_runs=calibration.num_runs,
            findings=(*calibration.findings, *self._set_aside(tenant, record, calibration)),
            prediction=predict(problem, profile, configuration_from_json(record.config)),
        )

    def _set_aside(self, tenant: str, record: MeasurementRecord, calibration: Calibration) -> list[str]:
        """Return notes that answers will leave the calibration out, judged on the job's best plans."""
        try:
            job, _ = self._jobs.plan(tenant, record.plan_id)
            _, page = self._jobs.plans(tenant, job.id, page_size=_JUDGED, page_token=None)
        except NotFoundError:  # forgotten since: the request is repeated
            return []
        asked: list[tuple[Problem, list[Configuration]]] = []  # plans of one problem are priced together
        for found in map(stored_plan, page.items):
            problem = settled_problem(found, parse_problem(job.request))
            alike = next((configs for one, configs in asked if one == problem), None)
            if alike is None:
                asked.append((problem, alike := []))
            alike.append(found.config)
        for problem, configs in asked:
            profile = default_profile(problem.cluster, problem.priced_as)
            if profile.framework.stack != calibration.stack:
                continue
            profile = calibration.applied(profile)
            predictions = predict_all(problem, profile, configs)
            try:
                require_credible(problem, profile, list(zip(configs, predictions, strict=True)))
            except InvalidProblemError as fault:
                why = fault.errors[0].message
                return [f"this calibration is left out of answers that do not name it: {why}"]
        return []


def _settled(request: Mapping[str, object], plan: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the request as the plan settled it: with its launcher, precision, optimizer and batch.

    Raises:
        InvalidProblemError: a plan of unlike GPUs, which no calibration learns from.
    """
    found = stored_plan(plan)
    require_equal_nodes(found.config, "")
    return problem_to_mapping(settled_problem(found, parse_problem(request)))


def _require_possible(one: Observation) -> None:
    reason = impossible(one, default_profile_of(one))
    if reason is not None:
        memory = impossible(replace(one, step_time_s=None), default_profile_of(one)) is not None
        raise InvalidProblemError.of("/peak_memory_bytes" if memory else "/step_time_s", reason)
