"""GPU seconds that no step undercuts, against the rows of every number of GPUs by themselves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.configuration import Columns, FloatArray
from meshwright.solver.cost.price import least_passes_s, shared_passes
from meshwright.solver.planner.variants import searched_variants, switched_of
from meshwright.solver.problem import Problem, on_gpus
from meshwright.solver.search import gpu_seconds
from meshwright.solver.search.bounds import PassBounds
from meshwright.solver.search.gpu_seconds import PlainRows, least_gpu_s, least_pass_gpu_s, least_passes
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import Beyond, enumerate_space
from meshwright.solver.space.factored import Crossing
from tests.builders import a_cluster, a_model, a_problem

EXPERTS = MoeSpec(
    num_experts=8, top_k=2, ffn_hidden_size=1024, num_shared_experts=1, shared_ffn_hidden_size=1024
)


def asked(launcher: str, moe: MoeSpec | None, **workload: object) -> Problem:
    model = replace(a_model(num_layers=6), moe=moe)
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=4), batch=24)
    return replace(problem, launcher=launcher, workload=replace(problem.workload, **workload))  # type: ignore[arg-type]


@pytest.mark.parametrize("launcher", ["megatron-lm", "none", "deepspeed", "torchtitan"])
@pytest.mark.parametrize("moe", [None, EXPERTS])
def test_no_row_on_any_number_of_gpus_takes_fewer_gpu_seconds(launcher: str, moe: MoeSpec | None) -> None:
    problem = asked(launcher, moe)
    profile = default_profile(problem.cluster, launcher)
    ways = searched_variants(switched_of(problem, profile))
    wide = moe is None  # else there are many rows
    found = least_passes(problem, profile, [one.problem for one in ways], wide=wide)
    least_s = found.least_gpu_s
    assert least_s > 0.0 or profile.framework.torch_pipelines
    closest = np.inf
    for num_gpus in (1, 3, 8, 12):
        for way in ways[:: 1 if wide else 5]:
            space = enumerate_space(on_gpus(way.problem, (num_gpus,)), legal_only=True, wide=wide)
            assert isinstance(space.rows, Crossing)
            rows = space.rows.outer
            if len(rows):
                (passes,) = shared_passes([way.problem], rows, profile)
                each = rows.num_microbatches / rows.pipeline_parallel_size
                step_s = passes.step_s(each * passes.whole_s)
                several = np.zeros(len(rows), dtype=np.bool_)
                assert (found.step_s(rows, several) <= step_s * (1 + 1e-9)).all()  # by a row's own sizes
                pipeline = PassBounds(rows, way.problem.model.num_layers, np.ones(len(rows)))
                alone_s = passes.step_s(pipeline.pipeline_s(passes))  # outer rows have one chunk a rank
                assert (found.step_s(rows, ~several) <= alone_s * (1 + 1e-9)).all()
                closest = min(closest, float((step_s * rows.num_gpus).min()))
    assert least_s <= closest * (1 + 1e-9)
    if least_s and moe is None:  # exchanges are free, and there are none
        assert least_s > 0.8 * closest
        assert least_s > least_gpu_s(problem, profile)


@pytest.mark.parametrize("moe", [None, EXPERTS])
def test_rows_of_sizes_beyond_a_limit_are_left_out_and_no_other(moe: MoeSpec | None) -> None:
    problem = on_gpus(asked("megatron-lm", moe), (8,))
    passes = least_passes(problem, default_profile(problem.cluster, "megatron-lm"), wide=False)
    whole = enumerate_space(problem, legal_only=True)
    assert isinstance(whole.rows, Crossing)
    rows = whole.rows
    quickest = rows.take(rows.first[:-1])
    lists = np.split(np.arange(len(rows)), rows.first[1:-1])
    alone = np.array([(rows.take(each).virtual_pipeline_size == 1).all() for each in lists])
    least_s = passes.step_s(quickest, alone)  # Megatron-LM has no schedule that splits backward passes
    for limit_s in (0.0, float(np.median(least_s))):
        beyond = Beyond(limit_s=limit_s, least_s=passes.step_s)
        space = enumerate_space(problem, legal_only=True, beyond=beyond)
        assert isinstance(space.rows, Crossing)
        assert len(space.rows.outer) == (least_s <= limit_s).sum()
        assert limit_s < beyond.nearest_s <= least_s[least_s > limit_s].min()
        assert not space.every  # although none is left, the usual candidates have legal rows


def test_sizes_that_were_not_priced_have_no_bound() -> None:
    problem = asked("megatron-lm", None)
    passes = least_passes(problem, default_profile(problem.cluster, "megatron-lm"), wide=False)
    rows = enumerate_space(problem, legal_only=True).rows.take(np.arange(8))
    alone = np.ones(len(rows), dtype=np.bool_)
    assert (passes.step_s(rows, alone) > 0.0).all()
    unknown = replace(rows, micro_batch_size=rows.micro_batch_size * 7)
    assert (passes.step_s(unknown, alone) == 0.0).all()


@pytest.mark.parametrize("wide", [False, True])
def test_smaller_batches_in_question_count_with_their_own_micro_batches(wide: bool) -> None:
    """37 sequences are micro-batches of 1 or of all, 24 of 8 as well: fewer GPU seconds a sequence."""

    def per_sequence(largest: int, *smaller: int) -> float:
        problem = asked("megatron-lm", None, global_batch_size=largest, seq_length=128)
        problem = replace(problem, options=replace(problem.options, batch_sizes=smaller))
        profile = default_profile(problem.cluster, "megatron-lm")
        return least_pass_gpu_s(problem, profile, wide=wide) / largest

    both = per_sequence(37, 24)
    assert both == pytest.approx(min(per_sequence(37), per_sequence(24)), rel=1e-9)
    assert both < per_sequence(37) or wide


def test_nothing_is_known_where_passes_read_the_number_of_stages() -> None:
    problem = asked("megatron-lm", None)
    profile = default_profile(problem.cluster, "megatron-lm")
    options = replace(problem.options, allow=("offload",))
    assert least_pass_gpu_s(replace(problem, options=options), profile, wide=False) == 0.0


def test_many_rows_are_priced_in_pieces_that_give_the_same_least(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = asked("megatron-lm", None)
    profile = default_profile(problem.cluster, "megatron-lm")
    at_once = least_pass_gpu_s(problem, profile, wide=True)
    sizes = list[int]()

    def counted(some: Sequence[Problem], rows: Columns, profile: Profile) -> FloatArray | None:
        sizes.append(len(rows))
        return least_passes_s(some, rows, profile)

    monkeypatch.setattr(gpu_seconds, "least_passes_s", counted)
    monkeypatch.setattr(gpu_seconds, "CHUNK", 70)
    assert least_pass_gpu_s(problem, profile, wide=True) == at_once
    assert len(sizes) > 1
    assert max(sizes) == 70


@pytest.mark.parametrize("moe", [None, EXPERTS])
def test_no_plan_on_a_number_of_gpus_is_faster_than_its_plain_rows_may_be(moe: MoeSpec | None) -> None:
    """With 5 sequences most pipelines run fewer micro-batches than stages."""
    problem = a_problem(
        model=replace(a_model(num_layers=6), moe=moe), cluster=a_cluster(num_nodes=3), batch=5
    )
    profile = default_profile(problem.cluster, problem.launcher)
    passes = least_passes(problem, profile, wide=True)
    numbers = np.array([20, 24, 7, 12, 16, 6])
    least_s = PlainRows.of(problem, (), numbers, passes, wide=True).of_numbers_s(numbers)
    alone = [search(on_gpus(problem, (int(number),)), profile) for number in numbers]
    found_s = [one.plans[0].prediction.step_time_s if one.plans else np.inf for one in alone]
    assert (least_s <= np.array(found_s) * (1 + 1e-9)).all()
    assert np.isfinite(found_s).sum() >= 4
    assert (least_s * numbers > passes.least_gpu_s * 1.1).any()  # stages fill and empty
