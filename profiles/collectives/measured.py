"""Measured bandwidth of a cluster's own network: bus bandwidths by collective, ranks and payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model_shapes import Json
from meshwright.profiles.reading import MAX_TEXT, FieldReader

COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
MAX_CURVES = 256
MAX_POINTS = 256  # of one curve
MAX_PAYLOAD_BYTES = 2**50
MAX_BYTES_PER_S = 1e15
MAX_RANKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """Bus bandwidth of one collective over all GPUs of so many nodes, by payload.

    Payload and bus bandwidth are those of nccl-tests (``doc/PERFORMANCE.md``): the whole gathered or
    reduced buffer; of an all-to-all what one rank sends.
    """

    collective: str  # one of COLLECTIVES
    num_nodes: int
    num_ranks: int
    payload_bytes: tuple[int, ...]  # growing
    bus_bytes_per_s: tuple[float, ...]  # parallel to the payloads

    def __post_init__(self) -> None:
        """Refuse a curve that means nothing.

        Raises:
            InvalidProblemError: no or unequal points, payloads that do not grow, ranks that do not
                fill the nodes, or an unknown collective.
        """
        if self.collective not in COLLECTIVES:
            raise InvalidProblemError.of(
                "/collective", f"{self.collective[:40]} is not supported", allowed=", ".join(COLLECTIVES)
            )
        self._check_ranks()
        sizes, rates = self.payload_bytes, self.bus_bytes_per_s
        if not 1 <= len(sizes) == len(rates) <= MAX_POINTS:
            raise InvalidProblemError.of(
                "/bus_bytes_per_s",
                f"{len(rates)} bandwidths of {len(sizes)} payloads",
                allowed=f"one per value of payload_bytes, 1 to {MAX_POINTS}",
                nearest=str(max(min(len(sizes), MAX_POINTS), 1)),
            )
        if list(sizes) != sorted(set(sizes)) or not 1 <= sizes[0] <= sizes[-1] <= MAX_PAYLOAD_BYTES:
            raise InvalidProblemError.of("/payload_bytes", "must be positive and grow")
        if not all(0 < rate <= MAX_BYTES_PER_S for rate in rates):
            raise InvalidProblemError.of(
                "/bus_bytes_per_s", "must be positive", allowed=f"up to {MAX_BYTES_PER_S:g}"
            )

    @property
    def place(self) -> tuple[str, int, int]:
        """Return the collective that was measured, and the number of nodes and ranks."""
        return self.collective, self.num_nodes, self.num_ranks

    def _check_ranks(self) -> None:
        nodes, ranks = self.num_nodes, self.num_ranks
        if not 1 <= nodes <= MAX_RANKS:
            raise InvalidProblemError.of(
                "/num_nodes", f"{nodes} is out of range", allowed=f"1 to {MAX_RANKS}"
            )
        if not 2 <= ranks <= MAX_RANKS or ranks % nodes:  # noqa: PLR2004 (one rank moves nothing)
            per_node = max(round(ranks / nodes), 1 if nodes > 1 else 2)
            raise InvalidProblemError.of(
                "/num_ranks",
                f"{ranks} ranks do not fill {nodes} nodes evenly, or are fewer than 2",
                allowed=f"a multiple of {nodes}, at least 2",
                nearest=str(per_node * nodes),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """Curves of one cluster; where there are any they correct the tables of the catalog."""

    curves: tuple[MeasuredCurve, ...]
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse no curves and too many.

        Raises:
            InvalidProblemError: the number of curves is out of range.
        """
        if not 1 <= len(self.curves) <= MAX_CURVES:
            raise InvalidProblemError.of(
                "/curves", f"{len(self.curves)} curves", allowed=f"1 to {MAX_CURVES}"
            )

    def with_curves(self, curves: Sequence[MeasuredCurve], *, source: str) -> MeasuredLink:
        """Return the link with these curves; of equal collectives, ranks and nodes the new ones.

        Raises:
            InvalidProblemError: they are too many together.
        """
        both = {curve.place: curve for curve in (*self.curves, *curves)}
        sources = dict.fromkeys(text for text in (self.source, source) if text)
        return MeasuredLink(curves=tuple(both.values()), source=", ".join(sources)[:MAX_TEXT])

    def of_collective(self, *names: str) -> tuple[MeasuredCurve, ...]:
        """Return the curves of the first of these collectives that was measured."""
        for name in names:
            found = tuple(curve for curve in self.curves if curve.collective == name)
            if found:
                return found
        return ()


# --------------------------------------------------------------------------------------------------
# Measured links in the format of requests and in ``catalog/collectives/measured``.


T = TypeVar("T")
FOLDER = CATALOG / "collectives" / "measured"


def measured_network(kind: str, gpu: str) -> MeasuredLink | None:
    """Return the measured links of nodes with a GPU type and a kind of network, if they are known."""
    return _catalog().get((kind, gpu))


def measured_from(reader: FieldReader | None) -> MeasuredLink | None:
    """Read ``{"curves": [...], "source": …}``; None if it is missing or has faults, kept by the reader.

    Raises:
        InvalidProblemError: a curve contradicts itself; the pointer names the curve.
    """
    if reader is None:
        return None
    curves = [_curve(child) for child in reader.children("curves", high=MAX_CURVES)]
    source = reader.text("source", default="")
    reader.refuse_unknown()
    known = tuple(curve for curve in curves if curve is not None)
    if reader.faults:
        return None
    return _placed(reader.pointer, lambda: MeasuredLink(curves=known, source=source))


def _curve(reader: FieldReader) -> MeasuredCurve | None:
    collective = reader.choice("collective", COLLECTIVES, default="all_reduce")
    num_nodes = reader.integer("num_nodes", high=MAX_RANKS)
    num_ranks = reader.integer("num_ranks", low=2, high=MAX_RANKS)
    sizes = reader.numbers("payload_bytes", low=1, high=MAX_PAYLOAD_BYTES, most=MAX_POINTS)
    rates = reader.numbers("bus_bytes_per_s", low=1, high=MAX_BYTES_PER_S, most=MAX_POINTS)
    reader.refuse_unknown()
    if reader.faults:
        return None
    return _placed(
        reader.pointer,
        lambda: MeasuredCurve(
            collective=collective,
            num_nodes=num_nodes,
            num_ranks=num_ranks,
            payload_bytes=tuple(round(size) for size in sizes),
            bus_bytes_per_s=tuple(rates),
        ),
    )


def _placed(pointer: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except InvalidProblemError as error:
        raise InvalidProblemError(
            [replace(fault, pointer=pointer + fault.pointer) for fault in error.errors]
        ) from error


def measured_to_mapping(measured: MeasuredLink) -> dict[str, Json]:
    """Return the mapping that ``measured_from`` reads back."""
    curves: list[Json] = [
        {
            "collective": curve.collective,
            "num_nodes": curve.num_nodes,
            "num_ranks": curve.num_ranks,
            "payload_bytes": list(curve.payload_bytes),
            "bus_bytes_per_s": list(curve.bus_bytes_per_s),
        }
        for curve in measured.curves
    ]
    return {"curves": curves} | ({"source": measured.source} if measured.source else {})


@cache
def _catalog() -> dict[tuple[str, str], MeasuredLink | None]:
    files = (yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader) for path in FOLDER.glob("*.yaml"))
    return {(raw.pop("kind"), raw.pop("gpu")): measured_from(FieldReader(raw, "")) for raw in files}
