"""Timeline of a plan's step, from the same prices and the same simulation as its prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import Pipeline, can_simulate, evaluate
from meshwright.solver.explanation import RankTimeline, Timeline
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import BYPASSES_SYNC
from meshwright.solver.schedules.simulate import KINDS, Passes, passes_of, rank_finish_s

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
    # whole groups of pp micro-batches, as interleaved schedules run them; 3 kinds of passes of each
    simulated = min(m, max(MOST_PASSES // (3 * len(forward_s) * pp), 4) * pp)
    passes = passes_of(
        forward_s,
        backward_s,
        weight_s,
        pp=pp,
        num_microbatches=simulated,
        schedule=schedule,
    )
    # without a barrier between steps, a rank's step begins with its first pass, not with the first rank's
    bypasses = schedule in BYPASSES_SYNC and pp > 1
    starts_s = [float(of_rank.start_s[0]) if bypasses else 0.0 for of_rank in passes]
    durations_s = rank_finish_s(
        forward_s,
        backward_s,
        pp=pp,
        num_microbatches=m,
        schedule=schedule,
        weight_s=weight_s,
    )
    ranks = tuple(
        _rank(priced, number, of_rank, (start_s, start_s + duration_s))
        for number, (of_rank, start_s, duration_s) in enumerate(
            zip(passes, starts_s, durations_s, strict=True)
        )
    )
    slowest = max(ranks, key=lambda rank: rank.time_s)
    return Timeline(
        title=title,
        ranks=_with_critical_path(ranks, slowest, len(forward_s)),
        after_s=priced.fixed_s + exchange_s,
        step_time_s=slowest.time_s + priced.fixed_s + exchange_s,
        num_microbatches=m,
        simulated=simulated,
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
        critical=np.zeros(len(passes.kind), dtype=bool),
        own_start_s=scale * ends_s[0],
        end_s=scale * ends_s[1],
        gradients_s=scale * (stage.tail_s - optimizer_s),
        optimizer_s=scale * optimizer_s,
    )


# --------------------------------------------------------------------------------------------------
# The critical path: from the last pass of the slowest rank back, always to the pass that was waited for.


_FORWARD, _BACKWARD, _INPUT, _WEIGHT = range(len(KINDS))
_SAME_S = 1e-9  # relative: ends and starts that differ by rounding
_Pass = tuple[int, int, int]  # kind, chunk, micro-batch


def _with_critical_path(
    ranks: tuple[RankTimeline, ...], slowest: RankTimeline, num_chunks: int
) -> tuple[RankTimeline, ...]:
    """Mark the passes on the critical path; where two passes were waited for, the rank's own is on it."""
    place = {
        one: (number, at)
        for number, rank in enumerate(ranks)
        for at, one in enumerate(
            zip(rank.kind.tolist(), rank.chunk.tolist(), rank.micro_batch.tolist(), strict=True)
        )
    }
    passes = dict(zip(place.values(), place, strict=True))
    ends = [(rank.start_s + rank.seconds).tolist() for rank in ranks]
    starts = [rank.start_s.tolist() for rank in ranks]
    critical = [rank.critical.copy() for rank in ranks]
    near_s = _SAME_S * slowest.end_s
    found: tuple[int, int] | None = (slowest.rank, len(slowest.kind) - 1)
    while found is not None:
        number, at = found
        critical[number][at] = True
        if starts[number][at] <= slowest.own_start_s + near_s:
            break
        before = (number, at - 1) if at else None
        fed_by = place.get(_input_of(passes[found], num_chunks))
        is_own = before is not None and ends[number][at - 1] >= starts[number][at] - near_s
        found = before if is_own or fed_by is None else fed_by
    return tuple(replace(rank, critical=mask) for rank, mask in zip(ranks, critical, strict=True))


def _input_of(one: _Pass, num_chunks: int) -> _Pass:
    kind, chunk, micro_batch = one
    if kind == _FORWARD:
        return kind, chunk - 1, micro_batch
    if kind == _WEIGHT:
        return _INPUT, chunk, micro_batch
    return (_FORWARD, chunk, micro_batch) if chunk == num_chunks - 1 else (kind, chunk + 1, micro_batch)
