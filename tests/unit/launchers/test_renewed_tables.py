"""A launcher's new release is a difference to review."""

from __future__ import annotations

from pathlib import Path

from benchmarks.catalog.launcher_flags import PROGRAMS, renewed
from tests.launchers.tables import Row, changed_rows, merged


def test_added_gone_and_changed_arguments_are_named_and_added_ones_need_a_role() -> None:
    old: dict[str, Row] = {"lr": {"type": "float", "default": 0.1, "harmless": "the learning rate"},
           "tp": {"type": "int", "priced": "plan.tensor_parallel_size"}}  # fmt: skip
    new = merged(old, {"lr": {"type": "float", "default": 0.2}, "cp": {"type": "int"}})
    assert changed_rows(old, new) == [
        "added    cp: type int; it needs a role",
        "changed  lr: type float, default 0.1 -> type float, default 0.2",
        "gone     tp",
    ]
    assert new["lr"]["harmless"] == "the learning rate"


def test_a_table_by_sources_keeps_roles_and_marks_the_last_release_with_an_argument(tmp_path: Path) -> None:
    schemas = tmp_path / "axolotl" / "utils" / "schemas"
    schemas.mkdir(parents=True)
    (schemas / "config.py").write_text(
        "class AxolotlInputConfig:\n    base_model: str\n    own_new: int = 3\n"
    )
    rows = renewed("axolotl", tmp_path)
    assert rows["base_model"] == {"type": "str", "priced": "model"}
    assert rows["own_new"] == {"type": "int", "default": 3}
    newest, last = PROGRAMS["axolotl"][:2]
    assert newest.name != last.name
    assert rows["micro_batch_size"]["until"] == last.name
    assert rows["unsloth_rms_norm"]["until"] == "axolotl-0.12.2"
