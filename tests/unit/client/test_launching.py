"""What ``meshwright launch`` starts on which nodes, and that the job hears what the launch is told."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from meshwright_client.choosing import Choice
from meshwright_client.launching import LaunchError, start
from meshwright_client.nodes import Nodes
from tests.processes.servers import HANGS_S

ROOT = Path(__file__).parents[3]
LAUNCH = """
import signal, sys
from dataclasses import dataclass
from meshwright_client.choosing import Choice
from meshwright_client.launching import start

@dataclass
class Config:
    tensor_parallel_size: int = 2

signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
choice = Choice(plan_id="aaa", job_id="1", launcher="none", config=Config(), step_time_s=1.0,
                step_time_low_s=0.9, step_time_high_s=1.1, peak_memory_bytes=1, profile="", files={},
                warnings=(), question="", run_id="1", source="service")
sys.exit(start([sys.executable, "-ISuc", sys.argv[2]], choice, report=False))
"""
JOB = """
import signal, time
for one in (signal.SIGUSR1, signal.SIGHUP):
    signal.signal(one, lambda number, _: print(signal.Signals(number).name, flush=True))
print("ready")
time.sleep(60)
"""


@pytest.mark.parametrize(("how", "heard"), [("plain", ["SIGUSR1", "SIGHUP"]), ("nohup", ["SIGUSR1"])])
def test_a_signal_reaches_the_job_once_though_its_group_is_signalled(how: str, heard: list[str]) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, how, JOB], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    for name in ("SIGUSR1", "SIGHUP"):
        os.killpg(started.pid, getattr(signal, name))  # as Slurm does
        if name in heard:
            assert started.stdout.readline() == f"{name}\n"
    os.killpg(started.pid, signal.SIGTERM)
    assert started.communicate(timeout=60)[0] == ""
    assert started.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("how", ["killed", "unheard"])
def test_what_a_launch_started_is_ended_with_it(how: str, tmp_path: Path) -> None:
    """A script that starts its training as its child, as launch.sh does with torchrun."""
    job = f"""
import os, subprocess, sys, time
child = "import os, time; os.write(1, b'ready\\\\n'); time.sleep(60)"  # whole lines: both write to one pipe
started = subprocess.Popen([sys.executable, "-c", child])
open({str(tmp_path / "pid")!r}, "w").write(str(started.pid))
while started.poll() is None:
    os.write(1, b"on\\n")
    time.sleep(0.05)
"""
    launch = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "plain", job], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")}, text=True,
    )  # fmt: skip
    assert launch.stdout is not None
    assert "ready\n" in launch.stdout  # read until it comes
    if how == "killed":
        launch.kill()
    launch.stdout.close()  # as the head of ``meshwright launch | head`` does
    launch.stdout = None
    ended_by = {"killed": -signal.SIGKILL, "unheard": 128 + signal.SIGPIPE}[how]
    assert launch.communicate(timeout=HANGS_S)[1] == ""
    assert launch.returncode == ended_by
    training = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    until_s = time.monotonic() + HANGS_S
    while training.exists() and training.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_a_launch_ends_with_its_job_and_shows_what_comes_without_an_end_of_line() -> None:
    """A script that leaves a board running in the background, behind a bar that is drawn over itself."""
    job = """
import subprocess, time
print("\\r 50%", end="", flush=True)
input()
subprocess.Popen(["sleep", "30"])
"""
    started = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "plain", job], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
    )  # fmt: skip
    assert started.stdin is not None
    assert started.stdout is not None
    assert started.stdout.read(5) == b"\r 50%"  # while the job runs
    started.stdin.write(b"\n")
    started.stdin.close()
    assert started.wait(timeout=HANGS_S) == 0
    started.stdout.close()


@pytest.mark.parametrize(("rank", "count"), [(0, 4), (3, 4), (3, None)], ids=["first", "last", "of a file"])
def test_nodes_that_the_plan_does_not_need_stay_idle_and_no_command_starts_them(
    rank: int, count: int | None
) -> None:
    nodes = Nodes(source="slurm", run_id="1", rank=rank, num_nodes=count, node_rank=rank)
    with pytest.raises(LaunchError, match="is for 2 nodes, slurm has started 4"):
        start(["true"], choice_of(2), nodes=nodes)
    if rank:
        assert start([], choice_of(2), nodes=nodes) == 0


@pytest.mark.parametrize("source", ["torchelastic", "slurm", "cluster.json"])
def test_no_worker_of_torchrun_starts_the_plans_own_script(source: str) -> None:
    nodes = Nodes(source=source, run_id="1", rank=0, num_nodes=2, gpus_per_node=8, world=16)
    with pytest.raises(LaunchError, match="torchrun has started this"):
        start([], choice_of(2), nodes=nodes)


def test_a_node_of_fewer_gpus_than_the_plan_is_refused_and_told_to_a_command_of_ones_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    nodes = Nodes(source="slurm", run_id="1", rank=0, num_nodes=2, node_rank=0, gpus_per_node=4)
    says = "plan aaa is for nodes of 8 GPUs, slurm tells 4 of this one; state the problem's cluster with 4"
    choice = replace(choice_of(2), config=Sizes())  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=says):
        start([], choice, nodes=nodes)
    assert start(["true"], choice, nodes=nodes, report=False) == 0
    assert says in capfd.readouterr().err
    assert start(["true"], choice, nodes=replace(nodes, gpus_per_node=8), report=False) == 0
    assert "GPUs" not in capfd.readouterr().err


@dataclass
class Sizes:
    """A layout of which a command asks for one size."""

    tensor_parallel_size: int = 2


def choice_of(num_nodes: int) -> Choice:
    """A choice whose files want so many nodes of eight GPUs."""
    asked = f"#SBATCH --nodes={num_nodes}\n#SBATCH --gpus-per-node=8\n"
    return Choice(
        plan_id="aaa", job_id="1", launcher="none", config=None, step_time_s=1.0,  # type: ignore[arg-type]
        step_time_low_s=0.9, step_time_high_s=1.1, peak_memory_bytes=1, profile="", warnings=(),
        question="", run_id="1", source="service",
        files={"launch.sh": "", "launch.sbatch": asked},
    )  # fmt: skip
