"""What a plan means for the whole run: goodput, days, GPU hours, energy, money."""

from __future__ import annotations

import numpy as np

from profiles.power import power_of
from profiles.profile import Profile
from profiles.reliability import HOUR_S
from solver.busy import busy_s
from solver.columns import Columns
from solver.gpu_counts import usable_gpus
from solver.mixed.energy import placed_energy_j
from solver.objective import CHECKPOINT_BYTES_PER_WEIGHT, DAY_S, slowdown
from solver.plan import Configuration, ObjectiveClaim, Outlook, Prediction
from solver.problem import Problem
from solver.search.watch import relative_gap

UNITS = {
    "step_time": "s",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "gpu_hours_per_token": "GPU h/token",
    "energy_per_token": "J/token",
}


def is_asked_for(problem: Problem) -> bool:
    """Whether a request looks beyond one step."""
    options = problem.options
    asked = (options.total_tokens, options.deadline_days, options.gpu_hour_price)
    return options.objective != "step_time" or any(value is not None for value in asked)


def outlook_of(
    problem: Problem, profile: Profile, config: Configuration, prediction: Prediction
) -> Outlook:
    """The run that a configuration makes; without a known power no energy."""
    options, gpus, step_s = problem.options, config.num_gpus, prediction.step_time_s
    tokens = config.global_batch_size * problem.workload.seq_length
    slower, written = slowdown(problem, gpus), CHECKPOINT_BYTES_PER_WEIGHT * problem.model.num_parameters()
    hours = gpus * step_s * slower / HOUR_S / tokens
    days = None
    if options.total_tokens is not None:
        days = float(np.ceil(options.total_tokens / tokens)) * step_s * slower / DAY_S
    cost = None
    if options.gpu_hour_price is not None and days is not None:
        cost = days * DAY_S / HOUR_S * gpus * options.gpu_hour_price
    return Outlook(
        num_gpus=gpus,
        goodput=1.0 / slower,
        checkpoint_interval_s=options.reliability.interval_s(written, gpus),
        gpu_hours_per_token=hours,
        energy_per_token_j=_energy_j(problem, profile, config, step_s),
        days=days,
        cost=cost,
    )


def _energy_j(problem: Problem, profile: Profile, config: Configuration, step_s: float) -> float | None:
    """Joules of the GPUs for each token; None where no power is known."""
    tokens = config.global_batch_size * problem.workload.seq_length
    if config.is_placed:
        placed = placed_energy_j(problem, profile, config, step_s)
        return None if placed is None else placed / tokens
    if not profile.group.gpu.power_watts:
        return None
    power = power_of(profile.group.gpu)
    busy = float(busy_s(problem, profile, Columns.of([config]))[0])
    joules = power.waiting_w * step_s + (power.busy_w - power.waiting_w) * busy
    return config.num_gpus * joules / tokens


def natural_objective(
    problem: Problem, profile: Profile, config: Configuration, prediction: Prediction
) -> float:
    """A configuration's objective in its own unit (``UNITS``).

    Raises:
        InvalidProblemError: energy is asked for of a GPU whose power nobody stated.
    """
    name, outlook = problem.options.objective, outlook_of(problem, profile, config, prediction)
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
    """What was proved about the objective, in its own unit."""
    name = problem.options.objective
    return ObjectiveClaim(
        name=name,
        unit=f"s for {problem.workload.global_batch_size} sequences" if _rates(problem) else UNITS[name],
        value=_natural(problem, profile, score_s),
        bound=_natural(problem, profile, bound_s),
        gap=relative_gap(score_s, bound_s),
    )


def _rates(problem: Problem) -> bool:
    """Whether steps of different batches are compared."""
    return problem.options.objective == "step_time" and bool(problem.options.batch_sizes)


def _natural(problem: Problem, profile: Profile, score_s: float | None) -> float | None:
    """A score of the search, seconds relative to the whole cluster, in the objective's unit."""
    name, gpus = problem.options.objective, usable_gpus(problem)
    if score_s is None or name == "step_time":
        return score_s
    tokens = problem.workload.global_batch_size * problem.workload.seq_length
    gpu_s_per_token = score_s * gpus / tokens
    if name == "tokens_per_s_per_gpu":
        return 1.0 / gpu_s_per_token if gpu_s_per_token > 0.0 else None
    if name == "energy_per_token":
        return gpu_s_per_token * power_of(profile.group.gpu).busy_w
    return gpu_s_per_token * slowdown(problem, gpus) / HOUR_S
