"""``meshwright fix --compare BASE HEAD``: what a change to launch files costs or saves, as Markdown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwright.launchers.reading.base import MAX_BYTES, Source
from meshwright.launchers.reading.registry import launcher_of
from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.service.cli.costs import profile_for
from meshwright.service.cli.launch_files import KINDS, source_of
from meshwright.service.cli.options import Request
from meshwright.service.cli.terminal import print_json
from meshwright.service.fixing.changes import ComparedFile, above_limit, markdown, side_of, to_json
from meshwright.service.requests.launch_files import own_of_files

TOO_SLOW = 4  # the exit code
_MOST_FILES = 2000  # of a tree that are looked through
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
_FOLDERS = (".git", ".venv", "node_modules", "__pycache__")


def compare_changes(
    request: Request, compared: tuple[str, str], stated: Mapping[str, Any], *,
    profile: list[Path] | None, fail_above: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Print the comparison and return the exit code: 4 where a run takes longer than the limit allows.

    Raises:
        InvalidProblemError: a side is neither a path nor a revision, or the limit is no percentage.
    """
    limit = None if fail_above is None else _percent(fail_above)
    read = partial(own_of_files, request, **stated)
    costs = partial(profile_for, path=profile)
    with ExitStack() as stack:
        sides = _roots(compared, stack)
        found = [
            ComparedFile(name=name, base=side_of(old, read, costs), head=side_of(new, read, costs))
            for name, old, new in _pairs(*sides)
        ]
    if as_json:
        print_json({"files": to_json(found), "fail_above": limit})
    else:
        sys.stdout.write(markdown(found, limit, _cluster(request)))
    return TOO_SLOW if above_limit(found, limit) else 0


def _percent(text: str) -> float:
    word = text.strip().removesuffix("%").strip()
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InvalidProblemError.of("--fail-above", f'"{text}" is not a percentage', allowed="2%")
    return value


def _roots(compared: tuple[str, str], stack: ExitStack) -> list[Path]:
    """Return the two sides: a path, or a folder with the launch files of a revision."""
    revisions = [side for side in compared if not Path(side).exists()]
    for side in revisions:
        _git("rev-parse", "--verify", f"{side}^{{tree}}", side=side)
    changed = set[str]()
    if len(revisions) == len(compared):
        said = _git("diff", "--name-only", "--no-renames", "-z", *compared, "--", side=compared[0])
        changed = {*said.decode().split("\0")}
    return [_extracted(side, changed, stack) if side in revisions else Path(side) for side in compared]


def _extracted(revision: str, changed: set[str], stack: ExitStack) -> Path:
    """Return a folder with copies of the launch files of a revision; a link becomes a copy of its file."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="meshwright-compare-")))
    asked = partial(_git, side=revision)
    tree = asked("rev-parse", "--verify", f"{revision}^{{tree}}").decode().strip()
    modes = dict(_entries(asked("ls-tree", "-r", "-z", "--full-tree", tree)))
    names = [name for name, mode in modes.items() if mode in _COPIED and Path(name).suffix in KINDS]
    names = [name for name in names if "\n" not in name]  # a line of cat-file
    names = _looked_through(sorted(names, key=lambda name: (name not in changed, _order(name))))
    paths = [folder / _below(name, modes, revision) for name in names]
    lines = "".join(f"{tree}:{name}\n" for name in names).encode(errors="surrogateescape")
    said = BytesIO(asked("cat-file", "--batch", "--follow-symlinks", given=lines))
    for path in paths:
        blob = _blob(said)
        if blob is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(blob)
    return folder


_COPIED = ("100644", "100755", "120000")  # files and links, no submodules


def _entries(listed: bytes) -> Iterator[tuple[str, str]]:
    """Yield the path and mode of each entry that ``git ls-tree -z`` lists."""
    for line in listed.decode(errors="surrogateescape").split("\0"):
        facts, _, name = line.partition("\t")
        if name:
            yield name, facts.split()[0]


def _blob(said: BytesIO) -> bytes | None:
    """Return the next file of ``git cat-file --batch``; None: a folder, or a link to none in the tree.

    Git follows links within the tree alone (git-cat-file(1), --follow-symlinks).
    """
    head = said.readline().split()
    if not head or not head[-1].isdigit():  # missing, ambiguous
        return None
    content = said.read(int(head[-1]))
    said.readline()
    return content if b"blob" in head[1:-1] else None


def _below(name: str, modes: Mapping[str, str], revision: str) -> Path:
    """Return the path of an entry below a folder.

    Raises:
        InvalidProblemError: it is none. ``git mktree`` makes such trees, though nothing checks them out.
    """
    path = Path(name)
    parts = name.split("/")
    behind = any("/".join(parts[:at]) in modes for at in range(1, len(parts)))
    if path.is_absolute() or {"", ".", ".."} & {*parts} or behind:
        why = "lies behind a link or file of the same tree" if behind else "leaves its tree"
        raise InvalidProblemError.of(
            "--compare",
            f"{revision} has an entry that {why}: {name!r}",
            allowed="a tree that git checks out",
        )
    return path


def _order(name: str) -> tuple[int, str]:
    """Return the rank of a file in the order of comparison: scripts, documents, the others."""
    suffix = Path(name).suffix
    return (0 if suffix in _SCRIPTS else 2 if suffix in ("", ".py", ".txt") else 1), name


def _looked_through(names: list[str]) -> list[str]:
    if len(names) > _MOST_FILES:
        sys.stderr.write(f"comparing {_MOST_FILES} of {len(names)} possible launch files\n")
    return names[:_MOST_FILES]


def _git(*words: str, side: str, given: bytes | None = None) -> bytes:
    if side.startswith("-"):
        raise InvalidProblemError.of("--compare", f"{side} is neither a path nor a revision of git")
    try:
        return subprocess.run(  # noqa: S603 - git, with words of ours and a revision
            ["git", *words],  # noqa: S607 - the person's own git
            check=True,
            input=given,
            capture_output=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError) as fault:
        said = getattr(fault, "stderr", b"") or b""
        reason = said.decode(errors="replace").strip().splitlines()[-1:] or ["git can't be run here"]
        raise InvalidProblemError.of(
            "--compare", f"{side} is neither a path nor a revision of git ({reason[0][:120]})",
            allowed="two files, two folders, or two revisions such as origin/main HEAD",
        ) from None  # fmt: skip


def _pairs(base: Path, head: Path) -> Iterator[tuple[str, Source | None, Source | None]]:
    """Yield the launch files that differ, or that name a file that differs, on both sides."""
    if base.is_file() and head.is_file():
        name = head.name if head.suffix in KINDS else base.name
        yield name, replace(source_of([base]), name=name), replace(source_of([head]), name=name)
        return
    texts = [_texts(root) for root in (base, head)]
    names = sorted(texts[0].keys() | texts[1].keys())
    changed = {name for name in names if texts[0].get(name) != texts[1].get(name)}
    started = {name for name in names if _starts(name, base, head, changed)}
    held = {part for name in started for part in _held(texts, name, changed)}
    for name in names:
        if name in started and name not in held:
            yield name, _source(base / name), _source(head / name)


def _texts(root: Path) -> dict[str, bytes]:
    """Return the possible launch files of a folder, by their path in it."""
    paths = (path for path in root.rglob("*") if path.suffix in KINDS)
    parts = (path.relative_to(root).parts for path in paths)
    names = sorted(("/".join(one) for one in parts if not set(one) & set(_FOLDERS)), key=_order)
    files = {name: root / name for name in _looked_through(names)}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if path.is_file() and path.stat().st_size <= MAX_BYTES
    }


def _starts(name: str, base: Path, head: Path, changed: set[str]) -> bool:
    """Return whether a file starts a run, and is changed itself or names a changed file."""
    source = _source(head / name) or _source(base / name)
    if source is None:
        return False
    others = {one.rpartition("/")[2] for one in changed if one != name}
    if name not in changed and not any(other in source.text for other in others):
        return False
    try:
        return launcher_of(source) is not None or _starts_another(source)
    except PlannerError:
        return False


def _starts_another(source: Source) -> bool:
    return source.is_script and any(
        word in source.text for word in ("torchrun", "deepspeed", "accelerate", "srun", "python")
    )


def _held(texts: list[dict[str, bytes]], name: str, changed: set[str]) -> set[str]:
    """Return the changed documents that a script names, which are priced with it."""
    text = texts[1].get(name) or texts[0].get(name) or b""
    return {
        one for one in changed
        if one != name and one.rpartition("/")[2].encode() in text and not one.endswith(_SCRIPTS)
    }  # fmt: skip


def _source(path: Path) -> Source | None:
    try:
        return source_of([path]) if path.is_file() else None
    except InvalidProblemError:
        return None


def _cluster(request: Request) -> str:
    try:
        return cluster_from_mapping(request["cluster"]).title
    except (KeyError, PlannerError, AttributeError):
        cluster = request.get("cluster")
        return str(cluster.get("name", "the cluster") if isinstance(cluster, dict) else cluster)
