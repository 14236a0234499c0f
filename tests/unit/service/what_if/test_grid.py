"""Changed questions: searched or predicted, and said so."""

import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.report.what_if import WhatIfs
from meshwright.service.what_if.carried import WhatIfPlan, candidate_of, scaled
from meshwright.service.what_if.changes import WhatIfQuestion
from meshwright.service.what_if.grid import Method, searched, what_ifs
from meshwright.solver import clock
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import changes_of, with_changes
from tests.builders import a_plan, a_problem
from tests.problems.mixed_clusters import a_group, a_mixed_problem
from tests.served.reports import small_answer

SUBJECTS = ["as asked", "GPUs", "memory", "network", "batch"]


@pytest.fixture(scope="module")
def grids() -> dict[Method, WhatIfs]:
    """Both ways to answer the changed questions of one answer."""
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    methods: tuple[Method, ...] = ("search", "predict")
    found = {method: what_ifs(problem, profile, answer, method=method) for method in methods}
    return {method: grid for method, grid in found.items() if grid is not None}


@pytest.mark.parametrize("method", ["search", "predict"])
def test_every_subject_is_changed_and_measured_against_the_question_as_asked(
    method: Method, grids: dict[Method, WhatIfs]
) -> None:
    found = grids[method]
    assert list(dict.fromkeys(row.subject for row in found.rows)) == SUBJECTS
    assert found.rows[0].is_asked
    rate = small_answer()[1].plans[0].prediction.tokens_per_s_per_gpu * 16
    assert found.rows[0].rate == f"{round(rate):,}".replace(",", " ")
    assert max(row.share for row in found.rows) == 1.0


def test_a_searched_line_is_the_answer_to_its_question(grids: dict[Method, WhatIfs]) -> None:
    problem, _ = small_answer()
    line = next(row for row in grids["search"].rows if row.change == "batch 128")
    larger = replace(problem, workload=replace(problem.workload, global_batch_size=128))
    best = ask(larger, default_profile(problem.cluster, problem.launcher)).plans[0]
    assert line.rate == f"{round(best.prediction.tokens_per_s_per_gpu * 16):,}".replace(",", " ")


def test_a_search_is_never_slower_than_what_is_carried_over(grids: dict[Method, WhatIfs]) -> None:
    methods: tuple[Method, ...] = ("search", "predict")
    best_of, carried = ({row.change: row for row in grids[method].rows if row.rate} for method in methods)
    assert carried.keys() <= best_of.keys()
    for change, row in carried.items():
        best = int(best_of[change].rate.replace(" ", ""))
        assert best >= int(row.rate.replace(" ", "")) - 1


def test_the_report_of_a_plan_that_is_not_ranked_has_a_grid() -> None:
    problem, answer = small_answer()
    alone = replace(answer, plans=(replace(answer.plans[0], needs=("HybridEP",), ranked=False),))
    profile = default_profile(problem.cluster, problem.launcher)
    assert what_ifs(problem, profile, alone, method="predict", budget_s=-1.0) is not None


def test_what_there_was_no_time_for_is_said() -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    found = what_ifs(problem, profile, answer, method="search", budget_s=-1.0)
    assert found is not None
    assert {row.found for row in found.rows[1:]} == {"not computed: out of time"}


def test_a_busy_machine_leaves_no_line_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is CPU seconds: here a minute passes between two looks at the clock."""
    problem, answer = small_answer()
    minutes = count(step=60.0)
    slow = SimpleNamespace(monotonic=lambda: next(minutes), thread_time=time.thread_time)
    monkeypatch.setitem(vars(clock), "time", slow)
    profile = default_profile(problem.cluster, problem.launcher)
    found = what_ifs(problem, profile, answer, method="predict", budget_s=60.0)
    assert found is not None
    assert "not computed" not in str(found)


def test_what_is_too_large_to_be_searched_whole_is_not_said_to_fit_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    monkeypatch.setattr("meshwright.solver.explain.remedies.is_too_large", lambda *_, **__: True)
    found = what_ifs(problem, profile, answer, method="search")
    assert found is not None
    assert {row.found for row in found.rows[1:]} == {
        "not known: too many configurations to search them all"
    }


def test_a_pair_agrees_with_the_lines_of_its_single_changes(grids: dict[Method, WhatIfs]) -> None:
    found = grids["search"]
    assert [table.title for table in found.tables] == [
        "GPUs and batch",
        "GPUs and network between nodes",
    ]
    cells = {(row, column): cell for row, cells in found.tables[0].rows
             for column, cell in zip(found.tables[0].columns, cells, strict=True)}  # fmt: skip
    assert cells["as asked", "as asked"].text == "×1.00"
    assert cells["as asked", "as asked"].is_asked
    for row in found.rows:
        pair = {"GPUs": (row.change, "as asked"), "batch": ("as asked", row.change)}.get(row.subject)
        if pair and row.rate:
            assert cells[pair].step == row.step
            found_sizes = row.found.removeprefix("the same with ").removeprefix("the same plan")
            assert set(found_sizes.split(" · ")) - {""} <= set(cells[pair].title.split(" · "))
    # twice the GPUs for twice the batch: no replica has other work to do, so nearly twice the rate
    assert 1.8 < float(cells["32 GPUs", "batch 128"].text.removeprefix("×")) <= 2.0


def test_what_the_question_leaves_open_is_taken_from_the_first_plan() -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    options = replace(problem.options, batch_sizes=(32,), num_nodes=(1, 2))
    several = replace(problem, options=options)
    found = what_ifs(several, profile, answer, method="predict")
    assert found is not None
    assert "use plan #1’s" in found.method
    plain = what_ifs(problem, profile, answer, method="predict")
    assert plain is not None
    assert found.rows == plain.rows
    assert what_ifs(problem, profile, answer, method="none") is None


def test_any_launcher_is_as_fast_as_the_fastest_and_carried_plans_keep_theirs() -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    of_any = replace(problem, launcher="any")
    union = searched(WhatIfQuestion(problem=of_any, profile=profile))
    alone = searched(WhatIfQuestion(problem=problem, profile=profile))
    assert isinstance(union, WhatIfPlan)
    assert isinstance(alone, WhatIfPlan)
    assert union.rate >= alone.rate
    plans = tuple(replace(plan, launchers=("megatron-lm",)) for plan in answer.plans)
    carried = what_ifs(of_any, profile, replace(answer, plans=plans), method="predict")
    plain = what_ifs(problem, profile, answer, method="predict")
    assert carried is not None
    assert plain is not None
    assert carried.rows == plain.rows


def test_a_mesh_that_left_gpus_idle_takes_them_where_the_cluster_grows() -> None:
    # 3 replicas of 16 GPUs on 64 leave 16 idle; on 96 there is room for 6
    asked = a_problem(batch=48)
    small, large = (
        replace(asked, cluster=replace(asked.cluster, groups=(replace(one, num_nodes=nodes),)))
        for one in asked.cluster.groups
        for nodes in (8, 12)
    )
    config = Configuration(
        tensor_parallel_size=8, pipeline_parallel_size=2, data_parallel_size=3, num_microbatches=16,
        stage_layers=(16, 16),
    )  # fmt: skip
    found = scaled(config, small, large)
    assert found is not None
    assert (found.data_parallel_size, found.num_gpus, found.global_batch_size) == (6, 96, 48)


def test_stages_on_unlike_nodes_are_carried_over_with_all_their_groups() -> None:
    groups = (a_group(nodes=2), a_group(nodes=2, speed=0.5, slug="slow"))
    problem = replace(a_mixed_problem(groups, batch=32, certify="none", top_k=1), launcher="none")
    profile = default_profile(problem.cluster, "none")
    answer = ask(problem, profile)
    found = what_ifs(problem, profile, answer, method="predict")
    assert found is not None
    lines = {row.change: row for row in found.rows}
    assert lines["16 GPUs"].rate  # 2 nodes of 2 GPUs in each of two groups, twice
    assert lines["batch 64"].rate
    network = next(row for row in found.rows if row.subject == "network")
    assert network.rate  # half of both networks, and of the link between the groups
    searched_too = what_ifs(problem, profile, answer, method="search", budget_s=0.2)
    assert searched_too is not None
    assert "stopped after 2 s" in searched_too.method
    assert int(searched_too.rows[1].rate.replace(" ", "")) >= int(found.rows[1].rate.replace(" ", "")) - 1


def test_a_plan_with_its_own_switches_is_carried_over_with_them() -> None:
    problem = a_problem()
    switched = {"precision": "fp8", "moe_dispatcher": "hybridep", "overlap_experts": "true"}
    workload = with_changes(problem.workload, switched)
    assert workload.framework_options == {"moe_dispatcher": "hybridep", "overlap_experts": True}
    assert changes_of(workload, problem.workload) == switched
    candidate = candidate_of(replace(a_plan(), workload=switched), problem)
    question = WhatIfQuestion(problem=problem, profile=default_profile(problem.cluster, problem.launcher))
    assert candidate.asks(question).problem.workload == workload
