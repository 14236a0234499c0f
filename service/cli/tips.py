"""The command to paste under an error: what was typed with the one change that it needs.

A change comes from the options of a fault's ``tip``, or from its nearest legal value and the option that
states the field. Where a fault names neither, the tip lists the legal values, or shows the help.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any, Self

from typer.exceptions import Exit, TyperException

from meshwright.profiles.errors import UNKNOWN_FIELD, FieldError, PlannerError
from meshwright.service.cli.meant import EXAMPLE, is_off, meant_by, run_together
from meshwright.service.errors import remedy_of
from meshwright.service.requests.fields import COMMON, COUNTS, OPTIONS
from meshwright.service.requests.parts import LONG_NAMES

_HELP = "--help"
_WITHOUT = "without "  # of a tip that leaves an option out
_REQUIRED: Mapping[str, str] = {  # what a question cannot do without: an example of it
    "/model": "--model llama-3.1-8b",
    "/cluster": "--cluster dgx-h100",
    "/cluster/name": "--gpu h100",
    "/workload": "--global-batch-size 512 --seq-length 8192",
    "/workload/global_batch_size": "--global-batch-size 512",
    "/workload/seq_length": "--seq-length 8192",
    "/workload/images_per_sample": "--images-per-sample 0",
}
_LENGTH = re.compile(r"(--seq-length )(\d+)")
_A_NODE = 8  # GPUs
_ON_A_NODE: Mapping[str, str] = {
    "/workload": "--global-batch-size 64 --seq-length 4096",
    "/workload/global_batch_size": "--global-batch-size 64",
    "/workload/seq_length": "--seq-length 4096",
}
_LISTS: Mapping[str, str] = {
    "--model": "meshwright models",
    "--cluster": "meshwright clusters",
    "--nodes": "meshwright clusters",
    "--gpu": "meshwright gpus",
    "--gpus": "meshwright gpus",
    "argument": "meshwright models",
}
_GPU_OPTIONS = ("--gpu", "--gpus", "--num-gpus", "--gpus-per-node")
_HARDWARE = ("--gpu", "--gpus", "--nodes", "--cluster")
_COUNTED = frozenset(
    name for name, row in OPTIONS.items() if row.option and COUNTS in (row.option.metavar or "")
)
_HOW_MANY = ("all", "fewest")  # of --gpus, instead of a type
_ARGUMENT = ""  # the name of a word without an option
_ARGUED = ("--model", "--rank")  # options whose value an argument may state
_MAX_TIPS = 3
_DOCUMENTS = (".yaml", ".yml", ".json")
_KIND = re.compile(r'^\s*"?kind"?:\s*"?post_training\b', re.MULTILINE)
_ALIKE = 0.75  # of difflib, at which an option's name is a slip of another: --modle, --prot
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_FIELD = re.compile(r"\w+")
_PAIR = re.compile(r"\w+: \w+")  # a field of YAML with its value
# A whole value of JSON or YAML, up to what ends it, of letters that sed takes as they are (and dots).
_VALUE = r'("[\w. +-]*"|[\w.+-]+)(?=[ \t]*(?:[\r\n,}\]]|\Z)|[ \t]+#)'
_PLAIN = re.compile(r"\d+|true|false|null")  # values of JSON without quotes
_ASSIGNED = re.compile(r"[\w-]+=[^,=]+(,[\w-]+=[^,=]+)+")  # tp=8,pp=4: assignments in one word


@dataclass(frozen=True, slots=True)
class Word:
    """One option of a command line with its value, or an argument."""

    name: str
    value: str | None = None

    def written(self) -> list[str]:
        """Return it as typed."""
        named = [self.name] if self.name else []
        return [*named, *([] if self.value is None else [self.value])]


@dataclass(frozen=True, slots=True)
class Line:
    """A command line: the command, and the words that were typed behind it."""

    path: tuple[str, ...]
    command: Any  # Typer's own; None: no such command
    words: tuple[Word, ...] = field(default=())

    commands: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, typed: Sequence[str], commands: Any) -> Self:  # noqa: ANN401 - Typer's own type
        """Read the words behind ``meshwright``; ``commands``: every command, as Typer built them."""
        path, command, rest = list[str](), commands, list(typed)
        while rest and hasattr(command, "commands") and rest[0] in command.commands:
            path.append(rest.pop(0))
            command = command.commands[path[-1]]
        if hasattr(command, "commands"):
            words = tuple(Word("", one) for one in rest)
            return cls(tuple(path), None, words, commands=command)
        return cls(tuple(path), command, tuple(_words(rest, command)), commands=commands)

    @property
    def typed(self) -> list[str]:
        """Return the words behind ``meshwright``."""
        return [*self.path, *(part for word in self.words for part in word.written())]

    def option(self, name: str) -> Any:  # noqa: ANN401 - Typer's own type
        """Return the command's option of a name; None if there is none."""
        params = self.command.params if self.command is not None else ()
        return next((one for one in params if name in (*one.opts, *one.secondary_opts)), None)

    def parses(self) -> bool:
        """Return whether the command takes these words."""
        try:
            self.command.make_context(" ".join(self.path), self.typed[len(self.path) :])
        except (TyperException, PlannerError):
            return False
        except Exit:  # of --help
            return True
        return True

    def without(self, name: str, wrong: str = "") -> Line:
        """Return it without an option, or without the argument that is wrong."""
        kept = (word for word in self.words if word.name != name or (not name and word.value != wrong))
        return replace(self, words=tuple(kept))

    def with_option(self, name: str, value: str | None) -> Line | None:
        """Return it with an option in the place of the same one; None if the command has none such."""
        option = self.option(name)
        if option is None:
            return None
        word = Word(name, value)
        same = [at for at, one in enumerate(self.words) if one.name == name and _is_same(option, one, word)]
        if not same:
            ends = [at for at, one in enumerate(self.words) if one == Word(_ARGUMENT, "--")]
            at = ends[0] if ends else len(self.words)
            return replace(self, words=(*self.words[:at], word, *self.words[at:]))
        words = [one for at, one in enumerate(self.words) if at not in same[1:]]
        words[same[0]] = word
        return replace(self, words=tuple(words))

    def with_value(self, wrong: str, right: str, names: Sequence[str]) -> Line | None:
        """Return it with another value where a wrong one was typed; None if it was not."""
        ends = (
            r"(?=[x×*]|(?![\w.-]))" if names and wrong.isdecimal() else r"(?![\w.-])"
        )  # a number: 64xH100
        sought = re.compile(rf"(?<![\w.-])((?:\d+x)?){re.escape(wrong)}{ends}")
        for at, word in enumerate(self.words):
            if (not names or word.name in names) and word.value and sought.search(word.value):
                value = sought.sub(lambda match: f"{match[1]}{right}", word.value, count=1)
                return replace(
                    self, words=(*self.words[:at], Word(word.name, value), *self.words[at + 1 :])
                )
        return None


def tips_of(faults: Sequence[FieldError], line: Line) -> list[str]:
    """Return the commands to paste under the faults of a command line, the best one first."""
    if line.command is None:
        return [shlex.join(["meshwright", *line.path, _HELP])]
    fixed: Line | None = line
    unfixed = []
    for fault in faults:
        better = _fixed(fault, fixed or line)
        unfixed += [fault] if better is None else []
        fixed = better or fixed
    if fixed is not None and not unfixed and fixed.typed != line.typed and fixed.parses():
        return [shlex.join(["meshwright", *fixed.typed])]
    if example := _example_of(line):
        return [example]
    found = list(dict.fromkeys(_looked_up(fault, line) for fault in unfixed or faults))
    if fixed is not None and fixed.typed != line.typed and fixed.parses() and all(map(_is_help, found)):
        return [shlex.join(["meshwright", *fixed.typed])]  # with fewer faults
    return [one for one in found if f"{one}-all" not in found][:_MAX_TIPS]


def tips_of_repeated(line: Line, name: str) -> list[str]:
    """Return the commands to paste where an option of one value is given twice.

    Clusters and GPU types become nodes of several kinds. Else the last one is meant, as where a change that
    an answer prints is typed behind its own command; or all launchers, or a list of counts, unless one is a
    range.
    """
    option = line.option(name)
    names = (*option.opts, *option.secondary_opts)
    values = [str(one.value) for one in line.words if one.name in names]
    several = ""
    if name in ("--cluster", "--gpu"):
        counts = [one.value or "" for one in line.words if one.name == "--num-nodes"]
        counts = counts if len(counts) == len(values) else (counts[:1] or ["1"]) * len(values)
        kinds = (f"{count}x{one}" for count, one in zip(counts, values, strict=True))
        name, value, names = "--nodes", ",".join(kinds), (*names, "--num-nodes")
    else:
        value = values[-1]
        if option.name in _COUNTED and not any(":" in one for one in values):
            several = ",".join(values)
        elif name == "--launcher" and line.path[:1] == ("plan",):
            several = "any"
    changes = _of_gpus(values) if name == "--gpus" else [(name, value)]
    ways = [changes, *([[(name, several)]] if several else [])]
    found = [_stated_anew(line, names, way) for way in ways if way]
    return [one for one in found if one] or [shlex.join(["meshwright", *line.path, _HELP])]


def _stated_anew(line: Line, names: Sequence[str], changes: Sequence[tuple[str, str]]) -> str:
    """Return the command with options in place of those of some names; empty if it does not parse."""
    left_out = {*names, *(option for option, _ in changes)}
    fixed: Line | None = replace(line, words=tuple(one for one in line.words if one.name not in left_out))
    for change in changes:
        fixed = fixed and fixed.with_option(*change)
    return shlex.join(["meshwright", *fixed.typed]) if fixed is not None and fixed.parses() else ""


def tip_of_command(line: Line) -> str:
    """Return the command to paste where there is none of that name: ``launchers`` means values."""
    from meshwright.service.requests.schema import listed_values  # noqa: PLC0415 - only for an error

    typed = line.typed[len(line.path) :]
    listed = typed[0].removesuffix("s").replace("-", "_") if typed and not line.path else ""
    if listed in OPTIONS and listed_values(listed):
        return f"meshwright values {listed}"
    near = get_close_matches(typed[0], line.commands.commands, n=1) if typed else []
    meant = Line.of([*near, *typed[1:]], line.commands)
    if near and typed[1:] and meant.command is not None and meant.parses():
        return shlex.join(["meshwright", *line.path, *meant.typed])
    return shlex.join(["meshwright", *line.path, *near, _HELP])


def tip_of_usage(line: Line, wrong: str = "") -> str:
    """Return the command to paste under a usage error; ``wrong``: the option that there is none of."""
    words = list(_hardware_here(line))
    here = ((one, _words_here(line, one)) for one in words)
    words = [part for one, found in here for part in ([one] if found is None else found)]
    words = [_spelt_here(line, one) for one in words]
    words = list(_stated_once(_each_file(words)))
    fixed = replace(line, words=tuple(words))
    if fixed != line and line.command is not None and _has_values(line, words) and fixed.parses():
        return shlex.join(["meshwright", *fixed.typed])
    return _example_of(line) or shlex.join(["meshwright", *line.path, _help_of(line, wrong)])


def _example_of(line: Line) -> str:
    """Return a whole command where nothing was typed behind its name; empty: it takes options alone."""
    from meshwright.service.cli.given import filled_example  # noqa: PLC0415 - only for an error

    path = " ".join(line.path)
    example = "" if line.words else filled_example(path)
    behind = example.removeprefix(f"meshwright {path}").lstrip()
    return example if behind and not behind.startswith("-") else ""


def _hardware_here(line: Line) -> Iterator[Word]:
    """Yield the words of a line with its GPUs in the options that its command has.

    ``--gpu 4090 --num-gpus 2`` and ``--gpus 2x4090`` state the same.
    """
    typed = {one.name: one.value for one in line.words if one.value}
    has = {name: line.command is not None and line.option(name) is not None for name in _GPU_OPTIONS}
    number, times, gpu = (typed.get("--gpus") or "").partition("x")
    count = typed.get("--num-gpus") or typed.get("--gpus-per-node")
    for word in line.words:
        if word.name == "--gpu" and "--gpus" not in typed and has["--gpus"] > has["--gpu"]:
            yield Word("--gpus", f"{count}x{word.value}" if count else word.value)
        elif word.name == "--gpus" and times and number.isdecimal() and has["--gpu"] > has["--gpus"]:
            first = gpu.partition(",")[0]  # of several
            yield from (Word("--gpu", first), Word("--num-gpus", number))
        elif has.get(word.name, True) or "--gpu" not in typed or word.name == "--gpu":
            yield word


def _spelt_here(line: Line, word: Word) -> Word:
    """Return a word with the option of the command that its own is a slip of."""
    if line.command is None or not word.name.startswith("--") or line.option(word.name) is not None:
        return word
    names = (name for one in line.command.params for name in (*one.opts, *one.secondary_opts))
    known = [name for name in names if name.startswith("--")]
    near = near_options(word.name, known)
    return replace(word, name=near[0]) if near else word


_OF_FILES = "--from-args"  # takes several files, each behind the option


def _each_file(words: Sequence[Word]) -> list[Word]:
    """Return the words of a line with each of the files that one option lists behind the option."""
    found = list[Word]()
    for word in words:
        follows = bool(found) and found[-1].name == _OF_FILES and word.name == _ARGUMENT
        is_file = follows and word.value is not None and Path(word.value).is_file()
        found.append(replace(word, name=_OF_FILES) if is_file else word)
    return found


def _stated_once(words: Sequence[Word]) -> Iterator[Word]:
    """Yield the words of a line without an option that another says too: ``--load-in-4bit --lora-r 64``."""
    example = Word(*EXAMPLE)
    stated = any(one.name == example.name and one != example for one in words)
    for at, word in enumerate(words):
        is_said = bool(word.name) and word in words[:at]
        if not is_said and not (word == example and stated):
            yield word


def options_here(line: Line, wrong: str) -> str:
    """Return the options that an unknown one means here, as they are typed; empty if nobody knows it."""
    found = _words_here(line, next((one for one in line.words if one.name == wrong), Word(wrong)))
    if found is None:
        return ""
    return shlex.join(part for one in found if one.name for part in one.written()) or "the default"


def near_options(wrong: str, possible: Sequence[str]) -> list[str]:
    """Return the options that are spelled like a wrong one, or have all of its words.

    Those that begin with it come first, then the nearest. Hyphens and underscores do not count.
    """
    parts = set(wrong.strip("-").replace("_", "-").split("-"))
    typed, names = _letters(wrong), {one: _letters(one) for one in possible}
    alike = {one: SequenceMatcher(None, typed, names[one]).ratio() for one in possible}
    found = [one for one in possible if alike[one] > _ALIKE or parts <= set(one.strip("-").split("-"))]
    return sorted(found, key=lambda one: (not names[one].startswith(typed), -alike[one]))


def _letters(name: str) -> str:
    return f"--{run_together(name)}"


def _words_here(line: Line, word: Word) -> list[Word] | None:
    """Return the words that an unknown option means here; None if it is known, or nobody knows it."""
    if line.command is None or not word.name.startswith("--") or line.option(word.name) is not None:
        return None
    pin = line.option("--pin")
    sizes = "--set" if pin is None or pin.hidden else "--pin"
    argued = [Word(_ARGUMENT, word.value)]  # --lora MODEL
    for value, rest in ((word.value, []), *([] if is_off(word.value) else [(None, argued)])):
        with suppress(LookupError):
            found = [Word(*one) for one in meant_by(word.name, value, sizes=sizes)]
            known = all(line.option(one.name) is not None for one in found)
            return [*found, *rest] if known else None
    return None


def _has_values(line: Line, words: Sequence[Word]) -> bool:
    """Return whether each option that takes a value has one, and no flag has any."""
    known = ((line.option(one.name), one.value) for one in words if one.name)
    return all(option is None or option.is_flag == (value is None) for option, value in known)


def _of_gpus(values: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options of several --gpus: types in one list, of all or of the fewest GPUs the type."""
    typed = [one for one in values if one not in _HOW_MANY]
    few = [one for one in values if one in _HOW_MANY][-1:]
    if few and len(typed) == 1 and "," not in typed[0]:
        number, times, gpu = typed[0].partition("x")
        return [("--gpu", gpu), ("--num-gpus", number), ("--gpus", few[0])] if times else []
    return [] if few and typed else [("--gpus", ",".join(typed) or few[0])]


# --------------------------------------------------------------------------------------------------
# What was typed.


def _words(rest: list[str], command: Any) -> Iterator[Word]:  # noqa: ANN401 - Typer's own type
    flags = {name: one.is_flag for one in command.params for name in (*one.opts, *one.secondary_opts)
             if one.param_type_name == "option"}  # fmt: skip
    left = deque(rest)
    while left:
        word = left.popleft()
        name, equals, value = word.partition("=")
        if word == "--":
            yield from (Word(_ARGUMENT, one) for one in (word, *left))
            return
        if not word.startswith("--"):
            yield Word(_ARGUMENT, word)
        elif equals:
            yield Word(name, value)
        else:  # an unknown option is one with a value, if a word follows that is none
            alone = flags[word] if word in flags else bool(left) and left[0].startswith("--")
            stated = None if alone or not left else left.popleft()
            if stated is not None and _ASSIGNED.fullmatch(stated):
                yield from (Word(word, one) for one in stated.split(","))
            else:
                yield Word(word, stated)


def _is_same(option: Any, one: Word, other: Word) -> bool:  # noqa: ANN401 - Typer's own type
    """Return whether two words of an option state the same: of one that repeats, those of one name."""
    if not option.multiple:
        return True
    name, equals, _ = (one.value or "").partition("=")
    wanted = (other.value or "").partition("=")[0]
    return one.value == other.value or (bool(equals) and _long(name) == _long(wanted))


def _long(name: str) -> str:
    return LONG_NAMES.get(name.strip(), name.strip().replace("-", "_"))


# --------------------------------------------------------------------------------------------------
# What a fault asks to change.


def _fixed(fault: FieldError, line: Line) -> Line | None:
    """Return the line without a fault; None if the fault does not say how, or is of the environment."""
    if remedy_of(fault):
        return None
    if fault.tip.startswith(_WITHOUT):
        left = line.without(fault.tip.removeprefix(_WITHOUT))
        return left if left != line else None
    if fault.tip:
        return _with_options(fault.tip, line)
    if fault.message.startswith("is required") and fault.pointer in _REQUIRED:
        examples = {**_REQUIRED, **(_ON_A_NODE if _is_on_a_node(line) else {})}
        return _with_options(_within_positions(examples[fault.pointer], line), line)
    return _with_nearest(fault, line)


def _within_positions(example: str, line: Line) -> str:
    """Return an example whose sequence is no longer than the model's positions (GPT-2: 1024)."""
    from meshwright.profiles.library import find_model  # noqa: PLC0415 - errors alone

    length = _LENGTH.search(example)
    for one in line.words:
        if length and one.name in (_ARGUMENT, "--model") and one.value:
            with suppress(PlannerError):
                most = find_model(one.value).max_position_embeddings or int(length[2])
                return _LENGTH.sub(rf"\g<1>{min(most, int(length[2]))}", example)
    return example


def _is_on_a_node(line: Line) -> bool:
    """Return whether a line names the GPUs of one node at most, on which most people fine-tune."""
    stated = [one.value or "" for one in line.words if one.name == "--gpus"]
    numbers = [re.match(r"(\d+)x", part) for value in stated for part in value.split(",")]
    return bool(numbers) and sum(int(found[1]) if found else _A_NODE + 1 for found in numbers) <= _A_NODE


def _with_nearest(fault: FieldError, line: Line) -> Line | None:
    """Return the line with the nearest legal value, where it was typed or as an option more."""
    name, key = option_of(fault.pointer)
    if _states_itself(line):
        return None
    right = re.split(r", | or | \(", _as_typed(fault.nearest or "", name))[0].strip()
    if not right or right[0] in '[{"':
        return None
    if right.startswith("--"):
        return _with_options(right, line.without(_ARGUMENT if name == "argument" else name, fault.wrong))
    if name == "argument":
        return line.with_value(fault.wrong, right, (_ARGUMENT,))
    names: tuple[str, ...] = (name, _ARGUMENT) if name in _ARGUED else (name,)
    if name in _HARDWARE:
        names = _HARDWARE
    elif name == "--num-gpus":  # --gpus 64xH100 states it
        names = (name, *_HARDWARE)
    replaced = line.with_value(fault.wrong, right, () if name == "" else names) if fault.wrong else None
    if replaced is not None or not name or _is_unplaced(fault, name, key, line):
        return replaced
    return line.with_option(name, f"{key}={right}" if key else right)


def _states_itself(line: Line) -> bool:
    """Return whether a line names a file of another kind, which no option changes."""
    for word in line.words:
        with suppress(OSError, UnicodeDecodeError):
            path = Path(word.value or "")
            if not word.name and path.suffix in _DOCUMENTS and _KIND.search(path.read_text("utf-8")):
                return True
    return False


def _is_unplaced(fault: FieldError, name: str, key: str, line: Line) -> bool:
    """Return whether one more option would not say which group, or which expression, is meant."""
    if name in ("--num-nodes", "--num-gpus", "--gpus-per-node"):
        return any(word.name == "--nodes" for word in line.words)
    option = line.option(name)
    return not (key or fault.wrong) and option is not None and option.multiple


def _as_typed(nearest: str, name: str) -> str:
    """Return the nearest value as an option states it: a bound as LOW:HIGH."""
    if name != "--bound":
        return nearest
    one = re.split(r", | or ", nearest, maxsplit=1)[0]
    return f"{one}:{one}" if one.isdecimal() else re.sub(r"\[(\S+), (\S+)\]", r"\1:\2", nearest)


def _with_options(words: str, line: Line) -> Line | None:
    """Return the line with options as they are typed; None if the command lacks one of them."""
    changed: Line | None = line
    for word in _words(shlex.split(words), line.command):
        if changed is not None and word.name == "--model" and changed.option("--model") is not None:
            changed = replace(changed, words=tuple(one for one in changed.words if one.name))
        changed = changed and changed.with_option(word.name, word.value)
    return changed


def option_of(pointer: str) -> tuple[str, str]:
    """Return the option that states a field, and the name within it (``--pin``, ``tp``); empty: none."""
    if not pointer.startswith("/"):
        return pointer, ""
    parts = pointer.strip("/").split("/")
    if parts[0] == "configuration" and len(parts) > 1:
        return "--set", parts[1]
    if parts[:2] == ["cluster", "groups"]:
        last = {"gpu": "--gpu", "num_nodes": "--num-nodes", "num_gpus": "--num-gpus",
                "gpus_per_node": "--gpus-per-node"}  # fmt: skip
        return last.get(parts[-1], ""), ""
    if parts[-1] == "name" and parts[0] in ("model", "cluster"):
        return f"--{parts[0]}", ""
    for names, key in ((parts, ""), (parts[:-1], parts[-1])):
        option = next((name for name, row in OPTIONS.items() if row.path == ".".join(names)), None)
        row = OPTIONS[option].option if option else None
        if option and row is not None and (not key or row.repeats):
            return f"--{option.replace('_', '-')}", "" if key.isdecimal() else key
    known = len(parts) == 1 or parts[0] == "sweep"
    return (f"--{parts[0].replace('_', '-')}", "") if known else ("", "")


# --------------------------------------------------------------------------------------------------
# Where to look what is legal.


def _looked_up(fault: FieldError, line: Line) -> str:
    """Return the command that lists the legal values of a field, or the help of the command."""
    from meshwright.service.requests.schema import listed_values  # noqa: PLC0415 - only for an error

    if (fault.nearest or "").startswith("--from-"):
        return _of_other_command(fault.nearest or "", fault.wrong, line)
    if remedy := remedy_of(fault):
        return remedy
    if edited := _edited(fault, line):
        return edited
    name, key = ("", "") if _states_itself(line) else option_of(fault.pointer)
    if fault.pointer.startswith("/workload/framework_options"):
        name, key = "--framework-options", ""
    own = shlex.join(["meshwright", *line.path])
    if listing := _LISTS.get(name, own if own in _LISTS.values() else ""):
        return listing
    listed = key if key and key != "0" else name.removeprefix("--")  # a variable of --pin, or an option
    if listed and listed_values(listed):
        return f"meshwright values {listed}"
    return shlex.join(["meshwright", *line.path, _help_of(line, name)])


def _of_other_command(option: str, wrong: str, line: Line) -> str:
    """Return the command that reads a script: the typed one where it does, else explain or plan."""
    kept = line.without(_ARGUMENT, wrong)
    reads = line.option("--from-args") is not None
    said = shlex.split(option)
    said = ["--from-args", *said[1:]] if reads else said
    for name in (*(line.path if reads else ()), "explain", "plan"):
        for words in (kept.words, ()):
            typed = [name, *said, *(part for word in words for part in word.written())]
            other = Line.of(typed, line.commands)
            if other.parses():
                return shlex.join(["meshwright", *typed])
    return shlex.join(["meshwright", *line.path, _HELP])


def _edited(fault: FieldError, line: Line) -> str:
    """Return the command that corrects a field in the one file that has it once; empty: none has.

    It renames a misspelt field, and changes a wrong value to the nearest.
    """
    name = fault.pointer.rpartition("/")[2]
    right = re.split(r", | or ", fault.nearest or "")[0]
    if _FIELD.fullmatch(name) and _PAIR.fullmatch(right):
        return _line_replaced(name, right, line)
    if not (_FIELD.fullmatch(name) and _FIELD.fullmatch(right)):
        return ""
    key = rf'(?<![\w-])({name})"?\s*:'
    sought = key if fault.message == UNKNOWN_FIELD else rf'(?<![\w-]){name}"?[ \t]*:[ \t]*{_VALUE}'
    found = []
    for path in _documents(line):
        with suppress(OSError, UnicodeDecodeError):
            text = path.read_text("utf-8")
            matches = list(re.finditer(sought, text))
            if len(re.findall(key, text)) == 1 == len(matches) == text.count(matches[0][0]):
                found.append((matches[0], path))
    if len(found) != 1:
        return ""
    match, file = found[0]
    start, end = (at - match.start() for at in match.span(1))
    quoted = sought != key and file.suffix.lower() == ".json" and not _PLAIN.fullmatch(right)
    new = match[0][:start] + (f'"{right}"' if quoted else right) + match[0][end:]
    return shlex.join(["sed", "-i.bak", f"s/{match[0].replace('.', '[.]')}/{new}/", str(file)])


def _line_replaced(name: str, right: str, line: Line) -> str:
    """Return the command that writes another field in the place of one; empty where no file has it."""
    for path in (*_documents(line), *_launch_documents(line)):
        with suppress(OSError, UnicodeDecodeError):
            if len(re.findall(rf"(?m)^{name}:", path.read_text("utf-8"))) == 1:
                return shlex.join(["sed", "-i.bak", f"s/^{name}:.*/{right}/", str(path)])
    return ""


def _launch_documents(line: Line) -> Iterator[Path]:
    """Yield the YAML that a line gives as a launch file, or that a launch script of it names."""
    for path in (Path(word.value) for word in line.words if word.value):
        if path.suffix in _DOCUMENTS[:2]:
            yield path
        elif path.suffix in _SCRIPTS and path.is_file():
            text = path.read_text("utf-8", "replace")
            names = dict.fromkeys(re.findall(r"[\w./-]+\.ya?ml\b", text))
            yield from (path.parent / name for name in names if (path.parent / name).is_file())


def _documents(line: Line) -> Iterator[Path]:
    """Yield the problem files and the models' files that a line names."""
    for word in line.words:
        path = Path(word.value or "")
        with suppress(OSError, ValueError):  # a name that no file system takes
            path = path / "config.json" if word.value and path.is_dir() else path
        if word.name in ("", "--model") and path.suffix in _DOCUMENTS:
            yield path


def _is_help(command: str) -> bool:
    return command.rpartition(" ")[2] in (_HELP, "--help-all")


def _help_of(line: Line, name: str) -> str:
    row = OPTIONS.get(name.removeprefix("--").replace("-", "_"))
    is_common = row is None or row.option is None or row.option.group == COMMON
    return _HELP if is_common or line.option("--help-all") is None else "--help-all"
