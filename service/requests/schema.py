"""The shape of a request: names, types and ranges; one schema for the API and the command line.

What depends on more than one field is checked in ``meshwright.service.requests.checks``; models and
clusters are
read by ``profiles``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel, Field, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from meshwright.profiles.adapters import LORA_TARGETS, TRAINED_MODULES, BasePrecision, TrainedModule
from meshwright.profiles.documents import MAX_ERRORS, pointer, shown
from meshwright.profiles.errors import FieldError
from meshwright.service.requests.parts import (
    MAX_BATCH,
    MAX_TOKENS,
    BaselineRequest,
    Batches,
    NodeCounts,
    Part,
    ReliabilityRequest,
)
from meshwright.solver.problem import Certify, Objective
from meshwright.solver.space.expressions import MAX_LENGTH

MAX_RANK = 65_536  # no hidden size so far exceeds it
MAX_SEQ_LENGTH = 10_000_000  # tokens; the longest contexts trained so far are an order below
MAX_TOP_K = 10_000
MAX_TIME_LIMIT_S = 86_400.0
MAX_NAMES = 64  # entries of an object with keys of the client's; there are fewer variables
MAX_CONSTRAINTS = 32
MAX_VALUES = 1024  # forbidden values of one variable

LoraTarget = Literal[
    "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2",
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate", "w1", "w2", "w3",
]  # fmt: skip
Allowed = Literal[
    "offload", "fp8", "standalone_stages", "context_parallel_mode",
    "adamw", "adamw-bf16", "adamw-pure-bf16", "adamw-8bit", "adamw-8bit-bf16", "galore", "muon",
    "sgd-momentum", "switches", "none", "moe_dispatcher", "overlap_experts", "cuda_graph",
    "recompute_modules", "gradient_dtype", "overlap_tensor", "optimizer_offload_fraction",
]  # fmt: skip
Scalar = bool | int | float | str
Value = bool | int | str
Split = Annotated[list[int], Field(min_length=1, max_length=MAX_VALUES)]


class WorkloadRequest(Part):
    """The work of one optimizer step."""

    global_batch_size: Batches = Field(
        description="sequences per optimizer step: one number, a list, or a range by doubling"
    )
    total_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS, description="of the whole run")
    seq_length: int = Field(ge=1, le=MAX_SEQ_LENGTH, description="tokens per sequence")
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"] = Field(
        default="bf16",
        description="fp32 multiplies in TF32 where the GPU has it (tf32_products of framework_options); "
        "mxfp8 and nvfp4 mean fp8 with the recipe of that name "
        "(precision_recipe of framework_options)",
    )
    optimizer: Literal[
        "adamw",
        "adamw-bf16",
        "adamw-pure-bf16",
        "adamw-8bit",
        "adamw-8bit-bf16",
        "galore",
        "muon",
        "sgd-momentum",
    ] = "adamw"
    optimizer_rank: int = Field(
        default=0, ge=0, le=MAX_RANK, description="of galore's projection; 0: a quarter of the hidden size"
    )
    lora_rank: int = Field(
        default=0,
        ge=0,
        le=MAX_RANK,
        description="of adapters next to the frozen model; 0: all weights are trained",
    )
    lora_targets: list[LoraTarget] | None = Field(
        default=None,
        min_length=1,
        max_length=len(LORA_TARGETS),
        description="linear layers with adapters, where lora_rank > 0: Megatron-Core's fused "
        "ones, routed experts among them, or transformers' single ones; null: attention's, as the launcher "
        "names them",
    )
    base_precision: BasePrecision = Field(
        default="bf16",
        description="of the frozen model, where lora_rank > 0: all of it in bf16 or fp32, or its linear "
        "layers in int8 or nf4 as bitsandbytes keeps them (LLM.int8, QLoRA), nf4's scales quantised again "
        "under nf4-double",
    )
    trained_modules: list[TrainedModule] = Field(
        default=[],
        max_length=len(TRAINED_MODULES),
        description="modules trained in full next to adapters (lora_rank > 0), by Llama's names: a copy "
        "of each, as peft's modules_to_save makes it; norm is every norm",
    )
    framework_options: dict[str, Scalar] = Field(
        default_factory=dict,
        max_length=MAX_NAMES,
        description="overrides of the framework's facts, e.g. gradient_dtype",
    )
    lengths: dict[str, JsonValue] | None = Field(
        default=None,
        max_length=MAX_NAMES,
        description="of the documents, where they are not all seq_length long: percentiles "
        '({"p50": 900, "p100": 8192}) or histogram ([{"length": 900, "share": 0.5}, ...]), and batching, '
        "packing (the default), padding or padding_to_longest",
    )


class SearchRequest(Part):
    """Limits of the search."""

    top_k: int = Field(default=10, ge=1, le=MAX_TOP_K, description="ranked plans wanted")
    diverse: bool = Field(
        default=True,
        description="each plan the best of its mesh, not one mesh with other ZeRO stages and micro-batches",
    )
    certify: Certify = "cp-sat"
    time_limit_s: float = Field(default=30.0, gt=0, le=MAX_TIME_LIMIT_S)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    objective: Objective = "step_time"
    gpus: Literal["all", "fewest"] = Field(
        default="all", description="fewest: on the smallest number of nodes that has a plan"
    )
    num_nodes: NodeCounts | None = Field(
        default=None, description="numbers of nodes that a plan may use; default: all of the cluster"
    )
    reserve_nodes: int = Field(default=0, ge=0, le=MAX_BATCH, description="nodes that are kept spare")
    deadline_days: float | None = Field(default=None, gt=0, description="for workload.total_tokens")
    gpu_hour_price: float | None = Field(default=None, ge=0, description="in any currency")
    reliability: ReliabilityRequest = Field(default_factory=ReliabilityRequest)
    pareto: bool = Field(default=False, description="the front of step time and peak memory as well")
    baseline: BaselineRequest | None = Field(
        default=None, description="your own configuration, priced and ranked with the plans"
    )
    max_out_of_memory_probability: float = Field(default=0.01, gt=0, lt=1)
    pin: dict[str, Value | Split] = Field(
        default_factory=dict,
        max_length=MAX_NAMES,
        description="variable: its only value; stage_layers: the layers of each chunk",
    )
    forbid: dict[str, Annotated[list[Value], Field(max_length=MAX_VALUES)]] = Field(
        default_factory=dict, max_length=MAX_NAMES, description="variable: values to avoid"
    )
    bounds: dict[str, Annotated[list[int], Field(min_length=2, max_length=2)]] = Field(
        default_factory=dict,
        max_length=MAX_NAMES,
        description="variable: [lowest, highest], both included",
    )
    allow: list[Allowed] = Field(
        default_factory=list,
        max_length=MAX_NAMES,
        description="searched in addition to the switches that a stock installation of the launcher runs: "
        "offload, fp8, other optimizers, a switch with its settings that need a package, or all such "
        "settings by switches; none: no switch but those that are named",
    )
    constraints: list[Annotated[str, Field(min_length=1, max_length=MAX_LENGTH)]] = Field(
        default_factory=list,
        max_length=MAX_CONSTRAINTS,
        description="expressions that must hold, e.g. zero_stage == 3 => pipeline_parallel_size == 1",
    )


class ProblemRequest(Part):
    """One question put to the planner."""

    model: dict[str, JsonValue] = Field(
        description="a catalog name, alone or as name, an inline shape or a Hugging Face config",
        json_schema_extra={"type": ["object", "string"]},
    )
    cluster: dict[str, JsonValue] = Field(
        description="a catalog name, alone or with num_nodes, or node groups inline",
        json_schema_extra={"type": ["object", "string"]},
    )
    workload: WorkloadRequest
    launcher: str | None = Field(
        default=None,
        max_length=64,
        description="the framework that trains, any or none; without it the first that can express the "
        "model, which is megatron-lm for most",
    )
    stack: str | None = Field(
        default=None,
        max_length=64,
        description="an older software stack to price the launcher as, such as megatron-lm-2021 or fsdp1",
    )
    search: SearchRequest = Field(default_factory=SearchRequest)
    profile: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="id of a stored profile; `latest`, the default: what the service has learnt of this "
        "cluster; `catalog`: not even that; of a problem file, the path of a profile file",
    )


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
    "missing": "is required",
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
_PINNED_SPLIT = ("search", "pin", "stage_layers")  # in addition to pins that are one value


def field_errors(fault: ValidationError, root: type[BaseModel] | None = None) -> list[FieldError]:
    """Return every fault pydantic found, in the planner's words; one entry per field.

    Args:
        fault: what pydantic found.
        root: the shape of what was read; a problem's by default.
    """
    found: dict[str, FieldError] = {}
    for detail in fault.errors(include_url=False):
        error = field_error(detail, root or ProblemRequest)
        found.setdefault(error.pointer, error)
        if len(found) == MAX_ERRORS:
            break
    return list(found.values())


def _message(detail: ErrorDetails, where: Sequence[int | str]) -> str:
    if where == _PINNED_SPLIT:
        return "must be a list of layers, each an integer"
    of_values = where[:2] in {("search", "pin"), ("search", "forbid")}
    if of_values and detail["type"].startswith(("bool", "int", "string", "list")):
        return "must be an integer or a word"
    if detail["type"] in _WORDS:
        return f'"{shown(str(detail["input"]))}" {_WORDS[detail["type"]]}'
    return _KINDS.get(detail["type"], detail["msg"])


def field_error(detail: ErrorDetails, root: type[BaseModel]) -> FieldError:
    """Return one of pydantic's error records, of something of the shape ``root``, as a FieldError."""
    where = _location(detail["loc"])
    at, kind, value = pointer(*where), detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_field(where, root)
    if kind == "literal_error":
        return _not_among(where, value, root)
    if kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        limit = next(iter(context.values()))
        nearest = str(limit) if kind.endswith("equal") else None
        message = f"{shown(str(value))} is out of range"
        return FieldError(pointer=at, message=message, allowed=_range_of(where, root), nearest=nearest)
    if kind in {"too_short", "too_long"}:
        message, size = "is empty", "at least 1 entry"
        if where[:2] == ("search", "bounds"):
            message, size = "must hold exactly two numbers", "[lowest, highest]"
        elif kind == "too_long":
            message, size = "holds too much", f"up to {context['max_length']} entries"
        return FieldError(pointer=at, message=message, allowed=size)
    allowed = _range_of(where, root)
    if kind == "string_too_long":
        allowed = f"up to {context['max_length']} characters"
    if kind in {"bool_type", "bool_parsing"} and where != _PINNED_SPLIT:
        allowed = "true or false"
    return FieldError(pointer=at, message=_message(detail, where), allowed=allowed)


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
    near = difflib.get_close_matches(str(where[-1])[:256], known, n=2, cutoff=0.6)
    nearest = " or ".join(near) or None
    allowed = None if near else ", ".join(known)
    return FieldError(pointer=pointer(*where), message="unknown field", allowed=allowed, nearest=nearest)


def _not_among(where: Sequence[int | str], value: object, root: type[BaseModel]) -> FieldError:
    named = where[:-1] if isinstance(where[-1], int) else where
    annotation = _owner(named, root).model_fields[str(named[-1])].annotation
    parts = get_args(annotation)  # of a list or of what may be left out, its member; of both, that one's
    entries = (annotation, *parts, *(entry for part in parts for entry in get_args(part)))
    words = [str(word) for entry in entries if get_origin(entry) is Literal for word in get_args(entry)]
    given = value if isinstance(value, str) else ""
    near = difflib.get_close_matches(given[:256], words, n=1, cutoff=0.5)
    message = f'"{shown(given)}" is not supported' if given else "must be text"
    allowed = ", ".join(words) or None
    return FieldError(
        pointer=pointer(*where), message=message, allowed=allowed, nearest=next(iter(near), None)
    )


def _range_of(where: Sequence[int | str], root: type[BaseModel]) -> str | None:
    fields = _owner(where, root).model_fields
    info = next((fields[str(name)] for name in reversed(where[-2:]) if str(name) in fields), None)
    if info is None:
        return None
    limits: Mapping[type, str] = {
        annotated_types.Ge: "from {0.ge}",
        annotated_types.Gt: "above {0.gt}",
        annotated_types.Le: "to {0.le}",
        annotated_types.Lt: "below {0.lt}",
    }
    words = [limits[type(mark)].format(mark) for mark in _marks_of(info) if type(mark) in limits]
    return " ".join(words) or None


def _marks_of(info: FieldInfo) -> Sequence[object]:
    """Return the limits of a field; of a number, a list, a range or an object those of the number."""
    if any(not isinstance(mark, annotated_types.MaxLen) for mark in info.metadata):
        return info.metadata
    for member in get_args(info.annotation):
        for inner in getattr(member, "__metadata__", ()):
            if isinstance(inner, FieldInfo) and get_origin(member) is Annotated:
                return inner.metadata
    return ()
