"""The parts that only some models have: experts, latent attention, its indexer, scaled rotary positions.

Every field is a fact as those of ``ModelSpec`` are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.limits import (
    INDEXER_LIMITS,
    MLA_LIMITS,
    MOE_LIMITS,
    ROTARY_SCALING_LIMITS,
    refuse_out_of_range,
)

RotaryScalingKind = Literal["llama3", "yarn", "linear", "dynamic", "longrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """The mixture-of-experts part of a model."""

    num_experts: int  # routed experts per MoE layer
    top_k: int  # routed experts each token visits
    ffn_hidden_size: int  # hidden width of one routed expert
    num_shared_experts: int = 0  # experts every token visits
    shared_ffn_hidden_size: int = 0  # hidden width of *all* shared experts together
    num_dense_layers: int = 0  # leading layers without experts
    frequency: int = 1  # after the leading ones, every ``frequency``-th layer is MoE
    dense_layers: tuple[int, ...] = ()  # and these, counted from 0, are dense as well
    router_score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    normalized_top_k: bool = True  # the weights of the chosen experts sum to 1
    router_groups: int = 0  # groups of experts of which some are chosen first; 0: none
    router_top_groups: int = 0  # how many of them
    router_scaling: float = 1.0  # factor of the chosen experts' weights
    router_bias: bool = False  # a trained bias of the scores
    selection_bias: bool = False  # an untrained bias that balances the choice (arXiv:2408.15664)
    selection_bias_counted: bool = False  # it stands among the parameters, not among the buffers
    weights_on_input: bool = False  # an expert's input, not its output, is weighted
    expert_bias: bool = True  # routed experts have the biases of the other MLPs, where those have any
    output_norm: bool = False  # one more norm, of what the layer's experts add
    shared_expert_gate: bool = False  # the shared experts' output times a sigmoid of one more row

    def __post_init__(self) -> None:
        """Refuse experts that cannot be routed to.

        Raises:
            InvalidProblemError: a size is out of range, top_k exceeds the experts, or shared
                experts are counted without a width (or the reverse).
        """
        refuse_out_of_range(self, "/model/moe", MOE_LIMITS)
        if self.top_k > self.num_experts:
            raise InvalidProblemError.of(
                "/model/moe/top_k",
                f"{self.top_k} is more than num_experts = {self.num_experts}",
                allowed=f"1 to {self.num_experts}",
            )
        if bool(self.num_shared_experts) != bool(self.shared_ffn_hidden_size):
            raise InvalidProblemError.of(
                "/model/moe/shared_ffn_hidden_size",
                "num_shared_experts and shared_ffn_hidden_size are both positive or both 0",
            )
        if self.router_top_groups > self.router_groups:
            raise InvalidProblemError.of(
                "/model/moe/router_top_groups",
                f"{self.router_top_groups} is more than router_groups = {self.router_groups}",
                allowed=f"0 to {self.router_groups}",
            )
        if self.shared_expert_gate and not self.num_shared_experts:
            raise InvalidProblemError.of("/model/moe/shared_expert_gate", "there are no shared experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention: low-rank queries and keys/values (DeepSeek-V2, section 2.1)."""

    q_lora_rank: int  # 0: queries are projected directly
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    norms: bool = True  # RMSNorm of the low-rank queries and of the low-rank keys/values
    latent_bias: bool = False  # of the down-projections

    def __post_init__(self) -> None:
        """Refuse ranks and head sizes out of range.

        Raises:
            InvalidProblemError: a size is out of range.
        """
        refuse_out_of_range(self, "/model/mla", MLA_LIMITS)

    def norm_parameters(self) -> int:
        """Weights of both norms."""
        return (self.q_lora_rank + self.kv_lora_rank) * int(self.norms)

    @property
    def latent_width(self) -> int:
        """Columns of the down-projections together, which every tensor-parallel rank holds whole."""
        return self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim

    def bias_parameters(self) -> int:
        """Biases of the down-projections."""
        return self.latent_width * int(self.latent_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """DeepSeek sparse attention: an indexer beside latent attention chooses the keys of each query.

    Its heads score every earlier token (``relu(q k)``, weighted by head and summed); attention then reads
    the ``top_k`` best. Queries come from the queries' latent, one key and the heads' weights from the
    layer's input, keys pass a LayerNorm (transformers 5.23, ``DeepseekV32Indexer``; DeepSeek-V3.2,
    arXiv:2512.02556, section 2.1).
    """

    num_heads: int
    head_dim: int
    top_k: int  # tokens that attention reads of a longer sequence

    def __post_init__(self) -> None:
        """Refuse sizes out of range.

        Raises:
            InvalidProblemError: a size is out of range.
        """
        refuse_out_of_range(self, "/model/indexer", INDEXER_LIMITS)

    def matrix_parameters(self, q_lora_rank: int, hidden_size: int) -> int:
        """Weights of its three projections."""
        queries = q_lora_rank * self.num_heads * self.head_dim
        return queries + hidden_size * (self.head_dim + self.num_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary frequencies are stretched; the names are those of Hugging Face ``rope_scaling``."""

    kind: RotaryScalingKind
    factor: float
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn (arXiv:2309.00071)
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn under latent attention
    mscale_all_dim: float | None = None  # yarn under latent attention

    def __post_init__(self) -> None:
        """Refuse factors out of range.

        Raises:
            InvalidProblemError: a factor is out of range.
        """
        refuse_out_of_range(self, "/model/rotary_scaling", ROTARY_SCALING_LIMITS)
