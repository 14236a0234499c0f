"""The ordinary table stays narrow; what few plans choose stands at its end, in their rows alone."""

import io

import pytest
from rich.console import Console

from meshwright.service.report.formatting import configuration_words, inner_words
from meshwright.service.report.ranking import columns_of, ranking
from meshwright.solver.answer import Plan
from tests.builders import a_configuration, a_plan


def titles(*plans: Plan) -> list[str]:
    return [column.title for column in columns_of(plans, moe=False)]


def text_of(*plans: Plan, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(ranking(plans, moe=False, width=width, peak="989 TFLOP/s"))
    return capture.get()


def test_an_ordinary_ranking_has_no_column_for_rare_choices() -> None:
    assert "also" not in titles(a_plan(), a_plan(rank=2))


def test_a_rare_choice_stands_in_the_row_of_its_plan_only() -> None:
    rare = a_plan(rank=2, rank_order="tp-cp-pp-dp", zero_shard_size=2)
    text = text_of(a_plan(), rare)
    assert titles(a_plan(), rare).count("also") == 1
    assert text.count("pp before dp") == 1
    assert "shards of 2 · pp before dp" in text
    assert "tp-cp" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"rank_order": "tp-cp-pp-dp"}, ["pp before dp"]),
        ({"rank_order": "tp-dp-cp-pp"}, ["dp before cp"]),
        ({"rank_order": "tp-pp-cp-dp"}, ["pp before cp before dp"]),
        ({"zero_shard_size": 2}, ["shards of 2"]),  # of 4 replicas
        ({"zero_stage": 0, "zero_shard_size": 1}, []),
        ({"context_parallel_mode": "all_to_all"}, []),  # nothing is split by it
        ({"context_parallel_mode": "all_to_all", "context_parallel_size": 2, "zero_shard_size": 8},
         ["cp by all-to-all"]),
        ({"expert_tensor_parallel_size": 2}, ["etp 2"]),
        ({"offload": "optimizer"}, ["optimizer in host memory"]),
        ({"pipeline_schedule": "zb_h1"}, ["zb_h1"]),
    ],
)  # fmt: skip
def test_rare_choices_in_words(changes: dict[str, object], words: list[str]) -> None:
    configuration = a_configuration(**changes)
    assert inner_words(configuration) == words
    assert all(word in configuration_words(configuration) for word in words)


def test_lines_of_a_narrow_terminal_say_them_too() -> None:
    assert "pp before dp" in text_of(a_plan(rank_order="tp-cp-pp-dp"), width=60)
