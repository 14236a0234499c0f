"""Lower bounds on the simulated step of rows of a mixed cluster, before any placement is looked at.

Whatever the order of the stages: some stage takes at least tau, the least time in which the stages that
the berths have room for can hold all layers together. Then (A) gives ``m tau``, and (B)
``sum t + (m - 1) tau - (w - 1) F``, w - 1 <= min(m, p) - 1, F at most the largest share of tau. Every
layer is counted as the cheapest kind, every transfer as the cheapest, memory as if one micro-batch were
in flight; so neither can exceed what a placement simulates to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, Columns, FloatArray, IntArray
from solver.mixed.outer import Outer
from solver.search.bounds import SAFETY
from solver.search.rows import Rows

_BISECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The least that a stage may take on each berth, arrays (K, n)."""

    layer_s: FloatArray
    beside_s: FloatArray  # transfers
    ends_s: FloatArray  # embedding and head together
    most_layers: FloatArray  # of a stage, by memory
    forward_share: FloatArray  # at most, of a stage's time
    tail_s: FloatArray  # of the first stage
    any_tail_s: FloatArray  # of any stage
    straggler: FloatArray
    fixed_s: FloatArray
    room: IntArray

    def at(self, berths: IntArray, rows: IntArray) -> Floors:
        """Rows (C,) on choices of berths (G, C): arrays (G, C); -1 is no berth."""
        parts = {name: getattr(self, name)[berths, rows] for name in self.__slots__}
        parts["room"] = np.where(berths < 0, 0, parts["room"])
        return Floors(**parts)

    def least(self, values: FloatArray) -> FloatArray:
        """Of the berths that there is room on, (n,)."""
        return np.asarray(np.where(self.room > 0, values, np.inf).min(axis=0))

    def total_s(self, p: IntArray, layers: int) -> FloatArray:
        """Least sum of all stages' times, (n,)."""
        ends = (p - 1) * self.least(self.beside_s) + self.least(self.ends_s)
        return layers * self.least(self.layer_s) + ends


def floors_of(outer: Outer) -> Floors:
    """The floors of all rows on all berths."""
    hops = [_least_hop_s(outer, at) for at in range(len(outer.berths))]
    parts = [_of_berth(rows, hop) for rows, hop in zip(outer.rows, hops, strict=True)]
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return Floors(room=outer.room, **stacked)


def _least_hop_s(outer: Outer, berth: int) -> FloatArray:
    """The cheapest transfer into a berth, its own group's included, (n,)."""
    own, group = outer.rows[berth].prices.transfer_s, outer.berths[berth].group
    least, sent = own.copy(), outer.sent_bytes[berth]
    for other in {one.group for one in outer.berths} - {group}:
        sizes, which = np.unique(sent, return_inverse=True)
        least = np.minimum(least, outer.fleet.hop_s(other, group, sizes)[which])
    return np.asarray(np.where(outer.columns.pipeline_parallel_size > 1, least, 0.0))


def _of_berth(rows: Rows, hop_s: FloatArray) -> dict[str, FloatArray]:
    """One berth's floors, (n,) each."""
    prices, layers = rows.prices, slice(None, -2)
    kept = np.where(rows.every_layer[:, None] > 0, prices.checkpoint_bytes, prices.activation_bytes)
    each = (rows.state_bytes + kept)[:, layers].min(axis=1)
    room = (rows.budget_bytes - prices.context_bytes) / prices.reserve - prices.buffer_bytes
    time = np.maximum(prices.forward_s + prices.backward_s, 1e-30)
    share = (prices.forward_s / time).max(axis=1)
    return {
        "layer_s": rows.layer_s.min(axis=1),
        "beside_s": 2.0 * hop_s,
        "ends_s": rows.embedding_s + rows.head_s,
        "most_layers": np.floor(np.maximum(room, 0.0) / each * (1.0 + 1e-12)),
        "forward_share": np.maximum(share, 0.5),
        "tail_s": prices.rank_tail_s + prices.tail_s[:, -2] + prices.tail_s[:, layers].min(axis=1),
        "any_tail_s": prices.rank_tail_s + prices.tail_s[:, layers].min(axis=1),
        "straggler": prices.straggler,
        "fixed_s": prices.fixed_s,
    }


def _held(floors: Floors, tau_s: FloatArray) -> FloatArray:
    """Layers that a stage of each berth can hold in ``tau_s`` (n,), (K, n)."""
    whole = np.floor((tau_s - floors.beside_s) / floors.layer_s * (1.0 + 1e-12))
    return np.asarray(np.clip(whole, 0.0, floors.most_layers))


def _enough(
    floors: Floors, groups: IntArray | None, tau_s: FloatArray, p: IntArray, layers: int
) -> BoolArray:
    """Whether p stages may hold all layers in ``tau_s`` each, (n,); False is a proof.

    Without ``groups`` every berth that has room has a stage.
    """
    held = np.where(floors.room > 0, _held(floors, tau_s), 0.0)
    if groups is not None:  # berths of one group exclude one another
        each = np.minimum(floors.room, p) * held
        together = sum(each[groups == at].max(axis=0) for at in np.unique(groups))
        return np.asarray(np.minimum(together, p * held.max(axis=0)) >= layers)
    present = floors.room > 0  # each holds one stage or more, the others stand where most goes in
    order = np.argsort(-held, axis=0, kind="stable")
    room = np.take_along_axis(floors.room - present, order, axis=0)
    most = np.take_along_axis(held, order, axis=0)
    upto = np.minimum(np.cumsum(room, axis=0), p - present.sum(axis=0))
    further = (np.diff(upto, axis=0, prepend=0) * most).sum(axis=0)
    alone = np.where(present, held, np.inf).min(axis=0) >= 1.0
    return np.asarray((held.sum(axis=0) + further >= layers) & alone)


def least_stage_s(floors: Floors, groups: IntArray | None, p: IntArray, layers: int) -> FloatArray:
    """tau: some stage of any placement takes at least this, (n,); +inf where the layers never fit."""
    present = floors.room > 0
    low = np.zeros(len(p))
    high = np.where(present, floors.layer_s * layers + floors.beside_s, 0.0).max(axis=0) * (1.0 + 1e-9)
    never = ~_enough(floors, groups, high, p, layers)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        able = _enough(floors, groups, middle, p, layers)
        low, high = np.where(able, low, middle), np.where(able, middle, high)
    return np.where(never, np.inf, low)


def counts_of(floors: Floors, groups: IntArray, p: IntArray) -> tuple[FloatArray, FloatArray]:
    """The p fastest stages there is room for: seconds of a layer, and number, by group, fastest first."""
    names = np.unique(groups)
    layer_s = np.where(floors.room > 0, floors.layer_s, np.inf)
    each = np.stack([layer_s[groups == at].min(axis=0) for at in names])
    room = np.stack([floors.room[groups == at].max(axis=0) for at in names])
    order = np.argsort(each, axis=0, kind="stable")
    each, room = np.take_along_axis(each, order, axis=0), np.take_along_axis(room, order, axis=0)
    upto = np.minimum(np.cumsum(room, axis=0), p)
    return each, np.diff(upto, axis=0, prepend=0).astype(np.float64)


def _chain_s(floors: Floors, groups: IntArray, p: IntArray, m: IntArray, layers: int) -> FloatArray:
    """Least end_0 that all (A) together leave, layers divisible, whatever the order, (n,).

    Sorted by falling time, stages obey ``m x_j + sum_{i<j} x_i <= Z`` too, so with the fastest berths
    first the most layers go in when all of these are tight: ``x_j = Z / m (1 - 1 / m)^j``.
    """
    each, count = counts_of(floors, groups, p)
    q = 1.0 - 1.0 / m
    start = np.cumsum(count, axis=0) - count
    held = (q**start - q ** (start + count)) / np.where(count > 0, each, 1.0)  # layers for each second
    present = floors.room > 0
    beside = np.where(present, floors.beside_s, np.inf).min(axis=0)
    lost = (count / np.where(count > 0, each, 1.0)).sum(axis=0) * beside
    return np.asarray((layers + lost) / np.maximum(held.sum(axis=0), 1e-30))


def step_bound_s(floors: Floors, groups: IntArray | None, columns: Columns, layers: int) -> FloatArray:
    """Lower bound of every row over all placements on the berths it has room on, (n,).

    ``groups`` (K,) are the berths'; None: they are of different groups, and each has a stage.
    """
    p, m, present = columns.pipeline_parallel_size, columns.num_microbatches, floors.room > 0
    stage_s = least_stage_s(floors, groups, p, layers)
    least, total = floors.least, floors.total_s(p, layers)
    share = np.where(present, floors.forward_share, 0.0).max(axis=0)
    slope = np.maximum(m - 1.0 - (np.minimum(m, p) - 1.0) * share, 0.0)
    chain_s = _chain_s(floors, np.arange(len(present)) if groups is None else groups, p, m, layers)
    with np.errstate(invalid="ignore"):
        ends = np.maximum(np.maximum(m * stage_s, chain_s), total + slope * stage_s)
        ends = ends + least(floors.tail_s)
        step = least(floors.straggler) * ends + least(floors.fixed_s)
    return np.asarray(np.where(np.isfinite(stage_s), step * SAFETY**2, np.inf))
