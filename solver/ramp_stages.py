"""The stages of a batch ramp: smaller global batches for the first tokens, then the workload's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from solver.columns import Columns
from solver.plan import Configuration
from solver.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RampStage:
    """One stage; ``problem`` has its batch and no ramp."""

    problem: Problem
    steps: float

    @property
    def batch(self) -> int:
        """Sequences per optimizer step."""
        return self.problem.workload.global_batch_size

    def columns(self, columns: Columns) -> Columns:
        """Rows of the last stage as this one runs them: with fewer micro-batches.

        ``take`` because a rule may be shown columns that only remember what is read of them.
        """
        step = columns.data_parallel_size * columns.micro_batch_size
        return replace(columns.take(slice(None)), num_microbatches=self.batch // step)

    def configuration(self, config: Configuration) -> Configuration:
        """A configuration of the last stage as this one runs it."""
        step = config.data_parallel_size * config.micro_batch_size
        return replace(config, num_microbatches=self.batch // step)


def ramp_stages(problem: Problem) -> tuple[RampStage, ...]:
    """Every stage in order; the last one is the workload's batch until the end of the run."""
    options, seq = problem.options, problem.workload.seq_length
    plain = replace(problem, options=replace(options, batch_ramp=(), batch_sizes=()))
    ends = [*options.batch_ramp, (problem.workload.global_batch_size, options.total_tokens or 0)]
    stages, start = [], 0
    for batch, end in ends:
        one = replace(plain, workload=replace(plain.workload, global_batch_size=batch))
        stages.append(RampStage(problem=one, steps=max(end - start, 0) / (batch * seq)))
        start = end
    return tuple(stages)
