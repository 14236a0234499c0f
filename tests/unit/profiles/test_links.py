"""Links between nodes that are not all alike."""

from __future__ import annotations

import pytest

from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping

RATES = [[0, 50e9, 40e9], [50e9, 0, 30e9], [40e9, 30e9, 0]]


def a_cluster(links: object, *, num_nodes: int = 3) -> ClusterSpec:
    group = {"gpu": "h100-sxm-80gb", "num_nodes": num_nodes, "links": links}
    return cluster_from_mapping({"groups": [group]})


def faults_of(links: object, *, num_nodes: int = 3) -> list[tuple[str, str]]:
    with pytest.raises(InvalidProblemError) as refused:
        a_cluster(links, num_nodes=num_nodes)
    return [(one.pointer.removeprefix("/cluster/groups/0"), one.message) for one in refused.value.errors]


def test_links_are_written_as_they_are_read() -> None:
    links = {
        "hosts": ["a", "b", "c"],
        "bytes_per_s": RATES,
        "latency_s": [[0, 1e-5, 1e-5], [1e-5, 0, 2e-5], [1e-5, 2e-5, 0]],
        "levels": [{"nodes": 3, "oversubscription": 2.0}],
        "rail_only": True,
        "order": [2, 0, 1],
        "source": "nccl-tests",
    }
    cluster = a_cluster(links)
    assert cluster.differs
    assert cluster_from_mapping(cluster_to_mapping(cluster)) == cluster
    assert cluster_to_mapping(cluster)["groups"][0]["links"] == links  # type: ignore[index,call-overload]


def test_a_catalog_cluster_takes_links() -> None:
    raw = {"name": "dgx-h100", "num_nodes": 3, "links": {"bytes_per_s": RATES}}
    assert cluster_from_mapping(raw).differs


def test_a_cluster_without_links_keeps_its_digest() -> None:
    assert "links" not in cluster_from_mapping({"name": "dgx-h100"}).groups[0].to_mapping()


def test_a_rail_only_network_alone_has_no_order() -> None:
    assert not a_cluster({"rail_only": True}).differs


def test_a_matrix_must_be_square() -> None:
    ((at, message),) = faults_of({"bytes_per_s": [*RATES[:2], [1e9, 1e9]]})
    assert at == "/links/bytes_per_s/2"
    assert "must be square" in message


def test_bandwidth_must_be_positive() -> None:
    found = faults_of({"bytes_per_s": [[0, -5, 1e9], [-5, 0, 0], [1e9, 0, 0]]})
    assert [at for at, _ in found] == [
        f"/links/bytes_per_s/{pair}" for pair in ("0/1", "1/0", "1/2", "2/1")
    ]


def test_latency_may_be_zero_and_not_negative() -> None:
    a_cluster({"latency_s": [[0, 0, 0]] * 3})
    found = faults_of({"latency_s": [[0, -1e-6, 0], [-1e-6, 0, 0], [0, 0, 0]]})
    assert [at for at, _ in found] == ["/links/latency_s/0/1", "/links/latency_s/1/0"]


def test_an_asymmetric_matrix_must_be_declared() -> None:
    unlike = [[0, 50e9, 40e9], [25e9, 0, 30e9], [40e9, 30e9, 0]]
    ((at, message),) = faults_of({"bytes_per_s": unlike})
    assert at == "/links/bytes_per_s/0/1"
    assert "5e+10, but 2.5e+10 the other way" in message
    assert a_cluster({"bytes_per_s": unlike, "asymmetric": True}).differs


def test_links_state_as_many_nodes_as_the_group_has() -> None:
    assert faults_of({"bytes_per_s": RATES}, num_nodes=4) == [
        ("/links", "states 3 nodes, but the group has 4")
    ]
    ((at, message),) = faults_of({"bytes_per_s": RATES, "hosts": ["a", "b"]})
    assert (at, message) == ("/links", "different numbers of nodes: hosts of 2, bytes_per_s of 3")


@pytest.mark.parametrize(
    ("links", "at"),
    [
        ({"hosts": ["a", "b", "$(reboot)"]}, "/links/hosts/2"),
        ({"hosts": ["a", "b", "a"]}, "/links/hosts"),
        ({"order": [0, 1, 1]}, "/links/order"),
        ({"order": "abc"}, "/links/order"),
        ({"bytes_per_s": [[0, "x", 1], [1, 0, 1], [1, 1, 0]]}, "/links/bytes_per_s/0/1"),
        ({"bytes_per_s": {}}, "/links/bytes_per_s"),
        ({"levels": [{"nodes": 2, "oversubscription": 0.5}]}, "/links/levels/0/oversubscription"),
        (
            {"levels": [{"nodes": 2, "oversubscription": 2}, {"nodes": 3, "oversubscription": 2}]},
            "/links/levels/1/nodes",
        ),
        ({"speed": 1}, "/links/speed"),
    ],
)
def test_the_faulty_field_is_named(links: object, at: str) -> None:
    assert [where for where, _ in faults_of(links)] == [at]


def test_several_groups_state_no_links_of_nodes() -> None:
    groups = [
        {"gpu": "h100-sxm-80gb", "num_nodes": 3, "links": {"bytes_per_s": RATES}},
        {"gpu": "a100-sxm-80gb", "num_nodes": 3},
    ]
    with pytest.raises(InvalidProblemError, match="several groups"):
        cluster_from_mapping({"groups": groups})


def test_a_rack_joins_its_nodes_by_the_fast_link() -> None:
    group = {
        "gpu": "h100-sxm-80gb",
        "num_nodes": 3,
        "gpus_per_node": 4,
        "island_gpus": 12,
        "links": {"bytes_per_s": RATES},
    }
    with pytest.raises(InvalidProblemError, match="islands of 12 GPUs"):
        cluster_from_mapping({"groups": [group]})
