"""Every fact of every model that is imported from a config; UPDATE_GOLDEN=1 writes the models anew.

The configs are fixtures of the importers' tests, which compare counts with other libraries; here are the
facts that no count shows: windows, positions, switches of attention, shapes of towers.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.model_shapes import model_to_mapping

FOLDER = Path(__file__).parent
FIXTURES = Path(__file__).parents[2] / "unit" / "profiles" / "fixtures"


def configs_of(name: str) -> list[dict[str, object]]:
    found = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    return [one["config"] for one in (found["configs"] if isinstance(found, dict) else found)]


def imported(config: dict[str, object]) -> object:
    """The model as requests state it, or the sentence that refuses it."""
    try:
        model = model_to_mapping(model_from_config(config, name="x"))
    except InvalidProblemError as refused:
        return str(refused)
    return {name: value for name, value in model.items() if name not in ("name", "source")}


@pytest.mark.parametrize("name", ["real-configs", "drawn-configs", "drawn-towers", "drawn-diffusers"])
def test_every_config_is_read_as_the_model_that_was_reviewed(name: str) -> None:
    """A line of the file is a model, in the order of the configs."""
    path = FOLDER / f"{name}.jsonl"
    models = [json.dumps(imported(config), separators=(",", ":")) for config in configs_of(name)]
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text("\n".join(models) + "\n", encoding="utf-8")
    reviewed = path.read_text(encoding="utf-8").splitlines()
    assert [
        f"{config}: {before} -> {now}"
        for config, before, now in zip(configs_of(name), reviewed, models, strict=True)
        if before != now
    ] == []
