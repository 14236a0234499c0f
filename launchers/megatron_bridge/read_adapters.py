"""Adapters of Megatron-Bridge's recipes: their rank and the layers that they adapt.

Names and defaults: Megatron-Bridge 0.7, peft/lora.py ``LoRA`` and peft/dora.py ``DoRA``;
recipes/utils/dataset_utils.py ``default_peft_config``. Its layers are Megatron-Core's fused ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.launchers.reading.base import LaunchFile
from meshwright.profiles.adapters import ATTENTION_TARGETS, FUSED_TARGETS
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec

ConfigValues = Mapping[str, tuple[str, int]]  # key to value as text and line
SECTION = "peft"
RANK = 32  # ``LoRA.dim``
_READ = ("dim", "target_modules", "dropout", "share_expert_adapters")
_FREE = ("alpha", "dropout_position", "lora_A_init_method", "lora_B_init_method", "params_to_save")
_OFF = ("false", "null", "none", "0", "0.0", "")
_MOST = 99_999
# Of layers that only some models have: state-space layers, latent attention.
_OF_MIXERS = ("in_proj", "out_proj")
_OF_LATENTS = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj",
               "linear_kv_up_proj")  # fmt: skip


def adapted(found: LaunchFile, usual: Mapping[str, Any] | str | None, values: ConfigValues) -> LaunchFile:
    """Return a run with its adapters; unchanged where all weights are trained.

    Args:
        found: the run of the model and its mesh.
        usual: what the recipe sets of its adapters; text where that is not known.
        values: all overrides of the command.

    Raises:
        InvalidProblemError: adapters that no plan describes, or a value that cannot be read.
    """
    own = {key.partition(".")[2]: one for key, one in values.items() if key.startswith(f"{SECTION}.")}
    whole = values.get(SECTION)
    if whole is not None and whole[0].lower() in _OFF:
        return found
    if whole is not None:
        raise _refused("", whole[1], f"{whole[0][:40]} is not read", "peft.dim and peft.target_modules")
    if usual is None and not own:
        return found
    for name, (text, line) in own.items():
        if name not in (*_READ, *_FREE) and text.lower() not in _OFF:
            raise _refused(name, line, "changes adapters in a way that is not priced", "leave it out")
    if isinstance(usual, str) and not {"dim", "target_modules"} <= own.keys():
        raise InvalidProblemError.of(
            "--recipe", "it makes its adapters itself", allowed="peft.dim=… and peft.target_modules=[…]"
        )
    stated = usual if isinstance(usual, Mapping) else {}
    rank = _rank(*own["dim"]) if "dim" in own else int(stated.get("dim", RANK))
    text, line = own.get("target_modules", ("", 0))
    names = [part.strip(" '\"") for part in text.strip("[]").split(",")] if text else None
    targets = _targets(names or stated.get("target_modules", FUSED_TARGETS), line, found.model)
    apart = own.get("share_expert_adapters", ("true", 0))[0].lower() == "false"
    is_dora = stated.get("scheme") == "dora"
    if found.model.moe and set(targets) - set(ATTENTION_TARGETS) and (is_dora or not apart):
        why = "the experts of a rank share an adapter there, which is not priced"
        raise _refused("target_modules", line, why,
                       "[linear_qkv,linear_proj], or peft.share_expert_adapters=false")  # fmt: skip
    options = dict(found.workload.framework_options)
    if own.get("dropout", (str(stated.get("dropout", 0.0)), 0))[0].lower() not in _OFF:
        options["adapter_dropout"] = True
    if is_dora:
        options["dora"] = True
    workload = replace(found.workload, lora_rank=rank, lora_targets=targets, framework_options=options)
    return replace(found, workload=workload)


def latent_layers(mla: MlaSpec) -> tuple[str, ...]:
    """Return Megatron-Core's names of the projections that replace ``linear_qkv`` in latent attention."""
    queries = {"linear_q_down_proj", "linear_q_up_proj"} if mla.q_lora_rank else {"linear_q_proj"}
    return tuple(name for name in _OF_LATENTS if name.startswith("linear_kv") or name in queries)


def _rank(text: str, line: int) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _MOST:
        raise _refused("dim", line, f"{text[:20]} is not a rank", f"1 to {_MOST}")
    return int(text)


def _targets(names: list[str], line: int, model: ModelSpec) -> tuple[str, ...]:
    """Return the adapted layers by our names; those of layers that the model lacks match nothing."""
    found = {name for name in names if model.mixer is not None or name not in _OF_MIXERS}
    if model.mla is not None:
        layers = {*latent_layers(model.mla)}
        if "linear_qkv" in found or (found & layers and not layers <= found):
            why = "latent attention has other layers, and some without adapters are not priced"
            raise _refused("target_modules", line, why, ", ".join(sorted(layers)))
        found = found - set(_OF_LATENTS) | ({"linear_qkv"} if layers <= found else set())
    if strange := sorted(found - set(FUSED_TARGETS)):
        raise _refused("target_modules", line, f"{strange[0][:40]} is not priced", ", ".join(FUSED_TARGETS))
    return tuple(name for name in FUSED_TARGETS if name in found)


def _refused(name: str, line: int, why: str, allowed: str) -> InvalidProblemError:
    where = f"line {line}: " if line else ""
    key = f"{SECTION}.{name}" if name else SECTION
    return InvalidProblemError.of(key, f"{where}{why}", allowed=allowed)
