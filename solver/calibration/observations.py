"""One measured run for calibration: its configuration and its measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from meshwright.profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.optimizers import OPTIMIZERS, optimizer_named
from meshwright.profiles.profile import Constants, Profile, roughness
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Columns, Configuration, FloatArray, IntArray
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.price import price, price_memory
from meshwright.solver.cost.stages import (
    FRAGMENTS,
    LayerLayout,
    RowPrices,
    Stages,
    assemble,
    objective_s,
)
from meshwright.solver.cost.uncertainty import SHARES, SLOWER, catalog_spreads, share_of
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem

if TYPE_CHECKING:  # a plan reads no table of runs
    from meshwright.solver.runs.table import Run, RunShape


def require_equal_nodes(config: Configuration, at: str) -> None:
    """Refuse a run with stages on node groups.

    Raises:
        InvalidProblemError: it has; ``at`` is the place of the plan in what the user gave.
    """
    if config.is_placed:
        message = (
            "its stages run on different GPU types. You can calibrate only on clusters with identical nodes"
        )
        raise InvalidProblemError.of(at, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A run of the cluster to calibrate; None where it was not measured."""

    name: str  # how findings call it
    problem: Problem
    configuration: Configuration
    framework: str
    step_time_s: float | None
    peak_memory_bytes: float | None = None
    memory_kind: str = "unknown"  # of ``MEMORY_KINDS``: what the peak counts
    memory_rank: str = "unknown"  # first, last, worst, unknown: the rank with this peak
    out_of_memory: bool = False
    recompute_known: bool = True
    sharding_known: bool = True
    software_known: bool = True  # False: the framework is the nearest known one
    release: str = ""  # of the software; "" where it is not stated

    @classmethod
    def of(cls, run: Run) -> Observation | None:
        """Return a row of a table of runs as an observation; None if the row was refused."""
        if run.shape is None:
            return None
        measured = run.measured
        return replace(
            cls.of_shape(run.shape),
            name=run.run_id,
            step_time_s=measured.step_time_s,
            peak_memory_bytes=measured.peak_memory_bytes,
            memory_kind=measured.memory_kind,
            memory_rank=measured.memory_rank,
            out_of_memory=bool(measured.out_of_memory),
        )

    @classmethod
    def of_shape(cls, shape: RunShape) -> Observation:
        """Return an observation of a shape without measurements."""
        return cls(
            name="",
            problem=shape.problem,
            configuration=shape.configuration,
            framework=shape.framework,
            step_time_s=None,
            recompute_known=shape.recompute_known,
            sharding_known=shape.sharding_known,
            software_known=shape.software_known,
            release=shape.release,
        )


def memory_configuration(one: Observation, prediction: Prediction) -> Configuration:
    """Return the configuration under which a run's memory is judged.

    Where a source is silent about recomputation, or the sharding of the optimizer's states, and the run
    could not have fitted without, it is judged with full recomputation and with states that all replicas
    share (ZeRO-1): it would never have been tried otherwise.
    """
    known = one.configuration
    if prediction.out_of_memory_probability <= 0.5:  # noqa: PLR2004 (likelier not)
        return known
    if not one.recompute_known:
        every = sum(known.stage_layers)
        known = replace(known, recompute_granularity="full", recompute_layers=every)
    if not one.sharding_known and known.zero_stage == 0:
        known = replace(known, zero_stage=1, zero_shard_size=known.replicating_ranks)
    return known


# --------------------------------------------------------------------------------------------------
# Prices observations under many sets of constants in few calls.
#
# Every formula of the cost model broadcasts over its constants, so a batch of n runs under v sets of
# constants is one call on n * v rows with columns of constants. That makes a Jacobian of two
# dozen constants as cheap as three plain calls.


# What a measure of memory sees of terms that others do not: nothing of what lies outside the framework's
# allocator; of what the allocator holds idle, all of it or nothing, where the peak counts what it cannot
# give back. ``first_step`` has two moments of its own (``seen_moments``).
_ALLOCATED = {"context": 0.0, "reserve": 0.0}
SEEN_SHARES: Mapping[str, Mapping[str, float]] = {
    "allocated": _ALLOCATED,
    "reserved": {"context": 0.0, "reserve": 1.0 / FRAGMENTS},
    "device": {"reserve": 1.0 / FRAGMENTS},
    "unknown": _ALLOCATED,
    "first_step": _ALLOCATED,
    "exhausted": {},  # of a GPU that ran out of memory: what could be given back was
}
_FP32_BYTES = 4.0
ProfileOf = Callable[[Observation], Profile]


def seen_moments(one: Observation) -> tuple[Mapping[str, float], ...]:
    """Return shares of the memory's terms at each moment of which the largest is measured.

    A first step's passes have none of the optimizer's moments yet, but its fp32 copy, where there is one.
    Moments come at its end, when activations are gone; with such a copy come fp32 copies of 2-byte
    gradients (Megatron-LM d98e8a64 ``distrib_optimizer.py:2792``) and, where weights are kept in 8 bits,
    2-byte copies of the fp32 ones (Transformer Engine d0067d0d ``tensor/utils.py:291``), in shards like
    the states.
    """
    shares = SEEN_SHARES[one.memory_kind]
    if one.memory_kind != "first_step":
        return (shares,)
    work = one.problem.workload
    facts = with_options(framework_facts(one.framework), work.framework_options)
    optimizer = optimizer_named(work.optimizer)
    beside_moments = max(facts.optimizer_bytes - OPTIMIZERS["adamw"].state_bytes, 0.0)
    copy = beside_moments if optimizer.fp32_copy else 0.0
    states = copy + optimizer.state_bytes
    copied = _FP32_BYTES if copy and facts.gradient_bytes < _FP32_BYTES else 0.0
    cast = 2.0 if facts.low_precision_weights and work.precision not in ("bf16", "fp16", "fp32") else 0.0
    return (
        {**shares, "optimizer": copy / states},
        {**shares, "activations": 0.0, "workspace": 0.0, "optimizer": 1.0 + (copied + cast) / states},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Observations that share a problem but for its batch size."""

    index: IntArray  # their places among all
    problem: Problem
    profile: Profile
    columns: Columns
    splits: IntArray
    seen: tuple[tuple[Mapping[str, float], ...], ...]  # ``seen_moments`` of each run
    ranks: tuple[str, ...]  # the measured rank


_Found = TypeVar("_Found")


def _together(
    observations: Sequence[Observation],
    profile_of: ProfileOf,
    of: Callable[[Problem, Profile, Sequence[Configuration]], Sequence[_Found]],
) -> list[_Found]:
    """Return what is found of every run; those of one problem and framework are priced together."""
    groups: dict[str, list[int]] = defaultdict(list)
    for at, one in enumerate(observations):
        groups[repr((one.framework, one.software_known, one.release, one.problem))].append(at)
    found: dict[int, _Found] = {}
    for mine in groups.values():
        first, asked = observations[mine[0]], [observations[at].configuration for at in mine]
        found |= zip(mine, of(first.problem, profile_of(first), asked), strict=True)
    return [found[at] for at in range(len(observations))]


def predictions_of(observations: Sequence[Observation], profile_of: ProfileOf) -> list[Prediction]:
    """Predict every run."""
    return _together(observations, profile_of, predict_all)


def steps_s_of(observations: Sequence[Observation], profile_of: ProfileOf) -> list[float]:
    """Return the predicted step of every run, without its interval."""
    return _together(
        observations,
        profile_of,
        lambda problem, profile, asked: [one.step_s() for one in evaluate(problem, profile, asked)],
    )


def batches_of(observations: Sequence[Observation], profile_of: ProfileOf) -> list[Batch]:
    """Group observations that can be priced together."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(observations):
        problem = replace(one.problem, workload=replace(one.problem.workload, global_batch_size=1))
        key = (one.framework, one.software_known, one.release, problem, problem.model.name)
        groups[repr(key)].append(index)
    return [_batch(observations, index, profile_of) for index in groups.values()]


def _batch(observations: Sequence[Observation], index: list[int], profile_of: ProfileOf) -> Batch:
    mine = [observations[i] for i in index]
    configurations = [one.configuration for one in mine]
    width = max(len(c.stage_layers) for c in configurations)
    splits = [(*c.stage_layers, *([0] * (width - len(c.stage_layers)))) for c in configurations]
    return Batch(
        index=np.array(index, dtype=np.int64),
        problem=mine[0].problem,
        profile=profile_of(mine[0]),
        columns=Columns.of(configurations),
        splits=np.array(splits, dtype=np.int64),
        seen=tuple(seen_moments(one) for one in mine),
        ranks=tuple(one.memory_rank for one in mine),
    )


def with_offsets(constants: Constants, names: Sequence[str], offsets: FloatArray, repeat: int) -> Constants:
    """Return constants as columns: row ``v * repeat + i`` holds set v of the offsets (v, c), bounded."""
    columns: dict[str, Any] = {}
    for name, log_ratio in zip(names, offsets.T, strict=True):
        value = getattr(constants, name) * np.exp(log_ratio)
        value = np.minimum(value, UPPER_BOUNDS.get(name, np.inf))
        columns[name] = np.repeat(np.maximum(value, LOWER_BOUNDS.get(name, 0.0)), repeat)
    return replace(constants, **columns)


PriceRows = Callable[[Problem, Columns, Profile], RowPrices]


def _stages_of(
    batch: Batch, names: Sequence[str], offsets: FloatArray, price_rows: PriceRows, *, with_memory: bool
) -> tuple[RowPrices, Columns, Stages]:
    """Return a batch's prices, rows and stages under every set of offsets, v * n of each."""
    n = len(batch.columns)
    rows = np.tile(np.arange(n), len(offsets))
    columns, constants = batch.columns.take(rows), batch.profile.constants
    profile = replace(batch.profile, constants=with_offsets(constants, names, offsets, n))
    prices = price_rows(batch.problem, columns, profile)
    layout = LayerLayout.of(batch.problem.model, batch.problem.training)
    return prices, columns, assemble(prices, columns, layout, batch.splits[rows], with_memory=with_memory)


def log_step_s(batches: Sequence[Batch], names: Sequence[str], offsets: FloatArray) -> FloatArray:
    """Return ``ln`` of the closed-form step of every observation, (v, n) for offsets (v, c)."""
    timed = partial(price, with_memory=False)
    return _log_of(
        lambda batch: objective_s(*_stages_of(batch, names, offsets, timed, with_memory=False)),
        batches,
        len(offsets),
    )


def _log_of(of: Callable[[Batch], FloatArray], batches: Sequence[Batch], sets: int) -> FloatArray:
    """Return ``ln`` of a value of every observation, batch by batch, shape (v, n)."""
    out = np.empty((sets, sum(len(batch.index) for batch in batches)))
    for batch in batches:
        out[:, batch.index] = np.log(of(batch)).reshape(sets, -1)
    return out


def roughness_of(batches: Sequence[Batch]) -> FloatArray:
    """Return every observation's noise over that of one that launches do not delay, (n,)."""
    return roughness(launch_shares(batches), catalog_spreads()["time"]["launch_noise"])


def launch_shares(batches: Sequence[Batch]) -> FloatArray:
    """Return the share of each observation's step that depends on launches, (n,), as in intervals."""
    name = SHARES["launch"]
    still, slower = log_step_s(batches, (name,), np.array([[0.0], [SLOWER[name]]]))
    return share_of("launch", still, slower)


def _seen_bytes(batch: Batch, stages: Stages, sets: int) -> FloatArray:
    """Return the peak of the measured rank as each run's measurement counts it, shape (v, n)."""
    n = len(batch.index)
    seen: FloatArray = np.zeros(stages.rank_valid.shape)
    for moment in range(max(map(len, batch.seen))):
        now: FloatArray = np.zeros(stages.rank_valid.shape)
        for term, value in stages.memory_bytes.items():
            counted = np.array(
                [moments[min(moment, len(moments) - 1)].get(term, 1.0) for moments in batch.seen]
            )
            now += value * np.tile(counted, sets)[:, None]
        seen = np.maximum(seen, now)
    by_rank = np.where(stages.rank_valid, seen, 0.0).reshape(sets, n, -1)
    peak: FloatArray = by_rank.max(axis=2)
    for row, rank in enumerate(batch.ranks):
        if rank in ("first", "last"):
            last = int(batch.columns.pipeline_parallel_size[row]) - 1
            peak[:, row] = by_rank[:, row, 0 if rank == "first" else last]
    return peak


def log_peak_bytes(batches: Sequence[Batch], names: Sequence[str], offsets: FloatArray) -> FloatArray:
    """Return ``ln`` of the memory of every observation as it was measured, shape (v, n)."""
    sets = len(offsets)
    return _log_of(
        lambda batch: _seen_bytes(
            batch, _stages_of(batch, names, offsets, price_memory, with_memory=True)[-1], sets
        ),
        batches,
        sets,
    )
