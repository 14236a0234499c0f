"""Transformers: the architecture as a list of facts, its parameters and FLOPs.

Every field of ``ModelSpec`` and its parts is one fact that changes parameters, FLOPs, memory, kernels or
the contents of a launch file. The defaults describe a Llama (arXiv:2302.13971).

Parameters and FLOPs follow Narayanan et al. 2021 (arXiv:2104.04473, appendix) generalised to
grouped-query attention, gated MLPs, mixture of experts and multi-head latent attention
(DeepSeek-V2, arXiv:2405.04434, section 2.1). One multiply-add counts as 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.layer_names import LayerNames
from meshwright.profiles.layers.build import layer_of
from meshwright.profiles.layers.ends import first_of, head_of, prediction_of
from meshwright.profiles.layers.operators import Layer, Matrix, Operator
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model_parts import (
    MODEL_LIMITS,
    Checked,
    CompressionSpec,
    DiffusionSpec,
    IndexerSpec,
    LocalAttention,
    MlaSpec,
    MoeSpec,
    RotaryScaling,
    StreamsSpec,
)
from meshwright.profiles.model_rules import exclusions_of
from meshwright.profiles.sequences import Documents
from meshwright.profiles.stored import StoredAs
from meshwright.profiles.tower_modules import modules_of
from meshwright.profiles.towers import FrozenPart, ImageLoad, TowerSpec
from meshwright.profiles.trained_layers import TRAINED, LayerTraining

LayerKind = Literal["dense", "moe"]
# Blocks of a layer: attention (or a mixer) and an MLP (or experts), or one of the two alone.
LayerPart = Literal["both", "mixing", "mlp"]
# Letters of ``layer_pattern``, as Megatron-LM and Nemotron-H write them.
MIXER_LAYER, ATTENTION_LAYER, MLP_LAYER, EXPERT_LAYER = "M*-E"
_PARTS: Mapping[str, LayerPart] = {
    MIXER_LAYER: "mixing", ATTENTION_LAYER: "mixing", MLP_LAYER: "mlp", EXPERT_LAYER: "mlp",
}  # fmt: skip
Normalization = Literal[
    "rmsnorm", "rmsnorm_without_weights", "layernorm", "layernorm_without_bias", "layernorm_without_weights"
]
# Of attention and of the MLP: of what they read, of what they add, of both, or of the sum that results.
NormPosition = Literal["before", "after", "before_and_after", "after_residual"]
Activation = Literal["silu", "gelu", "quick_gelu", "relu", "squared_relu", "xielu", "situ"]
# One vector for every head alike, one for all heads together, one of each head's own, or none.
QueryKeyNorm = Literal["none", "per_head", "all_heads", "each_head", "per_head_without_weights"]
AttentionGate = Literal["none", "per_head", "per_element"]

_VECTORS = {"rmsnorm": 1, "rmsnorm_without_weights": 0, "layernorm": 2, "layernorm_without_bias": 1,
            "layernorm_without_weights": 0}  # fmt: skip
_NORMS = {"before": 2, "after": 2, "before_and_after": 4, "after_residual": 2}  # of one layer


class LayerShape(NamedTuple):
    """The arguments that the sizes of a layer depend on: its MLP, and the kind of its attention."""

    kind: LayerKind
    local: bool = False  # those of ``local_attention``
    borrows: bool = False  # reads the keys and values of an earlier layer
    reuses: bool = False  # reads what an earlier layer's indexer has chosen
    mixes: bool = False  # has the model's ``mixer`` instead of attention
    part: LayerPart = "both"  # the blocks that it has
    two_streams: bool = False  # has weights of its own for text among the tokens
    ffn_size: int | None = None  # of its MLP, where layers have unlike sizes
    kv_heads: int | None = None  # of its attention, likewise
    rate: int = 0  # tokens of an entry that its attention reads
    reads_all: bool = False  # has no indexer, where others have
    trains: LayerTraining = TRAINED  # what a workload makes of its weights


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Checked):
    """The shape of one decoder-only transformer."""

    POINTER = "/model"
    LIMITS = MODEL_LIMITS

    name: str
    num_layers: int  # transformer layers, the multi-token-prediction ones not counted
    hidden_size: int
    ffn_hidden_size: int  # of the dense layers
    num_attention_heads: int
    num_kv_heads: int  # fewer than heads: grouped-query attention
    head_dim: int  # query/key size of one head; need not be hidden_size / heads
    vocab_size: int
    value_head_dim: int | None = None  # value size of one head; None: head_dim
    keys_are_values: bool = False  # one projection yields both
    gated_mlp: bool = True  # SwiGLU-like: three MLP matrices instead of two
    layer_names: LayerNames = "llama"  # what transformers' class calls its linear layers; names alone
    fused_qkv: bool = False  # transformers' class has one linear layer for queries, keys and values
    fused_kv: bool = False  # or one for keys and values (TeleChat)
    fused_gate_up: bool = False  # and one for the MLP's two; each of these changes adapters alone
    activation: Activation | None = None  # None: silu of a gated MLP, gelu of another
    activation_clamp: float | None = None  # both inputs of a gated MLP's product are clamped to it
    gate_offset: float = 0.0  # added to the linear half of a gated MLP
    tied_embeddings: bool = False
    embedding_size: int | None = None  # of the token embedding and the head, projected; None: hidden_size
    layer_embedding_size: int = 0  # of embeddings that every layer has of its own (Gemma 3n); 0: none
    layer_vocab_size: int | None = None  # rows of their table; None: vocab_size
    borrowing_layers: int = 0  # last ones, which read the keys of the last before them that attends alike
    borrowing_ffn_hidden_size: int | None = None  # of their MLPs; None: as the others
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    indexer: IndexerSpec | None = None  # next to latent attention: chooses the keys that it reads
    compression: CompressionSpec | None = None  # attention to a window and compressed entries
    streams: StreamsSpec | None = None  # several hidden states of a token (Gemma 3n)
    # Hidden states of a token that hyper-connections mix (mHC, arXiv:2512.24880); 0: there is one alone
    hyper_streams: int = 0
    # Layers of a block whose sum later blocks of layers attend to, in place of one running sum: attention
    # residuals (Kimi K3, arXiv:2607.24653, section 2.2); 0: there is one running sum
    residual_block_layers: int = 0
    mixer: MixerSpec | None = None  # what some layers have instead of attention
    tower: TowerSpec | None = None  # of images; their tokens precede the first layer
    diffusion: DiffusionSpec | None = None  # of latents that a time step modulates; no logits
    layer_pattern: str = ""  # layers of one block each: M mixer, * attention, - MLP, E experts
    # Where layers have unlike sizes, those of each (Bercovich et al. 2024, Puzzle, arXiv:2411.19146);
    # 0: a layer has no such block
    layer_ffn_sizes: tuple[int, ...] = ()
    layer_kv_heads: tuple[int, ...] = ()
    num_mtp_layers: int = 0  # multi-token-prediction layers after the last one
    sliding_window: int | None = None  # attended tokens of a local layer; None: all attend to all
    sliding_window_every: int = 1  # 1: every layer local; n: every n-th layer is global
    global_layers: tuple[int, ...] = ()  # global ones, counted from 0, where they are not every n-th
    chunked_attention: bool = False  # local layers attend within chunks as long as the window
    local_attention: LocalAttention | None = None  # of local layers, where it is another one
    causal: bool = True  # tokens attend to earlier ones alone
    learned_position_embeddings: bool = False
    max_position_embeddings: int | None = None
    learned_position_offset: int = 0  # rows of the position table before the first position's
    alibi_positions: bool = False  # distances are subtracted from scores (arXiv:2108.12409)
    sinusoidal_positions: bool = False  # added to the embedding, not trained (arXiv:1706.03762)
    rotary_base: int | None = None  # of rotary positions (RoFormer, arXiv:2104.09864); None: not stated
    rotary_local_base: int | None = None  # of local layers, not scaled there; None: as the others
    rotary_fraction: float = 1.0  # share of a head that is rotated
    rotary_local_fraction: float | None = None  # of local layers; None: as the others
    rotary_scaling: RotaryScaling | None = None
    no_rotary_every: int = 0  # every n-th layer has no positions; 0: every layer has
    no_rotary_layers: tuple[int, ...] = ()  # those without, counted from 0, where not every n-th
    normalization: Normalization = "rmsnorm"
    norm_position: NormPosition = "before"
    norm_epsilon: float | None = None  # None: not stated
    zero_centered_norm: bool = False  # the weight is added to 1
    parallel_residual: bool = False  # attention and MLP read the same input
    shared_norm: bool = False  # and through one norm
    query_key_norm: QueryKeyNorm = "none"
    embedding_norm: bool = False
    early_first_norm: bool = False  # the first layer's attention norm comes before its residual, too
    final_norm: bool = True  # before the output head
    inner_norms: bool = False  # of what the last product of attention and of the MLP reads
    differential_attention: bool = False  # two attentions, one subtracted (arXiv:2410.05258)
    value_norm: bool = False  # of each head's values, without weights
    value_scale: float = 1.0  # of values
    attention_gate: AttentionGate = "none"  # attention's output times what one more projection yields
    gate_bias: bool = False  # one number of each head, added to that
    gate_in_queries: bool = False  # that projection and the queries' are one layer; changes adapters alone
    qkv_bias: bool = False
    attention_output_bias: bool = False
    last_attention_bias: bool = False  # that of the last layer alone (GPT-NeoX Japanese)
    mlp_bias: bool = False  # of dense MLPs and of experts
    mlp_output_bias: bool = False  # of a dense MLP's last matrix alone (TeleChat)
    head_bias: bool = False
    normalized_head: bool = False  # the head's rows have unit length wherever they are used (Baichuan 2)
    head_transform: bool = False  # a square product, the activation and a norm before the head
    num_labels: int = 0  # outputs of a head of rewards or classes, in place of logits; 0: a language model
    attention_softcap: float | None = None  # scores: softcap * tanh(score / softcap)
    logit_softcap: float | None = None
    attention_sinks: bool = False  # a trained score of each head that attends to nothing
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    attention_clip: float | None = None  # queries, keys and values are clamped to it
    position_scaled_queries: bool = False  # by the logarithm of their position (Llama 4, Ministral 3)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add
    depth_scaled_residuals: bool = False  # the n-th sum is √((n-1)/n) x + √(1/n) f(x) (Beam)
    logit_scale: float = 1.0
    stored_as: StoredAs = ""  # what its published weights are quantised to; plans train 16-bit ones
    source: str = ""
    display_name: str = ""

    exclusions = exclusions_of

    @cached_property
    def mlp_activation(self) -> Activation:
        """Return the MLP's activation, where it is not stated the usual one."""
        return self.activation or ("silu" if self.gated_mlp else "gelu")

    @property
    def head_outputs(self) -> int:
        """Return the outputs of the head: logits of the vocabulary, or labels."""
        return self.num_labels or self.vocab_size

    def scored(self, labels: int, *, bias: bool = False) -> ModelSpec:
        """Return the model with a head of labels in place of logits, as transformers' classes build it.

        ForSequenceClassification and ForTokenClassification score every token by a matrix of their own
        (modeling_layers.py).
        """
        return replace(
            self, num_labels=labels, tied_embeddings=False, head_bias=bias, normalized_head=False,
            num_mtp_layers=0,
        )  # fmt: skip

    def padded_vocabulary(self, multiple: int) -> int:
        """Return the rows of embedding and head that are padded to a multiple."""
        return -(-self.vocab_size // multiple) * multiple

    @cached_property
    def has_rotary_positions(self) -> bool:
        """Return whether positions are rotations of queries and keys."""
        return not (self.learned_position_embeddings or self.alibi_positions or self.sinusoidal_positions)

    @cached_property
    def norm_kind(self) -> Literal["rmsnorm", "layernorm"]:
        """Return the norm's operation, whatever weights it has."""
        return "rmsnorm" if self.normalization.startswith("rmsnorm") else "layernorm"

    @cached_property
    def title(self) -> str:
        """Return the name as people write it."""
        return self.display_name or self.name

    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Return the kind of each of the ``num_layers`` layers, in model order."""
        if self.layer_pattern:
            return tuple("moe" if letter == EXPERT_LAYER else "dense" for letter in self.layer_pattern)
        kinds: list[LayerKind] = ["dense"] * self.num_layers
        if self.moe is not None:
            for layer in range(self.moe.num_dense_layers, self.num_layers, self.moe.frequency):
                kinds[layer] = "moe"
            for layer in self.moe.dense_layers:
                kinds[layer] = "dense"
        return tuple(kinds)

    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Return the shape of each of the ``num_layers`` layers, in model order."""
        apart = self.local_layers() if self.local_attention else (False,) * self.num_layers
        own = self.num_layers - self.borrowing_layers * int(not self.borrows)
        borrow = (layer >= own for layer in range(self.num_layers))
        listed = self.indexer.reusing_layers if self.indexer and self.chooser else ()
        reuse = (layer in listed for layer in range(self.num_layers))
        parts = [_PARTS[letter] for letter in self.layer_pattern] or ["both"] * self.num_layers
        double = self.diffusion.two_stream_layers if self.diffusion else 0
        streams = (layer < double for layer in range(self.num_layers))
        rates = self.compression.rates if self.compression else (0,) * self.num_layers
        unchosen = self.indexer.whole_layers if self.indexer else ()
        every = (layer in unchosen for layer in range(self.num_layers))
        none = (None,) * self.num_layers
        widths, heads = self.layer_ffn_sizes or none, self.layer_kv_heads or none
        if self.unlike_layers:
            pairs = zip(widths, heads, strict=True)
            parts = ["mixing" if width == 0 else "mlp" if own == 0 else "both" for width, own in pairs]
        each = (
            self.layer_kinds(), apart, borrow, reuse, self.mixing_layers(), parts, streams, widths, heads,
            rates, every,
        )  # fmt: skip
        return tuple(map(LayerShape, *each))

    def mixing_layers(self) -> tuple[bool, ...]:
        """Return whether each of the ``num_layers`` layers has the mixer instead of attention."""
        mixer = self.mixer
        if self.layer_pattern:
            return tuple(letter == MIXER_LAYER for letter in self.layer_pattern)
        mixes = mixer is not None and not mixer.with_attention
        return tuple(bool(mixes and mixer and not mixer.attends(layer)) for layer in range(self.num_layers))

    @lru_cache(maxsize=64)  # noqa: B019 - models are few
    def shapes(self) -> tuple[LayerShape, ...]:
        """Return the shapes that occur: without experts before those with, smaller before larger."""
        found = set(self.layer_shapes())
        sizes = {one: self.shaped(one).layer_parameters(one.kind) for one in found}
        return tuple(sorted(found, key=lambda one: (one.kind, sizes[one], one)))

    def shaped(self, shape: LayerShape) -> ModelSpec:
        """Return the model as it were if the attention of every layer were that of this shape's."""
        return self if self.attends_alike else _attending(self, shape)

    @cached_property
    def unlike_layers(self) -> bool:
        """Return whether sizes are stated layer by layer."""
        return bool(self.layer_ffn_sizes or self.layer_kv_heads)

    @cached_property
    def attends_alike(self) -> bool:
        """Return whether all layers attend alike."""
        if self.unlike_layers:
            return False
        reused = self.chooser is not None and self.chooser.reusing_layers
        mixing = (
            _of_mixer_layers(self.mixer).items() if self.mixer and not self.mixer.with_attention else ()
        )
        mixed = any(getattr(self, name) != value for name, value in mixing)
        apart = self.local_attention or reused or mixed or len(set(self.layer_pattern)) > 1
        if self.diffusion and 0 < self.diffusion.two_stream_layers < self.num_layers:
            return False
        if self.compression and len(set(self.compression.rates)) > 1:
            return False
        if self.indexer and self.indexer.whole_layers:
            return False
        return not apart and self.borrowing_layers in (0, self.num_layers)

    @cached_property
    def rate(self) -> int:
        """Return the tokens of an entry, as ``shaped`` views a layer; 0: it attends to none."""
        return self.compression.rates[0] if self.compression else 0

    @cached_property
    def num_streams(self) -> int:
        """Return the number of hidden states of a token that layers pass on."""
        return self.streams.count if self.streams else self.hyper_streams or 1

    @cached_property
    def residual_rows(self) -> float:
        """Return the sums of earlier blocks that attention and MLP attend to beside their own: the mean.

        The embedding is the first one. A layer that begins a block closes the one before, between its
        attention and its MLP (Megatron-Bridge 0.7 ``kimi_k3_layers.py KimiK3TransformerLayer``).
        """
        if not (size := self.residual_block_layers):
            return 0.0
        rows = sum(-(-layer // size) + layer // size + 1 for layer in range(self.num_layers))
        return rows / (2 * self.num_layers)

    @cached_property
    def mixes(self) -> bool:
        """Return whether every layer has the mixer, as ``shaped`` views those that do."""
        if self.mixer is None or self.layer_pattern:
            return set(self.layer_pattern) == {MIXER_LAYER}
        if self.mixer.with_attention:
            return False
        return not (self.mixer.attention_every or self.mixer.attention_layers)

    @cached_property
    def paired(self) -> ModelSpec | None:
        """Return the model with its mixers alone, if its layers have them next to attention."""
        if self.mixer is None or not self.mixer.with_attention:
            return None
        return replace(self, **_of_mixer_layers(replace(self.mixer, with_attention=False)))

    @cached_property
    def own_mixer(self) -> MixerSpec | None:
        """Return the mixer that all layers have, as ``shaped`` views them; None: they attend."""
        return self.mixer if self.mixes else None

    @cached_property
    def mixes_tokens(self) -> bool:
        """Return whether a layer has attention or a mixer, as ``shaped`` views it."""
        return not self.layer_pattern or any(_PARTS[letter] == "mixing" for letter in self.layer_pattern)

    @cached_property
    def has_mlp(self) -> bool:
        """Return whether a layer has an MLP or experts, as ``shaped`` views it."""
        return not self.layer_pattern or any(_PARTS[letter] == "mlp" for letter in self.layer_pattern)

    @cached_property
    def num_blocks(self) -> int:
        """Return how many blocks a layer has, each with its residual sum."""
        return 1 if self.layer_pattern else 2 + int(self.crossing is not None)

    @cached_property
    def crossing(self) -> ModelSpec | None:
        """Return the model with the attention to its context alone; None if it reads none.

        Its queries read a window as long as the context, and have no keys of their own.
        """
        tokens = self.diffusion.context_tokens if self.diffusion else 0
        if not tokens:
            return None
        return replace(self, diffusion=None, sliding_window=tokens, borrowing_layers=self.num_layers)

    @cached_property
    def two_streams(self) -> bool:
        """Return whether every layer has weights of its own for text, as ``shaped`` views it."""
        return self.diffusion is not None and self.diffusion.two_stream_layers == self.num_layers

    @cached_property
    def weight_sets(self) -> int:
        """Return the sets of attention and MLP weights of a layer, of which a token passes one."""
        return 2 if self.two_streams else 1

    @cached_property
    def borrows(self) -> bool:
        """Return whether every layer reads another's keys and values: ``shaped`` views those that do."""
        return self.borrowing_layers == self.num_layers

    @cached_property
    def chooser(self) -> IndexerSpec | None:
        """Return the indexer of a layer; None if it reuses a choice (as ``shaped`` views it)."""
        return self.indexer if self.indexer and len(self.indexer.reusing_layers) < self.num_layers else None

    def attentions(self) -> tuple[ModelSpec, ...]:
        """Return the model once for each attention that its layers have, and for a mixer next to it."""
        paired = (self.paired,) if self.paired else ()
        return tuple(dict.fromkeys((*map(self.shaped, self.shapes()), *paired)))

    @cached_property
    def head_counts(self) -> tuple[int, ...]:
        """Return the numbers of attention heads that layers have."""
        return tuple(dict.fromkeys(model.num_attention_heads for model in self.attentions()))

    @cached_property
    def split_heads(self) -> tuple[int, ...]:
        """Return the numbers of heads that tensor-parallel ranks split, a vision tower's among them."""
        tower = (self.tower.num_attention_heads,) if self.tower else ()
        return tuple(dict.fromkeys((*self.head_counts, *tower)))

    @cached_property
    def split_widths(self) -> tuple[int, ...]:
        """Return the widths of MLPs that tensor-parallel ranks split, a vision tower's among them."""
        tower = (self.tower.ffn_hidden_size,) if self.tower else ()
        return tuple(dict.fromkeys((*(one.ffn_hidden_size for one in self.attentions()), *tower)))

    @cached_property
    def kv_head_counts(self) -> tuple[int, ...]:
        """Return the numbers of key/value heads that layers have."""
        return tuple(dict.fromkeys(model.num_kv_heads for model in self.attentions()))

    def local_layers(self) -> tuple[bool, ...]:
        """Return whether each of the ``num_layers`` layers attends within the window only."""
        if self.sliding_window is None:
            return (False,) * self.num_layers
        every, listed = self.sliding_window_every, frozenset(self.global_layers)
        return tuple(
            layer not in listed and (every == 1 or (layer + 1) % every != 0)
            for layer in range(self.num_layers)
        )

    def layers_without_rotary(self) -> tuple[bool, ...]:
        """Return whether each of the ``num_layers`` layers leaves queries and keys unrotated."""
        every, listed = self.no_rotary_every, frozenset(self.no_rotary_layers)
        return tuple(
            layer in listed or (every > 0 and (layer + 1) % every == 0) for layer in range(self.num_layers)
        )

    @cached_property
    def v_head_dim(self) -> int:
        """Return the size of one head's value vector."""
        return self.mla.v_head_dim if self.mla else self.value_head_dim or self.head_dim

    @cached_property
    def own_kv_heads(self) -> int:
        """Return the number of key/value heads that a layer computes itself."""
        return 0 if self.borrows else self.num_kv_heads

    @cached_property
    def kv_width(self) -> int:
        """Return the columns that project one head's key and value."""
        return 0 if self.borrows else self.head_dim + (0 if self.keys_are_values else self.v_head_dim)

    @cached_property
    def embedding_width(self) -> int:
        """Return the columns of the token embedding and of the output head."""
        return self.embedding_size or self.hidden_size

    @cached_property
    def projection_parameters(self) -> int:
        """Return the weights at either end: embedding width to hidden size, and to further streams."""
        further = self.streams.end_parameters(self.hidden_size) if self.streams else 0
        return further + (self.embedding_size or 0) * self.hidden_size

    def layer(self, kind: LayerKind) -> Layer:
        """Return the operators of a layer of a kind, as ``shaped`` views it."""
        if kind not in self._layers:
            self._layers[kind] = layer_of(self, kind)
        return self._layers[kind]

    @cached_property
    def head(self) -> tuple[Operator, ...]:
        """Return the output head, and the products before it."""
        return head_of(self)

    @cached_property
    def first(self) -> tuple[Operator, ...]:
        """Return the products between the embedding and the first layer."""
        return first_of(self)

    @cached_property
    def prediction(self) -> Operator:
        """Return what joins a token's embedding and its hidden state before a prediction layer."""
        return prediction_of(self)

    @cached_property
    def _layers(self) -> dict[LayerKind, Layer]:
        return {}

    @cached_property
    def gate_width(self) -> int:
        """Return the columns of the projection that gates attention's output; 0 where there is none."""
        widths = {"none": 0, "per_head": 1, "per_element": self.v_head_dim}
        return self.num_attention_heads * widths[self.attention_gate]

    @cached_property
    def mlp_matrices(self) -> int:
        """Return the number of weight matrices of one MLP: up and down, and the gate where there is one."""
        return 3 if self.gated_mlp else 2

    def expert_parameters(self) -> int:
        """Return the weights of one routed expert (0 for a dense model)."""
        return sum(one.weights for one in self.layer("moe").matrices if one.experts)

    @cached_property
    def expert_width(self) -> int:
        """Return the elements of a token that a routed expert reads: hidden, or of the experts' latent."""
        latent = self.moe.latent_size if self.moe else 0
        return latent or self.hidden_size

    def norm_weights(self, width: int | None = None) -> int:
        """Return the weights of one norm over ``width`` elements; over the hidden size when not given."""
        return (self.hidden_size if width is None else width) * _VECTORS[self.normalization]

    def norms_of(self, kind: LayerKind) -> int:
        """Return the norms of one layer of a kind over the hidden size, those of experts included."""
        further = int(self.layer_embedding_size > 0) + 2 * int(self.streams is not None)
        if kind == "moe" and self.moe is not None:
            further += int(self.moe.output_norm) + 3 * int(self.moe.norms_apart)
        return further + (1 if self.shared_norm else _NORMS[self.norm_position] * self.num_blocks // 2)

    def layer_tables_parameters(self) -> int:
        """Return the weights that yield every layer's own embedding: a table, a product and a norm."""
        width = self.num_layers * self.layer_embedding_size
        rows = self.layer_vocab_size or self.vocab_size
        return width * (rows + self.hidden_size) + self.norm_weights(self.layer_embedding_size)

    def query_key_norm_parameters(self) -> int:
        """Return the weights of the norms of one layer's queries and keys, or of their latents."""
        if self.mixer is not None and self.mixes:
            return self.mixer.norm_parameters()
        if self.mla is not None:
            return self.mla.norm_parameters() * int(self.mixes_tokens)
        if self.compression is not None:
            return self.compression.vector_parameters(self.rate, self.head_dim)
        heads = (self.num_attention_heads + self.own_kv_heads) * int(self.mixes_tokens)
        whole = self.norm_weights(heads * self.head_dim)
        single = (1 if self.borrows else 2) * self.norm_weights(self.head_dim) * int(self.mixes_tokens)
        if self.diffusion:  # whatever the other norms have
            single = 2 * self.head_dim * self.weight_sets
        # Norms of each head's own have no bias, whatever the other norms have.
        each = heads * self.head_dim * (2 if self.crossing else 1)
        return {"per_head": single, "each_head": each, "all_heads": whole}.get(self.query_key_norm, 0)

    def inner_norm_width(self, kind: LayerKind) -> int:
        """Return the elements of a token that the norms inside attention and the MLP of one layer read."""
        mlp = self.ffn_hidden_size if kind == "dense" else 0
        return self.num_attention_heads * self.v_head_dim + mlp if self.inner_norms else 0

    @cached_property
    def num_attentions(self) -> int:
        """Return how often one layer computes its scores: for each half of the values where they differ."""
        return 2 if self.differential_attention else 1

    def expert_bias_parameters(self) -> int:
        """Return the biases of one routed expert."""
        return sum(one.size for one in self.layer("moe").expert_vectors)

    def layer_parameters(self, kind: LayerKind) -> int:
        """Return all weights of one layer."""
        return self.layer(kind).parameters

    @cached_property
    def embedding_parameters(self) -> int:
        """Return the weights of the token (and learned position) embedding, its norm included."""
        positions = (self.max_position_embeddings or 0) + self.learned_position_offset
        learned = positions * self.hidden_size if self.learned_position_embeddings else 0
        norm = self.norm_weights() * int(self.embedding_norm)
        tokens = self.vocab_size * self.embedding_width + self.projection_parameters
        tokens += self.diffusion.end_weights if self.diffusion else 0
        return tokens + learned + norm + self.layer_tables_parameters()

    def head_parameters(self) -> int:
        """Return the weights of the output head and its predecessors; a tied matrix is the embedding's."""
        logits, *_ = self.head
        matrix = 0 if self.tied_embeddings else logits.weights
        return matrix + self.head_outputs * int(self.head_bias) + self.before_head_parameters

    @cached_property
    def before_head_parameters(self) -> int:
        """Return the last stage's weights except the final norm and head; none has a vocabulary's size."""
        _, *before = self.head
        norm = self.norm_weights() * int(self.head_transform)
        bias = self.hidden_size * int(self.last_attention_bias)
        bias += (self.hyper_streams + 1) * (self.hyper_streams > 0)
        bias += 2 * self.hidden_size * (self.residual_block_layers > 0)  # a norm and a row of scores
        return sum(one.weights for one in before) + norm + bias

    def mtp_parameters(self) -> int:
        """Return the weights of the prediction layers: each a layer, a 2h-by-h projection and three norms.

        Norms of the token's embedding, of the hidden state, and one before the shared output head
        (DeepSeek-V3, README_WEIGHTS.md: ``enorm``, ``hnorm``, ``shared_head.norm``; Megatron-Core 0.19,
        ``MultiTokenPredictionLayerSubmodules``: ``enorm``, ``hnorm``, ``layer_norm``).
        """
        layer = self.shaped(self.mtp_shape).layer_parameters(self.mtp_shape.kind)
        return self.num_mtp_layers * (layer + self.mtp_extra_parameters())

    @cached_property
    def mtp_shape(self) -> LayerShape:
        """Return the shape of the layers that predict further tokens."""
        return LayerShape("moe" if self.moe else "dense")

    def mtp_extra_parameters(self) -> int:
        """Return the weights of one multi-token-prediction layer in addition to those of a layer."""
        joined = sum(one.weights for one in self.head if one.name == "hc_head")
        return self.prediction.weights + 3 * self.norm_weights() + joined

    @cached_property
    def final_norm_parameters(self) -> int:
        """Return the weights of the norm before the output head."""
        return self.norm_weights() * int(self.final_norm)

    def parameters_by_layer(self) -> tuple[int, ...]:
        """Return all weights of each of the ``num_layers`` layers, in model order."""
        each = {shape: self.shaped(shape).layer_parameters(shape.kind) for shape in self.shapes()}
        return tuple(each[shape] for shape in self.layer_shapes())

    def num_parameters(self) -> int:
        """Return all weights, multi-token-prediction layers not counted (as model cards do)."""
        ends = self.final_norm_parameters + self.embedding_parameters + self.head_parameters()
        return sum(self.parameters_by_layer()) + ends + self.tower_parameters()

    @cached_property
    def tower_layers(self) -> ModelSpec:
        """Return the tower's layers as a model of their own, with one token in its vocabulary.

        Raises:
            InvalidProblemError: the model has no tower.
        """
        tower = self.tower
        if tower is None:
            raise InvalidProblemError.of("/model/tower", "is missing")
        norms: QueryKeyNorm = "per_head" if tower.head_norms else "none"
        return ModelSpec(
            name=f"{self.name} (vision)",
            num_layers=max(tower.num_layers, 1),
            hidden_size=tower.hidden_size,
            ffn_hidden_size=tower.ffn_hidden_size,
            num_attention_heads=tower.num_attention_heads,
            num_kv_heads=tower.num_kv_heads or tower.num_attention_heads,
            head_dim=tower.head_dim,
            vocab_size=1,
            gated_mlp=tower.gated_mlp,
            causal=False,
            normalization=tower.normalization,
            norm_position="before_and_after" if tower.norms_behind else "before",
            query_key_norm="each_head" if tower.query_key_norm else norms,
            value_norm=tower.head_norms,
            qkv_bias=tower.qkv_bias,
            attention_output_bias=tower.attention_output_bias,
            mlp_bias=tower.mlp_bias,
            sliding_window=tower.window_patches or None,
            global_layers=tower.global_layers,
        )

    def tower_parameters(self, frozen: Sequence[FrozenPart] = ()) -> int:
        """Return the weights of tower and projector, those of ``frozen`` parts left out."""
        if (tower := self.tower) is None:
            return 0
        layer = self.tower_layers.layer_parameters("dense") + tower.layer_vectors
        whole = tower.num_layers * layer + tower.end_parameters()
        projector = tower.projector_parameters()
        return whole * ("vision" not in frozen) + projector * ("projector" not in frozen)

    @cached_property
    def projector_layers(self) -> tuple[Matrix, ...]:
        """Return the linear layers of a projector: one, or two with an activation between.

        The inner width follows from their weights: ``wide * inner + inner * hidden_size``. Those that
        project what inner layers yield are alike (Qwen3-VL's ``deepstack_merger_list``).
        """
        tower = self.tower
        known = modules_of(tower)
        if tower is None or known is None:
            return ()
        wide, out = tower.hidden_size * tower.merged_patches, self.hidden_size
        inner = tower.projector_matrices // tower.num_projectors // (wide + out)
        sides = ((wide, out),) if len(known.projector) == 1 else ((wide, inner), (inner, out))
        return tuple(Matrix(name="", inputs=k, outputs=n, split="nothing") for k, n in sides)

    def projector_gradients(self, frozen: Sequence[FrozenPart], adapted: Sequence[FrozenPart]) -> float:
        """Return the share of a projector's multiply-adds whose input needs a gradient.

        All, if gradients pass the tower. Behind a frozen one, what a projector trains needs it for every
        product but the first; none is counted where ``projector_layers`` are unknown.
        """
        if "vision" not in frozen or "vision" in adapted:
            return 1.0
        weights = [one.inputs * one.outputs for one in self.projector_layers]
        trains = "projector" in adapted or "projector" not in frozen
        return sum(weights[1:]) / sum(weights) if weights and trains else 0.0

    def image_flops(
        self,
        images: ImageLoad,
        frozen: Sequence[FrozenPart] = (),
        adapted: Sequence[FrozenPart] = (),
    ) -> float:
        """Return the FLOPs of images' forward and backward passes through tower and projector.

        ``frozen`` parts have no gradients of their own, and pixels have none. ``adapted`` ones of them have
        adapters, for which gradients pass through them: their products run twice, scores three times.
        """
        if (tower := self.tower) is None:
            return 0.0
        trains, length = "vision" not in frozen, round(images.attended)
        layer = self.tower_layers.forward_flops_of(LayerShape("dense"), length)
        passes = 3.0 * layer if trains else layer
        if "vision" in adapted:
            passes = 2.0 * layer + self.tower_layers.score_flops_per_token(length)
        layers = images.rows * tower.num_layers * passes
        first = 2.0 * tower.hidden_size * tower.patch_inputs * (1.0 + trains)
        products = 1.0 + ("projector" not in frozen) + self.projector_gradients(frozen, adapted)
        return layers + images.patches * first + images.tokens * 2.0 * tower.projector_work * products

    def figures(self) -> dict[str, str | int]:
        """Return the name and the exact counts of parameters, as answers state them."""
        return {
            "name": self.name,
            "num_parameters": self.num_parameters(),
            "num_active_parameters": self.num_active_parameters(),
            "num_mtp_parameters": self.mtp_parameters(),
        }

    def num_active_parameters(self) -> int:
        """Return weights that one token uses: experts it does not visit are left out."""
        idle = self.moe.num_experts - self.moe.top_k if self.moe else 0
        each = self.expert_parameters() + self.expert_bias_parameters()
        return self.num_parameters() - idle * each * self.layer_kinds().count("moe")

    def attended_tokens(self, seq_length: float | Documents) -> float:
        """Return the mean number of keys per query, over layers, documents and tokens."""
        if isinstance(seq_length, tuple):
            return sum(share * self.attended_tokens(length) for length, share in seq_length)
        if not self.mixes_tokens:
            return 0.0
        if self.mixer is not None and self.mixes:
            return self.mixer.chunk
        entries = self.compression.read_entries(self.rate, seq_length) if self.compression else 0.0
        return entries + self._attended(seq_length)

    def visible_tokens(self, seq_length: float) -> float:
        """Return the mean number of tokens that a query could have for keys, windows and choices apart."""
        return (seq_length + 1) / 2 if self.causal else float(seq_length)

    def _attended(self, seq_length: float) -> float:
        whole = self.visible_tokens(seq_length)
        window = self.indexer.top_k if self.indexer else self.sliding_window
        if window is None or window >= seq_length:
            return whole
        local: float
        if not self.causal:  # windows that do not overlap
            local = window
        elif self.chunked_attention:
            chunks, rest = divmod(seq_length, window)
            local = (chunks * window * (window + 1) + rest * (rest + 1)) / (2 * seq_length)
        else:
            local = window - window * (window - 1) / (2 * seq_length)
        global_share = 0.0 if self.indexer else self.local_layers().count(False) / self.num_layers
        return whole * global_share + local * (1 - global_share)

    def layer_forward_flops_per_token(self, kind: LayerKind, seq_length: int | Documents) -> float:
        """Return one layer's forward FLOPs per token: 2 per active weight plus the attention scores.

        Scores and weighted values cost ``2 * heads * (qk + v) * attended keys`` each token.
        """
        active = self.layer(kind).multiply_adds
        if self.diffusion and self.crossing:  # keys and values are those of the context
            weights = 2 * self.hidden_size * self.num_kv_heads * self.head_dim
            lengths = seq_length if isinstance(seq_length, tuple) else ((seq_length, 1.0),)
            tokens = sum(share * length for length, share in lengths)
            active -= round(weights * (1 - self.diffusion.context_tokens / tokens))
        return 2 * active + self.score_flops_per_token(seq_length)

    def score_flops_per_token(self, seq_length: int | Documents) -> float:
        """Return the forward FLOPs of one layer's scores and weighted values per token, without weights.

        The mean over layers, where those have several attentions.
        """
        if not self.attends_alike:
            each = {shape: self.shaped(shape).score_flops_per_token(seq_length) for shape in self.shapes()}
            return sum(each[shape] for shape in self.layer_shapes()) / self.num_layers
        if not self.mixes_tokens:
            return 0.0
        if self.mixer is not None and self.mixes:
            return 2.0 * self.mixer.scan_products()
        qk_and_v = (self.head_dim + self.v_head_dim) * self.num_attentions
        attention = 2 * self.num_attention_heads * qk_and_v * self.attended_tokens(seq_length)
        paired = self.paired.score_flops_per_token(seq_length) if self.paired else 0.0
        if self.crossing and self.diffusion:
            paired += 2 * self.num_attention_heads * qk_and_v * self.diffusion.context_tokens
        return attention + paired + self.index_flops_per_token(seq_length)

    def index_flops_per_token(self, seq_length: float | Documents) -> float:
        """Return the forward FLOPs per token of an indexer's scores, which read all earlier tokens."""
        lengths = seq_length if isinstance(seq_length, tuple) else ((seq_length, 1.0),)
        if (own := self.compression) and own.chooses(self.rate):
            entries = sum(share * own.entries(self.rate, length) for length, share in lengths)
            return 2 * own.index_heads * own.index_head_dim * entries
        if self.chooser is None:
            return 0.0
        earlier = sum(share * (length + 1) / 2 for length, share in lengths)
        return 2 * self.chooser.num_heads * self.chooser.head_dim * earlier

    def head_forward_flops_per_token(self) -> float:
        """Return the forward FLOPs of the output head per token, with what precedes it."""
        return 2.0 * sum(one.products for one in self.head)

    def forward_flops_of(self, shape: LayerShape, seq_length: int | Documents) -> float:
        """Return the forward FLOPs of one layer of a shape per token."""
        return self.shaped(shape).layer_forward_flops_per_token(shape.kind, seq_length)

    def model_flops_per_token(self, seq_length: int | Documents, *, frozen: bool = False) -> float:
        """Return the forward and backward FLOPs per token (3x the forward), recomputation not counted.

        Frozen weights have no gradients of their own: their products run twice, scores three times.
        """
        each = {shape: self.forward_flops_of(shape, seq_length) for shape in self.shapes()}
        layers = sum(each[shape] for shape in self.layer_shapes())
        forward = layers + self.head_forward_flops_per_token()
        forward += 2.0 * sum(one.products for one in self.first)
        if self.num_mtp_layers:
            mtp = self.forward_flops_of(self.mtp_shape, seq_length) + 2.0 * self.prediction.products
            forward += self.num_mtp_layers * (mtp + self.head_forward_flops_per_token())
        scores = (self.num_layers + self.num_mtp_layers) * self.score_flops_per_token(seq_length)
        return 2.0 * forward + scores if frozen else 3.0 * forward


@lru_cache(maxsize=64)
def _attending(model: ModelSpec, shape: LayerShape) -> ModelSpec:
    """Return a model with layers that all attend as a shape does, or borrow keys, or reuse a choice."""
    changes: dict[str, Any] = {
        "borrowing_layers": model.num_layers if shape.borrows else 0,
        "borrowing_ffn_hidden_size": None,
    }
    if model.indexer is not None:
        reusing = tuple(range(model.num_layers)) if shape.reuses else ()
        own = replace(model.indexer, reusing_layers=reusing, whole_layers=())
        changes["indexer"] = None if shape.reads_all else own
    if model.mixer is not None:
        changes |= _of_mixer_layers(model.mixer) if shape.mixes else {"mixer": None}
    if model.diffusion is not None:
        double = model.num_layers if shape.two_streams else 0
        changes["diffusion"] = replace(model.diffusion, two_stream_layers=double)
    if model.layer_pattern or model.unlike_layers:
        changes |= {"layer_pattern": _letter(shape) * model.num_layers}
        changes |= {} if shape.kind == "moe" else {"moe": None}
    if model.unlike_layers:
        changes |= {"layer_ffn_sizes": (), "layer_kv_heads": ()}
        changes |= {"ffn_hidden_size": shape.ffn_size} if shape.ffn_size else {}
        changes |= {"num_kv_heads": shape.kv_heads} if shape.kv_heads else {}
    if model.compression is not None:
        rates = (shape.rate,) * model.num_layers
        changes["compression"] = replace(model.compression, rates=rates)
    if shape.borrows:
        changes["ffn_hidden_size"] = model.borrowing_ffn_hidden_size or model.ffn_hidden_size
    if model.local_attention is not None:
        window = model.sliding_window if shape.local else None
        changes |= {"local_attention": None, "sliding_window": window, "sliding_window_every": 1}
        changes |= {"global_layers": (), **(model.local_attention.stated() if shape.local else {})}
    return replace(model, **changes)


def _letter(shape: LayerShape) -> str:
    """Return the letter of layers of a shape; none of those that have both blocks."""
    if shape.part == "both":
        return ""
    if shape.part == "mlp":
        return EXPERT_LAYER if shape.kind == "moe" else MLP_LAYER
    return MIXER_LAYER if shape.mixes else ATTENTION_LAYER


def _of_mixer_layers(mixer: MixerSpec) -> dict[str, Any]:
    """Return what differs in layers with a mixer: its heads are split and exchanged as attention's."""
    return {
        "mixer": replace(mixer, attention_every=0, attention_layers=()),
        "num_attention_heads": mixer.num_heads,
        "num_kv_heads": mixer.num_key_heads,
        "head_dim": mixer.key_head_dim,
        "value_head_dim": mixer.value_head_dim,
        "mla": None,
        "query_key_norm": "none",
        "attention_gate": "none",
        "gate_in_queries": False,
        "gate_bias": False,
        "attention_sinks": False,
        "qkv_bias": False,
        "attention_output_bias": mixer.projection_bias if mixer.output_bias is None else mixer.output_bias,
        "sliding_window": None,
        "global_layers": (),
        "sliding_window_every": 1,
    }
