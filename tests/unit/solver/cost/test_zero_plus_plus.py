"""ZeRO++ and the sizes of buckets under DeepSpeed: what travels, what is kept, and what is legal."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.collectives.collectives import all_gather_s, all_reduce_s, all_to_all_s
from meshwright.profiles.profile import default_profile
from meshwright.profiles.switches import switches
from meshwright.solver.check import launcher_faults
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.communication import replayed_gathers, weight_gathers
from meshwright.solver.cost.context import Context, PassSeconds, context_of
from meshwright.solver.cost.memory import buffer_bytes
from meshwright.solver.cost.parameters import Weights
from meshwright.solver.cost.price import price
from meshwright.solver.cost.step_end import _last_bucket, _together, all_reduced_s
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem, SearchOptions
from meshwright.solver.space.launcher_rules import own_faults
from tests.builders import a_cluster, a_model, a_problem
from tests.draws import seldom

MODEL = a_model(num_layers=4, hidden_size=4096, ffn_hidden_size=16384, num_attention_heads=32,
                num_kv_heads=32, head_dim=128, vocab_size=32000, gated_mlp=False)  # fmt: skip
ALONE = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "micro_batch_size": 1, "zero_stage": 3}
COUNT, DP, MODULES = 2e8, 32, 4.0  # weights of a layer, ranks, and collectives of its modules: mlp 2 + 2
UNDER = PassSeconds(forward=np.zeros(1), backward=np.zeros(1))  # nothing hides a collective
LAYER = Weights(dense=np.array([COUNT]), routed=np.zeros(1), ends=np.zeros(1), whole=np.zeros(1))


def asked(nodes: int = 4, batch: int = 128, **options: object) -> Problem:
    problem = a_problem(model=MODEL, cluster=a_cluster(num_nodes=nodes), batch=batch)
    work = replace(problem.workload, seq_length=1024, framework_options=options)  # type: ignore[arg-type]
    return replace(
        problem,
        workload=work,
        launcher="deepspeed",
        options=SearchOptions(certify="none", top_k=1, pin=ALONE),
    )


def a_run(zero: int = 3, dp: int = DP, micro: int = 4) -> Configuration:
    return Configuration(
        data_parallel_size=dp, zero_stage=zero, zero_shard_size=dp, num_microbatches=micro,
        stage_layers=(4,),
    )  # fmt: skip


def context(config: Configuration | None = None, **options: object) -> Context:
    problem = asked(**options)  # type: ignore[arg-type]
    profile = default_profile(problem.cluster, "deepspeed")
    return context_of(problem, Columns.of([config or a_run()]), profile)


def passes(ctx: Context) -> tuple[float, float]:
    found = weight_gathers(ctx, LAYER, LAYER, UNDER, matrices=MODULES)
    return float(found.forward[0]), float(found.backward[0])


def gather_s(ctx: Context, element_bytes: float, ranks: int) -> float:
    """Collectives of one pass, and the copy of weights in 2 bytes out of their buffer."""
    group = replace(ctx.shard_group, size=np.full(1, float(ranks)))
    copied_s = COUNT * 4.0 / float(ctx.hbm_bytes_per_s)
    return MODULES * float(all_gather_s(np.array([COUNT * element_bytes / MODULES]), group)[0]) + copied_s


def test_all_passes_but_the_first_of_a_step_gather_the_second_set_of_shards() -> None:
    plain, near = context(), context(secondary_shard_size=8.0)
    far_s, near_s = gather_s(plain, 2.0, DP), gather_s(plain, 2.0, 8)
    reduce_s = passes(plain)[1] - far_s  # the reduction of gradients stays
    assert passes(plain)[0] == pytest.approx(far_s)
    # of four micro-batches one gathers over 32 ranks, three over the 8 of a node
    assert passes(near)[0] == pytest.approx((far_s + 3 * near_s) / 4)
    assert passes(near)[1] == pytest.approx(near_s + reduce_s)
    assert near_s < 0.6 * far_s  # both with their copies


def test_before_0_13_2_only_what_a_backward_pass_fetches_is_of_the_second_set() -> None:
    replaying = replace(a_run(), recompute_granularity="full", recompute_layers=4)
    old = context(replaying, secondary_shard_size=8.0, secondary_in_forward=False)
    far_s, near_s = gather_s(old, 2.0, DP), gather_s(old, 2.0, 8)
    reduce_s = passes(context())[1] - far_s
    assert passes(old)[0] == pytest.approx(far_s)
    # the first of four modules is fetched ahead in the backward pass of the layer above; the replay gathers
    # the other three, which stay for the backward pass (2e8 weights twice are less than 1e9)
    assert passes(old)[1] == pytest.approx((near_s + 3 * far_s) / 4 + reduce_s)
    # 6e8 weights twice are more: the replay gathers, and the backward pass gathers again, near as ever
    large = replace(LAYER, dense=3 * LAYER.dense)
    new, plain = context(replaying, secondary_shard_size=8.0), context(replaying)
    behind = [
        float(weight_gathers(one, large, large, UNDER, matrices=MODULES).backward[0]) for one in (old, new)
    ]
    assert behind[0] == behind[1]
    again, near, far = (
        float(replayed_gathers(one, large, np.zeros(1), matrices=MODULES)[0]) for one in (old, new, plain)
    )
    assert again == pytest.approx((near + 3 * far) / 4)


def test_weights_that_are_cast_travel_in_one_byte_and_are_cast_back() -> None:
    cast = context(quantized_gathers=True)
    back_s = 3 * COUNT / float(cast.hbm_bytes_per_s)  # 1 byte read, 2 written
    assert passes(cast)[0] == pytest.approx(gather_s(cast, 1.0, DP) + back_s)


def test_gradients_in_4_bits_take_an_all_to_all_inside_nodes_and_one_across() -> None:
    plain, cast = context(), context(quantized_reductions=True)
    sent, group = COUNT / 2 / MODULES, plain.shard_group
    inside = replace(group, size=np.full(1, 8.0))
    across = replace(group, size=np.full(1, 4.0), stride=np.full(1, 8.0))
    # a rank is left with an eighth of the gradients, summed over its node
    travels = all_to_all_s(np.array([sent]), inside) + all_to_all_s(np.array([sent / 8]), across)
    cast_s = 3 * COUNT / float(cast.hbm_bytes_per_s)  # 2 bytes read, 1/2 written; 1/2 read
    gathers = gather_s(plain, 2.0, DP)
    assert passes(cast)[1] == pytest.approx(gathers + MODULES * float(travels[0]) + cast_s)
    assert passes(cast)[0] == passes(plain)[0]


def test_a_second_set_of_shards_holds_two_bytes_of_each_weight() -> None:
    def weights(**options: object) -> float:
        problem = asked(**options)  # type: ignore[arg-type]
        found = price(problem, Columns.of([a_run()]), default_profile(problem.cluster, "deepspeed"))
        return float(found.weights_bytes[0, 0])

    of_32, of_8 = weights(), weights(secondary_shard_size=8.0)
    # 2/32 of a weight's bytes before, and 2/8 on top
    assert of_8 / of_32 == pytest.approx((2 / 32 + 2 / 8) / (2 / 32))
    assert weights(secondary_shard_size=32.0) == of_32, "as many ranks as there are: no second set"


def test_what_is_cast_has_a_buffer() -> None:
    plain, both = context(), context(quantized_gathers=True, quantized_reductions=True)
    held = float(both.facts.gathered_layers) * COUNT
    matrix = 4096 * 32000.0  # the embedding is the largest tensor
    grown = buffer_bytes(both, LAYER, LAYER) - buffer_bytes(plain, LAYER, LAYER)
    # a byte of each gathered weight, a byte of a matrix of gradients
    assert float(grown[0]) == pytest.approx(min(held, 1e9 + matrix) + matrix)


def test_smaller_buckets_take_more_collectives() -> None:
    # stage 2 all-reduces a layer's 400 MB in one bucket of a gigabyte, or in twenty of 20 MB
    whole, small = context(a_run(2)), context(a_run(2), bucket_bytes=2e7)
    of_small = all_reduced_s(small, LAYER, np.array([2.0]))
    assert float(of_small[0]) == pytest.approx(
        20 * float(all_reduce_s(np.array([2e7]), small.data_group)[0])
    )
    assert float(all_reduced_s(whole, LAYER, np.array([2.0]))[0]) < float(of_small[0])


def replicated(launcher: str, nodes: int = 4, **options: object) -> Problem:
    """A model of 24 layers of 13 million parameters; every GPU has one sequence of 512 tokens."""
    small = a_model(num_layers=24, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16,
                    num_kv_heads=16, head_dim=64, vocab_size=32000, gated_mlp=False)  # fmt: skip
    problem = replace(asked(nodes, batch=8 * nodes, **options), model=small, launcher=launcher)
    pin = {**ALONE, "zero_stage": 0}
    work = replace(problem.workload, seq_length=512)
    return replace(problem, workload=work, options=replace(problem.options, pin=pin))


def test_views_of_gradients_are_cut_into_buckets_and_the_last_one_is_seen() -> None:
    problem = replicated("megatron-lm", bucket_bytes=4e8)
    run = replace(a_run(0, micro=1), zero_shard_size=1, stage_layers=(24,))
    ctx = context_of(problem, Columns.of([run]), default_profile(problem.cluster, "megatron-lm"))
    layer = np.array([4 * 2.5e7])  # 25 million parameters, summed in fp32
    # a bucket takes four layers of 100 MB, and of 24 layers three more than one wait for the last bucket
    assert float(_together(layer, ctx)[0]) == pytest.approx(4.0)
    assert float(_last_bucket(layer / 4, ctx)[0]) == pytest.approx(3 / 24)
    # views take no memory on top of the gradients; DeepSpeed's buffers do (stage 1 and above)
    plain = context_of(
        replicated("megatron-lm"), ctx.columns, default_profile(problem.cluster, "megatron-lm")
    )
    assert float(buffer_bytes(ctx, LAYER, LAYER)[0]) == float(buffer_bytes(plain, LAYER, LAYER)[0])
    # nothing is cut where no backward pass hides reductions, nor on several stages
    waits = replicated("megatron-lm", bucket_bytes=4e8, overlap_gradients=False)
    of_stages = replace(run, pipeline_parallel_size=2, data_parallel_size=16, stage_layers=(12, 12))
    for other, row in ((waits, run), (problem, of_stages)):
        ctx = context_of(other, Columns.of([row]), default_profile(problem.cluster, "megatron-lm"))
        assert not ctx.buckets.any()


@pytest.mark.parametrize(
    ("launcher", "nodes", "best"),
    [
        ("megatron-lm", 4, 104857600.0),  # its own are of 40 million weights
        ("trl", 4, 0.0),
        # all-reduces of 1 024 ranks wait for 2 046 messages each: fewer are worth a wait
        ("megatron-lm", 128, 104857600.0),
        ("trl", 128, 104857600.0),
    ],
)
def test_a_search_over_buckets_finds_what_every_size_has_best(
    launcher: str, nodes: int, best: float
) -> None:
    """Brute force: each size as a request of its own."""
    problem = replicated(launcher, nodes)
    profile = default_profile(problem.cluster, launcher)
    options = replace(problem.options, allow=("reduce_bucket", "none"))
    found = ask(replace(problem, options=options), profile)
    sizes = [one.options["bucket_bytes"] for one in switches()["reduce_bucket"].settings
             if launcher in one.launchers]  # fmt: skip
    steps = {}
    for size in sizes:
        stated = replace(
            replicated(launcher, nodes, bucket_bytes=size),
            options=replace(problem.options, allow=("none",)),
        )
        steps[size] = ask(stated, profile).plans[0].prediction.step_time_s
    assert len(sizes) == 4
    assert min(steps, key=lambda size: steps[size]) == best
    assert found.plans[0].prediction.step_time_s == pytest.approx(min(steps.values()))


@pytest.mark.parametrize(
    ("options", "config", "legal"),
    [
        ({"secondary_shard_size": 8.0}, a_run(), True),
        ({"secondary_shard_size": 8.0}, a_run(dp=12), False),  # 12 ranks are no groups of 8
        ({"secondary_shard_size": 16.0}, a_run(dp=8), True),  # of 8 ranks one group
        ({"secondary_shard_size": 8.0}, a_run(2, dp=12), True),  # read by stage 3 alone
        ({"quantized_reductions": True}, a_run(), True),
        ({"quantized_reductions": True}, a_run(2), False),
        ({"quantized_reductions": True}, a_run(dp=24), False),  # 48 divides no power of two
    ],
)  # fmt: skip
def test_rows_that_deepspeed_runs_otherwise_are_refused_twice(
    options: dict[str, object], config: Configuration, legal: bool
) -> None:
    problem = asked(nodes=config.num_gpus // 4, batch=config.global_batch_size, **options)
    able = launcher_capabilities("deepspeed")
    assert (own_faults(problem, able, [config]) == [[]]) == legal
    assert (list(launcher_faults(problem, config)) == []) == legal


@pytest.mark.parametrize(
    ("options", "config", "legal"),
    [
        ({"quantized_reductions": True}, a_run(), True),
        ({"quantized_reductions": True}, a_run(2), False),
        ({"secondary_shard_size": 8.0}, a_run(dp=12), False),
        ({"cpu_update_interval": 4.0}, a_run(), False),
        ({"super_offload": True}, a_run(2), False),
    ],
)
def test_without_a_launcher_options_of_zero_mean_the_same_rows(
    options: dict[str, object], config: Configuration, legal: bool
) -> None:
    problem = replace(
        asked(nodes=config.num_gpus // 4, batch=config.global_batch_size, **options), launcher="none"
    )
    able = launcher_capabilities("none")
    assert (own_faults(problem, able, [config]) == [[]]) == legal
    assert (list(launcher_faults(problem, config)) == []) == legal


@seldom
def test_a_search_over_the_new_switches_finds_what_every_combination_has_best() -> None:
    """Brute force: each combination of settings as a request of its own."""
    allow = ("secondary_shards", "quantized_weights", "quantized_gradients")
    problem = asked(batch=64)
    profile = default_profile(problem.cluster, "deepspeed")
    found = ask(replace(problem, options=replace(problem.options, allow=allow)), profile)
    every = []
    for near, weights, gradients in product((1.0, 4.0, 8.0, 16.0), (False, True), (False, True)):
        stated = {"secondary_shard_size": near, "quantized_gathers": weights,
                  "quantized_reductions": gradients}  # fmt: skip
        one = ask(replace(problem, workload=replace(problem.workload, framework_options=stated)), profile)
        every += [plan.prediction.step_time_s for plan in one.plans[:1]]
    assert found.plans[0].prediction.step_time_s == pytest.approx(min(every))
    assert (
        found.plans[0].prediction.step_time_s < 0.9 * ask(problem, profile).plans[0].prediction.step_time_s
    )
