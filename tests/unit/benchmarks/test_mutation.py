"""Which tests meet a mutant: those that execute the changed line, the narrowest first."""

from benchmarks.mutation.covering import covering_tests

LINES = {1: ["wide"], 2: ["wide", "narrow"], 3: ["wide", "elsewhere"], 9: [""]}  # line 9 runs at import


def test_the_tests_of_a_line_come_narrowest_first_and_no_others() -> None:
    assert covering_tests({"/out/solver/price.py": LINES}, "solver/price.py", {2}) == ["narrow", "wide"]


def test_a_line_that_runs_at_import_meets_all_tests_of_its_file() -> None:
    found = covering_tests({"/out/solver/price.py": LINES}, "solver/price.py", {9})
    assert found == ["elsewhere", "narrow", "wide"]  # 1, 1 and 3 lines


def test_a_file_that_no_test_executes_meets_none() -> None:
    assert covering_tests({"/out/solver/price.py": LINES}, "solver/other.py", {2}) == []
