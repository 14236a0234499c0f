"""Requests to CP-SAT: surviving rows as whole numbers, in a form that travels as JSON.

Times are nanoseconds, memory is bytes. The closed-form objective of a row, written over the layers
n[c, k] of kind k in chunk c and the recomputed ones y[c, k] among them, is for the slowest rank r

    sum_const + sum_c,k sum_replay[k] y[c, k]
      + rank_const[r] + sum over own c, k of (layer[k] n[c, k] + replay[k] y[c, k]),

each coefficient multiplied by ``straggler``. Where stages recompute by their own count, y is a choice.
Loads no OR-Tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshwright.solver.configuration import VARIABLE_OF, FloatArray
from meshwright.solver.schedules.schedule import in_flight, rank_of_chunk
from meshwright.solver.search.memory_limits import held_by_rank, room_bytes
from meshwright.solver.search.rows import RankCosts, Rows
from meshwright.solver.search.splits import even_chunks, offered_to

_NS = 1e9
LARGEST = 2**52  # coefficients and sums stay exact in float64 and far from overflow in int64

DECISIONS = tuple(VARIABLE_OF)  # columns of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """One row that CP-SAT may choose; lists by layer kind, chunk or rank."""

    values: Mapping[str, int]  # the row's DECISIONS
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
        """Return plain lists and numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Request:
        """Return the request that ``to_json`` wrote."""
        rows = [RowRequest(**row) for row in raw["rows"]]
        return cls(**{**raw, "rows": rows})


def _whole(values: FloatArray) -> list[int]:
    return [int(value) for value in np.rint(np.atleast_1d(values))]


def row_request(rows: Rows, row: int) -> RowRequest:
    """Return row ``row`` in whole numbers; splits are of layers, whatever the row's count."""
    counted, standalone = rows.take([row]), rows.layout.counts_ends
    one = counted.without_ends()
    p, v = int(one.p[0]), int(one.v[0])
    own = bool(one.per_stage[0])
    chosen = (
        not one.is_uniform or own
    )  # of layers that are alike the replayed ones are part of the constants
    replay = (own or chosen * (one.some_layers[0] > 0)) * one.prices.replay_s[0, :-2]
    sum_const, rank_const = _constants_s(one, chosen)
    memory_layer, memory_replay, room = _memory_bytes(one, chosen)
    scale, share = _NS * one.prices.straggler[0], one.m[0] - one.phi[0]
    further = one.layout.predicted * one.prices.transfer_s[0]
    return RowRequest(
        values={name: int(getattr(one.columns, name)[0]) for name in DECISIONS},
        rank_of_chunk=rank_of_chunk(one.columns, p * v)[0].tolist(),
        smallest_chunk=int(one.smallest_chunk[0]),
        standalone=standalone,
        prediction=one.layout.counts_prediction,
        further_sum=round(2.0 * scale * one.phi[0] * further),
        further_rank=round(scale * share * further),
        replayed_layers=int(one.some_layers[0]),
        by_stage=own,
        splits=_offered(counted, p, v),
        sum_const=round(_NS * sum_const),
        sum_replay=_whole(scale * one.phi[0] * replay),
        rank_const=_whole(_NS * rank_const),
        layer=_whole(scale * (share * one.layer_s[0] + one.prices.tail_s[0, :-2])),
        replay=_whole(scale * share * replay),
        memory_layer=memory_layer,
        memory_replay=memory_replay,
        room=room,
    )


def _offered(one: Rows, p: int, v: int) -> list[list[int]] | None:
    layers = one.layout.without_end_counts
    if one.only_split:
        return [list(layers(split)) for split in one.only_split.splits(one.columns) if split is not None]
    if not one.uneven_stages:
        even = even_chunks(one, p * v)
        return [list(even)] if even else []
    if v == 1 or one.is_uniform:
        return None
    return [list(layers(split)) for split in offered_to(one, p * v, int(one.smallest_chunk[0]))]


def _constants_s(one: Rows, chosen: bool) -> tuple[float, FloatArray]:
    """Return the constant cost of every split: of the whole, and of each rank."""
    prices, p, v = one.prices, int(one.p[0]), int(one.v[0])
    phi = one.phi[0]
    chunk_s = 2.0 * prices.transfer_s if chosen else one.chunk_s
    layers = one.layer_s[0] @ one.layout.cumulative[-1].astype(np.float64)
    total = layers + one.embedding_s[0] + one.head_s[0] + p * v * chunk_s[0]
    rank = RankCosts.of_all(one, chunk_s).objective_s(one.m - one.phi)[0]
    return float(prices.straggler[0] * phi * total + prices.fixed_s[0]), prices.straggler[0] * rank


def _memory_bytes(one: Rows, chosen: bool) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Return a layer's and a recomputed one's bytes by chunk and kind, and each rank's room."""
    prices, p, v = one.prices, int(one.p[0]), int(one.v[0])
    held = in_flight(one.columns)[0].astype(np.float64)
    kept = np.where(one.every_layer[0] > 0, prices.checkpoint_bytes[0], prices.activation_bytes[0])[:-2]
    partial = int(one.some_layers[0])
    spared = (prices.activation_bytes - prices.checkpoint_bytes)[0, :-2]
    spared = spared * (chosen * (partial > 0) or bool(one.per_stage[0]))
    by_chunk = held_by_rank(one, p, v)
    room = room_bytes(one, by_chunk)[0]
    room = room - partial * spared.max() * by_chunk[0].sum(axis=0)  # counted layer by layer instead
    return (
        [_whole(one.state_bytes[0, :-2] + count * kept) for count in held],
        [_whole(-count * spared) for count in held],
        _whole(np.floor(np.clip(room, -LARGEST, LARGEST))),
    )


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
