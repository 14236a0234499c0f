"""The table of what maintainers advise against: which plans each row is said of."""

from __future__ import annotations

import pytest

from meshwright.profiles.advice import advice_on_experts
from meshwright.profiles.capabilities import launchers_in_order

GATHERED, HANGS = "every rank gathers all experts", "ZeRO-3 hangs"


@pytest.mark.parametrize(
    ("launcher", "zero_stage", "said"),
    [
        ("trl", 3, [GATHERED]),
        ("axolotl", 3, [GATHERED]),
        ("llama-factory-accelerate", 3, [GATHERED]),
        ("deepspeed", 3, [GATHERED, HANGS]),
        ("deepspeed", 2, []),  # nothing is gathered
        ("trl", 0, []),
        ("megatron-bridge", 3, []),
        ("ms-swift", 1, []),  # what the rows recommend
    ],
)
def test_a_row_is_said_of_its_launchers_and_zero_stages(
    launcher: str, zero_stage: int, said: list[str]
) -> None:
    found = [row.says for row in advice_on_experts(launcher, zero_stage)]
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


def test_every_row_names_launchers_that_exist_and_a_source_with_a_line() -> None:
    rows = {
        row for one in launchers_in_order() for stage in range(4) for row in advice_on_experts(one, stage)
    }
    assert {one for row in rows for one in row.launchers} <= set(launchers_in_order())
    assert all(":" in row.source for row in rows)
    tips = {row.instead.removeprefix("--launcher ") for row in rows} - {""}
    assert tips <= set(launchers_in_order())
