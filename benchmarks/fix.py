"""``make bench ARGS="fix"``: the fixes of every stored launch file, each read back.

Stored are the plans of ``tests/golden`` as our exporters write them, and the files of public repositories
among the fixtures (``benchmarks.corpus``). A file counts as right where the edited texts, written to a
folder and read anew, give the configuration that was priced, and where nothing but the named arguments is
changed: every other line, every comment and every other argument has its bytes.

Each file has the same CPU seconds for its edits. A line of ``--results`` (JSON) is written as each ends,
and a run that was stopped goes on behind the last.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.corpus import FIXTURES, entries, given_beside
from benchmarks.corpus import source_of as corpus_source
from meshwright.launchers.editing.sites import sites_of
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import PlannerError
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.service.cli.launch_files import source_of
from meshwright.service.fixing.fixes import Fixes, FixSet, fixes_of
from meshwright.service.requests.launch_files import own_of_files
from tests.e2e.transcripts import FILE
from tests.launchers.cases import CASES as MEGATRON_CASES
from tests.launchers.plans import CASES
from tests.property.test_reading_every_launcher import MAIN

_GPU = "h100-sxm-80gb"  # no launch file names one


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """Launch files with what a user gives beside them."""

    name: str
    source: Source
    request: Mapping[str, Any]
    stated: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one of them."""

    kind: str  # fixed, no gain, not read, wrong
    why: str = ""
    found: Fixes | None = None


def stored() -> Iterator[StoredFile]:
    """Yield every stored launch file: the plans of the golden files, and files of public repositories."""
    for launcher, cases in {"megatron-lm": MEGATRON_CASES, **CASES}.items():
        for name, target in cases.items():
            files = export(target.plan, target.problem, launcher).files
            main = MAIN[launcher]
            source = Source(name=main, text=files[main], files=files)
            cluster = cluster_to_mapping(target.problem.cluster)
            yield StoredFile(
                name=f"{launcher}/{name}", source=source, request={"cluster": cluster}, stated={}
            )
    for entry in entries():
        held = corpus_source(entry, [FIXTURES])
        if held is not None and "reads" in entry:
            given = given_beside(entry)
            request: dict[str, Any] = {}
            if given.model is not None:
                request["model"] = model_to_mapping(given.model)
            stated = {"variables": given.variables, "values": given.values}
            name = f"{entry['repository']}/{entry['path']}"
            gpus, each = _gpus_of(held, given)
            group = {"gpu": _GPU, "gpus_per_node": each, "num_nodes": gpus // each}
            request["cluster"] = {"name": "stored", "groups": [group]}
            yield StoredFile(name=name, source=held, request=request, stated=stated)


def _gpus_of(source: Source, given: Overrides) -> tuple[int, int]:
    """Return the GPUs that a file starts on, and those of a node; else one node of 8."""
    try:
        found = read_launch_files(source, given)
    except PlannerError:
        return 8, 8
    gpus = given.num_gpus or found.configuration.num_gpus
    return gpus, found.gpus_per_node or (8 if gpus % 8 == 0 else gpus)


def outcome(one: StoredFile, *, most: int = 3, cpu_s: float = math.inf) -> Outcome:
    """Return what ``fix`` makes of launch files in so many seconds, held against the files themselves."""
    end_s = time.process_time() + cpu_s
    try:
        found = fixes_of(
            one.source,
            one.request,
            **one.stated,
            searched=False,
            most=most,
            should_stop=lambda: time.process_time() > end_s,
        )
    except PlannerError as fault:
        return Outcome(kind="not read", why=" ".join(str(fault).split())[:200])
    for chosen in found.sets:
        why = _not_read_back(one, chosen) or _changed_otherwise(one.source, chosen)
        if why:
            return Outcome(kind="wrong", why=f"{chosen.number} edits: {why}", found=found)
    return Outcome(kind="fixed" if found.sets else "no gain", found=found)


def _not_read_back(one: StoredFile, chosen: FixSet) -> str:
    """Return how the written files differ from what was priced; empty: they do not."""
    with TemporaryDirectory() as folder:
        texts = {**one.source.files, one.source.name: one.source.text, **chosen.files}
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, "utf-8")
        paths = [
            Path(folder) / one.source.name,
            *(Path(folder) / name for name in one.source.files if name != one.source.name),
        ]
        own = own_of_files(one.request, source_of(paths), **one.stated)
    if own.configuration != chosen.own.configuration:
        return "the written files read as another configuration"
    return "" if own.problem.workload == chosen.own.problem.workload else "they read as another training"


def _changed_otherwise(source: Source, chosen: FixSet) -> str:
    """Return a line that changed without a named argument; empty: there is none."""
    names = {change.name.lstrip("-").replace("-", "_") for edit in chosen.edits for change in edit}
    lines = {(change.file, change.line) for edit in chosen.edits for change in edit}
    for name, text in chosen.files.items():
        before = source.text if name == source.name else source.other(name) or ""
        old, new = before.splitlines(), text.splitlines()
        for kind, low, high, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            for line in () if kind == "equal" else range(low, high):
                near = any(file == name and abs(line + 1 - at) <= 1 for file, at in lines)
                if not near:
                    return f"{name}, line {line + 1} changed: {old[line][:80]}"
            del start, end
        kept = [(_plain(site.name), site.value) for site in sites_of(name, before)]
        now = [(_plain(site.name), site.value) for site in sites_of(name, text)]
        lost = Counter(kept) - Counter(now)
        values = {change.old for edit in chosen.edits for change in edit}
        other = [
            pair
            for pair in lost
            if pair[0].rpartition(".")[2] not in {one.rpartition(".")[2] for one in names}
            and pair[1] not in values
        ]
        if other:
            return f"{name} lost {other[0]}"
    return ""


def _plain(name: str) -> str:
    return name.lstrip("-+~").replace("-", "_")


_PAGE = Path(__file__).resolve().parent.parent / "docs" / "howto" / "fix.md"
_WALKS = (
    "train.sh --cluster dgx-h100 --num-nodes 8", "trl/train.sh --gpus 8xH100",
    "llama.toml --cluster dgx-h100 --num-nodes 1",
)  # fmt: skip


def _walks() -> int:
    """Time each walk of the page, from the script to the changed one, in a process of its own."""
    page = _PAGE.read_text("utf-8")
    with TemporaryDirectory() as folder:
        for file in FILE.finditer(page):
            path = Path(folder) / file["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file["body"], "utf-8")
        for walk in _WALKS:
            start = time.perf_counter()
            asked = [sys.executable, "-m", "meshwright", "fix", *walk.split(), "--in-place"]
            done = subprocess.run(asked, cwd=folder, capture_output=True, check=False)
            took_s = time.perf_counter() - start
            print(f"meshwright fix {walk:46}  {took_s:5.1f} s  exit code {done.returncode}", flush=True)
    return 0


def _spread(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Return files of all launchers and repositories by turns, so that a part of them shows each kind."""
    turns = Counter[str]()
    placed = list[tuple[int, StoredFile]]()
    for one in files:
        kind = one.name.partition("/")[0]
        turns[kind] += 1
        placed.append((turns[kind], one))
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])]


def _row(one: StoredFile, *, most: int, cpu_s: float) -> dict[str, Any]:
    start_s = time.process_time()
    seen = outcome(one, most=most, cpu_s=cpu_s)
    best = seen.found.recommended if seen.found else None
    return {
        "name": one.name,
        "kind": seen.kind,
        "sets": len(seen.found.sets) if seen.found else 0,
        "edits": best.number if best else 0,
        "gain": best.gain if best else 0.0,
        "cpu_s": round(time.process_time() - start_s, 1),
        "why": seen.why,
    }


def _said(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the rows of an earlier run by their names."""
    lines = path.read_text("utf-8").splitlines() if path is not None and path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def main(words: Sequence[str]) -> int:
    """Print a line for each file and the counts; 1 where one is wrong."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=fix", description=__doc__)
    parser.add_argument("--only", default="", help="files whose name has this in it")
    parser.add_argument("--most", type=int, default=3, help="edits of a set")
    parser.add_argument("--every", type=int, default=1, help="one of so many files")
    parser.add_argument("--budget", type=float, default=math.inf, help="CPU seconds for a file's edits")
    parser.add_argument("--results", type=Path, help="where rows go, and which files are done")
    parser.add_argument("--walks", action="store_true", help="time the walks of docs/howto/fix.md instead")
    asked = parser.parse_args(words)
    if asked.walks:
        return _walks()
    rows = _said(asked.results)
    files = [one for one in _spread(list(stored())) if asked.only in one.name][:: asked.every]
    for one in files:
        row = rows.get(one.name)
        if row is None:
            row = rows[one.name] = _row(one, most=asked.most, cpu_s=asked.budget)
            if asked.results is not None:
                with asked.results.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(row)}\n")
        gain = f"{row['edits']} edits, {-row['gain']:+.0%}" if row["edits"] else ""
        shown = f"{one.name[-58:]:58}  {row['kind']:8} {gain:16} {row['cpu_s']:6.1f} CPU-s  {row['why']}"
        print(shown.rstrip(), flush=True)
    counts = Counter(rows[one.name]["kind"] for one in files)
    print(f"{len(files)} files:", ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
