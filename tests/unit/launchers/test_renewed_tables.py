"""A launcher's new release is a difference to review."""

from __future__ import annotations

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
