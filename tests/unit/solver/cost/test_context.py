"""Where ranks lie under each order of the mesh axes, against all ranks written down one by one."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import Group
from meshwright.profiles.profile import default_profile
from meshwright.service.report.formatting import configuration_words
from meshwright.solver.check import violations
from meshwright.solver.configuration import RANK_ORDERS, Columns, Configuration, plain_order, plan_id_of
from meshwright.solver.cost.context import placement_of, same_links, same_ranks
from meshwright.solver.cost.price import price
from meshwright.solver.explain.alternatives import settle
from meshwright.solver.explain.compare import differences_of
from meshwright.solver.space.enumerate import enumerate_space
from tests.builders import a_cluster, a_configuration, a_problem

FABRIC = default_profile(a_cluster(num_nodes=2), "megatron-lm").fabric
ISLAND = 8
SIZES = [(tp, cp, dp, pp) for tp, cp, dp, pp in product((1, 2, 4), repeat=4) if tp * cp * dp * pp <= 64]


def configuration(sizes: tuple[int, int, int, int], order: str) -> Configuration:
    """A configuration of (tp, cp, dp, pp)."""
    tp, cp, dp, pp = sizes
    return Configuration(
        tensor_parallel_size=tp, context_parallel_size=cp, data_parallel_size=dp, rank_order=order,
        pipeline_parallel_size=pp, pipeline_schedule="none" if pp == 1 else "1f1b", stage_layers=(1,) * pp,
    )  # fmt: skip


def ranks(config: Configuration) -> dict[tuple[int, int, int, int], int]:
    """The number of every rank by its (tp, cp, dp, pp) coordinates, axis by axis."""
    sizes = {
        "tp": config.tensor_parallel_size, "cp": config.context_parallel_size,
        "dp": config.data_parallel_size, "pp": config.pipeline_parallel_size,
    }  # fmt: skip
    axes = config.rank_order.split("-")
    found = {}
    for number, outer_first in enumerate(product(*(range(sizes[axis]) for axis in reversed(axes)))):
        at = dict(zip(reversed(axes), outer_first, strict=True))
        found[at["tp"], at["cp"], at["dp"], at["pp"]] = number
    return found


def on_one_island(numbers: list[int]) -> int:
    """Most ranks of a group that share an island."""
    return int(np.unique(np.array(numbers) // ISLAND, return_counts=True)[1].max())


@pytest.mark.parametrize("order", RANK_ORDERS)
def test_groups_share_islands_as_ranks_written_down_one_by_one_do(order: str) -> None:
    for sizes in SIZES:
        config = configuration(sizes, order)
        place, number = placement_of(Columns.of([config])), ranks(config)
        tp, cp, dp = (np.array([float(size)]) for size in sizes[:3])
        groups = {
            "context": (cp, place.context_stride, [number[0, at, 0, 0] for at in range(sizes[1])]),
            "data": (cp * dp, tp, [n for (t, _, _, p), n in number.items() if t == p == 0]),
            "stage": (tp * cp * dp, np.ones(1), [n for (_, _, _, p), n in number.items() if p == 0]),
        }
        for size, stride, numbers in groups.values():
            assert Group(size, stride, FABRIC, place.blocks).in_island[0] == on_one_island(numbers)
        if sizes[3] > 1:
            assert place.block[0] == number[0, 0, 0, 1]


def test_stages_side_by_side_leave_one_replica_on_a_node() -> None:
    # 16 GPUs, tp 2, pp 4, dp 2: 2 * 4 ranks of one replica fill a node, so gradients cross the network
    # and activations do not; with dp before pp it is the other way round.
    problem = a_problem(cluster=a_cluster(num_nodes=2), batch=16)
    profile = default_profile(problem.cluster, problem.launcher)
    near = a_configuration(
        tensor_parallel_size=2, pipeline_parallel_size=4, virtual_pipeline_size=1, data_parallel_size=2,
        zero_shard_size=2, num_microbatches=8, pipeline_schedule="1f1b", rank_order="tp-cp-pp-dp",
        stage_layers=(2,) * 4,
    )  # fmt: skip
    seconds = [
        price(problem, Columns.of([config]), profile)
        for config in (near, replace(near, rank_order="tp-cp-dp-pp"))
    ]
    transfer, gradients = ([float(np.max(p.transfer_s)) for p in seconds], [
        float(p.breakdown_s["data_parallel"].max()) for p in seconds])  # fmt: skip
    assert transfer[0] < transfer[1]
    assert gradients[0] >= gradients[1]


def test_an_order_that_says_the_same_is_not_another() -> None:
    for sizes in SIZES:
        columns = Columns.of([configuration(sizes, RANK_ORDERS[0])])
        numbers = [ranks(configuration(sizes, order)) for order in RANK_ORDERS]
        for one, other in product(range(len(RANK_ORDERS)), repeat=2):
            assert same_ranks(columns, one, other)[0] == (numbers[one] == numbers[other])
        for one, order in enumerate(RANK_ORDERS):
            first = numbers.index(numbers[one])
            assert plain_order(configuration(sizes, order)) == RANK_ORDERS[first]


def test_beyond_the_island_orders_are_alike() -> None:
    # tp 8 fills the island: whatever comes next crosses the network
    columns = Columns.of([configuration((8, 2, 2, 2), RANK_ORDERS[0])])
    assert all(same_links(columns, 0, other, ISLAND)[0] for other in range(len(RANK_ORDERS)))
    assert not same_links(Columns.of([configuration((4, 2, 2, 2), RANK_ORDERS[0])]), 0, 4, ISLAND)[0]


@pytest.mark.parametrize("launcher", ["megatron-lm", "none", "torchtitan"])
def test_the_space_holds_each_order_where_it_changes_a_link(launcher: str) -> None:
    problem = replace(a_problem(cluster=a_cluster(num_nodes=2), batch=16), launcher=launcher)
    space = enumerate_space(problem)
    columns = space.columns.take(space.legal)
    orders = set(columns.rank_order.tolist())
    assert orders == {"megatron-lm": {0, 1}, "none": set(range(6)), "torchtitan": {0}}[launcher]
    other = columns.take(columns.rank_order > 0)
    assert not same_links(other, other.rank_order, 0, ISLAND).any()


def test_on_one_island_no_order_is_tried_but_the_plain_one() -> None:
    problem = replace(a_problem(cluster=a_cluster(num_nodes=1), batch=16), launcher="none")
    assert not enumerate_space(problem).columns.rank_order.any()


def test_a_pinned_order_is_searched_where_no_link_changes_too() -> None:
    pin: dict[str, Any] = {"rank_order": "tp-cp-pp-dp", "tensor_parallel_size": 8}
    space = enumerate_space(a_problem(cluster=a_cluster(num_nodes=4), batch=16, pin=pin))
    legal = space.columns.take(space.legal)
    assert len(legal) > 0
    assert set(legal.rank_order.tolist()) == {1}
    assert (legal.pipeline_parallel_size > 1).all()


def test_the_check_refuses_an_order_that_megatron_cannot_group() -> None:
    # cp 2: Megatron-Core would form 4 data-parallel ranks for (absent) experts and 2 for attention
    problem = a_problem(cluster=a_cluster(num_nodes=2), batch=16)
    config = a_configuration(
        tensor_parallel_size=2, pipeline_parallel_size=2, virtual_pipeline_size=1, context_parallel_size=2,
        data_parallel_size=2, zero_shard_size=4, num_microbatches=8, pipeline_schedule="1f1b",
        rank_order="tp-cp-pp-dp", stage_layers=(4, 4),
    )  # fmt: skip
    profile = default_profile(problem.cluster, problem.launcher)
    assert any(
        "expert and attention replicas" in sentence for sentence in violations(problem, profile, config)
    )
    alone = replace(config, context_parallel_size=1, data_parallel_size=4, num_microbatches=4)
    assert not any("order" in one or "replicas" in one for one in violations(problem, profile, alone))
    torn = replace(alone, rank_order="tp-dp-pp-cp")
    assert any("does not number ranks" in sentence for sentence in violations(problem, profile, torn))


def test_another_order_is_told_where_two_configurations_differ_in_it() -> None:
    plain = configuration((2, 2, 2, 2), RANK_ORDERS[0])
    (words,) = differences_of(plain, replace(plain, rank_order="tp-cp-pp-dp")).values()
    alone = replace(plain, context_parallel_size=1, context_parallel_mode="ring")
    (without,) = differences_of(alone, replace(alone, rank_order="tp-cp-pp-dp")).values()
    assert without == "ranks numbered along tp, pp, dp instead of tp, dp, pp"
    assert words == "ranks numbered along tp, cp, pp, dp instead of tp, cp, dp, pp"
    assert "before" not in configuration_words(plain)
    assert "pp before dp" in configuration_words(replace(plain, rank_order="tp-cp-pp-dp"))


def test_a_change_that_leaves_one_replica_leaves_the_plain_order() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=2), batch=16)
    near = configuration((2, 1, 1, 2), "tp-cp-pp-dp")
    settled = settle(problem, near)
    assert settled is not None
    assert settled.rank_order == RANK_ORDERS[0]


def test_the_launchers_own_order_leaves_the_names_of_plans_alone() -> None:
    config = a_configuration()
    assert plan_id_of("digest", config) != plan_id_of("digest", replace(config, rank_order="tp-cp-pp-dp"))
    assert config.rank_order == RANK_ORDERS[0]
