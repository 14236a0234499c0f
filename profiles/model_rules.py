"""Fields of a model that contradict each other, as rows: the field, the condition, why, what is allowed.

A group of rows may rely on the groups before it, for example on listed layers that exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from meshwright.profiles.errors import faults_as
from meshwright.profiles.model_parts import Exclusion

Model: TypeAlias = Any  # a ModelSpec: its module imports this one, and no imports form a circle
_POSITIONS = ("learned_position_embeddings", "alibi_positions", "sinusoidal_positions")
_NOT_WITH_A_PATTERN = ("sliding_window", "shared_norm", "inner_norms", "early_first_norm")
_NOT_WITH_A_MIXER = (
    "local_attention", "borrowing_layers", "indexer", "streams", "differential_attention", "value_norm",
    "keys_are_values", "layer_embedding_size", "compression", "hyper_streams", "inner_norms",
    "attention_clip", "parallel_residual",
)  # fmt: skip
_NOT_WITH_UNLIKE_LAYERS = (
    *_NOT_WITH_A_PATTERN, *_NOT_WITH_A_MIXER, "moe", "mla", "mixer", "tower", "diffusion", "layer_pattern",
    "num_mtp_layers",
)  # fmt: skip
_NOT_IN_DIFFUSION = ("moe", "mla", "mixer", "tower", "layer_pattern", "sliding_window", "borrowing_layers",
                     "streams", "indexer", "compression", "hyper_streams", "num_mtp_layers",
                     "residual_block_layers", "causal")  # fmt: skip
_LETTERS = {"M": "mixer", "E": "moe"}  # of a pattern, with the part of the model that they need


def exclusions_of(model: Model) -> Iterator[Exclusion]:
    """Yield the fields of a model that contradict others; its parts have checked themselves."""
    for group, concerned in (
        (_sizes, True),
        (_pattern, model.layer_pattern),
        (_unlike_layers, model.unlike_layers),
        (_lists_of_layers, True),
        (_local_attention, model.local_attention),
        (_values, model.mla or model.keys_are_values),
        (_borrowed_keys, model.borrowing_layers or model.borrowing_ffn_hidden_size),
        (_chosen_keys, model.indexer),
        (_compression, model.compression),
        (_hyper_streams, model.hyper_streams),
        (_residual_blocks, model.residual_block_layers),
        (_mixer, model.mixer),
        (_diffusion, model.diffusion),
        (_norms_and_biases, True),
    ):
        if concerned:
            yield from group(model)


def _sizes(model: Model) -> Iterable[Exclusion]:
    moe, mla, layers = model.moe, model.mla, model.num_layers
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads
    dense = moe.num_dense_layers if moe else -1
    sparse = model.streams.sparse_layers if model.streams else 0
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else model.head_dim
    unstated = model.learned_position_embeddings and model.max_position_embeddings is None
    positions = [name for name in _POSITIONS if getattr(model, name)]
    return (
        Exclusion(
            "num_kv_heads", heads % kv_heads, f"{kv_heads} does not divide num_attention_heads = {heads}",
            "a divisor of num_attention_heads",
        ),
        Exclusion(
            "moe/num_dense_layers", dense >= layers,
            f"{dense} leaves no layer of {layers} for experts", f"0 to {layers - 1}",
        ),
        Exclusion(
            "streams/sparse_layers", sparse > layers, f"{sparse} is more than num_layers = {layers}",
            f"0 to {layers}", str(layers),
        ),
        Exclusion(
            "head_dim", model.head_dim != query,
            f"{model.head_dim} is not qk_nope_head_dim + qk_rope_head_dim", None, str(query),
        ),
        Exclusion("max_position_embeddings", unstated, "is required with learned_position_embeddings"),
        *(
            Exclusion("num_labels", model.num_labels and getattr(model, name), f"contradicts {name}", "0")
            for name in ("tied_embeddings", "normalized_head", "num_mtp_layers", "diffusion")
        ),
        *(Exclusion(name, True, f"contradicts {positions[0]}") for name in positions[1:]),
    )  # fmt: skip


def _unpriced(model: Model, names: Iterable[str], where: str) -> Iterator[Exclusion]:
    yield from (Exclusion(name, getattr(model, name), f"is not supported {where}") for name in names)


def _pattern(model: Model) -> Iterable[Exclusion]:
    """Yield a pattern of another length, of unknown letters, or that does not fit the model's parts."""
    pattern, layers, moe, mixer = model.layer_pattern, model.num_layers, model.moe, model.mixer
    wrong = [letter for letter in pattern if letter not in "M*-E"]
    placed = moe and (moe.num_dense_layers, moe.frequency, moe.dense_layers) != (0, 1, ())
    attends = mixer and (mixer.attention_every or mixer.attention_layers)
    stated = "layer_pattern already lists these layers"
    return (
        Exclusion(
            "layer_pattern", wrong, f"{''.join(wrong[:1])!r} is not a kind of layer",
            "M (mixer), * (attention), - (MLP), E (experts)",
        ),
        Exclusion(
            "layer_pattern", len(pattern) != layers, f"{len(pattern)} letters for num_layers = {layers}",
            f"{layers} letters",
        ),
        *(
            Exclusion(
                "layer_pattern", (letter in pattern) != (getattr(model, part) is not None),
                f"has a layer {letter}, and model.{part} is missing" if letter in pattern
                else f"has no layer {letter}, and model.{part} is stated",
            )
            for letter, part in _LETTERS.items()
        ),
        Exclusion("moe/num_dense_layers", placed, stated),
        Exclusion("mixer/attention_every", attends, stated),
        *_unpriced(model, (*_NOT_WITH_A_PATTERN, *_NOT_WITH_A_MIXER), "in layers of one block"),
        Exclusion("norm_position", model.norm_position != "before", "is not supported in one-block layers"),
    )  # fmt: skip


def _unlike_layers(model: Model) -> Iterable[Exclusion]:
    """Yield sizes of another number of layers, layers of no block, and what is not priced with them."""
    widths, each, layers = model.layer_ffn_sizes, model.layer_kv_heads, model.num_layers
    empty = [layer for layer, sizes in enumerate(zip(widths, each, strict=False)) if not any(sizes)]
    wrong = [one for one in each if one and model.num_attention_heads % one]
    where = "where layers have different sizes"
    return (
        *(
            Exclusion(
                name, sizes and len(sizes) != layers, f"{len(sizes)} sizes for num_layers = {layers}",
                f"{layers} sizes",
            )
            for name, sizes in (("layer_ffn_sizes", widths), ("layer_kv_heads", each))
        ),
        Exclusion("layer_kv_heads", empty, f"layer {(*empty, 0)[0]} has neither attention nor an MLP"),
        Exclusion(
            "layer_kv_heads", wrong,
            f"{(*wrong, 0)[0]} does not divide num_attention_heads = {model.num_attention_heads}",
            "0, or a divisor of num_attention_heads",
        ),
        *_unpriced(model, _NOT_WITH_UNLIKE_LAYERS, where),
        Exclusion("norm_position", model.norm_position != "before", f"is not supported {where}"),
    )  # fmt: skip


def _lists_of_layers(model: Model) -> Iterator[Exclusion]:
    """Yield lists of layers that the model does not have, or that repeat a rule of every n-th layer."""
    for name, layers, ruled in (
        ("global_layers", model.global_layers, model.sliding_window_every != 1),
        ("no_rotary_layers", model.no_rotary_layers, model.no_rotary_every),
        ("moe/dense_layers", model.moe.dense_layers if model.moe else (), False),
        ("indexer/reusing_layers", model.indexer.reusing_layers if model.indexer else (), False),
        ("indexer/whole_layers", model.indexer.whole_layers if model.indexer else (), False),
        ("mixer/attention_layers", model.mixer.attention_layers if model.mixer else (), False),
    ):
        beyond = [layer for layer in layers if not 0 <= layer < model.num_layers]
        last = f"0 to {model.num_layers - 1}"
        yield Exclusion(name, beyond, f"{(*beyond, 0)[0]} is not a layer", last)
        yield Exclusion(name, layers and ruled, "contradicts the rule of every n-th layer")
    expertless = model.moe and "moe" not in model.layer_kinds()
    yield Exclusion("moe/dense_layers", expertless, "leaves no layer for experts")


def _local_attention(model: Model) -> Iterator[Exclusion]:
    """Yield an attention of local layers' own unless some layers are local, and none latent."""
    why = "needs local layers next to global ones: sliding_window, and every n-th or listed layers"
    yield Exclusion("local_attention", len(set(model.local_layers())) == 1, why)
    yield Exclusion("local_attention", model.mla, "contradicts mla")
    with faults_as(
        lambda one: replace(one, pointer=one.pointer.replace("/model", "/model/local_attention", 1))
    ):
        model.attentions()  # checks the heads as of any model


def _values(model: Model) -> Iterable[Exclusion]:
    """Yield values of their own size without a projection; latent attention has one for both."""
    mla, own = model.mla, model.keys_are_values and model.v_head_dim != model.head_dim
    return (
        Exclusion("value_head_dim", mla and model.value_head_dim is not None, "contradicts mla"),
        Exclusion("keys_are_values", mla and model.keys_are_values, "contradicts mla"),
        Exclusion("value_norm", mla and model.value_norm, "contradicts mla"),
        Exclusion("value_scale", mla and model.value_scale != 1, "contradicts mla"),
        Exclusion("value_head_dim", own, "contradicts keys_are_values"),
    )


def _borrowed_keys(model: Model) -> Iterable[Exclusion]:
    """Yield borrowed keys without a layer to borrow them from, or in a layer with keys of its own."""
    borrowing, local = model.borrowing_layers, model.local_layers()
    own = model.num_layers - borrowing
    lacking = own > 0 and not set(local[own:]) <= set(local[:own])
    width = model.borrowing_ffn_hidden_size and not borrowing
    return (
        Exclusion(
            "borrowing_layers", own < 0, f"{borrowing} is more than num_layers = {model.num_layers}",
            f"0 to {model.num_layers - 1}",
        ),
        Exclusion(
            "borrowing_layers", lacking,
            f"no layer before the last {borrowing} has the same kind of attention",
        ),
        Exclusion("borrowing_layers", borrowing and model.mla, "contradicts mla"),
        Exclusion("borrowing_ffn_hidden_size", width, "needs borrowing_layers"),
    )  # fmt: skip


def _chosen_keys(model: Model) -> Iterable[Exclusion]:
    """Yield an indexer without the queries' latent, and a reused choice that no layer before made."""
    indexer, latent = model.indexer, model.mla and model.mla.q_lora_rank
    first = 0 in indexer.reusing_layers and model.chooser
    return (
        Exclusion(
            "indexer",
            not (latent or indexer.of_blocks),
            "needs latent attention with mla.q_lora_rank, or block_size above 1",
        ),
        Exclusion("indexer/block_size", model.mla and indexer.of_blocks, "contradicts mla"),
        Exclusion(
            "indexer/whole_layers",
            len(set(indexer.whole_layers)) >= model.num_layers,
            "no layer is left to choose keys",
        ),
        Exclusion("indexer/reusing_layers", first, "no layer has chosen before layer 0", "1 and higher"),
    )


_NOT_WITH_ENTRIES = (
    "mla", "indexer", "borrowing_layers", "local_attention", "unlike_layers", "layer_pattern", "qkv_bias",
    "differential_attention", "value_norm", "gate_width", "inner_norms", "attention_clip",
    "attention_output_bias",
)  # fmt: skip


def _compression(model: Model) -> Iterator[Exclusion]:
    """Yield entries of another number of layers, and attention whose keys are not one head of values."""
    own, layers = model.compression, model.num_layers
    one_head = model.num_kv_heads == 1 and model.keys_are_values
    groups, heads = own.output_groups, model.num_attention_heads
    chosen = own.chosen_rate and own.chosen_rate not in own.rates
    yield Exclusion(
        "compression/rates", len(own.rates) != layers, f"{len(own.rates)} rates for num_layers = {layers}",
        f"{layers} rates",
    )  # fmt: skip
    yield Exclusion("compression", not one_head, "needs num_kv_heads = 1 and keys_are_values")
    yield Exclusion("compression", model.sliding_window is None, "needs sliding_window")
    yield Exclusion(
        "compression/output_groups", heads % groups,
        f"{groups} does not divide num_attention_heads = {heads}", "a divisor of num_attention_heads",
    )  # fmt: skip
    yield Exclusion(
        "compression/chosen_rate", chosen and not model.attends_alike,
        f"no layer has entries of {own.chosen_rate} tokens", "0, or one of rates",
    )  # fmt: skip
    yield from _unpriced(model, _NOT_WITH_ENTRIES, "next to compressed entries")


def _hyper_streams(model: Model) -> Iterator[Exclusion]:
    """Yield other ways to add what blocks yield, and a number of streams that is one alone."""
    why = "1 stream is what every model has: leave it out"
    yield Exclusion("hyper_streams", model.hyper_streams == 1, why, "2 to 64", "2")
    names = ("streams", "parallel_residual", "layer_pattern", "unlike_layers", "layer_embedding_size")
    yield from _unpriced(model, names, "next to hyper-connections")


def _residual_blocks(model: Model) -> Iterator[Exclusion]:
    """Yield other ways to add what blocks yield."""
    names = ("streams", "hyper_streams", "parallel_residual", "layer_pattern", "unlike_layers",
             "num_mtp_layers", "depth_scaled_residuals")  # fmt: skip
    yield from _unpriced(model, names, "next to attention residuals")


def _mixer(model: Model) -> Iterator[Exclusion]:
    """Yield a mixer that no layer has, and what is not priced next to it."""
    if model.mixer.with_attention:
        yield from _unpriced(model, ("layer_pattern", "mla", "moe"), "where a mixer is next to attention")
    unused = not model.mixer.with_attention and not any(model.mixing_layers())
    yield Exclusion("mixer", unused, "every layer attends: no layer is left for the mixer")
    yield from _unpriced(model, _NOT_WITH_A_MIXER, "next to a mixer")


def _diffusion(model: Model) -> Iterator[Exclusion]:
    """Yield parts that no diffusion transformer has, and more layers of two streams than layers."""
    yield from _unpriced(model, _NOT_IN_DIFFUSION, "in a diffusion transformer")
    double, most = model.diffusion.two_stream_layers, model.num_layers
    why, allowed = f"{double} is more than num_layers = {most}", f"0 to {most}"
    yield Exclusion("diffusion/two_stream_layers", double > most, why, allowed, str(most))


def _norms_and_biases(model: Model) -> Iterable[Exclusion]:
    position, gate, mla = model.norm_position, model.attention_gate, model.mla
    alone = model.parallel_residual and position == "before"
    own = "latent attention has norms of its latents (mla.norms) and no such bias"
    twice = model.last_attention_bias and model.attention_output_bias
    return (
        Exclusion(
            "shared_norm", model.shared_norm and not alone,
            "needs parallel_residual, and norm_position before",
        ),
        Exclusion(
            "mlp_output_bias", model.mlp_output_bias and (model.mlp_bias or model.moe),
            "needs a model without experts and without mlp_bias",
        ),
        Exclusion("last_attention_bias", twice, "every layer has attention_output_bias"),
        Exclusion("gate_bias", model.gate_bias and gate == "none", "needs attention_gate"),
        Exclusion(
            "gate_in_queries", model.gate_in_queries and (mla or gate != "per_element"),
            "needs attention_gate per_element, not mla",
        ),
        Exclusion(
            "early_first_norm", model.early_first_norm and position not in ("before", "before_and_after"),
            "needs norms before attention",
        ),
        Exclusion("qkv_bias", mla and model.qkv_bias, own),
        Exclusion("query_key_norm", mla and model.query_key_norm != "none", own),
    )  # fmt: skip
