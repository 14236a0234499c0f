"""Objectives that rank plans, as seconds: ``scale * step + offset`` with constants of each row.

Every objective is such a line in the step time of a row, so that every bound on the step time is a bound
on the objective, and the closed form, CP-SAT and the simulation rank by it without a change:
  step_time              step; with several global batches, of the same number of sequences
  tokens_per_s_per_gpu   step * GPUs / tokens: GPU seconds of a token
  gpu_hours_per_token    the same with failures and checkpoints: times the slowdown of so many GPUs
  energy_per_token       GPUs / tokens * (waiting power * (step - busy) + busy power * busy)
  robust                 none: plans of shortest step are compared by a quantile (``planner.robust``)
The numbers are relative to the whole cluster, so that they stay of the size of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.cluster import HOUR_S, power_of
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import ObjectiveClaim, Outlook, Prediction
from meshwright.solver.clock import look, relative_gap
from meshwright.solver.configuration import (
    ALL_LAYERS,
    PER_STAGE,
    Columns,
    Configuration,
    FloatArray,
    IntArray,
)
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.price import busy_of_passes, price, priced_alike
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.problem import Problem, real_tokens, usable_gpus

# --------------------------------------------------------------------------------------------------
# How long a GPU computes in a step, the mean over all of them: its energy depends on it.


_CHUNK = 16384


def busy_s(columns: Columns, priced: FloatArray) -> FloatArray:
    """Return computing and recomputing seconds of a step, averaged over the ranks, shape (n,).

    It does not depend on the split where layers are of one kind; where k layers of every chunk are
    recomputed and layers differ, the cheapest kind is counted. ``priced``: ``busy_parts_s`` of each row.
    """
    computing, every, least = priced
    p, v = columns.pipeline_parallel_size, columns.virtual_pipeline_size
    counts = np.where(columns.recompute_layers == PER_STAGE, 0, columns.recompute_layers)  # at least none
    again = np.where(columns.recompute_layers == ALL_LAYERS, every, counts * p * v * least)
    return np.asarray(columns.num_microbatches * (computing + again) / p)


def busy_parts_s(problem: Problem, prices: RowPrices) -> FloatArray:
    """Return computing of all layers, their replay, and that of the quickest one, of a pass, (3, n)."""
    return busy_of_passes(
        LayerLayout.of(problem.model, problem.training), prices.breakdown_s, prices.replay_s
    )


def _busy_parts_of(problem: Problem, profile: Profile, columns: Columns) -> FloatArray:
    """Return ``busy_parts_s`` of rows that are not priced yet, (3, n)."""
    if not len(columns):
        return np.zeros((3, 0))
    first, of_row = priced_alike(columns, profile)
    found = list[FloatArray]()
    for start in range(0, len(first), _CHUNK):
        look()
        some = columns.take(first[start : start + _CHUNK])
        found.append(busy_parts_s(problem, price(problem, some, profile, with_memory=False)))
    return np.asarray(np.concatenate(found, axis=1)[:, of_row])


DAY_S = 86400.0
# What a checkpoint holds of a weight: itself in 2 bytes, an fp32 copy and two fp32 moments.
CHECKPOINT_BYTES_PER_WEIGHT = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """Constants of every row, shape (n,)."""

    scale: FloatArray
    offset: FloatArray
    most_s: FloatArray  # longest step that meets the deadline; +inf without one
    busy: FloatArray  # of each second that a GPU computes (``busy_s``), which ``offset`` has where known


def is_plain(problem: Problem) -> bool:
    """Return whether plans are ranked by their step alone."""
    options = problem.options
    return options.objective == "step_time" and options.deadline_days is None and not options.batch_sizes


def counts_busy(problem: Problem) -> bool:
    """Return whether the objective depends on how long a GPU computes, and not on the step alone."""
    return problem.options.objective == "energy_per_token"


def slowdown(problem: Problem, num_gpus: int) -> float:
    """Return a run's time on so many GPUs over its steps' time: failures, restarts, checkpoints."""
    written = CHECKPOINT_BYTES_PER_WEIGHT * problem.model.num_parameters()
    return problem.options.reliability.slowdown(written, num_gpus)


def _slowdowns(problem: Problem, num_gpus: IntArray) -> FloatArray:
    counts, which = np.unique(num_gpus, return_inverse=True)
    return np.array([slowdown(problem, int(count)) for count in counts], dtype=np.float64)[which]


def weighing_of(
    problem: Problem, profile: Profile, columns: Columns, busy_parts: FloatArray | None = None
) -> Weighing:
    """Return the objective and the deadline of a request for every row.

    ``busy_parts``: ``busy_parts_s`` of each row, (3, n), where its price is known; zeros leave ``busy`` out
    of the offset.

    Raises:
        InvalidProblemError: energy is asked for for a GPU of unknown power.
    """
    look()
    name, count = problem.options.objective, columns.num_gpus
    sequences = columns.global_batch_size.astype(np.float64)
    scale = problem.workload.global_batch_size / sequences
    offset, busy = np.zeros(len(columns)), np.zeros(len(columns))
    each = real_tokens(problem, columns)
    if name != "step_time":
        scale = scale * count / usable_gpus(problem) * (problem.workload.tokens_per_sequence / each)
    if name == "gpu_hours_per_token":
        scale = scale * _slowdowns(problem, count) / slowdown(problem, usable_gpus(problem))
    if name == "energy_per_token":
        power, free_w = (
            power_of(profile.group.gpu, problem.power_limit_w),
            power_of(profile.group.gpu).busy_w,
        )
        parts = _busy_parts_of(problem, profile, columns) if busy_parts is None else busy_parts
        busy = scale * (power.busy_w - power.waiting_w) / free_w
        offset = busy * busy_s(columns, parts)
        scale = scale * power.waiting_w / free_w
    return Weighing(
        scale=scale, offset=offset, most_s=_most_s(problem, columns, sequences * each), busy=busy
    )


def _most_s(problem: Problem, columns: Columns, tokens_of_step: FloatArray) -> FloatArray:
    """Return the longest step that finishes all tokens before the deadline, interruptions counted."""
    days, tokens = problem.options.deadline_days, problem.options.total_tokens
    if days is None or tokens is None:
        return np.full(len(columns), np.inf)
    steps = np.ceil(tokens / tokens_of_step)
    return np.asarray(days * DAY_S / steps / _slowdowns(problem, columns.num_gpus))


# --------------------------------------------------------------------------------------------------
# What a plan means for the whole run: goodput, days, GPU hours, energy, money, CO2.


UNITS = {
    "step_time": "s",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "gpu_hours_per_token": "GPU h/token",
    "energy_per_token": "J/token",
    "robust": "s",
}


def is_asked_for(problem: Problem) -> bool:
    """Return whether a request looks beyond one step."""
    options = problem.options
    asked = (options.total_tokens, options.deadline_days, options.gpu_hour_price)
    return options.objective != "step_time" or any(value is not None for value in asked)


def outlook_of(
    problem: Problem, profile: Profile, config: Configuration, prediction: Prediction
) -> Outlook:
    """Return the run that a configuration makes; without a known power no energy."""
    return outlooks_of(problem, profile, [config], [prediction])[0]


def outlooks_of(
    problem: Problem, profile: Profile, some: Sequence[Configuration], predictions: Sequence[Prediction]
) -> list[Outlook]:
    """Return the runs that configurations make; their busy seconds are priced side by side."""
    found = list[Outlook]()
    for one, predicted in zip(evaluate(problem, profile, some), predictions, strict=True):
        joules = one.energy_j(predicted.step_time_s)  # of all GPUs; None where no power is known
        each_j = None if joules is None else joules / problem.tokens_of(one.config)
        found.append(_outlook(problem, one.config, predicted.step_time_s, each_j))
    return found


def _outlook(problem: Problem, config: Configuration, step_s: float, energy_j: float | None) -> Outlook:
    options, gpus = problem.options, config.num_gpus
    tokens = problem.tokens_of(config)
    slower, written = slowdown(problem, gpus), CHECKPOINT_BYTES_PER_WEIGHT * problem.model.num_parameters()
    hours = gpus * step_s * slower / HOUR_S / tokens
    days = None
    if options.total_tokens is not None:
        days = float(np.ceil(options.total_tokens / tokens)) * step_s * slower / DAY_S
    cost = None
    if options.gpu_hour_price is not None and days is not None:
        cost = days * DAY_S / HOUR_S * gpus * options.gpu_hour_price
    co2_kg = None
    if options.grid_co2_g_per_kwh is not None and days is not None and energy_j is not None:
        mean_w = energy_j * tokens / step_s  # also while the run repeats work and writes checkpoints
        co2_kg = mean_w / 1e3 * days * DAY_S / HOUR_S * options.grid_co2_g_per_kwh / 1e3
    return Outlook(
        num_gpus=gpus,
        goodput=1.0 / slower,
        checkpoint_interval_s=options.reliability.interval_s(written, gpus),
        gpu_hours_per_token=hours,
        energy_per_token_j=energy_j,
        days=days,
        cost=cost,
        co2_kg=co2_kg,
    )


def natural_objective(
    problem: Problem, profile: Profile, config: Configuration, prediction: Prediction
) -> float:
    """Return a configuration's objective in its own unit (``UNITS``).

    Raises:
        InvalidProblemError: energy is asked for for a GPU of unknown power.
    """
    name, outlook = problem.options.objective, outlook_of(problem, profile, config, prediction)
    if name == "robust":
        return prediction.step_time_high_s
    if name == "tokens_per_s_per_gpu":
        return prediction.tokens_per_s_per_gpu
    if name == "gpu_hours_per_token":
        return outlook.gpu_hours_per_token
    if name == "energy_per_token":
        power_of(profile.group.gpu)
        return outlook.energy_per_token_j or 0.0
    return prediction.step_time_s


def claim_of(
    problem: Problem, profile: Profile, score_s: float | None, bound_s: float | None
) -> ObjectiveClaim:
    """Return what was proved about the objective, in its own unit."""
    name, sequences = problem.options.objective, problem.workload.global_batch_size
    rated = name == "step_time" and problem.options.batch_sizes
    return ObjectiveClaim(
        name=name,
        unit=f"s for {sequences} sequences" if rated else UNITS[name],
        value=_natural(problem, profile, score_s),
        bound=_natural(problem, profile, bound_s),
        gap=relative_gap(score_s, bound_s),
    )


def _natural(problem: Problem, profile: Profile, score_s: float | None) -> float | None:
    """Convert a score of the search, seconds relative to the whole cluster, to the objective's unit."""
    name, gpus = problem.options.objective, usable_gpus(problem)
    if score_s is None or name == "step_time":
        return score_s
    tokens = problem.workload.global_batch_size * problem.workload.tokens_per_sequence
    gpu_s_per_token = score_s * gpus / tokens
    if name == "tokens_per_s_per_gpu":
        return 1.0 / gpu_s_per_token if gpu_s_per_token > 0.0 else None
    if name == "energy_per_token":
        return gpu_s_per_token * power_of(profile.group.gpu).busy_w
    return gpu_s_per_token * slowdown(problem, gpus) / HOUR_S
