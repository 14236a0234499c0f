"""Single changes of a placed configuration, whatever they break: sizes, stages, layers, recomputation.

Of unlike replicas the slowest class is changed; its share of the batch stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from solver.mixed.completing import joined, settled
from solver.plan import Configuration, StageGroup
from solver.problem import Problem
from solver.why.moves import Move

_ZERO_STAGES = (0, 1, 2, 3)
_TRADED = {"context_parallel_size": "cp", "tensor_parallel_size": "tp"}


def placed_moves_of(problem: Problem, config: Configuration, changed: int) -> list[Move]:
    """Every single change of class ``changed`` (0 where replicas are alike), each result once."""
    own = config.replicas[changed] if config.replicas else config
    seen, found = {config}, list[Move]()
    for words, raw in _changes(own):
        one = settled(problem.cluster, raw, own.global_batch_size)
        if config.replicas:
            one = joined((*config.replicas[:changed], one, *config.replicas[changed + 1 :]))
        if one not in seen:
            seen.add(one)
            found.append(Move(words=words, configuration=one))
    return found


def _changes(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Raw changes with their words."""
    yield from _sizes(c)
    yield from _tensor_of_groups(c)
    yield from _stages(c)
    yield from _layers(c)
    for stage in _ZERO_STAGES:
        yield f"zero {stage}", replace(c, zero_stage=stage)
    for kind, words in (("none", "off"), ("selective", "of scores"), ("full", "every layer")):
        yield f"recompute {words}", replace(c, recompute_granularity=kind)


def _sizes(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Micro-batches twice and half as large; data parallelism for tensor and context parallelism."""
    for size in (c.micro_batch_size * 2, c.micro_batch_size // 2):
        if size:
            yield f"mbs {size}", replace(c, micro_batch_size=size)
    larger = replace(c, micro_batch_size=c.micro_batch_size * 2, recompute_granularity="full")
    yield f"mbs {larger.micro_batch_size}, recompute every layer", larger
    for more, less in ((2, 1), (1, 2)):  # of data parallelism, and what is traded for it
        if c.data_parallel_size * more % less == 0:
            dp = c.data_parallel_size * more // less
            yield from _traded(c, dp, more, less)


def _traded(c: Configuration, dp: int, more: int, less: int) -> Iterator[tuple[str, Configuration]]:
    """So much data parallelism, taken from or given to another axis of every stage."""
    if c.context_parallel_size * less % more == 0:
        cp = c.context_parallel_size * less // more
        yield f"cp {cp}, dp {dp}", replace(c, data_parallel_size=dp, context_parallel_size=cp)
    sizes = [one.tensor_parallel_size * less for one in c.stage_groups]
    if all(size % more == 0 for size in sizes):
        words = "tp twice" if less > more else "tp half"
        stages = tuple(
            replace(one, tensor_parallel_size=size // more)
            for one, size in zip(c.stage_groups, sizes, strict=True)
        )
        yield f"{words}, dp {dp}", replace(c, data_parallel_size=dp, stage_groups=stages)


def _tensor_of_groups(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Twice and half the tensor parallelism of one group's stages, on as many GPUs more or fewer."""
    for group in dict.fromkeys(one.group for one in c.stage_groups):
        sizes = {one.tensor_parallel_size for one in c.stage_groups if one.group == group}
        for factor in (2.0, 0.5):
            if min(sizes) * factor >= 1:
                stages = tuple(
                    _scaled(one, factor) if one.group == group else one for one in c.stage_groups
                )
                words = f"tp {int(max(sizes) * factor)} on {group}"
                yield words, replace(c, stage_groups=stages)


def _scaled(one: StageGroup, factor: float) -> StageGroup:
    """A stage with another tensor-parallel size."""
    return replace(one, tensor_parallel_size=max(int(one.tensor_parallel_size * factor), 1))


def _stages(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """One stage of a group more, from the largest of its run, or one less, joined with a neighbour."""
    for group in dict.fromkeys(one.group for one in c.stage_groups):
        own = [at for at, one in enumerate(c.stage_groups) if one.group == group]
        at = max(own, key=lambda stage: c.stage_layers[stage])
        size = c.stage_layers[at]
        if size > 1:
            split = (*c.stage_layers[:at], size - size // 2, size // 2, *c.stage_layers[at + 1 :])
            stands = (*c.stage_groups[: at + 1], *c.stage_groups[at:])
            yield f"a stage more on {group}", replace(c, stage_layers=split, stage_groups=stands)
        if len(c.stage_groups) > 1:
            yield f"a stage less on {group}", _without(c, min(own, key=lambda one: c.stage_layers[one]))


def _without(c: Configuration, at: int) -> Configuration:
    """Without one stage; its neighbour behind, or the last one's before, has its layers."""
    into = at + 1 if at + 1 < len(c.stage_groups) else at - 1
    sizes = list(c.stage_layers)
    sizes[into] += sizes[at]
    split = tuple(size for stage, size in enumerate(sizes) if stage != at)
    stands = tuple(one for stage, one in enumerate(c.stage_groups) if stage != at)
    return replace(c, stage_layers=split, stage_groups=stands)


def _layers(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """One layer from a stage to its neighbour, where groups meet."""
    for at, (one, other) in enumerate(pairwise(c.stage_groups)):
        if one.group == other.group:
            continue
        for source, target in ((at, at + 1), (at + 1, at)):
            sizes = list(c.stage_layers)
            if sizes[source] > 1:
                sizes[source] -= 1
                sizes[target] += 1
                yield f"a layer from stage {source} to {target}", replace(c, stage_layers=tuple(sizes))
