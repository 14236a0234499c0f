"""A GPU that the catalog lacks is read as one of its generation, whatever other names look like."""

import pytest

from meshwright.profiles.resembling import resemblance_log_spread, resembling_gpu


@pytest.mark.parametrize(
    ("written", "slug"),
    [
        ("b102", "b100"),  # not V100, whose name differs in one letter
        ("b300-nvl", "b300"),
        ("v100s-pcie-32gb", "v100-pcie-32gb"),
        ("rtx-2070", "rtx-2060"),  # not RTX 5070
        ("rtx-3070-ti", "rtx-3070"),
        ("rtx-2080-super", "rtx-2080-ti"),  # not RTX 4080 Super
        ("RTX Pro 2000", "rtx-pro-4000"),
        ("RTX 3000 Ada", "rtx-2000-ada"),  # not RTX 3050, which is an Ampere
        ("RTX 3500 Ada Generation", "rtx-4500-ada"),
        ("mi308x", "mi300x"),  # not MI350X
        ("h200-pcie-96gb", "h200-nvl-141gb"),
        ("a6000-ti", "rtx-a6000"),
        ("gtx-1080-ti", None),
        ("p100-pcie-16gb", None),
        ("titan-v", None),
    ],
)
def test_the_generation_counts_before_the_letters(written: str, slug: str | None) -> None:
    found = resembling_gpu(written)
    assert (found and found.slug) == slug


def test_a_left_out_card_is_read_as_its_other_form() -> None:
    found = resembling_gpu("h100-pcie-80gb", without="h100-pcie-80gb")
    assert found is not None
    assert found.slug == "h100-sxm-80gb"


def test_another_type_is_further_off_than_another_form() -> None:
    assert resemblance_log_spread("h100-pcie-96gb", "h100-sxm-80gb") < resemblance_log_spread(
        "b102", "b300"
    )
