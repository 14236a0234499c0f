"""One question on a mixed cluster to the judge, in whole numbers; loads no OR-Tools.

Times are nanoseconds, memory is bytes. Of a field (a row on some berths, each of a node group of its own)
the closed form of the slowest stage r is

    fixed + sum_s whole(s) + own(r),

with, for a stage s on berth b that holds n[k] layers of kind k and was entered from berth a,

    whole = sum_k layer[b][k] n[k] + beside[b][s] + hop[a][b]
    own   = sum_k own_layer[b][k] n[k] + own_beside[b][s] + own_hop[a][b],

each coefficient multiplied by the field's ``straggler``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from solver.search.cp.request import LARGEST

Numbers = Sequence[int]
KIND = "placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRequest:
    """One field that CP-SAT may choose; lists by berth, then stage, kind or the berth entered."""

    num_stages: int
    room: Numbers  # most stages on each berth
    fixed: int
    layer: Sequence[Numbers]
    beside: Sequence[Numbers]
    hop: Sequence[Numbers]
    own_layer: Sequence[Numbers]
    own_beside: Sequence[Numbers]
    own_hop: Sequence[Numbers]
    memory_layer: Sequence[Sequence[Numbers]]  # by berth, stage, kind
    memory_room: Sequence[Numbers]  # by berth, stage
    hint: Sequence[tuple[int, int]]  # berth and number of layers of each stage


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """Which field and placement has the least objective?"""

    num_layers: int
    cumulative: Sequence[Numbers]  # by kind: layers of it among the first l
    fields: Sequence[FieldRequest]
    hint_field: int
    seed: int
    time_limit_s: float
    deterministic_limit: float
    kind: str = KIND

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PlacementRequest:
        """The request that ``to_json`` wrote."""
        return cls(**{**raw, "fields": [FieldRequest(**one) for one in raw["fields"]]})


def stays_exact(request: PlacementRequest) -> bool:
    """Whether every sum of the request stays exact."""
    layers = request.num_layers
    for one in request.fields:
        each = max(map(max, [*one.layer, *one.own_layer]))
        beside = max(map(max, [*one.beside, *one.own_beside, *one.hop, *one.own_hop]))
        times = one.fixed + 2 * layers * each + 4 * one.num_stages * beside
        memory = layers * max(max(kinds) for stages in one.memory_layer for kinds in stages)
        rooms = max(abs(room) for stages in one.memory_room for room in stages)
        if max(times, memory, rooms) > LARGEST:
            return False
    return True
