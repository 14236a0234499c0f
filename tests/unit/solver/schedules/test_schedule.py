from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.check import violations
from meshwright.solver.configuration import SCHEDULES, SPLIT_BACKWARD, Columns
from meshwright.solver.problem import Problem
from meshwright.solver.schedules.schedule import (
    V_SHAPED,
    fill_share,
    in_flight,
    least_in_flight,
    rank_of_chunk,
    schedules_of,
    takes_chunks,
)
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_model, a_problem
from tests.problems.asked import searched, searched_with_reasons
from tests.problems.pricing import a_layout


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


@pytest.mark.parametrize(
    "name",
    [name for name in SCHEDULES if takes_chunks(name, 2, 1) or name in ("interleaved_1f1b", "looped_bfs")],
)
@pytest.mark.parametrize("m", [1, 3, 5, 40])
def test_layers_of_a_rank_are_in_flight_as_often_as_their_bound_or_more(name: str, m: int) -> None:
    most = 1 if name in SPLIT_BACKWARD else 5
    for p, v in [(p, v) for p in range(2, 8) for v in range(1, most + 1) if takes_chunks(name, p, v)]:
        own = {"pipeline_parallel_size": p, "pipeline_schedule": name, "num_microbatches": m}
        fewest = a_layout(**own, virtual_pipeline_size=min(v, 2), stage_layers=(1,) * p * min(v, 2))
        least, slope, offset = (each[0] for each in least_in_flight(Columns.of([fewest])))
        row = Columns.of([a_layout(**own, virtual_pipeline_size=v, stage_layers=(1,) * p * v)])
        count, of_chunk = in_flight(row)[0], rank_of_chunk(row, p * v)[0]
        for rank in range(p):
            chunks = count[of_chunk == rank]
            assert least[rank] <= chunks.min()
            # q layers in each chunk and one more in the last e of them, which keep fewest
            for q, e in [(q, e) for q in (1, 2, 3) for e in range(v)]:
                layers = q + (np.arange(v) >= v - e)
                assert layers @ chunks >= slope[rank] * layers.sum() - offset[rank]


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


# Every schedule of the glossary is searched where the launcher has it, priced, checked and ranked.

SHAPE = {"num_layers": 8, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}
WITH_STAGES = tuple(name for name in SCHEDULES if name != "none")


def on_8_gpus(launcher: str = "none", **options: object) -> Problem:
    """8 layers, 16 sequences."""
    defaults: dict[str, object] = {"certify": "none", "top_k": 3}
    problem = a_problem(
        model=a_model(**SHAPE), cluster=a_cluster(num_nodes=1), batch=16, **defaults | options
    )
    return replace(problem, launcher=launcher)


def answered(problem: Problem) -> Answer:
    return search(problem, default_profile(problem.cluster, problem.launcher))


@pytest.mark.parametrize(("pp", "vpp", "names"), [
    (1, 1, {"none"}),
    (4, 1, {"gpipe", "1f1b", "zb_1p", "zb_2p", "zb_h1", "zb_h2"}),
    (4, 2, {"interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_v", "dualpipe_v"}),
    (4, 3, {"interleaved_1f1b", "looped_bfs", "interleaved_zb"}),
])  # fmt: skip
def test_a_schedule_runs_the_chunks_that_its_paper_gives_it(pp: int, vpp: int, names: set[str]) -> None:
    assert set(schedules_of(pp, vpp)) == names


@pytest.mark.parametrize("launcher", ["none", "torchtitan", "megatron-lm"])
def test_the_space_has_every_schedule_of_the_launcher_and_no_other(launcher: str) -> None:
    space = enumerate_space(on_8_gpus(launcher), legal_only=True)
    found = {SCHEDULES[word] for word in np.unique(space.columns.pipeline_schedule).tolist()}
    assert found == set(launcher_capabilities(launcher).schedules)


def test_the_space_has_every_schedule_of_nanotron_although_its_stages_are_uneven() -> None:
    columns = enumerate_space(replace(a_problem(), launcher="nanotron"), legal_only=True).columns
    assert set(np.unique(columns.pipeline_schedule).tolist()) == {
        SCHEDULES.index(name) for name in ("none", "gpipe", "1f1b")
    }


@pytest.mark.parametrize("schedule", WITH_STAGES)
def test_a_pinned_schedule_is_searched_proved_and_certified(schedule: str) -> None:
    answer = answered(on_8_gpus(pin={"pipeline_schedule": schedule}, certify="cp-sat-all"))
    assert answer.status == "optimal"
    assert {plan.config.pipeline_schedule for plan in answer.plans} == {schedule}
    assert {plan.certified_by for plan in answer.plans} == {("exact-dp", "cp-sat")}
    assert answer.bound_step_time_s is not None
    assert answer.bound_step_time_s <= answer.plans[0].prediction.step_time_s


def test_the_best_of_all_schedules_is_the_best_of_each_pinned_alone() -> None:
    pin = {"pipeline_parallel_size": 4, "tensor_parallel_size": 2}
    whole = searched(on_8_gpus(pin=pin, top_k=1)).plans[0].prediction.step_time_s
    alone = [
        searched(on_8_gpus(pin={**pin, "pipeline_schedule": name}, top_k=1)).plans[0].prediction.step_time_s
        for name in WITH_STAGES
    ]
    assert whole == min(alone)


def test_a_schedule_that_the_launcher_lacks_is_named_as_the_reason() -> None:
    answer = searched_with_reasons(on_8_gpus("megatron-lm", pin={"pipeline_schedule": "zb_h1"}))
    assert answer.status == "infeasible"
    assert answer.infeasible is not None
    assert any("megatron-lm supports the schedule" in reason for reason in answer.infeasible.reasons)


@pytest.mark.parametrize("schedule", SPLIT_BACKWARD)
def test_a_split_backward_pass_is_never_found_with_whole_layers_recomputed(schedule: str) -> None:
    columns = enumerate_space(on_8_gpus(), legal_only=True).columns
    of_it = columns.take(columns.pipeline_schedule == SCHEDULES.index(schedule))
    assert len(of_it)
    assert set(np.unique(of_it.recompute).tolist()) == {0, 1}


@pytest.mark.parametrize("schedule", V_SHAPED)
def test_a_v_keeps_embedding_and_head_on_its_first_rank(schedule: str) -> None:
    pin = {"pipeline_schedule": schedule, "pipeline_parallel_size": 4}
    first, *others = answered(on_8_gpus(pin=pin)).plans[0].prediction.stages
    # 8 layers in 8 chunks: every rank holds two, and the first one both ends beside
    assert first.layers == 2
    assert first.memory_bytes["weights"] > max(stage.memory_bytes["weights"] for stage in others)


@pytest.mark.parametrize(("change", "fault"), [
    ({"pipeline_schedule": "zb_v"}, "two chunks on every stage"),
    ({"pipeline_schedule": "looped_bfs"}, "does not go with virtual_pipeline_size = 1"),
    ({"pipeline_schedule": "none"}, "does not go with 4 stages"),
    ({"pipeline_schedule": "zb_h1", "recompute_granularity": "full", "recompute_layers": 2}, "splits"),
])  # fmt: skip
def test_the_independent_check_refuses_schedules_that_cannot_run(
    change: dict[str, object], fault: str
) -> None:
    problem = on_8_gpus(pin={"pipeline_schedule": "1f1b", "pipeline_parallel_size": 4}, top_k=1)
    config = replace(answered(problem).plans[0].config, **change)  # type: ignore[arg-type]
    free = replace(problem, options=replace(problem.options, pin={}))
    found = list(violations(free, default_profile(problem.cluster, "none"), config))
    assert any(fault in one for one in found)


def test_every_schedule_with_stages_runs_one_chunk_or_two() -> None:
    assert all(takes_chunks(name, 4, 1) != takes_chunks(name, 4, 2) for name in WITH_STAGES)
