from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.uncertainty import extrapolated
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_gpu, a_model
from tests.unit.solver.cost.pricing import a_layout, a_problem, a_profile


def beyond(problem: Problem, *configurations: Configuration) -> list[tuple[str, ...]]:
    return extrapolated(problem, Columns.of(list(configurations)), a_profile(problem))


def test_shapes_within_the_tables_are_not_marked() -> None:
    assert beyond(a_problem(a_model(), seq_length=8192), a_layout(stage_layers=(80,))) == [()]


def test_a_sequence_longer_than_any_measured_one_is_named() -> None:
    # the H100's attention was measured up to 16 384 tokens; 4 ranks share them, so products stay small
    problem = a_problem(a_model(), seq_length=131_072)
    assert beyond(problem, a_layout(stage_layers=(80,), context_parallel_size=4)) == [("attention",)]


def test_more_tokens_than_any_measured_product_had_are_named_in_their_row_alone() -> None:
    # 8 x 8 192 = 65 536 rows; the table ends at 32 768
    rows = (a_layout(stage_layers=(80,)), a_layout(stage_layers=(80,), micro_batch_size=8))
    assert beyond(a_problem(a_model(), seq_length=8192), *rows) == [(), ("gemm",)]


def test_a_gpu_that_nobody_measured_says_so() -> None:
    other = a_gpu(slug="x", architecture="cdna3", peak_flops={"bf16": 1e15})
    problem = a_problem(a_model(), cluster=a_cluster(num_nodes=4, gpu=other))
    assert beyond(problem, a_layout(stage_layers=(80,))) == [("operators",)]
