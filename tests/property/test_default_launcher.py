"""A request that names no launcher gets one that can express it, if any can.

Adapters, precisions, optimizers, chips, models and pins are drawn; every launcher is asked by name.
``MESHWRIGHT_TEST_DRAWS=50`` draws 1,200 requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from meshwright.profiles.adapters import FUSED_TARGETS, SINGLE_TARGETS
from meshwright.profiles.capabilities import launcher_capabilities, launcher_names
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import gpu_names, model_names
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.configuration import RECOMPUTE, SCHEDULES
from meshwright.solver.planner.least_memory import least_memory
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import problem_faults
from tests.draws import draws

BASES = ("bf16", "fp32", "int8", "nf4", "nf4-double")


def drawn(rng: random.Random) -> dict[str, Any]:
    """A request without a launcher."""
    adapters = rng.random() < 0.5
    targets = rng.choice(
        [None, ["all-linear"], ["q_proj", "v_proj"], [*FUSED_TARGETS], list(SINGLE_TARGETS[:4])]
    )
    workload: dict[str, Any] = {
        "global_batch_size": 64,
        "seq_length": 2048,
        "precision": rng.choice(["bf16"] * 9 + ["fp16", "fp8", "fp32"]),
        "optimizer": rng.choice(["adamw"] * 20 + sorted(OPTIMIZERS)),
        "lora_rank": rng.choice([8, 64]) * adapters,
    }
    workload |= {"lora_targets": targets} if adapters and targets else {}
    workload |= {"base_precision": rng.choice(BASES)} if adapters else {}
    if rng.random() < 0.15:
        batching = rng.choice(["packing", "padding", "padding_to_longest"])
        workload["lengths"] = {"histogram": [{"length": 512, "share": 1.0}], "batching": batching}
    pins: list[dict[str, Any]] = [
        *[{}] * 12, {"zero_stage": rng.randint(0, 3)}, {"pipeline_schedule": rng.choice(SCHEDULES)},
        {"recompute_granularity": rng.choice(RECOMPUTE)}, {"pipeline_parallel_size": 2, "zero_stage": 3},
    ]  # fmt: skip
    groups = [
        {
            "gpu": rng.choice(gpu_names()),
            "num_nodes": rng.choice([1, 1, 2, 4]),
            "gpus_per_node": rng.choice([1, 8]),
        }
        for _ in range(rng.choice([1, 1, 1, 2]))
    ]
    return {
        "model": {"name": rng.choice(model_names())},
        "cluster": {"groups": groups},
        "workload": workload,
        "search": {
            "pin": rng.choice(pins),
            "allow": rng.sample(
                ["offload", "adamw-8bit", "switches", "context_parallel_mode"], rng.randint(0, 1)
            ),
        },
    }


def parsed(raw: dict[str, Any], launcher: str | None = None) -> Problem | InvalidProblemError:
    try:
        return parse_problem(raw if launcher is None else {**raw, "launcher": launcher})
    except InvalidProblemError as fault:
        return fault


def able_by_name(raw: dict[str, Any]) -> Iterator[str]:
    """Yield the launchers that take the request where they are named, and write files for it."""
    for name in launcher_names():
        found = parsed(raw, name)
        if not isinstance(found, Problem) or found.launcher != name:
            continue
        if not list(problem_faults(found, launcher_capabilities(name))):
            yield name


@pytest.mark.parametrize("seed", range(draws(8, of_more=24)))
def test_the_default_launcher_can_express_what_any_launcher_can(seed: int) -> None:
    raw = drawn(random.Random(seed))
    able, found = list(able_by_name(raw)), parsed(raw)
    if isinstance(found, Problem):
        assert found.launcher in able
        assert found.launcher != "none" or able == ["none"], "it writes no files"
        assert parsed(problem_to_mapping(found)) == found
    else:
        assert not able, found
        named = " ".join(one.message for one in found.errors)
        of_each = [parsed(raw, name) for name in launcher_names()]
        lacking = {
            one.pointer for fault in of_each if not isinstance(fault, Problem) for one in fault.errors
        }
        assert {one.pointer for one in found.errors} <= lacking, named


@pytest.mark.parametrize("seed", range(draws(3, of_more=6)))
def test_a_refusal_of_a_named_launcher_names_every_one_that_can(seed: int) -> None:
    raw = drawn(random.Random(1000 + seed))
    able = {*able_by_name(raw)} - {"none"}
    for name in ("megatron-lm", "trl", "maxtext"):
        found = parsed(raw, name)
        if isinstance(found, InvalidProblemError) and able:
            (tip,) = [one.tip for one in found.errors if one.tip]
            assert tip.removeprefix("--launcher ") in able
            said = found.errors[0].allowed or ""
            assert all(one in said for one in able), (name, said)


def has_room(problem: Problem) -> bool:
    need = least_memory(problem)
    return need is not None and need.fits


@pytest.mark.parametrize("seed", range(draws(4, of_more=8)))
def test_the_default_launcher_has_room_where_another_has_whatever_is_allowed(seed: int) -> None:
    rng = random.Random(seed)
    raw = {
        "model": {"name": rng.choice(["llama-3.2-1b", "qwen3-0.6b", "qwen3-1.7b", "gemma-2-2b"])},
        "cluster": {"gpu": rng.choice(["rtx-3060", "rtx-4090", "l4", "t4"]), "gpus_per_node": 1},
        "workload": {"global_batch_size": rng.choice([8, 33]), "seq_length": rng.choice([1000, 3000])},
        "search": {"allow": [rng.choice(["loss_kernel", "offload", "switches", "adamw-8bit"])]},
    }
    own = parsed(raw)
    if isinstance(own, Problem) and not has_room(own):
        others = {name: parsed(raw, name) for name in able_by_name(raw)}
        roomy = [name for name, one in others.items() if isinstance(one, Problem) and has_room(one)]
        assert not roomy, (raw, own.launcher)


def fastest_s(raw: Mapping[str, Any]) -> float | None:
    problem = parse_problem(raw)
    answer = ask(problem, default_profile(problem.cluster, problem.priced_as))
    return answer.plans[0].prediction.step_time_s if answer.plans else None


@pytest.mark.parametrize("seed", range(draws(1, of_more=4)))
def test_no_permission_makes_the_plan_slower(seed: int) -> None:
    """Not even one that another launcher than the default one has alone."""
    rng = random.Random(seed)
    words = ["loss_kernel", "offload", "adamw-8bit", "adamw-bf16"]
    raw = {
        "model": {"name": rng.choice(["qwen3-4b", "qwen3-0.6b", "llama-3.2-1b", "gemma-2-2b"])},
        "cluster": {
            "gpu": rng.choice(["a100-sxm-40gb", "rtx-4090", "h100-sxm-80gb"]),
            "gpus_per_node": rng.choice([1, 2]),
        },
        "workload": {"global_batch_size": rng.choice([13, 32]), "seq_length": 2048},
    }
    options = {"top_k": 1, "certify": "none"}
    plain_s = fastest_s({**raw, "search": options})
    allow = rng.sample(words, rng.choice([1, 2]))
    allowed_s = fastest_s({**raw, "search": {**options, "allow": allow}})
    if plain_s is not None:
        assert allowed_s is not None, (raw, allow)
        assert allowed_s <= plain_s * (1 + 1e-9), (raw, allow)
