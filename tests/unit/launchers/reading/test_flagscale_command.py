"""FlagScale's files next to the command that overrides some of their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

PLAN = Path(__file__).parents[3] / "golden" / "flagscale" / "llama-3.1-405b-uneven"


def started(words: str) -> LaunchFile:
    files = {name: (PLAN / name).read_text("utf-8") for name in ("experiment.yaml", "train_plan.yaml")}
    files["run.sh"] = f"python run.py --config-path . --config-name experiment action=run {words}\n"
    source = Source(name="experiment.yaml", text=files["experiment.yaml"], files=files)
    return read_launch_files(source, Overrides(num_gpus=1024))


def test_values_of_the_command_override_the_files() -> None:
    assert started("").configuration.tensor_parallel_size == 8
    found = started("++train.system.tensor_model_parallel_size=4")
    assert found.configuration.tensor_parallel_size == 4
    assert any("tensor_model_parallel_size is 4, not the file's" in note for note in found.notes)
    with pytest.raises(InvalidProblemError, match=r"line 1 of run\.sh: train=other is not read"):
        started("train=other")
