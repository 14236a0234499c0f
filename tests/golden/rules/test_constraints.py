"""Constraints drawn from their words, half of them with a slip; UPDATE_GOLDEN=1 writes their outcomes anew.

Of a right one the golden file holds which of 200 rows break it, and what it reads; of a wrong one the
character, the message, what is allowed and the nearest word.
"""

import json
import os
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np

from meshwright.solver.configuration import Columns
from meshwright.solver.space.expressions import ExpressionError, names_in
from meshwright.solver.space.request_rules import (
    broken_by,
    columns_named,
    constraint_of,
    names_groups,
    with_group_renamed,
)
from tests.golden.rules.test_rules import _odd_rows

REVIEWED = Path(__file__).with_name("constraints.jsonl")
DRAWN = 400
NUMBERS = (
    "tp", "pp", "cp", "zero_stage", "num_gpus", "global_batch_size", "recompute_layers",
    "0", "1", "2", "16",
)  # fmt: skip
TERMS = ("stages('h100')", 'layers("h100")', "gpus('a100')", "idle_nodes('h100')")
LOGICAL = ("sequence_parallel", "true", "false", "first('h100')", "last('h100')")
WORDS = (
    ("pipeline_schedule", "'1f1b'"), ("recompute_granularity", '"full"'), ("offload", "'none'"),
    ("context_parallel_mode", "'ring'"), ("pipeline_schedule", "'interleaved'"),
    ("offload", "'Optimiser'"), ("rank_order", "'tp'"), ("offload", "offload"),
    ("'full'", "recompute_granularity"),
    ("'ring'", "'ring'"), ("'full'", "zero_stage"), ("zero_stage", "'full'"), ("tp + 1", "'full'"),
)  # fmt: skip
COMPARED = ("<=", "<", ">=", ">", "==", "!=")
# Put in place of a word, or between two: most of them make the constraint wrong.
SLIPS = (
    "(", ")", "not", "and", "or", "=>", "-", "=", "&", "/", "'", "zerostage", "PP", "qqqqqqqq",
    "pipelines('x')", "99999999999", "stages", "stages(", "'none'",
    "sequence_parallel", "==", "<", "%", "\x07",
)  # fmt: skip


def number(random: Random, depth: int = 2) -> str:
    """Draw a sum of sizes, whole numbers and terms of node groups."""
    if depth and random.random() < 0.4:
        sign = random.choice(("+", "-", "*", "//", "%"))
        text = f"{number(random, depth - 1)} {sign} {number(random, depth - 1)}"
        return f"({text})" if random.random() < 0.5 else text
    return random.choice(TERMS) if random.random() < 0.08 else random.choice(NUMBERS)


def comparison(random: Random) -> str:
    """Draw a comparison of two or three numbers, or of a variable and a word."""
    if random.random() < 0.25:
        return f" {random.choice((*COMPARED, '==', '==', '!=', '!='))} ".join(random.choice(WORDS))
    if random.random() < 0.1:
        return f"{random.choice(LOGICAL)} {random.choice(COMPARED)} {random.choice(LOGICAL)}"
    parts = [number(random)]
    for _ in range(random.choice((1, 1, 1, 2))):
        parts += [random.choice(COMPARED), number(random)]
    return " ".join(parts)


def drawn(random: Random) -> str:
    """Draw one to three comparisons, in half of the draws with a slip."""
    text = comparison(random)
    for _ in range(random.choice((0, 0, 1, 2))):
        other = random.choice((comparison(random), random.choice(LOGICAL)))
        text = f"{text} {random.choice(('and', 'or', '=>', 'and not', 'or not'))} {other}"
    if random.random() < 0.5:
        parts = text.split(" ")
        at = random.randrange(len(parts))
        parts[at : at + random.choice((0, 1))] = [random.choice(SLIPS)]
        text = " ".join(parts)
    return text


def outcome(text: str, rows: Columns) -> list[object]:
    """Return what a constraint means, or what is wrong with it."""
    try:
        node = constraint_of(text)
    except ExpressionError as fault:
        return [fault.at, str(fault), fault.allowed, fault.nearest]
    names = sorted(names_in(node))
    terms = {name: np.arange(len(rows)) % 4 for name in names if "(" in name}
    broken = broken_by(node, rows, 8, terms)
    marks = sha256(np.packbits(broken).tobytes()).hexdigest()[:8]
    alone = bool(broken_by(node, rows, 8).all())
    return [
        int(broken.sum()), marks, alone, names, columns_named(names), names_groups(text),
        with_group_renamed((text,), "h100", "b200")[0] != text,
    ]  # fmt: skip


def test_drawn_constraints_mean_what_was_reviewed_or_are_refused_in_the_same_words() -> None:
    random, rows = Random(5), _odd_rows(Random(6))
    found = list[str]()
    for _ in range(DRAWN):
        text = drawn(random)
        found.append(json.dumps([text, *outcome(text, rows)]))
    if os.environ.get("UPDATE_GOLDEN"):
        REVIEWED.write_text("\n".join(found) + "\n", encoding="utf-8")
    reviewed = REVIEWED.read_text(encoding="utf-8").splitlines()
    assert [f"{a} -> {b}" for a, b in zip(reviewed, found, strict=True) if a != b] == []
