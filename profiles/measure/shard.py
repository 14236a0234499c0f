"""The part of one layer that one rank holds: its sizes, its weight matrices, its FLOPs.

Tensor parallelism splits heads and MLP columns (Shoeybi et al. 2019, arXiv:1909.08053, section 3); latent
attention's down-projections and the router stay whole on every rank. Norms and residuals see the whole
sequence (no sequence parallelism). Expert loads are balanced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.layers.operators import Operator
from meshwright.profiles.model import LayerKind, ModelSpec

# The matrices of a measured layer that each of Megatron-Core's targets of LoRA means.
MATRICES_OF: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("qkv", "q_down", "q_up", "kv_down", "kv_up"),
    "linear_proj": ("attention_out",),
    "linear_fc1": ("mlp_up",),
    "linear_fc2": ("mlp_down",),
}
_OF_EXPERTS = ("linear_fc1", "linear_fc2")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGemm:
    """``experts`` products of (m, k) by (k, n): one, but for the experts of a layer."""

    operator: str
    m: int
    n: int
    k: int
    experts: int = 1

    @property
    def flops(self) -> float:
        """Return 2 FLOPs for each multiply-add."""
        return 2.0 * self.experts * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's share of a model's layers, for one micro-batch."""

    model: ModelSpec
    tensor_parallel_size: int
    expert_parallel_size: int
    micro_batch_size: int
    seq_length: int
    lora_rank: int = 0  # of adapters next to frozen weights; 0: every weight is trained
    lora_targets: tuple[str, ...] = ()  # modules that they adapt, by Megatron-Core's names

    def __post_init__(self) -> None:
        """Refuse what does not divide.

        Raises:
            InvalidProblemError: layers or adapters that are not measured; or heads, key/value heads, MLP
                columns or experts cannot be split so.
        """
        size, model = self.tensor_parallel_size, self.model
        unmeasured = (
            "indexer", "differential_attention", "local_attention", "value_head_dim", "keys_are_values",
            "layer_embedding_size", "streams", "borrowing_layers", "gate_width", "mlp_output_bias",
            "mixer", "layer_pattern", "unlike_layers", "compression", "hyper_streams",
            "residual_block_layers",
        )  # fmt: skip
        for name in unmeasured:
            if getattr(model, name):
                raise InvalidProblemError.of("--model", f"layers with {name} can't be measured")
        for name in self.lora_targets if self.lora_rank else ():
            if name not in MATRICES_OF:
                raise UnknownNameError.among("--lora-target", name, MATRICES_OF)
            if model.moe is not None and name in _OF_EXPERTS:
                message = f"{name} adapts routed experts. Adapters of experts can't be measured"
                raise InvalidProblemError.of("--lora-target", message, nearest="linear_qkv,linear_proj")
        _refuse_rest("--tp", size, model.num_attention_heads, "num_attention_heads")
        widths = {"ffn_hidden_size": model.ffn_hidden_size}
        if model.moe is not None:
            widths["moe.ffn_hidden_size"] = model.moe.ffn_hidden_size
            widths["moe.shared_ffn_hidden_size"] = model.moe.shared_ffn_hidden_size
            _refuse_rest("--ep", self.expert_parallel_size, model.moe.num_experts, "num_experts")
        elif self.expert_parallel_size > 1:
            raise InvalidProblemError.of("--ep", "this model has no experts", nearest="1")
        for name, width in widths.items():
            _refuse_rest("--tp", size, width, name)
        if model.num_kv_heads % size and size % model.num_kv_heads:
            message = f"{size} neither divides num_kv_heads = {model.num_kv_heads} nor is a multiple of it"
            raise InvalidProblemError.of("--tp", message)

    @property
    def tokens(self) -> int:
        """Return the number of tokens of one micro-batch."""
        return self.micro_batch_size * self.seq_length

    @property
    def heads(self) -> int:
        """Return the number of query heads of this rank."""
        return self.model.num_attention_heads // self.tensor_parallel_size

    @property
    def kv_heads(self) -> int:
        """Return the key/value heads of this rank; latent attention expands them to the query heads."""
        if self.model.mla is not None:
            return self.heads
        return max(1, self.model.num_kv_heads // self.tensor_parallel_size)

    @property
    def vocab(self) -> int:
        """Return the rows of the output head of this rank, padded up."""
        return -(-self.model.vocab_size // self.tensor_parallel_size)

    @property
    def local_experts(self) -> int:
        """Return the number of routed experts of this rank (0 for a dense model)."""
        return self.model.moe.num_experts // self.expert_parallel_size if self.model.moe else 0

    @property
    def expert_rows(self) -> int:
        """Return the tokens of each local expert, rounded up: ep ranks send here, loads are balanced."""
        if self.model.moe is None:
            return 0
        routed = self.tokens * self.model.moe.top_k * self.expert_parallel_size
        return -(-routed // self.model.moe.num_experts)

    def sizes(self) -> dict[str, int]:
        """Return how measurements name this shard."""
        return {
            "tensor_parallel_size": self.tensor_parallel_size,
            "micro_batch_size": self.micro_batch_size,
        }

    def matrices(self, kind: LayerKind) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of every weight matrix of a layer, routed experts not included."""
        layer = self.model.layer(kind)
        return {one.name: self._sides(one) for one in layer.operators if not one.is_routed}

    def adapted(self, kind: LayerKind) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of the matrices of a layer that have adapters."""
        wanted = {one for name in self.lora_targets if self.lora_rank for one in MATRICES_OF[name]}
        return {name: sides for name, sides in self.matrices(kind).items() if name in wanted}

    def expert_matrices(self) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of the matrices of one routed expert (none for a dense model)."""
        routed = [one for one in self.model.layer("moe").operators if one.is_routed]
        return {one.name: self._sides(one) for one in routed}

    def _sides(self, one: Operator) -> tuple[int, int]:
        size = self.tensor_parallel_size
        if one.name == "router":  # without the shared experts' gate, one row
            return one.matrices[0].outputs, one.matrices[0].inputs
        return int(one.outputs.on(size, max)), int(one.inputs.on(size, max))

    def gemms(self) -> tuple[ShardGemm, ...]:
        """Return the matrix products of a forward pass: every kind of layer once, and the output head."""
        matrices: dict[str, tuple[int, int]] = {}
        for kind in sorted(set(self.model.layer_kinds())):
            matrices |= self.matrices(kind)
        matrices["head"] = (self.vocab, self.model.hidden_size)
        plain = [ShardGemm(operator=name, m=self.tokens, n=n, k=k) for name, (n, k) in matrices.items()]
        return (*plain, *self._expert_gemms())

    def attention_flops(self) -> float:
        """Return the forward FLOPs of scores and weighted values under the causal mask."""
        whole_row = (self.seq_length + 1) / 2  # mean keys of a query
        return 2.0 * self.heads * (self.model.head_dim + self.model.v_head_dim) * whole_row * self.tokens

    def adapter_flops(self, kind: LayerKind) -> float:
        """Return the forward FLOPs of both thin products of every adapter of a layer."""
        return 2.0 * self.tokens * self.lora_rank * sum(n + k for n, k in self.adapted(kind).values())

    def layer_forward_flops(self, kind: LayerKind) -> float:
        """Return the forward FLOPs of this rank's share of one layer, adapters included."""
        linear = 2.0 * self.tokens * sum(n * k for n, k in self.matrices(kind).values())
        experts = sum(gemm.flops for gemm in self._expert_gemms()) if kind == "moe" else 0.0
        return linear + experts + self.attention_flops() + self.adapter_flops(kind)

    def layer_backward_flops(self, kind: LayerKind) -> float:
        """Return the FLOPs of the gradients: frozen matrices have those of their inputs alone."""
        forward = self.layer_forward_flops(kind)
        if not self.lora_rank:
            return 2.0 * forward
        return forward + self.attention_flops() + self.adapter_flops(kind)

    def _expert_gemms(self) -> tuple[ShardGemm, ...]:
        rows, experts = self.expert_rows, self.local_experts
        return tuple(
            ShardGemm(operator=name, m=rows, n=n, k=k, experts=experts)
            for name, (n, k) in self.expert_matrices().items()
        )


def _refuse_rest(option: str, divisor: int, whole: int, name: str) -> None:
    if whole % divisor:
        raise InvalidProblemError.of(option, f"{divisor} does not divide {name} = {whole}")
