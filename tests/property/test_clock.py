"""Every legal request ends at its limit, or soon after a cancel, in bounded memory, whatever it asks for.

Requests are drawn from the whole schema and answered in a process of their own, which measures the most
CPU seconds between two looks at the clock, those beyond a limit or a cancel, and its own largest
resident memory. The clock itself counts CPU seconds there, so that a busy machine changes nothing.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from itertools import islice
from typing import Any

import pytest

from tests.draws import draws
from tests.processes.warm import run_warm

REQUESTS = draws(3)
MOST_BETWEEN_LOOKS_S = 0.25
MOST_BEYOND_S = 1.0  # of a limit, or of a cancel
MOST_MIB = 1024
LAUNCHERS = ("none", "megatron-lm", "torchtitan", "nanotron", "accelerate", "deepspeed", "any")
LIMIT_S = 0.75


def request(model: str, nodes: int, seq: int, batch: object, **search: Any) -> dict[str, Any]:  # noqa: ANN401
    """A request on DGX H100 with a limit of LIMIT_S."""
    launcher, workload = search.pop("launcher", "none"), search.pop("workload", {})
    return {
        "model": {"name": model},
        "cluster": {"name": "dgx-h100", "num_nodes": nodes},
        "workload": {"global_batch_size": batch, "seq_length": seq, **workload},
        "launcher": launcher,
        "search": {"time_limit_s": LIMIT_S, **search},
    }


# Each of them took far longer than its limit, or gibibytes, before the clock was looked at everywhere.
NAMED = {
    "offloading to the hosts": request("deepseek-v3", 256, 4096, 4096, allow=["offload"]),
    "two batches and long sequences": request("deepseek-v3", 512, 32768, [4096, 8192], allow=["offload"]),
    "a front": request("deepseek-v3", 96, 131072, 768, launcher="megatron-lm", pareto=True),
    "nothing fits": request("deepseek-v3", 8, 8192, 512),
    "nothing is in time": request(
        "deepseek-v3", 128, 8192, 4096, deadline_days=1.0, workload={"total_tokens": 10**13}
    ),
    "energy": request("deepseek-v3", 256, 8192, 4096, objective="energy_per_token"),
    "two kinds of nodes": {
        **request("deepseek-v3", 256, 32768, 4096),
        "cluster": {
            "groups": [{"gpu": gpu, "num_nodes": 256} for gpu in ("h100-sxm-80gb", "a100-sxm-80gb")]
        },
    },
    "eight kinds of nodes": {
        **request("llama-3.1-8b", 16, 4096, 64, time_limit_s=2.0, certify="none"),
        "cluster": {
            "groups": [
                {"gpu": gpu, "num_nodes": 2}
                for gpu in (
                    "a100-sxm-80gb",
                    "a100-pcie-80gb",
                    "a100-pcie-40gb",
                    "a100-sxm-40gb",
                    "a10g",
                    "a800-sxm-80gb",
                    "b200-sxm-180gb",
                    "b300",
                )
            ]
        },
    },
    "every launcher": request("deepseek-v3", 256, 8192, 4096, launcher="any", allow=["offload", "fp8"]),
}


def drawn(seed: int) -> dict[str, Any]:
    """A request whose every part is drawn; it need not be legal."""
    from meshwright.profiles.library import cluster_names, gpu_names, model_names  # noqa: PLC0415 - in the child

    one = random.Random(seed)
    nodes = one.choice([1, 2, 3, 8, 16, 64, 97, 128, 256, 512, 600])
    batches = [one.choice([1, 3, 64, 512, 1000, 4096, 8192]) for _ in range(one.choice([1, 1, 1, 2, 3]))]
    workload: dict[str, Any] = {
        "global_batch_size": batches if len(set(batches)) > 1 else batches[0],
        "seq_length": one.choice([128, 2048, 4096, 5000, 32768, 131072]),
        "precision": one.choice(["bf16"] * 5 + ["fp8"]),
        "optimizer": one.choice(["adamw"] * 6 + ["adamw-8bit", "muon"]),
        "total_tokens": one.choice([None, 10**11, 10**13]),
        "lora_rank": one.choice([0] * 8 + [16]),
    }
    search: dict[str, Any] = {
        "top_k": one.choice([1, 10, 10, 100]),
        "certify": one.choice(["none", "cp-sat", "cp-sat-all"]),
        "time_limit_s": one.choice([0.1, 1.0, 2.0]),
        "objective": one.choice(
            ["step_time"] * 3 + ["tokens_per_s_per_gpu", "gpu_hours_per_token", "energy_per_token"]
        ),
        "gpus": one.choice(["all"] * 5 + ["fewest"]),
        "pareto": one.random() < 0.2,
        "allow": one.sample(["offload", "fp8", "adamw-bf16", "muon"], one.choice([0, 0, 1, 2])),
    }
    if one.random() < 0.15:
        search["num_nodes"] = sorted({max(nodes // 4, 1), max(nodes // 2, 1), nodes})
    if one.random() < 0.15 and workload["total_tokens"]:
        search["deadline_days"] = one.choice([0.1, 10.0, 1000.0])
    if one.random() < 0.2:
        search["pin"] = {one.choice(["tensor_parallel_size", "pipeline_parallel_size"]): one.choice([2, 8])}
    if one.random() < 0.2:
        search["bounds"] = {one.choice(["micro_batch_size", "context_parallel_size"]): [1, 8]}
    if one.random() < 0.2:
        search["constraints"] = ["zero_stage >= 2 => pipeline_parallel_size == 1"]
    cluster: dict[str, Any] = {"name": one.choice(cluster_names()), "num_nodes": nodes}
    if one.random() < 0.2:
        gpus = one.sample(gpu_names(), 2)
        cluster = {"groups": [{"gpu": gpu, "num_nodes": max(nodes // 2, 1)} for gpu in gpus]}
    return {
        "model": {"name": one.choice(model_names())},
        "cluster": cluster,
        "workload": {name: value for name, value in workload.items() if value is not None},
        "launcher": one.choice(LAUNCHERS),
        "search": search,
    }


def posed(raw: dict[str, Any]) -> tuple[Any, Any] | None:
    """The problem of a request with its profile; None of one that is refused."""
    from meshwright.profiles.errors import PlannerError  # noqa: PLC0415 - in the child
    from meshwright.profiles.profile import default_profile  # noqa: PLC0415
    from meshwright.service.requests.parse import parse_problem  # noqa: PLC0415

    try:
        problem = parse_problem(raw)
        launcher = "megatron-lm" if problem.launcher == "any" else problem.launcher
        return problem, default_profile(problem.cluster, launcher)
    except PlannerError:
        return None


def measured(raw: dict[str, Any], cancel_after_s: float) -> dict[str, Any]:
    """What answering one legal request took; a cancel comes after so many CPU seconds."""
    from meshwright.solver import clock  # noqa: PLC0415
    from meshwright.solver.planner.plan import ask  # noqa: PLC0415 - in the child
    from tests.processes.cpu_clock import count_cpu_seconds  # noqa: PLC0415

    asked = posed(raw)
    assert asked is not None, raw
    problem, profile = asked
    count_cpu_seconds()
    begun = looked = time.process_time()
    longest, look = 0.0, clock.Watch.interrupted

    def noted(watch: clock.Watch, reserve_s: float = 0.0) -> bool:
        nonlocal looked, longest
        now = time.process_time()
        longest, looked = max(longest, now - looked), now
        return look(watch, reserve_s)

    def stop() -> bool:
        return time.process_time() - begun > cancel_after_s

    clock.Watch.interrupted = noted  # type: ignore[assignment,method-assign]
    answer = ask(problem, profile, should_stop=stop)
    clock.Watch.interrupted = look  # type: ignore[method-assign]
    end = time.process_time()
    return {
        "status": answer.status,
        "plans": len(answer.plans),
        "step_s": answer.plans[0].prediction.step_time_s if answer.plans else None,
        "bound_s": answer.bound_step_time_s,
        "longest_s": max(longest, end - looked),
        "beyond_s": end - begun - min(problem.options.time_limit_s, cancel_after_s),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_a_process(raws: list[dict[str, Any]], cancel_after_s: float = 1e9) -> list[dict[str, Any]]:
    """``measured`` of each request, one after the other, in one process."""
    given = json.dumps([raws, cancel_after_s])
    done = run_warm("-m", "tests.property.test_clock", given, env=os.environ, timeout=900)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def faults(one: dict[str, Any]) -> list[str]:
    """What a measured answer breaks."""
    said = [
        f"{name} = {one[name]:.2f} > {most}"
        for name, most in (
            ("longest_s", MOST_BETWEEN_LOOKS_S),
            ("beyond_s", MOST_BEYOND_S),
            ("mib", MOST_MIB),
        )
        if one[name] > most
    ]
    if one["status"] in ("unknown", "infeasible") and one["plans"]:
        said.append("plans without a status that has some")
    if one["plans"] and one["bound_s"] is not None and one["bound_s"] > one["step_s"] * (1 + 1e-9):
        said.append("a bound above the first plan")
    return said


@pytest.mark.parametrize("name", NAMED)
def test_a_large_request_ends_at_its_limit_in_a_gibibyte(name: str) -> None:
    (one,) = in_a_process([NAMED[name]])
    assert not faults(one), one


def test_a_cancelled_search_ends_within_a_second_of_cpu_time() -> None:
    raw = NAMED["offloading to the hosts"]
    (one,) = in_a_process([{**raw, "search": {**raw["search"], "time_limit_s": 600}}], cancel_after_s=1.0)
    assert not faults(one), one


def test_drawn_requests_end_at_their_limits_in_a_gibibyte() -> None:
    legal = (raw for raw in map(drawn, range(20 * REQUESTS)) if posed(raw))
    raws = list(islice(legal, REQUESTS))
    assert len(raws) == REQUESTS  # about every third is legal
    pairs = list(zip(raws, in_a_process(raws), strict=True))
    broken = [(faults(one), one, raw) for raw, one in pairs if faults(one)]
    assert not broken


if __name__ == "__main__":
    requests, cancel_s = json.loads(sys.argv[1])
    print(json.dumps([measured(raw, cancel_s) for raw in requests]))  # noqa: T201
