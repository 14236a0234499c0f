"""The importer of the operator database: what it refuses, and what it reads from a wheel."""

import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.catalog.aiconfigurator import SELECTIONS, main
from benchmarks.catalog.aiconfigurator_rows import Wheel
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
