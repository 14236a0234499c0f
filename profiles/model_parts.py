"""The parts that only some models have, and the sizes that models and their parts may have.

Experts, latent attention, its indexer, scaled rotary positions: every field is a fact as those of
``ModelSpec`` are. The sizes are one table, for the dataclasses and for whoever reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

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
    "hyper_streams": (0, 64),
    "residual_block_layers": (0, 10_000),
    "borrowing_layers": (0, 10_000),
    "borrowing_ffn_hidden_size": (1, 2**24),
    "num_mtp_layers": (0, 64),
    "num_labels": (0, 2**20),
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


class Exclusion(NamedTuple):
    """A field that contradicts others."""

    name: str  # of the field, below the part
    holds: object  # true if it contradicts them
    why: str
    allowed: str | None = None
    nearest: str | None = None


class Checked:
    """A dataclass that refuses sizes out of range and fields that contradict each other."""

    __slots__ = ()
    POINTER: ClassVar[str]
    LIMITS: ClassVar[Limits]

    def exclusions(self) -> Iterable[Exclusion]:
        """Yield the fields that contradict others, once all sizes are in range."""
        return ()

    def __post_init__(self) -> None:
        """Check the numbers, then the fields against each other; None is not checked.

        Raises:
            InvalidProblemError: fields that are not numbers (not integers, if the limits are integers) or
                lie outside their limits, or the first exclusion that holds.
        """
        errors = []
        for name, (low, high) in self.LIMITS.items():
            value, pointer, whole = getattr(self, name), f"{self.POINTER}/{name}", isinstance(low, int)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                message = "must be a whole number" if whole else "must be a number"
                errors.append(FieldError(pointer=pointer, message=message))
            elif not low <= value <= high:
                message = f"{value if abs(value) < 10**20 else 'the value'} is out of range"
                errors.append(FieldError(pointer=pointer, message=message, allowed=f"{low} to {high}"))
        if errors:
            raise InvalidProblemError(errors)
        for one in self.exclusions():
            if one.holds:
                pointer = f"{self.POINTER}/{one.name}".rstrip("/")
                raise InvalidProblemError.of(pointer, one.why, allowed=one.allowed, nearest=one.nearest)


# Proportional: frequencies are those of the whole head, of which a part is rotated (Gemma 4).
RotaryScalingKind = Literal["llama3", "yarn", "linear", "dynamic", "longrope", "proportional"]


# Under which names peft finds routed experts. transformers 5 has those of a layer in two fused tensors; of
# the types that peft lists it takes ``gate_proj``, ``up_proj``, ``down_proj`` and ``gate`` for them, or
# Mixtral's ones; of all others they get no adapters. In remote code they are linear layers (peft 0.21,
# utils/transformers_weight_conversion.py; transformers 5.23, conversion_mapping.py). Listed ones are linear
# layers too, numbered and run one after another (Axolotl 0.19, monkeypatch/models/llama4/modeling.py).
ExpertAdapters = Literal["gate_up", "w1_w3", "linear", "listed", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec(Checked):
    """The mixture-of-experts part of a model."""

    POINTER = "/model/moe"
    LIMITS: ClassVar[Limits] = {
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

    num_experts: int  # routed experts per MoE layer
    top_k: int  # routed experts each token visits
    ffn_hidden_size: int  # hidden width of one routed expert
    num_shared_experts: int = 0  # experts every token visits
    shared_ffn_hidden_size: int = 0  # hidden width of *all* shared experts together
    latent_size: int = 0  # of what routed experts read and yield, projected; 0: the hidden size
    latent_norm: bool = False  # of what they add, before it is projected back
    num_dense_layers: int = 0  # leading layers without experts
    frequency: int = 1  # after the leading ones, every ``frequency``-th layer is MoE
    dense_layers: tuple[int, ...] = ()  # and these, counted from 0, are dense as well
    router_score: Literal["softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"] = "softmax"
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
    runs_every_expert: bool = False  # transformers' class does, on every token, and adds what was chosen

    @property
    def dispatched(self) -> bool:
        """Return whether transformers' class has its experts in one tensor, and runs them as asked."""
        return self.expert_adapters == "gate_up" and not self.runs_every_expert

    def exclusions(self) -> Iterable[Exclusion]:
        """Yield experts that cannot be routed to, and parts of experts that are not there."""
        widths = "num_shared_experts and shared_ffn_hidden_size are both positive or both 0"
        unshared, none = not self.num_shared_experts, "there are no shared experts"
        return (
            Exclusion(
                "top_k", self.top_k > self.num_experts,
                f"{self.top_k} is more than num_experts = {self.num_experts}", f"1 to {self.num_experts}",
            ),
            Exclusion("shared_ffn_hidden_size", unshared != (not self.shared_ffn_hidden_size), widths),
            Exclusion(
                "router_top_groups", self.router_top_groups > self.router_groups,
                f"{self.router_top_groups} is more than router_groups = {self.router_groups}",
                f"0 to {self.router_groups}",
            ),
            Exclusion(
                "balanced_by_sequence", self.balanced_by_sequence and not self.balance_coefficient,
                "there is no loss: balance_coefficient is 0",
            ),
            Exclusion("latent_norm", self.latent_norm and not self.latent_size, "needs latent_size"),
            Exclusion("norms_apart", self.norms_apart and unshared, none),
            Exclusion("shared_expert_gate", self.shared_expert_gate and unshared, none),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec(Checked):
    """Multi-head latent attention: low-rank queries and keys/values (DeepSeek-V2, section 2.1)."""

    POINTER = "/model/mla"
    LIMITS: ClassVar[Limits] = {
        "q_lora_rank": (0, 2**20),
        "kv_lora_rank": (1, 2**20),
        "qk_nope_head_dim": (1, 2**14),
        "qk_rope_head_dim": (1, 2**14),
        "v_head_dim": (1, 2**14),
    }

    q_lora_rank: int  # 0: queries are projected directly
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    norms: bool = True  # RMSNorm of the low-rank queries and of the low-rank keys/values
    latent_bias: bool = False  # of the down-projections

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
class IndexerSpec(Checked):
    """DeepSeek sparse attention: an indexer that chooses the keys that each query's attention reads.

    Its heads score every earlier token (``relu(q k)``, weighted by head and summed); attention then reads
    the ``top_k`` best. Queries come from the queries' latent, one key and the heads' weights from the
    layer's input, keys pass a LayerNorm (transformers 5.23, ``DeepseekV32Indexer``; DeepSeek-V3.2,
    arXiv:2512.02556, section 2.1). One that chooses blocks scores them by their best key, for each of its
    heads alone. It reads queries from the layer's input, and both pass an RMSNorm (transformers 5.23,
    ``MiniMaxM3VLIndexer``).
    """

    POINTER = "/model/indexer"
    LIMITS: ClassVar[Limits] = {
        "num_heads": (1, 2**16),
        "head_dim": (1, 2**14),
        "top_k": (1, 2**31 - 1),
    }

    num_heads: int
    head_dim: int
    top_k: int  # tokens that attention reads of a longer sequence
    reusing_layers: tuple[int, ...] = ()  # counted from 0: they read what the last other one has chosen
    whole_layers: tuple[int, ...] = ()  # counted from 0: they have no indexer, and read all keys
    block_size: int = 1  # keys that are chosen together; 1: each alone, next to latent attention

    @property
    def of_blocks(self) -> bool:
        """Return whether blocks of keys are chosen."""
        return self.block_size > 1

    def kept_bytes(self, seq_length: float) -> float:
        """Return the bytes of a token that are kept: queries, key, weights, and the chosen in 4 each."""
        chosen = min(self.top_k, seq_length) / self.block_size * (self.num_heads if self.of_blocks else 1)
        widths = (self.num_heads + 1.0) * self.head_dim + self.num_heads * (not self.of_blocks)
        return 2.0 * widths + 4.0 * chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSpec(Checked):
    """Attention to a window and to compressed entries of all tokens before it (DeepSeek-V4).

    Every ``rate`` tokens of a layer become one entry, a sum weighted by what another product yields and by
    trained biases of the positions. Layers of ``chosen_rate`` add two such series, and an indexer with
    entries of its own chooses ``top_k`` of theirs for each query; layers of another rate read all. One head
    of keys, which are the values, is shared by all queries. These come from a latent, and the output passes
    a product of each group of heads before the last one (transformers 5.23, ``DeepseekV4Attention``,
    ``DeepseekV4CSACompressor``, ``DeepseekV4HCACompressor``, ``DeepseekV4Indexer``).
    """

    POINTER = "/model/compression"
    LIMITS: ClassVar[Limits] = {
        "q_lora_rank": (1, 2**20),
        "output_groups": (1, 2**16),
        "output_rank": (1, 2**20),
        "chosen_rate": (0, 2**20),
        "index_heads": (1, 2**16),
        "index_head_dim": (1, 2**14),
        "top_k": (1, 2**31 - 1),
    }

    q_lora_rank: int
    output_groups: int  # of heads, each with a product of its own
    output_rank: int  # columns of each of these
    rates: tuple[int, ...]  # of each layer: tokens of an entry; 0: the window alone
    chosen_rate: int = 0  # whose entries an indexer chooses; 0: of no layer
    index_heads: int = 1
    index_head_dim: int = 1
    top_k: int = 1  # entries that a query reads

    def chooses(self, rate: int) -> bool:
        """Return whether an indexer chooses the entries of layers of a rate."""
        return rate > 0 and rate == self.chosen_rate

    def series(self, rate: int) -> int:
        """Return how many rows each token adds to entries: to its own one, and to the next."""
        return (1 + self.chooses(rate)) * (rate > 0)

    def vector_parameters(self, rate: int, head_dim: int) -> int:
        """Return the weights of a layer's norms of latents and entries."""
        inner = head_dim * (rate > 0) + self.index_head_dim * self.chooses(rate)
        return self.q_lora_rank + head_dim + inner

    def position_parameters(self, rate: int, head_dim: int) -> int:
        """Return the biases of positions inside an entry."""
        inner = self.index_head_dim if self.chooses(rate) else 0
        return rate * self.series(rate) * (head_dim + inner)

    def kept_bytes(self, rate: int, head_dim: int, seq_length: float) -> float:
        """Return the bytes of a token that entries keep for the backward pass, in one layer.

        Each series keeps a row, its weights in 4 bytes from a softmax and in 2 from a cast, and what has
        been weighted is one entry every ``rate`` tokens before and behind its norm (transformers 5.23,
        ``DeepseekV4CSACompressor``). An indexer keeps queries, entries, weights, and in 4 bytes the chosen
        numbers, as that of ``IndexerSpec``.
        """
        if not rate:
            return 0.0
        kept = 8.0 * self.series(rate) * head_dim + 6.0 * head_dim / rate
        if self.chooses(rate):
            widths = (self.index_heads + self.series(rate)) * self.index_head_dim + self.index_heads
            kept += 2.0 * widths + 4.0 * min(self.top_k, seq_length / rate)
        return kept

    def entries(self, rate: int, seq_length: float) -> float:
        """Return the mean number of finished entries before a query, over the tokens of a sequence."""
        return _floors(seq_length, rate, float("inf")) if rate else 0.0

    def read_entries(self, rate: int, seq_length: float) -> float:
        """Return the mean number of entries that a query reads."""
        if not rate:
            return 0.0
        return _floors(seq_length, rate, self.top_k if self.chooses(rate) else float("inf"))


def _floors(length: float, rate: int, most: float) -> float:
    """Return the mean of ``min(floor(i / rate), most)`` over i from 1 to ``length``."""
    whole = min(length // rate, most)
    return (rate * whole * (whole - 1) / 2 + (length - whole * rate + 1) * whole) / length


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSpec(Checked):
    """Several hidden states of a token: each layer computes one and predicts the others (Gemma 3n).

    Alternating updates (arXiv:2301.13310) mix all streams before the layer, and correct them by what it
    has computed, with coefficients that a product of the hidden state yields, once before and once behind;
    both read a norm of it. Parallel to attention there is a low-rank product with a norm (LAuReL,
    arXiv:2411.07501). The others begin and end as a square product each of the first (transformers 5.23,
    ``Gemma3nTextDecoderLayer``, ``Gemma3nTextModel``).
    """

    POINTER = "/model/streams"
    LIMITS: ClassVar[Limits] = {
        "count": (1, 64),
        "low_rank": (1, 2**20),
        "sparse_layers": (0, 10_000),
    }

    count: int
    low_rank: int
    sparse_layers: int = 0  # layers with an MLP gate cut at a quantile of its elements

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
class DiffusionSpec(Checked):
    """A diffusion transformer: layers over latent tokens, modulated by a time step, and no logits.

    Tokens are patches of latents, which the model's embedding and head project: the vocabulary size is the
    number of outputs of a patch. Vectors of the sample scale and shift each block's norm and scale what the
    block adds (Peebles and Xie 2022, DiT, arXiv:2212.09748, section 3.2). Text is read by cross-attention
    in every layer (Wan, arXiv:2503.20314, section 4.2.1), or is part of the sequence, with separate weights
    in the first layers (Esser et al. 2024, arXiv:2403.03206, section 4). Text encoders and the autoencoder
    are frozen; the former run in every step where their weights are stated, and the outputs of others are
    computed beforehand.
    """

    POINTER = "/model/diffusion"
    LIMITS: ClassVar[Limits] = {
        "context_tokens": (0, 2**24),
        "two_stream_layers": (0, 10_000),
        "layer_weights": (-(2**40), 2**40),
        "two_stream_weights": (0, 2**40),
        "end_weights": (-(2**40), 2**40),
        "encoder_weights": (0, 2**40),
        "encoder_products": (0, 2**52),
    }

    context_tokens: int = 0  # text tokens that every layer attends to; 0: no such attention
    two_stream_layers: int = 0  # leading layers with separate attention and MLP weights for text
    layer_weights: int = 0  # of a layer next to its attentions and MLP, applied once a sample: modulation
    two_stream_weights: int = 0  # the same of a layer with two streams
    end_weights: int = 0  # of time step, text and output modulation, and of biases at both ends
    encoder_weights: int = 0  # of frozen text encoders that run in every step; every rank has them whole
    encoder_products: int = 0  # multiply-adds of their forward pass of one sample

    def exclusions(self) -> Iterable[Exclusion]:
        """Yield text that is both read and part of the sequence."""
        why = (
            "text is either the input of cross-attention (context_tokens) or part of the sequence, not both"
        )
        both = self.context_tokens and self.two_stream_layers
        return (Exclusion("two_stream_layers", both, why, "0", "0"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAttention(Checked):
    """The attention of local layers where it differs from that of the others; None: no difference.

    The fields are those of ``ModelSpec``, which holds what the other layers have.
    """

    POINTER = "/model/local_attention"
    LIMITS: ClassVar[Limits] = {
        name: MODEL_LIMITS[name]
        for name in ("num_attention_heads", "num_kv_heads", "head_dim", "value_head_dim")
    }

    num_attention_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    keys_are_values: bool | None = None
    attention_sinks: bool | None = None

    def exclusions(self) -> Iterable[Exclusion]:
        """Yield an attention that does not differ."""
        return (Exclusion("", not self.stated(), "is empty: leave it out"),)

    def stated(self) -> dict[str, Any]:
        """Return the values that differ in local layers."""
        every = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in every if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling(Checked):
    """The stretching of rotary frequencies; the names are those of Hugging Face ``rope_scaling``."""

    POINTER = "/model/rotary_scaling"
    LIMITS: ClassVar[Limits] = {
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

    @property
    def scales_rotations(self) -> bool:
        """Return whether YaRN multiplies sines and cosines: equal scales of both parts cancel out."""
        if self.kind != "yarn" or self.factor <= 1.0 or self.attention_factor == 1.0:
            return False
        return self.mscale is None or self.mscale != self.mscale_all_dim


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
