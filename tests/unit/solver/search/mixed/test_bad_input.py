"""Requests on node groups that no plan can meet: a refusal with its field, or a proof with its reasons."""

import copy
import math

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Infeasibility
from meshwright.solver.clock import Watch
from meshwright.solver.explain.infeasible import explained, limits_of
from tests.problems.mixed_clusters import a_group, a_mixed_problem

DRAWN = {"name": "mine", "memory_gib": 80, "peak_tflops": {"bf16": 300}, "hbm_gb_per_s": 2000}
REQUEST = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {
        "name": "two-kinds",
        "groups": [
            {"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8},
            {"gpu": "a100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 8},
        ],
        "between_groups": {"kind": "ethernet", "bytes_per_s": 3e9, "latency_s": 2e-5},
    },
    "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "none",
}


def faults_of(part: str, **changes: object) -> list[tuple[str, str, str | None]]:
    """Fields that are refused with their ranges and nearest values, one part of the cluster changed."""
    raw = copy.deepcopy(REQUEST)
    found = raw["cluster"]
    for name in part.split("."):
        found = found[int(name) if name.isdigit() else name]  # type: ignore[index]
    found |= changes  # type: ignore[operator]
    with pytest.raises(InvalidProblemError) as refused:
        parse_problem(raw)
    return [(one.pointer, str(one.allowed), one.nearest) for one in refused.value.errors]


def reasons_of(*constraints: str) -> Infeasibility:
    """Return why constraints on two unlike groups leave no plan, without the searches for remedies."""
    groups = (a_group(slug="fast"), a_group(slug="slow", speed=0.4))  # islands of two GPUs each
    problem = a_mixed_problem(groups, certify="none", top_k=1, constraints=constraints)
    limits = limits_of(problem, default_profile(problem.cluster, "none"))
    return explained(limits, None, Watch(time_limit_s=math.inf))


def test_a_group_without_a_link_to_the_others_is_refused_by_its_field() -> None:
    ((pointer, allowed, nearest),) = faults_of("between_groups", bytes_per_s=0)
    assert (pointer, allowed, str(nearest)) == ("/cluster/between_groups/bytes_per_s", "1 to 1e+15", "1")


@pytest.mark.parametrize(("unit", "least"), [("memory_gib", "0.25"), ("memory_bytes", "268435456")])
def test_a_gpu_without_memory_is_refused_by_its_field_with_the_least_that_is_legal(
    unit: str, least: str
) -> None:
    gpu = {name: value for name, value in DRAWN.items() if name != "memory_gib"}
    ((pointer, allowed, nearest),) = faults_of("groups.1", gpu={**gpu, unit: 0})
    assert (pointer, nearest) == (f"/cluster/groups/1/gpu/{unit}", least)  # 2^28 bytes
    assert allowed.startswith(f"{least} to ")
    raw = copy.deepcopy(REQUEST)
    raw["cluster"]["groups"][1]["gpu"] = {**gpu, unit: float(least)}  # type: ignore[index]
    assert parse_problem(raw).cluster.groups[1].gpu.memory_bytes == 2**28


@pytest.mark.parametrize(
    "text",
    ["tensor_parallel_size > 1 and tensor_parallel_size < 1", "stages('fast') > 2 and stages('fast') < 1"],
)
def test_a_constraint_that_contradicts_itself_is_the_only_reason(text: str) -> None:
    found = reasons_of(text, "zero_stage < 3")
    assert found.conflicts == ((f"constraint {text}",),)
    assert text in found.reasons[0]


def test_constraints_on_node_groups_that_cannot_be_met_together_are_the_smallest_set() -> None:
    texts = ("first('fast')", "last('fast')", "layers('slow') > 0", "zero_stage < 3")
    found = reasons_of(*texts)
    assert found.conflicts == (tuple(f"constraint {text}" for text in texts[:3]),)
    assert found.reasons[0].endswith("no placement of stages on the node groups satisfies them")
