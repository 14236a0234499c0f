"""Requests to CP-SAT, in a form that travels as JSON.

Times are nanoseconds, memory is bytes. The closed-form objective of a row, written over the layers
n[c, k] of kind k in chunk c and the recomputed ones y[c, k] among them, is for the slowest rank r

    sum_const + sum_c,k sum_replay[k] y[c, k]
      + rank_const[r] + sum over own c, k of (layer[k] n[c, k] + replay[k] y[c, k]),

each coefficient multiplied by ``straggler``. Where stages recompute by their own count, y is a choice.
Loads nothing but the standard library: CP-SAT's process reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

LARGEST = 2**52  # coefficients and sums stay exact in float64 and far from overflow in int64


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """One row that CP-SAT may choose; lists by layer kind, chunk or rank."""

    values: Mapping[str, int]  # of each variable of the row, by its column
    rank_of_chunk: Sequence[int]
    smallest_chunk: int
    standalone: bool  # the first and the last chunk of the model may hold no layer
    replayed_layers: int  # of each chunk; 0 where none or every layer is recomputed
    by_stage: bool  # or as many of each chunk as the judge likes, one layer at least
    splits: Sequence[Sequence[int]] | None  # the splits on offer; None: all that keep chunks alike
    sum_const: int
    sum_replay: Sequence[int]
    rank_const: Sequence[int]
    layer: Sequence[int]
    replay: Sequence[int]
    memory_layer: Sequence[Sequence[int]]  # by chunk, then kind
    memory_replay: Sequence[Sequence[int]]
    room: Sequence[int]  # by rank
    moments: Sequence[Sequence[Sequence[Any]]] = ()  # the three at each of several moments, if they differ
    prediction: bool = False  # the last layer are those of prediction: alone before a chunk without any
    further_sum: int = 0  # what they hand that chunk in addition to a hidden state, of the whole
    further_rank: int = 0  # and of each of the two ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to the judge: which row and split has the least objective?"""

    num_layers: int
    cumulative: Sequence[Sequence[int]]  # by kind: layers of it among the first l
    rows: Sequence[RowRequest]
    hint_row: int
    hint_split: Sequence[int]
    seed: int
    time_limit_s: float
    deterministic_limit: float

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and numbers; its lists are shared with the request."""
        return {**_shallow(self), "rows": [_shallow(row) for row in self.rows]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Request:
        """Return the request that ``to_json`` wrote."""
        rows = [RowRequest(**row) for row in raw["rows"]]
        return cls(**{**raw, "rows": rows})


def _shallow(one: Request | RowRequest) -> dict[str, Any]:
    return {f.name: getattr(one, f.name) for f in fields(one)}


def is_expressible(request: Request) -> bool:
    """Return whether every sum of the request stays exact."""
    layers = request.num_layers
    for row in request.rows:
        times = row.sum_const + max(row.rank_const) + layers * (max(row.layer) + max(row.replay))
        times += layers * max(row.sum_replay) + row.further_sum + row.further_rank
        memory = layers * max(max(kinds) for kinds in row.memory_layer)
        if max(times, memory, *(abs(room) for room in row.room)) > LARGEST:
            return False
    return True
