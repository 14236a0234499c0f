"""What a node's topology says of its group: islands, links, shares of the network cards."""

from meshwright.profiles.importers.node_groups import connected, fields_of_topology
from meshwright.profiles.library import find_gpu
from meshwright.profiles.measurements import GpuPlace, NodeTopology


def test_pairs_join_into_sorted_groups() -> None:
    assert connected(5, [(3, 1), (4, 3)]) == ((0,), (1, 3, 4), (2,))


def test_gpus_without_nvlink_have_the_rate_of_the_slowest_slot_unless_one_is_unknown() -> None:
    def link(*slots: float | None) -> object:
        gpus = tuple(GpuPlace(nvlinks=0, pcie_bytes_per_s=slot) for slot in slots)
        islands = tuple((index,) for index in range(len(slots)))
        topology = NodeTopology(gpus=gpus, islands=islands, nic_bytes_per_s=())
        return fields_of_topology(topology, find_gpu("l40s"), "x").fields.get("intra_node")

    assert link(32e9, 16e9) == {
        "kind": "pcie",
        "bytes_per_s": 16e9,
        "latency_s": find_gpu("l40s").intra_node.latency_s,
        "source": "x",
    }
    assert link(32e9, None) is None


def _plain_node(gpus: int, nics: tuple[float | None, ...] = (), hosts: int = 1) -> NodeTopology:
    places = (GpuPlace(nvlinks=0),) * gpus
    return NodeTopology(gpus=places, islands=((0,),), nic_bytes_per_s=nics, num_hosts=hosts)


def test_network_cards_share_their_rates_among_the_gpus_unless_one_is_unknown() -> None:
    def link(*rates: float | None) -> object:
        found = fields_of_topology(_plain_node(4, rates), find_gpu("l40s"), "x")
        network = found.fields.get("inter_node")
        return network["bytes_per_s"] if isinstance(network, dict) else found.notes[-1]

    assert link(50e9, 30e9) == 20e9  # 80 GB/s for 4 GPUs
    assert link(50e9, None) == "2 network cards without a rate: assuming the GPU's usual network"
    assert link() == "0 network cards without a rate: assuming the GPU's usual network"


def test_gpus_of_several_hosts_are_shared_out_as_whole_gpus() -> None:
    fields = fields_of_topology(_plain_node(9, hosts=2), find_gpu("l40s"), "x").fields
    assert fields["gpus_per_node"] == 4
