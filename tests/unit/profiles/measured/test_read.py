"""The file of a measured profile: what is written is read back, what is broken is named."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from benchmarks.reference.measured_schema import measured_profile_schema
from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.measured.layers import MeasuredLayers
from meshwright.profiles.measured.profile import Timing, write_measured_profile
from meshwright.profiles.measured.read import (
    measured_profile_from_json,
    read_measured_profile,
)
from tests.problems.measured_profiles import measured_profile, measurement

FORWARD = measurement("qkv", "forward", 1e-3, m=32, n=128, k=64)
LAYER = replace(FORWARD, group="layer", work_flops=1e12, peak_memory_bytes=2**34, activation_bytes=2**20)
PROFILE = measured_profile(FORWARD, LAYER)
RAW: dict[str, Any] = json.loads(json.dumps(PROFILE.to_json()))
VALIDATOR = Draft202012Validator(measured_profile_schema())
OPTIONAL = {"cuda", "driver", "host_s", "command", "device_state", "work_flops", "moved_bytes"}
OPTIONAL |= {
    "peak_memory_bytes",
    "activation_bytes",
    "with_collectives",
    "gpu",
    "lora_rank",
    "lora_targets",
}


def paths(raw: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where every named field stands; what a model or a shape holds is free."""
    if isinstance(raw, dict) and path[-1:] not in {("model",), ("shape",)}:
        for name, value in raw.items():
            yield (*path, name)
            yield from paths(value, (*path, name))
    if isinstance(raw, list):
        for index, value in enumerate(raw):
            yield from paths(value, (*path, index))


def changed(path: tuple[str | int, ...], **fields: object) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    parent: Any = raw
    for part in path[:-1]:
        parent = parent[part]
    if "value" in fields:
        parent[path[-1]] = fields["value"]
    else:
        del parent[path[-1]]
    return raw


def is_read(raw: object) -> bool:
    try:
        measured_profile_from_json(raw)
    except InvalidProblemError:
        return False
    return True


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_measured_profile(tmp_path / "p.json", PROFILE)
    assert read_measured_profile(tmp_path / "p.json") == PROFILE
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def test_the_schema_is_a_schema_and_holds_for_a_written_file() -> None:
    Draft202012Validator.check_schema(measured_profile_schema())
    assert list(VALIDATOR.iter_errors(RAW)) == []


@pytest.mark.parametrize("path", list(paths(RAW)), ids=lambda path: "/".join(map(str, path)))
def test_reader_and_schema_agree_on_which_fields_are_needed(path: tuple[str | int, ...]) -> None:
    raw = changed(path)
    assert is_read(raw) == VALIDATOR.is_valid(raw) == (path[-1] in OPTIONAL)


@pytest.mark.parametrize("path", list(paths(RAW)), ids=lambda path: "/".join(map(str, path)))
@pytest.mark.parametrize("value", [-1, [[]], "x" * 201], ids=["negative", "list", "long"])
def test_reader_and_schema_refuse_the_same_nonsense(path: tuple[str | int, ...], value: object) -> None:
    raw = changed(path, value=value)
    assert not is_read(raw)
    assert not VALIDATOR.is_valid(raw)


def test_an_unknown_field_is_refused_with_its_place() -> None:
    raw = changed(("measurements", 1, "timing", "mean_s"), value=1.0)
    with pytest.raises(InvalidProblemError, match=r"measurements\.1\.timing\.mean_s: unknown field"):
        measured_profile_from_json(raw)
    assert not VALIDATOR.is_valid(raw)


def test_percentiles_out_of_order_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"timing\.median_s: must lie between"):
        measured_profile_from_json(changed(("measurements", 0, "timing", "p10_s"), value=1.0))
    with pytest.raises(ProfileError, match="p10_s <= median_s"):
        Timing(median_s=1.0, p10_s=2.0, p90_s=3.0, repeats=3)


@pytest.mark.parametrize(
    "text",
    ["", "[", '{"a": NaN}', "[" * 100_000, "null", "[]", "{}", "\x00", '{"format": "x", "version": 1}'],
)
def test_what_is_no_measured_profile_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"p\.json is not a measured profile"):
        read_measured_profile(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"p\.json: No such file"):
        read_measured_profile(tmp_path / "p.json")


def test_measurements_are_found_by_operator_pass_and_any_of_their_sizes() -> None:
    twice = replace(FORWARD, shape={"m": 64, "n": 128, "k": 64})
    profile = measured_profile(FORWARD, twice, replace(FORWARD, kind="input_gradient"))
    assert profile.find("gemm", "qkv", n=128) == (FORWARD, twice)
    assert profile.find("gemm", "qkv", m=64) == (twice,)
    assert profile.find("gemm", "qkv", "input_gradient", m=64) == ()
    assert profile.find("attention", "qkv") == ()


def test_spread_is_the_range_of_the_middle_four_fifths_over_the_median() -> None:
    # (1.3 - 0.9) / 1.0 = 0.4
    assert Timing(median_s=1.0, p10_s=0.9, p90_s=1.3, repeats=9).spread == pytest.approx(0.4)
    assert Timing(median_s=0.0, p10_s=0.0, p90_s=0.0, repeats=1).spread == 0


@pytest.mark.parametrize("size", ["micro_batch_size", "tensor_parallel_size"])
def test_a_time_of_no_sequence_or_no_rank_is_refused(size: str) -> None:
    # both are taken in logarithms: a zero would make every price of the profile NaN
    raw = changed(("measurements", 0, "shape", size), value=0)
    with pytest.raises(InvalidProblemError) as caught:
        measured_profile_from_json(raw)
    assert caught.value.errors[0].pointer == f"/measurements/0/shape/{size}"


def test_adding_gradients_lengthens_a_timed_backward_pass_by_the_bytes_that_a_framework_moves() -> None:
    passes = {"forward": 1e-3, "backward": 2e-3, "accumulate": 1e-3}
    timed = [
        replace(
            measurement("dense_layer", kind, seconds, tensor_parallel_size=1, micro_batch_size=1),
            group="layer",
        )
        for kind, seconds in passes.items()
    ]
    profile = measured_profile(*timed)
    # adding moves 10 bytes a weight in 1 ms; a fused addition moves 6 of them, FSDP2 none
    for moved_bytes, backward_s in ((10.0, 3e-3), (6.0, 2.6e-3), (0.0, 2e-3)):
        layers = MeasuredLayers.of(profile, accumulation_bytes=moved_bytes)
        assert layers is not None
        assert layers.times[0].backward_s == pytest.approx(backward_s)
