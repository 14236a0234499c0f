"""What tensor parallelism across islands would win: ``make bench ARGS=across-islands``.

Each request is searched as it is, and once more with all nodes as one island for the rules alone: prices
keep the cluster's own links, so that wide tensor groups exchange over the network. Small batches are
among the requests: there, few sequences leave data parallelism little to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import median
from unittest import mock

from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.switches import NO_SWITCH
from meshwright.solver.problem import Problem, SearchOptions, Workload
from meshwright.solver.search import answers
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


def best_s(problem: Problem, *, across: bool) -> float | None:
    """Return the fastest step, or the fastest with tensor groups across islands; None if nothing fits."""
    profile = default_profile(problem.cluster, problem.launcher)
    if across:
        own, island = problem.cluster.groups[0].island_gpus, min(problem.cluster.num_gpus, MOST_RANKS)
        wide = replace(problem.options, constraints=(f"tensor_parallel_size > {own}",))
        with (
            mock.patch.object(rules, "islands_of", return_value=(island,)),
            mock.patch.object(enumerate_space, "islands_of", return_value=(island,)),
            mock.patch.object(answers, "violations_of_all", return_value=[]),  # which refuses them, too
        ):
            plans = search(replace(problem, options=wide), profile).plans
    else:
        plans = search(problem, profile).plans
    return plans[0].objective_s if plans else None


def main() -> None:
    """Print how often tensor groups across islands win, and by how much they lose or win."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each n-th request [default: 1]")
    gains, alone, tried = list[float](), 0, 0
    for problem in list(requests())[:: parser.parse_args().every]:
        own, wide = (best_s(problem, across=across) for across in (False, True))
        tried += own is not None or wide is not None
        alone += own is None and wide is not None
        gains += [own / wide - 1.0] if own is not None and wide is not None else []
    faster = [gain for gain in gains if gain > 0.0]
    print(f"requests with a plan: {tried}; only across islands: {alone}")
    print(f"with a plan of either kind: {len(gains)}; faster across islands: {len(faster)}")
    if gains:
        print(
            f"speed over that within islands: {max(gains):+.0%} at best, {median(gains):+.0%} in the middle"
        )


if __name__ == "__main__":
    main()
