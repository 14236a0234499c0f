"""Compiled modules are kept beside pytest's cache, for this process and for all that tests start.

Where the environment forbids bytecode every command that a test runs would compile 300 modules anew.
Commands that tests start see no terminal: pytest-xdist would tell them of one with 80 columns. Ctrl-C is
an interrupt, for this process and for those, also where the tests run in the background of a shell. A busy
machine cuts no answer short: searches count CPU seconds, but for tests that are ``alone`` to see seconds.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BYTECODE = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")

for name in ("PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", BYTECODE)
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as `nohup make test &` has it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay to the end: garbage is sought beside them, and seldom."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    """All searches of this process take turns with one solver: loading it takes half a second."""
    from meshwright.solver.search.certify.judge import kept_child  # noqa: PLC0415 - bytecode is set

    with kept_child():
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, of up to four: who tests servers waits for them."""
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What is promised in seconds is measured in them; all else waits for nobody's clock."""
    from tests.processes.cpu_clock import count_cpu_seconds, count_seconds  # noqa: PLC0415 - bytecode is set

    if item.get_closest_marker("alone") is None:
        count_cpu_seconds()
    try:
        return (yield)
    finally:
        count_seconds()
