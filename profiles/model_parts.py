"""The parts that only some models have, and the sizes that models and their parts may have.

Experts, latent attention, its indexer, scaled rotary positions: every field is a fact as those of
``ModelSpec`` are. The sizes are one table, for the dataclasses and for whoever reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from meshwright.profiles.errors import FieldError, InvalidProblemError

Limits = dict[str, tuple[int, int] | tuple[float, float]]  # whole numbers, or any numbers

MODEL_LIMITS: Limits = {
    "num_layers": (1, 10_000),
    "hidden_size": (1, 2**20),
    "ffn_hidden_size": (1, 2**24),
    "num_attention_heads": (1, 2**16),
    "num_kv_heads": (1, 2**16),
    "head_dim": (1, 2**14),
    "vocab_size": (1, 2**27),
    "value_head_dim": (1, 2**14),
    "value_scale": (1e-9, 1e9),
    "embedding_size": (1, 2**20),
    "layer_embedding_size": (0, 2**20),
    "layer_vocab_size": (1, 2**27),
    "borrowing_layers": (0, 10_000),
    "borrowing_ffn_hidden_size": (1, 2**24),
    "num_mtp_layers": (0, 64),
    "sliding_window": (1, 2**31 - 1),
    "sliding_window_every": (1, 10_000),
    "max_position_embeddings": (1, 2**31 - 1),
    "learned_position_offset": (0, 1024),
    "rotary_base": (1, 10**12),
    "rotary_local_base": (1, 10**12),
    "no_rotary_every": (0, 10_000),
    "norm_epsilon": (0.0, 1.0),
    "activation_clamp": (1e-6, 1e6),
    "gate_offset": (-1e6, 1e6),
    "rotary_fraction": (1e-3, 1.0),
    "rotary_local_fraction": (1e-3, 1.0),
    "attention_softcap": (1e-6, 1e9),
    "logit_softcap": (1e-6, 1e9),
    "attention_scale": (1e-9, 1e9),
    "attention_clip": (1e-6, 1e9),
    "embedding_scale": (1e-9, 1e9),
    "residual_scale": (1e-9, 1e9),
    "logit_scale": (1e-9, 1e9),
}
MOE_LIMITS: Limits = {
    "num_experts": (1, 65_536),
    "top_k": (1, 65_536),
    "ffn_hidden_size": (1, 2**24),
    "num_shared_experts": (0, 1024),
    "shared_ffn_hidden_size": (0, 2**24),
    "latent_size": (0, 2**20),
    "num_dense_layers": (0, 10_000),
    "frequency": (1, 10_000),
    "router_groups": (0, 65_536),
    "router_top_groups": (0, 65_536),
    "router_scaling": (1e-6, 1e6),
    "balance_coefficient": (0.0, 1e3),
}
MLA_LIMITS: Limits = {
    "q_lora_rank": (0, 2**20),
    "kv_lora_rank": (1, 2**20),
    "qk_nope_head_dim": (1, 2**14),
    "qk_rope_head_dim": (1, 2**14),
    "v_head_dim": (1, 2**14),
}
INDEXER_LIMITS: Limits = {
    "num_heads": (1, 2**16),
    "head_dim": (1, 2**14),
    "top_k": (1, 2**31 - 1),
}
STREAMS_LIMITS: Limits = {
    "count": (1, 64),
    "low_rank": (1, 2**20),
    "sparse_layers": (0, 10_000),
}
DIFFUSION_LIMITS: Limits = {
    "context_tokens": (0, 2**24),
    "two_stream_layers": (0, 10_000),
    "layer_weights": (-(2**40), 2**40),
    "two_stream_weights": (0, 2**40),
    "end_weights": (-(2**40), 2**40),
    "encoder_weights": (0, 2**40),
    "encoder_products": (0, 2**52),
}
LOCAL_ATTENTION_LIMITS: Limits = {
    name: MODEL_LIMITS[name]
    for name in ("num_attention_heads", "num_kv_heads", "head_dim", "value_head_dim")
}
ROTARY_SCALING_LIMITS: Limits = {
    "factor": (1e-3, 1e6),
    "original_max_position_embeddings": (1, 2**31 - 1),
    "low_freq_factor": (1e-3, 1e6),
    "high_freq_factor": (1e-3, 1e6),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "mscale": (0.0, 1e6),
    "mscale_all_dim": (0.0, 1e6),
    "attention_factor": (1e-3, 1e6),
}


def refuse_out_of_range(spec: object, pointer: str, limits: Limits) -> None:
    """Check the numbers of a dataclass; fields that are None pass.

    Raises:
        InvalidProblemError: fields that are not numbers (not integers, if the limits are integers) or lie
        outside their limits.
    """
    errors = []
    for name, (low, high) in limits.items():
        value = getattr(spec, name)
        if value is None:
            continue
        whole = isinstance(low, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            message = "must be a whole number" if whole else "must be a number"
            errors.append(FieldError(pointer=f"{pointer}/{name}", message=message))
        elif not low <= value <= high:
            allowed = f"{low} to {high}"
            message = f"{value if abs(value) < 10**20 else 'the value'} is out of range"
            errors.append(FieldError(pointer=f"{pointer}/{name}", message=message, allowed=allowed))
    if errors:
        raise InvalidProblemError(errors)


# Proportional: frequencies are those of the whole head, of which a part is rotated (Gemma 4).
RotaryScalingKind = Literal["llama3", "yarn", "linear", "dynamic", "longrope", "proportional"]


# Under which names peft finds routed experts. transformers 5 has those of a layer in two fused tensors; of
# the types that peft lists it takes ``gate_proj``, ``up_proj``, ``down_proj`` and ``gate`` for them, or
# Mixtral's ones; of all others they get no adapters. In remote code they are linear layers (peft 0.21,
# utils/transformers_weight_conversion.py; transformers 5.23, conversion_mapping.py).
ExpertAdapters = Literal["gate_up", "w1_w3", "linear", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """The mixture-of-experts part of a model."""

    num_experts: int  # routed experts per MoE layer
    top_k: int  # routed experts each token visits
    ffn_hidden_size: int  # hidden width of one routed expert
    num_shared_experts: int = 0  # experts every token visits
    shared_ffn_hidden_size: int = 0  # hidden width of *all* shared experts together
    latent_size: int = 0  # of what routed experts read and yield, projected; 0: the hidden size
    num_dense_layers: int = 0  # leading layers without experts
    frequency: int = 1  # after the leading ones, every ``frequency``-th layer is MoE
    dense_layers: tuple[int, ...] = ()  # and these, counted from 0, are dense as well
    router_score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    normalized_top_k: bool = True  # the weights of the chosen experts sum to 1
    router_groups: int = 0  # groups of experts of which some are chosen first; 0: none
    router_top_groups: int = 0  # how many of them
    router_scaling: float = 1.0  # factor of the chosen experts' weights
    balance_coefficient: float = 0.0  # of the loss that balances experts (arXiv:2101.03961)
    balanced_by_sequence: bool = False  # that loss is of each sequence (DeepSeek-V2), not of a micro-batch
    router_bias: bool = False  # a trained bias of the scores
    selection_bias: bool = False  # an untrained bias that balances the choice (arXiv:2408.15664)
    selection_bias_counted: bool = False  # it is a parameter, not a buffer
    weights_on_input: bool = False  # an expert's input, not its output, is weighted
    expert_bias: bool = True  # routed experts have the biases of the other MLPs, where those have any
    output_norm: bool = False  # one more norm, of what the layer's experts add
    norms_apart: bool = False  # of what routed experts read, and of what they and the shared ones add
    router_scales: bool = False  # it reads normed, scaled tokens, and scales the weight of each expert
    shared_expert_gate: bool = False  # the shared experts' output times a sigmoid of one more row
    expert_adapters: ExpertAdapters = "gate_up"
    linear_router: bool = False  # it is a linear layer, which can have adapters

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
        if self.balanced_by_sequence and not self.balance_coefficient:
            raise InvalidProblemError.of(
                "/model/moe/balanced_by_sequence", "there is no loss: balance_coefficient is 0"
            )
        if self.norms_apart and not self.num_shared_experts:
            raise InvalidProblemError.of("/model/moe/norms_apart", "there are no shared experts")
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

    def matrix_parameters(self, hidden_size: int, heads: int) -> int:
        """Return the weights of its projections, the output's included."""
        query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        query *= self.q_lora_rank or hidden_size
        up = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        return hidden_size * (self.latent_width + heads * self.v_head_dim) + query + up

    def norm_parameters(self) -> int:
        """Return the weights of both norms."""
        return (self.q_lora_rank + self.kv_lora_rank) * int(self.norms)

    @property
    def latent_width(self) -> int:
        """Return the joint columns of the down-projections, whole on every tensor-parallel rank."""
        return self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def rotary_elements(self) -> int:
        """Return the elements of a head and token read and written to build queries, keys and values.

        The rotated part of a query in place; a key and a value are read together and written each by
        itself, the key with the rotated part that all heads share (Megatron-Core 0.16,
        ``fusions/fused_mla_yarn_rope_apply.py``).
        """
        return 2 * (self.qk_nope_head_dim + self.v_head_dim) + 3 * self.qk_rope_head_dim

    def bias_parameters(self) -> int:
        """Return the biases of the down-projections."""
        return self.latent_width * int(self.latent_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """DeepSeek sparse attention: an indexer that chooses the keys of each query for latent attention.

    Its heads score every earlier token (``relu(q k)``, weighted by head and summed); attention then reads
    the ``top_k`` best. Queries come from the queries' latent, one key and the heads' weights from the
    layer's input, keys pass a LayerNorm (transformers 5.23, ``DeepseekV32Indexer``; DeepSeek-V3.2,
    arXiv:2512.02556, section 2.1).
    """

    num_heads: int
    head_dim: int
    top_k: int  # tokens that attention reads of a longer sequence
    reusing_layers: tuple[int, ...] = ()  # counted from 0: they read what the last other one has chosen

    def __post_init__(self) -> None:
        """Refuse sizes out of range.

        Raises:
            InvalidProblemError: a size is out of range.
        """
        refuse_out_of_range(self, "/model/indexer", INDEXER_LIMITS)

    def matrix_parameters(self, q_lora_rank: int, hidden_size: int) -> int:
        """Return the weights of its three projections."""
        queries = q_lora_rank * self.num_heads * self.head_dim
        return queries + hidden_size * (self.head_dim + self.num_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSpec:
    """Several hidden states of a token: each layer computes one and predicts the others (Gemma 3n).

    Alternating updates (arXiv:2301.13310) mix all streams before the layer, and correct them by what it
    has computed, with coefficients that a product of the hidden state yields, once before and once behind;
    both read a norm of it. Parallel to attention there is a low-rank product with a norm (LAuReL,
    arXiv:2411.07501). The others begin and end as a square product each of the first (transformers 5.23,
    ``Gemma3nTextDecoderLayer``, ``Gemma3nTextModel``).
    """

    count: int
    low_rank: int
    sparse_layers: int = 0  # layers with an MLP gate cut at a quantile of its elements

    def __post_init__(self) -> None:
        """Refuse sizes out of range.

        Raises:
            InvalidProblemError: a size is out of range.
        """
        refuse_out_of_range(self, "/model/streams", STREAMS_LIMITS)

    def layer_parameters(self, hidden_size: int) -> int:
        """Return the weights of one layer except its norms: coefficients, their products, a scale."""
        mixing = self.count**2 + self.count**3
        return mixing + hidden_size * (self.count + 2 * self.low_rank + 1)

    def layer_products(self, hidden_size: int) -> int:
        """Multiply-adds of one token in one layer: the streams' mixture is one, its correction is not."""
        mixing = self.count**2 + self.count**3 + hidden_size * self.count**2
        return mixing + 2 * hidden_size * (self.count + self.low_rank)

    def end_parameters(self, hidden_size: int) -> int:
        """Return weights that make the other streams of the embedding, and as many that join them."""
        return (self.count - 1) * hidden_size**2

    def kept_elements(self, hidden_size: int) -> int:
        """Return the 2-byte elements of a token that one layer keeps for its backward pass; norms aside.

        The streams that are mixed and what is added to each, what yields the coefficients twice, the
        corrected state before its scale, and the low rank.
        """
        return hidden_size * (2 * self.count + 3) + self.low_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionSpec:
    """A diffusion transformer: layers over latent tokens, modulated by a time step, and no logits.

    Tokens are patches of latents, which the model's embedding and head project: the vocabulary size is the
    number of outputs of a patch. Vectors of the sample scale and shift each block's norm and scale what the
    block adds (Peebles and Xie 2022, DiT, arXiv:2212.09748, section 3.2). Text is read by cross-attention
    in every layer (Wan, arXiv:2503.20314, section 4.2.1), or is part of the sequence, with separate weights
    in the first layers (Esser et al. 2024, arXiv:2403.03206, section 4). Text encoders and the autoencoder
    are frozen; the former run in every step where their weights are stated, and the outputs of others are
    computed beforehand.
    """

    context_tokens: int = 0  # text tokens that every layer attends to; 0: no such attention
    two_stream_layers: int = 0  # leading layers with separate attention and MLP weights for text
    layer_weights: int = 0  # of a layer next to its attentions and MLP, applied once a sample: modulation
    two_stream_weights: int = 0  # the same of a layer with two streams
    end_weights: int = 0  # of time step, text and output modulation, and of biases at both ends
    encoder_weights: int = 0  # of frozen text encoders that run in every step; every rank has them whole
    encoder_products: int = 0  # multiply-adds of their forward pass of one sample

    def __post_init__(self) -> None:
        """Refuse sizes out of range, and text that is both read and part of the sequence.

        Raises:
            InvalidProblemError: a size is out of range, or two contradict each other.
        """
        refuse_out_of_range(self, "/model/diffusion", DIFFUSION_LIMITS)
        if self.context_tokens and self.two_stream_layers:
            why = "text is read by cross-attention (context_tokens) or part of the sequence, not both"
            raise InvalidProblemError.of(
                "/model/diffusion/two_stream_layers", why, allowed="0", nearest="0"
            )


def num_streams(streams: StreamsSpec | None) -> int:
    """Return the number of hidden states of a token that layers pass on."""
    return streams.count if streams else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAttention:
    """The attention of local layers where it differs from that of the others; None: no difference.

    The fields are those of ``ModelSpec``, which holds what the other layers have.
    """

    num_attention_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    keys_are_values: bool | None = None
    attention_sinks: bool | None = None

    def __post_init__(self) -> None:
        """Refuse sizes out of range, and an attention that does not differ.

        Raises:
            InvalidProblemError: a size is out of range, or nothing is stated.
        """
        refuse_out_of_range(self, "/model/local_attention", LOCAL_ATTENTION_LIMITS)
        if not self.stated():
            raise InvalidProblemError.of("/model/local_attention", "states nothing; leave it out")

    def stated(self) -> dict[str, Any]:
        """Return the values that differ in local layers."""
        every = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in every if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """The stretching of rotary frequencies; the names are those of Hugging Face ``rope_scaling``."""

    kind: RotaryScalingKind
    factor: float
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn (arXiv:2309.00071)
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn under latent attention
    mscale_all_dim: float | None = None  # yarn under latent attention
    truncate: bool = True  # yarn: the corrected frequencies end at whole dimensions
    attention_factor: float | None = None  # yarn: of the logits; None: 0.1 ln(factor) + 1, or by mscale

    def __post_init__(self) -> None:
        """Refuse factors out of range.

        Raises:
            InvalidProblemError: a factor is out of range.
        """
        refuse_out_of_range(self, "/model/rotary_scaling", ROTARY_SCALING_LIMITS)


# --------------------------------------------------------------------------------------------------
# Lists of layers, by the equivalent rule.


def spaced(layers: Sequence[int], num_layers: int) -> tuple[int, tuple[int, ...]]:
    """Return N and nothing where the layers are every n-th (the last of each n), else 0 and all of them."""
    every = layers[0] + 1 if layers else 0
    if list(layers) == [layer for layer in range(num_layers) if every and (layer + 1) % every == 0]:
        return every, ()
    return 0, tuple(layers)


def expert_placement(layers: Sequence[int], num_layers: int) -> dict[str, Any]:
    """Return the fields of MoeSpec by which exactly these layers, in order, have experts."""
    first = layers[0]
    distance = layers[1] - first if len(layers) > 1 else max(num_layers, 1)
    if list(layers) == list(range(first, num_layers, distance)):
        return {"num_dense_layers": first, "frequency": distance}
    dense = tuple(layer for layer in range(first, num_layers) if layer not in layers)
    return {"num_dense_layers": first, "dense_layers": dense}


# --------------------------------------------------------------------------------------------------
# Facts that contradict one another.


def refuse_contradictions(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Check the parts against each other: leading dense layers, latent head size, learned positions."""
    if model.moe and model.moe.num_dense_layers >= model.num_layers:
        raise InvalidProblemError.of(
            "/model/moe/num_dense_layers",
            f"{model.moe.num_dense_layers} leaves none of the {model.num_layers} layers for experts",
            allowed=f"0 to {model.num_layers - 1}",
        )
    if model.streams and model.streams.sparse_layers > model.num_layers:
        raise InvalidProblemError.of(
            "/model/streams/sparse_layers",
            f"{model.streams.sparse_layers} is more than num_layers = {model.num_layers}",
            allowed=f"0 to {model.num_layers}",
            nearest=str(model.num_layers),
        )
    if model.mla and model.head_dim != model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim:
        raise InvalidProblemError.of(
            "/model/head_dim",
            f"{model.head_dim} is not qk_nope_head_dim + qk_rope_head_dim",
            nearest=str(model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim),
        )
    if model.learned_position_embeddings and model.max_position_embeddings is None:
        raise InvalidProblemError.of(
            "/model/max_position_embeddings", "is required with learned_position_embeddings"
        )
    kinds = ("learned_position_embeddings", "alibi_positions", "sinusoidal_positions")
    stated = [name for name in kinds if getattr(model, name)]
    if len(stated) > 1:
        raise InvalidProblemError.of(f"/model/{stated[1]}", f"contradicts {stated[0]}")
    _refuse_pattern_of_other_layers(model)
    _refuse_unlike_layers_of_other_models(model)
    _refuse_layers_that_are_none(model)
    _refuse_local_attention_of_none(model)
    _refuse_values_of_no_projection(model)
    _refuse_keys_of_no_layer(model)
    _refuse_choices_of_no_layer(model)
    _refuse_mixer_of_no_layer(model)
    _refuse_parts_of_language_models(model)
    if model.shared_norm and not (model.parallel_residual and model.norm_position == "before"):
        raise InvalidProblemError.of(
            "/model/shared_norm", "needs parallel_residual, and norm_position before"
        )
    _refuse_biases_said_twice(model)
    _refuse_gates_of_no_attention(model)
    if model.early_first_norm and model.norm_position not in ("before", "before_and_after"):
        raise InvalidProblemError.of("/model/early_first_norm", "needs norms before attention")
    latent = ("qkv_bias", model.qkv_bias), ("query_key_norm", model.query_key_norm != "none")
    for name in (name for name, there in latent if model.mla and there):
        raise InvalidProblemError.of(
            f"/model/{name}", "latent attention has norms of its latents (mla.norms) and no such bias"
        )


_NOT_IN_DIFFUSION = ("moe", "mla", "mixer", "tower", "layer_pattern", "sliding_window", "borrowing_layers",
                     "streams", "indexer", "num_mtp_layers", "causal")  # fmt: skip


def _refuse_parts_of_language_models(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse parts that no diffusion transformer has, and more layers of two streams than layers."""
    if model.diffusion is None:
        return
    for name in (name for name in _NOT_IN_DIFFUSION if getattr(model, name)):
        raise InvalidProblemError.of(f"/model/{name}", "is not priced in a diffusion transformer")
    if model.diffusion.two_stream_layers > model.num_layers:
        why = f"{model.diffusion.two_stream_layers} is more than num_layers = {model.num_layers}"
        most = str(model.num_layers)
        raise InvalidProblemError.of(
            "/model/diffusion/two_stream_layers", why, allowed=f"0 to {most}", nearest=most
        )


def _refuse_gates_of_no_attention(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    if model.gate_bias and model.attention_gate == "none":
        raise InvalidProblemError.of("/model/gate_bias", "needs attention_gate")
    if model.gate_in_queries and (model.mla or model.attention_gate != "per_element"):
        raise InvalidProblemError.of("/model/gate_in_queries", "needs attention_gate per_element, not mla")


def _refuse_biases_said_twice(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    if model.mlp_output_bias and (model.mlp_bias or model.moe):
        why = "is that of dense MLPs which have no other (mlp_bias), in a model without experts"
        raise InvalidProblemError.of("/model/mlp_output_bias", why)
    if model.last_attention_bias and model.attention_output_bias:
        raise InvalidProblemError.of("/model/last_attention_bias", "every layer has attention_output_bias")


def _refuse_values_of_no_projection(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse values of their own size without a projection; latent attention has one for both."""
    others = {
        "value_head_dim": model.value_head_dim is not None,
        "keys_are_values": model.keys_are_values,
        "value_norm": model.value_norm,
        "value_scale": model.value_scale != 1,
    }
    for name in (name for name, there in others.items() if model.mla and there):
        raise InvalidProblemError.of(f"/model/{name}", "contradicts mla")
    if model.keys_are_values and model.v_head_dim != model.head_dim:
        raise InvalidProblemError.of("/model/value_head_dim", "contradicts keys_are_values")


def _refuse_layers_that_are_none(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse lists of layers that the model does not have, or that repeat a rule of every n-th layer."""
    for name, layers, rule in (
        ("global_layers", model.global_layers, model.sliding_window_every == 1),
        ("no_rotary_layers", model.no_rotary_layers, model.no_rotary_every == 0),
        ("moe/dense_layers", model.moe.dense_layers if model.moe else (), True),
        ("indexer/reusing_layers", model.indexer.reusing_layers if model.indexer else (), True),
    ):
        beyond = [layer for layer in layers if not 0 <= layer < model.num_layers]
        if beyond:
            raise InvalidProblemError.of(
                f"/model/{name}", f"{beyond[0]} is not a layer", allowed=f"0 to {model.num_layers - 1}"
            )
        if layers and not rule:
            raise InvalidProblemError.of(f"/model/{name}", "contradicts the rule of every n-th layer")
    if model.moe and "moe" not in model.layer_kinds():
        raise InvalidProblemError.of("/model/moe/dense_layers", "leaves no layer for experts")


def _refuse_local_attention_of_none(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse an attention of local layers' own unless some layers are local, and none latent."""
    if model.local_attention is None:
        return
    if len(set(model.local_layers())) == 1:
        why = "needs local layers next to global ones: sliding_window, and every n-th or listed layers"
        raise InvalidProblemError.of("/model/local_attention", why)
    if model.mla:
        raise InvalidProblemError.of("/model/local_attention", "contradicts mla")
    try:
        model.attentions()  # checks the heads as of any model
    except InvalidProblemError as error:
        own = [
            replace(one, pointer=one.pointer.replace("/model", "/model/local_attention", 1))
            for one in error.errors
        ]
        raise InvalidProblemError(own) from None


def _refuse_keys_of_no_layer(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse borrowed keys without a layer to borrow them from, or in a layer with keys of its own."""
    if model.borrowing_layers > model.num_layers:
        raise InvalidProblemError.of(
            "/model/borrowing_layers",
            "more than there are layers",
            allowed=f"0 to {model.num_layers - 1}",
        )
    local, own = model.local_layers(), model.num_layers - model.borrowing_layers
    if own and not set(local[own:]) <= set(local[:own]):
        why = f"no layer before the last {model.borrowing_layers} attends as one of them does"
        raise InvalidProblemError.of("/model/borrowing_layers", why)
    if model.borrowing_layers and model.mla:
        raise InvalidProblemError.of("/model/borrowing_layers", "contradicts mla")
    if model.borrowing_ffn_hidden_size and not model.borrowing_layers:
        raise InvalidProblemError.of("/model/borrowing_ffn_hidden_size", "needs borrowing_layers")


def _refuse_choices_of_no_layer(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse an indexer without the queries' latent, and a reused choice that no layer before made."""
    if model.indexer and not (model.mla and model.mla.q_lora_rank):
        raise InvalidProblemError.of("/model/indexer", "needs latent attention with mla.q_lora_rank")
    if model.indexer and 0 in model.indexer.reusing_layers and model.chooser:
        raise InvalidProblemError.of(
            "/model/indexer/reusing_layers", "no layer has chosen before layer 0", allowed="1 and higher"
        )


_NOT_WITH_A_MIXER = (
    "local_attention", "borrowing_layers", "indexer", "streams", "differential_attention", "value_norm",
    "keys_are_values", "layer_embedding_size", "inner_norms", "attention_clip", "parallel_residual",
)  # fmt: skip


_NOT_WITH_A_PATTERN = ("sliding_window", "shared_norm", "inner_norms", "early_first_norm")
_LETTERS = {"M": "mixer", "E": "moe"}  # of a pattern, with the part of the model that they need


def _refuse_pattern_of_other_layers(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse a pattern of another length, of unknown letters, or that does not fit the model's parts."""
    pattern, pointer = model.layer_pattern, "/model/layer_pattern"
    if not pattern:
        return
    wrong = next((letter for letter in pattern if letter not in "M*-E"), None)
    if wrong is not None:
        allowed = "M (mixer), * (attention), - (MLP), E (experts)"
        raise InvalidProblemError.of(pointer, f"{wrong!r} is not a kind of layer", allowed=allowed)
    if len(pattern) != model.num_layers:
        why = f"{len(pattern)} letters for num_layers = {model.num_layers}"
        raise InvalidProblemError.of(pointer, why, allowed=f"{model.num_layers} letters")
    for letter, part in _LETTERS.items():
        if (letter in pattern) != (getattr(model, part) is not None):
            why = f"has {'a' if letter in pattern else 'no'} layer {letter}, and model.{part} is "
            raise InvalidProblemError.of(pointer, why + ("missing" if letter in pattern else "stated"))
    moe, mixer = model.moe, model.mixer
    placed = moe and (moe.num_dense_layers, moe.frequency, moe.dense_layers) != (0, 1, ())
    if placed or (mixer and (mixer.attention_every or mixer.attention_layers)):
        name = "moe/num_dense_layers" if placed else "mixer/attention_every"
        raise InvalidProblemError.of(f"/model/{name}", "layer_pattern states which layers these are")
    named = [name for name in (*_NOT_WITH_A_PATTERN, *_NOT_WITH_A_MIXER) if getattr(model, name)]
    named += [] if model.norm_position == "before" else ["norm_position"]
    for name in named:
        raise InvalidProblemError.of(f"/model/{name}", "is not priced in layers of one block")


_NOT_WITH_UNLIKE_LAYERS = (
    *_NOT_WITH_A_PATTERN, *_NOT_WITH_A_MIXER, "moe", "mla", "mixer", "tower", "diffusion", "layer_pattern",
    "num_mtp_layers",
)  # fmt: skip


def _refuse_unlike_layers_of_other_models(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse sizes of another number of layers, layers of no block, and what is not priced with them."""
    widths, heads, pointer = model.layer_ffn_sizes, model.layer_kv_heads, "/model/layer_kv_heads"
    if not (widths or heads):
        return
    for name, sizes in (("layer_ffn_sizes", widths), ("layer_kv_heads", heads)):
        if sizes and len(sizes) != model.num_layers:
            why = f"{len(sizes)} sizes for num_layers = {model.num_layers}"
            raise InvalidProblemError.of(f"/model/{name}", why, allowed=f"{model.num_layers} sizes")
    empty = next(
        (layer for layer, pair in enumerate(zip(widths, heads, strict=False)) if not any(pair)), None
    )
    if empty is not None:
        raise InvalidProblemError.of(pointer, f"layer {empty} has neither attention nor an MLP")
    wrong = next((each for each in heads if each and model.num_attention_heads % each), None)
    if wrong is not None:
        why = f"{wrong} does not divide num_attention_heads = {model.num_attention_heads}"
        raise InvalidProblemError.of(pointer, why, allowed="0, or a divisor of num_attention_heads")
    named = [name for name in _NOT_WITH_UNLIKE_LAYERS if getattr(model, name)]
    named += [] if model.norm_position == "before" else ["norm_position"]
    for name in named:
        raise InvalidProblemError.of(f"/model/{name}", "is not priced where layers have unlike sizes")


def _refuse_mixer_of_no_layer(model: Any) -> None:  # noqa: ANN401 - a ModelSpec, which is made of these parts
    """Refuse a mixer that no layer has, listed layers that do not exist, and attention that it excludes."""
    if model.mixer is None:
        return
    if model.mixer.with_attention and (model.layer_pattern or model.mla or model.moe):
        name = next(one for one in ("layer_pattern", "mla", "moe") if getattr(model, one))
        raise InvalidProblemError.of(f"/model/{name}", "is not priced where a mixer is next to attention")
    beyond = [layer for layer in model.mixer.attention_layers if not 0 <= layer < model.num_layers]
    if beyond:
        raise InvalidProblemError.of(
            "/model/mixer/attention_layers",
            f"{beyond[0]} is not a layer",
            allowed=f"0 to {model.num_layers - 1}",
        )
    if not model.mixer.with_attention and not any(model.mixing_layers()):
        raise InvalidProblemError.of("/model/mixer", "every layer attends: no layer is left for the mixer")
    for name in (name for name in _NOT_WITH_A_MIXER if getattr(model, name)):
        raise InvalidProblemError.of(f"/model/{name}", "is not priced next to a mixer")
