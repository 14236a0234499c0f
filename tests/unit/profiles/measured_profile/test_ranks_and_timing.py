"""What torchrun says about the processes, and what a clock says about repeats."""

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.measure.collectives import Ranks, ranks_from
from meshwright.profiles.measure.timing import timing_of

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}


def test_without_torchrun_there_is_one_process() -> None:
    assert ranks_from({}) == Ranks()
    assert Ranks().leads


def test_torchrun_tells_ranks_and_nodes() -> None:
    ranks = ranks_from(TORCHRUN)
    assert ranks == Ranks(rank=9, world_size=16, local_rank=1, local_world_size=8)
    assert not ranks.leads
    assert ranks.words() == "8x2"


@pytest.mark.parametrize(
    "wrong",
    [
        {"RANK": "16"},
        {"RANK": "-1"},
        {"RANK": "²"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "1" * 400},
        {"LOCAL_RANK": "8"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "0"},
        {"LOCAL_WORLD_SIZE": "32"},
    ],
)
def test_ranks_that_contradict_each_other_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidProblemError, match="torchrun"):
        ranks_from({**TORCHRUN, **wrong})


def test_percentiles_of_eleven_repeats_are_the_second_sixth_and_tenth() -> None:
    timing = timing_of([float(value) for value in range(10, -1, -1)], [3.0, 1.0, 2.0])
    assert (timing.p10_s, timing.median_s, timing.p90_s) == (1.0, 5.0, 9.0)
    assert (timing.repeats, timing.host_s) == (11, 2.0)
