"""What one node group can run as a class of replicas: every configuration of as many replicas as fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.columns import Columns
from solver.constraints import names_of
from solver.mixed.fleet import Berth, Fleet
from solver.mixed.outer import Outer, berths_of, rows_at
from solver.problem import Problem
from solver.rule import Rule
from solver.rules import BATCH_RULE, rules_of, violation_masks
from solver.search.fitting import fitting
from solver.search.rows import Rows

_OF_ALL_REPLICAS = {"data_parallel_size", "num_gpus", "global_batch_size"}


def limits_all_replicas(problem: Problem) -> bool:
    """Whether the request limits what unlike classes only have together; then replicas are alike."""
    options = problem.options
    return not _OF_ALL_REPLICAS.isdisjoint({*options.named, *names_of(options.constraints)})


def late_rules(problem: Problem) -> tuple[Rule, ...]:
    """The request's rules on the number of micro-batches, which is known when sequences are shared out."""
    return tuple(rule for rule in rules_of(problem) if rule.of_request and "num_microbatches" in rule.name)


def options_of(outer: Outer, group: int) -> Rows:
    """Every configuration of one group: as many replicas as fit, one micro-batch."""
    parts = [_at_berth(outer, berth) for berth in berths_of(outer.fleet) if berth.group == group]
    columns = Columns.concatenate([part.columns for part in parts])
    prices = [part.prices for part in parts]
    return replace(parts[0], columns=columns, prices=type(prices[0]).concatenate(prices))


def _at_berth(outer: Outer, berth: Berth) -> Rows:
    """The options of one tensor-parallel size."""
    fleet = outer.fleet
    columns = _distinct(fleet, outer.columns, berth)
    rows = rows_at(fleet, columns, berth)
    problem = fleet.problems[berth.group]
    late = {BATCH_RULE, *(rule.name for rule in late_rules(problem))}
    rules = [rule for rule in rules_of(problem) if rule.name not in late]
    legal = np.flatnonzero(violation_masks(tuple(rules), rows.columns) == 0)
    return rows.take(legal[fitting(rows.take(legal))])


def _distinct(fleet: Fleet, columns: Columns, berth: Berth) -> Columns:
    """The rows of a space with the number of replicas that fill the group, each once."""
    each = berth.tensor_parallel_size * columns.context_parallel_size * columns.pipeline_parallel_size
    replicas = fleet.groups[berth.group].num_gpus // each
    shard = np.where(columns.zero_stage > 0, replicas * columns.context_parallel_size, 1)
    filled = replace(
        columns,
        data_parallel_size=replicas,
        zero_shard_size=shard,
        num_microbatches=np.ones_like(replicas),
    )
    names = (
        "context_parallel_size", "expert_parallel_size", "pipeline_parallel_size", "micro_batch_size",
        "zero_stage", "recompute",
    )  # fmt: skip
    keys = np.stack([getattr(filled, name) for name in names])
    _, first = np.unique(keys, axis=1, return_index=True)
    first = np.sort(first)
    return filled.take(first[replicas[first] > 0])
