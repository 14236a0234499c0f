"""Docstrings, comments and pages name only code and files that exist.

A reference is a name between ``two backticks`` in Python files, and between `single backticks` on pages.
There it has a dot, a slash or an underscore. Names of up to three characters are variables of formulas, and
parts of paths in capitals are placeholders. A reference resolves if it is one of these:

- A definition, by the end of its dotted name (``StageTables.fits``, ``splits.StageTables.fits``). In the
  package that is a definition of the package; benchmarks and tests are named in full.
- A file or folder, by the end of its path; after a colon, a definition in that file.
- A word of the code around it: a parameter, a local name, a key. On a page, a word of any code.
- A word that users write or read: fields of requests and answers, entries of the catalog, settings, files.
- A name of Python itself, or of an installed library.
- Code of another program, if the paragraph names the program. A dotted name that begins with a module of
  ours, or a path that begins with a folder of ``OURS``, is never another program's.
"""

import ast
import builtins
import keyword
import pydoc
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
FILES = [name for name in LISTED.stdout.splitlines() if (ROOT / name).is_file()]
CODE = [name for name in FILES if name.endswith(".py") and ROOT / name != Path(__file__)]
# Changelogs are history, and ``make reference`` writes the reference from the code.
LEFT_OUT = ("CHANGELOG", "docs/reference/", "tests/")
PAGES = [name for name in FILES if name.endswith(".md") and not name.startswith(LEFT_OUT)]
PACKAGE = ("profiles/", "solver/", "shell/", "launchers/", "service/", "workers/", "migrations/")
OURS = (*PACKAGE, "benchmarks/", "tests/")
CATALOG = ("frameworks/*.yaml", "models/*.yaml", "*.yaml", "*.json")
PROGRAMS = re.compile(
    r"\b(?:accelerate|aiconfigurator|automodel|axolotl|bitsandbytes|calculon|cutlass|deepspeed|fastapi|git\b|"
    r"galvatron|hugging ?face|jax|llama-factory|maxtext|megatron|metis|nanotron|nccl|nemo|optuna|or-tools|"
    r"peft|postgresql|pytorch|sailor|sentencepiece|simumax|slurm|swift|torch|transformer|trl|vtrain)",
    re.IGNORECASE,
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
BLOCK = r"(?ms)^ *```.*?^ *```"  # of code, on a page


def source(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------------
# What there is to name.


class Module(NamedTuple):
    names: frozenset[str]  # of what it defines, dotted
    code: str  # without docstrings and comments


@cache
def module(name: str) -> Module:
    text = source(name)
    tree, lines = ast.parse(text), text.splitlines()
    for words in docstrings(tree):
        first, last = words.lineno, words.end_lineno or words.lineno
        lines[first - 1 : last] = [""] * (last - first + 1)
    code = re.sub(r"(?m)(^|\s)#.*$", "", "\n".join(lines))
    path = f"meshwright/{name}" if name.startswith(PACKAGE) else name
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return Module(frozenset({dotted, *defined(tree.body, dotted, lines)}), code)


def docstrings(within: Documented) -> Iterator[ast.stmt]:
    if ast.get_docstring(within, clean=False) is not None:
        yield within.body[0]
    for statement in within.body:
        if isinstance(statement, Documented):
            yield from docstrings(statement)


def defined(body: list[ast.stmt], within: str, lines: list[str]) -> Iterator[str]:
    """Yield the dotted names that a module or a class defines."""
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{within}.{statement.name}"
            yield name
            if isinstance(statement, ast.ClassDef):
                yield from defined(statement.body, name, lines)
                own = "\n".join(lines[statement.lineno : statement.end_lineno])
                yield from (f"{name}.{one}" for one in re.findall(r"\bself\.(\w+)", own))
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from defined(statement.body, within, lines)
        elif isinstance(statement, ast.ImportFrom):  # a package offers what it imports
            yield from (
                f"{within}.{one.name}" for one in statement.names if within == "client.meshwright_client"
            )
        else:
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", statement)]
            for target in targets:
                yield from (f"{within}.{one.id}" for one in ast.walk(target) if isinstance(one, ast.Name))


@cache
def definitions(*, in_package: bool) -> frozenset[str]:
    """Return every dotted name that may be written, from any of its parts on."""
    found = set[str]()
    for name in CODE:
        ends_only = not in_package or name.startswith(PACKAGE)
        for dotted in module(name).names:
            parts = dotted.split(".")
            found |= {".".join(parts[at:]) for at in range(len(parts) if ends_only else 1)}
    return frozenset(found)


@cache
def modules() -> frozenset[str]:
    return frozenset(part for name in CODE for part in Path(name).with_suffix("").parts)


@cache
def folders() -> frozenset[str]:
    return frozenset(part for name in FILES for part in Path(name).parts[:-1])


@cache
def paths() -> frozenset[str]:
    """Return the path of every file and folder, from any of its parts on."""
    found = set[str]()
    for parts in {Path(name).parts for name in FILES}:
        for first in range(len(parts)):
            found |= {"/".join(parts[first:last]) for last in range(first + 1, len(parts) + 1)}
    return frozenset(found)


@cache
def keys() -> frozenset[str]:
    """Return the words that users write or read."""
    words = set(re.findall(r'"(\w+)"', source("docs/openapi.json")))
    settings = {name.rpartition(".")[2] for name in module("service/settings.py").names}
    words |= {f"MESHWRIGHT_{name.upper()}" for name in settings}
    for path in (ROOT / "profiles/catalog/runs").glob("*.csv"):
        words |= set(path.read_text(encoding="utf-8").partition("\n")[0].split(","))
    files = (path for kind in CATALOG for path in (ROOT / "profiles/catalog").glob(kind))
    for path in (*files, *(ROOT / "launchers").glob("*/flags.yaml")):
        words |= set(re.findall(r"\w+", re.sub(r"(?m)(^|\s)#.*$", "", path.read_text(encoding="utf-8"))))
    return frozenset(words)


@cache
def words() -> frozenset[str]:
    return frozenset(word for name in CODE for word in re.findall(r"\w+", module(name).code))


@cache
def written_files() -> frozenset[str]:
    """Return names in quotes in the code, such as "answer.json"."""
    return frozenset(name for file in CODE for name in re.findall(r'"([\w.-]+)"', module(file).code))


# --------------------------------------------------------------------------------------------------
# References, and what resolves them.


class Reference(NamedTuple):
    name: str
    line: int
    paragraph: str


def references(text: str, *, on_page: bool) -> Iterator[Reference]:
    quotes = "`" if on_page else "``"
    for found in re.finditer(rf"(?<!`){quotes}([^`\n]+){quotes}(?!`)", text):
        name = found[1].removesuffix("()").rstrip("/")
        if is_reference(name, on_page=on_page):
            row = text[text.rfind("\n", 0, found.start()) + 1] == "|"  # of a table
            begin = text.rfind("\n" if row else "\n\n", 0, found.start()) + 1
            end = text.find("\n" if row else "\n\n", found.end())
            line = text.count("\n", 0, found.start()) + 1
            yield Reference(name, line, text[begin : end if end >= 0 else None])


def is_reference(name: str, *, on_page: bool) -> bool:
    path, _, inside = name.partition(":")
    parts = path.split("/")
    if len(parts) > 1 or inside:
        known = folders() if len(parts) > 1 else paths()
        written = re.fullmatch(r"[\w./-]+(:[\w.]+)?", name) is not None
        return written and parts[0] in known and not any(part.isupper() for part in parts)
    if on_page and (name.startswith("_") or not re.search(r"\w[_.]\w", name)):
        return False
    return len(name) > 3 and all(part.isidentifier() for part in name.split("."))


def is_ours(name: str, *, in_package: bool) -> bool:
    path, _, inside = name.partition(":")
    if inside:
        return f"{path.removesuffix('.py').replace('/', '.')}.{inside}" in definitions(in_package=False)
    return name in paths() or name in definitions(in_package=in_package)


def is_of_users(name: str) -> bool:
    written = re.search("[./]", name) and Path(name).name in written_files()
    return bool(written) or all(part in keys() for part in name.split("."))


def is_of_a_library(name: str) -> bool:
    head, dot, _ = name.partition(".")
    if not dot:
        return hasattr(builtins, name) or keyword.iskeyword(name)
    return head not in modules() and find_spec(head) is not None and pydoc.locate(name) is not None


def is_of_another_program(name: str, paragraph: str) -> bool:
    head, dot, _ = name.partition(".")
    ours = dot and "/" not in name and head in modules() and not PROGRAMS.match(head)
    return not ours and not name.startswith(OURS) and PROGRAMS.search(paragraph) is not None


def unresolved(text: str, code: str, *, in_package: bool = False, on_page: bool = False) -> list[Reference]:
    return [
        one
        for one in references(text, on_page=on_page)
        if not is_ours(one.name, in_package=in_package)
        and not is_of_users(one.name)
        and not re.search(rf"(?<![\w.]){re.escape(one.name)}(?!\w)", code)
        and not (on_page and one.name in words())
        and not is_of_a_library(one.name)
        and not is_of_another_program(one.name, one.paragraph)
    ]


def test_every_reference_in_python_files_resolves() -> None:
    assert [
        f"{name}:{one.line}: {one.name}"
        for name in CODE
        for one in unresolved(source(name), module(name).code, in_package=name.startswith(PACKAGE))
    ] == []


def test_every_reference_on_a_page_resolves() -> None:
    found = []
    for name in PAGES:
        text = source(name)
        prose = re.sub(BLOCK, lambda block: "\n" * block[0].count("\n"), text)
        blocks = "\n".join(re.findall(BLOCK, text))
        found += [f"{name}:{one.line}: {one.name}" for one in unresolved(prose, blocks, on_page=True)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("``splits.best_splits`` of ``reach.can_beat``", ["reach.can_beat"]),
        ("``StageTables.fits``, ``StageTables.holds``", ["StageTables.holds"]),
        ("``solver/cost/price.py:price``, ``solver/cost/price.py:cost``", ["solver/cost/price.py:cost"]),
        ("``solver/search/rows.py``, ``solver/search/mixed.py``", ["solver/search/mixed.py"]),
        ("``benchmarks.against.ours``, ``against.ours``", ["against.ours"]),
        ("Megatron-Core's ``ensure_divisibility``\n\n``ensure_divisibility``", ["ensure_divisibility"]),
        ("Megatron-Core's ``search.simulate``, ``solver/old.py``", ["search.simulate", "solver/old.py"]),
        ("``tau`` of ``costing``, ``work``, ``threading.Thread.join``, ``search.top_k``", ["costing"]),
    ],
)
def test_a_name_that_nothing_defines_is_found(text: str, names: list[str]) -> None:
    code = "work = 1"
    assert [one.name for one in unresolved(text, code, in_package=True)] == names
