"""Edits of launch files where a value is set: replaced, added next to a neighbour, or removed.

Everything else keeps its bytes. Edits count from the text before, so that several can be made at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.launchers.editing.sites import Site, sites_of


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Some characters of a file replaced; ``is_line``: the lines that it covers are removed."""

    file: str
    start: int
    end: int
    text: str = ""
    is_line: bool = False


class Texts:
    """Launch files with their sites, which edits refer to."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)
        self.sites = {name: sites_of(name, text) for name, text in files.items()}
        self._named: dict[str, list[tuple[str, Site]]] = {}
        for file, sites in self.sites.items():
            for site in sites:
                self._named.setdefault(site.name.rpartition(".")[2], []).append((file, site))

    def named(self, name: str) -> list[tuple[str, Site]]:
        """Return the sites of an argument, the last first; sections may be left out on either side."""
        found = [
            (file, site)
            for file, site in self._named.get(name.rpartition(".")[2], ())
            if site.name == name or name.endswith(f".{site.name}") or site.name.endswith(f".{name}")
        ]
        return found[::-1]

    def literals(self, file: str, site: Site) -> list[tuple[str, Site]]:
        """Return where the value of a site is set: itself, or the assignments of its variable."""
        return [place for place in self._places(file, site) if place[1].is_literal]

    def _places(self, file: str, site: Site, depth: int = 0) -> list[tuple[str, Site]]:
        """Return a site after the assignments that its value comes from, the last literal first."""
        if not site.variables:
            return [(file, site)] if site.is_literal else []
        found = [(file, site)]
        for other, sites in self.sites.items():
            for one in sites if depth < _DEEPEST else ():
                if _gives(one, site) and (other, one) != (file, site):
                    found += self._places(other, one, depth + 1)[::-1]
        return found[::-1]

    def replaced(self, file: str, site: Site, value: str) -> Iterator[tuple[TextEdit, ...]]:
        """Yield ways to give a site another value, the likeliest first: its literals, each and all.

        Other uses of a variable may forbid these edits. So the last ways replace a place that names it.
        """
        places = self._places(file, site)
        found = [place for place in places if place[1].is_literal]
        for one, literal in found:
            yield (TextEdit(one, literal.start, literal.end, _spelled(literal, value)),)
        if len(found) > 1:
            yield tuple(TextEdit(one, lit.start, lit.end, _spelled(lit, value)) for one, lit in found)
        for one, named in places if found else ():
            if named.variables:
                yield (TextEdit(one, named.start, named.end, _spelled(named, value)),)

    def removed(self, file: str, site: Site) -> Iterator[tuple[TextEdit, ...]]:
        """Yield ways to remove a site with its name."""
        text = self.files[file]
        first, last = text.rfind("\n", 0, site.begin) + 1, _end_of_line(text, site.end)
        value_end = site.end + (
            text[site.end : site.end + 1] in ('"', "'") and text[site.start - 1] in ('"', "'")
        )
        around = text[first : site.begin] + text[value_end:last]
        if re.fullmatch(r"\s*,?\s*\\?\s*(?:#.*)?", around) and site.form not in ("json", "item"):
            yield (TextEdit(file, first, text.find("\n", site.end) + 1 or len(text), is_line=True),)
        elif site.form == "json":
            yield from self._removed_pair(file, site, value_end)
        elif site.form == "item":
            yield from self._removed_item(file, site, value_end)
        elif site.form in ("flag", "assignment"):
            blank = len(text[: site.begin].rstrip(" \t"))
            if text[blank - 1 : blank] in ('"', "'", "(", "\n"):
                behind = re.compile(r"[ \t]*").match(text, value_end)
                yield (TextEdit(file, site.begin, behind.end() if behind else value_end),)
            else:
                yield (TextEdit(file, blank, value_end),)

    def _removed_pair(self, file: str, site: Site, end: int) -> Iterator[tuple[TextEdit, ...]]:
        text = self.files[file]
        behind = re.compile(r"\s*,").match(text, end)
        before = re.compile(r",\s*$").search(text[: site.begin])
        if behind is not None:
            rest = re.compile(r"\s*").match(text, behind.end())
            yield (TextEdit(file, site.begin, rest.end() if rest else behind.end()),)
        elif before is not None:
            yield (TextEdit(file, before.start(), end),)

    def _removed_item(self, file: str, site: Site, end: int) -> Iterator[tuple[TextEdit, ...]]:
        """Yield ways to remove an item of a list, with the item that is its value."""
        text = self.files[file]
        quoted = text[site.begin - 1 : site.begin] in ('"', "'")
        begin, end = site.begin - quoted, max(end, site.end + (quoted and site.end == site.start))
        first, last = text.rfind("\n", 0, begin) + 1, _end_of_line(text, end)
        if re.fullmatch(r"[ \t]*-[ \t]+", text[first:begin]) is not None:
            yield (TextEdit(file, first, text.find("\n", last) + 1 or len(text), is_line=True),)
            return
        behind, before = _COMMA.match(text, end), re.search(r",\s*$", text[:begin])
        if behind is not None:
            yield (TextEdit(file, begin, behind.end()),)
        elif before is not None:
            yield (TextEdit(file, before.start(), end),)

    def added(
        self, anchor: tuple[str, Site], name: str, value: str | None
    ) -> Iterator[tuple[TextEdit, ...]]:
        """Yield ways to add an argument after another one; ``name`` is spelled as the anchor is."""
        file, site = anchor
        text = self.files[file]
        close = text[site.end : site.end + 1]
        end = site.end + (close in ('"', "'") and text[site.start - 1 : site.start] == close)
        if text[end : end + 1] == "}" and site.form in ("flag", "assignment"):
            end = _end_of_word(text, end)
        first, last = text.rfind("\n", 0, site.begin) + 1, _end_of_line(text, end)
        indent = re.match(r"[ \t]*", text[first:])
        lead = indent.group() if indent else ""
        alone, rest = not text[first : site.begin].strip(), text[end:last].strip()
        added, end_of_line = _written(site, name, value), "\r\n" if text[last : last + 1] == "\r" else "\n"
        if site.form == "yaml" and rest.startswith((",", "}")):  # of {a: 1, b: 2}
            yield (TextEdit(file, end, end, f", {added}"),)
        elif site.form in ("yaml", "toml"):
            yield (TextEdit(file, last, last, f"{end_of_line}{lead}{added}"),)
        elif site.form == "item":
            place = last if rest.startswith("#") else end
            yield (TextEdit(file, place, place, _item_behind(text, site, name, value, end_of_line)),)
        elif site.form in ("json", "python"):
            gap = f",{end_of_line}{lead}" if alone else ", "
            yield (TextEdit(file, end, end, gap + added),)
        elif alone and rest == "\\":
            yield (TextEdit(file, end, end, f" \\{end_of_line}{lead}{added}"),)
        elif alone and (not rest or rest.startswith("#")) and "\n" in text[:first]:
            above = text[: max(first - 1, 0)].rstrip(" \t\r")
            yield (
                (TextEdit(file, end, end, f" \\{end_of_line}{lead}{added}"),)
                if above.endswith("\\") and not rest
                else (TextEdit(file, last, last, f"{end_of_line}{lead}{added}"),)
            )
        else:
            yield (TextEdit(file, end, end, f" {added}"),)

    def edited(self, edits: Iterable[TextEdit]) -> dict[str, str] | None:
        """Return the texts that edits change, by name; None where two of them change the same place."""
        by_file = dict[str, list[TextEdit]]()
        for one in dict.fromkeys(edits):
            by_file.setdefault(one.file, []).append(one)
        found = {file: _applied(self.files[file], some) for file, some in by_file.items()}
        texts = {file: text for file, text in found.items() if text is not None}
        return texts if len(texts) == len(found) else None


def _gives(one: Site, site: Site) -> bool:
    """Return whether a site has the value of another: of its variable, or of its program's argument."""
    name = site.variables[0]
    return name in one.assigns or (site.form == "python" and one.is_flag and one.name == name)


_COMMA = re.compile(r"[ \t]*,[ \t]*")
_DEEPEST = 4  # variables that hold another's value


def _applied(text: str, edits: Sequence[TextEdit]) -> str | None:
    """Return a text with edits; the last line of a command takes the backslash before it along."""
    ordered = sorted(edits, key=lambda one: (one.start, one.end))
    parts, at = list[str](), 0
    for one in ordered:
        if one.start < at and (one.text or one.is_line):
            return None
        parts.append(text[at : one.start])  # removed flags may share the blank between them
        if one.is_line and not text[one.start : one.end].rstrip().endswith("\\"):
            kept = "".join(parts)
            parts = [re.sub(r"[ \t]*\\(\r?\n)$", r"\1", kept)]
        parts.append(one.text)
        at = max(at, one.end)
        if not (one.text or one.is_line):
            kept, at = _without_blank_line("".join(parts), text, at)
            parts = [kept]
    return "".join((*parts, text[at:]))


def _without_blank_line(kept: str, text: str, at: int) -> tuple[str, int]:
    """Return the text before a place and the place after it, without the line where nothing is left."""
    if kept.rstrip(" \t")[-1:] != "\n":
        return kept, at
    if (more := _CONTINUED.match(text, at)) is not None:  # the command goes on in the next line
        return kept.rstrip(" \t"), more.end()
    closes = text[at : at + 1] in ('"', "'") and kept.rstrip(" \t\r\n").endswith("\\")
    if closes or text[at : at + 1] in ("", "\r", "\n"):
        return re.sub(r"[ \t]*\\?\r?\n[ \t]*$", "", kept), at
    behind = re.compile(r"[ \t]*").match(text, at)  # what follows is first in its line now
    return kept, behind.end() if behind else at


_CONTINUED = re.compile(r"[ \t]*\\\r?\n")


def _spelled(site: Site, value: str) -> str:
    """Return a value in the way of the old one: true for True."""
    lower = value.lower()
    if site.spellings:
        return site.spellings.get(value, value)
    if lower not in ("true", "false"):
        return value
    old = site.value or ""
    if old in ("True", "False") or site.form == "python":
        return lower.capitalize()
    return lower


def _written(site: Site, name: str, value: str | None) -> str:
    """Return a new argument in the form of its neighbour."""
    short = name.rpartition(".")[2]
    word = value if value is not None else "true"
    bare = re.fullmatch(r"-?\d+(?:\.\d+)?|true|false", word.lower()) is not None
    if site.form == "json":
        return f'"{short}": {word.lower() if bare else chr(34) + word + chr(34)}'
    if site.form == "yaml":
        return f"{short}: {word}"
    if site.form == "toml":
        return f"{short} = {word.lower() if bare else chr(34) + word + chr(34)}"
    if site.form == "python":
        return f"{short}={_spelled(site, word) if bare else chr(34) + word + chr(34)}"
    if site.form == "assignment":
        return f"{name}={word}"
    quoted = f"'{word}'" if re.search(r"[^\w.,:=/-]", word) else word
    dashes = (
        name if "." in name or ("_" in site.shown and "-" not in site.shown[2:]) else name.replace("_", "-")
    )
    return f"--{dashes}" if value is None else f"--{dashes} {quoted}"


def _item_behind(text: str, site: Site, name: str, value: str | None, end_of_line: str) -> str:
    """Return the items of a new argument behind another one's, in the style of its list."""
    flag = _written(site, name, None)
    first = text.rfind("\n", 0, site.begin) + 1
    lead = re.fullmatch(r"([ \t]*-[ \t]+)([\"']?)", text[first : site.begin])
    joined = text[site.begin : site.end].partition("=")[1] != ""
    words = [flag] if value is None else [f"{flag}={value}"] if joined else [flag, value]
    if lead is None:
        return "".join(f', "{word}"' for word in words)
    plain = re.compile(r"-?-[\w.=-]+|[A-Za-z][\w.-]*")  # YAML reads other words as numbers, for one
    return "".join(
        f"{end_of_line}{lead[1]}{word if plain.fullmatch(word) and not lead[2] else _in_quotes(word)}"
        for word in words
    )


def _in_quotes(word: str) -> str:
    return f'"{word}"'


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - 1 if text[end - 1 : end] == "\r" and end > at else end


def _end_of_word(text: str, at: int) -> int:
    found = re.compile(r"[^\s]*").match(text, at)
    return found.end() if found else at
