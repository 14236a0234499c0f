"""When every pass of every pipeline rank runs: plain records; ``solver.why.timed`` fills them.

Times are seconds from the start of the step, stragglers and calibration counted, so that what is drawn to
scale ends where the prediction does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray

KINDS = ("forward", "backward", "input_gradient", "weight_gradient")  # by code


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """One pipeline rank; arrays have one entry per pass, in the order in which they run."""

    rank: int
    kind: IntArray  # codes of KINDS
    chunk: IntArray  # in model order
    micro_batch: IntArray
    start_s: FloatArray
    seconds: FloatArray
    own_start_s: float  # what its time counts from; 0 unless its schedule leaves out synchronisation
    end_s: float  # of its last pass
    gradients_s: float  # then: its gradients are reduced, as far as nothing hides it
    optimizer_s: float  # then: its optimizer steps

    @property
    def busy_s(self) -> float:
        """Time in passes."""
        return float(self.seconds.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One pipeline's step. ``step = max_r (end_r - own_start_r + tails of r) + after_s``."""

    title: str  # which replicas it is of, where not all are alike; else empty
    ranks: tuple[RankTimeline, ...]
    after_s: float  # once per step whatever its size; the exchange between unlike replicas
    step_time_s: float
    num_microbatches: int
    simulated: int  # micro-batches whose passes are here; fewer than there are in very long steps

    @property
    def num_passes(self) -> int:
        """Passes of all ranks."""
        return sum(len(rank.start_s) for rank in self.ranks)

    @property
    def end_s(self) -> float:
        """When the last rank is done, from the first rank's start: where a drawing ends."""
        ends = [rank.end_s + rank.gradients_s + rank.optimizer_s for rank in self.ranks]
        return max(ends) + self.after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A timeline without its middle."""

    timeline: Timeline
    gap_s: tuple[float, float] | None  # passes that start in between are left out; None: none is


def window(timeline: Timeline, most_passes: int) -> Window:
    """The first and the last passes of a timeline, about half of ``most_passes`` each."""
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
    """Some passes of a rank."""
    return replace(
        rank,
        kind=rank.kind[keep],
        chunk=rank.chunk[keep],
        micro_batch=rank.micro_batch[keep],
        start_s=rank.start_s[keep],
        seconds=rank.seconds[keep],
    )
