"""The JSON schema (draft 2020-12) of a measured profile, for programs that read it without this product.

It is written by hand, with names and limits of texts that the reader has, too; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from meshwright.profiles.adapters import FUSED_TARGETS
from meshwright.profiles.measured.profile import FORMAT, VERSION, MeasuredGroup
from meshwright.profiles.reading import MAX_TEXT

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
