"""The outer space: complete, without repetition, and a reason for each row that is left out."""

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.solver.check import rule_faults
from meshwright.solver.configuration import ALL_LAYERS, PER_STAGE, RECOMPUTE, Columns, Configuration
from meshwright.solver.problem import Problem, on_gpus
from meshwright.solver.space import enumerate as enumerate_module
from meshwright.solver.space.enumerate import (
    Beyond,
    LegalOn,
    OuterRowsOf,
    Space,
    _fewer_gpus,
    _plain_blocks,
    chunkings_of,
    enumerate_space,
    estimated_on_each,
    estimated_outer,
    likely_space,
    numbers_of_gpus,
    refuted_space,
    sampled_space,
    searched_space,
    with_whole,
)
from meshwright.solver.space.factored import Crossing
from meshwright.solver.space.rules import rules_of, violation_masks
from meshwright.solver.space.widening import CHANGED, widened
from tests.builders import a_cluster, a_configuration, a_model, a_moe_model, a_problem
from tests.draws import seldom


def broken(problem: Problem, **changes: object) -> list[str]:
    """Names of the rules that one configuration breaks."""
    configuration: Configuration = a_configuration(**changes)
    rules = rules_of(problem)
    mask = int(violation_masks(rules, Columns.of([configuration]))[0])
    return [rule.name for bit, rule in enumerate(rules) if mask >> bit & 1]


# Each change of the builder's configuration (tp 8, pp 4, vpp 5, dp 4, 128 micro-batches of a batch of
# 512) breaks the one rule beside it, and no other.
BREAKS: list[tuple[str, dict[str, object]]] = [
    ("divides the global batch", {"micro_batch_size": 3}),
    ("2 * context_parallel_size divides", {"context_parallel_size": 8192}),
    ("divides the ranks that share weights", {"data_parallel_size": 1, "num_microbatches": 512}),
    ("supports the ZeRO stage", {"zero_stage": 2}),
    ("interleaving needs two stages", {"pipeline_parallel_size": 1, "pipeline_schedule": "none"}),
    ("a multiple of pipeline_parallel_size", {"num_microbatches": 2, "micro_batch_size": 64}),
    ("the schedule fits the stages", {"pipeline_schedule": "1f1b"}),
    ("every chunk holds a layer", {"virtual_pipeline_size": 21}),
    ("recompute_layers fits", {"recompute_granularity": "full", "recompute_layers": 5,
                               "stage_layers": (6, *(4,) * 18, 2)}),
    ("expert_parallel_size is 1", {"expert_parallel_size": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), BREAKS)
def test_the_smallest_illegal_change_breaks_the_rule_that_is_meant(
    name: str, change: dict[str, object]
) -> None:
    found = broken(a_problem(), **change)
    assert any(name in rule for rule in found), found


def test_a_known_good_configuration_breaks_no_rule() -> None:
    assert broken(a_problem()) == []


@pytest.mark.parametrize(
    ("tensor", "name"),
    [(3, "divides the attention heads"), (16, "divides an island"), (6, "key/value heads")],
)
def test_tensor_parallel_sizes_that_do_not_divide_are_named(tensor: int, name: str) -> None:
    assert any(name in rule for rule in broken(a_problem(), tensor_parallel_size=tensor))


def test_experts_are_split_evenly_over_the_ranks_of_a_stage() -> None:
    problem = a_problem(model=a_moe_model())
    split = {"virtual_pipeline_size": 2, "stage_layers": (4,) * 8}
    assert broken(problem, expert_parallel_size=8, **split) == []
    assert broken(problem, expert_parallel_size=3, **split) == [
        "expert_parallel_size divides the experts",
        "expert_parallel_size divides the ranks of a stage",
    ]


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"pin": {"tensor_parallel_size": 4}}, "pin tensor_parallel_size = 4"),
        ({"forbid": {"pipeline_schedule": ("interleaved_1f1b",)}}, "forbid pipeline_schedule"),
        ({"bounds": {"micro_batch_size": (2, 4)}}, "bounds 2 <= micro_batch_size <= 4"),
    ],
)
def test_limits_of_the_request_are_rules_of_their_own(limits: dict[str, object], name: str) -> None:
    found = broken(a_problem(**limits))  # type: ignore[arg-type]
    assert len(found) == 1
    assert found[0].startswith(name)


def legal_columns(space: Space) -> Columns:
    """Rows that break no rule."""
    return space.columns.take(space.legal)


def test_every_legal_row_uses_all_gpus_and_the_whole_batch() -> None:
    c = legal_columns(enumerate_space(a_problem()))
    gpus = (
        c.tensor_parallel_size * c.context_parallel_size * c.pipeline_parallel_size * c.data_parallel_size
    )
    assert set(gpus.tolist()) == {128}
    assert set((c.data_parallel_size * c.micro_batch_size * c.num_microbatches).tolist()) == {512}


def test_no_row_is_there_twice() -> None:
    c = enumerate_space(a_problem(cluster=a_cluster(num_nodes=2))).columns
    rows = np.stack([getattr(c, f.name) for f in fields(c)], axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_recomputing_all_layers_of_an_even_split_is_one_row_not_two() -> None:
    # 80 layers, pp 4, 5 chunks: 4 layers a chunk. Partial counts end at 3; 4 of 4 is ALL_LAYERS.
    c = legal_columns(enumerate_space(a_problem()))
    chosen = (c.pipeline_parallel_size == 4) & (c.virtual_pipeline_size == 5)
    assert set(c.recompute_layers[chosen].tolist()) == {0, 1, 2, 3, ALL_LAYERS}


def test_every_layer_is_pinned_by_the_number_of_the_models_layers_and_by_no_other() -> None:
    def counts(pinned: int) -> set[int]:
        pins = {"recompute_layers": pinned, "pipeline_parallel_size": 4, "virtual_pipeline_size": 5}
        return set(legal_columns(enumerate_space(a_problem(pin=pins))).recompute_layers.tolist())

    assert (counts(80), counts(4), counts(3)) == ({ALL_LAYERS}, set(), {3})


def test_gpus_that_do_not_factor_fall_back_to_whole_nodes() -> None:
    # 7 nodes = 56 GPUs, one stage: dp is a multiple of 7, which does not divide 512; 4 nodes do.
    problem = replace(
        a_problem(pin={"pipeline_parallel_size": 1}), cluster=a_cluster(num_nodes=7), model=a_model()
    )
    space = enumerate_space(problem)
    assert space.num_gpus == 32
    assert space.warnings[0].startswith("at most 32 of 56 GPUs are used")


def test_a_small_space_is_refuted_by_all_candidates_unless_those_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = a_problem(model=a_model(num_layers=32), cluster=a_cluster(num_nodes=1), batch=8)
    assert enumerate_space(problem).size < refuted_space(problem).size
    assert refuted_space(problem).size == enumerate_space(problem, wide=True).size
    # seed 92 of the drawn requests: 8 508 rows had two million candidates, which took .6 s without a look
    usual = enumerate_module._estimated_rows(problem)
    monkeypatch.setattr(enumerate_module, "_MOST_WRITTEN", usual)
    assert refuted_space(problem).size == enumerate_space(problem).size


def test_the_whole_cluster_is_added_only_where_fewer_gpus_were_searched() -> None:
    pins = {"tensor_parallel_size": 8, "pipeline_parallel_size": 8, "micro_batch_size": 1}
    problem = a_problem(cluster=a_cluster(num_nodes=64), pin=pins)
    space = enumerate_space(problem)
    assert space.num_gpus == 64 * 8
    assert with_whole(problem, space) is space
    assert with_whole(problem, replace(space, num_gpus=32 * 8)).size > space.size


def test_a_batch_that_nothing_divides_keeps_the_rows_that_say_why() -> None:
    space = enumerate_space(a_problem(pin={"data_parallel_size": 3, "tensor_parallel_size": 5}))
    assert not space.legal.any()
    assert len(space.columns) > 0


def test_micro_batches_are_the_divisors_of_the_batch_and_what_bounds_name() -> None:
    # divisors of 24 up to 32: 1 2 3 4 6 8 12 24; bounds add 5, which no data-parallel size makes fit
    space = enumerate_space(a_problem(batch=24, bounds={"micro_batch_size": (5, 6)}))
    sizes = set(space.columns.micro_batch_size.tolist())
    assert {1, 2, 3, 4, 5, 6, 8, 12, 24} == sizes
    assert set(space.columns.take(space.legal).micro_batch_size.tolist()) == {6}


def test_other_slices_and_micro_batches_are_candidates_where_nothing_else_is_legal() -> None:
    # 8192 tokens in slices of at least 2048 are 1, 2 or 4 of them; micro-batches end at 32
    cluster = a_cluster(num_nodes=1)
    both = "context_parallel_size == 8 and micro_batch_size == 64"
    for text in ("context_parallel_size == 8", "micro_batch_size == 64", both):
        space = enumerate_space(a_problem(cluster=cluster, constraints=(text,)))
        assert space.legal.any()
        assert enumerate_space(
            a_problem(cluster=cluster, constraints=(text,)), legal_only=True
        ).size == len(space.columns)
    plain = legal_columns(enumerate_space(a_problem(cluster=cluster)))
    assert set(plain.context_parallel_size.tolist()) == {1, 2, 4}
    assert plain.micro_batch_size.max() == 32


def test_the_widest_space_repeats_no_row() -> None:
    problem = a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=2), batch=16)
    columns = enumerate_space(problem, wide=True, legal_only=True).columns
    rows = np.stack([getattr(columns, f.name) for f in fields(columns)], axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert {2, 4} < set(columns.expert_tensor_parallel_size.tolist())


SHALLOW = a_model(num_layers=8, num_attention_heads=16, hidden_size=2048, ffn_hidden_size=8192)


def test_a_row_of_one_batch_is_not_found_again_among_those_of_another() -> None:
    # 8 replicas of 8 sequences: 96 are 96 // 64 = 1 micro-batch of each, 64 sequences in all
    problem = a_problem(model=SHALLOW, cluster=a_cluster(num_nodes=1), batch=96, batch_sizes=(64,))
    columns = legal_columns(enumerate_space(problem, legal_only=True))
    rows = np.stack([getattr(columns, f.name) for f in fields(columns)])
    assert rows.shape[1] == np.unique(rows, axis=1).shape[1]


@pytest.mark.parametrize(("nodes", "asked", "batch"), [
    (13, {"num_nodes": (13, 12, 8)}, 64),  # 104 GPUs need a factor of 13, which none of the axes has
    (13, {}, 64),  # the same of the whole cluster: GPUs are left over
    (8, {"batch_sizes": (97, 96, 64)}, 97),  # a prime batch is cut into fewest micro-batches
    (8, {"constraints": ("data_parallel_size == 3",)}, 48),  # 64 GPUs factor, but no row of them is legal
])  # fmt: skip
def test_the_estimate_bounds_all_batches_and_gpu_counts_that_are_enumerated(
    nodes: int, asked: dict[str, object], batch: int
) -> None:
    problem = a_problem(model=SHALLOW, cluster=a_cluster(num_nodes=nodes), batch=batch, **asked)
    columns = enumerate_space(problem).columns
    chunked = {"virtual_pipeline_size", "recompute", "recompute_layers", "pipeline_schedule"}
    outer = np.stack([getattr(columns, f.name) for f in fields(Columns) if f.name not in chunked])
    number = np.unique(outer, axis=1).shape[1]
    assert 0.9 * number <= estimated_outer(problem) <= 3.0 * number  # some are probed


@pytest.mark.parametrize("launcher", ["accelerate", "trl"])
def test_no_number_of_gpus_is_tried_without_a_schedule_for_the_stages(
    launcher: str,
) -> None:
    # both run one stage alone: with 2 to 16 stages every number of GPUs is refuted by arithmetic
    asked = a_problem(cluster=a_cluster(num_nodes=25), bounds={"pipeline_parallel_size": (2, 16)})
    assert numbers_of_gpus(replace(asked, launcher=launcher)) == ()
    assert estimated_outer(replace(asked, launcher=launcher)) < estimated_outer(asked)


FEW_SIZES = [
    {"pin": {"micro_batch_size": 4, "zero_stage": 2}},
    {"pin": {"context_parallel_size": 1}, "constraints": ("data_parallel_size % 2 == 0",)},
    {"pin": {"weight_shard_size": 1, "num_microbatches": 1, "pipeline_parallel_size": 8}},
    {"bounds": {"data_parallel_size": (3, 5)}},
]


@pytest.mark.parametrize("launcher", ["accelerate", "torchtitan", "megatron-lm", "none"])
@pytest.mark.parametrize("asked", FEW_SIZES)
def test_clusters_of_more_nodes_learn_from_those_of_fewer(launcher: str, asked: dict[str, object]) -> None:
    legal_on: LegalOn = {}
    for nodes in (1, 2, 3, 5):
        problem = a_problem(model=SHALLOW, cluster=a_cluster(num_nodes=nodes), batch=8, **asked)
        problem = replace(problem, launcher=launcher)
        assert numbers_of_gpus(problem, legal_on) == numbers_of_gpus(problem)


@pytest.mark.parametrize("launcher", ["accelerate", "torchtitan", "megatron-lm", "none"])
@pytest.mark.parametrize("asked", FEW_SIZES)
def test_numbers_of_gpus_are_those_of_the_legal_rows(launcher: str, asked: dict[str, object]) -> None:
    # 24 GPUs and 8 sequences: few rows use all of them, so that most numbers are refuted unwritten
    problem = a_problem(model=SHALLOW, cluster=a_cluster(num_nodes=3), batch=8, **asked)
    problem = replace(problem, launcher=launcher)
    space = enumerate_space(problem)
    rows = space.columns.take(np.flatnonzero(space.masks == 0))
    assert numbers_of_gpus(problem) == tuple(np.unique(rows.num_gpus)[::-1].tolist())
    wide = enumerate_space(problem, wide=True)
    assert bool(len(rows)) == bool(wide.num_legal)


@pytest.mark.parametrize(("nodes", "asked"), [
    (13, {}),  # 104 GPUs need a factor of 13, which neither the axes nor the batch have
    (1, {"constraints": ("num_gpus <= 6",)}),  # 8 GPUs share 48 sequences: the request leaves two out
    (1, {"pin": {"data_parallel_size": 6}}),
])  # fmt: skip
def test_idle_gpus_are_laid_to_the_limits_of_the_request_too(nodes: int, asked: dict[str, object]) -> None:
    batch = 48 if asked else 64
    problem = a_problem(model=SHALLOW, cluster=a_cluster(num_nodes=nodes), batch=batch, **asked)
    (said,) = enumerate_space(problem).warnings
    assert said.endswith("the pins, bounds and constraints of the request") == bool(asked)


def test_numbers_of_gpus_far_below_the_largest_are_not_searched_with_it() -> None:
    # 7 sequences on one stage and no other axis: 7 replicas use 7 of 24 GPUs, and one alone is legal too
    pin = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "context_parallel_size": 1}
    three_nodes = a_problem(model=SHALLOW, cluster=a_cluster(num_nodes=3), batch=7, pin=pin)
    assert numbers_of_gpus(three_nodes) == (7,)
    # 11 sequences, up to 8 stages: a whole node has 8 of them, 22 GPUs 11 replicas of two. 11 are too few.
    staged = a_problem(
        model=a_model(num_layers=8), cluster=a_cluster(num_nodes=3), batch=11,
        pin={name: 1 for name in pin if name != "pipeline_parallel_size"},
        bounds={"pipeline_parallel_size": (1, 8)},
    )  # fmt: skip
    assert numbers_of_gpus(staged) == (22, 8)


@seldom
def test_widened_rows_differ_from_a_plain_one_in_the_variables_that_widening_names_alone() -> None:
    # a number of GPUs is refuted by rules on the others alone, before its rows are widened
    cluster, allowed, found = a_cluster(num_nodes=2), ("offload", "weight_shards"), 0
    problem = a_problem(model=a_moe_model(), cluster=cluster, batch=64, allow=allowed)
    for launcher in ("none", "megatron-lm"):
        one = replace(problem, launcher=launcher)
        for _, plain in _plain_blocks(one, (one.cluster.num_gpus,), wide=True):
            more = widened(one, plain, wide=True)
            shared = [f.name for f in fields(Columns) if f.name not in CHANGED]
            before, after = (np.stack([getattr(c, name) for name in shared]) for c in (plain, more))
            assert np.array_equal(np.unique(before, axis=1), np.unique(after, axis=1))
            found += len(more) - len(plain)
    assert found > 0


def test_a_launcher_with_zero_3_alone_and_no_pipeline_has_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(a_problem(), launcher="accelerate")
    able = replace(launcher_capabilities("accelerate"), zero_stages=(3,), max_zero_stage_with_pipeline=0)
    monkeypatch.setattr(enumerate_module, "launcher_capabilities", lambda _: able)
    assert estimated_outer(problem, wide=False) > 0


def test_a_search_goes_through_all_candidates_where_they_are_few() -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1), batch=16)
    usual, every = (enumerate_space(problem, legal_only=True, wide=wide) for wide in (False, True))
    found = searched_space(problem, legal_only=True)
    assert (found.every, found.num_legal) == (True, every.num_legal)
    assert usual.num_legal < every.num_legal


def test_a_search_that_weighs_its_rows_one_by_one_keeps_to_the_usual_candidates_sooner() -> None:
    # 211 338 legal rows under 4 settings are few where rows are refuted by kind, many where each is weighed
    problem = a_problem(cluster=a_cluster(num_nodes=1), batch=512)
    every = enumerate_space(problem, legal_only=True, wide=True)
    assert 400_000 < 4 * every.num_legal < 4_000_000
    found = [searched_space(problem, ways=4, one_by_one=each).every for each in (False, True)]
    assert found == [True, False]


@pytest.mark.parametrize("objective", ["tokens_per_s_per_gpu", "energy_per_token"])
def test_candidates_are_as_few_under_every_objective(objective: str) -> None:
    problem = a_problem(cluster=a_cluster(num_nodes=1), batch=512, objective=objective)
    assert 4 * enumerate_space(problem, legal_only=True, wide=True).num_legal > 400_000
    assert searched_space(problem, ways=4).every


def test_a_ring_cuts_the_tokens_of_two_ranks_and_more_into_slices() -> None:
    ring = "2 * context_parallel_size divides the sequence"

    def of_tokens(count: int) -> Problem:
        problem = a_problem()
        return replace(problem, workload=replace(problem.workload, seq_length=count))

    assert ring not in broken(of_tokens(4097), context_parallel_size=1)
    assert ring in broken(of_tokens(4098), context_parallel_size=2)  # 4098 = 4 * 1024 + 2
    assert ring not in broken(of_tokens(4100), context_parallel_size=2)


def test_tensor_ranks_that_hold_whole_sequences_divide_none() -> None:
    problem = a_problem()
    even = replace(problem, workload=replace(problem.workload, seq_length=4092))  # 8 * 511 + 4
    split = "tensor_parallel_size * context_parallel_size divides the sequence"
    whole = a_configuration(sequence_parallel=False)
    assert split in broken(even, sequence_parallel=True)
    assert split not in broken(even, sequence_parallel=False)
    assert "4092 tokens cannot be split over tp = 8 and cp = 1" not in rule_faults(even, [whole])[0]


def test_tensor_ranks_of_experts_need_not_be_those_of_attention() -> None:
    # Megatron-Core forms groups of tp * cp * dp / (ep * etp) replicas of experts, whatever tp is
    problem = replace(a_problem(), model=a_moe_model())
    width = "expert_tensor_parallel_size divides an island and the experts' width"
    for etp, is_legal in ((2, True), (8, True), (16, False), (3, False)):
        sizes = {"tensor_parallel_size": 1, "data_parallel_size": 32, "expert_tensor_parallel_size": etp}
        assert (width not in broken(problem, **sizes)) is is_legal
        faults = rule_faults(problem, [a_configuration(**sizes)])[0]
        assert any("expert_tensor_parallel_size" in fault for fault in faults) is not is_legal


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gemma3n_text", "num_kv_shared_layers": 0},  # embeddings of each layer
        {"model_type": "glm_moe_dsa", "index_topk_freq": 4},  # keys that other layers have chosen
    ],
)
def test_layers_that_need_what_the_first_stage_knows_are_on_one_stage(config: dict[str, object]) -> None:
    problem = a_problem(model=model_from_config(config, name="x"))
    assert any("are on one stage" in name for name in broken(problem, pipeline_parallel_size=2))


def counts_of(problem: Problem) -> set[int]:
    """How many layers two plain stages may recompute in full."""
    _, kind, layers, _ = chunkings_of(problem, 2).T
    return set(layers[kind == RECOMPUTE.index("full")].tolist())


def test_full_recomputation_begins_with_one_layer_and_ends_with_all() -> None:
    six = a_model(num_layers=6)
    assert counts_of(a_problem(model=six)) == {1, 2, ALL_LAYERS}
    assert counts_of(replace(a_problem(model=six), launcher="none")) == {1, 2, ALL_LAYERS, PER_STAGE}
    pinned = a_problem(model=six, pin={"recompute_layers": 1})
    assert PER_STAGE not in counts_of(replace(pinned, launcher="none"))


def test_only_pipelines_are_kept_from_zero_stages_that_a_launcher_has_without_them() -> None:
    rows = enumerate_space(replace(a_problem(), launcher="deepspeed")).columns
    stages = [set(rows.zero_stage[rows.pipeline_parallel_size == pp].tolist()) for pp in (1, 2)]
    assert stages == [{0, 1, 2, 3}, {0, 1}]


def test_fewer_gpus_are_whole_nodes_first() -> None:
    assert _fewer_gpus(a_problem(cluster=a_cluster(num_nodes=3), batch=24))[:4] == [16, 8, 23, 22]


def test_more_candidates_are_listed_where_a_request_limits_what_is_usually_narrowed() -> None:
    plain = a_problem(cluster=a_cluster(num_nodes=16), batch=512)
    limited = replace(plain, options=replace(plain.options, bounds={"micro_batch_size": (1, 64)}))
    assert 4 * enumerate_space(limited, legal_only=True, wide=True).num_legal > 4_000_000
    assert [searched_space(one, ways=4).every for one in (plain, limited)] == [False, True]


def test_all_candidates_are_searched_unless_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = a_problem(model=a_model(num_layers=4), cluster=a_cluster(num_nodes=1), batch=8)
    assert searched_space(problem).every
    monkeypatch.setattr(enumerate_module, "_FEW", 1)
    assert not searched_space(problem).every
    assert not sampled_space(problem).every


@pytest.mark.parametrize(
    "problem",
    [
        a_problem(cluster=a_cluster(num_nodes=4)),
        a_problem(cluster=a_cluster(num_nodes=4), pin={"micro_batch_size": 4}),
        a_problem(model=a_moe_model(), cluster=a_cluster(num_nodes=4)),
        a_problem(cluster=a_cluster(num_nodes=3), batch=16),  # 24 GPUs have no legal row
    ],
)
def test_likely_rows_are_a_few_legal_rows_of_those_that_are_enumerated(problem: Problem) -> None:
    likely, every = likely_space(problem), enumerate_space(problem, legal_only=True)
    assert {*rows_of(likely)} <= {*rows_of(every)}
    assert 0 < len(likely.rows) < len(every.rows) / 4
    assert not likely.whole


def rows_of(space: Space) -> list[tuple[int, ...]]:
    columns = space.columns
    return list(zip(*(getattr(columns, f.name).tolist() for f in fields(Columns)), strict=True))


@pytest.mark.parametrize("launcher", ["megatron-lm", "torchtitan"])
@pytest.mark.parametrize("allow", [(), ("offload",)])
def test_ways_that_recompute_unlike_share_outer_rows_and_have_their_own(
    launcher: str, allow: tuple[str, ...]
) -> None:
    every = replace(a_problem(cluster=a_cluster(num_nodes=4), allow=allow), launcher=launcher)
    ways = [
        replace(every, options=replace(every.options, recompute_kinds=kinds))
        for kinds in ((), ("full",), ("none", "selective"))
    ]
    shared: OuterRowsOf = {}
    for way in ways:
        alone, found = (enumerate_space(way, legal_only=True, outer_rows=known) for known in (None, shared))
        assert rows_of(found) == rows_of(alone)
        assert found.size == alone.size  # the illegal rows are counted by each way's own chunkings
    assert len(shared) == 1
    assert len({len(enumerate_space(way, legal_only=True).rows) for way in ways}) == len(ways)


# Several numbers of GPUs are enumerated together; slow rows are left out before they are widened.


NUMBERS = (32, 24, 16, 12)


def of_several(**changes: object) -> Problem:
    return a_problem(cluster=a_cluster(num_nodes=4), model=a_moe_model(), batch=48, **changes)


def test_numbers_of_gpus_that_are_enumerated_together_have_the_rows_of_each_in_turn() -> None:
    problem = of_several()
    together = enumerate_space(on_gpus(problem, NUMBERS), legal_only=True)
    each = [enumerate_space(on_gpus(problem, (number,)), legal_only=True) for number in NUMBERS]
    assert all(one.num_legal for one in each)
    assert together.refuted == sum(one.refuted for one in each)
    in_turn = Columns.concatenate([one.columns for one in each])
    for one in fields(Columns):
        assert getattr(together.columns, one.name).tolist() == getattr(in_turn, one.name).tolist()


def test_numbers_of_gpus_are_estimated_together_as_each_by_itself() -> None:
    problem = of_several()
    each = [estimated_outer(on_gpus(problem, (number,))) for number in NUMBERS]
    assert [*estimated_on_each(problem, NUMBERS, wide=False)] == each
    assert estimated_outer(on_gpus(problem, NUMBERS)) == pytest.approx(sum(each))


def test_rows_beyond_a_limit_are_those_that_are_slower_however_they_are_run() -> None:
    def least_s(rows: Columns, alone: np.ndarray) -> np.ndarray:
        stages = np.where(alone, rows.pipeline_parallel_size, 1.0)
        return np.asarray(stages * rows.micro_batch_size / rows.num_gpus)

    problem = on_gpus(of_several(), NUMBERS)
    every = enumerate_space(problem, legal_only=True).rows
    beyond = Beyond(limit_s=0.1, least_s=least_s)
    assert isinstance(every, Crossing)
    near = enumerate_space(problem, legal_only=True, beyond=beyond).rows
    kept = Beyond(limit_s=0.1, least_s=least_s).without(every)
    assert isinstance(near, Crossing)
    assert 0 < len(near) < len(every)
    assert beyond.nearest_s > 0.1
    for one in fields(Columns):
        assert getattr(near.outer, one.name).tolist() == getattr(kept.outer, one.name).tolist()
    assert np.diff(near.first).tolist() == np.diff(kept.first).tolist()
