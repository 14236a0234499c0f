"""A launcher that asks the service for its parallel configuration: problem in, launch files out.

    pip install ./client && python examples/launcher_client.py examples/llama-3.1-70b-128xh100.json run/

The service's address comes from MESHWRIGHT_URL, its key from MESHWRIGHT_KEY. Started again with the same
problem and folder it finds the job that it had submitted before.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from meshwright_client.client import Client
from meshwright_client.errors import MeshwrightError
from meshwright_client.records import Progress, State


def main(problem_file: str, save_dir: str) -> int:
    """Submit, wait, export; 0: the files are there, 1: there is no plan."""
    text = Path(problem_file).read_bytes()
    same_again = hashlib.sha256(text + os.fsencode(Path(save_dir).resolve())).hexdigest()
    url = os.environ.get("MESHWRIGHT_URL", "http://127.0.0.1:8420")
    with Client(url, os.environ.get("MESHWRIGHT_KEY")) as service:
        job = service.submit(json.loads(text), idempotency_key=same_again)
        done = service.wait(job, timeout_s=600.0, on_progress=say)
        if done.state != "succeeded":
            reasons = done.infeasible.reasons if done.infeasible else [str(done.problem)]
            print(done.state, *reasons, sep="\n", file=sys.stderr)
            return 1
        answer = service.plans(done)
        best = answer.plans[0]
        export = service.export(best, save_dir=save_dir)
    print(f"{answer.status}: {best.prediction.step_time_s:.3g} s a step with {best.config}")
    print(*export.warnings, *sorted(str(Path(save_dir, name)) for name in export.files), sep="\n")
    return 0


def say(state: State, progress: Progress | None) -> None:
    """One line for every change."""
    explored = f", {progress.explored} of {progress.total}" if progress else ""
    print(f"{state}{explored}", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:3]))
    except MeshwrightError as fault:
        sys.exit(f"error: {fault}")
