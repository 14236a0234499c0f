"""CPU seconds of the first commands and of a server's start, and the modules that each loads.

``python -m benchmarks.startup`` prints a table. Seconds are the median of five runs, with those of the
CP-SAT judge that a search starts; modules are compiled before. A server's seconds are those until it takes
requests, without workers, over a SQLite file with a current schema.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.service_place import cpu_s as cpu_s_of

ROOT = Path(__file__).parents[1]
RUNS = 5
FIRST = re.compile(r"^(?:\$ )?meshwright (plan .*--seq-length \d+.*)$", re.MULTILINE)


def commands() -> list[list[str]]:
    """Return the commands to time: help, and the README's first two searches."""
    shown = FIRST.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    return [["plan", "--help"], *(words.split() for words in sorted(shown[:2], key=len))]


def cpu_s(words: Sequence[str]) -> float:
    """Return the CPU seconds of one run, and of its children; no answer is kept from runs before."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = "from meshwright.service.cli.main import main; main()"
    with TemporaryDirectory() as state:
        run = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=environment | {"XDG_STATE_HOME": state},
        )
        _, status, used = os.wait4(run.pid, 0)
    if status:
        sys.exit(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


COUNT = "; print(sum(name.startswith('meshwright.') for name in sys.modules), file=sys.stderr)"


def modules(words: Sequence[str]) -> int:
    """Return how many modules of Meshwright a command has loaded at its end."""
    code = (
        "import sys; from meshwright.service.cli.main import app; app(sys.argv[1:], standalone_mode=False)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code + COUNT, *words], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return int(run.stderr.split()[-1])


COUNTED = """
import sys
from meshwright.service.cli import main
from meshwright.service.serving.serve import serve
print(sum(name.startswith("meshwright.") for name in sys.modules))
"""


def server_start(folder: Path) -> float:
    """Return the CPU seconds that ``meshwright serve`` needs to take requests."""
    own = {"MESHWRIGHT_DATABASE_URL": f"sqlite:///{folder / 'jobs.db'}"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = "from meshwright.service.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--workers", "0", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment | own,
    ) as server:
        next(iter(server.stdout or ()))  # its address, once it takes requests
        used_s = cpu_s_of(server.pid)
        server.terminate()
        server.communicate()
    return used_s


def main() -> None:
    """Measure and print."""
    print("| command | CPU s | modules |\n|---|---:|---:|")
    for words in commands():
        loaded = modules(words)  # compiles them as well
        seconds = median(cpu_s(words) for _ in range(RUNS))
        print(f"| `{' '.join(words)}` | {seconds:.2f} | {loaded} |", flush=True)
    with TemporaryDirectory() as folder:
        server_start(Path(folder))  # makes the schema, compiles its modules
        seconds = median(server_start(Path(folder)) for _ in range(RUNS))
    count = subprocess.run(
        [sys.executable, "-c", COUNTED], capture_output=True, text=True, cwd=ROOT, check=True
    )
    print(f"| `serve --workers 0`, until it takes requests | {seconds:.2f} | {int(count.stdout)} |")


if __name__ == "__main__":
    main()
