"""Rows that break each rule, and what the check says of some; UPDATE_GOLDEN=1 writes them anew.

The requests are those of golden prices with limits of their own. A line holds how many rows a sample
of the space has and how many of the whole are legal, the sum of each column, how many rows break each rule,
and the faults of a few configurations.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.check import violations_of_all
from meshwright.solver.configuration import (
    ALL_LAYERS,
    CONTEXT_MODES,
    OFFLOAD,
    RANK_ORDERS,
    RECOMPUTE,
    SCHEDULES,
    Columns,
    Configuration,
)
from meshwright.solver.problem import Problem
from meshwright.solver.space.enumerate import enumerate_space, sampled_space
from meshwright.solver.space.rules import violation_masks
from meshwright.solver.splits import usual_split
from tests.problems.combined_requests import CONSTRAINTS, FORBIDDEN, accepted

PRICES = Path(__file__).parents[1] / "prices" / "cases.json"
OUTCOMES = Path(__file__).with_name("outcomes.jsonl")
REQUESTS, TOGETHER, CHECKED, ODD = 120, 10, 4, 200


def limited(at: int, request: dict[str, Any]) -> Problem:
    """The request with limits, as far as it can have them."""
    random = Random(at)
    bounds = random.choice([{}, {"micro_batch_size": [1, 2]}, {"pipeline_parallel_size": [1, 4]}])
    forbidden = dict(random.sample(FORBIDDEN, random.choice((0, 1, 1))))
    limits = {
        "bounds": {name: values for name, values in bounds.items() if name not in forbidden},
        "forbid": forbidden,
        "constraints": random.sample(CONSTRAINTS, random.choice((0, 0, 1))),
    }
    return parse_problem(accepted({**request, "search": {**request["search"], **limits}}))


def outcome(at: int, request: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a request's space that the rules and the check leave."""
    problem = limited(at, request)
    space = sampled_space(problem, wide=at % 3 == 0, legal_only=False)
    rows = space.columns
    broken = {rule.name: int((space.masks >> bit & 1).sum()) for bit, rule in enumerate(space.rules)}
    sums = {one.name: int(getattr(rows, one.name).sum()) for one in fields(Columns)}
    random = Random(at)
    odd = _odd_rows(random)
    masks = violation_masks(space.rules, odd)
    configs = [_config(problem, rows, random.randrange(len(rows)), random) for _ in range(CHECKED)]
    configs += [_config(problem, odd, random.randrange(ODD), random) for _ in range(CHECKED)]
    profile = default_profile(problem.cluster, problem.priced_as)
    return {
        "rows": len(rows),
        "legal": enumerate_space(problem, legal_only=True).num_legal,
        "sums": {name: value for name, value in sums.items() if value},
        "broken": {name: count for name, count in broken.items() if count},
        "odd": [int((masks >> bit & 1).sum()) for bit in range(len(space.rules))],
        "reasons": [rule.reason for rule in space.rules] if at % TOGETHER == 0 else [],
        "faults": [sorted(faults) for faults in violations_of_all(problem, profile, configs)],
    }


def _odd_rows(random: Random) -> Columns:
    """Rows of sizes that seldom fit one another: each rule meets both sides of its limit."""
    words = {
        "sequence_parallel": (0, 1),
        "zero_stage": (0, 1, 2, 3),
        "pipeline_schedule": range(len(SCHEDULES)),
        "recompute": range(len(RECOMPUTE)),
        "recompute_layers": (0, 1, 2, ALL_LAYERS),
        "offload": range(len(OFFLOAD)),
        "context_parallel_mode": range(len(CONTEXT_MODES)),
        "rank_order": range(len(RANK_ORDERS)),
    }
    drawn = {
        one.name: np.array(random.choices(words.get(one.name, (1, 1, 2, 3, 4, 8)), k=ODD))
        for one in fields(Columns)
    }
    return Columns(**drawn)


def _config(problem: Problem, rows: Columns, at: int, random: Random) -> Configuration:
    """A row with its launcher's split, every second one with a size that may not fit."""
    found = rows.configuration(at, (problem.model.num_layers,))
    found = replace(found, stage_layers=usual_split(problem, found))
    if random.random() < 0.5:
        return found
    name = random.choice([one.name for one in fields(Columns) if one.name.endswith("_size")])
    return replace(found, **{name: random.choice((1, 2, 3, 8))})  # type: ignore[arg-type]


@pytest.mark.parametrize("first", range(0, REQUESTS, TOGETHER))
def test_every_rule_refuses_the_rows_that_were_reviewed(first: int) -> None:
    cases = json.loads(PRICES.read_text())[: 2 * REQUESTS : 2]
    found = [
        json.dumps(outcome(at, cases[at]["request"]), separators=(",", ":"))
        for at in range(first, first + TOGETHER)
    ]
    reviewed = OUTCOMES.read_text(encoding="utf-8").splitlines() if OUTCOMES.exists() else []
    if os.environ.get("UPDATE_GOLDEN"):
        reviewed[first : first + TOGETHER] = found
        OUTCOMES.write_text("\n".join(reviewed) + "\n", encoding="utf-8")
    some = reviewed[first : first + TOGETHER]
    assert [f"{a} -> {b}" for a, b in zip(some, found, strict=True) if a != b] == []
