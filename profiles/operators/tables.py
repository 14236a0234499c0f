"""Measured seconds of operators by GPU type: small tables, interpolated, with their sources.

``catalog/operators/<gpu>.json`` holds one table per operator and precision, distilled from measured points
by ``benchmarks.catalog.aiconfigurator``. All times are those of a forward pass; the backward ratios are in
``catalog/operators/backward.json`` (see ``meshwright.profiles.operators.operators``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import ProfileError

# --------------------------------------------------------------------------------------------------
# Interpolation on a regular grid over the logarithms of positive quantities.


FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
_TOLERANCE = 1e-6  # of one step: how far beyond its last node an axis still counts as inside


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAxis:
    """Nodes at ``2^low, 2^(low + step), …``."""

    name: str
    low: float  # log2 of the first node
    step: float  # log2 of the ratio of neighbours
    count: int

    def position(self, quantity: FloatArray) -> FloatArray:
        """Return where quantities lie in units of nodes; outside of ``[0, count - 1]`` beyond the ends."""
        return np.asarray((np.log2(quantity) - self.low) / self.step)


def corners(
    axes: tuple[LogAxis, ...], point: tuple[FloatArray, ...]
) -> list[tuple[IndexArray, FloatArray]]:
    """Return the ``2^d`` nodes round each point, as flat indices of shape (n,), and their weights.

    Points beyond an end of an axis count as lying on that end.
    """
    sides = []
    for axis, quantity in zip(axes, point, strict=True):
        position = np.minimum(np.maximum(axis.position(quantity), 0.0), axis.count - 1.0)
        below = np.minimum(position.astype(np.intp), max(axis.count - 2, 0))
        share = position - below
        sides.append(((below, 1.0 - share), (np.minimum(below + 1, axis.count - 1), share)))
    found = list(sides[0])
    for axis, side in zip(axes[1:], sides[1:], strict=True):
        rows = [(index * axis.count, weight) for index, weight in found]
        found = [(first + node, weight * share) for first, weight in rows for node, share in side]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrid:
    """Values at the nodes of a regular logarithmic grid, multilinear between them."""

    axes: tuple[LogAxis, ...]
    values: FloatArray  # flat, the last axis fastest

    def at(self, point: tuple[FloatArray, ...]) -> FloatArray:
        """Interpolate at points of one array per axis, shape (n,); constant outside."""
        return np.asarray(
            sum(self.values.take(index) * weight for index, weight in corners(self.axes, point))
        )

    def outside(self, point: tuple[FloatArray, ...]) -> BoolArray:
        """Return whether each point lies beyond an end of any axis, shape (n,)."""
        beyond = np.zeros(np.broadcast_shapes(*(quantity.shape for quantity in point)), dtype=np.bool_)
        for axis, quantity in zip(self.axes, point, strict=True):
            position = axis.position(quantity)
            beyond |= (position < -_TOLERANCE) | (position > axis.count - 1 + _TOLERANCE)
        return beyond


# --------------------------------------------------------------------------------------------------
# What an operator would take on ideal hardware, and the quantities its measured table is indexed by.
#
# A table holds ``log2(measured seconds / roof seconds)``: the roof carries the steep dependence on sizes,
# the table the slow one of efficiency, which a coarse grid interpolates well. Beyond the ends of a table
# its edge's efficiency is kept, so the roof extrapolates (Williams, Waterman and Patterson 2009,
# "Roofline: an insightful visual performance model").


Quantities = tuple[FloatArray, ...]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The limits of the device a table was measured on."""

    # dense peak at the table's precision, or of each row; 0 where the operator computes nothing
    flops: FloatArray | float
    bytes_per_s: float  # of the memory; for collectives of the link, per GPU and direction
    fixed_s: float  # launch or latency
    element_bytes: float  # of one input element


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorModel:
    """The arguments of an operator, its roof, and the axes of its table."""

    arguments: tuple[str, ...]
    axes: tuple[str, ...]
    point: Callable[[Quantities], Quantities]  # arguments -> quantities along the axes
    roof_s: Callable[[Quantities, Roof], FloatArray]


def _joined_s(compute_s: FloatArray, memory_s: FloatArray) -> FloatArray:
    """Return a smooth maximum, the 4-norm: measured GEMMs round the ridge off about so much."""
    compute, memory = compute_s * compute_s, memory_s * memory_s
    return np.asarray(np.sqrt(np.sqrt(compute * compute + memory * memory)))


def _gemm_roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
    """Return ``2 m n k`` operations against both inputs read and a 2-byte output written once."""
    m, n, k = arguments
    moved = (m + n) * k * roof.element_bytes + 2.0 * m * n
    return _joined_s(2.0 * m * n * k / roof.flops, moved / roof.bytes_per_s) + roof.fixed_s


def _attention_point(arguments: Quantities) -> Quantities:
    """Return the axes of the table: heads of the whole batch, and heads per kv head."""
    batch, heads, kv_heads, seq_len, head_dim = arguments
    return seq_len, batch * heads, heads / kv_heads, head_dim


def _attention_roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
    """Return the roof of causal attention: two products over half of the scores; each tensor moved once."""
    batch, heads, kv_heads, seq_len, head_dim = arguments
    work = 2.0 * batch * heads * seq_len * seq_len * head_dim
    moved = 2.0 * roof.element_bytes * batch * seq_len * head_dim * (heads + kv_heads)
    return _joined_s(work / roof.flops, moved / roof.bytes_per_s) + roof.fixed_s


def _grouped_roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
    """Return the roof of all local experts' gated MLPs (three matrices), with permutation by bytes."""
    rows, experts, hidden, ffn = arguments
    total = rows * experts
    weights = 3.0 * experts * hidden * ffn * roof.element_bytes
    moved = total * (hidden * (roof.element_bytes + 4.0) + ffn * (4.0 + 2.0 * roof.element_bytes))
    products = _joined_s(6.0 * total * hidden * ffn / roof.flops, weights / roof.bytes_per_s)
    return products + moved / roof.bytes_per_s + roof.fixed_s


def _collective_model(collective: str) -> OperatorModel:
    """Return a collective with the bus bytes of nccl-tests (PERFORMANCE.md) at line rate as its roof.

    Each rank's link carries ``(n - 1) / n`` of the payload, twice that for an all-reduce. The payload is
    the whole gathered or reduced buffer; of an all-to-all what one rank sends, its own share included.
    """
    times = 2.0 if collective == "all_reduce" else 1.0

    def roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
        ranks, payload_bytes = arguments
        return (ranks - 1.0) / ranks * times * payload_bytes / roof.bytes_per_s + roof.fixed_s

    names = ("ranks", "payload_bytes")
    return OperatorModel(arguments=names, axes=names, point=tuple, roof_s=roof_s)


MODELS: Mapping[str, OperatorModel] = {
    "gemm": OperatorModel(
        arguments=("m", "n", "k"), axes=("m", "n", "k"), point=tuple, roof_s=_gemm_roof_s
    ),
    "attention_forward": OperatorModel(
        arguments=("batch", "heads", "kv_heads", "seq_len", "head_dim"),
        axes=("seq_len", "batch_heads", "heads_per_kv_head", "head_dim"),
        point=_attention_point,
        roof_s=_attention_roof_s,
    ),
    "grouped_mlp": OperatorModel(
        arguments=("rows_per_expert", "experts", "hidden", "ffn"),
        axes=("rows_per_expert", "experts", "hidden", "ffn"),
        point=tuple,
        roof_s=_grouped_roof_s,
    ),
    "memory_bound": OperatorModel(
        arguments=("moved_bytes",),
        axes=("moved_bytes",),
        point=tuple,
        roof_s=lambda arguments, roof: arguments[0] / roof.bytes_per_s + roof.fixed_s,
    ),
} | {name: _collective_model(name) for name in COLLECTIVES}

FOLDER = CATALOG / "operators"
ANY = "any"  # the precision of what does not depend on one
FORMAT = "meshwright-operator-tables-1"
VALUE_SCALE = 1000.0  # stored values are round(1000 * log2(measured / roof))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors of a table at measured points that its fit never saw."""

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

    def extrapolated(self, *arguments: ArrayLike) -> BoolArray:
        """Return whether the arguments lie beyond the measurements, so that only the roof is known."""
        arrays = tuple(np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in arguments)))
        return self.grid.outside(MODELS[self.operator].point(arrays))

    def roof_s(self, *arguments: FloatArray, roof: Roof | None = None) -> FloatArray:
        """Return seconds on ideal hardware: the measured GPU's, or another roof."""
        return MODELS[self.operator].roof_s(arguments, roof or self.roof)

    def slowdown(self, *arguments: FloatArray) -> FloatArray:
        """Return measured seconds over the roof's, for arguments of one shape (n,)."""
        return np.exp2(self.grid.at(MODELS[self.operator].point(arguments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTables:
    """All measured operators of one GPU type."""

    gpu: str
    source: Mapping[str, Any]
    tables: Mapping[tuple[str, str], OperatorTable]

    def find(self, operator: str, precision: str = "bf16") -> OperatorTable:
        """Return the table of an operator.

        Raises:
            ProfileError: that operator was not measured at that precision on this GPU.
        """
        table = self.tables.get((operator, precision))
        if table is None:
            raise ProfileError(f"{self.gpu}: no measured table of {operator[:40]} in {precision[:20]}")
        return table


@cache
def operator_table_names() -> tuple[str, ...]:
    """Return the GPU types that have measured operator tables."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "backward"))


@cache
def operator_tables_digest(gpu: str) -> str:
    """Return the first 12 hex digits of SHA-256 over the tables' file: equal tables, equal digests."""
    return hashlib.sha256((FOLDER / f"{gpu}.json").read_bytes()).hexdigest()[:12]


@cache
def load_operator_tables(gpu: str) -> OperatorTables:
    """Return the measured operators of a GPU type, by its catalog name.

    Raises:
        ProfileError: the type was not measured.
    """
    if gpu not in operator_table_names():
        raise ProfileError(
            f"no operator tables for {gpu[:60]}. Available: {', '.join(operator_table_names())}"
        )
    return tables_from_json(json.loads((FOLDER / f"{gpu}.json").read_text("utf-8")))


def tables_from_json(raw: Mapping[str, Any]) -> OperatorTables:
    """Return the tables of one file, as ``benchmarks.catalog.table_file`` writes it."""
    found = [_table(entry) for entry in raw["tables"]]
    tables = {(table.operator, table.precision): table for table in found}
    return OperatorTables(gpu=raw["gpu"], source=raw["source"], tables=tables)


def _table(raw: Mapping[str, Any]) -> OperatorTable:
    axes = tuple(LogAxis(**axis) for axis in raw["axes"])
    values = np.asarray(raw["values"], dtype=np.float64) / VALUE_SCALE
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
