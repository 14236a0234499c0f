"""Every legal request ends at its limit, or soon after a cancel, in bounded memory, whatever it asks for.

Requests are drawn from the whole schema (``MESHWRIGHT_TEST_DRAWS=201`` draws 201 of them) and answered in a
process of their own, which measures the most CPU seconds between two looks at the clock, those beyond a
limit or a cancel, and its own largest resident memory. The clock itself counts CPU seconds there, and fewer
on a slower machine (``tests.processes.pace``), so that neither a busy nor a slow one changes anything.
Every fourth request with a name is asked every day, all of them by ``make fuzz``.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from random import Random
from typing import Any

import pytest

from meshwright.service.requests.fields import FIELDS
from tests.draws import draws, some_of
from tests.problems.combined_requests import a_combined_request
from tests.processes.warm import run_warm

REQUESTS = draws(1)
MOST_BETWEEN_LOOKS_S = 0.25
MOST_BEYOND_S = 1.0  # of a limit, or of a cancel
MOST_MIB = 1024
LIMIT_S = 0.75
PLAN_WITHIN_S = 2.0  # CPU seconds; what has no plan by then has none after
SOON_S = 1.0
LONGER_S = 20.0
NEVER_S = 1e9


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
    # five million rows were written down to explain that no size uses all GPUs
    "reasons among many candidates": {
        **request(
            "bloom-7b1",
            8,
            1024,
            4096,
            time_limit_s=PLAN_WITHIN_S,
            reserve_nodes=1,
            allow=["sgd-momentum"],
            pin={"weight_shard_size": 1, "num_microbatches": 1, "pipeline_parallel_size": 8},
            constraints=["data_parallel_size % 2 == 0"],
            workload={"precision": "fp16"},
        ),
        "cluster": {"name": "aws-p5-h100", "num_nodes": 8},
    },
    "every launcher": request("deepseek-v3", 256, 8192, 4096, launcher="any", allow=["offload", "fp8"]),
}

# Each of them had no plan within one or two CPU seconds, or took a second and more beyond its limit.
PLANNED = {
    # every row was priced and bounded before the first plan was sought
    "many rows on two kinds of nodes": {
        **request("qwen3-1.7b", 64, 131072, 4096, top_k=2, certify="none", time_limit_s=SOON_S),
        "cluster": {"groups": [{"gpu": gpu, "num_nodes": 64} for gpu in ("v100-sxm", "trainium2")]},
        "workload": {"global_batch_size": 4096, "seq_length": 131072, "precision": "fp16"},
    },
    # numbers of GPUs that draw too much were looked at one by one
    "few GPUs within the power": request(
        "starcoderbase-1b", 64, 5000, 512, top_k=10, certify="none", time_limit_s=SOON_S,
        allow=["fp8"], pin={"tensor_parallel_size": 2}, forbid={"zero_stage": [3]}, max_power_kw=5.0,
        workload={"precision": "fp32"},
    ),
    # patterns of ranks were crossed before the effort was asked for them: 1.3 GiB, 2.8 s without a look
    "ranks with many patterns": {
        **request(
            "qwen3-235b-a22b-2507", 128, 1024, 512, certify="none", time_limit_s=SOON_S,
            gpus="fewest", pin={"zero_shard_size": 8}, bounds={"expert_parallel_size": [1, 8]},
            workload={"optimizer": "galore", "optimizer_rank": 64, "optimizer_interval": 100},
        ),
        "cluster": {"name": "dgx-b200", "num_nodes": 128},
    },
    # averages of paths in thousands of boxes looked at no clock: 1.9 s
    "bounds of many boxes": {
        **request("qwen1.5-1.8b", 8, 32768, 1000, launcher="megatron-lm", top_k=3, certify="none",
                  time_limit_s=SOON_S),
        "cluster": {"name": "dgx-b200", "num_nodes": 8},
    },
    # the same GPUs were refuted again for each of 31 numbers of nodes that legal rows use in part
    "few numbers of GPUs on many numbers of nodes": {
        **request(
            "trinity-large-400b", 600, 2048, 4096, launcher="ms-swift", certify="none",
            time_limit_s=PLAN_WITHIN_S, objective="tokens_per_s_per_gpu", gpus="fewest",
            pin={"num_microbatches": 2, "context_parallel_size": 2, "pipeline_parallel_size": 1},
        ),
        "cluster": {"name": "aws-p5-h100", "num_nodes": 600},
    },
    # a fourth of the time went into the sizes of 16 variants, 97 racks have no rows on most numbers of GPUs
    "sixteen variants on an odd number of nodes": {
        **request(
            "llama-4-maverick", 97, 5000, 4096, launcher="megatron-lm", top_k=2, certify="none",
            time_limit_s=3 * PLAN_WITHIN_S,  # its first plan takes 1.8 s; slower machines are allowed
            pin={"context_parallel_size": 1}, bounds={"zero_shard_size": [2, 8]},
            constraints=["zero_stage >= 1 => pipeline_parallel_size == 1"],
        ),
        "cluster": {"name": "gb200-nvl72", "num_nodes": 97},
    },
    # the last variant had the whole limit for itself
    "three variants": {
        **request(
            "stablelm-3b", 64, 32768, 4096, launcher="megatron-lm", top_k=5, certify="none",
            time_limit_s=SOON_S, allow=["sgd-momentum", "standalone_stages", "switches"],
            forbid={"recompute_granularity": ["full"]}, seed=543832517,
            pin={"expert_tensor_parallel_size": 1},
            workload={"framework_options": {"pipeline_batch": 1000000.0}},
        ),
        "cluster": {"name": "dgx-a100-40gb", "num_nodes": 64},
    },
}  # fmt: skip


def measured(raw: dict[str, Any], cancel_after_s: float) -> dict[str, Any]:
    """What answering one legal request took; a cancel comes after so many CPU seconds."""
    from meshwright.profiles.profile import default_profile  # noqa: PLC0415 - in the child
    from meshwright.service.requests.parse import parse_problem  # noqa: PLC0415
    from meshwright.solver import clock  # noqa: PLC0415
    from meshwright.solver.planner.plan import ask  # noqa: PLC0415
    from tests.processes.cpu_clock import count_cpu_seconds  # noqa: PLC0415
    from tests.processes.pace import pace, pace_now, work_s  # noqa: PLC0415

    problem = parse_problem(raw)
    profile = default_profile(problem.cluster, problem.priced_as)
    count_cpu_seconds()
    begun = looked = work_s()
    longest, look = 0.0, clock.Watch.interrupted

    def noted(watch: clock.Watch, reserve_s: float = 0.0) -> bool:
        nonlocal looked, longest
        between_s = work_s() - looked
        if between_s > MOST_BETWEEN_LOOKS_S:  # a busy machine may have become slower since it began
            between_s *= min(pace() / pace_now(), 1.0)
        longest, looked = max(longest, between_s), work_s()
        return look(watch, reserve_s)

    def stop() -> bool:
        return work_s() - begun > cancel_after_s

    clock.Watch.interrupted = noted  # type: ignore[assignment,method-assign]
    answer = ask(problem, profile, should_stop=stop)
    clock.Watch.interrupted = look  # type: ignore[method-assign]
    end = work_s()
    return {
        "status": answer.status,
        "plans": len(answer.plans),
        "step_s": answer.plans[0].prediction.step_time_s if answer.plans else None,
        "bound_s": answer.bound_step_time_s,
        "longest_s": max(longest, end - looked),
        "beyond_s": end - begun - min(problem.options.time_limit_s, cancel_after_s),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_a_process(raws: list[dict[str, Any]], cancel_after_s: float = NEVER_S) -> list[dict[str, Any]]:
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


@pytest.mark.parametrize("name", some_of([*NAMED], each=4))
def test_a_large_request_ends_at_its_limit_in_a_gibibyte(name: str) -> None:
    (one,) = in_a_process([NAMED[name]])
    assert not faults(one), one


@pytest.mark.parametrize("name", some_of([*PLANNED], each=4))
def test_a_plan_is_found_early_and_the_limit_is_kept(name: str) -> None:
    (one,) = in_a_process([PLANNED[name]])
    assert one["plans"]
    assert not faults(one), one


def test_a_cancelled_search_ends_within_a_second_of_cpu_time() -> None:
    raw = NAMED["offloading to the hosts"]
    (one,) = in_a_process([{**raw, "search": {**raw["search"], "time_limit_s": 600}}], cancel_after_s=1.0)
    assert not faults(one), one


@pytest.mark.parametrize("seed", range(REQUESTS))
def test_a_request_of_the_whole_schema_ends_in_time_with_a_plan_if_a_longer_run_has_one(seed: int) -> None:
    raw = a_combined_request(seed, large=True)
    broken: dict[str, Any] = {}
    for limit_s, cancel_s in ((PLAN_WITHIN_S, NEVER_S), (LONGER_S, Random(seed).uniform(0.1, 1.0))):
        (one,) = in_a_process([with_limit(raw, limit_s)], cancel_s)
        broken |= dict.fromkeys(faults(one), one)
        if one["status"] == "unknown" and cancel_s == NEVER_S:
            (longer,) = in_a_process([with_limit(raw, LONGER_S)])
            broken |= {"a longer run has a plan": longer} if longer["plans"] else {}
    assert not broken, raw


def with_limit(raw: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """The request with another time limit."""
    return {**raw, "search": {**raw["search"], "time_limit_s": limit_s}}


def test_requests_are_drawn_of_the_whole_schema() -> None:
    # of a service alone, and of a further question, which test_different.py asks
    elsewhere = {"profile", "search.differ", "search.within"}
    left = {row.path for row in FIELDS if row.type} - elsewhere
    for seed in range(100):
        raw = a_combined_request(seed, large=True)
        sections = {part: values for part, values in raw.items() if isinstance(values, dict)}
        drawn = {*raw, *(f"{part}.{name}" for part, values in sections.items() for name in values)}
        assert drawn.isdisjoint(elsewhere)
        left -= drawn
        if not left:
            return
    assert left == set()


if __name__ == "__main__":
    requests, cancel_s = json.loads(sys.argv[1])
    print(json.dumps([measured(raw, cancel_s) for raw in requests]))  # noqa: T201
