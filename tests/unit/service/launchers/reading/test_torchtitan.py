"""Flags of a torchtitan command count before the file that it names."""

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.launchers.reading.base import LaunchFile, Source
from meshwright.service.launchers.reading.registry import read_launch_files
from meshwright.service.launchers.registry import export
from tests.launchers.plans import CASES

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


STAGED = CASES["torchtitan"]["llama-3.1-70b-stages"]


def split_by_torchtitan(*lines: str) -> tuple[int, ...]:
    """80 layers on 4 ranks with an interleaved schedule, with ``lines`` instead of the list of modules."""
    text = export(STAGED.plan, STAGED.problem, "torchtitan").files["torchtitan_0_2.toml"]
    text = text.replace('flavor = "meshwright-0123456789ab"', 'flavor = "70B"')
    kept = [line for line in text.splitlines() if not line.startswith("module_fqns")]
    at = kept.index("[parallelism]") + 1
    plain = "\n".join([*kept[:at], *lines, *kept[at:]])
    return read_launch_files(Source(name="torchtitan_0_2.toml", text=plain)).configuration.stage_layers


def test_torchtitan_counts_the_embedding_and_the_head_as_the_file_says() -> None:
    # 80 layers and 1 + 1 in 8 stages: two of 11, six of 10; without those of embedding and head
    assert split_by_torchtitan() == (10, 11, 10, 10, 10, 10, 10, 9)
    # 80 and 0 + 3: three of 11, five of 10; the last one less 3
    less = "pipeline_parallel_{}_stage_less_layers = {}"
    split = split_by_torchtitan(less.format("first", 0), less.format("last", 3))
    assert split == (11, 11, 11, 10, 10, 10, 10, 7)
    with pytest.raises(InvalidProblemError, match="12 exceeds the 11 layers of a stage"):
        split_by_torchtitan(less.format("first", 12))


def test_torchtitan_takes_only_layers_a_stage_that_fill_all_ranks_alike() -> None:
    # 82 layers by 7: 12 stages, 3 a rank, of 7 but for the last two of 6
    each = "pipeline_parallel_layers_per_stage = {}"
    assert split_by_torchtitan(each.format(7)) == (6, *[7] * 9, 6, 5)
    # by 9: 10 stages, by 25: 4, one a rank, which an interleaved schedule does not run
    for layers, stages in ((9, 10), (25, 4)):
        with pytest.raises(InvalidProblemError, match=f"makes {stages} stages of 82 layers"):
            split_by_torchtitan(each.format(layers))


def test_8_bits_and_asynchronous_tensor_ranks_are_read_from_flags_and_tables() -> None:
    assert read("").workload.framework_options == {}
    found = read("--compile.enable_async_tensor_parallel=true")
    assert found.workload.framework_options == {"overlap_tensor": True}
    text = export(STAGED.plan, STAGED.problem, "torchtitan").files["torchtitan_0_2.toml"]
    text = text.replace('flavor = "meshwright-0123456789ab"', 'flavor = "70B"')
    text = text.replace("[model]", '[model]\nconverters = ["quantize.linear.float8"]')

    def recipe(lines: str) -> tuple[str, object]:
        read = read_launch_files(Source(name="plan.toml", text=text + lines))
        return read.workload.precision, read.workload.framework_options.get("precision_recipe")

    assert recipe("") == ("fp8", "fp8-current")  # 0.2 scales tensors unless it is told otherwise
    assert recipe('\n[quantize.linear.float8]\nrecipe_name = "rowwise"\n') == ("fp8", "fp8-rowwise")
