"""The waterfall of a step adds up to it, and its terms mean what they say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.alternatives import moves_of, settle
from meshwright.solver.explain.waterfall import TERMS, waterfalls
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_model, a_moe_model, a_problem

START = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_size=5,
    data_parallel_size=4, zero_stage=1, zero_shard_size=4, num_microbatches=128,
    pipeline_schedule="interleaved_1f1b", stage_layers=(4,) * 20,
)  # fmt: skip


def fall_of(problem: Problem, configuration: Configuration, **profile_changes: float) -> dict[str, float]:
    profile = replace(default_profile(problem.cluster, problem.launcher), **profile_changes)  # type: ignore[arg-type]
    step = predict(problem, profile, configuration).step_time_s
    fall = waterfalls(problem, profile, [configuration], [step])[0]
    assert sum(fall.values()) == pytest.approx(step, rel=1e-12)
    return fall


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, Configuration]:
    """A dense or a sparse model, and a configuration some moves away from an ordinary one."""
    model = draw(st.sampled_from((a_model(), a_moe_model(), a_model(num_mtp_layers=1))))
    problem = a_problem(model=model, certify="none")
    now = settle(problem, replace(START, virtual_pipeline_size=4, stage_layers=()))
    assert now is not None
    for _ in range(draw(st.integers(0, 4))):
        now = draw(st.sampled_from(moves_of(problem, now))).configuration
    return problem, now


@given(problems())
@settings(max_examples=40, deadline=None)
def test_the_terms_add_up_to_the_step_of_any_configuration(found: tuple[Problem, Configuration]) -> None:
    fall = fall_of(*found)
    assert tuple(fall) == TERMS
    assert all(fall[name] >= -1e-9 for name in TERMS if name not in ("bubble", "calibration"))


def test_the_ideal_is_the_models_flops_at_the_peak_of_all_gpus() -> None:
    problem = a_problem()
    # MFU counts the same FLOPs against the same peak: ideal = MFU x step
    prediction = predict(problem, default_profile(problem.cluster, problem.launcher), START)
    fall = fall_of(problem, START)
    assert fall["ideal"] == pytest.approx(prediction.mfu * prediction.step_time_s, rel=1e-9)


def test_a_calibrated_cluster_has_its_factor_in_a_term_of_its_own() -> None:
    problem = a_problem()
    plain, slower = fall_of(problem, START), fall_of(problem, START, time_factor=1.1)
    assert plain["calibration"] == 0.0
    # a tenth of everything inside the step: all terms but the stragglers and what is fixed
    inside = sum(value for name, value in plain.items() if name not in ("straggler", "fixed"))
    assert slower["calibration"] == pytest.approx(0.1 * inside, rel=1e-9)
    assert slower["gemm_efficiency"] == pytest.approx(plain["gemm_efficiency"], rel=1e-12)


def test_what_recomputes_nothing_loses_nothing_to_it() -> None:
    problem = a_problem()
    every = replace(START, recompute_granularity="full", recompute_layers=4)
    assert fall_of(problem, START)["recompute"] == 0.0
    assert fall_of(problem, every)["recompute"] > 0.0


def test_one_node_has_no_stragglers() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1))
    alone = replace(START, pipeline_parallel_size=1, virtual_pipeline_size=1, data_parallel_size=1,
                    zero_stage=0, zero_shard_size=1, num_microbatches=512, pipeline_schedule="none",
                    stage_layers=(80,))  # fmt: skip
    fall = fall_of(problem, alone)
    assert fall["straggler"] == 0.0
    assert fall["imbalance"] == pytest.approx(0.0, abs=1e-9)
    assert fall["bubble"] == pytest.approx(0.0, abs=1e-9)
