"""What two configurations have otherwise, and the configurations that have some of it from each."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from solver.plan import Configuration
from solver.problem import Problem
from solver.splits import even_split
from solver.why.moves import settle

_GROUPS = {
    "num_gpus": ("num_gpus",),
    "tensor_parallel_size": ("tensor_parallel_size", "sequence_parallel"),
    "pipeline_parallel_size": ("pipeline_parallel_size",),
    "context_parallel_size": ("context_parallel_size", "context_parallel_mode"),
    "expert_parallel_size": ("expert_parallel_size", "expert_tensor_parallel_size"),
    "zero_stage": ("zero_stage",),
    "recompute": ("recompute_granularity", "recompute_layers"),
    "virtual_pipeline_size": ("virtual_pipeline_size",),
    "micro_batch_size": ("micro_batch_size",),
    "offload": ("offload",),
    "rank_order": ("rank_order",),
}
_SHORT = {
    "num_gpus": "GPUs", "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp",
    "context_parallel_size": "cp", "expert_parallel_size": "ep", "zero_stage": "zero",
    "virtual_pipeline_size": "vpp", "micro_batch_size": "mbs", "offload": "offload",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that two configurations have otherwise."""

    name: str
    words: str  # ``tp 8 → 4``


def differences_of(first: Configuration, second: Configuration) -> list[Difference]:
    """In a fixed order; what follows from the others (dp, micro-batches, shards) is none of its own."""
    found = []
    for name, fields in _GROUPS.items():
        if any(getattr(first, one) != getattr(second, one) for one in fields):
            both = (_recompute(first), _recompute(second))
            if name == "recompute" and both[0] == both[1]:
                continue
            found.append(Difference(name=name, words=_words(name, first, second)))
    same_chunks = len(first.stage_layers) == len(second.stage_layers)
    if same_chunks and first.stage_layers != second.stage_layers:
        found.append(Difference(name="stage_layers", words="layers of the chunks"))
    return found


def _recompute(c: Configuration) -> str:
    """Recomputation in words."""
    if c.recompute_granularity != "full":
        return {"none": "off", "selective": "of scores"}.get(c.recompute_granularity, "?")
    every = c.recompute_layers >= max(c.stage_layers)
    layers = "1 layer" if c.recompute_layers == 1 else f"{c.recompute_layers} layers"
    return "of every layer" if every else f"of {layers} a chunk"


def _words(name: str, first: Configuration, second: Configuration) -> str:
    """``tp 8 → 4``."""
    if name == "recompute":
        return f"recompute {_recompute(second)}"
    if name == "rank_order":
        return (
            f"ranks numbered along {_axes(first, second, second)} instead of {_axes(first, second, first)}"
        )
    old, new = getattr(first, name), getattr(second, name)
    if name == "context_parallel_size" and old == new:
        return f"cp by {second.context_parallel_mode.replace('_', ' ')}"
    if name == "tensor_parallel_size" and old == new:
        return f"sequence parallel {'on' if second.sequence_parallel else 'off'}"
    if name == "expert_parallel_size" and old == new:
        return f"expert tp {first.expert_tensor_parallel_size} → {second.expert_tensor_parallel_size}"
    return f"{_SHORT[name]} {old} → {new}"


def _axes(first: Configuration, second: Configuration, one: Configuration) -> str:
    """``tp, pp, dp``: in which order a configuration numbers ranks, without axes that neither has."""
    sizes = {axis: f"{name}_parallel_size" for axis, name in (("tp", "tensor"), ("cp", "context"))}
    axes = [axis for axis in one.rank_order.split("-") if axis not in sizes
            or max(getattr(first, sizes[axis]), getattr(second, sizes[axis])) > 1]  # fmt: skip
    return ", ".join(axes)


def carried(
    problem: Problem, first: Configuration, second: Configuration, done: AbstractSet[str]
) -> Configuration | None:
    """The first configuration with the named differences of the second; None where it cannot be.

    Data parallelism takes the GPUs that the other axes leave.
    """
    changed = dict[str, object]()
    for name in done & _GROUPS.keys():
        changed |= {one: getattr(second, one) for one in _GROUPS[name] if one != "num_gpus"}
    mixed = replace(first, **changed)  # type: ignore[arg-type]
    gpus = (second if "num_gpus" in done else first).num_gpus
    model = mixed.tensor_parallel_size * mixed.pipeline_parallel_size * mixed.context_parallel_size
    chunks = mixed.pipeline_parallel_size * mixed.virtual_pipeline_size
    if gpus % model or not 0 < chunks <= problem.model.num_layers:
        return None
    split = _split(problem, first, second, chunks, done)
    every = mixed.recompute_granularity == "full" and _every(first, second, done)
    found = settle(
        problem,
        replace(
            mixed,
            data_parallel_size=gpus // model,
            stage_layers=split,
            recompute_layers=sum(split) if every else mixed.recompute_layers,
        ),
    )
    return None if found is None else _sharded(first, second, found)


def _every(first: Configuration, second: Configuration, done: AbstractSet[str]) -> bool:
    """Whether the recomputation in force covers every layer of its own configuration."""
    owner = second if "recompute" in done else first
    return owner.recompute_layers >= max(owner.stage_layers)


def _split(
    problem: Problem, first: Configuration, second: Configuration, chunks: int, done: AbstractSet[str]
) -> tuple[int, ...]:
    """A split of one of the two where it has as many chunks, else an even one."""
    owners = (second, first) if "stage_layers" in done else (first, second)
    if len(first.stage_layers) != len(second.stage_layers):
        owners = (second, first)
    for owner in owners:
        if len(owner.stage_layers) == chunks:
            return owner.stage_layers
    return even_split(problem.model.num_layers, chunks)


def _sharded(first: Configuration, second: Configuration, found: Configuration) -> Configuration:
    """Shard sets as large as those of a configuration with the same ranks, else all ranks."""
    ranks = found.data_parallel_size * found.context_parallel_size
    for owner in (second, first):
        same = ranks == owner.data_parallel_size * owner.context_parallel_size
        if found.zero_stage and same and owner.zero_stage == found.zero_stage:
            return replace(found, zero_shard_size=owner.zero_shard_size)
    return found
