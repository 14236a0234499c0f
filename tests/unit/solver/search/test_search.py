"""Whole searches on real prices: proofs, limits, interruption, repeatability."""

import json
import math
from dataclasses import replace
from functools import cache, partial
from itertools import count

import numpy as np
import pytest

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.answer import SAMPLE, Answer
from meshwright.solver.clock import Watch, look
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.planner.variants import searched_together, variants_of
from meshwright.solver.problem import Problem, Progress, with_batch
from meshwright.solver.search import priced_space as unopened
from meshwright.solver.search.frontier import NO_RIVALS, Frontier, Interrupt, Rivals
from meshwright.solver.search.priced_space import priced_space
from meshwright.solver.search.proof import rivals_of
from meshwright.solver.search.search import _prove, search
from meshwright.solver.search.splits import best_splits
from meshwright.solver.space.enumerate import enumerate_space, searched_space
from meshwright.solver.space.factored import rows_of
from tests.builders import (
    a_cluster,
    a_configuration,
    a_gpu,
    a_model,
    a_moe_model,
    a_problem,
    with_default_switches,
)
from tests.draws import seldom
from tests.problems.asked import searched


def small_problem(**options: object) -> Problem:
    """A model of 8 B parameters on 2 nodes: a few thousand configurations."""
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    return a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=64, **options)


def answer_to(problem: Problem, **callbacks: object) -> Answer:
    """Search with the profile that ships; once, unless it is called back."""
    if not callbacks:
        return searched(problem)
    profile = default_profile(problem.cluster, problem.launcher)
    return search(problem, profile, **callbacks)  # type: ignore[arg-type]


def lasting(answer: Answer) -> str:
    """The answer without its clock."""
    return json.dumps(replace(answer, elapsed_s=0.0).to_json(), sort_keys=True)


def test_ranking_is_proved_by_two_methods() -> None:
    answer = answer_to(small_problem())
    assert answer.status == "optimal"
    assert answer.certified_by == ("exact-dp", "cp-sat")
    assert answer.plans[0].certified_by == ("exact-dp", "cp-sat")
    assert answer.explored == answer.space_size
    assert not answer.notes.keys() & SAMPLE.keys()


# 16 layers of each of 2 chunks are all of the model: that is 32 in plans and limits alike.
@pytest.mark.parametrize("limits", [{"pin": {"recompute_layers": 32}}, {"pin": {"recompute_layers": 15}},
                                    {"bounds": {"recompute_layers": (20, 32)}},
                                    {"forbid": {"recompute_layers": tuple(range(32))}}])  # fmt: skip
def test_limits_on_recomputed_layers_leave_plans_that_the_check_accepts(limits: dict[str, object]) -> None:
    both = {"recompute_granularity": "full", "pipeline_parallel_size": 2, "virtual_pipeline_size": 1}
    pin = {**both, **limits.pop("pin", {})}  # type: ignore[dict-item]
    answer = answer_to(small_problem(certify="none", pin=pin, **limits))
    assert answer.status == "optimal"
    assert all(plan.config.recompute_granularity == "full" for plan in answer.plans)
    assert {plan.config.recompute_layers for plan in answer.plans} == {pin.get("recompute_layers", 32)}


def test_tensor_parallelism_stays_inside_the_islands_of_every_node_group() -> None:
    eights = a_cluster(num_nodes=3).groups[0]
    sixes = replace(eights, num_nodes=4, gpus_per_node=6, island_gpus=6)  # 6 and 8 share the divisor 2
    cluster = ClusterSpec(name="mixed", groups=(sixes, eights))
    model = a_model(num_layers=32, hidden_size=6144, ffn_hidden_size=24576, num_attention_heads=48,
                    num_kv_heads=48)  # fmt: skip
    problem = a_problem(model=model, cluster=cluster, batch=96, certify="none", top_k=1)
    problem = replace(problem, workload=replace(problem.workload, seq_length=6144))
    pinned = replace(problem, options=replace(problem.options, pin={"tensor_parallel_size": 6}))
    assert answer_to(problem).plans[0].config.tensor_parallel_size in (1, 2)
    assert answer_to(pinned).plans[0].config.num_gpus == 6  # which are in one island of either group
    several = replace(pinned, options=replace(pinned.options, constraints=("num_gpus > 8",)))
    assert answer_to(several).status == "infeasible"


def test_plans_are_in_order_and_no_two_are_the_same() -> None:
    answer = answer_to(small_problem(certify="none"))
    times = [plan.prediction.step_time_s for plan in answer.plans]
    assert times == sorted(times)
    assert [plan.rank for plan in answer.plans] == list(range(1, 11))
    assert len({plan.plan_id for plan in answer.plans}) == 10


def test_bound_is_below_the_best_step_and_the_gap_says_by_how_much() -> None:
    answer = answer_to(small_problem(certify="none"))
    best = answer.plans[0].prediction.step_time_s
    assert answer.bound_step_time_s is not None
    gap = (best - answer.bound_step_time_s) / best
    assert answer.gap == pytest.approx(gap)
    assert 0.0 <= gap < 0.05


@pytest.mark.parametrize(("nodes", "batch", "seq_length"), [(64, 768, 2048), (16_384, 4096, 4096)])
def test_llama_405b_is_proved_to_a_hundredth_on_every_number_of_nodes(
    nodes: int, batch: int, seq_length: int
) -> None:
    """Averages of paths bound the rows of large fleets, branching those of small ones."""
    (node,) = find_cluster("dgx-h100").groups
    cluster = ClusterSpec(name="h100", groups=(replace(node, num_nodes=nodes),))
    model = find_model("llama-3.1-405b")
    problem = a_problem(model=model, cluster=cluster, batch=batch, top_k=1, certify="none")
    problem = replace(problem, workload=replace(problem.workload, seq_length=seq_length))
    answer = answer_to(problem)
    assert answer.gap is not None
    assert answer.gap < 0.01 + 1e-9


def test_every_plan_can_be_certified() -> None:
    answer = answer_to(small_problem(certify="cp-sat-all", top_k=4))
    assert all("cp-sat" in plan.certified_by for plan in answer.plans)
    assert answer.counts["certified"] == 4


def test_without_certificate_the_exact_program_stands_alone() -> None:
    assert answer_to(small_problem(certify="none")).certified_by == ("exact-dp",)


def test_layers_of_several_kinds_are_certified_too() -> None:
    model = a_moe_model()
    assert model.moe is not None
    model = replace(model, num_layers=12, moe=replace(model.moe, num_dense_layers=2))
    answer = answer_to(a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=64))
    assert answer.certified_by == ("exact-dp", "cp-sat")


def test_same_seed_gives_the_same_bytes() -> None:
    assert lasting(searched(small_problem(), anew=True)) == lasting(answer_to(small_problem()))


def test_the_best_three_are_the_first_three_of_the_best_four() -> None:
    three = answer_to(small_problem(top_k=3, certify="none"))
    four = answer_to(small_problem(top_k=4, certify="none"))
    assert [plan.plan_id for plan in three.plans] == [plan.plan_id for plan in four.plans[:3]]


def test_pins_bounds_and_forbidden_values_hold_in_every_plan() -> None:
    limits = {"pin": {"tensor_parallel_size": 4}, "bounds": {"pipeline_parallel_size": (2, 4)},
              "forbid": {"recompute_granularity": ("full",)}}  # fmt: skip
    plans = answer_to(small_problem(certify="none", **limits)).plans
    assert plans
    assert {plan.config.tensor_parallel_size for plan in plans} == {4}
    assert {plan.config.pipeline_parallel_size for plan in plans} <= {2, 3, 4}
    assert "full" not in {plan.config.recompute_granularity for plan in plans}


def test_gpus_that_do_not_factor_are_left_out_and_the_answer_says_so() -> None:
    # one stage on 3 nodes = 24 GPUs: dp = 24 / (tp cp) is a multiple of 3, which batch 64 has not
    pin = {"pipeline_parallel_size": 1}
    problem = replace(small_problem(certify="none", pin=pin), cluster=a_cluster(num_nodes=3))
    answer = answer_to(problem)
    assert answer.num_gpus_used == 16
    assert answer.warnings[0].startswith("at most 16 of 24 GPUs are used")


def test_a_batch_that_whole_nodes_do_not_divide_names_the_most_gpus_that_a_plan_uses() -> None:
    # batch 7 on 24 GPUs: 7 replicas of 2 GPUs use 14; a replica of a whole node uses 8
    pin = {"pipeline_parallel_size": 1, "context_parallel_size": 1}
    problem = with_batch(replace(small_problem(certify="none", pin=pin), cluster=a_cluster(num_nodes=3)), 7)
    answer = answer_to(problem)
    assert answer.plans[0].config.num_gpus == 14
    assert answer.warnings[0].startswith("at most 14 of 24 GPUs are used")


def test_a_time_limit_of_nothing_still_gives_a_plan_and_claims_nothing_of_it() -> None:
    answer = answer_to(small_problem(time_limit_s=0.0))
    assert (answer.status, len(answer.plans), answer.certified_by) == ("feasible", 1, ())
    assert (answer.objective_gap, answer.objective_excess) == (None, None)
    assert (answer.bound_step_time_s, answer.gap) == (None, None)


def test_a_proof_that_is_cut_short_says_how_far_the_closed_form_may_be_from_the_least() -> None:
    problem = small_problem(certify="none", top_k=1)
    profile = default_profile(problem.cluster, problem.launcher)
    frontier = Frontier.of(priced_space(problem, profile, searched_space(problem, legal_only=True).rows), 1)
    frontier.run(lambda _: False)
    whole, cut = (_prove(frontier, Watch(time_limit_s=30.0, should_stop=partial(bool, stop)), NO_RIVALS)
                  for stop in (False, True))  # fmt: skip
    assert whole.objective_gap == 0.0
    assert cut.objective_gap is not None
    assert cut.objective_gap > 0.0
    own = frontier.solved[frontier.ranked[0].row].objective_s
    least = own * (1.0 - (whole.objective_excess or 0.0))
    assert own * (1.0 - cut.objective_gap) <= least * (1 + 1e-9)


def test_the_row_of_least_closed_form_is_the_first_rival_of_the_first_plan() -> None:
    problem = a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=1), batch=16)
    profile = default_profile(problem.cluster, problem.launcher)
    frontier = Frontier.of(priced_space(problem, profile, searched_space(problem, legal_only=True).rows), 1)
    frontier.run(lambda _: False)
    limit_s = 1.2 * frontier.solved[frontier.ranked[0].row].objective_s
    rivals, left_s = rivals_of(frontier, limit_s, Watch(time_limit_s=30.0))
    rows = frontier.rows.take(np.arange(len(frontier.rows)))
    fitting = {row: split for row, split in enumerate(best_splits(rows)) if split is not None}
    some = rows.take(list(fitting))
    least_s = objective_s(some.prices, some.columns, some.stages(list(fitting.values()))).min()
    assert rivals[0].objective_s == pytest.approx(least_s)
    assert left_s == np.inf


def test_a_search_that_is_behind_anothers_plan_is_bounded_no_further_than_that_and_rightly() -> None:
    problem = small_problem(certify="none", top_k=3)
    profile = default_profile(problem.cluster, problem.launcher)
    frontier = Frontier.of(priced_space(problem, profile, searched_space(problem, legal_only=True).rows), 3)
    frontier.run(lambda _: False)
    best_s = frontier.ranked[0].score_s
    alone, behind = (_prove(frontier, Watch(time_limit_s=30.0), Rivals(score_s, np.inf)).bound_s
                     for score_s in (np.inf, 0.97 * best_s))  # fmt: skip
    assert alone is not None
    assert behind is not None
    assert 0.96 * best_s <= behind <= alone <= best_s


def test_a_time_limit_of_nothing_is_told_apart_from_an_infeasible_problem() -> None:
    # 8.03e9 weights of 16 bytes are 129e9 of 8 * 23e9: there is room for states, and for little else
    tiny = replace(a_cluster(num_nodes=1).groups[0].gpu, memory_bytes=23 * 10**9)
    cluster = a_cluster(num_nodes=1)
    cluster = replace(cluster, groups=(replace(cluster.groups[0], gpu=tiny),))
    problem = replace(small_problem(time_limit_s=0.0), cluster=cluster)
    stopped = answer_to(problem)
    assert (stopped.status, stopped.plans, stopped.infeasible) == ("unknown", (), None)
    ample = replace(problem, options=replace(problem.options, time_limit_s=60.0))
    assert answer_to(ample).status == "infeasible"


def test_stopping_before_anything_is_priced_keeps_the_plan_that_was_found_first() -> None:
    stopped = answer_to(small_problem(), should_stop=lambda: True)
    best = answer_to(small_problem(certify="none", top_k=1)).plans[0].prediction.step_time_s
    assert stopped.status == "feasible"
    assert stopped.plans[0].prediction.step_time_s >= best
    assert stopped.explored < stopped.space_size


def test_wherever_a_search_is_stopped_it_keeps_its_plans_and_bounds_that_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # every look at the clock is a place to stop: some of them, from the first to beyond the last
    monkeypatch.setattr("meshwright.solver.clock._LOOK_EVERY_S", 0.0)
    problem = small_problem(top_k=20)
    best = answer_to(replace(problem, options=replace(problem.options, top_k=1)))
    step_s, found = best.plans[0].prediction.step_time_s, []
    for looks in (4**power for power in range(7)):
        polls = iter([False] * looks)
        answer = answer_to(problem, should_stop=lambda polls=polls: next(polls, True))
        assert answer.status in ("feasible", "optimal")
        assert answer.plans[0].prediction.step_time_s >= step_s
        assert answer.bound_step_time_s is None or 0.0 < answer.bound_step_time_s <= step_s
        assert answer.objective_gap is None or 0.0 <= answer.objective_gap <= 1.0
        found.append((answer.status, answer.bound_step_time_s is not None))
    assert {("feasible", False), ("feasible", True)} <= set(found)


def test_progress_ends_with_everything_explored() -> None:
    seen: list[Progress] = []
    answer = answer_to(small_problem(certify="none"), on_progress=seen.append)
    assert seen[0].stage == "enumerating"
    assert (seen[-1].stage, seen[-1].explored) == ("done", answer.space_size)


def test_more_memory_per_gpu_never_makes_the_best_plan_slower() -> None:
    steps = []
    for scale in (0.5, 1.0, 2.0):
        problem = small_problem(certify="none", top_k=1)
        group = problem.cluster.groups[0]
        gpu = replace(group.gpu, memory_bytes=int(group.gpu.memory_bytes * scale))
        cluster = replace(problem.cluster, groups=(replace(group, gpu=gpu),))
        steps.append(answer_to(replace(problem, cluster=cluster)).plans[0].prediction.step_time_s)
    assert steps == sorted(steps, reverse=True)


@seldom
def test_many_wanted_plans_leave_time_to_predict_and_check_them() -> None:
    problem = a_problem(top_k=5000, diverse=False, time_limit_s=2.0)
    answer = search(problem, default_profile(problem.cluster, problem.launcher))
    assert answer.status == "feasible"
    assert len(answer.plans) > 10
    assert answer.elapsed_s < 2.0 + 1.0  # of CPU: what was found, a second past the limit at most


def test_a_slice_of_a_few_tokens_that_alone_fits_is_found() -> None:
    # 2.7 billion parameters with ZeRO 3 on 8 GPUs of 12.2 GiB: 2048 tokens a GPU are too many, 1024 are not
    model = a_model(num_layers=32, hidden_size=2560, ffn_hidden_size=10240, num_attention_heads=20,
                    num_kv_heads=20, vocab_size=50257)  # fmt: skip
    pin = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    cluster = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=int(12.2 * GIB)))
    problem = a_problem(model=model, cluster=cluster, batch=8, pin=pin)
    problem = replace(problem, workload=replace(problem.workload, seq_length=2048))
    answer = answer_to(problem)
    assert answer.status == "optimal"
    assert answer.plans[0].config.context_parallel_size > 1
    short = {**pin, "context_parallel_size": 1}
    assert answer_to(replace(problem, options=replace(problem.options, pin=short))).status == "infeasible"


def test_no_reported_bound_is_above_a_plan_that_is_found_later() -> None:
    # Rows that promise most are ranked first, out of order: what is known of them then bounds no other row.
    problem = a_problem(
        model=find_model("llama-3.1-405b"), cluster=find_cluster("dgx-h100", num_nodes=64), batch=512
    )
    profile = default_profile(problem.cluster, problem.launcher)
    space = enumerate_space(problem, legal_only=True)
    frontier = Frontier.of(priced_space(problem, profile, space.rows), 3)
    reports = list[tuple[float, float]]()

    def hear(state: Frontier) -> bool:
        reports.append((state.waiting_s, state.ranked[0].score_s if state.ranked else np.inf))
        return False

    frontier.run(hear)
    best_s = frontier.ranked[0].score_s
    early = [bound_s for bound_s, incumbent_s in reports if incumbent_s > best_s]
    assert len(early) > 1
    assert max(early) <= best_s


# A search that begins with what an earlier one had found ends as if it had not.

PROBLEM = a_problem(
    model=a_model(num_layers=32, hidden_size=4096, num_attention_heads=32, ffn_hidden_size=14336),
    cluster=a_cluster(num_nodes=2),
    batch=64,
    top_k=3,
    certify="none",
)


def asked(problem: Problem, known: list[Configuration]) -> Answer:
    return search(problem, default_profile(problem.cluster, problem.launcher), known=known)


@cache
def asked_afresh() -> Answer:
    """Of a search that knew nothing."""
    return asked(PROBLEM, [])


def timeless(answer: Answer) -> dict[str, object]:
    """Everything but how long it took and how many rows were opened for it."""
    return replace(answer, elapsed_s=0.0, counts={}).to_json()


def test_a_plan_is_found_again_among_the_rows() -> None:
    space = searched_space(PROBLEM, legal_only=True)
    plans = asked_afresh().plans
    for plan in plans:
        (row,) = rows_of(space.rows, [plan.config])
        assert space.columns.configuration(row, plan.config.stage_layers) == plan.config


def test_what_is_no_row_is_passed_over() -> None:
    space = searched_space(PROBLEM, legal_only=True)
    far = a_configuration(tensor_parallel_size=7)
    assert rows_of(space.rows, [far, a_configuration(stage_layers=())]) == []
    assert timeless(asked(PROBLEM, [far])) == timeless(asked_afresh())


def test_the_answer_is_the_same_whatever_was_known_beforehand() -> None:
    whole = asked(replace(PROBLEM, options=replace(PROBLEM.options, top_k=20)), [])
    fresh = timeless(asked_afresh())
    found = [plan.config for plan in whole.plans]
    for known in (found[:3], found[-3:], found[::4]):  # the best, far behind, and mixed
        assert timeless(asked(PROBLEM, known)) == fresh


def test_what_is_known_is_not_lost_where_its_kind_is_not_open_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = asked_afresh().plans
    alone = replace(PROBLEM, options=replace(PROBLEM.options, top_k=1))
    profile = default_profile(PROBLEM.cluster, PROBLEM.launcher)
    monkeypatch.setattr(unopened, "AT_ONCE", 1)  # rows opened together
    for plan in plans:  # a limit that nothing but what is known, and better plans, keeps
        limit_s = plan.prediction.step_time_s * (1.0 + 1e-9)
        rivals = Rivals(limit_s, limit_s)
        found = search(alone, profile, known=[plan.config], rivals=rivals, proved=False)
        assert found.plans[0].plan_id == plans[0].plan_id


def test_what_is_known_sets_a_limit_and_changes_no_plan_that_beats_others() -> None:
    found = [plan.config for plan in asked_afresh().plans]
    slowest_s = asked_afresh().plans[-1].prediction.step_time_s
    alone = replace(PROBLEM, options=replace(PROBLEM.options, top_k=1))
    profile, rivals = default_profile(PROBLEM.cluster, PROBLEM.launcher), Rivals(slowest_s, slowest_s)
    ids = {
        search(alone, profile, known=known, rivals=rivals, proved=False).plans[0].plan_id
        for known in ([], found[1:3], found[-2:], found)
    }
    assert ids == {asked_afresh().plans[0].plan_id}


def test_what_is_known_is_ranked_before_any_other_row_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    best = asked_afresh().plans
    began: list[float] = []
    real = Frontier.run

    def run(self: Frontier, interrupted: Interrupt) -> None:
        began.append(self.cutoff_s)
        real(self, interrupted)

    monkeypatch.setattr(Frontier, "run", run)
    asked(PROBLEM, [plan.config for plan in best])
    opening, ranking, *_ = began  # then fewer GPUs
    assert opening == math.inf
    assert ranking == pytest.approx(best[-1].prediction.step_time_s)  # the K-th of K


def test_rows_that_are_written_down_are_searched_in_the_same_way() -> None:
    space = searched_space(PROBLEM, legal_only=True)
    known = [plan.config for plan in asked_afresh().plans]
    assert rows_of(space.columns, known) == rows_of(space.rows, known)


# A search that is told to stop says what it knows, whenever that is; it never takes that for a proof.


@pytest.mark.parametrize("looks", range(12))
def test_a_search_stopped_at_any_look_has_a_plan_or_knows_nothing(looks: int) -> None:
    problem = a_problem()
    asked = count()
    profile = default_profile(problem.cluster, problem.launcher)
    answer = search(problem, profile, should_stop=lambda: next(asked) >= looks)
    assert answer.status in {"unknown", "feasible"}
    assert bool(answer.plans) == (answer.status == "feasible")


@pytest.mark.parametrize("few", [False, True])
def test_the_first_plan_is_of_the_best_switches_and_found_before_many_rows_are_enumerated(
    monkeypatch: pytest.MonkeyPatch, *, few: bool
) -> None:
    """Few rows are all ranked at once: likely ones would be ranked hardly sooner."""
    monkeypatch.setattr("meshwright.solver.search.search.FEW_OUTER", math.inf if few else 0)
    problem = with_default_switches(small_problem(top_k=1, certify="none"))
    profile = default_profile(problem.cluster, problem.launcher)
    (first, *others), *_ = searched_together(variants_of(problem, profile))
    seen = list[Progress]()
    ways = [one.problem for one in others]
    answer = search(first.problem, profile, ways=ways, on_progress=seen.append)
    told = [one for one in seen if one.incumbent_step_time_s is not None]
    assert others
    assert told[0].incumbent_step_time_s == pytest.approx(answer.plans[0].prediction.step_time_s, rel=0.1)
    assert (told[0].total < answer.space_size / 4) is not few


def test_seeking_a_first_plan_in_vain_leaves_time_for_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_vain(*_: object) -> None:
        while True:
            look()

    monkeypatch.setattr("meshwright.solver.search.search.FEW_OUTER", 0)
    monkeypatch.setattr("meshwright.solver.search.search.likely_space", in_vain)
    monkeypatch.setattr("meshwright.solver.search.search.first_plan", in_vain)
    problem = a_problem(time_limit_s=2.0)
    assert search(problem, default_profile(problem.cluster, problem.launcher)).plans
