"""The ordinary table stays narrow; what few plans choose stands at its end, in their rows alone."""

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from meshwright.profiles.profile import default_profile
from meshwright.service.report.beyond import beyond_lines
from meshwright.service.report.formatting import configuration_words, inner_words
from meshwright.service.report.ranking import columns_of, ranking, switch_words
from meshwright.service.report.table import to_csv
from meshwright.service.report.terminal import render_answer
from meshwright.solver.answer import Answer, Odds, ParetoFront, ParetoPoint, Plan
from meshwright.solver.configuration import Configuration, StageGroup
from tests.builders import a_configuration, a_plan, a_problem, an_answer


def titles(*plans: Plan) -> list[str]:
    return [column.title for column in columns_of(plans, moe=False)]


def text_of(*plans: Plan, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(ranking(plans, moe=False, width=width, peak="989 TFLOP/s"))
    return capture.get()


def test_an_ordinary_ranking_has_no_column_for_rare_choices() -> None:
    assert "also" not in titles(a_plan(), a_plan(rank=2))


def likely(rank: int, chance: float) -> Plan:
    return replace(a_plan(rank=rank), odds=Odds(best_probability=chance, regret_p90=0.05))


def test_plans_that_the_model_cannot_tell_from_the_first_are_marked() -> None:
    # of the likeliest chance, .5, half is .25: the second plan reaches it, the third does not
    text = text_of(likely(1, 0.5), likely(2, 0.3), likely(3, 0.2))
    assert [line.split()[0] for line in text.splitlines() if "% ≈" in line] == ["2"]
    assert "≈ #1 and #2 are statistically tied; #1 is the simplest" in text
    assert "≈" not in text_of(likely(1, 0.8), likely(2, 0.2))
    assert "≈" not in text_of(a_plan(), a_plan(rank=2))  # nothing is known of their chances


def test_the_simplest_of_tied_plans_is_marked() -> None:
    plain = replace(likely(2, 0.4), config=Configuration(data_parallel_size=128, stage_layers=(80,)))
    text = text_of(likely(1, 0.5), plain, likely(3, 0.01))
    row = next(line for line in text.splitlines() if line.startswith("  2"))
    assert row.rstrip().endswith("← simplest")
    assert "≈ #1 and #2 are statistically tied; #2 is the simplest" in text
    assert "simplest" not in text_of(likely(1, 0.9), replace(plain, odds=likely(2, 0.1).odds))


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
        ({"context_parallel_mode": "all_to_all_4+ring", "context_parallel_size": 8, "zero_shard_size": 32},
         ["cp by all-to-all of 4, rings of 2"]),
        ({"expert_tensor_parallel_size": 2}, ["etp 2"]),
        ({"offload": "optimizer"}, ["optimizer in host memory"]),
        ({"pipeline_schedule": "zb_h1"}, ["zb_h1"]),
    ],
)  # fmt: skip
def test_rare_choices_in_words(changes: dict[str, object], words: list[str]) -> None:
    configuration = a_configuration(**changes)
    assert inner_words(configuration) == words
    assert all(word in configuration_words(configuration) for word in words)


@pytest.mark.parametrize(("change", "words"), [
    ("cuda_graph full_iteration", "CUDA graph full iteration"),
    ("power_limit_w 450.0", "power limit 450 W"),
    ("bucket_bytes 419430400.0", "gradient buckets of 400 MiB"),
    ("sub_group_size 100000000.0", "sub group size 100,000,000"),
])  # fmt: skip
def test_a_switch_is_written_as_people_say_it(change: str, words: str) -> None:
    assert switch_words(change) == words


def test_lines_of_a_narrow_terminal_say_them_too() -> None:
    assert "pp before dp" in text_of(a_plan(rank_order="tp-cp-pp-dp"), width=60)


def test_lines_of_a_narrow_terminal_mark_ties_and_packages_as_the_table_does() -> None:
    needy = replace(likely(2, 0.4), needs=("HybridEP",))
    for width in (60, 160):
        text = text_of(likely(1, 0.5), needy, width=width)
        assert "% ≈" in text
        assert "needs HybridEP" in text


# Whatever was decided stands in the table, in its lines on a narrow terminal, and in the CSV.

ON_A100 = StageGroup(group="a100-sxm-80gb", num_gpus=16, num_nodes=2.0, tensor_parallel_size=1)
CLASSES = (
    Configuration(data_parallel_size=16, stage_layers=(32,), stage_groups=(ON_A100,)),
    Configuration(
        data_parallel_size=16,
        num_microbatches=3,
        stage_layers=(32,),
        stage_groups=(replace(ON_A100, group="h100-sxm-80gb"),),
    ),
)


def answer_text(answer: Answer, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(render_answer(answer, a_problem(), width=width))
    return capture.get()


def test_lines_of_a_narrow_terminal_tell_plans_apart_as_the_table_does() -> None:
    plain = replace(a_plan(), launchers=("megatron-lm",))
    fp8 = replace(a_plan(rank=2), workload={"precision": "fp8"}, launchers=("megatron-bridge",))
    for width in (40, 60, 200):
        text = answer_text(an_answer(plain, fp8), width)
        assert "fp8" in text
        assert "megatron-bridge" in text


def test_classes_of_replicas_stand_below_the_ranking_with_their_share_and_their_nodes() -> None:
    text = answer_text(an_answer(a_plan(replicas=CLASSES)), 160)
    assert "replicas of kind 0" in text
    assert "dp 16 · mbs 1, 3 micro-batches │ layers 32 │ 1 × h100-sxm-80gb, 2 nodes, tp 1" in text


def test_csv_carries_launchers_workload_and_placement() -> None:
    plan = replace(
        a_plan(replicas=CLASSES), workload={"precision": "fp8"}, launchers=("megatron-lm", "none")
    )
    placed, plain = csv.DictReader(io.StringIO(to_csv([plan, a_plan(rank=2)])))
    assert (placed["launchers"], placed["workload"]) == ("megatron-lm none", "precision=fp8")
    assert [one["num_microbatches"] for one in json.loads(placed["placement"])] == [1, 3]
    assert (plain["launchers"], plain["workload"], plain["placement"]) == ("", "", "")


def test_points_of_a_front_that_only_their_split_tells_apart_show_it_whole() -> None:
    plans = [a_plan(stage_layers=(1, *(4,) * 18, 7)), a_plan(stage_layers=(4,) * 20)]
    points = tuple(ParetoPoint(plan=plan, budget_bytes=1) for plan in plans)
    front = ParetoFront(points=points, complete=True, memory_step=1.04, claim="all proved")
    lines = [line.plain for line in beyond_lines(an_answer(pareto=front), 60)]
    assert sum("1 4×18 7" in line for line in lines) == 1
    assert sum("4×20" in line for line in lines) == 1
    assert max(len(part) for line in lines for part in line.split("\n")) <= 60


def test_a_plan_on_fewer_gpus_than_the_question_names_says_on_how_many() -> None:
    # tp 8, pp 4, dp 4 take 128 GPUs; tp 8 alone with dp 4 takes 32 of them
    assert " of 128 GPUs" not in answer_text(an_answer(), 200)
    few = an_answer(a_plan(pipeline_parallel_size=1), notes={"gpus": "fewest"})
    assert "Uses 32 of 128 GPUs, the fewest that have a plan" in answer_text(few, 400)


def test_the_catalog_profile_of_a_launcher_that_any_chose_is_called_the_catalogs() -> None:
    problem = replace(a_problem(), launcher="any")
    version = default_profile(problem.cluster, "torchtitan").version
    console = Console(width=200, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(render_answer(an_answer(versions={"profile": version}), problem, width=200))
    assert "from the catalog" in capture.get()
    assert "not the catalog's" not in capture.get()
