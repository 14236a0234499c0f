"""What a shell script's variables hold, and what its words and conditions come to; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from meshwright.profiles.documents import shown
from meshwright.service.launchers.reading.shell_words import Part, Token, lex, parts_of, whole_number

UNKNOWN = "\x00"  # stands where a value is not known; the name follows, then another
DOUBT = "@"  # between the name of a variable and the line of the condition that it hangs on
MAX_DEPTH = 8  # of files that read one another, of functions, and of defaults in defaults
MAX_TURNS = 64  # of a loop
MAX_WORDS = 40_000  # of all commands and arrays
MAX_TEXT = 200_000  # characters of one variable
_MAX_WRITTEN = 2_000_000  # characters that all expansions, assignments and commands of a script make
_MAX_WITHIN = 300_000  # characters of sourced files, of defaults and of arithmetic, each time one is read
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+", re.ASCII)
_PIECE = re.compile(rf"(?:{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}|[^\s{UNKNOWN}])+")
_WHOLE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|\$([A-Za-z_]\w*)", re.ASCII)
_PART = re.compile(r":[ ]?(\d{1,6})(?::(\d{1,6}))?", re.ASCII)
Status = bool | None  # of a command; None: only a running shell knows
Values = dict[str, tuple["Word", ...]]


@dataclass(frozen=True, slots=True)
class Word:
    """One word after expansion, and where it stands."""

    text: str
    line: int

    @property
    def unknown(self) -> str | None:
        """The name of a variable that is not known here, if one is part of it."""
        return self.text.split(UNKNOWN)[1] if UNKNOWN in self.text else None


@dataclass(frozen=True, slots=True)
class Filled:
    """A template with some of its names replaced."""

    text: str | None  # None: the template is not there
    names: Mapping[str, str]  # that were replaced, and by what


@dataclass(slots=True)
class Script:
    """What a script would run, and what it sets."""

    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    words: Values = field(default_factory=dict)  # of each variable, where it is set
    commands: list[tuple[Word, ...]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # that ``cat <<EOT > name`` writes, by base name
    filled: dict[str, Filled] = field(default_factory=dict)  # that ``sed … > name`` writes, by base name
    piped: Filled = field(default_factory=lambda: Filled(None, {}))  # what the last ``sed`` printed
    notes: list[str] = field(default_factory=list)  # what was assumed, and what was told otherwise
    told: frozenset[str] = frozenset()  # variables whose value somebody tells
    stopped: int = 0  # the line of the ``exit`` that ends it
    line: int = 0  # that is read
    num_words: int = 0
    written: int = 0  # characters so far
    within: int = 0  # characters so far

    def write(self, texts: Iterable[str], *, words: int = 0) -> None:
        """Add to what was written; ValueError beyond any script's size."""
        self.written += sum(map(len, texts))
        self.num_words += words
        if self.written > _MAX_WRITTEN:
            raise ValueError(f"line {self.line}: the script expands beyond {_MAX_WRITTEN} characters")
        if self.num_words > MAX_WORDS:
            raise ValueError(f"line {self.line}: the script has more than {MAX_WORDS} words")

    def look_into(self, text: str) -> str:
        """The text of a sourced file or of a nested value; ValueError beyond any script's size."""
        self.within += len(text)
        if self.within > _MAX_WITHIN:
            what = "files that it sources and values in values"
            raise ValueError(f"line {self.line}: {what} have more than {_MAX_WITHIN} characters")
        return text

    def note(self, text: str) -> None:
        """Say once what was assumed."""
        if text not in self.notes:
            self.notes.append(text)


class Variables:
    """The variables of a script, and what words with them come to."""

    def __init__(self, script: Script, *, in_slurm: bool) -> None:
        self._script = script
        self._in_slurm = in_slurm

    # ---------------------------------------------------------------- conditions

    def test(self, words: Sequence[Word]) -> Status:
        """``[ … ]``."""
        for joined, combine in (("||", either), ("-o", either), ("&&", both), ("-a", both)):
            at = next((i for i, word in enumerate(words) if word.text == joined and i > 0), None)
            if at is not None:
                return combine(self.test(words[:at]), self.test(words[at + 1 :]))
        if words and words[0].text == "!":
            return opposite(self.test(words[1:]))
        texts = [self.assumed(word.text, word.line) for word in words]
        if len(words) == 1:
            return None if texts[0] is None else texts[0] != ""
        if len(words) == 2:  # noqa: PLR2004 - an operator and a word
            empty = None if texts[1] is None else texts[1] == ""
            return {"-z": empty, "-n": opposite(empty)}.get(words[0].text)
        return _compared(*texts) if len(texts) == 3 else None  # noqa: PLR2004 - two words with an operator

    def assumed(self, text: str, line: int = 0) -> str | None:
        """A text where variables that nobody sets are empty, as in a plain shell; None: not known."""
        pieces = text.split(UNKNOWN)
        for name in pieces[1::2]:
            slurm = name.startswith("SLURM") and self._in_slurm
            if slurm or _PARAMETER.fullmatch(name) is None or name == "loop":
                return None
            self._script.note(f"line {line or self._script.line}: ${name} is not set: read as empty")
        return "".join(pieces[::2])

    # ---------------------------------------------------------------- variables

    def store(self, head: str, words: Sequence[Word], line: int, *, is_text: bool = True) -> None:
        """Set or extend a variable; one that is told stays as it is told."""
        script = self._script
        name = head.rstrip("=").rstrip("+")
        old = script.words.get(name, ())
        if head.endswith("+=") and old and is_text:
            new: tuple[Word, ...] = (Word(old[0].text + words[0].text, old[0].line), *old[1:])
        else:
            new = (*old, *words) if head.endswith("+=") else tuple(words)
        if sum(len(word.text) for word in new) > MAX_TEXT or len(new) > MAX_WORDS:
            raise ValueError(f"line {line}: {name[:40]} grows beyond {MAX_TEXT} characters")
        script.write(word.text for word in new)
        texts = tuple(word.text for word in new)
        if name in script.told:
            if texts != script.variables[name]:
                said, told = " ".join(texts)[:40].replace(UNKNOWN, "$"), " ".join(script.variables[name])
                script.note(f"line {line}: {name} is {told[:40]} (--var), not {said}")
            return
        script.words[name] = new
        script.variables[name] = texts

    def restore(self, values: Values) -> None:
        """The variables as they were."""
        script = self._script
        for name in script.words.keys() - values.keys():
            script.variables.pop(name, None)
        script.words = dict(values)
        script.variables |= {name: tuple(word.text for word in words) for name, words in values.items()}

    def merge(self, branches: Sequence[Values], line: int) -> None:
        """The values after branches of which only a running shell knows the right one."""
        names = {name for one in branches for name in one}
        merged = {name: _merged(name, [one.get(name) for one in branches], line) for name in names}
        self.restore(merged)

    def joined(self, token: Token) -> str:
        """A word without splitting."""
        text, self._script.line = "", token.line
        for part in token.parts:
            text += " ".join(self._value(part.text, 0)) if part.expands else part.text
        return text

    def expanded(self, token: Token) -> list[Word]:
        """A word after expansion: none, one or several."""
        self._script.line = token.line
        found = self._whole_variable(token)
        if found is None:
            found = self._pieced(token)
        self._script.write((word.text for word in found), words=len(found))
        return found

    def _pieced(self, token: Token) -> list[Word]:
        """A word of several parts after expansion."""
        done: list[str] = [""]
        any_quoted = False
        for part in token.parts:
            any_quoted = any_quoted or (part.quoted and part.text not in ("$@", "${@}"))
            values = self._value(part.text, 0) if part.expands else (part.text,)
            if part.expands and not part.quoted:
                values = tuple(piece for value in values for piece in split_words(value))
            if not values:
                continue
            done[-1] += values[0]
            done += values[1:]
        return [Word(text, token.line) for text in done if text or any_quoted]

    def _whole_variable(self, token: Token) -> list[Word] | None:
        """The words of a variable that is all of a word, each with the line on which it was set."""
        parts = [part for part in token.parts if part.text]
        if len(parts) != 1 or not parts[0].expands:
            return None
        match = _WHOLE.fullmatch(parts[0].text)
        words = self._script.words.get(match.group(1) or match.group(2)) if match else None
        if words is None or (parts[0].quoted and not parts[0].text.endswith(("[@]}", "[*]}"))):
            return None
        if parts[0].quoted:
            pieces = [
                split_words(word.text) if DOUBT in (word.unknown or "") else [word.text] for word in words
            ]
            return [
                Word(piece, word.line) for word, some in zip(words, pieces, strict=True) for piece in some
            ]
        if not parts[0].text.endswith(("[@]}", "[*]}")):
            words = words[:1]  # an array's first word
        return [Word(piece, word.line) for word in words for piece in split_words(word.text)]

    def _value(self, expression: str, depth: int) -> tuple[str, ...]:
        """What ``$…`` stands for; ValueError where it, with all others, goes beyond any script's size."""
        found = self._looked_up(expression, depth)
        self._script.write(found)
        return found

    def _looked_up(self, expression: str, depth: int) -> tuple[str, ...]:
        """What ``$…`` stands for."""
        if expression.startswith("$(("):
            number = whole_number(self.substituted(expression[3:-2], depth))
            return (unknown_value(expression) if number is None else str(number),)
        if expression.startswith(("$(", "`")):
            inside = expression[2:-1] if expression.startswith("$(") else expression[1:-1]
            output = self._output(inside) if depth <= MAX_DEPTH else None
            return (unknown_value(expression) if output is None else output,)
        body = expression[2:-1] if expression.startswith("${") else expression[1:]
        if body in ("@", "*"):
            return self._script.variables.get("@", ())
        match = _PARAMETER.match(body)
        if match is not None:
            return self._parameter(match.group(), body[match.end() :], depth)
        counted = self._counted(body[1:]) if body.startswith("#") else None
        return (counted or unknown_value(expression),)

    def _counted(self, name: str) -> str | None:
        """``$#``, ``${#NAME[@]}``, and ``${#NAME}``; None: what is not known may be several words."""
        many = name.endswith(("[@]", "[*]"))
        known = self._script.variables.get(name[:-3] if many else name or "@")
        if not name:
            return str(len(known or ()))
        if known is None or UNKNOWN in "".join(known):
            return None
        return str(len(known) if many else len("".join(known[:1])))

    def _parameter(self, name: str, rest: str, depth: int) -> tuple[str, ...]:
        """A variable with what follows its name: nothing, ``[@]``, a default, a message, a change."""
        known = self._script.variables.get(name)
        if rest in ("[@]", "[*]"):
            return known or ()
        mark = next((mark for mark in (":-", ":=", ":+", "-", "=", "+") if rest.startswith(mark)), None)
        if mark is not None:
            return self._defaulted((name, rest[len(mark) :]), known, mark, depth)
        if known is None:
            return (unknown_value(name),)
        if rest == "" or rest.startswith((":?", "?")):
            return known if rest else known[:1]  # of an array its first word
        changed = None if UNKNOWN in "".join(known) else _changed(" ".join(known), known, rest)
        return (unknown_value(name) if changed is None else changed,)

    def _defaulted(
        self, pair: tuple[str, str], known: tuple[str, ...] | None, mark: str, depth: int
    ) -> tuple[str, ...]:
        """A variable's value, or what stands for it where it is not set."""
        lacks = known is None or (mark.startswith(":") and not "".join(known))
        if mark.endswith("+"):
            return () if lacks else (self.substituted(pair[1], depth + 1),)
        if known is not None and not lacks:
            return known
        value = self.substituted(pair[1], depth + 1)
        if mark.endswith("="):
            self.store(pair[0] + "=", [Word(value, self._script.line)], self._script.line)
        return (value,)

    def substituted(self, text: str, depth: int) -> str:
        """Text with the variables in it replaced; ``NAME`` alone counts in arithmetic."""
        if depth > MAX_DEPTH:
            raise ValueError("defaults in defaults without end")
        done = ""
        for part in (_unquoted if depth else parts_of)(self._script.look_into(text)):
            done += " ".join(self._value(part.text, depth)) if part.expands else part.text
        return done if depth else _NAME.sub(lambda found: self._bare(found.group()), done)

    def _bare(self, name: str) -> str:
        """A variable in arithmetic without its dollar sign."""
        value = self._script.variables.get(name, (name,))
        self._script.write(value)
        return " ".join(value)

    def _output(self, text: str) -> str | None:
        """What commands print that need no running shell, such as ``echo 8 | bc``; None: not known."""
        try:
            tokens = lex(self._script.look_into(text))
        except ValueError:
            return None
        stages: list[list[Token]] = [[]]
        for token in tokens:
            if token.operates("|"):
                stages.append([])
            elif token.kind != "word":
                return None
            else:
                stages[-1].append(token)
        output: str | None = ""
        for stage in stages:
            words = [word.text for token in stage for word in self.expanded(token)]
            if output is None or not words or any(UNKNOWN in word for word in words):
                return None
            output = _printed(words, output)
        return None if output is None else output.strip()


def _printed(words: Sequence[str], given: str) -> str | None:
    """What one command prints; None: not known."""
    print_it = _PRINTS.get(words[0])
    return None if print_it is None else print_it(list(words[1:]), given)


def _base_name(rest: list[str], _: str) -> str | None:
    tail = rest[0].rstrip("/").rpartition("/")[2] if rest else None
    return tail.removesuffix(rest[1]) if tail is not None and len(rest) > 1 else tail


def _translated(rest: list[str], given: str) -> str | None:
    letters = len(rest) == 2 and len(rest[0]) == 1  # noqa: PLR2004 - from and to
    return given.replace(rest[0], rest[1].replace("\\n", "\n")) if letters else None


def _word_count(rest: list[str], given: str) -> str | None:
    counts = {"-l": given.count("\n"), "-w": len(given.split())}
    return _digits(counts.get(rest[0])) if len(rest) == 1 else None


def _sequence(rest: list[str], _: str) -> str | None:
    first, last = (whole_number(one) for one in (["1", *rest])[-2:]) if rest else (None, None)
    if first is None or last is None or last - first >= MAX_TURNS or len(rest) > 2:  # noqa: PLR2004
        return None
    return " ".join(str(number) for number in range(first, last + 1))


def _digits(number: int | None) -> str | None:
    return None if number is None else str(number)


_PRINTS: Mapping[str, Callable[[list[str], str], str | None]] = {
    "echo": lambda rest, _: " ".join(word for word in rest if word not in ("-n", "-e")) + "\n",
    "expr": lambda rest, _: _digits(whole_number(" ".join(rest))),
    "bc": lambda _, given: _digits(whole_number(given.strip())),
    "basename": _base_name,
    "dirname": lambda rest, _: (rest[0].rstrip("/").rpartition("/")[0] or ".") if rest else None,
    "tr": _translated,
    "wc": _word_count,
    "seq": _sequence,
}


def _changed(text: str, words: Sequence[str], rest: str) -> str | None:
    """``${X%.*}``, ``${X##*/}``, ``${X/a/b}``, ``${X,,}``, ``${X:0:4}``, ``${X[0]}``; None: another."""
    part = _PART.fullmatch(rest)
    if part is not None or rest in (",,", "^^"):
        return _cut(text, part) if part is not None else text.lower() if rest == ",," else text.upper()
    if rest.startswith("[") and rest.endswith("]"):
        place = whole_number(rest[1:-1])
        return words[place] if place is not None and 0 <= place < len(words) else None
    mark = next((mark for mark in ("%%", "%", "##", "#") if rest.startswith(mark)), None)
    if mark is not None:
        pattern = rest[len(mark) :]
        cuts = range(len(text) + 1)
        back = mark.startswith("%")
        order = cuts if (mark in ("%%", "#")) else reversed(cuts)
        for cut in order:
            if fnmatchcase(text[cut:] if back else text[:cut], pattern):
                return text[:cut] if back else text[cut:]
        return text
    if rest.startswith("/") and "*" not in rest and "?" not in rest:
        old, _, new = rest.lstrip("/").partition("/")
        return text.replace(old, new, -1 if rest.startswith("//") else 1) if old else None
    return None


def _cut(text: str, part: re.Match[str]) -> str:
    """``${X:2}`` and ``${X:0:4}``."""
    start = int(part[1])
    return text[start:] if part[2] is None else text[start : start + int(part[2])]


def _merged(name: str, values: Sequence[tuple[Word, ...] | None], line: int) -> tuple[Word, ...]:
    """One variable after branches: its value where all agree, else what is common, and what is in doubt."""
    texts = [None if one is None else tuple(word.text for word in one) for one in values]
    last = next(one for one in reversed(values) if one is not None)
    if all(one == texts[0] for one in texts):
        return last
    doubt = f"{UNKNOWN}{name[:40]}{DOUBT}{line}{UNKNOWN}"
    groups = [_flag_groups(one or ()) for one in values]
    if not any(groups):
        return (Word(doubt, line),)
    every = [flag for one in groups for flag in one]
    differ = dict.fromkeys(flag for flag in every if len({one.get(flag) for one in groups}) > 1)
    common = {flag: rest for flag, rest in groups[-1].items() if flag not in differ}
    same = [Word(piece, line) for flag, rest in common.items() for piece in (flag, *rest)]
    found = (*same, *(Word(f"{flag}={doubt}", line) for flag in differ))
    if all(one is None or len(one) < 2 for one in values):  # noqa: PLR2004 - a text, of which $X is all
        return (Word(" ".join(word.text for word in found), line),)
    return found


def _flag_groups(words: Sequence[Word]) -> dict[str, tuple[str, ...]]:
    """Flags with the words behind them."""
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for piece in (piece for word in words for piece in split_words(word.text)):
        if piece.startswith("-"):
            flag = piece
            found[flag] = ()
        elif flag:
            found[flag] = (*found[flag], piece)
    return found


def _compared(left: str | None, sign: str | None, right: str | None) -> Status:
    """Two texts or numbers."""
    if left is None or right is None or sign is None:
        return None
    texts = {"=": left == right, "==": left == right or fnmatchcase(left, right), "!=": left != right}
    if sign in texts:
        return texts[sign]
    one, other = whole_number(left or "0"), whole_number(right or "0")
    if one is None or other is None:
        return None
    numbers = {"-eq": one == other, "-ne": one != other, "-lt": one < other, "-le": one <= other,
               "-gt": one > other, "-ge": one >= other, "<": one < other, ">": one > other}  # fmt: skip
    return numbers.get(sign)


def _unquoted(text: str) -> list[Part]:
    """The parts of a default, whose quotes are the shell's."""
    quoted = '"' in text or "'" in text
    return [part for token in lex(text) for part in token.parts] if quoted else parts_of(text)


def both(one: Status, other: Status) -> Status:
    """Whether two statuses hold."""
    return False if one is False or other is False else None if None in (one, other) else True


def either(one: Status, other: Status) -> Status:
    """Whether one of two statuses holds."""
    return opposite(both(opposite(one), opposite(other)))


def opposite(one: Status) -> Status:
    """The other status."""
    return None if one is None else not one


def split_words(text: str) -> list[str]:
    """A text cut where it has blanks, but for the names of what is not known: ``$(head -n 1 hosts)``."""
    return _PIECE.findall(text)


def why_unknown(name: str) -> tuple[str, str]:
    """Why a value is not known, and what to do about it: a variable may be told, a computation not."""
    variable, doubt, line = name.partition(DOUBT)
    told, capture = f"--var {shown(variable)}=…", "run it with stand-ins: meshwright capture -- bash …"
    if doubt:
        why = f"${shown(variable)} hangs on a condition of line {line} that only a running shell knows"
        return why, f"{told}, or {capture}"
    if name.startswith(("$(", "`")) and not name.startswith("$(("):
        return f"it is what {shown(name)} prints, which is not run", capture
    why = f"the value hangs on ${shown(name)}, which the script does not set"
    if re.fullmatch(r"\w+", name):
        return why, f"a value in the script, or beside it ({told}), or {capture}"
    return why, capture


def unknown_value(name: str) -> str:
    """The mark of what is not known."""
    return f"{UNKNOWN}{name[:40]}{UNKNOWN}"
