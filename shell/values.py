"""Variables of a shell script, and the values of its words and conditions; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.shell.expansion import braced, changed, closing, compared, literal, printed
from meshwright.shell.words import Names, Token, WordPart, lex, parts_of, whole_number

UNKNOWN = "\x00"  # marks an unknown value; followed by its name and another mark
DOUBT = "@"  # between a variable's name and the line of the condition that it depends on
MAX_DEPTH = 8  # of nested sources, functions and defaults
MAX_WORDS = 40_000  # of all commands and arrays
MAX_TEXT = 200_000  # characters of one variable
_MAX_WRITTEN = 2_000_000  # characters produced by all expansions, assignments and commands of a script
_MAX_WITHIN = 300_000  # characters of sourced files, defaults and arithmetic, counted on each reading
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ALWAYS_SET = ("loop", "HOME", "HOSTNAME", "PWD", "RANDOM", "UID", "USER")  # to unknown values
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+", re.ASCII)
_PIECE = re.compile(rf"(?:{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}|[^\s{UNKNOWN}])+")
_WHOLE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|\$([A-Za-z_]\w*)", re.ASCII)
_PART = re.compile(r":(?![-=?+])(.*?)(?::(.*))?", re.ASCII | re.DOTALL)
_EACH = ("[@]", "[*]")
_LISTS = re.compile(r"\$@|\$\{[!#]?(?:@|\w+\[@\])(?::\s*[^-=?+].*)?\}", re.DOTALL)  # no word if empty
_BLANK = " \t\n"  # separates words if IFS is not set
Status = bool | None  # of a command; None: known only at run time
Values = dict[str, tuple["Word", ...]]


@dataclass(frozen=True, slots=True)
class Word:
    """A word after expansion, with its line."""

    text: str
    line: int

    @property
    def unknown(self) -> str | None:
        """Name of the unknown variable that is part of the word, if any."""
        return self.text.split(UNKNOWN)[1] if UNKNOWN in self.text else None


@dataclass(frozen=True, slots=True)
class FilledTemplate:
    """A template with some names replaced."""

    text: str | None  # None: the template is missing
    names: Mapping[str, str]  # replaced names and their values


@dataclass(slots=True, eq=False)  # compared by identity, so that what is made of one is made once
class Script:
    """The commands that a script would run, and its variables."""

    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    words: Values = field(default_factory=dict)  # by variable, with the place where it is set
    commands: list[tuple[Word, ...]] = field(default_factory=list)
    environments: list[Mapping[str, tuple[str, ...]]] = field(default_factory=list)  # of each command
    files: dict[str, str] = field(default_factory=dict)  # written by ``cat <<EOT > name``, by base name
    filled: dict[str, FilledTemplate] = field(
        default_factory=dict
    )  # written by ``sed … > name``, by base name
    piped: FilledTemplate = field(
        default_factory=lambda: FilledTemplate(None, {})
    )  # output of the last ``sed``
    notes: list[str] = field(default_factory=list)  # assumptions and supplied values that differ
    supplied: frozenset[str] = frozenset()  # variables with supplied values
    keyed: set[str] = field(default_factory=set)  # associative arrays, with words in variables NAME[key]
    passed: dict[str, tuple[str, ...]] = field(default_factory=dict)  # set for one command only
    exported: dict[str, int] = field(default_factory=dict)  # after how many commands
    known_as: dict[str, str] = field(
        default_factory=dict
    )  # by its own programs: a known one that does the same
    stopped: int = 0  # the line of the final ``exit``
    on_nodes: tuple[Script, ...] = ()  # as it runs on its last two nodes, if it tests the node's rank
    tested: tuple[str, ...] = ()  # variables that the conditions around it test
    line: int = 0  # being read
    num_words: int = 0
    written: int = 0  # characters so far
    within: int = 0  # characters so far

    def write(self, texts: Iterable[str], *, words: int = 0) -> None:
        """Count written characters and words; ValueError beyond the limit for a script."""
        self.written += sum(map(len, texts))
        self.num_words += words
        if self.written > _MAX_WRITTEN:
            raise ValueError(f"line {self.line}: the script expands beyond {_MAX_WRITTEN} characters")
        if self.num_words > MAX_WORDS:
            raise ValueError(f"line {self.line}: the script has more than {MAX_WORDS} words")

    def look_into(self, text: str) -> str:
        """Return the text of a sourced file or nested value; ValueError beyond the limit for a script."""
        self.within += len(text)
        if self.within > _MAX_WITHIN:
            what = "files that it sources and values in values"
            raise ValueError(f"line {self.line}: {what} have more than {_MAX_WITHIN} characters")
        return text

    @property
    def environment(self) -> Mapping[str, tuple[str, ...]]:
        """The variables, including those set for one command only."""
        return {**self.variables, **self.passed}

    def note(self, text: str) -> None:
        """Add a note on an assumption, once."""
        if text not in self.notes:
            self.notes.append(text)


class Variables:
    """The variables of a script, with the expansion of words that use them."""

    def __init__(self, script: Script, *, in_slurm: bool) -> None:
        self._script = script
        self._in_slurm = in_slurm

    # ---------------------------------------------------------------- conditions

    def test(self, words: Sequence[Word], *, double: bool = False) -> Status:
        """Evaluate ``[ … ]`` and ``[[ … ]]``; the right sides of the latter are patterns."""
        for joined, combine in (("||", either), ("-o", either), ("&&", both), ("-a", both)):
            at = _outside(words, joined)
            if at:
                first, second = (self.test(some, double=double) for some in (words[:at], words[at + 1 :]))
                return combine(first, second)
        if words and words[0].text in ("!", "("):
            within = self.test(words[1:] if words[0].text == "!" else words[1:-1], double=double)
            return opposite(within) if words[0].text == "!" else within
        texts = [self.assumed(word.text, word.line) for word in words]
        if len(words) == 1:
            return None if texts[0] is None else texts[0] != ""
        if len(words) == 2:  # noqa: PLR2004 - an operator and a word
            empty = None if texts[1] is None else texts[1] == ""
            said = {"-z": empty, "-n": opposite(empty), "-v": words[1].text in self._script.variables}
            return said.get(words[0].text)
        known = [text for text in texts if text is not None]
        return compared(*known, double=double) if len(known) == len(texts) == 3 else None  # noqa: PLR2004

    def assumed(self, text: str, line: int = 0) -> str | None:
        """Return the text with undefined variables empty, as in a plain shell; None if it is unknown."""
        pieces = text.split(UNKNOWN)
        for name in pieces[1::2]:
            slurm = name.startswith("SLURM") and self._in_slurm
            if slurm or _PARAMETER.fullmatch(name) is None or name in _ALWAYS_SET:
                return None
            self._script.note(f"line {line or self._script.line}: ${name} is not set: read as empty")
        return "".join(pieces[::2])

    # ---------------------------------------------------------------- variables

    def store(self, head: str, words: Sequence[Word], line: int, *, is_text: bool = True) -> None:
        """Set or extend a variable; a supplied value is never changed."""
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
        if name in script.supplied:
            if texts != script.variables[name]:
                said = " ".join(texts)[:40].replace(UNKNOWN, "$")
                supplied = " ".join(script.variables[name])
                script.note(f"line {line}: {name} is {supplied[:40]} (--var), not {said}")
            return
        script.words[name] = new
        script.variables[name] = texts

    def restore(self, values: Values) -> None:
        """Restore the variables."""
        script = self._script
        for name in script.words.keys() - values.keys():
            script.variables.pop(name, None)
        script.words = dict(values)
        script.variables |= {name: tuple(word.text for word in words) for name, words in values.items()}

    def merge(self, branches: Sequence[Values], line: int) -> None:
        """Merge the variables after branches when only a running shell knows which one ran."""
        names = dict.fromkeys(name for one in branches for name in one)
        self.restore({name: _merged(name, [one.get(name) for one in branches], line) for name in names})

    def joined(self, token: Token) -> str:
        """Return a word without splitting it."""
        text, self._script.line = "", token.line
        for part in token.parts:
            text += " ".join(self._value(part.text, 0)) if part.expands else part.text
        return text

    def pattern(self, token: Token, quote: Callable[[str], str] = literal) -> str:
        """Return a word as a pattern in which quoted parts match literally."""
        text, self._script.line = "", token.line
        for part in token.parts:
            value = " ".join(self._value(part.text, 0)) if part.expands else part.text
            text += quote(value) if part.quoted and UNKNOWN not in value else value
        return text

    def expanded(self, token: Token) -> list[Word]:
        """Return the words that a word expands to: none, one or several."""
        self._script.line = token.line
        found = self._whole_variable(token)
        if found is None:
            found = [word for parts in braced(token.parts) for word in self._pieced(parts, token.line)]
        self._script.write((word.text for word in found), words=len(found))
        return found

    def _pieced(self, parts: Sequence[WordPart], line: int) -> list[Word]:
        done: list[str] = [""]
        any_quoted, each = False, any(part.expands and _LISTS.fullmatch(part.text) for part in parts)
        for part in parts:
            values = self._value(part.text, 0) if part.expands else (part.text,)
            if part.expands and not part.quoted:
                values = tuple(piece for value in values for piece in self._split(value))
            elif part.expands and (part.text in ("$*", "${*}") or part.text.endswith("[*]}")):
                signs = self._separators()
                values = ((" " if signs is None else signs[:1]).join(values),)
            if not values:
                continue
            any_quoted = any_quoted or (part.quoted and bool(part.text or not each))
            done[-1] += values[0]
            done += values[1:]
        return [Word(text, line) for text in done if text or any_quoted]

    def _separators(self) -> str | None:
        """Return the separators that IFS sets; None for blanks, if it is not set."""
        said = self._script.variables.get("IFS")
        return None if said is None or UNKNOWN in said[0] or said[0] == _BLANK else said[0]

    def _split(self, text: str) -> list[str]:
        signs = self._separators()
        if signs is None:
            return split_words(text)
        if not signs:
            return [text] if text else []
        return re.findall(rf"(?:{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}|[^{re.escape(signs)}{UNKNOWN}])+", text)

    def _whole_variable(self, token: Token) -> list[Word] | None:
        """Return the words of a variable that makes up the whole word, each with the line that set it."""
        parts = [part for part in token.parts if part.text]
        if len(parts) != 1 or not parts[0].expands:
            return None
        match = _WHOLE.fullmatch(parts[0].text)
        words = self._script.words.get(match.group(1) or match.group(2)) if match else None
        if words is None or (parts[0].quoted and not parts[0].text.endswith("[@]}")):
            return None
        if parts[0].quoted:
            pieces = [
                split_words(word.text) if DOUBT in (word.unknown or "") else [word.text] for word in words
            ]
            return [
                Word(piece, word.line) for word, some in zip(words, pieces, strict=True) for piece in some
            ]
        if not parts[0].text.endswith(("[@]}", "[*]}")):
            words = words[:1]  # of an array only the first
        return [Word(piece, word.line) for word in words for piece in self._split(word.text)]

    def _value(self, expression: str, depth: int) -> tuple[str, ...]:
        """Return the words of ``$…``; ValueError if the total exceeds the limit for a script."""
        found = self._looked_up(expression, depth)
        self._script.write(found)
        return found

    def _looked_up(self, expression: str, depth: int) -> tuple[str, ...]:
        """Return the words that ``$…`` expands to."""
        if expression.startswith(("$((", "$[")):  # $[…] is the older form, which bash still evaluates
            arithmetic = expression[2:-1] if expression.startswith("$[") else expression[3:-2]
            number, unknown = self.number(arithmetic, depth)
            return (unknown_value(unknown or expression) if number is None else str(number),)
        if expression.startswith(("$(", "`")):
            inside = expression[2:-1] if expression.startswith("$(") else expression[1:-1]
            output = self._output(inside) if depth <= MAX_DEPTH else None
            if re.fullmatch(r"\s*(?:#.*)?\s*", inside):  # `# a comment in the middle of a command` \
                output = ""
            return (unknown_value(expression) if output is None else output,)
        body = expression[2:-1] if expression.startswith("${") else expression[1:]
        if body[:1] in ("@", "*"):
            return self._positional(body[1:], depth)
        match = _PARAMETER.match(body)
        if match is not None:
            return self._parameter(match.group(), body[match.end() :], depth)
        if body.startswith("!") and body.endswith(_EACH):
            return self._keys(body[1:-3])
        arguments = self._script.variables.get("@", ())
        return (str(len(arguments)) if body == "#" else unknown_value(expression),)

    def number(self, text: str, depth: int = 0) -> tuple[int | None, str | None]:
        """Return the value of an arithmetic expression, or None and the unknown name that it depends on."""
        said, lacking = self.substituted(text, depth), list[str]()

        def get(name: str) -> str:
            base, _, index = name.partition("[")
            words = (
                self._element(base, index[:-1], depth + 1) if index else self._script.variables.get(name)
            )
            value = unknown_value(name) if words is None else "".join(words[:1])
            if UNKNOWN in value:
                lacking.append(value.split(UNKNOWN)[1])
                raise ValueError(name)
            return value

        def put(name: str, number: int) -> None:
            self.assign(f"{name}=", Word(str(number), self._script.line))

        found = None if UNKNOWN in said else whole_number(said, Names(get=get, put=put))
        return found, said.split(UNKNOWN)[1] if UNKNOWN in said else lacking[0] if lacking else None

    def assign(self, head: str, word: Word) -> None:
        """Assign a text by ``NAME=``, ``NAME+=`` or ``NAME[2]=``."""
        name, bracket, rest = head.partition("[")
        index, _, sign = rest.rpartition("]")
        if not bracket:
            self.store(head, [word], word.line)
        elif name in self._script.keyed:
            self.store(f"{name}[{self.substituted(index, 1)}]{sign}", [word], word.line)
        else:
            words, (place, _unknown) = list(self._script.words.get(name, ())), self.number(index)
            place = -1 if place is None else place
            if 0 <= place < len(words) and sign.startswith("+"):
                word = Word(words[place].text + word.text, word.line)
            words[place : place + 1] = [word]
            if not 0 <= place <= len(words) - 1:  # with gaps, or at an unknown place
                words = [Word(unknown_value(name), word.line)]
            self.store(f"{name}=", words, word.line, is_text=False)

    def _positional(self, rest: str, depth: int) -> tuple[str, ...]:
        """Return the words of ``$@``, ``${@:2}`` and ``${@:-none}``."""
        words = self._script.variables.get("@", ())
        mark = next((mark for mark in (":-", ":+", "-", "+") if rest.startswith(mark)), None)
        if mark is not None:
            return self._defaulted(("@", rest[len(mark) :]), words or None, mark, depth)
        part = _PART.fullmatch(rest)
        if part is not None and part[1].strip() not in ("", "0"):
            words = ("", *words)  # the script's name is the first
        return self._with_changes("@", words, rest, depth, each=True) if rest else words

    def _keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of an array, ``${!NAME[@]}``."""
        variables = self._script.variables
        if name in self._script.keyed:
            return tuple(one[len(name) + 1 : -1] for one in variables if one.startswith(f"{name}["))
        return tuple(str(place) for place in range(len(variables.get(name, ()))))

    def _element(self, name: str, index: str, depth: int) -> tuple[str, ...] | None:
        variables = self._script.variables
        if name in self._script.keyed:
            key = self.substituted(index, max(depth, 1))
            return (key,) if UNKNOWN in key else variables.get(f"{name}[{key}]", ())
        words, (place, unknown) = variables.get(name), self.number(index, depth)
        if place is None:
            return (unknown_value(unknown or name),)
        if words is None:
            return None
        if UNKNOWN in "".join(words):  # may be several words
            before = "".join(words[: place + 1])
            return (unknown_value(name),) if place < 0 or UNKNOWN in before else words[place : place + 1]
        return words[place:][:1] if -len(words) <= place else ()

    def _parameter(self, name: str, rest: str, depth: int) -> tuple[str, ...]:
        """Return a variable with its suffix applied: nothing, ``[2]``, a default, a message or a change."""
        each = rest[:3] in _EACH
        known = self._script.variables.get(name)
        if each and name in self._script.keyed:
            variables = self._script.variables
            known = tuple(
                text for one in variables if one.startswith(f"{name}[") for text in variables[one]
            )
        elif rest.startswith("[") and not each:
            end = closing(rest)
            known, rest = self._element(name, rest[1:end], depth), rest[end + 1 :]
        elif not each and known is not None:
            known = known[:1]  # of an array its first word
        rest = rest[3:] if each else rest
        mark = next((mark for mark in (":-", ":=", ":+", "-", "=", "+") if rest.startswith(mark)), None)
        if mark is not None:
            return self._defaulted((name, rest[len(mark) :]), known, mark, depth)
        if known is None:
            return () if each else (unknown_value(name),)
        if rest == "" or rest.startswith((":?", "?")):
            return known
        return self._with_changes(name, known, rest, depth, each=each)

    def _with_changes(
        self, name: str, known: tuple[str, ...], rest: str, depth: int, *, each: bool
    ) -> tuple[str, ...]:
        """Return a variable's words with a slice or a change applied."""
        if UNKNOWN in "".join(known):
            return (unknown_value(name),)
        part = _PART.fullmatch(rest)
        if part is None:
            pattern = self._of_pattern(rest, depth)
            found = [changed(text, pattern) for text in known]
            return (unknown_value(name),) if None in found else tuple(text or "" for text in found)
        start, length = (
            self.number(text, depth)[0] if text.strip() else 0 for text in (part[1], part[2] or "")
        )
        if start is None or length is None:
            return (unknown_value(name),)
        some: tuple[str, ...] | str = known if each else "".join(known)
        start = start + len(some) if start < 0 else start
        if start < 0:  # before the first
            return () if each else ("",)
        end = len(some) if part[2] is None else length + (start if length >= 0 else len(some))
        return tuple(known[start:end]) if each else ("".join(known)[start:end],)

    def _of_pattern(self, text: str, depth: int) -> str:
        """Expand variables in a change's pattern; quoted parts match literally."""
        done = text[: len(text) - len(text.lstrip("#%/^,"))]
        for part in _unquoted(self._script.look_into(text.removeprefix(done))):
            value = " ".join(self._value(part.text, depth + 1)) if part.expands else part.text
            done += literal(value) if part.quoted and ('"' in text or "'" in text) else value
        return done

    def _defaulted(
        self, pair: tuple[str, str], known: tuple[str, ...] | None, mark: str, depth: int
    ) -> tuple[str, ...]:
        """Return a variable's value, or its default if it is not set."""
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
        """Return a text with its variables replaced."""
        if depth > MAX_DEPTH:
            raise ValueError("defaults in defaults without end")
        done = ""
        for part in (_unquoted if depth else parts_of)(self._script.look_into(text)):
            done += " ".join(self._value(part.text, depth)) if part.expands else part.text
        return done

    def _output(self, text: str) -> str | None:
        """Return the output of commands that need no running shell (``echo 8 | bc``); None if unknown."""
        if text.lstrip().startswith("<"):  # $(< file)
            text = f"cat {text.lstrip()[1:]}"
        try:
            tokens = lex(self._script.look_into(text))
        except ValueError:
            return None
        stages: list[list[Token]] = [[]]
        given = ""
        for token in tokens:
            if token.operates("|"):
                stages.append([])
            elif token.kind == "heredoc" and len(stages) == 1:
                given = self.joined(token)
            elif token.kind != "word":
                if not token.operates("\n"):
                    return None
            else:
                stages[-1].append(token)
        output: str | None = given
        for stage in stages:
            words = [word.text for token in stage for word in self.expanded(token)]
            if output is None or not words or any(UNKNOWN in word for word in words):
                return None
            output = (
                self._text_of_files(words[1:])
                if words[0] == "cat" and words[1:]
                else printed(words, output)
            )
        return None if output is None else output.rstrip("\n")

    def _text_of_files(self, names: Sequence[str]) -> str | None:
        """Return the text of files, one behind the other; None without one of them."""
        texts = [self._read_file(name) for name in names]
        return None if None in texts else "".join(text or "" for text in texts)

    def _read_file(self, _: str) -> str | None:
        """Return the text of a file next to the script; None without it."""
        return None


def _merged(name: str, values: Sequence[tuple[Word, ...] | None], line: int) -> tuple[Word, ...]:
    """Merge one variable after branches: common values are kept, the rest is marked as unknown."""
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
    if all(one is None or len(one) < 2 for one in values):  # noqa: PLR2004 - a text that $X holds entirely
        return (Word(" ".join(word.text for word in found), line),)
    return found


def _flag_groups(words: Sequence[Word]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for piece in (piece for word in words for piece in split_words(word.text)):
        if piece.startswith("-"):
            flag = piece
            found[flag] = ()
        elif flag:
            found[flag] = (*found[flag], piece)
    return found


def _outside(words: Sequence[Word], joined: str) -> int | None:
    depth = 0
    for at, word in enumerate(words):
        depth += (word.text == "(") - (word.text == ")")
        if word.text == joined and at and not depth:
            return at
    return None


def _unquoted(text: str) -> list[WordPart]:
    """Return the parts of a default, with the shell's quotes resolved."""
    if '"' not in text and "'" not in text:
        return parts_of(text)
    if text.startswith("#"):  # begins no comment here
        return [WordPart("#"), *_unquoted(text[1:])]
    found: list[WordPart] = []
    for token in lex(text):
        found += [*([WordPart(" ")] if found and not token.joined else []), *token.parts]
    return found


def both(one: Status, other: Status) -> Status:
    """Return whether both statuses hold."""
    return False if one is False or other is False else None if None in (one, other) else True


def either(one: Status, other: Status) -> Status:
    """Return whether either status holds."""
    return opposite(both(opposite(one), opposite(other)))


def opposite(one: Status) -> Status:
    """Return the opposite status."""
    return None if one is None else not one


def split_words(text: str) -> list[str]:
    """Split a text at blanks, but not inside the marks of unknown values: ``$(head -n 1 hosts)``."""
    return _PIECE.findall(text)


def why_unknown(name: str) -> tuple[str, str]:
    """Return why a value is unknown and the remedy: a variable may be supplied, a computation may not."""
    variable, doubt, line = name.partition(DOUBT)
    option, capture = f"--var {shown(variable)}=…", "run it with stand-ins: meshwright capture -- bash …"
    if doubt:
        why = f"${shown(variable)} depends on a condition on line {line} that needs a running shell"
        return why, f"{option}, or {capture}"
    if name.startswith(("$(", "`")) and not name.startswith("$(("):
        return f"it is the output of {shown(name)}, which Meshwright doesn't run", capture
    why = f"the value depends on ${shown(name)}, but the script doesn't set it"
    beside = f"a value in the script, or next to it ({option}), or {capture}"
    return why, beside if re.fullmatch(r"\w+", name) else capture


def unknown_in(value: object) -> str | None:
    """Return the name of the unknown part of a value or list; None if all is known."""
    if isinstance(value, list):
        return next((name for one in value if (name := unknown_in(one)) is not None), None)
    return value.split(UNKNOWN)[1] if isinstance(value, str) and UNKNOWN in value else None


_SUBSTITUTED = re.compile(f"{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}")


def plainly(text: str) -> str:
    """Return a text for a message: what only a running shell knows is ``…``, never quoted as a value."""
    return _SUBSTITUTED.sub("…", text)


def unknown_fault(name: str, unknown: str, line: int, *, instead: str = "") -> FieldError:
    """Return the fault of a value that depends on an unknown one.

    Args:
        name: of the argument or key, as the file has it.
        unknown: the variable or substitution that its value depends on.
        line: of the value; 0 where it is not known.
        instead: what the user may give in place of the value, such as ``--model NAME``.
    """
    why, allowed = why_unknown(unknown)
    where = f"line {line}: " if line else ""
    allowed = f"{instead}, or {allowed}" if instead else allowed
    return FieldError(pointer=name, message=where + why, allowed=allowed)


def unknown_arguments(words: Sequence[Word]) -> InvalidProblemError | None:
    """Return the refusal of words that may be any arguments, as ``$(cat flags.txt)``; None without any.

    A variable that nothing sets is empty, as in a plain shell, and adds no word.
    """
    for before, word in zip((Word("", 0), *words), words, strict=False):
        head = word.text.partition("=")[0]
        is_value = before.text.startswith("-") and "=" not in before.text
        if UNKNOWN not in head or (is_value and not head.startswith("-")):
            continue
        name = head.split(UNKNOWN)[1]
        if head.startswith("-") or "=" in word.text or (_MARK.fullmatch(head) and not name.isidentifier()):
            return InvalidProblemError([unknown_fault(_ARGUMENTS, name, word.line)])
    return None


_ARGUMENTS = "arguments"
_MARK = re.compile(f"{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}")


def unknown_value(name: str) -> str:
    """Return the mark of an unknown value."""
    return f"{UNKNOWN}{name[:40]}{UNKNOWN}"
