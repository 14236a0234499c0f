from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import all_gather_s
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.communication import context_parallel, expert_parallel
from meshwright.solver.cost.compute import PassSeconds, core_attention
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.step_end import exposed_s
from tests.builders import a_model, a_moe_model
from tests.unit.solver.cost.pricing import a_layout, a_problem, a_profile


def experts(*, overlap: bool, virtual: int = 1, pipeline: int = 1) -> PassSeconds:
    """All-to-alls of one layer of a model with experts."""
    problem = a_problem(a_moe_model(), framework_options={"overlap_experts": overlap})
    layout = a_layout(
        expert_parallel_size=8,
        data_parallel_size=8,
        pipeline_parallel_size=pipeline,
        virtual_pipeline_size=virtual,
        stage_layers=(32 // (pipeline * virtual),) * (pipeline * virtual),
    )
    return expert_parallel(
        context_of(problem, Columns.of([layout]), a_profile(problem, expert_exposed=0.2))
    )


def test_all_to_alls_are_exposed_unless_the_framework_overlaps_them() -> None:
    plain, hidden = experts(overlap=False), experts(overlap=True)
    assert hidden.forward[0] == pytest.approx(0.2 * plain.forward[0])


def test_in_a_pipeline_they_hide_only_under_another_chunk() -> None:
    plain = experts(overlap=False, pipeline=2)
    assert experts(overlap=True, pipeline=2).forward[0] == plain.forward[0]
    assert experts(overlap=True, pipeline=2, virtual=2).forward[0] == pytest.approx(0.2 * plain.forward[0])


def ring(size: int) -> tuple[Context, PassSeconds]:
    """What ring attention adds to a layer of 8192 tokens."""
    problem = a_problem(replace(a_model(), num_kv_heads=1), seq_length=8192)
    layout = a_layout(context_parallel_size=size, stage_layers=(80,))
    ctx = context_of(problem, Columns.of([layout]), a_profile(problem, collective_latency_s=0.0))
    return ctx, context_parallel(ctx, core_attention(ctx))


def test_a_ring_merges_every_part_but_the_first_in_fp32() -> None:
    # 8192 / 4 tokens x 64 heads x 128 = 16.8 M outputs; 3 merges of 2 + 4 + 4 bytes each. The ring itself
    # hides under attention, which it slows by 13 % of its time: 8192 x 1 head x 256 x 2 bytes gathered
    ctx, added = ring(4)
    gathered = all_gather_s(np.array([8192.0 * 256 * 2]), ctx.context_group, ctx.fabric)
    merges = 3 * 2048 * 64 * 128 * 10 / ctx.hbm_bytes_per_s
    assert added.forward[0] == pytest.approx(merges + 0.13 * gathered[0])
    assert added.backward[0] == pytest.approx(2 * added.forward[0])


def test_communication_that_computing_hides_slows_computing_by_13_percent_of_it() -> None:
    # 10 ms beside 8 ms of computing: 2 ms are left over, and 8 ms together cost 13 % more
    assert exposed_s(np.array([10.0]), np.array([8.0]), 0.13)[0] == pytest.approx(2.0 + 8.0 * 0.13)
    assert exposed_s(np.array([3.0]), np.array([8.0]), 0.13)[0] == pytest.approx(0.39)


def test_a_rank_alone_has_no_ring() -> None:
    _, added = ring(1)
    assert added.forward[0] == 0.0
