"""The table of request fields: what has a row, and that its parts agree."""

from dataclasses import fields

import pytest

from meshwright.profiles.library import find_cluster, find_model
from meshwright.profiles.sequences import BATCHINGS
from meshwright.service.cli.options import read_request
from meshwright.service.requests.fields import FIELDS, OPTIONS
from meshwright.service.requests.parse import MEANINGS, parse_problem, problem_to_mapping
from meshwright.service.requests.schema import ProblemRequest, words_of
from meshwright.service.web.questions import ASKED
from meshwright.solver.problem import Problem, SearchOptions, Workload

ROWS = {row.path: row for row in FIELDS}
# What follows from other fields, or is the planner's own.
WITHOUT_A_ROW = {
    "batch_sizes", "stage_layers", "num_gpus", "standalone_stages", "recompute_kinds", "also_gpus", "usual",
}  # fmt: skip
PLAIN = Problem(
    model=find_model("llama-3.1-8b"),
    cluster=find_cluster("dgx-h100"),
    workload=Workload(global_batch_size=64, seq_length=4096),
)


def test_every_attribute_of_a_workload_and_of_a_search_has_a_row() -> None:
    attributes = {one.name for one in (*fields(Workload), *fields(SearchOptions))} - WITHOUT_A_ROW
    assert attributes == {row.name for row in FIELDS if row.section in ("workload", "search") and row.type}


def test_a_field_has_one_row_and_an_option_one_field() -> None:
    assert len(ROWS) == len(FIELDS)
    assert len(OPTIONS) == sum(row.option is not None for row in FIELDS)
    assert MEANINGS.keys() <= ROWS.keys()


def test_sparse_fields_are_written_only_where_they_are_stated() -> None:
    written = problem_to_mapping(PLAIN)
    paths = {*written, *(f"{part}.{name}" for part in ("workload", "search") for name in written[part])}  # type: ignore[attr-defined]
    sparse = {row.path for row in FIELDS if row.sparse}
    assert paths == {row.path for row in FIELDS if row.type} - sparse
    stated = parse_problem({**written, "stack": "megatron-lm-2021", "profile": "catalog"})
    assert problem_to_mapping(stated).keys() - written.keys() == {"stack", "profile"}


def test_defaults_of_rows_are_those_of_the_problem() -> None:
    assert parse_problem(problem_to_mapping(PLAIN)) == PLAIN


def test_a_default_in_words_is_not_another_one_than_the_field_has() -> None:
    worded = {row.path for row in OPTIONS.values() if row.option and row.option.default and row.type}
    of_a_value = {path for path in worded if ROWS[path].default not in (None, [], list, dict, ...)}
    # True and False are shown as the option that sets them.
    assert of_a_value == {"search.diverse", "search.pareto", "workload.precision"}


def test_a_question_offers_words_that_the_field_takes() -> None:
    for path, asked in ASKED.items():
        words = words_of(ROWS[path].type)
        if words:
            assert {word for word, _ in asked.choices} - {""} == {*words}
    assert [word for word, _ in ASKED["workload.lengths.batching"].choices] == ["", *BATCHINGS]


def test_what_is_not_an_option_is_not_taken_as_one() -> None:
    with pytest.raises(TypeError, match="no options: seq_len"):
        read_request(seq_len=4096)


def test_the_schema_is_in_the_order_of_the_rows() -> None:
    names = [row.name for row in FIELDS if not row.section and row.type]
    assert [*ProblemRequest.model_fields] == names
