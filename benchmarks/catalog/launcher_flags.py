"""Writes the arguments of some launchers by their exact names, as its sources declare them; none is run.

    python -m benchmarks.catalog.launcher_flags [--check] FOLDER [PROGRAM …]

FOLDER holds a folder for each release below, by its name: a wheel that is unpacked (``pip download
--no-deps PACKAGE==VERSION``), or a checkout of the commit. Each program's file in
``launchers/NAME/flags.yaml`` keeps the roles that it has; an argument that is new to it is ``open``. The
other programs' tables are of their parsers (``tests/launchers/tables.py``). ``--check`` writes nothing
and fails where a release declares an argument that has no row, or declares it otherwise.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from meshwright.launchers.flags import Flag, flags_of, table_path

_CHECK = "--check"
_OF_A_RELEASE = ("type", "default", "until")
_OF_THE_SOURCE = (*_OF_A_RELEASE, "by")
_MAX_TEXT = 60  # characters of a type or a default
_HEADER = """\
# Arguments of {name}: {releases}.
# type, default, until and by are those of their sources (python -m benchmarks.catalog.launcher_flags);
# the roles are by hand, docs/adr/0008 has the format. until: the last release above that has it.
# as: the role is that of another table.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # hashed by itself
class Release:
    """Where one release of a program declares its arguments."""

    name: str  # of its folder
    files: tuple[str, ...]  # patterns in it
    roots: tuple[str, ...] = ()  # classes with the arguments as fields; empty: all classes
    # Further classes, by the section that their fields are in: its annotation names others, too
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Its commands with classes of their own: an argument that not all of them take is ``by`` some
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_trainer: tuple[str, ...] = ()  # those that also take all of transformers' TrainingArguments


def _factory(version: str) -> Release:
    files = ("llamafactory/hparams/*_args.py",)
    return Release(name=f"llamafactory-{version}", files=files)


def _swift(version: str) -> Release:
    files = (
        "swift/arguments/**/*.py",
        "swift/llm/argument/**/*.py",
        "swift/llm/utils/argument.py",
        "swift/llm/megatron/argument.py",
        "swift/trainers/arguments.py",
        "swift/rlhf_trainers/arguments.py",
        "swift/ray_utils/arguments.py",
        "swift/megatron/argument*/*.py",
    )
    roots = (
        "RLHFArguments",
        "SftArguments",
        "TrainArguments",
        "PretrainArguments",
        "MegatronSftArguments",
        "MegatronTrainArguments",
        "MegatronArguments",
    )
    commands = {
        "sft": ("SftArguments", "TrainArguments", "PretrainArguments"),
        "rlhf": ("RLHFArguments",),
        "megatron": ("MegatronSftArguments", "MegatronTrainArguments", "MegatronArguments"),
    }
    return Release(
        name=f"ms_swift-{version}",
        files=files,
        roots=roots,
        commands=commands,
        of_trainer=("sft", "rlhf"),
    )


def _axolotl(version: str) -> Release:
    files = (
        "axolotl/utils/schemas/**/*.py",
        "src/axolotl/utils/schemas/**/*.py",
        "src/axolotl/integrations/*/args.py",
        "axolotl/integrations/*/args.py",
        "axolotl/cli/args.py",
        "src/axolotl/cli/args.py",
    )
    return Release(
        name=f"axolotl-{version}",
        files=files,
        roots=(
            "AxolotlInputConfig",
            "LigerArgs",
            "CutCrossEntropyArgs",
            "TrainerCliArgs",
            *(("ContextParallelArgs", "ExpertParallelArgs") if version == "0.21.0" else ()),  # built in
        ),
    )


_CORE = (
    "transformer/transformer_config.py",
    "model_parallel_config.py",
    "optimizer/optimizer_config.py",
    "distributed/distributed_data_parallel_config.py",
)
PROGRAMS: Mapping[str, tuple[Release, ...]] = {  # the newest release first
    "llama-factory": tuple(map(_factory, ("0.9.5", "0.9.3", "0.8.3", "0.7.1"))),
    "ms-swift": tuple(map(_swift, ("4.6.0", "3.9.0", "2.6.1"))),
    "axolotl": tuple(map(_axolotl, ("0.21.0", "0.19.0", "0.12.2", "0.8.0"))),
    "nanotron": tuple(
        Release(
            name=name,
            files=(f"{folder}nanotron/config/*.py",),
            roots=("Config",),
            sections={"model.model_config": ("LlamaConfig", "Qwen2Config")},
        )
        for name, folder in (("nanotron-2411b022", "src/"), ("nanotron-0.4", ""))
    ),
    "megatron-bridge": (
        Release(
            name="megatron-bridge-067f987df",
            files=(
                "src/megatron/bridge/**/*.py",
                *(f"../megatron-lm-d98e8a64dd/megatron/core/{one}" for one in _CORE),
                "../megatron-lm-d98e8a64dd/megatron/training/config/*.py",
            ),
            roots=("ConfigContainer",),
        ),
    ),
}


class _Classes:
    """The classes of a release with their fields, by name."""

    def __init__(self, folder: Path, release: Release) -> None:
        self.nodes: dict[str, ast.ClassDef] = {}
        for pattern in release.files:
            for path in sorted(folder.glob(pattern)):
                if path.suffix == ".py" and "/experiments/" not in str(path) and "/tests/" not in str(path):
                    self._add(ast.parse(path.read_text("utf-8")))

    def _add(self, tree: ast.Module) -> None:
        for node in tree.body:
            for one in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
                if isinstance(one, ast.ClassDef):
                    outer = "" if one is node or not isinstance(node, ast.ClassDef) else f"{node.name}."
                    self.nodes.setdefault(outer + one.name, one)

    def fields(self, name: str, seen: tuple[str, ...] = ()) -> Iterator[tuple[str, Flag]]:
        """Yield a class's fields by dotted name, with those of its bases and of its sections."""
        node = self.nodes.get(name)
        if node is None or name in seen:
            return
        for base in node.bases:
            text = ast.unparse(base)
            inner = (
                text if text in self.nodes else f"{name.partition('.')[0]}.{text}" if "." in name else text
            )
            yield from self.fields(inner, (*seen, name))
        for line in node.body:
            if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
                continue
            kind, called = ast.unparse(line.annotation), line.target.id
            if called.startswith("_") or "ClassVar" in kind:
                continue
            inside = [one for one in self._named(kind) if one != name]
            alias = _alias(line.value) or called
            own: dict[str, Flag] = {}
            for one in reversed(inside):  # of several classes the first one's declaration counts
                own |= self.fields(one, (*seen, name))
            for key, flag in own.items():
                yield f"{alias}.{key}", flag
            for spelt in {alias, called}:  # pydantic takes both
                yield spelt, Flag(type=_short(kind), default=_default(line.value))

    def _named(self, kind: str) -> list[str]:
        """Return the classes of this release that an annotation names; of a list or a dict of them none."""
        if re.search(r"\b(?:list|List|dict|Dict|tuple|Sequence|Mapping)\b", kind):
            return []
        return [
            one for one in re.findall(r"[A-Za-z_][\w.]*", kind) if one in self.nodes and self._holds(one)
        ]

    def _holds(self, name: str) -> bool:
        return any(isinstance(line, ast.AnnAssign) for line in self.nodes[name].body)


def _alias(value: ast.expr | None) -> str | None:
    """Return the name that pydantic's ``Field(alias=…)`` gives a field."""
    for one in value.keywords if isinstance(value, ast.Call) else ():
        if one.arg == "alias" and isinstance(one.value, ast.Constant):
            return str(one.value.value)
    return None


def _default(value: ast.expr | None) -> object:
    """Return a field's default where its source spells it out; else None."""
    if isinstance(value, ast.Call):
        said = {one.arg: one.value for one in value.keywords}
        plain = said.get("default") or (value.args[0] if value.args else None)
        return _default(plain) if not isinstance(plain, ast.Call) else None
    try:
        found = None if value is None else ast.literal_eval(value)
    except ValueError:
        return None
    whole = isinstance(found, bool | int | float | str) and len(str(found)) <= _MAX_TEXT
    return found if whole and found is not Ellipsis else None


def _short(kind: str) -> str:
    plain = _OPTIONAL.sub(r"\1 | None", kind).replace("'", "").replace('"', "")
    return plain[:_MAX_TEXT].split("\n")[0]


_OPTIONAL = re.compile(r"Optional\[(.*)\]")


def _of_documents(folder: Path, release: Release) -> Iterator[tuple[str, Flag]]:
    """Yield the keys of configurations in YAML by dotted name."""
    for pattern in release.files:
        for path in sorted(folder.glob(pattern)):
            raw = yaml.safe_load(path.read_text("utf-8"))
            yield from _flat(raw, "")


def _flat(raw: object, before: str) -> Iterator[tuple[str, Flag]]:
    for key, value in raw.items() if isinstance(raw, dict) else ():
        name = f"{before}{key}"
        plain = isinstance(value, bool | int | float | str) and len(str(value)) <= _MAX_TEXT
        yield name, Flag(type=type(value).__name__, default=value if plain else None)
        yield from _flat(value, f"{name}.")


def _takers(program: str, folder: Path, name: str) -> list[str]:
    """Return the commands that take an argument, in any release; none where all do."""
    releases = [release for release in PROGRAMS[program] if release.commands]
    taken = [_names_of_commands(folder / release.name, release) for release in releases]
    commands = releases[0].commands if releases else {}
    found = [command for command in commands if any(name in names[command] for names in taken)]
    return found if len(found) < len(commands) else []


@cache
def _names_of_commands(folder: Path, release: Release) -> dict[str, set[str]]:
    classes = _Classes(folder, release)
    trainers = {name for name, flag in flags_of("transformers").items() if flag.of != "scripts"}
    return {
        command: {name for root in roots for name, _ in classes.fields(root)}
        | (trainers if command in release.of_trainer else set())
        for command, roots in release.commands.items()
    }


def declared(folder: Path, release: Release) -> dict[str, Flag]:
    """Return what a release declares, by name."""
    if not folder.is_dir():
        sys.exit(f"{folder} is not there")
    if release.files[0].endswith(".yaml"):
        return dict(_of_documents(folder, release))
    classes = _Classes(folder, release)
    found: dict[str, Flag] = {}
    for root in release.roots or tuple(classes.nodes):
        found |= classes.fields(root)
    for section, roots in release.sections.items():
        found |= {f"{section}.{key}": flag for root in roots for key, flag in classes.fields(root)}
    return found


def merged(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a program's arguments in all its releases, with what its file says by hand."""
    found: dict[str, dict[str, Any]] = {}
    for place, release in enumerate(PROGRAMS[name]):
        for key, flag in declared(folder / release.name, release).items():
            until = {"until": release.name} if place else {}
            stated = {} if flag.default is None else {"default": flag.default}
            by = _takers(name, folder, key)
            found.setdefault(key, {"type": flag.type, **stated, **until, **({"by": by} if by else {})})
    known = yaml.safe_load(table_path(name).read_text("utf-8")) if table_path(name).is_file() else {}
    kept = {key: row for key, row in known.items() if key not in found}  # of a fork, or written by hand
    for key, row in found.items():
        said = {part: value for part, value in known.get(key, {}).items() if part not in _OF_THE_SOURCE}
        row.update(said)
    return dict(sorted((found | kept).items()))


def renewed(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return a program's rows by its newest release, which ``folder`` holds, and by its file the others."""
    newest, last = PROGRAMS[name][:2]
    found: dict[str, dict[str, Any]] = {}
    for key, flag in declared(folder, newest).items():
        found[key] = {"type": flag.type, **({} if flag.default is None else {"default": flag.default})}
    for key, row in yaml.safe_load(table_path(name).read_text("utf-8")).items():
        said = {part: value for part, value in row.items() if part not in _OF_A_RELEASE}
        gone = row if "until" in row or "of" in row else {**row, "until": last.name}
        found[key] = {**found[key], **said} if key in found else gone
    return dict(sorted(found.items()))


def written(name: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of a program's file: one line a flag."""
    releases = ", ".join(release.name for release in PROGRAMS[name])
    lines = [_HEADER.format(name=name, releases=releases)]
    for key, row in rows.items():
        line = yaml.safe_dump(
            {key: dict(row)}, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True
        )
        lines.append(f"{line.strip()[1:-1]}\n")
    return "".join(lines)


def faults(name: str, folder: Path) -> list[str]:
    """Return where a program's file is not what its sources declare: each argument, and its fault."""
    known, rows = yaml.safe_load(table_path(name).read_text("utf-8")), merged(name, folder)
    lacking = [f"{name}: {key} has no row" for key in rows if key not in known]
    return lacking + [
        f"{name}: the row of {key} is not its declaration" for key in known if known[key] != rows[key]
    ]


def main(words: Sequence[str]) -> int:
    """Write or check the files of all programs, or of those that are named; 1 if a check fails."""
    folder, *names = (word for word in words if word != _CHECK)
    found: list[str] = []
    for name in names or PROGRAMS:
        if _CHECK in words:
            found += faults(name, Path(folder))
        else:
            table_path(name).write_text(written(name, merged(name, Path(folder))), "utf-8")
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
