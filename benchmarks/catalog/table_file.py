"""Writes the operator tables of one GPU type as JSON that people can read and compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from meshwright.profiles.operators.tables import FORMAT, MODELS, VALUE_SCALE, OperatorTable

_UNITS = (
    f"seconds, bytes, FLOP; values: {VALUE_SCALE:g} * log2(measured / roof), last axis fastest; "
    "axes: log2 of the first node, log2 of the ratio of neighbours, number of nodes"
)


def written_tables(gpu: str, source: Mapping[str, str], tables: Sequence[OperatorTable]) -> str:
    """A header, then one field a line; the long lists of a table in one line each."""
    content = {"format": FORMAT, "gpu": gpu, "source": source, "units": _UNITS, "tables": []}
    head = json.dumps(content, indent=1, ensure_ascii=False)
    body = ",\n".join(
        " {" + ",\n  ".join(f"{json.dumps(key)}: {_compact(value)}" for key, value in _entry(table)) + "}"
        for table in tables
    )
    return head.replace('"tables": []', f'"tables": [\n{body}\n ]') + "\n"


def _entry(table: OperatorTable) -> list[tuple[str, Any]]:
    return [
        ("operator", table.operator),
        ("precision", table.precision),
        ("library", table.library),
        ("arguments", MODELS[table.operator].arguments),
        ("roof", asdict(table.roof)),
        ("axes", [asdict(axis) for axis in table.grid.axes]),
        ("held_out", asdict(table.held_out)),
        ("values", np.round(table.grid.values * VALUE_SCALE).astype(int).tolist()),
    ]


def _compact(value: object) -> str:
    """JSON without spaces; whole numbers without a decimal point."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace(".0,", ",").replace(".0]", "]").replace(".0}", "}")
