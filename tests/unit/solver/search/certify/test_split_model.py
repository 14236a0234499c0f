"""Each constraint of the decision model, at the smallest feasible and the smallest infeasible case."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from ortools.sat.python import cp_model

from meshwright.solver.search.certify.request import LARGEST, Request, RowRequest, is_expressible
from meshwright.solver.search.certify.row_request import DECISIONS
from meshwright.solver.search.certify.split_model import (
    RULES,
    CpSatResult,
    Decision,
    _hint,
    complete_the_hint,
    declare,
    judge,
    slowest_rank_decides,
)


def a_row(pp: int = 2, vpp: int = 1, **changes: object) -> RowRequest:
    """2 ranks without ends: a layer costs 1000 ns and 1 byte, a rank has room for 100."""
    sizes = {"pipeline_parallel_size": pp, "virtual_pipeline_size": vpp}
    row = RowRequest(
        values={name: sizes.get(name, 1) for name in DECISIONS},
        rank_of_chunk=list(range(pp)) * vpp,
        smallest_chunk=1,
        standalone=False,
        replayed_layers=0,
        by_stage=False,
        splits=None,
        sum_const=0,
        sum_replay=[0],
        rank_const=[0] * pp,
        layer=[1000],
        replay=[0],
        memory_layer=[[1]] * (pp * vpp),
        memory_replay=[[0]] * (pp * vpp),
        room=[100] * pp,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def a_request(*rows: RowRequest, num_layers: int = 5, kinds: list[list[int]] | None = None) -> Request:
    """5 layers of one kind, unless others are given."""
    return Request(
        num_layers=num_layers,
        cumulative=kinds or [list(range(num_layers + 1))],
        rows=rows,
        hint_row=0,
        hint_split=(),
        seed=0,
        time_limit_s=10.0,
        deterministic_limit=10.0,
    )


def verdict(*rows: RowRequest, **others: object) -> CpSatResult:
    """What CP-SAT says."""
    return judge(a_request(*rows, **others))  # type: ignore[arg-type]


def test_five_layers_on_two_ranks_leave_three_on_one() -> None:
    found = verdict(a_row())
    assert (found.status, found.objective_us, sorted(found.split or ())) == ("OPTIMAL", 3, [2, 3])


def test_a_rank_that_costs_more_gets_fewer_layers() -> None:
    # 2000 ns more on rank 1: 3 and 2 layers cost 3 and 4 us, 4 and 1 cost 4 and 3 us, never less
    assert verdict(a_row(rank_const=[0, 2000])).objective_us == 4
    # 3000 ns more: only 4 and 1 stay at 4 us
    found = verdict(a_row(rank_const=[0, 3000]))
    assert (found.objective_us, found.split) == (4, (4, 1))


def test_memory_moves_layers_and_ends_the_search_where_they_have_no_place() -> None:
    assert verdict(a_row(room=[1, 4])).split == (1, 4)
    assert verdict(a_row(room=[1, 3])).status == "INFEASIBLE"


def test_every_chunk_holds_as_many_layers_as_are_recomputed() -> None:
    assert verdict(a_row(smallest_chunk=2)).status == "OPTIMAL"
    assert verdict(a_row(smallest_chunk=3)).status == "INFEASIBLE"


def test_the_first_and_the_last_stage_may_stand_without_a_layer() -> None:
    # the head takes 4000 ns, a layer 1000: beside 2 layers each on three ranks the last holds none
    alone = a_row(pp=4, rank_const=[0, 0, 0, 4000], standalone=True)
    found = verdict(alone, num_layers=6)
    assert found.split is not None
    assert (found.objective_us, found.split[-1]) == (4, 0)
    # a layer on the last rank, which must have one, makes it 5
    assert verdict(replace(alone, standalone=False), num_layers=6).objective_us == 5
    # of a single stage nothing is left out
    assert verdict(a_row(pp=1, standalone=True), num_layers=6).split == (6,)


def test_chunks_of_a_rank_differ_by_at_most_one_layer() -> None:
    # 7 layers in 2 x 2 chunks; rank 1 takes the two that it must, so rank 0 holds 5: 2 and 3, 3 and 2, or
    # fewer in its first chunk, which is the model's, and never 4 and 1
    forced = a_row(vpp=2, room=[100, 2])
    assert verdict(forced, num_layers=7).split in ((1, 1, 4, 1), (2, 1, 3, 1), (3, 1, 2, 1))
    for first, status in ((3, cp_model.OPTIMAL), (4, cp_model.INFEASIBLE)):
        decision = modelled(a_request(forced, num_layers=7))
        decision.model.add(decision.bounds[1] == first)
        assert cp_model.CpSolver().solve(decision.model) == status


def test_only_the_first_and_last_chunk_of_the_model_may_hold_fewer() -> None:
    # a layer of chunk 0 takes 10 bytes, of chunk 2 one: rank 0 has room for 1 and 4, for no other five
    prices = [[10], [1], [1], [1]]
    found = verdict(a_row(vpp=2, room=[14, 2], memory_layer=prices), num_layers=7)
    assert (found.status, found.split) == ("OPTIMAL", (1, 1, 4, 1))
    # where chunk 2 is the dear one, 4 and 1 would fit, but an inner chunk is at most one layer smaller
    assert verdict(a_row(vpp=2, room=[14, 2], memory_layer=[[1], [1], [10], [1]]),
                   num_layers=7).status == "INFEASIBLE"  # fmt: skip


def test_one_of_the_splits_on_offer_is_kept_and_none_at_all_is_infeasible() -> None:
    assert verdict(a_row(splits=[(1, 4)])).split == (1, 4)
    assert verdict(a_row(splits=[(1, 4), (2, 3)])).split == (2, 3)
    assert verdict(a_row(splits=[])).status == "INFEASIBLE"


def test_the_better_of_two_rows_is_chosen_with_its_own_choices() -> None:
    # 1 rank of 5 layers at 500 ns = 2.5 us, rounded up to 3; 3 ranks of at most 2 layers at 1000 ns = 2
    found = verdict(a_row(pp=1, layer=[500]), a_row(pp=3))
    assert (found.row, found.objective_us) == (1, 2)


def test_layers_of_two_kinds_are_counted_where_they_are() -> None:
    # kinds a a b b b; b costs 3, a 1: a a b | b b is 5 and 6, a a b b | b is 8 and 3
    kinds = [[0, 1, 2, 2, 2, 2], [0, 0, 0, 1, 2, 3]]
    row = a_row(layer=[1000, 3000], replay=[0, 0], sum_replay=[0, 0],
                memory_layer=[[1, 1]] * 2, memory_replay=[[0, 0]] * 2)  # fmt: skip
    found = verdict(row, kinds=kinds)
    assert (found.objective_us, found.split) == (6, (3, 2))


def test_recomputed_layers_are_the_first_of_each_chunk() -> None:
    # kinds a b a b b, the first layer of a chunk replays: 10 us for b, nothing for a.
    # A boundary before b costs it; a | b… and a b a | b b start with b, a b | a b b does not.
    kinds = [[0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 3]]
    row = a_row(layer=[1000, 1000], replay=[0, 10_000], sum_replay=[0, 0], replayed_layers=1,
                memory_layer=[[1, 1]] * 2, memory_replay=[[0, 0]] * 2)  # fmt: skip
    found = verdict(row, kinds=kinds)
    assert (found.objective_us, found.split) == (3, (2, 3))


def test_stages_recompute_the_layers_that_their_memory_asks_for_and_one_at_least() -> None:
    # a layer of 3 bytes spares 2 and costs 3 us more to replay: 3 | 2 layers in 9 and 6 bytes need none
    own = a_row(by_stage=True, memory_layer=[[3]] * 2, memory_replay=[[-2]] * 2, replay=[3000])
    assert verdict(replace(own, room=[7, 6])).objective_us == 6  # one of 3 replays: 3 + 3 us
    # 2 | 3 would do as well; 4 | 1 layers and the one of 1 replayed, as no stage has to: 4 and 4 us
    assert verdict(replace(own, room=[100, 100])).objective_us == 4
    # 5 layers that all replay keep 5 bytes: 3 and 2 is the least
    assert verdict(replace(own, room=[3, 2])).status == "OPTIMAL"
    assert verdict(replace(own, room=[2, 2])).status == "INFEASIBLE"
    # layers a b a b b, a replays in 3 us and b in 10: the first of a b a replays, b b fits
    both = replace(own, layer=[1000] * 2, replay=[3000, 10_000], sum_replay=[0] * 2, room=[7, 6],
                   memory_layer=[[3, 3]] * 2, memory_replay=[[-2, -2]] * 2)  # fmt: skip
    found = verdict(both, kinds=KINDS)
    assert (found.objective_us, found.split) == (6, (3, 2))


def test_a_request_travels_as_json() -> None:
    request = a_request(a_row(), a_row(vpp=2))
    sent = json.loads(json.dumps(request.to_json()))
    assert json.loads(json.dumps(Request.from_json(sent).to_json())) == sent
    assert judge(Request.from_json(sent)) == judge(request)


@pytest.mark.parametrize(("room", "fits"), [(LARGEST, True), (LARGEST + 1, False)])
def test_numbers_too_large_to_stay_exact_are_not_asked(room: int, fits: bool) -> None:
    assert is_expressible(a_request(a_row(room=[room, 1]))) == fits


def test_the_ends_of_a_v_share_its_first_rank_and_may_be_of_any_size() -> None:
    # ranks 0 1 1 0: rank 0 holds the first and the last chunk; room for 4 layers on it and 4 on rank 1,
    # whose chunks differ by one at most; 3 bytes a layer in the first chunk leave it one layer
    row = a_row(2, 2, rank_of_chunk=[0, 1, 1, 0], room=[6, 4], memory_layer=[[3], [1], [1], [1]])
    verdict = judge(a_request(row, num_layers=8))
    assert (verdict.status, verdict.split) == ("OPTIMAL", (1, 2, 2, 3))
    assert judge(a_request(row, num_layers=9)).status == "INFEASIBLE"


# CP-SAT is used as it wants to be: what it trims, rounds, leaves open or refuses is told apart.

KINDS = [[0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 3]]  # layers a b a b b


def a_priced_row(pp: int = 2, *, kinds: int = 1, replayed: int = 0, by_stage: bool = False) -> RowRequest:
    """Ranks without ends: a layer costs 1000 ns and a byte, a replayed one of the last kind 10 us more."""
    sizes = {"pipeline_parallel_size": pp}
    return RowRequest(
        values={name: sizes.get(name, 1) for name in DECISIONS},
        rank_of_chunk=list(range(pp)),
        smallest_chunk=1,
        standalone=False,
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


def a_hinted_request(*rows: RowRequest, num_layers: int = 5, hint: tuple[int, ...] = ()) -> Request:
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
        a_hinted_request(a_priced_row(), hint=(4, 1)),
        a_hinted_request(a_priced_row(), a_priced_row(pp=3), hint=(4, 1)),
        a_hinted_request(a_priced_row(kinds=2, replayed=1), hint=(1, 4)),
        a_hinted_request(replace(a_priced_row(), splits=[(1, 4), (2, 3)]), hint=(1, 4)),
        a_hinted_request(a_priced_row(by_stage=True), a_priced_row(), hint=(4, 1)),
        a_hinted_request(a_priced_row(kinds=2, by_stage=True), hint=(1, 4)),
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


def test_presolve_takes_the_price_of_one_row_for_no_other_row_s() -> None:
    # 3 layers a, then b: a rank holds four b at most, 4 * 4.6 s in the first row and 4 * 4.7 in the second,
    # which OR-Tools 9.15 calls the least of both where it looks for constraints inside others
    kinds = [[0, 1, 2, *[3] * 12], [0, 0, 0, *range(12)]]
    free = {"memory_layer": [[0, 0]] * 12, "memory_replay": [[0, 0]] * 12, "replay": [0, 0]}
    rows = [
        a_row(pp=4, vpp=3, standalone=True, splits=splits, layer=layer, sum_replay=[0, 0], **free)
        for splits, layer in (
            ([[1, 2, 2, 2, *[1] * 7, 0]], [2_625_257_059, 4_613_651_483]),
            (
                [[1, 2, *[1] * 9, 2], [1, 2, 2, *[1] * 9], [1, 2, 2, 2, *[1] * 7, 0], [2, *[1] * 10, 2]],
                [2_742_746_426, 4_747_006_649],
            ),
        )
    ]
    found = verdict(*rows, num_layers=14, kinds=kinds)
    assert (found.row, found.objective_us) == (0, 18_454_606)


def test_a_worse_incumbent_than_the_best_is_improved_on() -> None:
    assert judge(a_hinted_request(a_priced_row(), hint=(4, 1))).objective_us == 3


def test_an_incumbent_that_breaks_a_rule_is_no_verdict() -> None:
    # 6 layers of 5: the boundaries cannot be as hinted, the minimum is what it is
    found = judge(a_hinted_request(a_priced_row(), hint=(3, 3)))
    assert (found.status, found.objective_us) == ("OPTIMAL", 3)


@pytest.mark.parametrize("replayed", [0, 1, 2])
def test_no_index_of_an_element_constraint_lies_outside_its_list(replayed: int) -> None:
    # CP-SAT would trim the index's domain without a word, and with it boundaries that are legal
    row = replace(
        a_priced_row(kinds=2, replayed=replayed, by_stage=not replayed), smallest_chunk=replayed or 1
    )
    proto = modelled(a_hinted_request(row)).model.proto
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
        row = replace(a_priced_row(kinds=2, replayed=1), room=[n, 5 - n])
        assert judge(a_hinted_request(row)).split == (n, 5 - n)


def test_a_number_that_would_trim_the_objective_is_refused_not_called_infeasible() -> None:
    # 3 layers of LARGEST / 3 ns are still exact; of LARGEST ns they leave the objective's domain
    assert judge(a_hinted_request(replace(a_priced_row(), layer=[LARGEST // 6]))).status == "OPTIMAL"
    assert judge(a_hinted_request(replace(a_priced_row(), layer=[LARGEST]))).status == "MODEL_INVALID"


def test_large_objectives_are_whole_microseconds_rounded_up() -> None:
    # 3 layers of 123 456 789 123 457 ns = 370 370 367 370.371 us
    found = judge(a_hinted_request(replace(a_priced_row(), layer=[123_456_789_123_457])))
    assert found.objective_us == 370_370_367_371
    assert isinstance(found.objective_us, int)


@pytest.mark.parametrize("limits", [{"time_limit_s": 1e-9}, {"deterministic_limit": 0.0}])
def test_a_limit_without_a_solution_is_told_apart_from_infeasible(limits: dict[str, float]) -> None:
    feasible = a_hinted_request(a_priced_row(pp=4), num_layers=40)
    infeasible = a_hinted_request(replace(a_priced_row(pp=4), room=[1] * 4), num_layers=40)
    assert judge(replace(feasible, **limits)).status == "UNKNOWN"  # type: ignore[arg-type]
    assert judge(feasible).status == "OPTIMAL"
    assert judge(infeasible).status == "INFEASIBLE"


def test_the_same_request_has_the_same_verdict() -> None:
    request = a_hinted_request(a_priced_row(pp=3), a_priced_row(pp=2), num_layers=17, hint=(6, 6, 5))
    assert judge(request) == judge(request)
