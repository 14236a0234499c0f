"""The real mixed cluster of Sailor's data: ``python -m benchmarks.mixed [--write]``.

OPT-350M with a global batch of 1 024 on A100-40 and V100-16 nodes, each priced by its own measured layers
and links (benchmarks/data/sailor): 32, 80 and 128 A100 alone, and 128, 320 and 512 GPUs of both types, one
A100 to three V100. The layers were timed without context parallelism, which the reference planner does not
have either, so it is pinned to 1. Beside ours stand the seconds that the reference planner takes for each
(its authors' planner on their profiles, as measured before). ``--write`` puts the table into the document.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import yaml

from benchmarks.search import DOCUMENT, aligned, written
from meshwright.profiles.measured.read import read_measured_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.profiles import profile_with
from meshwright.solver.answer import Plan
from meshwright.solver.search.search import search

DATA = Path(__file__).parent / "data" / "sailor"
# A100 and V100 GPUs, and the reference planner's seconds: at least, at most
SIZES = ((32, 0), (80, 0), (128, 0), (32, 96), (80, 240), (128, 384))
REFERENCE_S = {False: "0.03 to 0.2 s", True: "1.5 to 6.9 s"}
HEADINGS = (
    "A100 + V100",
    "GPUs used",
    "plan",
    "step",
    "bound",
    "gap",
    "status",
    "wall",
    "CPU",
    "reference",
)


def asked(a100: int, v100: int, *, time_limit_s: float = 60.0) -> dict[str, object]:
    """The request of one size."""
    cluster = yaml.safe_load((DATA / "cluster.yaml").read_text(encoding="utf-8"))
    for group, gpus in zip(cluster["groups"], (a100, v100), strict=True):
        group["num_nodes"] = gpus // group["gpus_per_node"]
    cluster["groups"] = [group for group in cluster["groups"] if group["num_nodes"]]
    return {
        "model": {"name": "opt-350m"},
        "cluster": cluster,
        "workload": {"global_batch_size": 1024, "seq_length": 2048, "precision": "fp16"},
        "launcher": "none",
        "search": {
            "top_k": 1,
            "certify": "none",
            "time_limit_s": time_limit_s,
            "pin": {"context_parallel_size": 1},
        },
    }


def in_words(plan: Plan) -> str:
    """Replicas of each class, their pipeline and share of the batch."""
    classes = plan.config.classes
    return "; ".join(
        f"dp {one.data_parallel_size} pp {one.pipeline_parallel_size} tp {one.tensor_parallel_size} "
        f"mbs {one.micro_batch_size}: {one.global_batch_size} sequences"
        for one in classes
    )


def line(a100: int, v100: int) -> tuple[str, ...]:
    """Search one size."""
    problem = parse_problem(asked(a100, v100))
    slugs = {group.gpu.slug for group in problem.cluster.groups}
    given = [read_measured_profile(DATA / f"opt-350m-{slug}.json") for slug in sorted(slugs)]
    profile, _ = profile_with(problem, given)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    answer = search(replace(problem), profile)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    best = answer.plans[0]
    return (
        f"{a100} + {v100}",
        str(best.config.num_gpus),
        in_words(best),
        f"{best.prediction.step_time_s:.3f} s",
        "-" if answer.bound_step_time_s is None else f"{answer.bound_step_time_s:.3f} s",
        "-" if answer.gap is None else f"{answer.gap:.2%}",
        answer.status,
        f"{wall_s:.2f} s",
        f"{cpu_s:.2f} s",
        REFERENCE_S[v100 > 0],
    )


def main() -> None:
    """Print the table, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    asked_for = parser.parse_args()
    lines = []
    for a100, v100 in SIZES:
        lines.append(line(a100, v100))
        print("  ".join(lines[-1]), flush=True)
    table = aligned(HEADINGS, lines)
    if asked_for.write:
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(written(document, table, "mixed"), encoding="utf-8")


if __name__ == "__main__":
    main()
