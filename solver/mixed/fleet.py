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
from profiles.collectives import Fabric, point_to_point_s
from profiles.profile import Profile
from solver.columns import FloatArray
from solver.cost.memory import memory_budget_bytes
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
