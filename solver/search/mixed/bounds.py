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

from collections.abc import Iterator, Sequence
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
    cells = max(rows.room.shape[0] * _most_blocks(rows) * rows.layout.num_kinds, 1)
    size = max(_MOST_CELLS // cells, 1)
    for start in range(0, len(index), size):
        look()
        yield index[start : start + size]


def _most_blocks(rows: MixedRows) -> int:
    """Return the most blocks, each of its largest stage, into which a row cuts the GPUs of a group."""
    smallest = rows.sizes[:, 0] * rows.sizes[:, 1]
    found = 1
    for group in np.unique(rows.group_of):
        usable = rows.room[rows.group_of == group] > 0
        largest = np.where(usable, rows.gpus_of_stage[rows.group_of == group], 0).max(axis=0)
        blocks = np.where(largest > 0, rows.gpus[group] / np.maximum(largest, smallest), 0.0)
        found = max(found, int(np.ceil(blocks.max(initial=1.0))))
    return min(found, rows.layout.num_layers)


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
    "layer_s", "beside_s", "room", "most", "free", "further_replay_s", "replay_s", "weight", "least_units",
    "most_units",
)  # fmt: skip


def _work_of_layers(layer_s: FloatArray, usable: BoolArray) -> FloatArray:
    """Return the units of a layer of each kind, (n, K): 1, or seconds on the mean of usable options."""
    if layer_s.shape[-1] == 1:
        return np.ones(layer_s.shape[1:])
    num_usable = np.maximum(usable.sum(axis=0), 1)[:, None]
    mean_s = np.where(usable[..., None], layer_s, 0.0).sum(axis=0) / num_usable
    return np.where(mean_s > 0.0, mean_s, 1.0)


def _stages_of_places(
    rows: MixedRows, some: IntArray, groups: Sequence[IntArray], usable: BoolArray
) -> FloatArray:
    """Return the stages that each block of a group's GPUs has room for, (B, n, K).

    A block has the GPUs of the largest usable stage of its group; the last one has what is left.
    """
    blocks, stage_gpus = np.arange(_most_blocks(rows)), rows.gpus_of_stage[:, some]
    stages = np.zeros((*usable.shape, len(blocks)))
    for options in groups:
        largest = np.where(usable[options], stage_gpus[options], 0).max(axis=0)
        gpus = rows.gpus[int(rows.group_of[options[0]]), some]
        left_gpus = gpus[:, None] - largest[:, None] * blocks
        block_gpus = np.clip(left_gpus, 0, np.maximum(largest, 1)[:, None])
        room = block_gpus[None] / stage_gpus[options][..., None]
        stages[options] = np.where(usable[options][..., None], room, 0.0)
    return stages


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
    further_replay_s: FloatArray  # (B, n, K) replay that each further unit asks for, at least
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
        """Return what the stages of some rows can hold.

        Axes are options (B), rows (n), places of a stage from the end (K), kinds of layers. ``usable``
        marks options that a row may use.
        """
        room, counts = rows.room[:, some], rows.layout.cumulative[-1].astype(np.float64)
        usable = room > 0
        scale = rows.transfers.scale[:, some]
        layer_s, one_kind = rows.layer_s[:, some] * scale[..., None], len(counts) == 1
        work = _work_of_layers(layer_s, usable)
        kept_bytes, state_bytes = rows.kept_bytes[:, some, :-2], rows.state_bytes[:, some, :-2]
        blocks = _most_blocks(rows)
        in_flight = np.minimum(rows.num_microbatches[some][:, None], np.arange(1, blocks + 1))  # (n, K)

        def unit_bytes(kept_bytes: FloatArray) -> FloatArray:
            """Return the least bytes of a unit on a stage, (B, n, K), with what its layers keep."""
            passing_bytes = in_flight[None, :, :, None] * kept_bytes[:, :, None, :]
            layer_bytes = state_bytes[:, :, None, :] + passing_bytes
            return np.asarray((layer_bytes / work[None, :, None]).min(axis=-1))

        room_bytes = np.maximum(rows.room_bytes[:, some], 0.0)[..., None] * _ROUNDING
        whole_kept = rows.whole_kept_bytes[:, some, :-2]
        whole_bytes, replay_s = unit_bytes(whole_kept), rows.replay_s[:, some] * scale[..., None]
        by_memory = room_bytes / unit_bytes(kept_bytes)
        # A further unit takes the memory of whole layers; so many replayed ones make room for it.
        spared_bytes = np.maximum(whole_kept - kept_bytes, 1e-9)
        replay_s_of_byte = (replay_s / spared_bytes).min(axis=-1)[..., None]
        further_replay_s = replay_s_of_byte / in_flight[None] * whole_bytes * _SAFETY
        groups = tuple(np.flatnonzero(rows.group_of == group) for group in np.unique(rows.group_of))
        used_groups = [int(rows.group_of[options[0]]) for options in groups]
        least_work, most_work, tail_s = work.min(axis=1), work.max(axis=1), rows.tail_s[:, some]
        beside_s = np.minimum(rows.transfers.inside_s[:, some], rows.entered_s[:, some])
        beside_s = beside_s + rows.transfers.further_s[:, some]
        forward_share = np.where(usable, rows.forward_share[:, some], 0.0).max(axis=0)
        hidden_s = np.where(usable, beside_s, 0.0) * np.maximum(0.5 - forward_share, 0.0)
        forward_s = scale * rows.more_forward_s[:, some] + hidden_s

        def least(values: FloatArray) -> FloatArray:
            return np.asarray(np.where(usable, values, np.inf).min(axis=0))

        return cls(
            units=np.asarray(work @ counts), whole=one_kind,
            layer_s=(layer_s / work).min(axis=-1), beside_s=beside_s, room=room,
            most=np.floor(by_memory) if one_kind else by_memory, free=room_bytes / whole_bytes,
            further_replay_s=further_replay_s, replay_s=(replay_s / work).max(axis=-1),
            weight=_stages_of_places(rows, some, groups, usable), groups=groups,
            least_units=rows.least_layers[used_groups][:, some] * least_work,
            most_units=rows.most_layers[used_groups][:, some] * most_work,
            ends_s=least(scale * rows.embedding_s[:, some]) + least(scale * rows.head_s[:, some]),
            tail_s=least(scale * (rows.rank_tail_s[:, some] + tail_s[..., :-2].min(axis=-1))),
            fixed_s=least(rows.fixed_s[:, some]),
            m=rows.num_microbatches[some], stages=rows.most_stages[some],
            forward_share=forward_share, forward_s=np.where(usable, forward_s, 0.0).max(axis=0),
            least_work=least_work,
        )  # fmt: skip

    def held(self, slowest_s: FloatArray) -> FloatArray:
        """Return the units that a stage holds by place from the end within a time, (B, n, K)."""
        left_s = np.maximum((slowest_s - self.beside_s) * _ROUNDING, 0.0)[..., None]
        layer_s = self.layer_s[..., None]
        replayed = np.maximum(left_s - self.free * layer_s, 0.0) / (layer_s + self.further_replay_s)
        units = np.minimum(left_s / layer_s, self.free) + replayed
        units = np.floor(units * _ROUNDING) if self.whole else units
        return np.minimum(units, self.most)

    def are_enough(self, slowest_s: FloatArray) -> BoolArray:
        """Return whether stages of at most this time can hold all layers, (n,); False is a proof."""
        held = self.held(slowest_s) * self.weight
        of_group = np.stack([held[options].max(axis=0).sum(axis=-1) for options in self.groups])
        enough = np.minimum(of_group, self.most_units).sum(axis=0) * _ROUNDING >= self.units
        return np.asarray(enough & (of_group * _ROUNDING >= self.least_units).all(axis=0))

    def least_slowest_s(self) -> FloatArray:
        """Return the least time of the slowest stage, (n,); +inf where the layers fit nowhere."""
        high_s = ((self.layer_s + self.replay_s) * self.units + self.beside_s).max(axis=0) * _ROUNDING
        low_s, unable = high_s * _LEAST, ~self.are_enough(high_s)
        for _ in range(_BISECTIONS):
            look()
            middle_s = np.sqrt(low_s * high_s)
            able = self.are_enough(middle_s)
            low_s, high_s = np.where(able, low_s, middle_s), np.where(able, middle_s, high_s)
        return np.asarray(np.where(unable | (self.stages <= 1), np.inf, low_s))

    def bounds(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return (closed form, simulated step, slowest stage, the rest of the closed form), (n,) each."""
        slowest_s = self.least_slowest_s()
        fits = np.isfinite(slowest_s)
        first_s, m = np.where(fits, slowest_s, 0.0), self.m.astype(np.float64)
        multipliers = self._multipliers(slowest_s)
        waits = np.minimum(m, self.stages) - 1.0  # forward passes that stages behind the slowest hide
        ends_and_tail_s, share = self.ends_s + self.tail_s, self.forward_share
        # The last interval has no end.
        last_sum_s = self.least_sum_s(np.full_like(first_s, np.inf), multipliers)

        def bounds_at(sum_s: FloatArray, low_s: FloatArray) -> tuple[FloatArray, FloatArray]:
            """Bound (closed form, simulated step), (n,), given stages' sum and a slowest one, at least."""
            steady_s = (m - 1.0) * low_s - waits * (share * low_s + self.forward_s)
            hidden_s = sum_s + ends_and_tail_s + np.maximum(steady_s, 0.0)
            step_s = np.maximum(hidden_s, m * low_s + self.tail_s)
            return sum_s + (m - 1.0) * low_s + ends_and_tail_s, step_s

        objective_s, step_s = bounds_at(last_sum_s, first_s * _RATIO ** (_INTERVALS - 1))
        for step in range(_INTERVALS - 1):
            look()
            low_s = first_s * _RATIO**step
            optimistic = bounds_at(last_sum_s, low_s)
            open_rows = np.flatnonzero(fits & ((optimistic[0] < objective_s) | (optimistic[1] < step_s)))
            if not len(open_rows):
                break  # later intervals bound no row by less
            sum_s = np.full(len(m), np.inf)
            open_held, own_multipliers = self._take(open_rows), [each[open_rows] for each in multipliers]
            sum_s[open_rows] = open_held.least_sum_s(low_s[open_rows] * _RATIO, own_multipliers)
            further = bounds_at(sum_s, low_s)
            objective_s, step_s = np.minimum(objective_s, further[0]), np.minimum(step_s, further[1])
        objective_s = np.where(fits, objective_s * _SAFETY + self.fixed_s, np.inf)
        step_s = np.where(fits, step_s * _SAFETY + self.fixed_s, np.inf)
        others_s = (last_sum_s + self.ends_s) * _SAFETY + self.fixed_s
        return objective_s, step_s, slowest_s, np.where(fits, others_s, np.inf)

    def steps_s(self, slowest: FloatArray) -> FloatArray:
        """Return a bound of the simulated step that counts the stages one by one, (n,)."""
        multipliers, m, share = self._multipliers(slowest), self.m.astype(np.float64), self.forward_share
        first_s, step_s = np.where(np.isfinite(slowest), slowest, 0.0), np.full(len(m), np.inf)
        waits = np.minimum(m, self.stages) - 1.0
        for step in range(_INTERVALS - 1):
            look()
            low_s, high_s = first_s * _RATIO**step, first_s * _RATIO ** (step + 1)
            sum_s = self.least_sum_s(high_s, multipliers, share * high_s) + self.ends_s
            hidden_s = sum_s + (m - 1.0 + share) * low_s - waits * self.forward_s
            step_s = np.minimum(step_s, np.maximum(hidden_s, m * low_s))
        step_s = np.minimum(
            step_s, m * first_s * _RATIO ** (_INTERVALS - 1)
        )  # of the last, which has no end
        return np.where(np.isfinite(slowest), (step_s + self.tail_s) * _SAFETY + self.fixed_s, np.inf)

    def _take(self, index: IntArray) -> _Held:
        """Return some of the rows."""
        by_row = {name: getattr(self, name)[index] for name in _BY_ROW}
        return replace(self, **by_row, **{name: getattr(self, name)[:, index] for name in _BY_OPTION})

    def _multipliers(self, slowest: FloatArray) -> list[FloatArray]:
        """Return multipliers from the fastest option's time of a unit to above the slowest's, (n,) each."""
        layer_s = np.where(self.room > 0, self.layer_s, np.nan)
        low, high = np.nanmin(layer_s, axis=0, initial=np.inf), np.nanmax(layer_s, axis=0, initial=0.0)
        high = high + np.where(self.room > 0, self.further_replay_s.max(axis=-1), 0.0).max(axis=0)
        scale = np.maximum(high / np.maximum(low, 1e-300) * 2.2, 1.5) ** (1.0 / (_MULTIPLIERS - 1))
        return [np.where(np.isfinite(slowest), low, 0.0) * scale**power for power in range(_MULTIPLIERS)]

    def least_sum_s(
        self, slowest_s: FloatArray, multipliers: list[FloatArray], spared_s: FloatArray | None = None
    ) -> FloatArray:
        """Return the least sum of all stages' layers, (n,): the best bound of several multipliers.

        Args:
            slowest_s: the most that a stage may take, (n,).
            multipliers: mu of "all layers are held", (n,) each.
            spared_s: taken off the sum for each stage, (n,).
        """
        held, best = self.held(slowest_s), np.full(len(slowest_s), -np.inf)
        free, replayed = np.minimum(held, self.free), np.maximum(held - self.free, 0.0)
        free, replayed, recomputes = free * self.weight, replayed * self.weight, bool(self.replay_s.any())
        for multiplier in multipliers:
            rate = (multiplier - self.layer_s)[..., None]
            earned = np.maximum(rate, 0.0) * free
            if recomputes:
                earned += np.maximum(rate - self.further_replay_s, 0.0) * replayed
            if spared_s is not None:  # for which a stage may hold a layer at a loss
                loss = np.minimum(rate, 0.0) * self.least_work[:, None] + spared_s[:, None]
                earned = np.where(held > 0.0, np.maximum(earned + loss * self.weight, 0.0), 0.0)
            total = self._most_earned(earned, rate[..., 0], spared_s)
            best = np.maximum(best, multiplier * self.units - total)
        return best

    def _most_earned(self, earned: FloatArray, rate: FloatArray, spared_s: FloatArray | None) -> FloatArray:
        """Return the most that all groups earn together, (n,).

        A group that has to hold units earns their rate, even at a loss; of limited units no more.
        """
        total = np.zeros(earned.shape[1])
        for options, least, most in zip(self.groups, self.least_units, self.most_units, strict=True):
            best_rate = np.where(self.room[options] > 0, rate[options], -np.inf).max(axis=0)
            best_rate = np.where(np.isfinite(best_rate), best_rate, 0.0)
            earned_alone = earned[options].max(axis=0).sum(axis=-1)
            spared = 0.0 if spared_s is None else spared_s * self.weight[options].sum(axis=-1).max(axis=0)
            total += np.where(
                best_rate > 0.0,
                np.minimum(earned_alone, best_rate * most + spared),
                best_rate * least + spared,
            )
        return total
