"""The shape of a request: names, types and ranges; one schema for the API and the command line.

Made from the rows of ``meshwright.service.requests.fields``. What depends on more than one field is checked
in ``meshwright.service.requests.checks``; models and clusters are read by ``profiles``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel, Field, JsonValue, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from meshwright.profiles.adapters import ALL_LINEAR, LORA_TARGETS, TRAINED_MODULES, TrainedModule
from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.documents import MAX_ERRORS, pointer, shown
from meshwright.profiles.errors import REQUIRED, UNKNOWN_FIELD, FieldError
from meshwright.profiles.frameworks import allowed_values, framework_names, option_names
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.reading import stated_number
from meshwright.profiles.samples import Reference, SampleKind
from meshwright.profiles.sequences import BATCHINGS
from meshwright.profiles.storage import BasePrecision
from meshwright.profiles.towers import FROZEN_PARTS, FrozenPart
from meshwright.service.requests.fields import FIELDS, MAX_NAMES, MAX_SEQ_LENGTH, OPTIONS, RequestField
from meshwright.service.requests.numbers import written_out
from meshwright.service.requests.parts import Batches, NodeCounts, Part, ReliabilityRequest, long_name
from meshwright.solver.configuration import VARIABLES, WORDS
from meshwright.solver.problem import ALLOWED, Certify, Objective
from meshwright.solver.space.expressions import MAX_LENGTH
from meshwright.solver.space.request_rules import NAMES

MAX_VALUES = 1024  # forbidden values of one variable


def _one_of(words: Iterable[str]) -> Any:  # noqa: ANN401 - a type
    return Literal[tuple(words)]


def _some_of(words: Iterable[str]) -> Any:  # noqa: ANN401 - a type
    return GenericAlias(list, _one_of(words))


Value = bool | int | str
Split = Annotated[list[int], Field(min_length=1, max_length=MAX_VALUES)]

# The types that rows name.
TYPES: dict[str, object] = {
    "NamedObject": dict[str, JsonValue],
    "Object": dict[str, JsonValue],
    "Overrides": dict[str, bool | int | float | str],
    "Batches": Batches,
    "Optimizer": _one_of(OPTIMIZERS),
    "LoraTargets": Annotated[
        _some_of((*LORA_TARGETS, *ALL_LINEAR)), Field(min_length=1, max_length=len(LORA_TARGETS) + 1)
    ],
    "BasePrecision": BasePrecision,
    "SampleKind": SampleKind,
    "Reference": Reference,
    "ImageTokens": Annotated[int, Field(ge=1, le=MAX_SEQ_LENGTH)]
    | Annotated[dict[str, int], Field(min_length=1, max_length=MAX_NAMES)],
    "FrozenParts": Annotated[list[FrozenPart], Field(max_length=len(FROZEN_PARTS))],
    "TrainedModules": Annotated[list[TrainedModule], Field(max_length=len(TRAINED_MODULES))],
    "Certify": Certify,
    "Objective": Objective,
    "NodeCounts": NodeCounts,
    "ReliabilityRequest": ReliabilityRequest,
    "Pins": dict[str, Value | Split],
    "Prohibitions": dict[str, Annotated[list[Value], Field(max_length=MAX_VALUES)]],
    "Bounds": dict[str, Annotated[list[int], Field(min_length=2, max_length=2)]],
    "Allowed": _some_of(ALLOWED),
    "Differ": Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_LENGTH)]], Field(max_length=MAX_NAMES)
    ],
    "Constraints": list[Annotated[str, Field(min_length=1, max_length=MAX_LENGTH)]],
}


def _definition(row: RequestField) -> tuple[Any, Any]:
    """Return the type and the Field of a row, as ``create_model`` takes them."""
    kind: Any = TYPES[row.type] if isinstance(row.type, str) else row.type
    if row.default is None:
        kind = kind | None
    known: dict[str, Any] = {**({"description": row.about} if row.about else {}), **row.limits}
    if isinstance(row.default, type):
        return kind, Field(default_factory=row.default, validate_default=True, **known)
    return kind, Field(default=row.default, **known)


def _part(name: str, section: str, about: str) -> type[Part]:
    rows = {row.name: _definition(row) for row in FIELDS if row.section == section and row.type}
    return create_model(name, __base__=Part, __module__=__name__, __doc__=about, **rows)  # type: ignore[call-overload, no-any-return]


WorkloadRequest = TYPES["WorkloadRequest"] = _part(
    "WorkloadRequest", "workload", "The work of one optimizer step."
)
SearchRequest = TYPES["SearchRequest"] = _part("SearchRequest", "search", "Limits of the search.")
ProblemRequest = _part("ProblemRequest", "", "One question put to the planner.")

_KINDS = {
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
    "missing": REQUIRED,
}


# Of words that are read as values, such as those of a query: what is wrong with this one.
_WORDS = {
    "float_parsing": "is not a number",
    "finite_number": "is not a finite number",
    "int_parsing": "is not an integer",
    "int_parsing_size": "is out of range",
    "bool_parsing": "is neither true nor false",
    "string_pattern_mismatch": "is not such a name",
    "string_too_long": "is too long",
    "string_too_short": "is empty",
}
_OF_A_RANGE = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})
_PINNED_SPLIT = ("search", "pin", "stage_layers")  # in addition to pins that are one value


def field_errors(fault: ValidationError, root: type[BaseModel] | None = None) -> list[FieldError]:
    """Return every fault pydantic found, in the planner's words; one entry per field.

    Args:
        fault: what pydantic found.
        root: the shape of what was read; a problem's by default.
    """
    found = dict[str, tuple[str, FieldError]]()
    for detail in fault.errors(include_url=False):
        error, kind = field_error(detail, root or ProblemRequest), detail["type"]
        before, _ = found.setdefault(error.pointer, (kind, error))
        if before.endswith("_type") and kind in _OF_A_RANGE:  # of a range, which is not a list
            found[error.pointer] = kind, error
        if len(found) == MAX_ERRORS:
            break
    return [error for _, error in found.values()]


def _message(detail: ErrorDetails, where: Sequence[int | str]) -> str:
    if where == _PINNED_SPLIT:
        return "must be a list of layers, each an integer"
    of_values = where[:2] in {("search", "pin"), ("search", "forbid")}
    if of_values and detail["type"].startswith(("bool", "int", "string", "list")):
        return "must be an integer or a word"
    if where == ("search", "num_nodes"):
        return "must be a list or a range (min, max). One number stands in cluster.num_nodes"
    if detail["type"] in _WORDS:
        return f'"{shown(str(detail["input"]))}" {_WORDS[detail["type"]]}'
    return _KINDS.get(detail["type"], detail["msg"])


def with_range(error: FieldError) -> FieldError:
    """Return a fault of a request's field with the range of the field, if it is a number."""
    where = _location(tuple(error.pointer.split("/")[1:]))
    return replace(error, allowed=_range_of(where, ProblemRequest) or error.allowed)


def fault_of_value(detail: ErrorDetails, path: str, choices: Sequence[str]) -> FieldError:
    """Return what is wrong with a word that states one value.

    Args:
        detail: What pydantic found.
        path: Field of a request that it states; empty if none.
        choices: Allowed words; empty allows any.
    """
    where = tuple(path.split(".")) if path else ("value",)
    if choices and isinstance(detail["input"], str):
        return _unknown_word(where, detail["input"], choices)
    return field_error({**detail, "loc": where}, ProblemRequest)


def field_error(detail: ErrorDetails, root: type[BaseModel]) -> FieldError:
    """Return one of pydantic's error records, of something of the shape ``root``, as a FieldError."""
    where = _location(detail["loc"])
    at, kind, value = pointer(*where), detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_field(where, root)
    if kind == "literal_error":
        named = where[:-1] if isinstance(where[-1], int) else where
        annotation = _owner(named, root).model_fields[str(named[-1])].annotation
        return _unknown_word(where, value if isinstance(value, str) else "", words_of(annotation))
    if kind in _OF_A_RANGE:
        message = f"{shown(str(value))} is out of range"
        return FieldError(
            pointer=at,
            message=message,
            allowed=_range_of(where, root),
            nearest=str(next(iter(context.values()))) if kind.endswith("equal") else None,
        )
    if kind in {"too_short", "too_long"}:
        message, size = "is empty", "at least 1 entry"
        if where[:2] == ("search", "bounds"):
            message, size = "must hold exactly two numbers", "[lowest, highest]"
        elif kind == "too_long":
            message, size = "holds too much", f"up to {context['max_length']} entries"
        return FieldError(pointer=at, message=message, allowed=size)
    if where[:2] == _OPTIONS and len(where) > len(_OPTIONS):
        return _option_error(where, value)
    allowed = _range_of(where, root)
    if kind == "string_too_long":
        allowed = f"up to {context['max_length']} characters"
    if kind in {"bool_type", "bool_parsing"} and where != _PINNED_SPLIT:
        allowed = "true or false"
    nearest = _whole_number(str(where[-1]), value) if kind in ("int_type", "int_from_float") else None
    return FieldError(pointer=at, message=_message(detail, where), allowed=allowed, nearest=nearest)


def _whole_number(name: str, value: object) -> str | None:
    """Return the whole number that a value states: ``4k`` in a file is what it is on a command line."""
    return stated_number(written_out(name, value, whole=True) if isinstance(value, str) else value)


_OPTIONS = ("workload", "framework_options")


def _option_error(where: Sequence[int | str], value: object) -> FieldError:
    """Return the fault of an option that is neither a word, a number, nor true or false."""
    name = str(where[len(_OPTIONS)])
    containers: dict[type, str] = {list: "a list", dict: "an object"}
    kind = containers.get(type(value)) or shown(str(value))
    return FieldError(
        pointer=pointer(*where),
        message=f"must be one value, not {kind}",
        allowed=allowed_values(name) if name in option_names() else None,
    )


def _location(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return Pydantic's location without the names of union members, which are not in the input."""
    members = {"int", "str", "float", "bool", "constrained-int", "dict[str,int]"}
    if loc[:2] == ("search", "pin"):
        return loc[:3]
    if loc[:2] in {("workload", "global_batch_size"), ("search", "num_nodes")}:
        return loc[:2]  # a number, a list or a range
    return (*loc[:1], *(part for part in loc[1:] if part not in members))


def _owner(where: Sequence[int | str], root: type[BaseModel]) -> type[BaseModel]:
    owner = root
    for part in where[:-1]:
        info = owner.model_fields.get(str(part))
        if info is None or not (
            isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
        ):
            break
        owner = info.annotation
    return owner


def _unknown_field(where: Sequence[int | str], root: type[BaseModel]) -> FieldError:
    known = sorted(_owner(where, root).model_fields)
    name = str(where[-1])[:256]
    places = _elsewhere(root)
    near = (
        [places[name]]
        if name in places
        else difflib.get_close_matches(name, known, n=2, cutoff=0.6)
        or [places[one] for one in difflib.get_close_matches(name, places, n=1, cutoff=0.75)]
    )
    return FieldError(
        pointer=pointer(*where),
        message=UNKNOWN_FIELD,
        allowed=None if near else ", ".join(known),
        nearest=" or ".join(near) or None,
    )


# What the command line takes as options, in a file.
AS_OPTIONS: Mapping[str, str] = dict.fromkeys(("gpu", "gpus"), 'cluster, as in "cluster: 8xH100"')


@cache  # a request may have a thousand unknown fields
def _elsewhere(root: type[BaseModel]) -> Mapping[str, str]:
    """Return where the fields of a request's parts stand, by their names."""
    parts = {part: info.annotation for part, info in root.model_fields.items()}
    places = {
        field: f"{part}.{field}"
        for part, kind in parts.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for field in kind.model_fields
    }
    return {**places, **(AS_OPTIONS if "cluster" in parts else {})}


def words_of(kind: object) -> tuple[str, ...]:
    """Return the words that a type leaves open, its own or those of its parts."""
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    return tuple(word for part in get_args(kind) for word in words_of(part))


def listed_values(name: str) -> tuple[str, ...]:
    """Return the words that an option or a field takes, where they are a closed list; else nothing.

    ``name``: as it is typed without dashes (``allow``), or the last part of the field's path.
    """
    name = name.replace("-", "_")
    if name in _LISTED:
        return tuple(_LISTED[name]())
    if words := WORDS.get(long_name(name)):
        return tuple(words)
    row = OPTIONS.get(name) or next((one for one in FIELDS if one.name == name), None)
    if row is None or not row.type or row.type in ("Pins", "Bounds", "Prohibitions"):
        return ()
    return words_of(_definition(row)[0])


def names_with_values() -> tuple[str, ...]:
    """Return the names that ``listed_values`` knows, as they are typed."""
    names = (*_LISTED, *OPTIONS, *WORDS)
    return tuple(dict.fromkeys(name.replace("_", "-") for name in names if listed_values(name)))


_TORCH = {  # torch.bfloat16 and its like
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
    "float8": "fp8",
}  # fmt: skip
_LONGEST_WORD = 64


@cache
def _closed_lists() -> Mapping[tuple[str, ...], Mapping[str, str]]:
    """Return the words of every field with a closed list, by the field's path: as typed, and its own."""
    words = {row.path: listed_values(row.name) for row in FIELDS}
    words["workload.lengths.batching"] = BATCHINGS
    return {
        tuple(path.split(".")): {_letters(one): one for one in own} for path, own in words.items() if own
    }


def with_usual_words(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request with ``BF16``, ``torch.bfloat16`` and ``Megatron_LM`` as the schema has them.

    Words of a closed list are written in any case, with hyphens or underscores. What is none of them is
    left unchanged, to be refused as it was written.
    """
    for path, words in _closed_lists().items():
        raw = _with_words(raw, path, words)
    return raw


def _with_words(part: Any, path: Sequence[str], words: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    if path:
        if not isinstance(part, Mapping) or path[0] not in part:
            return part
        return {**part, path[0]: _with_words(part[path[0]], path[1:], words)}
    if isinstance(part, list):
        return [_with_words(one, path, words) for one in part]
    if not isinstance(part, str) or part in words.values():
        return part
    letters = _letters(part).removeprefix("torch.") if len(part) <= _LONGEST_WORD else ""
    return words.get(_TORCH.get(letters, letters), part)


def _letters(word: str) -> str:
    return re.sub(r"[-_ ]", "", word.lower())


def _columns() -> Iterable[str]:
    from meshwright.solver.runs.table import column_names  # noqa: PLC0415 - which few commands read

    return column_names()


def _sweep_names() -> Iterable[str]:
    from meshwright.service.requests.jobs import AXES  # noqa: PLC0415 - which reads this module

    return AXES


_LISTED: Mapping[str, Callable[[], Iterable[str]]] = {
    "launcher": lambda: ("any", *launcher_names()),
    "stack": framework_names,
    "framework_options": lambda: sorted(option_names()),
    "constraint": lambda: NAMES,
    "sweep": _sweep_names,
    "columns": _columns,
    **dict.fromkeys(("pin", "bound", "bounds", "forbid", "set"), lambda: VARIABLES),
}


def _unknown_word(where: Sequence[int | str], given: str, words: Sequence[str]) -> FieldError:
    near = difflib.get_close_matches(given[:256].lower(), words, n=1, cutoff=0.5)
    return FieldError(
        pointer=pointer(*where),
        message=f'"{shown(given)}" is not supported' if given else "must be text",
        allowed=", ".join(words) or None,
        nearest=next(iter(near), None),
    )


_LIMITS: Mapping[type, str] = {
    annotated_types.Ge: "from {0.ge}",
    annotated_types.Gt: "above {0.gt}",
    annotated_types.Le: "to {0.le}",
    annotated_types.Lt: "below {0.lt}",
}


def _range_of(where: Sequence[int | str], root: type[BaseModel]) -> str | None:
    fields = _owner(where, root).model_fields
    info = next((fields[str(name)] for name in reversed(where[-2:]) if str(name) in fields), None)
    if info is None:
        return None
    words = [_LIMITS[type(mark)].format(mark) for mark in _marks_of(info) if type(mark) in _LIMITS]
    return " ".join(words) or None


def _marks_of(info: FieldInfo) -> Sequence[object]:
    """Return the limits of a field; of a number, a list, a range or an object those of the number."""
    if any(type(mark) in _LIMITS for mark in info.metadata):
        return info.metadata
    for member in get_args(info.annotation):
        for inner in getattr(member, "__metadata__", ()):
            if isinstance(inner, FieldInfo) and get_origin(member) is Annotated:
                return inner.metadata
    return ()
