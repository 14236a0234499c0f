"""How far steps are missed that are priced from one timed layer a shard.

    python -m benchmarks.timed_layers

The open single-node vTrain runs differ in depth, so two runs of 12 and 24 layers, alike otherwise, tell
what one layer takes: their difference over 12 layers and all micro-batches. One such pair for each
tensor-parallel size and micro-batch makes a measured profile; all other runs are predicted with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from benchmarks.foreign.layer_times import Taken, measured_profile_of, passes_of
from meshwright.profiles.measured.profile import Measurement, Session
from meshwright.profiles.profile import Profile
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.calibration.timed import with_measured
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.price import price
from meshwright.solver.predict import predict
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs

CLUSTER = "vtrain-a100-single"
SHALLOW, DEEP = 12, 24  # layers of a pair


def observations() -> list[Observation]:
    """The runs with a time."""
    runs = [run for run in read_runs(CATALOG_RUNS) if run.cluster == CLUSTER]
    found = [Observation.of(run) for run in runs]
    return [one for one in found if one is not None and one.step_time_s]


def pair_of(runs: Sequence[Observation], shard: tuple[int, int]) -> tuple[Observation, Observation] | None:
    """Two runs of one shard without a pipeline that differ in depth alone, most micro-batches first."""

    def rank(one: Observation) -> tuple[int, int]:
        return one.configuration.data_parallel_size, -one.configuration.num_microbatches

    mine = [one for one in runs if _shard(one) == shard and one.configuration.pipeline_parallel_size == 1]
    by_depth = [
        sorted((one for one in mine if one.problem.model.num_layers == depth), key=rank)
        for depth in (SHALLOW, DEEP)
    ]
    return next(((a, b) for a, b in product(*by_depth) if rank(a) == rank(b)), None)


def _shard(one: Observation) -> tuple[int, int]:
    return one.configuration.tensor_parallel_size, one.configuration.micro_batch_size


def layer_of(pair: tuple[Observation, Observation], profile: Profile) -> list[Measurement]:
    """The layer that a pair tells: two forward passes (all layers recompute) and a backward pass."""
    shallow, deep = pair
    seconds = (deep.step_time_s or 0.0) - (shallow.step_time_s or 0.0)
    seconds /= (DEEP - SHALLOW) * shallow.configuration.num_microbatches
    prices = price(shallow.problem, Columns.of([shallow.configuration]), profile)
    forward, backward = float(prices.forward_s[0, 0]), float(prices.backward_s[0, 0])
    share = seconds / (2.0 * forward + backward)
    times = {"forward": share * forward, "backward": share * backward}
    seq_length = shallow.problem.workload.seq_length
    return passes_of("dense_layer", times, seq_length=seq_length, shard=_shard(shallow))


def report(name: str, runs: Sequence[Observation], profile_of: Callable[[Observation], Profile]) -> None:
    """One line of errors."""
    predictions = [predict(one.problem, profile_of(one), one.configuration) for one in runs]
    measured = np.array([one.step_time_s or 1.0 for one in runs])
    errors = np.array([prediction.step_time_s for prediction in predictions]) / measured - 1.0
    low, high = (
        np.array([getattr(prediction, f"step_time_{side}_s") for prediction in predictions])
        for side in ("low", "high")
    )
    inside, missed = np.mean((low <= measured) & (measured <= high)), np.abs(errors)
    sys.stdout.write(
        f"{name}: {len(runs)} runs, mean {missed.mean():.1%}, median {np.median(missed):.1%}, "
        f"p90 {np.quantile(missed, 0.9):.1%}, bias {errors.mean():+.1%}, in 80 % {inside:.0%}\n"
    )


def main() -> int:
    """Errors without and with timed layers, on the runs that gave no layer."""
    runs = observations()
    base = default_profile_of(runs[0])
    pairs = [pair_of(runs, shard) for shard in sorted({_shard(one) for one in runs})]
    known = [pair for pair in pairs if pair is not None]
    measurements = [one for pair in known for one in layer_of(pair, base)]
    workload = runs[0].problem.workload
    session = Session(started_at="", command="benchmarks.timed_layers", meshwright="0")
    taken = Taken(
        model=runs[0].problem.model,
        gpu=base.group.gpu,
        seq_length=workload.seq_length,
        dtype="fp16" if workload.precision == "fp16" else "bf16",
        with_collectives=True,
        session=session,
    )
    measured = measured_profile_of(tuple(measurements), taken)
    used = {one.name for pair in known for one in pair}
    others = [one for one in runs if one.name not in used]
    fitted = with_measured(runs[0].problem, base, measured)
    report("as shipped (fitted on these runs too)", others, default_profile_of)
    report(f"with {len(known)} timed layers", others, lambda _one: fitted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
