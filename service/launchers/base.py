"""What every launcher exporter takes and gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from service.launchers.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBundle:
    """Launch files of one plan, ready to be written side by side into one folder."""

    files: dict[str, str]  # file name to text; the same plan always gives the same bytes
    warnings: list[str] = field(default_factory=list)  # what is only approximated, or left to the user


class Launcher(Protocol):
    """One training framework that plans can be exported to."""

    @property
    def name(self) -> str:
        """The launcher's id, as problems and requests spell it."""

    def export(self, target: Target) -> ExportBundle:
        """The launch files of a plan.

        Raises:
            RefusedExportError: the launcher cannot express the plan; one FieldError per fault.
        """
