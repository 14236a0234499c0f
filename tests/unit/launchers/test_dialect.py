"""Rows of launchers' tables, read from a file and written to it by the same words."""

from __future__ import annotations

import pytest

from meshwright.launchers.dialect import HOLE, decoded, encoded
from meshwright.launchers.flags import Flag, flags_of, programs
from meshwright.launchers.reading.documents import LocatedValue
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.templates import data


def read(program: str, name: str, row: Flag, value: object) -> object:
    fields = Fields("file", {name: LocatedValue(value, 1)}, programs=(program,))
    found = decoded(fields, name, row)
    assert fields.faults == []
    return found


@pytest.mark.parametrize("program", programs())
def test_what_a_word_means_is_written_as_a_word_that_means_it(program: str) -> None:
    rows = {name: row for name, row in flags_of(program).items() if row.priced_as and row.sets}
    for name, row in rows.items():
        for meaning in row.priced_as.values():
            word = encoded(row, meaning)
            assert (type(word) is bool) is (row.type == "bool")
            assert read(program, name, row, word) == meaning, name


def test_an_argument_that_is_not_given_has_its_default_or_the_least_number() -> None:
    table = flags_of("nanotron")
    usual = {
        "parallelism.dp": 1, "optimizer.zero_stage": 0, "parallelism.recompute_layer": "none",
        "parallelism.tp_mode": False, "parallelism.pp_engine": "gpipe",
        "model.model_config.num_key_value_heads": None, "model.model_config.rope_theta": 10_000.0,
    }  # fmt: skip
    assert {name: read("nanotron", name, table[name], None) for name in usual} == usual


def test_a_value_that_no_word_means_cannot_be_written() -> None:
    with pytest.raises(KeyError, match="interleaved"):
        encoded(flags_of("nanotron")["parallelism.pp_engine"], "interleaved")


@pytest.mark.parametrize("program", ["maxtext", "nanotron"])
def test_every_hole_of_a_template_is_an_argument(program: str) -> None:
    def holes(tree: object, name: str) -> list[str]:
        if isinstance(tree, dict):
            return [one for key, found in tree.items() for one in holes(found, f"{name}.{key}")]
        return [name[1:]] if tree == HOLE else []

    found = holes(data(f"{program}/plan.yaml"), "")
    assert [name for name in found if name not in flags_of(program)] == []
    assert len(found) > 20
