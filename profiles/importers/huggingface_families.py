"""Hugging Face model types by name: ``catalog/model_families.yaml``, and the rules that its rows name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import UnsupportedModelError
from meshwright.profiles.importers.huggingface_keys import Facts, ModelTypeKeys
from meshwright.profiles.importers.huggingface_layers import (
    attention_residuals,
    chosen_blocks,
    compressed_entries,
    deepseek_4_config,
    gemma_3n_streams,
    gemma_4_attention,
    heads_by_layer,
    mimo_attention,
    minimax_3_config,
    nemotron_nas_config,
    step_attention,
    step_config,
    unlike_layers,
    without_positions,
)
from meshwright.profiles.importers.huggingface_mixers import (
    bailing_hybrid_config,
    delta_net,
    delta_net_of_olmo,
    falcon_h1,
    kimi_delta,
    kimi_delta_of_ling,
    kimi_linear_config,
    lfm2_config,
    lightning,
    mamba_1,
    mamba_1_config,
    mamba_2,
    mamba_2_config,
    minimax_config,
    mixers_alone,
    nemotron_h_config,
    olmo_hybrid_config,
    selective_scans_alone,
    short_convolution,
    single_blocks,
)
from meshwright.profiles.reading import FieldReader

_FILE = CATALOG / "model_families.yaml"
_BAICHUAN_2 = 125_696  # tokens, by which vLLM recognises it (models/baichuan.py)


def _falcon_norms(reader: FieldReader, facts: Facts) -> Facts:
    """Return Falcon's norms: attention and MLP share one, except in the newer one (modeling_falcon).

    Raises:
        UnsupportedModelError: norms that the class builds and does not read, or lacks.
    """
    newer, norms = (
        reader.flag("new_decoder_architecture", default=False),
        reader.value("num_ln_in_parallel_attn"),
    )
    if norms not in ((None, 1, 2) if newer else (None, 1)):
        raise UnsupportedModelError.field(
            "num_ln_in_parallel_attn",
            f"{str(norms)[:20]}: the class runs with 1, or 2 where new_decoder_architecture is true",
        )
    return {"shared_norm": bool(facts.get("parallel_residual")) and not (newer and norms != 1)}


def _multiple_of_hidden(reader: FieldReader, facts: Facts) -> Facts:
    """Return the MLP's width of GPT-NeoX Japanese, which states it in hidden sizes."""
    size = facts["hidden_size"] if isinstance(facts["hidden_size"], int) else 0
    return {"ffn_hidden_size": int(size * reader.number("intermediate_multiple_size", low=1e-3, high=1e3))}


def _first_or_second(reader: FieldReader, _known: Facts) -> Facts:
    """Return Baichuan's positions: ALiBi for 13 B, where configs have only ``model_max_length``.

    Baichuan 2's head has rows of unit length (``NormHead`` of its code on the Hugging Face Hub).
    """
    only = reader.has("model_max_length") and not reader.has("max_position_embeddings")
    second: Facts = {"normalized_head": True} if reader.value("vocab_size") == _BAICHUAN_2 else {}
    return {**second, **({"alibi_positions": True} if only else {})}


def _scales_of_mup(reader: FieldReader, facts: Facts) -> Facts:
    """Return the scales of embeddings, logits and scores of BTLM, which muP sets apart from sizes."""
    names = ("mup_embeddings_scale", "mup_output_alpha", "mup_width_scale")
    embeddings, outputs, width = (reader.number(name, low=1e-6, high=1e6, default=1.0) for name in names)
    by_size = reader.flag("mup_scale_qk_dot_by_d", default=False)
    scores: Facts = {"attention_scale": 1.0 / cast("int", facts["head_dim"])} if by_size else {}
    return {"embedding_scale": embeddings, "logit_scale": outputs * width, **scores}


def _granite_hybrid(config: dict[str, object]) -> dict[str, object]:
    """Return Granite 4 H's config; without experts its MLP is the shared one alone."""
    if config.get("num_local_experts") == 0:
        return {**config, "intermediate_size": config["shared_intermediate_size"],
                "shared_intermediate_size": 0}  # fmt: skip
    return config


def _jamba(config: dict[str, object]) -> dict[str, object]:
    """Return Jamba's config; its class builds an MLP in place of a single expert."""
    return {**config, "num_experts": 0} if config.get("num_experts") == 1 else config


# What a row names, by its attribute.
_RULES: Mapping[str, Mapping[str, object]] = {
    "as_built": {
        "bailing_hybrid_config": bailing_hybrid_config,
        "deepseek_4_config": deepseek_4_config,
        "granite_hybrid": _granite_hybrid,
        "jamba": _jamba,
        "kimi_linear_config": kimi_linear_config,
        "lfm2_config": lfm2_config,
        "mamba_1_config": mamba_1_config,
        "mamba_2_config": mamba_2_config,
        "minimax_3_config": minimax_3_config,
        "minimax_config": minimax_config,
        "nemotron_h_config": nemotron_h_config,
        "nemotron_nas_config": nemotron_nas_config,
        "olmo_hybrid_config": olmo_hybrid_config,
        "step_config": step_config,
    },
    "follows": {
        "attention_residuals": attention_residuals,
        "chosen_blocks": chosen_blocks,
        "compressed_entries": compressed_entries,
        "falcon_norms": _falcon_norms,
        "first_or_second": _first_or_second,
        "mixers_alone": mixers_alone,
        "multiple_of_hidden": _multiple_of_hidden,
        "scales_of_mup": _scales_of_mup,
        "selective_scans_alone": selective_scans_alone,
        "single_blocks": single_blocks,
        "unlike_layers": unlike_layers,
        "without_positions": without_positions,
    },
    "local_attention": {
        "gemma_3n_streams": gemma_3n_streams,
        "gemma_4_attention": gemma_4_attention,
        "heads_by_layer": heads_by_layer,
        "mimo_attention": mimo_attention,
        "step_attention": step_attention,
    },
    "mixer": {
        "delta_net": delta_net(split_projections=False),
        "delta_net_of_olmo": delta_net_of_olmo,
        "delta_net_split": delta_net(split_projections=True),
        "falcon_h1": falcon_h1,
        "kimi_delta": kimi_delta,
        "kimi_delta_of_ling": kimi_delta_of_ling,
        "lightning": lightning,
        "mamba_1": mamba_1,
        "mamba_2": mamba_2,
        "short_convolution": short_convolution,
    },
}
# How a fact follows from the number that a key states.
_CONVERSIONS: Mapping[str, Callable[[float], float]] = {
    "half": lambda value: int(value) // 2,
    "inverse": lambda value: 1 / value,
    "inverse_root": lambda value: value**-0.5,
    "times_10000": lambda value: round(10_000 * value),
}


def _family(row: Mapping[str, Any]) -> ModelTypeKeys:
    read: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in row.items()}
    read |= {key: rules[row[key]] for key, rules in _RULES.items() if key in row}
    read["flags"] = {key: tuple(one) for key, one in row.get("flags", {}).items()}
    pairs = {
        key: one if isinstance(one, list) else [one, None] for key, one in row.get("numbers", {}).items()
    }
    read["numbers"] = {
        key: (fact, _CONVERSIONS[how] if how else float) for key, (fact, how) in pairs.items()
    }
    read["fixed"] = {
        key: tuple(value["any"]) if isinstance(value, dict) and "any" in value else value
        for key, value in row.get("fixed", {}).items()
    }
    return ModelTypeKeys(**read)


@cache
def _read() -> Mapping[str, Mapping[str, ModelTypeKeys]]:
    raw = yaml.load(_FILE.read_text("utf-8"), Loader=yaml.CSafeLoader)
    return {part: {name: _family(row) for name, row in raw[part].items()} for part in ("types", "remote")}


@cache
def families() -> Mapping[str, ModelTypeKeys]:
    """Return how every planned model type is read."""
    return {**_read()["types"], **_read()["remote"]}
