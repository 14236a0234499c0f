"""``python -m meshwright.service.api.client_records`` prints the client's records, as the API shows them.

The client is a distribution of its own, which imports nothing of the service. A field, its type, its
default and its comment are declared in the service's own record, and written from there into
``client/meshwright_client/records.py``.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from meshwright.service.api import problems, schemas
from meshwright.service.replan.answer import LayoutAnswer, ReplanAnswer, WayAnswer
from meshwright.solver import answer as answers
from meshwright.solver.configuration import Configuration, StageGroup, Variable
from meshwright.solver.post_training import problem as post_training

_HEAD = '''"""What the service answers with; times are its own, in UTC. Units stand in the names.

Written by ``make reference`` from the service's own records. What it shows as a mapping stays one here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal

State = {state}
Status = {status}'''
_CLASS, _WIDTH = "@dataclass(frozen=True, slots=True, kw_only=True)", 108


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the client and the record of the service that it follows."""

    name: str
    of: type
    optional: tuple[str, ...] = ()  # fields that some answers of this shape lack
    plain: tuple[str, ...] = ()  # fields that stay as the service writes them


# In an order in which each comes after what it holds.
RECORDS = (
    Record("StageGroup", StageGroup),
    Record("Configuration", Configuration),
    Record("StagePrediction", answers.StagePrediction),
    Record("PeakMemory", answers.PeakMemory),
    Record("HostMemory", answers.HostMemory),
    Record("Prediction", answers.Prediction),
    Record("Plan", schemas.RankedPlan, plain=("outlook", "why", "odds", "hosts")),
    Record("UnreadablePlan", schemas.UnreadablePlan),
    Record("ModelFigures", schemas.ModelFigures),
    Record("Progress", schemas.ProgressView),
    Record("Infeasibility", answers.Infeasibility, plain=("nearest", "remedies", "closest")),
    Record("FieldFault", problems.FaultView),
    Record("JobProblem", problems.ProblemView),
    Record("JobRecord", schemas.JobDetail, optional=("request",)),
    Record("Export", schemas.ExportView),
    Record("Measured", schemas.MeasuredView),
    Record("PlanSummary", schemas.PlanSummary),
    Record("PlanPage", schemas.PlanPage),
    Record("Quantity", schemas.QuantityView),
    Record("Verification", schemas.VerificationView),
    Record("Point", schemas.PointView),
    Record("SkippedLauncher", answers.SkippedLauncher),
    Record("Lever", answers.Lever),
    Record("Reference", answers.Reference),
    Record("Answer", schemas.AnswerView, plain=("objective", "baseline", "pareto")),
    Record("Learnt", schemas.MeasurementView),
    Record("StoredProfile", schemas.ProfileDetail, optional=("document",)),
    Record("ProfilePage", schemas.ProfilePage),
    Record("PricedConfiguration", schemas.PredictionView, optional=("model",), plain=("why",)),
    Record("Layout", LayoutAnswer),
    Record("Way", WayAnswer),
    Record("Replan", ReplanAnswer),
    Record("KeyUsage", schemas.UsageView),
    Record("UsageTotal", schemas.UsageTotal),
    Record("UsageList", schemas.UsageList, optional=("total",)),
    Record("Worker", schemas.WorkerView),
    Record("WorkerList", schemas.WorkerList),
    Record("FleetJob", schemas.FleetJobView),
    Record("FleetSwitches", schemas.FleetSwitchesView),
    Record("FleetObjective", schemas.FleetObjectiveView),
    Record("FleetRule", schemas.FleetRuleView),
    Record("FleetAnswer", schemas.FleetAnswerView),
    Record("FleetFiles", schemas.FleetFilesView),
    Record("TrainingRole", post_training.TrainingRole),
    Record("EngineRole", post_training.EngineRole),
    Record("SideRole", post_training.SideRole),
    Record("RolePlan", post_training.RolePlan),
    Record("LengthsOutcome", post_training.LengthsOutcome),
    Record("RolesAnswer", post_training.PostTrainingAnswer, optional=("bound_s", "choices", "searches")),
)
_SAME = {schemas.ProfileView: "StoredProfile", answers.Plan: "Plan"}  # of which the client has one record
_NAMES = {one.of: one.name for one in RECORDS} | _SAME
_WORDS: dict[Any, str] = {
    **{one: one.__name__ for one in (int, float, str, bool, date, datetime)}, NoneType: "None",
    schemas.State: "State", answers.Status: "Status", **_NAMES,
}  # fmt: skip


def written() -> str:
    """Return the module with all records."""
    head = _HEAD.format(state=_literal(schemas.State), status=_literal(answers.Status))
    return "\n".join([head, *map(_record, RECORDS), ""])


def _record(one: Record) -> str:
    """Return the class of one record."""
    said = inspect.getdoc(one.of) or ""
    lines = ["", "", _CLASS, f"class {one.name}:", f'    """{said.splitlines()[0]}"""', ""]
    for field in _fields(one.of):
        kind = _plain(field.kind) if field.name in one.plain else words_of(field.kind)
        default = field.default
        if field.name in one.optional:
            kind, default = f"{kind.removesuffix(' | None')} | None", "None"
        stated = f"    {field.name}: {kind}" + (f" = {default}" if default else "")
        lines += _commented(stated, field.comment)
    return "\n".join(lines)


def _commented(stated: str, comment: str) -> list[str]:
    """Return a field with its comment behind it, above it if the line is full."""
    line = f"{stated}  # {comment}" if comment else stated
    if len(line) <= _WIDTH:
        return [line]
    return [*(f"    # {part}" for part in textwrap.wrap(comment, _WIDTH - 6)), stated]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: Any
    default: str  # as it is written; empty: the service always states it
    comment: str


def _fields(record: type) -> Iterator[_Field]:
    """Return the fields of a record with what its source says of each."""
    hints, comments = get_type_hints(record, include_extras=True), _comments(record)
    for name, default in _defaults(record):
        kind, comment = hints[name], comments.get(name, "")
        if get_origin(kind) is Annotated:
            kind, *facts = get_args(kind)
            said = [one.meaning for one in facts if isinstance(one, Variable)]
            comment = said[0] if said else comment
        yield _Field(name, kind, default, comment)


def _defaults(record: type) -> Iterator[tuple[str, str]]:
    if issubclass(record, BaseModel):
        for name, field in record.model_fields.items():
            yield name, "" if field.is_required() else _value(field.get_default(call_default_factory=True))
        return
    for one in fields(record):  # type: ignore[arg-type] # each is a dataclass else
        made = one.default if one.default_factory is MISSING else one.default_factory()
        yield one.name, "" if made is MISSING else _value(made)


def _value(default: object) -> str:
    """Return a default as the client writes it: nothing in it may change."""
    if isinstance(default, Mapping):
        return "field(default_factory=dict)"
    return repr(tuple(default) if isinstance(default, list) else default).replace("'", '"')


def words_of(kind: Any) -> str:  # noqa: ANN401 - a type hint is of any kind
    """Return a type as the client names it: lists are tuples, records that it lacks are mappings."""
    origin, parts = get_origin(kind), get_args(kind)
    if known := _WORDS.get(kind):
        return known
    if origin is Annotated:
        return words_of(parts[0])
    if origin in {Union, UnionType}:
        return " | ".join(map(words_of, parts))
    if origin in {list, tuple}:
        return f"tuple[{words_of(parts[0])}, ...]"
    if origin in {dict, Mapping}:
        return f"Mapping[str, {words_of(parts[1])}]"
    return _literal(kind) if origin is Literal else _plain(kind)


def _plain(kind: Any) -> str:  # noqa: ANN401 - the same
    """Return the type of what stays as the service writes it: objects, lists of objects, perhaps none."""
    parts = get_args(kind)
    if NoneType in parts:
        return " | ".join("None" if part is NoneType else _plain(part) for part in parts)
    if get_origin(kind) is tuple:
        return f"tuple[{_plain(parts[0])}, ...]"
    is_record = is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel))
    return "Mapping[str, Any]" if is_record else "Any"


def _literal(kind: Any) -> str:  # noqa: ANN401 - the same
    return f"Literal[{', '.join(repr(word) for word in get_args(kind))}]".replace("'", '"')


@cache
def _comments(record: type) -> dict[str, str]:
    """Return what the source of a record and of those that it extends says behind each field."""
    said: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if base.__module__.startswith("meshwright."):
            said |= _comments_in(textwrap.dedent(_source(base)))
    return said


def _source(record: type) -> str:
    """Return the source of a record; of one that is made of another's fields, that one's."""
    made_of = answers.Answer if record is schemas.AnswerView else record
    return inspect.getsource(made_of)


def _comments_in(source: str) -> dict[str, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {one.start[0]: one.string.lstrip("# ") for one in tokens if one.type == tokenize.COMMENT}
    (record,) = ast.parse(source).body
    stated = [one for one in ast.walk(record) if isinstance(one, ast.AnnAssign)]
    return {ast.unparse(one.target): lines[one.lineno] for one in stated if one.lineno in lines}


if __name__ == "__main__":
    sys.stdout.write(written())
