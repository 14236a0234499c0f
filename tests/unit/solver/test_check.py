"""The independent check accepts what the search returns and refuses every mutant of it."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache

import pytest

from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver import check
from meshwright.solver.answer import PeakMemory, Plan, Prediction
from meshwright.solver.check import violations
from meshwright.solver.configuration import Configuration, StageGroup
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_model, a_problem
from tests.launchers.cases import LLAMA_70B, target
from tests.problems.mixed_clusters import a_group, a_mixed_problem


@cache
def found() -> tuple[Problem, Profile, Plan]:
    """The best interleaved plan of a 8 B model on 2 nodes that recomputes some layers."""
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    pins = {"pin": {"virtual_pipeline_size": 3, "recompute_layers": 1}}
    problem = a_problem(
        model=model, cluster=a_cluster(num_nodes=2), batch=64, certify="none", top_k=1, **pins
    )
    profile = default_profile(problem.cluster, problem.launcher)
    return problem, profile, search(problem, profile).plans[0]


def faults(plan: Plan | Configuration) -> list[str]:
    """What the check says."""
    problem, profile, _ = found()
    return list(violations(problem, profile, plan))


def test_a_plan_of_the_search_passes() -> None:
    _, _, plan = found()
    assert faults(plan) == []
    assert faults(plan.config) == []


def test_hosts_must_hold_the_states_that_the_framework_keeps() -> None:
    config = Configuration(
        data_parallel_size=3, zero_stage=3, zero_shard_size=3, num_microbatches=2, stage_layers=(80,),
        offload="optimizer",
    )  # fmt: skip
    asked = target(LLAMA_70B, config).problem
    problem = replace(asked, launcher="deepspeed", options=replace(asked.options, allow=("offload",)))
    profile = default_profile(problem.cluster, problem.launcher)
    room, states = 3 * (256 - 8) * 2**30, 70_553_706_496 * 12  # fp32 weight and two moments
    said = f"host memory of {room} bytes cannot hold {states} bytes of offloaded states"
    assert said in list(violations(problem, profile, config))
    weights = 70_553_706_496 * (12 + 2)  # and the bf16 weights
    said = f"host memory of {room} bytes cannot hold {weights} bytes of offloaded states"
    assert said in list(violations(problem, profile, replace(config, offload="optimizer+parameters")))
    more = replace(problem, stack="megatron-deepspeed")  # which also keeps a gradient for the step alone
    assert any(
        f"hold {states} bytes of offloaded states" in one for one in violations(more, profile, config)
    )
    fsdp = replace(problem, stack="torchtitan")  # whose shards are the fp32 weights: 8 bytes, 564 GB
    assert not any("offloaded states" in one for one in violations(fsdp, profile, config))


def changed(value: object) -> object:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + max(1, value // 1000)  # a byte of gigabytes is rounding, a thousandth is not
    if isinstance(value, float):
        return value * 1.001 + 1e-6
    if isinstance(value, str):
        return "gpipe" if value != "gpipe" else "1f1b"
    if isinstance(value, Mapping):
        name = max(value, key=lambda key: float(value[key]))
        return {**value, name: changed(value[name])}
    assert isinstance(value, tuple)
    return (changed(value[0]), *value[1:]) if value else ("operators",)


@pytest.mark.parametrize("name", [f.name for f in fields(Configuration)])
def test_a_mutant_of_each_configuration_field_is_refused(name: str) -> None:
    _, _, plan = found()
    value = (plan.config,) if name == "replicas" else changed(getattr(plan.config, name))
    mutant = replace(plan.config, **{name: value})  # type: ignore[arg-type]
    assert faults(mutant) != []


@pytest.mark.parametrize("name", [f.name for f in fields(Prediction) if f.name not in ("stages", "host")])
def test_a_mutant_of_each_predicted_figure_is_refused(name: str) -> None:
    _, _, plan = found()
    value = getattr(plan.prediction, name)
    other = replace(value, device_bytes=0) if isinstance(value, PeakMemory) else changed(value)
    mutant = replace(plan.prediction, **{name: other})  # type: ignore[arg-type]
    assert faults(replace(plan, prediction=mutant)) != []


def test_a_missing_figure_is_refused() -> None:
    _, _, plan = found()
    mutant = replace(plan.prediction, hfu=None)  # type: ignore[arg-type]
    assert "prediction.hfu should be another" in faults(replace(plan, prediction=mutant))


@pytest.mark.parametrize("name", ["stage", "layers", "memory_bytes", "peak_memory_bytes", "compute_s"])
def test_a_mutant_of_each_stage_figure_is_refused(name: str) -> None:
    _, _, plan = found()
    first, *others = plan.prediction.stages
    mutant = replace(first, **{name: changed(getattr(first, name))})  # type: ignore[arg-type]
    assert faults(replace(plan, prediction=replace(plan.prediction, stages=(mutant, *others)))) != []


@pytest.mark.parametrize("change", [{"plan_id": "0" * 12}, {"rank": 0}, {"objective_s": 1.0},
                                    {"certified_by": ("faith",)}])  # fmt: skip
def test_a_mutant_of_the_plan_itself_is_refused(change: Mapping[str, object]) -> None:
    _, _, plan = found()
    assert faults(replace(plan, **change)) != []  # type: ignore[arg-type]


def test_a_layer_moved_to_another_chunk_of_the_rank_passes_but_a_lost_one_does_not() -> None:
    problem, profile, plan = found()
    split = plan.config.stage_layers
    alone = replace(plan.config, stage_layers=(0, *split[1:-1], split[0] + split[-1]))
    roomy = replace(problem, options=replace(problem.options, max_out_of_memory_probability=1.0))
    assert list(violations(roomy, profile, alone)) == [], "the embedding alone on the first stage"
    emptied = (split[0] + split[1], 0, *split[2:])
    assert faults(replace(plan.config, stage_layers=emptied)) == [
        "stage_layers has a chunk without a layer"
    ]
    lost = replace(plan.config, stage_layers=(*split[:-1], split[-1] - 1))
    assert faults(replace(plan.config, stage_layers=split[::-1])) == []
    assert faults(lost) == [f"stage_layers holds {sum(split) - 1} layers, the model has {sum(split)}"]


def test_a_configuration_that_does_not_fit_names_its_stages() -> None:
    problem, profile, plan = found()
    group = problem.cluster.groups[0]
    small = replace(group, gpu=replace(group.gpu, memory_bytes=group.gpu.memory_bytes // 64))
    tight = replace(problem, cluster=replace(problem.cluster, groups=(small,)))
    assert next(violations(tight, profile, plan.config)).startswith("stage 0 needs ")


# A placed plan with one figure changed is refused by the independent check.

PROBLEM = a_mixed_problem(
    (a_group(speed=1.0, slug="fast"), a_group(speed=0.4, slug="slow")),
    top_k=100,
    pin={"micro_batch_size": 1, "zero_stage": 0},
)
PROFILE = default_profile(PROBLEM.cluster, "none")


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, ...]:
    return search(PROBLEM, PROFILE).plans


def other_sizes(config: Configuration) -> Iterator[Configuration]:
    """One pipeline with one size changed."""
    yield replace(config, num_microbatches=config.num_microbatches + 1)
    yield replace(config, data_parallel_size=config.data_parallel_size * 2)
    yield replace(config, micro_batch_size=config.micro_batch_size * 2)
    yield replace(config, context_parallel_size=config.context_parallel_size * 2)
    yield replace(config, virtual_pipeline_size=2)
    yield replace(config, pipeline_parallel_size=config.pipeline_parallel_size + 1)
    first, *rest = config.stage_layers
    yield replace(config, stage_layers=(first + 1, *rest))
    yield replace(config, stage_groups=config.stage_groups[1:])


def other_places(config: Configuration) -> Iterator[Configuration]:
    """One pipeline whose first stage stands elsewhere."""
    stage = config.stage_groups[0]
    for wrong in (
        replace(stage, group="nowhere"),
        replace(stage, num_gpus=stage.num_gpus * 2),
        replace(stage, num_nodes=stage.num_nodes * 2),
        replace(stage, tensor_parallel_size=stage.tensor_parallel_size * 2),
    ):
        yield replace(config, stage_groups=(wrong, *config.stage_groups[1:]))


def test_a_placed_configuration_with_another_size_or_place_is_refused(plans: tuple[Plan, ...]) -> None:
    config = next(
        plan.config for plan in plans if len({one.group for one in plan.config.stage_groups}) == 2
    )
    assert list(violations(PROBLEM, PROFILE, config)) == []
    for mutant in (*other_sizes(config), *other_places(config)):
        assert list(violations(PROBLEM, PROFILE, mutant)), mutant


def test_unlike_classes_with_another_size_or_place_are_refused(plans: tuple[Plan, ...]) -> None:
    config = next(plan.config for plan in plans if plan.config.replicas)
    assert list(violations(PROBLEM, PROFILE, config)) == []
    first, *rest = config.replicas
    for wrong in (*other_sizes(first), *other_places(first)):
        mutant = replace(config, replicas=(wrong, *rest))
        assert list(violations(PROBLEM, PROFILE, mutant)), mutant
    wider = replace(config, data_parallel_size=config.data_parallel_size + 1)
    assert list(violations(PROBLEM, PROFILE, wider))
    assert list(violations(PROBLEM, PROFILE, replace(config, replicas=(first,))))
    assert list(violations(PROBLEM, PROFILE, replace(config, replicas=(first, first))))


def test_a_placed_plan_with_another_figure_is_refused(plans: tuple[Plan, ...]) -> None:
    for plan in (plans[0], next(plan for plan in plans if plan.config.replicas)):
        assert list(violations(PROBLEM, PROFILE, plan)) == []
        step = replace(plan.prediction, step_time_s=plan.prediction.step_time_s * 0.99)
        for mutant in (
            replace(plan, objective_s=plan.objective_s * 0.99),
            replace(plan, plan_id="0" * len(plan.plan_id)),
            replace(plan, prediction=step),
            replace(plan, rank=0),
        ):
            assert list(violations(PROBLEM, PROFILE, mutant))


def test_dynamic_context_parallelism_has_groups_of_powers_of_two_in_a_ring() -> None:
    def said(size: int, mode: str) -> list[str]:
        return list(
            check._dynamic_faults(Configuration(context_parallel_size=size, context_parallel_mode=mode))
        )

    assert [said(size, "ring") == [] for size in (1, 2, 3, 4, 6, 8)] == [
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    assert len(said(4, "all_to_all")) == 1


def test_counts_of_recomputed_layers_by_stage_go_with_full_recomputation_and_their_largest() -> None:
    counted = Configuration(
        pipeline_parallel_size=2, stage_layers=(3, 4), stage_recompute_layers=(1, 3), recompute_layers=3,
        recompute_granularity="full",
    )  # fmt: skip
    goes_with = "stage_recompute_layers needs full recomputation"

    def said(config: Configuration) -> list[str]:
        (sentences,) = check.rule_faults(a_problem(), [config])
        return [one for one in sentences if "recompute_layers" in one]

    assert said(counted) == []
    for wrong in ({"recompute_layers": 2}, {"recompute_granularity": "selective"}):
        assert any(goes_with in one for one in said(replace(counted, **wrong)))
    for counts in ((3,), (1, 3, 3), (1, 5)):  # of two chunks, the second with 4 layers
        [fault] = said(replace(counted, stage_recompute_layers=counts, recompute_layers=max(counts)))
        assert fault.startswith("stage_recompute_layers needs one count per chunk")
    empty = replace(counted, stage_layers=(0, 0), stage_recompute_layers=(), recompute_layers=1)
    # it ended in a TypeError
    assert any("must fit every chunk" in one for one in said(empty))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_microbatches": 3}, "dualpipe_v needs two micro-batches for each stage"),  # 2 stages need 4
        ({"pipeline_parallel_size": 1, "stage_layers": (150, 150)}, "virtual_pipeline_size > 1 needs"),
        ({"recompute_granularity": "full", "recompute_layers": 75}, "recompute_layers must fit"),
        ({"recompute_granularity": "full", "recompute_layers": 2}, ""),
        ({"sequence_parallel": True}, "sequence_parallel goes with tensor_parallel_size > 1"),
    ],
)
def test_schedules_and_recomputed_layers_keep_to_their_limits(
    changes: Mapping[str, object], fault: str
) -> None:
    known = "dualpipe_v", "virtual_pipeline_size", "recompute_layers", "sequence_parallel", "stage_layers"

    def said(config: Configuration) -> list[str]:
        (sentences,) = check.rule_faults(a_problem(model=a_model(num_layers=300)), [config])
        return [one for one in sentences if one.startswith(known)]

    able = Configuration(
        pipeline_parallel_size=2, virtual_pipeline_size=2, stage_layers=(75, 75, 75, 75),
        pipeline_schedule="dualpipe_v", num_microbatches=4,
    )  # fmt: skip
    assert said(able) == []
    refused = said(replace(able, **changes))  # type: ignore[arg-type]
    assert [one[: len(fault)] for one in refused if "splits" not in one] == [fault] * bool(fault)


@pytest.mark.parametrize(
    ("option", "zero_stage", "offload", "words"),
    [
        ({"optimizer_offload_fraction": 0.5}, 3, "optimizer", None),
        ({"optimizer_offload_fraction": 0.5}, 2, "optimizer", "a share of the states needs ZeRO-3"),
        ({"super_offload": True}, 3, "optimizer", None),
        ({"super_offload": True}, 3, "none", "SuperOffload needs ZeRO-3"),
        ({"super_offload": True}, 2, "optimizer", "SuperOffload needs ZeRO-3"),
    ],
)
def test_updates_on_hosts_need_their_stage_and_states_there(
    option: Mapping[str, str | int | float], zero_stage: int, offload: str, words: str | None
) -> None:
    plain = a_problem()
    problem = replace(
        plain, launcher="deepspeed", workload=replace(plain.workload, framework_options=dict(option))
    )
    config = Configuration(zero_stage=zero_stage, offload=offload)
    said = list(check._zero_option_faults(problem, config))
    assert said == [] if words is None else any(words in one for one in said)


def test_the_power_of_placed_stages_is_that_of_all_their_gpus() -> None:
    groups = tuple(
        replace(group, gpu=replace(group.gpu, power_watts=700.0))
        for group in (a_group(slug="fast"), a_group(slug="slow", speed=0.4))
    )
    problem = a_mixed_problem(groups, max_power_kw=1.0)
    stages = tuple(
        StageGroup(group=name, num_gpus=2, num_nodes=1.0, tensor_parallel_size=1)
        for name in ("fast", "slow")
    )
    config = Configuration(pipeline_parallel_size=2, stage_groups=stages)
    (said,) = check._power_faults(problem, config)  # four GPUs at 82 % of 700 W
    assert said.endswith("2.296 kW while they compute, 1 are allowed")
    enough = replace(problem, options=replace(problem.options, max_power_kw=2.296))
    assert list(check._power_faults(enough, config)) == []


@pytest.mark.parametrize(
    ("launcher", "model", "config", "words"),
    [
        ("megatron-lm", {"sliding_window": 4096}, {}, None),  # no ring of one rank
        ("megatron-lm", {"sliding_window": 4096}, {"context_parallel_size": 2}, "without a ring only"),
        ("nanotron", {}, {}, None),
        ("nanotron", {}, {"expert_tensor_parallel_size": 2}, "no tensor parallelism of experts"),
        ("none", {"borrowing_layers": 2}, {"pipeline_parallel_size": 2}, "shared keys"),
        ("none", {}, {"pipeline_parallel_size": 2}, None),
    ],
)
def test_what_a_launcher_or_a_model_lacks_is_refused_from_a_size_of_two_on(
    launcher: str, model: Mapping[str, object], config: Mapping[str, object], words: str | None
) -> None:
    problem = replace(a_problem(model=a_model(**model)), launcher=launcher)
    (said,) = check.rule_faults(problem, [Configuration(stage_layers=(80,), **config)])  # type: ignore[arg-type]
    known = "without a ring only", "tensor parallelism of experts", "shared keys"
    assert [one for one in known if any(one in fault for fault in said)] == [
        one for one in known if words and one in words
    ]


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [("first('fast')", True), ("first('slow')", False), ("last('slow')", True), ("last('fast')", False)],
)
def test_the_ends_of_a_pipeline_are_on_the_groups_of_their_stages(constraint: str, holds: bool) -> None:
    groups = a_group(slug="fast"), a_group(slug="slow", speed=0.4)
    stages = tuple(
        StageGroup(group=name, num_gpus=2, num_nodes=1.0, tensor_parallel_size=1)
        for name in ("fast", "slow")
    )
    config = Configuration(pipeline_parallel_size=2, stage_layers=(2, 2), stage_groups=stages)
    said = list(check.group_faults(a_mixed_problem(groups, constraints=(constraint,)), config))
    assert said == ([] if holds else [f"the constraint {constraint} does not hold"])
