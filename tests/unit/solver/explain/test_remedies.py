"""What would make an infeasible problem feasible: every change has the plan that it shows."""

from dataclasses import replace
from functools import cache

import pytest

from meshwright.profiles.frameworks import with_options
from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Infeasibility
from meshwright.solver.check import violations
from meshwright.solver.clock import Watch
from meshwright.solver.explain import model_shapes as shapes
from meshwright.solver.explain import remedies
from meshwright.solver.explain.remedies import (
    ProblemChange,
    adapted,
    asked_less,
    changes_of_kinds,
    done_otherwise,
    fastest,
    groups_alone,
    less_work,
    more_hardware,
    on_nodes,
    other_gpus,
    wider_nodes,
    with_remedies,
)
from meshwright.solver.planner import no_plan
from meshwright.solver.planner.no_plan import judge_of_changes
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.search.priced_space import have_room
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_gpu, a_model, a_moe_model, a_problem

SMALL = a_model(num_layers=24, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)


def changes_of(problem: Problem, found: Infeasibility) -> dict[str, ProblemChange]:
    profile = default_profile(problem.cluster, problem.launcher)
    every = [
        *asked_less(problem, profile, found.nearest), *done_otherwise(problem, profile),
        *adapted(problem, profile), *wider_nodes(problem, profile),
        *less_work(problem, profile), *more_hardware(problem, profile), *other_gpus(problem),
    ]  # fmt: skip
    return {change.words: change for change in every}


@cache
def reasons(memory_gib: float, **pins: object) -> tuple[Problem, Infeasibility]:
    gpu = a_gpu(memory_bytes=int(memory_gib * 2**30))
    cluster = a_cluster(num_nodes=1, gpu=gpu)
    problem = a_problem(model=SMALL, cluster=cluster, batch=64, certify="none", pin=pins)
    answer = ask(problem, default_profile(cluster, problem.launcher))
    assert answer.infeasible is not None
    return problem, answer.infeasible


def test_every_change_that_is_offered_has_the_plan_that_is_shown_and_none_is_faster() -> None:
    problem, found = reasons(12.0)
    changes = changes_of(problem, found)
    assert len(found.remedies) >= 3
    assert found.changes == tuple(remedy.change for remedy in found.remedies)
    for remedy in found.remedies:
        change = changes[remedy.change]
        assert list(violations(change.problem, change.profile, remedy.config)) == []
        best = search(change.problem, change.profile).plans[0]
        # a change is priced among the usual candidates, and a search of few rows has all of them
        shown = remedy.step_time_s / best.prediction.step_time_s
        assert 1.0 - 1e-6 <= shown <= 1.005
        assert remedy.num_gpus == remedy.config.num_gpus


def test_changes_that_keep_the_machines_come_first_each_kind_by_its_price() -> None:
    _, found = reasons(12.0)
    machines = [words.endswith((" nodes", " instead")) for words in found.changes]
    assert machines == sorted(machines)
    prices = [one.gpu_s_per_token for one, last in zip(found.remedies, machines, strict=True) if last]
    assert prices == sorted(prices)


def test_a_change_shows_the_plan_on_fewer_gpus_where_the_changed_request_gets_it() -> None:
    # 35 sequences go to 7 replicas, faster than any layout of 8 GPUs, and 8 heads do not go to 3 ranks
    model = a_model(num_layers=4, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=8)
    cluster, pin = a_cluster(num_nodes=1), {"tensor_parallel_size": 3}
    problem = a_problem(model=model, cluster=cluster, batch=35, certify="none", top_k=1, pin=pin)
    profile = default_profile(cluster, problem.launcher)
    found = ask(problem, profile).infeasible
    assert found is not None
    offered = next(one for one in found.remedies if one.change.startswith("without pin "))
    asked = replace(problem, options=replace(problem.options, pin={}))
    best = search(asked, profile).plans[0]
    assert (offered.num_gpus, offered.config) == (7, best.config)
    assert offered.step_time_s == best.prediction.step_time_s
    named = replace(asked, options=replace(asked.options, num_gpus=(8,)))
    on_all = fastest(named, profile)  # all GPUs are searched alone where their number is named
    assert isinstance(on_all, tuple)
    assert on_all[0].num_gpus == 8
    assert on_all[1].step_time_s > best.prediction.step_time_s


def test_no_fewer_nodes_than_those_that_are_offered_have_a_plan() -> None:
    problem, found = reasons(6.0)
    profile = default_profile(problem.cluster, problem.launcher)
    nodes = next(int(words.split()[0]) for words in found.changes if words.endswith(" nodes"))
    assert nodes > 2  # 8 GPUs of 6 GiB hold a third of the states: 5.3e9 weights of 18 bytes are 89 GiB
    fewer = [on_nodes(problem, profile, count) for count in range(1, nodes)]
    assert all(search(one.problem, one.profile).status == "infeasible" for one in fewer)


def test_the_cheapest_change_of_each_kind_comes_before_the_others() -> None:
    _, found = reasons(12.0)
    kinds = [remedy.kind for remedy in found.remedies]
    first = len(set(kinds))
    assert first > 2
    assert len({*kinds[:first]}) == first
    for kind, one in zip(kinds, found.remedies, strict=True):
        cheapest = found.remedies[kinds.index(kind)]
        assert cheapest.gpu_s_per_token <= one.gpu_s_per_token


def test_states_that_no_memory_holds_refute_every_configuration() -> None:
    # one weight, gradient and state of each parameter on 8 GPUs: 5.3e9 * 18 / 8 = 11.1 GiB a GPU
    problem, _ = reasons(12.0)
    profile = default_profile(problem.cluster, problem.launcher)
    assert not have_room(problem, profile)
    assert have_room(replace(problem, cluster=a_cluster(num_nodes=1)), profile)


def test_a_pin_that_costs_the_memory_is_given_up_first() -> None:
    _, found = reasons(79.0, zero_stage=0, tensor_parallel_size=1, pipeline_parallel_size=1)
    assert any(words.startswith("without pin ") for words in found.changes)
    assert not found.changes[0].endswith(" nodes")


def test_a_change_that_only_all_candidates_have_a_plan_for_is_no_change_that_does_not_fit() -> None:
    # usual candidates keep 2 048 tokens a rank; on 141 GB shorter slices fit, which the search itself finds
    problem, found = reasons(79.0, zero_stage=0, tensor_parallel_size=1, pipeline_parallel_size=1)
    first = next(words for words in found.changes if words.endswith(" instead"))
    changed = list(changes_of(problem, found).values())
    smaller = [one for one in changed if one.words.endswith(" instead")]
    for one in smaller:
        status = search(one.problem, one.profile).status
        assert (status == "infeasible") == (one.words != first)
        if one.words == first:
            break


def test_too_many_configurations_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = reasons(12.0)
    profile = default_profile(problem.cluster, problem.launcher)
    assert fastest(problem, profile) is None
    monkeypatch.setattr(remedies, "is_too_large", lambda *_, **__: True)
    monkeypatch.setattr(remedies, "have_room", lambda *_: True)  # else that is a proof
    assert fastest(problem, profile) == "unknown"
    assert shapes.shape_advice(problem, profile) == "unknown"
    found = with_remedies(
        Infeasibility(reasons=("why",)),
        changes_of_kinds(problem, profile, None),
        Watch(time_limit_s=60.0),
        lambda change: fastest(change.problem, change.profile),
    )
    assert found.reasons == (
        "why",
        "some changes have too many configurations to search completely. They may have a plan",
    )


def test_variables_that_a_constraint_ties_together_are_all_looked_at() -> None:
    # ZeRO 3 alone fits on these GPUs, and the request has it without recomputation only: the rows that
    # recompute most are not the ones that need least memory
    gpu = a_gpu(memory_bytes=int(16.0 * 2**30))
    cluster = a_cluster(num_nodes=2, gpu=gpu)
    pin = {"pipeline_parallel_size": 1, "tensor_parallel_size": 1, "micro_batch_size": 1}
    tied = ("zero_stage == 3 => recompute_granularity == 'none'",)
    problem = a_problem(model=SMALL, cluster=cluster, batch=64, certify="none", pin=pin, constraints=tied)
    problem = replace(problem, workload=replace(problem.workload, seq_length=2048))
    profile = default_profile(cluster, problem.launcher)
    plans = search(problem, profile).plans
    found = fastest(problem, profile)
    assert plans
    assert found is not None
    assert found != "unknown"
    assert found[1].step_time_s == pytest.approx(plans[0].prediction.step_time_s)


def test_other_modules_to_replay_are_offered_where_whole_layers_must_not_be() -> None:
    # 24 layers on one rank at 4 x 4096 tokens: 37 GiB hold them if other modules are replayed, not else
    problem, found = reasons(
        37.0, recompute_granularity="selective", micro_batch_size=4, tensor_parallel_size=1,
        pipeline_parallel_size=1,
    )  # fmt: skip
    offered = next(words for words in found.changes if words.startswith("recompute_modules "))
    change = changes_of(problem, found)[offered]
    first = fastest(change.problem, change.profile)
    assert isinstance(first, tuple)
    assert not any(violations(change.problem, change.profile, first[0]))


def test_switches_that_the_request_states_are_given_up_switch_by_switch() -> None:
    problem = a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=1), batch=64)
    stated: dict[str, str | int | float | bool] = {
        "overlap_experts": True, "delay_wgrad": True, "moe_dispatcher": "alltoall", "loss_fused": True,
    }  # fmt: skip
    work = replace(problem.workload, framework_options=stated)
    done = done_otherwise(replace(problem, workload=work), default_profile(problem.cluster, "megatron-lm"))
    first, second = next(done), next(done)
    assert first.words == "without moe_dispatcher alltoall"
    assert second.words == "without overlap_experts true and delay_wgrad true"
    assert second.problem.workload.framework_options == {"moe_dispatcher": "alltoall", "loss_fused": True}


def test_a_change_that_several_launchers_share_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 GiB are too few under either: "launcher none" changes both into one problem, whatever its words
    cluster = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=4 * 2**30))
    searched = list[Problem]()

    def noted(problem: Problem, _: Profile) -> None:
        searched.append(problem)

    monkeypatch.setattr(no_plan, "fastest", noted)
    judge = judge_of_changes()
    for name in ("megatron-lm", "deepspeed"):
        problem = replace(a_problem(model=SMALL, cluster=cluster, batch=64), launcher=name)
        for change in done_otherwise(problem, default_profile(cluster, name)):
            judge(change)
    assert "none" in {problem.launcher for problem in searched}
    assert not [one for at, one in enumerate(searched) if one in searched[:at]]


@pytest.mark.parametrize("runs", [True, False])
def test_what_no_launcher_here_runs_is_offered_where_none_runs_another_change(*, runs: bool) -> None:
    problem, found = reasons(12.0)
    profile = default_profile(problem.cluster, problem.launcher)
    change = changes_of(problem, found)[found.remedies[0].change]
    plan, judged = fastest(change.problem, change.profile), list[str]()

    def judge(change: ProblemChange) -> remedies.Fastest:
        judged.append(change.problem.launcher)
        able = ("deepspeed", "none") if runs else ("none",)
        return plan if change.problem.launcher in able else None

    kinds = changes_of_kinds(problem, profile, None)[:1]
    nothing = [(iter(()), 0)] * 2
    watch = Watch(time_limit_s=60.0)
    offered = with_remedies(Infeasibility(reasons=()), [*kinds, *nothing], watch, judge).remedies
    assert {one.settings["launcher"] for one in offered} == {"deepspeed" if runs else "none"}
    assert ("none" in judged) != runs


def test_a_switch_that_contradicts_what_is_stated_is_no_change() -> None:
    # whole experts are not replayed while modules of theirs are offloaded
    problem = a_problem(model=a_moe_model(), pin={"recompute_granularity": "selective"}, allow=("offload",))
    options = {"offload_modules": "core_attn+expert_fc1+moe_act"}
    problem = replace(problem, workload=replace(problem.workload, framework_options=options))
    profile = default_profile(problem.cluster, problem.launcher)
    switched = [one.problem for one in done_otherwise(problem, profile) if one.kind == "switch"]
    assert switched
    for one in switched:
        with_options(profile.framework, one.workload.framework_options)


@pytest.mark.parametrize(
    "stated",
    [
        {"mlp_tile_tokens": 1024.0},  # priced of whole weights that are trained
        {"loss_kernel": "compared"},  # of two models' logits, and no reference is stated
    ],
)
def test_a_change_that_no_request_may_state_is_no_change(stated: dict[str, str | float]) -> None:
    problem = replace(a_problem(model=SMALL, cluster=a_cluster(num_nodes=1), batch=64), launcher="none")
    plain = replace(problem, workload=replace(problem.workload, lora_rank=16, lora_targets=("q_proj",)))
    profile = default_profile(problem.cluster, problem.launcher)

    def has_a_plan(one: Problem) -> bool:
        change = ProblemChange(kind="lora", words="adapters", problem=one, profile=profile)
        return judge_of_changes()(change) is not None

    assert has_a_plan(plain)
    assert not has_a_plan(replace(plain, workload=replace(plain.workload, framework_options=stated)))


def test_nodes_in_use_are_round_where_some_stay_spare() -> None:
    # 17 nodes, one spare, use 16, a number of four binary digits; 18 would use 17: 19, 24 would use 23: 25
    assert [remedies._round(nodes, 1) for nodes in (9, 17, 18, 24, 33)] == [9, 17, 19, 25, 33]


def test_no_more_nodes_are_offered_than_a_request_may_have() -> None:
    # 100,000 nodes of 8 GPUs are 800,000; 125,000 would be the million that a request may have
    problem = a_problem(model=SMALL, cluster=a_cluster(num_nodes=100_000), batch=64)
    profile = default_profile(problem.cluster, problem.launcher)
    found = [change.problem.cluster.num_gpus for change in more_hardware(problem, profile)]
    assert all(800_000 < gpus <= 1_000_000 for gpus in found)


def test_one_of_unlike_groups_that_holds_the_model_alone_is_offered() -> None:
    """1.7 B weights take 18 bytes each, 29 of 48 GiB of an RTX 6000 Ada, and more than 3 × 12."""
    problem = parse_problem(
        {
            "model": {"name": "qwen3-1.7b"},
            "cluster": {"name": "2xrtx-3060,1xrtx-6000-ada"},
            "workload": {"global_batch_size": 16, "seq_length": 1024},
            "launcher": "megatron-lm",
        }
    )
    profile = default_profile(problem.cluster, problem.launcher)
    infeasible = ask(problem, profile).infeasible
    assert infeasible is not None
    (alone,) = (one for one in infeasible.remedies if one.kind == "group")
    assert (alone.change, alone.num_gpus) == ("1 × RTX 6000 Ada alone", 1)
    assert alone.settings == {"cluster": {"name": "1x1xrtx-6000-ada"}}
    found = remedies.problem_of_remedy(problem, profile, alone, infeasible.nearest)
    assert found is not None
    assert found.cluster.groups == problem.cluster.groups[1:]
    placed = replace(problem, launcher="flagscale")  # a group may stay idle there
    assert [*groups_alone(placed, profile), *groups_alone(a_problem(), profile)] == []
