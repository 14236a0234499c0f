"""What the search proposes for a launcher its exporter takes: adapters, optimizers, fp8, offload, mixed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from meshwright.launchers.registry import export, launcher_names
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.frameworks import OPTION_WORDS
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import (
    CONTEXT_MODES,
    HIERARCHICAL,
    OFFLOAD,
    RANK_ORDERS,
    RECOMPUTE,
    SCHEDULES,
)
from meshwright.solver.problem import Problem, can_start
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.launcher_rules import problem_faults
from tests.draws import TIMES, draws
from tests.launchers.plans import problem_of, random_targets, target_of_row
from tests.problems.launched_requests import launched_problems

MODELS = ("llama-3-8b", "mixtral-8x7b")


# Of GPUs that have their units (mxfp8, nvfp4: Blackwell); requests for others are refused before that.
RECIPES = [name for name in OPTION_WORDS["precision_recipe"] if name != "none"]
VARIANTS = [
    *({"optimizer": name, "precision": kind} for name in OPTIMIZERS for kind in ("bf16", "fp16", "fp8")),
    *({"precision": "fp8", "framework_options": {"precision_recipe": name}} for name in RECIPES),
    *({"lora_rank": 16, "precision": kind} for kind in ("bf16", "fp8")),
]


def problems(launcher: str) -> Iterator[Problem]:
    """Every optimizer, precision and recipe; whole models and adapters.

    ``make test``: the first variant and a quarter of the others, each with one model.
    ``make fuzz``: all, with both.
    """
    some = [VARIANTS[0], *VARIANTS[1 + launcher_names().index(launcher) % 4 :: 4]]
    pairs = [*itertools.product(VARIANTS, MODELS)] if TIMES > 1 else zip(some, itertools.cycle(MODELS))
    for variant, model in pairs:
        plain = problem_of(launcher, find_model(model), num_nodes=1, batch=32)
        workload = replace(plain.workload, **variant)  # type: ignore[arg-type]
        options = replace(plain.options, allow=("offload",), num_gpus=(8,))
        blocks = workload.framework_options.get("precision_recipe") in ("mxfp8", "nvfp4")
        cluster = find_cluster("dgx-b200", num_nodes=1) if blocks else plain.cluster
        yield replace(plain, cluster=cluster, workload=workload, options=options)


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


@pytest.mark.parametrize("launcher", launcher_names())
def test_what_is_planned_of_a_drawn_request_is_exported(launcher: str) -> None:
    rng = random.Random(f"launched {launcher}")
    for problem in launched_problems(launcher, rng, draws(20)):
        for found in random_targets(problem, 3, rng):
            if can_start(problem, found.config.num_gpus):  # an answer warns of other numbers of GPUs
                assert export(found.plan, problem, problem.launcher).files


WORDS = {
    "pipeline_schedule": SCHEDULES, "recompute": RECOMPUTE, "offload": OFFLOAD, "rank_order": RANK_ORDERS,
    "context_parallel_mode": CONTEXT_MODES, "zero_stage": (0, 1, 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("launcher", launcher_names())
def test_a_row_of_every_value_that_a_launcher_offers_is_exported(launcher: str) -> None:
    able, drawn = launcher_capabilities(launcher), {name: set[object]() for name in WORDS}
    questions = [(model, 4096) for model in MODELS]
    if HIERARCHICAL.keys() & {*able.context_parallel_modes}:
        questions.append(("llama-2-7b", 131_072))  # 32 heads, on all of 32 context-parallel ranks
    for model, seq_length in questions:
        plain = problem_of(launcher, find_model(model), num_nodes=4, seq_length=seq_length)
        named = {"offload_modules": "core_attn"} if able.offloads_modules else {}
        workload = replace(plain.workload, framework_options={**plain.workload.framework_options, **named})
        allow = ("offload", "context_parallel_mode")
        problem = replace(plain, workload=workload, options=replace(plain.options, allow=allow))
        if list(problem_faults(problem, able)):
            continue
        columns = enumerate_space(problem, legal_only=True).columns
        for name, words in WORDS.items():
            values = getattr(columns, name)
            for value in np.unique(values):
                row = int(np.flatnonzero(values == value)[-1])
                found = target_of_row(problem, columns, row, random.Random(row))
                assert export(found.plan, problem, launcher).files
                drawn[name].add(words[value])
    sharded = "zero_stage > 0" in (*able.constraints, *dict(able.optimizer_constraints).get("adamw", ()))
    offered = {
        "pipeline_schedule": able.schedules, "recompute": able.recompute, "offload": able.offload,
        "rank_order": able.rank_orders, "context_parallel_mode": able.context_parallel_modes,
        "zero_stage": set(able.zero_stages) - ({0} if sharded else set()),
    }  # fmt: skip
    assert drawn == {name: set(values) for name, values in offered.items()}


@pytest.mark.parametrize("launcher", launcher_names())
def test_what_is_found_on_a_mixed_cluster_is_exported_with_the_order_of_its_nodes(launcher: str) -> None:
    plain = problem_of(launcher, find_model("llama-3-8b"), num_nodes=1, batch=32)
    (first,), (second,) = plain.cluster.groups, find_cluster("dgx-a100", num_nodes=1).groups
    mixed = replace(plain, cluster=replace(plain.cluster, groups=(first, second)))
    pin: dict[str, int | str] = {"micro_batch_size": 1}
    options = replace(mixed.options, certify="none", top_k=1, pin=pin)
    problem = replace(mixed, options=options)
    answer = search(problem, default_profile(problem.cluster, launcher))
    for plan in answer.plans:
        bundle = export(plan, problem, launcher)
        if launcher_capabilities(launcher).places_stages:
            hosts = [
                line.split()[-1] for line in bundle.files["hostfile.txt"].splitlines() if "slots=" in line
            ]
            used = len({one.group for one in plan.config.stage_groups}) or 2
            assert len(set(hosts)) == used, bundle.files["hostfile.txt"]
            continue
        assert not plan.config.is_placed
        if plan.config.num_gpus > first.gpus_per_node:
            assert any("like the cluster's groups" in warning for warning in bundle.warnings)
            assert "HOSTS_FILE:?" in bundle.files["launch.sbatch"]
    assert answer.plans
