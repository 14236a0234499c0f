"""Single changes of a configuration, whatever they break: what else could have been done.

A move changes one size by a factor of two (what it takes or frees is data parallelism, or pipeline stages
where there is no more of it), the number of chunks, recomputation, or the ZeRO stage. What follows from
the sizes follows; a split that no longer fits becomes an even one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from profiles.capabilities import launcher_capabilities
from solver.cost.schedule import plain_schedule, takes_chunks
from solver.plan import Configuration
from solver.problem import Problem
from solver.rank_orders import plain_order
from solver.splits import even_split, launcher_split

_SHORT = {
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "context_parallel_size": "cp",
    "expert_parallel_size": "ep", "virtual_pipeline_size": "vpp", "zero_stage": "zero",
    "micro_batch_size": "mbs", "data_parallel_size": "dp",
}  # fmt: skip
_MESH = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change and what comes out of it."""

    words: str  # ``tp 4``, ``recompute off``
    configuration: Configuration


def moves_of(problem: Problem, configuration: Configuration) -> list[Move]:
    """Every single change that leaves at least one layer in every chunk, each result once."""
    seen, found = {configuration}, []
    for words, changed in _changes(problem, configuration):
        settled = settle(problem, changed)
        if settled is not None and settled not in seen:
            seen.add(settled)
            found.append(Move(words=words, configuration=settled))
    return found


def settle(problem: Problem, changed: Configuration) -> Configuration | None:
    """The configuration with everything that follows from its sizes; None where chunks lack layers."""
    c, layers = changed, problem.model.num_layers
    chunks = c.pipeline_parallel_size * c.virtual_pipeline_size
    if chunks > layers or min(c.data_parallel_size, c.micro_batch_size, c.pipeline_parallel_size) < 1:
        return None
    ranks = c.data_parallel_size * c.context_parallel_size
    zero = c.zero_stage if ranks > 1 else 0
    own = launcher_split(problem, c)
    if own is None:
        return None
    split = own or (c.stage_layers if len(c.stage_layers) == chunks else even_split(layers, chunks))
    full = c.recompute_granularity == "full"
    stages = (c.pipeline_parallel_size, c.virtual_pipeline_size)
    kept = takes_chunks(c.pipeline_schedule, *stages)
    batch = problem.workload.global_batch_size
    settled = replace(
        c,
        sequence_parallel=c.sequence_parallel and c.tensor_parallel_size > 1,
        context_parallel_mode=c.context_parallel_mode if c.context_parallel_size > 1 else "ring",
        zero_stage=zero,
        zero_shard_size=ranks if zero else 1,
        num_microbatches=max(batch // (c.data_parallel_size * c.micro_batch_size), 1),
        pipeline_schedule=c.pipeline_schedule if kept else plain_schedule(*stages),
        stage_recompute_layers=(),
        recompute_layers=_replayed(c.recompute_layers, split) if full else 0,
        stage_layers=split,
    )
    return replace(settled, rank_order=plain_order(settled))


def _replayed(layers: int, split: tuple[int, ...]) -> int:
    """A number of recomputed layers that every chunk has, or all layers of the model."""
    return sum(split) if layers >= min(split) else layers


def _changes(problem: Problem, c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Raw changes with their words."""
    for name in _MESH:
        size = getattr(c, name)
        yield from _traded(c, name, size * 2)
        if size % 2 == 0:
            yield from _traded(c, name, size // 2)
    yield from _stepped(c)
    if problem.model.moe is not None:
        yield from _expert_changes(c)
    for stage in launcher_capabilities(problem.launcher).zero_stages:
        yield _set(c, "zero_stage", stage)
    yield from _recomputed(c)
    yield from _with_recomputation(problem, c)


def _stepped(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Other numbers of chunks, half and double the micro-batch."""
    for vpp in sorted({1, c.virtual_pipeline_size * 2, *_near(c.virtual_pipeline_size)}):
        if c.pipeline_parallel_size > 1:
            yield _set(c, "virtual_pipeline_size", vpp)
    yield _set(c, "micro_batch_size", c.micro_batch_size * 2)
    if c.micro_batch_size % 2 == 0:
        yield _set(c, "micro_batch_size", c.micro_batch_size // 2)


def _with_recomputation(problem: Problem, c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Changes that often need the memory that recomputing every layer frees."""
    if c.recompute_granularity != "full":
        for words, changed in _larger(c):
            every = replace(
                changed, recompute_granularity="full", recompute_layers=problem.model.num_layers
            )
            yield f"{words}, recompute every layer", every


def _larger(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Less tensor parallelism, larger micro-batches."""
    if c.tensor_parallel_size % 2 == 0:
        yield from _traded(c, "tensor_parallel_size", c.tensor_parallel_size // 2)
    yield _set(c, "micro_batch_size", c.micro_batch_size * 2)


def _near(size: int) -> list[int]:
    """One less and one more."""
    return [value for value in (size - 1, size + 1) if value > 0]


def _set(c: Configuration, name: str, value: int) -> tuple[str, Configuration]:
    """One size changed alone."""
    words = f"{_SHORT[name]} {value}" if value != getattr(c, name) else ""
    changed: dict[str, int] = {name: value}
    return words, replace(c, **changed)  # type: ignore[arg-type]


def _expert_changes(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Half and double the expert parallelism."""
    size = c.expert_parallel_size
    yield _set(c, "expert_parallel_size", size * 2)
    if size % 2 == 0:
        yield _set(c, "expert_parallel_size", size // 2)


def _traded(c: Configuration, name: str, size: int) -> Iterator[tuple[str, Configuration]]:
    """One axis of the mesh against data parallelism, and against the pipeline."""
    old = getattr(c, name)
    for other in ("data_parallel_size", "pipeline_parallel_size"):
        product = getattr(c, other) * old
        if other != name and product % size == 0:
            changed: dict[str, int | bool] = {name: size, other: product // size}
            if name == "tensor_parallel_size" and old == 1:
                changed["sequence_parallel"] = True
            words = f"{_SHORT[name]} {size}, {_SHORT[other]} {product // size}"
            yield words, replace(c, **changed)  # type: ignore[arg-type]


def _recomputed(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """None, the scores, or one layer of each chunk more or less."""
    most = max(c.stage_layers)
    now = min(c.recompute_layers, most) if c.recompute_granularity == "full" else 0
    yield "recompute off", replace(c, recompute_granularity="none", recompute_layers=0)
    yield "recompute of scores only", replace(c, recompute_granularity="selective", recompute_layers=0)
    for layers in sorted({*_near(now), most}):
        if layers <= most:
            words = "recompute every layer" if layers == most else f"recompute {layers} of each chunk"
            yield words, replace(c, recompute_granularity="full", recompute_layers=layers)
