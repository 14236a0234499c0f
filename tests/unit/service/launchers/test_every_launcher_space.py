"""The search and every exporter agree: whatever row is proposed for a launcher can be exported."""

from __future__ import annotations

import random

import pytest

from meshwright.profiles.capabilities import launcher_capabilities, model_facts
from meshwright.profiles.library import find_model
from meshwright.service.launchers.registry import export, launcher_names
from meshwright.solver.space.launcher_rules import problem_faults
from tests.launcher_plans import problem_of, random_targets

# One of each kind: plain, biases and learned positions, experts, wide heads, latent attention.
MODELS = ("llama-3.1-8b", "gpt-3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")


@pytest.mark.parametrize("launcher", launcher_names())
@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_the_search_is_exported(launcher: str, name: str) -> None:
    problem = problem_of(launcher, find_model(name), seq_length=2048)
    targets = list(random_targets(problem, 8, random.Random(f"{launcher} {name}")))
    trainable = not list(problem_faults(problem, launcher_capabilities(launcher)))
    assert bool(targets) == trainable, sorted(model_facts(problem.model))
    for found in targets:
        bundle = export(found.plan, problem, launcher)
        assert {"launch.sh", "launch.sbatch"} < bundle.files.keys()
        world = f"World size {found.config.num_gpus}:"
        assert all(world in text for text in bundle.files.values())
        assert bundle == export(found.plan, problem, launcher), "the same plan gives the same bytes"
