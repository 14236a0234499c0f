"""What a rule states to read decides it: whatever the other columns hold, its verdict stays."""

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.cluster import USABLE, host_of
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.solver.check import violations
from meshwright.solver.configuration import (
    ALL_LAYERS,
    OFFLOAD,
    PER_STAGE,
    VARIABLE_OF,
    Columns,
    Configuration,
    IntArray,
)
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import outside_bytes
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.space.enumerate import enumerate_space
from meshwright.solver.space.launcher_rules import _DYNAMIC_LIMITS
from meshwright.solver.space.request_rules import broken_by, constraint_of
from meshwright.solver.space.rules import host_warnings, rules_of
from tests.builders import a_cluster, a_model, a_moe_model, a_problem, weights_of

ROWS = 400


def some_rows(rng: np.random.Generator) -> Columns:
    """Rows with any values, legal or not."""

    def drawn(name: str) -> IntArray:
        variable = VARIABLE_OF[name]
        if name == "recompute_layers":
            return rng.choice([0, 1, 2, ALL_LAYERS, PER_STAGE], ROWS)
        if variable.is_integer:
            return rng.choice([0, 1, 2, 3] if variable.least == 0 else [1, 2, 3, 4, 8], ROWS)
        return rng.integers(0, len(variable.words) or 2, ROWS)

    return Columns(**{name: drawn(name) for name in VARIABLE_OF})


def with_other_columns_shuffled(rows: Columns, kept: tuple[str, ...], rng: np.random.Generator) -> Columns:
    """The same rows where every column but ``kept`` is permuted on its own."""
    others = {name: rng.permutation(getattr(rows, name)) for name in VARIABLE_OF if name not in kept}
    return replace(rows, **others)


CASES = {
    "experts": a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=2), batch=64, allow=("offload",)),
    "limits": a_problem(
        cluster=a_cluster(num_nodes=2),
        batch=64,
        pin={"recompute_granularity": "full"},
        forbid={"pipeline_schedule": ("gpipe",)},
        bounds={"recompute_layers": (0, 4)},
        constraints=("num_gpus >= 8", "global_batch_size == 64 and recompute_granularity == 'full'"),
    ),
    "split": a_problem(
        model=a_model(num_layers=8), batch=64, stage_layers=(1, 3, 3, 1), cluster=a_cluster(num_nodes=1)
    ),
}


@pytest.mark.parametrize("launcher", launcher_names())
@pytest.mark.parametrize("case", CASES)
def test_no_rule_depends_on_a_column_that_it_does_not_state(case: str, launcher: str) -> None:
    problem, rng = replace(CASES[case], launcher=launcher), np.random.default_rng(1)
    rows = some_rows(rng)
    for rule in rules_of(problem):
        assert set(rule.reads) <= set(VARIABLE_OF), rule.name
        verdict = rule.violated(rows)
        for _ in range(3):
            shuffled = with_other_columns_shuffled(rows, rule.reads, rng)
            assert rule.violated(shuffled).tolist() == verdict.tolist(), rule.name


# Rules that no constraint in a request's language says, by a part of their names: CP-SAT's rows keep them
# (``test_rules_without_a_form_are_kept_by_every_row_that_cp_sat_may_choose``).
WITHOUT_FORM = (
    "all_to_all splits heads", "rings are left between", "the schedule fits the stages",
    "rank_order puts some rank elsewhere", "zero_shard_size divides the ranks", "fit the hosts",
    "fit the drives", "gives every stage a layer and the last one the output head",
    "where stages recompute different numbers of layers",
)  # fmt: skip
ALWAYS = ("supports the shard sets", "supports the split of experts", "has stages of one size",
          "shares weights among")  # fmt: skip
WEAKER = ("supports the recomputation",)  # a count for each stage is no value of a request's variable
OPTIONS: dict[str, str | int | float | bool] = {
    "secondary_shard_size": 2, "quantized_reductions": True, "super_offload": True,
    "cpu_update_interval": 4,
    "optimizer_offload_fraction": 0.5, "moe_dispatcher": "deepep", "cuda_graph": "layer",
    "dynamic_context_parallel": True,
}  # fmt: skip


def with_option(name: str, launcher: str) -> Problem:
    """A problem of experts with one option of its launcher."""
    problem = replace(CASES["experts"], launcher=launcher)
    return replace(problem, workload=replace(problem.workload, framework_options={name: OPTIONS[name]}))


@pytest.mark.parametrize("launcher", launcher_names())
def test_the_form_of_a_rule_means_what_the_rule_does(launcher: str) -> None:
    rng = np.random.default_rng(2)
    cases = [replace(one, launcher=launcher) for one in CASES.values()]
    for problem in [*cases, *(with_option(name, launcher) for name in OPTIONS)]:
        rows, layers = some_rows(rng), problem.model.num_layers
        for rule in (one for one in rules_of(problem) if not one.of_request):
            if not rule.form:
                assert any(some in rule.name for some in (*WITHOUT_FORM, *ALWAYS)), rule.name
                assert any(some in rule.name for some in WITHOUT_FORM) or not rule.violated(rows).any()
                continue
            broken = [broken_by(constraint_of(text), rows, num_layers=layers) for text in rule.form]
            stated, breaks = np.logical_or.reduce(broken), rule.violated(rows)
            if any(some in rule.name for some in WEAKER):
                assert (breaks | ~stated).all(), rule.name
            else:
                assert stated.tolist() == breaks.tolist(), rule.name


@pytest.mark.parametrize(
    ("data", "context", "tensor", "shard", "legal"),
    [
        (3, 1, 1, 3, True),  # one set of all three ranks
        (6, 1, 1, 3, True),  # two sets
        (4, 1, 1, 3, False),  # three do not divide four
        (3, 2, 1, 2, True),  # three sets, over ranks of one sequence
        (2, 1, 2, 1, False),  # a set of one shards nothing
    ],
)
def test_ranks_that_share_weights_are_whole_sets_of_more_than_one(
    data: int, context: int, tensor: int, shard: int, legal: bool
) -> None:
    name = "zero_shard_size divides the ranks that share weights"
    (rule,) = (one for one in rules_of(a_problem()) if one.name == name)
    layout = Configuration(
        data_parallel_size=data, context_parallel_size=context, tensor_parallel_size=tensor,
        zero_stage=3, zero_shard_size=shard,
    )  # fmt: skip
    assert rule.violated(Columns.of([layout])).tolist() == [not legal]


# What is offloaded must fit into the hosts.

MODEL = a_model(num_layers=8, hidden_size=4096, ffn_hidden_size=16384, num_attention_heads=32)
STAGES = Configuration(
    tensor_parallel_size=2, sequence_parallel=True, pipeline_parallel_size=4, data_parallel_size=2,
    zero_stage=1, zero_shard_size=2, num_microbatches=8, pipeline_schedule="1f1b", offload="optimizer",
    stage_layers=(2,) * 4,
)  # fmt: skip


def on_hosts(gib_a_gpu: float, *, launcher: str = "none", **options: object) -> Problem:
    """16 GPUs with so much host memory each."""
    found = a_problem(model=MODEL, cluster=a_cluster(num_nodes=2), batch=16, allow=("offload",), **options)
    (group,) = found.cluster.groups
    group = replace(group, host_memory_bytes=int(gib_a_gpu * GIB * group.gpus_per_node))
    return replace(found, cluster=replace(found.cluster, groups=(group,)), launcher=launcher)


def needed(problem: Problem, config: Configuration) -> float:
    """Bytes on the host of one GPU."""
    profile = default_profile(problem.cluster, problem.launcher)
    return float(outside_bytes(context_of(problem, Columns.of([config]), profile)).host[0])


def test_the_fullest_rank_keeps_16_bytes_of_each_of_its_weights_over_the_ranks_that_share_them() -> None:
    # 2 layers and the head on tp 2, shared by dp 2: (12 of states + 4 of a gradient's copy) / 2 for each
    layer = weights_of(MODEL.layer("dense"), "attention", "mlp") / 2 + MODEL.layer("dense").norms
    head = MODEL.vocab_size * MODEL.hidden_size / 2
    expected = (2 * layer + head) * 16 / 2
    assert needed(on_hosts(100), STAGES) == pytest.approx(expected, rel=0.01)


def test_without_stages_one_rank_has_both_ends() -> None:
    whole = replace(STAGES, pipeline_parallel_size=1, data_parallel_size=8, zero_shard_size=8,
                    num_microbatches=2, pipeline_schedule="none", stage_layers=(8,))  # fmt: skip
    layer = weights_of(MODEL.layer("dense"), "attention", "mlp") / 2 + MODEL.layer("dense").norms
    ends = 2 * MODEL.vocab_size * MODEL.hidden_size / 2
    assert needed(on_hosts(100), whole) == pytest.approx((8 * layer + ends) * 16 / 8, rel=0.01)


def test_activations_on_the_host_are_those_of_every_micro_batch_in_flight() -> None:
    problem = on_hosts(100)
    few, many = (
        needed(problem, replace(STAGES, offload="activations", num_microbatches=count)) for count in (1, 8)
    )
    assert many == pytest.approx(4 * few)  # the first of 4 stages holds min(m, 4)
    both = needed(problem, replace(STAGES, offload="optimizer+activations"))
    assert both == pytest.approx(many + needed(problem, STAGES))
    assert needed(problem, replace(STAGES, offload="none")) == 0.0


def test_the_smallest_host_that_holds_the_states_is_enough_and_a_smaller_one_is_not() -> None:
    gib = needed(on_hosts(100), STAGES) / GIB / USABLE
    profile = default_profile(a_cluster(num_nodes=2), "none")
    assert not [one for one in violations(on_hosts(gib * 1.01), profile, STAGES) if "hosts" in one]
    assert any("fit the hosts" in one for one in violations(on_hosts(gib * 0.99), profile, STAGES))


@pytest.mark.parametrize("launcher", ["none", "deepspeed"])
def test_the_rule_of_host_memory_refuses_exactly_the_rows_that_need_more(launcher: str) -> None:
    problem = on_hosts(8, launcher=launcher)
    space, profile = enumerate_space(problem), default_profile(problem.cluster, launcher)
    needed_bytes = outside_bytes(context_of(problem, space.columns, profile)).host
    names = ("offloaded optimizer states fit the hosts", "offloaded activations fit the hosts as well")
    bits = [at for at, rule in enumerate(space.rules) if rule.name in names]
    refused = np.logical_or.reduce([(space.masks >> bit) & 1 == 1 for bit in bits])
    limit_bytes = 8 * GIB * USABLE
    away = (space.columns.offload > 0) & (np.abs(needed_bytes / limit_bytes - 1) > 1e-9)
    assert refused[away].tolist() == (needed_bytes > limit_bytes)[away].tolist()
    assert {True, False} == {*refused[away].tolist()}


def test_host_memory_refuses_the_same_rows_where_rows_and_chunkings_are_asked_apart() -> None:
    problem = on_hosts(4)
    legal, whole = enumerate_space(problem, legal_only=True), enumerate_space(problem)
    bit = [rule.name for rule in whole.rules].index("offloaded activations fit the hosts as well")
    assert (whole.masks == 1 << bit).any()  # it decides alone for some rows
    expected = whole.columns.take(whole.legal)
    for field in fields(Columns):
        assert np.array_equal(getattr(legal.columns, field.name), getattr(expected, field.name))


@pytest.mark.parametrize("launcher", ["none", "megatron-lm", "deepspeed"])
def test_the_search_offloads_no_more_than_the_hosts_hold(launcher: str) -> None:
    problem = on_hosts(8, launcher=launcher)
    space, profile = enumerate_space(problem), default_profile(problem.cluster, launcher)
    columns = space.columns.take(space.legal)
    away = columns.take(columns.offload > 0)
    assert len(away) > 0
    assert outside_bytes(context_of(problem, away, profile)).host.max() <= 8 * GIB * USABLE
    assert len(away) < int((enumerate_space(on_hosts(64, launcher=launcher)).legal).sum())


def test_rows_with_states_away_do_not_change_with_what_else_is_on_the_host() -> None:
    problem = on_hosts(1)
    space = enumerate_space(problem)
    names = [rule.name for rule in space.rules]
    bit = names.index("offloaded optimizer states fit the hosts")
    broken = (space.masks >> bit) & 1 == 1
    states = np.isin(
        space.columns.offload, [OFFLOAD.index("optimizer"), OFFLOAD.index("optimizer+activations")]
    )
    assert broken.any()
    assert not broken[~states].any()


def test_unknown_host_memory_is_said_where_something_may_be_offloaded() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=2), batch=16)
    assert host_warnings(problem) == ()
    allowed = replace(problem, options=replace(problem.options, allow=("offload",)))
    (warning,) = host_warnings(allowed)
    gib = host_of(problem.cluster.groups[0]).memory_bytes * 8 / GIB
    assert f"{gib:.0f} GiB" in warning
    assert "host_memory_bytes" in warning
    assert host_warnings(on_hosts(8)) == ()


def test_a_launcher_that_offloads_is_asked_to_where_the_states_do_not_fit_otherwise() -> None:
    tight = on_hosts(250, launcher="megatron-lm", certify="none", top_k=1)
    model = a_model(num_layers=38, hidden_size=8192, ffn_hidden_size=28672, num_attention_heads=64)
    tight = replace(tight, model=model, cluster=replace(tight.cluster, groups=(
        replace(tight.cluster.groups[0], num_nodes=1),)))  # fmt: skip
    plain = replace(tight, options=replace(tight.options, allow=()))
    assert ask(plain, default_profile(plain.cluster, "megatron-lm")).status == "infeasible"
    answer = ask(tight, default_profile(tight.cluster, "megatron-lm"))
    assert "optimizer" in answer.plans[0].config.offload
    assert answer.plans[0].config.zero_stage == 1


def test_widths_of_shared_experts_are_named_where_there_are_some() -> None:
    shared = a_moe_model()
    assert shared.moe is not None
    shared = replace(shared, moe=replace(shared.moe, num_shared_experts=1, shared_ffn_hidden_size=640))
    said = [
        " ".join(rule.reason for rule in rules_of(a_problem(model=one))) for one in (shared, a_moe_model())
    ]
    assert ["of the shared experts" in one for one in said] == [True, False]
    assert "and 640 of the shared experts" in said[0]


def test_dynamic_context_parallelism_has_powers_of_two_beyond_one() -> None:
    sizes = np.array([1, 2, 3, 4, 6, 8])
    broken = _DYNAMIC_LIMITS["context_parallel_size"](sizes)
    assert broken.tolist() == [True, False, True, False, True, False]


def test_three_rules_depend_on_the_memory_of_hosts_and_drives() -> None:
    of_host = {rule.name for rule in rules_of(CASES["experts"]) if rule.of_host}
    assert of_host == {
        "offloaded optimizer states fit the hosts",
        "offloaded activations fit the hosts as well",
        "offloaded states fit the drives",
    }


def test_a_second_set_of_shards_has_a_rule_from_two_ranks_on() -> None:
    plain = a_problem()

    def has_one(ranks: int) -> bool:
        workload = replace(plain.workload, framework_options={"secondary_shard_size": ranks})
        rules = rules_of(replace(plain, launcher="deepspeed", workload=workload))
        return any("second set of shards" in rule.name for rule in rules)

    assert [has_one(ranks) for ranks in (1, 2)] == [False, True]
