"""Hooks of the documentation site: the search lists pages for users before those on how it works."""

from collections.abc import Sequence
from typing import Protocol

MAINTAINERS = "How it works"  # section of mkdocs.yml
BOOST = 0.3


class Section(Protocol):
    """Part of the navigation, as MkDocs makes it."""

    title: str


class Page(Protocol):
    """Page with its front matter and the sections that it lies in, as MkDocs makes it."""

    ancestors: Sequence[Section]
    meta: dict[str, dict[str, object]]


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Lower every page of the maintainers' section that states no boost."""
    if any(section.title == MAINTAINERS for section in page.ancestors):
        page.meta.setdefault("search", {}).setdefault("boost", BOOST)
    return markdown
