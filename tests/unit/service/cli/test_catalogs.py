"""Lists of the catalog, whole or by words of a name."""

import json

import pytest
from typer.testing import CliRunner

from meshwright.service.cli.main import app


def listed(*words: str) -> dict[str, dict[str, object]]:
    """Return the rows of a list by their names."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return {row["name"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("words", "among", "without"),
    [
        (("gpus", "4090"), {"rtx-4090", "rtx-4090-laptop"}, "rtx-4080"),
        (("gpus", "H100", "pcie"), {"h100-pcie-80gb"}, "h100-sxm-80gb"),
        (("models", "qwen3", "8b"), {"qwen3-8b"}, "qwen3-14b"),
        (("clusters", "h200"), {"dgx-h200"}, "dgx-h100"),
    ],
)
def test_a_list_has_the_names_with_all_words(words: tuple[str, ...], among: set[str], without: str) -> None:
    found = listed(*words)
    assert among <= found.keys()
    assert without not in found
    assert len(found) < len(listed(words[0]))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("gpus", "rtx3050"), "rtx-3050"),
        (("gpus", "H20 141GB"), "h20-sxm-141gb"),
        (("gpus", "NVIDIA A100-SXM4-40GB"), "a100-sxm-40gb"),
        (("gpus", "5090", "D"), "rtx-5090-d"),
        (("models", "Qwen/Qwen3-8B"), "qwen3-8b"),
        (("models", "Qwen/Qwen3-8B-AWQ"), "qwen3-8b"),  # stored as no model of the catalog is
        (("clusters", "p5.48xlarge"), "aws-p5-h100"),
        (("clusters", "a3-highgpu-8g"), "a3-highgpu-8g"),  # in no list
        (("clusters", "8xB200"), "8xb200"),
    ],
)
def test_a_list_reads_what_the_options_of_plan_read(words: tuple[str, ...], name: str) -> None:
    assert listed(*words).keys() == {name}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("gpus", "rtx-2070"), "No GPU of the catalog has this name"),  # not an RTX 5070
        (("gpus", "rtx-3050-6gb"), "No such card has 6 GB"),
        (("models", "llama-5"), "Did you mean"),
        (("clusters", "dgx-h101"), "Did you mean dgx-h100"),
    ],
)
def test_a_list_says_of_an_unknown_name_what_plan_says(words: tuple[str, ...], why: str) -> None:
    done = CliRunner().invoke(app, words)
    assert why in str(done.exception)


def test_a_gpu_that_nobody_measured_names_the_one_that_it_is_priced_as_and_no_architecture() -> None:
    rows = listed("gpus")
    said = {name: (row["architecture"], row["priced_as"]) for name, row in rows.items()}
    assert (said["rtx-4090"], said["gaudi-3"]) == (("ada", ""), ("", "mi300x"))
    assert all((architecture == "") != (nearest == "") for architecture, nearest in said.values())
    assert {nearest for _, nearest in said.values()} <= {"", *rows}
