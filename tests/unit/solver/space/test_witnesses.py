"""Measured runs are witnesses: what happened is legal, or its kind is a deliberate limit with a name."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import meshwright.profiles
from meshwright.solver.check import rule_faults
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.problem import Problem
from meshwright.solver.runs.table import read_runs
from meshwright.solver.space.rule import LIMITS, Rule
from meshwright.solver.space.rules import rules_of, violation_masks

CATALOG = Path(meshwright.profiles.__file__).parent / "catalog" / "runs"
FILES = ("measured_runs", "inferred_out_of_memory")  # some of the latter happened, and ran out of memory


@cache
def witnesses(name: str) -> list[tuple[str, Problem, Configuration]]:
    """Every run that has a layout, as launcher ``none`` would be asked for it."""
    return [
        (run.run_id, asked(run.shape.problem, run.shape.configuration), run.shape.configuration)
        for run in read_runs(CATALOG / f"{name}.csv")
        if run.shape is not None
    ]


def asked(problem: Problem, config: Configuration) -> Problem:
    """The problem with all that a request has to allow."""
    options = replace(
        problem.options,
        allow=("offload", "context_parallel_mode", "weight_shards"),
        standalone_stages=0 in config.stage_layers,
    )
    return replace(problem, launcher="none", options=options)


def without_idle_stages(config: Configuration) -> Configuration:
    """The same without stages behind the head, which hold nothing: no row of a search has any."""
    held = list(config.stage_layers)
    while held[-2:] == [0, 0]:
        held.pop()
    return replace(config, pipeline_parallel_size=len(held) // config.virtual_pipeline_size,
                   stage_layers=tuple(held))  # fmt: skip


@cache
def broken(name: str) -> list[list[Rule]]:
    """The rules of the space that each run breaks."""
    found = list[list[Rule]]()
    for _, problem, config in witnesses(name):
        rules = rules_of(problem)
        mask = int(violation_masks(rules, Columns.of([without_idle_stages(config)]))[0])
        found.append([rule for bit, rule in enumerate(rules) if mask >> bit & 1])
    return found


def unlimited(name: str) -> Iterator[str]:
    """What a run breaks: rules of the space and sentences of the check that name no limit."""
    for (run_id, problem, config), rules in zip(witnesses(name), broken(name), strict=True):
        for rule in rules:
            if rule.limit is None:
                yield f"{run_id}: {rule.name}"
        for sentence in rule_faults(problem, [config])[0]:
            if not any(limit.name in sentence for limit in LIMITS):
                yield f"{run_id}: {sentence}"


@pytest.mark.parametrize("name", FILES)
def test_a_run_that_happened_is_legal_but_for_deliberate_limits(name: str) -> None:
    assert Counter(unlimited(name)) == {}


def test_every_deliberate_limit_leaves_out_a_run_that_happened() -> None:
    rules = [rule for each in broken("measured_runs") for rule in each]
    assert {rule.limit.name for rule in rules if rule.limit is not None} == {one.name for one in LIMITS}
