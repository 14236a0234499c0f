"""Strict, bounded readers of JSON and YAML from outside.

``_Builder`` makes plain values of what a parser reports: PyYAML over libyaml for YAML, and the standard
library for JSON, after a count of the values has shown that they fit in memory. It stops at the
first thing that no input may hold: too many values, a level too deep, a repeated key, a number beyond 63
bits, NUL.

JSON is RFC 8259. YAML is 1.1 as PyYAML's safe loader reads it, with aliases and merge keys, without own
tags. Numbers with an exponent are read as in YAML 1.2 (section 10.3.2), because links are written so.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.reader import ReaderError

from meshwright.profiles.errors import InvalidProblemError

SCHEMA_VERSION = 1  # of every document that we write, as its first key; a reader takes those up to it
VERSIONED = "schema_version"
MAX_DEPTH = 32  # a problem is 6 deep; more is an attack or a mistake
MAX_ERRORS = 20  # faults that one answer names
MAX_SHOWN = 64  # characters of foreign text that an error repeats
MAX_BITS = 63  # of an integer, its sign not counted
_UNCLEAN = re.compile("[\0\ud800-\udfff]")
_FLOAT = "tag:yaml.org,2002:float"
_STR = "tag:yaml.org,2002:str"
_PLAIN_TAGS = {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z")
# Characters that precede a value, and strings, which may hold them too; an open string runs to the end.
_BEFORE_VALUES = re.compile(rb'[,\[{]|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_MOST_DIGITS = 25  # of an integer that are read; no accepted one has as many
_LONGEST_NAME = 300  # characters of a dotted name that keeps its line


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
    advice="leave out measurements that are close to others",
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


def document_text(document: Mapping[str, Any], *, indent: int | None = 1) -> str:
    """Return a document that we write as JSON, with its schema version."""
    return json.dumps(with_version(document), indent=indent, allow_nan=False) + "\n"


def with_version(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that we write with its schema version ahead."""
    return {VERSIONED: SCHEMA_VERSION, **document}


def without_version(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document that we wrote, or a person did, without its schema version.

    One without a version is taken as before there were any.

    Raises:
        InvalidProblemError: a newer Meshwright wrote it.
    """
    if VERSIONED not in document:
        return document
    version = document[VERSIONED]
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        newer = type(version) is int and version > SCHEMA_VERSION
        why = "is of a newer Meshwright; upgrade yours" if newer else "is no version"
        raise InvalidProblemError.of(
            f"/{VERSIONED}",
            f"{shown(str(version))} {why}",
            allowed=f"1 to {SCHEMA_VERSION}" if SCHEMA_VERSION > 1 else "1",
        )
    return {name: value for name, value in document.items() if name != VERSIONED}


def read_json(text: str | bytes, limits: InputLimits = FILE) -> Mapping[str, object]:
    """Return the JSON object in ``text``.

    Raises:
        InvalidProblemError: too big, too deep, not JSON, not an object, or a value no input may hold.
    """
    return _read_json(text, limits, _refuse_constant)


def read_config(text: str | bytes, limits: InputLimits = FILE) -> Mapping[str, object]:
    """Return a Hugging Face config, with numbers that JSON lacks as transformers 5 writes them.

    Earlier releases write infinity as a bare word (``time_step_limit`` of state-space models), release 5 as
    ``{"__float__": "Infinity"}``.

    Raises:
        InvalidProblemError: as ``read_json``.
    """
    return _read_json(text, limits, lambda name: {"__float__": name})


def _read_json(
    text: str | bytes, limits: InputLimits, constant: Callable[[str], object]
) -> Mapping[str, object]:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > limits.max_bytes:
        raise _too_big(limits)
    most = 2 * limits.max_values  # marks: an empty object between two others has two
    if sum(map(data.count, (b",", b"[", b"{"))) > most:
        marks = (mark for mark in _BEFORE_VALUES.finditer(data) if mark[0][:1] != b'"')
        if next(islice(marks, most, None), None):
            raise _too_many(limits)
    try:
        raw = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_without_repetition,
            parse_constant=constant,
            parse_int=lambda digits: int(digits[:_MOST_DIGITS]),
        )
    except UnicodeDecodeError:
        raise InvalidProblemError.of("", "not JSON: the text is not UTF-8") from None
    except json.JSONDecodeError as fault:
        where = f"line {fault.lineno}, column {fault.colno}"
        raise InvalidProblemError.of("", f"not JSON: {fault.msg} ({where})") from None
    except RecursionError:
        raise InvalidProblemError.of("", _TOO_DEEP) from None
    return require_plain(raw, limits)


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = Counter(name for name, _ in pairs)
        raise InvalidProblemError.of("", f'the key "{shown(names.most_common(1)[0][0])}" is repeated')
    return found


def require_plain(raw: object, limits: InputLimits = FILE) -> Mapping[str, object]:
    """Return a copy of ``raw``, when it is an object of plain, finite, bounded values.

    Raises:
        InvalidProblemError: something in it is not; the first such value is named.
    """
    builder = _Builder(limits)
    _replay(raw, builder)
    return builder.finished()


def read_yaml(
    content: str | bytes,
    lines: dict[str, int] | None = None,
    repeated: dict[str, list[int]] | None = None,
    anchored: set[str] | None = None,
) -> Mapping[str, object]:
    """Return the mapping in one YAML document; ``lines`` gets the line of every key by dotted name.

    A repeated key is refused, unless ``repeated`` is there to get the lines of its earlier values: the last
    one counts then, as PyYAML has it. ``anchored`` gets the keys of the document under which a value lies
    that an alias or a merge key repeats.

    Raises:
        InvalidProblemError: too big, too deep, not YAML, no mapping, more than one document, or a value no
            input may hold.
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
            aliases = _build_yaml(loader, builder)
        finally:
            loader.dispose()
    except yaml.YAMLError as fault:
        raise InvalidProblemError.of("", f"not YAML: {_yaml_reason(fault, text)}") from None
    except ValueError as fault:  # a date or number that there is not: 2026-02-31
        raise InvalidProblemError.of("", f"not YAML: {shown(str(fault))}") from None
    if anchored is not None:
        anchored |= aliases.repeated
    return builder.finished()


_UNCLEAN_TEXT = "text must not hold NUL or lone surrogates"
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
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

    @property
    def outermost_key(self) -> str | None:
        """Return the key of the document under which the next value lies; None outside of all."""
        return self._keys[0] if self._keys else None

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
            raise InvalidProblemError.of("", _TOO_DEEP)
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
                raise self.fault(f"{value} is not a finite number")
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
            raise _too_many(self._limits)
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
            why = "an unknown tag"
            raise yaml.constructor.ConstructorError(None, None, why, event.start_mark)
        return make(self, node)


_YamlLoader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def _build_yaml(loader: _YamlLoader, builder: _Builder) -> _Aliases:
    num_documents = 0
    aliases = _Aliases(loader, builder)
    while loader.check_event():
        event: Any = loader.get_event()
        builder.line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            aliases.scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if event.tag not in _PLAIN_TAGS:
                where = f"line {builder.line}"
                raise InvalidProblemError.of("", f"not YAML: an unknown tag ({where})")
            aliases.begin({} if isinstance(event, yaml.MappingStartEvent) else [], event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            aliases.end()
        elif isinstance(event, yaml.AliasEvent):
            aliases.repeat(str(event.anchor))
        elif isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
            if num_documents > 1:
                where = f"line {builder.line}"
                raise InvalidProblemError.of(
                    "", f"the file has several YAML documents (the second: {where}). Keep one"
                )
    return aliases


class _Aliases:
    """Repeats what anchors name: ``*name`` and ``<<: *name``. Copies count as values, which are limited."""

    def __init__(self, loader: _YamlLoader, builder: _Builder) -> None:
        self._loader, self._builder = loader, builder
        self.repeated: set[str] = set()  # keys of the document under which a repeated value lies
        self._named: dict[str, object] = {}
        self._keys: dict[str, str] = {}  # of the document, for each anchor under one
        self._open: list[tuple[str | None, dict[str, object] | list[object]]] = []
        # of each open container, what its merge keys name, with the line of each
        self._merged: list[list[tuple[dict[str, object], int]]] = []

    def scalar(self, event: Any) -> None:  # noqa: ANN401 - an event of libyaml, which has no types
        """Add a scalar, or begin a merge."""
        if self._builder.wants_key and event.value == "<<" and event.implicit[0]:
            self._merge()
            return
        value, key = self._loader.scalar(event), self._builder.outermost_key
        (self._builder.key if self._builder.wants_key else self._builder.value)(value)
        if event.anchor is not None:
            self._name(event.anchor, value, key)

    def _name(self, anchor: str, value: object, key: str | None) -> None:
        self._named[anchor] = value
        self._keys.pop(anchor, None)
        if key is not None:
            self._keys[anchor] = key

    def begin(self, container: dict[str, object] | list[object], anchor: str | None) -> None:
        """Begin an object or a list."""
        self._builder.begin(container)
        self._open.append((anchor, container))
        self._merged.append([])

    def end(self) -> None:
        """End the innermost object or list; its own keys win over merged ones."""
        anchor, container = self._open.pop()
        for merged, line in self._merged.pop():
            self._builder.line = line
            for key, value in merged.items():
                if key not in container:
                    self._builder.key(key)
                    _replay(value, self._builder)
        outermost = self._builder.outermost_key
        self._builder.end()
        if anchor is not None:
            self._name(anchor, container, outermost)

    def repeat(self, name: str) -> None:
        """Add a copy of what an anchor names."""
        value = self._value(name)
        if self._builder.wants_key:
            self._builder.key(value)
        else:
            _replay(value, self._builder)

    def _value(self, name: str) -> object:
        if name not in self._named:
            where = f"line {self._builder.line}"
            raise InvalidProblemError.of("", f"not YAML: *{shown(name)} names no value before it ({where})")
        self.repeated |= {self._keys[name]} if name in self._keys else set()
        return self._named[name]

    def _merge(self) -> None:
        """Note what a merge key names: an alias or a list of them."""
        events: list[Any] = [self._loader.get_event()]
        if isinstance(events[0], yaml.SequenceStartEvent):
            while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
                events.append(event)
            events = events[1:]
        for named in events:
            value = self._value(str(named.anchor)) if isinstance(named, yaml.AliasEvent) else None
            if not isinstance(value, dict):
                why = "<< must name an object, such as *base, or a list of them"
                raise yaml.constructor.ConstructorError(None, None, why, named.start_mark)
            self._merged[-1].append((value, named.start_mark.line + 1))


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


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidProblemError.of("", f"{name} is not a JSON number")


def _too_big(limits: InputLimits) -> InvalidProblemError:
    return InvalidProblemError.of(
        "", f"the input is too big: {limits.advice}", allowed=f"{limits.max_bytes} bytes"
    )


def _too_many(limits: InputLimits) -> InvalidProblemError:
    message = f"has too many values: {limits.advice}"
    return InvalidProblemError.of("", message, allowed=f"{limits.max_values} values")
