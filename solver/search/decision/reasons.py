"""The smallest set of limits that excludes every candidate, by CP-SAT over assumptions.

Each candidate breaks some limits. A set of limits excludes all of them if each candidate breaks one of the
set. That a set excludes, and that no limit of it can be left out, is asked of a model in which a limit is
an assumption: it has a candidate that keeps all limits that are assumed, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortools.sat.python import cp_model

from meshwright.solver.search.cp_sat import solver_within

_EFFORT = 4.0  # deterministic seconds
_COUNT = 1000  # weight of one more limit, against limits that the request can't drop


def smallest_set(broken: Sequence[frozenset[int]], droppable: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the fewest limits of which every candidate breaks one, in ascending order.

    Args:
        broken: the limits that each candidate breaks; none may be empty.
        droppable: limits that are preferred among sets of one size.
    """
    model, every = cp_model.CpModel(), sorted(frozenset().union(*broken))
    chosen, preferred = {limit: model.new_bool_var(str(limit)) for limit in every}, {*droppable}
    for some in {*broken}:
        model.add_bool_or([chosen[limit] for limit in sorted(some)])
    weights = [_COUNT + (limit not in preferred) for limit in every]
    model.minimize(cp_model.LinearExpr.weighted_sum([chosen[limit] for limit in every], weights))
    solver = solver_within(cp_model, _EFFORT)
    solver.solve(model)
    return tuple(limit for limit in every if solver.value(chosen[limit]))


def excludes(broken: Sequence[frozenset[int]], limits: Iterable[int]) -> bool:
    """Return whether no candidate keeps all of these limits."""
    model, assumed = cp_model.CpModel(), list[cp_model.IntVar]()
    kinds = sorted({*broken}, key=sorted)
    candidates = [model.new_bool_var("") for _ in kinds]
    model.add_exactly_one(candidates)
    for limit in limits:
        assumed.append(kept := model.new_bool_var(str(limit)))
        for one, some in zip(candidates, kinds, strict=True):
            if limit in some:
                model.add_implication(kept, ~one)
    model.add_assumptions(assumed)
    return bool(solver_within(cp_model, _EFFORT).solve(model) == cp_model.INFEASIBLE)
