"""What tensor parallelism across islands would win: ``make bench ARGS=across-islands``.

Each request is searched as it is, and once more with all nodes as one island for the rules alone: prices
keep the cluster's own links, so that wide tensor groups exchange over the network. Small batches are
among the requests: there, few sequences leave data parallelism little to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from unittest import mock

from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.solver.problem import NO_SWITCH, Problem, SearchOptions, Workload
from meshwright.solver.search.search import search
from meshwright.solver.space import enumerate as enumerate_space
from meshwright.solver.space import rules

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "gpt-3-175b", "mixtral-8x7b")
CLUSTERS = ("dgx-h100", "dgx-a100")
NODES = (2, 8, 32)
SEQUENCES_PER_GPU = (0.125, 1.0, 8.0)
MOST_RANKS = 64  # of a tensor group


def requests() -> Iterator[Problem]:
    """Yield every request; a batch has a sequence for each node or more."""
    for model, cluster, nodes, each in product(MODELS, CLUSTERS, NODES, SEQUENCES_PER_GPU):
        there = find_cluster(cluster, num_nodes=nodes)
        yield Problem(
            model=find_model(model),
            cluster=there,
            workload=Workload(global_batch_size=max(int(each * there.num_gpus), nodes), seq_length=4096),
            launcher="none",
            options=SearchOptions(allow=(NO_SWITCH,), top_k=1, certify="none"),
        )


def best_s(problem: Problem, *, across: bool) -> tuple[float | None, int]:
    """Return the fastest step and its tensor-parallel size; None if nothing fits."""
    profile = default_profile(problem.cluster, problem.launcher)
    island = min(problem.cluster.num_gpus, MOST_RANKS)
    if not across:
        plans = search(problem, profile).plans
    else:
        with (
            mock.patch.object(rules, "common_island", return_value=island),
            mock.patch.object(enumerate_space, "common_island", return_value=island),
        ):
            plans = search(problem, profile).plans
    return (plans[0].objective_s, plans[0].config.tensor_parallel_size) if plans else (None, 0)


def main() -> None:
    """Print the requests in which it wins, how often, and by how much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each n-th request [default: 1]")
    every = parser.parse_args().every
    rows, tried, found = [], 0, 0
    for problem in list(requests())[::every]:
        (own, _), (wide, tensor) = (best_s(problem, across=across) for across in (False, True))
        tried += own is not None or wide is not None
        if wide is None or tensor <= problem.cluster.groups[0].island_gpus:
            continue
        found += 1
        work = problem.workload
        rows.append(
            [
                problem.model.name, f"{problem.cluster.groups[0].num_nodes} × {problem.cluster.name}",
                f"{work.global_batch_size}", f"{tensor}", f"{wide:.3f} s",
                "nothing fits" if own is None else f"{own / wide - 1.0:.1%}",
            ]
        )  # fmt: skip
    print(f"{found} of {tried} requests with a plan are faster with tensor groups across islands")
    if rows:
        print("\n".join(table(["model", "nodes", "batch", "tp", "step", "faster by"], rows)))


if __name__ == "__main__":
    main()
