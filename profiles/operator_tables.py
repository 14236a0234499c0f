"""Measured seconds of operators by GPU type: small tables, interpolated, with their sources.

``catalog/operators/<gpu>.json`` holds one table per operator and precision, distilled from measured
points by ``profiles.importers.aiconfigurator``. All times are those of a forward pass; the backward
ratios stand in ``catalog/operators/backward.json`` (see ``profiles.backward_ratios``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from profiles.catalog import CATALOG
from profiles.errors import ProfileError
from profiles.log_grid import BoolArray, FloatArray, LogAxis, LogGrid
from profiles.operator_models import MODELS, Quantities, Roof, bus_bytes

FOLDER = CATALOG / "operators"
ANY = "any"  # the precision of what does not depend on one
FORMAT = "meshwright-operator-tables-1"
VALUE_SCALE = 1000.0  # stored values are round(1000 * log2(measured / roof))
_CHUNK = 16_384  # rows worked on at a time, so that intermediate arrays stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """How well a table reproduces measured points that its fit never saw."""

    count: int
    median: float  # of |predicted / measured - 1|
    p90: float
    samples: tuple[tuple[float, ...], ...]  # some of those points: the arguments, then seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """One operator at one precision on one GPU type."""

    operator: str
    precision: str
    library: str  # what was measured: framework, version, kernel
    roof: Roof
    grid: LogGrid
    held_out: HeldOut

    def seconds(self, *arguments: ArrayLike) -> FloatArray:
        """Seconds for arguments in the operator's order (``MODELS``), broadcast against each other."""
        arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in arguments))
        flat = [array.ravel() for array in arrays]
        parts = [
            self._seconds(tuple(array[start : start + _CHUNK] for array in flat))
            for start in range(0, max(flat[0].size, 1), _CHUNK)
        ]
        return np.concatenate(parts).reshape(arrays[0].shape)

    def extrapolated(self, *arguments: ArrayLike) -> BoolArray:
        """Whether the arguments lie beyond what was measured, so that only the roof is known there."""
        arrays = tuple(np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in arguments)))
        return self.grid.outside(MODELS[self.operator].point(arrays))

    def roof_s(self, *arguments: FloatArray, roof: Roof | None = None) -> FloatArray:
        """Seconds on ideal hardware: the measured GPU's, or another roof."""
        return MODELS[self.operator].roof_s(arguments, roof or self.roof)

    def slowdown(self, *arguments: FloatArray) -> FloatArray:
        """Measured seconds over the roof's, for arguments of one shape (n,)."""
        return np.exp2(self.grid.at(MODELS[self.operator].point(arguments)))

    def _seconds(self, arguments: Quantities) -> FloatArray:
        return self.roof_s(*arguments) * self.slowdown(*arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTables:
    """All measured operators of one GPU type."""

    gpu: str
    source: Mapping[str, Any]
    tables: Mapping[tuple[str, str], OperatorTable]

    def find(self, operator: str, precision: str = "bf16") -> OperatorTable:
        """The table of an operator.

        Raises:
            ProfileError: nobody measured that operator at that precision on this GPU.
        """
        table = self.tables.get((operator, precision))
        if table is None:
            raise ProfileError(f"{self.gpu}: no measured table of {operator[:40]} in {precision[:20]}")
        return table


def gemm_s(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, *, tables: OperatorTables, precision: str = "bf16"
) -> FloatArray:
    """Seconds of a (m, k) by (k, n) product, weights stored (n, k) as in a forward pass.

    In fp8 the product alone: casts of its inputs are memory-bound operators of their own.
    """
    return tables.find("gemm", precision).seconds(m, n, k)


def attention_forward_s(
    batch: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    seq_len: ArrayLike,
    *,
    head_dim: ArrayLike,
    tables: OperatorTables,
) -> FloatArray:
    """Seconds of causal flash attention over whole sequences, forward, in bf16."""
    return tables.find("attention_forward").seconds(batch, heads, kv_heads, seq_len, head_dim)


def grouped_mlp_s(
    rows_per_expert: ArrayLike,
    experts: ArrayLike,
    hidden: ArrayLike,
    ffn: ArrayLike,
    *,
    tables: OperatorTables,
    precision: str = "bf16",
) -> FloatArray:
    """Seconds of the gated MLPs of one rank's experts under an even load, forward.

    Permutation, activation and the weighted sum are included; in fp8 the casts too.

    Args:
        rows_per_expert: tokens that reach each expert of the rank.
        experts: experts of the rank.
        hidden: model width.
        ffn: width of one expert on the rank (its tensor-parallel share).
        tables: the GPU's tables.
        precision: bf16 or fp8.
    """
    return tables.find("grouped_mlp", precision).seconds(rows_per_expert, experts, hidden, ffn)


def memory_bound_s(moved_bytes: ArrayLike, *, tables: OperatorTables) -> FloatArray:
    """Seconds of an element-wise kernel by the bytes it reads and writes (measured: the fp8 cast)."""
    return tables.find("memory_bound", ANY).seconds(moved_bytes)


def collective_s(
    collective: str, ranks: ArrayLike, payload_bytes: ArrayLike, *, tables: OperatorTables
) -> FloatArray:
    """Seconds of an NCCL collective among GPUs of one node.

    Args:
        collective: all_reduce, all_gather, reduce_scatter or all_to_all.
        ranks: 2 or more.
        payload_bytes: the whole gathered or reduced buffer; of an all-to-all what one rank sends.
        tables: the GPU's tables.
    """
    return tables.find(collective, ANY).seconds(ranks, payload_bytes)


def bus_bytes_per_s(
    collective: str, ranks: ArrayLike, payload_bytes: ArrayLike, *, tables: OperatorTables
) -> FloatArray:
    """Bus bandwidth in the convention of nccl-tests, from ``collective_s``."""
    sizes = np.asarray(ranks, dtype=np.float64), np.asarray(payload_bytes, dtype=np.float64)
    taken = collective_s(collective, *sizes, tables=tables)
    return np.asarray(bus_bytes(collective, *sizes) / taken)


@cache
def operator_table_names() -> tuple[str, ...]:
    """The GPU types that have measured operator tables."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "backward"))


@cache
def operator_tables_digest(gpu: str) -> str:
    """First 12 hex digits of SHA-256 over the tables' file: equal tables, equal digests."""
    return hashlib.sha256((FOLDER / f"{gpu}.json").read_bytes()).hexdigest()[:12]


@cache
def load_operator_tables(gpu: str) -> OperatorTables:
    """The measured operators of a GPU type, by its catalog name.

    Raises:
        ProfileError: the type was not measured, or its file is broken.
    """
    if gpu not in operator_table_names():
        raise ProfileError(
            f"no operator tables of {gpu[:60]}; there are {', '.join(operator_table_names())}"
        )
    try:
        return tables_from_json(json.loads((FOLDER / f"{gpu}.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise ProfileError(f"operator tables of {gpu} cannot be read") from error


def tables_from_json(raw: Mapping[str, Any]) -> OperatorTables:
    """The tables of one file.

    Raises:
        ProfileError: another format, a missing field, or a table whose size does not fit its axes.
    """
    if raw.get("format") != FORMAT:
        raise ProfileError(f"operator tables are not of the format {FORMAT}")
    try:
        found = [_table(entry) for entry in raw["tables"]]
        tables = {(table.operator, table.precision): table for table in found}
        return OperatorTables(gpu=str(raw["gpu"]), source=raw["source"], tables=tables)
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"operator tables: {type(error).__name__} at {error}") from error


def _table(raw: Mapping[str, Any]) -> OperatorTable:
    axes = tuple(LogAxis(**axis) for axis in raw["axes"])
    values = np.asarray(raw["values"], dtype=np.float64) / VALUE_SCALE
    model = MODELS[raw["operator"]]
    if tuple(axis.name for axis in axes) != model.axes:
        raise ProfileError(f"operator tables: axes of {raw['operator']} are not {', '.join(model.axes)}")
    if values.shape != (int(np.prod([axis.count for axis in axes])),):
        raise ProfileError(f"operator tables: the values of {raw['operator']} do not fill its axes")
    held_out = raw["held_out"]
    samples = tuple(tuple(float(x) for x in sample) for sample in held_out["samples"])
    return OperatorTable(
        operator=raw["operator"],
        precision=raw["precision"],
        library=raw["library"],
        roof=Roof(**raw["roof"]),
        grid=LogGrid(axes=axes, values=values),
        held_out=HeldOut(**(held_out | {"samples": samples})),
    )
