"""Event simulation by hand."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.solver.configuration import SCHEDULES, FloatArray
from meshwright.solver.problem import InvalidPlanError
from meshwright.solver.schedules.orders import slots_of
from meshwright.solver.schedules.schedule import AUTOMATIC, BYPASSES_SYNC, V_SHAPED, takes_chunks
from meshwright.solver.schedules.simulate import finish_of_many_s, rank_finish_s, waves_of
from meshwright.solver.search import candidates as arrange
from meshwright.solver.search.candidates import Ends, PipelineShape
from meshwright.solver.search.splits import windows


def test_one_rank_runs_forward_and_backward_in_turn() -> None:
    assert rank_finish_s([1.0], [2.0], pp=1, num_microbatches=3, schedule="none") == [9.0]


def test_even_1f1b_takes_m_plus_p_minus_1_passes() -> None:
    # 4 ranks, 8 micro-batches of 1 + 2 s: rank 0 ends at (8 + 3) * 3 s, rank 3 three backward passes before
    finish = rank_finish_s([1.0] * 4, [2.0] * 4, pp=4, num_microbatches=8, schedule="1f1b")
    assert finish == [33.0, 31.0, 29.0, 27.0]


def test_uneven_1f1b_of_two_ranks_by_hand() -> None:
    # rank 0: F0 0-1, F1 1-2; rank 1 (2 s, 2 s): F0 1-3, B0 3-5, F1 5-7, B1 7-9; rank 0: B0 5-6, B1 9-10.
    finish = rank_finish_s([1.0, 2.0], [1.0, 2.0], pp=2, num_microbatches=2, schedule="1f1b")
    assert finish == [10.0, 9.0]


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    # 2 ranks, 4 micro-batches, work of 4 * (1 + 2) s a rank: bubble 1 * 3 s plain, 1.5 s in two chunks.
    plain = rank_finish_s([1.0] * 2, [2.0] * 2, pp=2, num_microbatches=4, schedule="1f1b")
    halves = rank_finish_s([0.5] * 4, [1.0] * 4, pp=2, num_microbatches=4, schedule="interleaved_1f1b")
    assert (max(plain), max(halves)) == (15.0, 13.5)


def rank_order(
    rank: int, *, pp: int, vpp: int, num_microbatches: int, schedule: str
) -> list[tuple[bool, int, int]]:
    """One rank's passes in their order: forward or not, chunk in model order, micro-batch."""
    slots = slots_of(rank, pp=pp, vpp=vpp, num_microbatches=num_microbatches, schedule=schedule)
    located = [divmod(slot, num_microbatches) for slot in slots]
    last = pp * vpp
    return [
        (block <= last, block - 1 if block <= last else 2 * last - block, micro) for block, micro in located
    ]


def test_gpipe_runs_all_forward_passes_first() -> None:
    order = rank_order(0, pp=2, vpp=1, num_microbatches=2, schedule="gpipe")
    assert order == [(True, 0, 0), (True, 0, 1), (False, 0, 0), (False, 0, 1)]


def test_1f1b_ranks_warm_up_with_one_pass_for_each_rank_behind() -> None:
    order = rank_order(1, pp=3, vpp=1, num_microbatches=3, schedule="1f1b")
    forward = [passed[0] for passed in order]
    assert forward == [True, True, False, True, False, False]


def test_interleaved_backward_starts_with_the_last_chunk() -> None:
    order = rank_order(1, pp=2, vpp=2, num_microbatches=2, schedule="interleaved_1f1b")
    first = next(passed for passed in order if not passed[0])
    assert first == (False, 3, 0)


def test_a_schedule_whose_groups_do_not_fit_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match="cannot run 3 micro-batches"):
        rank_finish_s([1.0] * 4, [1.0] * 4, pp=2, num_microbatches=3, schedule="interleaved_1f1b")


@pytest.mark.parametrize(("pp", "chunks"), [(4, 4), (3, 6), (8, 16)])
def test_very_many_micro_batches_grow_by_the_slowest_rank_as_all_passes_simulated_do(
    monkeypatch: pytest.MonkeyPatch, pp: int, chunks: int
) -> None:
    forward = [1.0 + 0.1 * (chunk * 7 % 5) for chunk in range(chunks)]
    backward = [2.1 * seconds for seconds in forward]
    kind = "1f1b" if chunks == pp else "interleaved_1f1b"
    whole = rank_finish_s(forward, backward, pp=pp, num_microbatches=64 * pp, schedule=kind)
    monkeypatch.setattr(
        "meshwright.solver.schedules.simulate.MAX_PASSES", 16 * pp * 2 * chunks
    )  # a quarter of them
    assert rank_finish_s(
        forward, backward, pp=pp, num_microbatches=64 * pp, schedule=kind
    ) == pytest.approx(whole, rel=1e-3)


def test_ranks_that_wait_for_one_another_grow_by_more_than_the_slowest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # every rank works (1 + 4) * 3 = 15 s a micro-batch, but short and long chunks interleave unevenly
    forward = [1.0, 4.0, 1.0, 4.0, 1.0, 4.0]
    backward = [2.0 * seconds for seconds in forward]
    run = partial(rank_finish_s, forward, backward, pp=3, num_microbatches=360, schedule="interleaved_1f1b")
    whole = max(run())
    assert whole > 1.02 * 360 * 15
    monkeypatch.setattr("meshwright.solver.schedules.simulate.MAX_PASSES", 90 * 2 * 6)
    assert max(run()) == pytest.approx(whole, rel=2e-3)


def test_a_billion_micro_batches_cost_no_more_than_a_few() -> None:
    # two even ranks of 3 s: (m + 1) * 3 s on rank 0
    finish = rank_finish_s([1.0] * 2, [2.0] * 2, pp=2, num_microbatches=10**9, schedule="1f1b")
    assert finish[0] == pytest.approx(3.0 * (10**9 + 1), rel=1e-12)


# Many simulations at once end like one at a time.

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
    kept = PipelineShape(pp=4, num_microbatches=8, schedule="interleaved_1f1b")
    expected = finish_of_many_s(
        passes[:, 0], passes[:, 1], pp=4, num_microbatches=8, schedule="interleaved_1f1b"
    )
    for _ in range(2):
        assert np.array_equal(ends.finish_s(passes.copy(), kept), expected)
    assert simulated == [7]
    ends.finish_s(passes, replace(kept, num_microbatches=12))
    assert simulated == [7, 7]
    passes[3:5] = passes[3:5, :, ::-1]  # two splits with other passes
    found = ends.finish_s(passes, kept)
    assert simulated == [7, 7, 2]
    assert np.array_equal(found[[0, 1, 2, 5, 6]], expected[[0, 1, 2, 5, 6]])
    assert np.array_equal(found, Ends().finish_s(passes, kept))


@given(st.sampled_from([one for one in STATIC if one not in BYPASSES_SYNC]), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_no_pipeline_ends_before_others_of_its_shape_let_it(schedule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vpp = 2 if schedule in V_SHAPED or takes_chunks(schedule, 3, 2) else 1
    shape, ends = PipelineShape(pp=3, num_microbatches=6, schedule=schedule), Ends()
    passes = rng.uniform(0.5, 2.0, (9, 3, 3 * vpp))
    passes[:, 2] = rng.uniform(0.0, 0.5, (9, 3 * vpp)) * passes[:, 1]
    simulated = ends.finish_s(passes, shape)
    ends.learn(passes[:4], simulated[:4], shape)
    least = ends.least_s(passes, shape)
    assert (least <= simulated).all()
    assert np.allclose(least[:4], simulated[:4])  # known themselves
    assert np.allclose(ends.least_s(1.5 * passes[:4], shape), 1.5 * simulated[:4])
    assert (least > 0.0).all()


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
