"""docs/how-the-cost-model-works.md names only what exists."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "how-the-cost-model-works.md").read_text(encoding="utf-8")
ROOMS = "profiles|solver|benchmarks|tests"
NAMED = sorted(set(re.findall(rf"`((?:{ROOMS})/[\w./-]+)(?::(\w+))?`", PAGE)))


def test_the_document_names_many_functions() -> None:
    assert sum(bool(name) for _, name in NAMED) > 40


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_the_document_names_exists(path: str, name: str) -> None:
    assert (ROOT / path).exists()
    if name:
        module = import_module(path.removesuffix(".py").replace("/", "."))
        assert hasattr(module, name)


@pytest.mark.parametrize("block", ["ablation", "bench-cost"])
def test_generated_blocks_open_and_close(block: str) -> None:
    assert PAGE.count(f"<!-- {block} -->") == PAGE.count(f"<!-- /{block} -->") == 1
    assert PAGE.index(f"<!-- {block} -->") < PAGE.index(f"<!-- /{block} -->")
