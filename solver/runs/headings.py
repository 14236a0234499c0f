"""Headings of a table of runs as people write them: ``Seq len``, ``Step time (ms)``, ``tok/s/GPU``.

Columns of ``profiles/catalog/runs/columns.md`` keep their names. Any other heading is read without case,
signs and the unit in it; one that is none of these stays unchanged, and nothing reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from meshwright.profiles.units import GB, GIB, MIB

_NAMES: Mapping[str, str] = {
    name: column
    for column, names in {
        "model": "model|model name",
        "gpu": "gpu|gpu type|gpu model|gpu name|accelerator|hardware|device",
        "num_gpus": "gpus|n gpus|num gpus|no of gpus|number of gpus|gpu count|total gpus|world size|chips",
        "gpus_per_node": "gpus per node|gpus node",
        "seq_length": "seq|seq len|seqlen|sequence|sequence length|seq length|context|context length|ctx",
        "tensor_parallel_size": "tp|tp size|tensor parallel|tensor parallelism|tensor model parallel size",
        "pipeline_parallel_size": "pp|pp size|pipeline parallel|pipeline parallelism|"
        "pipeline model parallel size",
        "context_parallel_size": "cp|cp size|context parallel|context parallelism",
        "data_parallel_size": "dp|dp size|data parallel|data parallelism",
        "expert_parallel_size": "ep|ep size|expert parallel|expert parallelism|expert model parallel size",
        "virtual_pipeline_size": "vp|vpp|virtual pipeline",
        "micro_batch_size": "mbs|micro bs|micro batch|micro batch size|microbatch|microbatch size",
        "global_batch_size": "gbs|global bs|global batch|global batch size|total batch size|batch size",
        "zero_stage": "zero|zero stage",
        "precision": "precision|dtype",
        "run_id": "run|run id",
        "step_time_s": "step time|step|iter time|iteration time|time per iteration|"
        "time per step|time per iter",
        "peak_memory_gib": "peak memory|peak mem|max memory|max mem|memory",
        "tokens_per_s_per_gpu": "tokens s gpu|tok s gpu|tokens gpu s|tokens per second per gpu|"
        "tokens per s per gpu|tokens sec gpu|tps gpu",
        "tokens_per_s": "tokens s|tok s|tokens per second|tokens per s|tokens sec|tps|throughput tokens s",
    }.items()
    for name in names.split("|")
}  # fmt: skip
_UNITS: Mapping[str, Mapping[str, float]] = {  # of a column's own unit
    "step_time_s": {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3},
    "peak_memory_gib": {"gib": 1.0, "gb": GB / GIB, "mib": MIB / GIB},
}
_THOUSANDS = {"k": 1024, "m": 1024**2}  # of lengths; throughputs count by thousands
_NUMBER = re.compile(r"([\d.,_]*\d)(?: ?([a-zA-Z]+))?")
_COUNTS = frozenset({"seq_length", "num_gpus", "global_batch_size", "micro_batch_size"})
_MEASURED = ("tokens_per_s_per_gpu", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class Headings:
    """A table's headings by the columns that they are."""

    columns: Mapping[str, tuple[str, float]]  # of each heading: its column, and the factor of its unit

    @property
    def are_columns(self) -> bool:
        """Return whether every heading is a column's name already."""
        return all(heading == column for heading, (column, _) in self.columns.items())

    def row(self, cells: Mapping[str, str]) -> Mapping[str, str]:
        """Return a row under the columns' names and units; a speed alone gives the time of a step."""
        if self.are_columns:
            return cells
        row = dict[str, str]()
        for heading, (column, factor) in self.columns.items():
            cell = cells.get(heading) or ""
            row[column] = cell if heading == column else _plain(column, cell, factor)
        return {**row, **_step_time(row)}


def headings_of(written: Sequence[str]) -> Headings:
    """Return which column each heading is, and the factor of the unit in it."""
    return Headings({heading: _column_of(heading) for heading in written})


def _column_of(heading: str) -> tuple[str, float]:
    words = re.sub(r"[^a-z0-9]+", " ", heading.lower().replace("#", " ")).strip()
    if (column := _NAMES.get(words)) is not None:
        return column, 1.0
    name, _, unit = words.rpartition(" ")
    column = _NAMES.get(name)
    if column is None or unit not in _UNITS.get(column, {}):
        return heading, 1.0
    return column, _UNITS[column][unit]


def _plain(column: str, cell: str, factor: float) -> str:
    """Return a cell as its column's number: 4k as 4096, 9.1 s as 9.1, 11,200 as 11200, or unchanged."""
    found = _NUMBER.fullmatch(cell.strip())
    if found is None or column not in {*_UNITS, *_COUNTS, *_MEASURED}:
        return cell
    unit = (found[2] or "").lower()
    thousands = Fraction(_THOUSANDS.get(unit, 1)) if column in _COUNTS else Fraction(1)
    units = {**_UNITS.get(column, {}), "": factor}
    if unit not in units and unit not in _THOUSANDS:
        return cell
    number = found[1].replace("_", "")
    number = number.replace(",", "" if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", number) else ".")
    try:
        value = Fraction(number) * thousands
    except ValueError:
        return cell
    return f"{float(value) * units.get(unit, 1.0):.12g}"


def _step_time(row: Mapping[str, str]) -> dict[str, str]:
    """Return the time of a step that a stated speed means: tokens of a step by tokens in a second."""
    if row.get("step_time_s") or not (speeds := [name for name in _MEASURED if row.get(name)]):
        return {}
    try:
        tokens = float(row["seq_length"]) * float(row["global_batch_size"])
        gpus = float(row["num_gpus"]) if speeds[0] == "tokens_per_s_per_gpu" else 1.0
        return {"step_time_s": f"{tokens / (float(row[speeds[0]]) * gpus):.12g}"}
    except (KeyError, ValueError, ZeroDivisionError):
        return {}
