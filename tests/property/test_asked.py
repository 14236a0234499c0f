"""What a request asks for against brute force: every legal row, every split, by the request's objective."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.objective import weighing_of
from meshwright.solver.problem import Problem
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.expressions import names_in
from meshwright.solver.space.request_rules import constraint_of, holds_for
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.draws import draws
from tests.property.exhaustive import exhaust_all

SHAPE = {"num_layers": 4, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}
CLUSTER = a_cluster(num_nodes=2, gpu=a_gpu(power_watts=700.0))
WATTS = 0.82 * 700.0  # of one of its GPUs that computes
OBJECTIVES = ("step_time", "tokens_per_s_per_gpu", "gpu_hours_per_token", "energy_per_token")
CONSTRAINTS = (
    "tensor_parallel_size * context_parallel_size <= 2",
    "zero_stage >= 1 => pipeline_parallel_size == 1",
    "pipeline_parallel_size == 2 or num_gpus == 8",
    "not (recompute_granularity == 'full' and micro_batch_size == 1)",
    "num_microbatches % 2 == 0",
    "data_parallel_size // tensor_parallel_size >= 1",
    "virtual_pipeline_size == 1",
)


def asked(
    objective: str, constraints: list[str], nodes: tuple[int, ...], power_kw: float | None = None
) -> Problem:
    """4 layers on 8 or 16 GPUs, without what only widens the space."""
    return a_problem(
        model=a_model(**SHAPE), cluster=CLUSTER, batch=16, certify="none", top_k=1, objective=objective,
        constraints=tuple(constraints), num_nodes=nodes, max_power_kw=power_kw,
        bounds={"micro_batch_size": (1, 2)}, forbid={"zero_stage": (2, 3)},
        pin={"context_parallel_size": 1},
    )  # fmt: skip


@settings(max_examples=draws(3, of_more=6), deadline=None)
@given(
    objective=st.sampled_from(OBJECTIVES),
    constraints=st.lists(st.sampled_from(CONSTRAINTS), max_size=3, unique=True),
    nodes=st.sampled_from([(2,), (1, 2)]),
    power_kw=st.sampled_from([None, 16 * WATTS / 1e3, 15 * WATTS / 1e3]),  # of all 16 GPUs, of fewer
)
def test_no_legal_row_has_a_better_closed_form_minimum(
    objective: str, constraints: list[str], nodes: tuple[int, ...], power_kw: float | None
) -> None:
    problem = asked(objective, constraints, nodes, power_kw)
    profile = default_profile(problem.cluster, problem.launcher)
    answer = search(problem, profile)
    free = enumerate_space(asked(objective, [], nodes))
    legal = free.columns.take(free.legal & (enumerate_space(problem).masks == 0))
    assert kept_by_hand(problem, free.columns.take(free.legal)) == len(legal)
    rows = priced_rows(problem, profile, legal)
    weighing = weighing_of(problem, profile, legal)
    scores = []
    for row, tried in enumerate(exhaust_all(rows)):
        if tried.splits:
            best = tried.objective_s <= tried.objective_s.min() * (1 + 1e-9)
            step = float(tried.simulated_s[best].max())
            scores.append(float(weighing.scale[row] * step + weighing.offset[row]))
    if not scores:
        assert answer.status == "infeasible"
        return
    config, step = answer.plans[0].config, answer.plans[0].prediction.step_time_s
    own = weighing_of(problem, profile, Columns.of([config]))
    assert float((own.scale * step + own.offset)[0]) <= min(scores) * (1 + 1e-9)


def kept_by_hand(problem: Problem, columns: Columns) -> int:
    """Legal rows that keep every constraint and the power budget, one by one."""
    nodes = [constraint_of(text) for text in problem.options.constraints]
    kept = 0
    names = sorted(set().union(*map(names_in, nodes)))
    for row in range(len(columns)):
        config = columns.configuration(row, (problem.model.num_layers,))
        values = {name: getattr(config, name) for name in names}
        powered = config.num_gpus * WATTS <= (problem.options.max_power_kw or 1e9) * 1e3
        kept += powered and all(holds_for(node, values) for node in nodes)
    return kept


@pytest.mark.parametrize("text", CONSTRAINTS)
def test_every_constraint_of_this_file_keeps_some_rows_and_breaks_others(text: str) -> None:
    masks = enumerate_space(asked("step_time", [], (1, 2))).masks
    limited = enumerate_space(asked("step_time", [text], (1, 2))).masks
    assert 0 < int(np.sum(limited == 0)) < int(np.sum(masks == 0))
