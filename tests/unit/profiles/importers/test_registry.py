"""One way in: every fixture is told by its content, and no broken file ends in another error."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.errors import ProfileError, UnknownNameError
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.registry import FORMATS, detect_format, format_names, import_profile
from meshwright.profiles.measurements import SwitchTree
from tests.draws import draws

FILES = Path(__file__).parents[1] / "fixtures" / "importers"
FORMAT_OF = {
    "nccl_tests": "nccl-tests",
    "topology/nccl": "nccl-topology",
    "topology/topo_": "nvidia-smi-topo",
    "topology/topology": "slurm-topology",
    "logs/megatron": "megatron-log",
    "logs/torchtitan": "torchtitan-log",
    "logs/deepspeed": "deepspeed-log",
    "logs/nanotron": "nanotron-log",
}
FIXTURES = sorted(str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file())


def format_of(fixture: str) -> str:
    return next(name for start, name in FORMAT_OF.items() if fixture.startswith(start))


def test_every_format_has_a_fixture_and_a_name() -> None:
    folders = {"wandb-run", "mlflow-run"}  # made by test_tracked_run.py
    assert {format_of(fixture) for fixture in FIXTURES} | folders == set(format_names()) == set(FORMATS)


@pytest.mark.parametrize("fixture", FIXTURES)
def test_every_fixture_is_told_by_its_content_and_read(fixture: str) -> None:
    assert detect_format(FILES / fixture) == format_of(fixture)
    assert import_profile(FILES / fixture) == import_profile(FILES / fixture, format_of(fixture))


@pytest.mark.parametrize("fixture", FIXTURES)
def test_no_fixture_is_large(fixture: str) -> None:
    assert (FILES / fixture).stat().st_size < 60_000


def test_a_format_that_nobody_knows_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean slurm-topology"):
        import_profile(FILES / "topology" / "topology_tree.conf", "slurm-topolgy")


def test_a_named_format_is_not_guessed() -> None:
    path = FILES / "topology" / "topology_tree.conf"
    assert isinstance(import_profile(path, "slurm-topology"), SwitchTree)
    with pytest.raises(ProfileError, match="expected a table of nccl-tests"):
        import_profile(path, "nccl-tests")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x80\x81\xff", "is not UTF-8 text"),
        (b"GPU0\0GPU1", "is a binary file"),
        (b"hello", "has none of the formats deepspeed-log, megatron-log"),
    ],
)
def test_a_file_of_nothing_known_says_why(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"^odd: ") as raised:
        import_profile(path)
    assert expected in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_fault_of_a_json_file_states_what_is_allowed_where_there_is_a_limit() -> None:
    with pytest.raises(ProfileError, match=r"^x.json: .*too large.* \(allowed: .+\)$"):
        ForeignFile(name="x.json", text=f'{{"size": {10**400}}}').json()
    with pytest.raises(ProfileError, match="is not a JSON object with entries"):
        ForeignFile(name="x.json", text="{}").mapping({}, "")
    with pytest.raises(ProfileError, match="is not a JSON object with entries"):
        ForeignFile(name="x.json", text="[1]").mapping([1], "")
    with pytest.raises(ProfileError) as unfinished:
        ForeignFile(name="x.json", text='{"size": ').json()
    assert "allowed" not in str(unfinished.value)


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"^nothing.log: no such file"):
        import_profile(tmp_path / "nothing.log")
    with pytest.raises(ProfileError, match="expected a W&B history"):
        import_profile(tmp_path)


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, bytes]:
    """A fixture with one or more places overwritten, cut out, doubled or cut off."""
    fixture = draw(st.sampled_from(FIXTURES))
    content = (FILES / fixture).read_bytes()
    pieces = st.sampled_from(
        [
            b"",
            b"-1",
            b"1e999",
            b"99999999999999999999",
            b"NaN",
            b"null",
            b"\n",
            b",",
            b"|",
            b'"',
            b"}",
            b"<",
        ]
    )
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.integers(0, 12)))
        content = content[:at] + draw(pieces | st.binary(max_size=4)) + content[end:]
    if draw(st.booleans()):
        content = content[: draw(st.integers(0, len(content)))]
    return fixture, content


@settings(max_examples=draws(80), deadline=None)
@given(broken(), st.booleans())
def test_a_broken_file_is_read_or_refused_and_nothing_else(case: tuple[str, bytes], named: bool) -> None:
    fixture, content = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(fixture).name
        path.write_bytes(content)
        try:
            import_profile(path, format_of(fixture) if named else None)
        except ProfileError as error:
            assert str(error).startswith(path.name)  # noqa: PT017 (most broken files are refused, not all)
            assert len(str(error)) < 500  # noqa: PT017
