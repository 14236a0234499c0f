"""CP-SAT's decision of a request: its choice is the answer's first plan.

The search prices rows and refutes them by bounds; what the bounds leave is one table, of all searches of
the request, from which CP-SAT chooses. If it chooses a row with a bound for a value, the exact programs
price that row, and CP-SAT decides again (logic-based Benders). If it chooses another plan than the search
has ranked first, one of the two is wrong: the better plan is listed first, with a warning and a record of
both.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final

from meshwright.solver.answer import Answer, Plan
from meshwright.solver.clock import Watch, relative_gap
from meshwright.solver.problem import Problem, changes_of
from meshwright.solver.search.answers import Listed, checked_plans
from meshwright.solver.search.certify.judge import Judge
from meshwright.solver.search.decision.choices import Choices, Table
from meshwright.solver.search.decision.question import Question
from meshwright.solver.search.priced_space import steps_s

DETERMINISTIC_LIMIT = 8.0  # CP-SAT's own clock: the same decision on a busy machine
_AGAIN = 64  # decisions of one request: each prices another row
_SAME = 1e-9  # relative: values as near as that are equal
CP_SAT: Final = "cp-sat"
RECORD = "decision"  # note: what search and CP-SAT chose where they differ


class DifferentDecisionWarning(UserWarning):
    """CP-SAT and the search choose different plans: a bug in one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The row that CP-SAT chose."""

    status: str  # of CP-SAT
    row: int | None = None
    score_s: float = 0.0
    rounds: int = 0
    cpu_s: float = 0.0


_LEFT: ContextVar[bool] = ContextVar("left", default=False)


@contextmanager
def left_to_planner() -> Iterator[None]:
    """Let the searches of this block leave their choices to whoever asked for them: ``Answer.choices``."""
    before = _LEFT.set(True)
    try:
        yield
    finally:
        _LEFT.reset(before)


def is_left_to_planner() -> bool:
    """Return whether this runs in a ``left_to_planner`` block."""
    return _LEFT.get()


def asks_cp_sat(problem: Problem) -> bool:
    """Return whether CP-SAT decides among the rows of a request; on unlike nodes it does so by itself."""
    return problem.options.certify != "none" and not problem.places_stages


def decided(asked: Problem, answer: Answer, judge: Judge, watch: Watch) -> Answer:
    """Return an answer with CP-SAT's choice as its first plan, if it decides in time.

    Args:
        asked: the request, whose limits CP-SAT keeps.
        answer: what the searches of the request found, with their choices.
        judge: asks CP-SAT.
        watch: the time of the request.
    """
    searches, answer = answer.choices, replace(answer, choices=())
    table = Table.of_all(asked, searches)
    if answer.status != "optimal" or not answer.plans or not len(table):
        return answer
    best_s = min(one.frontier.ranked[0].score_s for one in table.of if one.frontier.ranked)
    found = choose(table, best_s, judge, watch, seed=asked.options.seed)
    counted = replace(answer, counts={**answer.counts, "decided": len(table)})
    if found is None:
        late = "CP-SAT did not decide in time: the first plan is the search's, with its own proof"
        return replace(answer, warnings=(*answer.warnings, late))
    if found.row is not None and abs(found.score_s - best_s) <= _SAME * best_s:
        return _agreed(counted)
    return _differing(asked, counted, table, found, best_s)


def choose(table: Table, best_s: float, judge: Judge, watch: Watch, *, seed: int) -> Decision | None:
    """Return CP-SAT's choice of a table, priced; None if it does not decide in time."""
    cpu_s = 0.0
    for rounds in range(1, _AGAIN + 1):
        question = Question(
            values=table.whole_values(best_s), columns=table.named(), limits=table.limits, seed=seed,
            time_limit_s=watch.left_s, deterministic_limit=DETERMINISTIC_LIMIT,
        )  # fmt: skip
        verdict = judge.decide(question, watch)
        if verdict is None:
            return None
        cpu_s += float(verdict["cpu_s"])
        row = verdict["row"]
        if row is None or table.exact[row]:
            score_s = 0.0 if row is None else table.values_s[row]
            return Decision(status=verdict["status"], row=row, score_s=score_s, rounds=rounds, cpu_s=cpu_s)
        table.price(row)
    return None


def _agreed(answer: Answer) -> Answer:
    first, *others = answer.plans
    certified = tuple(dict.fromkeys((*first.certified_by, CP_SAT)))
    return replace(
        answer,
        decided_by=CP_SAT,
        plans=(replace(first, certified_by=certified), *others),
        certified_by=tuple(dict.fromkeys((*answer.certified_by, CP_SAT))) if answer.certified_by else (),
        counts={**answer.counts, "certified": max(answer.counts.get("certified", 0), 1)},
    )


def _differing(asked: Problem, answer: Answer, table: Table, found: Decision, best_s: float) -> Answer:
    """Return the answer with the better plan first, and a record of both."""
    first = answer.plans[0]
    record: dict[str, object] = {"search": {"plan_id": first.plan_id, "score_s": best_s}}
    if found.row is None:
        told = f"CP-SAT finds no configuration among {len(table)} that keeps every limit, the search does"
    else:
        told = f"CP-SAT chooses a plan of {found.score_s:.6g} s, the search one of {best_s:.6g} s"
    kept, plan = "the search's plan is listed first", None
    if found.row is not None and found.score_s < best_s:
        plan = _plan_of(asked, table, found)
        record[CP_SAT] = {"plan_id": plan.plan_id, "score_s": found.score_s}
        kept = "CP-SAT's plan, which is the better one, is listed first"
    elif found.row is not None:
        record[CP_SAT] = {"row": _values(table, found.row), "score_s": found.score_s}
    text = f"{told}: {kept}. One of them is wrong: please report this with the request"
    warnings.warn(text, DifferentDecisionWarning, stacklevel=2)
    noted = replace(
        answer,
        warnings=(*answer.warnings, text),
        notes={**answer.notes, RECORD: json.dumps(record)},
        status="feasible",
        certified_by=(),
    )
    return noted if plan is None else _with_first(noted, plan)


def _values(table: Table, row: int) -> Mapping[str, int]:
    return {name: column[row] for name, column in table.columns.items()}


def _plan_of(asked: Problem, table: Table, found: Decision) -> Plan:
    """Return CP-SAT's choice as a plan that the independent check has passed.

    Raises:
        InvalidPlanError: it refuses the plan.
    """
    row = found.row or 0
    of = table.of[int(table.search[row])]
    own = int(of.index[table.at[row]])
    rows, split = of.frontier.rows.take([own]), table.price(row)
    (objective_s,) = steps_s(of.frontier.rows, [own], rows.objective_s([split])).tolist()
    (config,) = rows.configurations([split])
    problem = of.problems[int(of.frontier.rows.parts_of([own])[0])]
    listed = Listed(1, config, objective_s, ("exact-dp", CP_SAT))
    (plan,) = checked_plans(problem, of.profile, [listed])
    return replace(plan, workload=changes_of(problem.workload, asked.workload))


def _with_first(answer: Answer, plan: Plan) -> Answer:
    others = [one for one in answer.plans if one.plan_id != plan.plan_id]
    listed = [replace(one, rank=rank) for rank, one in enumerate([plan, *others], 1)]
    step_s = plan.prediction.step_time_s
    return replace(
        answer, plans=tuple(listed[: len(answer.plans)]), decided_by=CP_SAT,
        num_gpus_used=plan.config.num_gpus, bound_step_time_s=None, gap=relative_gap(step_s, None),
    )  # fmt: skip


def searches_of(answers: Sequence[Answer]) -> tuple[Choices, ...]:
    """Return the choices of several answers."""
    return tuple(one for answer in answers for one in answer.choices)
