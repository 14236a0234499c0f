"""Answers to the points of a sweep as one: a table of points, and one ranking over all of them.

Pure, and of plain JSON values: the same code joins what workers stored and what one process found.
Plans of unlike batches and numbers of GPUs are ranked by what the request ranks by, per token:
  step_time             seconds of a token: 1 / (tokens/s/GPU * GPUs)
  tokens_per_s_per_gpu  GPU seconds of a token
  gpu_hours_per_token, energy_per_token  as the plan's outlook has them
  robust                seconds of a token at the 90 % quantile of the step
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from meshwright.service.jobs.answers import is_complete
from meshwright.service.jobs.states import EndState
from meshwright.service.requests.jobs import words_of
from meshwright.solver.answer import certainty_words
from meshwright.solver.configuration import configuration_from_json

MAX_REASONS = 20  # points that an infeasible answer speaks of
DIGITS = 9  # to which scores are compared: the search ranks in whole nanoseconds
Json = Mapping[str, Any]
_COUNTS = ("space_size", "legal", "fit", "explored", "elapsed_s")
_Entry = tuple[float, int, int, Json]  # score, point, rank, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedPoint:
    """One point, and how its search ended."""

    values: Mapping[str, Any]
    state: EndState
    answer: Json | None = None  # without its plans
    plans: Sequence[Json] = ()  # best first
    problem: Mapping[str, str] | None = None
    job_id: str | None = None  # where the service ran it
    reused: bool = False  # answered before


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The result of a whole sweep, to store or print."""

    state: EndState
    answer: dict[str, Any]  # without its plans; the table is under ``points``
    plans: list[dict[str, Any]]  # of all points, best first; ``point`` is the place in the table
    problem: dict[str, str] | None


def join(points: Iterable[SolvedPoint], *, objective: str, top_k: int, cancelled: bool = False) -> Joined:
    """Join the points of one sweep, in their order; plans beyond the best ``top_k`` are not kept."""
    rows, best, answers = list[dict[str, Any]](), list[_Entry](), list[Json | None]()
    for number, point in enumerate(points):
        allowed = [plan for plan in point.plans if plan.get("ranked", True)]
        entries = [(_score(plan, objective), number, plan["rank"], plan) for plan in allowed]
        rows.append(_row(number, point, entries))
        answers.append(point.answer)
        best = heapq.nsmallest(top_k, [*best, *entries], key=_order)
    ranks = {(at, rank): place for place, (_, at, rank, _) in enumerate(best, 1)}
    for row in rows:
        row["rank"] = ranks.get((row["point"], 1)) if row["plan_id"] else None
        row["efficient"] = _is_efficient(row, rows)
    # a plan's are of its rank in its own point
    unknown = {"gap": None, "bound_step_time_s": None, "odds": None}
    plans = [
        {**plan, **unknown, "rank": place, "point": at} for place, (_, at, _, plan) in enumerate(best, 1)
    ]
    answer = _answer(rows, answers, best)
    answer["certainty"] = certainty_words(
        status=answer["status"],
        found=bool(plans),
        gap=answer["gap"],
        searched=(answer["explored"], answer["space_size"]),
        objective=objective,
    )
    state = _state(rows, answer["status"], cancelled=cancelled)
    return Joined(state=state, answer=answer, plans=plans, problem=_problem(rows, state))


def _order(entry: _Entry) -> tuple[float, int, int]:
    """Return the plans ranked by score; equal scores rank in the order of the points."""
    score, point, rank, _ = entry
    return float(f"{score:.{DIGITS}g}"), point, rank


def _score(plan: Json, objective: str) -> float:
    outlook, rate = plan.get("outlook") or {}, float(plan["prediction"]["tokens_per_s_per_gpu"])
    if objective == "gpu_hours_per_token" and outlook:
        return float(outlook["gpu_hours_per_token"])
    if objective == "energy_per_token" and outlook.get("energy_per_token_j") is not None:
        return float(outlook["energy_per_token_j"])
    if objective == "tokens_per_s_per_gpu":
        return 1.0 / rate
    seen = plan["prediction"]
    longer = float(seen["step_time_high_s"]) / float(seen["step_time_s"]) if objective == "robust" else 1.0
    return longer / (rate * configuration_from_json(plan["config"]).num_gpus)


def _row(number: int, point: SolvedPoint, entries: Sequence[_Entry]) -> dict[str, Any]:
    answer, row = point.answer or {}, dict[str, Any](point=number, values=dict(point.values))
    row |= {"job_id": point.job_id, "reused": point.reused, "state": point.state}
    row |= {name: answer.get(name) for name in ("status", "gap", "bound_step_time_s")}
    row |= {"certified_by": list(answer.get("certified_by", ())), "problem": point.problem}
    row |= dict.fromkeys(("plan_id", "config", "score", "step_time_s", "tokens_per_s", "num_gpus"))
    row |= dict.fromkeys(("tokens_per_s_per_gpu", "peak_memory_bytes", "infeasible"))
    if not entries:
        reasons = (answer.get("infeasible") or {}).get("reasons", ())
        return {**row, "infeasible": reasons[0] if reasons else None}
    score, _, _, plan = entries[0]
    prediction, num_gpus = plan["prediction"], configuration_from_json(plan["config"]).num_gpus
    rate = prediction["tokens_per_s_per_gpu"]
    row |= {name: prediction[name] for name in ("step_time_s", "peak_memory_bytes", "tokens_per_s_per_gpu")}
    found = {"plan_id": plan["plan_id"], "config": plan["config"], "score": score, "num_gpus": num_gpus}
    return {**row, **found, "tokens_per_s": rate * num_gpus}


def _is_efficient(row: Json, rows: Sequence[Json]) -> bool:
    if row["plan_id"] is None:
        return False
    mine = (-row["tokens_per_s"], row["num_gpus"])
    others = [(-one["tokens_per_s"], one["num_gpus"]) for one in rows if one["plan_id"] is not None]
    return not any(one != mine and one[0] <= mine[0] and one[1] <= mine[1] for one in others)


def _notes(first: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the first answer's notes; of a sample alone only where each point that is not proved is."""
    open_ones = [one for one in known if not is_complete(one)]
    sampled = all("sample" in one.get("notes", {}) for one in open_ones)
    left_out = {"launcher", *([] if sampled else ["sample"])}  # of one point alone
    return {name: note for name, note in first.get("notes", {}).items() if name not in left_out}


def _answer(rows: Sequence[Json], answers: Sequence[Json | None], best: Sequence[_Entry]) -> dict[str, Any]:
    """Return the certificate of the whole: sums of the searches' counts, and the weakest proof."""
    known = [answer for answer in answers if answer is not None]
    first = (answers[best[0][1]] if best else None) or (known[0] if known else {})
    status, open_rows = _status(rows), [row for row in rows if row["status"] != "infeasible"]
    bounds = [row["bound_step_time_s"] for row in open_rows]
    found = [answer for answer, row in zip(answers, rows, strict=True) if answer and row["plan_id"]]
    complete = bool(found) and all(answer is not None and is_complete(answer) for answer in answers)
    proved = complete and all(answer.get("objective_gap") == 0 for answer in found)
    counts = {name for answer in known for name in answer["counts"]}
    return {
        "status": status,
        "certified_by": _common(found) if complete else [],
        "decided_by": first.get("decided_by", "exact-dp"),
        "objective_gap": 0.0 if proved else None,
        "objective_excess": first.get("objective_excess") if complete else None,
        "bound_step_time_s": None if None in bounds else min(bounds, default=None),
        "gap": _gap(open_rows),
        **{name: sum(answer.get(name, 0) for answer in known) for name in _COUNTS},
        "counts": {
            name: sum(one.get("counts", {}).get(name, 0) for one in known) for name in sorted(counts)
        },
        "seed": first.get("seed", 0),
        "versions": dict(first.get("versions", {})),
        "warnings": _warnings(rows, answers),
        "infeasible": _infeasible(rows, answers) if status == "infeasible" else None,
        "num_gpus_used": first.get("num_gpus_used") if best else None,
        "peak_flops": first.get("peak_flops"),
        "notes": {**_notes(first, known), "points": str(len(rows))},
        "objective": None,  # values of unlike points are not one claim; each point has its own
        "baseline": None,
        "pareto": None,
        "levers": [],  # of a point, as its reference
        "reference": None,
        "points": [dict(row) for row in rows],
        "skipped_launchers": _skipped(known),
        "space": "every" if {one.get("space") for one in known} == {"every"} else "usual",
    }


def _skipped(answers: Sequence[Json]) -> list[Json]:
    """Return launchers without a plan at every point, with the reasons of all points."""
    found = [
        {one["launcher"]: one["reasons"] for one in answer.get("skipped_launchers", ())}
        for answer in answers
    ]
    everywhere = [name for name in (found[0] if found else {}) if all(name in one for one in found)]
    return [
        {"launcher": name, "reasons": list(dict.fromkeys(why for one in found for why in one[name]))}
        for name in everywhere
    ]


def _status(rows: Sequence[Json]) -> str:
    """Return the status of the whole: proved only if every point is."""
    found = {row["status"] for row in rows}
    if found == {"infeasible"}:
        return "infeasible"
    if any(row["plan_id"] for row in rows):
        return "optimal" if found <= {"optimal", "infeasible"} else "feasible"
    return "unknown"


def _gap(rows: Sequence[Json]) -> float | None:
    """Return the possible gain over the best score: each point's own bound is its score less its gap."""
    if not rows or any(row["score"] is None or row["gap"] is None for row in rows):
        return None
    best = min(float(row["score"]) for row in rows)
    return max(0.0, 1.0 - min(float(row["score"]) * (1.0 - float(row["gap"])) for row in rows) / best)


def _common(answers: Sequence[Json]) -> list[str]:
    first = answers[0]["certified_by"] if answers else ()
    return [name for name in first if all(name in one["certified_by"] for one in answers)]


def _warnings(rows: Sequence[Json], answers: Sequence[Json | None]) -> list[str]:
    """Return the warnings of all answers, with their points unless all share them, and failed points."""
    known = [
        (words_of(row["values"]), answer["warnings"])
        for row, answer in zip(rows, answers, strict=True)
        if answer
    ]
    found = dict.fromkeys(
        warning if all(warning in other for _, other in known) else f"{point}: {warning}"
        for point, warnings in known
        for warning in warnings
    )
    lost = [row for row in rows if row["status"] in {None, "unknown"}]
    return [*found, *(f"{words_of(row['values'])}: {row['state']}" for row in lost[:MAX_REASONS])]


def _infeasible(rows: Sequence[Json], answers: Sequence[Json | None]) -> dict[str, Any]:
    """Return why no point has a plan; the nearest configuration is that of the point that lacks least."""
    reasons = [f"{words_of(row['values'])}: {row['infeasible'] or 'nothing fits'}" for row in rows]
    nearest = min(
        [(answer or {}).get("infeasible") or {} for answer in answers],
        key=lambda one: _lacks(one.get("nearest")),
    )
    more = [f"and {len(reasons) - MAX_REASONS} points more"] if len(reasons) > MAX_REASONS else []
    return {**nearest, "reasons": [*reasons[:MAX_REASONS], *more], "conflicts": [], "verdict": ""}


def _lacks(nearest: Json | None) -> float:
    return inf if nearest is None else float(nearest["needed_bytes"] - nearest["limit_bytes"])


def _state(rows: Sequence[Json], status: str, *, cancelled: bool) -> EndState:
    if cancelled:
        return "cancelled"
    if status in {"optimal", "feasible"}:
        return "succeeded"
    if status == "infeasible":
        return "infeasible"
    return "expired" if all(row["state"] == "expired" for row in rows) else "failed"


def _problem(rows: Sequence[Json], state: EndState) -> dict[str, str] | None:
    if state != "failed":
        return None
    lost = [row for row in rows if row["status"] != "infeasible"]
    first = next((row for row in lost if row["problem"]), lost[0])
    problem = first["problem"] or {"code": "no_plan", "detail": f"its search {first['state']}"}
    where = f"{len(lost)} of {len(rows)} points have no answer; the first, {words_of(first['values'])}"
    return {"code": problem["code"], "detail": f"{where}: {problem['detail']}"}
