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
# Of layers that are trained in turn: gradients pass all others, which is the most that a turn takes.
FIRST = "0"
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


def nearest_layers(text: str, num_layers: int) -> str:
    """Return the layers that a text that names none may mean, as ranges; empty: all of them.

    ``28 - 31`` and ``28..31`` are ranges, 31-28 is one turned round, -1 and last4 count from the end.
    """
    plain = re.sub(r"\.\.+|[:–]", "-", re.sub(r"\s+", "", text.lower()))
    if plain in ("all", "*"):
        return ""
    turned = re.sub(
        r"(\d+)-(\d+)", lambda found: "-".join(sorted(found.groups(), key=int)), plain, flags=re.ASCII
    )
    if found := [layer for layer in layers_named(turned) if layer < num_layers]:
        return ranges_of(found)
    ending = re.fullmatch(r"(-|last[-_]?)(\d{0,4})", plain, re.ASCII)
    if ending is None:
        return f"0-{num_layers - 1}"
    number = min(int(ending[2] or 1) or 1, num_layers)
    return ranges_of([num_layers - number] if ending[1] == "-" else range(num_layers - number, num_layers))


def ranges_of(layers: Iterable[int]) -> str:
    """Return the shortest text that names these layers."""
    found = list[list[int]]()
    for layer in sorted(set(layers)):
        if found and layer == found[-1][-1] + 1:
            found[-1][1:] = [layer]
        else:
            found.append([layer])
    return ",".join("-".join(map(str, one)) for one in found)


def counted_layers(number: int, num_layers: int, *, apart: bool) -> range:
    """Return the last layers, the first ones if the number is negative, or the last of so many parts.

    As LLaMA-Factory 0.9.5 counts them (``model/adapter.py:59``); ``apart``: LLaMA-Pro's blocks.
    """
    if apart:
        stride = max(num_layers // max(number, 1), 1)
        return range(stride - 1, num_layers, stride)
    return range(max(0, num_layers - number), num_layers) if number > 0 else range(min(-number, num_layers))


def count_of(text: str, num_layers: int) -> tuple[int, bool] | None:
    """Return number and ``apart`` with which ``counted_layers`` are those named; None: there is none."""
    layers = layers_named(text)
    number = len(layers)
    for signed, apart in ((number, False), (-number, False), (number, True)):
        if tuple(counted_layers(signed, num_layers, apart=apart)) == layers:
            return signed, apart
    return None


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
