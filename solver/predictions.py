"""The prediction of any configuration: a mesh over equal nodes, or stages on the node groups they name."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.profile import Profile
from solver.mixed.replicas import predict_mixed
from solver.plan import Configuration, Prediction
from solver.predict import predict_all
from solver.problem import Problem


def predicted_all(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[Prediction]:
    """The predictions of several configurations of one problem, in their order.

    A mesh on a mixed cluster is priced as ``profile`` is: the slowest GPU and network set its pace.

    Raises:
        InvalidProblemError: a framework option of the workload is unknown or has a wrong value.
    """
    meshes = iter(predict_all(problem, profile, [one for one in configurations if not one.is_placed]))
    return [
        predict_mixed(problem, profile, one) if one.is_placed else next(meshes) for one in configurations
    ]


def predicted(problem: Problem, profile: Profile, configuration: Configuration) -> Prediction:
    """The prediction of one configuration; errors as ``predicted_all``."""
    return predicted_all(problem, profile, [configuration])[0]
