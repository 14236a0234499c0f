"""``meshwright profile`` on a CPU, alone and under torchrun with gloo."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from meshwright.profiles.measure.collectives import COLLECTIVES, QUICK_PAYLOADS
from meshwright.profiles.measured.profile import MeasuredProfile
from meshwright.profiles.measured.read import read_measured_profile
from meshwright.profiles.model_shapes import model_to_mapping
from tests.problems.measured_profiles import TINY
from tests.processes.warm_python import python

ROOT = Path(__file__).parents[2]
COMMAND = ["-m", "meshwright.service.cli.main"]
QUESTION = {"--seq-length": "32", "--device": "cpu"}
# Ctrl-C as the first task is done, written and told: typed by the test it might come after the last.
INTERRUPTED = """
import os, signal
from meshwright.service.cli import main, profile
say = profile._say
def interrupted(line):
    say(line)
    if profile._say is interrupted:
        profile._say = say
        os.kill(os.getpid(), signal.SIGINT)
profile._say = interrupted
main.main()
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "tiny.json").write_text(json.dumps(model_to_mapping(TINY)))
    return tmp_path / "p.json"


def start(
    out: Path, *options: str, ranks: int = 1, command: Sequence[str] = COMMAND
) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    launcher = torchrun if ranks > 1 else []
    model = ["--model", str(out.with_name("tiny.json")), "--out", str(out)]
    question = [word for name, value in QUESTION.items() if name not in options for word in (name, value)]
    words = [*launcher, *command, "profile", "--quick", *question, *model, *options]
    return subprocess.Popen(
        [python(sys.executable, "torch.distributed.run", "meshwright.service.cli.profile"), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def profiled(out: Path, *options: str, ranks: int = 1) -> tuple[int, str, str]:
    process = start(out, *options, ranks=ranks)
    stdout, stderr = process.communicate(timeout=100)
    return process.returncode, stdout, stderr


def tasks_of(profile: MeasuredProfile, group: str) -> list[str]:
    return [task for task in profile.completed if task.startswith(f"{group}/")]


def test_one_process_measures_everything_but_collectives_and_says_so(out: Path) -> None:
    code, stdout, stderr = profiled(out, "--tp", "1,2", "--micro-batch", "1,2")
    assert code == 0, stderr
    profile = read_measured_profile(out)
    # 4 shards: 5 products (qkv, out, up, down, head), 1 attention, 5 operators, 1 layer with 2 ends each
    counts = {
        group: len(tasks_of(profile, group)) for group in ("gemm", "attention", "memory_bound", "layer")
    }
    assert counts == {"gemm": 20, "attention": 4, "memory_bound": 20, "layer": 12}
    assert "collectives: skipped. To measure them" in stderr
    assert "56 of 56 measured" in stdout
    assert stdout.count("dense_layer") == 4
    assert profile.machine.kind == "cpu"
    assert profile.machine.threads == 1
    assert profile.sessions[0].command.startswith("meshwright profile")
    forward = profile.find("layer", "dense_layer", tensor_parallel_size=2, micro_batch_size=2)
    assert len(forward) == 1
    assert forward[0].activation_bytes


def test_a_second_start_measures_only_what_is_new(out: Path) -> None:
    assert profiled(out, "--only", "attention")[0] == 0
    first = read_measured_profile(out)
    code, stdout, stderr = profiled(out, "--only", "attention,layer")
    second = read_measured_profile(out)
    assert code == 0
    assert "attention/attention" not in stderr
    assert second.measurements[: len(first.measurements)] == first.measurements
    ends = ("layer/embedding/tp1/mbs1", "layer/head/tp1/mbs1")
    assert second.completed == ("attention/attention/tp1/mbs1", "layer/dense_layer/tp1/mbs1", *ends)
    assert len(second.sessions) == 2
    assert "4 of 4 measured" in stdout


def test_an_interrupted_start_keeps_what_it_measured_and_the_next_goes_on(out: Path) -> None:
    options = ("--only", "gemm,layer", "--tp", "1,2", "--micro-batch", "1,2")
    process = start(out, *options, command=["-c", INTERRUPTED])
    stderr = process.communicate()[1]
    assert process.returncode == 130, stderr
    assert stderr.endswith(
        "interrupted: finished measurements are saved. To continue, run the same command\n"
    )
    kept = read_measured_profile(out)
    assert 1 <= len(kept.completed) < 32
    code, stdout, _ = profiled(out, *options)
    # 4 shards of 5 products, 1 layer and the model's 2 ends
    assert (code, "32 of 32 measured" in stdout) == (0, True)
    after = read_measured_profile(out)
    assert len(after.completed) == len(set(after.completed)) == 32
    assert after.measurements[: len(kept.measurements)] == kept.measurements


def test_a_start_whose_time_is_up_says_so(out: Path) -> None:
    code, stdout, _ = profiled(out, "--budget-s", "0.001")
    assert code == 0
    assert stdout.endswith(". Time is up: to continue, run the same command\n")
    assert read_measured_profile(out).completed == ()


def test_what_does_not_fit_into_memory_is_skipped_and_named(out: Path) -> None:
    # 2^24 tokens of 2^16 sequences: each activation of the tiny model takes 128 TiB
    sizes = ("--seq-length", str(2**24), "--micro-batch", str(2**16))
    code, stdout, stderr = profiled(out, "--only", "gemm", *sizes)
    assert code == 0
    assert "gemm/qkv/tp1/mbs65536: skipped, not enough memory" in stderr
    assert "0 of 5 measured" in stdout
    assert stdout.endswith("; 5 skipped for lack of memory\n")
    profile = read_measured_profile(out)
    assert (profile.completed, {one.reason for one in profile.skipped}) == ((), {"not enough memory"})


def test_other_measurements_are_refused_with_a_tip(out: Path) -> None:
    assert profiled(out, "--only", "attention")[0] == 0
    before = out.read_bytes()
    code, stdout, stderr = profiled(out, "--only", "attention", "--dtype", "fp32")
    assert (code, stdout) == (2, "")
    odds = "dtype: fp32 here, bf16 there"
    said, tip = stderr.splitlines()
    assert said == f"error: --out: p.json has other measurements ({odds}). Choose another file"
    assert tip == "tip: meshwright profile --help"
    assert out.read_bytes() == before


def test_a_device_that_is_not_there_is_refused(out: Path) -> None:
    code, _, stderr = profiled(out, "--device", "cuda")
    assert code == 2
    built = f"torch {version('torch')}"  # the CPU build of CI, or one for a GPU on a machine without one
    why = ("is built without CUDA", "sees no CUDA device here")
    said, tip = stderr.splitlines()
    assert said in {f"error: --device: {built} {one}. Nearest: cpu" for one in why}
    assert tip.startswith("tip: meshwright profile ")
    assert tip.endswith("--device cpu")


def test_two_processes_measure_every_collective_together(out: Path) -> None:
    code, stdout, stderr = profiled(out, "--only", "collectives,attention", ranks=2)
    assert code == 0, stderr
    profile = read_measured_profile(out)
    names = [f"collectives/{name}/2x1/{size}" for name in COLLECTIVES for size in QUICK_PAYLOADS]
    assert list(profile.completed) == [*names, "attention/attention/tp1/mbs1"]
    assert stdout.count("16 of 16 measured") == 1  # one process speaks for both
    reduced = profile.find("collectives", "all_reduce", ranks=2, payload_bytes=2**20)[0]
    gathered = profile.find("collectives", "all_gather", ranks=2, payload_bytes=2**20)[0]
    # of 2 ranks each sends 2 · 1/2 of the payload in an all-reduce, 1/2 in an all-gather
    assert (reduced.moved_bytes, gathered.moved_bytes) == (2**20, 2**19)


def test_two_processes_that_may_not_use_the_file_both_end(out: Path) -> None:
    out.write_text("{}")
    code, _, stderr = profiled(out, "--only", "collectives", ranks=2)
    assert code != 0
    assert stderr.count("error: p.json is not a measured profile") == 1
    assert out.read_text() == "{}"
