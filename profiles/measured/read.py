"""Reads a measured profile's file strictly: every fault is named, nothing unknown is passed over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from meshwright.profiles.adapters import FUSED_TARGETS
from meshwright.profiles.documents import FILE, read_json, without_version
from meshwright.profiles.errors import InvalidProblemError, ProfileError, faults_as
from meshwright.profiles.measured.profile import (
    FORMAT,
    VERSION,
    Machine,
    MeasuredProfile,
    Measurement,
    Session,
    Skipped,
    Subject,
    Timing,
)
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.profiles.reading import FieldReader, PartRules, values_of

T = TypeVar("T")
MAX_ENTRIES = 200_000  # measurements, or sessions, or tasks of one file
MAX_SECONDS = 1e6
MAX_FIGURE = 1e24  # FLOPs or bytes of one operation
MAX_SIZE = 2**62
NEVER_ZERO = ("micro_batch_size", "tensor_parallel_size")  # sizes that times are drawn over, in logarithms
_TIMES = dict.fromkeys(("median_s", "p10_s", "p90_s", "host_s"), (0.0, MAX_SECONDS))
_RULES = PartRules(
    limits={
        Subject: {"lora_rank": (0, 2**31 - 1)},
        Machine: {"memory_bytes": (0, MAX_SIZE)},
        Session: {},
        Skipped: {},
        Timing: _TIMES,
        Measurement: {
            "work_flops": (0.0, MAX_FIGURE), "moved_bytes": (0.0, MAX_FIGURE),
            "peak_memory_bytes": (0, MAX_SIZE), "activation_bytes": (0, MAX_SIZE),
        },
    },
    lists=lambda reader, name: tuple(reader.texts(name)),
)  # fmt: skip


def read_measured_profile(path: Path) -> MeasuredProfile:
    """Read the measured profile in a file.

    Raises:
        ProfileError: the file cannot be read or is not a measured profile; the first faults are named.
    """
    try:
        with path.open("rb") as file:
            return measured_profile_from_json(without_version(read_json(file.read(FILE.max_bytes + 1))))
    except OSError as fault:
        raise ProfileError(f"{path.name}: {fault.strerror or 'cannot be read'}") from None
    except InvalidProblemError as fault:
        raise ProfileError(f"{path.name} is not a measured profile: {fault}") from None


def measured_profile_from_json(raw: object) -> MeasuredProfile:
    """Return the measured profile that ``MeasuredProfile.to_json`` wrote.

    Raises:
        InvalidProblemError: missing, wrong or unknown fields, each with its JSON pointer.
    """
    reader = FieldReader(raw, "")
    if reader.value("format") != FORMAT or reader.value("version") != VERSION:
        raise InvalidProblemError.of("/format", f"must be {FORMAT}, version {VERSION}")
    profile = MeasuredProfile(
        subject=_subject(_object(reader, "subject")),
        machine=_part(_object(reader, "machine"), Machine),
        sessions=tuple(_part(one, Session) for one in reader.children("sessions", high=MAX_ENTRIES)),
        completed=tuple(reader.texts("completed")),
        skipped=tuple(_part(one, Skipped) for one in _entries(reader, "skipped")),
        measurements=tuple(_measurement(one) for one in _entries(reader, "measurements")),
    )
    reader.refuse_unknown()
    reader.finish()
    return profile


def _object(reader: FieldReader, name: str) -> FieldReader:
    return FieldReader(reader.value(name), f"{reader.pointer}/{name}", reader.faults)


def _entries(reader: FieldReader, name: str) -> list[FieldReader]:
    return [] if reader.value(name) == [] else reader.children(name, high=MAX_ENTRIES)


def _part(reader: FieldReader, part: type[T], **given: object) -> T:
    """Return a part of the file; those of its fields that are ``given`` have been read."""
    values = values_of(reader, part, _RULES, {}, given)
    reader.refuse_unknown()
    return part(**{**values, **given})


def _subject(reader: FieldReader) -> Subject:
    raw = reader.value("model")
    with faults_as(lambda fault: replace(fault, pointer=f"/subject{fault.pointer}")):
        model = model_from_shape(raw if isinstance(raw, dict) else {})
    subject = _part(reader, Subject, model=model)
    if unknown := [name for name in subject.lora_targets if name not in FUSED_TARGETS]:
        reader.fault("lora_targets", f'has "{unknown[0][:40]}"', allowed=", ".join(FUSED_TARGETS))
    return subject


def _measurement(reader: FieldReader) -> Measurement:
    sizes, timing = _object(reader, "shape"), _object(reader, "timing")
    shape = {
        name: sizes.integer(name, low=int(name in NEVER_ZERO), high=MAX_SIZE) for name in sizes.names()
    }
    times = values_of(timing, Timing, _RULES, {})
    timing.refuse_unknown()
    if not times["p10_s"] <= times["median_s"] <= times["p90_s"]:
        timing.fault("median_s", "must lie between p10_s and p90_s")
        times |= dict.fromkeys(("p10_s", "median_s", "p90_s"), 0.0)
    return _part(reader, Measurement, shape=shape, timing=Timing(**times))
