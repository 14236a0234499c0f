"""What plans are ranked by, as seconds: ``scale * step + offset`` with constants of each row.

Every objective is such a line in the step time of a row, so that every bound on the step time is a bound
on the objective, and the closed form, CP-SAT and the simulation rank by it without a change:
  step_time              step; with several global batches, of the same number of sequences
  tokens_per_s_per_gpu   step * GPUs / tokens: GPU seconds of a token
  gpu_hours_per_token    the same with failures and checkpoints: times the slowdown of so many GPUs
  energy_per_token       GPUs / tokens * (waiting power * (step - busy) + busy power * busy)
The numbers are relative to the whole cluster, so that they stay of the size of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.power import power_of
from profiles.profile import Profile
from solver.busy import busy_s
from solver.columns import Columns, FloatArray, IntArray
from solver.gpu_counts import usable_gpus
from solver.problem import Problem

DAY_S = 86400.0
# What a checkpoint holds of a weight: itself in 2 bytes, an fp32 copy and two fp32 moments.
CHECKPOINT_BYTES_PER_WEIGHT = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """Constants of every row, shape (n,)."""

    scale: FloatArray
    offset: FloatArray
    most_s: FloatArray  # longest step that meets the deadline; +inf without one

    @property
    def latest(self) -> FloatArray:
        """The largest objective that meets the deadline."""
        return self.scale * self.most_s + self.offset


def is_plain(problem: Problem) -> bool:
    """Whether plans are ranked by their step alone."""
    options = problem.options
    return options.objective == "step_time" and options.deadline_days is None and not options.batch_sizes


def is_weighed_by_kind(problem: Problem) -> bool:
    """Whether rows with the same GPUs and batch have the same weights, however they recompute."""
    return problem.options.objective != "energy_per_token"


def slowdown(problem: Problem, num_gpus: int) -> float:
    """Time of a run on so many GPUs over the time of its steps: failures, restarts, checkpoints."""
    written = CHECKPOINT_BYTES_PER_WEIGHT * problem.model.num_parameters()
    return problem.options.reliability.slowdown(written, num_gpus)


def _slowdowns(problem: Problem, num_gpus: IntArray) -> FloatArray:
    """The same for every row."""
    counts, which = np.unique(num_gpus, return_inverse=True)
    return np.array([slowdown(problem, int(count)) for count in counts], dtype=np.float64)[which]


def weighing_of(problem: Problem, profile: Profile, columns: Columns) -> Weighing:
    """The objective and the deadline of a request for every row.

    Raises:
        InvalidProblemError: energy is asked for of a GPU whose power nobody stated.
    """
    name, count = problem.options.objective, columns.num_gpus
    sequences = columns.global_batch_size.astype(np.float64)
    scale = problem.workload.global_batch_size / sequences
    offset = np.zeros(len(columns))
    if name != "step_time":
        scale = scale * count / usable_gpus(problem)
    if name == "gpu_hours_per_token":
        scale = scale * _slowdowns(problem, count) / slowdown(problem, usable_gpus(problem))
    if name == "energy_per_token":
        power = power_of(profile.group.gpu)
        offset = scale * (1.0 - power.waiting_w / power.busy_w) * busy_s(problem, profile, columns)
        scale = scale * power.waiting_w / power.busy_w
    return Weighing(scale=scale, offset=offset, most_s=_most_s(problem, columns, sequences))


def _most_s(problem: Problem, columns: Columns, sequences: FloatArray) -> FloatArray:
    """The longest step with which all tokens are seen before the deadline, interruptions counted."""
    days, tokens = problem.options.deadline_days, problem.options.total_tokens
    if days is None or tokens is None:
        return np.full(len(columns), np.inf)
    steps = np.ceil(tokens / (sequences * problem.workload.seq_length))
    return np.asarray(days * DAY_S / steps / _slowdowns(problem, columns.num_gpus))
