"""JSON and YAML from outside are read strictly, and bounded while they are parsed."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.documents import (
    DOCUMENT,
    FILE,
    MAX_SHOWN,
    PROBLEM,
    YAML_FILE,
    pointer,
    read_config,
    read_json,
    read_yaml,
    require_plain,
    shown,
    shown_path,
)
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.documents import read_problem_file
from tests.draws import draws
from tests.processes.pace import work_s


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
        ('{"a": 1e999}', "a: inf is not a finite number"),
        ('{"a": {"b": 1180591620717411303424}}', "a.b: the number is too large"),
        ('{"a": 1' + "0" * 5000 + "}", "a: the number is too large"),
        ('{"a": "\\ud800"}', "lone surrogates"),
        ('{"a\\u0000": 1}', "NUL"),
        ('{"a": 1, "a": 2}', 'the key "a" is repeated'),
        ("[1]", "must be an object"),
        ("", "not JSON"),
        ("{", "line 1, column 2"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested deeper than 32"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested deeper than 32"),
        ('{"a": "' + "x" * FILE.max_bytes + '"}', "too big"),
    ],
)
def test_hostile_json_is_refused_in_one_short_sentence(text: str | bytes, words: str) -> None:
    said = refusal(text)
    assert words in said
    assert len(said) < 200


def test_numbers_that_json_lacks_are_read_in_a_config_as_transformers_5_writes_them() -> None:
    text = '{"a": [0.0, Infinity], "b": "Infinity, \\"NaN", "c": -Infinity}'
    infinite, negative = {"__float__": "Infinity"}, {"__float__": "-Infinity"}
    assert read_config(text) == {"a": [0.0, infinite], "b": 'Infinity, "NaN', "c": negative}
    assert read_config(b'{"a": 1}') == {"a": 1}
    for broken in ('{"a": Infinit}', '{"a": "Infinity', '{"a": InfinityNaN}'):
        with pytest.raises(InvalidProblemError, match="JSON"):
            read_config(broken)


def test_a_config_of_many_quotes_without_an_end_is_refused_at_once() -> None:
    began_s = work_s()
    with pytest.raises(InvalidProblemError):
        read_config('{"a": NaN, "b": "' + '\\"' * 200_000)
    assert work_s() - began_s < 2.0


def test_pointers_are_escaped_and_short() -> None:
    assert pointer("a/b", "c~d", 0) == "/a~1b/c~0d/0"
    assert len(pointer("x" * 1000)) < 70


def test_control_characters_of_foreign_text_are_not_repeated() -> None:
    assert shown("a\x1b[31mb\n") == "a?[31mb?"


def test_yaml_and_json_files_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("model: {name: llama-3.1-8b}\nsizes: [1, 2]\n")
    (tmp_path / "p.json").write_text('{"model": {"name": "llama-3.1-8b"}, "sizes": [1, 2]}')
    assert read_problem_file(tmp_path / "p.yaml") == read_problem_file(tmp_path / "p.json")


def test_aliases_and_merge_keys_repeat_what_they_name() -> None:
    text = "a: &x {p: 1, q: &y two}\nb: &z {q: 3, r: *y}\nc: {s: 4, <<: [*x, *z], p: 5}\nd: [*x, *y]\n"
    x = {"p": 1, "q": "two"}
    assert read_yaml(text) == {
        "a": x, "b": {"q": 3, "r": "two"}, "c": {"s": 4, "p": 5, "q": "two", "r": "two"}, "d": [x, "two"]
    }  # fmt: skip


def test_what_is_merged_has_the_line_of_its_merge_key() -> None:
    lines = dict[str, int]()
    read_yaml("a: &x\n  p: 1\nb:\n  <<: *x\n  s: 2\n\nc: 3\n", lines)
    assert lines == {"a": 1, "a.p": 2, "b": 3, "b.s": 5, "b.p": 4, "c": 7}


def test_keys_that_hold_what_is_repeated_are_told() -> None:
    anchored = set[str]()
    read_yaml(
        "a: {b: &x 1}\nc: &y {d: 2}\ne: &z 3\nf: *x\ng: {<<: *y}\nh: {i: [*z]}\nj: &k 4\n",
        anchored=anchored,
    )
    assert anchored == {"a", "c", "e"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [*x]\n", "not YAML: *x names no value before it (line 1)"),
        ("b: {<<: *x}\n", "*x names no value before it"),
        ("a: 2026-11-20\n", "a: must be a JSON value"),
        ("a: .nan\n", "finite"),
        ("1: a\n", "keys must be text"),
        ("a: [\n", "not YAML: did not find expected node content"),
        ("a: [\n", "(line 2, column 1)"),
        ("a: 1\nb: {c: 2, c: 3}\n", 'the key "c" is repeated (line 2)'),
        ("a: 1\n---\nb: 2\n", "the file has several YAML documents (the second: line 2). Keep one"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested deeper than 32"),
        ("a: 2026-02-31\n", "not YAML: day is out of range"),
        ("a: " + "9" * 5000, "not YAML"),
        ("a: 99999999999999999999\n", "a: the number is too large. Allowed: 63 bits"),
        ("", "problem.yaml: must be an object"),
        ("- 1\n", "must be an object"),
        ("a: !!set {x}\n", "an unknown tag (line 1)"),
        ("? [1]\n: 2\n", "keys must be text"),
        ("<<: {a: 1}\n", "<< must name an object, such as *base, or a list of them (line 1"),
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


def test_the_last_of_repeated_keys_counts_where_they_are_asked_for() -> None:
    lines: dict[str, int] = {}
    repeated: dict[str, list[int]] = {}
    text = "a: 1\nb: {c: 2, d: 3}\na: 4\nb:\n  c: 5\na: 6\n"
    assert read_yaml(text, lines, repeated) == {"a": 6, "b": {"c": 5}}
    assert (lines["a"], repeated) == (6, {"a": [1, 3], "b": [2]})


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab\\"/é😀'), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=draws(60), deadline=None)
@given(raw=st.dictionaries(st.text("abc"), PLAIN, max_size=5), ascii_only=st.booleans())
def test_json_of_plain_values_reads_as_the_standard_library_reads_it(
    raw: dict[str, object], ascii_only: bool
) -> None:
    text = json.dumps(raw, ensure_ascii=ascii_only).encode()
    assert read_json(text) == json.loads(text) == require_plain(raw)


@pytest.mark.parametrize(
    "text",
    [r"\ud800", r"\udc00", r"\ud800A", r"\ud83d\n", r"\\\ud83d and more text", r"\uDBFF\ud800"],
)
def test_half_of_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"a\.1: text must not hold NUL or lone surrogates"):
        read_json(f'{{"a": ["", "before {text}"]}}')


def test_a_fault_is_named_by_its_line_and_column_wherever_it_is() -> None:
    # 20,000 lines of 7 bytes, then a word that JSON does not have
    text = '{"a": [\n' + "12345,\n" * 20_000 + "nul]}"
    assert refusal(text) == "request: not JSON: Expecting value (line 20002, column 1)"
    for broken in ('{"a": ', '{"a": 1}{}', '{"a": 1}x'):
        assert "not JSON" in refusal(broken)


@pytest.mark.parametrize(
    "made",
    [
        lambda: b'{"a":[' + b"1," * 3_800_000 + b"1]}",
        lambda: b'{"a":[' + b"[]," * 2_600_000 + b"1]}",
        lambda: b'{"a":[' + b'{"b":{}},' * 900_000 + b"1]}",
        lambda: b'{"a":[' + b'"xy",' * 1_500_000 + b"1]}",
        lambda: b"{" + b",".join(b'"%x":1' % number for number in range(800_000)) + b"}",
        lambda: b'{"a":' * 1_500_000,
    ],
    ids=["numbers", "lists", "objects", "texts", "keys", "deep"],
)
def test_the_worst_8_mib_of_json_cost_a_tenth_of_what_they_would_blow_up_to(
    made: Callable[[], bytes],
) -> None:
    text = made()
    assert len(text) < DOCUMENT.max_bytes
    tracemalloc.start()
    began_s = work_s()
    with pytest.raises(InvalidProblemError, match=r"too many|nested deeper"):
        read_json(text, DOCUMENT)
    took_s, peak_bytes = work_s() - began_s, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took_s < 4.0  # counting memory takes most of it
    assert peak_bytes < DOCUMENT.max_values * 200  # 3.8 million numbers took 690 MiB


def test_as_many_values_as_are_allowed_are_read_and_one_more_is_not() -> None:
    most = {"a": [1] * (PROBLEM.max_values - 1)}  # the list is a value, too
    assert read_json(json.dumps(most), PROBLEM) == most
    with pytest.raises(InvalidProblemError, match=r"has too many values: .* Allowed: 20000 values"):
        read_json(json.dumps({"a": [1] * PROBLEM.max_values}), PROBLEM)


def test_as_many_keys_of_one_object_as_are_allowed_are_read_and_one_more_is_not() -> None:
    most = {"a": {str(number): number for number in range(PROBLEM.max_keys)}}
    assert read_json(json.dumps(most), PROBLEM) == most
    most["a"]["more"] = 1
    with pytest.raises(InvalidProblemError, match=r"a: an object has too many keys. Allowed: 1000 keys"):
        read_json(json.dumps(most), PROBLEM)


BOMBS = {
    "open lists": "[" * 50_000,
    "open lists in a value": "a: " + "[" * 50_000,
    "open mappings": "{" * 50_000,
    "open mappings with keys": "a: {" * 12_000,
    "lists on a line": "- " * 25_000,
    "keys on a line": "? " * 25_000,
    "lists on lines": "a:\n" + "".join(" " * depth + "-\n" for depth in range(300)),
    "anchors": "a: [" + "&a x, " * 100_000 + "*a]",
    "an alias bomb": "a: &a [x, x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)),
    "many values": "a: [" + "1," * 900_000 + "]",
    "many keys": "".join(f"k{number}: 1\n" for number in range(150_000)),
    "documents": "---\n" * 300_000,
    "directives": "%TAG ! x\n" * 100_000,
    "blank lines": "\n" * 2_000_000,
    "too many bytes": "# " + "x" * YAML_FILE.max_bytes,
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_that_would_blow_up_is_refused_at_once_by_file_and_limit(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name])
    began_s = work_s()
    with pytest.raises(InvalidProblemError) as caught:
        read_problem_file(path)
    assert work_s() - began_s < 1.5  # 50 kB of [ took 16 s
    assert str(caught.value).startswith("request: ")
    assert "bomb.yaml: " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("open lists in a value", "nested deeper than 32 levels"),
        (
            "many values",
            f"has too many values: {YAML_FILE.advice}. Allowed: 100000 values",
        ),
        (
            "too many bytes",
            f"the input is too big: {YAML_FILE.advice}. Allowed: 2097152 bytes",
        ),
        ("an alias bomb", f"has too many values: {YAML_FILE.advice}. Allowed: 100000 values"),
    ],
)
def test_a_refused_bomb_says_the_limit_and_what_to_do(tmp_path: Path, name: str, says: str) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name])
    with pytest.raises(InvalidProblemError) as caught:
        read_problem_file(path)
    assert str(caught.value) == f"request: {shown_path(path)}: {says}"


def test_a_key_that_stands_in_many_objects_is_kept_once() -> None:
    raw = read_json(json.dumps({"rows": [{"a long name of a field": number} for number in range(3)]}))
    rows = raw["rows"]
    assert isinstance(rows, list)
    assert len({id(key) for row in rows for key in row}) == 1
