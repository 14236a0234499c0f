"""Text functions of a shell: braces, patterns, changes of values, and the output of small programs.

Every function takes texts and gives texts back; nothing is run and no variable is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from posixpath import dirname
from typing import TypeAlias

from meshwright.shell.words import WordPart, unescaped, whole_number

MAX_TURNS = 64  # of a loop, and words of a sequence
MAX_BRACED = 256  # words that the braces of one produce

# --------------------------------------------------------------------------------------------------
# Braces: ``--{a,b}`` and ``{1..8}``.


_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?", re.ASCII)
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])")
_Piece = str | WordPart  # one unquoted character, or text outside braces


def braced(parts: Sequence[WordPart]) -> list[list[WordPart]]:
    """Return the words that the braces of one produce, by their parts; without braces, the word itself."""
    if not any("{" in part.text and not (part.expands or part.quoted) for part in parts):
        return [list(parts)]
    pieces: list[_Piece] = []
    for part in parts:
        pieces += [part] if part.expands or part.quoted else list(part.text)
    if len(pieces) > _MAX_CHANGED:
        return [list(parts)]
    return [_joined(one) for one in _alternatives(pieces)]


def _joined(pieces: Sequence[_Piece]) -> list[WordPart]:
    return [WordPart(piece) if isinstance(piece, str) else piece for piece in pieces]


def _alternatives(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Return the words of the first brace with a comma or a range, and so on for the rest."""
    for start, piece in enumerate(pieces):
        end = _closed(pieces, start) if piece == "{" else None
        if end is None:
            continue
        inner = _options(pieces[start + 1 : end])
        if inner:
            behind = _alternatives(pieces[end + 1 :])
            found = [[*pieces[:start], *one, *rest] for one in inner for rest in behind]
            return found if len(found) <= MAX_BRACED else [list(pieces)]
    return [list(pieces)]


def _closed(pieces: Sequence[_Piece], start: int) -> int | None:
    depth = 0
    for at in range(start, len(pieces)):
        depth += (pieces[at] == "{") - (pieces[at] == "}")
        if not depth:
            return at
    return None


def _options(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Return the alternatives of a brace, by commas or its range; empty without either."""
    options: list[list[_Piece]] = [[]]
    depth = 0
    for piece in pieces:
        depth += (piece == "{") - (piece == "}")
        if piece == "," and not depth:
            options.append([])
        else:
            options[-1].append(piece)
    if len(options) > 1:
        return [one for option in options for one in _alternatives(option)]
    if not all(isinstance(one, str) for one in pieces):
        return []
    text = "".join(str(one) for one in pieces)
    if (letters := _LETTERS.fullmatch(text)) is not None:
        first, last = map(ord, letters.groups())
        way = 1 if first <= last else -1
        return [[chr(one)] for one in range(first, last + way, way)]
    found = _RANGE.fullmatch(text)
    if found is None:
        return []
    first, last = int(found[1]), int(found[2])
    step = abs(int(found[3] or 1)) or 1
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    width = max((len(text) for text in found.groups()[:2] if text.lstrip("-").startswith("0")), default=0)
    if len(numbers) > MAX_BRACED:
        return []
    return [list(str(number).zfill(width)) for number in numbers]


# --------------------------------------------------------------------------------------------------
# Patterns and changes: ``${X%.*}``, ``${X//a/b}``, ``${X:0:4}``, ``${X^^}``.


_CASES: Mapping[str, Callable[[str], str]] = {
    "^^": str.upper, ",,": str.lower, "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}  # fmt: skip


def literal(text: str) -> str:
    """Return a pattern that matches only the text."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def fits(text: str, pattern: str) -> bool:
    """Return whether a text fully matches a pattern; nothing matches an invalid one, such as ``[z-a]``.

    Raises:
        ValueError: the pattern might take for ever.
    """
    try:
        return re.fullmatch(_expression(_in_ranges(pattern)), text, re.DOTALL) is not None
    except re.error:
        return False


_CLASSES: Mapping[str, str] = {
    "digit": "0-9", "alpha": "a-zA-Z", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z",
    "space": " \t\n\r\f\v", "blank": " \t", "xdigit": "0-9a-fA-F", "word": "a-zA-Z0-9_",
}  # fmt: skip
_CLASS = re.compile(r"\[:(\w+):\]")


def _in_ranges(pattern: str) -> str:
    """Return a pattern or regular expression with ranges for classes such as ``[:digit:]``."""
    return _CLASS.sub(lambda found: _CLASSES.get(found[1], found[0]), pattern)


_GROUPS = {"@": "", "?": "?"}  # how often the bracketed part may occur (extglob)
_MAX_GROUPS = 3  # each may be tried with each, at each place
_MAX_CHANGED = 4_000  # characters of a text that a pattern is compared with


def _expression(pattern: str) -> str:
    """Return a shell's pattern as a regular expression that only backtracks over its last star."""
    chunks, at = [""], 0
    if sum(pattern.count(f"{mark}(") for mark in _GROUPS) > _MAX_GROUPS:
        raise ValueError(f"a pattern with more than {_MAX_GROUPS} brackets is not followed: {pattern[:40]}")
    while at < len(pattern):
        char, end = pattern[at], pattern.find("]", at + 2)
        close = pattern.find(")", at) if pattern[at + 1 : at + 2] == "(" and char in _GROUPS else -1
        if char == "\\" and at + 1 < len(pattern):
            chunks[-1] += re.escape(pattern[at + 1])
            at += 1
        elif close > 0:
            options = "|".join(map(_expression, pattern[at + 2 : close].split("|")))
            chunks[-1] += (
                f"(?>{options}){_GROUPS[char]}" if "*" in options else f"(?:{options}){_GROUPS[char]}"
            )
            at = close
        elif char == "[" and end > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\")
            chunks[-1] += f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]"
            at = end
        elif char == "*":
            chunks.append("")
        else:
            chunks[-1] += "." if char == "?" else re.escape(char)
        at += 1
    middle = "".join(f"(?>.*?{chunk})" for chunk in chunks[1:-1] if chunk)
    return chunks[0] + (f"{middle}.*{chunks[-1]}" if len(chunks) > 1 else "")


def compared(left: str, sign: str, right: str, *, double: bool) -> bool | None:
    """Return whether two texts or numbers compare so, or None; ``double``: the right one is a pattern."""
    same = fits(left, right) if double else left == right
    texts = {"=": same, "==": same, "!=": not same, "<": left < right, ">": left > right}
    if sign in texts:
        return texts[sign]
    one, other = whole_number(left or "0"), whole_number(right or "0")
    if one is None or other is None:
        return None
    numbers = {"-eq": one == other, "-ne": one != other, "-lt": one < other, "-le": one <= other,
               "-gt": one > other, "-ge": one >= other}  # fmt: skip
    return numbers.get(sign)


def closing(text: str) -> int:
    """Return the index of the closing bracket, or of the last character without one."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if not depth:
            return at
    return len(text) - 1


def changed(text: str, rest: str) -> str | None:
    """Return one value with the change after the name in ``${…}``; None for an unknown change."""
    if rest in _CASES:
        return _CASES[rest](text)
    if len(text) > _MAX_CHANGED:
        return None
    mark = next((mark for mark in ("%%", "%", "##", "#") if rest.startswith(mark)), None)
    try:
        if mark is not None:
            return _cut(text, rest[len(mark) :], mark)
        return _replaced(text, rest) if rest.startswith("/") else None
    except re.error:
        return None


def _cut(text: str, pattern: str, mark: str) -> str:
    back = mark.startswith("%")
    places = range(len(text) + 1)
    for place in places if mark in ("%%", "#") else reversed(places):
        if fits(text[place:] if back else text[:place], pattern):
            return text[:place] if back else text[place:]
    return text


_PARTED = re.compile(r"((?:\\.|[^\\/])*)(?:/(.*))?", re.DOTALL)


def _replaced(text: str, rest: str) -> str | None:
    """Replace by ``/a/b`` once, ``//a/b`` all, ``/#a/b`` at the beginning, ``/%a/b`` at the end."""
    every = rest.startswith("//")
    rest = rest[1 + every :]
    at = "" if every or rest[:1] not in ("#", "%") else rest[0]
    found = _PARTED.fullmatch(rest[len(at) :])
    if found is None or (not found[1] and not at):
        return None if found is None else text
    pattern, new = _expression(_in_ranges(found[1])), (found[2] or "").replace("\\/", "/")
    pattern = {"#": rf"\A(?:{pattern})", "%": rf"(?:{pattern})\Z"}.get(at, pattern)
    return re.sub(pattern, lambda _: new, text, count=0 if every else 1, flags=re.DOTALL)


# --------------------------------------------------------------------------------------------------
# The output of small programs, from their arguments and their input.


def printed(words: Sequence[str], given: str) -> str | None:
    """Return the output of one command; None if it is unknown."""
    print_it = _PRINTS.get(words[0])
    return None if print_it is None else print_it(list(words[1:]), given)


_FIELD = re.compile(r"%(?:(0?\d{0,3})([sdi])|%)")


def formatted(form: str, rest: Sequence[str]) -> str | None:
    """Return the output of ``printf '%03d-%s' 7 a``, repeated for extra words; None for an unknown form."""
    form = unescaped(form)
    count = sum(found[2] is not None for found in _FIELD.finditer(form))
    if "%" in _FIELD.sub("", form):
        return None
    done, left = "", list(rest)
    while not done or (left and count):
        values = [*left[:count], *[""] * count]
        left = left[count:]
        try:
            done += _FIELD.sub(lambda found: _field(found, values), form)  # noqa: B023 - used at once
        except ValueError:
            return None
    return done


def _field(found: re.Match[str], values: list[str]) -> str:
    if found[2] is None:
        return "%"
    text = values.pop(0)
    if found[2] == "s":
        return f"%{found[1]}s" % text
    number = whole_number(text or "0")
    if number is None:
        raise ValueError(text)
    return f"%{found[1]}d" % number


def _base_name(rest: list[str], _: str) -> str | None:
    tail = rest[0].rstrip("/").rpartition("/")[2] if rest else None
    return tail.removesuffix(rest[1]) if tail is not None and len(rest) > 1 else tail


# sed, of substitutions alone: ``sed -E 's/a +b/c/g; s/^x//'``.
_SUBSTITUTION = re.compile(
    r"\s*s([/#|,@:!%])((?:\\.|(?!\1)[^\\\n])*)\1((?:\\.|(?!\1)[^\\\n])*)\1([gI]*)\s*(?:[;\n]|$)", re.DOTALL
)
Substitution: TypeAlias = re.Match[str]
_MAX_EDITED = 1_000_000  # characters that one substitution may make
_OPTIONAL = re.compile(r"[*?{|]")  # parts with which an expression can match nothing
_OF_GROUPS = "(){}+?|"  # special in an extended expression, and after a backslash in a basic one


def _edited(rest: list[str], given: str) -> str | None:
    """Return the output of ``sed`` for the given lines; None for commands other than ``s``."""
    words = [one for one in rest if one not in ("-E", "-r", "-e")]
    extended = len(words) < len(rest) - rest.count("-e")
    if any(one[:1] == "-" for one in words) or len(words) != max(rest.count("-e"), 1):
        return None
    substitutions = list[Substitution]()
    for word in words:
        at = 0
        while at < len(word):
            found = _SUBSTITUTION.match(word, at)
            if found is None or len(substitutions) == MAX_TURNS:
                return None
            substitutions.append(found)
            at = found.end()
    body, end = (given[:-1], "\n") if given.endswith("\n") else (given, "")  # it closes the last line
    for found in substitutions if given else ():
        changed_body = _substituted(found, body, extended=extended)
        if changed_body is None:
            return None
        body = changed_body
    return body + end


def _substituted(found: Substitution, given: str, *, extended: bool) -> str | None:
    """Return lines after a substitution; None if it is unknown here, or might take for ever."""
    old, new = (text.replace(f"\\{found[1]}", found[1]) for text in (found[2], found[3]))
    expression = _regular(old, extended=extended)
    if (
        expression is None
        or _is_costly(expression, given)
        or (len(given) + 1) * (len(new) + 1) > _MAX_EDITED
    ):
        return None
    try:
        pattern = re.compile(expression, re.IGNORECASE if "I" in found[4] else 0)
        several = "g" in found[4] and _OPTIONAL.search(expression) is not None
        if _TIMES.search(expression) and len(given) > _MAX_CHANGED:
            return None
        if several and new and pattern.search(""):
            return None  # Python finds an empty match after another one, sed does not
        return "\n".join(
            pattern.sub(lambda one: _filled(new, one), line, count=0 if "g" in found[4] else 1)
            for line in given.split("\n")
        )
    except (re.error, IndexError):
        return None


def _filled(new: str, found: re.Match[str]) -> str:
    r"""Return the replacement of a match by ``sed``, with ``&`` and ``\1`` filled in."""
    return re.sub(
        r"\\(.)|&",
        lambda one: found[0] if one[1] is None else (found[int(one[1])] or "") if one[1].isdecimal()
        else unescaped(one[0]) if one[1] in "nt" else one[1],
        new,
    )  # fmt: skip


def _regular(pattern: str, *, extended: bool) -> str | None:
    """Return the regular expression of a pattern of ``sed``; None if it is unknown here."""
    done, at = "", 0
    while at < len(pattern):
        char, following = pattern[at], pattern[at + 1 : at + 2]
        if char == "[":
            end = pattern.find("]", at + (3 if following == "^" else 2))
            while end >= 0 and pattern.count("[:", at, end) > pattern.count(":]", at, end + 1):
                end = pattern.find("]", end + 1)
            if end < 0:
                return None
            inside = _in_ranges(pattern[at + 1 : end]).replace("\\", "\\\\").replace("[", "\\[")
            done, at = done + f"[{inside}]", end
        elif char == "\\":
            if following.isdecimal() or not following:
                return None
            special = following in "sSwWbnt" or (following in _OF_GROUPS and not extended)
            plain = following if following in _OF_GROUPS else f"\\{following}"
            done, at = done + (plain if special else re.escape(following)), at + 1
        elif char in _OF_GROUPS:
            done += char if extended else re.escape(char)
        elif char in "^$":
            begins, ends = pattern[:at], pattern[at + 1 :]
            anchors = (
                not begins or begins.endswith(_OPENS)
                if char == "^"
                else not ends or ends.startswith(_CLOSES)
            )
            done += char if anchors or extended else re.escape(char)
        else:
            done += char if char in ".*" else re.escape(char)
        at += 1
    return done


_OPENS, _CLOSES = ("\\(", "\\|"), ("\\)", "\\|")  # where ^ and $ are ends of a line in a basic expression


_COSTLY = re.compile(r"\)[*+{?]|\\\d")  # these can make a regular expression take for ever
_TIMES, _MAX_TIMES, _MAX_FITTED = re.compile(r"[*+{]"), 3, 200


def _is_costly(expression: str, text: str) -> bool:
    """Return whether a regular expression might take for ever on a text."""
    times = len(_TIMES.findall(expression))
    return bool(_COSTLY.search(expression)) or times > _MAX_TIMES or (times > 1 and len(text) > _MAX_FITTED)


def _sequence(rest: list[str], _: str) -> str | None:
    """Return the output of ``seq 3``, ``seq 0 3`` or ``seq 0 2 8``."""
    numbers = [whole_number(one) for one in rest]
    if None in numbers or not 1 <= len(numbers) <= 3:  # noqa: PLR2004 - first, step and last
        return None
    known = [number for number in numbers if number is not None]
    first, last = known[0] if len(known) > 1 else 1, known[-1]
    step = known[1] if len(known) == 3 else 1  # noqa: PLR2004
    found = range(first, last + (1 if step > 0 else -1), step) if step else ()
    return "\n".join(map(str, found)) if found and len(found) < MAX_TURNS else None


def _line_of(number: int | None) -> str | None:
    return None if number is None else f"{number}\n"


def _echo(rest: list[str], _: str) -> str | None:
    options = "".join(takewhile(re.compile(r"-[neE]+").fullmatch, rest))
    plain = " ".join(rest[options.count("-") :])
    return (unescaped(plain) if "e" in options else plain) + ("" if "n" in options else "\n")


def _calculated(rest: list[str], given: str) -> str | None:
    """Return the output of ``echo 8/2 | bc``; with options or a scale it keeps fractions."""
    return None if rest else _line_of(whole_number(given.strip().replace("^", "**")))


_QUOTES = {"'", '"', "\\"}
_PRINTS: Mapping[str, Callable[[list[str], str], str | None]] = {
    "echo": _echo,
    "printf": lambda rest, _: formatted(rest[0], rest[1:]) if rest and rest[0][:1] != "-" else None,
    "expr": lambda rest, _: _line_of(whole_number(" ".join(rest))),
    "bc": _calculated,
    "basename": _base_name,
    "dirname": lambda rest, _: (dirname(rest[0].rstrip("/") or "/") or ".") if rest else None,
    "sed": _edited,
    "xargs": lambda rest, given: None if rest or set(given) & _QUOTES else f"{' '.join(given.split())}\n",
    "seq": _sequence,
    "cat": lambda rest, given: None if rest else given,
}  # fmt: skip
