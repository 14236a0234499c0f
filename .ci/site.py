"""Hooks of the documentation site: the search lists pages for users before pages on how Meshwright works."""

from typing import Any

MAINTAINERS = "How it works"  # section of mkdocs.yml
BOOST = 0.3


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lower every page of the maintainers' section that states no boost of its own."""
    if any(section.title == MAINTAINERS for section in page.ancestors):
        page.meta.setdefault("search", {}).setdefault("boost", BOOST)
    return markdown
