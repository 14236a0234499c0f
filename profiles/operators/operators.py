"""Seconds of operators on one GPU: GEMM, attention, and operators bound by memory bandwidth.

All functions take arrays (or scalars) and broadcast. The GEMM formula is a roofline with a ceiling that
falls for small sides; its constants per GPU come from measured tables (see
``catalog/calibration/operators.yaml``), never from a maximum achievable rate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.library import find_gpu
from meshwright.profiles.operators.tables import operator_table_names, operator_tables_digest

# --------------------------------------------------------------------------------------------------
# How long attention's backward pass takes, as a multiple of its forward pass.
#
# ``catalog/operators/backward.json`` is made by ``benchmarks.foreign.simumax`` from measured
# layers.


_FILE = CATALOG / "operators" / "backward.json"


def attention_backward_ratio(gpu: GpuSpec) -> float:
    """Return the median on that GPU or architecture, or else the geometric mean of all measured."""
    medians = _attention_medians()
    if gpu.slug in medians:
        return medians[gpu.slug]
    alike = [value for slug, value in medians.items() if find_gpu(slug).architecture == gpu.architecture]
    return float(np.exp(np.mean(np.log(alike or list(medians.values())))))


@cache
def _attention_medians() -> Mapping[str, float]:
    return {
        gpu: float(ratio["median"])
        for gpu, ratios in json.loads(_FILE.read_text("utf-8"))["gpus"].items()
        for ratio in ratios
        if ratio["operator"] == "attention"
    }


FloatArray = NDArray[np.float64]
_WIDE = 2.0  # bytes of an element
_SHARES = CATALOG / "calibration" / "operators.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOperators:
    """The shares of its data sheet's figures that one GPU type reaches."""

    gemm: Mapping[str, float]  # share of the dense peak of a large GEMM, by precision
    gemm_backward: float  # rate of the backward pass's two products over the forward's
    gemm_m0: float  # rows at which half the rate is reached
    gemm_n0: float  # columns at which half the rate is reached
    gemm_k0: float  # inner length at which half the rate is reached
    narrow_k0: float  # the same of elements of one byte, half as long of those of two
    grouped_m0: (
        float  # rows that each expert of a grouped GEMM needs beyond a plain one's for half the rate
    )
    launch_s: float  # of one kernel
    flash: float  # share of the dense bf16 peak of a long causal flash attention, forward
    flash_s0: float  # tokens at which half the rate is reached
    attention_backward: float  # seconds of the backward pass of attention over the forward's
    hbm: float  # share of the data sheet's memory bandwidth
    source: str
    measured: bool  # False: taken from the nearest architecture
    host: float = 1.0  # seconds that its usual host takes to launch kernels over a DGX A100's
    tables: str = ""  # the GPU with the operator tables to use; empty: only the formulas above
    tables_digest: str = ""


def gemm_s(
    m: FloatArray | float,
    n: FloatArray | float,
    k: FloatArray | float,
    *,
    operators: GpuOperators,
    flops: FloatArray | float,
    bytes_per_s: float,
    element_bytes: float = 2.0,
) -> FloatArray:
    """Return the seconds of one (m, k) by (k, n) product.

    ``t = ((2 m n k / rate)^4 + (bytes / bandwidth)^4)^(1/4) + launch`` with
    ``rate = flops * m / (m + m0) * n / (n + n0) * k / (k + k0)``: the saturating efficiency that
    fits the measured operator tables within 6-10 % (bf16), joined smoothly to the memory roof.

    Args:
        m: rows of the output.
        n: columns of the output.
        k: inner length.
        operators: half-rate lengths and launch time.
        flops: rate of a large product in FLOP/s, efficiency included.
        bytes_per_s: memory bandwidth, efficiency included.
        element_bytes: bytes of one input element; the output has 2.
    """
    m, n, k = np.maximum(m, 1e-9), np.maximum(n, 1e-9), np.maximum(k, 1e-9)
    inner = operators.gemm_k0 if element_bytes >= _WIDE else operators.narrow_k0 / element_bytes
    compute = (m + operators.gemm_m0) * (n + operators.gemm_n0) * (k + inner)
    compute = compute * (2.0 / flops)
    moved = ((m + n) * k * element_bytes + 2.0 * m * n) / bytes_per_s
    compute, moved = compute * compute, moved * moved
    return np.asarray(np.sqrt(np.sqrt(compute * compute + moved * moved)) + operators.launch_s)


def flash_attention_s(
    work_flops: FloatArray,
    tokens: FloatArray | float,
    *,
    operators: GpuOperators,
    flops: FloatArray | float,
) -> FloatArray:
    """Return the seconds of one flash attention forward pass over sequences of ``tokens`` tokens.

    ``work / (flops * s / (s + s0))``: the share of peak rises with the length of the sequence that
    one GPU sees (operator tables of A100, H100, B200).
    """
    return np.asarray(work_flops * (1.0 + operators.flash_s0 / tokens) / flops)


@cache
def architectures_log_spread() -> float:
    """Return the standard deviation of ln(share) between two architectures, of large 16-bit products.

    What taking another architecture's share adds to the uncertainty: the spread of the shares of all
    architectures, times the square root of two for the difference of two of them.
    """
    shares = [entry["gemm"]["fp16"] for entry in catalog_file(_SHARES)["architectures"].values()]
    return float(np.sqrt(2.0) * np.std(np.log(shares), ddof=1))


def operators_of(gpu: GpuSpec, network: str = "") -> GpuOperators:
    """Return the operator shares of a GPU type; of its architecture when the type was not measured.

    Args:
        gpu: the type.
        network: the kind of link between its nodes, which tells a cloud's host from the usual one.
    """
    table = catalog_file(_SHARES)
    row = table["gpus"].get(gpu.slug)
    values = table["default"] | table["architectures"].get(gpu.architecture, {}) | (row or {})
    values["host"] = values.pop("hosts", {}).get(network, values["host"])
    backward = values.pop("attention_backward", None) or attention_backward_ratio(gpu)
    if gpu.slug in operator_table_names():
        values["tables"] = gpu.slug
    return GpuOperators(
        measured=row is not None,
        attention_backward=backward,
        tables_digest=operator_tables_digest(values["tables"]) if values["tables"] else "",
        **values,
    )
