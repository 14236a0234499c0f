"""Plans that a launcher would not run as they were priced: refused before a file is written.

The rules are those of the search (``meshwright.solver.space.rules``) on one configuration, with the nearest
values that keep each. The rules here are of values that its columns do not hold: the split, the nodes, and
words that are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.errors import FieldError, RefusedExportError
from meshwright.solver.configuration import (
    ALL_LAYERS,
    VARIABLE_OF,
    VARIABLES,
    Columns,
    chunk_sizes,
    holds_layers,
)
from meshwright.solver.problem import Problem, can_start
from meshwright.solver.space.launcher_rules import problem_faults
from meshwright.solver.space.rule import Rule as SpaceRule
from meshwright.solver.space.rules import launch_rules
from meshwright.solver.splits import divisors, launcher_split

Rule = Callable[[Target], Iterator[FieldError]]  # yields one fault for each broken value


def fault(field: str, message: str, *, allowed: str | None = None, nearest: object = None) -> FieldError:
    """Return a fault of one field of the plan's configuration (``/config/<field>``)."""
    return FieldError(
        pointer=f"/config/{field}",
        message=message,
        allowed=allowed,
        nearest=None if nearest is None else str(nearest),
    )


def near_divisors(value: int, total: int) -> str:
    """Return the divisors of ``total`` next to ``value``, below and above."""
    return _neighbours(value, divisors(total))


def near_multiples(value: int, unit: int) -> str:
    """Return the positive multiples of ``unit`` next to ``value``."""
    below = value // unit * unit
    return _neighbours(value, [n for n in (below, below + unit) if n > 0])


def _neighbours(value: int, legal: Sequence[int]) -> str:
    below = [n for n in legal if n <= value][-1:]
    return " or ".join(str(n) for n in below + [n for n in legal if n > value][:1])


def refuse(rules: Iterable[Rule], target: Target) -> None:
    """Check ``target`` against every rule.

    Raises:
        RefusedExportError: rules are broken; every fault of every rule is in it.
    """
    faults = [found for rule in rules for found in rule(target)]
    if faults:
        raise RefusedExportError(faults)


def refuse_first(target: Target, launcher: str, own: tuple[Rule, ...] = ()) -> None:
    """Check a plan of one mesh against the rules of the search, of nodes, and the launcher's ``own``.

    Raises:
        RefusedExportError: rules are broken; every fault of every rule is in it.
    """
    refuse((stages_stand_on_like_nodes, values_are_known), target)  # the others divide by sizes
    refuse((gpus_fit_the_cluster, ranks_start_under(launcher), runs_under(launcher), *own), target)


def stages_stand_on_like_nodes(target: Target) -> Iterator[FieldError]:
    """Require one mesh for all nodes: stages and replicas have no node group or size of their own."""
    for name in ("stage_groups", "replicas"):
        if getattr(target.config, name):
            yield fault(
                name,
                "this launcher runs one mesh with one tensor_parallel_size on all nodes. It can't place "
                "stages on node groups",
                nearest="a plan searched for the launcher",
            )


def values_are_known(target: Target) -> Iterator[FieldError]:
    """Require words and numbers that a configuration can have, and a split of all layers into chunks."""
    config = target.config
    for name, variable in VARIABLES.items():
        value = getattr(config, name)
        if variable.words and value not in variable.words:
            yield fault(
                name, f"{value!s:.40} is unknown", allowed=", ".join(variable.words), nearest=variable.off
            )
        elif variable.is_integer and not variable.least <= value <= variable.most:
            allowed = f"{variable.least} to {variable.most}"
            nearest = min(max(value, variable.least), variable.most)
            yield fault(name, f"{value} is out of range", allowed=allowed, nearest=nearest)
    chunks = config.pipeline_parallel_size * config.virtual_pipeline_size
    held, wanted = sum(config.stage_layers), target.model.num_layers
    if len(config.stage_layers) != chunks:
        yield fault(
            "stage_layers",
            f"{len(config.stage_layers)} entries for pp * vpp = {chunks} chunks",
            allowed=f"{chunks} entries",
            nearest=f"{chunks} entries",
        )
    if held != wanted:
        yield fault("stage_layers", f"{held} layers for a model of {wanted}", nearest=f"a sum of {wanted}")
    yield from _uncounted(target)


def _uncounted(target: Target) -> Iterator[FieldError]:
    """Refuse counts of recomputed layers and shards that mean nothing, which no parser notices."""
    config, most = target.config, max(target.config.stage_layers, default=0)
    whole = config.recompute_granularity == "full"
    counts = (*range(1, most + 1), sum(config.stage_layers)) if whole else (0,)
    if config.recompute_layers not in counts and not config.stage_recompute_layers:
        yield fault(
            "recompute_layers",
            f"{config.recompute_layers} layers of chunks that hold up to {most}, with "
            f"recompute_granularity {config.recompute_granularity}",
            allowed=f"1 to {most}; {counts[-1]}: every layer" if whole else "0",
            nearest=min(max(1, config.recompute_layers), most) if whole else 0,
        )
    if config.zero_stage == 0 and config.zero_shard_size != 1:
        yield fault(
            "zero_shard_size", f"{config.zero_shard_size} with zero_stage 0", allowed="1", nearest=1
        )


def gpus_fit_the_cluster(target: Target) -> Iterator[FieldError]:
    """Require tp * pp * cp * dp GPUs in the cluster (torchrun would wait for them for ever)."""
    used, there = target.config.num_gpus, target.problem.cluster.num_gpus
    if used > there:
        rest = used // target.config.data_parallel_size
        yield fault(
            "data_parallel_size",
            f"tp * pp * cp * dp = {used} GPUs, but the cluster has {there}",
            allowed=f"at most {there // rest}",
            nearest=max(1, there // rest),
        )


def ranks_start_under(launcher: str) -> Rule:
    """Return the rule that ``launcher`` starts the plan's ranks (``can_start``), as the search has it."""

    def start(target: Target) -> Iterator[FieldError]:
        """Yield a fault of unequal nodes that it cannot start."""
        used, per_node = target.config.num_gpus, target.gpus_per_node
        sizes = sorted({group.gpus_per_node for group in target.problem.cluster.groups})
        if can_start(replace(target.problem, launcher=launcher), used):
            return
        if len(sizes) > 1:
            yield fault(
                "data_parallel_size",
                f"the cluster's nodes have {', '.join(map(str, sizes))} GPUs: ranks need equal nodes",
            )
            return
        yield fault(
            "data_parallel_size",
            f"{used} GPUs don't fill nodes of {per_node}",
            allowed=f"a product tp * pp * cp * dp that {per_node} divides",
            nearest=f"{near_multiples(used, per_node)} GPUs",
        )

    return start


# --------------------------------------------------------------------------------------------------
# What the launcher's data and the rules of the search ask of a plan with known values.
#
# The data are in profiles/catalog/frameworks/capabilities.yaml, each entry with its source.


def runs_under(launcher: str) -> Rule:
    """Return the rule that ``launcher`` runs the plan as it was priced."""
    able = launcher_capabilities(launcher)

    def runs(target: Target) -> Iterator[FieldError]:
        """Yield a fault for every value that the launcher does not run, or cannot state in its files."""
        options = replace(target.problem.options, standalone_stages=0 in target.config.stage_layers)
        problem = replace(target.problem, launcher=launcher, options=options)
        yield from problem_faults(problem, able)
        if target.config.stage_recompute_layers and not able.recompute_per_stage:
            yield fault(
                "stage_recompute_layers",
                "every stage recomputes the same number of layers",
                allowed="[]",
                nearest="[]",
            )
        yield from _stage_faults(able, target)
        yield from _inner_output_faults(able, target)
        row = Columns.of([target.config])
        asked = [rule for rule in launch_rules(problem, able) if rule.reads]
        broken = [rule for rule in asked if rule.violated(row).any()]
        kept = [rule for rule in asked if rule not in broken]
        for rule in broken:
            yield _broken(rule, kept, row, problem)

    return runs


def _broken(rule: SpaceRule, kept: list[SpaceRule], row: Columns, problem: Problem) -> FieldError:
    """Return the fault of a broken rule at the last variable it reads that repairs it alone.

    Of the values that do, those are legal that break the fewest of the rules that the plan keeps.
    """
    for column in reversed(rule.reads):
        codes = _codes(column, row, problem)
        tried = replace(row.take(np.zeros(len(codes), dtype=np.int64)), **{column: codes})
        repairs = ~rule.violated(tried)
        if repairs.any():
            spoilt = sum((one.violated(tried).astype(np.int64) for one in kept), start=0 * codes)
            legal = [int(code) for code in codes[repairs & (spoilt == spoilt[repairs].min())]]
            break
    else:
        legal = []
    name, now = VARIABLE_OF[column].name, int(getattr(row, column)[0])
    shown = _shown(column, problem)
    message = f"{shown(now)} breaks a rule: {rule.name}" + (f" ({rule.reason})" if rule.reason else "")
    words = ", ".join(map(shown, legal)) if 0 < len(legal) <= _LISTED else None
    near = [*[code for code in legal if code < now][-1:], *[code for code in legal if code > now][:1]]
    if not VARIABLE_OF[column].is_integer:
        near = legal[:1]
    return fault(name, message, allowed=words, nearest=" or ".join(map(shown, near)) or None)


_LISTED = 12
_TRIED = 1024  # values of a size, or twice the plan's own


def _codes(column: str, row: Columns, problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the values that may repair a rule, as a column holds them."""
    variable = VARIABLE_OF[column]
    if variable.words:
        return np.arange(len(variable.words), dtype=np.int64)
    if column == "recompute_layers":
        return np.array([*range(problem.model.num_layers), ALL_LAYERS], dtype=np.int64)
    if not variable.is_integer:
        return np.arange(2, dtype=np.int64)
    most = min(variable.most, max(2 * int(getattr(row, column)[0]), _TRIED))
    return np.arange(variable.least, most + 1, dtype=np.int64)


def _shown(column: str, problem: Problem) -> Callable[[int], str]:
    """Return how a column's values are written: every recomputed layer as the number of all."""
    if column == "recompute_layers":
        return lambda code: str(min(code, problem.model.num_layers))
    return lambda code: str(VARIABLE_OF[column].value(code))


def _stage_faults(able: Capabilities, target: Target) -> Iterator[FieldError]:
    config, split = target.config, target.config.stage_layers
    own = launcher_split(target.problem, config)
    if len(set(split)) > 1 and not able.uneven_stages:
        yield fault("stage_layers", f"{able.launcher} has no stages of different size")
    elif not holds_layers(split, alone := able.alone(target.model)):
        yield fault("stage_layers", "a chunk without a layer", allowed=chunk_sizes(alone))
    elif own is None:
        yield fault(
            "pipeline_parallel_size",
            f"{able.launcher} splits the layers itself: one of {len(split)} stages would lack a layer, or "
            "the last one the output head",
            nearest=_most_stages(target),
        )
    elif own and own != split:
        words = " ".join(map(str, own))
        yield fault(
            "stage_layers", f"{able.launcher} splits the layers itself", allowed=words, nearest=words
        )


def _most_stages(target: Target) -> int:
    """Return the largest smaller number of stages that the launcher's own split fills."""
    most = min(target.config.pipeline_parallel_size, target.model.num_layers + 1)
    fewer = (replace(target.config, pipeline_parallel_size=pp) for pp in range(1, most))
    filled = [one.pipeline_parallel_size for one in fewer if launcher_split(target.problem, one)]
    return max(filled, default=1)


def _inner_output_faults(able: Capabilities, target: Target) -> Iterator[FieldError]:
    """Require the layers that add a tower's inner outputs in the first chunk, which embeds the images."""
    tower, first = target.model.tower, next(iter(target.config.stage_layers), 0)
    if tower is not None and tower.model_type in able.towers and first < tower.inner_outputs:
        yield fault(
            "stage_layers",
            f"the first chunk has {first} layers; the tower's {tower.inner_outputs} inner outputs are "
            "added behind as many layers",
            allowed=f"{tower.inner_outputs} or more layers in the first chunk",
        )
