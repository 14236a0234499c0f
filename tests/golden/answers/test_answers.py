"""Whole answers to forty-odd requests, byte for byte; UPDATE_GOLDEN=1 writes them anew.

Only what depends on the machine or the release is left out: ``elapsed_s`` and ``versions``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.service.cli.calibrate import profile_for
from meshwright.service.library import answer_document
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask

FOLDER = Path(__file__).parent
REQUESTS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "requests.yaml").read_text())
LEFT_OUT = ("elapsed_s", "versions")


def answer_to(request: dict[str, Any]) -> str:
    """The answer as the command line prints it, one list element a line."""
    problem = parse_problem(request)
    document = answer_document(ask(problem, profile_for(problem, None)), problem)
    return json.dumps({k: v for k, v in document.items() if k not in LEFT_OUT}, indent=1) + "\n"


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_is_the_one_that_was_reviewed(name: str) -> None:
    path = FOLDER / f"{name}.json"
    answer = answer_to(REQUESTS[name])
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(answer)
    assert answer == path.read_text()


def test_no_answer_is_kept_without_its_request() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(REQUESTS)
