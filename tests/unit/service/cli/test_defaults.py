"""A person's defaults: option before problem file before environment before configuration file."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.defaults import REMEMBERED, Defaults, config_file, variable
from meshwright.service.cli.main import app
from meshwright.service.cli.options import read_request
from meshwright.service.requests.parse import parse_problem
from meshwright.service.settings import Settings
from tests.served.commands import commands

ROOT = Path(__file__).parents[4]
MODEL: dict[str, Any] = {"model": "llama-3.1-8b"}
Write = Callable[[str], Path]


@pytest.fixture(name="write")
def _write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the configuration file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def write(text: str) -> Path:
        path = config_file()
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def asked(has_files: bool = False, problem: Path | None = None, **given: Any) -> Mapping[str, Any]:  # noqa: ANN401
    return read_request(problem, has_files=has_files, defaults=Defaults(), **given)


def test_an_option_counts_before_the_environment_and_that_before_the_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('launcher = "trl"\ncluster = "dgx-h100"\n')
    assert asked(**MODEL)["launcher"] == "trl"
    monkeypatch.setenv("MESHWRIGHT_LAUNCHER", "axolotl")
    assert asked(**MODEL)["launcher"] == "axolotl"
    assert asked(**MODEL, launcher="torchtitan")["launcher"] == "torchtitan"
    assert asked(**MODEL)["cluster"] == {"name": "dgx-h100"}


def test_a_problem_file_counts_before_a_default(write: Write, tmp_path: Path) -> None:
    write('launcher = "trl"\ncluster = "dgx-h100"\nglobal-batch-size = 64\nseq-length = "4k"\n')
    file = tmp_path / "problem.json"
    file.write_text(json.dumps({"model": "llama-3.1-8b", "launcher": "axolotl", "cluster": "dgx-a100"}))
    found = asked(problem=file)
    assert (found["launcher"], found["cluster"]) == ("axolotl", {"name": "dgx-a100"})
    assert found["workload"] == {"global_batch_size": 64, "seq_length": 4096}


@pytest.mark.parametrize(
    ("given", "cluster"),
    [
        ({}, {"name": "dgx-h100", "num_nodes": 4}),
        ({"num_nodes": "2"}, {"name": "dgx-h100", "num_nodes": 2}),
        ({"gpus": "fewest"}, {"name": "dgx-h100", "num_nodes": 4}),
        ({"cluster": "dgx-a100"}, {"name": "dgx-a100"}),  # the 4 nodes are those of the default cluster
        ({"gpu": "l40s"}, {"groups": [{"gpu": "l40s", "num_nodes": 1}]}),
    ],
)
def test_the_default_cluster_counts_where_no_other_hardware_is_stated(
    write: Write, given: dict[str, Any], cluster: object
) -> None:
    write('cluster = "dgx-h100"\nnum-nodes = 4\n')
    assert asked(**MODEL, **given)["cluster"] == cluster


def test_gpus_by_type_take_the_place_of_the_default_cluster(write: Write) -> None:
    write('cluster = "dgx-h100"\nnum-nodes = 4\nglobal-batch-size = 8\nseq-length = 4096\n')
    problem = parse_problem(asked(**MODEL, gpus="4xA100"))
    assert (problem.cluster.num_gpus, problem.cluster.groups[0].gpu.slug) == (4, "a100-sxm-80gb")


def test_a_number_of_nodes_alone_is_a_default_of_any_cluster(write: Write) -> None:
    write("num_nodes = 4\n")
    assert asked(**MODEL, cluster="dgx-a100")["cluster"] == {"name": "dgx-a100", "num_nodes": 4}


def test_of_gpu_and_cluster_the_environment_counts_first(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write('cluster = "dgx-h100"\n')
    monkeypatch.setenv("MESHWRIGHT_GPU", "l40s")
    assert asked(**MODEL)["cluster"] == {"groups": [{"gpu": "l40s", "num_nodes": 1}]}
    monkeypatch.delenv("MESHWRIGHT_GPU")
    path.write_text('cluster = "dgx-h100"\ngpu = "l40s"\n')
    with pytest.raises(InvalidProblemError, match="both describe the cluster"):
        asked(**MODEL)


def test_a_batch_with_its_length_leaves_the_default_length_out(write: Write) -> None:
    write("seq-length = 8192\n")
    assert asked(**MODEL, global_batch_size="512x4096")["workload"]["seq_length"] == 4096


def test_launch_files_state_their_own_batch_and_launcher(write: Write) -> None:
    write('launcher = "trl"\ncluster = "dgx-h100"\nnum-nodes = 4\nseq-length = 8192\n')
    assert asked(has_files=True) == {"cluster": {"name": "dgx-h100"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('clutser = "dgx-h100"\n', r'config\.toml: unknown key "clutser".*Nearest: cluster'),
        ('top-k = "many"\n', r'config\.toml: top_k: "many" is not an integer'),
        ("launcher = [1]\n", r"config\.toml: launcher is not one value"),
        ("launcher = \n", r"config\.toml: is not TOML"),
        ("schema_version = 2\n", r"config\.toml: schema_version 2 is of a newer Meshwright"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(write: Write, text: str, message: str) -> None:
    write(text)
    with pytest.raises(InvalidProblemError, match=message):
        asked(**MODEL)


def test_a_value_is_checked_as_the_option_is_and_the_error_names_its_source(write: Write) -> None:
    write('cluster = "dgx-h100"\nlauncher = "tlr"\nglobal-batch-size = 64\nseq-length = 4096\n')
    with pytest.raises(InvalidProblemError, match=r'unknown "tlr".*your default, from .*config\.toml'):
        app(["plan", "llama-3.1-8b"], prog_name="meshwright", standalone_mode=False)


def test_an_answer_with_defaults_says_so_in_one_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write('cluster = "dgx-h100"\nglobal-batch-size = 8\nseq-length = 512\ntop-k = 1\n')
    monkeypatch.setenv("MESHWRIGHT_LAUNCHER", "megatron-lm")
    shown = CliRunner().invoke(app, ["plan", "gpt-3-350m", "--certify", "none", "--json"])
    assert shown.exit_code == 0, shown.output
    (note,) = [line for line in shown.stderr.splitlines() if line.startswith("note: ")]
    assert re.search(
        r"--cluster dgx-h100 .*--top-k 1 from .*config\.toml; --launcher megatron-lm from MESH", note
    )
    assert json.loads(shown.stdout)["problem"]["launcher"] == "megatron-lm"


def test_config_shows_each_value_and_its_source(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('cluster = "dgx-h100"\n')
    monkeypatch.setenv("MESHWRIGHT_TOP_K", "3")
    shown = json.loads(CliRunner().invoke(app, ["config", "--json"]).stdout)
    assert shown["schema_version"] == 1
    assert shown["file"] == str(path)
    assert {*shown["defaults"]} == {*REMEMBERED}
    assert shown["defaults"]["cluster"]["value"] == "dgx-h100"
    assert shown["defaults"]["top_k"] == {"value": 3, "source": "MESHWRIGHT_TOP_K"}
    assert shown["defaults"]["launcher"] == {"value": None, "source": "built-in"}


def test_the_example_that_config_prints_is_a_configuration_file(write: Write) -> None:
    del write
    printed = CliRunner().invoke(app, ["config"]).stdout
    (line,) = re.findall(r"echo '(.*)' >>", printed)
    assert tomllib.loads(line) == {"cluster": "dgx-h100"}


def test_help_names_the_variable_of_each_option() -> None:
    command = commands().commands["plan"]
    words = command.get_help(command.make_context("plan", [], resilient_parsing=True))
    assert "[env: MESHWRIGHT_CLUSTER]" in re.sub(r"\s+", " ", words)


def test_no_variable_of_an_option_is_one_of_the_service_or_of_a_run() -> None:
    settings = {f"MESHWRIGHT_{name.upper()}" for name in Settings.model_fields}
    own = {variable(name) for name in REMEMBERED}
    assert not own & settings
    for room in ("service", "workers", "client/meshwright_client", "launchers", "solver", "profiles"):
        for file in (ROOT / room).rglob("*.py"):
            used = {*re.findall(r"\bMESHWRIGHT_[A-Z_]+\b", file.read_text(encoding="utf-8"))}
            assert not own & used or file.name in ("defaults.py", "examples.py"), file


def test_only_the_command_line_reads_a_persons_defaults() -> None:
    for room in ("service", "workers", "launchers", "solver", "profiles", "client"):
        for file in (ROOT / room).rglob("*.py"):
            if "cli.defaults" in file.read_text(encoding="utf-8"):
                assert file.parent == ROOT / "service" / "cli", file
