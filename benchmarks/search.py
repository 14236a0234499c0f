"""How fast the search proves its ranking: ``python benchmarks/search.py [--certify METHOD]``.

One line a problem: configurations enumerated, legal and fitting; rows solved by the exact program and
simulated; seconds from problem to proved top 10; the gap between the best step and its bound.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from profiles.library import find_cluster, find_model
from profiles.profile import default_profile
from solver.options import Certify, SearchOptions
from solver.plan import Answer
from solver.problem import Problem, Workload
from solver.search.search import search


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One problem of the benchmark."""

    model: str
    cluster: str
    num_nodes: int
    global_batch_size: int
    seq_length: int

    def problem(self, certify: Certify) -> Problem:
        """The problem as a request poses it."""
        return Problem(
            model=find_model(self.model),
            cluster=find_cluster(self.cluster, num_nodes=self.num_nodes),
            workload=Workload(global_batch_size=self.global_batch_size, seq_length=self.seq_length),
            options=SearchOptions(certify=certify, time_limit_s=120.0),
        )


def case(model: str, cluster: str, num_nodes: int, batch: int, seq: int) -> Case:
    """A case on one line."""
    return Case(model=model, cluster=cluster, num_nodes=num_nodes, global_batch_size=batch, seq_length=seq)


CASES = (
    case("llama-3.1-8b", "dgx-h100", 4, 256, 8192),
    case("llama-3.1-70b", "dgx-h100", 16, 512, 8192),
    case("gpt-3-175b", "dgx-a100", 128, 1536, 2048),
    case("llama-3.1-405b", "dgx-h100", 128, 2048, 8192),
    case("llama-3.1-405b", "dgx-h100", 2048, 4096, 8192),
    case("mixtral-8x7b", "dgx-h100", 16, 1024, 4096),
    case("qwen3-235b-a22b", "dgx-h100", 32, 1024, 4096),
    case("deepseek-v3", "dgx-h100", 128, 4096, 4096),
    case("deepseek-v3", "dgx-h100", 2048, 15360, 4096),
)
COLUMNS = ("model", "GPUs", "rows", "legal", "fit", "solved", "simulated", "seconds", "gap", "proved by")
WIDTHS = (18, 6, 8, 8, 8, 7, 9, 8, 8, 18)


def line(values: tuple[object, ...]) -> str:
    """One row of the table."""
    return "  ".join(str(value).rjust(width) for value, width in zip(values, WIDTHS, strict=True))


def measured(one: Case, certify: Certify) -> tuple[object, ...]:
    """Search once and describe it."""
    problem = one.problem(certify)
    profile = default_profile(problem.cluster, problem.launcher)
    start = time.perf_counter()
    answer: Answer = search(problem, profile)
    seconds = time.perf_counter() - start
    gap = "-" if answer.gap is None else f"{answer.gap:.3%}"
    counts = answer.counts
    return (one.model, problem.cluster.num_gpus, answer.space_size, answer.legal, answer.fit,
            counts["solved"], counts["simulated"], f"{seconds:.2f}", gap,
            ", ".join(answer.certified_by) or answer.status)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--certify", choices=("none", "cp-sat", "cp-sat-all"), default="cp-sat")
    certify = parser.parse_args().certify
    print(line(COLUMNS))
    for one in CASES:
        print(line(measured(one, certify)), flush=True)


if __name__ == "__main__":
    main()
