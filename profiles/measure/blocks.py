"""The parts of a layer that are no matrix products, written as plain torch expressions.

They run as torch runs them without a compiler: one kernel for each step. A framework that fuses them moves
fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from profiles.measure.device import Device, Tensor
from profiles.model import ModelSpec

ROPE_BASE = 10_000.0  # RoFormer (arXiv:2104.09864, section 3.3); the value does not change the time
EPSILON = 1e-5  # of norms, as Llama's


def norm_of(model: ModelSpec, device: Device) -> Callable[[Tensor, Tensor], Tensor]:
    """The model's norm over the last dimension: ``norm(x, weight)``."""
    functional = device.torch.nn.functional
    apply = functional.rms_norm if model.norm_kind == "rmsnorm" else functional.layer_norm
    return lambda x, weight: apply(x, weight.shape, weight, eps=EPSILON)


def activation_of(model: ModelSpec, device: Device) -> Callable[[Tensor], Tensor]:
    """SwiGLU (arXiv:2002.05202) of gate and up side by side, or GELU."""
    functional = device.torch.nn.functional
    if not model.gated_mlp:
        return lambda x: functional.gelu(x, approximate="tanh")

    def swiglu(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up

    return swiglu


def rotations(seq_length: int, head_dim: int, device: Device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary embeddings (RoFormer, arXiv:2104.09864), shape (seq_length, head_dim)."""
    torch = device.torch
    rates = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device.name) / head_dim)
    angles = torch.outer(torch.arange(seq_length, device=device.name), rates).repeat(1, 2)
    return angles.cos().to(device.torch_dtype), angles.sin().to(device.torch_dtype)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor, device: Device) -> Tensor:
    """Rotary embedding of x, shape (…, seq_length, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + device.torch.cat((-second, first), dim=-1) * sines


def causal_attention(q: Tensor, k: Tensor, v: Tensor, device: Device) -> Tensor:
    """Scaled dot-product attention of (batch, heads, seq, dim), with the kernel that torch chooses."""
    attend = device.torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
