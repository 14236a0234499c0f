"""``meshwright fleet`` as a shell runs it: from a file of jobs to a start list that a shell can read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes.warm import run_warm
from tests.property.fleet_judge import broken

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "examples" / "fleet-small.yaml"


def fleet(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1"}
    return run_warm("-m", "meshwright", "fleet", *arguments, env=env)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("fleet")
    run = fleet(folder, str(SMALL), "--json", "--out", str(folder / "out"))
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer, folder / "out"


def test_the_schedule_keeps_every_limit(planned: tuple[dict[str, Any], Path]) -> None:
    answer, _ = planned
    asked = yaml.safe_load(SMALL.read_text())["jobs"]
    minutes = {one["name"]: round((one["end_hours"] - one["start_hours"]) * 60) for one in answer["jobs"]}
    nodes = {one["name"]: one["nodes"] for one in answer["jobs"]}
    jobs = {
        one["name"]: {
            "minutes": {nodes[one["name"]]: minutes[one["name"]]}, "release": 0, "due": None, "weight": 1,
            "after": one.get("after", []), "never_with": [], "same": one.get("as_many_nodes_as"),
        }
        for one in asked
    }  # fmt: skip
    placed = {one["name"]: (one["nodes"], round(one["start_hours"] * 60)) for one in answer["jobs"]}
    assert list(broken(jobs, 4, placed)) == []
    assert answer["status"] == "optimal"
    assert answer["searched"] < answer["choices"]


def test_durations_are_steps_times_the_plans_step(planned: tuple[dict[str, Any], Path]) -> None:
    """Rounded up to a whole minute."""
    for job in planned[0]["jobs"]:
        took_s = (job["end_hours"] - job["start_hours"]) * 3600
        assert 0 <= took_s - job["steps"] * job["step_time_s"] <= 60 + 1e-6


def test_the_start_list_queues_each_job_at_its_time(
    planned: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """A stand-in for sbatch writes down what it is asked for."""
    answer, out = planned
    log, stand_in = tmp_path / "log", tmp_path / "bin" / "sbatch"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$(basename $PWD) $*" >> {log}\nwc -l < {log} | tr -d " "\n')
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{stand_in.parent}:{os.environ['PATH']}"}
    run = subprocess.run(
        ["bash", str(out / "start.sh"), "--account=x"], env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    lines = log.read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(one["name"] for one in answer["jobs"])
    assert all("--begin=2026-01-0" in line and "--account=x launch.sbatch" in line for line in lines)
    chat = next(at for at, line in enumerate(lines, 1) if line.startswith("chat "))
    assert f"--dependency=afterok:{chat} " in next(line for line in lines if line.startswith("long "))


def test_launch_files_of_every_plan_are_written(planned: tuple[dict[str, Any], Path]) -> None:
    answer, out = planned
    for job in answer["jobs"]:
        assert f"#SBATCH --nodes={job['nodes']}" in (out / job["name"] / "launch.sbatch").read_text()


def test_a_fault_is_one_line_with_its_job_and_field(tmp_path: Path) -> None:
    raw = yaml.safe_load(SMALL.read_text())
    raw["jobs"][1]["least_nodes"] = 5
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(raw))
    run = fleet(tmp_path, str(path))
    assert run.returncode == 2
    assert run.stderr.startswith(
        "error: jobs.1.least_nodes: 5 nodes are more than the cluster has. Allowed: 1 to 4"
    )
