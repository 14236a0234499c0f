import numpy as np
import pytest

from meshwright.profiles.operators.operators import GpuOperators, flash_attention_s, gemm_s, operators_of
from tests.builders import a_gpu


def plain(**changes: object) -> GpuOperators:
    values: dict[str, object] = {
        "gemm": {"bf16": 1.0},
        "gemm_backward": 1.0,
        "gemm_m0": 0.0,
        "gemm_n0": 0.0,
        "gemm_k0": 0.0,
        "grouped_m0": 0.0,
        "launch_s": 0.0,
        "flash": 1.0,
        "flash_s0": 0.0,
        "attention_backward": 2.5,
        "hbm": 1.0,
        "source": "by hand",
        "measured": True,
    }
    return GpuOperators(**(values | changes))  # type: ignore[arg-type]


def test_a_large_gemm_takes_its_flops_over_the_rate() -> None:
    # 2 * 4096 * 8192 * 1024 = 68.7 GFLOP at 100 TFLOP/s = 687 us; 92 MB at 1 PB/s is nothing
    seconds = gemm_s(4096, 8192, 1024, operators=plain(), flops=100e12, bytes_per_s=1e15)
    assert float(seconds) == pytest.approx(2 * 4096 * 8192 * 1024 / 100e12, rel=1e-3)


def test_a_thin_gemm_takes_its_bytes_over_the_bandwidth() -> None:
    # one row: (1 + 8192) * 8192 * 2 + 2 * 8192 bytes = 134 MB at 1 TB/s = 134 us; compute is 1.3 us
    seconds = gemm_s(1, 8192, 8192, operators=plain(), flops=100e12, bytes_per_s=1e12)
    assert float(seconds) == pytest.approx(((1 + 8192) * 8192 * 2 + 2 * 8192) / 1e12, rel=1e-3)


def test_half_lengths_halve_the_rate_each() -> None:
    # m = m0, n = n0, k = k0: the rate is an eighth
    whole = gemm_s(512, 512, 512, operators=plain(), flops=1e12, bytes_per_s=1e18)
    halved = plain(gemm_m0=512.0, gemm_n0=512.0, gemm_k0=512.0)
    assert float(gemm_s(512, 512, 512, operators=halved, flops=1e12, bytes_per_s=1e18)) == pytest.approx(
        8 * float(whole), rel=1e-6
    )


def test_each_kernel_pays_its_launch() -> None:
    quick = gemm_s(1, 1, 1, operators=plain(launch_s=4e-6), flops=1e15, bytes_per_s=1e15)
    assert float(quick) == pytest.approx(4e-6, rel=1e-3)


def test_attention_reaches_half_its_rate_at_the_half_length() -> None:
    operators = plain(flash_s0=512.0)
    work = np.array([1e12])
    assert float(flash_attention_s(work, 512.0, operators=operators, flops=1e12)[0]) == pytest.approx(2.0)


def test_a_measured_gpu_says_so() -> None:
    assert operators_of(a_gpu()).measured


def test_an_unmeasured_gpu_takes_its_architectures_shares() -> None:
    other = operators_of(a_gpu(slug="h900-sxm"))
    assert not other.measured
    assert other.gemm["bf16"] == operators_of(a_gpu()).gemm["bf16"]


def test_an_unknown_architecture_takes_the_mean() -> None:
    assert operators_of(a_gpu(slug="x1", architecture="unheard-of")).gemm["bf16"] == 0.8


def test_a_gpu_uses_its_own_tables_and_a_relative_those_of_its_architecture() -> None:
    assert operators_of(a_gpu(slug="h200-sxm-141gb")).tables == "h200-sxm-141gb"
    assert operators_of(a_gpu(slug="h900-sxm")).tables == "h100-sxm-80gb"
    assert operators_of(a_gpu(slug="x1", architecture="cdna3")).tables == ""


def test_other_tables_are_another_digest() -> None:
    own, other = (operators_of(a_gpu(slug=slug)) for slug in ("h100-sxm-80gb", "h200-sxm-141gb"))
    assert len(own.tables_digest) == 12
    assert own.tables_digest != other.tables_digest


def test_the_backward_pass_of_experts_is_both_gradients_of_the_measured_layers() -> None:
    # SimuMax, B200, gradients summed in fp32: 1.048 + 1.524
    blackwell = a_gpu(slug="b200-sxm-180gb", architecture="blackwell")
    assert operators_of(blackwell).experts_backward == pytest.approx(1.048 + 1.524)
