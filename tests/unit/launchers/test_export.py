"""What the exported scripts do when they are run, with a ``torchrun`` that only reports its call."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from meshwright.launchers.axolotl.export import export as export_axolotl
from meshwright.launchers.export import MIB, bucket_units
from meshwright.launchers.megatron_lm.export import export as export_megatron_lm
from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.target import ExportBundle, Target
from meshwright.launchers.torchtitan.export import PYTHON_FILE, SCHEDULES
from meshwright.launchers.torchtitan.export_model import constants_of
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.importers.registry import import_profile
from meshwright.profiles.measurements import MeasuredRun
from meshwright.profiles.model_parts import RotaryScaling
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Plan
from meshwright.solver.configuration import SPLIT_BACKWARD, Configuration
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_model, a_problem
from tests.launchers.cases import A100, DEEPSEEK_EXPERTS, DEEPSEEK_V3, LLAMA_70B, target
from tests.launchers.megatron_arguments import words
from tests.launchers.plans import CASES
from tests.launchers.training_logs import (
    deepspeed_log,
    megatron_arguments,
    megatron_log,
    nanotron_log,
    torchtitan_log,
    words_of_start,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The exported files of a two-node plan, and a ``torchrun`` that prints how it was called."""
    found = target(
        LLAMA_70B, Configuration(data_parallel_size=2, tensor_parallel_size=8, stage_layers=(80,))
    )
    for name, text in export_megatron_lm(found).files.items():
        (tmp_path / name).write_text(text)
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(
        '#!/bin/sh\necho "queues=$CUDA_DEVICE_MAX_CONNECTIONS allocator=$PYTORCH_CUDA_ALLOC_CONF"\n'
        'printf "%s\\n" "$@"\n'
    )
    torchrun.chmod(0o755)
    return tmp_path


def launch(folder: Path, *extra: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", folder / "launch.sh", *extra],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


HOST = {"MASTER_ADDR": "node0", "MEGATRON_LM_DIR": "/opt/megatron"}


def test_the_script_starts_torchrun_with_static_ranks_and_every_flag_of_the_plan(folder: Path) -> None:
    done = launch(folder, "--log-interval", "1", NODE_RANK="1", MOCK_DATA="1", **HOST)
    assert (done.returncode, done.stderr) == (0, "")
    seen = done.stdout.splitlines()
    assert seen[0] == "queues=1 allocator=expandable_segments:True"
    assert seen[1:5] == ["--nnodes", "2", "--nproc-per-node", "8"]
    assert seen[5:9] == ["--rdzv-backend", "static", "--node-rank", "1"]
    planned = words((folder / "megatron_args.sh").read_text())
    start = seen.index("/opt/megatron/pretrain_gpt.py") + 1
    assert seen[start : start + len(planned)] == planned
    assert "--mock-data" in seen
    assert seen[-2:] == ["--log-interval", "1"]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_allocator_that_the_user_has_chosen_by_either_name_stays(folder: Path, name: str) -> None:
    environment = {**HOST, "MOCK_DATA": "1", name: "max_split_size_mb:512"}
    assert "allocator=max_split_size_mb:512" in launch(folder, **environment).stdout


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "MEGATRON_LM_DIR: set it to a checkout of Megatron-LM"),
        ({"MEGATRON_LM_DIR": "/opt/megatron"}, "MASTER_ADDR: set it to the host of node rank 0"),
        ({**HOST, "NODE_RANK": "2"}, "NODE_RANK 2 is not one of 0 to 1"),
        (HOST, "DATA_PATH: set it to the prefix of an indexed data set"),
        ({**HOST, "DATA_PATH": "d"}, "TOKENIZER_TYPE: set it"),
        ({**HOST, "DATA_PATH": "d", "TOKENIZER_TYPE": "t"}, "TOKENIZER_MODEL: set it"),
        ({**HOST, "DATA_PATH": "d", "TOKENIZER_TYPE": "t", "TOKENIZER_MODEL": "m"}, "TRAIN_ITERS: set it"),
    ],
)
def test_the_script_says_what_is_missing(folder: Path, environment: dict[str, str], message: str) -> None:
    done = launch(folder, **environment)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("given", ["--fp32-residual-connection", "--moe-layer-recompute", "--skip-train"])
def test_the_script_refuses_a_flag_whose_run_was_not_priced(folder: Path, given: str) -> None:
    assert f"{given} belongs to the plan" in launch(folder, given, MOCK_DATA="1", **HOST).stderr


@pytest.mark.parametrize("given", ["--num-layers", "--num-layers=4"])
def test_the_script_refuses_a_flag_that_would_replace_one_of_the_plan(folder: Path, given: str) -> None:
    done = launch(folder, given, "4", MOCK_DATA="1", **HOST)
    assert done.returncode == 2
    assert "--num-layers belongs to the plan" in done.stderr


# What an exported Slurm script does when it runs, with a Slurm that places tasks as its manual says.


# Tasks in order: on the hosts of SLURM_HOSTFILE with arbitrary distribution, else on those of --nodelist.
SRUN = """#!/bin/bash
for option in "$@"; do
    case "${option}" in
        --ntasks=*) tasks="${option#*=}" ;;
        --distribution=*) how="${option#*=}" ;;
        --nodelist=*) IFS=, read -ra hosts <<<"${option#*=}" ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
[[ "${how}" != arbitrary ]] || mapfile -t hosts < "${SLURM_HOSTFILE}"
((${#hosts[@]} == tasks)) || echo "${tasks} tasks on ${#hosts[@]} hosts"
for ((task = 0; task < tasks; task++)); do
    echo "task ${task} on ${hosts[task]}"
    SLURM_PROCID="${task}" "$@" || exit
done
"""
SCONTROL = """#!/bin/sh
if [ "$1" = requeue ]; then echo "requeued $2"; exit; fi
seq -f host%g "$(echo "$3" | tr -dc 0-9 | cut -c2-)"  # of host[1-9]
"""
STARTED = '#!/bin/sh\nprintf "<%s>" "$(basename "$0")" "$@"; echo\n'
SITE = (
    "BRIDGE_SCRIPT", "TRAIN_SCRIPT", "NANOTRON_DIR", "SWIFT_DIR", "SWIFT_COMMAND", "LLAMA_FACTORY_DIR",
    "MEGATRON_LM_DIR", "MODEL", "DATASET", "OUTPUT_DIR", "LR", "HF_ASSETS_PATH",
)  # fmt: skip


def written(found: Target, launcher: str, folder: Path) -> Path:
    """The exported files in a folder whose name needs quotes, and the commands that they run."""
    place = folder / "my plan's $HOME"
    (place / "bin").mkdir(parents=True)
    for name, text in export(found.plan, found.problem, launcher).files.items():
        (place / name).write_text(text)
    (place / "own.yaml").write_text("base_model: x\n")
    for name, text in {
        "srun": SRUN,
        "scontrol": SCONTROL,
        "torchrun": STARTED,
        "accelerate": STARTED,
    }.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    return place


def sbatch(place: Path, nodes: int, *extra: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(place),
        "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": f"host[1-{nodes}]", "MOCK_DATA": "1",
        "CHECK_PACKAGES": "0",
        **dict.fromkeys(SITE, "/site folder/x.py"), "RUN_CONFIG": str(place / "own.yaml"), **more,
    }  # fmt: skip
    command = ["bash", str(place / "launch.sbatch"), *extra]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=place.parent
    )


# FlagScale's runner starts by ssh, and MaxText's processes ask their environment.
@pytest.mark.parametrize("launcher", sorted(CASES.keys() - {"flagscale", "maxtext"}))
def test_every_node_starts_with_its_own_rank_and_the_first_ones_address(
    launcher: str, tmp_path: Path
) -> None:
    """In an allocation of one node more, which stays idle, and whoever pays for it is told."""
    found = min(CASES[launcher].values(), key=lambda one: one.num_nodes)
    place = written(found, launcher, tmp_path)
    done = sbatch(place, found.num_nodes + 1, "--logging 1 2")
    spare = f"uses {found.num_nodes} of {found.num_nodes + 1} nodes, the others stay idle"
    assert (done.returncode, done.stderr) == (0, f"warning: the plan {spare}\n")
    tasks = done.stdout.splitlines()
    assert tasks[::2] == [f"task {rank} on host{rank + 1}" for rank in range(found.num_nodes)]
    for rank, called in enumerate(tasks[1::2]):
        own = "machine_rank" if called.startswith("<accelerate>") else "node-rank"
        assert f"<--{own}><{rank}>" in called
        assert "<host1>" in called
        assert called.endswith("<--logging 1 2>")


@pytest.mark.parametrize(
    ("way", "name"), [("loop", "eager"), ("batched", "batched_mm"), ("multi_stream", None)]
)
def test_axolotls_file_names_the_way_that_experts_were_priced_to_multiply(
    way: str, name: str | None
) -> None:
    found = CASES["axolotl"]["llama-3.1-70b-fsdp"]
    workload = replace(found.workload, framework_options={"grouped_gemm": way})
    bundle = export_axolotl(replace(found, problem=replace(found.problem, workload=workload)))
    own = next(yaml.safe_load(text) for path, text in bundle.files.items() if path.endswith("axolotl.yaml"))
    assert own.get("experts_implementation") == name


def test_a_key_of_the_plan_in_the_users_own_yaml_of_axolotl_is_refused(tmp_path: Path) -> None:
    found = min(CASES["axolotl"].values(), key=lambda one: one.num_nodes)
    place = written(found, "axolotl", tmp_path)
    (place / "own.yaml").write_text("base_model: x\nload_in_4bit: true\n")
    done = sbatch(place, found.num_nodes)
    assert done.returncode != 0
    assert "load_in_4bit in" in done.stderr
    assert "belongs to the plan" in done.stderr


@pytest.mark.parametrize(
    ("ran_s", "said"),
    [("3600", ["requeued 77", "ended", ""]), ("0", ["ended", ""])],
    ids=["an hour", "no time"],
)
def test_before_its_time_limit_a_job_that_ran_asks_slurm_to_queue_it_again(
    tmp_path: Path, ran_s: str, said: list[str]
) -> None:
    """Slurm queues a job again after a lost node, not after its limit (sbatch(1), --requeue).

    Under a limit below the notice the signal comes at once, and the job would be queued for ever.
    """
    found = min(CASES["deepspeed"].values(), key=lambda one: one.num_nodes)
    place = written(found, "deepspeed", tmp_path)
    (place / "bin" / "srun").write_text(
        "#!/bin/sh\nsleep 0.5\nkill -USR1 $PPID\nsleep 0.2\necho ended\nexit 3\n"
    )
    done = sbatch(place, found.num_nodes, SECONDS=ran_s)  # where bash begins to count
    assert done.stdout.split("\n") == said
    assert done.returncode == 3  # the run's own, though the signal ended a wait for it


def test_a_time_limit_that_is_near_while_the_nodes_are_looked_up_ends_no_job(tmp_path: Path) -> None:
    """Under a limit of less than five minutes Slurm gives its notice as the job starts."""
    found = min(CASES["deepspeed"].values(), key=lambda one: one.num_nodes)
    place = written(found, "deepspeed", tmp_path)
    (place / "bin" / "scontrol").write_text(SCONTROL.replace("\n", "\nkill -USR1 $PPID\n", 1))
    done = sbatch(place, found.num_nodes)
    assert done.returncode == 0, done.stderr


MIXED = Configuration(data_parallel_size=4, tensor_parallel_size=8, stage_layers=(80,))


def mixed() -> Target:
    """Two nodes of one kind, then two of another."""
    found = target(LLAMA_70B, MIXED)
    (group,) = found.problem.cluster.groups
    groups = (replace(group, num_nodes=2), replace(group, num_nodes=2, gpu=A100))
    return replace(
        found, problem=replace(found.problem, cluster=replace(found.problem.cluster, groups=groups))
    )


def test_the_order_of_hosts_is_that_of_the_file(tmp_path: Path) -> None:
    place = written(mixed(), "megatron-lm", tmp_path)
    without = sbatch(place, 4)
    assert without.returncode != 0
    assert "HOSTS_FILE: set it to a file of 4 hosts" in without.stderr
    (place / "our hosts").write_text("z9\nb2\na1\nc3\n")
    done = sbatch(place, 4, HOSTS_FILE="our hosts")
    assert (done.returncode, done.stderr) == (0, "")
    tasks = done.stdout.splitlines()
    assert tasks[::2] == ["task 0 on z9", "task 1 on b2", "task 2 on a1", "task 3 on c3"]
    assert all("<--master-addr><z9>" in words for words in tasks[1::2])


WRONG_HOSTS = {
    "one too few": "a\nb\nc\n", "one twice": "a\nb\nc\nc\n", "a line without": "a\n\nb\nc\n",
    "two on a line": "a\nb c\nd\ne\n", "commas": "a,b,c,d\n", "none": "",
    "another system's lines": "a\r\nb\r\nc\r\nd\r\n",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG_HOSTS.values(), ids=WRONG_HOSTS)
def test_a_list_of_hosts_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    place = written(mixed(), "megatron-lm", tmp_path)
    (place / "hosts").write_text(text)
    done = sbatch(place, 4, HOSTS_FILE="hosts")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hosts must name 4 hosts, each once, one a line" in done.stderr


def test_another_number_of_nodes_and_another_folder_are_refused(tmp_path: Path) -> None:
    place = written(mixed(), "megatron-lm", tmp_path)
    wrong = sbatch(place, 3)
    assert wrong.returncode == 2
    assert "needs 4 nodes, Slurm gave 3" in wrong.stderr
    elsewhere = sbatch(place, 4, SLURM_SUBMIT_DIR=str(tmp_path))
    assert elsewhere.returncode == 2
    assert "start this file from its own folder: launch.sh is not in" in elsewhere.stderr


# A plan with any schedule that a launcher has is exported for it, under the launcher's own name for it.

WITH_STAGES = [name for name in launcher_capabilities("torchtitan").schedules if name != "none"]


def asked(launcher: str, schedule: str, **pins: int) -> Problem:
    """16 layers on 16 GPUs."""
    model = a_model(num_layers=16, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    problem = a_problem(
        model=model, cluster=a_cluster(num_nodes=2), batch=64, top_k=2, certify="none",
        pin={"pipeline_schedule": schedule, **pins},
    )  # fmt: skip
    return replace(problem, launcher=launcher)


def found(problem: Problem) -> tuple[Plan, ...]:
    return search(problem, default_profile(problem.cluster, problem.launcher)).plans


@pytest.mark.parametrize("schedule", WITH_STAGES)
def test_torchtitan_starts_every_schedule_that_is_found_for_it(schedule: str) -> None:
    problem = asked("torchtitan", schedule, zero_stage=2)
    plans = found(problem)
    assert plans
    for plan in plans:
        files = export(plan, problem, "torchtitan").files
        assert f"pipeline_parallel_schedule={SCHEDULES[schedule]!r}" in files[PYTHON_FILE]
        compiled = "[]" if schedule in SPLIT_BACKWARD else '["model", "loss"]'
        assert f"components={compiled}" in files[PYTHON_FILE]


def test_nanotron_runs_all_forward_passes_first_by_another_engine() -> None:
    problem = replace(asked("nanotron", "gpipe"), model=a_model(), cluster=a_cluster(num_nodes=16))
    plans = found(problem)
    assert plans
    assert all(
        "pp_engine: afab" in export(one, problem, "nanotron").files["nanotron.yaml"] for one in plans
    )


# A dry start of ten steps logs enough step times for ``meshwright import``, whatever the launcher.

STEP_S = 6.9


def folder_of(bundle: ExportBundle, folder: Path) -> Path:
    for name, text in bundle.files.items():
        (folder / name).write_text(text)
    return folder


def read(folder: Path, text: str) -> MeasuredRun:
    (folder / "train.log").write_text(text)
    run = import_profile(folder / "train.log")
    assert isinstance(run, MeasuredRun)
    return run


@pytest.mark.parametrize("environment", [{}, {"TRAIN_ITERS": "6"}])
def test_megatron_lm(tmp_path: Path, environment: dict[str, str]) -> None:
    config = Configuration(data_parallel_size=2, tensor_parallel_size=8, stage_layers=(80,))
    folder = folder_of(export_megatron_lm(target(LLAMA_70B, config)), tmp_path)
    arguments = megatron_arguments(words_of_start(folder, **environment), 16)
    run = read(folder, megatron_log(arguments, STEP_S))
    assert run.step_time_s == pytest.approx(STEP_S, rel=0.003)
    # every step but the first two, which warm up
    assert run.num_steps == int(environment.get("TRAIN_ITERS", "10")) - 2
    assert run.flops_per_s_per_gpu == pytest.approx(400e12)


def test_a_real_run_of_megatron_lm_logs_every_tenth_step(tmp_path: Path) -> None:
    config = Configuration(data_parallel_size=2, tensor_parallel_size=8, stage_layers=(80,))
    folder = folder_of(export_megatron_lm(target(LLAMA_70B, config)), tmp_path)
    real = {"MOCK_DATA": "0", "DATA_PATH": "d", "TOKENIZER_TYPE": "t", "TOKENIZER_MODEL": "m", "LR": "1e-4"}
    arguments = megatron_arguments(words_of_start(folder, TRAIN_ITERS="90", **real), 16)
    assert read(folder, megatron_log(arguments, STEP_S)).step_time_s == pytest.approx(STEP_S, rel=0.003)


def test_megatron_bridge(tmp_path: Path) -> None:
    """``training_log`` in src/megatron/bridge/training/utils/train_utils.py prints Megatron-LM's line."""
    case = next(iter(CASES["megatron-bridge"].values()))
    folder = folder_of(export(case.plan, case.problem, "megatron-bridge"), tmp_path)
    words = [word.partition("=") for word in words_of_start(folder)]
    interval = next(value for name, _, value in words if name == "logger.log_interval")
    arguments = {"log_interval": interval, "train_iters": "10", "global_batch_size": "128"}
    assert read(folder, megatron_log(arguments, STEP_S)).step_time_s == pytest.approx(STEP_S, rel=0.003)


@pytest.mark.parametrize("name", list(CASES["deepspeed"]))
def test_deepspeed(tmp_path: Path, name: str) -> None:
    case = CASES["deepspeed"][name]
    files = export(case.plan, case.problem, "deepspeed").files
    pipeline = case.plan.config.pipeline_parallel_size > 1
    text = deepspeed_log(json.loads(files["ds_config.json"]), 64, STEP_S, pipeline=pipeline)
    run = read(tmp_path, text)
    assert run.step_time_s == pytest.approx(STEP_S, rel=1e-3)
    assert run.configuration["micro_batch_size"] == case.plan.config.micro_batch_size


def test_nanotron(tmp_path: Path) -> None:
    case = next(iter(CASES["nanotron"].values()))
    config = yaml.safe_load(export(case.plan, case.problem, "nanotron").files["nanotron.yaml"])
    run = read(tmp_path, nanotron_log(config, STEP_S))
    assert run.framework == "nanotron"
    assert run.step_time_s == pytest.approx(STEP_S, rel=0.005)  # three digits
    # dp 8 with 16 micro-batches of 1 sequence; tp 8 * dp 8 GPUs
    assert (run.configuration["global_batch_size"], run.configuration["num_gpus"]) == (128, 64)


def test_torchtitan(tmp_path: Path) -> None:
    case = next(iter(CASES["torchtitan"].values()))
    folder = folder_of(export(case.plan, case.problem, "torchtitan"), tmp_path)
    # 128 sequences of 8192 tokens on 64 GPUs in 16.384 s: 1000 tokens a second and GPU
    text = "Building device mesh with parallelism: dp_shard=64\n"
    text += "Trainer is initialized with local batch size 1, global batch size 128, "
    text += "gradient accumulation steps 2, sequence length 8192\n"
    run = read(folder, text + torchtitan_log(words_of_start(folder), 1000.0))
    assert run.step_time_s == pytest.approx(16.384, rel=1e-3)


@pytest.mark.parametrize(
    ("version", "key"), [(None, "dataset.sequence_length"), ("0.3.1", "dataset.sequence_length"),
                         ("0.6.0", "++dataset.seq_length")]
)  # fmt: skip
def test_megatron_bridge_is_told_the_datas_length_by_the_key_of_its_release(
    version: str | None, key: str
) -> None:
    case = CASES["megatron-bridge"]["llama-3.1-70b-fsdp"]
    files = export(case.plan, case.problem, "megatron-bridge", version=version).files
    assert f"    {key}=8192\n" in files["plan_args.sh"]
    assert "++" not in files["plan_args.sh"] or version == "0.6.0"


def test_a_release_whose_files_are_not_known_is_refused_with_those_that_are() -> None:
    case = CASES["torchtitan"]["llama-3.1-70b-fsdp"]
    assert export(case.plan, case.problem, "torchtitan", version="0.3.1").files
    for version in ("0.2.2", "0.9"):
        with pytest.raises(InvalidProblemError, match=rf"torchtitan {version} is not known.*0\.3"):
            export(case.plan, case.problem, "torchtitan", version=version)
    case = CASES["nanotron"]["llama-3-70b-tensor"]
    with pytest.raises(InvalidProblemError, match=r"llama-factory-accelerate 0.8 is not known.*0\.9, v1"):
        export(case.plan, case.problem, "llama-factory-accelerate", version="0.8")
    for launcher in set(launcher_names()) - {"torchtitan", "megatron-bridge", "llama-factory-accelerate"}:
        for version in ("0.4", "0.16", "0"):
            with pytest.raises(InvalidProblemError, match=f"{launcher} has one kind of files") as fault:
                export(case.plan, case.problem, launcher, version=version)
            assert "leave it out (its files were tested with" in str(fault.value)


def test_llama_factory_keeps_gradients_of_bf16_runs_in_fp32_whatever_is_asked() -> None:
    case = CASES["llama-factory"]["llama-3.1-405b-uneven"]
    options = {"gradient_dtype": "bf16"}
    workload = replace(case.workload, framework_options=options)
    problem = replace(case.problem, workload=workload)
    with pytest.raises(RefusedExportError, match=r"its adapter keeps gradients in fp32"):
        export(case.plan, problem, "llama-factory")
    files = export(case.plan, case.problem, "llama-factory").files
    said = files["llama_factory.yaml"].replace("grads_in_fp32: true", "grads_in_fp32: false")
    read = read_launch_files(Source(name="llama_factory.yaml", text=said, files={}))
    assert any("does nothing with bf16" in note for note in read.notes)
    assert read.workload == case.workload


def test_torchtitan_compiles_what_was_priced_as_compiled() -> None:
    case, apart = (
        next(iter(CASES["torchtitan"].values())),
        {"elementwise_fused": False, "norm_fused": False},
    )
    for options, compiled in (({}, "True"), (apart, "False")):
        problem = replace(case.problem, workload=replace(case.workload, framework_options=options))
        found = export(case.plan, problem, "torchtitan")
        assert f"CompileConfig(enable={compiled}" in found.files[PYTHON_FILE]
        assert not [one for one in found.warnings if "norm_fused" in one]
    both = {**apart, "overlap_tensor": True}
    problem = replace(case.problem, workload=replace(case.workload, framework_options=both))
    with pytest.raises(
        RefusedExportError, match=r"overlap_tensor: true contradicts elementwise_fused = false"
    ):
        export(case.plan, problem, "torchtitan")


def test_a_readme_tells_what_the_request_states_from_what_the_search_chose() -> None:
    found = CASES["torchtitan"]["llama-3.1-70b-fp8"]
    stated = replace(
        found.problem,
        workload=replace(found.workload, precision="bf16", framework_options={"overlap_tensor": True}),
    )
    chosen = replace(found.plan, workload={"precision": "fp8", "precision_recipe": "fp8-rowwise"})
    readme = export(chosen, stated, "torchtitan").files["README.md"]
    assert "| `overlap_tensor` | true (stated in the request) |" in readme
    assert "| `precision_recipe` | fp8-rowwise (chosen by the search) |" in readme
    assert "| `precision` | fp8 (chosen by the search) |" in readme
    assert "| `optimizer` | adamw |" in readme
    assert "asked for" not in readme


def test_every_node_of_maxtext_is_one_jax_process_that_meets_at_the_first(tmp_path: Path) -> None:
    found = CASES["maxtext"]["mixtral-8x7b-experts"]
    place = written(found, "maxtext", tmp_path)
    python = place / "bin" / "python3"
    python.write_text(
        '#!/bin/sh\necho "$NODE_RANK of $NNODES at $JAX_COORDINATOR_IP:$JAX_COORDINATOR_PORT"'
        ' "$XLA_PYTHON_CLIENT_MEM_FRACTION ${PYTORCH_CUDA_ALLOC_CONF:-no torch}" "$(basename "$3")" "$4"\n'
    )
    python.chmod(0o755)
    done = sbatch(place, found.num_nodes, "steps=30")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1::2] == [
        f"{rank} of 4 at host1:29500 0.95 no torch maxtext.yml steps=30" for rank in range(4)
    ]
    refused = sbatch(place, found.num_nodes, "ici_fsdp_parallelism=4")
    assert "ici_fsdp_parallelism belongs to the plan" in refused.stderr


@pytest.mark.parametrize(("size", "units"), [(1000, 1), (3 * MIB + 5, 3), (0, None)])
def test_a_gradient_bucket_is_of_whole_units_and_at_least_one(size: int, units: int | None) -> None:
    found = target(LLAMA_70B, Configuration(stage_layers=(80,)))
    options = {"bucket_bytes": size}
    work = replace(found.workload, framework_options=options)
    assert bucket_units(replace(found, problem=replace(found.problem, workload=work)), MIB) == units


def test_rotary_positions_of_latent_attention_keep_the_length_that_they_were_trained_for() -> None:
    yarn = RotaryScaling(kind="yarn", factor=4.0, original_max_position_embeddings=8192, mscale_all_dim=0.7)
    scaled, plain = (
        constants_of(target(replace(DEEPSEEK_V3, rotary_scaling=one), DEEPSEEK_EXPERTS))
        for one in (yarn, None)
    )
    assert (scaled["ROTARY_ORIGINAL_LENGTH"], scaled["SOFTMAX_MSCALE"]) == (8192, 0.7)
    # DeepseekV3 of torchtitan divides by them whatever is scaled: its defaults
    assert (plain["ROTARY_ORIGINAL_LENGTH"], plain["SOFTMAX_MSCALE"]) == (4096, 1.0)
