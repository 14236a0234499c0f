"""The price of drawn configurations, term by term; UPDATE_GOLDEN=1 writes the prices anew.

``cases.json`` has requests of the whole schema with legal configurations, drawn by ``drawing.py`` over all
kinds of layers and most options. A change of a formula changes a number here, and the diff shows which.
A quarter of them is priced every day, all of them by ``make fuzz``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Columns, Configuration, configuration_from_json
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.objective import outlooks_of, weighing_of
from meshwright.solver.cost.price import price_memory, shared_passes
from meshwright.solver.predict import predicted
from meshwright.solver.problem import Problem
from tests.draws import some_of
from tests.golden.answers.test_answers import same, values_of

CASES = Path(__file__).with_name("cases.json")
REQUESTS, TOGETHER = 260, 10


def priced(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The prices of a case's configurations."""
    problem = parse_problem(case["request"])
    profile = default_profile(problem.cluster, problem.priced_as)
    configs = [configuration_from_json(one) for one in case["configurations"]]
    evaluations = evaluate(problem, profile, configs, with_spread=True)
    found = [predicted(problem, one) for one in evaluations]
    runs = outlooks_of(problem, profile, configs, found)
    return [
        terms(one) | {"closed_form_s": evaluation.objective_s, "run": stated(asdict(run))} | searched
        for evaluation, one, run, searched in zip(
            evaluations, found, runs, as_searched(problem, profile, configs), strict=True
        )
    ]


def terms(found: Prediction) -> dict[str, Any]:
    """Seconds of each cause, the interval, and bytes of each part of each stage."""
    return {
        "seconds": stated(found.time_breakdown_s),
        "high_s": found.step_time_high_s,
        "bytes": [stated(one.memory_bytes) for one in found.stages],
    }


def stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not 0 or unknown."""
    return {name: value for name, value in values.items() if value}


def as_searched(
    problem: Problem, profile: Profile, configs: list[Configuration]
) -> list[dict[str, dict[str, float]]]:
    """The numbers that a search prunes and ranks rows by; none of configurations on node groups."""
    if any(one.is_placed for one in configs):
        return [{}] * len(configs)
    rows = Columns.of(configs)
    weighing, memory = weighing_of(problem, profile, rows), price_memory(problem, rows, profile)
    (shared,) = shared_passes([problem], rows, profile)
    each = rows.num_microbatches / rows.pipeline_parallel_size
    numbers = {
        "scale": weighing.scale,
        "offset_s": weighing.offset,
        "most_s": np.where(np.isinf(weighing.most_s), 0.0, weighing.most_s),
        "least_s": shared.straggler * each * shared.whole_s + shared.fixed_s,
        "forward_s": shared.forward_s,
        "backward_s": shared.backward_s,
        "states_bytes": (memory.weights_bytes + memory.optimizer_bytes).sum(axis=1),
    }
    return [
        {"search": stated({name: float(values[row]) for name, values in numbers.items()})}
        for row in range(len(configs))
    ]


def written(cases: list[dict[str, Any]]) -> str:
    """The cases, a line for each request and each of its configurations."""
    lines = [json.dumps(case, separators=(",", ":")) for case in cases]
    return "[\n" + ",\n".join(lines) + "\n]\n"


@pytest.mark.parametrize("first", some_of(range(0, REQUESTS, TOGETHER), each=4))
def test_every_term_of_every_price_is_the_one_that_was_reviewed(first: int) -> None:
    cases = json.loads(CASES.read_text())
    some = cases[first : first + TOGETHER]
    found = [{**case, "prices": priced(case)} for case in some]
    if os.environ.get("UPDATE_GOLDEN"):
        cases[first : first + TOGETHER] = some = found
        CASES.write_text(written(cases))
    reviewed, prices = (
        [dict(values_of(case["prices"], case["name"])) for case in each] for each in (some, found)
    )
    assert [
        f"{at}: {before.get(at)} -> {value}"
        for before, now in zip(reviewed, prices, strict=True)
        for at, value in now.items()
        if not same(value, before.get(at))
    ] == []
    assert [list(before) for before in reviewed] == [list(now) for now in prices]


def test_every_case_is_compared() -> None:
    assert len(json.loads(CASES.read_text())) == REQUESTS
