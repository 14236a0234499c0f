"""Logs of nccl-tests: one table, several tables, launchers' prefixes, and what is refused."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.nccl_tests import read_nccl_tests

LOGS = Path(__file__).parents[1] / "fixtures" / "importers" / "nccl_tests"
HEADER = """# Collective test starting: all_reduce_perf
#    size    count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
#     (B)  (elements)                    (us)  (GB/s)  (GB/s)        (us)  (GB/s)  (GB/s)
"""
ROW = "  1000000  250000  float  sum  -1  100.0  10.00  17.50  0  50.0  20.00  35.00  0\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "all_reduce.log"
    path.write_text(text)
    return path


def test_a_log_of_three_programs_gives_a_table_out_of_place_and_in_place_of_each() -> None:
    tables = read_nccl_tests(LOGS / "one_node.log").tables
    assert [(table.collective, table.in_place) for table in tables] == [
        ("all_reduce", False),
        ("all_reduce", True),
        ("reduce_scatter", False),
        ("reduce_scatter", True),
        ("all_to_all", False),
        ("all_to_all", True),
    ]
    assert {(table.num_ranks, table.num_nodes) for table in tables} == {(8, 1)}


def test_microseconds_and_gigabytes_become_seconds_and_bytes(tmp_path: Path) -> None:
    out_of_place, in_place = read_nccl_tests(written(tmp_path, HEADER + ROW)).tables
    # 1 MB in 100 µs is 10 GB/s; 8 ranks: 2 · 7 / 8 · 10 = 17.5 GB/s on the bus
    assert out_of_place.payload_bytes == (1_000_000,)
    assert out_of_place.seconds == pytest.approx((100e-6,))
    assert out_of_place.bus_bytes_per_s == pytest.approx((17.5e9,))
    assert in_place.seconds == pytest.approx((50e-6,))


def test_ranks_on_two_hosts_behind_the_prefix_of_mpirun_are_two_nodes() -> None:
    table = read_nccl_tests(LOGS / "two_nodes_mpi.log").tables[0]
    assert (table.collective, table.num_ranks, table.num_nodes) == ("all_gather", 16, 2)


def test_sizes_of_zero_bytes_and_cells_without_a_figure_are_left_out(tmp_path: Path) -> None:
    empty = "  0  0  float  sum  -1  0.20  0.00  0.00  0  0.20  0.00  0.00  0\n"
    only_out_of_place = ROW.replace("50.0  20.00  35.00  0", "N/A  N/A  N/A  N/A")
    tables = read_nccl_tests(written(tmp_path, HEADER + empty + only_out_of_place)).tables
    assert [(table.in_place, len(table.seconds)) for table in tables] == [(False, 1)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("(us)", "(ms)", "line 3: expected the units"),
        (" 100.0 ", " 0.1000 ", "line 4: algbw is not size / time"),
        (" 17.50 ", " 175.0 ", "line 4, busbw: more than twice"),
        (" 100.0 ", " 1e400 ", "line 4, time: inf is out of range"),
        ("  35.00  0\n", "\n", "line 4: expected 13 columns, found 11"),
        ("algbw  busbw #wrong   time", "busbw #wrong   time", "line 2: expected two groups"),
        (ROW, "", "a table has no rows"),
        ("# Collective test starting: all_reduce_perf", "#", "expected a line that names the test"),
        (ROW, ROW + ROW, "line 5, size: sizes must grow"),
        (
            ROW,
            ROW
            + ROW.replace("1000000", "9000000").replace("100.0", "900.0").replace("50.0", "450.0")
            + ROW.replace("1000000", "3000000").replace("100.0", "300.0").replace("50.0", "150.0"),
            "line 6, size: sizes must grow",
        ),  # 3 MB are more than the first 1 MB and fewer than the last 9
    ],
)
def test_a_broken_log_names_the_line_and_what_was_expected(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = HEADER + ROW
    assert old in text
    with pytest.raises(ProfileError, match=r"^all_reduce.log: ") as raised:
        read_nccl_tests(written(tmp_path, text.replace(old, new)))
    assert expected in str(raised.value)
