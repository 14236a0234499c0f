"""Advice on shapes: nearby, of the asked size, and faster than the asked one in fact."""

from dataclasses import replace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.explain.model_shapes import nearby, shape_advice
from meshwright.solver.explanation import ShapeAdvice
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_model, a_moe_model, a_problem

# 30 layers and heads of 64: neither splits over 4 stages, nor feeds attention kernels well.
ODD = a_model(
    num_layers=30, hidden_size=4096, ffn_hidden_size=11008, num_attention_heads=64, num_kv_heads=8,
    head_dim=64, vocab_size=50257,
)  # fmt: skip


def asked(pin: dict[str, int] | None = None) -> Problem:
    return a_problem(model=ODD, cluster=a_cluster(num_nodes=1), batch=64, certify="none", pin=pin or {})


def test_every_shape_is_one_change_away_and_none_is_the_asked_one() -> None:
    shapes = [model for _, _, model in nearby(ODD, 8)]
    assert len(set(shapes)) == len(shapes)
    assert ODD not in shapes
    heads = [model for change, _, model in nearby(ODD, 8) if change.startswith("heads ")]
    # 64 x 64 = 4096 wide; 8 queries share a key: 32 x 128 has 4 key/value heads, 16 x 256 has 2
    assert {(m.num_attention_heads, m.num_kv_heads, m.head_dim) for m in heads} == {
        (32, 4, 128),
        (16, 2, 256),
    }


def test_tokens_are_never_taken_out_of_the_vocabulary() -> None:
    sizes = [m.vocab_size for change, _, m in nearby(ODD, 8) if change.startswith("vocabulary ")]
    # the next multiples of 128 and of 128 * 8
    assert sorted(sizes) == [50304, 51200]


def test_experts_keep_what_a_token_uses() -> None:
    model = a_moe_model()
    for change, _, other in nearby(model, 16):
        if change.startswith("experts "):
            assert other.num_active_parameters() == pytest.approx(model.num_active_parameters(), rel=0.01)


def test_shapes_that_are_offered_are_faster_for_their_size_and_so_by_a_search() -> None:
    problem = asked()
    profile = default_profile(problem.cluster, problem.launcher)
    advice = shape_advice(problem, profile, tolerance=0.03, most=3)
    assert isinstance(advice, ShapeAdvice)
    assert advice.shapes
    assert [shape.gain for shape in advice.shapes] == sorted((s.gain for s in advice.shapes), reverse=True)
    best = advice.shapes[0]
    assert abs(best.parameters_change) <= 0.03
    model = next(model for change, _, model in nearby(ODD, 8) if change == best.change)
    there = search(replace(problem, model=model), profile).plans[0].prediction.step_time_s
    here = search(problem, profile).plans[0].prediction.step_time_s
    # advice takes the first plan by its closed form, a search the first of its simulated steps
    assert best.step_time_s == pytest.approx(there, rel=1e-3)
    # 1 - (there / parameters there) / (here / parameters here)
    saved = 1.0 - there / model.num_parameters() / (here / ODD.num_parameters())
    assert best.gain == pytest.approx(saved, abs=1e-3)


def test_a_shape_that_a_pinned_layout_cannot_hold_has_no_price_in_place() -> None:
    problem = asked({"pipeline_parallel_size": 4})
    advice = shape_advice(
        problem, default_profile(problem.cluster, problem.launcher), tolerance=0.1, most=16
    )
    assert isinstance(advice, ShapeAdvice)
    for shape in advice.shapes:
        assert shape.gain_in_place is None or shape.gain_in_place <= shape.gain + 1e-6


def test_a_model_without_a_plan_gets_no_advice() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1))
    assert shape_advice(problem, default_profile(problem.cluster, problem.launcher)) is None
