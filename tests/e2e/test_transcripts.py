"""The judge of the documentation's transcripts must be able to say no."""

from pathlib import Path

import pytest

from tests.e2e.transcripts import Exchange, agrees, exchanges, rewritten, run_page

PAGE = """# A page
```yaml title="some/file.yaml"
a: 1
```
```console
$ cat some/file.yaml
a: 1
$ echo one \\
    two; false
one two
$ echo $?
1
```
"""


def test_a_page_runs_in_one_shell_with_its_own_files(tmp_path: Path) -> None:
    results = list(run_page(PAGE, tmp_path))
    assert [printed for _, printed in results] == [["a: 1"], ["one two"], ["1"]]
    assert all(agrees(one.shown, printed) for one, printed in results)
    assert rewritten(PAGE, results) == PAGE


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (("a", "b"), ["a", "b"], True),
        (("a", "b"), ["a", "c"], False),
        (("a", "b"), ["a"], False),
        (("a",), ["a", "b"], False),
        (("a", "…", "d"), ["a", "b", "c", "d"], True),
        (("a", "…", "d"), ["a", "d"], False),  # … stands for at least a line
        (("a", "…"), ["a", "b", "c"], True),
        (("step 29.0 s",), ["step 29.1 s"], False),
        (("searched in 1.3 s: 5",), ["searched in 0.4 s: 5"], True),
        (("searched in 1.3 s: 5",), ["searched in 0.4 s: 6"], False),
        (("plan …: (x)",), ["plan 992b: (x)"], True),
        (("plan …: (x)",), ["plan 992b: (y)"], False),
    ],
)
def test_what_is_shown_agrees_with_what_was_printed_or_not(
    shown: tuple[str, ...], printed: list[str], same: bool
) -> None:
    assert agrees(shown, printed) is same


def test_what_is_written_anew_leaves_out_as_much_as_before() -> None:
    page = "```console\n$ x\na\n…\nz\n```\n"
    [one] = exchanges("$ x\na\n…\nz\n")
    assert one == Exchange("$ x", ("a", "…", "z"))
    assert rewritten(page, [(one, ["A", "B", "C", "Z"])]) == "```console\n$ x\nA\n…\nZ\n```\n"
