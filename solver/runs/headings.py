"""Headings of a table of runs as people write them: ``Seq len``, ``Step time (ms)``, ``tok/s/GPU``.

Columns of ``profiles/catalog/runs/columns.md`` keep their names. Any other heading is read without case,
signs and the unit in it; one that is none of these stays unchanged, and nothing reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

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
        "step_time_s": "step time|iter time|iteration time|time per iteration|"
        "time per step|time per iter|s it|s iter|s step|sec it|sec iter|sec step|s iteration|"
        "seconds per step|seconds per iteration|sec per step|sec per iter|s per step|s per iter",
        "peak_memory_gib": "peak memory|peak mem|max memory|max mem|memory",
        "tokens_per_s_per_gpu": "tokens s gpu|tok s gpu|tokens gpu s|tokens per second per gpu|"
        "tokens per s per gpu|tokens sec gpu|tps gpu",
        "tokens_per_s": "tokens s|tok s|tokens per second|tokens per s|tokens sec|tps|throughput tokens s",
        "samples_per_s": "samples s|samples sec|samples per s|samples per second|sequences s|"
        "sequences per second|train samples per second",
        "steps_per_s": "it s|its s|iter s|steps s|steps sec|steps per s|steps per second|"
        "iterations per second|train steps per second",
    }.items()
    for name in names.split("|")
}  # fmt: skip
_UNITS: Mapping[str, Mapping[str, float]] = {  # of a column's own unit
    "step_time_s": {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3},
    "peak_memory_gib": {"gib": 1.0, "gb": GB / GIB, "mib": MIB / GIB},
}
READ_HEADINGS = frozenset(_NAMES.values())
_MEASURED = ("tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "steps_per_s")
_PER_STEP: Mapping[str, Sequence[str]] = {  # what a step does of each, as a product of columns
    "tokens_per_s_per_gpu": ("seq_length", "global_batch_size"),
    "tokens_per_s": ("seq_length", "global_batch_size"), "samples_per_s": ("global_batch_size",),
    "steps_per_s": (),
}  # fmt: skip
_IN_CELLS: Mapping[str, Mapping[str, float]] = {  # of a number's cells; "4M" of a batch counts tokens
    **_UNITS,
    **{column: {"k": 1e3, "m": 1e6} for column in _MEASURED},
    **{column: {"k": 1024, "m": 1024**2} for column in ("seq_length", "num_gpus")},
    **{column: {} for column in ("global_batch_size", "micro_batch_size")},
}
_NUMBER = re.compile(r"([\d.,_]*\d)(?: ?([a-zA-Z]+))?")
_IN_GROUPS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_OF_A_STEP = re.compile(r"(?:step|it|iter|iteration)s?(?:[\s_]*[(\[{,]|_)[\s_]*(\w+)\W*")  # not iter/s
_SMALL = 0.1  # units above it have few before the comma: 9,125 s may be 9.125 s, 9,125 ms are not


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
    timed = _OF_A_STEP.fullmatch(heading.strip().lower())
    if timed is not None and timed[1] in _UNITS["step_time_s"]:
        return "step_time_s", _UNITS["step_time_s"][timed[1]]
    words = re.sub(r"(?:[^\w%]|_)+", " ", heading.lower()).strip()  # letters of any alphabet stay: µs
    if (column := _NAMES.get(words)) is not None:
        return column, 1.0
    name, _, unit = words.rpartition(" ")
    column = "step_time_s" if name == "step" else _NAMES.get(name)  # Step alone is its number
    if column is None or unit not in _UNITS.get(column, {}):
        return heading, 1.0
    return column, _UNITS[column][unit]


def _plain(column: str, cell: str, factor: float) -> str:
    """Return a cell as its column's number: 4k as 4096, 9.1 s as 9.1, 11,200 as 11200, or unchanged."""
    found, units = _NUMBER.fullmatch(cell.strip()), _IN_CELLS.get(column)
    if found is None or units is None:
        return cell
    unit = {"": factor, **units}.get((found[2] or "").lower())
    number = found[1].replace("_", "")
    grouped = _IN_GROUPS.fullmatch(number) is not None
    if unit is None or (grouped and column in _UNITS and unit > _SMALL):
        return cell
    try:
        value = float(Fraction(number.replace(",", "" if grouped else ".")))
    except (ValueError, OverflowError):
        return cell
    return f"{value * unit:.12g}"


def _step_time(row: Mapping[str, str]) -> dict[str, str]:
    """Return the time of a step that a stated speed means: what a step does by what a second does."""
    if row.get("step_time_s") or not (speeds := [name for name in _MEASURED if row.get(name)]):
        return {}
    try:
        done = prod(float(row[name]) for name in _PER_STEP[speeds[0]])
        gpus = float(row["num_gpus"]) if speeds[0] == "tokens_per_s_per_gpu" else 1.0
        return {"step_time_s": f"{done / (float(row[speeds[0]]) * gpus):.12g}"}
    except (KeyError, ValueError, ZeroDivisionError):
        return {}
