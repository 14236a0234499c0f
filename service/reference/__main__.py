"""``python -m service.reference``: writes the pages of the documentation that are made from code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.reference.api_page import api_page
from service.reference.cli_page import cli_page
from service.reference.files_page import files_page
from service.reference.glossary_page import glossary_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/api.md": api_page,
    "reference/files.md": files_page,
    "glossary.md": glossary_page,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
