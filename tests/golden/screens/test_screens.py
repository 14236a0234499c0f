"""The default answer to ten requests, as a person reads it.

Each screen tells a stranger what to run, how fast it is, whether it fits, how sure that is and what would
help. UPDATE_GOLDEN=1 writes the screens anew from the kept answers, and UPDATE_ANSWERS=1 asks again first.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from meshwright.service.jobs.answers import answer_from_json
from meshwright.service.report.terminal import render_summary
from meshwright.service.requests.parse import parse_problem

FOLDER = Path(__file__).parent
REQUESTS = {
    "70b-128-h100": "--model llama-3.1-70b --cluster dgx-h100 --num-nodes 16 --global-batch-size 512 "
    "--seq-length 8192",
    "lora-8b-one-h100": "--model llama-3.1-8b --gpu h100 --gpus-per-node 1 --num-nodes 1 --lora-rank 16 "
    "--global-batch-size 16 --seq-length 4096 --launcher trl",
    "qlora-8b-one-4090": "--model qwen3-8b --gpu rtx-4090 --gpus-per-node 1 --num-nodes 1 --lora-rank 16 "
    "--base-precision nf4 --global-batch-size 16 --seq-length 2048",
    "full-8b-four-a100-40gb": "--model qwen3-8b --gpu a100-sxm-40gb --gpus-per-node 4 --num-nodes 1 "
    "--global-batch-size 16 --seq-length 4096 --launcher trl",
    "moe-four-nodes": "--model gpt-oss-120b --cluster dgx-h100 --num-nodes 4 --global-batch-size 256 "
    "--seq-length 8192",
    "mixed-h100-a100": "--nodes 2xdgx-h100,2xdgx-a100 --model llama-3.1-8b --global-batch-size 64 "
    "--seq-length 4096",
    "nothing-fits": "--model llama-3.1-70b --gpu a100-sxm-40gb --gpus-per-node 8 --num-nodes 1 "
    "--global-batch-size 64 --seq-length 4096",
    "tpu-maxtext": "--model llama-3.1-8b --gpu tpu-v5p --num-nodes 4 --global-batch-size 64 "
    "--seq-length 4096 --launcher maxtext",
    "image-model": "--model qwen2.5-vl-7b --cluster dgx-h100 --num-nodes 1 --global-batch-size 64 "
    "--seq-length 4096 --images-per-sample 1 --image-tokens 1024",
    "long-context": "--model llama-3.1-8b --cluster dgx-h100 --num-nodes 4 --global-batch-size 16 "
    "--seq-length 131072",
}
WIDE = ("70b-128-h100", "nothing-fits")
NOT_SHOWN = ("why", "certified_by")  # of plans, and large
LINES = 24  # of a terminal; the answer leaves room for the command above it


def asked_again(name: str) -> None:
    """Ask, and keep of the answer what a screen shows."""
    command = [sys.executable, "-m", "meshwright", "plan", *shlex.split(REQUESTS[name]), "--json"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
    for plan in answer["plans"]:
        plan |= {"why": None}
    (FOLDER / "answers" / f"{name}.json").write_text(json.dumps(answer, separators=(",", ":")) + "\n")


def document_of(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / "answers" / f"{name}.json").read_text())
    return document


def screen_of(name: str, width: int) -> str:
    document = document_of(name)
    console = Console(width=width, file=io.StringIO(), highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(
            render_summary(answer_from_json(document), parse_problem(document["problem"]), width=width)
        )
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


@pytest.mark.parametrize(
    ("name", "width"), [*((name, 80) for name in REQUESTS), *((name, 160) for name in WIDE)]
)
def test_the_screen_is_the_one_that_was_read(name: str, width: int) -> None:
    path = FOLDER / f"{name}{'' if width == 80 else f'-{width}'}.txt"
    if os.environ.get("UPDATE_ANSWERS") and width == 80:
        asked_again(name)
    screen = screen_of(name, width)
    if os.environ.get("UPDATE_GOLDEN") or os.environ.get("UPDATE_ANSWERS"):
        path.write_text(screen)
    assert screen == path.read_text()
    assert len(screen.splitlines()) <= LINES


@pytest.mark.parametrize("name", REQUESTS)
def test_no_line_is_wider_than_the_terminal_and_what_is_pasted_is_on_one_line(name: str) -> None:
    for width in (60, 72, 100, 133):
        lines = screen_of(name, width).splitlines()
        pasted = [line for line in lines if line.strip().startswith(("meshwright ", "--"))]
        assert [line for line in lines if len(line) > width and line not in pasted] == []
        assert sum("meshwright export 1 --save-dir run/" in line for line in lines) == (
            bool(document_of(name)["plans"]) and document_of(name)["problem"]["launcher"] != "none"
        )
