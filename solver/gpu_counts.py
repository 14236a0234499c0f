"""How many GPUs a plan may use: all but the spare ones, or those that the request leaves open."""

from __future__ import annotations

from solver.problem import Problem


def usable_gpus(problem: Problem) -> int:
    """GPUs of the cluster without its spare nodes."""
    per_node = min(group.gpus_per_node for group in problem.cluster.groups)
    return problem.cluster.num_gpus - problem.options.reserve_nodes * per_node


def gpu_counts(problem: Problem) -> tuple[int, ...]:
    """Every number of GPUs that the request leaves open, largest first."""
    most = usable_gpus(problem)
    per_node = min(group.gpus_per_node for group in problem.cluster.groups)
    open_counts = {nodes * per_node for nodes in problem.options.num_nodes}
    return tuple(sorted((n for n in open_counts if n <= most), reverse=True)) or (most,)
