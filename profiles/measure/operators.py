"""Operators that memory bandwidth bounds: norm, residual, activation, rotary embedding, loss.

``moved_bytes`` is the least traffic: every input read once, every output written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.profiles.measure.device import Device, Tensor
from meshwright.profiles.measure.layer import (
    GROUP_MULTIPLE,
    activation_of,
    causal_attention,
    ends_of,
    norm_of,
    rotated,
    rotations,
)
from meshwright.profiles.measure.shard import Shard, ShardGemm
from meshwright.profiles.measure.timing import Effort, Label, timed, timed_backward
from meshwright.profiles.measured.profile import Measurement
from meshwright.profiles.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator with its inputs; passes move whole multiples of ``elements``."""

    run: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]  # gradients wanted; none: only the forward pass costs anything
    elements: int  # of one activation
    forward_passes: int  # activations read and written by the forward pass
    backward_passes: int


Maker = Callable[[Shard, Device], Operator]


def memory_bound_makers(model: ModelSpec) -> Mapping[str, Maker]:
    """Return the operators of a model, by name."""
    makers: dict[str, Maker] = {
        model.norm_kind: _norm,
        "residual": _residual,
        "swiglu" if model.gated_mlp else "gelu": _activation,
        "cross_entropy": _cross_entropy,
    }
    return makers if model.learned_position_embeddings else {**makers, "rope": _rope}


def measure_memory_bound(
    make: Maker, shard: Shard, label: Label, device: Device, effort: Effort
) -> list[Measurement]:
    """Time forward and, where it costs anything, backward."""
    operator = make(shard, device)
    activation_bytes = float(operator.elements * device.element_bytes)
    forward = label.measured(
        "forward",
        timed(operator.run, device, effort),
        moved_bytes=operator.forward_passes * activation_bytes,
    )
    if not operator.inputs:
        return [forward]
    backward = label.measured(
        "backward",
        timed_backward(operator.run, operator.inputs, device, effort),
        moved_bytes=operator.backward_passes * activation_bytes,
    )
    return [forward, backward]


def _norm(shard: Shard, device: Device) -> Operator:
    """Return the norm; forward reads x, writes y; backward reads x and dy, writes dx."""
    norm = norm_of(shard.model, device)
    x = device.random(shard.tokens, shard.model.hidden_size, learned=True)
    weight = device.random(shard.model.hidden_size, learned=True)
    return Operator(
        run=lambda: norm(x, weight),
        inputs=(x, weight),
        elements=x.numel(),
        forward_passes=2,
        backward_passes=3,
    )


def _residual(shard: Shard, device: Device) -> Operator:
    """Return the residual; forward reads two, writes one; its backward pass hands the gradient on."""
    x = device.random(shard.tokens, shard.model.hidden_size)
    y = device.random(shard.tokens, shard.model.hidden_size)
    return Operator(run=lambda: x + y, inputs=(), elements=x.numel(), forward_passes=3, backward_passes=0)


def _activation(shard: Shard, device: Device) -> Operator:
    """Return the activation; forward reads x, writes y; backward reads both, writes gradients."""
    activation = activation_of(shard.model, device)
    inputs = shard.model.mlp_matrices - 1
    columns = shard.model.ffn_hidden_size // shard.tensor_parallel_size
    x = device.random(shard.tokens, inputs * columns, learned=True)
    return Operator(
        run=lambda: activation(x),
        inputs=(x,),
        elements=shard.tokens * columns,
        forward_passes=inputs + 1,
        backward_passes=2 * inputs + 1,
    )


def _rope(shard: Shard, device: Device) -> Operator:
    """Return the rotation of the queries, which reads and writes them once in either pass."""
    mla = shard.model.mla
    head_dim = mla.qk_rope_head_dim if mla else shard.model.head_dim
    cosines, sines = rotations(shard.seq_length, head_dim, device)
    x = device.random(shard.micro_batch_size, shard.heads, shard.seq_length, head_dim, learned=True)
    return Operator(
        run=lambda: rotated(x, cosines, sines, device),
        inputs=(x,),
        elements=x.numel(),
        forward_passes=2,
        backward_passes=2,
    )


def _cross_entropy(shard: Shard, device: Device) -> Operator:
    """Return this rank's fp32 loss; forward reads logits; backward reads them, writes gradients."""
    torch = device.torch
    logits = device.random(shard.tokens, shard.vocab, learned=True)
    labels = torch.randint(shard.vocab, (shard.tokens,), device=device.name)
    return Operator(
        run=lambda: torch.nn.functional.cross_entropy(logits.float(), labels),
        inputs=(logits,),
        elements=logits.numel(),
        forward_passes=1,
        backward_passes=2,
    )


# --------------------------------------------------------------------------------------------------
# Causal scaled dot-product attention of a shard's heads.


BACKWARD_PRODUCTS = (
    2.5  # five products for the forward pass's two: FlashAttention-2 (arXiv:2307.08691, 3.1)
)


def attention_shape(shard: Shard) -> dict[str, int]:
    """Return the sizes that decide the time."""
    return {
        "batch": shard.micro_batch_size,
        "heads": shard.heads,
        "kv_heads": shard.kv_heads,
        "head_dim": shard.model.head_dim,
        "v_head_dim": shard.model.v_head_dim,
        "seq_length": shard.seq_length,
    }


def measure_attention(shard: Shard, label: Label, device: Device, effort: Effort) -> list[Measurement]:
    """Time forward and backward over whole sequences."""
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


# --------------------------------------------------------------------------------------------------
# Matrix products of a layer's shard: Y = X W', dX = dY W and dW = dY' X.


def measure_gemm(gemm: ShardGemm, label: Label, device: Device, effort: Effort) -> list[Measurement]:
    """Time forward, input gradient and weight gradient; several experts grouped or as one batch.

    W is stored (n, k), as torch.nn.Linear stores it, so the three products read their operands in the
    layouts that training does.
    """
    batch = (gemm.experts,) if gemm.experts > 1 else ()
    x = device.random(*batch, gemm.m, gemm.k)
    w = device.random(*batch, gemm.n, gemm.k, scale=gemm.k**-0.5)
    dy = device.random(*batch, gemm.m, gemm.n)
    passes = _grouped_passes(gemm, x, w, dy, device) if gemm.experts > 1 else None
    if passes is None:
        matmul = device.torch.matmul
        passes = {
            "forward": lambda: matmul(x, w.mT),
            "input_gradient": lambda: matmul(dy, w),
            "weight_gradient": lambda: matmul(dy.mT, x),
        }
    elements = gemm.experts * (gemm.m * gemm.k + gemm.n * gemm.k + gemm.m * gemm.n)
    return [
        label.measured(
            kind,
            timed(run, device, effort),
            flops=gemm.flops,
            moved_bytes=float(elements * device.element_bytes),
        )
        for kind, run in passes.items()
    ]


def _grouped_passes(
    gemm: ShardGemm, x: Tensor, w: Tensor, dy: Tensor, device: Device
) -> dict[str, Callable[[], Tensor]] | None:
    """Return the three products of all experts in one kernel each; None where torch has none for these."""
    product = device.grouped_product
    if product is None or gemm.m % GROUP_MULTIPLE:
        return None
    ends, rows, gradients = ends_of(gemm.experts, gemm.m, device), x.flatten(0, 1), dy.flatten(0, 1)
    return {
        "forward": lambda: product(rows, w.mT, offs=ends),
        "input_gradient": lambda: product(gradients, w, offs=ends),
        "weight_gradient": lambda: product(gradients.mT, rows, offs=ends),
    }
