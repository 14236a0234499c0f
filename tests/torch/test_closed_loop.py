"""The closed loop on this CPU: plan, verify, tune, report, re-plan with what was learnt."""

import json
import sys
from pathlib import Path

import pytest

from examples.cpu_training.closed_loop import TINY, problem_of
from meshwright.service.cli.demo import running_service
from meshwright.service.verify.environments import FOLDER_VARIABLE, MEGATRON_LM, make
from meshwright_client import Client
from tests.launchers.environments import ROOT as LAUNCHERS
from tests.torch.test_tune import TRAIN, meshwright

TRAINS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(TRAIN),
          "{save_dir}/megatron_args.sh", "--steps", "{steps}")  # fmt: skip


def test_a_plan_is_verified_tuned_launched_reported_and_planned_anew_with_what_was_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(LAUNCHERS))
    make(MEGATRON_LM)
    problem = problem_of(TINY)
    problem["search"] |= {"top_k": 4, "constraints": ["num_gpus == 2"]}
    problem["search"]["pin"]["recompute_granularity"] = "none"
    with running_service(tmp_path) as (url, _log), Client(url) as service:
        job = service.wait(service.submit(problem), timeout_s=60)
        answer = service.plans(job)
        checked = service.verify(answer.plans[0])
        assert (checked.verdict, checked.version) == ("verified", "0.19.2"), checked.reasons
        assert [plan.plan_id for plan in service.find_plans(verified="verified")] == [checked.plan_id]
        (tmp_path / "problem.json").write_text(json.dumps(problem))
        (tmp_path / "answer.json").write_text(meshwright(tmp_path, "plan", "problem.json", "--json"))
        tuned = json.loads(meshwright(
            tmp_path, "tune", "--from", "answer.json", "--top", "1", "--budget-gpu-minutes", "2", "--json",
            "--", *TRAINS,
        ))  # fmt: skip
        best = next(plan for plan in answer.plans if plan.plan_id == tuned["best"])
        before = best.prediction.step_time_s

        for one in tuned["runs"]:  # what was run here is told to the service, as a launched job tells it
            known = {name: one[name] for name in ("step_time_s", "peak_memory_bytes") if one[name]}
            learnt = service.measure(one["plan_id"], known)
        assert learnt.num_runs == len(tuned["runs"])

        run = {"lost_nodes": 1, "spare_nodes": 1, "steps_done": 500, "saved_step": 450, "steps_total": 1000}
        again = service.replan(job, {**run, "plan_id": best.plan_id}, save_dir=tmp_path / "next")
        assert any("version" in note for note in again.notes)  # the calibration of this cluster, by name
        spare = next(way for way in again.ways if way.kind == "spare nodes")
        took = min(one["step_time_s"] for one in tuned["runs"] if one["plan_id"] == best.plan_id)
        far, near = abs(before - took), abs(spare.layout.step_time_s - took)
        assert near < far  # the re-plan is priced as the machine was measured
        assert spare.steps_s == pytest.approx(500 * spare.layout.step_time_s)
        assert (tmp_path / "next" / "resume.sh").exists()
