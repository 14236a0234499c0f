"""Searches of mixed clusters: ``python -m benchmarks.mixed [--uniform | --drawn | --chunks] [--write]``.

First the problems of ``benchmarks/problems/mixed``, two to eight unlike node groups and 70B models on GPUs
of little memory, each in a process of its own: CPU seconds of the search, its gap, its peak memory.

Then the real mixed cluster of Sailor's data: OPT-350M with a global batch of 1 024 on A100-40 and V100-16
nodes, each priced by its own measured layers and links (benchmarks/data/sailor): 32, 80 and 128 A100 alone,
and 128, 320 and 512 GPUs of both types, one A100 to three V100. The layers were timed without context
parallelism, which the reference planner does not have either, so it is pinned to 1. Next to ours stand the
seconds that the reference planner takes (its authors' planner on their profiles, as measured before).
``--write`` puts both tables into the document.

``--uniform`` asks instead whether one solver would do for both: problems of ``benchmarks/problems`` on
equal nodes under FlagScale, within what it runs on node groups, by the exact programs, by the model of
mixed clusters on the same nodes as one group, and on two equal groups; ``--write`` puts that table into the
page on decisions.

``--chunks`` bounds what interleaved chunks could gain: no schedule that runs backward passes in one piece
ends before its slowest stage has worked all its micro-batches.

``--drawn`` searches 24 random requests (fixed seed): two to eight node groups of twelve GPU
types, 48 to 576 GPUs, models from 7B to 405B.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.search import DOCUMENT, aligned, written
from meshwright.profiles.measured.read import read_measured_profile
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.profiles import profile_with
from meshwright.solver.answer import Plan
from meshwright.solver.clock import Watch
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.problem import Problem, Progress
from meshwright.solver.search.mixed.bounds import bounds_of
from meshwright.solver.search.mixed.rows import LegalRows, MixedRows
from meshwright.solver.search.mixed.search import search_mixed
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


# --------------------------------------------------------------------------------------------------
# Unlike node groups, each problem in a process of its own.

PROBLEMS = Path(__file__).parent / "problems" / "mixed"
PROBLEM_HEADINGS = (
    "problem", "GPUs", "first plan", "within 10 %", "end", "step", "gap of the closed form",
    "gap of the step", "status", "top 10", "peak memory",
)  # fmt: skip
_LIMIT_S = 300.0  # on the clock, which other work may share


def measured(document: dict[str, Any], top_k: int) -> dict[str, object]:
    """Search one problem; CPU seconds of the search alone."""
    problem = parse_problem(document)
    options = replace(problem.options, top_k=top_k, time_limit_s=_LIMIT_S)
    profile = default_profile(problem.cluster, problem.launcher)
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began_s, found = time.process_time(), list[tuple[float, float]]()

    def progress(now: Progress) -> None:
        step_s = now.incumbent_step_time_s
        if step_s is not None and (not found or step_s < found[-1][1]):
            found.append((time.process_time() - began_s, step_s))

    answer = search(replace(problem, options=options), profile, on_progress=progress)
    end_s = time.process_time() - began_s
    step_s = answer.plans[0].prediction.step_time_s if answer.plans else None
    near = [at for at, step in found if step_s is not None and step <= step_s * 1.1]
    return {
        "gpus": problem.cluster.num_gpus, "first_s": found[0][0] if found else end_s,
        "near_s": near[0] if near else end_s, "end_s": end_s, "step_s": step_s,
        "gap": answer.objective_gap, "step_gap": answer.gap, "status": answer.status,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib,
    }  # fmt: skip


def in_a_process(name: str, top_k: int, way: str = "") -> dict[str, Any]:
    """Measure a problem in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.mixed", "--one", name, "--top-k", str(top_k), "--way", way]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def problem_line(name: str) -> tuple[str, ...]:
    """Measure one problem with the first plan alone, and with ten."""
    one, ten = in_a_process(name, 1), in_a_process(name, 10)
    return (
        name, str(one["gpus"]),
        f"{one['first_s']:.2f} s", f"{one['near_s']:.2f} s", f"{one['end_s']:.2f} s",
        "-" if one["step_s"] is None else f"{one['step_s']:.3f} s",
        *("-" if one[gap] is None else f"{one[gap]:.2%}" for gap in ("gap", "step_gap")), one["status"],
        f"{ten['end_s']:.2f} s",
        f"{one['mib']:.0f} MiB",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Requests that are drawn.

DRAWN, _DRAWN_SEED = 24, 7
DRAWN_HEADINGS = (
    "request",
    "groups",
    "GPUs",
    "first plan",
    "end",
    "step",
    "gap of the closed form",
    "status",
)
_GPUS = (
    "h100-sxm-80gb", "a100-sxm-80gb", "v100-sxm-32gb", "l40s", "h200-sxm-141gb", "b200-sxm-180gb",
    "a100-sxm-40gb", "rtx-4090", "l4", "a10g", "rtx-3090", "t4",
)  # fmt: skip
_MODELS = (
    "llama-2-7b", "llama-2-13b", "llama-3.1-8b", "llama-2-70b", "llama-3.1-70b", "falcon-40b",
    "qwen2.5-72b", "llama-3.1-405b", "bloom-176b", "gpt-neox-20b",
)  # fmt: skip


def drawn() -> list[dict[str, Any]]:
    """Draw the requests, each as a problem document."""
    found, draw = list[dict[str, Any]](), random.Random(_DRAWN_SEED)  # noqa: S311
    for _ in range(DRAWN):
        kinds = draw.sample(_GPUS, draw.choice([2, 2, 3, 3, 4, 5, 6, 8]))
        groups = [
            {"gpu": gpu, "num_nodes": draw.choice([1, 2, 3, 4, 5, 8, 16]), "gpus_per_node": 8}
            for gpu in kinds
        ]
        between = {"kind": "ethernet", "bytes_per_s": 3.125e9, "latency_s": 2e-5}
        model, batch = draw.choice(_MODELS), draw.choice([64, 128, 256, 512, 1024, 240])
        workload = {"global_batch_size": batch, "seq_length": draw.choice([2048, 4096, 8192])}
        found.append({
            "model": {"name": model},
            "cluster": {"name": "drawn", "groups": groups, "between_groups": between},
            "workload": {**workload, "precision": "fp16"},
            "launcher": "none", "search": {"top_k": 1, "certify": "none"},
        })  # fmt: skip
    return found


def drawn_line(at: int) -> tuple[str, ...]:
    """Measure one random request."""
    document, one = drawn()[at], in_a_process(str(at), 1, "drawn")
    workload, model = document["workload"], document["model"]["name"]
    return (
        f"{model}, {workload['global_batch_size']} × {workload['seq_length']}",
        str(len(document["cluster"]["groups"])), str(one["gpus"]),
        "-" if one["step_s"] is None else f"{one['first_s']:.2f} s", f"{one['end_s']:.2f} s",
        "-" if one["step_s"] is None else f"{one['step_s']:.3f} s",
        "-" if one["gap"] is None else f"{one['gap']:.2%}", one["status"],
    )  # fmt: skip


def drawn_table(*, write: bool) -> None:
    """Print the table of random requests; write it into the document if asked."""
    lines = []
    for at in range(DRAWN):
        lines.append(drawn_line(at))
        print("  ".join(lines[-1]), flush=True)
    if write:
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(
            written(document, aligned(DRAWN_HEADINGS, lines), "mixed-drawn"), encoding="utf-8"
        )


# --------------------------------------------------------------------------------------------------
# What interleaved chunks could gain at most.

CHUNKS_HEADINGS = ("problem", "micro-batches", "stages", "step", "no step is below", "gain, at most")
CHUNKS_DOCUMENT = DOCUMENT.parent / "adr" / "0011-no-interleaved-chunks-between-node-groups.md"


def chunks_line(name: str) -> tuple[str, ...]:
    """Search one problem, and bound the step of any number of chunks for each rank.

    Memory is that of 1F1B, of which interleaved ranks need more.
    """
    problem = parse_problem(json.loads((PROBLEMS / f"{name}.json").read_text(encoding="utf-8")))
    options = replace(problem.options, top_k=1, time_limit_s=_LIMIT_S)
    profile = default_profile(problem.cluster, problem.launcher)
    best = search(replace(problem, options=options), profile).plans[0]
    rows = MixedRows.of(LegalRows.of(NodeGroups.of(problem, profile)))
    bounds = bounds_of(rows)
    own_s = rows.num_microbatches * bounds.slowest_s + bounds.tail_s
    least_s = float((own_s + np.where(rows.room > 0, rows.fixed_s, np.inf).min(axis=0)).min())
    step_s = best.prediction.step_time_s
    return (
        name, str(best.config.num_microbatches), str(best.config.pipeline_parallel_size), f"{step_s:.3f} s",
        f"{min(least_s, step_s):.3f} s", f"{max(1.0 - least_s / step_s, 0.0):.1%}",
    )  # fmt: skip


def chunks_table(*, write: bool) -> None:
    """Print the table of what chunks could gain; write it into the document if asked."""
    lines = []
    for name in sorted(path.stem for path in PROBLEMS.glob("*.json")):
        lines.append(chunks_line(name))
        print("  ".join(lines[-1]), flush=True)
    if write:
        document = CHUNKS_DOCUMENT.read_text(encoding="utf-8")
        CHUNKS_DOCUMENT.write_text(
            written(document, aligned(CHUNKS_HEADINGS, lines), "chunks"), encoding="utf-8"
        )


# --------------------------------------------------------------------------------------------------
# One solver for both? The model of mixed clusters on equal nodes, next to the exact programs.

UNIFORM = (
    "gpt-3-175b-1024-a100", "gpt-3-175b-4096-a100", "llama-3.1-405b-16384-h100", "megatron-1t-3072-a100",
    "mixtral-8x22b-512-h100", "qwen3-235b-256-h100",
)  # fmt: skip
UNIFORM_HEADINGS = (
    "problem", "exact programs", "least closed form", "CP-SAT, one group", "gap", "two equal groups",
    "gap of those",
)  # fmt: skip
UNIFORM_DOCUMENT = DOCUMENT.parent / "what-decides-what.md"
_UNIFORM_LIMIT_S = 900.0  # on the clock, which other work may share
_APART = 1.0 + 1e-6  # of a latency: two equal groups with that link between them are not joined to one


def uniform_problem(name: str) -> Problem:
    """Return a problem on equal nodes within the space that the model of mixed clusters has as well."""
    document = json.loads((PROBLEMS.parent / f"{name}.json").read_text(encoding="utf-8"))
    pin = {"virtual_pipeline_size": 1, "pipeline_schedule": "1f1b", "context_parallel_size": 1}
    search_for = {"top_k": 1, "certify": "none", "time_limit_s": _UNIFORM_LIMIT_S, "pin": pin}
    return parse_problem({**document, "launcher": "flagscale", "search": search_for})


def on_uniform(name: str, way: str) -> dict[str, object]:
    """Search one problem on equal nodes in one of three ways; CPU seconds of the search alone."""
    problem = uniform_problem(name)
    (group,) = problem.cluster.groups
    if way != "exact":  # all stages have one tensor-parallel size, as on equal nodes
        options = replace(problem.options, constraints=(f"num_gpus == {problem.cluster.num_gpus}",))
        problem = replace(problem, options=options)
    if way == "two":
        half = replace(group, num_nodes=group.num_nodes // 2)
        link = replace(group.inter_node, latency_s=group.inter_node.latency_s * _APART)
        cluster = replace(problem.cluster, groups=(half, half), between_groups=link)
        problem = replace(problem, cluster=cluster)
    profile = default_profile(problem.cluster, problem.launcher)
    began_s = time.process_time()
    if way == "exact":
        answer = search(problem, profile)
    else:
        own = profile if way == "two" else replace(profile, by_group=(profile,))
        answer = search_mixed(problem, own, Watch(time_limit_s=_UNIFORM_LIMIT_S))
    end_s, best = time.process_time() - began_s, answer.plans[0] if answer.plans else None
    least_s = None if best is None else best.objective_s * (1.0 - (answer.objective_excess or 0.0))
    return {"cpu_s": end_s, "least_s": least_s, "gap": answer.objective_gap}


def uniform_line(name: str) -> tuple[str, ...]:
    """Measure one problem in all three ways."""
    exact, one, two = (in_a_process(name, 1, way) for way in ("exact", "one", "two"))

    def found(own: dict[str, Any]) -> tuple[str, str]:
        if own["least_s"] is None:
            return f"{own['cpu_s']:.2f} s: no plan", "-"
        more = own["least_s"] / exact["least_s"] - 1.0
        return f"{own['cpu_s']:.2f} s: {more:+.2%}", "-" if own["gap"] is None else f"{own['gap']:.2%}"

    return (name, f"{exact['cpu_s']:.2f} s", f"{exact['least_s']:.3f} s", *found(one), *found(two))


def uniform_table(*, write: bool) -> None:
    """Print the table of equal nodes, and write it where it is asked for."""
    lines = []
    for name in UNIFORM:
        lines.append(uniform_line(name))
        print("  ".join(lines[-1]), flush=True)
    if write:
        document = UNIFORM_DOCUMENT.read_text(encoding="utf-8")
        table = aligned(UNIFORM_HEADINGS, lines)
        UNIFORM_DOCUMENT.write_text(written(document, table, "uniform"), encoding="utf-8")


def main() -> None:
    """Print the tables, and write them where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--uniform", action="store_true", help="equal nodes, next to the exact programs")
    parser.add_argument("--chunks", action="store_true", help="what interleaved chunks could gain at most")
    parser.add_argument("--drawn", action="store_true", help="random requests (fixed seed)")
    parser.add_argument("--top-k", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)
    asked_for = parser.parse_args()
    if asked_for.one:
        name, way = asked_for.one, asked_for.way
        if way and way != "drawn":
            print(json.dumps(on_uniform(name, way)))
            return
        file = PROBLEMS / f"{name}.json"
        document = drawn()[int(name)] if way else json.loads(file.read_text(encoding="utf-8"))
        print(json.dumps(measured(document, asked_for.top_k)))
        return
    if asked_for.drawn:
        drawn_table(write=asked_for.write)
        return
    if asked_for.chunks:
        chunks_table(write=asked_for.write)
        return
    if asked_for.uniform:
        uniform_table(write=asked_for.write)
        return
    problems = []
    for name in sorted(path.stem for path in PROBLEMS.glob("*.json")):
        problems.append(problem_line(name))
        print("  ".join(problems[-1]), flush=True)
    lines = []
    for a100, v100 in SIZES:
        lines.append(line(a100, v100))
        print("  ".join(lines[-1]), flush=True)
    table = aligned(HEADINGS, lines)
    if asked_for.write:
        document = DOCUMENT.read_text(encoding="utf-8")
        document = written(document, aligned(PROBLEM_HEADINGS, problems), "mixed-problems")
        DOCUMENT.write_text(written(document, table, "mixed"), encoding="utf-8")


if __name__ == "__main__":
    main()
