"""A drawn step ends where the predicted step does, and no rank runs two passes at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration, StageGroup
from meshwright.solver.explain.roofline import rooflines_of
from meshwright.solver.explain.timeline import timelines_of
from meshwright.solver.explanation import Timeline, window
from meshwright.solver.predict import predict
from meshwright.solver.schedules.simulate import KINDS, passes_of, rank_finish_s
from tests.builders import a_configuration, a_model, a_moe_model, a_problem
from tests.problems.mixed_clusters import a_group, a_mixed_problem

SCHEDULES = ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_1p", "zb_2p", "zb_h1"]
SCHEDULES += ["zb_h2", "zb_v", "dualpipe_v"]
CHUNKS = {"interleaved_1f1b": 2, "looped_bfs": 2, "zb_v": 2, "dualpipe_v": 2}


def a_schedule(name: str, **changes: object) -> Configuration:
    vpp = CHUNKS.get(name, 1)
    return a_configuration(
        pipeline_schedule=name,
        virtual_pipeline_size=vpp,
        stage_layers=(80 // (4 * vpp),) * (4 * vpp),
        num_microbatches=16,
        data_parallel_size=4,
        **changes,
    )


def timeline_of(config: Configuration) -> Timeline:
    problem = a_problem(batch=64)
    return timelines_of(problem, default_profile(problem.cluster, problem.launcher), config)[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_timeline_of_every_schedule_takes_as_long_as_the_prediction(schedule: str) -> None:
    problem, config = a_problem(batch=64), a_schedule(schedule)
    profile = default_profile(problem.cluster, problem.launcher)
    timeline = timelines_of(problem, profile, config)[0]
    assert timeline.step_time_s == pytest.approx(predict(problem, profile, config).step_time_s, rel=1e-12)
    ends = [(one.start_s + one.seconds).max() for one in timeline.ranks]
    assert ends == pytest.approx([one.end_s for one in timeline.ranks], rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_rank_runs_each_of_its_passes_once_and_one_at_a_time(schedule: str) -> None:
    timeline = timeline_of(a_schedule(schedule))
    for rank in timeline.ranks:
        order = np.argsort(rank.start_s, kind="stable")
        starts, ends = rank.start_s[order], (rank.start_s + rank.seconds)[order]
        assert (starts[1:] >= ends[:-1] - 1e-9).all()
        ran = set(zip(rank.kind.tolist(), rank.chunk.tolist(), rank.micro_batch.tolist(), strict=True))
        assert len(ran) == len(rank.start_s)
        kinds = {KINDS[kind] for kind in rank.kind.tolist()}
        assert kinds in ({"forward", "backward"}, {"forward", "input_gradient", "weight_gradient"})
        # 16 micro-batches through each of its chunks, forward and each part of backward
        assert len(ran) == 16 * CHUNKS.get(schedule, 1) * len(kinds)


@given(
    st.sampled_from(SCHEDULES),
    st.integers(2, 4),
    st.integers(1, 3),
    st.lists(st.floats(0.1, 3.0), min_size=16, max_size=16),
)
@example("zb_2p", 3, 3, [1.0, 1.0633150857169693, 1.2, 1.0, 1.0, 2.0, *[1.0] * 10])  # two orders tie
@settings(max_examples=60, deadline=None)
def test_passes_end_when_the_simulation_says(
    schedule: str, pp: int, rounds: int, seconds: list[float]
) -> None:
    chunks, m = pp * CHUNKS.get(schedule, 1), pp * rounds
    forward, backward = tuple(seconds[:chunks]), tuple(2.0 * one for one in seconds[chunks : 2 * chunks])
    weight = tuple(0.4 * one for one in backward)
    found = passes_of(forward, backward, weight, pp=pp, num_microbatches=m, schedule=schedule)
    finish = rank_finish_s(forward, backward, pp=pp, num_microbatches=m, schedule=schedule, weight_s=weight)
    bypasses = schedule.startswith("zb_")
    spans = [one.end_s - (float(one.start_s[0]) if bypasses else 0.0) for one in found]
    assert spans == pytest.approx(finish)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_critical_path_fills_the_time_of_the_slowest_rank(schedule: str) -> None:
    timeline = timeline_of(a_schedule(schedule))
    last = timeline.last
    path = sorted(
        (start, start + seconds)
        for rank in timeline.ranks
        for start, seconds in zip(rank.start_s[rank.critical], rank.seconds[rank.critical], strict=True)
    )
    assert path[-1][1] == pytest.approx(last.end_s)
    assert path[0][0] <= last.own_start_s + 1e-9
    starts, ends = [start for start, _ in path], [end for _, end in path]
    assert ends[:-1] == pytest.approx(starts[1:])  # no gap, no overlap
    # so that the passes on it, from the rank's own start, are its time but for gradients and optimizer
    lead_s = last.own_start_s - path[0][0]
    taken_s = sum(end - start for start, end in path) - lead_s
    assert taken_s + last.gradients_s + last.optimizer_s == pytest.approx(last.time_s)


def test_the_critical_path_of_one_forward_one_backward_runs_down_and_up_the_pipeline() -> None:
    timeline = timeline_of(a_schedule("1f1b"))
    # micro-batch 0 goes down ranks 0 to 3: the forward pass of each is on the path
    assert all(rank.critical.any() for rank in timeline.ranks)
    assert not all(rank.critical.all() for rank in timeline.ranks)


def test_one_rank_runs_forward_and_backward_in_turn() -> None:
    (alone,) = passes_of((2.0,), (3.0,), pp=1, num_microbatches=2, schedule="none")
    assert alone.start_s.tolist() == [0.0, 2.0, 5.0, 7.0]  # 2 s forward, 3 s backward, twice
    assert alone.end_s == 10.0


def test_a_window_keeps_the_first_and_the_last_passes() -> None:
    timeline = timeline_of(a_schedule("1f1b"))
    assert timeline.num_passes == 4 * 16 * 2
    assert window(timeline, 128).gap_s is None
    short = window(timeline, 40)
    assert short.gap_s is not None
    assert short.timeline.num_passes <= 44  # two halves of 20; equal starts stay together
    kept = np.concatenate([rank.start_s for rank in short.timeline.ranks])
    assert not ((kept >= short.gap_s[0]) & (kept < short.gap_s[1])).any()
    assert short.timeline.step_time_s == timeline.step_time_s


def test_a_very_long_step_keeps_its_first_micro_batches_and_its_length() -> None:
    problem = a_problem(batch=4 * 40_000)
    config = replace(a_schedule("1f1b"), num_microbatches=40_000)
    profile = default_profile(problem.cluster, problem.launcher)
    timeline = timelines_of(problem, profile, config)[0]
    assert timeline.simulated < timeline.num_microbatches == 40_000
    assert timeline.num_passes <= 2**16
    assert timeline.step_time_s == pytest.approx(predict(problem, profile, config).step_time_s)


def test_stages_on_unlike_groups_have_a_timeline_of_their_own_prices() -> None:
    problem = a_mixed_problem((a_group(), a_group(speed=0.5, slug="slow")))
    profile = default_profile(problem.cluster, "none")
    places = tuple(
        StageGroup(group=name, num_gpus=2, num_nodes=1.0, tensor_parallel_size=1)
        for name in ("fast", "slow")
    )
    config = Configuration(
        pipeline_parallel_size=2, data_parallel_size=2, num_microbatches=4, pipeline_schedule="1f1b",
        stage_layers=(2, 2), stage_groups=places,
    )  # fmt: skip
    (timeline,) = timelines_of(problem, profile, config)
    fast, slow = timeline.ranks
    assert slow.seconds.mean() > 1.5 * fast.seconds.mean()


def test_operators_stay_under_their_roof_and_experts_are_one_of_them() -> None:
    problem = a_problem(model=a_moe_model(), batch=64)
    config = a_configuration(
        tensor_parallel_size=1, sequence_parallel=False, expert_parallel_size=8, pipeline_parallel_size=4,
        virtual_pipeline_size=1, data_parallel_size=32, num_microbatches=2, pipeline_schedule="1f1b",
        stage_layers=(8,) * 4,
    )  # fmt: skip
    (roof,) = rooflines_of(problem, default_profile(problem.cluster, problem.launcher), config)
    names = [point.name for point in roof.points]
    assert names == [
        "attention in (QKV)",
        "attention out",
        "attention core",
        "routed experts",
        "head (logits)",
    ]
    for point in roof.points:
        assert 0 < point.rate_flops < roof.roof_flops(point)


def test_products_of_a_layer_s_own_embeddings_have_names_and_flops_of_their_own() -> None:
    model = replace(a_model(), layer_embedding_size=64)
    problem, config = a_problem(model=model), a_configuration()
    (roof,) = rooflines_of(problem, default_profile(problem.cluster, problem.launcher), config)
    gate, back = (point for point in roof.points if "layer's embeddings" in point.name)
    # 8192 tokens, from 8192 to 64 and back
    assert gate.flops == back.flops == 2 * 8192 * 8192 * 64
    assert (gate.name, back.name) == (
        "gate of the layer's embeddings", "projection of the layer's embeddings",
    )  # fmt: skip


def test_a_product_counts_two_flops_a_multiply_add() -> None:
    problem, config = a_problem(), a_configuration()
    (roof,) = rooflines_of(problem, default_profile(problem.cluster, problem.launcher), config)
    out = next(point for point in roof.points if point.name == "MLP down")
    # 8192 tokens, 28672 / 8 in, 8192 out: 2 * 8192 * 3584 * 8192 FLOPs
    assert out.flops == 2 * 8192 * 3584 * 8192
    # both inputs and the output in 2 bytes
    assert out.moved_bytes == 2 * (8192 * 3584 + 3584 * 8192 + 8192 * 8192)
