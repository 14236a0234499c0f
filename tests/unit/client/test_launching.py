"""A job that ``meshwright launch`` has started hears what its scheduler or terminal tells the launch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LAUNCH = """
import signal, sys
from dataclasses import dataclass
from meshwright_client.choosing import Choice
from meshwright_client.launching import start

@dataclass
class Config:
    tensor_parallel_size: int = 2

if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
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
