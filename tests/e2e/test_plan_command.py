"""``meshwright plan`` as a shell runs it: exit codes, messages, and what stands on which stream."""

import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.processes.pace import pace
from tests.processes.servers import cpu_s, until
from tests.processes.warm import run_warm

ROOT = Path(__file__).parents[2]
SMALL = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "4"]
BATCH = ["--global-batch-size", "256", "--seq-length", "8192"]
QUICK = ["--certify", "none", "--objective", "tokens_per_s_per_gpu"]  # this objective searches no levers
# A small search, for tests of the output's form.
TINY = ["--model", "llama-3.2-1b", "--gpus", "2xh100", "--global-batch-size", "16", "--seq-length", "2048",
        "--launcher", "megatron-lm", *QUICK]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with a state folder of its own."""
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}


def meshwright(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run_warm("-m", "meshwright", *arguments, env=env)


@dataclass(frozen=True)
class Saved:
    """A plan that was searched and saved once: what was printed, its files, and its own state folder."""

    run: subprocess.CompletedProcess[str]
    folder: Path
    env: dict[str, str]

    @property
    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((self.folder / "answer.json").read_text())
        return answer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    at = tmp_path_factory.mktemp("saved")
    env = {**os.environ, "XDG_STATE_HOME": str(at / "state"), "NO_COLOR": "1"}
    run = meshwright("plan", *SMALL, *BATCH, "--full", "--save-dir", str(at / "run"), env=env)
    return Saved(run, at / "run", env)


def test_a_plan_is_a_ranked_table_with_its_proof(saved: Saved) -> None:
    run = saved.run
    assert run.returncode == 0, run.stderr
    assert run.stderr.startswith("wrote answer.json, ")
    assert run.stderr.count("\n") == 1
    assert "Llama 3.1 8B (8 030 261 248 parameters) · 4 × DGX H100 = 32 GPUs" in run.stdout
    assert "Optimal under our cost model: the best of " in run.stdout
    assert "← best" in run.stdout
    assert "\x1b" not in run.stdout


def test_cp_sat_decides_before_the_table_is_printed_and_its_decision_is_saved(saved: Saved) -> None:
    assert saved.run.stdout.splitlines()[-1].startswith("  Next: meshwright export ")
    assert saved.answer["counts"]["decided"] > 100
    assert saved.answer["decided_by"] == "cp-sat"
    assert (
        saved.answer["certified_by"] == saved.answer["plans"][0]["certified_by"] == ["exact-dp", "cp-sat"]
    )
    assert saved.answer["counts"]["certified"] == 1
    (kept,) = (Path(saved.env["XDG_STATE_HOME"]) / "meshwright" / "answers").iterdir()
    assert json.loads(kept.read_text()) == saved.answer


def test_json_stands_alone_on_stdout_and_holds_its_problem(home: dict[str, str]) -> None:
    run = meshwright("plan", *TINY, "--json", "--top-k", "3", env=home)
    answer = json.loads(run.stdout)
    assert run.stderr == ""
    assert [plan["rank"] for plan in answer["plans"]] == [1, 2, 3]
    assert answer["problem"]["workload"]["global_batch_size"] == 16
    steps = [plan["prediction"]["step_time_s"] for plan in answer["plans"]]
    assert answer["bound_step_time_s"] <= min(steps)


def test_csv_stands_alone_on_stdout(home: dict[str, str]) -> None:
    run = meshwright("plan", *TINY, "--csv", "--top-k", "2", env=home)
    rows = list(csv.DictReader(io.StringIO(run.stdout)))
    assert [row["rank"] for row in rows] == ["1", "2"]


def test_a_plan_can_be_saved_and_exported_by_its_printed_id(saved: Saved, tmp_path: Path) -> None:
    plan_id = saved.answer["plans"][0]["plan_id"]
    assert f"meshwright export {plan_id[:4]}" in saved.run.stdout
    again = meshwright("export", plan_id[:8], "--save-dir", str(tmp_path), env=saved.env)
    assert again.returncode == 0, again.stderr
    launch_files = {path.name for path in saved.folder.iterdir()} - {
        "answer.json",
        "problem.json",
        "report.html",
    }
    assert launch_files
    assert launch_files == {path.name for path in tmp_path.iterdir()} - {"answer.json"}
    assert all((saved.folder / name).read_text() == (tmp_path / name).read_text() for name in launch_files)
    answer = str(saved.folder / "answer.json")
    from_file = meshwright("export", "--from", answer, "--rank", "2", env=saved.env)
    assert from_file.returncode in {0, 2}, from_file.stderr  # 2: the launcher cannot express that plan


def test_the_saved_problem_asks_the_same_question(home: dict[str, str], saved: Saved) -> None:
    again = json.loads(meshwright("plan", str(saved.folder / "problem.json"), "--json", env=home).stdout)
    assert again["plans"] == saved.answer["plans"]


def test_pins_bounds_and_prohibitions_are_kept(home: dict[str, str]) -> None:
    node = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "1", *QUICK]
    limits = ["--pin", "tp=2", "--bound", "mbs=1:2", "--forbid", "pp=1,2"]
    answer = json.loads(meshwright("plan", *node, *BATCH, *limits, "--json", env=home).stdout)
    configs = [plan["config"] for plan in answer["plans"]]
    assert {config["tensor_parallel_size"] for config in configs} == {2}
    assert {config["micro_batch_size"] for config in configs} <= {1, 2}
    assert {config["pipeline_parallel_size"] for config in configs} == {4}  # of 8 GPUs on tensor ranks of 2


def test_a_model_that_no_configuration_holds_is_infeasible_with_reasons(home: dict[str, str]) -> None:
    # 8.0 B parameters * 18 B = 145 GB of states; a GPU has 79.6 GiB = 85 GB
    large = ["--model", "llama-3.1-8b", "--gpus", "1xh100", "--launcher", "megatron-lm"]
    run = meshwright("plan", *large, *BATCH, env=home)
    assert run.returncode == 3, run.stdout + run.stderr
    assert run.stdout.startswith("Llama 3.1 8B on 1 × H100 (")
    assert "Nothing fits" in run.stdout
    assert re.search(r"configurations needs [\d.]+ of 79\.6 GiB", run.stdout)
    assert "\n  close  " in run.stdout
    assert "\n  try    " in run.stdout


def test_a_time_limit_without_a_plan_exits_4(home: dict[str, str]) -> None:
    # 406 B parameters * 16 B = 6.5 TB of states fit 104 GPUs, but with nothing beside them: no first plan
    large = ["--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--num-nodes", "13"]
    run = meshwright("plan", *large, *BATCH, "--time-limit-s", "0.000001", env=home)
    assert run.returncode == 4, run.stdout + run.stderr
    assert "nothing is proved" in run.stdout


def ended_cpu_s() -> float:
    """CPU seconds of all processes that these tests started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_an_interrupted_search_ends_in_time_with_what_it_has(home: dict[str, str]) -> None:
    big = [
        "--model",
        "deepseek-v3",
        "--cluster",
        "dgx-h100",
        "--num-nodes",
        "256",
        "--certify",
        "cp-sat-all",
    ]
    size = ["--global-batch-size", "8192", "--seq-length", "4096", "--top-k", "50", "--time-limit-s", "50"]
    command = [sys.executable, "-m", "meshwright", "plan", *big, *size, "--json"]
    before_s = ended_cpu_s()
    with subprocess.Popen(command, cwd=ROOT, env=home, stdout=subprocess.PIPE, text=True) as child:
        until(lambda: cpu_s(child.pid) > 1.5)  # of them 0.7 to load what it needs: it is amid the search
        used_s = cpu_s(child.pid)
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate()
    assert ended_cpu_s() - before_s - used_s < 5 * pace()
    if child.returncode == 0:
        assert json.loads(output)["plans"]
    else:
        assert child.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "lama-3.1-8b"], 'error: model.name: unknown "lama-3.1-8b". Did you mean llama-3.1-8b'),
        (["--cluster", "dgx-h10"], 'error: cluster.name: unknown "dgx-h10". Did you mean dgx-h100'),
        (["--num-nodes", "0"], "error: cluster.num_nodes: 0 is out of range"),
        (["--seq-length", "-1"], "error: workload.seq_length: -1 is out of range. Allowed: from 1"),
        (["--precision", "bf15"], "Allowed: bf16, fp16, fp8, mxfp8, nvfp4, fp32. Nearest: bf16"),
        (["--launcher", "torchtitn"], 'error: launcher: unknown "torchtitn". Did you mean torchtitan'),
        (
            ["--pin", "tp=3"],
            "3 does not divide num_attention_heads = 32. Allowed: divisors of 32. Nearest: 2, 4",
        ),
        (["--pin", "tp"], 'error: --pin: "tp" is not NAME=VALUE'),
        (["--pin", "dp=3"], "256 is not a multiple of data_parallel_size = 3 (pinned). Nearest: 255, 258"),
        (["--bound", "mbs=4:1"], "[4, 1] is empty. Nearest: [1, 4]"),
        (
            ["--time-limit-s", "nan"],
            "error: search.time_limit_s: nan is not a finite number. Allowed: above 0",
        ),
        (
            ["no-such-file.json"],
            "error: argument: there is no file no-such-file.json, and no model of that name",
        ),
    ],
)
def test_bad_input_is_one_clear_line_a_tip_and_exit_2(
    home: dict[str, str], arguments: list[str], message: str
) -> None:
    usual = dict(zip([*SMALL, *BATCH][::2], [*SMALL, *BATCH][1::2], strict=True))
    usual.pop(arguments[0], None)  # an option is given once
    run = meshwright("plan", *chain.from_iterable(usual.items()), *arguments, env=home)
    assert run.returncode == 2
    assert run.stdout == ""
    error, tip = run.stderr.splitlines()
    assert message in error
    assert tip.startswith("tip: meshwright ")


def test_a_missing_part_is_named(home: dict[str, str]) -> None:
    batch = "--global-batch-size 512 --seq-length 8192"
    run = meshwright("plan", "--model", "llama-3.1-8b", env=home)
    assert run.returncode == 2
    assert run.stderr.splitlines() == [
        "error: cluster: is required (--cluster, or a problem file)",
        "error: workload: is required (--global-batch-size and --seq-length, or a problem file)",
        f"tip: meshwright plan --model llama-3.1-8b --cluster dgx-h100 {batch}",
    ]


def test_a_folder_with_another_answer_is_refused_before_the_search(
    home: dict[str, str], saved: Saved
) -> None:
    words = ["--pin", "tp=8", "--top-k", "1", "--save-dir", str(saved.folder)]
    run = meshwright("plan", *SMALL, *BATCH, *words, env=home)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.splitlines()[-2].endswith("Choose another folder, or add --force")
    assert run.stderr.endswith(f"--save-dir {saved.folder} --force\n")


def test_a_folder_of_something_else_is_refused_and_left_alone(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    run = meshwright("plan", *SMALL, *BATCH, "--save-dir", str(tmp_path), env=home)
    assert run.returncode == 2
    assert "contains other files. Choose another folder, or add --force" in run.stderr
    assert not (tmp_path / "answer.json").exists()
