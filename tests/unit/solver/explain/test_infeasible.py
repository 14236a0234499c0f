"""Why nothing fits: minimal, complete, and every change verified."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer, Infeasibility, remedy_of
from meshwright.solver.check import closest_violations, violations
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.explain import infeasible
from meshwright.solver.explain import remedies as placed_remedies
from meshwright.solver.explain.infeasible import (
    conflicts_of,
    limits_of,
    minimal_hitting_sets,
    minimal_masks,
    nearest_lack,
)
from meshwright.solver.explain.infeasible import (
    explained as explained_limits,
)
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.search.mixed.lines import Line
from meshwright.solver.search.mixed.rows import MixedRows
from meshwright.solver.search.mixed.search import any_mixed
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.draws import seldom
from tests.problems.asked import searched, searched_with_reasons
from tests.problems.mixed_clusters import a_group, a_mixed_problem


def explained(problem: Problem) -> Infeasibility:
    """The reasons of an infeasible problem."""
    answer = searched_with_reasons(problem)
    assert answer.status == "infeasible"
    assert answer.infeasible is not None
    return answer.infeasible


def fits(problem: Problem) -> bool:
    """Whether a problem has a plan."""
    return bool(searched(problem).plans)


MASKS = st.lists(st.integers(1, 63), min_size=1, max_size=12)


@given(MASKS)
def test_minimal_masks_have_no_part_among_the_others(masks: list[int]) -> None:
    kept = minimal_masks(masks)  # type: ignore[arg-type]
    assert all(any(k & mask == k for k in kept) for mask in masks)
    assert not any(a & b == a for a, b in combinations(kept, 2))


@given(st.lists(st.integers(1, 15), min_size=1, max_size=12))  # of four bits, the most of one conflict
def test_hitting_sets_meet_every_set_and_none_can_lose_a_bit(masks: list[int]) -> None:
    found = minimal_hitting_sets(masks)
    assert found
    for hitting in found:
        assert all(hitting & mask for mask in masks)
        smaller = [hitting & ~(1 << bit) for bit in range(4) if hitting >> bit & 1]
        assert not any(all(part & mask for mask in masks) for part in smaller)


def test_a_model_too_large_names_the_stage_and_the_missing_memory() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1), certify="none")
    found = explained(problem)
    assert found.nearest is not None
    assert found.nearest.needed_bytes > found.nearest.limit_bytes
    assert found.reasons[0].startswith(f"memory: stage {found.nearest.stage} of the nearest configuration")
    assert len(found.conflicts) == 1
    assert found.conflicts[0][0].startswith("memory of ")


@pytest.mark.parametrize("z", [0.8, 1.0, 1.2, 1.5, 1.8, 2.1])
def test_a_risk_that_is_offered_is_enough(z: float) -> None:
    # memory that lies z spreads above the least peak: the risk is Phi(-z), 21 % to 1.8 %
    model = a_model(num_layers=24, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)

    def on_two_gpus(memory_bytes: float) -> Problem:
        group = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=int(memory_bytes))).groups[0]
        cluster = replace(a_cluster(), groups=(replace(group, gpus_per_node=2, island_gpus=2),))
        return a_problem(
            model=model, cluster=cluster, batch=8, certify="none", max_out_of_memory_probability=0.01
        )

    nearest = explained(on_two_gpus(GIB)).nearest
    assert nearest is not None
    sigma = default_profile(a_cluster(), "megatron-lm").log_memory_sigma
    problem = on_two_gpus(nearest.needed_bytes * math.exp(sigma * z))
    risks = [change for change in explained(problem).changes if change.startswith("Accept a ")]
    risk = float(risks[0].split()[2]) / 100
    options = replace(problem.options, max_out_of_memory_probability=risk)
    assert fits(replace(problem, options=options))


def test_a_pin_that_costs_the_memory_is_named_with_it_and_its_removal_fits() -> None:
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    pins = {"pin": {"tensor_parallel_size": 1, "zero_stage": 0, "pipeline_parallel_size": 1}}
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=1), batch=64, certify="none", **pins)
    found = explained(problem)
    assert any("memory" in words[-1] and len(words) > 1 for words in found.conflicts)
    without = [change for change in found.changes if change.startswith("without pin ")]
    assert without
    dropped = without[0].removeprefix("without pin ").split(" = ")[0]
    options = replace(problem.options, pin={k: v for k, v in pins["pin"].items() if k != dropped})
    assert fits(replace(problem, options=options))


def test_hosts_that_are_too_small_for_what_is_offloaded_are_named_with_what_they_lack() -> None:
    # Llama 3.1 70B: weights, copy, moments and gradients take 14 * 70.6 / 8 = 123 GB of each host and more
    def on_hosts(gib: float, *allow: str) -> Problem:
        plain = a_cluster(num_nodes=1)
        group = replace(plain.groups[0], host_memory_bytes=int(gib * 8 * GIB))
        problem = a_problem(cluster=replace(plain, groups=(group,)), batch=8)
        options = replace(problem.options, allow=allow)
        return replace(problem, launcher="torchtitan", options=options)

    assert not any("host memory" in one for one in explained(on_hosts(64.0)).reasons), "nothing may leave"
    (host,) = (
        one for one in explained(on_hosts(64.0, "offload")).reasons if one.startswith("host memory: ")
    )
    assert "with optimizer+parameters offloaded" in host
    more = float(host.partition(" GiB of host memory")[0].rpartition(" ")[2])
    assert more > 123e9 / GIB - 0.9 * 64
    # of 64 GiB 57.6 may be filled; of more than 80 all but 8
    assert fits(on_hosts(57.6 + more + 8.1, "offload"))
    assert not fits(on_hosts(57.6 + more + 7.8, "offload"))
    # of 96 GiB 88 may be filled; without offload a GPU lacks more than what is left of it, so that the
    # nearest configuration is the one with it
    without, near = explained(on_hosts(96.0)).nearest, explained(on_hosts(96.0, "offload")).nearest
    more -= 88 - 57.6
    assert without is not None
    assert near is not None
    assert near.config.offload == "optimizer+parameters"
    assert near.lacks_outside == {"host memory": pytest.approx(more * GIB, abs=0.05 * GIB)}
    assert near.needed_bytes <= near.limit_bytes
    assert near.lacks_bytes < without.lacks_bytes == without.needed_bytes - without.limit_bytes


def test_nodes_are_offered_where_sixteen_times_as_many_hold_too_little() -> None:
    raw = {
        "model": "llama-3.1-405b", "cluster": {"name": "dgx-a100-40gb", "num_nodes": 1},
        "workload": {"global_batch_size": 64, "seq_length": 4096},
        "launcher": "megatron-lm",
    }  # fmt: skip
    problem = parse_problem(raw)
    found = ask(problem, default_profile(problem.cluster, problem.priced_as)).infeasible
    assert found is not None
    (more,) = (one for one in found.remedies if one.kind == "nodes")
    nodes = int(more.change.removesuffix(" nodes"))
    assert 16 < nodes <= 64
    on_more, on_16 = (
        parse_problem({**raw, "cluster": {"name": "dgx-a100-40gb", "num_nodes": count}})
        for count in (nodes, 16)
    )
    assert fits(on_more)
    assert not fits(on_16)


def test_a_pin_that_no_rule_allows_is_told_with_the_rule() -> None:
    found = explained(a_problem(cluster=a_cluster(num_nodes=4), pin={"tensor_parallel_size": 16}))
    assert found.conflicts == (("pin tensor_parallel_size = 16",),)
    assert "divides an island" in found.reasons[0]
    assert found.nearest is None


def test_a_limit_counts_however_many_stand_before_it() -> None:
    # all rules together are more than a mask of 64 bits holds; only the last constraint is in the way
    kept = tuple(f"num_microbatches != {1000 + number}" for number in range(40))
    last = "tensor_parallel_size == 16"
    found = explained(a_problem(cluster=a_cluster(num_nodes=4), constraints=(*kept, last)))
    assert found.conflicts == ((f"constraint {last}",),)
    # on mixed clusters rows are asked in the same way: of plans with and without tp 1 the limit leaves some
    mixed = tight(16.0, constraints=(*kept, "tensor_parallel_size == 2"))
    answer = searched(mixed)
    assert {plan.config.tensor_parallel_size for plan in answer.plans} == {2}


def test_limits_that_each_alone_stand_in_the_way_are_one_conflict_however_many_they_are() -> None:
    # 1, 2, 4, 8 and 16 leave no choice; of 32 and 64 one is enough
    assert minimal_hitting_sets([1, 2, 4, 8, 16, 96]) == [31 + 32, 31 + 64]
    assert minimal_hitting_sets([]) == []


# Nothing fits on a mixed cluster: every conflict is minimal, every change has its plan.

ENOUGH = Watch(time_limit_s=math.inf)
CONFLICTS_CUT = "the time limit ended the analysis of conflicting limits. There may be others"
ROOMY = (a_group(slug="fast"), a_group(speed=0.4, slug="slow"))


def tight(memory_gib: float, **options: object) -> Problem:
    sizes = {"fast": 1.0, "slow": 0.4}
    groups = tuple(a_group(speed=at, memory_gib=memory_gib, slug=name) for name, at in sizes.items())
    risk = {"max_out_of_memory_probability": 0.01}
    return a_mixed_problem(groups, batch=2, certify="none", **risk, **options)  # type: ignore[arg-type]


@cache
def answered(memory_gib: float, pins: tuple[tuple[str, int], ...]) -> tuple[Problem, Answer]:
    problem = tight(memory_gib, pin=dict(pins))
    return problem, ask(problem, default_profile(problem.cluster, "none"))


def reasons(memory_gib: float, **pins: int) -> tuple[Problem, Infeasibility]:
    problem, answer = answered(memory_gib, tuple(pins.items()))
    assert (answer.status, answer.space) == ("infeasible", "every")
    assert answer.infeasible is not None
    return problem, answer.infeasible


def test_the_stage_that_lacks_memory_is_named_with_its_group_and_by_how_much() -> None:
    problem, found = reasons(2.6)
    assert found.nearest is not None
    config, stage = found.nearest.config, found.nearest.stage
    place = config.stage_groups[stage].group
    short = (found.nearest.needed_bytes - found.nearest.limit_bytes) / 2**30
    assert f"stage {stage} on {place}" in found.reasons[0]
    assert f"{short:.1f} GiB more" in found.reasons[0]
    (one,) = evaluate(problem, default_profile(problem.cluster, "none"), [config])
    needed = [sum(stage.memory_bytes().values()) - stage.on.budget_bytes for stage in one.stages]
    assert needed[stage] == max(needed) == pytest.approx(short * 2**30, abs=16)


def test_the_closest_on_unlike_nodes_is_the_placed_plan_that_lacks_least() -> None:
    problem, answer = answered(2.6, ())
    found = answer.infeasible
    assert found is not None
    assert found.closest is not None
    assert found.nearest is not None
    assert found.closest.config == found.nearest.config
    assert closest_violations(problem, default_profile(problem.cluster, "none"), found.closest) == []
    assert found.closest.prediction.out_of_memory_probability > 0.01
    assert "No plan exists" not in answer.certainty
    assert answer.certainty.startswith("Nothing fits")


def test_what_lacks_memory_is_told_where_the_time_is_over_before_conflicts_are_known() -> None:
    problem, whole = reasons(2.6)
    profile = default_profile(problem.cluster, "none")
    lack = nearest_lack(problem, profile, ENOUGH)
    found = explained_limits(limits_of(problem, profile), lack, Watch(time_limit_s=0.0))
    assert (found.conflicts, found.reasons[0], found.nearest) == ((), whole.reasons[0], whole.nearest)
    assert found.reasons[1:] == (CONFLICTS_CUT,)


def test_so_much_more_memory_is_enough_and_a_mebibyte_less_is_not() -> None:
    problem, found = reasons(2.6)
    assert found.nearest is not None
    lacks = (found.nearest.needed_bytes - found.nearest.limit_bytes) / 2**30
    for more, fits in ((lacks * 1.3, True), (lacks * 0.7, False)):
        groups = tuple(
            replace(g, gpu=replace(g.gpu, memory_bytes=int(g.gpu.memory_bytes + more * 2**30)))
            for g in problem.cluster.groups
        )
        wider = replace(problem, cluster=replace(problem.cluster, groups=groups))
        found_plan = any_mixed(wider, default_profile(wider.cluster, "none"))
        assert (found_plan is not None) == fits


@pytest.mark.parametrize(
    ("memory_gib", "pins"),
    [
        (2.6, {}),
        (79.0, {"tensor_parallel_size": 4}),
        (3.5, {"zero_stage": 0, "pipeline_parallel_size": 1}),
        (5.0, {"zero_stage": 0, "pipeline_parallel_size": 1, "tensor_parallel_size": 1}),
        (79.0, {"data_parallel_size": 3}),
    ],
)
def test_no_plan_keeps_a_conflict_and_each_part_of_it_has_one(
    memory_gib: float, pins: dict[str, int]
) -> None:
    problem = tight(memory_gib, pin=pins)
    profile = default_profile(problem.cluster, "none")
    if any_mixed(problem, profile) is not None:
        pytest.fail("the problem was to be infeasible")
    limits = limits_of(problem, profile)
    found = list(conflicts_of(limits))
    assert found
    for conflict in found:
        assert limits.leave_a_plan(frozenset(conflict)) is False
        assert all(limits.leave_a_plan(frozenset(conflict) - {name}) for name in conflict)
    assert explained_limits(limits, nearest_lack(problem, profile, ENOUGH), ENOUGH).reasons


@pytest.mark.parametrize(("options", "names"), [
    ({"pin": {"tensor_parallel_size": 4}}, ("pin tensor_parallel_size = 4",)),
    ({"bounds": {"pipeline_parallel_size": (7, 9)}}, ("bounds 7 <= pipeline_parallel_size <= 9",)),
    ({"forbid": {"zero_stage": (0, 1, 2, 3)}}, ("forbid zero_stage = 0, 1, 2, 3",)),
    ({"constraints": ("pipeline_parallel_size > 8",)}, ("constraint pipeline_parallel_size > 8",)),
    ({"pin": {"pipeline_parallel_size": 1}, "stage_layers": (3, 1)},
     ("pin pipeline_parallel_size = 1", "pin stage_layers with 2 chunks")),
    ({"pin": {"pipeline_parallel_size": 1}, "constraints": ("pipeline_parallel_size > 1",)},
     ("pin pipeline_parallel_size = 1", "constraint pipeline_parallel_size > 1")),
])  # fmt: skip
def test_a_conflict_is_named_as_the_request_wrote_its_limits(
    options: dict[str, object], names: tuple[str, ...]
) -> None:
    problem = tight(79.0, **options)
    limits = limits_of(problem, default_profile(problem.cluster, "none"))
    assert list(conflicts_of(limits)) == [names]


def test_a_conflict_with_memory_names_what_every_group_has_for_a_predicted_peak() -> None:
    problem = tight(2.6)
    profile = default_profile(problem.cluster, "none")
    fast, slow = (f"{NodeGroups.of(problem, profile).budget_bytes(at) / 2**30:.1f}" for at in (0, 1))
    words = f"memory of {fast} GiB on fast, {slow} GiB on slow (out-of-memory risk 1 %)"
    assert list(conflicts_of(limits_of(problem, profile))) == [(words,)]


def test_a_slice_that_only_all_candidates_have_is_no_conflict() -> None:
    # one stage of two ranks that both work on half a sequence: slices of 64 tokens are no usual ones
    problem = tight(79.0)
    short = replace(problem, workload=replace(problem.workload, seq_length=128, global_batch_size=1))
    wide = replace(short, options=replace(short.options, pin={"data_parallel_size": 1, "zero_stage": 1}))
    plan = any_mixed(wide, default_profile(wide.cluster, "none"))
    assert isinstance(plan, Configuration)
    assert plan.context_parallel_size > 1


def test_a_pin_that_no_group_can_have_is_the_one_to_leave_out() -> None:
    problem = tight(79.0, pin={"tensor_parallel_size": 4})
    profile = default_profile(problem.cluster, "none")
    limits = limits_of(problem, profile)
    found = explained_limits(limits, nearest_lack(problem, profile, ENOUGH), ENOUGH)
    assert found.reasons == ("pin tensor_parallel_size = 4: no configuration of this cluster has it",)
    (change,) = placed_remedies._asked_less(limits)
    assert change.words == "without pin tensor_parallel_size = 4"
    assert any_mixed(change.problem, profile) is not None


@seldom
def test_a_pin_that_no_group_can_have_stands_alone_with_the_rule_that_it_breaks() -> None:
    _, found = reasons(79.0, tensor_parallel_size=4)
    assert ("pin tensor_parallel_size = 4",) in found.conflicts
    assert any("pin tensor_parallel_size = 4" in reason for reason in found.reasons)
    assert "without pin tensor_parallel_size = 4" in found.changes


def test_every_change_that_is_offered_shows_a_plan() -> None:
    problem, found = reasons(2.6)
    assert len(found.remedies) >= 2
    assert found.changes == tuple(one.change for one in found.remedies)
    hardware = [one for one in found.remedies if " nodes of " in one.change]
    assert hardware
    count, _, name = hardware[0].change.partition(" nodes of ")
    groups = tuple(
        replace(group, num_nodes=int(count)) if group.gpu.slug == name else group
        for group in problem.cluster.groups
    )
    larger = replace(problem, cluster=replace(problem.cluster, groups=groups))
    profile = default_profile(larger.cluster, "none")
    assert list(violations(larger, profile, hardware[0].config)) == []


def test_a_deadline_that_no_placement_meets_says_how_long_the_fastest_takes() -> None:
    problem = a_mixed_problem(ROOMY, certify="none", top_k=3, total_tokens=10**12, deadline_days=1.0)
    answer = ask(problem, default_profile(problem.cluster, "none"))
    assert (answer.status, answer.plans) == ("infeasible", ())
    assert answer.infeasible is not None
    assert "deadline: the fastest plan takes" in answer.infeasible.reasons[0]
    days = float(answer.infeasible.changes[0].removeprefix("a deadline of ").removesuffix(" days"))
    later = replace(problem, options=replace(problem.options, deadline_days=days))
    met = ask(later, default_profile(later.cluster, "none"))
    assert met.plans
    assert all(plan.outlook and plan.outlook.days and plan.outlook.days <= days for plan in met.plans)


def test_plans_that_miss_the_deadline_are_left_out_with_a_word() -> None:
    free = a_mixed_problem(ROOMY, certify="none", top_k=3, total_tokens=10**10)
    profile = default_profile(free.cluster, "none")
    days = [plan.outlook.days for plan in ask(free, profile).plans if plan.outlook and plan.outlook.days]
    limited = replace(free, options=replace(free.options, deadline_days=(days[0] + days[2]) / 2.0))
    answer = ask(limited, profile)
    late = sum(one > (days[0] + days[2]) / 2.0 for one in days)
    assert len(answer.plans) == 3 - late < 3
    assert any(warning.startswith(f"{late} of the 3 fastest plans") for warning in answer.warnings)


def test_a_missed_deadline_offers_more_nodes_of_a_group() -> None:
    pins = {"zero_stage": 0, "micro_batch_size": 1, "recompute_granularity": "none"}
    free = a_mixed_problem(ROOMY, certify="none", top_k=1, batch=64, total_tokens=10**13, pin=pins)
    profile = default_profile(free.cluster, "none")
    (plan,) = ask(free, profile).plans
    assert plan.outlook is not None
    assert plan.outlook.days is not None
    limited = replace(free, options=replace(free.options, deadline_days=plan.outlook.days * 0.8))
    answer = ask(limited, profile)
    assert answer.infeasible is not None
    later, *more = answer.infeasible.remedies
    assert later.change.startswith("a deadline of ")
    assert any(" nodes of fast (" in one.change for one in more)
    assert all(float(one.change.split("(")[1].split()[0]) <= plan.outlook.days * 0.8 for one in more)


def test_a_priced_run_costs_its_gpu_hours() -> None:
    problem = a_mixed_problem(ROOMY, certify="none", top_k=1, total_tokens=10**9, gpu_hour_price=2.0)
    outlook = ask(problem, default_profile(problem.cluster, "none")).plans[0].outlook
    assert outlook is not None
    assert outlook.days is not None
    assert outlook.cost == pytest.approx(outlook.days * 24.0 * outlook.num_gpus * 2.0)


def test_a_search_without_more_time_names_a_placement_that_lacks_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, whole = reasons(2.6)
    real, met = infeasible._least_lack, list[float]()

    def one_line(rows: MixedRows, row: int, line: Line, most_bytes: float) -> object:
        found = real(rows, row, line, most_bytes)
        met.append(most_bytes)
        return found

    monkeypatch.setattr(infeasible, "_least_lack", one_line)
    watch = Watch(time_limit_s=math.inf, should_stop=lambda: len(met) > 0)  # no time for a second line
    hasty = nearest_lack(problem, default_profile(problem.cluster, "none"), watch)
    assert hasty is not None
    assert whole.nearest is not None
    lacks = [one.needed_bytes - one.limit_bytes for one in (whole.nearest, hasty.shortfall)]
    assert lacks[0] <= lacks[1]


def test_limits_are_not_said_to_conflict_where_only_a_sample_of_their_rows_was_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # no limit of the request stands in the way: memory alone does, so that a pin of pp is in no conflict
    problem = tight(2.6, pin={"pipeline_parallel_size": 1})
    profile = default_profile(problem.cluster, "none")

    monkeypatch.setattr("meshwright.solver.search.mixed.rows._MOST_PRICED", 40)
    found = explained_limits(limits_of(problem, profile), None, ENOUGH)
    assert found.conflicts == ()
    assert any("may also conflict: not all of their configurations" in reason for reason in found.reasons)


def test_reasons_that_were_found_before_the_time_was_over_are_kept_and_the_cut_is_said() -> None:
    problem, whole = reasons(2.6)
    profile = default_profile(problem.cluster, "none")
    over = False

    def stop_later(*_: object) -> bool:
        return over

    real = remedy_of

    def first_remedy(*args: object, **options: object) -> object:
        nonlocal over
        over = True
        return real(*args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placed_remedies, "remedy_of", first_remedy)
        watch = Watch(time_limit_s=math.inf, should_stop=stop_later)
        found = placed_remedies.placed_infeasibility(problem, profile, watch)
    assert found.reasons[: len(whole.reasons)] == whole.reasons
    assert found.conflicts == whole.conflicts
    assert len(found.remedies) == 1
    assert "the time limit came before every change was tried" in found.reasons[-1]
    none = placed_remedies.placed_infeasibility(problem, profile, Watch(time_limit_s=0.0))
    assert (none.conflicts, none.remedies) == ((), ())
    assert len(none.reasons) == 2  # conflicts and changes may be missing
