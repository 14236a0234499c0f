"""Which tests meet a mutant, the narrowest first, and where a mutant has no effect."""

from benchmarks.mutation.covering import covering_tests
from benchmarks.mutation.silent import silent

LINES = {1: ["wide"], 2: ["wide", "narrow"], 3: ["wide", "elsewhere"], 9: [""]}  # line 9 runs at import


def test_the_tests_of_a_line_come_narrowest_first_and_no_others() -> None:
    assert covering_tests({"/out/solver/price.py": LINES}, "solver/price.py", {2}) == ["narrow", "wide"]


def test_a_line_that_runs_at_import_meets_all_tests_of_its_file() -> None:
    found = covering_tests({"/out/solver/price.py": LINES}, "solver/price.py", {9})
    assert found == ["elsewhere", "narrow", "wide"]  # 1, 1 and 3 lines


def test_a_file_that_no_test_executes_meets_none() -> None:
    assert covering_tests({"/out/solver/price.py": LINES}, "solver/other.py", {2}) == []


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
