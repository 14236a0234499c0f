"""Placements of roles are the best of all that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from meshwright.solver.post_training.roles import (
    CriticPrice,
    EnginePrice,
    Placement,
    Prices,
    RewardPrice,
    placed,
)
from meshwright.solver.post_training.training import TrainingPrice
from tests.property.post_training_judge import Question, best_step, drawn, drawn_with_roles

S = 1e-3  # of a millisecond


def prices_of(question: Question) -> Prices:
    rows, number = question["training"], len(question["training"])
    scoring = question.get("scoring", [None] * number)
    training = [
        TrainingPrice(
            group=group, nodes=1, gpus=gpus, update_s=(side - passes) * S, forward_s=passes * S,
            swap_s=swap * S, log_sigma=0.1, plan=cast("Any", None), sequences=1,
            scoring_s=None if scores is None else scores * S, engine_share=room,
        )
        for (group, gpus, side, swap), passes, scores, room in zip(
            rows, question.get("passes", [0] * number), scoring, question["room"], strict=True
        )
    ]  # fmt: skip
    engines = [
        EnginePrice(
            group=group, tensor_parallel_size=size, memory_share=share, answers=answers, batches=batches,
            seconds=time * S, tail_s=0.0, running=1, cache_tokens=1,
        )
        for group, size, share, answers, batches, time in question["engines"]
    ]  # fmt: skip
    return Prices(
        training=training, engines=engines, gpus=question["gpus"], samples=question["samples"], passes=1,
        refit_s=question["refit"] * S, other_s=0.0, ways=question["ways"],
        colocated_share=question["share"],
        rewards=[
            RewardPrice(group=group, nodes=1, gpus=gpus, tensor_parallel_size=1, seconds=time * S)
            for group, gpus, time in question.get("rewards", [])
        ],
        critics=[
            CriticPrice(group=group, nodes=1, gpus=gpus, values_s=values * S, update_s=update * S, of=at)
            for group, gpus, values, update, at in question.get("critics", [])
        ],
        has_reward_model="rewards" in question, critic=float("critics" in question),
        critic_takes_turns=question.get("critic_turns", True),
        scores_as_answers_end=question.get("as_they_end", False),
    )  # fmt: skip


@pytest.mark.parametrize("question", [*map(drawn, range(10)), *map(drawn_with_roles, range(10))])
def test_no_placement_of_a_small_pool_has_a_shorter_step(question: Question) -> None:
    found, best = placed(prices_of(question)), best_step(question)
    assert (None if found is None else round(found.step_s / S)) == best
    assert found is None or found.proved


KEPT: list[tuple[str, Callable[[Placement, Prices], bool]]] = [
    ("rollout.num_gpus <= 4", lambda one, prices: _gpus(one, prices) <= 4),
    ("rollout.engines % 2 == 0", lambda one, _: sum(count for _, count in one.engines) % 2 == 0),
    ("rollout.tp >= 2", lambda one, prices: min(prices.engines[at].tensor_parallel_size
                                                for at, _ in one.engines) >= 2),
    ("mode == 'async' => steps_off == 2", lambda one, _: one.mode != "async" or one.steps_off == 2),
    ("rollout.num_gpus > training.num_gpus",
     lambda one, prices: _gpus(one, prices) > prices.training[one.training].gpus),
    ("training.gpus('g1') == 0", lambda one, prices: prices.training[one.training].group != "g1"),
    ("rollout.num_nodes == 1", lambda one, prices: _gpus(one, prices) <= 4),
]  # fmt: skip


def _gpus(one: Placement, prices: Prices) -> int:
    return sum(prices.engines[at].tensor_parallel_size * count for at, count in one.engines)


@pytest.mark.parametrize(("text", "keeps"), KEPT)
def test_a_constraint_is_kept_and_costs_a_step_only_where_the_best_breaks_it(
    text: str, keeps: Callable[[Placement, Prices], bool]
) -> None:
    """Both ways: what is found keeps it, and where the best placement keeps it the step stays."""
    for seed in range(4):
        free = prices_of(drawn(seed))
        free = replace(free, gpus_per_node=dict.fromkeys(free.gpus, 4))
        best, found = placed(free), placed(replace(free, constraints=(text,)))
        if best is None:
            continue
        assert found is None or keeps(found, free)
        assert found is None or found.step_s >= best.step_s
        if keeps(best, free):
            assert found is not None
            assert found.step_s == best.step_s


def test_a_forbidden_placement_is_not_found_again() -> None:
    prices = prices_of(drawn(0))
    first = placed(prices)
    assert first is not None
    second = placed(prices, without=[first])
    assert second is not None
    assert second.signature(prices) != first.signature(prices)
    assert second.step_s >= first.step_s
