"""Draws prices of roles, and finds the shortest step of a small pool by trying every placement.

Written from the meaning of a step, in plain values; it shares no code with what it judges. Times are whole
milliseconds. A question is a mapping: ``training`` (group, GPUs, side, swap), ``engines`` (group, GPUs of
an engine, memory share, answers, batches in flight, time), ``gpus`` by group, ``samples``, ``refit``,
``ways`` (mode, steps off), ``share``, the memory that an engine may have next to a trainer, and ``room``,
what each training's states leave of it. With further
roles: ``rewards`` (group, GPUs, time) on GPUs of its own, ``scoring``, the time in turn with each training
(None: no room), ``critics`` (group, GPUs, values, update, the only training or None), ``turn``, the time of
a critic in turn with each training, ``critic_turns``, whether it may, and ``as_they_end``: answers are
scored while others run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

Question = Mapping[str, Any]


def drawn(seed: int) -> dict[str, Any]:
    """Return a small question: one or two groups, up to three layouts of engines on each."""
    draw = random.Random(seed)
    gpus = {f"g{at}": draw.choice([4, 8, 12, 16]) for at in range(draw.choice([1, 1, 2]))}
    samples = draw.choice([16, 40, 64])
    training = [
        (group, count, draw.randint(100, 900) * 8 // count, draw.randint(0, 60))
        for group, most in gpus.items()
        for count in (2, 4, 8, 12, 16)
        if count <= most and draw.random() < 0.8
    ] or [("g0", 2, 300, 20)]
    engines = []
    for group, most in gpus.items():
        for size in draw.sample([1, 2, 4], k=2):
            for share in (0.6, 0.85):
                base = draw.randint(50, 400) / size**0.7
                for answers in sorted({-(-samples // count) for count in (1, 2, 3, 4, 6, 8, most // size)}):
                    for batches in (1, 2):
                        time = round(base * (1 + answers / 20) * (1 if batches == 1 else 0.8))
                        engines.append((group, size, share, answers, batches, time))
    ways = [("colocated", 0), ("apart", 0), ("async", 1), ("async", 2)]
    return {
        "training": training, "engines": engines, "gpus": gpus, "samples": samples,
        "refit": draw.randint(0, 50), "ways": draw.sample(ways, k=draw.randint(1, 4)),
        "share": draw.choice([0.7, 0.9]), "room": [draw.choice([0.4, 0.7, 1.0]) for _ in training],
    }  # fmt: skip


def drawn_with_roles(seed: int) -> dict[str, Any]:
    """Return a small question with a reward model, a critic or both."""
    draw, question = random.Random(-1 - seed), drawn(seed)
    kind = draw.choice(["reward", "critic", "both"])
    sizes = [one for one in product(question["gpus"], (1, 2, 4)) if one[1] < question["gpus"][one[0]]]
    trained = len(question["training"])
    if kind != "critic":
        question["rewards"] = [
            (group, count, draw.randint(40, 300) * 4 // count)
            for group, count in sizes
            if draw.random() < 0.7
        ]
        question["scoring"] = [draw.choice([None, draw.randint(20, 300)]) for _ in range(trained)]
        question["as_they_end"] = draw.random() < 0.5
    if kind != "reward":
        question["critics"] = [
            (
                group,
                count,
                draw.randint(10, 300) * 2 // count,
                draw.randint(50, 900) * 2 // count,
                draw.choice([None, draw.randrange(trained)]),
            )
            for group, count in sizes
            if draw.random() < 0.7
        ]
        question["turn"] = [side + 2 * swap for _, _, side, swap in question["training"]]
        question["critic_turns"] = draw.random() < 0.6
        question["passes"] = [min(draw.randint(0, 200), row[2]) for row in question["training"]]
    return question


def best_step(question: Question) -> int | None:
    """Return the shortest step of all placements; None: there is none."""
    return min(_steps(question), default=None)


def _steps(question: Question) -> Iterator[int]:
    for (mode, off), (at, (home, trained, alone, swap)), reward, critic in product(
        question["ways"], enumerate(question["training"]), _rewards(question), _critics(question)
    ):
        side = _side(question, at, alone, reward, critic)
        taken = {group: trained * (group == home) for group in question["gpus"]}
        for row in (reward, critic):
            if isinstance(row, tuple):
                taken[row[0]] += row[1]
        if side is None or any(taken[group] > gpus for group, gpus in question["gpus"].items()):
            continue
        free = {
            group: (trained if group == home else 0) if mode == "colocated" else gpus - taken[group]
            for group, gpus in question["gpus"].items()
        }
        rows = [
            row for row in question["engines"]
            if row[4] == max(off, 1)
            and (mode != "colocated" or row[2] <= min(question["share"], question["room"][at]))
        ]  # fmt: skip
        generate = _shortest_generation(rows, free, question["samples"])
        if generate is None:
            continue
        refit, scored = question["refit"], reward[2] if isinstance(reward, tuple) else 0
        if mode == "async":
            yield max(generate, scored, side) + refit
            continue
        answered = max(generate, scored) if question.get("as_they_end") else generate + scored
        yield answered + side + refit + (swap if mode == "colocated" else 0)


def _rewards(question: Question) -> list[Any]:
    return [*question["rewards"], "turn"] if "rewards" in question else [None]


def _critics(question: Question) -> list[Any]:
    if "critics" not in question:
        return [None]
    return [*question["critics"], *(["turn"] if question["critic_turns"] else [])]


def _side(question: Question, at: int, alone: int, reward: Any, critic: Any) -> int | None:  # noqa: ANN401 - a row, or a word
    """Return training's time with a critic and a reward model; None: a role has no room."""
    found = alone
    if isinstance(critic, tuple):
        if critic[4] not in (None, at):
            return None
        passes = question["passes"][at]
        found = max(passes, critic[2]) + max(alone - passes, critic[3])
    elif critic == "turn":
        found += question["turn"][at]
    if reward == "turn":
        scoring = question["scoring"][at]
        return None if scoring is None else found + scoring
    return found


def _shortest_generation(rows: list[tuple[Any, ...]], free: Mapping[str, int], samples: int) -> int | None:
    """Return the least time within which engines of one layout in each group answer everything."""
    layouts = {group: sorted({row[1:3] for row in rows if row[0] == group}) for group in free}
    for limit in sorted({row[5] for row in rows}):
        answered = 0
        for group, gpus in free.items():
            most = 0
            for layout in layouts[group]:
                loads = [
                    row[3] for row in rows if row[0] == group and row[1:3] == layout and row[5] <= limit
                ]
                most = max(most, max(loads, default=0) * (gpus // layout[0]))
            answered += most
        if answered >= samples:
            return int(limit)
    return None
