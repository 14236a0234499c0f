"""Links between the nodes of one group that are not all alike.

A matrix states bandwidth or latency of every pair of nodes, a level how far the uplinks of its switches
are oversubscribed, and a rail-only network joins GPUs of equal local rank alone ("Rail-only: A Low-Cost
High-Performance Network for Training LLMs", Wang et al. 2023, arXiv:2307.12169).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.model_shapes import Json
from meshwright.profiles.reading import MAX_FAULTS, FieldReader, shown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Matrix = tuple[tuple[float, ...], ...]

MAX_NODES = 1024  # of a matrix: about 8 MiB of JSON
MAX_LEVELS = 8
MAX_OVERSUBSCRIPTION = 1024.0
MAX_BYTES_PER_S = 1e15
MAX_LATENCY_S = 1.0
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")  # what scripts may name
_EQUAL = 1e-6  # relative; figures of both directions that are as close are one

# Groups of ranks that may cross links of their own.
KINDS = ("tensor", "context", "expert", "data", "stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLevel:
    """Switches that join so many nodes each, in the order in which the nodes are listed."""

    nodes: int
    oversubscription: float  # bandwidth of a switch's nodes over that of its uplinks


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPace:
    """The slowest link that one kind of group crosses, against the network of its nodes."""

    share: float = 1.0  # of the network's bandwidth
    hop_s: float = 0.0  # beyond the network's latency


@dataclass(frozen=True, kw_only=True)
class NodeLinks:
    """Bandwidth and latency between nodes, where they are not all alike."""

    hosts: tuple[str, ...] = ()  # their names
    bytes_per_s: Matrix = ()  # of one GPU and direction, from row to column; the diagonal is not read
    latency_s: Matrix = ()
    measured: bool = False  # bytes_per_s is what arrived, without headers, in place of line rates
    asymmetric: bool = False  # both directions of a pair may differ
    levels: tuple[SwitchLevel, ...] = ()  # from the nodes upwards
    rail_only: bool = False  # no spine: GPUs of different local ranks meet inside a node alone
    order: tuple[int, ...] = ()  # the node in each place, by node rank; empty: as they are listed
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            InvalidProblemError: a matrix is not square, has figures out of range, or differs by direction
                without saying so; levels do not nest; the order leaves out a node.
        """
        faults = [
            *_matrix_faults("bytes_per_s", self.bytes_per_s, MAX_BYTES_PER_S, zero=False),
            *_matrix_faults("latency_s", self.latency_s, MAX_LATENCY_S, zero=True),
        ]
        for name in ("bytes_per_s", "latency_s") if not (faults or self.asymmetric) else ():
            faults += _direction_faults(name, getattr(self, name))
        faults += [*_count_faults(self), *_level_faults(self.levels)]
        if faults:
            raise InvalidProblemError(faults[:MAX_FAULTS])

    @property
    def differ(self) -> bool:
        """Return whether the order of the nodes matters."""
        return bool(self.bytes_per_s or self.latency_s or self.levels)

    @property
    def stated_nodes(self) -> int | None:
        """Return the nodes that hosts, matrices or order state; None if none does."""
        sizes = (len(self.hosts), len(self.bytes_per_s), len(self.latency_s), len(self.order))
        return max(sizes) or None

    def in_order(self, order: Sequence[int]) -> NodeLinks:
        """Return the links with nodes in that order."""
        return replace(self, order=tuple(order))

    @cached_property
    def rates(self) -> FloatArray:
        """Return the bandwidth of every pair as a matrix; empty if none is stated."""
        return _array(self.bytes_per_s)

    @cached_property
    def latencies(self) -> FloatArray:
        """Return the latency of every pair as a matrix; empty if none is stated."""
        return _array(self.latency_s)

    def to_mapping(self) -> dict[str, Json]:
        """Return the mapping that ``links_from`` reads back."""
        raw: dict[str, Any] = {
            "hosts": list(self.hosts),
            "bytes_per_s": [list(row) for row in self.bytes_per_s],
            "latency_s": [list(row) for row in self.latency_s],
            "measured": self.measured,
            "asymmetric": self.asymmetric,
            "levels": [
                {"nodes": one.nodes, "oversubscription": one.oversubscription} for one in self.levels
            ],
            "rail_only": self.rail_only,
            "order": list(self.order),
            "source": self.source,
        }
        return {name: value for name, value in raw.items() if value}


def links_from(reader: FieldReader | None) -> NodeLinks | None:
    """Read links; None if they are missing or have faults, which the reader keeps."""
    if reader is None:
        return None
    levels = _levels(reader) if reader.has("levels") else ()
    values: dict[str, Any] = {
        "hosts": _hosts(reader),
        "bytes_per_s": _matrix(reader, "bytes_per_s"),
        "latency_s": _matrix(reader, "latency_s"),
        "measured": reader.flag("measured", default=False),
        "asymmetric": reader.flag("asymmetric", default=False),
        "levels": levels,
        "rail_only": reader.flag("rail_only", default=False),
        "order": _order(reader),
        "source": reader.text("source", default=""),
    }
    reader.refuse_unknown()
    if reader.faults:
        return None
    try:
        return NodeLinks(**values)
    except InvalidProblemError as error:
        reader.faults += [replace(one, pointer=reader.pointer + one.pointer) for one in error.errors]
        return None


def _levels(reader: FieldReader) -> tuple[SwitchLevel, ...]:
    found = list[SwitchLevel]()
    for child in reader.children("levels", high=MAX_LEVELS):
        nodes = child.integer("nodes", high=10**6)
        share = child.number("oversubscription", low=1.0, high=MAX_OVERSUBSCRIPTION)
        child.refuse_unknown()
        found.append(SwitchLevel(nodes=nodes, oversubscription=share))
    return tuple(found)


def _hosts(reader: FieldReader) -> tuple[str, ...]:
    hosts = reader.texts("hosts") if reader.has("hosts") else []
    for at, host in enumerate(hosts):
        if not _HOST.fullmatch(host):
            pointer = f"{reader.pointer}/hosts/{at}"
            allowed = "letters, digits, dots, hyphens and underscores, at most 253"
            message = f"{shown(host)} is not a host name"
            reader.faults.append(FieldError(pointer=pointer, message=message, allowed=allowed))
            break
    return tuple(hosts)


def _order(reader: FieldReader) -> tuple[int, ...]:
    value = reader.value("order")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        reader.fault("order", "must be a list of the nodes' numbers, from 0")
        return ()
    return tuple(value)


def _matrix(reader: FieldReader, name: str) -> Matrix:
    """Read a list of lists of numbers; only its form is checked here."""
    value = reader.value(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_NODES:
        reader.fault(name, "must be a list of rows", allowed=f"1 to {MAX_NODES} rows")
        return ()
    for at, row in enumerate(value):
        wrong = _wrong_entry(row)
        if wrong is not None:
            path, message = wrong
            pointer = f"{reader.pointer}/{name}/{at}{path}"
            reader.faults.append(FieldError(pointer=pointer, message=message))
            return ()
    return tuple(tuple(float(one) for one in row) for row in value)


def _wrong_entry(row: object) -> tuple[str, str] | None:
    if not isinstance(row, list) or len(row) > MAX_NODES:
        return "", "must be a list of numbers, one for each node"
    for at, one in enumerate(row):
        if isinstance(one, bool) or not isinstance(one, int | float) or not abs(one) < math.inf:
            return f"/{at}", f"{shown(one)} is not a finite number"
    return None


def _array(rows: Matrix) -> FloatArray:
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1 if rows else 0)


def _matrix_faults(name: str, rows: Matrix, high: float, *, zero: bool) -> list[FieldError]:
    size, allowed = len(rows), f"{'0' if zero else 'above 0'} to {high:g}"
    for at, row in enumerate(rows):
        if len(row) != size:
            message = f"{len(row)} figures, but the matrix has {size} rows: it must be square"
            return [FieldError(pointer=f"/{name}/{at}", message=message, allowed=f"{size} figures")]
    if size == 0:
        return []
    every = _array(rows)
    wrong = (every > high) | (every < 0.0 if zero else every <= 0.0)
    np.fill_diagonal(wrong, val=False)
    return [
        FieldError(pointer=f"/{name}/{a}/{b}", message=f"{rows[a][b]:g} is out of range", allowed=allowed)
        for a, b in np.argwhere(wrong)[:MAX_FAULTS].tolist()
    ]


def _direction_faults(name: str, rows: Matrix) -> list[FieldError]:
    if not rows:
        return []
    every = _array(rows)
    unlike = np.abs(every - every.T) > _EQUAL * np.maximum(every, every.T)
    found = np.argwhere(np.triu(unlike, 1))
    if not len(found):
        return []
    a, b = found[0].tolist()
    message = f"{rows[a][b]:g}, but {rows[b][a]:g} the other way ({len(found)} pairs differ)"
    allowed = "both directions equal, or asymmetric: true"
    return [FieldError(pointer=f"/{name}/{a}/{b}", message=message, allowed=allowed)]


def _count_faults(links: NodeLinks) -> list[FieldError]:
    counts: Mapping[str, int] = {
        name: len(getattr(links, name)) for name in ("hosts", "bytes_per_s", "latency_s", "order")
    }
    stated = {name: count for name, count in counts.items() if count}
    found = list[FieldError]()
    if len(set(stated.values())) > 1:
        words = ", ".join(f"{name} of {count}" for name, count in stated.items())
        found.append(FieldError(pointer="", message=f"different numbers of nodes: {words}"))
    if len(set(links.hosts)) < len(links.hosts):
        found.append(FieldError(pointer="/hosts", message="a host appears twice"))
    if sorted(links.order) != list(range(len(links.order))):
        message = "must name every node once, by its number from 0"
        found.append(FieldError(pointer="/order", message=message))
    return found


def _level_faults(levels: tuple[SwitchLevel, ...]) -> list[FieldError]:
    below, found = 1, list[FieldError]()
    for at, one in enumerate(levels):
        if not 1.0 <= one.oversubscription <= MAX_OVERSUBSCRIPTION:
            found.append(
                FieldError(
                    pointer=f"/levels/{at}/oversubscription",
                    message=f"{one.oversubscription:g} is out of range",
                    allowed=f"1 to {MAX_OVERSUBSCRIPTION:g}",
                )
            )
        if one.nodes <= below or one.nodes % below:
            message = f"{one.nodes} nodes under a switch, but a switch of the level below has {below}"
            allowed = f"a larger multiple of {below}"
            found.append(FieldError(pointer=f"/levels/{at}/nodes", message=message, allowed=allowed))
        below = max(one.nodes, 1)
    return found
