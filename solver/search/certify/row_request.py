"""Surviving rows in whole numbers, as ``request`` states them."""

from __future__ import annotations

import numpy as np

from meshwright.solver.configuration import VARIABLE_OF, FloatArray
from meshwright.solver.schedules.schedule import in_flight, rank_of_chunk
from meshwright.solver.search.certify.request import LARGEST, RowRequest
from meshwright.solver.search.memory_limits import held_by_rank, room_bytes
from meshwright.solver.search.rows import RankCosts, Rows
from meshwright.solver.search.splits import even_chunks, offered_to

_NS = 1e9
DECISIONS = tuple(VARIABLE_OF)  # columns of a row


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
    memory_layer, memory_replay, room = least = _memory_bytes(one, chosen)
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
        moments=_moments_bytes(one, least) if one.prices.ranks_in_turn[0] else [],
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
    chunk_s = prices.every_s if chosen else one.chunk_s
    layers = one.layer_s[0] @ one.layout.cumulative[-1].astype(np.float64)
    total = layers + one.embedding_s[0] + one.head_s[0] + p * v * chunk_s[0]
    rank = RankCosts.of(one, chunk_s).objective_s(one.m - one.phi)[0]
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
        [_whole(one.prices.state_bytes[0, :-2] + count * kept) for count in held],
        [_whole(-count * spared) for count in held],
        _whole(np.floor(np.clip(room, -LARGEST, LARGEST))),
    )


Memory = tuple[list[list[int]], list[list[int]], list[int]]


def _moments_bytes(one: Rows, least: Memory) -> list[Memory]:
    """Return ``_memory_bytes`` while each chunk of a rank has whole gradients (``stages.fullest_moment``).

    ``least`` counts all activations, and of gradients the head's alone.
    """
    prices, p, v = one.prices, int(one.p[0]), int(one.v[0])
    whole, left, head = prices.gradients_bytes[0], prices.reduced_gradients_bytes[0], int(one.head_rank[0])
    held, kept = in_flight(one.columns)[0], one.least_kept_bytes[0]
    replayed = [[-less for less in kinds] for kinds in least[1]]
    spared = (prices.activation_bytes - prices.checkpoint_bytes)[0, 0] * one.some_layers[0]
    found = list[Memory]()
    for turn in range(v):
        layer, replay, room = ([*part] for part in least)
        for chunk, rank in enumerate(rank_of_chunk(one.columns, p * v)[0].tolist()):
            later = (chunk // p > turn) - (chunk // p < turn) if rank < prices.ranks_in_turn[0] else 0
            own = (whole, left, 0.0 * left)[later][:-2]
            layer[chunk] = _whole(np.array(layer[chunk]) + own - (later > 0) * held[chunk] * kept[:-2])
            if later > 0:
                replay[chunk] = [0 for _ in own]
                room[rank] -= 0 if any(replayed[chunk]) else round(spared * held[chunk])
        room[0] -= round(whole[-2]) if turn == 0 else 0
        room[head] += round((whole - left + held[p * v - 1] * kept)[-1]) if turn < v - 1 else 0
        found.append((layer, replay, room))
    return found
