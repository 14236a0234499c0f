"""Rows of ``fits``, each against the plan of its own command."""

from __future__ import annotations

import json
import random
import shlex
from functools import cache

import pytest
from typer.testing import CliRunner

from meshwright.service.cli.main import app
from meshwright.service.methods import FitRow, what_fits, with_speeds
from meshwright.solver.planner.fits import least_steps_s
from tests.draws import TIMES, draws
from tests.served.commands import without_reasons

MODELS = ("qwen3-0.6b", "llama-3.2-1b", "gemma-3-4b", "qwen3-1.7b")
CARDS = ("rtx-3060", "rtx-4060-ti-16gb", "rtx-4090", "l4")


ASKED = 2 if TIMES == 1 else 4  # commands of a drawn request


@cache
def drawn(seed: int) -> list[FitRow]:
    """Return the rows of a drawn request, without speeds."""
    rng = random.Random(seed)
    model, card, gpus = rng.choice(MODELS), rng.choice(CARDS), rng.choice([1, 2, 4])
    request = {
        "model": {"name": model},
        "cluster": {"gpu": card, "num_gpus": gpus},
        "workload": {"seq_length": rng.choice([1024, 3000]), "global_batch_size": 16 * gpus},
    }
    return what_fits(request)


@cache
def able(seed: int, most: int | None = None) -> list[FitRow]:
    """Return the rows that train, with the speeds of all or of the fastest of each method."""
    return [row for row in with_speeds(drawn(seed), most) if row.fit.verdict != "no"]


@pytest.mark.parametrize("seed", range(draws(1, of_more=3)))
def test_a_row_of_fits_is_what_its_command_answers(seed: int) -> None:
    for title in {row.method.title for row in able(seed)}:  # its first needs no plan of the others
        every, first = (
            next(row for row in some if row.method.title == title) for some in (able(seed), able(seed, 1))
        )
        assert (first.launcher, first.fit) == (every.launcher, every.fit)
    for row in random.Random(seed).sample(able(seed), min(ASKED, len(able(seed)))):
        words = shlex.split(row.command)[1:]
        at = words.index("--save-dir")
        with without_reasons():
            run = CliRunner().invoke(app, [*words[:at], *words[at + 2 :], "--json"])
        assert run.exit_code == 0, (row.command, run.output)
        first = json.loads(run.stdout)["plans"][0]["prediction"]
        assert row.fit.prediction.step_time_s == pytest.approx(first["step_time_s"], rel=1e-6), row.command


@pytest.mark.parametrize("seed", range(draws(1, of_more=3)))
def test_no_plan_is_faster_than_the_bound_of_its_question(seed: int) -> None:
    bounds_s = least_steps_s([row.problem for row in able(seed)])
    for row, bound_s in zip(able(seed), bounds_s, strict=True):
        assert row.fit.prediction.step_time_s >= bound_s, row.command
