"""Model types that libraries register and that no config is planned of, each with the reason.

    python -m benchmarks.catalog.unplanned_types AUTO.py [BRIDGES ...]

AUTO.py is transformers' ``models/auto/modeling_auto.py``, of a release or of main. BRIDGES are folders with
Megatron-Bridge's ``models``, whose bridges register by type. A type is planned if a row reads its config,
or its language model and its tower. ``unknown`` is refused too, with the nearest type that is planned.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.importers.huggingface_keys import config_keys
from meshwright.profiles.importers.huggingface_towers import whole_types

_MAPPINGS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
_BRIDGE = re.compile(r"register_bridge\((.*?)\)\n", re.DOTALL)


def registered(auto: str) -> set[str]:
    """Return the types in transformers' mappings of language models, with images and without."""
    found = set[str]()
    for name in _MAPPINGS:
        mapping = re.search(rf"{name}\s*=\s*OrderedDict\(\s*\[(.*?)\n    \]", auto, re.DOTALL)
        found |= set(re.findall(r'\(\s*"([^"]+)",', mapping[1])) if mapping else set()
    return found


def bridged(folder: Path) -> set[str]:
    """Return the types that Megatron-Bridge's bridges register."""
    calls = (one for path in folder.rglob("*.py") for one in _BRIDGE.findall(path.read_text("utf-8")))
    return {name for call in calls for name in re.findall(r'model_type="([^"]+)"', call)}


def unplanned(types: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each type that is refused, and why."""
    known = config_keys()
    for name in sorted(types):
        if known.renamed.get(name, name) not in families() and name not in whole_types():
            yield name, known.refused_types.get(name, "unknown")


def main(words: Sequence[str]) -> int:
    """Print the types, one a line; 1 where one of them is unknown."""
    if not words:
        print(__doc__)
        return 2
    types = registered(Path(words[0]).read_text("utf-8"))
    for folder in words[1:]:
        types |= bridged(Path(folder))
    rows = list(unplanned(types))
    for name, why in rows:
        print(f"{name}: {why}")
    print(f"{len(types)} registered, {len(types) - len(rows)} planned")
    return int(any(why == "unknown" for _, why in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
