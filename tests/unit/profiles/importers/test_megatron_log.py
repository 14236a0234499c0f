"""Megatron-LM's logs: median after warm-up, restarts, batches that grow, memory of the worst rank."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.megatron_log import MEGATRON_LOG
from meshwright.profiles.units import MIB

LOGS = Path(__file__).parents[1] / "fixtures" / "importers" / "logs"


def iteration(number: int, milliseconds: float, batch: int = 8) -> str:
    return (
        f" iteration {number:8d}/     100 | consumed samples: 8 | elapsed time per iteration (ms): "
        f"{milliseconds:.1f} | global batch size: {batch:5d} | lm loss: 1.0E+00 |\n"
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "run.log"
    path.write_text(text)
    return path


def test_megatron_step_time_is_the_median_after_the_warm_up_of_each_start() -> None:
    run = MEGATRON_LOG.read(LOGS / "megatron_lm.log")
    # kept: 8 lines of 7960 … 8040 ms after the first 2, and 6 of 8010 … 8030 ms after the restart's 2
    assert run.framework == "megatron-lm"
    assert run.step_time_s == pytest.approx(8.015)
    # 14 sorted times: the 10th percentile lies at index 1.3, the 90th at 11.7
    assert run.step_time_low_s == pytest.approx(7.966)
    assert run.step_time_high_s == pytest.approx(8.037)
    assert run.num_steps == 14


def test_megatron_memory_is_the_worst_rank_in_mebibytes() -> None:
    run = MEGATRON_LOG.read(LOGS / "megatron_lm.log")
    assert run.peak_allocated_bytes == round(61000.5 * MIB)
    assert run.peak_reserved_bytes == round(63000.5 * MIB)
    assert run.num_memory_ranks == 2


def test_megatron_arguments_become_glossary_names() -> None:
    run = MEGATRON_LOG.read(LOGS / "megatron_lm.log")
    expected = {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "virtual_pipeline_size": 5,
        "data_parallel_size": 4,
        "num_gpus": 64,
        "global_batch_size": 128,
        "micro_batch_size": 1,
        "seq_length": 4096,
    }
    assert expected.items() <= dict(run.configuration).items()
    assert "num_experts" not in run.configuration  # None in the log
    # 128 · 4096 tokens in 8.015 s on 64 GPUs: 1022.1 a second and GPU
    assert run.tokens_per_s_per_gpu == pytest.approx(1022.08, abs=0.01)


def test_megatron_deepspeed_counts_seconds_and_lines_of_ten_steps() -> None:
    run = MEGATRON_LOG.read(LOGS / "megatron_deepspeed.log")
    assert (run.framework, run.step_time_s, run.num_steps) == ("megatron-deepspeed", 12.5, 50)
    assert run.flops_per_s_per_gpu == pytest.approx(120e12)  # 1500 / 12.5 TFLOP/s


def test_a_run_that_ran_out_of_memory_has_no_step_time() -> None:
    run = MEGATRON_LOG.read(LOGS / "megatron_out_of_memory.log")
    assert run.out_of_memory
    assert run.step_time_s is None
    assert run.configuration["tensor_parallel_size"] == 8


def test_a_log_is_megatron_s_by_its_steps_or_by_its_arguments_and_the_end_of_its_memory() -> None:
    arguments, end = (
        "  model_parallel_size ............ 1\n",
        "CUDA out of memory. Tried to allocate 2 GiB\n",
    )

    def recognised(text: str) -> bool:
        return MEGATRON_LOG.looks_like(ForeignFile(name="run.log", text=text))

    assert recognised(arguments + end)
    assert recognised(iteration(1, 100.0))
    assert not recognised(arguments)
    assert not recognised(end)


def test_steps_of_a_smaller_batch_before_the_last_one_are_left_out(tmp_path: Path) -> None:
    ramp = "".join(iteration(n, 100.0, batch=4) for n in range(1, 9))
    full = "".join(iteration(n, 200.0, batch=8) for n in range(9, 13))
    run = MEGATRON_LOG.read(written(tmp_path, ramp + full))
    assert (run.step_time_s, run.num_steps) == (0.2, 4)
    assert run.configuration["global_batch_size"] == 8


def test_a_long_log_drops_a_tenth_of_its_lines_and_five_at_most(tmp_path: Path) -> None:
    for logged, dropped in ((20, 2), (40, 4), (90, 5)):
        text = "".join(iteration(n, 100.0) for n in range(1, logged + 1))
        assert MEGATRON_LOG.read(written(tmp_path, text)).num_steps == logged - dropped


def test_a_number_that_falls_is_a_restart_even_without_a_mark(tmp_path: Path) -> None:
    first = "".join(iteration(n, 100.0) for n in range(1, 11))
    again = "".join(iteration(n, 900.0 if n < 8 else 100.0) for n in range(6, 16))
    run = MEGATRON_LOG.read(written(tmp_path, first + again))
    assert (run.step_time_s, run.step_time_high_s) == (0.1, 0.1)
    assert run.num_steps == 8 + 8


def test_a_last_line_without_an_end_is_a_job_that_was_killed(tmp_path: Path) -> None:
    text = "".join(iteration(n, 100.0) for n in range(1, 6))
    cut = text + " iteration        6/     100 | consumed samples: 8 | elapsed ti"
    assert MEGATRON_LOG.read(written(tmp_path, cut)).num_steps == 3
    with pytest.raises(ProfileError, match=r'run.log: line 6: expected "elapsed time per iteration"'):
        MEGATRON_LOG.read(written(tmp_path, cut + "\n"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("(ms)", "(min)", 'line 1: expected "elapsed time per iteration" in (ms) or (s)'),
        ("100.0", "nan", "line 1, elapsed time per iteration (ms): 'nan' is not a number"),
        ("100.0", "0.0", "is out of range"),
        ("size:     8", "size:  many", "line 1, global batch size: 'many' is not a whole number"),
    ],
)
def test_a_broken_megatron_log_names_the_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = "".join(iteration(n, 100.0) for n in range(1, 6)).replace(old, new)
    with pytest.raises(ProfileError, match=r"^run.log: ") as raised:
        MEGATRON_LOG.read(written(tmp_path, text))
    assert expected in str(raised.value)


def test_too_few_steps_are_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="more than 2 after a start"):
        MEGATRON_LOG.read(written(tmp_path, iteration(1, 100.0) + iteration(2, 100.0)))


def test_the_batch_size_of_the_last_step_counts_when_it_ramps_up_until_the_end(tmp_path: Path) -> None:
    ramp = "".join(iteration(n, 100.0) for n in range(1, 7))
    run = MEGATRON_LOG.read(written(tmp_path, ramp + iteration(7, 190.0, batch=16)))
    assert (run.configuration["global_batch_size"], run.step_time_s, run.num_steps) == (16, 0.19, 1)


@pytest.mark.parametrize("memory", ["(MB) | allocated: 9000.0 |", "(KB) | max allocated: 12288.0 |"])
def test_megatron_memory_needs_a_peak_in_a_known_unit(tmp_path: Path, memory: str) -> None:
    steps = "".join(iteration(n, 100.0) for n in range(1, 6))
    line = f"[Rank 0] (after 1 iterations) memory {memory} reserved: 62000.5\n"
    with pytest.raises(ProfileError, match=r'line 6: expected "max allocated: …" in MB or GB'):
        MEGATRON_LOG.read(written(tmp_path, steps + line))
