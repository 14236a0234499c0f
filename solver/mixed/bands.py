"""What a stage of n layers takes on each berth, for every stage of a row: the tables that bounds read.

The same sums as ``stages.StageTables``, by number of layers and first layer instead of first and last
one. Where all layers are of one kind the first does not matter and its axis has one entry, so that a
field costs a few thousand numbers. Memory is judged with room for rounding: what fits there fits here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray
from solver.mixed.field import Field
from solver.search.rows import Rows

_ROUNDING = 1.0 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Arrays (B, p, N, W): berth, stage, number of layers less one, first layer (W = 1: any)."""

    time_s: FloatArray  # forward and backward of one micro-batch behind a stage of the same berth
    forward_s: FloatArray
    tail_s: FloatArray
    fits: BoolArray  # the layers are as the request says and fit the berth's memory

    @classmethod
    def of(cls, field: Field) -> Bands:
        """The tables of a field."""
        outer, most = field.outer, field.num_layers - field.p + 1
        sums = outer.layout.cumulative
        if len(outer.layout.kinds) == 1:
            held = sums[1 : most + 1, None, :] - sums[:1, None, :]
        else:
            ends = np.arange(1, most + 1)[:, None] + np.arange(len(sums))[None, :]
            held = sums[np.minimum(ends, field.num_layers)] - sums[None, :, :]
        layers = held.astype(np.float64)
        tables = [_of_berth(field, outer.rows[berth], layers) for berth in field.berths]
        return cls(
            time_s=np.stack([table.time_s for table in tables]),
            forward_s=np.stack([table.forward_s for table in tables]),
            tail_s=np.stack([table.tail_s for table in tables]),
            fits=np.stack([table.fits for table in tables]),
        )


def _of_berth(field: Field, rows: Rows, layers: FloatArray) -> Bands:
    """One berth's tables, (p, N, W); ``layers`` (N, W, K) of each kind."""
    prices, row, p = rows.prices, field.row, field.p
    stage = np.arange(p)[:, None, None]
    ends = (stage == 0, stage == p - 1)
    everyone = bool(rows.every_layer[row])

    def spread(price: FloatArray) -> FloatArray:
        return np.asarray(layers @ price[:-2] + ends[0] * price[-2] + ends[1] * price[-1])

    forward = spread(prices.forward_s[row]) + prices.transfer_s[row]
    backward = prices.backward_s[row] + (prices.replay_s[row] if everyone else 0.0)
    kept = prices.activation_bytes[row].copy()
    if everyone:
        kept[:-2] = prices.checkpoint_bytes[row, :-2]
    head = np.where(ends[1], prices.head_workspace_bytes[row], 0.0)
    used = spread(rows.state_bytes[row]) + np.minimum(field.m, p - stage) * spread(kept)
    used = used + np.maximum(head, prices.replay_workspace_bytes[row]) + prices.buffer_bytes[row]
    used = used * prices.reserve[row] + prices.context_bytes[row]
    asked, number = field.asked_layers[:, None, None], np.arange(1, len(layers) + 1)[:, None]
    return Bands(
        time_s=forward + spread(backward) + prices.transfer_s[row],
        forward_s=forward,
        tail_s=spread(prices.tail_s[row]) + prices.rank_tail_s[row],
        fits=(used <= rows.budget_bytes * _ROUNDING) & ((asked == 0) | (asked == number)),
    )
