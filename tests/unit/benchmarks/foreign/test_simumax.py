"""SimuMax system files (fixtures: configs/system of MooreThreads/SimuMax, Apache-2.0)."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.foreign.simumax import backward_ratios, load_simumax, main
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.library import find_gpu
from meshwright.profiles.operators.operators import attention_backward_ratio

FIXTURES = Path(__file__).parents[3] / "fixtures" / "simumax"
Change = Callable[[dict[str, Any]], object]
A100, B200 = FIXTURES / "a100_pcie.json", FIXTURES / "b200_bf16_ceperm.json"


def changed(tmp_path: Path, change: Change) -> Path:
    raw = copy.deepcopy(json.loads(A100.read_text("utf-8")))
    change(raw["accelerator"]["op"])
    path = tmp_path / "system.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def test_a_forward_product_becomes_seconds() -> None:
    # 2 x 4096 x 5120 x 1536 / (312e12 x 0.78767) = 0.2622 ms
    first = load_simumax(A100).products[0]
    assert (first.tokens, first.outputs, first.inputs) == (4096, 1536, 5120)
    assert (first.direction, first.gradient_dtype, first.groups) == ("forward", "", 1)
    assert first.seconds == pytest.approx(0.2622e-3, rel=1e-3)


def test_the_three_products_of_a_layer_are_recognised_as_one_layer() -> None:
    # m=4096, k=1536, n=5120 in NN is the input gradient, m=1536, k=4096, n=5120 in NT the weight gradient
    three = load_simumax(A100).products[:3]
    assert [p.direction for p in three] == ["forward", "input_gradient", "weight_gradient"]
    assert {(p.tokens, p.outputs, p.inputs) for p in three} == {(4096, 1536, 5120)}
    assert three[2].gradient_dtype == "fp32"


def test_attention_counts_all_scores_and_2_5_times_as_many_operations_backward() -> None:
    # batch 1, 4 096 tokens, 128 heads of 192 + 128: 2 x 4096^2 x 128 x 320 / (312e12 x 1.07297) = 4.105 ms
    first = load_simumax(A100).attention[0]
    assert first.forward_s == pytest.approx(4.105e-3, rel=1e-3)
    assert first.backward_s / first.forward_s == pytest.approx(2.5 * 1.07297 / 0.80185, rel=1e-4)


def test_every_shape_of_both_files_is_read() -> None:
    a100, b200 = load_simumax(A100), load_simumax(B200)
    assert (a100.name, len(a100.products), len(a100.attention)) == ("'a100_pcie_bf16'", 183 + 12, 12)
    assert (len(b200.products), len(b200.attention)) == (514 + 108, 32)


def test_backward_products_of_an_a100_take_about_as_long_as_forward_ones() -> None:
    ratios = {(r.operator, r.part): r for r in backward_ratios(load_simumax(A100))}
    assert ratios["gemm", "input_gradient"].count == 61
    assert ratios["gemm", "input_gradient"].median == pytest.approx(1.0, abs=0.02)
    assert ratios["gemm", "weight_gradient"].median == pytest.approx(1.05, abs=0.02)
    assert ratios["grouped_gemm", "weight_gradient"].median == pytest.approx(1.19, abs=0.02)
    assert ratios["attention", "backward"].median == pytest.approx(2.9, abs=0.05)


def test_a_gpu_takes_its_own_ratio_then_its_architectures_then_the_mean_of_all() -> None:
    # medians of the two files: 2.896 on an A100 of PCIe, 2.688 on a B200
    a100, b200, h100 = (
        attention_backward_ratio(find_gpu(name))
        for name in ("a100-sxm-80gb", "b200-sxm-180gb", "h100-sxm-80gb")
    )
    assert (a100, b200) == (2.896, 2.688)
    assert h100 == pytest.approx((a100 * b200) ** 0.5)


def test_the_command_writes_the_catalog_file(tmp_path: Path) -> None:
    out = tmp_path / "backward.json"
    assert main([f"a100-pcie-80gb={A100}", f"b200-sxm-180gb={B200}", "--out", str(out)]) == 0
    assert out.read_bytes() == (CATALOG / "operators" / "backward.json").read_bytes()


def test_the_command_names_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["x=none.json", "--out", str(tmp_path / "o.json")]) == 2
    assert capsys.readouterr().err == "error: none.json: no such file\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda op: op.clear(), "accelerator.op"),
        (lambda op: op["matmul"].update(tflops=0), "accelerator.op.matmul.tflops"),
        (lambda op: op["matmul"].update(tflops="fast"), "is not a number"),
        (lambda op: op["matmul"]["accurate_efficient_factor"].update({"b=1, m=1": 0.5}), "n of 'b=1, m=1'"),
        (
            lambda op: op["matmul"]["accurate_efficient_factor"].update(
                {"b=1, m=1, k=1, n=1, layout=TT": 0.5}
            ),
            "expected one of TN, NN, NT",
        ),
        (
            lambda op: op["sdp_fwd"]["accurate_efficient_factor"].update({"batch=1": -0.5}),
            "'batch=1': -0.5 is out of range",
        ),
        (lambda op: [op.pop(name) for name in list(op) if name != "default"], "no shape under any"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        load_simumax(changed(tmp_path, change))
