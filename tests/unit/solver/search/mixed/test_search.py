"""A mixed cluster through the public search: what moves the answer, and what must not."""

import json
import signal
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from meshwright.profiles.errors import InternalError, InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.service.report.verdict import verdict_of
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import OPTIMAL_GAP, Answer
from meshwright.solver.check import violations
from meshwright.solver.clock import Watch
from meshwright.solver.configuration import (
    Configuration,
    configuration_from_json,
)
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.problem import Problem, Progress
from meshwright.solver.search.candidates import fastest
from meshwright.solver.search.mixed.bounds import bounds_of
from meshwright.solver.search.mixed.frontier import MixedFrontier, _Waiting, configuration_of
from meshwright.solver.search.mixed.limits import limited
from meshwright.solver.search.mixed.lines import LineSplit, LineTables, _orders
from meshwright.solver.search.mixed.model import RowOutcome, solve
from meshwright.solver.search.mixed.patterns import patterns_of
from meshwright.solver.search.mixed.relaxation import Relaxation
from meshwright.solver.search.mixed.replicas import best_split
from meshwright.solver.search.mixed.rows import RANGES, LegalRows, MixedRows, columns_of, on_all
from meshwright.solver.search.mixed.search import _is_near, _Shared, search_mixed
from meshwright.solver.search.search import search
from tests.builders import INFINIBAND
from tests.draws import seldom
from tests.problems.asked import searched
from tests.problems.mixed_clusters import SLOW, a_group, a_mixed_problem, mixed_rows
from tests.property.test_mixed_clusters import lines, placed, splits

ROOT = Path(__file__).parents[5]
FAST, SLOW_GROUP = a_group(speed=1.0, slug="fast"), a_group(speed=0.4, slug="slow")


def best_s(problem: Problem) -> float:
    return searched(problem).plans[0].prediction.step_time_s


def test_permuting_the_groups_changes_no_step_time() -> None:
    one = searched(a_mixed_problem((FAST, SLOW_GROUP)))
    other = searched(a_mixed_problem((SLOW_GROUP, FAST)))
    steps = [[plan.prediction.step_time_s for plan in answer.plans] for answer in (one, other)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)


def test_a_search_that_begins_again_still_has_every_row_to_solve() -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP))
    profile = default_profile(problem.cluster, problem.priced_as)
    rows = MixedRows.of(LegalRows.of(NodeGroups.of(problem, profile)))
    frontier = MixedFrontier.of(rows, problem, profile)
    frontier.begin(lambda _: False)
    settled = frontier.settled
    assert settled < len(rows)  # rows wait; those that differ in ZeRO stage alone wait together
    for _ in range(2):
        frontier.run(lambda _: True)
        assert frontier.settled == settled


def test_an_answer_from_a_sample_of_the_rows_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP))
    whole = searched(problem)
    assert whole.status == "optimal"
    monkeypatch.setattr("meshwright.solver.search.mixed.rows._MOST_PRICED", 40)
    sample = searched(problem, anew=True)
    assert sample.status == "feasible"
    assert sample.plans[0].prediction.step_time_s >= whole.plans[0].prediction.step_time_s


def test_more_time_is_not_advised_where_a_sample_of_placements_is_all_that_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = [a_group(speed=1.0, memory_gib=1.0, slug=slug) for slug in ("fast", "slow")]
    monkeypatch.setattr("meshwright.solver.search.mixed.rows._MOST_PRICED", 40)
    problem = a_mixed_problem((small[0], replace(small[1], num_nodes=2)))
    answer = searched(problem, anew=True)
    assert (answer.status, answer.plans) == ("unknown", ())
    assert verdict_of(answer, problem).notes[0].startswith("More time alone will not help")


def test_a_homogeneous_cluster_told_as_two_equal_groups_gives_the_homogeneous_answer() -> None:
    whole = searched(a_mixed_problem((replace(FAST, num_nodes=2),), between=None))
    halves = searched(a_mixed_problem((FAST, FAST), between=INFINIBAND))
    assert [plan.config for plan in whole.plans] == [plan.config for plan in halves.plans]
    assert whole.plans[0].prediction == halves.plans[0].prediction


@pytest.mark.parametrize(("pp", "schedule"), [(1, "none"), (2, "1f1b")])
def test_a_uniform_cluster_placed_as_one_group_has_the_same_plan_and_step(pp: int, schedule: str) -> None:
    pins = {"virtual_pipeline_size": 1, "pipeline_parallel_size": pp, "pipeline_schedule": schedule}
    if pp > 1:  # stages are placed by the closed form, which orders micro-batches in another way
        pins["micro_batch_size"] = 1
    problem = a_mixed_problem((replace(FAST, num_nodes=2),), between=None, pin=pins, certify="none")
    # placed stages share states among all of their replicas: 4 without a pipeline, 2 with two stages
    whole_sets = {"zero_shard_size": (2,)} if pp == 1 else {}
    problem = replace(problem, options=replace(problem.options, forbid=whole_sets))
    profile = default_profile(problem.cluster, problem.launcher)
    mesh = search(problem, profile).plans[0]
    watch = Watch(time_limit_s=60.0, on_progress=None, should_stop=None)
    placed = search_mixed(problem, replace(profile, by_group=(profile,)), watch).plans[0]
    assert len(placed.config.stage_groups) == pp
    assert replace(placed.config, stage_groups=()) == mesh.config
    assert placed.prediction.step_time_s == mesh.prediction.step_time_s
    assert placed.prediction.time_breakdown_s == pytest.approx(mesh.prediction.time_breakdown_s)


@pytest.mark.parametrize("better", [
    a_group(speed=0.8, slug="slow"),
    a_group(speed=0.4, memory_gib=158.0, slug="slow"),
    a_group(speed=0.4, nodes=2, slug="slow"),
])  # fmt: skip
def test_a_better_group_is_never_worse(better: object) -> None:
    before, after = a_mixed_problem((FAST, SLOW_GROUP)), a_mixed_problem((FAST, better))  # type: ignore[arg-type]
    assert best_s(after) <= best_s(before) * (1.0 + 1e-9)


def test_a_faster_link_between_the_groups_is_never_worse() -> None:
    slow = a_mixed_problem((FAST, SLOW_GROUP))
    fast = a_mixed_problem((FAST, SLOW_GROUP), between=INFINIBAND)
    assert best_s(fast) <= best_s(slow)


def test_a_limit_on_gpus_holds_for_the_stages_together() -> None:
    # tp 2 and tp 1 on two stages are 3 GPUs; each stage counts twice its own, 4 and 2
    def gpus(*constraints: str, top_k: int = 40) -> list[int]:
        pins = {"pipeline_parallel_size": 2, "data_parallel_size": 1, "micro_batch_size": 1}
        options = {"top_k": top_k, "certify": "none", "pin": pins, "constraints": constraints}
        problem = a_mixed_problem((FAST, SLOW_GROUP), **options)  # type: ignore[arg-type]
        return [plan.config.num_gpus for plan in searched(problem).plans]

    free = gpus()
    assert set(free) == {2, 3, 4}
    alike = [count for count in free if count != 3]
    assert gpus("num_gpus != 3") == alike
    assert gpus("num_gpus != 3 and pipeline_parallel_size == 2") == alike
    assert set(gpus("num_gpus <= 3")) == {2}  # of 3, one stage counts 4
    # no plan that is left out takes the place of one that is not
    assert gpus("num_gpus != 3", top_k=len(alike)) == alike


@pytest.mark.parametrize("max_power_kw", [1.5, 1.2, 0.9])
def test_a_power_budget_keeps_the_best_of_all_placements_that_draw_no_more(max_power_kw: float) -> None:
    watts = {"fast": 0.82 * 700, "slow": 0.82 * 300}
    groups = tuple(
        replace(group, gpu=replace(group.gpu, power_watts=watts[group.gpu.slug] / 0.82))
        for group in (FAST, SLOW_GROUP)
    )
    options = {"certify": "none", "diverse": False, "pin": {"zero_stage": 0, "micro_batch_size": 1}}

    def drawn_w(config: Configuration) -> float:
        stages = [stage for one in (config.replicas or (config,)) for stage in one.stage_groups]
        return sum(stage.num_gpus * watts[stage.group] for stage in stages)

    every = searched(a_mixed_problem(groups, top_k=500, **options)).plans  # type: ignore[arg-type]
    within = [plan for plan in every if drawn_w(plan.config) <= max_power_kw * 1e3]
    assert 0 < len(within) < len(every) < 500
    limited = searched(a_mixed_problem(groups, top_k=500, max_power_kw=max_power_kw, **options)).plans  # type: ignore[arg-type]
    assert all(drawn_w(plan.config) <= max_power_kw * 1e3 for plan in limited)
    assert limited[0].prediction.step_time_s <= within[0].prediction.step_time_s * (1 + 1e-9)


def test_the_least_closed_form_of_all_placements_is_proved() -> None:
    pins = {"zero_stage": 0, "micro_batch_size": 1}
    answer = searched(a_mixed_problem((FAST, SLOW_GROUP), certify="none", top_k=1, pin=pins))
    assert answer.objective_gap is not None
    assert answer.objective_gap <= 0.01 + 1e-9
    assert answer.objective_excess is not None
    many = searched(a_mixed_problem((FAST, SLOW_GROUP), certify="none", top_k=100, pin=pins))
    least = min(plan.objective_s for plan in many.plans)
    proved_s = answer.plans[0].objective_s * (1.0 - answer.objective_excess) * (1.0 - answer.objective_gap)
    assert proved_s <= least * (1 + 1e-9)


def test_every_plan_reads_back_from_json_and_passes_the_check() -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP), top_k=100, pin={"micro_batch_size": 1, "zero_stage": 0})
    profile = default_profile(problem.cluster, "none")
    answer = searched(problem)
    assert any(plan.config.replicas for plan in answer.plans)
    assert any(plan.config.stage_groups for plan in answer.plans)
    for plan in answer.plans:
        again = configuration_from_json(plan.to_json()["config"])
        assert again == plan.config
        assert list(violations(problem, profile, again)) == []


def test_the_check_counts_the_gpus_and_bytes_of_each_group() -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP))
    profile = default_profile(problem.cluster, "none")
    plan = next(p for p in searched(problem).plans if p.config.stage_groups)
    stage = plan.config.stage_groups[0]
    more = replace(stage, num_gpus=stage.num_gpus + 1)
    wrong = replace(plan.config, stage_groups=(more, *plan.config.stage_groups[1:]))
    assert any("GPUs" in fault for fault in violations(problem, profile, wrong))
    groups = tuple(
        replace(group, gpu=replace(group.gpu, memory_bytes=2**30)) for group in problem.cluster.groups
    )
    tight = replace(problem, cluster=replace(problem.cluster, groups=groups))
    assert any(
        "the budget is" in fault
        for fault in violations(tight, default_profile(tight.cluster, "none"), plan.config)
    )


def test_the_split_of_a_batch_minimises_the_largest_share() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        groups, batch = int(generator.integers(2, 4)), int(generator.integers(2, 9))
        shares = [
            np.where(generator.random(batch + 1) < 0.3, np.inf, generator.random(batch + 1))
            for _ in range(groups)
        ]
        for one in shares:
            one[0] = np.inf  # every group has a share
        known = [
            max(one[n] for one, n in zip(shares, split, strict=True))
            for split in product(range(batch + 1), repeat=groups)
            if sum(split) == batch
        ]
        found = best_split(shares, batch)
        assert found[0] == min(known)
        if min(known) == np.inf:
            assert found[1] == ()
        else:
            assert sum(found[1]) == batch
            assert max(one[n] for one, n in zip(shares, found[1], strict=True)) == found[0]


def test_the_bound_of_all_splits_of_the_batch_is_close_below_the_best_of_them() -> None:
    pins = {"micro_batch_size": 1, "zero_stage": 0, "recompute_granularity": "none"}
    problem = a_mixed_problem((FAST, SLOW_GROUP), batch=4, between=INFINIBAND, pin=pins)
    shared = _Shared(mixed_rows(problem).fleet)
    shared.begin(wide=False)
    least_s = np.full((2, 1 + 4), np.inf)  # by group and sequences, of all rows and splits of the layers
    for own, share in zip(least_s, shared.shares, strict=True):
        for n in range(1, 5):
            rows = share.rows(share.able(n), n)
            every = [(rows.take(np.array([at])), splits(4, int(rows.p[at]))) for at in range(len(rows))]
            own[n] = min((fastest(row, list(some))[0] for row, some in every), default=np.inf)
    best_s = min(max(least_s[0, n], least_s[1, 4 - n]) for n in range(5)) + shared.fleet.exchange_s((0, 1))
    assert 0.99 * best_s < shared.bound_s(2 * best_s) <= best_s  # whatever slower plan is known
    assert shared.bound_s(best_s / 2) == best_s / 2  # at most what a quicker plan takes


def test_launchers_that_cannot_place_stages_say_so() -> None:
    problem = replace(a_mixed_problem((FAST, SLOW_GROUP)), launcher="megatron-lm")
    warnings = searched(problem).warnings
    assert any("every stage runs at the speed of the slowest GPU (slow)" in warning for warning in warnings)


def replicas(**limit: object) -> Problem:
    """Groups as near as nodes of one: unlike replicas, one on each, are the best plan but for the limit."""
    return a_mixed_problem((FAST, SLOW_GROUP), between=INFINIBAND, top_k=20, **limit)  # type: ignore[arg-type]


def classes_of(answer: Answer) -> list[tuple[Configuration, ...]]:
    return [plan.config.classes for plan in answer.plans]


def test_a_prescribed_split_is_every_class_s_split() -> None:
    answer = searched(replicas(stage_layers=(3, 1)))
    assert any(plan.config.replicas for plan in answer.plans)
    assert {one.stage_layers for classes in classes_of(answer) for one in classes} == {(3, 1)}
    placed = next(plan.config for plan in answer.plans if plan.config.stage_groups)
    wrong, problem = replace(placed, stage_layers=(1, 3)), replicas(stage_layers=(3, 1))
    faults = violations(problem, default_profile(problem.cluster, "none"), wrong)
    assert "stage_layers is pinned to another split" in list(faults)


@pytest.mark.parametrize(
    ("limit", "fewest", "most"),
    [
        ({"pin": {"num_microbatches": 4}}, 4, 4),
        ({"bounds": {"num_microbatches": (2, 3)}}, 2, 3),
        ({"constraints": ("num_microbatches >= 4",)}, 4, 8),
    ],
)
def test_limits_on_micro_batches_hold_for_each_class(limit: object, fewest: int, most: int) -> None:
    answer = searched(replicas(**limit))  # type: ignore[arg-type]
    assert any(plan.config.replicas for plan in answer.plans)
    numbers = [one.num_microbatches for classes in classes_of(answer) for one in classes]
    assert min(numbers) >= fewest
    assert max(numbers) <= most


def test_limits_on_all_replicas_together_leave_no_unlike_classes() -> None:
    for limit in ({"pin": {"data_parallel_size": 2}}, {"constraints": ("num_gpus <= 2",)}):
        answer = searched(replicas(**limit))
        assert answer.plans
        assert not any(plan.config.replicas for plan in answer.plans)
    assert all(plan.config.num_gpus <= 2 for plan in answer.plans)


def test_sizes_of_unlike_classes_add_up() -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP), top_k=100, pin={"micro_batch_size": 1, "zero_stage": 0})
    configs = [plan.config for plan in searched(problem).plans if plan.config.replicas]
    assert configs
    for config in configs:
        assert config.data_parallel_size == sum(one.data_parallel_size for one in config.replicas)
        assert config.num_gpus == sum(
            one.data_parallel_size * one.context_parallel_size * stage.tensor_parallel_size
            for one in config.replicas
            for stage in one.stage_groups
        )
        assert config.global_batch_size == problem.workload.global_batch_size
        assert config.global_batch_size == sum(
            one.data_parallel_size * one.micro_batch_size * one.num_microbatches for one in config.replicas
        )


@pytest.mark.parametrize(
    "limit",
    [{"pin": {"context_parallel_size": 2}}, {"constraints": ("context_parallel_size == 2",)}],
)
def test_slices_that_a_request_names_are_searched_however_short(limit: dict[str, object]) -> None:
    # 2 048 tokens in two slices of 1 024, half of what is tried otherwise
    problem = a_mixed_problem((FAST, SLOW_GROUP), certify="none", top_k=1, **limit)  # type: ignore[arg-type]
    answer = searched(replace(problem, workload=replace(problem.workload, seq_length=2048)))
    assert answer.status == "optimal"
    assert answer.plans[0].config.context_parallel_size == 2


def test_an_answer_on_unlike_groups_is_decided_by_cp_sat_and_optimal_by_its_closed_form_alone() -> None:
    answer = searched(a_mixed_problem((FAST, SLOW_GROUP), num_layers=8, batch=16))
    assert (answer.decided_by, answer.certified_by) == ("cp-sat", ("cp-sat",))
    assert answer.objective_gap is not None
    assert answer.objective_gap <= OPTIMAL_GAP < (answer.gap or 0.0)
    assert answer.certainty.startswith("Best found: ")
    assert (
        searched(a_mixed_problem((FAST, SLOW_GROUP))).gap == 0.0
    )  # one group alone, and its step is proved
    of_one_kind = searched(a_mixed_problem((FAST,), between=None))
    assert (of_one_kind.decided_by, of_one_kind.certified_by) == ("cp-sat", ("exact-dp", "cp-sat"))


def test_no_number_of_stages_has_a_larger_share_of_forward_passes_than_the_bound_of_the_step_takes() -> (
    None
):
    some = ((0.0, 100), (90.0, 128), (100.0, 4096))
    lengths = SequenceLengths(percentiles=some, batching="padding_to_longest")
    groups = (a_group(gpus=4), a_group(gpus=4, slug="slow", speed=0.5))
    plain = a_mixed_problem(groups, num_layers=8, batch=64)
    problem = replace(plain, workload=replace(plain.workload, lengths=lengths, lora_rank=8))
    legal = LegalRows.of(NodeGroups.of(problem, default_profile(problem.cluster, "none")))
    legal = legal.take(np.arange(0, len(legal.sizes), 8))
    rows = MixedRows.of(legal)
    for stages in range(2, 9):  # between both ends they wait longest for documents
        columns = columns_of(problem, legal.sizes, stages)
        for at, one in enumerate(on_all(rows.fleet, columns, rows.options)):
            forward_s, share = one.prices.forward_s, rows.forward_share[at][:, None]
            beyond_s = forward_s - share * (forward_s + one.prices.backward_s)
            assert (beyond_s[:, :-2] <= 1e-12 * forward_s[:, :-2]).all()
            of_ends_s = beyond_s[:, -2:].max(axis=1) * rows.straggler[at]
            assert (of_ends_s <= rows.more_forward_s[at] * (1 + 1e-12)).all()


PROCESS = Path("/proc/self/status")


@pytest.mark.skipif(not PROCESS.exists(), reason="reads the signals that are caught from Linux")
def test_ctrl_c_stays_with_the_process_after_cp_sat_was_asked(request: pytest.FixtureRequest) -> None:
    # a shell's background jobs ignore SIGINT
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    # CP-SAT by itself gives SIGINT back to the system after a solve: the next Ctrl-C would kill the process
    def catches() -> bool:
        caught = next(one for one in PROCESS.read_text().splitlines() if one.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1)

    assert catches()
    answer = searched(a_mixed_problem((FAST, SLOW_GROUP), num_layers=8, batch=16), anew=True)
    assert answer.certified_by == ("cp-sat",)
    assert catches()


def test_a_search_that_is_stopped_at_its_first_plan_still_has_a_bound() -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP), num_layers=8, batch=16)
    seen = list[float]()

    def progress(now: Progress) -> None:
        seen.extend([] if now.incumbent_step_time_s is None else [now.incumbent_step_time_s])

    profile = default_profile(problem.cluster, "none")
    stopped = search(problem, profile, on_progress=progress, should_stop=lambda: bool(seen))
    assert stopped.status == "feasible"
    assert stopped.bound_step_time_s is not None
    assert stopped.bound_step_time_s <= best_s(problem)


def test_a_search_that_ends_before_its_first_plan_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MixedFrontier, "run", lambda *_: None)  # the time is over before a row is solved
    groups = (a_group(memory_gib=2.7), a_group(speed=0.5, memory_gib=2.7, slug="slow"))
    answer = searched(a_mixed_problem(groups, num_layers=5), anew=True)
    assert (answer.status, answer.plans) == ("unknown", ())
    assert answer.bound_step_time_s is not None


def test_without_or_tools_unlike_groups_are_refused_for_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshwright.solver.search.search.find_spec", lambda _name: None)
    with pytest.raises(InvalidProblemError, match="OR-Tools, which is not installed") as refused:
        searched(a_mixed_problem((FAST, SLOW_GROUP)), anew=True)
    assert refused.value.errors[0].pointer == "cluster.groups"
    assert searched(a_mixed_problem((FAST,), between=None), anew=True).plans


@seldom
def test_llama_70b_on_64_rtx_4090_and_40_v100_has_a_plan_that_is_proved() -> None:
    file = ROOT / "benchmarks" / "problems" / "mixed" / "llama-3.1-70b-rtx4090-v100.json"
    problem = parse_problem(json.loads(file.read_text(encoding="utf-8")))
    problem = replace(problem, options=replace(problem.options, time_limit_s=300.0))
    answer = search(problem, default_profile(problem.cluster, "none"))
    assert answer.status == "optimal"
    assert {one.group for one in answer.plans[0].config.stage_groups} == {"rtx-4090", "v100-sxm-32gb"}


def test_a_slow_link_makes_a_plan_slow_and_not_impossible() -> None:
    # activations of 16 MiB over 10 kB/s take half an hour each way: many times the bound of the row
    groups = (a_group(memory_gib=6.0, slug="fast"), a_group(memory_gib=6.0, speed=0.4, slug="slow"))
    pins = {"pipeline_parallel_size": 4, "tensor_parallel_size": 1, "data_parallel_size": 1}
    for bytes_per_s in (3e9, 1e4):
        link = replace(INFINIBAND, bytes_per_s=bytes_per_s)
        answer = searched(a_mixed_problem(groups, between=link, pin=pins, certify="none", top_k=1))
        assert answer.status == "optimal"
        assert len({one.group for one in answer.plans[0].config.stage_groups}) == 2


def test_a_limit_on_the_shard_set_of_placed_stages_is_met() -> None:
    groups = (a_group(gpus=4, slug="fast"), a_group(gpus=4, speed=0.4, slug="slow"))
    pins = {"zero_stage": 2, "zero_shard_size": 2, "data_parallel_size": 4, "pipeline_parallel_size": 2}
    answer = searched(a_mixed_problem(groups, pin=pins, certify="none", top_k=1))
    assert answer.status == "optimal"
    assert answer.plans[0].config.zero_shard_size == 2


def test_every_order_of_eight_groups_has_its_ends() -> None:
    found = list(_orders(range(8), (3, 5)))
    assert len(found) == len(set(found)) == 720  # 6! of those between the ends
    assert {(one[0], one[-1]) for one in found} == {(3, 5)}
    assert list(_orders([2], (2, 2))) == [(2,)]


def test_a_group_of_another_name_keeps_no_constraint_that_names_the_old_one() -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP), constraints=("stages('fast') >= 1",))
    other = replace(problem.cluster, groups=(replace(FAST, gpu=replace(FAST.gpu, slug="new")), SLOW_GROUP))
    assert searched(problem).plans
    assert searched(replace(problem, cluster=other)).status == "infeasible"


def a_frontier() -> MixedFrontier:
    """The rows of a fast and a slow group, with a first plan; rows that are alike wait together."""
    problem = a_mixed_problem((FAST, SLOW_GROUP), num_layers=5, batch=12)
    profile = default_profile(problem.cluster, problem.priced_as)
    frontier = MixedFrontier.of(
        MixedRows.of(LegalRows.of(NodeGroups.of(problem, profile))), problem, profile
    )
    frontier.begin(lambda _: False)
    return frontier


def test_the_first_plans_are_sought_from_the_row_of_least_bound_on() -> None:
    frontier = a_frontier()
    assert int(np.argmin(frontier.bounds.objective_s)) in {row for row, _ in frontier._places.values()}


def test_a_faster_neighbour_replaces_the_plan() -> None:
    frontier = a_frontier()
    slow = max(frontier.found.values(), key=lambda one: (one.config in frontier._places, one.step_s))
    frontier.found = {slow.config: slow}
    none_below = np.full(len(frontier.rows), np.inf)  # no whole groups of other rows are tried
    frontier.bounds = replace(frontier.bounds, step_s=none_below)
    frontier.improve(lambda _: False)
    assert frontier.ranked()[0].step_s < slow.step_s


def test_sets_of_groups_are_searched_after_a_few_calls_of_cp_sat_even_if_no_plan_is_near() -> None:
    frontier = a_frontier()
    assert frontier.known_s * 0.95 > frontier.bound_s
    frontier.calls = 7
    assert not _is_near(frontier)
    frontier.calls = 8
    assert _is_near(frontier)


def test_rows_that_wait_together_are_halved_at_the_times_of_every_one_of_them() -> None:
    frontier = a_frontier()
    frontier._join_alike()
    together = [one for one in frontier._heap if len(one.rows) > 1]
    assert together
    for one in together:
        halved_at = set(frontier._relaxation_of(one).slowest_us.tolist())
        for row in one.rows:
            most_us = (frontier._most_s - float(frontier.bounds.others_s[row])) * 1e6
            assert set(patterns_of(frontier.rows, row, most_us).slowest_us.tolist()) <= halved_at


@pytest.mark.parametrize(
    ("constraint", "able"),
    [
        ("stages('slow') == 0", True),
        ("stages('slow') == 0 and 8 // stages('slow') >= 0", False),  # a division by nothing keeps none
        ("stages('fast') * stages('slow') == 4", True),  # two of two GPUs each
        ("stages('fast') * stages('slow') >= 5", False),
    ],
)
def test_constraints_leave_rows_with_placements_that_keep_them(constraint: str, able: bool) -> None:
    problem = a_mixed_problem((FAST, SLOW_GROUP), constraints=(constraint,))
    assert limited(mixed_rows(problem)).allowed[:, 2:].any() == able


def test_the_relaxation_proves_that_there_are_too_few_gpus_for_so_many_stages() -> None:
    groups = (a_group(gpus=2), a_group(speed=0.5, gpus=2, slug="slow"))  # four stages at most
    rows = mixed_rows(a_mixed_problem(groups, num_layers=6))
    row = int(np.argmax(rows.most_stages))
    patterns = patterns_of(rows, row, np.inf)
    four, five = (Relaxation(rows, row, patterns, np.array([number])).within(np.inf) for number in (4, 5))
    assert np.isfinite(four.sum_us)
    assert five.sum_us == np.inf


def test_a_slowest_stage_may_take_longer_where_it_is_priced_for_a_number_of_stages() -> None:
    frontier = a_frontier()
    frontier._joined = True
    (row,) = frontier._heap[0].rows
    frontier._heap = []
    band = _Waiting(1e-9, (row,), in_order=True, low_us=1000, high_us=1010.0)
    frontier._put_back(band, RowOutcome(status="optimal", objective_s=1e-9, bound_s=1e-9))
    assert {(one.low_us, one.high_us) for one in frontier._heap} == {(1000, np.inf)}
    frontier._joined = False
    frontier._join_alike()  # ranges of numbers of stages are not alike
    assert sorted(one.range_at for one in frontier._heap) == list(range(1, len(RANGES) + 1))


def test_a_model_that_cp_sat_refuses_raises_an_error_and_is_not_put_off() -> None:
    rows = mixed_rows(a_mixed_problem((FAST, SLOW_GROUP)))
    row = int(np.argmax(rows.most_stages))
    patterns = patterns_of(rows, row, np.inf)
    beyond = replace(patterns, time_us=patterns.time_us + 2**62)  # two stages take more than 2^63 - 1
    with pytest.raises(InternalError, match="CP-SAT refuses the model of a row: Possible integer overflow"):
        solve(rows, [row], beyond, most_s=np.inf, least_us=0, effort=1.0, seed=0)


def test_cp_sat_is_asked_for_no_slowest_stage_quicker_than_what_waits() -> None:
    frontier = a_frontier()
    (row,) = frontier._heap[0].rows
    frontier._heap, frontier.best = [], None  # any plan is sought
    frontier._wait(_Waiting(1e-9, (row,)))
    [one] = frontier._heap
    patterns, low_us = frontier._able(one)
    assert len(patterns)
    assert 0 < one.low_us <= low_us <= one.high_us


def test_a_plan_whose_patterns_are_quicker_than_the_least_time_still_waits() -> None:
    frontier = a_frontier()
    (row,) = frontier._heap[0].rows
    frontier._heap, frontier.best = [], None  # any plan is sought
    longest_us = int(frontier._relaxation_of(_Waiting(1e-9, (row,))).slowest_us[-1])
    frontier._wait(_Waiting(1e-9, (row,), low_us=longest_us + 1))
    assert [one.low_us for one in frontier._heap] == [longest_us + 1]


@pytest.mark.parametrize(
    ("layers", "gpus", "speed", "memory_gib", "pin"),
    [
        (5, 2, 0.5, 79.0, {}),
        (6, 3, 0.5, 5.0, {}),
        (5, 2, 0.5, 4.0, {}),
        (5, 2, 0.5, 3.5, {}),
        (8, 3, 0.9, 79.0, {"pipeline_parallel_size": 4}),  # a stage between the ends is the slowest
    ],
)
def test_cp_sat_finds_the_least_closed_form_of_all_placements_of_a_row(
    layers: int, gpus: int, speed: float, memory_gib: float, pin: dict[str, object]
) -> None:
    slow = a_group(speed=speed, gpus=gpus, memory_gib=memory_gib, slug="slow")
    groups = (a_group(gpus=gpus, memory_gib=memory_gib), slow)
    problem = a_mixed_problem(groups, num_layers=layers, pin=pin)
    rows = mixed_rows(problem)
    row = int(np.argmax(rows.most_stages))
    every = evaluate(problem, default_profile(problem.cluster, "none"), placed(rows, row))
    least_s = min(one.objective_s for one in every if max(one.short_bytes()) <= 0.0)
    patterns = patterns_of(rows, row, np.inf, by_sender=True)
    ask = partial(solve, rows, [row], patterns, least_us=0, effort=4.0, seed=0, in_order=True)
    found = ask(most_s=np.inf)
    assert found.status == "optimal"
    assert 0.99 * least_s <= found.objective_s <= least_s  # whole microseconds, of any number of stages
    assert ask(most_s=found.objective_s - 2e-6).status == "infeasible"


def test_one_run_of_stages_follows_each_other_where_hops_cost_what_either_end_sends() -> None:
    # b sends from one GPU twice what a and c send from two, and holds neither end: both hops are dear
    groups = (a_group(slug="a"), a_group(gpus=1, memory_gib=3.0, slug="b"), a_group(slug="c"))
    pins = {"pipeline_parallel_size": 3, "recompute_granularity": "none", "zero_stage": 0}
    once = tuple(f"stages('{one}') == 1" for one in "abc")
    slow = replace(SLOW, bytes_per_s=1e9)
    problem = a_mixed_problem(groups, between=slow, pin={**pins, "micro_batch_size": 1}, constraints=once)
    rows = mixed_rows(problem)
    row = int(np.argmax(rows.most_stages))
    configs = [one for one in placed(rows, row) if len({stage.group for stage in one.stage_groups}) == 3]
    every = evaluate(problem, default_profile(problem.cluster, "none"), configs)
    able = [one for one in every if len(one.stages) == 3 and max(one.short_bytes()) <= 0.0]
    least_s = min(one.objective_s for one in able)
    patterns = patterns_of(rows, row, np.inf, by_sender=True)
    found = solve(rows, [row], patterns, most_s=np.inf, least_us=0, effort=4.0, seed=0, in_order=True)
    assert found.status == "optimal"
    assert 0.99 * least_s <= found.objective_s <= least_s


def test_groups_of_one_gpu_are_bounded_below_their_best_placement() -> None:
    problem = a_mixed_problem((a_group(gpus=1), a_group(speed=0.5, gpus=1, slug="slow")), num_layers=5)
    rows, profile = mixed_rows(problem), default_profile(problem.cluster, "none")
    row = int(np.argmax(rows.most_stages))
    least_s = min(one.objective_s for one in evaluate(problem, profile, placed(rows, row)))
    assert 0.75 * least_s < bounds_of(rows).objective_s[row] <= least_s


def test_splits_whose_slowest_stage_alone_takes_longer_than_a_limit_are_not_tried() -> None:
    rows = mixed_rows(a_mixed_problem((a_group(), a_group(speed=0.5, slug="slow")), num_layers=5))
    row = int(np.argmax(rows.most_stages))
    table = LineSplit(LineTables(rows, row), line := next(lines(rows, row)))
    every = list(splits(5, len(line)))
    alone_s = [
        max(
            table.m * table.time_s[stage, start, start + held]
            for stage, (start, held) in enumerate(zip(np.cumsum((0, *split)), split, strict=False))
        )
        for split in every
    ]
    limit_s = float(np.median(alone_s))
    quicker = {one for one, s in zip(every, alone_s, strict=True) if s < limit_s}
    assert set() < set(table.quicker(every, limit_s)) <= quicker


def test_the_closed_form_of_a_line_s_split_is_close_below_its_price() -> None:
    problem = a_mixed_problem((a_group(), a_group(speed=0.5, slug="slow")), num_layers=5)
    rows = mixed_rows(problem)
    row = int(np.argmax(rows.most_stages))
    tables, every = (
        LineTables(rows, row),
        [(line, split) for line in lines(rows, row) for split in splits(5, len(line))],
    )
    configs = [configuration_of(rows, row, line, split) for line, split in every]
    priced = evaluate(problem, default_profile(problem.cluster, "none"), configs)
    for (line, split), one in zip(every, priced, strict=True):  # transfers between groups are not in it
        assert 0.9 * one.objective_s <= LineSplit(tables, line).closed_form_s(split) <= one.objective_s
