"""Features of Hugging Face configs that a decoder-only transformer's shape cannot express."""

from __future__ import annotations

from collections.abc import Mapping

from profiles.errors import UnsupportedModelError
from profiles.reading import FieldReader

_REASONS: Mapping[str, str] = {
    "is_encoder_decoder": "an encoder-decoder model",
    "add_cross_attention": "cross-attention",
    "type_vocab_size": "an encoder",
    "vision_config": "a vision tower",
    "visual": "a vision tower",
    "audio_config": "an audio tower",
    "text_config": "a model inside a model; give the text model's own config",
    "encoder": "an encoder-decoder model",
    "state_size": "state-space layers",
    "d_state": "state-space layers",
    "conv_kernel": "state-space layers",
    "layers_block_type": "layers of mixed kinds",
    "hybrid_override_pattern": "layers of mixed kinds",
    "block_types": "layers of mixed kinds",
    "attn_type_list": "layers of mixed kinds",
    "attn_layer_period": "layers of mixed kinds",
    "full_attention_interval": "linear attention",
    "linear_attn_config": "linear attention",
    "linear_num_value_heads": "linear attention",
    "index_topk": "sparse attention chosen by an indexer",
    "attention_chunk_size": "chunked attention",
    "interleave_moe_layer_step": "experts in some layers, by a rule of its own",
    "hidden_size_per_layer_input": "embeddings of each layer",
    "altup_num_inputs": "alternating updates",
    "dense_attention_every_n_layers": "block-sparse attention",
    "num_kv_shared_layers": "layers that share keys and values",
    "use_parallel_residual_experts": "parallel experts",
}
_PREFIXES: Mapping[str, str] = {"mamba_": "state-space layers", "ssm_": "state-space layers"}


def refuse_unsupported(reader: FieldReader) -> None:
    """Refuse what only another kind of model has.

    Raises:
        UnsupportedModelError: names the field.
    """
    for field, why in _REASONS.items():
        if reader.value(field) not in (None, False, 0, [], {}, ""):
            raise UnsupportedModelError.field(field, why)
    for field in reader.names():
        for prefix, why in _PREFIXES.items():
            if field.startswith(prefix) and reader.has(field):
                raise UnsupportedModelError.field(field[:60], why)
    _refuse_projected_embeddings(reader)


def _refuse_projected_embeddings(reader: FieldReader) -> None:
    """OPT-350M projects its word embeddings; no other model does."""
    size = reader.value("word_embed_proj_dim")
    if size is not None and size != reader.value("hidden_size"):
        raise UnsupportedModelError.field("word_embed_proj_dim", "projected word embeddings")
