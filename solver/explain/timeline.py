"""Timeline of a plan's step, from the same prices and the same simulation as its prediction."""

from __future__ import annotations

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import RankTimeline, Timeline
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import Pipeline, can_simulate, evaluate
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import BYPASSES_SYNC
from meshwright.solver.schedules.simulate import Passes, passes_of, rank_finish_s

MOST_PASSES = 2**16  # that are kept as columns; of longer steps the first micro-batches


def timelines_of(problem: Problem, profile: Profile, config: Configuration) -> list[Timeline]:
    """Return one timeline; one of each class where replicas are unlike; none where no order is known.

    ``problem`` is as the plan settled it, ``profile`` its prices. The longest ``step_time_s`` is the
    predicted one.
    """
    if not all(map(can_simulate, config.classes)):
        return []
    (evaluation,) = evaluate(problem, profile, [config])
    unlike = len(evaluation.classes) > 1
    return [
        _timeline(one, evaluation.exchange_s, f"replicas of kind {number}" if unlike else "")
        for number, one in enumerate(evaluation.classes)
    ]


def _timeline(priced: Pipeline, exchange_s: float, title: str) -> Timeline:
    c = priced.config
    schedule, pp, m = c.pipeline_schedule, c.pipeline_parallel_size, c.num_microbatches
    forward_s, backward_s, weight_s = priced.passes_s()
    few = min(m, max(MOST_PASSES // (3 * len(forward_s) * pp), 4) * pp)
    passes = passes_of(
        forward_s,
        backward_s,
        weight_s,
        pp=pp,
        num_microbatches=few,
        schedule=schedule,
    )
    bypasses = schedule in BYPASSES_SYNC and pp > 1
    starts = [float(one.start_s[0]) if bypasses else 0.0 for one in passes]
    finish = rank_finish_s(
        forward_s,
        backward_s,
        pp=pp,
        num_microbatches=m,
        schedule=schedule,
        weight_s=weight_s,
    )
    ranks = tuple(
        _rank(priced, number, one, (starts[number], starts[number] + finish[number]))
        for number, one in enumerate(passes)
    )
    tails = [rank.end_s - rank.own_start_s + rank.gradients_s + rank.optimizer_s for rank in ranks]
    return Timeline(
        title=title,
        ranks=ranks,
        after_s=priced.fixed_s + exchange_s,
        step_time_s=max(tails) + priced.fixed_s + exchange_s,
        num_microbatches=m,
        simulated=few,
    )


def _rank(priced: Pipeline, number: int, passes: Passes, ends_s: tuple[float, float]) -> RankTimeline:
    scale, stage = priced.straggler, priced.stages[number]
    optimizer_s = min(stage.tail_s, stage.of_tail_s("optimizer"))
    return RankTimeline(
        rank=number,
        kind=passes.kind,
        chunk=passes.chunk,
        micro_batch=passes.micro_batch,
        start_s=np.asarray(scale * passes.start_s),
        seconds=np.asarray(scale * passes.seconds),
        own_start_s=scale * ends_s[0],
        end_s=scale * ends_s[1],
        gradients_s=scale * (stage.tail_s - optimizer_s),
        optimizer_s=scale * optimizer_s,
    )
