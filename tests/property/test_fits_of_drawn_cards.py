"""Rows of ``fits``, each against the plan of its own command."""

from __future__ import annotations

import json
import random
import shlex

import pytest
from typer.testing import CliRunner

from meshwright.service.cli.main import app
from meshwright.service.methods import what_fits
from tests.draws import draws

MODELS = ("qwen3-0.6b", "llama-3.2-1b", "gemma-3-4b", "qwen3-1.7b")
CARDS = ("rtx-3060", "rtx-4060-ti-16gb", "rtx-4090", "l4")


@pytest.mark.parametrize("seed", range(draws(3)))
def test_a_row_of_fits_is_what_its_command_answers(seed: int) -> None:
    rng = random.Random(seed)
    model, card, gpus = rng.choice(MODELS), rng.choice(CARDS), rng.choice([1, 2])
    request = {
        "model": {"name": model},
        "cluster": {"gpu": card, "num_gpus": gpus},
        "workload": {"seq_length": rng.choice([1024, 3000]), "global_batch_size": 16 * gpus},
    }
    able = [row for row in what_fits(request) if row.fit.verdict != "no"]
    for row in rng.sample(able, min(4, len(able))):
        words = shlex.split(row.command)[1:]
        at = words.index("--save-dir")
        run = CliRunner().invoke(app, [*words[:at], *words[at + 2 :], "--json"])
        assert run.exit_code == 0, (row.command, run.output)
        first = json.loads(run.stdout)["plans"][0]["prediction"]
        assert row.fit.prediction.step_time_s == pytest.approx(first["step_time_s"], rel=1e-6), row.command
