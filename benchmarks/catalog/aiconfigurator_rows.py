"""Reads measured points of operators out of an ``aiconfigurator-core`` wheel.

Every reader returns the arguments of one operator (see ``meshwright.profiles.operators.tables``) as an
array of
shape (points, arguments) and the measured seconds of shape (points,). Points measured several times
are joined by their median. The tables are inference's: they hold forward passes only.
"""

from __future__ import annotations

import importlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.operators.tables import BoolArray, FloatArray

_ROOT = "aiconfigurator_core/systems"
_MILLISECOND_S = 1e-3
_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}  # our precision: the source's name
_ELEMENT_BYTES = {"half": 2, "int8": 1}
_TILE = 16  # rows that no multiple of it divides probe the edge of a tile; training never runs them
_COLLECTIVES = {"all_to_all": "alltoall"}  # our name: the source's, where they differ
_CAST_SHARE = 0.6  # of a measured time at most, or the rest is the difference of two large numbers
_LEAST_WIDTH = 1024  # elements of a row; narrower rows than any model's leave the kernel half idle
_CAST_BYTES = 3  # of one element: 2 read in bf16, 1 written in fp8

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Measured points of one operator."""

    arguments: FloatArray  # (points, arguments)
    seconds: FloatArray  # (points,)

    @classmethod
    def joined(cls, arguments: Sequence[NDArray[Any]], seconds: NDArray[Any]) -> Points:
        """Points of equal arguments become one, by the median; times of zero are dropped."""
        rows = np.stack([np.asarray(column, dtype=np.float64) for column in arguments], axis=1)
        taken = np.asarray(seconds, dtype=np.float64)
        rows, taken = rows[taken > 0], taken[taken > 0]
        unique, owner = np.unique(rows, axis=0, return_inverse=True)
        order = np.lexsort((taken, owner.ravel()))
        ends = np.searchsorted(owner.ravel()[order], np.arange(len(unique) + 1))
        first, last = ends[:-1], ends[1:] - 1
        middle = taken[order[(first + last) // 2]] + taken[order[(first + last + 1) // 2]]
        return cls(arguments=unique, seconds=np.asarray(middle / 2.0))

    def where(self, keep: BoolArray) -> Points:
        """The points that a mask of shape (points,) keeps."""
        return Points(arguments=self.arguments[keep], seconds=self.seconds[keep])


class Wheel:
    """An ``aiconfigurator-core`` wheel, opened for reading.

    Raises:
        ProfileError: no such file, not that wheel, or pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
            metadata = next(n for n in self._archive.namelist() if n.endswith(".dist-info/METADATA"))
        except (OSError, zipfile.BadZipFile, StopIteration) as error:
            raise ProfileError(f"{path.name} is not a readable wheel") from error
        fields = dict(
            line.split(": ", 1)
            for line in self._archive.read(metadata).decode().splitlines()
            if ": " in line
        )
        if fields.get("Name") != "aiconfigurator-core":
            raise ProfileError(f"{path.name} is not a wheel of aiconfigurator-core")
        self.version = fields["Version"]
        try:
            self._parquet = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ProfileError("reading the wheel needs pyarrow: pip install pyarrow") from error

    def system(self, name: str) -> Mapping[str, Any]:
        """What the wheel says about one GPU system: peaks, bandwidths.

        Raises:
            ProfileError: the wheel has no such system.
        """
        loaded: Mapping[str, Any] = yaml.safe_load(self._read(f"{_ROOT}/{name}.yaml"))
        return loaded

    def columns(self, system: str, file: str) -> Columns:
        """All columns of one measured table, e.g. ``gemm/vllm/0.24.0/gemm_perf``.

        Raises:
            ProfileError: the wheel has no such table.
        """
        table = self._parquet.read_table(io.BytesIO(self._read(f"{_ROOT}/data/{system}/{file}.parquet")))
        return {name: table[name].to_numpy() for name in table.column_names}

    def _read(self, member: str) -> bytes:
        try:
            return self._archive.read(member)
        except KeyError as error:
            raise ProfileError(f"the wheel has no {member}") from error


def _where(columns: Columns, **wanted: object) -> Columns:
    """The rows in which every named column equals a value; columns the table lacks are ignored."""
    keep = np.ones(len(columns["latency"]), dtype=np.bool_)
    for name, value in wanted.items():
        if name in columns:
            keep &= columns[name] == value
    return {name: column[keep] for name, column in columns.items()}


def _seconds(columns: Columns) -> FloatArray:
    return np.asarray(columns["latency"], dtype=np.float64) * _MILLISECOND_S


def gemm_points(wheel: Wheel, system: str, precision: str, versions: Sequence[str]) -> Points:
    """GEMMs by (m, n, k): the median over the given libraries, in fp8 without the input's cast."""
    found = []
    for version in versions:
        columns = _where(wheel.columns(system, f"gemm/{version}/gemm_perf"), gemm_dtype=_DTYPES[precision])
        columns = {name: column[columns["m"] % _TILE == 0] for name, column in columns.items()}
        seconds = _seconds(columns)
        if precision == "fp8":
            cast = _cast_s(wheel, system, version, columns)
            seconds = np.where(cast < _CAST_SHARE * seconds, seconds - cast, 0.0)
        found.append((columns["m"], columns["n"], columns["k"], seconds))
    *arguments, seconds = (np.concatenate(column) for column in zip(*found, strict=True))
    return Points.joined(arguments, seconds)


def _cast_s(wheel: Wheel, system: str, version: str, gemms: Columns) -> FloatArray:
    """Seconds that each fp8 GEMM's time holds for scaling its (m, k) input and casting it to fp8."""
    total = np.zeros(len(gemms["m"]))
    for step in ("computescale", "scale_matrix"):
        columns = wheel.columns(system, f"quantize/{version}/{step}_perf")
        shapes = zip(columns["m"].tolist(), columns["k"].tolist(), strict=True)
        taken = dict(zip(shapes, _seconds(columns).tolist(), strict=True))
        wanted = zip(gemms["m"].tolist(), gemms["k"].tolist(), strict=True)
        total += np.array([taken.get(shape, np.inf) for shape in wanted])
    return total


def attention_points(wheel: Wheel, system: str, version: str, kernels: Sequence[str]) -> Points:
    """Causal attention of whole sequences by (batch, heads, kv heads, sequence, head size), in bf16."""
    raw = wheel.columns(system, f"attention/{version}/context_attention_perf")
    found = []
    for kernel in kernels:
        rows = _where(raw, attn_dtype="bfloat16", kv_cache_dtype="bfloat16", kernel_source=kernel)
        rows = _where(rows, step=0, window_size=0)
        names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "head_dim")
        found.append((*(rows[name] for name in names), _seconds(rows)))
    *arguments, seconds = (np.concatenate(column) for column in zip(*found, strict=True))
    return Points.joined(arguments, seconds)


def grouped_points(
    wheel: Wheel, system: str, precision: str, version: str, *, kernel: str, load: str, max_ep: int
) -> Points:
    """Gated expert MLPs by (rows per expert, experts of the rank, hidden, ffn of the rank)."""
    rows = _where(
        wheel.columns(system, f"moe/{version}/moe_perf"),
        moe_dtype=_DTYPES[precision],
        kernel_source=kernel,
        distribution=load,
    )
    rows = {name: column[rows["moe_ep_size"] <= max_ep] for name, column in rows.items()}
    experts = rows["num_experts"] / rows["moe_ep_size"]
    per_expert = rows["num_tokens"] * rows["topk"] / rows["num_experts"]
    ffn = rows["inter_size"] / rows["moe_tp_size"]
    return Points.joined((per_expert, experts, rows["hidden_size"], ffn), _seconds(rows))


def cast_points(wheel: Wheel, system: str, version: str) -> Points:
    """Casts from bf16 to fp8 by bytes moved: an element-wise kernel, read 2 bytes, write 1."""
    rows = wheel.columns(system, f"quantize/{version}/scale_matrix_perf")
    wide = rows["k"] >= _LEAST_WIDTH
    moved = _CAST_BYTES * rows["m"][wide].astype(np.float64) * rows["k"][wide]
    return Points.joined((moved,), _seconds(rows)[wide])


def collective_points(wheel: Wheel, system: str, version: str, collective: str, dtype: str) -> Points:
    """An NCCL collective by (ranks, bytes). The source counts message sizes in *elements*."""
    rows = _where(
        wheel.columns(system, f"comm/nccl/{version}/nccl_perf"),
        op_name=_COLLECTIVES.get(collective, collective),
        nccl_dtype=dtype,
    )
    return Points.joined((rows["num_gpus"], rows["message_size"] * _ELEMENT_BYTES[dtype]), _seconds(rows))
