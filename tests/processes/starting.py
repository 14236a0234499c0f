"""Servers that get SIGTERM at random moments of their start."""

import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.processes.postgres_server import children_of, is_alive
from tests.processes.servers import SERVE, Settings, environment, until
from tests.processes.warm import Warm

ENDS_WITHIN_S = 30.0
CODES = frozenset({0, -signal.SIGTERM})  # the second before it is the product that runs


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One server that was to end: when it got the signal, and its exit code; None: it ran on."""

    after_s: float
    code: int | None


def end_during_start(
    settings: Settings, *, times: int, seed: int = 0, fresh: bool = False, signals: int = 1
) -> list[Ended]:
    """Start ``times`` servers and send each ``signals`` SIGTERMs before it is ready or a moment after.

    ``fresh``: each loads what it needs, as a server of users does; else it is forked with that loaded.
    """
    draw = random.Random(seed)
    ready_s = _ready_s(settings, fresh=fresh)
    found = []
    for number in range(times):
        after_s = (number + draw.random()) / times * 1.1 * ready_s
        process = _started(settings, fresh=fresh)
        time.sleep(after_s)
        workers = children_of(process.pid) if is_alive(process.pid) else []
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        found.append(Ended(after_s=after_s, code=_code(process)))
        until(lambda left=workers: not any(is_alive(pid) for pid in left), within_s=ENDS_WITHIN_S)  # type: ignore[misc]
    return found


def _ready_s(settings: Settings, *, fresh: bool) -> float:
    """How long a start takes here and now."""
    began_s = time.monotonic()
    process = _started(settings, fresh=fresh)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://")
    took_s = time.monotonic() - began_s
    process.terminate()
    assert _code(process) == 0
    return took_s


def _started(settings: Settings, *, fresh: bool) -> subprocess.Popen[str]:
    own, words = environment({"port": "0", **settings}), ["-c", SERVE]
    if not fresh:
        return Warm(words, env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return subprocess.Popen(
        [sys.executable, *words], env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _code(process: subprocess.Popen[str]) -> int | None:
    """The exit code of a process that was to end; one that runs on is killed."""
    try:
        return process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
    finally:
        if process.stdout is not None:
            process.stdout.close()


def main(folder: Path, times: int) -> bool:
    """Report how ``times`` starts ended; whether all did."""
    settings = {"database_url": f"sqlite:///{folder / 'jobs.db'}", "workers": "1"}
    found = end_during_start(settings, times=times, fresh=True)
    ended = [one for one in found if one.code in CODES]
    latest_s = max(one.after_s for one in found)
    print(f"starts={times} ended={len(ended)}, SIGTERM up to {latest_s:.1f} s after the start")  # noqa: T201 - a command's report
    return len(ended) == times
