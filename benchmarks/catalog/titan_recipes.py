"""Writes what torchtitan's own configurations set, by name, as its sources say it; none of them is run.

    python -m benchmarks.catalog.titan_recipes FOLDER/torchtitan/models

takes the models of one version; each ``config_registry.py`` there has functions that make configurations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from meshwright.launchers.reading.base import Source
from meshwright.launchers.reading.python_values import NOTHING, makers_of, module_values, tree_of

CATALOG = Path(__file__).parents[2] / "profiles" / "catalog" / "recipes" / "torchtitan.json"
SOURCE = "pytorch/torchtitan 0.3.0, torchtitan/models/*/config_registry.py, BSD-3-Clause"
_LEFT_OUT = ("training.steps", "training.max_norm", "training.dtype", "training.disable_cuda", "compile.")
_NO_LANGUAGE = ("flux",)


def recipes(models: Path) -> dict[str, dict[str, object]]:
    """What each configuration sets, by its name."""
    found = {}
    for path in sorted(models.glob("*/config_registry.py")):
        text, module = path.read_text("utf-8"), path.parent.name
        for name in makers_of(tree_of(path.name, text)) if module not in _NO_LANGUAGE else ():
            values = module_values(Source(name=path.name, text=text), name)
            if not name.startswith("_"):
                found[name] = {"model.name": module} | {
                    key: one.value
                    for key, one in sorted(values.items())
                    if one.value is not NOTHING and (not key.startswith(_LEFT_OUT) or "async" in key)
                }
    return found


def main(words: list[str]) -> None:
    """Write the file of the catalog."""
    rows = [
        f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in recipes(Path(words[0])).items()
    ]
    lines = ["{", f' "source": {json.dumps(SOURCE)},', ' "recipes": {', ",\n".join(rows), " }", "}"]
    CATALOG.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
