"""Splits that nobody searches for: even ones, nanotron's own, the request's."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.check import violations, violations_of_all
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.splits import (
    Prescribed,
    divisors,
    even_split,
    launcher_split,
    nanotron_split,
    usual_split,
)
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.problems.asked import searched_with_reasons

# A layer weighs 4 * 64 * 64 + 3 * 64 * 256 = 65 536, as much as 1 024 rows of the vocabulary.
SHAPE = {
    "hidden_size": 64,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
}


def test_nanotron_begins_a_stage_behind_the_layer_that_exceeds_its_share() -> None:
    # Llama 2 7B: a layer is 4 * 4096^2 + 3 * 4096 * 11008 = 202.4 M, the head 32000 * 4096 = 131.1 M or
    # 0.648 layers; shares of 32.648 / 4 = 8.162 layers are exceeded by layers 9, 17 (16.32) and 25 (24.49)
    assert nanotron_split(find_model("llama-2-7b"), 4) == ((9, 8, 8, 7), 3)


def test_a_running_cost_equal_to_the_share_does_not_end_a_stage() -> None:
    # 8 layers and a head of two: 5 layers are exactly half of 10, so the 6th is on the first stage too.
    model = a_model(**SHAPE, num_layers=8, vocab_size=2048)
    assert nanotron_split(model, 2) == ((6, 2), 1)
    assert nanotron_split(model, 1) == ((8,), 0)


def test_key_value_heads_fewer_than_query_heads_weigh_the_same() -> None:
    few = a_model(**SHAPE, num_layers=8, vocab_size=2048)
    assert nanotron_split(few, 2) == nanotron_split(replace(few, num_kv_heads=4), 2)


def test_the_padded_vocabulary_is_weighed() -> None:
    # 6 layers, a head of one: shares of 3.5 layers, exceeded by the 4th. Padded to a multiple of 3 000
    # the head weighs 2.93 layers: shares of 4.46, exceeded by the 5th.
    model = a_model(**SHAPE, num_layers=6, vocab_size=1024)
    assert nanotron_split(model, 2) == ((4, 2), 1)
    assert nanotron_split(model, 2, 3000) == ((5, 1), 1)


def test_a_heavy_head_leaves_later_stages_empty_and_comes_before_them() -> None:
    # 4 layers and a head of 12: shares of 4 layers, which no layer exceeds before the head is placed.
    model = a_model(**SHAPE, num_layers=4, vocab_size=12 * 1024)
    assert nanotron_split(model, 4) == ((4, 0, 0, 0), 0)
    problem = replace(a_problem(model=model), launcher="nanotron")
    stages = Configuration(pipeline_parallel_size=4)
    assert launcher_split(problem, stages) is None
    assert launcher_split(problem, replace(stages, pipeline_parallel_size=5)) is None  # more than layers
    assert usual_split(problem, stages) == (1, 1, 1, 1)


def test_other_launchers_take_any_split() -> None:
    assert launcher_split(a_problem(), Configuration(pipeline_parallel_size=4)) == ()
    assert not Prescribed.of(a_problem())


@pytest.mark.parametrize(("chunks", "split"), [(4, (2, 3, 3, 2)), (3, (3, 4, 3)), (5, (2,) * 5)])
def test_an_even_split_gives_what_is_left_over_to_the_middle(chunks: int, split: tuple[int, ...]) -> None:
    # the first and the last chunk hold embedding and head beside their layers
    assert even_split(10, chunks) == split


def test_a_row_has_the_split_of_its_sizes_and_one_that_request_and_launcher_agree_on() -> None:
    model = a_model(**SHAPE, num_layers=8, vocab_size=2048)
    sizes = [(1, 1), (2, 1), (4, 1), (2, 2)]  # (pp, vpp)
    rows = Columns.of([
        Configuration(pipeline_parallel_size=pp, virtual_pipeline_size=vpp, stage_layers=(8,))
        for pp, vpp in sizes
    ])  # fmt: skip
    # Shares of 2.5 layers are exceeded by layers 3, 6 (5.0) and 8 (7.5): the 4th stage has the head alone.
    assert Prescribed(balanced=model).splits(rows) == [(8,), (6, 2), None, None]
    assert Prescribed(asked=(6, 2)).splits(rows) == [None, (6, 2), None, None]
    assert Prescribed(asked=(6, 2), balanced=model).splits(rows) == [None, (6, 2), None, None]
    assert Prescribed(asked=(4, 4), balanced=model).lacking(rows).tolist() == [True] * 4


def test_divisors_are_all_of_them_ascending_however_large_the_number() -> None:
    assert [divisors(number) for number in (1, 7, 12, 36)] == [
        (1,), (1, 7), (1, 2, 3, 4, 6, 12), (1, 2, 3, 4, 6, 9, 12, 18, 36),
    ]  # fmt: skip
    assert divisors(2**40) == tuple(2**power for power in range(41))


# Searches for nanotron, which splits the layers itself: against every configuration it can run.
#
# ``build_model`` below is nanotron's loop (src/nanotron/models/base.py:215-235), and the configurations are
# enumerated from what its YAML can say; only prices and the independent check are shared with the search.

GPUS = 8

# A layer is 4 * 2048^2 + 3 * 2048 * 8192 = 67.1 M, the head 32000 * 2048 = 65.5 M or .98 layers.
MODEL = a_model(
    num_layers=12, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=16, vocab_size=32000
)


def build_model(model: ModelSpec, pp: int, tp: int) -> list[int]:
    """Layers of each stage as nanotron's loop has it; [] where the head is not on the last stage."""
    layer = 4 * model.hidden_size**2 + 3 * model.hidden_size * model.ffn_hidden_size
    head = int(np.ceil(model.vocab_size / tp)) * tp * model.hidden_size
    costs = np.cumsum([0, *[layer] * model.num_layers, 0, head])
    thresholds = [costs[-1] * ((rank + 1) / pp) for rank in range(pp)]
    ranks, rank = [], 0
    for cost in costs:
        ranks.append(rank)
        if cost > thresholds[rank]:
            rank += 1
    return [ranks[1:-2].count(stage) for stage in range(pp)] if ranks[-1] == pp - 1 else []


def nanotron_problem(gpu_memory_gib: float = 79.0, **options: object) -> Problem:
    gpu = a_gpu(memory_bytes=int(gpu_memory_gib * 2**30))
    limits = {"certify": "cp-sat-all", "top_k": 3} | options
    problem = a_problem(model=MODEL, cluster=a_cluster(num_nodes=1, gpu=gpu), batch=16, **limits)
    return replace(problem, launcher="nanotron")


def configurations(problem: Problem) -> Iterator[Configuration]:
    """Everything that nanotron's YAML can say for 8 GPUs, legal or not."""
    model, batch = problem.model, problem.workload.global_batch_size
    axes = [1, 2, 4, 8]
    for tp, pp, cp in product(axes, range(1, GPUS + 1), axes):
        dp, rest = divmod(GPUS, tp * pp * cp)
        split = tuple(build_model(model, pp, tp))
        if rest or not split:
            continue
        for micro, zero, full, sequence, engine in product(
            range(1, batch + 1), (0, 1), (False, True), {False, tp > 1}, ("gpipe", "1f1b")
        ):
            count, rest = divmod(batch, dp * micro)
            if rest or (zero and dp * cp == 1) or (pp == 1 and engine == "gpipe"):
                continue
            yield Configuration(
                tensor_parallel_size=tp, sequence_parallel=sequence, pipeline_parallel_size=pp,
                context_parallel_size=cp, data_parallel_size=dp, zero_stage=zero,
                zero_shard_size=dp * cp if zero else 1, micro_batch_size=micro, num_microbatches=count,
                pipeline_schedule=engine if pp > 1 else "none",
                recompute_granularity="full" if full else "none",
                recompute_layers=model.num_layers if full else 0, stage_layers=split,
            )  # fmt: skip


def legal_steps_s(problem: Problem) -> dict[Configuration, float]:
    """The step time of every configuration that the check lets pass."""
    profile = default_profile(problem.cluster, problem.launcher)
    every = list(configurations(problem))
    faults = violations_of_all(problem, profile, every)
    legal = [one for one, found in zip(every, faults, strict=True) if not found]
    predictions = predict_all(problem, profile, legal)
    return {one: found.step_time_s for one, found in zip(legal, predictions, strict=True)}


def answered(problem: Problem) -> Answer:
    return ask(problem, default_profile(problem.cluster, problem.launcher))


@pytest.mark.parametrize(
    ("memory_gib", "options"),
    [
        (79.0, {}),
        (79.0, {"pin": {"pipeline_parallel_size": 4}}),
        (79.0, {"pin": {"pipeline_schedule": "gpipe"}}),
        (14.0, {"pin": {"data_parallel_size": 1}}),
        (9.0, {}),
    ],
)
def test_the_best_plan_is_the_best_of_every_configuration_with_nanotrons_split(
    memory_gib: float, options: dict[str, object]
) -> None:
    problem = nanotron_problem(memory_gib, **options)
    pins = dict(problem.options.pin)
    steps_s = {
        one: step_s
        for one, step_s in legal_steps_s(problem).items()
        if all(getattr(one, name) == value for name, value in pins.items())
    }
    assert any(len(set(one.stage_layers)) > 1 for one in steps_s)
    answer, least_s = answered(problem), min(steps_s.values())
    assert answer.status == "optimal"
    assert answer.plans[0].prediction.step_time_s == pytest.approx(least_s, rel=1e-9)
    assert answer.bound_step_time_s is not None
    assert answer.bound_step_time_s <= least_s * (1 + 1e-9)
    assert all(plan.config in steps_s for plan in answer.plans)


def test_uneven_stages_of_nanotron_are_planned_and_no_others() -> None:
    # 12 layers and .98: shares of 6.49 and 3.24 layers, exceeded by layer 7, and by layers 4, 7 and 10
    for pp, split in ((2, (7, 5)), (4, (4, 3, 3, 2))):
        answer = answered(nanotron_problem(pin={"pipeline_parallel_size": pp}))
        assert {plan.config.stage_layers for plan in answer.plans} == {split}
        assert all(tuple(build_model(MODEL, pp, 1)) == split for _ in answer.plans)


def test_a_split_that_nanotron_would_not_run_is_a_violation() -> None:
    problem = nanotron_problem()
    profile = default_profile(problem.cluster, problem.launcher)
    plan = answered(nanotron_problem(pin={"pipeline_parallel_size": 2})).plans[0]
    assert not list(violations(problem, profile, plan.config))
    even = replace(plan.config, stage_layers=(6, 6))
    assert "nanotron splits the layers itself, as 7 5" in list(violations(problem, profile, even))


def test_a_pinned_split_is_searched_where_it_is_nanotrons_own_and_infeasible_elsewhere() -> None:
    own = answered(nanotron_problem(stage_layers=(7, 5)))
    assert {plan.config.stage_layers for plan in own.plans} == {(7, 5)}
    other = searched_with_reasons(nanotron_problem(stage_layers=(6, 6)))
    assert other.status == "infeasible"
    assert other.infeasible is not None
    assert any("pin stage_layers" in reason for reason in other.infeasible.reasons)


def nanotron_runs(zero_stage: int, dp: int, cp: int) -> bool:
    """nanotron 2411b022 with ``accumulate_grad_in_fp32``, which its exported files set.

    trainer.py:1093 ``make_ddp = dp > 1 or cp > 1 and not (fp32 and zero_stage > 0)``; under DDP the hook of
    optim/gradient_accumulator.py:355 raises for a ZeRO optimizer, without DDP trainer.py:645 raises for
    context parallelism.
    """
    wrapped = dp > 1 or (cp > 1 and not zero_stage > 0)
    return zero_stage == 0 if wrapped else cp == 1


def test_no_plan_of_nanotron_raises_not_implemented_in_its_trainer() -> None:
    problem = nanotron_problem()
    rows = enumerate_space(problem, legal_only=True).columns
    meshes = set(zip(rows.zero_stage, rows.data_parallel_size, rows.context_parallel_size, strict=True))
    assert {(dp > 1, cp > 1) for _, dp, cp in meshes} == {
        (a, b) for a in (False, True) for b in (False, True)
    }
    assert [mesh for mesh in meshes if not nanotron_runs(*mesh)] == []
