"""Lower bounds of all rows of a mixed cluster at once, in NumPy, before any plan is sought.

The closed form of a plan with two or more stages is ``sum_s t_s + max_s ((m - 1) t_s + tail_s) + fixed``.
Let T be the time of its slowest stage. For T in [a, b], with multiplier mu on "all layers are held":

    sum_s t_s >= mu L - sum_g most_g(mu, b),   most_g: the most that group g's stages can earn,

where a stage on option o that is the k-th from the end holds at most ``hold(o, k, b)`` layers (time b;
memory with min(m, k) micro-batches in flight) and earns ``(mu - layer_o) hold``. A group may mix tensor
sizes. Cut its GPUs, in the order of its stages from the end, into blocks of the largest stage: every
stage that touches block k has at least k - 1 of the group's stages behind it, so block k earns at most
the best rate of any option at place k times the block's GPUs. Where stages choose how many layers they
recompute, the layers that memory holds without cost nothing more, and each further one replays as many as
make room for it: a stage further from the end earns no more then, too. The least over the
intervals of T bounds the row. Layers of several kinds are counted in units of work: a kind's work is its
mean time over the options, and an option's time for a unit is the least over the kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray
from meshwright.solver.search.mixed.rows import MixedRows

_ROUNDING = 1.0 + 1e-9
_SAFETY = 1.0 - 1e-9
_BISECTIONS, _LEAST = 20, 1e-9  # from so much of the most that a stage may take
_INTERVALS, _RATIO = 24, 1.04  # of the slowest stage: up to 2.5 times its least
_MULTIPLIERS = 12
_MOST_CELLS = 1 << 18  # rows times options times places, and kinds of layers, bounded together


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBounds:
    """Lower bounds of every row's plans, in s, (n,); +inf where no plan fits."""

    objective_s: FloatArray  # the closed form, with two stages or more
    step_s: FloatArray  # the simulated step, with two stages or more
    slowest_s: FloatArray  # the time of the slowest stage of one micro-batch
    others_s: FloatArray  # the closed form without the slowest stage's further micro-batches
    tail_s: FloatArray  # of a stage after the last micro-batch, at least
    share: FloatArray  # forward pass of the slowest stage over its time, at most
    more_s: FloatArray  # forward pass beyond that share, at most


def bounds_of(rows: MixedRows) -> RowBounds:
    """Bound every row that has two stages or more."""
    parts = np.zeros((7, len(rows)))
    for some in _pieces(rows, np.arange(len(rows))):
        held = _Held.of(rows, some)
        parts[:, some] = *held.bounds(), held.tail_s, held.forward_share, held.forward_s
    return RowBounds(**dict(zip(RowBounds.__slots__, parts, strict=True)))


def with_nearer_steps(bounds: RowBounds, rows: MixedRows, index: IntArray) -> RowBounds:
    """Return the bounds, with tighter ones of the simulated step of some rows."""
    step_s = bounds.step_s.copy()
    for some in _pieces(rows, index):
        step_s[some] = np.maximum(step_s[some], _Held.of(rows, some).steps_s(bounds.slowest_s[some]))
    return replace(bounds, step_s=step_s)


def _pieces(rows: MixedRows, index: IntArray) -> Iterator[IntArray]:
    """Yield the rows in pieces that fit in memory."""
    each = max(rows.room.shape[0] * _most_blocks(rows) * rows.layout.num_kinds, 1)
    step = max(_MOST_CELLS // each, 1)
    for start in range(0, len(index), step):
        look()
        yield index[start : start + step]


def _most_blocks(rows: MixedRows) -> int:
    cost = rows.sizes[:, 0] * rows.sizes[:, 1]
    most = 1
    for at in np.unique(rows.group_of):
        own = rows.room[rows.group_of == at] > 0
        largest = np.where(own, rows.gpus_of_stage[rows.group_of == at], 0).max(axis=0)
        blocks = np.where(largest > 0, rows.gpus[at] / np.maximum(largest, cost), 0.0)
        most = max(most, int(np.ceil(blocks.max(initial=1.0))))
    return min(most, rows.layout.num_layers)


_BY_ROW = (
    "units",
    "least_work",
    "ends_s",
    "tail_s",
    "fixed_s",
    "m",
    "stages",
    "forward_share",
    "forward_s",
)
_BY_OPTION = (
    "layer_s", "beside_s", "room", "most", "free", "again_s", "replay_s", "weight", "least_units",
    "most_units",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Some rows: what stages can hold; layers in units of work."""

    units: FloatArray  # (n,) of all layers
    whole: bool  # a unit is a layer
    layer_s: FloatArray  # (B, n) of a unit
    beside_s: FloatArray  # (B, n) of a stage, at least
    room: IntArray
    most: FloatArray  # (B, n, K) units that memory holds, by place from the end
    free: FloatArray  # (B, n, K) the same without a recomputed layer
    again_s: FloatArray  # (B, n, K) replay that each further unit asks for, at least
    replay_s: FloatArray  # (B, n) of a unit, at most
    weight: FloatArray  # (B, n, K) stages that a block of GPUs has room for
    groups: tuple[IntArray, ...]
    least_units: FloatArray  # (G, n) that a group holds, by the constraints on node groups
    most_units: FloatArray
    ends_s: FloatArray  # (n,) embedding, head
    tail_s: FloatArray
    fixed_s: FloatArray
    m: IntArray
    stages: IntArray  # the most
    forward_share: FloatArray  # (n,) of what a slowest stage computes, at most
    forward_s: FloatArray  # (n,) of its forward pass beyond that share, at most
    least_work: FloatArray  # (n,) of a layer, in units

    @classmethod
    def of(cls, rows: MixedRows, some: IntArray) -> _Held:
        """Return what the stages of some rows can hold."""
        room, counts = rows.room[:, some], rows.layout.cumulative[-1].astype(np.float64)
        there = room > 0
        scale = rows.transfers.scale[:, some]
        layer, one_kind = rows.layer_s[:, some] * scale[..., None], len(counts) == 1
        used = np.maximum(there.sum(axis=0), 1)[:, None]
        mean = np.where(there[..., None], layer, 0.0).sum(axis=0) / used
        work = np.ones(layer.shape[1:]) if one_kind else np.where(mean > 0.0, mean, 1.0)
        kept, state = rows.kept_bytes[:, some, :-2], rows.state_bytes[:, some, :-2]
        blocks = _most_blocks(rows)
        flight = np.minimum(rows.num_microbatches[some][:, None], np.arange(1, blocks + 1))  # (n, K)

        def unit_bytes(kept: FloatArray) -> FloatArray:
            each = state[:, :, None, :] + flight[None, :, :, None] * kept[:, :, None, :]
            return np.asarray((each / work[None, :, None]).min(axis=-1))

        room_bytes = np.maximum(rows.room_bytes[:, some], 0.0)[..., None] * _ROUNDING
        whole_kept = rows.whole_kept_bytes[:, some, :-2]
        each_whole, replay = unit_bytes(whole_kept), rows.replay_s[:, some] * scale[..., None]
        most, spared = room_bytes / unit_bytes(kept), np.maximum(whole_kept - kept, 1e-9)
        again = (replay / spared).min(axis=-1)[..., None] / flight[None] * each_whole * _SAFETY
        cost, tail = rows.gpus_of_stage[:, some], rows.tail_s[:, some]
        groups = tuple(np.flatnonzero(rows.group_of == at) for at in np.unique(rows.group_of))
        weight = np.zeros((*room.shape, blocks))
        for own in groups:
            largest = np.where(there[own], cost[own], 0).max(axis=0)
            gpus = rows.gpus[int(rows.group_of[own[0]]), some]
            left = gpus[:, None] - largest[:, None] * np.arange(blocks)
            block = np.clip(left, 0, np.maximum(largest, 1)[:, None])
            weight[own] = np.where(there[own][..., None], block[None] / cost[own][..., None], 0.0)
        transfers, some_work, most_work = rows.transfers, work.min(axis=1), work.max(axis=1)
        used_groups = [int(rows.group_of[own[0]]) for own in groups]
        beside = np.minimum(transfers.inside_s[:, some], rows.entered_s[:, some])

        share = np.where(there, rows.forward_share[:, some], 0.0).max(axis=0)
        more_s = scale * rows.more_forward_s[:, some] + np.where(there, beside, 0.0) * np.maximum(
            0.5 - share, 0.0
        )

        def least(values: FloatArray) -> FloatArray:
            return np.asarray(np.where(there, values, np.inf).min(axis=0))

        return cls(
            units=np.asarray(work @ counts), whole=one_kind,
            layer_s=(layer / work).min(axis=-1), beside_s=beside, room=room,
            most=np.floor(most) if one_kind else most, free=room_bytes / each_whole, again_s=again,
            replay_s=(replay / work).max(axis=-1), weight=weight, groups=groups,
            least_units=rows.least_layers[used_groups][:, some] * some_work,
            most_units=rows.most_layers[used_groups][:, some] * most_work,
            ends_s=least(scale * rows.embedding_s[:, some]) + least(scale * rows.head_s[:, some]),
            tail_s=least(scale * (rows.rank_tail_s[:, some] + tail[..., :-2].min(axis=-1))),
            fixed_s=least(rows.fixed_s[:, some]),
            m=rows.num_microbatches[some], stages=rows.most_stages[some],
            forward_share=share, forward_s=np.where(there, more_s, 0.0).max(axis=0), least_work=some_work,
        )  # fmt: skip

    def held(self, slowest_s: FloatArray) -> FloatArray:
        """Return the units that a stage holds by place from the end within a time, (B, n, K)."""
        left_s = np.maximum((slowest_s - self.beside_s) * _ROUNDING, 0.0)[..., None]
        layer_s = self.layer_s[..., None]
        beyond = np.maximum(left_s - self.free * layer_s, 0.0) / (layer_s + self.again_s)
        within = np.minimum(left_s / layer_s, self.free) + beyond
        within = np.floor(within * _ROUNDING) if self.whole else within
        return np.minimum(within, self.most)

    def are_enough(self, slowest_s: FloatArray) -> BoolArray:
        """Return whether stages of at most this time can hold all layers, (n,); False is a proof."""
        held = self.held(slowest_s) * self.weight
        each = np.stack([held[own].max(axis=0).sum(axis=-1) for own in self.groups])
        enough = np.minimum(each, self.most_units).sum(axis=0) * _ROUNDING >= self.units
        return np.asarray(enough & (each * _ROUNDING >= self.least_units).all(axis=0))

    def least_slowest_s(self) -> FloatArray:
        """Return the least time of the slowest stage, (n,); +inf where the layers fit nowhere."""
        high = ((self.layer_s + self.replay_s) * self.units + self.beside_s).max(axis=0) * _ROUNDING
        low, never = high * _LEAST, ~self.are_enough(high)
        for _ in range(_BISECTIONS):
            look()
            middle = np.sqrt(low * high)
            able = self.are_enough(middle)
            low, high = np.where(able, low, middle), np.where(able, middle, high)
        return np.asarray(np.where(never | (self.stages <= 1), np.inf, low))

    def bounds(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return (closed form, simulated step, slowest stage, the rest of the closed form), (n,) each."""
        slowest = self.least_slowest_s()
        fits = np.isfinite(slowest)
        known, m = np.where(fits, slowest, 0.0), self.m.astype(np.float64)
        multipliers = self._multipliers(slowest)
        waits = np.minimum(m, self.stages) - 1.0  # forward passes that stages behind the slowest hide
        beside, share = self.ends_s + self.tail_s, self.forward_share
        least = self.least_sum_s(np.full_like(known, np.inf), multipliers)  # of the last, which has no end

        def found(total: FloatArray, below: FloatArray) -> tuple[FloatArray, FloatArray]:
            steady_s = (m - 1.0) * below - waits * (share * below + self.forward_s)
            hidden_s = total + beside + np.maximum(steady_s, 0.0)
            step_s = np.maximum(hidden_s, m * below + self.tail_s)
            return total + (m - 1.0) * below + beside, step_s

        objective, step_s = found(least, known * _RATIO ** (_INTERVALS - 1))
        for step in range(_INTERVALS - 1):
            look()
            below = known * _RATIO**step
            possible = found(least, below)
            open_ = np.flatnonzero(fits & ((possible[0] < objective) | (possible[1] < step_s)))
            if not len(open_):
                break  # later intervals bound no row by less
            total = np.full(len(m), np.inf)
            some, own = self._take(open_), [each[open_] for each in multipliers]
            total[open_] = some.least_sum_s(below[open_] * _RATIO, own)
            both = found(total, below)
            objective, step_s = np.minimum(objective, both[0]), np.minimum(step_s, both[1])
        objective = np.where(fits, objective * _SAFETY + self.fixed_s, np.inf)
        step_s = np.where(fits, step_s * _SAFETY + self.fixed_s, np.inf)
        others_s = (least + self.ends_s) * _SAFETY + self.fixed_s
        return objective, step_s, slowest, np.where(fits, others_s, np.inf)

    def steps_s(self, slowest: FloatArray) -> FloatArray:
        """Return a bound of the simulated step that counts the stages one by one, (n,)."""
        multipliers, m, share = self._multipliers(slowest), self.m.astype(np.float64), self.forward_share
        known, step_s = np.where(np.isfinite(slowest), slowest, 0.0), np.full(len(m), np.inf)
        waits = np.minimum(m, self.stages) - 1.0
        for step in range(_INTERVALS - 1):
            look()
            below, above = known * _RATIO**step, known * _RATIO ** (step + 1)
            kept_s = self.least_sum_s(above, multipliers, share * above) + self.ends_s
            hidden_s = kept_s + (m - 1.0 + share) * below - waits * self.forward_s
            step_s = np.minimum(step_s, np.maximum(hidden_s, m * below))
        step_s = np.minimum(step_s, m * known * _RATIO ** (_INTERVALS - 1))  # of the last, which has no end
        return np.where(np.isfinite(slowest), (step_s + self.tail_s) * _SAFETY + self.fixed_s, np.inf)

    def _take(self, index: IntArray) -> _Held:
        """Return some of the rows."""
        by_row = {name: getattr(self, name)[index] for name in _BY_ROW}
        return replace(self, **by_row, **{name: getattr(self, name)[:, index] for name in _BY_OPTION})

    def _multipliers(self, slowest: FloatArray) -> list[FloatArray]:
        price = np.where(self.room > 0, self.layer_s, np.nan)
        low, high = np.nanmin(price, axis=0, initial=np.inf), np.nanmax(price, axis=0, initial=0.0)
        high = high + np.where(self.room > 0, self.again_s.max(axis=-1), 0.0).max(axis=0)
        scale = np.maximum(high / np.maximum(low, 1e-300) * 2.2, 1.5) ** (1.0 / (_MULTIPLIERS - 1))
        return [np.where(np.isfinite(slowest), low, 0.0) * scale**at for at in range(_MULTIPLIERS)]

    def least_sum_s(
        self, slowest_s: FloatArray, multipliers: list[FloatArray], spared_s: FloatArray | None = None
    ) -> FloatArray:
        """Return the least sum of all stages' layers within a time, less so much for each stage, (n,)."""
        held, best = self.held(slowest_s), np.full(len(slowest_s), -np.inf)
        free, beyond = np.minimum(held, self.free), np.maximum(held - self.free, 0.0)
        free, beyond, chooses = free * self.weight, beyond * self.weight, bool(self.replay_s.any())
        for each in multipliers:
            rate = (each - self.layer_s)[..., None]
            earned = np.maximum(rate, 0.0) * free
            if chooses:
                earned += np.maximum(rate - self.again_s, 0.0) * beyond
            if spared_s is not None:  # for which a stage may hold a layer at a loss
                loss = np.minimum(rate, 0.0) * self.least_work[:, None] + spared_s[:, None]
                earned = np.where(held > 0.0, np.maximum(earned + loss * self.weight, 0.0), 0.0)
            total = self._most_earned(earned, rate[..., 0], spared_s)
            best = np.maximum(best, each * self.units - total)
        return best

    def _most_earned(self, earned: FloatArray, rate: FloatArray, spared_s: FloatArray | None) -> FloatArray:
        """Return the most that all groups earn together, (n,).

        A group that has to hold units earns their rate, even at a loss; of limited units no more.
        """
        total = np.zeros(earned.shape[1])
        for own, least, most in zip(self.groups, self.least_units, self.most_units, strict=True):
            best = np.where(self.room[own] > 0, rate[own], -np.inf).max(axis=0)
            best = np.where(np.isfinite(best), best, 0.0)
            own_total = earned[own].max(axis=0).sum(axis=-1)
            spared = 0.0 if spared_s is None else spared_s * self.weight[own].sum(axis=-1).max(axis=0)
            total += np.where(
                best > 0.0, np.minimum(own_total, best * most + spared), best * least + spared
            )
        return total
