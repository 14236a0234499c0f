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

from meshwright.profiles.storage import STORAGE, BasePrecision, is_of_experts

StoredAs = Literal[
    "", "fp8", "mxfp4", "nvfp4", "compressed-tensors", "bnb-4bit", "bnb-8bit", "gptq", "gptq-8bit", "awq",
    "aqlm", "gguf", "quantized",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKind:
    """How transformers 5.23 loads one kind for training."""

    words: str
    dequantize: str = ""  # the call that yields 16-bit weights; empty: there is none
    base: tuple[BasePrecision, ...] = ()  # frozen bases that are loaded as they are stored


# GPTQ, AWQ and others have no ``_dequantize`` (quantizers/base.py:253); pre-quantised NVFP4 is not loaded
# at all (quantizers/quantizer_nvfp4.py), nor is ModelOpt's own form, which Axolotl reads itself.
STORED: Mapping[StoredAs, StoredKind] = {
    "fp8": StoredKind(words="fp8", dequantize="FineGrainedFP8Config(dequantize=True)"),
    "mxfp4": StoredKind(words="mxfp4", dequantize="Mxfp4Config(dequantize=True)"),
    "nvfp4": StoredKind(words="nvfp4", base=("nvfp4",)),  # experts alone, under Axolotl's kernels
    "compressed-tensors": StoredKind(
        words="compressed tensors", dequantize="CompressedTensorsConfig(dequantize=True)"
    ),
    "bnb-4bit": StoredKind(
        words="bitsandbytes' 4 bits", dequantize="model.dequantize()", base=("nf4", "nf4-double")
    ),
    "bnb-8bit": StoredKind(words="bitsandbytes' 8 bits", dequantize="model.dequantize()", base=("int8",)),
    "gptq": StoredKind(words="GPTQ", base=("gptq",)),
    "gptq-8bit": StoredKind(words="GPTQ's 8 bits", base=("gptq-8bit",)),
    "awq": StoredKind(words="AWQ", base=("awq",)),
    "aqlm": StoredKind(words="AQLM", base=("aqlm",)),
    "gguf": StoredKind(words="GGUF", dequantize="GgufConfig(dequantize=True)"),
    "quantized": StoredKind(words="fewer than 16 bits"),
}
# Words of names, the first that is found; those of 16 bits state that nothing is quantised.
_NAMED: tuple[tuple[str, StoredAs], ...] = (
    ("gptq", "gptq"), ("awq", "awq"), (r"aqlm(?:[-_.]pv)?[-_.]2bits?[-_.]1x16", "aqlm"),
    (r"gguf|i?q[2-8](?:_[0-9a-z]+)+", "gguf"),
    ("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("fp8", "fp8"), (r"bnb-8bits?|8bits?", "bnb-8bit"),
    (r"bnb|nf4|4bits?", "bnb-4bit"),
    (r"(?:quantized\.)?w\d+a\d+", "compressed-tensors"), (r"int[48]|aqlm|autoround|hqq", "quantized"),
)  # fmt: skip
_WORDS = tuple((re.compile(rf"[-_.:](?:{word})(?=[-_.:]|$)"), kind) for word, kind in _NAMED)
# Sizes that names state of GPTQ and AWQ: 4bit, Int8, w4a16; 32g, g128.
_STATED = {
    "bits": re.compile(r"[-_.](?:(?:int|w)([2-8])(?:a16)?|([2-8])[-_]?bits?)(?=[-_.]|$)"),
    "group_size": re.compile(r"[-_.](?:gs?(\d+)|(\d+)g)(?=[-_.]|$)"),
}
_WHOLE = re.compile(r"[-_](?:bf16|fp16|dequantized|linearized)(?=[-_]|$)")


def stored_in_name(name: str, published: StoredAs = "") -> StoredAs:
    """Return how the weights of a hub id are stored: by its words, else as the model is ``published``."""
    lower = name.lower()
    found = next((kind for word, kind in _WORDS if word.search(lower)), None)
    if found in ("gptq", "awq"):
        sizes = ((key, word.search(lower)) for key, word in _STATED.items())
        return _of_method(
            {"quant_method": found, **{key: int(one[1] or one[2]) for key, one in sizes if one}}
        )
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
    if method in _SIZES:
        return next((kind for kind, sizes in _SIZES[method].items() if _states(stated, sizes)), "quantized")
    return next((kind for kind in STORED if kind == method), "quantized")


# Keys of a method's config in any release, and their values in the kinds that are priced (``STORAGE``).
_AQLM = {"num_codebooks": 1, "nbits_per_codebook": 16, "in_group_size": 8, "out_group_size": 1}
_SIZES: Mapping[str, Mapping[StoredAs, Mapping[str, int]]] = {
    "gptq": {
        "gptq": {"bits": 4, "group_size": STORAGE["gptq"].group},
        "gptq-8bit": {"bits": 8, "group_size": STORAGE["gptq-8bit"].group},
    },
    "awq": {
        "awq": {
            "bits": 4,
            "w_bit": 4,
            "group_size": STORAGE["awq"].group,
            "q_group_size": STORAGE["awq"].group,
        }
    },
    "aqlm": {"aqlm": _AQLM},
}


def _states(stated: Mapping[str, object], sizes: Mapping[str, int]) -> bool:
    return all(stated.get(name, size) == size for name, size in sizes.items())


def checkpoint_base(stored: StoredAs, *, of_experts: bool = False) -> BasePrecision | None:
    """Return the precision of frozen weights that only a checkpoint has: as transformers loads them.

    ``of_experts``: also one of experts alone, which other kernels load.
    """
    kind = STORED.get(stored)
    its = [one for one in kind.base if STORAGE[one].checkpoint] if kind else []
    return next((one for one in its if of_experts or not is_of_experts(one)), None)
