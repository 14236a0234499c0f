"""Many simulations at once end like one at a time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import SCHEDULES, FloatArray
from meshwright.solver.problem import InvalidPlanError
from meshwright.solver.schedules.schedule import AUTOMATIC, V_SHAPED, takes_chunks
from meshwright.solver.schedules.simulate import finish_of_many_s, rank_finish_s, waves_of
from meshwright.solver.search import candidates as arrange
from meshwright.solver.search.candidates import Ends
from meshwright.solver.search.splits import windows

STATIC = [name for name in SCHEDULES if name != "none" and name not in AUTOMATIC]


@given(st.sampled_from(STATIC), st.integers(2, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_many_simulations_end_like_one_at_a_time(schedule: str, pp: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vpp = 2 if schedule in V_SHAPED else int(rng.integers(2, 4)) if takes_chunks(schedule, pp, 2) else 1
    m = pp * int(rng.integers(1, 4)) if vpp > 1 else int(rng.integers(1, 12))
    forward, backward = rng.uniform(0.5, 2.0, (2, 7, pp * vpp))
    weight = backward * rng.uniform(0.2, 0.6, backward.shape)
    many = finish_of_many_s(
        forward, backward, weight_s=weight, pp=pp, num_microbatches=m, schedule=schedule
    )
    for at in range(7):
        one = rank_finish_s(forward[at].tolist(), backward[at].tolist(), pp=pp, num_microbatches=m,
                            schedule=schedule, weight_s=weight[at].tolist())  # fmt: skip
        assert many[at].tolist() == pytest.approx(one, rel=1e-12)


def test_pipelines_with_the_same_passes_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = list[int]()

    def counted(*passes: FloatArray, **shape: Any) -> FloatArray:  # noqa: ANN401 - as the function has them
        simulated.append(len(passes[0]))
        return finish_of_many_s(*passes, **shape)

    monkeypatch.setattr(arrange, "finish_of_many_s", counted)
    passes = np.random.default_rng(0).uniform(0.5, 2.0, (7, 3, 8))
    passes[:, 2] = 0.0
    ends = Ends()
    kept: dict[str, Any] = {"schedule": "interleaved_1f1b", "pp": 4, "num_microbatches": 8}
    expected = finish_of_many_s(
        passes[:, 0], passes[:, 1], pp=4, num_microbatches=8, schedule="interleaved_1f1b"
    )
    for _ in range(2):
        assert np.array_equal(ends.finish_s(passes.copy(), **kept), expected)
    assert simulated == [7]
    ends.finish_s(passes, **{**kept, "num_microbatches": 12})
    assert simulated == [7, 7]
    passes[3:5] = passes[3:5, :, ::-1]  # two splits with other passes
    found = ends.finish_s(passes, **kept)
    assert simulated == [7, 7, 2]
    assert np.array_equal(found[[0, 1, 2, 5, 6]], expected[[0, 1, 2, 5, 6]])
    assert np.array_equal(found, Ends().finish_s(passes, **kept))


def test_micro_batches_that_do_not_fit_the_groups_are_refused() -> None:
    with pytest.raises(InvalidPlanError):
        waves_of(2, 2, 3, "interleaved_1f1b")


def test_a_window_of_larger_chunks_starts_anywhere_and_the_last_chunk_may_lack_layers() -> None:
    # 10 layers in 8 chunks: six of 1 and a window of two chunks of 2
    splits = windows(10, 8, first=0, last=0, smallest=1, starts=3)
    assert splits == [(2, 2, 1, 1, 1, 1, 1, 1), (1, 1, 1, 2, 2, 1, 1, 1), (1, 1, 1, 1, 1, 1, 2, 2)]
    # the last chunk lacks one: 7 + 1 = 8 layers make two in each of four chunks, less one at the end
    assert windows(7, 4, first=0, last=1, smallest=1, starts=3) == [(2, 2, 2, 1)]
    assert windows(7, 4, first=0, last=1, smallest=2, starts=3) == []
