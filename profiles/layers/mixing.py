"""Operators that mix tokens: attention, latent attention with an indexer, mixers, a context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.profiles.layers.operators import Block, Matrix, Operator, Rows, Split

if TYPE_CHECKING:
    from meshwright.profiles.mixers import MixerSpec
    from meshwright.profiles.model import ModelSpec
    from meshwright.profiles.model_parts import CompressionSpec, MlaSpec

_TITLES = {
    "x_proj": "time steps, B and C",
    "dt_proj": "time steps",
    "f_b_proj": "decays",
    "g_b_proj": "gate",
}
# Heads of keys, or of queries and keys, in a projection for each head of keys, by its name.
_KEYS = {"q_proj": 1, "k_proj": 1, "in_proj_qkv": 2, "in_proj_qkvz": 2, "in_proj": 2, "qkv_proj": 2}
_LATENTS = ("f_a_proj", "g_a_proj")  # whole on every rank


def attention(model: ModelSpec) -> Iterator[Operator]:
    """Yield queries, keys and values in one product, and the output (Shoeybi et al. 2019)."""
    h, heads, kv, sets = model.hidden_size, model.num_attention_heads, model.num_kv_heads, model.weight_sets
    gate = model.gate_width
    queries = heads * model.head_dim + gate * model.gate_in_queries
    read = [Matrix(name="q_proj", inputs=h, outputs=queries, sets=sets)]
    columns = {"k_proj": model.head_dim, "v_proj": 0 if model.keys_are_values else model.v_head_dim}
    for name, size in columns.items():
        if size and not model.borrows:
            read.append(Matrix(name=name, inputs=h, outputs=kv * size, heads=kv, of_head=size, sets=sets))
    if gate and not model.gate_in_queries:
        read.append(Matrix(name="g_proj", inputs=h, outputs=gate, sets=sets))
    written = Matrix(name="o_proj", inputs=heads * model.v_head_dim, outputs=h, split="inputs", sets=sets)
    yield Operator(
        name="qkv", title="attention in (QKV)", block="attention", matrices=tuple(read), target="linear_qkv"
    )
    yield Operator(
        name="attention_out", title="attention out", block="attention", matrices=(written,),
        target="linear_proj", closes=True,
    )  # fmt: skip
    if own := model.chooser:  # of blocks of keys, whole on every rank
        sizes = {"q_proj": own.num_heads * own.head_dim, "k_proj": own.head_dim}
        small = [Matrix(name=name, inputs=h, outputs=size, split="nothing") for name, size in sizes.items()]
        yield Operator(
            name="indexer", title="indexer queries and keys", block="indexer", matrices=tuple(small)
        )


def latent_attention(model: ModelSpec, mla: MlaSpec) -> Iterator[Operator]:
    """Yield the products of latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Down-projections are whole (Megatron-Core 0.19 ``MLASelfAttention``: ``parallel_mode = "duplicated"``),
    and so is an indexer (``DSAIndexer``).
    """
    h, heads, rank = model.hidden_size, model.num_attention_heads, mla.q_lora_rank

    def one(
        name: str, title: str, *matrices: Matrix, rows: Rows = "tokens", target: str = "linear_qkv",
        block: Block = "attention", inner: bool = False,
    ) -> Operator:  # fmt: skip
        return Operator(
            name=name, title=title, block=block, matrices=matrices, rows=rows, target=target, inner=inner
        )

    up = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    queries = Matrix(name="q_b_proj" if rank else "q_proj", inputs=rank or h, outputs=up)
    yield one("q_up", "query up", queries, inner=rank > 0)
    if rank:
        down = Matrix(name="q_a_proj", inputs=h, outputs=rank, split="nothing")
        yield one("q_down", "query down", down, rows="latent")
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    down = Matrix(name="kv_a_proj_with_mqa", inputs=h, outputs=latent, split="nothing")
    yield one("kv_down", "key/value down", down, rows="latent")
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    latents = Matrix(name="kv_b_proj", inputs=mla.kv_lora_rank, outputs=up)
    yield one("kv_up", "key/value up", latents, inner=True)
    if model.gate_width:
        gate = Matrix(name="g_proj", inputs=h, outputs=model.gate_width)
        yield one("attention_gate", "attention gate", gate, target="")
    if indexer := model.chooser:
        size = indexer.head_dim
        queries = Matrix(name="wq_b", inputs=rank, outputs=indexer.num_heads * size, split="nothing")
        keys = Matrix(name="wk", inputs=h, outputs=size, split="nothing")
        weighing = Matrix(name="weights_proj", inputs=h, outputs=indexer.num_heads, split="nothing")
        yield one("indexer_queries", "indexer queries", queries, target="", block="indexer", inner=True)
        yield one("indexer_keys", "indexer keys", keys, weighing, target="", block="indexer")
    written = Matrix(name="o_proj", inputs=heads * mla.v_head_dim, outputs=h, split="inputs")
    yield Operator(
        name="attention_out", title="attention out", block="attention", matrices=(written,),
        target="linear_proj", closes=True,
    )  # fmt: skip


def compressed_attention(model: ModelSpec, own: CompressionSpec) -> Iterator[Operator]:
    """Yield the products of attention to a window and compressed entries (``CompressionSpec``).

    Every rank has latents, keys and entries whole, and its share of the heads and of their groups.
    """
    h, rank, rate = model.hidden_size, own.q_lora_rank, model.rate
    width = model.num_attention_heads * model.head_dim

    def one(
        name: str, title: str, *matrices: Matrix, rows: Rows = "latent", block: Block = "attention",
        inner: bool = False,
    ) -> Operator:  # fmt: skip
        return Operator(name=name, title=title, block=block, matrices=matrices, rows=rows, inner=inner)

    def whole(name: str, inputs: int, outputs: int) -> Matrix:
        return Matrix(name=name, inputs=inputs, outputs=outputs, split="nothing")

    up = Matrix(name="q_b_proj", inputs=rank, outputs=width)
    yield one("q_up", "query up", up, rows="tokens", inner=True)
    yield one("q_down", "query down", whole("q_a_proj", h, rank))
    yield one("keys", "keys, which are the values", whole("kv_proj", h, model.head_dim))
    columns = own.series(rate) * model.head_dim
    if rate:
        yield one("entries", "entries", whole("kv_proj", h, columns), whole("gate_proj", h, columns))
    if own.chooses(rate):
        columns = own.series(rate) * own.index_head_dim
        queries = whole("q_b_proj", rank, own.index_heads * own.index_head_dim)
        yield one("indexer_queries", "indexer queries", queries, block="indexer", inner=True)
        keys = (whole("kv_proj", h, columns), whole("gate_proj", h, columns))
        weighing = whole("weights_proj", h, own.index_heads)
        yield one("indexer_keys", "indexer entries", *keys, weighing, block="indexer")
    joined = own.output_groups * own.output_rank
    # A product of each group with its own inputs: no linear layer that adapters fit.
    grouped = Matrix(name="o_a_proj", inputs=width // own.output_groups, outputs=joined, is_linear=False)
    yield one("groups", "attention out of groups", grouped, rows="tokens", inner=True)
    written = Matrix(name="o_b_proj", inputs=joined, outputs=h, split="inputs")
    yield Operator(
        name="attention_out", title="attention out", block="attention", matrices=(written,), closes=True
    )


def mixer(model: ModelSpec, own: MixerSpec, *, closes: bool = True) -> Iterator[Operator]:
    """Yield the products and the convolution of a mixer."""
    h, inner = model.hidden_size, own.inner_products()
    keys = {} if inner or own.kind == "short_convolution" else _KEYS  # of which a rank has a head at least
    read = []
    for name, width in own.projections().items():
        size = own.key_head_dim * keys.get(name, 0)
        heads = own.num_key_heads if size else 0
        split: Split = "nothing" if name in _LATENTS else "outputs"
        read.append(Matrix(name=name, inputs=h, outputs=width, heads=heads, of_head=size, split=split))
    yield Operator(name="mixer_in", title="mixer in", block="mixer", matrices=tuple(read))
    for name, (inputs, outputs, side) in inner.items():
        matrix = Matrix(name=name, inputs=inputs, outputs=outputs, split=side)
        yield Operator(name=name, title=_TITLES[name], block="mixer", matrices=(matrix,), inner=True)
    written = Matrix(name=own.last_projection, inputs=own.value_width, outputs=h, split="inputs")
    yield Operator(name="mixer_out", title="mixer out", block="mixer", matrices=(written,), closes=closes)
    kernel = Matrix(name="conv1d", inputs=own.convolution, outputs=own.qkv_width, is_linear=False)
    yield Operator(
        name="conv1d", title="convolution", block="mixer", matrices=(kernel,), is_priced=False, inner=True
    )


def context(model: ModelSpec) -> Iterator[Operator]:
    """Yield the products of the attention to a text (Wan, arXiv:2503.20314, section 4.2.1)."""
    h, width = model.hidden_size, model.num_attention_heads * model.head_dim
    keys = tuple(Matrix(name=name, inputs=h, outputs=width, is_linear=False) for name in ("k", "v"))
    query = Matrix(name="q", inputs=h, outputs=width, is_linear=False)
    out = Matrix(name="o", inputs=width, outputs=h, split="inputs", is_linear=False)
    yield Operator(name="context_q", title="queries of the context", block="context", matrices=(query,))
    yield Operator(
        name="context_kv", title="context in (KV)", block="context", matrices=keys, rows="context"
    )
    yield Operator(name="context_out", title="context out", block="context", matrices=(out,), closes=True)
