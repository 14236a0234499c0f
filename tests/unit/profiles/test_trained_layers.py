"""Layers that are trained while others are frozen, as people write them."""

from __future__ import annotations

import pytest

from meshwright.profiles.trained_layers import (
    count_of,
    layers_named,
    nearest_layers,
    ranges_of,
    training_of,
)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("28-31", (28, 29, 30, 31)),
        ("7,15,23", (7, 15, 23)),
        ("0,2-3,2", (0, 2, 3)),
        ("none", ()),
        ("", ()),
        ("a", ()),
        ("3-1", ()),
        ("0,3-1", ()),
    ],
)
def test_ranges_have_both_ends(text: str, layers: tuple[int, ...]) -> None:
    assert layers_named(text) == layers


@pytest.mark.parametrize(
    ("layers", "text"), [((3, 1, 2), "1-3"), ((0, 2, 3, 5), "0,2-3,5"), ((7,), "7"), ((), "")]
)
def test_layers_are_written_as_few_ranges(layers: tuple[int, ...], text: str) -> None:
    assert ranges_of(layers) == text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("28 - 31", "28-31"), ("28..31", "28-31"), ("28:31", "28-31"), ("31-28", "28-31"),
        ("0, 31-28", "0,28-31"), ("-1", "31"), ("-4", "28"), ("last", "31"), ("last4", "28-31"),
        ("last 4", "28-31"), ("last0", "31"), ("-99", "0"), ("all", ""), ("some", "0-31"),
        ("30-40,", "0-31"),
    ],
)  # fmt: skip
def test_other_words_for_layers_have_the_nearest_ranges(text: str, meant: str) -> None:
    assert nearest_layers(text, 32) == meant


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("28-31", (4, False)), ("0-3", (-4, False)), ("0-31", (32, False)), ("7,15,23,31", (4, True)),
        ("none", (0, False)), ("31", (1, False)), ("7", None), ("0,31", None),
    ],
)  # fmt: skip
def test_layers_are_counted_from_an_end_or_as_parts(text: str, counted: tuple[int, bool] | None) -> None:
    assert count_of(text, 32) == counted


@pytest.mark.parametrize(
    ("text", "reaches_inputs", "training"),
    [
        ("", False, ()),
        ("2", False, ("below", "below", "trained", "frozen")),
        ("2", True, ("frozen", "frozen", "trained", "frozen")),  # gradients go on to the embedding
        ("none", False, ("below",) * 4),
        ("none", True, ("frozen",) * 4),
        ("0-3", False, ("trained",) * 4),
    ],
)
def test_gradients_go_as_far_down_as_something_is_trained(
    text: str, reaches_inputs: bool, training: tuple[str, ...]
) -> None:
    assert training_of(text, 4, reaches_inputs=reaches_inputs) == training
