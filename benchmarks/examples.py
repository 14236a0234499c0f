"""The examples of the fine-tuning launchers: how many are read, rightly refused, missed or wrong.

    python -m benchmarks.examples --files DIR [--write] [--list KIND] [--only TEXT]

DIR holds checkouts (DIR/OWNER/NAME) of ``REPOSITORIES`` at their commits. Launch files and the commands in
the docstrings of TRL's scripts are read as a user gives them, with the files that they name, and on 8 GPUs
where they state no number. No file is run, and none is stored here.

Read: priced as ``predict`` does it, with each plain number of the file as the file states it. Wrong: a
number differs. Rightly refused: for a reason in ``data/example_refusals.yaml``. Missed: for another one.
A file of a model that the catalog lacks is tried again with a config of its class, as its user is told
to: it is rightly refused only where it is read then, or refused rightly for another reason.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os.path import relpath
from pathlib import Path
from typing import Any

import yaml

from benchmarks.corpus import price_run
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.model import ModelSpec

DATA = Path(__file__).parent / "data"
TABLE = DATA / "examples.md"
REFUSALS = DATA / "example_refusals.yaml"
KINDS = ("read", "rightly refused", "missed", "wrong")
_GPUS = 8  # where neither the file nor the script that starts it states a number
# GPUs that a file states only by its sizes: shards of one mesh, or processes that it starts.
_RANKS = re.compile(
    rf"(\d+) does not divide {_GPUS}$|is (\d+) ranks; {_GPUS} start|starts (\d+) process(?:es)?;"
)
_ALONE = re.compile(r"(?:refuses|supported with) several (?:GPUs|ranks)")  # a file for one GPU
_SUFFIXES = (".yaml", ".yml", ".json", ".sh", ".slurm", ".sbatch")
_MOST_FILES = 8
_NAMED = re.compile(r"[\w.\-]+\.(?:json|ya?ml|sh|py)\b")
_START = re.compile(
    r"\s*(?:\w+=\S+ )*(?:accelerate launch|python3? \S+\.py|python3? -m trl|trl \w+|torchrun|deepspeed)\s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository with examples: the stored commit nearest to the release that Meshwright names."""

    name: str
    commit: str
    folders: tuple[str, ...]
    scripts: tuple[str, ...] = ()  # folders of programs with commands in their docstrings


REPOSITORIES = (
    Repository(
        name="huggingface/trl",
        commit="f2cd57710ae345ea6428ae95363267fcf38a3dc8",  # 1.10.0.dev0
        folders=("examples", "trl/accelerate_configs"),
        scripts=("examples/scripts", "trl/scripts"),
    ),
    Repository(
        name="axolotl-ai-cloud/axolotl",
        commit="067b021c8b87a9e5e380b9173c704cf7340e30f5",  # 0.18.0
        folders=("examples", "deepspeed_configs"),
    ),
    Repository(
        name="hiyouga/LLaMA-Factory",
        commit="7af909522a951e3ad9f022ea6f88b6755257eaa5",  # 0.9.5
        folders=("examples",),
    ),
    Repository(
        name="huggingface/accelerate",
        commit="16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",  # after 1.14.0
        folders=("examples",),
    ),
    Repository(
        name="deepspeedai/DeepSpeed",
        commit="edaa7221267243c7be7fb49c5d5f5c4fb97b4641",  # after 0.19.5
        folders=("examples",),
    ),
    Repository(
        name="deepspeedai/DeepSpeedExamples",
        commit="45b4b7156c8794a3452a5a7d03dbd8d797068569",
        folders=(".",),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A launch file, or a command of a docstring, with the files that it names."""

    repository: str
    path: str
    source: Source = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one example."""

    kind: str  # of KINDS
    why: str = ""


def examples_of(repository: Repository, folder: Path) -> Iterator[Example]:
    """Yield the examples of a checkout: files by their path, then commands by path and number."""
    root = folder / repository.name
    files = {path for one in repository.folders for path in (root / one).rglob("*") if path.is_file()}
    for path in sorted(files):
        if path.suffix in _SUFFIXES:
            text = path.read_text("utf-8", errors="replace")
            yield _example(repository, root, path, {path.name: text})
    for path in sorted(path for one in repository.scripts for path in (root / one).rglob("*.py")):
        for number, command in enumerate(commands_in(path.read_text("utf-8")), start=1):
            named = {f"{path.stem}-{number}.sh": f"#!/bin/bash\n{command}\n"}
            yield _example(repository, root, path, named, f"#{number}")


def _example(
    repository: Repository, root: Path, path: Path, named: Mapping[str, str], number: str = ""
) -> Example:
    ((name, text),) = named.items()
    beside = _beside(root, path, text)
    source = Source(
        name=name, text=text, files={**beside, name: text} if beside else {}, folder=str(path.parent)
    )
    return Example(repository=repository.name, path=f"{path.relative_to(root)}{number}", source=source)


def commands_in(text: str) -> list[str]:
    """Return the commands with options in the first docstring of a program that has any, one a line."""
    for docstring in re.findall(r'"""(.*?)"""', text, re.DOTALL):
        joined = re.sub(r"\s*\\\n\s*", " ", docstring)
        found = [one.strip() for one in joined.splitlines() if _START.match(one) and "--" in one]
        if found:
            return found
    return []


def _beside(root: Path, path: Path, text: str) -> dict[str, str]:
    """Return the files that a text names, and that these name: the nearest of each name."""
    found: dict[str, str] = {}
    queue = [(path, text)]
    while queue and len(found) < _MOST_FILES - 1:
        at, named = queue.pop(0)
        for name in dict.fromkeys(_NAMED.findall(named)):
            others = sorted(_by_name(root).get(name, ()), key=lambda one: (_apart(one, at), str(one)))
            if name.endswith(".py") and (at.parent / name).is_file():
                others = [at.parent / name]
            if name in found or name == path.name or not others or len(found) >= _MOST_FILES - 1:
                continue
            found[name] = others[0].read_text("utf-8", errors="replace")
            if not name.endswith(".py"):
                queue.append((others[0], found[name]))
    return found


def _apart(one: Path, other: Path) -> int:
    """Return the folders between two files."""
    return len(Path(relpath(one.parent, other.parent)).parts)


@cache
def _by_name(root: Path) -> Mapping[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in root.rglob("*"):
        if path.suffix in _SUFFIXES and path.is_file():
            found.setdefault(path.name, []).append(path)
    return found


_ASKED_FOR = re.compile(r"^/model: .*?(\S+/\S+) is not in the catalog")
_GIVEN = "it asks for its model's config.json, and is read with one of its class"


def outcome(example: Example, model: ModelSpec | None = None) -> Outcome:
    """What the reader and ``predict`` make of an example, with a model that is given next to it."""
    faults: Sequence[Any] = ()
    for attempt in range(3):
        overrides = Overrides(num_gpus=(None, _GPUS, _stated_ranks(faults))[attempt], model=model)
        try:
            found = read_launch_files(example.source, overrides)
            price_run(overrides, example.source, found)
        except InvalidProblemError as fault:
            faults = fault.errors
            continue
        other = differences(example.source, found)
        return Outcome(kind="wrong", why=other) if other else Outcome(kind="read")
    texts = [f"{one.pointer}: {one.message} (allowed: {one.allowed})" for one in faults]
    asked = next(filter(None, map(_ASKED_FOR.match, texts)), None)
    if model is None and asked and asked[1] in _refusals()["models"]:
        given = outcome(example, _model_of_class(asked[1]))
        return Outcome(kind="rightly refused", why=_GIVEN) if given.kind == "read" else given
    right = reason(example.path, texts)
    return Outcome(kind="rightly refused" if right else "missed", why=right or "; ".join(texts)[:300])


def _stated_ranks(faults: Sequence[Any]) -> int:
    """Return the GPUs that a fault says a file is for; else the usual number."""
    said = "; ".join(one.message for one in faults)
    if _ALONE.search(said):
        return 1
    found = _RANKS.search(said)
    return int(next(filter(None, found.groups()))) if found else _GPUS


@cache
def _model_of_class(name: str) -> ModelSpec:
    return model_from_config(_refusals()["models"][name], name=name.rpartition("/")[2])


@cache
def _refusals() -> Mapping[str, Mapping[str, Any]]:
    raw: Mapping[str, Mapping[str, Any]] = yaml.safe_load(REFUSALS.read_text("utf-8"))
    return raw


def reason(path: str, faults: Sequence[str]) -> str:
    """Return why a file is rightly refused; empty where its launcher runs it."""
    tables = _refusals()
    for texts, table in (([path], tables["paths"]), (faults, tables["faults"])):
        for why, patterns in table.items():
            if any(re.search(pattern, text) for pattern in patterns for text in texts):
                return why
    return ""


# Numbers of a file that no other one of its values changes, and where they are read.
_PLAIN = {
    "per_device_train_batch_size": "micro_batch_size",
    "micro_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "num_microbatches",
    "cutoff_len": "seq_length",
    "sequence_len": "seq_length",
    "max_length": "seq_length",
    "lora_rank": "lora_rank",
    "lora_r": "lora_rank",
    "tensor_model_parallel_size": "tensor_parallel_size",
    "pipeline_model_parallel_size": "pipeline_parallel_size",
    "expert_model_parallel_size": "expert_parallel_size",
    "tensor_parallel_size": "tensor_parallel_size",
    "context_parallel_size": "context_parallel_size",
}


def differences(source: Source, found: LaunchFile) -> str:
    """Return the plain numbers of a file that were read otherwise; no reader parses them here."""
    said = _said(source)
    other = []
    for name, own in _PLAIN.items():
        read = getattr(found.configuration, own, None)
        read = getattr(found.workload, own, None) if read is None else read
        if name in said and said[name] != read:
            other.append(f"{name} is {said[name]}, read as {own} {read}")
    return "; ".join(other)


def _said(source: Source) -> dict[str, int]:
    """Return the whole numbers that a YAML file or the options of a command state."""
    if source.name.endswith((".yaml", ".yml")):
        raw = yaml.load(source.text, Loader=yaml.BaseLoader)  # noqa: S506 - builds text alone
        pairs = [(key, value) for key, value in raw.items() if isinstance(value, str)]
    else:
        pairs = re.findall(r"--(\w+)[ =]+(\d+)\b", source.text)
    whole = {key: int(value) for key, value in pairs if value.isdecimal()}
    adapted = {"lora_rank", "lora_r"} & whole.keys()
    uses = "use_peft" in source.text or re.search(
        r"^(?:adapter|finetuning_type):[ \t]*\w*lora", source.text, re.MULTILINE
    )
    return {key: value for key, value in whole.items() if key not in adapted or uses}


def table(counts: Mapping[str, Counter[str]]) -> str:
    """Return the counts as a table of Markdown, a row a repository."""
    lines = [
        "# Examples of the fine-tuning launchers, read",
        "",
        'Written by `make bench ARGS="examples --files DIR --write"`. Its source says what each column is.',
        "",
        "| repository | commit | examples | " + " | ".join(KINDS) + " |",
        "|---|---|---:|" + "---:|" * len(KINDS),
    ]
    for one in REPOSITORIES:
        if one.name in counts:
            own = counts[one.name]
            cells = (str(own[kind]) for kind in KINDS)
            lines.append(f"| {one.name} | {one.commit[:8]} | {own.total()} | {' | '.join(cells)} |")
    total = sum(counts.values(), Counter[str]())
    cells = (str(total[kind]) for kind in KINDS)
    lines.append(f"| all | | {total.total()} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Print the table; 1 where a file is read wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=Path, required=True, help="a folder of checkouts, OWNER/NAME")
    parser.add_argument("--only", default="", help="examples whose repository and path contain this text")
    parser.add_argument("--list", choices=KINDS, action="append", default=[], help="name those, and why")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    asked = parser.parse_args(words)
    counts: dict[str, Counter[str]] = {}
    for repository in REPOSITORIES:
        for example in examples_of(repository, asked.files):
            if asked.only in f"{example.repository}/{example.path}":
                found = outcome(example)
                counts.setdefault(repository.name, Counter())[found.kind] += 1
                if found.kind in asked.list:
                    print(f"{found.kind}: {example.repository}: {example.path}: {found.why}")
    text = table(counts)
    print(text, end="")
    if asked.write:
        TABLE.write_text(text, "utf-8")
    return int(any(one["wrong"] for one in counts.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
