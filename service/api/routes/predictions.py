"""Predictions: price a configuration of the caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError, faults_as
from meshwright.profiles.profile import Profile
from meshwright.service.api.deps import SUBMITS, BodyDep, Service, ServiceDep, TenantDep, computed
from meshwright.service.api.openapi import PREDICTION_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import ModelFigures, PredictionView
from meshwright.service.jobs.answers import stored_plan
from meshwright.service.requests.configuration import (
    assumed_values,
    assumption_notes,
    broken_rules,
    completed,
)
from meshwright.service.requests.fields import FIELDS
from meshwright.service.requests.launch_files import (
    Own,
    given_launch_file,
    in_the_text,
    own_of_files,
    ramp_notes,
)
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import SCHEMA
from meshwright.service.requests.startable import idle_notes
from meshwright.solver.answer import Prediction, settled_problem
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.reasons import reasons_of
from meshwright.solver.predict import predict
from meshwright.solver.space.launcher_rules import (
    beyond_positions,
    left_out,
    overlap_notes,
    stored_notes,
    unwritten,
)

_OF_THE_QUESTION = (*(row.name for row in FIELDS if not row.section), SCHEMA)
_PARTS = {"problem", "configuration", "launch_file", "plan", *_OF_THE_QUESTION}
_INSTEAD = ("configuration", "launch_file")  # of a plan
router = APIRouter(prefix="/v1/predictions", tags=["predictions"], responses=declared(401, 403, 422, 503))


@router.post(
    "",
    dependencies=[SUBMITS],
    responses=declared(404, 408, 413, 415, 429),
    openapi_extra=PREDICTION_BODY,
    summary="Price a configuration",
)
async def create_prediction(
    request: Request, body: BodyDep, service: ServiceDep, tenant: TenantDep
) -> PredictionView:
    """Predict step time and memory of a configuration, of the launch file that runs it, or of a plan.

    Write the question as for ``POST /v1/jobs``, next to ``configuration``, ``launch_file`` or ``plan``; or
    put it into ``problem``, but not both. A plan is priced under its own switches, precision, optimizer
    and launcher. Answers at once, stores nothing.
    """
    if isinstance(plan := body.get("plan"), str):
        await run_in_threadpool(service.jobs.plan, tenant, plan)  # an unknown one waits for no turn
    return await computed(request, lambda: prediction_of(body, tenant, service))


def prediction_of(body: Mapping[str, object], tenant: str, service: Service) -> PredictionView:
    """Return the prediction of a body; errors as ``own_of_body``."""
    own = own_of_body(service, tenant, body)
    problem, configuration = service.profiles.resolved(tenant, own.problem), own.configuration

    def priced(profile: Profile, _: Sequence[Configuration]) -> tuple[Profile, Prediction]:
        prediction = predict(problem, profile, configuration)
        require_credible(problem, profile, [(configuration, prediction)])
        return profile, prediction

    profile, prediction = service.profiles.answered(problem, priced)
    return PredictionView(
        config=configuration,
        prediction=prediction,
        why=reasons_of(problem, profile, [configuration], [prediction.step_time_s])[0],
        breaks=broken_rules(problem, configuration),
        profile=profile.version,
        model=ModelFigures.model_validate(problem.model_figures),
        launcher=own.launcher,
        notes=[
            *own.notes,
            *profile.warnings,
            *ramp_notes(own, profile),
            *overlap_notes(problem, configuration),
            *beyond_positions(problem),
            *left_out(problem),
            *unwritten(problem),
            *stored_notes(problem),
            *idle_notes(problem, configuration),
            *assumption_notes(problem, own.assumed),
        ],
        unread=list(own.unread),
    )


def own_of_body(service: Service, tenant: str, body: Mapping[str, object]) -> Own:
    """The problem and the configuration of a body.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``body``.
        NotFoundError: this tenant has no such plan.
    """
    _require_parts(body)
    if "plan" in body:
        return _from_plan(service, tenant, body)
    request = service.definitions.filled_in(tenant, _question(body))
    if "launch_file" in body:
        return _from_launch_file(request, body)
    problem = parse_problem(request)
    given = _part(body, "configuration")
    own = completed(given, problem)
    return Own(problem=problem, configuration=own, assumed=assumed_values(given, own))


def _from_plan(service: Service, tenant: str, body: Mapping[str, object]) -> Own:
    """A stored plan with the problem as it settled it: the given problem, or its job's."""
    for name in (name for name in _INSTEAD if name in body):
        raise InvalidProblemError.of(pointer(name), "a plan has its own configuration", allowed="leave out")
    plan_id = body["plan"]
    if not isinstance(plan_id, str):
        raise InvalidProblemError.of("/plan", "must be the plan_id of a plan, as text")
    job, stored = service.jobs.plan(tenant, plan_id)
    request = job.request
    if question := _question(body):
        request = service.definitions.filled_in(tenant, question)
    plan = stored_plan(stored)
    return Own(problem=settled_problem(plan, parse_problem(request)), configuration=plan.config)


def _from_launch_file(request: Mapping[str, object], body: Mapping[str, object]) -> Own:
    """The configuration of a launch file; ``configuration`` sets the values that the file leaves open."""
    values = _part(body, "configuration") if "configuration" in body else {}
    given = given_launch_file(_part(body, "launch_file"))
    with faults_as(in_the_text):
        return own_of_files(
            request,
            given.source,
            launcher=given.launcher,
            variables=given.variables,
            values=values,
            ignored=given.ignored,
            run=given.run,
        )


def _require_parts(body: Mapping[str, object]) -> None:
    for other in (name for name in body if name not in _PARTS):
        raise UnknownNameError.among(pointer(other), other, sorted(_PARTS))


def _question(body: Mapping[str, object]) -> Mapping[str, object]:
    """Return the problem of a body: in ``problem``, or as a job's body states it."""
    flat = {name: body[name] for name in _OF_THE_QUESTION if name in body}
    if "problem" not in body:
        return flat
    for name in flat:
        raise InvalidProblemError.of(
            pointer(name), "is given next to problem, which states it too", allowed="one of them"
        )
    return _part(body, "problem")


def _part(body: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = body.get(name)
    if not isinstance(part, dict):
        raise InvalidProblemError.of(pointer(name), "is required and must be an object")
    return part
