"""One measured run as calibration sees it: what was asked, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from solver.plan import Configuration, Prediction
from solver.problem import Problem
from solver.runs import Run, RunShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A run of the cluster to calibrate; None where it was not measured."""

    name: str  # how findings call it
    problem: Problem
    configuration: Configuration
    framework: str
    step_time_s: float | None
    peak_memory_bytes: float | None = None
    memory_kind: str = "unknown"  # allocated, reserved, device, unknown: what the peak counts
    memory_rank: str = "unknown"  # first, last, worst, unknown: whose peak it is
    out_of_memory: bool = False
    recompute_known: bool = True

    @classmethod
    def of(cls, run: Run) -> Observation | None:
        """A row of a table of runs; None where the row was refused."""
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
        """What is asked of a run, with nothing measured."""
        return cls(
            name="",
            problem=shape.problem,
            configuration=shape.configuration,
            framework=shape.framework,
            step_time_s=None,
            recompute_known=shape.recompute_known,
        )


def memory_configuration(
    configuration: Configuration, prediction: Prediction, *, recompute_known: bool
) -> Configuration:
    """The configuration under which a run's memory is judged.

    Where a source is silent about recomputation and the run could not have fitted without, it is
    judged under full recomputation: it would never have been tried otherwise.
    """
    if recompute_known or prediction.out_of_memory_probability <= 0.5:  # noqa: PLR2004 (likelier not)
        return configuration
    every = sum(configuration.stage_layers)
    return replace(configuration, recompute_granularity="full", recompute_layers=every)
