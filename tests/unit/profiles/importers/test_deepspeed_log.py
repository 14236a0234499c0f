"""DeepSpeed's logs: samples a second, older running means, peaks of memory."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.deepspeed_log import DEEPSPEED_LOG
from meshwright.profiles.units import GIB

LOGS = Path(__file__).parents[1] / "fixtures" / "importers" / "logs"


def written(folder: Path, text: str) -> Path:
    path = folder / "run.log"
    path.write_text(text)
    return path


def test_deepspeed_step_time_is_batch_over_samples_a_second() -> None:
    run = DEEPSPEED_LOG.read(LOGS / "deepspeed.log")
    # 256 sequences at 32 a second; the two lines of warm-up ran at 12
    assert run.step_time_s == pytest.approx(8.0)
    assert run.peak_allocated_bytes == round(58.5 * GIB)
    assert run.configuration["zero_stage"] == 3
    assert run.configuration["num_microbatches"] == 4


def test_what_was_reserved_before_the_peak_is_no_peak() -> None:
    # see_memory_usage printed Max_CA 44 GB before training, which then allocated 58.5 GB
    assert DEEPSPEED_LOG.read(LOGS / "deepspeed.log").peak_reserved_bytes is None


def test_old_deepspeed_logs_a_running_mean_so_the_times_of_the_lines_count() -> None:
    run = DEEPSPEED_LOG.read(LOGS / "deepspeed_old.log")
    assert run.step_time_s == pytest.approx(1.0)  # ten steps each ten seconds
    assert run.peak_allocated_bytes == round(9.02 * GIB)


def test_a_deepspeed_step_with_a_broken_figure_is_refused(tmp_path: Path) -> None:
    text = (LOGS / "deepspeed.log").read_text().replace("MaxMemAllocated=58.5GB", "MaxMemAllocated=58.5MB")
    with pytest.raises(ProfileError, match=r'expected "MaxMemAllocated=…GB"'):
        DEEPSPEED_LOG.read(written(tmp_path, text))
