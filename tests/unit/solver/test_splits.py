"""Splits that nobody searches for: even ones, nanotron's own, the request's."""

from dataclasses import replace

import pytest

from meshwright.profiles.library import find_model
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.splits import (
    Prescribed,
    divisors,
    even_split,
    launcher_split,
    nanotron_split,
    usual_split,
)
from tests.builders import a_model, a_problem

# A layer weighs 4 * 64 * 64 + 3 * 64 * 256 = 65 536, as much as 1 024 rows of the vocabulary.
SHAPE = {
    "hidden_size": 64,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
}


def test_nanotron_begins_a_stage_behind_the_layer_that_exceeds_its_share() -> None:
    # Llama 2 7B: a layer is 4 * 4096^2 + 3 * 4096 * 11008 = 202.4 M, the head 32000 * 4096 = 131.1 M or
    # 0.648 layers; shares of 32.648 / 4 = 8.162 layers are exceeded by layers 9, 17 (16.32) and 25 (24.49)
    assert nanotron_split(find_model("llama-2-7b"), 4) == ((9, 8, 8, 7), 3)


def test_a_running_cost_equal_to_the_share_does_not_end_a_stage() -> None:
    # 8 layers and a head of two: 5 layers are exactly half of 10, so the 6th is on the first stage too.
    model = a_model(**SHAPE, num_layers=8, vocab_size=2048)
    assert nanotron_split(model, 2) == ((6, 2), 1)
    assert nanotron_split(model, 1) == ((8,), 0)


def test_key_value_heads_fewer_than_query_heads_weigh_the_same() -> None:
    few = a_model(**SHAPE, num_layers=8, vocab_size=2048)
    assert nanotron_split(few, 2) == nanotron_split(replace(few, num_kv_heads=4), 2)


def test_the_padded_vocabulary_is_weighed() -> None:
    # 6 layers, a head of one: shares of 3.5 layers, exceeded by the 4th. Padded to a multiple of 3 000
    # the head weighs 2.93 layers: shares of 4.46, exceeded by the 5th.
    model = a_model(**SHAPE, num_layers=6, vocab_size=1024)
    assert nanotron_split(model, 2) == ((4, 2), 1)
    assert nanotron_split(model, 2, 3000) == ((5, 1), 1)


def test_a_heavy_head_leaves_later_stages_empty_and_comes_before_them() -> None:
    # 4 layers and a head of 12: shares of 4 layers, which no layer exceeds before the head is placed.
    model = a_model(**SHAPE, num_layers=4, vocab_size=12 * 1024)
    assert nanotron_split(model, 4) == ((4, 0, 0, 0), 0)
    problem = replace(a_problem(model=model), launcher="nanotron")
    stages = Configuration(pipeline_parallel_size=4)
    assert launcher_split(problem, stages) is None
    assert launcher_split(problem, replace(stages, pipeline_parallel_size=5)) is None  # more than layers
    assert usual_split(problem, stages) == (1, 1, 1, 1)


def test_other_launchers_take_any_split() -> None:
    assert launcher_split(a_problem(), Configuration(pipeline_parallel_size=4)) == ()
    assert not Prescribed.of(a_problem())


@pytest.mark.parametrize(("chunks", "split"), [(4, (2, 3, 3, 2)), (3, (3, 4, 3)), (5, (2,) * 5)])
def test_an_even_split_gives_what_is_left_over_to_the_middle(chunks: int, split: tuple[int, ...]) -> None:
    # the first and the last chunk hold embedding and head beside their layers
    assert even_split(10, chunks) == split


def test_a_row_has_the_split_of_its_sizes_and_one_that_request_and_launcher_agree_on() -> None:
    model = a_model(**SHAPE, num_layers=8, vocab_size=2048)
    sizes = [(1, 1), (2, 1), (4, 1), (2, 2)]  # (pp, vpp)
    rows = Columns.of([
        Configuration(pipeline_parallel_size=pp, virtual_pipeline_size=vpp, stage_layers=(8,))
        for pp, vpp in sizes
    ])  # fmt: skip
    # Shares of 2.5 layers are exceeded by layers 3, 6 (5.0) and 8 (7.5): the 4th stage has the head alone.
    assert Prescribed(balanced=model).splits(rows) == [(8,), (6, 2), None, None]
    assert Prescribed(asked=(6, 2)).splits(rows) == [None, (6, 2), None, None]
    assert Prescribed(asked=(6, 2), balanced=model).splits(rows) == [None, (6, 2), None, None]
    assert Prescribed(asked=(4, 4), balanced=model).lacking(rows).tolist() == [True] * 4


def test_divisors_are_all_of_them_ascending_however_large_the_number() -> None:
    assert [divisors(number) for number in (1, 7, 12, 36)] == [
        [1], [1, 7], [1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6, 9, 12, 18, 36],
    ]  # fmt: skip
    assert divisors(2**40) == [2**power for power in range(41)]
