"""Draw the arguments of ``test_reading.py`` anew, by a fixed seed.

``.ci/environment mutants python -m tests.golden.reading.drawing``, optionally with launchers. Of many drawn
arguments those are kept that run a branch of the readers that none before them ran, or set a new value.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import coverage

from meshwright.launchers.flags import Flag, flags_of
from tests.golden.reading.test_reading import READ, Arguments, cases_of, outcome, text_of, write

ROOT = Path(__file__).parents[3]
DRAWN, KEPT = 1000, 300
TIMES = 2  # that each argument is tried alone
PROGRAMS = {
    "accelerate": ("accelerate",),
    "axolotl": ("axolotl", "transformers", "accelerate"),
    "deepspeed": ("deepspeed",),
    "flagscale": ("flagscale", "megatron-lm"),
    "llama_factory": ("llama-factory", "megatron-core", "transformers"),
    "llama_factory_accelerate": ("llama-factory", "transformers", "accelerate"),
    "maxtext": ("maxtext",),
    "megatron_bridge": ("megatron-bridge",),
    "megatron_lm": ("megatron-lm",),
    "ms_swift": ("ms-swift", "megatron-core", "transformers"),
    "nanotron": ("nanotron",),
    "torchtitan": ("torchtitan",),
    "trl": ("trl", "transformers"),
}
OFTEN = {"priced": 12, "means": 12, "refused": 2, "listed": 2}
WORDS: tuple[object, ...] = ("none", "x", "1", "[1, 2]", "full", "true", "bf16", "2,2", "auto")
SIZES = (-1, 0, 1, 1, 2, 2, 3, 4, 4, 8, 8, 16, 64, 1000, 4096, 2**40)
NUMBERS = (0, 0.5, 1.0, 1.5, 2, 1e-5, -1.0, 1e9)


def drawn(launcher: str) -> list[tuple[str, dict[str, Any], object]]:
    """Arguments that run branches which none before them ran."""
    kept, seen = list[tuple[str, dict[str, Any], object]](), set[object]()
    rows = [
        (name, row)
        for program in PROGRAMS[launcher]
        for name, row in flags_of(program).items()
        for _ in range(OFTEN.get(str(row.role), 0))
    ]
    values, tried = stated(launcher), Counter[str]()
    for case in cases_of(launcher):
        branches(launcher, case, {})
    for number in range(DRAWN):
        random = Random(f"{launcher} {number}")
        case, count = random.choice(cases_of(launcher)), random.choice((1, 1, 2, 2, 3, 4))
        some = dict(argument(random, launcher, *random.choice(rows), values) for _ in range(count))
        try:
            run, found = branches(launcher, case, some)
        except Exception as fault:  # noqa: BLE001 - a bug: it is shown, and drawing goes on
            print(f"BUG {launcher} {case} {some}: {type(fault).__name__}: {fault}", flush=True)
            continue
        run |= {f"{at} {value}" for at, value in found.items()} if isinstance(found, dict) else set()
        if run - seen or any(tried[name] < TIMES for name in some if len(some) == 1):
            kept.append((case, some, found))
            seen |= run
            tried.update([*some])
        if len(kept) == KEPT:
            break
    return kept


def branches(launcher: str, case: str, some: Arguments) -> tuple[set[object], object]:
    """The branches of the readers that arguments run, and what becomes of them."""
    measured = coverage.Coverage(
        branch=True, data_file=None, source=[str(ROOT / "launchers"), str(ROOT / "shell")]
    )
    measured.start()
    try:
        found = outcome(launcher, case, some)
    finally:
        measured.stop()
    data = measured.get_data()
    return {(file, arc) for file in data.measured_files() for arc in data.arcs(file) or ()}, found


def stated(launcher: str) -> dict[str, list[object]]:
    """The values that the reviewed exports give each argument."""
    found = dict[str, list[object]]()
    for case in cases_of(launcher):
        for line in text_of(launcher, case).splitlines():
            if match := re.fullmatch(r"[\s\"']*(?:--)?([\w.-]+)[\"']?(?: = |: |=| )(.+?)[,']*", line):
                found.setdefault(match[1].replace("-", "_").rpartition(".")[2], []).append(match[2])
    return found


def argument(
    random: Random, launcher: str, name: str, row: Flag, values: dict[str, list[object]]
) -> tuple[str, object]:
    """An argument with one of its words, a number, or a value that it has in an export."""
    own = values.get(name.rpartition(".")[2], [])
    value = random.choice(
        [*own, *_values(random, row)] if own and random.random() < 0.5 else _values(random, row)
    )
    name = _in_its_section(random, launcher, name)
    if launcher in ("megatron_lm", "ms_swift"):
        switch = row.kind == "switch" and (launcher == "megatron_lm" or random.random() < 0.5)
        return (
            f"--{name.replace('_', '-') if launcher == 'megatron_lm' else name}",
            None if switch else value,
        )
    return name, value


def _in_its_section(random: Random, launcher: str, name: str) -> str:
    if launcher == "flagscale" and "." not in name:
        return f"{random.choice(('system', 'model'))}.{name}"
    return name


def _values(random: Random, row: Flag) -> list[Any]:
    if words := [*row.choices, *row.words, *row.priced_as]:
        return [*words, random.choice(WORDS)]
    kinds = row.type.replace("None", "").strip(" |")
    if kinds == "bool":
        return [True, False]
    if kinds == "int":
        return list(SIZES)
    if kinds == "float":
        return list(NUMBERS)
    return [*WORDS, *random.sample(SIZES, 3), *random.sample(NUMBERS, 2), True, False]


if __name__ == "__main__":
    for one in sys.argv[1:] or READ:
        found = drawn(one)
        write(one, found)
        print(one, len(found), sum(isinstance(what, str) for *_, what in found), flush=True)
