"""Input from outside is read strictly and bounded."""

from pathlib import Path

import pytest

from profiles.errors import InvalidProblemError
from service.json_input import MAX_INPUT_BYTES, MAX_SHOWN, pointer, read_json, shown, shown_path
from service.problem_file import read_problem_file


def refusal(text: str | bytes) -> str:
    with pytest.raises(InvalidProblemError) as caught:
        read_json(text)
    return caught.value.errors[0].sentence()


def test_an_object_of_plain_values_is_read() -> None:
    assert read_json('{"a": [1, 2.5, true, null, "é"]}') == {"a": [1, 2.5, True, None, "é"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "a: must be a finite number"),
        ('{"a": {"b": 1180591620717411303424}}', "a.b: the number is too large"),
        ('{"a": 1' + "0" * 5000 + "}", "a number is too large"),
        ('{"a": "\\ud800"}', "lone surrogates"),
        ('{"a\\u0000": 1}', "NUL"),
        ('{"a": 1, "a": 2}', 'the key "a" is repeated'),
        ("[1]", "must be an object"),
        ("", "not JSON"),
        ("{", "line 1, column 2"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested deeper than 32"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested deeper than 32"),
        ('{"a": "' + "x" * MAX_INPUT_BYTES + '"}', "too big"),
    ],
)
def test_hostile_json_is_refused_in_one_short_sentence(text: str | bytes, words: str) -> None:
    said = refusal(text)
    assert words in said
    assert len(said) < 200


def test_pointers_are_escaped_and_short() -> None:
    assert pointer("a/b", "c~d", 0) == "/a~1b/c~0d/0"
    assert len(pointer("x" * 1000)) < 70


def test_control_characters_of_foreign_text_are_not_repeated() -> None:
    assert shown("a\x1b[31mb\n") == "a?[31mb?"


def test_yaml_and_json_files_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("model: {name: llama-3.1-8b}\nsizes: [1, 2]\n")
    (tmp_path / "p.json").write_text('{"model": {"name": "llama-3.1-8b"}, "sizes": [1, 2]}')
    assert read_problem_file(tmp_path / "p.yaml") == read_problem_file(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("a: 2026-11-20\n", "a: must be a JSON value"),
        ("a: .nan\n", "finite"),
        ("1: a\n", "keys must be text"),
        ("a: [\n", "not YAML: expected the node content"),
        ("a: [\n", "(line 2, column 1)"),
        ("a: 1\nb: {c: 2, c: 3}\n", 'the key "c" is repeated (line 2)'),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested deeper than 32"),
        ("a: 2026-02-31\n", "not YAML: day is out of range"),
        ("a: " + "9" * 5000, "not YAML"),
        ("a: 99999999999999999999\n", "a: the number is too large. Allowed: 63 bits"),
        ("", "problem.yaml: must be an object"),
        ("- 1\n", "must be an object"),
        ("!!python/object:os.system {}\n", "not YAML"),
    ],
)
def test_yaml_that_is_no_plain_mapping_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "problem.yaml"
    path.write_text(text)
    with pytest.raises(InvalidProblemError) as caught:
        read_problem_file(path)
    assert words in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="No such file"):
        read_problem_file(tmp_path / "nowhere.json")


def test_a_fault_of_a_whole_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(InvalidProblemError, match=r"broken\.json: not JSON"):
        read_problem_file(path)


def test_yaml_reads_exponents_as_numbers(tmp_path: Path) -> None:
    # YAML 1.1 takes 5e10 for a text; links are written so
    path = tmp_path / "link.yml"
    path.write_text("bytes_per_s: 5e10\nlatency_s: 5.0e-6\nkind: 2e\n")
    assert read_problem_file(path) == {"bytes_per_s": 5e10, "latency_s": 5e-6, "kind": "2e"}


def test_the_suffix_counts_in_any_case_and_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    (tmp_path / "P.YAML").write_text("a: 1\n")
    (tmp_path / "p.json").write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}')
    assert read_problem_file(tmp_path / "P.YAML") == read_problem_file(tmp_path / "p.json") == {"a": 1}


def test_a_device_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(InvalidProblemError, match="too big"):
        read_problem_file(Path("/dev/zero"))


def test_the_end_of_a_long_path_is_shown(tmp_path: Path) -> None:
    shown_text = shown_path(tmp_path / ("x" * 100) / "problem.json")
    assert shown_text.startswith("...")
    assert shown_text.endswith("x/problem.json")
    assert len(shown_text) == MAX_SHOWN
