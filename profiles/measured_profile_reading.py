"""Reads a measured profile's file strictly: every fault is named, nothing unknown is passed over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from profiles.documents import FILE, read_json
from profiles.errors import InvalidProblemError, ProfileError
from profiles.measured_profile import (
    FORMAT,
    MEASURED_GROUPS,
    VERSION,
    Machine,
    MeasuredGroup,
    MeasuredProfile,
    Measurement,
    Session,
    Skipped,
    Subject,
    Timing,
)
from profiles.model import ModelSpec
from profiles.reading import FieldReader
from profiles.shape import model_from_shape

MAX_ENTRIES = 200_000  # measurements, or sessions, or tasks of one file
MAX_SECONDS = 1e6
MAX_FIGURE = 1e24  # FLOPs or bytes of one operation
MAX_SIZE = 2**62
NEVER_ZERO = ("micro_batch_size", "tensor_parallel_size")  # sizes that times are drawn over, in logarithms
DTYPES = ("bf16", "fp16", "fp32")
KINDS = ("cuda", "cpu")


def read_measured_profile(path: Path) -> MeasuredProfile:
    """The measured profile in a file.

    Raises:
        ProfileError: the file cannot be read or is no measured profile; the first faults are named.
    """
    try:
        with path.open("rb") as file:
            return measured_profile_from_json(read_json(file.read(FILE.max_bytes + 1)))
    except OSError as fault:
        raise ProfileError(f"{path.name}: {fault.strerror or 'cannot be read'}") from None
    except InvalidProblemError as fault:
        raise ProfileError(f"{path.name} is no measured profile: {fault}") from None


def measured_profile_from_json(raw: object) -> MeasuredProfile:
    """The measured profile that ``MeasuredProfile.to_json`` wrote.

    Raises:
        InvalidProblemError: missing, wrong or unknown fields, each with its JSON pointer.
    """
    reader = FieldReader(raw, "")
    if reader.value("format") != FORMAT or reader.value("version") != VERSION:
        raise InvalidProblemError.of("/format", f"must be {FORMAT}, version {VERSION}")
    profile = MeasuredProfile(
        subject=_subject(_object(reader, "subject")),
        machine=_machine(_object(reader, "machine")),
        sessions=tuple(_session(one) for one in reader.children("sessions", high=MAX_ENTRIES)),
        completed=tuple(reader.texts("completed")),
        skipped=tuple(_skipped(one) for one in _entries(reader, "skipped")),
        measurements=tuple(_measurement(one) for one in _entries(reader, "measurements")),
    )
    reader.refuse_unknown()
    reader.finish()
    return profile


def _object(reader: FieldReader, name: str) -> FieldReader:
    """The reader of a nested object that must be there."""
    return FieldReader(reader.value(name), f"{reader.pointer}/{name}", reader.faults)


def _entries(reader: FieldReader, name: str) -> list[FieldReader]:
    """The objects of a list that may be empty."""
    return [] if reader.value(name) == [] else reader.children(name, high=MAX_ENTRIES)


def _subject(reader: FieldReader) -> Subject:
    """The model has faults of its own, which are raised at once."""
    model = reader.value("model")
    subject = Subject(
        model=_model(model if isinstance(model, dict) else {}),
        seq_length=reader.integer("seq_length"),
        dtype=_required_choice(reader, "dtype", DTYPES),
        expert_parallel_size=reader.integer("expert_parallel_size"),
        quick=_required_flag(reader, "quick"),
        with_collectives=reader.flag("with_collectives", default=False),
    )
    reader.refuse_unknown()
    return subject


def _model(raw: dict[str, object]) -> ModelSpec:
    """The model that was measured; its faults point into the file."""
    try:
        return model_from_shape(raw)
    except InvalidProblemError as fault:
        errors = [replace(error, pointer=f"/subject{error.pointer}") for error in fault.errors]
        raise InvalidProblemError(errors) from None


def _machine(reader: FieldReader) -> Machine:
    machine = Machine(
        kind=_required_choice(reader, "kind", KINDS),
        device=reader.text("device"),
        memory_bytes=reader.integer("memory_bytes", low=0, high=MAX_SIZE),
        host_cpu=reader.text("host_cpu"),
        torch=reader.text("torch"),
        cuda=_optional_text(reader, "cuda"),
        driver=_optional_text(reader, "driver"),
        threads=reader.optional_integer("threads"),
        gpu=_optional_text(reader, "gpu"),
    )
    reader.refuse_unknown()
    return machine


def _session(reader: FieldReader) -> Session:
    session = Session(
        started_at=reader.text("started_at"),
        command=reader.text("command", default=""),
        meshwright=reader.text("meshwright"),
        device_state=reader.text("device_state", default=""),
    )
    reader.refuse_unknown()
    return session


def _skipped(reader: FieldReader) -> Skipped:
    skipped = Skipped(task=reader.text("task"), reason=reader.text("reason"))
    reader.refuse_unknown()
    return skipped


def _measurement(reader: FieldReader) -> Measurement:
    sizes = _object(reader, "shape")
    measurement = Measurement(
        task=reader.text("task"),
        group=_group(reader),
        operator=reader.text("operator"),
        kind=reader.text("kind"),
        shape={
            name: sizes.integer(name, low=int(name in NEVER_ZERO), high=MAX_SIZE) for name in sizes.names()
        },
        timing=_timing(_object(reader, "timing")),
        work_flops=reader.number("work_flops", low=0, high=MAX_FIGURE, default=0.0),
        moved_bytes=reader.number("moved_bytes", low=0, high=MAX_FIGURE, default=0.0),
        peak_memory_bytes=reader.optional_integer("peak_memory_bytes", low=0, high=MAX_SIZE),
        activation_bytes=reader.optional_integer("activation_bytes", low=0, high=MAX_SIZE),
    )
    reader.refuse_unknown()
    return measurement


def _timing(reader: FieldReader) -> Timing:
    names = ("p10_s", "median_s", "p90_s")
    p10_s, median_s, p90_s = (reader.number(name, low=0, high=MAX_SECONDS) for name in names)
    if not p10_s <= median_s <= p90_s:
        reader.fault("median_s", "must lie between p10_s and p90_s")
        p10_s = p90_s = median_s
    host_s = (
        reader.number("host_s", low=0, high=MAX_SECONDS) if reader.value("host_s") is not None else None
    )
    repeats = reader.integer("repeats")
    reader.refuse_unknown()
    return Timing(median_s=median_s, p10_s=p10_s, p90_s=p90_s, repeats=repeats, host_s=host_s)


def _group(reader: FieldReader) -> MeasuredGroup:
    word = reader.value("group")
    for group in MEASURED_GROUPS:
        if group == word:
            return group
    reader.fault("group", "is unknown", allowed=", ".join(MEASURED_GROUPS))
    return MEASURED_GROUPS[0]


def _required_flag(reader: FieldReader, name: str) -> bool:
    if not reader.has(name):
        reader.fault(name, "is required")
    return reader.flag(name, default=False)


def _required_choice(reader: FieldReader, name: str, allowed: tuple[str, ...]) -> str:
    if not reader.has(name):
        reader.fault(name, "is required")
    return reader.choice(name, allowed, default=allowed[0])


def _optional_text(reader: FieldReader, name: str) -> str | None:
    return reader.text(name) if reader.has(name) else None
