"""Changed questions: searched or predicted, and said so."""

from dataclasses import replace

import pytest

from profiles.profile import default_profile
from service.what_if import Method, what_ifs
from solver.ask import ask
from tests.reports import small_answer

SUBJECTS = ["as asked", "GPUs", "memory", "network", "batch"]


@pytest.mark.parametrize("method", ["search", "predict"])
def test_every_subject_is_changed_and_measured_against_the_question_as_asked(method: Method) -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    found = what_ifs(problem, profile, answer, method=method)
    assert found is not None
    assert list(dict.fromkeys(row.subject for row in found.rows)) == SUBJECTS
    assert found.rows[0].is_asked
    rate = answer.plans[0].prediction.tokens_per_s_per_gpu * 16
    assert found.rows[0].rate == f"{round(rate):,}".replace(",", " ")
    assert max(row.share for row in found.rows) == 1.0


def test_a_searched_line_is_the_answer_to_its_question() -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    found = what_ifs(problem, profile, answer, method="search")
    assert found is not None
    line = next(row for row in found.rows if row.change == "batch 128")
    larger = replace(problem, workload=replace(problem.workload, global_batch_size=128))
    best = ask(larger, profile).plans[0]
    assert line.rate == f"{round(best.prediction.tokens_per_s_per_gpu * 16):,}".replace(",", " ")


def test_a_search_is_never_slower_than_what_is_carried_over() -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    grids = [what_ifs(problem, profile, answer, method=method) for method in ("search", "predict")]
    searched, carried = ({row.change: row for row in grid.rows if row.rate} for grid in grids if grid)
    assert carried.keys() <= searched.keys()
    for change, row in carried.items():
        best = int(searched[change].rate.replace(" ", ""))
        assert best >= int(row.rate.replace(" ", "")) - 1


def test_what_there_was_no_time_for_is_said() -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    found = what_ifs(problem, profile, answer, method="search", budget_s=-1.0)
    assert found is not None
    assert {row.found for row in found.rows[1:]} == {"not computed: the time for it was over"}


def test_a_question_with_several_batches_has_no_grid() -> None:
    problem, answer = small_answer()
    profile = default_profile(problem.cluster, problem.launcher)
    several = replace(problem, options=replace(problem.options, batch_sizes=(32,)))
    assert what_ifs(several, profile, answer, method="predict") is None
    assert what_ifs(problem, profile, answer, method="none") is None
