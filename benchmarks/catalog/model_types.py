"""Writes what transformers' configuration classes take where a config says nothing, for the planned types.

    python benchmarks/catalog/model_types.py

in an environment with ``transformers==5.23.0``; it writes ``profiles/catalog/model_types.json``. Taken are
the fields' own defaults (what a class derives from other fields is the importer's task), the base of rotary
positions, and the other names of keys (``attribute_map``). It imports nothing of Meshwright.
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
NO_FACTS = re.compile(
    r"token_id|dropout|pdrop|use_cache|initializer|init_std|output_router|aux_loss|init_device"
)
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
    if isinstance(theta, int | float):
        found["rope_theta"] = theta
    return found


def main() -> int:
    """Write the table of every type that the file already names, or that is named on the command line."""
    import transformers  # noqa: PLC0415
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415

    known = set(json.loads(CATALOG.read_text())["types"]) if CATALOG.exists() else set()
    types = {}
    for name in sorted(known | set(sys.argv[1:])):
        config = CONFIG_MAPPING[name]
        names = {other: own for other, own in config.attribute_map.items() if other != own}
        own = {names.get(key, key): value for key, value in defaults_of(config).items()}
        types[name] = {"defaults": own, "names": names}
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
