"""Configurations that no launcher starts: the first cause, and the sizes that do start next to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import FieldError
from meshwright.solver.configuration import MESH, Configuration
from meshwright.solver.problem import Problem, usable_gpus
from meshwright.solver.space.rule import Rule
from meshwright.solver.space.rules import stopping_rules
from meshwright.solver.splits import divisors

_WORLD = ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size")
_SHOWN = 24  # sizes that an error lists

# Whether other stated values start; the second argument: and whether they fit the batch and layers as well
Fits = Callable[[Mapping[str, object], bool], bool]


def start_fault(
    raw: Mapping[str, object], configuration: Configuration, problem: Problem, fits: Fits
) -> FieldError | None:
    """Return the first cause for which a run cannot start; None where it starts.

    Sizes that the model alone refuses come first, then the number of GPUs, then what depends on how many
    replicas these leave.

    Args:
        raw: what the user states, by long names.
        configuration: the same, completed.
        problem: what is asked.
        fits: judges other values in place of ``raw``.
    """
    broken = stopping_rules(problem, configuration)
    first = [rule for rule in broken if "data_parallel_size" not in rule.reads]
    if first:
        return _broken(first[0], raw, configuration, problem, fits)
    return _uneven_world(raw, configuration, problem, fits) or (
        _broken(broken[0], raw, configuration, problem, fits) if broken else None
    )


def starts(raw: Mapping[str, object], configuration: Configuration, problem: Problem) -> bool:
    """Return whether a run starts, of sizes as ``start_fault`` has them."""
    fills = _fills(raw, _ranks(configuration), usable_gpus(problem))
    return fills and not stopping_rules(problem, configuration)


def _with(configuration: Configuration, name: str, size: int) -> Configuration:
    values: dict[str, Any] = {name: size}
    return replace(configuration, **values)


def _stopping_names(problem: Problem, configuration: Configuration) -> set[str]:
    return {rule.name for rule in stopping_rules(problem, configuration)}


def idle_notes(problem: Problem, configuration: Configuration) -> tuple[str, ...]:
    """Return a note on GPUs of the cluster that a configuration with a stated number of replicas leaves."""
    used, gpus = configuration.num_gpus, usable_gpus(problem)
    if configuration.is_placed or used >= gpus:
        return ()
    return (f"{used} of {gpus} GPUs are used; a smaller num_nodes prices the run without idle ones",)


def _ranks(configuration: Configuration) -> int:
    return prod(getattr(configuration, name) for name in _WORLD)


def _fills(raw: Mapping[str, object], ranks: int, gpus: int) -> bool:
    return "data_parallel_size" in raw or gpus % ranks == 0


def _broken(
    rule: Rule, raw: Mapping[str, object], configuration: Configuration, problem: Problem, fits: Fits
) -> FieldError:
    named = [name for name in rule.reads if name in MESH]
    name, sizes = _repair(named, raw, problem, fits)
    if not sizes:  # another size has to change as well: those that keep this rule
        tried = ((size, _with(configuration, name, size)) for size in _tried(named, problem))
        sizes = tuple(size for size, one in tried if rule.name not in _stopping_names(problem, one))
    why = rule.reason
    if "data_parallel_size" in rule.reads:
        ranks = _ranks(configuration) // configuration.pipeline_parallel_size
        why += f", here {ranks * configuration.data_parallel_size}"
    return _fault(name, configuration, f"{rule.name} ({why})", sizes)


def _uneven_world(
    raw: Mapping[str, object], configuration: Configuration, problem: Problem, fits: Fits
) -> FieldError | None:
    """Return the fault of sizes that leave GPUs over; a stated number of replicas may use fewer."""
    gpus, each = usable_gpus(problem), _ranks(configuration)
    if _fills(raw, each, gpus):
        return None
    name, sizes = _repair(_WORLD, raw, problem, fits)
    message = f"tp × pp × cp = {each} does not divide the {gpus} GPUs"
    if each > gpus:
        message = f"tp × pp × cp = {each}, but there are {gpus} GPUs"
    return _fault(name, configuration, message + _fewer_nodes(problem, each), sizes)


def _fewer_nodes(problem: Problem, each: int) -> str:
    """Return how to ask for the nodes that such a mesh fills; empty where none are filled."""
    groups, gpus = problem.cluster.groups, usable_gpus(problem)
    if len(groups) > 1:
        return ""
    per_node = groups[0].gpus_per_node
    nodes = next((count for count in range(gpus // per_node, 0, -1) if count * per_node % each == 0), 0)
    return f" (num_nodes {nodes} gives {nodes * per_node}, which it divides)" if nodes else ""


def _repair(
    names: Collection[str], raw: Mapping[str, object], problem: Problem, fits: Fits
) -> tuple[str, tuple[int, ...]]:
    """Return the last stated size that can repair a fault alone, with its values that do."""
    stated, tried = [name for name in names if name in raw] or list(names), _tried(names, problem)
    for whole in (True, False):
        for name in reversed(stated):
            sizes = tuple(size for size in tried if fits({**raw, name: size}, whole))
            if sizes:
                return name, sizes
    return stated[-1], ()


def _tried(names: Collection[str], problem: Problem) -> tuple[int, ...]:
    sizes = {*divisors(usable_gpus(problem))}
    if problem.model.moe is not None and "expert_parallel_size" in names:
        sizes |= {*divisors(problem.model.moe.num_experts)}
    return tuple(sorted(sizes))


def _fault(name: str, configuration: Configuration, why: str, sizes: tuple[int, ...]) -> FieldError:
    value = getattr(configuration, name)
    near = min(sizes, key=lambda size: (abs(size - value), size), default=None)
    words = ", ".join(map(str, sizes[:_SHOWN])) + ", …" * (len(sizes) > _SHOWN)
    return FieldError(
        pointer=pointer("configuration", name),
        message=f"{value} can't start: {why}",
        allowed=words or None,
        nearest=None if near is None else str(near),
        value=value,
        values=sizes or None,
    )
