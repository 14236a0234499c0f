"""The README shows what the product prints; ``UPDATE_README=1`` writes it anew."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COMMAND = (
    "meshwright plan --model llama-3.1-70b --cluster dgx-h100 --num-nodes 16"
    " --global-batch-size 512 --seq-length 8192 --top-k 5"
)
BLOCK = re.compile(r"(<!-- transcript: plan -->\n)```\n(.*?)```\n(<!-- end -->)", re.DOTALL)
ELAPSED = re.compile(r"\bin \d+(\.\d+)? s\b")


def printed(state: Path) -> str:
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "COLUMNS": "170", "NO_COLOR": "1"}
    command = [str(Path(sys.executable).parent / "meshwright"), *COMMAND.split()[1:]]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    lines = [line.rstrip() for line in run.stdout.strip().splitlines()]
    return f"$ {COMMAND}\n" + "\n".join(lines) + "\n"


def test_the_transcript_in_the_readme_is_what_the_command_prints(tmp_path: Path) -> None:
    text, now = README.read_text(), printed(tmp_path)
    if os.environ.get("UPDATE_README") == "1":
        README.write_text(BLOCK.sub(lambda found: f"{found[1]}```\n{now}```\n{found[3]}", text))
        text = README.read_text()
    shown = BLOCK.search(text)
    assert shown is not None
    # the search's own time is the one thing that differs from run to run
    assert ELAPSED.sub("in … s", shown[2]) == ELAPSED.sub("in … s", now)
