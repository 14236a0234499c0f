"""The examples for launchers: each asks a real service, trains under the real framework, and reports."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from examples.cpu_training.closed_loop import TINY, problem_of
from meshwright.service.cli.demo import running_service
from meshwright_client import Client
from meshwright_client.choosing import CHOICE, Choice, read_choice
from tests.launchers.cpu_training import SCRIPTS, TORCHTITAN
from tests.processes.bounded import output_of
from tests.processes.servers import free_port
from tests.processes.warm_python import RANKS, python

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "launchers"
PATHS = f"{ROOT / 'src'}:{ROOT / 'client'}"
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service."""
    with running_service(tmp_path_factory.mktemp("served")) as (url, _log):
        yield url


def asked(folder: Path, launcher: str, batch: int) -> dict[str, Any]:
    """``problem.json`` and ``cluster.json``: two processes of this machine, and a batch of each example.

    A name of its own, for what another example measured would calibrate its answer.
    """
    problem = problem_of(TINY)
    problem["cluster"]["name"] = folder.name.replace("_", "-")
    problem["launcher"] = launcher
    problem["workload"]["global_batch_size"] = batch
    problem["search"] |= {"top_k": 1, "constraints": ["num_gpus == 2", "dp == 2"]}
    (folder / "problem.json").write_text(json.dumps(problem))
    (folder / "cluster.json").write_text(json.dumps(problem["cluster"]))
    return problem


def reported(url: str, folder: Path, printed: str) -> tuple[Choice, float]:
    """What the start has chosen, and the step time that it has reported."""
    choice = read_choice(folder / "run" / CHOICE)
    assert choice is not None
    with Client(url) as service:
        found = [one for one in service.find_plans(measured=True) if one.job_id == choice.job_id]
    assert len(found) == 1, printed
    (plan,) = found
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
    problem = asked(tmp_path, "accelerate", batch)
    # The examples train a single layer: as many tokens of the whole model would be refused as too fast.
    problem["workload"]["seq_length"] = 4
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    trainer = python(sys.executable, *RANKS, "transformers.trainer", "accelerate", "lightning.pytorch")
    torchrun = [trainer, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = {"PYTHONPATH": PATHS, "MESHWRIGHT_URL": url, "CUDA_VISIBLE_DEVICES": ""}
    printed = output_of(
        [*torchrun, str(EXAMPLES / script), "problem.json", "run"], timeout_s=PATIENCE_S, environment=paths,
        cwd=tmp_path,
    )  # fmt: skip
    choice, step_s = reported(url, tmp_path, printed)
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
            "GPUS_PER_NODE": "2",
            "TRAIN_SCRIPT": str(SCRIPTS / "torchtitan_train.py"),
        },
    )  # fmt: skip
    assert "step: 10" in told
    choice, _ = reported(url, tmp_path, told)
    assert choice.launcher == "torchtitan"


# A worker as NCCL makes them: it fails once another one of its world is gone.
ELASTIC_WORKER = """
import os, sys, time
from pathlib import Path

world, size = os.environ["WORLD_SIZE"], os.environ["MESHWRIGHT_DATA_PARALLEL_SIZE"]
with open("told", "a") as told:
    told.write(f"rank {os.environ['RANK']} of {world}, dp {size}\\n")
while not Path("done").exists():
    if world == "2" and Path("lost").exists():
        sys.exit(1)
    time.sleep(0.05)
"""


def await_workers(folder: Path, *lines: str) -> None:
    """Wait until the newest workers say that."""
    until = time.monotonic() + PATIENCE_S
    said: list[str] = []
    while sorted(said[-len(lines) :]) != list(lines):
        assert time.monotonic() < until, said
        time.sleep(0.05)
        said = (folder / "told").read_text().splitlines() if (folder / "told").exists() else []


def test_an_elastic_world_that_grows_and_shrinks_gets_a_plan_of_each_of_its_sizes(
    tmp_path: Path, url: str
) -> None:
    problem = asked(tmp_path, "accelerate", 4)
    del problem["search"]["constraints"]
    problem["search"]["pin"] |= {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    problem["cluster"]["groups"][0] |= {"gpus_per_node": 1, "island_gpus": 1}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    (tmp_path / "train.py").write_text(ELASTIC_WORKER)
    launch = [
        sys.executable,
        "-m",
        "meshwright",
        "launch",
        "--problem",
        "problem.json",
        "--save-dir",
        "run",
    ]
    meeting = f"localhost:{free_port()}"
    limits = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8"
    # PyTorch 2.13 tells a node that joins later no address of its shared store (DynamicRendezvousHandler,
    # next_rendezvous), and no world grows; this is its own way out.
    apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **apart, "PYTHONPATH": PATHS, "MESHWRIGHT_URL": url}
    agents: list[subprocess.Popen[bytes]] = []

    def started() -> None:
        words = [
            python(), "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1",
            "--max-restarts", "3", "--monitor-interval", "0.2", "--rdzv-backend", "c10d",
            "--rdzv-id", "elastic", "--rdzv-endpoint", meeting,
            "--rdzv-conf", f"{limits},is_host={int(not agents)}",
            "--no-python", *launch, "--", sys.executable, "train.py",
        ]  # fmt: skip
        agents.append(subprocess.Popen(words, cwd=tmp_path, env=environment, start_new_session=True))

    try:
        started()
        await_workers(tmp_path, "rank 0 of 1, dp 1")
        started()
        await_workers(tmp_path, "rank 0 of 2, dp 2", "rank 1 of 2, dp 2")
        stays, leaves = agents
        os.killpg(leaves.pid, signal.SIGKILL)  # its worker has a session of its own
        (tmp_path / "lost").touch()
        await_workers(tmp_path, "rank 0 of 1, dp 1")
        (tmp_path / "done").touch()
        assert stays.wait(PATIENCE_S) == 0
    finally:
        (tmp_path / "done").touch()
        for one in agents:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
