"""A command whose processes end with it."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def output_of(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """What a command that succeeds prints; one that takes too long is killed with all its processes.

    ``environment`` is added to this process's; PyTorch takes one thread.
    """
    with subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}, cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as running:  # fmt: skip
        try:
            out, said = running.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, said[-3000:]
    return out
