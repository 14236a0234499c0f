"""Plans on fewer GPUs than all: when they are sought, their rank, and what is said of idle nodes."""

from dataclasses import replace
from math import inf

import pytest

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Answer
from meshwright.solver.clock import Watch
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, Progress, on_gpus
from meshwright.solver.search import fewer_gpus
from meshwright.solver.search.fewer_gpus import IDLE, at_most_all
from meshwright.solver.search.frontier import NO_RIVALS, Rivals
from meshwright.solver.search.gpu_seconds import least_gpu_s, least_pass_gpu_s
from meshwright.solver.search.search import search
from meshwright.solver.space import enumerate as enumerate_module
from meshwright.solver.space.enumerate import estimated_outer, numbers_of_gpus
from tests.builders import a_cluster, a_gpu, a_model, a_problem

SIZES: dict[str, int | str] = {
    "tensor_parallel_size": 8,
    "context_parallel_size": 1,
    "micro_batch_size": 1,
}


def on_17_nodes(**options: object) -> Problem:
    """80 layers and 128 sequences on 17 nodes of 8 tensor ranks: 17 stages, or fewer nodes."""
    sizes: dict[str, object] = {"pin": SIZES, "certify": "none"}
    return a_problem(cluster=a_cluster(num_nodes=17), batch=128, **{**sizes, **options})  # type: ignore[arg-type]


def answer_to(problem: Problem, **how: object) -> Answer:
    return search(problem, default_profile(problem.cluster, problem.launcher), **how)  # type: ignore[arg-type]


def test_a_node_that_makes_steps_longer_is_left_idle_and_named() -> None:
    problem = on_17_nodes()
    found = ask(problem, default_profile(problem.cluster, problem.launcher))
    on_16 = answer_to(replace(problem, cluster=a_cluster(num_nodes=16)))
    on_all = answer_to(on_17_nodes(num_nodes=(17,)))
    assert (found.status, found.num_gpus_used) == ("optimal", 128)
    first_s = found.plans[0].prediction.step_time_s
    assert first_s == on_16.plans[0].prediction.step_time_s < on_all.plans[0].prediction.step_time_s
    assert found.bound_step_time_s is not None
    assert found.bound_step_time_s <= first_s
    assert found.plans[0].plan_id == search_id(problem, found)
    said = f"1 of 17 nodes is idle: 16 nodes take {first_s:.4g} s a step with this batch, all 17 take "
    assert [text for text in found.warnings if "idle" in text] == [
        f"{said}{on_all.plans[0].prediction.step_time_s:.4g} s"
    ]


def test_a_part_of_a_node_is_left_idle_where_a_pin_of_its_replicas_is_faster() -> None:
    """35 sequences go to 7 replicas. On all 8 GPUs one replica shares its small layers or sequences."""
    model = a_model(num_layers=4, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=8)
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=1), batch=35, certify="none", top_k=1)
    pinned = replace(problem, options=replace(problem.options, pin={"data_parallel_size": 7}))
    found, on_all, own = (answer_to(one) for one in (problem, on_gpus(problem, (8,)), pinned))
    assert (found.status, found.num_gpus_used) == ("optimal", 7)
    assert found.plans[0].config == own.plans[0].config
    step_s, all_s = (one.plans[0].prediction.step_time_s for one in (found, on_all))
    said = f"7 GPUs take {step_s:.4g} s a step with this batch, all 8 take {all_s:.4g} s"
    assert found.notes[IDLE] == f"1 of 8 GPUs is idle: {said}"


def search_id(problem: Problem, found: Answer) -> str:
    """The id of the first plan where its numbers of GPUs are named."""
    named = answer_to(replace(problem, options=replace(problem.options, num_nodes=(16,))))
    assert named.plans[0].config == found.plans[0].config
    return named.plans[0].plan_id


def test_plans_on_fewer_gpus_are_listed_where_they_are_faster_than_every_one_on_all() -> None:
    found, on_all = answer_to(on_17_nodes(top_k=4)), answer_to(on_17_nodes(top_k=4, num_nodes=(17,)))
    steps = [plan.prediction.step_time_s for plan in found.plans]
    assert steps == sorted(steps)
    best_s = on_all.plans[0].prediction.step_time_s
    assert {plan.config.num_gpus < 136 for plan in found.plans} == {True, False}
    assert all(plan.prediction.step_time_s < best_s for plan in found.plans if plan.config.num_gpus < 136)


def test_where_no_plan_fits_on_all_gpus_as_many_are_listed_as_are_asked_for() -> None:
    """Weights and states of 8 billion take 150 GB on a GPU alone; 16 GPUs have one layout, and 8 others."""
    sizes = "tensor_parallel_size * pipeline_parallel_size"
    on_16 = "tensor_parallel_size == 2 and pipeline_parallel_size == 2 and micro_batch_size == 1"
    problem = a_problem(
        model=find_model("qwen3-8b"), cluster=a_cluster(num_nodes=3), batch=24, certify="none", top_k=3,
        pin={"context_parallel_size": 1, "zero_stage": 0},
        constraints=("num_gpus % 8 == 0", f"num_gpus < 24 or {sizes} == 1", f"num_gpus != 16 or {on_16}"),
    )  # fmt: skip
    assert answer_to(on_gpus(problem, (24,))).status == "infeasible"
    found = answer_to(problem)
    assert [plan.config.num_gpus for plan in found.plans] == [16, 8, 8]
    assert found.status == "optimal"
    on_8 = answer_to(on_gpus(problem, (8,)))
    steps = [[plan.prediction.step_time_s for plan in one.plans] for one in (found, on_8)]
    assert steps[0][1:] == steps[1][:2]


def crowded(**options: object) -> Problem:
    """80 layers and 32 sequences on 17 nodes."""
    return a_problem(cluster=a_cluster(num_nodes=17), batch=32, certify="none", **options)  # type: ignore[arg-type]


def test_where_gpus_are_many_for_the_sequences_the_number_with_the_least_bound_is_searched_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fewer_gpus, "_LITTLE_WORK", 0)  # few candidates are all searched at once
    problem, asked = crowded(), list[tuple[int, ...]]()
    profile = default_profile(problem.cluster, problem.launcher)

    def seen(one: Problem, rivals: Rivals) -> Answer:
        asked.append(one.options.num_gpus)
        return search(one, profile, rivals=rivals, wide=False)

    watch = Watch(time_limit_s=60.0)
    found = at_most_all(problem, profile, seen, watch, ways=(), rivals=NO_RIVALS, likely_s=lambda _: inf)
    assert asked[0] == (128,)
    assert found.plans[0].config == answer_to(problem).plans[0].config


def test_no_number_is_searched_first_where_none_has_a_legal_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences have three replicas, of 8 ranks on 24 GPUs, and tensors stay inside 4."""
    monkeypatch.setattr(fewer_gpus, "_LITTLE_WORK", 0)
    (eights,) = a_cluster(num_nodes=7).groups
    fours = ClusterSpec(name="fours", groups=(replace(eights, gpus_per_node=4, island_gpus=4),))
    problem = a_problem(
        model=find_model("qwen3-8b"), cluster=fours, batch=3, certify="none",
        constraints=("num_gpus == 23 or num_gpus == 24",),
    )  # fmt: skip
    assert answer_to(replace(problem, launcher="deepspeed")).status == "infeasible"


@pytest.mark.parametrize(
    "options",
    [
        {"num_nodes": (17,)},
        {"num_gpus": (136,)},
        {"constraints": ("num_gpus == 136",)},
        {"objective": "tokens_per_s_per_gpu"},
    ],
)
def test_all_gpus_are_used_where_their_number_is_named_or_fewer_are_cheaper_each(
    options: dict[str, object],
) -> None:
    assert {plan.config.num_gpus for plan in answer_to(on_17_nodes(**options)).plans} == {136}


def test_a_plan_that_fits_on_fewer_nodes_alone_is_found() -> None:
    # 7 nodes of 1 GPU, batch 7, 2 layers, no shards: 7 replicas of a GPU each, or 2 GPUs of a layer each.
    # A layer has .86 and the vocabulary 2 x .26 billion weights of 18 bytes: 37 GiB on one GPU, 19 on two
    # each; 16 % of 40 GiB stay free
    pin: dict[str, int | str] = {"zero_stage": 0, "context_parallel_size": 1, "micro_batch_size": 1}
    model = a_model(num_layers=2, vocab_size=32000)
    group = replace(a_cluster(gpu=a_gpu(memory_bytes=40 * GIB)).groups[0], gpus_per_node=1, island_gpus=1)
    cluster = replace(a_cluster(), groups=(replace(group, num_nodes=7),))
    problem = a_problem(model=model, cluster=cluster, batch=7, pin=pin, certify="none", top_k=1)
    on_all = answer_to(on_gpus(problem, (7,)))
    found = answer_to(problem)
    assert (on_all.status, on_all.legal > 0) == ("infeasible", True)
    assert (found.status, found.num_gpus_used) == ("optimal", 2)
    assert found.notes[IDLE].startswith("5 of 7 nodes are idle: 2 nodes take ")
    assert found.notes[IDLE].endswith(" s a step with this batch, and no configuration fits on all 7")


def test_all_candidates_of_fewer_gpus_are_searched_where_those_on_all_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So many numbers of GPUs are searched together that they have few candidates together."""
    problem = on_17_nodes(pin={"tensor_parallel_size": 8}, top_k=1)
    each = [estimated_outer(on_gpus(problem, (8 * nodes,)), wide=True) for nodes in range(1, 18)]
    for module in (enumerate_module, fewer_gpus):
        monkeypatch.setattr(module, "LARGE_OUTER", max(each))
    assert answer_to(problem).space == "every"


def test_a_search_that_ends_before_fewer_gpus_are_tried_claims_no_more_than_the_peak_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, stopped = on_17_nodes(), False

    def and_stop(asked: Problem) -> tuple[int, ...]:
        nonlocal stopped
        stopped = True
        return numbers_of_gpus(asked)

    monkeypatch.setattr(fewer_gpus, "numbers_of_gpus", and_stop)
    found = answer_to(problem, should_stop=lambda: stopped)
    profile = default_profile(problem.cluster, problem.launcher)
    assert (found.status, found.num_gpus_used, found.certified_by) == ("feasible", 136, ())
    least_s = least_pass_gpu_s(problem, profile, wide=True)
    assert least_s > least_gpu_s(problem, profile)
    assert found.bound_step_time_s == pytest.approx(least_s / 128)


def test_progress_never_claims_a_bound_above_the_answer() -> None:
    seen = list[Progress]()
    found = answer_to(on_17_nodes(), on_progress=seen.append)
    bounds = [one.bound_step_time_s for one in seen if one.bound_step_time_s is not None]
    assert max(bounds) <= (found.bound_step_time_s or 0.0)
    assert [one.stage for one in seen].count("done") == 1
    assert (seen[-1].stage, seen[-1].total) == ("done", found.space_size)
    assert seen[-1].incumbent_step_time_s == found.plans[0].prediction.step_time_s
