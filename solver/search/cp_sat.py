"""OR-Tools' CP-SAT, loaded where it is used first and without pandas."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

_LOOK_S = 0.1  # between two looks at the clock


class _TypesAlone(ModuleType):
    """Replacement for pandas, which takes longer to load than the rest of CP-SAT's interface.

    That (OR-Tools 9.15, ``ortools/sat/python/cp_model.py``) names its types in signatures, and makes a
    series where it is given one or an index alone.
    """

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)[name] = made = type(name, (), {})
        return made


def without_pandas() -> ModuleType:
    """Return ``ortools.sat.python.cp_model``, loaded without pandas.

    Raises:
        ImportError: OR-Tools is not installed.
    """
    known, flags = sys.modules.get("pandas"), sys.getdlopenflags()
    if known is None:
        sys.modules["pandas"] = _TypesAlone("pandas")
    # look up the symbols of a hundred libraries on first call, not on import
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        from ortools.sat.python import cp_model  # noqa: PLC0415 (it takes a third of a second)
    finally:
        sys.setdlopenflags(flags)
        if known is None:
            del sys.modules["pandas"]
    return cp_model


def solver_within(api: Any, effort: float, seed: int = 1) -> Any:  # noqa: ANN401 - OR-Tools
    """Return a solver with the same result in every run: one thread, a seed, a limit of deterministic time.

    It leaves Ctrl-C to the process. CP-SAT would end only the current solve while the search goes on, and
    restore the system's handler, so that the next Ctrl-C kills the process.
    """
    solver = api.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, seed
    solver.parameters.max_deterministic_time = effort
    solver.parameters.catch_sigint_signal = False
    return solver


def solved_until(solver: Any, model: Any, is_over: Callable[[], bool]) -> int:  # noqa: ANN401 - OR-Tools
    """Return the status of a solve; a thread stops the solver as soon as ``is_over``."""
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(_LOOK_S):
            if is_over():
                solver.stop_search()

    watcher = threading.Thread(target=stop, daemon=True)
    watcher.start()
    try:
        return int(solver.solve(model))
    finally:
        ended.set()
        watcher.join()
