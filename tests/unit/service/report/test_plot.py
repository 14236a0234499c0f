"""One picture in three formats: the same every time, with axes from zero and a whole legend."""

from pathlib import Path

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.report.formatting import words
from meshwright.service.report.plot import SUFFIXES, plot
from meshwright.solver.explain.timeline import timelines_of
from tests.builders import a_configuration, a_problem
from tests.served.reports import small_answer

STARTS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_each_suffix_has_its_format_and_the_same_answer_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    problem, answer = small_answer()
    first, second = (tmp_path / f"{name}{suffix}" for name in ("first", "second"))
    for path in (first, second):
        plot(answer, problem, answer.plans[0], path)
    assert first.read_bytes().startswith(STARTS[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_title_and_legend_name_everything_that_is_drawn(tmp_path: Path) -> None:
    problem, answer = small_answer()
    best = answer.plans[0]
    plot(answer, problem, best, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert problem.model.title in text
    assert answer.certainty in text
    assert best.why is not None
    drawn = [name for name, value in best.why.waterfall_s.items() if value > 0]
    stages = best.prediction.stages
    drawn += [
        name for name in stages[0].memory_bytes if any(stage.memory_bytes.get(name) for stage in stages)
    ]
    for name in (*map(words, drawn), "memory of a GPU", "step time", "80 % interval"):
        assert f">{name}<" in text


def test_the_pipeline_is_drawn_with_its_critical_path(tmp_path: Path) -> None:
    problem, config = a_problem(), a_configuration()
    _, answer = small_answer()
    timelines = timelines_of(problem, default_profile(problem.cluster, problem.launcher), config)
    plot(answer, problem, answer.plans[0], tmp_path / "plan.svg", timelines)
    text = (tmp_path / "plan.svg").read_text()
    for name in ("rank 0", "rank 3", "forward", "backward", "critical path (underlined)"):
        assert f">{name}<" in text
