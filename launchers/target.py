"""The plan to be exported, together with the problem that it answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meshwright.profiles.cluster import GpuSpec, NodeGroup
from meshwright.profiles.frameworks import FrameworkFacts, framework_facts, with_options
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.solver.answer import Plan, settled_problem
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One plan of one problem: all that an exporter may read."""

    plan: Plan
    problem: Problem
    version: str = (
        ""  # of the launcher, as its exporter lists them; empty: the one its files are judged with
    )

    @property
    def config(self) -> Configuration:
        """The configuration that must be conserved."""
        return self.plan.config

    @property
    def model(self) -> ModelSpec:
        """The model to be trained."""
        return self.problem.model

    @property
    def workload(self) -> Workload:
        """The work of one optimizer step."""
        return self.problem.workload

    def chose(self, name: str) -> bool:
        """Return whether the search chose an option, the precision or the optimizer, not the request."""
        return name in self.plan.workload

    @property
    def facts(self) -> FrameworkFacts:
        """The facts that priced the plan: the framework's, overridden by the request."""
        own = framework_facts(framework_of(self.problem.priced_as))
        return with_options(own, self.workload.framework_options)

    @property
    def gpu(self) -> GpuSpec:
        """The GPU type of the cluster's first node group."""
        return self.problem.cluster.groups[0].gpu

    @property
    def gpus_per_node(self) -> int:
        """GPUs that one node brings to the job: all of them, or fewer when one node suffices."""
        return min(self.problem.cluster.groups[0].gpus_per_node, self.config.num_gpus)

    @property
    def idle_gpus(self) -> int:
        """GPUs of the last node that start no rank."""
        return self.num_nodes * self.gpus_per_node - self.config.num_gpus

    @property
    def gpus_of_last_node(self) -> int:
        """GPUs of the last node that start a rank."""
        return self.gpus_per_node - self.idle_gpus

    @property
    def near_gpus(self) -> int:
        """Consecutive ranks that reach each other without the network: a node, or an island of nodes."""
        return max(self.gpus_per_node, self.problem.cluster.groups[0].island_gpus)

    @property
    def num_nodes(self) -> int:
        """Nodes that the job starts on; a part of a node counts as one."""
        if self.config.stage_groups:
            return sum(nodes for _, nodes in self.placed_nodes)
        return -(-self.config.num_gpus // self.gpus_per_node)

    @property
    def ordered_nodes(self) -> tuple[int, ...]:
        """Return the node of each node rank, by number; empty where any order is as good."""
        hosts = self.plan.hosts
        return () if hosts is None or self.num_nodes == 1 else hosts.order[: self.num_nodes]

    @property
    def host_names(self) -> tuple[str, ...]:
        """Return the host of each node rank; empty where any order is as good, or hosts have no names."""
        return self.plan.hosts.hosts if self.plan.hosts is not None and self.ordered_nodes else ()

    @property
    def placed_nodes(self) -> list[tuple[NodeGroup, int]]:
        """Return the node groups that stages are placed on, in their order, with the nodes used."""
        used = dict[str, int]()
        for stage in self.config.stage_groups:
            used[stage.group] = used.get(stage.group, 0) + stage.num_gpus
        groups = self.problem.cluster.group_named
        return [(groups[name], -(-count // groups[name].gpus_per_node)) for name, count in used.items()]

    @property
    def shard_ranks(self) -> int:
        """Return the ranks over which Megatron-style optimizers shard when nothing limits them."""
        return self.config.replicating_ranks


def pads(target: Target) -> bool:
    """Return whether every document is a sequence of its own, padded to the limit or to the longest."""
    lengths = target.workload.lengths
    return lengths is not None and lengths.batching != "packing"


def pads_to_longest(target: Target) -> bool:
    """Return whether micro-batches are as long as their longest document."""
    lengths = target.workload.lengths
    return lengths is not None and lengths.batching == "padding_to_longest"


def trained(target: Target) -> list[tuple[str, str]]:
    """Return the trained parts of a step as a table: names of requests in code, and their values."""
    workload = target.workload
    found: dict[str, object] = {
        "global_batch_size": target.config.global_batch_size,
        "seq_length": workload.seq_length,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
    }
    if workload.sample_word != "sequence":
        found |= {"sample": workload.sample, "reference": workload.reference}
    if workload.lora_rank:
        found |= {
            "lora_rank": workload.lora_rank,
            "lora_targets": ", ".join(workload.lora_targets),
            "trained_modules": ", ".join(workload.trained_modules) or "none",
            "base_precision": workload.base_precision,
        }
    return [(name, str(value)) for name, value in found.items()]


def target_of(plan: Plan, problem: Problem) -> Target:
    """Return the plan with its problem, settled to its own batch, switches and order of nodes."""
    return Target(plan=plan, problem=replace(settled_problem(plan, problem), launcher=problem.launcher))


# --------------------------------------------------------------------------------------------------
# What an exporter returns; it is a function of a Target, and raises RefusedExportError.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBundle:
    """Launch files of one plan, ready to be written into one folder."""

    files: dict[str, str]  # file name to text; the same plan always gives the same bytes
    warnings: list[str] = field(default_factory=list)  # approximations, and parts that are left to the user
