"""A log of a plan's run: imported with the plan's facts, learnt from, and planned with again."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.launchers.registry import export
from meshwright.profiles.calibration import read_calibration
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli import saved_plans as kept
from meshwright.service.cli.calibrate import calibrate_command
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.import_file import ImportRequest, run_import
from meshwright.service.cli.predict import predict_command
from meshwright.service.cli.saved_plans import plan_of_file
from meshwright.service.jobs.answers import answer_document
from meshwright.service.report.measured import measured_lines
from meshwright.service.requests.costs import measured_of_question
from meshwright.service.requests.measured_runs import shape_of_plan
from meshwright.service.requests.parse import problem_to_mapping
from meshwright.solver.answer import Plan, settled_problem
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.runs.table import read_runs
from tests.builders import a_plan, a_problem, an_answer
from tests.launchers.training_logs import (
    deepspeed_log,
    megatron_arguments,
    megatron_log,
    nanotron_log,
    torchtitan_log,
    words_of_start,
)
from tests.processes.warm import run_warm

PROBLEM = a_problem()
PLAN = a_plan()  # tp 8, pp 4 of 5 chunks, dp 4: 128 GPUs, 512 sequences


def saved(folder: Path, problem: Problem = PROBLEM, plan: Plan = PLAN) -> Path:
    """The answer as ``plan --json`` writes it."""
    path = folder / "answer.json"
    path.write_text(json.dumps(answer_document(an_answer(plan), problem)))
    return path


def logged(folder: Path, step_s: float, **changes: str) -> Path:
    """What Megatron-LM would print in the dry start of the plan's exported files."""
    for name, text in export(PLAN, PROBLEM, "megatron-lm").files.items():
        (folder / name).write_text(text)
    arguments = megatron_arguments(words_of_start(folder), PLAN.config.num_gpus) | changes
    path = folder / "train.log"
    path.write_text(megatron_log(arguments, step_s))
    return path


def titan_log(folder: Path, step_s: float, world: str = "dp_shard=4, pp=4, tp=8") -> Path:
    """What torchtitan would print of the plan's sizes."""
    text = f"Building device mesh with parallelism: {world}\n"
    text += "Trainer is initialized with local batch size 128, global batch size 512, "
    text += "gradient accumulation steps 1, sequence length 8192\n"
    path = folder / "titan.log"
    path.write_text(text + torchtitan_log(["--metrics.log_freq", "1"], 512 * 8192 / 128 / step_s))
    return path


def imported(folder: Path, log: Path, **options: object) -> Path:
    table = folder / "runs.csv"
    options = {"plan": str(folder / "answer.json"), "into": table} | options
    assert run_import(ImportRequest(file=log, **options)) == 0  # type: ignore[arg-type]
    return table


def calibrated(table: Path) -> Path:
    out = table.with_name("ours.json")
    calibrate_command(table, out=out, json_output=True)
    return out


def expected_s(problem: Problem, plan: Plan, profile: Path | None = None) -> float:
    return predict(problem, profile_for(problem, profile), plan.config).step_time_s


@pytest.mark.parametrize("share", [0.9, 1.1, 1.25])
def test_the_measured_plan_is_predicted_as_it_was_measured(tmp_path: Path, share: float) -> None:
    saved(tmp_path)
    measured_s = share * expected_s(PROBLEM, PLAN)
    profile = calibrated(imported(tmp_path, logged(tmp_path, measured_s)))
    seen = predict(PROBLEM, profile_for(PROBLEM, profile), PLAN.config)
    assert seen.step_time_s == pytest.approx(measured_s, rel=0.03)
    assert seen.step_time_low_s < measured_s < seen.step_time_high_s
    assert 1.01 < seen.step_time_high_s / seen.step_time_s < 1.2


def test_importing_a_run_reports_predicted_measured_and_predicted_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path)
    measured_s = 1.1 * PLAN.prediction.step_time_s
    imported(tmp_path, logged(tmp_path, measured_s))
    said = capsys.readouterr().err
    assert (
        f"predicted {PLAN.prediction.step_time_s:.1f} s (-9.1 %), measured {measured_s:.1f} s" in said
    )  # 1 / 1.1
    assert "predicted now" in said
    assert "calibrated on this run" in said


def test_a_plan_is_priced_anew_under_a_profile_by_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = saved(tmp_path)
    profile = calibrated(imported(tmp_path, logged(tmp_path, 1.2 * expected_s(PROBLEM, PLAN))))
    capsys.readouterr()
    predict_command({}, plan=str(answer), profile=[profile], json_output=True)
    found = json.loads(capsys.readouterr().out)
    assert found["plan_id"] == PLAN.plan_id
    assert found["step_time_s_when_found"] == PLAN.prediction.step_time_s
    kept = plan_of_file(answer, 1)
    now_s = expected_s(settled_problem(kept.plan, kept.problem), kept.plan, profile)
    assert found["prediction"]["step_time_s"] == pytest.approx(now_s)


def test_a_measured_plan_is_found_again_with_its_question_and_with_no_other(tmp_path: Path) -> None:
    saved(tmp_path)
    measured_s = 1.2 * expected_s(PROBLEM, PLAN)
    profile = calibrated(imported(tmp_path, logged(tmp_path, measured_s)))
    costs = profile_for(PROBLEM, profile)
    (found,) = measured_of_question(PROBLEM, costs, [profile])
    assert found.configuration == PLAN.config
    assert found.measured_s == pytest.approx(measured_s, rel=0.003)
    assert found.prediction.step_time_s == pytest.approx(expected_s(PROBLEM, PLAN, profile))
    longer = replace(PROBLEM, workload=replace(PROBLEM.workload, seq_length=4096))
    assert measured_of_question(longer, costs, [profile]) == []


def test_measured_runs_are_listed_below_the_ranking_with_their_place(tmp_path: Path) -> None:
    saved(tmp_path)
    profile = calibrated(imported(tmp_path, logged(tmp_path, 1.2 * expected_s(PROBLEM, PLAN))))
    costs = profile_for(PROBLEM, profile)
    (mine,) = measured_of_question(PROBLEM, costs, [profile])
    twice = replace(mine.prediction, step_time_s=2 * mine.prediction.step_time_s)
    other = replace(PLAN.config, micro_batch_size=2)
    slow = replace(mine, name="slow", prediction=twice, configuration=other)
    first = replace(PLAN, prediction=mine.prediction)
    lines = [line.plain for line in measured_lines([mine, slow], [first], 200)]
    assert lines[1].strip() == "measured runs of this question, predicted with this profile:"
    assert lines[2].endswith("#1")
    assert lines[3].endswith("100.0 % slower than #1")


def test_a_plan_with_other_switches_is_not_the_measured_one(tmp_path: Path) -> None:
    saved(tmp_path)
    profile = calibrated(imported(tmp_path, logged(tmp_path, 1.2 * expected_s(PROBLEM, PLAN))))
    (mine,) = measured_of_question(PROBLEM, profile_for(PROBLEM, profile), [profile])
    switched = replace(PLAN, prediction=mine.prediction, workload={"cuda_graph": "full_iteration"})
    assert measured_lines([mine], [switched], 200)[2].plain.endswith("0.0 % slower than #1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_time_s", 0.0),
        ("framework_options", {"no_such_option": True}),
        ("config", asdict(replace(PLAN.config, stage_layers=(1, 2)))),
        ("config", asdict(replace(PLAN.config, micro_batch_size=-1))),
    ],
)
def test_a_measured_run_that_cannot_be_read_is_left_out(tmp_path: Path, name: str, value: object) -> None:
    saved(tmp_path)
    profile = calibrated(imported(tmp_path, logged(tmp_path, 1.2 * expected_s(PROBLEM, PLAN))))
    known = read_calibration(json.loads(profile.read_text()))
    changed = replace(known, measured=tuple({**one, name: value} for one in known.measured))
    assert measured_of_question(PROBLEM, profile_for(PROBLEM, profile), [known]) != []
    assert measured_of_question(PROBLEM, profile_for(PROBLEM, profile), [changed]) == []


def test_the_row_has_every_fact_of_the_plan(tmp_path: Path) -> None:
    saved(tmp_path)
    (run,) = read_runs(imported(tmp_path, logged(tmp_path, 30.0)), shape_of_plan)
    assert run.shape is not None
    assert problem_to_mapping(run.shape.problem) == problem_to_mapping(PROBLEM)
    assert (run.shape.configuration, run.shape.framework) == (PLAN.config, "megatron-core")
    assert run.measured.step_time_s == pytest.approx(30.0, rel=0.003)
    assert run.cluster == "dgx-h100"


def test_a_table_of_typed_rows_takes_a_plans_row_beside_them(tmp_path: Path) -> None:
    saved(tmp_path)
    log = logged(tmp_path, 30.0)
    options: dict[str, Any] = {"plan": None, "model": "llama-3.1-70b", "gpu": "h100", "cluster": "dgx-h100"}
    imported(tmp_path, log, assign=("run_id=typed",), **options)
    typed, planned = read_runs(imported(tmp_path, log), shape_of_plan)
    assert typed.shape is not None
    assert planned.shape is not None
    assert typed.shape.framework == planned.shape.framework == "megatron-core"
    assert typed.shape.configuration.tensor_parallel_size == 8
    # the same log of the same plan again replaces its row
    assert len(read_runs(imported(tmp_path, log), shape_of_plan)) == 2


def test_a_plan_is_named_by_its_kept_id_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept.keep(answer_document(an_answer(PLAN), PROBLEM), PROBLEM)
    table = imported(tmp_path, logged(tmp_path, 30.0), plan=PLAN.plan_id[:6])
    with table.open(encoding="utf-8") as handle:
        assert [row["run_id"] for row in csv.DictReader(handle)] == [f"{PLAN.plan_id}-train"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tensor_model_parallel_size": "4"},
            "tensor_parallel_size is 4 in the log, 8 in plan 7f3a90c1d2e4",
        ),
        ({"world_size": "64"}, "num_gpus is 64 in the log, 128 in"),
        ({"global_batch_size": "256"}, "global_batch_size is 256 in the log, 512 in"),
        ({"seq_length": "4096"}, "seq_length is 4096 in the log, 8192 in"),
        ({"bf16": "False", "fp16": "True"}, "precision is fp16 in the log, bf16 in"),
        ({"fp8": "hybrid"}, "precision is fp8 in the log, bf16 in"),
        ({"recompute_granularity": "full"}, "recompute is full in the log, none in"),
        ({"use_distributed_optimizer": "False"}, "zero_stage is 0 in the log, 1 in"),
        ({"sequence_parallel": "False"}, "sequence_parallel is 0 in the log, 1 in"),
        ({"num_layers": "40"}, "num_layers is 40 in the log, 80 in"),
        ({"virtual_pipeline_model_parallel_size": "2"}, "virtual_pipeline_size is 2 in the log, 5 in"),
    ],
)
def test_a_log_that_contradicts_its_plan_is_refused_with_both_values(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    saved(tmp_path)
    with pytest.raises(InvalidProblemError, match=message):
        imported(tmp_path, logged(tmp_path, 30.0, **changes))
    assert not (tmp_path / "runs.csv").exists()


def test_every_contradiction_is_named_at_once(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(InvalidProblemError) as raised:
        imported(tmp_path, logged(tmp_path, 30.0, seq_length="4096", num_layers="40"))
    assert len(raised.value.errors) == 2


def test_a_log_of_torchtitan_is_held_against_a_plan_of_torchtitan(tmp_path: Path) -> None:
    problem = replace(PROBLEM, launcher="torchtitan")
    saved(tmp_path, problem)
    (run,) = read_runs(imported(tmp_path, titan_log(tmp_path, 30.0)), shape_of_plan)
    assert run.shape is not None
    assert run.shape.framework == "fsdp"
    assert run.measured.step_time_s == pytest.approx(30.0, rel=1e-3)
    with pytest.raises(InvalidProblemError, match="tensor_parallel_size is 4 in the log, 8 in plan"):
        imported(tmp_path, titan_log(tmp_path, 30.0, "dp_shard=8, pp=4, tp=4"))


@pytest.mark.parametrize("zero", ["3", "1"])
def test_a_log_of_deepspeed_is_held_against_a_plan_of_deepspeed(tmp_path: Path, zero: str) -> None:
    config = replace(
        PLAN.config, tensor_parallel_size=1, sequence_parallel=False, data_parallel_size=32,
        zero_stage=3, zero_shard_size=32, num_microbatches=16,
    )  # fmt: skip
    saved(tmp_path, replace(PROBLEM, launcher="deepspeed"), replace(PLAN, config=config))
    settings: dict[str, object] = {
        "gradient_accumulation_steps": 16, "train_batch_size": 512, "train_micro_batch_size_per_gpu": 1,
        "steps_per_print": 1,
    }  # fmt: skip
    path = tmp_path / "ds.log"
    # the world of DeepSpeed's own configuration: 128 GPUs in 4 stages
    text = deepspeed_log(settings, 32, 30.0, pipeline=True)
    path.write_text(text + f"[config.py:1003:print]   zero_optimization_stage ...... {zero}\n")
    if zero == "3":
        (run,) = read_runs(imported(tmp_path, path), shape_of_plan)
        assert run.measured.step_time_s == pytest.approx(30.0)
        return
    with pytest.raises(InvalidProblemError, match="zero_stage is 1 in the log, 3 in plan"):
        imported(tmp_path, path)


def test_a_log_of_nanotron_is_held_against_a_plan_of_nanotron(tmp_path: Path) -> None:
    saved(tmp_path, replace(PROBLEM, launcher="nanotron"))
    parallel = {"dp": 4, "pp": 4, "tp": 8, "expert_parallel_size": 1, "context_parallel_size": 1}
    tokens = {"sequence_length": 8192, "train_steps": 10, "micro_batch_size": 1}
    config = {
        "parallelism": parallel,
        "tokens": {**tokens, "batch_accumulation_per_replica": 128},
        "logging": {"iteration_step_info_interval": 1},
    }
    path = tmp_path / "nano.log"
    path.write_text(nanotron_log(config, 30.0))
    (run,) = read_runs(imported(tmp_path, path), shape_of_plan)
    assert run.measured.step_time_s == pytest.approx(30.0)
    config["tokens"]["micro_batch_size"] = 2
    path.write_text(nanotron_log(config, 30.0))
    with pytest.raises(InvalidProblemError, match="micro_batch_size is 2 in the log, 1 in plan"):
        imported(tmp_path, path)


LOGS = Path(__file__).parents[2] / "profiles" / "fixtures" / "importers" / "logs"


@pytest.mark.parametrize(
    ("log", "options", "message"),
    [
        ("torchtitan.log", {}, "the log is torchtitan's, plan 7f3a90c1d2e4 is for launcher megatron-lm"),
        (None, {"model": "llama-3.1-70b"}, "--model: comes from the plan"),
        (None, {"assign": ("micro_batch_size=2",)}, "micro_batch_size is the plan's"),
        (None, {"plan": "b00c"}, 'no saved plan starts with "b00c"'),
        (None, {"rank": 7}, "none of rank 7"),
        ("../topology/topo_h100_8.txt", {}, "goes with a training log"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, log: str | None, options: dict[str, object], message: str
) -> None:
    saved(tmp_path)
    path = LOGS / log if log else logged(tmp_path, 30.0)
    with pytest.raises(InvalidProblemError) as raised:
        imported(tmp_path, path, **options)
    assert message in str(raised.value).replace("--plan: ", "")


def test_a_calibration_of_another_software_stack_is_refused(tmp_path: Path) -> None:
    """A log without Megatron's arguments could be of any Megatron: it is read as that of 2021."""
    log = logged(tmp_path, 90.0)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "transformer_impl" not in line))
    options: dict[str, Any] = {"plan": None, "model": "llama-3.1-70b", "gpu": "a100"}
    profile = calibrated(imported(tmp_path, log, assign=("context_parallel_size=1",), **options))
    with pytest.raises(InvalidProblemError) as raised:
        profile_for(PROBLEM, profile)
    (fault,) = raised.value.errors
    assert fault.pointer == "--profile"
    assert "stack megatron-classic, but you asked for megatron-core" in fault.message
    assert "problems under megatron-classic" in (fault.allowed or "")


def test_runs_of_two_stacks_under_one_name_are_not_learnt_from_together(tmp_path: Path) -> None:
    saved(tmp_path)
    table = imported(tmp_path, logged(tmp_path, 30.0))
    problem = replace(PROBLEM, launcher="torchtitan")
    saved(tmp_path, problem, replace(PLAN, plan_id="b00c"))
    imported(tmp_path, titan_log(tmp_path, 30.0))
    with pytest.raises(InvalidProblemError, match=r"several software stacks: fsdp .*, megatron-core"):
        calibrated(table)


def test_a_step_faster_than_the_stack_has_ever_been_is_not_learnt_from(tmp_path: Path) -> None:
    """Megatron-Core's best catalogued run in 16 bits, DGXC-0188, reaches 55.6 % MFU; this one 75 %."""
    saved(tmp_path)
    seq, sequences, gpus, peak = 8192, 512, 128, 989e12
    flops = PROBLEM.model.model_flops_per_token(seq) * seq * sequences / gpus
    table = imported(tmp_path, logged(tmp_path, flops / (0.75 * peak)))
    with pytest.raises(
        InvalidProblemError, match=r"7f3a90c1d2e4-train .* 75% MFU\. .*DGXC-0188\) reached 56%"
    ):
        calibrated(table)


def test_the_command_takes_the_plan_that_it_found(tmp_path: Path) -> None:
    """Plan, export, run, import, calibrate and plan again, as a shell runs them."""
    question = [
        "--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "1", "--global-batch-size", "64",
        "--seq-length", "4096", "--top-k", "1", "--certify", "none", "--allow", "none", "--json",
        "--launcher", "megatron-lm", "--objective", "tokens_per_s_per_gpu",
    ]  # fmt: skip

    def meshwright(*words: str) -> str:
        done = run_warm("-m", "meshwright", *words, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    answer = json.loads(meshwright("plan", *question))
    plan_id, before_s = (answer["plans"][0][name] for name in ("plan_id", "objective_s"))
    (tmp_path / "result.json").write_text(json.dumps(answer))
    meshwright("export", plan_id, "--launcher", "megatron-lm", "--save-dir", str(tmp_path / "run"))
    found = plan_of_file(tmp_path / "result.json", 1)
    arguments = megatron_arguments(words_of_start(tmp_path / "run"), found.plan.config.num_gpus)
    measured_s = 1.12 * before_s
    (tmp_path / "train.log").write_text(megatron_log(arguments, measured_s))
    table, profile = str(tmp_path / "runs.csv"), str(tmp_path / "ours.json")
    meshwright("import", str(tmp_path / "train.log"), "--plan", plan_id, "--into", table)
    meshwright("calibrate", table, "--out", profile)
    settled = settled_problem(found.plan, found.problem)
    seen = predict(settled, profile_for(found.problem, Path(profile)), found.plan.config)
    assert seen.step_time_s == pytest.approx(measured_s, rel=0.03)
    assert seen.step_time_low_s < measured_s < seen.step_time_high_s
    # a GPU that turned out slower is slower for the best plan, too, which may be another one now
    again = json.loads(meshwright("plan", *question, "--profile", profile))
    assert before_s < again["plans"][0]["prediction"]["step_time_s"] < 1.03 * measured_s
