"""The part of a shell that launch files need: variables, arrays, conditions, loops, functions, here-texts.

Nothing is run. Commands are followed from top to bottom as a shell started without arguments would follow
them; programs are assumed to succeed. Values known only to a running shell (command substitution, files,
variables of the environment) stay unknown and are named where they are needed; so are values that depend
on a condition with such a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from meshwright.shell.commands import ASSIGNMENT, SCOPED, Commands, Include, Starters
from meshwright.shell.expansion import MAX_TURNS, fits, literal
from meshwright.shell.values import (
    UNKNOWN,
    Script,
    Status,
    Values,
    Word,
    both,
    either,
    opposite,
    split_words,
    unknown_value,
)
from meshwright.shell.words import REDIRECTIONS, Token, lex, whole_number

_KEY = re.compile(r"\[([^\]]*)\]=(.*)", re.DOTALL)
_ENDS = ("\n", ";", "&", "&&", "||", "|", ")", ";;", ";&", ";;&")
_BASH = "5.2.21(1)-release"  # the shell that runs the script


def read_script(
    text: str,
    variables: Mapping[str, str] | None = None,
    include: Include = lambda _: None,
    environment: Mapping[str, str] | None = None,
    starters: Starters | None = None,
) -> Script:
    """Return the commands and variables of a script.

    Args:
        text: text of the script.
        variables: supplied values, positional ones by their number; they override the script's own.
        include: returns the text of a sourced file by its base name; None if it is missing.
        environment: variables at its start, including positional ones, which it may change.
        starters: programs that start others in a shell.

    Raises:
        ValueError: a quote or a bracket stays open, or the script expands without end.
    """
    supplied = dict(variables or {})
    first = {"BASH_VERSION": _BASH, **(environment or {}), **supplied}
    script = Script(
        variables={name: (value,) for name, value in first.items()}, supplied=frozenset(supplied)
    )
    ends = next(place for place in range(1, len(first) + 2) if str(place) not in first)
    if ends > 1:
        script.variables["@"] = tuple(first[str(place)] for place in range(1, ends))
    _Shell(script, include, starters or Starters(), in_slurm="#SBATCH" in text).run(lex(text))
    return script


_VARIABLE = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*|\d|[#@*])")


class _Shell(Commands):
    """A walk over the tokens of a script; ``_live`` states whether they are reached."""

    def __init__(self, script: Script, include: Include, starters: Starters, *, in_slurm: bool) -> None:
        super().__init__(script, include, starters, in_slurm=in_slurm)
        self._tokens: Sequence[Token] = ()
        self._at = 0

    def run(self, tokens: Sequence[Token]) -> Status:
        """Run all of these tokens, such as a file's or a function's."""
        before = self._tokens, self._at
        self._tokens, self._at, self._depth = tokens, 0, self._depth + 1
        status: Status = True
        while self._at < len(self._tokens):
            status = self._block(())
            self._at += 1  # an unmatched closing word or bracket
        self._tokens, self._at = before
        self._depth -= 1
        return status

    # ---------------------------------------------------------------- grammar

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is(self, *which: str) -> bool:
        token = self._peek()
        return token is not None and (token.plain in which if token.kind == "word" else token.raw in which)

    def _block(self, stops: Sequence[str]) -> Status:
        """Run commands up to a terminator, which is left unread."""
        status: Status = True
        while (token := self._peek()) is not None:
            if self._is(*stops):
                break
            if token.kind == "operator" and token.raw in _ENDS:
                if token.raw in (")", ";;", ";&", ";;&") and not stops:
                    break
                self._at += 1
            elif token.kind == "heredoc":
                self._at += 1
            else:
                start = self._at
                status = self._list()
                self._at = max(self._at, start + 1)
        return status

    def _list(self) -> Status:
        start, tested = self._at, self._tested
        status = self._pipeline()
        while self._is("&&", "||"):
            and_too = self._is("&&")
            self._tested = (*tested, *self._variables_since(start))
            self._at += 1
            while self._is("\n"):
                self._at += 1
            with self._under(status if and_too else opposite(status)):
                following = self._pipeline()
            status = both(status, following) if and_too else either(status, following)
        self._tested = tested
        return status

    def _variables_since(self, start: int) -> tuple[str, ...]:
        """Return the variables in the words since ``start``, bare names of ``((…))`` among them."""
        words = [token.raw for token in self._tokens[start : self._at]]
        named = [name for word in words for name in _VARIABLE.findall(word)]
        if words[:2] == ["(", "("]:
            named += [word for word in words if word.isidentifier()]
        return tuple(named)

    def _pipeline(self) -> Status:
        """Run a pipeline, each command in a shell of its own; the last one's status counts."""
        negated = self._is("!")
        self._at += negated
        first, stopped = self._peek(), self._script.stopped
        kept = dict(self._script.words) if first and first.plain in ("{", *self._functions) else None
        self._given = ""
        status = self._command()
        if kept is not None and self._is("|", "|&"):
            self._script.stopped = stopped
            self.restore(kept)
        while self._is("|", "|&"):
            self._at += 1
            while self._is("\n"):
                self._at += 1
            status = self._command()
        return opposite(status) if negated else status

    def _command(self) -> Status:
        token = self._peek()
        word = token.plain if token is not None and token.kind == "word" else ""
        compound = {"if": self._if, "for": self._for, "select": self._for, "while": self._while,
                    "until": self._while, "case": self._case}.get(word)  # fmt: skip
        if compound is not None:
            status: Status = compound()
        elif word == "{":
            self._at += 1
            status = self._block(("}",))
            self._at += 1
        elif self._is("("):
            status = self._bracket()
        elif word == "[[":
            return self._double_bracket()
        elif word == "function" or self._defines():
            return self._define()
        else:
            return self._simple()
        while (
            (token := self._peek()) is not None and token.kind == "operator" and token.raw in REDIRECTIONS
        ):
            self._at += 2
        return status

    @contextmanager
    def _under(self, reached: Status) -> Iterator[None]:
        """Run a part under a status; if that is unknown, mark the assigned variables as uncertain."""
        live, self._live = self._live, both(self._live, reached)
        unsure = live is not False and reached is None
        before = dict(self._script.words) if unsure else {}
        line, left, self._left = self._script.line, self._left, False
        yield
        if unsure and not self._left:
            self.merge([before, dict(self._script.words)], line)
        elif unsure:
            self.restore(before)
        self._live, self._left = live, left

    def _if(self) -> Status:
        branches: list[Values] = []
        live, start, line = self._live, dict(self._script.words), self._line()
        remaining: Status = True
        tested = self._tested
        while not self._is("fi") and self._peek() is not None:
            last = self._is("else")
            self._at += 1
            self._live = both(live, remaining)
            asked = self._at
            condition: Status = True if last else self._condition(("then",))
            self._tested = (*self._tested, *self._variables_since(asked))
            self._at += not last
            remaining = self._branch(branches, start, (live, remaining, condition), ("elif", "else", "fi"))
        self._at += 1
        self._tested = tested
        self._settle(branches, start, (live, remaining), line)
        return True

    def _condition(self, ends: Sequence[str]) -> Status:
        """Run commands of a condition; only a running shell knows the status of a program."""
        self._asked = False
        status = self._block(ends)
        return None if self._asked else status

    def _branch(
        self,
        branches: list[Values],
        start: Values,
        known: tuple[Status, Status, Status],
        ends: Sequence[str],
    ) -> Status:
        live, remaining, condition = known
        self._live = both(live, both(remaining, condition))
        before = dict(self._script.words)
        left, self._left = self._left, False
        if self._live is None:
            self.restore(start)
        self._block(ends)
        if self._live is not False:
            if self._live is None and not self._left:
                branches.append(dict(self._script.words))
            elif self._live is None:
                branches.append({})  # it ends the script, so its values are never seen
                self.restore(before)
        self._left = left
        return both(remaining, opposite(condition))

    def _settle(
        self, branches: list[Values], start: Values, known: tuple[Status, Status], line: int
    ) -> None:
        live, remaining = known
        self._live = live
        if branches and live is not False:
            others = [one for one in branches if one]
            self.merge([*([start] if remaining is not False or not others else []), *others], line)

    def _for(self) -> Status:
        """Run ``for NAME in …; do … done``: once for each word, or once if they are unknown."""
        self._at += 1
        token, values = self._peek(), None
        if self._is("("):
            self._counting()
            return True
        if token is not None:
            self._at += 1
            if self._is("in"):
                self._at += 1
                values = self._expanded_until(";", "\n")
            else:
                values = [Word(text, token.line) for text in self._script.variables.get("@", ())]
        while self._is(";", "\n"):
            self._at += 1
        self._at += self._is("do")
        name = token.raw if token is not None and values is not None else ""
        if values is None or any(value.unknown is not None for value in values):
            values = [Word(unknown_value(name or "loop"), token.line if token else 0)]
        self._turns(name, values)
        return True

    def _counting(self) -> None:
        """Run ``for ((i = 0; i < 8; i++)); do … done``, once if the number of turns is unknown."""
        self._at += 2
        start = self._at
        while (
            not (self._is(")") and self._tokens[self._at + 1 : self._at + 2]) and self._peek() is not None
        ):
            self._at += 1
        parts: list[list[Token]] = [[]]
        for token in self._tokens[start : self._at]:
            if token.operates(";"):
                parts.append([])
            else:
                parts[-1].append(token)
        self._at += 2
        while self._is(";", "\n"):
            self._at += 1
        self._at += self._is("do")
        before = dict(self._script.words)
        first, condition, step = ("".join(_spaced(part)) for part in [*parts, [], [], []][:3])
        self._counted_by(first)
        body, live = self._at, self._live
        for _ in range(MAX_TURNS):
            goes_on = self._counted_by(condition) if condition.strip() else True
            if goes_on is False and live is not False:
                self._live = False
            self._at = body
            self._loop_body()
            if self._ended() or goes_on is not True or self._dead:
                break
            self._counted_by(step)
        else:
            self._leave_off(before)
        self._live = live
        self._at += 1

    def _leave_off(self, before: Values) -> None:
        """Stop following a loop; values that its other turns set are uncertain."""
        self.merge([before, dict(self._script.words)], self._line())

    def _loop_body(self) -> None:
        self._loops += 1
        self._script.write((), words=1)  # ends nested loops, too
        self._block(("done",))
        self._loops -= 1

    def _ended(self) -> bool:
        """Return whether a break ended the loop; a continue ends only its turn."""
        if self._jump is None:
            return False
        name, loops = self._jump
        self._jump = (name, loops - 1) if loops > 1 else None
        return loops > 1 or name == "break"

    def _turns(self, name: str, values: Sequence[Word]) -> None:
        """Run the body once for each value; it is not reached without values."""
        body, live = self._at, self._live
        if name in self._script.supplied:
            values = [Word(" ".join(self._script.variables[name]), self._line())]
        if not values:
            self._live = False
        before = dict(self._script.words)
        for value in values[:MAX_TURNS] or [Word("", 0)]:
            self._at = body
            if name and not self._dead:
                self.store(name + "=", [value], value.line)
            self._loop_body()
            if self._ended():
                break
        else:
            if len(values) > MAX_TURNS and not self._dead:
                self._leave_off(before)
        self._at += 1
        self._live = live

    def _while(self) -> Status:
        """Run ``while … do … done`` while the condition holds; once if it is unknown or always holds."""
        ends_on = self._is("until")
        self._at += 1
        start, live, before = self._at, self._live, dict(self._script.words)
        for _ in range(MAX_TURNS):
            self._at = start
            seen = dict(self._script.words)
            condition = self._condition(("do",))
            condition = opposite(condition) if ends_on else condition
            self._at += 1
            with self._under(condition):
                self._loop_body()
            ended = self._ended()
            again = condition is True and live is not False and not self._script.stopped and not ended
            if not again or self._script.words == seen:
                break
        else:
            self._leave_off(before)
        self._at += 1
        return True

    def _case(self) -> Status:
        """Run ``case WORD in pattern) … ;; esac``."""
        self._at += 1
        token = self._peek()
        self._at += 1
        live, start, line, tested = self._live, dict(self._script.words), self._line(), self._tested
        self._tested = (*tested, *self._variables_since(self._at - 1))
        value = self.joined(token) if token is not None and not self._dead else ""
        if UNKNOWN in value:
            value = value if (assumed := self.assumed(value)) is None else assumed
        while self._is("\n"):
            self._at += 1
        self._at += self._is("in")
        branches: list[Values] = []
        remaining: Status = True
        through = False
        while self._next_pattern():
            self._live = both(live, remaining)
            condition = True if through else self._matches(value)
            ends = (";;", ";&", ";;&", "esac")
            remaining = self._branch(branches, start, (live, remaining, condition), ends)
            through = self._is(";&") and condition is True
            if (through or self._is(";;&")) and condition is True:
                remaining = True
        self._at += 1
        self._tested = tested
        self._settle(branches, start, (live, remaining), line)
        return True

    def _next_pattern(self) -> bool:
        while self._is("\n", ";;", ";&", ";;&", "("):
            self._at += 1
        return self._peek() is not None and not self._is("esac")

    def _matches(self, value: str) -> Status:
        """Read the patterns of a ``case`` branch up to ``)``; return whether any fits, None if unknown."""
        matched: Status = False
        while (token := self._peek()) is not None and not self._is(")"):
            if token.kind == "word" and not self._dead:
                pattern = self.pattern(token)
                is_known = UNKNOWN not in pattern and UNKNOWN not in value
                matched = either(matched, fits(value, pattern) if is_known else None)
            self._at += 1
        self._at += 1  # the parenthesis
        return matched

    def _bracket(self) -> Status:
        """Run ``( … )``, with variables of its own, or ``(( … ))``."""
        self._at += 1
        if self._is("(") and (token := self._peek()) is not None and token.joined:
            self._at += 1
            start, depth = self._at, 0
            while self._peek() is not None and not (self._is(")") and not depth):
                depth += self._is("(") - self._is(")")
                self._at += 1
            text = "".join(_spaced(self._tokens[start : self._at]))
            self._at += 2
            return self._counted_by(text)
        before, stopped = dict(self._script.words), self._script.stopped
        status = self._block((")",))
        self._at += 1
        self._script.stopped = stopped
        self.restore(before)
        return status

    def _double_bracket(self) -> Status:
        self._at += 1
        words: list[Word] = []
        while (token := self._peek()) is not None and not self._is("]]"):
            sign = words[-1].text if words else ""
            if sign in ("=", "==", "!=", "=~") and not self._dead:
                words.append(Word(self._pattern(re.escape if sign == "=~" else literal), token.line))
            elif token.kind == "word" and not self._dead:
                words.append(Word(self.joined(token), token.line))
            elif token.kind == "operator" and token.raw != "\n":
                words.append(Word(token.raw, token.line))
            self._at += 1
        self._at += 1
        return None if self._dead else self.test(words, double=True)

    def _pattern(self, quote: Callable[[str], str]) -> str:
        """Return a pattern with brackets and bars as plain text; its last token stays unread."""
        text = ""
        while (token := self._peek()) is not None and not self._is("]]", "&&", "||"):
            if text and not token.joined:
                break
            text += self.pattern(token, quote) if token.kind == "word" else token.raw
            self._at += 1
        self._at -= 1
        return text

    def _defines(self) -> bool:
        token, following = self._peek(), self._tokens[self._at + 1 : self._at + 3]
        return (
            token is not None
            and ASSIGNMENT.match(token.raw) is None
            and len(following) == 2  # noqa: PLR2004 - the brackets
            and following[0].operates("(")
            and following[0].joined
            and following[1].operates(")")
        )

    def _define(self) -> Status:
        """Keep the function of ``name() { … }`` until it is called."""
        self._at += self._is("function")
        token = self._peek()
        self._at += 1
        self._at += 2 if self._is("(") else 0
        while self._is("\n"):
            self._at += 1
        start, live = self._at, self._live
        self._live = False
        self._command()
        self._live = live
        if token is not None and live is not False:
            self._functions[token.raw] = list(self._tokens[start : self._at])
        return True

    def _expanded_until(self, *ends: str) -> list[Word]:
        found: list[Word] = []
        while (token := self._peek()) is not None and not self._is(*ends):
            if token.kind == "word" and not self._dead:
                found += self.expanded(token)
            self._at += 1
        return found

    def _line(self) -> int:
        return self._tokens[min(self._at, len(self._tokens) - 1)].line

    # ---------------------------------------------------------------- commands

    def _simple(self) -> Status:
        """Run assignments and words; skip them if they are not reached."""
        tokens: list[Token] = []
        below, redirected = None, dict.fromkeys(REDIRECTIONS, "")
        while (token := self._peek()) is not None:
            if token.kind == "heredoc":
                below = token
            elif token.kind == "word":
                tokens.append(token)
            elif token.raw in REDIRECTIONS:
                self._at += 1
                target = self._peek()
                if target is not None and target.kind == "word" and not self._dead:
                    redirected[token.raw] = self.joined(target)
            elif token.raw == "(" and tokens and ASSIGNMENT.fullmatch(tokens[-1].raw):
                self._array(tokens.pop(), [one.plain for one in tokens])
                continue
            elif token.raw in _ENDS:
                break
            self._at += 1
        if self._dead:
            return None
        if self._reads(tokens, redirected["<<<"], below):
            return True
        marks = (">", ">>", ">|")
        written_to = next(((mark, redirected[mark]) for mark in marks if redirected[mark]), ("", ""))
        return self._execute(tokens, below, written_to)

    def _reads(self, tokens: Sequence[Token], given: str, below: Token | None) -> bool:
        """Run ``read A B <<< "$X"`` or ``IFS=, read -ra LIST <<< "$X"``; return whether it is one."""
        if not (given or below) or not any(token.plain == "read" for token in tokens[:2]):
            return False
        given = given or (self.joined(below) if below is not None else "")
        if any(token.plain == "-d" for token in tokens):  # read -r -d '' NAME: all of it
            self.store(f"{tokens[-1].raw}=", [Word(given.strip(), tokens[0].line)], tokens[0].line)
            return True
        given = given.partition("\n")[0]
        texts = [self.joined(token) for token in tokens]
        split = texts[0][4:] if texts[0].startswith("IFS=") else ""
        words = texts[1:] if texts[0].startswith("IFS=") else texts
        if words[0] != "read":
            return False
        names = [word for word in words[1:] if word.isidentifier()]
        is_list = any(word.startswith("-") and "a" in word for word in words[1:])
        separator = split if len(split) == 1 and split not in " \t\n" else None
        pieces = given.split(separator) if separator else split_words(given)
        if names and not is_list:
            most, unknown = len(names) - 1, next((one for one in pieces if UNKNOWN in one), "")
            pieces = [*pieces[:most], (separator or " ").join(pieces[most:])]
            pieces += [unknown] * (len(names) - len(pieces))  # may be several words
        line = tokens[0].line
        if is_list:
            found = [Word(one, line) for one in pieces]
            self.store(f"{names[0] if names else 'REPLY'}=", found, line, is_text=False)
            return True
        for name, piece in zip(names or ["REPLY"], pieces or [""], strict=False):
            self.store(f"{name}=", [Word(piece.strip(), line)], line)
        return True

    def _array(self, target: Token, before: Sequence[str]) -> None:
        """Assign ``NAME=(…)`` or ``NAME+=(…)``, perhaps after ``declare -A``."""
        self._at += 1
        words = self._expanded_until(")")
        self._at += 1
        if self._dead:
            return
        name = target.raw.rstrip("=").rstrip("+")
        if before and before[0] in SCOPED:
            self._hide(name)
        if any(one.startswith("-") and "A" in one for one in before[1:]):
            self._script.keyed.add(name)
        pairs = [found for word in words if (found := _KEY.fullmatch(word.text)) is not None]
        if name in self._script.keyed:
            for found in pairs:
                self.store(f"{name}[{found[1]}]=", [Word(found[2], target.line)], target.line)
        elif pairs and len(pairs) == len(words):  # by their indices
            placed = {whole_number(found[1]): found[2] for found in pairs}
            whole = set(placed) == set(range(len(placed)))
            texts = [placed[place] for place in range(len(placed))] if whole else [unknown_value(name)]
            self.store(f"{name}=", [Word(text, target.line) for text in texts], target.line, is_text=False)
        else:
            self.store(target.raw, words, target.line, is_text=False)


def _spaced(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield tokens as written, with a blank if there is one between them."""
    for token in tokens:
        yield ("" if token.joined else " ") + token.raw
