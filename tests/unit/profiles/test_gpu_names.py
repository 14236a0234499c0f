import pytest

from meshwright.profiles.library import gpu_of_device
from meshwright.profiles.units import GIB, MIB


# names and MiB as torch and nvidia-smi report them
@pytest.mark.parametrize(
    ("name", "mib", "slug"),
    [
        ("NVIDIA A100-SXM4-40GB", 40326, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81050, "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", 81050, "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", 81090, "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", 81090, "h100-pcie-80gb"),
        ("NVIDIA H200", 143167, "h200-sxm-141gb"),
        ("Tesla V100-SXM2-16GB", 16151, "v100-sxm-16gb"),
        ("Tesla V100-SXM2-32GB", 32494, "v100-sxm-32gb"),
        ("NVIDIA GeForce RTX 4090", 24079, "rtx-4090"),
        ("NVIDIA L4", 22700, "l4"),
        ("Tesla T4", 14917, "t4"),
        ("AMD Instinct MI300X", 196592, "mi300x"),
        ("NVIDIA H100 NVL", 95320, None),
        ("NVIDIA A100-SXM4-40GB", 20000, None),  # a slice of it
        ("Quadro K620", 2000, None),
    ],
)
def test_a_device_name_means_one_type_of_the_catalog_or_none(name: str, mib: int, slug: str | None) -> None:
    assert gpu_of_device(name, mib * MIB) == slug


def test_a_name_without_an_end_is_none() -> None:
    assert gpu_of_device("x" * 100_000, 80 * GIB) is None
