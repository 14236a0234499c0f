"""The fields of a question: what is asked first, and what is folded away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.launchers.reading.registry import reader_names
from meshwright.launchers.registry import launcher_names
from meshwright.service.jobs.states import DEFAULT_PRIORITY
from meshwright.service.requests.fields import FIELDS, Choices, FormQuestion, RequestField
from meshwright.service.requests.jobs import MAX_PRIORITY
from meshwright.service.requests.schema import TYPES, words_of
from meshwright.service.web.fields import FormField
from meshwright.solver.configuration import RECOMPUTE, SCHEDULES, VARIABLES
from meshwright.solver.problem import ALLOWED


def _words(row: RequestField) -> Choices:
    kind = TYPES[row.type] if isinstance(row.type, str) else row.type
    return tuple((word, word) for word in words_of(kind))


def _open(words: tuple[str, ...]) -> Choices:
    return (("", "any"), *((word, word.replace("_", " ")) for word in words))


_CHOICES: Mapping[str, Choices] = {
    "launcher": (
        *((name, name) for name in launcher_names()),
        ("any", "any of these"),
        ("none", "none"),
    ),
    "search.allow": tuple((word, word) for word in ALLOWED),
}


def _asked(row: RequestField, question: FormQuestion) -> FormField:
    chosen = question.kind in ("choice", "checks")
    choices = (question.choices or _CHOICES.get(row.path) or _words(row)) if chosen else ()
    plain = isinstance(row.default, str | int | float) and not isinstance(row.default, bool)
    return FormField(
        name=question.name or row.name,
        at=tuple(row.path.split(".")),
        label=question.label,
        kind=question.kind,
        hint=question.hint,
        default=question.default or (row.default_words if plain else ""),
        choices=((("", question.unset), *choices) if question.unset else choices),
        suggestions=question.suggestions,
        required=question.required,
        placeholder=question.placeholder,
    )


ASKED = {row.path: _asked(row, row.question) for row in FIELDS if row.question}


def _part(part: str) -> tuple[FormField, ...]:
    return tuple(ASKED[row.path] for row in FIELDS if row.question and row.question.part == part)


FIRST, DOCUMENTS, LIMITS = _part("first"), _part("documents"), _part("limits")
(CONFIG,) = _part("config")


PINS = (
    *(
        FormField(
            name=f"pin-{one.short}",
            at=("search", "pin", one.name),
            label=one.meaning.partition(":")[0].removesuffix(" size"),
            kind="number",
            placeholder="any",
        )
        for one in VARIABLES.values()
        if one.in_tables
    ),
    FormField(
        name="pin-recompute",
        at=("search", "pin", "recompute_granularity"),
        label="Recompute",
        kind="choice",
        choices=_open(RECOMPUTE),
    ),
    FormField(
        name="pin-schedule",
        at=("search", "pin", "pipeline_schedule"),
        label="Schedule",
        kind="choice",
        choices=_open(SCHEDULES),
    ),
)
_ENDS = {0: " first", MAX_PRIORITY: " last"}
RUN = (
    *_part("run"),
    FormField(
        name="priority",
        at=("priority",),
        label="Priority",
        kind="choice",
        default=str(DEFAULT_PRIORITY),
        choices=tuple((str(at), f"{at}{_ENDS.get(at, '')}") for at in range(MAX_PRIORITY + 1)),
        hint="among your own jobs",
    ),
    FormField(
        name="deadline_s",
        at=("deadline_s",),
        label="Start within",
        kind="number",
        hint="seconds; else it expires",
    ),
)
FRESH = FormField(
    name="fresh", at=("fresh",), label="Search again", kind="check", hint="even if the answer is known"
)
QUESTION = (*FIRST, CONFIG, *DOCUMENTS, *PINS, *LIMITS, *RUN)

# A launch file contains most of it.
LAUNCH_FILE = FormField(
    name="launch_text",
    at=("launch_file", "text"),
    label="Launch file",
    kind="long",
    required=True,
    hint="A script, a JSON, YAML or TOML file: drop it, or paste it.",
)
OWN_FILE = (
    LAUNCH_FILE,
    FormField(
        name="launch_name",
        at=("launch_file", "name"),
        label="Its name",
        hint="Only where its form is not recognised, e.g. config.yaml",
    ),
    FormField(
        name="launch_launcher",
        at=("launch_file", "launcher"),
        label="Written for",
        kind="choice",
        choices=(("", "recognise it"), *((name, name) for name in reader_names())),
    ),
)
OWN_CLUSTER = (
    ASKED["cluster.name"],
    replace(ASKED["cluster.num_nodes"], default="", hint="if the file does not state it"),
)
OWN_REST = tuple(
    FormField(
        name=one.name,
        at=one.at,
        label=one.label,
        kind=one.kind,
        suggestions=one.suggestions,
        choices=(("", "as in the file"), *one.choices) if one.choices else (),
    )
    for one in FIRST
    if one.at[0] in ("model", "workload")
)
OWN = (*OWN_FILE, *OWN_CLUSTER, *OWN_REST)
