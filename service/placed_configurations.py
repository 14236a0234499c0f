"""Reads a configuration whose stages stand on named node groups, and completes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from profiles.documents import MAX_ERRORS, pointer
from profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from service.request_placed import PLACED_ONLY
from service.request_run import places_stages
from solver.mixed.completing import joined, settled
from solver.plan import Configuration, StageGroup
from solver.problem import Problem
from solver.splits import even_split

MAX_STAGES = 4096
MAX_CLASSES = 64
MAX_TENSOR = 2**20
_AT = ("configuration",)
_STAGE = ("group", "tensor_parallel_size", "num_gpus", "num_nodes")
Reader = Callable[[Mapping[str, object]], Configuration]
Where = tuple[str | int, ...]


def names_places(raw: Mapping[str, object]) -> bool:
    """Whether a configuration says where its stages stand."""
    return bool(raw.get("stage_groups") or raw.get("replicas"))


def placed(raw: Mapping[str, object], problem: Problem, read: Reader) -> Configuration:
    """The placed Configuration of ``raw``; data parallelism, micro-batches and the split may be left out.

    ``read`` makes a Configuration of everything but ``stage_groups`` and ``replicas``.

    Raises:
        InvalidProblemError: stages cannot be placed here, or these do not hold this model and batch.
    """
    if not places_stages(problem):
        at = pointer(*_AT, "replicas" if raw.get("replicas") else "stage_groups")
        message = "stages are placed on unlike node groups under launcher none only"
        raise InvalidProblemError.of(at, message)
    parts = _classes(raw)
    if parts is None:
        config = _one(raw, problem, read, at=_AT, whole=True)
    else:
        config = joined([
            _one(part, problem, read, at=(*_AT, "replicas", number), whole=False)
            for number, part in enumerate(parts)
        ])  # fmt: skip
    _raise_any([*_contradictions(raw, config, _AT), *_misfits(config, problem)])
    return config


def _classes(raw: Mapping[str, object]) -> list[Mapping[str, object]] | None:
    """The classes of unlike replicas; None where replicas are alike."""
    given = raw.get("replicas")
    if not given:
        return None
    if not isinstance(given, list | tuple) or not all(isinstance(one, Mapping) for one in given):
        raise InvalidProblemError.of(pointer(*_AT, "replicas"), "must be a list of objects")
    if len(given) > MAX_CLASSES:
        at = pointer(*_AT, "replicas")
        raise InvalidProblemError.of(at, "holds too much", allowed=f"up to {MAX_CLASSES} entries")
    return list(given)


def _one(
    raw: Mapping[str, object], problem: Problem, read: Reader, *, at: Where, whole: bool
) -> Configuration:
    """One pipeline on its groups; one that is ``whole`` works off the global batch."""
    stages = _stages(raw.get("stage_groups"), problem, (*at, "stage_groups"))
    rest = {name: value for name, value in raw.items() if name not in ("stage_groups", "replicas")}
    try:
        given = read(rest)
    except InvalidProblemError as fault:
        raise _moved(fault, at) from None
    _raise_any(_fixed(given, at))
    split = given.stage_layers or even_split(problem.model.num_layers, len(stages))
    drawn = replace(given, stage_groups=stages, stage_layers=split)
    batch = problem.workload.global_batch_size
    if "data_parallel_size" not in rest:
        drawn = replace(drawn, data_parallel_size=_most_replicas(drawn, problem))
    if "num_microbatches" in rest:
        step = drawn.data_parallel_size * drawn.micro_batch_size
        batch = step * given.num_microbatches
    elif not whole:
        message = "is required: a class of replicas has its own share of the batch"
        raise InvalidProblemError.of(pointer(*at, "num_microbatches"), message)
    if len(split) != len(stages) or sum(split) != problem.model.num_layers or min(split) < 1:
        layers = problem.model.num_layers
        message = f"{len(split)} stages with {sum(split)} layers, not {len(stages)} with {layers}"
        raise InvalidProblemError.of(pointer(*at, "stage_layers"), message)
    config = settled(problem.cluster, drawn, batch)
    _raise_any(_contradictions(raw, config, at))
    return config


def _stages(given: object, problem: Problem, at: Where) -> tuple[StageGroup, ...]:
    """Where each stage stands."""
    if not isinstance(given, list | tuple) or not 0 < len(given) <= MAX_STAGES:
        raise InvalidProblemError.of(pointer(*at), "must be a list of objects, one for each stage")
    found, faults = list[StageGroup](), list[FieldError]()
    for number, one in enumerate(given):
        faults += _stage_faults(one, problem, (*at, number))
        if len(faults) >= MAX_ERRORS:
            break
        if not faults:
            size = one.get("tensor_parallel_size", 1)
            found.append(
                StageGroup(group=one["group"], num_gpus=0, num_nodes=0.0, tensor_parallel_size=size)
            )
    _raise_any(faults)
    return tuple(found)


def _stage_faults(one: object, problem: Problem, at: Where) -> Iterator[FieldError]:
    """An object with a known group and a size."""
    if not isinstance(one, Mapping):
        yield FieldError(pointer=pointer(*at), message="must be an object")
        return
    for name in (name for name in one if name not in _STAGE):
        yield from UnknownNameError.among(pointer(*at, str(name)), str(name), _STAGE).errors
    group, size = one.get("group"), one.get("tensor_parallel_size", 1)
    names = problem.cluster.group_names
    if not isinstance(group, str):
        yield FieldError(pointer=pointer(*at, "group"), message="must be text", allowed=", ".join(names))
    elif group not in names:
        yield from UnknownNameError.among(pointer(*at, "group"), group, names).errors
    if type(size) is not int or not 1 <= size <= MAX_TENSOR:
        where = pointer(*at, "tensor_parallel_size")
        yield FieldError(pointer=where, message="must be an integer", allowed=f"from 1 to {MAX_TENSOR}")


def _fixed(given: Configuration, at: Where) -> Iterator[FieldError]:
    """What placed stages cannot have otherwise."""
    for name, only in PLACED_ONLY.items():
        if getattr(given, name) != only:
            message = f"only {only} where stages are placed on node groups"
            yield FieldError(pointer=pointer(*at, name), message=message, nearest=str(only))


def _most_replicas(config: Configuration, problem: Problem) -> int:
    """As many as the groups have GPUs for, and the batch divides among."""
    needed = Counter[str]()
    for stage in config.stage_groups:
        needed[stage.group] += stage.tensor_parallel_size * config.context_parallel_size
    groups = dict(zip(problem.cluster.group_names, problem.cluster.distinct_groups, strict=True))
    most = min(groups[name].num_gpus // count for name, count in needed.items())
    units = max(problem.workload.global_batch_size // config.micro_batch_size, 1)
    return next(size for size in range(max(min(most, units), 1), 0, -1) if units % size == 0)


def _contradictions(raw: Mapping[str, object], config: Configuration, at: Where) -> list[FieldError]:
    """What was given and follows otherwise from the stages."""
    right, found = asdict(config), list[FieldError]()
    for name, value in raw.items():
        if name in ("stage_groups", "replicas") or name not in right:
            continue
        plain = tuple(value) if isinstance(value, list) else value
        if plain != right[name]:
            message = f"is {right[name]} here: it follows from the stages and the batch"
            found.append(FieldError(pointer=pointer(*at, name), message=message, nearest=str(right[name])))
    return found


def _misfits(config: Configuration, problem: Problem) -> Iterator[FieldError]:
    """More GPUs than there are, another number of sequences."""
    groups = dict(zip(problem.cluster.group_names, problem.cluster.distinct_groups, strict=True))
    classes: Sequence[Configuration] = config.replicas or (config,)
    used = Counter[str]()
    for stage in (stage for one in classes for stage in one.stage_groups):
        used[stage.group] += stage.num_gpus
    at = pointer(*_AT, "replicas" if config.replicas else "stage_groups")
    for name, count in used.items():
        if count > groups[name].num_gpus:
            message = f"the stages on {name} take {count} GPUs, there are {groups[name].num_gpus}"
            yield FieldError(pointer=at, message=message)
    batch = problem.workload.global_batch_size
    if config.global_batch_size != batch:
        message = f"a step works off {config.global_batch_size} sequences, but the global batch is {batch}"
        yield FieldError(pointer=pointer(*_AT, "num_microbatches"), message=message)


def _moved(fault: InvalidProblemError, at: Where) -> InvalidProblemError:
    """The faults of a part where it stands."""
    here = pointer(*at)
    return InvalidProblemError(
        replace(one, pointer=here + one.pointer.removeprefix("/configuration")) for one in fault.errors
    )


def _raise_any(faults: Sequence[FieldError] | Iterator[FieldError]) -> None:
    """Raise InvalidProblemError when there are faults."""
    found = list(faults)[:MAX_ERRORS]
    if found:
        raise InvalidProblemError(found)
