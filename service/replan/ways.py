"""Ways to finish a running job on a changed cluster, as records; ``finish`` finds and times them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.solver.answer import Plan, Prediction
from meshwright.solver.configuration import Configuration, plan_id_of
from meshwright.solver.problem import Problem, problem_digest

Kind = Literal["as it is", "new layout", "spare nodes", "wait for repair", "new layout until repaired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A configuration on the nodes that it would run on."""

    config: Configuration
    prediction: Prediction
    problem: Problem

    @property
    def plan(self) -> Plan:
        """Return the layout as a plan of its own question."""
        return Plan(
            plan_id=plan_id_of(problem_digest(self.problem), self.config),
            rank=1,
            config=self.config,
            prediction=self.prediction,
            objective_s=self.prediction.step_time_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """One way to go on, and when the run ends."""

    kind: Kind
    finish_s: float  # from now until the last step; the sum of what follows
    finish_low_s: float  # with the ends of the step's 80 % interval
    finish_high_s: float
    waiting_s: float
    restart_s: float
    resharding_s: float  # to write (where the job still runs), read and exchange the checkpoint
    lost_work_s: float
    steps_s: float
    interruptions_s: float
    moved_bytes: float  # bytes on another GPU afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishOption(Spans):
    """One way to go on, with its layouts."""

    layout: Layout
    afterwards: Layout | None = None  # what the run goes back to once the nodes are repaired


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """All ways to finish a job, the soonest first."""

    ways: tuple[FinishOption, ...]
    saved_step: int
    lost_steps: int
    remaining_steps: int  # of the run, those that are lost not among them
    refused: tuple[str, ...]  # ways that there are not, and why
    notes: tuple[str, ...]  # what was assumed
