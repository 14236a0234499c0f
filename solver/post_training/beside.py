"""A reward model and a critic: what they take on GPUs of their own, and a reward model in turn.

A reward model reads each answer with its prompt once: prefill of an engine, whatever program runs it. It
needs room for its weights and one longest answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.model import ModelSpec
from meshwright.solver.post_training.engines import COLOCATED_SHARE, MEMORY_SHARES, Engine, sizes_of
from meshwright.solver.post_training.lengths import AnswerLengths
from meshwright.solver.post_training.problem import PostTraining
from meshwright.solver.post_training.roles import CriticPrice, RewardPrice
from meshwright.solver.post_training.training import HOST_BYTES_PER_S, TrainingPrice, counts_of


def reward_prices(asked: PostTraining, lengths: AnswerLengths) -> Iterator[RewardPrice]:
    """Yield the reward model on numbers of GPUs of its own, each with its fastest size of a copy."""
    if asked.reward_model is None or "own" not in asked.places.reward:
        return
    for name, group in asked.groups.items():
        for nodes, each in counts_of(group):
            if asked.pins.reward_nodes in (None, nodes):
                found = _fastest(asked, group, nodes * each, max(MEMORY_SHARES), lengths)
                if found is not None:
                    engine, seconds = found
                    yield RewardPrice(
                        group=name, nodes=nodes, gpus=nodes * each, seconds=seconds,
                        tensor_parallel_size=engine.tensor_parallel_size,
                    )  # fmt: skip


def with_scoring(
    asked: PostTraining, price: TrainingPrice, lengths: AnswerLengths, factor: float
) -> TrainingPrice:
    """Return a training price with the seconds of a reward model in turn on its GPUs, in and out.

    ``factor``: what measured steps correct these seconds by.
    """
    if asked.reward_model is None or "turn" not in asked.places.reward or asked.pins.reward_nodes:
        return price
    found = _fastest(asked, asked.groups[price.group], price.gpus, COLOCATED_SHARE, lengths)
    if found is None:
        return price
    engine, seconds = found
    return replace(
        price, scoring_s=factor * (seconds + 2.0 * engine.weight_bytes / HOST_BYTES_PER_S),
        scoring_tp=engine.tensor_parallel_size,
    )  # fmt: skip


def critic_prices(asked: PostTraining, training: list[TrainingPrice]) -> Iterator[CriticPrice]:
    """Yield a critic of the policy's size on as many GPUs of its own, with the policy's layout."""
    if asked.has_critic and "own" in asked.places.critic:
        for at, one in enumerate(training):
            yield CriticPrice(
                group=one.group, nodes=one.nodes, gpus=one.gpus, values_s=one.forward_s,
                update_s=one.update_s, of=at,
            )  # fmt: skip


def reward_engine(
    asked: PostTraining, model: ModelSpec, group: NodeGroup, size: int, share: float
) -> Engine:
    """Return one copy of the reward model ``model``."""
    return Engine(
        kind=asked.engine, model=model, group=group, tensor_parallel_size=size, memory_share=share
    )


def _fastest(
    asked: PostTraining, group: NodeGroup, gpus: int, share: float, lengths: AnswerLengths
) -> tuple[Engine, float] | None:
    """Return the engine and seconds of the fastest size that divides the GPUs; None: it fits in none."""
    model, pinned = asked.reward_model, asked.pins.reward_tensor_parallel_size
    found, answers = list[tuple[float, int, Engine]](), lengths.answers + lengths.prompt
    mean, attended = float(answers.mean()), float((answers**2).mean() / answers.mean())
    for size in [] if model is None else sizes_of(model, group):
        if gpus % size or pinned not in (None, size):
            continue
        engine = reward_engine(asked, cast("ModelSpec", model), group, size, share)
        if engine.cache_tokens >= lengths.longest:
            busiest = -(-asked.samples // (gpus // size))
            found.append((engine.prefill_s(busiest * mean, attended), size, engine))
    if not found:
        return None
    seconds, _, engine = min(found, key=lambda one: one[:2])
    return engine, seconds
