"""Writes what transformers' configuration classes take where a config says nothing, for the planned types.

    .ci/environment torch python -m benchmarks.catalog.model_types [TYPE ...]

writes ``profiles/catalog/model_types.json`` for its types and those named. Taken are
the fields' own defaults (what a class derives from other fields is the importer's task), rotary positions,
the other names of keys (``attribute_map``), keys that change other types' models but not
this one's, as building both tells, and the names under which peft adapts experts. It imports nothing of
Meshwright.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

CATALOG = Path(__file__).parents[2] / "profiles" / "catalog" / "model_types.json"
SOURCE = "huggingface/transformers {version}, src/transformers/models/*/configuration_*.py, Apache-2.0"
NO_FACTS = re.compile(r"token_id|dropout|pdrop|use_cache|initializer|init_std|output_router|init_device")
# Keys that change the sizes of some types' models, each with a value that no class defaults to.
PROBES: dict[str, Any] = {
    "num_key_value_heads": 2, "head_dim": 96, "intermediate_size": 1536, "n_inner": 1000, "ffn_dim": 1000,
    "moe_intermediate_size": 300, "shared_expert_intermediate_size": 640, "dense_intermediate_size": 900,
    "num_experts": 16, "num_local_experts": 16, "n_routed_experts": 16, "moe_num_experts": 16,
    "n_shared_experts": 2, "num_shared_experts": 2, "moe_num_shared_experts": 2,
    "shared_intermediate_size": 640,
    "first_k_dense_replace": 2, "num_dense_layers": 1, "decoder_sparse_step": 2, "moe_layer_freq": 2,
    "interleave_moe_layer_step": 2, "moe_layer_interval": 2, "mlp_only_layers": [0],
    "kv_lora_rank": 64, "word_embed_proj_dim": 128,
}  # fmt: skip
OF_THE_BASE = {"tie_word_embeddings"}  # the one field of the base class that changes a model


def defaults_of(config: type) -> dict[str, Any]:
    """The values of fields that the class adds to, or sets otherwise than, its base; None left out."""
    from transformers import PreTrainedConfig  # noqa: PLC0415 - not in the development environment

    base = {field.name for field in dataclasses.fields(PreTrainedConfig)} - OF_THE_BASE
    found = {
        field.name: field.default
        for field in dataclasses.fields(config)
        if field.name not in base
        and not NO_FACTS.search(field.name)
        and isinstance(field.default, bool | int | float | str)
    }
    theta = getattr(config, "default_theta", None)
    if isinstance(theta, dict):  # of global and of local layers
        found |= {"rope_theta": theta["global"], "rope_local_base_freq": theta["local"]}
    elif isinstance(theta, int | float):
        found["rope_theta"] = theta
    return found


def derived_of(config: type, base: dict[str, Any]) -> dict[str, Any]:
    """The rotary positions that the class builds where a config has none or null.

    Those of each kind of layer where they differ; else the share of a head that rotates, if not the whole.
    """
    rope = getattr(config(**base), "rope_parameters", None) or {}
    if isinstance(getattr(config, "default_theta", None), dict):
        return {}
    if "sliding_attention" in rope and rope["full_attention"] != rope["sliding_attention"]:
        return {"rope_parameters": rope}
    share = rope.get("partial_rotary_factor", 1)
    return {} if share == 1 else {"partial_rotary_factor": share}


def expert_adapters(model_type: str) -> str:
    """Under which names peft finds the routed experts of a type, or of the model that it is a part of."""
    from peft.utils import transformers_weight_conversion as peft_of  # noqa: PLC0415

    patterns = peft_of._MODEL_TO_CONVERSION_PATTERN  # noqa: SLF001
    pattern = patterns.get(model_type) or patterns.get(model_type.removesuffix("_text"))
    return {"qwen2_moe": "gate_up", "mixtral": "w1_w3"}.get(pattern, "none")


def unread(model_type: str) -> list[str]:
    """The probes that the class has no field for, and that leave the model that it builds as it is."""
    from tests.torch.drawn_configs import (  # noqa: PLC0415
        CONFIG_MAPPING,
        LAYERS,
        NEEDED_BY_TYPE,
        needed,
        parameters,
    )

    config = CONFIG_MAPPING[model_type]
    fields = {field.name for field in dataclasses.fields(config)}
    base = {**needed(config), **NEEDED_BY_TYPE.get(model_type, {})}
    if model_type != "gpt_neo":  # whose kinds of layers are listed
        base |= dict.fromkeys(filter(LAYERS.match, fields), 3)
    plain, found = parameters(model_type, base), []
    for key, value in PROBES.items():
        if key in fields or key in config.attribute_map:
            continue
        try:
            if parameters(model_type, {**base, key: value}) == plain:
                found.append(key)
        except Exception:  # noqa: BLE001, S112 - it is read, and contradicts another
            continue
    return found


def main() -> int:
    """Write the table of every type that the file already names, or that is named on the command line."""
    import transformers  # noqa: PLC0415
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415

    from tests.torch.drawn_configs import NEEDED_BY_TYPE, needed  # noqa: PLC0415

    known = set(json.loads(CATALOG.read_text())["types"]) if CATALOG.exists() else set()
    types = {}
    for name in sorted(known | set(sys.argv[1:])):
        config = CONFIG_MAPPING[name]
        names = {other: own for other, own in config.attribute_map.items() if other != own}
        own = {names.get(key, key): value for key, value in defaults_of(config).items()}
        derived = derived_of(config, {**needed(config), **NEEDED_BY_TYPE.get(name, {})})
        types[name] = {"defaults": own, "derived": derived, "names": names, "unread": unread(name)}
        types[name]["expert_adapters"] = expert_adapters(name)
        for part, part_config in (getattr(config, "sub_configs", None) or {}).items():
            parts = defaults_of(part_config).items()
            types[name]["defaults"] |= {
                f"{part}.{key}": value for key, value in parts if key != "rope_theta"
            }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in types.items())
    source = SOURCE.format(version=transformers.__version__)
    CATALOG.write_text(f'{{"source": {json.dumps(source)},\n"types": {{\n{lines}\n}}}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
