"""GPUs and nodes are found by the names that drivers, torch, clouds and people write."""

import random
import re

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.gpu_words import APPLE, MAKERS, holds, maker_of, spaced, words_of
from meshwright.profiles.inline import cluster_from_mapping, cluster_of_words, cluster_to_mapping
from meshwright.profiles.library import (
    cloud_instance,
    cluster_names,
    find_gpu,
    gpu_alias_note,
    gpu_names,
    gpu_of_device,
    instance_names,
)
from meshwright.profiles.units import GIB
from tests.draws import draws

# What nvidia-smi, rocm-smi or jax.devices() print for each GPU type of the catalog that a driver names.
PRINTED = {
    "a10": "NVIDIA A10",
    "a100-pcie-40gb": "NVIDIA A100-PCIE-40GB",
    "a100-pcie-80gb": "NVIDIA A100 80GB PCIe",
    "a100-sxm-40gb": "NVIDIA A100-SXM4-40GB",
    "a100-sxm-64gb": "NVIDIA A100-SXM-64GB",
    "a100-sxm-80gb": "NVIDIA A100-SXM4-80GB",
    "a10g": "NVIDIA A10G",
    "a2": "NVIDIA A2",
    "a30": "NVIDIA A30",
    "a40": "NVIDIA A40",
    "a800-sxm-80gb": "NVIDIA A800-SXM4-80GB",
    "b200-sxm-180gb": "NVIDIA B200",
    "b300": "NVIDIA B300 SXM6 AC",
    "gb10-128gb": "NVIDIA GB10",
    "gb200": "NVIDIA GB200",
    "gb300": "NVIDIA GB300",
    "gh200-144gb": "NVIDIA GH200 144G HBM3e",
    "gh200-96gb": "NVIDIA GH200 480GB",
    "h100-nvl-94gb": "NVIDIA H100 NVL",
    "h100-pcie-80gb": "NVIDIA H100 PCIe",
    "h100-sxm-80gb": "NVIDIA H100 80GB HBM3",
    "h20-sxm-141gb": "NVIDIA H20-3e",
    "h20-sxm-96gb": "NVIDIA H20",
    "h200-nvl-141gb": "NVIDIA H200 NVL",
    "h200-sxm-141gb": "NVIDIA H200",
    "h800-sxm-80gb": "NVIDIA H800",
    "l20": "NVIDIA L20",
    "l4": "NVIDIA L4",
    "l40": "NVIDIA L40",
    "l40s": "NVIDIA L40S",
    "mi210": "AMD Instinct MI210",
    "mi250-gcd": "AMD Instinct MI250",
    "mi250x-gcd": "AMD Instinct MI250X",
    "mi300a": "AMD Instinct MI300A",
    "mi300x": "AMD Instinct MI300X OAM",
    "mi325x": "AMD Instinct MI325X",
    "mi350x": "AMD Instinct MI350X",
    "mi355x": "AMD Instinct MI355X",
    "quadro-rtx-6000": "Quadro RTX 6000",
    "quadro-rtx-8000": "Quadro RTX 8000",
    "rtx-2000-ada": "NVIDIA RTX 2000 Ada Generation",
    "rtx-2060": "NVIDIA GeForce RTX 2060",
    "rtx-2080-ti": "NVIDIA GeForce RTX 2080 Ti",
    "rtx-3050": "NVIDIA GeForce RTX 3050",
    "rtx-3060": "NVIDIA GeForce RTX 3060",
    "rtx-3060-ti": "NVIDIA GeForce RTX 3060 Ti",
    "rtx-3070": "NVIDIA GeForce RTX 3070",
    "rtx-3080": "NVIDIA GeForce RTX 3080",
    "rtx-3080-ti": "NVIDIA GeForce RTX 3080 Ti",
    "rtx-3090": "NVIDIA GeForce RTX 3090",
    "rtx-3090-ti": "NVIDIA GeForce RTX 3090 Ti",
    "rtx-4000-ada": "NVIDIA RTX 4000 Ada Generation",
    "rtx-4060": "NVIDIA GeForce RTX 4060",
    "rtx-4060-laptop": "NVIDIA GeForce RTX 4060 Laptop GPU",
    "rtx-4060-ti": "NVIDIA GeForce RTX 4060 Ti",
    "rtx-4070": "NVIDIA GeForce RTX 4070",
    "rtx-4070-super": "NVIDIA GeForce RTX 4070 SUPER",
    "rtx-4070-ti": "NVIDIA GeForce RTX 4070 Ti",
    "rtx-4070-ti-super": "NVIDIA GeForce RTX 4070 Ti SUPER",
    "rtx-4080": "NVIDIA GeForce RTX 4080",
    "rtx-4080-super": "NVIDIA GeForce RTX 4080 SUPER",
    "rtx-4090": "NVIDIA GeForce RTX 4090",
    "rtx-4090-d": "NVIDIA GeForce RTX 4090 D",
    "rtx-4090-laptop": "NVIDIA GeForce RTX 4090 Laptop GPU",
    "rtx-4500-ada": "NVIDIA RTX 4500 Ada Generation",
    "rtx-5000-ada": "NVIDIA RTX 5000 Ada Generation",
    "rtx-5050": "NVIDIA GeForce RTX 5050",
    "rtx-5060": "NVIDIA GeForce RTX 5060",
    "rtx-5070": "NVIDIA GeForce RTX 5070",
    "rtx-5070-ti": "NVIDIA GeForce RTX 5070 Ti",
    "rtx-5080": "NVIDIA GeForce RTX 5080",
    "rtx-5090": "NVIDIA GeForce RTX 5090",
    "rtx-5090-d": "NVIDIA GeForce RTX 5090 D",
    "rtx-5090-laptop": "NVIDIA GeForce RTX 5090 Laptop GPU",
    "rtx-6000-ada": "NVIDIA RTX 6000 Ada Generation",
    "rtx-a2000": "NVIDIA RTX A2000",
    "rtx-a2000-12gb": "NVIDIA RTX A2000 12GB",
    "rtx-a4000": "NVIDIA RTX A4000",
    "rtx-a4500": "NVIDIA RTX A4500",
    "rtx-a5000": "NVIDIA RTX A5000",
    "rtx-a6000": "NVIDIA RTX A6000",
    "rtx-pro-4000": "NVIDIA RTX PRO 4000 Blackwell",
    "rtx-pro-4500": "NVIDIA RTX PRO 4500 Blackwell",
    "rtx-pro-5000": "NVIDIA RTX PRO 5000 Blackwell",
    "rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "rtx-pro-6000-server": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "t4": "Tesla T4",
    "tpu-v4": "TPU v4",
    "tpu-v5e": "TPU v5 lite",
    "tpu-v5p": "TPU v5",
    "tpu-v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
    "v100-pcie-16gb": "Tesla V100-PCIE-16GB",
    "v100-pcie-32gb": "Tesla V100-PCIE-32GB",
    "v100-sxm-16gb": "Tesla V100-SXM2-16GB",
    "v100-sxm-32gb": "Tesla V100-SXM2-32GB",
}
# Their drivers print none, a card of the same name, or nothing that is sure.
UNPRINTED = {
    "ascend-910b", "ascend-910c-die", "b100", "epyc-9004-core", "gaudi-2", "gaudi-3", "h100-sxm-96gb-hbm2e",
    "metax-c500", "rtx-3080-12gb", "rtx-4060-ti-16gb", "rtx-5060-ti-16gb", "trainium-2",
}  # fmt: skip
SLUGS = {find_gpu(name).slug for name in gpu_names()}


def test_the_table_has_every_gpu_type_of_the_catalog() -> None:
    assert PRINTED.keys() | UNPRINTED == SLUGS


def _written(printed: str, drawn: random.Random) -> str:
    """Return a printed name in another case, with other separators, and without its maker perhaps."""
    words = printed.split(" ")
    if drawn.random() < 0.5 and words[0] in {"NVIDIA", "Tesla", "AMD"}:
        words = words[1:]
    text = drawn.choice((" ", "-", "_", "  ")).join(words)
    text = re.sub(r"(?<=\d)GB", drawn.choice(("GB", " GB", "gb", "G", "GiB")), text)
    return drawn.choice((str, str.lower, str.upper))(text)


@pytest.mark.parametrize("slug", sorted(PRINTED))
def test_what_a_driver_prints_is_known_in_any_case_and_with_any_separator(slug: str) -> None:
    drawn = random.Random(slug)
    for written in [PRINTED[slug], *(_written(PRINTED[slug], drawn) for _ in range(draws(20)))]:
        assert (written, find_gpu(written).slug) == (written, slug)


@pytest.mark.parametrize("slug", sorted(slug for slug in PRINTED if not slug.startswith("tpu")))
def test_what_torch_reports_of_a_device_is_the_same_type(slug: str) -> None:
    memory_bytes = int(0.985 * find_gpu(slug).memory_bytes)  # the driver keeps 1.5 % of it
    assert gpu_of_device(PRINTED[slug], memory_bytes) == slug


@pytest.mark.parametrize(
    ("written", "slug", "note"),
    [
        ("A100 40GB", "a100-sxm-40gb", "assuming SXM"),
        ("H100 80GB", "h100-sxm-80gb", "assuming SXM"),
        ("h100-sxm5", "h100-sxm-80gb", "assuming 80 GB"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb", None),  # the PCIe card has HBM2e
        ("H100 94GB", "h100-nvl-94gb", None),
        ("A100 64GB", "a100-sxm-64gb", None),
        ("RTX 3080 12GB", "rtx-3080-12gb", None),
        ("RTX 3080", "rtx-3080", None),  # of this very name
        ("GeForce RTX 3080", "rtx-3080", "assuming 10 GB"),
        ("4090", "rtx-4090", None),
        ("A6000", "rtx-a6000", None),
        ("B300 288GB", "b300", None),  # 268.6 GiB, as its driver has them: 93 % of 288
        ("L40S 48GB", "l40s", None),  # 45.0 GiB, fifteen sixteenths of 48: ECC
        ("Ironwood", "tpu7x", None),
        ("Ascend 910B", "ascend-910b", None),
        ("a100-40", "a100-sxm-40gb", "assuming SXM; 40 is its memory in GB"),
        ("v100-16 pcie", "v100-pcie-16gb", "16 is its memory in GB"),
        ("HGX H100", "h100-sxm-80gb", "assuming SXM; assuming 80 GB"),
        ("NVIDIA DGX Spark", "gb10-128gb", None),
        ("gb10 128 GB", "gb10-128gb", None),  # as sold, of which CUDA has 102 GiB
    ],
)
def test_people_leave_out_what_the_catalog_can_tell(written: str, slug: str, note: str | None) -> None:
    assert (find_gpu(written).slug, gpu_alias_note(written)) == (slug, note)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("H100 40GB", "No such card has 40 GB. The catalog has .*80, 94, 96 GB"),
        ("rtx-4090-48gb", "No such card has 48 GB. The catalog has RTX 4090 "),
        ("v100-pcie", "It may be V100 PCIe 16 GB or V100 PCIe 32 GB"),
        ("A40 SXM", "The catalog has A40"),
        ("AMD H100", "No GPU of the catalog has this name"),
        ("NVIDIA GeForce RTX 5080 D", "No GPU of the catalog has this name"),
        ("NVIDIA GeForce RTX 5090 D V2", "No GPU of the catalog has this name"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "No GPU of the catalog has this name"),
        ("M3 Max", "Apple GPUs are not supported"),
        ("Mac Studio", "Apple GPUs are not supported"),
        ("P100", "older GPUs have no tensor cores"),
        ("Tesla K80", "older GPUs have no tensor cores"),
        ("NVIDIA GeForce GTX 1080 Ti", "older GPUs have no tensor cores"),
        ("Quadro P6000", "older GPUs have no tensor cores"),
        ("p5.48xlarge", "No GPU of the catalog has this name"),  # AWS's H100, B200, V100 and A100
        ("p6-b200", "No GPU of the catalog has this name"),
        ("p3", "No GPU of the catalog has this name"),
        ("p4d", "No GPU of the catalog has this name"),
        ("Xeon Platinum 8480", "CPUs are not supported"),
        ("a100-64", "No GPU of the catalog has this name"),  # 64 GPUs, or a card of 64 GB?
        ("v5e-16", "No GPU of the catalog has this name"),  # 16 chips
        ("rxt-4090", r"Did you mean rtx-4090\?"),
        ("DGX H100", "It is a cluster, not a GPU type. Nearest: h100-sxm-80gb"),
    ],
)
def test_a_name_that_is_no_card_says_why(written: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why) as refused:
        find_gpu(written, pointer="/cluster/groups/3/gpu")
    assert refused.value.errors[0].pointer == "/cluster/groups/3/gpu"


# Cards that the catalog lacks, with the GB of each: what is offered in their place must not have another.
ABSENT = {
    "RTX A3000": 12, "RTX 2080": 8, "Quadro RTX 5000": 16, "RTX 6000": 24, "RTX 4050": 6,
    "MI100": 32, "GTX 1080 Ti": 11, "P100": 16, "K80": 12, "RTX 3070 Ti": 8,
    "RTX PRO 2000 Blackwell": 16, "H100 PCIe 96GB": 96, "RTX 2070": 8, "A16": 16, "MI300": 192,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_no_card_of_another_memory_is_offered(name: str) -> None:
    with pytest.raises(InvalidProblemError) as refused:
        find_gpu(name)
    (error,) = refused.value.errors
    meant = re.search(r"Did you mean (.*)\?", error.message)
    offered = meant[1].split(" or ") if meant else [error.nearest] if error.nearest else []
    assert all(holds(find_gpu(one).memory_bytes / GIB, ABSENT[name]) for one in offered)


def test_a_stated_memory_is_the_cards_or_refused() -> None:
    drawn = random.Random(57)
    for slug in sorted(SLUGS):
        words = words_of(slug)
        assert words is not None
        for stated in (8, 10, 12, 16, 24, 32, 40, 48, 64, 80, 94, 96, 141, 180, 192, 256, 288):
            written = f"{drawn.choice((words.type, words.type.upper()))} {stated}GB"
            try:
                found = find_gpu(written)
            except InvalidProblemError:
                continue
            assert holds(found.memory_bytes / GIB, stated), written


def test_the_makers_of_the_table_are_known() -> None:
    for slug, printed in PRINTED.items():
        words = words_of(printed)
        assert words is None or words.makers <= {maker_of(slug)}
    assert not any(APPLE.fullmatch(spaced(name)) for name in gpu_names())
    assert set(MAKERS.values()) <= {*map(maker_of, SLUGS), "nvidia"}


# --------------------------------------------------------------------------------------------------
# Clusters by name.


def _groups(name: str, **more: object) -> list[tuple[str, int, int]]:
    cluster = cluster_from_mapping({"name": name, **more})
    assert cluster_from_mapping(cluster_to_mapping(cluster)) == cluster
    return [(group.gpu.slug, group.num_nodes, group.gpus_per_node) for group in cluster.groups]


H100, A100, A100_40 = "h100-sxm-80gb", "a100-sxm-80gb", "a100-sxm-40gb"


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("DGX H100", [(H100, 1, 8)]),
        ("h100", [(H100, 1, 8)]),
        ("64xH100", [(H100, 8, 8)]),
        ("4 x A100-40GB", [(A100_40, 1, 4)]),
        ("8 × NVIDIA A100-SXM4-40GB", [(A100_40, 1, 8)]),
        ("h100:8", [(H100, 1, 8)]),  # as Slurm writes it
        ("2xdgx-h100,4xdgx-a100", [(H100, 2, 8), (A100, 4, 8)]),
        ("16xH100,32xA100", [(H100, 2, 8), (A100, 4, 8)]),
        ("72xGB200", [("gb200", 18, 4)]),
        ("4xGH200", [("gh200-96gb", 4, 1)]),
        ("2xp4d.24xlarge", [(A100_40, 2, 8)]),
        ("p5.48xlarge", [(H100, 1, 8)]),
        ("STANDARD_nd96isr_h100_V5", [(H100, 1, 8)]),
        ("a3-highgpu-8g", [(H100, 1, 8)]),
        ("BM.GPU.H100.8", [(H100, 1, 8)]),
        ("ml.p4d.24xlarge", [(A100_40, 1, 8)]),  # SageMaker
        ("gpu_8x_h100_sxm5", [(H100, 1, 8)]),  # Lambda
        ("8h100", [(H100, 1, 8)]),
        ("16x8xH100", [(H100, 16, 8)]),
        ("2x4 A100-40GB", [(A100_40, 2, 4)]),
        ("16 nodes of 8xH100", [(H100, 16, 8)]),
        ("3 nodes x 2 h100", [(H100, 3, 2)]),
        ("8xH100 + 8xA100", [(H100, 1, 8), (A100, 1, 8)]),
        ("2xp4d.24xlarge and 1xp5.48xlarge", [(A100_40, 2, 8), (H100, 1, 8)]),
        ("v5litepod-16", [("tpu-v5e", 2, 8)]),
        ("v5p-128", [("tpu-v5p", 16, 4)]),  # 128 TensorCores
        ("tpu-v6e-256", [("tpu-v6e", 32, 8)]),
    ],
)
def test_a_cluster_is_named_by_its_nodes_or_gpus(name: str, groups: list[tuple[str, int, int]]) -> None:
    assert _groups(name) == groups


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("a2-ultragpu", "Did you mean a2-ultragpu-8g, a2-ultragpu-4g or a2-ultragpu-2g"),
        ("2xND96asr_A100_v4", "Did you mean .*Standard_ND96asr_v4"),
        ("4xrxt-4090", "Did you mean rtx-4090"),
        ("8xMac Studio", "Apple GPUs are not supported"),
        ("8xH100 40GB", "No such card has 40 GB"),
        ("v4-9", 'unknown "v4-9"'),  # half a chip
    ],
)
def test_words_that_name_no_node_say_which_is_near(written: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why) as refused:
        cluster_of_words(written, pointer="--gpus")
    assert refused.value.errors[0].pointer == "--gpus"


@pytest.mark.parametrize(
    ("cluster", "fault"),
    [
        ({"name": "12xH100"}, "/cluster/num_gpus"),
        ({"name": "dgx-h100", "num_gpus": 12}, "/cluster/num_gpus"),
        ({"name": "64xH100", "num_gpus": 8}, "/cluster/num_gpus"),
        ({"name": "2xdgx-h100", "num_nodes": 4}, "/cluster/num_nodes"),
        ({"name": "2xnowhere"}, "/cluster/name"),
        ({"name": "0xH100"}, "/cluster/num_gpus"),
        ({"name": "H100 40GB"}, "/cluster/name"),
        ({"gpu": "h100", "nodes": 4}, "/cluster/nodes"),
        ({"gpu": "nope"}, "/cluster/gpu"),
    ],
)
def test_a_wrong_cluster_is_refused_where_it_is_wrong(cluster: dict[str, object], fault: str) -> None:
    with pytest.raises(InvalidProblemError) as refused:
        cluster_from_mapping(cluster)
    assert [error.pointer for error in refused.value.errors] == [fault]


def test_a_gpu_type_and_a_number_of_gpus_are_a_cluster() -> None:
    for stated, groups in (
        ({"gpu": "h100"}, (H100, 1, 8)),
        ({"gpu": "h100", "num_gpus": 4}, (H100, 1, 4)),
        ({"gpu": "h100", "num_gpus": 64}, (H100, 8, 8)),
        ({"gpu": "h100", "num_gpus": 16, "num_nodes": 4}, (H100, 4, 4)),
        ({"gpu": "h100", "num_gpus": 12, "gpus_per_node": 4}, (H100, 3, 4)),
        ({"name": "dgx-h100", "num_gpus": 64}, (H100, 8, 8)),
        ({"name": "dgx-h100", "num_gpus": 2}, (H100, 1, 2)),
        ({"name": "gb200-nvl72", "num_gpus": 72}, ("gb200", 18, 4)),
    ):
        (group,) = cluster_from_mapping(stated).groups
        assert (group.gpu.slug, group.num_nodes, group.gpus_per_node) == groups


def test_every_instance_is_a_cluster_with_its_share_of_the_network() -> None:
    for name in instance_names():
        (group,), instance = cluster_from_mapping({"name": name}).groups, cloud_instance(name.upper())
        assert instance is not None
        if not instance.cluster:
            per_node = group.inter_node.bytes_per_s * group.gpus_per_node
            assert per_node == pytest.approx(instance.network_bytes_per_s)
    (p4d,) = cluster_from_mapping({"name": "p4d.24xlarge"}).groups
    assert p4d.inter_node.bytes_per_s == pytest.approx(400e9 / 8 / 8)  # 400 Gbit/s for 8 GPUs
    assert not set(instance_names()) & set(cluster_names())


def test_no_link_is_assumed_that_nothing_crosses() -> None:
    def assumed(**group: object) -> str:
        return " ".join(cluster_from_mapping({"gpu": H100, **group}).warnings)

    assert assumed(gpus_per_node=1) == ""  # one GPU
    assert "in a node" in assumed(gpus_per_node=2)
    assert "between nodes" not in assumed(gpus_per_node=2)
    assert "between nodes" in assumed(gpus_per_node=1, num_nodes=2)
    assert "in a node" not in assumed(gpus_per_node=1, num_nodes=2)


def test_bridged_cards_are_joined_in_pairs_whatever_the_node() -> None:
    for each, island in ((8, 2), (4, 2), (2, 2), (1, 1), (3, 3)):
        (group,) = cluster_from_mapping({"gpu": "h100-nvl-94gb", "gpus_per_node": each}).groups
        assert group.island_gpus == island
