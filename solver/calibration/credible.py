"""What no run of a software stack has reached: a step time beyond it is an error of whoever measured it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict, predict_all
from meshwright.solver.problem import Problem, Workload

# A run may be faster than every catalogued one of its stack, and than the stack's model predicts, by
# so much: twice the mean error of a cluster's uncalibrated predictions, 10.2 % (docs/accuracy.md, overall).
_BEYOND = 1.2
_MOST_RUNS_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The catalogued run with the highest MFU of a software stack in one precision."""

    run_id: str
    mfu: float  # of the dense bf16 peak, as predictions count it
    of_stack: bool  # False: the stack has no such run, this is the best of all stacks


class IncredibleCalibrationError(InvalidProblemError):
    """A calibration under which a configuration would be faster than its software stack has ever been."""

    def __init__(self, errors: Iterable[FieldError], configurations: Sequence[Configuration] = ()) -> None:
        super().__init__(errors)
        self.configurations = tuple(configurations)  # what was found with it, best first


def least_step_s(problem: Problem, configuration: Configuration) -> float:
    """Return the seconds of the model's FLOPs at the dense peak of the cluster's fastest GPU."""
    peak = max(max(group.gpu.peak_flops.values()) for group in problem.cluster.groups)
    return model_flops(problem, configuration) / peak


def model_flops(problem: Problem, configuration: Configuration) -> float:
    """Return the FLOPs of one step that each GPU takes, as MFU counts them."""
    return problem.model_flops_per_token * problem.tokens_of(configuration) / configuration.num_gpus


def _bits(workload: Workload) -> int:
    """Return the bits of the operands of the linear layers: 16, 8 or 4."""
    if workload.framework_options.get("precision_recipe") == "nvfp4":
        return 4
    return 8 if workload.precision == "fp8" else 16


@cache
def _records() -> Mapping[tuple[str, int], Record]:
    from meshwright.solver.runs.table import CATALOG_RUNS, read_runs  # noqa: PLC0415 - a plan reads no runs

    found: dict[tuple[str, int], Record] = {}
    for run in read_runs(CATALOG_RUNS):
        if run.shape is None or not run.measured.step_time_s:
            continue
        problem, configuration = run.shape.problem, run.shape.configuration
        peak = problem.cluster.groups[0].gpu.peak_bf16_flops
        mfu = model_flops(problem, configuration) / run.measured.step_time_s / peak
        for stack, own in ((framework_facts(run.shape.framework).stack, True), ("", False)):
            key = (stack, _bits(problem.workload))
            if key not in found or found[key].mfu < mfu:
                found[key] = Record(run_id=run.run_id, mfu=mfu, of_stack=own)
    return found


def beyond_records(
    mfu: float, problem: Problem, configuration: Configuration, profile: Profile
) -> str | None:
    """Return, in words, what an MFU exceeds; None if it is credible.

    It must exceed ``_BEYOND`` times the stack's record and the uncalibrated model of the
    stack's prediction (``profile``) for the configuration: hardware without published runs may do
    better than every published run, but not than both.
    """
    records, bits = _records(), _bits(problem.workload)
    record = records.get((profile.framework.stack, bits)) or records["", bits]
    if mfu <= _BEYOND * record.mfu:
        return None
    model_mfu = predict(problem, profile, configuration).mfu
    if mfu <= _BEYOND * model_mfu:
        return None
    stack = f"under {profile.framework.stack}" if record.of_stack else "under any software stack"
    return (
        f"{mfu:.0%} MFU. The best catalogued run {stack} ({record.run_id}) reached "
        f"{record.mfu:.0%}, and the uncalibrated prediction here is {model_mfu:.0%}"
    )


def require_credible(
    problem: Problem, profile: Profile, found: Sequence[tuple[Configuration, Prediction]]
) -> None:
    """Refuse a calibration that makes a plan faster than its software stack has ever been.

    Raises:
        IncredibleCalibrationError: at ``/profile``, with the runs that the calibration learnt from.
    """
    plain = profile.uncalibrated
    if plain is None:
        return
    modelled = predict_all(problem, plain, [configuration for configuration, _ in found])
    for (configuration, prediction), model in zip(found, modelled, strict=True):
        if prediction.mfu <= _BEYOND * model.mfu:
            continue  # the records take a second to read
        beyond = beyond_records(prediction.mfu, problem, configuration, plain)
        if beyond is None:
            continue
        some, more = profile.learnt_from[:_MOST_RUNS_NAMED], len(profile.learnt_from) - _MOST_RUNS_NAMED
        runs = ", ".join(some) + (f" and {more} more" if more > 0 else "")
        kind = "run" if len(profile.learnt_from) == 1 else "runs"
        learnt = f"{kind} {runs or '(not named)'}"
        fault = FieldError(
            pointer="/profile",
            message=f"the calibration on {learnt} predicts {prediction.step_time_s:.4g} s a step, {beyond}",
        )
        raise IncredibleCalibrationError([fault], [one for one, _ in found])
