"""What a user's own Python program trains with where its command says nothing.

Read are literals: defaults of argparse and of dataclasses, arguments of transformers' and TRL's classes,
and the model that ``from_pretrained`` names. Nothing is run. An argument of the command counts first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from meshwright.launchers.flags import flags_of, plain_name
from meshwright.shell.commands import is_python
from meshwright.shell.values import Word

_TABLES = ("transformers", "trl", "accelerate", "deepspeed")
_LONGEST = 200_000  # characters of a program
_IS_OURS = re.compile(r"^\s*(?:from|import)\s+(?:transformers|trl|deepspeed|accelerate)\b", re.MULTILINE)
_CONFIGS = re.compile(r"(?:\w*TrainingArguments|(?:SFT|DPO|KTO|Reward)Config)")
_MODELS = re.compile(r"\w*(?:ForCausalLM|LanguageModel)")
_MODEL = "model_name_or_path"


def with_defaults(words: Sequence[Word], texts: Mapping[str, str]) -> tuple[Word, ...]:
    """Return the words of a command with the defaults of its Python program behind them.

    Args:
        words: words of a command.
        texts: the Python programs next to it, by base name.
    """
    at = next((at for at, word in enumerate(words) if word.text.endswith(".py")), None)
    text = None if at is None else texts.get(words[at].text.rsplit("/", 1)[-1])
    if at is None or text is None:
        return tuple(words)
    given = {plain_name(word.text.partition("=")[0]) for word in words[at + 1 :] if word.text[:1] == "-"}
    line = words[-1].line
    found = ((f"--{name}", value) for name, value in defaults_of(text).items() if name not in given)
    return (*words, *(Word(piece, line) for pair in found for piece in pair))


def may_start(words: Sequence[Word]) -> bool:
    """Return whether a command starts a Python program with a launcher or alone."""
    first = words[0].text.rsplit("/", 1)[-1]
    return is_python(words[0]) or first in ("torchrun", "accelerate", "deepspeed", "srun", "mpirun")


@lru_cache(maxsize=16)
def defaults_of(text: str) -> Mapping[str, str]:
    """Return the literal defaults of a program by argument; none of one without transformers' libraries."""
    if len(text) > _LONGEST or _IS_OURS.search(text) is None:
        return {}
    try:
        tree = ast.parse(text)
        known = {name for one in _TABLES for name, row in flags_of(one).items() if row.role != "refused"}
        found = {name: value for name, value in _found_in(tree) if name in known}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return found


def _found_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield names and values, those that count before others last."""
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    later = list[tuple[str, str]]()
    for node in ast.walk(tree):
        for name, value, is_set in named_defaults(node):
            literal = constants.get(value.id) if isinstance(value, ast.Name) else None
            literal = value.value if isinstance(value, ast.Constant) else literal
            if isinstance(literal, bool | int | float | str) and literal != "":
                pair = (name, str(literal).lower() if isinstance(literal, bool) else str(literal))
                if is_set:
                    later.append(pair)
                else:
                    yield pair
    yield from later


def named_defaults(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield the arguments that a node gives a value, with whether code sets it, not a default."""
    if isinstance(node, ast.ClassDef) and any(
        "dataclass" in ast.unparse(one) for one in node.decorator_list
    ):
        for one in node.body:
            if (
                isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and one.value is not None
            ):
                yield from ((one.target.id, value, False) for value in _default_of(one.value))
    if not isinstance(node, ast.Call):
        return
    called = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    last = called.rpartition(".")[2]
    if last == "add_argument":
        options = [one.value for one in node.args if isinstance(one, ast.Constant)]
        name = next((one for one in options if isinstance(one, str) and one.startswith("--")), None)
        if name is not None:
            yield from (
                (plain_name(name), one.value, False) for one in node.keywords if one.arg == "default"
            )
    elif _CONFIGS.fullmatch(last):
        yield from ((one.arg, one.value, True) for one in node.keywords if one.arg)
    elif last == "from_pretrained" and _MODELS.fullmatch(called.split(".")[-2]) and node.args:
        yield _MODEL, node.args[0], True
    elif last.endswith("Trainer"):
        model = (one.value for one in node.keywords if one.arg == "model")
        yield from ((_MODEL, one, True) for one in model if isinstance(one, ast.Constant))


def _default_of(value: ast.expr) -> list[ast.expr]:
    """Return the default of a dataclass's field: the value, or that of ``field(default=…)``."""
    if not isinstance(value, ast.Call):
        return [value]
    return [one.value for one in value.keywords if one.arg == "default"]
