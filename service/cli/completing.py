"""Completes a configuration that a person wrote: what is left out follows from what is there."""

from __future__ import annotations

from collections.abc import Mapping

from profiles.errors import FieldError, InvalidProblemError
from service.api.configurations import configuration_of
from solver.plan import Configuration
from solver.problem import Problem


def completed(raw: Mapping[str, object], problem: Problem) -> Configuration:
    """The Configuration of ``raw``: the remaining GPUs are data parallel, the split is even.

    Raises:
        InvalidProblemError: unknown names, wrong types, or sizes that cannot hold this model and batch.
    """
    given = configuration_of(raw)
    faults = [
        FieldError(pointer=f"/configuration/{name}", message="must be 1 or more")
        for name in _SIZES
        if getattr(given, name) < 1
    ]
    if faults:
        raise InvalidProblemError(faults)
    values: dict[str, object] = {**_derived(given, problem), **raw}
    configuration = configuration_of(values)
    _refuse_misfits(configuration, problem)
    return configuration


_SIZES = (
    "tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "context_parallel_size",
    "expert_parallel_size", "data_parallel_size", "micro_batch_size", "num_microbatches",
)  # fmt: skip


def _derived(given: Configuration, problem: Problem) -> dict[str, object]:
    """Values of the names that may be left out."""
    tp, pp, vpp = given.tensor_parallel_size, given.pipeline_parallel_size, given.virtual_pipeline_size
    cp, layers = given.context_parallel_size, problem.model.num_layers
    dp = max(given.data_parallel_size, problem.cluster.num_gpus // (tp * pp * cp), 1)
    schedule = "none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved_1f1b"
    split = list(given.stage_layers) or even_split(layers, pp * vpp)
    return {
        "sequence_parallel": tp > 1,
        "data_parallel_size": dp,
        "num_microbatches": max(1, problem.workload.global_batch_size // (dp * given.micro_batch_size)),
        "pipeline_schedule": schedule,
        "zero_shard_size": dp * cp if given.zero_stage else 1,
        "recompute_layers": max(split) if given.recompute_granularity == "full" else 0,
        "stage_layers": split,
    }


def even_split(num_layers: int, num_chunks: int) -> list[int]:
    """Layers of each chunk, as even as can be; the first chunks hold one more where it does not divide."""
    least, more = divmod(num_layers, min(num_chunks, max(num_layers, 1)))
    return [least + (index < more) for index in range(min(num_chunks, num_layers))]


def _refuse_misfits(configuration: Configuration, problem: Problem) -> None:
    """Refuse what no price can be given for: another number of layers, chunks, GPUs or sequences.

    Raises:
        InvalidProblemError: with one FieldError per misfit.
    """
    batch, layers = problem.workload.global_batch_size, problem.model.num_layers
    gpus, sequences = problem.cluster.num_gpus, configuration.global_batch_size
    chunks = configuration.pipeline_parallel_size * configuration.virtual_pipeline_size
    split = configuration.stage_layers
    misfits = {
        "/configuration/data_parallel_size": (
            configuration.num_gpus > gpus,
            f"tp × pp × cp × dp = {configuration.num_gpus}, but there are {gpus} GPUs",
        ),
        "/configuration/num_microbatches": (
            sequences != batch,
            f"dp × micro-batch × num_microbatches = {sequences}, but the global batch is {batch}",
        ),
        "/configuration/stage_layers": (
            len(split) != chunks or sum(split) != layers or min(split, default=0) < 1,
            f"{len(split)} chunks with {sum(split)} layers, but {chunks} chunks share {layers} layers",
        ),
    }
    faults = [FieldError(pointer=at, message=message) for at, (wrong, message) in misfits.items() if wrong]
    if faults:
        raise InvalidProblemError(faults)
