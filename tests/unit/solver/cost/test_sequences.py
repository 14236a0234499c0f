"""Rows of a sequence on its ranks, and documents of unequal length against steps that draw their own."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwright.profiles.capabilities import packing_multiple
from meshwright.profiles.collectives.collectives import point_to_point_s
from meshwright.profiles.model_parts import MlaSpec
from meshwright.profiles.sequences import SequenceLengths
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.communication import sent_bytes, shape_message_s, transfer, unequal_attention
from meshwright.solver.cost.compute import core_attention, layer_gemms
from meshwright.solver.cost.context import PassSeconds, context_of
from meshwright.solver.cost.objective import weighing_of
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_model
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

ROOT = Path(__file__).parents[4]
SEQ = 32768
LONG_TAIL = ((0.0, 1), (50.0, 900), (90.0, 4000), (100.0, SEQ))
Array = NDArray[np.float64]


def packed(problem: Problem, batching: str = "packing") -> Problem:
    """The problem on documents with a long tail."""
    lengths = SequenceLengths(batching=batching, percentiles=LONG_TAIL)  # type: ignore[arg-type]
    return replace(problem, workload=replace(problem.workload, lengths=lengths))


# ------------------------------------------------------------- the simulation, which shares nothing


@cache
def drawn_pairs(sequences: int = 3000, seed: int = 1) -> Array:
    """Pairs of query and key in sequences of drawn documents, packed first-fit."""
    chance = np.random.default_rng(seed)
    percents, tokens = zip(*LONG_TAIL, strict=True)
    free, pairs = np.full(2 * sequences, SEQ), np.zeros(2 * sequences)
    while free[:sequences].sum() > 0.01 * SEQ * sequences:
        drawn = np.interp(chance.random(512) * 100, percents, tokens).astype(int)
        for length in np.sort(drawn)[::-1]:
            at = np.argmax(free >= length)
            if free[at] >= length:
                free[at] -= length
                pairs[at] += length * (length + 1) / 2
    return np.asarray(chance.permutation(pairs[:sequences]))


def steps(count: int, replicas: int, m: int, size: int, *, seed: int = 2) -> Array:
    """Work of micro-batches in drawn steps, (count, replicas, m): means of their sequences."""
    drawn = np.random.default_rng(seed).choice(
        drawn_pairs() / drawn_pairs().mean(), (count, replicas, m, size)
    )
    return np.asarray(drawn.mean(axis=3))


def one_forward_one_backward_s(work: Array, stages: int) -> Array:
    """End of a 1F1B pipeline whose micro-batch j takes work[..., j] a stage, a third of it forward."""
    m, never = work.shape[-1], np.full(work.shape[:-1], np.nan)
    ahead, back = [[[never] * m for _ in range(stages)] for _ in range(2)]
    clock = [np.zeros(work.shape[:-1]) for _ in range(stages)]
    order = []
    for stage in range(stages):
        early = min(stages - stage, m)
        turns = [("F", j) for j in range(early)]
        for j in range(m):
            turns += [("B", j)] + ([("F", j + early)] if j + early < m else [])
        order.append(turns)
    while any(order):
        for stage, turns in enumerate(order):
            while turns:
                kind, j = turns[0]
                if kind == "F":
                    ready = ahead[stage - 1][j] if stage else np.zeros(work.shape[:-1])
                else:
                    ready = back[stage + 1][j] if stage + 1 < stages else ahead[stage][j]
                if np.isnan(ready).any():
                    break
                share = 1 / 3 if kind == "F" else 2 / 3
                clock[stage] = np.maximum(clock[stage], ready) + share * work[..., j]
                (ahead if kind == "F" else back)[stage][j] = clock[stage]
                turns.pop(0)
    return np.asarray(np.max(clock, axis=0))


# ------------------------------------------------------------- held against the price


def waiting_share(configuration: Configuration) -> float:
    """What is waited for over attention's own time."""
    problem = packed(a_problem(a_model(num_layers=4), cluster=a_cluster(num_nodes=16), seq_length=SEQ))
    ctx = context_of(problem, Columns.of([configuration]), a_profile(problem))
    one = np.ones(1)
    return float(unequal_attention(ctx, PassSeconds(forward=one, backward=one)).forward[0])


def test_packed_attention_takes_the_share_of_pairs_that_documents_have() -> None:
    # all pairs of a causal sequence: SEQ (SEQ + 1) / 2; shorter documents run below the rate of long ones
    whole = a_problem(a_model(), seq_length=SEQ)
    columns, profile = Columns.of([a_layout(stage_layers=(80,))]), a_profile(whole)
    equal, unequal = (
        core_attention(context_of(one, columns, profile)).forward[0] for one in (whole, packed(whole))
    )
    share = drawn_pairs().mean() / (SEQ * (SEQ + 1) / 2)
    assert share * 0.99 < unequal / equal < share * 1.25


@pytest.mark.parametrize(("replicas", "m", "size"), [(8, 8, 1), (64, 16, 2), (4, 8, 2)])
def test_replicas_wait_for_the_busiest_of_them_once_a_step(replicas: int, m: int, size: int) -> None:
    layout = a_layout(data_parallel_size=replicas, num_microbatches=m, micro_batch_size=size)
    busiest = steps(400, replicas, m, size).mean(axis=2).max(axis=1).mean()
    assert waiting_share(layout) == pytest.approx(busiest - 1.0, rel=0.1)


def test_under_zero_3_they_wait_in_every_micro_batch() -> None:
    layout = a_layout(data_parallel_size=16, num_microbatches=8, zero_stage=3, zero_shard_size=16)
    busiest = steps(400, 16, 8, 1).max(axis=1).mean()
    assert waiting_share(layout) == pytest.approx(busiest - 1.0, rel=0.1)


@pytest.mark.parametrize(("stages", "m"), [(2, 16), (4, 8), (4, 32), (8, 32), (8, 64)])
def test_stages_wait_for_the_slowest_micro_batch_in_flight(stages: int, m: int) -> None:
    # an even pipeline of mean work ends after m + p - 1
    layout = a_layout(pipeline_parallel_size=stages, num_microbatches=m, stage_layers=(4,) * stages)
    end = one_forward_one_backward_s(steps(60, 1, m, 1)[:, 0], stages).mean()
    assert 1.0 + waiting_share(layout) == pytest.approx(end / (m + stages - 1), rel=0.12)


def a_question(*, lengths: bool) -> Problem:
    """Which of context parallelism and micro-batches to take, with all else fixed."""
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    found = a_problem(model, cluster=a_cluster(num_nodes=4), seq_length=SEQ)
    pin = {"tensor_parallel_size": 4, "pipeline_parallel_size": 1, "zero_stage": 1}
    forbid: dict[str, tuple[int | str, ...]] = {"recompute_granularity": ("full", "selective")}
    options = replace(found.options, pin=pin, forbid=forbid, certify="none")
    found = replace(found, launcher="none", options=options)
    return packed(found) if lengths else found


def first_of(problem: Problem) -> Configuration:
    return search(problem, a_profile(problem)).plans[0].config


def drawn_step_s(problem: Problem, config: Configuration) -> float:
    """A step of one stage by drawing documents: the rest of an even step, and attention by drawn pairs."""
    even = replace(problem, workload=replace(problem.workload, lengths=None))
    profile = a_profile(even)
    attention = core_attention(context_of(even, Columns.of([config]), profile))
    each = float(attention.forward[0] + attention.backward[0])
    whole = each * config.num_microbatches * problem.model.num_layers
    shares = steps(400, config.data_parallel_size, config.num_microbatches, config.micro_batch_size)
    busiest = shares.mean(axis=2).max(axis=1).mean() * drawn_pairs().mean() / (SEQ * (SEQ + 1) / 2)
    return predict(even, profile, config).step_time_s - whole * (1.0 - float(busiest))


def test_unequal_documents_turn_the_choice_between_slices_and_micro_batches() -> None:
    """Fewer replicas wait less; with whole sequences slices only cost their ring."""
    equal, unequal = first_of(a_question(lengths=False)), first_of(a_question(lengths=True))
    assert (equal.context_parallel_size, equal.micro_batch_size) == (1, 1)
    assert unequal.context_parallel_size > 1
    problem, profile = a_question(lengths=True), a_profile(a_question(lengths=True))
    for config in (equal, unequal):
        assert predict(problem, profile, config).step_time_s == pytest.approx(
            drawn_step_s(problem, config), rel=0.08
        )  # shorter documents run below the rate of long ones
    assert drawn_step_s(problem, unequal) < drawn_step_s(problem, equal)


def test_padding_keeps_the_step_and_loses_the_tokens() -> None:
    config = first_of(a_question(lengths=False))
    even = a_question(lengths=False)
    whole, padded, filled = (
        predict(one, a_profile(one), config) for one in (even, packed(even, "padding"), packed(even))
    )
    percents, tokens = zip(*LONG_TAIL, strict=True)
    share = np.interp(np.linspace(0, 100, 100_001), percents, tokens).mean() / SEQ
    assert padded.step_time_s == pytest.approx(whole.step_time_s)
    assert padded.tokens_per_s_per_gpu == pytest.approx(share * whole.tokens_per_s_per_gpu, rel=1e-3)
    assert filled.tokens_per_s_per_gpu > whole.tokens_per_s_per_gpu > padded.tokens_per_s_per_gpu
    assert padded.mfu < filled.mfu


@pytest.mark.parametrize(
    ("launcher", "tp", "cp", "multiple"),
    [
        ("megatron-lm", 8, 1, 1),  # no rings, nothing to fill up
        ("megatron-lm", 8, 2, 4),
        ("ms-swift", 1, 8, 16),
        ("megatron-bridge", 8, 1, 8),  # 1 token a tensor rank
        ("megatron-bridge", 4, 3, 12),  # of 2 * 3 and of 3 * 4
        ("megatron-bridge", 1, 4, 8),
    ],
)
def test_documents_are_filled_up_to_what_ranks_share_out(
    launcher: str, tp: int, cp: int, multiple: int
) -> None:
    assert packing_multiple(launcher, tp, cp, sequence_parallel=tp > 1) == multiple


def test_short_documents_on_many_slices_are_fewer_real_tokens_in_the_same_step() -> None:
    # 100 tokens each are filled up to 128 = 4 * 2 * 16 on 16 ranks of context parallelism
    short = SequenceLengths(histogram=((100, 1.0),))
    problem = a_question(lengths=True)
    problem = replace(problem, workload=replace(problem.workload, lengths=short))
    few, many = (
        a_layout(
            tensor_parallel_size=2, context_parallel_size=cp, data_parallel_size=16 // cp,
            num_microbatches=4 * cp, stage_layers=(32,),
        )
        for cp in (1, 16)
    )  # fmt: skip
    assert problem.tokens_of(few) == pytest.approx(64 * SEQ, rel=1.5e-2)
    assert problem.tokens_of(many) == pytest.approx(64 * SEQ * 100 / 128, rel=1.5e-2)
    scales = weighing_of(
        replace(problem, options=replace(problem.options, objective="tokens_per_s_per_gpu")),
        a_profile(problem), Columns.of([few, many]),
    ).scale  # fmt: skip
    assert scales[1] / scales[0] == pytest.approx(problem.tokens_of(few) / problem.tokens_of(many))
    found = predict(problem, a_profile(problem), many)
    rate = problem.tokens_of(many) / 32 / found.step_time_s
    assert found.tokens_per_s_per_gpu == pytest.approx(rate)


@pytest.mark.parametrize(("replicas", "stages", "size"), [(8, 1, 1), (8, 1, 4), (2, 4, 2)])
def test_padded_to_its_longest_document_a_micro_batch_takes_as_long_as_that(
    replicas: int, stages: int, size: int
) -> None:
    """Against the price of whole micro-batches of drawn lengths, each for itself."""
    layout = a_layout(
        pipeline_parallel_size=stages, data_parallel_size=replicas, micro_batch_size=size,
        num_microbatches=16, stage_layers=(32 // stages,) * stages,
    )  # fmt: skip
    even = a_question(lengths=False)
    found = step_and_passes_s(packed(even, "padding_to_longest"), layout)
    percents, tokens = zip(*LONG_TAIL, strict=True)
    drawn = np.random.default_rng(3).random((200, replicas, 16, size))
    longest = np.interp(drawn * 100, percents, tokens).max(axis=3)
    at = np.geomspace(1, SEQ, 24)
    price_s = [step_and_passes_s(replace_seq(even, round(one)), layout)[1] for one in at.tolist()]
    each = np.interp(longest, np.rint(at), price_s) / 16
    drawn_s = one_forward_one_backward_s(each, stages).max(axis=1).mean()
    assert found[1] == pytest.approx(each.sum(axis=2).mean(), rel=0.02)
    assert found[0] == pytest.approx(drawn_s + found[2], rel=0.06)
    assert found[0] < step_and_passes_s(packed(even, "padding"), layout)[0]


@pytest.mark.parametrize("chunks", [1, 2])
def test_micro_batches_of_unlike_length_say_their_shape_ahead_and_hide_no_transfer(chunks: int) -> None:
    # a message of three sizes before that of the activations, as long on the mean as documents are
    layout = a_layout(
        pipeline_parallel_size=4, virtual_pipeline_size=chunks, stage_layers=(4,) * 4 * chunks
    )
    even = a_question(lengths=False)
    ctx, equal = (
        context_of(one, Columns.of([layout]), a_profile(one))
        for one in (packed(even, "padding_to_longest"), even)
    )
    percents, tokens = zip(*LONG_TAIL, strict=True)
    share = np.interp(np.linspace(0, 100, 100_001), percents, tokens).mean() / SEQ
    sent = float(sent_bytes(equal)[0]) * share
    alone = [
        point_to_point_s(np.array([size]), ctx.placement.block, ctx.p, ctx.fabric)[0]
        for size in (24.0, sent)
    ]
    assert transfer(ctx)[0] == pytest.approx(sum(alone) * ctx.constants.transfer_exposed, rel=1e-2)


def test_shapes_before_every_message_would_take_less_than_a_fifth_of_a_per_cent_of_deepseek_v3() -> None:
    """What Megatron-Core sends where prediction layers stand alone, which no price has."""
    raw = read_problem_file(ROOT / "benchmarks" / "problems" / "deepseek-v3-2048-h100.json")
    problem = parse_problem(raw)
    problem = replace(problem, options=replace(problem.options, standalone_stages=True))
    best = a_layout(
        tensor_parallel_size=2, pipeline_parallel_size=16, virtual_pipeline_size=4, expert_parallel_size=8,
        data_parallel_size=64, zero_stage=1, zero_shard_size=64, micro_batch_size=3, num_microbatches=80,
        recompute_granularity="full", recompute_layers=61, stage_layers=(0, *(1,) * 61, 0, 0),
    )  # fmt: skip
    profile = a_profile(problem)
    each = float(shape_message_s(context_of(problem, Columns.of([best]), profile))[0])
    messages = 2 * (
        best.num_microbatches * 4 + best.pipeline_parallel_size
    )  # of a rank, and to fill the pipeline
    assert 0.001 < messages * each / predict(problem, profile, best).step_time_s < 0.002


def replace_seq(problem: Problem, seq_length: int) -> Problem:
    """The problem on sequences of another length."""
    return replace(problem, workload=replace(problem.workload, seq_length=seq_length))


def step_and_passes_s(problem: Problem, config: Configuration) -> tuple[float, float, float]:
    """A step; all passes of a stage, without waiting; and what follows the last one."""
    profile = a_profile(problem)
    prices, p = price(problem, Columns.of([config]), profile), config.pipeline_parallel_size
    parts = np.append(LayerLayout.of(problem.model).cumulative[-1] / p, (1.0 / p, 1.0 / p))
    passes = sum(
        float((value @ parts)[0]) for name, value in prices.breakdown_s.items() if name != "unequal_lengths"
    )
    step_s = predict(problem, profile, config).step_time_s
    return step_s, config.num_microbatches * passes, float(prices.tail_s[0] @ parts + prices.fixed_s[0])


def test_what_is_waited_for_is_a_cause_of_its_own_and_the_causes_make_up_the_step() -> None:
    problem = a_question(lengths=True)
    found = predict(problem, a_profile(problem), first_of(problem))
    assert found.time_breakdown_s["unequal_lengths"] > 0.0
    assert sum(found.time_breakdown_s.values()) == pytest.approx(found.step_time_s)


def test_torchtitans_tensor_ranks_project_every_row_to_latents() -> None:
    # of two ranks with sequence parallel: Megatron-Core's read half of the rows, then gather the latents
    mla = MlaSpec(q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)
    model = replace(GPT, num_kv_heads=GPT.num_attention_heads, head_dim=48, mla=mla)
    row = a_layout(tensor_parallel_size=2, sequence_parallel=True)
    for framework, share in (("megatron-core", 0.5), ("fsdp", 1.0)):
        problem = a_problem(model)
        ctx = context_of(problem, Columns.of([row]), a_profile(problem, framework))
        up, down, *_ = layer_gemms(ctx, "dense", "attention")
        assert (float(down.m[0]), down.n) == (share * float(up.m[0]), 64)
