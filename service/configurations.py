"""Reads a configuration that somebody wrote, and completes it: what is left out follows from the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

from profiles.documents import MAX_ERRORS, pointer
from profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from service.placed_configurations import names_places, placed
from solver.columns import Columns
from solver.gpu_counts import usable_gpus
from solver.mixed.check import broken_on_groups
from solver.options import WORDS
from solver.plan import Configuration, configuration_from_json
from solver.problem import Problem
from solver.rules import rules_of, violation_masks
from solver.splits import launcher_split, usual_split

MAX_SIZE = 2**31 - 1
MAX_ZERO_STAGE = 3
_TEMPLATE: dict[str, Any] = asdict(Configuration())
_KINDS = {bool: "true or false", int: "an integer", str: "text", tuple: "a list of integers"}
_SIZES = (
    "tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "context_parallel_size",
    "expert_parallel_size", "expert_tensor_parallel_size", "data_parallel_size", "zero_shard_size",
    "micro_batch_size", "num_microbatches",
)  # fmt: skip


def completed(
    raw: Mapping[str, object], problem: Problem, at: tuple[str, ...] = ("configuration",)
) -> Configuration:
    """The Configuration of ``raw``: the remaining GPUs are data parallel, the split is the usual one.

    One that names node groups is read by ``placed_configurations``.

    ``at`` is where faults say that it stands.

    Raises:
        InvalidProblemError: unknown names, wrong types, or sizes that cannot hold this model and batch.
    """
    try:
        if names_places(raw):
            configuration = placed(raw, problem, _read)
        else:
            given = _read(raw)
            configuration = _as_written(configuration_of({**_derived(given, problem), **raw}))
            _raise_any(chain(_misfits(configuration, problem), _stage_counts(configuration)))
    except InvalidProblemError as fault:
        here = pointer(*at)
        moved = (
            replace(one, pointer=here + one.pointer.removeprefix("/configuration")) for one in fault.errors
        )
        raise InvalidProblemError(moved) from None
    return configuration


def broken_rules(problem: Problem, configuration: Configuration) -> list[str]:
    """The rules of the search space that a configuration breaks, by name; it has a price all the same."""
    if configuration.is_placed:
        return list(dict.fromkeys(broken_on_groups(problem, configuration)))
    rules = rules_of(problem)
    mask = int(violation_masks(rules, Columns.of([configuration]))[0])
    broken = [rule.name for bit, rule in enumerate(rules) if mask >> bit & 1]
    own = launcher_split(problem, configuration)
    if own and own != configuration.stage_layers:
        broken.append(f"{problem.launcher} splits the layers itself, as {' '.join(map(str, own))}")
    return broken


def _read(raw: Mapping[str, object]) -> Configuration:
    """The same with every size in its range."""
    given = configuration_of(raw)
    _raise_any(_out_of_range(given))
    return given


def configuration_of(raw: Mapping[str, object]) -> Configuration:
    """The Configuration of ``raw``; what is left out is off.

    Raises:
        InvalidProblemError: with one FieldError per unknown name or wrong type.
    """
    faults: list[FieldError] = []
    for name, value in raw.items():
        where = pointer("configuration", name)
        if name not in _TEMPLATE:
            faults.extend(UnknownNameError.among(where, name, _TEMPLATE).errors)
        elif not _fits(value, type(_TEMPLATE[name])):
            kind = _KINDS[type(_TEMPLATE[name])]
            bounded = isinstance(_TEMPLATE[name], int | tuple) and not isinstance(_TEMPLATE[name], bool)
            allowed = f"from {int(name in _SIZES)} to {MAX_SIZE}" if bounded else None
            faults.append(FieldError(pointer=where, message=f"must be {kind}", allowed=allowed))
        if len(faults) == MAX_ERRORS:
            break
    _raise_any(faults)
    return configuration_from_json({**_TEMPLATE, **raw})


def _out_of_range(given: Configuration) -> Iterator[FieldError]:
    """Sizes below 1, ZeRO stages there are not, unknown words."""
    for name in _SIZES:
        if getattr(given, name) < 1:
            where = pointer("configuration", name)
            yield FieldError(pointer=where, message="must be 1 or more", nearest="1")
    if given.zero_stage > MAX_ZERO_STAGE:
        where = pointer("configuration", "zero_stage")
        yield FieldError(pointer=where, message="there is no such stage", allowed=f"0 to {MAX_ZERO_STAGE}")
    for name, words in WORDS.items():
        if getattr(given, name) not in words:
            yield from UnknownNameError.among(
                pointer("configuration", name), getattr(given, name), words
            ).errors


def _derived(given: Configuration, problem: Problem) -> dict[str, object]:
    """Values of the names that may be left out."""
    tp, pp, vpp = given.tensor_parallel_size, given.pipeline_parallel_size, given.virtual_pipeline_size
    cp = given.context_parallel_size
    dp = max(given.data_parallel_size, usable_gpus(problem) // (tp * pp * cp), 1)
    schedule = "none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved_1f1b"
    split = given.stage_layers or usual_split(problem, given)
    return {
        "sequence_parallel": tp > 1,
        "data_parallel_size": dp,
        "num_microbatches": max(1, problem.workload.global_batch_size // (dp * given.micro_batch_size)),
        "pipeline_schedule": schedule,
        "zero_shard_size": dp * cp if given.zero_stage else 1,
        "recompute_layers": _recomputed(given, split),
        "stage_layers": list(split),
    }


def _recomputed(given: Configuration, split: Sequence[int]) -> int:
    """Recomputed layers of each chunk: all of the model, or the most that a stage of its own count has."""
    if given.recompute_granularity != "full":
        return 0
    return max(given.stage_recompute_layers, default=sum(split))


def _as_written(configuration: Configuration) -> Configuration:
    """The same with all layers of the model recomputed where a number covers every chunk."""
    split, own = configuration.stage_layers, configuration.stage_recompute_layers
    full = configuration.recompute_granularity == "full" and not own
    every = full and configuration.recompute_layers >= max(split, default=0)
    return replace(configuration, recompute_layers=sum(split)) if every else configuration


def _stage_counts(configuration: Configuration) -> Iterator[FieldError]:
    """Recomputed layers by stage are those of as many chunks, of layers that they have; not all are 0."""
    own, split = configuration.stage_recompute_layers, configuration.stage_layers
    too_many = any(count > size for count, size in zip(own, split, strict=False))
    if own and (configuration.recompute_granularity != "full" or not any(own)):
        yield FieldError(
            pointer=pointer("configuration", "stage_recompute_layers"),
            message="goes with recompute_granularity full and a count above 0",
            allowed="left out where no layer is recomputed, with recompute_granularity none",
        )
    if own and (too_many or len(own) != len(split)):
        yield FieldError(
            pointer=pointer("configuration", "stage_recompute_layers"),
            message="must be a count for each chunk, of its layers at most",
            allowed=f"{len(split)} counts, up to {', '.join(map(str, split[:8]))}",
        )


def _misfits(configuration: Configuration, problem: Problem) -> Iterator[FieldError]:
    """What no price can be given for: another number of layers, chunks, GPUs or sequences."""
    batch, layers = problem.workload.global_batch_size, problem.model.num_layers
    gpus, sequences = usable_gpus(problem), configuration.global_batch_size
    chunks = configuration.pipeline_parallel_size * configuration.virtual_pipeline_size
    split = configuration.stage_layers
    if configuration.num_gpus > gpus:
        used = configuration.num_gpus // configuration.data_parallel_size
        yield FieldError(
            pointer=pointer("configuration", "data_parallel_size"),
            message=f"tp × pp × cp × dp = {configuration.num_gpus}, but there are {gpus} GPUs",
            nearest=str(gpus // used) if used <= gpus else None,
        )
    if sequences != batch:
        step = configuration.data_parallel_size * configuration.micro_batch_size
        yield FieldError(
            pointer=pointer("configuration", "num_microbatches"),
            message=f"dp × micro-batch × num_microbatches = {sequences}, but the global batch is {batch}",
            allowed=f"a dp × micro-batch, here {step}, that divides {batch}" if batch % step else None,
            nearest=None if batch % step else str(batch // step),
        )
    if len(split) != chunks or sum(split) != layers or min(split, default=0) < 1:
        yield FieldError(
            pointer=pointer("configuration", "stage_layers"),
            message=f"{len(split)} chunks with {sum(split)} layers, "
            f"but {chunks} chunks share {layers} layers",
            allowed="one layer or more in every chunk",
        )


def _raise_any(faults: Iterable[FieldError]) -> None:
    """Raise InvalidProblemError when there are faults."""
    found = list(faults)
    if found:
        raise InvalidProblemError(found)


def _fits(value: object, kind: type) -> bool:
    """Whether a JSON value is of ``kind``; a bool is no integer, and integers are bounded."""
    if kind is tuple:
        return isinstance(value, list) and all(_fits(item, int) for item in value)
    if kind is int:
        return type(value) is int and 0 <= value <= MAX_SIZE
    return type(value) is kind
