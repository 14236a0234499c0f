"""Weight gradients as passes of their own, and chunks in a V."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout, assemble
from meshwright.solver.predict import predict
from tests.unit.solver.cost.pricing import GPT, a_layout, a_problem, a_profile

PROBLEM = a_problem(replace(GPT, num_layers=16, vocab_size=1024))  # ends that weigh little
PROFILE = a_profile(PROBLEM)


def four_ranks(schedule: str, **changes: object) -> Configuration:
    return a_layout(
        **{
            "pipeline_parallel_size": 4,
            "stage_layers": (4, 4, 4, 4),
            "pipeline_schedule": schedule,
            "micro_batch_size": 4,
            "num_microbatches": 12,
            **changes,
        }
    )


def test_only_split_schedules_put_weight_gradients_off() -> None:
    columns = Columns.of([four_ranks("1f1b"), four_ranks("zb_h1")])
    weight, backward = (
        getattr(price(PROBLEM, columns, PROFILE), name) for name in ("weight_gradient_s", "backward_s")
    )
    assert not weight[0].any()
    # of a layer's and the head's backward pass less than half: one of two products; the embedding has none
    assert (weight[1, [0, 2]] > 0.0).all()
    assert (weight[1, [0, 2]] < 0.5 * backward[1, [0, 2]]).all()
    assert weight[1, 1] == 0.0


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_1p"])
def test_a_split_backward_pass_shortens_the_step_but_not_the_work(schedule: str) -> None:
    plain = predict(PROBLEM, PROFILE, four_ranks("1f1b"))
    split = predict(PROBLEM, PROFILE, four_ranks(schedule))
    assert split.step_time_s < plain.step_time_s
    assert [stage.compute_s for stage in split.stages] == [stage.compute_s for stage in plain.stages]


def test_twice_the_memory_buys_less_bubble() -> None:
    one, two = (predict(PROBLEM, PROFILE, four_ranks(name)) for name in ("zb_h1", "zb_h2"))
    assert two.step_time_s < one.step_time_s
    assert two.peak_memory_bytes > one.peak_memory_bytes


def test_a_v_puts_both_ends_of_the_model_on_rank_0() -> None:
    # 8 layers over 4 ranks: rank 0 holds chunks 0 and 7, so the embedding, the head, and 2 layers
    problem = a_problem(replace(GPT, num_layers=8))
    one = four_ranks("zb_v", virtual_pipeline_size=2, stage_layers=(1,) * 8)
    columns = Columns.of([one])
    prices, layout = price(problem, columns, PROFILE), LayerLayout.of(problem.model)
    weights = assemble(prices, columns, layout, np.array([one.stage_layers])).memory_bytes["weights"][0]
    layer, embedding, head = prices.weights_bytes[0]
    assert weights == pytest.approx([2 * layer + embedding + head, 2 * layer, 2 * layer, 2 * layer])
    assert one.layers_of_rank(0) == (1, 1)


def test_rows_of_all_schedules_are_added_up_as_alone() -> None:
    rows = [
        four_ranks("1f1b"),
        four_ranks("zb_2p"),
        four_ranks("interleaved_1f1b", pipeline_parallel_size=2, virtual_pipeline_size=2),
        four_ranks("zb_v", pipeline_parallel_size=2, virtual_pipeline_size=2),
        four_ranks("looped_bfs", pipeline_parallel_size=2, virtual_pipeline_size=2),
        a_layout(stage_layers=(16,)),
    ]
    layout = LayerLayout.of(PROBLEM.model)
    splits = np.array([[*row.stage_layers, *[0] * (4 - len(row.stage_layers))] for row in rows])
    columns = Columns.of(rows)
    together = assemble(price(PROBLEM, columns, PROFILE), columns, layout, splits)
    for number, row in enumerate(rows):
        single = Columns.of([row])
        alone = assemble(price(PROBLEM, single, PROFILE), single, layout, np.array([row.stage_layers]))
        ranks = row.pipeline_parallel_size
        assert together.peak_memory_bytes[number, :ranks].tolist() == alone.peak_memory_bytes[0].tolist()
        assert together.rank_time_s[number, :ranks].tolist() == alone.rank_time_s[0].tolist()
