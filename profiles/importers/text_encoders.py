"""Frozen text encoders of a diffusion pipeline, from the ``config.json`` of their ``transformers`` classes.

A training script that runs them in every step has their weights on every GPU, and their forward pass before
each micro-batch (diffusers 0.42, ``examples/dreambooth/train_dreambooth_flux.py``). Field names and
defaults are those of ``transformers`` 5.23 (``T5EncoderModel``, ``UMT5EncoderModel``, ``CLIPTextModel``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface_keys import harmless_reason
from meshwright.profiles.model_parts import MODEL_LIMITS
from meshwright.profiles.reading import FieldReader, shown

# Keys of a pipeline's encoders next to its transformer's: the folders of diffusers' pipelines.
ENCODERS = ("text_encoder", "text_encoder_2")


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """Weights and work that one encoder adds to a step."""

    weights: int
    products: int  # multiply-adds of the forward pass of one text


def encoders_of(config: Mapping[str, object], tokens: int) -> tuple[TextEncoder, ...]:
    """Return the encoders that a pipeline's config states.

    Args:
        config: the transformer's, with those of ``ENCODERS`` inside.
        tokens: of a text, as the pipeline pads it; CLIP reads as many as it has positions.

    Raises:
        UnsupportedModelError: an encoder that is not planned, or a key that nothing here reads.
        InvalidProblemError: a field is missing, garbled or out of range.
    """
    return tuple(_encoder(key, config[key], tokens) for key in ENCODERS if config.get(key) is not None)


def _encoder(key: str, raw: object, tokens: int) -> TextEncoder:
    if not isinstance(raw, Mapping):
        raise InvalidProblemError.of(
            f"/model/{key}",
            f"{shown(raw)} is not an object with the encoder's fields",
            allowed="the encoder's config.json, or null",
        )
    kind = str(raw.get("model_type"))
    if kind not in _TYPES:
        fault = InvalidProblemError.of(
            f"/model/{key}/model_type", f"{shown(kind)} is not planned", allowed=", ".join(_TYPES)
        )
        raise UnsupportedModelError(fault.errors)
    defaults, unused, build = _TYPES[kind]
    reader = FieldReader({**defaults, **raw}, f"/model/{key}")
    reader.value("model_type")
    found = build(reader, tokens)
    reader.finish()
    for name in reader.unread():
        if name not in unused and not harmless_reason(name):
            fault = InvalidProblemError.of(f"/model/{key}/{name[:60]}", "Meshwright doesn't know this key")
            raise UnsupportedModelError(fault.errors)
    return found


def _size(reader: FieldReader, key: str) -> int:
    return reader.integer(key, high=int(MODEL_LIMITS["ffn_hidden_size"][1]))


def _t5(reader: FieldReader, tokens: int, *, biases_each: bool = False) -> TextEncoder:
    """Return T5's encoder; its first layer has the relative positions of all, in umT5 each its own."""
    hidden, layers = _size(reader, "d_model"), _size(reader, "num_layers")
    heads = _size(reader, "num_heads")
    inner, width = heads * _size(reader, "d_kv"), _size(reader, "d_ff")
    gated = str(reader.value("feed_forward_proj")).startswith("gated-")
    matrices = 4 * hidden * inner + (3 if gated else 2) * hidden * width
    positions = _size(reader, "relative_attention_num_buckets") * heads
    weights = layers * (matrices + 2 * hidden) + hidden + _size(reader, "vocab_size") * hidden
    return TextEncoder(
        weights=weights + positions * (layers if biases_each else 1),
        products=tokens * layers * (matrices + 2 * tokens * inner),
    )


def _clip(reader: FieldReader, _tokens: int) -> TextEncoder:
    hidden, layers = _size(reader, "hidden_size"), _size(reader, "num_hidden_layers")
    width, tokens = _size(reader, "intermediate_size"), _size(reader, "max_position_embeddings")
    _size(reader, "num_attention_heads")
    matrices = 4 * hidden**2 + 2 * hidden * width
    vectors = 9 * hidden + width
    return TextEncoder(
        weights=layers * (matrices + vectors) + (_size(reader, "vocab_size") + tokens + 2) * hidden,
        products=tokens * layers * (matrices + 2 * tokens * hidden),
    )


_T5 = {
    "vocab_size": 32_128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
    "relative_attention_num_buckets": 32, "feed_forward_proj": "relu",
}  # fmt: skip
_UMT5 = _T5 | {
    "vocab_size": 250_112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
_CLIP = {
    "vocab_size": 49_408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 8, "max_position_embeddings": 77,
}  # fmt: skip
# Of T5: its decoder, which is not built, and what repeats feed_forward_proj.
_OF_T5 = (
    "num_decoder_layers", "dense_act_fn", "is_gated_act", "layer_norm_epsilon", "n_positions",
    "dropout_rate", "relative_attention_max_distance",
    "scalable_attention", "is_encoder_decoder", "tie_word_embeddings",
    "max_new_tokens",
)  # fmt: skip
_OF_CLIP = ("hidden_act", "projection_dim", "layer_norm_eps", "tie_word_embeddings")
# Types: the defaults of their configs, the keys that change nothing that is priced, and how they are read.
_TYPES: Mapping[
    str, tuple[Mapping[str, object], tuple[str, ...], Callable[[FieldReader, int], TextEncoder]]
] = {
    "t5": (_T5, _OF_T5, _t5),
    "umt5": (_UMT5, _OF_T5, partial(_t5, biases_each=True)),
    "clip_text_model": (_CLIP, _OF_CLIP, _clip),
}
