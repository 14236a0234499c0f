"""Explanations that are asked for on their own: two plans compared, roofs, nearby shapes, timelines.

Plain records; ``meshwright.solver.explain`` fills them, and reports show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import BoolArray, Configuration, FloatArray, IntArray

# --------------------------------------------------------------------------------------------------
# Two configurations held against one another.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One difference, carried over."""

    change: str
    step_change_s: float  # of the step time; below 0: faster
    terms_s: Mapping[str, float]  # the same by term of the waterfall; sums to it
    fits: bool  # the stop after it fits in memory
    breaks: tuple[str, ...]  # rules that this stop breaks, and the first side does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """From one configuration to another."""

    first: Prediction
    second: Prediction
    first_waterfall_s: Mapping[str, float]
    second_waterfall_s: Mapping[str, float]
    steps: tuple[Step, ...]  # their changes sum to the difference of the step times


# --------------------------------------------------------------------------------------------------
# Operators under the roof of their GPU (Williams, Waterman and Patterson 2009).


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPoint:
    """One operator of the forward pass of one micro-batch on one GPU."""

    name: str
    flops: float
    moved_bytes: float  # least traffic: inputs read, outputs written once
    seconds: float  # as the cost model prices it
    peak_flops: float  # of the precision that it runs in
    layers: int  # of the model that run it

    @property
    def intensity(self) -> float:
        """Return FLOP per byte."""
        return self.flops / self.moved_bytes

    @property
    def rate_flops(self) -> float:
        """Return the FLOP/s that it reaches."""
        return self.flops / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The roof of one GPU type, and the operators under it."""

    gpu: str
    bytes_per_s: float  # data sheet's memory bandwidth
    peak_flops: float  # highest of the operators' precisions
    points: tuple[OperatorPoint, ...]
    note: str = ""  # which ranks of a placed plan these are: their tensor-parallel size

    def roof_flops(self, point: OperatorPoint) -> float:
        """Return the FLOP/s that the GPU could reach at an operator's intensity."""
        return min(point.peak_flops, point.intensity * self.bytes_per_s)


# --------------------------------------------------------------------------------------------------
# Advice on a model's shape.


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbyShape:
    """One nearby shape with its price."""

    change: str  # ``vocabulary 50257 → 50304``
    why: str  # what it makes possible
    num_parameters: int
    parameters_change: float  # relative
    step_time_s: float  # of its own best plan
    gain: float  # time of a token and used parameter that it saves against the asked shape; below 0: none
    gain_in_place: (
        float | None
    )  # the same in the layout of the asked shape's plan; None: it cannot run there
    config: Configuration
    tensor_parallel_sizes: tuple[int, ...]  # up to a node, that divide heads and widths


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAdvice:
    """The asked shape's best plan, and nearby shapes by what they save."""

    config: Configuration
    prediction: Prediction
    num_parameters: int
    shapes: tuple[NearbyShape, ...]
    not_searched: tuple[str, ...] = ()  # changes with too many configurations to search them all


# --------------------------------------------------------------------------------------------------
# When every pass of every pipeline rank runs.
#
# Times are seconds from the start of the step, stragglers and calibration counted, so that what is drawn
# to scale ends where the prediction does.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """One pipeline rank; arrays have one entry per pass, in the order in which they run."""

    rank: int
    kind: IntArray  # codes of ``meshwright.solver.schedules.simulate.KINDS``
    chunk: IntArray  # in model order
    micro_batch: IntArray
    start_s: FloatArray
    seconds: FloatArray
    critical: BoolArray  # on the critical path: none of these passes can be longer without a longer step
    own_start_s: float  # what its time counts from; 0 unless its schedule leaves out synchronisation
    end_s: float  # of its last pass
    gradients_s: float  # then: its gradients are reduced, as far as nothing hides it
    optimizer_s: float  # then: its optimizer steps

    @property
    def busy_s(self) -> float:
        """Return the time in passes."""
        return float(self.seconds.sum())

    @property
    def time_s(self) -> float:
        """Return the time from its own start to the end of its optimizer step."""
        return self.end_s - self.own_start_s + self.gradients_s + self.optimizer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One pipeline's step. ``step = max_r (end_r - own_start_r + tails of r) + after_s``."""

    title: str  # which replicas it is of, where not all are alike; else empty
    ranks: tuple[RankTimeline, ...]
    after_s: float  # once per step whatever its size; the exchange between unlike replicas
    step_time_s: float
    num_microbatches: int
    simulated: int  # micro-batches with passes in this list; fewer than there are in very long steps

    @property
    def last(self) -> RankTimeline:
        """Return the rank that ends the step: the critical path ends on it."""
        return max(self.ranks, key=lambda rank: rank.time_s)

    @property
    def num_passes(self) -> int:
        """Return the passes of all ranks."""
        return sum(len(rank.start_s) for rank in self.ranks)

    @property
    def end_s(self) -> float:
        """Return when the last rank is done, from the first rank's start: the end of a drawing."""
        ends = [rank.end_s + rank.gradients_s + rank.optimizer_s for rank in self.ranks]
        return max(ends) + self.after_s


def slowest_step_s(timelines: Sequence[Timeline]) -> float:
    """Return the step of all classes of replicas, which is that of the slowest; 0 without any."""
    return max((one.step_time_s for one in timelines), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A timeline without its middle."""

    timeline: Timeline
    gap_s: tuple[float, float] | None  # passes that start in between are left out; None: none is


def window(timeline: Timeline, most_passes: int) -> Window:
    """Return the first and the last passes of a timeline, about half of ``most_passes`` each."""
    if timeline.num_passes <= most_passes:
        return Window(timeline=timeline, gap_s=None)
    starts = np.sort(np.concatenate([rank.start_s for rank in timeline.ranks]))
    half = max(most_passes // 2, 1)
    gap = (float(starts[half]), float(starts[-half]))
    ranks = tuple(
        _kept(rank, (rank.start_s < gap[0]) | (rank.start_s >= gap[1])) for rank in timeline.ranks
    )
    return Window(timeline=replace(timeline, ranks=ranks), gap_s=gap)


def _kept(rank: RankTimeline, keep: BoolArray) -> RankTimeline:
    return replace(
        rank,
        kind=rank.kind[keep],
        chunk=rank.chunk[keep],
        micro_batch=rank.micro_batch[keep],
        start_s=rank.start_s[keep],
        seconds=rank.seconds[keep],
        critical=rank.critical[keep],
    )
