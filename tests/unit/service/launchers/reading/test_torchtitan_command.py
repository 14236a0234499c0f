"""Flags of a torchtitan command count before the file that it names."""

import pytest

from profiles.errors import InvalidProblemError
from service.launchers.reading.base import LaunchFile, Source
from service.launchers.reading.registry import read_launch_files
from service.launchers.registry import export
from tests.launcher_plans import CASES

FOUND = CASES["torchtitan"]["llama-3.1-70b-fsdp"]


def read(flags: str) -> LaunchFile:
    files = export(FOUND.plan, FOUND.problem, "torchtitan").files
    script = files["launch.sh"].replace('"${program[@]}"', f'"${{program[@]}}" {flags}')
    files = {**files, "launch.sh": script}
    return read_launch_files(Source(name="launch.sh", text=script, files=files))


def test_a_flag_replaces_the_files_value_and_is_noted() -> None:
    plain, found = read(""), read("--training.seq_len=2048 activation-checkpoint:full")
    assert (plain.workload.seq_length, found.workload.seq_length) == (8192, 2048)
    assert found.configuration.recompute_granularity == "full"
    assert found.configuration.data_parallel_size == plain.configuration.data_parallel_size
    assert any("training.seq_len is 2048, not the file's" in note for note in found.notes)
    assert plain.notes == ()


def test_a_flag_that_contradicts_the_run_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidProblemError, match=r'training.seq_len: line \d+: "long" is no whole number'):
        read("--training.seq_len long")
