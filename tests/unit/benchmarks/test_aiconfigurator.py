"""The importer of the operator database: what it refuses, and what it reads from a wheel."""

import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.catalog.aiconfigurator import SELECTIONS, main
from benchmarks.catalog.aiconfigurator_rows import (
    Wheel,
    attention_points,
    cast_points,
    collective_points,
    gemm_points,
    grouped_points,
)
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.operators.tables import operator_table_names


def wheel_of(folder: Path, name: str) -> Path:
    path = folder / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
    return path


def test_every_selection_has_its_committed_file() -> None:
    assert {chosen.gpu for chosen in SELECTIONS.values()} == set(operator_table_names())


def test_a_missing_wheel_ends_with_code_2_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--wheel", str(tmp_path / "none.whl"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "error: none.whl is not a readable wheel\n"
    assert not (tmp_path / "out").exists()


def test_a_text_file_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("hello")
    with pytest.raises(ProfileError, match=r"a\.whl is not a readable wheel"):
        Wheel(tmp_path / "a.whl")


def test_another_package_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="is not a wheel of aiconfigurator-core"):
        Wheel(wheel_of(tmp_path, "numpy"))


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # as if it were not there
    with pytest.raises(ProfileError, match="needs pyarrow: pip install pyarrow"):
        Wheel(wheel_of(tmp_path, "aiconfigurator-core"))


# Reading a wheel in the source's own layout: needs pyarrow, which only this importer uses.

DATA = "aiconfigurator_core/systems/data/some_gpu"
TABLES: Mapping[str, Mapping[str, list[object]]] = {
    "gemm/lib/1/gemm_perf": {
        "gemm_dtype": ["bfloat16", "bfloat16", "fp8", "fp8"],
        "m": [256, 257, 256, 512],
        "n": [1024, 1024, 1024, 1024],
        "k": [2048, 2048, 2048, 2048],
        "latency": [0.5, 0.6, 0.4, 0.4],
    },
    "gemm/lib/2/gemm_perf": {
        "gemm_dtype": ["bfloat16"],
        "m": [256],
        "n": [1024],
        "k": [2048],
        "latency": [0.7],
    },
    "quantize/lib/1/computescale_perf": {"m": [256, 512], "k": [2048, 2048], "latency": [0.06, 0.2]},
    "quantize/lib/1/scale_matrix_perf": {"m": [256, 512], "k": [2048, 2048], "latency": [0.04, 0.1]},
    "attention/lib/1/context_attention_perf": {
        "attn_dtype": ["bfloat16"] * 3,
        "kv_cache_dtype": ["bfloat16", "bfloat16", "fp8"],
        "kernel_source": ["flash"] * 3,
        "step": [0] * 3,
        "window_size": [0, 128, 0],
        "batch_size": [2] * 3,
        "num_heads": [32] * 3,
        "num_key_value_heads": [8] * 3,
        "isl": [4096] * 3,
        "head_dim": [128] * 3,
        "latency": [3.0, 1.0, 2.0],
    },
    "moe/lib/1/moe_perf": {
        "moe_dtype": ["bfloat16"] * 2,
        "kernel_source": ["grouped"] * 2,
        "distribution": ["balanced"] * 2,
        "num_tokens": [1024, 1024],
        "topk": [8, 8],
        "num_experts": [128, 128],
        "moe_ep_size": [8, 64],
        "moe_tp_size": [2, 2],
        "hidden_size": [4096, 4096],
        "inter_size": [1536, 1536],
        "latency": [1.5, 0.5],
    },
    "comm/nccl/9/nccl_perf": {
        "op_name": ["alltoall", "alltoall"],
        "nccl_dtype": ["half", "int8"],
        "num_gpus": [8, 8],
        "message_size": [1024, 1024],
        "latency": [0.01, 0.02],
    },
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    path: Path = tmp_path_factory.mktemp("wheel") / "aiconfigurator_core-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a-1.0.dist-info/METADATA", "Name: aiconfigurator-core\nVersion: 1.0\n")
        archive.writestr("aiconfigurator_core/systems/some_gpu.yaml", "gpu: {mem_bw: 1000}\n")
        for name, columns in TABLES.items():
            buffer = io.BytesIO()
            parquet.write_table(pa.table(dict(columns)), buffer)
            archive.writestr(f"{DATA}/{name}.parquet", buffer.getvalue())
    return Wheel(path)


def test_facts_and_version_come_from_the_wheel(wheel: Wheel) -> None:
    assert wheel.version == "1.0"
    assert wheel.system("some_gpu")["gpu"]["mem_bw"] == 1000


def test_milliseconds_become_seconds_and_libraries_are_joined_by_their_median(wheel: Wheel) -> None:
    # 256 rows: 0.5 ms in one library, 0.7 ms in the other; 257 rows only probe the edge of a tile
    points = gemm_points(wheel, "some_gpu", "bf16", ("lib/1", "lib/2"))
    assert points.arguments.tolist() == [[256, 1024, 2048]]
    assert points.seconds == pytest.approx([0.6e-3])


def test_an_fp8_product_stands_without_its_cast(wheel: Wheel) -> None:
    # 0.4 - 0.06 - 0.04 = 0.3 ms; of 512 rows the cast takes 0.3 of 0.4 ms, too much to tell the rest
    points = gemm_points(wheel, "some_gpu", "fp8", ("lib/1",))
    assert points.arguments.tolist() == [[256, 1024, 2048]]
    assert points.seconds == pytest.approx([0.3e-3])


def test_attention_is_that_of_whole_sequences_in_bf16(wheel: Wheel) -> None:
    points = attention_points(wheel, "some_gpu", "lib/1", ("flash",))
    assert points.arguments.tolist() == [[2, 32, 8, 4096, 128]]
    assert points.seconds == pytest.approx([3e-3])


def test_experts_are_counted_on_one_rank(wheel: Wheel) -> None:
    # 1 024 tokens x 8 of 128 experts: 64 rows each; 128 / 8 = 16 experts a rank; 1 536 / 2 columns
    points = grouped_points(
        wheel, "some_gpu", "bf16", "lib/1", kernel="grouped", load="balanced", max_ep=16
    )
    assert points.arguments.tolist() == [[64, 16, 4096, 768]]
    assert points.seconds == pytest.approx([1.5e-3])


def test_a_cast_moves_three_bytes_an_element(wheel: Wheel) -> None:
    points = cast_points(wheel, "some_gpu", "lib/1")
    assert points.arguments.ravel().tolist() == [3 * 256 * 2048, 3 * 512 * 2048]
    assert points.seconds == pytest.approx(np.array([0.04e-3, 0.1e-3]))


def test_message_sizes_in_elements_become_bytes(wheel: Wheel) -> None:
    half = collective_points(wheel, "some_gpu", "9", "all_to_all", "half")
    assert half.arguments.tolist() == [[8, 2048]]
    int8 = collective_points(wheel, "some_gpu", "9", "all_to_all", "int8")
    assert int8.arguments.tolist() == [[8, 1024]]


def test_a_table_that_the_wheel_lacks_is_named(wheel: Wheel) -> None:
    with pytest.raises(ProfileError, match=r"the wheel has no .*gemm/lib/3/gemm_perf\.parquet"):
        gemm_points(wheel, "some_gpu", "bf16", ("lib/3",))
    with pytest.raises(ProfileError, match="the wheel has no aiconfigurator_core/systems/other"):
        wheel.system("other")
