"""Operators: the passes that are timed, and what they compute."""

import pytest

from meshwright.profiles.measure.device import Device, open_device
from meshwright.profiles.measure.layer import causal_attention, rotated, rotations
from meshwright.profiles.measure.operators import (
    attention_shape,
    measure_attention,
    measure_gemm,
    measure_memory_bound,
    memory_bound_makers,
)
from meshwright.profiles.measure.shard import Shard, ShardGemm
from meshwright.profiles.measure.timing import QUICK, Label, timed_with
from meshwright.profiles.measured.profile import Dtype
from tests.problems.measured_profiles import TINY

SHARD = Shard(model=TINY, tensor_parallel_size=2, expert_parallel_size=1, micro_batch_size=2, seq_length=32)
LABEL = Label(task="t", group="gemm", operator="o", shape={})


@pytest.mark.parametrize("experts", [1, 3])
def test_a_gemm_has_three_passes_of_the_same_work(experts: int) -> None:
    device = open_device("cpu", dtype="bf16")
    measured = measure_gemm(ShardGemm(operator="o", m=8, n=16, k=32, experts=experts), LABEL, device, QUICK)
    assert [one.kind for one in measured] == ["forward", "input_gradient", "weight_gradient"]
    # 2 · 8 · 16 · 32 FLOPs; (8·32 + 16·32 + 8·16) elements of 2 bytes
    assert {one.work_flops for one in measured} == {experts * 8192}
    assert {one.moved_bytes for one in measured} == {experts * 896 * 2}
    assert all(0 < one.timing.p10_s <= one.timing.median_s <= one.timing.p90_s for one in measured)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_attention_has_two_passes(dtype: Dtype) -> None:
    measured = measure_attention(SHARD, LABEL, open_device("cpu", dtype=dtype), QUICK)
    # 2 heads of 16 + 16, 2 · 32 queries that see 16.5 keys on average, 2 FLOPs each
    flops = 2 * 2 * (16 + 16) * 64 * 16.5
    assert [(one.kind, one.work_flops) for one in measured] == [
        ("forward", flops),
        ("backward", 2.5 * flops),
    ]
    assert attention_shape(SHARD)["kv_heads"] == 1


def test_grouped_queries_share_their_key(cpu: Device) -> None:
    q, k, v = cpu.random(1, 4, 8, 16), cpu.random(1, 2, 8, 16), cpu.random(1, 2, 8, 16)
    k_twice, v_twice = (one.repeat_interleave(2, dim=1) for one in (k, v))
    assert cpu.torch.allclose(
        causal_attention(q, k, v, cpu), causal_attention(q, k_twice, v_twice, cpu), atol=1e-5
    )


def test_rotary_embedding_turns_by_the_position_alone(cpu: Device) -> None:
    cosines, sines = rotations(8, 16, cpu)
    x = cpu.random(1, 1, 1, 16).expand(1, 1, 8, 16)
    turned = rotated(x, cosines, sines, cpu)
    assert cpu.torch.allclose(turned[..., 0, :], x[..., 0, :])
    lengths = turned.norm(dim=-1)
    assert cpu.torch.allclose(lengths, lengths[..., :1].expand_as(lengths), rtol=1e-4)
    scores = turned @ turned.mT  # depend on the distance of two positions only
    assert cpu.torch.allclose(scores[..., 0, 3], scores[..., 4, 7], rtol=1e-4)


@pytest.mark.parametrize(
    ("operator", "passes", "moved_bytes"),
    [
        # 64 tokens · 64 wide, bf16: 8192 bytes an activation
        ("rmsnorm", ["forward", "backward"], [2 * 8192, 3 * 8192]),
        ("residual", ["forward"], [3 * 8192]),
        # 128 / 2 columns: two in and one out; backward reads those three, writes two
        ("swiglu", ["forward", "backward"], [3 * 8192, 5 * 8192]),
        # 2 heads of 16 on this rank: 4096 bytes
        ("rope", ["forward", "backward"], [2 * 4096, 2 * 4096]),
        # 512 / 2 logits a token
        ("cross_entropy", ["forward", "backward"], [32768, 2 * 32768]),
    ],
)
def test_memory_bound_operators_tell_their_least_traffic(
    operator: str, passes: list[str], moved_bytes: list[int]
) -> None:
    device = open_device("cpu", dtype="bf16")
    make = memory_bound_makers(TINY)[operator]
    measured = measure_memory_bound(make, SHARD, LABEL, device, QUICK)
    assert [one.kind for one in measured] == passes
    assert [one.moved_bytes for one in measured] == moved_bytes


def test_what_is_prepared_is_not_timed(cpu: Device) -> None:
    made: list[int] = []

    def prepare() -> int:
        cpu.torch.randn(400, 400) @ cpu.torch.randn(400, 400)
        made.append(len(made))
        return made[-1]

    used: list[int] = []
    timing = timed_with(prepare, used.append, cpu, QUICK)
    assert used == made  # each repeat, warm-up included, has its own
    assert len(used) == timing.repeats + QUICK.warmups
    assert timing.host_s is None
