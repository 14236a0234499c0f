"""The stored result of a job, by how its search ended (the one table of states).

optimal, feasible → succeeded · infeasible → infeasible · unknown → failed (no_plan) ·
stopped by a cancel → cancelled, with the plans found so far · an error → failed (its code)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from meshwright.profiles.errors import PlannerError
from meshwright.service.db.database import compact_json
from meshwright.service.jobs.states import FinalState, Outcome
from meshwright.solver.answer import Answer

MAX_DETAIL_CHARS = 2_000
_STATES: Mapping[str, FinalState] = {
    "optimal": "succeeded",
    "feasible": "succeeded",
    "infeasible": "infeasible",
    "unknown": "failed",
}
_log = logging.getLogger(__name__)


def outcome_of(answer: Answer, *, cache_key: str, cancelled: bool) -> Outcome:
    """Return the outcome of a search that returned; ``cache_key`` names the question it answers."""
    try:
        body: dict[str, Any] = answer.to_json()
        compact_json(body)
    except ValueError as fault:  # a NaN or an infinity: a bug that must not become an endless retry
        return outcome_without_answer(fault, cancelled=cancelled)
    plans = body.pop("plans")
    if cancelled:
        return Outcome(state="cancelled", answer=body if plans else None, plans=plans)
    state = _STATES[answer.status]
    if state == "failed":
        return Outcome(
            state=state,
            answer=body,
            problem={"code": "no_plan", "detail": "the time limit came before the first plan was found"},
        )
    return Outcome(state=state, answer=body, plans=plans, cache_key=cache_key)


def outcome_without_answer(error: BaseException | None, *, cancelled: bool) -> Outcome:
    """Return the outcome of a search that raised, or that was given up because it did not stop."""
    if cancelled:
        return Outcome(state="cancelled")
    if error is None:
        problem = {"code": "time_limit", "detail": "the search did not end by its time limit"}
    elif isinstance(error, MemoryError):
        problem = {
            "code": "out_of_memory",
            "detail": "the search needs more memory than its worker may use",
        }
    elif isinstance(error, PlannerError):
        problem = {"code": error.code, "detail": str(error)[:MAX_DETAIL_CHARS]}
    else:
        problem = {
            "code": "internal_error",
            "detail": f"the search failed with {type(error).__name__}. For details, see the worker's log",
        }
    if error is not None:
        _log.error("the search broke", exc_info=error)
    return Outcome(state="failed", problem=problem)
