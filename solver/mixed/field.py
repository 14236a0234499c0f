"""One row on one choice of berths: what every stage would take, and every placement's price.

A *field* is a row with at most one berth of each group, every one of which must be used: the stages of a
group are neighbours (a *run*), so a slow link is crossed once for each further group. What a stage takes
depends on its number in the pipeline (activations in flight, embedding, head), its layers i … j - 1, its
berth, and the berth before it (the transfer between them, forward and backward, is the later stage's).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.columns import SCHEDULES, BoolArray, FloatArray, IntArray
from solver.mixed.outer import Outer
from solver.search.simulate import rank_finish_s
from solver.search.stages import StageTables


@dataclass(frozen=True, slots=True)
class Stop:
    """One stage of a placement: a berth of the field and its layers."""

    berth: int
    start: int
    end: int


Placement = tuple[Stop, ...]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One row on B berths of different groups."""

    outer: Outer
    row: int
    berths: tuple[int, ...]  # among ``outer.berths``

    @cached_property
    def tables(self) -> tuple[StageTables, ...]:
        """Times and memory of layers i … j - 1 as stage s on each berth."""
        return tuple(StageTables(self.outer.rows[berth].take([self.row])) for berth in self.berths)

    @property
    def p(self) -> int:
        """Stages."""
        return int(self.outer.columns.pipeline_parallel_size[self.row])

    @property
    def m(self) -> int:
        """Micro-batches."""
        return int(self.outer.columns.num_microbatches[self.row])

    @property
    def num_layers(self) -> int:
        """L."""
        return self.outer.layout.num_layers

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Most stages on each berth."""
        return tuple(min(int(self.outer.room[berth, self.row]), self.p) for berth in self.berths)

    @cached_property
    def asked_layers(self) -> IntArray:
        """Layers that the request prescribes for each stage, (p,); 0: any."""
        asked = self.outer.fleet.problem.options.stage_layers
        return np.array(asked if len(asked) == self.p else (0,) * self.p)

    @cached_property
    def time_s(self) -> FloatArray:
        """Forward and backward of one micro-batch, (B, p, L + 1, L + 1)."""
        return np.stack([table.time_s for table in self.tables])

    @cached_property
    def forward_s(self) -> FloatArray:
        """Of it the forward pass."""
        return np.stack([table.forward_s for table in self.tables])

    @cached_property
    def tail_s(self) -> FloatArray:
        """What follows the last micro-batch."""
        return np.stack([np.broadcast_to(table.tail_s, table.time_s.shape) for table in self.tables])

    @cached_property
    def fits(self) -> BoolArray:
        """Whether the layers are legal there, as the request says, and fit the berth's memory."""
        asked = self.asked_layers[:, None, None]
        return np.stack([table.fits & ((asked == 0) | (table.size == asked)) for table in self.tables])

    @cached_property
    def straggler(self) -> float:
        """Of the slowest berth."""
        return max(float(self.outer.rows[at].prices.straggler[self.row]) for at in self.berths)

    @cached_property
    def fixed_s(self) -> float:
        """Of the slowest berth."""
        return max(float(self.outer.rows[at].prices.fixed_s[self.row]) for at in self.berths)

    @cached_property
    def enter_s(self) -> FloatArray:
        """What a stage on berth b takes more when berth a is before it, (B, B), both directions."""
        count = len(self.berths)
        more = np.zeros((count, count))
        for a in range(count):
            for b in range(count):
                if a != b:
                    own = float(self.outer.rows[self.berths[b]].prices.transfer_s[self.row])
                    more[a, b] = 2.0 * (self.outer.hop_s(self.row, self.berths[a], self.berths[b]) - own)
        return more

    @cached_property
    def entered_s(self) -> FloatArray:
        """``time_s`` of a stage on berth b behind one on berth a, (B, B, p, L + 1, L + 1)."""
        return np.asarray(self.time_s[None] + self.enter_s[:, :, None, None, None])

    def stage_times_s(self, placement: Placement) -> tuple[list[float], list[float], list[float]]:
        """Forward, backward and tail of every stage."""
        forward, backward, tail = list[float](), list[float](), list[float]()
        before = placement[0].berth
        for number, stop in enumerate(placement):
            at = (stop.berth, number, stop.start, stop.end)
            hop = self.enter_s[before, stop.berth] / 2.0
            forward.append(float(self.forward_s[at] + hop))
            backward.append(float(self.time_s[at] - self.forward_s[at] + hop))
            tail.append(float(self.tail_s[at]))
            before = stop.berth
        return forward, backward, tail

    def objective_s(self, placement: Placement) -> float:
        """The closed form: ``straggler (sum_s t_s + max_s ((m - 1) t_s + tail_s)) + fixed``."""
        forward, backward, tail = self.stage_times_s(placement)
        times = [f + b for f, b in zip(forward, backward, strict=True)]
        slowest = max((self.m - 1) * time + last for time, last in zip(times, tail, strict=True))
        return self.straggler * (sum(times) + slowest) + self.fixed_s

    def simulated_s(self, placement: Placement) -> float:
        """The step time by event simulation."""
        forward, backward, tail = self.stage_times_s(placement)
        finish = rank_finish_s(
            forward,
            backward,
            pp=self.p,
            num_microbatches=self.m,
            schedule=SCHEDULES[int(self.outer.columns.pipeline_schedule[self.row])],
        )
        last = max(end + more for end, more in zip(finish, tail, strict=True))
        return self.straggler * last + self.fixed_s
