"""Every order of 8 nodes, tried without the code that paces, anneals and bounds.

Ranks are numbered as Megatron-LM does: tensor-parallel ranks first, then replicas, then stages. A ring
passes from each rank to the next and back to the first, neighbouring stages send both ways, and a kind of
group goes at its slowest link. A step is never shorter on slower links, so that only orders are priced
that no other order beats in every link.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwright.profiles.links import LinkPace, NodeLinks
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.planner.host_order import OrderProblem, best_order
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.draws import draws
from tests.unit.solver.cost.test_links import RATE, a_mesh, on_links

NODES, GPUS = 8, 8
ORDERS = np.array(list(permutations(range(NODES))))
Edges = set[tuple[int, int]]


def node_of(tp: int, dp: int, at: tuple[int, int, int]) -> int:
    """The place of a rank's node."""
    t, d, p = at
    return (t + tp * (d + dp * p)) // GPUS


def edges_of(mesh: Configuration) -> dict[str, Edges]:
    """Pairs of places that replicas, and that stages, send over."""
    tp, pp, dp = mesh.tensor_parallel_size, mesh.pipeline_parallel_size, mesh.data_parallel_size
    data, stages = Edges(), Edges()
    for t, d, p in product(range(tp), range(dp), range(pp)):
        own = node_of(tp, dp, (t, d, p))
        data.add((own, node_of(tp, dp, (t, (d + 1) % dp, p))))
        if p + 1 < pp:
            after = node_of(tp, dp, (t, d, p + 1))
            stages |= {(own, after), (after, own)}
    found = {"data": data, "stages": stages}
    return {kind: {(a, b) for a, b in some if a != b} for kind, some in found.items()}


def figures_of(edges: dict[str, Edges], links: NodeLinks, orders: NDArray[np.intp]) -> NDArray[np.float64]:
    """The slowest link and the longest latency of data and of stages, of every order: (k, 4)."""
    slowness, latency = RATE / (links.rates + np.eye(NODES) * RATE), links.latencies
    columns = list[NDArray[np.float64]]()
    for kind in ("data", "stages"):
        ends = np.array(sorted(edges[kind]), dtype=np.intp).reshape(-1, 2)
        a, b = orders[:, ends[:, 0]], orders[:, ends[:, 1]]
        columns.append(slowness[a, b].max(axis=1, initial=0.0))
        columns.append(latency[a, b].max(axis=1, initial=0.0) if latency.size else np.zeros(len(orders)))
    return np.stack(columns, axis=1)


def unbeaten(figures: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    found = list[NDArray[np.float64]]()
    for one in np.unique(figures, axis=0):  # those that may beat it come before it
        if not any((other <= one).all() for other in found):
            found.append(one)
    return found


def step_s(problem: Problem, profile: Profile, mesh: Configuration, figures: NDArray[np.float64]) -> float:
    """The step at given slowest links."""
    network_s = problem.cluster.groups[0].inter_node.latency_s
    data, stages = (
        LinkPace(share=1.0 / float(slow) if slow else 1.0, hop_s=max(float(late) - network_s, 0.0))
        for slow, late in (figures[:2], figures[2:])
    )
    even = replace(problem, cluster=problem.cluster.with_even_links(1.0))
    paces = (LinkPace(), LinkPace(), LinkPace(), data, stages)
    (one,) = evaluate(even, replace(profile, paces=paces), [mesh])
    return max(pipeline.step_s() for pipeline in one.classes)


def drawn(seed: int, *, asymmetric: bool, late: bool) -> NodeLinks:
    rng = np.random.default_rng(seed)
    rates = rng.integers(5, 200, (NODES, NODES)) * RATE / 200
    latency = rng.integers(2, 60, (NODES, NODES)) * 1e-5
    if not asymmetric:
        rates, latency = (np.triu(one, 1) + np.triu(one, 1).T for one in (rates, latency))
    return NodeLinks(
        bytes_per_s=tuple(map(tuple, rates.tolist())),
        latency_s=tuple(map(tuple, latency.tolist())) if late else (),
        asymmetric=asymmetric,
    )


@pytest.mark.parametrize(
    ("mesh", "asymmetric", "late"),
    [
        pytest.param(a_mesh(8, 1, 8), False, False, id="a ring of all nodes"),
        pytest.param(a_mesh(8, 4, 2), True, False, id="stages and replicas, both ways apart"),
        pytest.param(a_mesh(8, 2, 4), False, True, id="stages and replicas, with latencies"),
        pytest.param(a_mesh(4, 4, 4), True, False, id="two replicas a node"),
        pytest.param(a_mesh(8, 8, 1), True, False, id="a line of stages"),
    ],
)
@pytest.mark.parametrize("seed", range(draws(1, of_more=2)))
def test_the_reported_order_is_near_the_best_of_all(
    mesh: Configuration, seed: int, *, asymmetric: bool, late: bool
) -> None:
    links = drawn(seed, asymmetric=asymmetric, late=late)
    problem = on_links(links, num_nodes=NODES)
    profile, edges = default_profile(problem.cluster, "megatron-lm"), edges_of(mesh)
    found = best_order(OrderProblem(problem=problem, profile=profile, config=mesh))
    (own,) = figures_of(edges, links, np.array([found.order]))
    reported_s = step_s(problem, profile, mesh, own)
    in_order = replace(problem, cluster=problem.cluster.in_order(found.order))
    assert predict(in_order, profile, mesh).step_time_s == pytest.approx(reported_s, rel=1e-9)
    least_s = min(step_s(problem, profile, mesh, one) for one in unbeaten(figures_of(edges, links, ORDERS)))
    assert found.bound_step_time_s <= least_s * (1.0 + 1e-9)
    assert least_s <= reported_s * (1.0 + 1e-9)
    assert reported_s <= least_s * 1.005
    assert found.gap == pytest.approx(1.0 - found.bound_step_time_s / reported_s, abs=1e-9)
    listed_s = step_s(problem, profile, mesh, figures_of(edges, links, np.arange(NODES)[None])[0])
    assert found.listed_step_time_s == pytest.approx(listed_s, rel=1e-9)
