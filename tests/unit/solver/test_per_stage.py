"""Every stage recomputes as many layers as its memory asks for, where no launcher asks for one number."""

import json
from dataclasses import replace

import pytest

from profiles.errors import RefusedExportError
from profiles.profile import default_profile
from profiles.units import GIB
from service.configurations import completed
from service.launchers.registry import export
from service.report.figures import recompute
from solver.check import violations
from solver.plan import Answer, configuration_from_json
from solver.problem import Problem
from solver.search.search import search
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


def test_such_a_plan_is_read_back_priced_again_and_certified_as_far_as_it_is() -> None:
    problem = tight(certify="cp-sat")
    answer = answered(problem)
    plan = answer.plans[0]
    assert answer.status == "optimal"
    assert plan.certified_by == ("exact-dp",)
    assert any("recomputes by stage" in warning for warning in answer.warnings)
    again = configuration_from_json(json.loads(json.dumps(plan.to_json()["config"])))
    assert again == plan.config
    free = replace(problem, options=replace(problem.options, pin={}))
    assert completed({"recompute_granularity": "full", "pipeline_parallel_size": 4,
                      "stage_layers": [4, 4, 4, 4], "stage_recompute_layers": [4, 2, 1, 0]},
                     free).recompute_layers == 4  # fmt: skip
    assert not list(violations(problem, default_profile(problem.cluster, "none"), plan))


@pytest.mark.parametrize(("counts", "fault"), [
    ((9, 9, 9, 9), "a count for each chunk"),
    ((1, 1, 1), "a count for each chunk"),
])  # fmt: skip
def test_counts_that_chunks_do_not_have_are_refused(counts: tuple[int, ...], fault: str) -> None:
    problem = tight()
    config = answered(problem).plans[0].config
    wrong = replace(config, stage_recompute_layers=counts, recompute_layers=max(counts))
    faults = list(violations(problem, default_profile(problem.cluster, "none"), wrong))
    assert any(fault in one for one in faults)


def test_a_launcher_with_one_number_neither_finds_nor_exports_nor_accepts_such_a_plan() -> None:
    problem = tight()
    plan = answered(problem).plans[0]
    theirs = replace(problem, launcher="megatron-lm")
    faults = list(violations(theirs, default_profile(problem.cluster, "megatron-lm"), plan.config))
    assert any("as many layers of every stage" in one for one in faults)
    with pytest.raises(RefusedExportError, match="stage_recompute_layers"):
        export(plan, theirs, "megatron-lm")


def test_a_request_that_names_the_number_of_layers_gets_one_number() -> None:
    answer = answered(tight(constraints=("recompute_layers <= 4",)))
    assert answer.plans
    assert not answer.plans[0].config.stage_recompute_layers
