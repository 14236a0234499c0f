"""Near-optimal plans that differ in stated variables: the best plan of each combination of their values.

Each further plan is the answer to the request with one constraint more, that some of the variables has
another value than in every plan before. CP-SAT states it like any other constraint and decides again, so
that each plan is proved the best of what is left, and the last question proves that the list is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwright.solver.answer import Answer, DifferentPlans, Plan
from meshwright.solver.clock import Watch
from meshwright.solver.problem import Problem

MOST = 12  # plans of a list
_LEAST_S = 0.01  # a question is given this much
_ROUNDING = 1e-9


def with_different(
    problem: Problem, answer: Answer, ask: Callable[[Problem], Answer], watch: Watch
) -> Answer:
    """Add to an answer the best plan of each combination of ``differ``, no worse than ``within``.

    Args:
        problem: the request.
        answer: its answer; its first plan is the first of the list.
        ask: answers a request.
        watch: the time of the whole request.
    """
    options = problem.options
    if not options.differ or not answer.ranking:
        return answer
    plans, worse, complete = [answer.ranking[0]], [0.0], answer.status == "optimal"
    while more := len(plans) < MOST and not watch.interrupted():
        others = (_unlike(plan, options.differ) for plan in plans)
        asked = replace(
            options, constraints=(*options.constraints, *others), top_k=1, differ=(), pareto=False,
            baseline=None, time_limit_s=max(watch.left_s, _LEAST_S),
        )  # fmt: skip
        found = ask(replace(problem, options=asked))
        complete &= found.status in ("optimal", "infeasible")
        if not found.ranking or excess(answer, found) > options.within + _ROUNDING:
            break
        plans.append(replace(found.ranking[0], rank=len(plans) + 1))
        worse.append(excess(answer, found))
    different = DifferentPlans(
        names=options.differ, within=options.within, plans=tuple(plans), worse=tuple(worse),
        complete=complete and more,
    )  # fmt: skip
    return replace(answer, different=different)


def excess(first: Answer, other: Answer) -> float:
    """Return by how much the first plan of another answer is worse, as a share of the first answer's."""
    claims = first.objective, other.objective
    own, others = (None if claim is None else claim.value for claim in claims)
    if not own or not others:
        steps = (answer.ranking[0].prediction.step_time_s for answer in (first, other))
        own, others = steps
    is_rate = claims[0] is not None and claims[0].name == "tokens_per_s_per_gpu"
    return own / others - 1.0 if is_rate else others / own - 1.0


def _unlike(plan: Plan, names: Sequence[str]) -> str:
    values = (getattr(plan.config, name) for name in names)
    alike = (
        (name if value else f"not {name}") if isinstance(value, bool) else f"{name} == {value!r}"
        for name, value in zip(names, values, strict=True)
    )
    return f"not ({' and '.join(alike)})"
