"""One real transformer layer of a model, as one rank holds it, in plain torch.

Pre-norm: ``a = x + attention(norm(x))``, ``y = a + mlp(norm(a))``. Collectives are left out (they are
measured by themselves), norms see the whole sequence, experts get equal loads. Next to the layers, the
model's two ends: the look-up of tokens, and the last norm with the head and the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from meshwright.profiles.measure.device import Device, GroupedProduct, Tensor
from meshwright.profiles.measure.shard import Shard
from meshwright.profiles.measure.timing import (
    Effort,
    Label,
    timed,
    timed_backward,
    timed_passes,
    timed_running,
)
from meshwright.profiles.measured.profile import Measurement, Timing
from meshwright.profiles.model import LayerKind, ModelSpec

# --------------------------------------------------------------------------------------------------
# The parts of a layer that are not matrix products, written as plain torch expressions.
#
# They run as torch runs them without a compiler: one kernel for each step. A framework that fuses them
# moves fewer bytes.


ROPE_BASE = 10_000.0  # RoFormer (arXiv:2104.09864, section 3.3); the value does not change the time
EPSILON = 1e-5  # of norms, as Llama's


def norm_of(model: ModelSpec, device: Device) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the model's norm over the last dimension: ``norm(x, weight)``."""
    functional = device.torch.nn.functional
    apply = functional.rms_norm if model.norm_kind == "rmsnorm" else functional.layer_norm
    return lambda x, weight: apply(x, weight.shape, weight, eps=EPSILON)


def activation_of(model: ModelSpec, device: Device) -> Callable[[Tensor], Tensor]:
    """Return SwiGLU (arXiv:2002.05202) of gate and up side by side, or GELU."""
    functional = device.torch.nn.functional
    if not model.gated_mlp:
        return lambda x: functional.gelu(x, approximate="tanh")

    def swiglu(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up

    return swiglu


def rotations(seq_length: int, head_dim: int, device: Device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of RoPE (RoFormer, arXiv:2104.09864), shape (seq_length, head_dim)."""
    torch = device.torch
    rates = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device.name) / head_dim)
    angles = torch.outer(torch.arange(seq_length, device=device.name), rates).repeat(1, 2)
    return angles.cos().to(device.torch_dtype), angles.sin().to(device.torch_dtype)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor, device: Device) -> Tensor:
    """Return rotary embedding of x, shape (…, seq_length, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + device.torch.cat((-second, first), dim=-1) * sines


def causal_attention(q: Tensor, k: Tensor, v: Tensor, device: Device) -> Tensor:
    """Return scaled dot-product attention of (batch, heads, seq, dim), with torch's choice of kernel."""
    attend = device.torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


# --------------------------------------------------------------------------------------------------
# The routed experts of one rank, with equal loads: what balanced routing comes to.
#
# Rows are gathered, passed through every expert as one grouped product (a batched one where torch has no
# grouped one for the GPU), weighted and added back. Which token goes where is drawn once; the router's own
# choice is computed, as training computes it, and only its weights are used.


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routing of one micro-batch: which routed slot each row of each expert takes."""

    device: Device
    top_k: int
    num_experts: int  # on this rank
    slots: Tensor  # shape (experts · rows), values in [0, tokens · top_k)
    ends: Tensor  # where each expert's rows end, int32, shape (experts,)
    product: GroupedProduct | None  # of all experts in one kernel; None: a batched one
    activation: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, shard: Shard, device: Device, activation: Callable[[Tensor], Tensor]) -> Experts:
        """Return a random balanced assignment; slots repeat where loads are rounded up."""
        torch, top_k = device.torch, shard.model.moe.top_k if shard.model.moe else 1
        routed = shard.tokens * top_k
        rows = torch.arange(shard.local_experts * shard.expert_rows, device=device.name) % routed
        return cls(
            device=device,
            top_k=top_k,
            num_experts=shard.local_experts,
            slots=torch.randperm(routed, device=device.name)[rows],
            ends=ends_of(shard.local_experts, shard.expert_rows, device),
            product=device.grouped_product if shard.expert_rows % GROUP_MULTIPLE == 0 else None,
            activation=activation,
        )

    def forward(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Map (tokens, hidden) to the same shape."""
        torch = self.device.torch
        scores = torch.nn.functional.linear(x, weights["router"]).float().softmax(dim=-1)
        chosen = scores.topk(self.top_k, dim=-1).values.to(x.dtype).flatten()
        tokens = self.slots // self.top_k
        rows = x.index_select(0, tokens)
        hidden = self.activation(self._product(rows, weights["experts_up"]))
        out = self._product(hidden, weights["experts_down"])
        weighted = out * chosen.index_select(0, self.slots).unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, tokens, weighted)

    def _product(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Multiply (experts · rows, k) by (experts, n, k) to (experts · rows, n)."""
        if self.product is not None:
            return self.product(rows, weights.mT, offs=self.ends)
        return self.device.torch.bmm(rows.unflatten(0, (self.num_experts, -1)), weights.mT).flatten(0, 1)


# Rows of a group are a multiple of this, so that every group of the weight gradient's operands begins at a
# multiple of 16 bytes (torchtitan distributed/expert_parallel.py, TOKEN_GROUP_ALIGN_SIZE_M of bf16).
GROUP_MULTIPLE = 8


def ends_of(experts: int, rows: int, device: Device) -> Tensor:
    """Return where the rows of each of equally loaded experts end, int32, shape (experts,)."""
    torch = device.torch
    return torch.arange(1, experts + 1, dtype=torch.int32, device=device.name) * rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one rank's share of a layer, and its forward pass."""

    shard: Shard
    device: Device
    weights: dict[str, Tensor]
    adapters: dict[str, tuple[Tensor, Tensor]]  # A (rank, inputs) and B (outputs, rank) by matrix
    cosines: Tensor
    sines: Tensor
    norm: Callable[[Tensor, Tensor], Tensor]
    activation: Callable[[Tensor], Tensor]
    experts: Experts | None

    @property
    def trained(self) -> tuple[Tensor, ...]:
        """Return all weights, or the adapters of a frozen layer."""
        if not self.shard.lora_rank:
            return tuple(self.weights.values())
        return tuple(matrix for pair in self.adapters.values() for matrix in pair)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        attend = self._attention if self.shard.model.mla is None else self._latent_attention
        x = x + attend(self.norm(x, self.weights["attention_norm"]))
        return x + self._mlp(self.norm(x, self.weights["mlp_norm"]))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        linear = self.device.torch.nn.functional.linear
        out = linear(x, self.weights[name], self.weights.get(f"{name}_bias"))
        if name not in self.adapters:
            return out
        down, up = self.adapters[name]
        return out + linear(linear(x, down), up) * LORA_SCALE

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """Reshape (batch, seq, heads · dim) to (batch, heads, seq, dim)."""
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
        """Return multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
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
    """Return a layer with random weights of the variance that keeps activations near 1."""
    model = shard.model
    rope_dim = model.mla.qk_rope_head_dim if model.mla else model.head_dim
    cosines, sines = rotations(shard.seq_length, rope_dim, device)
    activation = activation_of(model, device)
    return Layer(
        shard=shard,
        device=device,
        weights=_weights(shard, kind, device),
        adapters=_adapters(shard, kind, device),
        cosines=cosines,
        sines=sines,
        norm=norm_of(model, device),
        activation=activation,
        experts=Experts.of(shard, device, activation) if kind == "moe" else None,
    )


def _weights(shard: Shard, kind: LayerKind, device: Device) -> dict[str, Tensor]:
    """Return matrices (outputs, inputs), biases where the model has them, norms."""
    model, weights, learned = shard.model, {}, not shard.lora_rank
    for name, (n, k) in shard.matrices(kind).items():
        weights[name] = device.random(n, k, scale=k**-0.5, learned=learned)
        if _has_bias(model, name):
            weights[f"{name}_bias"] = device.random(n, learned=learned)
    if kind == "moe":
        for name, (n, k) in shard.expert_matrices().items():
            weights[name] = device.random(shard.local_experts, n, k, scale=k**-0.5, learned=learned)
    norms = {"attention_norm": model.hidden_size, "mlp_norm": model.hidden_size}
    if model.mla is not None:
        norms["kv_norm"] = model.mla.kv_lora_rank
        if model.mla.q_lora_rank:
            norms["q_norm"] = model.mla.q_lora_rank
    return weights | {name: device.random(width, learned=learned) for name, width in norms.items()}


LORA_SCALE = 2.0  # alpha over rank, as peft multiplies the adapter's product; the value costs no time


def _adapters(shard: Shard, kind: LayerKind, device: Device) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the matrices of LoRA (arXiv:2106.09685) next to a layer's frozen ones; without dropout."""
    rank = shard.lora_rank
    return {
        name: (
            device.random(rank, k, scale=k**-0.5, learned=True),
            device.random(n, rank, scale=0.01 * rank**-0.5, learned=True),
        )
        for name, (n, k) in shard.adapted(kind).items()
    }


def _has_bias(model: ModelSpec, name: str) -> bool:
    """Return whether a matrix has a bias; ``KeyError`` for a matrix whose bias nothing states."""
    return {
        **dict.fromkeys(("qkv", "q_down", "q_up", "kv_down", "kv_up"), model.qkv_bias),
        **dict.fromkeys(("mlp_up", "mlp_down", "shared_up", "shared_down"), model.mlp_bias),
        "attention_out": model.attention_output_bias,
        "router": bool(model.moe and model.moe.router_bias),
    }[name]


# --------------------------------------------------------------------------------------------------
# Times the passes of one real layer, and weighs what they keep in memory.
#
# ``backward`` makes input and weight gradients; ``input_gradient`` the first alone, so a weight gradient
# pass (zero-bubble schedules) is the difference. ``recompute_backward`` replays the forward pass first;
# ``accumulate`` adds weight gradients to fp32 buffers, as frameworks do that keep whole ones.


# AdamW on fp32 master weights reads weight, both moments and gradient and writes the first three; the copy
# in the measured precision comes on top (ZeRO, arXiv:1910.02054, section 3.1). Adding a gradient reads an
# fp32 sum and writes it.
OPTIMIZER_BYTES, ADDED_BYTES = 7 * 4, 2 * 4


def measure_layer(
    shard: Shard, kind: LayerKind, label: Label, device: Device, effort: Effort
) -> list[Measurement]:
    """Time forward, both gradients, the input gradient, backward after recompute, optimizer step."""
    layer = build_layer(shard, kind, device)
    x = device.random(shard.micro_batch_size, shard.seq_length, shard.model.hidden_size, learned=True)
    inputs = (x, *layer.trained)
    flops, backward_flops = shard.layer_forward_flops(kind), shard.layer_backward_flops(kind)

    def replayed() -> Tensor:
        checkpoint = device.torch.utils.checkpoint.checkpoint
        return checkpoint(layer.forward, x, use_reentrant=False, preserve_rng_state=False)

    def forward() -> Tensor:
        return layer.forward(x)

    forward_timing, backward = timed_passes(forward, inputs, device, effort)
    input_gradient = timed_backward(forward, (x,), device, effort)
    recompute = timed_backward(replayed, inputs, device, effort)
    measured = [
        replace(
            label.measured("forward", forward_timing, flops=flops),
            activation_bytes=_kept_bytes(layer, x),
        ),
        replace(
            label.measured("backward", backward, flops=backward_flops),
            peak_memory_bytes=_peak_bytes(layer, inputs),
        ),
        label.measured("input_gradient", input_gradient, flops=flops),
        label.measured("recompute_backward", recompute, flops=flops + backward_flops),
    ]
    return [*measured, *_updates(layer.trained, label, device, effort)]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The look-up of tokens, or the last norm with the head and the loss, as one rank holds them."""

    run: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]  # gradients wanted; none of a frozen look-up
    trained: tuple[Tensor, ...]
    flops: float  # of the forward pass
    backward_flops: float


def embedding_of(shard: Shard, device: Device) -> End:
    """Return the look-up of one micro-batch in this rank's rows of the table."""
    learned, functional = not shard.lora_rank, device.torch.nn.functional
    table = device.random(shard.vocab, shard.model.hidden_size, learned=learned)
    tokens = _tokens(shard, device)
    trained = (table,) if learned else ()
    return End(
        run=lambda: functional.embedding(tokens, table),
        inputs=trained,
        trained=trained,
        flops=0.0,
        backward_flops=0.0,
    )


def head_of(shard: Shard, device: Device) -> End:
    """Return last norm, product with this rank's rows, and cross entropy of fp32 logits."""
    model, learned, functional = shard.model, not shard.lora_rank, device.torch.nn.functional
    norm, width = norm_of(model, device), model.hidden_size
    x = device.random(shard.tokens, width, learned=True)
    scale = device.random(width, learned=learned)
    rows = device.random(shard.vocab, width, scale=width**-0.5, learned=learned)
    labels = _tokens(shard, device).flatten()
    trained = (scale, rows) if learned else ()
    flops = 2.0 * shard.tokens * shard.vocab * width
    return End(
        run=lambda: functional.cross_entropy(functional.linear(norm(x, scale), rows).float(), labels),
        inputs=(x, *trained),
        trained=trained,
        flops=flops,
        backward_flops=(2.0 if learned else 1.0) * flops,
    )


def measure_end(
    make: Callable[[Shard, Device], End], shard: Shard, label: Label, device: Device, effort: Effort
) -> list[Measurement]:
    """Time forward and, where anything is trained or hands a gradient on, backward and the updates."""
    end = make(shard, device)
    if not end.inputs:
        return [label.measured("forward", timed(end.run, device, effort), flops=end.flops)]
    forward, backward = timed_passes(end.run, end.inputs, device, effort)
    return [
        label.measured("forward", forward, flops=end.flops),
        label.measured("backward", backward, flops=end.backward_flops),
        *_updates(end.trained, label, device, effort),
    ]


def _tokens(shard: Shard, device: Device) -> Tensor:
    shape = (shard.micro_batch_size, shard.seq_length)
    return device.torch.randint(shard.vocab, shape, device=device.name)


def _updates(
    weights: tuple[Tensor, ...], label: Label, device: Device, effort: Effort
) -> list[Measurement]:
    if not weights:
        return []
    elements = sum(weight.numel() for weight in weights)
    added_bytes = float(elements * (ADDED_BYTES + device.element_bytes))
    step_bytes = float(elements * (OPTIMIZER_BYTES + device.element_bytes))
    return [
        label.measured("accumulate", _accumulation(weights, device, effort), moved_bytes=added_bytes),
        label.measured("optimizer", _optimizer_step(weights, device, effort), moved_bytes=step_bytes),
    ]


def _accumulation(weights: tuple[Tensor, ...], device: Device, effort: Effort) -> Timing:
    torch = device.torch
    gradients = [torch.randn_like(weight) for weight in weights]
    sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]

    def add() -> None:
        for one, gradient in zip(sums, gradients, strict=True):
            one.add_(gradient)

    return timed_running([add], device, effort)[0]


def _optimizer_step(trained: tuple[Tensor, ...], device: Device, effort: Effort) -> Timing:
    """Return one fused AdamW step on fp32 master weights, and the copy back to the trained weights."""
    torch = device.torch
    weights = [weight.detach() for weight in trained]
    masters = [torch.nn.Parameter(weight.float().clone()) for weight in weights]
    for master in masters:
        master.grad = torch.randn_like(master)
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step() -> None:
        optimizer.step()
        for weight, master in zip(weights, masters, strict=True):
            weight.copy_(master.detach())

    return timed_running([step], device, effort)[0]


def _kept_bytes(layer: Layer, x: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward one: each storage once, weights and tables not.

    The layer's input counts: whoever made it hands it over.
    """
    tables = (layer.cosines, layer.sines)
    own = {one.untyped_storage().data_ptr() for one in (*layer.weights.values(), *layer.trained, *tables)}
    kept: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved.detach()  # an output that keeps itself would never be freed

    with layer.device.torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        output = layer.forward(x)
    del output
    return sum(kept.values())


def _peak_bytes(layer: Layer, inputs: tuple[Tensor, ...]) -> int | None:
    """Return bytes that the allocator held at the peak of a forward and backward pass; None on a CPU."""
    device = layer.device
    if device.kind == "cpu":
        return None
    device.forget_peak()
    output = layer.forward(inputs[0])
    device.torch.autograd.grad(output, inputs, device.torch.randn_like(output))
    return device.peak_bytes()
