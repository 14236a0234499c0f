"""A policy with adapters in a step: its memory by hand, its reference, and what swaps move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.service.post_training.request import read_post_training
from meshwright.solver.post_training.plan import plan_post_training, profile_by_default
from meshwright.solver.post_training.problem import PostTraining
from meshwright.solver.post_training.training import (
    TrainingPrice,
    passes_s,
    training_prices,
    training_problem,
)

REQUEST: dict[str, Any] = {
    "kind": "post_training", "model": "qwen3-8b", "launcher": "trl",
    "cluster": {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 1}]},
    "algorithm": {"prompts": 4, "responses": 8}, "lengths": {"prompt": 200, "mean": 800, "max": 2560},
    "adapters": {"rank": 32, "targets": ["all-linear"]},
    "training": {"pin": {"mbs": 1}},
}  # fmt: skip
# Qwen3-8B: 36 layers of width 4096, queries of 4096, keys and values of 1024 each, MLPs of 12288.
INPUTS_AND_OUTPUTS = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 12288)
TRAINED = 36 * 32 * INPUTS_AND_OUTPUTS
EVERY = 8_190_735_360
MEMORY = 81_559 * 2**20  # of an H100, as its driver reports it


def asked(**changes: object) -> PostTraining:
    return read_post_training({**REQUEST, **changes}).asked


def priced(question: PostTraining) -> TrainingPrice:
    (found,) = training_prices(question, profile_by_default)
    return found


def test_the_trained_weights_are_those_of_every_linear_layer() -> None:
    assert asked().trained_parameters == TRAINED == 87_293_952


def test_states_next_to_an_engine_are_frozen_weights_once_and_adapters_in_fp32() -> None:
    """2 bytes of each weight, 12 of an adapter's with its moments, 2 GB of a context, no second copy."""
    question = asked()
    with_reference, alone = priced(question), priced(replace(question, reference=False))
    assert with_reference.engine_share == alone.engine_share
    kept = (1.0 - with_reference.engine_share) * MEMORY
    assert kept == pytest.approx(2.0 * EVERY + 12.0 * TRAINED + 2e9, rel=1e-6)


def test_a_reference_beside_a_wholly_trained_policy_takes_the_bytes_that_it_is_loaded_in() -> None:
    question = asked(adapters=None, launcher="trl")  # which loads in fp32, and shards over two GPUs here
    half = {**REQUEST["algorithm"], "reference_precision": "bf16"}
    for each, changed in (
        (4, question), (2, asked(adapters=None, algorithm=half)),
        (0, replace(question, reference=False)), (0, asked()),
    ):  # fmt: skip
        free = training_problem(changed, "h100-sxm-80gb", 1, 2).cluster.groups[0].gpu.memory_bytes
        assert free == pytest.approx(MEMORY - each * EVERY / 2.0, abs=1.0)


def test_a_reference_is_one_pass_without_adapters() -> None:
    price = priced(asked())
    assert 0.0 < price.adapters_s < price.forward_s / 2.0
    assert passes_s(2, price) == pytest.approx(2.0 * price.forward_s - price.adapters_s)
    assert price.reference_s == 0.0


def test_an_engine_that_stays_awake_and_training_share_the_memory() -> None:
    asleep = plan_post_training(asked(asynchrony={"mode": "colocated"})).plans[0]
    awake = plan_post_training(asked(asynchrony={"mode": "colocated"}, rollout={"sleep": False})).plans[0]
    (engine,), seen = awake.rollout, awake.training.plan.prediction
    assert engine.memory_share * MEMORY + seen.peak_memory_bytes <= MEMORY
    assert asleep.step_s <= awake.step_s
