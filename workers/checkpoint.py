"""What a worker that has to leave passes on, and what the next one makes of it.

The next search begins with the plans of the checkpoint, solved and scored anew: they are its first upper
bound, and change no answer. The checkpoint also makes sure that a job which is interrupted, and then runs
into its time limit, ends no worse than it stood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from service.db.database import compact_json
from service.engine.states import FinalState, Outcome
from solver.plan import Answer, Configuration, configuration_from_json


def checkpoint_of(answer: Answer | None) -> dict[str, Any] | None:
    """The incumbent of a search that was told to stop, as it is stored; None when it has no plan."""
    if answer is None or not answer.plans:
        return None
    body = answer.to_json()
    try:
        compact_json(body)
    except ValueError:  # no JSON: the next worker meets the same bug and fails the job
        return None
    return body


def known_in(checkpoint: Mapping[str, Any] | None) -> list[Configuration]:
    """The configurations of a checkpoint, best first; none of one that another version wrote."""
    try:
        return [configuration_from_json(plan["config"]) for plan in (checkpoint or {}).get("plans", ())]
    except (LookupError, TypeError):
        return []


def resumed(outcome: Outcome, checkpoint: Mapping[str, Any] | None) -> Outcome:
    """The outcome, or what the checkpoint holds where that is better proved.

    Proofs (``optimal``, ``infeasible``) and errors of the search stand. An answer cut by its limit is
    replaced when it has no plan, or when its gap to the bound is the larger one.
    """
    if checkpoint is None or not _is_cut(outcome) or _gap(outcome.answer) <= _gap(checkpoint):
        return outcome
    body = dict(checkpoint)
    plans = body.pop("plans")
    state: FinalState = "cancelled" if outcome.state == "cancelled" else "succeeded"
    return replace(outcome, state=state, answer=body, plans=plans, problem=None, cache_key=None)


def _is_cut(outcome: Outcome) -> bool:
    """Whether a limit or a cancel ended the search before its proof."""
    code = (outcome.problem or {}).get("code")
    status = (outcome.answer or {}).get("status")
    return code in {"no_plan", "time_limit"} or outcome.state == "cancelled" or status == "feasible"


def _gap(answer: Mapping[str, Any] | None) -> float:
    """Relative gap between incumbent and bound, of what the request ranks by; without a plan infinite."""
    if answer is None or answer["status"] == "unknown":
        return inf
    claim = answer.get("objective") or answer
    gap = claim.get("gap")
    return inf if gap is None else float(gap)
