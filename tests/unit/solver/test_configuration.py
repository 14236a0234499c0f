"""The table of configuration variables against the configurations and columns that it describes."""

from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any

import pytest

from meshwright.profiles.capabilities import launcher_capabilities, launchers_of
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.check import launcher_faults
from meshwright.solver.configuration import (
    INTEGER_VARIABLES,
    PLACED_ONLY,
    SHORT_NAMES,
    VARIABLES,
    Columns,
    Configuration,
    StageGroup,
    Variable,
    plan_id_of,
)
from meshwright.solver.explain.compare import differences_of
from meshwright.solver.search.certify.row_request import DECISIONS
from meshwright.solver.search.search import search
from meshwright.solver.space.rules import broken_rules
from tests.builders import a_cluster, a_model, a_moe_model, a_problem

# What is decided layer by layer or stage by stage is no single variable.
OF_STAGES = {"stage_layers", "stage_recompute_layers", "stage_groups", "replicas"}
CHANGED = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=3, virtual_pipeline_size=2,
    context_parallel_size=5, expert_parallel_size=7, expert_tensor_parallel_size=11, data_parallel_size=13,
    zero_stage=1, zero_shard_size=17, weight_shard_size=29,
    expert_weight_shard_size=31, micro_batch_size=19, num_microbatches=23,
    pipeline_schedule="interleaved_1f1b", recompute_granularity="full", recompute_layers=1,
    offload="optimizer", context_parallel_mode="all_to_all", rank_order="tp-cp-pp-dp",
    stage_layers=(2,) * 6,
)  # fmt: skip


def test_every_field_that_is_one_value_is_a_variable_with_the_default_as_its_off() -> None:
    plain = {name: value for name, value in asdict(Configuration()).items() if name not in OF_STAGES}
    assert {name: one.off for name, one in VARIABLES.items()} == plain


def test_every_variable_has_one_column_and_one_decision_of_the_exact_judge() -> None:
    columns = [one.column or one.name for one in VARIABLES.values()]
    assert [field.name for field in fields(Columns)] == columns
    assert sorted(DECISIONS) == sorted(columns)


def test_a_row_keeps_every_variable_of_the_configuration_it_came_from() -> None:
    plain = Configuration(stage_layers=(2,))
    assert all(getattr(CHANGED, name) != one.off for name, one in VARIABLES.items())
    rows = Columns.of([plain, CHANGED])
    assert [rows.configuration(0, (2,)), rows.configuration(1, (2,) * 6)] == [plain, CHANGED]


def test_columns_that_are_left_out_hold_the_value_that_is_off() -> None:
    rows = Columns.of([CHANGED, CHANGED])
    kept = {f.name: getattr(rows, f.name) for f in fields(Columns) if f.name not in PLACED_ONLY}
    off = Columns.plain(**kept).configuration(1, CHANGED.stage_layers)
    plain = Configuration()
    assert off == replace(CHANGED, **{name: getattr(plain, name) for name in PLACED_ONLY})


@pytest.mark.parametrize("variable", VARIABLES.values(), ids=VARIABLES)
def test_a_variable_says_what_it_is_and_refines_one_there_is(variable: Variable) -> None:
    assert variable.meaning[0].isupper()
    assert not variable.meaning.endswith(".")
    assert not variable.part_of or VARIABLES[variable.part_of].part_of == ""
    assert not variable.needs or hasattr(launcher_capabilities("none"), variable.needs)
    assert variable.short or not variable.in_tables


@pytest.mark.parametrize("name", [one.name for one in VARIABLES.values() if one.needs])
def test_rules_and_check_refuse_a_parallel_axis_for_every_launcher_without_it(name: str) -> None:
    problem, axis = a_problem(model=a_moe_model()), VARIABLES[name].needs
    changed: dict[str, Any] = {name: 2}
    every = map(launcher_capabilities, launchers_of("any"))
    lacking = [able.launcher for able in every if not getattr(able, axis)]
    assert lacking, "no launcher lacks it: needs is then not worth stating"
    for launcher in lacking:
        on = replace(problem, launcher=launcher)
        off = Configuration(tensor_parallel_size=8, data_parallel_size=16, stage_layers=(32,))
        used = replace(off, **changed)
        refused = {*broken_rules(on, used)} - {*broken_rules(on, off)}
        assert any(rule.startswith(launcher) for rule in refused), (launcher, refused)
        assert {*launcher_faults(on, used)} - {*launcher_faults(on, off)}, launcher


def test_a_plan_keeps_its_name_when_a_variable_is_added() -> None:
    stage = StageGroup(group="a", num_gpus=8, num_nodes=1.0, tensor_parallel_size=8)
    placed = Configuration(tensor_parallel_size=8, stage_layers=(4,), stage_groups=(stage,))
    unlike = Configuration(stage_layers=(4,), replicas=(placed, placed))
    names = [plan_id_of("digest", one) for one in (Configuration(stage_layers=(4,)), placed, unlike)]
    assert names == ["b14721167eda", "c16426203d48", "6f71486c2baa"]


def test_no_two_variables_have_one_short_name() -> None:
    assert len(set(SHORT_NAMES.values())) == len(SHORT_NAMES)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (Configuration(expert_tensor_parallel_size=2, stage_layers=(4,)), "etp 1 → 2"),
        (Configuration(expert_parallel_size=4, stage_layers=(4,)), "ep 1 → 4"),
        (Configuration(tensor_parallel_size=4, sequence_parallel=True, stage_layers=(4,)), "tp 1 → 4"),
        (Configuration(sequence_parallel=True, stage_layers=(4,)), "sequence parallel on"),
        (
            Configuration(expert_parallel_size=4, expert_tensor_parallel_size=2, stage_layers=(4,)),
            "ep 1 → 4, etp 1 → 2",
        ),
    ],
)
def test_sizes_that_change_together_are_one_difference_that_names_each(
    changed: Configuration, words: str
) -> None:
    found = differences_of(Configuration(stage_layers=(4,)), changed)
    assert [one for name, one in found.items() if name != "num_gpus"] == [words]


# Every variable of the glossary can be pinned, bounded and forbidden, and the search keeps to it.

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}


def answered(**options: object) -> Answer:
    """6 layers on 8 GPUs with tight limits on what is not in question."""
    problem = a_problem(
        model=a_model(**SHAPE), cluster=a_cluster(num_nodes=1), batch=32, certify="none", top_k=1, **options
    )
    return search(problem, default_profile(problem.cluster, problem.launcher))


@cache
def best() -> Configuration:
    """The first plan without limits."""
    return answered().plans[0].config


def meant(name: str) -> int | str:
    """The best plan's value of a variable."""
    value: int | str = getattr(best(), name)
    return value


@pytest.mark.parametrize("name", VARIABLES)
def test_the_best_value_pinned_finds_the_best_plan_again(name: str) -> None:
    assert answered(pin={name: meant(name)}).plans[0].config == best()


@pytest.mark.parametrize("name", INTEGER_VARIABLES)
def test_bounds_round_the_best_value_find_the_best_plan_again(name: str) -> None:
    value = int(meant(name))
    assert answered(bounds={name: (value, value)}).plans[0].config == best()
    above = answered(bounds={name: (value + 1, 2**20)})
    assert all(getattr(plan.config, name) > value for plan in above.plans)


@pytest.mark.parametrize("name", VARIABLES)
def test_no_plan_has_a_forbidden_value(name: str) -> None:
    answer = answered(forbid={name: (meant(name),)})
    assert answer.status in ("optimal", "infeasible")
    assert all(getattr(plan.config, name) != meant(name) for plan in answer.plans)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_constraint_means_what_a_pin_means(name: str) -> None:
    value = meant(name)
    text = f"'{value}'" if isinstance(value, str) else str(value).lower()
    assert answered(constraints=(f"{name} == {text}",)).plans[0].config == best()
