"""Templates of exported files: texts of this package with places such as ``@NODES@``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).resolve().parent


@cache
def template(file: str) -> str:
    """Return the text of a template by its path in this package: ``megatron_lm/launch.sh``."""
    return (_FOLDER / file).read_text("utf-8")


@cache
def data(file: str) -> Mapping[str, Any]:
    """Return the values of one of this package's YAML files: templates by name, or names with values."""
    found: Mapping[str, Any] = yaml.load(template(file), Loader=yaml.CSafeLoader)
    return found


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its places filled in the order of the values, which may have places, too."""
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
