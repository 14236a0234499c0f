"""The closed loop on this CPU, as ``docs/howto/closed-loop.md`` has it, with Megatron-LM itself."""

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from meshwright.service.cli.demo import running_service
from meshwright.service.tuning.runs import end_leftovers
from meshwright.service.verify.environments import FOLDER_VARIABLE, make
from meshwright.service.verify.environments import MEGATRON_LM as VERIFIER
from meshwright_client import Client
from meshwright_client.choosing import CHOICE, Choice, read_choice
from tests.launchers.cpu_training import MEGATRON_LM
from tests.launchers.environments import ROOT as LAUNCHERS
from tests.processes.bounded import output_of
from tests.torch.test_tune import ROOT, begun_and_killed, home, meshwright, words

pytestmark = pytest.mark.timeout(1500)
PATIENCE_S = 600.0
STEPS = 10  # of the launched run


def test_a_plan_is_verified_tuned_launched_reported_and_planned_anew_with_what_was_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(LAUNCHERS))
    make(VERIFIER)
    problem = MEGATRON_LM.problem(2, 4)
    problem["search"]["pin"]["zero_stage"] = 0
    own = MEGATRON_LM.variables(tmp_path)
    own["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT / 'client'}:{own['PYTHONPATH']}"
    with running_service(tmp_path) as (url, _log), Client(url) as service:
        # plan
        job = service.wait(service.submit(problem), timeout_s=60)
        answer = service.plans(job)
        (tmp_path / "problem.json").write_text(json.dumps(problem))
        (tmp_path / "answer.json").write_text(meshwright(tmp_path, "plan", "problem.json", "--json"))
        # verify
        checked = service.verify(answer.plans[0])
        assert (checked.verdict, checked.version) == ("verified", "0.19.2"), checked.reasons
        assert [plan.plan_id for plan in service.find_plans(verified="verified")] == [checked.plan_id]
        # tune, which is killed and goes on
        short = words(MEGATRON_LM, "--top", "1", "--steps", "8", "--budget-gpu-minutes", "12")
        held_s = begun_and_killed(tmp_path, short, own)
        tuned = json.loads(meshwright(tmp_path, *short, environment=own))
        assert end_leftovers(tmp_path) == 0  # nobody else's ranks disturbed what was measured since
        first, *ran = tuned["runs"]
        assert first["outcome"] == "interrupted"
        assert first["gpu_minutes"] >= held_s * 2 / 60  # it counts: two ranks, until the last line and more
        assert {one["outcome"] for one in ran} == {"measured"}, ran
        assert max(Counter(one["plan_id"] for one in ran).values()) <= 3
        assert all(one["peak_memory_bytes"] > 0 for one in ran)
        assert sum(one["gpu_minutes"] for one in tuned["runs"]) <= 12
        assert json.loads((tmp_path / "tuning" / "profile.json").read_text())["num_runs"] == len(ran)
        again = json.loads(meshwright(tmp_path, *short, environment=own))
        assert again["runs"] == tuned["runs"], "what is measured is not measured twice"
        best = next(plan for plan in answer.plans if plan.plan_id == tuned["best"])
        assert best.plan_id in {one["plan_id"] for one in ran}
        for one in ran:  # what was run here is told to the service, as a launched job tells it
            known = {name: one[name] for name in ("step_time_s", "peak_memory_bytes") if one[name]}
            learnt = service.measure(one["plan_id"], known)
        assert learnt.num_runs == len(ran)
        assert learnt.profile_version is not None
        # launch, which asks, starts Megatron-LM, reads its log and reports
        (tmp_path / "cluster.json").write_text(json.dumps(problem["cluster"]))
        launched, told = launched_by(url, tmp_path, own)
        assert f"version {learnt.profile_version} of this cluster's" in launched.profile
        # report
        found = {(one.job_id, one.plan_id): one.measured for one in service.find_plans(measured=True)}
        took = found[launched.job_id, launched.plan_id]
        assert took is not None
        logged = [float(one) for one in re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", told)]
        # a plan that was both tuned and launched has two runs, and the service states their median
        tuned_ms = [1000.0 * one["step_time_s"] for one in ran if one["plan_id"] == launched.plan_id]
        assert took.num_runs == 1 + len(tuned_ms)
        assert min(logged + tuned_ms) <= 1000.0 * (took.step_time_s or 0.0) <= max(logged + tuned_ms)
        assert took.peak_memory_bytes
        # re-plan, priced with what all runs have taught
        run = {"lost_nodes": 1, "spare_nodes": 1, "steps_done": 500, "saved_step": 450, "steps_total": 1000}
        replanned = service.replan(job, {**run, "plan_id": best.plan_id}, save_dir=tmp_path / "next")
        assert any(f"version {learnt.profile_version + 1} of" in note for note in replanned.notes), (
            replanned.notes
        )
        spare = next(way for way in replanned.ways if way.kind == "spare nodes")
        # as all runs say, and not as the catalog has it: corrected, and by no more than a run asks for
        priced_s = {plan.plan_id: plan.prediction.step_time_s for plan in answer.plans}
        asked = [one["step_time_s"] / priced_s[one["plan_id"]] for one in ran]
        asked.append((took.step_time_s or 0.0) / priced_s[launched.plan_id])
        learned = spare.layout.step_time_s / priced_s[best.plan_id]
        assert learned != 1.0
        assert min(1.0, *asked) <= learned <= max(1.0, *asked)
        assert spare.steps_s == pytest.approx(500 * spare.layout.step_time_s)
        assert (tmp_path / "next" / "resume.sh").exists()


def launched_by(url: str, folder: Path, own: dict[str, str]) -> tuple[Choice, str]:
    """What ``meshwright launch`` has chosen, and what the run that it started has logged."""
    start = {"MESHWRIGHT_URL": url, "MOCK_DATA": "1", "TRAIN_ITERS": str(STEPS), "LOG_INTERVAL": "1"}
    line = ["launch", "--problem", "problem.json", "--cluster-from", "cluster.json", "--save-dir", "run"]
    told = output_of(
        [sys.executable, "-m", "meshwright", *line], timeout_s=PATIENCE_S, cwd=folder,
        environment={**home(folder), **own, **start},
    )  # fmt: skip
    assert len(re.findall(r"iteration +\d+/ +10 \|", told)) == STEPS
    choice = read_choice(folder / "run" / CHOICE)
    assert choice is not None
    return choice, told
