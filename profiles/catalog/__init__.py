"""The data files that ship with Meshwright."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

CATALOG = Path(__file__).parent


@cache
def catalog_file(path: Path) -> Any:  # noqa: ANN401 - what a file holds
    """Return what a YAML file of the catalog holds, read once; it must not be changed."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
