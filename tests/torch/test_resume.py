"""A run that is killed goes on under another layout with the files of a re-plan: the same losses."""

import json
from pathlib import Path

import pytest

from meshwright.launchers.resume import with_resume_files
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.replan.checkpoint import read_checkpoint
from meshwright.service.replan.request import changed_job, read_replan_request
from tests.builders import a_plan, a_problem
from tests.processes.bounded import output_of
from tests.processes.warm_python import python

SCRIPT = Path(__file__).parent / "resumed_training.py"
WEIGHTS = 2 * (16 * 32 + 32 + 32 * 16 + 16) + 16 * 4 + 4  # two blocks up and down, and the head


def test_a_killed_run_goes_on_under_other_layouts_with_the_same_losses(
    tmp_path: Path,
) -> None:
    plan = a_plan()
    bundle = with_resume_files(
        ExportBundle(files={}), "torchtitan", plan, plan, saved_step=None, checkpoint_format="dcp"
    )
    (tmp_path / "resume.py").write_text(bundle.files["resume.py"])
    out = output_of([python(), str(SCRIPT), str(tmp_path), str(tmp_path)], timeout_s=120)
    found = json.loads(out.splitlines()[-1])
    losses = found["undisturbed"]
    for name in ("smaller", "tensor"):  # 2 ranks of data with 4 sequences each; 2 tensor ranks with all 8
        went_on = found[name]
        assert len(went_on) == 4, name
        assert min(map(int, went_on)) == found["saved_step"] >= 4
        for step, loss in went_on.items():
            assert loss == pytest.approx(losses[step], rel=1e-4), (name, step)
    for step, loss in found["killed"].items():
        if step in losses:
            assert loss == pytest.approx(losses[step], rel=1e-4)
    assert found["refusal"]["unchanged"]
    assert "is another model's" in found["refusal"]["said"]

    seen = read_checkpoint(tmp_path / "checkpoints")  # without torch
    assert (seen.format, seen.step, seen.num_parameters, seen.num_layers) == (
        "dcp", found["saved_step"], WEIGHTS, 2,
    )  # fmt: skip
    asked = {"lost_nodes": 1, "steps_total": 10, "checkpoint": seen.request()}
    with pytest.raises(InvalidProblemError, match="another model"):
        changed_job(read_replan_request(asked), a_problem(), plan)
