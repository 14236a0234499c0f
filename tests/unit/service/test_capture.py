"""What ``meshwright capture`` keeps of real bash scripts, and that nothing is left running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.capture import MAX_SECONDS, Captured, capture
from meshwright.service.cli.main import app
from tests.launchers.plans import CASES


def run(folder: Path, text: str, *arguments: str, seconds: float = MAX_SECONDS) -> Captured:
    path = folder / "train.sh"
    path.write_text(text)
    return capture(["bash", str(path), *arguments], max_seconds=seconds)


def argv(found: Captured) -> list[str]:
    return [" ".join(call["argv"]) for call in json.loads(json.dumps(found.document))["calls"]]


def running(mark: str) -> str:
    return subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False).stdout


def test_functions_loops_arrays_and_background_processes_are_the_shells_own(tmp_path: Path) -> None:
    text = (
        'set -u\ngo() { torchrun --nproc_per_node 8 "$@"; }\nA=(--tp 2)\n'
        "for x in a 'b c'; do go t.py \"$x\" \"${A[@]}\"; done\nexport PATH=/nowhere:$PATH\n"
        "torchrun last.py $1 &\nwait\n"
    )  # fmt: skip
    found = run(tmp_path, text, "8")
    assert argv(found) == [
        "torchrun --nproc_per_node 8 t.py a --tp 2",
        "torchrun --nproc_per_node 8 t.py b c --tp 2",
        "torchrun last.py 8",
    ]


def test_srun_in_srun_goes_on_to_what_it_starts(tmp_path: Path) -> None:
    found = run(tmp_path, 'srun -N 4 srun bash -c "torchrun t.py --node_rank \\$SLURM_PROCID"\n')
    assert argv(found) == ["torchrun t.py --node_rank 0"]
    (call,) = json.loads(json.dumps(found.document))["calls"]
    assert call["before"] == [["srun", "-N", "4"], ["srun"]]


@pytest.mark.parametrize(
    "start",
    ["mpirun --np 4 --rank-by slot", "mpiexec -env A 1 --n 4", "srun -C gpu --mem-per-gpu 80G -W 60"],
)
def test_options_of_what_starts_ranks_take_their_values(tmp_path: Path, start: str) -> None:
    assert argv(run(tmp_path, f"{start} python t.py --tp 2\n")) == ["python t.py --tp 2"]


def test_a_python_that_a_script_reads_is_the_real_one_and_others_only_stand_in(tmp_path: Path) -> None:
    found = run(tmp_path, "N=$(python3 -c 'print(6 * 7)')\npython train.py --n $N\n")
    assert argv(found) == ["python train.py --n 42"]


def test_an_exported_script_is_captured_where_its_packages_are_not_installed(tmp_path: Path) -> None:
    (found,) = (case for name, case in CASES["nanotron"].items() if name == "llama-3-70b-tensor")
    for name, text in export(found.plan, found.problem, "nanotron").files.items():
        (tmp_path / name).write_text(text)
    text = f"MASTER_ADDR=host0 NANOTRON_DIR=/site bash {tmp_path / 'launch.sh'}\n"
    (called,) = argv(run(tmp_path, text))
    assert called.startswith("torchrun --nnodes 8 ")


def test_keys_are_left_out_and_variables_and_configurations_are_kept(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    text = f"cd {tmp_path}\nexport NNODES=2 WANDB_API_KEY=secret\ndeepspeed t.py --deepspeed ds.json\n"
    found = run(tmp_path, text)
    (call,) = json.loads(json.dumps(found.document))["calls"]
    assert call["environment"]["NNODES"] == "2"
    assert "secret" not in json.dumps(found.document)
    assert found.document["files"] == {"ds.json": '{"zero_optimization": {"stage": 2}}'}


def test_a_capture_is_read_as_a_launch_file(tmp_path: Path) -> None:
    text = (
        "if [ -e /proc ]; then TP=2; else TP=8; fi\n"  # only a running shell knows
        "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --bf16 "
        "--num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --vocab-size 512 "
        "--global-batch-size 8 "
        "--tensor-model-parallel-size $TP\n"
    )
    found = run(tmp_path, text)
    source = Source(name="run.json", text=json.dumps(found.document, indent=1))
    assert read_launch_files(source, Overrides()).configuration.tensor_parallel_size == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bomb() { bomb | bomb & }\nbomb\nsleep 50\n", "more than 200 processes"),
        ("yes\n", "more than 10 MB of output"),
        ("sleep 7919\n", "longer than 2 s"),
    ],
)
def test_what_goes_beyond_a_limit_is_ended_with_all_that_it_started(
    tmp_path: Path, text: str, why: str
) -> None:
    assert run(tmp_path, text, seconds=2.0 if "sleep 7919" in text else MAX_SECONDS).stopped == why
    assert running(str(tmp_path)) == ""
    assert running("sleep 7919") == ""


def test_what_left_its_session_is_ended_too(tmp_path: Path) -> None:
    found = run(tmp_path, "setsid sleep 7907 &\nnohup sleep 7907 &\ntorchrun t.py\n")
    assert argv(found) == ["torchrun t.py"]
    assert running("sleep 7907") == ""


def test_who_ends_the_command_is_more_urgent_than_all_that_it_started(tmp_path: Path) -> None:
    asks = "import os; print(*(os.getpriority(os.PRIO_PROCESS, process) for process in (1, 0)))"
    first, own = run(tmp_path, f"{sys.executable} -c '{asks}'\n").output.split()
    assert int(own) > int(first)  # which is process 1 of its namespace


def test_no_call_is_exit_code_2_with_the_last_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.sh"
    path.write_text("echo one\ntrue last words\n")
    with pytest.raises(SystemExit) as caught:
        app(["capture", "--", "bash", str(path)])
    assert caught.value.code == 2
    assert "The last command was: true last words" in capsys.readouterr().err


def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(InvalidProblemError, match="nothing-of-that-name: No such file"):
        capture(["nothing-of-that-name"])


def test_help_says_that_the_other_commands_do_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["capture", "--help"])
    assert "OTHER COMMANDS DO RUN" in " ".join(capsys.readouterr().out.split())
