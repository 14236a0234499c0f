"""Ways to finish a job that lost nodes, soonest first: other layouts, spare nodes, waiting for repair.

    time to finish = waiting + restarts + resharding + lost work + remaining steps * slowdown by failures

Steps are the cost model's; failures and restarts are the problem's ``search.reliability`` (Daly 2006, as in
``meshwright.profiles.cluster``). Other layouts are searched on the nodes that are left, for several numbers
of GPUs: the global batch is kept, so that replicas must divide it, and fewer GPUs may be faster. Where the
checkpoint's format holds sizes fast, only layouts with these are searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor, gcd
from typing import Literal

import numpy as np

from meshwright.profiles.cluster import ClusterSpec, GpuSpec, NodeGroup
from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.profiles.profile import Profile
from meshwright.service.replan.request import Changed
from meshwright.service.replan.resharding import Moved, exchange_s, load_s, moved, positions_of
from meshwright.service.replan.ways import FinishOption, Kind, Layout, Replan
from meshwright.service.what_if.changes import WhatIfQuestion, with_groups
from meshwright.solver.answer import Prediction
from meshwright.solver.calibration.credible import require_credible
from meshwright.solver.clock import CpuWatch
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.objective import CHECKPOINT_BYTES_PER_WEIGHT, slowdown
from meshwright.solver.explain.remedies import first_plans
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem, can_start, on_gpus
from meshwright.solver.splits import divisors

_COUNTS = 8  # numbers of GPUs that are searched
_FEWEST = 0.5  # of the nodes that are left; fewer than half are never faster by enough
_MOST_COUNTED = 4096  # numbers that are weighed; of more, the largest
_SEARCH_S = 10.0  # CPU seconds for other layouts; on 16 384 GPUs they take less than one
_LISTED = 6  # layouts that are timed to the end
Found = list[tuple[Configuration, Prediction]] | Literal["unknown"]


def replanned(job: Changed, profile: Profile) -> Replan:
    """Return ways to finish a job after its cluster changed, soonest first.

    Args:
        job: the job and what happened to it.
        profile: the costs that its question is priced with.

    Raises:
        IncredibleCalibrationError: under ``profile`` a layout is faster than its software has ever been.
    """
    (now,) = predict_all(job.problem, profile, [job.plan.config])  # what was learnt since it was found
    job = replace(job, plan=replace(job.plan, prediction=now))
    timing = _Timing(job=job, profile=profile)
    notes, refused = [f"priced with {profile.title}", *profile.warnings, *timing.notes()], list[str]()
    ways = [*timing.as_it_is(refused), *timing.same_layout(refused)]
    layouts, why = _new_layouts(job, profile)
    require_credible(
        job.problem, profile, [(job.plan.config, now), *((one.config, one.prediction) for one in layouts)]
    )
    refused += why
    others = [one for one in layouts if one.config != job.plan.config]
    ways += [timing.way("new layout", layout) for layout in others]
    ways += timing.until_repaired(layouts)
    ways.sort(key=lambda way: (way.finish_s, way.kind))
    # the soonest ways, and of every other kind the soonest, so that none is out of sight
    first = {way.kind: way for way in reversed(ways)}
    listed = tuple(way for at, way in enumerate(ways) if at < job.top_k or first[way.kind] is way)
    return Replan(
        ways=listed, saved_step=timing.saved_step, lost_steps=timing.lost_steps,
        remaining_steps=timing.remaining, refused=tuple(refused), notes=tuple(notes),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# How long each way takes.


@dataclass(slots=True, kw_only=True)
class _Timing:
    """Seconds of every way of one job."""

    job: Changed
    profile: Profile

    @property
    def saved_step(self) -> int:
        """Return the step that the job goes on from: stated, or half an interval of checkpoints ago."""
        if self.job.planned:
            return self.job.steps_done  # it saves before it changes
        if self.job.saved_step is not None:
            return self.job.saved_step
        step_s = self.job.plan.prediction.step_time_s
        reliability, gpus = self.job.problem.options.reliability, self.job.plan.config.num_gpus
        steps = floor(0.5 * reliability.interval_s(self._checkpoint_bytes(), gpus) / step_s)
        return max(self.job.steps_done - steps, 0)

    @property
    def lost_steps(self) -> int:
        """Return the number of steps that are done again."""
        return self.job.steps_done - self.saved_step

    @property
    def remaining(self) -> int:
        """Return the number of steps that are not done yet."""
        return self.job.steps_total - self.job.steps_done

    def _checkpoint_bytes(self) -> float:
        return CHECKPOINT_BYTES_PER_WEIGHT * self.job.problem.model.num_parameters()

    def notes(self) -> Iterator[str]:
        """Yield the assumptions made for missing values."""
        job = self.job
        if not job.planned and job.saved_step is None:
            lost = f"half an interval of checkpoints is lost ({self.lost_steps} steps)"
            yield f"saved_step is not stated, so {lost}"
        if job.place == "local":
            yield "local checkpoints are there where each node's are kept on another node as well"
        if job.keeps:
            names = ", ".join(sorted(job.keeps))
            yield f"checkpoints of the format {job.format.name} are loaded under the same {names} alone"

    def as_it_is(self, refused: list[str]) -> Iterator[FinishOption]:
        """Yield the layout that runs, continued at the pace of the slowest node."""
        job = self.job
        if not job.planned:
            return
        if job.left.num_nodes < job.running_nodes:
            refused.append("as it is: the plan needs more nodes than will be left")
            return
        yield self.way(
            "as it is", _at_pace(job, self.profile, min(job.slow.values(), default=1.0)), restarts=0
        )

    def same_layout(self, refused: list[str]) -> Iterator[FinishOption]:
        """Yield the layout that ran, on spare nodes or on the repaired ones."""
        job = self.job
        gone = sum(job.lost) or len(job.slow)
        if not gone:
            return
        same = Layout(config=job.plan.config, prediction=job.plan.prediction, problem=job.problem)
        if job.spares >= gone:
            yield self.way("spare nodes", same)
        else:
            refused.append(f"spare nodes: {gone} needed, {job.spares} idle")
        yield self.way("wait for repair", same, waiting_s=job.repair_s)

    def until_repaired(self, layouts: Sequence[Layout]) -> Iterator[FinishOption]:
        """Yield ways with another layout while nodes are missing, then the one that ran."""
        job = self.job
        if not (sum(job.lost) or job.slow) or not layouts:
            return
        layout = min(layouts, key=lambda one: one.prediction.step_time_s)
        if layout.prediction.step_time_s <= job.plan.prediction.step_time_s:
            return
        back = Layout(config=job.plan.config, prediction=job.plan.prediction, problem=job.problem)
        first = self.way("new layout", layout)
        pace_s = layout.prediction.step_time_s * self._slower(layout)
        before_s = first.restart_s + first.resharding_s + first.lost_work_s
        steps = floor((job.repair_s - before_s) / pace_s)
        if not 0 < steps < self.remaining:
            return
        again_s, _ = self._resharding(layout.config, back.config, saves=True, replaced=True)
        step_s = (layout.prediction.step_time_s, back.prediction.step_time_s)
        counts = (steps, self.remaining - steps)
        steps_s = sum(count * one for count, one in zip(counts, step_s, strict=True))
        slower = (self._slower(layout), self._slower(back))
        lost = sum(
            count * one * (slow - 1.0) for count, one, slow in zip(counts, step_s, slower, strict=True)
        )
        parts = {
            "waiting_s": 0.0, "restart_s": 2 * first.restart_s,
            "resharding_s": first.resharding_s + again_s, "lost_work_s": first.lost_work_s,
            "steps_s": steps_s, "interruptions_s": lost,
        }  # fmt: skip
        yield _summed("new layout until repaired", layout, parts, first.moved_bytes, afterwards=back)

    def way(self, kind: Kind, layout: Layout, *, waiting_s: float = 0.0, restarts: int = 1) -> FinishOption:
        """Return one way with one layout to the end."""
        resharding_s, found = 0.0, None
        if restarts:
            resharding_s, found = self._resharding(
                self.job.plan.config, layout.config, saves=self.job.planned, replaced=kind != "new layout"
            )
        step_s = layout.prediction.step_time_s
        steps_s = self.remaining * step_s
        parts = {
            "waiting_s": waiting_s,
            "restart_s": restarts * self.job.problem.options.reliability.restart_s,
            "resharding_s": resharding_s,
            "lost_work_s": self.lost_steps * step_s,
            "steps_s": steps_s,
            "interruptions_s": steps_s * (self._slower(layout) - 1.0),
        }
        return _summed(kind, layout, parts, 0.0 if found is None else found.moved_bytes)

    def _slower(self, layout: Layout) -> float:
        return slowdown(self.job.problem, layout.config.num_gpus)

    def _resharding(
        self, before: Configuration, after: Configuration, *, saves: bool, replaced: bool = False
    ) -> tuple[float, Moved | None]:
        """Return the seconds to write (if the job still runs) and read the checkpoint, and the moved bytes.

        ``replaced``: other nodes take the places of those that are gone, or the same ones, emptied.
        """
        reliability = self.job.problem.options.reliability
        if before.is_placed or after.is_placed:  # stages on unlike nodes: read from storage, each its share
            once_s = reliability.checkpoint_s(self._checkpoint_bytes(), after.num_gpus)
            return (2 if saves else 1) * once_s, None
        group = self.job.problem.cluster.groups[0]
        found = moved(
            self.job.problem.model,
            before,
            after,
            (
                positions_of(before.num_gpus, group.gpus_per_node),
                positions_of(after.num_gpus, group.gpus_per_node, _gone(self.job), replaced=replaced),
            ),
        )
        stored, gpus = self._checkpoint_bytes(), after.num_gpus
        written = reliability.checkpoint_s(stored, before.num_gpus) if saves else 0.0
        if self.job.place == "local":
            return written + found.most_moved_bytes / group.inter_node.payload_bytes_per_s, found
        once = self.job.format.reads_once
        seconds = written + load_s(found, stored, reliability, gpus, parallel=once)
        return seconds + (exchange_s(found, stored, group, gpus) if once else 0.0), found


def _summed(
    kind: Kind,
    layout: Layout,
    parts: dict[str, float],
    moved_bytes: float,
    *,
    afterwards: Layout | None = None,
) -> FinishOption:
    """Return a way from its parts; what is computed moves with the ends of the step's interval."""
    known = layout.prediction
    computed = parts["lost_work_s"] + parts["steps_s"] + parts["interruptions_s"]
    total = sum(parts.values())
    low, high = (end / known.step_time_s - 1.0 for end in (known.step_time_low_s, known.step_time_high_s))
    return FinishOption(
        kind=kind, layout=layout, finish_s=total, finish_low_s=total + low * computed,
        finish_high_s=total + high * computed, moved_bytes=moved_bytes, afterwards=afterwards, **parts,
    )  # fmt: skip


def _gone(job: Changed) -> tuple[int, ...]:
    """Return the nodes that a new layout leaves out: slow ones; lost ones (not named), spread evenly."""
    nodes, lost = job.running_nodes, sum(job.lost)
    if not lost:
        return tuple(sorted(job.slow))
    return tuple(floor((at + 0.5) * nodes / lost) for at in range(min(lost, nodes)))


def _at_pace(job: Changed, profile: Profile, pace: float) -> Layout:
    """Return the layout on a mesh with a slowest node that computes at ``pace``."""
    if pace == 1.0:
        return Layout(config=job.plan.config, prediction=job.plan.prediction, problem=job.problem)

    def slower(group: NodeGroup) -> NodeGroup:
        gpu: GpuSpec = group.gpu
        return replace(
            group,
            gpu=replace(
                gpu,
                peak_flops={name: pace * flops for name, flops in gpu.peak_flops.items()},
                hbm_bytes_per_s=pace * gpu.hbm_bytes_per_s,
            ),
        )

    slow = with_groups(WhatIfQuestion(problem=job.problem, profile=profile), slower)
    usual, prediction = (
        predict_all(one.problem, one.profile, [job.plan.config])[0]
        for one in (WhatIfQuestion(problem=job.problem, profile=profile), slow)
    )
    scale = prediction.step_time_s / usual.step_time_s
    return Layout(
        config=job.plan.config, prediction=_scaled(job.plan.prediction, scale), problem=job.problem
    )


def _scaled(prediction: Prediction, scale: float) -> Prediction:
    return replace(
        prediction,
        step_time_s=scale * prediction.step_time_s,
        step_time_low_s=scale * prediction.step_time_low_s,
        step_time_high_s=scale * prediction.step_time_high_s,
        tokens_per_s_per_gpu=prediction.tokens_per_s_per_gpu / scale,
        mfu=prediction.mfu / scale,
        hfu=prediction.hfu / scale,
        time_breakdown_s={name: scale * value for name, value in prediction.time_breakdown_s.items()},
    )


# --------------------------------------------------------------------------------------------------
# Other layouts on the nodes that are left.


def _new_layouts(job: Changed, profile: Profile) -> tuple[list[Layout], list[str]]:
    if job.plan.config.is_placed:
        return [], ["new layout: to place stages on different node types again, run meshwright plan"]
    nodes = job.left.num_nodes - len(job.slow)
    if not sum(job.lost) and not job.slow and nodes == job.problem.cluster.num_nodes:
        return [], []
    kept = {name: getattr(job.plan.config, name) for name in job.keeps}
    split = kept.pop("stage_layers", ())
    own, (least, most) = job.problem.options, job.format.zero_stages
    asked_least, asked_most = own.bounds.get("zero_stage", (least, most))
    options = replace(
        own,
        pin={**own.pin, **kept},
        bounds={**own.bounds, "zero_stage": (max(least, asked_least), min(most, asked_most))},
        stage_layers=tuple(split) or own.stage_layers,
        constraints=(*own.constraints, *job.constraints),
    )
    found: Found | None = None
    try:
        cluster = _without_slow(job.left, len(job.slow))
        problem = replace(job.problem, cluster=cluster, options=options)
        with CpuWatch(time_limit_s=_SEARCH_S).cut():
            found = _searched(problem, profile, job.plan.config.context_parallel_size)
    except PlannerError as fault:
        return [], [f"new layout: {fault}"]
    if not isinstance(found, list):
        late = (
            f"not found within {_SEARCH_S:g} s"
            if found is None
            else "too many configurations to search them all"
        )
        return [], [f"new layout: {late}. Run meshwright plan"]
    if not found:
        held = f" with the same {', '.join(sorted(job.keeps))}" if job.keeps else ""
        batch = problem.workload.global_batch_size
        return [], [f"new layout: none on up to {cluster.num_nodes} nodes keeps the batch of {batch}{held}"]
    plain = replace(problem, options=job.problem.options)
    return [Layout(config=config, prediction=seen, problem=plain) for config, seen in found], []


def _without_slow(cluster: ClusterSpec, slow: int) -> ClusterSpec:
    """Return the cluster without so many nodes of its first group.

    Raises:
        InvalidProblemError: it has no others.
    """
    first = cluster.groups[0]
    if first.num_nodes <= slow:
        raise InvalidProblemError.of("/slow_nodes", "no node is left that keeps the usual pace")
    return replace(cluster, groups=(replace(first, num_nodes=first.num_nodes - slow), *cluster.groups[1:]))


def _searched(problem: Problem, profile: Profile, context: int) -> Found:
    """Return the fastest layouts on any of several numbers of GPUs; ``context``: its present ranks."""
    if problem.cluster.is_homogeneous:
        problem = on_gpus(problem, _numbers_of_gpus(problem, context))
    return first_plans(problem, profile, _LISTED)


def _numbers_of_gpus(problem: Problem, context: int) -> tuple[int, ...]:
    """Return the numbers of GPUs that can start and share the batch evenly, by the least time of a step.

    Computing falls with the GPUs; it grows with the longest stage over the mean, and with the bubble of
    replicas that have few sequences each (half of it: chunks shorten it). All are counted for the best
    tensor and pipeline sizes of each number.
    """
    nodes, group, layers = problem.cluster.num_nodes, problem.cluster.groups[0], problem.model.num_layers
    pin, batch = problem.options.pin, problem.workload.global_batch_size
    each, fewest = group.gpus_per_node, max(1, floor(nodes * _FEWEST), nodes + 1 - _MOST_COUNTED)
    step = 1 if nodes * each <= _MOST_COUNTED else each  # of few nodes a part of the last may be idle
    numbers = [one for one in range(fewest * each, nodes * each + 1, step) if can_start(problem, one)]
    gpus = np.array(numbers)[:, None, None]
    sizes = [one for one in divisors(gcd(*problem.model.split_heads)) if one <= group.island_gpus]
    tensor = np.array([pin.get("tensor_parallel_size", 0)] if "tensor_parallel_size" in pin else sizes)
    inner = np.unique(np.concatenate([tensor, tensor * context]))
    stages = np.arange(1, layers + 1)
    if "pipeline_parallel_size" in pin:
        stages = np.array([pin["pipeline_parallel_size"]])
    replicas, left = np.divmod(gpus, inner[:, None] * stages[None, :])
    own, rest = np.divmod(batch, np.maximum(replicas, 1))
    legal = (left == 0) & (replicas > 0) & (rest == 0) & (own > 0)
    uneven = np.ceil(layers / stages) * stages / layers
    bubble = 1.0 + (stages - 1) / (2.0 * np.maximum(own, 1))
    least = np.where(legal, uneven * bubble / gpus, np.inf).min(axis=(1, 2))
    able = [numbers[at] for at in np.argsort(least, kind="stable") if np.isfinite(least[at])][:_COUNTS]
    return tuple(sorted(able)) or (nodes * each,)
