"""The literals of launch files: each value with its name, its place in the text, and its line.

Scripts, YAML, JSON, TOML and Python are scanned for values only, and nothing is evaluated: an edit is kept
when the edited file reads as wanted, so that a site too many does no harm.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import yaml

from meshwright.launchers.flags import plain_name
from meshwright.launchers.reading.documents import without_comments
from meshwright.launchers.reading.own_defaults import is_argument, named_defaults
from meshwright.launchers.reading.python_values import RECOMPUTE, mode_of
from meshwright.shell.manifests import holds_manifest

# An item is a flag in a list of YAML or JSON, whose value may be the next item: - --flag
Form = Literal["flag", "item", "assignment", "json", "yaml", "toml", "python"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One value of a file."""

    name: str  # in snake case without dashes; dotted where the file has sections
    shown: str  # as the file spells it
    value: str | None  # without quotes; None: a switch without a value
    begin: int  # of the name
    start: int  # of the value; of a switch: the end of its name
    end: int
    line: int
    form: Form
    is_name: bool = False  # a Python name or a YAML alias: its assignment or its anchor has the value
    anchor: str = ""  # in YAML: by which aliases name this value
    spellings: Mapping[str, str] = field(default_factory=dict)  # how the file writes values

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the shell variable, or the Python name, that is the whole value."""
        if self.value is None or self.form in ("python", "yaml", "toml"):
            return (self.value,) if self.value is not None and self.is_name else ()
        found = _VARIABLE.fullmatch(self.value)
        return () if found is None else (found[1] or found[2] or found[3],)

    @property
    def is_flag(self) -> bool:
        """Return whether it is an argument of a command."""
        return self.form in ("flag", "item")

    @property
    def assigns(self) -> tuple[str, ...]:
        """Return the names by which other sites use this value."""
        return (self.shown,) if self.form in ("assignment", "python") else (self.anchor,)

    @property
    def is_literal(self) -> bool:
        """Return whether the value can be replaced where it stands."""
        return (
            self.value is not None
            and not self.variables
            and "$" not in self.value
            and "`" not in self.value
        )


def sites_of(name: str, text: str) -> list[Site]:
    """Return the values of a file in their order; none of a document that cannot be parsed."""
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    scan = {"json": _document, "yaml": _document, "yml": _document, "toml": _toml, "py": _python}.get(
        suffix, _script
    )
    try:
        return sorted(scan(text), key=lambda site: site.start)
    except (yaml.YAMLError, SyntaxError, ValueError, RecursionError):
        return []


_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\}|\((\w+)\))")  # the last is Kubernetes'

# --------------------------------------------------------------------------------------------------
# Shell: --flag value, --flag=value, NAME=value, NAME=${NAME:-value}, key.name=value, "key": value.

_ITEM = re.compile(  # - --flag=value, - --flag and - value below it, "--flag", "value"
    r"(?m)(?P<lead>^[ \t]*(?:-[ \t]+)*-[ \t]+|[\[,][ \t\r\n]*)(?P<quote>[\"']?)(?P<name>--[A-Za-z][\w.-]*)"
    r"(?:=(?P<value>[^\s\"',\]]+)(?P=quote)|(?P=quote)"
    r"(?:(?:,\s*|[ \t]*\r?\n[ \t]*-[ \t]+)(?P<own>[\"']?)(?!--)(?P<next>[^\s\"',\]#]+)(?P=own))?)"
    r"(?=[ \t]*(?:,|\]|\r?$))"
)
_ENTRY = re.compile(  # of a container's env
    r"(?m)^[ \t]*-[ \t]+name:[ \t]+(\w+)[ \t]*\r?\n[ \t]+value:[ \t]+"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'#]+)[ \t]*$"
)
_COMMENT = re.compile(r"(?m)(?:^|(?<=[ \t]))#(?!SBATCH).*$")
_TEXT = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?:\$\{[^}\n]*\}|[^\s\"'\\;|&()<>`])+"
_FLAG = re.compile(
    rf"(?<![\w$/.-])(--[A-Za-z][\w.-]*)(?:(=)({_TEXT})|((?:[ \t]|\\\r?\n)+(?!--)({_TEXT}))?)"
)
_ASSIGNED = re.compile(rf"(?m)(?:^|(?<=[\s;(\"']))([+~]*[A-Za-z_][\w.]*)=({_TEXT})")
_SUBCOMMAND = re.compile(r"(?<![\w.-])(activation-checkpoint):([\w-]+)")  # torchtitan 0.3's
_DEFAULT = re.compile(r"\$\{(\w+):?[-=]((?:\$\w+|\$\{\w+\}|[^}$\n])+)\}")
_LINE = re.compile(rf"(?m)^[ \t]*([A-Za-z_][\w.]*)(:[ \t]+|[ \t]+=[ \t]+)({_TEXT})[ \t]*$")
_PAIR = re.compile(
    r"\"([A-Za-z_][\w.]*)\"\s*:\s*(\"(?:[^\"\\\n]|\\.)*\"|(?:\$\{[^}\n]*\}|[^\s,{}\[\]\"])+)"
)


def _script(text: str) -> Iterator[Site]:
    bare = _COMMENT.sub(lambda found: " " * len(found.group()), text)
    items = {site.begin: site for site in _items(text, bare)}
    yield from items.values()
    yield from (site for site in _flags(text, bare, 0, len(bare)) if site.begin not in items)
    for found in _ENTRY.finditer(bare):
        yield _shell_site(text, "assignment", found, 2)
    for found in _SUBCOMMAND.finditer(bare):
        yield replace(_shell_site(text, "assignment", found, 2), name=_MODE)
    for found in _ASSIGNED.finditer(bare):
        yield _shell_site(text, "assignment", found, 2)
    for found in _DEFAULT.finditer(bare):  # : ${TP:=8}
        if bare[: found.start()].rstrip(' "').endswith(":"):
            yield _shell_site(text, "assignment", found, 2)
    for found in _PAIR.finditer(bare):  # of a JSON that the script writes
        yield _shell_site(text, "json", found, 2)
    for found in _LINE.finditer(bare):  # of a YAML or TOML
        yield _shell_site(text, "yaml" if ":" in found[2] else "toml", found, 3)


def _items(text: str, bare: str) -> Iterator[Site]:
    at = 0
    while (found := _ITEM.search(bare, at)) is not None:
        group = next((one for one in ("value", "next") if found[one] is not None), None)
        start, end = found.span(group) if group else (found.end("name"),) * 2
        yield Site(
            name=plain_name(found["name"]), shown=found["name"], value=found[group] if group else None,
            begin=found.start("name"), start=start, end=end,
            line=text.count("\n", 0, found.start("name")) + 1, form="item",
        )  # fmt: skip
        at = max(end, found.start("name") + 1)


def _flags(text: str, bare: str, start: int, end: int) -> Iterator[Site]:
    """Yield the flags of commands, and of a command that is a flag's value: ``sbatch --wrap="…"``."""
    for found in _FLAG.finditer(bare, start, end):
        group = 3 if found[2] else 5
        if found[group] is not None and " --" in found[group] and found[group][0] in "\"'":
            yield from _flags(text, bare, found.start(group) + 1, found.end(group) - 1)
        else:
            yield _shell_site(text, "flag", found, group if found[group] is not None else None)


def _shell_site(text: str, form: Form, found: re.Match[str], group: int | None) -> Site:
    """Return the site of a name, a match's first group, and of its value, which is another."""
    start, end = found.span(group) if group is not None else (found.end(1),) * 2
    value = text[start:end] if group is not None else None
    if value and len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
        start, end, value = start + 1, end - 1, value[1:-1]
    default = _DEFAULT.fullmatch(value) if value else None
    if default is not None:
        start, end, value = start + default.start(2), start + default.end(2), default[2]
    begin = found.start() if form == "json" else found.start(1)
    return Site(
        name=plain_name(found[1].lstrip("+~")), shown=found[1], value=value, begin=begin, start=start,
        end=end, line=text.count("\n", 0, begin) + 1, form=form,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# JSON and YAML by their nodes, TOML by its lines, Python by its syntax tree.


def _document(text: str) -> Iterator[Site]:
    if holds_manifest(text):
        yield from _script(text)
        return
    form: Form = "json" if _OPENS.match(text) else "yaml"
    plain = without_comments(text) if form == "json" else text
    blank = plain.replace("\t", " ")  # PyYAML takes no tabs between the parts of JSON
    node = yaml.compose(blank, Loader=yaml.SafeLoader)
    if node is not None:
        yield from _nodes(text, node, "", form)


def _nodes(text: str, node: yaml.Node, before: str, form: Form) -> Iterator[Site]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = f"{before}{key.value}"
        alias = _ALIAS.match(text, key.end_mark.index)
        if isinstance(value, yaml.ScalarNode):
            marks = _PROPERTIES.match(text, value.start_mark.index)
            start, end = marks.end() if marks else value.start_mark.index, value.end_mark.index
            quotes, word, anchor = int(bool(value.style)), value.value, marks[1] if marks else None
            if alias is not None:
                (start, end), quotes, word, anchor = alias.span(1), 0, f"&{alias[1][1:]}", None
            elif text[start : start + 1] in ("|", ">"):
                continue
            yield Site(
                name=name, shown=name, value=word, begin=key.start_mark.index, start=start + quotes,
                end=end - quotes, line=key.start_mark.line + 1, form=form, is_name=alias is not None,
                anchor=anchor or "",
            )  # fmt: skip
        elif alias is None:
            yield from _nodes(text, value, f"{name}.", form)


# Comments and blanks before an object; each is taken whole, or a line of ``# # #`` has 2^n readings.
_OPENS = re.compile(r"(?>\s+|(?://|#)[^\n]*|/\*.*?\*/)*+\{", re.DOTALL)
_ALIAS = re.compile(r"\s*:\s+(\*[^\s,\[\]{}]+)")
_PROPERTIES = re.compile(r"(?:(&[^\s,\[\]{}]+)\s+|![^\s,\[\]{}]*\s+)*")


_TABLE = re.compile(r"\s*\[\s*([\w.\-]+)\s*\]")
_SETTING = re.compile(r"(\s*)([\w.\-]+)\s*=\s*(\"[^\"\n]*\"|'[^'\n]*'|[^\s#]+)")


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends, as git has them: form feeds end none."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _toml(text: str) -> Iterator[Site]:
    table, at = "", 0
    for number, line in enumerate(lines_of(text), start=1):
        if (found := _TABLE.match(line)) is not None:
            table = f"{found[1]}."
        elif (found := _SETTING.match(line)) is not None:
            quotes = int(found[3][0] in "\"'")
            start, end = at + found.start(3) + quotes, at + found.end(3) - quotes
            yield Site(
                name=table + found[2], shown=table + found[2], value=text[start:end],
                begin=at + found.start(2), start=start, end=end, line=number, form="toml",
            )  # fmt: skip
        at += len(line)


def _python(text: str) -> Iterator[Site]:
    starts = [0]
    for line in lines_of(text):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:  # columns count bytes of UTF-8
        whole = text[starts[line - 1] : starts[line]].encode()
        return starts[line - 1] + len(whole[:column].decode())

    tree = ast.parse(text)
    modes = _modes(tree)
    for node in ast.walk(tree):
        for name, begin, value in _named_values(node):
            start = place(value.lineno, value.col_offset)
            end = place(value.end_lineno or 0, value.end_col_offset or 0)
            raw = text[start:end]
            quotes = int(raw[:1] in "\"'" and raw[:3] not in ('"""', "'''"))
            is_mode = name == _MODE and not quotes
            yield Site(
                name=name.rpartition(".")[2] if name.startswith(("config.", "cfg.")) else name,
                shown=name.removesuffix(".mode"),
                value=value.attr if isinstance(value, ast.Attribute) and not is_mode
                else str(mode_of(value).value) if is_mode else raw[quotes : len(raw) - quotes],
                begin=place(*begin), start=start + quotes, end=end - quotes, line=begin[0], form="python",
                is_name=isinstance(value, ast.Name | ast.Attribute) and not is_mode,
                spellings=modes if is_mode else {},
            )  # fmt: skip


_PLAIN = ("none", *RECOMPUTE.values())
_MODE = "activation_checkpoint.mode"


def _modes(tree: ast.Module) -> dict[str, str]:
    """Return how torchtitan 0.3 spells what is recomputed, by the classes that a module imports."""
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {one.asname or one.name for node in froms for one in node.names}
    classes = {mode: name for name, mode in RECOMPUTE.items() if name.partition(".")[0] in names}
    return {"none": "None", **{mode: f"{name}()" for mode, name in classes.items()}}


def _named_values(node: ast.AST) -> Iterator[tuple[str, tuple[int, int], ast.expr]]:
    """Yield names with their places and values that are constants or names."""
    pairs: list[tuple[str, ast.expr | ast.keyword, ast.expr]] = []
    if isinstance(node, ast.keyword) and node.arg:
        pairs = [(node.arg, node, node.value)]
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        if isinstance(node.targets[0], ast.Name | ast.Attribute):
            pairs = [(ast.unparse(node.targets[0]), node.targets[0], node.value)]
    elif isinstance(node, ast.Dict):
        keys = zip(node.keys, node.values, strict=True)
        pairs = [(str(key.value), key, value) for key, value in keys if isinstance(key, ast.Constant)]
    elif isinstance(node, ast.Call | ast.ClassDef):
        pairs = [(name, value, value) for name, value, is_set in named_defaults(node) if not is_set]
    for name, at, value in pairs:
        if name.rpartition(".")[2] == "activation_checkpoint":
            table = value.func if isinstance(value, ast.Call) else None  # RECOMPUTATION["full"]()
            if mode_of(value).value in _PLAIN:
                mode = table.slice if isinstance(table, ast.Subscript) else value
                yield _MODE, (at.lineno, at.col_offset), mode
        elif (
            isinstance(value, ast.Constant | ast.Name)
            or is_argument(value)
            or (isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant))
        ):
            yield name, (at.lineno, at.col_offset), value
