"""Published weights in fewer than 16 bits: which kinds there are, and how training starts from each.

transformers 5.23 trains no quantised weights themselves (``trainer_utils.py:131``), so a plan trains
16-bit weights: dequantised at loading where the kind has a way, else those of the model that was
quantised. It quantises no checkpoint a second time (``quantizers/auto.py:263``), so QLoRA starts from
16-bit weights, too, unless the checkpoint is already of bitsandbytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

StoredAs = Literal[
    "", "fp8", "mxfp4", "nvfp4", "compressed-tensors", "bnb-4bit", "bnb-8bit", "gptq", "awq", "gguf",
    "quantized",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKind:
    """How transformers 5.23 loads one kind for training."""

    words: str
    dequantize: str = ""  # the call that yields 16-bit weights; empty: there is none
    base: tuple[str, ...] = ()  # frozen bases that are loaded as they are stored


# GPTQ, AWQ and others have no ``_dequantize`` (quantizers/base.py:253); pre-quantised NVFP4 is not loaded
# at all (quantizers/quantizer_nvfp4.py), nor is ModelOpt's own form.
STORED: Mapping[StoredAs, StoredKind] = {
    "fp8": StoredKind(words="fp8", dequantize="FineGrainedFP8Config(dequantize=True)"),
    "mxfp4": StoredKind(words="mxfp4", dequantize="Mxfp4Config(dequantize=True)"),
    "nvfp4": StoredKind(words="nvfp4"),
    "compressed-tensors": StoredKind(
        words="compressed tensors", dequantize="CompressedTensorsConfig(dequantize=True)"
    ),
    "bnb-4bit": StoredKind(
        words="bitsandbytes' 4 bits", dequantize="model.dequantize()", base=("nf4", "nf4-double")
    ),
    "bnb-8bit": StoredKind(words="bitsandbytes' 8 bits", dequantize="model.dequantize()", base=("int8",)),
    "gptq": StoredKind(words="GPTQ"),
    "awq": StoredKind(words="AWQ"),
    "gguf": StoredKind(words="GGUF", dequantize="GgufConfig(dequantize=True)"),
    "quantized": StoredKind(words="fewer than 16 bits"),
}
# Words of names, the first that is found; those of 16 bits state that nothing is quantised.
_NAMED: tuple[tuple[str, StoredAs], ...] = (
    ("gptq", "gptq"), ("awq", "awq"), (r"gguf|i?q[2-8](?:_[0-9a-z]+)+", "gguf"),
    ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("fp8", "fp8"), (r"bnb-8bits?|8bits?", "bnb-8bit"),
    (r"bnb|nf4|4bits?", "bnb-4bit"),
    (r"(?:quantized\.)?w\d+a\d+", "compressed-tensors"), (r"int[48]|aqlm|autoround|hqq", "quantized"),
)  # fmt: skip
_WORDS = tuple((re.compile(rf"[-_.:](?:{word})(?=[-_.:]|$)"), kind) for word, kind in _NAMED)
_WHOLE = re.compile(r"[-_](?:bf16|fp16|dequantized|linearized)(?=[-_]|$)")


def stored_in_name(name: str, published: StoredAs = "") -> StoredAs:
    """Return how the weights of a hub id are stored: by its words, else as the model is ``published``."""
    lower = name.lower()
    found = next((kind for word, kind in _WORDS if word.search(lower)), None)
    return found or ("" if _WHOLE.search(lower) else published)


def stored_in_config(config: Mapping[str, object]) -> StoredAs:
    """Return how the weights are stored, by the ``quantization_config`` of a config or of its text part."""
    for holder in (config, config.get("text_config")):
        stated = holder.get("quantization_config") if isinstance(holder, Mapping) else None
        if isinstance(stated, Mapping) and stated:
            return _of_method(cast("Mapping[str, object]", stated))
    return ""


def _of_method(stated: Mapping[str, object]) -> StoredAs:
    method = str(stated.get("quant_method") or stated.get("quant_algo") or "").lower()
    if method in ("bitsandbytes", "") and (stated.get("load_in_4bit") or stated.get("load_in_8bit")):
        return "bnb-4bit" if stated.get("load_in_4bit") else "bnb-8bit"
    if (
        method == "modelopt"
    ):  # which transformers does not load, so that its fp8 has no way to 16 bits either
        return "nvfp4" if "NVFP4" in str(stated.get("quant_algo", "")).upper() else "quantized"
    return next((kind for kind in STORED if kind == method), "quantized")
