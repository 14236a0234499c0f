"""Pipelines: every stage priced on its node group, many configurations in few array operations.

A mesh over equal nodes has one group. A stage is assembled as that stage of the whole pipeline under the
profile of its group; the transfers between groups are priced by the link between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.collectives.collectives import Fabric, Group, all_reduce_s, point_to_point_s
from meshwright.profiles.frameworks import with_options
from meshwright.profiles.profile import Profile
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    BoolArray,
    Columns,
    Configuration,
    FloatArray,
    IntArray,
    counted,
    predicts_alone,
)
from meshwright.solver.cost.communication import sent_bytes
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.memory import memory_budget_bytes
from meshwright.solver.cost.parameters import (
    head_weights,
    layer_weights,
    trained_first,
    trained_weights,
)
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import (
    Chunks,
    LayerLayout,
    RowPrices,
    Stages,
    added_by_rank,
    assemble,
    chunks_of,
    objective_s,
)
from meshwright.solver.cost.timed_layers import is_timed
from meshwright.solver.cost.uncertainty import extrapolated, log_time_sigma, moved_prices
from meshwright.solver.cost.ways import Ways, priced_together
from meshwright.solver.problem import Problem, on_group


def padded(configurations: Sequence[Configuration]) -> IntArray:
    """Return splits as one array (n, C), with zeros behind each row's chunks."""
    width = max(len(c.stage_layers) for c in configurations)
    rows = [(*c.stage_layers, *([0] * (width - len(c.stage_layers)))) for c in configurations]
    return np.array(rows, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """Layout in which configurations are priced and summed: with or without counted prediction layers."""

    problem: Problem  # that ``price`` takes
    layout: LayerLayout
    splits: IntArray  # (n, C), of what the layout counts

    @classmethod
    def of(cls, problem: Problem, configurations: Sequence[Configuration]) -> LaidOut:
        """Return the layout; prediction layers are counted if some configuration has a stage for them."""
        layout, splits = LayerLayout.of(problem.model, problem.training), padded(configurations)
        apart = problem.model.num_mtp_layers > 0
        if not (apart and any(predicts_alone(one.stage_layers) for one in configurations)):
            return cls(problem=problem, layout=layout, splits=splits)
        for row, one in enumerate(configurations):
            own = counted(one.stage_layers, ends=False, prediction=True)
            splits[row, : len(own)] = own
        asked = replace(problem, options=replace(problem.options, standalone_stages=True))
        return cls(
            problem=asked, layout=layout.with_prediction(problem.model.num_mtp_layers), splits=splits
        )

    def prices(self, prices: RowPrices) -> RowPrices:
        """Return prices of the problem by the layout's parts."""
        return prices.with_prediction() if self.layout.counts_prediction else prices


def replayed_layers(configurations: Sequence[Configuration], columns: Columns) -> IntArray | None:
    """Return recomputed layers of every chunk (n, C), as ``padded``; None if no row has them by stage."""
    if not any(c.stage_recompute_layers for c in configurations):
        return None
    counts = np.repeat(columns.recompute_layers[:, None], padded(configurations).shape[1], axis=1)
    for row, configuration in enumerate(configurations):
        own = configuration.stage_recompute_layers
        counts[row, : len(own)] = own
    return counts


# --------------------------------------------------------------------------------------------------
# A mixed cluster as the search sees it: node groups, each priced by its own profile, and their links.
#
# The ranks of a stage, all its data-parallel replicas, lie on one group; what crosses from group to group
# is the pipeline's own transfer, over ``between_groups`` or the slower of the two networks.


@dataclass(frozen=True, kw_only=True)
class NodeGroups:
    """The node groups of a problem, each as a problem of its own."""

    problem: Problem
    profiles: tuple[Profile, ...]

    @classmethod
    def of(cls, problem: Problem, profile: Profile) -> NodeGroups:
        """Return the node groups of a problem with a profile that prices every group."""
        return cls(problem=problem, profiles=profile.by_group)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Return the same model and workload on each group alone."""
        return tuple(on_group(self.problem, group) for group in self.groups)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the groups' names."""
        return self.problem.cluster.group_names

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """Return the node groups."""
        return self.problem.cluster.distinct_groups

    def budget_bytes(self, group: int) -> float:
        """Return the bytes that a rank of a group may use at its peak."""
        return memory_budget_bytes(self.problems[group], self.profiles[group])

    @cached_property
    def _fabrics(self) -> dict[tuple[int, int], Fabric]:
        return {}

    def _fabric(self, one: int, other: int) -> Fabric:
        """Return the network between two groups: every message between them leaves its island."""
        if (one, other) not in self._fabrics:
            look()
            between = self.problem.cluster.between_groups if one != other else None
            ends = (self.groups[at].inter_node for at in (one, other))
            link = between or min(ends, key=lambda link: link.payload_bytes_per_s)
            self._fabrics[one, other] = self.profiles[other].across(link).fabric
        return self._fabrics[one, other]

    def hop_s(self, one: int, other: int, sent_bytes: FloatArray) -> FloatArray:
        """Return exposed seconds of activations between neighbours on two groups, each direction.

        ``collectives.point_to_point_s`` over the link between them, by the slower end's software.
        """
        ones = np.ones_like(sent_bytes)
        ways = []
        for a, b in ((one, other), (other, one)):
            seconds = point_to_point_s(sent_bytes, ones, 2.0 * ones, self._fabric(a, b))
            ways.append(seconds * self.profiles[b].constants.transfer_exposed)
        return np.maximum(*ways)

    def exchange_s(self, groups: tuple[int, ...]) -> float:
        """Return the seconds in which classes of replicas on several groups add up their gradients.

        Inside a group gradients are reduced and scattered, and gathered again, as without the others
        (priced with the class); between them each rank all-reduces its part over the slowest link of any
        two; of two classes on one group that is its own network. The group of the fewest GPUs has the
        largest parts, and the others wait for it.
        """
        if len(groups) == 1:
            return 0.0
        first, gpus = groups[0], min(self.groups[at].num_gpus for at in groups)
        facts = with_options(self.profiles[first].framework, self.problem.workload.framework_options)
        part = np.array([self.trained_weights / gpus * facts.reduced_gradient_bytes])
        pairs = [self._fabric(one, other) for one, other in permutations(groups, 2)]
        size = np.array([float(len(groups))])
        return max(float(all_reduce_s(part, Group(size, np.ones(1), fabric))[0]) for fabric in pairs)

    @cached_property
    def trained_weights(self) -> float:
        """Count the whole model's weights with exchanged gradients."""
        config = Configuration(stage_layers=(self.problem.model.num_layers,))
        ctx = context_of(self.problems[0], Columns.of([config]), self.profiles[0])
        kinds = self.problem.model.layer_kinds()
        layers = [trained_weights(ctx, layer_weights(ctx, kind), kind) for kind in kinds]
        parts = [*layers, trained_first(ctx), trained_weights(ctx, head_weights(ctx), "head")]
        return sum(float(own.dense[0] + own.routed[0]) for own in parts)


EVERYWHERE = -1  # instead of a node group: a mesh over all nodes, which the slowest GPU paces


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedPipelines:
    """n configurations priced and added up, all stages of each on one node group."""

    group: int  # among ``NodeGroups.groups``, or EVERYWHERE
    name: str  # of that group; empty everywhere
    problem: Problem
    profile: Profile
    columns: Columns
    splits: IntArray  # (n, C) layers of each chunk
    replayed: IntArray | None
    layout: LayerLayout
    prices: RowPrices
    chunks: Chunks
    stages: Stages
    moved: RowPrices | None

    @classmethod
    def of(
        cls, problem: Problem, profile: Profile, configurations: Sequence[Configuration],
        group: int = EVERYWHERE, name: str = "", *, with_spread: bool = False,
    ) -> PricedPipelines:  # fmt: skip
        """Price and add up at least one configuration, with its error if ``with_spread``."""
        columns, laid = Columns.of(configurations), LaidOut.of(problem, configurations)
        moved = moved_prices(laid.problem, columns, profile) if with_spread else None
        own = price(laid.problem, columns, profile) if moved is None else moved.take(slice(len(columns)))
        prices, replayed = laid.prices(own), replayed_layers(configurations, columns)
        return cls(
            group=group, name=name, problem=problem, profile=profile, columns=columns, layout=laid.layout,
            splits=padded(configurations), replayed=replayed, prices=prices, moved=moved,
            chunks=chunks_of(columns, laid.layout, laid.splits, replayed),
            stages=assemble(prices, columns, laid.layout, laid.splits, replayed),
        )  # fmt: skip

    @cached_property
    def context(self) -> Context:
        """Return the inputs of the cost model, by row."""
        return context_of(self.problem, self.columns, self.profile)

    @cached_property
    def sent_bytes(self) -> FloatArray:
        """Return the bytes of one activation that one rank sends, (n,)."""
        return sent_bytes(self.context)

    @cached_property
    def parts(self) -> FloatArray:
        """Return the number of each part that every stage holds, (n, R, P)."""
        return added_by_rank(self.chunks.parts, self.chunks)

    @cached_property
    def replayed_parts(self) -> FloatArray:
        """Return the number of fully recomputed ``parts``, (n, R, P)."""
        return added_by_rank(self.chunks.replayed, self.chunks)

    @cached_property
    def handed(self) -> FloatArray:
        """Count hidden states and gradients that every stage hands on or back in a micro-batch, (n, R)."""
        handed = (self.chunks.sent + self.chunks.returned)[..., None]
        return np.asarray(added_by_rank(handed, self.chunks)[..., 0])

    @cached_property
    def peak_bytes(self) -> FloatArray:
        """Return the peak memory of every stage, (n, R)."""
        return self.stages.peak_memory_bytes

    @cached_property
    def budget_bytes(self) -> float:
        """Return the bytes that a rank may use at its peak."""
        return memory_budget_bytes(self.problem, self.profile)

    @cached_property
    def log_time_sigma(self) -> FloatArray:
        """Return the spread of ln(measured / predicted) step time, (n,)."""
        return log_time_sigma(
            self.problem, self.columns, self.splits, self.profile, self.replayed, moved=self.moved
        )

    @cached_property
    def extrapolated(self) -> list[tuple[str, ...]]:
        """Return the inputs outside the measured range, by row."""
        return extrapolated(self.problem, self.columns, self.profile)

    @cached_property
    def is_timed(self) -> BoolArray:
        """Mark rows with every kind of layer timed at that shard and micro-batch, (n,)."""
        if self.profile.layers is None:
            return np.zeros(len(self.columns), dtype=np.bool_)
        kinds = LayerLayout.of(self.problem.model, self.problem.training).kinds
        return np.asarray(np.all([is_timed(self.context.of(one), one.kind) for one in kinds], axis=0))


def closed_forms(
    problems: Sequence[Problem], profile: Profile, placed: Sequence[tuple[int, Configuration]]
) -> tuple[FloatArray, FloatArray]:
    """Return the closed-form step of meshes over equal nodes, and the fullest rank's bytes; (n,) each.

    ``problems``: one under several switches. ``placed``: meshes, each with the number of its problem.
    """
    configurations = [one for _, one in placed]
    columns, laid = Columns.of(configurations), LaidOut.of(problems[0], configurations)
    if laid.problem is not problems[0]:
        problems = [LaidOut.of(one, configurations).problem for one in problems]
    ways = Ways.of_each_row(problems, profile).under(np.array([at for at, _ in placed]))
    prices = laid.prices(priced_together(price, ways, columns, profile))
    stages = assemble(prices, columns, laid.layout, laid.splits, replayed_layers(configurations, columns))
    return objective_s(prices, columns, stages), stages.peak_memory_bytes.max(axis=1)
