"""Compiled modules are kept beside pytest's cache, for this process and for all that tests start.

Where the environment forbids bytecode every command that a test runs would compile 300 modules anew.
Commands that tests start see no terminal: pytest-xdist would tell them of one with 80 columns. Ctrl-C is
an interrupt, for this process and for those, also where the tests run in the background of a shell.
"""

import gc
import os
import signal
import sys
from pathlib import Path

BYTECODE = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")

for name in ("PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", BYTECODE)
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as `nohup make test &` has it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay to the end: no search for garbage looks through them."""
    gc.freeze()
