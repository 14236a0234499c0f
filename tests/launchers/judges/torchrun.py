"""Bash and torchrun of torch 2.13: every script is read, and torchrun parses the command it ends in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve
from torch.distributed.run import get_args_parser

STUB = '#!/bin/sh\nprintf "%s\\n" "$@"\n'
FILLED = (
    "BRIDGE_SCRIPT", "TRAIN_SCRIPT", "NANOTRON_DIR", "SWIFT_DIR", "SWIFT_COMMAND", "LLAMA_FACTORY_DIR",
    "MEGATRON_LM_DIR", "MODEL", "DATASET", "OUTPUT_DIR", "LR", "HF_ASSETS_PATH",
)  # fmt: skip


def judge(case: Case) -> Seen:
    """The ranks that the scripts start."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            path = Path(folder) / name
            path.write_text(text)
            if path.suffix in {".sh", ".sbatch"}:
                subprocess.run(["bash", "-n", path], check=True, capture_output=True)
        words = started(Path(folder), case.get("node_rank", 0))
    if "--machine_rank" in words:  # accelerate launch: its own judge reads the file that it names
        return {"last_rank": int(words[words.index("--machine_rank") + 1])}
    args = get_args_parser().parse_args(words)
    return {"num_gpus": int(args.nnodes) * int(args.nproc_per_node), "last_rank": args.node_rank}


def started(folder: Path, node_rank: int) -> list[str]:
    """The arguments of the command that ``launch.sh`` becomes."""
    for command in ("torchrun", "accelerate"):
        stub = folder / "bin" / command
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(STUB)
        stub.chmod(0o755)
    own = folder / "bin" / "run.yaml"
    own.write_text("base_model: model\n")
    environment = {
        "RUN_CONFIG": str(own),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "MASTER_ADDR": "node0",
        "NODE_RANK": str(node_rank), "MOCK_DATA": "1", "CHECK_PACKAGES": "0",
        **dict.fromkeys(FILLED, "train.py"),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", folder / "launch.sh"], env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise ValueError(done.stderr[-200:])
    return done.stdout.splitlines()


if __name__ == "__main__":
    serve(judge)
