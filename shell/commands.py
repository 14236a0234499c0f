"""Effects of one simple command of a script: variables, builtins, functions; nothing is run."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from meshwright.shell.expansion import formatted, printed
from meshwright.shell.manifests import manifest_of
from meshwright.shell.values import (
    MAX_DEPTH,
    UNKNOWN,
    FilledTemplate,
    Script,
    Status,
    Variables,
    Word,
    unknown_value,
)
from meshwright.shell.words import Token, lex, whole_number

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
_CHANGED = re.compile(
    r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]?=(?!=)|<<=|>>=|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_ALL_EXPORTED = re.compile(r"(?:^| )[-+](?:[b-zA-Z]*a|[a-zA-Z]*o allexport\b)")
_DECLARES = ("export", "readonly", "declare", "local", "typeset")
SCOPED = ("local", "declare", "typeset")  # inside functions
# Programs that are assumed to succeed; the status of others is unknown to an ``if``.
_SURE = ("cd", "conda", "cp", "date", "echo", "hash", "ln", "mkdir", "module", "mv", "popd", "printf",
         "pushd", "pwd", "rm", "shopt", "sleep", "touch", "trap", "ulimit", "wait")  # fmt: skip
_SHELLS = ("bash", "sh", "zsh")
_MARK = re.compile(f"{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}")
# Characters that a shell would split or expand inside the name of an unknown value.
_SHIELD = {ord(sign): 0xE000 + ord(sign) for sign in " \t\n\r'\"\\$`#<>;&|()"}
_BARE = {shielded: sign for sign, shielded in _SHIELD.items()}
Include = Callable[[str], str | None]
T = TypeVar("T")


_MAX_KEPT = 200_000  # variables of all commands; beyond it those at the script's end replace them


@dataclass(frozen=True, slots=True, kw_only=True)
class Starters:
    """Programs that start others in a shell, such as ``srun … bash -c 'python train.py'``."""

    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # and their options that take a text
    keeps: Callable[[Sequence[Word]], bool] = lambda _: True  # whether their words stay before it


class Commands(Variables, ABC):
    """Runner of builtins that keeps started programs; the grammar decides which ones are reached."""

    def __init__(self, script: Script, include: Include, starters: Starters, *, in_slurm: bool) -> None:
        super().__init__(script, in_slurm=in_slurm)
        self._include = include
        self._starters = starters
        self._live: Status = True
        self._left = False  # an exit under an unknown condition
        self._depth = 0
        self._given: str | None = ""  # output of the previous command in a pipeline; None: unknown
        self._loops = 0
        self._around: tuple[Word, ...] = ()  # words of starters around ``bash -c``
        self._jump: tuple[str, int] | None = None  # a break or continue, and the number of loops
        self._kept = 0  # variables of all commands
        self._integers: set[str] = set()  # variables that ``declare -i`` makes numbers
        self._exports = False  # variables are exported, by ``set -a``
        self._tested: tuple[str, ...] = ()  # variables in the conditions of the ifs around
        self._asked = False  # whether a condition depends on a program's success
        self._returned: Status = None
        self._scopes: list[dict[str, tuple[Word, ...] | None]] = []  # values that local variables hide
        self._functions: dict[str, list[Token]] = {}

    def _read_file(self, name: str) -> str | None:
        base = name.rsplit("/", 1)[-1]
        found = self._script.files.get(base) or (self._include(base) if base else None)
        return None if found is None else self._script.look_into(found)

    @property
    def _dead(self) -> bool:
        return self._live is False or bool(self._script.stopped) or self._jump is not None

    @abstractmethod
    def run(self, tokens: Sequence[Token]) -> Status:
        """Run all of these tokens, such as a file's or a function's."""

    def _execute(self, tokens: list[Token], below: Token | None, written_to: tuple[str, str]) -> Status:
        """Run one simple command, perhaps after variables that are set only for it.

        Args:
            tokens: tokens of the command.
            below: its here-document.
            written_to: how its output is redirected, by ``>`` or ``>>``, and to which file.
        """
        script = self._script
        if tokens and tokens[0].plain in _DECLARES:
            return self._declare(tokens)
        given = []
        while tokens and ASSIGNMENT.match(tokens[0].raw):
            given.append(tokens.pop(0))
        words = [word for token in tokens for word in self.expanded(token)]
        text = self._given if below is None else self.joined(below)
        self._given = _output_of(words, text)
        self._write(words, text, written_to)
        if not words:
            for token in given:
                self._assign(token)
            return True
        before = {name: (script.words.get(name), script.variables.get(name)) for name in map(_named, given)}
        for token in given:
            self._assign(token)
        status = self._started(words, written_to[1])
        if below is not None and not written_to[1]:
            self._look_inside(words, self.joined(below))
        self._apply(words, text)
        for name, (old, texts) in before.items():
            if name in script.supplied:
                continue
            script.passed[name] = script.variables.get(name, ())
            _put(script.words, name, old)
            _put(script.variables, name, texts)
        return status

    def _write(self, words: Sequence[Word], text: str | None, written_to: tuple[str, str]) -> None:
        """Keep the text that a command writes to a file; for unknown programs only the fact."""
        name = words[0].text if words else ""
        mark, path = written_to
        if name == "tee":
            operands = [word.text for word in words[1:] if word.text[:1] != "-"]
            mark = ">>" if any(word.text in ("-a", "--append") for word in words) else ">"
            for operand in operands:
                self._keep(operand, mark, text, words)
        elif name in ("cp", "mv") and len(words) == 3:  # noqa: PLR2004 - from and to
            base = words[1].text.rsplit("/", 1)[-1]
            if base in self._script.files:  # others are taken from the folder
                self._keep(words[2].text, ">", self._script.files[base], words)
        elif is_python(words[0]) if words else False:
            code = [word.text for word in words[1:]] + [text or ""]
            for found in _WRITES.finditer("\n".join(code)):
                self._keep(found[1] or found[2], ">", None, words)
        if path and (name != "sed" or self._given is not None):  # a template's text is kept elsewhere
            self._keep(path, mark, self._given, words)

    def _keep(self, path: str, mark: str, text: str | None, words: Sequence[Word]) -> None:
        """Keep the text of a written file; None if it is unknown or perhaps not written."""
        files, base = self._script.files, path.rsplit("/", 1)[-1]
        if text is None or self._live is None:
            program = " ".join(word.text for word in words[:2]).replace(UNKNOWN, "")
            text = unknown_value(f"$({program} > {base})")
        elif mark == ">>":
            text = (files.get(base) or self._include(base) or "") + text
        if base and (UNKNOWN not in text or base.endswith(_KEPT)):
            self._script.write([text])
            files[base] = text

    def _started(self, words: list[Word], written_to: str) -> Status:
        """Run the words of a command: a builtin, a function, or a program."""
        script = self._script
        name, rest = words[0].text, words[1:]
        builtin = {"source": self._source, ".": self._source, "set": self._set, "shift": self._shift,
                   "eval": self._eval, "exit": self._exit, "return": self._exit, "unset": self._unset,
                   "read": self._unset, "mapfile": self._unset, "readarray": self._unset, "let": self._let,
                   "break": self._leave, "continue": self._leave,
                   "getopts": self._getopts}.get(name)  # fmt: skip
        if name in ("[", "test"):
            return self.test(rest[:-1] if name == "[" else rest)
        if name in ("true", ":", "false"):
            return name != "false"
        if builtin is not None:
            return builtin(words)
        if name in self._functions and self._depth < MAX_DEPTH:
            return self._call(words)
        if name == "printf" and len(words) > 3 and words[1].text == "-v":  # noqa: PLR2004
            found = formatted(words[3].text, [word.text for word in words[4:]])
            text = unknown_value(words[2].text) if found is None else found
            self.store(f"{words[2].text}=", [Word(text, words[0].line)], words[0].line)
            return True
        if name == "sed":
            _run_sed(script, words, written_to, self._include)
        self._start(words)
        self._look_inside(words)
        self._asked = self._asked or name not in _SURE
        return None if name in ("grep", "command", "which", "type", "ping", "diff") else True

    def _start(self, words: Sequence[Word]) -> None:
        """Record a program's words, with the variables at that point."""
        script, words = self._script, _without_runner(words)
        script.commands.append((*(self._around if self._starters.keeps(words) else ()), *words))
        last = script.environments[-1] if script.environments else None
        if last is None or last != script.variables:
            self._kept += len(script.variables)
            last = dict(script.variables) if self._kept <= _MAX_KEPT else script.variables
        script.environments.append(last)

    def _declare(self, tokens: list[Token]) -> Status:
        """Run ``export A=1 B``, ``local -A NAME`` or ``declare -i N=3+4``."""
        keyword, flags = tokens[0].plain, ""
        for token in tokens[1:]:
            match = ASSIGNMENT.match(token.raw)
            name = match[1] if match is not None else self.joined(token)
            if match is None and name[:1] in ("-", "+"):
                flags += name[1:] if name[0] == "-" else ""
                continue
            if keyword in SCOPED and "g" not in flags:
                self._hide(name)
            if "A" in flags:
                self._script.keyed.add(name)
            if (keyword == "export" or "x" in flags) and "n" not in flags:
                self._export(name)
            if match is not None:
                self._assign(token)
            elif keyword in SCOPED and self._scopes and name not in self._script.supplied:
                _put(self._script.words, name, None)
                _put(self._script.variables, name, None)
            if "i" in flags:
                self._integers.add(name)
            if match is not None and name in self._integers:
                self._calculate(name, token.line)
        return True

    def _export(self, name: str) -> None:
        self._script.exported.setdefault(name, len(self._script.commands))

    def _calculate(self, name: str, line: int) -> None:
        number, unknown = self.number("".join(self._script.variables.get(name, ())))
        text = unknown_value(unknown or name) if number is None else str(number)
        self.store(f"{name}=", [Word(text, line)], line)

    def _hide(self, name: str) -> None:
        """Make a variable local; its outer value returns after the function."""
        if self._scopes:
            self._scopes[-1].setdefault(name, self._script.words.get(name))

    def _assign(self, token: Token) -> None:
        joined = self.joined(token)
        match = ASSIGNMENT.match(joined)
        if match is None:
            return
        head, text = match.group(), joined[match.end() :]
        if (counted := match[1] in self._integers) and head == f"{match[1]}+=":
            text = f"+({text})"  # is added to the old value
        self.assign(head, Word(text, token.line))
        if counted:
            self._calculate(match[1], token.line)
        if self._exports:
            self._export(match[1])

    def _let(self, words: Sequence[Word]) -> Status:
        """Run ``let X=3 Y+=1``."""
        status: Status = None
        for word in words[1:]:
            status = self._counted_by(word.text)
        return status

    def _leave(self, words: Sequence[Word]) -> Status:
        if self._live is True and self._loops:
            loops = whole_number(words[1].text) if len(words) > 1 else 1
            self._jump = (words[0].text, min(max(loops or 1, 1), self._loops))
        return True

    def _getopts(self, _: Sequence[Word]) -> Status:
        """Return that no option is left; with positional parameters it is unknown."""
        return None if self._script.variables.get("@") else False

    def _source(self, words: Sequence[Word]) -> Status:
        base = words[1].text.rsplit("/", 1)[-1] if len(words) > 1 else ""
        text = self._script.files.get(base) if base in self._script.files else None
        if text is None and base and self._depth <= MAX_DEPTH:
            text = self._include(base)
        if text is None:
            self._start(words)
            return True
        outside = self._script.variables.get("@", ())
        if words[2:]:
            self._position([word.text for word in words[2:]])
        status = self.run(lex(self._script.look_into(text)))
        if words[2:]:
            self._position(outside)
        return status

    def _eval(self, words: Sequence[Word]) -> Status:
        return self._run_text(" ".join(word.text for word in words[1:]), words[0].line)

    def _run_text(self, text: str, line: int) -> Status:
        """Run commands in a text; skip one that does not parse."""
        if self._depth > MAX_DEPTH:
            return None
        text = _MARK.sub(lambda mark: mark[0].translate(_SHIELD), text)
        try:
            tokens = lex(self._script.look_into(text))
        except ValueError:
            return None
        for token in tokens:
            token.line = line
            token.parts = [replace(part, text=part.text.translate(_BARE)) for part in token.parts]
        return self.run(tokens)

    def _look_inside(self, words: Sequence[Word], below: str | None = None) -> None:
        """Run the text of ``srun … bash -lc 'torchrun …'``, or the one below ``srun bash <<EOT``."""
        texts = [word.text for word in words]
        at = next((at for at, text in enumerate(texts) if text.rsplit("/", 1)[-1] in _SHELLS), len(texts))
        ends = at + 1
        while texts[ends : ends + 1] and (texts[ends][:1] == "-" or texts[ends - 1].endswith("o")):
            ends += 1  # options: -o takes a word
        given = any(re.fullmatch("-[a-z]*c[a-z]*", text) for text in texts[at + 1 : ends])
        inside = texts[ends] if given and ends < len(texts) else below if ends == len(texts) else None
        names = [text.rsplit("/", 1)[-1] for text in texts]
        if options := self._starters.texts.get(names[0]):
            at = next((at for at, text in enumerate(texts[:-1]) if text in options), len(texts))
            inside = texts[at + 1] if at < len(texts) else None
        elif inside is None:
            inside = _handed_on(texts)
        if inside is not None:
            before, outer = dict(self._script.words), self._around
            if names[0] in _CONTAINERS:
                for option, value in _pairs_of(texts[:at]):
                    if option in ("-e", "--env") and "=" in value:
                        self.store(
                            f"{value.partition('=')[0]}=",
                            [Word(value.partition("=")[2], words[0].line)],
                            words[0].line,
                        )
            start = next(
                (place for place, name in enumerate(names[:at]) if name in self._starters.texts), at
            )
            self._around = (*outer, *words[start:at])
            self._run_text(inside, words[min(ends, len(texts) - 1)].line)
            self._around = outer
            self.restore(before)

    def _apply(self, words: Sequence[Word], given: str | None) -> None:
        """Run the containers of a manifest that ``kubectl apply -f -`` is given."""
        if words[0].text.rsplit("/", 1)[-1] not in _APPLIERS or not given:
            return
        manifest = manifest_of(given)
        if manifest is None or manifest.fault:
            return
        before = dict(self._script.words)
        for name, value in manifest.environment.items():
            self.store(f"{name}=", [Word(value, words[0].line)], words[0].line)
        self._script.files.update(manifest.files)
        self._run_text(manifest.script, words[0].line)
        self.restore(before)

    def _set(self, words: Sequence[Word]) -> Status:
        """Run ``set -- a b`` (positional parameters) or ``set -a`` (export all later variables)."""
        texts = [word.text for word in words[1:]]
        if texts[:1] == ["--"]:
            self._position(texts[1:])
        elif _ALL_EXPORTED.search(" ".join(texts)):
            self._exports = texts[0].startswith("-")
        return True

    def _shift(self, words: Sequence[Word]) -> Status:
        count = whole_number(words[1].text) if len(words) > 1 else 1
        self._position(list(self._script.variables.get("@", ()))[1 if count is None else max(count, 0) :])
        return True

    def _position(self, texts: Sequence[str]) -> None:
        variables = self._script.variables
        for name in [name for name in variables if name.isdecimal()]:
            del variables[name]
        variables["@"] = tuple(texts)
        variables |= {str(place): (text,) for place, text in enumerate(texts, start=1)}

    def _call(self, words: Sequence[Word]) -> Status:
        variables = self._script.variables
        outside = {name: value for name, value in variables.items() if name == "@" or name.isdecimal()}
        self._position([word.text for word in words[1:]])
        stopped = self._script.stopped
        self._scopes.append({})
        status = self.run(self._functions[words[0].text])
        if self._script.stopped < 0:  # it returned
            self._script.stopped = stopped
            status = self._returned
        for name, old in self._scopes.pop().items():
            if name not in self._script.supplied:
                _put(self._script.words, name, old)
                _put(variables, name, None if old is None else tuple(word.text for word in old))
        self._position(outside.get("@", ()))
        variables |= outside
        return status

    def _exit(self, words: Sequence[Word]) -> Status:
        """Run ``exit`` or ``return``: the rest is not reached."""
        if self._live is None:
            self._left = True
            self._live = False
        elif words[0].text == "exit":
            self._script.stopped = words[0].line
            self._script.tested = tuple(dict.fromkeys(self._tested))
        else:
            self._script.stopped = -1
            code = whole_number(words[1].text) if len(words) > 1 else None
            self._returned = None if code is None else code == 0
        return None

    def _unset(self, words: Sequence[Word]) -> Status:
        """Run ``unset NAME``, or make the variable of ``read NAME`` unknown."""
        for word in words[1:]:
            name, bracket, index = word.text.partition("[")
            if name in self._script.supplied:
                continue
            place = whole_number(index[:-1]) if bracket and name not in self._script.keyed else None
            if place is not None:
                kept = list(self._script.words.get(name, ()))
                del kept[place : place + 1]
                self.store(f"{name}=", kept, word.line, is_text=False)
                continue
            self._script.words.pop(word.text, None)
            self._script.variables.pop(word.text, None)
        return words[0].text == "unset" or None

    def _counted_by(self, text: str) -> Status:
        """Return the truth of an arithmetic expression; variables that it cannot compute become unknown."""
        if self._dead or not text.strip():
            return None
        (number, unknown), line = self.number(text), self._script.line
        if number is None:
            for found in _CHANGED.finditer(text):
                name = found[1] or found[2]
                self.store(f"{name}=", [Word(unknown_value(unknown or name), line)], line)
        return None if number is None else number != 0


_KEPT = (".json", ".yaml", ".yml", ".toml", ".sh", ".conf")  # files that may configure a run
# ``open("ds.json", "w")`` and ``Path("ds.json").write_text(…)`` in Python code on the command.
_WRITES = re.compile(
    r"""open\(\s*f?["']([^"'\n]+)["']\s*,\s*(?:mode\s*=\s*)?["'][wax]|Path\(["']([^"'\n]+)["']\)\s*\.\s*write_"""
)


def _output_of(words: Sequence[Word], given: str | None) -> str | None:
    """Return the output of a command, with unknown parts marked; None if it is unknown."""
    texts = [word.text for word in words]
    if given is None or not texts:
        return None
    if texts[0] not in ("echo", "cat") and UNKNOWN in given + "".join(texts):
        return None
    return given if texts[0] == "tee" else printed(texts, given)


def _named(token: Token) -> str:
    return re.split(r"[\[+=]", token.raw, maxsplit=1)[0]


def _put(values: dict[str, T], name: str, value: T | None) -> None:
    """Set a name, or remove it without a value."""
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


_SUBSTITUTION = re.compile(r"s([/#|,@])(\w+)\1(.*)\1g?", re.DOTALL)


def _run_sed(script: Script, words: Sequence[Word], written_to: str, include: Include) -> None:
    """Run one ``sed`` on a file, or on the output of the previous one in the pipeline.

    Only names are replaced, not patterns; the output of other expressions is unknown.
    """
    texts = [word.text for word in words[1:] if word.text[:1] != "-"]
    found = [match for text in texts if (match := _SUBSTITUTION.fullmatch(text))]
    operands = [text.rsplit("/", 1)[-1] for text in texts if _SUBSTITUTION.fullmatch(text) is None]
    if operands:
        text = script.files.get(operands[-1]) or include(operands[-1])
        script.piped = FilledTemplate(text if len(operands) == 1 else None, {})
    names, text = dict(script.piped.names), script.piped.text
    for _, name, value in (match.groups() for match in found):
        names.setdefault(name, value)
        if text is not None:
            text = text.replace(name, value)
            script.write([text])
    script.piped = FilledTemplate(text, names)
    if written_to:
        base = written_to.rsplit("/", 1)[-1]
        script.filled[base] = script.piped
        if text is not None:
            script.files[base] = text


# Programs that start the rest of their words in an environment, with their options that take a word.
_RUNNERS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("uv", "run"): (
        "--with", "-w", "--with-editable", "--with-requirements", "--extra", "--no-extra", "--group",
        "--no-group", "--only-group", "--package", "--python", "-p", "--env-file", "--project",
        "--directory", "--index", "--default-index", "--index-url", "-i", "--extra-index-url",
        "--find-links", "-f", "--cache-dir", "--config-file", "--link-mode", "--python-platform",
        "--upgrade-package", "-P", "--prerelease", "--resolution", "--exclude-newer", "--color",
    ),
    **dict.fromkeys(
        (("conda", "run"), ("mamba", "run"), ("micromamba", "run")),
        ("-n", "--name", "-p", "--prefix", "--cwd"),
    ),
    **dict.fromkeys((("poetry", "run"), ("pipenv", "run"), ("pdm", "run"), ("rye", "run")), ()),
    ("pixi", "run"): ("-e", "--environment", "--manifest-path"),
}  # fmt: skip


def _without_runner(words: Sequence[Word]) -> Sequence[Word]:
    """Return the command that ``uv run --with deepspeed torchrun …`` starts; Python runs a Python file."""
    options = _RUNNERS.get((words[0].text.rsplit("/", 1)[-1], words[1].text)) if len(words) > 1 else None
    if options is None:
        return words
    at = _behind_options([word.text for word in words], 2, options)
    rest = words[at:]
    if not rest or words[at - 1].text in ("-m", "--module"):
        return words
    return (Word("python", rest[0].line), *rest) if rest[0].text.endswith(".py") else rest


def _behind_options(texts: Sequence[str], at: int, options: Sequence[str]) -> int:
    """Return the index of the first word that is neither an option nor the word that one takes."""
    while at < len(texts) and texts[at][:1] == "-":
        if texts[at] == "--":
            return at + 1
        at += 1 + (texts[at] in options)
    return at


_APPLIERS = ("kubectl", "oc", "k3s", "microk8s", "minikube")  # programs that take a manifest


_CONTAINERS = ("docker", "podman", "nerdctl", "apptainer", "singularity")


def _pairs_of(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return every ``--option=value``, and every word with the next one."""
    return [*(text.partition("=")[::2] for text in texts if text[:2] == "--"), *pairwise(texts)]


# Programs that run their last words on other hosts, with their options that take a word.
_REMOTE: Mapping[str, tuple[str, ...]] = {
    "ssh": tuple(f"-{letter}" for letter in "BbcDEeFIiJLlmOoPpQRSWw"),
    "pdsh": ("-w", "-x", "-R", "-l", "-t", "-u", "-f", "-g", "-X"),
    "clush": ("-w", "-x", "-g", "-X", "-l", "-t", "-u", "-f", "-o"),
}


def _handed_on(texts: Sequence[str]) -> str | None:
    """Return the text that a program runs elsewhere: ``ssh HOST 'cd /work && torchrun …'``; else None."""
    name = texts[0].rsplit("/", 1)[-1]
    if name in _REMOTE:
        at = _behind_options(texts, 1, _REMOTE[name]) + (name == "ssh")  # the host
        return " ".join(texts[at:]) or None
    if name == "sbatch":
        pairs = [*(text.partition("=")[::2] for text in texts), *pairwise(texts)]
        return next((text for option, text in pairs if option == "--wrap" and text), None)
    return "\n".join(text for text in texts if " " in text) or None if name == "tmux" else None


def is_python(word: Word) -> bool:
    """Return whether a word names Python, with any path and version."""
    return re.fullmatch(r"python[\d.]*", word.text.rsplit("/", 1)[-1]) is not None
