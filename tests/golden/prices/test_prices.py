"""The price of drawn configurations, term by term; UPDATE_GOLDEN=1 writes the prices anew.

``cases.json`` has requests of the whole schema with legal configurations, drawn by ``drawing.py`` over all
kinds of layers and most options. A change of a formula changes a number here, and the diff shows which.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import configuration_from_json
from meshwright.solver.predict import predict_all
from tests.golden.answers.test_answers import same, values_of

CASES = Path(__file__).with_name("cases.json")


def priced(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The prices of a case's configurations."""
    problem = parse_problem(case["request"])
    profile = default_profile(problem.cluster, problem.priced_as)
    configs = [configuration_from_json(one) for one in case["configurations"]]
    return [terms(one) for one in predict_all(problem, profile, configs)]


def terms(found: Prediction) -> dict[str, Any]:
    """Seconds of each cause, the interval, and bytes of each part of each stage."""
    return {
        "seconds": {name: value for name, value in found.time_breakdown_s.items() if value},
        "high_s": found.step_time_high_s,
        "bytes": [
            {name: value for name, value in one.memory_bytes.items() if value} for one in found.stages
        ],
    }


def written(cases: list[dict[str, Any]]) -> str:
    """The cases, a line for each request and each of its configurations."""
    lines = [json.dumps(case, separators=(",", ":")) for case in cases]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def test_every_term_of_every_price_is_the_one_that_was_reviewed() -> None:
    cases = json.loads(CASES.read_text())
    found = [{**case, "prices": priced(case)} for case in cases]
    if os.environ.get("UPDATE_GOLDEN"):
        CASES.write_text(written(found))
        cases = found
    reviewed, prices = (
        [dict(values_of(case["prices"], case["name"])) for case in some] for some in (cases, found)
    )
    assert [
        f"{at}: {before.get(at)} -> {value}"
        for before, now in zip(reviewed, prices, strict=True)
        for at, value in now.items()
        if not same(value, before.get(at))
    ] == []
    assert [list(before) for before in reviewed] == [list(now) for now in prices]
