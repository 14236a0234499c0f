"""The timeline of a plan's step, from the same prices and the same simulation as its prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import RankTimeline, Timeline
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.pipelines import Assembled, Fleet, PlacedPipeline, placed_pipeline
from meshwright.solver.predict import can_simulate, groups_of, share_of
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import BYPASSES_SYNC
from meshwright.solver.schedules.simulate import Passes, passes_of, rank_finish_s

MOST_PASSES = 2**16  # that are kept as columns; of longer steps the first micro-batches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """What a pipeline's passes take, before stragglers."""

    config: Configuration
    forward_s: tuple[float, ...]  # by chunk
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...] | None
    gradients_s: tuple[float, ...]  # by rank, after its last pass
    optimizer_s: tuple[float, ...]
    scale: float  # stragglers and calibration
    fixed_s: float


def timelines_of(problem: Problem, profile: Profile, config: Configuration) -> list[Timeline]:
    """One timeline; one of each class where replicas are unlike; none where no order is known.

    ``problem`` is as the plan settled it, ``profile`` what prices it. The longest ``step_time_s`` is the
    predicted one.
    """
    if config.replicas:
        return _of_classes(problem, profile, config)
    if config.stage_groups:
        return [_timeline(_placed(placed_pipeline(problem, profile, config)))]
    return [_timeline(_meshed(problem, profile, config))] if can_simulate(config) else []


def _of_classes(problem: Problem, profile: Profile, config: Configuration) -> list[Timeline]:
    """Each class of replicas; the exchange between them follows the slowest."""
    exchange_s = Fleet.of(problem, profile).exchange_s(groups_of(Fleet.of(problem, profile), config))
    found = []
    for number, one in enumerate(config.replicas):
        alone = _timeline(_placed(placed_pipeline(share_of(problem, one), profile, one)))
        found.append(
            replace(
                alone,
                title=f"replicas of kind {number}",
                after_s=alone.after_s + exchange_s,
                step_time_s=alone.step_time_s + exchange_s,
            )
        )
    return found


def _meshed(problem: Problem, profile: Profile, config: Configuration) -> _Priced:
    """A mesh over equal nodes."""
    found = Assembled.of(problem, profile, [config])
    stages, chunks, pp = found.stages, len(config.stage_layers), config.pipeline_parallel_size
    mine = [found.chunks.valid[0] & (found.chunks.rank[0] == rank) for rank in range(pp)]
    price = found.prices.tail_breakdown_s["optimizer"][0]
    optimizer = [float(found.chunks.parts[0, held].sum(axis=0) @ price) for held in mine]
    tails = stages.rank_tail_s[0, :pp].tolist()
    return _Priced(
        config=config,
        forward_s=tuple(stages.chunk_forward_s[0, :chunks].tolist()),
        backward_s=tuple(stages.chunk_backward_s[0, :chunks].tolist()),
        weight_s=tuple(stages.chunk_weight_s[0, :chunks].tolist()),
        gradients_s=tuple(max(tail - own, 0.0) for tail, own in zip(tails, optimizer, strict=True)),
        optimizer_s=tuple(min(tail, own) for tail, own in zip(tails, optimizer, strict=True)),
        scale=float(found.prices.straggler[0]),
        fixed_s=float(found.prices.fixed_s[0]),
    )


def _placed(pipeline: PlacedPipeline) -> _Priced:
    """Stages on node groups of their own."""
    stages = pipeline.stages
    return _Priced(
        config=pipeline.config,
        forward_s=tuple(stage.forward_s for stage in stages),
        backward_s=tuple(stage.backward_s for stage in stages),
        weight_s=None,
        gradients_s=tuple(stage.tail_s - stage.optimizer_s for stage in stages),
        optimizer_s=tuple(stage.optimizer_s for stage in stages),
        scale=pipeline.straggler,
        fixed_s=pipeline.fixed_s,
    )


def _timeline(priced: _Priced) -> Timeline:
    """The simulated passes, scaled, with what follows the last one of each rank."""
    c = priced.config
    schedule, pp, m = c.pipeline_schedule, c.pipeline_parallel_size, c.num_microbatches
    few = min(m, max(MOST_PASSES // (3 * len(priced.forward_s) * pp), 4) * pp)
    passes = passes_of(
        priced.forward_s,
        priced.backward_s,
        priced.weight_s,
        pp=pp,
        num_microbatches=few,
        schedule=schedule,
    )
    bypasses = schedule in BYPASSES_SYNC and pp > 1
    starts = [float(one.start_s[0]) if bypasses else 0.0 for one in passes]
    finish = rank_finish_s(
        priced.forward_s,
        priced.backward_s,
        pp=pp,
        num_microbatches=m,
        schedule=schedule,
        weight_s=priced.weight_s,
    )
    ranks = tuple(
        _rank(priced, number, one, (starts[number], starts[number] + finish[number]))
        for number, one in enumerate(passes)
    )
    tails = [rank.end_s - rank.own_start_s + rank.gradients_s + rank.optimizer_s for rank in ranks]
    return Timeline(
        title="",
        ranks=ranks,
        after_s=priced.fixed_s,
        step_time_s=max(tails) + priced.fixed_s,
        num_microbatches=m,
        simulated=few,
    )


def _rank(priced: _Priced, number: int, passes: Passes, ends_s: tuple[float, float]) -> RankTimeline:
    """One rank's passes and tails."""
    scale = priced.scale
    return RankTimeline(
        rank=number,
        kind=passes.kind,
        chunk=passes.chunk,
        micro_batch=passes.micro_batch,
        start_s=np.asarray(scale * passes.start_s),
        seconds=np.asarray(scale * passes.seconds),
        own_start_s=scale * ends_s[0],
        end_s=scale * ends_s[1],
        gradients_s=scale * priced.gradients_s[number],
        optimizer_s=scale * priced.optimizer_s[number],
    )
