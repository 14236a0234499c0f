"""Once a step or after every micro-batch: what gradients and weights cost under each framework."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.collectives.collectives import Group, all_gather_s, all_reduce_s
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.memory import reducing_bytes
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout, RowPrices, assemble
from meshwright.solver.schedules.orders import Slots, slots_of
from meshwright.solver.schedules.schedule import in_flight
from tests.problems.pricing import GPT, a_layout, a_problem, a_profile

UNTIED = replace(GPT, tied_embeddings=False)
# of a GPT layer of width 1024: 4 h^2 of attention, 8 h^2 of the MLP, two norms of 1024 weights
LAYER = 12 * 1024**2 + 2 * 1024
SHARDED = {"data_parallel_size": 8, "zero_shard_size": 8, "num_microbatches": 8}
STAGES = {"pipeline_parallel_size": 2, "stage_layers": (2, 2), "pipeline_schedule": "1f1b"}
EXPOSED = {"gather_exposed": 1.0, "collective_latency_s": 0.0}


def priced(framework: str, **layout: object) -> tuple[RowPrices, Profile, Configuration]:
    """Prices of one row, of which no collective in a pass is hidden."""
    problem = a_problem(UNTIED)
    profile, row = a_profile(problem, framework, **EXPOSED), a_layout(**{**SHARDED, **layout})
    return price(problem, Columns.of([row]), profile), profile, row


def each_s(framework: str, **layout: object) -> float:
    """Seconds of data parallelism in the passes of one layer and micro-batch."""
    return float(priced(framework, **layout)[0].breakdown_s["data_parallel"][0, 0])


def once_s(framework: str, **layout: object) -> float:
    """Seconds of data parallelism of one layer once a step."""
    return float(priced(framework, **layout)[0].tail_breakdown_s["data_parallel"][0, 0])


def gathered_s(profile: Profile, element_bytes: float, *, stride: float = 1.0) -> float:
    """An all-gather (or a reduce-scatter) of one layer among the eight ranks of a node."""
    ring = Group(np.array([8.0]), np.array([stride]), profile.fabric)
    return float(all_gather_s(np.array([LAYER * element_bytes]), ring)[0])


def copied_s(profile: Profile, element_bytes: float) -> float:
    """One layer's bytes through memory."""
    return LAYER * element_bytes / (profile.group.gpu.hbm_bytes_per_s * profile.constants.hbm)


def all_reduced_s(profile: Profile, element_bytes: float) -> float:
    """One layer's part of an all-reduce of all four among the eight ranks of a node."""
    ring = Group(np.array([8.0]), np.ones(1), profile.fabric)
    return float(all_reduce_s(np.array([4 * LAYER * element_bytes]), ring)[0]) / 4


def test_torchs_pipelines_reduce_fp32_gradients_once_a_step_under_zero_2_and_3() -> None:
    # a reduce-scatter of 4 bytes a weight once, of which nothing is hidden; under ZeRO-2 nothing in passes
    for stage in (2, 3):
        prices, profile, _ = priced("fsdp", zero_stage=stage, **STAGES)
        once = prices.tail_breakdown_s["data_parallel"][0, 0]
        reduced, gathered = gathered_s(profile, 4), gathered_s(profile, 2)
        copied = copied_s(profile, 4 + 4 + 2 * 2)  # gradients into what travels, and weights out of it once
        assert reduced + copied < once < reduced + gathered + copied
    assert each_s("fsdp", zero_stage=2, **STAGES) == 0.0


def test_torchs_pipelines_gather_weights_once_for_each_micro_batch_under_zero_3() -> None:
    # not in both passes: weights stay from a backward pass to the next forward pass
    _, profile, _ = priced("fsdp", zero_stage=3, **STAGES)
    once = gathered_s(profile, 2) + copied_s(profile, 2 * 2)
    assert each_s("fsdp", zero_stage=3, **STAGES) == pytest.approx(once, rel=1e-3)


def test_torchtitan_without_stages_gathers_and_reduces_for_every_micro_batch() -> None:
    # ZeRO-2: 2 bytes gathered, 4 reduced; ZeRO-3: gathered twice. What is gathered is copied out of the
    # buffer that travelled (2 read, 2 written), gradients into theirs (2 read, 4 written)
    _, profile, _ = priced("fsdp", zero_stage=2)
    gather = gathered_s(profile, 2) + copied_s(profile, 2 + 2)
    reduce = gathered_s(profile, 4) + copied_s(profile, 2 + 4)
    assert each_s("fsdp", zero_stage=2) == pytest.approx(gather + reduce, rel=1e-3)
    assert each_s("fsdp", zero_stage=3) == pytest.approx(2 * gather + reduce, rel=1e-3)
    assert once_s("fsdp", zero_stage=2) == once_s("fsdp", zero_stage=3) == 0.0


def test_accelerate_gathers_as_torchtitan_and_reduces_bf16_gradients_once_a_step() -> None:
    _, profile, _ = priced("accelerate", zero_stage=3)
    gather = gathered_s(profile, 2) + copied_s(profile, 2 + 2)
    assert each_s("accelerate", zero_stage=2) == pytest.approx(gather, rel=1e-3)
    assert each_s("accelerate", zero_stage=3) == pytest.approx(2 * gather, rel=1e-3)
    assert 0.0 < once_s("accelerate", zero_stage=3) - copied_s(profile, 2 + 2) <= gathered_s(profile, 2)


def test_megatron_fsdp_reduces_in_every_pass_and_keeps_zero_2_weights_for_the_whole_step() -> None:
    _, profile, _ = priced("megatron-core", zero_stage=2)
    assert each_s("megatron-core", zero_stage=2) == pytest.approx(gathered_s(profile, 4), rel=1e-3)
    assert once_s("megatron-core", zero_stage=2) > 0.0


def test_deepspeed_all_reduces_below_stage_3_and_waits_for_it() -> None:
    # stage 1: an all-reduce of 2 bytes a weight and a gather of 2, once; stage 2 the former in every pass;
    # four layers fit one bucket of 500 M
    _, profile, _ = priced("deepspeed", zero_stage=2)
    reduced = all_reduced_s(profile, 2)
    assert each_s("deepspeed", zero_stage=1) == 0.0
    assert each_s("deepspeed", zero_stage=2) == pytest.approx(reduced, rel=1e-3)
    assert once_s("deepspeed", zero_stage=1) > once_s("deepspeed", zero_stage=2) > 0.0


def test_nanotron_waits_for_an_all_reduce_under_zero_1_and_copies_each_tensor_back_for_each_rank() -> None:
    # four layers travel together: an all-reduce of 4 bytes, a gather of 2; then 4 matrices and 2 norms are
    # copied back for each of 8 ranks, 6 microseconds each on a host that takes 0.85 of a DGX A100's
    _, profile, _ = priced("nanotron", zero_stage=1)
    copied = 6 * 8 * 6e-6 * 0.85
    expected = all_reduced_s(profile, 4) + gathered_s(profile, 2) + copied
    assert once_s("nanotron", zero_stage=1) == pytest.approx(expected, rel=0.1)


def test_nanotron_hides_reductions_under_the_last_backward_pass_without_zero() -> None:
    _, profile, _ = priced("nanotron", zero_stage=0, zero_shard_size=1)
    assert once_s("nanotron", zero_stage=0, zero_shard_size=1) < 0.3 * all_reduced_s(profile, 4)


def states_bytes(framework: str, **layout: object) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states for each weight of a layer."""
    prices = priced(framework, **layout)[0]
    columns = (prices.weights_bytes, prices.gradients_bytes, prices.optimizer_bytes)
    weights, gradients, optimizer = (float(column[0, 0]) / LAYER for column in columns)
    return weights, gradients, optimizer


def test_torchs_pipelines_keep_whole_fp32_gradients_and_whole_bf16_weights_beside_the_shards() -> None:
    # dp 8: fp32 shards and two moments, 12 / 8 = 1.5; bf16 weights, 2; fp32 gradients, 4: 7.5 either way
    assert states_bytes("fsdp", zero_stage=2, **STAGES) == pytest.approx((2.0, 4.0, 1.5))
    assert states_bytes("fsdp", zero_stage=3, **STAGES) == pytest.approx((2.5, 4.0, 1.0))


def test_without_stages_torchtitan_keeps_shards_of_gradients_and_accelerate_a_bf16_sum() -> None:
    # ZeRO-3 on dp 8: fp32 shards of weights and gradients .5 each, moments 1
    assert states_bytes("fsdp", zero_stage=3) == pytest.approx((0.5, 0.5, 1.0))
    assert states_bytes("accelerate", zero_stage=3) == pytest.approx((0.5, 2.0, 1.0))
    # of one micro-batch none is there before the backward pass, and then at most a shard of .5
    assert states_bytes("accelerate", zero_stage=3, num_microbatches=1)[1] <= 0.5


def reducing(framework: str, *, replayed: float, freed: float, **layout: object) -> tuple[float, float]:
    """Bytes at the head and at layers while gradients of 10 and of 100 weights are reduced."""
    problem, row = a_problem(UNTIED), a_layout(**{**SHARDED, "zero_stage": 2, **layout})
    ctx = context_of(problem, Columns.of([row]), a_profile(problem, framework))
    given = (np.array([bytes_]) for bytes_ in (10.0, 100.0, replayed, freed))
    at_head, at_layers = reducing_bytes(ctx, *given)
    return float(at_head[0]), float(at_layers[0])


def test_fsdp_holds_a_groups_whole_gradients_and_their_copy_while_it_drops_the_groups_weights() -> None:
    # head: 2 bytes of gradients, 4 of their copy, less 2 of weights: 4 * 10. Behind the last layer, whose
    # 50 bytes of activations are gone: 2 * 100 - 50 beside the head's (4 - 2) * 10; in its reduction, when
    # the head's copy is gone, too: (2 + 4 - 2) * 100 - 50 - 2 * 10
    assert reducing("fsdp", replayed=0.0, freed=50.0) == (40.0, 330.0)
    # replayed: the next one starts with 500 beside (4 - 2) * 100 of the last, whose checkpoint of 5 is gone
    assert reducing("fsdp", replayed=500.0, freed=5.0) == (40.0, 500 + 200 - 5 - 20)
    # bf16 sums of 8 micro-batches are states: what comes and goes is 2 * 100 of one layer
    assert reducing("accelerate", replayed=0.0, freed=50.0) == (20.0, 150.0)
    assert reducing("fsdp", replayed=0.0, freed=50.0, **STAGES) == (0.0, 0.0)
    assert reducing("deepspeed", replayed=0.0, freed=50.0) == (
        0.0,
        0.0,
    )  # whose bucket is among the buffers


def test_under_zero_3_the_heads_gradients_and_their_copy_are_held_beside_one_gathered_layer() -> None:
    # 2 ranks; beside two gathered layers and a layer's fp32 gradients, 2 * 2 * 1 + 4 * 1, which buffers
    # count: gradients of 100 and 4 bytes of their copy, and its shard, 4 / 2, beside one gathered layer
    head, layer = np.array([100.0]), np.array([1.0])
    problem, row = a_problem(UNTIED), a_layout(**{**SHARDED, "zero_stage": 3})
    ctx = context_of(problem, Columns.of([row]), a_profile(problem, "fsdp"))
    ranks = ctx.dense_replicas.sharing[0]
    at_head, at_layers = reducing_bytes(ctx, head, layer, np.array([7.0]), np.array([5.0]))
    assert at_head[0] == (2 + 4 + 4 / ranks) * 100 + 2 - 8
    # the last layer starts with 7 beside the copy of the head's, and two gathered layers
    assert at_layers[0] == 4 * 100 + 7 + 4 - 8
    # tied: weights and gradients of 2 bytes each until both ends' are added up, behind all activations
    tied = context_of(a_problem(GPT), Columns.of([row]), a_profile(problem, "fsdp"))
    at_head, at_layers = reducing_bytes(tied, head, layer, np.array([7.0]), np.array([5.0]))
    assert at_head[0] == 8 * 100 + 4 - 8 - 5 * GPT.num_layers
    assert at_layers[0] == 4 * 100 + 7 - 4


def gathers(schedule: str, chunks: int, count: int) -> float:
    """Gathers of one chunk in a step of ``count`` micro-batches on four stages under ZeRO-2."""
    row = a_layout(
        **{**SHARDED, "num_microbatches": count}, zero_stage=2, pipeline_parallel_size=4,
        virtual_pipeline_size=chunks, pipeline_schedule=schedule, stage_layers=(1,) * 4 * chunks,
    )  # fmt: skip
    problem = a_problem(UNTIED)
    ctx = context_of(problem, Columns.of([row]), a_profile(problem, "fsdp"))
    forward, backward = ctx.sharding.gathers_in_passes
    return float((ctx.sharding.gathers_once + count * (forward + backward))[0])


@pytest.mark.parametrize(
    ("schedule", "chunks", "count", "fetches"),
    [
        # UNSHARD actions of the first of four ranks, counted in the lists that torch 2.13's
        # _add_unshard_reshard writes: up to three chunks stay, more come and go with each group of four
        ("interleaved_1f1b", 3, 32, 3), ("interleaved_1f1b", 4, 8, 11), ("interleaved_1f1b", 4, 32, 23),
        ("interleaved_1f1b", 8, 16, 47), ("interleaved_1f1b", 12, 32, 151), ("interleaved_1f1b", 5, 4, 7),
        ("interleaved_zb", 4, 8, 9), ("interleaved_zb", 8, 32, 85), ("looped_bfs", 4, 8, 5),
    ],
)  # fmt: skip
def test_more_than_three_chunks_a_rank_come_and_go(
    schedule: str, chunks: int, count: int, fetches: int
) -> None:
    assert gathers(schedule, chunks, count) * chunks == pytest.approx(fetches)


@pytest.mark.parametrize(("chunks", "held"), [(2, 1), (3, 1), (4, 2), (5, 3), (8, 3)])
def test_zero_3_drops_chunks_in_forward_and_gathers_them_in_turn_in_backward(
    chunks: int, held: int
) -> None:
    # what meshwright verify saw torchtitan 0.3's first rank hold when a chunk's gradients were reduced:
    # the chunk, and of more than three those two that come next, but the first three gathered before
    row = a_layout(
        **SHARDED, zero_stage=3, pipeline_parallel_size=2, virtual_pipeline_size=chunks,
        pipeline_schedule="looped_bfs", stage_layers=(1,) * 2 * chunks,
    )  # fmt: skip
    problem = a_problem(UNTIED)
    for stage, expected in ((3, held), (2, min(chunks, 3))):  # ZeRO-2 drops none in a forward pass
        ctx = context_of(problem, Columns.of([replace(row, zero_stage=stage)]), a_profile(problem, "fsdp"))
        assert float(ctx.sharding.share_gathered[0]) * chunks == pytest.approx(expected)


def walked_bytes(row: Configuration, rank: int, prices: RowPrices, parts: list[list[int]]) -> float:
    """The most activations and gradients at once, pass by pass; ``parts`` are numbers of what chunks hold.

    A chunk has gradients from its first pass that makes some, and their shards behind its last one. A split
    backward pass makes them, and lets go of activations, in its second half.
    """
    p, v, m = row.pipeline_parallel_size, row.virtual_pipeline_size, row.num_microbatches
    numbers, left = Slots(num_chunks=p * v, num_microbatches=m), [m] * (p * v)
    kind = {numbers.forward(chunk, micro): ("F", chunk) for chunk in range(p * v) for micro in range(m)}
    last = numbers.weight if row.pipeline_schedule == "zb_v" else numbers.backward
    kind |= {last(chunk, micro): ("B", chunk) for chunk in range(p * v) for micro in range(m)}
    in_flight, gradients, most = [0] * (p * v), [0.0] * (p * v), 0.0

    def of(price: np.ndarray, chunk: int) -> float:
        return sum(float(price[0, part]) for part in parts[chunk])

    for slot in slots_of(rank, pp=p, vpp=v, num_microbatches=m, schedule=row.pipeline_schedule):
        done, chunk = kind.get(slot, ("input gradient", 0))
        if done == "F":
            in_flight[chunk] += 1
        elif done == "B":
            gradients[chunk] = of(prices.gradients_bytes, chunk)
        held = sum(count * of(prices.activation_bytes, one) for one, count in enumerate(in_flight))
        most = max(most, held + sum(gradients))
        if done == "B":
            in_flight[chunk] -= 1
            left[chunk] -= 1
            if not left[chunk]:
                gradients[chunk] = of(prices.reduced_gradients_bytes, chunk)
    return most


@pytest.mark.parametrize("zero_stage", [2, 3])
@pytest.mark.parametrize(
    ("schedule", "count", "split"),
    [
        ("looped_bfs", 4, (1, 3, 3, 1)),
        ("looped_bfs", 4, (3, 1, 1, 3)),
        ("looped_bfs", 1, (2, 2, 2, 2)),
        ("interleaved_1f1b", 2, (1, 3, 3, 1)),
        ("interleaved_1f1b", 2, (3, 1, 1, 3)),
        ("interleaved_1f1b", 8, (2, 2, 2, 2)),
        ("zb_v", 1, (2, 2, 2, 2)),
    ],
)
@pytest.mark.parametrize("tokens", [16, 512])
def test_chunks_whose_passes_stand_together_have_whole_gradients_in_turn(
    zero_stage: int, schedule: str, count: int, split: tuple[int, ...], tokens: int
) -> None:
    # torch 2.13 reduces behind the last backward pass of a chunk (schedules.py:1252 _add_reduce_grad): with
    # one group of micro-batches, or breadth first, before the next chunk's first; with few tokens what is
    # left when the embedding's gradient comes weighs more than the first moment's activations
    model = replace(UNTIED, num_layers=8)
    problem = a_problem(model, seq_length=tokens)
    row = a_layout(**{
        **SHARDED, "zero_stage": zero_stage, "num_microbatches": count, "pipeline_schedule": schedule,
        "pipeline_parallel_size": 2, "virtual_pipeline_size": 2, "stage_layers": split,
    })  # fmt: skip
    columns, layout = Columns.of([row]), LayerLayout.of(model)
    prices = price(problem, columns, a_profile(problem, "fsdp"))
    assert (prices.ranks_in_turn[0] > 0) == (schedule != "interleaved_1f1b" or count == 2)
    terms = assemble(prices, columns, layout, np.array([split])).memory_bytes
    parts = [[0] * layers for layers in split]
    parts[0].append(1)
    parts[-1].append(2)
    for rank in range(2):
        priced_bytes = terms["activations"][0, rank] + terms["gradients"][0, rank]
        assert priced_bytes == pytest.approx(walked_bytes(row, rank, prices, parts))
        # what refutes rows adds up to no more
        mine = (rank, 3 - rank) if schedule == "zb_v" else (rank, rank + 2)
        least = prices.state_bytes + np.outer(in_flight(columns)[0], prices.activation_bytes[0])[[*mine]]
        sums = sum(least[at, part] for at, chunk in enumerate(mine) for part in parts[chunk])
        priced_bytes += terms["weights"][0, rank] + terms["optimizer"][0, rank]
        assert sums <= priced_bytes * (1 + 1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_in_a_v_of_few_micro_batches_the_first_ranks_chunks_have_gradients_in_turn(count: int) -> None:
    # weight gradients of chunk 7 - r all stand before the first one of chunk r
    row = a_layout(**{
        **SHARDED, "zero_stage": 2, "num_microbatches": count, "pipeline_schedule": "zb_v",
        "pipeline_parallel_size": 4, "virtual_pipeline_size": 2, "stage_layers": (1,) * 8,
    })  # fmt: skip
    problem, numbers = a_problem(UNTIED), Slots(num_chunks=8, num_microbatches=count)
    in_turn = 0
    for rank in range(4):
        order = slots_of(rank, pp=4, vpp=2, num_microbatches=count, schedule="zb_v")
        second = max(order.index(numbers.weight(7 - rank, micro)) for micro in range(count))
        in_turn += second < min(order.index(numbers.weight(rank, micro)) for micro in range(count))
    ctx = context_of(problem, Columns.of([row]), a_profile(problem, "fsdp"))
    assert ctx.sharding.ranks_in_turn[0] == in_turn
    megatron = context_of(problem, Columns.of([row]), a_profile(problem, "megatron-core"))
    assert megatron.sharding.ranks_in_turn[0] == 0  # its buffers of gradients stay
