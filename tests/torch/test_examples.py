"""The examples for launchers: each asks a real service, trains under the real framework, and reports."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.cpu_training.closed_loop import TINY, problem_of
from meshwright.service.cli.demo import running_service
from meshwright_client import Client
from meshwright_client.choosing import CHOICE, Choice, read_choice
from tests.launchers.cpu_training import SCRIPTS, TORCHTITAN
from tests.processes.bounded import output_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "launchers"
PATHS = f"{ROOT / 'src'}:{ROOT / 'client'}"
PATIENCE_S = 300.0


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A service of its own: what another example measured on this CPU would calibrate its answer."""
    served = tmp_path / "served"
    served.mkdir()
    with running_service(served) as (url, _log):
        yield url


def asked(folder: Path, launcher: str, batch: int) -> dict[str, Any]:
    """``problem.json`` and ``cluster.json``: two processes of this machine, and a batch of each example."""
    problem = problem_of(TINY)
    problem["launcher"] = launcher
    problem["workload"]["global_batch_size"] = batch
    problem["search"] |= {"top_k": 1, "constraints": ["num_gpus == 2", "dp == 2"]}
    (folder / "problem.json").write_text(json.dumps(problem))
    (folder / "cluster.json").write_text(json.dumps(problem["cluster"]))
    return problem


def reported(url: str, folder: Path) -> tuple[Choice, float]:
    """What the start has chosen, and the step time that it has told."""
    choice = read_choice(folder / "run" / CHOICE)
    assert choice is not None
    with Client(url) as service:
        (plan,) = [one for one in service.find_plans(measured=True) if one.job_id == choice.job_id]
    assert plan.plan_id == choice.plan_id
    assert plan.measured is not None
    assert plan.measured.step_time_s
    return choice, plan.measured.step_time_s


@pytest.mark.parametrize(
    ("script", "batch"),
    [("transformers_trainer.py", 8), ("accelerate_train.py", 16), ("lightning_train.py", 32)],
)
def test_trainers_start_with_a_plan_and_tell_what_their_steps_take(
    tmp_path: Path, url: str, script: str, batch: int
) -> None:
    asked(tmp_path, "accelerate", batch)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = {"PYTHONPATH": PATHS, "MESHWRIGHT_URL": url, "CUDA_VISIBLE_DEVICES": ""}
    output_of(
        [*torchrun, str(EXAMPLES / script), "problem.json", "run"], timeout_s=PATIENCE_S, environment=paths,
        cwd=tmp_path,
    )  # fmt: skip
    choice, step_s = reported(url, tmp_path)
    assert (
        choice.config.data_parallel_size * choice.config.micro_batch_size * choice.config.num_microbatches
        == batch
    )
    assert 0.0 < step_s < PATIENCE_S


def test_torchtitan_is_started_by_its_example_trains_and_is_reported(tmp_path: Path, url: str) -> None:
    asked(tmp_path, "torchtitan", 4)
    own = TORCHTITAN.variables(tmp_path)
    program = tmp_path / "bin" / "meshwright"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m meshwright "$@"\n')
    program.chmod(0o755)
    told = output_of(
        ["bash", str(EXAMPLES / "torchtitan.sh"), "--training.steps", "10"], timeout_s=PATIENCE_S,
        cwd=tmp_path,
        environment={
            **own, "PYTHONPATH": f"{PATHS}:{own['PYTHONPATH']}", "MESHWRIGHT_URL": url,
            "GPUS_PER_NODE": "2", "TORCHTITAN_VERSION": "0.2",
            "TRAIN_SCRIPT": str(SCRIPTS / "torchtitan_train.py"),
        },
    )  # fmt: skip
    assert "step: 10" in told
    choice, _ = reported(url, tmp_path)
    assert choice.launcher == "torchtitan"
