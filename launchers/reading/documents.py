"""Files of a fixed form (JSON, YAML, TOML) as values by dotted name, each with its line.

Sizes and depths are bounded, and nothing is run. For a repeated YAML key the
last value counts, as PyYAML reads it for most launchers; OmegaConf (LLaMA-Factory) refuses it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from meshwright.launchers.reading.base import Source, refused
from meshwright.profiles.documents import MAX_DEPTH, read_json, read_yaml, require_plain, shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.shell.values import UNKNOWN, why_unknown

DOCUMENTS = (".json", ".yaml", ".yml", ".toml")
MAX_DOCUMENT = 200_000  # characters; most have a few thousand, lists of data sets many more
MAX_BRACKETS = 100  # open at a time
MAX_NAME = 300  # characters of a dotted name
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|\n', re.DOTALL)
_BRACKET = re.compile(r"[(\[{)\]}]")
_TABLE = re.compile(r"\s*\[\s*([\w.\-]+)\s*\]")
_SETTING = re.compile(r"\s*([\w.\-]+)\s*=")


@dataclass(frozen=True, slots=True)
class LocatedValue:
    """A value of a file with its line."""

    value: object  # text, number, Boolean, None, a list
    line: int  # 0: unknown
    anchored: bool = False  # of YAML: under a key of the document with a value that is repeated elsewhere


Values = Mapping[str, LocatedValue]


def document_of(
    source: Source, *, by_omegaconf: bool = False, by_deepspeed: bool = False
) -> dict[str, LocatedValue]:
    """Return a file's values by dotted name (``parallelism.tp``), in the form of its extension.

    Raises:
        InvalidProblemError: the file is too long or malformed, with the line; or a key is repeated
            and OmegaConf loads the file (its _utils.py, get_yaml_loader). DeepSpeed alone loads JSON with
            comments (its runtime/config.py reads hjson; transformers and accelerate read json).
    """
    if len(source.text) > MAX_DOCUMENT:
        raise refused(f"{source.name[:64]}: the file is too big", allowed=f"{MAX_DOCUMENT} characters")
    found = _parsed(source.suffix, _text_of(source, by_deepspeed=by_deepspeed))
    if isinstance(found, str):
        raise refused(f"{source.name[:64]}: {_commented(source) or found}")
    values, repeated = found
    if by_omegaconf and repeated:
        raise refused(f"{repeated[0]}, which OmegaConf refuses", allowed="each key once")
    return dict(values)


def _text_of(source: Source, *, by_deepspeed: bool) -> str:
    return without_comments(source.text) if by_deepspeed and source.suffix == ".json" else source.text


def _commented(source: Source) -> str:
    """Return what to say of JSON that only comments make malformed; empty of others."""
    plain = _text_of(source, by_deepspeed=True)
    if plain == source.text or isinstance(_parsed(source.suffix, plain), str):
        return ""
    place = next(at for at, (one, other) in enumerate(zip(plain, source.text, strict=True)) if one != other)
    where = f"line {source.text.count(chr(10), 0, place) + 1}"
    return f"{where}: a comment, or a comma before a bracket, at which transformers and accelerate stop"


def without_comments(text: str) -> str:
    """Return JSON with blanks in place of comments and of commas before a closing bracket."""
    for pattern in (_COMMENTS, _LAST_COMMA):
        text = pattern.sub(_blanked, text)
    return text


def _blanked(found: re.Match[str]) -> str:
    return found[0] if found[0][:1] == '"' else re.sub(r"[^\n]", " ", found[0])


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENTS = re.compile(rf"{_STRING}|(?://|#)[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")


def repeated_keys(source: Source) -> tuple[str, ...]:
    """Return a sentence on each repeated key of a file that ``document_of`` has read."""
    found = _parsed(source.suffix, source.text)
    return () if isinstance(found, str) else found[1]


@lru_cache(maxsize=8)
def _parsed(suffix: str, text: str) -> tuple[dict[str, LocatedValue], tuple[str, ...]] | str:
    """Parse a text to its values and repeated keys, or return the message of its fault; cached."""
    if not text.strip():
        return "the file is empty"
    if is_deep(text):
        return f"more than {MAX_BRACKETS} brackets are open at a time"
    readers = {".json": _json, ".toml": _toml}
    lines: dict[str, int] = {}
    repeated: dict[str, list[int]] = {}
    anchored = set[str]()
    read = readers.get(suffix) or partial(read_yaml, repeated=repeated, anchored=anchored)
    try:
        flat = dict(_flat(read(text.replace(UNKNOWN, _SHIELD), lines), ""))
    except InvalidProblemError as fault:
        return _unknown(text) or _open_place(suffix, text) or _placed(fault.errors[0], lines)
    said = (
        f"line {lines[name]}: {shown(name)} is given again, after line {', '.join(map(str, earlier))}"
        for name, earlier in repeated.items()
    )
    if any(_SHIELD in name for name in flat):
        return _unknown(text) or "a name is not known"
    return {
        name: LocatedValue(_bare(value), lines.get(name, 0), name.partition(".")[0] in anchored)
        for name, value in flat.items()
    }, tuple(said)


_SHIELD = "\uf8ff"  # replaces the mark of an unknown value, which no format accepts


def _bare(value: object) -> object:
    if isinstance(value, list):
        return [_bare(one) for one in value]
    return value.replace(_SHIELD, UNKNOWN) if isinstance(value, str) else value


def _unknown(text: str) -> str:
    """Return the unknown part of a text that a script writes, with its line; empty if all is known."""
    before, mark, rest = text.partition(UNKNOWN)
    if not mark:
        return ""
    why, allowed = why_unknown(rest.partition(UNKNOWN)[0])
    return f"line {before.count(chr(10)) + 1}: {why} (allowed: {allowed})"


def _open_place(suffix: str, text: str) -> str:
    """Return the first place of a JSON template that a script fills in, with its line, or empty text."""
    found = _OPEN_PLACE.search(text) if suffix == ".json" else None
    if found is None:
        return ""
    line = text.count("\n", 0, found.start(1)) + 1
    return f"line {line}: {shown(found[1])} is a placeholder (allowed: the script that fills it in)"


_OPEN_PLACE = re.compile(r":\s*(\$?\{?[A-Z][A-Z_]{2,}\w*\}?)\s*[,}\n]")


def _placed(fault: FieldError, lines: Mapping[str, int]) -> str:
    name = fault.pointer.removeprefix("/").replace("/", ".")
    where = f"line {lines[name]}: {name}: " if name in lines else ""
    return f"{where}{fault.message}" + (f" (allowed: {fault.allowed})" if fault.allowed else "")


def is_deep(text: str) -> bool:
    """Return whether brackets nest too deeply; those in strings count, too, which only affects nonsense."""
    depth = 0
    for bracket in _BRACKET.findall(text):
        depth += 1 if bracket in "([{" else -1
        if depth > MAX_BRACKETS:
            return True
    return False


def looks_like_document(source: Source) -> dict[str, LocatedValue]:
    """Return the values of a file; empty if it is not a document."""
    if source.suffix not in DOCUMENTS:
        return {}
    try:
        return document_of(source)
    except InvalidProblemError:
        return {}


def names_held(source: Source, names: Iterable[str], suffixes: Sequence[str] = (".yaml", ".yml")) -> int:
    """Return how many of some names a document of these extensions holds; JSON may be commented."""
    source = replace(source, text=_text_of(source, by_deepspeed=True))
    held = looks_like_document(source) if source.suffix in suffixes else {}
    return sum(name in held for name in names)


def _flat(raw: Mapping[str, object], before: str) -> Iterator[tuple[str, object]]:
    """Yield all values of nested mappings; lists stay whole. InvalidProblemError: a name is too long."""
    for key, value in raw.items():
        name = f"{before}{key}"
        if len(name) > MAX_NAME:
            raise InvalidProblemError.of("", f"a name is too long (allowed: {MAX_NAME} characters)")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _json(text: str, lines: dict[str, int]) -> Mapping[str, object]:
    try:
        raw = read_json(text)
    except InvalidProblemError as fault:
        if fault.errors[0].pointer:
            lines.update(_json_lines(text))
        raise
    lines.update(_json_lines(text))
    return raw


def _json_lines(text: str) -> dict[str, int]:
    walk = _Walk()
    for match in _PIECE.finditer(text):
        walk.step(match.group())
    return walk.lines


class _Walk:
    """A walk over valid JSON; keys inside lists have no name."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self._path: list[str | None] = []  # the key of each open bracket; None: in a list
        self._key: str | None = ""  # of the next value
        self._last = ("", 1)  # last text and its line
        self._line = 1

    def step(self, piece: str) -> None:
        """Take a bracket, a comma, a colon, a text or an end of a line."""
        if piece == "\n":
            self._line += 1
        elif piece == ":":
            self._name()
        elif piece in "{[":
            self._path.append(self._key if piece == "{" else None)
            self._key = None
        elif piece in "}]":
            del self._path[-1:]  # malformed JSON may close more than it opens
        elif piece != ",":
            self._last = (piece[1:-1], self._line)

    def _name(self) -> None:
        self._key, line = self._last
        if None not in self._path:
            self.lines[".".join([*(part for part in self._path if part), self._key])] = line


def _toml(text: str, lines: dict[str, int]) -> Mapping[str, object]:
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as fault:
        raise InvalidProblemError.of("", f"not TOML: {str(fault)[:120]}") from None
    except RecursionError:
        raise InvalidProblemError.of("", f"nested deeper than {MAX_DEPTH} levels") from None
    table = ""
    for number, text_line in enumerate(text.split("\n"), start=1):
        if (match := _TABLE.match(text_line)) is not None:
            table = f"{match[1]}."
        elif (match := _SETTING.match(text_line)) is not None:
            lines.setdefault(f"{table}{match[1]}", number)
    return require_plain(raw)
