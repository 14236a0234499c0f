"""Adds the arguments that Megatron-LM and Megatron-DeepSpeed have ever taken to those of today.

    python -m benchmarks.catalog.megatron_arguments CLONE [CLONE …]

takes clones with their history, and writes ``profiles/catalog/flags/megatron-lm.yaml``. An argument that
none of them has is a fork's own, and the reader refuses it; those that it reads itself are left out.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.catalog.launcher_flags import PROGRAMS, written
from meshwright.profiles.flags import FLAGS_FOLDER, Flag, flags_of
from meshwright.service.launchers.megatron_names import FLAGS

PROGRAM = "megatron-lm"

_ADDED = re.compile(r"add_argument\(\s*((?:['\"]--?[\w-]+['\"],?\s*)+)")
_FILES = re.compile(r"(?:.*/)?(?:\w*arguments\w*|(?:pretrain|finetune)_?\w*|\w*config)\.py")
_OTHERS = re.compile(r"(?:^|/)(?:tools|tasks|tests|tests_deepspeed|export|multimodal|vision|retro|mamba)/")
_REVISIONS = 60  # of one clone, evenly spread


def _git(clone: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), *words], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")


def names_of(text: str, *, fields: bool) -> set[str]:
    """Arguments that a source adds, in snake case; ``fields``: those too that are made of its fields."""
    added = {name for found in _ADDED.finditer(text) for name in re.findall(r"--([\w-]+)", found[1])}
    made = _fields_of(text) if fields else set()
    return {name.replace("-", "_") for name in added | made}


def _fields_of(text: str) -> set[str]:
    """Names of a source's annotated fields; none of one that is no Python of today."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = [line.target for body in bodies for line in body if isinstance(line, ast.AnnAssign)]
    return {field.id for field in fields if isinstance(field, ast.Name)}


def arguments_of(clone: Path) -> set[str]:
    """Arguments of all sampled revisions of a clone."""
    revisions = _git(clone, "log", "--all", "--format=%H", "--", "*arguments*.py", "*config.py").split()
    found: set[str] = set()
    seen: set[str] = set()
    for revision in {*revisions[:: max(1, len(revisions) // _REVISIONS)], *revisions[:1]}:
        for line in _git(clone, "ls-tree", "-r", revision).splitlines():
            meta, _, path = line.partition("\t")
            blob = meta.split()[2]
            if blob in seen or not _FILES.fullmatch(path) or _OTHERS.search(path):
                continue
            seen.add(blob)
            text = _git(clone, "cat-file", "blob", blob)
            found |= names_of(text, fields=path.endswith("config.py"))
    return found


def main(clones: list[str]) -> None:
    """Add to the catalog's file."""
    read = {flag.removeprefix("--").replace("-", "_") for flag in FLAGS}
    names = set().union(*(arguments_of(Path(clone)) for clone in clones)) - read
    flags = dict(flags_of(PROGRAM))
    for name in names - flags.keys():
        flags[name] = Flag(type="object", until=f"before {PROGRAMS[PROGRAM][0].name}")
    (FLAGS_FOLDER / f"{PROGRAM}.yaml").write_text(written(PROGRAM, dict(sorted(flags.items()))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
