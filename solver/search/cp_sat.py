"""OR-Tools' CP-SAT, loaded where it is used first and without pandas."""

from __future__ import annotations

import sys
from types import ModuleType


class _TypesAlone(ModuleType):
    """Replacement for pandas, which takes longer to load than the rest of CP-SAT's interface.

    That (OR-Tools 9.15, ``ortools/sat/python/cp_model.py``) names its types in signatures, and makes a
    series where it is given one or an index alone.
    """

    def __getattr__(self, name: str) -> type:
        """Return an empty type of that name."""
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)[name] = made = type(name, (), {})
        return made


def without_pandas() -> ModuleType:
    """Return ``ortools.sat.python.cp_model``, loaded without pandas.

    Raises:
        ImportError: OR-Tools is not installed.
    """
    known = sys.modules.get("pandas")
    if known is None:
        sys.modules["pandas"] = _TypesAlone("pandas")
    try:
        from ortools.sat.python import cp_model  # noqa: PLC0415 (it takes a third of a second)
    finally:
        if known is None:
            del sys.modules["pandas"]
    return cp_model
