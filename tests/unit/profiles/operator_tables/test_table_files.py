"""Broken table files, and the way from measured points to a file and back."""

import copy
import json
from typing import Any

import numpy as np
import pytest

from benchmarks.catalog.aiconfigurator_rows import Points
from benchmarks.catalog.grid_fit import fit_values
from benchmarks.catalog.table_file import written_tables
from benchmarks.catalog.table_fit import Job, distil
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.operators.tables import (
    FOLDER,
    LogAxis,
    LogGrid,
    Roof,
    gemm_s,
    load_operator_tables,
    tables_from_json,
)

ROOF = Roof(flops=1e15, bytes_per_s=3e12, fixed_s=2e-6, element_bytes=2.0)


@pytest.fixture
def raw() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "l40s.json").read_text("utf-8"))
    return found


def test_an_unknown_gpu_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ProfileError, match=r"no operator tables of v100-sxm-16gb; there are a100-sxm-80gb"):
        load_operator_tables("v100-sxm-16gb")


def test_a_path_is_no_gpu() -> None:
    with pytest.raises(ProfileError, match="no operator tables"):
        load_operator_tables("../operators/backward")


def test_another_format_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match="not of the format meshwright-operator-tables-1"):
        tables_from_json(raw | {"format": "2"})


@pytest.mark.parametrize("field", ["values", "axes", "roof", "held_out", "library", "operator"])
def test_a_table_without_a_field_is_refused(raw: dict[str, Any], field: str) -> None:
    del raw["tables"][0][field]
    with pytest.raises(ProfileError, match=f"KeyError at '{field}'"):
        tables_from_json(raw)


def test_values_must_fill_the_axes(raw: dict[str, Any]) -> None:
    broken = copy.deepcopy(raw)
    broken["tables"][0]["values"].pop()
    with pytest.raises(ProfileError, match="the values of gemm do not fill its axes"):
        tables_from_json(broken)


def test_axes_must_be_those_of_the_operator(raw: dict[str, Any]) -> None:
    raw["tables"][0]["axes"].reverse()
    with pytest.raises(ProfileError, match="axes of gemm are not m, n, k"):
        tables_from_json(raw)


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
    assert gemm_s(8192, 8192, 8192, tables=tables) == pytest.approx(1.571e-3 + 2.9e-6, rel=2e-3)
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
