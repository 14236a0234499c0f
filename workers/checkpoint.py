"""Checkpoints that a leaving worker passes on, and their use by the next one.

The next search begins with the plans of the checkpoint, solved and scored anew: they are its first upper
bound, and change no answer. The checkpoint also makes sure that a job which is interrupted, and then runs
into its time limit, ends no worse than it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from meshwright.service.db.database import compact_json
from meshwright.service.jobs.states import FinalState, Outcome
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import Configuration, configuration_from_json

RATES = frozenset({"tokens_per_s_per_gpu"})  # objectives of which more is better


def checkpoint_of(answer: Answer | None) -> dict[str, Any] | None:
    """Return the incumbent of a stopped search, as it is stored; None if it has no plan."""
    if answer is None or not answer.plans:
        return None
    body = answer.to_json()
    return body if is_json(body) else None  # the next worker meets the same bug and fails the job


def is_json(body: Mapping[str, Any]) -> bool:
    """Return whether a document can be stored: it holds neither a NaN nor an infinity."""
    try:
        compact_json(body)
    except ValueError:
        return False
    return True


def known_in(checkpoint: Mapping[str, Any] | None) -> list[Configuration]:
    """Return the configurations of a checkpoint, best first; none of one that another version wrote."""
    try:
        return [configuration_from_json(plan["config"]) for plan in (checkpoint or {}).get("plans", ())]
    except (LookupError, TypeError):
        return []


def passed_on(answer: Answer | None, checkpoint: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the checkpoint of a leaving worker; None: nothing, or less than it was given itself."""
    found = checkpoint_of(answer)
    if found is None or checkpoint is None:
        return found
    return found if _standing(found) <= _standing(checkpoint) else None


def resumed(outcome: Outcome, checkpoint: Mapping[str, Any] | None) -> Outcome:
    """Return the outcome, or the contents of the checkpoint if they are better.

    Proofs (``optimal``, ``infeasible``) and errors of the search stay. An answer cut by its limit is
    replaced when it has no plan, when its first plan is the worse one, or of equal ones the less proved.
    """
    if checkpoint is None or not _is_cut(outcome):
        return outcome
    if _standing({**(outcome.answer or {}), "plans": outcome.plans}) <= _standing(checkpoint):
        return outcome
    body = dict(checkpoint)
    plans = body.pop("plans")
    state: FinalState = "cancelled" if outcome.state == "cancelled" else "succeeded"
    return replace(outcome, state=state, answer=body, plans=plans, problem=None, cache_key=None)


def _is_cut(outcome: Outcome) -> bool:
    code = (outcome.problem or {}).get("code")
    status = (outcome.answer or {}).get("status")
    return code in {"no_plan", "time_limit"} or outcome.state == "cancelled" or status == "feasible"


def _standing(answer: Mapping[str, Any]) -> tuple[float, float]:
    """Return the key that compares unproved answers (less is better): first plan, then gap to the bound."""
    if not answer.get("plans"):
        return inf, inf
    claim = answer.get("objective") or {}
    value, gap = claim.get("value"), (claim or answer).get("gap")
    if value is None:
        value = answer["plans"][0]["prediction"]["step_time_s"]
    elif claim["name"] in RATES:
        value = -value
    return float(value), inf if gap is None else float(gap)
