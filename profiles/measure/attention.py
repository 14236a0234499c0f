"""Causal scaled dot-product attention of a shard's heads."""

from __future__ import annotations

from profiles.measure.blocks import causal_attention
from profiles.measure.device import Device
from profiles.measure.shard import Shard
from profiles.measure.task import Label
from profiles.measure.timing import Effort, timed, timed_backward
from profiles.measured_profile import Measurement

BACKWARD_PRODUCTS = (
    2.5  # five products for the forward pass's two: FlashAttention-2 (arXiv:2307.08691, 3.1)
)


def attention_shape(shard: Shard) -> dict[str, int]:
    """The sizes that decide the time."""
    return {
        "batch": shard.micro_batch_size,
        "heads": shard.heads,
        "kv_heads": shard.kv_heads,
        "head_dim": shard.model.head_dim,
        "v_head_dim": shard.model.v_head_dim,
        "seq_length": shard.seq_length,
    }


def measure_attention(shard: Shard, label: Label, device: Device, effort: Effort) -> list[Measurement]:
    """Forward and backward over whole sequences."""
    model, batch, seq = shard.model, shard.micro_batch_size, shard.seq_length
    q = device.random(batch, shard.heads, seq, model.head_dim, learned=True)
    k = device.random(batch, shard.kv_heads, seq, model.head_dim, learned=True)
    v = device.random(batch, shard.kv_heads, seq, model.v_head_dim, learned=True)
    flops = shard.attention_flops()
    out = shard.tokens * shard.heads * model.v_head_dim
    moved = float((q.numel() + k.numel() + v.numel() + out) * device.element_bytes)
    backward = timed_backward(lambda: causal_attention(q, k, v, device), (q, k, v), device, effort)
    return [
        label.measured(
            "forward",
            timed(lambda: causal_attention(q, k, v, device), device, effort),
            flops=flops,
            moved_bytes=moved,
        ),
        label.measured("backward", backward, flops=BACKWARD_PRODUCTS * flops, moved_bytes=2 * moved),
    ]
