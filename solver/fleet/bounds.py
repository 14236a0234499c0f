"""Lower bounds on the objectives of a fleet, from relaxations that hold for overloaded fleets too.

Lateness. Let the nodes of kind k have a price l_k(t) >= 0 for each moment. Every schedule satisfies
  sum_j lateness_j >= sum_j min_{choice, start} (lateness_j + nodes * integral of l_k over the run)
                      - sum_k nodes_k * integral of l_k,
because the runs of a schedule never use more nodes than there are: the Lagrangian dual of the time-indexed
relaxation (Dyer and Wolsey, Discrete Applied Mathematics 26, 1990), which lets a job be spread over several
starts and so is at least the preemptive and the energetic relaxation. Prices are constant in each interval
of time, so the minimum over all starts is at a start or an end on an edge, at the release or at an end on
the due date: it is exact at any number of minutes. Prices move along the subgradient (Polyak's step).

Last end. Any job alone from its release; and for each release r the node-minutes of the jobs that are
released from then on, in units of all nodes of a kind, take r plus their mean (energetic).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np

from meshwright.solver.configuration import FloatArray, IntArray
from meshwright.solver.fleet.problem import (
    Durations,
    Fleet,
    FleetJob,
    Minutes,
    Score,
    common_choices,
    lateness_of,
)

_INTERVALS = 160  # of constant prices
_SLACK = 1e-6  # rounding of the bound


def heads_of(fleet: Fleet, minutes: Durations) -> dict[str, int]:
    """Return the earliest start of every job: its release, and the quickest runs of those before it."""
    found, jobs = dict[str, int](), {job.name: job for job in fleet.jobs}
    for name in TopologicalSorter({job.name: job.after for job in fleet.jobs}).static_order():
        job = jobs[name]
        ends = (found[one] + min(minutes[one].values()) for one in job.after)
        found[name] = job.start_min if job.start_min is not None else max([job.release_min, *ends])
    return found


def bounds_of(fleet: Fleet, durations: Durations, best: Score, *, rounds: int) -> Score:
    """Return a lower bound on each objective by itself.

    ``best``: the objectives of a known schedule; ``rounds`` of the subgradient raise lateness towards it.
    """
    minutes = common_choices(fleet, durations)
    heads, prices = heads_of(fleet, minutes), fleet.prices()
    costs = (
        min(prices[one.kind] * one.nodes * took for one, took in minutes[job.name].items())
        for job in fleet.jobs
    )
    alone = sum(lateness_of(job, heads[job.name] + min(minutes[job.name].values())) for job in fleet.jobs)
    lateness = alone
    if best.lateness > alone:
        lateness = max(alone, _lateness(fleet, minutes, heads, best, rounds))
    return Score(lateness=lateness, last_end_min=_last_end(fleet, minutes, heads), cost=sum(costs))


def _last_end(fleet: Fleet, minutes: Durations, heads: dict[str, int]) -> int:
    nodes = fleet.nodes()
    shares = {
        job.name: min(one.nodes * took / nodes[one.kind] for one, took in minutes[job.name].items())
        for job in fleet.jobs
    }
    ends = [heads[job.name] + min(minutes[job.name].values()) for job in fleet.jobs]
    for release in {*heads.values()}:
        work = sum(share for name, share in shares.items() if heads[name] >= release)
        ends.append(math.ceil(release + work / len(nodes) - _SLACK))
    return max(ends, default=0)


@dataclass(frozen=True, slots=True)
class _Starts:
    """The starts at which a job's least priced run can be, job after job."""

    start: FloatArray
    end: FloatArray
    nodes: FloatArray
    kind: IntArray
    lateness: FloatArray
    first: IntArray  # of each job

    @classmethod
    def of(cls, fleet: Fleet, minutes: Durations, heads: dict[str, int], edges: FloatArray) -> _Starts:
        kinds = {kind.name: at for at, kind in enumerate(fleet.kinds)}
        parts, first, count = list[tuple[FloatArray, ...]](), [], 0
        for job in fleet.jobs:
            own = _runs(job, minutes[job.name], heads[job.name], edges, kinds)
            first.append(count)
            count += sum(len(one[0]) for one in own)
            parts += own
        start, end, nodes, kind, lateness = (np.concatenate(some) for some in zip(*parts, strict=True))
        return cls(start, end, nodes, kind.astype(np.int64), lateness, np.array(first))


def _runs(
    job: FleetJob, minutes: Minutes, head: int, edges: FloatArray, kinds: dict[str, int]
) -> list[tuple[FloatArray, ...]]:
    found = list[tuple[FloatArray, ...]]()
    distinct = dict.fromkeys(
        (one._replace(switches=(), uplinks=0, rest=0), took) for one, took in minutes.items()
    )
    for choice, took in distinct:
        on_due = [] if job.due_min is None else [job.due_min - took]
        starts = np.unique(np.concatenate([edges, edges - took, [head], on_due]))
        starts = starts[starts >= head] if job.start_min is None else np.array([float(job.start_min)])
        ends, same = starts + took, np.ones(len(starts))
        late = np.maximum(ends - (np.inf if job.due_min is None else job.due_min), 0.0) * job.weight
        found.append((starts, ends, same * choice.nodes, same * kinds[choice.kind], late))
    return found


def _lateness(fleet: Fleet, minutes: Durations, heads: dict[str, int], best: Score, rounds: int) -> int:
    """Raise the bound on lateness along the subgradient, at most to ``best``."""
    edges = np.linspace(0.0, float(best.last_end_min), _INTERVALS + 1)
    width = edges[1]
    nodes = np.array([float(kind.nodes) for kind in fleet.kinds])
    starts = _Starts.of(fleet, minutes, heads, edges)
    sizes = np.diff([*starts.first, len(starts.start)])
    job_of = np.repeat(np.arange(len(sizes)), sizes)
    prices = np.zeros((len(nodes), _INTERVALS))
    found, step, stale = 0.0, 1.0, 0
    best_prices = prices
    for _ in range(rounds):
        sums = np.concatenate([np.zeros((len(nodes), 1)), np.cumsum(prices * width, axis=1)], axis=1)
        paid = _at(sums, starts.kind, starts.end / width) - _at(sums, starts.kind, starts.start / width)
        each = starts.lateness + starts.nodes * paid
        least = np.minimum.reduceat(each, starts.first)
        bound = float(least.sum() - nodes @ sums[:, -1])
        if bound > found + _SLACK * best.lateness:
            found, stale, best_prices = bound, 0, prices
        else:
            stale += 1
        if found >= best.lateness - 1 + _SLACK:
            break
        if stale == _PATIENCE:
            step, stale, prices = step * 0.6, 0, best_prices
        ties = np.flatnonzero(each <= least[job_of])
        chosen = ties[np.unique(job_of[ties], return_index=True)[1]]  # the first of each job
        slope = _used(starts, chosen, edges, len(nodes)) - (nodes * width)[:, None]
        norm = float((slope * slope).sum())
        if norm <= 0.0:
            break
        prices = np.maximum(prices + step * max(best.lateness * _BEYOND - bound, 1.0) / norm * slope, 0.0)
    return min(best.lateness, math.ceil(found - _SLACK * max(1.0, found)))


_PATIENCE = 12  # rounds without a better bound before steps get shorter
_BEYOND = 1.02  # of the known lateness: where steps aim


def _at(sums: FloatArray, kind: IntArray, place: FloatArray) -> FloatArray:
    """Return sums of prices up to places between edges; after the last edge nodes cost nothing."""
    place = np.minimum(place, sums.shape[1] - 1)
    left = np.minimum(place.astype(np.int64), sums.shape[1] - 2)
    low = sums[kind, left]
    return np.asarray(low + (place - left) * (sums[kind, left + 1] - low))


def _used(starts: _Starts, chosen: IntArray, edges: FloatArray, kinds: int) -> FloatArray:
    low, high = edges[:-1], edges[1:]
    over = np.minimum(starts.end[chosen, None], high) - np.maximum(starts.start[chosen, None], low)
    used = np.zeros((kinds, len(low)))
    np.add.at(used, starts.kind[chosen], np.maximum(over, 0.0) * starts.nodes[chosen, None])
    return used
