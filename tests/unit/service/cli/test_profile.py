"""``meshwright profile``: wrong options end with one message, before torch is looked for."""

from pathlib import Path

import pytest
from typer.exceptions import TyperException
from typer.testing import CliRunner

from meshwright.service.cli.main import app

OPTIONS = {"--model": "llama-3.1-8b", "--seq-length": "128", "--tp": "1,2"}


def refused(out: Path, given: dict[str, str]) -> str:
    words = [word for option in ({**OPTIONS, **given, "--out": str(out)}).items() for word in option]
    fault = CliRunner().invoke(app, ["profile", "--quick", *words], standalone_mode=False).exception
    return fault.format_message() if isinstance(fault, TyperException) else str(fault)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"--model": "lama-3.1-8b"}, 'model.name: unknown "lama-3.1-8b". Did you mean llama-3.1-8b'),
        (
            {"--seq-length": "0"},
            "Invalid value for '--seq-length': Input should be greater than or equal to 1",
        ),
        ({"--tp": "1,x"}, '--tp: "1,x" is not a list of sizes'),
        ({"--tp": ""}, '--tp: "" is not a list of sizes'),
        ({"--tp": "65537"}, '--tp: "65537" is not a list of sizes'),
        ({"--tp": "3"}, "--tp: 3 does not divide num_attention_heads = 32"),
        ({"--micro-batch": "0"}, '--micro-batch: "0" is not a list of sizes'),
        ({"--micro-batch": "9" * 5000}, "--micro-batch: "),
        ({"--only": "gemm,atention"}, '--only: unknown "atention". Did you mean attention'),
        ({"--only": ""}, '--only: unknown ""'),
        (
            {"--dtype": "fp8"},
            "Invalid value for '--dtype': Value error, 'fp8' is not one of 'bf16', 'fp16', 'fp32'",
        ),
        (
            {"--device": "tpu"},
            "Invalid value for '--device': Value error, 'tpu' is not one of 'auto', 'cpu', 'cuda'",
        ),
        ({"--budget-s": "0"}, "--budget-s: 0 is not a limit"),
        ({"--budget-s": "nan"}, "--budget-s: nan is not a limit"),
        ({"--ep": "2"}, "--ep: this model has no experts"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, given: dict[str, str], message: str) -> None:
    said = refused(tmp_path / "p.json", given)
    assert said.startswith(message)
    assert len(said) < 400


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    assert "Is a directory" in refused(tmp_path, {})
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(tmp_path / "file" / "p.json", {})
