import pytest

from meshwright.solver.configuration import Columns
from meshwright.solver.schedules.schedule import fill_share, in_flight
from tests.unit.solver.cost.pricing import a_layout


def held(**changes: object) -> list[int]:
    layout = a_layout(**changes)
    return [int(count) for count in in_flight(Columns.of([layout]))[0]]


def phi(**changes: object) -> float:
    return float(fill_share(Columns.of([a_layout(**changes)]))[0])


FOUR = {"pipeline_parallel_size": 4, "stage_layers": (1, 1, 1, 1)}


def test_a_1f1b_rank_holds_as_many_as_ranks_follow_it() -> None:
    assert held(**FOUR, pipeline_schedule="1f1b") == [4, 3, 2, 1]


def test_few_micro_batches_fill_less() -> None:
    assert held(**FOUR, pipeline_schedule="1f1b", num_microbatches=2) == [2, 2, 2, 1]


def test_gpipe_holds_every_micro_batch() -> None:
    assert held(**FOUR, pipeline_schedule="gpipe") == [8, 8, 8, 8]


def test_zb_2p_has_room_for_twice_as_many_on_every_rank() -> None:

    assert held(**FOUR, pipeline_schedule="zb_2p") == [8, 8, 8, 8]


def test_an_interleaved_first_rank_runs_ahead_by_2p_minus_1_passes_and_a_chunk_round() -> None:
    # p = 2, v = 2: rank 0 has 2 * 1 + 2 + 1 = 5 passes before its first backward pass: chunk 0 has
    # passes 0, 1 and 4; chunk 2 has passes 2 and 3. Rank 1: 3 passes: chunk 1 two, chunk 3 one.
    interleaved = {
        "pipeline_parallel_size": 2,
        "virtual_pipeline_size": 2,
        "stage_layers": (1, 1, 1, 1),
        "pipeline_schedule": "interleaved_1f1b",
    }
    assert held(**interleaved) == [3, 2, 2, 1]


def test_the_fill_shrinks_with_chunks_and_zero_bubbles() -> None:
    assert phi(**FOUR, pipeline_schedule="1f1b") == 1.0
    assert phi(pipeline_parallel_size=2, virtual_pipeline_size=2, stage_layers=(1, 1, 1, 1)) == 0.5
    assert phi(**FOUR, pipeline_schedule="zb_1p") == pytest.approx(1 / 3)
