"""Conflicts of an infeasible problem: no plan on all GPUs keeps them; without any of them there is one."""

from collections.abc import Collection
from dataclasses import replace

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from meshwright.solver.space.request_rules import request_rules, without_limits
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.draws import draws
from tests.problems.asked import searched_with_reasons
from tests.property.unexplained import unexplained

SMALL = a_model(num_layers=24, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
PINS = {
    "tensor_parallel_size": (1, 2, 8, 16),
    "pipeline_parallel_size": (1, 2, 8),
    "zero_stage": (0, 1, 3),
    "micro_batch_size": (1, 4, 16),
    "recompute_granularity": ("none", "selective", "full"),
    "data_parallel_size": (1, 8),
}


def problem_of(pins: dict[str, int | str], memory_gib: float) -> Problem:
    cluster = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=int(memory_gib * 2**30)))
    return a_problem(model=SMALL, cluster=cluster, batch=64, certify="none", top_k=1, pin=pins)


def gpus_used(problem: Problem, limits: Collection[str]) -> int:
    """GPUs of the best plan under some of a problem's own limits, 0 without one.

    ``memory`` stands for that of its GPUs.
    """
    others = [rule.name for rule in request_rules(problem) if rule.name not in limits]
    freed = without_limits(problem, others)
    if "memory" not in limits:
        cluster = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=2**50))
        freed = replace(freed, cluster=cluster)
    with unexplained():
        plans = search(freed, default_profile(freed.cluster, freed.launcher)).plans
    return plans[0].config.num_gpus if plans else 0


@example({"tensor_parallel_size": 1, "data_parallel_size": 1, "zero_stage": 3}, 24.0)  # fewer GPUs
@given(
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in PINS.items()}),
    st.sampled_from((10.0, 24.0, 79.0)),
)
@settings(
    max_examples=draws(2, of_more=3), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
def test_every_conflict_is_infeasible_and_without_any_member_it_is_not(
    pins: dict[str, int | str], memory_gib: float
) -> None:
    problem = problem_of(pins, memory_gib)
    answer = searched_with_reasons(problem)
    if answer.infeasible is None:
        return
    own = {rule.name for rule in request_rules(problem)}
    assert answer.infeasible.conflicts
    needed: set[frozenset[str]] = set()  # some conflicts without a member are the same
    for conflict in answer.infeasible.conflicts:
        limits = {"memory" if name.startswith("memory of ") else name for name in conflict}
        if not limits <= {*own, "memory"}:
            continue  # a rule of the model or the launcher: nobody can give it up
        # under fewer limits the search may go on with fewer GPUs; the conflict is about all of them
        assert gpus_used(problem, limits) < problem.cluster.num_gpus
        needed.update(frozenset(limits - {member}) for member in limits)
    assert all(gpus_used(problem, limits) > 0 for limits in needed)
