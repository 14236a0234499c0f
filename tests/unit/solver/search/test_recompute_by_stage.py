"""Every stage recomputes as many layers as its memory asks for, where no launcher asks for one number."""

import json
from dataclasses import replace

import pytest

from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.service.report.formatting import recompute
from meshwright.service.requests.configuration import completed
from meshwright.solver.answer import Answer
from meshwright.solver.check import violations
from meshwright.solver.configuration import configuration_from_json
from meshwright.solver.explain.remedies import fastest
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_gpu, a_model, a_problem

FULL = {"recompute_granularity": "full", "pipeline_parallel_size": 4, "virtual_pipeline_size": 1,
        "tensor_parallel_size": 2, "micro_batch_size": 1, "pipeline_schedule": "1f1b"}  # fmt: skip


def tight(launcher: str = "none", memory_gib: int = 24, **options: object) -> Problem:
    """16 layers on 8 GPUs whose first stage cannot keep what it keeps in flight."""
    model = a_model(num_layers=16, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    cluster = a_cluster(num_nodes=1, gpu=a_gpu(memory_bytes=memory_gib * GIB))
    defaults: dict[str, object] = {"certify": "none", "top_k": 1, "pin": FULL}
    return replace(
        a_problem(model=model, cluster=cluster, batch=32, **defaults | options), launcher=launcher
    )


def answered(problem: Problem) -> Answer:
    return search(problem, default_profile(problem.cluster, problem.launcher))


def test_stages_that_hold_fewer_micro_batches_recompute_fewer_layers_and_the_step_is_faster() -> None:
    own, alike = (answered(tight(launcher)).plans[0] for launcher in ("none", "megatron-lm"))
    counts = own.config.stage_recompute_layers
    assert len(counts) == len(own.config.stage_layers) == 4
    assert counts[0] > counts[-1]
    assert own.config.recompute_layers == max(counts)
    assert not alike.config.stage_recompute_layers
    assert own.prediction.step_time_s < alike.prediction.step_time_s
    assert recompute(own.config) == f"full ×{min(counts)}–{max(counts)} by stage"


def test_such_a_plan_is_read_back_priced_again_and_certified() -> None:
    problem = tight(certify="cp-sat")
    answer = answered(problem)
    plan = answer.plans[0]
    assert answer.status == "optimal"
    assert plan.certified_by == ("exact-dp", "cp-sat")
    again = configuration_from_json(json.loads(json.dumps(plan.to_json()["config"])))
    assert again == plan.config
    free = replace(problem, options=replace(problem.options, pin={}))
    assert completed({"recompute_granularity": "full", "pipeline_parallel_size": 4,
                      "stage_layers": [4, 4, 4, 4], "stage_recompute_layers": [4, 2, 1, 0]},
                     free).recompute_layers == 4  # fmt: skip
    assert not list(violations(problem, default_profile(problem.cluster, "none"), plan))


def test_where_everything_fits_full_recomputation_by_stage_is_that_of_one_layer() -> None:
    # 16 layers fit many times over: no layer at all would be granularity none.
    problem = tight(memory_gib=400)
    plan = answered(problem).plans[0]
    assert sorted(plan.config.stage_recompute_layers) == [0, 0, 0, 1]
    head = 3  # the last stage is busiest with the head: the layer is recomputed elsewhere
    assert plan.config.stage_recompute_layers[head] == 0 or plan.config.stage_layers[head] < 4
    free = replace(problem, options=replace(problem.options, pin={}))
    assert answered(free).plans[0].config.recompute_granularity == "none"


def test_counts_of_nothing_are_refused_and_read_as_no_recomputation() -> None:
    problem = tight()
    profile = default_profile(problem.cluster, "none")
    nothing = {"recompute_granularity": "full", "pipeline_parallel_size": 4,
               "stage_layers": [4, 4, 4, 4], "stage_recompute_layers": [0, 0, 0, 0]}  # fmt: skip
    with pytest.raises(InvalidProblemError, match="stage_recompute_layers"):
        completed(nothing, problem)
    config = replace(answered(problem).plans[0].config, stage_recompute_layers=(0,) * 4, recompute_layers=0)
    assert any("above 0" in one for one in violations(problem, profile, config))


def test_a_number_that_covers_every_chunk_is_read_as_all_layers_of_the_model() -> None:
    every = {"recompute_granularity": "full", "pipeline_parallel_size": 4, "stage_layers": [5, 4, 4, 3]}
    problem = replace(tight(), options=replace(tight().options, pin={}))
    assert completed(every, problem).recompute_layers == 16
    assert completed({**every, "recompute_layers": 5}, problem).recompute_layers == 16
    assert completed({**every, "recompute_layers": 3}, problem).recompute_layers == 3


@pytest.mark.parametrize(("counts", "fault"), [
    ((9, 9, 9, 9), "one count per chunk"),
    ((1, 1, 1), "one count per chunk"),
])  # fmt: skip
def test_counts_that_chunks_do_not_have_are_refused(counts: tuple[int, ...], fault: str) -> None:
    problem = tight()
    written = {"recompute_granularity": "full", "pipeline_parallel_size": 4,
               "stage_layers": [4, 4, 4, 4], "stage_recompute_layers": list(counts)}  # fmt: skip
    with pytest.raises(InvalidProblemError, match=r"must be a count for each chunk.* 4 counts, up to 4"):
        completed(written, problem)
    config = answered(problem).plans[0].config
    wrong = replace(config, stage_recompute_layers=counts, recompute_layers=max(counts))
    faults = list(violations(problem, default_profile(problem.cluster, "none"), wrong))
    assert any(fault in one for one in faults)


def test_a_launcher_with_one_number_neither_finds_nor_exports_nor_accepts_such_a_plan() -> None:
    problem = tight()
    plan = answered(problem).plans[0]
    theirs = replace(problem, launcher="megatron-lm")
    faults = list(violations(theirs, default_profile(problem.cluster, "megatron-lm"), plan.config))
    assert any("the same number of layers on every stage" in one for one in faults)
    with pytest.raises(RefusedExportError, match="stage_recompute_layers"):
        export(plan, theirs, "megatron-lm")


def test_a_change_that_is_offered_shows_the_counts_it_was_priced_with() -> None:
    problem = tight()
    found = fastest(problem, default_profile(problem.cluster, "none"))
    assert found is not None
    assert found[0] == answered(problem).plans[0].config


def test_a_request_that_names_the_number_of_layers_gets_one_number() -> None:
    answer = answered(tight(constraints=("recompute_layers <= 4",)))
    assert answer.plans
    assert not answer.plans[0].config.stage_recompute_layers
