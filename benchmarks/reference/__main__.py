"""``python -m benchmarks.reference`` writes the pages of the documentation made from code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.reference.chart import write_chart
from benchmarks.reference.facts import facts_page
from benchmarks.reference.llms import llms_page
from benchmarks.reference.models import models_page
from benchmarks.reference.pages import (
    api_page,
    cli_page,
    files_page,
    glossary_page,
    schema_file,
    switches_page,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/api.md": api_page,
    "reference/files.md": files_page,
    "reference/models.md": models_page,
    "reference/facts.md": facts_page,
    "reference/switches.md": switches_page,
    "reference/problem.schema.json": partial(schema_file, "problem"),
    "reference/fleet.schema.json": partial(schema_file, "fleet"),
    "glossary.md": glossary_page,
    "llms.txt": llms_page,
}


def main() -> None:
    """Write every page, and the Helm chart."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
    write_chart()


if __name__ == "__main__":
    main()
