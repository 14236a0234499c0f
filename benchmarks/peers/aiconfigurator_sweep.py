"""Runs in the environment of aiconfigurator: its default sweep of serving configurations.

Standard input: JSON {"model", "gpus", "system"}. Standard output, last line: JSON {"version", "results"}.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    """Start its command line and count the configurations that it reports."""
    request = json.load(sys.stdin)
    command = [
        str(Path(sys.executable).parent / "aiconfigurator"), "cli", "default", "--no-color",
        "--model-path", request["model"], "--total-gpus", str(request["gpus"]),
        "--system", request["system"],
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    text = run.stdout + run.stderr
    results = [int(count) for count in re.findall(r"completed with (\d+) results", text)]
    if run.returncode or not results:
        raise SystemExit((text.strip().splitlines() or ["no output"])[-1])
    print(json.dumps({"version": version("aiconfigurator"), "results": sum(results)}))


if __name__ == "__main__":
    main()
