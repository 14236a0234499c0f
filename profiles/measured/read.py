"""Reads a measured profile's file strictly: every fault is named, nothing unknown is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from meshwright.profiles.adapters import FUSED_TARGETS
from meshwright.profiles.documents import FILE, read_json
from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.measured.profile import (
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
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.profiles.reading import MAX_TEXT, FieldReader

MAX_ENTRIES = 200_000  # measurements, or sessions, or tasks of one file
MAX_SECONDS = 1e6
MAX_FIGURE = 1e24  # FLOPs or bytes of one operation
MAX_SIZE = 2**62
NEVER_ZERO = ("micro_batch_size", "tensor_parallel_size")  # sizes that times are drawn over, in logarithms
DTYPES = ("bf16", "fp16", "fp32")
KINDS = ("cuda", "cpu")


def read_measured_profile(path: Path) -> MeasuredProfile:
    """Read the measured profile in a file.

    Raises:
        ProfileError: the file cannot be read or is not a measured profile; the first faults are named.
    """
    try:
        with path.open("rb") as file:
            return measured_profile_from_json(read_json(file.read(FILE.max_bytes + 1)))
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
    return FieldReader(reader.value(name), f"{reader.pointer}/{name}", reader.faults)


def _entries(reader: FieldReader, name: str) -> list[FieldReader]:
    return [] if reader.value(name) == [] else reader.children(name, high=MAX_ENTRIES)


def _subject(reader: FieldReader) -> Subject:
    model = reader.value("model")
    subject = Subject(
        model=_model(model if isinstance(model, dict) else {}),
        seq_length=reader.integer("seq_length"),
        dtype=_required_choice(reader, "dtype", DTYPES),
        expert_parallel_size=reader.integer("expert_parallel_size"),
        quick=_required_flag(reader, "quick"),
        with_collectives=reader.flag("with_collectives", default=False),
        lora_rank=reader.integer("lora_rank", low=0) if reader.has("lora_rank") else 0,
        lora_targets=tuple(reader.texts("lora_targets")) if reader.has("lora_targets") else (),
    )
    if unknown := [name for name in subject.lora_targets if name not in FUSED_TARGETS]:
        reader.fault("lora_targets", f'has "{unknown[0][:40]}"', allowed=", ".join(FUSED_TARGETS))
    reader.refuse_unknown()
    return subject


def _model(raw: dict[str, object]) -> ModelSpec:
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


# --------------------------------------------------------------------------------------------------
# The JSON schema (draft 2020-12) of a measured profile, for whoever reads it without this product.


Schema = dict[str, object]

_TEXT: Schema = {"type": "string", "maxLength": MAX_TEXT}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_BYTES: Schema = {"type": "integer", "minimum": 0}
_AMOUNT: Schema = {"type": "number", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}


def measured_profile_schema() -> Schema:
    """Return the schema of the whole file; only the reader checks that percentiles are in order."""
    parts: dict[str, Schema] = {
        "format": {"const": FORMAT},
        "version": {"const": VERSION},
        "subject": _object_schema(_SUBJECT, optional=_SUBJECT_OPTIONAL),
        "machine": _object_schema(_MACHINE, optional=("cuda", "driver", "threads", "gpu")),
        "sessions": {
            "type": "array",
            "minItems": 1,
            "items": _object_schema(_SESSION, optional=_SESSION_OPTIONAL),
        },
        "completed": {"type": "array", "items": _TEXT},
        "skipped": {"type": "array", "items": _object_schema({"task": _TEXT, "reason": _TEXT})},
        "measurements": {
            "type": "array",
            "items": _object_schema(_MEASUREMENT, optional=_MEASUREMENT_OPTIONAL),
        },
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_object_schema(parts)}


def _object_schema(properties: Mapping[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


_SUBJECT: dict[str, Schema] = {
    "model": {"type": "object", "description": "a model's shape, with ModelSpec's field names"},
    "seq_length": _COUNT,
    "dtype": {"enum": ["bf16", "fp16", "fp32"]},
    "expert_parallel_size": _COUNT,
    "quick": _FLAG,
    "with_collectives": _FLAG,
    "lora_rank": _BYTES,
    "lora_targets": {"type": "array", "items": {"enum": list(FUSED_TARGETS)}},
}
_SUBJECT_OPTIONAL = ("with_collectives", "lora_rank", "lora_targets")
_MACHINE: dict[str, Schema] = {
    "kind": {"enum": ["cuda", "cpu"]},
    "device": _TEXT,
    "memory_bytes": _BYTES,
    "host_cpu": _TEXT,
    "torch": _TEXT,
    "cuda": _TEXT,
    "driver": _TEXT,
    "threads": _COUNT,
    "gpu": _TEXT,
}
_SESSION: dict[str, Schema] = {
    "started_at": _TEXT,
    "command": _TEXT,
    "meshwright": _TEXT,
    "device_state": _TEXT,
}
_SESSION_OPTIONAL = ("command", "device_state")
_TIMING: dict[str, Schema] = {
    "median_s": _AMOUNT,
    "p10_s": _AMOUNT,
    "p90_s": _AMOUNT,
    "repeats": _COUNT,
    "host_s": _AMOUNT,
}
_MEASUREMENT: dict[str, Schema] = {
    "task": _TEXT,
    "group": {"enum": list(get_args(MeasuredGroup))},
    "operator": _TEXT,
    "kind": _TEXT,
    "shape": {"type": "object", "additionalProperties": _BYTES},
    "timing": _object_schema(_TIMING, optional=("host_s",)),
    "work_flops": _AMOUNT,
    "moved_bytes": _AMOUNT,
    "peak_memory_bytes": _BYTES,
    "activation_bytes": _BYTES,
}
_MEASUREMENT_OPTIONAL = ("work_flops", "moved_bytes", "peak_memory_bytes", "activation_bytes")
