"""Rows that break each rule, and what the check says of some; UPDATE_GOLDEN=1 writes them anew.

The requests are those of golden prices with limits of their own. A line holds how many rows a sample
of the space has and how many of the whole are legal, the sum of each column, how many rows break each rule,
and the faults of a few configurations. Of the whole space it holds how large it was estimated, which fewer
GPUs are tried, how large its legal sample is, the request's own limits, rows of its kinds, and the faults
that other launchers find. A quarter of them is held every day, all by ``make fuzz``.
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

from meshwright.profiles.capabilities import launcher_capabilities, launcher_names
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
    configuration_from_json,
)
from meshwright.solver.problem import Problem
from meshwright.solver.search.feasible import lightest_of, recompute_alike
from meshwright.solver.space.enumerate import (
    _FEW,
    Space,
    _fewer_gpus,
    _row_limit,
    enumerate_space,
    estimated_outer,
    numbers_of_gpus,
    sampled_space,
)
from meshwright.solver.space.factored import Crossing, Kinds, rows_of
from meshwright.solver.space.launcher_rules import (
    beyond_positions,
    is_a_row,
    overlap_notes,
    problem_faults,
    unwritten,
)
from meshwright.solver.space.request_rules import request_rules, without_limits
from meshwright.solver.space.rules import broken_rules, host_warnings, violation_masks
from meshwright.solver.splits import usual_split
from tests.draws import some_of
from tests.problems.combined_requests import CONSTRAINTS, FORBIDDEN, accepted

PRICES = Path(__file__).parents[1] / "prices" / "cases.json"
OUTCOMES = Path(__file__).with_name("outcomes.jsonl")
REQUESTS, TOGETHER, CHECKED, ODD = 120, 10, 2, 200
CHANGES, OTHERS, MOST_OUTER = 3, 1, 200


def limited(at: int, request: dict[str, Any]) -> Problem:
    """The request with limits, as far as it can have them."""
    random = Random(at)
    bounds = random.choice([{}, {"micro_batch_size": [1, 2]}, {"pipeline_parallel_size": [1, 4]}])
    forbidden = dict(random.sample(FORBIDDEN, random.choice((0, 1, 1))))
    limits: dict[str, Any] = {
        "bounds": {name: values for name, values in bounds.items() if name not in forbidden},
        "forbid": forbidden,
        "constraints": random.sample(CONSTRAINTS, random.choice((0, 0, 1))),
    }
    groups = request["cluster"]["groups"]
    if len(groups) > 1:
        limits["constraints"] += [random.choice(_of_groups(groups[0]["gpu"]))]
    return parse_problem(accepted({**request, "search": {**request["search"], **limits}}))


def _of_groups(name: str) -> tuple[str, ...]:
    return (
        f"stages('{name}') >= 1", f"layers('{name}') % 2 == 0", f"first('{name}')", f"not last('{name}')",
        f"gpus('{name}') <= 4 or idle_nodes('{name}') == 0", f"last('{name}') => pp >= 2",
    )  # fmt: skip


def outcome(at: int, case: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a request's space that the rules and the check leave."""
    problem = limited(at, case["request"])
    space = sampled_space(problem, wide=at % 3 == 0, legal_only=False)
    rows = space.columns
    broken = {rule.name: int((space.masks >> bit & 1).sum()) for bit, rule in enumerate(space.rules)}
    random = Random(at)
    odd = _odd_rows(random)
    masks = violation_masks(space.rules, odd)
    profile = default_profile(problem.cluster, problem.priced_as)
    whole = enumerate_space(problem, legal_only=True)
    configs = [_config(problem, odd, random.randrange(ODD)) for _ in range(CHECKED)]
    for some in (rows, _some(whole, random)):
        configs += [
            _config(problem, some, random.randrange(len(some))) for _ in range(CHECKED) if len(some)
        ]
    configs += [configuration_from_json(one) for one in case["configurations"]]
    configs += [_changed(random, one) for one in configs[CHECKED:] for _ in range(CHANGES)]
    return {
        "rows": len(rows),
        "legal": whole.num_legal,
        "whole": of_whole(problem, whole),
        "sums": _sums(rows),
        "broken": {name: count for name, count in broken.items() if count},
        "odd": [int((masks >> bit & 1).sum()) for bit in range(len(space.rules))],
        "reasons": [rule.reason for rule in space.rules] if at % TOGETHER == 0 else [],
        "faults": [sorted(faults) for faults in violations_of_all(problem, profile, configs)],
        "broken_by": [
            broken_rules(problem, one) for one in configs[::2] if is_a_row(one) and _divides(one)
        ],
        "overlap": [overlap_notes(problem, one) for one in configs],
        "others": {name: of_launcher(problem, name) for name in random.sample(launcher_names(), OTHERS)},
    }


def _divides(config: Configuration) -> bool:
    """Whether no size is 0: the rules divide by them."""
    return all(getattr(config, one.name) for one in fields(Columns) if one.name.endswith("_size"))


def of_whole(problem: Problem, space: Space) -> dict[str, Any]:
    """Return the expected figures of the space, and sums over its kinds."""
    found: dict[str, Any] = {
        "refuted": space.refuted,
        "estimated": [round(estimated_outer(problem, wide=wide)) for wide in (False, True)],
        "gpus": numbers_of_gpus(problem),
        "fewer": [len(fewer := _fewer_gpus(problem)), fewer[:4], fewer[-4:]],
        "most": [_row_limit(problem, _FEW, one_by_one) for one_by_one in (False, True)],
        "sampled": _of_sample(sampled_space(problem)),
        "limits": _limits(problem),
        "warnings": (
            *space.warnings,
            *host_warnings(problem),
            *unwritten(problem),
            *beyond_positions(problem),
        ),
    }
    if not isinstance(space.rows, Crossing) or not len(space.rows):
        return found
    few = space.rows.among(np.arange(0, len(space.rows.outer), max(len(space.rows.outer) // MOST_OUTER, 1)))
    index = np.arange(0, len(few), max(len(few) // ODD, 1))
    configs = [few.take(index).configuration(at, (problem.model.num_layers,)) for at in range(len(index))]
    assert {*index[:3].tolist()} <= {*rows_of(few, configs[:3])}
    return found | {
        "sums": _sums(few.take(index)),
        "lightest": _sums(few.take(lightest_of(few))),
        "alike": recompute_alike(few),
        "kinds": [_of_kinds(few, some) for some in (False, True)],
    }


def _of_sample(space: Space) -> list[Any]:
    assert space.legal.all()
    return [len(space.rows), space.refuted, space.whole, space.every]


def _limits(problem: Problem) -> list[list[str]]:
    """Return the names of the request's own rules, and of those left without every second of them."""
    names = [rule.name for rule in request_rules(problem)]
    return [names, [rule.name for rule in request_rules(without_limits(problem, names[::2]))]]


def _of_kinds(rows: Crossing, by_chunks: bool) -> dict[str, Any]:
    kinds = Kinds(crossing=rows, by_chunks=by_chunks)
    every = np.arange(len(kinds))
    assert sorted(kinds.rows(every).tolist()) == list(range(len(rows)))
    assert np.array_equal(np.bincount(kinds.of(np.arange(len(rows)))), kinds.sizes)
    return {
        "quickest": _sums(kinds.quickest(every)),
        "lightest": _sums(kinds.lightest(every)),
        "families": np.bincount(kinds.families.sizes).tolist(),
        "fill": round(float(kinds.least_fill.sum()), 6),
    }


def of_launcher(problem: Problem, name: str) -> list[str]:
    """The sentences with which a launcher refuses the request."""
    return [fault.sentence() for fault in problem_faults(problem, launcher_capabilities(name))]


def _sums(rows: Columns) -> dict[str, int]:
    """The sum of each column that is not 0 everywhere."""
    found = {one.name: int(getattr(rows, one.name).sum()) for one in fields(Columns)}
    return {name: value for name, value in found.items() if value}


def _some(space: Space, random: Random) -> Columns:
    """Legal rows, from anywhere in the space."""
    return space.rows.take(
        np.array(random.choices(range(len(space.rows)), k=ODD if len(space.rows) else 0))
    )


def _config(problem: Problem, rows: Columns, at: int) -> Configuration:
    """A row with its launcher's split."""
    found = rows.configuration(at, (problem.model.num_layers,))
    return replace(found, stage_layers=usual_split(problem, found))


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


def _changed(random: Random, config: Configuration) -> Configuration:
    """The configuration with one value that may not fit the others."""
    split, sizes = config.stage_layers, (0, 1, 2, 3, 8)
    values: dict[str, Any] = {one.name: random.choice(sizes) for one in fields(Configuration)}
    values = {name: value for name, value in values.items() if name.endswith(("_size", "zero_stage"))}
    values |= {
        "num_microbatches": random.choice((1, 2, 3, 2 * config.num_microbatches)),
        "sequence_parallel": not config.sequence_parallel,
        "recompute_granularity": random.choice(RECOMPUTE),
        "recompute_layers": random.choice((0, 1, 2, max(split), sum(split))),
        "stage_recompute_layers": random.choice(((1,) * len(split), (0,) * len(split), split, (1,))),
        "pipeline_schedule": random.choice(SCHEDULES),
        "context_parallel_mode": random.choice(CONTEXT_MODES),
        "rank_order": random.choice(RANK_ORDERS),
        "offload": random.choice(OFFLOAD),
        "stage_layers": random.choice(
            (split[:-1], (split[0] + 1, *split[1:]), (0, *split[1:], split[0]), (*split, 1))
        ),
    }
    if config.stage_groups:
        first, *rest = config.stage_groups
        others = (
            {"group": rest[-1].group if rest else "x"}, {"num_gpus": 3}, {"num_nodes": 0.7},
            {"tensor_parallel_size": 2 * first.tensor_parallel_size},
        )  # fmt: skip
        values |= {"stage_groups": (replace(first, **random.choice(others)), *rest)}
    name = random.choice(list(values))
    return replace(config, **{name: values[name]})


@pytest.mark.parametrize("first", some_of(range(0, REQUESTS, TOGETHER), each=4))
def test_every_rule_refuses_the_rows_that_were_reviewed(first: int) -> None:
    cases = json.loads(PRICES.read_text())[: 2 * REQUESTS : 2]
    found = [
        json.dumps(outcome(at, cases[at]), separators=(",", ":")) for at in range(first, first + TOGETHER)
    ]
    reviewed = OUTCOMES.read_text(encoding="utf-8").splitlines() if OUTCOMES.exists() else []
    if os.environ.get("UPDATE_GOLDEN"):
        reviewed[first : first + TOGETHER] = found
        OUTCOMES.write_text("\n".join(reviewed) + "\n", encoding="utf-8")
    some = reviewed[first : first + TOGETHER]
    assert [f"{a} -> {b}" for a, b in zip(some, found, strict=True) if a != b] == []
