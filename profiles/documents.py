"""JSON and YAML from outside, bounded and checked while they are parsed, in one pass.

Parsers report what they meet (ijson over yajl for JSON, PyYAML over libyaml for YAML) and ``_Builder``
makes plain values of it. It stops at the first thing that no input may hold: too many values, a level too
deep, a repeated key, a number beyond 63 bits, NUL. So a hostile input costs what is read of it, never what
it would blow up to.

JSON is RFC 8259. YAML is 1.1 as PyYAML's safe loader has it, without aliases, own tags and merge keys;
numbers with an exponent are read as in YAML 1.2 (section 10.3.2), because links are written so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml
from ijson.backends import yajl2_c
from ijson.common import JSONError
from yaml.reader import ReaderError

from meshwright.profiles.errors import InvalidProblemError

MAX_DEPTH = 32  # a problem is 6 deep; more is an attack or a mistake
MAX_ERRORS = 20  # faults that one answer names
MAX_SHOWN = 64  # characters of foreign text that an error repeats
MAX_BITS = 63  # of an integer, its sign not counted
MAX_TEXT_BYTES = 2**20  # of one text
_CHUNK_BYTES = 64 * 2**10  # of a whole text that is parsed at a time
_UNCLEAN = re.compile("[\0\ud800-\udfff]")
_FLOAT = "tag:yaml.org,2002:float"
_MERGE = "tag:yaml.org,2002:merge"
_STR = "tag:yaml.org,2002:str"
_PLAIN_TAGS = {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z")
# Text up to the first escape of a surrogate that has no partner; yajl would read "?" or another character.
_PAIRED = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+",
    re.DOTALL,
)
_NOT_FINITE = re.compile(rb"Infinity|NaN")
_TOKEN = re.compile(
    rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|(-?Infinity|NaN)\b', re.DOTALL
)  # a text, or such a number
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONGEST_NAME = 300  # characters of a dotted name that keeps its line
_LONGEST_ESCAPE = 12  # bytes: a pair of surrogates


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """Limits of one input; a value takes up to 200 bytes of memory once it is read."""

    max_bytes: int
    max_values: int
    max_keys: int  # of one object
    advice: str  # what to do about an input that is larger


# A problem names its model, cluster and profile; what it states itself rarely takes 10 KiB.
PROBLEM = InputLimits(
    max_bytes=256 * 2**10,
    max_values=20_000,
    max_keys=1_000,
    advice="keep a large cluster or profile under a name (PUT /v1/clusters/{name}, POST /v1/profiles)",
)
# Profiles, and clusters with tables of measured links, sent to a service.
DOCUMENT = InputLimits(
    max_bytes=8 * 2**20,
    max_values=200_000,
    max_keys=10_000,
    advice="leave out measurements that lie close to others",
)
# Files of the command line, answers with thousands of plans among them.
FILE = InputLimits(
    max_bytes=16 * 2**20,
    max_values=1_000_000,
    max_keys=100_000,
    advice="split it, or leave out what you can",
)
# YAML costs about ten times what JSON costs, and people write it by hand.
YAML_FILE = InputLimits(
    max_bytes=2 * 2**20,
    max_values=100_000,
    max_keys=10_000,
    advice="write it as JSON, which may be larger",
)


def shown(text: str) -> str:
    """Return foreign text as an error may repeat it: printable and short."""
    clean = text[: MAX_SHOWN + 1]
    if not clean.isprintable():
        clean = "".join(char if char.isprintable() else "?" for char in clean)
    return clean if len(clean) <= MAX_SHOWN else clean[: MAX_SHOWN - 3] + "..."


def shown_path(path: Path) -> str:
    """Return a path as an error may repeat it: printable, its end kept."""
    text = str(path)
    return shown(text) if len(text) <= MAX_SHOWN else f"...{shown(text[3 - MAX_SHOWN :])}"


def pointer(*parts: object) -> str:
    """Return the JSON pointer (RFC 6901) of ``parts``; each part is escaped and kept short."""
    return "".join("/" + shown(str(part)).replace("~", "~0").replace("/", "~1") for part in parts)


def read_json(text: str | bytes, limits: InputLimits = FILE) -> Mapping[str, object]:
    """Return the JSON object in ``text``.

    Raises:
        InvalidProblemError: too big, too deep, not JSON, not an object, or a value no input may hold.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    reader = JsonReader(limits)
    reader.require_room(len(data))
    end = 0
    try:
        for start in range(0, len(data), _CHUNK_BYTES):
            end = start + _CHUNK_BYTES
            reader.feed(data[start:end])
        return reader.close()
    except NotJsonError:
        _explain(data[:end])
        raise


def read_config(text: str | bytes, limits: InputLimits = FILE) -> Mapping[str, object]:
    """Return a Hugging Face config, with numbers that JSON lacks as transformers 5 writes them.

    Earlier releases write ``Infinity`` (``time_step_limit`` of state-space models), release 5
    ``{"__float__": "Infinity"}``.

    Raises:
        InvalidProblemError: as ``read_json``.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) <= limits.max_bytes and _NOT_FINITE.search(data):
        data = _TOKEN.sub(_spelled_out, data)
    return read_json(data, limits)


def _spelled_out(found: re.Match[bytes]) -> bytes:
    name = found.group(1)
    return b'{"__float__": "%s"}' % name if name else found.group()


def require_plain(raw: object) -> Mapping[str, object]:
    """Return a copy of ``raw``, when it is an object of plain, finite, bounded values.

    Raises:
        InvalidProblemError: something in it is not; the first such value is named.
    """
    builder = _Builder(FILE)
    _replay(raw, builder)
    return builder.finished()


def read_yaml(
    content: str | bytes, lines: dict[str, int] | None = None, repeated: dict[str, list[int]] | None = None
) -> Mapping[str, object]:
    """Return the mapping in one YAML document; ``lines`` gets the line of every key by dotted name.

    A repeated key is refused, unless ``repeated`` is there to get the lines of its earlier values: the last
    one counts then, as PyYAML has it.

    Raises:
        InvalidProblemError: too big, too deep, not YAML, no mapping, more than one document, an alias, or a
            value no input may hold.
    """
    if len(content) > YAML_FILE.max_bytes:
        raise _too_big(YAML_FILE)
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidProblemError.of("", "not YAML: the text is not UTF-8") from None
    builder = _Builder(YAML_FILE, lines, repeated)
    try:
        loader = _YamlLoader(text)
        try:
            _build_yaml(loader, builder)
        finally:
            loader.dispose()
    except yaml.YAMLError as fault:
        raise InvalidProblemError.of("", f"not YAML: {_yaml_reason(fault, text)}") from None
    except ValueError as fault:  # a date or number that there is not: 2026-02-31
        raise InvalidProblemError.of("", f"not YAML: {shown(str(fault))}") from None
    return builder.finished()


class NotJsonError(InvalidProblemError):
    """The text is not JSON."""


class JsonReader:
    """Reads one JSON object that arrives piece by piece, and keeps nothing but what it has built of it."""

    def __init__(self, limits: InputLimits) -> None:
        self._limits = limits
        self._builder = _Builder(limits)
        self._events = _JsonEvents(self._builder)
        self._parser = yajl2_c.basic_parse_coro(self._events, use_float=True)
        self._num_bytes = 0
        self._num_silent_bytes = 0  # since the parser last reported something
        self._held = b""  # the beginning of an escape that has not ended yet

    def require_room(self, num_bytes: int) -> None:
        """Refuse input that is too long or declares too great a length.

        Raises:
            InvalidProblemError: so it is.
        """
        if num_bytes > self._limits.max_bytes:
            raise _too_big(self._limits)

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes.

        Raises:
            NotJsonError: the bytes are not JSON; names the bytes between which the fault is.
            InvalidProblemError: too big, too deep, not an object, or a value no input may hold.
        """
        if not self._num_bytes:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")  # a byte order mark (RFC 8259, section 8.1)
        self._num_bytes += len(chunk)
        self.require_room(self._num_bytes)
        data = self._held + chunk
        found = _PAIRED.match(data)
        end = found.end() if found else 0
        self._parse(data[:end])
        self._held = data[end:]
        if len(self._held) >= _LONGEST_ESCAPE:
            self._parse_held()

    def close(self) -> Mapping[str, object]:
        """Return the object, once all of it has been fed.

        Raises:
            NotJsonError: it is cut off.
            InvalidProblemError: as ``feed``.
        """
        self._parse_held()
        try:
            self._parser.close()
        except JSONError as fault:
            raise self._fault(fault) from None
        return self._builder.finished()

    def _parse(self, data: bytes) -> None:
        if not data:
            return
        num_events = self._events.num_events
        try:
            self._parser.send(data)
        except JSONError as fault:
            raise self._fault(fault) from None
        except UnicodeDecodeError:
            raise NotJsonError.of("", "not JSON: the text is not UTF-8") from None
        if self._events.num_events > num_events:
            self._num_silent_bytes = 0
        self._num_silent_bytes += len(data)
        if self._num_silent_bytes > MAX_TEXT_BYTES:  # yajl reads a text anew with every piece of it
            raise self._builder.fault("a text, or a gap, is too long", allowed=f"{MAX_TEXT_BYTES} bytes")

    def _parse_held(self) -> None:
        """Parse the held bytes: an escape that more bytes cannot complete."""
        if _SURROGATE.match(self._held):
            raise self._builder.fault(_UNCLEAN_TEXT)
        self._parse(self._held)
        self._held = b""

    def _fault(self, fault: JSONError) -> InvalidProblemError:
        """Return the first line of yajl's message; the lines after it repeat the input."""
        message = fault.args[0] if fault.args else ""
        first = (
            message.decode("ascii", "replace") if isinstance(message, bytes) else str(message)
        ).partition("\n")[0]
        words = first.removeprefix("lexical error: ").removeprefix("parse error: ").strip().rstrip(".")
        if words == "numeric (floating point) overflow":
            return self._builder.fault("must be a finite number")
        if words == "integer overflow":
            return self._builder.fault(_TOO_LARGE, allowed=_MOST_BITS)
        if "UTF8" in words:
            return NotJsonError.of("", "not JSON: the text is not UTF-8")
        start = max(0, self._num_bytes - _CHUNK_BYTES)
        return NotJsonError.of("", f"not JSON: {shown(words)} (in bytes {start} to {self._num_bytes})")


_UNCLEAN_TEXT = "text must not hold NUL or lone surrogates"
_TOO_LARGE = "the number is too large"
_MOST_BITS = f"{MAX_BITS} bits and a sign"


class _Builder:
    """Makes plain values of what a parser reports, in its order, and refuses the first wrong one."""

    def __init__(
        self,
        limits: InputLimits,
        lines: dict[str, int] | None = None,
        repeated: dict[str, list[int]] | None = None,
    ) -> None:
        self.line = 0  # of what is reported next; 0: not known
        self._limits = limits
        self._lines = lines
        self._repeated = repeated
        self._num_values = 0
        self._root: dict[str, object] | None = None
        self._open: list[dict[str, object] | list[object]] = []
        self._keys: list[str | None] = []  # of each open object, the key of the next value
        self._known_keys: dict[str, str] = {}  # the same text is kept once

    @property
    def wants_key(self) -> bool:
        """Return whether a key comes next."""
        return bool(self._open) and isinstance(self._open[-1], dict) and self._keys[-1] is None

    def begin(self, container: dict[str, object] | list[object]) -> None:
        """Begin an object or a list.

        Raises:
            InvalidProblemError: it is not allowed there.
        """
        if not self._open:
            if not isinstance(container, dict):
                raise InvalidProblemError.of("", "must be an object")
            self._root = container
        else:
            self._add(container)
        if len(self._open) == MAX_DEPTH:
            raise InvalidProblemError.of("", f"nested deeper than {MAX_DEPTH} levels")
        self._open.append(container)
        self._keys.append(None)

    def end(self) -> None:
        """End the object or list that began last."""
        self._open.pop()
        self._keys.pop()
        if self._keys:
            self._keys[-1] = None

    def key(self, name: object) -> None:
        """Add a key of an object.

        Raises:
            InvalidProblemError: no clean text, or repeated.
        """
        holder = self._open[-1]
        if not isinstance(name, str):
            raise self.fault("keys must be text")
        if _UNCLEAN.search(name):
            raise self.fault(_UNCLEAN_TEXT)
        if name in holder and self._repeated is None:
            where = f" (line {self.line})" if self.line else ""
            raise InvalidProblemError.of("", f'the key "{shown(name)}" is repeated{where}')
        if len(holder) >= self._limits.max_keys:
            raise self.fault("an object has too many keys", allowed=f"{self._limits.max_keys} keys")
        self._keys[-1] = self._known_keys.setdefault(name, name)
        if self._lines is None:
            return
        path = [key for key in self._keys if key is not None]
        if len(path) != len(self._open) or sum(map(len, path)) > _LONGEST_NAME:
            return
        dotted = ".".join(path)
        if self._repeated is not None and name in holder:
            self._repeated.setdefault(dotted, []).append(self._lines[dotted])
        self._lines[dotted] = self.line

    def value(self, value: object) -> None:
        """Add a value that is neither an object nor a list.

        Raises:
            InvalidProblemError: not null, a boolean, a finite number of 64 bits, or clean text.
        """
        if isinstance(value, str):
            if _UNCLEAN.search(value):
                raise self.fault(_UNCLEAN_TEXT)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise self.fault("must be a finite number")
        elif not isinstance(value, int | None):
            raise self.fault("must be a JSON value")
        elif value is not None and value.bit_length() > MAX_BITS:
            raise self.fault(_TOO_LARGE, allowed=_MOST_BITS)
        self._add(value)
        self._keys[-1] = None

    def fault(self, message: str, *, allowed: str | None = None) -> InvalidProblemError:
        """Return a fault of the value that is reported now."""
        path: list[object] = []
        for depth, (holder, key) in enumerate(zip(self._open, self._keys, strict=True), start=1):
            if isinstance(holder, list):
                path.append(len(holder) - (depth < len(self._open)))  # the open one is in it already
            elif key is not None:
                path.append(key)
        return InvalidProblemError.of(pointer(*path), message, allowed=allowed)

    def finished(self) -> Mapping[str, object]:
        """Return the object that was built.

        Raises:
            InvalidProblemError: there was none.
        """
        if self._root is None:
            raise InvalidProblemError.of("", "must be an object")
        return self._root

    def _add(self, value: object) -> None:
        self._num_values += 1
        if self._num_values > self._limits.max_values:
            message = f"holds too many values; {self._limits.advice}"
            raise InvalidProblemError.of("", message, allowed=f"{self._limits.max_values} values")
        if not self._open:
            raise InvalidProblemError.of("", "must be an object")
        holder = self._open[-1]
        if isinstance(holder, list):
            holder.append(value)
            return
        key = self._keys[-1]
        if key is None:
            raise self.fault("keys must be text")
        holder[key] = value


class _JsonEvents:
    def __init__(self, builder: _Builder) -> None:
        self.num_events = 0
        self._builder = builder

    def send(self, event: tuple[str, object]) -> None:
        """Take one event."""
        self.num_events += 1
        kind, value = event
        if kind == "map_key":
            self._builder.key(value)
        elif kind in {"end_map", "end_array"}:
            self._builder.end()
        elif kind == "start_map":
            self._builder.begin({})
        elif kind == "start_array":
            self._builder.begin([])
        else:
            self._builder.value(value)


class _YamlLoader(yaml.CSafeLoader):
    """libyaml's safe loader, with YAML 1.2's floats."""

    def scalar(self, event: Any) -> object:  # noqa: ANN401 - an event of libyaml, which has no types
        """Return the value of a scalar, by its tag or by how it looks."""
        tag = event.tag
        if tag in {None, "!"}:
            tag = self.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        if tag == _STR:
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        make = self.yaml_constructors.get(tag)
        if make is None:
            why = "merge keys (<<) are not read" if tag == _MERGE else "a tag that is not known"
            raise yaml.constructor.ConstructorError(None, None, why, event.start_mark)
        return make(self, node)


_YamlLoader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def _build_yaml(loader: _YamlLoader, builder: _Builder) -> None:
    num_documents = 0
    while loader.check_event():
        event: Any = loader.get_event()
        builder.line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            value = loader.scalar(event)
            (builder.key if builder.wants_key else builder.value)(value)
        elif isinstance(event, yaml.CollectionStartEvent):
            if event.tag not in _PLAIN_TAGS:
                where = f"line {builder.line}"
                raise InvalidProblemError.of("", f"not YAML: a tag that is not known ({where})")
            builder.begin({} if isinstance(event, yaml.MappingStartEvent) else [])
        elif isinstance(event, yaml.CollectionEndEvent):
            builder.end()
        elif isinstance(event, yaml.AliasEvent):
            where = f"line {builder.line}"
            raise InvalidProblemError.of("", f"YAML aliases are not accepted; they can blow up ({where})")
        elif isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
            if num_documents > 1:
                where = f"line {builder.line}"
                raise InvalidProblemError.of(
                    "", f"several YAML documents, where one is read (the second: {where})"
                )


def _yaml_reason(fault: yaml.YAMLError, text: str) -> str:
    mark = getattr(fault, "problem_mark", None)
    if isinstance(fault, ReaderError):
        return f"{shown(str(fault.reason))} (line {text.count(chr(10), 0, fault.position) + 1})"
    words = getattr(fault, "problem", None) or getattr(fault, "reason", None) or "it cannot be read"
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"{shown(words)}{where}"


def _replay(value: object, builder: _Builder) -> None:
    if isinstance(value, Mapping):
        builder.begin({})
        for key, item in value.items():
            builder.key(key)
            _replay(item, builder)
        builder.end()
    elif isinstance(value, list):
        builder.begin([])
        for item in value:
            _replay(item, builder)
        builder.end()
    else:
        builder.value(value)


def _explain(data: bytes) -> None:
    """Raise an error with the line and column of the fault in text that yajl refuses at its end.

    Raises:
        InvalidProblemError: what the standard library finds, where it finds something.
    """
    try:
        json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as fault:
        where = f"line {fault.lineno}, column {fault.colno}"
        raise NotJsonError.of("", f"not JSON: {fault.msg} ({where})") from None
    except (ValueError, RecursionError):
        return


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidProblemError.of("", f"{name} is not a JSON number")


def _too_big(limits: InputLimits) -> InvalidProblemError:
    return InvalidProblemError.of(
        "", f"the input is too big; {limits.advice}", allowed=f"{limits.max_bytes} bytes"
    )
