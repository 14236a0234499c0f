"""Modules that a launcher imports and no judge asks anything of: stand-ins for what a CPU does not have."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType


class StandIn(ModuleType):
    """A module whose every name is a class that does nothing."""

    def __getattr__(self, name: str) -> object:
        """An empty class."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_args, **_options: None})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins before Python finds anything else."""

    def __init__(self, entered: Iterable[str], silent: Iterable[str]) -> None:
        """Begin to find them.

        Args:
            entered: packages whose submodules are their own, imported without their ``__init__``.
            silent: modules, and whole packages, that hold nothing.
        """
        self.entered, self.silent = frozenset(entered), set(silent)
        sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """A package without code for the names above."""
        if not {fullname, fullname.partition(".")[0]} & self.silent and fullname not in self.entered:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        folders = [Path(folder) / fullname.rpartition(".")[2] for folder in path or ()]
        if fullname in self.entered:
            spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""
