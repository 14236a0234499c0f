"""What the log of a running job tells its reporter, line by line as frameworks write them."""

import socket
import time
from typing import Any

import pytest

from meshwright.profiles.importers.run_logs import OUT_OF_MEMORY
from meshwright_client import Client
from meshwright_client.reporting import _OUT_OF_MEMORY, GIB, MIB, LogTail, Reporter
from tests.processes.pace import work_s

# torchtitan 0.2.2, components/metrics.py, as a terminal gets it
TITAN = (
    "[rank0]:[titan] 2026-01-01 10:00:00,000 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  6.1  "
    "\x1b[38;2;180;60;0mgrad_norm:  0.5  \x1b[38;2;54;234;195mmemory:  1.50GiB(1.88%)  "
    "\x1b[34mtps: 1,000\x1b[39m"
)
MEGATRON = (
    " iteration {step:8}/ 10 | consumed samples: 8 | elapsed time per iteration (ms): 250.0 | lm loss: 2.0"
)


def read(*lines: str, pause_s: float = 0.0) -> Reporter:
    """The reporter of a log; it has nobody to tell."""
    reporter = Reporter("aaa", run_id="1", url="http://127.0.0.1:9", warm_up=0, steps=1000)
    tail = LogTail(reporter)
    for line in lines:
        tail.line(line)
        time.sleep(pause_s)
    return reporter


def test_steps_and_memory_of_torchtitan_are_read_through_its_colours() -> None:
    found = read(*(TITAN.format(step=step) for step in (1, 2, 4)), pause_s=0.02)
    assert len(found.seconds) == 2  # from 1 to 2; from 2 to 4, shared by both steps
    assert found.seconds[0] >= 0.02
    assert found.seconds[1] >= 0.01
    assert found.peak_memory_bytes == int(1.5 * GIB)
    assert found.memory_kind == "reserved"


def test_steps_of_megatron_lm_are_as_it_timed_them_and_counted_on_one_rank() -> None:
    lines = [MEGATRON.format(step=step) for step in range(1, 5)]
    memory = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 9000.0 | max allocated: 12288.0"
    found = read(*lines, memory)
    assert found.measured() == {
        "step_time_s": 0.25, "peak_memory_bytes": 12288 * MIB, "memory_kind": "allocated",
        "memory_rank": "unknown",
    }  # fmt: skip
    twice = read(*(f"[{rank}]:{line}" for line in lines for rank in ("rank0", "rank1")))
    assert len(twice.seconds) == 4


def test_lines_that_only_look_like_steps_are_none() -> None:
    assert read("footsteps: 3", "warmup_steps: 12", "loss 2.0", "step: many").seconds == []


def test_steps_of_nanotron_are_as_it_timed_them() -> None:
    line = "[INFO|DP=0]: iteration: {} / 90 | consumed_tokens: 8K | {}time_per_iteration_ms: {} | loss: 2"
    found = read(line.format(1, "", "1.27K"), line.format(2, "elapsed_", "850"), line.format(3, "", "1.5M"))
    assert found.seconds == [1.27, 0.85, 1500.0]


def test_steps_of_trainers_on_transformers_are_counted_by_their_bar() -> None:
    bars = "\r  1%|1    | {}/90 [00:02<03:04, 2.07s/it]\r  2%|1    | {}/90 [00:04<03:04, 2.1s/it]\r{}\r"
    logged = "{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}"
    lines = [bars.format(step - 1, step, " " * 40) + logged for step in (2, 4)]
    found = read("\rMap: 100%|####| 52/52 [00:01<00:00, 50 examples/s]", *lines, logged, pause_s=0.02)
    (second,) = found.seconds  # steps 3 and 4 shared the time between both lines
    assert second >= 0.01


def test_a_bar_of_a_million_characters_in_one_line_does_not_hold_up_the_job() -> None:
    bar = "\rMap:  50%|##   | 26/52 [00:01<00:01, 50 examples/s]"
    began_s = work_s()
    assert read(bar * 20_000).seconds == []
    assert work_s() - began_s < 5.0  # a tenth of a second; by the square of its length, hours


def test_steps_of_ms_swift_are_counted_as_it_numbers_them() -> None:
    old = "{{'loss': 1.5, 'global_step/max_steps': '{}/90', 'percentage': '1%'}}"
    new = "{{'loss': 1.5, 'iteration': '{}/90', 'elapsed_time': '2s'}}"
    for form in (old, new):
        assert len(read(*(form.format(step) for step in (1, 2, 3)), pause_s=0.01).seconds) == 2


def test_a_report_that_gets_no_answer_is_said_to_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        reporter = Reporter("aaa", run_id="1", url=url, warm_up=0)
        for _ in range(3):
            reporter.step(0.5)
        reporter.close(timeout_s=0.1)
    assert str(reporter.fault) == f"no answer of {url} within 0.1 s"
    assert "the step time was not reported" in caplog.text


def test_a_run_that_runs_out_of_memory_behind_its_report_tells_that_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both under keys of their own, each once: the service takes a key for one measurement."""
    told: list[tuple[str, dict[str, Any]]] = []

    def measure(_: Client, plan_id: str, body: dict[str, Any], *, idempotency_key: str) -> None:
        if plan_id == "of this test":
            told.append((idempotency_key, body))

    monkeypatch.setattr(Client, "measure", measure)
    reporter = Reporter("of this test", run_id="1", url="http://127.0.0.1:9", warm_up=0, steps=3)
    tail = LogTail(reporter)
    timed = [MEGATRON.format(step=step) for step in (1, 2, 3)]
    for line in (*timed, *["torch.OutOfMemoryError: CUDA"] * 2):
        tail.line(line)
    reporter.close()
    assert sorted(str(body) for _, body in told) == ["{'out_of_memory': True}", "{'step_time_s': 0.25}"]
    assert len({key for key, _ in told}) == 2


@pytest.mark.parametrize(
    ("line", "ran_out"),
    [
        ("12: [rank12]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("[rank3]: torch.AcceleratorError: CUDA error: out of memory", True),
        ("RuntimeError: Triton Error [CUDA]: out of memory", True),
        ("n1:7:9 [0] alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("srun: error: node02: task 12: Out Of Memory", False),  # the host's, which says nothing of the GPU
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", False),
    ],
)
def test_a_gpu_out_of_memory_is_told_from_a_host(line: str, ran_out: bool) -> None:
    assert bool(_OUT_OF_MEMORY.search(line)) is ran_out
    assert _OUT_OF_MEMORY.pattern == OUT_OF_MEMORY.pattern  # of the product, which the client does without
