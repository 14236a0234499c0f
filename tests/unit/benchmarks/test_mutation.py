"""Which tests meet a mutant, the fastest first, and where a mutant has no effect."""

from pathlib import Path

from benchmarks.mutation.covering import batches, covering_tests, passed, statement_lines
from benchmarks.mutation.silent import silent

LINES = {1: ["slow"], 2: ["slow", "quick"], 3: ["slow", "elsewhere"], 9: [""]}  # line 9 runs at import
SECONDS = {"slow": 9.0, "quick": 0.1, "elsewhere": 2.0}


def _covering(line: int, seconds: dict[str, float] = SECONDS) -> list[str]:
    return covering_tests(LINES, [line], lambda: SECONDS, seconds)


def test_the_tests_of_a_line_come_fastest_first_and_no_others() -> None:
    assert _covering(2) == ["quick", "slow"]


def test_a_line_that_runs_at_import_meets_all_tests_of_its_package() -> None:
    assert _covering(9) == ["quick", "elsewhere", "slow"]


def test_a_test_that_fails_without_a_mutant_notices_none() -> None:
    assert _covering(2, {"slow": 9.0}) == ["slow"]  # "quick" has no seconds: it did not pass


def test_a_changed_line_counts_as_its_statement() -> None:
    code = (
        "def price(rows):\n"
        "    if (\n"
        "        rows\n"
        "        and rows > 1\n"
        "    ):\n"
        "        return sum(\n"
        "            2 * row for row in rows\n"
        "        )\n"
    )
    assert list(statement_lines(code, 4)) == [2, 3, 4, 5]  # the head of the branch, not its body
    assert list(statement_lines(code, 7)) == [6, 7, 8]
    assert list(statement_lines(code, 1)) == [1]


def test_each_batch_of_tests_is_longer_than_the_one_before_it_and_the_limit_ends_them() -> None:
    seconds = {"a": 0.5, "b": 0.5, "c": 3.0, "d": 3.0, "e": 30.0, "f": 30.0}
    assert list(batches("abcdef", seconds, most_s=40.0)) == [["a", "b"], ["c", "d"], ["e"]]  # 1, 6 and 30 s
    assert list(batches("ef", seconds, most_s=10.0)) == [["e"]]  # never none


def test_only_tests_that_passed_have_seconds(tmp_path: Path) -> None:
    cases = (
        '<testcase classname="tests.unit.test_a" name="test_x[1.5]" time="0.25"/>'
        '<testcase classname="tests.unit.test_a" name="test_y" time="1"><failure message="no"/></testcase>'
        '<testcase classname="tests.unit.test_a" name="test_z" time="1"><skipped message="no"/></testcase>'
    )
    times = tmp_path / "times.xml"
    times.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert passed(times) == {"tests/unit/test_a.py::test_x[1.5]": 0.25}


def _changed_at(code: str, text: str) -> tuple[int, int]:
    """Return the line and column at which ``text`` begins."""
    before = code[: code.index(text)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1)


def test_annotations_guards_and_markers_of_parameters_are_silent_and_nothing_else_is() -> None:
    code = (
        "@dataclass(frozen=not 1, slots=bool(1))\n"
        "class Split:\n"
        "    layers: int | None = 2\n"
        "def cross(left, /, right, *, times=3, **more) -> int | float:\n"
        "    pairs = zip(left, right, strict=False)\n"
        "    return sorted(pairs, reverse=not 0)[0] * times / len([*left])\n"
    )
    unnoticed = ["bool(1)", "int | None", "/, right", "*, times", "int | float", "False"]
    noticed = ["not 1", "2\n", "3, **", "not 0", "* times", "/ len", "*left"]
    assert [text for text in unnoticed if _changed_at(code, text) not in silent(code)] == []
    assert [text for text in noticed if _changed_at(code, text) in silent(code)] == []
