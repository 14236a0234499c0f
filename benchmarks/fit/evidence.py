"""The open runs as evidence for the constants of the software stacks, and fits to any part of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from meshwright.profiles.calibration import bounded
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.profile import Constants, Profile
from meshwright.solver.calibration.calibrate import default_profile_of, expected_memory, memory_observation
from meshwright.solver.calibration.fit import Box, least_in_box
from meshwright.solver.calibration.observations import (
    Batch,
    Observation,
    batches_of,
    log_peak_bytes,
    log_step_s,
    steps_s_of,
)
from meshwright.solver.calibration.priors import MEMORY_WIDTHS, TIME_WIDTHS
from meshwright.solver.configuration import BoolArray, FloatArray
from meshwright.solver.runs.table import Run

NOISE = 0.04
# Runs of one cluster are wrong in common, so many of them tell little more than a few: of 8, 12, 20 and 60
# runs for which a cluster may count, 12 predicted left-out clusters best, with half of the widths that
# calibration allows a cluster for a stack round the global level.
CLUSTER_WEIGHT = 12.0
# Launches alone keep that width: Megatron-Core's take twice as long as Megatron-DeepSpeed's.
STACK_WIDTH = 0.5
RUNS_OF_CLUSTER = 96  # evenly drawn of each: 24 missed the launches that bind nanotron
STEP = -0.05  # of a finite difference
# Models bound by launches of tests that resemble no production (deterministic, with dropout, unfused
# attention, CPUs that are bound to nothing): they have a floor of their own, ``layer_launch_s`` of their
# framework, and teach no other's times.
TINY = "megatron-ci-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What is fitted: step time or peak memory."""

    widths: Mapping[str, float]  # of a stack round the global level
    global_widths: Mapping[str, float] | None  # None: the global level is not fitted
    centres: Mapping[str, float]  # what the global level is held round
    log_values: Callable[[Sequence[Batch], Sequence[str], FloatArray], FloatArray]

    @property
    def names(self) -> tuple[str, ...]:
        """Its constants."""
        return tuple(self.widths)


# Where the global level is expected before any run is heard: 1 where operators or links were measured
# themselves, else counted bytes and usual figures. What leaves runs out of a fit starts from these, too.
TIME_CENTRES: Mapping[str, float] = {
    "gemm": 1.0, "attention": 0.9,  # of the best kernel's table: rotary copies and launches come on top
    "grouped_gemm": 0.8,
    "permute_bytes": 56.0,  # index and copy both ways: 28 at the share of fused operators below
    "score_gemm": 0.3, "score_bytes": 9.0,  # of peak; 2 + 2 + 2 + 2 and a mask
    "hbm": 0.9, "elementwise": 0.5,  # half of the least traffic stays in caches or is fused away
    "loss_bytes": 30.0,  # 2-byte logits, fp32 copies read and written, gradients
    "floor_s": 9e-4, "floor_moe": 1.0, "floor_tensor": 0.35, "floor_across": 1.7,
    "collective_latency_s": 5e-5, "fast_link": 1.0, "network": 0.75,
    "tensor_exposed": 0.3, "expert_exposed": 0.25, "gather_exposed": 0.5, "transfer_exposed": 0.3,
    "update_bytes": 30.0,  # fused AdamW (profiles/optimizers.py)
    "straggler": 1e-3, "fixed_s": 0.015,
}  # fmt: skip
TIME = Quantity(
    widths={
        name: width * (1.0 if name == "floor_s" else STACK_WIDTH) for name, width in TIME_WIDTHS.items()
    },
    global_widths=TIME_WIDTHS,
    centres=TIME_CENTRES,
    log_values=log_step_s,
)
# What lies beside the formulas; activations and logits are theirs, and too few sources say which
# kernels ran to correct them from whole peaks.
_BESIDE = {name: MEMORY_WIDTHS[name] for name in ("base_bytes", "context_bytes", "reserve")}
MEMORY = Quantity(widths=_BESIDE, global_widths=None, centres={}, log_values=log_peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measured runs of one quantity, as any fit may learn from them."""

    quantity: Quantity
    runs: tuple[Run, ...]
    observations: tuple[Observation, ...]
    stacks: tuple[str, ...]
    log_measured: FloatArray  # of a time: less what the event simulation adds to the closed form
    weights: FloatArray

    @classmethod
    def of_times(cls, runs: Sequence[Run]) -> Evidence:
        """The runs that teach step times."""
        kept = _drawn([run for run in runs if teaches(run) and run.measured.step_time_s])
        observations = [cast(Observation, Observation.of(run)) for run in kept]
        zero = np.zeros((1, len(TIME.names)))
        closed = log_step_s(batches_of(observations, default_profile_of), TIME.names, zero)[0]
        exact = np.log(steps_s_of(observations, default_profile_of))
        measured = np.log([one.step_time_s or 1.0 for one in observations])
        return cls._of(TIME, kept, observations, measured - (exact - closed))

    @classmethod
    def of_peaks(cls, runs: Sequence[Run]) -> Evidence:
        """The runs that teach peak memory: all of them, for no network and no CPU changes it."""
        kept = [run for run in runs if run.shape is not None and run.measured.peak_memory_bytes]
        stated = [cast(Observation, Observation.of(run)) for run in kept]
        expected = expected_memory(stated, default_profile_of)
        judged = [
            cast(Observation, memory_observation(one, blind))
            for one, blind in zip(stated, expected, strict=True)
        ]
        return cls._of(MEMORY, kept, judged, np.log([one.peak_memory_bytes or 1.0 for one in judged]))

    @classmethod
    def _of(
        cls, quantity: Quantity, runs: Sequence[Run], observations: Sequence[Observation], log: FloatArray
    ) -> Evidence:
        """Runs with their weights."""
        per_cluster = Counter(run.cluster for run in runs)
        return cls(
            quantity=quantity,
            runs=tuple(runs),
            observations=tuple(observations),
            stacks=tuple(framework_facts(one.framework).stack for one in observations),
            log_measured=log,
            weights=np.array([min(1.0, CLUSTER_WEIGHT / per_cluster[run.cluster]) for run in runs]),
        )

    def of_stack(self, stack: str) -> Evidence:
        """The runs of one stack."""
        return self.at(np.array([own == stack for own in self.stacks], dtype=bool))

    def at(self, mask: BoolArray) -> Evidence:
        """The runs where the mask holds."""
        index = np.flatnonzero(mask)
        return replace(
            self,
            runs=tuple(self.runs[i] for i in index),
            observations=tuple(self.observations[i] for i in index),
            stacks=tuple(self.stacks[i] for i in index),
            log_measured=self.log_measured[index],
            weights=self.weights[index],
        )


def _drawn(runs: Sequence[Run]) -> list[Run]:
    """At most so many runs of each cluster, evenly drawn in their order."""
    of_cluster: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        of_cluster[run.cluster].append(index)
    kept: list[int] = []
    for mine in of_cluster.values():
        places = np.linspace(0, len(mine) - 1, min(len(mine), RUNS_OF_CLUSTER)).astype(int)
        kept += [mine[place] for place in places]
    return [runs[index] for index in sorted(kept)]


def teaches(run: Run) -> bool:
    """Whether a run would teach nothing false."""
    return run.shape is not None and not run.cluster.startswith(TINY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Residuals and their Jacobian at one set of constants."""

    quantity: Quantity
    at: Constants
    left: FloatArray  # measured less predicted, log
    jacobian: FloatArray
    weights: FloatArray

    def take(self, mask: BoolArray) -> Linear:
        """Some of the runs."""
        return replace(self, left=self.left[mask], jacobian=self.jacobian[mask], weights=self.weights[mask])


def linearised(evidence: Evidence, constants: Constants) -> Linear:
    """Price all runs under the constants and with each of them moved."""

    def profile_of(one: Observation) -> Profile:
        return replace(default_profile_of(one), constants=constants)

    quantity = evidence.quantity
    batches, size = batches_of(evidence.observations, profile_of), len(quantity.names)
    offsets = np.concatenate([np.zeros((1, size)), STEP * np.eye(size)])
    values = quantity.log_values(batches, quantity.names, offsets)
    return Linear(
        quantity=quantity,
        at=constants,
        left=evidence.log_measured - values[0],
        jacobian=((values[1:] - values[0]) / STEP).T,
        weights=evidence.weights,
    )


def solved(linear: Linear, centre: Constants, widths: Mapping[str, float]) -> Constants:
    """The constants that explain the linearised runs best, held round ``centre``.

    Soft-L1 loss of the residuals at a noise of 4 %, by iterated reweighting.
    """
    names = linear.quantity.names
    away = log_ratios(linear.at, centre, names)
    stiffness = np.diag(np.array([widths[name] for name in names]) ** -2.0)
    box = Box.of(linear.at, names)
    step: FloatArray = np.zeros(len(names))
    for _ in range(12):
        left = linear.left - linear.jacobian @ step
        weight = linear.weights / (NOISE**2 * np.sqrt(1.0 + (left / NOISE) ** 2))
        pulled = linear.jacobian.T * weight
        step = least_in_box(
            pulled @ linear.jacobian + stiffness, pulled @ linear.left - stiffness @ away, box
        )
    return moved(linear.at, names, step)


def log_ratios(constants: Constants, others: Constants, names: Sequence[str]) -> FloatArray:
    """Log ratios of some constants."""
    return np.log([getattr(constants, name) / getattr(others, name) for name in names])


def moved(constants: Constants, names: Sequence[str], step: FloatArray) -> Constants:
    """Constants after a step of their logarithms, inside their physical bounds."""
    values = {
        name: bounded(name, getattr(constants, name) * float(np.exp(by)))
        for name, by in zip(names, step, strict=True)
    }
    return replace(constants, **values)


def loss(linear: Linear, centre: Constants, widths: Mapping[str, float]) -> float:
    """What the fits minimise."""
    names = linear.quantity.names
    soft = 2.0 * (np.sqrt(1.0 + (linear.left / NOISE) ** 2) - 1.0)
    away = log_ratios(linear.at, centre, names) / [widths[name] for name in names]
    return float((linear.weights * soft).sum() + (away**2).sum())


def fitted(
    evidence: Evidence,
    centre: Constants,
    *,
    start: Constants,
    widths: Mapping[str, float],
    iterations: int = 6,
) -> Constants:
    """Gauss-Newton steps, halved until they help, from ``start`` on."""
    names = evidence.quantity.names
    here = linearised(evidence, start)
    best = loss(here, centre, widths)
    for _ in range(iterations):
        goal = solved(here, centre, widths)
        for share in (1.0, 0.5, 0.25, 0.1):
            step = share * log_ratios(goal, here.at, names)
            there = linearised(evidence, moved(here.at, names, step))
            value = loss(there, centre, widths)
            if value < best:
                break
        else:
            break
        gain, here, best = best - value, there, value
        if gain < best / 1000:
            break
    return here.at
