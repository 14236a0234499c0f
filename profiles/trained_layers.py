"""Layers that are trained while others are frozen: freeze-tuning, spectrum's patterns, LLaMA-Pro's blocks.

They are written as numbers from 0 and ranges of them with both ends, ``28-31`` or ``7,15,23,31``;
``none`` where embedding or head are trained alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

# What becomes of the weights of a layer. Through a frozen one the backward pass goes on to those before it;
# ``below`` all that is trained there is no backward pass, and nothing is kept for it. Layouts have
# them in this order.
LayerTraining = Literal["below", "frozen", "trained"]
BELOW: Final = "below"
FROZEN: Final = "frozen"
TRAINED: Final = "trained"

MAX_LAYERS_LENGTH = 1024  # letters
NONE = "none"  # of the layers: ends of the model alone
_LAYERS = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", re.ASCII)


@lru_cache(maxsize=256)
def layers_named(text: str) -> tuple[int, ...]:
    """Return the layers that a text names, each once, in order; none of another text."""
    if not _LAYERS.fullmatch(text):
        return ()
    ends = [[int(number) for number in part.split("-")] for part in text.split(",")]
    if any(one[0] > one[-1] for one in ends):
        return ()
    return tuple(sorted({number for one in ends for number in range(one[0], one[-1] + 1)}))


def ranges_of(layers: Iterable[int]) -> str:
    """Return the shortest text that names these layers."""
    found = list[list[int]]()
    for layer in sorted(set(layers)):
        if found and layer == found[-1][-1] + 1:
            found[-1][1:] = [layer]
        else:
            found.append([layer])
    return ",".join("-".join(map(str, one)) for one in found)


@lru_cache(maxsize=256)
def training_of(text: str, num_layers: int, *, reaches_inputs: bool) -> tuple[LayerTraining, ...]:
    """Return what becomes of each layer; () where all of them are trained.

    Args:
        text: the trained layers; empty: all.
        num_layers: of the model.
        reaches_inputs: whether gradients go through every layer: to a trained embedding, or its rows.
    """
    if not text:
        return ()
    named = {*layers_named(text)}
    first = -1 if reaches_inputs else min(named, default=num_layers)
    return tuple(
        TRAINED if layer in named else FROZEN if layer > first else BELOW for layer in range(num_layers)
    )
