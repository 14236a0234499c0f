"""``meshwright profile``: wrong options end with one message, before torch is looked for."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.profile import ProfileRequest, run_profile


def request(**given: object) -> ProfileRequest:
    options: dict[str, object] = {
        "model": "llama-3.1-8b",
        "seq_length": 128,
        "tensor_parallel_sizes": "1,2",
        "micro_batch_sizes": "1",
        "expert_parallel_size": 1,
        "lora_rank": 0,
        "lora_targets": "",
        "only": None,
        "dtype": "bf16",
        "device": "auto",
        "budget_s": None,
        "quick": True,
    }
    return ProfileRequest(**{**options, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "lama-3.1-8b"}, 'model.name: unknown "lama-3.1-8b". Did you mean llama-3.1-8b'),
        ({"seq_length": 0}, "--seq-length: is out of range"),
        ({"tensor_parallel_sizes": "1,x"}, '--tp: "1,x" is not a list of sizes'),
        ({"tensor_parallel_sizes": ""}, '--tp: "" is not a list of sizes'),
        ({"tensor_parallel_sizes": "3"}, "--tp: 3 does not divide num_attention_heads = 32"),
        ({"micro_batch_sizes": "0"}, '--micro-batch: "0" is not a list of sizes'),
        ({"micro_batch_sizes": "9" * 5000}, "--micro-batch: "),
        ({"only": "gemm,atention"}, '--only: unknown "atention". Did you mean attention'),
        ({"only": ""}, '--only: unknown ""'),
        ({"dtype": "fp8"}, '--dtype: unknown "fp8"'),
        ({"device": "tpu"}, '--device: unknown "tpu"'),
        ({"budget_s": 0.0}, "--budget-s: must be a positive number"),
        ({"budget_s": float("nan")}, "--budget-s: must be a positive number"),
        ({"expert_parallel_size": 2}, "--ep: this model has no experts"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidProblemError) as fault:
        run_profile(request(**given), tmp_path / "p.json")
    assert str(fault.value).startswith(message)
    assert len(str(fault.value)) < 400


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match=r"--out: .* is a folder"):
        run_profile(request(), tmp_path)
    with pytest.raises(InvalidProblemError, match=r"--out: .* is not a folder"):
        run_profile(request(), tmp_path / "gone" / "p.json")
