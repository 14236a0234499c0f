"""What an operator would take on ideal hardware, and the quantities its measured table is indexed by.

A table holds ``log2(measured seconds / roof seconds)``: the roof carries the steep dependence on
sizes, the table the slow one of efficiency, which a coarse grid interpolates well. Beyond the ends
of a table its edge's efficiency is kept, so the roof extrapolates (Williams, Waterman and Patterson
2009, "Roofline: an insightful visual performance model").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from profiles.log_grid import FloatArray

Quantities = tuple[FloatArray, ...]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The limits of the device a table was measured on."""

    flops: float  # dense peak at the table's precision; 0 where the operator computes nothing
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
    """A smooth maximum, the 4-norm: measured GEMMs round the ridge off about so much."""
    compute, memory = compute_s * compute_s, memory_s * memory_s
    return np.asarray(np.sqrt(np.sqrt(compute * compute + memory * memory)))


def _gemm_roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
    """``2 m n k`` operations against both inputs read and a 2-byte output written once."""
    m, n, k = arguments
    moved = (m + n) * k * roof.element_bytes + 2.0 * m * n
    return _joined_s(2.0 * m * n * k / roof.flops, moved / roof.bytes_per_s) + roof.fixed_s


def _attention_point(arguments: Quantities) -> Quantities:
    """Parallel work counts in heads of the whole batch; sharing of keys as heads per kv head."""
    batch, heads, kv_heads, seq_len, head_dim = arguments
    return seq_len, batch * heads, heads / kv_heads, head_dim


def _attention_roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
    """Causal: two products over half of the scores; queries, keys, values, output moved once."""
    batch, heads, kv_heads, seq_len, head_dim = arguments
    work = 2.0 * batch * heads * seq_len * seq_len * head_dim
    moved = 2.0 * roof.element_bytes * batch * seq_len * head_dim * (heads + kv_heads)
    return _joined_s(work / roof.flops, moved / roof.bytes_per_s) + roof.fixed_s


def _grouped_roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
    """A gated MLP of every local expert (three matrices), with permutation and activation by bytes."""
    rows, experts, hidden, ffn = arguments
    total = rows * experts
    weights = 3.0 * experts * hidden * ffn * roof.element_bytes
    moved = total * (hidden * (roof.element_bytes + 4.0) + ffn * (4.0 + 2.0 * roof.element_bytes))
    products = _joined_s(6.0 * total * hidden * ffn / roof.flops, weights / roof.bytes_per_s)
    return products + moved / roof.bytes_per_s + roof.fixed_s


def _memory_roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
    """Bytes read and written over the bandwidth."""
    return arguments[0] / roof.bytes_per_s + roof.fixed_s


def bus_bytes(collective: str, ranks: FloatArray, payload_bytes: FloatArray) -> FloatArray:
    """Bytes each rank's link carries: the bus-bandwidth convention of nccl-tests (PERFORMANCE.md).

    ``(n - 1) / n`` of the payload, twice for an all-reduce. The payload is the whole gathered or
    reduced buffer; of an all-to-all what one rank sends, its own share included.
    """
    share = (ranks - 1.0) / ranks * (2.0 if collective == "all_reduce" else 1.0)
    return np.asarray(share * payload_bytes)


def _collective_model(collective: str) -> OperatorModel:
    def roof_s(arguments: Quantities, roof: Roof) -> FloatArray:
        ranks, payload_bytes = arguments
        return bus_bytes(collective, ranks, payload_bytes) / roof.bytes_per_s + roof.fixed_s

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
        arguments=("moved_bytes",), axes=("moved_bytes",), point=tuple, roof_s=_memory_roof_s
    ),
} | {name: _collective_model(name) for name in COLLECTIVES}
