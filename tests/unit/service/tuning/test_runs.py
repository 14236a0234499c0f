"""``meshwright tune`` with real processes: what they log teaches, what hangs is killed, a start goes on."""

import json
import os
import re
import subprocess
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.cli import tune
from meshwright.service.cli.main import app
from meshwright.service.files import write_text
from meshwright.service.jobs.answers import answer_document
from meshwright.service.requests.parse import parse_problem
from meshwright.service.tuning import runs as running
from meshwright.service.tuning.decide import believed, held, next_plan, report_of, standing
from meshwright.service.tuning.runs import RunOptions, RunResult, end_leftovers, run_plan
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.builders import a_configuration
from tests.processes import slurm

# Steps as Megatron-LM logs them; the plan decides how long they take.
LOGS = """
for step in 1 2 3 4 5 6; do
    echo " iteration        $step/ 10 | elapsed time per iteration (ms): $1 | loss: 2.0"
done
sleep 0.11  # a run is longer than its steps
"""


@cache
def asked() -> tuple[Problem, Profile, Answer]:
    problem = parse_problem(
        {"model": {"name": "gpt-3-350m"}, "cluster": {"name": "dgx-h100", "num_nodes": 1},
         "workload": {"global_batch_size": 64, "seq_length": 2048}, "launcher": "megatron-lm",
         "search": {"top_k": 6, "diverse": False, "certify": "none"}}
    )  # fmt: skip
    profile = default_profile(problem.cluster, problem.launcher)
    return problem, profile, ask(problem, profile)


def run(
    folder: Path, script: str, *, limit_s: float = 20.0, config: Configuration | None = None
) -> RunResult:
    (folder / "train.sh").write_text(script)
    start = RunOptions(command=("bash", "{save_dir}/train.sh", "{steps}"), steps=7, limit_s=limit_s)
    return run_plan("aaa", config or a_configuration(), folder, start)


def test_the_steps_of_a_log_are_measured(tmp_path: Path) -> None:
    found = run(tmp_path, LOGS.replace("$1", "250.0"))
    assert (found.outcome, found.step_time_s) == ("measured", 0.25)
    assert found.gpu_minutes == pytest.approx(found.seconds * a_configuration().num_gpus / 60)


def test_a_script_may_state_its_figures_as_json(tmp_path: Path) -> None:
    found = run(tmp_path, """echo '{"step_time_s": 0.5, "peak_memory_bytes": 1000, "loss": 2}'""")
    assert (found.step_time_s, found.peak_memory_bytes) == (0.5, 1000)
    assert run(tmp_path, """echo '{"step_time_s": 2}'""").step_time_s == 2.0  # without a point
    assert run(tmp_path, """echo '{"step_time_s": Infinity}'""").outcome == "failed"
    device = run(
        tmp_path, """echo '{"step_time_s": 2, "peak_memory_bytes": 3e9, "memory_kind": "device"}'"""
    )
    assert (device.peak_memory_bytes, device.memory_kind) == (3e9, "device")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('"peak_memory_bytes": 3e9, "memory_kind": "nvidia-smi"', "memory_kind.*reserved, device"),
        ('"peak_memory_bytes": "3 GB"', "peak_memory_bytes.*is not a finite number"),
    ],
)
def test_a_peak_that_nobody_can_learn_from_ends_the_tuning_before_it_is_kept(
    tmp_path: Path, said: str, message: str
) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        run(tmp_path, f"echo '{{\"step_time_s\": 2, {said}}}'")


def test_a_run_out_of_memory_and_one_that_fails_are_told_apart(tmp_path: Path) -> None:
    out = run(
        tmp_path, "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB'; exit 1"
    )
    assert out.outcome == "out of memory"
    thrown = run(tmp_path, "echo 'terminate called after throwing an instance of std::bad_alloc'; exit 134")
    assert thrown.outcome == "out of memory"  # a rank's C++ threads raise nothing that Python could name
    failed = run(tmp_path, LOGS.replace("$1", "1.0") + "echo 'no such tokenizer' >&2; exit 3")
    assert (failed.outcome, failed.step_time_s) == ("failed", None)  # what broke off is no measurement
    assert "no such tokenizer" in failed.said


def test_a_hung_run_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "GRACE_S", 0.3)
    # a rank of torchrun has a session of its own; this one does not even listen to SIGTERM
    rank = "trap '' TERM; echo $$ > $MESHWRIGHT_SAVE_DIR/rank.pid; while true; do sleep 1; done"
    script = f'setsid bash -c "{rank.replace("$", chr(92) + "$")}" &\nsleep 600'
    began = time.monotonic()
    found = run(tmp_path, script, limit_s=1.0)
    assert found.outcome == "hung"
    assert time.monotonic() - began < 300  # the run itself would sleep for 600
    state = Path(
        f"/proc/{int((tmp_path / 'rank.pid').read_text())}/stat"
    )  # gone, or dead and not yet buried
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


PLAN = """#!/bin/bash
#SBATCH --nodes=2
cd "${SLURM_SUBMIT_DIR}"
srun --nodes=2 --ntasks=2 --kill-on-bad-exit=1 bash task.sh &
wait $!
"""


def slurm_run(folder: Path, monkeypatch: pytest.MonkeyPatch, num_nodes: int, task: str) -> Path:
    """A plan of two nodes in an allocation of some; the folder of its programs."""
    programs = folder / "bin"
    programs.mkdir()
    for name, value in slurm.allocation(programs, num_nodes).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (folder / "launch.sbatch").write_text(PLAN)
    (folder / "task.sh").write_text(task)
    return programs


def test_a_plan_runs_on_the_nodes_of_a_slurm_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = 'echo "task ${SLURM_PROCID} on ${SLURMD_NODENAME}"\n' + LOGS.replace("$1", "250.0")
    slurm_run(tmp_path, monkeypatch, 2, task)
    found = run_plan("aaa", a_configuration(), tmp_path, RunOptions(command=(), steps=6, limit_s=120.0))
    assert (found.outcome, found.step_time_s) == ("measured", 0.25), found.said
    log = (tmp_path / "tune.log").read_text()
    assert "task 0 on n1\n" in log
    assert "task 1 on n2\n" in log


def test_within_srun_which_holds_the_nodes_a_plan_of_one_starts_itself_and_one_of_several_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``srun --pty bash``: another srun in it waits for ever, and every plan would be called hung."""
    slurm_run(tmp_path, monkeypatch, 2, "exit 1")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    start = RunOptions(command=(), steps=6, limit_s=120.0)
    with pytest.raises(InvalidProblemError, match="a plan of several nodes would wait"):
        run_plan("aaa", a_configuration(), tmp_path, start)
    (tmp_path / "launch.sbatch").write_text(PLAN.replace("--nodes=2", "--nodes=1"))
    (tmp_path / "launch.sh").write_text(LOGS.replace("$1", "250.0"))
    assert run_plan("aaa", a_configuration(), tmp_path, start).outcome == "measured"
    monkeypatch.setenv("SLURM_STEP_ID", "4294967290")  # salloc's own shell on the first node
    assert run_plan("aaa", a_configuration(), tmp_path, start).outcome == "failed"  # launch.sbatch


def test_a_node_that_fails_ends_the_run_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = 'if [ ${SLURM_PROCID} = 0 ]; then echo "RuntimeError: no GPU"; exit 3; fi; sleep 300'
    slurm_run(tmp_path, monkeypatch, 2, task)
    found = run_plan("aaa", a_configuration(), tmp_path, RunOptions(command=(), steps=6, limit_s=120.0))
    assert (found.outcome, "no GPU" in found.said) == ("failed", True)


def test_what_a_killed_tuning_left_on_other_nodes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes there cannot be seen from here; the srun that started them can, if it is not killed."""
    programs = slurm_run(tmp_path, monkeypatch, 2, "sleep 300")
    marked = {**os.environ, "MESHWRIGHT_SAVE_DIR": str(tmp_path), "SLURM_SUBMIT_DIR": str(tmp_path)}
    script = subprocess.Popen(["bash", tmp_path / "launch.sbatch"], env=marked, start_new_session=True)
    until = time.monotonic() + 120
    while not (programs / "steps" / "0").exists() and time.monotonic() < until:
        time.sleep(0.02)
    script.kill()
    script.wait()
    began = time.monotonic()
    assert end_leftovers(tmp_path) > 0
    subprocess.run([programs / "srun", "--nodes=2", "true"], check=True, timeout=120)  # the nodes are free
    assert time.monotonic() - began < 200  # which they would be after 300


def test_a_run_that_never_ends_but_logs_its_steps_is_measured(tmp_path: Path) -> None:
    found = run(tmp_path, LOGS.replace("$1", "40.0") + "sleep 600", limit_s=1.0)
    assert (found.outcome, found.step_time_s) == ("measured", 0.04)


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="nothing-of-that-name"):
        run_plan(
            "a",
            a_configuration(),
            tmp_path,
            RunOptions(command=("nothing-of-that-name",), steps=4, limit_s=1),
        )


@pytest.mark.parametrize(
    "script",
    [
        ': "${NO_SUCH_FOLDER:?set it to a checkout}"',
        "exec no-such-launcher train.py",
        "echo 'sh: 3: torchrun: not found'; exit 127",
        "python3 /none/pretrain_gpt.py || { echo ChildFailedError:; exit 1; }",
        "python3 -m no_such_launcher.train",
        "python3 -m no_such_launcher",
    ],
)
def test_what_every_plan_lacks_ends_the_tuning_at_its_first_run_and_is_forgotten(
    tmp_path: Path, script: str
) -> None:
    problem, _, answer = asked()
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    (tmp_path / "train.sh").write_text(script)
    code, _, said = tuned(tmp_path / "answer.json", tmp_path / "tuning", tmp_path / "train.sh")
    assert (code, "no plan can run" in said) == (2, True), said
    state = json.loads((tmp_path / "tuning" / "tuning.json").read_text())
    assert (state["runs"], state["running"]) == ([], None)  # set right, all of them are tried


def test_what_one_plan_lacks_after_another_was_measured_puts_it_out_of_the_race_alone(
    tmp_path: Path,
) -> None:
    problem, _, answer = asked()
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    script = tmp_path / "train.sh"
    script.write_text("mkdir $2/../first || exec no-such-kernel\nset -- 100.0 $2\n" + LOGS)
    folder = tmp_path / "tuning"
    words = ("--json", "--top", "2", "--confidence", "0.99")  # which one run does not give
    code, out, said = tuned(tmp_path / "answer.json", folder, script, *words)
    assert code == 0, said
    first, *others = json.loads(out)["runs"]
    assert first["outcome"] == "measured"
    assert {one["outcome"] for one in others} == {"failed"}
    assert re.search(r"^ +failed .*no-such-kernel", said, re.MULTILINE)  # told as it happens


@pytest.mark.parametrize("lacks", ["its own", "as all do by now"])
def test_a_tuning_that_goes_on_tells_what_one_plan_lacks_from_what_all_do(
    tmp_path: Path, lacks: str
) -> None:
    problem, _, answer = asked()
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    script, folder = tmp_path / "train.sh", tmp_path / "tuning"

    def goes_on(text: str) -> tuple[int, list[str], str]:
        script.write_text(text)
        given = (tmp_path / "answer.json", folder, script, "--top", "3")
        code, _, said = tuned(*given)
        return code, [one["outcome"] for one in kept_of(folder)], said

    # the first plan is measured, and the tuning is killed; the plan that comes next lacks a program
    steps = "mkdir $2/../first && set -- 100.0 $2 || set -- 200.0 $2\n" + LOGS + "sleep 0.1\n"
    goes_on(steps)
    state = json.loads((folder / "tuning.json").read_text())
    (folder / "tuning.json").write_text(json.dumps({**state, "runs": state["runs"][:1]}))
    again = "mkdir $2/../second && exec no-such-kernel\n" * (lacks == "its own") or "exec no-such-kernel\n"
    code, outcomes, said = goes_on(again + steps)
    if lacks == "its own":
        assert (code, outcomes[:3]) == (0, ["measured", "failed", "measured"]), said
    else:
        assert (code, outcomes, "no plan can run" in said) == (2, ["measured"], True), said


def kept_of(folder: Path) -> list[dict[str, str]]:
    """The runs of a tuning's folder."""
    runs: list[dict[str, str]] = json.loads((folder / "tuning.json").read_text())["runs"]
    return runs


def test_a_peak_in_megabytes_is_left_out_with_a_warning_and_the_step_beside_it_counts() -> None:
    """.35e9 weights of 4 bits on 8 GPUs are 2e7 bytes each; 40 000 are none of a GPU's peaks."""
    problem, profile, answer = asked()
    plan, names = answer.plans[0], {plan.plan_id: "a layout" for plan in answer.plans}
    found = believed(problem, plan, replace(measured(plan.plan_id, 1.0), peak_memory_bytes=40_000.0))
    assert (found.outcome, found.step_time_s, found.peak_memory_bytes) == ("measured", 1.0, None)
    told = report_of(standing(problem, profile, answer.plans, [found]), names, "It ends.")
    assert "measured: `its peak is left out: 3.725e-05 GiB cannot hold" in told


def test_a_step_faster_than_its_gpus_is_refused_with_the_reason_and_the_tuning_goes_on(
    tmp_path: Path,
) -> None:
    """64 x 2048 tokens of .35e9 weights are 3e14 FLOPs: .03 s of eight GPUs at 1e15, not .001 s."""
    problem, _, answer = asked()
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    script = tmp_path / "train.sh"  # the first run alone states milliseconds as seconds
    slower = "mkdir $2/../second && set -- 100.0 $2 || set -- 200.0 $2"
    script.write_text(f"mkdir $2/../first && set -- 1.0 $2 || {{ {slower}; }}\n{LOGS}sleep 0.1\n")
    folder = tmp_path / "tuning"
    for _ in range(2):
        code, out, said = tuned(tmp_path / "answer.json", folder, script, "--json", "--top", "2")
        assert code == 0, said
        first, *others = json.loads(out)["runs"]
        assert (first["outcome"], first["step_time_s"]) == ("refused", None)
        assert "0.001 s is less than the" in first["said"]
        assert others[0]["outcome"] == "measured"


def test_a_step_longer_than_its_run_is_refused_with_the_reason() -> None:
    problem, _, answer = asked()
    plan = answer.plans[0]
    found = believed(problem, plan, measured(plan.plan_id, 1.5))
    assert (found.outcome, found.step_time_s) == ("refused", None)
    assert found.said == "a step of 1.5 s is longer than its whole run of 1 s"


def measured(plan_id: str, seconds: float | None, outcome: str = "measured") -> RunResult:
    return RunResult(
        plan_id=plan_id, outcome=outcome, seconds=1.0, gpu_minutes=0.1, step_time_s=seconds,  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_likeliest_runs_first_and_plans_that_cannot_run_are_out() -> None:
    problem, profile, answer = asked()
    before = standing(problem, profile, answer.plans, [])
    first = next_plan(problem, profile, before, 0.9)
    assert first is not None
    assert first == before.best
    ended = replace(measured(first.plan_id, None, "failed"), said="starting\nValueError: no data")
    after = standing(problem, profile, answer.plans, [ended])
    assert first.plan_id not in {plan.plan_id for plan in after.plans}
    assert len(after.plans) == len(answer.plans) - 1
    names = {plan.plan_id: "a layout" for plan in answer.plans}
    told = report_of(after, names, "It ends.")
    assert f"- plan {first.plan_id}: failed: `ValueError: no data`\n" in told


def test_a_plan_measured_far_faster_than_all_others_is_decided() -> None:
    problem, profile, answer = asked()
    times = [measured(plan.plan_id, 1.0 if rank else 0.5) for rank, plan in enumerate(answer.plans)]
    now = standing(problem, profile, answer.plans, times)
    assert now.best is not None
    assert now.best.plan_id == answer.plans[0].plan_id
    assert now.chance() > 0.9
    assert next_plan(problem, profile, now, 0.9) is None


def tuned(answer: Path, folder: Path, script: Path, *words: str) -> tuple[int, str, str]:
    line = ["tune", "--from", str(answer), "--save-dir", str(folder), *words, "--"]
    line += ["bash", str(script), "{micro_batch_size}", "{save_dir}"]
    done = CliRunner().invoke(app, line, standalone_mode=False)
    if isinstance(done.exception, InvalidProblemError):
        return 2, done.stdout, str(done.exception)
    code = done.return_value if isinstance(done.return_value, int) else done.exit_code
    return code, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "--budget-gpu-minutes", "inf"),
        ("tune", "--run-limit-s", "inf"),
        ("verify", "--memory-gib", "nan"),
        ("verify", "--memory-gib", "-1"),
        ("verify", "--time-limit", "inf"),
        ("jobs plans", "--max-memory-gib", "inf"),
    ],
)
def test_a_limit_that_is_none_starts_nothing(tmp_path: Path, words: tuple[str, str, str]) -> None:
    command, option, value = words
    source = () if command == "jobs plans" else ("--from", str(tmp_path / "none.json"))
    line = [*command.split(), *source, option, value]
    done = CliRunner().invoke(app, line, standalone_mode=False)
    assert isinstance(done.exception, InvalidProblemError)
    assert (option in str(done.exception), f"{value} is not a limit" in str(done.exception)) == (True, True)


def test_a_tuning_stops_at_its_budget_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    problem, _, answer = asked()
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    script = tmp_path / "train.sh"  # the larger the micro-batch, the longer the step: 100 ms and more
    script.write_text("set -- $((40 + 5 * $1)).0 $2\ndate >> $2/../started\n" + LOGS + "sleep 0.1\n")
    folder = tmp_path / "tuning"
    words = ("--top", "2", "--confidence", "0.99")  # which one run gives neither
    code, out, said = tuned(
        tmp_path / "answer.json", folder, script, *words, "--budget-gpu-minutes", "0.04"
    )
    assert (code, "The budget is used up." in out) == (0, True), said
    first = json.loads((folder / "tuning.json").read_text())["runs"]
    assert len(first) == 1  # 8 GPUs for 0.2 s and more are 0.03 GPU minutes; two such runs are too many
    code, out, said = tuned(tmp_path / "answer.json", folder, script, *words, "--json")
    assert code == 0, said
    found = json.loads(out)
    assert found["runs"][0] == first[0]  # nothing is run twice for nothing
    assert len(found["runs"]) > 1
    assert len((folder / "started").read_text().splitlines()) == len(found["runs"])
    by_id = {plan["plan_id"]: plan for plan in found["plans"]}
    times = {one["plan_id"]: one["step_time_s"] for one in found["runs"]}
    assert times[found["best"]] == min(times.values())
    assert by_id[found["best"]]["prediction"]["step_time_s"] == pytest.approx(
        times[found["best"]], rel=0.05
    )
    assert (folder / "profile.json").exists()
    assert "| plan | layout |" in (folder / "tuning.md").read_text()


def test_report_and_profile_are_written_while_no_other_tuning_may_work_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, _, answer = asked()
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    steps = "mkdir $2/../first && set -- 100.0 $2 || set -- 200.0 $2\n"
    (tmp_path / "train.sh").write_text("sleep 0.3\n" + steps + LOGS)  # longer than a step
    folder, refused = tmp_path / "tuning", []

    def watched(path: Path, text: str) -> None:
        if path.name in ("tuning.md", "profile.json"):
            with pytest.raises(InvalidProblemError, match="another tuning is running in"), held(folder):
                pass
            refused.append(path.name)
        write_text(path, text)

    monkeypatch.setattr(tune, "write_text", watched)
    code, _, said = tuned(
        tmp_path / "answer.json",
        folder,
        tmp_path / "train.sh",
        "--top",
        "1",
        "--budget-gpu-minutes",
        "1",
    )
    assert code == 0, said
    assert refused == ["tuning.md", "profile.json"]


def test_a_folder_of_another_question_is_refused(tmp_path: Path) -> None:
    problem, _, answer = asked()
    (tmp_path / "answer.json").write_text(json.dumps(answer_document(answer, problem)))
    (tmp_path / "tuning").mkdir()
    state = {"format": "meshwright-tuning-1", "problem": "another", "runs": []}
    (tmp_path / "tuning" / "tuning.json").write_text(json.dumps(state))
    code, _, said = tuned(tmp_path / "answer.json", tmp_path / "tuning", tmp_path / "train.sh")
    assert (code, "another question" in said) == (2, True)
