"""A batch that grows: written for Megatron-LM, refused where a batch is not whole, read back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.profile import default_profile
from meshwright.service.launchers.megatron_flags import linear_ramp
from meshwright.service.launchers.megatron_lm import MegatronLm
from meshwright.service.launchers.reading.base import Source
from meshwright.service.launchers.reading.registry import read_launch_files
from meshwright.service.launchers.target import Target
from meshwright.service.requests.launch_files import own_of_files, ramp_notes
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predicted
from tests.launcher_cases import LLAMA_70B, target

# 8 replicas of one sequence a micro-batch; 64 sequences in the end
CONFIG = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, data_parallel_size=8, num_microbatches=8,
    stage_layers=(80,),
)  # fmt: skip


def source_of(files: dict[str, str]) -> Source:
    return Source(name="launch.sh", text=files["launch.sh"], files=files)


def ramped(*ramp: tuple[int, int]) -> Target:
    found = target(LLAMA_70B, CONFIG, seq_length=8192)
    options = replace(found.problem.options, batch_ramp=ramp)
    return replace(found, problem=replace(found.problem, options=options))


def test_every_batch_is_written_with_the_tokens_from_which_it_holds() -> None:
    bundle = MegatronLm().export(ramped((16, 8192 * 1000), (32, 8192 * 3000)))
    arguments = bundle.files["megatron_args.sh"]
    assert "--step-batch-size-schedule '0:16 8192000:32 24576000:64'" in arguments
    assert "--global-batch-size" not in arguments.partition("MEGATRON_ARGS=")[2]
    assert any("needs Megatron-LM 0.19" in warning for warning in bundle.warnings)


def test_a_ramp_of_equal_steps_names_the_flag_of_older_versions() -> None:
    # 16, 32, 48, 64: each but the last for 1000 sequences of 8192 tokens
    ramp = tuple((batch, 8192 * 1000 * number) for number, batch in enumerate((16, 32, 48), start=1))
    warnings = MegatronLm().export(ramped(*ramp)).warnings
    assert any("--global-batch-size 64 --rampup-batch-size 16 16 3000" in warning for warning in warnings)


def test_unequal_steps_are_no_linear_ramp() -> None:
    assert linear_ramp([(0, 16), (8192, 32), (16384, 64)], 8192) is None
    assert linear_ramp([(0, 16), (8192, 32), (24576, 48)], 8192) is None
    assert linear_ramp([(0, 16), (8192, 32), (16384, 48)], 8192) == (16, 16, 2)


def test_a_batch_that_replicas_do_not_divide_is_refused() -> None:
    with pytest.raises(RefusedExportError, match="does not divide the ramp's batch 20"):
        MegatronLm().export(ramped((20, 8192 * 1000)))


def test_the_last_batch_is_read_back_and_the_growth_is_noted() -> None:
    ramp = ((16, 8192 * 1000), (32, 8192 * 3000))
    files = MegatronLm().export(ramped(*ramp)).files
    found = read_launch_files(source_of(files))
    assert found.configuration == CONFIG
    assert found.workload.global_batch_size == 64
    assert found.batch_ramp == ramp
    assert "the batch grows from 16 to 64: time and memory are those of 64" in found.notes


def test_every_earlier_batch_is_priced_with_its_steps() -> None:
    files = MegatronLm().export(ramped((16, 8192 * 16 * 1000), (32, 8192 * 16 * 3000))).files
    own = own_of_files({"cluster": {"name": "dgx-h100"}}, source_of(files))
    profile = default_profile(own.problem.cluster, "megatron-lm")
    first, second = ramp_notes(own, profile)
    # 16 sequences of 8192 tokens a step: 1000 steps; then 2000 * 16 / 32 = 1000 steps of 32
    assert first.startswith("until 131,072,000 tokens the batch is 16: 1,000 steps of ")
    assert second.startswith("until 393,216,000 tokens the batch is 32: 1,000 steps of ")
    times = [float(note.split()[-2]) for note in (first, second)]
    last = predicted(own.problem, profile, own.configuration).step_time_s
    assert times[0] < times[1] < last < 4 * times[0]


@pytest.mark.parametrize(
    "text", ["", "16", "1:16 2:32", "0:16 0:32", "0:x", "0:0", "0:16 1Q:32", "0:" + "9" * 99, "0:20 1B:64"]
)
def test_a_schedule_that_is_none_is_refused(text: str) -> None:
    files = MegatronLm().export(ramped((16, 8192 * 1000))).files
    arguments = files["megatron_args.sh"].replace("'0:16 8192000:64'", f"'{text}'")
    files = {**files, "megatron_args.sh": arguments}
    with pytest.raises(InvalidProblemError, match="step-batch-size-schedule"):
        read_launch_files(source_of(files))
