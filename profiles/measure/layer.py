"""One real transformer layer of a model, as one rank holds it, in plain torch.

Pre-norm: ``a = x + attention(norm(x))``, ``y = a + mlp(norm(a))``. Collectives are left out (they are
measured by themselves), norms see the whole sequence, experts get equal loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiles.measure.blocks import activation_of, causal_attention, norm_of, rotated, rotations
from profiles.measure.device import Device, Tensor
from profiles.measure.experts import Experts
from profiles.measure.shard import Shard
from profiles.model import LayerKind, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one rank's share of a layer, and its forward pass."""

    shard: Shard
    device: Device
    weights: dict[str, Tensor]
    cosines: Tensor
    sines: Tensor
    norm: Callable[[Tensor, Tensor], Tensor]
    activation: Callable[[Tensor], Tensor]
    experts: Experts | None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same shape."""
        attend = self._attention if self.shard.model.mla is None else self._latent_attention
        x = x + attend(self.norm(x, self.weights["attention_norm"]))
        return x + self._mlp(self.norm(x, self.weights["mlp_norm"]))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.weights.get(f"{name}_bias")
        return self.device.torch.nn.functional.linear(x, self.weights[name], bias)

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """(batch, seq, heads · dim) as (batch, heads, seq, dim)."""
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def _rotated(self, x: Tensor) -> Tensor:
        if self.shard.model.learned_position_embeddings:
            return x
        return rotated(x, self.cosines, self.sines, self.device)

    def _attention(self, x: Tensor) -> Tensor:
        shard, dim = self.shard, self.shard.model.head_dim
        widths = [shard.heads * dim, shard.kv_heads * dim, shard.kv_heads * dim]
        q, k, v = self._linear("qkv", x).split(widths, dim=-1)
        q, k = self._rotated(self._heads(q, shard.heads)), self._rotated(self._heads(k, shard.kv_heads))
        return self._attended(q, k, self._heads(v, shard.kv_heads))

    def _latent_attention(self, x: Tensor) -> Tensor:
        """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
        shard, mla, torch = self.shard, self.shard.model.mla, self.device.torch
        if mla is None:
            return x
        query = x
        if mla.q_lora_rank:
            query = self.norm(self._linear("q_down", x), self.weights["q_norm"])
        q = self._heads(self._linear("q_up", query), shard.heads)
        q_plain, q_rope = q.split([mla.qk_nope_head_dim, mla.qk_rope_head_dim], dim=-1)
        latent, k_rope = self._linear("kv_down", x).split([mla.kv_lora_rank, mla.qk_rope_head_dim], dim=-1)
        latent = self.norm(latent, self.weights["kv_norm"])
        kv = self._heads(self._linear("kv_up", latent), shard.heads)
        k_plain, v = kv.split([mla.qk_nope_head_dim, mla.v_head_dim], dim=-1)
        k_rope = self._rotated(self._heads(k_rope, 1)).expand(-1, shard.heads, -1, -1)
        q = torch.cat((q_plain, self._rotated(q_rope)), dim=-1)
        return self._attended(q, torch.cat((k_plain, k_rope), dim=-1), v)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = causal_attention(q, k, v, self.device).transpose(1, 2).flatten(2)
        return self._linear("attention_out", out)

    def _mlp(self, x: Tensor) -> Tensor:
        if self.experts is None:
            return self._gated("mlp", x)
        routed = self.experts.forward(x.flatten(0, 1), self.weights).view_as(x)
        return routed + self._gated("shared", x) if "shared_up" in self.weights else routed

    def _gated(self, name: str, x: Tensor) -> Tensor:
        return self._linear(f"{name}_down", self.activation(self._linear(f"{name}_up", x)))


def build_layer(shard: Shard, kind: LayerKind, device: Device) -> Layer:
    """A layer with random weights of the variance that keeps activations near 1."""
    model = shard.model
    rope_dim = model.mla.qk_rope_head_dim if model.mla else model.head_dim
    cosines, sines = rotations(shard.seq_length, rope_dim, device)
    activation = activation_of(model, device)
    return Layer(
        shard=shard,
        device=device,
        weights=_weights(shard, kind, device),
        cosines=cosines,
        sines=sines,
        norm=norm_of(model, device),
        activation=activation,
        experts=Experts.of(shard, device, activation) if kind == "moe" else None,
    )


def _weights(shard: Shard, kind: LayerKind, device: Device) -> dict[str, Tensor]:
    """Matrices (outputs, inputs), biases where the model has them, norms."""
    model, weights = shard.model, {}
    for name, (n, k) in shard.matrices(kind).items():
        weights[name] = device.random(n, k, scale=k**-0.5, learned=True)
        if _has_bias(model, name):
            weights[f"{name}_bias"] = device.random(n, learned=True)
    if kind == "moe":
        for name, (n, k) in shard.expert_matrices().items():
            weights[name] = device.random(shard.local_experts, n, k, scale=k**-0.5, learned=True)
    norms = {"attention_norm": model.hidden_size, "mlp_norm": model.hidden_size}
    if model.mla is not None:
        norms["kv_norm"] = model.mla.kv_lora_rank
        if model.mla.q_lora_rank:
            norms["q_norm"] = model.mla.q_lora_rank
    return weights | {name: device.random(width, learned=True) for name, width in norms.items()}


def _has_bias(model: ModelSpec, name: str) -> bool:
    """Whether the product of a matrix of ``Shard.matrices`` has a bias."""
    if name == "router":
        return bool(model.moe and model.moe.router_bias)
    if name == "attention_out":
        return model.attention_output_bias
    return model.mlp_bias if name.startswith(("mlp_", "shared_")) else model.qkv_bias
