"""Every foreign format from its fixture to the numbers that a plan is made with."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.service.cli.import_file import ImportRequest, run_import
from meshwright.service.cli.launch_files import source_of
from meshwright.service.cli.main import app
from meshwright.service.cli.options import read_request
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.problem import Problem
from meshwright.solver.runs.table import read_runs

PROFILES = Path(__file__).parents[2] / "profiles" / "fixtures"
FILES = PROFILES / "importers"


def imported(file: Path, target: Path, **options: object) -> Path:
    field = "into" if options.pop("into", False) else "out"
    request = ImportRequest(file=file, **{field: target, **options})  # type: ignore[arg-type]
    assert run_import(request) == 0
    return target


def asked(cluster: Path, model: str = "llama-3.1-8b") -> Problem:
    return parse_problem(
        read_request(model=model, cluster=str(cluster), global_batch_size="64", seq_length=4096)
    )


def test_a_topology_becomes_a_cluster_that_a_plan_is_made_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = imported(
        FILES / "topology" / "topo_pcie_pairs.txt", tmp_path / "c.yaml", gpu="a100-pcie-80gb", num_nodes=4
    )
    group = asked(path).cluster.groups[0]
    assert (group.num_nodes, group.island_gpus) == (4, 2)
    assert "meshwright plan --cluster" in capsys.readouterr().err


def test_a_dump_of_nccl_gives_the_rate_of_the_network(tmp_path: Path) -> None:
    # 4 GPUs, cards of 400 Gbit/s each: 50 GB/s a GPU; 18 NVLinks of 25 GB/s
    path = imported(FILES / "topology" / "nccl_h100_4.xml", tmp_path / "c.yaml", gpu="h100", num_nodes=2)
    group = asked(path).cluster.groups[0]
    assert (group.gpus_per_node, group.inter_node.bytes_per_s) == (4, 50e9)
    assert group.intra_node.bytes_per_s == 450e9


def test_switches_go_into_an_existing_cluster_file_and_change_their_field_alone(tmp_path: Path) -> None:
    path = imported(FILES / "topology" / "topo_h100_8.txt", tmp_path / "c.yaml", gpu="h100", num_nodes=4)
    before = asked(path).cluster.groups[0]
    imported(FILES / "topology" / "topology_tree.conf", path, into=True)
    after = asked(path).cluster.groups[0]
    assert (before.num_nodes, after.num_nodes) == (4, 15)
    assert after.intra_node == before.intra_node


def test_logs_of_nccl_tests_become_the_clusters_own_network(tmp_path: Path) -> None:
    path = imported(FILES / "topology" / "topo_h100_8.txt", tmp_path / "c.yaml", gpu="h100", num_nodes=4)
    before = asked(path).cluster.groups[0]
    imported(FILES / "nccl_tests" / "one_node.log", path, into=True)
    imported(FILES / "nccl_tests" / "two_nodes_mpi.log", path, into=True)
    measured = asked(path).cluster.groups[0].measured
    assert before.measured is None
    assert measured is not None
    assert {curve.num_nodes for curve in measured.curves} == {1, 2}
    assert "one_node.log" in measured.source
    assert "two_nodes_mpi.log" in measured.source


def test_training_logs_become_rows_that_calibrate_reads(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    options = {"model": "llama-3.1-70b", "gpu": "h100", "cluster": "mine", "into": True}
    imported(FILES / "logs" / "megatron_lm.log", path, **options)
    imported(FILES / "logs" / "torchtitan.log", path, assign=("mbs=1", "pp=1"), **options)
    imported(FILES / "logs" / "torchtitan.log", path, assign=("mbs=1", "pp=1"), **options)  # replaces
    first, second = read_runs(path)
    assert (first.run_id, first.cluster) == ("megatron_lm", "mine")
    assert first.refused_reason is None
    assert first.shape is not None
    # the median of the steps after warm-up: 8.015 s
    assert first.measured.step_time_s == pytest.approx(8.015)
    assert first.shape.configuration.tensor_parallel_size == 8
    assert first.shape.configuration.pipeline_parallel_size == 2
    assert second.refused_reason is None


def test_a_log_of_another_model_than_the_one_that_is_named_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = FILES / "logs" / "megatron_out_of_memory.log"  # of 80 layers, 8192 wide, with 64 heads
    for model in ("llama-3.1-8b", "llama-3.1-70b"):
        imported(log, tmp_path / "runs.csv", model=model, gpu="h100", into=True)
        told = capsys.readouterr().err
        assert ("hidden_size is 8192 in the log, 4096 in llama-3.1-8b" in told) is (model == "llama-3.1-8b")
        assert told.count(" in the log, ") == (3 if model == "llama-3.1-8b" else 0)


def test_a_hugging_face_config_becomes_a_model_file(tmp_path: Path) -> None:
    path = imported(PROFILES / "qwen2.5-7b.json", tmp_path / "model.json")
    cluster = imported(FILES / "topology" / "topo_h100_8.txt", tmp_path / "c.yaml", gpu="h100")
    assert asked(cluster, str(path)).model == asked(cluster, str(PROFILES / "qwen2.5-7b.json")).model


def test_without_a_file_to_write_the_outcome_stands_alone_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_import(ImportRequest(file=PROFILES / "qwen2.5-7b.json")) == 0
    assert json.loads(capsys.readouterr().out)["num_layers"] == 28


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "--model"),
        ({"model": "llama-3.1-8b"}, "--gpu"),
        ({"gpu": "v100"}, "--model"),
        ({"gpu": "v100", "model": "llama-9"}, "--model"),
        ({"gpu": "w100", "model": "llama-3.1-8b"}, "--gpu"),
        ({"gpu": "v100", "model": "llama-3.1-8b", "format_name": "nccl-test"}, "--format"),
    ],
)
def test_what_the_file_does_not_say_is_asked_for(
    tmp_path: Path, options: dict[str, object], field: str
) -> None:
    nameless = tmp_path / "run.log"
    nameless.write_text((FILES / "logs" / "torchtitan.log").read_text())
    with pytest.raises(InvalidProblemError) as raised:
        run_import(ImportRequest(file=nameless, **options))  # type: ignore[arg-type]
    assert raised.value.errors[0].pointer == field


def test_a_file_of_no_known_format_names_them_all(tmp_path: Path) -> None:
    path = tmp_path / "what.txt"
    path.write_text("hello")
    with pytest.raises(PlannerError, match="has none of the formats deepspeed-log"):
        run_import(ImportRequest(file=path))


def test_a_table_with_a_few_columns_gains_those_of_the_imported_run_and_keeps_its_rows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("run_id,model,step_time_s\nmine,llama-3.1-8b,7.4\n")
    log = FILES / "logs" / "megatron_lm.log"
    run_import(ImportRequest(file=log, model="llama-3.1-70b", gpu="h100", into=path))
    mine, imported = csv.DictReader(path.read_text().splitlines())
    assert list(mine.values())[:4] == ["mine", "llama-3.1-8b", "7.4", ""]
    assert imported["step_time_s"]
    assert imported["gpu"]


def test_a_table_of_something_else_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("a,b\n1,2\n")
    request = ImportRequest(
        file=FILES / "logs" / "megatron_lm.log", model="llama-3.1-70b", gpu="h100", into=path
    )
    with pytest.raises(InvalidProblemError, match="is not a table of runs"):
        run_import(request)
    assert path.read_text() == "a,b\n1,2\n"


def test_of_two_files_of_one_name_that_a_script_names_none_is_taken(tmp_path: Path) -> None:
    # recipes/big/zero3.yaml is not there: recipes/zero3.yaml is another command's
    (tmp_path / "recipes").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "recipes" / "zero3.yaml").write_text("num_processes: 1\n")
    script = tmp_path / "scripts" / "run.sh"
    script.write_text("accelerate launch recipes/big/zero3.yaml\naccelerate launch ./recipes/zero3.yaml\n")
    assert source_of([script]).other("zero3.yaml") is None
    script.write_text(
        "# accelerate launch recipes/big/zero3.yaml\naccelerate launch ./recipes/zero3.yaml\n"
    )
    assert source_of([script]).other("zero3.yaml") == "num_processes: 1\n"
    script.write_text('source "$SCRIPT_DIR/recipes/$NAME.yaml"\n')  # of a name that the shell makes
    assert source_of([script]).other("zero3.yaml") == "num_processes: 1\n"


def test_a_folder_is_read_from_the_script_that_starts_the_run(tmp_path: Path) -> None:
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    (tmp_path / "env.sh").write_text("export NCCL_DEBUG=INFO\n")
    (tmp_path / "train.sh").write_text("source env.sh\ndeepspeed run_clm.py --deepspeed ds.json\n")
    assert source_of([tmp_path]).name == "train.sh"
    (tmp_path / "train.sh").unlink()
    assert source_of([tmp_path]).name == "ds.json"


def test_the_figures_of_a_gpu_become_a_cluster_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = tmp_path / "our-chip.yaml"
    sheet.write_text(
        "memory_gib: 96\nhbm_gb_per_s: 3300\npeak_tflops: {bf16: 900, fp8: 1800}\npower_watts: 650\n"
    )
    path = imported(sheet, tmp_path / "c.yaml", num_nodes=4)
    group = asked(path).cluster.groups[0]
    assert (group.gpu.slug, group.num_gpus, group.gpu.peak_flops["fp8"]) == ("our-chip", 32, 1800e12)
    said = capsys.readouterr().err
    assert "GPU our-chip, 900 TFLOP/s in 16 bits, 96 GiB at 3300 GB/s" in said
    assert "no measurements of our-chip: the efficiencies of h100-sxm-80gb" in said
    request = read_request(
        model="llama-3.1-8b", gpu=str(sheet), num_nodes="4", global_batch_size="64", seq_length=4096
    )
    typed = parse_problem(request).cluster.groups[0].gpu  # --gpu takes the file as well
    assert (typed.slug, typed.peak_flops) == ("our-chip", group.gpu.peak_flops)


def test_a_format_may_precede_the_file(tmp_path: Path) -> None:
    sheet = tmp_path / "chip.yaml"
    sheet.write_text("memory_gib: 96\nhbm_gb_per_s: 3300\n")
    found = CliRunner().invoke(app, ["import", "gpu", str(sheet)])
    assert isinstance(found.exception, InvalidProblemError)
    assert "gpu.peak_flops: is required" in str(found.exception)
    other = CliRunner().invoke(app, ["import", "gpu", "gpu", str(sheet)])
    assert "one format and one file" in str(other.exception)
