"""Order of the nodes of a mesh where links between them differ: the search for it, and its bound.

An order's cost is the step at the pace of the slowest link of each kind of group (``solver.cost.links``).
Annealing searches orders (as Pipette does, arXiv:2405.18093, section VI): chains that exchange two nodes,
turn a stretch round, or move one node, all chains at once as arrays. Its cost is a sum of curves, the step
by the pace of one kind alone; the orders that it returns, and the bound, are priced as a whole.

The bound holds for every order. Links no slower than a threshold are a graph over the nodes; an order that
keeps to it must find for each place a node with as many neighbours as the place has, and a connected part
that is large enough for each group. The least thresholds that pass, alone and in pairs of kinds, are paces
that no order beats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.links import KINDS, LinkPace
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import HostOrder
from meshwright.solver.configuration import BoolArray, Configuration, FloatArray
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.links import Flows, Indices, LinkTable, flows_of, paced, places_of
from meshwright.solver.problem import Problem

Paces = dict[str, LinkPace]
_CURVE = 9  # paces at which a curve is priced
_CHAINS = 48
_STEPS = 5000  # of every chain, at effort 1 and for 16 nodes
_DRAWN = 64  # steps of which the moves are drawn at once
_COOLED = 1e-4  # last temperature over the first one
_TIES = 0.05  # weight of the mean link, which leads chains over plateaus of the slowest one
_PRICED = 4  # of the chains' best orders are priced as a whole
_THRESHOLDS = 192  # of one kind that are paired with another's


@dataclass(frozen=True, kw_only=True)
class OrderProblem:
    """One configuration on nodes with links that differ."""

    problem: Problem
    profile: Profile
    config: Configuration

    @cached_property
    def flows(self) -> tuple[Flows, ...]:
        """Return what is sent between nodes, by kind."""
        return flows_of(self.problem, self.config)

    @cached_property
    def places(self) -> int:
        """Return the nodes that the configuration takes."""
        return -(-self.config.num_gpus // self.problem.cluster.groups[0].gpus_per_node)

    @cached_property
    def table(self) -> LinkTable:
        """Return the links between all nodes."""
        return LinkTable.of(self.problem.cluster.groups[0], self.places)

    @cached_property
    def listed(self) -> Indices:
        """Return the order in which the cluster lists its nodes, (N,)."""
        return places_of(self.problem.cluster.groups[0], self.places)

    @cached_property
    def _even(self) -> Problem:
        return replace(self.problem, cluster=self.problem.cluster.with_even_links(1.0))

    @cached_property
    def _known(self) -> dict[tuple[LinkPace, ...], float]:
        return {}

    def step_s(self, paces: Mapping[str, LinkPace]) -> float:
        """Return the simulated step at these paces; kinds that are left out have the network's."""
        every = tuple(paces.get(kind, LinkPace()) for kind in KINDS)
        if every not in self._known:
            (one,) = evaluate(self._even, paced(self.profile, every), [self.config])
            self._known[every] = max(pipeline.step_s() for pipeline in one.classes)
        return self._known[every]

    def paces(self, order: Indices) -> Paces:
        """Return the pace of each kind in one order."""
        return {one.kind: self.table.pace_of(one, order) for one in self.flows}

    def exact_s(self, order: Indices) -> float:
        """Return the step in one order."""
        return self.step_s(self.paces(order))


def best_order(asked: OrderProblem, *, seed: int = 0, effort: float = 1.0) -> HostOrder:
    """Return the best order that annealing finds, with the bound on every order.

    Args:
        asked: a configuration on nodes with links that differ.
        seed: of the chains; the same seed gives the same order.
        effort: multiplies the chains' steps.
    """
    orders = [asked.listed]
    if asked.flows and len(asked.listed) > 1:
        orders += annealed(asked, seed=seed, effort=effort)
    steps = [asked.exact_s(order) for order in orders]
    best, group = int(np.argmin(steps)), asked.problem.cluster.groups[0]
    order, bound_s = orders[best], min(bound_of(asked), steps[best])
    used = order[: asked.places].tolist()
    hosts = () if group.links is None or not group.links.hosts else group.links.hosts
    rate = group.inter_node.payload_bytes_per_s
    return HostOrder(
        order=tuple(order.tolist()),
        hosts=tuple(hosts[node] for node in used) if hosts else (),
        listed_step_time_s=steps[0],
        bound_step_time_s=bound_s,
        gap=1.0 - bound_s / min(steps),
        slowest_bytes_per_s={kind: rate * pace.share for kind, pace in asked.paces(order).items()},
    )


# --------------------------------------------------------------------------------------------------
# Annealing.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """Seconds of a step by the pace of one kind of group."""

    flows: Flows
    slowness: FloatArray  # growing
    step_s: FloatArray
    per_hop: float  # seconds of the step for each second of a hop

    @classmethod
    def of(cls, asked: OrderProblem, flows: Flows) -> _Curve:
        """Price one kind at paces between the fastest and the slowest that an order can give it."""
        low, high = _range(asked, flows)
        slowness = (
            np.geomspace(low, high, _CURVE) if high > low * (1.0 + 1e-9) else np.array([low, low + 1])
        )
        steps = [asked.step_s({flows.kind: LinkPace(share=1.0 / float(one))}) for one in slowness]
        per_hop = 0.0
        if asked.table.extra_s is not None and (most := float(asked.table.extra_s.max())) > 0.0:
            later = LinkPace(share=1.0 / float(slowness[0]), hop_s=most)
            per_hop = (asked.step_s({flows.kind: later}) - steps[0]) / most
        return cls(flows=flows, slowness=slowness, step_s=np.array(steps), per_hop=per_hop)

    def cost(self, table: LinkTable, nodes: Indices) -> tuple[FloatArray, FloatArray]:
        """Return the step of every order at this kind's pace, and what its mean link would save, (k,)."""
        slowest, mean = table.slowness_of(self.flows, nodes)
        seconds = np.interp(slowest, self.slowness, self.step_s)
        slope = (self.step_s[-1] - self.step_s[0]) / (self.slowness[-1] - self.slowness[0])
        return seconds + self.per_hop * table.hop_s_of(self.flows, nodes), slope * mean


def _range(asked: OrderProblem, flows: Flows) -> tuple[float, float]:
    """Return the least and the largest slowness of a kind, uplinks that all senders share counted."""
    pairs = asked.table.of_pairs
    shared = [float(flows.gpus.sum()) / level.gpus for level in asked.table.levels]
    return float(pairs.min()), max(float(pairs.max()), *shared, 1e-9)


def annealed(asked: OrderProblem, *, seed: int, effort: float) -> list[Indices]:
    """Return the best orders of the chains, different ones, best first."""
    rng = np.random.default_rng(seed)
    curves, size = [_Curve.of(asked, one) for one in asked.flows], len(asked.listed)
    starts = [asked.listed, greedy_order(asked), *(rng.permutation(size) for _ in range(_CHAINS - 2))]
    nodes = np.array(starts)

    def cost(orders: Indices) -> tuple[FloatArray, FloatArray]:
        parts = [one.cost(asked.table, orders) for one in curves]
        whole = np.sum([seconds for seconds, _ in parts], axis=0)
        return whole, whole + _TIES * np.sum([mean for _, mean in parts], axis=0)

    whole, led = cost(nodes)
    best, best_cost = nodes.copy(), whole.copy()
    steps = max(round(_STEPS * effort * max(size / 16.0, 0.5)), 50)
    first = max(float(np.std(led)), 1e-6 * float(led.mean()))
    for step in range(steps):
        if step % _DRAWN == 0:
            moves = _moves(rng, (min(_DRAWN, steps - step), len(nodes)), asked.places, size)
        changed = np.take_along_axis(nodes, moves[step % _DRAWN], axis=1)
        new_whole, new_led = cost(changed)
        temperature = first * _COOLED ** (step / steps)
        taken = new_led - led <= -temperature * np.log(rng.random(len(nodes)))
        nodes[taken], led[taken] = changed[taken], new_led[taken]
        better = new_whole < best_cost
        best[better], best_cost[better] = changed[better], new_whole[better]
    different = {tuple(best[at].tolist()): best[at] for at in np.argsort(best_cost, kind="stable")}
    return list(different.values())[:_PRICED]


def greedy_order(asked: OrderProblem) -> Indices:
    """Return the order that puts into each place the node with the fastest link to the one before."""
    return _nearest_first(asked.table.slowness, int(asked.listed[0]))


def _nearest_first(slowness: FloatArray, start: int) -> Indices:
    order, left = [start], set(range(len(slowness))) - {start}
    while left:
        nearest = min(left, key=lambda node: (slowness[order[-1], node], node))
        order.append(nearest)
        left.discard(nearest)
    return np.array(order)


def _moves(rng: np.random.Generator, shape: tuple[int, ...], places: int, size: int) -> Indices:
    """Return from which place each place takes its node, one move of three kinds, (*shape, size)."""
    base = np.arange(size)
    a, b = rng.integers(0, places, shape), rng.integers(0, size, shape)
    low, high = np.minimum(a, b)[..., None], np.maximum(a, b)[..., None]
    inside = (base >= low) & (base <= high)
    turned = np.where(inside, low + high - base, base)
    moved = np.where(inside, np.where(base == high, low, base + 1), base)
    swapped = np.where(base == low, high, np.where(base == high, low, base))
    kind = rng.integers(0, 3, shape)[..., None]
    return np.asarray(np.where(kind == 0, swapped, np.where(kind == 1, turned, moved)))


# --------------------------------------------------------------------------------------------------
# The bound.


def bound_of(asked: OrderProblem) -> float:
    """Return a step that no order is shorter than."""
    if not asked.flows:
        return asked.exact_s(asked.listed)
    values = np.unique(asked.table.of_pairs)
    needs = [_Need(table=asked.table, flows=one, values=values) for one in asked.flows]
    alone = {one.kind: one.least() for one in needs}
    joined = [one for one in needs if not one.flows.exchange]
    joined.sort(key=lambda one: -asked.step_s({one.kind: LinkPace(share=0.5 / alone[one.kind])}))
    fixed = {kind: LinkPace(share=1.0 / slowness) for kind, slowness in alone.items()}
    if len(joined) < 2:  # noqa: PLR2004 (a pair)
        return asked.step_s(fixed)
    one, other = joined[:2]
    return min(
        asked.step_s(fixed | {one.kind: LinkPace(share=1.0 / low), other.kind: LinkPace(share=1.0 / least)})
        for low, least in _staircase(one, other, alone)
    )


def _staircase(one: _Need, other: _Need, alone: Mapping[str, float]) -> Iterator[tuple[float, float]]:
    """Yield pairs of slowness: every order has at least one of them, or more of both."""
    high = one.values[one.values >= alone[one.kind]]
    picked = np.unique(np.linspace(0, len(high) - 1, min(len(high), _THRESHOLDS)).round().astype(int))
    low, last = float(high[0]), np.inf
    for at in picked.tolist():
        least = other.least(partial(one.joins, other, float(high[at])))
        if least < last:  # else a faster pace of one has the same of the other
            yield low, least
        low, last = float(high[min(at + 1, len(high) - 1)]), min(last, least)
        if least <= alone[other.kind]:
            return


@dataclass(frozen=True, kw_only=True)
class _Need:
    table: LinkTable
    flows: Flows
    values: FloatArray  # of slowness that occur, growing

    @property
    def kind(self) -> str:
        return self.flows.kind

    def least(self, fits: Callable[[float], bool] | None = None) -> float:
        if self.flows.exchange:
            return self._least_exchange()
        allowed = self.fits if fits is None else fits
        low, high = 0, len(self.values) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if allowed(float(self.values[middle])) else (middle + 1, high)
        return float(self.values[low])

    def fits(self, slowness: float) -> bool:
        return _may_fit(self.table.slowness <= slowness, self.flows.pairs)

    def joins(self, other: _Need, own: float, others: float) -> bool:
        slowness = self.table.slowness
        pairs = [*self.flows.pairs, *other.flows.pairs]
        return _may_fit(slowness <= others, other.flows.pairs) and _may_fit(
            slowness <= max(own, others), list(dict.fromkeys(pairs))
        )

    def _least_exchange(self) -> float:
        """Bound the mean link of the slowest sender: each has at best its fastest ones."""
        slowness = self.table.slowness.copy()
        np.fill_diagonal(slowness, np.inf)
        targets = int(np.diff(np.append(self.flows.sender, len(self.flows.source))).min())
        senders = len(np.unique(self.flows.source))
        means = np.sort(np.sort(slowness, axis=1)[:, :targets].mean(axis=1))
        return float(means[senders - 1])


def _may_fit(linked: BoolArray, pairs: Sequence[tuple[int, int]]) -> bool:
    """Return False only if no order of nodes has a link for every pair of places.

    Places need as many neighbours as their pairs have, in both directions; a node has as many as it has
    links. Groups of places that are connected need connected nodes.
    """
    linked = linked & ~np.eye(len(linked), dtype=np.bool_)
    for end, axis in ((0, 1), (1, 0)):
        needed = sorted(Counter(pair[end] for pair in pairs).values(), reverse=True)
        have = np.sort(linked.sum(axis=axis))[::-1][: len(needed)]
        if len(have) < len(needed) or (have < np.array(needed)).any():
            return False
    groups = Counter(_component_sizes(_graph_of(pairs)))
    if len(groups) != 1:
        return True
    ((size, count),) = groups.items()
    return sum(part // size for part in _component_sizes(linked | linked.T)) >= count


def _graph_of(pairs: Sequence[tuple[int, int]]) -> BoolArray:
    names = {place: at for at, place in enumerate(sorted({end for pair in pairs for end in pair}))}
    graph = np.zeros((len(names), len(names)), dtype=np.bool_)
    for one, other in pairs:
        graph[names[one], names[other]] = graph[names[other], names[one]] = True
    return graph


def _component_sizes(graph: NDArray[np.bool_]) -> list[int]:
    left, sizes = np.ones(len(graph), dtype=np.bool_), list[int]()
    while left.any():
        seen = np.zeros(len(graph), dtype=np.bool_)
        seen[int(np.argmax(left))] = True
        front = seen
        while front.any():
            front = graph[front].any(axis=0) & ~seen
            seen |= front
        sizes.append(int(seen.sum()))
        left &= ~seen
    return sizes


# --------------------------------------------------------------------------------------------------
# One network in place of all links, for a search that knows no order.


def even_clusters(cluster: ClusterSpec) -> tuple[ClusterSpec, ClusterSpec]:
    """Return the cluster at a pace that a ring through all nodes finds, and at one that none beats."""
    group = cluster.groups[0]
    table, size = LinkTable.of(group, group.num_nodes), group.num_nodes
    if size == 1:
        return cluster.with_even_links(1.0), cluster.with_even_links(1.0)
    rings = [_nearest_first(table.slowness, start) for start in range(min(size, _CHAINS))]
    found = min(float(table.slowness[ring, np.roll(ring, -1)].max()) for ring in rings)
    return cluster.with_even_links(found), cluster.with_even_links(float(table.of_pairs.min()))
