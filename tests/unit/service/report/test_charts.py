"""What is drawn has the length of what it stands for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.service.report.charts.bars import memory_bars, waterfall_bars
from meshwright.service.report.charts.scatter import (
    linear_axis,
    log_axis,
    pareto_scatter,
    roofline_scatter,
    ticks,
)
from meshwright.service.report.charts.timeline import WIDTH, timeline_chart
from meshwright.service.report.rank_map import rank_map
from meshwright.service.report.sides import comparison_of
from meshwright.solver.answer import HostOrder
from meshwright.solver.explain.roofline import rooflines_of
from meshwright.solver.explain.timeline import timelines_of
from tests.builders import a_cluster, a_configuration, a_plan, a_prediction, a_problem, an_answer
from tests.served.reports import small_answer


def test_memory_is_drawn_against_the_limit() -> None:
    seen = a_prediction()
    chart = memory_bars(seen, 0.08)
    first = chart.rows[0]
    assert first.limit is not None
    # 45 of 79 GiB
    drawn = sum(piece.width for piece in first.segments)
    assert drawn / first.limit == pytest.approx(45.0 / 79.0, rel=2e-3)
    assert first.low is not None
    assert first.high is not None
    assert first.low < drawn < first.high
    assert first.figure == "45.0 of 79.0 GiB"
    # whiskers are the same factor to both sides: exp(1.2816 * 0.08) = 1.108
    assert first.high / drawn == pytest.approx(1.108, rel=2e-3)


def test_a_stage_over_its_limit_still_fits_the_picture() -> None:
    seen = a_prediction()
    large = replace(seen.stages[0], peak_memory_bytes=120 * GIB, memory_bytes={"weights": 120 * GIB})
    chart = memory_bars(replace(seen, stages=(large, *seen.stages[1:])), None)
    assert max(piece.at + piece.width for row in chart.rows for piece in row.segments) <= 1000
    assert chart.rows[0].low is None


@given(st.lists(st.floats(-5.0, 20.0), min_size=1, max_size=12))
def test_the_waterfall_ends_where_the_step_does(values: list[float]) -> None:
    terms = {"ideal": 30.0} | {f"term {at}": value for at, value in enumerate(values)}
    if sum(terms.values()) <= 1.0:
        return
    chart = waterfall_bars(terms, sum(terms.values()))
    whole = chart.rows[-1].segments[0]
    assert chart.rows[0].segments[0].term == "ideal"
    for row in chart.rows:
        assert row.segments[0].at >= -0.1
        assert row.segments[0].at + row.segments[0].width <= 1000.2
    last = chart.rows[-2].segments[0]
    end = last.at if last.term == "gain" else last.at + last.width
    assert end == pytest.approx(whole.at + whole.width, abs=1.5)


def test_the_pictures_of_passes_are_as_long_as_the_step() -> None:
    problem, config = a_problem(), a_configuration()
    profile = default_profile(problem.cluster, problem.launcher)
    (timeline,) = timelines_of(problem, profile, config)
    chart = timeline_chart(timeline, 10**6)
    assert chart.gap is None
    assert chart.marks[0] == "0"
    # 4 ranks of 5 chunks, 128 micro-batches, forward and backward, each one box
    boxes = sum(
        stroke.path.count("M") for row in chart.rows for stroke in row.strokes if "ward" in stroke.kind
    )
    assert boxes == 4 * 5 * 128 * 2
    _, width = chart.rows[0].strokes[0].boxes[0]
    assert width == pytest.approx(timeline.ranks[0].seconds[0] / timeline.step_time_s * WIDTH, abs=1)


def test_the_line_of_the_critical_path_is_as_long_as_the_step() -> None:
    problem, config = a_problem(), a_configuration()
    profile = default_profile(problem.cluster, problem.launcher)
    (timeline,) = timelines_of(problem, profile, config)
    chart = timeline_chart(timeline, 10**6)
    lines = [stroke for row in chart.rows for stroke in row.strokes if stroke.kind == "critical"]
    drawn = sum(width for line in lines for _, width in line.boxes)
    after = timeline.after_s / timeline.end_s * WIDTH  # what comes once a step, after the last rank
    assert drawn + after == pytest.approx(WIDTH, rel=0.01)
    assert ("critical", "critical path (underlined)") in chart.legend
    assert "decide the step" in chart.note


def test_a_shortened_timeline_shows_its_gap_and_stays_small() -> None:
    problem, config = a_problem(), a_configuration()
    profile = default_profile(problem.cluster, problem.launcher)
    (timeline,) = timelines_of(problem, profile, config)
    chart = timeline_chart(timeline, 400)
    assert chart.gap is not None
    assert "left out" in chart.note
    assert sum(len(stroke.path) for row in chart.rows for stroke in row.strokes) < 400 * 40


def test_points_stand_where_their_figures_are() -> None:
    fast, lean = a_plan(), a_plan(rank=2, plan_id="2" * 12)
    lean = replace(lean, prediction=a_prediction(step_time_s=34.0, peak_memory_bytes=30 * GIB))
    chart = pareto_scatter(an_answer(fast, lean), fast.plan_id)
    by_title = {point.title[:2]: point for point in chart.points}
    assert by_title["#1"].x < by_title["#2"].x
    assert by_title["#1"].y < by_title["#2"].y  # more memory stands higher
    assert by_title["#1"].kind == "chosen"
    assert chart.summary == "The leanest plan listed needs 15.0 GiB less and is 3.7 % slower."  # 34 / 32.8
    assert chart.y_ticks[0][1] == "0"
    assert [kind for kind, _ in chart.legend] == ["chosen", "plan", "line"]


def test_of_many_plans_only_those_on_the_front_are_named() -> None:
    plans = [
        replace(a_plan(rank=at, plan_id=f"{at:012x}"), prediction=a_prediction(step_time_s=30.0 + at))
        for at in range(1, 31)
    ]
    lean = replace(plans[9], prediction=a_prediction(step_time_s=40.0, peak_memory_bytes=20 * GIB))
    chart = pareto_scatter(an_answer(*plans[:9], lean, *plans[10:]), plans[0].plan_id)
    assert {point.label for point in chart.points if point.label} == {"#1", "#10"}


def test_operators_stand_under_the_roof() -> None:
    problem, config = a_problem(), a_configuration()
    (roof,) = rooflines_of(problem, default_profile(problem.cluster, problem.launcher), config)
    chart = roofline_scatter(roof)
    top = min(float(pair.split(",")[1]) for pair in chart.lines[0].points.split())
    assert all(point.y > top for point in chart.points)  # y grows downwards


@given(st.floats(-1e4, 1e4), st.floats(0.01, 1e4))
def test_ticks_are_few_round_and_inside(low: float, size: float) -> None:
    axis = linear_axis([low, low + size], 0.0, 100.0)
    found = ticks(axis, 6)
    assert 2 <= len(found) <= 7
    assert all(-0.1 <= place <= 100.1 for place, _ in found)
    assert len({label for _, label in found}) == len(found)


def test_logarithmic_axes_have_powers_of_ten() -> None:
    axis = log_axis([40.0, 4000.0], 0.0, 100.0)
    assert [label for _, label in ticks(axis, 5)] == ["100", "1000", "10000"]
    narrow = log_axis([150.0, 900.0], 0.0, 100.0)  # powers of ten alone would be read as a linear axis
    assert [label for _, label in ticks(narrow, 5)] == ["100", "200", "500", "1000"]


def test_ranks_run_tp_cp_dp_pp_and_say_which_link_they_cross() -> None:
    config = a_configuration(
        tensor_parallel_size=4, context_parallel_size=2, data_parallel_size=4, pipeline_parallel_size=4
    )
    found = rank_map(replace(a_plan(), config=config), a_cluster())
    by_axis = {row.axis: row for row in found.axes}
    assert (by_axis["tp"].stride, by_axis["cp"].stride, by_axis["dp"].stride) == (1, 4, 8)
    assert by_axis["pp"].stride == 32
    assert by_axis["tp"].crosses.startswith("stays inside")
    assert by_axis["cp"].crosses.startswith("stays inside")  # 2 ranks 4 apart: 8 GPUs of one node
    assert not by_axis["dp"].crosses.startswith("stays inside")
    assert by_axis["dp"].crosses == "every rank in another island: infiniband 50 GB/s"
    assert by_axis["pp"].group == "0, 32, 64, 96"
    # GPU 45 = 1 * 32 + 1 * 8 + 1 * 4 + 1
    cell = next(cell for node in found.nodes for cell in node if cell.gpu == 45)
    assert cell.title == "GPU 45 (node 5): tp 1 cp 1 dp 1 pp 1"
    assert len(found.nodes) == 16


def test_of_groups_that_lie_differently_the_one_most_apart_is_shown() -> None:
    config = a_configuration(tensor_parallel_size=1, data_parallel_size=7, pipeline_parallel_size=3)
    by_axis = {row.axis: row for row in rank_map(replace(a_plan(), config=config), a_cluster()).axes}
    # stage 0 is GPUs 0 to 6 of the first node; stage 1 is GPUs 7 to 13, of which the first has one
    assert by_axis["dp"].group == "7, 8, 9, 10, 11, 12, 13"
    assert by_axis["dp"].crosses.startswith("1 to 6 ranks in each of 2 islands")


def test_ranks_follow_the_order_of_the_configuration() -> None:
    config = a_configuration(
        tensor_parallel_size=2, data_parallel_size=16, pipeline_parallel_size=4, expert_parallel_size=4,
        rank_order="tp-pp-cp-dp",
    )  # fmt: skip
    found = rank_map(replace(a_plan(), config=config), a_cluster())
    by_axis = {row.axis: row for row in found.axes}
    assert (by_axis["pp"].stride, by_axis["dp"].stride) == (2, 8)
    assert by_axis["pp"].crosses.startswith("stays inside")  # 4 stages 2 apart: one node
    # stage 0 holds GPUs 0, 1, 8, 9, …: its first four ranks share out the experts
    assert by_axis["ep"].group == "0, 1, 8, 9"
    assert by_axis["ep"].stride == 0
    # GPU 13 = 1 * 8 + 2 * 2 + 1: dp 1, stage 2, tp 1; among its stage it is rank 3
    cell = next(cell for node in found.nodes for cell in node if cell.gpu == 13)
    assert cell.title == "GPU 13 (node 1): tp 1 dp 1 pp 2 ep 3"


def test_nodes_have_the_names_of_their_hosts_in_the_order_of_the_plan() -> None:
    config = a_configuration(tensor_parallel_size=8, data_parallel_size=2, pipeline_parallel_size=1)
    order = HostOrder(
        order=(2, 0), hosts=("gpu-c", "gpu-a"), listed_step_time_s=3.0, bound_step_time_s=1.0, gap=0.5,
        slowest_bytes_per_s={"data": 50e9},
    )  # fmt: skip
    plan = replace(a_plan(), config=config, hosts=order)
    found = rank_map(plan, a_cluster())
    assert found.hosts == ("gpu-c", "gpu-a")
    assert found.host_order.startswith("Order of nodes: gpu-c gpu-a. A step takes ")
    assert found.nodes[1][0].title == "GPU 8 (node gpu-a): tp 0 dp 1"
    assert rank_map(replace(plan, hosts=replace(order, hosts=())), a_cluster()).hosts == ("2", "0")


def test_experts_share_out_the_ranks_of_a_stage() -> None:
    config = a_configuration(
        tensor_parallel_size=2, data_parallel_size=16, pipeline_parallel_size=4, expert_parallel_size=8
    )
    found = rank_map(replace(a_plan(), config=config), a_cluster())
    by_axis = {row.axis: row for row in found.axes}
    assert (by_axis["ep"].size, by_axis["ep"].stride) == (8, 1)
    assert by_axis["ep"].crosses.startswith("stays inside")
    # GPU 37 stands in stage 1 (37 // 32); of its stage it is rank 5: expert rank 5
    assert "ep 5" in next(cell.title for node in found.nodes for cell in node if cell.gpu == 37)


def test_the_comparison_says_what_the_second_has_more() -> None:
    _, answer = small_answer()
    found = comparison_of(answer, answer.plans[0].plan_id)
    assert found is not None
    step = next(row for row in found.quantities if row.key == "step")
    change = answer.plans[1].prediction.step_time_s - answer.plans[0].prediction.step_time_s
    assert float(found.difference(step).replace("−", "-")) == pytest.approx(change, abs=6e-4)
    times = [row.key for row in found.quantities if row.unit == "s" and row.key != "step"]
    for side, plan in zip(found.sides, answer.plans, strict=True):
        total = sum(float(side.values.get(key, 0.0)) for key in times)
        assert total == pytest.approx(plan.prediction.step_time_s, abs=1e-4)


def test_one_plan_alone_has_nothing_to_be_compared_with() -> None:
    assert comparison_of(an_answer(), "7f3a90c1d2e4") is None
