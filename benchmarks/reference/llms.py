"""``llms.txt`` and ``llms-full.txt`` (llmstxt.org): the documentation as language models read it.

``make reference`` writes the list into docs, ``make docs`` the whole text into the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
_DOCS = ROOT / "docs"
_ABOUT = (
    "Meshwright finds the fastest way to split an LLM training run over your GPUs, says how sure it is, "
    "and writes the launch files."
)
_USE = """\
- `meshwright fits MODEL --gpus 1xRTX-4090`: does training fit, by method and launcher.
- `meshwright plan MODEL --gpus 64xH100 --global-batch-size 512 --seq-length 8192`: the fastest layouts.
- `meshwright explain --from-args train.sh --gpus 64xH100`: why a script is slow.
- `meshwright fix train.sh --gpus 64xH100`: the edits that make it faster, as a diff.
- `meshwright mcp`: the same as tools of an assistant.

Every command has `--json`, and errors end with a command to paste after `tip:`.
"""
_LEFT_OUT = re.compile(
    r"reference/.*|adr/.*|accuracy.*|leaderboard\.md|measured-here\.md|settings\.md|style\.md"
)
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_SENTENCE = re.compile(r"(.+?[.?!])(?:\s|$)", re.DOTALL)


def llms_page() -> str:
    """Return the list of the pages, each with the first sentence of its text."""
    lines = ["# Meshwright", "", f"> {_ABOUT}", "", _USE]
    for section, pages in _sections():
        lines += [f"## {section}", ""]
        lines += [f"- [{title}]({name}): {_first(name)}" for title, name in pages]
        lines.append("")
    return "\n".join(lines)


def llms_full_page() -> str:
    """Return the text of the pages that say how to use Meshwright, in the order of the site."""
    names = dict.fromkeys(
        name for _, pages in _sections() for _, name in pages if not _LEFT_OUT.fullmatch(name)
    )
    parts = [
        f"# Meshwright\n\n> {_ABOUT}\n",
        *(f"<!-- {name} -->\n{_text(name).strip()}\n" for name in names),
    ]
    return "\n".join(parts)


def on_post_build(*, config: Mapping[str, Any], **_: object) -> None:
    """Write the whole text into the site that MkDocs has built."""
    (Path(config["site_dir"]) / "llms-full.txt").write_text(llms_full_page(), encoding="utf-8")


def _sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the headings of the site's navigation with their pages."""
    for section in _navigation():
        ((title, items),) = section.items()
        plain = [(_title(one), one) for one in items if isinstance(one, str)]
        if plain:
            yield title, plain
        for group in (one for one in items if isinstance(one, dict)):
            ((heading, pages),) = group.items()
            if isinstance(pages, str):
                yield heading, [(heading, pages)]
            else:
                yield heading, [_page(one) for one in pages]


def _page(item: str | dict[str, str]) -> tuple[str, str]:
    if isinstance(item, str):
        return _title(item), item
    ((title, name),) = item.items()
    return title, name


def _navigation() -> list[dict[str, Any]]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    return found


def _text(name: str) -> str:
    return _COMMENT.sub("", _FRONT.sub("", (_DOCS / name).read_text(encoding="utf-8")))


def _title(name: str) -> str:
    return next(line.lstrip("# ") for line in _text(name).splitlines() if line.startswith("# "))


def _first(name: str) -> str:
    """Return the first sentence of a page, without links."""
    paragraphs = re.split(r"\n\s*\n", _text(name))
    plain = (one.strip() for one in paragraphs if one.strip() and not re.match(r"\s*[#|`<!\-\[]", one))
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(next(plain, _title(name)).split()))
    sentence = _SENTENCE.match(text)
    return sentence[1] if sentence else text
