"""What holds for every test, and for all that tests start.

Compiled modules are kept where Python keeps them, also where the environment forbids it: every command that
a test runs would compile 300 modules anew. Commands see no terminal: pytest-xdist would tell them of one
with 80 columns. Ctrl-C is an interrupt, also where the tests run in the background of a shell. A busy
machine cuts no answer short: searches count CPU seconds.
Nobody's own defaults count: tests see no configuration file, no variable of an option and no kept answer.
Small matrices are inverted by one thread: a second one spins where every core has a test of its own.
Certificates are looked for where a host shows one: every client of a service on this machine would read all
there are, which takes 20 ms. A drawn case has no deadline: a busy machine stops one for half a second.
"""

import gc
import os
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

for name in ("PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES", "SSL_CERT_FILE"):
    os.environ.pop(name, None)
os.environ["SSL_CERT_DIR"] = ssl.get_default_verify_paths().openssl_capath
sys.dont_write_bytecode = False
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XDG_CONFIG_HOME"] = os.path.join(os.path.dirname(__file__), "fixtures", "no-config")  # noqa: PTH118, PTH120
_STATE = TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = _STATE.name
from meshwright.service.cli.defaults import REMEMBERED, variable  # noqa: E402 - bytecode is set

for name in map(variable, REMEMBERED):
    os.environ.pop(name, None)

settings.register_profile("undisturbed", deadline=None)
settings.load_profile("undisturbed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as `nohup make test &` has it
    signal.signal(signal.SIGINT, signal.default_int_handler)


_CHEAP_FIRST = ("architecture", "unit", "golden", "e2e", "property")  # folders; others come between


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what is cheap, and spread files that wait for servers evenly, so that no core is idle.

    With torch, files with few tests go first: those train models and take longest, and the last one would
    run alone.
    """
    rank = {folder: at for at, folder in enumerate(_CHEAP_FIRST)}
    counts = Counter(item.path for item in items)
    files = sorted(counts, key=lambda file: counts[file] if "torch" in file.parts else 0)
    files.sort(key=lambda file: min((rank[one] for one in file.parts if one in rank), default=2.5))
    waiting = [file for file in files if "integration" in file.parts]
    computing = [file for file in files if "integration" not in file.parts]
    at = {file: (i + 0.5) / len(some) for some in (waiting, computing) for i, file in enumerate(some)}
    items.sort(key=lambda item: at[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and thousands of tests stay to the end: look for garbage once they are there, and seldom."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    """All searches of this process take turns with one solver: loading it takes half a second."""
    from meshwright.solver.search.certify.judge import kept_child  # noqa: PLC0415 - bytecode is set

    with kept_child():
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the cores, at most four: tests of servers mostly wait."""
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Let searches count CPU seconds; a test that wants others sets them itself."""
    from tests.processes.cpu_clock import count_cpu_seconds, count_seconds  # noqa: PLC0415 - bytecode is set

    count_cpu_seconds()
    try:
        return (yield)
    finally:
        count_seconds()
