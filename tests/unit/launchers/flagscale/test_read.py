"""FlagScale's files next to the command that overrides some of their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

RUN = "python run.py --config-path ."
TP = "train.system.tensor_model_parallel_size"
PLAN = Path(__file__).parents[3] / "golden" / "flagscale" / "llama-3.1-405b-uneven"


def started(words: str) -> LaunchFile:
    files = {name: (PLAN / name).read_text("utf-8") for name in ("experiment.yaml", "train_plan.yaml")}
    files["run.sh"] = f"{RUN} --config-name experiment action=run {words}\n"
    source = Source(name="experiment.yaml", text=files["experiment.yaml"], files=files)
    return read_launch_files(source, Overrides(num_gpus=1024))


def test_values_of_the_command_override_the_files() -> None:
    assert started("").configuration.tensor_parallel_size == 8
    for more in ("", f"{RUN} --config-name experiment action=stop", f"{RUN} --config-name other {TP}=2"):
        found = started(f"++{TP}=4\n{more}")
        assert found.configuration.tensor_parallel_size == 4
        assert any("tensor_model_parallel_size is 4, not the file's" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train=other", r"line 1 of run\.sh: train=other is not read"),
        (f"~{TP}", f"~{TP} is not read"),  # deletes it
        ("'train.system={tensor_model_parallel_size: 4}'", r"4} is not one value.* train\.system=VALUE"),
        (f"'{TP}=[4'", rf"line 1 of run\.sh: {TP}=\[4 is not one value"),
        (f"{TP}=4\n{RUN} --config-name experiment.yaml", r"2 different commands use experiment\.yaml"),
        (f"--config-name other {TP}=4", r"line 1 of run\.sh starts other, not experiment\.yaml"),
    ],
)
def test_words_of_the_command_that_are_not_one_value_are_refused(words: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        started(words)
