"""A table of runs is read under the headings and units that people write."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.solver.runs.headings import headings_of
from meshwright.solver.runs.table import read_runs


@pytest.mark.parametrize(
    ("heading", "cell", "column", "value"),
    [
        ("Seq len", "8k", "seq_length", "8192"),
        ("Context length", "4096", "seq_length", "4096"),
        ("#GPUs", "1,024", "num_gpus", "1024"),
        ("world_size", "64", "num_gpus", "64"),
        ("GPU type", "H100 SXM", "gpu", "H100 SXM"),
        ("TP", "8", "tensor_parallel_size", "8"),
        ("pipeline-parallel", "4", "pipeline_parallel_size", "4"),
        ("Global BS", "512", "global_batch_size", "512"),
        ("Step time (ms)", "11200", "step_time_s", "11.2"),
        ("iter_time_s", "14.2", "step_time_s", "14.2"),
        ("Time per iteration [s]", "9,1", "step_time_s", "9.1"),
        ("step time", "850 ms", "step_time_s", "0.85"),
        ("Max memory (MiB)", "72704", "peak_memory_gib", "71"),
        ("Peak memory [GB]", "80", "peak_memory_gib", "74.5058059692"),  # 80e9 / 2^30
        ("step_time_s", "9.1 s", "step_time_s", "9.1 s"),  # a column's own cells have no units
        ("Loss", "2.1", "Loss", "2.1"),  # of no column
        ("tok/s/GPU", "11.2k", "tokens_per_s_per_gpu", "11200"),
        ("tokens/s", "1.2M", "tokens_per_s", "1200000"),
        ("Step (ms)", "1,234", "step_time_s", "1.234"),
        ("Iter (s)", "11.2", "step_time_s", "11.2"),  # no iterations of a second
        ("iteration [ms]", "11200", "step_time_s", "11.2"),
        ("step_s", "11.2", "step_time_s", "11.2"),
        ("Step", "1000", "Step", "1000"),  # its number
        ("Step time (µs)", "850", "Step time (µs)", "850"),
        ("Memory (%)", "60.2", "Memory (%)", "60.2"),
        # refused where they are read as numbers: they have two meanings, or none here
        ("Global batch size", "4M", "global_batch_size", "4M"),  # tokens
        ("Step time", "5m", "step_time_s", "5m"),
        ("Peak memory", "71k", "peak_memory_gib", "71k"),
        ("Step time (s)", "9,125", "step_time_s", "9,125"),
        ("GPUs", "9" * 400, "num_gpus", "9" * 400),
    ],
)
def test_a_heading_and_its_unit_are_a_column(heading: str, cell: str, column: str, value: str) -> None:
    assert headings_of([heading]).row({heading: cell}) == {column: value}


@pytest.mark.parametrize(
    ("heading", "cell"),
    [
        ("s/it", "11.2"),
        ("sec / iter", "11,2"),
        ("it/s", str(1 / 11.2)),
        ("train_samples_per_second", str(128 / 11.2)),
    ],
)
def test_the_clock_of_a_training_log_gives_the_time_of_a_step(heading: str, cell: str) -> None:
    row = headings_of(["GBS", heading]).row({"GBS": "128", heading: cell})
    assert float(row["step_time_s"]) == pytest.approx(11.2)


def test_what_nothing_reads_is_said(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "Model,GPU,GPUs,Seq len,GBS,MBS,TP,PP,Step time (s),TFLOPs/GPU,notes\n"
        "llama3-8b,H100,8,8192,128,1,1,1,11.2,431,first\n"
    )
    (run,) = read_runs(table)
    assert run.shape is not None
    assert [one for one in run.shape.warnings if "not read" in one] == [
        "columns that are not read: TFLOPs/GPU"
    ]


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_speed_alone_gives_the_time_of_a_step(between: str, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    rows = (
        ["Model", "GPU", "GPUs", "Seq len", "GBS", "MBS", "TP", "PP", "DP", "tokens/s/GPU"],
        ["meta-llama/Llama-3.1-8B", "H100", "8", "8k", "128", "1", "1", "1", "8", "11702"],
    )
    table.write_text("\n".join(map(between.join, rows)))
    (run,) = read_runs(table)
    assert run.shape is not None
    assert run.shape.problem.cluster.groups[0].gpu.slug == "h100-sxm-80gb"
    assert run.measured.step_time_s == pytest.approx(128 * 8192 / (11702 * 8))  # 11.2 s


def test_what_is_missing_is_named_with_the_headings_that_are_none(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("Hardware,#GPUs,Context length,Global batch,TP,PP,Time/iter?\n")
    with pytest.raises(
        InvalidProblemError, match=r"missing: model, micro_batch_size \(not read: Time/iter\?\)"
    ):
        read_runs(table)


def test_two_headings_of_one_column_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("model,gpu,GPUs,world size,seq,GBS,MBS,TP,PP\n")
    with pytest.raises(InvalidProblemError, match=r"num_gpus: this column occurs twice"):
        read_runs(table)
