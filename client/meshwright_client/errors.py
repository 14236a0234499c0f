"""What can go wrong, and what the service says about it (problem documents, RFC 9457)."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright_client.answers import Job
from meshwright_client.records import JobProblem

TYPE_PREFIX = "urn:meshwright:problem:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(JobProblem):
    """A problem document: ``type`` is stable, ``detail`` for people, ``request_id`` for the logs."""

    type: str = "about:blank"
    title: str = ""

    @property
    def code(self) -> str:
        """The last part of a type of this service, for example invalid_problem."""
        return self.type.removeprefix(TYPE_PREFIX)

    def __str__(self) -> str:
        """One line a fault."""
        faults = [f"{fault.pointer}: {fault.message}" for fault in self.errors or ()]
        return "\n".join([f"{self.status} {self.detail or self.title}".strip(), *faults])


class MeshwrightError(Exception):
    """Anything that this client raises on purpose."""


class UnexpectedAnswerError(MeshwrightError):
    """The address answers, but not as a Meshwright service of this version."""


class ServiceUnavailableError(MeshwrightError):
    """Nothing answered for as long as was retried."""


class WaitTimeoutError(MeshwrightError):
    """The job is not finished within the time that was given; it goes on."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"job {job.id} is still {job.state}")
        self.job = job


class ProblemError(MeshwrightError):
    """The service refused, and says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class UnauthorizedError(ProblemError):
    """401: the key is missing, unknown, revoked or expired."""


class ForbiddenError(ProblemError):
    """403: the key lacks the scope."""


class NotFoundError(ProblemError):
    """404: there is no such thing, or it is another tenant's."""


class NotReadyError(ProblemError):
    """409: the job has no answer, or none yet; or the service lacks what this would take."""


class InvalidRequestError(ProblemError):
    """413, 415 or 422: ``problem.errors`` names the fields."""


class IdempotencyConflictError(InvalidRequestError):
    """422: this idempotency key was used with another body."""


class TooManyRequestsError(ProblemError):
    """429 for as long as was retried: a quota of the tenant."""


class ServerError(ProblemError):
    """5xx: a bug, or, for as long as was retried, a service that cannot answer."""


_BY_STATUS: dict[int, type[ProblemError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: NotReadyError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: TooManyRequestsError,
}
_FIRST_SERVER_ERROR = 500


def error_of(status: int, problem: Problem) -> ProblemError:
    """The error for an answer that is none."""
    if problem.code == "idempotency_conflict":
        return IdempotencyConflictError(problem)
    return _BY_STATUS.get(status, ServerError if status >= _FIRST_SERVER_ERROR else ProblemError)(problem)
