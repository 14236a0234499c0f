"""Prints the fields of MaxText's configuration, with the defaults of its base.yml."""

from __future__ import annotations

import json
import os
import sys
from enum import Enum
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.remove(HERE)  # files there have the names of packages
os.environ["DECOUPLE_GCLOUD"] = "TRUE"  # Google's client libraries are not asked for

import yaml  # noqa: E402
from maxtext.configs import types  # noqa: E402
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR  # noqa: E402

sys.path.insert(0, HERE)
import argument_rows  # noqa: E402

USUAL = yaml.safe_load((Path(MAXTEXT_CONFIGS_DIR) / "base.yml").read_text())


def row(name: str, annotation: object, default: object) -> dict[str, object]:
    """Return one field; an enumeration is the word that a file gives."""
    usual = USUAL.get(name, default)
    usual = None if usual in ("", "None") else usual
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        words = [str(one.value) for one in annotation if one.value != ""]
        found = argument_rows.row_of_field(str, getattr(usual, "value", usual))
        return found | {"choices": words}
    return argument_rows.row_of_field(annotation, getattr(usual, "value", usual))


derived = types.DerivedValues.model_fields  # computed; a file that gives one is overruled
declared = types.MaxTextConfig.model_fields
print(
    json.dumps(
        {
            name: row(name, field.annotation, field.default)
            for name, field in sorted(declared.items())
            if name not in derived
        }
    )
)
