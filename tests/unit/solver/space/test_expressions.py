"""Side constraints: their language, what they mean, and where their faults are."""

from dataclasses import replace

import pytest

from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.check import violations
from meshwright.solver.configuration import Columns
from meshwright.solver.problem import Problem, SearchOptions
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.expressions import MAX_DEPTH, MAX_LENGTH, MAX_WORDS, ExpressionError
from meshwright.solver.space.request_rules import broken_by, coded, constraint_of, holds_for, names_of
from tests.builders import a_cluster, a_configuration, a_gpu, a_model, a_problem
from tests.problems.asked import answered, searched_with_reasons

# The builder's configuration: tp 8, pp 4, vpp 5, dp 4, zero 1, 128 micro-batches, interleaved.
TRUE = [
    "tensor_parallel_size * context_parallel_size <= 8",
    "zero_stage == 3 => pipeline_parallel_size == 1",
    "pipeline_schedule == 'interleaved_1f1b'",
    '"1f1b" != pipeline_schedule',
    "1 < pipeline_parallel_size <= data_parallel_size < tensor_parallel_size",
    "not zero_stage == 2 and sequence_parallel",
    "sequence_parallel == true",
    "num_gpus == 128 and global_batch_size == 512",
    "num_microbatches // 3 == 42 and num_microbatches % 3 == 2",
    "-tensor_parallel_size // 3 == -3",
    "zero_stage == 0 or virtual_pipeline_size - 2 * 2 == 1",
    "zero_stage == 0 => tensor_parallel_size == 1 => zero_stage == 9",
]
FALSE = [
    "tensor_parallel_size + 1 <= 8",
    "zero_stage == 1 => pipeline_parallel_size == 1",
    "1 < pipeline_parallel_size < data_parallel_size",
    "not (zero_stage == 1 or zero_stage == 2)",
    "num_microbatches // (zero_stage - 1) >= 0 or zero_stage == 1",  # undefined
    "2147483647 * 2147483647 * 2147483647 > 0",  # beyond 62 bits
]


def held(text: str) -> tuple[bool, bool]:
    """By columns, and by the check's own evaluation."""
    config, node = a_configuration(), constraint_of(text)
    by_columns = not broken_by(node, Columns.of([config]), 80)[0]
    values = {name: getattr(config, name) for name in (*config.__dataclass_fields__, "num_gpus",
                                                       "global_batch_size")}  # fmt: skip
    return bool(by_columns), holds_for(node, values)


@pytest.mark.parametrize("text", TRUE)
def test_what_holds_holds_for_columns_and_for_the_check(text: str) -> None:
    assert held(text) == (True, True)


@pytest.mark.parametrize("text", FALSE)
def test_what_does_not_hold_is_broken_for_columns_and_for_the_check(text: str) -> None:
    assert held(text) == (False, False)


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("tensor_paralel_size <= 8", 1, "not a variable"),
        ("zero_stage == 3 => qq", 20, "qq is not a variable"),
        ("q" * 65 + " == 1", 1, f": {'q' * 64} is not a variable"),  # a longer name is cut
        ("zero_stage = 3", 12, "write =="),
        ("zero_stage == ", 14, "missing at the end"),
        ("(zero_stage == 3", 17, "closing parenthesis"),
        ("zero_stage == 3 4", 17, "operator is missing"),
        ("zero_stage", 1, "a constraint is one comparison"),
        ("zero_stage and true", 1, "a comparison or a logical variable is expected"),
        ("zero_stage + 'full' > 1", 14, "a number is expected"),
        ("'full' == zero_stage", 1, "a number is expected"),
        ("pipeline_schedule == '1f1c'", 22, "'1f1c' is none of none, gpipe, 1f1b"),
        ("pipeline_schedule < '1f1b'", 1, "by == or != alone"),
        ("pipeline_schedule == recompute_granularity", 22, "a word in quotes"),
        ("pipeline_schedule == '1f1b", 22, "not closed"),
        ("zero_stage == 99999999999", 15, "larger than"),
        ("__import__('os')", 1, "not a term of a node group"),
        ("", 1, "missing at the end"),
        ("(" * (MAX_DEPTH + 1), MAX_DEPTH + 1, "nested deeper"),
        ("not " * (MAX_DEPTH + 1), 4 * MAX_DEPTH + 1, "nested deeper"),
        ("1+" * MAX_WORDS, MAX_WORDS + 1, "more than"),
        ("1" * (MAX_LENGTH + 1), MAX_LENGTH + 1, "longer than"),
    ],
)
def test_a_fault_names_the_character_where_it_stands(text: str, at: int, words: str) -> None:
    with pytest.raises(ExpressionError, match=words) as caught:
        constraint_of(text)
    assert caught.value.at == at


def test_an_unknown_variable_and_an_unknown_word_come_with_the_nearest_known_one() -> None:
    with pytest.raises(ExpressionError) as caught:
        constraint_of("tensor_paralel_size <= 8")
    assert caught.value.nearest == "tensor_parallel_size"
    with pytest.raises(ExpressionError) as caught:
        constraint_of("pipeline_schedule == '1f1c'")
    assert caught.value.nearest == "1f1b"


def test_an_unknown_word_has_a_code_that_no_row_has() -> None:
    assert coded("pipeline_schedule", "1f1c") == -1


def test_the_variables_of_constraints_are_known() -> None:
    assert names_of(("zero_stage == 3 => num_gpus < 8", "true")) == {"zero_stage", "num_gpus"}


def profile_of(problem: Problem) -> Profile:
    """What prices a problem."""
    return default_profile(problem.cluster, problem.launcher)


SMALL = a_model(
    num_layers=4, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16, num_kv_heads=8
)


def small_problem(*constraints: str, top_k: int = 3) -> Problem:
    return a_problem(
        model=SMALL, cluster=a_cluster(num_nodes=1), batch=16, certify="none", top_k=top_k,
        constraints=constraints,
    )  # fmt: skip


def test_rows_that_break_a_constraint_carry_its_rule_and_no_other_row_does() -> None:
    free, limited = enumerate_space(small_problem()), enumerate_space(small_problem("num_gpus // 4 == 2"))
    assert len(free.columns) == len(limited.columns)
    text = "tensor_parallel_size * context_parallel_size <= 2"
    limited = enumerate_space(small_problem(text))
    inner = limited.columns.tensor_parallel_size * limited.columns.context_parallel_size
    assert limited.rules[-1].name == f"constraint {text}"
    assert (limited.legal == (free.legal & (inner <= 2))).all()
    assert 0 < limited.legal.sum() < free.legal.sum()


def test_every_plan_keeps_the_constraints_of_its_request() -> None:
    problem = small_problem("tensor_parallel_size == 4 or pipeline_parallel_size == 4", "zero_stage < 2")
    answer = search(problem, profile_of(problem))
    assert answer.status == "optimal"
    assert answer.plans
    for plan in answer.plans:
        assert 4 in (plan.config.tensor_parallel_size, plan.config.pipeline_parallel_size)
        assert plan.config.zero_stage < 2


def test_constraints_that_cannot_hold_together_are_a_conflict_with_a_way_out() -> None:
    problem = small_problem("tensor_parallel_size == 2", "tensor_parallel_size > 2")
    answer = searched_with_reasons(problem)
    assert answer.status == "infeasible"
    assert answer.infeasible is not None
    both = ("constraint tensor_parallel_size == 2", "constraint tensor_parallel_size > 2")
    assert answer.infeasible.conflicts == (both,)
    assert "without constraint tensor_parallel_size == 2" in answer.infeasible.changes


def test_the_check_refuses_a_plan_that_breaks_a_constraint() -> None:
    free = small_problem()
    plan = search(free, profile_of(free)).plans[0]
    text = f"tensor_parallel_size != {plan.config.tensor_parallel_size}"
    limited = small_problem(text)
    found = list(violations(limited, profile_of(limited), plan.config))
    assert found == [f"the constraint {text} does not hold"]


def test_the_check_adds_up_the_watts_of_a_plan_and_the_search_keeps_to_them() -> None:
    def powered(max_power_kw: float | None) -> Problem:
        free = small_problem()
        watts = a_cluster(num_nodes=2, gpu=a_gpu(power_watts=700.0))
        return replace(free, cluster=watts, options=replace(free.options, max_power_kw=max_power_kw))

    plan = search(powered(None), profile_of(powered(None))).plans[0]
    assert plan.config.num_gpus == 16
    enough, less = powered(9.184), powered(9.183)  # 16 * 0.82 * 700 W = 9.184 kW
    assert list(violations(enough, profile_of(enough), plan.config)) == []
    found = list(violations(less, profile_of(less), plan.config))
    assert found == ["16 GPUs draw 9.184 kW while they compute, 9.183 are allowed"]
    assert search(enough, profile_of(enough)).plans[0].config == plan.config
    kept = search(less, profile_of(less)).plans
    assert kept
    assert all(one.config.num_gpus * 0.82 * 700 <= 9183 for one in kept)


@pytest.mark.parametrize(
    ("nodes", "named"),
    [(1, {}), (1, {"num_gpus": (8,)}), (4, {"num_gpus": (32,)}), (4, {"num_nodes": (4,)})],
)
def test_a_budget_too_small_for_any_plan_names_the_budget_that_is_enough(
    nodes: int, named: dict[str, tuple[int, ...]]
) -> None:
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    cluster = a_cluster(num_nodes=nodes, gpu=a_gpu(power_watts=700.0))
    pin = {"pipeline_parallel_size": 1, "context_parallel_size": 1, "micro_batch_size": 1}
    problem = a_problem(model=model, cluster=cluster, batch=32, certify="none", max_power_kw=0.6, pin=pin)
    problem = replace(problem, options=replace(problem.options, **named))  # type: ignore[arg-type]
    found = answered(problem).infeasible
    assert found is not None
    assert any("max_power_kw = 0.6" in conflict for conflict in found.conflicts)
    (least,) = (one for one in found.remedies if one.kind == "power")
    least_kw, each_kw = float(least.change.split()[2]), 0.82 * 0.7
    assert least.num_gpus * each_kw <= least_kw < least.num_gpus * each_kw + 0.1
    enough = replace(problem, options=replace(problem.options, max_power_kw=least_kw))
    assert answered(enough).plans
    for gpus in range(1, min(least.num_gpus, 8)):  # fewer GPUs are not enough
        less = replace(problem, options=replace(problem.options, max_power_kw=gpus * each_kw + 0.01))
        assert not search(less, profile_of(less)).plans


def test_recomputing_every_layer_counts_as_all_layers_of_the_model() -> None:
    problem = small_problem("recompute_layers == 4", top_k=1)
    plan = search(problem, profile_of(problem)).plans[0]
    assert plan.config.recompute_granularity == "full"
    assert plan.config.recompute_layers == 4 == sum(plan.config.stage_layers)


def test_a_request_without_constraints_has_none() -> None:
    assert SearchOptions().constraints == ()


@pytest.mark.parametrize(
    ("text", "at", "words", "nearest"),
    [
        ("stage('slow') > 1", 1, "stage is not a term of a node group: gpus, idle_nodes, stages", "stages"),
        ("1 < stages(slow)", 12, "stages needs a node group in quotes", None),
        ("stages('slow' > 1", 15, "a closing parenthesis is missing", None),
        ("first('slow') > 1", 17, "a comparison or a logical variable is expected", None),
        ("stages('slow')", 1, "a constraint is one comparison", None),
    ],
)
def test_a_fault_of_a_term_names_its_character(text: str, at: int, words: str, nearest: str | None) -> None:
    with pytest.raises(ExpressionError, match=words) as caught:
        constraint_of(text)
    assert (caught.value.at, caught.value.nearest) == (at, nearest)


def test_terms_of_node_groups_are_numbers_or_truth_values_of_their_group() -> None:
    node = constraint_of('idle_nodes("slow") + stages(\'fast\') == 3 and not first("slow")')
    names = ("idle_nodes('slow')", "stages('fast')", "first('slow')")
    assert names_of(('idle_nodes("slow") + stages(\'fast\') == 3 and not first("slow")',)) == set(names)
    assert holds_for(node, dict(zip(names, (1, 2, False), strict=True)))
    assert not holds_for(node, dict(zip(names, (1, 2, True), strict=True)))
