"""Documents name only what exists: functions of the cost model, tests of every fault that is promised."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.reliability.document import DOCUMENT, FAULTS, ROOT, faults_table, figures_in
from tests.reliability.figures import read_figures

PAGE = (ROOT / "docs" / "how-the-cost-model-works.md").read_text(encoding="utf-8")
ROOMS = "profiles|solver|benchmarks|tests"
NAMED = sorted(set(re.findall(rf"`((?:{ROOMS})/[\w./-]+)(?::(\w+))?`", PAGE)))


def test_the_document_names_many_functions() -> None:
    assert sum(bool(name) for _, name in NAMED) > 40


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_the_document_names_exists(path: str, name: str) -> None:
    assert (ROOT / path).exists()
    if name:
        module = import_module(path.removesuffix(".py").replace("/", "."))
        assert hasattr(module, name)


@pytest.mark.parametrize("block", ["ablation", "bench-cost"])
def test_generated_blocks_open_and_close(block: str) -> None:
    assert PAGE.count(f"<!-- {block} -->") == PAGE.count(f"<!-- /{block} -->") == 1
    assert PAGE.index(f"<!-- {block} -->") < PAGE.index(f"<!-- /{block} -->")


def test_the_readme_has_the_errors_of_the_accuracy_page() -> None:
    tables = [
        line.strip("| ").split(" | ") for line in (ROOT / "docs/accuracy.md").read_text().splitlines()
    ]
    titles = next(cells for cells in tables if cells[0] == "all: pairs")  # without the rows' own column
    rows = {
        cells[0]: dict(zip(titles, cells[1:], strict=False)) for cells in tables[tables.index(titles) :]
    }
    runs = next(cells[1] for cells in tables if cells[0] == "**pair left out**")
    left, strange, learnt = (
        rows[name] for name in ("pair left out", "software stack left out", "pair left out, calibrated")
    )
    of_all, of_experts = (left[title].split()[0] for title in ("all: pairs", "experts: pairs"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for said in (
        f"on {int(runs):,} published runs: ".replace(",", " "),
        f" {of_all} % on pairs of GPU and framework that no fit has seen (experts {of_experts} %)",
        f" {strange['all: pairs'].split()[0]} % on a software stack that nobody has measured",
        f" {learnt['all: pairs'].split()[0]} % after up to 16 runs of a cluster",
    ):
        assert said in readme


# --------------------------------------------------------------------------------------------------
# docs/reliability.md: every fault that the service promises something about has tests.


def test_every_test_that_the_table_names_is_there() -> None:
    assert len(FAULTS) == 24
    for fault in FAULTS:
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert test == "chaos" or f"def {name}(" in (ROOT / "tests" / file).read_text(), test


def test_the_document_shows_the_table_as_it_is_with_a_figure_for_every_fault() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    figures = figures_in(text)
    assert faults_table(figures) in text
    assert [number for number in range(1, 25) if not figures[number].strip()] == []


def test_the_worst_of_what_was_measured_is_shown_for_each_database(tmp_path: Path) -> None:
    lines = [
        {"fault": 9, "what": "slowest", "value": value, "unit": "s", "on": on}
        for value, on in [(0.4, "postgresql"), (0.3, "sqlite"), (0.5, "sqlite")]
    ]
    file = tmp_path / "figures.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_figures(file) == {9: "slowest: 0.50 / 0.40 s"}
