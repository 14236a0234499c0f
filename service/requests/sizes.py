"""Whether pinned sizes can belong to this model, these GPUs and this batch.

Only what is certain from the request alone is refused here, with the nearest value that would do; whether
the rest is legal and fits is the search's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import gcd, prod

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import FieldError
from meshwright.solver.configuration import Configuration, chunk_sizes, holds_layers
from meshwright.solver.problem import STANDALONE_STAGES, Problem, SearchOptions, usable_gpus
from meshwright.solver.splits import launcher_split

AXES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "data_parallel_size")
BATCH = ("data_parallel_size", "micro_batch_size", "num_microbatches")
MAX_NEAREST = 2**20  # how far a nearest legal value is searched for
MAX_TRIED = 256  # values of one size that are tried against the batch


def model_sizes(problem: Problem) -> Iterator[FieldError]:
    """Check that pinned sizes divide what they share out."""
    model = problem.model
    yield from _divides(problem, "tensor_parallel_size", model.split_heads, "num_attention_heads")
    yield from _chunks(problem)
    yield from _split(problem)
    if model.moe:
        yield from _divides(problem, "expert_parallel_size", (model.moe.num_experts,), "num_experts")
    else:
        yield from _at_most(problem, "expert_parallel_size", 1, "a model without experts can use")


def _chunks(problem: Problem) -> Iterator[FieldError]:
    """Check that pinned stages and chunks have a layer each, except where an end may be alone."""
    options, layers = problem.options, problem.model.num_layers
    asked = STANDALONE_STAGES in options.allow or 0 in options.stage_layers
    alone = sum(launcher_capabilities(problem.launcher).alone(problem.model)) if asked else 0
    also = f" and {alone} stages without layers" if alone else ""
    yield from _at_most(problem, "pipeline_parallel_size", layers + alone, f"num_layers = {layers}{also}")
    chunks = _pinned(options, "pipeline_parallel_size", "virtual_pipeline_size")
    if prod(chunks.values()) > layers + alone and len(chunks) > 1:
        most = max(1, (layers + alone) // chunks["pipeline_parallel_size"])
        yield FieldError(
            pointer=pointer("search", "pin", "virtual_pipeline_size"),
            message=f"{prod(chunks.values())} chunks for {layers} layers{also}",
            allowed=f"from 1 to {most}",
            nearest=str(most),
        )


def _split(problem: Problem) -> Iterator[FieldError]:
    """Check that a pinned split has every layer once, and at least one in each chunk but its ends."""
    split, layers = problem.options.stage_layers, problem.model.num_layers
    at = "/search/pin/stage_layers"
    alone = launcher_capabilities(problem.launcher).alone(problem.model)
    if split and (sum(split) != layers or not holds_layers(split, alone)):
        yield FieldError(
            pointer=at,
            message=f"{len(split)} chunks with {sum(split)} layers, but the model has {layers}",
            allowed=chunk_sizes(alone),
        )
    elif split:
        yield from _launchers_own(problem, at)


def _launchers_own(problem: Problem, at: str) -> Iterator[FieldError]:
    """Check that the launcher runs a pinned split, where that splits the layers itself."""
    pinned, split, layers = problem.options.pin, problem.options.stage_layers, problem.model.num_layers
    island = max(group.island_gpus for group in problem.cluster.groups)
    asked = pinned.get("tensor_parallel_size")
    tensor = range(1, island + 1) if asked is None else [int(asked)]

    def own(stages: int) -> set[tuple[int, ...] | None]:
        sizes = Configuration(pipeline_parallel_size=stages)
        return {launcher_split(problem, replace(sizes, tensor_parallel_size=tp)) for tp in tensor}

    found = own(len(split))
    if () in found or split in found:
        return
    runs = sorted(one for one in found if one)
    counts = sorted(range(1, layers + 1), key=lambda stages: abs(stages - len(split)))
    near = runs[0] if runs else next(one for stages in counts for one in own(stages) if one)
    splits = " or ".join(" ".join(map(str, one)) for one in runs)
    given = " ".join(map(str, split)) if runs else f"any split into {len(split)} stages"
    yield FieldError(
        pointer=at,
        message=f"{problem.launcher} splits the layers itself and does not make {given}",
        allowed=splits or "fewer stages, so that each has a layer and the last one the output head",
        nearest=" ".join(map(str, near)),
    )


def gpu_count(problem: Problem) -> Iterator[FieldError]:
    """Check that the least axes under pins and bounds need no more GPUs than there are."""
    options, gpus = problem.options, usable_gpus(problem)
    least = {axis: int(options.pin.get(axis, options.bounds.get(axis, (1, 1))[0])) for axis in AXES}
    least = {axis: value for axis, value in least.items() if value > 1}
    needed = prod(least.values())
    if needed <= gpus:
        return
    name = max(least, key=lambda axis: least[axis])
    most = gpus // (needed // least[name])
    words = " × ".join(
        f"{axis} = {value} (pinned)" if axis in options.pin else f"{axis} >= {value}"
        for axis, value in least.items()
    )
    yield FieldError(
        pointer=pointer("search", "pin" if name in options.pin else "bounds", name),
        message=f"{words} needs {needed} of {gpus} GPUs",
        allowed=f"from 1 to {most}" if most else None,
        nearest=str(most) if most else None,
    )


def batch_size(problem: Problem) -> Iterator[FieldError]:
    """Check that the global batch is a multiple of what the pins make of it."""
    if problem.options.batch_sizes:
        return
    batch, pins = problem.workload.global_batch_size, _pinned(problem.options, *BATCH)
    at = "/workload/global_batch_size"
    step = prod(pins.values())
    if batch % step:
        words = " × ".join(f"{name} = {value}" for name, value in pins.items())
        yield FieldError(
            pointer=at,
            message=f"{batch} is not a multiple of {words} (pinned)",
            nearest=_multiples_round(batch, [step]),
        )
        return
    if not any(batch % step == 0 for step in _batch_steps(problem)):
        steps = sorted(set(_batch_steps(problem)))
        yield FieldError(
            pointer=at,
            message=f"{batch} is divided by no data_parallel_size × micro_batch_size that the limits leave",
            allowed=f"multiples of {steps[0]}" if len(steps) == 1 else None,
            nearest=_multiples_round(batch, steps) if steps else None,
        )


def _batch_steps(problem: Problem) -> Iterator[int]:
    """Yield every data_parallel_size × micro_batch_size that the limits leave, small ones first.

    Any number of ranks counts: where all GPUs cannot be used, the search uses fewer.
    """
    ranks = usable_gpus(problem) // prod(_pinned(problem.options, *AXES[:3]).values())
    for size in _left(problem, "data_parallel_size", ranks):
        for batch in _left(problem, "micro_batch_size", problem.workload.global_batch_size):
            yield size * batch


def _left(problem: Problem, name: str, most: int) -> Iterator[int]:
    options = problem.options
    least, high = options.bounds.get(name, (1, most))
    low = int(options.pin.get(name, max(least, 1)))
    values = range(low, max(low, min(high, most, low + MAX_TRIED)) + 1)
    return (
        value for value in values
        if options.pin.get(name, value) == value
        and (name not in options.bounds or least <= value <= high)
        and value not in options.forbid.get(name, ())
    )  # fmt: skip


def _pinned(options: SearchOptions, *names: str) -> dict[str, int]:
    return {name: int(options.pin[name]) for name in names if name in options.pin}


def _divides(problem: Problem, name: str, wholes: Sequence[int], of: str) -> Iterator[FieldError]:
    value, whole = problem.options.pin.get(name), gcd(*wholes)
    if isinstance(value, int) and whole % value:
        yield FieldError(
            pointer=pointer("search", "pin", name),
            message=f"{value} does not divide {of} = {' and '.join(map(str, wholes))}",
            allowed=f"divisors of {whole}",
            nearest=_nearest(value, lambda size: whole % size == 0),
        )


def _at_most(problem: Problem, name: str, most: int, of: str) -> Iterator[FieldError]:
    value = problem.options.pin.get(name)
    if isinstance(value, int) and value > most:
        yield FieldError(
            pointer=pointer("search", "pin", name),
            message=f"{value} is more than {of}",
            allowed=f"from 1 to {most}" if most > 1 else "1",
            nearest=str(most),
        )


def _nearest(value: int, legal: Callable[[int], bool]) -> str:
    top = min(2 * value, value + MAX_NEAREST)
    below = next((size for size in range(min(value, MAX_NEAREST), 0, -1) if legal(size)), None)
    above = next((size for size in range(value + 1, top + 1) if legal(size)), None)
    return ", ".join(str(size) for size in (below, above) if size is not None)


def _multiples_round(batch: int, steps: list[int]) -> str:
    """Return the nearest multiples of any of ``steps`` below and above ``batch``, in words."""
    below = max(batch // step * step for step in steps)
    above = min(-(-batch // step) * step for step in steps)
    return ", ".join(str(size) for size in chain([below] if below else [], [above]))
