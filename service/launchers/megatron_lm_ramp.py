"""A batch that grows: Megatron-LM 0.19's step schedule, and what older versions take in its place.

Megatron-Core 0.19.2, num_microbatches_calculator.py: ``--step-batch-size-schedule "0:768 250B:1536"`` names
the tokens from which a batch holds, and excludes ``--global-batch-size``. ``--rampup-batch-size`` is still
parsed there, and ignored without a word; before 0.19 it is the only way, and grows in equal steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from profiles.errors import FieldError
from service.launchers.rules import fault
from service.launchers.target import Target

Step = tuple[int, int]  # tokens from which a batch holds, the batch


def batch_steps(target: Target) -> list[Step]:
    """The batches in order, the workload's last; empty without a ramp."""
    ramp = target.problem.options.batch_ramp
    if not ramp:
        return []
    starts = [0, *(end for _batch, end in ramp)]
    batches = [*(batch for batch, _end in ramp), target.workload.global_batch_size]
    return list(zip(starts, batches, strict=True))


def schedule_text(steps: Sequence[Step]) -> str:
    """The value of ``--step-batch-size-schedule``."""
    return " ".join(f"{start}:{batch}" for start, batch in steps)


def linear_ramp(steps: Sequence[Step], seq_length: int) -> tuple[int, int, int] | None:
    """Start, increment and samples of ``--rampup-batch-size``, where batches grow evenly; else None.

    Megatron-Core 0.16, ``RampupBatchsizeNumMicroBatchesCalculator``: the batch grows by one increment after
    each ``samples / ((final - start) / increment)`` samples.
    """
    batches, starts = [batch for _, batch in steps], [start for start, _ in steps]
    grows = {after - before for before, after in pairwise(batches)}
    lasts = {after - before for before, after in pairwise(starts)}
    if len(grows) != 1 or len(lasts) != 1 or starts[-1] % seq_length:
        return None
    return batches[0], grows.pop(), starts[-1] // seq_length


def ramp_is_whole(target: Target) -> Iterator[FieldError]:
    """Every batch is whole micro-batches of every replica (asserted when the batch is reached)."""
    config = target.config
    each = config.micro_batch_size * config.data_parallel_size
    for _start, batch in batch_steps(target):
        if batch % each:
            yield fault("micro_batch_size", f"mbs * dp = {each} does not divide the ramp's batch {batch}")


def ramp_warnings(target: Target) -> Iterator[str]:
    """What versions before 0.19 need instead."""
    steps = batch_steps(target)
    if not steps:
        return
    linear = linear_ramp(steps, target.workload.seq_length)
    if linear is None:
        yield "the batch ramp needs Megatron-LM 0.19: before, batches grow in equal steps only"
    else:
        words = " ".join(map(str, linear))
        yield (
            "the batch ramp is written for Megatron-LM 0.19; before, replace --step-batch-size-schedule by "
            f"--global-batch-size {steps[-1][1]} --rampup-batch-size {words}"
        )
