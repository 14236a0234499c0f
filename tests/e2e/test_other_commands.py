"""The other commands as a shell runs them."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.house import ROOMS
from tests.processes.pace import pace
from tests.processes.warm import Warm, run_warm

ROOT = Path(__file__).parents[2]
PROBLEM = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "4"]
BATCH = ["--global-batch-size", "256", "--seq-length", "8192"]
HEAVY = ["numpy", "pydantic", "fastapi", "sqlalchemy", "celery", "httpx", "ortools", "rich.table"]


def meshwright(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return run_warm("-m", "meshwright", *arguments, env={**os.environ, **extra})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder of its own for every test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def loaded_by(code: str) -> str:
    code += f"\nimport sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_the_list_of_commands_loads_no_heavy_library() -> None:
    assert loaded_by("import meshwright.service.cli.main") == ""


def test_planning_loads_no_web_database_or_queue_library() -> None:
    loaded = loaded_by("import meshwright.service.cli.plan").split()
    assert not set(loaded) & {"fastapi", "sqlalchemy", "celery", "httpx", "ortools"}


def test_help_and_version_exit_0() -> None:
    assert meshwright("--help").returncode == 0
    assert meshwright("--version").stdout.startswith("meshwright ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--top"], "error: No such option: --top"),
        (
            ["plan", "--top-k", "x"],
            'error: --top-k: "x" is not an integer. Allowed: from 1 to 10000',
        ),
        (["plan", "--top-k"], "error: Option '--top-k' requires an argument."),
        (["plan", "a.json", "b.json"], "error: Got unexpected extra argument(s) (b.json)."),
        (["plan", "--json", "--csv"], "error: --json or --csv, not both."),
        (
            ["plna"],
            "error: No such command 'plna'. Did you mean 'plan', 'replan'?",
        ),
    ],
)
def test_words_no_command_takes_end_in_one_line_and_a_tip(arguments: list[str], message: str) -> None:
    run = meshwright(*arguments)
    assert (run.returncode, run.stdout, len(run.stderr.splitlines())) == (2, "", 2)
    assert run.stderr.startswith(message)
    assert run.stderr.splitlines()[1].startswith("tip: meshwright ")
    assert run.stderr.endswith(("--help\n", "--help-all\n"))


@pytest.mark.parametrize(
    ("catalog", "longest", "name"),
    [
        ("models", "qwen3-235b-a22b", "llama-3.1-70b"),
        ("clusters", "a100-sxm-80gb", "dgx-h100"),
        ("gpus", "a100-pcie-40gb", "h100-sxm-80gb"),
    ],
)
def test_catalogs_are_listed_for_people_with_a_narrow_terminal_and_for_programs(
    catalog: str, longest: str, name: str
) -> None:
    shown = meshwright(catalog, COLUMNS="50").stdout
    assert longest in shown  # whole
    assert name in shown
    assert name in {row["name"] for row in json.loads(meshwright(catalog, "--json").stdout)}


def test_a_configuration_is_priced() -> None:
    run = meshwright("predict", *PROBLEM, *BATCH, "--set", "tp=2", "--set", "zero=1", "--json")
    document = json.loads(run.stdout)
    assert run.returncode == 0
    assert document["config"]["data_parallel_size"] == 16  # 32 GPUs / tp 2
    causes = document["prediction"]["time_breakdown_s"]
    assert sum(causes.values()) == pytest.approx(document["prediction"]["step_time_s"])
    assert document["breaks"] == []


def test_a_configuration_that_breaks_a_rule_is_priced_with_a_warning() -> None:
    run = meshwright("predict", *PROBLEM, *BATCH, "--set", "tp=16", "--set", "pp=2")
    assert run.returncode == 0
    assert "warning: breaks the rule that tensor_parallel_size divides an island" in " ".join(
        run.stdout.split()
    )


def test_a_configuration_of_another_batch_is_refused() -> None:
    run = meshwright("predict", *PROBLEM, *BATCH, "--set", "dp=3")
    assert run.returncode == 2
    assert "but the global batch is 256" in run.stderr


RUNS = ROOT / "profiles" / "catalog" / "runs" / "measured_runs.csv"


@pytest.fixture
def few_runs(tmp_path: Path) -> Path:
    """The 10 runs of Megatron's SC21 Table 1."""
    lines = RUNS.read_text().splitlines(keepends=True)
    chosen = [line for line in lines[1:] if "SC21 Table 1" in line]
    assert len(chosen) == 10
    path = tmp_path / "runs.csv"
    path.write_text("".join([lines[0], *chosen]))
    return path


def test_measured_runs_are_predicted_and_scored(few_runs: Path, tmp_path: Path) -> None:
    per_run = tmp_path / "predictions.csv"
    run = meshwright("validate", str(few_runs), "--json", "--per-run", str(per_run))
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)["overall"]["time"]
    assert figures["n"] == 10
    assert figures["mean_absolute"] < 12
    assert len(per_run.read_text().splitlines()) == 11
    assert (
        "10 runs: 10 predicted; scored 10 by their step time"
        in meshwright("validate", str(few_runs)).stdout
    )


def test_runs_that_calibrate_are_not_scored(few_runs: Path) -> None:
    # at most half of a cluster's 10 runs are chosen
    run = meshwright("validate", str(few_runs), "--calibrate", "16", "--json")
    assert json.loads(run.stdout)["overall"]["n"] == 5


CHOICE = 'error: --choose: "best" is not supported. Allowed: suggested, random'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv"], "error: runs: nowhere.csv: No such file or directory"),
        ([str(RUNS), "--choose", "best"], CHOICE),
    ],
)
def test_bad_input_of_validate_is_one_clear_line_and_a_tip(arguments: list[str], message: str) -> None:
    run = meshwright("validate", *arguments)
    assert (run.returncode, run.stderr.splitlines()) == (2, [message, "tip: meshwright validate --help"])


def test_a_plan_that_is_not_kept_is_refused(tmp_path: Path) -> None:
    run = meshwright("export", "dead", XDG_STATE_HOME=str(tmp_path))
    assert run.returncode == 2
    assert run.stderr.startswith('error: plan_id: no saved plan starts with "dead"')


def test_jobs_without_a_service_say_where_they_looked() -> None:
    run = meshwright("jobs", "list", "--url", "http://127.0.0.1:9")
    assert run.returncode == 2
    assert run.stderr.splitlines() == [
        "error: --url: no service answers at http://127.0.0.1:9 (ConnectError)"
    ]


@pytest.mark.parametrize("url", ["foo", "http://", "ftp://host", "http://[::1", "http://host:x"])
def test_what_is_no_address_of_a_service_is_said_to_be_none(url: str) -> None:
    run = meshwright("jobs", "list", "--url", url)
    assert run.returncode == 2
    assert run.stderr.splitlines() == [
        f'error: --url: "{url}" is not the address of a service. Allowed: http://HOST:PORT or https://HOST:PORT',
        "tip: meshwright jobs list --help",
    ]


def test_the_main_job_starts_nothing_for_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text('{"search": "fast"}')
    run = meshwright("demo", str(tmp_path / "problem.json"), "--out", str(tmp_path / "out"))
    assert (run.returncode, run.stdout) == (2, "")
    assert not (tmp_path / "out").exists()


def test_a_server_refuses_an_address_beyond_loopback_without_keys(tmp_path: Path) -> None:
    run = meshwright("serve", "--host", "0.0.0.0", XDG_STATE_HOME=str(tmp_path))  # noqa: S104 - refused
    assert run.returncode == 2
    assert "--insecure" in run.stderr
    assert "meshwright keys create" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_schema_is_brought_to_its_newest_revision(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    for _ in range(2):
        run = meshwright("db", "upgrade", "--database-url", url)
        assert run.returncode == 0, run.stderr
        assert "the schema is at revision" in run.stdout


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("foo", "error: --database-url: not a URL such as sqlite:"),
        ("mysql://host/name", "error: --database-url: only "),
        (
            "postgresql://127.0.0.1:9/none",
            "error: the database cannot be reached: PostgreSQL at 127.0.0.1:9",
        ),
    ],
)
def test_a_schema_that_cannot_be_reached_is_one_clear_line(url: str, message: str) -> None:
    run = meshwright("db", "upgrade", "--database-url", url, MESHWRIGHT_DATABASE_WAIT_S="0")
    error, *tips = run.stderr.splitlines()
    assert run.returncode == 2
    assert error.startswith(message)
    assert len(tips) <= 1


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running service with one worker."""
    url = f"sqlite:///{tmp_path_factory.mktemp('service') / 'records.db'}"
    command = ["-m", "meshwright", "serve", "--port", "0", "--database-url", url]
    child = Warm(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    yield child.stdout.readline().strip()
    child.terminate()
    assert child.wait(60) == 0
    child.stdout.close()


def test_a_job_is_submitted_followed_listed_and_shown(service: str) -> None:
    without_levers = ["--objective", "tokens_per_s_per_gpu"]
    submitted = meshwright("jobs", "submit", *PROBLEM, *BATCH, *without_levers, "--json", "--url", service)
    job_id = json.loads(submitted.stdout)["id"]
    waited = meshwright("jobs", "wait", job_id, "--url", service)
    assert waited.returncode == 0, waited.stderr
    assert "Best of " in waited.stdout
    printed = waited.stdout[waited.stdout.index("meshwright export") :].split()[2]
    assert meshwright("export", printed).returncode == 0, "the plan is found by the id that was printed"
    assert f"{job_id}" in meshwright("jobs", "list", "--url", service).stdout
    shown = json.loads(meshwright("jobs", "show", job_id, "--json", "--url", service).stdout)
    assert shown["state"] == "succeeded"
    assert shown["answer"]["plans"]
    cancelled = meshwright("jobs", "cancel", job_id, "--url", service)
    assert cancelled.stdout.split() == [job_id, "succeeded"]


def test_a_service_refuses_bad_input_as_the_planner_does(service: str) -> None:
    run = meshwright("jobs", "submit", *PROBLEM, *BATCH, "--pin", "tp=3", "--url", service)
    assert run.returncode == 2
    assert "search.pin.tensor_parallel_size: 3 does not divide num_attention_heads = 32" in run.stderr


REFUSING = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            open({log!r}, "a").write(name + " by " + " ".join(sys.orig_argv) + chr(10))
sys.meta_path.insert(0, Refusing())
"""


@dataclass(frozen=True)
class MainJob:
    """``meshwright demo``, run once: its files, and who looked for a folder of the root as a module."""

    out: Path
    run: subprocess.CompletedProcess[str]
    user_s: float  # of the command, its service and its worker
    looked: list[str]


@pytest.fixture(scope="module")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> MainJob:
    folder = tmp_path_factory.mktemp("main_job")
    log = folder / "imports.txt"
    (folder / "sitecustomize.py").write_text(REFUSING.format(names=(*ROOMS, "migrations"), log=str(log)))
    environment = {**os.environ, "PYTHONPATH": str(folder), "XDG_STATE_HOME": str(folder / "state")}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    assert python("-c", "import solver").returncode == 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = python("-m", "meshwright", "demo", "--out", str(folder / "out"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return MainJob(folder / "out", run, after.ru_utime - before.ru_utime, log.read_text().splitlines())


def test_the_main_job_writes_launch_files_and_stops_its_service(main_job: MainJob) -> None:
    assert main_job.run.returncode == 0, main_job.run.stdout + main_job.run.stderr
    assert main_job.user_s < 15 * pace()
    (answer,) = main_job.out.glob("*/answer.json")
    plan = json.loads(answer.read_text())["plans"][0]
    assert plan["config"]["tensor_parallel_size"] * plan["config"]["pipeline_parallel_size"] <= 128
    assert {path.name for path in answer.parent.iterdir()} > {"answer.json", "problem.json"}
    assert str(answer.parent) in main_job.run.stdout
    assert "stopped cleanly" in main_job.run.stdout


def test_no_process_of_the_service_looks_for_a_bare_folder(main_job: MainJob) -> None:
    """From the root: the command line, the server, its worker and the CP-SAT judge."""
    assert len(main_job.looked) == 1, main_job.looked  # by ``import solver``: the log is written
    assert main_job.looked[0].startswith("solver by ")
