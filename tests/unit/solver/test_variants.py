"""Several launchers, precisions, optimizers and batches in one request."""

from dataclasses import replace

import pytest

from meshwright.profiles.capabilities import launcher_capabilities, launcher_names, launchers_of
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.check import violations
from meshwright.solver.planner import variants
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, batch_sizes
from tests.builders import a_cluster, a_gpu, a_model, a_moe_model, a_problem

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}


def small(**options: object) -> Problem:
    """6 layers on 8 GPUs."""
    limits: dict[str, object] = {"certify": "none", "pin": {"context_parallel_size": 1}, "top_k": 3}
    return a_problem(model=a_model(**SHAPE), cluster=a_cluster(num_nodes=1), batch=32, **limits | options)


def profile_of(problem: Problem) -> Profile:
    return default_profile(problem.cluster, problem.launcher)


def answered(problem: Problem) -> Answer:
    return ask(problem, profile_of(problem))


def test_any_launcher_means_every_one_whose_limits_are_known() -> None:
    assert {*launchers_of("any"), "none"} == set(launcher_names())
    assert launchers_of("none") == ("none",)
    union = launcher_capabilities("any")
    for name in launchers_of("any"):
        able = launcher_capabilities(name)
        assert {*able.schedules, *able.precisions} <= {*union.schedules, *union.precisions}
        assert union.uneven_stages >= able.uneven_stages
    assert union.launcher == "any"
    assert "any" in union.model_facts, "a script of the user's own builds any model"
    assert (union.constraints, union.recipes) == ((), ())
    assert union.optimizers == ("adamw",), "no launcher's files have another one"


def test_plans_of_any_launcher_are_its_plans_and_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "launchers_of", lambda _name: ("megatron-lm",))
    own, every = answered(small()), answered(replace(small(), launcher="any"))
    assert [plan.config for plan in own.plans] == [plan.config for plan in every.plans]
    assert {plan.launchers for plan in every.plans} == {("megatron-lm",)}
    assert every.status == "optimal"
    assert {plan.launchers for plan in own.plans} == {()}


def test_layouts_of_several_launchers_stand_once_under_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        variants, "launchers_of", lambda name: ("megatron-lm", "none") if name == "any" else (name,)
    )
    every = answered(replace(small(), launcher="any"))
    first = every.plans[0]
    assert first.launchers == ("megatron-lm", "none")
    assert len({plan.config for plan in every.plans}) == 3
    alone = answered(replace(small(), launcher="none"))
    assert first.prediction.step_time_s <= alone.plans[0].prediction.step_time_s * (1 + 1e-9)
    assert every.space_size > alone.space_size


def test_a_plan_names_every_launcher_that_can_run_it() -> None:
    asked = replace(small(top_k=1, pin={"context_parallel_size": 1}, pareto=True), launcher="any")
    answer = answered(asked)
    assert answer.pareto is not None
    for plan in (answer.plans[0], *(point.plan for point in answer.pareto.points)):
        able = []
        for name in launchers_of("any"):
            one = replace(asked, launcher=name)
            able += [name] if not list(violations(one, profile_of(one), plan.config)) else []
        assert sorted(plan.launchers) == able


def test_fp8_is_searched_only_where_it_is_allowed_and_the_gpu_has_it() -> None:
    assert {tuple(plan.workload) for plan in answered(small()).plans} == {()}
    allowed = answered(small(allow=("fp8",)))
    assert allowed.status == "optimal"
    assert allowed.plans[0].workload == {"precision": "fp8"}
    asked = replace(small(), workload=replace(small().workload, precision="fp8"))
    direct = answered(asked).plans[0]
    assert (direct.config, direct.plan_id) == (allowed.plans[0].config, allowed.plans[0].plan_id)
    without = a_gpu(peak_flops={"bf16": 312e12})
    old = replace(small(allow=("fp8",)), cluster=a_cluster(num_nodes=1, gpu=without))
    assert {tuple(plan.workload) for plan in answered(old).plans} == {()}


def test_other_optimizers_stand_beside_the_one_that_was_asked_for() -> None:
    answer = answered(replace(small(allow=("sgd-momentum",), top_k=20), launcher="none"))
    used = [plan.workload.get("optimizer", "adamw") for plan in answer.plans]
    assert set(used) == {"adamw", "sgd-momentum"}
    steps = [plan.prediction.step_time_s for plan in answer.plans]
    assert steps == sorted(steps)
    assert [plan.rank for plan in answer.plans] == list(range(1, 21))


def test_offloading_the_optimizer_fits_what_does_not_fit() -> None:
    tight = replace(a_problem(model=a_model(num_layers=48), cluster=a_cluster(num_nodes=1), batch=8,
                              certify="none", top_k=1), launcher="none")  # fmt: skip
    allowed = replace(tight, options=replace(tight.options, allow=("offload",)))
    assert answered(tight).status == "infeasible"
    plan = answered(allowed).plans[0]
    assert plan.config.offload in ("optimizer", "optimizer+activations")
    assert plan.prediction.stages[0].memory_bytes["optimizer"] == 0


def test_batches_are_compared_by_the_time_of_as_many_sequences() -> None:
    problem = small(batch_sizes=(8, 16))
    assert batch_sizes(problem) == (32, 16, 8)
    answer = answered(problem)
    assert answer.status == "optimal"
    best = {}
    for batch in (8, 16, 32):
        one = replace(small(), workload=replace(small().workload, global_batch_size=batch))
        best[batch] = answered(one).plans[0].prediction.step_time_s / batch
    first = answer.plans[0]
    assert first.prediction.step_time_s / first.config.global_batch_size == pytest.approx(
        min(best.values())
    )
    assert answer.objective is not None
    assert answer.objective.value == pytest.approx(32 * min(best.values()))
    assert answer.objective.unit == "s for 32 sequences"


def test_a_batch_may_be_constrained() -> None:
    answer = answered(small(batch_sizes=(8, 16), constraints=("global_batch_size <= 16",)))
    assert {plan.config.global_batch_size for plan in answer.plans} <= {8, 16}


def test_launchers_that_cannot_express_a_fact_of_the_model_are_named_with_it_and_not_searched() -> None:
    """A norm of queries and keys: neither torchtitan's llama3 nor nanotron's Qwen2 has one (both files'
    modules are ``wq, wk, wv, wo``: torchtitan 0.3.0 models/llama3/model.py, nanotron models/qwen.py)."""
    shape = a_model(**SHAPE, query_key_norm="per_head")
    answer = answered(replace(small(), launcher="any", model=shape))
    assert answer.status == "optimal"
    skipped = {one.launcher: one.reasons for one in answer.skipped_launchers}
    assert {"torchtitan", "nanotron"} <= set(skipped)
    for name in ("torchtitan", "nanotron"):
        assert skipped[name] == (f"{name} cannot express query-key norm of each head",)
    assert not {"megatron-lm", "deepspeed"} & set(skipped)
    assert not {name for plan in answer.plans for name in plan.launchers} & set(skipped)
    alone = answered(replace(small(), model=shape))
    assert alone.skipped_launchers == ()


def test_a_launcher_without_a_plan_that_fits_is_named_with_the_reason() -> None:
    """accelerate has no pipeline, which the request pins."""
    pins = {"pipeline_parallel_size": 2, "context_parallel_size": 1}
    answer = answered(replace(small(pin=pins), launcher="any"))
    skipped = {one.launcher: " ".join(one.reasons) for one in answer.skipped_launchers}
    assert "pipeline_parallel_size" in skipped["accelerate"]
    assert "megatron-lm" not in skipped


def mixture(virtual_pipeline_size: int) -> Problem:
    """A mixture of experts on two stages of 16 GPUs, whose request asks for overlapped experts."""
    pins = {"context_parallel_size": 1, "pipeline_parallel_size": 2, "expert_parallel_size": 4,
            "recompute_granularity": "none"}  # fmt: skip
    bounds = {"virtual_pipeline_size": (virtual_pipeline_size, virtual_pipeline_size)}
    found = a_problem(
        model=a_moe_model(), cluster=a_cluster(num_nodes=4), batch=64, certify="none", top_k=2, pin=pins,
        bounds=bounds,
    )  # fmt: skip
    return replace(found, workload=replace(found.workload, framework_options={"overlap_experts": True}))


def test_plans_that_cannot_overlap_their_experts_as_requested_name_the_rule() -> None:
    """Megatron-Core 0.16.1 transformer_config.py:1868: stages need virtual stages for this overlap."""
    (said,) = (one for one in answered(mixture(1)).warnings if "overlap_experts" in one)
    assert said.startswith("overlap_experts is requested, but #1, #2 cannot overlap")
    assert "pipeline stages need virtual_pipeline_size above 1" in said
    chunked = answered(mixture(2))
    assert chunked.plans
    assert not [one for one in chunked.warnings if "overlap_experts" in one]
