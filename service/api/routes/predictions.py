"""Predictions: price a configuration of the caller's own."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from profiles.profile import default_profile
from service.api.configurations import configuration_of, part_of
from service.api.deps import BodyDep
from service.api.openapi import PREDICTION_BODY
from service.api.problems import declared
from service.api.schemas import PredictionView
from service.request import parse_problem
from solver.predict import predict

router = APIRouter(prefix="/v1/predictions", tags=["predictions"])


@router.post(
    "", responses=declared(413, 415), openapi_extra=PREDICTION_BODY, summary="Price a configuration"
)
def create_prediction(body: BodyDep) -> PredictionView:
    """What the cost model expects of ``configuration`` for ``problem``; answers at once, stores nothing."""
    problem = parse_problem(part_of(body, "problem"))
    configuration = configuration_of(part_of(body, "configuration"))
    profile = default_profile(problem.cluster, problem.launcher)
    prediction = predict(problem, profile, configuration)
    return PredictionView(config=asdict(configuration), prediction=prediction, profile=profile.version)
