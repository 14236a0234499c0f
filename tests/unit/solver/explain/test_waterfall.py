"""The waterfall of a step adds up to it, and its terms mean what they say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import BATCHINGS, SequenceLengths
from meshwright.service.requests.configuration import completed
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain.alternatives import moves_of, settle
from meshwright.solver.explain.waterfall import TERMS, waterfalls
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_model, a_moe_model, a_problem
from tests.draws import draws
from tests.problems.mixed_clusters import mixed_problems

START = Configuration(
    tensor_parallel_size=8, sequence_parallel=True, pipeline_parallel_size=4, virtual_pipeline_size=5,
    data_parallel_size=4, zero_stage=1, zero_shard_size=4, num_microbatches=128,
    pipeline_schedule="interleaved_1f1b", stage_layers=(4,) * 20,
)  # fmt: skip
ALONE = replace(
    START, pipeline_parallel_size=1, virtual_pipeline_size=1, data_parallel_size=1, zero_stage=0,
    zero_shard_size=1, num_microbatches=512, pipeline_schedule="none", stage_layers=(80,),
)  # fmt: skip


def fall_of(problem: Problem, configuration: Configuration, **profile_changes: float) -> dict[str, float]:
    profile = replace(default_profile(problem.cluster, problem.launcher), **profile_changes)  # type: ignore[arg-type]
    step = predict(problem, profile, configuration).step_time_s
    fall = waterfalls(problem, evaluate(problem, profile, [configuration]), [step])[0]
    assert sum(fall.values()) == pytest.approx(step, rel=1e-12)
    return fall


LENGTHS = tuple(
    SequenceLengths(batching=batching, percentiles=((0.0, 60), (50.0, middle), (100.0, 2048)))
    for batching in BATCHINGS
    for middle in (300, 1500)
)


def with_lengths(problem: Problem, lengths: SequenceLengths | None) -> Problem:
    return replace(problem, workload=replace(problem.workload, lengths=lengths))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, Configuration]:
    """A dense or a sparse model, and a configuration some moves away from an ordinary one."""
    model = draw(st.sampled_from((a_model(), a_moe_model(), a_model(num_mtp_layers=1))))
    problem = a_problem(model=model, certify="none", allow=("offload",))
    problem = with_lengths(problem, draw(st.sampled_from((None, *LENGTHS))))
    now = settle(problem, replace(START, virtual_pipeline_size=4, stage_layers=()))
    assert now is not None
    for _ in range(draw(st.integers(0, 4))):
        now = draw(st.sampled_from([*moves_of(problem, now)]))
    return problem, replace(now, offload=draw(st.sampled_from(("none", "activations", "optimizer"))))


@given(problems())
@settings(max_examples=draws(15, of_more=40), deadline=None)
def test_the_terms_add_up_to_the_step_of_any_configuration(found: tuple[Problem, Configuration]) -> None:
    fall = fall_of(*found)
    uneven = ("unequal_lengths",) * (found[0].workload.lengths is not None)
    assert tuple(fall) == (*TERMS, *uneven)
    assert all(fall[name] >= -1e-9 for name in TERMS if name not in ("bubble", "calibration"))


@pytest.mark.parametrize("layers", ["28-31", "0", "31", "7,15", "none"])
@pytest.mark.parametrize("launcher", ["axolotl", "llama-factory-accelerate"])
def test_no_term_has_a_backward_pass_below_the_trained_layers(layers: str, launcher: str) -> None:
    problem = a_problem(model=find_model("llama-3.1-8b"), cluster=a_cluster(num_nodes=1))
    work = replace(problem.workload, trained_layers=layers, trained_modules=("lm_head",))
    problem = replace(problem, workload=work, launcher=launcher)
    fall = fall_of(problem, replace(ALONE, stage_layers=(32,)))
    assert all(fall[name] >= -1e-9 for name in TERMS if name not in ("bubble", "calibration"))


@st.composite
def placed_problems(draw: st.DrawFn) -> tuple[Problem, Configuration]:
    """A mixed problem, and a configuration with stages on one group after the other, or unlike replicas."""
    problem = with_lengths(draw(mixed_problems()), draw(st.sampled_from((None, *LENGTHS))))
    names, kind = problem.cluster.group_names, draw(st.sampled_from(("none", "selective", "full")))
    first, second, *_ = draw(st.permutations(names))
    sequences, count = draw(st.integers(1, 2)), problem.workload.global_batch_size // 4
    size = {"micro_batch_size": sequences, "recompute_granularity": kind}
    if draw(st.booleans()):
        own = {**size, "num_microbatches": count, "data_parallel_size": 1}
        classes = [{**own, "stage_groups": [{"group": name}]} for name in (first, second)]
        problem = with_batch_of(problem, 2 * sequences * count)
        return problem, completed({"replicas": classes}, problem)
    stages = [{"group": name} for name in (first, second)]
    return problem, completed({**size, "stage_groups": stages}, problem)


def with_batch_of(problem: Problem, batch: int) -> Problem:
    return replace(problem, workload=replace(problem.workload, global_batch_size=batch))


@given(placed_problems())
@settings(max_examples=draws(15, of_more=40), deadline=None)
def test_the_terms_add_up_to_the_step_of_any_placed_configuration(
    found: tuple[Problem, Configuration],
) -> None:
    problem, configuration = found
    profile = default_profile(problem.cluster, problem.launcher)
    prediction = predict(problem, profile, configuration)
    (placed,) = evaluate(problem, profile, [configuration])
    for step in (prediction.step_time_s, placed.objective_s):
        (fall,) = waterfalls(problem, [placed], [step])
        assert sum(fall.values()) == pytest.approx(step, rel=1e-12)
        # all GPUs in use in proportion to their peaks: ideal = MFU x step
        mfu_s = prediction.mfu * prediction.step_time_s
        assert fall["ideal"] == pytest.approx(mfu_s, rel=1e-9)
        uneven = ("unequal_lengths",) * (problem.workload.lengths is not None)
        assert tuple(fall) == (*TERMS, *uneven)


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
    fall = fall_of(problem, ALONE)
    assert fall["straggler"] == 0.0
    assert fall["imbalance"] == pytest.approx(0.0, abs=1e-9)
    assert fall["bubble"] == pytest.approx(0.0, abs=1e-9)
