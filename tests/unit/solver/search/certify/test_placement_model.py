"""CP-SAT beside the exact program on mixed clusters: the same minimum, or an error."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.problem import Certify, Problem, ProofMismatchError
from meshwright.solver.search.certify.judge import Claimed, compare, field_request
from meshwright.solver.search.certify.placement_model import PlacementVerdict, judge_placement
from meshwright.solver.search.certify.request import FieldRequest, PlacementRequest
from meshwright.solver.search.placement.program import Field, Program
from meshwright.solver.search.search import search
from tests.problems.mixed_clusters import (
    a_group,
    a_mixed_problem,
    fields_of,
    mixed_problems,
    outer_space,
    placements,
)

FAST, SLOW_GROUP = a_group(speed=1.0, slug="fast"), a_group(speed=0.4, slug="slow")


def a_request(*claims: Claimed) -> PlacementRequest:
    one = claims[0].field
    return PlacementRequest(
        num_layers=one.num_layers,
        cumulative=one.outer.layout.cumulative.T.tolist(),
        fields=[field_request(claimed) for claimed in claims],
        hint_field=0,
        seed=0,
        time_limit_s=20.0,
        deterministic_limit=8.0,
    )


def as_json(verdict: PlacementVerdict) -> dict[str, object]:
    return {"field": verdict.field, "placement": verdict.placement, "objective_us": verdict.objective_us}


def a_field(problem: Problem, stages: int) -> Field:
    """The first field on all groups with so many stages that has placements."""
    outer = outer_space(problem)
    for row in range(len(outer)):
        for one in fields_of(outer, row):
            if one.p == stages and len(one.berths) > 1 and Program(one).solve() is not None:
                return one
    raise AssertionError("there is one")


def answered(certify: Certify) -> Answer:
    problem = a_mixed_problem((FAST, SLOW_GROUP), certify=certify, top_k=3)
    return search(problem, default_profile(problem.cluster, "none"))


def test_berths_of_unlike_speed_are_judged_with_little_effort() -> None:
    # 6 stages in 4! orders of berths, 40 layers: what all layers take at least stands in the model, so that
    # few placements are tried (4 and more by CP-SAT's own clock before, as it counts on any machine)
    quick, own = (20, 10, 40, 80), (700, 450, 1350, 2500)
    one = FieldRequest(
        num_stages=6, room=(1, 2, 2, 1), fixed=12_000_000,
        layer=[[1_000_000 * each] for each in quick], own_layer=[[1_000_000 * each] for each in own],
        beside=[[1_000_000] * 6] * 4, own_beside=[[30_000_000 * (1 + stage % 3) for stage in range(6)]] * 4,
        hop=[[7_000_000] * 4] * 4, own_hop=[[7_000_000] * 4] * 4,
        memory_layer=[[[1]] * 6] * 4, memory_room=[[40] * 6] * 4,
        hint=[(1, 12), (1, 12), (0, 7), (2, 4), (2, 4), (3, 1)],
    )  # fmt: skip
    request = PlacementRequest(
        num_layers=40, cumulative=[list(range(41))], fields=[one], hint_field=0, seed=0, time_limit_s=60.0,
        deterministic_limit=2.0,
    )  # fmt: skip
    for seed in range(3):
        assert judge_placement(replace(request, seed=seed)).status == "OPTIMAL"


@settings(max_examples=25, deadline=None)
@given(problem=mixed_problems(), data=st.data())
def test_cp_sat_proves_the_exact_programs_minimum_of_any_field(
    problem: Problem, data: st.DataObject
) -> None:
    outer = outer_space(problem)
    fields = list(fields_of(outer, data.draw(st.integers(0, len(outer) - 1)))) if len(outer) else []
    one = data.draw(st.sampled_from(fields)) if fields else None
    best = None if one is None else Program(one).solve()
    if one is None or best is None:
        return
    verdict = judge_placement(a_request(Claimed(one, best)))
    assert verdict.status == "OPTIMAL"
    compare([Claimed(one, best)], as_json(verdict), best.objective_s)


def test_layers_of_two_kinds_are_placed_by_element_constraints() -> None:
    moe = MoeSpec(num_experts=4, top_k=2, ffn_hidden_size=2048, num_dense_layers=2)
    problem = a_mixed_problem((FAST, SLOW_GROUP), num_layers=5)
    problem = replace(problem, model=replace(problem.model, moe=moe))
    one = a_field(problem, 3)
    claimed = Claimed.of(one)
    assert len(a_request(claimed).cumulative) == 2
    verdict = judge_placement(a_request(claimed))
    assert verdict.status == "OPTIMAL"
    compare([claimed], as_json(verdict), claimed.best.objective_s)


def test_of_several_fields_the_best_one_is_chosen() -> None:
    outer = outer_space(a_mixed_problem((FAST, SLOW_GROUP)))
    claims = [
        Claimed.of(one)
        for row in range(0, len(outer), 7)
        for one in fields_of(outer, row)
        if Program(one).solve() is not None
    ][:6]
    least = min(claims, key=lambda claimed: claimed.best.objective_s)
    verdict = judge_placement(a_request(*claims))
    assert verdict.field is not None
    assert claims[verdict.field].best.objective_s == pytest.approx(least.best.objective_s, abs=2e-6)


def test_a_field_whose_memory_is_too_small_by_a_byte_a_layer_is_infeasible() -> None:
    one = a_field(a_mixed_problem((FAST, SLOW_GROUP)), 2)
    request = a_request(Claimed.of(one))
    field = request.fields[0]
    tight = [[kinds[0][0] - 1 for _ in kinds] for kinds in field.memory_layer]  # less than one layer needs
    assert (
        judge_placement(replace(request, fields=[replace(field, memory_room=tight)])).status == "INFEASIBLE"
    )


def test_numbers_beyond_the_exact_range_are_refused() -> None:
    request = a_request(Claimed.of(a_field(a_mixed_problem((FAST, SLOW_GROUP)), 2)))
    huge = replace(request.fields[0], fixed=2**53)
    assert judge_placement(replace(request, fields=[huge])).status == "MODEL_INVALID"


def test_a_request_is_the_same_after_json() -> None:
    request = a_request(Claimed.of(a_field(a_mixed_problem((FAST, SLOW_GROUP)), 2)))
    assert judge_placement(PlacementRequest.from_json(request.to_json())) == judge_placement(request)


def test_another_minimum_than_the_exact_programs_is_an_error() -> None:
    one = a_field(a_mixed_problem((FAST, SLOW_GROUP)), 2)
    claimed = Claimed.of(one)
    right = as_json(judge_placement(a_request(claimed)))
    compare([claimed], right, claimed.best.objective_s)
    with pytest.raises(ProofMismatchError, match="exact program"):
        compare([claimed], right, claimed.best.objective_s * 0.99)
    worst = max(placements(one), key=one.objective_s)
    stops = [(stop.berth, stop.end - stop.start) for stop in worst]
    with pytest.raises(ProofMismatchError, match="its placement makes"):
        compare([claimed], {**right, "placement": stops}, claimed.best.objective_s)


def test_certify_names_cp_sat_for_the_first_plan_and_cp_sat_all_for_every_one() -> None:
    by = [[plan.certified_by for plan in answered(how).plans] for how in ("none", "cp-sat", "cp-sat-all")]
    assert by[0] == [("exact-dp",)] * 3
    assert by[1] == [("exact-dp", "cp-sat"), ("exact-dp",), ("exact-dp",)]
    assert by[2] == [("exact-dp", "cp-sat")] * 3
    assert answered("cp-sat").certified_by == ("exact-dp", "cp-sat")


def test_classes_of_unlike_replicas_are_certified_class_by_class() -> None:
    pin = {"micro_batch_size": 1, "zero_stage": 0}
    problem = a_mixed_problem((FAST, SLOW_GROUP), certify="cp-sat-all", top_k=100, pin=pin)
    answer = search(problem, default_profile(problem.cluster, "none"))
    shared = [plan for plan in answer.plans if plan.config.replicas]
    assert shared
    assert all("cp-sat" in plan.certified_by for plan in shared)
