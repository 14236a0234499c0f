import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from benchmarks.catalog.aiconfigurator_rows import Points
from benchmarks.catalog.grid_fit import fit_values
from benchmarks.catalog.table_file import written_tables
from benchmarks.catalog.table_fit import Job, distil
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.library import find_gpu
from meshwright.profiles.operators.operators import GpuOperators, flash_attention_s, gemm_s, operators_of
from meshwright.profiles.operators.tables import (
    FOLDER,
    FloatArray,
    LogAxis,
    LogGrid,
    OperatorTable,
    OperatorTables,
    Roof,
    load_operator_tables,
    operator_table_names,
    tables_from_json,
)
from tests.builders import a_gpu
from tests.processes.pace import work_s


def seconds_of(table: OperatorTable, *arguments: ArrayLike) -> FloatArray:
    """The measured GPU's seconds of one operator, arguments broadcast together."""
    arrays = np.broadcast_arrays(*(np.asarray(one, dtype=np.float64) for one in arguments))
    return table.roof_s(*arrays) * table.slowdown(*arrays)


def measured_gemm_s(*sizes: ArrayLike, tables: OperatorTables, precision: str = "bf16") -> FloatArray:
    return seconds_of(tables.find("gemm", precision), *sizes)


def plain(**changes: object) -> GpuOperators:
    values: dict[str, object] = {
        "gemm": {"bf16": 1.0},
        "gemm_backward": 1.0,
        "gemm_m0": 0.0,
        "gemm_n0": 0.0,
        "gemm_k0": 0.0,
        "narrow_k0": 0.0,
        "grouped_m0": 0.0,
        "launch_s": 0.0,
        "flash": 1.0,
        "flash_s0": 0.0,
        "attention_backward": 2.5,
        "hbm": 1.0,
        "source": "by hand",
        "measured": True,
    }
    return GpuOperators(**(values | changes))  # type: ignore[arg-type]


def test_a_large_gemm_takes_its_flops_over_the_rate() -> None:
    # 2 * 4096 * 8192 * 1024 = 68.7 GFLOP at 100 TFLOP/s = 687 us; 92 MB at 1 PB/s is nothing
    seconds = gemm_s(4096, 8192, 1024, operators=plain(), flops=100e12, bytes_per_s=1e15)
    assert float(seconds) == pytest.approx(2 * 4096 * 8192 * 1024 / 100e12, rel=1e-3)


def test_a_thin_gemm_takes_its_bytes_over_the_bandwidth() -> None:
    # one row: (1 + 8192) * 8192 * 2 + 2 * 8192 bytes = 134 MB at 1 TB/s = 134 us; compute is 1.3 us
    seconds = gemm_s(1, 8192, 8192, operators=plain(), flops=100e12, bytes_per_s=1e12)
    assert float(seconds) == pytest.approx(((1 + 8192) * 8192 * 2 + 2 * 8192) / 1e12, rel=1e-3)


def test_half_lengths_halve_the_rate_each() -> None:
    # m = m0, n = n0, k = k0: the rate is an eighth
    whole = gemm_s(512, 512, 512, operators=plain(), flops=1e12, bytes_per_s=1e18)
    halved = plain(gemm_m0=512.0, gemm_n0=512.0, gemm_k0=512.0)
    assert float(gemm_s(512, 512, 512, operators=halved, flops=1e12, bytes_per_s=1e18)) == pytest.approx(
        8 * float(whole), rel=1e-6
    )


@pytest.mark.parametrize(("element_bytes", "slower"), [(2.0, 1.25), (1.0, 1.5), (0.5, 2.0)])
def test_an_inner_length_of_1024_costs_the_more_the_fewer_bits_an_element_has(
    element_bytes: float, slower: float
) -> None:
    """1 + 256 / 1024 in 16 bits, 1 + 512 / 1024 in 8, and 4 have twice the length of 8."""
    cut = plain(gemm_k0=256.0, narrow_k0=512.0)
    whole, halved = (
        gemm_s(4096, 4096, 1024, operators=one, flops=1e12, bytes_per_s=1e18, element_bytes=element_bytes)
        for one in (plain(), cut)
    )
    assert float(halved / whole) == pytest.approx(slower)


def test_each_kernel_pays_its_launch() -> None:
    quick = gemm_s(1, 1, 1, operators=plain(launch_s=4e-6), flops=1e15, bytes_per_s=1e15)
    assert float(quick) == pytest.approx(4e-6, rel=1e-3)


def test_attention_reaches_half_its_rate_at_the_half_length() -> None:
    operators = plain(flash_s0=512.0)
    work = np.array([1e12])
    assert float(flash_attention_s(work, 512.0, operators=operators, flops=1e12)[0]) == pytest.approx(2.0)


def test_a_measured_gpu_says_so() -> None:
    assert operators_of(a_gpu()).measured


def test_an_unmeasured_gpu_takes_its_architectures_shares() -> None:
    other = operators_of(a_gpu(slug="h900-sxm"))
    assert not other.measured
    assert other.gemm["bf16"] == operators_of(a_gpu()).gemm["bf16"]


def test_an_unknown_architecture_takes_the_mean() -> None:
    assert operators_of(a_gpu(slug="x1", architecture="unheard-of")).gemm["bf16"] == 0.8


def test_a_gpu_uses_its_own_tables_and_a_relative_those_of_its_architecture() -> None:
    assert operators_of(a_gpu(slug="h200-sxm-141gb")).tables == "h200-sxm-141gb"
    assert operators_of(a_gpu(slug="h900-sxm")).tables == "h100-sxm-80gb"
    assert operators_of(a_gpu(slug="x1", architecture="cdna3")).tables == ""


def test_aws_gives_an_h100_a_slower_host_than_the_usual_one() -> None:
    # EPYC 7R13 over EPYC 7742: 3.6 / 3.4 GHz times 1.19 a cycle, seven tenths of the way from 1
    spec = a_gpu(slug="h100-sxm-80gb")
    assert operators_of(spec, "efa").host == pytest.approx(1 - 0.7 * (1 - 3.4 / 3.6 / 1.19), abs=0.005)
    assert operators_of(spec, "infiniband").host == operators_of(spec).host == 0.79


def test_other_tables_are_another_digest() -> None:
    own, other = (operators_of(a_gpu(slug=slug)) for slug in ("h100-sxm-80gb", "h200-sxm-141gb"))
    assert len(own.tables_digest) == 12
    assert own.tables_digest != other.tables_digest


# Broken table files, and the way from measured points to a file and back.

ROOF = Roof(flops=1e15, bytes_per_s=3e12, fixed_s=2e-6, element_bytes=2.0)


@pytest.fixture
def raw() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "l40s.json").read_text("utf-8"))
    return found


def test_an_unknown_gpu_is_named_with_those_that_are_known() -> None:
    with pytest.raises(
        ProfileError, match=r"no operator tables for v100-sxm-16gb. Available: a100-sxm-80gb"
    ):
        load_operator_tables("v100-sxm-16gb")


def test_a_path_is_no_gpu() -> None:
    with pytest.raises(ProfileError, match="no operator tables"):
        load_operator_tables("../operators/backward")


def test_values_between_nodes_are_linear_in_the_logarithm() -> None:
    # nodes at 4, 8, 16; halfway between 4 and 8 in log is 4 * sqrt(2)
    axis = LogAxis(name="m", low=2.0, step=1.0, count=3)
    grid = LogGrid(axes=(axis,), values=np.array([0.0, 1.0, 5.0]))
    points = (np.array([4.0, 4.0 * 2**0.5, 8.0, 16.0, 1.0, 99.0]),)
    assert grid.at(points) == pytest.approx([0.0, 0.5, 1.0, 5.0, 0.0, 5.0])
    assert grid.outside(points).tolist() == [False, False, False, False, True, True]


def test_an_axis_of_one_node_holds_one_value() -> None:
    grid = LogGrid(axes=(LogAxis(name="d", low=7.0, step=1.0, count=1),), values=np.array([3.0]))
    assert grid.at((np.array([64.0, 128.0]),)).tolist() == [3.0, 3.0]
    assert grid.outside((np.array([64.0, 128.0]),)).tolist() == [True, False]


def test_the_fit_finds_a_surface_that_the_grid_can_hold() -> None:
    axes = (LogAxis(name="a", low=0, step=1, count=5), LogAxis(name="b", low=0, step=2, count=3))
    a, b = 2.0 ** np.random.default_rng(0).uniform(0, 4, (2, 3000))
    target = 0.3 * np.log2(a) - 0.1 * np.log2(b) + 1.0
    values = fit_values(axes, (a, b), target, smoothness=1e-6)
    expected = [0.3 * i - 0.2 * j + 1.0 for i in range(5) for j in range(3)]
    assert values == pytest.approx(expected, abs=2e-3)


def test_one_wild_point_in_twenty_does_not_bend_the_fit() -> None:
    axes = (LogAxis(name="a", low=0, step=1, count=5),)
    a = 2.0 ** np.random.default_rng(0).uniform(0, 4, 2000)
    target = 0.3 * np.log2(a)
    target[::20] += 2.0
    assert fit_values(axes, (a,), target, smoothness=1e-6) == pytest.approx(
        [0, 0.3, 0.6, 0.9, 1.2], abs=0.02
    )


def test_points_of_equal_arguments_are_joined_by_their_median_and_zero_times_dropped() -> None:
    arguments = (np.array([2, 1, 1, 1, 3, 2]), np.array([7, 7, 7, 7, 7, 7]))
    points = Points.joined(arguments, np.array([4.0, 1.0, 9.0, 2.0, 0.0, 6.0]))
    assert points.arguments.tolist() == [[1, 7], [2, 7]]
    assert points.seconds.tolist() == [2.0, 5.0]  # median of 1, 2, 9; of 4, 6


def synthetic_job() -> Job:
    """A device that reaches 70 % of its peak whatever the shape."""
    sizes = 2.0 ** np.arange(6, 14)
    m, n, k = (grid.ravel() for grid in np.meshgrid(sizes, sizes, sizes))
    compute = 2 * m * n * k / ROOF.flops
    moved = ((m + n) * k * 2 + 2 * m * n) / ROOF.bytes_per_s
    seconds = ((compute**4 + moved**4) ** 0.25 + ROOF.fixed_s) / 0.7
    points = Points(arguments=np.column_stack([m, n, k]), seconds=seconds)
    return Job(operator="gemm", precision="bf16", library="synthetic", roof=ROOF, points=points)


def test_a_distilled_table_survives_its_file() -> None:
    table = distil(synthetic_job())
    # log2(1 / 0.7) = 0.515 at every node; rounding to 1/1000 costs 0.04 %
    assert table.grid.values == pytest.approx(0.515, abs=1e-3)
    assert table.held_out.median < 1e-3
    text = written_tables("some-gpu", {"package": "none"}, [table])
    tables = tables_from_json(json.loads(text))
    assert tables.gpu == "some-gpu"
    # 2 x 8192^3 / 1e15 / 0.7 = 1.571 ms, and 2 microseconds / 0.7
    assert measured_gemm_s(8192, 8192, 8192, tables=tables) == pytest.approx(1.571e-3 + 2.9e-6, rel=2e-3)
    assert tables.find("gemm").held_out == table.held_out


def test_the_committed_files_are_as_the_importer_writes_them(raw: dict[str, Any]) -> None:
    tables = load_operator_tables("l40s")
    text = written_tables("l40s", raw["source"], list(tables.tables.values()))
    assert text == (FOLDER / "l40s.json").read_text("utf-8")


def test_too_few_points_make_no_table() -> None:
    job = synthetic_job()
    few = Points(arguments=job.points.arguments[:10], seconds=job.points.seconds[:10])
    with pytest.raises(ProfileError, match="fewer than 20 measured points"):
        distil(Job(operator="gemm", precision="bf16", library="", roof=ROOF, points=few))


# The committed tables against measured points that their fit never saw.

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
    return np.asarray(np.abs(seconds_of(table, *arguments) / measured - 1.0))


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
            share = 2.0 * sizes.prod(axis=0) / measured_gemm_s(*sizes, tables=tables, precision=precision)
            assert 0.6 < share.max() / table.roof.flops < 0.95


@pytest.mark.parametrize("gpu", GPUS)
def test_doubling_a_side_of_a_product_hardly_ever_saves_time(gpu: str) -> None:
    # Measured: another kernel is chosen for the larger product, so up to 15 % is real.
    tables = load_operator_tables(gpu)
    m, n, k = 2.0 ** np.random.default_rng(1).uniform(7, 15, (3, 20_000))
    before = measured_gemm_s(m, n, k, tables=tables)
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        ratio = measured_gemm_s(*larger, tables=tables) / before
        assert ratio.min() > 0.85
        assert np.mean(ratio < 1.0) < 0.02


def test_an_h100_reaches_the_shares_of_peak_that_people_see() -> None:
    tables = load_operator_tables("h100-sxm-80gb")
    # 2 x 8192^3 / 989e12 = 1.112 ms at peak
    assert measured_gemm_s(8192, 8192, 8192, tables=tables) == pytest.approx(1.112e-3 / 0.72, rel=0.05)
    # causal, 64 heads of 128, 8 192 tokens: 2 x 64 x 8192^2 x 128 / 989e12 = 1.112 ms at peak
    attention = seconds_of(tables.find("attention_forward"), 1, 64, 8, 8192, 128)
    assert attention == pytest.approx(1.112e-3 / 0.62, rel=0.05)
    # 8 experts of 4 096 x 14 336, 4 096 rows each: 6 x 8 x 4096^2 x 14336 / 989e12 = 11.67 ms at peak
    experts = seconds_of(tables.find("grouped_mlp", "bf16"), 4096, 8, 4096, 14336)
    assert experts == pytest.approx(11.67e-3 / 0.81, rel=0.05)
    # 1 GiB at 3.35 TB/s: 0.3205 ms
    assert seconds_of(tables.find("memory_bound", "any"), 2.0**30) == pytest.approx(
        0.3205e-3 / 0.9, rel=0.05
    )
    gathered_s = seconds_of(tables.find("all_gather", "any"), 8, 2.0**29)
    assert 7 / 8 * 2.0**29 / gathered_s == pytest.approx(336e9, rel=0.03)


def test_message_sizes_were_converted_from_elements_to_bytes() -> None:
    # The source: 8 A100, all-reduce of 268 435 456 half elements, that is 512 MiB. On NVLink of
    # 300 GB/s the bus cannot carry more; had elements been taken for bytes, it would seem 111 GB/s.
    tables = load_operator_tables("a100-sxm-80gb")
    seconds = seconds_of(tables.find("all_reduce", "any"), 8, 2.0**29)
    assert 180e9 < 2 * 7 / 8 * 2**29 / seconds < 260e9


def test_fp8_is_faster_than_bf16_where_it_counts_and_missing_on_an_a100() -> None:
    for gpu in GPUS[1:]:
        tables = load_operator_tables(gpu)
        ratio = measured_gemm_s(8192, 8192, 8192, tables=tables, precision="fp8") / measured_gemm_s(
            8192, 8192, 8192, tables=tables
        )
        assert 0.4 < ratio < 0.75
    with pytest.raises(ProfileError, match=r"a100-sxm-80gb: no measured table of gemm in fp8"):
        measured_gemm_s(8192, 8192, 8192, tables=load_operator_tables("a100-sxm-80gb"), precision="fp8")


@pytest.mark.parametrize(
    ("gpu", "precision"),
    [
        ("a100-sxm-80gb", "bf16"),
        ("h100-sxm-80gb", "bf16"),
        ("h100-sxm-80gb", "fp8"),
        ("h200-sxm-141gb", "bf16"),
        ("h200-sxm-141gb", "fp8"),
    ],
)
def test_the_share_of_a_gpu_stands_for_its_table_at_the_sizes_of_training(gpu: str, precision: str) -> None:
    # the median product of 2 048 to 32 768 rows and columns takes as long by the formula as measured
    spec = find_gpu(gpu)
    known, table = operators_of(spec), load_operator_tables(gpu).find("gemm", precision)
    sides = np.meshgrid(*3 * [2.0 ** np.arange(11, 16)])
    m, n, k = (side.ravel() for side in sides)
    seconds = gemm_s(
        m, n, k, operators=known, flops=known.gemm[precision] * spec.peak_flops[precision],
        bytes_per_s=spec.hbm_bytes_per_s, element_bytes=1.0 if precision == "fp8" else 2.0,
    )  # fmt: skip
    assert float(np.median(seconds / seconds_of(table, m, n, k))) == pytest.approx(1.0, abs=0.05)


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
    ratio = measured_gemm_s(262144, 8192, 8192, tables=tables) / measured_gemm_s(
        32768, 8192, 8192, tables=tables
    )
    assert ratio == pytest.approx(8.0, rel=0.01)


def test_a_million_products_take_less_than_half_a_second() -> None:
    tables = load_operator_tables("h100-sxm-80gb")
    sizes = 2.0 ** np.random.default_rng(3).uniform(5, 15, (3, 1_000_000))
    measured_gemm_s(*sizes, tables=tables)
    best = np.inf
    for _ in range(3):
        start = work_s()
        measured_gemm_s(*sizes, tables=tables)
        best = min(best, work_s() - start)
    assert best < 0.5
