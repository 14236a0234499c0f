"""Reads a user's configuration, and completes it: missing parts follow from the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, product
from typing import Any

from meshwright.launchers.rules import near_divisors
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.documents import MAX_ERRORS, pointer
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.frameworks import FrameworkFacts
from meshwright.service.requests.fields import FIELDS
from meshwright.service.requests.parts import as_written, unplaced, written_out
from meshwright.service.requests.startable import start_fault, starts
from meshwright.solver.configuration import (
    INTEGER_VARIABLES,
    MAX_SIZE,
    PLACED_ONLY,
    VARIABLES,
    WORDS,
    Configuration,
    StageGroup,
    chunk_sizes,
    configuration_from_json,
    holds_layers,
    joined,
    settled_on_groups,
)
from meshwright.solver.predict import where_pages_lie
from meshwright.solver.problem import Problem, lacking_gpus, per_node_of, usable_gpus
from meshwright.solver.space import rules
from meshwright.solver.splits import divisors, even_split, launcher_split, usual_split

# --------------------------------------------------------------------------------------------------
# Reads a configuration with stages on named node groups, and completes it.


MAX_STAGES = 4096
MAX_CLASSES = 64
MAX_TENSOR = 2**20
_AT = ("configuration",)
_STAGE = ("group", "tensor_parallel_size", "num_gpus", "num_nodes")
Where = tuple[str | int, ...]


def _placed(raw: Mapping[str, object], problem: Problem) -> Configuration:
    """Return the placed Configuration of ``raw``; data parallelism, micro-batches, split are optional."""
    if fault := unplaced(problem, pointer(*_AT, "replicas" if raw.get("replicas") else "stage_groups")):
        raise InvalidProblemError([fault])
    parts = _classes(raw)
    if parts is not None and not launcher_capabilities(problem.launcher).unlike_replicas:
        raise InvalidProblemError.of(
            pointer(*_AT, "replicas"), f"{problem.launcher} has no replicas of different sizes"
        )
    if parts is None:
        config = _one(raw, problem, at=_AT, whole=True)
    else:
        config = joined([
            _one(part, problem, at=(*_AT, "replicas", number), whole=False)
            for number, part in enumerate(parts)
        ])  # fmt: skip
    _raise_any([*_contradictions(raw, config, _AT), *_placed_misfits(config, problem)])
    return config


def _classes(raw: Mapping[str, object]) -> list[Mapping[str, object]] | None:
    """Return the classes of unlike replicas; None where replicas are alike."""
    given = raw.get("replicas")
    if not given:
        return None
    at = pointer(*_AT, "replicas")
    if not isinstance(given, list | tuple) or not all(isinstance(one, Mapping) for one in given):
        raise InvalidProblemError.of(at, "must be a list of objects")
    if len(given) > MAX_CLASSES:
        raise InvalidProblemError.of(at, "holds too much", allowed=f"up to {MAX_CLASSES} entries")
    return list(given)


def _one(raw: Mapping[str, object], problem: Problem, *, at: Where, whole: bool) -> Configuration:
    """Return one pipeline on its groups; one that is ``whole`` works off the global batch."""
    stages = _stages(raw.get("stage_groups"), problem, (*at, "stage_groups"))
    rest = {name: value for name, value in raw.items() if name not in ("stage_groups", "replicas")}
    try:
        given = _read(rest)
    except InvalidProblemError as fault:
        raise _moved(fault, at) from None
    _raise_any(
        FieldError(
            pointer=pointer(*at, name),
            message=f"only {only} where stages are placed on node groups",
            nearest=str(only),
        )
        for name, only in PLACED_ONLY.items()
        if getattr(given, name) != only
    )
    split = given.stage_layers or even_split(problem.model.num_layers, len(stages))
    drawn = replace(given, stage_groups=stages, stage_layers=split)
    batch = problem.workload.global_batch_size
    if "data_parallel_size" not in rest:
        drawn = replace(drawn, data_parallel_size=_most_replicas(drawn, problem))
    if "num_microbatches" in rest:
        step = drawn.data_parallel_size * drawn.micro_batch_size
        batch = step * given.num_microbatches
    elif not whole:
        raise InvalidProblemError.of(
            pointer(*at, "num_microbatches"),
            "is required: a class of replicas has its own share of the batch",
        )
    if len(split) != len(stages) or sum(split) != problem.model.num_layers or min(split) < 1:
        layers = problem.model.num_layers
        raise InvalidProblemError.of(
            pointer(*at, "stage_layers"),
            f"{len(split)} stages with {sum(split)} layers, not {len(stages)} with {layers}",
        )
    config = settled_on_groups(problem.cluster, drawn, batch)
    if given.zero_shard_size > 1 and config.zero_shard_size % given.zero_shard_size == 0:  # smaller sets
        config = replace(config, zero_shard_size=given.zero_shard_size)
    _raise_any(_contradictions(raw, config, at))
    return config


def _stages(given: object, problem: Problem, at: Where) -> tuple[StageGroup, ...]:
    if not isinstance(given, list | tuple) or not 0 < len(given) <= MAX_STAGES:
        raise InvalidProblemError.of(pointer(*at), "must be a list of objects, one for each stage")
    found, faults = list[StageGroup](), list[FieldError]()
    for number, one in enumerate(given):
        faults += _stage_faults(one, problem, (*at, number))
        if len(faults) >= MAX_ERRORS:
            break
        if not faults:
            found.append(
                StageGroup(
                    group=one["group"],
                    num_gpus=0,
                    num_nodes=0.0,
                    tensor_parallel_size=one.get("tensor_parallel_size", 1),
                )
            )
    _raise_any(faults)
    return tuple(found)


def _stage_faults(one: object, problem: Problem, at: Where) -> Iterator[FieldError]:
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
        yield FieldError(
            pointer=pointer(*at, "tensor_parallel_size"),
            message="must be an integer",
            allowed=f"from 1 to {MAX_TENSOR}",
        )


def _most_replicas(config: Configuration, problem: Problem) -> int:
    needed = Counter[str]()
    for stage in config.stage_groups:
        needed[stage.group] += stage.tensor_parallel_size * config.context_parallel_size
    groups = problem.cluster.group_named
    most = min(groups[name].num_gpus // count for name, count in needed.items())
    units = max(problem.workload.global_batch_size // config.micro_batch_size, 1)
    return next(size for size in range(max(min(most, units), 1), 0, -1) if units % size == 0)


def _contradictions(raw: Mapping[str, object], config: Configuration, at: Where) -> list[FieldError]:
    right, found = asdict(config), list[FieldError]()
    for name, value in raw.items():
        if name in ("stage_groups", "replicas") or name not in right:
            continue
        plain = tuple(value) if isinstance(value, list) else value
        if plain != right[name]:
            found.append(
                FieldError(
                    pointer=pointer(*at, name),
                    message=f"is {right[name]} here: it follows from the stages and the batch",
                    nearest=str(right[name]),
                )
            )
    return found


def _placed_misfits(config: Configuration, problem: Problem) -> Iterator[FieldError]:
    """Yield faults: more GPUs than there are, or another number of sequences."""
    at = pointer(*_AT, "replicas" if config.replicas else "stage_groups")
    for name, (used, have) in lacking_gpus(problem, config).items():
        yield FieldError(pointer=at, message=f"the stages on {name} take {used} GPUs, there are {have}")
    batch = problem.workload.global_batch_size
    if config.global_batch_size != batch:
        message = f"a step works off {config.global_batch_size} sequences, but the global batch is {batch}"
        yield FieldError(pointer=pointer(*_AT, "num_microbatches"), message=message)


def _moved(fault: InvalidProblemError, at: Where) -> InvalidProblemError:
    """Return the faults of a part, with their pointers moved to its place."""
    here = pointer(*at)
    return InvalidProblemError(
        replace(one, pointer=here + one.pointer.removeprefix("/configuration")) for one in fault.errors
    )


_TEMPLATE: dict[str, Any] = asdict(Configuration())
_KINDS = {bool: "true or false", int: "an integer", str: "text", tuple: "a list of integers"}


def completed(
    raw: Mapping[str, object], problem: Problem, at: tuple[str, ...] = ("configuration",)
) -> Configuration:
    """Return the Configuration of ``raw``: remaining GPUs are data parallel, the split is the usual one.

    Pages of an optimizer lie where the driver keeps them, unless their place is stated.

    ``at`` is its place in the request, for faults.

    Raises:
        InvalidProblemError: unknown names, wrong types, or sizes that cannot hold this model and batch.
    """
    short, raw = raw, written_out(raw, at)
    try:
        if raw.get("stage_groups") or raw.get("replicas"):
            configuration = _placed(raw, problem)
        else:
            configuration = _mesh(raw, problem)
            first = start_fault(raw, configuration, problem, partial(_fits_together, problem))
            _raise_any([first] if first else [])
            _raise_any(chain(_misfits(configuration, problem, raw), _stage_counts(configuration)))
    except InvalidProblemError as fault:
        raise as_written(_moved(fault, at), short, at) from None
    return configuration if raw.get("offload") else where_pages_lie(problem, configuration)


def _mesh(raw: Mapping[str, object], problem: Problem) -> Configuration:
    """Return the Configuration of ``raw`` on all GPUs, with what is left out, before it is judged."""
    return _as_written(configuration_of({**_derived(raw, _read(raw), problem), **raw}))


def _fits_together(problem: Problem, raw: Mapping[str, object], whole: bool) -> bool:
    try:
        configuration = _mesh(raw, problem)
    except InvalidProblemError:
        return False
    if not starts(raw, configuration, problem):
        return False
    return not (whole and any(chain(_misfits(configuration, problem, raw), _stage_counts(configuration))))


def assumed_values(raw: Mapping[str, object], own: Configuration) -> dict[str, object]:
    """Return what ``completed`` assumed: every value that ``raw`` does not state, by its name."""
    stated = {*written_out(raw, ("configuration",)), "stage_groups", "replicas", "stage_recompute_layers"}
    return {name: value for name, value in asdict(own).items() if name not in stated}


def broken_rules(problem: Problem, configuration: Configuration) -> list[str]:
    """Return the search-space rules that a configuration breaks, by name; it has a price all the same."""
    broken = rules.broken_rules(problem, configuration)
    own = launcher_split(problem, configuration)
    if own and own != configuration.stage_layers:
        broken.append(f"{problem.launcher} splits the layers itself, as {' '.join(map(str, own))}")
    return broken


def _read(raw: Mapping[str, object]) -> Configuration:
    given = configuration_of(raw)
    _raise_any(_out_of_range(given))
    return given


def configuration_of(raw: Mapping[str, object]) -> Configuration:
    """Return the Configuration of ``raw``; what is left out is off.

    Raises:
        InvalidProblemError: with one FieldError per unknown name or wrong type.
    """
    faults: list[FieldError] = []
    for name, value in raw.items():
        where = pointer("configuration", name)
        if name not in _TEMPLATE:
            faults.extend(_unknown(where, name))
        elif not _fits(value, type(_TEMPLATE[name])):
            kind = _KINDS[type(_TEMPLATE[name])]
            bounded = isinstance(_TEMPLATE[name], int | tuple) and not isinstance(_TEMPLATE[name], bool)
            least = VARIABLES[name].least if name in INTEGER_VARIABLES else 0
            faults.append(
                FieldError(
                    pointer=where,
                    message=f"must be {kind}",
                    allowed=f"from {least} to {MAX_SIZE}" if bounded else None,
                )
            )
        if len(faults) == MAX_ERRORS:
            break
    _raise_any(faults)
    return configuration_from_json({**_TEMPLATE, **raw})


def _unknown(where: str, name: str) -> tuple[FieldError, ...]:
    if name in FrameworkFacts.__dataclass_fields__ and name != "name":
        message = f"{name} is an option of the framework, which a problem file states"
        return (FieldError(pointer=where, message=message, nearest=f"workload.framework_options.{name}"),)
    field = next((one for one in FIELDS if one.name == name and one.path.startswith("workload.")), None)
    if field is not None:
        option = f"--{(field.option.name or field.name).replace('_', '-')}" if field.option else field.path
        message = f"{name} is a part of the workload, not of the configuration"
        return (FieldError(pointer=where, message=message, nearest=f"{option}, or {field.path}"),)
    return UnknownNameError.among(where, name, _TEMPLATE).errors


def _out_of_range(given: Configuration) -> Iterator[FieldError]:
    for name in INTEGER_VARIABLES:
        least, most, where = VARIABLES[name].least, VARIABLES[name].most, pointer("configuration", name)
        if getattr(given, name) < least:
            yield FieldError(pointer=where, message=f"must be {least} or more", nearest=str(least))
        elif getattr(given, name) > most:
            yield FieldError(pointer=where, message="is too large", allowed=f"{least} to {most}")
    for name, words in WORDS.items():
        if getattr(given, name) not in words:
            yield from UnknownNameError.among(
                pointer("configuration", name), getattr(given, name), words
            ).errors


def _derived(raw: Mapping[str, object], given: Configuration, problem: Problem) -> dict[str, object]:
    tp, pp, vpp = given.tensor_parallel_size, given.pipeline_parallel_size, given.virtual_pipeline_size
    cp = given.context_parallel_size
    dp = given.data_parallel_size
    if "data_parallel_size" not in raw:
        dp = max(usable_gpus(problem) // (tp * pp * cp), 1)
    split = given.stage_layers or usual_split(problem, given)
    zero = given.zero_stage
    if "zero_stage" not in raw:
        zero = usual_zero_stage(problem, pp, dp * cp // given.weight_shard_size)
    return {
        "sequence_parallel": tp > 1,
        "data_parallel_size": dp,
        "zero_stage": zero,
        "num_microbatches": max(1, problem.workload.global_batch_size // (dp * given.micro_batch_size)),
        "pipeline_schedule": "none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved_1f1b",
        "zero_shard_size": max(dp * cp // given.weight_shard_size, 1) if zero else 1,
        # of each chunk: all of the model's, or the most that a stage has
        "recompute_layers": max(given.stage_recompute_layers, default=sum(split))
        if given.recompute_granularity == "full"
        else 0,
        "stage_layers": list(split),
    }


def usual_zero_stage(problem: Problem, stages: int, ranks: int) -> int:
    """Return the ZeRO stage of the launcher's usual launch, on so many stages and ranks that replicate."""
    return launcher_capabilities(problem.launcher).usual_zero_stages[stages > 1] if ranks > 1 else 0


def assumption_notes(problem: Problem, assumed: Mapping[str, object]) -> list[str]:
    """Return a note on the assumed ZeRO stage: what the launcher's usual launch runs; the rest is named."""
    able, stage = launcher_capabilities(problem.launcher), assumed.get("zero_stage")
    if stage is None or not able.usual_zero_why or not isinstance(stage, int):
        return []
    return [f"zero_stage {stage} is assumed for {able.launcher}: {able.usual_zero_why}"]


def _as_written(configuration: Configuration) -> Configuration:
    """Return the same with all layers of the model recomputed where a number covers every chunk."""
    split, own = configuration.stage_layers, configuration.stage_recompute_layers
    full = configuration.recompute_granularity == "full" and not own
    every = full and configuration.recompute_layers >= max(split, default=0)
    return replace(configuration, recompute_layers=sum(split)) if every else configuration


def _stage_counts(configuration: Configuration) -> Iterator[FieldError]:
    """Check recomputed layers by stage: as many chunks, of layers that they have, not all 0."""
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


def _misfits(
    configuration: Configuration, problem: Problem, stated: Mapping[str, object]
) -> Iterator[FieldError]:
    """Yield faults that prevent a price: another number of layers, chunks, GPUs or sequences."""
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
        yield _unshared(configuration, problem, stated)
    alone = launcher_capabilities(problem.launcher).alone(problem.model)
    if len(split) != chunks or sum(split) != layers or not holds_layers(split, alone):
        yield FieldError(
            pointer=pointer("configuration", "stage_layers"),
            message=f"{len(split)} chunks with {sum(split)} layers, "
            f"but {chunks} chunks share {layers} layers",
            allowed=chunk_sizes(alone),
        )


def _unshared(configuration: Configuration, problem: Problem, stated: Mapping[str, object]) -> FieldError:
    """Return the first size that keeps the replicas' micro-batches from adding up to the global batch."""
    batch = problem.workload.global_batch_size
    dp, size, counted = (
        configuration.data_parallel_size,
        configuration.micro_batch_size,
        configuration.global_batch_size,
    )
    if batch % dp:
        message = _unlike_shares(configuration, batch, stated)
        if filling := _filling(problem, stated):
            name, filled = filling
            return FieldError(
                pointer=pointer("configuration", name),
                message=message,
                allowed=f"a size with which {usable_gpus(problem)} GPUs share {batch} sequences",
                nearest=str(filled),
            )
        return FieldError(
            pointer=pointer("configuration", "data_parallel_size"),
            message=message,
            allowed=f"a divisor of {batch}",
            nearest=str(next(size for size in range(dp, 0, -1) if batch % size == 0)),
        )
    share = batch // dp
    if share % size:
        return FieldError(
            pointer=pointer("configuration", "micro_batch_size"),
            message=f"{size} does not divide the {share} sequences of each of {dp} replicas",
            allowed=f"a divisor of {share}",
            nearest=near_divisors(size, share),
        )
    return FieldError(
        pointer=pointer("configuration", "num_microbatches"),
        message=f"dp × micro-batch × num_microbatches = {counted}, but the global batch is {batch}",
        nearest=str(share // size),
    )


def _unlike_shares(configuration: Configuration, batch: int, stated: Mapping[str, object]) -> str:
    """Return why the replicas cannot share a batch, and where their number comes from if nobody set it."""
    dp = configuration.data_parallel_size
    if "data_parallel_size" in stated:
        return f"{dp} replicas share the sequences equally, but the global batch is {batch}"
    short = f"{batch} sequences do not divide by {dp}"
    if not _LAYOUT.intersection(stated):
        return f"you set no layout, so each of the {dp} GPUs would be a replica, and {short}"
    gpus = configuration.num_gpus
    return f"you set no number of replicas, so {gpus} GPUs would be {dp} of them, and {short}"


def _filling(problem: Problem, stated: Mapping[str, object]) -> tuple[str, int] | None:
    """Return the smallest tensor or pipeline size with which all GPUs share the batch.

    None if the request states a layout, or no size within a node does.
    """
    if not _LAYOUT.isdisjoint(stated) or "data_parallel_size" in stated:
        return None
    few = [size for size in divisors(usable_gpus(problem)) if size <= per_node_of(problem)]
    tried = product(few, ("tensor_parallel_size", "pipeline_parallel_size"))
    return next(
        ((name, size) for size, name in tried if _fits_together(problem, {**stated, name: size}, True)),
        None,
    )


_LAYOUT = {"tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"}


def _raise_any(faults: Iterable[FieldError]) -> None:
    found = list(faults)[:MAX_ERRORS]
    if found:
        raise InvalidProblemError(found)


def _fits(value: object, kind: type) -> bool:
    """Return whether a JSON value is of ``kind``; a bool is not an integer, and integers are bounded."""
    if kind is tuple:
        return isinstance(value, list) and all(_fits(item, int) for item in value)
    if kind is int:
        return type(value) is int and 0 <= value <= MAX_SIZE
    return type(value) is kind
