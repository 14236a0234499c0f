"""What to expect on clusters and models that the constants have not seen.

Each stack is fitted again without one cluster (or one model) at a time: one reweighted Gauss-Newton
solve from the shipped constants on, which is where the fit with it ended. The global level that holds
a stack's fit near physical values has seen all clusters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.fit.evidence import MEMORY, Evidence, Linear, Quantity, linearised, solved
from meshwright.profiles.profile import Constants, Profile, stack_constants
from meshwright.solver.accuracy import RunPrediction, validate
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.observations import Observation, ProfileOf
from meshwright.solver.runs.table import Run

CLUSTER_WEIGHT = 60.0
_Z_80_PERCENT = 1.2816
KeyOf = Callable[[Observation], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One left-out run."""

    run_id: str
    cluster: str
    stack: str
    log_error: float  # ln(measured / predicted)


def blind_constants(evidence: Evidence, key_of: KeyOf) -> dict[tuple[str, str], Constants]:
    """The constants of each (stack, key), fitted on the stack's runs with other keys."""
    general, blind = stack_constants(None), {}
    for stack in sorted(set(evidence.stacks)):
        mine = evidence.of_stack(stack)
        shipped = stack_constants(stack)
        whole = linearised(mine, shipped)
        keys = np.array([key_of(one) for one in mine.observations])
        names = evidence.quantity.names
        centre = replace(shipped, **{name: getattr(general, name) for name in names})
        for key in sorted(set(keys)):
            blind[stack, str(key)] = without_runs(whole, keys != key, centre)
    return blind


def without_runs(whole: Linear, kept: np.ndarray, centre: Constants) -> Constants:
    """A stack's constants from some of its runs; the global ones where none is left."""
    if not kept.any():
        return centre
    return solved(whole.take(kept), centre, whole.quantity.widths)


def cluster_of(one: Observation) -> str:
    """The key of leave-one-cluster-out."""
    return one.problem.cluster.name


def model_of(one: Observation) -> str:
    """The key of leave-one-model-out: a model's shape, whatever a source calls it."""
    model = one.problem.model
    experts = model.moe.num_experts if model.moe else 0
    return f"{model.num_layers}x{model.hidden_size}x{model.ffn_hidden_size}x{experts}"


def profile_of_unknown_stack(evidence: Evidence) -> ProfileOf:
    """Uncalibrated profiles under global constants that never saw a run of the same stack."""
    general = stack_constants(None)
    shared = evidence.shared
    whole, stacks = linearised(shared, general), np.array(shared.stacks)
    widths = evidence.quantity.global_widths or evidence.quantity.widths
    blind = {s: solved(whole.take(stacks != s), general, widths) for s in sorted(set(evidence.stacks))}

    def profile_of(one: Observation) -> Profile:
        profile = default_profile_of(one)
        found = blind.get(profile.framework.stack, general)
        names = evidence.quantity.names
        own = {name: getattr(found, name) for name in names}
        return replace(profile, constants=replace(profile.constants, **own))

    return profile_of


def blind_profile_of(evidence: Evidence, key_of: KeyOf, under: ProfileOf = default_profile_of) -> ProfileOf:
    """Uncalibrated profiles whose constants never saw a run with the same key.

    Args:
        evidence: what the constants are fitted on; only those of its quantity are replaced.
        key_of: what is left out.
        under: profiles whose other constants stay.
    """
    blind, names = blind_constants(evidence, key_of), evidence.quantity.names

    def profile_of(one: Observation) -> Profile:
        profile = under(one)
        found = blind.get((profile.framework.stack, key_of(one)))
        if found is None:
            return profile
        own = {name: getattr(found, name) for name in names}
        return replace(profile, constants=replace(profile.constants, **own))

    return profile_of


def left_out_log_errors(evidence: Evidence) -> list[LeftOut]:
    """Errors of every run when its cluster is left out."""
    errors = []
    for row in validate(evidence.runs, profile_of=blind_profile_of(evidence, cluster_of)).runs:
        pair = _measured_and_predicted(row, evidence.quantity)
        if pair is not None:
            errors.append(_left_out(row.run, pair[0] / pair[1]))
    return errors


def _measured_and_predicted(row: RunPrediction, quantity: Quantity) -> tuple[float, float] | None:
    """The two values of a row, where it has both."""
    measured = row.run.measured
    if row.prediction is None:
        return None
    if quantity is MEMORY:
        peaks = measured.peak_memory_bytes, row.predicted_peak_memory_bytes
        return (peaks[0], peaks[1]) if peaks[0] and peaks[1] else None
    return (measured.step_time_s, row.prediction.step_time_s) if measured.step_time_s else None


def _left_out(run: Run, ratio: float) -> LeftOut:
    """One error with where it belongs."""
    one = Observation.of(run)
    stack = default_profile_of(one).framework.stack if one else ""
    return LeftOut(run_id=run.run_id, cluster=run.cluster, stack=stack, log_error=float(np.log(ratio)))


def sigma_of(errors: Sequence[LeftOut]) -> float:
    """The sigma whose central 80 % hold 80 % of the errors, a cluster counting as 60 runs at most."""
    counts: dict[str, int] = defaultdict(int)
    for error in errors:
        counts[error.cluster] += 1
    sizes = np.abs([error.log_error for error in errors])
    weights = np.array([min(1.0, CLUSTER_WEIGHT / counts[error.cluster]) for error in errors])
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(share, 0.8)]) / _Z_80_PERCENT
