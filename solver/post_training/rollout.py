"""Seconds that one engine takes for its answers of a step: prompts together, waiting ones as others end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.solver.post_training.engines import Engine, FloatArray

_AGES, _LAST = 97, 17  # ages that the step time is integrated at: evenly, and where answers end
_ROOM = 0.75  # of all answers' tokens, of which half have ended when the last begin to
_BLOCKS = 128  # of the longest answer: steps of the simulation where answers wait
_LEAST_BLOCK = 64.0
_ENDED = 1e-6  # tokens left, by rounding
_MOST = 0.9  # of the answers: what follows is the tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How one engine answers its prompts of a step."""

    seconds: float
    tail_s: float  # after nine of ten answers have ended
    running: int  # answers at once, at the most


def rollout_of(engine: Engine, answers: FloatArray, prompt: float, *, of: int = 0) -> Rollout:
    """Return the time until one engine has ended all of its answers.

    Args:
        engine: with room for the longest of them.
        answers: tokens of each, ascending, shape (n,).
        prompt: tokens of every prompt.
        of: number of answers, if ``answers`` are a sample of them. Each further answer takes as long as one
            of the sample takes on a full engine.
    """
    number = len(answers)
    if of > number:
        few, some = (_waiting(engine, part, prompt) for part in (answers[1::2], answers))
        each_s = (some.seconds - few.seconds) / (number - number // 2)
        return replace(some, seconds=some.seconds + each_s * (of - number))
    needed = number * prompt + float(answers.sum()) * _ROOM
    if number <= engine.most_running and needed <= engine.cache_tokens:
        return _together(engine, answers, prompt)
    return _waiting(engine, answers, prompt)


def _together(engine: Engine, ends: FloatArray, prompt: float) -> Rollout:
    """All answers start at once, so that every running one has the same age."""
    number = len(ends)
    shares = np.quantile(ends, np.linspace(0.5, 1.0, _LAST))
    ages = np.unique(np.concatenate([np.linspace(0.0, ends[-1], _AGES), shares]))
    middle, steps = (ages[1:] + ages[:-1]) / 2.0, np.diff(ages)
    running = np.maximum(number - np.searchsorted(ends, middle), 1.0)
    each = steps * engine.step_s(running, prompt + middle)
    late = middle > ends[min(int(_MOST * number), number - 1)]
    return Rollout(
        seconds=engine.prefill_s(number * prompt, prompt) + float(each.sum()),
        tail_s=float(each[late].sum()),
        running=number,
    )


def _waiting(engine: Engine, answers: FloatArray, prompt: float) -> Rollout:
    """Simulate blocks of decode steps: an answer starts as soon as others have left room for it."""
    order = np.random.default_rng(0).permutation(len(answers))
    todo = answers[order].tolist()[::-1]
    block = max(_LEAST_BLOCK, float(answers[-1]) / _BLOCKS)
    age, end = np.zeros(0), np.zeros(0)
    now, most, done, total = 0.0, 0, 0, len(todo)
    nine_of_ten = 0.0
    while todo or len(age):
        added = _admitted(engine, todo, prompt, age, end)
        if added:
            now += engine.prefill_s(prompt * len(added), prompt)
            age, end = np.append(age, np.zeros(len(added))), np.append(end, added)
        most = max(most, len(age))
        left = end - age
        go = min(max(float(left.min()), block), float(left.max()))
        now += go * float(engine.step_s(float(len(age)), prompt + float(age.mean()) + go / 2.0))
        age = age + go
        keep = end - age > _ENDED
        done += int(len(age) - keep.sum())
        if not nine_of_ten and done >= _MOST * total:
            nine_of_ten = now
        age, end = age[keep], end[keep]
    return Rollout(seconds=now, tail_s=now - nine_of_ten, running=most)


def _admitted(
    engine: Engine, todo: list[float], prompt: float, age: FloatArray, end: FloatArray
) -> list[float]:
    """Take those answers that memory has room for, an answer counted at half of what it has left."""
    room = engine.cache_tokens - (prompt * len(age) + float(age.sum()) + float((end - age).sum()) / 2.0)
    added: list[float] = []
    while todo and len(age) + len(added) < engine.most_running:
        needed = prompt + todo[-1] / 2.0
        if room <= needed and (len(age) or added):
            break
        added.append(todo.pop())
        room -= needed
    return added
