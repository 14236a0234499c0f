"""What the search proposes for a launcher, its exporter takes: also adapters, optimizers, fp8, offload."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from profiles.capabilities import launcher_capabilities
from profiles.frameworks import OPTION_WORDS
from profiles.library import find_model
from profiles.optimizers import OPTIMIZERS
from service.launchers.registry import export, launcher_names
from solver.launcher_own import problem_faults
from solver.problem import Problem
from tests.launcher_plans import problem_of, random_targets

MODELS = ("llama-3.1-8b", "mixtral-8x7b")


# Of GPUs with 8-bit units; requests for others are refused before any launcher is asked.
RECIPES = [name for name in OPTION_WORDS["precision_recipe"] if name not in ("none", "nvfp4")]
VARIANTS = [
    *({"optimizer": name, "precision": kind} for name in OPTIMIZERS for kind in ("bf16", "fp16", "fp8")),
    *({"precision": "fp8", "framework_options": {"precision_recipe": name}} for name in RECIPES),
    *({"lora_rank": 16, "precision": kind} for kind in ("bf16", "fp8")),
]


def problems(launcher: str) -> Iterator[Problem]:
    """Every optimizer, precision and recipe; whole models and adapters."""
    for model, variant in itertools.product(MODELS, VARIANTS):
        plain = problem_of(launcher, find_model(model), num_nodes=1, batch=32)
        workload = replace(plain.workload, **variant)  # type: ignore[arg-type]
        yield replace(plain, workload=workload, options=replace(plain.options, allow=("offload",)))


@pytest.mark.parametrize("launcher", launcher_names())
def test_a_plan_found_for_a_launcher_can_always_be_exported_for_it(launcher: str) -> None:
    able = launcher_capabilities(launcher)
    tried = 0
    for problem in problems(launcher):
        targets = list(random_targets(problem, 4, random.Random(launcher)))
        if list(problem_faults(problem, able)):
            assert not targets, "what cannot be trained has no legal row"
        for found in targets:
            assert export(found.plan, problem, launcher).files
            tried += 1
    assert tried >= 4
