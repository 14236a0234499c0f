"""Launch files that people wrote, and what the reader makes of them: three counts.

``benchmarks/data/launch_corpus.json`` lists them by repository, path and commit, with what each must read
as (said by a person who read the file with the launcher's rules, never by this reader), or why it must be
refused. Files among the fixtures are at hand; the others are looked for in a folder of checkouts (``--files
DIR``: DIR/OWNER/NAME/PATH), or fetched by their commit with ``--download``. Each counts only with its
checksum, and no file is ever run.

Right: sizes, batch, sequence and model as listed, and priced as ``predict`` does it. Wrong: read otherwise,
or read where the launcher would refuse. Missed: refused, by the reader or by ``predict``, although the
launcher runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.service.cli.costs import profile_for
from meshwright.service.requests.launch_files import own_of_files
from meshwright.solver.predict import predict

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ROOT / "benchmarks" / "data" / "launch_corpus.json"
FIXTURES = ROOT / "tests" / "fixtures" / "launch_corpus"
FETCHED = ROOT / "out" / "corpus"
LEAST_RIGHT = 0.85  # of the files that the launcher runs
_SIZES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads", "vocab_size",
)  # fmt: skip
_RAW = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one file."""

    name: str
    kind: str  # right, missed, wrong, rightly refused, absent
    why: str = ""


def entries() -> list[Mapping[str, object]]:
    """The listed files."""
    found: list[Mapping[str, object]] = json.loads(MANIFEST.read_text("utf-8"))["files"]
    return found


def source_of(entry: Mapping[str, object], folders: Sequence[Path]) -> Source | None:
    """The file with those beside it where the folders hold them, unchanged; None elsewhere."""
    texts = {path: _text_of(entry, path, checksum, folders) for path, checksum in _files_of(entry).items()}
    files = {Path(path).name: text for path, text in texts.items() if text is not None}
    name = Path(str(entry["path"])).name
    if len(files) < len(texts):
        return None
    return Source(name=name, text=files[name], files=files if len(files) > 1 else {})


def _files_of(entry: Mapping[str, object]) -> dict[str, str]:
    """Checksums of the file and of those that a user gives beside it, by path."""
    beside = entry.get("beside")
    return {str(entry["path"]): str(entry["sha256"]), **(beside if isinstance(beside, dict) else {})}


def _text_of(entry: Mapping[str, object], path: str, checksum: str, folders: Sequence[Path]) -> str | None:
    for folder in folders:
        file = folder / str(entry["repository"]) / path
        if file.is_file():
            data = file.read_bytes()
            if hashlib.sha256(data).hexdigest() == checksum:
                return data.decode("utf-8")
    return None


def outcome(entry: Mapping[str, object], source: Source | None) -> Outcome:
    """What the reader makes of a file, held against its line."""
    name = f"{entry['repository']}: {entry['path']}"
    if source is None:
        return Outcome(name=name, kind="absent")
    expected = entry.get("reads")
    try:
        found = read_launch_files(source, given_beside(entry))
    except InvalidProblemError as fault:
        kind = "rightly refused" if expected is None else "missed"
        return Outcome(name=name, kind=kind, why=str(fault)[:300])
    if not isinstance(expected, dict):
        return Outcome(name=name, kind="wrong", why=f"read, but {entry['refused']}")
    said = _said(found)
    other = {key: (value, said.get(key)) for key, value in expected.items() if said.get(key) != value}
    if other:
        differences = "; ".join(f"{key} is {value}, read as {was}" for key, (value, was) in other.items())
        return Outcome(name=name, kind="wrong", why=differences)
    try:
        price_run(given_beside(entry), source, found)
    except InvalidProblemError as fault:
        return Outcome(name=name, kind="missed", why=f"predict: {str(fault)[:300]}")
    return Outcome(name=name, kind="right")


_GPU = "h100-sxm-80gb"  # no launch file names one


def price_run(overrides: Overrides, source: Source, found: LaunchFile) -> None:
    """Price the run on as many GPUs as it has.

    Raises:
        InvalidProblemError: ``predict`` refuses it.
    """
    gpus = found.configuration.num_gpus
    each = found.gpus_per_node or (8 if gpus % 8 == 0 else gpus)
    group = {"gpu": _GPU, "gpus_per_node": each, "num_nodes": gpus // each}
    request: dict[str, object] = {"cluster": {"name": "corpus", "groups": [group]}}
    if overrides.model is not None:
        request["model"] = model_to_mapping(overrides.model)
    own = own_of_files(request, source, variables=overrides.variables, values=overrides.values)
    predict(own.problem, profile_for(own.problem, None), own.configuration)


def given_beside(entry: Mapping[str, object]) -> Overrides:
    """Return what a user gives next to the file."""
    given = entry.get("given")
    given = given if isinstance(given, dict) else {}
    return Overrides(
        model=find_model(given["model"]) if "model" in given else None,
        num_gpus=given.get("num_gpus"),
        values=given.get("set", {}),
        variables=given.get("var", {}),
    )


def _said(found: LaunchFile) -> dict[str, object]:
    """All that a line may ask for."""
    model, run = found.model, {**asdict(found.configuration), **asdict(found.workload)}
    return {
        **{key: list(one) if isinstance(one, tuple) else one for key, one in run.items()},
        **{name: getattr(model, name) for name in _SIZES},
        "num_nodes": found.num_nodes,
        "gpus_per_node": found.gpus_per_node,
        "model": model.name,
        "num_experts": model.moe.num_experts if model.moe else None,
    }


def download(entry: Mapping[str, object]) -> None:
    """Fetch a file and those beside it by their commit, for the eyes of this benchmark alone."""
    for path in _files_of(entry):
        file = FETCHED / str(entry["repository"]) / path
        url = _RAW.format_map({**entry, "path": path})
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - https, of a fixed host
            data = answer.read(1_000_000)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def main(words: Sequence[str]) -> int:
    """Print the counts; 1 where a file is read wrong, or too few of them right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=Path, action="append", default=[], help="a folder of checkouts")
    parser.add_argument("--download", action="store_true", help="fetch what is not at hand, by commit")
    parser.add_argument("--list", action="store_true", help="every file that is not right, and why")
    asked = parser.parse_args(words)
    folders = [FIXTURES, *asked.files, FETCHED]
    listed = entries()
    for entry in listed if asked.download else ():
        if source_of(entry, folders) is None:
            download(entry)
    found = [outcome(entry, source_of(entry, folders)) for entry in listed]
    counts = Counter(one.kind for one in found)
    at_hand = [entry for one, entry in zip(found, listed, strict=True) if one.kind != "absent"]
    runs = sum("reads" in entry for entry in at_hand)
    repositories = len({entry["repository"] for entry in listed})
    print(f"{len(listed)} launch files of {repositories} repositories, {counts['absent']} not at hand")
    print(f"read right:       {counts['right']} of {runs} that the launcher runs")
    print(f"rightly refused:  {counts['rightly refused']} of {len(at_hand) - runs} that must be refused")
    print(f"read wrong:       {counts['wrong']}")
    if asked.list:
        for one in found:
            if one.kind not in ("right", "absent"):
                print(f"  {one.kind}: {one.name}: {one.why}")
    return int(counts["wrong"] > 0 or counts["right"] < LEAST_RIGHT * runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
