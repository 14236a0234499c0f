"""Several launchers, precisions, optimizers and batches in one request."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, replace
from math import inf
from typing import Any

import numpy as np
import pytest

from benchmarks.default_switches import MODELS, WITHIN, compared
from meshwright.profiles.capabilities import launcher_capabilities, launcher_names, launchers_of
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import Profile, default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import (
    SAMPLE,
    Answer,
    Infeasibility,
    ObjectiveClaim,
    Outlook,
    Plan,
    Remedy,
    settled_problem,
)
from meshwright.solver.check import violations
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner import fewest_nodes, no_plan, variants
from meshwright.solver.planner import plan as planner
from meshwright.solver.planner.fewest_nodes import differing_gpus
from meshwright.solver.planner.levers.levers import levers_of
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.variants import (
    Answered,
    Variant,
    merged,
    searched_together,
    variants_of,
    with_launchers,
)
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, batch_sizes, on_gpus
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import Space, enumerate_space, same_rows
from meshwright.solver.space.launcher_rules import overlap_warnings
from tests.builders import (
    a_cluster,
    a_configuration,
    a_gpu,
    a_model,
    a_moe_model,
    a_plan,
    a_prediction,
    a_problem,
    an_answer,
    an_infeasible_answer,
    with_default_switches,
)
from tests.draws import seldom
from tests.problems.asked import searched

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}


PLAIN = Configuration(stage_layers=(6,))

SINGLE = dict.fromkeys(
    ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "micro_batch_size"), 1
)


def small(**options: object) -> Problem:
    """6 layers on 8 GPUs."""
    limits: dict[str, object] = {"certify": "none", "pin": {"context_parallel_size": 1}, "top_k": 3}
    return a_problem(model=a_model(**SHAPE), cluster=a_cluster(num_nodes=1), batch=32, **limits | options)


def profile_of(problem: Problem) -> Profile:
    return default_profile(problem.cluster, problem.launcher)


def answered(problem: Problem) -> Answer:
    return ask(problem, default_profile(problem.cluster, launchers_of(problem.launcher)[0]))


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
    assert set(union.optimizers) == {
        "adamw",
        "adamw-bf16",
        "adamw-pure-bf16",
        "adamw-8bit",
        "adamw-8bit-bf16",
        "adamw-paged",
        "adamw-8bit-paged",
        "adamw-paged-bf16",
        "adamw-8bit-paged-bf16",
        "galore",
        "galore-8bit",
        "galore-pure-bf16",
        "galore-8bit-bf16",
        "galore-pure-bf16-layerwise",
        "galore-8bit-bf16-layerwise",
        "apollo",
        "apollo-pure-bf16",
        "apollo-pure-bf16-layerwise",
        "adam-mini",
        "adam-mini-pure-bf16",
        "badam",
        "muon",
        "muon-pure-bf16",
    }, "what their files name"


def test_plans_of_any_launcher_are_its_plans_and_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "launchers_of", lambda _name: ("megatron-lm",))
    own, every = answered(small()), answered(replace(small(), launcher="any"))
    assert [plan.config for plan in own.plans] == [plan.config for plan in every.plans]
    assert {plan.launchers for plan in every.plans} == {("megatron-lm",)}
    assert every.status == "optimal"
    assert {plan.launchers for plan in own.plans} == {()}


def test_launchers_are_compared_with_adapters_on_the_same_layers_and_the_answer_says_so() -> None:
    raw: dict[str, Any] = {
        "model": {"name": "qwen2.5-0.5b"},
        "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 1}]},
        "workload": {"global_batch_size": 2, "seq_length": 1024, "lora_rank": 8},
        "launcher": "any",
        "search": {"certify": "none", "top_k": 1},
    }
    said = "all linear layers have adapters under each launcher"
    assert any(said in warning for warning in answered(parse_problem(raw)).warnings[:1])
    assert not any(said in one for one in answered(parse_problem({**raw, "launcher": "trl"})).warnings)


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


def test_what_one_launcher_runs_on_fewer_gpus_is_searched_under_all() -> None:
    # 48 sequences in 24 micro-batches over 2 stages: dp is 1 or 2, so 8 GPUs need tp 4 or 2, which
    # DeepSpeed's pipelines lack: it can use 4 GPUs and no more, and what runs there runs under others too
    pin = {"pipeline_parallel_size": 2, "num_microbatches": 24, "context_parallel_size": 1}
    asked = replace(small(pin=pin, objective="tokens_per_s_per_gpu"), launcher="any")
    asked = replace(asked, workload=replace(asked.workload, global_batch_size=48))
    able = {one.problem.launcher: one for one in variants_of(asked, default_profile(asked.cluster, "none"))}
    both = [able["megatron-lm"].problem, able["deepspeed"].problem]
    assert [differing_gpus([one]) for one in both] == [(), ()]
    assert differing_gpus(both) == differing_gpus(both, nodes=1) == (8, 4)

    answer = answered(asked)
    assert answer.status == "optimal"
    assert answer.objective is not None
    assert answer.objective.bound is not None
    for name in answer.plans[0].launchers:
        own = searched(on_gpus(replace(asked, launcher=name), (4,))).objective
        assert own is not None
        assert own.value is not None
        assert own.value <= answer.objective.bound * (1 + 1e-9), name


def test_a_front_is_drawn_on_the_gpus_that_all_launchers_are_searched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as above: DeepSpeed can use 4 of the 8 GPUs, so that Megatron-LM's points of 4 belong to the front
    two = ("megatron-lm", "deepspeed")
    monkeypatch.setattr(variants, "launchers_of", lambda name: two if name == "any" else (name,))
    pin = {"pipeline_parallel_size": 2, "num_microbatches": 24, "context_parallel_size": 1}
    asked = replace(small(top_k=1, pin=pin, pareto=True), launcher="any")
    asked = replace(asked, workload=replace(asked.workload, global_batch_size=48))
    both = answered(asked).pareto
    own = searched(on_gpus(replace(asked, launcher="megatron-lm"), (4,))).plans[0]
    assert both is not None
    steps = [at.plan.prediction.step_time_s for at in both.points if at.plan.config.num_gpus == 4]
    assert min(steps) <= own.prediction.step_time_s * (1 + 1e-9)


def test_a_plan_names_the_launchers_that_can_run_it_and_no_other() -> None:
    asked = replace(small(), launcher="any")
    profile = default_profile(asked.cluster, "megatron-lm")
    config = Configuration(
        tensor_parallel_size=2, sequence_parallel=True, data_parallel_size=4,
        num_microbatches=8, stage_layers=(6,),
    )  # fmt: skip
    every = variants_of(asked, profile)
    own = next(one for one in every if one.problem.launcher == "megatron-lm")
    (plan,) = with_launchers(every, [(own, replace(a_plan(), config=config))])
    able = []
    for name in launchers_of("any"):
        one = replace(asked, launcher=name)
        able += [name] if not list(violations(one, profile_of(one), config)) else []
    assert plan.launchers[0] == "megatron-lm"
    assert sorted(plan.launchers) == able
    assert 1 < len(able) < len(launchers_of("any"))


@seldom
def test_the_first_plan_and_a_front_name_every_launcher_that_can_run_each() -> None:
    pin = {"tensor_parallel_size": 1, "context_parallel_size": 1, "micro_batch_size": 1}
    asked = replace(small(top_k=1, pin=pin, pareto=True), launcher="any")
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
    assert f"no products in 8 bits on {without.slug}: allowing fp8 adds nothing" in answered(old).warnings
    assert not any("allowing fp8" in warning for warning in allowed.warnings)


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
    allowed = replace(tight, options=replace(tight.options, allow=("offload", "none")))
    assert searched(tight).status == "infeasible"
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
    """A norm over the queries or keys of all heads, as OLMo-2's: torchtitan's models norm each head or
    nothing (0.3.0 models/qwen3/model.py, models/llama3/model.py); nanotron has none (models/qwen.py)."""
    shape = a_model(**SHAPE, query_key_norm="all_heads")
    answer = answered(replace(small(), launcher="any", model=shape))
    assert answer.status == "optimal"
    skipped = {one.launcher: one.reasons for one in answer.skipped_launchers}
    assert {"torchtitan", "nanotron"} <= set(skipped)
    for name in ("torchtitan", "nanotron"):
        assert skipped[name] == (f"{name} cannot express query-key norm over all heads",)
    assert not {"accelerate", "deepspeed"} & set(skipped)
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
    assert said.startswith("overlap_experts is requested, but #1, #2 can't overlap")
    assert "pipeline stages need virtual_pipeline_size above 1" in said
    chunked = answered(mixture(2))
    assert chunked.plans
    assert not [one for one in chunked.warnings if "overlap_experts" in one]


def test_a_switch_that_the_search_chose_is_not_called_requested() -> None:
    """A time limit may end a search before the combination without the overlap, which is tried later."""
    asked = mixture(1)
    plans = answered(asked).plans
    left_open = replace(asked, workload=replace(asked.workload, framework_options={}))
    assert overlap_warnings(left_open, plans) == ()
    chosen = [replace(plan, workload={"overlap_experts": "true"}) for plan in plans]
    (said,) = overlap_warnings(left_open, chosen)
    assert said.startswith("the search chose overlap_experts, but #1, #2 can't overlap")
    assert "pipeline stages need virtual_pipeline_size above 1" in said


# What holds for several answers together is no more than what holds for each.

ASKED = replace(a_problem(), launcher="any")


def for_megatron_lm(*answers: Answer) -> list[Answered]:
    """Each as the answer for Megatron-LM."""
    problem: Problem = replace(ASKED, launcher="megatron-lm")
    profile = default_profile(problem.cluster, problem.launcher)
    return [Answered(variant=Variant(problem=problem, profile=profile), answer=one) for one in answers]


def test_the_bound_of_all_is_the_least_where_every_one_has_one() -> None:
    both = merged(ASKED, for_megatron_lm(an_answer(), an_answer(bound_step_time_s=31.0)))
    assert (both.status, both.bound_step_time_s) == ("optimal", 31.0)


def test_what_is_proved_to_have_no_plan_needs_no_bound() -> None:
    both = merged(ASKED, for_megatron_lm(an_answer(), an_infeasible_answer()))
    assert (both.status, both.bound_step_time_s) == ("optimal", 32.5)


@pytest.mark.parametrize("plans", [True, False])
def test_a_search_that_was_stopped_before_its_bound_leaves_none_for_all(plans: bool) -> None:
    # its plans may be faster than the other's bound: a bound above the first plan's step was said
    stopped = an_answer(status="feasible" if plans else "unknown", bound_step_time_s=None, gap=None)
    stopped = stopped if plans else replace(stopped, plans=())
    both = merged(ASKED, for_megatron_lm(an_answer(), stopped))
    assert (both.status, both.bound_step_time_s) == ("feasible", None)


def test_searches_that_never_began_leave_nothing_proved() -> None:
    for asked in (ASKED, replace(ASKED, launcher="megatron-lm")):
        cut = merged(asked, for_megatron_lm(an_answer()), unasked=1)
        assert (cut.status, cut.bound_step_time_s, cut.certified_by) == ("feasible", None, ())
    assert merged(ASKED, for_megatron_lm(an_infeasible_answer()), unasked=1).status == "unknown"


def test_without_a_plan_the_launcher_whose_change_costs_least_is_told_and_named() -> None:
    def lost(gpu_s_per_token: float) -> Answer:
        remedy = Remedy(change="16 nodes", config=a_configuration(), step_time_s=12.0, num_gpus=128,
                        gpu_s_per_token=gpu_s_per_token, peak_memory_bytes=1)  # fmt: skip
        found = Infeasibility(reasons=("memory: 1 GiB short",), changes=("16 nodes",), remedies=(remedy,))
        return replace(an_infeasible_answer(), infeasible=found)

    none = merged(ASKED, for_megatron_lm(lost(7.0), lost(1.0), an_infeasible_answer())).infeasible
    assert none is not None
    assert [one.gpu_s_per_token for one in none.remedies] == [1.0]
    assert none.remedies[0].change == none.changes[0] == "16 nodes under megatron-lm"
    assert none.reasons == ("under megatron-lm: memory: 1 GiB short",)


def stepping(step_s: float, days: float | None = None, **changes: object) -> Plan:
    """A plan with that step; a run of so many days where they are given."""
    run = Outlook(num_gpus=128, goodput=0.99, checkpoint_interval_s=600.0, gpu_hours_per_token=1e-6,
                  energy_per_token_j=None, days=days, cost=None)  # fmt: skip
    plan = a_plan(**changes)  # type: ignore[arg-type]
    outlook = run if days is not None else None
    return replace(plan, prediction=a_prediction(step_time_s=step_s), outlook=outlook)


def claiming(step_s: float) -> Answer:
    """An answer whose one plan, the same configuration in all of them, has that step."""
    claim = ObjectiveClaim(name="step_time", unit="s", value=step_s, bound=step_s, gap=0.0)
    return an_answer(stepping(step_s), objective=claim, bound_step_time_s=step_s)


def test_the_objective_is_that_of_the_launcher_that_prices_the_first_plan() -> None:
    # both rank the same configuration: 30 s under one of them, 20 s under the other
    both = merged(ASKED, for_megatron_lm(claiming(30.0), claiming(20.0)))
    assert both.plans[0].prediction.step_time_s == 20.0
    assert both.objective is not None
    assert (both.objective.value, both.objective.bound, both.bound_step_time_s) == (20.0, 20.0, 20.0)


def test_a_warning_is_of_the_variant_whose_plans_are_listed() -> None:
    """One search uses 32 of 48 GPUs at most, the other all: the answer shows the other's plan alone."""
    fewer, every = claiming(30.0), replace(claiming(20.0), warnings=("all links are assumed",))
    fewer = replace(fewer, warnings=("at most 32 of 48 GPUs are used", "all links are assumed"))
    one = replace(ASKED, options=replace(ASKED.options, top_k=1))
    said = merged(one, for_megatron_lm(fewer, every)).warnings
    assert "at most 32 of 48 GPUs are used" not in said
    assert "all links are assumed" in said
    none = [replace(each, plans=(), status="infeasible") for each in (fewer, every)]
    assert {*fewer.warnings} <= {*merged(one, for_megatron_lm(*none)).warnings}, (
        "none is listed: all are said"
    )


def test_a_layout_that_launchers_run_otherwise_stands_once() -> None:
    slower = stepping(30.0, recompute_granularity="selective")
    both = merged(ASKED, for_megatron_lm(an_answer(stepping(20.0)), an_answer(slower)))
    assert [plan.prediction.step_time_s for plan in both.plans] == [20.0]


def test_the_fewest_nodes_are_those_of_the_launcher_that_needs_fewest() -> None:
    asked = replace(ASKED, options=replace(ASKED.options, gpus="fewest"))
    half = stepping(60.0, data_parallel_size=2, zero_shard_size=2, num_microbatches=256)  # 64 of 128 GPUs
    both = merged(asked, for_megatron_lm(an_answer(stepping(30.0)), an_answer(half)))
    assert [plan.config.num_gpus for plan in both.plans] == [64]


def test_further_switches_are_sought_on_no_more_nodes_than_the_first_ones_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = list[float]()

    def noted(*given: Any, most_nodes: float = inf, **how: Any) -> Answer:  # noqa: ANN401
        most.append(most_nodes)
        return fewest_nodes.fewest(*given, most_nodes=most_nodes, **how)

    monkeypatch.setattr(planner, "fewest", noted)
    monkeypatch.setattr(planner, "searched_together", lambda variants: [[one] for one in variants])
    pin = {"context_parallel_size": 1, "micro_batch_size": 1, "zero_stage": 1}
    asked = a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=4), gpus="fewest", top_k=1,
                      certify="none", pin=pin, allow=("none", "recompute_modules"))  # fmt: skip
    answer = ask(asked, profile_of(asked))
    assert answer.status == "optimal"
    needed = answer.plans[0].config.num_gpus // 8
    assert most[0] == inf
    assert len(most) > 1
    assert {needed} == {*most[1:]}


def test_a_step_is_bounded_by_what_is_known_of_steps_on_as_many_gpus() -> None:
    # 40 s bounds steps on 64 GPUs; on 128, those of the first plan, only its objective says something
    half = stepping(60.0, data_parallel_size=2, zero_shard_size=2, num_microbatches=256)
    claim = ObjectiveClaim(name="step_time", unit="s", value=60.0, bound=25.0, gap=0.5)
    other = an_answer(half, bound_step_time_s=20.0, objective=claim)
    assert merged(ASKED, for_megatron_lm(claiming(30.0), other)).bound_step_time_s == 25.0


def test_a_merged_answer_is_of_a_sample_where_more_time_changes_no_part_of_it() -> None:
    unknown = replace(an_answer(status="unknown"), plans=())
    sampled, refuted = replace(unknown, notes=SAMPLE), replace(unknown, status="infeasible")
    for others, expected in (((refuted,), True), ((sampled,), True), ((unknown,), False)):
        assert ("sample" in merged(ASKED, for_megatron_lm(sampled, *others)).notes) is expected
    assert "sample" not in merged(ASKED, for_megatron_lm(sampled), unasked=1).notes


# --------------------------------------------------------------------------------------------------
# Switches: what a stock installation runs is searched, what needs a package is listed where it pays.


def a_mixture(**options: object) -> Problem:
    """Qwen3-30B-A3B on 16 H100, by single sequences on single ranks, as a request without ``allow``."""
    found = a_problem(model=find_model("qwen3-30b-a3b"), cluster=find_cluster("dgx-h100", num_nodes=2),
                      batch=64, top_k=3, certify="none", pin=SINGLE, **options)  # fmt: skip
    return with_default_switches(found)


def allowing(problem: Problem, *allow: str) -> Problem:
    return replace(problem, options=replace(problem.options, allow=allow))


def options_of(variants: Iterable[Variant]) -> set[tuple[tuple[str, object], ...]]:
    return {tuple(sorted(one.problem.workload.framework_options.items())) for one in variants}


def test_without_allow_the_switches_of_a_stock_installation_are_searched() -> None:
    asked = a_mixture()
    tried = options_of(variants_of(asked, profile_of(asked)))
    values = {(name, value) for one in tried for name, value in one}
    assert {("moe_dispatcher", "allgather"), ("overlap_experts", True), ("delay_wgrad", True)} <= values
    assert ("recompute_modules", "moe_act") in values
    assert not {("moe_dispatcher", "hybridep"), ("moe_dispatcher", "deepep")} & values
    late = [dict(one) for one in tried if ("delay_wgrad", True) in one]
    assert all("cuda_graph" not in one for one in late), "that needs Transformer Engine 2.12"


def test_allow_none_searches_no_switch_and_names_add_to_what_is_searched() -> None:
    asked = a_mixture()

    def tried(*allow: str) -> set[tuple[tuple[str, object], ...]]:
        one = allowing(asked, *allow)
        return options_of(variants_of(one, profile_of(one)))

    assert tried("none") == {()}
    assert tried("fp8") == tried() > {()}
    assert {name for one in tried("none", "recompute_modules") for name, _ in one} == {"recompute_modules"}
    with_library = tried("moe_dispatcher")
    assert any(("moe_dispatcher", "hybridep") in one for one in with_library)
    assert not any({("cuda_graph", "attn"), ("delay_wgrad", True)} <= {*one} for one in with_library)
    assert any(dict(one).get("delay_wgrad") and "cuda_graph" in dict(one) for one in tried("switches"))


@pytest.mark.parametrize(
    ("options", "allow", "ways"),
    [
        pytest.param({}, (), 16, marks=seldom),  # every switch of a stock installation
        (
            {"diverse": True, "objective": "tokens_per_s_per_gpu", "num_nodes": (1, 2)},
            ("none", "moe_dispatcher", "overlap_experts"),
            3,
        ),
        (
            {"gpus": "fewest", "forbid": {"recompute_granularity": ("full",)}},
            ("none", "recompute_modules"),
            4,
        ),
        ({"objective": "energy_per_token"}, ("none", "recompute_modules"), 4),
    ],
    ids=["steps", "meshes by tokens", "fewest nodes", "joules"],
)
def test_switches_are_ranked_by_one_search_as_by_a_search_for_each(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], allow: tuple[str, ...], ways: int
) -> None:
    asked = allowing(a_mixture(**options), *allow)
    together = answered(asked)
    monkeypatch.setattr(planner, "searched_together", lambda variants: [[one] for one in variants])
    # why some of them have no plan takes longer than the search, and is not shown where others have one
    monkeypatch.setattr(no_plan, "with_reasons_of_none", lambda _problem, _profile, answer, _watch: answer)
    apart = answered(asked)

    def told(answer: Answer) -> list[object]:
        return [(one.rank, one.plan_id, one.config, one.workload, one.needs, one.prediction.step_time_s)
                for one in answer.plans]  # fmt: skip

    assert told(together) == told(apart)
    assert together.status == apart.status == "optimal"
    if "gpus" not in options:
        assert together.space_size >= apart.space_size, "alone, more are refuted on half of the GPUs"
    assert together.notes["variants"] == apart.notes["variants"] == str(ways)
    assert together.bound_step_time_s is not None
    assert together.bound_step_time_s >= (apart.bound_step_time_s or 0.0) * 0.999


def test_switches_that_allow_the_same_rows_share_their_enumeration() -> None:
    asked = a_mixture()
    spaces = [(same_rows(one.problem), enumerate_space(one.problem, legal_only=True))
              for one in variants_of(asked, profile_of(asked))]  # fmt: skip
    first = dict[Hashable, Space]()
    for key, space in spaces:
        one = first.setdefault(key, space)
        assert (space.size, space.num_legal) == (one.size, one.num_legal)
        rows = np.linspace(0, space.num_legal - 1, 64).astype(np.int64)
        here, there = space.rows.take(rows), one.rows.take(rows)
        assert all((getattr(here, f.name) == getattr(there, f.name)).all() for f in fields(here))
    assert len(first) < len(spaces)


def test_only_variants_that_differ_in_switches_alone_are_searched_together() -> None:
    asked = a_mixture()
    several = replace(asked, options=replace(asked.options, allow=("fp8",)))
    groups = searched_together(variants_of(several, profile_of(several)))
    assert [{one.problem.workload.precision for one in some} for some in groups] == [{"bf16"}, {"fp8"}]
    assert all(len(some) > 1 for some in groups)
    fewest = replace(asked, options=replace(asked.options, gpus="fewest"))
    assert len(searched_together(variants_of(fewest, profile_of(fewest)))) == 1


def test_rows_are_estimated_once_for_all_variants_of_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, estimated = a_mixture(), list[Problem]()

    def many(problem: Problem) -> float:  # too many to be searched together
        estimated.append(problem)
        return 1e12

    monkeypatch.setattr(variants, "estimated_outer", many)
    several = replace(asked, options=replace(asked.options, allow=("fp8",)))
    groups = searched_together(variants_of(several, profile_of(several)))
    assert len(groups) > 8
    assert [one.workload.precision for one in estimated] == ["bf16", "fp8"]


def test_what_no_gpus_hold_is_infeasible_whatever_the_time() -> None:
    # 175e9 weights of 16 bytes are 2.5 TiB, 8 H100 hold 0.6
    for launcher in ("megatron-lm", "any"):
        asked = a_problem(model=find_model("gpt-3-175b"), cluster=find_cluster("dgx-h100", num_nodes=1),
                          batch=64, time_limit_s=0.0)  # fmt: skip
        answer = answered(with_default_switches(replace(asked, launcher=launcher)))
        assert answer.status == "infeasible"
        assert answer.infeasible is not None
        said = " ".join(answer.infeasible.reasons)
        assert "weights, gradients and optimizer states alone need more than all GPUs hold together" in said


def test_a_cancelled_search_does_not_blame_its_limit() -> None:
    asked, told = a_mixture(), list[str]()
    answer = ask(
        asked, profile_of(asked),
        on_progress=lambda progress: told.append(progress.stage), should_stop=lambda: "done" in told,
    )  # fmt: skip
    said = " ".join(answer.warnings)
    assert answer.plans
    assert "the search was cancelled: plans with HybridEP were not searched" in said
    assert "time limit" not in said


def test_shapes_that_change_from_step_to_step_are_not_captured() -> None:
    asked = with_default_switches(small())
    lengths = SequenceLengths(histogram=((900, 0.5), (8192, 0.5)), batching="padding_to_longest")
    other = replace(asked, workload=replace(asked.workload, lengths=lengths))
    tried = [{name for one in options_of(variants_of(each, profile_of(each))) for name, _ in one}
             for each in (asked, other)]  # fmt: skip
    assert tried == [{"cuda_graph", "recompute_modules"}, {"recompute_modules"}]


def test_a_plan_that_needs_a_package_is_listed_behind_the_ranking_where_it_is_faster_by_3_percent() -> None:
    asked = a_mixture()
    stock, every, closed = (answered(allowing(asked, *allow)) for allow in ((), ("switches",), ("none",)))
    assert (stock.status, every.status) == ("optimal", "optimal")
    assert [plan.ranked for plan in stock.plans[:3]] == [True, True, True]
    first, extra = stock.plans[0], stock.plans[3:]
    assert extra, "HybridEP is worth more than 3 % here"
    assert first.prediction.step_time_s < closed.plans[0].prediction.step_time_s
    assert all(plan.needs == () for plan in stock.ranking)
    for plan in extra:
        assert not plan.ranked
        assert plan.needs
        assert plan.prediction.step_time_s < first.prediction.step_time_s / 1.03
        (said,) = [text for text in stock.warnings if text.startswith(f"#{plan.rank} needs")]
        assert " and ".join(plan.needs) in said
        assert (
            f"{plan.prediction.step_time_s:.3g} s instead of {first.prediction.step_time_s:.3g} s" in said
        )
        assert "--allow switches" in said
    best = min(plan.prediction.step_time_s for plan in extra)
    assert best <= 1.03 * every.plans[0].prediction.step_time_s
    assert [plan.rank for plan in stock.plans] == list(range(1, len(stock.plans) + 1))
    assert every.plans[0].needs == ("HybridEP", "Transformer Engine 2.12")[: len(every.plans[0].needs)]
    assert all(plan.ranked for plan in every.plans)


def test_rows_with_a_package_that_are_bounded_by_their_passes_have_the_same_best_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = answered(allowing(a_mixture()))
    monkeypatch.setattr(planner, "_MANY_ROWS", 0)
    monkeypatch.setattr(planner, "goes_through_usual", lambda _: True)
    bounded = answered(allowing(a_mixture()))
    assert [one.plan_id for one in bounded.plans] == [one.plan_id for one in plain.plans]
    assert len(plain.plans) > len(plain.ranking)


def test_no_package_makes_a_launcher_run_a_model_that_it_cannot_express() -> None:
    """Norms over all heads, as OLMoE's: HybridEP would be faster than every launcher that has them."""
    asked = replace(a_mixture(), launcher="any")
    answer = answered(replace(asked, model=replace(asked.model, query_key_norm="all_heads")))
    skipped = {one.launcher for one in answer.skipped_launchers}
    assert {"megatron-lm", "megatron-bridge"} <= skipped
    assert not {name for plan in answer.plans for name in plan.launchers} & skipped


def test_a_package_that_the_request_states_is_there() -> None:
    asked = a_mixture()
    stated = replace(
        asked, workload=replace(asked.workload, framework_options={"moe_dispatcher": "hybridep"})
    )
    found = variants_of(stated, profile_of(stated))
    assert all(one.problem.workload.framework_options["moe_dispatcher"] == "hybridep" for one in found)
    assert len(found) > 1
    answer = answered(stated)
    assert answer.plans[0].ranked
    assert answer.plans[0].needs == ("HybridEP",)


@seldom
def test_the_default_is_within_5_percent_of_every_switch_or_lists_the_faster_plan() -> None:
    """``make bench ARGS=default-switches`` holds twelve models against this."""
    found = compared(*next(one for one in MODELS if one[0] == "gpt-oss-20b"))
    assert found.default.status == found.every.status == "optimal"
    assert found.listed_s <= WITHIN * found.every_s
    assert found.every_s <= found.default_s


def test_no_search_lists_plans_on_fewer_gpus_that_another_one_beats_on_all() -> None:
    """Stages alone are a search of their own, faster on 8 GPUs than on all 12; usual stages are not."""
    body: dict[str, Any] = {
        "model": {"name": "llama-3.2-1b"},
        "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 3, "gpus_per_node": 4}]},
        "workload": {"global_batch_size": 8, "seq_length": 3000},
        "launcher": "megatron-lm",
    }
    search: dict[str, Any] = {
        "top_k": 6,
        "certify": "none",
        "pin": {"tensor_parallel_size": 1},
        "allow": ["standalone_stages", "none"],
    }

    def steps(**more: object) -> list[tuple[int, float]]:
        problem = parse_problem({**body, "search": {**search, **more}})
        return [(one.config.num_gpus, one.prediction.step_time_s) for one in answered(problem).plans]

    found = steps()
    assert {gpus for gpus, _ in found} == {12}
    assert found == steps(num_nodes=[3])
    assert len(found) == 6


def test_a_heavy_head_takes_a_stage_of_its_own_where_that_is_allowed() -> None:
    # 6 layers of 59 M weights and a vocabulary of 512 000 x 2048 = 1 049 M on 4 stages
    pin = {"context_parallel_size": 1, "pipeline_parallel_size": 4, "tensor_parallel_size": 1}
    plain = small(pin=pin, certify="cp-sat")
    heavy = replace(plain, model=replace(plain.model, vocab_size=512_000))
    asked = replace(heavy, options=replace(heavy.options, allow=("standalone_stages", "none")))
    before, after = answered(heavy), answered(asked)
    assert (before.status, after.status) == ("optimal", "optimal")
    assert before.plans[0].config.stage_layers[-1] == 1
    assert after.plans[0].config.stage_layers[-1] == 0
    assert after.plans[0].prediction.step_time_s < before.plans[0].prediction.step_time_s
    assert after.plans[0].certified_by == ("exact-dp", "cp-sat")
    # where it is not allowed, the answer names it, and what it is worth
    profile = profile_of(heavy)
    named = levers_of(heavy, profile, before, Watch(time_limit_s=60.0), looks=10_000)
    (stages,) = (one for one in named if one.kind == "standalone_stages")
    assert stages.step_time_s == pytest.approx(after.plans[0].prediction.step_time_s)
    allowed = levers_of(asked, profile, after, Watch(time_limit_s=60.0), looks=10_000)
    assert all(one.kind != "standalone_stages" for one in allowed)
    # a launcher without such stages, and one that places the layers of a pattern, is searched as it was
    pattern = replace(asked.model, layer_pattern="*-*-*-")
    for other in (replace(asked, launcher="ms-swift"), replace(asked, model=pattern)):
        assert len(variants_of(other, profile_of(other))) == 1


def test_prediction_layers_take_a_stage_of_their_own_where_the_ends_may_stand_alone() -> None:
    # two heads of 819 M weights beside 6 layers of 59 M: the pipeline waits for both, less so without them
    pin = {"context_parallel_size": 1, "pipeline_parallel_size": 4, "tensor_parallel_size": 1}
    plain = small(pin=pin, certify="cp-sat")
    asked = replace(plain, model=replace(plain.model, vocab_size=400_000, num_mtp_layers=1))
    found = answered(replace(asked, options=replace(asked.options, allow=("standalone_stages", "none"))))
    assert (found.status, found.plans[0].certified_by) == ("optimal", ("exact-dp", "cp-sat"))
    assert found.plans[0].config.stage_layers[2:] == (0, 0)
    assert found.plans[0].prediction.step_time_s < answered(asked).plans[0].prediction.step_time_s
    # torchtitan keeps them with the loss
    titan = replace(asked, launcher="torchtitan", options=replace(asked.options, stage_layers=(3, 3, 0, 0)))
    assert "stage_layers has a chunk without a layer" in " ".join(
        violations(titan, profile_of(titan), found.plans[0].config)
    )


def test_prediction_layers_take_their_time_and_memory_with_them() -> None:
    # (6, 0, 0): layers | prediction | head, against the same with both in the last stage
    asked = small(stage_layers=(6, 0, 0))
    asked = replace(asked, model=replace(asked.model, num_mtp_layers=1))
    config = replace(
        PLAIN, pipeline_parallel_size=3, pipeline_schedule="1f1b", num_microbatches=32, micro_batch_size=1
    )
    apart, beside = (
        predict(asked, profile_of(asked), replace(config, stage_layers=split))
        for split in ((6, 0, 0), (3, 3, 0))
    )
    own, head, both, empty = apart.stages[1], apart.stages[2], beside.stages[2], beside.stages[1]
    assert own.layers == head.layers == 0 < empty.layers
    # one more stage: a hidden state there and a gradient back, of the last layer and of prediction's
    both_ways_s = beside.time_breakdown_s["pipeline_transfer"] / 32
    assert both_ways_s > 1e-3 * both.compute_s
    assert own.compute_s + head.compute_s == pytest.approx(both.compute_s + 2 * both_ways_s)
    for term in ("weights", "gradients", "optimizer"):
        assert own.memory_bytes[term] + head.memory_bytes[term] == pytest.approx(both.memory_bytes[term])
    # a layer, its projection of 2 h x h, norms of h, and the copy of the embedding
    model = asked.model
    weights = model.mtp_parameters() + model.vocab_size * model.hidden_size
    assert own.memory_bytes["weights"] == pytest.approx(2 * weights, rel=0.01)


def test_a_pinned_split_may_leave_the_ends_alone() -> None:
    found = answered(small(stage_layers=(0, 3, 3, 0), certify="cp-sat"))
    assert found.status == "optimal"
    assert {plan.config.stage_layers for plan in found.plans} == {(0, 3, 3, 0)}


@pytest.mark.parametrize(
    ("launcher", "precision", "stated"),
    [
        ("deepspeed", "fp16", {}),  # which keeps gradients in 16 bits of its own accord
        ("megatron-lm", "fp8", {"recompute_modules": "layernorm"}),  # which no switch can make right
    ],
)
def test_a_request_beside_which_no_switch_moves_is_searched_as_it_stands(
    launcher: str, precision: str, stated: dict[str, str]
) -> None:
    asked = replace(small(), launcher=launcher)
    work = replace(asked.workload, precision=precision, framework_options=stated)
    plain = replace(asked, workload=work)
    opened = replace(plain, options=replace(plain.options, allow=("switches",)))
    (found,) = variants_of(opened, profile_of(opened))
    assert found.problem.workload == plain.workload


def test_reasons_for_no_plan_are_sought_after_all_launchers_were_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[str]()

    def noted(name: str, inner: Callable[..., Answer]) -> Callable[..., Answer]:
        def called(*given: Any, **how: Any) -> Answer:  # noqa: ANN401
            calls.append(name)
            return inner(*given, **how)

        return called

    monkeypatch.setattr(fewest_nodes, "search", noted("search", search))
    monkeypatch.setattr(no_plan, "with_reasons_of_none", noted("reasons", no_plan.with_reasons_of_none))
    answer = answered(replace(small(pin={"pipeline_parallel_size": 2}), launcher="any"))
    assert answer.plans
    assert calls.count("reasons") > 0  # accelerate runs one stage alone
    assert calls.index("reasons") > max(at for at, name in enumerate(calls) if name == "search")
    assert all(one.reasons for one in answer.skipped_launchers if one.launcher == "accelerate")


def test_a_plan_on_part_of_the_fewest_nodes_states_the_power_limit_that_it_was_priced_with() -> None:
    # 8 sequences and 16 heads leave one of a node's 5 GPUs idle: a cluster of one such node is searched
    nodes = a_cluster(num_nodes=2, gpu=a_gpu(power_watts=700.0))
    group = replace(nodes.groups[0], gpus_per_node=5, island_gpus=5)
    limits = {"allow": ("power_limit_w",), "objective": "energy_per_token", "gpus": "fewest"}
    pin = {"pipeline_parallel_size": 1, "micro_batch_size": 1}
    problem = a_problem(model=a_model(**SHAPE), cluster=replace(nodes, groups=(group,)), batch=8, top_k=2,
                        certify="none", pin=pin, **limits)  # fmt: skip
    first, *_ = plans = answered(problem).plans
    assert first.config.num_gpus == 4
    assert float(first.workload["power_limit_w"]) < 700.0
    for plan in plans:
        own, profile = settled_problem(plan, problem), profile_of(problem)
        assert not list(violations(own, profile, plan))
        assert predict(own, profile, plan.config).step_time_s == pytest.approx(plan.prediction.step_time_s)
