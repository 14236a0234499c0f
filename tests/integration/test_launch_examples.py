"""Launchers that start under a scheduler: Slurm's steps, and each example as its scheduler starts it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from meshwright_client import Client
from tests.integration.test_choosing import TRAIN, with_batch
from tests.processes import slurm, warm
from tests.processes.servers import HANGS_S, RunningServer
from tests.processes.warm import ROOT

# As DeepSpeed's engine says each step that it prints (deepspeed/runtime/engine.py, _report_progress).
DEEPSPEED = """
import sys, time
print(*sys.argv[1:])
for step in range(1, 9):
    time.sleep(0.05)
    print(f"[INFO] [log_dist] [Rank 0] step={step}, skipped=0, lr=[0.1], mom=[0.9]", flush=True)
"""

EXAMPLES = ROOT / "examples" / "launchers"


def program(folder: Path, name: str, text: str) -> None:
    """A program on the path of an example."""
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def example_environment(server: RunningServer, folder: Path, **variables: str) -> dict[str, str]:
    """``meshwright`` as installed; a torchrun that runs the script once; nothing of a scheduler of ours."""
    (folder / "problem.json").write_text(json.dumps(with_batch(112)))
    (folder / "pretrain_gpt.py").write_text(TRAIN)
    programs = folder / "bin"
    programs.mkdir()
    warm.program(programs / "meshwright")
    script = "#!/usr/bin/env bash\nwhile [[ $1 != *.py ]]; do shift; done\n"
    program(programs, "torchrun", f'{script}RANK=$NODE exec {sys.executable} "$@"\n')
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {
        **clean, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'client'}", "MESHWRIGHT_URL": server.url,
        "PATH": f"{programs}:{os.environ['PATH']}", "NODE": "0",
        "CHECK_PACKAGES": "0",  # launchers and their packages are not installed here
        **variables,
    }  # fmt: skip


def all_ended(nodes: list[subprocess.Popen[str]]) -> list[str]:
    outputs = [one.communicate(timeout=HANGS_S) for one in nodes]
    assert {one.returncode for one in nodes} == {0}, outputs
    return [out for out, _ in outputs]


LAUNCH = ["meshwright", "launch", "--save-dir", "run"]
# A torchrun that says where it is and runs the script once; Megatron-LM's first node logs nothing.
TASK = """#!/usr/bin/env bash
echo "node ${NODE_RANK} of ${SLURM_NNODES}, the first is ${MASTER_ADDR}"
while [[ $1 != *.py ]]; do shift; done
RANK=$SLURM_PROCID exec PYTHON "$@"
"""


@pytest.mark.parametrize(
    ("given", "spare", "words", "started"),
    [
        (4, 0, ["srun", "--nodes=2", "--ntasks=2", *LAUNCH], "0 1 of 2"),  # a step of 2 of them
        (4, 0, LAUNCH, "0 1 2 3 of 4"),  # before any srun the plan starts all nodes itself
        (4, 0, [*LAUNCH, "--cluster-from", "cluster.json"], "0 1 2 3 of 4"),
        (1, 0, LAUNCH, "0 of 1"),  # salloc's shell stays on the login node, which is none of them
        (4, 2, LAUNCH, "0 1 of 2"),
        (4, 2, ["srun", *LAUNCH], "0 1 of 4"),  # the other two have nothing to do, and end well
    ],
)
def test_without_a_command_the_plan_starts_on_the_nodes_that_it_needs_of_a_step_or_an_allocation(  # noqa: PLR0917
    server: RunningServer, tmp_path: Path, given: int, spare: int, words: list[str], started: str
) -> None:
    environment = example_environment(server, tmp_path, MOCK_DATA="1", MEGATRON_LM_DIR=str(tmp_path))
    environment |= slurm.allocation(tmp_path / "bin", given, gpus_per_node=8)
    program(tmp_path / "bin", "torchrun", TASK.replace("PYTHON", sys.executable))
    (tmp_path / "problem.json").write_text(json.dumps(with_batch(112, reserve_nodes=spare)))
    (tmp_path / "cluster.json").write_text('{"name": "dgx-h100", "num_nodes": 4}')
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stderr
    told = sorted(re.findall(r"node \d of \d, the first is \w+", done.stdout))  # also within others' lines
    ranks, _, step = started.partition(" of ")
    assert told == [f"node {rank} of {step}, the first is n1" for rank in ranks.split()], done.stderr
    choice = json.loads((tmp_path / "run" / "meshwright.json").read_text())
    assert f"Nodes: {len(told)} of 8" in choice["files"]["launch.sbatch"]


def test_in_an_allocation_that_lost_a_node_the_plan_is_made_anew_for_those_that_are_left_and_starts_there(
    tmp_path: Path,
) -> None:
    """Of four nodes (--gpus=32, --gpus-per-task=1) n1 fails: 24 GPUs on n2 to n4 are left, whole nodes."""
    modules = f"{ROOT / 'src'}:{ROOT / 'client'}"
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": modules}
    (tmp_path / "bin").mkdir()
    environment |= {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "MEGATRON_LM_DIR": "/none",
        "CHECK_PACKAGES": "0",  # launchers and their packages are not installed here
    }
    environment |= {**slurm.allocation(tmp_path / "bin", 4, gpus_per_node=8), "SLURM_GPUS": "32"}
    environment |= {"SLURM_GPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "gres/gpu=1"}
    environment |= {"SLURM_TRES_BIND": "gres/gpu:per_task:1"}  # which salloc adds
    shares = "${SLURM_GPUS_PER_TASK-whole}, ${SLURM_TRES_PER_TASK-whole}${SLURM_TRES_BIND-}"
    said = f'#!/bin/sh\necho "node ${{NODE_RANK}}, the first is ${{MASTER_ADDR}}, {shares}"'
    program(tmp_path / "bin", "torchrun", said)
    asked = {**with_batch(96), "cluster": {"name": "dgx-h100", "num_nodes": 4}}
    (tmp_path / "problem.json").write_text(json.dumps(asked))

    def ran(*words: str) -> str:
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    warm.program(tmp_path / "bin" / "meshwright")
    ran("meshwright", "plan", "problem.json", "--save-dir", "run")
    (tmp_path / "bin" / "failed").write_text("n1\n")
    way = ("--cluster-from", "slurm", "--steps-done", "10", "--steps-total", "1000", "--save-dir", "run2")
    told = ran("meshwright", "replan", "--from", "run/answer.json", *way)
    assert "24    " in told.splitlines()[3]
    environment |= {"SLURM_SUBMIT_DIR": str(tmp_path / "run2"), "MOCK_DATA": "1"}
    started = sorted(ran("bash", str(tmp_path / "run2" / "launch.sbatch")).splitlines())
    assert started == [f"node {rank}, the first is n2, whole, whole" for rank in range(3)]


def test_a_command_of_ones_own_does_not_start_more_nodes_than_the_plan_needs(
    server: RunningServer, tmp_path: Path
) -> None:
    environment = example_environment(server, tmp_path)
    environment |= slurm.allocation(tmp_path / "bin", 4, gpus_per_node=8)
    (tmp_path / "problem.json").write_text(json.dumps(with_batch(112, reserve_nodes=2)))
    done = subprocess.run(
        ["srun", *LAUNCH, "--", "torchrun", "pretrain_gpt.py"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert "is for 2 nodes, slurm has started 4; start 2, or give no command" in done.stderr


def test_srun_with_a_task_for_every_gpu_cannot_start_the_plans_own_script(
    server: RunningServer, tmp_path: Path
) -> None:
    environment = example_environment(server, tmp_path)
    environment |= slurm.allocation(tmp_path / "bin", 1)
    done = subprocess.run(
        ["srun", "--ntasks-per-node=2", "meshwright", "launch", "--save-dir", "run"], cwd=tmp_path,
        env=environment, capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert "srun has started 2 tasks a node, launch.sh wants one: --ntasks-per-node=1" in done.stderr


def test_the_example_for_slurm_starts_every_node_with_one_plan(
    server: RunningServer, tmp_path: Path
) -> None:
    environment = example_environment(server, tmp_path)
    environment |= slurm.allocation(tmp_path / "bin", 2, gpus_per_node=8)
    program(tmp_path / "bin", "torchrun", TASK.replace("PYTHON", sys.executable))
    done = subprocess.run(
        ["bash", EXAMPLES / "slurm.sbatch"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=True, timeout=HANGS_S,
    )  # fmt: skip
    flags = [line for line in done.stdout.splitlines() if line.startswith("flags")]
    assert len(flags) == 2
    assert len(set(flags)) == 1
    assert (tmp_path / "run-7001" / "megatron_args.sh").is_file()


def test_the_example_for_megatron_bridge_hands_its_overrides_to_the_recipe_and_reads_its_log(
    server: RunningServer, tmp_path: Path
) -> None:
    environment = example_environment(server, tmp_path, BRIDGE_SCRIPT="pretrain_gpt.py")
    (tmp_path / "problem.json").write_text(json.dumps({**with_batch(224), "launcher": "megatron-bridge"}))
    (tmp_path / "cluster.json").write_text('{"name": "dgx-h100", "num_nodes": 1}')
    told = TRAIN.replace("if os.environ", 'print(*sys.argv[1:], sep="\\n")\nif os.environ').replace(
        '"0"', '"-"'
    )
    (tmp_path / "pretrain_gpt.py").write_text(told)
    done = subprocess.run(
        ["bash", EXAMPLES / "megatron_bridge.sh"], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=True, timeout=HANGS_S,
    )  # fmt: skip
    assert "\nlogger.log_interval=1\n" in done.stdout
    assert "\nmodel.tensor_model_parallel_size=" in done.stdout
    assert measured_of(server, tmp_path / "run") == (0.25, 12288 * 2**20)


def measured_of(server: RunningServer, save_dir: Path) -> tuple[float | None, int | None]:
    """What was reported of the plan that a start has chosen: seconds of a step, peak memory."""
    chosen = json.loads((save_dir / "meshwright.json").read_text())
    with Client(server.url) as client:
        reported = {one.job_id: one.measured for one in client.find_plans(measured=True)}
    measured = reported[chosen["job_id"]]
    assert measured is not None
    return measured.step_time_s, measured.peak_memory_bytes


def test_the_example_for_deepspeed_hands_its_json_to_the_script_and_reads_its_log(
    server: RunningServer, tmp_path: Path
) -> None:
    environment = example_environment(server, tmp_path)
    (tmp_path / "problem.json").write_text(json.dumps({**with_batch(56), "launcher": "deepspeed"}))
    (tmp_path / "cluster.json").write_text('{"name": "dgx-h100", "num_nodes": 1}')
    (tmp_path / "train.py").write_text(DEEPSPEED)
    done = subprocess.run(
        ["bash", EXAMPLES / "deepspeed.sh", "--epochs", "1"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=True, timeout=HANGS_S,
    )  # fmt: skip
    config = tmp_path / "run" / "ds_config.json"
    assert done.stdout.startswith(f"--epochs 1 --deepspeed --deepspeed_config {config}\n")
    assert json.loads(config.read_text())["train_batch_size"] == 56
    step_time_s, _ = measured_of(server, tmp_path / "run")
    assert (step_time_s or 0) > 0.03  # a step sleeps .05 s; its line may be read late, the next one in time


BAR = "{step}/90 [00:02<03:04, 2.07s/it]\\r   \\r{{'loss': 2.5, 'learning_rate': 1e-05}}"
LOGGED = {  # what each trainer prints at a step, and the file of the plan that it must be given
    "axolotl": (BAR, "axolotl.cli.train"),
    "trl": (BAR, "trl_sft.yaml"),
    "llama-factory": (BAR, "llama_factory.yaml"),
    "nanotron": (
        "[INFO|DP=0]: iteration: {step} / 90 | consumed_tokens: 8K | time_per_iteration_ms: 250 | loss: 2",
        "nanotron.yaml",
    ),
    "ms-swift": ("{{'loss': 1.5, 'iteration': '{step}/90', 'elapsed_time': '2s'}}", "--micro_batch_size"),
}
TRAINER = """
import sys, time
print(*sys.argv[1:])
for step in range(1, 9):
    time.sleep(0.05)
    print(f"{line}", flush=True)
"""


@pytest.mark.parametrize("launcher", LOGGED)
def test_the_examples_of_trainers_start_them_by_the_plans_own_script_and_read_their_logs(
    server: RunningServer, tmp_path: Path, launcher: str
) -> None:
    line, given = LOGGED[launcher]
    folder = str(tmp_path)
    own = dict.fromkeys(("LLAMA_FACTORY_DIR", "NANOTRON_DIR", "SWIFT_DIR"), folder)
    environment = {**example_environment(server, tmp_path, **own), "CHECK_PACKAGES": "0"}
    (tmp_path / "problem.json").write_text(
        json.dumps({**with_batch(56), "model": {"name": "tinyllama-1.1b"}, "launcher": launcher})
    )
    (tmp_path / "cluster.json").write_text('{"name": "dgx-h100", "num_nodes": 1}')
    (tmp_path / "run.yaml").write_text("learning_rate: 1.0e-5\n")
    (tmp_path / "trainer.py").write_text(TRAINER.replace("{line}", line))
    # whatever starts the trainer's processes here starts this in its place
    script = f'#!/bin/sh\nexec {sys.executable} {tmp_path / "trainer.py"} "$@"\n'
    for name in ("torchrun", "accelerate"):
        program(tmp_path / "bin", name, script)
    done = subprocess.run(
        ["bash", EXAMPLES / f"{launcher.replace('-', '_')}.sh"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    started = done.stdout.partition("\n")[0]
    assert given in started
    step_time_s, _ = measured_of(server, tmp_path / "run")
    assert (step_time_s or 0) > 0.03  # a step sleeps .05 s; its line may be read late, the next one in time


def test_the_example_for_kubernetes_starts_every_pod_with_one_plan(
    server: RunningServer, tmp_path: Path
) -> None:
    job = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())["spec"]
    environment = example_environment(server, tmp_path)
    nodes = []
    for rank, role in reversed(list(enumerate(("Master", "Worker")))):
        (container,) = job["pytorchReplicaSpecs"][role]["template"]["spec"]["containers"]
        told = {one["name"]: one["value"] for one in container["env"] if one["name"] != "MESHWRIGHT_URL"}
        own = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": job["nprocPerNode"], "PET_NODE_RANK": str(rank)}
        nodes.append(
            subprocess.Popen(
                container["command"],
                cwd=tmp_path,
                env={**environment, **told, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    assert len({out.partition("\n")[0] for out in all_ended(nodes)}) == 1


def test_the_example_of_a_script_of_ones_own_asks_and_reports(
    server: RunningServer, tmp_path: Path
) -> None:
    environment = example_environment(server, tmp_path)
    nodes = [
        subprocess.Popen(
            [sys.executable, EXAMPLES / "torchrun_train.py", "problem.json", "run"], cwd=tmp_path,
            env={**environment, "TORCHELASTIC_RUN_ID": "own", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8",
                 "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (8, 1, 0)  # of the other node, of this one, and who asks
    ]  # fmt: skip
    told = {out.partition(", ")[0] for out in all_ended(nodes)}
    (plan,) = {line.rpartition(" ")[2] for line in told}
    with Client(server.url) as client:
        reported = {one.plan_id: one for one in client.find_plans(measured=True)}
    measured = reported[plan].measured
    assert measured is not None
    assert (measured.step_time_s or 0) >= 0.05  # what a step sleeps, at least


def test_the_documented_lines_are_those_of_the_example() -> None:
    page = (ROOT / "docs" / "howto" / "launcher.md").read_text()
    lines = page.partition("```py\n")[2].partition("```")[0].strip()
    assert lines in (EXAMPLES / "torchrun_train.py").read_text()
    code = [line for line in lines.splitlines() if line.strip()]
    assert len(code) <= 15
