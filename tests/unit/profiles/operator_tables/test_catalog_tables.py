"""The committed tables against measured points that their fit never saw."""

import json
import time

import numpy as np
import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.library import find_gpu
from meshwright.profiles.operators.tables import (
    FOLDER,
    FloatArray,
    OperatorTable,
    attention_forward_s,
    bus_bytes_per_s,
    collective_s,
    gemm_s,
    grouped_mlp_s,
    load_operator_tables,
    memory_bound_s,
    operator_table_names,
)

GPUS = (
    "a100-sxm-80gb",
    "b200-sxm-180gb",
    "b300",
    "gb200",
    "gb300",
    "h100-sxm-80gb",
    "h200-sxm-141gb",
    "l40s",
    "rtx-pro-6000-server",
)
# Largest median and 90th percentile of |predicted / measured - 1| over the held-out points that are
# committed. Collectives are held against another element type, which reductions feel (NVLink SHARP).
LIMITS = {
    "gemm": (0.05, 0.20),
    "attention_forward": (0.05, 0.18),
    "grouped_mlp": (0.08, 0.60),
    "memory_bound": (0.05, 0.15),
    "all_reduce": (0.06, 0.20),
    "all_gather": (0.02, 0.15),
    "reduce_scatter": (0.05, 0.25),
    "all_to_all": (0.02, 0.25),
}
ALL_TABLES = [
    pytest.param(table, id=f"{gpu}-{table.operator}-{table.precision}")
    for gpu in GPUS
    for table in load_operator_tables(gpu).tables.values()
]


def errors(table: OperatorTable) -> FloatArray:
    """Relative errors of a table on its committed held-out points."""
    *arguments, measured = np.array(table.held_out.samples).T
    return np.asarray(np.abs(table.seconds(*arguments) / measured - 1.0))


def test_every_promised_gpu_has_tables_and_is_in_the_catalog() -> None:
    assert operator_table_names() == GPUS
    for gpu in GPUS:
        assert find_gpu(gpu).slug == gpu


def test_a_file_stays_small_and_names_source_licence_and_date() -> None:
    for gpu in GPUS:
        text = (FOLDER / f"{gpu}.json").read_text("utf-8")
        assert len(text) < 100_000
        source = json.loads(text)["source"]
        assert source["package"].startswith("aiconfigurator-core 0.12.0")
        assert "Apache-2.0" in source["licence"]
        assert source["distilled"] >= "2026"


@pytest.mark.parametrize("table", ALL_TABLES)
def test_a_table_reproduces_points_it_has_not_seen(table: OperatorTable) -> None:
    median, p90 = LIMITS[table.operator]
    found = errors(table)
    assert len(found) >= 40
    assert np.median(found) <= median
    assert np.percentile(found, 90) <= p90


@pytest.mark.parametrize("table", ALL_TABLES)
def test_the_stated_error_is_the_error_of_the_committed_points(table: OperatorTable) -> None:
    # The samples are a part of the held-out points, so the two medians agree only about.
    assert abs(np.median(errors(table)) - table.held_out.median) < 0.025
    assert table.held_out.count >= len(table.held_out.samples)


@pytest.mark.parametrize("operator", ["gemm", "attention_forward"])
@pytest.mark.parametrize("gpu", GPUS)
def test_over_all_held_out_points_the_median_is_within_five_percent(gpu: str, operator: str) -> None:
    for (name, precision), table in load_operator_tables(gpu).tables.items():
        if name == operator:
            assert table.held_out.median <= 0.05, precision


def test_a_held_out_point_is_no_node_of_its_own() -> None:
    # H100: 1 509 of about 15 500 points were held out; the table has 12 x 12 x 12 = 1 728 nodes.
    table = load_operator_tables("h100-sxm-80gb").find("gemm")
    assert table.held_out.count == 1509
    assert table.grid.values.size == 12 * 12 * 12


@pytest.mark.parametrize("gpu", GPUS)
def test_no_product_is_faster_than_the_peak(gpu: str) -> None:
    tables = load_operator_tables(gpu)
    for (operator, precision), table in tables.tables.items():
        if operator == "gemm":
            sizes = 2.0 ** np.random.default_rng(0).uniform(5, 15, (3, 20_000))
            share = 2.0 * sizes.prod(axis=0) / gemm_s(*sizes, tables=tables, precision=precision)
            assert 0.6 < share.max() / table.roof.flops < 0.95


@pytest.mark.parametrize("gpu", GPUS)
def test_doubling_a_side_of_a_product_hardly_ever_saves_time(gpu: str) -> None:
    # Measured: another kernel is chosen for the larger product, so up to 15 % is real.
    tables = load_operator_tables(gpu)
    m, n, k = 2.0 ** np.random.default_rng(1).uniform(7, 15, (3, 20_000))
    before = gemm_s(m, n, k, tables=tables)
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        ratio = gemm_s(*larger, tables=tables) / before
        assert ratio.min() > 0.85
        assert np.mean(ratio < 1.0) < 0.02


def test_an_h100_reaches_the_shares_of_peak_that_people_see() -> None:
    tables = load_operator_tables("h100-sxm-80gb")
    # 2 x 8192^3 / 989e12 = 1.112 ms at peak
    assert gemm_s(8192, 8192, 8192, tables=tables) == pytest.approx(1.112e-3 / 0.72, rel=0.05)
    # causal, 64 heads of 128, 8 192 tokens: 2 x 64 x 8192^2 x 128 / 989e12 = 1.112 ms at peak
    attention = attention_forward_s(1, 64, 8, 8192, head_dim=128, tables=tables)
    assert attention == pytest.approx(1.112e-3 / 0.62, rel=0.05)
    # 8 experts of 4 096 x 14 336, 4 096 rows each: 6 x 8 x 4096^2 x 14336 / 989e12 = 11.67 ms at peak
    experts = grouped_mlp_s(4096, 8, 4096, 14336, tables=tables)
    assert experts == pytest.approx(11.67e-3 / 0.81, rel=0.05)
    # 1 GiB at 3.35 TB/s: 0.3205 ms
    assert memory_bound_s(2.0**30, tables=tables) == pytest.approx(0.3205e-3 / 0.9, rel=0.05)
    assert bus_bytes_per_s("all_gather", 8, 2.0**29, tables=tables) == pytest.approx(336e9, rel=0.03)


def test_message_sizes_were_converted_from_elements_to_bytes() -> None:
    # The source: 8 A100, all-reduce of 268 435 456 half elements, that is 512 MiB. On NVLink of
    # 300 GB/s the bus cannot carry more; had elements been taken for bytes, it would seem 111 GB/s.
    tables = load_operator_tables("a100-sxm-80gb")
    bus = bus_bytes_per_s("all_reduce", 8, 2.0**29, tables=tables)
    assert 180e9 < bus < 260e9
    # 2 x 7/8 x 512 MiB over that bus
    assert collective_s("all_reduce", 8, 2.0**29, tables=tables) == pytest.approx(1.75 * 2**29 / bus)


def test_fp8_is_faster_than_bf16_where_it_counts_and_missing_on_an_a100() -> None:
    for gpu in GPUS[1:]:
        tables = load_operator_tables(gpu)
        ratio = gemm_s(8192, 8192, 8192, tables=tables, precision="fp8") / gemm_s(
            8192, 8192, 8192, tables=tables
        )
        assert 0.4 < ratio < 0.75
    with pytest.raises(ProfileError, match=r"a100-sxm-80gb: no measured table of gemm in fp8"):
        gemm_s(8192, 8192, 8192, tables=load_operator_tables("a100-sxm-80gb"), precision="fp8")


def test_what_was_not_measured_is_marked() -> None:
    tables = load_operator_tables("h100-sxm-80gb")
    gemm = tables.find("gemm")
    assert gemm.extrapolated([4096, 65536, 4096], [4096, 4096, 131072], 4096).tolist() == [
        False,
        True,
        True,
    ]
    attention = tables.find("attention_forward")
    assert attention.extrapolated(1, 32, 8, [8192, 131072], 128).tolist() == [False, True]
    assert tables.find("all_reduce", "any").extrapolated([8, 16], 2.0**20).tolist() == [False, True]


def test_beyond_the_table_the_roof_extrapolates() -> None:
    # At 65 536 rows a product is bound by compute, and the share of peak at 32 768 rows is kept.
    tables = load_operator_tables("h100-sxm-80gb")
    ratio = gemm_s(262144, 8192, 8192, tables=tables) / gemm_s(32768, 8192, 8192, tables=tables)
    assert ratio == pytest.approx(8.0, rel=0.01)


def test_shapes_broadcast_and_chunks_do_not_show() -> None:
    tables = load_operator_tables("b200-sxm-180gb")
    m = 2.0 ** np.random.default_rng(2).uniform(5, 15, 40_000)
    whole = gemm_s(m, 4096, 4096, tables=tables)
    assert whole.shape == (40_000,)
    assert np.array_equal(whole[30_000:], gemm_s(m[30_000:], 4096, 4096, tables=tables))
    assert gemm_s(m[:6].reshape(2, 3), 4096, 4096, tables=tables).shape == (2, 3)
    assert gemm_s(4096, 4096, 4096, tables=tables).shape == ()
    assert gemm_s(np.zeros(0), 4096, 4096, tables=tables).shape == (0,)


def test_a_million_products_take_less_than_half_a_second() -> None:
    tables = load_operator_tables("h100-sxm-80gb")
    sizes = 2.0 ** np.random.default_rng(3).uniform(5, 15, (3, 1_000_000))
    gemm_s(*sizes, tables=tables)
    best = np.inf
    for _ in range(3):
        start = time.process_time()
        gemm_s(*sizes, tables=tables)
        best = min(best, time.process_time() - start)
    assert best < 0.5
