"""One picture in three formats: the same every time, with axes from zero and a whole legend."""

from pathlib import Path

import pytest

from meshwright.service.report.formatting import words
from meshwright.service.report.plot import SUFFIXES, plot
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
