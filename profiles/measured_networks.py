"""Measured links as they stand in requests and in ``catalog/collectives/measured``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeVar

import yaml

from profiles.catalog import CATALOG
from profiles.errors import InvalidProblemError, ProfileError
from profiles.measured_link import (
    COLLECTIVES,
    MAX_BYTES_PER_S,
    MAX_CURVES,
    MAX_PAYLOAD_BYTES,
    MAX_POINTS,
    MAX_RANKS,
    MeasuredCurve,
    MeasuredLink,
)
from profiles.reading import FieldReader
from profiles.shape import Json

T = TypeVar("T")
FOLDER = CATALOG / "collectives" / "measured"


def measured_network(kind: str, gpu: str) -> MeasuredLink | None:
    """What collectives reached on nodes of a GPU type behind a kind of network, where that is known.

    Raises:
        ProfileError: a file of the catalog is broken.
    """
    return _catalog().get((kind, gpu))


def measured_from(reader: FieldReader | None) -> MeasuredLink | None:
    """``{"curves": [...], "source": …}``; None when it is missing or has faults, which the reader keeps.

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
    """What ``make`` returns; its faults point below ``pointer``."""
    try:
        return make()
    except InvalidProblemError as error:
        raise InvalidProblemError(
            [replace(fault, pointer=pointer + fault.pointer) for fault in error.errors]
        ) from error


def measured_to_mapping(measured: MeasuredLink) -> dict[str, Json]:
    """The mapping that ``measured_from`` reads back."""
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
def _catalog() -> dict[tuple[str, str], MeasuredLink]:
    """All files of the catalog, by kind of network and GPU type."""
    found = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        try:
            raw = yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader)
            place = raw.pop("kind"), raw.pop("gpu")
            reader = FieldReader(raw, "")
            measured = measured_from(reader)
            reader.finish()
        except (OSError, KeyError, AttributeError, yaml.YAMLError, InvalidProblemError) as error:
            raise ProfileError(f"catalog: collectives/measured/{path.name} cannot be read") from error
        if measured is not None:
            found[place] = measured
    return found
