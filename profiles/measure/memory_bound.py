"""Operators that memory bandwidth bounds: norm, residual, activation, rotary embedding, loss.

``moved_bytes`` is the least traffic: every input read once, every output written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiles.measure.blocks import activation_of, norm_of, rotated, rotations
from profiles.measure.device import Device, Tensor
from profiles.measure.shard import Shard
from profiles.measure.task import Label
from profiles.measure.timing import Effort, timed, timed_backward
from profiles.measured_profile import Measurement
from profiles.model import ModelSpec


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
    """The operators of a model, by name."""
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
    """Forward and, where it costs anything, backward."""
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
    """Forward reads x, writes y; backward reads x and dy, writes dx."""
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
    """Reads two, writes one; its backward pass hands the gradient on."""
    x = device.random(shard.tokens, shard.model.hidden_size)
    y = device.random(shard.tokens, shard.model.hidden_size)
    return Operator(run=lambda: x + y, inputs=(), elements=x.numel(), forward_passes=3, backward_passes=0)


def _activation(shard: Shard, device: Device) -> Operator:
    """Of ``inputs`` to one output: reads them and writes it; backward reads both, writes the gradients."""
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
    """Of the queries: reads and writes them once, in either pass."""
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
    """Over this rank's vocabulary, in fp32: reads the logits; backward reads them and writes gradients."""
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
