"""The rehearsal of a GPU hour: killed in the middle, resumed, whole; and CUDA's paths with a stand-in."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_hour.drawn import drawn, families
from benchmarks.gpu_hour.training import train
from benchmarks.gpu_hour.work import Journal
from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.measure.device import Device, load_torch, open_device
from meshwright.profiles.measure.layer import build_layer, measure_layer
from meshwright.profiles.measure.operators import measure_gemm
from meshwright.profiles.measure.shard import ShardGemm
from meshwright.profiles.measure.timing import QUICK, Label, timed_running
from meshwright.profiles.measured.layers import MeasuredLayers
from meshwright.profiles.measured.read import read_measured_profile
from tests.torch.test_layer import MODELS, shard_of

ROOT = Path(__file__).parents[2]


def started(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_hour", "--rehearse", "--out", str(folder)]
    return subprocess.Popen(
        [*command, "--wheels", str(folder / "none")], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": "src"}, start_new_session=True,
    )  # fmt: skip


def wait_for(folder: Path, name: str, event: str) -> None:
    deadline_s = time.monotonic() + 200
    while not any((one["item"], one["event"]) == (name, event) for one in Journal(folder).lines):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.timeout(500)
def test_a_rehearsal_that_is_killed_goes_on_and_measures_all_that_it_predicted_first(
    tmp_path: Path,
) -> None:
    first = started(tmp_path)
    wait_for(tmp_path, "train-02", "began")
    os.killpg(first.pid, signal.SIGKILL)  # supervisor and worker, as a machine that is taken away
    first.communicate()
    kept = (tmp_path / "profile-dense.json").read_bytes()
    before = Journal(tmp_path)
    second = started(tmp_path)
    printed, _ = second.communicate(timeout=400)
    assert second.returncode == 0, printed[-3000:]
    journal = Journal(tmp_path)
    assert (tmp_path / "profile-dense.json").read_bytes() == kept  # nothing was measured twice
    assert journal.lines[: len(before.lines)] == before.lines
    lines = [(one["item"], one["event"]) for one in journal.lines]
    draws = sum(one.draws for one in families(tiny=True))
    for number in range(1, draws + 1):
        name = f"train-{number:02d}"
        assert journal.found(name) is not None, journal.fault(name)
        family = journal.found(name)["result"]["draw"]["family"]  # type: ignore[index]
        assert lines.index((f"predict-{family}", "done")) < lines.index((name, "began"))
    assert f"{draws} of {draws}" in printed
    predicted = lines.index(("predict-trainers", "done"))
    for run in journal.found("trainers")["result"]["runs"]:  # type: ignore[index]
        found = journal.found(run["name"])
        assert predicted < lines.index((run["name"], "began"))
        # transformers refuses Liger's kernels, which are not installed here, and the next run goes on
        assert (found is None) == run["liger"]
        assert found is None or len(found["result"]["steps_s"]) == 2 + 2
    kinds = {run["liger"] for run in journal.found("trainers")["result"]["runs"]}  # type: ignore[index]
    assert kinds == {True, False}
    assert len([one for one in tmp_path.iterdir() if one.is_file()]) <= 8
    launches = journal.found("launches")
    assert launches is not None
    assert {one["layer"] for one in launches["result"]["layers"]} == {
        "dense/dense", "experts/moe", "lora/dense"
    }  # fmt: skip
    assert all(one["forward"] > 20 for one in launches["result"]["layers"])
    lora = MeasuredLayers.of(read_measured_profile(tmp_path / "profile-lora.json"))
    assert lora is not None
    assert lora.trains(4, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))
    assert not lora.trains(0, ())


# --------------------------------------------------------------------------------------------------
# A device that says it is a GPU, whose work the CPU does. Streams, events and statistics are a stand-in's,
# which notes what is asked of it; every other line is the one that a GPU runs.


class Event:
    def __init__(self, calls: list[str]) -> None:
        self.calls, self.at = calls, 0.0

    def record(self) -> None:
        self.calls.append("record")
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        self.calls.append("wait")

    def elapsed_time(self, end: "Event") -> float:
        return 1e3 * (end.at - self.at)


class Flush:
    nbytes = 1000

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def zero_(self) -> None:
        self.calls.append("flush")


class Pretended(Device):
    """A GPU by its kind, the CPU by its name."""

    @property
    def name(self) -> str:
        return "cpu"


class Torch:
    """torch with another ``cuda``."""

    def __init__(self, cuda: object) -> None:
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever torch has
        return getattr(load_torch(), name)


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def gpu(calls: list[str]) -> Device:
    cuda = SimpleNamespace(
        Event=lambda **_options: Event(calls), synchronize=lambda _index: calls.append("synchronize"),
        empty_cache=lambda: calls.append("release"), reset_peak_memory_stats=lambda _index: None,
        max_memory_allocated=lambda _index: 5000, max_memory_reserved=lambda _index: 6000,
    )  # fmt: skip
    return Pretended(torch=Torch(cuda), kind="cuda", index=0, dtype="bf16", flush=Flush(calls))  # type: ignore[arg-type]


def test_the_cache_is_flushed_before_the_clock_starts_and_the_clock_stops_on_the_stream(
    gpu: Device, calls: list[str]
) -> None:
    device_s, host_s = gpu.seconds_of(lambda: calls.append("run"))
    assert calls == ["flush", "record", "run", "record", "wait"]
    assert device_s >= 0.0
    assert host_s is not None


def test_steps_in_turn_are_issued_without_a_wait_between_their_marks(gpu: Device, calls: list[str]) -> None:
    steps = [lambda: calls.append("forward"), lambda: calls.append("backward")]
    forward, backward = timed_running(steps, gpu, QUICK)
    running = calls[calls.index("record") :]
    each = ["record", "forward", "record", "backward", "record"]
    assert running == [*each * QUICK.min_repeats, "synchronize"]
    assert (forward.repeats, backward.repeats) == (QUICK.min_repeats, QUICK.min_repeats)
    assert forward.host_s is not None


def test_every_pass_of_an_expert_layer_is_measured_with_grouped_products(gpu: Device) -> None:
    assert gpu.grouped_product is not None
    label = Label(task="layer", group="layer", operator="layer", shape={})
    measured = {
        one.kind: one for one in measure_layer(shard_of(MODELS["experts"]), "moe", label, gpu, QUICK)
    }
    assert measured["backward"].peak_memory_bytes == 5000 - 1000  # without the buffer that flushes
    assert all(one.timing.host_s is not None for one in measured.values())


def test_grouped_products_and_batched_ones_are_the_same_experts(gpu: Device) -> None:
    layer = build_layer(shard_of(MODELS["experts alone"]), "moe", gpu)
    assert layer.experts is not None
    x = gpu.random(64, 64)
    assert layer.experts.product is not None
    grouped = layer.experts.forward(x, layer.weights)
    batched = replace(layer.experts, product=None).forward(x, layer.weights)
    assert gpu.torch.allclose(grouped, batched, atol=0.05)


def test_all_three_grouped_products_of_experts_are_timed(gpu: Device) -> None:
    label = Label(task="gemm", group="gemm", operator="experts_up", shape={})
    measured = measure_gemm(ShardGemm(operator="up", m=16, n=32, k=64, experts=4), label, gpu, QUICK)
    assert [one.kind for one in measured] == ["forward", "input_gradient", "weight_gradient"]


def test_a_draw_is_trained_and_timed_between_events(gpu: Device) -> None:
    kinds = families(tiny=True)
    draw = next(one for one in drawn(kinds, 80e9) if one.family == "experts")
    found = train(kinds[1], draw, gpu, budget_s=0.01)
    assert (found.peak_memory_bytes, found.reserved_memory_bytes) == (4000, 5000)
    assert found.median_step_s > 0
    assert found.last_loss < found.first_loss + 0.5  # it learns, or at least does not run away


def test_a_torch_without_cuda_is_named() -> None:
    with pytest.raises(InvalidProblemError, match=r"torch 2\S+ is built without CUDA"):
        open_device("cuda", dtype="bf16")


def test_a_torch_that_was_built_for_other_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = load_torch()
    fault = "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might"

    def refuse(*_given: object, **_options: object) -> None:
        raise RuntimeError(fault)

    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda _index: None,
        "is_bf16_supported": lambda **_options: True, "get_device_name": lambda _index: "NVIDIA B300",
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(
        ProfileError, match="cannot run on NVIDIA B300: CUDA error: no kernel image is"
    ) as seen:
        open_device("cuda", dtype="bf16")
    assert "\n" not in str(seen.value)
    assert json.dumps(str(seen.value))
