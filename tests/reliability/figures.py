"""What the tests of faults measure, for docs/reliability.md.

A line of JSON a figure, appended to the file that ``MESHWRIGHT_FIGURES`` names; without it nothing is kept.
"""

import json
import os
from pathlib import Path

FILE_VARIABLE = "MESHWRIGHT_FIGURES"
ORDER = ("", "sqlite", "postgresql")
FORMATS = {"s": "{:.2f}", "ms": "{:.1f}", "MiB": "{:.0f}", "": "{:g}"}


def measured(fault: int, what: str, value: float, unit: str = "", *, on: str = "") -> None:
    """Note a figure of the fault F``fault``; ``on`` names the database where there is one for each."""
    file = os.environ.get(FILE_VARIABLE)
    if file:
        line = {"fault": fault, "what": what, "value": value, "unit": unit, "on": on}
        with Path(file).open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(line) + "\n")


def read_figures(file: Path) -> dict[int, str]:
    """What was measured of each fault, the worst where it was measured again, in words."""
    worst: dict[tuple[int, str, str], dict[str, float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        values = worst.setdefault((one["fault"], one["what"], one["unit"]), {})
        values[one["on"]] = max(one["value"], values.get(one["on"], one["value"]))
    told: dict[int, list[str]] = {}
    for (fault, what, unit), values in worst.items():
        shown = " / ".join(FORMATS[unit].format(values[on]) for on in ORDER if on in values)
        told.setdefault(fault, []).append(f"{what}: {shown} {unit}".strip())
    return {fault: "<br>".join(figures) for fault, figures in told.items()}
