"""torchtitan's logs: colours, interleaved ranks, meshes, memory."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.torchtitan_log import TORCHTITAN_LOG
from meshwright.profiles.units import GIB

LOGS = Path(__file__).parents[1] / "fixtures" / "importers" / "logs"


def written(folder: Path, text: str) -> Path:
    path = folder / "run.log"
    path.write_text(text)
    return path


def test_torchtitan_in_colour_from_two_ranks_counts_each_step_once() -> None:
    run = TORCHTITAN_LOG.read(LOGS / "torchtitan.log")
    # rank 1 logs first: 16 · 8192 tokens / (4095 tokens/s · 16 GPUs) = 2.0005 s
    assert run.step_time_s == pytest.approx(2.0, rel=1e-3)
    assert run.num_steps == 90  # 11 lines, 10 steps apart, less the first two
    assert run.tokens_per_s_per_gpu == pytest.approx(4096, abs=1)


def test_torchtitan_memory_is_what_the_worst_rank_reserved_in_training() -> None:
    run = TORCHTITAN_LOG.read(LOGS / "torchtitan.log")
    assert run.peak_reserved_bytes == round(62.25 * GIB)
    assert (run.peak_allocated_bytes, run.num_memory_ranks) == (None, 2)


def test_torchtitan_mesh_and_batch_become_the_configuration() -> None:
    run = TORCHTITAN_LOG.read(LOGS / "torchtitan.log")
    assert dict(run.configuration) == {
        "tensor_parallel_size": 2,
        "data_parallel_size": 8,
        "num_gpus": 16,
        "global_batch_size": 16,
        "seq_length": 8192,
    }


def test_torchtitan_newer_mesh_line_is_read_too(tmp_path: Path) -> None:
    text = (LOGS / "torchtitan.log").read_text()
    new = "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=2, ep=4, etp=1"
    text = text.replace("Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]", new)
    run = TORCHTITAN_LOG.read(written(tmp_path, text))
    assert (run.configuration["num_gpus"], run.configuration["data_parallel_size"]) == (16, 8)
    assert run.configuration["expert_parallel_size"] == 4


def test_torchtitan_without_sizes_takes_the_times_of_the_lines() -> None:
    run = TORCHTITAN_LOG.read(LOGS / "torchtitan_no_sizes.log")
    assert run.step_time_s == pytest.approx(3.0)


def test_a_torchtitan_step_without_throughput_is_refused(tmp_path: Path) -> None:
    text = (LOGS / "torchtitan_no_sizes.log").read_text().replace("tps: 7,282", "tps: ")
    with pytest.raises(ProfileError, match=r'line 2: expected "memory: …GiB" and "tps: …"'):
        TORCHTITAN_LOG.read(written(tmp_path, text))
