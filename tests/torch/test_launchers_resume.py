"""Megatron-LM and torchtitan train, are killed, and go on under another layout with a re-plan's files."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from meshwright.service.tuning.runs import end_leftovers
from tests.launchers.cpu_training import MEGATRON_LM, SCRIPTS, TORCHTITAN, OnCpu
from tests.processes import slurm
from tests.torch.test_tune import ROOT, meshwright

pytestmark = pytest.mark.timeout(1500)
PATIENCE_S = 600.0

STEPS, SAVED = 8, 4
BEYOND = 7  # a run is killed after this step: those since the checkpoint are done once more
LOSS = re.compile(r"iteration +(\d+)/.* lm loss: ([\d.E+-]+)|step: +(\d+) .*loss: +([\d.]+)")
COLOURS = re.compile(r"\x1b\[[\d;]*m")
ASKED = {"DATA_PATH": "drawn", "TOKENIZER_TYPE": "NullTokenizer", "TOKENIZER_MODEL": "none",
         "TRAIN_ITERS": str(STEPS), "LR": "1e-2", "LOG_INTERVAL": "1", "SAVE_INTERVAL": str(SAVED),
         "MASTER_ADDR": "127.0.0.1"}  # fmt: skip


def answered(launcher: OnCpu, folder: Path, **sizes: int) -> tuple[dict[str, str], str]:
    """``answer.json`` for two nodes of two processes, what runs find, and the rank of a layout in it."""
    problem = launcher.problem(2, 100)
    problem["cluster"]["groups"][0]["num_nodes"] = 2
    problem["search"] |= {"constraints": [], "diverse": False}
    (folder / "problem.json").write_text(json.dumps(problem))
    text = meshwright(folder, "plan", "problem.json", "--json")
    (folder / "answer.json").write_text(text)
    configs = [one["config"] for one in json.loads(text)["plans"]]
    rank = next(at for at, one in enumerate(configs, 1) if all(one[name] == sizes[name] for name in sizes))
    own = launcher.variables(folder)
    return {**own, "PYTHONPATH": f"{ROOT / 'src'}:{own['PYTHONPATH']}"}, str(rank)


class Started:
    """A start of a script on so many nodes of this machine."""

    def __init__(self, script: Path, nodes: int, environment: Mapping[str, str]) -> None:
        self.logs = [script.parent / f"{script.stem}.{rank}.log" for rank in range(nodes)]
        known = {**os.environ, **ASKED, **environment, "MESHWRIGHT_SAVE_DIR": str(script.parent)}
        self.children = []
        for rank, log in enumerate(self.logs):
            with log.open("wb") as out:
                child = subprocess.Popen(
                    ["bash", script], env={**known, "NODE_RANK": str(rank)}, stdout=out,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
                self.children.append(child)
        self.folder = script.parent

    def losses(self) -> dict[int, float]:
        """Of every step that was logged."""
        text = COLOURS.sub("", "\n".join(log.read_text(errors="replace") for log in self.logs))
        return {int(one[1] or one[3]): float(one[2] or one[4]) for one in LOSS.finditer(text)}

    def await_step(self, step: int) -> None:
        """Wait until a step was logged."""
        until = time.monotonic() + PATIENCE_S
        while max(self.losses(), default=0) < step:
            assert time.monotonic() < until, self.logs[0].read_text()[-3000:]
            time.sleep(0.02)

    def ended(self) -> dict[int, float]:
        """Its losses, once it has done all steps."""
        try:
            codes = [child.wait(PATIENCE_S) for child in self.children]
        finally:
            self.killed()
        assert not any(codes), self.logs[0].read_text()[-3000:]
        return self.losses()

    def killed(self) -> None:
        """All of its processes, at once."""
        for child in self.children:
            child.send_signal(signal.SIGKILL)
            child.wait()
        end_leftovers(self.folder)


def test_megatron_lm_goes_on_with_other_ranks_in_the_slurm_job_that_has_lost_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "slurm"
    programs.mkdir()
    for name, value in slurm.allocation(programs, 2, hosts=("127.0.0.1", "127.0.0.2")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    own, rank = answered(MEGATRON_LM, tmp_path, tensor_parallel_size=2, data_parallel_size=2, zero_stage=1)
    chosen = ("--from", "answer.json", "--rank", rank)
    meshwright(tmp_path, "export", *chosen, "--save-dir", "before")
    kept, before, after = tmp_path / "kept", tmp_path / "before", tmp_path / "after"
    own |= {"CHECKPOINTS": str(kept)}
    run = Started(before / "launch.sbatch", 1, own | {"SLURM_SUBMIT_DIR": str(before)})
    run.await_step(BEYOND)
    node_fails("127.0.0.2", of=before)
    (programs / "failed").write_text("127.0.0.2\n")
    assert run.children[0].wait(PATIENCE_S)  # srun ends the tasks of the other node
    run.killed()  # a process that a rank has started to save may outlive it
    losses = run.losses()
    shutil.rmtree(kept / f"iter_{STEPS:07d}", ignore_errors=True)  # if it was about to end
    (kept / "latest_checkpointed_iteration.txt").write_text(str(SAVED))

    lost = ("--cluster-from", "slurm", "--steps-done", "5", "--steps-total", str(STEPS), "--top-k", "1")
    said = meshwright(
        tmp_path, "replan", *chosen, *lost, "--checkpoint", str(kept), "--save-dir", "after", "--json",
        environment={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'client'}"},  # which knows schedulers
    )  # fmt: skip
    layout = json.loads(said)["ways"][0]["layout"]["config"]
    sizes = [layout[f"{axis}_parallel_size"] for axis in ("tensor", "pipeline", "data")]
    assert (sizes[0], sizes[1] * sizes[2]) == (1, 2)  # it was tensor 2 × data 2
    start = {"START": "bash launch.sbatch", "SLURM_SUBMIT_DIR": str(after)}
    went_on = Started(after / "resume.sh", 1, own | start).ended()
    assert sorted(went_on) == [5, 6, 7, 8]
    second = (losses[5] + losses[6]) / 2.0  # Megatron-LM's second line of a start is of two steps
    for step, loss in {5: losses[5], 6: second, 7: losses[7]}.items():
        assert went_on[step] == pytest.approx(loss, rel=1e-4), step  # as far as bf16 is the same


def node_fails(host: str, *, of: Path) -> None:
    """All processes of a node of the stand-in are gone at once, of the job of one folder."""
    marks = {f"SLURMD_NODENAME={host}".encode(), f"SLURM_SUBMIT_DIR={of}".encode()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # ended meanwhile
            if marks <= {*path.read_bytes().split(b"\0")}:
                os.kill(int(path.parent.name), signal.SIGKILL)


def test_torchtitan_goes_on_with_fewer_replicas_and_other_shards(tmp_path: Path) -> None:
    own, rank = answered(TORCHTITAN, tmp_path, data_parallel_size=4, zero_stage=2)
    chosen = ("--from", "answer.json", "--rank", rank)
    meshwright(tmp_path, "export", *chosen, "--save-dir", "before")
    run = Started(titan(tmp_path, "before", "kept", 4), 1, own)
    run.await_step(BEYOND)
    run.killed()
    losses = run.losses()

    kept = tmp_path / "kept" / "checkpoint"
    shutil.rmtree(kept / f"step-{STEPS}", ignore_errors=True)  # if it was about to end
    lost = ("--lost-nodes", "1", "--steps-done", "5", "--steps-total", str(STEPS), "--top-k", "20")
    replan = ("replan", *chosen, *lost, "--checkpoint", str(kept), "--json")
    found: dict[str, Any] = json.loads(meshwright(tmp_path, *replan))
    assert (found["checkpoint_format"], found["saved_step"]) == ("dcp", SAVED)
    # ZeRO-2 over 2 * 2 ranks becomes ZeRO-3 over 2, which accumulate: 8 sequences are 2 ranks * 2 * 2
    sizes = {"zero_stage": 3, "micro_batch_size": 2, "num_microbatches": 2, "data_parallel_size": 2}
    ways = [one for one in found["ways"] if sizes.items() <= one["layout"]["config"].items()]
    way = str(ways[0]["rank"])
    meshwright(tmp_path, *replan, "--way", way, "--save-dir", "after")
    start = {"START": command(tmp_path / "next", 2), "CHECKPOINTS": str(kept)}
    paths = f"{tmp_path / 'after'}:{own['PYTHONPATH']}"
    went_on = Started(tmp_path / "after" / "resume.sh", 1, own | start | {"PYTHONPATH": paths}).ended()
    assert sorted(went_on) == [5, 6, 7, 8]
    for step in range(SAVED + 1, BEYOND + 1):
        assert went_on[step] == pytest.approx(losses[step], rel=1e-4), step


def command(out: Path, processes: int) -> str:
    """What starts torchtitan 0.2 with the plan on the path."""
    options = (
        f"--module torchtitan_plan --config plan --job.dump_folder {out} --metrics.log_freq 1 "
        f"--training.steps {STEPS} --optimizer.lr 1e-2 --lr_scheduler.warmup_steps 1 --debug.seed 7"
    )
    return (
        f"torchrun --standalone --nproc-per-node {processes} {SCRIPTS / 'torchtitan_train.py'} {options} "
        f"--checkpoint.enable --checkpoint.interval {SAVED}"
    )


def titan(folder: Path, plan: str, out: str, processes: int) -> Path:
    """A script of one's own that starts torchtitan with the files of a plan."""
    script = folder / plan / f"{out}.sh"
    line = command(folder / out, processes)
    script.write_text(f'export PYTHONPATH="{folder / plan}:$PYTHONPATH"\nexec {line}\n')
    return script
