"""A mixed cluster as the search sees it: node groups, each priced by its own profile, and their links.

A *berth* is a node group with a tensor-parallel size: somewhere a pipeline stage can stand. The ranks of
a stage, all its data-parallel replicas, stand on one group; what crosses from group to group is the
pipeline's own transfer, over ``between_groups`` or the slower of the two networks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from profiles.cluster import ClusterSpec, NodeGroup
from profiles.collectives import Fabric, Group, all_reduce_s, point_to_point_s
from profiles.frameworks import with_options
from profiles.profile import Profile
from solver.columns import Columns, FloatArray
from solver.cost.adapters import trained_weights
from solver.cost.context import context_of
from solver.cost.memory import memory_budget_bytes
from solver.cost.parameters import Weights, embedding_weights, head_weights, layer_weights
from solver.plan import Configuration
from solver.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """A node group with a tensor-parallel size."""

    group: int  # among ``ClusterSpec.distinct_groups``
    tensor_parallel_size: int


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The node groups of a problem, each as a problem of its own."""

    problem: Problem
    profiles: tuple[Profile, ...]
    problems: tuple[Problem, ...]  # the same model and workload on one group alone
    names: tuple[str, ...]

    @classmethod
    def of(cls, problem: Problem, profile: Profile) -> Fleet:
        """The fleet of a problem whose profile prices every group."""
        groups = problem.cluster.distinct_groups
        return cls(
            problem=problem,
            profiles=profile.by_group,
            problems=tuple(
                replace(problem, cluster=ClusterSpec(name=group.gpu.slug, groups=(group,)))
                for group in groups
            ),
            names=problem.cluster.group_names,
        )

    @property
    def groups(self) -> tuple[NodeGroup, ...]:
        """The node groups."""
        return self.problem.cluster.distinct_groups

    def budget_bytes(self, group: int) -> float:
        """What a rank of a group may use at its peak."""
        allowed = self.problem.options.max_out_of_memory_probability
        return memory_budget_bytes(self.problems[group], self.profiles[group], allowed)

    @cached_property
    def _fabrics(self) -> dict[tuple[int, int], Fabric]:
        """The link between each pair of groups, as either end's software drives it."""
        pairs = [(a, b) for a in range(len(self.groups)) for b in range(len(self.groups)) if a != b]
        return {(a, b): self._fabric(a, b) for a, b in pairs}

    def _fabric(self, one: int, other: int) -> Fabric:
        """The network between two groups: every message between them leaves its island."""
        between = self.problem.cluster.between_groups
        ends = [self.groups[at] for at in (one, other)]
        link = between or min((end.inter_node for end in ends), key=lambda link: link.bytes_per_s)
        profile = self.profiles[other]
        alone = replace(profile.group, inter_node=link, island_gpus=1, measured=None)
        return replace(profile, group=alone).fabric

    def hop_s(self, one: int, other: int, sent_bytes: FloatArray) -> FloatArray:
        """Exposed seconds of activations between neighbours on two groups, each direction.

        ``collectives.point_to_point_s`` over the link between them, by the slower end's software.
        """
        ones = np.ones_like(sent_bytes)
        ways = []
        for a, b in ((one, other), (other, one)):
            seconds = point_to_point_s(sent_bytes, ones, 2.0 * ones, self._fabrics[a, b])
            ways.append(seconds * self.profiles[b].constants.transfer_exposed)
        return np.maximum(*ways)

    def exchange_s(self, groups: tuple[int, ...]) -> float:
        """Seconds in which classes of replicas on several groups add up their gradients.

        Inside a group gradients are reduced and scattered, and gathered again, as without the others
        (priced with the class); between them each rank all-reduces its part over the slowest link of any
        two. The group of the fewest GPUs has the largest parts, and the others wait for it.
        """
        if len(groups) == 1:
            return 0.0
        first, gpus = groups[0], min(self.groups[at].num_gpus for at in groups)
        facts = with_options(self.profiles[first].framework, self.problem.workload.framework_options)
        part = np.array([self.trained_weights / gpus * facts.reduced_gradient_bytes])
        pairs = [self._fabrics[a, b] for a in groups for b in groups if a != b]
        size = np.array([float(len(groups))])
        return max(
            float(all_reduce_s(part, Group.of(size, np.ones(1), fabric), fabric)[0]) for fabric in pairs
        )

    @cached_property
    def trained_weights(self) -> float:
        """Weights of the whole model that gradients are exchanged for."""
        config = Configuration(stage_layers=(self.problem.model.num_layers,))
        ctx = context_of(self.problems[0], Columns.of([config]), self.profiles[0])
        kinds = self.problem.model.layer_kinds()
        total = sum(_count(trained_weights(ctx, layer_weights(ctx, kind), kind)) for kind in kinds)
        ends = (embedding_weights(ctx), head_weights(ctx))
        return total + sum(_count(trained_weights(ctx, one, None)) for one in ends)


def _count(weights: Weights) -> float:
    """Weights of one part, experts included."""
    return float(weights.dense[0] + weights.routed[0])
