"""What a sweep makes of one request."""

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.jobs import MAX_POINTS, axes_of, points_of, problems_of
from meshwright.service.requests.parse import parse_problem
from tests.served.api_client import BODY


def requests_of(sweep: dict[str, object], request: dict[str, object] = BODY) -> list[dict[str, object]]:
    return [dict(point.request) for point in points_of(request, axes_of(sweep))]


def test_two_axes_make_every_combination_the_last_one_varying_fastest() -> None:
    points = points_of(BODY, axes_of({"global_batch_size": [256, 512], "num_nodes": [2, 4]}))
    assert [dict(point.values) for point in points] == [
        {"num_nodes": 2, "global_batch_size": 256},
        {"num_nodes": 2, "global_batch_size": 512},
        {"num_nodes": 4, "global_batch_size": 256},
        {"num_nodes": 4, "global_batch_size": 512},
    ]
    assert points[1].request["cluster"] == {"name": "dgx-h100", "num_nodes": 2}
    assert points[1].request["workload"] == {"global_batch_size": 512, "seq_length": 8192}


def test_a_clusters_name_keeps_the_number_of_nodes_and_an_object_is_taken_whole() -> None:
    whole = {"name": "dgx-a100", "num_nodes": 2}
    one, other = requests_of({"cluster": ["dgx-a100", whole]})
    assert one["cluster"] == {"name": "dgx-a100", "num_nodes": 4}
    assert other["cluster"] == whole


def test_nodes_of_an_inline_cluster_go_into_its_one_group() -> None:
    groups = [{"gpu": "h100-sxm-80gb", "num_nodes": 4, "gpus_per_node": 8}]
    (one,) = requests_of({"num_nodes": [2]}, {**BODY, "cluster": {"groups": groups}})
    assert one["cluster"] == {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2, "gpus_per_node": 8}]}


def test_a_variable_of_the_search_is_pinned() -> None:
    one, other = requests_of({"tensor_parallel_size": [4, 8]}, {**BODY, "search": {"top_k": 3}})
    assert one["search"] == {"top_k": 3, "pin": {"tensor_parallel_size": 4}}
    assert other["search"] == {"top_k": 3, "pin": {"tensor_parallel_size": 8}}


@pytest.mark.parametrize(
    ("sweep", "at"),
    [
        ([], "/sweep"),
        ({}, "/sweep"),
        ({"num_nodes": 8}, "/sweep/num_nodes"),
        ({"num_nodes": []}, "/sweep/num_nodes"),
        ({"num_nodes": [8, 8]}, "/sweep/num_nodes/1"),
        ({"num_nodes": [8, [9]]}, "/sweep/num_nodes/1"),
        ({"cluster": [{"name": "a", "num_nodes": 2}, {"num_nodes": 2, "name": "a"}]}, "/sweep/cluster/1"),
        ({"num_nodes": [8, None]}, "/sweep/num_nodes/1"),
        ({"num_node": [8]}, "/sweep/num_node"),
        ({"num_nodes": [*range(1, 18)], "seq_length": [*range(1, 17)]}, "/sweep"),  # 17 * 16 = 272
    ],
)
def test_what_is_no_sweep_is_refused_where_it_is_wrong(sweep: object, at: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        axes_of(sweep)
    assert caught.value.errors[0].pointer == at


def test_a_number_of_gpus_is_not_swept_over_numbers_of_nodes() -> None:
    """24 GPUs on 1 node and on 3 would be one node of 24, and 3 of 8."""
    gpus = {"groups": [{"gpu": "h100-sxm-80gb", "num_gpus": 24}]}
    with pytest.raises(InvalidProblemError) as caught:
        points_of({**BODY, "cluster": gpus}, axes_of({"num_nodes": [1, 3]}))
    assert caught.value.errors[0].pointer == "/sweep/num_nodes"
    assert "one cluster of 24 GPUs" in caught.value.errors[0].message


def test_as_many_points_as_are_allowed_are_taken() -> None:
    axes = axes_of({"num_nodes": [*range(1, 17)], "seq_length": [*range(1, 17)]})  # 16 * 16 = 256
    assert len(points_of(BODY, axes)) == MAX_POINTS


def test_a_fault_of_a_swept_value_points_at_it_and_any_other_says_which_point_has_it() -> None:
    points = points_of(BODY, axes_of({"num_nodes": [2, 0, "x"]}))
    with pytest.raises(InvalidProblemError) as caught:
        problems_of(points, parse_problem)
    assert [error.pointer for error in caught.value.errors] == ["/sweep/num_nodes/1", "/sweep/num_nodes/2"]
    pinned = {**BODY, "search": {"pin": {"data_parallel_size": 24}}}
    points = points_of(pinned, axes_of({"num_nodes": [2, 4]}))
    with pytest.raises(InvalidProblemError) as caught:
        problems_of(points, parse_problem)  # 24 of 16 GPUs
    assert any("num_nodes = 2" in error.message for error in caught.value.errors)


def test_a_fault_of_the_request_itself_is_told_once() -> None:
    points = points_of({**BODY, "search": {"top_k": 0}}, axes_of({"num_nodes": [2, 4]}))
    with pytest.raises(InvalidProblemError) as caught:
        problems_of(points, parse_problem)
    assert [error.pointer for error in caught.value.errors] == ["/search/top_k"]
