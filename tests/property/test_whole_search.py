"""Whole searches of random small problems against trying everything, and what holds between searches."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.check import violations
from meshwright.solver.configuration import Columns, Configuration, plan_id_of
from meshwright.solver.problem import Problem, problem_digest, real_tokens
from meshwright.solver.search.frontier import INNER
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import searched_space
from tests.draws import draws
from tests.problems.small_problems import small_problems
from tests.property.exhaustive import candidates_s, exhaust_all

ROOT = Path(__file__).parents[2]
EXAMPLES = draws(2, of_more=3)
ROUNDING = 1 + 1e-9


def answer_to(problem: Problem) -> Answer:
    return search(problem, default_profile(problem.cluster, problem.launcher))


def rows_of(problem: Problem) -> Rows:
    """Every legal row, priced on its own."""
    space = searched_space(problem)
    profile = default_profile(problem.cluster, problem.launcher)
    return priced_rows(problem, profile, space.columns.take(space.legal))


def best_of_layouts_s(rows: Rows) -> list[float]:
    """The least simulation among the candidates of every layout's rows, ascending; nothing is skipped."""
    c = rows.columns
    c = replace(c, zero_stage=np.where(c.replicating_ranks > 1, c.zero_stage, 0))  # one rank shards nothing
    outer = [getattr(c, f.name) for f in fields(Columns) if f.name not in INNER]
    best: dict[tuple[int, ...], float] = {}
    for row, tried in candidates_s(rows):
        layout = tuple(int(values[row]) for values in outer)
        best[layout] = min(tried, best.get(layout, np.inf))
    return sorted(best.values())


@given(small_problems())
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_ranking_the_bound_and_the_least_objective_are_those_of_trying_everything(
    problem: Problem,
) -> None:
    problem = replace(problem, options=replace(problem.options, diverse=False))
    answer, rows = answer_to(problem), rows_of(problem)
    scores = best_of_layouts_s(rows)
    steps = [plan.prediction.step_time_s for plan in answer.plans]
    assert np.allclose(steps, scores[: problem.options.top_k], rtol=1e-9)
    assert answer.status == ("optimal" if scores else "infeasible")
    if not scores:
        return
    every = exhaust_all(rows)
    fastest = min(float(one.simulated_s.min(initial=np.inf)) for one in every)
    least = min(float(one.objective_s.min(initial=np.inf)) for one in every)
    assert answer.bound_step_time_s is not None
    assert answer.bound_step_time_s <= fastest * ROUNDING
    assert answer.objective_excess is not None
    assert answer.plans[0].objective_s * (1.0 - answer.objective_excess) == pytest.approx(least, rel=1e-7)


@given(small_problems(top_k=1), st.integers(1, 12))
@settings(max_examples=EXAMPLES, deadline=None)
def test_of_packed_documents_the_plan_with_most_real_tokens_a_second_is_found(
    problem: Problem, tokens: int
) -> None:
    """Megatron-Bridge fills a document up to a multiple of cp * tp: very short ones decide the mesh."""
    lengths = SequenceLengths(histogram=((min(tokens, problem.workload.seq_length), 1.0),))
    work = replace(problem.workload, lengths=lengths)
    options = replace(problem.options, objective="tokens_per_s_per_gpu")
    asked = replace(problem, workload=work, options=options, launcher="megatron-bridge")
    rows = rows_of(replace(asked, options=problem.options))
    each = real_tokens(asked, rows.columns) * rows.columns.global_batch_size / rows.columns.num_gpus
    rates = [each[row] / step_s for row, step_s in candidates_s(rows)]
    found = [plan.prediction.tokens_per_s_per_gpu for plan in answer_to(asked).plans]
    assert found == pytest.approx([max(rates)] if rates else [], rel=1e-9)


@given(small_problems(top_k=3))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_best_k_are_the_first_of_the_best_k_and_one(problem: Problem) -> None:
    plain = replace(problem.options, diverse=False)
    for options in (plain, problem.options):
        asked = [replace(problem, options=replace(options, top_k=top_k)) for top_k in (3, 4)]
        few, many = ([plan.config for plan in answer_to(one).plans] for one in asked)
        assert many[: len(few)] == few if options is plain else {*few} <= {*many}  # others stand between


def pinned_to(problem: Problem, config: Configuration) -> Problem:
    """The problem with everything pinned that the first plan chose."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "zero_stage",
             "context_parallel_size", "expert_parallel_size", "expert_tensor_parallel_size",
             "data_parallel_size", "micro_batch_size")  # fmt: skip
    pin: dict[str, int | str] = {name: getattr(config, name) for name in names}
    return replace(problem, options=replace(problem.options, pin=pin))


@given(small_problems(top_k=1))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_best_plan_is_found_again_when_it_is_pinned(problem: Problem) -> None:
    for plan in answer_to(problem).plans:
        again = answer_to(pinned_to(problem, plan.config)).plans
        assert [one.config for one in again] == [plan.config]
        assert again[0].prediction == plan.prediction


def with_gpu(problem: Problem, **factors: float) -> Problem:
    """The problem on GPUs, or links, that are better by these factors."""
    group = problem.cluster.groups[0]
    gpu, inside, outside = group.gpu, group.intra_node, group.inter_node
    gpu = replace(
        gpu,
        memory_bytes=int(gpu.memory_bytes * factors.get("memory", 1.0)),
        hbm_bytes_per_s=gpu.hbm_bytes_per_s * factors.get("hbm", 1.0),
        peak_flops={name: peak * factors.get("compute", 1.0) for name, peak in gpu.peak_flops.items()},
    )
    links = [
        replace(link, bytes_per_s=link.bytes_per_s * factors.get("network", 1.0))
        for link in (inside, outside)
    ]
    group = replace(group, gpu=gpu, intra_node=links[0], inter_node=links[1])
    return replace(problem, cluster=replace(problem.cluster, groups=(group,)))


def least_objective_s(problem: Problem) -> float:
    """The least closed form of all configurations and splits; +inf where none fits."""
    answer = answer_to(problem)
    if not answer.plans or answer.objective_excess is None:
        return float("inf")
    return answer.plans[0].objective_s * (1.0 - answer.objective_excess)


@given(
    small_problems(top_k=1), st.sampled_from(["memory", "hbm", "compute", "network"]), st.floats(1.05, 3.0)
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_better_hardware_is_never_worse(problem: Problem, what: str, factor: float) -> None:
    better = with_gpu(problem, **{what: factor})
    assert least_objective_s(better) <= least_objective_s(problem) * (1 + 1e-7)
    before, after = answer_to(problem).bound_step_time_s, answer_to(better).plans
    if before is not None:
        assert after


MUTABLE = (
    "tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "context_parallel_size",
    "expert_parallel_size", "data_parallel_size", "zero_stage", "zero_shard_size", "micro_batch_size",
    "num_microbatches", "recompute_layers",
)  # fmt: skip


@st.composite
def mutants(draw: st.DrawFn, plan: Plan, digest: str) -> Plan:
    """The plan with one number of its configuration, its split or its prediction changed."""
    what = draw(st.sampled_from([*MUTABLE, "split", "step_time_s", "peak_memory_bytes", "objective_s"]))
    config, prediction = plan.config, plan.prediction
    if what == "objective_s":
        return replace(plan, objective_s=plan.objective_s * draw(st.sampled_from([0.9, 1.1])))
    if what in ("step_time_s", "peak_memory_bytes"):
        value = getattr(prediction, what) * draw(st.sampled_from([0.5, 0.99, 1.01, 2.0]))
        return replace(
            plan, prediction=replace(prediction, **{what: type(getattr(prediction, what))(value)})
        )
    if what == "split":
        layers = list(config.stage_layers)
        layers[draw(st.integers(0, len(layers) - 1))] += draw(st.sampled_from([-1, 1]))
        config = replace(config, stage_layers=tuple(layers))
    else:
        value = draw(st.sampled_from([0, getattr(config, what) * 2, getattr(config, what) + 1, 3]))
        config = replace(config, **{what: value})
    return replace(plan, config=config, plan_id=plan_id_of(digest, config))


@given(small_problems(top_k=2), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_plans_that_were_tampered_with_are_refused(problem: Problem, data: st.DataObject) -> None:
    profile = default_profile(problem.cluster, problem.launcher)
    for plan in answer_to(problem).plans:
        assert not list(violations(problem, profile, plan))
        for _ in range(4):
            mutant = data.draw(mutants(plan, problem_digest(problem)))
            config = plan.config  # ZeRO on one rank shards nothing, so that each stage is the same plan
            alike = replace(mutant, config=replace(mutant.config, zero_stage=config.zero_stage))
            same = alike if config.replicating_ranks == 1 else mutant
            assert replace(same, plan_id=plan.plan_id) == plan or list(violations(problem, profile, mutant))


SEARCH = """
import json
from dataclasses import replace
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.search.search import search
problem = parse_problem({
    "model": "mixtral-8x7b",
    "cluster": {"name": "dgx-h100", "num_nodes": 2},
    "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
})
answer = search(problem, default_profile(problem.cluster, problem.launcher))
print(json.dumps(replace(answer, elapsed_s=0.0).to_json(), sort_keys=True))
"""


def test_a_seed_gives_the_same_answer_in_fresh_processes() -> None:
    found = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True, check=True,
                             env=environment, cwd=ROOT)  # fmt: skip
        found.append(run.stdout)
    assert found[0] == found[1]
    assert json.loads(found[0])["status"] == "optimal"
