"""Pages keep their generated blocks, the figures that they share, and a test for every promised fault."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.reliability.document import DOCUMENT, FAULTS, ROOT, faults_table, figures_in
from tests.reliability.figures import read_figures

PAGE = (ROOT / "docs" / "how-the-cost-model-works.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", ["ablation", "bench-cost"])
def test_generated_blocks_open_and_close(block: str) -> None:
    assert PAGE.count(f"<!-- {block} -->") == PAGE.count(f"<!-- /{block} -->") == 1
    assert PAGE.index(f"<!-- {block} -->") < PAGE.index(f"<!-- /{block} -->")


def test_the_readme_has_the_errors_of_the_accuracy_pages() -> None:
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    rows = {
        cells[0]: cells for line in page.splitlines() if len(cells := line.strip("| ").split(" | ")) > 5
    }
    _, clusters, every, dense, experts, *_ = rows["**nothing shared**"]
    sight = rows["**first sight**"][2]
    first = page[page.index("### The first runs of a cluster") :].splitlines()
    after = {cells[0]: cells[3] for line in first if len(cells := line.strip("| ").split(" | ")) > 5}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for said in (
        f"{every.split()[0]} % off on {clusters} clusters with one vote each",
        f"(dense {dense.split()[0]}, experts {experts.split()[0]})",
        f"{sight.split()[0]} % off on runs predicted at first sight",
        f"{after['1']} % after one run of a cluster and {after['16']} % after sixteen",
    ):
        assert said in readme
    tuned = (ROOT / "docs/accuracy-fine-tuning.md").read_text(encoding="utf-8")
    steps = re.search(r"Step times are ([\d.]+) % off .* holds\n\d+ of (\d+)\.", tuned)
    memory = re.search(r"Peak memory is ([\d.]+) % off", tuned)
    assert steps
    assert memory
    assert f"on {steps[2]} runs of TRL's and transformers' trainers" in readme
    assert f"steps are {steps[1]} % off and peak memory {memory[1]} %" in readme
    unseen = yaml.safe_load((ROOT / "profiles/catalog/calibration/unseen.yaml").read_text(encoding="utf-8"))
    assert [f"{unseen[name]:.1f}" for name in ("error", "dense", "experts")] == [
        cell.split()[0] for cell in (every, dense, experts)
    ]
    for runs, error in unseen["after_runs"].items():
        assert f"{error:.1f}" == after[str(runs)]


# --------------------------------------------------------------------------------------------------
# docs/reliability.md: every fault that the service promises something about has tests.


def test_every_test_that_the_table_names_is_there() -> None:
    assert len(FAULTS) == 29
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
    lines.append({"fault": 26, "what": "memory", "value": 224.9, "unit": "MiB", "on": ""})
    file = tmp_path / "figures.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_figures(file) == {9: "slowest: 0.50 / 0.40 s", 26: "memory: 225 MiB"}
