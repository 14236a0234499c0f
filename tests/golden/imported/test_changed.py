"""Configs with one key changed, and what becomes of them; UPDATE_GOLDEN=1 writes the outcomes anew.

A changed config is refused with a sentence, or differs from the model that it was in the facts listed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.golden.answers.test_answers import values_of
from tests.golden.imported.test_models import configs_of, imported

OUTCOMES = Path(__file__).with_name("changed.jsonl")
EACH = 4
OTHERS: tuple[object, ...] = (None, -1, 0, 1, 3, 2.5, 2**40, True, False, "x", [], [2, 2], {})


def changed_configs() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Some keys of each kind of model, with the config before and after."""
    seen = set[object]()
    for name in ("real-configs", "drawn-towers", "drawn-diffusers", "drawn-configs"):
        for config in configs_of(name):
            kind = config.get("model_type") or config.get("_class_name")
            random = Random(f"{name} {len(seen)}")
            if kind in seen or not isinstance(kind, str):
                continue
            seen.add(kind)
            for _ in range(EACH):
                inner = random.choice(["", *(key for key in config if isinstance(config[key], dict))])
                part: dict[str, Any] = config[inner] if inner else config  # type: ignore[assignment]
                key = random.choice(
                    [one for one in part if one not in ("model_type", "_class_name")] or ["x"]
                )
                other = part | {key: random.choice((*OTHERS, *_near(part.get(key))))}
                at = f"{kind} {inner or '.'} {key}={json.dumps(other[key])}"
                yield at, config, config | {inner: other} if inner else other


def _near(value: object) -> tuple[object, ...]:
    """Other numbers than a number, twice: they are the changes that a config has most often."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ()
    return (value + 1, 2 * value, value // 2) * 2


def outcome(config: dict[str, Any], other: dict[str, Any]) -> object:
    """The sentence that refuses a changed config, or the facts in which its model differs."""
    before, after = imported(config), imported(other)
    if isinstance(after, str):
        return after
    was, now = dict(values_of(before)), dict(values_of(after))
    return {at: now.get(at) for at in sorted(was.keys() | now.keys()) if was.get(at) != now.get(at)}


def test_a_config_with_one_key_changed_is_refused_or_read_as_it_was_reviewed() -> None:
    found = [
        json.dumps([at, outcome(config, other)], separators=(",", ":"))
        for at, config, other in changed_configs()
    ]
    if os.environ.get("UPDATE_GOLDEN"):
        OUTCOMES.write_text("\n".join(found) + "\n", encoding="utf-8")
    reviewed = OUTCOMES.read_text(encoding="utf-8").splitlines()
    assert [f"{a} -> {b}" for a, b in zip(reviewed, found, strict=True) if a != b] == []
