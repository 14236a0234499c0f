"""CP-SAT is used as it wants to be: what it trims, rounds, leaves open or refuses is told apart."""

from dataclasses import replace
from itertools import pairwise

import pytest
from ortools.sat.python import cp_model

from meshwright.solver.search.certify.request import DECISIONS, LARGEST, Request, RowRequest
from meshwright.solver.search.certify.split_model import (
    RULES,
    Decision,
    _hint,
    complete_the_hint,
    declare,
    judge,
    slowest_rank_decides,
)

KINDS = [[0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 3]]  # layers a b a b b


def a_row(pp: int = 2, *, kinds: int = 1, replayed: int = 0, by_stage: bool = False) -> RowRequest:
    """Ranks without ends: a layer costs 1000 ns and a byte, a replayed one of the last kind 10 us more."""
    sizes = {"pipeline_parallel_size": pp}
    return RowRequest(
        values={name: sizes.get(name, 1) for name in DECISIONS},
        rank_of_chunk=list(range(pp)),
        smallest_chunk=1,
        replayed_layers=replayed,
        by_stage=by_stage,
        splits=None,
        sum_const=0,
        sum_replay=[0] * kinds,
        rank_const=[0] * pp,
        layer=[1000] * kinds,
        replay=[0] * (kinds - 1) + [10_000 if replayed else 0],
        memory_layer=[[1] * kinds] * pp,
        memory_replay=[[0] * kinds] * pp,
        room=[100] * pp,
    )


def a_request(*rows: RowRequest, num_layers: int = 5, hint: tuple[int, ...] = ()) -> Request:
    """Layers of one kind, or five of two where the rows know two."""
    two = len(rows[0].layer) > 1
    return Request(
        num_layers=num_layers,
        cumulative=KINDS if two else [list(range(num_layers + 1))],
        rows=rows,
        hint_row=0,
        hint_split=hint,
        seed=0,
        time_limit_s=10.0,
        deterministic_limit=10.0,
    )


def modelled(request: Request) -> Decision:
    """The whole model, with the hint of choices and boundaries."""
    decision = declare(request)
    for rule in RULES:
        rule(decision)
    slowest_rank_decides(decision)
    _hint(decision)
    return decision


@pytest.mark.parametrize(
    "request_",
    [
        a_request(a_row(), hint=(4, 1)),
        a_request(a_row(), a_row(pp=3), hint=(4, 1)),
        a_request(a_row(kinds=2, replayed=1), hint=(1, 4)),
        a_request(replace(a_row(), splits=[(1, 4), (2, 3)]), hint=(1, 4)),
        a_request(a_row(by_stage=True), a_row(), hint=(4, 1)),
        a_request(a_row(kinds=2, by_stage=True), hint=(1, 4)),
    ],
    ids=["one kind", "rows of unlike length", "two kinds", "splits on offer", "by stage", "both"],
)
def test_the_hint_names_every_variable_and_is_the_incumbent(request_: Request) -> None:
    decision = modelled(request_)
    complete_the_hint(decision.model, decision.request)
    proto = decision.model.proto
    assert sorted(proto.solution_hint.vars) == list(range(len(proto.variables)))
    hinted = dict(zip(proto.solution_hint.vars, proto.solution_hint.values, strict=True))
    edges = [hinted[bound.index] for bound in decision.bounds[: len(request_.hint_split) + 1]]
    assert tuple(b - a for a, b in pairwise(edges)) == request_.hint_split
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(decision.model) == cp_model.OPTIMAL


def test_a_worse_incumbent_than_the_best_is_improved_on() -> None:
    assert judge(a_request(a_row(), hint=(4, 1))).objective_us == 3


def test_an_incumbent_that_breaks_a_rule_is_no_verdict() -> None:
    # 6 layers of 5: the boundaries cannot be as hinted, the minimum is what it is
    found = judge(a_request(a_row(), hint=(3, 3)))
    assert (found.status, found.objective_us) == ("OPTIMAL", 3)


@pytest.mark.parametrize("replayed", [0, 1, 2])
def test_no_index_of_an_element_constraint_lies_outside_its_list(replayed: int) -> None:
    # CP-SAT would trim the index's domain without a word, and with it boundaries that are legal
    row = replace(a_row(kinds=2, replayed=replayed, by_stage=not replayed), smallest_chunk=replayed or 1)
    proto = modelled(a_request(row)).model.proto
    checked = 0
    for constraint in proto.constraints:
        if not constraint.has_element():
            continue
        index, checked = constraint.element.linear_index, checked + 1
        domains = [proto.variables[var].domain for var in index.vars]
        ends = [
            sorted((coefficient * domain[0], coefficient * domain[-1]))
            for coefficient, domain in zip(index.coeffs, domains, strict=True)
        ]
        low, high = (index.offset + sum(end[side] for end in ends) for side in (0, 1))
        assert 0 <= low <= high < len(constraint.element.exprs)
    # 3 boundaries, and 2 ends of what is recomputed behind the first two, for each of 2 kinds
    assert checked == 10


def test_every_split_of_two_kinds_is_within_reach() -> None:
    # forced by memory: rank 0 has room for n layers and rank 1 for the rest, nothing else
    for n in (1, 2, 3, 4):
        row = replace(a_row(kinds=2, replayed=1), room=[n, 5 - n])
        assert judge(a_request(row)).split == (n, 5 - n)


def test_a_number_that_would_trim_the_objective_is_refused_not_called_infeasible() -> None:
    # 3 layers of LARGEST / 3 ns are still exact; of LARGEST ns they leave the objective's domain
    assert judge(a_request(replace(a_row(), layer=[LARGEST // 6]))).status == "OPTIMAL"
    assert judge(a_request(replace(a_row(), layer=[LARGEST]))).status == "MODEL_INVALID"


def test_large_objectives_are_whole_microseconds_rounded_up() -> None:
    # 3 layers of 123 456 789 123 457 ns = 370 370 367 370.371 us
    found = judge(a_request(replace(a_row(), layer=[123_456_789_123_457])))
    assert (found.objective_us, found.bound_us) == (370_370_367_371, 370_370_367_371)
    assert isinstance(found.objective_us, int)


@pytest.mark.parametrize("limits", [{"time_limit_s": 1e-9}, {"deterministic_limit": 0.0}])
def test_a_limit_without_a_solution_is_told_apart_from_infeasible(limits: dict[str, float]) -> None:
    feasible = a_request(a_row(pp=4), num_layers=40)
    infeasible = a_request(replace(a_row(pp=4), room=[1] * 4), num_layers=40)
    assert judge(replace(feasible, **limits)).status == "UNKNOWN"  # type: ignore[arg-type]
    assert judge(feasible).status == "OPTIMAL"
    assert judge(infeasible).status == "INFEASIBLE"


def test_the_same_request_has_the_same_verdict() -> None:
    request = a_request(a_row(pp=3), a_row(pp=2), num_layers=17, hint=(6, 6, 5))
    assert judge(request) == judge(request)
