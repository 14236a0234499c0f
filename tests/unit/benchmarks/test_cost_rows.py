"""What the speed benchmark prices is what it says."""

import numpy as np
import pytest

from benchmarks.cost import Rate, table
from benchmarks.cost_rows import Batch, even_split, worst_case

SMALL = Batch.of("llama-3.1-8b", "dgx-h100", 1, 16, 2048)


def test_an_even_split_holds_every_layer_once() -> None:
    # 7 layers over 3 chunks: 3, 2, 2; over 2: 4, 3
    assert even_split(7, np.array([3, 2])).tolist() == [[3, 2, 2], [4, 3, 0]]


def test_the_common_configurations_are_those_that_the_other_tools_can_express() -> None:
    common = SMALL.common()
    rows = common.rows()
    assert 0 < len(rows) < len(SMALL.columns)
    assert all(row["tensor"] * row["pipeline"] * row["data"] == 8 for row in rows)  # type: ignore[operator]
    assert {row["recompute"] for row in rows} == {"none", "selective", "full"}
    assert (common.num_chunks == common.columns.pipeline_parallel_size).all()


def test_every_row_is_priced_and_assembled_in_measured_time() -> None:
    priced, assembled = SMALL.cpu_seconds()
    assert priced > 0.0
    assert assembled > 0.0


def test_a_row_without_a_figure_is_not_counted_as_computed() -> None:
    with pytest.raises(ArithmeticError):
        worst_case(np.array([1.0, np.nan]), np.array([[1.0], [1.0]]))


def test_ratios_are_to_the_first_row() -> None:
    # 1 000 rows in 1 s (median of 0.5, 1, 2) against 100 in 1 s: 10 times
    rates = [
        Rate(tool="Meshwright", what="a", count=1000, seconds=(0.5, 1.0, 2.0)),
        Rate(tool="other", what="b", count=100, seconds=(1.0,)),
    ]
    text = "\n".join(table("t", rates))
    assert "| 1,000 | 500 … 2,000 | – |" in text
    assert "| 10 × as fast |" in text
