"""Moves of several plans, priced together: how fast, whether they fit, which rules they break.

All times are closed-form, so that hundreds of moves cost milliseconds; a move is held against the closed
form of the plan it starts from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import (
    SHORT_NAMES,
    Configuration,
    settled_mesh,
    settled_on_groups,
)
from meshwright.solver.cost.evaluation import Evaluation, evaluate
from meshwright.solver.cost.pipelines import PricedPipelines
from meshwright.solver.explain.waterfall import waterfalls
from meshwright.solver.problem import WEIGHT_SHARDS, Problem, lacking_gpus
from meshwright.solver.schedules.schedule import plain_schedule, takes_chunks
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import BATCH_RULE, rules_of, violation_masks
from meshwright.solver.splits import even_split, launcher_split

# --------------------------------------------------------------------------------------------------
# Single changes of a configuration, whatever they break: what else could have been done.
#
# A move changes one size by a factor of two (what it takes or frees is data parallelism, or pipeline
# stages where there is no more of it), the number of chunks, recomputation, or the ZeRO stage. What
# follows from the sizes follows; a split that no longer fits becomes an even one.


_MESH = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def moves_of(problem: Problem, configuration: Configuration, changed: int = 0) -> dict[Configuration, str]:
    """Return every single change that leaves a layer in every chunk: its result, and it in words.

    Of unlike replicas class ``changed`` is changed; its share of the batch stays.
    """
    own = configuration.classes[changed]
    share = own.global_batch_size if configuration.replicas else None
    found = dict[Configuration, str]()
    for words, raw in _changes(problem, own):
        settled = settle(problem, raw, share)
        if settled is None:
            continue
        moved = settled if own is configuration else configuration.with_class(changed, settled)
        if moved != configuration:
            found.setdefault(moved, words)
    return found


def settle(problem: Problem, changed: Configuration, batch: int | None = None) -> Configuration | None:
    """Return one pipeline with everything that follows from its sizes; None if it cannot be priced.

    That is where chunks lack layers, or experts ranks. ``batch``: its share, if not the global one.
    """
    c, layers = changed, problem.model.num_layers
    batch = problem.workload.global_batch_size if batch is None else batch
    if c.stage_groups:
        return settled_on_groups(problem.cluster, c, batch)
    chunks = c.pipeline_parallel_size * c.virtual_pipeline_size
    if chunks > layers or min(c.data_parallel_size, c.micro_batch_size, c.pipeline_parallel_size) < 1:
        return None
    own = launcher_split(problem, c)
    if own is None:
        return None
    split = own or (c.stage_layers if len(c.stage_layers) == chunks else even_split(layers, chunks))
    stages = (c.pipeline_parallel_size, c.virtual_pipeline_size)
    kept = takes_chunks(c.pipeline_schedule, *stages)
    return settled_mesh(c, batch, split, c.pipeline_schedule if kept else plain_schedule(*stages))


def _changes(problem: Problem, c: Configuration) -> Iterator[tuple[str, Configuration]]:
    yield from _changes_on_groups(c) if c.stage_groups else _changes_of_mesh(problem, c)
    yield from _doubled_and_halved(c, "micro_batch_size")
    for stage in launcher_capabilities(problem.launcher).zero_stages if c.replicating_ranks > 1 else ():
        yield _set(c, "zero_stage", stage)
    yield "recompute off", replace(c, recompute_granularity="none", recompute_layers=0)
    yield "recompute of scores only", replace(c, recompute_granularity="selective", recompute_layers=0)
    yield "recompute every layer", _recomputing(c, max(c.stage_layers))
    yield from _recomputing_too(c, iter([_set(c, "micro_batch_size", c.micro_batch_size * 2)]))


def _changes_of_mesh(problem: Problem, c: Configuration) -> Iterator[tuple[str, Configuration]]:
    for name in _MESH:
        size = getattr(c, name)
        yield from _traded(c, name, size * 2)
        if size % 2 == 0:
            yield from _traded(c, name, size // 2)
    vpp = c.virtual_pipeline_size
    for chunks in sorted({1, vpp - 1, vpp + 1, vpp * 2} - {0}) if c.pipeline_parallel_size > 1 else ():
        yield _set(c, "virtual_pipeline_size", chunks)
    if problem.model.moe is not None:
        yield from _doubled_and_halved(c, "expert_parallel_size")
    if WEIGHT_SHARDS in problem.options.allow or c.weight_shard_size * c.expert_weight_shard_size > 1:
        yield from _doubled_and_halved(c, "weight_shard_size")
        if problem.model.moe is not None:
            yield from _doubled_and_halved(c, "expert_weight_shard_size")
    most = max(c.stage_layers)
    now = min(c.recompute_layers, most) if c.recompute_granularity == "full" else 0
    for layers in (now - 1, now + 1):
        if 0 < layers < most:
            yield f"recompute {layers} of each chunk", _recomputing(c, layers)
    if c.tensor_parallel_size % 2 == 0:
        yield from _recomputing_too(c, _traded(c, _MESH[0], c.tensor_parallel_size // 2))


def _recomputing_too(
    c: Configuration, changes: Iterator[tuple[str, Configuration]]
) -> Iterator[tuple[str, Configuration]]:
    """Yield changes together with the memory that recomputing every layer frees, which they often need."""
    if c.recompute_granularity != "full":
        for words, changed in changes:
            yield f"{words}, recompute every layer", _recomputing(changed, sum(c.stage_layers))


def _set(c: Configuration, name: str, value: int) -> tuple[str, Configuration]:
    words = f"{SHORT_NAMES[name]} {value}" if value != getattr(c, name) else ""
    changed: dict[str, int] = {name: value}
    return words, replace(c, **changed)  # type: ignore[arg-type]


def _doubled_and_halved(c: Configuration, name: str) -> Iterator[tuple[str, Configuration]]:
    size = getattr(c, name)
    yield _set(c, name, size * 2)
    if size % 2 == 0:
        yield _set(c, name, size // 2)


def _traded(c: Configuration, name: str, size: int) -> Iterator[tuple[str, Configuration]]:
    old = getattr(c, name)
    for other in ("data_parallel_size", "pipeline_parallel_size"):
        product = getattr(c, other) * old
        if other != name and product % size == 0:
            changed: dict[str, int | bool] = {name: size, other: product // size}
            if name == "tensor_parallel_size" and old == 1:
                changed["sequence_parallel"] = True
            words = f"{SHORT_NAMES[name]} {size}, {SHORT_NAMES[other]} {product // size}"
            yield words, replace(c, **changed)  # type: ignore[arg-type]


def _recomputing(c: Configuration, layers: int) -> Configuration:
    return replace(c, recompute_granularity="full", recompute_layers=layers, stage_recompute_layers=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One move, judged."""

    words: str  # ``tp 4``, ``recompute off``
    configuration: Configuration
    step_s: float  # closed form, for the whole global batch
    start_s: float  # of the plan it starts from
    waterfall_s: dict[str, float]
    start_waterfall_s: dict[str, float]
    broken: tuple[str, ...]  # names of the rules it breaks
    short_bytes: float  # memory beyond the budget on its heaviest stage; 0 where it fits
    heaviest_stage: int
    largest_term: str  # of that stage's memory
    place: str  # of that stage, where GPUs differ: `` on l40s``
    is_feasible: bool  # it is legal and fits


def alternatives_of(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[list[Alternative]]:
    """Return the judged moves of every configuration, in the order of the configurations."""
    starts = evaluate(problem, profile, configurations)
    moves = [moves_of(problem, one.config, one.slowest) for one in starts]
    found = evaluate(problem, profile, [changed for some in moves for changed in some])
    moved = iter(zip(found, waterfalls(problem, found), strict=True))
    judge, judged = RuleJudge(problem), list[list[Alternative]]()
    for some, start, start_fall in zip(moves, starts, waterfalls(problem, starts), strict=True):
        judged.append([])
        for changed, words in some.items():
            now, fall = next(moved)
            short, stage = max((bytes_short, -at) for at, bytes_short in enumerate(now.short_bytes()))
            heaviest, broken = now.stages[-stage], judge.broken(now)
            terms = heaviest.memory_bytes()
            one = Alternative(
                words=words,
                configuration=changed,
                step_s=now.objective_s * judge.batch / now.config.global_batch_size,
                start_s=start.objective_s,
                waterfall_s=fall,
                start_waterfall_s=start_fall,
                broken=broken,
                short_bytes=max(short, 0.0),
                heaviest_stage=-stage,
                largest_term=max(terms, key=lambda name: terms[name]),
                place=f" on {heaviest.on.profile.group.gpu.slug}" if heaviest.on.name else "",
                is_feasible=not broken and short <= 0.0,
            )
            judged[-1].append(one)
    return judged


class RuleJudge:
    """Judge of the rules that configurations break; masks of rows priced together are cached."""

    def __init__(self, problem: Problem) -> None:
        self.batch = problem.workload.global_batch_size
        self._batches = {self.batch, *problem.options.batch_sizes}
        self._problem = problem
        self._rules = dict[int, tuple[Rule, ...]]()  # by node group
        self._masks = cache(self._masks_of)

    def broken(self, found: Evaluation) -> tuple[str, ...]:
        """Return rules that a configuration breaks on any group, and missing GPUs or sequences."""
        names = dict[str, None]()
        for on, row in {(stage.on, stage.row): None for stage in found.stages}:
            if mask := self._masks(on)[row]:
                rules = enumerate(self._rules[on.group])
                names |= {rule.name: None for bit, rule in rules if mask >> bit & 1}
        names.pop(BATCH_RULE, None)  # a class has its own share of the batch
        if found.config.global_batch_size not in self._batches:
            names[BATCH_RULE] = None
        lacking = lacking_gpus(self._problem, found.config)
        return (*names, *(f"GPUs of {name}: only {have}" for name, (_, have) in lacking.items()))

    def _masks_of(self, on: PricedPipelines) -> list[int]:
        if on.group not in self._rules:
            self._rules[on.group] = rules_of(on.problem)
        masks: list[int] = violation_masks(self._rules[on.group], on.columns).tolist()
        return masks


# --------------------------------------------------------------------------------------------------
# Single changes of stages on node groups: their tensor-parallel sizes, their number, their layers.


def _changes_on_groups(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    for more, less in ((2, 1), (1, 2)):  # of data parallelism, and what is traded for it
        if c.data_parallel_size * more % less == 0:
            yield from _traded_on_groups(c, c.data_parallel_size * more // less, more, less)
    yield from _tensor_of_groups(c)
    yield from _stages(c)
    yield from _layers(c)


def _traded_on_groups(
    c: Configuration, dp: int, more: int, less: int
) -> Iterator[tuple[str, Configuration]]:
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
    for group in dict.fromkeys(one.group for one in c.stage_groups):
        sizes = {one.tensor_parallel_size for one in c.stage_groups if one.group == group}
        for factor in (2.0, 0.5):
            if min(sizes) * factor >= 1:
                stages = tuple(
                    replace(one, tensor_parallel_size=max(int(one.tensor_parallel_size * factor), 1))
                    if one.group == group
                    else one
                    for one in c.stage_groups
                )
                words = f"tp {int(max(sizes) * factor)} on {group}"
                yield words, replace(c, stage_groups=stages)


def _stages(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Yield one stage of a group more, from its run's largest, or one less, joined with a neighbour."""
    for group in dict.fromkeys(one.group for one in c.stage_groups):
        own = [at for at, one in enumerate(c.stage_groups) if one.group == group]
        at = max(own, key=lambda stage: c.stage_layers[stage])
        size = c.stage_layers[at]
        if size > 1:
            groups = (*c.stage_groups[: at + 1], *c.stage_groups[at:])
            more = replace(
                c,
                stage_layers=_halved(c.stage_layers, at),
                stage_recompute_layers=_halved(c.stage_recompute_layers, at),
                stage_groups=groups,
            )
            yield f"one more stage on {group}", more
        if len(c.stage_groups) > 1:
            yield f"one stage fewer on {group}", _without(c, min(own, key=lambda one: c.stage_layers[one]))


def _without(c: Configuration, at: int) -> Configuration:
    """Remove one stage; its neighbour behind, or the last one's before, gets its layers."""
    into = at + 1 if at + 1 < len(c.stage_groups) else at - 1

    def merged(counts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            count + counts[at] * (stage == into) for stage, count in enumerate(counts) if stage != at
        )

    return replace(
        c,
        stage_layers=merged(c.stage_layers),
        stage_recompute_layers=merged(c.stage_recompute_layers),
        stage_groups=tuple(one for stage, one in enumerate(c.stage_groups) if stage != at),
    )


def _halved(counts: tuple[int, ...], at: int) -> tuple[int, ...]:
    if not counts:
        return ()
    return (*counts[:at], counts[at] - counts[at] // 2, counts[at] // 2, *counts[at + 1 :])


def _layers(c: Configuration) -> Iterator[tuple[str, Configuration]]:
    for at, (one, other) in enumerate(pairwise(c.stage_groups)):
        if one.group == other.group:
            continue
        for source, target in ((at, at + 1), (at + 1, at)):
            sizes = list(c.stage_layers)
            if sizes[source] > 1:
                sizes[source] -= 1
                sizes[target] += 1
                yield f"a layer from stage {source} to {target}", replace(c, stage_layers=tuple(sizes))
