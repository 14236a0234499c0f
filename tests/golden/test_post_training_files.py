"""Launch files of placed roles, byte for byte; UPDATE_GOLDEN=1 writes them anew.

``python -m tests.launchers.post_training`` lets the launchers' own classes judge them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from meshwright.launchers.post_training.registry import export
from meshwright.profiles.errors import RefusedExportError
from tests.launchers.post_training import CASES, placed_roles

GOLDEN = Path(__file__).parent / "post_training"


@pytest.mark.parametrize("name", CASES)
def test_the_files_are_those_that_were_looked_at(name: str) -> None:
    files = export(*placed_roles(name)).files
    folder = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        folder.mkdir(exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


def test_nodes_of_both_roles_are_nemo_rls_cluster() -> None:
    values = yaml.safe_load((GOLDEN / "nemo-rl-megatron-async" / "nemo_rl_grpo.yaml").read_text())
    assert values["cluster"] == {"num_nodes": 4, "gpus_per_node": 8}
    assert values["policy"]["generation"]["colocated"]["resources"]["num_nodes"] == 2


def test_stages_that_differ_in_the_middle_are_refused() -> None:
    asked, plan = placed_roles("nemo-rl-megatron-async", stage_layers=(8, 9, 10, 9))
    with pytest.raises(RefusedExportError, match="differ in the middle"):
        export(asked, plan)


def test_updates_that_split_a_prompt_are_refused_by_verl() -> None:
    asked, plan = placed_roles("verl-fsdp-async", updates=3)
    with pytest.raises(RefusedExportError, match="which it counts"):
        export(asked, plan)


def test_a_plan_that_another_launcher_cannot_run_is_refused_by_its_field() -> None:
    asked, plan = placed_roles("nemo-rl-megatron-async")
    with pytest.raises(RefusedExportError) as caught:
        export(asked, plan, "trl")
    assert [one.pointer for one in caught.value.errors] == ["/training/trainer", "/asynchrony/mode"]
