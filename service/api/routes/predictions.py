"""Predictions: price a configuration of the caller's own."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from profiles.errors import InvalidProblemError, UnknownNameError
from service.api.deps import SUBMITS, BodyDep, ServiceDep, TenantDep
from service.api.openapi import PREDICTION_BODY
from service.api.problems import declared
from service.api.schemas import PredictionView
from service.configurations import broken_rules, completed
from service.json_input import pointer
from service.request import parse_problem
from solver.predict import predict
from solver.why.explained import reasons_of

router = APIRouter(prefix="/v1/predictions", tags=["predictions"], responses=declared(401, 403, 422, 503))


@router.post(
    "",
    dependencies=[SUBMITS],
    responses=declared(413, 415),
    openapi_extra=PREDICTION_BODY,
    summary="Price a configuration",
)
def create_prediction(body: BodyDep, tenant: TenantDep, service: ServiceDep) -> PredictionView:
    """What the cost model expects of ``configuration`` for ``problem``; answers at once, stores nothing."""
    problem = parse_problem(service.definitions.filled_in(tenant, _part(body, "problem")))
    configuration = completed(_part(body, "configuration"), problem)
    service.profiles.require(tenant, problem)
    profile = service.profiles.profile_of(problem)
    prediction = predict(problem, profile, configuration)
    return PredictionView(
        config=configuration,
        prediction=prediction,
        why=reasons_of(problem, profile, [configuration], [prediction.step_time_s])[0],
        breaks=broken_rules(problem, configuration),
        profile=profile.version,
    )


def _part(body: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The object under ``name`` of a body that holds a problem and a configuration, and nothing else."""
    for other in body.keys() - {"problem", "configuration"}:
        raise UnknownNameError.among(pointer(other), other, ["problem", "configuration"])
    part = body.get(name)
    if not isinstance(part, dict):
        raise InvalidProblemError.of(pointer(name), "is required and must be an object")
    return part
